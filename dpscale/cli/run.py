"""Commands that run jobs or statements, and add to a release: `run`, `sql`, `table`, `rows`, `refine`, `demo`.

`sql` and `table` answer SELECT statements, or one table of counts and means, on the files of a table.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpscale.base import LazyModule
from dpscale.base.display import display_path, epsilon_text, figure
from dpscale.base.errors import DataError, DpscaleError, JobError, TransientError
from dpscale.cli.group import Bars, empty_option, fresh_option, json_option, main, quiet_option, scheduler_option
from dpscale.cli.plan import plan_job
from dpscale.runs.stage import STAGES

if TYPE_CHECKING:
    import pyarrow as pa

    from dpscale.runs.refine import Refinement
    from dpscale.runs.run import Run

opening, runner = LazyModule("dpscale.runs.opening"), LazyModule("dpscale.runs.runner")
periods, refining = LazyModule("dpscale.runs.periods.stages"), LazyModule("dpscale.runs.refine")
manifest, rows_stage = LazyModule("dpscale.runs.manifest"), LazyModule("dpscale.runs.stages.synthesize")
STAGE_NAMES = ("allocate", *STAGES)

selections = LazyModule("dpscale.runs.answers")
answers = LazyModule("dpscale.answers.selections")
SHOWN_ROWS = 20  # rows of a result on the terminal


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
    # a job may leave these out
    optional = {"allocate", *(stage for stage, facts in STAGES.items() if facts.enabled_by)}
    if name not in directory.stages and name not in optional:
        raise JobError("stage", f"{name} of {directory.path}", ", ".join(directory.stages),
                       "run one of them, or use the directory of the whole run")  # fmt: skip
    # changed data of a measured run are reported, and do not prevent a stage
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
            epsilon = epsilon_text(spent["epsilon"])
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
    if count is not None and not directory.job.is_short:
        raise JobError("--rows", f"{count} for a run of several tables", "the numbers of rows that its job has",
                       "leave it out, and state rows of [tables.NAME] in a new job")  # fmt: skip
    if count is not None:
        rows_stage.request_rows(directory.table, count)
    with Bars(quiet) as progress:
        runner.run_stages(directory, scheduler=scheduler, progress=progress, only="synthesize")
    stage = {"stage": "synthesize", **directory.manifest["stages"]["synthesize"]}
    folder = directory.path / ("periods" if directory.content.periods else "synthetic")
    click.echo(json.dumps(stage) if as_json else f"synthesize: {stage['state']}, in {folder}")


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


def answering(command: Any) -> Any:
    """Return a command with the options of a job of statements, and those of a run."""
    options = (
        click.option("--epsilon", type=float, required=True, help="Budget of all answers together."),
        click.option("--delta", type=float, help="Without it the release satisfies pure epsilon-DP."),
        click.option("--unit", metavar="COLUMN", help="Column of the protected unit; default: a row is protected."),
        click.option("--rows-per-unit", type=int, metavar="N", help="Largest number of rows of a unit that count."),
        click.option("--dataset", metavar="NAME", help="Name under which the ledger adds up costs."),
        click.option("--analyst", metavar="NAME", help="Who is charged, for a dataset with caps of analysts."),
        click.option("--ledger", metavar="PATH", help="Path or address of the ledger."),
        click.option("--run-dir", metavar="DIR", help="Run directory."),
        click.option("--plan", "only_plan", is_flag=True, help="Print the expected errors; spends nothing."),
        fresh_option,
        scheduler_option,
        quiet_option,
        json_option,
    )
    for option in reversed(options):
        command = option(command)
    return command


@main.command()
@click.argument("file", metavar="FILE|TEXT")
@click.option("--data", metavar="PATH", required=True, help="Files of the table.")
@click.option("--domain", metavar="FILE", required=True, help="Domain file of the table.")
@click.option("--dialect", metavar="NAME", help="SQL dialect of sqlglot; default: duckdb.")
@answering
def sql(file: str, data: str, domain: str, dialect: str | None, **given: Any) -> None:
    """Answer SELECT statements under one charge: planned together, consistent, with an interval in every row.

    FILE has statements separated by semicolons; a comment `-- name: cases` names the statement after it. A text that
    begins with SELECT or WITH is taken as it is. The result is a run directory; answers/queries has the rows.
    """
    from dpscale.workload.sql.statements import is_select

    text = {"query": file} if is_select(file) else {"sql": file}
    answer(text | _given({"dialect": dialect}), data, domain, **given)


@main.command()
@click.argument("data")
@click.option("--by", metavar="A,B", default="", help="Attributes of the groups. Default: the whole table.")
@click.option("--mean", metavar="A,B", default="", help="Numbers whose means are answered too.")
@click.option("--domain", metavar="FILE", help="Domain file; default: the file DATA.domain.toml, drafted if missing.")
@answering
def table(data: str, by: str, mean: str, domain: str | None, **given: Any) -> None:
    """Publish one table: the number of records of each group, with intervals, and means if asked for."""
    from dpscale.workload.sql.statements import table_statement

    names, numbers = ([name.strip() for name in text.split(",") if name.strip()] for text in (by, mean))
    title = " by ".join(["Records", *([" and ".join(names)] if names else [])])
    title += f", with means of {' and '.join(numbers)}" if numbers else ""
    statement = {"query": table_statement(names, numbers)}
    answer(statement, data, domain or _domain_file(data), title=title, **given)


def _domain_file(data: str) -> str:
    """Return the domain file next to a data file; write a draft and raise JobError if there is none."""
    from dpscale.records.sketch import make_sketch
    from dpscale.storage.files import write_private

    if "://" in data or any(letter in data for letter in "*?["):
        raise JobError("--domain", f"missing for {display_path(data)}", "a domain file",
                       "draft it by `dpscale domain sketch DATA --output FILE`, and review it")  # fmt: skip
    path = Path(data)
    path = path.resolve() if path.name in ("", "..") else path
    if not path.name:
        raise JobError("--domain", f"missing for {display_path(data)}", "a domain file", "state it")
    domain = path.with_name(f"{path.name.split('.')[0]}.domain.toml")
    if not domain.exists():
        write_private(str(domain), make_sketch(data).text())
        raise JobError("--domain", f"missing; a private draft is in {domain}", "a domain file that you reviewed",
                       "correct its values, set reviewed = true, and repeat the command")  # fmt: skip
    return str(domain)


def answer(  # noqa: PLR0913
    text: Mapping[str, Any],
    data: str,
    domain: str,
    *,
    title: str = "",
    epsilon: float,
    delta: float | None,
    unit: str | None,
    rows_per_unit: int | None,
    dataset: str | None,
    analyst: str | None,
    ledger: str | None,
    run_dir: str | None,
    only_plan: bool,
    fresh: bool,
    scheduler: str | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Run, or plan, the job of a part of a workload with statements, and print their rows."""
    unit_keys = {"privacy_unit": unit, "max_rows_per_unit": rows_per_unit}
    budget = {"epsilon": epsilon, "delta": delta, "dataset": dataset, "ledger": ledger, "analyst": analyst}
    content: dict[str, Any] = {
        "data": {"path": data, "domain": domain, **_given(unit_keys)},
        "privacy": _given(budget),
        "workload": [text],
        **({"about": {"title": title}} if title else {}),
    }
    job = opening.read_job(content)
    if only_plan:
        plan_job(job, scheduler=scheduler, quiet=quiet, as_json=as_json)
        return
    directory = opening.begin_run(job, run_dir, fresh)
    repeated = runner.check_repeat(directory)
    with runner.remove_on_error(directory), Bars(quiet) as progress:
        runner.run_stages(directory, scheduler=scheduler, progress=progress)
    if not as_json:
        for name in selections.statements_of(directory.table):
            click.echo(f"{name}\n{table_text(selections.read_rows(directory.table, name))}\n")
        click.echo(_spent_on_dataset(job))
    files = {"queries": [f"answers/queries/{name}.parquet" for name in selections.statements_of(directory.table)]}
    print_run(directory, repeated, as_json, files)


