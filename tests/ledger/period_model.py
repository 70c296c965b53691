"""Plain model of admission under caps on the total and on each period of the data, by the days that a release reads.

It shares no code with the ledger: periods are sets of days, costs are sums of squared mu, and the delta of a Gaussian
mechanism is that of Balle & Wang (2018). The steps between promises are those of `test_period_promises`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date, timedelta
from fractions import Fraction
from functools import cache

from scipy.special import ndtr

from dpscale.privacy.protection import Protection

FAR = date(2050, 6, 15)  # in a month that no release names
DAYS = [date(2025, 11, 1) + timedelta(days=one) for one in range(500)] + [FAR]
STEPS = {  # (promise of the release, promise of the cap) -> steps; other pairs are refused
    ("row", "row"): 1, ("month", "row"): 2, ("year", "row"): 2,
    ("month", "month"): 1, ("year", "month"): 2, ("year", "year"): 1,
}  # fmt: skip
PROMISES = {"row": Protection(), "month": Protection("person", bound=3, span="month"),
            "year": Protection("person", bound=2, span="year"), "all": Protection("person", bound=5)}  # fmt: skip
LABELS = {
    "day": lambda day: day.isoformat(),
    "week": lambda day: "{}-W{:02}".format(*day.isocalendar()),
    "month": lambda day: f"{day:%Y-%m}",
    "quarter": lambda day: f"{day.year}-Q{(day.month + 2) // 3}",
    "year": lambda day: f"{day.year}",
}


NAMES = {day: {by: name(day) for by, name in LABELS.items()} | {"": ""} for day in DAYS}


@cache
def read_labels(labels: tuple[str, ...], by: str) -> frozenset[str]:
    """Return the months or years, or "" for the total, of the days that a release reads; all days without labels."""
    named = set(labels)
    return frozenset(names[by] for names in NAMES.values() if not named or named & set(names.values()))


def gaussian_delta(squared_mu: Fraction, epsilon: float) -> float:
    mu = math.sqrt(squared_mu)
    return float(ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu)) if mu else 0.0


@dataclass(frozen=True)
class Charge:
    """Charge of a release.

    Attributes
    ----------
    squared_mu, delta : Fraction
        Cost and additive delta.
    periods : tuple of str
    promise : str
    """

    squared_mu: Fraction
    delta: Fraction = Fraction(0)
    periods: tuple[str, ...] = ()
    promise: str = "row"


@dataclass
class Model:
    """Dataset under caps.

    Attributes
    ----------
    unit : bool
        Whether caps protect the rows of one unit in each period, or else one row.
    caps : dict
        (epsilon, delta, number of charges before it) by period; "" for the total.
    charges : list of Charge
        Admitted charges in order.
    """

    unit: bool = False
    caps: dict[str, tuple[float, float, int]] = field(default_factory=dict)
    charges: list[Charge] = field(default_factory=list)

    def set_cap(self, period: str, epsilon: float, delta: float) -> None:
        self.caps[period] = epsilon, delta, len(self.charges)

    def promise(self, period: str) -> str:
        """Return the promise of a cap; that of the total is the shorter one of the caps by period."""
        return (period or ("month" if "month" in self.caps else "year")) if self.unit else "row"

    def admits(self, charge: Charge) -> bool:
        """Return whether every cap admits a charge."""
        return all(self._admits(charge, period) for period in self.caps)

    def _admits(self, charge: Charge, period: str) -> bool:
        steps = STEPS.get((charge.promise, self.promise(period)))
        if steps is None or charge.promise == "all":
            return False
        return all(self._within(period, label, charge) for label in read_labels(charge.periods, period))

    def _within(self, period: str, label: str, charge: Charge) -> bool:
        """Return whether the charges that read a day of one month or year, with one more, are within the cap."""
        epsilon, delta, before = self.caps[period]
        read = [label in read_labels(one.periods, period) for one in self.charges]
        own = [one for one, reads in zip(self.charges, read, strict=True) if reads] + [charge]
        first = own[: sum(read[:before]) + 1]  # those before the cap and the first one under it
        additive = delta / 2 if any(one.delta for one in first) else 0.0
        steps = [STEPS[one.promise, self.promise(period)] for one in own]
        squared_mu = sum((one.squared_mu * by**2 for one, by in zip(own, steps, strict=True)), Fraction(0))
        return sum(one.delta for one in own) <= additive and gaussian_delta(squared_mu, epsilon) <= delta - additive


def violations(model: Model) -> Iterator[tuple[str, str]]:
    """Yield each period whose record has a larger delta, at the cap's epsilon, than the cap: (kind, label)."""
    for period, (epsilon, delta, _) in model.caps.items():
        for label in read_labels((), period):
            own = [one for one in model.charges if label in read_labels(one.periods, period)]
            steps = [STEPS.get((one.promise, model.promise(period)), 1) for one in own]
            squared_mu = sum((one.squared_mu * by**2 for one, by in zip(own, steps, strict=True)), Fraction(0))
            if gaussian_delta(squared_mu, epsilon) + float(sum(one.delta for one in own)) > delta * (1 + 1e-9):
                yield period, label


def random_periods(generator: random.Random) -> tuple[str, ...]:
    """Return labels of one or several periods of one length, or none."""
    by = generator.choice([*LABELS, "month", "month", ""])
    if not by:
        return ()
    days = generator.sample(DAYS[40:-60], generator.choice([1, 1, 1, 2, 5]))
    return tuple(sorted({LABELS[by](day) for day in days}))


def random_charge(generator: random.Random, promises: list[str], additive: Fraction) -> Charge:
    """Return a charge; `additive` is the largest additive delta, which half of the charges have."""
    delta = additive * generator.randint(1, 4) / 4 if generator.random() < 0.5 else Fraction(0)
    cost = Fraction(generator.choice([1, 2, 3, 5, 8, 13]), 997)
    return Charge(cost, delta, random_periods(generator), generator.choice(promises))
