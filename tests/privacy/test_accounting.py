"""Privacy conversions against mpmath, dp-accounting and each other; rounding never understates a cost."""

from __future__ import annotations

import math
import subprocess
import sys
from fractions import Fraction

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_distribution import (
    from_gaussian_mechanism,
)
from dp_accounting.rdp import RdpAccountant
from hypothesis import assume, given, settings, strategies as st
from scipy.special import ndtr, ndtri

from dpscale.base.errors import BudgetError, JobError
from dpscale.privacy.accounting import (
    Cost,
    delta_of_mu,
    delta_of_rho,
    epsilon_of_mu,
    epsilon_of_rho,
    float_above,
    gdp_mu,
    mu_of_exponential,
    mu_of_pure,
    rho_of_exponential,
    rho_of_pure,
    root_above,
    zcdp_rho,
)
from dpscale.privacy.conversion import pure_of_mu
from tests.messages import refused

EXACT = 1e-9  # how far above the truth an exact conversion may be, relative


def powers_of_ten(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high).map(lambda exponent: 10.0**exponent)


def exact_gaussian_delta(mu: float, epsilon: float) -> mpmath.mpf:
    """Return the closed form with enough digits to absorb its cancellation."""
    with mpmath.workdps(600):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        return mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)


def exact_zcdp_delta(rho: float, epsilon: float) -> mpmath.mpf:
    """Return the infimum over alpha by ternary search of its logarithm over log(alpha − 1)."""
    with mpmath.workdps(60):
        r, e = mpmath.mpf(rho), mpmath.mpf(epsilon)

        def exponent(u: mpmath.mpf) -> mpmath.mpf:
            alpha = 1 + mpmath.exp(u)
            return (alpha - 1) * (alpha * r - e) - mpmath.log(alpha - 1) + alpha * mpmath.log(1 - 1 / alpha)

        low, high = mpmath.mpf(-60), mpmath.mpf(60)
        for _ in range(260):
            a, b = low + (high - low) / 3, high - (high - low) / 3
            low, high = (low, b) if exponent(a) < exponent(b) else (a, high)
        return min(mpmath.mpf(1), mpmath.exp(exponent(low)))


def is_tight_upper_bound(ours: float, truth: mpmath.mpf, slack: float = EXACT) -> bool:
    """Return whether a value is at least the exact one and at most slightly larger."""
    return bool(truth <= ours <= truth * (1 + slack))


# Gaussian DP

CORNERS = [(1e-9, 0), (1, 0), (0.999999, 20), (1, 20), (40, 1e3), (30, 1e3), (3, 0.1)]


@settings(max_examples=60, deadline=None)
@given(mu=powers_of_ten(-7, 2), x=st.floats(-6, 36.9))
def test_delta_of_mu_is_tight_upper_bound(mu: float, x: float) -> None:
    epsilon = mu * (x + mu / 2)  # x standard deviations out: deltas from 1 down to 1e-300
    assume(0 <= epsilon <= 1e3)
    truth = exact_gaussian_delta(mu, epsilon)
    assume(truth > 1e-300)
    assert is_tight_upper_bound(delta_of_mu(mu, epsilon), truth)


@pytest.mark.parametrize(("mu", "epsilon"), CORNERS)
def test_delta_of_mu_at_extreme_parameters(mu: float, epsilon: float) -> None:
    assert is_tight_upper_bound(delta_of_mu(mu, epsilon), exact_gaussian_delta(mu, epsilon))


@pytest.mark.parametrize(("mu", "epsilon"), [(833824.0, 3.476e11), (1e5, 5e9 + 3e4), (2e4, 2e8)])
def test_delta_of_mu_with_huge_exponents(mu: float, epsilon: float) -> None:
    m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
    with mpmath.workdps(60):
        upper = e / m + m / 2
        truth = mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e - upper**2 / 2) / upper / mpmath.sqrt(2 * mpmath.pi)
        truth += mpmath.exp(e - upper**2 / 2) / upper**3  # the tail is between these, and small
    assert truth * (1 - mpmath.mpf(10) ** -12) <= delta_of_mu(mu, epsilon) <= truth * (1 + 1e-6) + 1e-6


@pytest.mark.parametrize("epsilon", [5e-324, 2.5e-323, 1e-322, 1e-310])
def test_mu_of_pure_with_subnormal_epsilon(epsilon: float) -> None:
    assert mu_of_pure(epsilon) >= mpmath.sqrt(mpmath.pi / 2) * mpmath.mpf(epsilon)


