"""How an optimum moves with its Gram: ∂L/∂G = Y, by the envelope theorem.

L = max over μ of (tr M^½)², M = F D Fᵀ, D = diag(μ): at the best μ the first change of L is (tr M^½) tr(M^−½ F̃ …), that
is tr(Y dG) with Y = tr M^½ · D Fᵀ M^{−3/2} F D, as long as the rank of G stays: pieces of weights u always leave u out.
"""

from __future__ import annotations

import numpy as np

from dpscale.base.arrays import Floats
from dpscale.optimize.barrier import Point
from dpscale.optimize.convex import Optimum
from dpscale.optimize.symmetry import SymmetryBlocks, split

LEAST = 1e-14


def slope(rows: Floats, shape: tuple[int, ...], optimum: Optimum) -> Floats:
    """Y of the problem of `rows` (r, cells) at its optimum: (cells, cells)."""
    blocks = split(rows, shape)
    point = Point(blocks, optimum.weights)
    cells = _on_cells(optimum, blocks)
    parts = [
        blocks.expand(block, np.maximum(values, values.max() * LEAST)[:, None] ** -0.75 * turned) * cells
        for block, values, turned in zip(blocks.blocks, point.values, point.turned, strict=True)
    ]
    stacked = np.concatenate(parts)
    return np.asarray(point.trace * stacked.T @ stacked)


def cell_weights(rows: Floats, shape: tuple[int, ...], optimum: Optimum) -> Floats:
    """μ on every cell, where the optimum has it on the orbits of the problem's symmetries."""
    return _on_cells(optimum, split(rows, shape))


def dual(rows: Floats, weights: Floats) -> float:
    """(tr M^½)² at some weights of the cells: no strategy for the Gram of the rows goes below."""
    return float(np.linalg.svd(rows * np.sqrt(weights), compute_uv=False).sum() ** 2)


def _on_cells(optimum: Optimum, blocks: SymmetryBlocks) -> Floats:
    return np.asarray((optimum.weights / np.bincount(blocks.orbit))[blocks.orbit])
