"""The compared tables: a run's rows and the data, both encoded by the run's domain into the same cells.

Rows have no value for data outside the domain: numbers are null there. For an attribute that is not a text, the cells
of outside values and of nulls are therefore merged here, in both tables; all others are those of the domain file.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscale.base.arrays import Flags, Integers, Integers32
from dpscale.base.errors import DataError, JobError
from dpscale.counting.count import encode_batch
from dpscale.domain import Domain
from dpscale.domain.attribute import Attribute
from dpscale.engine import Engine
from dpscale.engine.counting import partition_groups
from dpscale.privacy.streams import Chance
from dpscale.records import Partition, Table
from dpscale.records.origin import Origin
from dpscale.records.snapshot import Stamps, stamps
from dpscale.runs.fingerprints import check_left
from dpscale.runs.run import Run, origin_of
from dpscale.storage.files import is_local, read_text

Numbered = tuple[tuple[int, Partition], ...]


@dataclass(frozen=True)
class Side:
    """One of the compared tables, its label in messages, and the stamps of its files at opening."""

    called: str
    table: Table
    seen: Stamps

    @property
    def domain(self) -> Domain:
        """Domain of this table; rows and data may differ in the cells that `fold_counts` merges."""
        return self.table.domain

    @cached_property
    def numbers(self) -> dict[Partition, int]:
        """Number of every partition, which keys random choices independently of how the work is divided."""
        return {partition: number for number, partition in enumerate(self.table.partitions)}

    def check_unchanged(self) -> None:
        """Raise DataError if a file changed since it was opened."""
        if stamps(self.table) != self.seen:
            raise DataError(self.called, "its files changed while they were read", "files that stay", "run again")


def open_rows(run: Run) -> Side:
    """Return the synthetic rows of a run; raise JobError if there are none, or not those that the run drew."""
    if not is_local(run.path):
        raise JobError("run directory", f"{run.path}, in a store", "one in a folder", "copy it, and compare the copy")
    if not run.done("synthesize"):
        raise JobError("run directory", f"{run.path} has no synthetic rows", "a run that ended with rows",
                       f"draw them: dpscale synthesize {run.path}")  # fmt: skip
    check_left(run.path, "synthesize", run.manifest["stages"]["synthesize"])
    index = json.loads(read_text(run.path / "synthetic" / "_rows.json"))
    if index["weights"]:
        raise JobError("synthesize.weights", "true: a row stands for several records", "rows that stand for one each",
                       "set it to false in the job and run that again: rows cost nothing")  # fmt: skip
    return _opened("rows", [run.path / "synthetic" / name for name in index["files"]], run, Origin(True))


def open_data(run: Run, paths: Sequence[str], names: Sequence[str]) -> Side:
    """Return the data opened by the run's reader.

    Raises DataError if a file is unreadable or lacks a column of the rows.
    """
    try:
        side = _opened("DATA", paths, run, origin_of(run))
        side.table.require(side.domain.columns(names))
    except DataError as error:
        field = "DATA" if error.field == "data.path" else error.field
        raise type(error)(field, error.got, error.takes, error.remedy) from None
    return side


def _opened(called: str, paths: Sequence[Any], run: Run, origin: Origin) -> Side:
    drawn = called == "rows"
    domain = Domain([as_drawn(one) if drawn else one for one in run.domain.attributes])
    table = origin.table([str(path) for path in paths], domain)
    return Side(called, table, stamps(table))


def names_of(rows: Side) -> list[str]:
    """Return the attributes of rows, in their order."""
    return list(rows.table.types())


def as_drawn(attribute: Attribute) -> Attribute:
    """Return the attribute that reads a column of rows.

    Null is an outside value, and a rounded number remains in the bin at its edge.
    """
    if attribute.groups:  # rows have the groups' names
        attribute = replace(attribute, kind="categories", groups=(), length=0)
    attribute = replace(attribute, source="")
    if attribute.outside_cell >= 0 and not is_text(attribute):
        attribute = replace(attribute, nulls="category")
    if not attribute.values and attribute.outside in ("reject", "drop"):
        attribute = replace(attribute, outside="clip")
    return attribute


def is_text(attribute: Attribute) -> bool:
    return bool(attribute.values) and isinstance(attribute.values[0], str)


def size_of(attribute: Attribute) -> int:
    """Return the number of compared cells."""
    return attribute.size if is_text(attribute) else min(attribute.size, attribute.listed + 1)


def folded(counts: Integers, attributes: Sequence[Attribute]) -> Integers:
    """Merge counts over a table's own cells, one axis per attribute, into counts over the compared cells."""
    for axis, attribute in enumerate(attributes):
        if counts.shape[axis] > size_of(attribute):
            counts = np.add.reduceat(counts, np.arange(size_of(attribute)), axis)  # the last one sums to the end
    return counts


def codes_of(domain: Domain, batch: Any, names: Sequence[str]) -> tuple[Integers32, Flags]:
    """Return a batch in the compared cells, shape (rows, attributes), and which rows the domain does not drop."""
    codes, gone = encode_batch(domain, batch, names)
    most = np.array([size_of(domain[name]) - 1 for name in names], dtype=np.int32)
    kept = np.ones(codes.shape[1], dtype=bool) if gone is None else ~gone
    return np.minimum(codes.T.astype(np.int32), most), kept


def numbered(side: Side, group: Sequence[Partition]) -> Numbered:
    """Return partitions with their numbers."""
    return tuple((side.numbers[partition], partition) for partition in group)


Found = tuple[NDArray[np.float64], Integers32]


def sample(engine: Engine, side: Side, names: Sequence[str], most: int, release: str) -> Integers32:
    """Return at most `most` rows in random order, over the compared cells, shape (rows, attributes)."""
    groups = partition_groups(side.table.partitions, engine.workers)
    items = [(side.domain, numbered(side, group), tuple(names), most, release) for group in groups]
    return _least(engine.map(least_rows, items, "sample"), most)[1]


def least_rows(domain: Domain, parts: Numbered, names: Sequence[str], most: int, release: str) -> Found:
    """Return the rows with the smallest random numbers of some partitions, in the order of the numbers."""
    found: Found = (np.empty(0), np.empty((0, len(names)), np.int32))
    read = list(dict.fromkeys([*names, *(one.name for one in domain.attributes if one.drops)]))
    for number, partition in parts:
        chance = Chance(release, "compared sample", number)
        for batch in partition.batches(domain.columns(read)):
            codes, kept = codes_of(domain, batch, read)
            places = chance.uniforms(len(codes))
            found = _least([found, (places[kept], codes[kept, : len(names)])], most)
    return found


def _least(found: Sequence[Found], most: int) -> Found:
    places = np.concatenate([places for places, _ in found])
    first = np.argsort(places, kind="stable")[:most]
    return places[first], np.concatenate([codes for _, codes in found])[first]
