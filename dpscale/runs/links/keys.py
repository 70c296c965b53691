"""Keys of the synthetic rows, and tables whose keys are foreign keys; keys of a released database.

A column of a private table's key that no link uses has the texts of its format in the domain file, else the number of
the row, 0, 1, … (TABLE-0, … if the input's key is a text). A column that is also a foreign key has the parent's key:
the child of a one-to-one link may have its parent's key, a line the key of its order and a number, and a row with
attributes of a pair the keys of both ends. All keys are unique: where both ends of two rows are equal, ends are
exchanged between rows, which changes no number of links.

*Released keys.*
They are read file by file: which row each key refers to, and the links of every row.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpscale.base.arrow import is_text, pa, pc, pq, text_kind, types
from dpscale.base.numerics import Flags, Integers, Integers32
from dpscale.domain.text_format import TextFormat
from dpscale.job.protected_unit import has_bounded_parents, key_links, pair_links
from dpscale.job.sections import LinkSection
from dpscale.privacy.streams import PublicStream
from dpscale.runs.linked_tables import INDEX, LinkedTables, open_table, public_tables
from dpscale.runs.links.link_sampling import ParentFiles
from dpscale.runs.stages.synthesize import format_key
from dpscale.storage.files import read_text
from dpscale.synthesis.text_values import text_column

if TYPE_CHECKING:
    from pandas import Index, Series

Pairs = Mapping[str, Integers | ParentFiles]
EXCHANGES = 30  # rounds of random exchanges before single ends are changed

Columns = tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Keys:
    """Keys of the rows of a table.

    Attributes
    ----------
    columns : tuple
        Columns of a public table, and of a table whose key has a foreign key; other keys number the rows.
    forms : tuple of (str or TextFormat)
        For each column that numbers the rows, the beginning of its texts, empty for integers; or its format.
    release : str
        Public name of the texts of formats.
    """

    columns: tuple[Any, ...] = ()
    forms: tuple[str | TextFormat, ...] = ()
    release: str = ""

    def at(self, rows: Integers) -> list[Any]:
        """Return the key columns of some rows; null for row −1.

        They are stored values of a public table, or follow from the row's number by the form of each column.
        """
        if self.columns:
            places = pa.array(rows, mask=rows < 0)
            return [values.take(places) for values in self.columns]
        return [numbered_keys(rows, form) if isinstance(form, str) else text_column(form, rows, self.release)
                for form in self.forms]  # fmt: skip


def release_keys(run: LinkedTables, rows: Mapping[str, int], pairs: Pairs) -> dict[str, Keys]:
    """Return the keys of all tables.

    Public tables have their stored keys. A foreign key that is part of a key needs the parent's keys first.

    Parameters
    ----------
    run : LinkedTables
    rows : mapping of str to int
        Number of rows of every synthetic table.
    pairs : mapping of str to ndarray of int, shape (links, 2), or ParentFiles
        Sampled links as rows of the parent and of the child.
    """
    keys = {}
    for name, (_, table) in public_tables(run).items():
        keys[name] = Keys(tuple(table.column(column) for column in run.job.key(name)))

    def make(name: str) -> Keys:
        """Return the keys of a table, after those of the parents whose keys are part of its own."""
        if name in keys:
            return keys[name]
        names = run.job.key(name)
        stated = {form.name: form for form in run.tables[name].domain.formats}
        # of each column its format, or the beginning of its texts before the number of the row
        forms = tuple(stated.get(column) or _prefix(run, name, column) for column in names)
        # numbers or texts, which may be complete; also the start for tables that refer to each other
        keys[name] = Keys((), forms, format_key(run.tables[name]))
        links = key_links(run.job, name)
        if not links:
            return keys[name]

        # columns without a link are numbered or have texts; those of links are then replaced
        columns = dict(zip(names, keys[name].at(np.arange(rows[name])), strict=True))
        for link in links:
            of_parents = make(link.parent).at(parents_of(pairs[link.called], rows[name]))
            to_parent, _ = run.job.ends(link)
            for column, values in zip(to_parent, of_parents, strict=True):
                if column in columns:
                    columns[column] = values
        keys[name] = Keys(tuple(columns.values()))
        return keys[name]

    for name in rows:
        make(name)
    return keys


def _prefix(run: LinkedTables, name: str, column: str) -> str:
    """Return the beginning of the texts that number a table's rows; empty if the input's key is no text."""
    first = open_table(run.job.tables[name], run.tables[name].domain).partitions[0]
    kind = first.kind(column)
    kind = text_kind(kind.value_type if types.is_dictionary(kind) else kind)
    return f"{name}-" if first.format.typed and is_text(kind) else ""


def parents_of(links: Integers | ParentFiles, rows: int) -> Integers:
    """Return the row of the parent of each of a child's rows; −1 for none.

    `links` are pairs (row of the parent, row of the child), or files with the parents; `rows` is the number of
    children.
    """
    if isinstance(links, ParentFiles):
        return links.of(0, rows)
    parents = np.full(rows, -1, np.int64)
    parents[links[:, 1]] = links[:, 0]
    return parents


def with_distinct_ends(run: LinkedTables, rows: Mapping[str, int], pairs: Pairs) -> dict[str, Integers | ParentFiles]:
    """Return sampled links in which rows whose key is that of two parents have different pairs of parents.

    `pair_links` are the two links whose foreign keys are the whole key of a table. A link with an order keeps its
    parents where those of the other link can be exchanged.
    """
    changed = dict(pairs)
    for name in run.tables:
        links = sorted(pair_links(run.job, name), key=lambda link: not link.order)  # the one with an order first
        if not links:
            continue
        first, second = links
        ends = np.stack([parents_of(pairs[link.called], rows[name]) for link in links], axis=1)
        stream = PublicStream(run.manifest["release"], f"keys {name}")
        counts = _rows_of(run, first.parent, rows), _rows_of(run, second.parent, rows)
        distinct = distinct_ends(ends, counts, _bounds(run, first, second), stream)
        for side, link in enumerate(links):
            changed[link.called] = _as_before(pairs[link.called], distinct[:, side])
    return changed


def _as_before(links: Integers | ParentFiles, parents: Integers) -> Integers:
    """Return links with other parents, grouped by parent, with the children of a parent in the order that they had."""
    children = np.arange(len(parents)) if isinstance(links, ParentFiles) else links[:, 1]
    pairs = np.stack([parents[children], children], axis=1)
    return pairs[np.argsort(pairs[:, 0], kind="stable")]


def _rows_of(run: LinkedTables, name: str, rows: Mapping[str, int]) -> int:
    return len(public_tables(run)[name][0]) if run.job.tables[name].public else rows[name]


def _bounds(run: LinkedTables, one: LinkSection, other: LinkSection) -> tuple[int | None, int | None]:
    first, second = (link.bound if has_bounded_parents(run.job, link) else None for link in (one, other))
    return first, second


def distinct_ends(
    ends: Integers, counts: tuple[int, int], bounds: tuple[int | None, int | None], stream: PublicStream
) -> Integers:
    """Return rows with two ends each, of which no two rows have both in common.

    Second ends are exchanged between rows, which preserves the number of rows of every end. Rows that remain get a
    second end that their first end does not have, or another first end within its bound.

    Parameters
    ----------
    ends : ndarray of int, shape (rows, 2)
    counts : tuple of int
        Number of possible first ends, and of second ones.
    bounds : tuple of (int or None)
        Largest number of rows of each first end, and of each second one.
    stream : PublicStream

    Returns
    -------
    ndarray of int, shape (rows, 2)
    """
    ends = ends.copy()
    for _ in range(EXCHANGES):
        again = np.flatnonzero(_repeated(ends, counts[1]))
        if not len(again):
            return ends
        partners = stream.permutation(len(ends))[: len(again)]
        _exchange(ends, again[: len(partners)], partners, counts[1])
    used = set(map(tuple, ends[~_repeated(ends, counts[1])].tolist()))
    degrees = [np.bincount(ends[:, side], minlength=count) for side, count in enumerate(counts)]
    for row in np.flatnonzero(_repeated(ends, counts[1])):
        _change_end(ends, int(row), used, degrees, bounds)
    return ends


def _repeated(ends: Integers, width: int) -> Flags:
    """Return a mask of the rows whose ends an earlier row has; `width` is the number of possible second ends."""
    pairs = ends[:, 0] * max(width, 1) + ends[:, 1]  # a number for each pair of ends
    _, first_places = np.unique(pairs, return_index=True)
    again = np.ones(len(ends), np.bool_)
    again[first_places] = False
    return again


def _exchange(ends: Integers, rows: Integers, partners: Integers, width: int) -> None:
    """Exchange the second ends of rows with those of their partners where it gives no pair that exists.

    A pair (a, b) is the number a · width + b.
    """
    known = set((ends[:, 0] * width + ends[:, 1]).tolist())
    for row, partner in zip(rows.tolist(), partners.tolist(), strict=True):
        (a, b), (c, d) = ends[row].tolist(), ends[partner].tolist()
        # the new pairs must be new, and the exchange must change both rows
        if a * width + d in known or c * width + b in known or a == c or b == d:
            continue
        known |= {a * width + d, c * width + b}
        # the partner's former pair; that of the row itself exists twice
        known.discard(c * width + d)
        ends[row, 1], ends[partner, 1] = d, b


def _change_end(
    ends: Integers, row: int, used: set[tuple[int, int]], degrees: list[Integers], bounds: tuple[int | None, int | None]
) -> None:
    """Give a row a pair of ends that no other row has: with its first end if one is left, else with another one.

    Ends with few rows come first, and no end gets more rows than its bound (None: any number). Changes `ends`, `used`
    (the pairs of other rows) and `degrees` (numbers of rows of each first and each second end) in place; without a free
    pair, nothing.
    """
    first, second = ends[row].tolist()
    others = [end for end in np.argsort(degrees[0], kind="stable").tolist() if end != first]
    # the row's end stays as long as it can; a bound does not refuse the end that the row has
    for new_first in [first, *others]:
        if new_first != first and bounds[0] is not None and degrees[0][new_first] >= bounds[0]:
            continue
        for new_second in np.argsort(degrees[1], kind="stable").tolist():
            full = new_second != second and bounds[1] is not None and degrees[1][new_second] >= bounds[1]
            if full or (new_first, new_second) in used:
                continue
            degrees[0][first] -= 1
            degrees[1][second] -= 1
            degrees[0][new_first] += 1
            degrees[1][new_second] += 1
            used.add((new_first, new_second))
            ends[row] = new_first, new_second
            return


def files_of(run: LinkedTables, name: str) -> list[Path]:
    """Return the files of a released table."""
    content = json.loads(read_text(run.path / "synthetic" / INDEX))
    return [run.path / "synthetic" / file for file in content[name]]


def key_column(table: pa.Table, columns: Columns) -> Series:
    """Return a key as a pandas Series; keys of several columns as texts."""
    frame = table.select(list(columns)).to_pandas()
    if len(columns) == 1:
        return frame[columns[0]]
    return frame.astype(str).agg("\0".join, axis=1)


@dataclass(frozen=True, eq=False)
class KeyIndex:
    """Rows of a released table by their keys.

    Attributes
    ----------
    rows : int
    prefix : str or None
        Beginning of the keys that number the rows, "" if they are integers; None for other keys.
    index : pandas.Index or None
        Other keys.
    """

    rows: int
    prefix: str | None
    index: Index | None = None

    @classmethod
    def of(cls, run: LinkedTables, name: str, columns: Columns) -> KeyIndex:
        """Read the keys of a released table, for finding the row of a key.

        Keys that number the rows in their order, with or without a prefix, need no index.
        """
        import pandas as pd

        rows, numbered, prefix = 0, len(columns) == 1, ""
        for file in files_of(run, name) if numbered else []:
            of_file = pq.read_table(file, columns=list(columns)).column(0).combine_chunks()
            prefix = f"{name}-" if is_text(of_file.type) else ""
            expected = numbered_keys(np.arange(rows, rows + len(of_file)), prefix)
            # the keys of the file are exactly the numbers of its rows
            numbered = numbered and bool(of_file.type == expected.type and of_file.equals(expected))
            rows += len(of_file)
        if numbered:
            return cls(rows, prefix)
        keys = pd.concat([key_column(pq.read_table(file, columns=list(columns)), columns)
                          for file in files_of(run, name)])  # fmt: skip
        return cls(len(keys), None, pd.Index(keys))

    def find(self, table: pa.Table, columns: Columns) -> tuple[Integers, Flags]:
        """Return the row of each key in some columns, −1 if it is absent or null, and the mask of nulls.

        Numbered keys are the prefix and the number of a row without leading zeros, so that no index is needed.
        """
        if self.prefix is None:
            import pandas as pd

            assert self.index is not None
            values = key_column(table, columns)
            gone = np.asarray(values.isna())  # of two dimensions if there are no tuples
            missing = np.asarray(gone.any(axis=1) if gone.ndim > 1 else gone)
            return np.asarray(self.index.get_indexer(pd.Index(values)), np.int64), missing
        keys = table.column(columns[0]).combine_chunks()
        missing = np.asarray(keys.is_null().to_numpy(zero_copy_only=False), bool)
        found = np.full(len(keys), -1, np.int64)
        known = keys.drop_null()
        # the numbers in keys of this form, and the places of these keys
        if is_text(keys.type):
            there = pc.match_substring_regex(known, rf"^{re.escape(self.prefix)}(0|[1-9][0-9]{{0,17}})$")
            numbers = pc.utf8_slice_codeunits(known.filter(there), len(self.prefix)).cast(pa.int64()).to_numpy()
            places = np.flatnonzero(~missing)[there.to_numpy(zero_copy_only=False)]
        else:
            numbers, places = known.cast(pa.int64()).to_numpy(), np.flatnonzero(~missing)
        inside = (numbers >= 0) & (numbers < self.rows)
        found[places[inside]] = numbers[inside]
        return found, missing


def numbered_keys(rows: Integers, prefix: str) -> pa.Array:
    """Return keys that number rows, null for −1: integers, or texts that begin with `prefix`."""
    numbers = pa.array(rows, mask=rows < 0)
    return pc.binary_join_element_wise(prefix, numbers.cast(pa.string()), "") if prefix else numbers


@dataclass(frozen=True, eq=False)
class ReleasedEnds:
    """What the files of a released link contain.

    Attributes
    ----------
    degrees : list of ndarray
        Number of links of every row: of the parents and, of a table of pairs, of the children.
    links, missing : int
        Number of links, and of rows of the child without a parent.
    null, absent, repeated : bool
        Whether an end is null, a key has no row, and a pair occurs twice.
    loops : int
        Number of links of a row to itself.
    sample : ndarray, shape (2, k)
        Both rows of some links, evenly spaced.
    """

    degrees: list[Integers32]
    links: int
    missing: int
    null: bool
    absent: bool
    repeated: bool
    loops: int
    sample: Integers


def released_ends(run: LinkedTables, link: LinkSection, most: int) -> ReleasedEnds:
    """Read the keys of a released link; `most` is the size of the sample.

    A table of pairs has two ends, the keys of parent and child; another link has the parent's key alone, and its child
    is the row itself. The sample has every `step`-th link, across files.
    """
    job = run.job
    table, ends = link.called if link.via else link.child, job.ends(link)[: 2 if link.via else 1]
    indices = [KeyIndex.of(run, name, job.key(name)) for name in (link.parent, link.child)[: len(ends)]]
    degrees = [np.zeros(index.rows, np.int32) for index in indices]
    total = sum(pq.read_metadata(file).num_rows for file in files_of(run, table))
    step, seen = max(-(-total // most), 1), 0
    counts = np.zeros(4, np.int64)  # rows without a parent, nulls, keys without a row, loops
    samples, pairs = [np.zeros((2, 0), np.int64)], _Pairs(indices[0].rows)
    for first, keys in _tables(run, table, [*ends, *([] if link.via else [job.key(link.child)])]):
        found = [index.find(keys, columns) for index, columns in zip(indices, ends, strict=True)]
        for degrees_of_end, (rows, _) in zip(degrees, found, strict=True):
            distinct_rows, number = np.unique(rows[rows >= 0], return_counts=True)
            degrees_of_end[distinct_rows] += number
        children = found[1][0] if link.via else np.arange(first, first + keys.num_rows)
        parents, missing = found[0]
        # rows of both ends, for the links whose ends have a row
        there = np.stack([parents, children])[:, (parents >= 0) & (children >= 0)]
        # `seen` links came before: the next of the sample is at the next multiple of `step`
        samples.append(there[:, (-seen) % step :: step].copy())  # copied: a view would retain all links
        seen += there.shape[1]
        counts += np.array([np.count_nonzero(missing), sum(np.count_nonzero(null) for _, null in found),
                   sum(np.count_nonzero((rows < 0) & ~null) for rows, null in found),
                   np.count_nonzero(there[0] == there[1]) if link.parent == link.child else 0])  # fmt: skip
        if link.via:
            pairs.add(there)
    return ReleasedEnds(
        degrees=degrees,
        links=total - int(counts[0]),
        missing=int(counts[0]),
        null=counts[1] > 0,
        absent=counts[2] > 0,
        repeated=pairs.repeated,
        loops=int(counts[3]),
        sample=np.concatenate(samples, axis=1),
    )


def _tables(run: LinkedTables, name: str, keys: list[Columns]) -> Iterator[tuple[int, pa.Table]]:
    """Yield the number of the first row and the key columns of every file of a table."""
    first, columns = 0, list(dict.fromkeys(column for key in keys for column in key))
    for file in files_of(run, name):
        table = pq.read_table(file, columns=columns)
        yield first, table
        first += table.num_rows


class _Pairs:
    """Search for repeated pairs of rows, file by file.

    `_seen` marks the first rows of pairs so far, and `_files` has the pairs of each file. `_found` states that a file
    has a repeated pair, and `_spread` that two files have a first row in common, so that they may have equal pairs.
    """

    def __init__(self, rows: int) -> None:
        self._seen, self._files, self._spread, self._found = np.zeros(rows, bool), list[Integers](), False, False

    def add(self, pairs: Integers) -> None:
        """Add the pairs of a file, shape (2, pairs), and note whether one is repeated in it."""
        codes = (pairs[0].astype(np.int64) << 32) | pairs[1]  # rows are less than 2^32
        self._found |= len(np.unique(codes)) < len(codes)
        self._spread |= bool(self._seen[pairs[0]].any())
        self._seen[pairs[0]] = True
        self._files.append(codes)

    @property
    def repeated(self) -> bool:
        """Whether a pair occurs twice, in one file or in two; files without a common first row are not compared."""
        if not self._spread or self._found:
            return self._found
        codes = np.concatenate(self._files)
        return len(np.unique(codes)) < len(codes)
