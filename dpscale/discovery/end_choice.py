"""Choice of the range to which a number is clipped, from the estimated histogram of the column.

For a range L … H, the mean of a group of n records has noise of standard deviation e/n · sqrt(h² + o²), where h is half
of the range, o the distance of the mean from the centre, and 1/e² the precision of the count and of the centred sum in
units of h. Its bias is the clipped part: a = E max(v - H, 0) above and b = E max(L - v, 0) below. Nothing is known
about single groups, so the rule takes the column itself, stretched from its median by exp(±STRETCH) on each side, as
the distributions of five groups, and the quantiles of a lognormal distribution as their sizes. The range has the least
expected absolute error, the sum of E|bias + noise|, among the ranges that clip at most MOST_CLIPPED of the records.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpscale.base.numerics import Flags, Floats, Integers, special
from dpscale.discovery.dyadic_bins import DyadicBins, dyadic_bins, estimate_histogram

SIZE_SPREAD, SIZE_POINTS, LEAST_SIZE = 1.5, 15, 50
STRETCH = 0.25
MOST_CLIPPED = 0.5
LARGEST = (1 << 63) - 1
CANCEL = 0.5  # how far the biases of both sides are trusted to cancel within a group
SHAPES = ((0, 0), (1, 1), (-1, -1), (1, -1), (-1, 1))


@dataclass(frozen=True)
class ChosenEnds:
    """Range of a number, in steps, and estimates about the records beyond it.

    Attributes
    ----------
    low, high : int
    clipped : float
        Share of the records beyond the range.
    below, above : float
        Means of max(low - v, 0) and of max(v - high, 0) over all records.
    mean : float
        Mean of the clipped column.
    records : float
        Number of records with a value; 0 if none were found.
    """

    low: int
    high: int
    clipped: float
    below: float
    above: float
    mean: float
    records: float


@dataclass(frozen=True, eq=False)
class Column:
    """Estimated distribution of a column, clipped to its public ends.

    Attributes
    ----------
    values, shares : ndarray of float64, shape (bins,)
        Middles and shares of the bins with records.
    records : float
    low, high : int, optional
        Public ends.
    """

    values: Floats
    shares: Floats
    records: float
    low: int | None
    high: int | None

    def clip(self, values: Floats) -> Floats:
        """Return values clipped to the public ends."""
        if self.low is None and self.high is None:
            return values
        return np.clip(values, self.low, self.high)

    def stretched(self, up: int, down: int) -> Floats:
        """Return the values with the parts above and below the median stretched."""
        median = self.values[np.searchsorted(np.cumsum(self.shares), 0.5)]
        factor = np.where(self.values > median, np.exp(up * STRETCH), np.exp(down * STRETCH))
        return self.clip(median + factor * (self.values - median))


@dataclass(frozen=True, eq=False)
class Ranges:
    """Candidate ranges: pairs (lows[i], highs[j])."""

    lows: Integers
    highs: Integers
    i: Integers
    j: Integers

    @property
    def half(self) -> Floats:
        return (self.highs.astype(float)[self.j] - self.lows.astype(float)[self.i]) / 2

    @property
    def centre(self) -> Floats:
        return (self.highs.astype(float)[self.j] + self.lows.astype(float)[self.i]) / 2

    def tails(self, values: Floats, shares: Floats) -> tuple[Floats, Floats]:
        """Return the means of the parts above and below each range."""
        above = np.maximum(values - self.highs.astype(float)[:, None], 0) @ shares
        below = np.maximum(self.lows.astype(float)[:, None] - values, 0) @ shares
        return above[self.j], below[self.i]

    def clipped(self, values: Floats, shares: Floats) -> Floats:
        """Return the share of the records beyond each range."""
        above = (values > self.highs.astype(float)[:, None]) @ shares
        below = (values < self.lows.astype(float)[:, None]) @ shares
        return np.asarray(above[self.j] + below[self.i])


def choose_ends(
    noisy: Floats,
    error: float,
    groups: int,
    precision: float,
    low: int | None = None,
    high: int | None = None,
    limit: int = LARGEST,
) -> ChosenEnds:
    """Return the range with the least expected error of the means of groups.

    Parameters
    ----------
    noisy : ndarray of float64, shape (bins,)
        Noisy counts of `dyadic_bins`.
    error : float
        Standard deviation of each.
    groups : int
        Number of groups by which the number is summed.
    precision : float
        1/variance of the count of a group, and of its centred sum in units of half the range.
    low, high : int, optional
        Public ends.
    limit : int
        Largest absolute value of an end.
    """
    bins = dyadic_bins()
    counts, _ = estimate_histogram(noisy, error)
    used = np.flatnonzero(counts)
    if not len(used):
        return ChosenEnds(*_narrowest(low, high), 0.0, 0.0, 0.0, 0.0, 0.0)
    records = max(float(counts.sum()), 1.0)
    column = Column(np.empty(0), counts[used] / records, records, low, high)
    column = Column(column.clip(bins.middle[used]), column.shares, records, low, high)
    ranges = _ranges(bins, counts > 0, low, high, limit)
    if ranges is None:  # all records lie beyond a public end
        mean = float(column.shares @ column.values)
        return ChosenEnds(*_narrowest(low, high), 0.0, 0.0, 0.0, mean, records)
    beyond = ranges.clipped(column.values, column.shares)
    costs = np.where(beyond <= max(MOST_CLIPPED, beyond.min()), _costs(column, ranges, groups, precision), np.inf)
    best = int(costs.argmin())
    above, below = ranges.tails(column.values, column.shares)
    mean = float(column.shares @ column.values - above[best] + below[best])
    ends = int(ranges.lows[ranges.i[best]]), int(ranges.highs[ranges.j[best]])
    return ChosenEnds(*ends, float(beyond[best]), float(below[best]), float(above[best]), mean, records)


def _narrowest(low: int | None, high: int | None) -> tuple[int, int]:
    if low is None:
        low = 0 if high is None else high - 1
    return low, low + 1 if high is None else high


def _ranges(bins: DyadicBins, seen: Flags, low: int | None, high: int | None, limit: int) -> Ranges | None:
    """Return all ranges within the stretched support; None if there are none."""
    used, reach = np.flatnonzero(seen), np.exp(STRETCH)
    least, most = float(bins.first[used[0]]) - 1, float(bins.last[used[-1]]) + 1
    least, most = least * reach if least < 0 else least / reach, most * reach if most > 0 else most / reach
    inside = bins.ends[(bins.ends >= max(least, -limit)) & (bins.ends <= min(most, limit))]
    lows = inside if low is None else np.array([low], np.int64)
    highs = inside if high is None else np.array([high], np.int64)
    i, j = np.nonzero(lows[:, None] < highs[None, :])
    return Ranges(lows, highs, i, j) if len(i) else None


def _costs(column: Column, ranges: Ranges, groups: int, precision: float) -> Floats:
    """Return the expected absolute error of each range, summed over assumed shapes and sizes of groups."""
    costs, noise = np.zeros(len(ranges.i)), 1 / np.sqrt(precision)
    for up, down in SHAPES:
        values = column.stretched(up, down)
        above, below = ranges.tails(values, column.shares)
        offset = values @ column.shares - above + below - ranges.centre
        bias = np.sqrt(above**2 + below**2 - 2 * CANCEL * above * below) * np.where(above > below, -1, 1)
        for size in _sizes(column.records, groups):
            guarded = max(size, 2 * noise)  # the estimator divides by no smaller count
            error = noise / guarded * np.hypot(ranges.half, offset)
            costs += _mean_absolute(bias - offset * (1 - size / guarded), error)
    return costs


def _sizes(records: float, groups: int) -> Floats:
    """Return quantiles of the sizes of groups; only sizes of at least LEAST_SIZE, if there are any."""
    quantiles = np.exp(SIZE_SPREAD * special.ndtri((np.arange(SIZE_POINTS) + 0.5) / SIZE_POINTS))
    sizes = np.asarray(quantiles / quantiles.mean() * records / max(groups, 1))
    large = sizes[sizes >= LEAST_SIZE]
    return large if len(large) else sizes[-1:]


def _mean_absolute(bias: Floats, error: Floats) -> Floats:
    """Return E|bias + error · Z| of a standard normal Z."""
    ratio = bias / error
    return np.asarray(error * np.sqrt(2 / np.pi) * np.exp(-(ratio**2) / 2) + bias * special.erf(ratio / np.sqrt(2)))
