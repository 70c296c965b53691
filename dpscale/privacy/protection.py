"""Whom a release protects: its unit, its relation of neighbours, and how many rows of a unit are counted.

Costs of releases that protect different things do not add. Where the neighbours of one relation are a few steps apart
in another, they do after group privacy, which is exact in both currencies: g steps make g mu, and g epsilon.
"""

from __future__ import annotations

from dataclasses import dataclass

from dpscale.errors import BudgetError

ADD_REMOVE, REPLACE = "add/remove", "replace"
RELATIONS = (ADD_REMOVE, REPLACE)


@dataclass(frozen=True)
class Protection:
    """`unit`: the column that names persons, None for rows; `bound`: how many rows of one unit count, by its own rows.

    The bound is no part of the relation: whatever it is, all rows of a unit are protected.
    """

    unit: str | None = None
    relation: str = ADD_REMOVE
    bound: int = 1

    def __post_init__(self) -> None:
        if self.relation not in RELATIONS:
            raise BudgetError("relation", f"got {self.relation!r}", " or ".join(RELATIONS), "name one of them")
        if self.unit is not None and not (isinstance(self.unit, str) and self.unit):
            raise BudgetError("unit", f"got {self.unit!r}", "the name of a column, or nothing for rows", "name one")
        if isinstance(self.bound, bool) or not (isinstance(self.bound, int) and self.bound >= 1):
            raise BudgetError("bound", f"got {self.bound!r}", "a whole number >= 1", "give the rows of a unit")

    def same(self, other: Protection) -> bool:
        """Whether both protect the same thing."""
        return (self.unit, self.relation) == (other.unit, other.relation)

    def __str__(self) -> str:
        whom = "one row" if self.unit is None else f"all rows of one {self.unit}"
        return f"{whom} ({self.relation})"


def steps(entry: Protection, dataset: Protection) -> int | None:
    """How many neighbours of the entry's relation lead between two of the dataset's; None where no number is sure.

    A row of a unit goes or comes by taking the unit away and putting it back otherwise; a replacement is a removal
    and an addition. A unit may have any number of rows, and sizes that were public cannot become private.
    """
    if entry.relation == REPLACE:
        return 1 if entry.same(dataset) else None
    if entry.unit != dataset.unit and dataset.unit is not None:
        return None
    return (1 if entry.unit == dataset.unit else 2) * (1 if dataset.relation == ADD_REMOVE else 2)


def checked_steps(entry: Protection, dataset: Protection, name: str) -> int:
    """`steps`, or the refusal of a release whose cost does not add to those before it."""
    number = steps(entry, dataset)
    if number is None:
        raise BudgetError("data.privacy_unit", f"a release that protects {entry} on dataset {name!r}",
                          f"what its other releases protect, {dataset}: costs for different units do not add",
                          "set the same unit, or name another dataset, with a cap of its own")  # fmt: skip
    return number
