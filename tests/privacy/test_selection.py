import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from dpscale.privacy.conversion import mu_of_exponential
from dpscale.privacy.selection import _located, _screened, draw_index, epsilon_below, scale_for
from dpscale.privacy.streams import open_stream, seeded_secret


def stream(number):
    return open_stream(seeded_secret(number), "selection", {"test": "selection"})


class Script:
    """Uniform words given by hand, then zeros."""

    def __init__(self, *words):
        self.left = list(words)

    def words(self, n):
        out, self.left = (self.left + [0] * n)[:n], self.left[n:]
        return np.array(out, dtype=np.uint64)


def law(scores, scale):
    weights = np.exp(float(scale) * (np.array(scores, dtype=float) - max(scores)))
    return weights / weights.sum()


def test_draws_follow_the_law_and_no_other_scale():
    scores, scale, words = [0, 5, -3, 9, 9], Fraction(1, 7), stream(0)
    drawn = np.bincount([draw_index(words, scores, scale) for _ in range(20_000)], minlength=5)
    assert chisquare(drawn, 20_000 * law(scores, scale)).pvalue > 1e-4
    for wrong in (Fraction(13, 70), Fraction(1, 10)):
        assert chisquare(drawn, 20_000 * law(scores, wrong)).pvalue < 1e-4


@given(st.lists(st.integers(-(10**15), 10**15), min_size=1, max_size=30), st.integers(0, 2**63), st.integers(0, 60))
def test_the_draw_inverts_the_cumulative_law(scores, word, shift):
    scale = Fraction(1, 1 << shift)
    edges = np.cumsum(law(scores, scale))
    index = draw_index(Script(min(2 * word + 1, 2**64 - 1), 1), scores, scale)
    uniform = word / 2**63
    assert uniform <= edges[index] + 1e-9
    assert index == 0 or uniform >= edges[index - 1] - 1e-9


def test_an_undecided_prefix_asks_for_more_words():
    """Two equal scores part at exactly one half, which a prefix of 0.0111… cannot be told from for a while."""
    ones, top = 2**64 - 1, 2**63 - 1
    assert draw_index(Script(top, ones, 0), [1, 1], Fraction(1, 3)) == 0
    assert draw_index(Script(2**63, 0, 0), [1, 1], Fraction(1, 3)) == 1
    third = (2**192) // 3  # three equal scores: the edge 1/3 is never decided by its own first bits
    script = Script(third >> 128, third >> 64 & ones, third & ones, ones, 0)
    assert draw_index(script, [4, 4, 4], Fraction(1)) == 1
    assert len(script.left) <= 2


@given(
    st.lists(st.integers(-(10**6), 10**6), min_size=1, max_size=40),
    st.integers(0, 2**128 - 1),
    st.fractions(0, 3, max_denominator=10**6),
)
def test_floats_find_what_the_intervals_find(scores, prefix, scale):
    gaps = [max(scores) - score for score in scores]
    found = _screened(gaps, scale, prefix / 2**128)
    if found is not None:
        assert found == _located([Fraction(gap) * scale for gap in gaps], prefix, 128)


def test_near_an_edge_floats_do_not_decide():
    assert _screened([0, 0], Fraction(1), 0.5 + 1e-10) is None
    assert _screened([0, 0], Fraction(1), 0.5 + 1e-8) == 1
    assert _screened([0] * 7, Fraction(0), 3 / 7) is None


def test_huge_gaps_and_one_candidate():
    assert draw_index(stream(1), [10**30, 0, -(10**30)], Fraction(1)) == 0
    assert draw_index(stream(1), [7], Fraction(0)) == 0
    with pytest.raises(ValueError, match="one score"):
        draw_index(stream(1), [], Fraction(1))


@given(st.fractions(Fraction(1, 10**12), 100))
def test_the_range_of_a_selection_never_costs_more_than_it_may(beta):
    epsilon = epsilon_below(beta)
    assert Fraction(mu_of_exponential(float(epsilon))) ** 2 <= beta
    assert mu_of_exponential(float(epsilon)) == pytest.approx(math.sqrt(beta), rel=1e-11)
    assert epsilon.numerator.bit_length() <= 40
    assert scale_for(beta, 3) == epsilon / 6
