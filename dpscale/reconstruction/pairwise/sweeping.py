"""A table of rows and the weights that hold its counts: what learning and drawing both sweep over."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dpscale.base.arrays import Floats
from dpscale.reconstruction.pairwise import loops
from dpscale.reconstruction.pairwise.chance import Chance
from dpscale.reconstruction.pairwise.pairs import Layout

FLOOR = 1.0  # rows added to what is wanted of a cell, where its count is weighed
LEAST_WEIGHT = 1e-9
LOG_UNIT = 2.0**20  # libraries differ in the last bits of a logarithm


@dataclass(eq=False)
class Sweeper:
    """`rows`: (n, d) groups; `targets`: wanted counts of every pair's cells; `theta`: the pairs' own logits.

    The energy of the table is −Σ_rows [Σ_i u_i + Σ_{i<j} θ_ij] + β/2 Σ_cells (C − T)² / (T + 1). A value's conditional
    follows from it, C without the row itself; `held`: (d, d), the pairs that count.
    """

    layout: Layout
    ones: Floats
    rows: NDArray[np.int32]
    targets: Floats
    theta: Floats
    held: NDArray[np.bool_]
    chance: Chance
    counts: Floats = field(init=False)

    def __post_init__(self) -> None:
        layout, attributes = self.layout, len(self.layout.sizes)
        self.scale = self.targets + FLOOR
        self.counts = np.zeros(layout.cells)
        self._alone = (np.rint(np.log(np.maximum(self.ones, LEAST_WEIGHT)) * LOG_UNIT) / LOG_UNIT).astype(np.float32)
        self._degrees = self.held.sum(axis=1).astype(np.uint64)
        self._near = near(layout, self.held)
        self._weights, self._slopes = (np.zeros(2 * layout.cells + loops.BEHIND, np.float32) for _ in range(2))
        self._around, self._sets_of = np.zeros((attributes, 1, 11), np.uint64), np.zeros(attributes, np.uint64)
        self._threes = np.zeros(loops.BEHIND, np.float32)
        self._state = self.chance.state()
        self._count()

    def sweep(self, beta: float) -> None:
        """Draw every value anew, with feedback of strength β."""
        layout = self.layout
        loops.weigh(layout.starts, self.held, layout.sizes, self.targets, self.scale, self.theta, self.counts,
                    float(beta), self._weights, self._slopes)  # fmt: skip
        order, turn = self.chance.permutation(len(self.rows)), self.chance.permutation(len(layout.sizes))
        loops.sweep(self.rows, order, self._near, self._degrees, self._around, self._sets_of,
                    layout.sizes.view(np.uint64), self._alone, layout.ones_at.view(np.uint64), self._weights,
                    self._slopes, self._threes, self._state, turn)  # fmt: skip
        self._count()

    def _count(self) -> None:
        loops.count(self.rows, self.layout.starts, self.layout.used, self.layout.sizes, self.counts)


def near(layout: Layout, held: NDArray[np.bool_]) -> NDArray[np.uint64]:
    """(d, d, 4): of every attribute i those it has pairs with, where both orders of a pair begin, and their sizes."""
    found = np.zeros((len(held), len(held), 4), np.uint64)
    for i in range(len(held)):
        others = np.flatnonzero(held[i])
        begun = layout.starts[i, others, 1], layout.starts[others, i, 1]
        found[i, : len(others)] = np.stack([others, *begun, layout.sizes[others]], axis=1)
    return found


def independent_rows(layout: Layout, ones: Floats, count: int, chance: Chance) -> NDArray[np.int32]:
    """(count, d) rows of independent attributes, each as often as its 1-way says."""
    columns = [chance.systematic(layout.one(ones, i), count) for i in range(len(layout.sizes))]
    return np.ascontiguousarray(np.stack(columns, axis=1))
