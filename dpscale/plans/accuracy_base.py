"""Accuracy of a plan: its interface, and that of strategies that mix residuals, HDMM's products and their unions.

A query is the sum of its pieces on residual spaces (see `dpscale.workload.residual`). It is in the span if every
nonzero piece is. Subclasses of `Accuracy` compute its variance from the noise.

A residual is named by its set of attributes (`residual_set`). A block measures the residuals inside its attributes; a
*joint* block has one factor on all its cells. Where cells are *merged*, queries and strategies are on classes of cells
(`workload.merging`), and `blocks.merged` is the mapping to them.

*Mixed residuals.* Block b estimates the marginal of its attributes with covariance u_b ⊗ S_i, S_i = (K_iᵀK_i)⁻¹. A
residual τ that several blocks estimate is averaged with weights w_bτ that sum to 1, so the answer to a query q and its
variance are
    Σ_b q_bᵀ x̂_b  and  Σ_b u_b q_bᵀ (⊗ S_i) q_b  with  q_b = Σ_τ w_bτ P_τ q,
where P_τ averages the axes outside τ and centres those inside. Blocks are independent; residuals within a block are
not. For product queries every axis gives a 2 × 2 table over (averaged, centred), and tables multiply over the axes:
no array is larger than the answers. With one block all weights are 1, and this is the error of HDMM's own least
squares.

The weights are those of whole residuals, so an average can be worse than one of its blocks: a product of predicates has
directions that it hardly measures. A set of queries is therefore answered by the average or by one block that has its
attributes, whichever has the smaller planned error.

If all blocks use one strategy on an attribute, its total is spread by the profile u = S1 / 1ᵀS1 instead of uniformly.
The total of a marginal and the remainder x − u·total are then independent. If this is the case for every attribute,
the averages are the least squares estimate over all blocks (marginals of attribute strategies).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from operator import itemgetter

import numpy as np
from numpy.typing import ArrayLike

from dpscale.base.deadline import check_planning_time
from dpscale.base.display import type_of_value
from dpscale.base.errors import PlanError
from dpscale.base.numerics import AttributeSet, Floats
from dpscale.domain import Domain
from dpscale.plans.blocks import (
    Averaging,
    Block,
    Blocks,
    add_outside_axes,
    averaging_profile,
    centred_variance,
    combine_tables,
    gram_table,
    is_implicit,
    joint_spread,
    mix_pieces,
    product_errors,
    query_table,
    total_variance,
)
from dpscale.plans.factor import Factor, identity_factor, joint_quadratic
from dpscale.plans.residual_estimators import (
    KnownResiduals,
    ResidualEstimator,
    polarized,
    residual_estimators,
    spans,
)
from dpscale.workload import ExplicitPart, Family, Workload, WorkloadPart
from dpscale.workload.residual import Weights, kron, piece, profile_of, subsets
from dpscale.workload.wide import is_wide

# cells of a set above which products are read as arrays where a joint strategy measures them, if they are few
MOST_OF_PRODUCT, FEW_PRODUCTS = 2048, 1000
NOTHING = 1e-12  # relative to the query's largest entry; smaller pieces count as zero
GAIN = 1e-6  # share of the error by which one block alone must be better than the average
SPANNED = 1e-11  # of the squared length of a piece: what may lie outside the row space
MEASURED_LIMIT = 3e4  # times the variance of the best direction; directions with only the ridge are at 10^6
Table = Callable[[Factor | None, Averaging, int, Family], Floats]


@dataclass(frozen=True)
class SpannedQuery:
    """Query in the span of the measured blocks.

    Attributes
    ----------
    attributes : AttributeSet
        In domain order.
    values : ndarray, shape (1, sizes…)
    pieces : tuple of (AttributeSet, ndarray)
        Nonzero pieces by residual.
    """

    attributes: AttributeSet
    values: Floats
    pieces: tuple[tuple[AttributeSet, Floats], ...]


@dataclass(frozen=True, eq=False)
class Accuracy(ABC):
    """Accuracy of the answers that blocks give to queries.

    The weights of the averages are those of the plan; they do not depend on the noise that was actually drawn.

    Attributes
    ----------
    domain : Domain
        Domain of the strategies: where cells are merged, its cells are the classes.
    blocks : Blocks
    variances : sequence of float, shape (blocks,)
        Noise variance of each block in lattice units, planned or drawn.
    """

    domain: Domain
    blocks: Blocks
    variances: Sequence[float]

    @cached_property
    def residuals(self) -> Mapping[AttributeSet, ResidualEstimator]:
        """Estimator of every residual that is measured or follows from a public total."""
        measured = residual_estimators(self.blocks, self.variances, self._spread_ratio, self._factors, self._whole_in)
        return KnownResiduals(self.domain, measured) if self.domain.public_totals else measured

    def complete_sets(self) -> Iterator[AttributeSet]:
        """Yield the residuals of which every cell can be estimated: not those of attributes with merged cells."""
        merged_attributes = () if self.blocks.merged is None else self.blocks.merged.classes
        for residual_set, estimator in self.residuals.items():
            if estimator.spans_all and not any(name in merged_attributes for name in residual_set):
                yield residual_set

    @cached_property
    def weights(self) -> dict[str, Weights]:
        """Weights of the attributes whose residuals are not centred by the plain mean."""
        return dict(self.blocks.weights())

    @cached_property
    def profiles(self) -> Mapping[str, Floats]:
        """Distribution of an attribute's total over its cells, for attributes where it is not uniform."""
        return {name: profile_of(weight, len(weight)) for name, weight in self.weights.items()}

    def axis_profiles(self, attributes: Sequence[str]) -> dict[int, Floats]:
        """Return the profiles by axis of an array over `attributes`."""
        return {axis: self.profiles[name] for axis, name in enumerate(attributes) if name in self.profiles}

    def spanned(self, attributes: Sequence[str], query: ArrayLike) -> SpannedQuery:
        """Return the query with its pieces: for each subset of its attributes the query centred on it.

        Pieces that are zero are left out.

        A piece on τ is the query averaged along the axes outside τ and centred along those inside, with the attributes'
        profiles; entries below NOTHING of the largest one count as zero.

        Raises
        ------
        PlanError
            If the shape of the query does not match the attributes, or a piece was not measured.
        """
        ordered, values = self._aligned(attributes, query)
        values = self._merged(ordered, values)
        profiles, least = self.axis_profiles(ordered), NOTHING * np.abs(values).max()
        pieces = [
            (residual_set, piece(values[0], [ordered.index(name) for name in residual_set], profiles=profiles))
            for residual_set in subsets(ordered)
        ]
        # not `>`, so that a piece that is not a number counts as nonzero
        nonzero = tuple((residual_set, part) for residual_set, part in pieces if not np.abs(part).max() <= least)
        self._check_span(nonzero)

        return SpannedQuery(ordered, values, nonzero)

    def variance(self, attributes: Sequence[str], query: ArrayLike) -> float:
        """Return the variance of one linear query, given as an array over the attributes' cells."""
        return self.variance_of(self.spanned(attributes, query))

    def total_error(self, workload: Workload) -> float:
        """Return the sum of weight · variance over all queries."""
        return math.fsum(
            weight * self.part_error(part, attributes)
            for part in workload.parts
            for attributes, weight in zip(part.sets, part.weights, strict=True)
            if weight > 0
        )

    @abstractmethod
    def variance_of(self, query: SpannedQuery) -> float:
        """Return the variance of a query whose pieces are known."""

    def part_variances(self, part: WorkloadPart, attributes: AttributeSet) -> Floats:
        """Return the variances of all queries of a part on one set.

        The array has one axis per attribute for products, else one axis. `blocks.part` gives the part on the merged
        cells, if the strategies are on a domain of merged cells. A part that factorizes has product queries, one family
        of queries for each attribute.
        """
        part = self.blocks.part(part)
        if not part.factorizes:
            return self._array_variances(part, attributes)
        families = dict(zip(attributes, part.families(attributes), strict=True))
        if self._needs_arrays(part, attributes):
            counts = [family.count(self.domain[name].size) for name, family in families.items()]
            return self._array_variances(part, attributes).reshape(counts)
        return self._product_variances(families)

    def _needs_arrays(self, part: WorkloadPart, attributes: AttributeSet) -> bool:
        """Return whether few products on a large set need arrays of cells, because a joint strategy measures them.

        The covariance of a joint strategy on the set would be a matrix of cells × cells.
        """
        is_large = self.domain.cells(attributes) > MOST_OF_PRODUCT and part.count(attributes) <= FEW_PRODUCTS
        return is_large and self._has_joint

    @cached_property
    def _has_joint(self) -> bool:
        return any(block.joint for block in self.blocks)

    def covariance(self, attributes: AttributeSet, queries: Floats) -> Floats:
        """Return the covariance matrix of queries on one set, shape (m, sizes…), answered by all blocks together.

        Variances of sums and differences give covariances, see `polarized`. The queries are those of the attributes'
        cells before any are merged, so the part is built on the domain of all cells.
        """
        domain = self.domain if self.blocks.merged is None else self.blocks.merged.whole

        def variances(array: Floats) -> Floats:
            """Return the variances of an array of queries."""
            part = self.blocks.part(
                ExplicitPart(domain=domain, attributes=attributes, array=array, each=np.ones(len(array)))
            )
            return self._array_variances(part, attributes)

        return polarized(variances, queries)

    def part_error(self, part: WorkloadPart, attributes: AttributeSet) -> float:
        """Return the sum of weight · variance over the queries that a part of the workload has on one set.

        The weight is that of the query; the weight of the set is left out. If every query is a product of queries on
        the attributes (the part factorizes), the sum follows from the Gram matrices of these, without any single
        variance. All other queries are arrays over the cells, and their variances are computed one by one. So are those
        of a few products on a large set that a strategy without a factor for each attribute measures (`_needs_arrays`).
        """
        check_planning_time()  # raises an error after the time limit
        merged_part = self.blocks.part(part)  # its queries on merged cells, if the strategies merge any

        if merged_part.factorizes and not self._needs_arrays(merged_part, attributes):
            families = merged_part.families(attributes)
            return self._product_error(dict(zip(attributes, families, strict=True)))

        variances = self._array_variances(merged_part, attributes)
        return float((merged_part.query_weights(attributes) * variances).sum())

    def summed_variance(self, part: WorkloadPart, attributes: AttributeSet) -> float:
        """Return the sum of the variances of a part's queries on one set, without weights."""
        if part.factorizes:  # the sum does not need every variance
            return self.part_error(part, attributes)
        return float(self._array_variances(self.blocks.part(part), attributes).sum())

    @abstractmethod
    def _product_variances(self, families: Mapping[str, Family]) -> Floats:
        """Return the variances of all products of one-way queries, one axis per attribute."""

    @abstractmethod
    def _product_error(self, families: Mapping[str, Family]) -> float:
        """Return the sum of the variances of all products of one-way queries."""

    @abstractmethod
    def _array_variances(self, part: WorkloadPart, attributes: AttributeSet) -> Floats:
        """Return the variances of queries that are not products, one axis."""

    @abstractmethod
    def _spread_ratio(self, block: Block, residual_set: AttributeSet) -> float:
        """Return the ratio of a residual's variance to the noise variance of a block."""

    @abstractmethod
    def _factors(self, block: Block, residual_set: AttributeSet) -> tuple[Factor, ...]:
        """Return the factors whose (KᵀK)⁺ determine the form of a residual's covariance."""

    def source(self, part: WorkloadPart, attributes: AttributeSet) -> int | None:
        """Return the block that alone answers a part over a set; None if all blocks do together."""
        return None

    def source_of(self, query: SpannedQuery) -> int | None:
        """Return the block that alone answers a query; None if all blocks do together."""
        return None

    def _whole_in(self, block: Block, residual_set: AttributeSet) -> bool:
        """Return whether a block estimates every cell of a residual."""
        return all(factor.spans_all for factor in self._factors(block, residual_set))

    def _aligned(self, attributes: Sequence[str], query: ArrayLike) -> tuple[AttributeSet, Floats]:
        """Return the attributes in domain order and the query as a batch of one with its axes in that order.

        Where cells are merged, the query is on the cells before merging (`whole`), which are checked here.
        """
        values = as_query(query)
        domain = self.domain if self.blocks.merged is None else self.blocks.merged.whole
        if values.shape != domain.shape(attributes):
            takes = f"an array of shape {domain.shape(attributes)}"
            raise PlanError("query", f"shape {values.shape}", takes, "use one axis per attribute")
        ordered = self.domain.ordered(attributes)
        return ordered, values.transpose([list(attributes).index(name) for name in ordered])[None]

    def _merged(self, attributes: AttributeSet, values: Floats) -> Floats:
        """Return queries, shape (m, sizes…), over the classes of cells. Raises PlanError if they distinguish more.

        `blocks.merged` is the merging of cells before the strategies; without one, queries stay as they are. The name
        "" stands for the axis of queries.
        """
        if self.blocks.merged is None:
            return values
        merged = self.blocks.merged.query(("", *attributes), values)
        if merged is None:
            raise out_of_span(attributes)
        return merged

    def _check_span(self, pieces: Sequence[tuple[AttributeSet, Floats]]) -> None:
        """Raise PlanError unless the row space of each residual's strategy contains the piece."""
        for residual_set, part in pieces:
            if residual_set not in self.residuals or not self.residuals[residual_set].spans(part):
                raise out_of_span(residual_set)


