"""The compared tables, and exact statistics of keys and links of the data, which are private.

*Tables.* The rows of a run and the data are encoded by the domain of the run into the same cells. Rows have no value
for data outside the domain: numbers are null there. For an attribute that is not a text, the cells of outside values
and of nulls are therefore merged here, in both tables; all others are those of the domain file.

*Keys.* Only the key columns are read; nothing is spent or written. Keys are compared by value, as in a run. A link
counts once: a repeated pair, or a row of the root that occurs twice with one parent, is one link.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from dpscale.base.errors import DataError, JobError
from dpscale.base.numerics import Flags, Integers, Integers32, NDArray, Words
from dpscale.contributions.links import key_rows
from dpscale.contributions.unit_shards import places
from dpscale.counting.count import encode_batch
from dpscale.domain import Domain
from dpscale.domain.attribute import Attribute
from dpscale.engine.counting import partition_groups
from dpscale.job import Job
from dpscale.job.neighbours import NeighbourRelation, neighbour_relation
from dpscale.job.sections import LinkSection
from dpscale.privacy.streams import PublicStream
from dpscale.records import Partition, Table
from dpscale.records.origin import Origin, Stamps, stamps
from dpscale.runs.linked_tables import Files, open_table
from dpscale.runs.manifest import check_output
from dpscale.runs.table import TablePart, origin_of
from dpscale.storage.files import is_local, read_text

if TYPE_CHECKING:
    from dpscale.engine.schedulers import Engine

Numbered = tuple[tuple[int, Partition], ...]
WARNING = (
    "PRIVATE, do not publish: these statistics are computed from the records. "
    "A bound that is chosen from them reveals information about the records."
)
QUANTILES = (50, 90, 99)  # percent; quantiles of the number of links of a row
Columns = tuple[str, ...]
Keys = list[tuple[Words, NDArray[np.bool_]]]


@dataclass(frozen=True)
class ComparedTable:
    """One of the compared tables, its label in messages, and the stamps of its files at opening."""

    label: str
    table: Table
    file_stamps: Stamps

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
        if stamps(self.table) != self.file_stamps:
            raise DataError(
                self.label, "its files changed while they were read", "files that do not change", "run again"
            )


def open_rows(run: TablePart) -> ComparedTable:
    """Return the synthetic rows of a run; raise JobError if there are none, or not those that the run drew.

    Rows in an object store, rows with weights, and files other than those that the run has recorded are refused.
    """
    if not is_local(run.path):
        raise JobError(
            "run directory",
            f"{run.path}, in an object store",
            "a local run directory",
            "copy it to a folder and compare the copy",
        )
    if run.run.content.periods and not run.folder.endswith("/rows"):
        raise JobError("run directory", f"{run.path}, of a growing table", "rows of one period",
                       f"name their folder: {run.run_path}/periods/PERIOD/rows")  # fmt: skip
    if not run.done("synthesize"):
        raise JobError("run directory", f"{run.path} has no synthetic rows", "a run with synthetic rows",
                       f"draw them: dpscale rows {run.path}")  # fmt: skip

    check_output(run.path, "synthesize", run.manifest["stages"]["synthesize"])
    index = json.loads(read_text(run.path / "synthetic" / "_rows.json"))
    if index["weights"]:
        raise JobError("synthesize.weights", "true: a row represents several records",
                       "rows that represent one record each",
                       "set it to false in the job and run it again; drawing rows costs no budget")  # fmt: skip
    return _open_table("rows", [run.path / "synthetic" / name for name in index["files"]], run, Origin(True))


def open_data(run: TablePart, paths: Sequence[str], names: Sequence[str]) -> ComparedTable:
    """Return the data opened by the run's reader; `names` are the attributes and numbers of the rows.

    Raises DataError if a file is unreadable or lacks a column of the rows.
    """
    try:
        side = _open_table("DATA", paths, run, origin_of(run))
        side.table.require(side.domain.columns(names))
    except DataError as error:
        field = "DATA" if error.field == "data.path" else error.field
        raise type(error)(field, error.got, error.takes, error.remedy) from None
    return side


def _open_table(label: str, paths: Sequence[Any], run: TablePart, origin: Origin) -> ComparedTable:
    """Open one of the compared tables on the domain of the run, with the numbers that its files contain.

    Rows of a release have the labels of cells, so their attributes are read as such.
    """
    is_rows, files = label == "rows", [str(path) for path in paths]
    numbers = [
        number for number in run.domain.numbers if number.name in run.workload.numbers
    ]  # their values may drop rows
    attributes = run.domain.attributes
    domain = Domain([row_attribute(attribute) for attribute in attributes] if is_rows else [*attributes, *numbers])
    table = origin.table(files, domain)
    if is_rows and (present := [number for number in numbers if number.name in table.partitions[0].types()]):
        # rows of older versions have no numbers; values of rows are in their range, and null only if nulls are skipped
        table = origin.table(files, Domain([*domain.attributes, *(replace(one, source="") for one in present)]))

    return ComparedTable(label, table, stamps(table))


def names_of(rows: ComparedTable) -> list[str]:
    """Return the attributes of rows, in their order."""
    return [name for name in rows.table.types() if name in rows.table.domain.names]


def row_attribute(attribute: Attribute) -> Attribute:
    """Return the attribute that reads a column of rows.

    Null is an outside value, and a rounded number remains in the bin at its edge.
    """
    if attribute.groups or attribute.level is not None:  # rows contain the names of groups and the labels of nodes
        attribute = replace(attribute, kind="categories", groups=(), length=0, level=None)
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


def fold_counts(counts: Integers, attributes: Sequence[Attribute]) -> Integers:
    """Merge counts over a table's own cells, one axis per attribute, into counts over the compared cells.

    `size_of` is the number of compared cells of an attribute; further cells of the table are merged with the last one.
    """
    for axis, attribute in enumerate(attributes):
        if counts.shape[axis] > size_of(attribute):
            counts = np.add.reduceat(counts, np.arange(size_of(attribute)), axis)  # the last slice extends to the end
    return counts


def codes_of(domain: Domain, batch: Any, names: Sequence[str]) -> tuple[Integers32, Flags]:
    """Return a batch in the compared cells, shape (rows, attributes), and which rows the domain does not drop.

    `size_of` is the number of compared cells; further codes count as the last one.
    """
    codes, dropped = encode_batch(domain, batch, names)
    most = np.array([size_of(domain[name]) - 1 for name in names], dtype=np.int32)
    included = np.ones(codes.shape[1], dtype=bool) if dropped is None else ~dropped
    return np.minimum(codes.T.astype(np.int32), most), included


def number_partitions(side: ComparedTable, group: Sequence[Partition]) -> Numbered:
    """Return partitions with their numbers."""
    return tuple((side.numbers[partition], partition) for partition in group)


Found = tuple[NDArray[np.float64], Integers32]


def sample(engine: Engine, side: ComparedTable, names: Sequence[str], most: int, release: str) -> Integers32:
    """Return at most `most` rows in random order, over the compared cells, shape (rows, attributes)."""
    groups = partition_groups(side.table.partitions, engine.workers)
    items = [(side.domain, number_partitions(side, group), tuple(names), most, release) for group in groups]
    return _smallest(engine.map(least_rows, items, "sample"), most)[1]


def least_rows(domain: Domain, parts: Numbered, names: Sequence[str], most: int, release: str) -> Found:
    """Return the rows with the smallest random numbers of some partitions, in the order of the numbers.

    `parts` are pairs (number, partition). A row's random number depends on the release, the number of its partition and
    its place only. Attributes that drop rows are read too, but only those in `names` are returned.
    """
    found: Found = (np.empty(0), np.empty((0, len(names)), np.int32))
    read = list(dict.fromkeys([*names, *(axis.name for axis in domain.axes if axis.drops)]))
    for number, partition in parts:
        stream = PublicStream(release, "compared sample", number)
        for batch in partition.batches(domain.columns(read)):
            codes, included = codes_of(domain, batch, read)
            places = stream.uniforms(len(codes))
            found = _smallest([found, (places[included], codes[included, : len(names)])], most)
    return found


def _smallest(found: Sequence[Found], most: int) -> Found:
    places = np.concatenate([places for places, _ in found])
    first = np.argsort(places, kind="stable")[:most]
    return places[first], np.concatenate([codes for _, codes in found])[first]


def check_keys(job: Job, engine: Engine) -> dict[str, Any]:
    """Return rows, null and duplicate keys of every table, and dangling ends, degrees and bound of every link."""
    protects, known = neighbour_relation(job), {}
    tables = []
    for name in job.tables:
        statistics, known[name] = _table_statistics(job, name, engine)
        tables.append(statistics)

    return {
        "private": True,
        "tables": tables,
        "links": [_link_statistics(job, link, known, protects, engine) for link in job.foreign_keys],
    }


def _read_keys(engine: Engine, files: Files, keys: Sequence[Columns]) -> tuple[int, Keys]:
    """Return the number of rows of a table and, for each key, the hashes of all rows and flags of rows with it.

    Partitions are read as tasks and concatenated in their order.
    """
    parts = open_table(files).partitions
    found = engine.map(key_rows, [(part, keys) for part in parts], "keys")
    rows, each = zip(*found, strict=True)
    whole = [tuple(np.concatenate(one) for one in zip(*own, strict=True)) for own in zip(*each, strict=True)]
    return sum(rows), whole  # type: ignore[return-value]


def _table_statistics(job: Job, name: str, engine: Engine) -> tuple[dict[str, Any], Words]:
    """Return the statistics of a table, and its distinct keys."""
    one, key = job.tables[name], job.key(name)
    rows, keys = _read_keys(engine, one, [key] if key else [])
    statistics = {"name": name, "public": one.public, "rows": rows, "null_keys": None, "duplicate_keys": None}
    if not key:
        return statistics, np.empty((0, 2), np.uint64)

    [(words, has)] = keys
    distinct = np.unique(words[has], axis=0)
    return {**statistics, "null_keys": int((~has).sum()), "duplicate_keys": int(has.sum()) - len(distinct)}, distinct


def _link_statistics(
    job: Job, link: LinkSection, known: dict[str, Words], protects: NeighbourRelation, engine: Engine
) -> dict[str, Any]:
    """Return the statistics of the rows that contain a link's ends: a table of pairs, or the child's table.

    `known` has the hashes of the keys of each table. An end that is not among them is dangling and has the place -1.
    `own` are the columns of the second end, or the own key of rows that could repeat a link, else empty.

    `words` are the hashes of the ends, `ends` their places among the known keys, and `has` the rows whose ends are not
    null. A row that repeats a link counts once: `counted` is first all valid rows and then the first of each link.
    """
    first, second = job.ends(link)
    own = second if link.via or link.loops is False or link.child in (protects.root, *protects.sides) else ()
    files: Files = link.via or job.tables[link.child]
    rows, keys = _read_keys(engine, files, [first, own] if own else [first])
    has = np.logical_and.reduce([has for _, has in keys]) if link.via else keys[0][1]
    words = [one[has] for one, _ in keys]
    names = (link.parent, link.child) if link.via else (link.parent,)
    ends = np.stack([places(known[name], word) for name, word in zip(names, words, strict=False)], axis=1)
    there = (ends >= 0).all(axis=1)
    loops = there & (words[0] == words[-1]).all(axis=1) if link.loops is False else np.zeros(len(ends), np.bool_)
    counted = there & ~loops & keys[-1][1][has]  # a row of the root without a key is dropped or refused
    before = int(counted.sum())
    if own:
        counted[counted] = _first_of_each(np.column_stack([word[counted] for word in words]))
    degrees_of = [
        np.bincount(end, minlength=len(known[name])) for end, name in zip(ends[counted].T, names, strict=True)
    ]
    links, faults = int(counted.sum()), {"null_ends": ~has, "dangling": ~there, "loops": loops}
    statistics = {"name": link.called, "rows": rows, **{name: int(mask.sum()) for name, mask in faults.items()},
                  "repeated": before - links, "links": links}  # fmt: skip
    sides = {side: _degrees(one) for side, one in zip(("parent", "child"), degrees_of, strict=False)}

    return {**statistics, "degrees": sides, "max_degree": link.bound, **_beyond(link, degrees_of, protects)}


def _first_of_each(rows: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return a mask of the first of equal rows."""
    first = np.zeros(len(rows), np.bool_)
    first[np.unique(rows, axis=0, return_index=True)[1]] = True
    return first


