"""Numbers in the synthetic rows of a run: targets from its estimates, and values of the rows of a part.

The value of a number in a row is an integer of steps from its low end. A group is a cell of a set of attributes, and a
target is the estimated sum of a number in every group of a set.

A table of one part needs its rows only. In several parts the share of a part in the sum of a group is that of its
rows, so the rows of all parts are counted first.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from dpscale.answers.number_statistics import check_measured
from dpscale.answers.tables import LEVEL, Answered
from dpscale.base.errors import PlanError
from dpscale.base.numerics import AttributeSet, Floats, Integers, Integers32, NDArray
from dpscale.domain.number import Number
from dpscale.privacy.streams import PublicStream
from dpscale.reconstruction.joint_intervals import half_width
from dpscale.runs.estimates import estimates_of
from dpscale.runs.table import TablePart
from dpscale.storage.files import reading, writing
from dpscale.synthesis.draw import RowPart, RowSampler
from dpscale.synthesis.number_values import (
    GroupTargets,
    NumberTargets,
    RowGroups,
    draw_steps,
    read_number_targets,
    select_sets,
    write_number_targets,
)
from dpscale.workload import part_of
from dpscale.workload.residual import subsets
from dpscale.workload.sums import MeanQueries, VarianceQueries, number_named

TARGETS, COUNTS = "row-numbers.npz", "row-counts.npy"
LIMITS = "row_limits"  # fact of a part of several tables: least and most rows, and the adjusted estimate
GROUP_BYTES = 80  # of one group in one task


def limited_rows(table: TablePart, total: float) -> int:
    """Return the number of synthetic rows for an estimated number of records, within the limits of the table."""
    limits = table.manifest.get(LIMITS, {"least": 0, "most": None, "estimate": None})
    estimate = total if limits["estimate"] is None else limits["estimate"]
    rows = max(limits["least"], round(estimate))
    return rows if limits["most"] is None else min(rows, limits["most"])


def write_targets(run: TablePart, sampler: RowSampler, folder: Path) -> tuple[NumberTargets, ...]:
    """Write and return the targets of the numbers of a run: their estimated sums, by attributes of the rows."""
    every = [_targets_of(run, name, sampler.names) for name in run.workload.numbers]
    targets = tuple(of_number for of_number in every if of_number is not None)
    write_number_targets(folder / TARGETS, targets)
    return targets


def _targets_of(run: TablePart, name: str, names: Sequence[str]) -> NumberTargets | None:
    """Return the targets of a number; None if not even the sum of all records was measured.

    `names` are the attributes of the rows. A set of the workload with the number has targets for its other attributes
    and all their subsets that the rows have, if their groups fit into an eighth of the memory, which all numbers share.
    """
    answered = Answered(estimates_of(run), str(run.manifest["release"]))
    most_groups = run.job.engine.bytes // (8 * GROUP_BYTES * len(run.workload.numbers))
    requested = set[AttributeSet]()
    for attributes in run.workload.sets:
        if name in attributes:
            grouping = tuple(other for other in attributes if other not in run.domain.number_names)
            for by in subsets(grouping):
                if set(by) <= set(names) and run.domain.cells(by) <= most_groups:
                    requested.add(by)

    small_first = sorted(requested, key=lambda by: (len(by), by))
    every = [_group_targets(answered, name, by) for by in small_first]
    measured = [targets for targets in every if targets is not None]
    has_total = any(not targets.names for targets in measured)
    return NumberTargets(name, select_sets(measured, most_groups)) if has_total else None


def _group_targets(answered: Answered, name: str, by: AttributeSet) -> GroupTargets | None:
    """Return the targets of a number by the cells of the attributes `by`; None if their sums were not measured.

    Sums of squares, of a family of variances, are used as well if the number has them and they were measured.
    """
    domain = answered.estimates.workload.domain
    number = number_named(domain, name, "synthesize")
    families = [VarianceQueries(of=name), MeanQueries(of=name)] if number.squares else [MeanQueries(of=name)]
    for family in families:
        part = part_of(family, domain, ((*by, name),), (1.0,))
        try:
            check_measured(answered, part, (*by, name))
        except PlanError:
            continue
        return _shares(answered, number, by, family.figures, answered.estimates.part_answers(part.linear, (*by, name)))
    return None


def _shares(
    answered: Answered, number: Number, by: AttributeSet, figures: Sequence[str], given: tuple[Floats, Floats]
) -> GroupTargets:
    """Return targets from centred answers: with t = 2u − 1, u = (t + 1)/2 and u² = (t² + 2t + 1)/4.

    A value u is a fraction of the number's range. `given` has answers and standard errors with the figures of a group
    on the last axis: the sum of t, the number n of rows and, if measured, the sum q of t², named by `figures`; then the
    sum of t + n, whose error shows their covariance. The answers of a number whose total over a unit of k rows is
    bounded are k times as large as the sum of t.

    The sum of values is t/2 + c n with variance var(t)/4 + c cov(t, n) + c² var(n): c is 1/2 for u, and centre for
    values in units of the column, as shares of the range.
    """
    answers, errors = (each.reshape(-1, each.shape[-1]) for each in given)
    place_t, place_n, place_sum = figures.index("t"), figures.index("n"), -1
    rows = number.rows_per_unit
    t, n = answers[:, place_t] / rows, answers[:, place_n]
    squares = (answers[:, figures.index("q")] + 2 * t + n) / 4 if "q" in figures else np.empty(0)
    scaled_variance, n_variance, sum_variance = errors[:, [place_t, place_n, place_sum]].T ** 2
    t_variance = scaled_variance / rows**2
    covariance = (sum_variance - scaled_variance - n_variance) / (2 * rows)
    centre = number.low / number.steps + 0.5
    value_errors, sum_errors = (
        np.sqrt(np.maximum(t_variance / 4 + offset * covariance + offset**2 * n_variance, 0))
        for offset in (centre, 0.5)
    )
    return GroupTargets(
        names=by,
        sizes=answered.estimates.workload.domain.shape(by),
        known=n,
        known_errors=errors[:, place_n],
        sums=(t + n) / 2,
        errors=sum_errors,
        value_errors=value_errors,
        squares=squares,
        width=half_width(LEVEL, answered.estimates.noise),
    )


def cells_file(folder: Path, name: str, part: RowPart) -> Path:
    """Return the file in which the rows of a part are stored between counting and writing."""
    return folder / f"row-cells-{name}-{part.rows}-{part.parts}-{part.number}.npy"


def count_groups(folder: Path, rows: Integers32, sampler: RowSampler) -> Integers:
    """Return the numbers of rows in every group (cell of a set of attributes) of every number's sets, concatenated."""
    counts = [np.empty(0, np.int64)]
    for targets in read_number_targets(folder / TARGETS):
        counts += [np.bincount(by.index(rows, sampler.names), minlength=len(by.known)) for by in targets.sets]
    return np.concatenate(counts)


