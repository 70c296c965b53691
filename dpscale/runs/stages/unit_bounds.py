"""Rows and values of a run's table beyond the bounds of a privacy unit, and the tables that define the unit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dpscale.base.errors import JobError
from dpscale.contributions.links import column_name, with_key_ids
from dpscale.contributions.unit_shards import UnitMap
from dpscale.contributions.unit_totals import TotalRequest
from dpscale.contributions.units import Bound
from dpscale.counting.count import Dropped
from dpscale.engine import Engine
from dpscale.engine.contribution_bounds import (
    KEYS_SENT,
    clip_unit_totals,
    read_unit_lookup,
    rows_beyond,
    send_dropped_rows,
    survey_units,
)
from dpscale.job.data import Data
from dpscale.records import Table
from dpscale.records.table import Partition
from dpscale.runs.table import TablePart


def rows_beyond_bound(
    run: TablePart, engine: Engine, table: Table, groups: Sequence[Any], names: Sequence[str]
) -> Mapping[Partition, Any] | None:
    """Return the rows that exceed the contribution bound, and values beyond a unit's total; None without a bound."""
    data = run.job.data
    if (unit := data.unit_column) is None or data.max_rows_per_unit is None:
        return None
    found = rows_beyond_rank(run, engine, table, groups, names, run.contribution_bound)
    if totals := tuple(one for one in run.domain.totals if one.name in names):
        request = TotalRequest(run.domain, tuple(names), totals, unit)
        found = clip_unit_totals(engine, request, groups, found, run.job.engine.bytes, _read_lookup(run, engine))
    return send_dropped_rows(engine, found)


def rows_beyond_rank(
    run: TablePart, engine: Engine, table: Table, groups: Sequence[Any], names: Sequence[str], bound: Bound
) -> Dropped:
    """Return the rows of each unit beyond a bound, and those without a unit if they are dropped."""
    data, unit = run.job.data, str(run.job.data.unit_column)
    rows, through = survey_units(engine, table.partitions, unit), _read_lookup(run, engine)
    return rows_beyond(engine, run.domain, groups, unit, bound, rows, run.job.engine.bytes, names,
                       data.unit_nulls == "drop", through)  # fmt: skip


def unit_lookup(run: TablePart, engine: Engine) -> list[Any]:
    """Return handles of the parts of the map from the unit's column to units; none if the column has the units."""
    found = _read_lookup(run, engine)
    return engine.scatter(found.cut(KEYS_SENT), "units") if found is not None else []


def _read_lookup(run: TablePart, engine: Engine) -> UnitMap | None:
    through, rule = run.job.data.unit_through or [], run.job.data.unit_type or ""
    hops = [(one, column_name(hop.columns[0], rule), column_name(hop.columns[1], rule))
            for one, hop in zip(unit_tables(run), through, strict=True)]  # fmt: skip
    return read_unit_lookup(engine, hops) if hops else None


def unit_tables(run: TablePart) -> list[Table]:
    """Return the tables that define the privacy unit."""
    rule = run.job.data.unit_type or ""
    return [with_key_ids(one.origin.table(one.path, run.domain), *one.columns, rule=rule)
            for one in run.job.data.unit_through or []]  # fmt: skip


def check_frame_unit(data: Data) -> None:
    """Raise JobError for a unit of several columns of a data frame, or one with a stated type."""
    if data.unit_type is not None:
        raise JobError("data.unit_type", f"{data.unit_type!r} for a data frame", "files, whose types may differ",
                       "convert the column of the frame and leave unit_type out")  # fmt: skip
    if len(data.unit_columns or ()) > 1:
        raise JobError("data.privacy_unit", f"the columns {data.unit_column} of a data frame", "one column",
                       "combine them into one")  # fmt: skip
