"""Planning of mechanisms that split a workload by residual spaces: every distinct problem is solved once.

Solutions are reused across plans if there is a store. A mechanism provides the function that solves one problem: to
optimality (`query_smasher`) or within a restricted form (`weighted_fourier`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import numpy as np

from dpscale.base.numerics import AttributeSet, NDArray, named_task, one_thread
from dpscale.mechanisms.contract import PlanningProblem, Tools
from dpscale.optimize.convex import Solution, Solve
from dpscale.optimize.fourier import MOST_ENTRIES
from dpscale.optimize.integer_strategies import FactorBits
from dpscale.optimize.opt_kronecker import solve_product, with_product_bound
from dpscale.optimize.residual_problems import AnyOptimum, AnyProblem, Rounded, assemble_solution, bits_of, problems_of
from dpscale.plans.attribute_sets import AttributeSets
from dpscale.plans.blocks import NOISES, Blocks
from dpscale.plans.factor import Factor
from dpscale.plans.plan import Plan
from dpscale.privacy.draws import GAUSSIAN, allocate
from dpscale.workload import AnyGram, Subworkload, Subworkloads, decompose
from dpscale.workload.residual import Weights


class ResidualSolutions:
    """Solutions of residual spaces in block order; the i-th space has `solutions[which[i]]`."""

    def __init__(self, sets: AttributeSets, which: NDArray[np.int64], solutions: Sequence[Solution]) -> None:
        self.sets, self.which, self.solutions = sets, which, solutions

    def get(self, names: AttributeSet) -> Solution | None:
        """Return the solution of one space, or None if the workload has no queries on it."""
        places = self.sets.find(names)
        return self.solutions[self.which[places[0]]] if places else None

    def replace_spaces(
        self, names: AttributeSet, measured: Iterable[AttributeSet], solution: Solution
    ) -> ResidualSolutions:
        """Replace the spaces `measured` by one joint measurement of `names`, at the end.

        The joint solution becomes the last one, with the number `len(solutions)`.
        """
        removed = [place for space in measured for place in self.sets.find(space)]
        remaining = self.sets.take(np.delete(np.arange(len(self.which)), removed))
        last = AttributeSets.of(self.sets.names, [names])
        ends = np.append(remaining.ends, len(remaining.members) + len(names)).astype(np.int32)
        which = np.append(np.delete(self.which, removed), len(self.solutions))
        sets = AttributeSets(remaining.names, np.concatenate([remaining.members, last.members]), ends)
        return ResidualSolutions(sets, which, [*self.solutions, solution])

    def of_all(self, error: Callable[[Solution], float]) -> list[float]:
        """Return a number for the solution of every space."""
        numbers = np.array([error(solution) for solution in self.solutions], np.float64)
        return cast(list[float], numbers[self.which].tolist())

    def blocks(self, shares: Sequence[float], noise: str) -> Blocks:
        """Return one block per space.

        Equal tuples of factors share one strategy; strategies are numbered in the order of first use.
        """
        solutions, first = np.unique(self.which, return_index=True)
        strategies: dict[tuple[int, ...], tuple[int, tuple[Factor, ...]]] = {}
        strategy_of = np.zeros(len(self.solutions), np.int32)  # number of the strategy of each solution
        for solution in solutions[np.argsort(first)].tolist():  # numbered in order of first use
            factors = self.solutions[solution].factors
            strategy_of[solution], _ = strategies.setdefault(tuple(map(id, factors)), (len(strategies), factors))

        number, used = len(self.which), tuple(factors for _, factors in strategies.values())
        return Blocks(
            sets=self.sets,
            strategies=used,
            which=strategy_of[self.which],
            share=np.array(shares, np.float64),
            whole=np.zeros(number, np.bool_),
            noise=np.full(number, NOISES.index(noise), np.int8),
        )


def plan_residuals(
    problem: PlanningProblem,
    tools: Tools,
    name: str,
    solve: Solve,
    based: bool = True,
    fourier: Collection[AttributeSet] = (),
) -> Plan:
    """Return the plan of a mechanism that solves every subworkload by `solve`.

    Parameters
    ----------
    problem : PlanningProblem
    tools : Tools
    name : str
        Name of the mechanism.
    solve : Solve
    based : bool
        Whether the strategies stay in the span of the queries, so that an integer basis of that span can be used.
    fourier : collection of AttributeSet
        Residual spaces whose strategies are diagonal in the Fourier basis.
    """
    return assemble_plan(problem, name, *solve_residuals(problem, tools, solve, based, fourier=fourier))


def solve_residuals(
    problem: PlanningProblem,
    tools: Tools,
    solve: Solve,
    based: bool = True,
    weights: Mapping[str, Weights] | None = None,
    fourier: Collection[AttributeSet] = (),
) -> tuple[ResidualSolutions, tuple[str, ...]]:
    """Return the solution of every subworkload, and remarks on solves that missed their tolerance.

    A subworkload is what the workload asks of a residual space, up to a scale; those with equal signatures are solved
    once. It is a product of problems of its axes, or one problem on all its cells; `rest` are the sums of products with
    too many cells, which are solved approximately, with a lower bound from the duals of their factors.

    Parameters
    ----------
    problem : PlanningProblem
    tools : Tools
    solve : Solve
    based : bool
        Whether the strategies stay in the span of the queries.
    weights : mapping of str to Weights, optional
        Weights of the attributes that are not averaged by the plain mean.
    fourier : collection of AttributeSet
        Residual spaces whose strategies are diagonal in the Fourier basis.
    """
    subs = decompose(problem.workload, weights, 0 if based and not fourier else MOST_ENTRIES)
    subs = subs.in_fourier_basis(fourier) if fourier else subs
    signatures = [sub.signature() for sub in subs.classes]
    distinct = _distinct(subs, signatures)
    # problems by their key: axes of different subworkloads share them
    single: dict[str, AnyProblem] = {}
    problems = {key: problems_of(sub, based, single) for key, sub in distinct.items()}
    rest = {key: sub for key, sub in distinct.items() if not problems[key] and sub.attributes}
    factors = {key: factor for sub in rest.values() for key, factor in sub.factors.items()}
    # three kinds of tasks in one list, so that all run in parallel; results are in the same order
    tasks = [
        *(partial(part.solved, solve) for part in single.values()),
        *(partial(solve_product, sub, solve, problem.noise) for sub in rest.values()),
        *(partial(_dual, factor, solve) for factor in factors.values()),
    ]
    results = list(tools.each(_run, tasks))
    optima = dict(zip(single, results, strict=False))
    products = dict(zip(rest, results[len(single) :], strict=False))
    duals = dict(zip(factors, results[len(single) + len(rest) :], strict=True))
    solved = {key: with_product_bound(solution, rest[key], duals) for key, solution in products.items()}
    rounded = _rounded([parts for key, parts in problems.items() if key not in solved], optima, problem.noise, tools)

    for key, parts in problems.items():
        if key not in solved:
            solved[key] = assemble_solution(parts, optima, rounded, problem.noise)

    # from the distinct ones back to all subworkloads
    solutions = [_scaled(solved[key], sub.scale) for key, sub in zip(signatures, subs.classes, strict=True)]
    sets = AttributeSets(subs.names, subs.members, subs.ends)
    return ResidualSolutions(sets, subs.which, solutions), _remarks(list(optima.values()))


def _dual(factor: AnyGram, solve: Solve) -> float:
    """Return the lower bound of the error of one factor of Kronecker terms."""
    return solve(factor.key, factor.rows, factor.rows.shape[1:]).dual


def _distinct(subs: Subworkloads, signatures: Sequence[str]) -> dict[str, Subworkload]:
    """Return the last subworkload of each signature, in the order of the first ones.

    `firsts` and `lasts` have the first and the last residual space of every class of subworkloads.
    """
    firsts, lasts = dict[str, int](), dict[str, int]()
    for key, first, last in zip(signatures, subs.firsts, subs.lasts, strict=True):
        firsts[key], lasts[key] = min(first, firsts.get(key, first)), max(last, lasts.get(key, last))
    return {key: subs[lasts[key]] for key in sorted(firsts, key=lambda key: firsts[key])}


@named_task("solve-subworkload")
def _run(task: Callable[[], Any]) -> Any:
    with one_thread():
        return task()


def assemble_plan(problem: PlanningProblem, name: str, solved: ResidualSolutions, notes: tuple[str, ...] = ()) -> Plan:
    """Return the plan that measures each set by its solution, with optimal shares.

    For Gaussian noise the bound of the sum of spaces is (Σ √bound)², as the error at best shares; there is none for
    Laplace noise. A solution's coefficient is its error at the whole budget, and `bound` the least one of any strategy.
    """
    noise = problem.noise
    shares, error = allocate(solved.of_all(lambda solution: solution.coefficient), noise)
    roots = solved.of_all(lambda solution: math.sqrt(solution.bound)) if noise == GAUSSIAN else []
    blocks, bound = solved.blocks(shares, noise), math.fsum(roots) ** 2
    return Plan(workload=problem.workload, mechanism=name, blocks=blocks, error=error, bound=bound, notes=notes)


def _remarks(optima: Sequence[AnyOptimum]) -> tuple[str, ...]:
    """Return remarks on solves that did not end at their tolerance."""
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
    """Return every problem's optimum as an integer strategy, once for each number of bits in use."""
    wanted = {(part.key, bits_of(parts)): part for parts in products for part in parts}
    tasks = [partial(_rounded_one, part, optima[key], bits, noise) for (key, bits), part in wanted.items()]
    return dict(zip(wanted, tools.each(_run, tasks), strict=True))


def _rounded_one(part: Any, optimum: AnyOptimum, bits: FactorBits, noise: str) -> tuple[Factor, float]:
    """Return the optimum of a problem as an integer strategy, with its coefficient."""
    return part.rounded(optimum, bits, noise)
