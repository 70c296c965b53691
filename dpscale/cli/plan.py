"""Command `plan`: plan a job and print the expected errors, as text or JSON.

A *family* is a part of the workload: queries of one kind, such as marginals of a degree, or one SELECT statement. A
*summary* has all figures on the plan of a table (`plan_summary`); an *overview*, of a job of several tables, has the
division of its budget into `pieces`, the tables and links.
"""

from __future__ import annotations

import json
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from dpscale.base import LazyModule
from dpscale.base.display import figure, nearest, percent, whole
from dpscale.cli.group import Bars, fresh_option, json_option, main, quiet_option, scheduler_option

if TYPE_CHECKING:
    from dpscale.engine.schedulers import Engine
    from dpscale.job import TableJob
    from dpscale.plans.measurement_plan import MeasurementPlan

opening, runner = LazyModule("dpscale.runs.opening"), LazyModule("dpscale.runs.runner")
kinds = LazyModule("dpscale.runs.stage")
planning = LazyModule("dpscale.runs.stages.plan")
LATER = (
    "families", "levels", "rows", "time", "curve", "needed", "compared", "certificate", "advice", "attack_risk",
    "costs", "columns",
)  # fmt: skip
GROUP, WIDTH = 1000, 80  # records of a group whose mean's error is stated, and letters of a line
SHOWN_SPACES = 20  # that are too large, in text
FOR_MACHINES = ("counted_joints", "counted_by_bit_planes", "counting_saved", "stationary")


