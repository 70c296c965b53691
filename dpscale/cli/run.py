"""Commands that run a job: `run`, one for each other stage, `submit` to a cluster, and `status`, `wait`, `cancel`."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from dpscale.base import LazyModule
from dpscale.cli.group import Bars, empty_option, fresh_option, json_option, main, quiet_option, scheduler_option
from dpscale.runs.stages import STAGES

if TYPE_CHECKING:
    from dpscale.engine import Engine
    from dpscale.job import TableJob
    from dpscale.plans.measurement_plan import MeasurementPlan
    from dpscale.runs.directory import Run

opening, runner = LazyModule("dpscale.runs.opening"), LazyModule("dpscale.runs.stages.runner")
planning = LazyModule("dpscale.runs.stages.plan")
rows_stage = LazyModule("dpscale.runs.stages.synthesize")
driver, driver_status = LazyModule("dpscale.cli.driver"), LazyModule("dpscale.cli.driver_status")
RESUME = {"stopped": ", run the job again to resume", "cancelled": ", submit it again to resume"}


@main.command()
@click.argument("job")
@click.option("--run-dir", metavar="DIR", help="The run directory (default: runs/ and the job's digest).")
@fresh_option
@empty_option
@scheduler_option
@quiet_option
@json_option
def run(
    job: str, run_dir: str | None, fresh: bool, empty: bool, scheduler: str | None, quiet: bool, as_json: bool
) -> None:
    """Run all stages of a job; an interrupted run resumes.

    The same job again costs nothing. Changed data, or --fresh, are a new release with a charge of its own, and squared
    mu adds over the releases of a dataset. `dpscale end DIR` retires a run that will not resume. Who removes its
    directory loses the answers, not the charge: the ledger keeps the entry.
    """
    directory = opening.begin_run(opening.read_job(job), run_dir, fresh, empty=empty)
    repeated = runner.check_repeat(directory)
    with runner.remove_on_error(directory), Bars(quiet) as progress:
        runner.run_stages(directory, scheduler=scheduler, progress=progress)
    print_run(directory, repeated, as_json, sentence="" if as_json else _spent(directory))


def _spent(run: Run) -> str:
    """Return a sentence on the budget that the dataset of a run has spent; empty without a readable ledger."""
    from dpscale.base.errors import DpscaleError

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
    """Print a finished run: as text with a sentence, or as JSON with further figures."""
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
    click.echo(f"report: {report}")


def _stage_command(name: str, doc: str) -> None:
    @main.command(name, help=doc)
    @click.argument("run_dir")
    @scheduler_option
    @quiet_option
    @json_option
    def command(run_dir: str, scheduler: str | None, quiet: bool, as_json: bool) -> None:

        directory = opening.open_run(run_dir)
        _check_stage(directory, name)
        if STAGES[name].spends:
            _warn_other_data(directory)
        if directory.stages[name].is_enabled(directory):
            with Bars(quiet) as progress:
                runner.run_stages(directory, scheduler=scheduler, progress=progress, only=name)
        _echo_stage(directory, name, as_json)


def _echo_stage(directory: Run, name: str, as_json: bool) -> None:
    stage = {"stage": name, **directory.manifest["stages"].get(name, {"state": "not requested"})}
    click.echo(json.dumps(stage) if as_json else f"{name}: {stage['state']}")


def _check_stage(directory: Run, name: str) -> None:
    """Raise JobError for a stage that this kind of run does not have."""
    from dpscale.base.errors import JobError

    if name not in directory.stages:
        raise JobError("stage", f"{name} of {directory.path}", ", ".join(directory.stages),
                       "run one of them, or use the directory of the whole run")  # fmt: skip


def _warn_other_data(directory: Run) -> None:
    """Warn if a finished stage describes other data than the files now contain."""
    from dpscale.base.errors import DataError, TransientError

    try:
        with suppress(TransientError):  # a store that is unavailable now
            runner.check_repeat(directory)
    except DataError as error:
        click.echo(f"dpscale: {error}", err=True)


for _stage in STAGES.values():
    if _stage.name not in ("discover", "plan", "synthesize"):  # the first ones take a job
        _stage_command(_stage.name, _stage.help)


@main.command(help=STAGES["synthesize"].help)
@click.argument("run_dir")
@click.option("--rows", type=click.IntRange(min=1), help="Number of rows; default: as the job requests.")
@scheduler_option
@quiet_option
@json_option
def synthesize(run_dir: str, rows: int | None, scheduler: str | None, quiet: bool, as_json: bool) -> None:

    directory = opening.open_run(run_dir)
    if rows is not None:
        rows_stage.request_rows(directory.table, rows)
    with Bars(quiet) as progress:
        runner.run_stages(directory, scheduler=scheduler, progress=progress, only="synthesize")
    stage = {"stage": "synthesize", **directory.manifest["stages"]["synthesize"]}
    click.echo(json.dumps(stage) if as_json else f"synthesize: {stage['state']}, in {directory.path / 'synthetic'}")


@main.command()
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


def _start_stage(
    name: str, job: str, run_dir: str | None, fresh: bool, scheduler: str | None, quiet: bool, as_json: bool
) -> None:
    """Run a stage that may be the first one of a run: of a job in a new directory, or of a run directory."""
    directory = opening.open_run(job) if run_dir is None else opening.begin_run(opening.read_job(job), run_dir, fresh)
    _warn_other_data(directory)
    if name in directory.stages and directory.stages[name].is_enabled(directory):
        with Bars(quiet) as progress, runner.remove_on_error(directory):
            runner.run_stages(directory, scheduler=scheduler, progress=progress, only=name)
    _echo_stage(directory, name, as_json)


@main.command()
@click.argument("job")
@click.option("--run-dir", metavar="DIR", help="Run directory of a job file; without it, JOB is a run directory.")
@fresh_option
@scheduler_option
@quiet_option
@json_option
def allocate(job: str, run_dir: str | None, fresh: bool, scheduler: str | None, quiet: bool, as_json: bool) -> None:
    """Divide the budget over tables and links, from a first measurement at a part of it."""
    _start_stage("allocate", job, run_dir, fresh, scheduler, quiet, as_json)


@main.command(help=STAGES["discover"].help)
@click.argument("job")
@click.option("--run-dir", metavar="DIR", help="Run directory of a job file; without it, JOB is a run directory.")
@fresh_option
@scheduler_option
@quiet_option
@json_option
def discover(job: str, run_dir: str | None, fresh: bool, scheduler: str | None, quiet: bool, as_json: bool) -> None:
    _start_stage("discover", job, run_dir, fresh, scheduler, quiet, as_json)


@main.command()
@click.argument("job")
@click.option("--run-dir", metavar="DIR", help="Store the plan here, for later stages.")
@click.option("--compare", is_flag=True, help="Plan with every mechanism and print their errors.")
@click.option("--error", type=float, metavar="RECORDS", help="Print the epsilon at which the error is RECORDS.")
@fresh_option
@scheduler_option
@quiet_option
@json_option
def plan(
    job: str,
    run_dir: str | None,
    compare: bool,
    error: float | None,
    fresh: bool,
    scheduler: str | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Plan a job and print the expected errors in records. Reads no data, spends no budget."""
    from dpscale.base.numerics import one_thread
    from dpscale.cli.plan_text import plan_text
    from dpscale.cli.tables import overview_text
    from dpscale.engine import resolve
    from dpscale.runs.stages.preview import planned_risk

    read, began = opening.read_job(job), time.perf_counter()
    _warn_of_files(read)
    jobs, overview = opening.run_class(read).table_jobs(read), opening.run_class(read).overview(read)
    with Bars(quiet) as progress, one_thread():  # more BLAS threads slow down small matrices
        engine = resolve(scheduler=scheduler or read.engine.scheduler, progress=progress)
        try:
            plans = _make_plans(read, jobs, run_dir, fresh, engine)
            summaries = {name: _plan_summary(own, plans[name], engine, compare, error) for name, own in jobs.items()}
            if not overview:
                summaries["data"]["attack_risk"] = planned_risk(read).describe()
        finally:
            engine.close()
    seconds = {"planning_seconds": round(time.perf_counter() - began, 2)}
    if as_json:
        click.echo(json.dumps({**(overview | {"tables": summaries} if overview else summaries["data"]), **seconds}))
        return
    for line in overview_text(overview) if overview else ():
        click.echo(line)
    for name, summary in summaries.items():
        click.echo((f"\ntables.{name}\n" if overview else "") + plan_text(summary | seconds))


