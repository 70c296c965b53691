"""Plans over hierarchies: strategies on the nodes of a tree, attribute sets with levels, and the accuracy of all sets.

*Strategy.*
K has the row m_v a_v for each node v, where a_v has ones at the leaves below it.

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

*Attribute sets.*
A set has at most one level of a hierarchy that matters, the deepest. A table with a level above it has a count only
where the deeper cell is below the upper one.

*Accuracy.*
A block on the attributes (level, τ…) has a tree strategy on the level and centred strategies on τ. It determines the
residual τ at this level and at every level above it. The first hierarchy is not centred: a table without a level of it
is read at the root of the tree. The levels of any other hierarchy are centred like an attribute, by the weights of its
strategies, which are the same for all residuals with the same other attributes. Estimates of different residuals are
independent, so the variance of a product query is

    Σ_τ scale_τ · P_level · Π over τ of q_iᵀ (K_iᵀK_i)⁺ q_i · Π outside τ of (mean of q_i)².

*Names.* `multipliers` are the m_v by level, from the root, and `spread` the n_v of the leaves. A hierarchy is named by
its leaf attribute; `main` is the one that is not centred. `by_residual` has the block that measures each residual.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, reduce
from itertools import product
from typing import Any

import numpy as np

from dpscale.base.errors import PlanError
from dpscale.base.numerics import AttributeSet, Flags, Floats, Integers, NDArray
from dpscale.domain import Domain, Hierarchy
from dpscale.domain.hierarchy import Tree
from dpscale.plans.accuracy_base import NOTHING, Accuracy, ResidualEstimator, SpannedQuery, out_of_span
from dpscale.plans.blocks import Block
from dpscale.plans.factor import Factor
from dpscale.workload import MARGINAL, Family, WorkloadPart
from dpscale.workload.residual import subsets

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

    @classmethod
    def of(cls, tree: Tree, precisions: Sequence[Floats], first: int = 0, fixed: bool = False) -> TreePasses:
        """Return the passes for precisions by level from the root, at unit noise variance.

        Parameters
        ----------
        tree : Tree
            Of nodes, or of classes of nodes.
        precisions : sequence of ndarray
        first : int
            Highest level of the passes; the nodes above are not estimated.
        fixed : bool
            Whether the nodes of the highest level are known exactly.
        """
        # variances of estimates from the measurements at and below a node, from the leaves up, and sums over children
        sums, below = list[Floats](), [1 / precisions[-1]]
        for level in range(tree.depth - 1, first - 1, -1):
            sums.append(tree.sum_children(below[-1], level))
            below.append(1 / (precisions[level] + 1 / sums[-1]))

        if fixed:
            below[-1] = np.zeros(len(below[-1]))
        above = [np.zeros(size) for size in tree.sizes[:first]]
        sums, below = [*(zeros + 1 for zeros in above), *sums[::-1]], [*above, *below[::-1]]

        # gains of a node from its parent's estimate, and variances from all measurements, from the root down
        gains, variances = [np.zeros(size) for size in tree.sizes[1 : first + 1]], [*above, below[first]]
        for level in range(first, tree.depth):
            parents = tree.parents[level]
            gains.append(below[level + 1] / sums[level][parents])
            variances.append(below[level + 1] * (1 - gains[-1]) + gains[-1] ** 2 * variances[level][parents])

        return cls(tuple(sums), tuple(below), tuple(gains), tuple(variances))


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
        """Raise ValueError unless the multipliers are those of the nodes of a tree.

        A multiplier scales the sum of a node, and 0 means that it is not measured; `known` is the deepest level whose
        nodes are public, −1 without one. The rows of a centred tree are orthogonal to `spread`, integers on the leaves.
        """
        tree, multipliers = self.tree, self.multipliers
        if (
            self.kind != "tree"
            or tree is None
            or tuple(map(len, multipliers)) != tree.sizes
            or self.shape != tree.sizes[-1:]
        ):
            raise ValueError("the multipliers of a strategy do not match its tree")
        if any(
            of_level.dtype != np.int64 or int(of_level.min()) < 0 or int(of_level.max()) >= LARGEST
            for of_level in multipliers
        ):
            raise ValueError("the multipliers of a tree are not integers from 0 to 2^24")
        # every leaf needs a measurement, so that all sums are estimable; a centred tree has no total
        if int(multipliers[-1].min()) < 1 or (self.centred and int(multipliers[0][0])):
            raise ValueError("a leaf of a tree is not measured, or the root of a centred one is")
        if self.known >= tree.depth or (self.known >= 0 and self.centred):
            raise ValueError("the level of a tree that is known has no nodes below, or the tree is centred")
        # known nodes get no budget
        if any(int(of_level.max()) for of_level in multipliers[: self.known + 1]):
            raise ValueError("a node of a tree is measured although it is known")
        if self.centred and not self._has_spread:
            raise ValueError("the weights of a centred tree are not integers of at least 1, one for each leaf")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the fields alone, without the variances of all nodes."""
        return TreeFactor, tuple(getattr(self, field.name) for field in fields(self))

    @property
    def centred(self) -> bool:
        """Whether the rows sum to zero for the weights `spread`."""
        return self.spread is not None

    @property
    def _has_spread(self) -> bool:
        """Whether there are valid weights by which the total is spread over the leaves."""
        spread = self.spread
        if spread is None or spread.dtype != np.int64 or spread.shape != self.shape or int(spread.min()) < 1:
            return False
        return int(spread.max()) < LARGEST_SPREAD and int(spread.sum()) < LARGEST_SPREAD

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
        return tuple(multiplier > 0 for multiplier in self.multipliers)

    @cached_property
    def rows(self) -> int:  # type: ignore[override]
        return sum(int(of_level.sum()) for of_level in self.measured)

    @cached_property
    def digest(self) -> str:  # type: ignore[override]
        """SHA-256 of the kind, the tree, the multipliers and the spreading weights.

        `known` enters only if a level is known.
        """
        content = b"".join(np.ascontiguousarray(multiplier, "<i8").tobytes() for multiplier in self.multipliers)
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
        return self._largest_path(
            [multiplier.astype(object) ** 2 if self.centred else multiplier**2 for multiplier in self.multipliers], 2
        )

    @cached_property
    def l1_sensitivity(self) -> int:  # type: ignore[override]
        return self._largest_path(
            [multiplier.astype(object) if self.centred else multiplier for multiplier in self.multipliers], 1
        )

    def _largest_path(self, values: Sequence[NDArray[Any]], power: int) -> int:
        """Return the largest norm of a column, to the power: over paths of Σ m_v^power, given `values` m_v^power.

        Of a centred tree node v measures m_v (N x_v − n_v total), so a record adds N − n_v to the nodes on its path and
        −n_v to all others: the sum of m^power n^power over all nodes, and on the path the difference.
        """
        if not self.centred:
            return int(self.levels.lift(values).max())

        whole, off_path, on_path = self._unit, 0, []
        for powers, spread in zip(values, self.spreads, strict=True):
            share = spread.astype(object)
            off_path += int((powers * share**power).sum())
            on_path.append(powers * ((whole - share) ** power - share**power))

        return off_path + int(max(self.levels.lift(on_path)))

    @cached_property
    def largest(self) -> int:  # type: ignore[override]
        return max(int(multiplier.max()) for multiplier in self.multipliers) * self._unit

    @cached_property
    def largest_row_sum(self) -> int:  # type: ignore[override]
        """Largest sum of absolute entries in a row of K.

        The row of node v has the multiplier at its leaves; of a centred tree, it has N − n_v there and −n_v elsewhere.
        N is the sum of the integer weights of all leaves (`_unit`), n_v that of the leaves below v (`spreads`).
        """
        leaves, whole = self.levels.leaf_counts, self._unit
        if not self.centred:
            return max(
                int((multiplier * number).max()) for multiplier, number in zip(self.multipliers, leaves, strict=True)
            )

        rows = [
            multiplier.astype(object) * (number * (whole - spread) + (self.cells - number) * spread)
            for multiplier, number, spread in zip(self.multipliers, leaves, self.spreads, strict=True)
        ]
        return int(max(row.max() for row in rows))

    def explicit(self) -> Integers:
        """Return K as a matrix, shape (rows, cells); for few cells."""
        return np.asarray(self.apply(np.eye(self.cells, dtype=np.int64)))

    def apply(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return K applied along the leading axis.

        K has a row for each measured node, level by level: its multiplier times its sum. A centred row is N · (sum of
        the node) − n_v · (sum of all), with n_v the weight of its leaves and N that of all.
        """
        sums, rows = self.levels.sums(values), []
        for level, (multiplier, known, total) in enumerate(zip(self.multipliers, self.measured, sums, strict=True)):
            if not known.any():
                continue
            column = (-1, *[1] * (values.ndim - 1))
            if self.centred:
                total = total * self._unit - self.spreads[level].reshape(column) * sums[0]
            measured = slice(None) if known.all() else known
            rows.append(total[measured] * multiplier[measured].reshape(column))

        return np.concatenate(rows)

    @cached_property
    def passes(self) -> TreePasses:
        """Coefficients of the two passes at unit noise variance."""
        scale = float(self._unit)
        precisions = [np.asarray((multiplier * scale) ** 2, np.float64) for multiplier in self.multipliers]
        return TreePasses.of(self.levels, precisions, self._first, fixed=self.centred or self.known >= 0)

    @property
    def _first(self) -> int:
        """Highest level of the passes."""
        return max(self.known, 0)

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

    def _solve(self, weighted: Sequence[Any], known: Floats | None = None) -> list[Floats]:
        """Return the estimates of all nodes from Σ w_v y_v by level; None for a level without measurements.

        Estimates from below are passed up, then the difference of a node from the sum of its children is passed down.
        `known` are exact values of the highest level.

        x_c = z_c + g_c (x_v − Σ z_c), see the module: `rest` is the difference in brackets. Above the highest level of
        the passes, nodes are sums of their children.
        """
        tree, passes, column = self.levels, self.passes, (-1, *[1] * (weighted[-1].ndim - 1))
        estimates, totals = self._pass_up(weighted)
        if known is not None and self.known >= 0:
            estimates[0] = known

        for place, total in enumerate(totals):
            level = self._first + place
            rest = (estimates[place] - total)[tree.parents[level]]
            estimates[place + 1] = estimates[place + 1] + passes.gains[level].reshape(column) * rest

        for level in range(self._first - 1, -1, -1):
            estimates.insert(0, tree.sum_children(estimates[0], level))
        return estimates

    def misfit(self, values: Floats, known: Floats) -> tuple[float, int]:
        """Return the χ² statistic of known nodes, from the measurements below them, and its degrees of freedom.

        Parameters
        ----------
        values : ndarray, shape (rows,)
            Measurements, at unit noise variance.
        known : ndarray, shape (nodes,)
        """
        _, totals = self._pass_up(self._weighed(values))
        squares = (known - totals[0]) ** 2 / self.passes.sums[self.known]
        return float(squares.sum()), len(squares)

    def _pass_up(self, weighted: Sequence[Any]) -> tuple[list[Floats], list[Floats]]:
        """Return the estimates from the measurements at and below each node, and their sums over the children.

        Both are lists by level, from the highest one of the passes.

        z_v = V_v (w_v y_v + Σ z_c/S_v): `weighted` has w_v y_v, `below` is V and `sums` is S.
        """
        passes, column = self.passes, (-1, *[1] * (weighted[-1].ndim - 1))
        estimates, totals = [passes.below[-1].reshape(column) * weighted[-1]], list[Floats]()
        for level in range(self.levels.depth - 1, self._first - 1, -1):
            totals.append(self.levels.sum_children(estimates[-1], level))
            mean = totals[-1] / passes.sums[level].reshape(column)
            combined = mean if weighted[level] is None else weighted[level] + mean
            estimates.append(passes.below[level].reshape(column) * combined)
        return estimates[::-1], totals[::-1]

    def _weighed(self, values: Floats) -> list[Any]:
        """Return w_v y_v by level; None for a level that is not measured. `values` are y_v of all measured nodes.

        K has the rows m_v a_v (times N if centred), so a measured value times its multiplier is w_v y_v.
        """
        scale, column, start = float(self._unit), (-1, *[1] * (values.ndim - 1)), 0
        weighted: list[Any] = []
        for multiplier, known in zip(self.multipliers, self.measured, strict=True):
            number = int(known.sum())
            part, start = values[start : start + number], start + number
            if number == len(multiplier):
                weighted.append(part * (multiplier * scale).reshape(column))
            elif number:
                weighted.append(np.zeros((len(multiplier), *values.shape[1:])))
                weighted[-1][known] = part * (multiplier[known] * scale).reshape(column)
            else:
                weighted.append(None)

        return weighted

    def sparse_variance(self, nodes: Integers, weights: Floats, level: int) -> float:
        """Return the variance of Σ a_v x_v over some nodes of a level, each listed once, at unit noise variance.

        The pass upwards of the module: a level adds Σ a_c² V_c − (Σ a_c V_c)²/S_v, and a_v = Σ a_c V_c/S_v is the
        weight of the node above. Only nodes above the given ones are visited.
        """
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


@dataclass(frozen=True)
class TreeQuerySet:
    """Attribute set split into levels of hierarchies and other attributes.

    Attributes
    ----------
    levels : mapping of str to int
        Deepest level of each hierarchy with a level in the set, by the name of its leaf attribute; 1 is the top.
    axes : mapping of str to int
        Axis of every attribute; that of a level by the name of its leaf attribute.
    """

    levels: Mapping[str, int]
    axes: Mapping[str, int]


def split_levels(hierarchies: Sequence[Hierarchy], attributes: Sequence[str]) -> TreeQuerySet:
    """Return the levels and axes of an attribute set with at most one level of each hierarchy.

    A hierarchy is named by the attribute of its leaves; its level is 1 at the top, and other attributes have none.
    """
    levels, axes = dict[str, int](), dict[str, int]()
    for axis, name in enumerate(attributes):
        containing = next((hierarchy for hierarchy in hierarchies if name in hierarchy.names), None)
        leaf = name if containing is None else containing.leaf
        axes[leaf] = axis
        if containing is not None:
            levels[leaf] = containing.position(name) + 1
    return TreeQuerySet(levels, axes)


def implied_levels(hierarchies: Sequence[Hierarchy], attributes: Sequence[str]) -> dict[str, str]:
    """Return the levels in a set that follow from a deeper level of their hierarchy, with the deepest one."""
    implied = dict[str, str]()
    for hierarchy in hierarchies:
        levels = [name for name in hierarchy.names if name in attributes]
        implied |= dict.fromkeys(levels[:-1], levels[-1] if levels else "")
    return implied


def without_implied(hierarchies: Sequence[Hierarchy], attributes: Sequence[str]) -> AttributeSet:
    """Return a set without the levels that follow from a deeper level in it."""
    implied = implied_levels(hierarchies, attributes)
    return tuple(name for name in attributes if name not in implied)


def known_level(domain: Domain, hierarchy: Hierarchy, others: Sequence[str]) -> int:
    """Return the deepest level at which a table with other attributes follows from public totals; −1 without one.

    `others` are attributes outside the hierarchy; level 0 is the total over the hierarchy.
    """
    if not domain.public_totals:
        return -1
    for level in range(hierarchy.depth, 0, -1):
        if domain.known_table(domain.ordered((hierarchy.names[level - 1], *others))) is not None:
            return level
    return 0 if domain.known_table(domain.ordered(others)) is not None else -1


def with_implied(domain: Domain, table: Floats, attributes: Sequence[str]) -> Floats:
    """Return a table with an axis for every attribute: cells that are not below each other are 0.

    Parameters
    ----------
    domain : Domain
    table : ndarray
        One axis for each attribute but the implied levels, in the order of `attributes`.
    attributes : sequence of str
    """
    implied = implied_levels(domain.hierarchies, attributes)
    axes = [name for name in attributes if name not in implied]  # attributes of the table's axes
    for upper, lower in implied.items():
        hierarchy = domain.hierarchy_of(lower)
        assert hierarchy is not None
        inside = hierarchy.ancestors(upper, lower) == np.arange(domain[upper].size)[:, None]
        axis, axes = axes.index(lower), [upper, *axes]
        table = table * inside.reshape([-1, *(inside.shape[1] if i == axis else 1 for i in range(table.ndim))])
    return table.transpose([axes.index(name) for name in attributes])


def two_levels(implied: Mapping[str, str]) -> PlanError:
    """Return the refusal of a query over two levels of one hierarchy."""
    upper, lower = next(iter(implied.items()))
    return PlanError("query", f"{upper} and {lower}, levels of one hierarchy", "one level of a hierarchy",
                     f"leave out {upper}: it follows from {lower}")  # fmt: skip


def levels_only(name: str) -> PlanError:
    """Return the refusal of a family other than marginals on a level of a hierarchy."""
    return PlanError("workload", f"queries on {name}, a level of a hierarchy, that are not its cells", "marginals",
                     "ask for the marginal; `answer` and `area` of the release answer any query on it")  # fmt: skip


@dataclass(frozen=True)
class TreeResidualBlock:
    """Block that measures a residual.

    Attributes
    ----------
    index : int
        Position among the blocks.
    scale : float
        Noise variance.
    factors : mapping of str to Factor
        By attribute; trees by the name of their leaf attribute.
    levels : mapping of str to int
        Deepest level of each tree, by the name of its leaf attribute; the root is 0.
    """

    index: int
    scale: float
    factors: Mapping[str, Factor]
    levels: Mapping[str, int]


@dataclass(frozen=True, eq=False)
class TreeAccuracy(Accuracy):
    """Variances that add over residuals, each measured by one block at all levels of its trees."""

    @cached_property
    def hierarchies(self) -> tuple[Hierarchy, ...]:
        """Hierarchies of the domain with a measured level, the one that is not centred first."""
        named = {name for names in self.blocks.sets for name in names}
        used = [hierarchy for hierarchy in self.domain.hierarchies if named.intersection(hierarchy.names)]
        return tuple(sorted(used, key=lambda hierarchy: hierarchy.names[-1] != self.main))

    @cached_property
    def main(self) -> str:
        """Leaf attribute of the hierarchy that is not centred."""
        for block in self.blocks:
            for name, factor in zip(block.attributes, block.factors, strict=True):
                if isinstance(factor, TreeFactor) and not factor.centred:
                    hierarchy = self.domain.hierarchy_of(name)
                    assert hierarchy is not None
                    return hierarchy.leaf
        return ""

    @cached_property
    def by_residual(self) -> Mapping[AttributeSet, TreeResidualBlock]:
        """Block of each residual; a residual names other attributes, and leaf attributes of centred hierarchies."""
        return {key: block for key, block in map(self._block, range(len(self.blocks)))}

    def _block(self, index: int) -> tuple[AttributeSet, TreeResidualBlock]:
        """Return the residual of a block, and the block with its levels; a hierarchy is named by its leaf attribute.

        The number of a level is its position in the hierarchy plus 1; level 0 is the root.
        """
        block, names, levels = self.blocks[index], list[str](), dict[str, int]()
        for name, factor in zip(block.attributes, block.factors, strict=True):
            hierarchy = self.domain.hierarchy_of(name) if isinstance(factor, TreeFactor) else None
            names.append(name if hierarchy is None else hierarchy.leaf)
            if hierarchy is not None:
                levels[names[-1]] = hierarchy.position(name) + 1

        factors = dict(zip(names, block.factors, strict=True))
        residual = tuple(name for name in names if name != self.main)
        return residual, TreeResidualBlock(index=index, scale=self.variances[index], factors=factors, levels=levels)

    @property
    def residuals(self) -> Mapping[AttributeSet, ResidualEstimator]:  # type: ignore[override]
        """Return nothing: residuals of trees are read from `by_residual`."""
        return {}

    def complete_sets(self) -> Iterator[AttributeSet]:
        """Yield the residuals of which every cell can be estimated, with each level of their trees."""
        for residual, block in self.by_residual.items():
            if not all(factor.spans_all for factor in block.factors.values()):
                continue
            levels = [self._level_names(name, block, top=name == self.main) for name in block.levels]
            others = [name for name in residual if not self._is_leaf(name)]
            for chosen in product(*levels):
                yield self.domain.ordered([*others, *(name for name in chosen if name)])

        known = (subset for total in self.domain.public_totals for subset in subsets(total.names))
        yield from dict.fromkeys(subset for subset in known if self.key_of(subset) not in self.by_residual)

    def _level_names(self, leaf: str, block: TreeResidualBlock, top: bool) -> list[str]:
        """Return the measured levels of a hierarchy, with "" for its root if `top`."""
        hierarchy_of_leaf = next(hierarchy for hierarchy in self.hierarchies if hierarchy.leaf == leaf)
        return [""] * top + list(hierarchy_of_leaf.names[: block.levels[leaf]])

    @cached_property
    def _known_levels(self) -> dict[AttributeSet, int]:
        return {}

    def is_known(self, query: TreeQuerySet, residual: Sequence[str]) -> bool:
        """Return whether a residual follows from public totals at the levels of a set."""
        if not self.domain.public_totals or len(self.hierarchies) != 1:
            return False
        others = self.key(residual)
        if others not in self._known_levels:
            self._known_levels[others] = known_level(self.domain, self.hierarchies[0], others)
        return self._known_levels[others] >= query.levels.get(self.main, 0)

    def inside(self, query: TreeQuerySet) -> Iterator[tuple[AttributeSet, TreeResidualBlock]]:
        """Yield the residuals of an attribute set that are measured at its levels.

        `query` has the levels of the set. Residuals are over the other attributes, since the main hierarchy is not
        centred.
        """
        for residual in subsets(tuple(name for name in query.axes if name != self.main)):
            key = self.key(residual)
            block = self.by_residual.get(key)
            if block is not None and not self.is_known(query, key) and not self.missing(query, key):
                yield key, block

    def known_inside(self, query: TreeQuerySet) -> list[AttributeSet]:
        """Return the residuals of an attribute set that follow from public totals at its levels."""
        inside = subsets(tuple(name for name in query.axes if name != self.main))
        return [self.key(residual) for residual in inside if self.is_known(query, residual)]

    def key(self, names: Sequence[str]) -> AttributeSet:
        """Return a residual in the order of the domain's attributes, with levels in the place of their hierarchy."""
        return tuple(sorted(names, key=self._order.__getitem__))

    @cached_property
    def _order(self) -> Mapping[str, int]:
        place = {name: number for number, name in enumerate(self.domain.axis_names)}
        return place | {hierarchy.leaf: min(place[name] for name in hierarchy.names) for hierarchy in self.hierarchies}

    def key_of(self, names: Sequence[str]) -> AttributeSet:
        """Return the residual of a set: its attributes without the level of the hierarchy that is not centred."""
        return self.key([name for name in split_levels(self.hierarchies, names).axes if name != self.main])

    def missing(self, query: TreeQuerySet, residual: AttributeSet) -> bool:
        """Return whether a residual is neither measured nor known at the levels of an attribute set.

        Every hierarchy of the residual, and the main one, must be measured at least to the level that the set has.
        """
        if self.is_known(query, residual):
            return False
        block = self.by_residual.get(residual)
        wanted = {name: level for name, level in query.levels.items() if name in residual or name == self.main}
        return block is None or any(block.levels.get(name, 0) < level for name, level in wanted.items())

    def check_spanned(self, attributes: Sequence[str]) -> TreeQuerySet:
        """Return the split attribute set. Raises PlanError if a residual of it was not measured at its levels."""
        query = split_levels(self.hierarchies, attributes)
        for residual in subsets(tuple(name for name in query.axes if name != self.main)):
            if self.missing(query, self.key(residual)):
                raise out_of_span((*query.levels, *(name for name in residual if name not in query.levels)))
        return query

    def spanned(self, attributes: Sequence[str], query: Any) -> SpannedQuery:
        """Return the query with its pieces: for each subset of its attributes the query centred on it.

        Raises PlanError if the query has two levels of one hierarchy, or a piece was not measured.
        """
        ordered, values = self._aligned(attributes, query)
        implied = implied_levels(self.hierarchies, ordered)
        if implied:
            raise two_levels(implied)

        split, least = split_levels(self.hierarchies, ordered), NOTHING * np.abs(values).max()
        pieces = list[tuple[AttributeSet, Floats]]()
        for residual in subsets(tuple(name for name in split.axes if name != self.main)):
            part = self.piece(split, residual, values[0])
            if np.abs(part).max() > least:
                if self.missing(split, self.key(residual)):
                    raise out_of_span((*split.levels, *(name for name in residual if name not in split.levels)))
                pieces.append((residual, part))

        return SpannedQuery(ordered, values, tuple(pieces))

    def piece(self, query: TreeQuerySet, residual: Sequence[str], values: Floats) -> Floats:
        """Return the part of a query on a residual: axes outside it are averaged and keep the length 1.

        Along a residual's axis the query loses its mean under the profile; along another axis only the mean is left.
        """
        for name, axis in query.axes.items():
            if name == self.main:
                continue
            shape = [-1 if i == axis else 1 for i in range(values.ndim)]
            profile = self.profile(name, query.levels.get(name, 0), values.shape[axis], residual)
            mean = (values * profile.reshape(shape)).sum(axis=axis, keepdims=True)
            values = values - mean if name in residual else mean
        return values

    def profile(self, name: str, level: int, size: int, residual: Sequence[str]) -> Floats:
        """Return the distribution of the total of an axis over its cells, for the residual that the query has.

        It is uniform for an attribute. For a hierarchy it is that of the centred strategy with the same attributes.
        """
        if not level:
            return np.full(size, 1 / size)
        others = tuple(attribute for attribute in self.key(residual) if not self._is_leaf(attribute))
        return self._spreads[others, name].profile(level)

    @cached_property
    def _spreads(self) -> Mapping[tuple[AttributeSet, str], TreeFactor]:
        """Deepest centred strategy on a hierarchy, by the other attributes of the residual and the hierarchy."""
        deepest: dict[tuple[AttributeSet, str], TreeFactor] = {}
        for residual, block in self.by_residual.items():
            others = tuple(attribute for attribute in residual if not self._is_leaf(attribute))
            for name in block.levels:
                factor, key = block.factors[name], (others, name)
                if isinstance(factor, TreeFactor) and (key not in deepest or factor.cells > deepest[key].cells):
                    deepest[key] = factor
        return deepest

    def _is_leaf(self, name: str) -> bool:
        return any(name == hierarchy.leaf for hierarchy in self.hierarchies)

    def variance_of(self, query: SpannedQuery) -> float:
        split = split_levels(self.hierarchies, query.attributes)
        total = math.fsum(self._piece_variance(split, residual, part) for residual, part in query.pieces)
        return max(total, 0.0)  # what is known has a variance of 0 up to rounding

    def _piece_variance(self, query: TreeQuerySet, residual: AttributeSet, part: Floats) -> float:
        """Return the variance of a query's piece `part` on a residual; 0 if it follows from public totals."""
        if self.is_known(query, residual):
            return 0.0
        return self.partial_variance(query, residual, self.by_residual[self.key(residual)], query, part)

    def partial_variance(
        self,
        whole_set: TreeQuerySet,
        residual: AttributeSet,
        block: TreeResidualBlock,
        query_set: TreeQuerySet,
        piece: Floats,
    ) -> float:
        """Return the variance of q x̂ for a query q on the estimate x̂ of one residual.

        If the query is over some attributes of the set only, the variance along the others counts as 1: the caller
        multiplies by it. The covariance of x̂ is scale · ⊗ C, with a matrix C for each attribute of the residual and for
        the main hierarchy. So the variance scale · q (⊗ C) qᵀ needs one multiplication along each axis.

        Parameters
        ----------
        whole_set : TreeQuerySet
        residual : AttributeSet
        block : TreeResidualBlock
            Block that measures the residual.
        query_set : TreeQuerySet
            Attributes of the query, with their axes: all of the set, or those that are no levels of a hierarchy.
        piece : ndarray
            q over their cells, which is averaged to a single cell along attributes outside the residual.
        """
        multiplied = piece  # becomes q (⊗ C)
        for name, axis in query_set.axes.items():
            has_covariance = name in residual or name == self.main
            if has_covariance:
                level = query_set.levels.get(name, 0)  # of a hierarchy; 0 is its root
                multiplied = _apply_covariance(block.factors[name], multiplied, axis, level)

        scale = block.scale  # noise variance of the block
        if self.main not in whole_set.levels:
            scale *= self._root_variance(whole_set, block)  # the main hierarchy is read at its root
        return scale * float((piece * multiplied).sum())

    def _root_variance(self, query: TreeQuerySet, block: TreeResidualBlock) -> float:
        """Return the variance of the root, for a set without a level of the hierarchy that is not centred."""
        factor = block.factors.get(self.main)
        if self.main in query.levels or not isinstance(factor, TreeFactor):
            return 1.0
        return float(factor.passes.variances[0][0])

    def variances_below(self, attributes: AttributeSet) -> Floats:
        """Return the variances of the cells of a set from the measurements at and below their nodes alone.

        This is what remains of their variances once the levels above are known. The set has at most one level of each
        hierarchy.
        """
        query = self.check_spanned(attributes)
        families, total = dict.fromkeys(attributes, MARGINAL), np.zeros(self.domain.shape(attributes))
        for residual, block in self.inside(query):
            vectors = self._vectors(query, families, residual, block, below=True)
            total += block.scale * self._root_variance(query, block) * reduce(np.multiply.outer, vectors, np.ones(()))
        return total

    def _product_variances(self, families: Mapping[str, Family]) -> Floats:
        """Return the variances of all products of the families' queries, one axis for the queries of each attribute.

        A level that follows from a deeper one of its hierarchy is left out first, and added as cells that are 0.
        """
        reduced = without_implied(self.hierarchies, tuple(families))
        if len(reduced) < len(families):
            variances = self._product_variances({name: families[name] for name in reduced})
            return with_implied(self.domain, variances, tuple(families))

        query = self.check_spanned(tuple(families))
        total = np.zeros(tuple(family.count(self.domain[name].size) for name, family in families.items()))
        for residual, block in self.inside(query):
            vectors = self._vectors(query, families, residual, block)
            total += block.scale * self._root_variance(query, block) * reduce(np.multiply.outer, vectors, np.ones(()))

        return total

    def _product_error(self, families: Mapping[str, Family]) -> float:
        """Return the sum of the variances of all products of the families' queries."""
        reduced = without_implied(self.hierarchies, tuple(families))
        families = {name: families[name] for name in reduced}
        query = self.check_spanned(reduced)
        errors = []
        for residual, block in self.inside(query):
            vectors = self._vectors(query, families, residual, block)
            total = math.prod(float(variances.sum()) for variances in vectors)
            errors.append(block.scale * self._root_variance(query, block) * total)
        return math.fsum(errors)

    def _vectors(
        self,
        query: TreeQuerySet,
        families: Mapping[str, Family],
        residual: AttributeSet,
        block: TreeResidualBlock,
        below: bool = False,
    ) -> list[Floats]:
        """Return the variances of the queries of every axis at scale 1; `below`: see `variances_below`.

        The order: a tree has the variances of its nodes at the set's level; another factor of the residual its
        quadratic forms; an axis outside the residual the squared mean of each query under the axis' profile.
        """
        variances = []
        for (name, family), axis in zip(families.items(), query.axes, strict=True):
            level = query.levels.get(axis, 0)
            # levels of a tree answer counts of their nodes only
            if level and not family.is_identity:
                raise levels_only(name)

            factor = block.factors.get(axis) if axis in residual or axis == self.main else None
            if isinstance(factor, TreeFactor):
                variances.append((factor.passes.below if below else factor.passes.variances)[level])
            elif factor is not None:
                variances.append(factor.quadratics(family))
            else:
                size = self.domain[name].size
                variances.append(family.answers(self.profile(axis, level, size, residual), 0) ** 2)

        return variances

    def _array_variances(self, part: WorkloadPart, attributes: AttributeSet) -> Floats:
        return np.array([self.variance(attributes, query) for query in part.queries(attributes)])

    def _spread_ratio(self, block: Block, residual_set: AttributeSet) -> float:
        return 1.0

    def _factors(self, block: Block, residual_set: AttributeSet) -> tuple[Factor, ...]:
        return block.factors


def _apply_covariance(factor: Factor, values: Floats, axis: int, level: int) -> Floats:
    """Return (KᵀK)⁺ applied along an axis, for a tree on the nodes of a level."""
    first = np.moveaxis(values, axis, 0)
    if isinstance(factor, TreeFactor):
        return np.moveaxis(factor.node_covariance(first, level), 0, axis)
    return np.moveaxis(factor.apply_covariance(first[None].astype(np.float64)), -1, axis + 1)[0]
