"""Covers: plans that count attribute sets as sums over axes of a joint marginal, by bit planes, or separately.

*Program.*
A program is a cover as flat arrays for the compiled loops (columns, sizes, offsets, strides and tree nodes). It is
built where the cover is chosen and sent to the counting tasks, which need neither the sets nor the cover.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, pairwise
from typing import Any

import numpy as np

from dpscale.base.compilation import njit
from dpscale.base.numerics import AttributeSet, Flags, Floats, Integers, LazyModule, NDArray
from dpscale.domain import Domain, Number
from dpscale.records.encode import Codes

PLANES, DIRECT = -1, -2  # entries of `owners` of sets that are counted by bit planes, and separately
ROWS = 1 << 20  # assumed rows of a task if the table is unknown
FEW_MEMBERS = 1 << 11  # most attributes of all sets whose cover Python searches
FEW = 1 << 22  # most increments that need no cover and no compiled loop

kernels = LazyModule("dpscale.counting.kernels")  # numba

NARROW_CELLS = 1 << 12  # cells of a set whose counters do not exceed the cache
NARROW_BLOCK = 1 << 16  # rows of a block for sets of at most NARROW_CELLS cells
WIDE_BLOCK = 1 << 18  # rows of a block for larger sets: long, so that counters in the cache are used often


@dataclass(frozen=True)
class Saving:
    """Work saved by a cover: numbers of sets, and estimated nanoseconds without and with it.

    Attributes
    ----------
    joints : int
        Number of joint marginals that are counted.
    planes : int
        Number of sets counted by bit planes.
    alone, covered : float
        Nanoseconds of counting each set separately and with the cover.
    """

    asked: int
    joints: int
    planes: int
    alone: float
    covered: float

    @property
    def factor(self) -> float:
        """Factor by which the cover reduces the work of counting each set separately."""
        return self.alone / self.covered if self.covered else 1.0


@dataclass(frozen=True)
class Cover:
    """Plan for counting attribute sets.

    Attributes
    ----------
    domain : Domain
    sets : tuple of AttributeSet
    joints : tuple of AttributeSet
        Joint marginals that are counted.
    owners : ndarray of int64
        For each set the joint from which it is summed, or PLANES (−1) or DIRECT (−2).
    rows : int
        Estimated number of rows.
    saving : Saving
    """

    domain: Domain
    sets: tuple[AttributeSet, ...]
    joints: tuple[AttributeSet, ...]
    owners: Integers = field(repr=False, compare=False)
    rows: int = ROWS
    saving: Saving = Saving(asked=0, joints=0, planes=0, alone=0.0, covered=0.0)


def total(savings: Iterable[Saving]) -> Saving:
    """Return the sum of the savings of several passes."""
    rows = [(saving.asked, saving.joints, saving.planes, saving.alone, saving.covered) for saving in savings]
    return Saving(*(sum(column) for column in zip(*rows, strict=True)))


MOST_CELLS = 1 << 16  # largest joint
SPARE_CELLS = 1 << 24  # default for all joints of a task
BYTE = 1 << 8  # cells of an attribute whose codes have 8 bits
BITS_CELLS = 1 << 10  # largest set counted by bit planes
# nanoseconds on one core of an EPYC (Zen 4) per row of a joint with 2^i cells: code and increment
SCATTER = np.array([0.5] * 15 + [0.6, 0.65, 1.2, 1.7, 1.9, 2.6, 3.0] + [5.0] * 50)
PLANE = 0.0017  # per row and cell, by bit planes
SUM = 3.0  # a record's parts of the cells of a number, relative to one increment
FOLD = 0.8  # per cell of a joint, summed to one set
ASSEMBLE = 3.0  # per cell of a set assembled from bit planes


def plan_cover(domain: Domain, sets: Sequence[AttributeSet], rows: int = ROWS, spare_cells: int | None = None) -> Cover:
    """Return a cover of the sets for a task.

    Parameters
    ----------
    domain : Domain
    sets : sequence of AttributeSet
    rows : int
        Approximate number of rows of the task.
    spare_cells : int, optional
        Maximum total number of cells of all joints. Default: the total cells of the sets, at least SPARE_CELLS.
    """
    spare = max(sum(domain.cells_each(sets)), SPARE_CELLS) if spare_cells is None else spare_cells
    owners, joints, savings = np.empty(len(sets), np.int64), list[AttributeSet](), list[Saving]()
    for numbers, places in _by_numbers(domain, sets).items():
        own = _part_of_cover(domain, [sets[place] for place in places], max(rows, 1), spare, numbers)
        owners[places] = np.where(own.owners >= 0, own.owners + len(joints), own.owners)
        joints += own.joints
        savings.append(own.saving)
    return Cover(
        domain=domain, sets=tuple(sets), joints=tuple(joints), owners=owners, rows=max(rows, 1), saving=total(savings)
    )


def numbers_of(domain: Domain, attributes: AttributeSet) -> AttributeSet:
    """Return the numbers of a set, which are its last names."""
    return tuple(name for name in attributes if name in domain.number_names) if domain.numbers else ()


def _by_numbers(domain: Domain, sets: Sequence[AttributeSet]) -> dict[AttributeSet, list[int]]:
    """Return the positions of the sets with the same numbers, those without first: they share no joint with others.

    `numbers_of` are the numbers in a set. The entry () remains if there is no other.
    """
    if not domain.numbers:
        return {(): list(range(len(sets)))}
    found: dict[AttributeSet, list[int]] = {(): []}
    for place, names in enumerate(sets):
        found.setdefault(numbers_of(domain, names), []).append(place)
    return {numbers: places for numbers, places in found.items() if places or len(found) == 1}


def _part_of_cover(domain: Domain, sets: Sequence[AttributeSet], rows: int, spare: int, numbers: AttributeSet) -> Cover:
    """Return the cover of sets that all have the same numbers.

    `bits` and `alone` are the nanoseconds to count each set by bit planes and separately. A set belongs to a joint (its
    number in `owners`), to PLANES or to DIRECT. Few increments need no search.
    """
    asked = _RequestedSets.of(domain, sets)
    is_small = rows * len(sets) <= FEW
    bits = np.full(len(sets), np.inf) if numbers or is_small else asked.by_planes(rows)
    alone = (rows * _scatter(asked.cells) + FOLD * asked.cells) * (SUM if numbers else 1.0)  # nanoseconds
    owners, joints = np.full(len(sets), -1), list[AttributeSet]()
    if not is_small:
        owners, joints = _joints(domain, asked, np.minimum(bits, alone), rows, spare)
    owners = np.where(owners >= 0, owners, np.where(bits <= alone, PLANES, DIRECT))
    cells = np.array([domain.cells(names) for names in joints], dtype=float)
    planes, cost = owners == PLANES, _joint_cost(cells, owners, rows)
    cost += float(bits[planes].sum() + alone[owners == DIRECT].sum())
    saving = Saving(
        asked=len(sets), joints=len(joints), planes=int(planes.sum()), alone=float(alone.sum()), covered=cost
    )

    return Cover(domain=domain, sets=tuple(sets), joints=tuple(joints), owners=owners, rows=rows, saving=saving)


@dataclass(frozen=True)
class _RequestedSets:
    """Requested sets as arrays: set s has attributes attrs[starts[s]:starts[s+1]], numbered as in the domain."""

    sizes: Integers
    attrs: Integers
    starts: Integers

    @classmethod
    def of(cls, domain: Domain, sets: Sequence[AttributeSet]) -> _RequestedSets:
        """Return the sets as arrays with the numbers of attributes in the domain."""
        place = {name: index for index, name in enumerate(domain.axis_names)}
        sizes = np.array([attribute.size for attribute in domain.axes], dtype=np.int64)
        attrs = np.array([place[name] for names in sets for name in names], dtype=np.int64)
        return cls(sizes, attrs, np.cumsum([0, *map(len, sets)], dtype=np.int64))

    @cached_property
    def cells(self) -> Floats:
        """Number of cells of each set."""
        return self._product(self.sizes[self.attrs].astype(float))

    def by_planes(self, rows: int) -> Floats:
        """Return the nanoseconds of each set by bit planes; infinite where they are not applicable.

        `attrs` are the attributes of all sets in a row, `starts` the first one of each set, and `sizes` the cells of
        attributes. Planes apply to non-empty sets of at most BITS_CELLS cells and attributes of at most BYTE cells.
        PLANE is the time per row and cell, ASSEMBLE that per cell of an assembled set.
        """
        sizes = self.sizes[self.attrs].astype(float)
        narrow = self._product((sizes <= BYTE).astype(float)) > 0
        serves = narrow & (self.cells <= BITS_CELLS) & (np.diff(self.starts) > 0)
        return np.where(serves, rows * PLANE * self._product(sizes - 1) + ASSEMBLE * self.cells, np.inf)

    def _product(self, values: Floats) -> Floats:
        """Return the product of the values of each set's attributes; 1 for the empty set."""
        products, full = np.ones(len(self.starts) - 1), np.diff(self.starts) > 0
        if full.any():
            products[full] = np.multiply.reduceat(values, self.starts[:-1][full])
        return products


