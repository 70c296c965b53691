"""Command for growing tables: `release-period`."""

from __future__ import annotations

import json

import click

from dpscale.base import LazyModule
from dpscale.base.errors import JobError
from dpscale.cli.group import Bars, json_option, main, quiet_option, scheduler_option

opening = LazyModule("dpscale.runs.opening")


@main.command("release-period")
@click.argument("run_dir")
@click.argument("period")
@scheduler_option
@quiet_option
@json_option
def release_period(run_dir: str, period: str, scheduler: str | None, quiet: bool, as_json: bool) -> None:
    """Release the next period of a growing table, for example 2026-02; a released one is not drawn again."""
    from dpscale.runs.periods.stages import release_next

    run = opening.open_run(run_dir)
    if run.job.kind != "periods" or run.manifest.get("kind") != "periods":
        raise JobError("run directory", f"{run.path} is not the run of a growing table",
                       "the run directory of a job with data.period",
                       "use `dpscale run` for a job of one moment")  # fmt: skip
    with Bars(quiet) as progress:
        release_next(run, period, scheduler=scheduler, progress=progress)
    summary = {"run_dir": str(run.path), "period": period, "released": run.released,
               "privacy": run.manifest["privacy"]}  # fmt: skip
    click.echo(json.dumps(summary) if as_json else f"{period}: released, {len(run.released)} of {len(run.labels)}")
