"""Strategy on the nodes of a tree: K has the row m_v a_v for each node v, where a_v has ones at the leaves below it.

A record changes the nodes on the path of its leaf, so the squared sensitivity is the largest Σ m_v² over a path. At
unit noise variance the least squares estimate is computed by two passes, exactly and in linear time (Hay et al. 2010,
here with precisions w_v = m_v² of any nodes; y_v is the measurement of v divided by m_v):

    up:    S_v = Σ_c V_c,  z_v = V_v (w_v y_v + Σ_c z_c / S_v),  V_v = 1 / (w_v + 1 / S_v)
    down:  g_c = V_c / S_v,  x_c = z_c + g_c (x_v − Σ_c z_c),  P_c = V_c − V_c g_c + g_c² P_v.

The estimates of all levels add up. The variance of Σ a_j x_j over leaves is one pass upwards:
    Σ_v (Σ_c a_c² V_c − (Σ_c a_c V_c)² / S_v) + a_root² V_root,  a_v = Σ_c a_c V_c / S_v.

A *centred* strategy has the rows m_v (N a_v − n_v 1), without the root, where n_v of N are integer weights of the nodes
that add up, such as numbers of leaves. It measures what remains of the counts after the total, spread by n_v / N, is
subtracted. This sums to zero and is independent of the total: the same passes with the root known to be 0.

If the nodes of a level are *known* from a public total, only nodes below are measured, and the passes end at that
level, with V = 0 there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from dpscale.base.numerics import Flags, Floats, Integers, NDArray
from dpscale.plans.factor import Factor
from dpscale.workload.tree import Tree

LARGEST, LARGEST_SPREAD = 1 << 24, 1 << 40  # of multipliers, and of the sum of the weights of leaves


@dataclass(frozen=True, eq=False)
class TreePasses:
    """What the two passes need of a tree's precisions, by level from the root.

    Attributes
    ----------
    sums : tuple of ndarray
        S of the nodes above the leaves.
    below : tuple of ndarray
        V: variance of a node's estimate from the measurements at and below it.
    gains : tuple of ndarray
        g of the nodes below the root.
    variances : tuple of ndarray
        P: variance of the least squares estimate of each node.
    """

    sums: tuple[Floats, ...]
    below: tuple[Floats, ...]
    gains: tuple[Floats, ...]
    variances: tuple[Floats, ...]


@dataclass(frozen=True, eq=False)
class TreeFactor(Factor):
    """Strategy of the kind "tree".

    Attributes
    ----------
    tree : Tree
    multipliers : tuple of ndarray of int64
        m_v ≥ 0 of the nodes of each level, from the root; nodes with 0 are not measured. Leaves have m_v ≥ 1.
    spread : ndarray of int64, or None
        Weights n_v ≥ 1 of the leaves of a centred strategy.
    known : int
        Level whose nodes are known exactly; −1 if there is none.
    """

    tree: Tree | None = None
    multipliers: tuple[Integers, ...] = ()
    spread: Integers | None = None
    known: int = -1

    def __post_init__(self) -> None:
        """Raise ValueError unless the multipliers are those of the nodes of a tree."""
        tree, own = self.tree, self.multipliers
        if self.kind != "tree" or tree is None or tuple(map(len, own)) != tree.sizes or self.shape != tree.sizes[-1:]:
            raise ValueError("the multipliers of a strategy do not match its tree")
        if any(one.dtype != np.int64 or int(one.min()) < 0 or int(one.max()) >= LARGEST for one in own):
            raise ValueError("the multipliers of a tree are not integers from 0 to 2^24")
        if int(own[-1].min()) < 1 or (self.centred and int(own[0][0])):
            raise ValueError("a leaf of a tree is not measured, or the root of a centred one is")
        if self.known >= tree.depth or (self.known >= 0 and self.centred):
            raise ValueError("the level of a tree that is known has no nodes below, or the tree is centred")
        if any(int(one.max()) for one in own[: self.known + 1]):
            raise ValueError("a node of a tree is measured although it is known")
        if self.centred and not self._has_spread:
            raise ValueError("the weights of a centred tree are not integers of at least 1, one for each leaf")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the fields alone, without the variances of all nodes."""
        return TreeFactor, tuple(getattr(self, one.name) for one in fields(self))

    @property
    def centred(self) -> bool:
        """Whether the rows sum to zero for the weights `spread`."""
        return self.spread is not None

    @property
    def _has_spread(self) -> bool:
        own = self.spread
        if own is None or own.dtype != np.int64 or own.shape != self.shape or int(own.min()) < 1:
            return False
        return int(own.max()) < LARGEST_SPREAD and int(own.sum()) < LARGEST_SPREAD

    @cached_property
    def spreads(self) -> list[Integers]:
        """Weights of the nodes of every level; ones at the leaves of a strategy that is not centred."""
        return self.levels.sums(np.ones(self.cells, np.int64) if self.spread is None else self.spread)

    def profile(self, level: int) -> Floats:
        """Return n_v / N of the nodes of a level."""
        return np.asarray(self.spreads[level] / self.spreads[0][0])

    @cached_property
    def _unit(self) -> int:
        """Factor N of the rows of a centred strategy, else 1."""
        return int(self.spreads[0][0]) if self.centred else 1

    @property
    def levels(self) -> Tree:
        """The tree."""
        assert self.tree is not None
        return self.tree

    @cached_property
    def measured(self) -> tuple[Flags, ...]:
        """Whether each node is measured, by level."""
        return tuple(own > 0 for own in self.multipliers)

    @cached_property
    def rows(self) -> int:  # type: ignore[override]
        return sum(int(own.sum()) for own in self.measured)

    @cached_property
    def digest(self) -> str:  # type: ignore[override]
        content = b"".join(np.ascontiguousarray(own, "<i8").tobytes() for own in self.multipliers)
        if self.spread is not None:
            content += np.ascontiguousarray(self.spread, "<i8").tobytes()
        head = f"{self.kind}{self.centred}{self.levels.digest}{self.known if self.known >= 0 else ''}"
        return hashlib.sha256(head.encode() + content).hexdigest()

    @property
    def spans_all(self) -> bool:
        return True

    @property
    def is_product(self) -> bool:
        return False

    @property
    def commutes(self) -> bool:
        return True

    @cached_property
    def squared_l2_sensitivity(self) -> int:  # type: ignore[override]
        """Largest Σ m_v² over a path, exact; with the other nodes if centred."""
        return self._largest_path([own.astype(object) ** 2 if self.centred else own**2 for own in self.multipliers], 2)

    @cached_property
    def l1_sensitivity(self) -> int:  # type: ignore[override]
        return self._largest_path([own.astype(object) if self.centred else own for own in self.multipliers], 1)

    def _largest_path(self, values: Sequence[NDArray[Any]], power: int) -> int:
        """Return the largest sum over a path of m^power, times |N − n_v|^power + Σ over the others of n_v^power."""
        if not self.centred:
            return int(self.levels.lift(values).max())
        whole, counts = self._unit, self.spreads
        pairs = list(zip(values, counts, strict=True))
        every = sum(int((own * number.astype(object) ** power).sum()) for own, number in pairs)
        on_path = [own * ((whole - number.astype(object)) ** power - number.astype(object) ** power)
                   for own, number in pairs]  # fmt: skip
        return every + int(max(self.levels.lift(on_path)))

    @cached_property
    def largest(self) -> int:  # type: ignore[override]
        return max(int(own.max()) for own in self.multipliers) * self._unit

    @cached_property
    def largest_row_sum(self) -> int:  # type: ignore[override]
        leaves, whole = self.levels.leaf_counts, self._unit
        if not self.centred:
            return max(int((own * number).max()) for own, number in zip(self.multipliers, leaves, strict=True))
        rows = [own.astype(object) * (number * (whole - spread) + (self.cells - number) * spread)
                for own, number, spread in zip(self.multipliers, leaves, self.spreads, strict=True)]  # fmt: skip
        return int(max(one.max() for one in rows))

    def explicit(self) -> Integers:
        """Return K as a matrix, shape (rows, cells); for few cells."""
        return np.asarray(self.apply(np.eye(self.cells, dtype=np.int64)))

    def apply(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return K applied along the leading axis."""
        sums, found = self.levels.sums(values), []
        for level, (own, known, total) in enumerate(zip(self.multipliers, self.measured, sums, strict=True)):
            if not known.any():
                continue
            column = (-1, *[1] * (values.ndim - 1))
            if self.centred:
                total = total * self._unit - self.spreads[level].reshape(column) * sums[0]
            some = slice(None) if known.all() else known
            found.append(total[some] * own[some].reshape(column))
        return np.concatenate(found)

    @cached_property
    def passes(self) -> TreePasses:
        """Coefficients of the two passes at unit noise variance."""
        tree, scale = self.levels, float(self._unit)
        precisions = [(own * scale) ** 2 for own in self.multipliers]
        first = self._first
        sums, below = list[Floats](), [1 / precisions[-1]]
        for level in range(tree.depth - 1, first - 1, -1):
            sums.append(tree.sum_children(below[-1], level))
            below.append(1 / (precisions[level] + 1 / sums[-1]))
        if self._is_fixed:
            below[-1] = np.zeros(tree.sizes[first])
        above = [np.zeros(size) for size in tree.sizes[:first]]
        sums, below = [*above, *sums[::-1]], [*above, *below[::-1]]
        gains, variances = [np.zeros(size) for size in tree.sizes[1 : first + 1]], [*above, below[first]]
        for level in range(first, tree.depth):
            parents = tree.parents[level]
            gains.append(below[level + 1] / sums[level][parents])
            variances.append(below[level + 1] * (1 - gains[-1]) + gains[-1] ** 2 * variances[level][parents])
        return TreePasses(tuple(sums), tuple(below), tuple(gains), tuple(variances))

    @property
    def _first(self) -> int:
        """Highest level of the passes."""
        return max(self.known, 0)

    @property
    def _is_fixed(self) -> bool:
        """Whether the nodes of the highest level are not estimated: a known level, or the root of a centred tree."""
        return self.centred or self.known >= 0

    def node_estimates(self, values: Floats, known: Floats | None = None) -> list[Floats]:
        """Return the least squares estimates of the nodes of every level.

        Parameters
        ----------
        values : ndarray, shape (rows, …)
            Measurements, in units of K · counts.
        known : ndarray, shape (nodes, …), optional
            Values of the nodes of the known level. Default: 0.

        Returns
        -------
        list of ndarray, shape (nodes, …)
        """
        return self._solve(self._weighed(values), known)

    def node_covariance(self, values: Floats, level: int) -> Floats:
        """Return the covariance of the nodes of a level at unit noise variance, applied to values, shape (nodes, …)."""
        weighed: list[Any] = [None] * (self.levels.depth + 1)
        weighed[-1] = np.zeros((self.cells, *values.shape[1:]))
        weighed[level] = values
        return self._solve(weighed)[level]

    def _solve(self, weighed: Sequence[Any], known: Floats | None = None) -> list[Floats]:
        """Return the estimates of all nodes from Σ w_v y_v by level; None for a level without measurements."""
        tree, passes, column = self.levels, self.passes, (-1, *[1] * (weighed[-1].ndim - 1))
        found, totals = [passes.below[-1].reshape(column) * weighed[-1]], list[Floats]()
        for level in range(tree.depth - 1, self._first - 1, -1):
            totals.append(tree.sum_children(found[-1], level))
            mean = totals[-1] / passes.sums[level].reshape(column)
            own = mean if weighed[level] is None else weighed[level] + mean
            found.append(passes.below[level].reshape(column) * own)
        if known is not None and self.known >= 0:
            found[-1] = known
        found, totals = found[::-1], totals[::-1]
        for place, total in enumerate(totals):
            level = self._first + place
            rest = (found[place] - total)[tree.parents[level]]
            found[place + 1] = found[place + 1] + passes.gains[level].reshape(column) * rest
        for level in range(self._first - 1, -1, -1):
            found.insert(0, tree.sum_children(found[0], level))
        return found

    def misfit(self, values: Floats, known: Floats) -> tuple[float, int]:
        """Return the χ² statistic of known nodes, from the measurements below them, and its degrees of freedom.

        Parameters
        ----------
        values : ndarray, shape (rows,)
            Measurements, at unit noise variance.
        known : ndarray, shape (nodes,)
        """
        squares = (known - self._summed(values)) ** 2 / self.passes.sums[self.known]
        return float(squares.sum()), len(squares)

    def _summed(self, values: Floats) -> Floats:
        """Return the sum of the estimates of the children of each known node, from the measurements below them."""
        weighed = self._weighed(values)
        found = self.passes.below[-1] * weighed[-1]
        for level in range(self.levels.depth - 1, self.known, -1):
            mean = self.levels.sum_children(found, level) / self.passes.sums[level]
            found = self.passes.below[level] * (mean if weighed[level] is None else weighed[level] + mean)
        return np.asarray(self.levels.sum_children(found, self.known))

    def _weighed(self, values: Floats) -> list[Any]:
        """Return w_v y_v by level; None for a level that is not measured."""
        scale, column, start = float(self._unit), (-1, *[1] * (values.ndim - 1)), 0
        found: list[Any] = []
        for own, known in zip(self.multipliers, self.measured, strict=True):
            number = int(known.sum())
            part, start = values[start : start + number], start + number
            if number == len(own):
                found.append(part * (own * scale).reshape(column))
            elif number:
                found.append(np.zeros((len(own), *values.shape[1:])))
                found[-1][known] = part * (own[known] * scale).reshape(column)
            else:
                found.append(None)
        return found

    def sparse_variance(self, nodes: Integers, weights: Floats, level: int) -> float:
        """Return the variance of Σ a_v x_v over some nodes of a level, each listed once, at unit noise variance."""
        passes, total = self.passes, 0.0
        for depth in range(level, self._first, -1):
            above, place = np.unique(self.levels.parents[depth - 1][nodes], return_inverse=True)
            below = passes.below[depth][nodes]
            shared = np.bincount(place, weights * below, minlength=len(above))
            total += float(weights**2 @ below - shared**2 @ (1 / passes.sums[depth - 1][above]))
            nodes, weights = above, shared / passes.sums[depth - 1][above]
        return total + float(weights**2 @ passes.below[min(level, self._first)][nodes])

    def estimate(self, values: Floats, axis: int = 0) -> Floats:
        """Return the estimate of the leaves along `axis`; the axis is moved to the end."""
        return np.moveaxis(self.node_estimates(np.moveaxis(values, axis, 0))[-1], 0, -1)

    @cached_property
    def inverse(self) -> Floats:  # type: ignore[override]
        """K⁺ as a matrix, shape (cells, rows); for few cells."""
        return self.node_estimates(np.eye(self.rows))[-1]

    @cached_property
    def covariance(self) -> Floats:  # type: ignore[override]
        return np.asarray(self.inverse @ self.inverse.T)

    @property
    def mean_variance(self) -> float:
        return float(self.passes.variances[-1].mean())

    @property
    def is_long(self) -> bool:
        return True

    def project(self, pieces: Floats) -> Floats:
        return pieces
