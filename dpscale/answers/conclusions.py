"""Conclusions from a release: differences, trends, odds ratios and risks of groups, with intervals and p-values.

Linear queries of a release share noise. Their covariance follows from the errors of the queries and of the sums of
two, so the error of every linear combination is exact where these errors are.

A share or mean of a group is a ratio θ = t/n (`Ratio`). Fieller's set is (t − θn)² ≤ w² V(θ) with the variance V of
t − θn. Combinations Σ k θ of several ratios, and of their logarithms or logits, have the limits of the method of
variance estimates recovery (Zou and Donner 2008): with the limits l and u of each ratio

    low = Σ k θ − √(sᵀ R s),   s = k (θ − l) for k > 0 and k (u − θ) for k < 0,

R the correlations of the t − θn, and high likewise. Where a group is not distinguished from an empty one, or an
estimate has no logarithm, the limits are those of the worst case, Σ k l and Σ k u inside the range of θ. So an interval
on a log scale is one-sided or infinite if a cell is not distinguished from zero. On the scale of θ the sets are not cut
at the ends of its range: a cut set forgets how far the estimate lies from its limit.

With `population` the variance of n independent records is added: n (θ − a)(b − θ) for values between a and b, which is
exact for shares and a bound for means, or the sum of squares about θ where squares are estimated.

References
----------
Zou, Donner: Construction of confidence limits about effect measures: a general approach. Statistics in Medicine 27
(2008). Holm: A simple sequentially rejective multiple test procedure. Scandinavian Journal of Statistics 6 (1979).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from dpscale.answers.areas import chosen_records
from dpscale.answers.ratios import covariances
from dpscale.answers.statistics import Estimate, Group, check_records, numeric_attribute, value_ends, value_of
from dpscale.answers.tables import Answered, check_level
from dpscale.base.display import safe_repr
from dpscale.base.errors import JobError, PlanError
from dpscale.base.numerics import AttributeSet, Floats
from dpscale.domain import Domain
from dpscale.privacy.accounting import LAPLACE
from dpscale.reconstruction.estimates import LeastSquaresEstimates
from dpscale.reconstruction.joint_intervals import half_width
from dpscale.workload import part_of
from dpscale.workload.sums import MeanQueries, centred_rows, number_named

MOST_CELLS = 1 << 20  # of the attributes of a comparison
WIDEST = 40.0  # half width in errors at which a p-value is 0


class Contrast(NamedTuple):
    """A difference, slope or ratio, with its interval and the test of no difference.

    Parameters
    ----------
    estimate : float
    low, high : float
        Ends of the interval; infinite where the data cannot tell.
    p_value : float
        Smallest α at which the interval of level 1 − α excludes no difference: 0, or a ratio of 1.
    population : bool
        Whether the interval is about the population that the records are drawn from, not about the records.
    extrapolated : bool
        Whether a model answers beyond what was measured of these attributes together, so that an association that it
        does not have is missing from the estimate and only approximately in the interval.
    """

    estimate: float
    low: float
    high: float
    p_value: float
    population: bool
    extrapolated: bool = False


class PopulationEstimate(Estimate):
    """Estimate for the population of which the records are independent draws; its interval has their sampling error."""

    __slots__ = ()


@dataclass(frozen=True, eq=False)
class Ratio:
    """Estimates t and n of a ratio with the variances of t, of n, and their covariance.

    Attributes
    ----------
    above, below : float
        t and n.
    moments : tuple of float
        With the sampling error, if it is asked for, so that V(θ) is quadratic in θ.
    error : float
        Standard error of n due to noise.
    ends : tuple of float
        Range of θ.
    """

    above: float
    below: float
    moments: tuple[float, float, float]
    error: float
    ends: tuple[float, float]

    @classmethod
    def of(
        cls,
        values: Floats,
        covariance: Floats,
        ends: tuple[float, float],
        *,
        sampled: bool,
        square: float | None = None,
    ) -> Ratio:
        """Return the ratio of two estimates with their covariance, of records with values between two ends.

        The sampling variance of t − θn is n (θ − low)(high − θ), the largest one of values in the range with this mean,
        or Σ v² − 2θ Σ v + θ² n with the sum of squares. Both are quadratic in θ: their coefficients are added to the
        three moments.

        Parameters
        ----------
        values : ndarray, shape (2,)
        covariance : ndarray, shape (2, 2)
        ends : tuple of float
        sampled : bool
            Add the sampling error of the records.
        square : float, optional
            Estimated sum of squares of the values.
        """
        (t, n), (low, high) = values.tolist(), ends
        first, second, both = float(covariance[0, 0]), float(covariance[1, 1]), float(covariance[0, 1])
        if sampled and square is None:
            records = max(n, 0.0)
            first, second, both = first - records * low * high, second - records, both - records * (low + high) / 2
        elif sampled and square is not None:
            first, second, both = first + square, second + n, both + t
        return cls(t, n, (first, second, both), math.sqrt(max(covariance[1, 1], 0.0)), ends)

    @property
    def value(self) -> float:
        """Estimate inside the range; the middle of the range for t = n = 0."""
        if self.below == 0:
            return sum(self.ends) / 2 if self.above == 0 else self.ends[int(self.above > 0)]
        return float(np.clip(self.above / self.below, *self.ends))

    def seen(self, width: float) -> bool:
        """Return whether the group is distinguished from an empty one."""
        return self.below > width * self.error

    def variance(self, theta: float) -> float:
        """Return V(θ)."""
        first, second, both = self.moments
        return max(first - 2 * theta * both + theta**2 * second, 0.0)

    def limits(self, width: float) -> tuple[float, float]:
        """Return the ends of Fieller's set of a group that is seen, also beyond the range; the range if it has none.

        Fieller's set contains the θ at which |t − θ n| is at most `width` standard errors. A group is seen if n, the
        estimate `below`, is more than `width` errors from 0 (moments[1] is the variance of n); else the set is
        unbounded.
        """
        if self.below**2 <= width**2 * self.moments[1]:
            return self.ends
        low, high = self._roots(width**2)
        return low, high

    def limits_inside(self, width: float) -> tuple[float, float]:
        """Return the ends of Fieller's set inside the range; the least distance there is added, so it is not empty.

        `_distance` is the squared distance of θ in errors, and `_roots` are the θ at which it has a given value.
        Candidates are these roots and the ends of the range; 1e-6 allows for rounding of the roots.
        """
        square = width**2 + min(map(self._distance, (self.value, *self.ends)))
        candidates = [*self.ends, *self._roots(square)]
        low, high = self.ends
        inside = []
        for theta in candidates:
            if low <= theta <= high and self._distance(theta) <= square * (1 + 1e-6):
                inside.append(theta)
        inside.append(self.value)
        return min(inside), max(inside)

    def _roots(self, square: float) -> list[float]:
        """Return the values at a squared distance, if there are two, from their distance to t/n: nothing cancels.

        At the squared distance `square`, θ solves a quadratic equation in its distance from t/n, with the coefficients
        a, 2b and -square · V(t/n). `second` is the variance of n, and `both` the covariance of t and n.
        """
        if self.below == 0:
            return []
        _, second, both = self.moments
        centre = self.above / self.below
        a, b = self.below**2 - square * second, square * (both - centre * second)
        root = b * b + a * square * self.variance(centre)
        # the set is no interval with two ends
        if a == 0 or root < 0:
            return []
        return sorted(centre + (sign * math.sqrt(root) - b) / a for sign in (-1, 1))

    def _distance(self, theta: float) -> float:
        """Return (t − θn)²/V(θ); without variance it is 0 at θ = t/n and infinite elsewhere."""
        away, variance = (self.above - theta * self.below) ** 2, self.variance(theta)
        return away / variance if variance > 0 else (0.0 if away <= 1e-12 * max(self.below**2, 1.0) else math.inf)


Scale = tuple[Callable[[float], float], Callable[[float], float]]


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


def _logit(value: float) -> float:
    return math.inf if value >= 1 else _log(value) - math.log1p(-value)


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


IDENTITY: Scale = (float, float)
SCALES: dict[str, Scale] = {"difference": IDENTITY, "risk": (_log, _exp), "odds": (_logit, _exp)}


@dataclass(frozen=True, eq=False)
class Combination:
    """A combination Σ k f(θ) of ratios.

    Attributes
    ----------
    ratios : sequence of Ratio
    weights : ndarray
        k.
    correlations : ndarray
        R.
    scale : tuple of callable
        f and the function of the result that is told.
    """

    ratios: Sequence[Ratio]
    weights: Floats
    correlations: Floats
    scale: Scale = IDENTITY

    @property
    def estimate(self) -> float:
        """Estimate on the scale of the combination; nan where it is not defined.

        `_plain` states whether f is the identity: then ratios are not clipped alone, but their sum is (`_inside`), and
        a ratio with n = 0 has its `value`. Otherwise the sum is of f(θ) at the clipped values.
        """
        if self._plain:
            with np.errstate(divide="ignore", invalid="ignore"):
                return self._inside(sum(k * ratio.above / ratio.below if ratio.below else k * ratio.value
                                        for k, ratio in zip(self.weights, self.ratios, strict=True)))  # fmt: skip
        terms = zip(self.weights.tolist(), self.ratios, strict=True)
        return sum(k * self.scale[0](ratio.value) for k, ratio in terms)

    def limits(self, width: float) -> tuple[float, float]:
        """Return the ends of the interval at a half width in errors.

        `ends` has the lower and the upper limits of the ratios on the scale f. The limits of the worst case hold if a
        ratio is not seen, or is at an end of its range. `_plain` states whether f is the identity.
        """
        seen = all(ratio.seen(width) for ratio in self.ratios)
        # limits that are not cut at the range of the ratios
        if self._plain and seen:
            centres = np.array([ratio.above / ratio.below for ratio in self.ratios])
            ends = np.array([ratio.limits(width) for ratio in self.ratios]).T
        else:
            convert = self.scale[0]
            centres = np.array([convert(ratio.value) for ratio in self.ratios])
            ends = np.array([[convert(end) for end in ratio.limits_inside(width)] for ratio in self.ratios]).T

        up = self.weights > 0
        with np.errstate(invalid="ignore"):
            # a positive weight takes the lower limit for the low end, a negative one the upper limit
            worst = [float((self.weights * np.where(up, *pair)).sum()) for pair in (ends, ends[::-1])]
            inner = all(ratio.ends[0] < ratio.value < ratio.ends[1] for ratio in self.ratios)
            # nan stands for ∞ − ∞, where nothing is known
            if not (seen and (self._plain or inner)):
                low, high = (
                    side if math.isnan(end) else end for end, side in zip(worst, (-math.inf, math.inf), strict=True)
                )
                return self._inside(low), self._inside(high)
            # distances s of the estimates from their limits, see the module
            low, high = (self.weights * np.abs(centres - np.where(up, *pair)) for pair in (ends, ends[::-1]))

        centre = float((self.weights * centres).sum())
        return self._inside(centre - self._length(low)), self._inside(centre + self._length(high))

    def _length(self, deviations: Floats) -> float:
        """Return √(sᵀ R s) of the distances s; infinite if one of them is."""
        if not np.isfinite(deviations).all():
            return math.inf
        return math.sqrt(max(float(deviations @ self.correlations @ deviations), 0.0))

    @property
    def _plain(self) -> bool:
        return self.scale is IDENTITY

    def _inside(self, value: float) -> float:
        """Return a value inside the range that those of the ratios imply; any value on other scales.

        The range is the sum of the ranges k · `ends` of the ratios, each sorted because a weight k may be negative.
        `_plain` states whether f is the identity.
        """
        if not self._plain:
            return value
        ranges = [np.sort(k * np.array(ratio.ends)) for k, ratio in zip(self.weights, self.ratios, strict=True)]
        return float(np.clip(value, *np.array(ranges).sum(axis=0)))


def tail(width: float, noise: str) -> float:
    """Return the α whose intervals have a half width in errors, the inverse of `half_width`."""
    normal = 2 * NormalDist().cdf(-width)
    return min(max(normal, math.exp(-math.sqrt(2) * width)), 1.0) if noise == LAPLACE else normal


def smallest_level(limits: Callable[[float], tuple[float, float]], noise: str) -> float:
    """Return the smallest α at which an interval, given by its half width in errors, excludes 0.

    `limits` maps a half width to the ends of an interval. The half width at which 0 enters is found by 50 bisections
    between 0 and WIDEST; `tail` is the probability of noise beyond it.
    """
    low, high = 0.0, WIDEST
    for _ in range(50):
        middle = (low + high) / 2
        first, last = limits(middle)
        low, high = (low, middle) if first <= 0 <= last else (middle, high)
    return tail(low, noise)


@dataclass(frozen=True, eq=False)
class JointQueries:
    """Linear queries over the cells of some attributes of a release, or of the same attributes at several periods.

    Attributes
    ----------
    releases : sequence of Answered
        Of each period; one without periods.
    shared : ndarray
        Covariances of the values of the periods, in any unit.
    names : AttributeSet
    """

    releases: Sequence[Answered]
    shared: Floats
    names: AttributeSet

    @property
    def domain(self) -> Domain:
        return self.releases[0].estimates.workload.domain

    @property
    def noise(self) -> str:
        return self.releases[0].estimates.noise

    @property
    def extrapolated(self) -> bool:
        """Whether a model answers beyond what was measured of the attributes together."""
        return any(release.estimates.extrapolates(self.names) for release in self.releases)

    def spread(self, query: Any) -> Floats:
        """Return a query on records as an array over the cells."""
        attributes, values = chosen_records(self.domain, query)
        return self.expand(attributes, values)

    def expand(self, attributes: AttributeSet, values: Floats) -> Floats:
        """Return an array over some attributes as one over all cells."""
        shape = [self.domain[name].size if name in attributes else 1 for name in self.names]
        return np.broadcast_to(values.reshape(shape), self.domain.shape(self.names)).astype(np.float64)

    def cell(self, cells: Mapping[str, int]) -> Floats:
        """Return 1 for the records with a cell of each of some attributes, as an array over the cells.

        `cells` maps an attribute to the number of its cell. The array has an axis for each of `self.names`.
        """
        indicator = np.ones(self.domain.shape(self.names))
        for name, cell in cells.items():
            indicator = indicator * self.expand((name,), np.eye(self.domain[name].size)[cell])
        return indicator

    def estimates(self, queries: Sequence[Floats], period: int = 0) -> Floats:
        """Return the estimates of queries."""
        return self.releases[period].spanned(self.names, np.stack(queries))[0]

    def moments(self, queries: Sequence[Floats]) -> tuple[Floats, Floats]:
        """Return estimates of queries and their covariance.

        The noise of two periods has the covariances `shared`, up to the size of each period's errors.

        Returns
        -------
        estimates : ndarray, shape (periods, queries)
        covariance : ndarray, shape (periods, queries, periods, queries)
        """
        count = len(queries)
        # the error of a sum gives the covariance of its two queries
        sums = [queries[i] + queries[j] for i in range(count) for j in range(i + 1, count)]
        answered = [release.spanned(self.names, np.stack([*queries, *sums])) for release in self.releases]
        values = np.array([answers[:count] for answers, _ in answered])
        within = np.array([covariances(errors, count) for _, errors in answered])  # of the queries of each period
        if not np.isfinite(within).all():
            raise PlanError("errors", "estimates without standard errors", "least squares, or simulated errors",
                            'set reconstruct.method = "least-squares", or leave reconstruct.errors out')  # fmt: skip

        # total variance of each period's queries
        sizes = np.trace(within, axis1=1, axis2=2)
        scale = np.sqrt(sizes / max(sizes[0], 1e-300))
        # covariances of two periods: their correlation times the sizes of both, in the form of the first period
        deviations = np.sqrt(np.diagonal(self.shared))
        between = self.shared / np.outer(deviations, deviations) * np.outer(scale, scale)
        covariance = np.einsum("pq,ij->piqj", between, within[0])
        for period, of_period in enumerate(within):
            covariance[period, :, period, :] = of_period
        return values, covariance


def over(answered: Answered, queries: Iterable[Any], others: Iterable[str] = ()) -> JointQueries:
    """Return the records of a release for queries on records and further attributes.

    Raises
    ------
    JobError
        For an unknown attribute or label.
    PlanError
        For too many cells.
    """
    return over_periods([answered], np.ones((1, 1)), queries, others)


def over_periods(
    releases: Sequence[Answered], shared: Floats, queries: Iterable[Any], others: Iterable[str] = ()
) -> JointQueries:
    """Return the records of several periods; see `over`. Raises PlanError for estimates without exact errors.

    `shared` has the covariances of the periods' noise, in an arbitrary unit. The attributes are those of the queries,
    then `others`, in domain order. MOST_CELLS bounds their joint cells, because a query is an array over them.
    """
    domain = releases[0].estimates.workload.domain
    names = dict.fromkeys(name for query in queries for name in chosen_records(domain, query)[0])
    ordered = domain.ordered([*names, *(name for name in dict.fromkeys(others) if name not in names)])
    if (cells := domain.cells(ordered)) > MOST_CELLS:
        raise PlanError("attributes", f"{cells:,} cells of {', '.join(ordered)}", f"at most {MOST_CELLS:,}",
                        "compare groups of fewer attributes")  # fmt: skip
    if len(releases) > 1 and not all(isinstance(release.estimates, LeastSquaresEstimates) for release in releases):
        raise PlanError("periods", "estimates of a model, whose errors at two periods have no known covariance",
                        "estimates of least squares", "use a mechanism without rounds")  # fmt: skip
    return JointQueries(releases, shared, ordered)


def linear(
    records: JointQueries, queries: Sequence[Floats], weights: Floats, level: float, population: bool
) -> Contrast:
    """Return Σ k q of queries at periods with its interval.

    `weights` has k for each period and query. `population` adds the variance of sampling: the records are then a sample
    of a population, otherwise only noise counts.

    Parameters
    ----------
    records : JointQueries
    queries : sequence of ndarray
    weights : ndarray, shape (periods, queries)
    level : float
    population : bool
    """
    check_level(level)
    values, covariance = records.moments(queries)
    if len(records.releases) == 1:  # one query, whose error is more exact than that of sums
        whole = np.tensordot(weights[0], np.stack(queries), 1)
        answers, errors = records.releases[0].spanned(records.names, whole[None])
        estimate, variance = float(answers[0]), float(errors[0]) ** 2
    else:
        estimate, variance = (
            float((weights * values).sum()),
            float(np.einsum("pi,piqj,qj", weights, covariance, weights)),
        )
    if population:
        variance += sum(_sampling(records, np.tensordot(of_period, np.stack(queries), 1), period)
                        for period, of_period in enumerate(weights))  # fmt: skip
    error = math.sqrt(max(variance, 0.0))
    half = half_width(level, records.noise) * error
    p_value = tail(abs(estimate) / error, records.noise) if error else float(estimate == 0)
    return Contrast(
        estimate=estimate,
        low=estimate - half,
        high=estimate + half,
        p_value=p_value,
        population=population,
        extrapolated=records.extrapolated,
    )


def _sampling(records: JointQueries, query: Floats, period: int) -> float:
    """Return the variance of a query over n independent records."""
    square, first, total = records.estimates([query**2, query, np.ones_like(query)], period).tolist()
    return max(square - first**2 / max(total, 1.0), 0.0)


class ValueRow(NamedTuple):
    """Values of the cells of an attribute or number, centred: (v − centre)/scale, and which cells have a value."""

    values: Floats
    known: Floats


@dataclass(frozen=True, eq=False)
class Outcome:
    """The quantity whose mean is compared: 0 or 1 for a share, or the values of an attribute or number.

    Attributes
    ----------
    names : AttributeSet
        Attributes on which the rows depend.
    rows : sequence of ValueRow
        With records in the middle of their cells, at the lower and at the upper ends; one row if these are equal.
    scale : float
        Unit of the values.
    ends : tuple of float
        Range of the centred values.
    squares : ndarray, optional
        Squares of the centred values, if their sum is estimated with the values; the bound is used otherwise.
    clipped : tuple of float
        Upper limits of the parts of a mean that are clipped below and above.
    centre : float
    """

    names: AttributeSet
    rows: Sequence[ValueRow]
    scale: float = 1.0
    ends: tuple[float, float] = (0.0, 1.0)
    squares: Floats | None = None
    clipped: tuple[float, float] = (0.0, 0.0)
    centre: float = 0.0


def share_outcome(domain: Domain, query: Any) -> Outcome:
    """Return the outcome of a share: whether a record satisfies a query."""
    names, values = chosen_records(domain, query)
    return Outcome(names, [ValueRow(values, np.ones_like(values))])


def mean_outcome(answered: Answered, name: str) -> Outcome:
    """Return the outcome of a mean of an attribute of numbers or a number.

    An outcome has rows t and n over the cells: t is the value relative to the centre, in units of half the range, and n
    is 1 for records that count. Bins have three rows: midpoints, lower ends and upper ends.

    For a number the rows are those of its measured statistic: t, n and, if squares are measured, q, which is 1 at the
    ends of the range. Its ends are ± the limit of the statistic. For bins, cells after the listed ones have n = 0.

    Raises
    ------
    JobError
        For other attributes.
    """
    domain = answered.estimates.workload.domain
    if name in domain.number_names:
        number = number_named(domain, name, "difference")
        statistic = part_of(MeanQueries(of=name), domain, ((name,),), (1.0,)).statistic
        assert statistic is not None
        rows = centred_rows(number)
        ends = -statistic.limit, statistic.limit
        return Outcome(
            names=(name,),
            rows=[ValueRow(rows["t"], rows["n"])],
            scale=statistic.half_range,
            ends=ends,
            squares=rows.get("q"),
            clipped=statistic.clipped,
            centre=statistic.centre,
        )

    attribute = numeric_attribute(answered, name)
    lower, upper = value_ends(attribute)
    middle = np.array([value_of(attribute, cell, 0.5) for cell in range(attribute.listed)])
    centre, scale = (lower[0] + upper[-1]) / 2, max((upper[-1] - lower[0]) / 2, 1e-300)
    known = np.zeros(attribute.size)
    known[: attribute.listed] = 1
    rows_at = [ValueRow(np.pad((values - centre) / scale, (0, attribute.size - attribute.listed)), known)
               for values in (middle, lower, upper)]  # fmt: skip
    same = np.array_equal(lower, upper)
    return Outcome(
        names=(name,),
        rows=rows_at[:1] if same else rows_at,
        scale=scale,
        ends=(-1.0, 1.0),
        squares=rows_at[0].values ** 2,
        centre=centre,
    )


def summed(
    records: JointQueries, name: str, groups: Sequence[Floats], weights: Floats, level: float, population: bool
) -> Contrast:
    """Return Σ k of the sums of an attribute of numbers or a number in groups at periods; see `linear`.

    The estimate has records at the midpoints of their bins, and the interval any position, as in `compared`.

    A lower end of the interval has the groups of positive weight at the lower ends of their bins, the others at the
    upper ends.
    """
    if name in records.domain.number_names:
        values = [number_named(records.domain, name, "difference").cell_values]
    else:
        attribute = numeric_attribute(records.releases[0], name)
        lower, upper = value_ends(attribute)
        middle = [value_of(attribute, cell, 0.5) for cell in range(attribute.listed)]
        values = [np.pad(of_cells, (0, attribute.size - attribute.listed)) for of_cells in (middle, lower, upper)]

    arrays = [records.expand((name,), of_cells) for of_cells in values]
    middle_sum = linear(records, [group * arrays[0] for group in groups], weights, level, population)
    if len(arrays) == 1 or np.array_equal(arrays[1], arrays[2]):
        return middle_sum

    # the sum at its least and at its greatest: groups of positive weight at the lower ends, or at the upper ones
    positive, width = weights.sum(axis=0) > 0, half_width(level, records.noise)
    of_groups = list(zip(groups, positive, strict=True))
    at_least = [group * arrays[1 if is_positive else 2] for group, is_positive in of_groups]
    at_most = [group * arrays[2 if is_positive else 1] for group, is_positive in of_groups]
    least, most = (linear(records, queries, weights, level, population) for queries in (at_least, at_most))
    # standard errors of both, from the half widths of their intervals
    errors = [(contrast.high - contrast.estimate) / width for contrast in (least, most)]
    p_value = smallest_level(
        lambda half: (least.estimate - half * errors[0], most.estimate + half * errors[1]), records.noise
    )
    return Contrast(
        estimate=middle_sum.estimate,
        low=least.low,
        high=most.high,
        p_value=p_value,
        population=population,
        extrapolated=records.extrapolated,
    )


def combined(
    records: JointQueries,
    outcome: Outcome,
    groups: Sequence[Floats],
    weights: Floats,
    population: bool,
    rows: Sequence[ValueRow],
    scale: Scale = IDENTITY,
) -> Combination:
    """Return Σ k f(θ) of the means of an outcome in groups at periods.

    Parameters
    ----------
    records : JointQueries
    outcome : Outcome
    groups : sequence of ndarray
        Records of each group as arrays over the cells.
    weights : ndarray, shape (periods, groups)
        k; groups with weight 0 at a period are left out.
    population : bool
    rows : sequence of ValueRow
        Values of the cells, for each group.
    scale : tuple of callable
    """
    whole = [(group * records.expand(outcome.names, row.values), group * records.expand(outcome.names, row.known))
             for group, row in zip(groups, rows, strict=True)]  # fmt: skip
    # moments of all queries at all periods, at once because they share noise
    values, covariance = records.moments([query for pair in whole for query in pair])
    places = [(period, group) for period, group in np.ndindex(weights.shape) if weights[period, group]]
    # queries 2g and 2g + 1 are t and n of group g
    pairs = [slice(2 * group, 2 * group + 2) for _, group in places]
    # one ratio t/n for each group at a period with a weight
    ratios = [Ratio.of(values[period, pair], covariance[period, pair, period, pair], outcome.ends, sampled=population,
                       square=_square(records, outcome, groups[group], period) if population else None)
              for (period, group), pair in zip(places, pairs, strict=True)]  # fmt: skip

    correlations = np.eye(len(places))
    for i, j in np.ndindex(correlations.shape):
        if i < j:
            (period_i, group_i), (period_j, group_j) = places[i], places[j]
            # t − θn of either ratio; records in both groups add their sampling covariance
            contrast_i, contrast_j = np.array([1.0, -ratios[i].value]), np.array([1.0, -ratios[j].value])
            shared = contrast_i @ covariance[period_i, pairs[i], period_j, pairs[j]] @ contrast_j
            (t_i, n_i), (t_j, n_j) = whole[group_i], whole[group_j]
            if population and period_i == period_j and (n_i * n_j).any():
                scores = (t_i - ratios[i].value * n_i) * (t_j - ratios[j].value * n_j)
                shared += records.estimates([scores], period_i)[0]
            # variances of t − θn at the estimated ratios
            size = math.sqrt(ratios[i].variance(ratios[i].value) * ratios[j].variance(ratios[j].value))
            correlations[i, j] = correlations[j, i] = np.clip(shared / size, -1, 1) if size > 0 else 0.0
    return Combination(
        ratios=ratios, weights=np.array([weights[place] for place in places]), correlations=correlations, scale=scale
    )


def _square(records: JointQueries, outcome: Outcome, group: Floats, period: int) -> float | None:
    """Return the estimated sum of squares in a group; None if it is not estimated, or not positive.

    `group` is 1 on the cells of the group and 0 on others, and outcome.squares are the squares of the centred values.
    PlanError means that the measurements do not determine the sum.
    """
    if outcome.squares is None:
        return None
    try:
        square = records.estimates([group * records.expand(outcome.names, outcome.squares)], period)[0]
    except PlanError:
        return None
    return float(square) if square > 0 else None


def compared(
    records: JointQueries,
    outcome: Outcome,
    groups: Sequence[Floats],
    weights: Floats,
    level: float,
    population: bool,
    scale: str = "difference",
) -> Contrast:
    """Return the comparison of the means of an outcome in groups; the arguments are those of `combined`.

    Records lie anywhere in their bins, so the interval extends from the limit with the groups of positive weight at the
    lower ends of their bins, and the others at the upper ends, to the limit of the opposite.
    """
    check_level(level)
    width, convert = half_width(level, records.noise), SCALES[scale]
    signs = weights.sum(axis=0)
    cases = [[outcome.rows[0]] * len(groups)]
    if len(outcome.rows) > 1:
        lower, upper = outcome.rows[1:]
        cases += [[lower if sign > 0 else upper for sign in signs], [upper if sign > 0 else lower for sign in signs]]
    of_cases = [combined(records, outcome, groups, weights, population, rows, convert) for rows in cases]

    middle, lowest, highest = of_cases[0], of_cases[min(1, len(of_cases) - 1)], of_cases[-1]
    unit = outcome.scale if scale == "difference" else 1.0
    # a range found by a search clips some values: each mean may be off by both limits
    clipped = sum(outcome.clipped) / unit * float(np.abs(weights).sum())

    def limits(half: float) -> tuple[float, float]:
        return lowest.limits(half)[0] - clipped, highest.limits(half)[1] + clipped

    estimate, low, high = (float(unit * convert[1](value)) for value in (middle.estimate, *limits(width)))
    return Contrast(
        estimate=estimate,
        low=low,
        high=high,
        p_value=smallest_level(limits, records.noise),
        population=population,
        extrapolated=records.extrapolated,
    )


def slope_weights(shared: Floats, places: Floats) -> Floats:
    """Return the weights k of the slope of a line through values at some places, by generalised least squares.

    Parameters
    ----------
    shared : ndarray
        Covariances of the values.
    places : ndarray
    """
    design = np.stack([np.ones_like(places), places], axis=1)
    precision = np.linalg.pinv(shared, hermitian=True)
    return np.asarray(np.linalg.solve(design.T @ precision @ design, design.T @ precision)[1])


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted by Holm's method: a result below α is true with all others at a joint level of 1 − α.

    The i-th smallest p-value (from 0) of n is multiplied by n − i; results keep the order of p-values (`largest` keeps
    the adjusted ones from falling).

    Parameters
    ----------
    p_values : sequence of float
    """
    if not all(isinstance(p_value, float | int) and 0 <= p_value <= 1 for p_value in p_values):
        raise JobError("results", safe_repr(list(p_values)), "results with p-values between 0 and 1",
                       "leave out those without a p-value")  # fmt: skip
    count, adjusted, largest = len(p_values), [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(count), key=lambda position: p_values[position])):
        largest = max(largest, min((count - rank) * p_values[place], 1.0))
        adjusted[place] = largest
    return adjusted


