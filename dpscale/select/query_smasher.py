"""QuerySmasher (He et al., 2026): every residual subworkload at its own optimum, then closed-form shares.

A subworkload whose Gram is one Kronecker term has the product of its factors' optima as its optimum, and the product
of their dual bounds as its certificate; a small one with several terms is solved whole; a large one is solved in
product form by block coordinate on the surrogate Σ_k w_k Π_{j≠i} tr(G_kj X_j⁺) G_ki (HDMM, equation 5), with the sum
of the terms' dual bounds as the certificate, since L is superadditive. Equal problems are solved once.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpscale.residual import kron
from dpscale.select.allocation import allocate
from dpscale.select.convex import Optimum, optimise
from dpscale.select.lattice import Factor, bits_for, center_factor, round_strategy, worth
from dpscale.select.plan import Block, Each, Plan
from dpscale.workload import Subworkload, Workload, decompose

Array = NDArray[np.float64]

JOINT_CELLS = 700
RIDGE = 1e-12
SWEEPS = 12


@dataclass(frozen=True)
class Solution:
    """A subworkload's strategy with its coefficient L (noise of the lattice included) and a lower bound of L."""

    factors: tuple[Factor, ...]
    coefficient: float
    bound: float


def plan_query_smasher(workload: Workload, each: Each = map) -> Plan:
    """Plan with the certified optimum of every subworkload; `each` maps over the distinct problems."""
    subs = decompose(workload)
    grams = {key: gram for sub in subs for key, gram in _simple_grams(sub).items()}
    optima = dict(zip(grams, each(optimise, list(grams.values())), strict=True))
    rest = {sub.signature(): sub for sub in subs if not _simple_grams(sub) and sub.attributes}
    products = dict(zip(rest, each(solve_product, list(rest.values())), strict=True))
    rounded: dict[tuple[str, int], Factor] = {}
    solutions = [_solution(sub, optima, products, rounded) for sub in subs]
    shares, error = allocate([solution.coefficient for solution in solutions])
    blocks = tuple(
        Block(sub.attributes, solution.factors, share)
        for sub, solution, share in zip(subs, solutions, shares, strict=True)
    )
    bound = math.fsum(math.sqrt(solution.bound) for solution in solutions) ** 2
    return Plan(workload, "query-smasher", blocks, error, bound)


def _digest(gram: Array) -> str:
    return hashlib.sha256(np.round(gram / np.trace(gram), 12).tobytes()).hexdigest()


def _simple_grams(sub: Subworkload) -> dict[str, Array]:
    """The Grams to solve for a subworkload of one Kronecker term or few cells; empty where it needs a product."""
    if len(sub.terms) == 1 and sub.dense is None:
        return {axis: sub.factors[axis] for axis in next(iter(sub.terms))}
    if sub.attributes and (len(sub.attributes) == 1 or sub.cells <= JOINT_CELLS):
        gram = _full_rank(sub) / sub.scale
        return {_digest(gram): gram}
    return {}


def _full_rank(sub: Subworkload) -> Array:
    """The Gram with a trace of the whole centred space, so that rounding the strategy cannot leave its span."""
    gram = sub.gram()
    values = np.linalg.eigvalsh(gram)
    if (values > RIDGE * values[-1]).sum() == math.prod(n - 1 for n in sub.sizes):
        return gram
    return np.asarray(gram + RIDGE * values[-1] * kron([np.eye(n) - 1 / n for n in sub.sizes]))


