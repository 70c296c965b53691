"""Search for the ends of a number's range (kind "ends"): a noisy histogram of the column, and a choice from it.

For a range L … H, the mean of a group of n records has noise of standard deviation e/n · sqrt(h² + o²), where h is half
of the range, o the distance of the mean from the centre, and 1/e² the precision of the count and of the centred sum in
units of h. Its bias is the clipped part: E max(v - H, 0) above and E max(L - v, 0) below. Upper limits a and b of both
follow from the histogram and its noise. They hold with about 95 % each for a column whose octaves beyond the last one
seen fall by at least `MOST_RATIO`. A group may be clipped more than the column: the interval of its mean has GROUP
times a and b. The range has the least root of (WIDTH · noise)² + (BIAS · (a + b))² among the ranges that clip at most
MOST_CLIPPED of the records. Nothing is known about single groups, so the rule takes the quantiles of a lognormal
distribution as their sizes. Of a total, n is the number of all records: it has a larger range than means of groups.

Nothing seen is not taken for nothing there: if no bin beside 0 is significant, there is no range.

Values and ends are whole multiples of the number's step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np

from dpscale.base.errors import DomainError
from dpscale.base.numerics import Flags, Floats, Integers, special
from dpscale.discovery.dyadic_tree import DyadicBins, Histogram, dyadic_bins, estimate_histogram
from dpscale.discovery.value_counts import search_draw
from dpscale.domain import MOST_PARTS, Number
from dpscale.domain.attribute import EXACT
from dpscale.domain.number import read_numbers
from dpscale.domain.search import PRIVATE, EndSearch
from dpscale.privacy.accounting import Cost
from dpscale.privacy.draws import GaussianDraw
from dpscale.privacy.secret import SecretFile
from dpscale.privacy.streams import open_stream

# log-spread of the assumed sizes of groups; number of sizes; least size, in records, that the choice considers
SIZE_SPREAD, SIZE_POINTS, LEAST_SIZE = 1.5, 15, 50
REACH = 1.3  # of ranges beyond the bins with records
MOST_CLIPPED = 0.5  # share of the records that a range clips, unless every range clips more
LARGEST = (1 << 63) - 1  # largest integer of 64 bits, the limit of an end by default
WIDTH = 1.645  # standard deviations of one-sided limits, and of the noise in the expected half width
BIAS, BIAS_OF_TOTAL = 1.5, 0.5  # weights of the clipped part in the choice of a range
GROUP = 1.25  # clipped part of the mean of a group, in clipped parts of that of the column


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
        Number of records with a value.
    clipped_limit, below_limit, above_limit : float
        Upper limits of `clipped`, `below` and `above`.
    """

    low: int
    high: int
    clipped: float
    below: float
    above: float
    mean: float
    records: float
    clipped_limit: float
    below_limit: float
    above_limit: float


@dataclass(frozen=True, eq=False)
class Column:
    """Estimated distribution of a column over the parts of bins.

    Attributes
    ----------
    bins : DyadicBins
    values : ndarray of float64, shape (parts,)
        Middles of the parts, clipped to the public ends.
    records : float
    shares, limits : ndarray of float64, shape (parts,)
        Estimated shares of the records, and those with tails from an upper limit.
    doubtful : ndarray of bool, shape (bins,)
        Bins whose noise enters limits.
    error : float
        Standard deviation of the count of a bin, as a share of the records.
    """

    bins: DyadicBins
    values: Floats
    records: float
    shares: Floats
    limits: Floats
    doubtful: Flags
    error: float

    @classmethod
    def of(cls, bins: DyadicBins, found: Histogram, error: float, low: int | None, high: int | None) -> Column:
        """Return the column of an estimated histogram.

        `bins` are the dyadic bins of the measurement; `low` and `high` are public ends, to which values are clipped.
        Shares and upper limits are counts divided by the estimated number of records.
        """
        records = max(float(found.counts.sum()), 1.0)
        values = bins.middle if low is None and high is None else np.clip(bins.middle, low, high)
        shares, limits = (bins.divided(counts) / records for counts in (found.counts, found.limits))
        return cls(bins, values, records, shares, limits, found.doubtful, error / records)

    def expected(self, parts: Floats) -> tuple[Floats, Floats]:
        """Return means over the records of statistics of the parts, shape (m, parts), and their upper limits.

        Parts of a bin share its noise, so their mean has its error. The upper limit adds WIDTH standard errors of the
        bins in `doubtful`.
        """
        mean_of_bin = np.add.reduceat(parts, np.flatnonzero(np.diff(self.bins.bin_of, prepend=-1)), axis=1)
        mean_of_bin /= np.bincount(self.bins.bin_of)
        noise = self.error * np.sqrt(mean_of_bin**2 @ self.doubtful)
        return parts @ self.shares, np.maximum(parts @ self.limits, 0) + WIDTH * noise