def test_delta_of_mu_outside_float_range() -> None:
    assert 0 < delta_of_mu(0.1, 50) < 1e-300
    assert delta_of_mu(1e6, 1) == 1.0
    assert delta_of_mu(0, 1) == 0.0


@settings(max_examples=35, deadline=None)
@given(epsilon=powers_of_ten(-4, 3), delta=powers_of_ten(-290, -0.05))
def test_gdp_mu_is_largest_feasible(epsilon: float, delta: float) -> None:
    mu = gdp_mu(epsilon, delta)
    assert exact_gaussian_delta(mu, epsilon) <= delta < exact_gaussian_delta(mu * (1 + 1e-8), epsilon)


def test_planted_gaussian_scales_are_detected() -> None:
    mu = gdp_mu(1, 1e-6)
    assert exact_gaussian_delta(mu, 1) <= 1e-6
    for factor in (math.sqrt(2), 1.3, 1 + 1e-8):
        assert exact_gaussian_delta(mu * factor, 1) > 1e-6
    assert not is_tight_upper_bound(delta_of_mu(mu / math.sqrt(2), 1), exact_gaussian_delta(mu, 1))
    assert not is_tight_upper_bound(delta_of_mu(mu * math.sqrt(2), 1), exact_gaussian_delta(mu, 1))


def test_gdp_mu_gives_known_sigma() -> None:
    assert 1 / gdp_mu(1, 1e-6) == pytest.approx(4.224679, abs=5e-7)
    assert 1 / gdp_mu(1, 1e-6) >= dp_accounting.get_sigma_gaussian(1, 1e-6, tol=1e-12) * (1 - 1e-9)


@pytest.mark.parametrize("sigma", [0.3, 1, 4.2, 50])
@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-12])
def test_epsilon_of_mu_agrees_with_dp_accounting(sigma: float, delta: float) -> None:
    theirs = dp_accounting.get_epsilon_gaussian(sigma, delta, tol=1e-12)
    assert epsilon_of_mu(1 / sigma, delta) == pytest.approx(theirs, rel=1e-9, abs=1e-11)


@settings(max_examples=50, deadline=None)
@given(epsilon=powers_of_ten(-5, 3), delta=powers_of_ten(-290, -0.05))
def test_conversions_round_trip_within_budget(epsilon: float, delta: float) -> None:
    mu, rho = gdp_mu(epsilon, delta), zcdp_rho(epsilon, delta)
    assert epsilon * (1 - 1e-5) <= epsilon_of_mu(mu, delta) <= epsilon  # deltas near delta(0) leave epsilon ill-defined
    assert epsilon * (1 - 1e-5) <= epsilon_of_rho(rho, delta) <= epsilon
    assert Cost(gaussian=Fraction(mu) ** 2).epsilon(delta) <= epsilon
    assert delta_of_mu(mu, epsilon) <= delta
    assert delta_of_rho(rho, epsilon) <= delta * (1 + 1e-11)


# zCDP


@settings(max_examples=30, deadline=None)
@given(rho=powers_of_ten(-6, 2), epsilon=powers_of_ten(-4, 3))
def test_delta_of_rho_is_tight_upper_bound(rho: float, epsilon: float) -> None:
    truth = exact_zcdp_delta(rho, epsilon)
    assume(truth > 1e-300)
    assert is_tight_upper_bound(delta_of_rho(rho, epsilon), truth)


@settings(max_examples=30, deadline=None)
@given(rho=powers_of_ten(-6, 2), delta=powers_of_ten(-250, -0.3))
def test_epsilon_of_rho_is_smallest_feasible(rho: float, delta: float) -> None:
    epsilon = epsilon_of_rho(rho, delta)
    assume(epsilon > 1e-6)
    assert exact_zcdp_delta(rho, epsilon) <= delta < exact_zcdp_delta(rho, epsilon * (1 - 1e-7))


@settings(max_examples=30, deadline=None)
@given(epsilon=powers_of_ten(-4, 2.5), delta=powers_of_ten(-250, -0.3))
def test_zcdp_rho_is_largest_feasible(epsilon: float, delta: float) -> None:
    rho = zcdp_rho(epsilon, delta)
    assert exact_zcdp_delta(rho, epsilon) <= delta < exact_zcdp_delta(rho * (1 + 1e-7), epsilon)
    assert exact_zcdp_delta(rho * 1.3, epsilon) > delta


