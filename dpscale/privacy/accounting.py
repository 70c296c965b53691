"""What a release costs: exact sums of privacy costs, and the (epsilon, delta) that they come to.

Costs are kept by what is known of the mechanism, in exact fractions, because the kinds compose differently:
Gaussian DP adds squared mu (Dong, Roth & Su 2022, Corollary 2), zCDP adds rho (Bun & Steinke 2016, Lemma 1.7), pure DP
adds epsilon, or epsilon²/2 as zCDP. mu-Gaussian DP is mu²/2-zCDP. Conversions to floats come last and round upwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any

from dpscale.errors import BudgetError
from dpscale.privacy.conversion import (
    checked_delta,
    delta_of_mu,
    delta_of_rho,
    epsilon_of_mu,
    epsilon_of_mu_and_pure,
    epsilon_of_rho,
    gdp_mu,
    rho_of_exponential,
    rho_of_pure,
    zcdp_rho,
)

__all__ = [
    "Cost",
    "delta_of_mu",
    "delta_of_rho",
    "epsilon_of_mu",
    "epsilon_of_rho",
    "float_above",
    "gdp_mu",
    "rho_of_exponential",
    "rho_of_pure",
    "root_above",
    "zcdp_rho",
]

SPLITS = tuple(2.0**-k for k in (1, 2, 4, 7, 11, 16, 22, 30))  # shares of delta tried for either part of a mix


@dataclass(frozen=True)
class Cost:
    """The privacy cost of a release, or of several: what its mechanisms are known to be, summed exactly.

    Parameters
    ----------
    gaussian: sum of the squared mu of Gaussian-DP mechanisms (the papers' privacy cost beta).
    zcdp: sum of the rho of mechanisms only known to be zCDP (exponential mechanism, selection).
    pure: sum of the epsilon of pure-DP mechanisms (Laplace).
    pure_squares: sum of the epsilon² of the same; left out, `pure` is taken as one mechanism.

    Numbers may be given as int, Fraction, float (taken at its exact binary value) or "p/q". Costs add with +.
    """

    gaussian: Fraction = Fraction(0)
    zcdp: Fraction = Fraction(0)
    pure: Fraction = Fraction(0)
    pure_squares: Fraction = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        for part in ("gaussian", "zcdp", "pure"):
            object.__setattr__(self, part, _fraction(part, getattr(self, part)))
        squares = self.pure**2 if self.pure_squares is None else _fraction("pure_squares", self.pure_squares)
        object.__setattr__(self, "pure_squares", squares)
        if (squares > 0) != (self.pure > 0) or squares > self.pure**2:
            raise BudgetError("cost.pure_squares", "does not fit cost.pure", "at most pure², and 0 only with it",
                              "leave it out for a single mechanism, and add the Costs of several")  # fmt: skip

    def __add__(self, other: Cost) -> Cost:
        if not isinstance(other, Cost):
            return NotImplemented
        return Cost(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Cost)))

    @classmethod
    def total(cls, costs: Iterable[Cost]) -> Cost:
        """The cost of all of them together, also when each was chosen in sight of the ones before."""
        return sum(costs, cls())

    def scaled(self, factor: Fraction | int) -> Cost:
        """The cost with every noise scale divided by `factor`: mu and epsilon grow by it, rho by its square."""
        square = Fraction(factor) ** 2
        return Cost(self.gaussian * square, self.zcdp * square, self.pure * factor, self.pure_squares * square)

    def coarsened(self, bits: int = 128) -> Cost:
        """The cost rounded up to fractions of `bits` binary digits, for sums whose denominators have grown long."""
        gaussian, zcdp, pure, squares = (_coarse(getattr(self, f.name), bits) for f in fields(self))
        return Cost(gaussian, zcdp, pure, min(squares, pure**2))

    def to_dict(self) -> dict[str, str]:
        """The exact parts as "p/q" strings, JSON-ready."""
        return {f.name: str(getattr(self, f.name)) for f in fields(self)}

    @classmethod
    def from_dict(cls, parts: Mapping[str, str]) -> Cost:
        """The inverse of `to_dict`; an unknown part is refused, because leaving it out would claim too little."""
        unknown = sorted(set(parts) - {f.name for f in fields(cls)})
        if unknown:
            raise BudgetError("cost", f"got the unknown part {unknown[0]!r}", "gaussian, zcdp, pure, pure_squares",
                              "read it with the version that wrote it")  # fmt: skip
        return cls(**parts)  # type: ignore[arg-type]

    @property
    def rho(self) -> Fraction:
        """The zCDP of the whole, exactly."""
        return self.gaussian / 2 + self.zcdp + self.pure_squares / 2

    def epsilon(self, delta: float) -> float:
        """An epsilon for which the whole is (epsilon, delta)-DP: the least of the bounds that hold for its parts.

        With Gaussian parts alone it is exact, with a pure part besides nearly so. It is inf for delta = 0, unless all
        parts are pure.
        """
        delta = checked_delta(delta)
        return min(bound(self, delta) for bound in BOUNDS)


def _fraction(part: str, value: Any) -> Fraction:
    try:
        fraction = Fraction(value)
    except (TypeError, ValueError, OverflowError, ZeroDivisionError):
        fraction = Fraction(-1)
    if fraction < 0:
        raise BudgetError(f"cost.{part}", f"got {str(value)[:40]}", "a finite number >= 0, exact as int or p/q",
                          "check the noise scale that it comes from")  # fmt: skip
    return Fraction(int(fraction.numerator), int(fraction.denominator))  # NumPy integers inside would overflow


def _coarse(value: Fraction, bits: int) -> Fraction:
    """The least fraction >= value of about `bits` significant binary digits, none of them beyond 2^-1024."""
    if not value:
        return value
    unit = Fraction(2) ** max(-1024, value.numerator.bit_length() - value.denominator.bit_length() - bits)
    return math.ceil(value / unit) * unit


def float_above(value: Fraction) -> float:
    """The least float >= value."""
    try:
        near = float(value)
    except OverflowError:
        return math.inf
    return near if math.isinf(near) or Fraction(near) >= value else math.nextafter(near, math.inf)


def root_above(value: Fraction) -> float:
    """A float >= the square root of value, the exact root where that is a float."""
    root = math.sqrt(float_above(value))
    while not math.isinf(root) and Fraction(root) ** 2 < value:
        root = math.nextafter(root, math.inf)
    return root


# The bounds. Each holds for any Cost and any delta; basic composition adds epsilons and deltas of separate parts.


def _as_pure(cost: Cost, delta: float) -> float:
    return math.inf if cost.gaussian or cost.zcdp else float_above(cost.pure)


def _as_zcdp(cost: Cost, delta: float) -> float:
    return _of_rho(cost.rho, delta)


def _as_zcdp_and_pure(cost: Cost, delta: float) -> float:
    if not cost.pure:
        return math.inf  # no other than the one before
    return _sum_above(_of_rho(cost.gaussian / 2 + cost.zcdp, delta), float_above(cost.pure))


def _as_gaussian_and_zcdp(cost: Cost, delta: float) -> float:
    return _split(cost.gaussian, cost.zcdp + cost.pure_squares / 2, delta)


def _as_gaussian_and_zcdp_and_pure(cost: Cost, delta: float) -> float:
    if not cost.pure or not cost.zcdp:
        return math.inf  # no other than the one before, or than the one after
    return _sum_above(_split(cost.gaussian, cost.zcdp, delta), float_above(cost.pure))


def _as_gaussian_and_pure(cost: Cost, delta: float) -> float:
    mu, pure = root_above(cost.gaussian), float_above(cost.pure)
    if cost.zcdp or not cost.pure or math.isinf(mu) or math.isinf(pure):
        return math.inf
    return epsilon_of_mu_and_pure(mu, pure, delta)


BOUNDS: tuple[Callable[[Cost, float], float], ...] = (
    _as_pure,
    _as_zcdp,
    _as_zcdp_and_pure,
    _as_gaussian_and_zcdp,
    _as_gaussian_and_zcdp_and_pure,
    _as_gaussian_and_pure,
)


def _split(beta: Fraction, rho: Fraction, delta: float) -> float:
    """Gaussian DP at one share of delta and zCDP at the rest, the best of a geometric grid of shares."""
    if not beta or not rho:
        return _of_beta(beta, delta) if not rho else _of_rho(rho, delta)
    shares = [(share * delta, (1 - share) * delta) for share in SPLITS]  # exact: a power of two, and 1 less it
    shares += [(rest, share) for share, rest in shares]
    return min(_sum_above(_of_beta(beta, one), _of_rho(rho, other)) for one, other in shares)


def _of_beta(beta: Fraction, delta: float) -> float:
    mu = root_above(beta)
    return math.inf if math.isinf(mu) else epsilon_of_mu(mu, delta)


def _of_rho(rho: Fraction, delta: float) -> float:
    above = float_above(rho)
    return math.inf if math.isinf(above) else epsilon_of_rho(above, delta)


def _sum_above(one: float, other: float) -> float:
    return math.nextafter(one + other, math.inf) if one and other else one + other
