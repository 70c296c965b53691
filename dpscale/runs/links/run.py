"""Run directory of several tables.

    job.toml  manifest.json  tables/NAME/ (a run each)  links/NAME/  synthetic/NAME/  report.html

secret.key exists from the first draw to the last.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import tomli_w

from dpscale.base.errors import JobError
from dpscale.domain import Domain
from dpscale.job.neighbours import NeighbourRelation, neighbour_relation, table_job
from dpscale.job.sections import with_old_names
from dpscale.job.tables import MultiTableJob, TableSection
from dpscale.records import Table
from dpscale.records.origin import Layout, differing, layout
from dpscale.runs.directory import NewRun, RunDirectory
from dpscale.runs.manifest import MANIFEST, OUTPUTS_OF_TABLES, first_manifest
from dpscale.runs.run import Run
from dpscale.runs.stages import STAGES as TABLE_STAGES
from dpscale.storage.files import present, read_text

Files = TableSection | str  # a table of pairs is a path
NO_DOMAIN = Domain({"links": 2})  # for files of which only keys are read


def open_table(files: Files, domain: Domain = NO_DOMAIN) -> Table:
    """Return the table of the files, with large files split into partitions."""
    return Table.open(files, domain).split() if isinstance(files, str) else files.origin.table(files.path, domain)


def latest_versions(job: MultiTableJob) -> dict[str, int]:
    """Return the latest version of every versioned table for which the job states none."""
    unversioned = {name: one for name, one in job.tables.items() if one.lake and one.version is None}
    return {name: one.origin.lake(one.path).version for name, one in unversioned.items()}


def at_versions(job: MultiTableJob, versions: Mapping[str, int]) -> MultiTableJob:
    """Return the job with these versions of some tables."""
    tables = {name: one.model_copy(update={"version": versions[name]}) if name in versions else one
              for name, one in job.tables.items()}  # fmt: skip
    return job.model_copy(update={"tables": tables}) if versions else job


KIND = "database"
INDEX = "_tables.json"
STAGES = {
    name: replace(stage, folder=OUTPUTS_OF_TABLES[name][0], leaves=OUTPUTS_OF_TABLES[name][1], enabled_by="",
                  module=f"dpscale.runs.links.stages:{name}")
    for name, stage in TABLE_STAGES.items()
}  # fmt: skip


class MultiTableRun(RunDirectory):
    """Existing run directory of several tables. `create` makes one for a job, or reopens it."""

    job: MultiTableJob
    stages = STAGES

    def _load(self, inputs: tuple[Any, ...]) -> None:
        if self.manifest.get("kind") != KIND:
            raise JobError("run directory", f"{self.path} is not a run of several tables",
                           "a run directory of a multi-table job", "check the path")  # fmt: skip
        job = MultiTableJob.read(self.path / "job.toml", stored=True)
        if self.manifest["job_sha256"] != digest_of(job):
            raise JobError("run directory", f"job.toml in {self.path}, or a domain file, was changed",
                           "the original files", "restore them, or start a new run with the changed job")  # fmt: skip
        self.job = at_versions(job, self.manifest.get("at", {}))

    @classmethod
    def _prepare(cls, job: MultiTableJob) -> NewRun:
        neighbour_relation(job)
        digest = digest_of(job)
        return NewRun(digest, lambda number: _first_files(job, digest, number))

    def _reopen(self, job: MultiTableJob) -> None:
        """Do nothing: the settings of rows are part of the job's digest."""

    def pin_versions(self) -> None:
        """Record the latest version of versioned tables, so that later reads use it."""
        if "at" not in self.manifest and (found := latest_versions(self.job)):
            self.update(at=found)
            self.job = at_versions(self.job, found)

    def read_synthetic(self, read: Callable[[list[str]], Any]) -> Any:
        folder = self.path / "synthetic"
        files: dict[str, list[str]] = json.loads(read_text(folder / INDEX))
        return {name: read([str(folder / one) for one in own]) for name, own in files.items()}

    @property
    def data_paths(self) -> list[str]:
        return [one.path for one in self.job.tables.values()] + [one.via for one in self.job.link if one.via]

    def changed_data(self) -> dict[str, list[str]]:
        known, found = self.manifest.get("data") or {}, self.layouts()
        pairs = {name: (before, found.get(name)) for name, before in known.items()}
        changed = {name: differing(before, now) for name, (before, now) in pairs.items() if before and now}
        return {f"{name}.{'via' if name.startswith('link') else 'path'}": one for name, one in changed.items() if one}

    def layouts(self) -> dict[str, Layout | None]:
        """Return size, time and number of files, or the version, of every table and table of pairs."""
        found = {f"tables.{name}": _layout(one) for name, one in self.job.tables.items()}
        return found | {f"link {one.called}": layout(one.via) for one in self.job.link if one.via}

    @property
    def pair_tables(self) -> tuple[str, ...]:
        return tuple(one.called for one in self.job.link if one.via)

    @property
    def parts(self) -> Mapping[str, Run]:
        """Runs of the tables that have started."""
        paths = {name: self.path / "tables" / name for name in self.job.tables}
        return {name: Run(path) for name, path in paths.items() if present(path / MANIFEST)}

    @cached_property
    def neighbours(self) -> NeighbourRelation:
        return neighbour_relation(self.job)

    @cached_property
    def tables(self) -> dict[str, Run]:
        """Runs of the private tables."""
        private = [name for name, one in self.job.tables.items() if not one.public]
        return {name: self._create_table(name) for name in private}

    def _create_table(self, name: str) -> Run:
        """Create the run of a table, or reopen it. With a seed, the numbers of runs tell their noise apart."""
        job, number = table_job(self.job, self.neighbours, name, self.path), self.manifest.get("number", 1)
        run = Run.create(job, self.path / "tables" / name, number=number)
        run.measured_together = True
        return run


def _layout(table: TableSection) -> Layout | None:
    """Return the version of a versioned table, otherwise the layout of its files."""
    return {"version": table.version} if table.version is not None else layout(table.path, named=table.dialect.format)


def digest_of(job: MultiTableJob) -> str:
    """Return the digest that identifies a job: all settings except scheduler and memory."""
    content = with_old_names(job.to_dict())
    for setting in ("scheduler", "memory"):
        content["engine"].pop(setting, None)
    text = json.dumps([content, [one.digest for one in job.domains.values()]], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _first_files(job: MultiTableJob, digest: str, number: int) -> dict[str, bytes]:
    """Return the initial files of a run, the manifest last."""
    manifest = first_manifest(job.engine.seed, digest, number, kind=KIND)
    return {"job.toml": tomli_w.dumps(job.to_dict()).encode(), MANIFEST: json.dumps(manifest, indent=2).encode()}
