"""Lower bound on the error of every matrix mechanism for the levels of a tree, for any tree and at any size.

For a Gram matrix G on the leaves and weights λ ≥ 0 of the leaves, Σλ = 1, every strategy of sensitivity 1 has error at
least (tr M^½)², M = Λ^½ G Λ^½ (dual of the matrix mechanism). The trace follows from determinants:

    tr M^½ = (1/π) ∫₀^∞ log det(I + M/t²) dt.

G = Σ_l ω_l A_lᵀA_l is a sum of one rank-one matrix for each node, so the determinant is a product over the nodes: with
h_v = λ_v at a leaf and Σ F_c over the children otherwise,

    log det = Σ_v log(1 + ω_l h_v / t²),   F_v = h_v / (1 + ω_l h_v / t²)   (matrix determinant lemma,
    Sherman–Morrison).

With t = exp(u) the trapezoid rule of step h has relative error below 2 exp(−π²/h) / (1 − exp(−π²/h)) for every
eigenvalue, and what lies beyond its ends only adds. The bound is exact up to that factor, by which it is reduced.
Several residuals share the leaves' weights: the bound is (Σ_τ s_τ tr M_τ^½)², with s_τ² the bound of the other axes,
and for a sum of Kronecker terms in a residual s_τ² (tr M_τ^½)² is their sum, since the bound is superadditive.
The trace is concave in λ. λ_j ← (M^½)_jj is the fixed point of its maximum over Σλ = 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from dpscale.base.numerics import Floats
from dpscale.optimize.tree_classes import NodeClasses
from dpscale.workload.residual import kron

STEP = 0.3
ERROR = 2 * math.exp(-(math.pi**2) / STEP) / (1 - math.exp(-(math.pi**2) / STEP)) + 1e-10  # quadrature and rounding
BELOW, ABOVE = 18.0, 16.0  # ends of the rule, in logarithms, beyond the roots of the least and the largest eigenvalue
ROUNDS, GAIN = 40, 1e-4
PRODUCTS, DENSE, LEAST = 4, 1024, 1e-300


@dataclass(frozen=True, eq=False)
class TreeGram:
    """Term of the Gram matrix of a residual: level weights, and the bound of the other axes.

    Attributes
    ----------
    weights : tuple of float
        ω_l of every level, from the root.
    scale : float
        Bound s² of the Gram matrix on the other axes.
    known : int
        Level whose nodes are known exactly; −1 if there is none.
    """

    weights: tuple[float, ...]
    scale: float = 1.0
    known: int = -1


def tree_bound(classes: NodeClasses, residuals: Sequence[Sequence[TreeGram]], rounds: int = ROUNDS) -> float:
    """Return a lower bound on the error of every matrix mechanism of sensitivity 1.

    Parameters
    ----------
    classes : NodeClasses
    residuals : sequence of sequence of TreeGram
        Terms of the Gram matrix of each residual; the bounds (tr M^½)² of several terms add.
    rounds : int
        Largest number of improvements of the leaves' weights.

    Returns
    -------
    float
    """
    counts, best = classes.counts[-1], 0.0
    weights = np.full(len(counts), 1 / counts.sum())
    for _ in range(rounds):
        value, slope = 0.0, np.zeros(len(counts))
        for terms in residuals:
            traces = [(one.scale, *_known_trace(classes, one, weights)) for one in terms]
            own = math.sqrt(sum(scale * trace**2 for scale, trace, _ in traces))
            value += own
            slope = slope + sum(
                (scale * trace / max(own, LEAST) * gradient for scale, trace, gradient in traces), np.zeros(())
            )
        bound = (value * (1 - ERROR)) ** 2
        if bound <= best * (1 + GAIN):
            return max(best, bound)
        best, moved = bound, weights * slope
        weights = moved / float(counts @ moved)
    return best


def _known_trace(classes: NodeClasses, gram: TreeGram, leaves: Floats) -> tuple[float, Floats]:
    """Return the trace for what remains of the leaves if the nodes of a level are known, and a slope.

    With C the projection that spreads the sum of each known node evenly, tr is the nuclear norm of FΛ^½ − F C Λ^½, at
    least that of FΛ^½ less Σ_p √(g_p λ_p) over the known nodes p, g_p = Σ_v ω_l (n_v / n_p)² over the nodes below p.
    """
    if gram.known < 0:
        return root_trace(classes, gram.weights, leaves)
    weights = [0.0] * (gram.known + 1) + list(gram.weights[gram.known + 1 :])
    trace, slope = root_trace(classes, weights, leaves)
    counts, squares, shares = np.ones(len(leaves)), np.full(len(leaves), weights[-1]), leaves
    for level in range(classes.depth - 1, gram.known - 1, -1):
        children = classes.children[level]
        counts, shares = children @ counts, children @ shares
        squares = children @ squares + weights[level] * counts**2
    removed = np.sqrt(squares / counts**2 * shares)
    return max(trace - float(classes.counts[gram.known] @ removed), 0.0), slope


def root_trace(classes: NodeClasses, weights: Sequence[float], leaves: Floats) -> tuple[float, Floats]:
    """Return tr M^½ and its derivative by the weight of one leaf of every class.

    Parameters
    ----------
    classes : NodeClasses
    weights : sequence of float
        ω_l of every level, from the root.
    leaves : ndarray
        λ of a leaf of every class.
    """
    points = _points(classes, weights, leaves)
    squared, step = np.exp(2 * points), STEP * np.exp(points) / math.pi
    heights, total = list[Floats](), np.zeros(len(points))
    height = np.repeat(leaves[:, None], len(points), axis=1)
    for level in range(classes.depth, -1, -1):
        heights.append(height)
        ratio = weights[level] * height / squared
        total += classes.counts[level] @ np.log1p(ratio)
        if level:
            height = classes.children[level - 1] @ (height / (1 + ratio))
    return float(total @ step), _leaf_slopes(classes, weights, heights[::-1], squared, step)


def _points(classes: NodeClasses, weights: Sequence[float], leaves: Floats) -> Floats:
    """Return the points u of the rule."""
    largest = sum(weights)  # of the eigenvalues of M: each level is a sum of orthogonal vectors of norm² at most 1
    least = max(weights[-1] * float(leaves.min(initial=1.0, where=leaves > 0)), largest * 1e-30)
    low, high = 0.5 * math.log(least) - BELOW, 0.5 * math.log(largest) + ABOVE
    return np.asarray(np.arange(low, high, STEP))


def _leaf_slopes(
    classes: NodeClasses, weights: Sequence[float], heights: Sequence[Floats], squared: Floats, step: Floats
) -> Floats:
    """Return the derivative of the trace by the weight of one leaf of each class: the reverse of the pass upwards."""
    passed = np.zeros((1, len(squared)))
    slope = passed
    for level, height in enumerate(heights):
        ratio = 1 + weights[level] * height / squared
        slope = classes.counts[level][:, None] * (weights[level] / squared) / ratio * step + passed / ratio**2
        if level < classes.depth:
            passed = classes.copies[level][:, None] * slope[classes.parents[level]]
    return np.asarray(slope.sum(axis=1) / classes.counts[-1])


def product_bound(classes: Sequence[NodeClasses], table: Floats) -> float:
    """Return a lower bound for the Gram matrix Σ t_l ⊗ A_lᵀA_l over combinations l of levels of several trees.

    A product of level weights that is nowhere above the table has the product of the trees' bounds, and the bounds of
    such products add. If the product is above the table at the roots alone, by r, then the trace of the root is at
    least that of the product less √r, since tr (A + B)^½ ≤ tr A^½ + tr B^½.

    Parameters
    ----------
    classes : sequence of NodeClasses
        Of each tree.
    table : ndarray
        Weights t ≥ 0, with an axis over the levels of each tree.
    """
    if math.prod(one.tree.sizes[-1] for one in classes) <= DENSE:
        return _dense_bound(classes, table)
    left, total, root = table.copy(), 0.0, (0,) * table.ndim
    for _ in range(PRODUCTS):
        if left.max() <= table.max() * 1e-9:
            break
        sides = _product_below(left, root)
        product = np.asarray(reduce(np.multiply.outer, sides, np.ones(())))
        bounds = (tree_bound(one, [[TreeGram(tuple(own.tolist()))]]) for one, own in zip(classes, sides, strict=True))
        excess = max(float(product[root] - left[root]), 0.0)
        total += max(math.sqrt(math.prod(bounds)) - math.sqrt(excess), 0.0) ** 2
        left = np.maximum(left - product, 0.0)
    return total


def _product_below(table: Floats, free: tuple[int, ...]) -> list[Floats]:
    """Return the sides of a product that is nowhere above a table, except at one entry, and touches it in every row."""
    best, limits = list[Floats](), table.copy()
    limits[free] = math.inf
    for start in np.argwhere(table > 0).tolist():
        lines = [table[tuple(slice(None) if i == axis else at for i, at in enumerate(start))]
                 for axis in range(table.ndim)]  # fmt: skip
        sides = [line / line[start[axis]] if axis else line for axis, line in enumerate(lines)]
        for axis in range(table.ndim):
            rest = reduce(np.multiply.outer, [side for i, side in enumerate(sides) if i != axis], np.ones(()))
            moved = np.moveaxis(limits, axis, 0)
            ratio = np.where(rest > 0, moved / np.where(rest > 0, rest, 1.0), math.inf)
            least = ratio.reshape(len(moved), -1).min(axis=1)
            sides[axis] = np.where(np.isfinite(least), least, sides[axis])
        if not best or math.prod(float(side.sum()) for side in sides) > math.prod(float(own.sum()) for own in best):
            best = sides
    return best


def _dense_bound(classes: Sequence[NodeClasses], table: Floats) -> float:
    """Return the bound of few cells, with weights of the cells that are no product."""
    levels = [[own.T.astype(np.float64) for own in one.tree.sums(np.eye(one.tree.sizes[-1]))] for one in classes]
    size = math.prod(one.tree.sizes[-1] for one in classes)
    gram = np.zeros((size, size))
    for place in np.argwhere(table > 0).tolist():
        rows = kron([own[level] for own, level in zip(levels, place, strict=True)])
        gram += float(table[tuple(place)]) * (rows @ rows.T)
    weights, best = np.full(size, 1 / size), 0.0
    for _ in range(ROUNDS):
        root = np.sqrt(weights)
        values, vectors = np.linalg.eigh(root[:, None] * gram * root)
        roots = np.sqrt(np.maximum(values, 0.0))
        bound = float(roots.sum() * (1 - ERROR)) ** 2
        if bound <= best * (1 + GAIN):
            break
        best = bound
        weights = (vectors**2 @ roots) / float(roots.sum())
    return best