@pytest.mark.parametrize("rho", [0.001, 0.1, 3.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-9])
def test_epsilon_of_rho_agrees_with_dp_accounting(rho: float, delta: float) -> None:
    accountant = RdpAccountant(list(1 + np.geomspace(1e-3, 1e5, 20001)))
    accountant.compose(dp_accounting.ZCDpEvent(rho))
    theirs = accountant.get_epsilon(delta)
    ours = epsilon_of_rho(rho, delta)
    assert ours <= theirs * (1 + 1e-9)  # theirs is the same optimum over a finite list of orders
    assert ours == pytest.approx(theirs, rel=1e-5)


@settings(max_examples=30, deadline=None)
@given(mu=powers_of_ten(-3, 1.5), delta=powers_of_ten(-30, -1))
def test_gaussian_conversion_is_tighter_than_zcdp(mu: float, delta: float) -> None:
    assert epsilon_of_mu(mu, delta) <= epsilon_of_rho(mu * mu / 2 * (1 + 1e-15), delta)


@settings(max_examples=30, deadline=None)
@given(
    small=powers_of_ten(-4, 2), factor=st.floats(1.001, 10), epsilon=powers_of_ten(-3, 2), delta=powers_of_ten(-20, -1)
)
def test_conversions_are_monotone(small: float, factor: float, epsilon: float, delta: float) -> None:
    large = small * factor
    assert delta_of_mu(small, epsilon) <= delta_of_mu(large, epsilon)
    assert delta_of_rho(small, epsilon) <= delta_of_rho(large, epsilon)
    assert epsilon_of_mu(small, delta) <= epsilon_of_mu(large, delta)
    assert epsilon_of_rho(small, delta) <= epsilon_of_rho(large, delta)
    assert gdp_mu(epsilon, delta) <= gdp_mu(epsilon * factor, delta)
    assert zcdp_rho(epsilon, delta) <= zcdp_rho(epsilon * factor, delta)
    assert gdp_mu(epsilon, delta / factor) <= gdp_mu(epsilon, delta)
    assert zcdp_rho(epsilon, delta / factor) <= zcdp_rho(epsilon, delta)


def test_rho_of_pure_and_exponential() -> None:
    assert is_tight_upper_bound(rho_of_pure(0.7), mpmath.mpf(0.7) ** 2 / 2)
    assert is_tight_upper_bound(rho_of_exponential(0.7), mpmath.mpf(0.7) ** 2 / 8)


@pytest.mark.parametrize(
    "call",
    [
        lambda: gdp_mu(-1, 1e-6),
        lambda: gdp_mu(1, 1),
        lambda: zcdp_rho(math.nan, 1e-6),
        lambda: zcdp_rho(1, -1e-9),
        lambda: delta_of_mu(math.inf, 1),
        lambda: epsilon_of_rho(-0.1, 1e-6),
        lambda: epsilon_of_mu(1, math.nan),
    ],
)
def test_invalid_parameters_are_refused(call: object) -> None:
    with refused(JobError):
        call()  # type: ignore[operator]


def test_conversions_at_delta_zero() -> None:
    assert gdp_mu(1, 0) == zcdp_rho(1, 0) == 0
    assert epsilon_of_mu(1, 0) == epsilon_of_rho(1, 0) == math.inf
    assert epsilon_of_mu(0, 0) == epsilon_of_rho(0, 0) == 0


# Costs

fractions = st.fractions(0, 3, max_denominator=10**9)
costs = st.builds(Cost, gaussian=fractions, zcdp=fractions, pure=fractions)


@given(st.lists(costs, max_size=5))
def test_costs_add_exactly_and_round_trip(many: list[Cost]) -> None:
    total = Cost.total(many)
    assert total.gaussian == sum(cost.gaussian for cost in many)
    assert total.pure == sum(cost.pure for cost in many)
    assert total.pure_squares == sum(cost.pure**2 for cost in many)
    assert total.zcdp == sum(cost.zcdp for cost in many)
    assert Cost.from_dict(total.to_dict()) == total
    assert Cost.total([total, Cost()]) == total


@given(costs, st.fractions(Fraction(1, 100), 5))
def test_scaled_cost_follows_noise_scale(cost: Cost, factor: Fraction) -> None:
    scaled = cost.scaled(factor)
    assert (scaled.gaussian, scaled.zcdp) == (cost.gaussian * factor**2, cost.zcdp * factor**2)
    assert scaled.pure == cost.pure * factor
    assert scaled.scaled(1 / factor) == cost


