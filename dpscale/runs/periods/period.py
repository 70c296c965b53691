"""Run of one period of a growing table: its values, drawn under the charge of the whole horizon."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from typing import Any

import tomli_w

from dpscale.base.errors import DataError, JobError
from dpscale.contributions.units import Bound, PeriodBound
from dpscale.counting.weighted import PeriodWeights
from dpscale.engine import Engine
from dpscale.job.periods import as_read
from dpscale.mechanisms.contract import PlanningProblem
from dpscale.plans.measurement_plan import MeasurementPlan
from dpscale.records import Table
from dpscale.records.table import Partition
from dpscale.runs.create import create_directory
from dpscale.runs.directory import Run
from dpscale.runs.manifest import MANIFEST, first_manifest
from dpscale.runs.periods.contents import combined, compare_contents, hashes_by_period
from dpscale.runs.periods.stream import StreamRun, stream_of
from dpscale.runs.stages import STAGES, Stage
from dpscale.runs.stages.budget import open_ledger
from dpscale.runs.stages.measure import columns_of
from dpscale.runs.table import TableRun
from dpscale.storage.files import present

KIND = "period"
MOST_SUM = 1 << 62
PERIOD_STAGES: dict[str, Stage] = {"measure": replace(STAGES["measure"], needs=())}


class PeriodRun(TableRun):
    """Existing run of a period; `start` makes one."""

    stages = PERIOD_STAGES
    is_part = True
    is_started = False  # by the run of the growing table, which charges

    def _load(self, inputs: tuple[Any, ...]) -> None:
        if self.manifest.get("kind") != KIND:
            raise JobError("run directory", f"{self.path} is not the run of a period", "a folder in periods/",
                           "use the directory of the whole run")  # fmt: skip
        self.stream = inputs[0] if inputs else stream_of(self.path)
        self.job, self.declared = self.stream.job, self.stream.declared

    @classmethod
    def start(cls, stream: StreamRun, number: int) -> PeriodRun:
        """Create the run of a period, or reopen it."""
        path = stream.period_path(number)
        if not present(path / MANIFEST):
            create_directory(path, _first_files(stream, number))
        run = cls(path, (stream,))
        run.is_started = True
        within = {**stream.charge_entry, "piece": number, "job": asdict(stream.job_entry)}
        if run.manifest.get("within") != within:
            run.update(within=within)
        return run

    @property
    def charging(self) -> Run:
        return self.stream

    @property
    def tables(self) -> Mapping[str, TableRun]:
        return {"data": self}

    def check_alone(self) -> None:
        if not self.is_started:
            raise JobError("run directory", f"{self.path} is one period of a growing table",
                           "the directory of the whole run",
                           f"dpscale run {self.path.parents[1]} --period {self.path.name}")  # fmt: skip

    def check_plan(self) -> None:
        """Raise JobError if the period is measured alone; the ledger compares the plan with that of other periods."""
        self.check_alone()

    @property
    def number(self) -> int:
        """Number of the period."""
        return self.stream.number_of(self.path.name)

    def is_decided(self) -> bool:
        """Return whether the ledger has the draws of the period; without them no noise was drawn."""
        if self.manifest.get("ledger") is None:
            return False
        with open_ledger(self) as ledger:
            return ledger.is_decided(self.manifest["within"]["release"], self.manifest["within"]["piece"])

    def restart(self) -> None:
        """Begin the period again with a fresh noise key: nothing was drawn, and records may have been corrected."""
        if self.manifest["secret"] is not None or self.manifest["snapshot"] is not None:
            self.destroy_key()
            self.update(secret=None, secret_tag=None, snapshot=None, privacy=None, stages={})

    @cached_property
    def record_weights(self) -> PeriodWeights | None:
        """Weights of the records of each period up to this one."""
        return PeriodWeights(as_read(self.stream.period), self.stream.time_plan.rows[self.number])

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
        return self.stream.later_plan if self.number else self.stream.period_plan

    def restrict(self, table: Table, engine: Engine) -> Table:
        """Return the table without files whose folders name later periods."""
        weights = self.record_weights
        assert weights is not None
        parts = tuple(part for part in table.partitions if weights.has_records(part))
        self._check_rows(parts, max(map(abs, weights.weights)))
        return replace(table, partitions=parts or table.partitions[:1])

    def _check_rows(self, parts: Sequence[Partition], weight: int) -> None:
        """Raise DataError if weighted sums over all records could exceed 64 bits; it shows no number of records."""
        rows = sum({part.path: part.row_bound() for part in parts}.values())
        if weight * self.stream.largest_part * rows >= MOST_SUM:
            raise DataError("data.path", "more records than weighted sums of the job's numbers can hold in 64 bits",
                            "fewer records, or numbers with fewer steps", "use larger steps")  # fmt: skip

    def content_hash(self, table: Table, engine: Engine) -> str:
        """Return the hash of the records of all periods up to this one.

        Raises DataError if those of an earlier period changed since it was released.
        """
        weights = self.record_weights
        assert weights is not None
        names = columns_of(self.domain, self.measurement_plan.counted_sets)
        found = hashes_by_period(table, names, weights, self.job.data.unit_column, engine)
        compare_contents(self.stream, found)
        return combined(found)


def _first_files(stream: StreamRun, number: int) -> dict[str, bytes]:
    label, job = stream.labels[number], stream.job
    entry = {"name": label, "number": number}
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
