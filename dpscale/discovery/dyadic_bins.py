"""Histogram of a column on a signed axis of dyadic bins, and its estimate from noisy counts.

The bins are 0 alone, and the integers between 2^(k/4) rounded up, mirrored below 0, up to 2^63. A record lies in one
bin, so the histogram has sensitivity 1. Nearly all of the 495 bins are empty, and their noise must not matter:

1. Windows of 1, 2, 4, … bins are significant if their sum exceeds FAR standard deviations, or NEAR standard deviations
   within four octaves of significant ones. The support is extended while the next bins exceed BESIDE deviations.
2. Counts are 0 outside the support, and projected to at least 0 with the same total inside it.
3. Beyond the support the counts continue the fall from the last octave but one to the last, at most by MOST_RATIO for
   each octave, corrected by the count that was measured there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from dpscale.base.numerics import Flags, Floats, Integers

PER_OCTAVE, BITS = 4, 63
FAR, NEAR, BESIDE = 6.0, 4.0, 2.5  # standard deviations
WINDOWS = (1, 2, 4, 8, 16)
MOST_RATIO, TAIL_OCTAVES, LEAST_TAIL = 0.35, 4, 3  # a support of fewer octaves has no tail
FRACTION_BITS = 52


@dataclass(frozen=True, eq=False)
class DyadicBins:
    """Bins of the signed axis, ascending.

    Attributes
    ----------
    first, last : ndarray of int64, shape (bins,)
        Integers of each bin, both included.
    ends : ndarray of int64
        Integers at which values may be clipped, ascending.
    """

    first: Integers
    last: Integers
    ends: Integers

    @property
    def middle(self) -> Floats:
        return (self.first.astype(float) + self.last.astype(float)) / 2


@cache
def dyadic_bins() -> DyadicBins:
    """Return the bins. They are computed with integers, so they are the same everywhere."""
    scales = [int(2.0 ** (part / PER_OCTAVE) * (1 << FRACTION_BITS)) for part in range(PER_OCTAVE)]
    edges = {-(-(scale << whole) // (1 << FRACTION_BITS)) if part else 1 << whole
             for whole in range(BITS) for part, scale in enumerate(scales)}  # fmt: skip
    edge = sorted(edges | {1 << BITS})
    first, last = edge[:-1], [one - 1 for one in edge[1:]]
    below = [-one for one in reversed(last)]
    below[0] = -(1 << BITS)  # the only integer without a mirror image
    top = (1 << BITS) - 1
    ends = [-one for one in (top, *reversed(first))] + [0, *first, top]
    return DyadicBins(np.array([*below, 0, *first], np.int64),
                      np.array([*(-one for one in reversed(first)), 0, *last], np.int64),
                      np.array(ends, np.int64))  # fmt: skip


def estimate_histogram(noisy: Floats, error: float) -> tuple[Floats, Flags]:
    """Return the estimated counts of the bins, and which of them are significant.

    Parameters
    ----------
    noisy : ndarray of float64, shape (bins,)
    error : float
        Standard deviation of each noisy count.
    """
    found = significant_bins(noisy, error)
    counts = np.zeros(len(noisy))
    if found.any():
        counts[found] = _with_same_total(noisy[found])
        for step in (1, -1):
            _add_tail(counts[::step], noisy[::step], found[::step], error)
    return counts, found


def significant_bins(noisy: Floats, error: float) -> Flags:
    """Return the bins that certainly have records."""
    found = np.zeros(len(noisy), bool)
    _accept_windows(noisy, error, FAR, found)
    if found.any():
        _accept_windows(noisy, error, NEAR, found)
        for step in (1, -1):
            _extend(noisy[::step], error, found[::step])
    return found


def _accept_windows(noisy: Floats, error: float, limit: float, found: Flags) -> None:
    """Mark windows that exceed a limit, the most significant first; nearby ones only, once some are marked."""
    nearby = np.convolve(found, np.ones(8 * PER_OCTAVE + 1), "same") > 0 if found.any() else np.ones(len(found), bool)
    for width in WINDOWS:
        ones = np.ones(width)
        free = np.convolve(~found & nearby, ones, "valid") > width - 0.5
        score = np.where(free, np.convolve(noisy, ones, "valid") / (error * np.sqrt(width)), -np.inf)
        while score.max() > limit:
            at = int(score.argmax())
            found[at : at + width] = True
            score[max(0, at - width + 1) : at + width] = -np.inf


def _extend(noisy: Floats, error: float, found: Flags) -> None:
    """Mark the next bin, half octave or octave beyond the marked ones while it is significant."""
    at = int(np.flatnonzero(found).max()) + 1
    while at < len(noisy):
        widths = (1, PER_OCTAVE // 2, PER_OCTAVE)
        wide = next((one for one in widths if noisy[at : at + one].sum() > BESIDE * error * np.sqrt(one)), 0)
        if not wide:
            return
        found[at : at + wide] = True
        at += wide


def _with_same_total(counts: Floats) -> Floats:
    """Return the nearest counts of at least 0 with the same total."""
    total, descending = max(counts.sum(), 1.0), np.sort(counts)[::-1]
    shifts = (np.cumsum(descending) - total) / np.arange(1, len(descending) + 1)
    return np.maximum(counts - shifts[np.flatnonzero(descending > shifts).max()], 0)


def _add_tail(counts: Floats, noisy: Floats, found: Flags, error: float) -> None:
    """Add a geometric tail beyond the last significant bin."""
    top, zero, octave = int(np.flatnonzero(found).max()), len(noisy) // 2, PER_OCTAVE
    if top - zero < LEAST_TAIL * octave:
        return
    last, before = counts[top + 1 - octave : top + 1].sum(), counts[top + 1 - 2 * octave : top + 1 - octave].sum()
    guess = last * min(last / max(before, last, 1.0), MOST_RATIO)
    measured = noisy[top + 1 : top + 1 + octave].sum()
    trust = guess**2 / (guess**2 + octave * error**2)
    amount = min(max(guess + trust * (measured - guess), 0), 2 * guess)
    if amount <= 0:
        return
    ratio = min(amount / max(last, 1e-9), MOST_RATIO)
    room = counts[top + 1 : top + 1 + TAIL_OCTAVES * octave]
    fall = ratio ** (np.arange(1, len(room) + 1) / octave)
    if len(fall):
        room[:] = fall * amount / fall[:octave].sum()
