"""Totals, means and conditional distributions of estimated counts; intervals are from the errors of linear queries.

A mean m solves a linear equation in the counts, Σ (v − m) · count(v) = 0, so its interval follows from the standard
error of that linear query, which least squares gives exactly. Values outside the domain and missing ones, where they
have cells of their own, do not count.

*Conditional distributions.*
p(x | y) = N(x, y) / Σ N(x', y) with the estimated counts N. Counts of a graphical model are those of the model with the
evidence y entered, so that the marginal over x and y is never made. Other counts are summed over the cells of y in the
marginal over both; those below 0 count as 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from dpscale.answers.ratios import fieller
from dpscale.answers.tables import MISSING, Answered, check_level, column
from dpscale.base.arrow import pa
from dpscale.base.display import nearest, safe_repr
from dpscale.base.errors import JobError, PlanError
from dpscale.base.numerics import AttributeSet, Floats, Integers
from dpscale.domain import Domain
from dpscale.domain.attribute import NULL_LABEL, Attribute
from dpscale.reconstruction.joint_intervals import half_width
from dpscale.reconstruction.junction_tree import GraphicalModel

NUMBERS = ("integer", "coded", "bins")
Group = tuple[tuple[str, int], ...]  # attributes with a cell each
MOST_CELLS = 1 << 22  # of an attribute, because a query is an array over its cells

MOST_CONDITIONED = 1 << 24  # of the marginal that is made
PROBABILITY = "probability"
Evidence = Mapping[str, Sequence[int]]  # cells of each attribute whose value is given


class Estimate(NamedTuple):
    """Estimate with a confidence interval.

    Parameters
    ----------
    estimate : float
    low, high : float
        Ends of the interval; nan if the estimate has no standard error.

    Examples
    --------
    >>> found = release.total()
    >>> found.low < found.estimate < found.high
    True
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


class MissingStatistic(PlanError):
    """A statistic that cannot be estimated, with the reason."""


class TooFewRecords(MissingStatistic):
    """A statistic of a group whose number of records is not distinguishable from zero."""


def total(answered: Answered, level: float) -> Estimate:
    """Return the estimated number of records from the smallest attribute set of the workload.

    The sum of all cells of this set is the total. The interval has the probability `level`.
    """
    check_level(level)
    names = min(answered.estimates.workload.sets, key=len)[:1] or answered.estimates.workload.domain.names[:1]
    estimate, error = answered.estimates.answer(names, np.ones(answered.estimates.workload.domain.shape(names)))
    half = half_width(level, answered.estimates.noise) * error
    return Estimate.around(estimate, half)


def check_records(statistic: str, name: str, records: float, limit: float, group: Group) -> None:
    """Raise TooFewRecords if a number of records is not above the limit of its error."""
    if records <= 0 or records <= limit:
        raise TooFewRecords(statistic, f"{name}: the number of records is not distinguishable from zero"
                        + "".join(f" where {by} has cell {cell}" for by, cell in group),
                        "a group with more records than noise", "use a larger group, or its table")  # fmt: skip


def mean(answered: Answered, name: str, level: float, group: Group = ()) -> Estimate:
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
    attribute = numeric_attribute(answered, name)
    check_level(level)
    middle = np.array([value_of(attribute, cell, 0.5) for cell in range(attribute.listed)])
    lower, upper = value_ends(attribute)
    queries = np.stack([np.ones_like(middle), middle, lower, lower + 1, upper, upper + 1])
    (records, summed, *sums), errors = listed_queries(answered, attribute, queries, group)
    width = half_width(level, answered.estimates.noise)
    check_records("mean", name, records, width * errors[0], group)
    estimate = summed / records
    if not np.isfinite(errors).all():
        return Estimate.around(float(np.clip(estimate, lower[0], upper[-1])), math.nan)

    first, _ = _fieller((records, sums[0]), (errors[0], errors[2], errors[3]), width)
    _, last = _fieller((records, sums[2]), (errors[0], errors[4], errors[5]), width)
    low, high = (float(np.clip(end, lower[0], upper[-1])) for end in sorted((first, last)))
    return Estimate(float(np.clip(estimate, low, high)), low, high)


def query_ratio(
    answered: Answered, names: AttributeSet, numerator: ArrayLike, denominator: ArrayLike, level: float, what: str = ""
) -> Estimate:
    """Return the ratio of two linear queries over the cells of a set, with Fieller's interval; see `mean`.

    `below` and `above` are the estimates of the denominator and the numerator; the third query is their sum, whose
    error gives the covariance.

    Raises
    ------
    JobError
        For a query of another shape.
    TooFewRecords
        If the denominator is not distinguishable from zero.
    """
    check_level(level)
    shape = tuple(answered.estimates.workload.domain[name].size for name in names)
    first, second = np.asarray(numerator, np.float64), np.asarray(denominator, np.float64)
    if not first.shape == second.shape == shape:
        raise JobError("query", f"shapes {first.shape} and {second.shape}", f"arrays of shape {shape}",
                       "use one axis per attribute")  # fmt: skip

    (below, above, _), errors = answered.linear(names, np.stack([second, first, first + second]))
    width = half_width(level, answered.estimates.noise)
    check_records("ratio", what or ", ".join(names), below, width * errors[0], ())
    if not np.isfinite(errors).all():
        return Estimate.around(float(above / below), math.nan)

    low, high = _fieller((below, above), (errors[0], errors[1], errors[2]), width)
    return Estimate(float(above / below), low, high)


