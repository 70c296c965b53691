"""The stage `units`: numbers of distinct privacy units by cell, and of the rows that their bound cuts.

The order of the steps is that of the measure stage (`runs.charge`): the rows are counted and checked, so that refused
data cost nothing; the plan's cost is charged; the noise is drawn and the values are written. The release has an entry
of its own on the ledger. Units are counted by the workload parts with `count = "units"`, after the contribution bound.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpscale.answers.unit_counts import unit_table
from dpscale.base.arrow import pq
from dpscale.base.errors import RefusedValue
from dpscale.base.numerics import Floats, Integers, one_thread
from dpscale.contributions.joins import REACH
from dpscale.contributions.unit_shards import cut_ranges, hash_passes
from dpscale.contributions.unit_totals import UnitRequest, count_units, take_range, unit_cells
from dpscale.engine.contribution_bounds import collect_refusals
from dpscale.engine.counting import dropped_rows, partition_groups
from dpscale.measurement.journal import StoredDraws
from dpscale.measurement.unit_counts import UnitPlan
from dpscale.privacy.accounting import Cost
from dpscale.records import Table
from dpscale.runs.charge import UNITS, journal_of
from dpscale.runs.preflight import check_unit_memory, unit_plan
from dpscale.runs.source import Source, decision, rows_beyond_bound, rows_beyond_rank, unit_lookup
from dpscale.runs.table import CUT_FILE, DRAWN_UNITS, UNIT_RECORD, TablePart
from dpscale.storage.files import flush_names, remove_partial, write_whole

if TYPE_CHECKING:
    from dpscale.engine.schedulers import Engine

ROW_BYTES = 96  # of a distinct row while it is sorted


@dataclass(frozen=True, eq=False)
class CountedUnits:
    """Exact numbers of units of a run whose charge is not refused; nothing is charged or drawn yet.

    Attributes
    ----------
    plan : UnitPlan
    source : Source
    counts : list of ndarray of int64
        By set, then the number of rows beyond the bound. Private, so the repr does not show them.
    """

    plan: UnitPlan
    source: Source
    counts: list[Integers] = field(repr=False)


def prepare(run: TablePart, engine: Engine) -> CountedUnits:
    """Read, check and count the rows. Nothing is charged or drawn."""
    plan = plan_of(run)
    check_unit_memory(counters(run), run.job.engine.bytes, engine.workers)
    names = read_names(run, plan)
    source = Source.of(run, names, engine)
    run.secret.read()
    with one_thread():
        try:
            counts = exact_counts(run, engine, source.table, plan, names)
            counts += [beyond_bound(run, engine, source.table, names)] if plan.cut else []
        except RefusedValue as error:
            raise collect_refusals(engine, source.table, names, error) from None
    source.check_unchanged()
    return CountedUnits(plan, source, counts)


def perform(run: TablePart, engine: Engine) -> None:
    """Draw the noise of the counted units, after the charge, and write a table for each set."""
    counted, run.prepared = run.prepared or prepare(run, engine), None
    assert isinstance(counted, CountedUnits)
    plan, draws = counted.plan, StoredDraws(run.path / DRAWN_UNITS, counted.source.head)
    content = decision(run, counted.source, plan.records, run.domain)
    values = draws.draw(journal_of(run, UNITS), 0, plan.requests, lambda: counted.counts, run.secret.read,
                        lambda _: content)  # fmt: skip
    write(run, plan, values)


def plan_of(run: TablePart) -> UnitPlan:
    """Return the measurement of all sets of a run."""
    plan = unit_plan(run.job, run.domain, run.declared)
    assert plan is not None
    return plan


def counters(run: TablePart) -> int:
    """Return the number of cells in which units are counted."""
    return sum(run.domain.cells_each(plan_of(run).sets))


def terms(run: TablePart) -> tuple[Cost, list[dict[str, Any]]]:
    """Return the cost of all sets, and the records that determine their draws.

    Guarantee
    ---------
    Protected: numbers of distinct units in each cell of the sets.
    Cost: the sets together: one unit changes at most as many cells of a set as it has counted rows, each by 1.
    Neighbours: all rows of one unit.
    Proof: docs/privacy.md, Distinct units; tests/contributions/test_unit_cells.py.
    """
    plan = plan_of(run)
    return plan.cost, plan.records


def read_names(run: TablePart, plan: UnitPlan) -> list[str]:
    """Return the attributes that are read: those of the plan of rows too, so that the same rows are dropped."""
    sets = (*plan.sets, *run.measurement_plan.counted_sets)
    used = {name for attributes in sets for name in attributes} or {run.domain.names[0]}
    return [name for name in run.domain.axis_names if name in used]


def exact_counts(run: TablePart, engine: Engine, table: Table, plan: UnitPlan, names: Sequence[str]) -> list[Integers]:
    """Return the exact numbers of distinct units of each set, in as many passes as the memory setting requires.

    Each pass reads the units whose hashes are in its ranges. A row is dropped by values of any of the attributes
    `names`, so those with such values (`dropping`) are read beside the attributes of the sets (`grouping`).
    """
    if not plan.sets:
        return []
    data, groups = run.job.data, partition_groups(table.partitions, engine.workers)
    dropped = rows_beyond_bound(run, engine, table, groups, list(names)) or {}
    through = unit_lookup(run, engine)
    grouping = tuple(name for name in names if any(name in attributes for attributes in plan.sets))
    dropping = tuple(name for name in names if run.domain[name].drops and name not in grouping)
    files = {part.path: part for part in table.partitions}  # a partition of each file has the rows of the file
    rows = sum(part.row_bound() for part in files.values())
    totals = [np.zeros(run.domain.cells(attributes), np.int64) for attributes in plan.sets]
    for ranges in hash_passes(rows * ROW_BYTES, run.job.engine.bytes):
        request = UnitRequest(
            domain=run.domain, names=grouping, dropping=dropping, unit=str(data.unit_column), ranges=ranges
        )
        items = [(request, group, *dropped_rows(group, dropped), *through) for group in groups]
        handles = engine.persist(unit_cells, items, "read-units")
        cuts = cut_ranges(ranges, 2 * engine.workers)  # the units of each task: a unit is in one of them
        take = partial(take_range, ranges=cuts)
        join = partial(count_units, names=grouping, sets=plan.sets, domain=run.domain)
        for counted in engine.exchange(take, handles, join, len(cuts), "count-units"):
            for total, of_task in zip(totals, counted.counts, strict=True):
                total += of_task
    return totals


def beyond_bound(run: TablePart, engine: Engine, table: Table, names: Sequence[str]) -> Integers:
    """Return the exact number of rows that the bound k cuts, of each unit at most (`REACH` - 1) k; shape (1,).

    They are the rows beyond k without those beyond `REACH` k, so that one unit changes the number by a known bound.
    """
    bound, groups = int(run.job.data.max_rows_per_unit or 1), partition_groups(table.partitions, engine.workers)
    beyond, far_beyond = (sum(map(len, rows_beyond_rank(run, engine, table, groups, names, most).values()))
                          for most in (bound, REACH * bound))  # fmt: skip
    return np.array([beyond - far_beyond], np.int64)


def write(run: TablePart, plan: UnitPlan, drawn: Sequence[Floats]) -> None:
    """Write a table of answers for each draw, then the record of the draws, whose presence completes the stage.

    The record of a draw has the `attributes` of its set; the one without is the number of rows that the bound cuts.
    """
    folder, written = run.path / "units", list[dict[str, Any]]()
    for number, (record, values, draw) in enumerate(zip(plan.records, drawn, plan.all_draws, strict=True)):
        error = draw.lattice_variance**0.5
        name = f"{number:04d}.parquet" if "attributes" in record else CUT_FILE
        table = unit_table(run.domain, tuple(record.get("attributes", ())), values, error, run.job.privacy.noise)
        _write_table(folder / name, table)
        written.append({"file": name, **record})
    write_whole(run.path / UNIT_RECORD, json.dumps(written, indent=1, ensure_ascii=False).encode())
    remove_partial(folder)
    flush_names(folder)


def _write_table(path: Path, table: Any) -> None:
    """Write a table as one Parquet file, whole or not at all."""
    from io import BytesIO

    content = BytesIO()
    pq.write_table(table, content)
    write_whole(path, content.getvalue())
