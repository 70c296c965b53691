"""A run directory: the inputs and outputs of all stages of one job.

    job.toml  domain.toml  manifest.json  plan/  measurements/  answers/  report.html  log.jsonl

From the first to the last noise draw it also contains secret.key. A file lock admits one process at a time. A finished
stage stays finished, because the job, the domain and the plan in the directory never change; each process reads them
once. The manifest is cached in memory, written through, and read again when another process has changed it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

import tomli_w

from dpscale.base.errors import DpscaleError, JobError
from dpscale.base.numerics import ParallelMap, serial_map
from dpscale.domain import Domain
from dpscale.job import Job
from dpscale.job.sections import SynthesizeTable, with_old_names
from dpscale.measurement import MeasurementStore
from dpscale.mechanisms.contract import PlanningProblem
from dpscale.plans.measurement_plan import MeasurementPlan
from dpscale.privacy.secret import SecretFile, read_secret, secret_tag
from dpscale.records.origin import Origin
from dpscale.runs.create import (
    create_directory,
    creation_errors,
    latest_directory,
    next_directory,
    resolve_path,
    unmeasured_stage,
)
from dpscale.runs.manifest import (
    MANIFEST,
    ManifestCache,
    check_version,
    disk_errors,
    first_manifest,
    output_digest,
    parse_row_settings,
    stage_output,
)
from dpscale.runs.stages import Stage
from dpscale.storage.files import is_local, present, read_bytes, store_errors, write_whole
from dpscale.storage.lock import free, locked
from dpscale.workload import Workload

FINISHED, ABANDONED = "finished", "abandoned"
FirstUnfinished = Callable[[Path], str]
Preflight = Callable[[Job, Domain, Workload], object]
# defaults that every digest includes, also that of a job that omits them
EXPLICIT_DEFAULTS = {"errors": "auto", "agree": False}


class Run:
    """An existing run directory; `create` makes one for a job or reopens that of an earlier run."""

    frame: object = None  # the data, if a call passes them as a frame
    created = ""  # created by this call: "folder", or "files" in an existing folder

    def __init__(self, path: str | Path, known: tuple[Job, Domain] | None = None) -> None:
        """Open a run directory.

        Parameters
        ----------
        path : the run directory.
        known : job and domain of the directory, if this process has just written them; otherwise its files are read.

        Raises
        ------
        JobError : `path` is not a run directory, is one of several tables, or its job or domain file was edited.
        """
        self.path = resolve_path(path)
        with disk_errors(self.path), store_errors(self.path):
            if not present(self.path / MANIFEST):
                raise JobError("run directory", f"{self.path} is not one",
                               "a directory that `dpscale run` or `dpscale plan --run-dir` created",
                               "check the path")  # fmt: skip
            self._manifest_cache = ManifestCache(self.path)
            if self.manifest.get("kind"):
                got = f"{self.path} is the run of several tables"
                raise JobError("run directory", got, "the run of one table, for example a folder in tables/",
                               "run its job again to resume it, or open it as a DatabaseRelease")  # fmt: skip
            check_version(self.path, self.manifest)
            self.job, self.domain = known or (
                Job.read(self.path / "job.toml", stored=True),
                Domain.read(self.path / "domain.toml"),
            )
            if self.manifest["job_sha256"] != job_digest(self.job, self.domain):
                raise JobError("run directory", f"job.toml or domain.toml in {self.path} was edited",
                               "the files as the run wrote them (memory and scheduler may change)",
                               "restore them, or start a new run with your job")  # fmt: skip

    @classmethod
    def create(cls, job: Job, path: str | Path | None = None, fresh: bool = False,
               first_unfinished: FirstUnfinished = unmeasured_stage,
               preflight: Preflight | None = None) -> Run:  # fmt: skip
        """Create the run directory of a job, or reopen it.

        Parameters
        ----------
        job : the job.
        path : the directory. By default it is runs/ plus the first digits of the job's digest, and the latest run of
            the job is reopened.
        fresh : create another directory next to the existing one.
        first_unfinished : returns the first unfinished stage of a run directory, which prevents a fresh one; "" if
            there is none.
        preflight : checks of job, domain and workload that run before a directory is created.
        """
        domain = job.read_domain()
        workload = job.build_workload(domain)
        digest = job_digest(job, domain)
        base = resolve_path(path if path is not None else Path("runs") / digest[:12])
        with store_errors(base), creation_errors(base):
            where, number = _place(base, digest, first_unfinished if fresh else None, named=path is not None)
            if (new := not present(where / MANIFEST)) and preflight is not None:
                preflight(job, domain, workload)
            found = is_local(where) and where.is_dir()
            created = new and create_directory(where, _first_files(job, domain, digest, number))
        run = cls(where, (job, domain)) if created else cls._reopened(where, digest, job.synthesize)
        vars(run).update(workload=workload, created=("files" if found else "folder") if created else "")
        return run

    @classmethod
    def _reopened(cls, where: Path, digest: str, rows: SynthesizeTable | None) -> Run:
        run = cls(where)
        if run.manifest["job_sha256"] != digest:
            raise JobError("run directory", f"{where} contains another job", "the directory of this job, or a new one",
                           "choose another --run-dir")  # fmt: skip
        if rows not in (None, run.synthesis):
            with run.locked():
                run.request_rows(rows)
        return run

    @property
    def manifest(self) -> dict[str, Any]:
        """A copy of the manifest: identity and progress of the run. Use `update` to change it."""
        return self._manifest_cache.read()

    def update(self, **changes: object) -> None:
        """Change entries of the manifest."""
        self._manifest_cache.write(self.manifest | changes)

    @property
    def ended(self) -> dict[str, Any] | None:
        """How and when `dpscale end` ended the run; None if it did not."""
        ended: dict[str, Any] | None = self.manifest.get("ended")
        return ended

    @property
    def secret_path(self) -> Path:
        return self.path / "secret.key"

    @property
    def secret(self) -> SecretFile:
        """Path and public tag of the noise key."""
        return SecretFile(self.secret_path, self.manifest["secret_tag"])

    @property
    def measurements_path(self) -> Path:
        return self.path / "measurements"

    @cached_property
    def workload(self) -> Workload:
        return self.job.build_workload(self.domain)

    @cached_property
    def planning_problem(self) -> PlanningProblem:
        """The planning problem: workload, budget and privacy unit of the job.

        A charged run has the budget of its charge, even if a later version converts epsilon and delta differently.
        """
        problem, charged = self.job.planning_problem(self.workload), self.manifest["privacy"] or {}
        if "budget" not in charged:
            return problem
        return replace(problem, budget=replace(problem.budget, amount=float(Fraction(charged["budget"]))))

    @cached_property
    def measurement_plan(self) -> MeasurementPlan:
        """The measurement plan that the plan stage wrote."""
        measurement_plan = self.job.method.read(self.path / "plan", self.planning_problem, self.job.options)
        if measurement_plan.noise != self.job.privacy.noise:
            raise JobError("run directory", "the noise of its plan differs from that of its job",
                           "the plan as the run wrote it", "start a new run")  # fmt: skip
        return measurement_plan

    def check_plan(self) -> None:
        """Raise JobError if nothing was charged yet and the stored plan does not follow from the job."""
        follows = self.job.method.follows
        if self.manifest["privacy"] is None and not follows(
            self.measurement_plan, self.planning_problem, self.job.options
        ):
            raise JobError("run directory", f"the plan in {self.path / 'plan'} does not follow from the job",
                           "the plan as the run wrote it", "start a new run")  # fmt: skip

    @property
    def synthesis(self) -> SynthesizeTable | None:
        """Settings of the synthetic rows, from the job or from a later request.

        Rows are post-processing, so their settings may change without cost.
        """
        since = self.manifest.get("synthesize")
        return self.job.synthesize if since is None else parse_row_settings(self.path, since)

    def request_rows(self, settings: SynthesizeTable) -> None:
        """Change the settings of the synthetic rows; rows made with other settings become outdated."""
        if self.synthesis != settings:
            stages = {name: entry for name, entry in self.manifest["stages"].items() if name != "synthesize"}
            self.update(synthesize=settings.model_dump(), stages=stages)

    def write_plan(self, measurement_plan: MeasurementPlan) -> None:
        """Write the plan and cache it in this object."""
        measurement_plan.write(self.path / "plan")
        vars(self)["measurement_plan"] = measurement_plan

    @property
    def measurements(self) -> MeasurementStore:
        """The measurements of this release.

        Raises JobError if the measure stage has not recorded a snapshot of the data yet.
        """
        manifest = self.manifest
        if manifest["snapshot"] is None:
            raise self._undone("measure")
        return self.open_measurements(manifest["release"], manifest["snapshot"])

    def open_measurements(self, release: str, snapshot: str) -> MeasurementStore:
        """Return the measurements of a release id and a snapshot of the data; cached."""
        if (release, snapshot) not in self._releases:
            rows, folder = self.planning_problem.rows_per_unit, self.measurements_path
            opened = MeasurementStore(folder, release, snapshot, self.measurement_plan, rows, self.read_matching_key)
            self._releases[release, snapshot] = opened
        return self._releases[release, snapshot]

    @cached_property
    def _releases(self) -> dict[tuple[str, str], MeasurementStore]:
        return {}

    def read_matching_key(self) -> bytes | None:
        """Return the noise key if it is present and matches the manifest's tag; another key would draw fresh noise."""
        if not present(self.secret_path):
            return None
        secret = read_secret(self.secret_path)
        return secret if secret_tag(secret) == self.manifest["secret_tag"] else None

    def done(self, stage: str) -> bool:
        """Return whether a stage is done and its output still exists."""
        entry = self.manifest["stages"].get(stage, {})
        return entry.get("state") == "done" and present(self.path / stage_output(stage, entry)[1])

    def states(self, driven: bool = False) -> dict[str, str]:
        """Return the state of every started stage: running, done, failed, cancelled or stopped.

        A stage whose process no longer exists is stopped. Set `driven` if a driver on another machine is known to
        run, because locks of some file systems are not visible to other machines.
        """
        states = {name: str(stage["state"]) for name, stage in self.manifest["stages"].items()}
        if "running" in states.values() and not driven and free(self.path):
            states = {name: "stopped" if state == "running" else state for name, state in states.items()}
        return states

    def require(self, stage: str) -> None:
        """Raise JobError unless the stage is done."""
        if not self.done(stage):
            self.check_open(stage)
            raise self._undone(stage)

    def check_open(self, stage: str) -> None:
        """Raise JobError if the run was abandoned before this stage was done."""
        ended = self.ended
        if ended and ended["how"] == ABANDONED:
            got = f"{self.path} was ended on {ended['at'][:10]}, before stage {stage} was done"
            raise JobError("run directory", got, "a run that was not ended",
                           "start a new run with --fresh, which is a new release")  # fmt: skip

    def _undone(self, stage: str) -> JobError:
        return JobError("run directory", f"stage {stage} is not done", "a run whose earlier stages are done",
                        f"run `dpscale {stage} {self.path}` first")  # fmt: skip

    @contextmanager
    def record_stage(self, stage: Stage, each: ParallelMap = serial_map) -> Iterator[None]:
        """Mark a stage as running, then as done with the hash of its files; on an error as failed or stopped.

        `each` is the parallel map that hashes the files.
        """
        self._mark(stage.name, start=now(), state="running", end=None)
        try:
            yield
        except BaseException as error:
            with suppress(OSError, DpscaleError):  # for example on a full disk; the original error is raised
                self._mark(stage.name, end=now(), state=_state_after(error))
            raise
        digest = output_digest(self.path, self.path / stage.folder, each)
        self._mark(stage.name, end=now(), state="done", sha256=digest, folder=stage.folder, leaves=stage.leaves)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the directory for this process and read the manifest again.

        Raises TransientError if another process works in the directory.
        """
        with locked(self.path):
            self._manifest_cache.forget()
            yield

    def _mark(self, stage: str, **changes: object) -> None:
        manifest = self.manifest
        manifest["stages"].setdefault(stage, {}).update(changes)
        self._manifest_cache.write(manifest)
        self._log(json.dumps({"time": now(), "stage": stage, "state": changes.get("state")}) + "\n")

    def _log(self, line: str) -> None:
        path = self.path / "log.jsonl"
        if is_local(path):
            with open(path, "a") as log:
                log.write(line)
        else:  # objects of a store cannot be appended to
            write_whole(path, (read_bytes(path) if present(path) else b"") + line.encode())


def job_digest(job: Job, domain: Domain) -> str:
    """Return the digest that identifies a job: all settings except scheduler, memory and synthetic rows."""
    content = with_old_names(job.to_dict())
    for setting in ("scheduler", "memory"):
        content["engine"].pop(setting, None)
    content.pop("synthesize", None)
    content["reconstruct"] = EXPLICIT_DEFAULTS | content["reconstruct"]
    text = json.dumps([content, domain.digest], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _place(base: Path, digest: str, first_unfinished: FirstUnfinished | None, named: bool) -> tuple[Path, int]:
    """Return the directory and its number among those of a job; `first_unfinished` is given for a fresh one."""
    if first_unfinished:
        return next_directory(base, digest, first_unfinished)
    return (base, 1) if named else latest_directory(base, digest)


def _first_files(job: Job, domain: Domain, digest: str, number: int) -> dict[str, bytes]:
    """Return the initial files of a run, the manifest last."""
    return {
        "domain.toml": tomli_w.dumps(domain.to_dict()).encode(),
        "job.toml": tomli_w.dumps(job.to_dict()).encode(),
        MANIFEST: json.dumps(first_manifest(job, digest, number, domain.reviewed), indent=2).encode(),
    }


def _state_after(error: BaseException) -> str:
    """Return the state of a stage that ended with an error; an interrupt or `cancel` means stopped, not failed."""
    return "stopped" if isinstance(error, KeyboardInterrupt) else str(getattr(error, "state", "failed"))


def now() -> str:
    """Return the current UTC time in the format of manifests and logs."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def origin_of(run: Run) -> Origin:
    """Return the origin of the data; a versioned table is read at the version with which the run started."""
    origin, table = run.job.data.origin, run.manifest.get("table")
    return replace(origin, version=table["version"]) if table and origin.format else origin
