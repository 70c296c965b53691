"""A dataset's rows on the ledger, read as an account: whom it protects, what was spent, what its cap still admits."""

from __future__ import annotations

import json
import math
import re
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_DOWN, Context
from fractions import Fraction
from functools import cached_property
from typing import Any

from dpscale.base.display import shown
from dpscale.base.errors import BudgetError, JobError
from dpscale.privacy.accounting import CURRENCIES, GDP, PURE, Cost, Spending
from dpscale.privacy.protection import Protection, checked_steps

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


Row = dict[str, Any]
SEEDED = re.compile(r"seed-?\d+-[0-9a-f]{24}")  # what a run with a seed calls its release


def cost_to_text(cost: Cost) -> str:
    """One text for one cost: canonical JSON of exact fractions."""
    try:
        return json.dumps(cost.to_dict(), sort_keys=True)
    except ValueError as error:  # Python prints no integer of more than some thousand digits
        raise BudgetError("cost", "got a fraction of thousands of digits", "fractions of fewer digits",
                          "round it up with Cost.coarsened()") from error  # fmt: skip


def cost_from_text(text: str) -> Cost:
    """The inverse of `cost_to_text`."""
    try:
        return Cost.from_dict(json.loads(text))
    except (ValueError, TypeError) as error:
        raise BudgetError("cost", "got a row that is not a cost", "the text that the ledger wrote",
                          "restore the ledger from a copy") from error  # fmt: skip


def canonical(name: str) -> str:
    """The form in which names of datasets are compared: stripped, Unicode NFC."""
    return unicodedata.normalize("NFC", name.strip())


@dataclass(frozen=True)
class Account:
    """One dataset. `caps`, `releases`: its rows in order, with their terms and protections where those are known."""

    name: str
    caps: Sequence[Row]
    releases: Sequence[Row]

    @cached_property
    def cap(self) -> Cap | None:
        """The cap that holds now."""
        return cap_of(self.caps[-1]) if self.caps else None

    @cached_property
    def protects(self) -> Protection | None:
        """What all its releases protect: as the cap says, or as the first release did; None where nobody said yet.

        A cap that names a unit's column without its table is of the table that all releases for that column name.
        """
        said = next((one for row in (*self.caps[-1:], *self.releases) if (one := protection_of(row))), None)
        if said is None or said.unit is None or said.table:
            return said
        tables = self._tables(said)
        return replace(said, table=tables.pop()) if len(tables) == 1 else said

    def _tables(self, said: Protection) -> set[str | None]:
        """The tables that releases name for a unit's column."""
        return {row["unit_table"] for row in self.releases if row["unit"] == said.unit}

    @property
    def currency(self) -> str:
        """That of the cap; without one, that of pure DP for a history that is pure."""
        if self.cap:
            return self.cap.currency
        return PURE if self.releases and not self.spent.approximate else GDP

    @cached_property
    def spent(self) -> Spending:
        """What all releases come to."""
        return self._sum(self.releases)

    @property
    def reserved(self) -> Spending:
        """What those come to of which not all noise is drawn."""
        return self._sum(row for row in self.releases if row["state"] == "reserved")

    @property
    def charged_before(self) -> int:
        """How many releases there were already when the cap was set: for them it came too late to be a filter."""
        return sum(row["reserved_at"] < self.caps[-1]["set_at"] for row in self.releases) if self.caps else 0

    def steps(self, protection: Protection | None) -> int:
        """At how many steps of group privacy a release counts here; BudgetError where no number is sure."""
        if protection is None or self.protects is None:
            return 1
        said = self.protects
        if said.unit is not None and said.unit == protection.unit and not said.table and not self._tables(said):
            said = replace(said, table=protection.table)  # a cap on a column, before the first release for it
        return checked_steps(protection, said, self.name)

    def counted(self, row: Row) -> Cost:
        """What an entry costs in terms of what the dataset protects.

        An entry without a table is of the table that the cap names: whoever set the cap answers for that.
        """
        protection, cap = protection_of(row), protection_of(self.caps[-1]) if self.caps else None
        if protection and cap and cap.table and protection.unit == cap.unit and not protection.table:
            protection = replace(protection, table=cap.table)
        return cost_from_text(row["cost"]).scaled(self.steps(protection))

    def check_told(self) -> None:
        """BudgetError where older releases did not tell whom they protect and the cap does not say it for them."""
        if self.caps and not self.caps[-1]["relation"] and any(not row["relation"] for row in self.releases):
            raise BudgetError("privacy.dataset", f"{self.name!r}, whose older releases do not say whom they protect",
                              "a cap that says it",
                              "`dpscale ledger cap … --unit row`, or the column that names persons")  # fmt: skip

    def _sum(self, rows: Iterable[Row]) -> Spending:
        spending = Spending()
        for row in rows:
            spending = spending.plus(self.counted(row), is_public(row))
        return spending


def is_public(row: Row) -> bool:
    """Whether anyone can compute its noise; of one from before that was told its name says it."""
    return bool(row["public"] or (row["public"] is None and SEEDED.fullmatch(row["release"])))


def cap_of(row: Row) -> Cap:
    """The cap of a row; one from before currencies has that of its delta."""
    return Cap(row["epsilon"], row["delta"], row["currency"] or "")


def protection_of(row: Row) -> Protection | None:
    """Whom a row protects; None for one from before that was told."""
    if not row["relation"]:
        return None
    return Protection(row["unit"], row["relation"], row["bound"] or 1, row["unit_table"])
