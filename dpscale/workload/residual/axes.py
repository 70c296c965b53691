"""Centring, averaging, summing and smearing along axes of an array.

An axis may have a profile u with Σu = 1. A total is then spread over its cells in proportion to u instead of evenly,
and a query is averaged with the weights u, so that the two operations remain transposes of each other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache, reduce
from itertools import chain, combinations
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from dpscale.base.numerics import Floats, Integers

Name = TypeVar("Name")
Profiles = Mapping[int, NDArray[np.float64]]


def subsets(names: Sequence[Name]) -> list[tuple[Name, ...]]:
    """Return all subsets ordered by size, each in the order of `names`."""
    return list(chain.from_iterable(combinations(names, k) for k in range(len(names) + 1)))


def center(values: NDArray[np.float64], axes: Sequence[int]) -> NDArray[np.float64]:
    """Subtract the mean along each of `axes`."""
    for axis in axes:
        values = values - np.add.reduce(values, axis=axis, keepdims=True) / values.shape[axis]  # faster than mean()
    return values


def piece(
    query: NDArray[np.float64], keep: Sequence[int], lead: int = 0, profiles: Profiles | None = None
) -> NDArray[np.float64]:
    """Return the piece of a query on the axes `keep`: average the other axes, centre these.

    `lead` leading axes (a batch of queries) are unchanged; `keep` and `profiles` count from after them.
    """
    axes = range(query.ndim - lead)
    for axis in sorted(axes, key=lambda axis: axis in keep):  # average first, so that fewer cells are centred
        mean = _averaged(query, axis + lead, (profiles or {}).get(axis))
        query = query - mean if axis in keep else mean
    return query.reshape((*query.shape[:lead], *(query.shape[lead + axis] for axis in axes if axis in keep)))


def residual_of(
    marginal: NDArray[np.float64], keep: Sequence[int], profiles: Profiles | None = None, lead: int = 0
) -> NDArray[np.float64]:
    """Return the residual of a marginal on the axes `keep`: sum the other axes, centre these.

    `lead` leading axes (a batch of marginals) are unchanged; `keep` and `profiles` count from after them.
    """
    axes = range(marginal.ndim - lead)
    for axis in sorted(axes, key=lambda axis: axis in keep):
        total, size = marginal.sum(axis=axis + lead, keepdims=True), marginal.shape[axis + lead]
        marginal = marginal - total * _profile(axis, size, len(axes), profiles) if axis in keep else total
    return marginal.reshape([*marginal.shape[:lead], *(marginal.shape[axis + lead] for axis in sorted(keep))])


def smear(
    residual: NDArray[np.float64], keep: Sequence[int], shape: Sequence[int], profiles: Profiles | None = None
) -> NDArray[np.float64]:
    """Spread a residual on the axes `keep` over an array of `shape`.

    An axis outside `keep` without a profile has size 1 in the result and broadcasts.
    """
    full = [size if axis in keep else 1 for axis, size in enumerate(shape)]
    values = np.asarray(residual, dtype=np.float64).reshape(full)
    for axis, size in enumerate(shape):
        if axis not in keep:
            values = values * _profile(axis, size, len(shape), profiles)
    return values


def _averaged(query: NDArray[np.float64], axis: int, profile: NDArray[np.float64] | None) -> NDArray[np.float64]:
    """Return the mean along an axis, weighted by its profile if any; the axis remains with one cell."""
    if profile is None:
        return np.asarray(query.mean(axis=axis, keepdims=True))
    return np.expand_dims(np.tensordot(query, profile, axes=(axis, 0)), axis)


def _profile(axis: int, size: int, ndim: int, profiles: Profiles | None) -> NDArray[np.float64] | float:
    """Return the share of a total of each cell of an axis, in a shape that broadcasts."""
    if profiles is None or axis not in profiles:
        return 1 / size
    return profiles[axis].reshape([-1 if other == axis else 1 for other in range(ndim)])


def kron(matrices: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return the explicit Kronecker product of matrices; only for few cells."""
    product: NDArray[np.float64] = np.ones((1, 1))
    return reduce(lambda left, right: np.asarray(np.kron(left, right), dtype=np.float64), matrices, product)


Weights = tuple[int, ...]


