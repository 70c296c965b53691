"""OPT+: a union of Kronecker products as the strategy (HDMM, section 6.2, definition 19).

The products of the workload fall into groups; each group j gets its own OPT⊗ strategy of sensitivity 1 with error E_j,
and a part c_j of the budget, which leaves E_j / c_j². A record counts in every group, so the parts add up:
    Laplace:  Σ c_j = 1,   c ∝ E^⅓,  error (Σ E^⅓)³;       Gaussian: Σ c_j² = 1,  s = c² ∝ E^½,  error (Σ E^½)².
That is the error when each group answers its own products; least squares over overlapping groups can only lower it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from dpscale.base.each import Each, plainly
from dpscale.optimize.implicit import Implicit, Product
from dpscale.optimize.opt_explicit import Noise
from dpscale.optimize.opt_product import ProductStrategy, optimise_product
from dpscale.optimize.svd_bound import svd_bound
from dpscale.plans.allocation import rooted

Groups = list[tuple[Product, ...]]


@dataclass(frozen=True, eq=False)
class UnionStrategy:
    """Product strategies with the products of the workload that each answers, and their parts of the budget.

    `shares`: of the privacy cost (squared sensitivity) for Gaussian, of ε for Laplace noise; they sum to 1.
    """

    groups: tuple[ProductStrategy, ...]
    answers: tuple[tuple[Product, ...], ...]
    shares: tuple[float, ...]
    error: float
    bound: float


def optimise_union(
    union: Implicit, noise: Noise, each: Each = plainly, groups: Groups | None = None, seed: int = 0
) -> UnionStrategy:
    """OPT+ on given groups, or the best of each product alone and products gathered under the largest ones."""
    tried = [groups] if groups is not None else distinct_groupings(union)
    strategies = [_of_groups(union, noise, each, one, seed) for one in tried]
    return min(strategies, key=lambda strategy: strategy.error)


def divide(errors: Sequence[float], noise: Noise) -> tuple[list[float], float]:
    """The shares of the budget that leave the least error, and that error."""
    power = rooted(noise)
    roots = [value**power for value in errors]
    total = math.fsum(roots)
    return [root / total for root in roots], total ** (1 / power)


def distinct_groupings(union: Implicit) -> list[Groups]:
    """Every product alone (the paper's choice), and every product with a largest one that names its attributes."""
    alone: Groups = [(product,) for product in union.products]
    gathered = gather(union)
    return [alone] if len(gathered) == len(alone) else [alone, gathered]


def gather(union: Implicit) -> Groups:
    """Products under the smallest one among the largest that names all their attributes."""
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


def _of_groups(union: Implicit, noise: Noise, each: Each, groups: Groups, seed: int) -> UnionStrategy:
    parts = [union.only(group) for group in groups]
    solved = tuple(each(partial(_solve, noise=noise, seed=seed), parts))
    shares, error = divide([strategy.error for strategy in solved], noise)
    bound = min(svd_bound(union).value, error)
    return UnionStrategy(solved, tuple(groups), tuple(shares), error, bound)


def _solve(part: Implicit, noise: Noise, seed: int) -> ProductStrategy:
    return optimise_product(part, noise, seed=seed)
