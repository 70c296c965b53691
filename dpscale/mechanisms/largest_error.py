"""Plans of least largest error, for any matrix mechanism that minimises a sum of variances.

With weights p ≥ 0 of the queries, Σp = 1, the least weighted sum of variances is at most the least maximum:
    max over p of min over strategies of Σ p_q var(q) = min over strategies of max_q var(q).
Each round plans the workload with weights p and multiplies every weight by the query's variance over the mean, which
raises the left side, with Anderson mixing of the logarithms (`convex.Mixing`). The bound of a round is a lower bound of
the maximum; the plan with the least maximum is returned.

The weights of products are products: one number for each query of a family on an axis of a size, for each part of the
workload, and one for each kind of set. Single queries of joint families and arrays have their own. On wide axes and
levels of hierarchies only the sets have weights. Products of weights do not always reach the maximum on the left; the
gap that the plan states includes what is lost.

*Names.* `whole` is the workload as the user states it. `logs` has the logarithms of all factors of weights, and `keys`
the place of each factor in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import cast

import numpy as np

from dpscale.base.deadline import check_planning_time
from dpscale.base.errors import JobError, PlanError
from dpscale.base.numerics import AttributeSet, Floats
from dpscale.mechanisms.contract import PlanningProblem
from dpscale.optimize.convex import Mixing
from dpscale.optimize.residual_grams import kinds_of
from dpscale.plans.accuracy import accuracy_of
from dpscale.plans.plan import Plan
from dpscale.privacy.draws import GAUSSIAN
from dpscale.workload import Family, Workload, WorkloadPart
from dpscale.workload.families import ProductQueries
from dpscale.workload.family import ProductFamily
from dpscale.workload.listed import ListedQueries, reweighted
from dpscale.workload.parts import ProductPart
from dpscale.workload.wide import is_wide

ROUNDS, ENOUGH, EARLY = 40, 1e-3, 8  # rounds, gap of the variance at which they end, rounds without gain that end them
USUAL_ROUNDS = 15  # from which the time of a plan is predicted
GAIN = 1e-4  # of the maximum or its bound
MOST_QUERIES = 1 << 22  # whose variances are computed in each round
LEAST = 1e-3  # of the largest factor; smaller weights may have no effect on integer strategies
FLAT = 1e-4  # spread of logarithms below which the weights of a family are equal
Key = tuple[object, ...]  # of the weights of an axis, of single queries, or of a kind of sets


def least_largest(problem: PlanningProblem, make: Callable[[PlanningProblem], Plan]) -> Plan:
    """Return the plan of least largest weighted variance, with remarks on it, its bound and its gap.

    `make` is run with the weighted workload in each round. `worst` is the least maximum so far and `least` the largest
    bound, so that the optimum lies between them; `idle` is the number of rounds in a row without a gain of either.

    Parameters
    ----------
    problem : PlanningProblem
    make : callable
        Returns the plan that minimises the weighted sum of the variances.

    Raises
    ------
    JobError
        If the noise is not Gaussian.
    PlanError
        If the queries are too many, or are not linear.
    """
    if problem.noise != GAUSSIAN:
        raise JobError("mechanism.objective", "max under Laplace noise, where the least weighted sum, which bounds the "
                       "largest error, is no convex program", "sum", "give delta, or leave it out")  # fmt: skip

    weights, mixing = QueryWeights.of(problem.workload), Mixing()
    best: Plan | None = None
    first: Plan | None = None
    worst, least, idle, rounds = math.inf, 0.0, 0, 0
    while rounds < ROUNDS and idle < EARLY and worst > least * (1 + ENOUGH):
        check_planning_time()
        rounds += 1
        try:
            plan = make(replace(problem, workload=weights.workload))
        except PlanError:  # integer strategies may not reach these weights
            if best is None:
                raise
            break
        first = first or plan
        errors = weights.measured(plan)
        # bound of the weighted mean, which the maximum cannot be below
        bound = _bound(plan) / weights.total
        idle = 0 if errors.largest < worst * (1 - GAIN) or bound > least * (1 + GAIN) else idle + 1
        least = max(least, bound)
        if errors.largest < worst:
            best, worst = plan, errors.largest
        # all variances are equal, or their weights cannot change
        if np.abs(errors.changes).max(initial=0.0) <= FLAT:
            break
        weights = weights.moved(mixing, errors)

    assert best is not None
    assert first is not None
    return _with_remarks(problem.workload, best, first, worst, least, rounds)


def _bound(plan: Plan) -> float:
    """Return a lower bound of the weighted sum of variances: over all mechanisms, or the plans of a fixed class."""
    if plan.floor > 0:
        return plan.floor
    return 0.0 if plan.accuracy.weights else plan.bound  # that of weighted residuals is one for their own weights


def _with_remarks(workload: Workload, plan: Plan, first: Plan, worst: float, least: float, rounds: int) -> Plan:
    """Return a plan for the workload itself, with remarks on its largest error; `first` has equal weights.

    `worst` is the largest weighted variance and `least` its lower bound, 0 if none is known.
    """
    error = accuracy_of(workload.domain, plan.blocks).total_error(workload)
    scope = "all mechanisms" if plan.floor > 0 else "its own plans"
    known = "bound not known"
    if least:
        known = f"bound {math.sqrt(least):.6g} over {scope}, gap {math.sqrt(worst / least) - 1:.1e}"
    note = (
        f"largest weighted standard error of a query at privacy cost 1: {math.sqrt(worst):.6g}"
        f" ({known}; {rounds} rounds)"
    )
    bound, floor = min(_bound(first), error), min(first.floor, error)  # of equal weights, as the error is
    return replace(plan, workload=workload, error=error, bound=bound, floor=floor, notes=(note, *plan.notes))


@dataclass(frozen=True, eq=False)
class QueryErrors:
    """Largest weighted variance of a plan, and by key the logarithms of variances over their mean.

    Attributes
    ----------
    largest : float
    changes : ndarray
        In the order of the logarithms of the weights.
    mean : float
        Weighted mean of the variances.
    """

    largest: float
    changes: Floats
    mean: float


@dataclass(frozen=True, eq=False)
class QueryWeights:
    """Weights p of the queries of a workload, as the logarithms of their factors.

    The weight of a query is the product of the factors of its set and of its place on each axis. A factor, or the
    factors of all places on an axis, has a key, and places with the same key share them.

    Attributes
    ----------
    whole : Workload
        The workload as the user states it.
    kinds : mapping of str to int
        Attributes of the same kind have the same size and the same queries.
    keys : mapping of Key to slice
        Place of the logarithms of each factor.
    logs : ndarray
    """

    whole: Workload
    kinds: Mapping[str, int]
    keys: Mapping[Key, slice]
    logs: Floats

    @classmethod
    def of(cls, workload: Workload) -> QueryWeights:
        """Return equal weights. Raises PlanError if the queries are too many or not linear.

        `keys` gives every factor of weights, of a set or of the queries on an axis, its place in one vector of
        logarithms.
        """
        for part in workload.parts:
            if part.statistic is not None:
                raise PlanError("mechanism.objective",
                                f"max with {part.name}, a ratio whose variance depends on the data", "linear queries",
                                "minimise the sum, or ask for sums and counts")  # fmt: skip
        if workload.query_count > MOST_QUERIES:
            raise PlanError("mechanism.objective", f"max of the errors of {workload.query_count:,} queries",
                            f"at most {MOST_QUERIES:,}", "use fewer sets, minimise the sum, or use residual-planner "
                            "for marginals alone")  # fmt: skip

        roles = kinds_of(workload)
        numbers = {role: number for number, role in enumerate(dict.fromkeys(roles.values()))}
        # without keys first, because `_factors` needs the kinds
        unkeyed = cls(workload, {name: numbers[role] for name, role in roles.items()}, {}, np.zeros(0))
        keys, end = dict[Key, slice](), 0
        for number, part, names in _sets(workload):
            for key, count in unkeyed._factors(number, part, names):
                if key is not None and key not in keys:
                    keys[key] = slice(end, end + count)
                    end += count
        return replace(unkeyed, keys=keys, logs=np.zeros(end))

    def factor(self, key: Key | None) -> Floats:
        """Return the factors of one key."""
        assert key is not None
        return np.exp(np.maximum(self.logs[self.keys[key]], math.log(LEAST)))

    @cached_property
    def total(self) -> float:
        """Sum of the weights of all queries."""
        return math.fsum(float(self.of_set(number, part, names).sum()) for number, part, names in _sets(self.whole))

    def of_set(self, number: int, part: WorkloadPart, names: AttributeSet) -> Floats:
        """Return the weights of the queries of a set, one axis for each attribute of a product."""
        *axes, (whole, _) = self._factors(number, part, names)
        factors = [np.ones(count) if key is None else self.factor(key) for key, count in axes]
        return np.asarray(reduce(np.multiply.outer, factors, np.ones(())) * self.factor(whole))

    @cached_property
    def workload(self) -> Workload:
        """The workload in which each query has its weight times p."""
        weighted = Workload(self.whole.domain, self.whole.max_sets)
        for number, part in enumerate(self.whole.parts):
            weighted.parts += (
                self._product(number, cast(ProductPart, part)) if part.factorizes else self._single(number, part)
            )
        return weighted

    def _product(self, number: int, part: ProductPart) -> list[WorkloadPart]:
        """Return a product part with the weights so far: a factor for each set, and for queries of each attribute."""
        pairs = zip(part.sets, part.weights, strict=True)
        weights = tuple(weight * float(self.factor(self._set_key(number, names))[0]) if weight > 0 else 0.0
                        for names, weight in pairs)  # fmt: skip
        families = {name: self._family(number, part, name) for names in part.sets for name in names}
        if all(family is part.family.axis(name) for name, family in families.items()):
            return [replace(part, weights=weights)]
        return [replace(part, weights=weights, family=_products(part.family, families))]

    def _family(self, number: int, part: ProductPart, name: str) -> Family:
        """Return the queries of an attribute, each times the square root of its weight.

        Equal weights leave the family as it is. A weight p of a query is √p on its row, since variances are squared.
        """
        family, size = part.family.axis(name), self.whole.domain[name].size
        key = self._axis_key(number, family, size)
        if key is None or key not in self.keys or float(np.ptp(self.logs[self.keys[key]])) <= FLAT:
            return family
        return ListedQueries.of(np.sqrt(self.factor(key))[:, None] * family.matrix(size))

    def _single(self, number: int, part: WorkloadPart) -> list[WorkloadPart]:
        """Return each set of a joint family or array as a part of its own, with the weights of its queries so far."""
        pairs = zip(part.sets, part.weights, strict=True)
        return [reweighted(part, names, weight * self.of_set(number, part, names)) for names, weight in pairs]

    def measured(self, plan: Plan) -> QueryErrors:
        """Return the errors of a plan.

        For each factor, `sums` is the weighted variance of its queries and `counts` their weight; the change of its
        logarithm is log(sums/counts/mean), with the weighted mean of all variances.

        `number` is that of the part of the workload and `weights` the products p of the factors. A factor without a key
        has equal weights and is not changed.
        """
        accuracy = accuracy_of(self.whole.domain, plan.blocks)
        sums, counts, largest, total = np.zeros_like(self.logs), np.zeros_like(self.logs), 0.0, 0.0
        for number, part, names in _sets(self.whole):
            # variances weighted by the set and by the query, as the workload states them
            weight_of_set = dict(zip(part.sets, part.weights, strict=True))[names]
            weights_of_queries = 1.0 if part.factorizes else part.query_weights(names)
            variances = weight_of_set * weights_of_queries * accuracy.part_variances(part, names)
            weights = self.of_set(number, part, names)
            largest, total = max(largest, float(variances.max())), total + float((weights * variances).sum())
            *axes, (whole, _) = self._factors(number, part, names)
            assert whole is not None
            sums[self.keys[whole]] += (weights * variances).sum()
            counts[self.keys[whole]] += weights.sum()
            for axis, (key, _) in enumerate(axes):
                if key is not None:
                    others = tuple(other for other in range(variances.ndim) if other != axis)
                    sums[self.keys[key]] += (weights * variances).sum(axis=others)
                    counts[self.keys[key]] += weights.sum(axis=others)

        mean = total / self.total
        # queries above the mean variance gain weight; 1e-300 avoids the logarithm of 0
        changes = np.log(np.maximum(sums, 1e-300) / np.maximum(counts, 1e-300) / mean)
        return QueryErrors(largest, np.where(sums > 0, changes, 0.0), mean)

    def moved(self, mixing: Mixing, errors: QueryErrors) -> QueryWeights:
        """Return the weights of the next round."""
        logs = np.maximum(mixing.next(self.logs, errors.changes, errors.mean), math.log(LEAST))
        shifted = logs.copy()
        for places in self.keys.values():  # a common factor of an axis has no effect
            if places.stop - places.start > 1:
                shifted[places] -= logs[places].max()
        return replace(self, logs=shifted)

    def _factors(self, number: int, part: WorkloadPart, names: AttributeSet) -> list[tuple[Key | None, int]]:
        """Return keys and lengths of the factors of a set: of its axes or its single queries, and of the set.

        The key is None for an axis whose queries have equal weights.
        """
        factors: list[tuple[Key | None, int]] = [(("queries", number, part.key(names)), part.count(names))]
        if part.factorizes:
            sized = zip(part.families(names), self.whole.domain.shape(names), strict=True)
            factors = [(self._axis_key(number, family, size), family.count(size)) for family, size in sized]
        return [*factors, (self._set_key(number, names), 1)]

    def _axis_key(self, number: int, family: Family, size: int) -> Key | None:
        """Return the key of the weights of a family's queries on one axis.

        It is None for a wide axis, and for domains with levels or totals.
        """
        domain = self.whole.domain
        if is_wide(size) or domain.hierarchies or domain.totals:
            return None
        return "axis", number, family.key, size

    def _set_key(self, number: int, names: AttributeSet) -> Key:
        return "set", number, tuple(self.kinds[name] for name in names)


def _sets(workload: Workload) -> Iterator[tuple[int, WorkloadPart, AttributeSet]]:
    """Yield the sets of positive weight with their part and its number."""
    for number, part in enumerate(workload.parts):
        for names, weight in zip(part.sets, part.weights, strict=True):
            if weight > 0:
                yield number, part, names


def _products(family: ProductFamily, families: dict[str, Family]) -> ProductQueries:
    products = ProductQueries(label=family.title)
    products._by = families
    return products
