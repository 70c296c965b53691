"""Answers of a growing table by period, and its synthetic rows: new rows for each period, beside earlier ones.

*Answers of one kind at one period.*
They are combinations of the values of the periods up to it. The values Σ_s c_s y_s of all blocks are estimates of K Σ_s
w_s x_s (`plans.time_plan`) with |c|² times the noise variance of one period. That is a release of one table with the
same plan and a smaller budget, so reconstruction, answers and synthetic rows are those of any run. Values are written
in the units of the draws at that budget. Nothing is drawn and no record is read.

*Rows.*
The rows up to a period are those of its cumulative answers, and published rows never change. So the new rows of period
t are drawn from estimates of the records up to t less the rows up to t − 1:

    values = Σ_s c_s y_s − K n,  c for cumulative answers, n the counts of the rows of earlier periods.

Sampling errors of earlier periods are corrected by later rows. Without cumulative answers, and with sums of numbers,
the new rows are drawn from the answers of the period alone. Rows of a kind of answers are the new rows of its periods.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpscale.base.arrow import pa
from dpscale.base.numerics import AttributeSet, Floats, Integers, Integers32
from dpscale.counting.count import ExactMarginal
from dpscale.measurement.measurement import block_product, project
from dpscale.measurement.value_files import Labelled, Span, file_name, write_values
from dpscale.mechanisms.contract import PlanningProblem
from dpscale.plans.measurement_plan import (
    Decision,
    MeasurementPlan,
    MeasurementRequest,
    MeasurementRequests,
    as_requests,
)
from dpscale.plans.time_plan import CUMULATIVE, PERIOD
from dpscale.privacy.accounting import LAPLACE
from dpscale.runs.estimates import model_folder, open_sampler
from dpscale.runs.opening import open_part
from dpscale.runs.periods.growing import FOLDER, ROWS, EarlierValues, GrowingPart, read_earlier
from dpscale.runs.stage import STAGES, Stage
from dpscale.runs.stages import synthesize
from dpscale.runs.table import TablePart
from dpscale.storage.files import create, read_text, reading, writing
from dpscale.synthesis.draw import split_rows

if TYPE_CHECKING:
    from dpscale.engine.schedulers import Engine

ANSWER_STAGES: dict[str, Stage] = {
    "measure": replace(
        STAGES["measure"], needs=(), spends=False, module="dpscale.runs.periods.answers:combine_answers"
    ),
    "reconstruct": replace(STAGES["reconstruct"], needs=("measure",)),
}
COUNTS = "row-counts.npy"
ROW_STAGES: dict[str, Stage] = {
    "measure": ANSWER_STAGES["measure"],
    "synthesize": replace(STAGES["synthesize"], needs=("measure",), module="dpscale.runs.periods.answers:draw_rows"),
}


class AnswersPart(TablePart):
    """Part of the answers of one kind at a period: combinations of the values of periods, without draws.

    Attributes
    ----------
    stream : GrowingPart
    number : int
        Number of the period.
    kind : str
        Kind of the answers.
    """

    stages = ANSWER_STAGES
    has_rows = False  # whether it is the part of the new rows of the period

    def __init__(self, stream: GrowingPart, number: int, kind: str) -> None:
        label = stream.labels[number]
        self.stream, self.number, self.kind = stream, number, kind
        super().__init__(stream.run, f"{label}/{kind}", stream.job, stream.declared, f"{FOLDER}/{label}/{kind}")

    @property
    def drawn(self) -> TablePart:
        """Part with the values of the period."""
        return self.stream.part_at(f"{FOLDER}/{self.stream.labels[self.number]}")

    @cached_property
    def release(self) -> str:
        return f"{self.drawn.release}-{self.path.name}"

    @property
    def manifest(self) -> dict[str, Any]:
        """Manifest of the run, with the entries of the last period's draws and the period that is answered."""
        drawn = self.drawn.manifest
        facts = {name: drawn.get(name) for name in ("snapshot", "secret_tag", "columns")}
        period = {"name": self.stream.labels[self.number], "number": self.number, "answers": self.path.name}
        return {**super().manifest, **facts, "secret": "destroyed", "period": period}

    def charges(self, entry: str) -> None:
        """Return None: nothing is drawn."""

    @cached_property
    def planning_problem(self) -> PlanningProblem:
        """The problem of one table whose measurements have the variance of the combined values.

        Laplace noise has an amount in ε, which is inverse to the standard deviation; the squared μ of Gaussian noise is
        inverse to the variance. With values of an earlier horizon the variances, the inverse amounts, add.
        """
        problem = self.stream.planning_problem
        # relative to a table that has the whole budget
        variance = self.stream.time_plan.variance(self.kind, self.number)
        scale = math.sqrt(variance) if problem.budget.noise == LAPLACE else variance
        amount = problem.budget.amount / scale
        if self.earlier is not None:
            amount = 1 / (1 / amount + 1 / self.earlier.amount)
        return replace(problem, budget=replace(problem.budget, amount=amount))

    @cached_property
    def earlier(self) -> EarlierValues | None:
        """Final values of the run of an earlier horizon, which cumulative answers start from."""
        return read_earlier(self.stream) if self.kind == CUMULATIVE and not self.has_rows else None

    @cached_property
    def measurement_plan(self) -> MeasurementPlan:
        return self.stream.read_measurement_plan(self.planning_problem, self.stream.structure)

    @property
    def decisions(self) -> list[Decision]:
        """Decisions of the combined values: the first one, and one that follows from the first period, if there is one.

        A combined value is Σ c_t y_t over the values of periods, so its noise variance is Σ c_t² times that of one.
        """
        first, structure = self.measurement_plan.first_decision(), self.stream.structure
        if structure is None:
            return [first]
        factor = float(np.sum(self.coefficients**2))  # of the noise variance of one period
        return [first, structure.scaled(factor, self.planning_problem.rows_per_unit)]

    @cached_property
    def coefficients(self) -> Floats:
        """Coefficients of the values of the periods up to this one."""
        return self.stream.time_plan.coefficients(self.kind, self.number)

    @cached_property
    def periods(self) -> list[TablePart]:
        """Parts of the periods up to this one."""
        return [self.stream.part_at(f"{FOLDER}/{label}") for label in self.stream.labels[: self.number + 1]]

    def shifted(self, request: MeasurementRequest, values: Floats) -> Floats:
        """Return the combined values of a request, in the units of its draw, as they are stored."""
        return values

    def done(self, stage: str) -> bool:
        """Return whether a stage is done; rows are those of the periods that the answers count."""
        if stage != "synthesize" or self.has_rows:
            return super().done(stage)
        return all(part.done(stage) for part in self._row_parts)

    @property
    def _row_parts(self) -> list[TablePart]:
        """Parts of the new rows of the periods that the answers count."""
        weights = self.stream.time_plan.weights(self.kind, self.number)
        labels = [self.stream.labels[number] for number in np.flatnonzero(weights).tolist()]
        return [self.stream.part_at(f"{FOLDER}/{label}/{ROWS}") for label in labels]

    def read_synthetic(self, read: Callable[..., Any]) -> Any:
        """Return the synthetic rows of all periods that the answers count."""
        files = []
        for folder in (part.path / "synthetic" for part in self._row_parts):
            files += [str(folder / name) for name in json.loads(read_text(folder / "_rows.json"))["files"]]
        return read(files, self.row_reader)


