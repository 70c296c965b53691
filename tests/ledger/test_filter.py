"""A cap against adversaries who choose kind and size of a release after seeing the noise of earlier releases.

The oracle is exact: for neighbouring tables with privacy loss L, the delta at epsilon e is E_P[(1 − exp(e − L))₊].
The contribution of the last release is a function of the remaining e and of the remaining budget, so its best
choice is a pointwise maximum, and earlier releases are integrated out by quadrature. The planted fault is a rule
that admits by the privacy of the realized releases: the search finds deltas far above the cap.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import ndtr

from dpscale.ledger.account import Cap
from dpscale.privacy.accounting import Cost, Spending
from dpscale.privacy.conversion import gdp_mu, pure_of_mu

Array = NDArray[np.float64]
INTERPOLATED = 1e-3  # linear between points of a convex curve: a little above it
NOISE = np.linspace(-9, 9, 3001)
DENSITY = np.exp(-(NOISE**2) / 2) / math.sqrt(2 * math.pi) * (NOISE[1] - NOISE[0])


@dataclass(frozen=True)
class Release:
    """A release as its outcomes: their probabilities under P, their losses and the charged cost."""

    cost: Cost
    chances: Array
    losses: Array

    def delta(self, epsilon: Array) -> Array:
        """Return the delta of this release alone at thresholds of either sign."""
        if len(self.chances) == 2:
            tails = -np.expm1(np.minimum(epsilon[..., None] - self.losses, 0))
            return np.asarray((self.chances * tails).sum(axis=-1))
        mu = math.sqrt(self.cost.gaussian)
        with np.errstate(over="ignore"):
            below = np.exp(np.minimum(epsilon, 700)) * ndtr(-mu / 2 - epsilon / mu)
        return np.asarray(np.maximum(ndtr(mu / 2 - epsilon / mu) - below, 0))


def gaussian(beta: Fraction) -> Release:
    mu = math.sqrt(beta)
    return Release(Cost(gaussian=beta), DENSITY, mu * NOISE + mu * mu / 2)


def randomized_response(epsilon: Fraction) -> Release:
    """Return randomized response, the worst pure mechanism."""
    return Release(Cost(pure=epsilon), *_two_outcomes(float(epsilon), 2 * float(epsilon)))


def selection(beta: Fraction, share: float = 0.5) -> Release:
    """Return the worst selection of a given cost: two loss values at the distance of the range."""
    epsilon = 2 * pure_of_mu(math.sqrt(beta))
    return Release(Cost(gaussian=beta), *_two_outcomes(share * epsilon, epsilon))


def _two_outcomes(most: float, span: float) -> tuple[Array, Array]:
    q = -math.expm1(most - span) / (math.exp(most) * -math.expm1(-span))
    p = q * math.exp(most)
    return np.array([p, 1 - p]), np.array([most, most - span])


KINDS: dict[str, Callable[[Fraction], Release]] = {
    "gaussian": gaussian,
    "response": randomized_response,
    "selection": selection,
    "late selection": lambda beta: selection(beta, 0.8),
}
AdmissionRule = Callable[[list[Release]], bool]


def ledger_rule(cap: Cap) -> AdmissionRule:
    """Return the admission rule of the ledger."""

    def admits(history: list[Release]) -> bool:
        spending = Spending()
        for release in history:
            spending = spending.plus(release.cost)
        return cap.admits(spending)

    return admits


def realized_privacy_rule(cap: Cap) -> AdmissionRule:
    """Return the planted rule, which compares the exact epsilon of the realized releases with the cap."""

    def admits(history: list[Release]) -> bool:
        return float(composed_delta(history, np.array([cap.epsilon]))[0]) <= cap.delta

    return admits


def composed_delta(history: list[Release], epsilon: Array) -> Array:
    """Return the delta of releases that are all fixed in advance."""
    last = history[-1].delta
    for release in reversed(history[:-1]):
        last = integrate_over(release, last)
    return last(epsilon)


def integrate_over(release: Release, after: Callable[[Array], Array]) -> Callable[[Array], Array]:
    def delta(epsilon: Array) -> Array:
        return np.asarray((release.chances * after(epsilon[..., None] - release.losses)).sum(axis=-1))

    return delta


def largest_admitted(rule: AdmissionRule, history: list[Release], kind: str) -> Release | None:
    """Return the largest release of a kind that the rule still admits."""
    low, high = Fraction(0), Fraction(4)
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if rule([*history, KINDS[kind](middle)]) else (low, middle)
    return KINDS[kind](low) if low > Fraction(1, 10**7) else None


def worst_delta_of_two(rule: AdmissionRule, first: Release, epsilon: float) -> float:
    """Return the delta of an adversary who releases `first` and then, depending on its outcome, the worst admitted
    release.
    """
    seconds = [found for kind in KINDS if (found := largest_admitted(rule, [first], kind))]
    after = integrate_over(first, lambda left: np.max([second.delta(left) for second in seconds], axis=0))
    return float(after(np.array([epsilon]))[0])


def worst_delta_of_three(rule: AdmissionRule, first: Release, shares: list[Fraction], cap: Cap) -> float:
    """Return the same delta with a release of any kind in between, at shares of the largest admitted release."""
    epsilon, reach = cap.epsilon, 11 * gdp_mu(cap.epsilon, cap.delta)
    grid = np.linspace(epsilon - reach, epsilon + reach, 3001)
    best = np.zeros_like(grid)
    for kind in KINDS:
        most = largest_admitted(rule, [first], kind)
        amount = most and (most.cost.gaussian or most.cost.pure)
        for second in [KINDS[kind](amount * share) for share in shares if amount]:
            thirds = [found for last in KINDS if (found := largest_admitted(rule, [first, second], last))]
            values = np.array([third.delta(grid) for third in thirds]).max(axis=0)
            after = integrate_over(second, lambda left, values=values: np.interp(left, grid, values))  # type: ignore[misc]
            best = np.maximum(best, after(grid))
    return float(integrate_over(first, lambda left: np.interp(left, grid, best))(np.array([epsilon]))[0])


CAPS = [Cap(1.0, 1e-6), Cap(0.3, 1e-4), Cap(3.0, 1e-3)]
FIRST = [("gaussian", 0.2), ("gaussian", 0.7), ("response", 0.4), ("selection", 0.5), ("late selection", 0.3)]


def first_release(rule: AdmissionRule, kind: str, share: float) -> Release:
    most = largest_admitted(rule, [], kind)
    assert most is not None
    return KINDS[kind](Fraction(share) * (most.cost.gaussian or most.cost.pure))


@pytest.mark.parametrize("cap", CAPS, ids=str)
@pytest.mark.parametrize(("kind", "share"), FIRST)
def test_two_adaptive_releases_stay_within_cap(cap: Cap, kind: str, share: float) -> None:
    first = first_release(ledger_rule(cap), kind, share)
    assert worst_delta_of_two(ledger_rule(cap), first, cap.epsilon) <= cap.delta * (1 + 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("cap", CAPS, ids=str)
def test_three_adaptive_releases_stay_within_cap(cap: Cap) -> None:
    for kind, share in FIRST[:3]:
        first = first_release(ledger_rule(cap), kind, share)
        found = worst_delta_of_three(ledger_rule(cap), first, [Fraction(1, 3), Fraction(3, 4)], cap)
        assert found <= cap.delta * (1 + INTERPOLATED)


@pytest.mark.slow
def test_random_adversaries_stay_within_cap() -> None:
    rng = np.random.default_rng(15)
    for _ in range(150):
        cap = Cap(float(rng.uniform(0.1, 4)), float(10 ** rng.uniform(-7, -2)))
        first = first_release(ledger_rule(cap), str(rng.choice(list(KINDS))), float(rng.uniform(0.02, 0.98)))
        assert worst_delta_of_two(ledger_rule(cap), first, cap.epsilon) <= cap.delta * (1 + INTERPOLATED)
        shares = [Fraction(float(share)) for share in rng.uniform(0.05, 0.95, 2)]
        assert worst_delta_of_three(ledger_rule(cap), first, shares, cap) <= cap.delta * (1 + INTERPOLATED)


def test_search_detects_realized_privacy_rule() -> None:
    """Counterexample: a release with mu² = 0.01, then a Gaussian or a pure release if the first count exceeds 3.92."""
    cap = Cap(1.0, 1e-6)
    rule = realized_privacy_rule(cap)
    first = gaussian(Fraction(1, 100))
    assert rule([first, gaussian(Fraction("0.04596736"))])
    assert rule([first, randomized_response(Fraction("0.613"))])
    assert worst_delta_of_two(rule, first, cap.epsilon) > 1.7 * cap.delta
    assert (
        max(worst_delta_of_two(rule, first_release(rule, "gaussian", share), 1.0) for share in (0.2, 0.7))
        > 1.3 * cap.delta
    )


def test_composed_delta_equals_closed_form_of_gaussians() -> None:
    parts = [gaussian(Fraction(1, 10)), gaussian(Fraction(3, 10))]
    at = np.array([0.1, 1.0, 2.0])
    whole = gaussian(Fraction(4, 10))
    assert composed_delta(parts, at) == pytest.approx(whole.delta(at), rel=1e-6)
    both = composed_delta(
        [randomized_response(Fraction(1, 2)), randomized_response(Fraction(1, 4))], np.array([0.75, 0.25])
    )
    assert both[0] == pytest.approx(0, abs=1e-15)
    assert both[1] > 0.1


def test_pure_cap_adds_epsilons() -> None:
    cap = Cap(1.0, 1e-6, "pure")
    assert ledger_rule(cap)([randomized_response(Fraction(1, 2)), randomized_response(Fraction(1, 2))])
    assert not ledger_rule(cap)([randomized_response(Fraction(1, 2)), randomized_response(Fraction(501, 1000))])
    assert not ledger_rule(cap)([gaussian(Fraction(1, 10**6))])