def cells_of(attribute: Attribute, value: Any) -> list[int]:
    """Return the cells of a label, or of several in a list. Raises JobError for a label that no cell has.

    The cell of nulls is that of None, of nan, and of the texts that tables and files have for nulls.
    """
    values = value if isinstance(value, list | tuple | set) else [value]
    cells = attribute.cell_of
    if None in cells:
        cells = dict.fromkeys((MISSING, NULL_LABEL), cells[None]) | cells
    places = []
    for given in values:
        label = None if isinstance(given, float) and math.isnan(given) else given
        if not isinstance(label, Hashable) or label not in cells:
            raise JobError("value", f"{safe_repr(given)} of {attribute.name}", "labels of its cells",
                           nearest(str(given), {str(label) for label in attribute.cell_of}))  # fmt: skip
        places.append(cells[label])
    return places


def share(answered: Answered, name: str, cells: Sequence[int], level: float, group: Group = ()) -> Estimate:
    """Return the share of the records of a group that lie in some cells of an attribute, from 0 to 1.

    A group is (attribute, cell) pairs; `of_group` selects its records and `inside` those in the cells.
    """
    domain, names = answered.estimates.workload.domain, (name, *(by for by, _ in group))
    inside, of_group = np.zeros((2, *(domain[attribute].size for attribute in names)))
    of_group[(slice(None), *(cell for _, cell in group))] = 1
    inside[(list(cells), *(cell for _, cell in group))] = 1
    ratio = query_ratio(answered, names, inside, of_group, level, f"the share of {name}")
    return Estimate(*(float(np.clip(figure, 0, 1)) for figure in ratio))


def value_sum(answered: Answered, name: str, level: float, group: Group = ()) -> Estimate:
    """Return the sum Σ v · count(v) of an attribute's values with bins at midpoints.

    The interval contains the noise and any position of records inside their bins: it extends from the lower limit of
    the sum of lower edges to the upper limit of the sum of upper edges, each at (1 − level)/2.
    """
    attribute = numeric_attribute(answered, name)
    check_level(level)
    middle = np.array([value_of(attribute, cell, 0.5) for cell in range(attribute.listed)])
    (summed, *sums), errors = listed_queries(answered, attribute, np.stack([middle, *value_ends(attribute)]), group)
    width = half_width(level, answered.estimates.noise)
    low, high = sorted((sums[0] - width * errors[1], sums[1] + width * errors[2]))
    return Estimate(float(summed), float(low), float(high))


def value_ends(attribute: Attribute) -> tuple[Floats, Floats]:
    """Return the smallest and the largest value of a record in each cell, for bins and rounded integers.

    `value_of` is the value at the relative position 0 or 1 of a bin. Rounded integers extend by half a step, up to the
    ends of the range.
    """
    lower, upper = (
        np.array([value_of(attribute, cell, part) for cell in range(attribute.listed)]) for part in (0.0, 1.0)
    )
    if attribute.kind == "bins" or attribute.step == 1:
        return lower, upper
    # an integer is rounded to the nearest multiple of the step
    half = attribute.step / 2
    return np.maximum(lower - half, lower[0]), np.minimum(upper + half, upper[-1])


def _fieller(estimates: tuple[float, float], errors: tuple[float, float, float], width: float) -> tuple[float, float]:
    """Return the interval of S/N from estimates of N and S and the standard errors of N, S and S + N.

    `estimates` is (N, S) and `errors` the standard errors of N, S and S + N; `fieller` takes S, N, their variances and
    the covariance.
    """
    (records, summed), (first, second, of_sum) = estimates, errors
    # Var(S + N) = Var S + Var N + 2 Cov(S, N)
    covariance = (of_sum**2 - first**2 - second**2) / 2
    moments = (np.array(second**2), np.array(first**2), np.array(covariance))
    low, high = fieller((np.array(summed), np.array(records)), moments, width)
    return float(low), float(high)


def numeric_attribute(answered: Answered, name: str) -> Attribute:
    """Return an attribute of numbers.

    Raises
    ------
    JobError
        For other attributes.
    PlanError
        For too many cells.
    """
    attribute = answered.estimates.workload.domain[name]
    if attribute.kind == "number":
        raise JobError("attribute", f"{name}, a number of which sums are counted", "an attribute of numbers",
                       f'add an attribute with from = "{attribute.column}" to the domain file')  # fmt: skip
    if attribute.kind not in NUMBERS:
        raise JobError("attribute", f"{name} has {attribute.kind}", "an attribute of numbers", "use Release.table")
    if attribute.listed > MOST_CELLS:
        raise PlanError("attribute", f"{name} has {attribute.listed:,} cells", f"at most {MOST_CELLS:,}",
                        "use Release.answer for single queries")  # fmt: skip
    return attribute


