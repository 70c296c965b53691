"""Synthetic rows of a growing table: new rows for each period, beside the rows of earlier periods.

The rows up to a period are those of its cumulative answers, and published rows never change. So the new rows of period
t are drawn from estimates of the records up to t less the rows up to t − 1:

    values = Σ_s c_s y_s − K n,  c for cumulative answers, n the counts of the rows of earlier periods.

Sampling errors of earlier periods are corrected by later rows. Without cumulative answers, and with sums of numbers,
the new rows are drawn from the answers of the period alone. Rows of a kind of answers are the new rows of its periods.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpscale.base.numerics import AttributeSet, Floats, Integers, Integers32
from dpscale.counting.count import ExactMarginal
from dpscale.measurement.measurement import block_product, project
from dpscale.plans.measurement_plan import MeasurementRequest
from dpscale.plans.time_plan import CUMULATIVE, PERIOD
from dpscale.runs.estimates import model_folder, open_sampler
from dpscale.runs.periods.answers import ANSWER_STAGES, AnswersPart
from dpscale.runs.periods.growing import FOLDER, ROWS, GrowingPart
from dpscale.runs.stage import STAGES, Stage
from dpscale.runs.stages import synthesize
from dpscale.storage.files import read_text, reading, writing
from dpscale.synthesis.draw import split_rows

if TYPE_CHECKING:
    from dpscale.engine.schedulers import Engine

COUNTS = "row-counts.npy"
ROW_STAGES: dict[str, Stage] = {
    "measure": ANSWER_STAGES["measure"],
    "synthesize": replace(STAGES["synthesize"], needs=("measure",), module="dpscale.runs.periods.rows"),
}


class RowsPart(AnswersPart):
    """Part of the new rows of a period."""

    has_rows = True
    stages = ROW_STAGES

    def __init__(self, stream: GrowingPart, number: int, kind: str) -> None:
        """Take the answers from which rows are drawn: running ones if there are any, else those of the period."""
        super().__init__(stream, number, kind)
        kinds = stream.kinds
        if CUMULATIVE in kinds and not stream.workload.numbers:
            self.kind = CUMULATIVE
        else:
            self.kind = PERIOD if PERIOD in kinds else kinds[0]

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
        own = project(ExactMarginal(names, self.earlier_counts(names)), request.block)
        product = block_product(request.block, request.coarsened(own.counts))
        return np.asarray(values - float(request.draw.multiplier) * product.reshape(-1))


def perform(run: RowsPart, engine: Engine) -> None:
    """Draw the new rows and write the counts of all rows up to the period.

    `is_shifted` states that earlier rows exist, whose counts are added.
    """
    synthesize.perform(run, engine)
    description = json.loads(read_text(run.path / "synthetic" / synthesize.INDEX))
    _, sampler = open_sampler(str(run.path), str(model_folder(run)), description["method"])
    parts = split_rows(description["rows"], description["parts"])
    sets, columns = run.measurement_plan.counted_sets, {name: place for place, name in enumerate(sampler.names)}
    if run.workload.numbers:  # their rows are drawn without earlier ones
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
    """Add rows to the counts of the sets."""
    for names in sets:
        table = counts(names)
        if not names:
            table[...] += len(rows)
            continue
        cells = np.ravel_multi_index(tuple(rows[:, columns[name]] for name in names), table.shape)
        table.reshape(-1)[...] += np.bincount(cells, minlength=table.size)
