"""Quantiles of estimated counts, many of them from one computation, with intervals by test inversion.

The q-quantile is the smallest x with G(x) = C(x) − q · N ≥ 0, where C(x) is the number of records up to x and N that of
all. The estimate is computed from the isotonic regression of the estimated cumulative counts; inside a bin, records are
assumed to be uniform between its edges. The interval inverts a test (Woodruff 1952): it contains all values x for which
neither G(x) is significantly negative nor G of the preceding value significantly positive, each at (1 − level)/2, so
its coverage is at least `level`. The errors of all q follow from three variances for each x:

    Var G(x) = Var C(x) − 2 q Cov(C(x), N) + q² Var N,    2 Cov = Var(C + N) − Var C − Var N.

If this interval is wider than twice the value, or the bin is wide and no records can be distinguished from none beyond
it, the estimate and the interval are those of a model of the tail.

*Tails.*
The last bin with records often reaches a public end far beyond the records. Uniform records in it would give quantiles
of the size of that end. Instead, with the share b(x) of records above x and t = -ln b, the logarithm of x is a line in
t^λ beyond the median: λ = 1 is a Pareto tail, and λ near 1/3 fits a lognormal one. Slope and λ (in POWERS) are fitted
to the edges of the bins before, weighted by their errors. The line begins at the lower edge of the bin.

The interval is the union, over all λ whose fit is at most width² worse than the best, of the estimates with `width`
standard errors. These contain the noise of b, and the deviation of the records from the model: a share b of N records
deviates by sqrt(b/N). The interval holds for tails of this form.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from dpscale.answers.statistics import (
    Estimate,
    Group,
    MissingStatistic,
    check_records,
    listed_queries,
    numeric_attribute,
    value_of,
)
from dpscale.answers.tables import Answered, check_level
from dpscale.base.display import safe_repr
from dpscale.base.errors import JobError
from dpscale.base.numerics import Floats, Integers, optimize
from dpscale.domain.attribute import Attribute
from dpscale.reconstruction.joint_intervals import half_width

WIDE = 4.0  # ratio of the ends of a bin
FROM = 0.5  # largest share of the records above an edge that is fitted
# edges to which a tail is fitted: with fewer there is no fit; of more, some at even distances are taken
LEAST_EDGES, MOST_EDGES = 3, 64
POWERS = np.linspace(0.3, 1.0, 15)  # λ that are tried, from about that of a lognormal tail to that of a Pareto tail
MODEL_ERROR = 0.01  # of t at every edge


def is_wide(edges: Floats, cell: int) -> bool:
    """Return whether the ends of a bin above 0 differ by more than the ratio WIDE."""
    return bool(0 < WIDE * edges[cell] < edges[cell + 1])


def tail_quantile(edges: Floats, above: Floats, error: float, records: float, wanted: float, width: float) -> Floats:
    """Return the value above which a share of the records lies, and the ends of its interval; nan without a tail.

    Parameters
    ----------
    edges, above : ndarray, shape (m,)
        Edges of bins, ascending, the last one that of the quantile's bin; shares of the records above them.
    error : float
        Standard error of these shares.
    records : float
        Number of records.
    wanted : float
        Share of the records, above 0 and at most the last one of `above`.
    width : float
        Standard errors of the interval.

    With x the logarithms of the edges and t = −log of the shares above them, x is fitted by a line in t^λ for each
    power λ, and read at the wanted share. All powers that fit about as well as the best one are in the interval.
    """
    if len(edges) < LEAST_EDGES or wanted <= 0:
        return np.full(3, np.nan)

    x, t = np.log(edges), -np.log(above)
    errors = np.sqrt((error / above) ** 2 + 1 / (records * above) + MODEL_ERROR**2)
    # of t at the wanted share: of the last edge, and of the few records between both
    beyond = np.sqrt((error / above[-1]) ** 2 + max(1 / wanted - 1 / above[-1], 0) / records)
    fits = np.array([_line(x, t, float(beyond), errors, power, -np.log(wanted)) for power in POWERS])
    misfit, estimate, deviation = fits.T
    best = int(misfit.argmin())
    likely = misfit <= misfit[best] + width**2
    low, high = estimate - width * deviation, estimate + width * deviation

    return np.exp(np.array([estimate[best], low[likely].min(), high[likely].max()]))


def _line(
    x: Floats, t: Floats, error: float, errors: Floats, power: float, wanted: float
) -> tuple[float, float, float]:
    """Return the weighted misfit of a line in t^power, its value beyond the last edge, and the standard error.

    `x` are logarithms of edges, `t` those of the shares above them with the opposite sign, and `errors` the standard
    errors of `t`. `wanted` is the t at which the line is read, and `error` the standard error of it. `local` is the
    slope of x in t, by which a distance in x becomes one in t.
    """
    # weighted least squares of x on t^power
    scaled, weights = t**power, 1 / errors**2
    centred = scaled - np.average(scaled, weights=weights)
    precision = float(weights @ centred**2)
    slope = float(weights * centred @ x) / precision
    rest = x - np.average(x, weights=weights) - slope * centred
    reach = wanted**power - scaled[-1]
    local = slope * power * t ** (power - 1)
    misfit = float(weights @ (rest / np.maximum(np.abs(local), 1e-9)) ** 2)
    of_slope = np.sqrt(weights @ (centred * local) ** 2) / precision

    return (
        misfit,
        x[-1] + slope * reach,
        float(np.hypot(of_slope * reach, slope * power * wanted ** (power - 1) * error)),
    )


ALL_CELLS = 1 << 12  # up to this size, the error of every cell is computed: as many queries, over as many cells
SAMPLED = 33  # cells of wider attributes
MOST_CACHED = 64  # groups of a release whose cumulative counts stay in memory
MOST_WIDTH = 2.0  # of the interval of a quantile in a tail, in values


class WideInterval(MissingStatistic):
    """A quantile of which nothing is known but that it lies in a wide bin."""


@dataclass(frozen=True)
class CumulativeCounts:
    """Estimated cumulative counts of the listed cells of an attribute, and the moments of their errors.

    Attributes
    ----------
    attribute : Attribute
    counts : ndarray, shape (listed,)
        Unbiased estimates of C(x).
    monotone : ndarray, shape (listed,)
        Their isotonic regression.
    places : ndarray of int64
        Cells at which the moments are known.
    moments : ndarray, shape (3, places)
        Var C(x), Cov(C(x), N) and Var N.
    """

    attribute: Attribute
    counts: Floats
    monotone: Floats
    places: Integers
    moments: Floats

    def errors(self, q: float) -> Floats:
        """Return standard errors of G(x) for every listed cell x.

        Where they are known at evenly spaced cells only, the largest of the four nearest is used.
        """
        variance, covariance, variance_of_total = self.moments
        known = np.sqrt(np.maximum(variance - 2 * q * covariance + q**2 * variance_of_total, 0.0))
        n = len(self.counts)
        if len(known) == n:
            return np.asarray(known)

        # the first and last value repeated, so that a window of four has two known cells on each side of an interval
        padded = np.concatenate([known[:1], known, known[-1:]])
        nearby = np.lib.stride_tricks.sliding_window_view(padded, 4).max(axis=1)
        interval = np.searchsorted(self.places, np.arange(n), side="right") - 1
        return np.asarray(nearby[np.minimum(interval, len(known) - 2)])

    def quantile(self, q: float, width: float) -> Estimate:
        """Return a quantile with its interval; `width` is in standard errors.

        `values` are the cumulative counts minus q times the total, with `errors`: the quantile is in the cell where
        they change sign. `_possible` are the first and last cell in which this may be; `_in_tail` replaces the result
        in a wide bin of a tail by a model.
        """
        values, errors = self.counts - q * self.counts[-1], self.errors(q)
        cell, within = _place(self.monotone, q)
        estimate = value_of(self.attribute, cell, within)
        if not np.isfinite(errors).all():
            return self._in_tail(q, cell, math.nan, width) or Estimate.around(estimate, math.nan)

        first, last = _possible(values, width * errors, cell)
        result = Estimate(estimate, value_of(self.attribute, first, 0.0), value_of(self.attribute, last, 1.0))
        return self._in_tail(q, cell, float(errors.max()), width, result) or result  # None: not in a tail

    def _in_tail(
        self, q: float, cell: int, error: float, width: float, from_bins: Estimate | None = None
    ) -> Estimate | None:
        """Return the quantile by the model of a tail if its bin, or its interval from whole bins, is wide, else None.

        `share` has the cumulative shares at the edges, `above` the shares beyond them. FROM is the largest share that
        counts as a tail.

        `cell` is the bin of the quantile, `error` the standard error of the number of records up to it, and `width` the
        number of standard errors of the interval. `from_bins` is the estimate from whole bins.

        Raises
        ------
        WideInterval
            If the interval is wider than MOST_WIDTH times the value.
        """
        if self.attribute.kind != "bins" or self.counts[-1] <= 0:
            return None

        edges, share = np.asarray(self.attribute.edges), np.concatenate([[0.0], self.monotone / self.monotone[-1]])
        upper, records = edges[cell] > 0, float(self.counts[-1])
        if not upper:  # a lower tail is the upper one of the mirrored attribute
            edges, share, cell, q = -edges[::-1], 1 - share[::-1], len(self.counts) - 1 - cell, 1 - q
        above, error = np.clip(1 - share, 0, 1), error / records
        wide = from_bins is not None and from_bins.high - from_bins.low > MOST_WIDTH * abs(from_bins.estimate)
        # a wide bin beyond which no records are distinguished from none
        at_end = is_wide(edges, cell) and not above[cell + 1] > width * error
        # not in the tail of positive values, or neither the interval nor the bin is wide
        if edges[cell] <= 0 or above[cell] > FROM or not (wide or at_end):
            return None

        # the edges to which the tail of a bin is fitted, the last one that of the bin
        usable = np.flatnonzero((above[: cell + 1] <= FROM) & (above[: cell + 1] > 0) & (edges[: cell + 1] > 0))
        places = np.linspace(0, len(usable) - 1, min(len(usable), MOST_EDGES)).astype(np.int64)
        chosen = np.asarray(usable[places])
        # an unknown error gives an estimate without an interval
        noise = 0.0 if math.isnan(error) else error
        value, low, high = np.minimum(
            tail_quantile(edges[chosen], above[chosen], noise, records, 1 - q, width), edges[-1]
        )
        if not high - low <= MOST_WIDTH * value:
            raise WideInterval("quantile", f"{self.attribute.name}: its interval is wider than twice its value",
                               "a quantile that more bins or more records determine",
                               "use a less extreme one, or increase the budget")  # fmt: skip

        if math.isnan(error):
            low = high = math.nan
        return (
            # a lower tail is mirrored back, which exchanges the ends
            Estimate(float(value), float(low), float(high)) if upper else Estimate(*map(float, (-value, -high, -low)))
        )


_cached: WeakKeyDictionary[Answered, dict[tuple[str, Group], CumulativeCounts]] = WeakKeyDictionary()


def cumulative_counts(answered: Answered, name: str, group: Group = ()) -> CumulativeCounts:
    """Return the cumulative counts of an attribute in a group, of the last groups from the cache of the release.

    At most MOST_CACHED groups are cached, of which the oldest is dropped first. A group is a tuple of (attribute,
    cell).
    """
    of_release = _cached.setdefault(answered, {})
    if (name, group) not in of_release:
        while len(of_release) >= MOST_CACHED:
            of_release.pop(next(iter(of_release)))
        of_release[name, group] = _computed(answered, name, group)
    return of_release[name, group]


def _computed(answered: Answered, name: str, group: Group) -> CumulativeCounts:
    """Return the cumulative counts of a group over the cells of a numeric attribute, made monotone, with their moments.

    On many cells moments are computed at SAMPLED places only.
    """
    attribute = numeric_attribute(answered, name)
    n = attribute.listed
    places = np.arange(n) if n <= ALL_CELLS else np.linspace(0, n - 1, SAMPLED).astype(np.int64)
    counts, moments = _counts_and_moments(answered, attribute, places, group)
    if n > ALL_CELLS:
        names, cells = [name for name, _ in group], tuple(cell for _, cell in group)
        counts = np.cumsum(answered.estimates.marginal((*names, attribute.name))[cells][:n])
    return CumulativeCounts(
        attribute=attribute,
        counts=counts,
        monotone=optimize.isotonic_regression(counts).x,
        places=places,
        moments=moments,
    )


def _counts_and_moments(
    answered: Answered, attribute: Attribute, places: Integers, group: Group
) -> tuple[Floats, Floats]:
    """Return C(x), and Var C(x), Cov(C(x), N) and Var N, at some cells x.

    All queries are one set, so that the same measurements answer them (`plans.accuracy_base`).

    `places` are the cells x, of which the last one is the last cell. `up_to` has a row of ones up to each x, so
    `up_to + 1` asks C(x) + N, and Cov(C, N) = (Var(C + N) − Var C − Var N)/2.
    """
    up_to = (np.arange(attribute.listed) <= places[:, None]).astype(np.float64)
    estimates, errors = listed_queries(answered, attribute, np.concatenate([up_to, up_to + 1]), group)
    variances, of_sums = np.split(errors**2, 2)
    total = variances[-1]  # the last place is the last cell
    moments = [variances, (of_sums - variances - total) / 2, np.full_like(variances, total)]
    return estimates[: len(places)], np.stack(moments)


def quantile(answered: Answered, name: str, q: float, level: float, group: Group = ()) -> Estimate:
    """Return the q-quantile: the smallest value x such that at least a share q of the records is at most x.

    `group` contains attributes with a cell each; only records in these cells count. Raises TooFewRecords if their
    number is not distinguishable from zero.
    """
    if isinstance(q, bool) or not isinstance(q, int | float) or not 0 <= q <= 1:
        raise JobError("quantile", safe_repr(q), "a number between 0 and 1", "0.5 is the median")

    check_level(level)
    counts = cumulative_counts(answered, name, group)
    width = half_width(level, answered.estimates.noise)
    check_records("quantile", name, counts.counts[-1], width * math.sqrt(counts.moments[2, 0]), group)
    return counts.quantile(q, width)


def _place(cumulative: Floats, q: float) -> tuple[int, float]:
    """Return the cell of a quantile in increasing cumulative counts, and the relative position inside it.

    A cell without records has the position 1/2.
    """
    wanted = q * cumulative[-1]
    cell = min(int(np.searchsorted(cumulative, wanted, side="left")), len(cumulative) - 1)
    before = cumulative[cell - 1] if cell else min(0.0, wanted)
    step = cumulative[cell] - before
    return cell, float(np.clip((wanted - before) / step, 0, 1)) if step > 0 else 0.5


def _possible(values: Floats, half: Floats, cell: int) -> tuple[int, int]:
    """Return the first and the last cell that may contain the quantile, including that of the estimate."""
    # neither significantly negative at the cell, nor significantly positive at the cell before (see the module)
    not_negative, before_not_positive = values + half >= 0, np.concatenate([[True], (values - half <= 0)[:-1]])
    cells = np.flatnonzero(not_negative & before_not_positive)
    return int(min(cells.min(initial=cell), cell)), int(max(cells.max(initial=cell), cell))