def as_query(query: ArrayLike) -> Floats:
    """Return the query as an array of floats.

    Raises
    ------
    PlanError
        If the query is not an array of finite numbers.
    """
    try:
        values = np.asarray(query, dtype=np.float64)
    except (TypeError, ValueError):
        raise PlanError("query", f"{type_of_value(query)} that is not an array of numbers",
                        "an array of finite numbers", "give a number for every cell") from None  # fmt: skip

    if not np.isfinite(values).all() and values.ndim:
        raise PlanError("query", "a number that is not finite", "finite numbers", "fix it")
    return values


def out_of_span(residual_set: AttributeSet) -> PlanError:
    """Return the error for a query with a piece on a residual that was not measured."""
    names = ", ".join(residual_set) or "the total"
    return PlanError(
        "query",
        f"it needs {names}, which was not measured",
        "a query in the workload's span",
        "add a family over these attributes to the workload",
    )


@dataclass(frozen=True, eq=False)
class CoupledResiduals(Accuracy):
    """Variances from the full covariance of every block.

    The scale of a residual estimator is the mean variance of a coordinate. It determines weights and indicates the
    noise of a residual; the variances of queries are exact.
    """

    @cached_property
    def shared_factors(self) -> dict[str, Factor]:
        """Factors that mix residuals and are common to all blocks with the attribute.

        A factor mixes residuals if it does not commute with averaging. It counts only if all blocks with the attribute
        have the same one, which its digest shows; joint blocks have no factor of a single attribute.
        """
        if any(block.joint for block in self.blocks):
            return {}

        common = {
            name: factors[0]
            for name, factors in self._factors_by_name().items()
            if len({f.digest for f in factors}) == 1
        }
        return {name: factor for name, factor in common.items() if not factor.commutes}

    @cached_property
    def averagings(self) -> dict[str, Averaging]:
        """Weights or factor that determine the average of an attribute, where it is not the plain mean."""
        return {**self.weights, **self.shared_factors}

    @cached_property
    def profiles(self) -> Mapping[str, Floats]:
        return {
            name: averaging_profile(averaging, self.domain[name].size) for name, averaging in self.averagings.items()
        }

    def source(self, part: WorkloadPart, attributes: AttributeSet) -> int | None:
        varying = self._varying(part, attributes)
        return self._least(varying, lambda accuracy: Accuracy.part_error(accuracy, part, attributes))

    def source_of(self, query: SpannedQuery) -> int | None:
        varying = _varying_axes(query.attributes, query.values)
        return self._least(varying, lambda accuracy: float(accuracy._variances(query.attributes, query.values)[0]))

    def _varying(self, part: WorkloadPart, attributes: AttributeSet) -> set[str]:
        """Return the attributes along which the queries of a part vary; the others are summed by all of them."""
        if not self._able_alone:
            return set()
        part = self.blocks.part(part)
        if not part.factorizes:
            return _varying_axes(attributes, part.queries(attributes))
        axes = zip(attributes, part.families(attributes), strict=True)
        return {name for name, family in axes if _varies(family, self.domain[name].size)}

    def _least(self, varying: set[str], error: Callable[[CoupledResiduals], float]) -> int | None:
        """Return the block with the attributes whose planned error is less than that of the average; None if none is.

        Only the plan decides, so the noise that was drawn does not change the answer.

        `varying` are the attributes along which the queries vary: a block that has these can answer alone, since the
        queries sum over the others. Errors are compared at the planned variances, and a block must be better by the
        fraction GAIN.
        """
        able = [index for index in self._able_alone if varying <= set(self.blocks[index].attributes)]
        if not able:
            return None

        planned = replace(self, variances=self.blocks.unit_variances.tolist())
        best, least = min(((index, error(planned.alone(index))) for index in able), key=itemgetter(1))
        return best if least < error(planned) * (1 - GAIN) else None

    @cached_property
    def _able_alone(self) -> range:
        """Blocks that can answer alone; none if the average is the least squares estimate over all blocks.

        Averages are least squares if every attribute whose factors mix residuals has the same factor in all blocks.
        """
        if len(self.blocks) == 1 or any(block.joint for block in self.blocks):
            return range(0)
        mixing = [name for name, factors in self._factors_by_name().items() if not all(f.commutes for f in factors)]
        return range(0 if self.shared_factors.keys() >= set(mixing) else len(self.blocks))

    def alone(self, index: int) -> CoupledResiduals:
        """Return the accuracy of one block.

        The block at position `index`, with its noise variance; cached in `_single`.
        """
        if index not in self._single:
            blocks = self.blocks.take(np.array([index]))
            self._single[index] = CoupledResiduals(self.domain, blocks, [self.variances[index]])
        return self._single[index]

    @cached_property
    def _single(self) -> dict[int, CoupledResiduals]:
        return {}

    def _answering(self, source: int | None) -> CoupledResiduals:
        """Return the accuracy of the block that answers alone (`source`), or that of all blocks together."""
        return self if source is None else self.alone(source)

    def variance_of(self, query: SpannedQuery) -> float:
        answering = self._answering(self.source_of(query))
        return float(answering._variances(query.attributes, query.values)[0])

    def part_variances(self, part: WorkloadPart, attributes: AttributeSet) -> Floats:
        """Return the variances by the block that answers the set (`source`), or by the average of all blocks."""
        return Accuracy.part_variances(self._answering(self.source(part, attributes)), part, attributes)

    def part_error(self, part: WorkloadPart, attributes: AttributeSet) -> float:
        return Accuracy.part_error(self._answering(self.source(part, attributes)), part, attributes)

    def summed_variance(self, part: WorkloadPart, attributes: AttributeSet) -> float:
        return Accuracy.summed_variance(self._answering(self.source(part, attributes)), part, attributes)

    def _array_variances(self, part: WorkloadPart, attributes: AttributeSet) -> Floats:
        return self._variances(attributes, part.queries(attributes))

    def total_error(self, workload: Workload) -> float:
        if self._can_stack:
            return self._stacked_error(workload)
        return super().total_error(workload)

    @property
    def _can_stack(self) -> bool:
        """Whether all blocks are products of matrices over whole marginals, so that many sets are evaluated at once."""
        plain = self.blocks.whole.all() and not any(block.joint for block in self.blocks)
        implicit = any(is_implicit(factor) for strategy in self.blocks.strategies for factor in strategy)
        return bool(plain) and not implicit and not self.domain.public_totals

    def _stacked_error(self, workload: Workload) -> float:
        """Return the sum of weight · variance, the sets of products with equal attributes together.

        Sets that are no products are added one by one. Products of one set share the tables of its blocks, so
        `_error_of_products` treats them in one pass.
        """
        total, products = 0.0, defaultdict[AttributeSet, list[tuple[float, WorkloadPart]]](list)
        for part in workload.parts:
            for attributes, weight in zip(part.sets, part.weights, strict=True):
                if weight > 0 and part.factorizes:
                    products[attributes].append((weight, part))
                elif weight > 0:
                    total += weight * self.part_error(part, attributes)

        return total + math.fsum(self._error_of_products(*group) for group in products.items())

    def _error_of_products(self, attributes: AttributeSet, parts: Sequence[tuple[float, WorkloadPart]]) -> float:
        """Return the sum of weight · variance of sets of products with the same attributes.

        A set is answered from the average of all blocks, or from the best block alone if that is planned to be better
        by the fraction GAIN.

        `average` and `alone` have the errors per unit of noise variance, shape (sets, blocks): of the average of all
        blocks, and of each block alone. A block without an attribute along which a set varies cannot answer it
        (infinite error).
        """
        sizes, products = self.domain.shape(attributes), []
        for _, part in parts:
            families_and_sizes = zip(self.blocks.part(part).families(attributes), sizes, strict=True)
            products.append(dict(zip(attributes, families_and_sizes, strict=True)))
        average, alone = product_errors(self.blocks, products, self._block_weights(attributes), self.averagings)
        errors, planned = average @ np.asarray(self.variances), average @ self.blocks.unit_variances

        if self._able_alone:
            varying = [self._varying(part, attributes) for _, part in parts]
            contains = [[names <= set(block.attributes) for block in self.blocks] for names in varying]
            planned_alone = np.where(contains, alone * self.blocks.unit_variances, np.inf)
            best = planned_alone.argmin(axis=1)
            rows = np.arange(len(best))
            better = planned_alone[rows, best] < planned * (1 - GAIN)
            errors = np.where(better, alone[rows, best] * np.asarray(self.variances)[best], errors)
        return float(np.array([weight for weight, _ in parts]) @ errors)

    def _block_weights(self, attributes: AttributeSet) -> Floats:
        """Return the weights w_bτ of each block b in the estimates of residuals τ of a set, shape (blocks, 2, 2, …).

        The index along an attribute's axis is 1 if the attribute is in the residual, 0 if it is averaged over.
        """
        weights = np.zeros((len(self.blocks), *[2] * len(attributes)))
        for pattern in product((0, 1), repeat=len(attributes)):
            residual_set = tuple(name for name, inside in zip(attributes, pattern, strict=True) if inside)
            estimator = self.residuals.get(residual_set)  # a residual that no query needs may not be measured
            for source in () if estimator is None else estimator.sources:
                weights[(source.block, *pattern)] += source.weight
        return weights

    def _product_variances(self, families: Mapping[str, Family]) -> Floats:
        """Return the variances of all products of the families' queries, one axis for the queries of each attribute."""
        total: Floats = np.zeros(())
        for index, block, weights in self._contributions(tuple(families)):
            total = total + self.variances[index] * self._block_variances(block, families, weights)
        return np.asarray(total)

    def _product_error(self, families: Mapping[str, Family]) -> float:
        """Return the sum of the variances of all products of the families' queries."""
        return sum(
            self.variances[index] * self._block_error(block, families, weights)
            for index, block, weights in self._contributions(tuple(families))
        )

    def _spread_ratio(self, block: Block, residual_set: AttributeSet) -> float:
        """Return the mean variance of a residual's coordinates as estimated by a block, at unit noise variance.

        A product block has Π over its attributes: along an axis of the residual the trace of the centred covariance
        over n − 1 coordinates, along another axis the variance 1ᵀS1 of the total. A joint block has the trace over Π (n
        − 1).
        """
        value = 1.0
        if block.joint:
            axes = tuple(axis for axis, name in enumerate(block.attributes) if name in residual_set)
            value = joint_spread(block.factors[0], axes)
            return value / float(np.prod([self.domain[name].size - 1 for name in residual_set]))

        for name, factor in zip(block.attributes, block.factors, strict=True):
            inside, profiled = name in residual_set, name in self.shared_factors
            value *= centred_variance(factor, profiled) / (factor.cells - 1) if inside else total_variance(factor)

        return value

    def _factors(self, block: Block, residual_set: AttributeSet) -> tuple[Factor, ...]:
        """Return identity factors, a treatment of all coordinates as equal."""
        return tuple(identity_factor(self.domain[name].size) for name in residual_set)

    def _whole_in(self, block: Block, residual_set: AttributeSet) -> bool:
        """Return whether every cell of a residual has a useful estimate.

        A joint strategy of several spaces may have full rank on them only because of a ridge: directions that no query
        needs are measured with a very large variance. They count as not measured.

        The order: a product or a "full" factor spans by its rank; a joint factor without full rank must have each
        cell's piece in its row space; with full rank and several spaces, the largest variance decides whether only the
        ridge measures it.
        """
        if not block.joint or block.factors[0].kind == "full":
            return all(factor.spans_all for factor in self._on(block, residual_set))
        if not block.factors[0].spans_all and not self._spans_residual(block, residual_set):
            return False
        if block.factors[0].spaces is None or not residual_set or not block.factors[0].spans_all:
            return True

        # the largest variance of a centred direction, with I − u1ᵀ along every axis
        form, profiles = _marginal_covariance(block, residual_set), self.axis_profiles(residual_set)
        sizes = self.domain.shape(residual_set)
        centre = kron(
            [np.eye(n) - np.outer(profiles.get(i, np.full(n, 1 / n)), np.ones(n)) for i, n in enumerate(sizes)]
        )
        return float(np.linalg.eigvalsh(centre @ form @ centre.T)[-1]) <= _limit(block)

    def _check_span(self, pieces: Sequence[tuple[AttributeSet, Floats]]) -> None:
        """Raise PlanError unless every block that estimates pieces has them in its row space.

        A joint strategy of several spaces estimates the pieces on them together: their sum must lie in its row space.
        For residuals that are not fully measured, the sum must not use directions whose rank comes only from the ridge.

        `together` has, by block, the sum of the pieces that a joint factor of several spaces estimates, as an array
        over the block's attributes; `partial` the part of it on residuals that are not fully measured (`spans_all` is
        False).

        A residual has `sources`, the blocks that estimate it. `_lifted` writes a piece as an array over the block's
        attributes. The ridge is a small multiple of the identity that makes singular strategies invertible.
        """
        together, partial = dict[int, Floats](), dict[int, Floats]()
        for residual_set, part in pieces:
            if residual_set not in self.residuals:
                raise out_of_span(residual_set)
            for source in self.residuals[residual_set].sources:
                block = self.blocks[source.block]
                if block.joint and block.factors[0].spaces is not None:
                    lifted = self._lifted(block, residual_set, part)
                    together[source.block] = together.get(source.block, 0.0) + lifted
                    if block.factors[0].spans_all and not self.residuals[residual_set].spans_all:
                        partial[source.block] = partial.get(source.block, 0.0) + lifted
                elif not spans(self._on(block, residual_set), part):
                    raise out_of_span(residual_set)

        for index, query in together.items():  # the sum of the pieces lies in the row space
            block = self.blocks[index]
            whole = np.broadcast_to(query, self.domain.shape(block.attributes))
            if not block.factors[0].spans(whole.reshape(1, -1)):
                raise out_of_span(block.attributes)

        for index, query in partial.items():  # a variance above the limit is that of a direction of the ridge
            block = self.blocks[index]
            whole = np.broadcast_to(query, self.domain.shape(block.attributes))[None]
            if float(_quadratic(block, block.attributes, whole)[0]) > _limit(block) * float((whole**2).sum()):
                raise out_of_span(block.attributes)

    def _lifted(self, block: Block, residual_set: AttributeSet, pieces: Floats) -> Floats:
        """Return pieces with an axis of length 1 for each other attribute of a block; leading axes stay."""
        lead = pieces.shape[: pieces.ndim - len(residual_set)]
        return pieces.reshape(
            *lead, *(self.domain[name].size if name in residual_set else 1 for name in block.attributes)
        )

    def _spans_residual(self, block: Block, residual_set: AttributeSet) -> bool:
        """Return whether every query's piece on a residual lies in the row space of a joint strategy.

        The piece of cell e has the entries δ_ed − u_e along every axis. It lies in the row space if its projection on
        an orthonormal basis has its length.

        Summed over the outside axes and centred by u, the basis gives the projections of all pieces at once (`rows`).
        The squared length of a piece along an axis is (1 − u_e)² + Σ_{d ≠ e} u_e² = 1 − 2u_e + n u_e², and 1 per cell
        of an outside axis, along which it is constant (`lengths`).
        """
        shape, profiles = self.domain.shape(block.attributes), self.axis_profiles(residual_set)
        outside = tuple(axis for axis, name in enumerate(block.attributes) if name not in residual_set)
        rows, squares = block.factors[0].row_basis.reshape(*shape, -1).sum(axis=outside), np.ones(())

        for axis, size in enumerate(self.domain.shape(residual_set)):
            profile = profiles.get(axis, np.full(size, 1 / size))
            along = profile.reshape([-1 if other == axis else 1 for other in range(rows.ndim)])
            rows = rows - along * rows.sum(axis=axis, keepdims=True)
            squares = np.multiply.outer(squares, 1 - 2 * profile + size * profile**2)

        lengths = squares * math.prod(shape[axis] for axis in outside)
        return bool(np.abs((rows**2).sum(axis=-1) - lengths).max() <= SPANNED * lengths.max())

    @staticmethod
    def _on(block: Block, residual_set: AttributeSet) -> tuple[Factor, ...]:
        """Return the factors of a block on some of its attributes; a joint factor is returned as it is."""
        if block.joint:
            return block.factors
        return tuple(
            factor for name, factor in zip(block.attributes, block.factors, strict=True) if name in residual_set
        )

    def _factors_by_name(self) -> dict[str, list[Factor]]:
        """Return the factors of each attribute in all blocks that have it, with repetitions."""
        by_name: dict[str, list[Factor]] = {}
        for block in self.blocks:
            for name, factor in zip(block.attributes, block.factors, strict=True):
                by_name.setdefault(name, []).append(factor)
        return by_name

    def _variances(self, attributes: AttributeSet, queries: Floats) -> Floats:
        """Return the variances of queries (m, sizes…) on `attributes` in domain order.

        Of a block, the query on the common attributes is Σ_τ w_τ P_τ q (`mix_pieces`), and its variance a quadratic
        form.
        """
        total = np.zeros(len(queries))
        for index, block, weights in self._contributions(attributes):
            common = tuple(name for name in attributes if name in block.attributes)
            mixed = mix_pieces(self._inside(attributes, block, queries), weights, self.axis_profiles(common))
            total += self.variances[index] * _quadratic(block, common, mixed)
        return total

    def _block_variances(self, block: Block, families: Mapping[str, Family], weights: Floats) -> Floats:
        """Return the contribution of one block to every product query, at unit noise variance.

        A block without a joint strategy multiplies 2 × 2 tables over its axes, one for (averaged, centred); `weights`
        are those of its residuals, and `_summed` is the variance 1ᵀS1 of the attributes that the query lacks.
        """
        names = tuple(families)
        if block.joint:
            return self._joint_variances(block, families)
        tables, scale = self._tables(query_table, block, families), _summed(block, names)
        return scale * combine_tables(tables, add_outside_axes(weights, block, names))

    def _block_error(self, block: Block, families: Mapping[str, Family], weights: Floats) -> float:
        """Return the contribution of one block to the sum over all product queries, at unit noise variance.

        `gram_table` has the sums of `query_table` over the queries of a family, so no query is evaluated alone.
        """
        names = tuple(families)
        if block.joint:
            return self._joint_error(block, families)
        tables, scale = self._tables(gram_table, block, families), _summed(block, names)
        return scale * float(combine_tables(tables, add_outside_axes(weights, block, names)).sum())

    def _joint_variances(self, block: Block, families: Mapping[str, Family]) -> Floats:
        """Return the variances of all products under a joint block, one axis for the queries of each attribute.

        Queries of attributes that the block lacks are averaged, which multiplies by their squared mean.
        `_marginal_covariance` is that of the marginal on the measured attributes of the queries.
        """
        measured = tuple(name for name in families if name in block.attributes)
        covariance, block_families = _marginal_covariance(block, measured), tuple(families[name] for name in measured)
        total = (
            joint_quadratic(block_families, covariance, self.domain.shape(measured))
            if measured
            else covariance.reshape(())
        )

        for axis, (name, family) in enumerate(families.items()):
            if name not in measured:
                means = np.square(family.answers(self._profile(name), 0))
                total = np.expand_dims(total, axis) * means.reshape([-1, *[1] * (total.ndim - axis)])
        return total

    def _joint_error(self, block: Block, families: Mapping[str, Family]) -> float:
        """Return the sum of the variances of all products under a joint block, by the families' Gram matrices.

        Σ over products of qᵀSq is tr(G S), G the Kronecker product of Gram matrices; an averaged attribute adds uᵀGu.
        """
        measured = tuple(name for name in families if name in block.attributes)
        grams = {name: family.gram(self.domain[name].size) for name, family in families.items()}
        outside = [
            self._profile(name) @ gram @ self._profile(name) for name, gram in grams.items() if name not in measured
        ]
        inside = (kron([grams[name] for name in measured]) * _marginal_covariance(block, measured)).sum()
        return float(np.prod(outside) * inside)

    def _profile(self, name: str) -> Floats:
        return averaging_profile(self.averagings.get(name), self.domain[name].size)

    def _tables(self, table: Table, block: Block, families: Mapping[str, Family]) -> list[Floats]:
        """Return the table of every attribute, from the block's factor and the attribute's averaging profile."""
        by_name = dict(zip(block.attributes, block.factors, strict=True))
        return [
            table(by_name.get(name), self.averagings.get(name), self.domain[name].size, family)
            for name, family in families.items()
        ]

    def _contributions(self, attributes: AttributeSet) -> Iterator[tuple[int, Block, Floats]]:
        """Yield the blocks that estimate residuals inside a set, with w_bτ over the attributes that both have.

        The weights have shape (2,)*(common attributes): index 1 along an attribute of the residual, 0 along one
        outside.
        """
        for index, block in enumerate(self.blocks):
            check_planning_time()
            common = tuple(name for name in attributes if name in block.attributes)
            weights = np.zeros((2,) * len(common))
            for pattern in product((0, 1), repeat=len(common)):
                residual_set = tuple(name for name, inside in zip(common, pattern, strict=True) if inside)
                estimator = self.residuals.get(residual_set)  # a residual that no query needs may not be measured
                sources = () if estimator is None else estimator.sources
                weights[pattern] = sum(source.weight for source in sources if source.block == index)
            if weights.any():
                yield index, block, weights

    def _inside(self, attributes: AttributeSet, block: Block, queries: Floats) -> Floats:
        """Return queries (m, sizes…) averaged over the attributes that the block does not have."""
        profiles = self.axis_profiles(attributes)
        for axis, size in reversed(list(enumerate(queries.shape[1:]))):
            if attributes[axis] not in block.attributes:
                queries = np.tensordot(queries, profiles.get(axis, np.full(size, 1 / size)), axes=(axis + 1, 0))
        return queries


