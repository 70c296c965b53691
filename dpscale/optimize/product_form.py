"""A product strategy for a large sum of Kronecker terms, which could not be solved whole.

Block coordinate descent on the surrogate Σ_k w_k Π_{j≠i} tr(G_kj X_j⁺) G_ki (HDMM, equation 5), with the sum of the
terms' dual bounds as the certificate, since L is superadditive in the Gram.
"""

from __future__ import annotations

import math

import numpy as np

from dpscale.base.arrays import Floats
from dpscale.base.errors import PlanError
from dpscale.optimize.lattice import bits_for, round_strategy, worth
from dpscale.optimize.solution import Solution, Solve
from dpscale.plans.allocation import variance_factor
from dpscale.workload import Subworkload, root_of

SWEEPS = 12

Terms = list[tuple[tuple[str, ...], float]]
Costs = dict[tuple[str, ...], list[float]]


def solve_product(sub: Subworkload, solve: Solve, noise: str) -> Solution:
    """A product strategy for a large sum of Kronecker terms; coefficient and bound are for a Gram of trace 1."""
    if any(sub.is_joint(key) for key in sub.terms):
        names = ", ".join(sub.attributes)
        raise PlanError(
            "workload",
            f"a joint family together with others over {sub.cells} cells ({names})",
            "fewer cells",
            "coarsen the attributes, or ask one family over this set",
        )
    terms = [(key, weight / sub.scale) for key, weight in sub.terms.items()]
    cost = {key: [1.0] * len(sub.sizes) for key, _ in terms}
    roots: list[Floats] = [np.zeros(0)] * len(sub.sizes)
    value = math.inf
    for _ in range(SWEEPS):
        for axis in range(len(sub.sizes)):
            gram = _surrogate(sub, terms, cost, axis)
            roots[axis] = solve(None, root_of(gram / np.trace(gram)), gram.shape[:1], 1e-7).root
            _price(sub, terms, cost, axis, roots[axis])
        before, value = value, sum(weight * math.prod(cost[key]) for key, weight in terms)
        if value > before * (1 - 1e-5):
            break
    rows = [root_of(_surrogate(sub, terms, cost, axis)) for axis in range(len(roots))]
    duals = {name: solve(name, factor.rows, factor.rows.shape[1:]).dual for name, factor in sub.factors.items()}
    return _rounded_product(sub, terms, rows, roots, duals, noise)


def _surrogate(sub: Subworkload, terms: Terms, cost: Costs, axis: int) -> Floats:
    total = np.zeros((sub.sizes[axis],) * 2)
    for key, weight in terms:
        others = math.prod(value for i, value in enumerate(cost[key]) if i != axis)
        total += weight * others * sub.factors[key[axis]].gram
    return total


def _price(sub: Subworkload, terms: Terms, cost: Costs, axis: int, root: Floats) -> None:
    inverse = np.linalg.pinv(root.T @ root, rcond=1e-12, hermitian=True)
    for key, _ in terms:
        cost[key][axis] = float((sub.factors[key[axis]].gram * inverse).sum())


def _rounded_product(
    sub: Subworkload, terms: Terms, rows: list[Floats], roots: list[Floats], duals: dict[str, float], noise: str
) -> Solution:
    bits = bits_for(len(roots))
    factors = tuple(
        round_strategy(r, root, (n,), bits, weights=(own,))
        for r, root, n, own in zip(rows, roots, sub.sizes, sub.weights, strict=True)
    )
    coefficient = variance_factor(noise) * sum(
        weight
        * math.prod(worth(factor, sub.factors[axis].rows, noise) for factor, axis in zip(factors, key, strict=True))
        for key, weight in terms
    )
    bound = sum(weight * math.prod(duals[axis] for axis in key) for key, weight in terms)
    return Solution(factors, coefficient, min(bound, coefficient))
