"""Polish: a drawn part held to the released tables of three attributes, and to its pairs as before.

Rows that follow a model of pairs meet the estimates over three attributes up to chance at best, and miss what the
release knows of three attributes beyond their pairs. The target of a set is the released table over groups. A set
without a table gets the model of all pairs, as far as the tables that were measured confirm it (`pairwise.triples`).
The energy of `sweeping` gains β₃/2 Σ (C − T)² / (T + 1) over the cells of all sets.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpscale.base.arrays import Floats
from dpscale.reconstruction.entropy import LowOrder
from dpscale.reconstruction.pairwise.learn import Learnt
from dpscale.reconstruction.pairwise.loops import BEHIND
from dpscale.reconstruction.pairwise.pairs import STEP
from dpscale.reconstruction.pairwise.sweeping import FLOOR, Sweeper
from dpscale.reconstruction.pairwise.triples import with_triples
from dpscale.storage.files import reading, writing
from dpscale.synthesis import three_loops
from dpscale.synthesis.threes import Threes, sets_of

THREES = "targets.npz"
BETAS = ((16.0, 16.0), (256.0, 64.0))  # of pairs, of threes


@dataclass(frozen=True, eq=False)
class Told:
    """Released estimates over three attributes: `shares` of all rows, flat, in every cell of the sets."""

    threes: Threes
    shares: Floats


def told(learnt: Learnt, model: LowOrder, release: str, memory: int) -> Told:
    """The targets of the sets that fit the memory and that chance moves most.

    Parameters
    ----------
    learnt: the model of all pairs and prototype rows, by which the sets are chosen.
    model: the low-order tables that the estimates come from, over the same groups.
    release: public name of the release.
    memory: bytes.
    """
    layout = learnt.wanted.layout
    threes = Threes(layout.sizes, sets_of(layout, learnt.rows, memory))
    named = [tuple(layout.names[i] for i in own) for own in threes.sets.tolist()]
    completed = with_triples(model, learnt, [names for names in named if names not in model.tables], release)
    tables, shares = completed.coarse_marginals(named), np.zeros(threes.cells)
    for number, names in enumerate(named):
        threes.of(shares, number)[:] = np.maximum(tables[names], 0) / model.total
    return Told(threes, np.asarray(np.rint(shares / STEP) * STEP))


class Polisher(Sweeper):
    """A sweeper whose rows are held to sets of three as well; `aims`: wanted counts of their cells."""

    def __init__(self, threes: Threes, aims: Floats, *of: Any) -> None:
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