def guess_rows(domain: Domain, size: int) -> int:
    """Estimate the number of rows in a number of bytes of Parquet, from the maximum bits per record of the domain."""
    bits = sum(math.log2(attribute.code_count) for attribute in domain.axes)
    return int(8 * size / max(bits, 1.0)) + 1


def _joints(
    domain: Domain, requested: _RequestedSets, worth: Floats, rows: int, spare: int
) -> tuple[Integers, list[AttributeSet]]:
    """Return for each requested set the joint set in which it is counted (−1: none), and the joint sets.

    `worth` has the nanoseconds that a set takes without a joint, by planes or by increments. Joints grow from the sets
    with the most work; all their cells together stay within `spare`.
    """
    holders = np.repeat(np.arange(len(worth)), np.diff(requested.starts))
    order = np.argsort(requested.attrs, kind="stable")
    inverse_starts = np.searchsorted(requested.attrs[order], np.arange(len(requested.sizes) + 1))
    seeds = np.argsort(-worth, kind="stable")
    search = grow if len(requested.attrs) > FEW_MEMBERS else grow.interpreted
    owners, members = search(requested.sizes, requested.attrs, requested.starts, holders[order], inverse_starts, worth,
                         seeds, float(rows), SCATTER, FOLD, min(MOST_CELLS, spare), spare)  # fmt: skip
    return owners, [tuple(domain.axis_names[x] for x in sorted(row[row >= 0])) for row in members]


