"""Commands that run a job, its stages and periods, and that add to its release: `run`, `rows`, `refine`, `demo`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpscale.base import LazyModule
from dpscale.base.display import figure
from dpscale.base.errors import DataError, DpscaleError, JobError, TransientError
from dpscale.cli.group import Bars, empty_option, fresh_option, json_option, main, quiet_option, scheduler_option
from dpscale.runs.stage import STAGES

if TYPE_CHECKING:
    from dpscale.runs.refine import Refinement
    from dpscale.runs.run import Run

opening, runner = LazyModule("dpscale.runs.opening"), LazyModule("dpscale.runs.runner")
periods, refining = LazyModule("dpscale.runs.periods.stages"), LazyModule("dpscale.runs.refine")
manifest, rows_stage = LazyModule("dpscale.runs.manifest"), LazyModule("dpscale.runs.stages.synthesize")
STAGE_NAMES = ("allocate", *STAGES)


@main.command()
@click.argument("place", metavar="JOB|DIR")
@click.option("--only", metavar="STAGE", help=f"One stage: {', '.join(STAGE_NAMES)}.")
@click.option("--period", metavar="PERIOD", help="The next period of a growing table alone, for example 2026-02.")
@click.option("--run-dir", metavar="DIR", help="The run directory of a job (default: runs/ and the job's digest).")
@fresh_option
@empty_option
@scheduler_option
@click.option("--performance-report", metavar="FILE", help="Write Dask's performance report of a run on a cluster.")
@quiet_option
@json_option
def run(
    place: str,
    only: str | None,
    period: str | None,
    run_dir: str | None,
    fresh: bool,
    empty: bool,
    scheduler: str | None,
    performance_report: str | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Run all stages of a job or of a run directory, or one stage; an interrupted run resumes.

    The same job again costs nothing. Changed data, or --fresh, are a new release with a charge of its own, and squared
    mu adds over the releases of a dataset. A stage or period that is finished returns at once. `dpscale job end DIR`
    retires a run that will not resume. Who removes its directory loses the answers, not the charge: the ledger keeps
    the entry.
    """
    if only is not None and period is not None:
        raise JobError("--period", "given together with --only", "one of them", "leave one out")
    if performance_report is not None:
        from dpscale.engine.configuration import use_report

        use_report(performance_report)

    # --empty permits a table without rows; a period has a setting of its own. The stage "plan" reads no data files.
    directory = _begin(place, run_dir, fresh, empty=empty and period is None, files_accessible=only != "plan")
    if period is not None:
        _run_period(directory, period, empty, scheduler, quiet, as_json)
    elif only is not None:
        _run_stage(directory, only, scheduler, quiet, as_json)
    else:
        repeated = runner.check_repeat(directory)
        with runner.remove_on_error(directory), Bars(quiet) as progress:
            runner.run_stages(directory, scheduler=scheduler, progress=progress)
        print_run(directory, repeated, as_json, sentence="" if as_json else _spent(directory))


def _begin(place: str, run_dir: str | None, fresh: bool, empty: bool, files_accessible: bool) -> Any:
    """Begin or reopen the run of a job file, or open a run directory."""
    if place.endswith(".toml") or os.path.isfile(place):
        return opening.begin_run(opening.read_job(place), run_dir, fresh, files_accessible, empty)
    for option, given in (("--run-dir", run_dir is not None), ("--fresh", fresh)):
        if given:
            raise JobError(option, f"given for {place}, which is no job file", "a job file", f"leave {option} out")
    opened = opening.open_run(place)
    if empty and not opened.manifest.get("empty"):
        with manifest.disk_errors(opened.path):
            opened.update(empty=True)
    return opened


