"""Run of one period of a growing table: its values, drawn under the charge of the whole horizon."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import tomli_w

from dpscale.base.errors import JobError
from dpscale.contributions.units import Bound, PeriodBound
from dpscale.counting.weighted import PeriodWeights
from dpscale.domain import Domain
from dpscale.engine import Engine
from dpscale.job import TableJob
from dpscale.job.periods import as_read
from dpscale.mechanisms.contract import PlanningProblem
from dpscale.plans.measurement_plan import MeasurementPlan
from dpscale.records import Table
from dpscale.runs.create import create_directory
from dpscale.runs.manifest import MANIFEST, first_manifest
from dpscale.runs.periods.contents import combined, hashes_by_period
from dpscale.runs.periods.stream import StreamRun, stream_of
from dpscale.runs.stages import STAGES, Stage
from dpscale.runs.stages.measure import columns_of
from dpscale.runs.table import TableRun
from dpscale.storage.files import present

KIND = "period"
PERIOD_STAGES: dict[str, Stage] = {"measure": replace(STAGES["measure"], needs=())}


class PeriodRun(TableRun):
    """Existing run of a period; `start` makes one."""

    stages = PERIOD_STAGES

    def _load(self, inputs: tuple[Any, ...]) -> None:
        if self.manifest.get("kind") != KIND:
            raise JobError("run directory", f"{self.path} is not the run of a period", "a folder in periods/",
                           "use the directory of the whole run")  # fmt: skip
        self.job = TableJob.read(self.path / "job.toml", stored=True)
        self.declared = Domain.read(self.path / "domain.toml")

    @classmethod
    def start(cls, stream: StreamRun, number: int) -> PeriodRun:
        """Create the run of a period, or reopen it."""
        path = stream.period_path(number)
        if not present(path / MANIFEST):
            create_directory(path, _first_files(stream, number))
        run = cls(path)
        vars(run)["stream"] = stream
        within = {**stream.charge_entry, "piece": number}
        if run.manifest.get("within") != within:
            run.update(within=within)
        return run

    @cached_property
    def stream(self) -> StreamRun:
        """Run of the growing table."""
        return stream_of(self.path)

    @property
    def tables(self) -> Mapping[str, TableRun]:
        return {"data": self}

    def check_alone(self) -> None:
        if "stream" not in vars(self):
            raise JobError("run directory", f"{self.path} is one period of a growing table",
                           "the directory of the whole run",
                           f"dpscale release-period {self.path.parents[1]} {self.path.name}")  # fmt: skip

    def check_plan(self) -> None:
        """Raise JobError if the period is measured alone; the ledger compares the plan with that of other periods."""
        self.check_alone()

    @property
    def number(self) -> int:
        """Number of the period."""
        return int(self.manifest["period"]["number"])

    @cached_property
    def record_weights(self) -> PeriodWeights | None:
        """Weights of the records of each period up to this one."""
        return PeriodWeights(as_read(self.stream.period), tuple(self.manifest["period"]["weights"]))

    @property
    def contribution_bound(self) -> Bound:
        """Largest number of counted rows of a unit in a period, and of its periods; any number for unit-periods."""
        periods = self.job.periods.max_periods_per_unit or len(self.stream.labels)
        assert self.record_weights is not None
        return PeriodBound(self.job.data.max_rows_per_unit or 1, periods, self.record_weights)

    @cached_property
    def planning_problem(self) -> PlanningProblem:
        """The planning problem of one measurement at weight 1."""
        return self.stream.period_problem

    @cached_property
    def measurement_plan(self) -> MeasurementPlan:
        structure = self.stream.structure if self.number else None
        return self.stream.read_measurement_plan(self.planning_problem, structure)

    def restrict(self, table: Table) -> Table:
        """Return the table without files whose folders name later periods."""
        weights = self.record_weights
        assert weights is not None
        parts = tuple(part for part in table.partitions if weights.has_records(part))
        return replace(table, partitions=parts or table.partitions[:1])

    def content_hash(self, table: Table, engine: Engine) -> str:
        """Return the hash of the records of all periods up to this one.

        Raises DataError if those of an earlier period changed since it was released.
        """
        weights = self.record_weights
        assert weights is not None
        names = columns_of(self.domain, self.measurement_plan.counted_sets)
        found = hashes_by_period(table, names, weights, self.job.data.privacy_unit, engine)
        self.stream.compare_contents(found)
        return combined(found)


def _first_files(stream: StreamRun, number: int) -> dict[str, bytes]:
    label, job = stream.labels[number], stream.job
    entry = {"name": label, "number": number, "weights": list(stream.time_plan.rows[number])}
    manifest = first_manifest(job.engine.seed, stream.manifest["job_sha256"], _seeded_number(stream, number), kind=KIND,
                              period=entry, mechanism=stream.manifest["mechanism"])  # fmt: skip
    return {
        **stream.declared.to_files(),
        "job.toml": tomli_w.dumps(job.to_dict()).encode(),
        MANIFEST: json.dumps(manifest, indent=2).encode(),
    }


def _seeded_number(stream: StreamRun, number: int) -> int:
    """Return a number that distinguishes the noise of periods and of runs of a job with a seed."""
    return 1 + len(stream.labels) * (int(stream.manifest.get("number", 1)) - 1) + number


