"""`run`, and a command for every stage after `plan`, by the table of stages."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from dpscale.cli.group import fresh_option, json_option, main, quiet_option, scheduler_option
from dpscale.cli.progress import Bars
from dpscale.cli.several import run_several
from dpscale.runs.stages import STAGES


@main.command()
@click.argument("job")
@click.option("--run-dir", metavar="DIR", help="Where the run is kept (default: runs/ and the job's digest).")
@fresh_option
@scheduler_option
@quiet_option
@json_option
def run(job: str, run_dir: str | None, fresh: bool, scheduler: str | None, quiet: bool, as_json: bool) -> None:
    """Run all stages of a job; a run that was begun goes on where it left."""
    from dpscale.api.public import read_job
    from dpscale.job import Job
    from dpscale.runs.stages.refused import leaving_nothing
    from dpscale.runs.stages.repeating import begin, check_repeat
    from dpscale.runs.stages.running import run_stages

    read = read_job(job)
    if not isinstance(read, Job):
        run_several(read, run_dir, fresh, scheduler, quiet, as_json)
        return
    directory = begin(read, run_dir, fresh)
    repeated = check_repeat(directory)
    with leaving_nothing(directory), Bars(quiet) as progress:
        run_stages(directory, scheduler=scheduler, progress=progress)
    _tell_run(directory.path, directory.manifest, repeated, as_json)


def _tell_run(path: Path, manifest: dict[str, Any], repeated: str | None, as_json: bool) -> None:
    report = path / "report.html"
    summary = {
        "run_dir": str(path),
        "report": str(report),
        "release": manifest["release"],
        "private": manifest["private"],
        "privacy": manifest["privacy"],
        "stages": manifest["stages"],
        "repeated": repeated,
    }
    if as_json:
        click.echo(json.dumps(summary))
        return
    if repeated:
        click.echo(f"dpscale: {repeated}", err=True)
    if not manifest["private"]:
        click.echo("dpscale: this run has a seed and is not private", err=True)
    click.echo(f"report: {report}")


def _stage_command(name: str, doc: str) -> None:
    @main.command(name, help=doc)
    @click.argument("run_dir")
    @scheduler_option
    @quiet_option
    @json_option
    def command(run_dir: str, scheduler: str | None, quiet: bool, as_json: bool) -> None:
        from dpscale.runs.run import Run
        from dpscale.runs.stages.running import run_stages

        directory = Run(run_dir)
        if STAGES[name].spends:
            _tell_other_data(directory)
        with Bars(quiet) as progress:
            run_stages(directory, scheduler=scheduler, progress=progress, only=name)
        stage = {"stage": name, **directory.manifest["stages"][name]}
        click.echo(json.dumps(stage) if as_json else f"{name}: {stage['state']}")


def _tell_other_data(directory: Any) -> None:
    """A stage that is done returns at once: who repeats it is told where it would be about other data."""
    from dpscale.base.errors import DataError, TransientError
    from dpscale.runs.stages.repeating import check_repeat

    try:
        with suppress(TransientError):  # a store that cannot tell now
            check_repeat(directory)
    except DataError as error:
        click.echo(f"dpscale: {error}", err=True)


for _stage in STAGES.values():
    if _stage.needs and _stage.name != "synthesize":  # the first one is `plan`, which takes a job
        _stage_command(_stage.name, _stage.help)


def _ask_rows(directory: Any, rows: int) -> None:
    """Ask for another number of rows, unless there cannot be so many."""
    from dpscale.base.faults import checked
    from dpscale.job.sections import SynthesizeTable
    from dpscale.runs.stages.memory import check_rows

    before = directory.synthesis or SynthesizeTable()
    asked = checked(SynthesizeTable, before.model_dump() | {"rows": rows}, "synthesize", "synthetic rows")
    check_rows(asked, rows, len(directory.domain), directory.job.engine.bytes)
    with directory.locked():
        directory.ask_rows(asked)


@main.command(help=STAGES["synthesize"].help)
@click.argument("run_dir")
@click.option("--rows", type=click.IntRange(min=1), help="How many, if not as the job says.")
@scheduler_option
@quiet_option
@json_option
def synthesize(run_dir: str, rows: int | None, scheduler: str | None, quiet: bool, as_json: bool) -> None:
    from dpscale.runs.run import Run
    from dpscale.runs.stages.running import run_stages

    directory = Run(run_dir)
    if rows is not None:
        _ask_rows(directory, rows)
    with Bars(quiet) as progress:
        run_stages(directory, scheduler=scheduler, progress=progress, only="synthesize")
    stage = {"stage": "synthesize", **directory.manifest["stages"]["synthesize"]}
    click.echo(json.dumps(stage) if as_json else f"synthesize: {stage['state']}, in {directory.path / 'synthetic'}")


@main.command()
@click.argument("run_dir", required=False)
@json_option
def stages(run_dir: str | None, as_json: bool) -> None:
    """List the stages in their order, all of them or those of one run: what each needs, and whether it spends."""
    from dpscale.runs.run import Run

    run = None if run_dir is None else Run(run_dir)
    table = [stage.to_dict() for stage in STAGES.values() if run is None or stage.wanted(run)]
    if as_json:
        click.echo(json.dumps({"stages": table}))
        return
    for stage in table:
        click.echo(f"{stage['name']:>12}: {stage['help']}")
