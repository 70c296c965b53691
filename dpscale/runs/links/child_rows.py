"""Rows of the child's table of a link: which columns are read, and which rows count for the link.

A row counts if it is within the bound of the protected unit to which it belongs. Whether it does depends only on the
rows of this unit, so that units can be treated part by part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dpscale.base.numerics import Integers, Words
from dpscale.contributions.links import Columns, at_most, one_a_key, row_words
from dpscale.contributions.unit_shards import UnitMap
from dpscale.job import Job
from dpscale.job.neighbours import NeighbourRelation
from dpscale.job.sections import LinkSection

NO_KEYS = np.empty((0, 2), np.uint64)  # stands for rows without keys


@dataclass(frozen=True, eq=False)
class ChildRows:
    """Rows with foreign keys: parents' keys, words that distinguish rows, codes, a mask of counted rows, own keys.

    `ranks` are positions in the order of the rows, if the link has one.
    """

    parents: Words = field(repr=False)
    words: Words = field(repr=False)
    codes: NDArray[np.int32] = field(repr=False)
    stays: NDArray[np.bool_] = field(repr=False)
    keys: Words = field(repr=False)
    ranks: Integers = field(default_factory=lambda: np.empty(0, np.int64), repr=False)

    @classmethod
    def all(cls, parents: Words, codes: NDArray[np.int32], named: Sequence[Words], keys: Words = NO_KEYS) -> ChildRows:
        """Return rows that all count; `named` are keys that distinguish rows that are otherwise equal."""
        return cls(parents, row_words(codes, *named), codes, np.ones(len(codes), np.bool_), keys)


@dataclass(frozen=True)
class ChildPolicy:
    """Keys that are read from the rows of a child's table, and the rows that count.

    Attributes
    ----------
    keys : tuple of (tuple of str, str)
        Columns of each key and the policy for their nulls: of the parent, of what determines the unit, of the row.
    unit : {"key", "root", ""}
        What determines which rows count: the key of a row, the row of the root to which it belongs, or nothing.
    named : bool
        Whether the row's own key distinguishes rows that are otherwise equal, because a link of the row is counted.
    duplicates : str
        Policy for rows with one key.
    bound : int
        Largest number of rows of a row of the root, if they have a public parent.
    """

    keys: tuple[tuple[Columns, str], ...]
    unit: str
    named: bool
    duplicates: str
    bound: int = 0

    @classmethod
    def of(cls, job: Job, link: LinkSection, neighbours: NeighbourRelation) -> ChildPolicy:
        """Return the policy of a link's child table: the keys that are read, and which rows of a unit count.

        The keys are that of the parent, that of the unit, and the child's own key if an earlier link counts by it.

        `named` is a link whose number of children is an attribute of a later link. The three cases are rows that are
        units themselves, rows of a public parent that belong to a unit by another link, and rows that belong to their
        parent's unit.
        """
        section, (parent_key, own_key), name = job.tables[link.child], job.ends(link), link.child
        parent, named = (parent_key, link.read_nulls), bool(job.counted(link, link.child))
        duplicates = job.duplicates(name)
        if own_key and name in (neighbours.root, *neighbours.sides):  # equal keys are one unit, whose rows count once
            return cls((parent, (own_key, section.nulls)), "key", named, duplicates)

        last = ((own_key, section.nulls),) if named else ()
        if name in neighbours.above and link.parent not in neighbours.rows:  # a public parent
            unit = (job.ends(neighbours.above[name])[0], "drop")
            return cls((parent, unit, *last), "root", named, duplicates, neighbours.rows[name])
        return cls((parent, *last), "", named, duplicates)

    def select(self, words: Sequence[Words], codes: NDArray[np.int32], roots: UnitMap | None = None) -> ChildRows:
        """Return the rows with the mask of those that count.

        `words` has the key of the parent, then that of the unit and that of the row, as far as the policy reads them.
        `stays` marks the rows that count.

        Parameters
        ----------
        words : sequence of ndarray
            The keys of all rows of some units.
        codes : ndarray
            The cells of these rows, shape (rows, attributes).
        roots : UnitMap, optional
            Map from the second key to the keys of the root.
        """
        parents, *others = words
        if self.unit == "key":
            [keys] = others
            chosen = one_a_key(keys, row_words(codes, parents), self.duplicates)
            named = [keys[chosen]] if self.named else []
            return ChildRows.all(parents[chosen], codes[chosen], named, keys[chosen])

        named = others[-1:] if self.named else []
        rows = ChildRows.all(parents, codes, named, named[0] if named else NO_KEYS)
        if self.unit == "root":
            assert roots is not None
            units, missing = roots(others[0])
            stays = ~missing
            stays[stays] = at_most(units[stays], row_words(codes, parents, *named)[stays], self.bound)
            rows.stays[:] = stays
        return rows
