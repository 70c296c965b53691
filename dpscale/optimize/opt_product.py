"""OPT⊗: one Kronecker product as the strategy (HDMM, section 6.1 and definition 18).

The error of A = ⊗ A_i on a union of products is Σ_k w_k Π_i tr(G_ki (A_iᵀA_i)⁺) (theorem 6). With one product it falls
apart, and each attribute's own OPT0 is the optimum of the product (theorem 4). With several, block coordinate descent:
one attribute at a time, by OPT0 on the surrogate Gram Σ_k w_k Π_{j≠i} tr(G_kj (A_jᵀA_j)⁺) G_ki (equation 5).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from dpscale.base.arrays import Floats
from dpscale.base.each import Each, plainly
from dpscale.base.names import AttributeSet
from dpscale.optimize.implicit import Implicit
from dpscale.optimize.opt_explicit import Noise, Strategy, inverse_gram, optimise_explicit
from dpscale.optimize.svd_bound import svd_bound

SWEEPS = 15
SETTLED = 1e-5
STARTS = 3
FIRST_STARTS = 6
Costs = list[dict[str, float]]


@dataclass(frozen=True, eq=False)
class ProductStrategy:
    """A strategy ⊗ factors on the attributes `names`, each factor (rows × size) of sensitivity 1, hence the product's.

    AttributeSet that only Total asks are measured by their total: a factor of one row of ones. `error`: the coefficient
    tr(G (AᵀA)⁺); `bound`: what no strategy at all can go below (0 where no bound is known).
    """

    names: AttributeSet
    factors: tuple[Floats, ...]
    error: float
    bound: float


def optimise_product(
    union: Implicit, noise: Noise, each: Each = plainly, starts: int = STARTS, seed: int = 0
) -> ProductStrategy:
    """OPT⊗: in closed form for one product, else the best of `starts` block descents; `each` maps over those tasks."""
    bound = svd_bound(union).value
    if len(union.products) == 1:
        return _single(union, noise, each, bound, seed)
    descents = list(each(partial(_descend, union, noise), range(seed, seed + starts)))
    error, factors = min(descents, key=lambda one: one[0])
    return ProductStrategy(union.names, factors, error, min(bound, error))


def _single(union: Implicit, noise: Noise, each: Each, bound: float, seed: int) -> ProductStrategy:
    product = union.products[0]
    grams = {axis.key: axis.gram for axis in product.axes}
    solved = each(partial(optimise_explicit, noise=noise, seed=seed), grams.values())
    known: dict[str, Strategy] = dict(zip(grams, solved, strict=True))
    error = product.weight * float(np.prod([known[key].error for key in product.keys]))
    proven = product.weight * float(np.prod([known[key].bound for key in product.keys]))
    return ProductStrategy(union.names, tuple(known[key].matrix for key in product.keys), error, max(bound, proven))


def _descend(union: Implicit, noise: Noise, seed: int) -> tuple[float, tuple[Floats, ...]]:
    """Block coordinate descent from one start: the first of seed 0 is the identity, as in the paper."""
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
        if best > before * (1 - SETTLED):
            break
    return best, tuple(strategy.matrix for strategy in strategies if strategy is not None)


def _solve(gram: Floats, noise: Noise, seed: int, before: Strategy | None, sweep: int) -> Strategy:
    """OPT0 on a surrogate: Laplace with restarts at first, later from where it was."""
    warm = None if before is None else before.warm
    return optimise_explicit(gram, noise, seed, warm=warm, starts=0 if sweep else FIRST_STARTS)


def _begin(union: Implicit, seed: int) -> Costs:
    """Prices to start from: those of the identity, or of each attribute's best strategy for one Gram, by turns."""
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
    """Σ_k w_k Π_{j≠axis} cost over the products with each Gram on one axis."""
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
