"""Polish: a drawn part held to three attributes at once, as the learnt model has them, and to its pairs as before.

Rows that follow the model meet its counts over three attributes up to chance, which a table of as many rows as records
feels. What is wanted of a set is the model's own table, fitted to the pairs that are wanted: the mean of so many sweeps
of prototypes that its chance is far smaller than the table's. It knows every pair, where local maximum entropy knows
the three inside the set; so rows that were nearer to the truth than that stay so. The energy that `sweeping` has gains
β₃/2 Σ (C − T)² / (T + 1) over the cells of all sets.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscale.reconstruct.fit import fit_in_place
from dpscale.reconstruct.pairwise.chance import Chance
from dpscale.reconstruct.pairwise.learn import BETAS as LEARNING
from dpscale.reconstruct.pairwise.learn import Learnt
from dpscale.reconstruct.pairwise.loops import BEHIND
from dpscale.reconstruct.pairwise.pairs import STEP
from dpscale.reconstruct.pairwise.sweeping import FLOOR, Sweeper
from dpscale.storage.files import reading, writing
from dpscale.synthesize import three_loops
from dpscale.synthesize.threes import Threes, sets_of

Array = NDArray[np.float64]
THREES = "threes.npz"
BETAS = ((16.0, 4.0), (256.0, 16.0))  # of pairs, of threes
LEAST_SWEEPS, MOST_SWEEPS, SEEN = 8, 64, 8  # prototypes seen for each row that is released
FIT_ROUNDS, FIT_TOLERANCE, LEAST = 12, 1e-5, 1e-3


@dataclass(frozen=True, eq=False)
class Told:
    """What the model tells of three attributes: `shares` of all rows, flat, in every cell of the sets."""

    threes: Threes
    shares: Array


def told(learnt: Learnt, total: float, release: str, memory: int) -> Told:
    """The model's three-way tables, of sets that fit the memory. `total`: about how many records were released."""
    wanted, rows = learnt.wanted, learnt.rows.copy()
    layout = wanted.layout
    threes = Threes(layout.sizes, sets_of(layout, learnt.rows, memory))
    sweeper = Sweeper(layout, wanted.ones, rows, wanted.shares * len(rows), learnt.theta, wanted.known,
                      Chance(release, "threes"))  # fmt: skip
    counts = np.zeros(threes.cells)
    sweeps = min(max(round(SEEN * total / len(rows)), LEAST_SWEEPS), MOST_SWEEPS) if len(threes.sets) else 0
    for _ in range(sweeps):
        sweeper.sweep(LEARNING[-1])
        three_loops.count_threes(rows, threes.sets, threes.ends, threes.sizes, counts)
    shares = counts / max(sweeps * len(rows), 1)
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
    pairs = {
        axes: layout.of(wanted.shares, *own) for axes, own in (((0, 1), (i, j)), ((0, 2), (i, k)), ((1, 2), (j, k)))
    }
    fit_in_place(table, list(pairs.items()), FIT_ROUNDS, FIT_TOLERANCE)


class Polisher(Sweeper):
    """A sweeper whose rows are held to sets of three as well; `aims`: wanted counts of their cells."""

    def __init__(self, threes: Threes, aims: Array, *of: Any) -> None:
        super().__init__(*of)
        self._sets, self._aims, self._own = threes, aims, np.zeros(threes.cells)
        self._around, self._sets_of = (array.view(np.uint64) for array in (threes.around, threes.degrees))
        self._threes = np.zeros(6 * threes.cells + BEHIND, np.float32)

    def polish(self, beta: float, three_beta: float) -> None:
        """Draw every value anew, with feedback of both strengths."""
        sets, ends, sizes = self._sets.sets, self._sets.ends, self._sets.sizes
        self._own[:] = 0
        three_loops.count_threes(self.rows, sets, ends, sizes, self._own)
        three_loops.weigh_threes(sets, ends, sizes, self._aims, self._own, FLOOR, three_beta, self._threes)
        self.sweep(beta)


def write_told(path: Path, kept: Told) -> None:
    """One file, exact; not flushed, since it can be made again for free."""
    with writing(path, durable=False) as file:
        np.savez(file, allow_pickle=False, sizes=kept.threes.sizes, sets=kept.threes.sets, shares=kept.shares)


def read_told(path: Path) -> Told:
    """The inverse of `write_told`."""
    with reading(path) as file, np.load(file, allow_pickle=False) as arrays:
        return Told(Threes(arrays["sizes"], arrays["sets"]), arrays["shares"])
