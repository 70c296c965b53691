"""Public tree of codes, read from a file with a row for every code: its ancestors from the top, and the code itself.

Leaves are sorted by their paths, so the leaves below a node are an interval of the order, and the count of a node is a
difference of cumulative counts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from dpscale.base.arrow import arrow_csv, pa, pc, pq
from dpscale.base.errors import DomainError
from dpscale.base.numerics import Integers
from dpscale.discovery.reading import SearchRows
from dpscale.domain.attribute import Attribute
from dpscale.domain.search import NodeSearch
from dpscale.records.searched import VALUE, text_entries
from dpscale.records.table import Partition
from dpscale.records.where import RowMask
from dpscale.storage.files import place

Path = tuple[str, ...]


@dataclass(frozen=True, eq=False)
class CodeNode:
    """Node of the tree.

    Attributes
    ----------
    code : str
    start, end : int
        Interval of its leaves.
    depth : int
        1 for the nodes at the top.
    """

    code: str
    start: int
    end: int
    depth: int


@dataclass(frozen=True, eq=False)
class CodeTree:
    """Tree of codes.

    Attributes
    ----------
    paths : tuple of tuple of str
        Path of each leaf from the top to the leaf itself, sorted.
    """

    paths: tuple[Path, ...]

    @cached_property
    def codes(self) -> list[str]:
        """Codes of the leaves."""
        return [path[-1] for path in self.paths]

    @property
    def depth(self) -> int:
        """Number of levels."""
        return max(map(len, self.paths))

    def children(self, start: int, end: int, depth: int) -> list[CodeNode]:
        """Return the nodes of a depth among the leaves start … end - 1."""
        found: list[CodeNode] = []
        first = start
        for at in range(start, end + 1):
            if at == end or (at > first and self._at(at, depth) != self._at(first, depth)):
                if (code := self._at(first, depth)) is not None and first < at:
                    found.append(CodeNode(code, first, at, depth))
                first = at
        return found

    def _at(self, leaf: int, depth: int) -> str | None:
        path = self.paths[leaf]
        return path[depth - 1] if len(path) >= depth else None


def read_tree(attribute: Attribute) -> CodeTree:
    """Return the tree of an attribute with a NodeSearch.

    Raises
    ------
    DomainError
        If a column is missing, a code occurs twice, or a name denotes two nodes.
    """
    search, name = attribute.search, f"attributes.{attribute.name}"
    assert isinstance(search, NodeSearch)
    columns = [*search.levels, search.leaf]
    try:
        table = _read_table(search, columns)
    except (OSError, pa.ArrowException):
        raise DomainError(f"{name}.file", "a file that cannot be read", "CSV or Parquet", "convert it") from None
    if missing := [column for column in columns if column not in table.column_names]:
        raise DomainError(f"{name}.levels", f"no column {missing[0]!r} in the file", ", ".join(table.column_names),
                          "fix it")  # fmt: skip
    rows = zip(*(table[column].cast(pa.string()).to_pylist() for column in columns), strict=True)
    paths = sorted({_path(row) for row in rows} - {()})
    _check(name, paths)
    return CodeTree(tuple(paths))


def _read_table(search: NodeSearch, columns: Sequence[str]) -> pa.Table:
    """Return the file whose hash the domain states; columns of a CSV file are texts, with their leading zeros."""
    path = place(search.file, "file")
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != search.digest:
        raise OSError("changed since the domain was read")
    if search.file.endswith(".parquet"):
        return pq.read_table(pa.BufferReader(content))
    texts = arrow_csv.ConvertOptions(column_types=dict.fromkeys(columns, pa.string()), strings_can_be_null=False)
    return arrow_csv.read_csv(pa.BufferReader(content), convert_options=texts)


def _path(row: Sequence[str | None]) -> Path:
    """Return the names from the top to the leaf, without empty levels and without repeats of the level above."""
    named = [one for one in row if one]
    return tuple(one for at, one in enumerate(named) if not at or one != named[at - 1])


def _check(name: str, paths: Sequence[Path]) -> None:
    parents: dict[str, Path] = {}
    for path in paths:
        for depth in range(1, len(path) + 1):
            if parents.setdefault(path[depth - 1], path[:depth]) != path[:depth]:
                raise DomainError(f"{name}.file", f"the name {path[depth - 1]!r} of two nodes", "distinct names",
                                  "rename one")  # fmt: skip
    leaves = {path[-1] for path in paths}
    if len(leaves) < len(paths) or any(one in leaves for path in paths for one in path[:-1]) or not paths:
        raise DomainError(f"{name}.file", "a code twice, or a code that is an ancestor of another", "one row for each"
                          " leaf", "remove the repeat")  # fmt: skip


@dataclass(frozen=True, eq=False)
class LeafRequest:
    """Column whose codes are counted; `codes` are those of the tree in its order."""

    rows: SearchRows
    attribute: Attribute
    codes: Any


def count_leaves(
    request: LeafRequest, partitions: Sequence[Partition], bounded: Sequence[Partition] = (), *dropped: RowMask
) -> list[Integers]:
    """Return the exact counts of all codes in some partitions, as a list of one array. They are private."""
    total = np.zeros(len(request.codes), np.int64)
    masks: Mapping[Partition, RowMask] = dict(zip(bounded, dropped, strict=True))
    for column, _, kept in request.rows.columns(request.attribute, partitions, masks):
        found = text_entries(request.attribute, column)
        rows = found.rows[kept & (found.states == VALUE) & (found.rows >= 0)]
        places = np.array(pc.index_in(found.texts, value_set=request.codes).fill_null(-1), dtype=np.int64)
        places = places[rows]
        total += np.bincount(places[places >= 0], minlength=len(total))
    return [total]


@dataclass(frozen=True, eq=False)
class LeafCounts:
    """Cumulative exact counts of the leaves. Private."""

    sums: Integers = field(repr=False)

    def of(self, nodes: Sequence[CodeNode]) -> Integers:
        """Return the counts of nodes."""
        starts = np.array([node.start for node in nodes], np.int64)
        ends = np.array([node.end for node in nodes], np.int64)
        return np.asarray(self.sums[ends] - self.sums[starts])
