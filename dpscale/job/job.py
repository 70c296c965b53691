"""Job file of one or of several tables: validation, and construction of domains, workloads and planning problems.

A job of several tables has `[tables.NAME]` and `[[link]]`, and the other sections of a job of one table (docs/jobs.md).
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, cast

from pydantic import Field, PrivateAttr, ValidationError

from dpscale.base.display import display_path, nearest, safe_repr
from dpscale.base.errors import JobError
from dpscale.base.nesting import MOST_LEVELS, is_too_deep
from dpscale.base.settings import Settings, check_texts, checked, message_of
from dpscale.domain import Attribute, Domain
from dpscale.job.data import Data, PlacedJob, Places, below, default_dataset, files_of, places_of
from dpscale.job.joins import Join, JoinSection, JoinWorkload, resolve_joins
from dpscale.job.linked_rules import LinkedRule, linked_rules
from dpscale.job.periods import PeriodSettings, check_periods, check_rows, period_attribute, without_period
from dpscale.job.protected_unit import check_columns, check_distinct, check_keys
from dpscale.job.search_budget import (
    COUNTING_SHARE,
    SHARE,
    SearchBudget,
    budget_with_delta,
    check_unit_needed,
    counts_all_cells,
    search_budget,
    table_deltas,
    unit_workload,
)
from dpscale.job.sections import (
    BELOW_ONE,
    MOST_ROUNDS,
    AllocationTable,
    DiscoverTable,
    EngineSettings,
    LinkSection,
    MechanismTable,
    Output,
    Privacy,
    PrivacyOfTables,
    ReconstructTable,
    Rows,
    SynthesizeTable,
    TableSection,
    TotalsTable,
    UnitsTable,
    WorkloadSection,
    add_part,
    check_totals,
    key_columns,
)
from dpscale.job.table_checks import check_counts, check_history, check_references, check_searches
from dpscale.ledger.location import resolved
from dpscale.mechanisms import mechanism
from dpscale.mechanisms.contract import Mechanism, PlanningProblem
from dpscale.privacy.accounting import GAUSSIAN, Budget
from dpscale.reconstruction import (
    RECONSTRUCTIONS,
    distribution,
    reconstruction,
    reconstruction_names,
    reconstructions_for,
)
from dpscale.reconstruction.base import Reconstruction
from dpscale.reconstruction.joint_intervals import MOST_JOINT
from dpscale.storage.files import is_local, is_path, place, read_text, toml_fault
from dpscale.storage.objects import is_url, located
from dpscale.workload import MARGINAL, Workload, WorkloadPart, family_distribution, family_named, family_names

LEAST_PRIVATE = 1e-9


class TableJob(PlacedJob, Settings):
    """Job of one table. Paths are absolute after reading."""

    data: Data
    privacy: Privacy
    workload: Annotated[list[WorkloadSection], Field(min_length=1)]
    mechanism: MechanismTable = MechanismTable()
    reconstruct: ReconstructTable = ReconstructTable()
    engine: EngineSettings = EngineSettings()
    output: Output = Output()
    synthesize: SynthesizeTable | None = None
    discover: DiscoverTable | None = None
    units: UnitsTable | None = None
    totals: list[TotalsTable] | None = None
    time: PeriodSettings | None = None
    _chosen_share: float | None = PrivateAttr(None)

    @property
    def kind(self) -> str:
        """Kind of the job's runs."""
        return "" if self.data.period is None else "periods"

    @classmethod
    def read(cls, source: str | Path | Mapping[str, Any], stored: bool = False) -> TableJob:
        """Read a job file, or a dict with its content (paths are then relative to the current folder).

        Parameters
        ----------
        source : path or mapping
        stored : bool
            The job of a run directory, which may use old names without a warning.
        """
        return cls.parse(*job_content(source, stored))

    @classmethod
    def parse(cls, content: Mapping[str, Any], folder: Path) -> TableJob:
        """Validate the content of a job file; relative paths start at `folder`."""
        if "tables" in content:
            raise JobError("tables", "several tables", "a job with [data]", "use `dpscale run` or dp.run")
        check_texts(content, "")
        try:
            job = cls.model_validate(dict(content))
        except ValidationError as error:
            raise job_sentence(error, _keys) from None
        _ = job.options, job.estimating  # validate them before anything is created
        job.check_way()
        job.check_joint()
        job.check_time()
        job.check_units()
        read = job._resolved(folder)
        check_texts(read.to_dict(), "")  # the name of the folder may not be valid text
        return read.at(folder, places_of(job.to_dict(), read.to_dict()))

    @property
    def dataset(self) -> str:
        """Name of the data in the ledger: as given, or the path from the folder of the ledger."""
        return self.privacy.dataset or default_dataset([self.data.path], self.privacy.ledger, self.places)

    @property
    def files(self) -> str:
        """Path of the data if the job states no name for them."""
        return "" if self.privacy.dataset else files_of([self.data.path])

    @cached_property
    def method(self) -> Mechanism:
        """Mechanism of the job. Raises JobError for an unknown name."""
        return mechanism(self.mechanism.name)

    @cached_property
    def options(self) -> Settings:
        """Options of the mechanism. Raises JobError for an invalid one."""
        return checked(self.method.Options, self.mechanism.given, "mechanism", self.method.name)

    @cached_property
    def reconstruction(self) -> Reconstruction:
        """Reconstruction of the job, or the mechanism's preferred one. Raises JobError if it is not supported."""
        forms = self.method.forms(self.options)
        has = reconstructions_for(forms)
        name = self._method_or_alias
        foreign = name not in ("auto", *RECONSTRUCTIONS) and name in reconstruction_names()
        if foreign and reconstruction(name).form in forms:
            has = [*has, name]
        if name != "auto" and name not in has:
            names = dict.fromkeys(["auto", *has, *self.method.aliases])
            raise JobError("reconstruct.method", f"{name!r} for {self.method.name} with these options",
                           ", ".join(names), self._remedy(name))  # fmt: skip
        return reconstruction(has[0] if name == "auto" else name)

    @property
    def _method_or_alias(self) -> str:
        """Name of the reconstruction, or of its equivalent for this mechanism if that has all options that are set."""
        method, given = self.reconstruct.method, self.reconstruct.given
        alias = self.method.aliases.get(method)
        if alias is None:
            return method
        shared = reconstruction(alias).Options.model_fields
        return method if any(value and option not in shared for option, value in given.items()) else alias

    @property
    def distributions(self) -> dict[str, str]:
        """Versions of other distributions whose plug-ins the job names, by name."""
        families = (family_distribution(name) for part in self.workload for name in part.families)
        foreign = (self.method.distribution, distribution(self.reconstruction.name), *families)
        return dict(one.rsplit(" ", 1) for one in (*foreign, *self.data.distributions) if one)

    def _remedy(self, requested: str) -> str:
        setting = self.method.requires.get(requested)
        if setting:
            return f"leave it out, or set {setting}"
        return "leave it out" if requested in RECONSTRUCTIONS else nearest(requested, ["auto", *RECONSTRUCTIONS])

    @cached_property
    def estimating(self) -> Settings:
        """Options of the reconstruction. Raises JobError for an invalid one."""
        named = self.reconstruction
        options: Settings = checked(named.Options, self.reconstruct.given, "reconstruct", f"{named.name} estimates")
        return options if self.method.data_independent else cast(Settings, named.adaptive(options))

    def check_way(self) -> None:
        """Raise JobError for rows of a junction tree without one, or with options of the other sampler."""
        rows, named = self.synthesize, self.reconstruction
        if rows is None or rows.method != "ancestral":
            return
        if named.joint is None:
            raise JobError("synthesize.method", f"'ancestral' with {named.name} estimates", "auto or sampler",
                           'leave it out, or set reconstruct.method = "graphical"')  # fmt: skip
        if rows.weights or rows.polish is True:
            other = "weights" if rows.weights else "polish"
            raise JobError("synthesize.method", f"'ancestral' with {other}", "auto or sampler", "leave one out")

    def check_joint(self) -> None:
        """Raise JobError for simultaneous intervals of estimates without errors."""
        known = self.reconstruction.form == "least_squares" or getattr(self.estimating, "errors", None) == "simulated"
        if self.output.joint and not known:
            raise JobError("output.joint", f"true with {self.reconstruction.name} estimates",
                           "least squares, or simulated errors", "leave it out, or set reconstruct.method ="
                           ' "least-squares" (an adaptive job: "maxent" with errors = "simulated")')  # fmt: skip

    @property
    def periods(self) -> PeriodSettings:
        """Settings of the periods of a growing table."""
        return self.time or PeriodSettings()

    def read_period(self) -> Attribute:
        """Return the periods of a growing table as a date attribute."""
        return period_attribute(self.data, self.periods)

    def check_time(self) -> None:
        """Raise JobError for settings of periods that contradict each other or the other tables of the job."""
        check_periods(self.data, self.time)
        if self.data.period is None:
            return
        others = {"discover": self.discover, "units": self.units, "totals": self.totals}
        if given := [name for name, table in others.items() if table]:
            raise JobError(given[0], "given with data.period", "a job of one moment", "leave one of them out")
        if self.synthesize is not None:
            check_rows(self.synthesize)
        if any(part.count == "units" for part in self.workload):
            raise JobError("workload.count", '"units" with data.period', "numbers of rows", "leave it out")

    def check_units(self) -> None:
        """Raise JobError for shares of the budget of units without their purpose, or of the whole budget."""
        if (units := self.units) is None:
            return
        needs_part = units.cut is None or units.share is not None
        if needs_part and all(part.count != "units" for part in self.workload):
            raise JobError("units", "given without a part with count = 'units'", "such a part", "remove it")
        if units.cut is not None and self.data.privacy_unit is None:
            raise JobError("units.cut", f"{units.cut}, but the unit is a row", "a unit with a bound on its rows",
                           "set data.privacy_unit and max_rows_per_unit, or leave it out")  # fmt: skip
        if self._cut_share + (units.share or 0) >= 1:
            raise JobError("units", "share and cut of the whole budget", "a sum below 1", "reduce them")

    def planning_problem(self, workload: Workload, declared: Domain | None = None) -> PlanningProblem:
        """Return workload, budget and rows per unit.

        `declared` is the domain of the job if that of the workload has the cells that a search has found.
        """
        budget = self.row_budget(declared or workload.domain)
        return PlanningProblem(workload, budget, self.data.max_rows_per_unit or 1)

    def row_budget(self, domain: Domain) -> Budget:
        """Return the budget of the measurements of rows, after searches, numbers of units and of rows that are cut."""
        whole, share = self.search_budget(domain).remaining, self._unit_share(domain) + self._cut_share
        return replace(whole, amount=whole.amount * (1 - share) * BELOW_ONE) if share else whole

    def unit_budget(self, domain: Domain) -> Budget:
        """Return the budget of the numbers of distinct units."""
        whole = self.search_budget(domain).remaining
        return replace(whole, amount=whole.amount * self._unit_share(domain))

    def cut_budget(self, domain: Domain) -> Budget | None:
        """Return the budget of the number of rows beyond the bound of a unit; None if it is not measured."""
        whole = self.search_budget(domain).remaining
        return replace(whole, amount=whole.amount * self._cut_share) if self._cut_share else None

    @property
    def _cut_share(self) -> float:
        return (self.units.cut if self.units is not None else None) or 0.0

    def _unit_share(self, domain: Domain) -> float:
        units = self.unit_workload(domain)
        if units is None:
            return 0.0
        if self.units is not None and self.units.share is not None:
            return self.units.share
        sets, rows = (sum(len(part.sets) for part in one.parts) for one in (units, self.build_workload(domain)))
        return sets / (sets + rows) * (1 - self._cut_share)

    def unit_workload(self, domain: Domain) -> Workload | None:
        """Return the sets whose distinct units are counted; None if there are none. Raises JobError for other parts."""
        return unit_workload(self.workload, self.data.privacy_unit is not None, domain, self.engine.most_sets)

    def search_budget(self, domain: Domain) -> SearchBudget:
        """Return the part of the budget for the searches of a domain, and the rest."""
        settings = self.discover or DiscoverTable()
        return search_budget(self.privacy, settings, domain.searches, self.search_share(domain))

    def search_share(self, domain: Domain) -> float:
        """Return the share of the squared mu of all searches: as given, as a run has recorded, or chosen.

        A search whose counts are the estimates has nearly everything. The error of a found value is that of the whole
        budget for any share, and a larger share finds more of them.
        """
        given = self._chosen_share if self.discover is None else self.discover.share or self._chosen_share
        return given or (COUNTING_SHARE if self.counting_search(domain) else SHARE)

    def with_search_share(self, share: float) -> TableJob:
        """Return the job of a run that has recorded its share of the searches."""
        made = self.model_copy()
        made._chosen_share = share
        return made

    def counting_search(self, domain: Domain) -> str | None:
        """Return the attribute if the job asks nothing but the counts of its values, which are searched, else None.

        The noisy counts of the search then join the estimates, which are least squares.
        """
        [name, *others] = [one.name for one in domain.searches] or [""]
        if not name or others or not counts_all_cells(domain[name]) or self._cut_share:
            return None
        [part, *more] = self.workload
        sets = [names for own in self.build_workload(domain).parts for names in own.sets]
        alone = not more and part.family == MARGINAL.name and part.count != "units" and set(sets) == {(name,)}
        exact = self.reconstruction.form == self.method.forms(self.options)[0] == "least_squares"
        return name if alone and exact else None

    def answer_budget(self, domain: Domain) -> Budget:
        """Return the budget that determines the error of an answer: with the search if its counts are the answers."""
        return self.search_budget(domain).total if self.counting_search(domain) else self.row_budget(domain)

    def read_domain(self) -> Domain:
        rows = self.data.max_rows_per_unit
        domain = without_period(Domain.read(self.data.domain), self.data.period)
        check_unit_needed(domain, rows is not None)
        domain = domain.for_rows_per_unit(rows or 1)
        domain = domain.with_totals([one.model_dump() for one in self.totals or []])
        check_totals(domain.public_totals, rows)
        known = [part for part in self.workload if part.family in family_names()]
        return domain.with_squares(
            [str(one.given.get("of")) for one in known if family_named(one.family).needs_squares]
        )

    def build_workload(self, domain: Domain) -> Workload:
        """Return the workload over a domain."""
        workload = Workload(domain, self.engine.most_sets)
        for part in self.workload:
            if part.count != "units":
                add_part(workload, part)
        if not workload.parts:
            raise JobError("workload", "numbers of units only", "a family of rows beside them", "add one")
        if self.output.joint:
            for built in workload.parts:
                _check_joint(built, self.output.max_rows)
        if workload.numbers and self.method.data_independent and self.reconstruction.form != "least_squares":
            raise JobError("reconstruct.method", f"{self.reconstruction.name!r} with sums or means of"
                           f" {', '.join(workload.numbers)}", "auto", "leave it out")  # fmt: skip
        return workload

    def to_dict(self) -> dict[str, Any]:
        """Return the job as the content of a job file."""
        return self.model_dump(exclude_none=True, exclude_defaults=False)

    def _resolved(self, folder: Path) -> TableJob:
        paths = {"path": located(folder, self.data.path), "domain": located(folder, self.data.domain)}
        data = self.data.model_copy(update={**paths, "unit_through": self.data.resolved_hops(folder)})
        privacy = self.privacy.model_copy(update={"ledger": resolved(folder, self.privacy.ledger)})
        parts = [part.resolved(folder) for part in self.workload]
        totals = self.totals and [one.resolved(folder) for one in self.totals]
        time = self.time and self.time.resolved(folder)
        return self.model_copy(update={"data": data, "privacy": privacy, "workload": parts, "totals": totals,
                                       "time": time})  # fmt: skip


