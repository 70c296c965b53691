"""Choice of the nodes of a dyadic tree that are measured, and of their precisions, from noisy counts only.

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
"""

from __future__ import annotations

import numpy as np

from dpscale.base.numerics import Flags, Floats, NDArray, Words

SEARCH, SAFETY, PART, ROOT = 0.5, 4.0, 0.5, 0.01
SLACK = 2.0**-30  # of the budget, for sums of floats
UNSEEN = 1e-6  # records of a node that is within one standard deviation of 0
GRID = 16  # precisions are powers of 2^(1/16): few distinct variances of noise


def on_grid(precision: Floats) -> Floats:
    """Return the precisions rounded down to a grid, so that many nodes share a variance."""
    with np.errstate(divide="ignore"):
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

        Parameters
        ----------
        index : ndarray of uint64, shape (nodes,)
            Indices within the level; the children of a node follow each other.
        precision, value : ndarray, shape (nodes,)
        """
        variance, spent, count = 1 / precision, precision.copy(), value.astype(float)
        if self.index:
            above, known = self._of_parent(self.count), self._of_parent(self.variance)
            gain = variance / (2 * variance + known)
            count = count + gain * (above - np.repeat(value.reshape(-1, 2).sum(1), 2))
            variance, spent = variance - variance * gain, spent + self._of_parent(self.spent)
        for store, new in zip((self.count, self.variance, self.spent), (count, variance, spent), strict=True):
            store.append(new)
        self.index.append(index)
        return self._unsure()

    def _of_parent(self, store: list[Floats]) -> Floats:
        return np.repeat(store[-1][self.split[-1]], 2)

    def _unsure(self) -> tuple[Words, Floats]:
        """Return the nodes that seem too small to be split but are not known well enough."""
        left = np.maximum(self.limit - self.spent[-1], 0)
        with np.errstate(divide="ignore"):
            self.least = SAFETY / np.sqrt(PART * left)
        wanted = on_grid(np.maximum(PART * left - 1 / self.variance[-1], 0))
        self.again = np.flatnonzero((self.count[-1] < self.least) & (wanted > 0) & self._divisible)
        return self.index[-1][self.again], wanted[self.again]

    @property
    def _divisible(self) -> bool:
        return len(self.index) <= self.bits

    def look_again(self, precision: Floats, value: Floats) -> tuple[Words, Floats]:
        """Take the repeated counts; return the nodes of the next level and their precisions, perhaps none."""
        again, count, variance, spent = self.again, self.count[-1], self.variance[-1], self.spent[-1]
        pooled = 1 / (1 / variance[again] + precision)
        count[again] = (count[again] / variance[again] + precision * value) * pooled
        variance[again] = pooled
        spent[again] += precision
        with np.errstate(divide="ignore"):
            needed = np.minimum((SAFETY / np.maximum(count, self.least)) ** 2, np.maximum(self.limit - spent, 0))
        needed = on_grid(needed)
        split = (count >= self.least) & (needed > 0) & self._divisible
        self.split.append(split)
        children = self.index[-1][split] << np.uint64(1)
        return np.stack([children, children + np.uint64(1)], 1).ravel(), np.repeat(needed[split], 2)

    def last_round(self) -> list[tuple[int, Words, Floats]]:
        """Return levels, nodes and precisions that use the rest of the budget of every path."""
        wish, total, room = self._wishes()
        found, used = [], np.zeros(1)
        for level, index in enumerate(self.index):
            precision = on_grid(np.maximum(room[level] - used, 0) * wish[level] / total[level])
            if (chosen := precision > 0).any():
                found.append((level, index[chosen], precision[chosen]))
            used = np.repeat((used + precision)[self.split[level]], 2)
        return found

    def _wishes(self) -> tuple[list[Floats], list[Floats], list[Floats]]:
        """Return sqrt(q), A, and the least precision left on any path below, for each level."""
        depth = len(self.index)
        rows, variance = [one.copy() for one in self.count], [one.copy() for one in self.variance]
        room, wish = [self.budget - one for one in self.spent], [np.full(1, 1e-3)] * depth
        total = [np.zeros(0)] * depth
        for level in reversed(range(depth)):
            split = self.split[level]
            if split.any():
                rows[level][split], variance[level][split] = _pairs(rows, level).sum(1), _pairs(variance, level).sum(1)
                room[level][split] = _pairs(room, level).min(1)
            if level:
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
    """Return the first and the last place of nodes on the axis, as unsigned integers."""
    width = bits - level
    if width == 64:
        return np.zeros_like(index), np.full_like(index, 2**64 - 1)
    low = index << np.uint64(width)
    return low, low + np.uint64(2**width - 1)
