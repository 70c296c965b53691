"""The one currency in which the releases of a dataset add up, and what was spent in it.

A cap is a filter only if what it adds was fixed when each release was charged, however the next one is chosen. Squared
mu of Gaussian DP is such a currency, for noise of either kind and for selections (Smith & Thakurta 2022; Koskela,
Tobaben & Honkela 2023: a history that stays within a sum of squared mu is as private as one release of it); epsilon of
pure DP is another. The least of several bounds is none: who sees the first noise can choose which of them will bind.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from dpscale.privacy.accounting import Cost, epsilon_of_squared_mu, float_above

GDP, PURE = "gdp", "pure"
CURRENCIES = {GDP: "squared mu of Gaussian DP", PURE: "epsilon of pure DP"}


@dataclass(frozen=True)
class Spending:
    """What a history has come to. `approximate`: not all of it is pure; `public`: the noise of some of it is known."""

    squared_mu: Fraction = Fraction(0)
    pure: Fraction = Fraction(0)
    approximate: bool = False
    public: bool = False

    def plus(self, cost: Cost, public: bool = False) -> Spending:
        """With one release more, charged as a whole."""
        return Spending(
            self.squared_mu + cost.squared_mu,
            self.pure + cost.pure,
            self.approximate or not cost.is_pure,
            self.public or public,
        )

    def epsilon(self, currency: str, delta: float) -> float:
        """What the whole history comes to in a currency; inf where that cannot say it."""
        if self.public or (currency == PURE and self.approximate):
            return math.inf
        return float_above(self.pure) if currency == PURE else epsilon_of_squared_mu(self.squared_mu, delta)

    def amount(self, currency: str) -> float:
        """What is spent in the currency itself."""
        if self.public or (currency == PURE and self.approximate):
            return math.inf
        return float_above(self.pure if currency == PURE else self.squared_mu)
