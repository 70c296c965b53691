"""Marginals to residuals and back in the form of AIM+GReM (Fuentes et al., table 1, algorithms 1 and 2).

A residual on τ here has n − 1 entries along each axis: differences to the first slice. `center` of `axes` keeps n
entries that sum to zero; `centered` below turns the one into the other. `lead` leading axes are a batch, left alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dpscale.base.arrays import Floats
from dpscale.workload.residual.axes import subsets


def sub(values: Floats, axis: int) -> Floats:
    """Differences to the first slice: v[1:] − v[0] along `axis`, one entry shorter."""
    first, rest = np.split(values, [1], axis=axis)
    return rest - first


def centered(values: Floats, axis: int) -> Floats:
    """u − mean(u) with u = [0, v] along `axis`, one entry longer: the inverse of `sub` on what sums to zero."""
    zero = np.zeros_like(values.take([0], axis=axis))
    padded = np.concatenate([zero, values], axis=axis)
    return np.asarray(padded - padded.mean(axis=axis, keepdims=True))


def decompose(marginal: Floats, keep: Sequence[int], lead: int = 0) -> Floats:
    """Decomp(μ, γ, τ): sum the axes outside `keep`, `sub` the axes in it. O(|γ| n_γ)."""
    others = tuple(axis for axis in range(lead, marginal.ndim) if axis - lead not in keep)
    values = np.asarray(marginal.sum(axis=others) if others else marginal)
    for axis in range(len(keep)):
        values = sub(values, lead + axis)
    return values


def reconstruct(residual: Floats, keep: Sequence[int], shape: Sequence[int], lead: int = 0) -> Floats:
    """Recon(ζ, τ, γ): centre the axes in `keep`, smear over the others; an array of `shape` after the batch axes."""
    residual = np.asarray(residual)
    for axis in range(len(keep)):
        residual = centered(residual, lead + axis)
    batch = residual.shape[:lead]
    full = [size if axis in keep else 1 for axis, size in enumerate(shape)]
    spread = float(np.prod([size for axis, size in enumerate(shape) if axis not in keep]))
    return np.array(np.broadcast_to(residual.reshape((*batch, *full)) / spread, (*batch, *shape)))


LEAST_SHARE = 1e-3


def water_fill(worth: Floats, price: Floats, had: Floats) -> Floats:
    """The optimal x, shape as `worth` (v), `price` (p) and `had` (a), all > 0 but `had` ≥ 0: Σ p x = 1."""
    slope = np.sqrt(worth / price)
    order = np.argsort(had / slope)
    paid = 1 + np.cumsum((price * had)[order])
    levels = paid / np.cumsum((price * slope)[order])
    last = np.flatnonzero(levels > (had / slope)[order])[-1]
    return np.asarray(np.maximum(levels[last] * slope - had, 0))


def prices(sizes: Sequence[int]) -> tuple[list[tuple[int, ...]], Floats, Floats]:
    """The subsets τ of the axes, their p_τ (privacy cost at unit precision) and v_τ (error at unit variance).

    v carries the marginal's number of cells over the paper's per-cell scale, which changes no optimum.
    """
    spaces = subsets(tuple(range(len(sizes))))
    price = [math.prod((sizes[i] - 1) / sizes[i] for i in kept) for kept in spaces]
    rest = [math.prod(sizes[i] ** -2.0 for i in range(len(sizes)) if i not in kept) for kept in spaces]
    return spaces, np.array(price), np.array(price) * np.array(rest)


def shares(names: Sequence[str], sizes: Sequence[int], had: Mapping[tuple[str, ...], float], cost: float) -> Floats:
    """Each residual's share p x of a round's privacy cost β, in the order of `subsets(names)`.

    `had`: precisions already there. Shares below LEAST_SHARE are 0 and go to the others, so that they sum to 1.
    """
    spaces, price, worth = prices(sizes)
    before = np.array([had.get(tuple(names[i] for i in kept), 0.0) for kept in spaces]) / cost
    chosen = np.ones(len(spaces), dtype=bool)
    while True:
        filled = np.zeros(len(spaces))
        filled[chosen] = water_fill(worth[chosen], price[chosen], before[chosen])
        taken = price * filled
        small = chosen & (taken < LEAST_SHARE)
        if not small.any() or small.sum() == chosen.sum():
            return np.asarray(taken / taken.sum())
        chosen &= ~small


@dataclass(frozen=True)
class Groups:
    """Runs of neighbouring cells: `starts[g]` is the first cell of group g, the last group ends at `size`."""

    size: int
    starts: tuple[int, ...]

    @property
    def count(self) -> int:
        return len(self.starts)

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """The group of every cell, (size,)."""
        return np.repeat(np.arange(self.count), self.widths)

    @cached_property
    def widths(self) -> NDArray[np.int64]:
        """Cells in every group, (count,)."""
        return np.diff([*self.starts, self.size])


def every_cell(size: int) -> Groups:
    """Each cell a group of its own."""
    return Groups(size, tuple(range(size)))


def by_mass(counts: Floats, least: float, edges: Set[int] = frozenset()) -> Groups:
    """Groups of at least `least` counts; one with three tenths of it ends at an edge or before such a cell."""
    starts, held = [0], 0.0
    for cell, count in enumerate(counts.tolist()):
        if cell and (held >= least or ((count >= least or cell in edges) and held >= 0.3 * least)):
            starts.append(cell)
            held = 0.0
        held += count
    if held < 0.5 * least and len(starts) > 2:
        starts.pop()
    if len(starts) == 1 and len(counts) > 1:
        starts.append(_halving(counts))
    return Groups(len(counts), tuple(starts))


def _halving(counts: Floats) -> int:
    """Where to cut in two parts as equal as may be."""
    before = np.cumsum(counts)[:-1]
    return int(np.abs(2 * before - counts.sum()).argmin()) + 1


def coarsened(values: NDArray, groups: Sequence[Groups]) -> NDArray:  # type: ignore[type-arg]
    """Sums over the groups of every axis; integers stay integers."""
    for axis, grouping in enumerate(groups):
        if grouping.count < grouping.size:
            values = np.add.reduceat(values, grouping.starts, axis=axis)
    return values


def expanded(values: Floats, groups: Sequence[Groups]) -> Floats:
    """Every cell gets its group's value (a ratio, say), along every axis."""
    for axis, grouping in enumerate(groups):
        if grouping.count < grouping.size:
            values = values.take(grouping.labels, axis=axis)
    return values
