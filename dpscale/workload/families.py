"""One-way and joint query families in closed form.

A one-way family is a 0/1 matrix W of m queries on n cells that is never built for large n. `gram` is WᵀW and `trace`
its trace; `answers` applies W along an axis; `quadratic` is the diagonal of W S Wᵀ for a symmetric S (the variance of
each query for covariance S); `means` is W1/n (the part of a query that remains when its axis is averaged). `matrix`
builds W for tests and small cases. k-way queries are all products of one-way queries.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dpscale.base.errors import PlanError
from dpscale.base.numerics import Floats, Integers


@dataclass(frozen=True)
class Family:
    """One-way query family, described by functions of the number of cells (see the module)."""

    name: str
    count: Callable[[int], int]
    gram: Callable[[int], Floats]
    trace: Callable[[int], int]
    answers: Callable[[Floats, int], Floats]
    quadratic: Callable[[Floats], Floats]
    means: Callable[[int], Floats]
    bounds: Callable[[int], dict[str, Integers]]

    def intervals(self, size: int) -> tuple[Integers, Integers]:
        """Return, for families of intervals, the number of cells before each query's first cell and up to its last.

        An arc that extends past the end, or covers the whole circle, is represented by the negative of its complement;
        this is valid where the sum over all cells is 0, as for pieces.
        """
        bounds = self.bounds(size)
        if "start" in bounds:
            return bounds["start"], (bounds["end"] + 1) % size
        if "high" in bounds:
            return bounds.get("low", np.zeros(size, dtype=np.int64)), bounds["high"] + 1
        return bounds[""], bounds[""] + 1

    def matrix(self, size: int) -> Floats:
        """Return W, shape (count, size)."""
        return self.answers(np.eye(size), 0)


def _cells(size: int) -> Integers:
    return np.arange(size, dtype=np.int64)


def _prefix_gram(size: int) -> Floats:
    cell = _cells(size)
    return (size - np.maximum.outer(cell, cell)).astype(np.float64)


def _range_gram(size: int) -> Floats:
    cell = _cells(size)
    return ((np.minimum.outer(cell, cell) + 1) * (size - np.maximum.outer(cell, cell))).astype(np.float64)


def arcs_holding(size: int) -> Floats:
    """Return the number of arcs that contain both of two cells, by the distance d of the cells.

    An arc of length l contains both (l − d)⁺ times one way round and (l − n + d)⁺ times the other; summed over all
    lengths this is n(n + 1)/2 − d(n − d).
    """
    apart = _cells(size)
    return (size * (size + 1) // 2 - apart * (size - apart)).astype(np.float64)


def _circular_gram(size: int) -> Floats:
    cell = _cells(size)
    return np.asarray(arcs_holding(size)[np.abs(np.subtract.outer(cell, cell))])


@lru_cache(maxsize=64)
def _ends(size: int) -> tuple[Integers, Integers]:
    """Return the first and last cell of every interval, ordered by the first."""
    low, high = np.triu_indices(size)
    return low.astype(np.int64), high.astype(np.int64)


@lru_cache(maxsize=64)
def _arcs(size: int) -> tuple[Integers, Integers]:
    """Return the start of every arc and its end on the doubled circle."""
    start = np.repeat(_cells(size), size)
    return start, start + np.tile(_cells(size), size)


def _between(values: Floats, axis: int, low: Integers, high: Integers) -> Floats:
    """Return sums over low … high along an axis."""
    running = np.cumsum(values, axis=axis)
    before = np.concatenate([np.zeros_like(running.take([0], axis)), running], axis=axis)
    return np.asarray(running.take(high, axis) - before.take(low, axis))


def _both_cumsum(form: Floats) -> Floats:
    return np.cumsum(np.cumsum(form, axis=0), axis=1)


def _between_quadratic(form: Floats, low: Integers, high: Integers) -> Floats:
    """Return quadratic forms of intervals from the two-sided running sum H of S.

    1[a,b]ᵀ S 1[a,b] = H(b,b) + H(a−1,a−1) − 2 H(a−1,b).
    """
    padded = np.zeros((len(form) + 1,) * 2)
    padded[1:, 1:] = _both_cumsum(form)
    corner = np.diagonal(padded)
    return np.asarray(corner[high + 1] + corner[low] - 2 * padded[low, high + 1])


def _range_means(size: int) -> Floats:
    low, high = _ends(size)
    return (high - low + 1) / size


def _arc_means(size: int) -> Floats:
    start, end = _arcs(size)
    return (end - start + 1) / size


def _range_bounds(size: int) -> dict[str, Integers]:
    low, high = _ends(size)
    return {"low": low, "high": high}


def _arc_bounds(size: int) -> dict[str, Integers]:
    start, end = _arcs(size)
    return {"start": start, "end": end % size}


MARGINAL = Family(
    "marginal",
    count=lambda size: size,
    gram=np.eye,
    trace=lambda size: size,
    answers=lambda values, axis: values,
    quadratic=lambda form: np.asarray(np.diagonal(form)),
    means=lambda size: np.full(size, 1 / size),
    bounds=lambda size: {"": _cells(size)},
)
PREFIX = Family(
    "prefix",
    count=lambda size: size,
    gram=_prefix_gram,
    trace=lambda size: size * (size + 1) // 2,
    answers=lambda values, axis: np.cumsum(values, axis=axis),
    quadratic=lambda form: np.asarray(np.diagonal(_both_cumsum(form))),
    means=lambda size: (_cells(size) + 1) / size,
    bounds=lambda size: {"high": _cells(size)},
)
RANGE = Family(
    "range",
    count=lambda size: size * (size + 1) // 2,
    gram=_range_gram,
    trace=lambda size: size * (size + 1) * (size + 2) // 6,
    answers=lambda values, axis: _between(values, axis, *_ends(values.shape[axis])),
    quadratic=lambda form: _between_quadratic(form, *_ends(len(form))),
    means=_range_means,
    bounds=_range_bounds,
)
CIRCULAR = Family(
    "circular",
    count=lambda size: size * size,
    gram=_circular_gram,
    trace=lambda size: size * size * (size + 1) // 2,
    answers=lambda values, axis: _between(np.concatenate([values] * 2, axis), axis, *_arcs(values.shape[axis])),
    quadratic=lambda form: _between_quadratic(np.tile(form, (2, 2)), *_arcs(len(form))),
    means=_arc_means,
    bounds=_arc_bounds,
)

FAMILIES = {family.name: family for family in (MARGINAL, PREFIX, RANGE, CIRCULAR)}


Shape = tuple[int, ...]
RANDOM_P = 0.3
MOST_ENTRIES = 1 << 28


@dataclass(frozen=True)
class JointFamily:
    """Family over whole attribute sets. `degree` is the required number of attributes, or None for any."""

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
    """Raise PlanError if the queries are too many for an array, before it is built."""
    if math.prod(shape) * JOINT[name].count(shape) > MOST_ENTRIES:
        raise PlanError("workload", f"family {name} on {math.prod(shape)} cells", f"queries of at most {MOST_ENTRIES} "
                        "entries in total", "coarsen the attributes")  # fmt: skip


@lru_cache(maxsize=16)
def joint_queries(name: str, shape: Shape, p: float = RANDOM_P, seed: int = 0) -> Floats:
    """Return all queries of a joint family on a shape, shape (m, *shape)."""
    _check_size(name, shape)
    if name == "random":
        draws = np.random.default_rng([seed, *shape]).random((JOINT[name].count(shape), *shape))
        return (draws < p).astype(np.float64)
    level = _LEVELS[name](shape)
    cuts = np.arange(JOINT[name].count(shape)).reshape(-1, *[1] * len(shape))
    return np.asarray(level <= cuts, dtype=np.float64)


@lru_cache(maxsize=64)
def levels(name: str, shape: Shape) -> Floats | None:
    """Return the level sets whose running sums are a family's queries: 0/1, shape (m, *shape); None if it has none."""
    if name not in _LEVELS:
        return None
    _check_size(name, shape)
    cuts = np.arange(JOINT[name].count(shape)).reshape(-1, *[1] * len(shape))
    return np.asarray(_LEVELS[name](shape) == cuts, dtype=np.float64)
