"""What mechanisms that split a workload by residual spaces share: the problems, and the plan of their solutions.

A subworkload whose Gram is one Kronecker term has the product of its factors' optima as its optimum, and the product
of their dual bounds as its certificate; a small one with several terms is solved whole; a large one in product form
(`product_form`). Equal problems are solved once, and once for all times where there is a store. A mechanism is the
function that solves one problem: to the optimum (`query_smasher`) or within a restricted form (`weighted_fourier`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscale.blas import one_thread
from dpscale.mechanisms.contract import Question, Tools
from dpscale.plans.allocation import GAUSSIAN, allocate, variance_factor
from dpscale.plans.block import Block
from dpscale.plans.factor import Factor, center_factor
from dpscale.plans.plan import Plan
from dpscale.residual import kron
from dpscale.solve.convex import Optimum
from dpscale.solve.lattice import BASIS_BITS, bits_for, round_strategy, worth
from dpscale.solve.product_form import solve_product
from dpscale.solve.solution import Solution, Solve
from dpscale.workload import GramFactor, Subworkload, Workload, decompose, root_of
from dpscale.workload.factors import compressed

Array = NDArray[np.float64]
Rounded = dict[tuple[str, int], tuple[Factor, float]]  # by a problem's key and bits

JOINT_CELLS = 2600
RIDGE = 1e-12


@dataclass(frozen=True, eq=False)
class Problem:
    """One convex problem: the rows of a Gram of trace 1 on the cells of `shape`, and an integer basis of their span."""

    key: str
    shape: tuple[int, ...]
    rows: Array
    basis: Array | None

    @cached_property
    def is_center(self) -> bool:
        """Whether the Gram is a multiple of the centring projector, whose optimum is known and needs no rounding."""
        n = self.rows.shape[1]
        if len(self.shape) != 1 or len(self.rows) != n - 1:
            return False
        gram = self.rows.T @ self.rows
        return bool(np.allclose(gram * (n - 1), np.eye(n) - 1 / n, rtol=0, atol=1e-10))


def plan_residuals(question: Question, tools: Tools, name: str, solve: Solve, based: bool = True) -> Plan:
    """The plan of a mechanism that solves every subworkload by `solve`.

    `based`: whether its strategies stay in the span of the queries, so that an integer basis of that span can be used.
    """
    subs = decompose(question.workload)
    signatures = [sub.signature() for sub in subs]
    distinct = dict(zip(signatures, subs, strict=True))
    single: dict[str, Problem] = {}
    problems = {key: _problems_of(sub, based, single) for key, sub in distinct.items()}
    rest = {key: sub for key, sub in distinct.items() if not problems[key] and sub.attributes}
    tasks = [*(partial(_solved, solve, problem) for problem in single.values()),
             *(partial(_product, solve, question.noise, sub) for sub in rest.values())]  # fmt: skip
    found = list(tools.each(_run, tasks))
    optima = dict(zip(single, found, strict=False))
    solved = dict(zip(rest, found[len(single) :], strict=True))
    rounded = _rounded([parts for key, parts in problems.items() if key not in solved], optima, question.noise, tools)
    for key, parts in problems.items():
        if key not in solved:
            solved[key] = _assemble(parts, optima, rounded, question.noise)
    solutions = [_scaled(solved[key], sub.scale) for key, sub in zip(signatures, subs, strict=True)]
    return _plan(question.workload, name, question.noise, subs, solutions, _remarks(list(optima.values())))


def _run(task: Callable[[], Any]) -> Any:
    with one_thread():
        return task()


def _solved(solve: Solve, problem: Problem) -> Optimum:
    return solve(problem.key, problem.rows, problem.shape)


def _product(solve: Solve, noise: str, sub: Subworkload) -> Solution:
    return solve_product(sub, solve, noise)


def _plan(
    workload: Workload,
    name: str,
    noise: str,
    subs: list[Subworkload],
    solutions: list[Solution],
    notes: tuple[str, ...],
) -> Plan:
    shares, error = allocate([solution.coefficient for solution in solutions], noise)
    blocks = tuple(
        Block(sub.attributes, solution.factors, share, noise=noise)
        for sub, solution, share in zip(subs, solutions, shares, strict=True)
    )
    bound = math.fsum(math.sqrt(solution.bound) for solution in solutions) ** 2 if noise == GAUSSIAN else 0.0
    return Plan(workload, name, blocks, error, bound, notes)


def _remarks(optima: list[Optimum]) -> tuple[str, ...]:
    """What the reader should know of solves that did not end at their tolerance."""
    late = [optimum for optimum in optima if optimum.ended != "gap"]
    if not late:
        return ()
    worst = max(optimum.gap for optimum in late)
    ends = " or ".join(sorted({optimum.ended for optimum in late}))
    return (f"{len(late)} of {len(optima)} problems ended by {ends} before their gap was met; largest gap {worst:.1e}",)


def _scaled(solution: Solution, scale: float) -> Solution:
    return Solution(solution.factors, solution.coefficient * scale, solution.bound * scale)


def _problems_of(sub: Subworkload, based: bool, known: dict[str, Problem]) -> tuple[Problem, ...]:
    """The problems whose product solves a subworkload: one a factor, or one for all cells; none where too large.

    `known`: the problems that were made before, by their keys; new ones are added.
    """
    only = next(iter(sub.terms)) if len(sub.terms) == 1 else ()
    if only and not sub.is_joint(only):
        pairs = zip(only, sub.sizes, strict=True)
        return tuple(_problem_of(sub.factors[key], (n,), based, known) for key, n in pairs)
    if not sub.attributes or (sub.cells > JOINT_CELLS and len(sub.attributes) > 1 and not only):
        return ()
    if only:
        return (_problem_of(sub.factors[only[0]], sub.sizes, based, known),)
    rows = sub.rows() / math.sqrt(sub.scale)
    known[sub.signature()] = _problem(sub.signature(), sub.sizes, rows, _common_basis(sub) if based else None)
    return (known[sub.signature()],)


def _problem_of(factor: GramFactor, shape: tuple[int, ...], based: bool, known: dict[str, Problem]) -> Problem:
    if factor.key not in known:
        known[factor.key] = _problem(factor.key, shape, factor.rows, factor.basis if based else None)
    return known[factor.key]


def _problem(key: str, shape: tuple[int, ...], rows: Array, basis: Array | None) -> Problem:
    """The problem with its rows compressed; where they span too little and no basis is known, the whole space is added.

    The addition is a trace, so that rounding the strategy cannot leave the span of the queries.
    """
    rows = compressed(rows)
    full = math.prod(n - 1 for n in shape)
    if basis is not None and len(rows) < full:
        return Problem(key, shape, rows, basis)
    if len(rows) < full:
        gram = rows.T @ rows
        centring = kron([np.eye(n) - 1 / n for n in shape])
        rows = root_of(gram + RIDGE * float(np.linalg.eigvalsh(gram)[-1]) * centring)
    return Problem(key, shape, rows, None)


def _common_basis(sub: Subworkload) -> Array | None:
    """An integer basis of a sum of joint terms that all have one."""
    bases = [sub.factors[key[0]].basis if sub.is_joint(key) else None for key in sub.terms]
    known = [basis for basis in bases if basis is not None]
    return np.concatenate(known) if len(known) == len(bases) else None


def _rounded(products: list[tuple[Problem, ...]], optima: dict[str, Optimum], noise: str, tools: Tools) -> Rounded:
    """Every problem's optimum as an integer strategy, once for each number of bits that a product asks for."""
    wanted = {(problem.key, _bits(parts)): problem for parts in products for problem in parts}
    tasks = [partial(_round, problem, optima[key], bits, noise) for (key, bits), problem in wanted.items()]
    return dict(zip(wanted, tools.each(_run, tasks), strict=True))


