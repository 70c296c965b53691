"""The convex problems that a workload splits into by residual spaces, and their optima as integer strategies.

A subworkload whose Gram is one Kronecker term has the product of its factors' optima as its optimum, and the product
of their dual bounds as its certificate; a small one with several terms is one problem on all its cells; a large one is
left to `product_form`. Equal problems have equal keys.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dpscale.plans.allocation import variance_factor
from dpscale.plans.factor import Factor, center_factor
from dpscale.residual import Weights, kron, profile_of
from dpscale.solve.convex import Optimum
from dpscale.solve.lattice import BASIS_BITS, ENTRY_BITS, bits_for, round_strategy, two_cells, weight_bits, worth
from dpscale.solve.solution import Solution
from dpscale.workload import GramFactor, Subworkload, root_of
from dpscale.workload.factors import AxisWeights, compressed

Array = NDArray[np.float64]
Rounded = dict[tuple[str, int], tuple[Factor, float]]  # by a problem's key and bits

JOINT_CELLS = 2600
RIDGE = 1e-12


@dataclass(frozen=True, eq=False)
class Problem:
    """One convex problem: the rows of a Gram of trace 1 on the cells of `shape`, and an integer basis of their span.

    `weights`: of every axis, by which the rows are centred.
    """

    key: str
    shape: tuple[int, ...]
    rows: Array
    basis: Array | None
    weights: tuple[Weights | None, ...]

    @property
    def on_two_cells(self) -> bool:
        """Whether its strategy is the only one that there is, by weights."""
        return self.shape == (2,) and self.weights != (None,)

    @cached_property
    def is_center(self) -> bool:
        """Whether the Gram is a multiple of the centring projector, whose optimum is known and needs no rounding."""
        n = self.rows.shape[1]
        if len(self.shape) != 1 or len(self.rows) != n - 1 or self.weights != (None,):
            return False
        gram = self.rows.T @ self.rows
        return bool(np.allclose(gram * (n - 1), np.eye(n) - 1 / n, rtol=0, atol=1e-10))


def problems_of(sub: Subworkload, based: bool, known: dict[str, Problem]) -> tuple[Problem, ...]:
    """The problems whose product solves a subworkload: one a factor, or one for all cells; none where too large.

    `known`: the problems that were made before, by their keys; new ones are added.
    """
    only = next(iter(sub.terms)) if len(sub.terms) == 1 else ()
    if only and not sub.is_joint(only):
        triples = zip(only, sub.sizes, sub.weights, strict=True)
        return tuple(_problem_of(sub.factors[key], (n,), (own,), based, known) for key, n, own in triples)
    if not sub.attributes or (sub.cells > JOINT_CELLS and len(sub.attributes) > 1 and not only):
        return ()
    if only:
        return (_problem_of(sub.factors[only[0]], sub.sizes, sub.weights, based, known),)
    rows, basis = sub.rows() / math.sqrt(sub.scale), _common_basis(sub) if based else None
    known[sub.signature()] = _problem(sub.signature(), sub.sizes, rows, basis, sub.weights)
    return (known[sub.signature()],)


def _problem_of(
    factor: GramFactor, shape: tuple[int, ...], weights: AxisWeights, based: bool, known: dict[str, Problem]
) -> Problem:
    if factor.key not in known:
        known[factor.key] = _problem(factor.key, shape, factor.rows, factor.basis if based else None, weights)
    return known[factor.key]


def _problem(key: str, shape: tuple[int, ...], rows: Array, basis: Array | None, weights: AxisWeights) -> Problem:
    """The problem with its rows compressed; where they span too little and no basis is known, the whole space is added.

    The addition is a trace, so that rounding the strategy cannot leave the span of the queries.
    """
    rows = compressed(rows)
    full = math.prod(n - 1 for n in shape)
    if basis is not None and len(rows) < full:
        return Problem(key, shape, rows, basis, weights)
    if len(rows) < full:
        gram = rows.T @ rows
        centring = kron([_orthogonal(own, n) for own, n in zip(weights, shape, strict=True)])
        rows = root_of(gram + RIDGE * float(np.linalg.eigvalsh(gram)[-1]) * centring)
    return Problem(key, shape, rows, None, weights)


def _orthogonal(weights: Weights | None, size: int) -> Array:
    """The projector on what is orthogonal to u."""
    profile = profile_of(weights, size)
    return np.eye(size) - np.outer(profile, profile) / float(profile @ profile)


def _common_basis(sub: Subworkload) -> Array | None:
    """An integer basis of a sum of joint terms that all have one."""
    bases = [sub.factors[key[0]].basis if sub.is_joint(key) else None for key in sub.terms]
    known = [basis for basis in bases if basis is not None]
    return np.concatenate(known) if len(known) == len(bases) else None


def bits_of(problems: tuple[Problem, ...]) -> int:
    """Bits to which a product's factors are rounded, before weighted centring adds those of the weights."""
    rounded = [problem for problem in problems if not problem.is_center]
    return bits_for(len(rounded), max((weight_bits(problem.weights) for problem in rounded), default=0))


def assembled(problems: tuple[Problem, ...], optima: dict[str, Optimum], rounded: Rounded, noise: str) -> Solution:
    """The product of the problems' rounded optima; the solution of a Gram of trace 1."""
    found = [rounded[problem.key, bits_of(problems)] for problem in problems]
    coefficient = math.prod((error for _, error in found), start=float(variance_factor(noise)))
    bound = math.prod(optima[problem.key].dual for problem in problems)
    return Solution(tuple(factor for factor, _ in found), coefficient, min(bound, coefficient))


def rounded_optimum(problem: Problem, optimum: Optimum, bits: int, noise: str) -> tuple[Factor, float]:
    """An integer strategy near the optimum, and its error coefficient."""
    factor = _factor(problem, optimum, bits)
    return factor, worth(factor, problem.rows, noise)


def _factor(problem: Problem, optimum: Optimum, bits: int) -> Factor:
    if problem.is_center:
        return center_factor(problem.shape[0])
    if problem.on_two_cells and problem.weights[0] is not None:
        return two_cells(problem.weights[0])
    if problem.basis is not None:
        finer = min(BASIS_BITS + weight_bits(problem.weights), ENTRY_BITS)
        return round_strategy(problem.rows, optimum.root, problem.shape, finer, problem.basis, problem.weights)
    return round_strategy(problem.rows, optimum.root, problem.shape, bits, weights=problem.weights)
