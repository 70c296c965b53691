"""Histogram of a column on a signed axis of dyadic bins, and its estimate from noisy counts.

The bins are 0 alone, and the integers from 2^k to 2^(k+1) - 1, mirrored below 0, up to 2^63. A record lies in one bin,
so the histogram has sensitivity 1. Most of the 127 bins are empty, and their noise must not matter:

1. Windows of 1, 2, 3 and 4 bins are significant if their sum exceeds FAR standard deviations, or NEAR standard
   deviations within four octaves of significant ones. The support is extended while the next bin exceeds BESIDE
   deviations. Zero does not count: a column of which nothing but zeros is seen has no visible range.
2. Counts are 0 outside the support, and projected to at least 0 with the same total inside it.
3. Beyond the support the counts continue the fall from the last octave but one to the last, at most by MOST_RATIO for
   each octave, corrected by the count that was measured there.

Ends of ranges are finer: each octave is divided into PARTS parts, with equal shares of its records.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from dpscale.base.numerics import Flags, Floats, Integers

PARTS, BITS = 4, 63
FAR, NEAR, BESIDE = 5.0, 3.5, 2.5  # standard deviations
WINDOWS = (1, 2, 3, 4)
NEARBY = 4  # octaves
MOST_RATIO, TAIL_OCTAVES, LEAST_TAIL = 0.35, 4, 3  # a support of fewer octaves has no tail
FRACTION_BITS = 52


@dataclass(frozen=True, eq=False)
class DyadicBins:
    """Bins of the signed axis, ascending, and parts of them.

    Attributes
    ----------
    first, last : ndarray of int64, shape (bins,)
        Integers of each bin, both included.
    part_first, part_last : ndarray of int64, shape (parts,)
        Integers of each part of a bin.
    ends : ndarray of int64
        Integers at which values may be clipped, ascending.
    """

    first: Integers
    last: Integers
    part_first: Integers
    part_last: Integers
    ends: Integers

    @property
    def middle(self) -> Floats:
        """Middles of the parts."""
        return (self.part_first.astype(float) + self.part_last.astype(float)) / 2

    @property
    def bin_of(self) -> Integers:
        """Bin of each part."""
        return np.asarray(np.searchsorted(self.first, self.part_first, "right") - 1)

    def divided(self, counts: Floats) -> Floats:
        """Return counts of the parts, which are equal within a bin."""
        return np.asarray((counts / np.bincount(self.bin_of))[self.bin_of])


@cache
def dyadic_bins() -> DyadicBins:
    """Return the bins. They are computed with integers, so they are the same everywhere."""
    scales = [int(2.0 ** (part / PARTS) * (1 << FRACTION_BITS)) for part in range(PARTS)]
    edges = {-(-(scale << whole) // (1 << FRACTION_BITS)) if part else 1 << whole
             for whole in range(BITS) for part, scale in enumerate(scales)}  # fmt: skip
    edge, top = sorted(edges | {1 << BITS}), (1 << BITS) - 1
    ends = [-end for end in (top, *reversed(edge[:-1]))] + [0, *edge[:-1], top]
    return DyadicBins(*_mirrored([1 << whole for whole in range(BITS + 1)]), *_mirrored(edge), np.array(ends, np.int64))


def _mirrored(edges: list[int]) -> tuple[Integers, Integers]:
    """Return first and last integers of the bins between edges above 0, of 0, and of their mirror images."""
    first, last = edges[:-1], [edge - 1 for edge in edges[1:]]
    below = [-integer for integer in reversed(last)]
    below[0] = -(1 << BITS)  # the only integer without a mirror image
    return (
        np.array([*below, 0, *first], np.int64),
        np.array([*(-integer for integer in reversed(first)), 0, *last], np.int64),
    )


@dataclass(frozen=True, eq=False)
class Histogram:
    """Estimated counts of the bins.

    Attributes
    ----------
    counts : ndarray of float64, shape (bins,)
        Estimates, with the tails beyond the support.
    found : ndarray of bool, shape (bins,)
        Significant bins.
    limits : ndarray of float64, shape (bins,)
        Estimates whose tails begin with an upper limit of the count beyond the support.
    doubtful : ndarray of bool, shape (bins,)
        Bins whose noise enters limits: those from the first to the last significant one, and one more at each side.
    """

    counts: Floats
    found: Flags
    limits: Floats
    doubtful: Flags


def estimate_histogram(noisy: Floats, error: float, width: float = 0.0) -> Histogram:
    """Return the estimated counts of the bins.

    Parameters
    ----------
    noisy : ndarray of float64, shape (bins,)
    error : float
        Standard deviation of each noisy count.
    width : float
        Standard deviations of the upper limits of counts.
    """
    found = significant_bins(noisy, error)
    counts, limits, doubtful = np.zeros(len(noisy)), np.zeros(len(noisy)), found.copy()
    if found.any():
        seen = found.copy()
        seen[len(noisy) // 2] = True  # zeros are counted, whether or not there are many
        counts[seen] = _with_same_total(noisy[seen])
        limits[:] = counts
        for step in (1, -1):
            _add_tail(counts[::step], noisy[::step], found[::step], error)
            _add_limits(limits[::step], counts[::step], found[::step], error, width)
        places = np.flatnonzero(found)
        doubtful[max(places[0] - 1, 0) : places[-1] + 2] = True

    return Histogram(counts, found, limits, doubtful)


def significant_bins(noisy: Floats, error: float) -> Flags:
    """Return the bins beside 0 that certainly have records."""
    found = np.zeros(len(noisy), bool)
    beside = noisy.copy()
    beside[len(noisy) // 2] = 0.0
    _accept_windows(beside, error, FAR, found)

    if found.any():
        _accept_windows(beside, error, NEAR, found)
        for step in (1, -1):
            _extend(beside[::step], error, found[::step])
    return found


def _accept_windows(noisy: Floats, error: float, limit: float, found: Flags) -> None:
    """Mark windows that exceed a limit, the most significant first; nearby ones only, once some are marked."""
    nearby = np.convolve(found, np.ones(2 * NEARBY + 1), "same") > 0 if found.any() else np.ones(len(found), bool)
    for width in WINDOWS:
        ones = np.ones(width)
        free = np.convolve(~found & nearby, ones, "valid") > width - 0.5
        score = np.where(free, np.convolve(noisy, ones, "valid") / (error * np.sqrt(width)), -np.inf)
        while score.max() > limit:
            at = int(score.argmax())
            found[at : at + width] = True
            score[max(0, at - width + 1) : at + width] = -np.inf


def _extend(noisy: Floats, error: float, found: Flags) -> None:
    """Mark the next bin beyond the marked ones while it is significant."""
    at = int(np.flatnonzero(found).max()) + 1
    while at < len(noisy) and noisy[at] > BESIDE * error:
        found[at] = True
        at += 1


def _with_same_total(counts: Floats) -> Floats:
    """Return the nearest counts of at least 0 with the same total."""
    total, descending = max(counts.sum(), 1.0), np.sort(counts)[::-1]
    shifts = (np.cumsum(descending) - total) / np.arange(1, len(descending) + 1)
    return np.maximum(counts - shifts[np.flatnonzero(descending > shifts).max()], 0)


def _add_tail(counts: Floats, noisy: Floats, found: Flags, error: float) -> None:
    """Add a geometric tail beyond the last significant bin."""
    top, zero = int(np.flatnonzero(found).max()), len(noisy) // 2
    if top - zero < LEAST_TAIL:
        return

    last, before = counts[top], counts[top - 1]
    guess = last * min(last / max(before, last, 1.0), MOST_RATIO)
    trust = guess**2 / (guess**2 + error**2)
    amount = min(max(guess + trust * (noisy[top + 1 : top + 2].sum() - guess), 0), 2 * guess)
    if amount <= 0:
        return

    ratio = min(amount / max(last, 1e-9), MOST_RATIO)
    room = counts[top + 1 : top + 1 + TAIL_OCTAVES]
    room[:] = amount * ratio ** np.arange(len(room))


def _add_limits(limits: Floats, counts: Floats, found: Flags, error: float, width: float) -> None:
    """Add the tail beyond the last significant bin that follows from an upper limit of the next count."""
    top, zero = int(np.flatnonzero(found).max()), len(limits) // 2
    if top < zero:
        return
    room = limits[top + 1 : top + 1 + TAIL_OCTAVES]
    room[:] = counts[top + 1 : top + 1 + TAIL_OCTAVES]
    room[1:] += width * error * MOST_RATIO ** np.arange(1, len(room))
