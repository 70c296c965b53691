"""Report of a run of a growing table: estimates over time, accuracy, cost and promise. It reads no record."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from typing import Any

import numpy as np
import tomli_w

from dpscale.answers import statistics, tables
from dpscale.answers.findings import findings
from dpscale.answers.report.charts import single
from dpscale.answers.report.figures import COLOURS, drawing, new_figure, svg
from dpscale.answers.report.page import Section, check_rendered, frame, redacted, render_sections
from dpscale.answers.tables import Answered, titles_of, words_of
from dpscale.base.errors import PlanError
from dpscale.base.numerics import one_thread
from dpscale.privacy.accounting import STATED_DELTA
from dpscale.runs.estimates import estimates_of
from dpscale.runs.periods.growing import GrowingPart
from dpscale.runs.stages.report import remaining
from dpscale.storage.files import write_whole

SINGLES = 4  # charts of single attributes
TABLE = (
    Section("summary", "Summary", listed=False),
    Section("periods", "Periods"),
    Section("results", "Key results"),
    Section("cost", "How it is protected"),
    Section("limits", "Limits of the protection"),
    Section("accuracy", "Accuracy over time"),
    Section("read", "Read the answers", folded=True),
    Section("job", "Job", folded=True),
)
SECTIONS: dict[str, Section] = {section.name: section for section in TABLE}
ROW = "Each row is protected in the whole table, because it belongs to one period."
UNIT_PERIOD = ("All rows of one {unit} in one period are protected together, at most {rows} of them are counted. Rows"
               " of the same {unit} in other periods are further contributions, whose costs add.")  # fmt: skip
UNIT = ("All rows of one {unit} in all periods are protected together. At most {rows} rows in each of at most {periods}"
        " periods are counted: those of the first {periods} periods in which the {unit} has records. Later ones are"
        " left out, and how many there are is private.")  # fmt: skip


def write_report(run: GrowingPart) -> None:
    """Write report.html, then raise ReportError if a section failed."""
    framed = frame(run.manifest, run.run.job.about)
    with one_thread():
        page, failed = render_sections(framed, SECTIONS.values(), _values(run, framed), "dpscale.runs.periods", run)
        write_whole(run.path / "report.html", page.encode())
    check_rendered(failed, run.path)


def _values(run: GrowingPart, framed: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    """Return the values of the report's sections by name, as functions: only those of the sections are computed."""
    delta = run.job.privacy.delta or STATED_DELTA
    left, rows = cache(lambda: remaining(run.run)), cache(lambda: _rows(run))
    fixed = {**framed, "released": run.released, "horizon": len(run.labels), "kinds": run.kinds, "delta": delta,
             "changed": run.changes, "accepted": run.manifest.get("accepted", {}), "promise": str(run.protects),
             "explained": explain(run)}  # fmt: skip
    return {name: partial(fixed.__getitem__, name) for name in fixed} | {
        "epsilon": lambda: run.spent.epsilon_or_inf(delta),
        "mu": lambda: float(run.spent.squared_mu) ** 0.5,
        "risk": lambda: run.attack_risk,
        "counted": lambda: run.protects.counted,
        "latest": lambda: rows()[-1]["answers"] if rows() else [],
        "rows": rows,
        "findings": lambda: _findings(run),
        "total_plot": lambda: _total_plot(run, rows()),
        "results": lambda: [{"kind": kind, "singles": _singles(run, kind)} for kind in run.kinds],
        "variances": lambda: [_variances(run, kind) for kind in run.kinds],
        "variance_plot": lambda: _variance_plot(run),
        "certified": lambda: run.time_plan.gap if np.isfinite(run.time_plan.gap) else None,
        "remaining": lambda: left()["remaining"],
        "capless": lambda: left()["capless"],
        "guarantees": lambda: [(run.spent.epsilon_or_inf(at), at) for at in dict.fromkeys([delta, 1e-6, 1e-9])],
        "job_text": lambda: tomli_w.dumps(redacted(run.run.job.to_dict())),
    }  # fmt: skip


def explain(run: GrowingPart) -> str:
    """Return what the privacy unit of the run means for several periods."""
    data, settings = run.job.data, run.job.periods
    if data.privacy_unit is None:
        return ROW
    text = UNIT_PERIOD if settings.max_periods_per_unit is None else UNIT
    return text.format(unit=data.unit_name, rows=data.max_rows_per_unit, periods=settings.max_periods_per_unit)


def _answered(run: GrowingPart, label: str, kind: str) -> Answered:
    part = run.answers_at(label, kind)
    return Answered(estimates_of(part), str(part.manifest["release"]))


