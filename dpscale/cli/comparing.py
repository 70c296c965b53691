"""`compare`: a private report of rows against data. The terminal is told where it lies, and no more."""

from __future__ import annotations

import json

import click

from dpscale.cli.group import json_option, main, quiet_option, scheduler_option
from dpscale.cli.progress import Bars


@main.command()
@click.argument("run_dir")
@click.argument("data", nargs=-1, required=True)
@click.option("--out", required=True, metavar="ELSEWHERE", help="A new or empty folder, outside every run directory.")
@click.option(
    "--target", metavar="NAME", help="What models predict (default: the last attribute of the fewest values)."
)
@scheduler_option
@quiet_option
@json_option
def compare(
    run_dir: str, data: tuple[str, ...], out: str, target: str | None, scheduler: str | None, quiet: bool, as_json: bool
) -> None:
    """Hold a run's synthetic rows against DATA, in a PRIVATE report: for those alone who may see the data."""
    from dpscale.evaluation import compare
    from dpscale.evaluation.compared import FIGURES

    with Bars(quiet) as progress:
        page = compare(run_dir, list(data), out, target, scheduler, progress)
    told = {"report": str(page), "figures": str(page.with_name(FIGURES)), "differentially_private": False}
    click.echo(json.dumps(told) if as_json else f"private report, not to be published: {page}")
