"""The mechanism `eigen-design` (Li and Miklau, 2012): `eigen_design` on all cells of the workload, or by attribute.

If the attributes of the workload have few cells together, any family is one Gram with one strategy. Otherwise a set of
products is measured by one design per attribute, for the sum of the queries on that attribute, since the eigenvectors
of a Kronecker product are products; the marginals are weighted by `OPT_M`.

Unless an option names the design, the best of the full, `separate` and `principal` designs is measured; under pure
epsilon (section 3.5), where no design queries are the best for all workloads, the best of all design queries. Version 1
measured the full design. A plan is read from its file, so charged runs of version 1 are measured by their own design.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal, Self

import numpy as np
from pydantic import model_validator

from dpscale.base.errors import JobError
from dpscale.base.numerics import AttributeSet, Floats
from dpscale.base.settings import Settings, setting
from dpscale.mechanisms.contract import Objective, PlanningProblem, Tools, objective, seconds_of_products
from dpscale.mechanisms.matrix_mechanism import check_cells, marginal_plan, matrix_mechanism
from dpscale.optimize import baselines
from dpscale.optimize.eigen_design import (
    FULL,
    GAIN,
    GAP,
    LAPLACE_GAP,
    DesignChoice,
    choose_design,
    choose_queries,
    eigen_design,
    principal_design,
    separated_design,
)
from dpscale.optimize.implicit_workload import explicit_gram, implicit
from dpscale.optimize.integer_strategies import joint_block, product_block
from dpscale.optimize.lower_bounds import svd_bound, svd_of_gram
from dpscale.optimize.opt_explicit import Noise
from dpscale.optimize.opt_marginals import optimise_marginals
from dpscale.plans.blocks import Block
from dpscale.plans.plan import Plan
from dpscale.privacy.draws import LAPLACE
from dpscale.workload import Workload

NAME = "eigen-design"
EXPLICIT_CELLS = 2048  # joint cells of all attributes for which there is one strategy
OF_TOTAL = 1e-3  # weight of the total and of the cells, in a sum of Gram matrices of trace 1
DESIGNS = {
    "eigen": None,
    "wavelet": baselines.wavelet,
    "fourier": baselines.fourier,
    "walsh": baselines.walsh,
    "hierarchical": baselines.hierarchical,
    "hb": baselines.hb,
    "identity": baselines.identity,
}


class Options(Settings):
    """Design queries and their weighting."""

    design: Literal["eigen", "wavelet", "fourier", "walsh", "hierarchical", "hb", "identity"] = setting(
        "eigen",
        ", ".join(DESIGNS),
        "design queries to weight; if no option is set, the best of eigen, separate and principal, or under pure"
        " epsilon of all",
    )
    separate: int | None = setting(None, "a whole number above 0", "eigenvectors in a group (section 4.2)", ge=1)
    principal: int | None = setting(
        None, "a whole number above 0", "number of eigenvectors with separate weights", ge=1
    )
    relative: bool = setting(False, "true or false", "true: errors relative to a query's length (section 3.4)")

    @property
    def named(self) -> frozenset[str]:
        """Names of the options that fix the design."""
        return frozenset(self.model_fields_set & {"design", "separate", "principal"})

    @model_validator(mode="after")
    def _one(self) -> Self:
        """Refuse a design other than eigen together with the options of the eigen design."""
        if len(self.named) > 1 and self.design != "eigen":
            raise ValueError(JobError("mechanism.design", "given together with separate or principal", "one of them",
                                      "remove the others"))  # fmt: skip
        return self

    objective: Objective = objective()


def plan(problem: PlanningProblem, options: Options, tools: Tools) -> Plan:
    """Plan weighted design queries with completed columns.

    At most EXPLICIT_CELLS joint cells have one strategy together; otherwise each attribute has a strategy.
    """
    workload = problem.workload
    names = {name for part in workload.parts for names in part.sets for name in names}
    small = workload.domain.cells(workload.domain.ordered(names)) <= EXPLICIT_CELLS
    return (_explicit if small else _by_attribute)(problem, options, tools)


DENSE_SECONDS = 16.0  # of the designs of 1,024 cells


def predicted_seconds(problem: PlanningProblem, options: Options) -> float:
    """Return the predicted seconds of the designs, and of the error by attribute of as many blocks as subsets."""
    workload = problem.workload
    names = workload.domain.ordered({name for names in workload.sets for name in names})
    if (cells := workload.domain.cells(names)) <= EXPLICIT_CELLS:
        return DENSE_SECONDS * (cells / 1024) ** 3

    sizes = workload.domain.shape(names)
    if max(sizes, default=0) > EXPLICIT_CELLS:
        return 0.0  # refused at once

    dense = sum(DENSE_SECONDS * (size / 1024) ** 3 for size in sizes)
    return dense + 2 * seconds_of_products(workload, workload.most_subsets)


def _solve(options: Options, noise: Noise, gram: Floats) -> DesignChoice:
    """Return the named design, or the best one if no option names it.

    Without a named design: under Laplace noise all design queries are compared, since none is the best for all
    workloads; under Gaussian noise full and reduced designs of eigenvectors.
    """
    if not options.named and noise == "laplace":
        others = {name: make(len(gram)) for name, make in DESIGNS.items() if make is not None}
        return choose_queries(gram, others)
    if not options.named:
        return choose_design(gram)

    gap = LAPLACE_GAP if noise == "laplace" else GAP
    make = DESIGNS[options.design]
    if make is not None:
        strategy = eigen_design(gram, make(len(gram)), gap, noise)
    elif options.separate is not None:
        strategy = separated_design(gram, options.separate, gap, noise)
    elif options.principal is not None:
        strategy = principal_design(gram, options.principal, gap, noise)
    else:
        strategy = eigen_design(gram, None, gap, noise)

    return DesignChoice(full=strategy, best=strategy, name=FULL, errors={})


def _noise(problem: PlanningProblem) -> Noise:
    return "laplace" if problem.noise == LAPLACE else "gaussian"


def _explicit(problem: PlanningProblem, options: Options, tools: Tools) -> Plan:
    """Return the plan of one strategy on the joint cells of all attributes of the workload.

    The bound by singular values holds for absolute errors only, so it is 0 if errors are `relative`.
    """
    workload, relative = problem.workload, options.relative
    names, gram = explicit_gram(workload, EXPLICIT_CELLS, relative)
    (choice,) = tools.each(partial(_solve, options, _noise(problem)), [gram])
    strategy = choice.best

    if len(names) > 1:
        block = joint_block(names, workload.domain.shape(names), strategy.matrix, problem.noise)
    else:
        block = product_block(names, [strategy.matrix] * len(names), 1.0, problem.noise)
    return _joint_plan(workload, [block], 0.0 if relative else svd_of_gram(gram), _remarks([names], [choice]))


def _by_attribute(problem: PlanningProblem, options: Options, tools: Tools) -> Plan:
    """Plan marginals of one strategy per attribute; the designs chosen by attribute replace the full ones if better.

    The sum of an attribute's Grams only approximates its share of the error, so whole plans are compared.

    `weigh_marginals` plans marginals of given strategies with optimal weights. A share of the cost is the weight for
    Laplace noise and its square for Gaussian noise. Reduced designs must gain the fraction GAIN.
    """
    workload, relative = problem.workload, options.relative
    union = implicit(workload, relative)
    axes = [union.distinct(i) for i in range(len(union.sizes))]
    noise = _noise(problem)
    choices = list(tools.each(partial(_solve, options, noise), [_mixed(grams) for grams in axes]))

    def weigh_marginals(factors: list[Floats], notes: tuple[str, ...] = ()) -> Plan:
        """Return the plan of marginals with optimal weights; `factors` has the strategy of each attribute."""
        factor_of = dict(zip(union.names, factors, strict=True))
        weights = optimise_marginals(union, noise, factors=factors).weights
        power = 1 if noise == "laplace" else 2
        blocks = [
            product_block(names, [factor_of[name] for name in names], weight**power, problem.noise)
            for names, weight in weights.items()
        ]
        check_cells(blocks, tools, NAME)

        return _joint_plan(workload, blocks, 0.0 if relative else svd_bound(union).value, notes)

    full = weigh_marginals([choice.full.matrix for choice in choices])
    notes = _remarks([(name,) for name in union.names], choices)
    if not notes:
        return full

    best = weigh_marginals([choice.best.matrix for choice in choices], notes)
    return best if best.error < (1 - GAIN) * full.error else full


def _remarks(sets: Sequence[AttributeSet], choices: Sequence[DesignChoice]) -> tuple[str, ...]:
    """Return a note for every reduced design; none for full designs, whose plan files have none."""
    return tuple(
        f"{', '.join(names)}: {choice.name} is the best design (squared error over that of the full one): "
        + "; ".join(f"{name} {ratio:.4g}" for name, ratio in choice.errors.items())
        for names, choice in zip(sets, choices, strict=True)
        if choice.name != FULL
    )


def _mixed(grams: dict[str, Floats]) -> Floats:
    """Return the sum of an attribute's Grams, each scaled to trace 1, plus a small multiple of Total for full rank."""
    size = len(next(iter(grams.values())))
    scaled = [gram / np.trace(gram) for gram in grams.values() if np.ptp(gram) > 0]
    return np.asarray(np.sum(scaled, axis=0) + OF_TOTAL * (np.full((size, size), 1 / size) + np.eye(size) / size))


def _joint_plan(workload: Workload, blocks: list[Block], bound: float, notes: tuple[str, ...]) -> Plan:
    """Return a plan of joint blocks, with a note on its error beside the SVD bound of any strategy."""
    marginal = marginal_plan(workload, NAME, blocks, bound, notes)
    if marginal.bound == 0:
        return marginal
    ratio = (marginal.error / marginal.bound) ** 0.5
    note = f"root mean square error over the least that any strategy can have: {ratio:.6g}"
    return Plan(
        workload=workload,
        mechanism=NAME,
        blocks=marginal.blocks,
        error=marginal.error,
        bound=marginal.bound,
        notes=(note, *notes),
    )


MECHANISM = matrix_mechanism(NAME, Options, plan, "3", frozenset({"1", "2"}), predicted_seconds)
