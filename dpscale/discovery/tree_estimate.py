"""Estimate of the leaves of a dyadic tree from noisy counts of its nodes, by least squares with counts of at least 0.

The estimate minimises Σ w_v (x_v - y_v)² subject to x_v = x_1 + x_2 over the children of every split node, and x >= 0.
The solution is exact: going up, every node has a curve of its count as a function of a price λ for each record, which
is piecewise linear, and the curve of a parent is the sum of those of its children; going down, the price of the root is
0, and that of a child is the parent's plus w (y - x) of the parent. Standard errors are those without the constraint
(two passes of the Kalman form on the tree), which are larger.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dpscale.base.numerics import Flags, Floats, Integers, Words
from dpscale.discovery.tree_policy import first_and_last

Curve = tuple[Floats, Floats, float]  # prices, counts at them, and slope after the last


@dataclass(frozen=True, eq=False)
class TreeCounts:
    """Measured nodes of a full binary tree.

    Attributes
    ----------
    level : ndarray of int64, shape (measurements,)
    index : ndarray of uint64, shape (measurements,)
    value, precision : ndarray of float64, shape (measurements,)
        Counts and their precisions; a node may occur several times.
    """

    level: Integers
    index: Words
    value: Floats
    precision: Floats


@dataclass(frozen=True, eq=False)
class Leaves:
    """Leaves in the order of the axis.

    Attributes
    ----------
    first, last : ndarray of uint64, shape (leaves,)
        Places on the axis, both included.
    counts, errors : ndarray of float64, shape (leaves,)
    """

    first: Words
    last: Words
    counts: Floats
    errors: Floats


def estimate_leaves(bits: int, measured: TreeCounts) -> Leaves:
    """Return the least-squares estimate of the leaves.

    Parameters
    ----------
    bits : int
        Levels below the root.
    measured : TreeCounts
    """
    index, value, precision = _by_level(measured)
    split = [np.isin(own, below >> np.uint64(1)) for own, below in pairwise(index)]
    split.append(np.zeros(len(index[-1]), bool))
    errors = _errors(precision, split)
    counts = _counts(value, precision, split)
    ends = [first_and_last(bits, level, own[~split[level]]) for level, own in enumerate(index)]
    first, last = (np.concatenate([end[side] for end in ends]) for side in (0, 1))
    order = np.argsort(first)
    found = (np.concatenate([one[~split[level]] for level, one in enumerate(own)])[order] for own in (counts, errors))
    return Leaves(first[order], last[order], *found)


def _by_level(measured: TreeCounts) -> tuple[list[Words], list[Floats], list[Floats]]:
    """Return, for each level, its nodes, the weighted means of their counts, and the sums of the precisions."""
    index, value, precision = list[Words](), list[Floats](), list[Floats]()
    for level in range(int(measured.level.max()) + 1):
        here = measured.level == level
        own, place = np.unique(measured.index[here], return_inverse=True)
        weights = np.bincount(place, measured.precision[here], len(own))
        index.append(own)
        value.append(np.bincount(place, measured.precision[here] * measured.value[here], len(own)) / weights)
        precision.append(np.asarray(weights, np.float64))
    return index, value, precision


def _errors(precision: Sequence[Floats], split: Sequence[Flags]) -> list[Floats]:
    """Return the standard errors of unconstrained least squares."""
    depth, up, below = len(precision), [1 / one for one in precision], [np.ones(len(one)) for one in precision]
    for level in reversed(range(depth)):
        if (own := split[level]).any():
            below[level][own] = up[level + 1].reshape(-1, 2).sum(1)
            up[level][own] = 1 / (precision[level][own] + 1 / below[level][own])
    variance = [up[0]]
    for level in range(depth - 1):
        own = split[level]
        gain = up[level + 1] / np.repeat(below[level][own], 2)
        variance.append(up[level + 1] * (1 - gain) + gain**2 * np.repeat(variance[level][own], 2))
    return [np.sqrt(one) for one in variance]


def _counts(value: Sequence[Floats], precision: Sequence[Floats], split: Sequence[Flags]) -> list[Floats]:
    curves: list[list[Curve]] = [[] for _ in value]
    for level in reversed(range(len(value))):
        children = iter(curves[level + 1]) if level + 1 < len(value) else iter(())
        for y, w, has_children in zip(value[level], precision[level], split[level], strict=True):
            if has_children:
                curves[level].append(_joined(next(children), next(children), float(y), float(w)))
            else:
                curves[level].append((np.array([-w * y]), np.zeros(1), 1 / float(w)))
    counts, price = list[Floats](), np.zeros(1)
    for level, curve in enumerate(curves):
        counts.append(np.array([_along(one, np.array([at]))[0] for one, at in zip(curve, price, strict=True)]))
        price = np.repeat((price - precision[level] * (counts[level] - value[level]))[split[level]], 2)
    return counts


def _joined(one: Curve, other: Curve, value: float, weight: float) -> Curve:
    """Return the curve of a node with two children."""
    price = np.sort(np.concatenate([one[0], other[0]]))
    count, slope = _along(one, price) + _along(other, price), one[2] + other[2]
    return price + weight * (count - value), count, slope / (1 + weight * slope)


def _along(curve: Curve, price: Floats) -> Floats:
    prices, counts, slope = curve
    return np.asarray(np.interp(price, prices, counts) + slope * np.maximum(price - prices[-1], 0))
