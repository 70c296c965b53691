"""Refinement of synthetic rows to 3-way marginals of the model, in addition to their pairs ("polish").

Tables of a triple i < j < k over groups are concatenated in vectors of `cells` entries, row-major. The loops store
every table three times as float32, once for each attribute with its values last and followed by their slopes, so that
the entries for one attribute are adjacent.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscale.base.numerics import Floats, Integers, ParallelMap, serial_map
from dpscale.reconstruction.entropy import LowOrder
from dpscale.reconstruction.pairwise.learn import FLOOR, STEP, PairLayout, PairwiseModel, Sweeper
from dpscale.reconstruction.pairwise.loops import BEHIND
from dpscale.reconstruction.pairwise.triples import add_triples
from dpscale.storage.files import reading, writing
from dpscale.synthesis import loops

BYTES_A_CELL = 48  # all vectors of a sweep together
MOST_SETS, MOST_ATTRIBUTES, MOST_COUNTED = 256, 200, 1 << 28


@dataclass(frozen=True, eq=False)
class TripleLayout:
    """Layout of triples.

    Attributes
    ----------
    sizes : ndarray of int64, shape (d,)
        Number of groups of every attribute.
    sets : ndarray of int64, shape (t, 3)
        Attributes of each triple, ascending.
    """

    sizes: Integers
    sets: Integers

    @cached_property
    def ends(self) -> Integers:
        """Start of each triple's table, and the end of the last, shape (t + 1,)."""
        return np.concatenate([[0], np.cumsum(self.sizes[self.sets].prod(axis=1))]).astype(np.int64)

    @property
    def cells(self) -> int:
        """Number of entries of a flat vector."""
        return int(self.ends[-1])

    def of(self, vector: Floats, number: int) -> Floats:
        """Return a view of a triple's table."""
        shape = tuple(int(size) for size in self.sizes[self.sets[number]])
        return vector[self.ends[number] : self.ends[number + 1]].reshape(shape)

    @cached_property
    def degrees(self) -> Integers:
        """Number of triples that contain each attribute, shape (d,)."""
        return np.bincount(self.sets.ravel(), minlength=len(self.sizes)).astype(np.int64)

    @cached_property
    def around(self) -> Integers:
        """Triples of every attribute i, as arguments of the loops, shape (d, most, 11).

        The two others j and k, then the position of a cell in the loops' vectors, three times: by i, as its start and
        the factors of the values of j and k (those of i are adjacent); by j, of i and k; by k, of i and j.
        """
        found = np.zeros((len(self.sizes), max(1, self.degrees.max(initial=0)), 11), np.int64)
        filled = np.zeros(len(self.sizes), np.int64)
        for number, own in enumerate(self.sets.tolist()):
            for i in own:
                j, k = (other for other in own if other != i)
                by_i, by_j, by_k = (self._by(number, last) for last in (i, j, k))
                found[i, filled[i]] = [j, k, by_i[-1], by_i[j], by_i[k], by_j[-1], by_j[i], by_j[k],
                                       by_k[-1], by_k[i], by_k[j]]  # fmt: skip
                filled[i] += 1

        return found

    def _by(self, number: int, last: int) -> dict[int, int]:
        """Return the factors of the others' values if those of `last` are adjacent; −1: start of the table."""
        own = self.sets[number].tolist()
        one, other = (i for i in own if i != last)
        cells = int(self.ends[number + 1] - self.ends[number])
        start = 6 * int(self.ends[number]) + 2 * own.index(last) * cells
        size = 2 * int(self.sizes[last])
        return {-1: start, one: int(self.sizes[other]) * size, other: size}


