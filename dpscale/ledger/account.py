"""Account of one dataset on the ledger: its privacy unit, its composed spending and the budget left under its cap."""

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

from dpscale.base.display import safe_repr
from dpscale.base.errors import BudgetError, JobError
from dpscale.privacy.accounting import CURRENCIES, GDP, PURE, Cost, Spending, delta_left, float_above
from dpscale.privacy.protection import Protection, checked_steps

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


def largest_epsilon(cap: Cap, history: Spending, kind: Cost, delta: float, steps: int = 1) -> float:
    """Return the largest epsilon, at `delta`, of one more request that the cap admits; 0 if there is none.

    The request has a cost proportional to `kind`, with the same additive delta. The result has six digits, rounded
    down, so the cost of exactly this epsilon is admitted.

    Parameters
    ----------
    cap : Cap
    history : Spending
        Composition of all earlier releases.
    kind : Cost
        Cost whose multiples are tried.
    delta : float
        Delta at which the result is stated.
    steps : int
        Number of group-privacy steps at which the request counts.
    """
    scale = _largest_scale(cap, history, kind, steps)
    epsilon = kind.scaled(scale).epsilon_or_inf(delta) if scale else 0.0
    return shown_below(epsilon * (1 - 1e-9)) if math.isfinite(epsilon) else 0.0


def remaining_epsilon(cap: Cap, history: Spending) -> float:
    """Return the largest epsilon, at the cap's delta, of one more Gaussian release.

    The release is pure if the currency of the cap is pure.
    """
    kind = Cost(gaussian=Fraction(1)) if cap.currency == GDP else Cost(pure=Fraction(1))
    return largest_epsilon(cap, history, kind, cap.delta)


def _largest_scale(cap: Cap, history: Spending, kind: Cost, steps: int) -> Fraction:
    def fits(scale: Fraction) -> bool:
        return cap.admits(history.plus(kind.scaled(scale).for_group(steps)))

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
    """Round `value` down to six significant digits."""
    return float(Context(prec=6, rounding=ROUND_DOWN).create_decimal(value))


SENSIBLE = 1e-3  # smallest useful share of the requested epsilon or of the cap
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
    """Return the error that states the requested, the remaining and the largest admissible epsilon."""
    if public:
        return BudgetError("engine.seed", f"noise that anyone can compute, on dataset {dataset!r}, which has a cap",
                           "noise with a secret key", "remove the seed, or use data without a cap")  # fmt: skip
    if (more := cost.for_group(steps).delta) and history.delta + more > cap.additive:
        return _refused_delta(dataset, cap, history, more)
    at = cap.delta if delta is None or math.isinf(cost.epsilon_or_inf(delta)) else delta
    asked = cost.epsilon_or_inf(at) if epsilon is None else epsilon
    largest = largest_epsilon(cap, history, cost, at, steps)
    worth = largest and largest >= SENSIBLE * max(asked, cap.epsilon)
    fits = f"at most epsilon {largest:.6g} at delta {at:.6g}, the largest that would fit" if worth else "nothing more"
    left = f"remaining epsilon {remaining_epsilon(cap, history):.6g} at delta {cap.delta:.6g}"
    added = f" with additive delta {float_above(more):.6g}" if more else ""
    left += f" with additive delta {float_above(history.delta):.6g} spent" if history.delta else ""
    return BudgetError(
        "privacy.epsilon",
        f"requested epsilon {asked:.6g} at delta {at:.6g}{added} of dataset {dataset!r}, {left} of its cap of {cap}",
        fits,
        _remedy(cap, history, cost, largest, asked),
    )


def _refused_delta(dataset: str, cap: Cap, history: Spending, more: Fraction) -> BudgetError:
    """Return the error for an additive delta that is larger than the remaining part of the cap's delta for it."""
    left = max(0.0, delta_left(cap.additive, history.delta))
    got = (f"requested additive delta {float_above(more):.6g} of dataset {dataset!r}, remaining additive delta"
           f" {left:.6g} of its cap of {cap}")  # fmt: skip
    return BudgetError("privacy.delta", got, f"at most {left:.6g}" if left else "none",
                       "lower it, set another cap before the release, or take another dataset")  # fmt: skip


def _remedy(cap: Cap, history: Spending, cost: Cost, largest: float, requested: float) -> str:
    if history.public:
        return "take another dataset: a release with a seed showed this one's exact counts"
    if cap.currency == PURE and not cost.is_pure:
        return "give epsilon alone, for Laplace noise: a pure cap admits nothing else"
    worth = largest and largest >= SENSIBLE * max(requested, cap.epsilon)
    remedy = f"ask for epsilon = {largest:.6g} or raise the cap" if worth else USED_UP
    if cost.is_pure and cap.currency == GDP:
        remedy += ", or give delta too: under a cap in gdp Gaussian noise costs less"
    return remedy


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


Row = dict[str, Any]
SEEDED = re.compile(r"seed-?\d+-[0-9a-f]{24}")  # release name of a run with a seed


def cost_to_text(cost: Cost) -> str:
    """Serialise a cost as canonical JSON of exact fractions; equal costs have equal texts."""
    try:
        return json.dumps(cost.to_dict(), sort_keys=True)
    except ValueError as error:  # Python refuses to print integers of more than a few thousand digits
        raise BudgetError("cost", "got a fraction of thousands of digits", "fractions of fewer digits",
                          "round it up with Cost.coarsened()") from error  # fmt: skip


def cost_from_text(text: str) -> Cost:
    """Parse a cost written by `cost_to_text`."""
    try:
        return Cost.from_dict(json.loads(text))
    except (ValueError, TypeError) as error:
        raise BudgetError("cost", "got a row that is not a cost", "a row of the ledger",
                          "restore the ledger from a copy") from error  # fmt: skip


