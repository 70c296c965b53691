"""Programs: covers as flat arrays for the compiled loops (columns, sizes, offsets, strides and tree nodes).

A program is built where the cover is chosen and sent to the counting tasks, which need neither the sets nor the cover.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import numpy as np

from dpscale.base.numerics import AttributeSet, Integers, LazyModule, NDArray
from dpscale.counting.cover import DIRECT, FEW, PLANES, Cover, numbers_of
from dpscale.domain import Domain, Number
from dpscale.records.encode import Codes

kernels = LazyModule("dpscale.counting.kernels")  # numba

NARROW_CELLS = 1 << 12  # cells of a set whose counters do not exceed the cache
NARROW_BLOCK = 1 << 16  # rows of a block for sets of at most NARROW_CELLS cells
WIDE_BLOCK = 1 << 18  # rows of a block for larger sets: long, so that counters in the cache are used often


@dataclass(frozen=True)
class Steps:
    """Sets counted by increments into one array, sorted so that neighbours share a prefix."""

    columns: Integers
    sizes: Integers
    starts: Integers
    shared: Integers
    offsets: Integers
    cells: Integers
    code: str
    block: int  # rows whose codes are computed together

    def is_small(self, rows: int) -> bool:
        """Return whether NumPy counts the last of so many rows: to compile or load loops would take longer."""
        return rows * len(self.offsets) <= FEW

    def places(self, codes: Codes, width: int = 1) -> Iterator[Integers]:
        """Yield the place of each row's first counter in every set, whose cells have `width` counters.

        The places of a set are the codes of its cells, plus the offset of its counters.
        """
        columns, sizes = self.columns.tolist(), self.sizes.tolist()
        for offset, (first, end) in zip(self.offsets.tolist(), pairwise(self.starts.tolist()), strict=True):
            joint = codes[columns[first]].astype(np.int64)
            for k in range(first + 1, end):
                joint = joint * sizes[k] + codes[columns[k]].astype(np.int64)
            yield joint * width + offset

    def levels(self, rows: int) -> NDArray[Any]:
        """Return work space for the prefix codes of so many rows."""
        deepest = int(np.diff(self.starts).max(initial=1))
        return np.empty((deepest, min(rows, self.block)), dtype=self.code)


@dataclass(frozen=True)
class Folds:
    """Summation of requested sets from joints.

    Per joint: offsets, cells, sizes with starts. Per set: its joint (owners), strides with stride_starts, and place.
    """

    offsets: Integers
    cells: Integers
    sizes: Integers
    starts: Integers
    owners: Integers
    strides: Integers
    stride_starts: Integers
    places: Integers

    def apply(self, joint: NDArray[Any], flat: Integers) -> None:
        """Add to each set the sum of its joint over the axes that the set lacks."""
        kernels.fold(joint, self.offsets, self.cells, self.sizes, self.starts, self.owners, self.strides,
                     self.stride_starts, self.places, flat)  # fmt: skip


@dataclass(frozen=True)
class Planes:
    """Sets counted by bit planes: their subsets as a tree, and the assembly of each set.

    A node of the tree is a non-empty subset of the axes of a set, and its parent is the subset without the last axis.
    A node counts the cells without the last value of an axis; a set is assembled from all its subsets.

    Attributes
    ----------
    columns : ndarray
        Row of the codes of each axis.
    sizes : ndarray
        Number of cells of each axis.
    starts : ndarray
        First plane of each axis, which has one plane less than cells.
    axis, depth : ndarray
        Last axis of each node, in the order of the tree, and its number of axes less 1.
    inner : ndarray of bool
        Whether a node has children.
    offsets : ndarray
        First counter of each node, and the end.
    most_inner : int
        Largest number of cells of a node with children.
    set_starts, set_axes : ndarray
        Start of each set in `set_axes`, and its axes.
    set_nodes : ndarray
        Node of every subset of every set, by mask.
    node_starts : ndarray
        Start of each set in `set_nodes`.
    places : ndarray
        First counter of each set in the result.
    """

    columns: Integers
    sizes: Integers
    starts: Integers
    axis: Integers
    depth: Integers
    inner: NDArray[np.bool_]
    offsets: Integers
    most_inner: int
    set_starts: Integers
    set_axes: Integers
    set_nodes: Integers
    node_starts: Integers
    places: Integers


@dataclass(frozen=True)
class Program:
    """Complete work on a block of codes, whose rows are the columns `names`."""

    names: tuple[str, ...]
    cells: int
    joint_cells: int
    empty: Integers
    joints: tuple[Steps, ...]
    direct: tuple[Steps, ...]
    folds: Folds | None
    planes: Planes | None
    sums: tuple[NumberSteps, ...] = ()

    @classmethod
    def of(cls, cover: Cover) -> Program:
        """Compile a cover.

        `of_numbers` has the sets with numbers by their numbers; they are summed instead of counted, by `_sums`. `plain`
        marks the other sets, and `offsets` has the first cell of each set in the result.
        """
        domain, sets, owners = cover.domain, cover.sets, cover.owners
        # at least one column, so that rows are counted even if only the empty set is requested
        used = {name for names in sets for name in names} or {domain.names[0]}
        names = tuple(name for name in domain.axis_names if name in used)
        offsets = _ends(domain.cells_each(sets))

        of_numbers: dict[AttributeSet, list[int]] = {}
        for s, own in enumerate(sets if domain.numbers else ()):
            if numbers := numbers_of(domain, own):
                of_numbers.setdefault(numbers, []).append(s)

        plain = np.ones(len(sets), np.bool_)
        for own_sets in of_numbers.values():
            plain[own_sets] = False
        joints = [own for own in cover.joints if not numbers_of(domain, own)]  # they come first
        # place of each joint in the counters of joints, which are summed to their sets at the end
        starts = _ends([domain.cells(joint) for joint in joints])
        # places of empty sets, which count the rows
        empty = np.array([offsets[s] for s in np.flatnonzero(owners < 0) if not sets[s]], dtype=np.int64)
        direct = [s for s in np.flatnonzero((owners == DIRECT) & plain) if sets[s]]
        planes = np.flatnonzero(owners == PLANES)

        return cls(
            names,
            int(offsets[-1]),
            int(starts[-1]),
            empty,
            _steps(domain, names, joints, starts[:-1]),
            _steps(domain, names, [sets[s] for s in direct], offsets[direct]),
            _folds(cover, np.flatnonzero((owners >= 0) & plain), starts[:-1], offsets) if joints else None,
            _planes(domain, names, [sets[s] for s in planes], offsets[planes]) if len(planes) else None,
            tuple(_sums(cover, names, numbers, members, offsets) for numbers, members in of_numbers.items()),
        )


def _ends(lengths: Sequence[int] | NDArray[Any]) -> Integers:
    return np.cumsum([0, *lengths], dtype=np.int64)


def _array(values: Any) -> Integers:
    return np.asarray(list(values), dtype=np.int64)


def _steps(domain: Domain, names: Sequence[str], sets: Sequence[AttributeSet], offsets: Integers) -> tuple[Steps, ...]:
    """Group the sets by the width of their codes and the block size suited to their counters.

    Sets with at most NARROW_CELLS cells need other blocks than sets whose counters exceed the cache.
    """
    groups: dict[tuple[str, int], list[int]] = {}
    for s, attributes in enumerate(sets):
        cells = domain.cells(attributes)
        code = "uint16" if cells <= 1 << 16 else "uint32" if cells <= 1 << 32 else "int64"
        groups.setdefault((code, NARROW_BLOCK if cells <= NARROW_CELLS else WIDE_BLOCK), []).append(s)
    return tuple(_group(domain, names, sets, offsets, groups[kind], *kind) for kind in sorted(groups))


def _group(
    domain: Domain,
    names: Sequence[str],
    sets: Sequence[AttributeSet],
    offsets: Integers,
    mine: list[int],
    code: str,
    block: int,
) -> Steps:
    """Return the steps that count the sets `mine` of one code size: columns, sizes, ends and offsets of the sets.

    Sets are in the order of their columns, so that each shares its first columns with the one before.

    `names` are the columns of the block, `code` the type of the joint codes, and `block` the number of rows that are
    counted at a time. `shared` is the number of first columns that a set has in common with the one before.
    """
    place = {name: index for index, name in enumerate(names)}
    columns = {s: [place[name] for name in sets[s]] for s in mine}
    order = sorted(mine, key=lambda s: columns[s])
    shared = [0, *(_shared(columns[a], columns[b]) for a, b in pairwise(order))]

    return Steps(
        columns=_array(x for s in order for x in columns[s]),
        sizes=_array(domain[name].size for s in order for name in sets[s]),
        starts=_ends([len(sets[s]) for s in order]),
        shared=_array(shared),
        offsets=_array(offsets[s] for s in order),
        cells=_array(domain.cells(sets[s]) for s in order),
        code=code,
        block=block,
    )


def _shared(before: list[int], after: list[int]) -> int:
    """Return how many prefix codes of the previous set can be reused; the code of all its columns is not stored."""
    count = 0
    for a, b in zip(before[:-1], after[:-1], strict=False):
        if a != b:
            break
        count += 1
    return count


@dataclass(frozen=True)
class NumberSteps:
    """Work on the sets with the same numbers, to whose cells a record belongs in parts.

    Attributes
    ----------
    numbers : tuple of Number
    columns : tuple of int
        Row of the codes of each number.
    joints, direct : tuple of Steps
        Other attributes of the joints and of the sets that are summed separately.
    joint_cells : int
        Counters of the joints.
    folds : Folds or None
    alone : ndarray of int64
        Places of the sets without other attributes.
    """

    numbers: tuple[Number, ...]
    columns: tuple[int, ...]
    joints: tuple[Steps, ...]
    direct: tuple[Steps, ...]
    joint_cells: int
    folds: Folds | None
    alone: Integers

    @property
    def cells(self) -> int:
        """Number of cells of the numbers together."""
        return math.prod(number.size for number in self.numbers)


def _sums(
    cover: Cover, names: tuple[str, ...], numbers: AttributeSet, mine: Sequence[int], offsets: Integers
) -> NumberSteps:
    """Return the steps that sum numbers over the sets `mine`: in joint sets, directly, and for the numbers alone.

    The numbers are the last attributes of a set. Joints with the same numbers are consecutive in the cover, so that
    `joint_places` begins at the first of them. `alone` are the places of sets without another attribute.
    """
    domain, sets, width = cover.domain, cover.sets, len(numbers)
    joint_places = [place for place, joint in enumerate(cover.joints) if numbers_of(domain, joint) == numbers]
    joints = [cover.joints[place] for place in joint_places]
    starts = _ends([domain.cells(joint) for joint in joints])
    # sets that are summed from a joint
    covered = [s for s in mine if cover.owners[s] >= 0]
    direct = _array(s for s in mine if cover.owners[s] < 0 and len(sets[s]) > width)

    return NumberSteps(
        numbers=tuple(number for number in domain.numbers if number.name in numbers),
        columns=tuple(names.index(name) for name in numbers),
        joints=_steps(domain, names, [joint[:-width] for joint in joints], starts[:-1]),
        direct=_steps(domain, names, [sets[s][:-width] for s in direct], offsets[direct]),
        joint_cells=int(starts[-1]),
        folds=_folds(cover, _array(covered), starts[:-1], offsets, joint_places[0]) if joint_places else None,
        alone=_array(offsets[s] for s in mine if len(sets[s]) == width and cover.owners[s] < 0),
    )


def _folds(cover: Cover, covered: Integers, starts: Integers, offsets: Integers, first: int = 0) -> Folds:
    """Return the sums of covered sets from joints, of which `first` is the first one in `starts`.

    A stride is the step in the set's cells for one step along an axis of the joint, and 0 for axes that the set lacks.
    `covered` are positions in cover.sets, and cover.owners[s] is the position in cover.joints of the joint from which
    set s is summed. `starts` are the places of the first cell of each joint, `offsets` those of each set, in flat
    arrays.
    """
    domain, joints = cover.domain, cover.joints[first : first + len(starts)]
    strides = []
    for s in covered:
        shape, steps, step = domain.shape(cover.sets[s]), {}, 1
        for name, size in zip(reversed(cover.sets[s]), reversed(shape), strict=True):
            steps[name] = step
            step *= size
        strides.append([steps.get(name, 0) for name in cover.joints[cover.owners[s]]])

    # fields: offsets, cells, sizes and starts of the joints; owners, strides, stride_starts and places of the sets
    return Folds(
        offsets=starts,
        cells=_array(domain.cells(joint) for joint in joints),
        sizes=_array(domain[name].size for joint in joints for name in joint),
        starts=_ends([len(joint) for joint in joints]),
        owners=cover.owners[covered] - first,
        strides=_array(step for stride in strides for step in stride),
        stride_starts=_ends([len(stride) for stride in strides])[:-1],
        places=offsets[covered],
    )


def _planes(domain: Domain, names: Sequence[str], sets: Sequence[AttributeSet], places: Integers) -> Planes:
    """Return the tree of all non-empty subsets of some sets, whose counters in the result begin at `places`.

    A node is a subset; its counters have one cell less per axis, as `assemble` completes them.
    """
    used = set(chain.from_iterable(sets))
    columns = [column for column, name in enumerate(names) if name in used]
    sizes = _array(domain[names[column]].size for column in columns)

    axis_of = {names[column]: axis for axis, column in enumerate(columns)}
    set_axes = _array(axis_of[name] for name in chain.from_iterable(sets))
    degrees = _array(map(len, sets))
    set_starts, node_starts = _ends(degrees), _ends(1 << degrees)

    nodes, set_nodes = _subsets(set_axes, set_starts, degrees, node_starts)
    degree = (nodes >= 0).sum(axis=1)
    cells = np.where(nodes >= 0, sizes[nodes] - 1, 1).prod(axis=1)
    inner = np.diff(degree, append=0) > 0  # the children of a node follow it

    return Planes(
        columns=_array(columns),
        sizes=sizes,
        starts=_ends(sizes - 1),
        axis=nodes[np.arange(len(nodes)), degree - 1],
        depth=degree - 1,
        inner=inner,
        offsets=_ends(cells),
        most_inner=int(cells[inner].max(initial=1)),
        set_starts=set_starts,
        set_axes=set_axes,
        set_nodes=set_nodes,
        node_starts=node_starts[:-1],
        places=places,
    )


def _subsets(
    set_axes: Integers, set_starts: Integers, degrees: Integers, node_starts: Integers
) -> tuple[Integers, Integers]:
    """Return all non-empty subsets in lexicographic order, and the row of every subset of every set.

    A row is padded with −1. The subsets of a set are indexed by their masks; 0 stands for the empty one.

    Row n of the result has the axes of node n. Sets of a degree share the patterns of their subsets, so each mask gives
    one array.
    """
    most, rows, places = int(degrees.max()), list[Integers](), list[Integers]()
    for degree in range(1, most + 1):
        chosen = np.flatnonzero(degrees == degree)
        axes = set_axes[set_starts[chosen, None] + np.arange(degree)]
        for mask in range(1, 1 << degree):
            inside = [axis for axis in range(degree) if mask >> axis & 1]
            rows.append(np.pad(axes[:, inside], ((0, 0), (0, most - len(inside))), constant_values=-1))
            places.append(node_starts[chosen] + mask)

    subsets = np.concatenate(rows)
    order = np.lexsort(subsets.T[::-1])
    is_new = np.diff(subsets[order], axis=0, prepend=-2).any(axis=1)
    row_of = np.zeros(int(node_starts[-1]), dtype=np.int64)
    row_of[np.concatenate(places)[order]] = np.cumsum(is_new) - 1

    return subsets[order][is_new], row_of
