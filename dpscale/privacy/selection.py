"""The exponential mechanism, exactly: P(i) ∝ exp(scale · score_i) for integer scores and a rational scale.

Scores of floats would have a sensitivity only up to rounding; so callers hand in whole numbers, computed in integers
from integer counts and rounded released values, and their sensitivity is exact. A draw inverts the cumulative law: the
uniform number is a prefix of bits, the weights are intervals (`exp_bounds`), and both get longer until they part; so no
float and no rounding decides. With scale = ε / (2Δ) the cost is ε²/8 in zCDP (Cesar & Rogers 2021).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import accumulate
from math import isqrt

from dpscale.privacy.staircase import WORD_BITS, Words, exp_bounds

ROOT_BITS = 80
NEAR = 8


def draw_index(words: Words, scores: Sequence[int], scale: Fraction) -> int:
    """An index with probability exactly proportional to exp(scale · score). Uses two words, rarely more."""
    return _drawn(words, scores, _Weights(scale))


def draw_distinct(streams: Iterable[Words], scores: Sequence[int], scale: Fraction) -> list[int]:
    """A draw from every stream, each among the indices that are left: what `draw_index` gives one after the other."""
    left, weights, chosen = list(range(len(scores))), _Weights(scale), []
    for words in streams:
        chosen.append(left.pop(_drawn(words, [scores[index] for index in left], weights)))
    return chosen


class _Weights:
    """Intervals of the weights exp(scale · (score − top)). Every top gives the same law, so draws can share them."""

    def __init__(self, scale: Fraction) -> None:
        self.scale, self._top = scale, 0
        self._known: dict[tuple[int, int], tuple[int, int]] = {}

    def start(self, most: int) -> None:
        """Take `most`, the best score, for the top, unless the one there is near enough above it."""
        if not self._known or most > self._top or (self._top - most) * self.scale > NEAR:
            self._top, self._known = most, {}

    def bounds(self, scores: Sequence[int], bits: int) -> list[tuple[int, int]]:
        return [self._known.get((score, bits)) or self._found(int(score), bits) for score in scores]

    def _found(self, score: int, bits: int) -> tuple[int, int]:
        own = self._known[score, bits] = exp_bounds((self._top - score) * self.scale, bits)
        return own


def _drawn(words: Words, scores: Sequence[int], weights: _Weights) -> int:
    if not scores or weights.scale < 0:
        message = f"scores, scale: got {len(scores)}, {weights.scale}; it takes one score at least and a scale >= 0"
        raise ValueError(message)
    weights.start(int(max(scores)))
    prefix, bits = int(words.words(1)[0]), WORD_BITS
    while True:
        prefix, bits = prefix << WORD_BITS | int(words.words(1)[0]), bits + WORD_BITS
        found = _located(weights.bounds(scores, bits), prefix, bits)
        if found is not None:
            return found


def _located(bounds: Sequence[tuple[int, int]], prefix: int, bits: int) -> int | None:
    """The index that every uniform number beginning with `prefix` falls on, or None if that does not follow."""
    low, high = (list(accumulate(own[side] for own in bounds)) for side in (0, 1))

    # The true edge e = A/(A + B): A the weights up to here, B those after; each in its interval. Both bounds rise.
    def edge_low(index: int) -> int:
        return (low[index] << bits) // (low[index] + high[-1] - high[index])

    def edge_high(index: int) -> int:
        return -((-high[index] << bits) // (high[index] + low[-1] - low[index]))

    index = bisect_right(range(len(bounds) - 1), prefix, key=edge_high)
    return index if index == len(bounds) - 1 or prefix + 1 <= edge_low(index) else None


def epsilon_below(rho: Fraction) -> Fraction:
    """A rational ε with ε²/8 ≤ ρ, below the root by 2^-80 of it at most: what a selection of cost ρ may use."""
    shift = ROOT_BITS + max(0, rho.denominator.bit_length() - rho.numerator.bit_length())
    return Fraction(isqrt((8 * rho.numerator << 2 * shift) // rho.denominator), 1 << shift)


def scale_for(rho: Fraction, sensitivity: int) -> Fraction:
    """The scale ε / (2Δ) of a draw that costs at most ρ."""
    return epsilon_below(rho) / (2 * sensitivity)