def _warn_of_files(job: Any) -> None:
    """Warn of files beside the data of a job that are left out."""
    from dpscale.records.table import warn_left_out

    for own in job.tables.values() if hasattr(job, "tables") else (job.data,):
        if not own.lake and own.path is not None:
            warn_left_out(own.path, own.format or "")


def _make_plans(
    read: Any, jobs: Mapping[str, TableJob], run_dir: str | None, fresh: bool, engine: Engine
) -> dict[str, MeasurementPlan]:
    """Return the plan of every table; with a run directory, store the plans there."""
    if run_dir is None:
        return {name: planning.make_plan(own, own.planning_problem(own.build_workload(own.read_domain())), engine)
                for name, own in jobs.items()}  # fmt: skip
    directory = opening.begin_run(read, run_dir, fresh, files_accessible=False)
    with runner.remove_on_error(directory):
        runner.run_requested(directory, engine, "plan")
    return {name: table.measurement_plan for name, table in directory.tables.items()}


def _plan_summary(
    read: TableJob, measurement_plan: MeasurementPlan, engine: Engine, compare: bool, wanted: float | None
) -> dict[str, Any]:
    """Return all figures of `dpscale plan`, as `--json` prints them."""
    from dpscale.base.errors import JobError
    from dpscale.cli.plan_text import time_summary
    from dpscale.runs.stages.preview import (
        compare_mechanisms,
        error_curve,
        expected_errors,
        list_advice,
        main_unit,
        required_epsilon,
        rms_error,
    )

    budget = read.answer_budget(read.read_domain())  # that of a plan may have the cells that a search has found
    known = [read.method.name, read.mechanism.given, measurement_plan.workload.digest, budget.noise, budget.amount,
             read.data.max_rows_per_unit, read.engine.bytes, engine.workers, read.output.max_rows]  # fmt: skip
    followed = planning.cached_summary(
        known,
        lambda: {
            "needs": _needs(read, measurement_plan, engine),
            **expected_errors(measurement_plan, budget),
        },
    )
    families = followed["families"]
    if wanted is not None and not families:
        raise JobError("--error", f"given for the adaptive mechanism {measurement_plan.mechanism}",
                       "a mechanism with a fixed plan", "leave it out, or see --compare")  # fmt: skip
    error = rms_error(families) if families else None
    return {
        "mechanism": measurement_plan.mechanism,
        "queries": measurement_plan.workload.query_count,
        "counted_sets": len(measurement_plan.counted_sets),
        "noise": measurement_plan.noise,
        **measurement_plan.summary(budget),
        **followed["needs"],
        "notes": list(measurement_plan.notes),
        "families": families,
        "levels": followed["levels"],
        **({"time": time_summary(read)} if read.data.period else {}),
        "curve": [] if error is None else error_curve(read, error),
        "needed": None
        if error is None or wanted is None
        else required_epsilon(read, error, wanted) | {"unit": main_unit(families)},
        "compared": compare_mechanisms(read, measurement_plan, engine, planning.most_cells(read, engine))
        if compare
        else [],
        "advice": list_advice(read, measurement_plan, families),
    }


