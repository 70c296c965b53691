"""The cap on a dataset: what it admits, what is left under it, and how a request over it is refused.

A cap (epsilon, delta) has one currency, which it keeps, and admits a history whose sum in that currency is
(epsilon, delta)-DP. What is left is no difference of epsilons, because they do not add: it is found by scaling a
request until it just fits.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from decimal import ROUND_DOWN, Context
from fractions import Fraction

from dpscale.base.errors import BudgetError, JobError
from dpscale.base.names import shown
from dpscale.privacy.accounting import Cost
from dpscale.privacy.currency import CURRENCIES, GDP, PURE, Spending

MOST = 1e12  # the epsilon of a cap, as of a budget: more overflows on its way, and protects nobody
STEPS = 24  # halvings of the scale: below the digits that are shown
FINEST = Fraction(1, 2**60)  # a request that does not fit at this scale does not fit at all


@dataclass(frozen=True)
class Cap:
    """The most that all releases of a dataset may come to: (epsilon, delta)-DP, added up in a currency.

    Left out, the currency is squared mu of Gaussian DP, and epsilon of pure DP where delta is 0.
    """

    epsilon: float
    delta: float
    currency: str = ""

    def __post_init__(self) -> None:
        if not (_is_number(self.epsilon) and math.isfinite(self.epsilon) and self.epsilon > 0):
            raise JobError("cap.epsilon", f"got {shown(self.epsilon)}", "a finite number > 0", "give the total allowed")
        if not (_is_number(self.delta) and 0 <= self.delta < 1):
            raise JobError("cap.delta", f"got {shown(self.delta)}", "a number >= 0 and < 1", "1e-9 is a usual choice")
        for name in ("epsilon", "delta"):
            object.__setattr__(self, name, float(getattr(self, name)))
        object.__setattr__(self, "currency", self.currency or (GDP if self.delta else PURE))
        if self.currency not in CURRENCIES:
            raise JobError("cap.currency", f"got {shown(self.currency)}", " or ".join(CURRENCIES), "name one of them")
        if self.currency == GDP and not self.delta:
            raise JobError("cap.currency", "gdp at delta 0", "pure, or a delta > 0", "leave it out or give a delta")

    @property
    def boundless(self) -> bool:
        """Whether it is more than can be reckoned with, as older versions took it."""
        return self.epsilon > MOST

    def admits(self, spending: Spending) -> bool:
        """Whether a history that came to so much stays within the cap."""
        return spending.epsilon(self.currency, self.delta) <= self.epsilon

    def __str__(self) -> str:
        return f"epsilon {self.epsilon:.6g} at delta {self.delta:.6g} in {self.currency}"


def new_cap(epsilon: float, delta: float, currency: str) -> Cap:
    """A cap that is to be set; JobError for figures that are none."""
    cap = Cap(epsilon, delta, currency)
    if cap.boundless:
        raise JobError(
            "cap.epsilon", f"got {cap.epsilon:g}", f"a number > 0, at most {MOST:g}", "give the total allowed"
        )
    return cap


def largest_epsilon(cap: Cap, history: Spending, kind: Cost, delta: float, steps: int = 1) -> float:
    """The largest epsilon, at `delta`, that a request composed like `kind` can have on top of `history`; 0 for none.

    Six digits, rounded down: the cost of exactly this epsilon is admitted. It counts at `steps` of group privacy.
    """
    scale = _largest_scale(cap, history, kind.scaled(steps))
    epsilon = kind.scaled(scale).epsilon(delta) if scale else 0.0
    return shown_below(epsilon * (1 - 1e-9)) if math.isfinite(epsilon) else 0.0


def remaining_epsilon(cap: Cap, history: Spending) -> float:
    """The largest epsilon, at the cap's delta, of one more Gaussian release (pure where its currency is)."""
    kind = Cost(gaussian=Fraction(1)) if cap.currency == GDP else Cost(pure=Fraction(1))
    return largest_epsilon(cap, history, kind, cap.delta)


def _largest_scale(cap: Cap, history: Spending, kind: Cost) -> Fraction:
    def fits(scale: Fraction) -> bool:
        return cap.admits(history.plus(kind.scaled(scale)))

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


SENSIBLE = 1e-3  # of what is asked, or of the cap: with less nothing could be told
USED_UP = "too little is left: raise the cap or take another dataset"


def refusal(
    dataset: str,
    cap: Cap,
    history: Spending,
    cost: Cost,
    epsilon: float | None,
    delta: float | None,
    public: bool = False,
    steps: int = 1,
) -> BudgetError:
    """The sentence that says what was requested, what remains, and the largest epsilon that would fit."""
    if public:
        return BudgetError("engine.seed", f"noise that anyone can compute, on dataset {dataset!r}, which has a cap",
                           "noise of a secret key", "leave the seed out, or take data that is not capped")  # fmt: skip
    at = cap.delta if delta is None or math.isinf(cost.epsilon(delta)) else delta
    asked = cost.epsilon(at) if epsilon is None else epsilon
    largest = largest_epsilon(cap, history, cost, at, steps)
    worth = largest and largest >= SENSIBLE * max(asked, cap.epsilon)
    fits = f"at most epsilon {largest:.6g} at delta {at:.6g}, the largest that would fit" if worth else "nothing more"
    left = f"remaining epsilon {remaining_epsilon(cap, history):.6g} at delta {cap.delta:.6g}"
    return BudgetError(
        "privacy.epsilon",
        f"requested epsilon {asked:.6g} at delta {at:.6g} of dataset {dataset!r}, {left} of its cap of {cap}",
        fits,
        _remedy(cap, history, cost, largest, asked),
    )


def _remedy(cap: Cap, history: Spending, cost: Cost, largest: float, asked: float) -> str:
    if history.public:
        return "take another dataset: a release with a seed showed this one's exact counts"
    if cap.currency == PURE and not cost.is_pure:
        return "give epsilon alone, for Laplace noise: a pure cap admits nothing else"
    worth = largest and largest >= SENSIBLE * max(asked, cap.epsilon)
    remedy = f"ask for epsilon = {largest:.6g} or raise the cap" if worth else USED_UP
    if cost.is_pure and cap.currency == GDP:
        remedy += ", or give delta too: under a cap in gdp Gaussian noise costs less"
    return remedy


def checked_request(epsilon: float | None, delta: float | None) -> tuple[float | None, float | None]:
    """The job's own figures, each of which may be left out."""
    if epsilon is not None and not (_is_number(epsilon) and math.isfinite(epsilon) and epsilon > 0):
        raise BudgetError("privacy.epsilon", f"got {shown(epsilon)}", "a finite number > 0", "give it, or leave it out")
    if delta is not None and not (_is_number(delta) and 0 <= delta < 1):
        raise BudgetError("privacy.delta", f"got {shown(delta)}", "a number >= 0 and < 1", "give it, or leave it out")
    return epsilon, delta


def _is_number(value: object) -> bool:
    """Whether it is a number that a float can hold."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return isinstance(value, float) or abs(value) <= sys.float_info.max
