"""Exact exponential mechanism: P(i) ∝ exp(scale · score_i) for integer scores and a rational scale.

The sensitivity of float scores would be known only up to rounding. Callers therefore pass integers, computed in integer
arithmetic from integer counts and rounded released values, whose sensitivity is exact. A draw inverts the cumulative
distribution: the uniform number is a prefix of bits, the weights are intervals (`exp_bounds`), and both are extended
until they separate, so no float and no rounding decides. With scale = ε / (2Δ) the loss has range ε, which is Gaussian
DP of μ = 2 Φ⁻¹(e^{ε/2} / (1 + e^{ε/2})) (docs/privacy.md).

Floats only save time: an `Urn` stores the weights as a tree of sums, about √n rows of √n weights, so that a draw costs
√n steps and removing a candidate √n more. If the uniform number is farther from both edges of a candidate's interval
than the float error, the exact distribution has it in the same interval, regardless of earlier removals. The error
bound, with u = 2⁻⁵³: a weight e^(−x) has relative error (3.1 x + 8) u (three roundings of x, four units of exp), and
any of the sums at most 3 √n u more. The mean of x under the distribution is its entropy minus log W, at most
log n − log W, for the sum W. Weights are recomputed, relative to the best remaining candidate, before W falls below
2⁻⁴⁰⁰; so for n ≤ 2⁴⁰ the error of an edge is less than (6 √n + 1912) u, and `margin` is twice that. Underflow removes
less than n · 2⁻⁶⁰⁰ of W.
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
from dpscale.privacy.noise import WORD_BITS, Words, exp_bounds

RANGE_BITS = 40  # bits of ε, rounded down, so that machines agree
LEAST_SUM = 2.0**-400  # sum of the remaining weights below which they are computed again
MOST_SCALE = 1 << 60  # scale above which floats do not screen draws
SHORT = 1 << 62  # absolute score below which all differences fit int64


class Urn:
    """Candidates with integer scores, drawn and removed one at a time. Private, so its repr shows nothing."""

    def __init__(self, scores: Sequence[int], scale: Fraction) -> None:
        """Candidates are put in a square of `_side` rows, so that a draw sums and searches one row instead of all."""
        if not len(scores) or scale < 0:
            raise ValueError(f"scores, scale: got {len(scores)}, {scale}; expected at least one score and a scale >= 0")
        self._scores, self._scale = _whole(scores), scale
        self._left = np.ones(len(scores), dtype=bool)
        self._side = math.isqrt(len(scores) - 1) + 1
        self._weights = np.zeros((self._side, self._side))
        self._sums = np.zeros(self._side)

    def draw(self, words: Words) -> int:
        """Return the index of a remaining candidate with probability exactly ∝ exp(scale · score); it is not removed.

        Uses two words, rarely more.
        """
        first, second = words.words(2).tolist()
        prefix, bits = first << WORD_BITS | second, 2 * WORD_BITS
        place = self._screened(prefix / (1 << bits))
        return self._exactly(prefix, bits, words) if place is None else place

    def take(self, places: Iterable[int]) -> None:
        """Remove candidates; indices already removed are ignored.

        `_weights` has the candidates in rows of `_side`; only the sums of changed rows are computed again.
        """
        taken = np.fromiter(places, dtype=np.int64)
        if not len(taken):
            return
        self._left[taken] = False
        self._weights.reshape(-1)[taken] = 0
        rows = taken // self._side if len(taken) == 1 else np.unique(taken // self._side)  # after most draws it is one
        self._sums[rows] = self._weights[rows].sum(axis=1)

    def _screened(self, uniform: float) -> int | None:
        """Return the index determined by floats, or None if an edge is within the error margin.

        `uniform` · total lies in a row of weights and then in a column of it; the index is sure if both edges of its
        interval are farther than the error margin, relative to the total.
        """
        if self._scale > MOST_SCALE:
            return None

        rows = self._edges()
        target, last = uniform * rows[-1], self._side - 1
        row = min(int(np.searchsorted(rows, target)), last)
        before = rows[row - 1] if row else 0.0
        ends_of_columns = before + np.cumsum(self._weights[row])
        column = min(int(np.searchsorted(ends_of_columns, target)), last)
        below, above = ends_of_columns[column - 1] if column else before, ends_of_columns[column]
        apart = margin(self._side)
        sure = uniform - below / rows[-1] > apart and above / rows[-1] - uniform > apart

        return row * self._side + column if sure else None

    def _edges(self) -> NDArray[np.float64]:
        """Return the cumulative weights of the rows.

        Weights are computed again if the rest has become smaller than LEAST_SUM, because the largest candidates were
        taken.
        """
        edges = np.cumsum(self._sums)
        if edges[-1] >= LEAST_SUM:
            return edges
        self._weigh()
        return np.cumsum(self._sums)

    def _weigh(self) -> None:
        """Recompute the float weights; the largest remaining one is 1.

        A weight is e^(−scale · gap), with the gap to the largest score that is left; candidates that were taken have 0.
        """
        gaps = np.where(self._left, self._most - self._scores, 0).astype(np.float64)
        weights = self._weights.reshape(-1)
        with np.errstate(over="ignore"):
            weights[: len(gaps)] = np.exp(-gaps * float(self._scale)) * self._left
        self._sums = self._weights.sum(axis=1)

    def _exactly(self, prefix: int, bits: int, words: Words) -> int:
        """Return the index by interval arithmetic only.

        `gaps` are scale · (largest score − score), so weights are e^(−gap). The prefix is extended by a word until it
        decides. `prefix` has the `bits` bits of a uniform number that are known so far.
        """
        places, most = np.flatnonzero(self._left), self._most
        gaps = [(most - int(score)) * self._scale for score in self._scores[places]]
        while (index := _located(gaps, prefix, bits)) is None:
            prefix, bits = prefix << WORD_BITS | int(words.words(1)[0]), bits + WORD_BITS
        return int(places[index])

    @property
    def _most(self) -> int:
        if not self._left.any():
            raise ValueError("scores: no candidate remains; expected at least one")
        return int(self._scores[self._left].max())

    def __repr__(self) -> str:
        return "Urn(hidden)"


def draw_index(words: Words, scores: Sequence[int], scale: Fraction) -> int:
    """Return one index with probability exactly proportional to exp(scale · score).

    Guarantee
    ---------
    Protected: the index, from scores that one neighbour step changes by at most Δ.
    Cost: range ε = 2 · scale · Δ of an exponential mechanism, without rounding.
    Neighbours: those of the scores.
    Proof: docs/privacy.md, One currency: everything is Gaussian DP; tests/privacy/test_selection.py.
    """
    return Urn(scores, scale).draw(words)


def margin(side: int) -> float:
    """Return twice the error bound of an edge of `side` sums of `side` weights."""
    return (6 * side + 1912) * 2.0**-52


def _whole(scores: Sequence[int]) -> NDArray[Any]:
    """Return scores as int64 if their differences fit, otherwise as Python integers; exact in both cases."""
    short = max(scores) < SHORT and min(scores) > -SHORT
    return np.array(scores, dtype=np.int64 if short else object)


def _located(gaps: Sequence[Fraction], prefix: int, bits: int) -> int | None:
    """Return the index to which every uniform number with this prefix belongs.

    None if the prefix does not determine it.

    Weights e^(−gap) lie between the integers of `exp_bounds`, and `low`, `high` are their cumulative sums. The uniform
    number is in [prefix, prefix + 1) / 2^bits: left of the lower end of an edge it belongs to the index, and between
    both ends it is not decided. The last index has no upper edge.
    """
    bounds = {gap: exp_bounds(gap, bits) for gap in set(gaps)}
    low = list(accumulate(bounds[gap][0] for gap in gaps))
    high = list(accumulate(bounds[gap][1] for gap in gaps))

    for index in range(len(gaps)):
        # The true edge is A/(A + B): A the weights up to here, B those after, each within its interval.
        after_low, after_high = low[-1] - low[index], high[-1] - high[index]
        edge_low = (low[index] << bits) // (low[index] + after_high)
        edge_high = -((-high[index] << bits) // (high[index] + after_low))
        if prefix + 1 <= edge_low:
            return index
        if prefix < edge_high and index < len(gaps) - 1:
            return None

    return len(gaps) - 1


def epsilon_below(beta: Fraction) -> Fraction:
    """Return a rational ε with which a selection costs at most β (squared mu of Gaussian DP).

    ε = 2 log(Φ(μ/2) / Φ(−μ/2)) with μ = √β, rounded down to so few bits that it almost never differs between machines
    with different floating-point rounding.
    """
    mu = math.sqrt(beta) * (1 - 4 * sys.float_info.epsilon)
    mantissa, exponent = math.frexp(2 * pure_of_mu(mu))
    return Fraction(math.floor(math.ldexp(mantissa, RANGE_BITS))) * Fraction(2) ** (exponent - RANGE_BITS)


def scale_for(beta: Fraction, sensitivity: int) -> Fraction:
    """Return the scale ε / (2Δ) of a draw that costs at most β.

    Guarantee
    ---------
    Protected: the index that `draw_index` returns with this scale, from scores of sensitivity `sensitivity`.
    Cost: μ² of Gaussian DP of at most `beta`.
    Neighbours: those of the scores.
    Proof: docs/privacy.md, One currency: everything is Gaussian DP; tests/privacy/test_selection.py.
    """
    return epsilon_below(beta) / (2 * sensitivity)
