"""Weighted residuals: QuerySmasher with optimised averaging weights for every axis (docs/mechanisms.md).

Any u with Σu = 1 splits a query on an axis as q = (q·u)1 + (q − (q·u)1); the plain mean gives QuerySmasher. The pieces
of one residual space are measured by their certified optimum, with closed-form shares. The search for u minimises the
error of that plan (`optimize.axis_weights`); the plain mean is used if no better u is found. A workload over several
levels of a hierarchy has plans of its own (`tree_plans`).

*Bound.* The least error over all matrix mechanisms is bounded for Gaussian noise (`optimize.lower_bounds`). A strategy
of L1 sensitivity 1 has an L2 sensitivity of at most 1, so under Laplace noise, whose variance is 2 at scale 1, twice
that bound holds.

*Plans for pure epsilon* measure marginals whole. Under Laplace noise a residual costs up to twice as much per axis as
its marginal, so strategies of residuals are rarely the best. The candidates are the marginal of every set (`identity`),
few unions of sets with optimal weights (`optimize.pure_marginals`), the same with a strategy for each attribute, and
searches of `hdmm`. No choice depends on data.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

import numpy as np

from dpscale.base.errors import PlanError
from dpscale.base.numerics import AttributeSet, Floats
from dpscale.base.settings import setting
from dpscale.domain import MOST_PARTS
from dpscale.mechanisms import hdmm, identity, query_smasher
from dpscale.mechanisms.contract import ObjectiveOptions, PlanningProblem, PlanStore, Tools
from dpscale.mechanisms.matrix_mechanism import check_cells, marginal_plan, matrix_mechanism, weights_of_roots
from dpscale.mechanisms.query_smasher import solve_optimally
from dpscale.mechanisms.residual_split import assemble_plan, solve_residuals
from dpscale.mechanisms.tree_plans import plan_trees, uses_levels
from dpscale.optimize.axis_weights import WeightSearch, along_curve, cell_weights, search, sums, unpack
from dpscale.optimize.convex import RowSpaceProblem, Solution, Solve
from dpscale.optimize.implicit_workload import implicit
from dpscale.optimize.integer_strategies import bits_for, bits_of_weights, error_coefficient, product_block, rounded
from dpscale.optimize.layered_strategy import optimise_layers
from dpscale.optimize.lower_bounds import (
    EXACT_CELLS,
    GROUP_CELLS,
    exact_floor,
    fewer_sets,
    floor,
    grouped_floor,
    whole_bound,
)
from dpscale.optimize.opt_explicit import optimise_explicit
from dpscale.optimize.opt_kronecker import optimise_union
from dpscale.optimize.pure_marginals import (
    AttributeStrategies,
    MarginalSearch,
    ResidualTraces,
    WeightedSets,
    first_strategies,
    plain_traces,
)
from dpscale.optimize.residual_grams import Demands, demands_of, pooled
from dpscale.optimize.residual_problems import JOINT_CELLS, candidates, joint_spaces
from dpscale.optimize.weight_objective import ObjectivePoint
from dpscale.plans.blocks import Block, Blocks, summed_variance
from dpscale.plans.factor import Factor, identity_factor
from dpscale.plans.plan import Plan
from dpscale.privacy.draws import BELOW_ONE, LAPLACE, allocate, rooted, variance_factor
from dpscale.workload import Family, Workload, WorkloadPart
from dpscale.workload.listed import ListedQueries
from dpscale.workload.residual import Weights, subsets
from dpscale.workload.wide import is_wide

MERGED = "merged-marginals"  # of the candidates; the mechanism gives its own name to the chosen one
MERGED_CELLS, MERGED_ATTRIBUTES = 1 << 20, 14  # of a marginal that is larger than every set of the workload
MOST_WORK = 2e7  # residual spaces times sets of a search
FEW_CELLS = 300  # for `hdmm` on all cells, where every attribute is measured cell by cell
MOST_MARGINALS = 8  # attributes of OPT_M
WIDEST = 512  # cells of an attribute with a strategy of its own
DESCENTS, SEARCHED = 12, 2  # rounds of strategies and weights, and the one that is followed by a search

NAME = "weighted-residuals"
PLAINLY = 1e-4  # relative to 1/n: closer to the plain mean, the loss is 10^-8 and the mean is exact
SURELY = 0.999  # of the plain mean's error; a margin for sums merged in the search
GAINS = 1e-6  # of the objective; more than the cost of rounding
MOST_DEMANDS = 3000  # with more demands the bound is that of some sets alone
LISTED_CELLS = 1000  # above which queries of joint families are one problem in their space
FEW_QUERIES = 100  # listed queries that are one problem on any number of cells
NO_WEIGHTS: Mapping[str, Weights] = {}  # every axis is averaged by the plain mean
NEARLY = 0.01  # gap at which one strategy for all queries ends the planning, and a bound is near enough


@dataclass
class _Allowed:
    """Whether a marginal may be measured: its cells, its attributes, and its parts of a record are limited."""

    problem: PlanningProblem
    spaces: ResidualTraces
    most: int
    known: dict[int, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.known |= dict.fromkeys(self.spaces.sets, True)

    def __call__(self, marginal: int) -> bool:
        if marginal not in self.known:
            self.known[marginal] = self._judge(marginal)
        return self.known[marginal]

    def _judge(self, marginal: int) -> bool:
        """Return whether a marginal has few attributes and cells, and few parts of a record with numbers."""
        domain, names = self.problem.workload.domain, self.spaces.named(marginal)
        if len(names) > MERGED_ATTRIBUTES or domain.cells(names) > self.most:
            return False
        return math.prod(domain[name].largest_part for name in names) <= MOST_PARTS


def whole_plans(problem: PlanningProblem, tools: Tools) -> Iterator[tuple[str, Plan]]:
    """Yield plans that measure marginals whole, with a description of each.

    Parameters
    ----------
    problem : PlanningProblem
        With Laplace noise.
    tools : Tools
    """
    yield "marginals of the sets", identity.plan(problem, ObjectiveOptions(), tools)
    measured_sets = list[WeightedSets]()
    with suppress(PlanError):  # an unsupported workload has the other plans
        for label, marginals, sets in _marginal_plans(problem, tools):
            measured_sets.append(sets)
            yield label, marginals

    with suppress(PlanError):
        yield from _strategy_plans(problem, tools, measured_sets)
    yield from _hdmm_plans(problem, tools)


def best_of(plans: Sequence[tuple[str, Plan]], mechanism: str) -> Plan:
    """Return the plan of least error under the name of a mechanism, with a note on all of them.

    Parameters
    ----------
    plans : sequence of (str, Plan)
    mechanism : str
    """
    label, best = min(plans, key=lambda described: described[1].error)
    errors = "; ".join(f"{name} {plan.rmse():.6g}" for name, plan in plans)
    note = f"pure ε: {label} has the least root mean square error at privacy cost 1 of: {errors}"
    return replace(best, mechanism=mechanism, notes=(note, *best.notes))


def _marginal_plans(problem: PlanningProblem, tools: Tools) -> Iterator[tuple[str, Plan, WeightedSets]]:
    """Yield the plan of the best marginals found, measured cell by cell.

    The marginals that `hdmm` finds are one more start of the search, if they are permitted.
    """
    spaces = plain_traces(problem.workload)
    if len(spaces.traces) * len(spaces.sets) > MOST_WORK:
        return

    allowed = _limits(problem, tools, spaces)
    starts = list[WeightedSets]()
    if len(spaces.names) <= MOST_MARGINALS:
        with suppress(PlanError):
            plan = hdmm.plan(problem, hdmm.Options(way="marginals"), tools)
            start = _sets_of(plan, spaces)
            yield "hdmm marginals", plan, start
            starts += [start] if all(map(allowed, start.marginals)) else []

    measured = MarginalSearch(spaces, allowed).search(starts)
    yield "merged marginals", _plan(problem, tools, spaces, measured, None), measured


def _strategy_plans(
    problem: PlanningProblem, tools: Tools, earlier: Sequence[WeightedSets]
) -> Iterator[tuple[str, Plan]]:
    """Yield plans of marginals with a strategy for each attribute: from a search, and from marginals found before.

    Starts are the marginals found before and the one of all attributes; each is improved alternately with the
    strategies (`_alternate`), and the best end is planned.
    """
    attributes = {name for names in problem.workload.sets for name in names}
    if len(attributes) < 2 or max(problem.workload.domain.shape(sorted(attributes))) > WIDEST:
        return

    first = first_strategies(problem.workload)
    if first is None:
        return

    spaces = first.traces
    allowed, all_attributes = _limits(problem, tools, spaces), (1 << len(spaces.names)) - 1
    starts = [sets for sets in earlier if all(map(allowed, sets.marginals))]
    starts += [WeightedSets((all_attributes,), np.ones(1), math.inf)] if allowed(all_attributes) else []
    ends = [_alternate(first, MarginalSearch(spaces, allowed).search(starts), allowed)]
    ends += [_alternate(first, MarginalSearch(spaces, allowed).fitted(start.marginals), allowed) for start in starts]
    strategies, measured = min(ends, key=lambda end: end[1].error)
    plan = _plan(problem, tools, strategies.traces, measured, strategies.matrices)
    yield "merged marginals of attribute strategies", plan


def _alternate(
    strategies: AttributeStrategies, measured: WeightedSets, allowed: _Allowed
) -> tuple[AttributeStrategies, WeightedSets]:
    """Improve strategies and weights in turn; none of the steps increases the error."""
    for turn in range(DESCENTS):
        strategies = strategies.improved(measured)
        search = MarginalSearch(strategies.traces, allowed)
        fitted = search.fitted(measured.marginals, measured.weights)
        measured = search.search([fitted]) if turn == SEARCHED else fitted
    return strategies, measured


def _limits(problem: PlanningProblem, tools: Tools, spaces: ResidualTraces) -> _Allowed:
    """Return the limits of marginals: MERGED_CELLS, more if a set of the workload has more, and those of memory."""
    most = max(problem.workload.domain.cells_each([spaces.named(marginal) for marginal in spaces.sets]))
    return _Allowed(problem, spaces, min(max(most, MERGED_CELLS), tools.most_cells))


def _sets_of(plan: Plan, spaces: ResidualTraces) -> WeightedSets:
    """Return the marginals of a plan that measures them with the same strategies everywhere."""
    weights = np.asarray(plan.blocks.share)
    return WeightedSets(tuple(spaces.mask(names) for names in plan.blocks.sets), weights / weights.sum(), math.inf)


def _plan(
    problem: PlanningProblem,
    tools: Tools,
    spaces: ResidualTraces,
    measured: WeightedSets,
    matrices: dict[str, Floats] | None,
) -> Plan:
    """Return the plan of weighted marginals, measured cell by cell or by the strategies of the attributes.

    `spaces.named` gives the names of a marginal; BELOW_ONE keeps the sum of shares below 1 despite rounding. `matrices`
    are the strategies, None for cells.
    """
    blocks = list[Block]()
    for marginal, weight in zip(measured.marginals, measured.weights.tolist(), strict=True):
        names = spaces.named(marginal)
        if matrices is not None:
            blocks.append(product_block(names, [matrices[name] for name in names], weight, LAPLACE))
        else:
            factors = tuple(map(identity_factor, problem.workload.domain.shape(names)))
            blocks.append(Block(attributes=names, factors=factors, share=weight * BELOW_ONE, whole=True, noise=LAPLACE))

    check_cells(blocks, tools, "merged marginals")
    return marginal_plan(problem.workload, MERGED, blocks, 0.0)


def _hdmm_plans(problem: PlanningProblem, tools: Tools) -> Iterator[tuple[str, Plan]]:
    """Yield plans of searches of `hdmm` whose strategies the marginals do not contain, if they are fast."""
    workload = problem.workload
    plain = all(part.factorizes and all(family.is_identity for family in part.axis_families) for part in workload.parts)
    attributes = sorted({name for names in workload.sets for name in names})
    if workload.domain.cells(attributes) <= (FEW_CELLS if plain else hdmm.EXPLICIT_CELLS):
        with suppress(PlanError):
            yield "hdmm explicit", hdmm.plan(problem, hdmm.Options(way="explicit"), tools)

    if not plain and sum(len(part.sets) for part in workload.parts) <= hdmm.MOST_PRODUCTS and len(attributes) > 1:
        with suppress(PlanError):
            yield "a product for each set", _separate_products(problem, tools)


def _separate_products(problem: PlanningProblem, tools: Tools) -> Plan:
    """Return the plan that measures every set by the optimal product for its queries."""
    if any(is_wide(problem.workload.domain[name].size) for names in problem.workload.sets for name in names):
        blocks = _wide_products(problem)
    else:
        union = implicit(problem.workload)
        strategy = optimise_union(union, "laplace", tools.each, [(product,) for product in union.products])
        blocks = [
            product_block(group.names, group.factors, share, LAPLACE)
            for group, share in zip(strategy.groups, strategy.shares, strict=True)
        ]

    check_cells(blocks, tools, "products of the sets")
    return marginal_plan(problem.workload, MERGED, blocks, 0.0)


def _wide_products(problem: PlanningProblem) -> list[Block]:
    """Return a block for every set, some of them with wide attributes. Raises PlanError for queries without a form.

    `known` has the strategy of each family and size; the error of a set is the product of its axes' errors.
    """
    workload, known = problem.workload, dict[tuple[Family, int], Factor]()
    names_of, factors_of, errors = list[AttributeSet](), list[tuple[Factor, ...]](), list[float]()
    for part in workload.parts:
        for names, weight in zip(part.sets, part.weights, strict=True) if part.factorizes else ():
            axes = list(zip(part.families(names), workload.domain.shape(names), strict=True))
            for axis in axes:
                if axis not in known:
                    known[axis] = _axis_strategy(*axis)
            # a set without weight is not measured
            if weight > 0:
                factors = tuple(known[axis] for axis in axes)
                traces = (_factor_error(known[family, size], family) for family, size in axes)
                names_of, factors_of = [*names_of, names], [*factors_of, factors]
                errors.append(weight * math.prod(traces))

    # shares of the budget that minimise the sum of the errors
    shares, _ = allocate(errors, LAPLACE)
    return [
        # BELOW_ONE keeps the sum of shares from exceeding 1 by rounding
        Block(attributes=names, factors=factors, share=share * BELOW_ONE, whole=True, noise=LAPLACE)
        for names, factors, share in zip(names_of, factors_of, shares, strict=True)
    ]


def _axis_strategy(family: Family, size: int) -> Factor:
    """Return the strategy of one family on an attribute."""
    if family.is_identity:
        return identity_factor(size)
    if is_wide(size):
        return optimise_layers(size, [(family, 1.0)])
    return rounded(optimise_explicit(family.gram(size), "laplace").matrix, bits_for(1))


def _factor_error(factor: Factor, family: Family) -> float:
    """Return tr(G (KᵀK)⁻¹) Δ₁² of a strategy that measures all cells of an attribute."""
    return summed_variance(factor, family) * factor.l1_sensitivity**2


class Options(query_smasher.SolverOptions):
    """Stopping criteria of the optimisation, and the weights of the levels of hierarchies."""

    balance: Literal["levels", "queries"] = setting(
        "levels",
        "levels or queries",
        "what has equal weight in a workload over a hierarchy: its levels, or all queries (times their own weights)",
    )


def plan(problem: PlanningProblem, options: Options, tools: Tools) -> Plan:
    """Plan with the weights found by the search, or with the plain mean if it is better.

    `separate`: each residual is measured alone, because the workload has a number with bounded totals of units
    (`_bounded`), or the domain has public totals. The order is from plans that can be optimal as one strategy to the
    general plan: hierarchies have a planner of their own; `rooted` weights belong to range or prefix queries of one
    attribute, whose root is taken if its error is near its bound; `whole` is one strategy on all cells of a wide
    attribute (Laplace noise) or on all `listed` queries. `split` plans the residuals, and the better plan is returned.
    `least` bounds all mechanisms, and replaces a lower floor.
    """
    solve = partial(solve_optimally, options.gap, options.seconds, tools.store)
    if uses_levels(problem.workload):
        return plan_trees(problem, tools, solve, NAME, options.balance == "levels")

    demands = demands_of(problem.workload)
    separate = _bounded(problem) or problem.workload.domain.public_totals
    rooted = {} if separate or problem.noise == LAPLACE else weights_of_roots(problem.workload)
    if rooted and len(rooted) == len(demands.kind_of) == 1:
        root_plan = _plan_rooted(problem, tools, solve, rooted)
        # near its bound: no other plan needs to be searched
        if root_plan.error <= root_plan.floor * (1 + NEARLY):
            return root_plan

    whole, least = None if separate else _plan_axis(problem, tools), 0.0
    listed = None if separate or whole is not None else _listed(problem, tools)
    if listed is not None:
        whole, least = _plan_listed(problem, solve, listed)
    # under Laplace noise residuals cost more per axis, so one strategy on all cells is taken
    if whole is not None and (problem.noise == LAPLACE or whole.optimality_gap <= NEARLY):
        return whole

    split = _plan_split(problem, options, tools, solve, demands, rooted)
    best = split if whole is None or split.error <= whole.error else whole
    return best if least <= best.floor else replace(best, floor=min(least, best.error))


def _plan_split(
    problem: PlanningProblem,
    options: Options,
    tools: Tools,
    solve: Solve,
    demands: Demands,
    rooted: Mapping[str, Weights],
) -> Plan:
    """Return the best plan of residual spaces, some of them measured together, over several weights of the axes.

    The weights are those of the search, none (the plain mean), and those of the roots of hierarchies.

    `sets` are candidates to be measured whole. `plans` collects those with searched weights, with the plain mean (if
    the searched weights do not surely gain), and with weights of roots. J at the plain mean, squared, is the error of
    its plan (Gaussian noise).
    """
    separate = _bounded(problem) or problem.workload.domain.public_totals
    sets = [] if separate else candidates(problem.workload, bool(sums(demands)))
    if any(len(names) == len(demands.kind_of) for names in sets):  # one strategy for all: weights have no effect
        return _plan_unweighted(problem, tools, solve, sets, options.seconds)

    searched = _search_weights(problem, demands, options.seconds, tools.store)
    bounded = _bounded(problem)
    weights = {name: of_axis for name, of_axis in _weights(demands, searched).items() if name not in bounded}
    plans = list[Plan]()
    if weights:
        with suppress(PlanError):  # strategies of integers may not have these weights
            plans.append(_plan_weights(problem, tools, solve, weights, sets))

    is_pure = problem.noise == LAPLACE
    is_better = bool(plans) and plans[0].error <= searched.plain**2 * SURELY
    if is_pure and not separate:
        with suppress(PlanError):  # `_best_plan` has marginals measured whole, which need no plan of residuals
            plans.append(_plan_weights(problem, tools, solve, NO_WEIGHTS, sets))
    elif is_pure or not is_better or _has_large_sum(demands):  # the search merges sums, and minimises Gaussian errors
        plans.append(_plan_weights(problem, tools, solve, NO_WEIGHTS, sets))
    if rooted:
        plans.append(_plan_weights(problem, tools, solve, {**weights, **rooted}, sets))
    best = _best_plan(problem, tools, plans)
    notes = (*best.notes, *_remarks(searched)) if best.accuracy.weights else best.notes
    notes = (*notes, _note(_kind_of_floor(problem, demands), searched.floor, problem.noise))

    return replace(best, stationary=searched.stationary, floor=min(searched.floor, best.error), notes=notes)


def _plan_axis(problem: PlanningProblem, tools: Tools) -> Plan | None:
    """Return the plan of one strategy for all cells of a wide attribute under pure epsilon; None if there is none."""
    if problem.noise != LAPLACE or hdmm.wide_axis(problem) is None:
        return None
    with suppress(PlanError):
        explicit = hdmm.plan(problem, hdmm.Options(way="explicit"), tools)
        least = whole_bound(problem.workload) * variance_factor(problem.noise)
        notes = (*explicit.notes, _note("axis", least, problem.noise))
        return replace(explicit, mechanism=NAME, floor=min(least, explicit.error), notes=notes)
    return None


def _listed(problem: PlanningProblem, tools: Tools) -> RowSpaceProblem | None:
    """Return the queries of a workload if they are few enough for one problem.

    They are those of joint families on many cells, or a few counts under conditions. One problem has all cells of all
    attributes: too many do not fit in memory. Its strategy spans the queries alone, and no other marginals.
    """
    workload = problem.workload
    factorizes = all(part.factorizes for part in workload.parts)
    listed = workload.query_count <= FEW_QUERIES and all(map(_has_conditions_alone, workload.parts))
    if problem.noise == LAPLACE or problem.needs_marginals or (factorizes and not listed):
        return None
    names = workload.domain.ordered({name for names in workload.sets for name in names})
    least = 1 if listed else LISTED_CELLS
    fits = (listed or len(names) > 1) and least < workload.domain.cells(names) <= tools.most_cells
    countable = math.prod(workload.domain[name].largest_part for name in names) <= MOST_PARTS
    problem_of_rows = RowSpaceProblem.of(workload) if fits and countable else None
    return problem_of_rows if problem_of_rows is not None and problem_of_rows.is_joint else None


def _has_conditions_alone(part: WorkloadPart) -> bool:
    """Return whether all queries of a part are stated by predicates or arrays, without cells of an attribute."""
    axes = [family for names in part.sets for family in part.families(names)]
    return part.lists_queries and all(isinstance(family, ListedQueries) for family in axes)


def _plan_listed(problem: PlanningProblem, solve: Solve, listed: RowSpaceProblem) -> tuple[Plan | None, float]:
    """Return the plan of one strategy for all queries, and a bound over all mechanisms.

    The plan is None if the queries are no multiples of integers, or a weight is too small to have an effect.
    """
    optimum = listed.optimum(solve)
    least = optimum.dual * listed.scale
    try:
        factor = listed.rounded(optimum)
    except PlanError:
        factor = None
    if factor is None:
        return None, least

    error = error_coefficient(factor, listed.rows)
    bound, names = min(least, error), problem.workload.domain.axis_names
    blocks = Blocks.of(names, [Block(listed.attributes, (factor,), BELOW_ONE)])
    notes = (_note("optimum", bound, problem.noise),)
    return Plan(
        workload=problem.workload,
        mechanism=NAME,
        blocks=blocks,
        error=error,
        bound=bound,
        notes=notes,
        stationary=0.0,
        floor=bound,
    ), least


def _plan_rooted(problem: PlanningProblem, tools: Tools, solve: Solve, weights: Mapping[str, Weights]) -> Plan:
    """Return the plan of queries on one wide attribute that have a root, which needs no search."""
    root_plan, least = _plan_weights(problem, tools, solve, weights, []), whole_bound(problem.workload)
    notes = (*root_plan.notes, _note("axis", least, problem.noise))
    return replace(root_plan, floor=min(least, root_plan.error), notes=notes)


def _bounded(problem: PlanningProblem) -> set[str]:
    """Return the numbers of the workload whose totals by unit are bounded; they need residuals by the plain mean."""
    return {total.name for total in problem.workload.domain.totals}.intersection(problem.workload.numbers)


def _plan_unweighted(
    problem: PlanningProblem, tools: Tools, solve: Solve, sets: Sequence[AttributeSet], seconds: float
) -> Plan:
    """Return the best plan on few cells, where one strategy may measure the whole workload.

    Weights then have no effect, and the bound of the strategy is one over all mechanisms. The bound of one joint block
    over all cells, under Gaussian noise, is that of any mechanism; otherwise `exact_floor` gives one.
    """
    split = _plan_weights(problem, tools, solve, {}, sets)
    best = _best_plan(problem, tools, [split])
    whole = len(split.blocks) == 1 and split.blocks[0].joint and problem.noise != LAPLACE
    least = split.bound if whole else exact_floor(problem.workload, seconds=seconds) * variance_factor(problem.noise)
    notes = (*best.notes, _note("optimum", least, problem.noise))
    return replace(best, stationary=0.0, floor=min(least, best.error), notes=notes)


def _best_plan(problem: PlanningProblem, tools: Tools, plans: Sequence[Plan]) -> Plan:
    """Return the plan of least error among given ones and, for Laplace noise, those that measure marginals whole."""
    if problem.noise != LAPLACE or _bounded(problem) or problem.workload.domain.public_totals:
        return min(plans, key=lambda plan: plan.error)
    best_of_residuals = sorted(plans, key=lambda plan: plan.error)[:1]  # empty if no plan of residuals is possible
    return best_of([*(("residuals", plan) for plan in best_of_residuals), *whole_plans(problem, tools)], NAME)


def _search_weights(
    problem: PlanningProblem, demands: Demands, seconds: float, store: PlanStore | None
) -> WeightSearch:
    """Return the result of the search, from the store if it was made before.

    The stored key has the demands, the noise and the kind of the bound, which together determine the result.
    """
    key = (NAME, demands.digest, problem.noise, _kind_of_floor(problem, demands))
    stored = store.get(*key) if store else None
    known = None if stored is None else unpack(stored, demands.sizes)
    if known is not None:
        return known

    of_few_families = pooled(demands)
    curve = along_curve(of_few_families, problem.noise)
    searched = search(of_few_families, problem.noise, curve, seconds)
    searched = replace(searched, floor=_floor(problem, demands, curve, seconds, searched.value**2))
    if store and seconds == math.inf:  # a search ended by time is not reproducible
        store.put(searched.pack(), *key)

    return searched


def _floor(
    problem: PlanningProblem, demands: Demands, curve: ObjectivePoint, seconds: float, error: float = math.inf
) -> float:
    """Return a lower bound on the error of all matrix mechanisms; 0 if unknown.

    `error` is that of a plan: the bound of all cells is not computed if that of the axes is near it.

    A bound for Gaussian noise holds for pure ε with the factor 2, see the module; it is computed without noise in the
    problem. The kinds are the keys of `FLOORS`.
    """
    workload, kind = problem.workload, _kind_of_floor(problem, demands)
    if kind == "known":  # beside public or bounded totals no bound has been derived
        return 0.0
    if problem.noise == LAPLACE:
        gaussian_curve = along_curve(pooled(demands))
        return variance_factor(LAPLACE) * _floor(PlanningProblem(workload), demands, gaussian_curve, seconds)
    if kind == "optimum":
        return exact_floor(workload, seconds=seconds)
    if kind == "values":
        least = whole_bound(workload)
        countable = _has_few_cells(workload, demands.kind_of)
        return exact_floor(workload, seconds=seconds) if least <= 0 and countable else least
    if kind == "some":
        fewer = demands_of(fewer_sets(workload, MOST_DEMANDS))
        return floor(fewer_sets(workload, MOST_DEMANDS), along_curve(fewer)) if fewer.counts else 0.0

    # products of the axes, and groups of joint sets
    of_axes = floor(workload, curve) + (grouped_floor(workload) if kind == "groups" else 0.0)
    if kind == "either" and error > of_axes * (1 + NEARLY):
        return max(of_axes, exact_floor(workload, seconds=seconds))
    return of_axes


FLOORS = {
    "known": "not known beside public totals or bounded totals of numbers",
    "optimum": "dual of one strategy on all cells",
    "values": "product of the bounds of the axes of each set, loose for several sets, or the dual of all cells",
    "some": "products of the axes, for some of the sets, loose",
    "products": "products of the axes",
    "either": "products of the axes, or the dual of one strategy on all cells if that is larger",
    "axis": "dual of the queries of the axis",
    "groups": f"products of the axes, and groups of joint sets with at most {GROUP_CELLS} cells, loose",
}


def _note(kind: str, least: float, noise: str) -> str:
    """Return the remark on how the bound over all mechanisms was obtained, or why there is none."""
    unknown = kind != "known" and least <= 0
    how = "not known for these queries" if unknown else FLOORS[kind]
    by_gaussian = noise == LAPLACE and least > 0
    return f"bound over all mechanisms: {how}{', for Gaussian noise, which bounds pure epsilon too' * by_gaussian}"


def _kind_of_floor(problem: PlanningProblem, demands: Demands) -> str:
    """Return how the bound over all matrix mechanisms is computed, a key of `FLOORS`.

    The order: totals that are known (no bound); axes cut into blocks (bound from singular values); few cells (the
    optimum itself); too many demands (a bound of some sets); joint families (groups of sets); and products.
    """
    if problem.workload.domain.public_totals or _bounded(problem):
        return "known"

    joint = any(not part.factorizes for part in problem.workload.parts)
    if demands.sizes != demands.cells:
        return "values"
    cells = problem.workload.domain.cells(list(demands.kind_of))
    if cells <= (EXACT_CELLS if joint else GROUP_CELLS):
        return "optimum"
    if len(demands.counts) > MOST_DEMANDS:
        return "some"
    if joint:
        return "groups"
    return "either" if _has_few_cells(problem.workload, demands.kind_of) else "products"


def _has_few_cells(workload: Workload, names: Collection[str]) -> bool:
    """Return whether the bound of all cells of a workload of these attributes can be computed."""
    wide = any(is_wide(workload.domain[name].size) for name in names)
    return not wide and workload.domain.cells(list(names)) <= EXACT_CELLS


def _has_large_sum(demands: Demands) -> bool:
    """Return whether a space with several terms is too large to be one problem, so that the search only bounds it."""
    return any(math.prod(demands.shape(demand)) > JOINT_CELLS for demand in sums(demands))


def _plan_weights(
    problem: PlanningProblem, tools: Tools, solve: Solve, weights: Mapping[str, Weights], sets: Sequence[AttributeSet]
) -> Plan:
    """Return the plan for given weights; some sets are measured unsplit if that reduces the error.

    `taken` are the residuals inside a set that is already measured whole. A set is measured whole if the sum of the
    roots of its residuals' errors, which determines the error at best shares, decreases by the fraction GAINS.
    """
    solved, notes = solve_residuals(problem, tools, solve, weights=weights)
    taken: set[AttributeSet] = set()
    for names in sets:
        solutions = [solved.get(space) for space in subsets(names) if space not in taken]
        separate = [solution for solution in solutions if solution is not None]
        if len(separate) < 2:
            continue
        joined = joint_spaces(problem.workload, names, taken, weights)
        whole = joined.solved(solve, problem.noise)
        split = sum(_root_error(solution, problem.noise) for solution in separate)
        if whole is not None and _root_error(whole, problem.noise) < split * (1 - GAINS):
            solved = solved.replace_spaces(names, joined.spanned, whole)
            taken, notes = taken | joined.spanned, (*notes, f"measured unsplit: {', '.join(names)}")

    return assemble_plan(problem, NAME, solved, notes)


def _root_error(solution: Solution, noise: str) -> float:
    """Return the contribution of a solution to the root of the error."""
    return float(solution.coefficient ** rooted(noise))


def _weights(demands: Demands, searched: WeightSearch) -> dict[str, Weights]:
    """Return integer weights of the attributes whose optimum is not the plain mean; empty if they gain nothing.

    A kind has weights if it is not even and some weight differs from the plain mean by the fraction PLAINLY.
    """
    if searched.value > searched.plain * (1 - GAINS):
        return {}

    axes = max((len(demands.shape(demand)) for demand in sums(demands)), default=1)  # axes of joint strategies
    whole = {
        kind: cell_weights(profile, size, demands.main_family(kind), bits_of_weights(size, axes))
        for kind, (profile, plain, size) in enumerate(zip(searched.profiles, demands.plain, demands.cells, strict=True))
        if kind not in demands.even and float(np.abs(profile / plain - 1).max()) > PLAINLY
    }
    return {name: whole[kind] for name, kind in demands.kind_of.items() if kind in whole}


def _remarks(searched: WeightSearch) -> tuple[str, ...]:
    """Return a remark on the result of the search."""
    gain = 100 * (1 - searched.value / searched.plain)
    difference = max(searched.ends) / min(searched.ends) - 1
    starts = (
        f" (from {len(searched.ends)} starts, which ended {difference:.1e} apart)" if len(searched.ends) > 1 else ""
    )
    return (f"weights of the axes: root mean square error {gain:.3g} % below that of the plain mean{starts}",)


MECHANISM = matrix_mechanism(NAME, Options, plan, "5", frozenset({"1", "2", "3", "4"}))