def _run_stage(directory: Run, name: str, scheduler: str | None, quiet: bool, as_json: bool) -> None:
    """Run one stage, if the job requests it, and print its state.

    A stage that the job does not request is no error, but one that this directory cannot have is.
    """
    requested = {"allocate", *(one for one, known in STAGES.items() if known.enabled_by)}  # if the job asks for them
    if name not in directory.stages and name not in requested:
        raise JobError("stage", f"{name} of {directory.path}", ", ".join(directory.stages),
                       "run one of them, or use the directory of the whole run")  # fmt: skip
    stage = directory.stages.get(name)
    if stage is not None and stage.spends:
        try:
            with suppress(TransientError):  # a store that is unavailable now
                runner.check_repeat(directory)
        except DataError as error:
            click.echo(f"dpscale: {error}", err=True)

    if stage is not None and stage.is_enabled(directory):
        with Bars(quiet) as progress, runner.remove_on_error(directory):
            runner.run_stages(directory, scheduler=scheduler, progress=progress, only=name)
    entry = {"stage": name, **directory.manifest["stages"].get(name, {"state": "not requested"})}
    click.echo(json.dumps(entry) if as_json else f"{name}: {entry['state']}")


def _run_period(directory: Any, period: str, empty: bool, scheduler: str | None, quiet: bool, as_json: bool) -> None:
    """Release the next period of a growing table; a released one is not drawn again."""
    if not directory.content.periods:
        raise JobError("run directory", f"{directory.path} is not the run of a growing table",
                       "the run of a job with data.period", "leave --period out for a job of one moment")  # fmt: skip
    with Bars(quiet) as progress:
        periods.release_next(directory, period, scheduler=scheduler, progress=progress, empty=empty)
    table = directory.table
    summary = {"run_dir": str(directory.path), "period": period, "released": table.released,
               "privacy": directory.manifest["privacy"]}  # fmt: skip
    count = f"{len(table.released)} of {len(table.labels)}"
    click.echo(json.dumps(summary) if as_json else f"{period}: released, {count}")


def _spent(run: Run) -> str:
    """Return a sentence on the budget that the dataset of a run has spent; empty without a readable ledger."""
    with suppress(DpscaleError, OSError):
        if found := runner.ledger_dataset(run):
            spent, dataset = found["spent"], run.manifest["privacy"]["dataset"]
            epsilon = "infinite" if spent["epsilon"] is None else f"{spent['epsilon']:.6g}"
            return (f"spent: epsilon {epsilon} at delta {spent['delta']:.6g} by all releases of {dataset!r}; changed "
                    "data are a new release with a new charge, and docs/faq.md says how a run is ended "
                    "or deleted")  # fmt: skip
    return ""


def print_run(
    run: Run, repeated: str | None, as_json: bool, figures: Mapping[str, Any] | None = None, sentence: str = ""
) -> None:
    """Print a finished run: as text with a sentence, or as JSON with further figures.

    `repeated` is a sentence about a run that had been finished before, which is not run again. Warnings go to standard
    error.
    """
    manifest, report = run.manifest, run.path / "report.html"
    summary = {
        "run_dir": str(run.path),
        "report": str(report),
        "release": manifest["release"],
        "private": manifest["private"],
        "privacy": manifest["privacy"],
        "stages": manifest["stages"],
        "repeated": repeated,
        **(figures or {}),
    }
    if as_json:
        click.echo(json.dumps(summary))
        return
    if repeated:
        click.echo(f"dpscale: {repeated}", err=True)
    if not manifest["private"]:
        click.echo("dpscale: this run has a seed and is not private", err=True)
    if sentence:
        click.echo(sentence)
    for line in _periods(run) + (_outcome(run) or [f"report: {report}"]):
        click.echo(line)


def _periods(run: Run) -> list[str]:
    """Return a line on the periods of a growing table; none for other releases."""
    if not run.content.periods:
        return []
    released, every = run.table.released, run.table.labels
    ends = " to ".join(dict.fromkeys((*released[:1], *released[-1:])))
    later = f"; {every[len(released)]} and later follow when they arrive" if len(released) < len(every) else ""
    return [f"released periods: {ends or 'none'}, {len(released)} of {len(every)}{later}"]


def _outcome(run: Run) -> list[str]:
    """Return the findings of a release of one table, with the next command; none for other releases."""
    if run.job.kind or not run.table.done("reconstruct"):
        return []
    from dpscale.answers.tables import Answered
    from dpscale.cli.outcome import outcome
    from dpscale.runs.estimates import estimates_of

    return outcome(Answered(estimates_of(run.table), str(run.manifest["release"])), run.path)


