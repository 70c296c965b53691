"""Run directory of several tables.

    job.toml  manifest.json  tables/NAME/ (a run each)  links/NAME/  synthetic/NAME/  report.html

secret.key exists from the first draw to the last.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import tomli_w

from dpscale.base.errors import JobError
from dpscale.domain import Domain
from dpscale.job.sections import with_old_names
from dpscale.multitable.job import DatabaseJob, TableSection
from dpscale.multitable.privacy_unit import NeighbourRelation, neighbour_relation, table_job
from dpscale.privacy.secret import read_secret, secret_tag
from dpscale.records import Table
from dpscale.runs.create import create_directory, creation_errors
from dpscale.runs.manifest import MANIFEST, VERSION, ManifestCache, check_version, versions
from dpscale.runs.run import Run, now
from dpscale.storage.files import present
from dpscale.storage.lock import free, locked

Files = TableSection | str  # a table of pairs is a path
NO_DOMAIN = Domain({"links": 2})  # for files of which only keys are read


def open_table(files: Files, domain: Domain = NO_DOMAIN) -> Table:
    """Return the table of the files, with large files split into partitions."""
    return Table.open(files, domain).split() if isinstance(files, str) else files.origin.table(files.path, domain)


def latest_versions(job: DatabaseJob) -> dict[str, int]:
    """Return the latest version of every versioned table for which the job states none."""
    unversioned = {name: one for name, one in job.tables.items() if one.lake and one.version is None}
    return {name: one.origin.lake(one.path).version for name, one in unversioned.items()}


def at_versions(job: DatabaseJob, versions: Mapping[str, int]) -> DatabaseJob:
    """Return the job with these versions of some tables."""
    tables = {name: one.model_copy(update={"version": versions[name]}) if name in versions else one
              for name, one in job.tables.items()}  # fmt: skip
    return job.model_copy(update={"tables": tables}) if versions else job


KIND = "database"


class DatabaseRun:
    """Existing run directory of several tables. `create` makes one for a job, or reopens it."""

    created = ""  # "folder" if this call created it, "files" if the folder existed

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).resolve()
        self._manifest_cache = ManifestCache(self.path)
        if not is_database_run(self.path):
            raise JobError("run directory", f"{self.path} is not a run of several tables",
                           "a run directory of a multi-table job", "check the path")  # fmt: skip
        check_version(self.path, self.manifest)
        job = DatabaseJob.read(self.path / "job.toml", stored=True)
        if self.manifest["job_sha256"] != digest_of(job):
            raise JobError("run directory", f"job.toml in {self.path}, or a domain file, was changed",
                           "the original files", "restore them, or start a new run with the changed job")  # fmt: skip
        self.job = at_versions(job, self.manifest.get("at", {}))

    @classmethod
    def create(cls, job: DatabaseJob, path: str | Path | None = None) -> DatabaseRun:
        """Create the directory of a job (default: runs/ and the job's digest), or reopen it."""
        neighbour_relation(job)
        digest = digest_of(job)
        where = Path(path if path is not None else Path("runs") / digest[:12]).resolve()
        files = {"job.toml": tomli_w.dumps(job.to_dict()).encode(),
                 MANIFEST: json.dumps(_first(job, digest), indent=2).encode()}  # fmt: skip
        with creation_errors(where):
            found = where.is_dir()
            made = not present(where / MANIFEST) and create_directory(where, files)
        run = cls(where)
        run.created = ("files" if found else "folder") if made else ""
        if run.manifest["job_sha256"] != digest:
            raise JobError(
                "run directory",
                f"{where} contains a different job",
                "the directory of this job, or a new one",
                "choose another --run-dir",
            )
        return run

    @property
    def manifest(self) -> dict[str, Any]:
        return self._manifest_cache.read()

    def update(self, **changes: Any) -> None:
        self._manifest_cache.write(self.manifest | changes)

    def pin_versions(self) -> None:
        """Record the latest version of versioned tables, so that later reads use it."""
        if "at" not in self.manifest and (found := latest_versions(self.job)):
            self.update(at=found)
            self.job = at_versions(self.job, found)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the directory for one process."""
        with locked(self.path):
            self._manifest_cache.forget()
            yield

    @contextmanager
    def record_stage(self, stage: str) -> Iterator[None]:
        """Mark a stage as running, then as done, or as failed if it raised."""
        self._mark(stage, "running")
        try:
            yield
        except BaseException:
            self._mark(stage, "failed")
            raise
        self._mark(stage, "done")

    def _mark(self, stage: str, state: str) -> None:
        stages = self.manifest["stages"]
        stages[stage] = {**stages.get(stage, {}), "state": state, "start" if state == "running" else "end": now()}
        self.update(stages=stages)

    def states(self) -> dict[str, str]:
        """Return the state of every started stage: running, done, failed, or stopped if its process is gone."""
        states = {name: str(stage["state"]) for name, stage in self.manifest["stages"].items()}
        if "running" in states.values() and free(self.path):
            return {name: "stopped" if state == "running" else state for name, state in states.items()}
        return states

    def table_paths(self) -> dict[str, Path]:
        """Return the directories of the tables whose runs have started."""
        paths = {name: self.path / "tables" / name for name in self.job.tables}
        return {name: path for name, path in paths.items() if present(path / MANIFEST)}

    def done(self, stage: str) -> bool:
        return bool(self.manifest["stages"].get(stage, {}).get("state") == "done")

    @cached_property
    def neighbours(self) -> NeighbourRelation:
        return neighbour_relation(self.job)

    @property
    def secret_path(self) -> Path:
        return self.path / "secret.key"

    def secret(self) -> bytes:
        """Return the noise secret of the links; raise JobError if it is not the one with which the release began."""
        secret = read_secret(self.secret_path)
        if secret_tag(secret) != self.manifest["secret_tag"]:
            raise JobError(
                "run directory",
                "its secret differs from the one at the start of the release",
                "the unmodified directory of the run",
                "start a new run, which is a new release",
            )
        return secret

    @cached_property
    def tables(self) -> dict[str, Run]:
        """Runs of the private tables."""
        private = [name for name, one in self.job.tables.items() if not one.public]
        return {
            name: Run.create(table_job(self.job, self.neighbours, name, self.path), self.path / "tables" / name)
            for name in private
        }


def is_database_run(path: str | Path) -> bool:
    """Return whether a directory is a run of several tables."""
    from dpscale.runs.manifest import read_manifest

    with suppress(OSError):  # invalid file names are reported when the directory is opened
        return present(Path(path) / MANIFEST) and read_manifest(Path(path)).get("kind") == KIND
    return False


def digest_of(job: DatabaseJob) -> str:
    """Return the digest that identifies a job: all settings except scheduler and memory."""
    content = with_old_names(job.to_dict())
    for setting in ("scheduler", "memory"):
        content["engine"].pop(setting, None)
    text = json.dumps([content, [one.digest for one in job.domains.values()]], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _first(job: DatabaseJob, digest: str) -> dict[str, Any]:
    seed = job.engine.seed
    release = uuid.uuid4().hex if seed is None else f"seed{seed}-{digest[:24]}"
    return {"version": VERSION, "kind": KIND, "release": release, "private": seed is None, "job_sha256": digest,
            "versions": versions(), "snapshot": None, "secret": None, "privacy": None, "stages": {}}  # fmt: skip
