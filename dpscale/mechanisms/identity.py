"""The mechanism `identity`: measure every cell of the marginal of every set in the workload.

Sets inside larger sets are measured too. Residuals measured by several sets are averaged by inverse variance, which is
the least squares estimate if the noise within each marginal is homogeneous. Shares are optimal if every set answers
only its own queries.
"""

from __future__ import annotations

from dpscale.base.numerics import AttributeSet
from dpscale.mechanisms.contract import ObjectiveOptions, PlanningProblem, Tools
from dpscale.mechanisms.matrix_mechanism import marginal_plan, matrix_mechanism
from dpscale.plans.blocks import Block
from dpscale.plans.factor import identity_factor
from dpscale.plans.plan import Plan
from dpscale.privacy.draws import allocate
from dpscale.workload import Workload

NAME = "identity"


def plan(problem: PlanningProblem, options: ObjectiveOptions, tools: Tools) -> Plan:
    """Plan the identity strategy on every set of the workload.

    A set's share of the budget follows from its energy, the weighted sum of its squared query entries (`_energies`). No
    lower bound is stated (0).
    """
    workload, noise = problem.workload, problem.noise
    energies = {attributes: value for attributes, value in _energies(workload).items() if value > 0}
    shares, _ = allocate(list(energies.values()), noise)
    blocks = tuple(
        Block(
            attributes=names,
            factors=tuple(map(identity_factor, workload.domain.shape(names))),
            share=share,
            whole=True,
            noise=noise,
        )
        for names, share in zip(energies, shares, strict=True)
    )

    return marginal_plan(workload, NAME, blocks, bound=0.0)


def _energies(workload: Workload) -> dict[AttributeSet, float]:
    """Return Σ weight · |query|² of each set: the error coefficient of its own marginal."""
    energies: dict[AttributeSet, float] = {}
    for part in workload.parts:
        for names, weight in zip(part.sets, part.weights, strict=True):
            energies[names] = energies.get(names, 0.0) + weight * part.squared_norm(names)
    return energies


MECHANISM = matrix_mechanism(NAME, ObjectiveOptions, plan)