def _varies(family: Family, size: int) -> bool:
    """Return whether a query of a family varies along its axis: the Gram matrix is no multiple of 11ᵀ.

    By the Cauchy–Schwarz inequality n tr G ≥ 1ᵀG1, with equality if and only if each query is constant.
    """
    if is_wide(size):
        return size * family.trace(size) > (1 + NOTHING) * float(family.times_gram(np.ones(size)).sum())
    return bool(np.ptp(family.gram(size)) > 0)


def _varying_axes(attributes: AttributeSet, queries: Floats) -> set[str]:
    """Return the attributes along which queries, shape (m, sizes…), vary."""
    return {name for axis, name in enumerate(attributes, start=1) if np.ptp(queries, axis=axis).any()}


def _limit(block: Block) -> float:
    """Return the variance of a unit vector above which a marginal counts as not measured.

    A unit vector in the best direction has the variance 1/σ₁², with the largest singular value σ₁ of K.
    """
    singular_values = np.linalg.svd(block.factors[0].explicit().astype(np.float64), compute_uv=False)
    return MEASURED_LIMIT / float(singular_values[0]) ** 2


def _summed(block: Block, names: Sequence[str]) -> float:
    """Return 1ᵀS1 over the attributes of a block that the query does not have."""
    pairs = zip(block.attributes, block.factors, strict=True)
    return float(np.prod([total_variance(factor) for name, factor in pairs if name not in names]))


