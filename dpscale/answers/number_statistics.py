"""Sums, means and ratios of numbers, for all records or by cells of attributes, with intervals.

A statistic is a table with a row for each group. A sum is a linear query. A mean is Σ v / n over the records with a
value. A ratio is Σ a / Σ b of two numbers, or of a number and the records. Ratios have Fieller's intervals
(`dpscale.answers.ratios`) and are missing where the denominator cannot be distinguished from 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dpscale.answers.ratios import Figures, fieller, figures_of
from dpscale.answers.tables import FIGURES, STATISTICS, Answered, check_level, column, label_name
from dpscale.base.arrow import pa
from dpscale.base.errors import JobError, PlanError
from dpscale.base.numerics import AttributeSet, Floats
from dpscale.domain import Domain
from dpscale.reconstruction.joint_intervals import half_width
from dpscale.workload import RECORDS, WorkloadPart, part_of
from dpscale.workload.sums import MeanQueries, SumQueries, VarianceQueries, number_named

REASON = "too few records: they cannot be distinguished from none"
MOST_GROUPS = 1 << 14  # of a ratio of two numbers, whose groups are answered one by one


def sum_table(answered: Answered, name: str, by: Sequence[str], level: float) -> pa.Table:
    """Return the sums of a number with a row for each group."""
    figures = _figures(answered, SumQueries(of=name), name, by, level)
    return _table(answered, by, figures)


def mean_table(answered: Answered, name: str, by: Sequence[str], level: float) -> pa.Table:
    """Return the means of a number with a row for each group; `reason` says why a group has none."""
    return _table(answered, by, _figures(answered, MeanQueries(of=name), name, by, level))


def tail_of(domain: Domain, name: str, bias: str, searched: Mapping[str, Any]) -> Callable[[pa.Table], pa.Table]:
    """Return the function that adds the clipped part of a number to a table of means.

    With the range L … H, the mean x of the clipped column, and the estimated means a and b of the parts that are
    clipped above and below, a mean m becomes m + a (m - L)/(x - L) - b (H - m)/(H - x). Intervals that include the
    clipped part stay; those of runs of earlier versions are moved likewise.

    `up` and `down` are a/(x − L) and b/(H − x).

    Raises
    ------
    JobError
        For another `bias`, or a number with public ends.
    """
    if bias != "tail":
        raise JobError("bias", repr(bias), '"tail", or nothing', "leave it out")
    if name not in searched or name not in domain.number_names:
        raise JobError("bias", f"'tail' for {name}, whose range is public", "a number with a private end",
                       "leave it out: nothing is known about values beyond the range")  # fmt: skip

    # means of the parts that are clipped above and below, and the mean of the clipped column
    (low, high), parts = domain[name].ends, searched[name]  # type: ignore[attr-defined]
    up = parts["above"] / max(parts["clipped_mean"] - low, 1e-9)
    down = parts["below"] / max(high - parts["clipped_mean"], 1e-9)

    def add(table: pa.Table) -> pa.Table:
        """Return the table with its estimates moved by the clipped part; intervals move too if they do not include it.

        The factors `up` and `down` multiply the distances of an estimate, clipped to the range, from the low and the
        high end.
        """
        for column_name in ("estimate",) if any(domain[name].clipped) else ("estimate", "low", "high"):  # type: ignore[attr-defined]
            inside = np.clip(table[column_name].to_numpy(), low, high)
            moved = table[column_name].to_numpy() + up * (inside - low) - down * (high - inside)
            table = table.set_column(table.column_names.index(column_name), column_name, pa.array(moved))
        return table

    return add


def deviation_table(answered: Answered, name: str, by: Sequence[str], level: float) -> pa.Table:
    """Return the standard deviations of a number with a row for each group, as the roots of variances.

    `_figures` has the estimates, errors and ends of intervals of the variances. The error of a root is error / (2 ·
    root), by linear approximation; a variance of 0 has no such error.
    """
    figures = _figures(answered, VarianceQueries(of=name), name, by, level)
    estimates, low, high = (np.sqrt(variances) for variances in (figures.estimates, figures.low, figures.high))
    with np.errstate(divide="ignore", invalid="ignore"):
        errors = figures.errors / (2 * estimates)
    return _table(answered, by, Figures(estimates=estimates, errors=errors, low=low, high=high))


def ratio_table(answered: Answered, name: str, other: str, by: Sequence[str], level: float) -> pa.Table:
    """Return Σ name / Σ other with a row for each group; either may be "records".

    `by` are the attributes of the groups and `level` is the probability of the intervals. Both sums are queries on one
    set: the groups and the numbers. There are at most MOST_GROUPS groups, because each is answered alone.
    """
    check_level(level)
    domain = answered.estimates.workload.domain
    for number in {name, other} - {RECORDS}:
        number_named(domain, number, "ratio")
    if name == other:
        raise JobError("ratio", f"{name!r} twice", f"two numbers, or a number and {RECORDS!r}", "name another one")

    names = checked_groups(domain, by)
    groups = domain.cells(names)
    if groups > MOST_GROUPS:
        raise PlanError("by", f"{groups:,} groups", f"at most {MOST_GROUPS:,}", "use fewer attributes")

    both = domain.ordered([*names, *({name, other} - {RECORDS})])
    pairs = [_ratio_answers(answered, both, names, (name, other), cells) for cells in np.ndindex(domain.shape(names))]
    answers, moments = (np.array(figures) for figures in zip(*pairs, strict=True))
    width = half_width(level, answered.estimates.noise)

    return _table(answered, names, _ratio_figures(answers, moments, width))


def _ratio_answers(
    answered: Answered, both: AttributeSet, by: AttributeSet, names: tuple[str, str], cells: tuple[int, ...]
) -> tuple[list[float], list[float]]:
    """Return the estimates of Σ a and Σ b in a group; and their variances and covariance.

    The variance of a + r b is Var a + r² Var b + 2 r Cov(a, b), which is solved for the covariance.

    a and b are the two sums, da and db their errors, and dc the error of a + r b with r = `ratio`.
    """
    first, second = (_sum_query(answered.estimates.workload.domain, both, by, name, cells) for name in names)
    ratio = np.abs(first).max() / np.abs(second).max()  # of comparable size, for the error of their sum
    pairs = [answered.estimates.answer(both, query) for query in (first, second, first + ratio * second)]
    (a, da), (b, db), (_, dc) = pairs
    covariance = (dc**2 - da**2 - (ratio * db) ** 2) / (2 * ratio)
    return [a, b], [da**2, db**2, covariance]


def _sum_query(domain: Domain, both: AttributeSet, by: AttributeSet, name: str, cells: tuple[int, ...]) -> Floats:
    """Return the sum of a number, or the number of records, in a group as an array over a set.

    `both` is the set of groups and numbers, and `cells` are the cells of the attributes `by` that define the group. The
    query is an outer product over `both`: 1 on the group's cell, the values of the number on its axis, 1 on other axes.
    """
    chosen = dict(zip(by, cells, strict=True))
    query = np.ones(())
    for attribute in both:
        axis = np.ones(domain[attribute].size)
        if attribute in chosen:
            axis = np.eye(domain[attribute].size)[chosen[attribute]]
        elif attribute == name:
            axis = number_named(domain, name, "ratio").cell_values
        query = np.multiply.outer(query, axis)

    return query


def _ratio_figures(answers: Floats, moments: Floats, width: float) -> Figures:
    """Return the ratios of pairs of answers, with deviations and Fieller's intervals.

    NaN where the denominator is not distinguishable from zero. `answers` has the numerators and denominators, and
    `moments` their variances and covariance.

    `answers` has shape (groups, 2), `moments` shape (groups, 3); `width` is the number of standard deviations of an
    interval.
    """
    (a, b), (first, second, covariance) = answers.T, moments.T
    seen = np.abs(b) > width * np.sqrt(second)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = a / b
        # delta method: Var(a/b) is to first order Var(a − r b)/b² at r = a/b
        deviation = np.sqrt(np.maximum(first - 2 * ratio * covariance + ratio**2 * second, 0)) / np.abs(b)
        low, high = fieller((a, b), (first, second, covariance), width)
    return Figures(*(np.where(seen, figure, np.nan) for figure in (ratio, deviation, low, high)))


def _figures(
    answered: Answered, family: SumQueries | MeanQueries | VarianceQueries, name: str, by: Sequence[str], level: float
) -> Figures:
    """Return estimates, errors and intervals of a sum, mean or variance of number `name`, for each cell of `by`.

    Variances require squares of the number in the measurements. The queries are those of `family` on the set (`by`,
    number), answered from the estimates of this set.
    """
    check_level(level)
    domain = answered.estimates.workload.domain
    number = number_named(domain, name, family.name)
    if family.needs_squares and not number.squares:
        raise PlanError(
            "of", f"squares of {name}", "variances of the workload", f'add family = "{family.name}" with of = "{name}"'
        )

    names = (*checked_groups(domain, by), name)
    part = part_of(family, domain, (names,), (1.0,))
    check_measured(answered, part, names)
    answers, errors = answered.estimates.part_answers(part.linear, names)

    return figures_of(part, answers, errors, half_width(level, answered.estimates.noise))


def check_measured(answered: Answered, part: WorkloadPart, names: AttributeSet) -> None:
    """Raise PlanError unless the queries of a part over a set are in the row space of the measurements.

    A query with generic entries for the groups, the same in every call, is in the row space only if those of all groups
    are.
    """
    domain, generic = answered.estimates.workload.domain, np.random.default_rng(0)
    groups = generic.uniform(0.5, 1.5, domain.shape(names[:-1]))
    *_, family = part.linear.families(names)

    try:
        for row in family.matrix(domain[names[-1]].size):
            answered.estimates.answer(names, np.multiply.outer(groups, row))
    except PlanError:
        *by, name = names
        kind = part.name.partition("-")[0]
        raise PlanError("of", f"{name} by {', '.join(by)}" if by else f"the total of {name}",
                        "sums or means of the workload",
                        f'add family = "{kind}" of it over these attributes') from None  # fmt: skip


def checked_groups(domain: Domain, by: Sequence[str]) -> AttributeSet:
    """Return the attributes of the groups in domain order; raise JobError for a number."""
    if isinstance(by, str):
        by = [by]
    for name in by:
        domain.attribute(name)
    return domain.ordered(by)


def _table(answered: Answered, by: Sequence[str], figures: Figures) -> pa.Table:
    """Return a row for each group: labels, figures and, if a value is missing, the reason.

    `figures` has arrays over the groups in the order FIGURES. A figure is missing (NaN) if too few records are seen;
    REASON states this.
    """
    domain = answered.estimates.workload.domain
    names = checked_groups(domain, by)
    cells = np.unravel_index(np.arange(domain.cells(names)), domain.shape(names)) if names else ()
    columns = {
        label_name(name, STATISTICS): column(domain[name], cell) for name, cell in zip(names, cells, strict=True)
    }
    columns |= {name: np.asarray(figure).reshape(-1) for name, figure in zip(FIGURES, figures, strict=True)}
    missing = np.isnan(columns["estimate"])
    if missing.any():
        columns["reason"] = pa.array([REASON if is_missing else None for is_missing in missing.tolist()], pa.string())

    return pa.table(columns)
