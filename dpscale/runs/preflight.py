"""Checks before anything is planned or written: paths, columns and their types from file headers, and the budget cap.

They read no record, and a refusal leaves no run directory. Everything is checked again where it matters: when the table
is opened and when the release is charged.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from dpscale.base.display import distinct_sizes, format_bytes, nearest, quantity
from dpscale.base.errors import DataError, JobError, PlanError, TransientError
from dpscale.contributions.links import with_key_ids
from dpscale.domain import Domain
from dpscale.engine.counting import FACTOR, largest_task
from dpscale.job import TableJob
from dpscale.job.job import DIGEST_VERSION
from dpscale.job.sections import SynthesizeTable
from dpscale.ledger import Ledger
from dpscale.ledger.location import is_address, standing
from dpscale.ledger.rows import JobEntry
from dpscale.ledger.transfer import there
from dpscale.measurement.unit_counts import UnitPlan, plan_units
from dpscale.plans.measurement_plan import MeasurementPlan, candidates_of, largest_counted
from dpscale.plans.plan import Plan
from dpscale.privacy.accounting import LAPLACE, Budget, Cost
from dpscale.privacy.protection import Protection
from dpscale.records import Table
from dpscale.records.frames import FRAME
from dpscale.records.judging import check_type_of
from dpscale.workload import Workload, WorkloadPart

if TYPE_CHECKING:
    from dpscale.engine.schedulers import Engine

EMPTY_DIGEST = "0" * 64  # digest of draws that do not exist yet
ROUNDING_MARGIN = 1 - 1e-6  # share of the budget: a rounding error of the cost must not cause a refusal


def check_preflight(job: TableJob, domain: Domain, workload: Workload) -> bool:
    """Return True, or raise DataError, JobError or BudgetError if the job would be refused later for known reasons."""
    searches = job.search_budget(domain)
    check_cap(job, job.data.protects, searches.total, searches.total_delta)
    check_units(job, domain)
    if job.data.path == FRAME:
        return True
    check_columns(job, domain, workload)
    return True


def check_columns(job: TableJob, domain: Domain, workload: Workload) -> None:
    """Check by the first file's header that the columns of the workload and of the unit have accepted types."""
    names = [name for name in domain.axis_names if any(name in requested for requested in workload.sets)]
    table = with_key_ids(
        job.data.origin.table(job.data.path, domain), job.data.unit_columns, rule=job.data.unit_type or ""
    )
    check_table(table, names, job.data.unit_column)


def check_units(job: TableJob, domain: Domain) -> int:
    """Return the number of cells in which distinct units are counted; `domain` is that of the job.

    Raises JobError or PlanError if they cannot be measured, because searches are charged before them.
    """
    units = unit_plan(job, domain, domain)
    cells = sum(domain.cells_each(units.sets)) if units is not None else 0
    check_unit_memory(cells, job.engine.bytes, 1)
    return cells


def unit_plan(job: TableJob, domain: Domain, declared: Domain) -> UnitPlan | None:
    """Return the measurement of the numbers of distinct units, and of rows that are cut; None if a job has neither.

    `declared` is the domain of the job, `domain` the one with the cells that a search has found.
    """
    workload, cut = job.unit_workload(domain), job.cut_budget(declared)  # `cut` is the budget of the rows that are cut
    if workload is None and cut is None:
        return None
    parts, rows = workload.parts if workload else [], job.data.max_rows_per_unit or 1
    # a set of several parts is measured once
    weight_of = {names: weight for part in parts for names, weight in zip(part.sets, part.weights, strict=True)}
    return plan_units(domain, list(weight_of), list(weight_of.values()), job.unit_budget(declared), rows, cut)


def check_unit_memory(cells: int, memory: int, workers: int) -> None:
    """Raise PlanError if the counters of distinct units, of which two wait for each worker, do not fit the memory."""
    if (needed := 8 * cells * (2 * workers + 2)) > memory:
        raise PlanError("engine.memory", f"{cells:,} cells in which units are counted need {format_bytes(needed)}",
                        f"at most the {format_bytes(memory)} of engine.memory",
                        "raise it, or leave out a set")  # fmt: skip


def check_unit_column(unit: str | None, table: Table) -> None:
    """Raise DataError if the column of the privacy unit is missing.

    The error lists columns only of typed formats: without a header, the first line of a CSV file is a record.
    """
    first = table.partitions[0]
    if unit is None or table.lake is not None or first.has(unit):
        return
    named = first.columns() if first.format.typed else []
    raise DataError("data.privacy_unit", f"{unit!r}, which is not a column of the data",
                    f"one of {', '.join(named)}" if named else "a column of the data",
                    nearest(unit, named) if named else "check the name and the header")  # fmt: skip


