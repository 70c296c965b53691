"""Privacy costs of releases: exact composition and conversion to (epsilon, delta).

Costs are stored per type of mechanism, in exact fractions: Gaussian DP adds squared mu (Dong, Roth & Su 2022,
Corollary 2), pure DP adds epsilon. Every other cost is converted to Gaussian DP: pure mechanisms and selections through
the corner of their trade-off function (docs/privacy.md), old zCDP entries as pi times their rho. A release therefore
has one squared mu, known when it is charged, and releases add. Conversions to floats happen last and round upwards.

A mechanism with an event that shows more than its noise allows, of probability delta, has an additive delta: its
trade-off function is at least that of the other parts, minus delta. Additive deltas add (docs/privacy.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import Any

from dpscale.base.errors import BudgetError
from dpscale.privacy.conversion import (
    checked_delta,
    checked_epsilon,
    delta_of_mu,
    delta_of_rho,
    epsilon_of_mu,
    epsilon_of_rho,
    gaussian_power,
    gdp_mu,
    mu_of_exponential,
    mu_of_pure,
    pure_power,
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
    "mu_of_exponential",
    "mu_of_pure",
    "rho_of_exponential",
    "rho_of_pure",
    "root_above",
    "zcdp_rho",
]

MOST = 10**15  # largest epsilon for which mu is computed
PI = Fraction(math.nextafter(math.pi, 4))  # upper bound on pi
EXACT = ("gaussian", "zcdp", "pure", "pure_squares")  # parts that every cost writes; the others only if they are set
LONGEST = 64  # characters of a period
STATED_DELTA = 1e-9  # δ at which ε is stated where none is given


@dataclass(frozen=True)
class Cost:
    """Privacy cost of one or several releases, summed exactly per type of mechanism.

    Numbers may be given as int, Fraction, float (taken at its exact binary value) or "p/q". Costs add with +.

    Parameters
    ----------
    gaussian : Fraction
        Sum of the squared mu of Gaussian-DP mechanisms (the privacy cost beta of the papers), including selections.
    zcdp : Fraction
        Sum of the rho of old adaptive entries: Gaussian measurements and selections.
    pure : Fraction
        Sum of the epsilon of pure-DP mechanisms (Laplace).
    pure_squares : Fraction
        Sum of the epsilon² of the same mechanisms. Default: `pure` is a single mechanism.
    delta : Fraction
        Additive delta, at most 1: the trade-off function is that of the other parts, minus delta, or above it.
    period : str
        Period of the data that the cost is for, such as "2026-02"; empty if it is for no single period. It changes no
        total: costs of different periods add.
    """

    gaussian: Fraction = Fraction(0)
    zcdp: Fraction = Fraction(0)
    pure: Fraction = Fraction(0)
    pure_squares: Fraction = None  # type: ignore[assignment]
    delta: Fraction = Fraction(0)
    period: str = ""

    def __post_init__(self) -> None:
        """Make the parts exact fractions and check them; `pure_squares` is by default that of one mechanism."""
        for part in ("gaussian", "zcdp", "pure", "delta"):
            object.__setattr__(self, part, _fraction(part, getattr(self, part)))
        squares = self.pure**2 if self.pure_squares is None else _fraction("pure_squares", self.pure_squares)
        object.__setattr__(self, "pure_squares", squares)
        if (squares > 0) != (self.pure > 0) or squares > self.pure**2:
            raise BudgetError("cost.pure_squares", "does not fit cost.pure", "at most pure², and 0 only with it",
                              "leave it out, and add the costs of several mechanisms")  # fmt: skip
        if self.delta > 1:
            raise BudgetError("cost.delta", f"got {float_above(self.delta):.6g}", "an additive delta of at most 1",
                              "check the probability of the event")  # fmt: skip
        _check_period(self.period)

    def __add__(self, other: Cost) -> Cost:
        """Return the composition of both, adaptive or not. The sum has a period if all its parts have the same.

        A part that costs nothing is False and does not count for the period.
        """
        if not isinstance(other, Cost):
            return NotImplemented
        gaussian, zcdp, pure, squares = (getattr(self, part) + getattr(other, part) for part in EXACT)
        periods = {cost.period for cost in (self, other) if cost} or {self.period, other.period}
        period = periods.pop() if len(periods) == 1 else ""
        return Cost(
            gaussian=gaussian,
            zcdp=zcdp,
            pure=pure,
            pure_squares=squares,
            delta=min(self.delta + other.delta, Fraction(1)),
            period=period,
        )

    @classmethod
    def total(cls, costs: Iterable[Cost]) -> Cost:
        """Return the composition of costs, none of which was chosen adaptively.

        Guarantee
        ---------
        Protected: all releases together, if their noise is independent and none is chosen from values of another.
        Cost: sums of squared mu, of pure epsilon and of additive delta, in exact fractions.
        Neighbours: those of the releases, which are the same.
        Proof: docs/privacy.md, One currency: everything is Gaussian DP; tests/privacy/test_accounting.py.
        """
        return sum(costs, cls())

    def scaled(self, factor: Fraction | int) -> Cost:
        """Return the cost with every noise scale divided by `factor`.

        Mu and epsilon grow linearly, rho quadratically. The additive delta is a probability that does not follow from
        a noise scale, and stays.
        """
        square = Fraction(factor) ** 2
        parts = self.gaussian * square, self.zcdp * square, self.pure * factor, self.pure_squares * square
        return Cost(*parts, self.delta, self.period)

    def for_group(self, size: int) -> Cost:
        """Return the cost to a group of `size` privacy units: of datasets that `size` neighbour steps connect.

        Mu and epsilon grow linearly. The additive delta grows as d_k = delta + power(d_(k-1)), d_1 = delta, where
        power(x) is the largest probability, one step further, of an event of probability x (docs/privacy.md).

        Parameters
        ----------
        size : int
            At least 1.

        Returns
        -------
        Cost
            With the additive delta rounded up.

        Guarantee
        ---------
        Protected: the same release, between datasets that `size` neighbour steps connect.
        Cost: size · μ, size · ε, and the additive delta of the recursion above.
        Neighbours: chains of `size` steps of the relation of the cost.
        Proof: docs/privacy.md, Additive δ; tests/privacy/test_additive_delta.py.
        """
        if isinstance(size, bool) or not (isinstance(size, int) and size >= 1):
            raise BudgetError("size", f"got {size!r}", "an integer >= 1", "count the units of the group")

        scaled, delta, mu = self.scaled(size), self.delta, root_above(self.squared_mu) if self.delta else 0.0
        for _ in range(size - 1):
            if delta in (0, 1):
                break
            level = float_above(delta)
            grown = min(gaussian_power(level, mu), pure_power(level, float_above(self.pure)) if self.is_pure else 1.0)
            delta = min(self.delta + Fraction(grown), Fraction(1))

        return replace(scaled, delta=delta)

    def coarsened(self, bits: int = 128) -> Cost:
        """Return the cost rounded up to fractions of `bits` binary digits, for sums with long denominators."""
        gaussian, zcdp, pure, squares, delta = (_coarse(getattr(self, part), bits) for part in (*EXACT, "delta"))
        return Cost(
            gaussian=gaussian,
            zcdp=zcdp,
            pure=pure,
            pure_squares=min(squares, pure**2),
            delta=min(delta, Fraction(1)),
            period=self.period,
        )

    def to_dict(self) -> dict[str, str]:
        """Return the exact parts as "p/q" strings, ready for JSON; additive delta and period only if they are set."""
        more = {part: value for part in ("delta", "period") if (value := getattr(self, part))}
        return {part: str(getattr(self, part)) for part in EXACT} | {part: str(value) for part, value in more.items()}

    @classmethod
    def from_dict(cls, parts: Mapping[str, str]) -> Cost:
        """Parse the output of `to_dict`; an unknown part is refused, because ignoring it would understate the cost."""
        unknown = sorted(set(parts) - {f.name for f in fields(cls)})
        if unknown:
            raise BudgetError("cost", f"got the unknown part {unknown[0]!r}", ", ".join(f.name for f in fields(cls)),
                              "read it with the version of dpscale that wrote it")  # fmt: skip
        return cls(**parts)  # type: ignore[arg-type]

    def __bool__(self) -> bool:
        return any(getattr(self, part) for part in (*EXACT, "delta"))

    @property
    def is_pure(self) -> bool:
        """Whether all mechanisms are pure DP, except for their additive delta."""
        return not self.gaussian and not self.zcdp

    @property
    def squared_mu(self) -> Fraction:
        """Squared mu of Gaussian DP of the whole: its share of a budget in that currency.

        A selection of range epsilon has rho = epsilon²/8 and at most pi rho of squared mu, a measurement has 2 rho.
        """
        return self.gaussian + PI * self.zcdp + self._pure_as_gaussian

    @property
    def _pure_as_gaussian(self) -> Fraction:
        """Squared mu of the pure part.

        It is the smaller of that of one mechanism with the total epsilon and of a sum of at most epsilon² pi/2 per
        mechanism.

        `pure_squares` is Σ ε² over the mechanisms, so π/2 of it bounds their squared mu.
        """
        if not self.pure:
            return self.pure
        mu = mu_of_pure(float_above(self.pure)) if self.pure < MOST else math.inf
        parts = PI / 2 * self.pure_squares
        return parts if math.isinf(mu) else min(Fraction(mu) ** 2, parts)

    def epsilon(self, delta: float) -> float:
        """Return an epsilon for which the whole is (epsilon, delta)-DP, as one release with parts fixed in advance.

        It is exact for Gaussian parts alone. It is inf for delta = 0 unless all parts are pure. The additive delta is
        subtracted from `delta`.

        Raises
        ------
        BudgetError
            If the additive delta uses up `delta`.
        """
        delta = checked_delta(delta)
        if self.delta and (self.delta > delta or (self.delta == delta and not self.is_pure)):
            raise BudgetError("delta", f"got {delta:.6g} for a cost with additive delta {float_above(self.delta):.6g}",
                              "a delta above the additive one", "state the cost at a larger delta")  # fmt: skip
        return self.epsilon_or_inf(delta)

    def epsilon_or_inf(self, delta: float) -> float:
        """Return the same as `epsilon`, but inf if the additive delta uses up `delta`.

        `remaining` is the delta that remains for the squared mu; a cost with pure epsilon alone has at most its sum.
        """
        if (remaining := delta_left(delta, self.delta)) < 0:
            return math.inf
        pure = float_above(self.pure) if self.is_pure else math.inf
        return min(pure, epsilon_of_squared_mu(self.squared_mu, remaining))

    def delta_at(self, epsilon: float) -> float:
        """Return a delta for which the whole is (epsilon, delta)-DP, rounded up: that of the mu, plus the additive one.

        It is exact for Gaussian parts alone. A cost with pure epsilon alone, of at most `epsilon`, needs only its
        additive delta. An infinite mu has the delta 1.
        """
        if self.is_pure and self.pure <= checked_epsilon(epsilon):
            return float_above(self.delta)
        mu = root_above(self.squared_mu)
        curve = 1.0 if math.isinf(mu) else delta_of_mu(mu, epsilon)
        return float_above(min(Fraction(curve) + self.delta, Fraction(1)))


def _check_period(period: Any) -> None:
    """Raise BudgetError unless the name of a period is printable, short and without blanks around it."""
    fits = isinstance(period, str) and len(period) <= LONGEST and period.isprintable() and period == period.strip()
    if not fits:
        raise BudgetError("cost.period", f"got {str(period)[:LONGEST]!r}",
                          f"a text of at most {LONGEST} printable characters without spaces around it",
                          'name the period, as in "2026-02", or leave it out')  # fmt: skip


def _fraction(part: str, value: Any) -> Fraction:
    """Return a part of a cost as an exact fraction of at least 0; refuse other values."""
    try:
        fraction = Fraction(value)
    except (TypeError, ValueError, OverflowError, ZeroDivisionError):
        fraction = Fraction(-1)

    if fraction < 0:
        raise BudgetError(f"cost.{part}", f"got {str(value)[:40]}", "a finite number >= 0, exact as int or p/q",
                          "check its noise scale")  # fmt: skip
    return Fraction(int(fraction.numerator), int(fraction.denominator))  # NumPy integers inside would overflow


def _coarse(value: Fraction, bits: int) -> Fraction:
    """Return the least fraction >= value with about `bits` significant binary digits, none beyond 2^-1024.

    `unit` is the power of two of the last digit that is left.
    """
    if not value:
        return value
    unit = Fraction(2) ** max(-1024, value.numerator.bit_length() - value.denominator.bit_length() - bits)
    return math.ceil(value / unit) * unit


def float_above(value: Fraction) -> float:
    """Return the least float >= value.

    Conversion rounds to the nearest float; if that is below, the next one is above.
    """
    try:
        near = float(value)
    except OverflowError:
        return math.inf
    return near if math.isinf(near) or Fraction(near) >= value else math.nextafter(near, math.inf)


def delta_left(delta: float, additive: Fraction) -> float:
    """Return the largest float <= delta - additive; negative if the additive delta is larger."""
    if not additive:
        return delta
    remaining = Fraction(delta) - additive
    near = float(remaining)
    return near if Fraction(near) <= remaining else math.nextafter(near, -math.inf)


def root_above(value: Fraction) -> float:
    """Return a float >= the square root of value, or the exact root if it is a float.

    The root of floats may be rounded down, so it is increased until its exact square is at least the value.
    """
    root = math.sqrt(float_above(value))
    while not math.isinf(root) and Fraction(root) ** 2 < value:
        root = math.nextafter(root, math.inf)
    return root


def epsilon_of_squared_mu(squared: Fraction, delta: float) -> float:
    """Return the least epsilon for which that squared mu implies (epsilon, delta)-DP; inf beyond floats."""
    mu = root_above(squared)
    return math.inf if math.isinf(mu) else epsilon_of_mu(mu, delta)


GDP, PURE = "gdp", "pure"
CURRENCIES = {GDP: "squared mu of Gaussian DP", PURE: "epsilon of pure DP"}


@dataclass(frozen=True)
class Spending:
    """Composition of a history of releases.

    Attributes
    ----------
    squared_mu, pure : Fraction
        Sums in the two currencies.
    approximate : bool
        Whether some release is not pure DP.
    public : bool
        Whether the noise of some release is publicly known.
    delta : Fraction
        Sum of the additive deltas, at most 1.
    """

    squared_mu: Fraction = Fraction(0)
    pure: Fraction = Fraction(0)
    approximate: bool = False
    public: bool = False
    delta: Fraction = Fraction(0)

    def plus(self, cost: Cost, public: bool = False) -> Spending:
        """Return the spending after one more release, charged as a whole.

        `approximate` says whether a release is not pure, and `public` whether the noise of one is publicly known.
        """
        return Spending(
            squared_mu=self.squared_mu + cost.squared_mu,
            pure=self.pure + cost.pure,
            approximate=self.approximate or not cost.is_pure,
            public=self.public or public,
            delta=min(self.delta + cost.delta, Fraction(1)),
        )

    def epsilon(self, currency: str, delta: float, reserved: float = 0.0) -> float:
        """Return the epsilon of the whole history in a currency; inf if that currency cannot express it.

        The additive deltas, or the part of `delta` that is reserved for them if it is larger, are subtracted from
        `delta`. It is inf if they use it up.

        The currency of pure ε expresses a history only if all its releases are pure.
        """
        remaining = delta_left(delta, max(self.delta, Fraction(reserved)))
        if self.public or remaining < 0 or (currency == PURE and self.approximate):
            return math.inf
        return float_above(self.pure) if currency == PURE else epsilon_of_squared_mu(self.squared_mu, remaining)

    def amount(self, currency: str) -> float:
        """Return the amount spent in the currency itself."""
        if self.public or (currency == PURE and self.approximate):
            return math.inf
        return float_above(self.pure if currency == PURE else self.squared_mu)


GAUSSIAN, LAPLACE = "gaussian", "laplace"


@dataclass(frozen=True)
class Budget:
    """Budget of a plan: `amount` is β for Gaussian noise and ε for Laplace noise."""

    noise: str
    amount: float

    @property
    def privacy_cost(self) -> float:
        """Divisor of a plan's squared errors at privacy cost 1: β, or ε²."""
        return self.amount**2 if self.noise == LAPLACE else self.amount

    @property
    def cost(self) -> Cost:
        """Cost of a release that uses the whole budget."""
        amount = Fraction(self.amount)
        return Cost(pure=amount) if self.noise == LAPLACE else Cost(gaussian=amount)
