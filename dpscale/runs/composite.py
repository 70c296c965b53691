"""Run of several components: private tables, each with a run directory of its own, and links between their rows.

    job.toml  manifest.json  domains/NAME/  tables/NAME/ and joins/NAME/ (a run each)  links/NAME/  synthetic/NAME/
    report.html

secret.key exists from the first draw to the last. The total cost of all components is reserved before the first draw.
Before its first draw each component records on the ledger which data it draws from. A second directory that draws
something else under the same charge is refused, like a changed round of an adaptive release.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from fractions import Fraction
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import tomli_w

from dpscale.base.errors import JobError
from dpscale.domain import Domain
from dpscale.job import TableJob
from dpscale.job.allocation import (
    FILE,
    OPEN,
    Divisible,
    allocation_of,
    check_division,
    check_open_bounds,
    expected_job,
    first_amount,
    has_first_measurement,
    stored_allocation,
    with_bounds,
    with_shares,
)
from dpscale.job.join_job import JoinJob, join_jobs
from dpscale.job.joins import CUT
from dpscale.job.link_budget import LinkBudget
from dpscale.job.neighbours import NeighbourRelation, neighbour_relation, table_job, table_jobs
from dpscale.job.places import DIGEST_VERSION, digest_of, versioned
from dpscale.job.public_attributes import public_attributes_of
from dpscale.job.sections import LIMITS, AllocationTable
from dpscale.job.table_checks import check_whole_rows
from dpscale.job.tables import CompositeJob, Rows, TableSection
from dpscale.privacy.accounting import Cost
from dpscale.privacy.protection import Protection
from dpscale.records import Table
from dpscale.records.origin import Layout, differing, layout
from dpscale.runs.component_order import Component, in_order, listed_components
from dpscale.runs.directory import NewRun, Run
from dpscale.runs.joins.run import JoinRun
from dpscale.runs.joint_parts import check_total, joint_parts, protection_fields
from dpscale.runs.manifest import MANIFEST, OUTPUTS_OF_TABLES, check_output, first_manifest, versions
from dpscale.runs.stages import STAGES as TABLE_STAGES, Stage
from dpscale.runs.stages.budget import (
    PARTS,
    Charge,
    charge_release,
    check_recorded_division,
    facts_of_totals,
    open_ledger,
    publish_release,
)
from dpscale.runs.stages.preflight import check_cap, check_unit_memory, check_units
from dpscale.runs.stored_job import DOMAINS, read_stored
from dpscale.runs.table import TableRun
from dpscale.storage.files import present, read_text, write_whole

Files = TableSection | str  # a table of pairs is a path
NO_DOMAIN = Domain({"links": 2})  # for files of which only keys are read


def open_table(files: Files, domain: Domain = NO_DOMAIN) -> Table:
    """Return the table of the files, with large files split into partitions."""
    return Table.open(files, domain).split() if isinstance(files, str) else files.origin.table(files.path, domain)


def latest_versions(job: CompositeJob) -> dict[str, int]:
    """Return the latest version of every versioned table for which the job states none."""
    unversioned = {name: one for name, one in job.tables.items() if one.lake and one.version is None}
    return {name: one.origin.lake(one.path).version for name, one in unversioned.items()}


def at_versions(job: CompositeJob, versions: Mapping[str, int]) -> CompositeJob:
    """Return the job with these versions of some tables."""
    tables = {name: one.model_copy(update={"version": versions[name]}) if name in versions else one
              for name, one in job.tables.items()}  # fmt: skip
    return job.model_copy(update={"tables": tables}) if versions else job


KIND = "database"
FIRST_JOIN = 1 << 19  # number of the first join among the draws that the ledger records, after those of all links
INDEX = "_tables.json"
MEASURED, STARTED, UNMEASURED = "measured", "started", "unmeasured"  # ways of a run to divide its budget
OF_TABLES = {
    name: replace(stage, folder=OUTPUTS_OF_TABLES[name][0], leaves=OUTPUTS_OF_TABLES[name][1],
                  module=f"dpscale.runs.components:{name}")
    for name, stage in TABLE_STAGES.items()
    if name in OUTPUTS_OF_TABLES
}  # fmt: skip
STAGES = {
    "allocate": Stage("allocate", "Divide the budget over tables and links, from a first measurement at a part of it.",
                      "allocation", FILE, "dpscale.runs.links.allocate", spends=True, enabled_by="allocation"),
    **OF_TABLES,
    "measure": replace(OF_TABLES["measure"], needs=(*OF_TABLES["measure"].needs, "allocate")),
}  # fmt: skip


class CompositeRun(Run):
    """Existing run directory of several components. `create` makes one for a job, or reopens it."""

    job: CompositeJob
    job_class = CompositeJob
    stages = STAGES

    def _load(self, inputs: tuple[Any, ...]) -> None:
        if self.manifest.get("kind") != KIND:
            raise JobError("run directory", f"{self.path} is not a run of several tables",
                           "a run directory of a multi-table job", "check the path")  # fmt: skip
        job = self.stated_job
        if self.manifest["job_sha256"] != job_digest(job, self.manifest.get("job_version", 1)):
            raise JobError("run directory", f"job.toml in {self.path}, or a domain file, was changed",
                           "the original files", "restore them, or start a new run with the changed job")  # fmt: skip
        self.job = at_versions(job, self.manifest.get("at", {}))
        if self.is_allocated:
            self._take_allocation()

    @property
    def stated_job(self) -> CompositeJob:
        """The job as it was given, without the division of its budget."""
        job: CompositeJob = read_stored(CompositeJob, self.path, self.manifest)
        return job

    @classmethod
    def _prepare(cls, job: CompositeJob) -> NewRun:
        check_open_bounds(job)
        check_whole_rows(job)
        joins = join_jobs(job, neighbour_relation(job))
        for one in joins.values():
            one.build_workload(one.read_domain())
        digest, earlier = job_digest(job), job_digest(job, 1)
        return NewRun(digest, lambda number: _first_files(job, earlier, number), (), (earlier,))

    @classmethod
    def _preflight(cls, job: CompositeJob, inputs: tuple[Any, ...]) -> None:
        check_cap(job, neighbour_relation(job).protects, job.budget, Fraction(sum(job.search_deltas.values())))
        cells = [check_units(own, job.declared[name]) for name, own in table_jobs(job).items()]
        check_unit_memory(sum(cells), job.engine.bytes, 1)

    @classmethod
    def table_jobs(cls, job: CompositeJob) -> Mapping[str, TableJob]:
        return table_jobs(expected_job(job)[0])

    @classmethod
    def overview(cls, job: CompositeJob) -> dict[str, Any]:
        found: dict[str, Any] = import_module("dpscale.runs.links.planning").summary(job)
        return found

    def _reopen(self, job: CompositeJob) -> None:
        """Read the job again, whose files may have been moved; limits are those of the job until it is planned."""
        self._load(())
        if not self.done("plan"):
            self.job = self.job.model_copy(update={"engine": job.engine})

    def pin_versions(self) -> None:
        """Record the latest version of versioned tables, so that later reads use it."""
        if "at" not in self.manifest and (found := latest_versions(self.job)):
            self.update(at=found)
            self.job = at_versions(self.job, found)

    @property
    def allocation(self) -> AllocationTable | None:
        """Settings of the division of the budget; None if the job or an older version has divided it."""
        return allocation_of(self.job) if self.manifest.get("divides") in (MEASURED, STARTED) else None

    @cached_property
    def allocated(self) -> dict[str, Any]:
        """Division of the budget, once it is decided."""
        return stored_allocation(self.path)

    @property
    def allocated_or_none(self) -> dict[str, Any] | None:
        """Division of the budget; None if it was not planned."""
        return self.allocated if self.is_allocated else None

    @property
    def is_allocated(self) -> bool:
        """Whether the division of the budget is decided."""
        return present(self.path / FILE)

    def record_allocation(self, content: Mapping[str, Any]) -> None:
        """Store the division of the budget; the run has these shares from now on."""
        write_whole(self.path / FILE, json.dumps(content, indent=1).encode())
        self._take_allocation()

    def _take_allocation(self) -> None:
        """Take over the shares and bounds that were decided."""
        check_division(self.job, self.allocated)
        self.job = with_shares(with_bounds(self.job, self.allocated.get("bounds", {})), self.allocated["shares"])
        for name in ("neighbours", "joins", "_join_jobs"):
            vars(self).pop(name, None)

    def divide_without_data(self) -> None:
        """Divide the budget as planned without data, if a stage is called before the stage `allocate`."""
        divides = self.manifest.get("divides")
        if self.allocation is not None and self.done("allocate"):
            check_output(self.path, "allocate", self.manifest["stages"]["allocate"])
        if divides == STARTED and not self.done("allocate"):
            raise self._undone("allocate")
        if divides and not self.is_allocated:
            if opened := [one.called for one in self.job.link if one.max_degree == OPEN]:
                raise JobError(f"link {opened[0]}: max_degree", "not chosen yet", "the stage `allocate` before others",
                               f"run `dpscale run {self.path} --only allocate` first")  # fmt: skip
            self.record_allocation(Divisible(self.job, self.neighbours).divide_by_usual_sizes().to_dict())
            self.update(divides=UNMEASURED)

    def read_synthetic(self, read: Callable[..., Any]) -> Any:
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

    def open_data(self) -> Mapping[str, Table]:
        """Return all tables that the job reads."""
        found = {f"tables.{name}.path": open_table(one, self.job.declared[name])
                 for name, one in self.job.tables.items()}  # fmt: skip
        return found | {f"link {one.called}.via": open_table(one.via) for one in self.job.link if one.via}

    def layouts(self) -> dict[str, Layout | None]:
        """Return size, time and number of files, or the version, of every table and table of pairs."""
        found = {f"tables.{name}": _layout(one) for name, one in self.job.tables.items()}
        return found | {f"link {one.called}": layout(one.via) for one in self.job.link if one.via}

    @property
    def protects(self) -> Protection:
        return self.neighbours.protects

    @property
    def public_domains(self) -> Mapping[str, Domain]:
        return {name: self.job.domains[name] for name, one in self.job.tables.items() if one.public}

    @property
    def steps(self) -> Mapping[str, int]:
        return self.neighbours.steps

    @property
    def links(self) -> Sequence[LinkBudget]:
        return [LinkBudget(self.closed_job, self.neighbours, link) for link in self.job.link]

    @property
    def closed_job(self) -> CompositeJob:
        """The job with the cells that searches have found, for links and reports."""
        return self.job.with_domains({name: table.domain for name, table in self.tables.items()})

    @property
    def synthesis(self) -> Rows:
        """Settings of the synthetic rows, which links require."""
        return self.job.synthesize

    @property
    def discovery(self) -> Sequence[str] | None:
        """Tables whose cells are searched; None if all cells are public."""
        return [name for name, domain in self.job.declared.items() if domain.searches] or None

    @property
    def unit_counts(self) -> Sequence[str] | None:
        """Tables whose distinct units are counted; None if there are none."""
        counted = {name: bool(one.units and one.units.cut) or any(part.count == "units" for part in one.workload or [])
                   for name, one in self.job.tables.items() if not one.public}  # fmt: skip
        return [name for name, own in counted.items() if own] or None

    @property
    def pair_tables(self) -> tuple[str, ...]:
        return tuple(one.called for one in self.job.link if one.via)

    @property
    def parts(self) -> Mapping[str, TableRun]:
        """Runs of the tables and joins that have started."""
        paths = {name: self.path / "tables" / name for name in self.job.tables}
        found = {name: TableRun(path) for name, path in paths.items() if present(path / MANIFEST)}
        joins = {f"joins.{name}": self.path / "joins" / name for name in (*self.job.joined, CUT)}
        return found | {name: JoinRun(path) for name, path in joins.items() if present(path / MANIFEST)}

    @cached_property
    def neighbours(self) -> NeighbourRelation:
        return neighbour_relation(self.job)

    @cached_property
    def tables(self) -> dict[str, TableRun]:
        """Runs of the private tables."""
        private = [name for name, one in self.job.tables.items() if not one.public]
        return {name: self._create_table(name) for name in private}

    @cached_property
    def joins(self) -> dict[str, JoinRun]:  # type: ignore[override]
        return {name: self._create_join(name, job) for name, job in self._join_jobs.items()}

    @cached_property
    def _join_jobs(self) -> Mapping[str, JoinJob]:
        return join_jobs(self.job, self.neighbours, self.path)

    def components(self) -> dict[str, Component]:
        """Return the components by name, each after those it depends on; new objects, with the data of one stage."""
        return in_order(listed_components(self))

    @property
    def cost(self) -> Cost:
        """Total cost of the components, known once they are planned.

        Raises BudgetError if it exceeds the job's budget together with the parts that have an entry of their own.
        """
        cost = Cost.total([one.cost for one in self.components().values()])
        parts = [] if self.allocation is None else [Cost(gaussian=first_amount(self.job)).coarsened()]
        parts += [one.cost for one in joint_parts(self)]
        check_total(self, sum(parts, cost), self.job.budget.amount)
        return cost.coarsened()

    @property
    def spent(self) -> Cost:
        """Cost that was charged: of the components, of all searches and of all numbers of units."""
        entries = [self.manifest.get(name) for name in ("privacy", *PARTS)]
        return Cost.total(Cost.from_dict(entry["cost"]) for entry in entries if entry)

    def charge(self, reserve: bool = True) -> str:
        """Reserve the total cost and return the release's state; a repeated call costs nothing."""
        check_recorded_division(self)
        own = self._entry()
        terms = own["release"], Cost.from_dict(own["cost"]), own["digest"], own["epsilon"], own["delta"]
        recorded = {"dataset": self.job.dataset, **own, **own["protects"]}
        facts = facts_of_totals(one.domain for one in self.tables.values())
        return charge_release(self, Charge(*terms, self.neighbours.protects, facts), recorded, reserve)

    def _entry(self) -> dict[str, Any]:
        """Return the ledger entry of the job; available after all components are planned."""
        plans = [one.plan_digest for one in listed_components(self).values() if one.plan_digest is not None]
        content: list[Any] = [self.manifest["job_sha256"], plans]
        content += [] if self.allocated_or_none is None else [self.allocated]  # determines the draws of links
        protects = self.neighbours.protects
        return {
            "release": self.manifest["release"],
            "cost": self.cost.to_dict(),
            "digest": hashlib.sha256(json.dumps(content).encode()).hexdigest(),
            "epsilon": self.job.privacy.epsilon,
            "delta": self.job.privacy.delta,
            "protects": protection_fields(protects),
        }

    def assign_charges(self) -> None:
        """Record in the run of every table and join the charge under which it draws."""
        pieces = [*enumerate(self.tables.values()), *enumerate(self.joins.values(), FIRST_JOIN)]
        for number, one in pieces:
            within = {**self._entry(), "piece": number, "job": asdict(self.job_entry)}
            if one.manifest.get("within") != within:
                one.update(within=within)

    def record_draws(self, number: int, digest: str) -> None:
        """Record on the ledger a digest of the data and the query of a component's draws, by its number."""
        with open_ledger(self) as ledger:
            ledger.decide(self.manifest["release"], number, digest)

    def publish(self) -> None:
        """Publish the release of all components, once all noise is drawn."""
        publish_release(self, self.manifest["release"], self.charge(), self.drawn_folders)

    @property
    def drawn_folders(self) -> tuple[Path, ...]:
        """Folders with drawn values, except those of the tables' runs."""
        return (*sorted((self.path / "links").glob("*/")), self.path / "links", self.path)

    def _create_table(self, name: str) -> TableRun:
        """Create the run of a table, or reopen it. With a seed, the numbers of runs tell their noise apart."""
        job, number = table_job(self.job, self.neighbours, name, self.path), self.manifest.get("number", 1)
        run = TableRun.create(job, self.path / "tables" / name, number=number)
        self._state_public(run, name)
        run.measured_together = True
        return run

    def _state_public(self, run: TableRun, name: str) -> None:
        """Record in the run of a table or join which attributes of side tables are public, for its report."""
        if (stated := public_attributes_of(self.job, name)) and "public_attributes" not in run.manifest:
            run.update(public_attributes=stated)

    def _create_join(self, name: str, job: JoinJob) -> JoinRun:
        """Create the run of a join, or reopen it."""
        run = JoinRun.create(job, self.path / "joins" / name, number=self.manifest.get("number", 1))
        self._state_public(run, name)
        run.measured_together = True
        return run


