"""The exponential mechanism, exactly: P(i) ∝ exp(scale · score_i) for integer scores and a rational scale.

Scores of floats would have a sensitivity only up to rounding; so callers hand in whole numbers, computed in integers
from integer counts and rounded released values, and their sensitivity is exact. A draw inverts the cumulative law: the
uniform number is a prefix of bits, the weights are intervals (`exp_bounds`), and both get longer until they part; so no
float and no rounding decides. With scale = ε / (2Δ) the loss has a range of ε, which is Gaussian DP
of μ = 2 Φ⁻¹(e^{ε/2} / (1 + e^{ε/2})) (docs/privacy.md).

Floats only save time: where the uniform number is farther from every edge than they can be wrong, they find the same
index as the intervals would. Their edges are wrong by less than 2e-10: weights by 745 · 2⁻⁵² relatively (those whose
exponent is larger are nothing either way), sums by n · 2⁻⁵³, n ≤ MOST_SCREENED; MARGIN leaves five times as much.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate

import numpy as np

from dpscale.privacy.conversion import pure_of_mu
from dpscale.privacy.staircase import WORD_BITS, Words, exp_bounds

RANGE_BITS = 40
MARGIN, MOST_SCREENED = 1e-9, 10**6


def draw_index(words: Words, scores: Sequence[int], scale: Fraction) -> int:
    """An index with probability exactly proportional to exp(scale · score). Uses two words, rarely more."""
    if not scores or scale < 0:
        raise ValueError(f"scores, scale: got {len(scores)}, {scale}; it takes one score at least and a scale >= 0")
    most = max(scores)
    prefix, bits = int(words.words(1)[0]) << WORD_BITS | int(words.words(1)[0]), 2 * WORD_BITS
    index = _screened([most - int(score) for score in scores], scale, prefix / (1 << bits))
    if index is not None:
        return index
    gaps = [Fraction(most - int(score)) * scale for score in scores]
    while (index := _located(gaps, prefix, bits)) is None:
        prefix, bits = prefix << WORD_BITS | int(words.words(1)[0]), bits + WORD_BITS
    return index


def _screened(gaps: Sequence[int], scale: Fraction, uniform: float) -> int | None:
    """The index by floats, or None where an edge is too near for them to tell."""
    if len(gaps) > MOST_SCREENED or scale > 1 << 60:
        return None
    edges = np.cumsum(np.exp(-np.array(gaps, dtype=np.float64) * float(scale)))
    edges /= edges[-1]
    index = min(int(np.searchsorted(edges, uniform)), len(gaps) - 1)
    below, above = edges[index - 1] if index else -np.inf, edges[index] if index < len(gaps) - 1 else np.inf
    return index if uniform - below > MARGIN and above - uniform > MARGIN else None


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