def write_array(path: Path, values: NDArray[Any]) -> None:
    """Write an array; it is not flushed to disk, because it can be recomputed for free."""
    with writing(path, durable=False) as file:
        np.save(file, values, allow_pickle=False)


def read_array(path: Path) -> NDArray[Any]:
    with reading(path) as file:
        found: NDArray[Any] = np.load(file, allow_pickle=False)
    return found


def number_steps(
    run: TablePart, folder: Path, sampler: RowSampler, rows: Integers32, part: RowPart, weights: Floats | None
) -> dict[str, Integers]:
    """Return the steps (integers from 0, the low end) of every number for the rows of a part; -1 for null.

    Values are drawn so that their sums by groups meet the targets, scaled to the rows: those of this part if it is the
    only one (with all files) or has weights, otherwise those of all parts, whose rows in every group were counted
    before.
    """
    is_only_part = part.parts == part.files
    row_weights = np.ones(len(rows)) if weights is None else weights
    rows_at_scale = part.rows if weights is None and not is_only_part else row_weights.sum()
    scale = rows_at_scale / sampler.total

    numbers, steps = read_number_targets(folder / TARGETS), dict[str, Integers]()
    counts = None
    if not is_only_part and weights is None:
        # the stored counts of the groups of all targets follow each other
        ends = np.cumsum([len(by.known) for targets in numbers for by in targets.sets])
        counts = iter(np.split(read_array(folder / COUNTS), ends[:-1]))

    for place, targets in enumerate(numbers):
        totals = None if counts is None else list(islice(counts, len(targets.sets)))
        groups = RowGroups(
            cells=np.ascontiguousarray(rows, np.int32),
            names=sampler.names,
            weights=row_weights,
            scale=scale,
            totals=totals,
        )
        stream = PublicStream(run.manifest["release"], "numbers", place, *part.key)
        number = number_named(run.domain, targets.name, "synthesize")
        same_column = [run.domain[name] for name in sampler.names if run.domain[name].column == number.column]
        steps[targets.name] = draw_steps(number, targets, groups, same_column, stream)
    return steps


def row_sums(
    run: TablePart,
    folder: Path,
    sampler: RowSampler,
    rows: Integers32,
    steps: dict[str, Integers],
    weights: Floats | None,
) -> list[Floats]:
    """Return the sums of each number over the rows in its reported groups, concatenated; nulls add 0.

    Sums are in units of the number: its low end, in steps from 0, is added to the steps of a row.
    """
    row_weights, sums = np.ones(len(rows)) if weights is None else weights, list[Floats]()
    for targets in read_number_targets(folder / TARGETS):
        of_rows, low = steps[targets.name], run.domain[targets.name].low
        values = row_weights * np.where(of_rows >= 0, of_rows + low, 0)
        by_set = [np.bincount(by.index(rows, sampler.names), values, len(by.known)) for by in targets.reported]
        sums.append(np.concatenate(by_set).astype(np.float64))
    return sums


def describe_numbers(
    run: TablePart, numbers: Sequence[NumberTargets], sums: Sequence[Floats], scale: float
) -> dict[str, object]:
    """Return the distance of the sums of the rows from the estimates, in standard errors, by number.

    `sums` are those of `row_sums`, over `scale` times as many rows as were estimated. Groups whose number of records is
    not distinguishable from zero are left out. Sums of a target are fractions u of the range: a value is low + steps u.
    """
    described = dict[str, object]()
    for targets, sums_of_rows in zip(numbers, sums, strict=True):
        number, reported = number_named(run.domain, targets.name, "synthesize"), targets.reported
        visible = np.concatenate([by.visible for by in reported])
        estimates = np.concatenate([number.steps * by.sums + number.low * by.known for by in reported])
        errors = number.steps * np.concatenate([by.value_errors for by in reported])
        distances = np.abs(sums_of_rows / scale - estimates)[visible] / errors[visible]
        described[targets.name] = {
            "sets": len(targets.sets), "groups": int(visible.sum()),
            "median": float(np.median(distances)) if visible.any() else None,
            "max": float(distances.max()) if visible.any() else None,
        }  # fmt: skip
    return described
