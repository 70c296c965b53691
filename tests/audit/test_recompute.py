"""Formulas of the bundle script, which are independent of the package, against brute force and against the package."""

import itertools
import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from scipy import integrate, stats

from dpscale import privacy
from dpscale.audit.evidence import recompute, sensitivities
from dpscale.plans.factor import Factor, center_factor, identity_factor

ALPHAS = np.concatenate([np.geomspace(1e-12, 0.5, 400), 1 - np.geomspace(1e-12, 0.5, 400)])


def trade_off(losses, alpha):
    """Return the least type II error at level alpha for two distributions on two outcomes with these log likelihood
    ratios.
    """
    (high, low) = (max(losses), min(losses))
    p = (1 - math.exp(low)) / (math.exp(high) - math.exp(low))  # of the outcome with the high loss, under the null
    q = p * math.exp(high)
    return np.where(alpha <= p, 1 - alpha / p * q, (1 - q) * (1 - (alpha - p) / (1 - p)))


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1.0, 3.0, 8.0])
def test_pure_mechanism_is_dominated_by_its_gaussian_equivalent(epsilon):
    """The trade-off curve of the pure mechanism touches the Gaussian one: a μ smaller by 3 % would not dominate it."""
    mu = sensitivities.mu_of_pure(epsilon)
    gaussian = stats.norm.cdf(stats.norm.isf(ALPHAS) - mu)
    gap = trade_off((epsilon, -epsilon), ALPHAS) - gaussian
    assert gap.min() >= -1e-9
    less = stats.norm.cdf(stats.norm.isf(ALPHAS) - 0.97 * mu)
    assert (trade_off((epsilon, -epsilon), ALPHAS) - less).min() < 0, "and a smaller μ would be too small"


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1.0, 5.0])
def test_selection_is_dominated_by_its_gaussian_equivalent(epsilon):
    """The bound is valid for every position of the interval of losses."""
    gaussian = stats.norm.cdf(stats.norm.isf(ALPHAS) - sensitivities.mu_of_pure(epsilon / 2))
    for part in np.linspace(0.001, 0.999, 199):
        assert (trade_off((part * epsilon, (part - 1) * epsilon), ALPHAS) - gaussian).min() >= -1e-9
    squared = sensitivities.mu_of_pure(epsilon / 2) ** 2
    assert epsilon**2 / 4 < squared <= math.pi * epsilon**2 / 8 * (1 + 1e-9), "π ρ is the most"


@pytest.mark.parametrize("mu", [0.01, 0.2, 1.0, 6.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-9])
def test_epsilons_equal_those_of_the_package(mu, delta):
    mine = recompute.bounds(Counter({("gaussian", Fraction(mu) ** 2): 1}), delta)
    assert mine["Gaussian DP"] == pytest.approx(privacy.epsilon_of_mu(mu, delta), rel=1e-7, abs=1e-9)
    assert mine["zCDP"] == pytest.approx(privacy.epsilon_of_rho(mu**2 / 2, delta), rel=1e-5)
    assert mine["zCDP"] >= mine["Gaussian DP"]


@pytest.mark.parametrize(("mu", "pure", "epsilon"), [(0.5, 0.3, 0.4), (1.0, 1.0, 2.0), (0.1, 2.0, 1.5)])
def test_gaussian_and_pure_composition_by_quadrature(mu, pure, epsilon):
    """Oracle: δ = E[(1 − e^{ε − L})₊], where L is the sum of a normal loss and a loss of ±pure."""
    law = stats.norm(mu**2 / 2, mu)
    high = math.exp(pure) / (1 + math.exp(pure))
    exact = 0.0
    for weight, shift in ((high, pure), (1 - high, -pure)):

        def weighted_loss(loss, shift=shift):
            return law.pdf(loss) * -math.expm1(epsilon - loss - shift)

        exact += (
            weight
            * integrate.quad(weighted_loss, epsilon - shift, epsilon - shift + 60 * mu, epsabs=1e-13, limit=400)[0]
        )
    assert recompute.delta_of_mu_and_pure(mu, pure, epsilon) == pytest.approx(exact, rel=1e-6, abs=1e-12)


def test_norms_and_digests_equal_those_of_factors():
    rng = np.random.default_rng(0)
    matrix = rng.integers(-(1 << 40), 1 << 40, (5, 6))
    full = {"kind": "full", "shape": [2, 3], "matrix": matrix.tolist()}
    for factor, fields in [(center_factor(7), {"kind": "center", "shape": [7]}),
                         (identity_factor(4), {"kind": "identity", "shape": [4]}),
                         (Factor("full", (2, 3), matrix), full)]:  # fmt: skip
        explicit = [[int(value) for value in column] for column in factor.explicit().T]
        brute = max(sum(v * v for v in c) for c in explicit), max(sum(map(abs, c)) for c in explicit)
        assert sensitivities.norms(fields) == brute
        assert sensitivities.digest(fields) == factor.digest


def test_due_cost_of_mixed_events_is_in_charged_currency():
    gaussian, laplace = ("gaussian", Fraction(1, 3)), ("laplace", Fraction(1, 5))
    selection = ("selection", Fraction(1, 2))

    def compute_costs(cost, events):
        return recompute.charged_and_due(cost, Counter(events))

    assert compute_costs({"gaussian": "1"}, {gaussian: 3}) == (1, 1)
    assert compute_costs({"pure": "1"}, {laplace: 5}) == (1, 1)
    paid, due = compute_costs({"pure": "1"}, {laplace: 1, gaussian: 1})
    assert due > paid, "nothing Gaussian is pure"
    assert compute_costs({"zcdp": "1"}, {gaussian: 3, selection: 4}) == (1, Fraction(1, 2) + Fraction(1, 8))
    _, due = compute_costs({"gaussian": "1"}, {gaussian: 1, selection: 1, laplace: 1})
    expected = 1 / 3 + sensitivities.mu_of_pure(0.25) ** 2 + sensitivities.mu_of_pure(0.2) ** 2
    assert float(due) == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize(("epsilon", "mu"), list(itertools.product([0.3, 1.0], [None, 0.7])))
def test_dp_accounting_treats_pure_release_as_worst_case(epsilon, mu):
    pytest.importorskip("dp_accounting")
    events = Counter({("pure", Fraction(epsilon)): 1} | ({("gaussian", Fraction(mu) ** 2): 1} if mu else {}))
    found = recompute.dp_accounting_bounds(events, 1e-6)["dp-accounting, PLD"]
    exact = recompute.bounds(events, 1e-6)["Gaussian and pure" if mu else "the sum of pure ε"]
    assert found == pytest.approx(exact, abs=2e-4)
