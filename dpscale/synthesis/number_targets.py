"""Targets of numbers in synthetic rows: released sums by group, from which values are drawn.

Values are shares of the number's range, 0 at its low end and 1 at its high end. A group is visible if its number of
records with a value can be distinguished from 0, as for means. Groups that are not visible have no target: their values
follow from the smaller sets of attributes, which are targets too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpscale.base.numerics import AttributeSet, Flags, Floats, Integers, Integers32
from dpscale.storage.files import reading, writing

MOST_SETS = 64  # of a number, beside the total
MOST_REPORTED = 1 << 14  # groups of a number whose sums are compared with the estimates
FIELDS = ("known", "known_errors", "sums", "errors", "value_errors", "squares")


@dataclass(frozen=True, eq=False)
class GroupTargets:
    """Estimates for the groups of one set of attributes, flat and in records of the data.

    Attributes
    ----------
    names : attributes of the groups, () for all records.
    sizes : number of cells of each attribute.
    known, known_errors : number of records with a value, and its standard error.
    sums, errors : sum of their values, and its standard error.
    value_errors : standard error of the sum in units of the column, as a share of the range.
    squares : sum of their squared values; empty if it was not measured.
    width : half width of an interval in standard errors.
    """

    names: AttributeSet
    sizes: tuple[int, ...]
    known: Floats
    known_errors: Floats
    sums: Floats
    errors: Floats
    value_errors: Floats
    squares: Floats
    width: float

    @property
    def visible(self) -> Flags:
        return np.asarray(self.known > self.width * self.known_errors)

    @property
    def means(self) -> Floats:
        """Means of visible groups, within 0 … 1; nan for others."""
        return np.clip(self._ratio(self.sums), 0, 1)

    @property
    def variances(self) -> Floats:
        """Variances of visible groups, at most those of values at the ends; nan if unknown."""
        if not self.squares.size:
            return np.full(len(self.known), np.nan)
        means = self.means
        return np.clip(self._ratio(self.squares) - means**2, 0, means * (1 - means))

    def _ratio(self, sums: Floats) -> Floats:
        return np.divide(sums, self.known, out=np.full(len(sums), np.nan), where=self.visible)

    def layout(self, names: Sequence[str]) -> tuple[Integers, Integers]:
        """Return the columns of the attributes among `names` and their strides: a row's group is Σ cell · stride."""
        columns = np.array([list(names).index(name) for name in self.names], np.int64)
        strides = np.array([np.prod(self.sizes[at + 1 :], dtype=np.int64) for at in range(len(self.sizes))], np.int64)
        return columns, strides

    def index(self, cells: Integers32, names: Sequence[str]) -> Integers:
        """Return the group of each row, shape (n,); `names` are the columns of `cells`."""
        columns, strides = self.layout(names)
        return np.asarray(cells[:, columns] @ strides, np.int64)


@dataclass(frozen=True, eq=False)
class NumberTargets:
    """Targets of one number.

    Attributes
    ----------
    name : str
    sets : sequence of GroupTargets
        Largest sets first; the last one is all records.
    """

    name: str
    sets: tuple[GroupTargets, ...]

    @property
    def reported(self) -> list[GroupTargets]:
        """The smallest sets, of at most MOST_REPORTED groups together."""
        found, groups = list[GroupTargets](), 0
        for one in reversed(self.sets):
            groups += len(one.known)
            if groups <= MOST_REPORTED:
                found.append(one)
        return found


def select_sets(found: Sequence[GroupTargets], most_groups: int) -> tuple[GroupTargets, ...]:
    """Return at most MOST_SETS sets of at most `most_groups` groups together, largest first, and all records.

    Small sets come first, and among those of one size the ones whose means differ most from that of all records.
    """
    (whole,) = [one for one in found if not one.names]
    ranked = sorted((one for one in found if one.names), key=lambda one: (len(one.names), -_signal(one, whole)))
    chosen, groups = list[GroupTargets](), 1
    for one in ranked[:MOST_SETS]:
        groups += len(one.known)
        if groups <= most_groups:
            chosen.append(one)
    return (*reversed(chosen), whole)


def _signal(one: GroupTargets, whole: GroupTargets) -> float:
    """Return Σ (sum − n · mean)² in squared standard errors, less one for each visible group."""
    seen = one.visible
    expected = one.known[seen] * whole.means[0]
    return float((((one.sums[seen] - expected) / one.errors[seen]) ** 2 - 1).sum()) if whole.visible[0] else 0.0


def write_number_targets(path: Path, numbers: Sequence[NumberTargets]) -> None:
    """Write targets exactly into one file; it is not flushed to disk, because it can be recomputed for free."""
    index = [
        {"name": number.name, "sets": [[own.names, own.sizes, own.width] for own in number.sets]} for number in numbers
    ]
    arrays = {
        f"{i} {j} {field}": getattr(own, field)
        for i, number in enumerate(numbers) for j, own in enumerate(number.sets) for field in FIELDS
    }  # fmt: skip
    with writing(path, durable=False) as file:
        np.savez(file, allow_pickle=False, index=np.array(json.dumps(index)), **arrays)


def read_number_targets(path: Path) -> tuple[NumberTargets, ...]:
    """Return the targets in a file."""
    with reading(path) as file, np.load(file, allow_pickle=False) as arrays:
        index: list[dict[str, Any]] = json.loads(str(arrays["index"]))
        return tuple(
            NumberTargets(one["name"], tuple(
                GroupTargets(tuple(names), tuple(sizes), width=width,
                             **{field: arrays[f"{i} {j} {field}"] for field in FIELDS})
                for j, (names, sizes, width) in enumerate(one["sets"])
            ))
            for i, one in enumerate(index)
        )  # fmt: skip