@dataclass(frozen=True, eq=False)
class Ranges:
    """Candidate ranges: (lows[i[r]], highs[j[r]]) for each r; `i` and `j` have one entry for each range."""

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

    def tails(self, column: Column) -> tuple[Floats, Floats]:
        """Return E max(v − H, 0) and E max(L − v, 0) of each range, each with its upper limit, shape (2, ranges)."""
        above = column.expected(np.maximum(column.values - self.highs.astype(float)[:, None], 0))
        below = column.expected(np.maximum(self.lows.astype(float)[:, None] - column.values, 0))
        return np.array(above)[:, self.j], np.array(below)[:, self.i]

    def clipped(self, column: Column) -> Floats:
        """Return the share of the records beyond each range, and its upper limit, shape (2, ranges)."""
        above = column.expected((column.values > self.highs.astype(float)[:, None]).astype(float))
        below = column.expected((column.values < self.lows.astype(float)[:, None]).astype(float))
        return np.asarray(np.minimum(np.array(above)[:, self.j] + np.array(below)[:, self.i], 1))


def choose_ends(
    noisy: Floats,
    error: float,
    groups: int,
    precision: float,
    low: int | None = None,
    high: int | None = None,
    limit: int = LARGEST,
) -> ChosenEnds | None:
    """Return the range with the least expected half width of the intervals of means; None if no values are seen.

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
    # values are clipped to public ends, so bins beyond them have noise only
    inside = np.ones(len(noisy), bool)
    inside &= True if low is None else bins.last >= low
    inside &= True if high is None else bins.first <= high
    found = estimate_histogram(np.where(inside, noisy, 0.0), error, WIDTH)
    if not found.found.any():
        return None

    column = Column.of(bins, found, error, low, high)
    ranges = _ranges(bins, found.counts > 0, low, high, limit)
    above, below = ranges.tails(column)
    clipped = ranges.clipped(column)
    costs = _costs(column, ranges, above, below, groups, precision)
    # the first rows of `above`, `below` and `clipped` are estimates, the second ones their upper limits;
    # a range that clips more than MOST_CLIPPED of the records is chosen only if every range does
    best = int(np.where(clipped[0] <= max(MOST_CLIPPED, clipped[0].min()), costs, np.inf).argmin())
    mean = float(column.shares @ column.values - above[0, best] + below[0, best])

    return ChosenEnds(
        low=int(ranges.lows[ranges.i[best]]),
        high=int(ranges.highs[ranges.j[best]]),
        clipped=float(clipped[0, best]),
        below=float(below[0, best]),
        above=float(above[0, best]),
        mean=mean,
        records=column.records,
        clipped_limit=float(clipped[1, best]),
        below_limit=float(below[1, best]),
        above_limit=float(above[1, best]),
    )


def _ranges(bins: DyadicBins, seen: Flags, low: int | None, high: int | None, limit: int) -> Ranges:
    """Return all pairs of possible ends within the bins with records and a factor of REACH beyond them.

    A stated end (`low` or `high`) is the only possible one. If no possible end lies there, because all records are
    beyond the largest ends, the widest range is returned. `seen` marks the bins with records, and `limit` is the
    largest absolute value of an end.
    """
    with_records = np.flatnonzero(seen)
    least, most = float(bins.first[with_records[0]]) - 1, float(bins.last[with_records[-1]]) + 1
    # away from the records on both sides: towards 0 is a division
    least, most = least * REACH if least < 0 else least / REACH, most * REACH if most > 0 else most / REACH
    inside = bins.ends[(bins.ends >= max(least, -limit)) & (bins.ends <= min(most, limit))]
    lows = inside if low is None else np.array([low], np.int64)
    highs = inside if high is None else np.array([high], np.int64)
    i, j = np.nonzero(lows[:, None] < highs[None, :])
    if not len(i):  # all records lie beyond the largest ends
        widest = (-limit if low is None else low), (limit if high is None else high)
        return Ranges(
            np.array([widest[0]]), np.array([max(widest[1], widest[0] + 1)]), np.zeros(1, int), np.zeros(1, int)
        )
    return Ranges(lows, highs, i, j)


def _costs(column: Column, ranges: Ranges, above: Floats, below: Floats, groups: int, precision: float) -> Floats:
    """Return a cost of each range: the root of squared noise and squared bias, averaged over sizes of groups.

    `above` and `below` are the mean parts that a range clips at its ends, and their upper limits. `offset` is o of the
    module, the mean of the clipped values minus the centre of the range.
    """
    # WIDTH standard errors of a count
    noise = WIDTH / np.sqrt(precision)
    offset = column.shares @ column.values - above[0] + below[0] - ranges.centre
    sizes = np.maximum(_sizes(column.records, groups), 2 / np.sqrt(precision))  # no smaller count divides a sum
    bias = (BIAS_OF_TOTAL if groups == 1 else BIAS) * (above[1] + below[1])
    return np.asarray(np.hypot(noise / sizes[:, None] * np.hypot(ranges.half, offset), bias).mean(axis=0))


def _sizes(records: float, groups: int) -> Floats:
    """Return quantiles of the sizes of groups; only sizes of at least LEAST_SIZE, or else the largest one.

    Sizes of groups are assumed to be log-normal with the spread SIZE_SPREAD; the quantiles are at the middles of equal
    parts.
    """
    if groups == 1:
        return np.array([records])
    quantiles = np.exp(SIZE_SPREAD * special.ndtri((np.arange(SIZE_POINTS) + 0.5) / SIZE_POINTS))
    sizes = np.asarray(quantiles / quantiles.mean() * records / max(groups, 1))
    large = sizes[sizes >= LEAST_SIZE]
    return large if len(large) else sizes[-1:]


LARGEST_RATIO = 10**40  # ratio of steps


@dataclass(frozen=True)
class EndPlan:
    """Measurement of a histogram of dyadic bins.

    Attributes
    ----------
    number : Number
    draw : GaussianDraw
    groups : int
        Largest number of groups by which the number is summed.
    precision : float
        1/variance of a group's count, and of its centred sum in units of half the range.
    """

    number: Number
    draw: GaussianDraw
    groups: int
    precision: float

    @property
    def cost(self) -> Cost:
        return Cost(gaussian=self.draw.cost)

    @property
    def search(self) -> EndSearch:
        assert isinstance(self.number.search, EndSearch)
        return self.number.search

    @property
    def record(self) -> dict[str, Any]:
        """Everything that determines the draws, in text and integers."""
        return {"search": "ends", "version": 2, "attribute": self.number.name, "column": self.number.column,
                "low": str(self.search.low), "high": str(self.search.high), "step": str(self.number.unit),
                "multiplier": str(self.draw.multiplier), **self.draw.noise_spec}  # fmt: skip


def plan_ends(number: Number, share: Fraction, remaining: Fraction, groups: int, rows_per_unit: int) -> EndPlan:
    """Return the measurement of a search for ends.

    Parameters
    ----------
    number : Number
        With an EndSearch.
    share, remaining : Fraction
        Squared mu of the search, and of the release after it.
    groups : int
        Largest number of groups by which the number is summed.
    rows_per_unit : int
    """
    draw = search_draw(share, rows_per_unit, f"the range of {number.name}")
    return EndPlan(number=number, draw=draw, groups=groups, precision=float(remaining) / 2 / rows_per_unit**2)


def measure_ends(plan: EndPlan, counts: Integers, secret: SecretFile, head: Mapping[str, Any]) -> ChosenEnds | None:
    """Return the range chosen from exact counts of the dyadic bins after noise is added; None if no values are seen.

    `head` begins the label of the draw. `limit` bounds the ends so that floats represent them exactly.
    """
    stream = open_stream(secret.read(), "noise", {**head, **plan.record})
    noisy = (plan.draw.multiplier * counts + plan.draw.words(stream, len(counts))) / plan.draw.multiplier
    error = plan.draw.lattice_variance**0.5
    limit = int(EXACT / 2 / max(plan.number.unit, Fraction(1)))  # ends of a domain file are exact as floats
    return choose_ends(np.asarray(noisy), error, plan.groups, plan.precision, plan.search.low, plan.search.high, limit)


def found_ends(plan: EndPlan, ends: ChosenEnds | None) -> tuple[Number, dict[str, Any]]:
    """Return the number with the range that was found, and the released record.

    Raises
    ------
    DomainError
        If no values were seen, and the domain states no fallback.
    """
    number, fallback = plan.number, plan.search.fallback
    if ends is None and fallback is None:
        end = plan.search.searched[-1]
        raise DomainError(
            f"numbers.{number.name}.{end}",
            f'"{PRIVATE}", but no values beside 0 are seen in the noise of the search',
            "a public number, or a fallback that is used in this case",
            "state one of them, or increase budget.discover. The rest of the budget is not charged",
        )

    if ends is None:
        assert fallback is not None
        closed = _closed(plan, *fallback)
        return closed, {"ends": list(closed.ends), "fallback": True, "clipped": None, "records": None,
                        "step": float(closed.unit)}  # fmt: skip

    closed, step = _closed(plan, ends.low, ends.high), float(number.unit)
    limits = (GROUP * ends.below_limit * step, GROUP * ends.above_limit * step)
    return replace(closed, clipped=limits), {
        "ends": list(closed.ends), "clipped": ends.clipped, "clipped_limit": ends.clipped_limit,
        "below": ends.below * step, "below_limit": ends.below_limit * step,
        "above": ends.above * step, "above_limit": ends.above_limit * step,
        "clipped_mean": ends.mean * step, "records": ends.records, "step": float(closed.unit)}  # fmt: skip


def _closed(plan: EndPlan, least: int, largest: int) -> Number:
    """Return the number with ends that a domain file can state, and few enough steps for exact sums.

    The step is the own one of the number, or 10 times larger, or 100, …, as far as public ends are multiples of it.
    With the last of these steps, a private end that is too far from the public one is nearer to it.

    `most` is the largest number of steps between the ends for which sums are exact. Ends are rounded outwards.
    """
    number, search = plan.number, plan.search
    most = (math.isqrt(MOST_PARTS) if number.squares else MOST_PARTS) // 4  # rounder ends may be further apart
    factor, last = 1, False
    public_ends = [end for end in (search.low, search.high) if end is not None]

    while not last:
        last = factor >= LARGEST_RATIO or any(end % (10 * factor) for end in public_ends)
        low, high = least // factor, -(-largest // factor)
        if high - low > most - 2 and last:
            low, high = (high - most, high) if search.high is not None else (low, low + most)
        if high - low <= most:
            closed = replace(number, low=low, high=high, unit=number.unit * factor, search=None)
            if (found := _readable(closed, search)) is not None:
                return found
        factor *= 10

    raise DomainError(
        f"numbers.{number.name}", "a range that no domain file can state", "a step of fewer digits", "change the step"
    )


def _readable(number: Number, search: EndSearch) -> Number | None:
    """Return the number with private ends at rounder numbers, which the floats of a domain file state exactly.

    Ends are tried at multiples of 10^k from the public end, or from 0, until the domain file gives the same number
    again; None if it never does.
    """
    public = 0
    if search.low is not None or search.high is not None:
        public = number.low if search.low is not None else number.high
    # a low end is rounded down, and a high end up
    for scale, origin in product([10**digits for digits in range(20)], dict.fromkeys((public, 0))):
        low = number.low if search.low is not None else origin + (number.low - origin) // scale * scale
        high = number.high if search.high is not None else origin - (origin - number.high) // scale * scale
        rounder = replace(number, low=low, high=high)
        with suppress(DomainError):
            if read_numbers({number.name: rounder.describe()}) == [rounder]:
                return rounder
    return None
