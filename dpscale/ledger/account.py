"""A dataset's rows on the ledger, read as an account: whom it protects, what was spent, what its cap still admits."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from dpscale.base.errors import BudgetError
from dpscale.ledger.cap import Cap
from dpscale.privacy.accounting import Cost
from dpscale.privacy.currency import GDP, PURE, Spending
from dpscale.privacy.protection import Protection, checked_steps

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
