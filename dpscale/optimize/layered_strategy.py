"""Strategies for pure ε on a wide axis: p-Identity on blocks of cells, and weighted sums of nodes within the blocks.

OPT0 for Laplace noise, A = [I; Θ]D with columns of L1 norm 1, needs matrices of cells × cells. On n cells in C blocks
of w₀, the identity is replaced by the levels of a regular tree within the blocks and Θ has an entry for a whole block:

    A = [a₀ S₀; …; a_L S_L; Θ S₀] D,   Σ a_l = 1,   D = 1/d on the cells of a block, d = 1 + column sums of Θ,

with S_l the sums over the nodes of level l, of w_l cells each. The levels have the eigenvalues e_l = Σ_{k≥l} a_k² w_k
(`plans.layered`). With t_l the traces of the workload's Gram matrix G in a block on the differences between nodes of
level l, and Θ' = (w₀/e₀)^½ Θ, the error is

    Σ_c d_c² Σ_l t_lc / e_l − tr[(I + Θ'Θ'ᵀ)⁻¹ Θ' diag(d) (S₀ G S₀ᵀ / (w₀ e₀)) diag(d) Θ'ᵀ],
    d = 1 + (e₀/w₀)^½ Σ_j Θ'_j,

so an evaluation costs p C² operations for any number of cells. The search is L-BFGS over Θ' and the logarithms of
the weights a, from seeded starts, for several divisions of the axis. With one cell in a block it is OPT0 itself.

*Names.* `widths` are the w_l, and `asked` the weighted families of the workload on the axis.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpscale.base.deadline import check_planning_time
from dpscale.base.numerics import Floats, optimize
from dpscale.plans.layered import LayeredFactor
from dpscale.workload.node_grams import Asked, node_gram, node_sums

FANS = (8, 16)  # nodes of a level in a node of the level above
FEWEST_BLOCKS, MOST_BLOCKS = 160, 640  # limits of the number of blocks of a division, each with a column of Θ'
BLOCKS_PER_ROW = 16  # blocks of the axis for one row of Θ'
SCALES = (1.0, 0.3)  # of the entries of Θ' at the starts
# of L-BFGS: most steps; relative decrease at which it ends; bound of the entries of Θ'
STEPS, FLAT, LARGEST = 300, 1e-9, 1e3
SPREAD = 2.0  # largest logarithm of the weight of a level over that of equal weights
BITS = 22  # of the weight of a level of a block with d = 1


@dataclass(frozen=True, eq=False)
class LayeredProblem:
    """Error of layered strategies of one division of an axis.

    Attributes
    ----------
    size : int
        Number of cells.
    widths : tuple of int
        Cells of a node of every level, from the blocks to the cells.
    asked : sequence of (Family, float)
        Weighted families of the workload on the axis.
    total : float
        Weight of the sum of all cells as a query.
    """

    size: int
    widths: tuple[int, ...]
    asked: Asked
    total: float = 0.0

    @property
    def blocks(self) -> int:
        return -(-self.size // self.widths[0])

    @cached_property
    def scale(self) -> float:
        """Trace of the Gram matrix."""
        return float(self._traces.sum())

    @cached_property
    def _lengths(self) -> Floats:
        """Number of cells of every block."""
        return np.asarray(np.minimum(self.size - np.arange(self.blocks) * self.widths[0], self.widths[0]), np.float64)

    @cached_property
    def _traces(self) -> Floats:
        """t, shape (levels, blocks).

        A sum of a node of w cells, over w, is the trace on vectors constant on the nodes; the difference to the level
        above is that on the differences between nodes. The total adds weight · (cells of the node)².
        """
        by_level = []
        for width in self.widths:
            sums = node_sums(self.asked, self.size, width)
            lengths = np.minimum(self.size - np.arange(len(sums)) * width, width)
            sums = (sums + self.total * lengths**2) / width
            by_level.append(np.pad(sums, (0, self.blocks * (self.widths[0] // width) - len(sums))))
        means = np.array([sums.reshape(self.blocks, -1).sum(axis=1) for sums in by_level])
        return np.diff(means, axis=0, prepend=0.0)

    @cached_property
    def _block_gram(self) -> Floats:
        """S₀ G S₀ᵀ, shape (blocks, blocks)."""
        gram = node_gram(self.asked, self.size, self.widths[0])
        return gram + self.total * np.outer(self._lengths, self._lengths)

    def error(self, rows: Floats, weights: Floats) -> tuple[float, Floats, Floats]:
        """Return the error with its derivatives by Θ' and by the weights of the levels.

        In the formula of the module, `column` is d, `stretch` (e₀/w₀)^½, `first` e₀, `diagonal` Σ_l t_l/e_l by block,
        and `removed` the trace that is subtracted. `by_value` has the derivatives by the eigenvalues e.

        Parameters
        ----------
        rows : ndarray, shape (p, blocks)
            Θ'.
        weights : ndarray, shape (levels,)
            a, of sum 1.
        """
        widths = np.array(self.widths, np.float64)
        eigenvalues = np.cumsum((weights**2 * widths)[::-1])[::-1]
        first, stretch = eigenvalues[0], np.sqrt(eigenvalues[0] / widths[0])
        column = 1 + stretch * rows.sum(axis=0)
        diagonal = (self._traces / eigenvalues[:, None]).sum(axis=0)
        inverse = np.linalg.inv(np.eye(len(rows)) + rows @ rows.T)
        weighted = inverse @ ((rows * column) @ (self._block_gram / (widths[0] * first)))
        scaled = weighted * column
        removed = float((scaled * rows).sum())

        by_column = 2 * (column * diagonal - (rows * weighted).sum(axis=0))
        by_rows = stretch * by_column - 2 * (scaled - (scaled @ rows.T) @ (inverse @ rows))
        by_value = -(self._traces @ column**2) / eigenvalues**2
        by_value[0] += removed / first + float(by_column @ rows.sum(axis=0)) * stretch / (2 * first)
        by_weights = 2 * weights * widths * np.cumsum(by_value)

        return float(column**2 @ diagonal) - removed, by_rows, by_weights

    def descend(self, start: Floats) -> tuple[float, Floats, Floats]:
        """Return the error, Θ' and the weights of the levels at the end of a descent from Θ' and equal weights.

        Variables are logarithms of the level weights, whose softmax (`_shares`) has sum 1, and Θ'. The slope by a
        logarithm is w_l (∂w_l − Σ w ∂w), the derivative of the softmax.
        """
        levels = len(self.widths)

        def function(flat: Floats) -> tuple[float, Floats]:
            """Return the scaled error and its slope, by the logarithms of the weights and then by the rows."""
            check_planning_time()
            weights = _shares(flat[:levels])
            value, by_rows, by_weights = self.error(flat[levels:].reshape(start.shape), weights)
            by_logarithm = weights * (by_weights - by_weights @ weights)
            return value / self.scale, np.concatenate([by_logarithm, by_rows.reshape(-1)]) / self.scale

        end = optimize.minimize(
            function, np.concatenate([np.zeros(levels), start.reshape(-1)]), jac=True, method="L-BFGS-B",
            bounds=[(-SPREAD, SPREAD)] * levels + [(0.0, LARGEST)] * start.size,
            options={"maxiter": STEPS, "maxfun": 2 * STEPS, "ftol": FLAT, "gtol": 0.0},
        )  # fmt: skip
        return float(end.fun) * self.scale, end.x[levels:].reshape(start.shape), _shares(end.x[:levels])

    def factor(self, rows: Floats, weights: Floats) -> LayeredFactor:
        """Return the integer strategy near Θ' and weights of the levels.

        Θ = (e₀/w₀)^½ Θ' with e₀ = Σ a_l² w_l (`first`), and columns are divided by d = 1 + column sums of Θ.
        """
        first = weights**2 @ np.array(self.widths, np.float64)
        rows = rows[rows.any(axis=1)] * np.sqrt(first / self.widths[0])
        scale = np.ldexp(1 / (1 + rows.sum(axis=0)), BITS)
        top, multipliers = np.rint(rows * scale), np.maximum(np.rint(weights[:, None] * scale), 1)
        top, multipliers = (np.ascontiguousarray(values, np.int64) for values in (top, multipliers))
        return LayeredFactor("layered", (self.size,), top=top, multipliers=multipliers, widths=self.widths)


def _shares(logarithms: Floats) -> Floats:
    values = np.exp(logarithms - logarithms.max())
    return np.asarray(values / values.sum())


def divisions(size: int) -> Iterator[tuple[int, ...]]:
    """Yield the widths of the levels of several divisions of an axis into blocks, which are divided evenly.

    `fans` are the numbers of parts of a node on successive levels, not decreasing or not increasing; the number of
    blocks has limits.
    """
    if size < FEWEST_BLOCKS * min(FANS):
        yield (1,)
    depth = 1
    while min(FANS) ** depth * FEWEST_BLOCKS <= size:
        for fans in itertools.product(FANS, repeat=depth):
            widths = tuple(int(width) for width in np.cumprod((1, *fans)))[::-1]
            ordered = list(fans) in (sorted(fans), sorted(fans, reverse=True))
            if ordered and FEWEST_BLOCKS <= -(-size // widths[0]) <= MOST_BLOCKS:
                yield widths
        depth += 1


def optimise_layers(size: int, asked: Asked, total: float = 0.0, seed: int = 0) -> LayeredFactor:
    """Return the best layered strategy for pure ε on an axis among several divisions and seeded starts.

    Parameters
    ----------
    size : int
        Number of cells, above `workload.wide.DENSE`.
    asked : sequence of (Family, float)
        Weighted families of the workload on the axis.
    total : float
        Weight of the sum of all cells as a query.
    seed : int

    Raises
    ------
    PlanError
        If a family is not supported on a wide axis.
    """
    ends = [
        _best_end(LayeredProblem(size=size, widths=widths, asked=asked, total=total), seed)
        for widths in divisions(size)
    ]
    _, problem, rows, weights = min(ends, key=lambda end: end[0])
    return problem.factor(rows, weights)


def _best_end(problem: LayeredProblem, seed: int) -> tuple[float, LayeredProblem, Floats, Floats]:
    """Return the best of several descents from random starts of different scales: error, problem, rows and weights."""
    generator = np.random.default_rng(seed)
    count = problem.blocks // BLOCKS_PER_ROW
    starts: Sequence[Floats] = [generator.random((count, problem.blocks)) * scale for scale in SCALES]
    error, rows, weights = min((problem.descend(start) for start in starts), key=lambda end: end[0])
    return error, problem, rows, weights
