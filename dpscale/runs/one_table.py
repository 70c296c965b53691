"""Run of one table: the inputs and outputs of its stages.

    job.toml  domain.toml  manifest.json  domain/  plan/  measurements/  answers/  report.html  log.jsonl

If the domain has cells that are not public, domain/ contains the domain with the cells that a search has found. From
the first to the last noise draw there is also secret.key. The job, the domain and the plan in the directory never
change; each process reads them once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpscale.base.errors import JobError
from dpscale.domain import Domain
from dpscale.job import Job
from dpscale.job.digest import job_digest
from dpscale.runs.earlier import refined_digest
from dpscale.runs.run import Content, NewRun, Run
from dpscale.runs.stage import STAGES, TABLE_STAGES, Stage, stages_of_run
from dpscale.runs.stored_job import read_stored
from dpscale.runs.table import TablePart, job_entries
from dpscale.workload import Workload


class OneTable(Content):
    """Content of the run of a job of one table."""

    def __init__(self, run: Run, inputs: tuple[Any, ...] = ()) -> None:
        """Open the only table of a run. `inputs`, if it was created just now, are job, declared and known domain."""
        self.job, declared, known = inputs or (
            read_stored(run.path, run.manifest), Domain.read(run.path / "domain.toml"), None)  # fmt: skip
        digest = job_digest(self.job, declared, run.manifest.get("job_version", 1))
        if run.manifest["job_sha256"] != refined_digest(digest, run.manifest.get("refines")):
            raise JobError("run directory", f"job.toml or domain.toml in {run.path} was edited",
                           "the files as the run wrote them (memory and scheduler may change)",
                           "restore them, or start a new run with your job")  # fmt: skip
        self.table = self.open_table(run, declared, known)

    def open_table(self, run: Run, declared: Domain, workload: Workload | None) -> Any:
        """Return the part of the table, with its workload if that is known."""
        table = TablePart(run=run, name="data", job=self.job.table, declared=declared)
        if workload is not None and not declared.searches:
            vars(table)["workload"] = workload
        return table

    @classmethod
    def prepare(cls, job: Job) -> NewRun:
        """Return what a new run of a job consists of: its files, its entries in the manifest, domain and workload."""
        domain = job.table.read_domain()
        workload = job.table.build_workload(domain)
        return NewRun(
            job=job,
            files=domain.to_files,
            entries=job_entries(job.table, domain),
            domain=domain,
            inputs=(domain, workload),
        )

    @classmethod
    def preflight(cls, job: Job, inputs: tuple[Any, ...]) -> None:
        from dpscale.runs.preflight import check_preflight

        check_preflight(job.table, *inputs)

    @property
    def stages(self) -> Mapping[str, Stage]:  # type: ignore[override]
        """Stages of the run: those of its table, and registered ones."""
        outputs = {name: (STAGES[name].folder, STAGES[name].leaves) for name in TABLE_STAGES}
        return STAGES | stages_of_run(outputs)

    def reopen(self, job: Job) -> None:
        """Take over limits, which may change until they determine a plan."""
        engine = self.job.engine if self.table.done("plan") else job.engine
        self.job = job.model_copy(update={"engine": engine})
        self.table.reopen(self.job.table)
