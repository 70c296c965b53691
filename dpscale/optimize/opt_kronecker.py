"""OPT⊗: one Kronecker product as the strategy; OPT+: unions of products (HDMM, section 6.1 and definition 18).

The error of A = ⊗ A_i on a union of products is Σ_k w_k Π_i tr(G_ki (A_iᵀA_i)⁺) (theorem 6). With one product the
problem separates: the product of each attribute's OPT0 is the optimum (theorem 4). With several products it is solved
by block coordinate descent, one attribute at a time, by OPT0 on the surrogate Gram matrix
Σ_k w_k Π_{j≠i} tr(G_kj (A_jᵀA_j)⁺) G_ki (equation 5).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from dpscale.base.errors import PlanError
from dpscale.base.numerics import AttributeSet, Floats, ParallelMap, serial_map
from dpscale.optimize.convex import Solution, Solve
from dpscale.optimize.implicit_workload import Implicit, Product
from dpscale.optimize.integer_strategies import bits_for, error_coefficient, round_strategy
from dpscale.optimize.lower_bounds import svd_bound
from dpscale.optimize.opt_explicit import Noise, Strategy, inverse_gram, optimise_explicit
from dpscale.privacy.draws import rooted, variance_factor
from dpscale.workload import Subworkload, root_of

SWEEPS = 15
CONVERGED = 1e-5
STARTS = 3
FIRST_STARTS = 6
Costs = list[dict[str, float]]


@dataclass(frozen=True, eq=False)
class ProductStrategy:
    """Strategy ⊗ factors on the attributes `names`; every factor (rows × size), hence the product, has sensitivity 1.

    Attributes that only Total uses are measured by their total: a factor of one row of ones. `error` is the coefficient
    tr(G (AᵀA)⁺); `bound` is a lower bound over all strategies (0 if unknown).
    """

    names: AttributeSet
    factors: tuple[Floats, ...]
    error: float
    bound: float


def optimise_product(
    union: Implicit, noise: Noise, each: ParallelMap = serial_map, starts: int = STARTS, seed: int = 0
) -> ProductStrategy:
    """Solve OPT⊗: in closed form for one product, else as the best of `starts` block descents, mapped by `each`."""
    bound = svd_bound(union).value
    if len(union.products) == 1:
        return _single(union, noise, each, bound, seed)
    descents = list(each(partial(_descend, union, noise), range(seed, seed + starts)))
    error, factors = min(descents, key=lambda one: one[0])
    return ProductStrategy(union.names, factors, error, min(bound, error))


def _single(union: Implicit, noise: Noise, each: ParallelMap, bound: float, seed: int) -> ProductStrategy:
    product = union.products[0]
    grams = {axis.key: axis.gram for axis in product.axes}
    solved = each(partial(optimise_explicit, noise=noise, seed=seed), grams.values())
    known: dict[str, Strategy] = dict(zip(grams, solved, strict=True))
    error = product.weight * float(np.prod([known[key].error for key in product.keys]))
    proven = product.weight * float(np.prod([known[key].bound for key in product.keys]))
    return ProductStrategy(union.names, tuple(known[key].matrix for key in product.keys), error, max(bound, proven))


def _descend(union: Implicit, noise: Noise, seed: int) -> tuple[float, tuple[Floats, ...]]:
    """Run block coordinate descent from one start; seed 0 starts from the identity, as in the paper."""
    costs = _begin(union, seed)
    strategies: list[Strategy | None] = [None] * len(union.sizes)
    best = np.inf
    for sweep in range(SWEEPS):
        for i in range(len(union.sizes)):
            gram = _surrogate(union, costs, i)
            new = _solve(gram / np.trace(gram), noise, seed, strategies[i], sweep)
            prices = _price(union.distinct(i), new.matrix)
            if strategies[i] is None or _dot(union, costs, i, prices) <= _dot(union, costs, i, costs[i]):
                strategies[i], costs[i] = new, prices
        before, best = best, _total(union, costs)
        if best > before * (1 - CONVERGED):
            break
    return best, tuple(strategy.matrix for strategy in strategies if strategy is not None)


def _solve(gram: Floats, noise: Noise, seed: int, before: Strategy | None, sweep: int) -> Strategy:
    """Solve OPT0 on a surrogate; Laplace: with restarts in the first sweep, later from the previous strategy."""
    warm = None if before is None else before.warm
    return optimise_explicit(gram, noise, seed, warm=warm, starts=0 if sweep else FIRST_STARTS)


def _begin(union: Implicit, seed: int) -> Costs:
    """Return initial costs: those of the identity for seed 0, else randomly scaled."""
    generator = np.random.default_rng(seed)
    spread = 0.0 if seed == 0 else 2.0
    return [
        {key: float(np.trace(gram)) * float(np.exp(-spread * generator.random())) for key, gram in grams.items()}
        for grams in (union.distinct(i) for i in range(len(union.sizes)))
    ]


def _price(grams: dict[str, Floats], factor: Floats) -> dict[str, float]:
    inverse = inverse_gram(factor)
    return {key: float((gram * inverse).sum()) for key, gram in grams.items()}


def _coefficients(union: Implicit, costs: Costs, axis: int) -> dict[str, float]:
    """Return Σ_k w_k Π_{j≠axis} cost over the products with each Gram matrix on one axis."""
    total: dict[str, float] = {}
    for product in union.products:
        keys = product.keys
        rest = product.weight
        for j, key in enumerate(keys):
            rest *= costs[j][key] if j != axis else 1.0
        total[keys[axis]] = total.get(keys[axis], 0.0) + rest
    return total


def _surrogate(union: Implicit, costs: Costs, axis: int) -> Floats:
    grams = union.distinct(axis)
    parts = [value * grams[key] for key, value in _coefficients(union, costs, axis).items()]
    return np.asarray(np.sum(parts, axis=0))


def _dot(union: Implicit, costs: Costs, axis: int, prices: dict[str, float]) -> float:
    return sum(value * prices[key] for key, value in _coefficients(union, costs, axis).items())


def _total(union: Implicit, costs: Costs) -> float:
    return _dot(union, costs, 0, costs[0]) if costs else float(sum(product.weight for product in union.products))


PRODUCT_SWEEPS = 12

Terms = list[tuple[tuple[str, ...], float]]
AxisCosts = dict[tuple[str, ...], list[float]]


def solve_product(sub: Subworkload, solve: Solve, noise: str) -> Solution:
    """Return a product strategy for a large sum of Kronecker terms, with coefficient and bound for trace 1."""
    if any(sub.is_joint(key) for key in sub.terms):
        names = ", ".join(sub.attributes)
        raise PlanError(
            "workload",
            f"a joint family together with others over {sub.cells} cells ({names})",
            "fewer cells",
            "coarsen the attributes, or use one family over this set",
        )
    terms = [(key, weight / sub.scale) for key, weight in sub.terms.items()]
    cost = {key: [1.0] * len(sub.sizes) for key, _ in terms}
    roots: list[Floats] = [np.zeros(0)] * len(sub.sizes)
    value = math.inf
    for _ in range(PRODUCT_SWEEPS):
        for axis in range(len(sub.sizes)):
            gram = _product_surrogate(sub, terms, cost, axis)
            roots[axis] = solve(None, root_of(gram / np.trace(gram)), gram.shape[:1], 1e-7).root
            _product_price(sub, terms, cost, axis, roots[axis])
        before, value = value, sum(weight * math.prod(cost[key]) for key, weight in terms)
        if value > before * (1 - 1e-5):
            break
    rows = [root_of(_product_surrogate(sub, terms, cost, axis)) for axis in range(len(roots))]
    duals = {name: solve(name, factor.rows, factor.rows.shape[1:]).dual for name, factor in sub.factors.items()}
    return _rounded_product(sub, terms, rows, roots, duals, noise)


def _product_surrogate(sub: Subworkload, terms: Terms, cost: AxisCosts, axis: int) -> Floats:
    total = np.zeros((sub.sizes[axis],) * 2)
    for key, weight in terms:
        others = math.prod(value for i, value in enumerate(cost[key]) if i != axis)
        total += weight * others * sub.factors[key[axis]].gram
    return total


def _product_price(sub: Subworkload, terms: Terms, cost: AxisCosts, axis: int, root: Floats) -> None:
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
        * math.prod(
            error_coefficient(factor, sub.factors[axis].rows, noise) for factor, axis in zip(factors, key, strict=True)
        )
        for key, weight in terms
    )
    bound = sum(weight * math.prod(duals[axis] for axis in key) for key, weight in terms)
    return Solution(factors, coefficient, min(bound, coefficient))


Groups = list[tuple[Product, ...]]


@dataclass(frozen=True, eq=False)
class UnionStrategy:
    """Product strategies, the products of the workload that each answers, and their shares of the budget.

    `shares` are parts of the privacy cost (squared sensitivity) for Gaussian, of ε for Laplace noise; they sum to 1.
    """

    groups: tuple[ProductStrategy, ...]
    answers: tuple[tuple[Product, ...], ...]
    shares: tuple[float, ...]
    error: float
    bound: float


def optimise_union(
    union: Implicit, noise: Noise, each: ParallelMap = serial_map, groups: Groups | None = None, seed: int = 0
) -> UnionStrategy:
    """Solve OPT+ for given groups, or for the better of single products and products grouped under the largest ones."""
    tried = [groups] if groups is not None else distinct_groupings(union)
    strategies = [_of_groups(union, noise, each, one, seed) for one in tried]
    return min(strategies, key=lambda strategy: strategy.error)


def divide(errors: Sequence[float], noise: Noise) -> tuple[list[float], float]:
    """Return the shares of the budget that minimise the error, and that error."""
    power = rooted(noise)
    roots = [value**power for value in errors]
    total = math.fsum(roots)
    return [root / total for root in roots], total ** (1 / power)


def distinct_groupings(union: Implicit) -> list[Groups]:
    """Return two groupings: single products (the paper's choice), and products grouped by `gather` if that differs."""
    alone: Groups = [(product,) for product in union.products]
    gathered = gather(union)
    return [alone] if len(gathered) == len(alone) else [alone, gathered]


def gather(union: Implicit) -> Groups:
    """Group products under the smallest of the maximal products that name all their attributes."""
    by_size = sorted(union.products, key=lambda product: -len(union.named(product)))
    heads: dict[frozenset[str], list[Product]] = {}
    for product in by_size:
        named = frozenset(union.named(product))
        above = [head for head in heads if named <= head]
        if above:
            heads[min(above, key=lambda head: _cells(union, head))].append(product)
        else:
            heads[named] = [product]
    return [tuple(group) for group in heads.values()]


def _cells(union: Implicit, names: frozenset[str]) -> int:
    return math.prod(size for name, size in zip(union.names, union.sizes, strict=True) if name in names)


def _of_groups(union: Implicit, noise: Noise, each: ParallelMap, groups: Groups, seed: int) -> UnionStrategy:
    parts = [union.only(group) for group in groups]
    solved = tuple(each(partial(_solve_union, noise=noise, seed=seed), parts))
    shares, error = divide([strategy.error for strategy in solved], noise)
    bound = min(svd_bound(union).value, error)
    return UnionStrategy(solved, tuple(groups), tuple(shares), error, bound)


def _solve_union(part: Implicit, noise: Noise, seed: int) -> ProductStrategy:
    return optimise_product(part, noise, seed=seed)
