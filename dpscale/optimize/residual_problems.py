"""The convex problems that a workload splits into by residual spaces, and their optima as integer strategies.

A subworkload whose Gram is one Kronecker term has the product of its factors' optima as its optimum, and the product
of their dual bounds as its certificate; a small one with several terms is one problem on all its cells; a large one is
left to `product_form`. Equal problems have equal keys.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dpscale.base.arrays import Floats
from dpscale.optimize.convex import Optimum
from dpscale.optimize.lattice import bits_for, weight_bits
from dpscale.optimize.linear_axis import LinearAxis, long_family
from dpscale.optimize.problem import Problem, problem_of
from dpscale.optimize.solution import Solution
from dpscale.optimize.wide_problems import CellsAlone, Nested, TwoLevels, wide_problem
from dpscale.plans.allocation import variance_factor
from dpscale.plans.factor import Factor
from dpscale.workload import GramFactor, Subworkload
from dpscale.workload.factors import AxisWeights
from dpscale.workload.wide import WideGram

AnyProblem = Problem | CellsAlone | Nested | LinearAxis
AnyOptimum = Optimum | TwoLevels
Rounded = dict[tuple[str, int], tuple[Factor, float]]  # by a problem's key and bits

JOINT_CELLS = 2600


def problems_of(sub: Subworkload, based: bool, known: dict[str, AnyProblem]) -> tuple[AnyProblem, ...]:
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
    if len(wide := [factor for factor in sub.factors.values() if isinstance(factor, WideGram)]) == len(sub.terms):
        known[sub.signature()] = wide_problem(_summed(sub, wide))
        return (known[sub.signature()],)
    rows, basis = sub.rows() / math.sqrt(sub.scale), _common_basis(sub) if based else None
    known[sub.signature()] = problem_of(sub.signature(), sub.sizes, rows, basis, sub.weights, based)
    return (known[sub.signature()],)


def _summed(sub: Subworkload, grams: Sequence[WideGram]) -> WideGram:
    """Several families on one wide axis as one Gram of trace 1."""
    asked = tuple(
        (family, weight * sub.terms[gram.key,] / sub.scale) for gram in grams for family, weight in gram.asked
    )
    return replace(grams[0], key=sub.signature(), asked=asked)


def _problem_of(
    factor: GramFactor | WideGram,
    shape: tuple[int, ...],
    weights: AxisWeights,
    based: bool,
    known: dict[str, AnyProblem],
) -> AnyProblem:
    if isinstance(factor, WideGram):
        known.setdefault(factor.key, wide_problem(factor))
    elif based and (family := long_family(factor.key, shape, weights)):
        known.setdefault(factor.key, LinearAxis(factor.key, family, shape[0], weights))
    elif factor.key not in known:
        basis = factor.integer_basis if based else None
        known[factor.key] = problem_of(factor.key, shape, factor.rows, basis, weights, based)
    return known[factor.key]


def _common_basis(sub: Subworkload) -> Floats | None:
    """An integer basis of a sum of joint terms that all have one."""
    joint = [sub.factors[key[0]] for key in sub.terms if sub.is_joint(key)]
    bases = [factor.basis if isinstance(factor, GramFactor) else None for factor in joint]
    bases += [None] * (len(sub.terms) - len(joint))
    known = [basis for basis in bases if basis is not None]
    return np.concatenate(known) if len(known) == len(bases) else None


def bits_of(problems: tuple[AnyProblem, ...]) -> int:
    """Bits to which a product's factors are rounded, before weighted centring adds those of the weights."""
    rounded = [problem for problem in problems if not problem.is_center]
    return bits_for(len(rounded), max((weight_bits(problem.weights) for problem in rounded), default=0))


def assembled(
    problems: tuple[AnyProblem, ...], optima: dict[str, AnyOptimum], rounded: Rounded, noise: str
) -> Solution:
    """The product of the problems' rounded optima; the solution of a Gram of trace 1."""
    found = [rounded[problem.key, bits_of(problems)] for problem in problems]
    coefficient = math.prod((error for _, error in found), start=float(variance_factor(noise)))
    bound = math.prod(optima[problem.key].dual for problem in problems)
    return Solution(tuple(factor for factor, _ in found), coefficient, min(bound, coefficient))
