"""The mechanism `eigen-design` (Li and Miklau, 2012): `eigen_design` on all cells of the workload, or by attribute.

If the attributes of the workload have few cells together, any family is one Gram with one strategy. Otherwise a set of
products is measured by one design per attribute, for the sum of the queries on that attribute, since the eigenvectors
of a Kronecker product are products; the marginals are weighted by `OPT_M`.
"""

from __future__ import annotations

from functools import partial
from typing import Literal, Self

import numpy as np
from pydantic import model_validator

from dpscale.base.errors import JobError, PlanError
from dpscale.base.numerics import Floats
from dpscale.base.settings import Settings, setting
from dpscale.mechanisms.contract import PlanningProblem, Tools
from dpscale.mechanisms.fixed_plan import check_cells, marginal_plan, matrix_mechanism
from dpscale.optimize import baselines
from dpscale.optimize.eigen_design import eigen_design, principal_design, separated_design
from dpscale.optimize.implicit_workload import explicit_gram, implicit
from dpscale.optimize.integer_strategies import joint_block, product_block
from dpscale.optimize.lower_bounds import svd_bound, svd_of_gram
from dpscale.optimize.opt_explicit import Strategy
from dpscale.optimize.opt_marginals import optimise_marginals
from dpscale.plans.blocks import Block
from dpscale.plans.plan import Plan
from dpscale.privacy.draws import GAUSSIAN
from dpscale.workload import Workload

NAME = "eigen-design"
EXPLICIT_CELLS = 2048
OF_TOTAL = 1e-3
DESIGNS = {
    "eigen": None,
    "wavelet": baselines.wavelet,
    "fourier": baselines.fourier,
    "hierarchical": baselines.hierarchical,
    "identity": baselines.identity,
}


class Options(Settings):
    """Design queries and their weighting."""

    design: Literal["eigen", "wavelet", "fourier", "hierarchical", "identity"] = setting(
        "eigen", ", ".join(DESIGNS), "design queries to weight"
    )
    separate: int | None = setting(None, "a whole number above 0", "eigenvectors in a group (section 4.2)", ge=1)
    principal: int | None = setting(
        None, "a whole number above 0", "number of eigenvectors with separate weights", ge=1
    )
    relative: bool = setting(False, "true or false", "true: errors relative to a query's length (section 3.4)")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if len(self.model_fields_set & {"design", "separate", "principal"}) > 1 and self.design != "eigen":
            raise ValueError(JobError("mechanism.design", "given together with separate or principal", "one of them",
                                      "remove the others"))  # fmt: skip
        return self


def plan(problem: PlanningProblem, options: Options, tools: Tools) -> Plan:
    """Plan weighted design queries with completed columns."""
    workload = problem.workload
    if problem.noise != GAUSSIAN:
        raise PlanError("mechanism.name", f"{NAME} under Laplace noise", "Gaussian noise", "set delta, or use hdmm")
    names = {name for part in workload.parts for names in part.sets for name in names}
    small = workload.domain.cells(workload.domain.ordered(names)) <= EXPLICIT_CELLS
    return (_explicit if small else _by_attribute)(problem, options, tools)


def _solve(options: Options, gram: Floats) -> Strategy:
    make = DESIGNS[options.design]
    if make is not None:
        return eigen_design(gram, make(len(gram)))
    if options.separate is not None:
        return separated_design(gram, options.separate)
    return principal_design(gram, options.principal) if options.principal is not None else eigen_design(gram)


def _explicit(problem: PlanningProblem, options: Options, tools: Tools) -> Plan:
    workload, relative = problem.workload, options.relative
    names, gram = explicit_gram(workload, EXPLICIT_CELLS, relative)
    (strategy,) = tools.each(partial(_solve, options), [gram])
    if len(names) > 1:
        block = joint_block(names, workload.domain.shape(names), strategy.matrix, problem.noise)
    else:
        block = product_block(names, [strategy.matrix] * len(names), 1.0, problem.noise)
    return _joint_plan(workload, [block], 0.0 if relative else svd_of_gram(gram))


def _by_attribute(problem: PlanningProblem, options: Options, tools: Tools) -> Plan:
    workload, relative = problem.workload, options.relative
    union = implicit(workload, relative)
    axes = [union.distinct(i) for i in range(len(union.sizes))]
    factors = [strategy.matrix for strategy in tools.each(partial(_solve, options), [_mixed(grams) for grams in axes])]
    factor_of = dict(zip(union.names, factors, strict=True))
    weights = optimise_marginals(union, "gaussian", factors=factors).weights
    blocks = [
        product_block(names, [factor_of[name] for name in names], w**2, problem.noise) for names, w in weights.items()
    ]
    check_cells(blocks, tools, NAME)
    return _joint_plan(workload, blocks, 0.0 if relative else svd_bound(union).value)


def _mixed(grams: dict[str, Floats]) -> Floats:
    """Return the sum of an attribute's Grams, each scaled to trace 1, plus a small multiple of Total for full rank."""
    size = len(next(iter(grams.values())))
    scaled = [gram / np.trace(gram) for gram in grams.values() if np.ptp(gram) > 0]
    return np.asarray(np.sum(scaled, axis=0) + OF_TOTAL * (np.full((size, size), 1 / size) + np.eye(size) / size))


def _joint_plan(workload: Workload, blocks: list[Block], bound: float) -> Plan:
    marginal = marginal_plan(workload, NAME, blocks, bound)
    if marginal.bound == 0:
        return marginal
    ratio = (marginal.error / marginal.bound) ** 0.5
    note = f"root mean square error over the least that any strategy can have: {ratio:.6g}"
    return Plan(workload, NAME, marginal.blocks, marginal.error, marginal.bound, (note,))


MECHANISM = matrix_mechanism(NAME, Options, plan)