@main.command()
@click.argument("job")
@click.option("--run-dir", metavar="DIR", help="Store the plan here, for later stages.")
@click.option("--compare", is_flag=True, help="Plan with every mechanism and print their errors.")
@click.option("--error", metavar="RECORDS|NAME=RECORDS", help="Print the epsilon at which an error is RECORDS.")
@click.option("--costs", is_flag=True, help="Plan without each SELECT in turn; print what it costs the others.")
@click.option("--rows", type=click.IntRange(min=1), metavar="N", help="Print errors of means and ratios for N records.")
@click.option("--verbose", "-v", is_flag=True, help="Also print the notes of the planner.")
@click.option("--certify", is_flag=True, help="Solve small residual spaces again by cvxpy; print both errors.")
@fresh_option
@scheduler_option
@quiet_option
@json_option
def plan(  # noqa: PLR0913
    job: str,
    run_dir: str | None,
    compare: bool,
    error: str | None,
    costs: bool,
    rows: int | None,
    verbose: bool,
    certify: bool,
    fresh: bool,
    scheduler: str | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Plan a job and print the expected errors in records. Reads no data, spends no budget."""
    read = opening.read_job(job)
    _warn_of_files(read)
    plan_job(read, run_dir, compare, _wanted(error), costs, certify, fresh, scheduler, quiet, as_json, rows, verbose)


Wanted = tuple[str | None, float]  # family and its error


def _wanted(text: str | None) -> Wanted | None:
    """Return the family and the error that are given as NAME=RECORDS or RECORDS."""
    from dpscale.base.errors import JobError

    if text is None:
        return None
    name, _, number = text.rpartition("=")
    try:
        return name or None, float(number)
    except ValueError:
        raise JobError(
            "--error", repr(text), "a number, or NAME=NUMBER", "write --error 50 or --error cases=50"
        ) from None


def plan_job(  # noqa: PLR0913
    read: Any,
    run_dir: str | None = None,
    compare: bool = False,
    error: Wanted | None = None,
    costs: bool = False,
    certify: bool = False,
    fresh: bool = False,
    scheduler: str | None = None,
    quiet: bool = False,
    as_json: bool = False,
    rows: int | None = None,
    verbose: bool = False,
) -> None:
    """Plan a job and print the expected errors; the arguments are those of `plan`.

    A job of one table has the single summary "data"; one of several tables has a summary for each, below an overview.
    """
    from dpscale.base.numerics import one_thread
    from dpscale.engine.schedulers import resolve
    from dpscale.job.allocation import planned_jobs
    from dpscale.runs.stages.preview import planned_risk

    began = time.perf_counter()
    jobs, overview = planned_jobs(read), kinds.overview(read)
    with Bars(quiet) as progress, one_thread():  # more BLAS threads slow down small matrices
        engine = resolve(scheduler=scheduler or read.engine.scheduler, progress=progress)
        try:
            plans = make_plans(read, jobs, run_dir, fresh, engine)
            summaries = {
                name: plan_summary(table, plans[name], engine, compare, error, rows) for name, table in jobs.items()
            }
            for name, table in jobs.items() if costs else ():
                summaries[name]["costs"] = _costs(table, plans[name], engine)
            for name in jobs if certify else ():
                summaries[name]["certificate"] = _certificate(plans[name])
            # notes are for machines and for --verbose
            for summary in summaries.values():
                summary["rows"] = rows
                summary["notes"] = summary["notes"] if verbose or as_json else []
            if not overview:
                summaries["data"]["attack_risk"] = planned_risk(read.table).describe()
        finally:
            engine.close()
    seconds = {"planning_seconds": round(time.perf_counter() - began, 2)}
    if as_json:
        content = {**overview, "tables": summaries} if overview else summaries["data"]
        click.echo(json.dumps({**content, **seconds}))
        return
    if overview:
        for line in overview_text(overview):
            click.echo(line)
        for name, summary in summaries.items():
            click.echo(f"\ntables.{name}\n" + plan_text(summary | seconds))
    else:
        click.echo(plan_text(summaries["data"] | seconds))
    if missing := missing_words(read):
        click.echo(missing)


def missing_words(job: Any) -> str:
    """Return a line on the words for readers that a job and its domains lack; empty if there are all."""
    lacking = [key for key, text in job.about if text is None and key != "notes"]
    # without the levels of hierarchies above the leaves
    axes = [axis for domain in job.declared.values() for axis in domain.axes
            if all(axis.name not in tree.names or axis.name == tree.leaf for tree in domain.hierarchies)]  # fmt: skip
    untitled = [axis.name for axis in axes if not axis.words.title]
    more = f", … ({len(untitled)} of {len(axes)})" if len(untitled) > 3 else ""
    parts = [f"{', '.join(lacking)} in [about]"] if lacking else []
    parts += [f"title of {', '.join(untitled[:3])}{more}"] if untitled else []
    return f"words for readers that are missing: {'; '.join(parts)}" if parts else ""


def _warn_of_files(job: Any) -> None:
    """Warn of files beside the data of a job that are left out."""
    from dpscale.records.table import warn_left_out

    for table in job.tables.values():
        if not table.lake and table.path is not None:
            warn_left_out(table.path, table.format or "")


def make_plans(
    read: Any, jobs: Mapping[str, TableJob], run_dir: str | None, fresh: bool, engine: Engine
) -> dict[str, MeasurementPlan]:
    """Return the plan of every table; with a run directory, store the plans there."""
    if run_dir is None:
        plans = {}
        for name, table in jobs.items():
            workload = table.build_workload(table.read_domain())
            plans[name] = planning.make_plan(table, table.planning_problem(workload), engine)
        return plans
    directory = opening.begin_run(read, run_dir, fresh, files_accessible=False)
    with runner.remove_on_error(directory):
        runner.run_requested(directory, engine, "plan")
    return {name: table.measurement_plan for name, table in directory.tables.items()}


def plan_summary(
    read: TableJob,
    measurement_plan: MeasurementPlan,
    engine: Engine,
    compare: bool,
    wanted: Wanted | None,
    rows: int | None = None,
) -> dict[str, Any]:
    """Return all figures of `dpscale plan`, as `--json` prints them.

    `wanted` is a family (None: all) and an error, for which the required ε is computed. `rows` is the assumed number of
    rows. Figures that take long and do not depend on the other options are cached, by `inputs`.
    """
    from dpscale.base.errors import JobError
    from dpscale.runs.stages.preview import (
        column_errors,
        compare_mechanisms,
        error_curve,
        expected_errors,
        list_advice,
        main_unit,
        required_epsilon,
        rms_error,
    )

    budget = read.answer_budget(read.read_domain())  # that of a plan may have the cells that a search has found
    # all on which the cached figures depend
    inputs = [read.method.name, read.mechanism.given, measurement_plan.workload.digest, budget.noise, budget.amount,
              read.data.max_rows_per_unit, read.needs_marginals, read.engine.bytes, engine.workers,
              read.output.max_rows, rows,
              [statement.text for part in read.workload for statement in part.statements]]  # fmt: skip
    cached = planning.cached_summary(
        inputs,
        lambda: {
            "needs": _needs(read, measurement_plan, engine),
            **expected_errors(measurement_plan, budget),
            "columns": column_errors(read, measurement_plan, budget, rows),
        },
    )
    families = cached["families"]
    if wanted is not None and not families:
        raise JobError("--error", f"given for the adaptive mechanism {measurement_plan.mechanism}",
                       "a mechanism with a fixed plan", "leave it out, or see --compare")  # fmt: skip
    # an adaptive mechanism has no errors before its rounds, so its families are empty
    error, forecast = rms_error(families) if families else None, measurement_plan.forecast(budget)
    chosen = families
    if wanted is not None and wanted[0] is not None:
        chosen = [family for family in families if _is_of(family, wanted[0])]
    if wanted is not None and not chosen:
        names = [str(family["family"]) for family in families]
        raise JobError("--error", repr(wanted[0]), ", ".join(names), nearest(str(wanted[0]), names))
    return {
        "mechanism": measurement_plan.mechanism,
        "queries": measurement_plan.workload.query_count,
        "counted_sets": len(measurement_plan.counted_sets),
        "noise": budget.noise,
        **forecast.summary,
        **cached["needs"],
        "notes": list(forecast.notes),
        "families": families,
        "levels": cached["levels"],
        "columns": cached["columns"],
        **({"time": time_summary(read)} if read.data.period else {}),
        "curve": [] if error is None else error_curve(read, error),
        "needed": None
        if error is None or wanted is None
        else required_epsilon(read, rms_error(chosen), wanted[1]) | {"unit": main_unit(chosen)},
        "compared": compare_mechanisms(read, measurement_plan, engine, planning.most_cells(read, engine))
        if compare
        else [],
        "advice": list_advice(read, measurement_plan, families),
    }


def _costs(read: TableJob, measurement_plan: MeasurementPlan, engine: Engine) -> list[dict[str, Any]]:
    """Return the error of all other queries beside and without each SELECT statement.

    `error_beside` is the error of the other queries in the stated plan, `error_without` their error in a plan without
    the statement.
    """
    from dpscale.base.errors import JobError
    from dpscale.runs.stages.preview import expected_errors, rms_error
    from dpscale.workload import Workload

    names = [statement.name for part in read.workload for statement in part.statements]
    if measurement_plan.evidence_plan is None or not names:
        what = "an adaptive mechanism" if names else "a job without SELECT statements"
        raise JobError("--costs", f"given for {what}", "a fixed plan of SELECT statements", "leave it out")
    budget, found = read.answer_budget(read.read_domain()), list[dict[str, Any]]()
    families = expected_errors(measurement_plan, budget)["families"]
    for name in names:
        others = [family for family in families if not _is_of(family, name)]
        if not others:
            continue
        rest = Workload(measurement_plan.workload.domain, measurement_plan.workload.max_sets)
        rest.parts = [part for part in measurement_plan.workload.parts if part.name != name]
        made = planning.make_plan(read, read.planning_problem(rest), engine)
        without = rms_error(expected_errors(made, budget)["families"])
        found.append({"statement": name, "error_beside": rms_error(others), "error_without": without})
    return found


def _is_of(family: Mapping[str, Any], name: str) -> bool:
    """Return whether a family has a name, stated with or without its degree, as in "marginals-2"."""
    return name in (family["family"], str(family["family"]).rpartition("-")[0])


def _certificate(measurement_plan: MeasurementPlan) -> dict[str, Any]:
    """Return the errors of the residual spaces of a fixed plan beside those of the convex programs."""
    from dpscale.base.errors import JobError
    from dpscale.optimize.certificate import certify, summarize

    if measurement_plan.evidence_plan is None:
        raise JobError("--certify", f"given for the adaptive mechanism {measurement_plan.mechanism}",
                       "a mechanism with a fixed plan", "leave it out, or see --compare")  # fmt: skip
    return summarize(certify(measurement_plan.evidence_plan))


def _needs(read: TableJob, measurement_plan: MeasurementPlan, engine: Engine) -> dict[str, Any]:
    """Return the tasks, passes, memory and time that counting needs, and predictions for planning and answers."""
    from dpscale.engine.counting import counting_cost
    from dpscale.mechanisms.contract import planning_memory
    from dpscale.runs.preflight import reconstruction_memory, reconstruction_seconds

    domain, sets = measurement_plan.workload.domain, measurement_plan.counted_sets
    needs = counting_cost(domain, sets, read.engine.bytes, engine.workers)
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


def overview_text(overview: dict[str, Any]) -> list[str]:
    """Return the neighbouring relation and the division of the budget as lines."""
    first = f"{100 * overview['first_share']:.3g} % of the budget, which then decides the other shares"
    lines = [f"{'first measurement':>24}: {first}"] if overview["first_share"] else []
    errors = [f"{name}: {link['error']:.3g}, of random links between tables with equal shares {link['random']:.3g}"
              for name, link in (overview["linked_rows"] or {}).items()]  # fmt: skip
    head = ["Expected total variation of marginals over both ends of a link, for usual numbers of rows:"]
    return [
        overview["neighbours"],
        overview["attack_risk"]["sentence"],
        *lines,
        *map(_piece_line, overview["pieces"]),
        *(head + errors if errors else []),
    ]


def _piece_line(piece: dict[str, Any]) -> str:
    """Return the lines of a table or link: its share of the budget, μ, sensitivity and expected errors.

    `moved` is the number of rows or links in which neighbouring tables differ, or empty.
    """
    moved = f", at most {piece['moved']} rows or links differ between neighbours" if piece["moved"] else ""
    head = f"{piece['name']:>24}: {100 * piece['share']:.3g} % of the budget, mu {piece['mu']:.4g}{moved}"
    expected = piece["expected"]
    errors = _table_error(expected) if "rmse" in expected else _link_error(expected)
    return "\n".join([head, *(f"{'':>26}{line}" for line in errors)])


def _table_error(expected: dict[str, Any]) -> list[str]:
    if expected["rmse"] is None:
        return []
    return [f"expected error of a query: {expected['rmse']:.4g} records, by {expected['by']}"]


def _link_error(expected: dict[str, Any]) -> list[str]:
    """Return the lines on the expected errors of a link: of its measurements, and relative to random links.

    `expected` has the standard deviation of the noise of each measurement (None if it is not made), `random` with the
    relative error by number of links, and `loses`, a warning.
    """
    labels = {"links": "the number of links", "degrees": "rows by degree", "siblings": "pairs of siblings",
              "steps": "pairs of consecutive children"}  # fmt: skip
    if not any(expected.values()):
        return ["no share: its links are random"]
    noise = [f"{label} {expected[name]:.3g}" for name, label in labels.items() if expected.get(name) is not None]
    relative = [f"{100 * share:.2g} % with {int(links):,}" for links, share in (expected["random"] or {}).items()]
    lines = [f"standard deviation of the noise: {', '.join(noise)}"] if noise else []
    lines += [f"expected error relative to random links, by number of links: {', '.join(relative)}"] if relative else []
    return lines + ([f"warning: {expected['loses']}"] if expected.get("loses") else [])


def plan_text(summary: dict[str, Any]) -> str:
    """Return the summary as text: figures, errors in records, advice, attack risk.

    `summary` is that of `plan_summary`. Entries of LATER have a format each, below the plain figures; those of
    FOR_MACHINES are only in the JSON. A mechanism without a fixed plan has no families and so no errors.
    """
    lines = [f"{key.replace('_', ' '):>33}: {text}" for key, value in _by_class(summary).items()
             if key not in LATER + FOR_MACHINES and (text := _figure(key, value))]  # fmt: skip
    # errors of families, means of groups, levels, and the curve over ε
    if summary["families"]:
        lines += [
            "",
            "expected error of an answer (root mean square, in records if no unit is named), and the worst set",
        ]
        lines += [_family(family) for family in summary["families"]]
        lines += _means(summary["families"], summary.get("rows"))
        title = "error by level of a hierarchy, over the cells of all tables at the level"
        lines += ["", title, *map(_level, summary["levels"])] if summary["levels"] else []
        curve = "  ".join(f"{point['epsilon']:g}: {point['error']:.3g}" for point in summary["curve"])
        lines += ["", f"error by epsilon  {curve}"]
    lines += ["", *_columns(summary["columns"])] if summary.get("columns") else []
    if "time" in summary:
        lines += ["", *_time(summary["time"])]
    if costs := summary.get("costs"):
        lines += ["", "what each SELECT costs: the error of all others beside it, and without it"]
        lines += [
            f"{cost['error_beside']:>10.4g} {cost['error_without']:>10.4g}  {cost['statement']}" for cost in costs
        ]
    if summary["needed"]:
        needed = summary["needed"]
        lines.append(f"an error of {needed['error']:g} {needed['unit']} needs epsilon = {needed['epsilon']:.4g}")
    # errors of other mechanisms; those of sums have another unit
    if summary["compared"]:
        has_sums = any(family["unit"] != "records" for family in summary["families"])
        unit = "in records" + ", of sums relative to half their range" * has_sums
        lines += ["", f"mechanisms, with the error of an answer {unit}", *map(_mechanism, summary["compared"])]
    lines += ["", *certificate_text(summary["certificate"])] if "certificate" in summary else []
    risk = [summary["attack_risk"]["sentence"]] if "attack_risk" in summary else []
    return "\n".join([*lines, "", *(textwrap.fill(text, WIDTH) for text in (*summary["advice"], *risk))])


def _means(families: Sequence[Mapping[str, Any]], rows: int | None) -> Iterator[str]:
    """Yield the errors of means, which depend on the size of a group, and those of groups of equal parts of rows.

    The planned error of a mean is that of a group of GROUP records; it is inversely proportional to the size of the
    group. `rows` is the assumed number of rows.
    """
    for family in families:
        # other families are no means
        if not str(family["unit"]).endswith(f", of {GROUP:,} records"):
            continue
        unit, sizes = str(family["unit"]).partition(",")[0], [GROUP, GROUP // 10]
        # each of the sets divides all rows into its groups
        sizes += [max(rows * family["sets"] // family["queries"], 1)] if rows else []
        errors = [f"± {figure(family['error'] * GROUP / size)} for a group of {size:,}" for size in sizes]
        yield f"{'':>12}{family['family']}: {unit} {', '.join(errors)}"


def _columns(columns: Mapping[str, Any]) -> Iterator[str]:
    """Yield the errors of ratios, variances and quantiles of SELECT statements.

    `columns` is the result of `column_errors`: the assumed number of records, and the errors of each such column.
    """
    yield (f"ratios, variances and quantiles of SELECT if {columns['records']:,} records are spread evenly (--rows):"
           " expected error of a row, and of the worst")  # fmt: skip
    for column in columns["columns"]:
        few = f", {column['missing']:,} of {column['rows']:,} rows with too few records" if column["missing"] else ""
        error, worst = ("none" if column[name] is None else figure(column[name]) for name in ("error", "worst"))
        yield f"{error:>10} {worst:>10}  {column['statement']}.{column['column']}{few}"


def certificate_text(certificate: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a certificate: planned error, value of the convex program and their ratio by residual space.

    Parameters
    ----------
    certificate : mapping
        Result of `dpscale.optimize.certificate.summarize`.

    Yields
    ------
    str
    """
    yield "squared error of a residual space at the whole budget: of the plan, by cvxpy and Clarabel, ratio"
    for space in certificate["spaces"]:
        names = ", ".join(space["attributes"]) or "the total"
        several = f" ({space['spaces']:,} such spaces)" if space["spaces"] > 1 else ""
        if space["ratio"] is not None:
            yield f"{space['planned']:>14.8g} {space['optimum']:>14.8g} {space['ratio']:>12.9f}  {names}{several}"

    # spaces that are too large for the solver have no ratio
    large = [space for space in certificate["spaces"] if space["ratio"] is None]
    named = [", ".join(space["attributes"]) for space in large[:SHOWN_SPACES]]
    if large:
        rest = " and others" if len(large) > SHOWN_SPACES else ""
        number = f"{certificate['too_large']:,} space{'s' * (certificate['too_large'] > 1)}"
        yield f"too large for {certificate['limit']}: {number}, {'; '.join(named)}{rest}"
    if certificate["ratio"] is not None:
        yield f"together, of the {certificate['solved']:,} that were solved: ratio {certificate['ratio']:.9f}"


GAPS = ("above_all_mechanisms", "above_plans_of_its_kind", "optimality_gap")


def _by_class(summary: dict[str, Any]) -> dict[str, Any]:
    """Return the figures with the gap to all mechanisms, where it is known, before that to plans of the same kind.

    A gap is the squared error over a certified lower bound, less 1. GAPS are the names of both figures in the text.
    """
    bound, figures = summary.get("rmse_bound_all"), dict[str, Any]()
    for key, value in summary.items():
        if key == "optimality_gap" and bound:
            figures |= {GAPS[0]: max((summary["rmse"] / bound) ** 2 - 1, 0.0), GAPS[1]: value}
        else:
            figures[key] = value
    return figures


def _figure(key: str, value: Any) -> str:
    """Return a value formatted for reading; empty if there is none."""
    if key in GAPS:
        return "" if value is None else f"{percent(value)} of the squared error, certified"
    if isinstance(value, list):
        return "; ".join(value)
    if isinstance(value, float):
        return figure(value)
    return whole(value) if isinstance(value, int) else str(value or "")


def _family(family: dict[str, Any]) -> str:
    """Return the line on a family of queries: its error, sets and queries, and the set with the largest error."""
    worst = family["worst"][0]
    sets = f"{family['sets']:,} sets, {family['queries']:,} queries"
    attributes, unit = ", ".join(worst["attributes"]) or "the total", family["unit"]
    return f"{family['error']:>10.4g}  {family['family']:<14} {sets:<28} {worst['error']:.4g}: {attributes}" + (
        "" if unit == "records" else f"  (in units of {unit})"
    )


def _level(level: dict[str, Any]) -> str:
    """Return the line on the error of the counts at a level of a hierarchy."""
    name, tables = f"{level['hierarchy']}: {level['level'] or 'without a level'}", level["sets"]
    cells = f"{level['queries']:,} cells of {tables:,} table{'s' * (tables > 1)}"
    return f"{level['error']:>10.4g}  {name:<28} {level['nodes']:>9,} nodes, {cells}"


def _mechanism(compared: dict[str, Any]) -> str:
    error = "—" if compared["error"] is None else f"{compared['error']:.4g}"
    return f"{error:>10}  {compared['mechanism']:<24} {compared['why'][:100]}"


def time_summary(job: TableJob) -> dict[str, Any]:
    """Return the promise of a growing table and the relative errors of its answers over the horizon.

    Parameters
    ----------
    job : TableJob

    Returns
    -------
    dict
        `relative_error` is that of the first and of the last period and the root mean square, relative to one release
        of one table that has the whole budget.
    """
    from dpscale.job.periods import promise
    from dpscale.optimize.time_strategy import plan_time

    period, settings = job.read_period(), job.periods
    plan = plan_time(period.listed, settings.answers, settings.window or 0, settings.max_periods_per_unit or 1,
                     job.privacy.noise)  # fmt: skip
    errors = {
        kind: {"first": plan.variance(kind, 0) ** 0.5, "last": plan.variance(kind, plan.horizon - 1) ** 0.5,
               "typical": plan.mean_variance(kind) ** 0.5}
        for kind in plan.answers
    }  # fmt: skip
    return {"periods": plan.horizon, "first": str(period.labels[0]), "last": str(period.labels[-1]),
            "protects": str(promise(job.data, settings, period)), "relative_error": errors,
            "certified": plan.gap if plan.bound else None}  # fmt: skip


def _time(time: dict[str, Any]) -> list[str]:
    """Return the lines on a growing table: its periods, and errors as multiples of those of one period."""
    errors = time["relative_error"].items()  # by kind of answer
    gap = "" if time["certified"] is None else f"; {percent(time['certified'])} above the minimum, certified"
    return [
        f"{time['periods']} periods, {time['first']} to {time['last']}, under one charge; protects {time['protects']}",
        f"errors are multiples of those above: root mean square, first and last period{gap}",
        *(
            f"{spread['typical']:>10.4g}  {kind:<14} {spread['first']:.4g} to {spread['last']:.4g}"
            for kind, spread in errors
        ),
    ]