def combine_answers(run: AnswersPart, engine: Engine) -> None:
    """Combine the values of the periods, one task for each file."""
    store, items = run.measurements, []
    for decision in run.decisions:
        if decision.round:  # no seal: the noise of the periods is drawn, and nothing depends on this file
            record = json.dumps({**decision.to_dict(), "seal": ""}).encode()
            create(store.folder / f"round-{decision.round:03d}.json", record)
        cuts = store.file_layout(decision).cuts.tolist()
        items += [(str(run.path), decision.round, span) for span in pairwise(cuts)]
    engine.map(combine_file, items, "combine-periods")


_open: dict[str, AnswersPart] = {}


def combine_file(path: str, number: int, span: Span) -> None:
    """Write the combined values of a decision at some positions of its layout.

    They are the sum over periods of coefficient times drawn values, plus those of an earlier horizon if there is one.
    `number` is that of the decision, and `span` the first and the last position (exclusive) in the layout's sequence of
    requests. A request is a measurement; those of the answer have other units than those of the periods' draws.
    """
    run = _opened(path)
    store, decision = run.measurements, run.decisions[number]
    layout = store.file_layout(decision)
    # first value of each request of the span and the end of the last, and the requests' places in the decision
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


def _opened(path: str) -> AnswersPart:
    """Return the part at a path, cached in the process for the next file."""
    found = _open.get(path) or open_part(path)
    assert isinstance(found, AnswersPart)
    _open.clear()
    _open[path] = found
    return found


def _decision_of(period: TablePart, number: int) -> Decision:
    """Return a decision of a period; the first one follows from the plan."""
    return list(period.measurements.decisions())[number] if number else period.measurement_plan.first_decision()


def _earlier_total(earlier: EarlierValues, drawn: MeasurementRequests, span: Span) -> Floats:
    """Return the values of an earlier horizon for a span of requests, in the units of the draws of the periods.

    A draw multiplies counts by an integer (`multiplier`) before the noise is added: values of another draw are scaled
    by the quotient.
    """
    decision = earlier.store.measurement_plan.first_decision()
    layout = earlier.store.file_layout(decision)
    requests = as_requests(decision.requests).take(layout.sequence[span[0] : span[1]])
    texts = pa.array([requests.text(index) for index in range(len(requests))], pa.string())
    values = earlier.store.read_span(decision, span, layout.starts, texts)
    scales = [drawn[index].draw.multiplier / requests[index].draw.multiplier for index in range(len(requests))]
    return values * np.repeat(scales, np.diff(layout.starts[span[0] : span[1] + 1]))


