"""Growing table: the content of its run, its job and its plan, and the earlier run that it continues.

*Continuation after the horizon of an earlier run.*
Cumulative answers start from its final estimate. [time] after names the directory of the earlier run, which is complete
or ended. Its final cumulative values are copied into the new run, in folder `earlier`, with the budget whose noise they
have. Both runs have the same plan, so a cumulative answer is the sum of both, and variances add: with budgets a and b
of the two parts (squared mu) the sum has the noise of a budget 1/(1/a + 1/b). Rows of the earlier run were charged
there; a row is in one period of one of them.

The kinds of answers at a period are those of the period alone, cumulative ones (of all periods up to it), and those of
a window of periods.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from fractions import Fraction
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

from dpscale.base.errors import JobError
from dpscale.base.expressions import former_reading
from dpscale.base.numerics import AttributeSet, Floats
from dpscale.domain import Attribute, Domain
from dpscale.domain.attribute import first_day, read_period
from dpscale.job import Job, TableJob
from dpscale.job.periods import check_rows, promise, read_period_file
from dpscale.job.sections import SynthesizeTable
from dpscale.measurement import MeasurementStore
from dpscale.mechanisms.contract import PlanningProblem
from dpscale.plans.measurement_plan import MeasurementPlan
from dpscale.plans.time_plan import CUMULATIVE, TimePlan
from dpscale.privacy.accounting import GAUSSIAN, Cost
from dpscale.privacy.protection import Protection
from dpscale.privacy.secret import destroy_secret
from dpscale.runs.opening import open_run
from dpscale.runs.preflight import check_cap, check_columns
from dpscale.runs.run import NewRun, Part, Run
from dpscale.runs.stage import PERIOD_PARTS, Stage, load_kind, stages_of_run
from dpscale.runs.statement import table_facts
from dpscale.runs.table import OneTable, TablePart, job_entries
from dpscale.storage.files import listed, present, read_bytes, read_text
from dpscale.workload import Workload

PERIOD_FILE, HASH_KEY, FOLDER, ROWS = "period.toml", "periods.key", "periods", "rows"
STAGES = {
    name: replace(stage, needs=() if name == "plan" else ("plan",))
    for name, stage in stages_of_run({
        "plan": ("plan", "plan/plan.json"),
        "measure": ("", FOLDER),
        "reconstruct": ("", FOLDER),
        "synthesize": ("", FOLDER),
        "report": ("report.html", "report.html"),
    }).items()
}  # fmt: skip

EARLIER, INDEX = "earlier", "earlier.json"


class GrowingPart(Part):
    """Growing table: its job, its plan, and the parts of its periods."""

    steps = 1
    rows_cut = None  # it needs a job of one moment, and so do searches and numbers of units
    searched: Mapping[str, Any] = {}
    unit_files: Mapping[AttributeSet, Path] = {}

    def __init__(self, run: Run, job: TableJob, declared: Domain, period: Attribute) -> None:
        super().__init__(run, "data")
        self.job, self.declared, self.period = job, declared, period

    def charges(self, entry: str) -> tuple[Cost, object] | None:
        """Return the cost of all periods of the horizon, and the terms that determine their draws; see `Part`.

        None for other entries of the ledger, because nothing else is charged.
        """
        if entry != "privacy":
            return None
        terms = [self.period_plan.digest, asdict(self.time_plan), self.labels]
        return self.time_plan.total(self.period_plan.cost).coarsened(), terms

    def facts_of_draws(self) -> dict[str, Any]:
        """Return the facts of a table, and in `outer` the integer matrix of which every released period is a row."""
        facts = table_facts(self, self.period_plan, self.period_problem.rows_per_unit)
        time = self.time_plan
        outer = {"names": self.labels, "rows": [list(map(int, row)) for row in time.rows],
                 "together": time.periods_per_unit}  # fmt: skip
        return facts | {"outer": outer}

    @property
    def stages(self) -> Mapping[str, Stage]:  # type: ignore[override]
        return self.run.stages

    @property
    def protects(self) -> Protection:
        """Privacy unit of the job."""
        return promise(self.job.data, self.job.periods, self.period)

    def read_synthetic(self, read: Callable[..., Any]) -> Any:
        raise self.unnamed()

    def unnamed(self) -> JobError:
        """Return the error for answers without a period."""
        known = self.released
        return JobError("period", f"none given for {self.path}, a run of several periods",
                        f"one of {known[0]} to {known[-1]}" if known else "a released period",
                        'name one: release.marginal(…, period="…") or release.at("…"), or give its folder'
                        f" {self.path}/{FOLDER}/PERIOD/KIND")  # fmt: skip

    @cached_property
    def labels(self) -> list[str]:
        """Names of all periods of the horizon."""
        return [str(label) for label in self.period.labels]

    def number_of(self, label: str | int) -> int:
        """Return the number of a period. Raises JobError for one outside the horizon."""
        accepted = f"{self.labels[0]} to {self.labels[-1]}"
        try:
            number = read_period(self.period.by, label) - self.period.low
        except ValueError as error:
            raise JobError("period", f"{label!r}", f"{error}; {accepted}", "fix it") from None
        if not 0 <= number < len(self.labels):
            beyond = number >= len(self.labels)
            raise JobError("period", f"{label}, {'after' if beyond else 'before'} the horizon of the run", accepted,
                           "start another job for later periods" if beyond else "fix it")  # fmt: skip
        return number

    def end_of(self, number: int) -> date:
        """Return the first day after a period."""
        return first_day(self.period.by, self.period.low + number + 1)

    @property
    def released(self) -> list[str]:
        """Periods whose values are drawn, in order."""
        entries: dict[str, Any] = self.manifest.get("released", {})
        if set(entries) != set(self.labels[: len(entries)]):
            raise JobError("run directory", f"manifest.json in {self.path} lacks a released period",
                           "the file as the run wrote it", "restore it, or start a new run")  # fmt: skip
        return self.labels[: len(entries)]

    def answers_at(self, label: str | int, kind: str) -> TablePart:
        """Return the part with the answers of one kind at a released period.

        Raises JobError for a period that is not released, and for a kind that the job does not ask for.
        """
        number = self.number_of(label)
        if kind not in self.job.periods.answers:
            raise JobError("kind", f"{kind!r}", ", ".join(self.job.periods.answers), "name one of them, or add it to"
                           " time.answers of a new job")  # fmt: skip
        if self.labels[number] not in self.released:
            raise JobError("period", f"{label}, which is not released", ", ".join(self.released) or "a released one",
                           f"release it: dpscale run {self.path} --period {self.labels[number]}")  # fmt: skip
        return self.part_at(f"{FOLDER}/{self.labels[number]}/{kind}")

    def shared_noise(self, labels: Sequence[str | int], kind: str) -> Floats:
        """Return the covariances of the values of answers of one kind at released periods, shape (periods, periods).

        Their unit is arbitrary. Cumulative answers that continue an earlier horizon share the noise of its last ones.
        """
        covariances = self.time_plan.shared_noise(kind, [self.number_of(label) for label in labels])
        earlier = read_earlier(self) if kind == CUMULATIVE else None
        if earlier is not None:
            covariances += self.planning_problem.budget.amount / earlier.amount / self.time_plan.factor
        return covariances

    def part_at(self, folder: str) -> TablePart:
        """Return the part of a period or of its answers or rows, by its folder: FOLDER/LABEL or FOLDER/LABEL/KIND."""
        if folder not in self._parts:
            _, label, *kind = folder.split("/")
            name = "period" if not kind else "rows" if kind == [ROWS] else "answers"
            self._parts[folder] = load_kind(PERIOD_PARTS[name])(self, self.number_of(label), *kind)
        return self._parts[folder]

    @cached_property
    def _parts(self) -> dict[str, TablePart]:
        return {}

    @cached_property
    def domain(self) -> Domain:
        return self.declared

    @property
    def domain_file(self) -> str:
        """Path of the domain file in the run directory."""
        return "domain.toml"

    @cached_property
    def workload(self) -> Workload:
        with former_reading(self.run.is_charged):
            return self.job.build_workload(self.declared)

    @cached_property
    def planning_problem(self) -> PlanningProblem:
        """The planning problem of one table that has the whole budget."""
        problem, charged = self.job.planning_problem(self.workload), self.manifest["privacy"]
        if charged is None:
            return problem
        return replace(problem, budget=replace(problem.budget, amount=float(Fraction(charged["budget"]))))

    @cached_property
    def measurement_plan(self) -> MeasurementPlan:
        """Plan of one table that has the whole budget; its blocks are measured in every period."""
        return self.read_measurement_plan(self.planning_problem)

    def read_measurement_plan(self, problem: PlanningProblem, structure: Any = None) -> MeasurementPlan:
        """Return the plan of a period at the budget of a problem.

        Parameters
        ----------
        problem : PlanningProblem
        structure : decision, optional
            Measurements that follow from the values of the first period.
        """
        read = self.job.method.read(self.path / "plan", problem, self.job.options)
        return self.job.method.for_period(read, self.time_plan.context(problem.budget.amount, structure))

    @cached_property
    def later_plan(self) -> MeasurementPlan:
        """Plan of the periods after the first one, which is measured before."""
        if self.structure is None:
            return self.period_plan
        return self.read_measurement_plan(self.period_problem, self.structure)

    @cached_property
    def structure(self) -> Any:
        """Second decision of the first period, which later periods measure too; None if the plan has one decision."""
        first = self.part_at(f"{FOLDER}/{self.labels[0]}")
        return next((decision for decision in first.measurements.decisions() if decision.round), None)

    @cached_property
    def time_plan(self) -> TimePlan:
        """Weights of earlier periods in the measurements of each period.

        Everything but the weights follows from the job. Raises JobError if the file states something else.
        """
        found, settings = TimePlan.read(self.path / "plan"), self.job.periods
        expected = replace(found, answers=tuple(settings.answers), window=settings.window or 0,
                           periods_per_unit=min(self.periods_per_unit, len(self.labels)),
                           noise=self.job.privacy.noise)  # fmt: skip
        if found != expected or found.horizon != len(self.labels):
            raise JobError("run directory", f"time.json in {self.path / 'plan'} is not that of the job",
                           "the file as the run wrote it", "restore it, or start a new run")  # fmt: skip
        return found

    def check_plan(self) -> None:
        """Raise JobError if the plan does not follow from the job."""
        read = self.job.method.read(self.path / "plan", self.period_problem, self.job.options)
        if not self.job.method.follows(read, self.period_problem, self.job.options):
            raise JobError("run directory", f"the plan in {self.path / 'plan'} does not follow from the job",
                           "the plan as the run wrote it", "start a new run")  # fmt: skip

    @property
    def largest_part(self) -> int:
        """Largest number of parts of a record on a cell of a counted set; 1 without sums of numbers."""
        parts = {name: self.declared[name].largest_part for name in self.declared.axis_names}
        return max((prod(parts[name] for name in names) for names in self.workload.sets), default=1)

    @property
    def measurements(self) -> Any:
        raise self.unnamed()

    @cached_property
    def period_problem(self) -> PlanningProblem:
        """The planning problem of one measurement at weight 1."""
        problem = self.planning_problem
        amount = self.time_plan.amount(problem.budget.amount)
        return replace(problem, budget=replace(problem.budget, amount=amount))

    @cached_property
    def period_plan(self) -> MeasurementPlan:
        """Plan of the first period."""
        return self.read_measurement_plan(self.period_problem)

    @property
    def changes(self) -> str:
        """Whether changes of released periods are accepted; a job may accept them later (`_reopen`)."""
        return str(self.manifest.get("changes", self.job.periods.changed))

    @property
    def hash_key(self) -> Path:
        """File with the key of the hashes of the records of each period."""
        return self.path / HASH_KEY

    def destroy_keys(self) -> None:
        """Destroy the key of the hashes of records, and those of periods that have started."""
        for label in self.labels:
            if label in self.manifest.get("parts", {}):
                self.part_at(f"{FOLDER}/{label}").destroy_key()
        destroy_secret(self.hash_key)

    @property
    def synthesis(self) -> SynthesizeTable | None:
        """Settings of the synthetic rows."""
        return self.job.synthesize

    def request_rows(self, settings: SynthesizeTable) -> None:
        """Raise JobError: the number of new rows of a period follows from its estimates."""
        check_rows(settings)

    def is_done(self, stage: str) -> bool:
        """Return whether nothing of a stage remains for the released periods.

        Measuring is done if no further period may be released now. After the last period it also destroys the key of
        the hashes.
        """
        if stage == "measure":
            if self.ended:
                return True
            if len(self.released) == len(self.labels):
                return not present(self.hash_key)
            return not self.may_release
        if stage in ("reconstruct", "synthesize"):
            return all(self.answers_at(label, kind).done(stage) for label in self.released for kind in self.kinds)
        return stage != "report" or self.manifest.get("reported") == self.released

    def done(self, stage: str) -> bool:
        """Return whether a stage is done for all released periods."""
        return self.run.done(stage)

    @property
    def periods_per_unit(self) -> int:
        """Largest number of periods in which a privacy unit of the promise has rows; 1 for rows and unit-periods."""
        return self.job.periods.max_periods_per_unit or 1

    @property
    def kinds(self) -> list[str]:
        """Kinds of answers at each period."""
        return list(self.job.periods.answers)

    @property
    def may_release(self) -> bool:
        """Whether the next period has ended by the calendar."""
        number = len(self.released)
        return number < len(self.labels) and self.end_of(number) <= date.today()

    def offers(self, stage: str) -> bool:
        """Return whether any period is released, for measuring."""
        return stage == "measure" and bool(self.released)

    def require(self, stage: str) -> None:
        self.run.require(stage)


class GrowingTable(OneTable):
    """Content of the run of a growing table: the part "data", and parts of each period in folders."""

    stages = STAGES  # type: ignore[assignment]
    table: Any

    def open_table(self, run: Run, declared: Domain, period: Attribute | None) -> Any:  # type: ignore[override]
        """Return the part of the table, with its periods."""
        period = period or read_period_file(Domain.read(run.path / PERIOD_FILE))
        return load_kind(PERIOD_PARTS["table"])(run, self.job.table, declared, period)

    @classmethod
    def prepare(cls, job: Job) -> NewRun:
        """Return the contents of a new run, with the final values of the run that it continues, if it continues one."""
        table = job.table
        domain, period = table.read_domain(), table.read_period()
        if domain.totals:
            raise JobError("numbers", f"{domain.totals[0].name} with per_unit = \"total\" and data.period",
                           "numbers whose bounds hold for each record", "leave per_unit out")  # fmt: skip
        table.build_workload(domain)

        def files() -> dict[str, bytes]:
            after = table.periods.after
            earlier = earlier_files(open_run(after), domain, period.low) if after else {}
            return {**earlier, **domain.to_files(), PERIOD_FILE: Domain([period]).to_files()["domain.toml"]}

        return NewRun(job=job, files=files, entries=job_entries(table, domain), domain=domain, inputs=(domain, period))

    @classmethod
    def preflight(cls, job: Job, inputs: tuple[Any, ...]) -> None:
        """Raise an error if the cap of the ledger does not permit the job, or its columns are not in the data."""
        (domain, period), table = inputs, job.table
        labels = [str(label) for label in period.labels]
        check_cap(table, promise(table.data, table.periods, period), table.row_budget(domain), periods=labels)
        check_columns(table, domain, table.build_workload(domain))

    def reopen(self, job: Job) -> None:
        """Take over whether changes are accepted; raise JobError if the domain file has other periods than the run."""
        table, run = self.table, self.table.run
        self.job = job.model_copy(update={"engine": self.job.engine})
        given, rows = self.job.table, table.job.synthesize
        if given.periods.changed != table.changes:  # the stored job does not change
            with run.locked():
                run.update(changes=given.periods.changed)
        table.job = replace(given, data=given.data.model_copy(update={"synthesize": rows}))
        if table.period.name in Domain.read(given.data.domain).names and given.read_period() != table.period:
            raise JobError("data.period", f"other periods than those of {run.path}, which begin with"
                           f" {table.labels[0]}", f"{len(table.labels)} periods from {table.labels[0]}",
                           "restore the domain file, or start a new run with --run-dir")  # fmt: skip

    def part_at(self, folder: str) -> Any:
        if not folder:
            return self.table
        top, *names = folder.split("/")
        kinds = (*self.table.kinds, ROWS)
        if top != FOLDER or len(names) not in (1, 2) or names[1:] not in ([], *([kind] for kind in kinds)):
            path = self.table.path
            raise JobError("run directory", f"{path / folder} is no part of the run in {path}",
                           f"{FOLDER}/PERIOD/KIND in it, where KIND is {', '.join(kinds)}", "fix it")  # fmt: skip
        return self.table.part_at(folder)

    @property
    def is_complete(self) -> bool:  # type: ignore[override]
        """Whether all periods are released, and the release is not published yet."""
        return len(self.table.released) == len(self.table.labels) and present(self.table.hash_key)

    @property
    def periods(self) -> Sequence[str]:  # type: ignore[override]
        return self.table.labels

    def changed_data(self) -> dict[str, list[str]]:
        """Return an empty dict: the table grows, and records of earlier periods are compared when they are read."""
        return {}

    def open_data(self) -> Mapping[str, Any]:
        return {}


def earlier_files(run: Run, domain: Domain, period_low: int) -> dict[str, bytes]:
    """Return the files of the final cumulative values of an earlier run, to be copied into a new one.

    The index of the files has the facts by which the values are read: `release` and `snapshot` are labels of the
    values, and `amount` is the squared μ of which they have the noise.

    Parameters
    ----------
    run : Run
        Earlier run.
    domain : Domain
        Domain of the new run.
    period_low : int
        Number of the first period of the new run.

    Raises
    ------
    JobError
        If the earlier run has periods to come, another domain, or no cumulative answers of a fixed plan.
    """
    directory = str(run.path)
    if not run.content.periods or not run.table.released:
        raise _refused(directory, "which is not the run of a growing table with released periods")
    table = run.table
    if not run.ended and len(table.released) < len(table.labels):
        raise _refused(directory, "which has periods to come", f"end it first: dpscale job end {directory}")
    if CUMULATIVE not in table.kinds or not table.job.method.data_independent or run.job.privacy.noise != GAUSSIAN:
        raise _refused(directory, "which has no cumulative answers of a fixed plan with Gaussian noise")
    if table.declared.digest != domain.digest:
        raise _refused(directory, "which has another domain")
    last = table.released[-1]
    if table.period.low + table.number_of(last) >= period_low:
        raise _refused(directory, f"whose last period is {last}", "let the new horizon begin after it")
    answers = table.answers_at(last, CUMULATIVE)
    store = answers.measurements
    facts = {"release": store.release, "snapshot": store.snapshot, "amount": answers.planning_problem.budget.amount,
             "plan": table.measurement_plan.digest, "last": last}  # fmt: skip
    names = [name for name in listed(store.folder) if name.endswith(".parquet")]
    files = {f"{EARLIER}/{name}": read_bytes(store.folder / name) for name in names}
    return files | {f"{EARLIER}/{INDEX}": json.dumps(facts).encode()}


def _refused(directory: str, why: str, remedy: str = "name another run, or leave it out") -> JobError:
    takes = "the run of an earlier horizon that is complete or ended, with the same domain"
    return JobError("time.after", f"{directory}, {why}", takes, remedy)


@dataclass(frozen=True, eq=False)
class EarlierValues:
    """Final cumulative values of an earlier run.

    Attributes
    ----------
    store : MeasurementStore
    amount : float
        Budget of one table whose noise they have.
    """

    store: MeasurementStore
    amount: float


def read_earlier(run: Any) -> EarlierValues | None:
    """Return the earlier values of a growing table; None if it has none. Raises JobError if its plan is another one."""
    folder = run.path / EARLIER
    if not present(folder / INDEX):
        return None
    facts: dict[str, Any] = json.loads(read_text(folder / INDEX))
    if facts["plan"] != run.measurement_plan.digest:
        raise JobError("time.after", "a run with another plan of one table", "the same workload and mechanism",
                       "use the workload of the earlier run, or leave it out")  # fmt: skip
    problem = run.planning_problem
    plan = run.read_measurement_plan(replace(problem, budget=replace(problem.budget, amount=facts["amount"])))
    rows = problem.rows_per_unit
    return EarlierValues(
        MeasurementStore(
            folder=folder,
            release=facts["release"],
            snapshot=facts["snapshot"],
            measurement_plan=plan,
            rows_per_unit=rows,
        ),
        facts["amount"],
    )