def population_estimate(
    answered: Answered, outcome: Outcome, group: Group = (), *, level: float, what: str
) -> PopulationEstimate:
    """Return a share or mean of a group, given by cells, in the population.

    Raises
    ------
    TooFewRecords
        If the number of records is not distinguishable from zero.
    """
    check_level(level)
    records = over(answered, (), (*outcome.names, *(name for name, _ in group)))
    chosen = records.cell(dict(group))
    # of records in the middle of their bins, and at the lower and upper ends if these differ
    of_rows = [combined(records, outcome, [chosen], np.ones((1, 1)), True, [row]) for row in outcome.rows]
    (ratio,), width = of_rows[0].ratios, half_width(level, records.noise)
    check_records("share or mean", what, ratio.below, width * ratio.error, group)
    low, high = of_rows[min(1, len(of_rows) - 1)].limits(width)[0], of_rows[-1].limits(width)[1]
    centred = (of_rows[0].estimate, low, high)
    estimate, low, high = (float(outcome.centre + outcome.scale * value) for value in centred)
    return PopulationEstimate(estimate, low - outcome.clipped[0], high + outcome.clipped[1])


MOST_SHARES = 2_500  # cells of a table of shares


def crosstab(
    answered: Answered, names: tuple[str, str], normalize: str | None, level: float, population: bool
) -> dict[str, Floats]:
    """Return estimates and ends of intervals of the cells of two attributes, shape (rows, columns).

    `parts` has the cells of each whole of which cells are shares. Queries are the whole, each cell, and their sums,
    whose errors give the covariance.

    Parameters
    ----------
    answered : Answered
    names : tuple of str
        Attributes of rows and columns.
    normalize : {"rows", "columns", "all"} or None
        Of what cells are shares. A share of records that are not distinguished from none is nan.
    level : float
    population : bool

    Raises
    ------
    JobError
        For another normalisation.
    PlanError
        For too many shares.
    """
    check_level(level)
    records, width = over(answered, (), names), half_width(level, answered.estimates.noise)
    shape = tuple(records.domain[name].size for name in names)
    # `records` has the attributes in the order of the domain
    is_transposed = records.names != names
    if normalize is None:
        counts, errors = answered.cells(records.names)
        total = max(float(counts.sum()), 1.0)
        # binomial variance of a count of n independent records
        sampling = np.maximum(counts * (1 - counts / total), 0.0) if population else 0.0
        half = width * np.sqrt(errors**2 + sampling)
        intervals = {"estimate": counts, "low": counts - half, "high": counts + half}
        return {name: figure.T if is_transposed else figure for name, figure in intervals.items()}

    cells = np.arange(shape[0] * shape[1]).reshape(shape)
    parts = {"rows": list(cells), "columns": list(cells.T), "all": [cells.reshape(-1)]}
    if normalize not in parts:
        raise JobError("normalize", safe_repr(normalize), f"{', '.join(parts)}, or nothing", "fix it")
    if cells.size > MOST_SHARES:
        raise PlanError("normalize", f"{cells.size:,} cells", f"at most {MOST_SHARES:,}", "leave it out")

    figures = np.full((3, cells.size), math.nan)
    for places in parts[normalize]:
        single = np.eye(cells.size)[places]
        whole = single.sum(axis=0)
        # whole, cells, and their sums: Var(t + n) gives the covariance of t and n
        queries = np.concatenate([whole[None], single, single + whole]).reshape(-1, *shape)
        values, errors = answered.spanned(names, queries)
        pairs = errors[1:].reshape(2, -1).T
        for place, value, (error, error_of_sum) in zip(places, values[1:], pairs, strict=False):
            covariance = covariances(np.array([error, errors[0], error_of_sum]), 2)
            ratio = Ratio.of(np.array([value, values[0]]), covariance, (0.0, 1.0), sampled=population)
            # the whole is distinguished from no records; otherwise the shares stay nan
            if ratio.seen(width):
                figures[:, place] = ratio.value, *np.clip(ratio.limits(width), 0, 1)
    return {name: figure.reshape(shape) for name, figure in zip(("estimate", "low", "high"), figures, strict=True)}
