"""Shares that make the worst variance least, for marginals (ResidualPlanner, its convex objective).

A cell of the marginal on A has variance Σ_{τ⊆A} a_τA / s_τ at shares s, with a_τA = Π_τ ((n−1)/n)² Π_{A∖τ} n⁻². The
least maximum over the sets, each times its weight w_A, is by duality the largest value over the simplex of
    g(λ) = (Σ_τ √(Σ_A λ_A w_A a_τA))²,    reached at   s_τ ∝ √(Σ_A λ_A w_A a_τA),
and at every λ the largest variance under those s certifies it: max_A Var_A ≥ optimum ≥ g(λ). At the optimum all sets
with λ_A > 0 have Var_A = g, so λ is multiplied by Var_A / g until they do (Anderson-mixed in log λ).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

from dpscale.base.errors import PlanError
from dpscale.base.names import AttributeSet
from dpscale.optimize.convex import Mixing
from dpscale.plans.allocation import BELOW_ONE
from dpscale.workload import ProductPart, Workload
from dpscale.workload.residual import subsets

TOLERANCE = 1e-8
STEPS = 5000
LEAST = 1e-200


def least_maximum(workload: Workload, residuals: Sequence[AttributeSet]) -> tuple[list[float], str]:
    """The shares of the residuals, and a remark that tells the maximum and its certified gap."""
    shares, worst, bound = minimise_maximum(_spread(workload, residuals))
    root = math.sqrt(worst)
    return (
        shares,
        f"largest weighted standard error of a query at privacy cost 1: {root:.6g} (gap {worst / bound - 1:.1e})",
    )


def minimise_maximum(spread: csr_matrix) -> tuple[list[float], float, float]:
    """Shares, maximum and bound for rows w_A a_τA, a row for each set and a column for each residual."""
    sets, mixing = spread.shape[0], Mixing()
    log_weights, best = np.zeros(sets), (np.zeros(0), math.inf, 0.0)
    for _ in range(STEPS):
        weights = np.exp(log_weights - log_weights.max())
        weights /= weights.sum()
        roots = np.sqrt(np.maximum(spread.T @ weights, LEAST))
        variances = (spread @ (1 / roots)) * roots.sum()
        value = float(roots.sum()) ** 2
        best = (roots, min(best[1], float(variances.max())), max(best[2], value)) if variances.max() <= best[1] else (
            best[0], best[1], max(best[2], value))  # fmt: skip
        if best[1] / best[2] - 1 <= TOLERANCE:
            break
        log_weights = mixing.next(np.log(np.maximum(weights, LEAST)), np.log(variances / value), value)
    roots, worst, bound = best
    return list(map(float, roots / roots.sum() * BELOW_ONE)), worst, bound


def _spread(workload: Workload, residuals: Sequence[AttributeSet]) -> csr_matrix:
    """w_A a_τA, largest weight of a set that is asked several times."""
    from scipy.sparse import csr_matrix

    column = {attributes: index for index, attributes in enumerate(residuals)}
    weights = _weights(workload)
    entries: list[tuple[float, int, int]] = []
    for row, (attributes, weight) in enumerate(weights.items()):
        sizes = dict(zip(attributes, workload.domain.shape(attributes), strict=True))
        for kept in subsets(attributes):
            value = math.prod(((n - 1) / n) ** 2 if name in kept else n**-2 for name, n in sizes.items())
            entries.append((weight * value, row, column[kept]))
    values, rows, columns = zip(*entries, strict=True)
    return csr_matrix((values, (rows, columns)), shape=(len(weights), len(residuals)))


def _weights(workload: Workload) -> dict[AttributeSet, float]:
    weights: dict[AttributeSet, float] = {}
    for part in workload.parts:
        if not (isinstance(part, ProductPart) and part.name == "marginal"):
            raise PlanError("mechanism.objective", f"max with family {part.name!r}", "family marginal",
                            "minimise the sum, or ask marginals")  # fmt: skip
        for attributes, weight in zip(part.sets, part.weights, strict=True):
            if weight > 0:
                weights[attributes] = max(weights.get(attributes, 0.0), weight)
    return weights
