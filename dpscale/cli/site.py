"""Command `site`: a static site of finished releases, at no cost."""

from __future__ import annotations

import json
from pathlib import Path

import click

from dpscale.cli.group import json_option, main


@main.command()
@click.argument("run_dirs", metavar="RUN_DIR...", nargs=-1, required=True)
@click.option("--out", metavar="FOLDER", required=True, help="A new or empty folder, or an older site.")
@click.option("--title", default="Published tables", show_default=True, help="The title of the site.")
@click.option("--ledger", metavar="LEDGER", help="The ledger of the releases (default: that of each job).")
@click.option("--limit", type=click.FloatRange(min=0), default=0.5, show_default=True,
              help="Flag counts with a larger relative standard error.")  # fmt: skip
@click.option("--minimum", type=click.IntRange(min=0), default=0, metavar="N", help="Hide counts below N.")
@json_option
def site(
    run_dirs: tuple[str, ...], out: str, title: str, ledger: str | None, limit: float, minimum: int, as_json: bool
) -> None:
    """Write a static site of the published tables of releases, which needs no server, at no cost."""
    from dpscale.api.site import read_site

    found = read_site(run_dirs, Path(out), title, ledger, limit, minimum).write()
    if as_json:
        click.echo(json.dumps({"site": out, **found}))
        return
    click.echo(f"releases: {found['releases']:,}, tables: {found['tables']:,}, pages: {found['pages']:,}")
    click.echo(f"site: {Path(out) / 'index.html'}")
