"""Privacy unit of a release: the unit, its neighbouring relation and the contribution bound.

Costs of releases that protect different units do not add. If neighbours under one relation can be connected by a fixed
number of neighbour steps under another, the costs add after group privacy, which is exact in both currencies: g steps
give g mu and g epsilon. An additive delta grows with them (`Cost.for_group`).
"""

from __future__ import annotations

from dataclasses import dataclass

from dpscale.base.errors import BudgetError

ADD_REMOVE, REPLACE = "add/remove", "replace"
RELATIONS = (ADD_REMOVE, REPLACE)


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
    """

    unit: str | None = None
    relation: str = ADD_REMOVE
    bound: int = 1
    table: str | None = None

    def __post_init__(self) -> None:
        if self.relation not in RELATIONS:
            raise BudgetError("relation", f"got {self.relation!r}", " or ".join(RELATIONS), "name one of them")
        if self.unit is not None and not (isinstance(self.unit, str) and self.unit):
            raise BudgetError("unit", f"got {self.unit!r}", "the name of a column, or nothing for rows", "name one")
        if self.table is not None and not (self.unit and isinstance(self.table, str) and self.table):
            raise BudgetError("table", f"got {self.table!r}", "the name of the table that contains the unit's column",
                              "name one with a unit, or leave it out")  # fmt: skip
        if isinstance(self.bound, bool) or not (isinstance(self.bound, int) and self.bound >= 1):
            raise BudgetError("bound", f"got {self.bound!r}", "an integer >= 1", "set the number of rows per unit")

    def same(self, other: Protection) -> bool:
        """Return whether both have the same unit, table and relation."""
        return (self.unit, self.table, self.relation) == (other.unit, other.table, other.relation)

    def same_unit(self, other: Protection) -> bool:
        """Return whether both units are the same column of the same table.

        An unnamed table differs from every named one.
        """
        return (self.unit, self.table) == (other.unit, other.table)

    def __str__(self) -> str:
        name = self.unit if self.table is None else f"{self.table}.{self.unit}"
        whom = "one row" if self.unit is None else f"all rows of one {name}"
        return f"{whom} ({self.relation})"


def steps(entry: Protection, dataset: Protection) -> int | None:
    """Return how many neighbour steps of the entry's relation connect two neighbours of the dataset's relation.

    None if no number is certain. Adding or removing one row of a unit takes two steps: remove the unit and add it back
    with other rows. A replacement is a removal and an addition. A unit may have any number of rows, and sizes that were
    public cannot become private.
    """
    if entry.relation == REPLACE:
        return 1 if entry.same(dataset) else None
    if dataset.unit is not None and not entry.same_unit(dataset):
        return None
    return (1 if entry.same_unit(dataset) else 2) * (1 if dataset.relation == ADD_REMOVE else 2)


def checked_steps(entry: Protection, dataset: Protection, name: str) -> int:
    """Return `steps`. Raises BudgetError for a release whose cost does not add to the earlier ones."""
    number = steps(entry, dataset)
    if number is None:
        raise BudgetError(
            "data.privacy_unit",
            f"a release that protects {entry} on dataset {name!r}",
            f"the unit of its other releases, {dataset}: costs of different units do not add",
            _remedy(entry, dataset),
        )
    return number


def _remedy(entry: Protection, dataset: Protection) -> str:
    if entry.unit == dataset.unit and entry.table and not dataset.table:
        return (f"name another dataset, with a cap of its own, or if the {entry.unit} of the older entries is that of"
                f" {entry.table} say so: `dpscale ledger cap … --unit {entry.unit} --table {entry.table}`")  # fmt: skip
    return "set the same unit, or name another dataset, with a cap of its own"