def profile_of(weights: Weights | None, size: int) -> Floats:
    """Return the profile u, shape (size,), which sums to 1; uniform without weights."""
    return np.full(size, 1 / size) if weights is None else np.array(weights, dtype=np.float64) / sum(weights)


def whole_weights(profile: Floats, bits: int) -> Weights:
    """Return the nearest integers to a profile with sum 2^bits; the largest one absorbs the rounding error.

    For a symmetric profile the middle absorbs it, so that the weights stay symmetric.
    """
    numbers = [int(value) for value in np.rint(np.ldexp(profile, bits))]
    left, middle = (1 << bits) - sum(numbers), (len(numbers) - 1) // 2
    if not np.array_equal(profile, profile[::-1]):
        numbers[int(np.argmax(profile))] += left
    else:
        numbers[middle] += left - left // 2
        numbers[len(numbers) - 1 - middle] += left // 2
    return tuple(numbers)


def centred(rows: Integers, weights: Weights) -> Integers:
    """Return M·r − (r·U)·1 for rows along their last axis: integer and orthogonal to U."""
    numbers = np.array(weights, dtype=np.int64)
    return np.asarray(rows * numbers.sum() - (rows @ numbers)[..., None])


CELLS, HEAVY, LOVASZ = 8, 1 << 24, 0.99


def nearest_centred(rows: Integers, weights: Weights) -> Integers:
    """Return integer rows (…, n) near the given ones that are exactly orthogonal to U; n >= 3."""
    cells, basis, unit = _reduced(weights)
    missing = rows @ (np.array(weights, dtype=np.int64) // math.gcd(*weights))
    long = missing[..., None] * unit
    short = long - np.rint(long @ np.linalg.pinv(basis.astype(np.float64))).astype(np.int64) @ basis
    moved = rows.copy()
    moved[..., cells] -= short
    return moved


@lru_cache(maxsize=1024)
def _reduced(weights: Weights) -> tuple[Integers, Integers, Integers]:
    """Return some cells, a short basis of the integer vectors on them orthogonal to U, and a vector p.

    The vector satisfies p·U = gcd U.
    """
    numbers = np.array(weights, dtype=np.int64) // math.gcd(*weights)
    cells = _coprime(numbers)
    start = np.eye(len(cells), len(cells) + 1, dtype=np.int64)
    start[:, -1] = HEAVY * numbers[cells]
    reduced = _lll(start)
    ends = reduced[:, -1] // HEAVY
    unit = reduced[np.flatnonzero(ends)[0]] * ends[np.flatnonzero(ends)[0]]

    return cells, reduced[ends == 0, :-1], unit[:-1]


def _coprime(numbers: Integers) -> Integers:
    """Return cells spread over the axis whose weights have no common divisor."""
    cells = list(np.unique(np.linspace(0, len(numbers) - 1, min(CELLS, len(numbers))).astype(np.int64)))
    for cell in range(len(numbers)):
        common = np.gcd.reduce(numbers[cells])
        if cell not in cells and math.gcd(int(common), int(numbers[cell])) < common:
            cells.append(cell)
    return np.array(cells, dtype=np.int64)


def _lll(basis: Integers) -> Integers:
    """Return the LLL-reduced basis; it is small, so Gram–Schmidt is recomputed for every row."""
    basis, row = basis.copy(), 1
    while row < len(basis):
        before = _orthogonal(basis[:row])
        lengths = (before**2).sum(axis=1)
        for other in reversed(range(row)):
            share = before[other] @ basis[row].astype(np.float64) / lengths[other]
            basis[row] -= int(np.rint(share)) * basis[other]

        shares = before @ basis[row].astype(np.float64) / lengths
        rest = basis[row] - shares @ before
        if rest @ rest >= (LOVASZ - shares[-1] ** 2) * lengths[-1]:
            row += 1
        else:
            basis[[row - 1, row]] = basis[[row, row - 1]]
            row = max(row - 1, 1)

    return basis


def _orthogonal(basis: Integers) -> Floats:
    """Return the Gram–Schmidt vectors without normalisation."""
    done = basis.astype(np.float64)
    for row in range(1, len(done)):
        before = done[:row]
        for _ in range(2):  # repeated to remove rounding errors
            done[row] -= (before @ done[row]) / (before**2).sum(axis=1) @ before
    return done