def _degrees(degrees_of: NDArray[np.int64]) -> dict[str, float]:
    """Return statistics of the links per row of one side, including rows without links."""
    values = degrees_of if len(degrees_of) else np.zeros(1)
    each = {f"{q}%": float(np.quantile(values, q / 100, method="higher")) for q in QUANTILES}
    return {"rows": len(degrees_of), "none": int((degrees_of == 0).sum()), "mean": float(values.mean()), **each,
            "max": float(values.max())}  # fmt: skip


def _beyond(link: LinkSection, degrees_of: Sequence[NDArray[np.int64]], protects: NeighbourRelation) -> dict[str, Any]:
    """Return the rows above the bound, their excess links, and the treatment of these.

    `degrees_of` has the links of each row at the parent, then at the child. If neighbours replace rows, both ends are
    bounded and more links are refused; else those of a private parent whose rows belong to units are cut.
    """
    bounded = list(degrees_of) if protects.replaces else list(degrees_of[:1]) if link.parent in protects.rows else []
    over = [np.maximum(one - link.bound, 0) for one in bounded]
    beyond = {
        "rows_beyond": sum(int((one > 0).sum()) for one in over),
        "links_beyond": sum(int(one.sum()) for one in over),
    }
    treatment = "refused" if protects.replaces else "cut" if bounded else "any number"

    return {**beyond, "beyond_is": treatment}