def check_table(table: Table, names: list[str], unit: str | None = None) -> None:
    """Check by the first file's header that the columns of attributes and unit exist and have accepted types."""
    check_unit_column(unit, table)
    table.require([*table.domain.columns(names), *([unit] if unit else [])])
    kinds = table.partitions[0].kinds(table.domain.columns(names))
    for name in names:
        check_type_of(table.domain[name], kinds)


def check_cap(
    job: Any,
    protects: Protection,
    budget: Budget | None = None,
    delta: Fraction = Fraction(0),
    periods: Sequence[str] = (),
) -> None:
    """Raise BudgetError if the ledger exists and its caps do not permit the job's budget.

    `budget` is that of the job by default, `delta` the additive delta of its searches, and `periods` the labels of the
    periods of the data that it reads, every period if empty.
    """
    place, privacy, budget = standing(job.privacy.ledger), job.privacy, budget or job.privacy.budget
    if is_address(place) or not there(place):
        return
    amount = Fraction(budget.amount * ROUNDING_MARGIN)
    cost = Cost(pure=amount) if budget.noise == LAPLACE else Cost(gaussian=amount, delta=delta)
    # the charge is only queried (reserve=False), for a release that does not exist yet
    with suppress(TransientError), Ledger.open(place, create=False) as ledger:
        ledger.charge(job.dataset, "not yet a release", cost, EMPTY_DIGEST, privacy.epsilon, privacy.delta, False,
                      protects, public=job.engine.seed is not None, periods=periods,
                      job=JobEntry(files=job.files), analyst=privacy.analyst or "")  # fmt: skip


def check_first_release(job: Any, digest: str, fresh: bool) -> None:
    """Raise BudgetError if the ledger exists and has a release of the same job and dataset, unless a new is intended.

    Jobs with a seed are left out: a repeated release has the same id and the same noise.
    """
    place = standing(job.privacy.ledger)
    if fresh or job.engine.seed is not None or is_address(place) or not there(place):
        return
    entry = JobEntry(digest=f"{DIGEST_VERSION}:{digest}", run="not yet a release", run_dir="", files=job.files)
    with suppress(TransientError), Ledger.open(place, create=False) as ledger:
        ledger.check_first(job.dataset, entry)


ESTIMATE_BYTES, ANSWER_BYTES = 40, 216  # bytes of a cell, and of a query with its labels, error and interval
BLOCK_BYTES = 64  # per cell or strategy row: counts, their product, noise in words, floats
VALUE_BYTES = 16  # bytes of a value of a synthetic row: as a cell and decoded
Need = tuple[int, str]


def check_memory(measurement_plan: MeasurementPlan, job: TableJob, engine: Engine) -> None:
    """Raise PlanError if the largest attribute set fits neither the memory setting nor the smallest worker."""
    memory = counting_memory(measurement_plan, job)
    if job.synthesize is not None:
        columns = len(measurement_plan.workload.domain) + len(measurement_plan.workload.numbers)
        check_rows(job.synthesize, job.synthesize.rows, columns, job.engine.bytes)
        check_formats(measurement_plan.workload.domain, job.synthesize.rows or 1)
    _check_memory_setting(measurement_plan, memory, engine.workers)
    needed, what = reconstruction_memory(measurement_plan, job)
    if needed > max(job.engine.bytes, LEAST_MEMORY):
        raise PlanError("engine.memory", f"{what} needs {format_bytes(needed)}", f"at most {job.engine.memory_text}",
                        "raise it, leave the set out, or lower output.max_rows")  # fmt: skip
    needed, what = max(_memory_needs(measurement_plan, job, memory, engine.workers))
    engine.check_worker_memory(needed, what)


