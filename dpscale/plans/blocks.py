"""Measurement blocks, stored in columns, and their contribution to variances along each axis.

A `Block` object is created on access. There are few strategies and many blocks, so each strategy is stored once, and
its sensitivity, number of rows and weights are computed once. A strategy is a tuple of integer factors K, one for each
attribute of the block, or a single *joint* one on all its cells. Where cells are *merged*, a strategy is applied to the
counts of classes of cells (`workload.merging`).

The contribution of one axis of a product strategy to variances is a 2 × 2 table over (averaged, centred), S = (KᵀK)⁻¹.
Entry (s, t) is q P_sᵀ S P_t q, where P averages a query with the profile u, Σu = 1, or subtracts that average. For u =
S1 / 1ᵀS1 the total of the axis and the centred part are independent, and the table is diagonal.

*Errors of many sets of product queries under many blocks, at unit noise variance.*
With w_bτ the weight of block b for the residual τ, a set of products with Gram matrices G_i has under block b the error
    Σ over τ, τ' of w_bτ w_bτ' Π_i T_i[τ_i, τ'_i],
where T_i is the 2 × 2 table of axis i over (averaged, centred). Its entries are inner products of G_i with the
covariance S_i of the block's strategy, so the tables of all pairs of Gram matrices and strategies are matrix products.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial, reduce
from itertools import product
from typing import Any, overload

import numpy as np

from dpscale.base.deadline import check_planning_time
from dpscale.base.numerics import AttributeSet, Floats, Integers, NDArray
from dpscale.domain import Domain
from dpscale.plans.attribute_sets import AttributeSets
from dpscale.plans.factor import Factor
from dpscale.privacy.draws import GAUSSIAN, LAPLACE
from dpscale.workload import Family, WorkloadPart
from dpscale.workload.merging import MergedCells
from dpscale.workload.residual import Profiles, Weights, piece, profile_of as profile_of_weights, subsets
from dpscale.workload.wide import is_wide

MOST_ENTRIES = 1 << 22  # of one array


@dataclass(frozen=True, eq=False)
class Block:
    """One measurement: an integer strategy on the marginal of `attributes`.

    Attributes
    ----------
    attributes : AttributeSet
    factors : tuple of Factor
        One per attribute, applied as a Kronecker product; or one joint factor over all cells.
    share : float
        Share of the privacy cost that the block uses.
    whole : bool
        A whole block measures the marginal and estimates every residual inside it. Other blocks measure only the
        residual of exactly `attributes`, or those of a joint factor's `spaces`.
    noise : str
        "gaussian", or "laplace" for pure ε.
    merged : MergedCells, optional
        Classes over which counts are summed before the strategy is applied.
    """

    attributes: AttributeSet
    factors: tuple[Factor, ...]
    share: float
    whole: bool = False
    noise: str = GAUSSIAN
    merged: MergedCells | None = None

    def coarsened(self, counts: Integers) -> Integers:
        """Return the counts that the strategy is applied to, from those of all cells of the attributes."""
        return counts if self.merged is None else self.merged.counts(self.attributes, counts)

    def whole_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the numbers of cells of the axes of the strategy, from those of its classes."""
        if self.merged is None:
            return shape
        return tuple(self.merged.whole[name].size for name in self.attributes)

    @property
    def joint(self) -> bool:
        """Whether one factor has all attributes, or measures several residuals of an attribute together."""
        return len(self.factors) == 1 and (len(self.attributes) > 1 or self.factors[0].spaces is not None)

    @property
    def squared_l2_sensitivity(self) -> int:
        """Largest squared L2 norm of a column of the strategy, exact."""
        return math.prod(factor.squared_l2_sensitivity for factor in self.factors)

    @property
    def l1_sensitivity(self) -> int:
        """Largest L1 norm of a column of the strategy, exact."""
        return math.prod(factor.l1_sensitivity for factor in self.factors)

    @property
    def commutes(self) -> bool:
        """Whether the estimates of different residuals are independent."""
        return all(factor.commutes for factor in self.factors)

    @property
    def residual_sets(self) -> list[AttributeSet]:
        """Residuals that the block measures.

        A whole block measures all subsets of its attributes; a joint strategy on several spaces names their axes
        (`spaces`); any other block measures the residual of its attributes alone.
        """
        if self.whole:
            return subsets(self.attributes)
        if self.joint and self.factors[0].spaces is not None:
            return [tuple(self.attributes[axis] for axis in axes) for axes in self.factors[0].spaces]
        return [self.attributes]

    @property
    def weights(self) -> Iterator[tuple[str, Weights]]:
        """Attributes whose totals are spread by weights, with the weights."""
        attributes_of_factors = [self.attributes] if self.joint else [(name,) for name in self.attributes]
        for attributes, factor in zip(attributes_of_factors, self.factors, strict=True):
            for name, weights in zip(attributes, factor.weights or (), strict=False):
                if weights is not None:
                    yield name, weights

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the integer strategy."""
        return hashlib.sha256("".join(factor.digest for factor in self.factors).encode()).hexdigest()

    @property
    def rows(self) -> tuple[int, ...]:
        return tuple(factor.rows for factor in self.factors)

    @property
    def unit_variance(self) -> float:
        """Noise variance of one measured number at privacy cost 1, in lattice units."""
        if self.noise == LAPLACE:
            return 2 * (self.l1_sensitivity / self.share) ** 2
        return self.squared_l2_sensitivity / self.share


Strategy = tuple[Factor, ...]
NOISES = (GAUSSIAN, LAPLACE)


@dataclass(frozen=True, eq=False, repr=False)
class Blocks(Sequence[Block]):
    """Sequence of blocks over `sets`.

    Block i has the strategy `strategies[which[i]]`, the share `share[i]`, the flag `whole[i]` and the noise
    `NOISES[noise[i]]`. `merged`, if any cells are merged, has the domain of all cells.
    """

    sets: AttributeSets
    strategies: tuple[Strategy, ...]
    which: NDArray[np.int32]
    share: NDArray[np.float64]
    whole: NDArray[np.bool_]
    noise: NDArray[np.int8]
    merged: MergedCells | None = None

    def merging(self, merged: MergedCells | None) -> Blocks:
        """Return the blocks with counts that are summed over classes of cells."""
        return replace(self, merged=merged)

    def domain_of(self, whole: Domain) -> Domain:
        """Return the domain of the strategies: that of the classes, or the whole domain."""
        return whole if self.merged is None else self.merged.domain

    def part(self, part: WorkloadPart) -> WorkloadPart:
        """Return a part of the workload on the domain of the strategies."""
        return part if self.merged is None else self.merged.part(part)

    @classmethod
    def of(cls, names: tuple[str, ...], blocks: Iterable[Block]) -> Blocks:
        """Return the columns of some blocks; `names` are the attributes of the domain."""
        if isinstance(blocks, cls):
            return blocks

        strategies: dict[tuple[int, ...], Strategy] = {}
        place: dict[tuple[int, ...], int] = {}
        sets, rows = list[AttributeSet](), list[tuple[int, float, bool, int]]()
        for block in blocks:
            # equal strategies are the same objects, so no matrix is compared
            key = tuple(map(id, block.factors))
            strategies.setdefault(key, block.factors)
            sets.append(block.attributes)
            rows.append((place.setdefault(key, len(place)), block.share, block.whole, NOISES.index(block.noise)))

        which, share, whole, noise = zip(*rows, strict=True) if rows else ((), (), (), ())
        return cls(AttributeSets.of(names, sets), tuple(strategies.values()), np.array(which, np.int32),
                   np.array(share, np.float64), np.array(whole, np.bool_), np.array(noise, np.int8))  # fmt: skip

    def __len__(self) -> int:
        return len(self.which)

    @overload
    def __getitem__(self, index: int) -> Block: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Block, ...]: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        return self._block(self.sets[index], index)

    def __iter__(self) -> Iterator[Block]:
        return map(self._block, self.sets, range(len(self)))

    def _block(self, attributes: AttributeSet, index: int) -> Block:
        """Return block `index` as an object; `attributes` is its set."""
        share, whole, noise = float(self.share[index]), bool(self.whole[index]), NOISES[self.noise[index]]
        return Block(
            attributes=attributes,
            factors=self.strategies[self.which[index]],
            share=share,
            whole=whole,
            noise=noise,
            merged=self.merged,
        )

    def take(self, wanted: NDArray[np.int64]) -> Blocks:
        """Return the blocks at the positions `wanted`, with only the strategies that they use.

        `which` has the number of each block's strategy; it is renumbered for the strategies that are left.
        """
        used, which = np.unique(self.which[wanted], return_inverse=True)
        return replace(
            self,
            sets=self.sets.take(wanted),
            strategies=tuple(self.strategies[i] for i in used.tolist()),
            which=which.astype(np.int32),
            share=self.share[wanted],
            whole=self.whole[wanted],
            noise=self.noise[wanted],
        )

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        """Number of measured numbers of each block."""
        of_strategies = [math.prod(factor.rows for factor in strategy) for strategy in self.strategies]
        return np.array(of_strategies, np.int64)[self.which]

    @cached_property
    def unit_variances(self) -> NDArray[np.float64]:
        """Noise variance of one measured number of each block at privacy cost 1, in lattice units.

        At cost 1 a block uses its share s: variance Δ²/s for Gaussian noise, and 2 (Δ₁/s)² for Laplace noise of scale
        Δ₁/s. Sensitivities of a Kronecker product are the products of those of its factors.
        """
        squared_l2, l1 = [], []
        for strategy in self.strategies:
            squared_l2.append(float(math.prod(factor.squared_l2_sensitivity for factor in strategy)))
            l1.append(float(math.prod(factor.l1_sensitivity for factor in strategy)))
        gaussian = np.array(squared_l2)[self.which] / self.share
        laplace = 2 * (np.array(l1)[self.which] / self.share) ** 2
        return np.where(self.noise == NOISES.index(LAPLACE), laplace, gaussian)

    @cached_property
    def commutes(self) -> bool:
        """Whether the estimates of different residuals are independent for every block."""
        return all(factor.commutes for strategy in self.strategies for factor in strategy)

    @cached_property
    def has_trees(self) -> bool:
        """Whether a block measures the levels of a hierarchy."""
        return any(factor.kind == "tree" for strategy in self.strategies for factor in strategy)

    @property
    def measures_one_residual(self) -> bool:
        """Whether each block measures only the residual of its own set."""
        spaces = (factor.spaces for strategy in self.strategies for factor in strategy)
        return not self.whole.any() and all(space is None for space in spaces)

    @property
    def kinds(self) -> Iterator[tuple[int, int]]:
        """Distinct pairs of strategy and noise: the position of the first block of each, and the number of blocks."""
        keys = self.which.astype(np.int64) * len(NOISES) + self.noise
        _, first, counts = np.unique(keys, return_index=True, return_counts=True)
        return zip(first.tolist(), counts.tolist(), strict=True)

    def weights(self) -> Iterator[tuple[str, Weights]]:
        """Return the attributes whose totals are spread by weights, with the weights, in order of first use.

        `first_use` has for each attribute the first (block, axis) with weights, which determines the order.
        """
        first_use: dict[int, tuple[int, int, Weights]] = {}  # by attribute: block, axis, and the weights there
        for number, strategy in enumerate(self.strategies):
            spread = [(axis, weights) for axis, weights in enumerate(_axis_weights(strategy)) if weights is not None]
            blocks = np.flatnonzero(self.which == number) if spread else np.zeros(0, np.int64)
            for axis, weights in spread:
                # number of the attribute on this axis of each block, and the first block with it
                attributes, first = np.unique(self.sets.members[self.sets.starts[blocks] + axis], return_index=True)
                for attribute, block in zip(attributes.tolist(), blocks[first].tolist(), strict=True):
                    use = block, axis, weights
                    first_use[attribute] = min(first_use.get(attribute, use), use)

        for attribute in sorted(first_use, key=lambda attribute: first_use[attribute][:2]):
            _, _, weights = first_use[attribute]
            yield self.sets.names[attribute], weights

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the columns. Strategies enter by number only; the factors have their own digests.

        `which` has the strategy of a block, `share` its part of the budget, `whole` whether it measures a whole
        marginal, `noise` its distribution.
        """
        sets, digest = self.sets, hashlib.sha256()
        for column in (sets.members, sets.ends, self.which, self.share, self.whole, self.noise):
            digest.update(f"{column.dtype.str}{column.shape}".encode() + np.ascontiguousarray(column).tobytes())
        digest.update(b"" if self.merged is None else self.merged.digest.encode())
        return digest.hexdigest()


