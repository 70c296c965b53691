"""Plans for pure epsilon that measure marginals whole: candidates of the mechanism `weighted-residuals`.

Under Laplace noise a residual costs up to twice as much per axis as its marginal, so strategies of residuals are rarely
the best. The candidates are the marginal of every set (`identity`), few unions of sets with optimal weights
(`optimize.pure_marginals`), the same with a strategy for each attribute, and searches of `hdmm`. No choice depends on
data.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from dpscale.base.errors import PlanError
from dpscale.base.numerics import AttributeSet, Floats
from dpscale.domain import MOST_PARTS
from dpscale.mechanisms import hdmm, identity
from dpscale.mechanisms.contract import ObjectiveOptions, PlanningProblem, Tools
from dpscale.mechanisms.matrix_mechanism import check_cells, marginal_plan
from dpscale.optimize.implicit_workload import implicit
from dpscale.optimize.integer_strategies import bits_for, product_block, rounded
from dpscale.optimize.layered_strategy import optimise_layers
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
from dpscale.plans.blocks import Block, summed_variance
from dpscale.plans.factor import Factor, identity_factor
from dpscale.plans.plan import Plan
from dpscale.privacy.draws import BELOW_ONE, LAPLACE, allocate
from dpscale.workload import Family
from dpscale.workload.wide import is_wide

NAME = "merged-marginals"  # of the candidates; the mechanism gives its own name to the chosen one
MERGED_CELLS, MERGED_ATTRIBUTES = 1 << 20, 14  # of a marginal that is larger than every set of the workload
MOST_WORK = 2e7  # residual spaces times sets of a search
FEW_CELLS = 300  # for `hdmm` on all cells, where every attribute is measured cell by cell
MOST_MARGINALS = 8  # attributes of OPT_M
WIDEST = 512  # cells of an attribute with a strategy of its own
DESCENTS, SEARCHED = 12, 2  # rounds of strategies and weights, and the one that is followed by a search


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
    found = list[WeightedSets]()
    with suppress(PlanError):  # an unsupported workload has the other plans
        for label, made, sets in _marginal_plans(problem, tools):
            found.append(sets)
            yield label, made

    with suppress(PlanError):
        yield from _strategy_plans(problem, tools, found)
    yield from _hdmm_plans(problem, tools)


def best_of(plans: Sequence[tuple[str, Plan]], mechanism: str) -> Plan:
    """Return the plan of least error under the name of a mechanism, with a note on all of them.

    Parameters
    ----------
    plans : sequence of (str, Plan)
    mechanism : str
    """
    label, made = min(plans, key=lambda one: one[1].error)
    tried = "; ".join(f"{name} {one.rmse():.6g}" for name, one in plans)
    note = f"pure ε: {label} has the least root mean square error at privacy cost 1 of: {tried}"
    return replace(made, mechanism=mechanism, notes=(note, *made.notes))


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
            own = hdmm.plan(problem, hdmm.Options(way="marginals"), tools)
            yield "hdmm marginals", own, (start := _sets_of(own, spaces))
            starts += [start] if all(map(allowed, start.marginals)) else []

    measured = MarginalSearch(spaces, allowed).search(starts)
    yield "merged marginals", _plan(problem, tools, spaces, measured, None), measured


def _strategy_plans(
    problem: PlanningProblem, tools: Tools, found: Sequence[WeightedSets]
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
    allowed, every = _limits(problem, tools, spaces), (1 << len(spaces.names)) - 1
    starts = [one for one in found if all(map(allowed, one.marginals))]
    starts += [WeightedSets((every,), np.ones(1), math.inf)] if allowed(every) else []
    ends = [_alternate(first, MarginalSearch(spaces, allowed).search(starts), allowed)]
    ends += [_alternate(first, MarginalSearch(spaces, allowed).fitted(start.marginals), allowed) for start in starts]
    strategies, measured = min(ends, key=lambda end: end[1].error)
    made = _plan(problem, tools, strategies.traces, measured, strategies.matrices)
    yield "merged marginals of attribute strategies", made


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
    most = max(problem.workload.domain.cells_each([spaces.named(one) for one in spaces.sets]))
    return _Allowed(problem, spaces, min(max(most, MERGED_CELLS), tools.most_cells))


def _sets_of(made: Plan, spaces: ResidualTraces) -> WeightedSets:
    """Return the marginals of a plan that measures them with the same strategies everywhere."""
    weights = np.asarray(made.blocks.share)
    return WeightedSets(tuple(spaces.mask(names) for names in made.blocks.sets), weights / weights.sum(), math.inf)


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
    return marginal_plan(problem.workload, NAME, blocks, 0.0)


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
        found = optimise_union(union, "laplace", tools.each, [(product,) for product in union.products])
        blocks = [
            product_block(group.names, group.factors, share, LAPLACE)
            for group, share in zip(found.groups, found.shares, strict=True)
        ]

    check_cells(blocks, tools, "products of the sets")
    return marginal_plan(problem.workload, NAME, blocks, 0.0)


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
