"""The attribute sets that a workload asks for, with what each weighs: what adaptive mechanisms choose for."""

from __future__ import annotations

import math
from collections.abc import Mapping

from dpscale.base.errors import JobError
from dpscale.base.names import AttributeSet
from dpscale.workload.parts import ExplicitPart
from dpscale.workload.workload import Workload

FINEST = 1 << 20


def targets_of(workload: Workload) -> dict[AttributeSet, float]:
    """The attribute sets that weigh, with their weights summed over the parts that ask for them."""
    targets: dict[AttributeSet, float] = {}
    for part in workload.parts:
        weights = (float(part.each.max(initial=0)),) if isinstance(part, ExplicitPart) else part.weights
        for names, weight in zip(part.sets, weights, strict=True):
            if weight > 0 and names:
                targets[names] = targets.get(names, 0.0) + weight
    if not all(math.isfinite(weight) for weight in targets.values()):
        raise JobError("workload.weight", "weights whose sum over a set is not finite", "smaller ones", "mend them")
    if not targets:
        raise JobError("workload", "no attribute set that weighs", "one marginal at least", "add a family")
    return targets


def whole_weights(targets: Mapping[AttributeSet, float]) -> tuple[int, ...]:
    """Weights as whole numbers in proportion, the smallest about 1, unless they differ more than FINEST times."""
    least = max(min(targets.values()), max(targets.values()) / FINEST)
    exact = len(set(targets.values())) == 1
    return tuple(1 if exact else max(1, round(16 * weight / least)) for weight in targets.values())