def _axis_weights(strategy: Strategy) -> Iterator[Weights | None]:
    """Return the weights of every axis of a strategy; a joint factor has several axes."""
    for factor in strategy:
        yield from factor.weights or (None,) * len(factor.shape)


Averaging = Factor | Weights | None


def whole_covariance(factor: Factor) -> Floats:
    """Return the covariance of the estimate of a marginal along an axis, at unit noise variance."""
    return np.eye(factor.cells) if factor.kind == "identity" else factor.covariance


def is_implicit(factor: Factor) -> bool:
    """Return whether the covariance of a marginal along an axis is not used as a matrix."""
    return factor.is_long


def _summed_covariance(factor: Factor) -> Floats:
    """Return S1 of an axis."""
    if factor.kind == "identity":
        return np.ones(factor.cells)
    if is_implicit(factor):
        return factor.apply_covariance(np.ones((1, factor.cells)))[0]
    return np.asarray(whole_covariance(factor).sum(axis=1))


def summed_variance(factor: Factor, family: Family) -> float:
    """Return Σ qᵀSq over the queries of a family along an axis without a matrix."""
    return family.trace(factor.cells) if factor.kind == "identity" else factor.trace(family)


def _query_variances(factor: Factor, family: Family) -> Floats:
    """Return qᵀSq of every query of a family along an axis without a matrix."""
    if factor.kind != "identity":
        return factor.quadratics(family)
    return factor.quadratics(family) + factor.cells * family.means(factor.cells) ** 2  # S is I, not I − 11ᵀ/n


