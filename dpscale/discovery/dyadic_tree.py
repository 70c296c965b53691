"""Dyadic searches: a histogram on a signed axis of dyadic bins, and a tree whose leaves are the edges of an attribute.

*Bins.* The bins are 0 alone, and the integers from 2^k to 2^(k+1) - 1, mirrored below 0, up to 2^63. A record lies in
one bin, so the histogram has sensitivity 1. Most of the 127 bins are empty, and their noise must not matter:

1. Windows of 1, 2, 3 and 4 bins are significant if their sum exceeds FAR standard deviations, or NEAR standard
   deviations within four octaves of significant ones. The support is extended while the next bin exceeds BESIDE
   deviations. Zero does not count: a column of which nothing but zeros is seen has no visible range.
2. Counts are 0 outside the support, and projected to at least 0 with the same total inside it.
3. Beyond the support the counts continue the fall from the last octave but one to the last, at most by MOST_RATIO for
   each octave, corrected by the count that was measured there.

Ends of ranges are finer: each octave is divided into PARTS parts, with equal shares of its records.

*Nodes.*
Nodes of one level are disjoint, so a record pays on each level for the node that contains it, and its cost is the sum
of the precisions (1/variance) on the path from the root to its leaf. The policy keeps this sum within the budget B on
every path, for any noise. Precisions depend on earlier noisy counts, and composition is that of adaptive Gaussian
mechanisms with a cost for each record. A search from the root uses f = SEARCH of the budget:

1. Children of a node are measured with standard deviation n/s, where n is the estimate of the node and s = SAFETY, so
   large nodes and empty levels above them cost little. The pair is then made consistent with the estimate of the node.
2. The least count of a node that is split is T = s / sqrt(g · left), where left is the rest of the search budget on
   the path and g = PART. A node that seems smaller is measured again, until its standard deviation is at most T/s.
3. Nodes of at least T records are split, unless they are a single integer.

A last round spends the rest on all nodes. A range of values whose ends are drawn from the records needs the count of
node v alone if one end lies in its sibling u, so v is weighted by the estimate q of u. Under a budget for each path,
Σ q_v/w_v is least for w_v = left · sqrt(q_v)/A_v, where A_v = sqrt(q_v) + sqrt(A_1² + A_2²) over the children of v.

*Leaves.* Least squares with counts of at least 0.
The estimate minimises Σ w_v (x_v - y_v)² subject to x_v = x_1 + x_2 over the children of every split node, and x >= 0.
The solution is exact: going up, every node has a curve of its count as a function of a price λ for each record, which
is piecewise linear, and the curve of a parent is the sum of those of its children; going down, the price of the root is
0, and that of a child is the parent's plus w (y - x) of the parent. Standard errors are those without the constraint
(two passes of the Kalman form on the tree), which are larger.

*Search for the edges of bins (kind "edges").* The tree is measured from the root down. Every node is measured with
exact discrete Gaussian noise of its own precision. With k rows for each unit, a round costs Σ_v r_v² w_v <= k Σ_v r_v
w_v for r_v rows in node v, so all rounds cost at most k² times the dearest path, which is compared with the charge in
exact integers before each round is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from dpscale.base.errors import BudgetError
from dpscale.base.numerics import Flags, Floats, Integers, NDArray, Words
from dpscale.discovery.value_counts import search_draw
from dpscale.domain.attribute import Attribute
from dpscale.domain.search import EdgeSearch
from dpscale.privacy.accounting import Cost
from dpscale.privacy.draws import GaussianDraw, cost_of_units, cost_units
from dpscale.privacy.streams import open_stream

# f, s and g of the search above; share of the budget that measures the root
SEARCH, SAFETY, PART, ROOT = 0.5, 4.0, 0.5, 0.01
SLACK = 2.0**-30  # of the budget, for sums of floats
UNSEEN = 1e-6  # records of a node that is within one standard deviation of 0
GRID = 16  # precisions are powers of 2^(1/16): few distinct variances of noise
# parts of an octave at which a range may end; octaves above 0, and bits of an integer without its sign
PARTS, BITS = 4, 63
FAR, NEAR, BESIDE = 5.0, 3.5, 2.5  # standard deviations
WINDOWS = (1, 2, 3, 4)  # bins whose sum is tested
NEARBY = 4  # octaves
MOST_RATIO, TAIL_OCTAVES, LEAST_TAIL = 0.35, 4, 3  # a support of fewer octaves has no tail
FRACTION_BITS = 52  # of a float from 1 to 2, whose multiple by 2^52 is an integer

EMPTY_ERRORS = 0.3  # leaves below this many standard errors count as empty
Count = Callable[[int, Words], Integers]


def on_grid(precision: Floats) -> Floats:
    """Return the precisions rounded down to a grid, so that many nodes share a variance."""
    with np.errstate(divide="ignore"):
        # the margin is above the rounding error of the logarithm, so that no precision and no charge increases
        steps = np.floor(np.log2(precision) * GRID - 1e-9)
    return np.where(precision > 0, np.exp2(steps / GRID), 0.0)


class TreePolicy:
    """Adaptive choice of nodes, level by level.

    The caller alternates `first`, then `look` and `look_again` for each level until no node is left, then `last_round`.
    Each takes the counts of the nodes that the previous call returned.

    Parameters
    ----------
    bits : int
        Number of levels below the root.
    budget : float
        Precision that a path may use.
    """

    def __init__(self, bits: int, budget: float) -> None:
        """Reserve the fraction SLACK of the budget.

        `limit` is the part for the search. The lists have an entry for each level: indices, estimates, variances, spent
        precision and split flags of its nodes.
        """
        self.bits, self.budget = bits, budget * (1 - SLACK)
        self.limit = SEARCH * self.budget
        self.index = list[Words]()
        self.count, self.variance, self.spent = list[Floats](), list[Floats](), list[Floats]()
        self.split = list[Flags]()

    def first(self) -> tuple[Words, Floats]:
        """Return the root and its precision."""
        return np.zeros(1, np.uint64), on_grid(np.array([ROOT * self.budget]))

    def look(self, index: Words, precision: Floats, value: Floats) -> tuple[Words, Floats]:
        """Take the counts of a new level; return the nodes that are measured again, and with which precision.

        Both children of a node have the same variance v, and the node has variance u. Fitted to the node, each count
        gains v/(2v + u) of the node less the sum of its children, and its variance falls by that share.

        Parameters
        ----------
        index : ndarray of uint64, shape (nodes,)
            Indices within the level; the children of a node follow each other.
        precision, value : ndarray, shape (nodes,)
        """
        variance, spent, count = 1 / precision, precision.copy(), value.astype(float)
        if self.index:  # below the root
            count_of_parent, variance_of_parent = self._of_parent(self.count), self._of_parent(self.variance)
            gain = variance / (2 * variance + variance_of_parent)
            count = count + gain * (count_of_parent - np.repeat(value.reshape(-1, 2).sum(1), 2))
            variance, spent = variance - variance * gain, spent + self._of_parent(self.spent)

        for store, new in zip((self.count, self.variance, self.spent), (count, variance, spent), strict=True):
            store.append(new)
        self.index.append(index)
        return self._unsure()

    def _of_parent(self, store: list[Floats]) -> Floats:
        """Return for each node of the new level the value of its parent on the last one."""
        return np.repeat(store[-1][self.split[-1]], 2)

    def _unsure(self) -> tuple[Words, Floats]:
        """Return the nodes that seem too small to be split but are not known well enough, and the precision they lack.

        `limit` is the precision that a path may use for the search, `spent` what it has used. A node is split if its
        count is at least `least`, which is T of the module.
        """
        left = np.maximum(self.limit - self.spent[-1], 0)
        with np.errstate(divide="ignore"):
            self.least = SAFETY / np.sqrt(PART * left)
        # a standard deviation of T/s is a precision of g · left
        wanted = on_grid(np.maximum(PART * left - 1 / self.variance[-1], 0))
        self.again = np.flatnonzero((self.count[-1] < self.least) & (wanted > 0) & self._divisible)
        return self.index[-1][self.again], wanted[self.again]

    @property
    def _divisible(self) -> bool:
        """Whether the nodes of the last level are more than a single integer."""
        return len(self.index) <= self.bits

    def look_again(self, precision: Floats, value: Floats) -> tuple[Words, Floats]:
        """Take the repeated counts; return the nodes of the next level and their precisions, perhaps none.

        `precision` and `value` are those of the repeated nodes, in the order of `again`. Both counts are averaged by
        precision. The children of node i have the indices 2i and 2i + 1.
        """
        again, count, variance, spent = self.again, self.count[-1], self.variance[-1], self.spent[-1]
        pooled = 1 / (1 / variance[again] + precision)
        count[again] = (count[again] / variance[again] + precision * value) * pooled
        variance[again] = pooled
        spent[again] += precision
        # children have the standard deviation n/s, as far as the budget allows
        with np.errstate(divide="ignore"):
            needed = np.minimum((SAFETY / np.maximum(count, self.least)) ** 2, np.maximum(self.limit - spent, 0))
        needed = on_grid(needed)
        split = (count >= self.least) & (needed > 0) & self._divisible
        self.split.append(split)
        children = self.index[-1][split] << np.uint64(1)

        return np.stack([children, children + np.uint64(1)], 1).ravel(), np.repeat(needed[split], 2)

    def last_round(self) -> list[tuple[int, Words, Floats]]:
        """Return levels, nodes and precisions that use the rest of the budget of every path.

        Each node gets the part `wish`/`total` = sqrt(q)/A of the precision that is left on its path (see the module);
        the rest is left to its children.
        """
        wish, total, room = self._wishes()
        found, used = [], np.zeros(1)
        for level, index in enumerate(self.index):
            precision = on_grid(np.maximum(room[level] - used, 0) * wish[level] / total[level])
            if (chosen := precision > 0).any():
                found.append((level, index[chosen], precision[chosen]))
            used = np.repeat((used + precision)[self.split[level]], 2)
        return found

    def _wishes(self) -> tuple[list[Floats], list[Floats], list[Floats]]:
        """Return sqrt(q), A, and the least precision left on any path below, for each level.

        Going up, the count and the variance of a split node are the sums of those of its children, and its room is the
        smaller one of theirs.
        """
        depth = len(self.index)
        rows, variance = [counts.copy() for counts in self.count], [known.copy() for known in self.variance]
        room, wish = [self.budget - spent for spent in self.spent], [np.full(1, 1e-3)] * depth
        total = [np.zeros(0)] * depth

        for level in reversed(range(depth)):
            split = self.split[level]
            if split.any():
                rows[level][split], variance[level][split] = _pairs(rows, level).sum(1), _pairs(variance, level).sum(1)
                room[level][split] = _pairs(room, level).min(1)

            if level:
                # the estimate of the sibling is the weight q of a node (see the module): both columns are exchanged
                seen = np.where(rows[level] > np.sqrt(variance[level]), rows[level], UNSEEN)
                wish[level] = np.sqrt(seen.reshape(-1, 2)[:, ::-1].ravel())

            total[level] = wish[level].copy()
            if split.any():
                total[level][split] += np.sqrt((_pairs(total, level) ** 2).sum(1))

        return wish, total, room


def _pairs(store: list[Floats], level: int) -> NDArray[np.float64]:
    """Return the values of the children of the split nodes of a level, shape (nodes, 2)."""
    return store[level + 1].reshape(-1, 2)


def first_and_last(bits: int, level: int, index: Words) -> tuple[Words, Words]:
    """Return the first and the last place of nodes on the axis, as unsigned integers.

    A node of a level has the first `level` of the `bits` bits of its places in common; these bits are its index.
    """
    width = bits - level
    if width == 64:
        return np.zeros_like(index), np.full_like(index, 2**64 - 1)
    low = index << np.uint64(width)
    return low, low + np.uint64(2**width - 1)


# piecewise linear count of a node by price: prices, counts at them, and slope after the last; constant before the first
Curve = tuple[Floats, Floats, float]


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
    """Return the least-squares estimate of the leaves, the measured nodes without measured children.

    Parameters
    ----------
    bits : int
        Levels below the root.
    measured : TreeCounts
    """
    index, value, precision = _by_level(measured)
    # nodes of each level that have children
    split = [np.isin(nodes, below >> np.uint64(1)) for nodes, below in pairwise(index)]
    split.append(np.zeros(len(index[-1]), bool))
    errors = _errors(precision, split)
    counts = _counts(value, precision, split)
    ends = [first_and_last(bits, level, nodes[~split[level]]) for level, nodes in enumerate(index)]
    first, last = (np.concatenate([end[side] for end in ends]) for side in (0, 1))
    order = np.argsort(first)
    leaf_counts, leaf_errors = (
        np.concatenate([of_level[~split[level]] for level, of_level in enumerate(values)])[order]
        for values in (counts, errors)
    )

    return Leaves(first[order], last[order], leaf_counts, leaf_errors)


def _by_level(measured: TreeCounts) -> tuple[list[Words], list[Floats], list[Floats]]:
    """Return, for each level, its nodes, the weighted means of their counts, and the sums of the precisions.

    `measured` has a level, index, value and precision (inverse variance) for each measurement; repeated measurements of
    a node are averaged with their precisions.
    """
    index, value, precision = list[Words](), list[Floats](), list[Floats]()
    for level in range(int(measured.level.max()) + 1):
        here = measured.level == level
        nodes, place = np.unique(measured.index[here], return_inverse=True)
        weights = np.bincount(place, measured.precision[here], len(nodes))
        index.append(nodes)
        value.append(np.bincount(place, measured.precision[here] * measured.value[here], len(nodes)) / weights)
        precision.append(np.asarray(weights, np.float64))
    return index, value, precision


def _errors(precision: Sequence[Floats], split: Sequence[Flags]) -> list[Floats]:
    """Return the standard errors of unconstrained least squares.

    `up` is the variance of a node by the measurements in its subtree, `below` that of its children alone; `gain` is the
    share of the parent's correction that a child takes.

    `precision` has the precision of each node by level, and `split` marks the nodes with two children on the next
    level, which are neighbours there.
    """
    depth, up, below = len(precision), [1 / known for known in precision], [np.ones(len(known)) for known in precision]
    for level in reversed(range(depth)):
        if (inner := split[level]).any():
            below[level][inner] = up[level + 1].reshape(-1, 2).sum(1)
            up[level][inner] = 1 / (precision[level][inner] + 1 / below[level][inner])

    variance = [up[0]]
    # from the root down: a child takes the share `gain` of the change of its parent
    for level in range(depth - 1):
        inner = split[level]
        gain = up[level + 1] / np.repeat(below[level][inner], 2)
        variance.append(up[level + 1] * (1 - gain) + gain**2 * np.repeat(variance[level][inner], 2))

    return [np.sqrt(of_level) for of_level in variance]


def _counts(value: Sequence[Floats], precision: Sequence[Floats], split: Sequence[Flags]) -> list[Floats]:
    """Return the counts of all nodes of a binary tree, at least 0, that fit the noisy counts best by weighted squares.

    Curves, of a node's count as a function of the price of a record (see the module), are joined from the leaves up to
    the root; the prices then follow from the root down. y is a noisy count and w its precision.

    Parameters
    ----------
    value, precision : sequence of ndarray
        Noisy count of each node and its precision, by level.
    split : sequence of ndarray of bool
        Which nodes of a level have two children on the next one.
    """
    curves: list[list[Curve]] = [[] for _ in value]
    for level in reversed(range(len(value))):
        children = iter(curves[level + 1]) if level + 1 < len(value) else iter(())
        for y, w, has_children in zip(value[level], precision[level], split[level], strict=True):
            if has_children:
                curves[level].append(_joined(next(children), next(children), float(y), float(w)))
            else:
                # a leaf: the count is 0 up to the price −w y, and rises with slope 1/w above it
                curves[level].append((np.array([-w * y]), np.zeros(1), 1 / float(w)))

    # the root's price is 0, because nothing restricts the total
    counts, price = list[Floats](), np.zeros(1)
    for level, curves_of_level in enumerate(curves):
        counts.append(
            np.array([_along(own, np.array([at]))[0] for own, at in zip(curves_of_level, price, strict=True)])
        )
        # both children have the price of their parent plus w (y − x)
        price = np.repeat((price - precision[level] * (counts[level] - value[level]))[split[level]], 2)

    return counts


def _joined(left: Curve, right: Curve, value: float, weight: float) -> Curve:
    """Return the curve of a node with two children, a noisy count and its precision.

    The price of the children is that of the node plus w (y − x), so that of the node is theirs plus w (x − y).
    """
    price = np.sort(np.concatenate([left[0], right[0]]))
    count, slope = _along(left, price) + _along(right, price), left[2] + right[2]
    return price + weight * (count - value), count, slope / (1 + weight * slope)


def _along(curve: Curve, price: Floats) -> Floats:
    """Return the counts of a curve at some prices."""
    prices, counts, slope = curve
    return np.asarray(np.interp(price, prices, counts) + slope * np.maximum(price - prices[-1], 0))


@dataclass(frozen=True, eq=False)
class DyadicBins:
    """Bins of the signed axis, ascending, and parts of them.

    Attributes
    ----------
    first, last : ndarray of int64, shape (bins,)
        Integers of each bin, both included.
    part_first, part_last : ndarray of int64, shape (parts,)
        Integers of each part of a bin.
    ends : ndarray of int64
        Integers at which values may be clipped, ascending.
    """

    first: Integers
    last: Integers
    part_first: Integers
    part_last: Integers
    ends: Integers

    @property
    def middle(self) -> Floats:
        """Middles of the parts."""
        return (self.part_first.astype(float) + self.part_last.astype(float)) / 2

    @property
    def bin_of(self) -> Integers:
        """Bin of each part."""
        return np.asarray(np.searchsorted(self.first, self.part_first, "right") - 1)

    def divided(self, counts: Floats) -> Floats:
        """Return counts of the parts, which are equal within a bin."""
        return np.asarray((counts / np.bincount(self.bin_of))[self.bin_of])


@cache
def dyadic_bins() -> DyadicBins:
    """Return the bins. They are computed with integers, so they are the same everywhere.

    Each octave is divided into PARTS at powers of 2^(1/PARTS), rounded up to integers; `ends` are the possible ends of
    a range.
    """
    # 2^(part/PARTS) as multiples of 2^−FRACTION_BITS
    scales = [int(2.0 ** (part / PARTS) * (1 << FRACTION_BITS)) for part in range(PARTS)]
    edges = {-(-(scale << whole) // (1 << FRACTION_BITS)) if part else 1 << whole
             for whole in range(BITS) for part, scale in enumerate(scales)}  # fmt: skip
    edge, top = sorted(edges | {1 << BITS}), (1 << BITS) - 1
    ends = [-end for end in (top, *reversed(edge[:-1]))] + [0, *edge[:-1], top]
    return DyadicBins(*_mirrored([1 << whole for whole in range(BITS + 1)]), *_mirrored(edge), np.array(ends, np.int64))


def _mirrored(edges: list[int]) -> tuple[Integers, Integers]:
    """Return first and last integers of the bins between edges above 0, of 0, and of their mirror images.

    `edges` are the first integers of the bins above 0, and the end. Bins are in ascending order; that of the least
    integer, −2^BITS, begins there.
    """
    first, last = edges[:-1], [edge - 1 for edge in edges[1:]]
    below = [-integer for integer in reversed(last)]
    below[0] = -(1 << BITS)  # the only integer without a mirror image
    return (
        np.array([*below, 0, *first], np.int64),
        np.array([*(-integer for integer in reversed(first)), 0, *last], np.int64),
    )


@dataclass(frozen=True, eq=False)
class Histogram:
    """Estimated counts of the bins.

    Attributes
    ----------
    counts : ndarray of float64, shape (bins,)
        Estimates, with the tails beyond the support.
    found : ndarray of bool, shape (bins,)
        Significant bins.
    limits : ndarray of float64, shape (bins,)
        Estimates whose tails begin with an upper limit of the count beyond the support.
    doubtful : ndarray of bool, shape (bins,)
        Bins whose noise enters limits: those from the first to the last significant one, and one more at each side.
    """

    counts: Floats
    found: Flags
    limits: Floats
    doubtful: Flags


def estimate_histogram(noisy: Floats, error: float, width: float = 0.0) -> Histogram:
    """Return the estimated counts of the bins.

    Parameters
    ----------
    noisy : ndarray of float64, shape (bins,)
    error : float
        Standard deviation of each noisy count.
    width : float
        Standard deviations of the upper limits of counts.
    """
    found = significant_bins(noisy, error)
    counts, limits, doubtful = np.zeros(len(noisy)), np.zeros(len(noisy)), found.copy()
    if found.any():
        seen = found.copy()
        seen[len(noisy) // 2] = True  # zeros are counted, whether or not there are many
        counts[seen] = _with_same_total(noisy[seen])
        limits[:] = counts
        for step in (1, -1):
            _add_tail(counts[::step], noisy[::step], found[::step], error)
            _add_limits(limits[::step], counts[::step], found[::step], error, width)
        places = np.flatnonzero(found)
        doubtful[max(places[0] - 1, 0) : places[-1] + 2] = True

    return Histogram(counts=counts, found=found, limits=limits, doubtful=doubtful)


def significant_bins(noisy: Floats, error: float) -> Flags:
    """Return the bins beside 0 that certainly have records.

    `noisy` are counts in ascending order with the bin of 0 in the middle, which is set to 0. Windows of bins are
    accepted above FAR standard deviations, then those near accepted ones above NEAR. `error` is the standard error of a
    count. The reversed pass extends towards −∞.
    """
    found = np.zeros(len(noisy), bool)
    beside = noisy.copy()
    beside[len(noisy) // 2] = 0.0
    _accept_windows(beside, error, FAR, found)

    if found.any():
        _accept_windows(beside, error, NEAR, found)
        for step in (1, -1):
            _extend(beside[::step], error, found[::step])
    return found


def _accept_windows(noisy: Floats, error: float, limit: float, found: Flags) -> None:
    """Mark windows that exceed a limit, the most significant first; nearby ones only, once some are marked.

    `noisy` are counts of bins, `error` is their standard error, and `found` marks bins; it is changed in place. `free`
    marks windows all of whose bins are unmarked and nearby, and `score` is their sum in standard deviations.
    """
    nearby = np.convolve(found, np.ones(2 * NEARBY + 1), "same") > 0 if found.any() else np.ones(len(found), bool)
    for width in WINDOWS:
        ones = np.ones(width)
        free = np.convolve(~found & nearby, ones, "valid") > width - 0.5
        score = np.where(free, np.convolve(noisy, ones, "valid") / (error * np.sqrt(width)), -np.inf)
        while score.max() > limit:
            at = int(score.argmax())
            found[at : at + width] = True
            # windows that overlap the marked one
            score[max(0, at - width + 1) : at + width] = -np.inf


def _extend(noisy: Floats, error: float, found: Flags) -> None:
    """Mark the next bin beyond the marked ones, upwards, while its count is above BESIDE standard errors.

    `found` is changed in place.
    """
    at = int(np.flatnonzero(found).max()) + 1
    while at < len(noisy) and noisy[at] > BESIDE * error:
        found[at] = True
        at += 1


def _with_same_total(counts: Floats) -> Floats:
    """Return the nearest counts of at least 0 with the same total, which is taken as at least 1.

    Euclid's projection subtracts one number from all counts and sets those below 0 to 0.
    """
    total, descending = max(counts.sum(), 1.0), np.sort(counts)[::-1]
    # the number to subtract if the largest 1, 2, … counts stay above 0
    shifts = (np.cumsum(descending) - total) / np.arange(1, len(descending) + 1)
    return np.maximum(counts - shifts[np.flatnonzero(descending > shifts).max()], 0)


def _add_tail(counts: Floats, noisy: Floats, found: Flags, error: float) -> None:
    """Add a geometric tail beyond the last significant bin to `counts`, in place; the arrays ascend away from 0.

    `guess` continues the fall of the last two counts. The noisy count of the next bin corrects it, the more the larger
    the guess is beside the noise (`trust`).
    """
    top, zero = int(np.flatnonzero(found).max()), len(noisy) // 2
    if top - zero < LEAST_TAIL:
        return

    last, before = counts[top], counts[top - 1]
    guess = last * min(last / max(before, last, 1.0), MOST_RATIO)
    trust = guess**2 / (guess**2 + error**2)
    amount = min(max(guess + trust * (noisy[top + 1 : top + 2].sum() - guess), 0), 2 * guess)
    if amount <= 0:
        return

    ratio = min(amount / max(last, 1e-9), MOST_RATIO)
    room = counts[top + 1 : top + 1 + TAIL_OCTAVES]
    room[:] = amount * ratio ** np.arange(len(room))


def _add_limits(limits: Floats, counts: Floats, found: Flags, error: float, width: float) -> None:
    """Add the tail beyond the last significant bin to `limits`, in place: that of `counts` and its possible error.

    The tail beyond the next bin continues an upper limit of that bin's count, `width` standard errors above it. Arrays
    are those of the bins, mirrored by the caller for the lower side.
    """
    top, zero = int(np.flatnonzero(found).max()), len(limits) // 2
    if top < zero:
        return
    room = limits[top + 1 : top + 1 + TAIL_OCTAVES]
    room[:] = counts[top + 1 : top + 1 + TAIL_OCTAVES]
    room[1:] += width * error * MOST_RATIO ** np.arange(1, len(room))


@dataclass(frozen=True)
class EdgePlan:
    """Measurement of a dyadic tree.

    Attributes
    ----------
    attribute : Attribute
    share : Fraction
        Squared mu that a unit pays at most.
    rows_per_unit : int
    """

    attribute: Attribute
    share: Fraction
    rows_per_unit: int

    @property
    def cost(self) -> Cost:
        return Cost(gaussian=self.share)

    @property
    def search(self) -> EdgeSearch:
        assert isinstance(self.attribute.search, EdgeSearch)
        return self.attribute.search

    @property
    def record(self) -> dict[str, Any]:
        """Everything that determines the draws, in text and integers."""
        low, bits = self.search.axis
        return {"search": "edges", "version": 1, "attribute": self.attribute.name, "column": self.attribute.column,
                "low": str(low), "bits": bits, "step": str(self.search.unit), "share": str(self.share),
                "rows_per_unit": self.rows_per_unit}  # fmt: skip


Nodes = tuple[int, Words, Floats]  # level, indices in the level, and precisions


@dataclass
class TreeMeasurement:
    """Measurement of nodes with keyed noise, and the exact cost of every path.

    Attributes
    ----------
    plan : EdgePlan
    secret : bytes
    head : mapping
        Beginning of every noise record.
    count : callable
        Returns the exact counts of nodes of a level.
    nodes : list
        Level, index, multiplier, variance and value of every measured node.
    """

    plan: EdgePlan
    secret: bytes = field(repr=False)
    head: Mapping[str, Any]
    count: Count = field(repr=False)
    rounds: int = 0
    spent: dict[tuple[int, int], int] = field(default_factory=dict, repr=False)
    parts: list[TreeCounts] = field(default_factory=list, repr=False)
    nodes: list[list[Any]] = field(default_factory=list, repr=False)

    def measure(self, nodes: Sequence[Nodes]) -> list[Floats]:
        """Return the measured counts of nodes of one round, after its cost is added to the paths and checked."""
        self.rounds += 1
        # one kind of noise for each precision, which many nodes share
        draws = [{wanted: self._draw(wanted) for wanted in np.unique(precision).tolist()} for _, _, precision in nodes]
        for (level, index, precision), draw_of in zip(nodes, draws, strict=True):
            for place, wanted in zip(index.tolist(), precision.tolist(), strict=True):
                # a path pays for the nodes on it
                self._spend(level, place, draw_of[wanted])

        # compared before any noise is drawn
        if self.dearest > self.plan.share:
            raise BudgetError("privacy", "a path of a tree beyond its share of the budget", "at most the charge",
                              "report this as a fault of dpscale")  # fmt: skip
        return [self._measure_level(*of_level, draw_of) for of_level, draw_of in zip(nodes, draws, strict=True)]

    def _measure_level(
        self, level: int, index: Words, precision: Floats, draws: Mapping[float, GaussianDraw]
    ) -> Floats:
        """Measure nodes of a level with the noise of their precision, record the draws, and return the noisy counts.

        `draws` has the draw of each precision. A node's record is level, index, multiplier, variance and noisy count.
        """
        value, exact_precision = np.empty(len(index)), np.empty(len(index))
        counts = self.count(level, index) if len(index) else np.zeros(0, np.int64)
        for wanted, draw in draws.items():
            same_precision = precision == wanted
            value[same_precision] = self._noisy(level, index[same_precision], counts[same_precision], draw)
            noise = [str(draw.multiplier), str(draw.variance)]
            self.nodes += [
                [level, str(place), *noise, float(noisy)]
                for place, noisy in zip(index[same_precision].tolist(), value[same_precision], strict=True)
            ]
            exact_precision[same_precision] = 1 / draw.lattice_variance

        self.parts.append(
            TreeCounts(level=np.full(len(index), level), index=index, value=value, precision=exact_precision)
        )
        return value

    def _draw(self, precision: float) -> GaussianDraw:
        """Return the noise of a precision, whose squared mu is that of a unit with all its rows in the node."""
        rows = self.plan.rows_per_unit
        return search_draw(Fraction(precision) * rows**2, rows, f"the bins of {self.plan.attribute.name}")

    def _noisy(self, level: int, index: Words, counts: Integers, draw: GaussianDraw) -> Floats:
        """Return noisy counts of nodes.

        Counts are multiplied by `draw.multiplier` before whole noise is added. The label of the noise names the round
        and all nodes, so no two measurements share a stream.
        """
        label = {**self.head, **self.plan.record, **draw.noise_spec, "multiplier": str(draw.multiplier),
                 "round": self.rounds, "level": level, "nodes": [str(place) for place in index.tolist()]}  # fmt: skip
        noise = draw.words(open_stream(self.secret, "noise", label), len(counts))
        return np.asarray((draw.multiplier * counts + noise) / draw.multiplier)

    def _spend(self, level: int, index: int, draw: GaussianDraw) -> None:
        self.spent[level, index] = self.spent.get((level, index), 0) + cost_units(draw.cost)

    @property
    def dearest(self) -> Fraction:
        """Squared mu of the dearest path, for a record that may lie in any node that was measured.

        `spent` maps (level, index) of a node to its cost in units. The parent of node i is i >> 1, so a total is that
        of the path from the root.
        """
        totals: dict[tuple[int, int], int] = {}
        for level, index in sorted(self.spent):
            totals[level, index] = totals.get((level - 1, index >> 1), 0) + self.spent[level, index]
        return cost_of_units(max(totals.values(), default=0))


def measure_tree(measurement: TreeMeasurement) -> Leaves:
    """Measure the tree and return the estimate of its leaves.

    `policy` chooses nodes and precisions from earlier noisy values only. In each level nodes are measured twice: `look`
    chooses which of them are measured again, and `look_again` the nodes of the next level.
    """
    plan = measurement.plan
    bits = plan.search.axis[1]
    policy, level = TreePolicy(bits, float(plan.share) / plan.rows_per_unit**2), 0
    index, precision = policy.first()

    while len(index):
        [value] = measurement.measure([(level, index, precision)])
        again, more = policy.look(index, precision, value)
        [value] = measurement.measure([(level, again, more)])
        index, precision = policy.look_again(more, value)
        level += 1

    measurement.measure(policy.last_round())
    parts = measurement.parts
    return estimate_leaves(
        bits,
        TreeCounts(
            level=np.concatenate([part.level for part in parts]),
            index=np.concatenate([part.index for part in parts]),
            value=np.concatenate([part.value for part in parts]),
            precision=np.concatenate([part.precision for part in parts]),
        ),
    )


def found_edges(plan: EdgePlan, leaves: Leaves) -> tuple[Attribute, dict[str, Any]]:
    """Return the attribute with bins of the leaves, and the released record.

    Leaves are joined into search.bins bins or fewer, in units of search.unit from the axis's low end. A single bin is
    divided in the middle, because an attribute has two cells or more.
    """
    starts, counts, errors = join_leaves(_within(plan, leaves), plan.search.bins)
    low, _ = plan.search.axis
    end = _end(plan)
    steps = [*(low + int(place) for place in starts), end]
    edges = [float(step * plan.search.unit) for step in steps]
    if len(edges) < 3:  # an attribute has two cells or more
        edges.insert(1, (edges[0] + edges[1]) / 2)
        counts, errors = np.repeat(counts / 2, 2), np.repeat(errors, 2)

    closed = replace(plan.attribute, edges=tuple(edges), search=None)
    return closed, {"edges": edges, "counts": counts.tolist(), "errors": errors.tolist()}


def _end(plan: EdgePlan) -> int:
    """Return the end of the axis in steps: after the last value, if that is public, or else that of the tree."""
    low, bits = plan.search.axis
    return low + (1 << bits) if plan.search.high is None else plan.search.high + 1


def _within(plan: EdgePlan, leaves: Leaves) -> Leaves:
    """Return the leaves that begin within the public ends, and whose first values differ as floats.

    Leaves that are not kept add their counts to the last kept one before them.
    """
    low, _ = plan.search.axis
    starts = [low + int(place) for place in leaves.first]
    as_floats = [float(start * plan.search.unit) for start in starts]
    end = float(_end(plan) * plan.search.unit)
    kept = [at == 0 or as_floats[at - 1] < as_floats[at] < end for at in range(len(starts))]
    if plan.search.high is not None:
        kept = [is_kept and start <= plan.search.high for is_kept, start in zip(kept, starts, strict=True)]
    chosen = np.flatnonzero(kept)
    # number of the last leaf that stays, for every leaf
    groups = np.searchsorted(chosen, np.arange(len(starts)), side="right") - 1
    counts, variances = np.bincount(groups, leaves.counts), np.bincount(groups, leaves.errors**2)

    return Leaves(
        first=leaves.first[chosen],
        last=leaves.last[chosen],
        counts=np.asarray(counts, np.float64),
        errors=np.sqrt(variances),
    )


def join_leaves(leaves: Leaves, most: int | None) -> tuple[Words, Floats, Floats]:
    """Return first places, counts and errors of bins: leaves without records join a neighbour, and at most `most` stay.

    Of more bins, the two neighbours with the smallest sum are joined.

    A bin is [first place, count, variance]. A count below EMPTY_ERRORS standard deviations may be that of no records.
    """
    bins = [
        [int(first), float(count), float(error) ** 2]
        for first, count, error in zip(leaves.first, leaves.counts, leaves.errors, strict=True)
    ]
    joined = bins[:1]
    for first, count, variance in bins[1:]:
        before = joined[-1]
        are_empty = all(n <= EMPTY_ERRORS * v**0.5 for n, v in ((before[1], before[2]), (count, variance)))
        # both sides of the edge are empty: the edge separates nothing
        if are_empty:
            joined[-1] = [before[0], before[1] + count, before[2] + variance]
        else:
            joined.append([first, count, variance])

    while most is not None and len(joined) > most:
        at = min(range(len(joined) - 1), key=lambda place: joined[place][1] + joined[place + 1][1])
        left, right = joined[at : at + 2]
        joined[at : at + 2] = [[left[0], left[1] + right[1], left[2] + right[2]]]

    firsts = np.array([first for first, _, _ in joined], np.uint64)
    return firsts, np.array([count for _, count, _ in joined]), np.sqrt([variance for _, _, variance in joined])
