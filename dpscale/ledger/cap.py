"""Cap of a privacy filter: its figures, what it admits, and the largest request that still fits."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import ROUND_DOWN, Context
from fractions import Fraction
from functools import lru_cache

from dpscale.base.display import safe_repr
from dpscale.base.errors import BudgetError, JobError
from dpscale.privacy.accounting import CURRENCIES, GDP, PURE, Cost, Spending

MOST = 1e12  # largest epsilon of a cap or budget: a larger one overflows later and gives no privacy
RESERVED = 0.5  # of the cap's delta, for additive deltas: it costs 4 % of the squared mu at epsilon 1 and delta 1e-9
STEPS = 24  # bisections of the scale: finer than the displayed digits
FINEST = Fraction(1, 2**60)  # a request that does not fit at this scale does not fit at all


@dataclass(frozen=True)
class Cap:
    """Upper limit, as (epsilon, delta)-DP, on the composition of all releases of a dataset.

    Attributes
    ----------
    epsilon : float
        Finite number above 0.
    delta : float
        Number in [0, 1).
    currency : str
        Unit of composition: "gdp" (squared mu of Gaussian DP) or "pure" (epsilon of pure DP). The default is "pure" if
        delta is 0 and "gdp" otherwise.
    reserved : float
        Part of delta for additive deltas in "gdp", fixed by the first release, because a cap that exchanges delta for
        squared mu later is not a privacy filter (docs/privacy.md). In "pure" it is all of delta.
    """

    epsilon: float
    delta: float
    currency: str = ""
    reserved: float = 0.0

    def __post_init__(self) -> None:
        """Check the figures; the default currency is that of Gaussian noise (GDP) if delta is above 0."""
        if not (_is_number(self.epsilon) and math.isfinite(self.epsilon) and self.epsilon > 0):
            raise JobError(
                "cap.epsilon", f"got {safe_repr(self.epsilon)}", "a finite number > 0", "set the total limit"
            )
        if not (_is_number(self.delta) and 0 <= self.delta < 1):
            raise JobError(
                "cap.delta", f"got {safe_repr(self.delta)}", "a number >= 0 and < 1", "1e-9 is a usual choice"
            )
        for name in ("epsilon", "delta"):
            object.__setattr__(self, name, float(getattr(self, name)))
        object.__setattr__(self, "currency", self.currency or (GDP if self.delta else PURE))
        if self.currency not in CURRENCIES:
            raise JobError(
                "cap.currency", f"got {safe_repr(self.currency)}", " or ".join(CURRENCIES), "name one of them"
            )
        # Gaussian noise has no guarantee at δ = 0
        if self.currency == GDP and not self.delta:
            raise JobError("cap.currency", "gdp at delta 0", "pure, or a delta > 0", "leave it out, or set a delta")

    @property
    def boundless(self) -> bool:
        """Whether epsilon exceeds the largest supported value; older versions accepted such caps."""
        return self.epsilon > MOST

    def admits(self, spending: Spending) -> bool:
        """Return whether `spending` is within the cap."""
        return spending.delta <= self.additive and self.spent_epsilon(spending) <= self.epsilon

    @property
    def additive(self) -> float:
        """Largest sum of additive deltas."""
        return self.reserved if self.currency == GDP else self.delta

    def spent_epsilon(self, spending: Spending) -> float:
        """Return the epsilon of a history at the cap's delta."""
        return spending.epsilon(self.currency, self.delta, self.reserved)

    def __str__(self) -> str:
        return f"epsilon {self.epsilon:.6g} at delta {self.delta:.6g} in {self.currency}"


def new_cap(epsilon: float, delta: float, currency: str) -> Cap:
    """Return a new cap. Raises JobError if a figure is invalid or epsilon exceeds 1e12."""
    cap = Cap(epsilon, delta, currency)
    if cap.boundless:
        raise JobError("cap.epsilon", f"got {cap.epsilon:g}", f"a number > 0, at most {MOST:g}", "set the total limit")
    return cap


@dataclass(frozen=True)
class Limit:
    """Cap of a filter with the history that it composes.

    Attributes
    ----------
    cap : Cap
    history : Spending
        Composition of all earlier releases.
    steps : int
        Number of group-privacy steps at which a request counts.
    """

    cap: Cap
    history: Spending
    steps: int = 1

    def admits(self, cost: Cost, public: bool = False) -> bool:
        """Return whether the history composed with this cost is within the cap."""
        return self.cap.admits(self.history.plus(cost.for_group(self.steps), public))

    def implies(self, other: Limit) -> bool:
        """Return whether the other limit admits every cost that this one admits, which has spent at least as much."""
        ours, theirs = self.history, other.history
        is_same_cap = (self.cap, self.steps) == (other.cap, other.steps)
        spent_more = ours.squared_mu >= theirs.squared_mu and ours.pure >= theirs.pure and ours.delta >= theirs.delta
        return is_same_cap and spent_more and ours.approximate >= theirs.approximate and ours.public >= theirs.public


