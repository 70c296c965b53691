"""Account of one dataset on the ledger: its privacy unit, its composed spending and the budget left under its cap."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

from dpscale.base.errors import BudgetError
from dpscale.ledger.cap import RESERVED, Cap, Limit
from dpscale.ledger.periods import RENEWALS
from dpscale.privacy.accounting import GDP, PURE, Cost, Spending
from dpscale.privacy.protection import REPLACE, Protection, checked_steps

Row = dict[str, Any]
SEEDED = re.compile(r"seed-?\d+-[0-9a-f]{24}")  # release name of a run with a seed


def cost_to_text(cost: Cost) -> str:
    """Serialise a cost as canonical JSON of exact fractions; equal costs have equal texts."""
    try:
        return json.dumps(cost.to_dict(), sort_keys=True)
    except ValueError as error:  # Python refuses to print integers of more than a few thousand digits
        raise BudgetError("cost", "got a fraction of thousands of digits", "fractions of fewer digits",
                          "round it up with Cost.coarsened()") from error  # fmt: skip


@lru_cache(maxsize=4096)
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
    """Ledger rows of one dataset, or those that the filter of one period of its data composes.

    Attributes
    ----------
    name : str
        Canonical name of the dataset.
    caps : sequence of Row
        Caps in the order in which they were set, with currency and privacy unit where known.
    releases : sequence of Row
        Releases in the order in which they were charged, with their privacy unit where known.
    renewing : sequence of Row
        Caps that renew by period, in the order in which they were set; empty in the account of a period.
    renewal : {"month", "year"}, optional
        Period by which the caps renew, in the account of a period.
    period : str
        Label of the period, in the account of a period.
    promise : Protection, optional
        Privacy unit to which the costs are converted, in the account of a period.
    """

    name: str
    caps: Sequence[Row]
    releases: Sequence[Row]
    renewing: Sequence[Row] = ()
    renewal: str | None = None
    period: str = ""
    promise: Protection | None = None

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

    @property
    def renewing_now(self) -> dict[str, Row]:
        """Cap in force of each period by which caps renew, the shorter period first."""
        latest = {row["period"]: row for row in self.renewing}
        return {by: latest[by] for by in RENEWALS if by in latest}

    @cached_property
    def protects(self) -> Protection | None:
        """Privacy unit of all releases: that of the cap or else of the first release that states one.

        None if neither states one.
        """
        if self.renewal or self.promise:
            return self.promise
        rows = (*self.caps[-1:], *self.renewing_now.values(), *self.releases)
        said = next((one for row in rows if (one := protection_of(row))), None)
        return said and self.with_table(said)

    def with_table(self, protection: Protection, request: Protection | None = None) -> Protection:
        """Return a privacy unit with the table that all releases for its column name, or else the request."""
        if protection.unit is None or protection.table:
            return protection
        tables = {row["unit_table"] for row in self.releases if row["unit"] == protection.unit}
        if not tables and request is not None and request.unit == protection.unit:
            return replace(protection, table=request.table)
        return replace(protection, table=tables.pop()) if len(tables) == 1 else protection

    @property
    def currency(self) -> str:
        """Currency of the cap; without a cap, "pure" if the history is pure and "gdp" otherwise."""
        if self.cap:
            return self.cap.currency
        return PURE if self.releases and not self.spent.approximate else GDP

    def admission(self, cost: Cost, protects: Protection | None) -> Limit | None:
        """Return the limit with which a request is compared; None without a cap.

        Raises BudgetError if the request protects a unit whose cost does not add to the others.
        """
        steps, cap = self.steps(protects), self.limit(cost)
        return Limit(cap, self.spent, steps) if cap else None

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
        if self.renewal:
            self.check_renewable(protection, self.renewal)
            return checked_steps(protection, self.protects, self.name, f"its cap for each {self.renewal}")
        return checked_steps(protection, self.with_table(self.protects, protection), self.name)

    def check_renewable(self, protection: Protection, by: str) -> None:
        """Raise BudgetError for a release whose promise is not bounded by the caps for each month, or year."""
        if not renewable(protection):
            got = f"a release that protects {protection} on dataset {self.name!r}, which has a cap for each {by}"
            remedy = "name another dataset, with a cap on the total"
            raise not_renewable(protection, by, got, "data.privacy_unit", remedy)

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
        in_force = (*self.caps[-1:], *self.renewing_now.values())
        if any(not row["relation"] for row in in_force) and any(not row["relation"] for row in self.releases):
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


def renewable(protects: Protection) -> bool:
    """Return whether a cap for each period may bound this promise: one row, or the rows of one unit in one period."""
    return protects.relation != REPLACE and (protects.unit is None or protects.span is not None)


def not_renewable(protects: Protection, by: str, got: str, field: str, remedy: str) -> BudgetError:
    """Return the error for a promise that caps for each month, or year, do not bound."""
    reason = (f"a replaced row may move to another {by}" if protects.relation == REPLACE else
              f"one {protects.unit} with rows in several {by}s would have the cap of each")  # fmt: skip
    return BudgetError(field, got, f"a promise for one row, or for all rows of one unit in one {by}: {reason}", remedy)


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
    return Protection(row["unit"], row["relation"], row["bound"] or 1, row["unit_table"], row["span"])
