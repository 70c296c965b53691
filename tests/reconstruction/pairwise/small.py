"""A small model of low-order tables, made from an explicit distribution."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from dpscale.reconstruction.entropy import LowOrder
from dpscale.workload.residual import Groups, coarsened, every_cell

SIZES = {"a": 3, "b": 4, "c": 2, "d": 6}
MEMORY = 1 << 30


def draw_joint(seed: int = 0, sharp: float = 1.5) -> np.ndarray:
    """Return a positive distribution over all cells, far from independence."""
    return np.random.default_rng(seed).dirichlet(np.full(int(np.prod(list(SIZES.values()))), 1 / sharp)).reshape(
        list(SIZES.values())
    )  # fmt: skip


def make_model(
    table: np.ndarray, total: float = 5000.0, groups: dict[str, Groups] | None = None, measured=None
) -> LowOrder:
    """Return all pairs of a distribution over SIZES; `measured` names the pairs marked as measured (default: all)."""
    names = tuple(SIZES)
    groups = {name: every_cell(size) for name, size in SIZES.items()} | (groups or {})
    ones = {name: total * table.sum(axis=tuple(k for k in range(4) if k != i)) for i, name in enumerate(names)}
    pairs = {}
    for i, j in combinations(range(4), 2):
        pair = total * table.sum(axis=tuple(k for k in range(4) if k not in (i, j)))
        pairs[names[i], names[j]] = np.ascontiguousarray(coarsened(pair, [groups[names[i]], groups[names[j]]]))
    return LowOrder(ones, groups, pairs, total, frozenset(pairs if measured is None else measured))


def count_pair(rows: np.ndarray, i: int, j: int, sizes: list[int]) -> np.ndarray:
    """Count the cells of a pair of columns by brute force."""
    found = np.zeros((sizes[i], sizes[j]))
    for row in rows:
        found[row[i], row[j]] += 1
    return found
