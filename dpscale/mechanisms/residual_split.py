"""What mechanisms that split a workload by residual spaces share: each problem solved once, and the plan of all.

Equal problems are solved once, and once for all times where there is a store. A mechanism is the function that solves
one problem: to the optimum (`query_smasher`) or within a restricted form (`weighted_fourier`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from dpscale.blas import one_thread
from dpscale.mechanisms.contract import Question, Tools
from dpscale.names import AttributeSet
from dpscale.plans.allocation import GAUSSIAN, allocate
from dpscale.plans.block import Block
from dpscale.plans.blocks import Blocks
from dpscale.plans.factor import Factor
from dpscale.plans.plan import Plan
from dpscale.residual import Weights
from dpscale.solve.product_form import solve_product
from dpscale.solve.residual_problems import AnyOptimum, AnyProblem, Rounded, assembled, bits_of, problems_of
from dpscale.solve.solution import Solution, Solve
from dpscale.workload import Subworkload, decompose

Solved = dict[AttributeSet, Solution]  # in the order in which blocks are measured


def plan_residuals(question: Question, tools: Tools, name: str, solve: Solve, based: bool = True) -> Plan:
    """The plan of a mechanism that solves every subworkload by `solve`.

    `based`: whether its strategies stay in the span of the queries, so that an integer basis of that span can be used.
    """
    return assembled_plan(question, name, *solved_residuals(question, tools, solve, based))


def solved_residuals(
    question: Question, tools: Tools, solve: Solve, based: bool = True, weights: Mapping[str, Weights] | None = None
) -> tuple[Solved, tuple[str, ...]]:
    """Every subworkload's solution, and what the reader should know of the solves.

    `weights`: of the attributes that are not averaged by the plain mean.
    """
    subs = decompose(question.workload, weights)
    signatures = [sub.signature() for sub in subs]
    distinct = dict(zip(signatures, subs, strict=True))
    single: dict[str, AnyProblem] = {}
    problems = {key: problems_of(sub, based, single) for key, sub in distinct.items()}
    rest = {key: sub for key, sub in distinct.items() if not problems[key] and sub.attributes}
    tasks = [*(partial(problem.solved, solve) for problem in single.values()),
             *(partial(_product, solve, question.noise, sub) for sub in rest.values())]  # fmt: skip
    results = list(tools.each(_run, tasks))
    optima = dict(zip(single, results, strict=False))
    solved = dict(zip(rest, results[len(single) :], strict=True))
    rounded = _rounded([parts for key, parts in problems.items() if key not in solved], optima, question.noise, tools)
    for key, parts in problems.items():
        if key not in solved:
            solved[key] = assembled(parts, optima, rounded, question.noise)
    solutions = [_scaled(solved[key], sub.scale) for key, sub in zip(signatures, subs, strict=True)]
    by_set = {sub.attributes: solution for sub, solution in zip(subs, solutions, strict=True)}
    return by_set, _remarks(list(optima.values()))


def _run(task: Callable[[], Any]) -> Any:
    with one_thread():
        return task()


def _product(solve: Solve, noise: str, sub: Subworkload) -> Solution:
    return solve_product(sub, solve, noise)


def assembled_plan(question: Question, name: str, solved: Solved, notes: tuple[str, ...] = ()) -> Plan:
    """The plan that measures each set by its solution, with the shares that are best."""
    noise, solutions = question.noise, list(solved.values())
    shares, error = allocate([solution.coefficient for solution in solutions], noise)
    made = (
        Block(names, solution.factors, share, noise=noise)
        for (names, solution), share in zip(solved.items(), shares, strict=True)
    )
    bound = math.fsum(math.sqrt(solution.bound) for solution in solutions) ** 2 if noise == GAUSSIAN else 0.0
    blocks = Blocks.of(question.workload.domain.names, made)
    return Plan(question.workload, name, blocks, error, bound, notes)


def _remarks(optima: Sequence[AnyOptimum]) -> tuple[str, ...]:
    """What the reader should know of solves that did not end at their tolerance."""
    late = [optimum for optimum in optima if optimum.ended != "gap"]
    if not late:
        return ()
    worst = max(optimum.gap for optimum in late)
    ends = " or ".join(sorted({optimum.ended for optimum in late}))
    return (f"{len(late)} of {len(optima)} problems ended by {ends} before their gap was met; largest gap {worst:.1e}",)


def _scaled(solution: Solution, scale: float) -> Solution:
    return Solution(solution.factors, solution.coefficient * scale, solution.bound * scale)


def _rounded(
    products: list[tuple[AnyProblem, ...]], optima: dict[str, AnyOptimum], noise: str, tools: Tools
) -> Rounded:
    """Every problem's optimum as an integer strategy, once for each number of bits that a product asks for."""
    wanted = {(problem.key, bits_of(parts)): problem for parts in products for problem in parts}
    tasks = [partial(_rounded_one, problem, optima[key], bits, noise) for (key, bits), problem in wanted.items()]
    return dict(zip(wanted, tools.each(_run, tasks), strict=True))


def _rounded_one(problem: Any, optimum: AnyOptimum, bits: int, noise: str) -> tuple[Factor, float]:
    """A problem's own kind of optimum as an integer strategy."""
    found: tuple[Factor, float] = problem.rounded(optimum, bits, noise)
    return found
