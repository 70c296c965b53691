"""Strategies and error bounds for the levels of a tree, computed on classes of equivalent nodes.

*Classes.*
Two siblings are equivalent if the trees below them have the same shape. Exchanging them changes neither the workload of
all levels nor its error, and the error is convex in the precisions, so an optimal strategy treats them alike. A class
is a set of nodes that such exchanges map to each other. A tree of 144,563 places in 4,547 regions has 1,795 classes of
leaves.

*Strategies.*
Node v of level l is measured with precision w_v. A leaf contributes to the nodes above it, so one record costs
Σ w_v over the path of its leaf, at most 1. With Gram matrix Σ ω_l A_lᵀA_l the error is

    f(w) = Σ_l ω_l Σ_{v in l} P_v,

where P_v is the variance of the least squares estimate of node v, computed by two passes over the tree. V_v is the
variance of the estimate of v from the measurements below and at v:

    up:    S_v = Σ_c V_c,   V_v = 1 / (w_v + 1 / S_v)        down:   g_c = V_c / S_v,   P_c = V_c − V_c g_c + g_c² P_v.

A node uses the share φ_v of the budget that its ancestors leave, and leaves use all of it, so every path costs exactly
1. The shares, one for each group of classes of similar size, are found by L-BFGS with the exact gradient, which is the
reverse of the two passes. One share for each class gains less than 10⁻⁴ and takes ten times as long at 10⁶ leaves.

*Bounds.*
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
from functools import cached_property, reduce
from typing import Any

import numpy as np

from dpscale.base.numerics import Floats, Integers, LazyModule, NDArray, optimize, special
from dpscale.domain.hierarchy import Tree
from dpscale.plans.tree import TreePasses
from dpscale.workload.residual import kron

OCTAVE = 8  # groups of sizes that differ by a factor of two
sparse: Any = LazyModule("scipy.sparse")


@dataclass(frozen=True, eq=False)
class NodeClasses(Tree):
    """Tree of the classes of nodes of a tree: a class of a level is below one class of the level above.

    Attributes
    ----------
    tree : Tree
    of : tuple of ndarray of int64
        Class of every node of each level.
    copies : tuple of ndarray of float64
        For each level below the root, the number of nodes of a class below one parent.
    counts : tuple of ndarray of float64
        Number of nodes of each class, by level from the root.
    """

    tree: Tree
    of: tuple[Integers, ...]
    copies: tuple[Floats, ...]
    counts: tuple[Floats, ...]

    def sum_children(self, values: NDArray[Any], level: int) -> NDArray[Any]:
        """Return the sums of the values of level + 1 over the children of a node of each class of a level."""
        return np.asarray(self.children[level] @ values)

    @cached_property
    def children(self) -> tuple[Any, ...]:
        """For each level above the leaves, the sparse matrix that sums children: classes × classes of children."""
        pairs = zip(self.parents, self.copies, self.counts, strict=False)
        return tuple(
            sparse.csr_matrix((copies, (parents, np.arange(len(parents)))), shape=(len(above), len(parents)))
            for parents, copies, above in pairs
        )

    @cached_property
    def groups(self) -> tuple[Integers, int]:
        """Group of each class above the leaves, all levels in one array from the root, and the number of groups.

        A group has the classes of a level with about the same numbers of children and of leaves for each child.

        `number` is the number of children of a node and `below / number` its leaves per child; both are rounded to
        eighths of an octave (OCTAVE steps per factor of two), and equal pairs of a level form a group.
        """
        groups, start = list[Integers](), 0
        for below, child in zip(self.leaf_counts, self.children, strict=False):
            number = np.asarray(child.sum(axis=1)).reshape(-1)
            key = np.rint(OCTAVE * np.log2(np.stack([number, below / number], axis=1)))
            _, group = np.unique(key, axis=0, return_inverse=True)
            groups.append(group.reshape(-1) + start)
            start = int(groups[-1].max()) + 1

        return np.concatenate([np.zeros(0, np.int64), *groups]), start

    def expand(self, values: Sequence[Any]) -> list[Any]:
        """Return the values of all nodes, by level, from the values of the classes."""
        return [value[classes] for value, classes in zip(values, self.of, strict=True)]


def classes_of(tree: Tree) -> NodeClasses:
    """Return the classes of equivalent nodes of a tree.

    A class is a pair (class of the parent, shape of the tree below), numbered as one integer `key`. `copies` are nodes
    of the class divided by nodes of its parent's class.

    `of[level]` is the class of each node of a level, `parents` that of each class's parent, and `counts` the number of
    nodes.
    """
    shapes = _shapes(tree)
    of, parents, counts = [np.zeros(1, np.int64)], list[Integers](), [np.ones(1)]
    for level, above in enumerate(tree.parents):
        # both numbers as one integer
        key = of[level][above] * (int(shapes[level + 1].max()) + 1) + shapes[level + 1]
        _, first, classes, number = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
        parents.append(of[level][above[first]])
        of.append(classes.astype(np.int64))
        counts.append(number.astype(np.float64))

    copies = tuple(below / counts[level][parents[level]] for level, below in enumerate(counts[1:]))
    return NodeClasses(parents=tuple(parents), tree=tree, of=tuple(of), copies=copies, counts=tuple(counts))


def _shapes(tree: Tree) -> list[Integers]:
    """Return for the nodes of every level a number that is equal for nodes with equal trees below them.

    From the leaves up: the shape of a node is the list of (shape, number) of its children, sorted by shape. `runs` has
    these pairs for all nodes, `node` the place where each parent's list begins, and `known` numbers distinct lists.
    """
    shapes = [np.zeros(tree.sizes[-1], np.int64)]
    for level in range(tree.depth - 1, -1, -1):
        parents, below = tree.parents[level], shapes[-1]
        order = np.lexsort((below, parents))
        pairs = np.stack([parents[order], below[order]])
        starts = np.flatnonzero(np.append(True, (np.diff(pairs) != 0).any(axis=0)))
        runs = np.stack([pairs[1, starts], np.diff(np.append(starts, len(order)))])  # shape and number of children
        node = np.flatnonzero(np.append(True, np.diff(pairs[0, starts]) != 0))
        known: dict[bytes, int] = {}
        ends = np.append(node[1:], len(starts)).tolist()
        shapes.append(np.array([known.setdefault(runs[:, first:end].tobytes(), len(known))
                                for first, end in zip(node.tolist(), ends, strict=True)], np.int64))  # fmt: skip

    return shapes[::-1]


MOST_LOGIT = 12.0  # bound of the logits of shares, which are then between 6e-6 and 1 − 6e-6
ROUNDS, TOLERANCE = 300, 1e-7  # of L-BFGS: most steps; ftol on the logarithm of the error, at which it ends
BITS, SPREAD_BITS = 13, 18  # of the multiplier of a node that uses the whole budget, and of the sum of weights


@dataclass(frozen=True, eq=False)
class TreeOptimum:
    """Precisions of the classes of nodes.

    Attributes
    ----------
    logits : ndarray
        Shares φ of the groups of classes, as logits, from which a search of a similar problem can start.
    precisions : tuple of ndarray
        Precision of the nodes of each class, by level from the root; the sum over every path is 1.
    variances : tuple of ndarray
        Variance of the estimates of the nodes of each class, by level.
    """

    logits: Floats
    precisions: tuple[Floats, ...]
    variances: tuple[Floats, ...]


def best_precisions(
    classes: NodeClasses, weights: Sequence[float], start: Floats | None = None, known: int = -1
) -> TreeOptimum:
    """Return the precisions of least weighted error.

    Parameters
    ----------
    classes : NodeClasses
    weights : sequence of float
        ω_l of every level, from the root; that of the leaves is positive.
    start : ndarray, optional
        Logits of the solution of a similar problem.
    known : int
        Level whose nodes are known exactly, so that only nodes below are measured; −1 if there is none.

    Returns
    -------
    TreeOptimum
    """
    problem = _Problem(
        classes, [weight * number for weight, number in zip(weights, classes.counts, strict=True)], known
    )
    first = problem.even if start is None else start
    if not len(first):
        return problem.optimum(first)

    bounds = [(-MOST_LOGIT, MOST_LOGIT)] * len(first)
    limits = {"maxiter": ROUNDS, "ftol": TOLERANCE, "gtol": 0.0}
    end = optimize.minimize(problem, first, jac=True, method="L-BFGS-B", bounds=bounds, options=limits)
    return problem.optimum(np.asarray(end.x))


def integer_multipliers(classes: NodeClasses, precisions: Sequence[Floats], root: bool = True) -> list[Integers]:
    """Return integers m with m² close to multiples of the precisions of all nodes, by level from the root.

    The leaves use what the levels above leave of the same budget, so all paths cost almost the same.

    `left` is the budget, 2^(2 BITS) in units of m², that remains below a node; a leaf receives the root of its rest,
    and at least 1.

    Parameters
    ----------
    classes : NodeClasses
    precisions : sequence of ndarray
        Precision of the nodes of each class, by level; the sum over every path is 1.
    root : bool
        Whether the root is measured.
    """
    multipliers, left = list[Integers](), np.full(1, 1 << 2 * BITS, np.int64)
    for level, precision in enumerate(precisions[:-1]):
        multiplier = np.rint(np.sqrt(precision) * (1 << BITS)).astype(np.int64) * (root or level > 0)
        multipliers.append(multiplier)
        left = (left - multiplier**2)[classes.parents[level]]
    multipliers.append(np.maximum(np.sqrt(np.maximum(left, 0)).astype(np.int64), 1))
    return classes.expand(multipliers)


def spread_of(classes: NodeClasses, optimum: TreeOptimum) -> Integers:
    """Return integer weights of the leaves close to multiples of C1, with C the covariance of the leaves.

    The estimate of a leaf takes the part g_v = V_v/S of a change of its parent, so its covariance with the total is the
    product of the gains g over its path times the variance of the total: C1 is proportional to it. Each weight is at
    least 1.

    Parameters
    ----------
    classes : NodeClasses
    optimum : TreeOptimum
    """
    problem = _Problem(classes, [])
    passes, share = problem.passes(optimum.precisions), np.ones(1)
    for level, parents in enumerate(classes.parents):
        share = passes.gains[level] * share[parents]
    whole = max(1 << SPREAD_BITS, 4 * classes.tree.sizes[-1])
    return np.maximum(np.rint(share * whole), 1).astype(np.int64)[classes.of[-1]]


@dataclass(frozen=True, eq=False)
class _Problem:
    """Logarithm of the error as a function of the logits, with its gradient; `weights` are Σ ω_l over each class."""

    classes: NodeClasses
    weights: list[Floats]
    known: int = -1

    @cached_property
    def even(self) -> Floats:
        """Logits at which every level has the same precision.

        A node at level l of depth D has D − l + 1 levels from itself to the leaves and takes 1/(D − l + 1) of the rest:
        the logit is −log(D − l).
        """
        (group, number), depth = self.classes.groups, self.classes.depth
        levels_below = np.repeat(np.arange(depth, 0, -1), [len(counts) for counts in self.classes.counts[:-1]])
        logits = np.zeros(number)
        logits[group] = -np.log(levels_below)
        return logits

    def optimum(self, logits: Floats) -> TreeOptimum:
        precisions, _, _ = self._precisions(logits)
        return TreeOptimum(logits, tuple(precisions), self.passes(precisions).variances)

    def __call__(self, logits: Floats) -> tuple[float, Floats]:
        """Return the logarithm of the error and its slope by the logits, which divide the budget of each path.

        With budget b left to a node and share φ: precision φ b, and (1 − φ) b left to its children; ∂φ/∂logit = φ (1 −
        φ). `below` is the derivative of the error by the budget left to a node.
        """
        group, number = self.classes.groups
        precisions, left, shares = self._precisions(logits)
        passes = self.passes(precisions)
        error = sum(float(weight @ variances) for weight, variances in zip(self.weights, passes.variances, strict=True))
        slopes = self._slopes(passes)

        # the chain rule from the leaves up: a share of the remaining budget leaves less to all nodes below
        slopes_of_logits, below = list[Floats](), slopes[-1]

        for level in range(self.classes.depth - 1, -1, -1):
            passed = np.bincount(self.classes.parents[level], below, minlength=len(left[level]))
            share = shares[level]
            slopes_of_logits.append((slopes[level] - passed) * left[level] * share * (1 - share))
            below = slopes[level] * share + passed * (1 - share)

        total_slopes = np.bincount(group, np.concatenate(slopes_of_logits[::-1]), minlength=number)
        return float(np.log(error)), total_slopes / error

    def _precisions(self, logits: Floats) -> tuple[list[Floats], list[Floats], list[Floats]]:
        """Return by level the precisions, the budget that the ancestors leave, and the shares of it.

        Levels above and at a known level are not measured: their shares are 0. Leaves have the share 1.
        """
        classes, left, start = self.classes, [np.ones(1)], 0
        shares, of_classes = list[Floats](), special.expit(logits)[classes.groups[0]]
        for level, parents in enumerate(classes.parents):
            shares.append(of_classes[start : start + len(left[level])] * (level > self.known))
            start += len(left[level])
            left.append((left[level] * (1 - shares[level]))[parents])

        shares.append(np.ones(len(left[-1])))
        return [budget * share for budget, share in zip(left, shares, strict=True)], left, shares

    def passes(self, precisions: Sequence[Floats]) -> TreePasses:
        """Compute S, V, g and P."""
        return TreePasses.of(self.classes, precisions, max(self.known, 0), self.known >= 0)

    def _slopes(self, passes: TreePasses) -> list[Floats]:
        """Return the derivative of the error by the precision of every class, by level.

        `of_variance`, `of_below` and `of_sum` are the derivatives by P, V and S. Down, P_c = V − V g + g² P with g =
        V/S and ratio = P/S: ∂P_c/∂V = 1 − 2 g (1 − ratio), ∂P_c/∂S = g² (1 − 2 ratio), ∂P_c/∂P = g². Up, V = 1/(w +
        1/S): ∂V/∂S = (V/S)² and ∂V/∂w = −V².
        """
        classes, of_variance = self.classes, [weight.copy() for weight in self.weights]
        of_below: list[Floats] = [np.zeros(len(weight)) for weight in self.weights]
        of_sum: list[Floats] = [np.zeros(0)] * classes.depth
        first = max(self.known, 0)

        for level in range(classes.depth - 1, first - 1, -1):  # reverse of the pass down
            parents, size = classes.parents[level], len(self.weights[level])
            gain, of_child = passes.gains[level], of_variance[level + 1]
            ratio = passes.variances[level][parents] / passes.sums[level][parents]
            of_below[level + 1] = of_child * (1 - 2 * gain * (1 - ratio))
            of_sum[level] = _summed(parents, of_child * gain**2 * (1 - 2 * ratio), size)
            of_variance[level] = of_variance[level] + _summed(parents, of_child * gain**2, size)

        # at the root P equals V; the variance of a known node is 0 and does not change
        of_below[first] = of_variance[first] * (self.known < 0)
        for level in range(first, classes.depth):  # reverse of the pass up
            of_sum[level] += of_below[level] * (passes.below[level] / passes.sums[level]) ** 2
            of_below[level + 1] += classes.copies[level] * of_sum[level][classes.parents[level]]

        return [-slope * below**2 for slope, below in zip(of_below, passes.below, strict=True)]


def _summed(parents: Integers, values: Floats, size: int) -> Floats:
    return np.asarray(np.bincount(parents, values, minlength=size), np.float64)


STEP = 0.3  # step h of the trapezoid rule, whose error is then below 2e-14
ERROR = 2 * math.exp(-(math.pi**2) / STEP) / (1 - math.exp(-(math.pi**2) / STEP)) + 1e-10  # quadrature and rounding
BELOW, ABOVE = 18.0, 16.0  # ends of the rule, in logarithms, beyond the roots of the least and the largest eigenvalue
BOUND_ROUNDS, GAIN = 40, 1e-4  # most improvements of the weights of the bound; relative gain below which they end
# most products below a table; cells up to which the Gram matrix is built; least divisor
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


def tree_bound(classes: NodeClasses, residuals: Sequence[Sequence[TreeGram]], rounds: int = BOUND_ROUNDS) -> float:
    """Return a lower bound on the error of every matrix mechanism of sensitivity 1.

    `slope` is the derivative of the value by the weight of a leaf of each class. Weights λ are multiplied by it and
    scaled to Σλ = 1, the fixed point of the module; `counts` are the numbers of leaves of the classes.

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
            traces = [(term.scale, *_known_trace(classes, term, weights)) for term in terms]
            root_of_sum = math.sqrt(sum(scale * trace**2 for scale, trace, _ in traces))
            value += root_of_sum
            slope = slope + sum(
                (scale * trace / max(root_of_sum, LEAST) * gradient for scale, trace, gradient in traces), np.zeros(())
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
    # the points u of the rule
    largest = sum(weights)  # of the eigenvalues of M: each level is a sum of orthogonal vectors of norm² at most 1
    least = max(weights[-1] * float(leaves.min(initial=1.0, where=leaves > 0)), largest * 1e-30)
    low, high = 0.5 * math.log(least) - BELOW, 0.5 * math.log(largest) + ABOVE
    points = np.asarray(np.arange(low, high, STEP))
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


def _leaf_slopes(
    classes: NodeClasses, weights: Sequence[float], heights: Sequence[Floats], squared: Floats, step: Floats
) -> Floats:
    """Return the derivative of the trace by the weight of one leaf of each class: the reverse of the pass upwards.

    With h = `height`, r = 1 + ω h/t² of a node: ∂ log r/∂h = (ω/t²)/r, and F = h/r has ∂F/∂h = 1/r². Each class counts
    with its number of nodes, and at the end the derivative is divided among the leaves of a class. ω are `weights` of
    the levels, t² is `squared` at the nodes of the quadrature of width `step`, and `passed` is what the level above
    hands down to its children.
    """
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
    if math.prod(group_class.tree.sizes[-1] for group_class in classes) <= DENSE:
        return _dense_bound(classes, table)

    left, total, root = table.copy(), 0.0, (0,) * table.ndim
    for _ in range(PRODUCTS):
        if left.max() <= table.max() * 1e-9:
            break
        sides = _product_below(left, root)
        product = np.asarray(reduce(np.multiply.outer, sides, np.ones(())))
        bounds = (
            tree_bound(group_class, [[TreeGram(tuple(side.tolist()))]])
            for group_class, side in zip(classes, sides, strict=True)
        )
        excess = max(float(product[root] - left[root]), 0.0)
        total += max(math.sqrt(math.prod(bounds)) - math.sqrt(excess), 0.0) ** 2
        left = np.maximum(left - product, 0.0)

    return total


def _product_below(table: Floats, free: tuple[int, ...]) -> list[Floats]:
    """Return the sides of a product that is nowhere above a table, except at one entry, and touches it in every row.

    `free` is the entry at which the product may exceed the table. From every positive entry, the sides start as the
    lines through it; then each side in turn becomes the largest that keeps the product below the table. The sides with
    the largest product of their sums are returned.

    A side is an array for one axis; the product has at each entry the product of the sides' values. The caller
    subtracts such products from a table one after the other.
    """
    best, limits = list[Floats](), table.copy()
    limits[free] = math.inf
    for start in np.argwhere(table > 0).tolist():
        lines = [
            table[tuple(slice(None) if i == axis else at for i, at in enumerate(start))] for axis in range(table.ndim)
        ]
        # scaled so that the product equals the table at the start
        sides = [line / line[start[axis]] if axis else line for axis, line in enumerate(lines)]
        for axis in range(table.ndim):
            rest = reduce(np.multiply.outer, [side for i, side in enumerate(sides) if i != axis], np.ones(()))
            moved = np.moveaxis(limits, axis, 0)
            ratio = np.where(rest > 0, moved / np.where(rest > 0, rest, 1.0), math.inf)
            # the smallest ratio of limit to the other sides' product, infinite where that is 0
            least = ratio.reshape(len(moved), -1).min(axis=1)
            sides[axis] = np.where(np.isfinite(least), least, sides[axis])

        total, best_total = (math.prod(float(side.sum()) for side in of_product) for of_product in (sides, best))
        if not best or total > best_total:
            best = sides

    return best


def _dense_bound(classes: Sequence[NodeClasses], table: Floats) -> float:
    """Return the bound of few cells, with weights of the cells that are no product.

    The Gram matrix of all cells is built, and the weights λ follow the fixed point λ_j ← (M^½)_jj / tr M^½ from equal
    weights, while the bound (tr M^½)² improves by the fraction GAIN. `table` has the weight of each combination of
    levels, one axis for each tree.
    """
    levels = []  # for each tree, the transposed matrix A_lᵀ of every level, (leaves, nodes)
    for of_tree in classes:
        sums = of_tree.tree.sums(np.eye(of_tree.tree.sizes[-1]))
        levels.append([of_level.T.astype(np.float64) for of_level in sums])
    size = math.prod(of_tree.tree.sizes[-1] for of_tree in classes)
    gram = np.zeros((size, size))
    for place in np.argwhere(table > 0).tolist():
        rows = kron([of_tree[level] for of_tree, level in zip(levels, place, strict=True)])
        gram += float(table[tuple(place)]) * (rows @ rows.T)

    weights, best = np.full(size, 1 / size), 0.0
    for _ in range(BOUND_ROUNDS):
        root = np.sqrt(weights)
        values, vectors = np.linalg.eigh(root[:, None] * gram * root)
        roots = np.sqrt(np.maximum(values, 0.0))
        bound = float(roots.sum() * (1 - ERROR)) ** 2
        if bound <= best * (1 + GAIN):
            break
        best = bound
        weights = (vectors**2 @ roots) / float(roots.sum())

    return best
