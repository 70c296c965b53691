"""Wide axes: one-way families on too many cells for a cells × cells matrix, in blocks of neighbouring cells.

An axis of n cells is divided into B blocks of m or m − 1 cells. Weights u = u¹ ⊗ u² (of the blocks, and within each)
split a query on the axis into one on the blocks, q·(I ⊗ u²), and a remainder within each block. With P(i) the sum of
the cells before i, every query is P(h) − P(l), and P(i) of block b, cell j, is a mean of the sums before b and before
b + 1: (1 − f) T(b) + f T(b + 1), f = Σ of u² before j. The Gram matrix of the blocks therefore has a closed form, and
so has the one within a block, which is equal in all blocks once it is centred:
    prefix: that of prefix on m cells;  range: range on m cells + (n − m) · prefix on m cells;  marginal: I;
    circular: 2 · range on m cells + 2 (n − m − 1) · prefix on m cells, since n(n + 1)/2 − d(n − d) arcs contain two
    cells at distance d.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscale.base.errors import PlanError
from dpscale.base.numerics import Floats, Integers
from dpscale.workload.families import FAMILIES
from dpscale.workload.residual import Weights, profile_of

LONG, DENSE = 512, 2048  # sizes above which an axis is structured, and above which it is divided into blocks
BLOCKS = 512  # minimum number of blocks of a wide axis
WIDEST = DENSE * DENSE
KNOWN = ("marginal", "prefix", "range", "circular")


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
    longer, left = -(-size // number), size % number
    return (BlockRun(number, longer),) if left == 0 else (BlockRun(left, longer), BlockRun(number - left, longer - 1))


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
        return np.concatenate([np.outer(profile[start:end], own).reshape(-1)
                               for start, end, own in zip(ends, ends[1:], self.within, strict=False)])  # fmt: skip


def even_cut(size: int, blocks: int | None = None) -> Cut:
    """Return a wide axis in `blocks` blocks with equal weights within them."""
    return Cut(size, tuple(np.full(run.size, 1 / run.size) for run in runs_of(size, blocks)), blocks)


def cut_of(size: int, weights: Weights | None) -> tuple[Cut, Floats]:
    """Return the division of a wide axis given by its integer weights, and the weights of its blocks; default: even."""
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


@dataclass(frozen=True)
class WideGram:
    """Gram matrix of weighted families on a wide axis, centred by the weights of the axis; identified by a key."""

    key: str
    size: int
    weights: Weights | None
    asked: tuple[tuple[str, float], ...]

    @property
    def rows(self) -> Floats:
        """Rows F for cells alone, if the axis is not wide; otherwise PlanError, because F would be cells × cells."""
        if self.cells_alone and not is_wide(self.size):
            return _contrasts(self.size) / math.sqrt(self.size - 1)
        families = " and ".join(family for family, _ in self.asked)
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
        return self.weights is None and all(family == "marginal" for family, _ in self.asked)

    def mixed(self, gram_of: Callable[[str], Floats], profile: Floats) -> Floats:
        """Return the Gram matrix of the blocks or within one block, centred by a profile."""
        return weighted_piece(np.sum([weight * gram_of(family) for family, weight in self.asked], axis=0), profile)[0]


def _contrasts(size: int) -> Floats:
    """Return orthonormal centred rows: each cell but the first against the cells before it."""
    before = np.arange(1, size, dtype=np.float64)
    rows = np.tril(np.ones((size - 1, size)))
    rows[np.arange(size - 1), np.arange(1, size)] = -before
    return np.asarray(rows / np.sqrt(before * (before + 1))[:, None])


def wide_scale(family: str, size: int, weights: Weights | None) -> tuple[float, float]:
    """Return the trace of a family's centred Gram matrix, and uᵀGu, the part of its means.

    The trace includes the blocks and the cells within them.
    """
    if family == "marginal" and weights is None:
        return size - 1.0, 1 / size
    cut, profile = cut_of(size, weights)
    centred, square = weighted_piece(block_gram(family, cut), profile)
    within = [run.count * float(np.trace(weighted_piece(inner_gram(family, size, run.size), own)[0]))
              for run, own in zip(cut.runs, cut.within, strict=True)]  # fmt: skip
    return float(np.trace(centred)) + sum(within), square


def weighted_piece(gram: Floats, profile: Floats) -> tuple[Floats, float]:
    """Return (I − 1uᵀ) G (I − u1ᵀ), the Gram matrix of the pieces q − (q·u)1, and uᵀGu, that of the means."""
    mean = gram @ profile
    square = float(profile @ mean)
    return np.asarray(gram - mean - mean[:, None] + square), square


def block_gram(family: str, cut: Cut) -> Floats:
    """Return the Gram matrix of a family on the blocks, shape (B, B)."""
    return _GRAMS[family](cut) if family in _GRAMS else _summed_gram(family, cut)


def inner_families(family: str, size: int, cells: int) -> tuple[tuple[str, float], ...]:
    """Return the weighted families that a family induces within a block, up to terms removed by centring."""
    if family == "circular":
        return ("range", 2.0), ("prefix", 2.0 * (size - cells - 1))
    return (("range", 1.0), ("prefix", float(size - cells))) if family == "range" else ((family, 1.0),)


def inner_gram(family: str, size: int, cells: int) -> Floats:
    """Return the mean Gram matrix within a block of `cells` cells, up to terms removed by centring."""
    parts = [weight * FAMILIES[name].gram(cells) for name, weight in inner_families(family, size, cells)]
    return np.asarray(sum(parts))


def _prefix_gram(cut: Cut) -> Floats:
    before = [np.cumsum(own) for own in cut.within]
    first = _by_block(cut, [float(part.sum()) for part in before])
    second = _by_block(cut, [float((part**2).sum()) for part in before])
    lengths = cut.lengths
    after = lengths.sum() - np.cumsum(lengths)
    gram = _at_larger(first + after)
    np.fill_diagonal(gram, second + after)
    return gram


def _marginal_gram(cut: Cut) -> Floats:
    return np.diag(_by_block(cut, [float((own**2).sum()) for own in cut.within]))


def _range_gram(cut: Cut) -> Floats:
    """Average (min + 1)(n − max) over cells: a product for two blocks, and a sum within one."""
    lengths = cut.lengths
    starts = np.cumsum(lengths) - lengths
    middle = _by_block(cut, [float(own @ np.arange(1, len(own) + 1)) for own in cut.within])
    low, high = starts + middle, cut.size + 1 - starts - middle
    gram = np.triu(np.outer(low, high), 1)
    gram += gram.T
    apart = _by_block(cut, [_half_distance(own) for own in cut.within])
    np.fill_diagonal(gram, low * high - (cut.size + 1) * apart)
    return gram


def _circular_gram(cut: Cut) -> Floats:
    """Average n(n + 1)/2 − n d + d² over the distances d of cells of two blocks."""
    lengths, size = cut.lengths, cut.size
    places = [np.arange(len(own), dtype=np.float64) for own in cut.within]
    middle = [float(own @ at) for own, at in zip(cut.within, places, strict=True)]
    spread = [float(own @ (at - m) ** 2) for own, at, m in zip(cut.within, places, middle, strict=True)]
    middles, spreads = np.cumsum(lengths) - lengths + _by_block(cut, middle), _by_block(cut, spread)
    apart = np.abs(np.subtract.outer(middles, middles))
    np.fill_diagonal(apart, 2 * _by_block(cut, [_half_distance(own) for own in cut.within]))
    square = np.subtract.outer(middles, middles) ** 2 + np.add.outer(spreads, spreads)
    return np.asarray(size * (size + 1) / 2 - size * apart + square)


def _half_distance(own: Floats) -> float:
    """Return half the mean distance of two cells: the mean position minus the mean of the smaller of two."""
    cells = np.arange(len(own), dtype=np.float64)
    return float(own @ np.abs(cells[:, None] - cells) @ own / 2)


def _by_block(cut: Cut, values: Sequence[float]) -> Floats:
    return np.concatenate([np.full(run.count, value) for run, value in zip(cut.runs, values, strict=True)])


def _at_larger(values: Floats) -> Floats:
    """Return the matrix whose entry (a, b) is the value at max(a, b)."""
    index = np.arange(len(values))
    return np.asarray(values[np.maximum.outer(index, index)])


def _summed_gram(family: str, cut: Cut) -> Floats:
    """Sum the Gram matrix of a family without a closed form over cells; refuse wide axes."""
    if is_wide(cut.size):
        known_wide(family, cut.size)
    starts, weights = np.cumsum(cut.lengths) - cut.lengths, cut.spread(np.ones(len(cut.lengths)))
    weighed = FAMILIES[family].gram(cut.size) * np.outer(weights, weights)
    return np.asarray(np.add.reduceat(np.add.reduceat(weighed, starts, axis=0), starts, axis=1))


_GRAMS = {"prefix": _prefix_gram, "marginal": _marginal_gram, "range": _range_gram, "circular": _circular_gram}


def known_wide(family: str, size: int) -> None:
    """Raise PlanError if a family is not supported on a wide axis, or the axis is too wide."""
    if family not in KNOWN:
        raise PlanError("workload", f"family {family} on an attribute of {size} cells",
                        f"at most {DENSE} cells, or one of {', '.join(KNOWN)}", "coarsen the attribute")  # fmt: skip
    if size > WIDEST and family != "marginal":
        raise PlanError("workload", f"family {family} on an attribute of {size} cells", f"at most {WIDEST} cells",
                        "coarsen the attribute")  # fmt: skip
