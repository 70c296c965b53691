"""The run directory: everything that a stage needs and everything that it leaves.

    job.toml  domain.toml  manifest.json  plan/  measurements/  answers/  report.html  log.jsonl

and, from the first draw to the last, secret.key. One process at a time works in it (a file lock); a stage that is
done is done for good, since the job, the domain and the plan in it never change.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import tomli_w

from dpscale.adaptive.plan import AdaptivePlan
from dpscale.domain import Domain
from dpscale.errors import DpscaleError, JobError
from dpscale.runs.hashes import digest_left, disk_errors
from dpscale.storage.lock import free, locked
from dpscale.runs.making import make, making
from dpscale.runs.manifest import MANIFEST, first_manifest, read_manifest
from dpscale.stages.methods import is_adaptive, plan_of
from dpscale.plans.planfile import check_adaptive, read_plan
from dpscale.job import Job
from dpscale.storage.files import is_local, place, present, read_bytes, store_errors, write_whole
from dpscale.mechanisms import Plan

LEAVES = {
    "plan": "plan/plan.json",
    "measure": "measurements",
    "reconstruct": "answers/index.json",
    "report": "report.html",
}


class RunDirectory:
    """A run directory that exists. `create` makes one for a job, or reopens the one that the job began."""

    def __init__(self, path: str | Path) -> None:
        self.path = _resolved(path)
        with disk_errors(self.path), store_errors(self.path):
            self._read()

    def _read(self) -> None:
        if not present(self.path / MANIFEST):
            raise JobError(
                "run directory",
                f"{self.path} is not one",
                "a directory that `dpscale run` or `dpscale plan --run-dir` made",
                "check the path",
            )
        self.job = Job.read(self.path / "job.toml")
        self.domain = Domain.read(self.path / "domain.toml")
        if self.manifest["job_sha256"] != job_digest(self.job, self.domain):
            raise JobError(
                "run directory",
                f"job.toml or domain.toml in {self.path} was edited",
                "the files as the run wrote them (memory and scheduler may change)",
                "restore them, or start a new run with your job",
            )

    @classmethod
    def create(cls, job: Job, path: str | Path | None = None) -> RunDirectory:
        """Make the directory of a job (default: runs/ and the job's digest), or reopen it."""
        domain = job.read_domain()
        job.build_workload(domain)
        digest = job_digest(job, domain)
        where = _resolved(path if path is not None else Path("runs") / digest[:12])
        with store_errors(where), making(where):
            made = not present(where / MANIFEST) and make(where, _first_files(job, domain, digest))
        return cls(where) if made else cls._reopened(where, digest)

    @classmethod
    def _reopened(cls, where: Path, digest: str) -> RunDirectory:
        found = cls(where)
        if found.manifest["job_sha256"] != digest:
            raise JobError(
                "run directory",
                f"{where} holds another job",
                "the directory of this job, or a new one",
                "choose another --run-dir",
            )
        return found

    @property
    def manifest(self) -> dict[str, Any]:
        return read_manifest(self.path)

    def update(self, **changes: Any) -> None:
        """Change entries of the manifest."""
        write_whole(self.path / MANIFEST, json.dumps(self.manifest | changes, indent=2).encode())

    @property
    def secret_path(self) -> Path:
        return self.path / "secret.key"

    @property
    def measurements_path(self) -> Path:
        return self.path / "measurements"

    def plan(self) -> Plan | AdaptivePlan:
        """The plan of a planned run."""
        if is_adaptive(self.job):
            return check_adaptive(self.path / "plan", plan_of(self.job, self.domain))
        return read_plan(self.path / "plan", self.job.build_workload(self.domain))

    def done(self, stage: str) -> bool:
        """Whether a stage is done and what it left is still there; what was removed can be made again, if at all."""
        return self.manifest["stages"].get(stage, {}).get("state") == "done" and present(self.path / LEAVES[stage])

    def states(self, driven: bool = False) -> dict[str, str]:
        """The state of every stage begun: running, done, failed, or stopped where its process is gone.

        `driven`: a driver elsewhere is known to be at work, which not every disk's locks tell.
        """
        found = {name: str(stage["state"]) for name, stage in self.manifest["stages"].items()}
        if "running" in found.values() and not driven and free(self.path):
            found = {name: "stopped" if state == "running" else state for name, state in found.items()}
        return found

    def require(self, stage: str) -> None:
        """JobError unless an earlier stage is done."""
        if not self.done(stage):
            raise JobError(
                "run directory",
                f"stage {stage} is not done",
                "a run whose earlier stages are done",
                f"run `dpscale {stage} {self.path}` first",
            )

    @contextmanager
    def stage(self, name: str, folder: str) -> Iterator[None]:
        """Mark a stage as running, then done with the hash of its files; on an error, as failed."""
        self._mark(name, start=_now(), state="running", end=None)
        try:
            yield
        except BaseException:
            with suppress(OSError, DpscaleError):  # as on a full disk, which the error then tells of
                self._mark(name, end=_now(), state="failed")
            raise
        self._mark(name, end=_now(), state="done", sha256=digest_left(self.path, self.path / folder))

    def locked(self) -> AbstractContextManager[None]:
        """One process at a time; TransientError when another is at work here."""
        return locked(self.path)

    def _mark(self, stage: str, **changes: Any) -> None:
        manifest = self.manifest
        manifest["stages"].setdefault(stage, {}).update(changes)
        write_whole(self.path / MANIFEST, json.dumps(manifest, indent=2).encode())
        self._log(json.dumps({"time": _now(), "stage": stage, "state": changes.get("state")}) + "\n")

    def _log(self, line: str) -> None:
        path = self.path / "log.jsonl"
        if is_local(path):
            with open(path, "a") as log:
                log.write(line)
        else:  # what is in a store cannot be added to
            write_whole(path, (read_bytes(path) if present(path) else b"") + line.encode())


def job_digest(job: Job, domain: Domain) -> str:
    """What makes two runs the same job: everything but where and in how much memory it runs."""
    content = job.to_dict()
    for setting in ("scheduler", "memory"):
        content["engine"].pop(setting, None)
    text = json.dumps([content, domain.digest], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _resolved(path: str | Path) -> Path:
    """Where a path leads, also one over links that lead nowhere yet."""
    where = place(path)
    return Path(os.path.realpath(where)) if is_local(where) else where


def _first_files(job: Job, domain: Domain, digest: str) -> dict[str, bytes]:
    """What a run begins with, the manifest last."""
    return {
        "domain.toml": tomli_w.dumps(domain.to_dict()).encode(),
        "job.toml": tomli_w.dumps(job.to_dict()).encode(),
        MANIFEST: json.dumps(first_manifest(job, digest), indent=2).encode(),
    }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