def _check_joint(part: WorkloadPart, most: int) -> None:
    """Raise JobError for means, and for a set with too many queries to simulate their noise."""
    if part.statistic is not None:
        raise JobError("output.joint", f"given with {part.name}", "linear queries", "leave it out")
    for names, count in zip(part.sets, part.counts, strict=True):
        if MOST_JOINT < count <= most:
            raise JobError("output.joint", f"{count:,} queries of family {part.name} over {', '.join(names)}",
                           f"at most {MOST_JOINT:,}", "leave it out, or set a smaller output.max_rows")  # fmt: skip


def job_content(source: str | Path | Mapping[str, Any], stored: bool = False) -> tuple[Mapping[str, Any], Path]:
    """Return the content of a job file or a dict, and the folder of its relative paths; see `TableJob.read`."""
    content, folder = (source, Path.cwd()) if isinstance(source, Mapping) else _job_file(source)
    if is_too_deep(content):
        raise JobError("job", f"more than {MOST_LEVELS} nested levels", "a job", "check its brackets")
    if stored:
        return content, folder
    return content if isinstance(source, Mapping) or not is_local(folder) else below(content, folder), folder


def _job_file(source: str | Path) -> tuple[Mapping[str, Any], Path]:
    if not is_path(source):
        raise JobError("job", safe_repr(source), "the path of a job file, or its content as a dict", "pass one of them")
    path = place(source, "job")
    try:
        content = tomllib.loads(read_text(path))
    except OSError as error:
        reason = error.strerror or "unreadable"
        raise JobError("job", f"cannot read {display_path(path)} ({reason})", "a job file", "check the path") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise JobError(
            "job", f"{display_path(path)} is not TOML{toml_fault(error)}", "a job file", "fix the syntax"
        ) from None
    return content, (path.resolve() if is_local(path) else path).parent


