"""The cap on a dataset: what it admits, what is left under it, and how a request over it is refused.

A cap (epsilon, delta) admits a history when the composed cost of all of it is (epsilon, delta)-DP. What is left is not
a difference of epsilons, because costs do not add as epsilons: it is found by scaling a request until it just fits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import ROUND_DOWN, Context
from fractions import Fraction

from dpscale.errors import BudgetError
from dpscale.privacy.accounting import Cost

STEPS = 24  # halvings of the scale: below the digits that are shown
FINEST = Fraction(1, 2**60)  # a request that does not fit at this scale does not fit at all


@dataclass(frozen=True)
class Cap:
    """The most that all releases of a dataset may come to: (epsilon, delta)-DP."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        if not (_is_number(self.epsilon) and math.isfinite(self.epsilon) and self.epsilon > 0):
            raise BudgetError("cap.epsilon", f"got {self.epsilon!r}", "a finite number > 0", "give the total allowed")
        if not (_is_number(self.delta) and 0 <= self.delta < 1):
            raise BudgetError("cap.delta", f"got {self.delta!r}", "a number >= 0 and < 1", "1e-9 is a usual choice")

    def admits(self, total: Cost) -> bool:
        """Whether a history of this total cost stays within the cap."""
        return total.epsilon(self.delta) <= self.epsilon

    def __str__(self) -> str:
        return f"epsilon {self.epsilon:.6g} at delta {self.delta:.6g}"


def largest_epsilon(cap: Cap, history: Cost, kind: Cost, delta: float) -> float:
    """The largest epsilon, at `delta`, that a request composed like `kind` can have on top of `history`; 0 for none.

    Six digits, rounded down: the cost of exactly this epsilon is admitted.
    """
    scale = _largest_scale(cap, history, kind)
    epsilon = kind.scaled(scale).epsilon(delta) if scale else 0.0
    return shown_below(epsilon * (1 - 1e-9)) if math.isfinite(epsilon) else 0.0


def remaining_epsilon(cap: Cap, history: Cost) -> float:
    """The largest epsilon, at the cap's delta, of one more Gaussian release (pure where the cap's delta is 0)."""
    kind = Cost(gaussian=Fraction(1)) if cap.delta else Cost(pure=Fraction(1))
    return largest_epsilon(cap, history, kind, cap.delta)


def _largest_scale(cap: Cap, history: Cost, kind: Cost) -> Fraction:
    def fits(scale: Fraction) -> bool:
        return cap.admits(history + kind.scaled(scale))

    low = Fraction(1)
    while not fits(low):
        low /= 2
        if low < FINEST:
            return Fraction(0)
    while fits(low * 2):
        low *= 2
    step = low
    for _ in range(STEPS):
        step /= 2
        low = low + step if fits(low + step) else low
    return low


def shown_below(value: float) -> float:
    """The number of six digits at or below value."""
    return float(Context(prec=6, rounding=ROUND_DOWN).create_decimal(value))


def refusal(
    dataset: str, cap: Cap, history: Cost, cost: Cost, epsilon: float | None, delta: float | None
) -> BudgetError:
    """The sentence that says what was requested, what remains, and the largest epsilon that would fit."""
    at = cap.delta if delta is None or math.isinf(cost.epsilon(delta)) else delta
    asked = cost.epsilon(at) if epsilon is None else epsilon
    largest = largest_epsilon(cap, history, cost, at)
    fits = f"at most epsilon {largest:.6g} at delta {at:.6g}, the largest that would fit" if largest else "nothing more"
    left = f"remaining epsilon {remaining_epsilon(cap, history):.6g} at delta {cap.delta:.6g}"
    remedy = f"ask for epsilon = {largest:.6g} or raise the cap" if largest else "raise the cap or take another dataset"
    return BudgetError(
        "privacy.epsilon",
        f"requested epsilon {asked:.6g} at delta {at:.6g} of dataset {dataset!r}, {left} of its cap of {cap}",
        fits,
        remedy,
    )


def checked_request(epsilon: float | None, delta: float | None) -> tuple[float | None, float | None]:
    """The job's own figures, each of which may be left out."""
    if epsilon is not None and not (_is_number(epsilon) and math.isfinite(epsilon) and epsilon > 0):
        raise BudgetError("privacy.epsilon", f"got {epsilon!r}", "a finite number > 0", "give it, or leave it out")
    if delta is not None and not (_is_number(delta) and 0 <= delta < 1):
        raise BudgetError("privacy.delta", f"got {delta!r}", "a number >= 0 and < 1", "give it, or leave it out")
    return epsilon, delta


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
