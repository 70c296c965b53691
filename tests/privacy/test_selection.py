import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy.stats import chisquare

from dpscale.privacy import selection
from dpscale.privacy.conversion import mu_of_exponential
from dpscale.privacy.selection import Urn, _located, draw_index, epsilon_below, margin, scale_for
from dpscale.privacy.streams import open_stream, seeded_secret
from tests.messages import refused


def open_test_stream(number):
    return open_stream(seeded_secret(number), "selection", {"test": "selection"})


class ScriptedWords:
    """Given uniform words, followed by zeros."""

    def __init__(self, *words):
        self.left = list(words)

    def words(self, n):
        out, self.left = (self.left + [0] * n)[:n], self.left[n:]
        return np.array(out, dtype=np.uint64)


def probabilities(scores, scale):
    weights = np.exp(float(scale) * (np.array(scores, dtype=float) - max(scores)))
    return weights / weights.sum()


def test_draws_fit_law_and_reject_other_scales():
    scores, scale, words = [0, 5, -3, 9, 9], Fraction(1, 7), open_test_stream(0)
    drawn = np.bincount([draw_index(words, scores, scale) for _ in range(20_000)], minlength=5)
    assert chisquare(drawn, 20_000 * probabilities(scores, scale)).pvalue > 1e-4
    for wrong in (Fraction(13, 70), Fraction(1, 10)):
        assert chisquare(drawn, 20_000 * probabilities(scores, wrong)).pvalue < 1e-4


@given(st.lists(st.integers(-(10**15), 10**15), min_size=1, max_size=30), st.integers(0, 2**63), st.integers(0, 60))
def test_draw_inverts_cumulative_law(scores, word, shift):
    scale = Fraction(1, 1 << shift)
    edges = np.cumsum(probabilities(scores, scale))
    index = draw_index(ScriptedWords(min(2 * word + 1, 2**64 - 1), 1), scores, scale)
    uniform = word / 2**63
    assert uniform <= edges[index] + 1e-9
    assert index == 0 or uniform >= edges[index - 1] - 1e-9


def test_undecided_prefix_reads_more_words():
    """The edge between two equal scores is one half, which a prefix of 0.0111… does not decide."""
    ones, top = 2**64 - 1, 2**63 - 1
    assert draw_index(ScriptedWords(top, ones, 0), [1, 1], Fraction(1, 3)) == 0
    assert draw_index(ScriptedWords(2**63, 0, 0), [1, 1], Fraction(1, 3)) == 1
    third = (2**192) // 3  # three equal scores: the edge 1/3 is never decided by its own first bits
    script = ScriptedWords(third >> 128, third >> 64 & ones, third & ones, ones, 0)
    assert draw_index(script, [4, 4, 4], Fraction(1)) == 1
    assert len(script.left) <= 2


def draw_by_intervals(scores, left, scale, prefix, bits=128):
    """Return the place among the remaining candidates by rational bounds alone, or None if 128 bits do not decide."""
    places = [place for place, remaining in enumerate(left) if remaining]
    most = max(scores[place] for place in places)
    found = _located([(most - scores[place]) * scale for place in places], prefix, bits)
    return None if found is None else places[found]


def draws_equal_intervals(make, scores, scale, taken, prefixes):
    """Draw, remove the drawn and further candidates, and repeat; return whether every draw equals the one by
    intervals.
    """
    urn, left = make(scores, scale), [True] * len(scores)
    for prefix, further in zip(prefixes, taken, strict=False):
        place = draw_by_intervals(scores, left, scale, prefix)
        if place is not None and urn.draw(ScriptedWords(prefix >> 64, prefix & 2**64 - 1)) != place:
            return False
        out = {max(range(len(scores)), key=lambda one: (left[one], scores[one])) if place is None else place}
        out |= {one % len(scores) for one in further}
        urn.take(out)
        left = [remaining and one not in out for one, remaining in enumerate(left)]
        if not any(left):
            break
    return True


scores_of_any_size = st.lists(
    st.integers(-(10**6), 10**6) | st.integers(-40, 40) | st.integers(-(10**25), 10**25), min_size=1, max_size=40
)
prefixes = st.lists(st.integers(0, 2**128 - 1), min_size=6, max_size=6)
takings = st.lists(st.lists(st.integers(0, 39), max_size=5), min_size=6, max_size=6)


