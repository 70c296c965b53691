"""Local maximum entropy from any plan that measures whole residuals: query-smasher, residual-planner…

Least-squares estimates are unbiased but may be negative, and residuals that were not measured are uniform. Here the
same measurements, with their variances, give consistent non-negative estimates by `low_order` and `entropy`: biased,
and much more accurate for marginals. The noise of a table is measured on groups of neighbouring cells. `low_order`
takes the part of a table over groups that the plain mean leaves; if groups are uneven or axes are averaged by weights,
smaller residuals and their noise contribute to it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from dpscale.base.arrays import Floats
from dpscale.base.display import AttributeSet
from dpscale.base.errors import PlanError
from dpscale.domain.structural_zeros import Excludes
from dpscale.plans.factor import Factor
from dpscale.plans.plan import Plan
from dpscale.reconstruction.constraints import agreed, edges
from dpscale.reconstruction.entropy import LowOrder
from dpscale.reconstruction.estimates import LeastSquaresEstimates
from dpscale.reconstruction.low_order import NoisyResidual, low_order
from dpscale.reconstruction.one_way import NoisyCounts, non_negative_counts, total_of
from dpscale.workload.residual import center, profile_of, subsets
from dpscale.workload.residual.grem import Residuals
from dpscale.workload.residual.in_axis import Groups, by_mass, coarsened, every_cell

GRAIN, DEGREE, CHAINS = 0.3, 2, 1


def from_estimates(
    estimates: LeastSquaresEstimates, degree: int = DEGREE, grain: float = GRAIN, chains: int = CHAINS
) -> LowOrder:
    """Return low-order tables from all residuals of up to `degree` attributes that the plan measures completely.

    Parameters
    ----------
    estimates : LeastSquaresEstimates
    degree : int
    grain : float
        Groups contain at least √(grain · σ · N) counts, σ the noise of a typical cell of a pair; 0: every cell alone.
    chains : int
        As in `low_order`.

    Raises
    ------
    PlanError
        If a 1-way marginal of the workload's attributes was not measured.
    """
    plan = estimates.plan
    sets, names = fully_measured(plan)
    counts = {name: _counts(estimates, name) for name in names}
    total = total_of(counts)
    rules = plan.domain.rules
    ones = {name: non_negative_counts(noisy, total) for name, noisy in counts.items()}
    ones = agreed(ones, {name: noisy.variance for name, noisy in counts.items()}, rules)
    larger = [kept for kept in sets if 1 < len(kept) <= degree]
    groups = _groups(estimates, ones, larger, grain, total)
    measured = {kept: _residual(estimates, kept, groups) for kept in larger}
    return low_order(ones, groups, measured, chains=chains, rules=rules)


def fully_measured(plan: Plan) -> tuple[list[AttributeSet], list[str]]:
    """Return the residuals that a plan measures completely, and their attributes.

    Raises PlanError unless all 1-way marginals are among them.
    """
    sets = [kept for kept, estimator in plan.accuracy.residuals.items() if estimator.spans_all]
    asked = {name for part in plan.workload.parts for kept in part.sets for name in kept}
    names = [name for name in plan.domain.names if name in asked or any(name in kept for kept in sets)]
    if () not in sets or any((name,) not in sets for name in names):
        raise PlanError("reconstruct.method", "maxent for a plan that does not measure every 1-way whole",
                        "a workload with a marginal over every attribute", "add one, or use least-squares")  # fmt: skip
    return sets, names


def _counts(estimates: LeastSquaresEstimates, name: str) -> NoisyCounts:
    size, weights = estimates.plan.domain[name].size, estimates.accuracy.weights.get(name)
    spread = float((profile_of(weights, size) ** 2).mean())
    variance = _variance(estimates, (name,), {}) + _variance(estimates, (), {}) * spread
    return NoisyCounts(estimates.marginal((name,)), variance)


def _groups(
    estimates: LeastSquaresEstimates, ones: dict[str, Floats], sets: Sequence[AttributeSet], grain: float, total: float
) -> dict[str, Groups]:
    if not sets or grain <= 0:
        return {name: every_cell(len(one_way)) for name, one_way in ones.items()}
    deviation = math.sqrt(float(np.median([_whole_variance(estimates, kept, {}) for kept in sets])))
    least = math.sqrt(grain * deviation * total)
    rules = estimates.plan.domain.rules
    return {name: by_mass(one_way, least, edges(rules, name)) for name, one_way in ones.items()}


def _residual(estimates: LeastSquaresEstimates, kept: AttributeSet, groups: dict[str, Groups]) -> NoisyResidual:
    groupings = [groups[name] for name in kept]
    values = center(coarsened(estimates.marginal(kept), groupings), range(len(kept)))
    return NoisyResidual(values, math.sqrt(_whole_variance(estimates, kept, groups)))


def _whole_variance(estimates: LeastSquaresEstimates, kept: AttributeSet, groups: dict[str, Groups]) -> float:
    """Return the mean variance of the part of a table that the plain mean leaves.

    It includes the variance of its residual and, if totals are distributed unevenly, of smaller residuals.
    """
    domain, own, total = estimates.plan.domain, estimates.accuracy.weights, 0.0
    for inside in subsets(kept):
        outside = [name for name in kept if name not in inside]
        uneven = math.prod(_uneven(profile_of(own.get(n), domain[n].size), groups.get(n)) for n in outside)
        if uneven > 0 and inside in estimates.accuracy.residuals:
            total += uneven * _variance(estimates, inside, groups)
    return total


def _uneven(profile: Floats, groups: Groups | None) -> float:
    """Return the mean square of the part of u that the plain mean leaves, over groups if given."""
    values = profile if groups is None else coarsened(profile, [groups])
    return float((center(values, (0,)) ** 2).mean())


def _variance(estimates: LeastSquaresEstimates, kept: AttributeSet, groups: dict[str, Groups]) -> float:
    """Return the mean variance of a residual's entries, over groups if given."""
    estimator = estimates.accuracy.residuals[kept]
    if estimator.joint:
        widths = [groups[name].size / groups[name].count for name in kept if name in groups]
        return estimator.scale * estimator.factors[0].mean_variance * math.prod(widths)
    parts = [_grouped(factor, groups.get(name)) for name, factor in zip(kept, estimator.factors, strict=True)]
    return estimator.scale * math.prod(parts)


def _grouped(factor: Factor, groups: Groups | None) -> float:
    """Return the mean variance along one axis, of the sums over groups after centring."""
    if groups is None:
        return factor.mean_variance
    if factor.is_long:
        covariance = factor.sums_covariance(np.array([*groups.starts, groups.size]))
    else:
        covariance = coarsened(factor.covariance, [groups, groups])
    return float(np.diag(center(covariance, (0, 1))).mean())


def model_of(
    counts: Mapping[str, NoisyCounts],
    groups: Mapping[str, Groups],
    residuals: Residuals,
    wanted: Sequence[AttributeSet] = (),
    chains: int = 1,
    rules: tuple[Excludes, ...] = (),
) -> LowOrder:
    """Return consistent non-negative low-order tables from all measurements.

    Parameters
    ----------
    counts : mapping of str to NoisyCounts
        1-way measurements in the order of attributes.
    groups : mapping of str to Groups
    residuals : Residuals
        Centred, over groups, with the precision 1/σ² of the noise on the marginal; includes the total, (), and 1-ways.
    wanted, chains, rules
        As in `low_order`.
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
    """Return a centred residual, whose cells have variance p_τ σ²."""
    kept = math.prod(1 - 1 / groups[name].count for name in names)
    return NoisyResidual(residuals.values[names], math.sqrt(kept / residuals.precision(names)))
