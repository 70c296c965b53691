"""Transformation of marginals to residuals and back, as in AIM+GReM (Fuentes et al., table 1, algorithms 1 and 2).

Here a residual on τ has n − 1 entries along each axis: differences to the first slice. `center` of `axes` retains n
entries that sum to zero; `centered` below converts the former to the latter. `lead` leading axes are an unchanged
batch. The module also contains the allocation of privacy cost to residuals and groups of neighbouring cells.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from dpscale.base.numerics import Floats
from dpscale.workload.residual.axes import subsets


def sub(values: Floats, axis: int) -> Floats:
    """Return differences to the first slice: v[1:] − v[0] along `axis`, one entry shorter."""
    first, rest = np.split(values, [1], axis=axis)
    return rest - first


def centered(values: Floats, axis: int) -> Floats:
    """Return u − mean(u) with u = [0, v] along `axis`, one entry longer.

    It is the inverse of `sub` for values that sum to zero.
    """
    zero = np.zeros_like(values.take([0], axis=axis))
    padded = np.concatenate([zero, values], axis=axis)
    return np.asarray(padded - padded.mean(axis=axis, keepdims=True))


def decompose(marginal: Floats, keep: Sequence[int], lead: int = 0) -> Floats:
    """Decomp(μ, γ, τ): sum the axes outside `keep` and apply `sub` to the axes in it. O(|γ| n_γ)."""
    others = tuple(axis for axis in range(lead, marginal.ndim) if axis - lead not in keep)
    values = np.asarray(marginal.sum(axis=others) if others else marginal)
    for axis in range(len(keep)):
        values = sub(values, lead + axis)
    return values


def reconstruct(residual: Floats, keep: Sequence[int], shape: Sequence[int], lead: int = 0) -> Floats:
    """Recon(ζ, τ, γ): centre the axes in `keep` and smear over the others; an array of `shape` after the batch axes."""
    residual = np.asarray(residual)
    for axis in range(len(keep)):
        residual = centered(residual, lead + axis)
    batch = residual.shape[:lead]
    full = [size if axis in keep else 1 for axis, size in enumerate(shape)]
    spread = float(np.prod([size for axis, size in enumerate(shape) if axis not in keep]))
    return np.array(np.broadcast_to(residual.reshape((*batch, *full)) / spread, (*batch, *shape)))


LEAST_SHARE = 1e-3


def water_fill(worth: Floats, price: Floats, had: Floats) -> Floats:
    """Return the optimal precisions x with Σ p x = 1 by water filling.

    They minimise the error Σ v / (a + x) for the arrays v (`worth`), p (`price`) and a (`had`), all of one shape; v, p
    > 0 and a ≥ 0.
    """
    slope = np.sqrt(worth / price)
    order = np.argsort(had / slope)
    paid = 1 + np.cumsum((price * had)[order])
    levels = paid / np.cumsum((price * slope)[order])
    last = np.flatnonzero(levels > (had / slope)[order])[-1]
    return np.asarray(np.maximum(levels[last] * slope - had, 0))


@lru_cache(maxsize=4096)
def prices(sizes: tuple[int, ...]) -> tuple[list[tuple[int, ...]], list[float], list[float]]:
    """Return the subsets τ of the axes, their p_τ (privacy cost at unit precision) and v_τ (error at unit variance).

    v includes the marginal's number of cells in addition to the paper's per-cell scale, which does not change the
    optimum.
    """
    spaces = subsets(tuple(range(len(sizes))))
    price = [math.prod((sizes[i] - 1) / sizes[i] for i in kept) for kept in spaces]
    rest = [math.prod(sizes[i] ** -2.0 for i in range(len(sizes)) if i not in kept) for kept in spaces]
    return spaces, price, [own * one for own, one in zip(price, rest, strict=True)]


def shares(
    names: Sequence[str], sizes: Sequence[int], had: Mapping[tuple[str, ...], float], cost: float
) -> list[float]:
    """Return each residual's share p x of a round's privacy cost β, in the order of `subsets(names)`.

    `had` contains the existing precisions. Shares below LEAST_SHARE are set to 0 and redistributed, so that they sum to
    1.
    """
    spaces, price, worth = prices(tuple(sizes))
    before = [had.get(tuple([names[i] for i in kept]), 0.0) / cost for kept in spaces]
    chosen = list(range(len(spaces)))

    while True:
        filled = _fill_few([(worth[i], price[i], before[i]) for i in chosen])
        taken = [price[i] * one for i, one in zip(chosen, filled, strict=True)]
        large = [i for i, one in zip(chosen, taken, strict=True) if one >= LEAST_SHARE]
        if not large or len(large) == len(chosen):
            *_, total = accumulate(taken)  # in one order of additions, unlike sum() of Python 3.12
            found = dict(zip(chosen, taken, strict=True))
            return [found.get(i, 0.0) / total for i in range(len(spaces))]
        chosen = large


def _fill_few(items: Sequence[tuple[float, float, float]]) -> list[float]:
    """Return `water_fill` of a few (worth, price, had), for which arrays take most of the time."""
    slopes = [math.sqrt(worth / price) for worth, price, _ in items]
    starts = [had / slope for (_, _, had), slope in zip(items, slopes, strict=True)]
    paid, weight, level = 0.0, 0.0, 0.0
    for i in sorted(range(len(items)), key=starts.__getitem__):
        paid, weight = paid + items[i][1] * items[i][2], weight + items[i][1] * slopes[i]
        if (1 + paid) / weight > starts[i]:
            level = (1 + paid) / weight
    return [max(level * slope - had, 0.0) for (_, _, had), slope in zip(items, slopes, strict=True)]


def isotropic_parts(sizes: Sequence[int]) -> list[int]:
    """Return each residual's part of β, in the order of `subsets`, for equal independent noise in every cell.

    With noise σ² in every cell the τ-marginal has the noise σ² Π_{i∉τ} n_i, and its residual costs
    p_τ / (σ² Π_{i∉τ} n_i) = Π_{i∈τ} (n_i − 1) / (σ² Π n_i). The parts are Π_{i∈τ} (n_i − 1), which sum to Π n_i.
    """
    return [math.prod(size - 1 for size in kept) for kept in subsets(sizes)]


@dataclass(frozen=True)
class Groups:
    """Groups of neighbouring cells: `starts[g]` is the first cell of group g, and the last group ends at `size`."""

    size: int
    starts: tuple[int, ...]

    @property
    def count(self) -> int:
        return len(self.starts)

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """Group of every cell, shape (size,)."""
        return np.repeat(np.arange(self.count), self.widths)

    @cached_property
    def widths(self) -> NDArray[np.int64]:
        """Number of cells of every group, shape (count,)."""
        return np.diff([*self.starts, self.size])


def every_cell(size: int) -> Groups:
    """Return groups of a single cell each."""
    return Groups(size, tuple(range(size)))


def by_mass(counts: Floats, least: float, edges: Set[int] = frozenset(), runs: Groups | None = None) -> Groups:
    """Return groups of neighbouring cells with about `least` counts or more, or of whole runs of cells.

    A group with at least three tenths of `least` also ends at an edge or before a cell with `least` counts.
    """
    if runs is not None:
        inside = frozenset(np.searchsorted(runs.starts, sorted(edges)).tolist())
        grouped = by_mass(coarsened(counts, [runs]), least, inside)
        return Groups(runs.size, tuple(runs.starts[run] for run in grouped.starts))

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
    """Return the position of the cut into two parts of the most equal counts."""
    before = np.cumsum(counts)[:-1]
    return int(np.abs(2 * before - counts.sum()).argmin()) + 1


def coarsened(values: NDArray, groups: Sequence[Groups]) -> NDArray:  # type: ignore[type-arg]
    """Return sums over the groups of every axis; integers remain integers."""
    for axis, grouping in enumerate(groups):
        if grouping.count < grouping.size:
            values = np.add.reduceat(values, grouping.starts, axis=axis)
    return values


def expanded(values: Floats, groups: Sequence[Groups]) -> Floats:
    """Return an array in which every cell has its group's value, along every axis."""
    for axis, grouping in enumerate(groups):
        if grouping.count < grouping.size:
            values = values.take(grouping.labels, axis=axis)
    return values
