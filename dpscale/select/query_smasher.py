"""QuerySmasher (He et al., 2026): every residual subworkload at its own optimum, then closed-form shares.

A subworkload whose Gram is one Kronecker term has the product of its factors' optima as its optimum, and the product
of their dual bounds as its certificate; a small one with several terms is solved whole; a large one is solved in
product form by block coordinate on the surrogate Σ_k w_k Π_{j≠i} tr(G_kj X_j⁺) G_ki (HDMM, equation 5), with the sum
of the terms' dual bounds as the certificate, since L is superadditive. Equal problems are solved once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpscale.errors import PlanError
from dpscale.residual import kron
from dpscale.select.allocation import allocate
from dpscale.select.convex import Optimum, optimise
from dpscale.select.lattice import BASIS_BITS, Factor, bits_for, center_factor, round_strategy, worth
from dpscale.select.plan import Block, Each, Plan
from dpscale.workload import GramFactor, Subworkload, Workload, decompose, root_of
from dpscale.workload.factors import compressed

Array = NDArray[np.float64]

JOINT_CELLS = 2600
RIDGE = 1e-12
SWEEPS = 12


@dataclass(frozen=True)
class Solution:
    """A subworkload's strategy with its coefficient L (noise of the lattice included) and a lower bound of L."""

    factors: tuple[Factor, ...]
    coefficient: float
    bound: float


@dataclass(frozen=True, eq=False)
class Problem:
    """One convex problem: the rows of a Gram of trace 1 on the cells of `shape`, and an integer basis of their span."""

    key: str
    shape: tuple[int, ...]
    rows: Array
    basis: Array | None

    def solve(self) -> Optimum:
        return optimise(self.rows, self.shape)


def plan_query_smasher(workload: Workload, each: Each = map) -> Plan:
    """Plan with the certified optimum of every subworkload; `each` maps over the distinct problems."""
    subs = decompose(workload)
    signatures = [sub.signature() for sub in subs]
    distinct = dict(zip(signatures, subs, strict=True))
    problems = {key: problems_of(sub) for key, sub in distinct.items()}
    single = {problem.key: problem for found in problems.values() for problem in found}
    optima = dict(zip(single, each(solve_problem, list(single.values())), strict=True))
    rest = {key: sub for key, sub in distinct.items() if not problems[key] and sub.attributes}
    solved = dict(zip(rest, each(solve_product, list(rest.values())), strict=True))
    rounded: dict[tuple[str, int], Factor] = {}
    for key, found in problems.items():
        if key not in solved:
            solved[key] = _assemble(found, optima, rounded)
    solutions = [_scaled(solved[key], sub.scale) for key, sub in zip(signatures, subs, strict=True)]
    shares, error = allocate([solution.coefficient for solution in solutions])
    blocks = tuple(
        Block(sub.attributes, solution.factors, share)
        for sub, solution, share in zip(subs, solutions, shares, strict=True)
    )
    bound = math.fsum(math.sqrt(solution.bound) for solution in solutions) ** 2
    return Plan(workload, "query-smasher", blocks, error, bound)


def solve_problem(problem: Problem) -> Optimum:
    return problem.solve()


def _scaled(solution: Solution, scale: float) -> Solution:
    return Solution(solution.factors, solution.coefficient * scale, solution.bound * scale)


def problems_of(sub: Subworkload) -> tuple[Problem, ...]:
    """The problems whose product solves a subworkload: one a factor, or one for all cells; none where too large."""
    only = next(iter(sub.terms)) if len(sub.terms) == 1 else ()
    if only and not sub.is_joint(only):
        return tuple(_problem_of(sub.factors[key], (n,)) for key, n in zip(only, sub.sizes, strict=True))
    if not sub.attributes or (sub.cells > JOINT_CELLS and len(sub.attributes) > 1 and not only):
        return ()
    if only:
        return (_problem_of(sub.factors[only[0]], sub.sizes),)
    rows = sub.rows() / math.sqrt(sub.scale)
    return (_problem(sub.signature(), sub.sizes, rows, _common_basis(sub)),)


def _problem_of(factor: GramFactor, shape: tuple[int, ...]) -> Problem:
    return _problem(factor.key, shape, factor.rows, factor.basis)


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


