"""One-way query families in closed form.

A family is a 0/1 matrix W of m queries on n cells that is never built where n is large. `gram` is WᵀW; `answers` is W
applied along an axis; `quadratic` is the diagonal of W S Wᵀ for a symmetric S (how large an error becomes); `means` is
W1/n (how much of a query is left when its axis is averaged). `matrix` builds W for tests and small cases.
k-way queries are all products of one-way queries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Family:
    """A one-way family, by its closed forms (see the module)."""

    name: str
    count: Callable[[int], int]
    gram: Callable[[int], Array]
    answers: Callable[[Array, int], Array]
    quadratic: Callable[[Array], Array]
    means: Callable[[int], Array]
    bounds: Callable[[int], dict[str, NDArray[np.int64]]]

    def matrix(self, size: int) -> Array:
        """W, of shape (count, size)."""
        return self.answers(np.eye(size), 0)


def _cells(size: int) -> NDArray[np.int64]:
    return np.arange(size, dtype=np.int64)


def _prefix_gram(size: int) -> Array:
    cell = _cells(size)
    return (size - np.maximum.outer(cell, cell)).astype(np.float64)


def _range_gram(size: int) -> Array:
    cell = _cells(size)
    return ((np.minimum.outer(cell, cell) + 1) * (size - np.maximum.outer(cell, cell))).astype(np.float64)


@lru_cache(maxsize=64)
def _ends(size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First and last cell of every interval, in the order of the first."""
    low, high = np.triu_indices(size)
    return low.astype(np.int64), high.astype(np.int64)


def _range_answers(values: Array, axis: int) -> Array:
    running = np.cumsum(values, axis=axis)
    low, high = _ends(values.shape[axis])
    before = np.concatenate([np.zeros_like(running.take([0], axis)), running], axis=axis)
    return np.asarray(running.take(high, axis) - before.take(low, axis))


def _both_cumsum(form: Array) -> Array:
    return np.cumsum(np.cumsum(form, axis=0), axis=1)


def _range_quadratic(form: Array) -> Array:
    """With H the two-sided running sum of S: 1[a,b]ᵀ S 1[a,b] = H(b,b) + H(a−1,a−1) − 2 H(a−1,b)."""
    size = len(form)
    padded = np.zeros((size + 1, size + 1))
    padded[1:, 1:] = _both_cumsum(form)
    low, high = _ends(size)
    corner = np.diagonal(padded)
    return np.asarray(corner[high + 1] + corner[low] - 2 * padded[low, high + 1])


def _range_means(size: int) -> Array:
    low, high = _ends(size)
    return (high - low + 1) / size


def _range_bounds(size: int) -> dict[str, NDArray[np.int64]]:
    low, high = _ends(size)
    return {"low": low, "high": high}


MARGINAL = Family(
    "marginal",
    count=lambda size: size,
    gram=np.eye,
    answers=lambda values, axis: values,
    quadratic=lambda form: np.asarray(np.diagonal(form)),
    means=lambda size: np.full(size, 1 / size),
    bounds=lambda size: {"": _cells(size)},
)
PREFIX = Family(
    "prefix",
    count=lambda size: size,
    gram=_prefix_gram,
    answers=lambda values, axis: np.cumsum(values, axis=axis),
    quadratic=lambda form: np.asarray(np.diagonal(_both_cumsum(form))),
    means=lambda size: (_cells(size) + 1) / size,
    bounds=lambda size: {"high": _cells(size)},
)
RANGE = Family(
    "range",
    count=lambda size: size * (size + 1) // 2,
    gram=_range_gram,
    answers=_range_answers,
    quadratic=_range_quadratic,
    means=_range_means,
    bounds=_range_bounds,
)

FAMILIES = {family.name: family for family in (MARGINAL, PREFIX, RANGE)}


@dataclass(frozen=True)
class AxisGram:
    """What a Kronecker term needs of a family on one axis of n cells.

    `centered` is C WᵀW C scaled to trace 1, so that families that differ by a factor only (all of them at n = 2) are
    equal; `weight` is that trace; `mean_square` is |W1|²/n², the weight left when the axis is averaged away.
    """

    key: str
    centered: Array
    weight: float
    mean_square: float


@lru_cache(maxsize=4096)
def axis_gram(family: str, size: int) -> AxisGram:
    """The axis Gram of a family at a size, made once."""
    gram = FAMILIES[family].gram(size)
    centered = gram - gram.mean(0) - gram.mean(1)[:, None] + gram.mean()
    weight = float(np.trace(centered))
    key = f"n=2/{size}" if size == 2 else f"{family}/{size}"
    return AxisGram(key, (centered + centered.T) / (2 * weight), weight, float(gram.sum()) / size**2)
