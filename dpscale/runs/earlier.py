"""Released values of earlier releases in the directory of a run that refines them.

    earlier/plan.json, factors.npz, blocks.npz, values.npz      earlier/target/plan.json, …      (fixed plans)
    earlier/state.json, state.npz                                                               (adaptive plans)

The values are public. They are copied, with their hashes in the manifest, so that the run stays readable without the
directories of the earlier releases. The entry `refines` of the manifest names the earlier releases with their costs.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpscale.base.errors import DataError, JobError
from dpscale.base.numerics import Floats
from dpscale.mechanisms.aim.adaptive_plan import AdaptivePlan
from dpscale.mechanisms.aim.continued import STATE_FILES, EarlierState, continued_plan, pack_state, read_state
from dpscale.mechanisms.aim.evidence import AdaptiveEvidence
from dpscale.mechanisms.contract import PlanningProblem
from dpscale.mechanisms.fixed_plan import FixedPlan
from dpscale.mechanisms.refined_plan import TARGET, Instalments, RefinedPlan, completing_plan, refined_plan
from dpscale.plans.measurement_plan import MeasurementPlan
from dpscale.plans.plan import Plan
from dpscale.plans.plan_file import read_plan, write_plan
from dpscale.privacy.accounting import Cost
from dpscale.reconstruction.base import Evidence, PlanEvidence
from dpscale.runs.manifest import frame_tag
from dpscale.storage.files import present, read_bytes, reading
from dpscale.workload import Workload

if TYPE_CHECKING:
    from dpscale.runs.table import TableRun

EARLIER, VALUES = "earlier", "values.npz"
SAME, COMPLETED, CONTINUED = "same", "completed", "continued"
PLAN_FILES = ("plan.json", "factors.npz", "blocks.npz")
IDENTITY = ("plan", "releases", "files")  # fields of the manifest entry that identify the run
Refines = Mapping[str, Any]


def refined_digest(digest: str, refines: Refines | None) -> str:
    """Return the digest of a job, or of a job that refines earlier releases."""
    if refines is None:
        return digest
    own = [digest, {name: refines[name] for name in IDENTITY}]
    return hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()


def hashes_of(files: Mapping[str, bytes]) -> dict[str, str]:
    """Return the SHA-256 of files by name."""
    return {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}


def instalment_of(run: TableRun) -> dict[str, Any]:
    """Return the identity and the cost of a measured release."""
    privacy, manifest = run.job.privacy, run.manifest
    return {"release": manifest["release"], "secret_tag": manifest["secret_tag"], "cost": run.spent.to_dict(),
            "measured": run.measurements.spent.to_dict(), "epsilon": privacy.epsilon,
            "delta": privacy.delta}  # fmt: skip


def pack_earlier(evidence: Evidence, workload: Workload, releases: Sequence[Mapping[str, Any]]) -> dict[str, bytes]:
    """Return the files of the values of all releases up to a measured one.

    Parameters
    ----------
    evidence : Evidence
        That of the measured release.
    workload : Workload
        That of the run that reads the files.
    releases : sequence of mapping
        Identity and cost of every release.
    """
    if isinstance(evidence, AdaptiveEvidence):
        beta = sum((one.gaussian for one in instalments_of(releases, None).measured), Fraction(0))
        return {f"{EARLIER}/{name}": content for name, content in pack_state(evidence, beta).items()}
    assert isinstance(evidence, PlanEvidence)
    return pack_evidence(evidence, workload)


def pack_evidence(evidence: PlanEvidence, workload: Workload) -> dict[str, bytes]:
    """Return the files of pooled values of a fixed plan; `workload` is that of the run that reads them."""
    plan = evidence.plan
    packed = Plan(workload, plan.mechanism, plan.blocks, plan.error, 0.0, plan.notes)
    flat = [np.asarray(evidence.read(index)).reshape(-1) for index in range(len(plan.blocks))]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_plan(folder, packed)
        np.savez(folder / VALUES, values=np.concatenate(flat), variances=np.asarray(evidence.variances))
        return {f"{EARLIER}/{one}": (folder / one).read_bytes() for one in (*PLAN_FILES, VALUES)}


def target_folder(run: TableRun) -> Path:
    """Return the folder with the fixed plan that one release at the summed budget would have, in a planned run."""
    folder = run.path / "plan" / TARGET
    return folder if present(folder / PLAN_FILES[0]) else run.path / "plan"


def pack_target(run: TableRun) -> dict[str, bytes]:
    """Return the files of the plan that one release at the summed budget would have, by the plan of a run."""
    folder = target_folder(run)
    return {f"{EARLIER}/{TARGET}/{name}": read_bytes(folder / name) for name in PLAN_FILES}


def read_evidence(run: TableRun) -> PlanEvidence:
    """Return the pooled evidence of the earlier releases. Raises JobError if its files were changed."""
    _check_files(run)
    plan = read_plan(run.path / EARLIER, run.workload)
    with reading(run.path / EARLIER / VALUES) as file, np.load(file, allow_pickle=False) as arrays:
        values, variances = arrays["values"], arrays["variances"]
    starts = np.concatenate([[0], np.cumsum(plan.blocks.rows)])

    def read(index: int) -> Floats:
        return np.asarray(values[starts[index] : starts[index + 1]]).reshape(plan.blocks[index].rows)

    return PlanEvidence(plan, variances.tolist(), read)


def read_earlier_state(run: TableRun, plan: AdaptivePlan) -> EarlierState:
    """Return the state of the earlier releases of an adaptive run. Raises JobError if its files were changed."""
    _check_files(run)
    content, packed = (run.path / EARLIER / name for name in STATE_FILES)
    with reading(packed) as file, np.load(file, allow_pickle=False) as arrays:
        return read_state(read_bytes(content), dict(arrays), plan.setting)


def _check_files(run: TableRun) -> None:
    for name, digest in run.manifest["refines"]["files"].items():
        path = run.path / name
        if not present(path) or hashlib.sha256(read_bytes(path)).hexdigest() != digest:
            raise JobError("run directory", f"{path} is not as the run wrote it", "the values of the earlier releases",
                           "restore it, or start a new run")  # fmt: skip


def read_target(run: TableRun) -> Plan | None:
    """Return the plan of one release at the summed budget; None if the run plans its own job for it."""
    folder = run.path / EARLIER / TARGET
    return read_plan(folder, run.workload) if present(folder / PLAN_FILES[0]) else None


def instalments_of(releases: Sequence[Mapping[str, Any]], delta: float | None) -> Instalments:
    """Return the costs of earlier releases from their records in a manifest; `delta` is None for pure epsilon."""
    costs, measured = (tuple(Cost.from_dict(one[name]) for one in releases) for name in ("cost", "measured"))
    return Instalments(costs, measured, delta or 0.0)


def _instalments(run: TableRun) -> Instalments:
    return instalments_of(run.manifest["refines"]["releases"], run.job.privacy.delta)


def plan_with_earlier(run: TableRun, target: Plan | AdaptivePlan) -> MeasurementPlan:
    """Return the plan of a run that refines earlier releases; `target` is that of one release at the summed budget."""
    if isinstance(target, AdaptivePlan):
        return continued_plan(target, read_earlier_state(run, target), _instalments(run))
    earlier, problem = read_evidence(run), run.planning_problem
    return plan_pooled(target, problem, earlier, _instalments(run), run.manifest["refines"]["plan"] == COMPLETED)


def plan_pooled(
    target: Plan, problem: PlanningProblem, earlier: PlanEvidence, costs: Instalments, completes: bool
) -> RefinedPlan:
    """Return the plan of the next release: the target again, or what completes the earlier releases to it."""
    if not completes:
        return refined_plan(FixedPlan(target, problem), earlier, costs)
    return refined_plan(FixedPlan(completing_plan(target, problem, earlier), problem), earlier, costs, target)


def with_earlier(run: TableRun, plan: MeasurementPlan) -> MeasurementPlan:
    """Return the stored plan of a run as one that refines the earlier releases."""
    if isinstance(plan, AdaptivePlan):
        return continued_plan(plan, read_earlier_state(run, plan), _instalments(run))
    assert isinstance(plan, FixedPlan)
    folder = run.path / "plan" / TARGET
    target = read_plan(folder, run.workload) if present(folder / PLAN_FILES[0]) else None
    return refined_plan(plan, read_evidence(run), _instalments(run), target)


def check_same_data(run: TableRun, content: str) -> None:
    """Raise DataError if the data of a run differ from those of the release that it refines.

    Parameters
    ----------
    run : TableRun
    content : str
        Hash of the content of the data. It is compared by a keyed tag, if the release has one by the key of this user;
        the tag of a data frame is required.
    """
    refines = run.manifest.get("refines")
    if refines is None:
        return
    known, found = refines["content"], frame_tag(refines["releases"][-1]["release"], content)
    comparable = known is not None and found is not None and known["key"] == found["key"]
    if comparable and known != found:
        raise other_data("records that differ from those of the release that this run refines")
    if not comparable and run.frame is not None:
        raise other_data("a frame that cannot be compared with that of the release that this run refines")
    if run.manifest["snapshot"] is None:
        check_layout(run)


def check_layout(run: TableRun) -> None:
    """Raise DataError if size, time, number or version of the files differ from those that the run has recorded."""
    for changed in run.changed_data().values():
        raise other_data(f"files whose {', '.join(changed)} differ{'s' * (len(changed) == 1)} from those of the release"
                         " that is refined")  # fmt: skip


def check_fresh_noise(run: TableRun) -> None:
    """Raise JobError if a run draws with the release id, or with the random key, of a release that it refines.

    The noise of both would be equal, so the values would reveal the noise and pooling would not reduce it.
    """
    manifest = run.manifest
    for one in (manifest.get("refines") or {"releases": ()})["releases"]:
        same_key = manifest["private"] and manifest.get("secret_tag") == one["secret_tag"]
        if same_key or manifest["release"] == one["release"]:
            what = "the noise key" if same_key else "the release id"
            raise JobError("run directory", f"{what} of {run.path} is that of a release that it refines",
                           "a release with its own noise", "delete the directory and refine again")  # fmt: skip


def other_data(got: str) -> DataError:
    """Return the error for data that are not those of the release that is refined."""
    return DataError("data.path", got, "the same records, unchanged", "restore them, or start a new run of the job")
