"""The exponential mechanism, exactly: P(i) ∝ exp(scale · score_i) for integer scores and a rational scale.

Scores of floats would have a sensitivity only up to rounding; so callers hand in whole numbers, computed in integers
from integer counts and rounded released values, and their sensitivity is exact. A draw inverts the cumulative law: the
uniform number is a prefix of bits, the weights are intervals (`exp_bounds`), and both get longer until they part; so no
float and no rounding decides. With scale = ε / (2Δ) the loss has a range of ε, which is Gaussian DP
of μ = 2 Φ⁻¹(e^{ε/2} / (1 + e^{ε/2})) (docs/privacy.md).

Floats only save time: an `Urn` keeps them as a tree of sums, about √n rows of √n weights, so that a draw costs √n steps
and taking a candidate out √n more. Where the uniform number is farther from both edges of a candidate's interval than
floats can be wrong, the exact law has it in the same interval, whatever was taken out before. How far that is, with
u = 2⁻⁵³: a weight e^(−x) has relative error (3.1 x + 8) u (three roundings of x, four units of exp), and any of the
sums at most 3 √n u more. The mean of x under the law is its entropy less log W, at most log n − log W, for the sum W.
Weights are taken anew, from the best candidate left, before W falls below 2⁻⁴⁰⁰; so for n ≤ 2⁴⁰ an edge is wrong by
less than (6 √n + 1912) u, and `margin` is twice that. What underflows is less than n · 2⁻⁶⁰⁰ of W.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscale.privacy.conversion import pure_of_mu
from dpscale.privacy.staircase import WORD_BITS, Words, exp_bounds

RANGE_BITS = 40
LEAST_SUM = 2.0**-400
MOST_SCALE = 1 << 60
SHORT = 1 << 62


class Urn:
    """Candidates with whole scores, of which some are taken out as it goes. Private; never shown."""

    def __init__(self, scores: Sequence[int], scale: Fraction) -> None:
        if not len(scores) or scale < 0:
            raise ValueError(f"scores, scale: got {len(scores)}, {scale}; it takes one score at least and a scale >= 0")
        self._scores, self._scale = _whole(scores), scale
        self._left = np.ones(len(scores), dtype=bool)
        self._side = math.isqrt(len(scores) - 1) + 1
        self._weights = np.zeros((self._side, self._side))
        self._sums = np.zeros(self._side)

    def draw(self, words: Words) -> int:
        """A candidate's place, with probability exactly ∝ exp(scale · score) among those left; it is not taken out.

        Uses two words, rarely more.
        """
        prefix, bits = int(words.words(1)[0]) << WORD_BITS | int(words.words(1)[0]), 2 * WORD_BITS
        place = self._screened(prefix / (1 << bits))
        return self._exactly(prefix, bits, words) if place is None else place

    def take(self, places: Iterable[int]) -> None:
        """Takes candidates out; those that are out already may be among them."""
        out = np.fromiter(places, dtype=np.int64)
        out = out[self._left[out]]
        self._left[out] = False
        self._weights.reshape(-1)[out] = 0
        rows = np.unique(out // self._side)
        self._sums[rows] = self._weights[rows].sum(axis=1)

    def _screened(self, uniform: float) -> int | None:
        """The place by floats, or None where an edge is too near for them to tell."""
        if self._scale > MOST_SCALE:
            return None
        rows = self._edges()
        target, last = uniform * rows[-1], self._side - 1
        row = min(int(np.searchsorted(rows, target)), last)
        before = rows[row - 1] if row else 0.0
        own = before + np.cumsum(self._weights[row])
        column = min(int(np.searchsorted(own, target)), last)
        below, above = own[column - 1] if column else before, own[column]
        apart = margin(self._side)
        sure = uniform - below / rows[-1] > apart and above / rows[-1] - uniform > apart
        return row * self._side + column if sure else None

    def _edges(self) -> NDArray[np.float64]:
        """Weights of the first 1, 2, … rows together."""
        edges = np.cumsum(self._sums)
        if edges[-1] >= LEAST_SUM:
            return edges
        self._weigh()
        return np.cumsum(self._sums)

    def _weigh(self) -> None:
        """Weights as floats, the largest of those left 1."""
        gaps = np.where(self._left, self._most - self._scores, 0).astype(np.float64)
        weights = self._weights.reshape(-1)
        with np.errstate(over="ignore"):
            weights[: len(gaps)] = np.exp(-gaps * float(self._scale)) * self._left
        self._sums = self._weights.sum(axis=1)

    def _exactly(self, prefix: int, bits: int, words: Words) -> int:
        """The place by intervals alone."""
        places, most = np.flatnonzero(self._left), self._most
        gaps = [(most - int(score)) * self._scale for score in self._scores[places]]
        while (index := _located(gaps, prefix, bits)) is None:
            prefix, bits = prefix << WORD_BITS | int(words.words(1)[0]), bits + WORD_BITS
        return int(places[index])

    @property
    def _most(self) -> int:
        if not self._left.any():
            raise ValueError("scores: got none that is left; it takes one at least")
        return int(self._scores[self._left].max())

    def __repr__(self) -> str:
        return "Urn(hidden)"


def draw_index(words: Words, scores: Sequence[int], scale: Fraction) -> int:
    """One index with probability exactly proportional to exp(scale · score)."""
    return Urn(scores, scale).draw(words)


def margin(side: int) -> float:
    """Twice what an edge of `side` sums of `side` weights can be wrong by."""
    return (6 * side + 1912) * 2.0**-52


def _whole(scores: Sequence[int]) -> NDArray[Any]:
    """Scores as integers of 64 bits where their differences fit in, else as Python's own: exact in either."""
    short = max(scores) < SHORT and min(scores) > -SHORT
    return np.array(scores, dtype=np.int64 if short else object)


def _located(gaps: Sequence[Fraction], prefix: int, bits: int) -> int | None:
    """The index that every uniform number beginning with `prefix` falls on, or None if that does not follow."""
    bounds = {gap: exp_bounds(gap, bits) for gap in set(gaps)}
    low = list(accumulate(bounds[gap][0] for gap in gaps))
    high = list(accumulate(bounds[gap][1] for gap in gaps))
    for index in range(len(gaps)):
        # The true edge e = A/(A + B): A the weights up to here, B those after; each in its interval.
        after_low, after_high = low[-1] - low[index], high[-1] - high[index]
        edge_low = (low[index] << bits) // (low[index] + after_high)
        edge_high = -((-high[index] << bits) // (high[index] + after_low))
        if prefix + 1 <= edge_low:
            return index
        if prefix < edge_high and index < len(gaps) - 1:
            return None
    return len(gaps) - 1


def epsilon_below(beta: Fraction) -> Fraction:
    """A rational ε with which a selection costs β at most, squared Gaussian-DP μ: 2 log(Φ(μ/2) / Φ(−μ/2)), μ = √β.

    Rounded down to so few bits that it hardly ever differs between machines whose floats differ in their last ones.
    """
    mu = math.sqrt(beta) * (1 - 4 * sys.float_info.epsilon)
    mantissa, exponent = math.frexp(2 * pure_of_mu(mu))
    return Fraction(math.floor(math.ldexp(mantissa, RANGE_BITS))) * Fraction(2) ** (exponent - RANGE_BITS)


def scale_for(beta: Fraction, sensitivity: int) -> Fraction:
    """The scale ε / (2Δ) of a draw that costs at most β."""
    return epsilon_below(beta) / (2 * sensitivity)
