"""Totals, quantiles and means of estimated counts, with intervals from the errors of linear queries.

A statistic solves a linear equation in the counts, so its interval follows from the standard error of that linear
query, which least squares gives exactly.
    quantile q: the smallest x with G(x) = #{≤ x} − q · #{all} ≥ 0        mean m: Σ (v − m) · count(v) = 0
Values outside the domain and missing ones, where they have cells of their own, count in neither.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dpscale.answers.ratios import fieller
from dpscale.answers.tables import Answered, check_level
from dpscale.base.display import safe_repr
from dpscale.base.errors import JobError, PlanError
from dpscale.base.numerics import Floats, Integers, optimize
from dpscale.domain.attribute import Attribute
from dpscale.reconstruction.joint_intervals import half_width

NUMBERS = ("integer", "coded", "bins")
ALL_CELLS = 1 << 12  # up to this size, the error of every cell is computed: as many queries, over as many cells
MOST_CELLS = 1 << 22
SAMPLED = 33  # cells of wider attributes


class Estimate(NamedTuple):
    """Estimate with a confidence interval.

    Parameters
    ----------
    estimate : float
    low, high : float
        Ends of the interval; nan if the estimate has no standard error.
    """

    estimate: float
    low: float
    high: float

    @classmethod
    def around(cls, estimate: float, half: float) -> Estimate:
        """Return an estimate with a symmetric interval.

        Parameters
        ----------
        estimate : float
        half : float
            Half width of the interval.

        Returns
        -------
        Estimate
        """
        return cls(float(estimate), float(estimate - half), float(estimate + half))


class TooFewRecords(PlanError):
    """A statistic of a group whose number of records is not distinguishable from zero."""


def total(answered: Answered, level: float) -> Estimate:
    """Return the estimated number of records from the smallest attribute set of the workload."""
    check_level(level)
    names = min(answered.estimates.workload.sets, key=len)[:1] or answered.estimates.workload.domain.names[:1]
    estimate, error = answered.estimates.answer(names, np.ones(answered.estimates.workload.domain.shape(names)))
    half = half_width(level, answered.estimates.noise) * error
    return Estimate.around(estimate, half)


def quantile(answered: Answered, name: str, q: float, level: float, by: tuple[str, int] | None = None) -> Estimate:
    """Return the q-quantile: the smallest value x such that at least a share q of the records is at most x.

    Inside a bin, records are assumed to be uniform between its edges. The estimate is computed from the isotonic
    regression of the estimated cumulative counts. The interval inverts a test (Woodruff 1952): it contains all values x
    for which neither G(x) is significantly negative nor G of the preceding value significantly positive, each at (1 −
    level)/2, so its coverage is at least `level`. `by` is an attribute and a cell; only records in that cell count.
    """
    if isinstance(q, bool) or not isinstance(q, int | float) or not 0 <= q <= 1:
        raise JobError("quantile", safe_repr(q), "a number between 0 and 1", "0.5 is the median")
    attribute = ordered(answered, name)
    check_level(level)
    cumulative = np.cumsum(_counts(answered, attribute, by))
    values, errors = cumulative - q * cumulative[-1], _errors(answered, attribute, q, by)
    cell, within = _place(optimize.isotonic_regression(cumulative).x, q)
    estimate = _value(attribute, cell, within)
    low, high = _possible(values, half_width(level, answered.estimates.noise) * errors, cell)
    if not np.isfinite(errors).all():
        return Estimate.around(estimate, math.nan)
    return Estimate(estimate, _value(attribute, low, 0.0), _value(attribute, high, 1.0))


def mean(answered: Answered, name: str, level: float, by: tuple[str, int] | None = None) -> Estimate:
    """Return the mean Σ v · count(v) / Σ count(v) with bins at midpoints, and an interval that covers their width.

    Records lie anywhere in their bins, so the true mean is between that of the lower edges, m₁, and that of the upper
    edges, m₂. The interval extends from the lower limit of m₁ to the upper limit of m₂, each at (1 − level)/2. The
    limits are Fieller's: with S = Σ v · count(v), N = Σ count(v) and w the quantile, all m with

        (S − mN)² ≤ w² Var(S − mN),

    which is bounded if N is more than w standard errors. The interval and the estimate stay inside the domain.

    Raises
    ------
    TooFewRecords
        If the number of records is not distinguishable from zero.

    References
    ----------
    Fieller, Some problems in interval estimation, JRSS B 16 (1954).
    """
    attribute = ordered(answered, name)
    check_level(level)
    middle = np.array([_value(attribute, cell, 0.5) for cell in range(attribute.listed)])
    lower, upper = _ends(attribute)
    queries = np.stack([np.ones_like(middle), middle, lower, lower + 1, upper, upper + 1])
    (records, summed, *sums), errors = _requested_attributes(answered, attribute, queries, by)
    width = half_width(level, answered.estimates.noise)
    if records <= 0 or records <= width * errors[0]:
        raise TooFewRecords("mean", f"{name}: the number of records is not distinguishable from zero"
                        + (f" where {by[0]} has cell {by[1]}" if by else ""),
                        "a group with more records than noise", "use a larger group, or its table")  # fmt: skip
    estimate = summed / records
    if not np.isfinite(errors).all():
        return Estimate.around(float(np.clip(estimate, lower[0], upper[-1])), math.nan)
    first, _ = _fieller((records, sums[0]), (errors[0], errors[2], errors[3]), width)
    _, last = _fieller((records, sums[2]), (errors[0], errors[4], errors[5]), width)
    low, high = (float(np.clip(end, lower[0], upper[-1])) for end in sorted((first, last)))
    return Estimate(float(np.clip(estimate, low, high)), low, high)


def _ends(attribute: Attribute) -> tuple[Floats, Floats]:
    """Return the smallest and the largest value of a record in each cell, for bins and rounded integers."""
    lower, upper = (
        np.array([_value(attribute, cell, part) for cell in range(attribute.listed)]) for part in (0.0, 1.0)
    )
    if attribute.kind == "bins" or attribute.step == 1:
        return lower, upper
    half = attribute.step / 2
    return np.maximum(lower - half, lower[0]), np.minimum(upper + half, upper[-1])


def _fieller(estimates: tuple[float, float], errors: tuple[float, float, float], width: float) -> tuple[float, float]:
    """Return the interval of S/N from estimates of N and S and the standard errors of N, S and S + N."""
    (records, summed), (first, second, both) = estimates, errors
    covariance = (both**2 - first**2 - second**2) / 2
    moments = (np.array(second**2), np.array(first**2), np.array(covariance))
    low, high = fieller((np.array(summed), np.array(records)), moments, width)
    return float(low), float(high)


def ordered(answered: Answered, name: str) -> Attribute:
    """Return an attribute of numbers.

    Raises
    ------
    JobError
        For other attributes.
    PlanError
        For too many cells.
    """
    attribute = answered.estimates.workload.domain[name]
    if attribute.kind not in NUMBERS:
        raise JobError("attribute", f"{name} has {attribute.kind}", "an attribute of numbers", "use Release.table")
    if attribute.listed > MOST_CELLS:
        raise PlanError("attribute", f"{name} has {attribute.listed:,} cells", f"at most {MOST_CELLS:,}",
                        "use Release.answer for single queries")  # fmt: skip
    return attribute


def _counts(answered: Answered, attribute: Attribute, by: tuple[str, int] | None) -> Floats:
    """Return estimated counts of the listed cells, for all records or for one cell of `by`."""
    if by is None:
        return answered.estimates.marginal((attribute.name,))[: attribute.listed]
    return answered.estimates.marginal((by[0], attribute.name))[by[1], : attribute.listed]


def _errors(answered: Answered, attribute: Attribute, q: float, by: tuple[str, int] | None) -> Floats:
    """Return standard errors of #{≤ x} − q · #{all} for every listed cell x.

    For an attribute with many cells, errors are computed at evenly spaced cells; between two of them the largest of
    the four nearest is used.
    """
    n = attribute.listed
    if n <= ALL_CELLS:
        return _requested_attributes(answered, attribute, np.tri(n) - q, by)[1]
    at = np.linspace(0, n - 1, SAMPLED).astype(int)
    some = np.concatenate(
        [_requested_attributes(answered, attribute, (np.arange(n) <= x)[None] - q, by)[1] for x in at]
    )
    padded = np.concatenate([some[:1], some, some[-1:]])
    near = np.lib.stride_tricks.sliding_window_view(padded, 4).max(axis=1)
    return np.asarray(near[np.minimum(np.searchsorted(at, np.arange(n), side="right") - 1, SAMPLED - 2)])


def _requested_attributes(
    answered: Answered, attribute: Attribute, queries: Floats, by: tuple[str, int] | None
) -> tuple[Floats, Floats]:
    """Return estimates and errors of queries on the listed cells, shape (m, listed).

    With `by`, an attribute and a cell, only records in that cell count.
    """
    padded = np.zeros((len(queries), attribute.size))
    padded[:, : attribute.listed] = queries
    if by is None:
        return answered.linear((attribute.name,), padded)
    other, cell = by
    chosen = np.zeros(answered.estimates.workload.domain[other].size)
    chosen[cell] = 1
    return answered.linear((other, attribute.name), padded[:, None, :] * chosen[None, :, None])


def _place(cumulative: Floats, q: float) -> tuple[int, float]:
    """Return the cell of a quantile in increasing cumulative counts, and the relative position inside it."""
    wanted = q * cumulative[-1]
    cell = min(int(np.searchsorted(cumulative, wanted, side="left")), len(cumulative) - 1)
    before = cumulative[cell - 1] if cell else min(0.0, wanted)
    step = cumulative[cell] - before
    return cell, float(np.clip((wanted - before) / step, 0, 1)) if step > 0 else 0.5


def _possible(values: Floats, half: Floats, cell: int) -> tuple[int, int]:
    """Return the first and the last cell that may contain the quantile, including that of the estimate."""
    reached, before = values + half >= 0, np.concatenate([[True], (values - half <= 0)[:-1]])
    found = [*np.flatnonzero(reached & before).tolist(), cell]
    return min(found), max(found)


def _value(attribute: Attribute, cell: int, within: float) -> float:
    """Return the numeric value of a cell; for a bin the point at the relative position `within`."""
    if attribute.kind == "bins":
        left, right = attribute.edges[cell], attribute.edges[cell + 1]
        return left + within * (right - left)
    return float(attribute.low + attribute.step * cell)


def cramers_v(counts: Integers) -> float:
    """Return bias-corrected Cramér's V of counts, shape (n_a, n_b).

    It is 0 without dependence and 1 if one attribute determines the other; nan without records.
    """
    table = counts[counts.sum(1) > 0][:, counts.sum(0) > 0].astype(np.float64)
    (rows, columns), total = table.shape, table.sum()
    if min(rows, columns) < 2:
        return 0.0 if total else math.nan
    expected = np.outer(table.sum(1), table.sum(0)) / total
    squared = float(((table - expected) ** 2 / expected).sum() / total)
    squared = max(squared - (rows - 1) * (columns - 1) / (total - 1), 0.0)
    least = min(size - (size - 1) ** 2 / (total - 1) for size in (rows, columns)) - 1
    return min(math.sqrt(squared / least), 1.0) if least > 0 else math.nan


def or_reason(statistic: Callable[[], Estimate]) -> tuple[Estimate, str | None]:
    """Return the statistic of one group; missing values and the reason if the group is too small."""
    try:
        return statistic(), None
    except TooFewRecords as error:
        return Estimate.around(float("nan"), float("nan")), str(error)