def canonical(name: str) -> str:
    """Return a dataset name in the form used for comparison: stripped, Unicode NFC."""
    return unicodedata.normalize("NFC", name.strip())


@dataclass(frozen=True)
class Account:
    """Ledger rows of one dataset.

    Attributes
    ----------
    name : str
        Canonical name of the dataset.
    caps : sequence of Row
        Caps in the order in which they were set, with currency and privacy unit where known.
    releases : sequence of Row
        Releases in the order in which they were charged, with their privacy unit where known.
    """

    name: str
    caps: Sequence[Row]
    releases: Sequence[Row]

    @cached_property
    def cap(self) -> Cap | None:
        """Cap in force: the last one set, or None."""
        return cap_of(self.caps[-1]) if self.caps else None

    def limit(self, cost: Cost | None = None) -> Cap | None:
        """Return the cap in force with the part of its delta that is reserved for additive deltas.

        The releases up to the first one after the cap decide: if one of them has an additive delta, `RESERVED` of the
        cap's delta is reserved, otherwise nothing. `cost` is a request, which may be that first release.
        """
        if self.cap is None or self.cap.currency == PURE:
            return self.cap
        before = self.charged_before
        has_delta = any('"delta"' in row["cost"] for row in self.releases[: before + 1])
        has_delta |= cost is not None and bool(cost.delta) and len(self.releases) == before
        return replace(self.cap, reserved=self.cap.delta * RESERVED if has_delta else 0.0)

    @cached_property
    def protects(self) -> Protection | None:
        """Privacy unit of all releases: that of the cap or else of the first release that states one.

        None if neither states one. If it names a unit column without its table, the table is the one that all releases
        for that column name.
        """
        said = next((one for row in (*self.caps[-1:], *self.releases) if (one := protection_of(row))), None)
        if said is None or said.unit is None or said.table:
            return said
        tables = self._tables(said)
        return replace(said, table=tables.pop()) if len(tables) == 1 else said

    def _tables(self, protection: Protection) -> set[str | None]:
        """Return the tables that releases name for the column of this privacy unit."""
        return {row["unit_table"] for row in self.releases if row["unit"] == protection.unit}

    @property
    def currency(self) -> str:
        """Currency of the cap; without a cap, "pure" if the history is pure and "gdp" otherwise."""
        if self.cap:
            return self.cap.currency
        return PURE if self.releases and not self.spent.approximate else GDP

    @cached_property
    def spent(self) -> Spending:
        """Composition of all releases."""
        return self._sum(self.releases)

    @property
    def reserved(self) -> Spending:
        """Composition of the releases whose noise is not completely drawn."""
        return self._sum(row for row in self.releases if row["state"] == "reserved")

    @cached_property
    def periods(self) -> dict[str, Spending]:
        """Composition of the releases of each period, in order; empty if no release has one.

        Releases without a period, which may concern every period, are under "".
        """
        named = [(cost_from_text(row["cost"]).period if '"period"' in row["cost"] else "", row)
                 for row in self.releases]  # fmt: skip
        names = sorted({period for period, _ in named})
        return {name: self._sum(row for one, row in named if one == name) for name in names} if any(names) else {}

    @property
    def charged_before(self) -> int:
        """Number of releases charged before the cap was set; for them the cap is not a privacy filter."""
        return sum(row["reserved_at"] < self.caps[-1]["set_at"] for row in self.releases) if self.caps else 0

    def steps(self, protection: Protection | None) -> int:
        """Return the number of group-privacy steps at which a release counts here.

        Raises BudgetError if that number is not certain.
        """
        if protection is None or self.protects is None:
            return 1
        said = self.protects
        if said.unit is not None and said.unit == protection.unit and not said.table and not self._tables(said):
            said = replace(said, table=protection.table)  # the cap names a column that no release has used yet
        return checked_steps(protection, said, self.name)

    def counted(self, row: Row) -> Cost:
        """Return the cost of an entry in terms of the dataset's privacy unit.

        An entry without a table is assigned the table named by the cap; the person who set the cap is responsible for
        that.
        """
        protection, cap = protection_of(row), protection_of(self.caps[-1]) if self.caps else None
        if protection and cap and cap.table and protection.unit == cap.unit and not protection.table:
            protection = replace(protection, table=cap.table)
        return cost_from_text(row["cost"]).for_group(self.steps(protection))

    def check_recorded(self) -> None:
        """Raise BudgetError if older releases do not state their privacy unit and the cap does not state it either."""
        if self.caps and not self.caps[-1]["relation"] and any(not row["relation"] for row in self.releases):
            raise BudgetError(
                "privacy.dataset",
                f"{self.name!r}, whose older releases do not state their privacy unit",
                "a cap that states it",
                "run `dpscale ledger cap … --unit row`, or with the column of the unit",
            )

    def _sum(self, rows: Iterable[Row]) -> Spending:
        spending = Spending()
        for row in rows:
            spending = spending.plus(self.counted(row), is_public(row))
        return spending


def is_public(row: Row) -> bool:
    """Return whether anyone can compute the noise of a release; for rows without this flag, its name decides."""
    return bool(row["public"] or (row["public"] is None and SEEDED.fullmatch(row["release"])))


def cap_of(row: Row) -> Cap:
    """Return the cap of a row; rows older than currencies have the currency implied by their delta."""
    return Cap(row["epsilon"], row["delta"], row["currency"] or "")


def protection_of(row: Row) -> Protection | None:
    """Return the privacy unit of a row; None for rows of ledger versions that did not record it."""
    if not row["relation"]:
        return None
    return Protection(row["unit"], row["relation"], row["bound"] or 1, row["unit_table"])