def _rows(run: GrowingPart) -> list[dict[str, Any]]:
    """Return the total and the relative error of each kind of answers at each released period.

    The error is relative to that of one table which has the whole budget.
    """
    plan, rows = run.time_plan, []
    for label in run.released:
        number = run.number_of(label)
        answers = [
            {"kind": kind, "relative": plan.variance(kind, number) ** 0.5, **_total(_answered(run, label, kind))}
            for kind in run.kinds
        ]
        rows.append({"label": label, "answers": answers})
    return rows


def _total(answered: Answered) -> dict[str, float | None]:
    """Return the estimated total and half of its interval; None where it is not determined or not bounded."""
    with suppress(PlanError):  # the workload does not determine the total
        estimate, _, high = statistics.total(answered, tables.LEVEL)
        return {"estimate": estimate, "half": high - estimate if np.isfinite(high) else None}
    return {"estimate": None, "half": None}


def _findings(run: GrowingPart) -> list[str]:
    """Return the findings of the latest period in words."""
    answered = _answered(run, run.released[-1], run.kinds[-1])
    return [finding.sentence(answered.estimates.workload.domain) for finding in findings(answered)]


def _singles(run: GrowingPart, kind: str) -> list[dict[str, Any]]:
    """Return the charts of single attributes that the report shows for the last released period, at most SINGLES.

    Attributes with requested answers come first, then others from the estimates.
    """
    answered = _answered(run, run.released[-1], kind)
    domain = answered.estimates.workload.domain
    requested_tables = [table for table in tables.requested(answered, SINGLES) if len(table.names) == 1]
    seen = {table.names for table in requested_tables}
    others = [table for table in tables.singles(answered, 2 * SINGLES) if table.names not in seen]
    shown = [*requested_tables, *others][:SINGLES]
    return [single(titles_of(domain, table.names), [words_of(domain[table.names[0]])], table.values, table.half,
                   domain[table.names[0]]) for table in shown]  # fmt: skip


@drawing
def _total_plot(run: GrowingPart, rows: list[dict[str, Any]]) -> str:
    """Plot the estimated totals over the released periods; "" if they are not determined."""
    if len(rows) < 2 or any(answer["estimate"] is None for row in rows for answer in row["answers"]):
        return ""
    figure, axes = new_figure(3.0)
    places = np.arange(len(rows))
    # a line for each kind of answers (period, cumulative, window)
    for colour, number in zip(COLOURS, range(len(run.kinds)), strict=False):
        values = np.array([row["answers"][number]["estimate"] for row in rows])
        half = np.array([row["answers"][number]["half"] or 0.0 for row in rows])
        axes.errorbar(places, values, yerr=half, color=colour, marker=".", linewidth=1, capsize=2,
                      label=run.kinds[number])  # fmt: skip
    # at most six labels
    shown = places[:: -(-len(places) // 6)]
    axes.set_xticks(shown, [rows[place]["label"] for place in shown])
    axes.set(xlabel="period", ylabel="records", ylim=(min(0.0, axes.get_ylim()[0]), None))
    axes.legend(frameon=False, fontsize=8)
    return svg(figure)


def _variances(run: GrowingPart, kind: str) -> dict[str, Any]:
    """Return the mean variance of a kind of answers in three ways, relative to one table with the whole budget.

    They are the plan (`plan`), sums of the values of single periods (`sums`), and a new measurement of all records for
    every period (`again`).
    """
    plan, horizon = run.time_plan, len(run.labels)
    sums = float(np.mean([plan.weights(kind, number).sum() for number in range(horizon)]))
    per_unit = float(min(run.periods_per_unit, horizon))
    return {"kind": kind, "plan": plan.mean_variance(kind), "sums": sums * per_unit, "again": horizon * per_unit}


@drawing
def _variance_plot(run: GrowingPart) -> str:
    """Plot the standard error of each kind of answers over all periods, relative to the best possible one."""
    figure, axes = new_figure(2.6)
    places = np.arange(len(run.labels))
    for colour, kind in zip(COLOURS, run.kinds, strict=False):
        values = [run.time_plan.variance(kind, number) ** 0.5 for number in places.tolist()]
        axes.plot(places, values, color=colour, marker=".", linewidth=1, label=kind)
    shown = places[:: -(-len(places) // 6)]
    axes.set_xticks(shown, [run.labels[place] for place in shown])
    axes.set(xlabel="period", ylabel="relative standard error", ylim=(0, None))
    axes.legend(frameon=False, fontsize=8)
    return svg(figure)