def _joint_cost(cells: Floats, owners: Integers, rows: int) -> float:
    """Return the nanoseconds for joints with so many cells and for the sets summed from them."""
    covered = np.bincount(owners[owners >= 0], minlength=len(cells))
    return float((rows * _scatter(cells) + FOLD * cells * (covered + 1)).sum())


def _scatter(cells: Floats) -> Floats:
    return SCATTER[np.minimum(np.ceil(np.log2(np.maximum(cells, 1))), len(SCATTER) - 1).astype(int)]


MOST = 16  # maximum number of attributes of a joint
PATIENCE = 2  # further steps after the best one
REFUSALS = 32  # consecutive unprofitable joints after which the remaining sets are counted separately
LOOKAHEAD = 0.2  # weight of a set that lacks two attributes, relative to one that lacks one


@njit(cache=True, nogil=True)
def joint_cost(cells: int, covered: int, rows: float, scatter: Floats, fold: float) -> float:
    """Return the nanoseconds to count a joint over the rows and to sum it to the sets that it covers.

    `scatter[w]` is the time of a row in a table of up to 2^w cells, and `fold` that of a cell in a sum. `covered` is
    the number of sets that are summed from the joint.
    """
    width = 0
    while width < 62 and (1 << width) < cells:
        width += 1
    return rows * scatter[width] + fold * cells * (covered + 1)