@given(st.lists(costs, min_size=1, max_size=3))
def test_coarsened_cost_is_rounded_up(many: list[Cost]) -> None:
    cost = Cost.total(many)
    coarse = cost.coarsened(40)
    for part in ("gaussian", "zcdp", "pure", "pure_squares"):
        exact, rounded = getattr(cost, part), getattr(coarse, part)
        assert exact <= rounded <= exact * (1 + Fraction(1, 2**37))
        assert rounded.numerator.bit_length() <= 82 or rounded.denominator == 1  # pure² has twice the digits


def test_cost_stores_numbers_exactly() -> None:
    assert Cost(gaussian=0.1).gaussian == Fraction(0.1) != Fraction(1, 10)
    assert Cost(gaussian="1/10").gaussian == Fraction(1, 10)
    large = Cost(zcdp=np.int64(2**40))
    assert Cost.total([large] * 2).scaled(2**20).zcdp == 2**81  # no 64-bit integer inside


@pytest.mark.parametrize(
    "parts",
    [
        {"gaussian": -1},
        {"zcdp": math.nan},
        {"pure": math.inf},
        {"gaussian": "a"},
        {"zcdp": "1/0"},
        {"zcdp": None},
        {"pure": 1, "pure_squares": 2},
        {"pure": 1, "pure_squares": 0},
        {"pure_squares": 1},
        {"laplace": "1"},
    ],
)
def test_invalid_cost_is_refused(parts: dict[str, str]) -> None:
    with refused(BudgetError):
        Cost.from_dict(parts)


@given(st.fractions(0, 10**6, max_denominator=10**12))
def test_fractions_are_rounded_up_to_floats(value: Fraction) -> None:
    assert value <= Fraction(float_above(value)) <= value * (1 + Fraction(1, 2**52))
    assert value <= Fraction(root_above(value)) ** 2 <= value * (1 + Fraction(1, 2**49))


def test_too_large_fractions_become_infinite() -> None:
    assert float_above(Fraction(10**400)) == root_above(Fraction(10**400)) == math.inf
    assert Cost(gaussian=10**400).epsilon(1e-6) == math.inf


@pytest.mark.parametrize("mu", [0.1, 0.5, 3.0])
def test_composed_gaussian_costs_are_exact(mu: float) -> None:
    parts = [Cost(gaussian=Fraction(mu) ** 2 / 7)] * 7
    assert Cost.total(parts).epsilon(1e-9) == epsilon_of_mu(mu, 1e-9)


def test_pure_costs_compose_by_better_of_both_bounds() -> None:
    few, many = Cost.total([Cost(pure="1/2")] * 2), Cost.total([Cost(pure="1/100")] * 10000)
    assert few.epsilon(1e-9) == few.epsilon(0) == 1
    assert many.epsilon(0) == 100
    assert many.epsilon(1e-9) == epsilon_of_mu(root_above(many.squared_mu), 1e-9) < 8.5
    assert Cost(pure=100).epsilon(1e-9) == 100  # one mechanism of epsilon 100 is not many small ones


def test_delta_zero_is_for_pure_costs_only() -> None:
    assert Cost(pure=1).epsilon(0) == 1
    assert Cost(pure=1, gaussian="1/10").epsilon(0) == Cost(zcdp=1).epsilon(0) == math.inf
    assert Cost().epsilon(0) == Cost().epsilon(0.1) == 0


# Everything as Gaussian DP


def trade_off_corner(epsilon: float) -> mpmath.mpf:
    """Return Φ⁻¹ of e^ε / (1 + e^ε), by Newton steps from a float."""
    with mpmath.workdps(60):
        tail = 1 / (1 + mpmath.exp(mpmath.mpf(epsilon)))
        x = mpmath.mpf(mu_of_pure(epsilon)) / 2
        for _ in range(8):
            x += (mpmath.ncdf(-x) - tail) / mpmath.npdf(x)
        return x


@settings(max_examples=60, deadline=None)
@given(epsilon=powers_of_ten(-9, 2.8))
def test_mu_of_pure_is_tight_upper_bound(epsilon: float) -> None:
    assert is_tight_upper_bound(mu_of_pure(epsilon), 2 * trade_off_corner(epsilon))
    assert mu_of_exponential(2 * epsilon) == mu_of_pure(epsilon)
    assert mu_of_pure(epsilon) ** 2 <= math.pi / 2 * epsilon**2 * (1 + 1e-9)  # what many small parts are charged as
    assert epsilon * (1 - 1e-9) <= pure_of_mu(mu_of_pure(epsilon)) <= epsilon
    assert mu_of_pure(pure_of_mu(epsilon)) <= epsilon