def profile_of(factor: Factor) -> Floats:
    """Return S1 / 1ᵀS1: the distribution of the total over the cells that is independent of the centred part."""
    sums = _summed_covariance(factor)
    return np.asarray(sums / sums.sum())


@lru_cache(maxsize=4096)
def total_variance(factor: Factor) -> float:
    """Return 1ᵀS1 of an axis."""
    return float(_summed_covariance(factor).sum())


@lru_cache(maxsize=4096)
def centred_variance(factor: Factor, profiled: bool) -> float:
    """Return the trace of the covariance after the total, spread uniformly or by the profile, is subtracted.

    The centred part is x − u 1ᵀx, with u the profile or 1/n: tr S − 2 uᵀS1 + (1ᵀS1)(uᵀu).
    """
    sums = _summed_covariance(factor)
    if is_implicit(factor):
        trace = factor.cells * (1.0 if factor.kind == "identity" else factor.mean_variance)
    else:
        trace = np.trace(whole_covariance(factor))
    profile = profile_of(factor) if profiled else np.full(factor.cells, 1 / factor.cells)
    return float(trace - 2 * profile @ sums + sums.sum() * (profile @ profile))


@lru_cache(maxsize=4096)
def gram_table(factor: Factor | None, averaging: Averaging, size: int, family: Family) -> Floats:
    """Return the table T summed over all queries of a one-way family with the Gram matrix G, shape (2, 2, 1).

    With the averaging profile u and the covariance S of the factor, index 0 stands for the averaged part of a query
    and 1 for the centred one: T₀₀ = uᵀGu · 1ᵀS1, T₀₁ = uᵀGS1 − T₀₀, T₁₁ = tr(GS) − 2 uᵀGS1 + T₀₀. On an axis that the
    block lacks, only T₀₀ = uᵀGu is nonzero.
    """
    profile = averaging_profile(averaging, size)
    if is_wide(size) or (factor is not None and is_implicit(factor)):
        means, trace = family.times_gram(profile), 0.0 if factor is None else summed_variance(factor, family)
    else:
        gram = family.gram(size)
        means, trace = gram @ profile, 0.0 if factor is None else (gram * whole_covariance(factor)).sum()

    square = profile @ means
    if factor is None:
        return np.array([[[square], [0.0]], [[0.0], [0.0]]])

    sums = _summed_covariance(factor)
    averaged = square * sums.sum()
    cross = means @ sums - averaged
    centred = trace - 2 * (means @ sums) + averaged

    return np.array([[[averaged], [cross]], [[cross], [centred]]])


