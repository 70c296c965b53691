"""Attack risk: bounds against the Gaussian mechanism, randomized response and a search over all tests."""

import math
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from scipy.stats import norm

from dpscale.privacy.accounting import Cost
from dpscale.privacy.attack_risk import RATES, AttackRisk, cost_bounds, detection_bound, total_bounds
from dpscale.privacy.conversion import delta_of_mu, pure_power
from dpscale.privacy.protection import REPLACE, Protection

LEVELS = (1e-4, 0.01, 0.05, 0.3, 0.9)


def bound_of_pair(level, epsilon, delta):
    """Largest true positive rate under (epsilon, delta)-DP, as written in the module."""
    return min(math.exp(epsilon) * level + delta, 1 - math.exp(-epsilon) * (1 - delta - level), 1)


@pytest.mark.parametrize("mu", [0.05, 0.5, 2.0, 6.0])
@pytest.mark.parametrize("level", LEVELS)
def test_gaussian_bound_is_attained_and_is_the_envelope_of_its_curve(mu, level):
    bound = detection_bound(level, mu)
    threshold = norm.isf(level)  # the likelihood-ratio test of N(0, 1) against N(mu, 1)
    assert bound == pytest.approx(norm.sf(threshold - mu), rel=1e-9)
    assert bound >= norm.sf(threshold - mu)
    epsilons = np.linspace(0, mu**2 / 2 + 8 * mu, 4001)
    envelope = min(bound_of_pair(level, one, delta_of_mu(mu, one)) for one in epsilons)
    assert envelope >= bound * (1 - 1e-9)
    assert envelope == pytest.approx(bound, rel=1e-4)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_randomized_response_attains_the_pure_bound(epsilon):
    lie = 1 / (1 + math.exp(epsilon))
    no, yes = np.array([1 - lie, lie]), np.array([lie, 1 - lie])  # probabilities of the answers
    for level in LEVELS:
        assert pure_power(level, epsilon) == pytest.approx(best_test(no, yes, level), rel=1e-9)
        mu = float(Cost(pure=Fraction(epsilon)).squared_mu) ** 0.5
        assert detection_bound(level, mu, epsilon) == pytest.approx(pure_power(level, epsilon), rel=1e-9)


@pytest.mark.parametrize("delta", [0.01, 0.2])
def test_additive_delta_bounds_a_mechanism_that_sometimes_reveals(delta):
    epsilon = 1.0
    lie = 1 / (1 + math.exp(epsilon))
    no = np.array([(1 - delta) * (1 - lie), (1 - delta) * lie, delta, 0])
    yes = np.array([(1 - delta) * lie, (1 - delta) * (1 - lie), 0, delta])
    bounds = cost_bounds(Cost(pure=Fraction(epsilon), delta=Fraction(delta)), LEVELS)
    for level in LEVELS:
        best = best_test(no, yes, level)
        assert best <= bounds[level]
        assert best == pytest.approx(bound_of_pair(level, epsilon, delta), rel=0.3)


def best_test(no, yes, level):
    """Power of the best randomized test of a finite mechanism: all sets of answers, and mixtures of two of them."""
    answers = range(len(no))
    sets = [list(chosen) for size in range(len(no) + 1) for chosen in combinations(answers, size)]
    points = [(no[chosen].sum(), yes[chosen].sum()) for chosen in sets]
    below = [one for one in points if one[0] <= level]
    above = [one for one in points if one[0] > level]
    mixed = [a[1] + (b[1] - a[1]) * (level - a[0]) / (b[0] - a[0]) for a in below for b in above]
    return max([b for _, b in below] + mixed)


def test_planted_understated_scale_is_detected():
    truth = norm.sf(norm.isf(0.05) - 1.3)
    assert detection_bound(0.05, 1.0) < truth < detection_bound(0.05, 1.3) * (1 + 1e-9)


def test_totals_of_the_ledger_agree_with_the_sum_of_costs():
    costs = [Cost(gaussian=Fraction(1, 4)), Cost(pure=Fraction(1, 2), delta=Fraction(1, 10**9))]
    whole = Cost.total(costs)
    spent = {"squared_mu": float(whole.squared_mu), "pure_epsilon": None, "additive_delta": 1e-9}
    for level, bound in total_bounds(spent).items():
        assert bound == pytest.approx(cost_bounds(whole)[level], rel=1e-9)
        assert bound > max(cost_bounds(one)[level] for one in costs)
    nothing = {"squared_mu": None, "pure_epsilon": None}
    assert set(total_bounds(nothing).values()) == {1.0}


def test_sentence_names_unit_relation_and_rounded_rates():
    cost = Cost(gaussian=Fraction(1))
    row = AttackRisk.of(cost, Protection())
    assert "tests whether a given row is in the data" in row.sentence
    share = math.ceil(1000 * norm.sf(norm.isf(0.05) - 1)) / 10
    assert f"at most {share:g} % at a false alarm rate of 5 %" in row.sentence
    person = AttackRisk.of(cost, Protection("person", bound=3, span="month"))
    assert person.question == "whether the rows of a given person in one month are in the data"
    assert AttackRisk.of(cost, Protection(relation=REPLACE)).question == "which of two values a given row has"
    swapped = AttackRisk.of(cost, Protection(), swaps=True)
    assert swapped.bounds == cost_bounds(Cost(gaussian=Fraction(4)))
    assert AttackRisk.of(cost, Protection(), private=False).bounds == dict.fromkeys(RATES, 1.0)
    assert [one["false_positive_rate"] for one in row.describe()["bounds"]] == list(RATES)
