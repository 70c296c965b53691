"""What the children of one parent have in common: sums over pairs of siblings, met by swapping children.

Of two attributes i ≤ j of the child, Σ over ordered pairs of siblings (x, y) of 1/(k − 1) at (x_i, y_j), k the number
of the parent's children: each parent weighs k in a table, however its pairs fall. Weights are cut to steps of
2^-BITS, so a parent with at most D children moves no table by more than D in L1, hence the T tables by √T·D in L2.
With C_p the counts of a parent's children by value, the sum over pairs is Σ_p w_p (C_p C_pᵀ − Σ_x x xᵀ): no pair is
looked at.

Children drawn by their parents' profiles alone are as unlike as strangers. Swaps of two children between their parents
that bring the tables nearer to what is believed are made, where they do not cost the profiles' marginals as much.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscale.base.arrays import Floats, Integers
from dpscale.reconstruction.pairwise.chance import Chance
from dpscale.relational import swaps
from dpscale.relational.cross import Cross
from dpscale.relational.features import BITS
from dpscale.relational.shrink import Block, ridges
from dpscale.relational.sides import Side

STEP = 2.0**-BITS
PRIOR, HOLDS, PASSES, PROPOSALS, MOST = 0.5, 0.3, 3, 10, 1_000_000


@dataclass(frozen=True)
class Tables:
    """The pairs of attributes i ≤ j, laid out one after the other."""

    sizes: tuple[int, ...]

    @property
    def pairs(self) -> list[tuple[int, int]]:
        return [(i, j) for i in range(len(self.sizes)) for j in range(i, len(self.sizes))]

    @property
    def starts(self) -> Integers:
        """Where each begins, and where all end."""
        return np.concatenate([[0], np.cumsum([self.sizes[i] * self.sizes[j] for i, j in self.pairs])]).astype(np.int64)

    def squared(self, children: int, parents: int) -> int:
        """How far the sums move, squared, in steps, where a unit has so many parents of so many children each."""
        return len(self.pairs) * (parents * children << BITS) ** 2


def sibling_sums(rows: NDArray[np.integer], parents: Integers, tables: Tables) -> Integers:
    """The sums in steps. `rows`: (m, d) values of the children; `parents`: (m,) whose each is."""
    from scipy.sparse import csr_array

    m, offsets = len(rows), np.concatenate([[0], np.cumsum(tables.sizes)]).astype(np.int64)
    if not m:
        return np.zeros(int(tables.starts[-1]), np.int64)
    columns = (rows + offsets[:-1]).ravel()
    hot = csr_array(
        (np.ones(columns.size, np.int64), columns, np.arange(m + 1) * rows.shape[1]), shape=(m, int(offsets[-1]))
    )
    each = np.bincount(parents)
    weights = np.where(each > 1, (1 << BITS) // np.maximum(each - 1, 1), 0).astype(np.int64)
    owner = csr_array((np.ones(m, np.int64), (parents, np.arange(m))), shape=(len(each), m))
    counts = owner @ hot
    pairs = _weighed(counts, weights) - _weighed(hot, weights[parents])  # a child is no sibling of itself
    square = pairs.toarray()
    parts = [square[offsets[i] : offsets[i + 1], offsets[j] : offsets[j + 1]].ravel() for i, j in tables.pairs]
    return np.asarray(np.concatenate(parts), dtype=np.int64)


def _weighed(rows: Any, weights: Integers) -> Any:
    """Σ over rows of w x xᵀ, of whole numbers."""
    from scipy.sparse import diags_array

    return rows.T @ diags_array(weights, dtype=np.int64) @ rows


def believed_sums(noisy: Floats, now: Floats, tables: Tables, precision: float) -> Floats:
    """What the sums are held to: those of the children as drawn, and of the noisy ones' departure what is believed."""
    starts = tables.starts
    scale = max(float(noisy[: starts[1]].sum()), 1.0) / max(float(now[: starts[1]].sum()), 1.0)
    expected = now * scale
    cells = [slice(first, last) for first, last in pairwise(starts)]
    carried = np.maximum(expected, 1.0)
    blocks = [Block((noisy - expected)[one], carried[one], carried[one], precision**-0.5) for one in cells]
    target = expected.copy()
    for one, ridge in zip(cells, ridges(blocks, PRIOR), strict=True):
        target[one] += (noisy - expected)[one] * carried[one] / (carried[one] + ridge)
    return target / scale


def swapped(links: Integers, rows: Integers, u: Side, v: Side, expected: Floats | None, target: Floats, tables: Tables,
            chance: Chance) -> Integers:  # fmt: skip
    """(m, 2) links with children swapped between parents. `rows`: (m, d) values of all children, by row of v;
    `expected`: (profiles of u, profiles of v), which the profiles' marginals stay near; None: near those of `links`."""
    cross = Cross.of(u, v)
    parents = np.full(v.rows, -1, np.int64)
    parents[links[:, 1]] = links[:, 0]
    have = np.flatnonzero(parents >= 0)
    order = have[np.argsort(parents[have], kind="stable")]
    each = np.bincount(parents[have], minlength=u.rows)
    begins = np.concatenate([[0], np.cumsum(each)]).astype(np.int64)
    off = np.zeros(cross.size)
    if expected is not None:
        whole = np.zeros(expected.shape)
        np.add.at(whole, (u.of[parents[have]], v.of[have]), 1.0)
        off = cross.marginals(whole - expected)
    apart = sibling_sums(rows[have], parents[have], tables) * STEP - target
    layout = np.array(tables.pairs, np.int64).reshape(-1, 2)
    values, sizes = np.ascontiguousarray(rows, dtype=np.int64), np.array(tables.sizes, np.int64)
    for _ in range(PASSES):
        count = min(PROPOSALS * len(have), MOST)
        one, two = (have[(chance.uniforms(count) * len(have)).astype(np.int64)] for _ in range(2))
        swaps.swap(parents, order, begins, one, two, u.of, v.of, cross.first, cross.second, off, HOLDS, values, sizes,
                   layout, tables.starts, apart)  # fmt: skip
    return np.stack([parents[have], have], axis=1)
