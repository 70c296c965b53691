"""Which attribute sets are counted for a plan's blocks, and from which of them each block is measured.

Counted are the blocks' sets that lie in no larger one; a block is measured from the smallest that holds its attributes.
Degree by degree, from the largest: a set of k attributes is counted unless one of k + 1 handed it down; then it, or
what was handed down to it, goes to its subsets of k − 1. All sets of a degree at once, as rows of a matrix.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpscale.base.arrays import Integers, Integers32
from dpscale.domain import Domain
from dpscale.plans.sets import Sets

DIGITS = 6  # of a logarithm of cells: numbers of cells that are equal differ by less


@dataclass(frozen=True, eq=False)
class Counted:
    """The sets to count, in the domain's order; `source[i]`: from which of them block i is measured."""

    sets: Sets
    source: NDArray[np.int32]


def counted_for(domain: Domain, sets: Sets) -> Counted:
    """What is counted for blocks over these sets."""
    order = _order(sets)
    rank = _ranks(domain, sets, order)
    source = np.empty(len(sets), np.int64)  # an asked set each
    degrees = sets.degrees
    handed, givers = np.empty((0, int(degrees.max(initial=0))), np.int32), np.empty(0, np.int64)
    for degree in range(handed.shape[1], -1, -1):
        mine = np.flatnonzero(degrees == degree)
        rows = np.concatenate([handed, sets.members[sets.starts[mine][:, None] + np.arange(degree)]])
        best = np.concatenate([givers, mine])
        group, first = _alike(rows, np.concatenate([np.zeros(len(givers), np.int64), np.ones(len(mine), np.int64)]))
        source[mine] = best[first][group[len(givers) :]]
        handed, givers = _handed_down(rows[first], best[first], rank)
    kept = order[np.isin(order, source)]
    number = np.empty(len(sets), np.int64)
    number[kept] = np.arange(len(kept))
    return Counted(sets.taken(kept), number[source].astype(np.int32))


def _order(sets: Sets) -> Integers:
    """The sets in the domain's order: by their first attribute, then by the second, …, none before any."""
    most = int(sets.degrees.max(initial=0))
    at = np.minimum(sets.starts[:, None] + np.arange(most), max(len(sets.members) - 1, 0))
    padded = np.where(np.arange(most) < sets.degrees[:, None], sets.members[at] if most else 0, -1)
    return np.lexsort(padded.T[::-1]) if most else np.arange(len(sets))


def _ranks(domain: Domain, sets: Sets, order: Integers) -> Integers:
    """How good a source each set is: the fewer cells the better, and of the like the last in order."""
    logs = np.log2(np.array(domain.shape(domain.names), np.float64))
    cells = np.round(sets.sums(logs), DIGITS)
    ranks = np.empty(len(order), np.int64)
    ranks[order[np.lexsort((-np.arange(len(order)), cells[order]))]] = np.arange(len(order))
    return ranks


def _handed_down(rows: Integers32, givers: Integers, rank: Integers) -> tuple[Integers32, Integers]:
    """The subsets of one attribute less, each with the best that was handed to it."""
    degree = rows.shape[1]
    if not degree:
        return rows, givers
    smaller = np.concatenate([np.delete(rows, axis, axis=1) for axis in range(degree)])
    best = np.tile(givers, degree)
    _, first = _alike(smaller, rank[best])
    return smaller[first], best[first]


def _alike(rows: Integers32, preferred: Integers) -> tuple[Integers, Integers]:
    """To which group of equal rows each belongs, and the first of every group by what is preferred."""
    order = np.lexsort((preferred, *rows.T))
    new = np.ones(len(order), np.bool_)
    new[1:] = (rows[order][1:] != rows[order][:-1]).any(axis=1)
    group = np.empty(len(order), np.int64)
    group[order] = np.cumsum(new) - 1
    return group, order[new]