def _solution(
    sub: Subworkload,
    optima: dict[str, Optimum],
    products: dict[str, Solution],
    rounded: dict[tuple[str, int], Factor],
) -> Solution:
    if not sub.attributes:
        return Solution((), sub.scale, sub.scale)
    simple = _simple_grams(sub)
    if not simple:
        found = products[sub.signature()]
        return Solution(found.factors, found.coefficient * sub.scale, found.bound * sub.scale)
    keys = next(iter(sub.terms)) if len(sub.terms) == 1 and sub.dense is None else tuple(simple)
    shapes = [(n,) for n in sub.sizes] if len(keys) == len(sub.sizes) else [sub.sizes]
    matrices = sum(not _is_center(simple[key], shape) for key, shape in zip(keys, shapes, strict=True))
    factors, coefficient, bound = [], sub.scale, sub.scale
    for key, shape in zip(keys, shapes, strict=True):
        factor = _factor(key, simple[key], shape, optima[key], bits_for(matrices), rounded)
        factors.append(factor)
        coefficient *= worth(factor, simple[key])
        bound *= optima[key].dual
    return Solution(tuple(factors), coefficient, min(bound, coefficient))


def _factor(
    key: str, gram: Array, shape: tuple[int, ...], optimum: Optimum, bits: int, rounded: dict[tuple[str, int], Factor]
) -> Factor:
    if (key, bits) not in rounded:
        exact = _is_center(gram, shape)
        rounded[key, bits] = center_factor(shape[0]) if exact else round_strategy(gram, optimum.root, shape, bits)
    return rounded[key, bits]


def _is_center(gram: Array, shape: tuple[int, ...]) -> bool:
    """Whether the Gram is a multiple of the centring projector, whose optimum is known and needs no rounding."""
    n = len(gram)
    return len(shape) == 1 and bool(np.allclose(gram * (n - 1), np.eye(n) - 1 / n, rtol=0, atol=1e-10))


def solve_product(sub: Subworkload) -> Solution:
    """A product strategy for a sum of Kronecker terms; coefficient and bound are for a Gram of trace 1."""
    terms = [(key, weight / sub.scale) for key, weight in sub.terms.items()]
    cost = {key: [1.0] * len(sub.sizes) for key, _ in terms}
    roots: list[Optimum | None] = [None] * len(sub.sizes)
    value = math.inf
    for _ in range(SWEEPS):
        for axis in range(len(sub.sizes)):
            gram = _surrogate(sub, terms, cost, axis)
            optimum = optimise(gram / np.trace(gram), 1e-7)
            roots[axis] = optimum
            _price(sub, terms, cost, axis, optimum.root)
        before, value = value, sum(weight * math.prod(cost[key]) for key, weight in terms)
        if value > before * (1 - 1e-5):
            break
    grams = [_surrogate(sub, terms, cost, axis) for axis in range(len(sub.sizes))]
    return _rounded_product(sub, terms, grams, [root.root for root in roots if root is not None])


Terms = list[tuple[tuple[str, ...], float]]
Costs = dict[tuple[str, ...], list[float]]


def _surrogate(sub: Subworkload, terms: Terms, cost: Costs, axis: int) -> Array:
    total = np.zeros((sub.sizes[axis],) * 2)
    for key, weight in terms:
        others = math.prod(value for i, value in enumerate(cost[key]) if i != axis)
        total += weight * others * sub.factors[key[axis]]
    return total


def _price(sub: Subworkload, terms: Terms, cost: Costs, axis: int, root: Array) -> None:
    inverse = np.linalg.pinv(root.T @ root, rcond=1e-12, hermitian=True)
    for key, _ in terms:
        cost[key][axis] = float((sub.factors[key[axis]] * inverse).sum())


def _rounded_product(sub: Subworkload, terms: Terms, grams: list[Array], roots: list[Array]) -> Solution:
    bits = bits_for(len(roots))
    factors = tuple(
        round_strategy(gram, root, (n,), bits) for gram, root, n in zip(grams, roots, sub.sizes, strict=True)
    )
    coefficient = sum(
        weight * math.prod(worth(factor, sub.factors[axis]) for factor, axis in zip(factors, key, strict=True))
        for key, weight in terms
    )
    bound = sum(weight * math.prod(optimise(sub.factors[axis], 1e-6).dual for axis in key) for key, weight in terms)
    return Solution(factors, coefficient, min(bound, coefficient))
