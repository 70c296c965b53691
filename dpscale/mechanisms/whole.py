"""Plans of blocks that measure marginals themselves: what HDMM, Eigen-Design and the baselines share.

The plan's error is that of the rounded strategies (`solve.rounded_blocks`) and of the estimates that follow.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from dpscale.base.errors import PlanError
from dpscale.mechanisms.contract import Tools
from dpscale.plans.accuracy import accuracy_of
from dpscale.plans.allocation import variance_factor
from dpscale.plans.block import Block
from dpscale.plans.blocks import Blocks
from dpscale.plans.plan import Plan
from dpscale.workload import Workload


def whole_plan(
    workload: Workload, name: str, blocks: Iterable[Block], bound: float, notes: tuple[str, ...] = ()
) -> Plan:
    """The plan of some blocks. `bound`: of the coefficient tr(G (AᵀA)⁺) over all strategies of sensitivity 1, or 0."""
    given = Blocks.of(workload.domain.names, blocks)
    error = accuracy_of(workload.domain, given).total_error(workload)
    return Plan(workload, name, given, error, min(bound * variance_factor(given[0].noise), error), notes)


def check_cells(blocks: Iterable[Block], tools: Tools, name: str) -> None:
    """PlanError where a block needs a marginal of more cells than may be held."""
    for block in blocks:
        cells = math.prod(math.prod(factor.shape) for factor in block.factors)
        if cells > tools.most_cells:
            raise PlanError(
                "engine.memory",
                f"a marginal of {cells} cells ({', '.join(block.attributes)}) for {name}",
                f"at most {tools.most_cells} cells under the memory setting",
                "raise it, ask fewer attributes, or take query-smasher",
            )