def job_sentence(error: ValidationError, keys: Callable[[tuple[int | str, ...]], list[str]]) -> JobError:
    """Return the first fault of a job as an error.

    Parameters
    ----------
    error : pydantic.ValidationError
    keys : callable
        Returns the accepted keys at a location of the job.
    """
    unknown = [one for one in error.errors() if one["type"] == "extra_forbidden"]  # a misspelt key is also missing
    fault = (unknown or error.errors())[0]
    refused = next(iter(fault.get("ctx", {}).get("error", ValueError()).args), None)
    if isinstance(refused, JobError):  # raised by a validator, which does not know the name of the table
        table = ".".join(map(str, fault["loc"][:2])) if fault["loc"][0] == "tables" else "data"
        return JobError(refused.field.replace("data", table, 1), refused.got, refused.takes, refused.remedy)
    named = [str(part) for part in fault["loc"] if "[" not in str(part) and "constrained" not in str(part)]
    where = ".".join(named) or "job"
    if fault["type"] == "extra_forbidden":
        known = keys(fault["loc"][:-1])
        return JobError(where, "unknown key", ", ".join(known), nearest(str(fault["loc"][-1]), known))
    if fault["type"] == "missing":
        return JobError(where, "missing", "a value", "add it to the job file")
    if fault["type"] == "list_type" and "attributes" in named:
        return JobError(where, safe_repr(fault["input"]), "a list of attribute sets, each a list of names",
                        'write attributes = [["age", "sex"], ["age"]]')  # fmt: skip
    got = "" if isinstance(fault["input"], Mapping) else f"{safe_repr(fault['input'])}: "
    return JobError(where, f"{got}{message_of(fault)}", "", "fix it" if got else "")


