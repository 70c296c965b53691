"""HDMM (McKenna, Miklau, Hay, Machanavajjhala, 2018 and 2023): the best of several strategy searches.

`explicit` is OPT0 on all cells of the workload's attributes, if they are few; `product` is OPT⊗; `union` is OPT+;
`marginals` is OPT_M, with the identity or with one strategy per attribute. OPT0 of one wide attribute is a strategy
without a matrix of cells × cells: `optimize.layered_strategy` under pure ε, and under Gaussian noise the root of its
range or prefix queries, or the optimum of its circular queries, with the total. The plan lists the marginals to count
before any data are read; a search whose strategy needs too many cells is skipped. A product or an explicit strategy has
its own least squares. Estimates from several blocks are averaged residual by residual, or come from the one block that
answers a set of queries better (`plans.accuracy_base`). The error of the plan is that of these estimates.

Version 1 searched products one attribute after the other, from fewer starts. A plan is read from its file, so charged
runs of version 1 are measured by their own plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Literal

from dpscale.base.errors import PlanError
from dpscale.base.numerics import AttributeSet
from dpscale.base.settings import Settings, setting
from dpscale.mechanisms.contract import Objective, PlanningProblem, Tools, objective
from dpscale.mechanisms.matrix_mechanism import (
    check_cells,
    marginal_plan,
    matrix_mechanism,
    weights_of_roots,
    wide_attribute,
)
from dpscale.mechanisms.query_smasher import solve_optimally
from dpscale.mechanisms.residual_split import assemble_plan, solve_residuals
from dpscale.optimize.baselines import identity
from dpscale.optimize.implicit_workload import Implicit, explicit_gram, implicit
from dpscale.optimize.integer_strategies import joint_block, product_block
from dpscale.optimize.layered_strategy import optimise_layers
from dpscale.optimize.lower_bounds import svd_bound, svd_of_gram, whole_bound
from dpscale.optimize.opt_explicit import Noise, TimesGram, optimise_explicit
from dpscale.optimize.opt_kronecker import optimise_product, optimise_union
from dpscale.optimize.opt_marginals import MarginalStrategy, attribute_strategies, optimise_marginals
from dpscale.plans.blocks import Block
from dpscale.plans.factor import identity_factor
from dpscale.plans.plan import Plan
from dpscale.privacy.draws import BELOW_ONE, LAPLACE
from dpscale.workload import CIRCULAR, Family, Workload
from dpscale.workload.wide import DENSE

NAME = "hdmm"
WAYS = ("explicit", "product", "union", "marginals")
EXPLICIT_CELLS, MOST_EXPLICIT = 1024, 8192  # cells of several attributes: by default, and if `way` is set
# products of a union; cells of a single attribute from which OPT0 is the only search
MOST_PRODUCTS, MANY_CELLS = 400, 128
AXIS_WORK = 4  # of a product with a Gram matrix by axes, in multiplications for each cell
CERTIFIED = 1e-6  # gap below which no other bound can be larger
Tried = Iterator[tuple[str, list[Block], float]]


class Options(Settings):
    """Options of the strategy search."""

    way: Literal["explicit", "product", "union", "marginals"] | None = setting(
        None, ", ".join(WAYS), "search to run; all by default"
    )
    objective: Objective = objective()


def plan(problem: PlanningProblem, options: Options, tools: Tools) -> Plan:
    """Return the plan with the smallest error among those of all searches that support the workload.

    Each search is a generator of (label, blocks, bound). A search that refuses the workload is skipped; if all do, the
    first refusal is raised, or the one of queries that are no products.
    """
    plans: dict[str, Plan] = {}
    refused: list[PlanError] = []
    for name in [options.way] if options.way else _ways(problem):
        try:
            for label, blocks, bound in _TRIES[name](problem, options, tools):
                check_cells(blocks, tools, label)
                plans[label] = marginal_plan(problem.workload, NAME, blocks, bound)
        except PlanError as error:
            refused.append(error)

    if not plans:
        raise _joint_refusal(problem.workload, options) or refused[0]
    return _best(problem.workload, plans)


def _joint_refusal(workload: Workload, options: Options) -> PlanError | None:
    """Return the refusal of queries over several attributes that are no products; None if there are none."""
    sets = ((part, names) for part in workload.parts if not part.factorizes for names in part.sets if len(names) > 1)
    part, names = next(sets, (None, ()))
    if part is None:
        return None

    cells = workload.domain.cells(workload.domain.ordered({name for names in workload.sets for name in names}))
    most = MOST_EXPLICIT if options.way == "explicit" else 0 if options.way else EXPLICIT_CELLS
    accepted = f", or at most {most:,} cells for a strategy on all of them" if most else f" for {options.way}"
    explicit = 'set way = "explicit", or ' if most < cells <= MOST_EXPLICIT else ""
    return PlanError(
        "workload",
        f"{part.name} over {', '.join(names)}, which is no product, on {cells:,} cells of all attributes",
        f"products{accepted}",
        f"{explicit}use weighted-residuals, which plans each residual space of joint queries",
    )


DENSE_SECONDS = 4.0  # of a search on 1,024 cells
WIDE_SECONDS, CELL_SECONDS = 5.0, 5e-6  # of a search on a wide axis, and for each of its cells
PAIR_SECONDS, PART_SECONDS = 6e-5, 0.03  # of the error of a product under a block, and of a search for a part


def predicted_seconds(problem: PlanningProblem, options: Options) -> float:
    """Return the predicted seconds of the searches on all cells and by attribute, and of the error of a union.

    Searches on a dense Gram matrix take time with the cube of the cells, relative to 1,024 cells (DENSE_SECONDS); the
    error of a union takes time with the pairs of its products.
    """
    workload, ways = problem.workload, [options.way] if options.way else _ways(problem)
    names = workload.domain.ordered({name for names in workload.sets for name in names})
    cells, sizes = workload.domain.cells(names), workload.domain.shape(names)
    most = MOST_EXPLICIT if options.way == "explicit" else EXPLICIT_CELLS
    dense = (cells / 1024) ** 3 if "explicit" in ways and cells <= most else 0.0
    if wide_axis(problem) is not None:
        return WIDE_SECONDS + CELL_SECONDS * max(sizes)
    if max(sizes, default=0) > DENSE:
        return DENSE_SECONDS * dense  # the other searches are refused at once

    dense += sum((size / 1024) ** 3 for size in sizes)
    products = sum(len(part.sets) for part in workload.parts)
    union = PAIR_SECONDS * products**2 + PART_SECONDS * len(workload.parts)
    return DENSE_SECONDS * dense + (union if "union" in ways and products <= MOST_PRODUCTS else 0.0)


def _ways(problem: PlanningProblem) -> Sequence[str]:
    """Return the searches of a workload; on one attribute of many cells all of them are OPT0."""
    workload = problem.workload
    names = {name for names in workload.sets for name in names}
    dense = len(names) == 1 and MANY_CELLS <= workload.domain.cells(sorted(names)) <= DENSE
    return WAYS[:1] if dense or wide_axis(problem) is not None else WAYS


def wide_axis(problem: PlanningProblem) -> str | None:
    """Return the only attribute of a workload if it is wide and its queries have one strategy for all cells; else None.

    Under Gaussian noise these are workloads with range or circular queries, or with prefix queries alone.
    """
    name = wide_attribute(problem.workload)
    if name is None or problem.noise == LAPLACE:
        return name
    has_arcs = any(family is CIRCULAR for family, _ in _asked(problem.workload)[0])
    return name if has_arcs or weights_of_roots(problem.workload) else None


def _asked(workload: Workload) -> tuple[list[tuple[Family, float]], float]:
    """Return the families on the only attribute of a workload with their weights above 0, and that of the total.

    Sets of the workload have at most one attribute here; the empty set is the total.
    """
    asked, total = list[tuple[Family, float]](), 0.0
    for part in workload.parts:
        for names, weight in zip(part.sets, part.weights, strict=True):
            if names and weight > 0:
                asked.append((part.families(names)[0], weight))
            elif not names:
                total += weight
    return asked, total


def _best(workload: Workload, plans: dict[str, Plan]) -> Plan:
    """Return the plan with the least error of those tried, with the largest of their lower bounds."""
    chosen = min(plans, key=lambda label: plans[label].error)
    plan, bound = plans[chosen], max(tried.bound for tried in plans.values())
    errors = "; ".join(f"{label} {tried.rmse():.6g}" for label, tried in plans.items())
    notes: tuple[str, ...] = (f"{chosen} is the best of (root mean square error at privacy cost 1): {errors}",)

    if bound > 0:
        notes += (
            f"root mean square error over the least that any strategy can have: {(plan.error / bound) ** 0.5:.6g}",
        )
    return Plan(
        workload=workload,
        mechanism=NAME,
        blocks=plan.blocks,
        error=plan.error,
        bound=min(bound, plan.error),
        notes=notes,
    )


def _noise(problem: PlanningProblem) -> Noise:
    return "laplace" if problem.noise == LAPLACE else "gaussian"


def _explicit(problem: PlanningProblem, options: Options, tools: Tools) -> Tried:
    """Yield (name, blocks, bound) of a strategy that is optimised on the joint cells of all attributes.

    `most` is the largest number of cells: the stated way permits more than the automatic choice, and one attribute of
    many cells has no other search. A gap that is not certified leaves the SVD bound.
    """
    workload, noise = problem.workload, problem.noise
    if (name := wide_axis(problem)) is not None:
        yield from _whole_axis(problem, name, tools)
        return

    most = MOST_EXPLICIT if options.way == "explicit" else max(EXPLICIT_CELLS, DENSE * (_ways(problem) == WAYS[:1]))
    names, gram = explicit_gram(workload, most)
    search = partial(optimise_explicit, noise=_noise(problem), times=_times_gram(workload, names))
    strategy = next(iter(tools.each(search, [gram])))

    if len(names) > 1:
        block = joint_block(names, workload.domain.shape(names), strategy.matrix, noise)
    else:
        block = product_block(names, [strategy.matrix] * len(names), 1.0, noise)

    certified = strategy.error <= strategy.bound * (1 + CERTIFIED)
    yield "explicit", [block], strategy.bound if certified else max(strategy.bound, svd_of_gram(gram))


def _whole_axis(problem: PlanningProblem, name: str, tools: Tools) -> Tried:
    """Yield strategies for all cells of a wide attribute, with a bound over all strategies; 0 if unknown.

    Under Laplace noise the strategy has layers of blocks, or measures all cells; otherwise it is the plan of the
    residuals of the axis with the weights of its root.
    """
    workload, noise = problem.workload, problem.noise
    bound, size = whole_bound(workload), workload.domain[name].size
    if noise == LAPLACE:
        factors = {"explicit": optimise_layers(size, *_asked(workload)), "all cells": identity_factor(size)}
        for label, factor in factors.items():
            yield label, [Block(attributes=(name,), factors=(factor,), share=BELOW_ONE, whole=True, noise=noise)], bound
        return

    solve = partial(solve_optimally, CERTIFIED, math.inf, tools.store)
    solved, _ = solve_residuals(problem, tools, solve, weights=weights_of_roots(workload))
    yield "explicit", list(assemble_plan(problem, NAME, solved).blocks), bound


def _times_gram(workload: Workload, names: AttributeSet) -> TimesGram | None:
    """Return the product of rows with the Gram matrix by axes; None if it is not a union of products, or not faster.

    A product by axes takes rows times the sizes of the axes (`work`), against the number of all cells for the explicit
    Gram matrix; it must be at least twice as fast.
    """
    if len(names) < 2 or not all(part.factorizes for part in workload.parts):
        return None
    union = implicit(workload)
    work = sum(AXIS_WORK + (0 if axis.is_total or axis.is_identity else len(axis.gram))
               for product in union.products for axis in product.axes)  # fmt: skip
    return union.times_gram if union.names == names and work < union.cells / 2 else None


def _product(problem: PlanningProblem, options: Options, tools: Tools) -> Tried:
    """Yield (name, blocks, bound) of a product of one strategy for each attribute."""
    union = implicit(problem.workload)
    if union.cells > tools.most_cells:
        raise PlanError("engine.memory", f"{union.cells} cells for a product over all attributes of the workload",
                        f"at most {tools.most_cells}",
                        "use fewer attributes, or set mechanism query-smasher")  # fmt: skip
    strategy = optimise_product(union, _noise(problem), tools.each)
    yield "product", [product_block(strategy.names, strategy.factors, 1.0, problem.noise)], strategy.bound


def _unions(problem: PlanningProblem, options: Options, tools: Tools) -> Tried:
    """Yield (name, blocks, bound) of a union of products, which share the budget."""
    union = implicit(problem.workload)
    if len(union.products) > MOST_PRODUCTS:
        raise PlanError("workload", f"{len(union.products)} products", f"at most {MOST_PRODUCTS} for a union of them",
                        "use fewer sets, or set mechanism query-smasher")  # fmt: skip

    union_strategy = optimise_union(union, _noise(problem), tools.each)
    groups = zip(union_strategy.groups, union_strategy.shares, strict=True)
    blocks = [product_block(group.names, group.factors, share, problem.noise) for group, share in groups]
    yield "union", blocks, union_strategy.bound


def _marginals(problem: PlanningProblem, options: Options, tools: Tools) -> Tried:
    """Yield (name, blocks, bound) of weighted marginals: of counts, and of optimised strategies for each attribute.

    The second kind is tried only if some axis asks for more than cells and totals. `svd_bound` is a lower bound of the
    error of any strategy.
    """
    union, noise = implicit(problem.workload), _noise(problem)
    yield "marginals", _blocks(union, optimise_marginals(union, noise), problem.noise), svd_bound(union).value
    if any(not (axis.is_identity or axis.is_total) for product in union.products for axis in product.axes):
        factors = attribute_strategies(union, noise, each=tools.each)
        strategy = optimise_marginals(union, noise, factors=factors)
        yield "marginals of attribute strategies", _blocks(union, strategy, problem.noise), svd_bound(union).value


def _blocks(union: Implicit, strategy: MarginalStrategy, noise: str) -> list[Block]:
    """Return the blocks of a strategy of marginals; a weight costs itself (Laplace) or its square (Gaussian)."""
    blocks, sizes = [], dict(zip(union.names, union.sizes, strict=True))
    for names, weight in strategy.weights.items():
        matrices = [strategy.factors[name] if strategy.factors else identity(sizes[name]) for name in names]
        share = weight if noise == LAPLACE else weight**2
        blocks.append(product_block(names, matrices, share, noise))
    return blocks


_TRIES: dict[str, Callable[[PlanningProblem, Options, Tools], Tried]] = {
    "explicit": _explicit,
    "product": _product,
    "union": _unions,
    "marginals": _marginals,
}

MECHANISM = matrix_mechanism(NAME, Options, plan, "5", frozenset({"1", "2", "3", "4"}), predicted_seconds)
