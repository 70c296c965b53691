"""Run of one table: the inputs and outputs of its stages.

    job.toml  domain.toml  manifest.json  domain/  plan/  measurements/  answers/  report.html  log.jsonl

If the domain has cells that are not public, domain/ contains the domain with the cells that a search has found. From
the first to the last noise draw there is also secret.key. The job, the domain and the plan in the directory never
change; each process reads them once.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpscale.base.arrow import pq
from dpscale.base.errors import DataError, JobError
from dpscale.base.expressions import former_reading
from dpscale.base.numerics import AttributeSet
from dpscale.contributions.units import Bound
from dpscale.counting.weighted import PeriodWeights
from dpscale.domain import Attribute, Domain
from dpscale.job import Job, TableJob
from dpscale.job.job import job_digest
from dpscale.job.sections import SynthesizeTable, TableSection
from dpscale.job.table_job import SHARE
from dpscale.measurement import MeasurementStore
from dpscale.mechanisms.contract import PlanningProblem
from dpscale.plans.measurement_plan import MeasurementPlan
from dpscale.privacy.accounting import Cost
from dpscale.privacy.protection import Protection
from dpscale.records import Table
from dpscale.records.frames import FRAME
from dpscale.records.origin import Layout, Origin, differing, layout
from dpscale.runs.earlier import refined_digest, with_earlier
from dpscale.runs.manifest import DRAFTED, parse_row_settings, read_stored, versions
from dpscale.runs.run import Content, DrawFacts, Journaled, NewRun, Part, Run
from dpscale.runs.stage import STAGES, TABLE_STAGES, Stage, stages_of_run
from dpscale.storage.files import read_text, write_whole
from dpscale.synthesis.decode import read_column
from dpscale.workload import Workload

if TYPE_CHECKING:
    from dpscale.engine.schedulers import Engine

FOUND_FOLDER = "domain"
LEAST_PAGE = 1 << 23  # bytes of a Parquet page that are always read
UNIT_RECORD, CUT_FILE, DRAWN_UNITS = "units/units.json", "cut.parquet", "units/drawn"
FOUND, SEARCH_FILE = f"{FOUND_FOLDER}/domain.toml", f"{FOUND_FOLDER}/searches.json"
SEARCH_SHARE = "search_share"  # in the manifest, if the counts of the search are the estimates


class TablePart(Part):
    """Table of a run: rows that are counted, their plan and measurements, and the answers from them.

    Attributes
    ----------
    job : TableJob
        Job of the table, with its share of the budget.
    declared : Domain
        Domain of the job, with assumed cells where they are not public.
    frame : object
        The data, if a call passes them as a frame.
    prepared : object
        Rows that are checked before the charge of several tables.
    steps : int
        Number of neighbours of the table that connect two neighbours of the job.
    """

    job: TableJob
    stages = STAGES
    frame: object = None
    prepared: object = None
    steps = 1
    checks_rows = True  # before its first charge; those of several tables are checked together

    def __init__(self, run: Run, name: str, job: TableJob, declared: Domain, folder: str = "") -> None:
        super().__init__(run, name, folder)
        self.job, self.declared = job, declared
        self.job = job.with_search_share(self.manifest.get(SEARCH_SHARE, SHARE))

    def charges(self, entry: str) -> tuple[Cost, object] | None:
        """Return the cost under an entry of the ledger and the terms that it pays for; None if nothing is charged.

        The cost is that to two neighbours of the job, which are `steps` neighbours of the table apart.
        """
        if entry == "privacy":
            plan = self.measurement_plan
            return plan.cost.for_group(self.steps), plan.digest
        stage = {"discovery": "discover", "units": "units"}.get(entry)
        if stage is None or not self.stages[stage].is_enabled(self):
            return None
        cost, records = self.stages[stage].function("terms")(self)
        return cost.for_group(self.steps), records

    def facts_of_draws(self) -> dict[str, Any]:
        from dpscale.runs.statement import table_facts

        return table_facts(self, self.measurement_plan, self.planning_problem.rows_per_unit)

    @property
    def journaled(self) -> list[Journaled]:
        """Numbers of distinct units and of rows that are cut; other values are in a `MeasurementStore`."""
        if not self.requests("unit_counts"):
            return []
        _, records = self.stages["units"].function("terms")(self)
        draws = {str(record["count"]): DrawFacts(str(record["count"])) for record in records}
        return [
            Journaled(
                entry="units", folder=self.path / DRAWN_UNITS, name=lambda label: str(label["count"]), draws=draws
            )
        ]

    @property
    def spent(self) -> Cost:
        """Cost of the measurements, the searches and the numbers of units."""
        if not self.folder:
            return super().spent
        spent = self.measurements.spent
        for name in ("discover", "units"):
            if name in self.stages and self.stages[name].is_enabled(self):
                cost, _ = self.stages[name].function("terms")(self)
                spent += cost
        return spent

    @property
    def release(self) -> str:
        return f"{super().release}.{self.name}" if self.folder else super().release

    @property
    def refines(self) -> Mapping[str, Any] | None:
        """Earlier releases of the same records that the run refines; None if there are none."""
        found: Mapping[str, Any] | None = self.manifest.get("refines")
        return found

    def reopen(self, job: TableJob) -> None:
        """Take over a job whose files may be elsewhere; other settings of synthetic rows become a request."""
        rows, data = job.synthesize, job.data.model_copy(update={"synthesize": self.job.synthesize})
        self.job = replace(job, data=data).with_search_share(self.manifest.get(SEARCH_SHARE, SHARE))
        if rows is not None and rows != self.synthesis:
            with self.run.locked():
                self.request_rows(rows)

    def read_synthetic(self, read: Callable[..., Any]) -> Any:
        """Return the synthetic rows; `read` maps their files and a reader of their columns to rows."""
        folder = self.path / "synthetic"
        files = json.loads(read_text(folder / "_rows.json"))["files"]
        return read([str(folder / name) for name in files], self.row_reader)

    @property
    def compared(self) -> frozenset[str]:
        """Attributes and numbers whose values rules compare."""
        every = (linear for rule in self.domain.value_rules for linear in rule.clause.linear)
        return frozenset(name for linear in every for name in linear.names)

    @property
    def row_reader(self) -> Callable[..., Any]:
        """Reader of the columns of synthetic rows, given their names and their texts in CSV."""
        return partial(read_column, self.domain, self.manifest.get("columns") or {})

    @property
    def protects(self) -> Protection:
        """Privacy unit of the table."""
        return self.job.data.protects

    def changed_data(self) -> dict[str, list[str]]:
        before, now = self.manifest.get("data"), _layout(self.job.data)
        changed = differing(before, now) if before and now else []
        return {"data.path": changed} if changed else {}

    def open_data(self) -> Mapping[str, Table]:
        """Return the table of files and those of the privacy unit; empty for a frame."""
        if self.job.data.path == FRAME:
            return {}
        found = {"data.path": origin_of(self).table(self.job.data.path, self.domain)}
        for number, hop in enumerate(self.job.data.unit_through or [], 1):
            found[f"data.unit_through {number}"] = hop.origin.table(hop.path, self.domain)
        return found

    @property
    def uses_footers(self) -> bool:
        """Whether the content of a file is that of its footer."""
        return self.job.data.snapshot == "footers"

    def plan(self, engine: Engine) -> None:
        if self.folder and not self.done("plan"):
            self.update(mechanism=mechanism_entry(self.job))
        self.perform("plan", engine)

    def measure(self, engine: Engine) -> None:
        self.perform("measure", engine)

    def is_measured(self) -> bool:
        return bool(self.stages["measure"].function("is_drawn")(self))

    def reconstruct(self, engine: Engine) -> None:
        self.perform("reconstruct", engine)

    def synthesize(self, engine: Engine) -> None:
        self.perform("synthesize", engine)

    def report(self, engine: Engine) -> None:
        self.perform("report", engine)

    @property
    def drawn_folders(self) -> list[Path]:
        return [self.measurements_path]

    @property
    def measurements_path(self) -> Path:
        return self.path / "measurements"

    @property
    def domain(self) -> Domain:
        """The domain with the cells that were found; with assumed cells before.

        Reading the found cells forgets the workload, the problem and the plan that were built over assumed ones.
        """
        if not self.declared.searches:
            return self.declared
        if "found" not in vars(self) and self.done("discover"):
            vars(self)["found"] = Domain.read(self.path / FOUND)
            for name in ("workload", "planning_problem", "measurement_plan"):
                vars(self).pop(name, None)
        found: Domain = vars(self).get("found", self.declared)
        return found

    @property
    def domain_file(self) -> str:
        """Path of the domain file of an only table in the run directory, with the cells that were found if they are."""
        return "domain.toml" if self.domain is self.declared else FOUND

    @property
    def unit_counts(self) -> list[AttributeSet] | None:
        """Sets whose distinct units are counted, empty if only the rows that are cut are; None if neither is."""
        workload = self.job.unit_workload(self.domain)
        if workload is None and self.job.cut_budget(self.declared) is None:
            return None
        return [names for part in (workload.parts if workload else ()) for names in part.sets]

    @property
    def unit_files(self) -> dict[AttributeSet, Path]:
        """Files of the numbers of distinct units, by set."""
        recorded = json.loads(read_text(self.path / UNIT_RECORD)) if self.unit_counts else ()
        of_sets = [record for record in recorded if "attributes" in record]  # the other is the number of rows cut
        return {tuple(record["attributes"]): self.path / "units" / record["file"] for record in of_sets}

    @property
    def rows_cut(self) -> tuple[float, float] | None:
        """Estimate of the number of rows beyond the bound of a unit and its standard error; None if not measured."""
        if self.job.cut_budget(self.declared) is None or not self.done("units"):
            return None
        [row] = pq.read_table(self.path / "units" / CUT_FILE, columns=["estimate", "std_error"]).to_pylist()
        return row["estimate"], row["std_error"]

    @property
    def discovery(self) -> Sequence[Attribute] | None:
        """Attributes whose cells are searched; None if all cells are public."""
        return self.declared.searches or None

    @property
    def searched(self) -> dict[str, Any]:
        """Released values of the searches for cells, by attribute; empty if all cells are public."""
        found: dict[str, Any] = json.loads(read_text(self.path / SEARCH_FILE)) if self.discovery else {}
        return found

    @property
    def record_weights(self) -> PeriodWeights | None:
        """Weights of the records by period in a growing table; None if each record counts once."""
        return None

    @property
    def contribution_bound(self) -> Bound:
        """Largest number of counted rows of a privacy unit."""
        return self.job.data.max_rows_per_unit or 1

    @property
    def lookup_tables(self) -> Sequence[Table]:
        """Tables in which rows are looked up."""
        return []

    def content_hash(self, table: Table, engine: Engine) -> str | None:
        """Return a hash of the records in place of that of the files; None to hash the files."""
        return None

    def restrict(self, table: Table, engine: Engine) -> Table:
        """Return the part of the table that is read: all of it."""
        return table

    def write_domain(self, found: Domain) -> None:
        """Write the domain with the cells that were found."""
        for name, content in found.to_files().items():
            write_whole(self.path / FOUND_FOLDER / name, content)

    @property
    def workload(self) -> Workload:
        """Workload over the domain, with the cells that were found if they are."""
        domain = self.domain  # forgets the workload over assumed cells
        if "workload" not in vars(self):
            checked = sys.maxsize if self.is_done("plan") else None  # opening a release does not read limits
            with former_reading(self.run.is_charged):
                vars(self)["workload"] = self.job.build_workload(domain, checked)
        found: Workload = vars(self)["workload"]
        return found

    @cached_property
    def planning_problem(self) -> PlanningProblem:
        """The planning problem: workload, budget and privacy unit of the job.

        A charged run has the budget of its charge, even if a later version converts epsilon and delta differently. The
        job of a table of several states its budget itself.
        """
        problem, charged = self.job.planning_problem(self.workload, self.declared), self.manifest["privacy"]
        if charged is None or self.folder:
            return problem
        return replace(problem, budget=replace(problem.budget, amount=float(Fraction(charged["budget"]))))

    @cached_property
    def measurement_plan(self) -> MeasurementPlan:
        """The measurement plan that the plan stage wrote."""
        measurement_plan = self.job.method.read(self.path / "plan", self.planning_problem, self.job.options)
        fixed = measurement_plan.evidence_plan
        if fixed is not None and fixed.noise != self.job.privacy.noise:
            raise JobError("run directory", "the noise of its plan differs from that of its job",
                           "the plan as the run wrote it", "start a new run")  # fmt: skip
        return with_earlier(self, measurement_plan) if self.refines else measurement_plan

    def check_plan(self) -> None:
        """Raise JobError if the table may not be measured with its plan: one of another job or version.

        The ledger compares plan and cost of a charged run, so its plan may come from an earlier version.
        """
        method, recorded = self.job.method, self.manifest.get("mechanism") or {}
        if recorded.get("version", method.version) not in {method.version, *method.resumes}:
            raise JobError("run directory", f"{self.path} was planned by version {recorded['version']} of "
                           f"{method.name}", f"version {method.version}",
                           "resume it with the version of dpscale that its manifest.json names")  # fmt: skip
        charged = self.manifest["privacy"] is not None and not self.folder
        if not charged and not method.follows(self.measurement_plan, self.planning_problem, self.job.options):
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
            raise self.undone("measure")
        return self.open_measurements(self.release, manifest["snapshot"])

    def open_measurements(self, release: str, snapshot: str) -> MeasurementStore:
        """Return the measurements of a release id and a snapshot of the data; cached."""
        if (release, snapshot) not in self._releases:
            rows, folder = self.planning_problem.rows_per_unit, self.measurements_path
            opened = MeasurementStore(
                folder=folder,
                release=release,
                snapshot=snapshot,
                measurement_plan=self.measurement_plan,
                rows_per_unit=rows,
                secret=self.read_matching_key,
            )
            self._releases[release, snapshot] = opened
        return self._releases[release, snapshot]

    @cached_property
    def _releases(self) -> dict[tuple[str, str], MeasurementStore]:
        return {}


def mechanism_entry(job: TableJob) -> dict[str, Any]:
    """Return the entry of a manifest for the mechanism of a job."""
    return {"name": job.method.name, "version": job.method.version}


def job_entries(job: TableJob, domain: Domain) -> dict[str, Any]:
    """Return the entries of a first manifest that follow from the job."""
    entries: dict[str, Any] = {"mechanism": mechanism_entry(job)}
    # with those of other distributions, whose plug-ins the job names
    entries |= {"versions": versions() | job.distributions} if job.distributions else {}
    entries |= {"where": job.data.where} if job.data.where else {}
    entries |= {SEARCH_SHARE: job.search_share(domain)} if job.counting_search(domain) else {}
    return entries | ({"domain": DRAFTED} if domain.reviewed else {})


def _layout(data: TableSection) -> Layout | None:
    """Return the current layout of the data; None if it is not known."""
    if not data.lake:
        return layout(data.path, data.matching, data.dialect.format)
    with suppress(DataError):
        return {"version": data.origin.lake(data.path).version}
    return None


def origin_of(run: TablePart) -> Origin:
    """Return the origin of the data; a versioned table is read at the version with which the run started.

    A page of a Parquet file takes about eight times its size while it is read, by each of at least two workers.
    """
    origin, table = run.job.data.origin, run.manifest.get("table")
    origin = replace(origin, dialect=replace(origin.dialect, most_page=max(run.job.engine.bytes // 16, LEAST_PAGE)))
    return replace(origin, version=table["version"]) if table and origin.format else origin


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