@njit(cache=True, nogil=True)
def _touch(
    x: int, inverse: Integers, starts: Integers, lengths: Integers, is_open: Flags, missing: Integers,
    touched: Integers, count: int, attrs: Integers, set_starts: Integers, held: Flags, near: Floats, far: Floats,
    worth: Floats,
) -> tuple[float, int, int]:  # fmt: skip
    """Add attribute x to the joint and update the scores of the remaining attributes.

    The cost of a set that lacks one more attribute is added to `near`, that of a set that lacks two to `far`. Returns
    the value and number of newly covered sets and the number of touched sets.

    `inverse` lists the sets of each attribute; closed sets are removed from the list of x on the way. `missing[s]` is
    the number of attributes of s outside the joint, and `touched` lists the sets that have one inside.

    A set s is closed when a joint has been chosen for it. `near` and `far` are indexed by the attribute that a set
    lacks: what the joint gains if this attribute is added next, or with another one. `worth[s]` is the cost of counting
    s alone.
    """
    kept = starts[x]
    value, covered = 0.0, 0
    for position in range(starts[x], starts[x] + lengths[x]):
        s = inverse[position]
        if not is_open[s]:
            continue

        inverse[kept] = s
        kept += 1
        # the first attribute of s inside the joint: note s, so that it can be reset
        if missing[s] == set_starts[s + 1] - set_starts[s]:
            touched[count] = s
            count += 1

        missing[s] -= 1
        if missing[s] == 0:
            value += worth[s]
            covered += 1
        # a set with two missing attributes counts for both in `far`
        elif missing[s] <= 2:
            for k in range(set_starts[s], set_starts[s + 1]):
                if not held[attrs[k]]:
                    if missing[s] == 1:
                        near[attrs[k]] += worth[s]
                    else:
                        far[attrs[k]] += worth[s]

    lengths[x] = kept - starts[x]
    return value, covered, count


@njit(cache=True, nogil=True)
def _best_next(
    sizes: Integers, held: Flags, near: Floats, far: Floats, value: float, covered: int, cells: int, most_cells: int,
    rows: float, scatter: Floats, fold: float,
) -> int:  # fmt: skip
    """Return the attribute with the highest value per nanosecond, or -1.

    `near` and `far` are the costs of the sets that lack only this attribute, and this and one more; the latter count
    with the weight LOOKAHEAD.
    """
    best, best_score = -1, 0.0
    for x in range(len(sizes)):
        if held[x] or near[x] + far[x] == 0 or cells > most_cells // sizes[x]:
            continue
        cost = joint_cost(cells * sizes[x], covered, rows, scatter, fold)
        score = (value + near[x] + LOOKAHEAD * far[x]) / cost
        if score > best_score:
            best, best_score = x, score
    return best


@njit(cache=True, nogil=True)
def _search(
    seed: int, sizes: Integers, attrs: Integers, set_starts: Integers, inverse: Integers, inverse_starts: Integers,
    lengths: Integers, worth: Floats, rows: float, scatter: Floats, fold: float, most_cells: int, is_open: Flags,
    missing: Integers, touched: Integers, members: Integers,
) -> tuple[float, int, int, int]:  # fmt: skip
    """Grow a joint from a set; return the best ratio of value to cost, its length and cells, and the touched sets.

    The first attributes are those of the set `seed`. Growth stops PATIENCE steps after the best joint so far, and a
    longer joint must be better by 0.1 %.

    `value` is the cost of the covered sets without the joint, `covered` their number, and `members` the attributes of
    the joint in the order in which they were added; the other arguments are those of `grow` and `_touch`.
    """
    held, near, far = np.zeros(len(sizes), dtype=np.bool_), np.zeros(len(sizes)), np.zeros(len(sizes))
    width = set_starts[seed + 1] - set_starts[seed]
    touches = covered = best_length = 0
    value = best_ratio = 0.0
    cells = best_cells = 1

    for length in range(1, MOST + 1):
        # the seed first, so that the joint covers it
        if length <= width:
            x = attrs[set_starts[seed] + length - 1]
        else:
            x = _best_next(sizes, held, near, far, value, covered, cells, most_cells, rows, scatter, fold)

        if x < 0 or (best_length and length > best_length + PATIENCE):
            break

        members[length - 1], held[x] = x, True
        cells *= sizes[x]
        more, gained, touches = _touch(x, inverse, inverse_starts, lengths, is_open, missing, touched, touches, attrs,
                                      set_starts, held, near, far, worth)  # fmt: skip
        value, covered = value + more, covered + gained
        ratio = value / joint_cost(cells, covered, rows, scatter, fold)
        # value over cost: above 1 the joint is cheaper than its sets alone
        if length >= width and ratio > best_ratio * 1.001:
            best_ratio, best_length, best_cells = ratio, length, cells

    # `members` has the attributes; the first `best_length` of them are the joint
    return best_ratio, best_length, best_cells, touches