@main.command()
@click.argument("run_dir")
@click.option("--rows", "count", type=click.IntRange(min=1), help="Number of rows; default: as the job requests.")
@scheduler_option
@quiet_option
@json_option
def rows(run_dir: str, count: int | None, scheduler: str | None, quiet: bool, as_json: bool) -> None:
    """Draw synthetic rows from a measured run, at no cost."""
    directory = opening.open_run(run_dir)
    if count is not None:
        rows_stage.request_rows(directory.table, count)
    with Bars(quiet) as progress:
        runner.run_stages(directory, scheduler=scheduler, progress=progress, only="synthesize")
    stage = {"stage": "synthesize", **directory.manifest["stages"]["synthesize"]}
    click.echo(json.dumps(stage) if as_json else f"synthesize: {stage['state']}, in {directory.path / 'synthetic'}")


@main.command()
@click.argument("run_dir")
@click.option("--epsilon", type=float, required=True, help="Budget of the new release alone.")
@click.option("--delta", type=float, help="Default: that of the job.")
@click.option("--job", metavar="JOB", help="A job on the same data with another workload.")
@click.option("--run-dir", "new", metavar="NEW", help="The new run directory (default: RUN_DIR with -refined).")
@click.option("--plan", "plan_only", is_flag=True, help="Print the expected errors; reads no data, spends no budget.")
@scheduler_option
@quiet_option
@json_option
def refine(
    run_dir: str,
    epsilon: float,
    delta: float | None,
    job: str | None,
    new: str | None,
    plan_only: bool,
    scheduler: str | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Spend more budget on the records of a measured run: a new release, pooled with the earlier values.

    The new run has its own release id, charge and directory. The same command again resumes it. Squared mu adds over
    the releases, epsilon does not: two releases at epsilon 0.5 and delta 1e-9 together have epsilon 0.718.
    """
    planned = refining.plan_refinement(run_dir, epsilon, delta, job)
    if plan_only:
        _print_refinement(_refinement_summary(planned, scheduler, quiet), as_json)
        return
    run = refining.start_refinement(planned, new)
    repeated = runner.check_repeat(run)
    with runner.remove_on_error(run), Bars(quiet) as progress:
        runner.run_stages(run, scheduler=scheduler, progress=progress)
    plan = run.table.measurement_plan
    figures, sentence = plan.forecast(run.table.planning_problem.budget).summary, planned.costs.sentence(plan.cost)
    print_run(run, repeated, as_json, figures, sentence)


def _refinement_summary(planned: Refinement, scheduler: str | None, quiet: bool) -> dict[str, Any]:
    """Return the figures of a refinement that is not started."""
    from dpscale.engine.schedulers import resolve
    from dpscale.runs.stages.preview import expected_errors

    problem = planned.job.table.planning_problem(planned.workload)
    with Bars(quiet) as progress:
        engine = resolve(scheduler=scheduler or planned.job.engine.scheduler, progress=progress)
        try:
            plan, costs = refining.preview_refinement(planned, engine), planned.costs
        finally:
            engine.close()
    return {"run_dir": str(planned.default_directory), "mechanism": plan.mechanism,
            **plan.forecast(problem.budget).summary, **expected_errors(plan, problem.budget),
            "together": costs.sentence(plan.cost)}  # fmt: skip


def _print_refinement(summary: dict[str, Any], as_json: bool) -> None:
    """Print the summary of a refined release as JSON, or as lines with the errors of each family."""
    if as_json:
        click.echo(json.dumps(summary))
        return
    for key, value in summary.items():
        if value is not None and key not in ("families", "levels", "together"):
            click.echo(f"{key.replace('_', ' '):>25}: {figure(value) if isinstance(value, float) else value}")
    for family in summary["families"]:
        click.echo(
            f"{family['error']:>25.4g}  {family['family']}, {family['sets']:,} sets, {family['queries']:,} queries"
        )
    click.echo(summary["together"])


@main.command()
@click.option("--folder", default="dpscale-demo", show_default=True, help="The folder of the demo.")
@scheduler_option
@quiet_option
def demo(folder: str, scheduler: str | None, quiet: bool) -> None:
    """Run the main job on sample data: the RAND health insurance experiment."""
    from dpscale.cli.demo import run_demo

    with Bars(quiet) as progress:
        text = run_demo(Path(folder), scheduler, progress)
    click.echo(text)