def _spent_on_dataset(job: Any) -> str:
    """Return in words what the dataset of a job has spent, according to its present ledger."""
    from dpscale.ledger.account import canonical
    from dpscale.runs.charge import account_of

    if (stated := account_of(job)) is None:
        return f"{job.privacy.ledger} has no entry of dataset {canonical(job.dataset)}: it was charged on another one"
    figures, left = stated["spent"], stated["remaining_epsilon"]
    cap = "there is no cap" if left is None else f"epsilon {left:.4g} is left"
    spent = f"epsilon {epsilon_text(figures['epsilon'], 4)} at delta {figures['delta']:g}"
    return f"spent: {spent} of dataset {canonical(job.dataset)}; {cap}"


def _given(keys: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in keys.items() if value is not None}


def table_text(table: pa.Table) -> str:
    """Return the first rows of a statement as text in columns: values with their intervals.

    Parameters
    ----------
    table : pyarrow.Table
        Rows of `Release.query`.
    """
    names, rows, are_numbers = answers.shown_rows(table, SHOWN_ROWS)
    widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
    lines = []
    for cells in [names, *rows]:
        padded = [cell.rjust(width) if is_number else cell.ljust(width)
                  for cell, width, is_number in zip(cells, widths, are_numbers, strict=True)]  # fmt: skip
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines + ["…"] * (table.num_rows > SHOWN_ROWS))
