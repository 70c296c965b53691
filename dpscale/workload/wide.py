"""Wide axes: one-way families on too many cells for a cells × cells matrix, in blocks of neighbouring cells.

An axis of n cells is divided into B blocks of m or m − 1 cells. Weights u = u¹ ⊗ u² (of the blocks, and within each)
split a query on the axis into one on the blocks, q·(I ⊗ u²), and a remainder within each block. With P(i) the sum of
the cells before i, every query is P(h) − P(l), and P(i) of block b, cell j, is a mean of the sums before b and before
b + 1: (1 − f) T(b) + f T(b + 1), f = Σ of u² before j. The Gram matrix of the blocks therefore has a closed form, and
so has the one within a block, which is equal in all blocks once it is centred:
    prefix: that of prefix on m cells;  range: range on m cells + (n − m) · prefix on m cells;  marginal: I;
    circular: 2 · range on m cells + 2 (n − m − 1) · prefix on m cells, since n(n + 1)/2 − d(n − d) arcs contain two
    cells at distance d.
Other families of intervals are listed, and the mean Gram matrix within a block replaces that of every block: errors of
strategies that are equal in all blocks depend on the mean alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from dpscale.base.errors import PlanError
from dpscale.base.numerics import Floats, Integers
from dpscale.workload.residual import Weights, profile_of

LONG, DENSE = 512, 2048  # sizes above which an axis is structured, and above which it is divided into blocks
BLOCKS = 512  # minimum number of blocks of a wide axis
MOST_DENSE = 8192  # size above which families that are no intervals are refused
WIDEST = DENSE * DENSE
SAME = 1e-12  # relative difference of products of weights


@dataclass(frozen=True)
class BlockRun:
    """Consecutive blocks of equal size."""

    count: int
    size: int


def is_wide(size: int) -> bool:
    return size > DENSE


@lru_cache(maxsize=256)
def runs_of(size: int, blocks: int | None = None) -> tuple[BlockRun, ...]:
    """Return the division of a wide axis: blocks of m cells first, then of m − 1.

    By default there are at least as many blocks as cells per block.
    """
    number = blocks or max(BLOCKS, math.isqrt(size - 1) + 1)
    cells, longer = -(-size // number), size % number  # cells of a longer block, and the number of these
    if longer == 0:
        return (BlockRun(number, cells),)
    return BlockRun(longer, cells), BlockRun(number - longer, cells - 1)


@dataclass(frozen=True, eq=False)
class Cut:
    """Division of a wide axis into blocks, with the weights within a block of every run, each of sum 1."""

    size: int
    within: tuple[Floats, ...]
    blocks: int | None = None

    @property
    def runs(self) -> tuple[BlockRun, ...]:
        return runs_of(self.size, self.blocks)

    @property
    def lengths(self) -> Integers:
        """Number of cells of every block."""
        return np.concatenate([np.full(run.count, run.size) for run in self.runs])

    def spread(self, profile: Floats) -> Floats:
        """Return the weights of the cells for given weights of the blocks."""
        ends = np.cumsum([0, *(run.count for run in self.runs)])
        return np.concatenate([np.outer(profile[start:end], inside).reshape(-1)
                               for start, end, inside in zip(ends, ends[1:], self.within, strict=False)])  # fmt: skip


def even_cut(size: int, blocks: int | None = None) -> Cut:
    """Return a wide axis in `blocks` blocks with equal weights within them."""
    return Cut(size, tuple(np.full(run.size, 1 / run.size) for run in runs_of(size, blocks)), blocks)


def cut_of(size: int, weights: Weights | None) -> tuple[Cut, Floats]:
    """Return the division of a wide axis given by its integer weights, and the weights of its blocks; default: even.

    Within a run, all blocks have weights in the proportions of the first one.
    """
    if weights is None:
        cut = even_cut(size)
        return cut, cut.lengths / size

    numbers, start, within = np.array(weights, dtype=np.float64), 0, []
    for run in runs_of(size):
        first = numbers[start : start + run.size]
        within.append(first / first.sum())
        start += run.count * run.size
    return Cut(size, tuple(within)), block_sums(profile_of(weights, size), size)


def block_sums(values: NDArray[Any], size: int) -> NDArray[Any]:
    """Return sums over the blocks of a wide leading axis, shape (B, …)."""
    start, sums = 0, []
    for run in runs_of(size):
        end = start + run.count * run.size
        sums.append(values[start:end].reshape(run.count, run.size, *values.shape[1:]).sum(axis=1))
        start = end
    return np.concatenate(sums)


class WideFamily(Protocol):
    """Members of a one-way family that a wide axis needs; see `workload.family.Family`."""

    name: ClassVar[str]
    is_identity: ClassVar[bool]
    has_intervals: ClassVar[bool]

    def block_gram(self, cut: Cut) -> Floats: ...
    def inner_gram(self, cut: Cut, run: BlockRun) -> Floats: ...
    def centred_trace(self, profile: Floats) -> float: ...
    def times_gram(self, values: Floats) -> Floats: ...
    def trace(self, size: int) -> float: ...


@dataclass(frozen=True)
class WideGram:
    """Gram matrix of weighted families on a wide axis, centred by the weights of the axis; identified by a key."""

    key: str
    size: int
    weights: Weights | None
    asked: tuple[tuple[WideFamily, float], ...]

    @property
    def rows(self) -> Floats:
        """Rows F for cells alone, if the axis is not wide; otherwise PlanError, because F would be cells × cells."""
        if self.cells_alone and not is_wide(self.size):
            return _contrasts(self.size) / math.sqrt(self.size - 1)

        families = " and ".join(family.name for family, _ in self.asked)
        raise PlanError(
            "workload",
            f"{families} on {self.size} cells, together with other families or by this mechanism",
            f"at most {DENSE} cells",
            "coarsen the attribute, use one family per set, or use weighted-residuals",
        )

    @property
    def gram(self) -> Floats:
        return self.rows.T @ self.rows

    @property
    def cells_alone(self) -> bool:
        """Whether the Gram matrix is the centring projector."""
        return self.weights is None and all(family.is_identity for family, _ in self.asked)

    @property
    def lower_bound(self) -> float:
        """Lower bound of the optimum over all strategies: (tr QᵀF)²/n for any Q of norm at most 1, for each family."""
        profile = profile_of(self.weights, self.size)
        known = [(weight, family.centred_trace(profile)) for family, weight in self.asked]
        return math.fsum(weight * max(trace, 0.0) ** 2 / self.size for weight, trace in known)

    def mixed(self, grams: Sequence[Floats], profile: Floats) -> Floats:
        """Return the Gram matrix of the blocks or within one block from those of the families, centred by a profile."""
        weighed = [weight * gram for gram, (_, weight) in zip(grams, self.asked, strict=True)]
        return weighted_piece(np.sum(weighed, axis=0), profile)[0]


def _contrasts(size: int) -> Floats:
    """Return orthonormal centred rows: each cell but the first against the cells before it.

    Row k has ones on the cells 0 … k − 1 and −k on cell k, over √(k (k + 1)).
    """
    before = np.arange(1, size, dtype=np.float64)
    rows = np.tril(np.ones((size - 1, size)))
    rows[np.arange(size - 1), np.arange(1, size)] = -before
    return np.asarray(rows / np.sqrt(before * (before + 1))[:, None])


def wide_scale(family: WideFamily, size: int, weights: Weights | None) -> tuple[float, float]:
    """Return the trace of a family's centred Gram matrix, and uᵀGu, the part of its means.

    The trace includes the blocks and the cells within them.

    The order: single cells have the centring itself; weights that no cut represents use tr G − 2 1ᵀGu + n uᵀGu, which
    needs no matrix; a cut has the traces between and within the blocks, weighted by the numbers of blocks.
    """
    if family.is_identity and weights is None:
        return size - 1.0, 1 / size
    if weights is not None and not _is_cut(size, weights):
        profile = profile_of(weights, size)
        means = family.times_gram(profile)
        square = float(profile @ means)
        return family.trace(size) - 2 * float(means.sum()) + size * square, square

    cut, profile = cut_of(size, weights)
    centred, square = weighted_piece(family.block_gram(cut), profile)
    within = [
        run.count * float(np.trace(weighted_piece(family.inner_gram(cut, run), inside)[0]))
        for run, inside in zip(cut.runs, cut.within, strict=True)
    ]
    return float(np.trace(centred)) + sum(within), square


def _is_cut(size: int, weights: Weights) -> bool:
    """Return whether the weights within all blocks of a run are proportional."""
    numbers, start = np.array(weights, np.float64), 0
    for run in runs_of(size):
        blocks = numbers[start : start + run.count * run.size].reshape(run.count, run.size)
        sums, start = blocks.sum(axis=1, keepdims=True), start + run.count * run.size
        if sums[0] == 0 or np.abs(blocks * sums[0] - sums * blocks[0]).max() > SAME * float(sums.max()) ** 2:
            return False
    return True


def check_wide(family: WideFamily, size: int) -> None:
    """Raise PlanError if a family is not supported on a wide axis, or the axis is too wide."""
    if not family.has_intervals:
        raise PlanError("workload", f"family {family.name} on an attribute of {size} cells",
                        f"at most {MOST_DENSE} cells, or queries that are intervals",
                        "coarsen the attribute")  # fmt: skip
    if size > WIDEST and not family.is_identity:
        raise PlanError("workload", f"family {family.name} on an attribute of {size} cells",
                        f"at most {WIDEST} cells", "coarsen the attribute")  # fmt: skip


def weighted_piece(gram: Floats, profile: Floats) -> tuple[Floats, float]:
    """Return (I − 1uᵀ) G (I − u1ᵀ), the Gram matrix of the pieces q − (q·u)1, and uᵀGu, that of the means."""
    mean = gram @ profile
    square = float(profile @ mean)
    return np.asarray(gram - mean - mean[:, None] + square), square
