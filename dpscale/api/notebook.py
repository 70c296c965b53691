"""Summaries in HTML that notebooks show for a plan and a release: cost, remaining budget, and the first tables.

Everything in them is public: settings of the job, the ledger's totals, and released values. Labels are escaped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from html import escape
from itertools import islice, zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

from dpscale.answers import statistics
from dpscale.answers.tables import LEVEL, MISSING, Answered
from dpscale.base.display import MOST, figure, glance, html_table, power, whole
from dpscale.base.errors import PlanError
from dpscale.base.numerics import AttributeSet

if TYPE_CHECKING:
    from dpscale.base.arrow import pa
    from dpscale.runs.run import Run
    from dpscale.workload import WorkloadPart

FIRST, ROWS, LARGEST = 3, 10, 10_000  # tables of a release, lines of a table, and its largest number of queries
SHOWN = 6  # tables of a database
INTERVAL = f"{100 * LEVEL:.0f} % interval"


def errors_html(families: Sequence[Mapping[str, Any]]) -> str:
    """Return the expected errors of a plan as HTML.

    Parameters
    ----------
    families : sequence of mapping
        Lines with `family`, `sets`, `queries`, `error` and `unit`.
    """
    if not families:
        return "<p>The mechanism selects its measurements during the run: errors are known after it.</p>"
    rows = [(one["family"], f"{one['sets']:,}", f"{one['queries']:,}", f"± {figure(one['error'])} {one['unit']}")
            for one in families]  # fmt: skip
    return html_table("Expected errors (root mean square)", ("family", "tables", "queries", "error"), rows)


def release_html(run: Run, answered: Mapping[str, Answered], periods: Sequence[str] = (), horizon: int = 0) -> str:
    """Return cost, remaining budget and the first tables of a release as HTML.

    Parameters
    ----------
    run : Run
        Run directory.
    answered : mapping of str to Answered
        Answers by the names of tables and joins; "data" for a job of one table.
    periods : sequence of str
        Released periods of a growing table.
    horizon : int
        Number of all its periods.
    """
    facts = [("protects", run.protects.words), *_budget(run)]
    if horizon:
        span = f": {periods[0]} to {periods[-1]}" if periods else ""
        facts.append(("periods", f"{len(periods)} of {horizon} released{span}"))
    shown, most = list[str](), FIRST if len(answered) == 1 else 1
    for name, own in islice(answered.items(), SHOWN):
        facts += _sizes("" if name == "data" else name, own)
        shown += islice(_first_tables(own, "" if len(answered) == 1 else f"{name}: "), most)
    more = 'More: release.table(["…"]), .total(), .sum("…"), .quantile("…", 0.5); the report is report.html in '
    if periods:
        more = f"Answers of a period: release.at({periods[-1]!r}); the run directory is "
    heading = f"Release {run.manifest['release'][:8]}"
    return glance(heading, facts) + "".join(shown) + f"<p>{escape(more + str(run.path))}</p>"


def _budget(run: Run) -> Iterator[tuple[str, str]]:
    """Yield what the release has spent and what remains for its dataset; a part of a release is charged with it.

    A pair is (name, text). `capless` is true if neither the dataset nor its periods have a cap; then there is no
    remainder.
    """
    from dpscale.runs.stages.report import remaining

    if run.manifest.get("part"):
        yield "cost", "charged with the whole release"
        return
    cost, delta = run.spent, run.job.privacy.delta
    # a pure cost has an ε at δ = 0
    epsilon = cost.epsilon_or_inf(0.0 if cost.is_pure else delta or 0.0)
    if not run.manifest["private"]:
        yield "cost", "not private: its noise is public (seed)"
    elif np.isfinite(epsilon):
        yield "cost", f"ε {figure(epsilon)}" + (f" at δ {power(delta)}" if delta and not cost.is_pure else "")
    left = remaining(run)
    if left["remaining"]:
        yield "remaining budget", f"ε {figure(left['remaining']['epsilon'])} at δ {figure(left['remaining']['delta'])}"
    elif left["capless"]:
        yield "remaining budget", "no cap: Ledger.set_cap or dpscale ledger cap sets one"
    yield "attack risk", run.attack_risk.rates


def _sizes(name: str, answered: Answered) -> Iterator[tuple[str, str]]:
    """Yield the number of queries and the estimated number of records of a table.

    A pair is (name, text). At most MOST attributes are named. The interval is left out if it is infinite.
    """
    work, of = answered.estimates.workload, f" of {name}" if name else ""
    names = work.domain.names
    over = f"{', '.join(names[:MOST])}{', …' if len(names) > MOST else ''}"
    yield f"queries{of}", f"{work.query_count:,} over {over}"
    with suppress(PlanError):  # the workload does not determine the total
        estimate, low, high = statistics.total(answered, LEVEL)
        span = f" ({INTERVAL} {whole(low)} to {whole(high)})" if np.isfinite(low) else ""
        yield f"records{of}", whole(estimate) + span


def _first_tables(answered: Answered, prefix: str) -> Iterator[str]:
    """Yield the first table of each part of the workload, then the second ones, as HTML with prefixed headings.

    Sets without weight and tables of more than LARGEST queries are left out. `zip_longest` takes one table of each part
    in turn, with None after the last one of a part.
    """
    shown = []
    for part in answered.estimates.workload.parts:
        weighted = [names for names, weight in zip(part.sets, part.weights, strict=False) if weight > 0]
        shown.append([(part, names) for names in weighted if part.count(names) <= LARGEST])

    for tables in zip_longest(*shown):
        for part, names in filter(None, tables):
            with suppress(PlanError):  # not determined by the measurements
                yield _table_html(prefix, answered.table(part.shown(names), part.name, LEVEL, False), part, names)


def _table_html(prefix: str, table: pa.Table, part: WorkloadPart, names: AttributeSet) -> str:
    """Return the first rows of a table of answers with intervals.

    Columns before `estimate` are labels. At most ROWS rows are shown, and the title states how many there are. Counts
    of records are shown as whole numbers.
    """
    by, count = part.shown(names), len(table)
    labels, unit = table.column_names[: table.column_names.index("estimate")], part.unit(names)
    text = whole if unit == "records" else figure
    rows = [[*(MISSING if row[name] is None else str(row[name]) for name in labels), text(row["estimate"]),
             f"{text(row['low'])} to {text(row['high'])}" if np.isfinite(row["low"] + row["high"]) else "—"]
            for row in table.slice(0, ROWS).to_pylist()]  # fmt: skip
    # the family, its attributes, and the number of lines that are not shown
    title = f"{prefix}{part.name}{' by ' * bool(by)}{' and '.join(by)}"
    title += f", the first {ROWS} of {count:,} lines" if count > ROWS else ""
    return html_table(title, (*labels, unit, INTERVAL), rows, len(labels))
