"""State of earlier adaptive releases, from which a new one starts, and its files.

The 1-ways are measured again and averaged by inverse variance. Earlier groups were chosen for the noise of a smaller
budget. The new groups are the common refinement of the earlier ones and of those for the summed budget. A residual over
coarser groups is y = Hx + noise, where x is the residual over the new groups and H centres sums of groups. Its estimate
is the earlier model's x, corrected by H⁺(y − Hx), with the scalar precision of y times tr(HᵀH) per dimension.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dpscale.base.errors import JobError
from dpscale.base.numerics import AttributeSet, Floats
from dpscale.mechanisms.aim.decision import AimDecision
from dpscale.mechanisms.aim.estimators import EntropyEstimator, FittedEstimates
from dpscale.mechanisms.aim.setting import Setting
from dpscale.mechanisms.aim.state import AimState, choose_groups, initial_state, state_before_rounds
from dpscale.mechanisms.contract import Instalments, PlanningProblem, Pooling
from dpscale.plans.measurement_plan import MeasurementPlan
from dpscale.reconstruction.consistency import NoisyCounts, StrategyCounts
from dpscale.storage.files import read_bytes, reading
from dpscale.workload import Workload
from dpscale.workload.residual import Groups, Residuals, center, coarsened


@dataclass(frozen=True, eq=False)
class EarlierState:
    """Released estimates of earlier adaptive releases, in the setting of the new one.

    Attributes
    ----------
    setting : Setting
    instalments : Instalments
    beta : Fraction
        β of all earlier releases.
    counts : mapping of str to NoisyCounts
    groups : mapping of str to Groups
    residuals : Residuals
        Residuals over `groups`.
    by_cell : frozenset of AttributeSet
        Residuals that an earlier release measured over all cells.
    """

    setting: Setting
    instalments: Instalments
    beta: Fraction
    counts: Mapping[str, NoisyCounts]
    groups: Mapping[str, Groups]
    residuals: Residuals
    by_cell: frozenset[AttributeSet]

    @cached_property
    def fit(self) -> FittedEstimates:
        """Estimates of the earlier releases."""
        setting = self.setting
        return setting.estimator.fit(self.counts, self.groups, self.residuals, setting.candidates, None)

    def refined_groups(self, counts: Mapping[str, NoisyCounts]) -> dict[str, Groups]:
        """Return the common refinement of the earlier groups and those that the summed budget permits.

        Groups of an attribute change only if the new budget permits more of them than before.
        """
        if not self.setting.candidates:
            return dict(self.groups)
        finer = choose_groups(replace(self.setting, beta=self.setting.beta + self.beta), counts)
        return {
            name: common_refinement(old, finer[name]) if finer[name].count > old.count else old
            for name, old in self.groups.items()
        }

    def lifted_residuals(self, groups: Mapping[str, Groups]) -> Residuals:
        """Return the residuals over groups that refine the earlier ones.

        If groups changed, the residual is lifted as the module says, and its precision multiplied by tr(HᵀH) per
        dimension (`share`).
        """
        lifted = list[tuple[AttributeSet, Floats, float]]()
        for names, value in self.residuals.values.items():
            precision = self.residuals.precision(names)
            if any(self.groups[name] != groups[name] for name in names):
                old, new = ([groups_of[name] for name in names] for groups_of in (self.groups, groups))
                value, share = lift_residual(value, self.fit.marginal(names), old, new)
                precision *= share
            if precision > 0:
                lifted.append((names, value, precision))

        return Residuals({name: group.count for name, group in groups.items()}).updated(lifted)

    def state(
        self, first: AimDecision, values: Sequence[Floats], groups: Mapping[str, Groups] | None = None
    ) -> AimState:
        """Return the state after the repeated 1-ways; groups are refined here unless `groups` gives stored ones.

        `first` is the decision that repeats the 1-ways, and `values` has its noisy values, which are averaged with the
        earlier counts. `left` is the squared μ that remains for rounds.
        """
        again = {request.names[0]: request.counts(value) for request, value in zip(first.requests, values, strict=True)}
        counts = {name: noisy.average(again[name]) for name, noisy in self.counts.items()}
        groups = self.refined_groups(counts) if groups is None else groups
        left = self.setting.beta - first.spent
        begun = state_before_rounds(self.setting, counts, groups, self.lifted_residuals(groups), left)
        return replace(begun, earlier=self.beta if self.residuals.values else Fraction(0))


def common_refinement(first: Groups, second: Groups) -> Groups:
    """Return the coarsest groups of which both partitions of the cells are unions."""
    return Groups(first.size, tuple(sorted({*first.starts, *second.starts})))


def lift_residual(value: Floats, model: Floats, old: Sequence[Groups], new: Sequence[Groups]) -> tuple[Floats, float]:
    """Return a residual over finer groups, and the share of the precision that it has per dimension.

    Parameters
    ----------
    value : ndarray
        Centred residual over `old`.
    model : ndarray
        Estimated marginal over cells, which gives what the residual does not determine.
    old, new : sequence of Groups
        Groups of each axis; `new` refines `old`.
    """
    fine = coarsened(model, list(new))
    estimate = center(fine, range(fine.ndim))  # x of the model, over the new groups
    sums = [_sums(before, after) for before, after in zip(old, new, strict=True)]
    centred = [center(matrix, (0, 1)) for matrix in sums]  # H, a factor for each axis

    # y − Hx, less what the means of the model add, because the old groups have unequal numbers of new ones
    rest = value - center(_apply(fine - estimate, sums), range(value.ndim)) - _apply(estimate, centred)
    lifted = estimate + _apply(rest, [np.asarray(np.linalg.pinv(matrix)) for matrix in centred])
    dimension = math.prod(groups.count - 1 for groups in new)
    trace = math.prod(float((matrix**2).sum()) for matrix in centred)

    return center(lifted, range(lifted.ndim)), trace / dimension if dimension else 0.0


def _sums(old: Groups, new: Groups) -> Floats:
    """Return the matrix that sums the new groups to the old ones, shape (old, new)."""
    sums = np.zeros((old.count, new.count))
    sums[old.labels[list(new.starts)], np.arange(new.count)] = 1
    return sums


def _apply(values: Floats, matrices: Sequence[Floats]) -> Floats:
    """Return an array multiplied by a matrix along every axis."""
    for axis, matrix in enumerate(matrices):
        values = np.moveaxis(np.tensordot(values, matrix, axes=(axis, 1)), -1, axis)
    return values


def begin(
    setting: Setting,
    first: AimDecision,
    values: Sequence[Floats],
    groups: Mapping[str, Groups] | None,
    earlier: EarlierState | None,
) -> AimState:
    """Return the state after the first decision of a release; groups are chosen here unless they are given."""
    if earlier is None:
        return initial_state(setting, first, list(values), groups)
    return replace(earlier, setting=setting).state(first, list(values), groups)


STATE, ARRAYS = "state.json", "state.npz"


def pack(evidence: Any, workload: Workload, costs: Instalments, plan: Path | None) -> dict[str, bytes]:
    """Return files of the state after all releases; see `Pooling.pack`.

    `costs.whole` is the cost of all releases; counts are stored with their variances, residuals with their precisions.
    `by_cell` are the sets that were measured cell by cell. `workload` and `plan` are not used.
    """
    state = evidence.state()
    names, sets = list(state.counts), list(state.residuals.values)
    content = {
        "beta": str(costs.whole.gaussian),
        "counts": {name: state.counts[name].variance for name in names},
        "strategies": {name: strategy.digest for name, strategy in state.setting.strategies.items()},
        "groups": {name: [group.size, *group.starts] for name, group in state.groups.items()},
        "residuals": [[list(residual_set), state.residuals.precision(residual_set)] for residual_set in sets],
        "by_cell": sorted(list(residual_set) for residual_set in evidence.by_cell),
    }
    arrays = {f"count{number}": state.counts[name].values for number, name in enumerate(names)}
    arrays |= {f"residual{number}": state.residuals.values[residual_set] for number, residual_set in enumerate(sets)}
    packed = io.BytesIO()
    np.savez(packed, **arrays)  # type: ignore[arg-type]

    return {STATE: json.dumps(content).encode(), ARRAYS: packed.getvalue()}


def accepts(plan: Any) -> bool:
    """Return whether a plan estimates by local maximum entropy, so that its state can be continued."""
    return isinstance(plan.setting.estimator, EntropyEstimator)


def next_plan(
    folder: Path, problem: PlanningProblem, costs: Instalments, completes: bool, make: Callable[[], Any]
) -> MeasurementPlan:
    """Return the plan of the next release, which continues from the stored state."""
    return continued_plan(make(), folder, folder, costs)


def continued_plan(plan: Any, stored: Path, folder: Path, costs: Instalments) -> MeasurementPlan:
    """Return a plan as one that continues from the state in `folder`."""
    continued: MeasurementPlan = replace(plan, earlier=read_state(folder, plan.setting, costs))
    return continued


def read_state(folder: Path, setting: Setting, costs: Instalments) -> EarlierState:
    """Return the state that `pack` wrote, in the setting of a release that continues it.

    `record` is the JSON of the state: the groups of cells by attribute, variances of the noisy 1-way counts, residuals
    with their precisions, sets that are measured by cell, and β, the cost of all earlier releases. The arrays are named
    by the number of their entry.

    Raises
    ------
    JobError
        If a version of dpscale measured the 1-ways by other strategies.
    """
    record = json.loads(read_bytes(folder / STATE))
    with reading(folder / ARRAYS) as file, np.load(file, allow_pickle=False) as stored:
        arrays: Mapping[str, Floats] = dict(stored)
    # counts of other strategies cannot be averaged with new ones
    if record["strategies"] != {name: strategy.digest for name, strategy in setting.strategies.items()}:
        raise JobError("run directory", "1-ways that another version of dpscale measured by other strategies",
                       "a run of this version", "start a new run")  # fmt: skip

    groups = {name: Groups(size, tuple(starts)) for name, (size, *starts) in record["groups"].items()}
    counts = {
        name: _noisy(arrays[f"count{number}"], variance, name, setting)
        for number, (name, variance) in enumerate(record["counts"].items())
    }
    measured = [
        (tuple(names), arrays[f"residual{number}"], precision)
        for number, (names, precision) in enumerate(record["residuals"])
    ]
    residuals = Residuals({name: group.count for name, group in groups.items()}).updated(measured)
    by_cell = frozenset(tuple(names) for names in record["by_cell"])

    return EarlierState(
        setting=setting,
        instalments=costs,
        beta=Fraction(record["beta"]),
        counts=counts,
        groups=groups,
        residuals=residuals,
        by_cell=by_cell,
    )


def _noisy(values: Floats, variance: float, name: str, setting: Setting) -> NoisyCounts:
    strategy = setting.strategies.get(name)
    return NoisyCounts(values, variance) if strategy is None else StrategyCounts(values, variance, strategy)


POOLING = Pooling(pack=pack, plan=next_plan, read=continued_plan, accepts=accepts, other_workloads=False)
