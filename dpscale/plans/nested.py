"""Two-level strategy on a wide axis: K = [K₁S; ⊕K₂], where S sums blocks of neighbouring cells.

K₁ is centred by the weights u¹ of the blocks and K₂ by the weights u² within a block, so the rows are exactly
orthogonal to u = u¹ ⊗ u². The estimates between and within blocks are independent: with Z spreading block totals by u²,
    estimate = Z K₁⁺ y₁ + ⊕K₂⁺ y₂,   covariance = Z C₁ Zᵀ + ⊕C₂.
No array of shape (cells, cells) is computed. A sum over cells l … h − 1 is P(h) − P(l), and P(i) is a mean of two sums
of whole blocks plus a sum within one block (`workload.wide`); variances of interval queries are read from two small
tables.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dpscale.base.numerics import Floats, Integers, NDArray
from dpscale.plans.factor import Factor, ImplicitFactor
from dpscale.workload import Family
from dpscale.workload.wide import BlockRun, Cut, block_sums, cut_of, runs_of


@dataclass(frozen=True, eq=False)
class NestedFactor(ImplicitFactor):
    """Two-level strategy of the kind "nested".

    Attributes
    ----------
    top : Factor
        K₁ on the blocks.
    inner : tuple of Factor
        K₂ of every run of blocks of equal size.
    """

    top: Factor | None = None
    inner: tuple[Factor, ...] = ()

    def __post_init__(self) -> None:
        """Raise ValueError unless the parts match the division of the axis by `runs_of`.

        A run is successive blocks of equal size. The top factor has a cell for each block of all runs. Each run has one
        inner factor, on the cells of a block, which serves all blocks of the run. Weights, if there are any, are one
        number for each cell of the axis.
        """
        runs = runs_of(self.cells)
        if (
            self.kind != "nested"
            or self.top is None
            or self.top.cells != sum(run.count for run in runs)
            or [factor.cells for factor in self.inner] != [run.size for run in runs]
            or any(len(weights or ()) != self.cells for weights in self.weights or ())
        ):
            raise ValueError("the parts of a nested factor do not match its blocks")

    @property
    def runs(self) -> tuple[BlockRun, ...]:
        return runs_of(self.cells)

    @cached_property
    def parts(self) -> tuple[Factor, ...]:
        assert self.top is not None
        return self.top, *self.inner

    @cached_property
    def cut(self) -> Cut:
        return cut_of(self.cells, None if self.weights is None else self.weights[0])[0]

    @property
    def rows(self) -> int:
        return self.parts[0].rows + sum(run.count * factor.rows for run, factor in self._each)

    @cached_property
    def digest(self) -> str:
        content = "".join([self.kind, str(self.shape), *(factor.digest for factor in self.parts)])
        return hashlib.sha256(content.encode()).hexdigest()

    @property
    def spans_all(self) -> bool:
        return all(factor.spans_all for factor in self.parts)

    @cached_property
    def squared_l2_sensitivity(self) -> int:
        """Largest sum of the squared norms of a block's column and an inner column; each pair belongs to some cell."""
        return max(top + factor.squared_l2_sensitivity for top, factor in self._largest_of(2))

    @cached_property
    def l1_sensitivity(self) -> int:
        return max(top + factor.l1_sensitivity for top, factor in self._largest_of(1))

    @cached_property
    def largest(self) -> int:
        return max(factor.largest for factor in self.parts)

    @cached_property
    def largest_row_sum(self) -> int:
        """Largest sum of absolute entries in a row; K₁S repeats the entry of a block at each of the block's cells.

        K₁ (parts[0]) measures blocks of neighbouring cells, and S sums the cells of each (`cut.lengths` cells); the
        inner factors measure within a block. Python integers do not overflow.
        """
        lengths = self.cut.lengths.astype(object)
        top = max(int(np.abs(row.astype(object)) @ lengths) for row in self.parts[0].explicit())
        return max(top, *(factor.largest_row_sum for factor in self.inner))

    def apply(self, values: NDArray[Any], parts: tuple[NDArray[Any], ...] | None = None) -> NDArray[Any]:
        """Return K applied along the leading axis; `parts` replaces the matrices K₁ and K₂.

        Rows come in this order: those of K₁ on the block sums, and then, run by run, the rows of K₂ of each block.
        """
        top, *inner = parts or tuple(factor.explicit() for factor in self.parts)
        products, start = [np.tensordot(top, block_sums(values, self.cells), axes=(1, 0))], 0
        for run, matrix in zip(self.runs, inner, strict=True):
            blocks = values[start : start + run.count * run.size].reshape(run.count, run.size, *values.shape[1:])
            product = np.moveaxis(np.tensordot(matrix, blocks, axes=(1, 1)), 0, 1)
            products.append(product.reshape(-1, *values.shape[1:]))
            start += run.count * run.size
        return np.concatenate(products)

    def estimate(self, values: Floats, axis: int = 0) -> Floats:
        """Return the estimate of the cells along `axis`; the axis is moved to the end.

        Values are those of the top factor on blocks, then of an inner factor within each block. Runs are successive
        blocks of equal length with the same inner factor. `parts[0]` measures the blocks; `_starts` are the first cells
        of the runs, and `_spread_blocks` spreads estimates of blocks over their cells.
        """
        values = np.moveaxis(values, axis, 0)
        blocks = np.tensordot(self.parts[0].inverse, values[: self.parts[0].rows], axes=(1, 0))
        cells, start = self._spread_blocks(blocks), self.parts[0].rows

        for begin, (run, factor) in zip(self._starts, self._each, strict=True):
            rows = values[start : start + run.count * factor.rows].reshape(run.count, factor.rows, *values.shape[1:])
            within_blocks = np.moveaxis(np.tensordot(factor.inverse, rows, axes=(1, 1)), 0, 1)
            cells[begin : begin + run.count * run.size] += within_blocks.reshape(-1, *values.shape[1:])
            start += run.count * factor.rows
        return np.moveaxis(cells, 0, -1)

    def apply_covariance(self, values: Floats) -> Floats:
        """Return the covariance applied along the second axis; the axis is moved to the end.

        Z C₁ Zᵀ applied to values: sums over the blocks weighted by u² (Zᵀ), C₁, and spreading by u² (Z). To it comes C₂
        within each block. C₁ is the covariance of the estimates of the blocks (parts[0]), C₂ that within a block;
        `_starts` are the first cells of the runs of equal blocks, `_within` has u².
        """
        first = np.moveaxis(values, 1, 0)
        flat = first.reshape(self.cells, -1)
        sums_of_blocks = block_sums(flat * self._within[:, None], self.cells)
        cells = self._spread_blocks(self.parts[0].covariance @ sums_of_blocks)

        for begin, (run, factor) in zip(self._starts, self._each, strict=True):
            end = begin + run.count * run.size
            cells[begin:end] += np.asarray(
                factor.covariance @ flat[begin:end].reshape(run.count, run.size, -1)
            ).reshape(end - begin, -1)

        return np.moveaxis(cells.reshape(first.shape), 0, -1)

    def project(self, pieces: Floats) -> Floats:
        """Return the parts of queries, shape (…, cells), in the row space of the strategy.

        The part between blocks has Zᵀq on the blocks, projected by K₁⁺K₁ and repeated on the cells; the part within
        blocks is projected by K₂⁺K₂ of each block. K₁ (parts[0]) measures the blocks and K₂ (the factors in `_each`)
        the cells within one; X⁺ is a pseudoinverse, `inverse`, and Z spreads the total of a block over its cells by the
        weights u² (`_within`).
        """
        if self.spans_all:
            return pieces

        flat, top = pieces.reshape(-1, self.cells), self.parts[0]
        blocks = block_sums((flat * self._within).T, self.cells).T @ top.inverse @ top.explicit()
        projected = np.repeat(blocks, self.cut.lengths, axis=1)

        for begin, (run, factor) in zip(self._starts, self._each, strict=True):
            end = begin + run.count * run.size
            within_blocks = flat[:, begin:end].reshape(-1, run.count, run.size) @ factor.inverse @ factor.explicit()
            projected[:, begin:end] += within_blocks.reshape(len(flat), -1)

        return np.asarray(projected.reshape(pieces.shape))

    def quadratics(self, family: Family) -> Floats:
        low, high = family.intervals(self.cells)
        return self._covariances(high, high) + self._covariances(low, low) - 2 * self._covariances(low, high)

    def trace(self, family: Family) -> float:
        """Return the sum of the variances of all queries of a family: that on blocks, and that within the blocks."""
        total = float((family.block_gram(self.cut) * self.parts[0].covariance).sum())
        for run, factor in self._each:
            total += run.count * float((family.inner_gram(self.cut, run) * factor.covariance).sum())
        return total

    @property
    def mean_variance(self) -> float:
        squares = np.add.reduceat(self._within**2, np.cumsum([0, *self.cut.lengths[:-1]]))
        total = float(squares @ np.diag(self.parts[0].covariance))
        return (total + sum(run.count * float(np.trace(factor.covariance)) for run, factor in self._each)) / self.cells

    @property
    def is_product(self) -> bool:
        return True

    def sums_covariance(self, ends: Integers) -> Floats:
        left, right = np.broadcast_arrays(ends[:, None], ends)
        return np.diff(np.diff(self._covariances(left, right), axis=0), axis=1)

    @property
    def _each(self) -> list[tuple[BlockRun, Factor]]:
        return list(zip(self.runs, self.inner, strict=True))

    @property
    def _starts(self) -> list[int]:
        """First cell of every run."""
        return [0, *(run.count * run.size for run in self.runs[:-1])]

    @cached_property
    def _within(self) -> Floats:
        """u² on every cell."""
        return self.cut.spread(np.ones(self.parts[0].cells))

    def _spread_blocks(self, blocks: Floats) -> Floats:
        """Return Z applied to block totals; shape (cells, …)."""
        spread = np.repeat(blocks, self.cut.lengths, axis=0)
        return np.asarray(spread * self._within.reshape(-1, *[1] * (blocks.ndim - 1)))

    def _largest_of(self, power: int) -> Iterator[tuple[int, Factor]]:
        """Yield for each run the largest norm of a block's column of K₁, L1 or squared L2, and the inner factor.

        All columns of a run's blocks occur with each inner column, so the largest norms of both add.
        """
        matrix, start = self.parts[0].explicit(), 0
        for run, factor in self._each:
            columns = Factor("matrix", (run.count,), np.ascontiguousarray(matrix[:, start : start + run.count]))
            yield columns.l1_sensitivity if power == 1 else columns.squared_l2_sensitivity, factor
            start += run.count

    @cached_property
    def _tables(self) -> tuple[Floats, list[Floats]]:
        """Covariances of sums of the first blocks, and by run those of sums of the first cells of a block."""
        return _running(self.parts[0].covariance), [_running(factor.covariance) for factor in self.inner]

    @cached_property
    def _places(self) -> tuple[Integers, Integers, Floats]:
        """For i = 0 … n: the block in which P(i) ends, its number of cells inside P(i), and their part of u²."""
        lengths = self.cut.lengths
        starts = np.cumsum(lengths) - lengths
        block = np.searchsorted(starts, np.arange(self.cells + 1), side="right") - 1
        within = np.arange(self.cells + 1) - starts[block]
        before = np.concatenate([[0.0], np.cumsum(self._within)])
        return block, within, before - before[starts][block]

    def _covariances(self, left: Integers, right: Integers) -> Floats:
        """Return the covariance of P(left) and P(right), the sums of the first `left` and of the first `right` cells.

        It is interpolated between the blocks' ends; for two ends in one block, the covariance within the block is
        added.

        P(i) = (1 − f) T(b) + f T(b + 1) between blocks, with the sums T of the first b blocks and the part f of u²
        before i; `blocks` is the covariance of the T, `a`, `b` are the blocks and `f`, `g` the parts of left and right.
        """
        block, within, part = self._places
        blocks, inner = self._tables
        a, b, f, g = block[left], block[right], part[left], part[right]
        total = (1 - f) * ((1 - g) * blocks[a, b] + g * blocks[a, b + 1])
        total += f * ((1 - g) * blocks[a + 1, b] + g * blocks[a + 1, b + 1])
        first = self.runs[0].count

        for table, of_run in zip(inner, (a < first, a >= first), strict=False):
            same = of_run & (a == b)
            total[same] += table[within[left][same], within[right][same]]

        return np.asarray(total)


def _running(covariance: Floats) -> Floats:
    """Return two-sided cumulative sums with a first row and column of zeros."""
    return np.pad(np.cumsum(np.cumsum(covariance, axis=0), axis=1), ((1, 0), (1, 0)))
