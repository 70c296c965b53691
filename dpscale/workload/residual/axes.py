"""Centre, average, sum and smear along axes of an array.

An axis may have a profile u, Σu = 1: a total is then spread over its cells as u says instead of evenly, and a query is
averaged with the weights u, so that the two stay transposes of each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import chain, combinations
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Name = TypeVar("Name")
Profiles = Mapping[int, NDArray[np.float64]]


def subsets(names: Sequence[Name]) -> list[tuple[Name, ...]]:
    """All subsets in order of size, each in the order of `names`."""
    return list(chain.from_iterable(combinations(names, k) for k in range(len(names) + 1)))


def center(values: NDArray[np.float64], axes: Sequence[int]) -> NDArray[np.float64]:
    """Subtract the mean along each of `axes`."""
    for axis in axes:
        values = values - np.add.reduce(values, axis=axis, keepdims=True) / values.shape[axis]  # a mean, sooner
    return values


def piece(
    query: NDArray[np.float64], keep: Sequence[int], lead: int = 0, profiles: Profiles | None = None
) -> NDArray[np.float64]:
    """The piece of a query on the axes `keep`: average the other axes, centre these.

    `lead` leading axes (a batch of queries) are left alone; `keep` counts from after them, and so do `profiles`.
    """
    axes = range(query.ndim - lead)
    for axis in sorted(axes, key=lambda axis: axis in keep):  # those that vanish first: less is left to centre
        mean = _averaged(query, axis + lead, (profiles or {}).get(axis))
        query = query - mean if axis in keep else mean
    return query.reshape((*query.shape[:lead], *(query.shape[lead + axis] for axis in axes if axis in keep)))


def residual_of(
    marginal: NDArray[np.float64], keep: Sequence[int], profiles: Profiles | None = None, lead: int = 0
) -> NDArray[np.float64]:
    """The residual of a marginal on the axes `keep`: sum the other axes, centre these.

    `lead` leading axes (a batch of marginals) are left alone; `keep` and `profiles` count from after them.
    """
    axes = range(marginal.ndim - lead)
    for axis in sorted(axes, key=lambda axis: axis in keep):
        total, size = marginal.sum(axis=axis + lead, keepdims=True), marginal.shape[axis + lead]
        marginal = marginal - total * _profile(axis, size, len(axes), profiles) if axis in keep else total
    return marginal.reshape([*marginal.shape[:lead], *(marginal.shape[axis + lead] for axis in sorted(keep))])


def smear(
    residual: NDArray[np.float64], keep: Sequence[int], shape: Sequence[int], profiles: Profiles | None = None
) -> NDArray[np.float64]:
    """Spread a residual on the axes `keep` over an array of `shape`, evenly (then a view that broadcasts)."""
    full = [size if axis in keep else 1 for axis, size in enumerate(shape)]
    values = np.asarray(residual, dtype=np.float64).reshape(full)
    for axis, size in enumerate(shape):
        if axis not in keep:
            values = values * _profile(axis, size, len(shape), profiles)
    return values


def _averaged(query: NDArray[np.float64], axis: int, profile: NDArray[np.float64] | None) -> NDArray[np.float64]:
    """The mean along an axis, weighted where it has a profile; the axis stays, with one cell."""
    if profile is None:
        return np.asarray(query.mean(axis=axis, keepdims=True))
    return np.expand_dims(np.tensordot(query, profile, axes=(axis, 0)), axis)


def _profile(axis: int, size: int, ndim: int, profiles: Profiles | None) -> NDArray[np.float64] | float:
    """What part of a total each cell of an axis gets, ready to broadcast."""
    if profiles is None or axis not in profiles:
        return 1 / size
    return profiles[axis].reshape([-1 if other == axis else 1 for other in range(ndim)])


def kron(matrices: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """The Kronecker product of some matrices, for the few cells where it is meant to be explicit."""
    product: NDArray[np.float64] = np.ones((1, 1))
    return reduce(lambda left, right: np.asarray(np.kron(left, right), dtype=np.float64), matrices, product)
