"""Answers of one kind at one period: combinations of the values of the periods up to it.

The values Σ_s c_s y_s of all blocks are estimates of K Σ_s w_s x_s (`plans.time_plan`) with |c|² times the noise
variance of one period. That is a release of one table with the same plan and a smaller budget, so reconstruction,
answers and synthetic rows are those of any run. Values are written in the units of the draws at that budget. Nothing is
drawn and no record is read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np
import tomli_w

from dpscale.base.arrow import pa
from dpscale.base.errors import JobError
from dpscale.base.numerics import Floats
from dpscale.engine import Engine
from dpscale.measurement.value_files import Labelled, Span, file_name, write_values
from dpscale.mechanisms.contract import PlanningProblem
from dpscale.plans.measurement_plan import Decision, MeasurementPlan, MeasurementRequest
from dpscale.plans.requests import MeasurementRequests, as_requests
from dpscale.plans.time_plan import CUMULATIVE
from dpscale.privacy.accounting import LAPLACE
from dpscale.runs.create import create_directory
from dpscale.runs.manifest import MANIFEST, first_manifest
from dpscale.runs.opening import open_run
from dpscale.runs.periods.continuation import EarlierValues, read_earlier
from dpscale.runs.periods.period import PeriodRun
from dpscale.runs.periods.stream import StreamRun, stream_of
from dpscale.runs.stages import STAGES, Stage
from dpscale.runs.table import TableRun
from dpscale.storage.files import create, present, read_text

KIND, ROWS = "period answers", "rows"
ANSWER_STAGES: dict[str, Stage] = {
    "measure": replace(STAGES["measure"], needs=(), spends=False, module="dpscale.runs.periods.answers"),
    "reconstruct": replace(STAGES["reconstruct"], needs=("measure",)),
}


class AnswersRun(TableRun):
    """Existing run of the answers of one kind at a period; `start` makes one."""

    stages = ANSWER_STAGES
    is_part = True
    manifest_kind = KIND

    def _load(self, inputs: tuple[Any, ...]) -> None:
        if self.manifest.get("kind") != self.manifest_kind:
            raise JobError("run directory", f"{self.path} has no answers of a period", "a folder in periods/PERIOD/",
                           "use the directory of the whole run")  # fmt: skip
        self.stream = inputs[0] if inputs else stream_of(self.path)
        self.job, self.declared = self.stream.job, self.stream.declared

    @classmethod
    def start(cls, stream: StreamRun, number: int, name: str) -> Self:
        """Create the run of some answers of a measured period, or reopen it; `name` is that of its folder."""
        path = stream.period_path(number) / name
        if not present(path / MANIFEST):
            create_directory(path, _first_files(stream, number, name, cls.manifest_kind))
        return cls(path, (stream,))

    @property
    def tables(self) -> Mapping[str, TableRun]:
        return {"data": self}

    @property
    def number(self) -> int:
        """Number of the period."""
        return self.stream.number_of(self.path.parent.name)

    @property
    def kind(self) -> str:
        """Kind of the answers."""
        return self.path.name

    @cached_property
    def planning_problem(self) -> PlanningProblem:
        """The problem of one table whose measurements have the variance of the combined values."""
        problem = self.stream.planning_problem
        variance = self.stream.time_plan.variance(self.kind, self.number)
        scale = math.sqrt(variance) if problem.budget.noise == LAPLACE else variance
        amount = problem.budget.amount / scale
        if self.earlier is not None:
            amount = 1 / (1 / amount + 1 / self.earlier.amount)
        return replace(problem, budget=replace(problem.budget, amount=amount))

    @cached_property
    def earlier(self) -> EarlierValues | None:
        """Final values of the run of an earlier horizon, which cumulative answers start from."""
        return read_earlier(self.stream) if self.kind == CUMULATIVE and self.manifest_kind == KIND else None

    @cached_property
    def measurement_plan(self) -> MeasurementPlan:
        return self.stream.read_measurement_plan(self.planning_problem, self.stream.structure)

    @property
    def decisions(self) -> list[Decision]:
        """Decisions of the combined values: the first one, and one that follows from the first period."""
        plan = self.measurement_plan
        second = plan.combined(float(np.sum(self.coefficients**2)))
        return [plan.first_decision(), *([second] if second is not None else [])]

    @cached_property
    def coefficients(self) -> Floats:
        """Coefficients of the values of the periods up to this one."""
        return self.stream.time_plan.coefficients(self.kind, self.number)

    @cached_property
    def periods(self) -> list[PeriodRun]:
        """Runs of the periods up to this one."""
        return [PeriodRun(self.stream.period_path(number), (self.stream,)) for number in range(self.number + 1)]

    def check_alone(self) -> None:
        """Do nothing: answers are post-processing."""

    def shifted(self, request: MeasurementRequest, values: Floats) -> Floats:
        """Return the combined values of a request, in the units of its draw, as they are stored."""
        return values

    def done(self, stage: str) -> bool:
        """Return whether a stage is done; rows are those of the periods that the answers count."""
        if stage != "synthesize" or self.manifest_kind != KIND:
            return super().done(stage)
        return all(present(path / MANIFEST) and open_run(path).done(stage) for path in self._row_paths)

    @property
    def _row_paths(self) -> list[Path]:
        weights = self.stream.time_plan.weights(self.kind, self.number)
        return [self.stream.period_path(int(number)) / ROWS for number in np.flatnonzero(weights)]

    def read_synthetic(self, read: Callable[..., Any]) -> Any:
        """Return the synthetic rows of all periods that the answers count."""
        files = []
        for folder in (path / "synthetic" for path in self._row_paths):
            files += [str(folder / name) for name in json.loads(read_text(folder / "_rows.json"))["files"]]
        return read(files, self.row_reader)


def _first_files(stream: StreamRun, number: int, name: str, kind: str) -> dict[str, bytes]:
    label, job, drawn = stream.labels[number], stream.job, PeriodRun(stream.period_path(number), (stream,))
    release = f"{drawn.manifest['release']}-{name}"
    manifest = first_manifest(job.engine.seed, stream.manifest["job_sha256"], 1, kind=kind,
                              period={"name": label, "number": number, "answers": name},
                              mechanism=stream.manifest["mechanism"])  # fmt: skip
    manifest |= {"release": release, "snapshot": drawn.manifest["snapshot"], "secret": "destroyed",
                 "secret_tag": drawn.manifest["secret_tag"]}  # fmt: skip
    return {
        **stream.declared.to_files(),
        "job.toml": tomli_w.dumps(job.to_dict()).encode(),
        MANIFEST: json.dumps(manifest, indent=2).encode(),
    }


def perform(run: AnswersRun, engine: Engine) -> None:
    """Combine the values of the periods, one task for each file."""
    store, items = run.measurements, []
    for decision in run.decisions:
        if decision.round:  # no seal: the noise of the periods is drawn, and nothing depends on this file
            record = json.dumps({**decision.to_dict(), "seal": ""}).encode()
            create(store.folder / f"round-{decision.round:03d}.json", record)
        cuts = store.file_layout(decision).cuts.tolist()
        items += [(str(run.path), decision.round, span) for span in pairwise(cuts)]
    engine.map(combine_file, items, "combine-periods")


_open: dict[str, AnswersRun] = {}


def combine_file(path: str, number: int, span: Span) -> None:
    """Write the combined values of a decision at some positions of its layout."""
    run = _opened(path)
    store, decision = run.measurements, run.decisions[number]
    layout = store.file_layout(decision)
    bounds, positions = layout.starts[span[0] : span[1] + 1], layout.sequence[span[0] : span[1]]
    drawn = as_requests(_decision_of(run.periods[0], number).requests).take(positions)
    texts = pa.array([drawn.text(index) for index in range(len(drawn))], pa.string())
    total = np.zeros(int(bounds[-1] - bounds[0]))
    for weight, period in zip(run.coefficients, run.periods, strict=True):
        if weight:
            total += weight * period.measurements.read_span(decision, span, layout.starts, texts)
    if run.earlier is not None:
        total += _earlier_total(run.earlier, drawn, span)
    requests = as_requests(decision.requests).take(positions)
    cuts = (bounds - bounds[0]).tolist()
    write_values(store.folder / file_name(number, span), store.head, _labelled(run, requests, drawn, cuts, total))


def _opened(path: str) -> AnswersRun:
    """Return the run at a path, cached in the process for the next file."""
    found = _open.get(path) or open_run(path)
    assert isinstance(found, AnswersRun)
    _open.clear()
    _open[path] = found
    return found


def _decision_of(period: PeriodRun, number: int) -> Decision:
    """Return a decision of a period; the first one follows from the plan."""
    return list(period.measurements.decisions())[number] if number else period.measurement_plan.first_decision()


def _earlier_total(earlier: EarlierValues, drawn: MeasurementRequests, span: Span) -> Floats:
    """Return the values of an earlier horizon in the units of the draws of the periods."""
    decision = earlier.store.measurement_plan.first_decision()
    layout = earlier.store.file_layout(decision)
    own = as_requests(decision.requests).take(layout.sequence[span[0] : span[1]])
    texts = pa.array([own.text(index) for index in range(len(own))], pa.string())
    values = earlier.store.read_span(decision, span, layout.starts, texts)
    scales = [drawn[index].draw.multiplier / own[index].draw.multiplier for index in range(len(own))]
    return values * np.repeat(scales, np.diff(layout.starts[span[0] : span[1] + 1]))


def _labelled(
    run: AnswersRun, requests: MeasurementRequests, drawn: MeasurementRequests, bounds: Sequence[int], values: Floats
) -> Iterator[Labelled]:
    """Yield label and values of each request, in the units of its draw instead of those of the periods' draws."""
    for index in range(len(requests)):
        scale = requests[index].draw.multiplier / drawn[index].draw.multiplier
        own = values[bounds[index] : bounds[index + 1]] * scale
        yield requests.text(index), run.shifted(requests[index], own)
