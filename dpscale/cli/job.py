"""Commands for job files and their runs: their keys, runs on a cluster, and the end of a run."""

from __future__ import annotations

import json
from typing import Any

import click

from dpscale.base import LazyModule
from dpscale.base.errors import TransientError
from dpscale.cli.group import Bars, empty_option, fresh_option, json_option, main
from dpscale.runs.stage import STAGES

opening = LazyModule("dpscale.runs.opening")
driver = LazyModule("dpscale.cli.driver")
RESUME = {"stopped": ", run the job again to resume", "cancelled": ", submit it again to resume"}


@main.group()
def job() -> None:
    """Job files, submitted runs, and the end of a run."""


@job.command("schema")
def job_schema() -> None:
    """Print the JSON Schema of a job file, for completion and checks in editors."""
    from dpscale.cli.schema import schema

    click.echo(json.dumps(schema(), indent=1))


@job.command("options")
def job_options() -> None:
    """Print the options of every mechanism and reconstruction as a table (Markdown)."""
    from dpscale.cli.schema import options_table

    click.echo(options_table())


@job.command("from-sdv")
@click.argument("metadata")
@click.option("--data", default=".", show_default=True, help="The folder of the tables' files.")
@click.option("--public", multiple=True, metavar="TABLE", help="A public table; may be repeated.")
@click.option("--unit", metavar="TABLE", help="The protected table, if several private tables have no private parent.")
def from_sdv(metadata: str, data: str, public: tuple[str, ...], unit: str | None) -> None:
    """Print a draft of a job from SDV's metadata of several tables. Reads no data."""
    from dpscale.job.sdv import draft, read_metadata

    click.echo(draft(read_metadata(metadata), data, public, unit))


@job.command("to-sdv")
@click.argument("job_file", metavar="JOB")
def to_sdv(job_file: str) -> None:
    """Print SDV's metadata of the tables that a job releases. Reads no data."""
    from dpscale.job import Job
    from dpscale.job.sdv import metadata

    click.echo(json.dumps(metadata(Job.read(job_file)), indent=1))


@job.command()
@click.argument("run_dir", required=False)
@json_option
def stages(run_dir: str | None, as_json: bool) -> None:
    """List the stages in order with their inputs and whether they spend budget; with RUN_DIR those of one run."""
    run = None if run_dir is None else opening.open_run(run_dir)
    known = STAGES if run is None else run.stages
    table = [stage.to_dict() for stage in known.values() if run is None or stage.is_enabled(run)]
    if as_json:
        click.echo(json.dumps({"stages": table}))
        return
    for stage in table:
        click.echo(f"{stage['name']:>12}: {stage['help']}")


@job.command()
@click.argument("job_file", metavar="JOB")
@click.option("--run-dir", metavar="DIR", help="The run directory, on storage that the workers share.")
@click.option("--scheduler", metavar="SPEC", required=True, help="tcp://HOST:PORT or tls://HOST:PORT")
@fresh_option
@empty_option
@json_option
def submit(job_file: str, run_dir: str | None, scheduler: str, fresh: bool, empty: bool, as_json: bool) -> None:
    """Run all stages of a job on a cluster, including the driver, and return at once."""
    from dpscale.engine.schedulers import open_cluster
    from dpscale.runs.runner import check_repeat

    directory = opening.begin_run(opening.read_job(job_file), run_dir, fresh, False, empty)
    directory.check_open("measure")
    check_repeat(directory)
    with Bars(quiet=as_json) as progress, open_cluster(scheduler, progress) as engine:
        driven = driver.submit(directory, engine)
    summary = {"run_dir": str(directory.path), **driven}
    click.echo(json.dumps(summary) if as_json else f"{driven['state']}: dpscale job wait {directory.path}")


