"""Search for the nodes of a public tree of codes (kind "nodes"): level by level, below the nodes that are found.

Every level has the same share of the squared mu. A record lies in at most one node of each level, so all levels cost
their sum for every outcome; a unit of k rows costs k² times as much. The children of a node are measured if the noisy
count of the node is at least FOUND standard deviations. There is no additive delta, because the nodes are public. A
found node is a cell with the codes below it that are in no found node further down.

The tree is read from a file with a row for every code: its ancestors from the top, and the code itself.
Leaves are sorted by their paths, so the leaves below a node are an interval of the order, and the count of a node is a
difference of cumulative counts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np

from dpscale.base.arrow import arrow_csv, pa, pc, pq
from dpscale.base.errors import DomainError
from dpscale.base.numerics import Integers
from dpscale.discovery.reading import SearchRows
from dpscale.discovery.value_counts import NONE_FOUND, search_draw
from dpscale.domain.attribute import Attribute
from dpscale.domain.search import NodeSearch
from dpscale.privacy.accounting import Cost
from dpscale.privacy.draws import GaussianDraw
from dpscale.privacy.secret import SecretFile
from dpscale.privacy.streams import open_stream
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
        """Return the nodes of a depth above the leaves start … end - 1, or at them."""
        found: list[CodeNode] = []
        # the leaves below a node are consecutive
        for code, leaves in groupby(range(start, end), lambda leaf: self._at(leaf, depth)):
            if code is not None:
                first, *others = leaves
                found.append(CodeNode(code=code, start=first, end=first + len(others) + 1, depth=depth))
        return found

    def _at(self, leaf: int, depth: int) -> str | None:
        """Return the code of a leaf's ancestor at a depth, or of the leaf itself; None if the leaf is higher."""
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
        raise DomainError(
            f"{name}.levels", f"no column {missing[0]!r} in the file", ", ".join(table.column_names), "fix it"
        )

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
    named = [name for name in row if name]
    return tuple(name for at, name in enumerate(named) if not at or name != named[at - 1])


def _check(name: str, paths: Sequence[Path]) -> None:
    """Refuse the paths of a tree if one name has two places, or a leaf is listed twice or is an ancestor.

    A path has the names from the top to the leaf.
    """
    places: dict[str, Path] = {}  # of each name: the path from the top to it
    for path in paths:
        for depth in range(1, len(path) + 1):
            if places.setdefault(path[depth - 1], path[:depth]) != path[:depth]:
                raise DomainError(
                    f"{name}.file", f"the name {path[depth - 1]!r} of two nodes", "distinct names", "rename one"
                )

    leaves = {path[-1] for path in paths}
    has_leaf_above = any(name in leaves for path in paths for name in path[:-1])
    if len(leaves) < len(paths) or has_leaf_above or not paths:
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
    """Return the exact counts of all codes in some partitions, as a list of one array. They are private.

    `bounded` are the partitions with rows beyond a unit's bound, and `dropped` the masks of these rows. `kept` marks
    the rows that count. Texts that are no code of the tree are left out.
    """
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


FOUND = 4.0  # standard deviations of its noise that the count of a found node has at least


@dataclass(frozen=True)
class NodePlan:
    """Measurement of a tree of codes.

    Attributes
    ----------
    attribute : Attribute
    tree : CodeTree
    draw : GaussianDraw
        Noise of the counts of one level.
    """

    attribute: Attribute
    tree: CodeTree
    draw: GaussianDraw

    @property
    def cost(self) -> Cost:
        return Cost(gaussian=self.draw.cost * self.tree.depth)

    @property
    def record(self) -> dict[str, Any]:
        """Everything that determines the draws, in text and integers."""
        search = self.attribute.search
        assert isinstance(search, NodeSearch)
        return {"search": "nodes", "version": 1, "attribute": self.attribute.name, "column": self.attribute.column,
                "tree": search.digest, "levels": self.tree.depth, "multiplier": str(self.draw.multiplier),
                **self.draw.noise_spec}  # fmt: skip


def plan_nodes(attribute: Attribute, tree: CodeTree, share: Fraction, rows_per_unit: int) -> NodePlan:
    """Return the measurement of a search for nodes, with equal shares for all levels."""
    return NodePlan(attribute, tree, search_draw(share / tree.depth, rows_per_unit, f"the codes of {attribute.name}"))


def find_nodes(
    plan: NodePlan, count: Callable[[Sequence[CodeNode]], Integers], secret: SecretFile, head: Mapping[str, Any]
) -> dict[CodeNode, float]:
    """Return the nodes that are found, from the top down, and their noisy counts.

    `count` returns the exact counts of nodes, which are private. The stream of a level depends on its nodes, which
    follow from the released levels above.
    """
    found: dict[CodeNode, float] = {}
    draw, nodes, key = plan.draw, plan.tree.children(0, len(plan.tree.paths), 1), secret.read()
    least = FOUND * draw.lattice_variance**0.5

    for depth in range(1, plan.tree.depth + 1):
        if not nodes:
            break
        stream = open_stream(
            key, "noise", {**head, **plan.record, "depth": depth, "nodes": [node.code for node in nodes]}
        )
        values = (draw.multiplier * count(nodes) + draw.words(stream, len(nodes))) / draw.multiplier
        new = {node: float(value) for node, value in zip(nodes, values, strict=True) if value >= least}
        found |= new
        nodes = [child for node in new for child in plan.tree.children(node.start, node.end, depth + 1)]

    return found


def found_nodes(plan: NodePlan, found: Mapping[CodeNode, float]) -> tuple[Attribute, dict[str, Any]]:
    """Return the attribute whose cells are the nodes that were found, and the released record.

    Deeper nodes overwrite their ancestors in `owner`, so each code belongs to the deepest node that was found above it.
    """
    owner: list[CodeNode | None] = [None] * len(plan.tree.paths)
    for node in sorted(found, key=lambda node: node.depth):
        owner[node.start : node.end] = [node] * (node.end - node.start)
    codes: dict[str, list[str]] = {}
    for code, above in zip(plan.tree.codes, owner, strict=True):
        if above is not None:
            codes.setdefault(above.code, []).append(code)

    codes = codes or {NONE_FOUND: [NONE_FOUND]}  # an attribute needs a value
    closed = replace(plan.attribute, values=tuple(codes), groups=tuple(map(tuple, codes.values())), search=None)
    measured = [{"code": node.code, "depth": node.depth, "count": count} for node, count in found.items()]
    return closed, {"found": measured, "error": plan.draw.lattice_variance**0.5}
