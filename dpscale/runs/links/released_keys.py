"""Keys of a released database, read file by file: which row each key refers to, and the links of every row."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dpscale.base.arrow import is_text, pa, pc, pq
from dpscale.base.numerics import Flags, Integers, Integers32
from dpscale.job.sections import LinkSection
from dpscale.runs.linked_tables import INDEX, LinkedTables
from dpscale.storage.files import read_text

if TYPE_CHECKING:
    from pandas import Index, Series

Columns = tuple[str, ...]


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
            own = pq.read_table(file, columns=list(columns)).column(0).combine_chunks()
            prefix = f"{name}-" if is_text(own.type) else ""
            expected = numbered_keys(np.arange(rows, rows + len(own)), prefix)
            # the keys of the file are exactly the numbers of its rows
            numbered = numbered and bool(own.type == expected.type and own.equals(expected))
            rows += len(own)
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
        own = table.column(columns[0]).combine_chunks()
        missing = np.asarray(own.is_null().to_numpy(zero_copy_only=False), bool)
        found = np.full(len(own), -1, np.int64)
        known = own.drop_null()
        if is_text(own.type):
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
    is the row itself. `counts` has the numbers of rows without a parent, of nulls, of keys without a row, and of loops.
    The sample has every `step`-th link, across files. `degrees` are the numbers of links of each row of an end.
    """
    job = run.job
    table, ends = link.called if link.via else link.child, job.ends(link)[: 2 if link.via else 1]
    indices = [KeyIndex.of(run, name, job.key(name)) for name in (link.parent, link.child)[: len(ends)]]
    degrees = [np.zeros(one.rows, np.int32) for one in indices]
    total = sum(pq.read_metadata(file).num_rows for file in files_of(run, table))
    step, seen, counts = max(-(-total // most), 1), 0, np.zeros(4, np.int64)
    samples, pairs = [np.zeros((2, 0), np.int64)], _Pairs(indices[0].rows)
    for first, keys in _tables(run, table, [*ends, *([] if link.via else [job.key(link.child)])]):
        found = [index.find(keys, columns) for index, columns in zip(indices, ends, strict=True)]
        for own, (rows, _) in zip(degrees, found, strict=True):
            kinds, number = np.unique(rows[rows >= 0], return_counts=True)
            own[kinds] += number
        other = found[1][0] if link.via else np.arange(first, first + keys.num_rows)
        one, missing = found[0]
        # rows of both ends, for the links whose ends have a row
        there = np.stack([one, other])[:, (one >= 0) & (other >= 0)]
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
    """Search for repeated pairs; pairs of one file are forgotten unless a row is in a later file, too."""

    def __init__(self, rows: int) -> None:
        self._seen, self._files, self._spread, self._found = np.zeros(rows, bool), list[Integers](), False, False

    def add(self, pairs: Integers) -> None:
        """Add the pairs of a file, shape (2, pairs), and note whether one is repeated in it.

        Pairs of different files can only be equal if their first rows are, which `_spread` records.
        """
        codes = (pairs[0].astype(np.int64) << 32) | pairs[1]  # rows are less than 2^32
        self._found |= len(np.unique(codes)) < len(codes)
        self._spread |= bool(self._seen[pairs[0]].any())
        self._seen[pairs[0]] = True
        self._files.append(codes)

    @property
    def repeated(self) -> bool:
        """Whether a pair occurs twice.

        `_spread` states that files have first rows in common, so the codes of all files are compared; `_found` that a
        file has repeated pairs.
        """
        if not self._spread or self._found:
            return self._found
        codes = np.concatenate(self._files)
        return len(np.unique(codes)) < len(codes)