@job.command()
@click.argument("run_dir")
@json_option
def status(run_dir: str, as_json: bool) -> None:
    """Print the state of each stage of a run, and of its driver on the cluster.

    `parts` has the states of each table of a job of several; RESUME has the command that continues a stage.
    """
    run = opening.open_run(run_dir)
    driven = driver.read_status(run.path)
    working = driver.at_work(driven)
    parts = {
        name.removeprefix("tables."): run.current_states(facts["stages"], working)
        for name, facts in run.manifest.get("parts", {}).items()
        # parts that have stages; names with a slash are parts of a part
        if "stages" in facts and "/" not in name
    }
    states = run.states(working)
    if as_json:
        added = {"states": states, **({"tables": parts} if parts else {}), **({"driver": driven} if driven else {})}
        click.echo(json.dumps(run.manifest | added))
        return
    for name, state in states.items():
        click.echo(f"{name:>12}: {state}{RESUME.get(state, '')}")
    for name, states_of_part in parts.items():
        click.echo(f"{name:>12}: {', '.join(f'{stage} {state}' for stage, state in states_of_part.items())}")
    if run.ended:
        click.echo(f"{'ended':>12}: {run.ended['how']} at {run.ended['at']}")
    # a driver on a cluster that does not report is silent
    if driven:
        task = driven.get("working")
        tasks = f", {task['tasks']} {task['done']} of {task['total']}" if task else ""
        click.echo(f"{'driver':>12}: {'silent' if driven['silent'] else driven['state']}{tasks}")


@job.command()
@click.argument("run_dir")
@click.option("--seconds", type=float, help="Stop waiting after this time (exit code 75); the run continues.")
def wait(run_dir: str, seconds: float | None) -> None:
    """Wait for a submitted run and exit with its exit code."""
    run = opening.open_run(run_dir)
    with Bars() as progress:
        ended = driver.wait(run.path, seconds, progress)
    if ended["exit_code"]:
        click.echo(f"dpscale: {ended['error']}", err=True)
        raise click.exceptions.Exit(ended["exit_code"])
    click.echo(f"report: {run.path / 'report.html'}")


@job.command()
@click.argument("run_dir")
def cancel(run_dir: str) -> None:
    """Stop a submitted run at its next task; a later submit resumes it."""
    driver.cancel(opening.open_run(run_dir).path)


@job.command()
@click.argument("run_dir")
@json_option
def end(run_dir: str, as_json: bool) -> None:
    """Finish a measured run, or abandon it: its secret is destroyed, and no further measurement is possible."""
    from dpscale.runs import runner

    run = opening.open_run(run_dir)
    if driver.at_work(driver.read_status(run.path)):
        raise TransientError("run directory", f"a driver on the cluster works in {run.path}", "a run without a driver",
                             f"wait for it, or stop it with `dpscale job cancel {run.path}`")  # fmt: skip
    summary = runner.end(run)
    click.echo(json.dumps(summary) if as_json else f"{summary['how']}: {_spent(summary)}")


PARTS = ("allocation", "searches", "units")  # charges of their own


def _spent(summary: dict[str, Any]) -> str:
    """Return the spent budget in words, for the summary of `runner.end`."""
    charged, finished = summary["charged"], summary["how"] == "finished"
    if "ledger" in summary:
        return f"the ledger is not available to state the spent budget ({summary['ledger']})"
    parts = [name for name in PARTS if summary.get(name)]
    if charged is None:
        return f"the charges of {' and '.join(parts)} are spent; there is no refund" if parts else "nothing was spent"
    figures = ", ".join(f"{name} {charged[name]:g}" for name in ("epsilon", "delta") if charged.get(name) is not None)
    # a charge without figures of the job is stated by its cost
    cost = ", ".join(f"{name} {_decimal(value)}" for name, value in charged["cost"].items() if value not in ("0", None))
    after = (
        "answers can still be computed" if finished else "there is no refund, because some of its noise may be known"
    )
    return f"the whole charge is spent ({figures or cost}); {after}"


def _decimal(value: Any) -> str:
    """Return an exact number such as "1/3" as a decimal of six digits, and any other value as it is."""
    from fractions import Fraction

    try:
        return f"{float(Fraction(value)):.6g}"
    except (ValueError, TypeError, OverflowError):
        return str(value)