def _keys(location: tuple[int | str, ...]) -> list[str]:
    model: Any = TableJob
    for part in location:
        if isinstance(part, str):
            model = {
                "data": Data,
                "privacy": Privacy,
                "workload": WorkloadSection,
                "mechanism": MechanismTable,
                "reconstruct": ReconstructTable,
                "engine": EngineSettings,
                "output": Output,
                "synthesize": SynthesizeTable,
                "discover": DiscoverTable,
                "units": UnitsTable,
                "totals": TotalsTable,
                "time": PeriodSettings,
            }[part]
    return sorted(model.model_fields)


class CompositeJob(PlacedJob, Settings):
    """Job of several tables. Paths are absolute after reading."""

    kind: ClassVar[str] = "database"
    tables: Annotated[dict[Annotated[str, Field(pattern=r"^[\w-]{1,64}$")], TableSection], Field(min_length=1)]
    link: list[LinkSection] = Field(default_factory=list)
    reference: list[LinkSection] | None = None  # links between public tables, which are released unchanged
    privacy: PrivacyOfTables
    engine: EngineSettings = EngineSettings()
    synthesize: Rows = Rows()
    workload: list[JoinWorkload] | None = None  # None: omitted from the digest of a job
    joins: dict[str, JoinSection] | None = None
    allocation: AllocationTable | None = None
    impossible: list[dict[str, Any]] | None = None
    determined: list[dict[str, Any]] | None = None

    @classmethod
    def read(cls, source: str | Path | Mapping[str, Any], stored: bool = False) -> CompositeJob:
        """Read a job of several tables; the parameters are those of `TableJob.read`."""
        return cls.parse(*job_content(source, stored))

    @classmethod
    def parse(cls, content: Mapping[str, Any], folder: Path) -> CompositeJob:
        """Validate the content; relative paths start at `folder`."""
        check_texts(content, "")
        try:
            job = cls.model_validate(dict(content))._with_references()
        except ValidationError as error:
            raise job_sentence(error, _key_columns) from None
        read = job._resolved(folder)
        read = read.at(folder, places_of(job.to_dict(), read.to_dict()))
        read._check()
        read._check_named()
        return read

    def _with_references(self) -> CompositeJob:
        """Return the job with the links between public tables apart, because nothing is measured for them."""
        public = {name for name, one in self.tables.items() if one.public}
        found = [one for one in self.link if one.via is None and {one.parent, one.child} <= public]
        if not found:
            return self
        left = [one for one in self.link if one not in found]
        return self.model_copy(update={"link": left, "reference": [*(self.reference or ()), *found]})

    def _check_named(self) -> None:
        """Raise JobError for tables in an object store without a dataset name; they may have no common folder."""
        places = [one.path for one in self.tables.values()] + [one.via or "" for one in self.link]
        if self.privacy.dataset is None and any(map(is_url, places)):
            raise JobError("privacy.dataset", "missing", "a name if tables are in an object store", "set it")

    @property
    def dataset(self) -> str:
        """Name of the data on the ledger: as given, or the path from the folder of the ledger to all private files."""
        return self.privacy.dataset or default_dataset(self._private_paths, self.privacy.ledger, self.places)

    @property
    def files(self) -> str:
        """Common folder of all private files if the job states no name for them."""
        return "" if self.privacy.dataset else files_of(self._private_paths)

    @property
    def former_of_parts(self) -> Places:
        """Texts of the jobs of tables and joins, mapped to those that version 1 of their digests has."""
        return {**self.former, **({self.dataset: self.files} if self.files else {})}

    @property
    def _private_paths(self) -> list[str]:
        paths = [one.path for one in self.tables.values() if not one.public]
        return [*paths, *(one.via for one in self.link if one.via)]

    @property
    def distributions(self) -> dict[str, str]:
        """Versions of other distributions whose formats the tables have, by name."""
        return dict(one.rsplit(" ", 1) for table in self.tables.values() for one in table.distributions)

    @cached_property
    def declared(self) -> dict[str, Domain]:
        """Domains of the tables as their files state them, with assumed cells where they are not public."""
        return {name: Domain.read(one.domain) for name, one in self.tables.items()}

    @cached_property
    def domains(self) -> dict[str, Domain]:
        """Domains of the tables: those declared, or with the cells that were found (`with_domains`)."""
        return self.declared

    def with_domains(self, domains: Mapping[str, Domain]) -> CompositeJob:
        """Return the job with the domains of some tables in place of those declared; budgets stay."""
        job = self.model_copy()
        vars(job)["domains"] = {**self.declared, **domains}
        return job

    @cached_property
    def search_deltas(self) -> dict[str, float]:
        """Additive delta of the searches of each table of which values are searched, to a unit of the job."""
        listed = {name: self.tables[name].discover or DiscoverTable() for name, domain in self.declared.items()
                  if any(one.search is not None and one.search.uses_delta for one in domain.searches)}  # fmt: skip
        return table_deltas(self.privacy, listed)

    @cached_property
    def budget(self) -> Budget:
        """Budget of all draws beside the additive delta of the searches."""
        return budget_with_delta(self.privacy, sum(self.search_deltas.values()))

    @cached_property
    def joined(self) -> dict[str, Join]:
        """Joins of the workload over several tables, by name."""
        return resolve_joins(self)

    @cached_property
    def linked_rules(self) -> dict[str, list[LinkedRule]]:
        """Structural zeros across tables, by link."""
        return linked_rules(self)

    def key(self, table: str) -> tuple[str, ...]:
        """Return the columns of a table's key."""
        return key_columns(self.tables[table].key)

    def duplicates(self, table: str) -> str:
        """Return the policy for rows with equal keys: by default keep one, or reject if neighbours replace a row."""
        replaced = any(link.protects == "both" for link in self.link)
        return self.tables[table].duplicates or ("reject" if replaced else "keep")

    def ends(self, link: LinkSection) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the columns with the parent's key and the child's, in the table of pairs or the child's table."""
        if link.kind == "many-to-many":
            return key_columns(link.parent_key) or self.key(link.parent), key_columns(link.child_key)
        return key_columns(link.child_key), self.key(link.child)

    def counted(self, link: LinkSection, table: str) -> list[LinkSection]:
        """Return the earlier links of a table's rows whose numbers are attributes in this link."""
        return [one for one in self.link if one.called in (link.counts or ()) and one.parent == table]

    def other_parents(self, link: LinkSection) -> list[LinkSection]:
        """Return the earlier links whose parents' attributes are attributes of the children in this link."""
        return [one for one in self.link if one.called in (link.parents or ())]

    def order_columns(self, link: LinkSection) -> tuple[str, ...]:
        """Return the columns that order the children of a parent; none without an order."""
        first, rest = link.order[:1], link.order[1:]
        return *(self.domains[link.child][name].column for name in first), *rest

    @property
    def foreign_keys(self) -> list[LinkSection]:
        """All links of the job, with those between public tables."""
        return [*self.link, *(self.reference or ())]

    def to_dict(self) -> dict[str, Any]:
        """Return the job as the content of a job file."""
        return self.model_dump(exclude_none=True)

    def _check(self) -> None:
        """Check the sections against each other."""
        if self.privacy.noise != GAUSSIAN:
            raise JobError("privacy.delta", "epsilon without delta for several tables", "epsilon with delta, or rho",
                           "add delta")  # fmt: skip
        names = [one.called for one in self.foreign_keys]
        if twice := next((name for i, name in enumerate(names) if name in names[:i]), None):
            raise JobError("link.name", f"{twice!r} twice", "distinct names", "set name for one of the links")
        if taken := next((one.called for one in self.link if one.via and one.called in self.tables), None):
            raise JobError("link.name", f"{taken!r}, which is a table", "a different name for a table of pairs",
                           "set name")  # fmt: skip
        ends = [(link, end) for link in self.foreign_keys for end in (link.parent, link.child)]
        if absent := next(((link, end) for link, end in ends if end not in self.tables), None):
            raise JobError(f"link {absent[0].called}", f"a table {absent[1]!r}", ", ".join(self.tables),
                           nearest(absent[1], list(self.tables)))  # fmt: skip
        for name in self.tables:
            check_distinct(self, f"tables.{name}.key", self.key(name), name)
        check_columns(self)
        check_searches(self)
        for at, link in enumerate(self.foreign_keys):
            check_counts(self, link, names[:at])
            check_keys(self, link)
            check_history(self, link, names[:at])
            if link.via is None:
                check_distinct(self, f"link {link.called}", self.ends(link)[0], link.child)
        check_references(self)
        _ = self.joined, self.linked_rules  # refuse parts without exactly one join, and rules of tables without a link
        if (total := sum(self.given_shares.values())) > 1 + LEAST_PRIVATE:
            raise JobError("share", f"{total:g} in total", "a total of at most 1", "lower them")

    @property
    def given_shares(self) -> dict[str, float]:
        """Shares that the job states, and those of joins without one: a part of the remainder, equal for all parts."""
        stated = {f"tables.{name}": one.share for name, one in self.tables.items()}
        stated |= {f"links.{one.called}": one.share for one in self.link}
        stated |= {f"joins.{name}": one.share for name, one in (self.joins or {}).items()}
        given = {name: share for name, share in stated.items() if share is not None}
        others = [name for name in self.pieces if name not in given]
        each = max(1 - sum(given.values()), 0.0) / max(len(others), 1)
        joins = [name for name in others if name.startswith("joins.")] if each > LEAST_PRIVATE else []
        return given | dict.fromkeys(joins, each)

    @property
    def pieces(self) -> list[str]:
        """Names of the components that share the budget."""
        tables = [f"tables.{name}" for name, one in self.tables.items() if not one.public]
        return [*tables, *(f"links.{one.called}" for one in self.link), *(f"joins.{name}" for name in self.joined)]

    @cached_property
    def shares(self) -> dict[str, float]:
        """Budget share of each component: as given; the remainder is divided equally among the others."""
        pieces, given = self.pieces, self.given_shares
        left, others = 1 - sum(given.values()), [name for name in pieces if name not in given]
        if others and left <= LEAST_PRIVATE:
            raise JobError("share", f"no remainder for {others[0]}", "shares with a remainder for the other components",
                           "lower the shares, or set this one")  # fmt: skip
        return {name: given.get(name, left / max(len(others), 1)) for name in pieces}

    def _resolved(self, folder: Path) -> CompositeJob:
        tables = {name: one.resolved(folder) for name, one in self.tables.items()}
        links = [
            one if one.via is None else one.model_copy(update={"via": located(folder, one.via)}) for one in self.link
        ]
        privacy = self.privacy.model_copy(update={"ledger": resolved(folder, self.privacy.ledger)})
        parts = self.workload and [one.resolved(folder) for one in self.workload]
        return self.model_copy(update={"tables": tables, "link": links, "privacy": privacy, "workload": parts})


def _key_columns(location: tuple[int | str, ...]) -> list[str]:
    """Return the settings at a location of the job."""
    if not location:
        return sorted(set(CompositeJob.model_fields) - {"reference"})  # which the job moves there itself
    shared: dict[str, type[Settings]] = {"privacy": PrivacyOfTables, "engine": EngineSettings, "synthesize": Rows,
                                         "allocation": AllocationTable}  # fmt: skip
    sections = shared | {"tables": TableSection, **dict.fromkeys(("link", "reference"), LinkSection),
                         "workload": JoinWorkload, "joins": JoinSection}  # fmt: skip
    return sorted(sections[str(location[0])].model_fields)


__all__ = ["MOST_ROUNDS", "CompositeJob", "LinkSection", "Rows", "TableSection"]
