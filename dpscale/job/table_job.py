"""Job of a table at its share of the budget: its workload and methods, and the division of its budget.

The only table of a job has the whole budget. Joins have such a job too.

*Searches for cells that are not public, numbers of units, and numbers of rows.*
The budget is divided between them. The searches use a share of the squared mu. If some of them have an additive delta,
which adds to that of the noise, the squared mu of a job with epsilon and delta is that of the remaining delta.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Self, cast

from dpscale.base.display import nearest
from dpscale.base.errors import JobError
from dpscale.base.settings import Settings, checked
from dpscale.domain import Attribute, Domain
from dpscale.domain.search import ValueSearch
from dpscale.job.periods import check_periods, check_rows, period_attribute, without_period
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
from dpscale.privacy.accounting import GAUSSIAN, Budget, Cost, gdp_mu
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
from dpscale.workload.sql.selection import select, unit_sets


@dataclass(frozen=True)
class SearchBudget:
    """Budget of the searches of a domain.

    Attributes
    ----------
    each : Fraction
        Squared mu of one search; 0 without searches.
    delta : Fraction
        Additive delta of one search that has one.
    remaining : Budget
        Budget of the measurements after the searches.
    total : Budget
        Budget of both.
    total_delta : Fraction
        Additive delta of all searches.
    """

    each: Fraction
    delta: Fraction
    remaining: Budget
    total: Budget
    total_delta: Fraction = Fraction(0)


SHARE = 0.05  # of the squared mu, for all searches of a job
COUNTING_SHARE = 0.999  # of a search whose counts are the estimates: the rest measures the other values


def search_budget(
    privacy: Privacy, stated_delta: float | None, searches: Sequence[Attribute], share: float = SHARE
) -> SearchBudget:
    """Return the budget of searches that use a share of the squared mu. Raises JobError for one that permits none.

    Only searches by values have an additive delta: `stated_delta` together, or a part of the job's delta if it is None.
    """
    if not searches:
        return SearchBudget(each=Fraction(0), delta=Fraction(0), remaining=privacy.budget, total=privacy.budget)
    if privacy.noise != GAUSSIAN:
        raise JobError("privacy.delta", f"missing, but the cells of {searches[0].name} are not public",
                       "Gaussian noise for the search", "add a delta, for example 1e-9")  # fmt: skip
    of_values = [attribute for attribute in searches if attribute.search is not None and attribute.search.uses_delta]
    delta = sum(table_deltas(privacy, {of_values[0].name: stated_delta}).values()) if of_values else 0.0
    total = budget_with_delta(privacy, delta)
    each = Fraction(total.amount) * Fraction(share) / len(searches)
    remaining = replace(total, amount=total.amount * (1 - share) * BELOW_ONE)
    return SearchBudget(
        each=each,
        delta=Fraction(delta) / max(len(of_values), 1),
        remaining=remaining,
        total=total,
        total_delta=Fraction(delta),
    )


def counts_all_cells(attribute: Attribute) -> bool:
    """Return whether a search measures numbers of rows of all cells but that of other values.

    It measures neither nulls nor public values that few rows have, and votes are not numbers of rows.
    """
    search = attribute.search
    return isinstance(search, ValueSearch) and not (search.has_votes or search.values or attribute.nulls == "category")


def budget_with_delta(privacy: Privacy, delta: float) -> Budget:
    """Return the budget of a job of which searches have this additive delta.

    `delta` is subtracted from the δ of the job before its conversion to μ. BELOW_ONE is a factor that covers rounding.
    Budgets without ε and δ stay unchanged.
    """
    total = privacy.budget
    if not delta or privacy.epsilon is None or privacy.delta is None:
        return total
    return replace(total, amount=gdp_mu(privacy.epsilon, privacy.delta - delta) ** 2 * BELOW_ONE)


def table_deltas(privacy: Privacy, stated: Mapping[str, float | None]) -> dict[str, float]:
    """Return the additive delta of the searches of each table, to a unit of the job.

    Parameters
    ----------
    privacy : Privacy
        Budget of the job.
    stated : mapping of str to float
        Deltas of the tables of which values are searched. Those that state none share half of the job's delta equally.

    Raises
    ------
    JobError
        If the job has no delta and a table states none, or if the sum is not below that of the job.
    """
    unstated = [table for table, delta in stated.items() if delta is None]
    if unstated and privacy.delta is None:
        raise JobError("budget.discover_delta", f"missing, but values of {unstated[0]} are searched",
                       "an additive delta, because the job has none",
                       "add it, for example 1e-9, or state epsilon and delta")  # fmt: skip
    usual = (privacy.delta or 0.0) / 2 / max(len(unstated), 1)
    deltas = {table: usual if delta is None else delta for table, delta in stated.items()}
    total = sum(deltas.values())
    if privacy.delta is not None and stated and total >= privacy.delta:
        raise JobError("budget.discover_delta", f"{total:g} in total", f"less than privacy.delta ="
                       f" {privacy.delta:g}", "lower it, or leave it out")  # fmt: skip
    return deltas


LEAST_DELTA = 1e-300  # least additive delta, from which the bisection begins


def step_delta(delta: float, squared_mu: float, steps: int) -> float:
    """Return the largest additive delta to one neighbour step for which that of `steps` steps is at most `delta`.

    Neighbours of the job may be several steps apart, and `Cost.for_group` gives the cost to them: its delta depends on
    the squared mu too. The result is found by bisection on a logarithmic scale. Raises JobError for a budget with which
    there is none.
    """

    def fits(of_step: float) -> bool:
        cost = Cost(gaussian=Fraction(squared_mu), delta=Fraction(of_step))
        return cost.for_group(steps).delta <= Fraction(delta)

    if fits(delta):
        return delta
    if not fits(LEAST_DELTA):
        raise JobError("budget.discover", f"a search with μ² = {squared_mu:.3g} to each of {steps} steps",
                       f"one whose additive delta can be below {delta:g}", "lower it")  # fmt: skip
    low, high = math.log(LEAST_DELTA), math.log(delta)
    for _ in range(60):  # to the precision of a float; `low` fits, `high` does not
        middle = (low + high) / 2
        low, high = (middle, high) if fits(math.exp(middle)) else (low, middle)
    return math.exp(low) if fits(math.exp(low)) else LEAST_DELTA


def check_unit_needed(domain: Domain, has_unit: bool) -> None:
    """Raise JobError if the unit is a row, but a domain bounds totals of units or has values that units vote for."""
    fields = [f"numbers.{number.name}.per_unit: 'total'" for number in domain.totals]
    for attribute in domain.searches:
        if attribute.search is not None and attribute.search.has_votes:
            fields.append(f"attributes.{attribute.name}.count: 'units'")
    if fields and not has_unit:
        field, _, value = fields[0].partition(": ")
        raise JobError(field, f"{value}, but the unit is a row", "a privacy unit",
                       "set data.privacy_unit and max_rows_per_unit, or leave it out")  # fmt: skip


def unit_workload(parts: Sequence[WorkloadSection], unit: Sequence[str], domain: Domain, max_sets: int) -> Workload:
    """Return the sets whose distinct units are counted by some parts of a workload.

    Raises JobError without a privacy unit, or for another family than marginal.
    """
    if not unit:
        raise JobError("workload.count", "'units', but the unit is a row", "rows",
                       "set data.privacy_unit and max_rows_per_unit, or leave it out")  # fmt: skip
    workload = Workload(domain, max_sets)
    for part in parts:
        if part.statements:
            sets = list[tuple[str, ...]]()
            for statement in part.statements:
                sets += unit_sets(select(statement, domain, unit))
            workload.add(MARGINAL.name, attributes=list(dict.fromkeys(sets)), weight=part.single_weight)
            continue
        # keys of other families, or another weight than one number above 0
        has_others = part.given or part.record_weight or not part.weight or isinstance(part.weight, list)
        if part.family != MARGINAL.name or has_others:
            raise JobError("workload.count", f"'units' for family {part.family!r}, or with other keys",
                           f"family {MARGINAL.name} with degree or attributes, and one weight above 0",
                           "leave it out")  # fmt: skip
        workload.add(part.family, part.degree, part.attributes, part.weight)
    return workload


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
        _ = self.options, self.estimating  # refuse invalid options
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
        """Reconstruction of the job, or the mechanism's preferred one. Raises JobError if it is not supported.

        A mechanism supports the reconstructions of the forms of its evidence, also those of other distributions.
        """
        forms = self.method.forms(self.options)
        supported = reconstructions_for(forms)
        name = self._method_or_alias
        is_plugin = name not in ("auto", *RECONSTRUCTIONS) and name in reconstruction_names()
        if is_plugin and reconstruction(name).form in forms:
            supported = [*supported, name]
        if name != "auto" and name not in supported:
            names = list(dict.fromkeys(["auto", *supported, *self.method.aliases]))
            raise JobError("reconstruct.method", f"{name!r} for {self.method.name} with these options",
                           ", ".join(names), self._remedy(name, names))  # fmt: skip
        return reconstruction(supported[0] if name == "auto" else name)

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

    def _remedy(self, requested: str, known: Sequence[str]) -> str:
        """Return advice for a requested reconstruction that is none of those that the mechanism has."""
        setting = self.method.requires.get(requested)
        if setting:
            return f"leave it out, or set {setting}"
        return "leave it out" if requested in RECONSTRUCTIONS else nearest(requested, known)

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
        return PlanningProblem(workload, budget, self.data.max_rows_per_unit or 1, self.needs_marginals)

    @property
    def needs_marginals(self) -> bool:
        """Whether a model or synthetic rows need the 1-way marginals beside the answers."""
        return self.synthesize is not None or self.reconstruction.form != "least_squares"

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

        A search whose counts are the estimates has nearly everything: the counts of both draws are combined, so the
        error of a found value is that of the whole budget for any share, and a larger share finds more values.
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
        # the only part of the workload must be the counts of this attribute
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
