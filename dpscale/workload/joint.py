"""Families whose queries look at several attributes at once: affine, abs and random.

affine: x + y ≤ c; abs: |x − y| ≤ c; random: three queries a cell, each cell in it with probability p. Their queries
are arrays made from the shape (and seed), one for all attribute sets of that shape. affine and abs are running sums
over the level sets of x + y or |x − y|, which `levels` gives: an integer basis of their span, fewer than the cells.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dpscale.base.arrays import Floats
from dpscale.base.errors import PlanError

Shape = tuple[int, ...]
RANDOM_P = 0.3
MOST_ENTRIES = 1 << 28


@dataclass(frozen=True)
class JointFamily:
    """A family over whole attribute sets. `degree`: the number of attributes it takes, or None for any."""

    name: str
    degree: int | None
    count: Callable[[Shape], int]


def _affine_level(shape: Shape) -> NDArray[np.int64]:
    return np.add.outer(np.arange(shape[0]), np.arange(shape[1]))


def _abs_level(shape: Shape) -> NDArray[np.int64]:
    return np.abs(np.subtract.outer(np.arange(shape[0]), np.arange(shape[1])))


_LEVELS = {"affine": _affine_level, "abs": _abs_level}

JOINT = {
    "affine": JointFamily("affine", 2, lambda shape: shape[0] + shape[1] - 1),
    "abs": JointFamily("abs", 2, lambda shape: max(shape)),
    "random": JointFamily("random", None, lambda shape: 3 * math.prod(shape)),
}


def _check_size(name: str, shape: Shape) -> None:
    """PlanError for queries that are too many to be an array, before one is made."""
    if math.prod(shape) * JOINT[name].count(shape) > MOST_ENTRIES:
        raise PlanError("workload", f"family {name} on {math.prod(shape)} cells", f"queries of at most {MOST_ENTRIES} "
                        "numbers in all", "coarsen the attributes")  # fmt: skip


@lru_cache(maxsize=16)
def joint_queries(name: str, shape: Shape, p: float = RANDOM_P, seed: int = 0) -> Floats:
    """All queries of a joint family on a shape: (m, *shape)."""
    _check_size(name, shape)
    if name == "random":
        draws = np.random.default_rng([seed, *shape]).random((JOINT[name].count(shape), *shape))
        return (draws < p).astype(np.float64)
    level = _LEVELS[name](shape)
    cuts = np.arange(JOINT[name].count(shape)).reshape(-1, *[1] * len(shape))
    return np.asarray(level <= cuts, dtype=np.float64)


@lru_cache(maxsize=64)
def levels(name: str, shape: Shape) -> Floats | None:
    """The level sets that a family's queries are running sums of: 0/1, (m, *shape); None where it has none."""
    if name not in _LEVELS:
        return None
    _check_size(name, shape)
    cuts = np.arange(JOINT[name].count(shape)).reshape(-1, *[1] * len(shape))
    return np.asarray(_LEVELS[name](shape) == cuts, dtype=np.float64)
