"""Pooling of releases with fixed plans: files of their pooled values, and the plan of the next release.

    plan.json, factors.npz, blocks.npz, values.npy, variances.npy      target/plan.json, …

The first files have the pooled values and the blocks that they estimate. `target` is the plan of one release at the
summed budget.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from dpscale.base.errors import PlanError
from dpscale.base.numerics import Floats
from dpscale.mechanisms.contract import PlanningProblem
from dpscale.mechanisms.fixed_plan import FixedPlan
from dpscale.mechanisms.pooling import Instalments
from dpscale.mechanisms.refined_plan import TARGET, RefinedPlan, completing_plan, refined_plan
from dpscale.plans.measurement_plan import MeasurementPlan
from dpscale.plans.plan import Plan
from dpscale.plans.plan_file import BLOCKS, FACTORS, PLAN, read_plan, write_plan
from dpscale.reconstruction.base import Evidence, PlanEvidence
from dpscale.storage.files import is_local, present, read_bytes, reading
from dpscale.workload import Workload

OTHER_WORKLOADS = True
VALUES, VARIANCES, PLAN_FILES = "values.npy", "variances.npy", (PLAN, FACTORS, BLOCKS)


def accepts(plan: MeasurementPlan) -> bool:
    """Return whether the values of a plan can be pooled."""
    return isinstance(plan, FixedPlan)


def pack(evidence: Evidence, workload: Workload, costs: Instalments, plan: Path | None) -> dict[str, bytes]:
    """Return files of the values of all releases so far; see `Pooling.pack`."""
    assert isinstance(evidence, PlanEvidence)
    own = evidence.plan
    packed = Plan(workload, own.mechanism, own.blocks, own.error, 0.0, own.notes)
    values = np.concatenate([np.asarray(evidence.read(index)).reshape(-1) for index in range(len(own.blocks))])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_plan(folder, packed)
        np.save(folder / VALUES, values)
        np.save(folder / VARIANCES, np.asarray(evidence.variances))
        files = {one: (folder / one).read_bytes() for one in (*PLAN_FILES, VALUES, VARIANCES)}
    if plan is not None:
        source = plan / TARGET if present(plan / TARGET / PLAN) else plan
        files |= {f"{TARGET}/{one}": read_bytes(source / one) for one in PLAN_FILES}
    return files


def read_evidence(folder: Path, workload: Workload) -> PlanEvidence:
    """Return the pooled values of the earlier releases; values on a disk are read on access."""
    plan = read_plan(folder, workload)
    with reading(folder / VARIANCES) as file:
        variances: Floats = np.load(file, allow_pickle=False)
    values = _open_values(folder / VALUES)
    starts = np.concatenate([[0], np.cumsum(plan.blocks.rows)])

    def value(index: int) -> Floats:
        return np.asarray(values[starts[index] : starts[index + 1]]).reshape(plan.blocks[index].rows)

    return PlanEvidence(plan, variances.tolist(), value)


def _open_values(path: Path) -> Floats:
    if is_local(path):
        return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    with reading(path) as file:
        return np.asarray(np.load(file, allow_pickle=False))


def plan(
    folder: Path, problem: PlanningProblem, costs: Instalments, completes: bool, make: Callable[[], MeasurementPlan]
) -> RefinedPlan:
    """Return the plan of the next release: the target again, or what completes the earlier ones to it."""
    earlier = read_evidence(folder, problem.workload)
    target = _read_target(folder, problem.workload) or make().public_plan
    if not isinstance(target, Plan):
        raise PlanError("mechanism", "a plan that is not fixed", "a mechanism with a fixed plan", "use another one")
    if not completes:
        return refined_plan(FixedPlan(target, problem), earlier, costs)
    return refined_plan(FixedPlan(completing_plan(target, problem, earlier), problem), earlier, costs, target)


def read(plan: MeasurementPlan, stored: Path, folder: Path, costs: Instalments) -> RefinedPlan:
    """Return a stored plan as one that pools the values in `folder`."""
    assert isinstance(plan, FixedPlan)
    return refined_plan(plan, read_evidence(folder, plan.workload), costs, _read_target(stored, plan.workload))


def _read_target(folder: Path, workload: Workload) -> Plan | None:
    return read_plan(folder / TARGET, workload) if present(folder / TARGET / PLAN) else None