def listed_queries(answered: Answered, attribute: Attribute, queries: Floats, group: Group) -> tuple[Floats, Floats]:
    """Return estimates and errors of queries on the listed cells, shape (m, listed), of the records in a group.

    Each query is extended by zeros on the cells that are not listed, and multiplied by the indicator of the group's
    cells.
    """
    padded = np.zeros((len(queries), attribute.size))
    padded[:, : attribute.listed] = queries
    domain, names = answered.estimates.workload.domain, [name for name, _ in group]
    for name, cell in reversed(group):
        chosen = np.eye(domain[name].size)[cell].reshape(1, -1, *[1] * (padded.ndim - 1))
        padded = padded[:, None] * chosen
    return answered.linear((*names, attribute.name), padded)


def value_of(attribute: Attribute, cell: int, within: float) -> float:
    """Return the numeric value of a cell; for a bin the point at the relative position `within`."""
    if attribute.kind == "bins":
        left, right = attribute.edges[cell], attribute.edges[cell + 1]
        return left + within * (right - left)
    return float(attribute.low + attribute.step * cell)


def cramers_v(counts: Integers) -> float:
    """Return bias-corrected Cramér's V of counts, shape (n_a, n_b).

    It is 0 without dependence and 1 if one attribute determines the other; nan without records.

    The bias correction (Bergsma 2013) subtracts the expectation of φ² under independence and shrinks the numbers of
    rows and columns.
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
    """Return the statistic of one group; missing values and the reason if it has none."""
    try:
        return statistic(), None
    except MissingStatistic as error:
        return Estimate.around(float("nan"), float("nan")), str(error)


def evidence_of(domain: Domain, given: Mapping[str, Any]) -> dict[str, list[int]]:
    """Return the cells of given labels, or of several labels in a list.

    Raises
    ------
    DomainError, JobError
        If an attribute is unknown or has no such cell, or a list is empty.
    """
    evidence = {name: cells_of(domain[name], value) for name, value in given.items()}
    for name, cells in evidence.items():
        if not cells:
            raise JobError("given", f"no label of {name}", "one label or several", "name one")
    return evidence


def conditional(
    answered: Answered, names: AttributeSet, given: Mapping[str, Any], model: GraphicalModel | None = None
) -> pa.Table:
    """Return the distribution of some attributes given labels of others.

    Parameters
    ----------
    answered : Answered
    names : AttributeSet
    given : mapping of str to object or list of objects
        Labels by attribute.
    model : GraphicalModel, optional
        Joint distribution of the estimates.

    Returns
    -------
    pyarrow.Table
        A row for each cell of the attributes, in row-major order, with its label for each attribute, and `probability`.

    Raises
    ------
    PlanError
        If cells lie outside the row space of the measurements, are too many, or no estimated record has the labels.
    DomainError, JobError
        If an attribute is unknown, occurs twice, or has no such cell.
    """
    domain = answered.estimates.workload.domain
    domain.ordered((*names, *given))
    if not names:
        raise JobError("attributes", "none", "one attribute or more", "name one")

    cells = evidence_of(domain, given)
    if (needed := domain.cells(names if model is not None else (*names, *cells))) > MOST_CONDITIONED:
        raise PlanError("attributes", f"{needed:,} cells", f"at most {MOST_CONDITIONED:,}", "use fewer attributes")
    counts = np.maximum(_counts(answered, names, cells, model), 0)
    if not (total := counts.sum()) > 0:
        words = ", ".join(f"{name} = {value}" for name, value in given.items()) or "no condition"
        raise PlanError("given", f"{words}, with no estimated record", "labels of estimated records", "name others")

    places = np.indices(counts.shape).reshape(len(names), -1)
    labels = [column(domain[name], place) for name, place in zip(names, places, strict=True)]
    title = PROBABILITY if PROBABILITY not in names else f"{PROBABILITY}_"
    return pa.table([*labels, pa.array(counts.ravel() / total)], names=[*names, title])


def _counts(answered: Answered, names: AttributeSet, cells: Evidence, model: GraphicalModel | None) -> Floats:
    """Return estimated counts of the records with given cells, one axis for each name.

    `cells` maps an attribute to the numbers of its given cells. A model is conditioned on them directly. Estimates of
    linear queries have a margin over all the attributes, whose axes of `cells` are reduced to the given cells and
    summed, the last axis first so that the positions of the others stay valid.
    """
    if model is not None:
        return model.given(**cells).marginal(names)
    counts = answered.estimates.marginal((*names, *cells))
    for axis, given_cells in reversed(list(enumerate(cells.values(), start=len(names)))):
        counts = counts.take(sorted(set(given_cells)), axis=axis).sum(axis=axis)
    return counts
