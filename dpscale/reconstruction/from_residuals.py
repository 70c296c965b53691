"""Low-order tables from 1-ways measured cell by cell and residuals measured over groups: what an adaptive run leaves.

Nothing else enters: who has what was released has the model, byte by byte.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from dpscale.base.arrays import Floats
from dpscale.base.names import AttributeSet
from dpscale.domain.impossible import Excludes
from dpscale.reconstruction.entropy import LowOrder
from dpscale.reconstruction.held import agreed
from dpscale.reconstruction.low_order import NoisyResidual, low_order
from dpscale.reconstruction.one_way import NoisyCounts, total_of
from dpscale.workload.residual.grem import Residuals
from dpscale.workload.residual.groups import Groups


def model_of(
    counts: Mapping[str, NoisyCounts],
    groups: Mapping[str, Groups],
    residuals: Residuals,
    wanted: Sequence[AttributeSet] = (),
    chains: int = 1,
    rules: tuple[Excludes, ...] = (),
) -> LowOrder:
    """Consistent non-negative low-order tables from all that was measured, attributes in the order of `counts`.

    `residuals`: centred, over groups, with the precision 1/σ² of the noise on the marginal; also of the total, (), and
    of 1-ways. `wanted`, `chains`, `rules`: as of `low_order`.
    """
    total = total_of(counts, (float(residuals.values.get((), 0.0)), residuals.precision(())))
    ones = {name: _one_way(noisy, name, groups[name], residuals, total) for name, noisy in counts.items()}
    ones = agreed(ones, {name: noisy.variance for name, noisy in counts.items()}, rules)
    measured = {names: _noisy(names, groups, residuals) for names in residuals.values if len(names) > 1}
    return low_order(ones, groups, measured, wanted, chains, rules)


def _one_way(noisy: NoisyCounts, name: str, groups: Groups, residuals: Residuals, total: float) -> Floats:
    residual = np.asarray(residuals.values.get((name,), np.zeros(groups.count)))
    precision = residuals.precision((name,))
    return noisy.refined(groups, residual, precision, total)


def _noisy(names: AttributeSet, groups: Mapping[str, Groups], residuals: Residuals) -> NoisyResidual:
    """A centred residual's cells have variance p_τ σ²."""
    kept = math.prod(1 - 1 / groups[name].count for name in names)
    return NoisyResidual(residuals.values[names], math.sqrt(kept / residuals.precision(names)))
