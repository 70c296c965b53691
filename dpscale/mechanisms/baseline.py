"""The mechanism `baseline`: every set of the workload is measured by a named standard strategy without optimisation.

Strategies: workload (the Gram of the queries), identity, wavelet, hierarchical (H2), hb, greedy-h, fourier, walsh; or
data-cube, the equally weighted marginals that minimise the largest error of a marginal of the workload. Each set is
measured by the product of its attributes' strategies. Shares are optimal if each set answers only its own queries. On
one wide attribute the wavelet and the hierarchies have no matrix (`plans.layered`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from dpscale.base.errors import PlanError
from dpscale.base.numerics import Floats
from dpscale.base.settings import Settings, setting
from dpscale.mechanisms.contract import Objective, PlanningProblem, Tools, objective
from dpscale.mechanisms.matrix_mechanism import check_cells, marginal_plan, matrix_mechanism, wide_attribute
from dpscale.optimize import baselines
from dpscale.optimize.implicit_workload import AxisGram, Implicit, implicit
from dpscale.optimize.integer_strategies import product_block
from dpscale.optimize.lower_bounds import svd_bound, whole_bound
from dpscale.optimize.opt_explicit import Noise, error_of
from dpscale.plans.blocks import Block
from dpscale.plans.layered import LayeredFactor
from dpscale.plans.plan import Plan
from dpscale.privacy.draws import BELOW_ONE, LAPLACE, allocate
from dpscale.workload.wide import DENSE

NAME = "baseline"
AXIS: dict[str, Callable[[AxisGram, Noise], Floats]] = {
    "workload": lambda axis, noise: baselines.workload_itself(axis.gram),
    "identity": lambda axis, noise: baselines.identity(len(axis.gram)),
    "wavelet": lambda axis, noise: baselines.wavelet(len(axis.gram)),
    "hierarchical": lambda axis, noise: baselines.hierarchical(len(axis.gram)),
    "hb": lambda axis, noise: baselines.hb(len(axis.gram)),
    "greedy-h": lambda axis, noise: baselines.greedy_h(axis.gram, noise),
    "fourier": lambda axis, noise: baselines.fourier(len(axis.gram)),
    "walsh": lambda axis, noise: baselines.walsh(len(axis.gram)),
}
CUBE = "data-cube"
WIDE: dict[str, Callable[[int], LayeredFactor]] = {
    "wavelet": baselines.layered_wavelet,
    "hierarchical": baselines.layered_tree,
    "hb": lambda size: baselines.layered_tree(size, baselines.hb_branching(size), root=False),
}


class Options(Settings):
    """Options of the mechanism."""

    strategy: Literal[
        "workload", "identity", "wavelet", "hierarchical", "hb", "greedy-h", "fourier", "walsh", "data-cube"
    ] = setting("identity", ", ".join([*AXIS, CUBE]), "strategy of every set in the workload")
    objective: Objective = objective()


def plan(problem: PlanningProblem, options: Options, tools: Tools) -> Plan:
    """Plan a named strategy.

    A WIDE strategy on a wide attribute has one layered block; CUBE is the data cube, and the others (AXIS) are products
    over the attributes.
    """
    strategy, workload, notes = options.strategy, problem.workload, (f"strategy {options.strategy}",)
    if strategy in WIDE and (name := wide_attribute(workload)) is not None:
        blocks = [_wide_block(name, workload.domain[name].size, strategy, problem.noise)]
        return marginal_plan(workload, NAME, blocks, whole_bound(workload), notes)

    union = implicit(workload)
    noise: Noise = "laplace" if problem.noise == LAPLACE else "gaussian"
    blocks = _cube(union, noise) if strategy == CUBE else _products(union, AXIS[strategy], noise)
    check_cells(blocks, tools, strategy)
    return marginal_plan(workload, NAME, blocks, svd_bound(union).value, notes)


def _wide_block(name: str, size: int, strategy: str, noise: str) -> Block:
    """Return the block of a strategy on all cells of a wide attribute."""
    if strategy == "wavelet" and noise == LAPLACE:
        raise PlanError("mechanism.strategy", f"a wavelet on {size} cells under pure epsilon",
                        f"at most {DENSE} cells", "use hierarchical or hb")  # fmt: skip
    return Block(attributes=(name,), factors=(WIDE[strategy](size),), share=BELOW_ONE, whole=True, noise=noise)


def _products(union: Implicit, make: Callable[[AxisGram, Noise], Floats], noise: Noise) -> list[Block]:
    """Return a block for each product of the workload, from a baseline strategy of each axis (`make`).

    The budget is divided so that the total error is least.

    A strategy has sensitivity 1, so the error of a product is its weight times the errors of its axes; an axis that is
    only summed needs no strategy.
    """
    strategies: dict[str, tuple[Floats, float]] = {}
    for product in union.products:
        for axis in product.axes:
            if not axis.is_total and axis.key not in strategies:
                matrix = baselines.scaled(make(axis, noise), noise)
                strategies[axis.key] = (matrix, error_of(axis.gram, matrix, noise))

    axes_of = [[strategies[axis.key] for axis in product.axes if not axis.is_total] for product in union.products]
    errors = [
        product.weight * math.prod(error for _, error in axes)
        for product, axes in zip(union.products, axes_of, strict=True)
    ]
    # the shares that minimise Σ error / share, or its form under Laplace noise
    shares, _ = allocate(errors, noise)
    return [
        product_block(union.named(product), [matrix for matrix, _ in axes], share, noise)
        for product, axes, share in zip(union.products, axes_of, shares, strict=True)
    ]


def _cube(union: Implicit, noise: Noise) -> list[Block]:
    """Return blocks of counts of the marginals that the data cube method selects, with shares of the budget.

    Weights scale the noise; the cost is their square under Gaussian noise.
    """
    sizes = dict(zip(union.names, union.sizes, strict=True))
    weights = baselines.data_cube(union, noise)
    cost_power = 1 if noise == LAPLACE else 2
    return [
        product_block(names, [baselines.identity(sizes[name]) for name in names], weight**cost_power, noise)
        for names, weight in weights.items()
    ]


MECHANISM = matrix_mechanism(NAME, Options, plan)