def binding(limits: Iterable[Limit]) -> list[Limit]:
    """Return the limits that decide: without those that another one implies."""
    deciding = list[Limit]()
    for limit in limits:
        if not any(other.implies(limit) for other in deciding):
            deciding = [*(other for other in deciding if not limit.implies(other)), limit]
    return deciding


def largest_epsilon(limits: Sequence[Limit], kind: Cost, delta: float) -> float:
    """Return the largest epsilon, at `delta`, of one more request that all limits admit; 0 if there is none.

    The request has a cost proportional to `kind`, with the same additive delta. The result has six digits, rounded
    down, so the cost of exactly this epsilon is admitted.

    Parameters
    ----------
    limits : sequence of Limit
    kind : Cost
        Cost whose multiples are tried.
    delta : float
        Delta at which the result is stated.
    """
    scale = _largest_scale(limits, kind)
    epsilon = kind.scaled(scale).epsilon_or_inf(delta) if scale else 0.0
    # a margin for the rounding of the conversion
    return shown_below(epsilon * (1 - 1e-9)) if math.isfinite(epsilon) else 0.0


@lru_cache(maxsize=1024)
def remaining_epsilon(cap: Cap, history: Spending) -> float:
    """Return the largest epsilon, at the cap's delta, of one more Gaussian release.

    The release is pure if the currency of the cap is pure.
    """
    kind = Cost(gaussian=Fraction(1)) if cap.currency == GDP else Cost(pure=Fraction(1))
    return largest_epsilon([Limit(cap, history)], kind, cap.delta)


def _largest_scale(limits: Sequence[Limit], kind: Cost) -> Fraction:
    """Return about the largest s such that all limits admit the cost s · kind, by bisection; 0 below FINEST."""
    limits = binding(limits)

    def fits(scale: Fraction) -> bool:
        return all(limit.admits(kind.scaled(scale)) for limit in limits)

    low = Fraction(1)
    while not fits(low):
        low /= 2
        if low < FINEST:
            return Fraction(0)
    while fits(low * 2):
        low *= 2

    step = low  # low fits, and low + step does not
    for _ in range(STEPS):
        step /= 2
        low = low + step if fits(low + step) else low
    return low


def shown_below(value: float) -> float:
    """Round `value` down to six significant digits."""
    return float(Context(prec=6, rounding=ROUND_DOWN).create_decimal(value))


def checked_request(epsilon: float | None, delta: float | None) -> tuple[float | None, float | None]:
    """Return the epsilon and delta stated in the job. Raises BudgetError if a given one is invalid."""
    if epsilon is not None and not (_is_number(epsilon) and math.isfinite(epsilon) and epsilon > 0):
        raise BudgetError(
            "privacy.epsilon", f"got {safe_repr(epsilon)}", "a finite number > 0", "set it, or leave it out"
        )
    if delta is not None and not (_is_number(delta) and 0 <= delta < 1):
        raise BudgetError(
            "privacy.delta", f"got {safe_repr(delta)}", "a number >= 0 and < 1", "set it, or leave it out"
        )
    return epsilon, delta


def _is_number(value: object) -> bool:
    """Return whether `value` is a number in the range of a float."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return isinstance(value, float) or abs(value) <= sys.float_info.max


@dataclass(frozen=True)
class CapChange:
    """Result of setting a cap.

    Attributes
    ----------
    dataset : str
    cap : Cap
    spent_epsilon : float
        Epsilon of the history, at the cap's delta; the largest of all periods for a cap that renews.
    charged_before : int
        Number of earlier releases; for them the cap is an odometer, not a filter.
    near : str, optional
        Known dataset with a similar name, if this dataset is new.
    period : {"month", "year"}, optional
        Period of the data by which the cap renews.
    fullest : str
        Label of the period with the largest epsilon.
    promise : str
        Promise of a cap that renews, if it is known.
    analyst : str
        Whose releases the cap bounds; empty for all.
    below_spent : bool
        Whether the history already exceeds the cap, so that no further release is admitted.
    """

    dataset: str
    cap: Cap
    spent_epsilon: float
    charged_before: int
    near: str | None = None
    period: str | None = None
    fullest: str = ""
    promise: str = ""
    analyst: str = ""

    @property
    def below_spent(self) -> bool:
        return self.spent_epsilon > self.cap.epsilon

    def __str__(self) -> str:
        """Return the cap, the spent epsilon and remarks as one line of text."""
        scope = f" for each {self.period} of the data" if self.period else f" of {self.analyst}" * bool(self.analyst)
        scope += f", which protects {self.promise}," if self.promise else ""
        text = f"{self.dataset}: the cap{scope} is {self.cap}, "
        text += f"spent is at most {self.spent_epsilon:.6g}" if self.period else f"spent is {self.spent_epsilon:.6g}"
        text += f" ({self.fullest})" if self.period and self.charged_before else ""
        if self.below_spent:
            text += f", which is above it: nothing more is admitted{f' in {self.fullest}' if self.period else ''}"
        if self.charged_before:
            text += f"; for what was charged before it ({self.charged_before}) the cap is an odometer, not a filter"
        if self.near:
            text += f"; it is a new dataset beside {self.near!r}"
        return text