def _needs(read: TableJob, measurement_plan: MeasurementPlan, engine: Engine) -> dict[str, Any]:
    """Return the tasks, passes, memory and time that counting needs, and predictions for planning and answers."""
    from dpscale.engine.counting import counting_cost
    from dpscale.mechanisms.contract import planning_memory
    from dpscale.runs.stages.preflight import reconstruction_memory, reconstruction_seconds

    needs = counting_cost(measurement_plan.domain, measurement_plan.counted_sets, read.engine.bytes, engine.workers)
    return {
        "counted_joints": needs.saving.joints,
        "counted_by_bit_planes": needs.saving.planes,
        "counting_saved": round(needs.saving.factor, 3),
        "passes_over_the_data": needs.passes,
        "tasks": needs.tasks,
        "memory_bytes": needs.memory,
        "counting_seconds_per_million_rows": needs.seconds_per_million,
        "planning_memory_bytes": planning_memory(measurement_plan.workload),
        "reconstruction_memory_bytes": reconstruction_memory(measurement_plan, read)[0],
        "reconstruction_seconds": float(f"{reconstruction_seconds(measurement_plan, read):.3g}"),
    }


@main.command()
@click.argument("job")
@click.option("--run-dir", metavar="DIR", help="The run directory, on storage that the workers share.")
@click.option("--scheduler", metavar="SPEC", required=True, help="tcp://HOST:PORT or tls://HOST:PORT")
@fresh_option
@empty_option
@json_option
def submit(job: str, run_dir: str | None, scheduler: str, fresh: bool, empty: bool, as_json: bool) -> None:
    """Run all stages of a job on a cluster, including the driver, and return at once."""
    from dpscale.engine.schedulers import open_cluster
    from dpscale.runs.stages.runner import check_repeat

    directory = opening.begin_run(opening.read_job(job), run_dir, fresh, False, empty)
    directory.check_open("measure")
    check_repeat(directory)
    with Bars(quiet=as_json) as progress, open_cluster(scheduler, progress) as engine:
        driven = driver.submit(directory, engine)
    summary = {"run_dir": str(directory.path), **driven}
    click.echo(json.dumps(summary) if as_json else f"{driven['state']}: dpscale wait {directory.path}")


@main.command()
@click.argument("run_dir")
@json_option
def status(run_dir: str, as_json: bool) -> None:
    """Print the state of each stage of a run, and of its driver on the cluster."""
    run = opening.open_run(run_dir)
    driven = driver_status.read_status(run.path)
    working = driver_status.at_work(driven)
    states, parts = run.states(working), {name: one.states(working) for name, one in run.parts.items()}
    if as_json:
        added = {"states": states, **({"tables": parts} if parts else {}), **({"driver": driven} if driven else {})}
        click.echo(json.dumps(run.manifest | added))
        return
    for name, state in states.items():
        click.echo(f"{name:>12}: {state}{RESUME.get(state, '')}")
    for name, own in parts.items():
        click.echo(f"{name:>12}: {', '.join(f'{stage} {state}' for stage, state in own.items())}")
    if run.ended:
        click.echo(f"{'ended':>12}: {run.ended['how']} at {run.ended['at']}")
    if driven:
        task = driven.get("working")
        tasks = f", {task['tasks']} {task['done']} of {task['total']}" if task else ""
        click.echo(f"{'driver':>12}: {'silent' if driven['silent'] else driven['state']}{tasks}")


@main.command()
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


@main.command()
@click.argument("run_dir")
def cancel(run_dir: str) -> None:
    """Stop a submitted run at its next task; a later submit resumes it."""
    driver.cancel(opening.open_run(run_dir).path)
