"""Polish: a drawn part held to three attributes at once, as the learnt model has them, and to its pairs as before.

Rows that follow the model meet its counts over three attributes up to chance, which a table of as many rows as records
feels. What is wanted of a set is the model's own table: the mean of many sweeps of prototypes, whose chance is far
smaller than that of one table, fitted to the pairs that are wanted. Nothing is made up for it, so where rows were
nearer to the truth than local maximum entropy they stay so. The energy gains Σ β₃/2 (C − T)² / (T + 1) over all cells.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscale.reconstruct.fit import fit_in_place
from dpscale.reconstruct.pairwise.chance import Chance
from dpscale.reconstruct.pairwise.learn import BETAS as LEARNING
from dpscale.reconstruct.pairwise.learn import Learnt
from dpscale.reconstruct.pairwise.pairs import STEP
from dpscale.reconstruct.pairwise.sweeping import FLOOR, Sweeper
from dpscale.synthesize import three_loops
from dpscale.synthesize.threes import Threes, sets_of

Array = NDArray[np.float64]
BETAS = ((16.0, 4.0), (64.0, 16.0))  # of pairs, of threes
SWEEPS, LEAST = 24, 1e-3
FIT_ROUNDS, FIT_TOLERANCE = 12, 1e-5


@dataclass(frozen=True, eq=False)
class Told:
    """What the model tells of three attributes: `shares` of all rows, flat, in every cell of the sets."""

    threes: Threes
    shares: Array


def told(learnt: Learnt, release: str, memory: int) -> Told:
    """The model's three-way tables, of the sets that fit the memory: the mean of SWEEPS sweeps of its prototypes."""
    wanted, rows = learnt.wanted, learnt.rows.copy()
    layout = wanted.layout
    threes = Threes(layout.sizes, sets_of(layout, memory))
    sweeper = Sweeper(layout, wanted.ones, rows, wanted.shares * len(rows), learnt.theta, wanted.known,
                      Chance(release, "threes"))  # fmt: skip
    counts = np.zeros(threes.cells)
    for _ in range(SWEEPS):
        sweeper.sweep(LEARNING[-1])
        three_loops.count_threes(rows, threes.sets, threes.ends, threes.sizes, counts)
    shares = counts / (SWEEPS * len(rows))
    for number in range(len(threes.sets)):
        _fit(learnt, threes, shares, number)
    return Told(threes, np.asarray(np.rint(shares / STEP) * STEP))


def _fit(learnt: Learnt, threes: Threes, shares: Array, number: int) -> None:
    """One set, to its pairs; a cell without a prototype has a little of what independence gives."""
    wanted, layout = learnt.wanted, learnt.wanted.layout
    i, j, k = threes.sets[number].tolist()
    table = threes.of(shares, number)
    one, two, three = (layout.one(wanted.ones, own) for own in (i, j, k))
    np.maximum(table, LEAST * one[:, None, None] * two[:, None] * three, out=table)
    pairs = {axes: layout.of(wanted.shares, *own) for axes, own in (((0, 1), (i, j)), ((0, 2), (i, k)), ((1, 2), (j, k)))}
    fit_in_place(table, list(pairs.items()), FIT_ROUNDS, FIT_TOLERANCE)


class Polisher(Sweeper):
    """A sweeper whose rows are held to sets of three as well; `aims`: wanted counts of their cells."""

    def __init__(self, threes: Threes, aims: Array, *of: Any) -> None:
        super().__init__(*of)
        self._threes, self._aims = threes, aims
        self._three_counts = np.zeros(threes.cells)
        self._three_weights, self._three_slopes = (np.zeros(3 * threes.cells, np.float32) for _ in range(2))

    def polish(self, beta: float, three_beta: float) -> None:
        """Draw every value anew, with feedback of both strengths."""
        layout, threes = self.layout, self._threes
        self._three_counts[:] = 0
        three_loops.count_threes(self.rows, threes.sets, threes.ends, threes.sizes, self._three_counts)
        three_loops.weigh_threes(threes.sets, threes.ends, threes.sizes, self._aims, self._three_counts, FLOOR,
                                 three_beta, self._three_weights, self._three_slopes)  # fmt: skip
        self._weigh(beta)
        order, turn = self.chance.permutation(len(self.rows)), self.chance.permutation(len(layout.sizes))
        three_loops.sweep_threes(self.rows, order, self._near, self._degrees, layout.starts, threes.around,
                                 threes.degrees, layout.sizes, self._alone, layout.ones_at, self._weights,
                                 self._slopes, self._three_weights, self._three_slopes, self._state, turn)  # fmt: skip
        self._count()