def sets_of(layout: PairLayout, rows: NDArray[np.int32], memory: int) -> Integers:
    """Return the triples with the largest sampling noise whose pairs are all used, shape (t, 3).

    At most MOST_SETS triples that fit the memory are chosen. The sampling noise of a count C is about √C, and polishing
    does not reduce it if C is below 1. `rows` is a table similar to the rows to be drawn.
    """
    every = _every(min(len(layout.sizes), MOST_ATTRIBUTES))
    i, j, k = every.T
    complete = every[layout.used[i, j] & layout.used[i, k] & layout.used[j, k]]
    root_sums = loops.count_roots(rows[: max(1, MOST_COUNTED // max(1, len(complete)))], complete, layout.sizes)
    order = np.argsort(-root_sums, kind="stable")[:MOST_SETS]
    selected = order[np.cumsum(layout.sizes[complete[order]].prod(axis=1)) * BYTES_A_CELL <= memory]
    return complete[np.sort(selected)]


def _every(attributes: int) -> Integers:
    """Return all triples of the first `attributes` attributes, shape (t, 3)."""
    return np.array(list(combinations(range(attributes), 3)), np.int64).reshape(-1, 3)


THREES = "targets.npz"
BETAS = ((16.0, 16.0), (256.0, 64.0))  # strengths for pairs and triples


@dataclass(frozen=True, eq=False)
class ThreeWayTargets:
    """Released estimates over triples; `shares` of all rows in every cell of the triples, flat."""

    layout: TripleLayout
    shares: Floats


def three_way_targets(
    pairwise: PairwiseModel, model: LowOrder, release: str, memory: int, each: ParallelMap = serial_map
) -> ThreeWayTargets:
    """Return the targets of the triples that fit the memory and have the largest sampling noise.

    Parameters
    ----------
    pairwise : PairwiseModel
        Model of all pairs, and prototype rows by which the triples are chosen.
    model : LowOrder
        Tables from which the estimates come, over the same groups.
    release : str
        Public name of the release.
    memory : int
        Bytes.
    each : callable
        Parallel map.
    """
    layout = pairwise.targets.layout
    triples = TripleLayout(layout.sizes, sets_of(layout, pairwise.rows, memory))
    named = [tuple(layout.names[i] for i in own) for own in triples.sets.tolist()]
    full_model = add_triples(model, pairwise, [names for names in named if names not in model.tables], release, each)
    tables, shares = full_model.coarse_marginals(named), np.zeros(triples.cells)
    for number, names in enumerate(named):
        triples.of(shares, number)[:] = np.maximum(tables[names], 0) / model.total

    return ThreeWayTargets(triples, np.asarray(np.rint(shares / STEP) * STEP))


class Polisher(Sweeper):
    """Sweeper with additional feedback towards target counts of triples, `aims`."""

    def __init__(self, triples: TripleLayout, aims: Floats, *of: Any) -> None:
        super().__init__(*of)
        self._sets, self._aims, self._own = triples, aims, np.zeros(triples.cells)
        self._around, self._sets_of = (array.view(np.uint64) for array in (triples.around, triples.degrees))
        self._threes = np.zeros(6 * triples.cells + BEHIND, np.float32)

    def polish(self, beta: float, three_beta: float) -> None:
        """Redraw every value, with feedback of both strengths."""
        sets, ends, sizes = self._sets.sets, self._sets.ends, self._sets.sizes
        self._own[:] = 0
        loops.count_triples(self.rows, sets, ends, sizes, self._own)
        loops.weigh_triples(sets, ends, sizes, self._aims, self._own, FLOOR, three_beta, self._threes)
        self.sweep(beta)


def write_targets(path: Path, selected: ThreeWayTargets) -> None:
    """Write targets exactly into one file; it is not flushed to disk, because it can be recomputed for free."""
    with writing(path, durable=False) as file:
        np.savez(
            file, allow_pickle=False, sizes=selected.layout.sizes, sets=selected.layout.sets, shares=selected.shares
        )


def read_targets(path: Path) -> ThreeWayTargets:
    """Return the targets in a file."""
    with reading(path) as file, np.load(file, allow_pickle=False) as arrays:
        return ThreeWayTargets(TripleLayout(arrays["sizes"], arrays["sets"]), arrays["shares"])