@lru_cache(maxsize=4096)
def query_table(factor: Factor | None, averaging: Averaging, size: int, family: Family) -> Floats:
    """Return the table of every query of a one-way family, shape (2, 2, m).

    On an axis that the block lacks, only the averaged entry is nonzero.

    With mean m = u·q: averaged entry m² 1ᵀS1, cross entry m (q·S1 − m 1ᵀS1), centred entry qᵀSq − 2 m q·S1 + m² 1ᵀS1,
    because the averaged query is m·1 and the centred one q − m·1. u is the profile by which a total is spread over the
    axis (`averaging_profile`), and S the covariance of the cells at unit noise. Implicit factors have no matrix S, so
    their entries follow from sums of S and variances of queries.
    """
    profile = averaging_profile(averaging, size)
    means = family.answers(profile, 0)
    zero = np.zeros_like(means)
    if factor is None:
        return np.array([[means**2, zero], [zero, zero]])

    if is_implicit(factor):
        sums = _summed_covariance(factor)
        averaged, mixed = means**2 * sums.sum(), means * family.answers(sums, 0)
        cross, centred = mixed - averaged, _query_variances(factor, family) - 2 * mixed + averaged
        return np.array([[averaged, cross], [cross, centred]])

    covariance = whole_covariance(factor)
    rows = covariance - np.outer(profile, covariance.sum(axis=0))
    cross = means * family.answers(rows.sum(axis=1), 0)
    form = rows - np.outer(rows.sum(axis=1), profile)

    return np.array([[means**2 * covariance.sum(), cross], [cross, family.quadratic(form)]])


