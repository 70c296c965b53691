"""The run directory: everything that a stage needs and everything that it leaves.

    job.toml  domain.toml  manifest.json  plan/  measurements/  answers/  report.html  log.jsonl

and, from the first draw to the last, secret.key. One process at a time works in it (a file lock); a stage that is
done is done for good, since the job, the domain and the plan in it never change.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tomli_w

from dpscale.adaptive.plan import AdaptivePlan
from dpscale.domain import Domain
from dpscale.errors import JobError, TransientError
from dpscale.jobs.files import digest_files, write_atomic
from dpscale.jobs.methods import is_adaptive, plan_of
from dpscale.jobs.planfile import check_adaptive, read_plan
from dpscale.jobs.spec import Job
from dpscale.select import Plan

PACKAGES = ("dpscale", "dask", "distributed", "numpy", "numba", "pyarrow", "cryptography")
VERSION = 1
LEAVES = {
    "plan": "plan/plan.json",
    "measure": "measurements",
    "reconstruct": "answers/index.json",
    "report": "report.html",
}


class RunDirectory:
    """A run directory that exists. `create` makes one for a job, or reopens the one that the job began."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).resolve()
        if not (self.path / "manifest.json").exists():
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
        place = Path(path) if path is not None else Path("runs") / digest[:12]
        if (place / "manifest.json").exists():
            found = cls(place)
            if found.manifest["job_sha256"] != digest:
                raise JobError(
                    "run directory",
                    f"{place} holds another job",
                    "the directory of this job, or a new one",
                    "choose another --run-dir",
                )
            return found
        _refuse_foreign(place)
        place = place.absolute()
        draft = place.with_name(f".{place.name}.{uuid.uuid4().hex}.new")
        try:
            draft.mkdir(parents=True)
            write_atomic(draft / "domain.toml", tomli_w.dumps(domain.to_dict()).encode())
            write_atomic(draft / "job.toml", tomli_w.dumps(job.to_dict()).encode())
            write_atomic(draft / "manifest.json", json.dumps(_first_manifest(job, digest), indent=2).encode())
        except OSError as error:
            shutil.rmtree(draft, ignore_errors=True)
            reason = error.strerror or "not possible"
            raise JobError(
                "run directory", f"cannot make {place} ({reason})", "a place to write", "choose another --run-dir"
            ) from None
        try:
            os.rename(draft, place)  # whole or not at all, and one of two processes wins
        except OSError:
            shutil.rmtree(draft)
            if not (place / "manifest.json").exists():
                raise
            return cls.create(job, place)  # another process was first
        return cls(place)

    @property
    def manifest(self) -> dict[str, Any]:
        return dict(json.loads((self.path / "manifest.json").read_text()))

    def update(self, **changes: Any) -> None:
        """Change entries of the manifest."""
        write_atomic(self.path / "manifest.json", json.dumps(self.manifest | changes, indent=2).encode())

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
        return self.manifest["stages"].get(stage, {}).get("state") == "done" and (self.path / LEAVES[stage]).exists()

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
            with suppress(OSError):  # as on a full disk, which the error then tells of
                self._mark(name, end=_now(), state="failed")
            raise
        place = self.path / folder
        files = [p for p in place.rglob("*") if p.is_file()] if place.is_dir() else [place]
        self._mark(name, end=_now(), state="done", sha256=digest_files(self.path, files))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One process at a time; TransientError when another is at work here."""
        with open(self.path / ".lock", "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise TransientError(
                    "run directory", f"another process works in {self.path}", "one at a time", "wait for it to end"
                ) from None
            yield

    def _mark(self, stage: str, **changes: Any) -> None:
        manifest = self.manifest
        manifest["stages"].setdefault(stage, {}).update(changes)
        write_atomic(self.path / "manifest.json", json.dumps(manifest, indent=2).encode())
        with open(self.path / "log.jsonl", "a") as log:
            log.write(json.dumps({"time": _now(), "stage": stage, "state": changes.get("state")}) + "\n")


def job_digest(job: Job, domain: Domain) -> str:
    """What makes two runs the same job: everything but where and in how much memory it runs."""
    content = job.to_dict()
    for setting in ("scheduler", "memory"):
        content["engine"].pop(setting, None)
    text = json.dumps([content, domain.digest], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _refuse_foreign(place: Path) -> None:
    if place.exists() and (not place.is_dir() or os.listdir(place)):
        raise JobError(
            "run directory",
            f"{place} is there and is no run directory",
            "a new or empty directory",
            "choose another --run-dir",
        )


def _first_manifest(job: Job, digest: str) -> dict[str, Any]:
    seed = job.engine.seed
    release = uuid.uuid4().hex if seed is None else f"seed{seed}-{digest[:24]}"
    return {
        "version": VERSION,
        "release": release,
        "private": seed is None,
        "job_sha256": digest,
        "versions": {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
        "snapshot": None,
        "secret": None,
        "privacy": None,
        "stages": {},
    }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
