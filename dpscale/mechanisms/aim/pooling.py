"""Pooling of adaptive releases: files of the released state, from which the next release continues."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path

import numpy as np

from dpscale.base.errors import JobError
from dpscale.base.numerics import Floats
from dpscale.mechanisms.aim.adaptive_plan import AdaptivePlan
from dpscale.mechanisms.aim.continued import ContinuedPlan, EarlierState, continued_plan
from dpscale.mechanisms.aim.estimators import EntropyEstimator
from dpscale.mechanisms.aim.evidence import AdaptiveEvidence
from dpscale.mechanisms.aim.setting import Setting
from dpscale.mechanisms.contract import PlanningProblem
from dpscale.mechanisms.pooling import Instalments
from dpscale.plans.measurement_plan import MeasurementPlan
from dpscale.reconstruction.base import Evidence
from dpscale.reconstruction.one_way import NoisyCounts, StrategyCounts
from dpscale.storage.files import read_bytes, reading
from dpscale.workload import Workload
from dpscale.workload.residual.grem import Residuals
from dpscale.workload.residual.in_axis import Groups

OTHER_WORKLOADS = False
STATE, ARRAYS = "state.json", "state.npz"


def accepts(plan: MeasurementPlan) -> bool:
    """Return whether a plan estimates by local maximum entropy, so that its state can be continued."""
    return isinstance(plan, AdaptivePlan) and isinstance(plan.setting.estimator, EntropyEstimator)


def pack(evidence: Evidence, workload: Workload, costs: Instalments, plan: Path | None) -> dict[str, bytes]:
    """Return files of the state after all releases; see `Pooling.pack`."""
    assert isinstance(evidence, AdaptiveEvidence)
    state = evidence.state()
    names, sets = list(state.counts), list(state.residuals.values)
    content = {
        "beta": str(costs.whole.gaussian),
        "counts": {name: state.counts[name].variance for name in names},
        "strategies": {name: one.digest for name, one in state.setting.strategies.items()},
        "groups": {name: [one.size, *one.starts] for name, one in state.groups.items()},
        "residuals": [[list(one), state.residuals.precision(one)] for one in sets],
        "by_cell": sorted(list(one) for one in evidence.by_cell),
    }
    arrays = {f"count{number}": state.counts[name].values for number, name in enumerate(names)}
    arrays |= {f"residual{number}": state.residuals.values[one] for number, one in enumerate(sets)}
    packed = io.BytesIO()
    np.savez(packed, **arrays)  # type: ignore[arg-type]
    return {STATE: json.dumps(content).encode(), ARRAYS: packed.getvalue()}


def plan(
    folder: Path, problem: PlanningProblem, costs: Instalments, completes: bool, make: Callable[[], MeasurementPlan]
) -> ContinuedPlan:
    """Return the plan of the next release, which continues from the stored state."""
    made = make()
    assert isinstance(made, AdaptivePlan)
    return continued_plan(made, read_state(folder, made.setting), costs)


def read(plan: MeasurementPlan, stored: Path, folder: Path, costs: Instalments) -> ContinuedPlan:
    """Return a stored plan as one that continues from the state in `folder`."""
    assert isinstance(plan, AdaptivePlan)
    return continued_plan(plan, read_state(folder, plan.setting), costs)


def read_state(folder: Path, setting: Setting) -> EarlierState:
    """Return the state that `pack` wrote, in the setting of a release that continues it.

    Raises
    ------
    JobError
        If a version of dpscale measured the 1-ways by other strategies.
    """
    record = json.loads(read_bytes(folder / STATE))
    with reading(folder / ARRAYS) as file, np.load(file, allow_pickle=False) as stored:
        arrays: Mapping[str, Floats] = dict(stored)
    if record["strategies"] != {name: one.digest for name, one in setting.strategies.items()}:
        raise JobError("run directory", "1-ways that another version of dpscale measured by other strategies",
                       "a run of this version", "start a new run")  # fmt: skip
    groups = {name: Groups(size, tuple(starts)) for name, (size, *starts) in record["groups"].items()}
    counts = {name: _noisy(arrays[f"count{number}"], variance, name, setting)
              for number, (name, variance) in enumerate(record["counts"].items())}  # fmt: skip
    measured = [(tuple(names), arrays[f"residual{number}"], precision)
                for number, (names, precision) in enumerate(record["residuals"])]  # fmt: skip
    residuals = Residuals({name: one.count for name, one in groups.items()}).updated(measured)
    by_cell = frozenset(tuple(names) for names in record["by_cell"])
    return EarlierState(setting, Fraction(record["beta"]), counts, groups, residuals, by_cell)


def _noisy(values: Floats, variance: float, name: str, setting: Setting) -> NoisyCounts:
    strategy = setting.strategies.get(name)
    return NoisyCounts(values, variance) if strategy is None else StrategyCounts(values, variance, strategy)
