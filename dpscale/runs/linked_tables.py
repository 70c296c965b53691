"""Run of several tables and links between their rows.

    job.toml  manifest.json  domains/NAME/  tables/NAME/ and joins/NAME/ (parts with a plan)  links/NAME/
    synthetic/NAME/  report.html

secret.key exists from the first draw to the last. The total cost of all parts is reserved before the first draw. Before
its first draw each part records on the ledger which data it draws from. A second directory that draws something else
under the same charge is refused, like a changed round of an adaptive release.

*Public tables.* Their rows, codes and keys are read once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from dpscale.base.arrow import as_text, pa
from dpscale.base.errors import DataError, JobError
from dpscale.base.numerics import Flags, Integers32, Words
from dpscale.contributions.links import key_words
from dpscale.contributions.unit_shards import places
from dpscale.counting.count import encode_batch
from dpscale.domain import Domain
from dpscale.job import Job
from dpscale.job.allocation import (
    FILE,
    OPEN,
    Divisible,
    LinkBudget,
    check_division,
    check_open_bounds,
    first_share,
    has_first_measurement,
    is_divided,
    stored_allocation,
    with_bounds,
    with_shares,
)
from dpscale.job.job import job_digest
from dpscale.job.join_job import join_jobs
from dpscale.job.neighbours import NeighbourRelation, check_whole_rows, neighbour_relation, table_jobs
from dpscale.job.sections import SynthesizeTable, TableSection
from dpscale.job.table_sizes import check_public_parents
from dpscale.privacy.protection import Protection
from dpscale.records import Table
from dpscale.records.origin import Layout, Stamps, differing, layout, stamps
from dpscale.runs.manifest import DOMAINS, check_output, read_stored, versions
from dpscale.runs.preflight import check_cap, check_unit_memory, check_units
from dpscale.runs.run import Content, NewRun, Part, Run, in_order
from dpscale.runs.stage import ALLOCATE, PARTS, Stage, load_kind, stages_of_run
from dpscale.runs.table import TablePart
from dpscale.storage.files import present, read_text, write_whole

Files = TableSection | str  # a table of pairs is a path
NO_DOMAIN = Domain({"links": 2})  # for files of which only keys are read


def open_table(files: Files, domain: Domain = NO_DOMAIN) -> Table:
    """Return the table of the files, with large files split into partitions."""
    return Table.open(files, domain).split() if isinstance(files, str) else files.origin.table(files.path, domain)


def latest_versions(job: Job) -> dict[str, int]:
    """Return the latest version of every versioned table for which the job states none."""
    unpinned = {name: section for name, section in job.tables.items() if section.lake and section.version is None}
    return {name: section.origin.lake(section.path).version for name, section in unpinned.items()}


def at_versions(job: Job, versions: Mapping[str, int]) -> Job:
    """Return the job with these versions of some tables."""
    tables = {name: section.model_copy(update={"version": versions[name]}) if name in versions else section
              for name, section in job.tables.items()}  # fmt: skip
    return job.model_copy(update={"tables": tables}) if versions else job


INDEX = "_tables.json"
MEASURED, STARTED, UNMEASURED = "measured", "started", "unmeasured"  # ways of a run to divide its budget
OF_TABLES = stages_of_run({
    "discover": ("", ""),
    "plan": ("", ""),
    "units": ("", ""),
    "measure": ("", ""),
    "reconstruct": ("", ""),
    "synthesize": ("synthetic", f"synthetic/{INDEX}"),
    "report": ("report.html", "report.html"),
})  # fmt: skip
STAGES = {
    "allocate": ALLOCATE,
    **OF_TABLES,
    "measure": replace(OF_TABLES["measure"], needs=(*OF_TABLES["measure"].needs, "allocate")),
}
CACHED = ("tables", "joins")  # parts with a plan; the others have the data of one stage


class LinkedTables(Content):
    """Content of the run of a job of several tables and links between their rows.

    Attributes
    ----------
    run : Run
    job : Job
        With the division of its budget, once it is decided.
    """

    stages: Mapping[str, Stage] = STAGES
    domain_file = None
    uses_footers = False

    def __init__(self, run: Run, inputs: tuple[Any, ...] = ()) -> None:
        self.run, self.path = run, run.path
        self._read()

    def _read(self) -> None:
        """Read the job with the recorded versions and shares. Raises JobError if it is not the one of the run.

        The manifest's entry `at` has the versions of versioned tables. If the run has divided its budget, the recorded
        shares replace those of the job.
        """
        job = self.stated_job
        if self.manifest["job_sha256"] != job_digest(job, version=self.manifest.get("job_version", 1)):
            raise JobError("run directory", f"job.toml in {self.path}, or a domain file, was changed",
                           "the original files", "restore them, or start a new run with the changed job")  # fmt: skip
        self.job = at_versions(job, self.manifest.get("at", {}))
        if self.is_allocated:
            self._take_allocation()

    @property
    def stated_job(self) -> Job:
        """The job as it was given, without the division of its budget."""
        return read_stored(self.path, self.manifest)

    @property
    def manifest(self) -> dict[str, Any]:
        """A copy of the manifest of the run."""
        return self.run.manifest

    @classmethod
    def prepare(cls, job: Job) -> NewRun:
        """Return the contents of a new run of a job. Raises JobError for a job that cannot be run.

        The entry `divides` states that the run divides the budget, with or without a first measurement.
        """
        check_open_bounds(job)
        check_whole_rows(job)
        joins = join_jobs(job, neighbour_relation(job))
        for join in joins.values():  # raises the errors of an invalid workload
            join.build_workload(join.read_domain())
        entries: dict[str, Any] = {"versions": versions() | job.distributions} if job.distributions else {}
        if is_divided(job):
            entries["divides"] = MEASURED if has_first_measurement(job) else UNMEASURED
        return NewRun(job, lambda: _domain_files(job), entries)

    @classmethod
    def preflight(cls, job: Job, inputs: tuple[Any, ...]) -> None:
        check_cap(job, neighbour_relation(job).protects, job.total_budget, Fraction(sum(job.search_deltas.values())))
        cells = [check_units(of_table, job.declared[name]) for name, of_table in table_jobs(job).items()]
        check_unit_memory(sum(cells), job.engine.bytes, 1)  # the units of all tables are counted together

    def reopen(self, job: Job) -> None:
        """Read the job again, whose files may have been moved; limits are those of the job until it is planned."""
        self._read()
        if not self.run.done("plan"):
            self.job = self.job.model_copy(update={"engine": job.engine})

    def begin(self) -> None:
        self.divide_without_data()
        self.pin_versions()

    def pin_versions(self) -> None:
        """Record the latest version of versioned tables, so that later reads use it."""
        if "at" in self.manifest:
            return
        versions_now = latest_versions(self.job)
        if versions_now:
            self.run.update(at=versions_now)
            self.job = at_versions(self.job, versions_now)

    @property
    def allocation(self) -> float | None:
        """Share of the first measurement; None if the job or an older version has divided the budget."""
        divides = self.manifest.get("divides") in (MEASURED, STARTED) and is_divided(self.job)
        return first_share(self.job) if divides else None

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
        """Change the job to the decided shares and bounds of links, which `allocated` has.

        Cached values that depend on the job are dropped.
        """
        check_division(self.job, self.allocated)
        self.job = with_shares(with_bounds(self.job, self.allocated.get("bounds", {})), self.allocated["shares"])
        for name in ("neighbours", "_cached"):
            vars(self).pop(name, None)

    def divide_without_data(self) -> None:
        """Divide the budget as planned without data, if a stage is called before the stage `allocate`.

        The manifest's entry `divides` says how the run divides it: by a measurement (MEASURED), that has begun
        (STARTED), or without data (UNMEASURED). It is missing if the job states all shares.
        """
        divides = self.manifest.get("divides")
        if self.allocation is not None and self.run.done("allocate"):
            check_output(self.path, "allocate", self.manifest["stages"]["allocate"])
        # a first measurement that is charged must be finished: it would be spent in vain
        if divides == STARTED and not self.run.done("allocate"):
            raise self.run.undone("allocate")
        if divides and not self.is_allocated:
            unbounded = [link.called for link in self.job.link if link.max_degree == OPEN]
            if unbounded:
                raise JobError(f"link {unbounded[0]}.max_degree", "not chosen yet",
                               "the stage `allocate` before others",
                               f"run `dpscale run {self.path} --only allocate` first")  # fmt: skip
            self.record_allocation(Divisible(self.job, self.neighbours).divide_by_usual_sizes().to_dict())
            self.run.update(divides=UNMEASURED)

    def read_synthetic(self, read: Callable[..., Any]) -> Any:
        folder = self.path / "synthetic"
        files: dict[str, list[str]] = json.loads(read_text(folder / INDEX))
        return {table: read([str(folder / file) for file in of_table]) for table, of_table in files.items()}

    def changed_data(self) -> dict[str, list[str]]:
        """Return the differences of the data from those that the run recorded, by setting ("tables.NAME.path").

        A layout describes the files of a table: size, time, number and version. Tables of pairs have the setting `via`,
        others `path`.
        """
        recorded, layouts_now = self.manifest.get("data") or {}, self.layouts()
        changed = {}
        for name, before in recorded.items():
            now = layouts_now.get(name)
            differences = differing(before, now) if before and now else []
            if differences:
                changed[f"{name}.{'via' if name.startswith('link') else 'path'}"] = differences
        return changed

    def open_data(self) -> Mapping[str, Table]:
        """Return all tables that the job reads."""
        tables = {f"tables.{name}.path": open_table(section, self.job.declared[name])
                  for name, section in self.job.tables.items()}  # fmt: skip
        return tables | {f"link {link.called}.via": open_table(link.via) for link in self.job.link if link.via}

    def layouts(self) -> dict[str, Layout | None]:
        """Return size, time and number of files, or the version, of every table and table of pairs."""
        found = {f"tables.{name}": _layout(section) for name, section in self.job.tables.items()}
        return found | {f"link {link.called}": layout(link.via) for link in self.job.link if link.via}

    @property
    def protects(self) -> Protection:
        return self.neighbours.protects

    @property
    def steps(self) -> Mapping[str, int]:
        return self.neighbours.steps

    @property
    def links(self) -> Sequence[LinkBudget]:
        return [LinkBudget(self.closed_job, self.neighbours, link) for link in self.job.link]

    @property
    def closed_job(self) -> Job:
        """The job with the cells that searches have found, for links and reports."""
        return self.job.with_domains({name: table.domain for name, table in self.tables.items()})

    @property
    def synthesis(self) -> SynthesizeTable:
        """Settings of the synthetic rows, which links require."""
        return self.job.synthesize

    @cached_property
    def neighbours(self) -> NeighbourRelation:
        """Neighbouring relation of the job."""
        return neighbour_relation(self.job)

    @property
    def amount(self) -> float:
        return self.job.total_budget.amount

    @property
    def declared_domains(self) -> Sequence[Domain]:
        return list(self.job.declared.values())

    @property
    def tables(self) -> Mapping[str, TablePart]:
        return {part.name.partition(".")[2]: part for part in self._listed("tables")}

    @property
    def joins(self) -> Mapping[str, TablePart]:
        return {part.name.partition(".")[2]: part for part in self._listed("joins")}

    @cached_property
    def _cached(self) -> dict[str, list[Any]]:
        return {}

    def _listed(self, kind: str) -> list[Any]:
        """Return the parts of a kind, in the order of the job.

        PARTS names the function that creates the parts of each kind. Those of a kind in CACHED, which have a plan, are
        created once, others at every call.
        """
        if kind not in self._cached:
            parts: list[Any] = load_kind(PARTS[kind])(self)
            if kind not in CACHED:
                return parts
            self._cached[kind] = parts
        return self._cached[kind]

    @property
    def parts(self) -> Mapping[str, Part]:
        return in_order({part.name: part for kind in PARTS for part in self._listed(kind)})

    def part_at(self, folder: str) -> TablePart | None:
        parts = [*self.tables.values(), *self.joins.values()]
        return next((part for part in parts if part.folder == folder), None)

    def file_stamps(self) -> list[Stamps]:
        return [stamps(table) for table in self.open_data().values()]


def _layout(table: TableSection) -> Layout | None:
    """Return the version of a versioned table, otherwise the layout of its files."""
    return {"version": table.version} if table.version is not None else layout(table.path, named=table.dialect.format)


def _domain_files(job: Job) -> dict[str, bytes]:
    """Return the domain files of all tables by their places in a run directory."""
    return {f"{DOMAINS}/{table}/{name}": file for table, domain in job.declared.items()
            for name, file in domain.to_files().items()}  # fmt: skip


def public_table(
    section: TableSection, domain: Domain, ids: Collection[str] = ()
) -> tuple[Integers32, pa.Table]:  # fmt: skip
    """Return a public table as codes, (rows, attributes), and its rows, without those that the domain file drops.

    A code is the cell of a value in its attribute. Columns of bytes become texts, except those in `ids`.
    """
    pieces, tables = [np.empty((0, len(domain.names)), np.int32)], []  # by batch: codes, and columns
    for partition in open_table(section, domain).partitions:
        for batch in partition.batches(list(dict.fromkeys([*partition.columns(), *domain.columns(domain.names)]))):
            codes, dropped = encode_batch(domain, batch, domain.names)
            stays = np.ones(codes.shape[1], np.bool_) if dropped is None else ~dropped
            pieces.append(codes.T[stays].astype(np.int32))
            rows = {name: column if name in ids else as_text(column) for name, column in batch.items()}
            tables.append(pa.table(rows).filter(pa.array(stays)))
    if not sum(map(len, pieces)):
        raise DataError(
            section.path, "no rows", "the rows of a public table", "add rows, or remove the table and its links"
        )
    return np.concatenate(pieces), pa.concat_tables(tables, promote_options="permissive")


def public_tables(run: LinkedTables) -> dict[str, tuple[Integers32, pa.Table]]:
    """Return the codes and the rows of every public table, which are read once."""
    found: dict[str, tuple[Integers32, pa.Table]] = vars(run).setdefault("public_tables", {})
    for name, section in run.job.tables.items():
        if section.public and name not in found:
            # `id_columns` are pairs of a table's section and its columns with keys or ids
            ids = {column for files, columns in run.job.id_columns if files is section for column in columns}
            found[name] = public_table(section, run.job.domains[name], ids)
    return found


def check_public(job: Job) -> None:
    """Raise DataError for a public table with null or duplicate keys, or a key of another one that has no row there.

    Public tables are released unchanged, so their keys must fit as they are. Raises JobError for a table with more
    rows than its public parents.
    """
    tables = {}
    for name, section in job.tables.items():
        if section.public:
            _, tables[name] = public_table(section, job.domains[name])

    known: dict[str, Words] = {}  # distinct keys of each table: sorted rows of two words
    for name in [name for name in tables if job.key(name)]:
        words, has_key = _words(tables[name], job.key(name))
        known[name] = np.unique(words, axis=0)
        is_repeated = len(known[name]) < len(words)
        if not has_key.all() or is_repeated:
            raise DataError(f"tables.{name}.key", "a null or duplicate key",
                            "a distinct key for every row of a public table", "fix the table")  # fmt: skip

    # links between public tables, whose keys of parents must exist
    for link in job.reference or ():
        to_parent, _ = job.ends(link)  # columns of the child with the parent's key
        words, has_key = _words(tables[link.child], to_parent)
        twice = link.kind == "one-to-one" and len(np.unique(words[has_key], axis=0)) < int(has_key.sum())
        is_null = link.nulls != "keep" and not has_key.all()
        is_dangling = bool((places(known[link.parent], words[has_key]) < 0).any())  # a key without a row
        if twice or is_null or is_dangling:
            raise DataError(f"link {link.called}", "a null, a key without a row, or two rows with one parent",
                            "public tables whose keys fit, because they are released unchanged",
                            "fix the tables, or remove the link")  # fmt: skip
    check_public_parents(job, {name: rows.num_rows for name, rows in tables.items() if name in known})


def _words(rows: pa.Table, columns: tuple[str, ...]) -> tuple[Words, Flags]:
    """Return the words of the keys in some columns of a table, and the rows that have one."""
    return key_words({column: rows.column(column).combine_chunks() for column in columns}, columns, "drop")
