"""Layered strategy on a wide axis: K = [R S₀; M₀ S₀; …; M_L S_L], with dense rows R on blocks of neighbouring cells.

S_l sums the cells of the nodes of level l, which have w_l cells each: level 0 has the blocks, level L the cells. M_l is
diagonal with the multipliers m_lc ≥ 0, the same for all nodes of a block c. The axis is continued to whole blocks by
cells that have no records but are measured and estimated like others. In a block, the rows of the levels have a Gram
matrix T_c with the eigenvalues

    e_lc = Σ_{k ≥ l} m_kc² w_k

on the space l of vectors that are constant on the nodes of level l and sum to zero in each node of level l − 1 (level
0: constant in the block). So the projections P_l on these spaces, differences of means over nodes, give all products
with T_c⁻¹. The rows R add to level 0 alone: the totals of the blocks have the covariance

    Q = (diag(e_0 / w_0) + RᵀR)⁻¹,        (KᵀK)⁻¹ = Σ_{l ≥ 1} P_l / e_l + S₀ᵀ Q S₀ / w_0²,

and the trace for a Gram matrix G needs only the sums of G over the nodes of each level (`workload.node_grams`). No
array of shape (cells, cells) is computed. Prefix sums up to i and j have a covariance that is bilinear in the running
sums of Q, plus a closed form within a common block, so intervals of any length cost constant time.

*Names.* `top` is R, `multipliers` are the m_lc, shape (levels, blocks), and `widths` the w_l.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from dpscale.base.numerics import Floats, Integers, NDArray
from dpscale.plans.factor import ImplicitFactor
from dpscale.workload import Family
from dpscale.workload.node_grams import node_gram, node_sums

CHUNK = 1 << 18  # queries
# limits of the absolute entries of the rows on blocks, and of the multipliers of levels
LARGEST_ROW, LARGEST_MULTIPLIER = 1 << 40, 1 << 30


@dataclass(frozen=True, eq=False)
class LayeredFactor(ImplicitFactor):
    """Strategy of the kind "layered".

    Attributes
    ----------
    top : ndarray of int64, shape (p, blocks)
        R.
    multipliers : ndarray of int64, shape (levels, blocks)
        m_lc ≥ 0 of the nodes of every level from the blocks to the cells; a level is measured in all blocks or in none,
        and the last one is measured.
    widths : tuple of int
        Numbers w_l of cells of a node of every level; each is a multiple of the next, and the last is 1.
    """

    top: Integers = None  # type: ignore[assignment]
    multipliers: Integers = None  # type: ignore[assignment]
    widths: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Raise ValueError unless the integers are those of levels of nodes that cover the cells.

        `widths` are the cells of a node of each level, from blocks to cells (1); `top` has the dense rows on blocks;
        `multipliers` has a row for each level and a column for each block.
        """
        widths, top, multipliers = self.widths, self.top, self.multipliers
        if self.kind != "layered" or len(self.shape) != 1 or not widths or widths[-1] != 1:
            raise ValueError("a layered strategy has levels from blocks to cells on one axis")
        if any(above <= below or above % below for above, below in pairwise(widths)):
            raise ValueError("the nodes of a level of a layered strategy do not divide those of the level above")
        if top.dtype != np.int64 or multipliers.dtype != np.int64 or multipliers.shape != (len(widths), self.blocks):
            raise ValueError("the multipliers of a layered strategy are not integers, one for each level and block")
        if top.ndim != 2 or top.shape[1] != self.blocks or int(np.abs(top).max(initial=0)) >= LARGEST_ROW:
            raise ValueError("the rows on blocks of a layered strategy do not have an entry for each block")
        if int(multipliers.min()) < 0 or int(multipliers.max()) >= LARGEST_MULTIPLIER or int(multipliers[-1].min()) < 1:
            raise ValueError("the multipliers of a layered strategy are not in their limits")
        # a level is measured in all blocks or in none
        if any(int(level.min()) < 1 for level in multipliers[self._measured]):
            raise ValueError("a level of a layered strategy is measured in some blocks only")

    @property
    def blocks(self) -> int:
        return -(-self.cells // self.widths[0])

    @property
    def _measured(self) -> list[int]:
        """Levels that are measured."""
        return np.flatnonzero(self.multipliers.any(axis=1)).tolist()

    @cached_property
    def rows(self) -> int:  # type: ignore[override]
        return len(self.top) + sum(self._nodes(level) for level in self._measured)

    def _nodes(self, level: int) -> int:
        """Return the number of nodes of a level."""
        return self.blocks * (self.widths[0] // self.widths[level])

    def _of_nodes(self, values: NDArray[Any], level: int) -> NDArray[Any]:
        """Return values of the blocks for every node of a level."""
        return np.repeat(values, self.widths[0] // self.widths[level])

    @cached_property
    def digest(self) -> str:  # type: ignore[override]
        content = b"".join(np.ascontiguousarray(values, "<i8").tobytes() for values in (self.top, self.multipliers))
        return hashlib.sha256(f"{self.kind}{self.shape}{self.widths}".encode() + content).hexdigest()

    @cached_property
    def squared_l2_sensitivity(self) -> int:  # type: ignore[override]
        """Largest squared norm of a column, which is the same for all cells of a block; exact."""
        return self._largest_column(2)

    @cached_property
    def l1_sensitivity(self) -> int:  # type: ignore[override]
        return self._largest_column(1)

    def _largest_column(self, power: int) -> int:
        entries = np.concatenate([np.abs(self.top), self.multipliers]).astype(object)
        return int((entries**power).sum(axis=0).max())

    @cached_property
    def largest(self) -> int:  # type: ignore[override]
        return max(int(np.abs(self.top).max(initial=0)), int(self.multipliers.max()))

    @cached_property
    def largest_row_sum(self) -> int:  # type: ignore[override]
        of_levels = [int(level.max()) * width for level, width in zip(self.multipliers, self.widths, strict=True)]
        of_top = np.abs(self.top).astype(object).sum(axis=1) * self.widths[0]
        return max([*of_levels, *map(int, of_top)])

    def apply(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return K applied along the leading axis of integers, exact.

        The rows are those of `top` on the sums of blocks, and then, level by level, the sums of nodes times their
        multipliers. `_padded` continues the axis by cells without records to whole blocks.
        """
        columns, padded = (-1, *[1] * (values.ndim - 1)), self._padded(values)
        rows = [np.tensordot(self.top, self._sums(padded, 0), axes=(1, 0))]
        for level in self._measured:
            multipliers = self._of_nodes(self.multipliers[level], level)
            rows.append(self._sums(padded, level) * multipliers.reshape(columns))
        return np.concatenate(rows)

    def _padded(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return values with zeros for the cells after the last one, along the leading axis."""
        left = self.blocks * self.widths[0] - self.cells
        return np.pad(values, ((0, left), *[(0, 0)] * (values.ndim - 1)))

    def _sums(self, values: NDArray[Any], level: int) -> NDArray[Any]:
        """Return sums of values of all cells, over the nodes of a level along the leading axis."""
        return values.reshape(self._nodes(level), self.widths[level], *values.shape[1:]).sum(axis=1)

    def estimate(self, values: Floats, axis: int = 0) -> Floats:
        """Return the least squares estimate of the cells along `axis`; the axis is moved to the end."""
        rows = np.moveaxis(values, axis, 0)
        return np.moveaxis(self._solve(self._transposed(rows))[: self.cells], 0, -1)

    def _transposed(self, rows: Floats) -> Floats:
        """Return Kᵀ applied along the leading axis.

        Rows are those of the dense matrix R and then those of the measured levels; each row spreads its value over its
        cells. K is the strategy matrix. `_on_cells` repeats the value of a node on its cells.
        """
        columns, start = (-1, *[1] * (rows.ndim - 1)), len(self.top)
        total = self._on_cells(np.tensordot(self.top.astype(np.float64), rows[:start], axes=(0, 0)), 0)
        for level in self._measured:
            end = start + self._nodes(level)
            multipliers = self._of_nodes(self.multipliers[level], level).astype(np.float64)
            total = total + self._on_cells(rows[start:end] * multipliers.reshape(columns), level)
            start = end
        return total

    def _on_cells(self, nodes: Floats, level: int) -> Floats:
        """Return the value of its node for every cell."""
        return np.repeat(nodes, self.widths[level], axis=0)

    def apply_covariance(self, values: Floats) -> Floats:
        """Return the covariance applied along the second axis; the axis is moved to the end."""
        return np.moveaxis(self._solve(self._padded(np.moveaxis(values, 1, 0)))[: self.cells], 0, -1)

    def _solve(self, values: Floats) -> Floats:
        """Return (KᵀK)⁻¹ applied to values of all cells along the leading axis.

        With P_l x the difference between the means of a cell's nodes on the levels l and l − 1, (KᵀK)⁻¹x = Σ_l P_l
        x/e_l over the levels below the blocks, plus S₀ᵀ Q S₀ x / w₀². Q is the covariance of the blocks' totals
        (`_block_covariance`), w₀ the cells of a block (`width`), and e_l the eigenvalue of the rows of all levels on
        the space of level l; S₀ sums the cells of blocks.
        """
        columns, width = (-1, *[1] * (values.ndim - 1)), self.widths[0]
        sums = self._sums(values, 0)
        total = self._on_cells(np.tensordot(self._block_covariance / width**2, sums, axes=(1, 0)), 0)
        above = self._on_cells(sums / width, 0)
        for level in range(1, len(self.widths)):
            means = self._on_cells(self._sums(values, level) / self.widths[level], level)
            shares = 1 / np.repeat(self._eigenvalues[level], width)
            total = total + (means - above) * shares.reshape(columns)
            above = means
        return np.asarray(total)

    @cached_property
    def _eigenvalues(self) -> Floats:
        """e_lc, shape (levels, blocks)."""
        squares = self.multipliers.astype(np.float64) ** 2 * np.array(self.widths)[:, None]
        return np.cumsum(squares[::-1], axis=0)[::-1]

    @cached_property
    def _block_covariance(self) -> Floats:
        """Covariance Q of the estimates of the blocks' sums at unit noise variance, shape (blocks, blocks).

        It is the inverse of the precision of the rows on blocks plus that of all levels below; both are scaled to 1.
        """
        rows = self.top.astype(np.float64)
        scale = self._eigenvalues[0].max() / self.widths[0]
        precision = np.diag(self._eigenvalues[0] / self.widths[0] / scale) + rows.T @ rows / scale
        return np.asarray(np.linalg.inv(precision) / scale)

    def trace(self, family: Family) -> float:
        """Return the sum of the variances of all queries of a family, at unit noise variance.

        It is that of the blocks' sums, plus for each level what its nodes add to the nodes above them.

        tr(G P_l) in a block is the sum of G over the nodes of level l, each over w_l, less that of level l − 1. G is
        the Gram matrix of the family, w_l the number of cells of a node of level l, P_l the projection on what nodes of
        level l add to those above, whose eigenvalue is e_l.
        """
        asked, width = [(family, 1.0)], self.widths[0]
        total = float((node_gram(asked, self.cells, width) * self._block_covariance).sum()) / width**2
        sums = self._block_means(node_sums(asked, self.cells, width), 0)
        for level in range(1, len(self.widths)):
            below = self._block_means(node_sums(asked, self.cells, self.widths[level]), level)
            total += float(((below - sums) / self._eigenvalues[level]).sum())
            sums = below
        return total

    def _block_means(self, sums: Floats, level: int) -> Floats:
        """Return by block the sums of a Gram matrix over its nodes of a level, divided by their numbers of cells."""
        whole = np.pad(sums, (0, self._nodes(level) - len(sums)))
        return np.asarray(whole.reshape(self.blocks, -1).sum(axis=1) / self.widths[level])

    @property
    def mean_variance(self) -> float:
        """Mean variance of the estimates of the cells, at unit noise variance.

        P_l has the diagonal 1/w_l − 1/w_(l − 1) in each block, and S₀ᵀ Q S₀/w₀² the diagonal of Q over w₀².
        """
        lengths = np.diff(np.append(np.arange(0, self.cells, self.widths[0]), self.cells))
        variances = np.diag(self._block_covariance) / self.widths[0] ** 2
        for level, (above, below) in enumerate(zip(self.widths, self.widths[1:], strict=False), start=1):
            variances = variances + (1 / below - 1 / above) / self._eigenvalues[level]
        return float(lengths @ variances) / self.cells

    def quadratics(self, family: Family) -> Floats:
        """Return the variance of every query of a family, at unit noise variance; intervals by sums from the start."""
        if not family.has_intervals:
            queries = family.matrix(self.cells)
            return np.asarray((queries * self.apply_covariance(queries)).sum(axis=1))

        low, high = family.intervals(self.cells)
        chunks = range(0, len(low), CHUNK)
        variances = [self._interval_variances(low[at : at + CHUNK], high[at : at + CHUNK]) for at in chunks]
        return np.concatenate(variances)

    def _interval_variances(self, low: Integers, high: Integers) -> Floats:
        """Return the variances of the sums from `low` to before `high`, or of all other cells if high ≤ low.

        With P(i) the sum of the cells before i and C(i, j) the covariance of P(i) and P(j),
        Var(P(h) − P(l)) = C(h, h) + C(l, l) − 2 C(l, h). An arc around the end is the total plus P(h) − P(l), which
        adds C(n, n) + 2 (C(n, h) − C(n, l)).
        """
        variances = self._covariances(high, high) + self._covariances(low, low) - 2 * self._covariances(low, high)
        around = high <= low
        if around.any():  # the total with the sums up to both ends
            first, last = low[around], high[around]
            total = np.full_like(first, self.cells)
            crossed = self._covariances(total, last) - self._covariances(total, first)
            variances[around] += self._covariances(total, total) + 2 * crossed
        return variances

    def sums_covariance(self, ends: Integers) -> Floats:
        left, right = np.broadcast_arrays(ends[:, None], ends)
        return np.diff(np.diff(self._covariances(left, right), axis=0), axis=1)

    @cached_property
    def _running(self) -> Floats:
        """Covariances of the sums of the first blocks, with a first row and column of zeros, and a last one again."""
        sums = np.cumsum(np.cumsum(self._block_covariance, axis=0), axis=1)
        return np.pad(np.pad(sums, ((1, 0), (1, 0))), ((0, 1), (0, 1)), mode="edge")

    def _covariances(self, left: Integers, right: Integers) -> Floats:
        """Return the covariance of the sums of the first `left` and of the first `right` cells.

        Within a block it is the interpolation of the table at the blocks' ends, plus, if both ends are in one block,
        what the levels below add.

        `table` has the covariances of sums of whole blocks; `f` and `g` are the parts of the last blocks. In a common
        block, level l adds (overlap of both sums in its nodes, over w_l, less that of the level above) / e_l.

        a and b are the blocks in which the sums end, `first` and `last` the numbers of cells of these blocks in the
        sums.
        """
        width, table = self.widths[0], self._running
        (a, first), (b, last) = np.divmod(left, width), np.divmod(right, width)
        f, g = first / width, last / width
        # bilinear between the sums of whole blocks before and after the ends
        total = (1 - f) * ((1 - g) * table[a, b] + g * table[a, b + 1])
        total += f * ((1 - g) * table[a + 1, b] + g * table[a + 1, b + 1])

        shared, low, high = (a == b) & (a < self.blocks), np.minimum(first, last), np.maximum(first, last)
        # the share of level 0, which the interpolation contains already
        above = low * high / width
        for level in range(1, len(self.widths)):
            below = _overlaps(low, high, self.widths[level])
            total += np.where(shared, (below - above) / self._eigenvalues[level][np.minimum(a, self.blocks - 1)], 0.0)
            above = below
        return np.asarray(total)


def _overlaps(low: Integers, high: Integers, width: int) -> Floats:
    """Return Σ_v |v ∩ [0, low)| |v ∩ [0, high)| / width over nodes v of a width, for low ≤ high."""
    whole, rest = np.divmod(low, width)
    return np.asarray(whole * width + rest * np.minimum(high - whole * width, width) / width)
