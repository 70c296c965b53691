"""Conversions between privacy parameters: Gaussian DP, zCDP, pure DP and (epsilon, delta).

Gaussian DP: the exact curve of Balle & Wang 2018 (Theorem 8), in the form of Dong, Roth & Su 2022 (Corollary 1),
    delta = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu).
Pure DP and the exponential mechanism are Gaussian DP too, by the corner of their trade-off (docs/privacy.md).
zCDP: the Renyi optimisation of Canonne, Kamath & Steinke 2020 (Proposition 12); with t = alpha - 1,
    log delta = min over t > 0 of  t((t+1) rho - eps) - t log(1 + 1/t) - log(1 + t).
Any t gives a valid bound, so an inexact minimiser can cost tightness but never privacy.

Every figure is rounded conservatively: a delta or an epsilon up, a mu or a rho down. The inverse functions have more
slack than the forward ones, so a budget converted to noise and back never exceeds itself.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, SupportsFloat

from dpscale.base.errors import JobError

if TYPE_CHECKING:
    import numpy as np

SLACK = 1e-12  # relative, on deltas and epsilons: an order of magnitude above the rounding errors
MARGIN = 3e-12  # relative, on mu and rho: above SLACK, so that converting back stays within the budget
ULPS = 8 * sys.float_info.epsilon  # relative loss of cancelling terms in an exponent
SMALLEST = sys.float_info.min  # a delta below this is reported as this
TINY = 1e-290  # below it digits are lost; 2 * epsilon is a sufficient bound
NEAR = 2.0  # below it, 1/2 + tanh(epsilon/2)/2 is far enough from 1 for its digits
FAR = 38.0  # beyond so many standard deviations the Gaussian tail is below SMALLEST
WIDE = 1e-11  # relative, on a tail probability at a rounded quantile: rounding errors grow with the quantile
MOST_EXPONENT = 700.0  # e^700 is the largest power of e that is used
NUMBERS = (float, int, SupportsFloat)  # most frequent first: a protocol takes 100 times as long


def checked_epsilon(epsilon: float) -> float:
    """Return a finite epsilon >= 0. Raises JobError otherwise."""
    if not (isinstance(epsilon, NUMBERS) and math.isfinite(epsilon) and epsilon >= 0):
        raise JobError("epsilon", f"got {epsilon!r}", "a finite number >= 0", "use a smaller or a positive epsilon")
    return float(epsilon)


def checked_delta(delta: float) -> float:
    """Return a delta in [0, 1). Raises JobError otherwise."""
    if not (isinstance(delta, NUMBERS) and 0 <= float(delta) < 1):
        raise JobError(
            "delta", f"got {delta!r}", "a number >= 0 and < 1", "choose delta well below 1 / number of people"
        )
    return float(delta)


def checked_parameter(name: str, value: float) -> float:
    """Return a finite mu, rho or epsilon >= 0 of a mechanism. Raises JobError otherwise."""
    if not (isinstance(value, NUMBERS) and math.isfinite(value) and value >= 0):
        raise JobError(name, f"got {value!r}", "a finite number >= 0", "check its noise scale")
    return float(value)


def crossing(above: Callable[[float], bool]) -> tuple[float, float]:
    """Return the neighbouring floats (last below, first above) at which a monotone condition on x > 0 becomes true.

    Doubling and halving enclose the change of the condition, and bisection ends when no float lies between.
    """
    low, high = 0.5, 1.0
    while not above(high):
        low, high = high, high * 2
        if math.isinf(high):
            return low, math.inf

    while above(low):
        low, high = low / 2, low
        if low < SMALLEST:
            return 0.0, high

    while low < (middle := (low + high) / 2) < high:
        low, high = (low, middle) if above(middle) else (middle, high)
    return low, high


# Gaussian differential privacy


def delta_of_mu(mu: float, epsilon: float) -> float:
    """Return the least delta for which mu-Gaussian DP implies (epsilon, delta)-DP.

    Parameters
    ----------
    mu : float
        At least 0.
    epsilon : float
        At least 0.

    Returns
    -------
    float
        Rounded up.

    References
    ----------
    Balle and Wang (2018), theorem 8; Dong, Roth and Su (2022), corollary 1.
    """
    mu, epsilon = checked_parameter("mu", mu), checked_epsilon(epsilon)
    if mu == 0:
        return 0.0

    # delta = Phi(-x) - e^eps Phi(-upper), where e^eps phi(upper) = phi(x)
    x, upper = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    if x > FAR:
        return SMALLEST
    if x < -FAR:
        return 1.0

    # in the tail both terms are small and nearly equal, so their common factor phi(x) is taken out
    delta = math.exp(-x * x / 2) / math.sqrt(2 * math.pi) * _mills_difference(x, mu) if x > -1 else _body(x, upper)
    return min(1.0, max(SMALLEST, delta * math.exp(SLACK + (1 + abs(x)) * upper * ULPS)))


def _body(x: float, upper: float) -> float:
    """Return Phi(-x) - e^eps Phi(-upper) for x < 0, where e^eps phi(upper) = phi(x)."""
    from scipy.special import ndtr

    return float(ndtr(-x)) - math.exp(-x * x / 2) / 2 * _erfcx(upper / math.sqrt(2))


def _mills_difference(x: float, mu: float) -> float:
    """Return R(x) - R(x + mu) with the Mills ratio R = (1 - Phi)/phi.

    It equals the integral over t > 0 of e^(-xt - t²/2) (1 - e^(-mu t)). The subtraction loses all digits if mu is small
    relative to x; the integrand is positive, so its sum loses none.
    """
    if mu >= 1:
        root = math.sqrt(2)
        return math.sqrt(math.pi / 2) * (_erfcx(x / root) - _erfcx((x + mu) / root))

    import numpy as np

    nodes, weights = _quadrature()
    end = math.sqrt(x * x + 90) - x  # the integrand has decreased by e^-45 there, below rounding
    t = nodes * end
    return end * float(weights @ (np.exp(-t * (x + t / 2)) * -np.expm1(-mu * t)))


@lru_cache(maxsize=1)
def _quadrature() -> tuple[np.ndarray, np.ndarray]:
    """Return Gauss-Legendre nodes and weights on [0, 1], enough to integrate e^(-45 u) to the last digit."""
    import numpy as np

    nodes, weights = np.polynomial.legendre.leggauss(80)
    return (nodes + 1) / 2, weights / 2


def _erfcx(x: float) -> float:
    from scipy.special import erfcx

    return float(erfcx(x))


def epsilon_of_mu(mu: float, delta: float) -> float:
    """Return the least epsilon for which mu-Gaussian DP implies (epsilon, delta)-DP.

    Parameters
    ----------
    mu : float
        At least 0.
    delta : float
        In [0, 1).

    Returns
    -------
    float
        Rounded up; inf for delta = 0 and mu > 0.
    """
    mu, delta = checked_parameter("mu", mu), checked_delta(delta)
    if mu == 0 or delta_of_mu(mu, 0) <= delta:
        return 0.0
    if delta < SMALLEST:
        return math.inf
    return crossing(lambda epsilon: delta_of_mu(mu, epsilon) <= delta)[1]


def gdp_mu(epsilon: float, delta: float) -> float:
    """Return the largest mu for which mu-Gaussian DP implies (epsilon, delta)-DP.

    Parameters
    ----------
    epsilon : float
        At least 0.
    delta : float
        In [0, 1).

    Returns
    -------
    float
        Rounded down. 1/mu is the standard deviation of the noise at sensitivity 1.
    """
    epsilon, delta = checked_epsilon(epsilon), checked_delta(delta)
    if delta < SMALLEST:
        return 0.0
    return crossing(lambda mu: delta_of_mu(mu, epsilon) * (1 + MARGIN) > delta)[0]


def mu_of_pure(epsilon: float) -> float:
    """Return a mu for which every epsilon-DP mechanism is mu-Gaussian DP: 2 Phi^-1(e^eps / (1 + e^eps)).

    The trade-off of pure DP is a polygon with one corner, at alpha = beta = 1 / (1 + e^eps); G_mu is convex and passes
    through that corner (docs/privacy.md).

    Parameters
    ----------
    epsilon : float
        At least 0.

    Returns
    -------
    float
        Rounded up; at most epsilon sqrt(pi/2).
    """
    from scipy.special import erfinv, ndtri_exp

    epsilon = checked_epsilon(epsilon)
    if epsilon < TINY:
        return math.nextafter(2 * epsilon, math.inf) if epsilon else 0.0
    if epsilon < NEAR:
        return 2 * math.sqrt(2) * float(erfinv(math.tanh(epsilon / 2))) * (1 + SLACK)
    return -2 * float(ndtri_exp(-(epsilon + math.log1p(math.exp(-epsilon))))) * (1 + SLACK)


def pure_of_mu(mu: float) -> float:
    """Return the largest epsilon for which `mu_of_pure(epsilon) <= mu`: log(Phi(mu/2) / Phi(-mu/2)).

    Φ(x)/Φ(−x) = (1 + e)/(1 − e) with e = erf(x/√2), whose logarithm is 2 atanh(e); it is exact for small mu.
    """
    from scipy.special import log_ndtr

    half = checked_parameter("mu", mu) / 2
    if half < 1:
        return 2 * math.atanh(math.erf(half / math.sqrt(2))) * (1 - MARGIN)
    return float(log_ndtr(half) - log_ndtr(-half)) * (1 - MARGIN)


def mu_of_exponential(epsilon: float) -> float:
    """Return a mu for which an exponential mechanism whose loss has range epsilon is mu-Gaussian DP.

    It is 2 Phi^-1(e^(eps/2) / (1 + e^(eps/2))), as for eps/2 of pure DP (proof in docs/privacy.md).

    Parameters
    ----------
    epsilon : float
        At least 0.

    Returns
    -------
    float
        Rounded up.
    """
    return mu_of_pure(checked_epsilon(epsilon) / 2)


def gaussian_power(level: float, mu: float) -> float:
    """Return the power of the best test at a level between N(0, 1) and N(mu, 1): Phi(Phi^-1(level) + mu), rounded up.

    Under mu-Gaussian DP an event of probability `level` has at most this probability for a neighbouring dataset.
    """
    from scipy.special import ndtr, ndtri

    if not 0 < level < 1:
        return level
    return min(1.0, float(ndtr(ndtri(max(level, TINY)) + mu)) * (1 + WIDE))


def pure_power(level: float, epsilon: float) -> float:
    """Return the largest probability of an event of probability `level` for a neighbour under pure DP, rounded up."""
    low = math.exp(min(epsilon, MOST_EXPONENT)) * level
    return min(1.0, low * (1 + SLACK), (level - math.expm1(-epsilon) * (1 - level)) * (1 + SLACK))


# Zero-concentrated differential privacy


def delta_of_rho(rho: float, epsilon: float) -> float:
    """Return a delta for which rho-zCDP implies (epsilon, delta)-DP: the best one from its Renyi divergences.

    Parameters
    ----------
    rho : float
        At least 0.
    epsilon : float
        At least 0.

    Returns
    -------
    float
        Rounded up.

    References
    ----------
    Canonne, Kamath and Steinke (2020), proposition 12.
    """
    rho, epsilon = checked_parameter("rho", rho), checked_epsilon(epsilon)
    if rho == 0:
        return 0.0
    _, t = crossing(lambda t: (2 * t + 1) * rho - epsilon > math.log1p(1 / t))
    terms = t * (t + 1) * rho, t * epsilon, t * math.log1p(1 / t), math.log1p(t)
    exponent = t * ((t + 1) * rho - epsilon) - terms[2] - terms[3]
    return max(SMALLEST, math.exp(min(0.0, exponent + SLACK + ULPS * sum(terms))))


def epsilon_of_rho(rho: float, delta: float) -> float:
    """Return an epsilon for which rho-zCDP implies (epsilon, delta)-DP: the best one from its Renyi divergences.

    The best order solves rho t² + log(1 + t) = log(1/delta), whose left side increases with t.

    Parameters
    ----------
    rho : float
        At least 0.
    delta : float
        In [0, 1).

    Returns
    -------
    float
        Rounded up; inf for delta = 0 and rho > 0.

    References
    ----------
    Canonne, Kamath and Steinke (2020), proposition 12.
    """
    rho, delta = checked_parameter("rho", rho), checked_delta(delta)
    if rho == 0:
        return 0.0
    if delta == 0:
        return math.inf

    tail = -math.log(delta)
    _, t = crossing(lambda t: rho * t * t + math.log1p(t) > tail)
    terms = (t + 1) * rho, math.log1p(1 / t), tail / t, math.log1p(t) / t
    epsilon = terms[0] - terms[1] + (tail - math.log1p(t)) / t

    return max(0.0, epsilon + SLACK * abs(epsilon) + ULPS * sum(terms))


def zcdp_rho(epsilon: float, delta: float) -> float:
    """Return the largest rho for which `epsilon_of_rho(rho, delta) <= epsilon`.

    The best order solves (log(1/delta) - log(1 + t)) (2t + 1)/t² - log(1 + 1/t) = epsilon, which decreases with t.

    Parameters
    ----------
    epsilon : float
        At least 0.
    delta : float
        In [0, 1).

    Returns
    -------
    float
        Rounded down.
    """
    epsilon, delta = checked_epsilon(epsilon), checked_delta(delta)
    if delta == 0:
        return 0.0

    tail = -math.log(delta)
    _, t = crossing(lambda t: (tail - math.log1p(t)) * (2 + 1 / t) / t - math.log1p(1 / t) < epsilon)
    terms = epsilon, math.log1p(1 / t), tail / t, math.log1p(t) / t
    rho = (epsilon + terms[1] - (tail - math.log1p(t)) / t) / (t + 1)

    return max(0.0, rho * (1 - MARGIN) - 3 * ULPS * sum(terms) / (t + 1))


def rho_of_pure(epsilon: float) -> float:
    """Return the rho of an epsilon-DP mechanism: epsilon²/2.

    Parameters
    ----------
    epsilon : float
        At least 0.

    Returns
    -------
    float
        Rounded up.

    References
    ----------
    Bun and Steinke (2016), proposition 1.4.
    """
    return checked_epsilon(epsilon) ** 2 / 2 * (1 + SLACK)


def rho_of_exponential(epsilon: float) -> float:
    """Return the rho of an exponential mechanism whose loss has range epsilon: epsilon²/8.

    Parameters
    ----------
    epsilon : float
        At least 0.

    Returns
    -------
    float
        Rounded up.

    References
    ----------
    Cesar and Rogers (2021).
    """
    return checked_epsilon(epsilon) ** 2 / 8 * (1 + SLACK)