def combine_tables(tables: list[Floats], weights: Floats) -> Floats:
    """Return Σ w_τ w_τ' · Π tables over pairs of residuals, as an outer product with one axis of queries per table.

    A residual is a pattern with 1 on its axes, an index of `weights`. If all weights are 1, the sum over both patterns
    separates by axes. Tables have entries by (s, t), the pattern's entries on their axis.
    """
    check_planning_time()
    if (weights == 1).all():
        return reduce(np.multiply.outer, [table.sum(axis=(0, 1)) for table in tables], np.ones(()))

    total: Floats = np.zeros(())
    for left, right in product(product((0, 1), repeat=len(tables)), repeat=2):
        weight = float(weights[left] * weights[right])
        vectors = [table[s, t] for table, s, t in zip(tables, left, right, strict=True)]
        if weight and all(vector.any() for vector in vectors):
            total = total + weight * reduce(np.multiply.outer, vectors, np.ones(()))

    return total


@lru_cache(maxsize=4096)
def joint_spread(factor: Factor, axes: tuple[int, ...]) -> float:
    """Return the trace of the covariance of a residual of a joint factor: centred along `axes`, summed over others."""
    outside = tuple(axis for axis in range(len(factor.shape)) if axis not in axes)
    rows = factor.inverse.reshape(*factor.shape, -1).sum(axis=outside)
    for axis in range(len(axes)):
        rows = rows - rows.mean(axis=axis, keepdims=True)
    return float((rows**2).sum())


@lru_cache(maxsize=4096)
def averaging_profile(averaging: Averaging, size: int) -> Floats:
    """Return the profile u of an axis: that of the factor shared by all blocks, or that of its weights."""
    return profile_of(averaging) if isinstance(averaging, Factor) else profile_of_weights(averaging, size)


def add_outside_axes(weights: Floats, block: Block, names: Sequence[str]) -> Floats:
    """Return the weights with an axis for each attribute outside the block, which can only be averaged."""
    for axis, name in enumerate(names):
        if name not in block.attributes:
            weights = np.stack([weights, np.zeros_like(weights)], axis=axis)
    return weights


def mix_pieces(queries: Floats, weights: Floats, profiles: Profiles) -> Floats:
    """Return Σ_τ w_τ P_τ q of queries, shape (m, sizes…).

    P_τ averages a query along the axes outside τ, where the piece has length 1 and broadcasts, and centres it along
    others.
    """
    if (weights == 1).all():
        return queries

    total = np.zeros_like(queries)
    for pattern in product((0, 1), repeat=weights.ndim):
        axes = [axis for axis, inside in enumerate(pattern) if inside]
        part = piece(queries, axes, 1, profiles)
        shape = [n if inside else 1 for n, inside in zip(queries.shape[1:], pattern, strict=True)]
        total = total + weights[pattern] * part.reshape(-1, *shape)
    return total