def polygon_is_above(q: float, p: float, mu: float) -> bool:
    """Return whether a trade-off function with one corner at (q, 1 − p) is above G_μ at every level."""
    levels = np.concatenate([np.linspace(0, 1, 2001), np.geomspace(1e-12, 1, 500), [q]])
    straight = np.interp(levels, [0, q, 1], [1, 1 - p, 0])
    return bool(np.all(straight >= ndtr(ndtri(1 - levels) - mu) - 1e-12))


def two_outcomes(epsilon: float, most: float) -> tuple[float, float]:
    """Return Q and P of the outcome with the larger loss, for losses `most` and `most` − epsilon."""
    q = -math.expm1(most - epsilon) / (math.exp(most) * -math.expm1(-epsilon))
    return q, q * math.exp(most)


@pytest.mark.parametrize("epsilon", [0.001, 0.03, 0.5, 1.0, 2.0, 5.0, 12.0])
def test_mu_of_exponential_covers_every_bounded_range_loss(
    epsilon: float,
) -> None:
    mu = mu_of_exponential(epsilon)
    pairs = [two_outcomes(epsilon, share * epsilon) for share in np.linspace(0.001, 0.999, 199)]
    needed = [ndtri(p) - ndtri(q) for q, p in pairs]
    assert all(polygon_is_above(q, p, mu) for q, p in pairs)
    assert int(np.argmax(needed)) == 99  # the middle of the range is the worst, as the proof says
    assert max(needed) == pytest.approx(mu, rel=1e-9)
    assert not all(polygon_is_above(q, p, 0.99 * mu) for q, p in pairs)  # the check sees a mu too small
    assert epsilon**2 / 4 * 1.2 < mu**2 <= epsilon**2 / 4 * math.pi / 2 * (1 + 1e-9) or epsilon > 5


def test_ratios_in_documentation() -> None:
    assert gdp_mu(1, 1e-9) ** 2 / (2 * zcdp_rho(1, 1e-9)) == pytest.approx(1.106, abs=5e-4)
    assert mu_of_exponential(1e-3) ** 2 / (1e-6 / 4) == pytest.approx(1.57, abs=5e-3)
    assert mu_of_exponential(5.0) ** 2 / (25 / 4) == pytest.approx(1.32, abs=5e-3)


@settings(max_examples=25, deadline=None)
@given(cost=costs, more=costs, delta=powers_of_ten(-12, -1))
def test_added_cost_never_lowers_epsilon(cost: Cost, more: Cost, delta: float) -> None:
    epsilon = cost.epsilon(delta)
    for part in (Cost(gaussian=cost.gaussian), Cost(zcdp=cost.zcdp), Cost(pure=cost.pure)):
        if not part.is_pure:
            assert epsilon >= part.epsilon(delta) * (1 - 1e-9)
    assert (cost + more).squared_mu >= cost.squared_mu


@settings(max_examples=25, deadline=None)
@given(rho=st.fractions(Fraction(1, 1000), 2), share=st.fractions(0, 1))
def test_zcdp_cost_covers_any_split_of_gaussian_and_exponential(rho: Fraction, share: Fraction) -> None:
    epsilon = math.sqrt(8 * share * rho)  # all selections as one
    truth = 2 * (1 - share) * rho + Fraction(mu_of_exponential(epsilon)) ** 2
    assert truth <= Cost(zcdp=rho).squared_mu * (1 + Fraction(1, 10**9))
    assert Cost(zcdp=rho).squared_mu >= 2 * rho


def test_composed_gaussians_agree_with_dp_accounting() -> None:
    sigmas = [1.0, 2.0, 5.0]
    loss = from_gaussian_mechanism(sigmas[0], value_discretization_interval=1e-4)
    for sigma in sigmas[1:]:
        loss = loss.compose(from_gaussian_mechanism(sigma, value_discretization_interval=1e-4))
    ours = Cost.total(Cost(gaussian=1 / Fraction(sigma) ** 2) for sigma in sigmas).epsilon(1e-6)
    assert ours == pytest.approx(loss.get_epsilon_for_delta(1e-6), rel=1e-3)
    assert ours <= loss.get_epsilon_for_delta(1e-6)


def test_accounting_import_loads_no_heavy_library() -> None:
    code = "import dpscale.privacy.accounting, sys; print(*({'dask', 'scipy', 'numpy', 'numba'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