def _assemble(
    problems: tuple[Problem, ...], optima: dict[str, Optimum], rounded: dict[tuple[str, int], Factor]
) -> Solution:
    """The product of the problems' rounded optima; the solution of a Gram of trace 1."""
    bits = bits_for(sum(not _is_center(problem) for problem in problems))
    factors, coefficient, bound = [], 1.0, 1.0
    for problem in problems:
        if (problem.key, bits) not in rounded:
            rounded[problem.key, bits] = _factor(problem, optima[problem.key], bits)
        factors.append(rounded[problem.key, bits])
        coefficient *= worth(factors[-1], problem.rows)
        bound *= optima[problem.key].dual
    return Solution(tuple(factors), coefficient, min(bound, coefficient))


def _factor(problem: Problem, optimum: Optimum, bits: int) -> Factor:
    if _is_center(problem):
        return center_factor(problem.shape[0])
    if problem.basis is not None:
        return round_strategy(problem.rows, optimum.root, problem.shape, BASIS_BITS, problem.basis)
    return round_strategy(problem.rows, optimum.root, problem.shape, bits)


def _is_center(problem: Problem) -> bool:
    """Whether the Gram is a multiple of the centring projector, whose optimum is known and needs no rounding."""
    n = problem.rows.shape[1]
    if len(problem.shape) != 1 or len(problem.rows) != n - 1:
        return False
    gram = problem.rows.T @ problem.rows
    return bool(np.allclose(gram * (n - 1), np.eye(n) - 1 / n, rtol=0, atol=1e-10))


Terms = list[tuple[tuple[str, ...], float]]
Costs = dict[tuple[str, ...], list[float]]


def solve_product(sub: Subworkload) -> Solution:
    """A product strategy for a large sum of Kronecker terms; coefficient and bound are for a Gram of trace 1."""
    if any(sub.is_joint(key) for key in sub.terms):
        names = ", ".join(sub.attributes)
        raise PlanError(
            "workload",
            f"a joint family together with others over {sub.cells} cells ({names})",
            f"at most {JOINT_CELLS} cells",
            "coarsen the attributes, or ask one family over this set",
        )
    terms = [(key, weight / sub.scale) for key, weight in sub.terms.items()]
    cost = {key: [1.0] * len(sub.sizes) for key, _ in terms}
    roots: list[Array] = [np.zeros(0)] * len(sub.sizes)
    value = math.inf
    for _ in range(SWEEPS):
        for axis in range(len(sub.sizes)):
            gram = _surrogate(sub, terms, cost, axis)
            roots[axis] = optimise(root_of(gram / np.trace(gram)), tolerance=1e-7).root
            _price(sub, terms, cost, axis, roots[axis])
        before, value = value, sum(weight * math.prod(cost[key]) for key, weight in terms)
        if value > before * (1 - 1e-5):
            break
    return _rounded_product(sub, terms, [root_of(_surrogate(sub, terms, cost, i)) for i in range(len(roots))], roots)


def _surrogate(sub: Subworkload, terms: Terms, cost: Costs, axis: int) -> Array:
    total = np.zeros((sub.sizes[axis],) * 2)
    for key, weight in terms:
        others = math.prod(value for i, value in enumerate(cost[key]) if i != axis)
        total += weight * others * sub.factors[key[axis]].gram
    return total


def _price(sub: Subworkload, terms: Terms, cost: Costs, axis: int, root: Array) -> None:
    inverse = np.linalg.pinv(root.T @ root, rcond=1e-12, hermitian=True)
    for key, _ in terms:
        cost[key][axis] = float((sub.factors[key[axis]].gram * inverse).sum())


def _rounded_product(sub: Subworkload, terms: Terms, rows: list[Array], roots: list[Array]) -> Solution:
    bits = bits_for(len(roots))
    factors = tuple(round_strategy(r, root, (n,), bits) for r, root, n in zip(rows, roots, sub.sizes, strict=True))
    coefficient = sum(
        weight * math.prod(worth(factor, sub.factors[axis].rows) for factor, axis in zip(factors, key, strict=True))
        for key, weight in terms
    )
    bound = sum(
        weight * math.prod(optimise(sub.factors[axis].rows, tolerance=1e-6).dual for axis in key)
        for key, weight in terms
    )
    return Solution(factors, coefficient, min(bound, coefficient))