def _quadratic(block: Block, attributes: AttributeSet, queries: Floats) -> Floats:
    """Return qᵀ (⊗ S) q of queries (m, sizes…) on some of the block's attributes; the other axes are summed.

    S is applied along each axis of the query; the identity leaves it as it is, and an axis that the query lacks
    multiplies by the variance 1ᵀS1 of its total.
    """
    if block.joint:
        return np.asarray(
            np.square(queries.reshape(len(queries), -1) @ _marginal_inverse(block, attributes)).sum(axis=1)
        )

    multiplied, scale = queries, 1.0
    for name, factor in zip(block.attributes, block.factors, strict=True):
        if name not in attributes:
            scale *= total_variance(factor)
        elif factor.kind != "identity":
            axis = attributes.index(name) + 1
            if factor.is_long:
                moved = factor.apply_covariance(np.moveaxis(multiplied, axis, 1))
            else:
                moved = np.tensordot(multiplied, factor.covariance, axes=(axis, 0))
            multiplied = np.moveaxis(moved, -1, axis)

    return np.asarray(scale * (queries * multiplied).reshape(len(queries), -1).sum(axis=1))


def _marginal_covariance(block: Block, attributes: AttributeSet) -> Floats:
    """Return the covariance of the marginal on some attributes of a joint block, shape (cells, cells)."""
    inverse = _marginal_inverse(block, attributes)
    return inverse @ inverse.T


def _marginal_inverse(block: Block, attributes: AttributeSet) -> Floats:
    """Return M K⁺ of a joint block, shape (cells, rows), where M sums the cells to the marginal on `attributes`.

    The variance of a query q on the marginal is ‖(M K⁺)ᵀq‖². If it were computed from the covariance (KᵀK)⁺, the
    rounding error would grow with the square of the condition number of K, which reaches 10⁶.
    """
    factor = block.factors[0]
    others = tuple(axis for axis, name in enumerate(block.attributes) if name not in attributes)
    cells = factor.inverse.reshape(*factor.shape, -1).sum(axis=others)
    return np.asarray(cells.reshape(-1, factor.rows))
