"""Privacy unit of a release: the unit, its neighbouring relation and the contribution bound.

There are three promises: one row, all rows of a unit in one period of the data, and all rows of a unit over all time.

Costs of releases that protect different units do not add. If neighbours under one relation can be connected by a fixed
number of neighbour steps under another, the costs add after group privacy, which is exact in both currencies: g steps
give g mu and g epsilon. An additive delta grows with them (`Cost.for_group`).
"""

from __future__ import annotations

from dataclasses import dataclass

from dpscale.base.display import safe_repr
from dpscale.base.errors import BudgetError

ADD_REMOVE, REPLACE = "add/remove", "replace"
RELATIONS = (ADD_REMOVE, REPLACE)
WITHIN = {"day": ("week", "month", "quarter", "year"), "week": (), "month": ("quarter", "year"), "quarter": ("year",),
          "year": ()}  # calendar period -> longer periods that contain it whole  # fmt: skip


@dataclass(frozen=True)
class Protection:
    """Privacy unit of a release.

    Attributes
    ----------
    unit : str, optional
        Column that identifies persons; None if the unit is a row.
    relation : {"add/remove", "replace"}
        Neighbouring relation.
    bound : int
        Contribution bound: number of counted rows per unit. It is not part of the relation, since all rows of a unit
        are protected regardless of it.
    table : str, optional
        Table of the job that contains the column; None if the job has one table, and in older entries. Equal column
        names in two tables are two units.
    span : {"day", "week", "month", "quarter", "year"}, optional
        Period to which the promise is limited: it is for all rows of one unit that arrive in one period. None if it is
        for all rows of the unit, or for a row, which is in one period only.
    """

    unit: str | None = None
    relation: str = ADD_REMOVE
    bound: int = 1
    table: str | None = None
    span: str | None = None

    def __post_init__(self) -> None:
        """Raise BudgetError unless values fit: a table needs a unit, a span a unit that is added or removed."""
        if self.relation not in RELATIONS:
            raise BudgetError("relation", f"got {self.relation!r}", " or ".join(RELATIONS), "name one of them")
        if self.unit is not None and not (isinstance(self.unit, str) and self.unit):
            raise BudgetError("unit", f"got {self.unit!r}", "the name of a column, or nothing for rows", "name one")
        if self.table is not None and not (self.unit and isinstance(self.table, str) and self.table):
            raise BudgetError("table", f"got {self.table!r}", "the name of the table that contains the unit's column",
                              "name one with a unit, or leave it out")  # fmt: skip
        if self.span is not None and self.span not in (*WITHIN,):
            raise BudgetError(
                "span", f"got {safe_repr(self.span)}", ", ".join(WITHIN), "name one of them, or leave it out"
            )
        # a row is in one period anyway, and a replaced unit could change its periods
        if self.span is not None and (self.unit is None or self.relation == REPLACE):
            raise BudgetError("span", f"got {self.span!r} for {'one row' if self.unit is None else 'replaced units'}",
                              "a span with a unit that is added or removed",
                              "leave it out: a row is in one period")  # fmt: skip
        if isinstance(self.bound, bool) or not (isinstance(self.bound, int) and self.bound >= 1):
            raise BudgetError("bound", f"got {self.bound!r}", "an integer >= 1", "set the number of rows per unit")

    def same(self, other: Protection) -> bool:
        """Return whether both have the same unit, table, span and relation."""
        return self.same_unit(other) and (self.span, self.relation) == (other.span, other.relation)

    def same_unit(self, other: Protection) -> bool:
        """Return whether both units are the same column of the same table.

        An unnamed table differs from every named one.
        """
        return (self.unit, self.table) == (other.unit, other.table)

    def contains(self, other: Protection) -> bool:
        """Return whether the rows of a unit that this one protects contain those that the other one protects."""
        longer = other.span is not None and (self.span is None or self.span in WITHIN[other.span])
        return self.same_unit(other) and (self.span == other.span or longer)

    @property
    def words(self) -> str:
        """Promise in words, without the relation."""
        name = self.unit if self.table is None else f"{self.table}.{self.unit}"
        span = f" in one {self.span}" if self.span else ""
        return "one row" if self.unit is None else f"all rows of one {name}{span}"

    @property
    def counted(self) -> str:
        """What is counted of a unit, in words; empty if the unit is a row.

        `bound` is the number of rows of a unit that are counted; the unit is named with its table if that is given.
        """
        if self.unit is None:
            return ""
        name = self.unit if self.table is None else f"{self.table}.{self.unit}"
        rows = "1 row" if self.bound == 1 else f"{self.bound:,} rows"
        return f"at most {rows} of one {name} {'is' if self.bound == 1 else 'are'} counted"

    def __str__(self) -> str:
        return f"{self.words} ({self.relation})"


def steps(entry: Protection, dataset: Protection) -> int | None:
    """Return how many neighbour steps of the entry's relation connect two neighbours of the dataset's relation.

    None if no number is certain. Adding or removing one row of a unit takes two steps: remove the unit and add it back
    with other rows. The same holds for the rows of a unit in one period if the entry protects the unit over all time or
    in a longer period that contains it. The reverse is not counted: a unit may have any number of rows, in many
    periods. A replacement is a removal and an addition. Sizes that were public cannot become private.
    """
    if entry.relation == REPLACE:
        return 1 if entry.same(dataset) else None
    if dataset.unit is not None and not entry.contains(dataset):
        return None
    equal = entry.same_unit(dataset) and entry.span == dataset.span
    return (1 if equal else 2) * (1 if dataset.relation == ADD_REMOVE else 2)


def checked_steps(entry: Protection, dataset: Protection, name: str, of: str = "its other releases") -> int:
    """Return `steps`. Raises BudgetError for a release whose cost does not add to the earlier ones.

    Parameters
    ----------
    entry, dataset : Protection
    name : str
        Name of the dataset.
    of : str
        Entries of the ledger that state the promise of the dataset.
    """
    number = steps(entry, dataset)
    if number is None:
        reason = "costs of different units do not add"
        if entry.same_unit(dataset) and entry.span != dataset.span:
            reason = f"one {entry.unit} may have rows in more than one {entry.span}"
        raise BudgetError(
            "data.privacy_unit",
            f"a release that protects {entry} on dataset {name!r}",
            f"the unit of {of}, {dataset}: {reason}",
            _remedy(entry, dataset),
        )

    return number


def _remedy(entry: Protection, dataset: Protection) -> str:
    """Return what to do about an entry that protects another unit than its dataset."""
    if entry.unit == dataset.unit and entry.table and not dataset.table:
        return (
            f"name another dataset, with a cap of its own, or if the {entry.unit} of the older entries is that of"
            f" {entry.table} say so: `dpscale ledger cap … --unit {entry.unit} --table {entry.table}`"
        )
    return "set the same unit, or name another dataset, with a cap of its own"
