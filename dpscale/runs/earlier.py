"""Released values of earlier releases in the folder earlier/ of a run that refines them, and checks of such a run.

The values are public. They are copied, with their hashes in the manifest, so that the run stays readable without the
directories of the earlier releases. The entry `refines` of the manifest names the earlier releases with their costs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from dpscale.base.errors import DataError, JobError
from dpscale.mechanisms.contract import Instalments, Mechanism, PlanningProblem, Pooling
from dpscale.plans.measurement_plan import MeasurementPlan
from dpscale.records.frames import FRAME
from dpscale.runs.manifest import frame_tag
from dpscale.storage.databases import is_database
from dpscale.storage.files import present, read_bytes

EARLIER = "earlier"
IDENTITY = ("completes", "releases", "files")  # fields of the manifest entry that identify the run
Refines = Mapping[str, Any]


class Refined(Protocol):
    """Table of a run that may refine earlier releases."""

    path: Path
    job: Any

    @property
    def manifest(self) -> dict[str, Any]:
        """Facts about the table."""

    def changed_data(self) -> dict[str, list[str]]:
        """Return what of the data changed since they were recorded."""


def refined_digest(digest: str, refines: Refines | None) -> str:
    """Return the digest of a job, or of a job that refines earlier releases.

    `refines` describes the earlier releases; IDENTITY are its keys that determine which ones these are.
    """
    if refines is None:
        return digest
    identity = [digest, {name: refines[name] for name in IDENTITY}]
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def hashes_of(files: Mapping[str, bytes]) -> dict[str, str]:
    """Return the SHA-256 of files by name."""
    return {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}


def required_pooling(method: Mechanism) -> Pooling:
    """Return the pooling of a mechanism; raise JobError if its releases cannot be pooled."""
    found = method.pooling
    if found is None:
        raise JobError("mechanism.name", f"{method.name}, whose releases are not pooled",
                       "aim-grem or a mechanism with a fixed plan", "start a new run")  # fmt: skip
    return found


def plan_with_earlier(run: Refined, problem: PlanningProblem, make: Callable[[], MeasurementPlan]) -> MeasurementPlan:
    """Return the plan of a run that refines earlier releases; `make` plans its job as if there were none.

    `_checked_folder` is the folder of the earlier values, and `_instalments` describes the earlier releases.
    """
    refines = run.manifest["refines"]
    return required_pooling(run.job.method).plan(
        _checked_folder(run), problem, _instalments(run), refines["completes"], make
    )


def with_earlier(run: Refined, plan: MeasurementPlan) -> MeasurementPlan:
    """Return the stored plan of a run as one that pools the values of the earlier releases."""
    pooling = required_pooling(run.job.method)
    return pooling.read(plan, run.path / "plan", _checked_folder(run), _instalments(run))


def _instalments(run: Refined) -> Instalments:
    return Instalments.of(run.manifest["refines"]["releases"], run.job.privacy.delta)


def _checked_folder(run: Refined) -> Path:
    """Return the folder of the earlier values; raise JobError if a file was changed.

    `files` maps the names of the stored earlier values to their SHA-256.
    """
    for name, digest in run.manifest["refines"]["files"].items():
        path = run.path / name
        if not present(path) or hashlib.sha256(read_bytes(path)).hexdigest() != digest:
            raise JobError("run directory", f"{path} is not as the run wrote it", "the values of the earlier releases",
                           "restore it, or start a new run")  # fmt: skip
    return run.path / EARLIER


def check_same_data(run: Refined, content: str) -> None:
    """Raise DataError if the data of a run differ from those of the release that it refines.

    Parameters
    ----------
    run : Refined
    content : str
        Hash of the content of the data. It is compared by a keyed tag, if the release has one by the key of this user;
        the tag of a data frame or a database is required.
    """
    refines = run.manifest.get("refines")
    if refines is None:
        return
    # the tag is computed as that of the last earlier release, and comparable only under the same key
    recorded, tag = refines["content"], frame_tag(refines["releases"][-1]["release"], content)
    comparable = recorded is not None and tag is not None and recorded["key"] == tag["key"]
    if comparable and recorded != tag:
        raise other_data("records that differ from those of the release that is refined")

    # files are compared by their names and sizes as well (below), frames and databases by the tag alone
    without_files = (("frame", run.job.data.path == FRAME), ("database", is_database(run.job.data.path)))
    for kind, is_kind in without_files:
        if not comparable and is_kind:
            raise other_data(f"a {kind} that cannot be compared with that of the release that is refined")
    if run.manifest["snapshot"] is None:
        check_layout(run)


def check_layout(run: Refined) -> None:
    """Raise DataError if size, time, number or version of the files differ from those that the run has recorded."""
    if is_database(run.job.data.path):
        return  # a database has no files; its content is compared by `check_same_data`
    for changed in run.changed_data().values():
        raise other_data(f"files whose {', '.join(changed)} differ{'s' * (len(changed) == 1)} from those of the release"
                         " that is refined")  # fmt: skip


def check_fresh_noise(run: Refined) -> None:
    """Raise JobError if a run draws with the release id, or with the random key, of a release that it refines.

    The noise of both would be equal, so the values would reveal the noise and pooling would not reduce it.
    """
    manifest = run.manifest
    for earlier in (manifest.get("refines") or {"releases": ()})["releases"]:
        same_key = manifest["private"] and manifest.get("secret_tag") == earlier["secret_tag"]
        if same_key or manifest["release"] == earlier["release"]:
            what = "the noise key" if same_key else "the release id"
            raise JobError("run directory", f"{what} of {run.path} is that of a release that it refines",
                           "a release with its own noise", "delete the directory and refine again")  # fmt: skip


def other_data(got: str) -> DataError:
    """Return the error for data that are not those of the release that is refined."""
    return DataError("data.path", got, "the same records, unchanged", "restore them, or start a new run of the job")
