"""Part of one period of a growing table: its values, drawn under the charge of the whole horizon."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from dpscale.base.errors import DataError
from dpscale.contributions.units import Bound, PeriodBound
from dpscale.counting.weighted import PeriodWeights
from dpscale.job.periods import as_read
from dpscale.mechanisms.contract import PlanningProblem
from dpscale.plans.measurement_plan import MeasurementPlan
from dpscale.records import Table
from dpscale.records.table import Partition
from dpscale.runs.periods.contents import combined, compare_contents, hashes_by_period
from dpscale.runs.periods.growing import FOLDER, GrowingPart
from dpscale.runs.source import columns_of
from dpscale.runs.stage import STAGES, Stage
from dpscale.runs.table import TablePart

if TYPE_CHECKING:
    from dpscale.engine.schedulers import Engine

MOST_SUM = 1 << 62  # bound of weighted sums, within signed 64 bits
PERIOD_STAGES: dict[str, Stage] = {"measure": replace(STAGES["measure"], needs=())}


class PeriodPart(TablePart):
    """Part of a period, with a noise key of its own.

    Attributes
    ----------
    stream : GrowingPart
    number : int
        Number of the period.
    """

    stages = PERIOD_STAGES

    def __init__(self, stream: GrowingPart, number: int) -> None:
        label = stream.labels[number]
        self.stream, self.number = stream, number
        super().__init__(stream.run, label, stream.job, stream.declared, f"{FOLDER}/{label}")

    @property
    def key_owner(self) -> PeriodPart:
        return self

    @property
    def secret_path(self) -> Path:
        return self.path / "secret.key"

    def charges(self, entry: str) -> None:
        """Return None: the growing table is charged for all periods."""

    def check_plan(self) -> None:
        """Do nothing: the ledger compares the plan with that of other periods."""

    def restart(self) -> None:
        """Forget an interrupted start of the period, so that it begins again with a fresh noise key.

        It is called only if the ledger has no decision of the period (`_is_decided`), so no noise was drawn. Records
        may have been corrected since the start. The facts of the part have the snapshot of the earlier records, by
        which corrected ones would be refused.
        """
        # a part without a key and a snapshot has not begun: there is nothing to forget
        if self.manifest["secret"] is not None or self.manifest["snapshot"] is not None:
            self.destroy_key()
            self.forget()

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
        # a table has at least one partition; if none has records of these periods, the rows of the first have no weight
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
        # one hash for each period, so that an earlier period is compared with the records that it was released from
        found = hashes_by_period(table, names, weights, self.job.data.unit_column, engine)
        compare_contents(self.stream, found)
        return combined(found)
