"""Run of one table: the inputs and outputs of its stages.

    job.toml  domain.toml  manifest.json  domain/  plan/  measurements/  answers/  report.html  log.jsonl

If the domain has cells that are not public, domain/ contains the domain with the cells that a search has found. From
the first to the last noise draw there is also secret.key. The job, the domain and the plan in the directory never
change; each process reads them once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import tomli_w

from dpscale.base.errors import JobError
from dpscale.domain import Domain
from dpscale.job import Job
from dpscale.job.digest import job_digest
from dpscale.privacy.protection import Protection
from dpscale.runs.earlier import refined_digest
from dpscale.runs.manifest import MANIFEST, first_manifest
from dpscale.runs.preflight import check_preflight
from dpscale.runs.run import NewRun, Run
from dpscale.runs.stage import STAGES, TABLE_STAGES, Stage, stages_of_run
from dpscale.runs.stored_job import JOB_FILE, read_stored
from dpscale.runs.table import TablePart, job_entries


class OneTable:
    """Content of the run of a job of one table: the part "data", whose files are in the run directory itself."""

    pair_tables: tuple[str, ...] = ()
    links: Sequence[Any] = ()
    periods: Sequence[str] = ()
    table: Any

    def __init__(self, run: Run, inputs: tuple[Any, ...] = ()) -> None:
        workload = None
        if inputs:
            job, declared, workload = inputs
        else:
            job = read_stored(run.path, run.manifest)
            declared = Domain.read(run.path / "domain.toml")
        self.job: Job = job
        digest = job_digest(job, declared, run.manifest.get("job_version", 1))
        if run.manifest["job_sha256"] != refined_digest(digest, run.manifest.get("refines")):
            raise JobError("run directory", f"job.toml or domain.toml in {run.path} was edited",
                           "the files as the run wrote them (memory and scheduler may change)",
                           "restore them, or start a new run with your job")  # fmt: skip
        self.table = TablePart(run, "data", job.table, declared)
        if workload is not None and not declared.searches:
            vars(self.table)["workload"] = workload

    @classmethod
    def prepare(cls, job: Job) -> NewRun:
        domain = job.table.read_domain()
        workload, digest = job.table.build_workload(domain), job_digest(job, domain)
        earlier = job_digest(job, domain, 1)
        return NewRun(digest, lambda number: _first_files(job, domain, earlier, number), (domain, workload), (earlier,))

    @classmethod
    def preflight(cls, job: Job, inputs: tuple[Any, ...]) -> None:
        check_preflight(job.table, *inputs)

    is_complete = True

    @property
    def stages(self) -> Mapping[str, Stage]:
        """Stages of the run: those of its table, and registered ones."""
        outputs = {name: (STAGES[name].folder, STAGES[name].leaves) for name in TABLE_STAGES}
        return STAGES | stages_of_run(outputs)

    def begin(self) -> None:
        """Decide nothing: a job of one table leaves nothing open."""

    def file_stamps(self) -> list[Any]:
        return []

    def reopen(self, job: Job) -> None:
        """Take over limits, which may change until they determine a plan."""
        engine = self.job.engine if self.table.done("plan") else job.engine
        self.job = job.model_copy(update={"engine": engine})
        self.table.reopen(self.job.table)

    @property
    def tables(self) -> Mapping[str, TablePart]:
        return {"data": self.table}

    @cached_property
    def parts(self) -> Mapping[str, TablePart]:
        return {self.table.name: self.table}

    def part_at(self, folder: str) -> TablePart | None:
        return None if folder else self.table

    @property
    def joins(self) -> Mapping[str, Any]:
        return {}

    @property
    def protects(self) -> Protection:
        found: Protection = self.table.protects
        return found

    @property
    def steps(self) -> Mapping[str, int]:
        return {"data": 1}

    @property
    def amount(self) -> float:
        """Budget of the measurements, squared μ or ε."""
        return float(self.table.job.row_budget(self.table.declared).amount)

    @property
    def public_domains(self) -> Mapping[str, Domain]:
        return {}

    @property
    def declared_domains(self) -> Sequence[Domain]:
        """Domains of the private tables as the job states them."""
        return [self.table.declared]

    @property
    def domain_file(self) -> str | None:
        file: str = self.table.domain_file
        return file

    @property
    def data_paths(self) -> list[str]:
        return [self.table.job.data.path]

    def changed_data(self) -> dict[str, list[str]]:
        return self.table.changed_data()

    def open_data(self) -> Mapping[str, Any]:
        return self.table.open_data()

    @property
    def uses_footers(self) -> bool:
        """Whether the content of a file is that of its footer."""
        return self.table.uses_footers

    def read_synthetic(self, read: Callable[..., Any]) -> Any:
        return self.table.read_synthetic(read)


def _first_files(job: Job, domain: Domain, digest: str, number: int) -> dict[str, bytes]:
    """Return the initial files of a run, the manifest last."""
    manifest = first_manifest(job.engine.seed, digest, number, **job_entries(job.table, domain))
    return {
        **domain.to_files(),
        JOB_FILE: tomli_w.dumps(job.to_dict()).encode(),
        MANIFEST: json.dumps(manifest, indent=2).encode(),
    }