def product_errors(
    blocks: Blocks,
    products: Sequence[Mapping[str, tuple[Family, int]]],
    weights: Floats,
    averagings: Mapping[str, Averaging],
) -> tuple[Floats, Floats]:
    """Return the contribution of every block to the error of every set, and its error if it answers alone.

    Parameters
    ----------
    blocks : Blocks
        Blocks that are not joint.
    products : sequence of mapping of str to (Family, int)
        Family and number of cells of each attribute of each set; all have the same attributes.
    weights : ndarray, shape (blocks, 2, 2, …)
        w_bτ, with an axis for each attribute: 0 averaged, 1 centred.
    averagings : mapping of str to Averaging
        How attributes are averaged where it is not by the plain mean.

    Returns
    -------
    average, alone : ndarray, shape (products, blocks)
    """
    names = tuple(products[0])
    strategies = [dict(zip(block.attributes, block.factors, strict=True)) for block in blocks]
    outside = []  # a block is summed over its attributes outside the set
    for factors in strategies:
        outside.append(np.prod([total_variance(factor) for name, factor in factors.items() if name not in names]))
    average, alone = np.zeros((2, len(products), len(blocks)))

    step = max(1, MOST_ENTRIES // weights.size)
    for start in range(0, len(products), step):
        check_planning_time()
        batch = products[start : start + step]
        # wᵀ (⊗ T) w for the average of all blocks, and the product of the tables' sums for each block alone
        transformed = np.broadcast_to(weights, (len(batch), *weights.shape))
        products_of_sums = np.ones((len(batch), len(blocks)))
        for axis, name in enumerate(names, start=2):
            factors_on_axis = [factors.get(name) for factors in strategies]
            table = _tables([product[name] for product in batch], factors_on_axis, averagings.get(name))
            products_of_sums = products_of_sums * table.sum(axis=(2, 3))
            transformed = np.moveaxis(_along(np.moveaxis(transformed, axis, 2), table), 2, axis)
        average[start : start + step] = (transformed * weights).reshape(len(batch), len(blocks), -1).sum(axis=2)
        alone[start : start + step] = products_of_sums

    return average * outside, alone * outside


def _along(values: Floats, table: Floats) -> Floats:
    """Return tables (p, b, 2, 2) applied along the third axis of values (p, b, 2, …)."""
    flat = values.reshape(*values.shape[:3], -1)
    return np.asarray((table @ flat).reshape(values.shape))


def _tables(asked: Sequence[tuple[Family, int]], factors: Sequence[Factor | None], averaging: Averaging) -> Floats:
    """Return the tables of one axis, shape (products, blocks, 2, 2): index 0 is the averaged part, 1 the centred part.

    With the profile u of the mean, P₀ = 1uᵀ averages a query over the axis and P₁ = I − P₀ centres it. Under a block
    with covariance S, the entry of a family with the Gram matrix G is T[i, j] = tr(G P_iᵀ S P_j), that is

        T[0, 0] = uᵀGu · 1ᵀS1,    T[0, 1] = uᵀGS1 − T[0, 0],    T[1, 1] = tr(GS) − 2 uᵀGS1 + T[0, 0].

    A block without the axis measures sums over it: only T[0, 0] = uᵀGu is not 0.
    """
    families = list(dict.fromkeys(asked))
    strategies = {id(factor): factor for factor in factors if factor is not None}
    size = families[0][1]
    profile = averaging_profile(averaging, size)
    gram_profiles = np.array([family.gram(size) @ profile for family, _ in families])
    squared_means = gram_profiles @ profile

    tables = np.zeros((len(families), len(strategies) + 1, 2, 2))  # the last column is that of blocks without the axis
    tables[:, -1, 0, 0] = squared_means
    if strategies:
        row_sums = np.array([whole_covariance(factor).sum(axis=1) for factor in strategies.values()])
        averaged = np.outer(squared_means, row_sums.sum(axis=1))
        mixed = gram_profiles @ row_sums.T
        traces = _inner([partial(family.gram, size) for family, _ in families],
                        [partial(whole_covariance, factor) for factor in strategies.values()], size)  # fmt: skip
        tables[:, :-1, 0, 0] = averaged
        tables[:, :-1, 0, 1] = tables[:, :-1, 1, 0] = mixed - averaged
        tables[:, :-1, 1, 1] = traces - 2 * mixed + averaged

    row_of = {family: row for row, family in enumerate(families)}
    column_of = {strategy: column for column, strategy in enumerate(strategies)}
    rows = [row_of[family] for family in asked]
    columns = [len(strategies) if factor is None else column_of[id(factor)] for factor in factors]
    return tables[np.ix_(rows, columns)]


def _inner(left: Sequence[Callable[[], Floats]], right: Sequence[Callable[[], Floats]], size: int) -> Floats:
    """Return the inner products of matrices of shape (size, size), shape (left, right).

    The matrices are computed by functions, because few of them are stacked at a time.
    """
    step, inner = max(1, MOST_ENTRIES // size**2), np.zeros((len(left), len(right)))
    for i in range(0, len(left), step):
        rows = np.array([make().reshape(-1) for make in left[i : i + step]])
        for j in range(0, len(right), step):
            columns = np.array([make().reshape(-1) for make in right[j : j + step]])
            inner[i : i + step, j : j + step] = rows @ columns.T
    return inner