def check_rows(settings: SynthesizeTable, rows: int | None, columns: int, memory: int) -> None:
    """Raise JobError if a file of synthetic rows does not fit the memory setting; `rows` is None if not known yet.

    A task draws the rows of a file, an equal part of all, or those of several small files: up to 2 · LEAST_ROWS rows.
    """
    from dpscale.synthesis.draw import LEAST_ROWS  # imports compiled loops, which a plan does not need

    count = rows or 1
    files = settings.parts_of(count, columns)
    drawn_together = max(-(-count // files), 2 * LEAST_ROWS)
    needed = min(count, drawn_together) * columns * VALUE_BYTES
    if needed > memory:
        shown, most = distinct_sizes(needed, memory)
        got = f"{rows} in {quantity(files, 'file')}: drawing one needs {shown}"
        raise JobError("synthesize.rows", got, f"files that fit the {most} of engine.memory",
                       f"draw fewer rows, set more synthesize.parts (of {2 * LEAST_ROWS:,} rows or more), or raise "
                       "engine.memory")  # fmt: skip


def check_formats(domain: Domain, rows: int) -> None:
    """Raise JobError if a format has fewer texts than there are rows whose texts differ."""
    if not domain.formats:
        return
    from dpscale.synthesis.text_values import distinct_texts  # imports arrow, which a plan does not need

    for form in domain.formats:
        texts = distinct_texts(form) if form.unique else math.inf
        if texts < rows:
            raise JobError("synthesize.rows", f"{rows:,}, with the unique format {form.name!r} of {texts:,} texts",
                           "at most as many rows as texts",
                           f"lengthen the pattern of formats.{form.name}, or set unique = false")  # fmt: skip


def counting_memory(measurement_plan: MeasurementPlan, job: TableJob) -> int:
    """Return the memory for counting; an adaptive run stores exact counts of candidates in the other half."""
    return job.engine.bytes // 2 if candidates_of(measurement_plan) else job.engine.bytes


def reconstruction_memory(measurement_plan: MeasurementPlan, job: TableJob) -> Need:
    """Return the bytes and the name of the largest task that answers a set."""
    needs = (need for part in measurement_plan.workload.parts for need in _answer_needs(part, job.output.max_rows))
    return max(needs, default=(0, ""))


LEAST_MEMORY = 1 << 24  # bytes that every process has
ANSWER_SECONDS, SUBSET_SECONDS, SET_SECONDS = 3e-7, 1e-8, 1e-4  # of an answer, of it and each subset, and of a set


def reconstruction_seconds(measurement_plan: MeasurementPlan, job: TableJob) -> float:
    """Return the predicted CPU seconds of the answers in files, within a factor of about 3 on a usual machine."""
    seconds = 0.0
    for part in measurement_plan.workload.parts:
        for names, queries in zip(part.sets, part.counts, strict=True):
            if queries <= job.output.max_rows:  # larger sets are not answered
                seconds += SET_SECONDS + queries * (ANSWER_SECONDS + SUBSET_SECONDS * 2 ** len(names))
    return seconds


def _memory_needs(measurement_plan: MeasurementPlan, job: TableJob, memory: int, workers: int) -> Iterator[Need]:
    """Yield the bytes of the largest task of each stage, and a description of it: counting, measuring, answering."""
    counting, what = largest_task(measurement_plan.workload.domain, measurement_plan.counted_sets, memory, workers)
    yield counting, f"{what} (counting)"
    if measurement_plan.evidence_plan is not None:  # rounds need less than counting
        yield from _block_needs(measurement_plan.evidence_plan)
    for part in measurement_plan.workload.parts:
        yield from _answer_needs(part, job.output.max_rows)


def _block_needs(plan: Plan) -> Iterator[Need]:
    """Yield the bytes of the task that measures a block, one of each kind."""
    for index, _ in plan.blocks.kinds:  # `index` is the number of a block of this kind
        block = plan.blocks[index]
        cells = max(math.prod(block.rows), plan.domain.cells(block.attributes))  # measured values, or cells
        yield BLOCK_BYTES * cells, f"{', '.join(block.attributes) or 'the total'} (measuring)"


def _answer_needs(part: WorkloadPart, max_rows: int) -> Iterator[Need]:
    """Yield the bytes of the tasks that answer a set of a part; sets of equal size occur once.

    Sets with more than `max_rows` queries are not answered.
    """
    by_size = {}  # the last set with each number of cells and of queries
    for names, cells, queries in zip(part.sets, part.domain.cells_each(part.sets), part.counts, strict=True):
        by_size[cells, queries] = names

    for (cells, queries), names in by_size.items():
        if queries <= max_rows:
            needed = ANSWER_BYTES * queries + ESTIMATE_BYTES * cells
            yield needed, f"{', '.join(names) or 'the total'} (answers)"


def _check_memory_setting(measurement_plan: MeasurementPlan, memory: int, workers: int) -> None:
    """Raise PlanError if the largest attribute set does not fit the memory for counting."""
    cells, names = largest_counted(measurement_plan)
    needed = 8 * (workers + FACTOR) * cells
    if needed > memory:
        shown, most = distinct_sizes(needed, memory)
        set_needs = f"{', '.join(names)} needs {shown} with {quantity(workers, 'worker')}"
        raise PlanError("engine.memory", set_needs, f"at most the {most} for counting",
                        "raise engine.memory, use fewer workers, or leave the set out")  # fmt: skip
