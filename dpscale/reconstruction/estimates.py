"""Least-squares estimates of residuals, marginals and queries, with their exact variances.

*Terms.* The *residual* on a set of attributes (`subset`) is the part of its marginal that no smaller set has, centred
along every axis; a marginal is the sum of the residuals inside it, each spread over the other axes, evenly or by the
weights of an axis (`profiles`). A *block* measures a strategy on the marginal of its attributes: one factor for each
attribute, or a *joint* one on all cells. A *whole* block estimates all residuals inside its attributes, another one
only that of its set, or those of its joint factor. A *part* has the queries of one family of the workload.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any

import numpy as np

from dpscale.base.errors import PlanError
from dpscale.base.numerics import AttributeSet, Floats, Integers, NDArray
from dpscale.domain import Domain
from dpscale.plans.accuracy import Accuracy, accuracy_of
from dpscale.plans.blocks import Block, Blocks, Strategy
from dpscale.plans.factor import Factor
from dpscale.plans.plan import Plan
from dpscale.privacy.accounting import LAPLACE
from dpscale.workload import Family, Workload, WorkloadPart
from dpscale.workload.residual import Groups, center, coarsened, residual_of, smear, subsets

Both = tuple[Floats, Floats]
Pattern = tuple[int, ...]
MOST_CELLS = 1 << 16  # per batch


def has_separate_residuals(blocks: Blocks) -> bool:
    """Return whether each residual is measured by exactly one block."""
    return blocks.commutes and blocks.measures_one_residual and blocks.sets.distinct


@dataclass(frozen=True, eq=False)
class BatchedAnswers:
    """Batched answers from blocks that each measure separate residuals.

    Attributes
    ----------
    blocks : Blocks
    variances : ndarray, shape (blocks,)
        Noise variances.
    profiles : mapping of str to ndarray
        Weights u of the attributes that are not averaged by the plain mean.
    read : callable
        Returns the values of block i.
    residual : callable
        Returns the estimated residual of a smaller set.
    """

    blocks: Blocks
    variances: Floats
    profiles: Mapping[str, Floats]
    read: Callable[[int], Floats]
    residual: Callable[[AttributeSet], Floats]

    def answers(self, part: WorkloadPart, sets: Sequence[AttributeSet]) -> Iterator[Both | None]:
        """Yield estimates and standard errors of all queries of each set; None if a residual is missing."""
        start = 0
        while start < len(sets):
            end = _end(part, sets, start)
            yield from self._batch(part, sets[start:end])
            start = end

    def _batch(self, part: WorkloadPart, sets: Sequence[AttributeSet]) -> Iterator[Both | None]:
        """Answer sets of one shape; sets with equal strategies share one computation.

        `places` has the block of each residual of each set, shape (patterns, sets); a pattern is the axes of a
        residual.
        """
        results: list[Both | None] = [None] * len(sets)
        patterns = subsets(range(len(sets[0])))
        places = self._places(sets, patterns)

        for members in self._group_by_strategy(places):
            batch = _UniformBatch(
                whole=self,
                part=part,
                sets=[sets[i] for i in members.tolist()],
                patterns=patterns,
                places=places[:, members],
            )
            for i, answers, errors in zip(members.tolist(), batch.estimates(), batch.errors(), strict=True):
                results[i] = answers, errors
        return iter(results)

    @cached_property
    def _by_axis(self) -> NDArray[np.bool_]:
        """Whether each strategy is a product over the axes, shape (strategies,)."""
        return np.array([all(len(factor.shape) == 1 for factor in strategy) for strategy in self.blocks.strategies])

    def _places(self, sets: Sequence[AttributeSet], patterns: Sequence[Pattern]) -> Integers:
        """Return the block of every residual of every set, shape (patterns, sets); −1 where there is none."""
        members = self.blocks.sets.positions(sets)
        return np.stack([self.blocks.sets.locate(members[:, list(pattern)]) for pattern in patterns])

    def _group_by_strategy(self, places: Integers) -> Iterator[Integers]:
        """Yield the sets that were measured axis by axis, grouped by the strategies of their residuals."""
        measured = (places >= 0) & self._by_axis[self.blocks.which[places]]
        complete = np.flatnonzero(np.logical_and.reduce(measured, axis=0))
        if len(complete):
            _, group = np.unique(self.blocks.which[places[:, complete]], axis=1, return_inverse=True)
            yield from (complete[group == number] for number in range(int(group.max()) + 1))


def _end(part: WorkloadPart, sets: Sequence[AttributeSet], start: int) -> int:
    """Return the end of the batch from `start`: sets of equal shape and families."""

    def kind(names: AttributeSet) -> object:
        return part.domain.shape(names), part.families(names)

    first = kind(sets[start])
    most, end = max(MOST_CELLS // part.domain.cells(sets[start]), 1), start + 1
    while end < min(start + most, len(sets)) and kind(sets[end]) == first:
        end += 1
    return end


@dataclass(frozen=True, eq=False)
class _UniformBatch:
    """Sets of equal shape, families and strategies, with the blocks of their residuals, shape (patterns, sets)."""

    whole: BatchedAnswers
    part: WorkloadPart
    sets: Sequence[AttributeSet]
    patterns: Sequence[Pattern]
    places: Integers

    @property
    def shape(self) -> tuple[int, ...]:
        return self.part.domain.shape(self.sets[0])

    @property
    def families(self) -> tuple[Family, ...]:
        return self.part.families(self.sets[0])

    def profile(self, axis: int) -> Floats:
        """Return how the total of an axis is distributed over its cells; it is the same for all sets of the batch."""
        size = self.shape[axis]
        return self.whole.profiles.get(self.sets[0][axis], np.full(size, 1 / size))

    def strategy(self, pattern: int) -> Strategy:
        blocks = self.whole.blocks
        return blocks.strategies[blocks.which[self.places[pattern, 0]]]

    def estimates(self) -> Floats:
        """Return the estimates of all queries, shape (sets, …).

        A residual is spread over each axis that it lacks by the profile of the axis, and residuals add to the marginal.
        """
        total = np.zeros((len(self.sets), *self.shape))
        for number, pattern in enumerate(self.patterns):
            values = self._residuals(number)
            for axis in range(len(self.shape)):
                if axis not in pattern:
                    values = np.expand_dims(values, axis + 1)
                    values = values * self.profile(axis).reshape(
                        [-1 if i == axis + 1 else 1 for i in range(values.ndim)]
                    )
            total += values

        for axis, family in enumerate(self.families):
            total = family.answers(total, axis + 1)
        return total

    def _residuals(self, number: int) -> Floats:
        """Return the estimated residuals of a pattern, shape (sets, …)."""
        pattern = self.patterns[number]
        if len(pattern) < len(self.shape):  # shared with other sets
            return np.stack([self.whole.residual(tuple(names[axis] for axis in pattern)) for names in self.sets])
        values = np.stack([self.whole.read(index) for index in self.places[number].tolist()])
        for factor in self.strategy(number):  # each axis moves to the end, so finally the order is the same
            values = factor.estimate(values, 1)
        return values

    def errors(self) -> Floats:
        """Return the standard errors of all queries, shape (sets, …): of sums over independent residuals.

        A residual contributes its noise variance times, for each axis, the variance of the query at unit noise, or its
        squared mean if the axis is not in the residual. A pattern is the axes of a residual within the set, `places`
        the block that measures it in each set, and `variances` the noise variance of a block.
        """
        total: Floats = np.zeros(())
        for number, pattern in enumerate(self.patterns):
            factor = dict(zip(pattern, self.strategy(number), strict=True))
            vectors = [
                factor[axis].quadratics(family) if axis in factor else self._means(axis) ** 2
                for axis, family in enumerate(self.families)
            ]
            noise = self.whole.variances[self.places[number]]
            total = total + np.multiply.outer(noise, reduce(np.multiply.outer, vectors, np.ones(())))

        return np.sqrt(total)

    def _means(self, axis: int) -> Floats:
        """Return the mean of every query over an axis that is averaged out."""
        family, profile = self.families[axis], self.whole.profiles.get(self.sets[0][axis])
        return family.means(self.shape[axis]) if profile is None else family.answers(profile, 0)


CACHE_BYTES = 1 << 28  # residuals in memory at most, 256 MiB


def grouped_variance(factor: Factor, groups: Groups | None) -> float:
    """Return the mean variance of the estimates along one axis: of cells, or of sums over groups of cells.

    The covariance of the cells is summed over each pair of groups; the sums are then centred, as a residual over
    groups is.
    """
    if groups is None:
        return factor.mean_variance
    if factor.is_long:
        covariance = factor.sums_covariance(np.array([*groups.starts, groups.size]))
    else:
        covariance = coarsened(factor.covariance, [groups, groups])
    return float(np.diag(center(covariance, (0, 1))).mean())


HEAVY = 4.0  # divisor of the degrees of freedom of squared Laplace noise, which bounds its tail by that of χ²


def degrees_of_freedom(factor: Factor) -> float:
    """Return (Σ λ)² / Σ λ² over the eigenvalues of a factor's covariance; the least, 1, for a long factor.

    A squared normal vector with covariance eigenvalues λ has the mean Σλ and variance 2 Σλ², as a multiple of χ² with
    this number of degrees of freedom.
    """
    if factor.is_long:
        return 1.0
    covariance = factor.covariance
    return float(np.trace(covariance) ** 2 / (covariance**2).sum())


class LeastSquaresEstimates:
    """Unbiased estimates from the measured blocks of a plan.

    Parameters
    ----------
    plan : Plan
    variances : sequence of float
        Noise variance of each block.
    read : callable
        Returns the values of block i.
    """

    def __init__(self, plan: Plan, variances: Sequence[float], read: Callable[[int], Floats]) -> None:
        """Take `read`, which returns the values of a block, and start empty caches.

        Estimated residuals are cached by set, a marginal for the last block, and estimates from one block by number.
        """
        self.plan, self.variances, self._read = plan, variances, read
        self._residuals: OrderedDict[AttributeSet, Floats] = OrderedDict()
        self._cached_bytes = 0
        self._marginal: tuple[int, Floats] | None = None
        self._single: dict[int, LeastSquaresEstimates] = {}

    @cached_property
    def accuracy(self) -> Accuracy:
        """Accuracy under the noise variances of the release."""
        return accuracy_of(self.plan.domain, self.plan.blocks, self.variances)

    @property
    def domain(self) -> Domain:
        """Domain of the strategies, whose cells are classes where cells are merged."""
        return self.plan.blocks.domain_of(self.plan.domain)

    @cached_property
    def complete(self) -> frozenset[AttributeSet]:
        """Residuals of which every cell is estimated."""
        return frozenset(self.accuracy.complete_sets())

    def group_variance(self, subset: AttributeSet, groups: Mapping[str, Groups]) -> float:
        """Return the mean variance of the entries of a residual, over groups of the attributes that have them."""
        estimator = self.accuracy.residuals[subset]
        if estimator.joint:
            widths = [groups[name].size / groups[name].count for name in subset if name in groups]
            return estimator.scale * estimator.factors[0].mean_variance * math.prod(widths)
        pairs = zip(subset, estimator.factors, strict=True)
        return estimator.scale * math.prod(grouped_variance(factor, groups.get(name)) for name, factor in pairs)

    def residual_noise(self, subset: AttributeSet) -> tuple[Callable[[Floats], Floats], float, float] | None:
        """Return how a table differs from the estimate of a residual, with the noise of the estimate.

        Returns
        -------
        difference : callable
            Maps counts over the cells of the set, in domain order, to the difference of their residual from the
            estimate.
        variance : float
            Variance of the noise, summed over the cells.
        freedom : float
            Degrees of freedom: with λ the eigenvalues of the covariance, (Σ λ)² / Σ λ². Squares of Laplace noise vary
            more: their sum has the tail of a χ² variable of at most 1/HEAVY of these degrees.

        None if the residual was not measured alone, axis by axis and with noise.
        """
        estimator = self.accuracy.residuals.get(subset) if subset in self.complete else None
        if estimator is None or estimator.joint or self.plan.blocks.has_trees or self.plan.blocks.merged is not None:
            return None
        if (variance := self.group_variance(subset, {}) * self.plan.domain.cells(subset)) <= 0:
            return None

        estimate, profiles = self.residual(subset), self.accuracy.axis_profiles(subset)
        freedom = math.prod(degrees_of_freedom(factor) for factor in estimator.factors)
        freedom /= HEAVY if self.noise == LAPLACE else 1.0
        return lambda counts: residual_of(counts, range(counts.ndim), profiles) - estimate, variance, freedom

    @property
    def workload(self) -> Workload:
        return self.plan.workload

    @property
    def noise(self) -> str:
        return self.plan.noise

    def extrapolates(self, attributes: Sequence[str]) -> None:
        """Return None: least squares refuses queries outside the row space of the measurements."""

    def error_parts(self, attributes: AttributeSet) -> dict[str, Floats]:
        """Return no parts: the noise determines the standard errors."""
        return {}

    def marginal(self, attributes: Sequence[str]) -> Floats:
        """Return estimated counts, one axis per attribute in the given order; unbiased and possibly negative."""
        ordered = self.plan.domain.ordered(attributes)
        if not self.complete.issuperset(subsets(ordered)):  # also if cells are merged: before an array is made
            raise PlanError(
                "attributes",
                f"{', '.join(ordered)} was not measured",
                "a set inside a measured one",
                "add a family over these attributes to the workload",
            )
        total = np.zeros(self.plan.domain.shape(ordered))
        for subset in subsets(ordered):
            total += self._expand(subset, ordered)

        return total.transpose([ordered.index(name) for name in attributes])

    def answer(self, attributes: Sequence[str], query: Any) -> tuple[float, float]:
        """Return the estimate and standard error of one linear query, an array over the attributes' cells."""
        spanned = self.accuracy.spanned(attributes, query)
        source = self.accuracy.source_of(spanned)
        if source is not None:
            return self._alone(source).answer(attributes, query)
        estimate = math.fsum(float((part * self.residual(subset)).sum()) for subset, part in spanned.pieces)
        return estimate, math.sqrt(self.accuracy.variance_of(spanned))

    def part_answers(self, part: WorkloadPart, attributes: AttributeSet) -> tuple[Floats, Floats]:
        """Return estimates and standard errors of all queries of a part over one set.

        The arrays have one axis per attribute or a single axis.
        """
        variances = np.maximum(self.part_variances(part, attributes), 0.0)  # a rounding error may be negative
        answers, errors = self.span_answers(part, attributes), np.sqrt(variances)
        return part.mask(answers), part.mask(errors)  # queries that are not planned may be outside the span

    def iter_part_answers(self, part: WorkloadPart, sets: Sequence[AttributeSet]) -> Iterator[tuple[Floats, Floats]]:
        """Yield `part_answers` for each of several sets, in batches if the plan allows it."""
        batched = self._batched if part.factorizes else None
        merged = self.plan.blocks.part(part)
        results = (None for _ in sets) if batched is None else batched.answers(merged, sets)  # type: ignore[arg-type]
        return (self.part_answers(part, names) if answers is None else answers
                for names, answers in zip(sets, results, strict=True))  # fmt: skip

    @cached_property
    def _batched(self) -> BatchedAnswers | None:
        """Answers of many sets at once; None unless each block of the plan measures a residual of its own."""
        blocks = self.plan.blocks
        if not has_separate_residuals(blocks):
            return None
        variances = np.asarray(self.variances, dtype=np.float64)
        return BatchedAnswers(
            blocks=blocks, variances=variances, profiles=self.accuracy.profiles, read=self._read, residual=self.residual
        )

    def part_variances(self, part: WorkloadPart, attributes: AttributeSet) -> Floats:
        """Return variances of all queries of a part over one set, in closed form by family."""
        return self.accuracy.part_variances(part, attributes)

    def residual(self, subset: AttributeSet) -> Floats:
        """Return the estimated residual on exactly these attributes, centred along every axis.

        A residual of a public total is exact. Otherwise it is the weighted average over the blocks that measure it
        (`sources`). `weight` is that of a source in the average, and `axis_profiles` are the weights by which totals
        are spread on the axes.
        """
        if subset in self._residuals:
            self._residuals.move_to_end(subset)
            return self._residuals[subset]

        known = self.plan.domain.known_table(subset)
        if known is not None:
            return residual_of(known.astype(np.float64), range(len(subset)), self.accuracy.axis_profiles(subset))

        sources = self.accuracy.residuals[subset].sources
        value = sum((source.weight * self._block_residual(source.block, subset) for source in sources), np.zeros(()))
        self._cache(subset, np.asarray(value))
        return np.asarray(value)

    def _expand(self, subset: AttributeSet, attributes: AttributeSet) -> Floats:
        """Return a residual expanded to the cells of a larger set."""
        axes, shape = [attributes.index(name) for name in subset], self.domain.shape(attributes)
        return smear(self.residual(subset), axes, shape, self.accuracy.axis_profiles(attributes))

    def _block_residual(self, index: int, subset: AttributeSet) -> Floats:
        """Return the estimate of a residual from one block.

        A whole block gives the residual of its estimated marginal; another block measures the residual itself. A joint
        strategy measures all axes together; otherwise each axis has a factor.
        """
        block = self.plan.blocks[index]
        if block.whole or block.residual_sets != [subset]:
            axes = [block.attributes.index(name) for name in subset]
            return residual_of(self._cached_marginal(index, block), axes, self.accuracy.axis_profiles(block.attributes))

        values = self._read(index)
        if block.joint:
            return block.factors[0].joint_estimate(values.reshape(-1)).reshape(self.domain.shape(subset))

        for factor in block.factors:  # each axis moves to the end, so finally the order is the same
            values = factor.estimate(values)
        return values

    def _cached_marginal(self, index: int, block: Block) -> Floats:
        """Return the marginal of a whole block; the last one is cached while its residuals are read."""
        cached = self._marginal
        if cached is None or cached[0] != index:
            cached = self._marginal = (index, self._marginal_of(block, self._read(index)))
        return cached[1]

    def _marginal_of(self, block: Block, values: Floats) -> Floats:
        """Return the estimate of a block's marginal from its measured values, axis by axis or of all together.

        Factors that commute with averaging are applied to each residual, later; the others must be inverted on the
        marginal.
        """
        if block.joint:
            return block.factors[0].joint_estimate(values.reshape(-1)).reshape(block.factors[0].shape)
        for axis, factor in enumerate(block.factors):
            if factor.kind == "full":
                values = np.moveaxis(np.tensordot(factor.inverse, values, axes=(1, axis)), 0, axis)
            elif not factor.commutes:
                values = np.moveaxis(factor.estimate(values, axis), -1, axis)
        return values

    def source(self, part: WorkloadPart, attributes: AttributeSet) -> LeastSquaresEstimates:
        """Return the estimates that answer a part over a set: these, or those of one block."""
        index = self.accuracy.source(part, attributes)
        return self if index is None else self._alone(index)

    def _alone(self, index: int) -> LeastSquaresEstimates:
        """Return the estimates from one block.

        The plan has only the block at `index`, whose number in it is 0; `read` still reads the original place.
        """
        if index not in self._single:
            plan = replace(self.plan, blocks=self.plan.blocks.take(np.array([index])))
            self._single[index] = LeastSquaresEstimates(plan, [self.variances[index]], lambda _: self._read(index))
        return self._single[index]

    def span_answers(self, part: WorkloadPart, attributes: AttributeSet) -> Floats:
        """Return answers from the measured residuals; a residual that no query needs counts as zero.

        `source` gives the estimates that answer the part, these or those of one block. `blocks.part` gives the part on
        merged cells.
        """
        if (source := self.source(part, attributes)) is not self:
            return source.span_answers(part, attributes)

        shape = self.domain.shape(attributes)
        total = np.zeros(shape)
        for subset in subsets(attributes):
            if subset in self.accuracy.residuals:
                total += self._expand(subset, attributes)
        return self.plan.blocks.part(part).answers(attributes, total)

    def _cache(self, subset: AttributeSet, value: Floats) -> None:
        """Keep a residual; the least recently used ones are dropped beyond CACHE_BYTES."""
        self._residuals[subset] = value
        self._cached_bytes += value.nbytes
        while self._cached_bytes > CACHE_BYTES and len(self._residuals) > 1:
            _, old = self._residuals.popitem(last=False)
            self._cached_bytes -= old.nbytes
