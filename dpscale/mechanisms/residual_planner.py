"""ResidualPlanner (Xiao et al., 2023): every residual is measured by the centring strategy, without optimisation.

X ∝ C is the optimum for workloads of marginals; for other families it is a valid strategy that is not optimised. The
bound is QuerySmasher's dual at uniform weights, exact for marginals: (tr (G/n)^½)², summed over Kronecker terms, which
is valid because the dual function is superadditive. The largest variance of a cell of any marginal is another objective
(`least_maximum`).
"""

from __future__ import annotations

import math

import numpy as np

from dpscale.base.errors import JobError
from dpscale.mechanisms.contract import ObjectiveOptions, PlanningProblem, Tools
from dpscale.mechanisms.matrix_mechanism import matrix_mechanism
from dpscale.mechanisms.residual_split import ResidualSolutions
from dpscale.optimize.convex import Solution
from dpscale.optimize.opt_marginals import least_maximum
from dpscale.plans.attribute_sets import AttributeSets
from dpscale.plans.factor import center_factor
from dpscale.plans.plan import Plan
from dpscale.privacy.draws import GAUSSIAN, allocate, total_error, variance_factor
from dpscale.workload import MARGINAL, AnyGram, Subworkload, Subworkloads, Workload, decompose
from dpscale.workload.wide import WideGram

NAME = "residual-planner"


def plan(problem: PlanningProblem, options: ObjectiveOptions, tools: Tools) -> Plan:
    """Plan every residual with the centring strategy, and shares for the objective.

    A space's coefficient is its error at the whole budget; shares divide the budget by them. The objective "max"
    minimises the largest error instead, for marginals only.
    """
    workload, noise = problem.workload, problem.noise
    subs = decompose(workload)
    coefficients = subs.of_all(lambda sub: _coefficient(sub, noise))
    sets = AttributeSets(subs.names, subs.members, subs.ends)
    shares, _ = allocate(coefficients, noise)
    notes: tuple[str, ...] = ()

    if options.objective == "max" and marginals_alone(workload):
        if noise != GAUSSIAN:
            raise JobError("mechanism.objective", "max under Laplace noise", "sum", "give delta, or leave it out")
        shares, note = least_maximum(workload, list(sets))
        notes = (note,)

    error = total_error(coefficients, shares, noise)
    solutions = [Solution(tuple(map(center_factor, sub.sizes)), 0.0, 0.0) for sub in subs.classes]
    blocks = ResidualSolutions(sets, subs.which, solutions).blocks(shares, noise)
    return Plan(
        workload=workload, mechanism=NAME, blocks=blocks, error=error, bound=uniform_bound(subs, noise), notes=notes
    )


def marginals_alone(workload: Workload) -> bool:
    """Return whether a workload has marginals alone, of which the shares minimise the largest error."""
    return all(part.axis_families == (MARGINAL,) for part in workload.parts)


def _coefficient(sub: Subworkload, noise: str) -> float:
    """Return tr(G (KᵀK)⁺) Δ² for K = ⊗ (n I − 11ᵀ), whose pseudo-inverse is n⁻² on the centred space."""
    sensitivity = math.prod(center_factor(n).squared_sensitivity(noise) / n**2 for n in sub.sizes)
    return variance_factor(noise) * sub.scale * sensitivity


def uniform_bound(subs: Subworkloads, noise: str) -> float:
    """Return the dual at uniform weights, a lower bound on the error of all residual strategies.

    It is 0 for Laplace noise, where no bound is known.
    """
    roots: dict[str, float] = {}
    return math.fsum(subs.of_all(lambda sub: math.sqrt(_uniform_dual(sub, roots)))) ** 2 if noise == GAUSSIAN else 0.0


def _uniform_dual(sub: Subworkload, roots: dict[str, float]) -> float:
    """Return the sum over the terms of weight · Π (tr (G/n)^½)²; `roots` caches the traces by factor key."""
    for key, factor in sub.factors.items():
        if key not in roots:
            roots[key] = _root_trace(factor)
    return math.fsum(weight * math.prod(roots[factor] ** 2 for factor in key) for key, weight in sub.terms.items())


def _root_trace(factor: AnyGram) -> float:
    """Return tr (G/n)^½, from the singular values of the matrix of queries."""
    if isinstance(factor, WideGram):
        return math.sqrt(factor.lower_bound)
    return float(np.linalg.svd(factor.rows, compute_uv=False).sum()) / math.sqrt(factor.rows.shape[1])


MECHANISM = matrix_mechanism(NAME, ObjectiveOptions, plan, minimises_largest=marginals_alone)