def _bits(problems: tuple[Problem, ...]) -> int:
    return bits_for(sum(not problem.is_center for problem in problems))


def _assemble(problems: tuple[Problem, ...], optima: dict[str, Optimum], rounded: Rounded, noise: str) -> Solution:
    """The product of the problems' rounded optima; the solution of a Gram of trace 1."""
    found = [rounded[problem.key, _bits(problems)] for problem in problems]
    coefficient = math.prod((error for _, error in found), start=float(variance_factor(noise)))
    bound = math.prod(optima[problem.key].dual for problem in problems)
    return Solution(tuple(factor for factor, _ in found), coefficient, min(bound, coefficient))


def _round(problem: Problem, optimum: Optimum, bits: int, noise: str) -> tuple[Factor, float]:
    """An integer strategy near the optimum, and its error coefficient."""
    factor = _factor(problem, optimum, bits)
    return factor, worth(factor, problem.rows, noise)


def _factor(problem: Problem, optimum: Optimum, bits: int) -> Factor:
    if problem.is_center:
        return center_factor(problem.shape[0])
    if problem.basis is not None:
        return round_strategy(problem.rows, optimum.root, problem.shape, BASIS_BITS, problem.basis)
    return round_strategy(problem.rows, optimum.root, problem.shape, bits)
