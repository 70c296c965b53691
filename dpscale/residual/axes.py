"""Centre, average, sum and smear along axes of an array."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import chain, combinations
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Name = TypeVar("Name")


def subsets(names: Sequence[Name]) -> list[tuple[Name, ...]]:
    """All subsets in order of size, each in the order of `names`."""
    return list(chain.from_iterable(combinations(names, k) for k in range(len(names) + 1)))


def center(values: NDArray[np.float64], axes: Sequence[int]) -> NDArray[np.float64]:
    """Subtract the mean along each of `axes`."""
    for axis in axes:
        values = values - values.mean(axis=axis, keepdims=True)
    return values


def piece(query: NDArray[np.float64], keep: Sequence[int], lead: int = 0) -> NDArray[np.float64]:
    """The piece of a query on the axes `keep`: average the other axes, centre these.

    `lead` leading axes (a batch of queries) are left alone; `keep` counts from after them.
    """
    axes = [axis + lead for axis in keep]
    others = tuple(axis for axis in range(lead, query.ndim) if axis not in axes)
    averaged = query.mean(axis=others) if others else query
    return center(averaged, range(lead, lead + len(axes)))


def residual_of(marginal: NDArray[np.float64], keep: Sequence[int]) -> NDArray[np.float64]:
    """The residual of a marginal on the axes `keep`: sum the other axes, centre these."""
    others = tuple(axis for axis in range(marginal.ndim) if axis not in keep)
    summed = marginal.sum(axis=others) if others else marginal
    return center(summed, range(len(keep)))


def smear(residual: NDArray[np.float64], keep: Sequence[int], shape: Sequence[int]) -> NDArray[np.float64]:
    """Spread a residual on the axes `keep` evenly over an array of `shape` (a view that broadcasts)."""
    full = [size if axis in keep else 1 for axis, size in enumerate(shape)]
    spread = 1.0
    for axis, size in enumerate(shape):
        spread *= 1.0 if axis in keep else float(size)
    return np.asarray(residual, dtype=np.float64).reshape(full) / spread


def kron(matrices: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """The Kronecker product of some matrices, for the few cells where it is meant to be explicit."""
    product: NDArray[np.float64] = np.ones((1, 1))
    return reduce(lambda left, right: np.asarray(np.kron(left, right), dtype=np.float64), matrices, product)
