"""Job of a table at its share of the budget: its workload and methods, and the division of its budget.

The only table of a job has the whole budget. Joins have such a job too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self, cast

from dpscale.base.display import nearest
from dpscale.base.errors import JobError
from dpscale.base.settings import Settings, checked
from dpscale.domain import Attribute, Domain
from dpscale.job.periods import check_periods, check_rows, period_attribute, without_period
from dpscale.job.search_budget import (
    COUNTING_SHARE,
    SHARE,
    SearchBudget,
    check_unit_needed,
    counts_all_cells,
    search_budget,
    unit_workload,
)
from dpscale.job.sections import (
    BELOW_ONE,
    EngineSettings,
    MechanismTable,
    Output,
    PeriodSettings,
    Privacy,
    ReconstructTable,
    SynthesizeTable,
    TableSection,
    TableShares,
    WorkloadSection,
    add_part,
    check_totals,
)
from dpscale.mechanisms import mechanism
from dpscale.mechanisms.contract import Mechanism, PlanningProblem
from dpscale.privacy.accounting import Budget
from dpscale.reconstruction import (
    RECONSTRUCTIONS,
    distribution,
    reconstruction,
    reconstruction_names,
    reconstructions_for,
)
from dpscale.reconstruction.base import Reconstruction
from dpscale.reconstruction.joint_intervals import MOST_JOINT
from dpscale.storage.databases import is_database
from dpscale.workload import MARGINAL, Workload, WorkloadPart, family_distribution


@dataclass(frozen=True, eq=False)
class TableJob:
    """Job of a table.

    Attributes
    ----------
    data : TableSection
        Its records with their privacy unit, and its workload and methods.
    privacy : Privacy
        Its budget.
    engine : EngineSettings
    shares : TableShares
        Division of its budget.
    dataset, files : str
        Name of the data on the ledger, and the path of the data of the whole job if it states no name.
    recorded_share : float, optional
        Share of the searches that a run has recorded.
    """

    data: TableSection
    privacy: Privacy
    engine: EngineSettings
    shares: TableShares
    dataset: str
    files: str = ""
    recorded_share: float | None = None

    def checked(self) -> Self:
        """Return the job. Raises JobError for settings that contradict each other."""
        _ = self.options, self.estimating
        self.check_way()
        self.check_joint()
        self.check_time()
        self.check_units()
        return self

    @property
    def workload(self) -> Sequence[WorkloadSection]:
        """Parts of the workload."""
        return self.data.workload or ()

    @property
    def mechanism(self) -> MechanismTable:
        """Name of the mechanism, and its options as given."""
        return self.data.method

    @property
    def reconstruct(self) -> ReconstructTable:
        """Name of the reconstruction, and its options as given."""
        return self.data.reconstruct or ReconstructTable()

    @property
    def output(self) -> Output:
        """Settings of the answer files."""
        return self.data.output or Output()

    @property
    def synthesize(self) -> SynthesizeTable | None:
        """Settings of the synthetic rows; None without rows."""
        return self.data.synthesize

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
        families = [family_distribution(name) for part in self.workload for name in part.families]
        named = [self.method.distribution, distribution(self.reconstruction.name), *families, *self.data.distributions]
        return dict(name_and_version.rsplit(" ", 1) for name_and_version in named if name_and_version)

    def _remedy(self, requested: str) -> str:
        """Return advice for a requested reconstruction that the mechanism does not have."""
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
        return self.data.time or PeriodSettings()

    def read_period(self) -> Attribute:
        """Return the periods of a growing table as a date attribute."""
        return period_attribute(self.data, self.periods)

    def check_time(self) -> None:
        """Raise JobError for settings of periods that contradict each other or the other tables of the job."""
        check_periods(self.data)
        if self.data.period is None:
            return
        given = [f"budget.{name}" for name in self.shares.stated] + (["totals"] if self.data.totals else [])
        if given:
            raise JobError(given[0], "given with data.period", "a job of one moment", "leave one of them out")
        if self.synthesize is not None:
            check_rows(self.synthesize)
        if any(part.counts_units for part in self.workload):
            raise JobError("workload.count", '"units" with data.period', "numbers of rows", "leave it out")

    def check_units(self) -> None:
        """Raise JobError for shares of the budget of units without their purpose, or of the whole budget."""
        units, cut = self.shares.units, self._cut_share
        if units is not None and all(not part.counts_units for part in self.workload):
            raise JobError("budget.units", "given without a part with count = 'units'", "such a part", "remove it")
        if cut and self.data.privacy_unit is None:
            raise JobError("budget.cut", f"{cut}, but the unit is a row", "a unit with a bound on its rows",
                           "set data.privacy_unit and max_rows_per_unit, or leave it out")  # fmt: skip
        if cut + (units or 0) >= 1:
            raise JobError("budget.units", "units and cut of the whole budget", "a sum below 1", "reduce them")

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
        return self.shares.cut or 0.0

    def _unit_share(self, domain: Domain) -> float:
        """Return the share of the budget for numbers of distinct units: as stated, or by the number of sets."""
        units = self.unit_workload(domain)
        if units is None:
            return 0.0
        if self.shares.units is not None:
            return self.shares.units
        sets_of_units = sum(len(part.sets) for part in units.parts)
        sets_of_rows = sum(len(part.sets) for part in self.build_workload(domain).parts)
        return sets_of_units / (sets_of_units + sets_of_rows) * (1 - self._cut_share)

    def unit_workload(self, domain: Domain) -> Workload | None:
        """Return the sets whose distinct units are counted; None if there are none. Raises JobError for other parts."""
        counted = [part for part in self.workload if part.counts_units]
        return unit_workload(counted, self.unit_columns, domain, self.engine.most_sets) if counted else None

    @property
    def unit_columns(self) -> tuple[str, ...]:
        """Columns of the privacy unit; none if a row is protected."""
        unit = self.data.privacy_unit
        return () if unit is None else (unit,) if isinstance(unit, str) else tuple(unit)

    def search_budget(self, domain: Domain) -> SearchBudget:
        """Return the part of the budget for the searches of a domain, and the rest."""
        return search_budget(self.privacy, self.shares.discover_delta, domain.searches, self.search_share(domain))

    def search_share(self, domain: Domain) -> float:
        """Return the share of the squared mu of all searches: as given, as a run has recorded, or chosen.

        A search whose counts are the estimates has nearly everything. The error of a found value is that of the whole
        budget for any share, and a larger share finds more of them.
        """
        given = self.shares.discover or self.recorded_share
        return given or (COUNTING_SHARE if self.counting_search(domain) else SHARE)

    def with_search_share(self, share: float) -> Self:
        """Return the job of a run that has recorded its share of the searches."""
        return replace(self, recorded_share=share)

    def counting_search(self, domain: Domain) -> str | None:
        """Return the attribute if the job asks nothing but the counts of its values, which are searched, else None.

        The noisy counts of the search then join the estimates, which are least squares.
        """
        [name, *others] = [attribute.name for attribute in domain.searches] or [""]
        if not name or others or not counts_all_cells(domain[name]) or self._cut_share:
            return None
        [part, *more] = self.workload
        sets = [names for built in self.build_workload(domain).parts for names in built.sets]
        only_counts = not more and part.family == MARGINAL.name and part.counts_rows and set(sets) == {(name,)}
        is_least_squares = self.reconstruction.form == self.method.forms(self.options)[0] == "least_squares"
        return name if only_counts and is_least_squares else None

    def answer_budget(self, domain: Domain) -> Budget:
        """Return the budget that determines the error of an answer: with the search if its counts are the answers."""
        return self.search_budget(domain).total if self.counting_search(domain) else self.row_budget(domain)

    def read_domain(self) -> Domain:
        """Return the domain of the table without its period, with the bounds of a unit, public totals and squares."""
        rows = self.data.max_rows_per_unit
        domain = without_period(self.data.read_domain(), self.data.period)
        check_unit_needed(domain, rows is not None)
        domain = domain.for_rows_per_unit(rows or 1)
        domain = domain.with_totals([total.model_dump() for total in self.data.totals or []])
        check_totals(domain.public_totals, rows)
        return domain.with_squares([name for part in self.workload for name in part.squared])

    def build_workload(self, domain: Domain, max_sets: int | None = None) -> Workload:
        """Return the workload over a domain, of at most `max_sets` sets; without it, those of the engine section."""
        workload = Workload(domain, max_sets or self.engine.most_sets)
        for part in self.workload:
            if part.counts_rows:
                add_part(workload, part, self.unit_columns)
        if not workload.parts:
            raise JobError("workload", "numbers of units only", "a family of rows beside them", "add one")
        if self.engine.count_in_database:
            self._check_database_counts(workload)
        if self.output.joint:
            for built in workload.parts:
                _check_joint(built, self.output.max_rows)
        if workload.numbers and self.method.data_independent and self.reconstruction.form != "least_squares":
            raise JobError("reconstruct.method", f"{self.reconstruction.name!r} with sums or means of"
                           f" {', '.join(workload.numbers)}", "auto", "leave it out")  # fmt: skip
        return workload

    def _check_database_counts(self, workload: Workload) -> None:
        """Raise JobError if a database cannot count the sets of a workload."""
        for reason, remedy in (
            ("no rows of a database" if not is_database(self.data.path or "") else "", "state [data] database"),
            ("a privacy unit" if self.data.unit_column is not None else "", "leave it out: the rows of units are read"),
            ("numbers" if workload.numbers else "", "leave it out: sums of numbers are computed from rows"),
            ("a growing table" if self.data.period else "", "leave it out: rows are weighed by period"),
            ("cells that are searched" if workload.domain.searches else "", "leave it out: values are read"),
        ):
            if reason:
                takes = "a database, public cells, and rows as the privacy unit"
                raise JobError("engine.count_in_database", f"true, and {reason}", takes, remedy)


def _check_joint(part: WorkloadPart, most: int) -> None:
    """Raise JobError for means, and for a set with too many queries to simulate their noise."""
    if part.statistic is not None:
        raise JobError("output.joint", f"given with {part.name}", "linear queries", "leave it out")
    for names, count in zip(part.sets, part.counts, strict=True):
        if MOST_JOINT < count <= most:
            raise JobError("output.joint", f"{count:,} queries of family {part.name} over {', '.join(names)}",
                           f"at most {MOST_JOINT:,}", "leave it out, or set a smaller output.max_rows")  # fmt: skip