@given(scores_of_any_size, st.fractions(0, 3, max_denominator=10**6), takings, prefixes)
def test_urn_draws_equal_interval_arithmetic(scores, scale, taken, prefixes):
    assert draws_equal_intervals(Urn, scores, scale, taken, prefixes)


class UnremovedWeightsUrn(Urn):
    """Planted error: removed candidates stay in the sums."""

    def take(self, places):
        self._left[list(places)] = False


class StaleWeightsUrn(Urn):
    """Planted error: weights are never recomputed, so that the remaining weights of a steep law vanish."""

    def _edges(self):
        if not self._sums.any():
            self._weigh()
        return np.maximum(np.cumsum(self._sums), 5e-324)


@pytest.mark.parametrize("planted", [UnremovedWeightsUrn, StaleWeightsUrn])
def test_planted_urn_errors_are_detected(planted, monkeypatch):
    monkeypatch.setattr(selection, "margin", lambda side: -1.0)  # floats alone decide
    scores = [0, -5000, -10_000, -10_000]
    many = [[number << 120] * 4 for number in range(256)]
    assert not all(draws_equal_intervals(planted, scores, Fraction(1, 2), [[]] * 4, own) for own in many)


def test_float_error_is_below_margin_in_worst_case():
    """The worst case has many equal weights far below the first, which is removed. The oracle is mpmath."""
    n, scale = 5000, Fraction(277, 1000)
    scores = [0, *(-1000 + place % 7 for place in range(n - 1))]
    urn = Urn(scores, scale)
    urn._edges()
    urn.take([0])
    edges = urn._edges()
    exact = np.cumsum([mpmath.exp((score + 1000) * mpmath.mpf(277) / 1000) for score in scores[1:]])
    sides = np.arange(1, n // urn._side) * urn._side
    errors = [abs(edges[row] / edges[-1] - float(exact[side - 2] / exact[-1])) for row, side in enumerate(sides)]
    assert max(errors) < margin(urn._side) / 2
    assert edges[-1] < 1e-100  # not weighed again yet


def test_floats_do_not_decide_near_edge():
    for scores, edge in (([0, 0], 0.5), ([0] * 7, 3 / 7)):
        distance = margin(math.isqrt(len(scores) - 1) + 1)
        urn = Urn(scores, Fraction(1))
        assert urn._screened(edge + distance / 2) is None
        assert urn._screened(edge + 2 * distance) == round(edge * len(scores))


def test_urn_draws_from_million_candidates_and_repr_hides_them():
    urn = Urn(np.arange(10**6) % 1000 - 500, Fraction(1, 50))
    drawn = []
    for number in range(200):
        drawn.append(urn.draw(open_test_stream(number)))
        urn.take(drawn[-1:])
    assert len(set(drawn)) == 200
    weights = probabilities(range(-500, 500), Fraction(1, 50))
    assert chisquare(*_quarter_counts(np.array(drawn) % 1000, weights)).pvalue > 1e-4
    assert repr(urn) == "Urn(hidden)"
    urn.take(range(10**6))
    with refused(ValueError):
        urn.draw(open_test_stream(1))


def _quarter_counts(drawn, weights):
    """Return draws and expected counts in four parts of about equal probability."""
    parts = np.minimum((np.cumsum(weights) * 4).astype(int), 3)
    return np.bincount(parts[drawn], minlength=4), len(drawn) * np.bincount(parts, weights)


def test_huge_score_gaps_and_single_candidate():
    assert draw_index(open_test_stream(1), [10**30, 0, -(10**30)], Fraction(1)) == 0
    assert draw_index(open_test_stream(1), [7], Fraction(0)) == 0
    with refused(ValueError):
        draw_index(open_test_stream(1), [], Fraction(1))


@given(st.fractions(Fraction(1, 10**12), 100))
def test_epsilon_of_selection_costs_at_most_beta(beta):
    epsilon = epsilon_below(beta)
    assert Fraction(mu_of_exponential(float(epsilon))) ** 2 <= beta
    assert mu_of_exponential(float(epsilon)) == pytest.approx(math.sqrt(beta), rel=1e-11)
    assert epsilon.numerator.bit_length() <= 40
    assert scale_for(beta, 3) == epsilon / 6
