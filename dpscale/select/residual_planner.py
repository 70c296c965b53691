"""ResidualPlanner (Xiao et al., 2023): every residual by the marginal's own strategy, which nothing has to solve.

X ∝ C is the optimum where the workload is made of marginals; for other families it is a valid, unoptimised strategy.
The bound is QuerySmasher's dual at uniform weights, exact for marginals: (tr (G/n)^½)², summed over Kronecker terms,
which the dual function allows since it is superadditive.
"""

from __future__ import annotations

import math

import numpy as np

from dpscale.select.allocation import allocate
from dpscale.select.lattice import center_factor
from dpscale.select.plan import Block, Each, Plan
from dpscale.workload import GramFactor, Subworkload, Workload, decompose


def plan_residual_planner(workload: Workload, each: Each = map) -> Plan:
    """Plan every residual with the centring strategy and closed-form shares."""
    subs = decompose(workload)
    coefficients = [sub.scale * math.prod((n - 1) / n for n in sub.sizes) for sub in subs]
    shares, error = allocate(coefficients)
    blocks = tuple(
        Block(sub.attributes, tuple(map(center_factor, sub.sizes)), share)
        for sub, share in zip(subs, shares, strict=True)
    )
    roots: dict[str, float] = {}
    bound = math.fsum(math.sqrt(_uniform_dual(sub, roots)) for sub in subs) ** 2
    return Plan(workload, "residual-planner", blocks, error, bound)


def _uniform_dual(sub: Subworkload, roots: dict[str, float]) -> float:
    for key, factor in sub.factors.items():
        if key not in roots:
            roots[key] = _root_trace(factor)
    return math.fsum(weight * math.prod(roots[factor] ** 2 for factor in key) for key, weight in sub.terms.items())


def _root_trace(factor: GramFactor) -> float:
    """tr (G/n)^½, from the singular values of the rows."""
    return float(np.linalg.svd(factor.rows, compute_uv=False).sum()) / math.sqrt(factor.rows.shape[1])
