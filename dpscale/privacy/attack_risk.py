"""Attack risk: how well any test can find out from a release whether a privacy unit is in the data.

A test has two rates: the false positive rate alpha, the probability of a detection if the unit is not in the data, and
the true positive rate, the probability of a detection if it is. Differential privacy bounds the second by the first,
for every test and whatever else its author knows:
    (epsilon, delta)-DP:  min(e^eps alpha + delta, 1 - e^-eps (1 - delta - alpha)),
    mu-Gaussian DP:       Phi(Phi^-1(alpha) + mu),
    an additive delta:    the bound of the other parts, plus delta.
The bound of Gaussian DP is the lower envelope of the first one over all epsilon with their least delta.

References
----------
Wasserman and Zhou (2010), theorem 2.4, for pure DP; Kairouz, Oh and Viswanath (2015), theorem 2.1, for delta; Dong,
Roth and Su (2022), for trade-off functions and Gaussian DP.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from dpscale.privacy.accounting import Cost, float_above, root_above
from dpscale.privacy.conversion import gaussian_power, pure_power
from dpscale.privacy.protection import ADD_REMOVE, Protection

RATES = (0.05, 0.01)  # false positive rates that are stated


def detection_bound(level: float, mu: float, pure: float | None = None, additive: float = 0.0) -> float:
    """Return the largest true positive rate of a test at a false positive rate.

    Parameters
    ----------
    level : float
        False positive rate, in (0, 1).
    mu : float
        Parameter of Gaussian DP; inf without a guarantee.
    pure : float, optional
        Epsilon, if the whole is pure DP.
    additive : float
        Additive delta.

    Returns
    -------
    float
        Rounded up, at most 1.
    """
    bound = 1.0 if math.isinf(mu) else gaussian_power(level, mu)
    if pure is not None:
        bound = min(bound, pure_power(level, pure))
    return min(1.0, math.nextafter(bound + additive, 2.0)) if additive else bound


def cost_bounds(cost: Cost, levels: Sequence[float] = RATES) -> dict[float, float]:
    """Return the largest true positive rate at each false positive rate, for a cost.

    Parameters
    ----------
    cost : Cost
    levels : sequence of float

    Returns
    -------
    dict of float to float
    """
    mu, pure = root_above(cost.squared_mu), float_above(cost.pure) if cost.is_pure else None
    return {level: detection_bound(level, mu, pure, float_above(cost.delta)) for level in levels}


def total_bounds(spent: Mapping[str, Any], levels: Sequence[float] = RATES, swaps: bool = False) -> dict[float, float]:
    """Return the largest true positive rate at each false positive rate, for all releases of a dataset.

    Parameters
    ----------
    spent : mapping
        Total of the ledger: `squared_mu`, `pure_epsilon` (None if they are infinite) and `additive_delta`.
    levels : sequence of float
    swaps : bool
        Whether neighbours are two steps apart, see `AttackRisk`.

    Returns
    -------
    dict of float to float
    """
    if spent["squared_mu"] is None:
        return dict.fromkeys(levels, 1.0)
    delta = Fraction(spent.get("additive_delta", 0.0))
    costs = [Cost(gaussian=Fraction(spent["squared_mu"]), delta=delta)]
    costs += [Cost(pure=Fraction(pure), delta=delta)] if (pure := spent["pure_epsilon"]) is not None else []
    bounds_of_costs = [cost_bounds(cost.for_group(2) if swaps else cost, levels) for cost in costs]
    return {level: min(bounds[level] for bounds in bounds_of_costs) for level in levels}


@dataclass(frozen=True)
class AttackRisk:
    """Attack risk of a release or of several ones, with the question that the test answers.

    Parameters
    ----------
    bounds : mapping of float to float
        Largest true positive rate by false positive rate.
    protects : Protection
        Privacy unit.
    swaps : bool
        Whether neighbours have the same numbers of records by public totals, so that a record is replaced.
    """

    bounds: Mapping[float, float]
    protects: Protection
    swaps: bool = False

    @classmethod
    def of(cls, cost: Cost, protects: Protection, swaps: bool = False, private: bool = True) -> AttackRisk:
        """Return the risk of a cost; a release whose noise is public has no bound."""
        bounds = cost_bounds(cost.for_group(2) if swaps else cost)
        return cls(bounds if private else dict.fromkeys(bounds, 1.0), protects, swaps)

    @property
    def question(self) -> str:
        """What the test finds out.

        `swaps` or a relation other than adding and removing: the test tells two values apart, not presence.
        """
        row = self.protects.unit is None
        given = "a given row" if row else self.protects.words.replace("all rows of one", "the rows of a given")
        if self.swaps or self.protects.relation != ADD_REMOVE:
            return f"which of two values {given} {'has' if row else 'have'}"
        return f"whether {given} {'is' if row else 'are'} in the data"

    @property
    def sentence(self) -> str:
        """The risk in one sentence."""
        return (
            f"An attacker who knows everything else and tests {self.question} has a {self.rates}; without the"
            " release, the two rates are equal."
        )

    @property
    def rates(self) -> str:
        """The bounds in words."""
        return rates_text(self.bounds)

    def describe(self) -> dict[str, Any]:
        """Return the risk ready for JSON."""
        rates = [{"false_positive_rate": level, "true_positive_rate": bound} for level, bound in self.bounds.items()]
        return {"question": self.question, "bounds": rates, "sentence": self.sentence}


def rates_text(bounds: Mapping[float, float]) -> str:
    """Return bounds by false positive rate in words."""
    (first, most), *others = bounds.items()
    more = "".join(f", and of at most {_share(bound)} at {_share(level)}" for level, bound in others)
    return f"detection rate of at most {_share(most)} at a false alarm rate of {_share(first)}{more}"


def _share(rate: float) -> str:
    """Return a rate in percent with one decimal, rounded up."""
    return f"{math.ceil(round(1000 * rate, 6)) / 10:g} %"