def _layout(table: TableSection) -> Layout | None:
    """Return the version of a versioned table, otherwise the layout of its files."""
    return {"version": table.version} if table.version is not None else layout(table.path, named=table.dialect.format)


def job_digest(job: CompositeJob, version: int = DIGEST_VERSION) -> str:
    """Return the digest that identifies a job: all settings except scheduler and limits.

    Its paths are relative to the folder of the job; in version 1 they are absolute.
    """
    content = job.to_dict()
    for setting in LIMITS:
        content["engine"].pop(setting, None)
    return digest_of([versioned(content, job, version), [one.digest for one in job.declared.values()]])


def _first_files(job: CompositeJob, digest: str, number: int) -> dict[str, bytes]:
    """Return the initial files of a run, the manifest last."""
    entries: dict[str, Any] = {}
    if allocation_of(job) is not None:
        entries["divides"] = MEASURED if has_first_measurement(job) else UNMEASURED
    entries |= {"versions": versions() | job.distributions} if job.distributions else {}
    manifest = first_manifest(job.engine.seed, digest, number, kind=KIND, **entries)
    domains = {f"{DOMAINS}/{table}/{name}": file for table, one in job.declared.items()
               for name, file in one.to_files().items()}  # fmt: skip
    return {
        **domains,
        "job.toml": tomli_w.dumps(job.to_dict()).encode(),
        MANIFEST: json.dumps(manifest, indent=2).encode(),
    }