def _labelled(
    run: AnswersPart, requests: MeasurementRequests, drawn: MeasurementRequests, bounds: Sequence[int], values: Floats
) -> Iterator[Labelled]:
    """Yield label and values of each request, in the units of its draw instead of those of the periods' draws.

    `bounds` has the first of `values` of each request and the end of the last.
    """
    for index in range(len(requests)):
        scale = requests[index].draw.multiplier / drawn[index].draw.multiplier
        scaled = values[bounds[index] : bounds[index + 1]] * scale
        yield requests.text(index), run.shifted(requests[index], scaled)


class RowsPart(AnswersPart):
    """Part of the new rows of a period."""

    has_rows = True
    stages = ROW_STAGES

    def __init__(self, stream: GrowingPart, number: int, kind: str) -> None:
        """Take the answers from which rows are drawn: cumulative ones if there are any, else those of the period.

        Sums of numbers have no counts of earlier rows to subtract, so the period's answers are used with them. They
        follow from the drawn values also if the job does not ask for them.
        """
        super().__init__(stream, number, kind)
        shifts = CUMULATIVE in stream.kinds and not stream.workload.numbers
        self.kind = CUMULATIVE if shifts else PERIOD

    @property
    def is_shifted(self) -> bool:
        """Whether rows of earlier periods are subtracted."""
        return self.kind == CUMULATIVE and self.number > 0

    @property
    def counts_path(self) -> Path:
        """File with the counts of the rows up to the period."""
        return self.path / COUNTS

    @cached_property
    def earlier_counts(self) -> Callable[[AttributeSet], Integers]:
        """Function from a counted set to the counts of the rows of earlier periods."""
        before = self.stream.part_at(f"{FOLDER}/{self.stream.labels[self.number - 1]}/{ROWS}")
        with reading(before.path / COUNTS) as file:
            flat = np.load(file, allow_pickle=False)
        return self.reader(flat)

    def reader(self, flat: Integers) -> Callable[[AttributeSet], Integers]:
        """Return the function from a counted set to its counts, a view of a flat array of all counts."""
        sets = self.measurement_plan.counted_sets
        ends = np.cumsum([0, *self.domain.cells_each(sets)])
        numbers = {names: place for place, names in enumerate(sets)}

        def counts(names: AttributeSet) -> Integers:
            place = numbers[names]
            return np.asarray(flat[ends[place] : ends[place + 1]].reshape(self.domain.shape(names)))

        return counts

    def shifted(self, request: MeasurementRequest, values: Floats) -> Floats:
        """Return the values of a request less those of the rows of earlier periods."""
        if not self.is_shifted:
            return values
        names = request.source
        earlier = project(ExactMarginal(names, self.earlier_counts(names)), request.block)
        product = block_product(request.block, request.coarsened(earlier.counts))  # K n of the module docstring
        return np.asarray(values - float(request.draw.multiplier) * product.reshape(-1))


def draw_rows(run: RowsPart, engine: Engine) -> None:
    """Draw the new rows and write the counts of all rows up to the period, by which the next rows are shifted."""
    synthesize.perform(run, engine)
    description = json.loads(read_text(run.path / "synthetic" / synthesize.INDEX))
    _, sampler = open_sampler(str(run.path), str(model_folder(run)), description["method"])
    parts = split_rows(description["rows"], description["parts"])
    sets, columns = run.measurement_plan.counted_sets, {name: place for place, name in enumerate(sampler.names)}
    if run.workload.numbers:  # rows with sums of numbers are drawn without earlier ones, so no counts are needed
        return
    flat = np.zeros(sum(run.domain.cells_each(sets)), np.int64)
    counts = run.reader(flat)
    for part in parts:
        _count(counts, sets, columns, synthesize.drawn_rows(run, sampler, part))
    if run.is_shifted:
        before = run.earlier_counts
        for names in sets:
            counts(names)[...] += before(names)
    with writing(run.counts_path) as file:
        np.save(file, flat, allow_pickle=False)


def _count(counts: Callable[[AttributeSet], Integers], sets: Any, columns: dict[str, int], rows: Integers32) -> None:
    """Add rows to the counts of the sets; counts(set) is a view of its counts, and `columns` are those of `rows`."""
    for names in sets:
        table = counts(names)
        if not names:
            table[...] += len(rows)
            continue
        cells = np.ravel_multi_index(tuple(rows[:, columns[name]] for name in names), table.shape)
        table.reshape(-1)[...] += np.bincount(cells, minlength=table.size)
