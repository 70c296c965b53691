"""Precisions of the nodes of a tree that minimise a weighted sum of variances.

Node v of level l is measured with precision w_v. A leaf contributes to the nodes above it, so one record costs
Σ w_v over the path of its leaf, at most 1. With Gram matrix Σ ω_l A_lᵀA_l the error is

    f(w) = Σ_l ω_l Σ_{v in l} P_v,

where P_v is the variance of the least squares estimate of node v, computed by two passes over the tree. V_v is the
variance of the estimate of v from the measurements below and at v:

    up:    S_v = Σ_c V_c,   V_v = 1 / (w_v + 1 / S_v)        down:   g_c = V_c / S_v,   P_c = V_c − V_c g_c + g_c² P_v.

A node uses the share φ_v of the budget that its ancestors leave, and leaves use all of it, so every path costs exactly
1. The shares, one for each group of classes of similar size, are found by L-BFGS with the exact gradient, which is the
reverse of the two passes. One share for each class gains less than 10⁻⁴ and takes ten times as long at 10⁶ leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpscale.base.numerics import Floats, Integers, optimize, special
from dpscale.optimize.tree_classes import NodeClasses

MOST_LOGIT = 12.0
ROUNDS, TOLERANCE = 300, 1e-7
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
    problem = _Problem(classes, [weight * own for weight, own in zip(weights, classes.counts, strict=True)], known)
    first = problem.even if start is None else start
    if not len(first):
        return problem.optimum(first)
    bounds = [(-MOST_LOGIT, MOST_LOGIT)] * len(first)
    limits = {"maxiter": ROUNDS, "ftol": TOLERANCE, "gtol": 0.0}
    found = optimize.minimize(problem, first, jac=True, method="L-BFGS-B", bounds=bounds, options=limits)
    return problem.optimum(np.asarray(found.x))


def integer_multipliers(classes: NodeClasses, precisions: Sequence[Floats], root: bool = True) -> list[Integers]:
    """Return integers m with m² close to multiples of the precisions of all nodes, by level from the root.

    The leaves use what the levels above leave of the same budget, so all paths cost almost the same.

    Parameters
    ----------
    classes : NodeClasses
    precisions : sequence of ndarray
        Precision of the nodes of each class, by level; the sum over every path is 1.
    root : bool
        Whether the root is measured.
    """
    found, left = list[Integers](), np.full(1, 1 << 2 * BITS, np.int64)
    for level, own in enumerate(precisions[:-1]):
        share = np.rint(np.sqrt(own) * (1 << BITS)).astype(np.int64) * (root or level > 0)
        found.append(share)
        left = (left - share**2)[classes.parents[level]]
    found.append(np.maximum(np.sqrt(np.maximum(left, 0)).astype(np.int64), 1))
    return classes.expand(found)


def spread_of(classes: NodeClasses, optimum: TreeOptimum) -> Integers:
    """Return integer weights of the leaves close to multiples of C1, with C the covariance of the leaves.

    Parameters
    ----------
    classes : NodeClasses
    optimum : TreeOptimum
    """
    problem = _Problem(classes, [])
    passes, share = problem.passes(optimum.precisions), np.ones(1)
    for level, parents in enumerate(classes.parents):
        share = (passes.below[level + 1] / passes.sums[level][parents]) * share[parents]
    whole = max(1 << SPREAD_BITS, 4 * classes.tree.sizes[-1])
    leaves: Integers = np.maximum(np.rint(share * whole), 1).astype(np.int64)[classes.of[-1]]
    return leaves


@dataclass(frozen=True, eq=False)
class _Passes:
    """Results of the two passes by level: S (above the leaves), V and P."""

    sums: list[Floats]
    below: list[Floats]
    variances: list[Floats]


@dataclass(frozen=True, eq=False)
class _Problem:
    """Logarithm of the error as a function of the logits, with its gradient; `weights` are Σ ω_l over each class."""

    classes: NodeClasses
    weights: list[Floats]
    known: int = -1

    @cached_property
    def even(self) -> Floats:
        """Logits at which every level has the same precision."""
        (group, number), depth = self.classes.groups, self.classes.depth
        left = np.repeat(np.arange(depth, 0, -1), [len(own) for own in self.classes.counts[:-1]])
        found = np.zeros(number)
        found[group] = -np.log(left)
        return found

    def optimum(self, logits: Floats) -> TreeOptimum:
        precisions, _, _ = self._precisions(logits)
        return TreeOptimum(logits, tuple(precisions), tuple(self.passes(precisions).variances))

    def __call__(self, logits: Floats) -> tuple[float, Floats]:
        group, number = self.classes.groups
        precisions, left, shares = self._precisions(logits)
        passes = self.passes(precisions)
        error = sum(float(own @ found) for own, found in zip(self.weights, passes.variances, strict=True))
        slopes = self._slopes(passes)
        found, below = list[Floats](), slopes[-1]
        for level in range(self.classes.depth - 1, -1, -1):
            passed = np.bincount(self.classes.parents[level], below, minlength=len(left[level]))
            own = shares[level]
            found.append((slopes[level] - passed) * left[level] * own * (1 - own))
            below = slopes[level] * own + passed * (1 - own)
        return float(np.log(error)), np.bincount(group, np.concatenate(found[::-1]), minlength=number) / error

    def _precisions(self, logits: Floats) -> tuple[list[Floats], list[Floats], list[Floats]]:
        """Return by level the precisions, the budget that the ancestors leave, and the shares of it."""
        classes, left, start = self.classes, [np.ones(1)], 0
        shares, every = list[Floats](), special.expit(logits)[classes.groups[0]]
        for level, parents in enumerate(classes.parents):
            shares.append(every[start : start + len(left[level])] * (level > self.known))
            start += len(left[level])
            left.append((left[level] * (1 - shares[level]))[parents])
        shares.append(np.ones(len(left[-1])))
        return [own * share for own, share in zip(left, shares, strict=True)], left, shares

    def passes(self, precisions: Sequence[Floats]) -> _Passes:
        """Compute S, V and P."""
        below, sums, first = [1 / precisions[-1]], list[Floats](), max(self.known, 0)
        for level in range(self.classes.depth - 1, first - 1, -1):
            sums.append(self.classes.children[level] @ below[-1])
            below.append(1 / (precisions[level] + 1 / sums[-1]))
        below[-1] = below[-1] * (self.known < 0)
        above = [np.zeros(len(own)) for own in self.classes.counts[:first]]
        below, sums = [*above, *below[::-1]], [*(own + 1 for own in above), *sums[::-1]]
        variances = [*above, below[first]]
        for level in range(first, self.classes.depth):
            parents = self.classes.parents[level]
            gain = below[level + 1] / sums[level][parents]
            variances.append(below[level + 1] * (1 - gain) + gain**2 * variances[level][parents])
        return _Passes(sums, below, variances)

    def _slopes(self, passes: _Passes) -> list[Floats]:
        """Return the derivative of the error by the precision of every class, by level."""
        classes, of_variance = self.classes, [own.copy() for own in self.weights]
        of_below: list[Floats] = [np.zeros(len(own)) for own in self.weights]
        of_sum: list[Floats] = [np.zeros(0)] * classes.depth
        first = max(self.known, 0)
        for level in range(classes.depth - 1, first - 1, -1):  # reverse of the pass down
            parents, size = classes.parents[level], len(self.weights[level])
            gain, own = passes.below[level + 1] / passes.sums[level][parents], of_variance[level + 1]
            ratio = passes.variances[level][parents] / passes.sums[level][parents]
            of_below[level + 1] = own * (1 - 2 * gain * (1 - ratio))
            of_sum[level] = _summed(parents, own * gain**2 * (1 - 2 * ratio), size)
            of_variance[level] = of_variance[level] + _summed(parents, own * gain**2, size)
        of_below[first] = of_variance[first] * (self.known < 0)
        for level in range(first, classes.depth):  # reverse of the pass up
            of_sum[level] += of_below[level] * (passes.below[level] / passes.sums[level]) ** 2
            of_below[level + 1] += classes.copies[level] * of_sum[level][classes.parents[level]]
        return [-slope * below**2 for slope, below in zip(of_below, passes.below, strict=True)]


def _summed(parents: Integers, values: Floats, size: int) -> Floats:
    return np.asarray(np.bincount(parents, values, minlength=size), np.float64)
