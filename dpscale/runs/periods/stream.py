"""Run of a growing table: its job, its periods and its charge."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from datetime import date
from fractions import Fraction
from functools import cached_property
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any

import tomli_w

from dpscale.base.errors import JobError
from dpscale.domain import Attribute, Domain
from dpscale.domain.attribute import first_day, read_period
from dpscale.job import TableJob
from dpscale.job.periods import check_rows, promise, read_period_file
from dpscale.job.sections import SynthesizeTable
from dpscale.mechanisms.contract import PlanningProblem
from dpscale.plans.measurement_plan import MeasurementPlan
from dpscale.plans.time_plan import TimePlan
from dpscale.privacy.accounting import Cost
from dpscale.privacy.protection import Protection
from dpscale.privacy.secret import destroy_secret
from dpscale.runs.directory import NewRun, Run
from dpscale.runs.joint_parts import protection_fields
from dpscale.runs.manifest import MANIFEST, first_manifest, versions
from dpscale.runs.opening import open_run
from dpscale.runs.stages import STAGES as TABLE_STAGES, Stage
from dpscale.runs.stages.budget import Charge, charge_release, public_hashes
from dpscale.runs.stages.preflight import check_cap, check_columns
from dpscale.runs.stored_job import read_stored
from dpscale.runs.table import TableRun, job_digest
from dpscale.storage.files import present, read_text
from dpscale.workload import Workload

KIND = "periods"
PERIOD_FILE, HASH_KEY, FOLDER, EARLIER = "period.toml", "periods.key", "periods", "earlier"
STAGES: dict[str, Stage] = {
    name: replace(TABLE_STAGES[name], folder=folder, leaves=leaves, needs=needs,
                  module=f"dpscale.runs.periods.stages:{name}")
    for name, folder, leaves, needs in (
        ("plan", "plan", "plan/plan.json", ()),
        ("measure", "", FOLDER, ("plan",)),
        ("reconstruct", "", FOLDER, ("plan",)),
        ("synthesize", "", FOLDER, ("plan",)),
        ("report", "report.html", "report.html", ("plan",)),
    )
}  # fmt: skip


class StreamRun(Run):
    """Existing run of a growing table. `create` makes one for a job, or reopens it."""

    job: TableJob
    job_class = TableJob
    stages = STAGES
    declared: Domain
    period: Attribute

    def _load(self, inputs: tuple[Any, ...]) -> None:
        if inputs:
            self.job, self.declared, self.period = inputs
        else:
            self.job = read_stored(TableJob, self.path, self.manifest)
            self.declared = Domain.read(self.path / "domain.toml")
            self.period = read_period_file(Domain.read(self.path / PERIOD_FILE))
        if self.manifest["job_sha256"] != job_digest(self.job, self.declared, self.manifest.get("job_version", 1)):
            raise JobError("run directory", f"job.toml or domain.toml in {self.path} was edited",
                           "the files as the run wrote them (memory and scheduler may change)",
                           "restore them, or start a new run with your job")  # fmt: skip

    @classmethod
    def _prepare(cls, job: TableJob) -> NewRun:
        domain, period = job.read_domain(), job.read_period()
        if domain.totals:
            raise JobError("numbers", f"{domain.totals[0].name} with per_unit = \"total\" and data.period",
                           "numbers whose bounds hold for each record", "leave per_unit out")  # fmt: skip
        job.build_workload(domain)
        digest, earlier = job_digest(job, domain), job_digest(job, domain, 1)
        return NewRun(digest, lambda number: _first_files(job, domain, period, earlier, number), (domain, period),
                      (earlier,))  # fmt: skip

    @classmethod
    def _preflight(cls, job: TableJob, inputs: tuple[Any, ...]) -> None:
        domain, period = inputs
        labels = [str(one) for one in period.labels]
        check_cap(job, promise(job.data, job.periods, period), job.row_budget(domain), periods=labels)
        check_columns(job, domain, job.build_workload(domain))

    @classmethod
    def table_jobs(cls, job: TableJob) -> Mapping[str, TableJob]:
        return {"data": job}

    def _reopen(self, job: TableJob) -> None:
        """Take over whether changes are accepted; raise JobError if the domain file has other periods than the run."""
        self.job = job.model_copy(update={"engine": self.job.engine, "synthesize": self.job.synthesize})
        if job.periods.changed != self.changes:
            with self.locked():
                self.update(changes=job.periods.changed)
        if self.period.name in Domain.read(job.data.domain).names and job.read_period() != self.period:
            raise JobError("data.period", f"other periods than those of {self.path}, which begin with"
                           f" {self.labels[0]}", f"{len(self.labels)} periods from {self.labels[0]}",
                           "restore the domain file, or start a new run with --run-dir")  # fmt: skip

    @property
    def tables(self) -> Mapping[str, StreamRun]:
        return {"data": self}

    def read_synthetic(self, read: Callable[..., Any]) -> Any:
        raise self.unnamed()

    def unnamed(self) -> JobError:
        """Return the error for answers without a period."""
        known = self.released
        return JobError("period", f"none given for {self.path}, a run of several periods",
                        f"one of {known[0]} to {known[-1]}" if known else "a released period",
                        'name one: release.marginal(…, period="…"), or release.at("…")')  # fmt: skip

    @property
    def protects(self) -> Protection:
        return promise(self.job.data, self.job.periods, self.period)

    @property
    def data_paths(self) -> list[str]:
        return [self.job.data.path]

    def changed_data(self) -> dict[str, list[str]]:
        """Return an empty dict: the table grows, and records of earlier periods are compared when they are read."""
        return {}

    def open_data(self) -> Mapping[str, Any]:
        return {}

    @cached_property
    def labels(self) -> list[str]:
        """Names of all periods of the horizon."""
        return [str(one) for one in self.period.labels]

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

    def period_path(self, number: int) -> Path:
        return self.path / FOLDER / self.labels[number]

    @property
    def released(self) -> list[str]:
        """Periods whose values are drawn, in order."""
        entries: dict[str, Any] = self.manifest.get("released", {})
        if set(entries) != set(self.labels[: len(entries)]):
            raise JobError("run directory", f"manifest.json in {self.path} lacks a released period",
                           "the file as the run wrote it", "restore it, or start a new run")  # fmt: skip
        return self.labels[: len(entries)]

    @property
    def parts(self) -> Mapping[str, Run]:
        """Runs of the periods that have started."""
        paths = {label: self.period_path(number) for number, label in enumerate(self.labels)}
        return {label: open_run(path) for label, path in paths.items() if present(path / MANIFEST)}

    def answers_at(self, label: str | int, kind: str) -> TableRun:
        """Return the run with the answers of one kind at a released period.

        Raises JobError for a period that is not released, and for a kind that the job does not ask for.
        """
        number = self.number_of(label)
        if kind not in self.job.periods.answers:
            raise JobError("kind", f"{kind!r}", ", ".join(self.job.periods.answers), "name one of them, or add it to"
                           " time.answers of a new job")  # fmt: skip
        if self.labels[number] not in self.released:
            raise JobError("period", f"{label}, which is not released", ", ".join(self.released) or "a released one",
                           f"release it: dpscale run {self.path} --period {self.labels[number]}")  # fmt: skip
        answers = import_module("dpscale.runs.periods.answers").AnswersRun
        found: TableRun = answers(self.period_path(number) / kind, (self,))
        return found

    @cached_property
    def domain(self) -> Domain:
        return self.declared

    @property
    def domain_file(self) -> str:
        """Path of the domain file in the run directory."""
        return "domain.toml"

    @cached_property
    def workload(self) -> Workload:
        return self.job.build_workload(self.declared)

    @cached_property
    def planning_problem(self) -> PlanningProblem:
        """The planning problem of one table that has the whole budget."""
        problem, charged = self.job.planning_problem(self.workload), self.manifest["privacy"] or {}
        if "budget" not in charged:
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
        return read.for_period(self.time_plan.context(problem.budget.amount, structure))

    @cached_property
    def later_plan(self) -> MeasurementPlan:
        """Plan of the periods after the first one, which is measured before."""
        if self.structure is None:
            return self.period_plan
        return self.read_measurement_plan(self.period_problem, self.structure)

    @cached_property
    def structure(self) -> Any:
        """Second decision of the first period; None if the plan has one decision."""
        first = open_run(self.period_path(0))
        assert isinstance(first, TableRun)
        return next((one for one in first.measurements.decisions() if one.round), None)

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
        each = {name: self.declared[name].largest_part for name in self.declared.axis_names}
        return max((prod(each[name] for name in names) for names in self.workload.sets), default=1)

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
    def cost(self) -> Cost:
        """Cost of all periods of the horizon."""
        return self.time_plan.total(self.period_plan.cost).coarsened()

    @property
    def spent(self) -> Cost:
        entry = self.manifest["privacy"]
        return Cost.from_dict(entry["cost"]) if entry else Cost()

    @cached_property
    def charge_entry(self) -> dict[str, Any]:
        """The ledger entry of the whole horizon; available after planning."""
        content = [self.manifest["job_sha256"], self.period_plan.digest, asdict(self.time_plan), self.labels]
        return {
            "release": self.manifest["release"],
            "cost": self.cost.to_dict(),
            "digest": hashlib.sha256(json.dumps(content).encode()).hexdigest(),
            "epsilon": self.job.privacy.epsilon,
            "delta": self.job.privacy.delta,
            "protects": protection_fields(self.protects),
            "periods": self.labels,
            "facts": public_hashes(self),
        }

    def charge(self, reserve: bool = True) -> str:
        """Reserve the cost of the whole horizon and return the release's state; a repeated call costs nothing."""
        own = self.charge_entry
        terms = own["release"], Cost.from_dict(own["cost"]), own["digest"], own["epsilon"], own["delta"]
        recorded = {"dataset": self.job.dataset, **own, **own["protects"],
                    "budget": str(Fraction(self.planning_problem.budget.amount))}  # fmt: skip
        charge = Charge(*terms, self.protects, own["facts"], periods=self.labels)
        return charge_release(self, charge, recorded, reserve)

    @property
    def changes(self) -> str:
        """Whether changes of released periods are accepted; a job may accept them later (`_reopen`)."""
        return str(self.manifest.get("changes", self.job.periods.changed))

    @property
    def hash_key(self) -> Path:
        """File with the key of the hashes of the records of each period."""
        return self.path / HASH_KEY

    def destroy_key(self) -> None:
        super().destroy_key()
        destroy_secret(self.hash_key)

    @property
    def synthesis(self) -> SynthesizeTable | None:
        """Settings of the synthetic rows."""
        return self.job.synthesize

    def request_rows(self, settings: SynthesizeTable) -> None:
        """Raise JobError: the number of new rows of a period follows from its estimates."""
        check_rows(settings)

    def done(self, stage: str) -> bool:
        """Return whether a stage is done for all released periods, and for measuring, whether none may be released."""
        if not super().done(stage):
            return False
        if stage == "measure":
            if self.ended:
                return True
            return not present(self.hash_key) if len(self.released) == len(self.labels) else not self.may_release
        if stage in ("reconstruct", "synthesize"):
            return all(self.answers_at(one, kind).done(stage) for one in self.released for kind in self.kinds)
        return stage != "report" or self.manifest.get("reported") == self.released

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

    def require(self, stage: str) -> None:
        """Raise JobError unless a stage is done; measuring is, if any period is released."""
        if stage == "measure" and self.released:
            return
        super().require(stage)


def _first_files(job: TableJob, domain: Domain, period: Attribute, digest: str, number: int) -> dict[str, bytes]:
    """Return the initial files of a run, the manifest last."""
    entries: dict[str, Any] = {"mechanism": {"name": job.method.name, "version": job.method.version}}
    entries |= {"versions": versions() | job.distributions} if job.distributions else {}
    manifest = first_manifest(job.engine.seed, digest, number, kind=KIND, **entries)
    continuation = import_module("dpscale.runs.periods.continuation")
    after = job.periods.after
    return {
        **(continuation.earlier_files(after, domain, period.low) if after else {}),
        **domain.to_files(),
        PERIOD_FILE: Domain([period]).to_files()["domain.toml"],
        "job.toml": tomli_w.dumps(job.to_dict()).encode(),
        MANIFEST: json.dumps(manifest, indent=2).encode(),
    }


def stream_of(path: Path) -> StreamRun:
    """Return the run of the growing table that contains a run of a period or of its answers."""
    kind = json.loads(read_text(path / MANIFEST)).get("kind")
    return StreamRun(path.parents[1] if kind == "period" else path.parents[2])