@njit(cache=True, nogil=True)
def grow(
    sizes: Integers, attrs: Integers, set_starts: Integers, inverse: Integers, inverse_starts: Integers,
    worth: Floats, order: Integers, rows: float, scatter: Floats, fold: float, most_cells: int, spare_cells: int,
) -> tuple[Integers, Integers]:  # fmt: skip
    """Return the joint that covers each set (-1: none) and the attributes of the joints, MOST per joint.

    `rows`, `scatter` and `fold` are the figures of `joint_cost`. A joint has at most `most_cells` cells, and all joints
    together `spare_cells`. A set is open until a joint covers it or it was refused as a seed.

    Parameters
    ----------
    sizes : ndarray of int64
        Cells of each attribute.
    attrs, set_starts : ndarray of int64
        Set s has the attributes attrs[set_starts[s]:set_starts[s+1]].
    inverse, inverse_starts : ndarray of int64
        Attribute x is in the sets inverse[inverse_starts[x]:inverse_starts[x+1]].
    worth : ndarray of float64
        Cost of counting each set separately.
    order : ndarray of int64
        Order of the seeds.
    """
    count = len(set_starts) - 1
    owner = np.full(count, -1, dtype=np.int64)
    joints = np.full((count // 2 + 1, MOST), -1, dtype=np.int64)  # a profitable joint covers at least two sets
    is_open, held = np.ones(count, dtype=np.bool_), np.zeros(len(sizes), dtype=np.bool_)
    widths, touched = set_starts[1:] - set_starts[:-1], np.empty(count, dtype=np.int64)
    missing, lengths, members = widths.copy(), inverse_starts[1:] - inverse_starts[:-1], np.empty(MOST, dtype=np.int64)

    joint_count = refused = 0
    for seed in order:
        if refused > REFUSALS:
            break
        if not is_open[seed] or widths[seed] == 0 or widths[seed] >= MOST:
            continue

        ratio, length, cells, touches = _search(
            seed, sizes, attrs, set_starts, inverse, inverse_starts, lengths, worth, rows, scatter, fold, most_cells,
            is_open, missing, touched, members,
        )  # fmt: skip
        # the joint costs less than separate counting, has more attributes than the seed, and fits the memory
        pays = ratio > 1 and length > widths[seed] and cells <= spare_cells
        if pays:
            for k in range(length):
                joints[joint_count, k], held[members[k]] = members[k], True
            spare_cells -= cells

        # the search has lowered `missing` of these sets, which is reset for the next seed
        for s in touched[:touches]:
            if pays and _inside(attrs, set_starts[s], set_starts[s + 1], held):
                owner[s], is_open[s] = joint_count, False
            missing[s] = widths[s]

        held[:] = False
        # a refused seed is counted separately unless a later joint covers it
        is_open[seed] = False
        joint_count += pays
        refused = 0 if pays else refused + 1

    return owner, joints[:joint_count]


@njit(cache=True, nogil=True)
def _inside(attrs: Integers, start: int, end: int, held: Flags) -> bool:
    """Return whether all of `attrs[start:end]`, the attributes of one set, are flagged in `held`."""
    for k in range(start, end):  # noqa: SIM110 (compiled)
        if not held[attrs[k]]:
            return False
    return True


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
