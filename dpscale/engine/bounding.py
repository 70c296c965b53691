"""The rows that exceed a unit's bound, found over all partitions, one bucket of units at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpscale.domain import Domain
from dpscale.engine.base import Engine
from dpscale.tables.count import Dropped
from dpscale.tables.links import link_ends
from dpscale.tables.table import Partition, Table
from dpscale.tables.through import Through, composed
from dpscale.tables.unit_ids import one_family
from dpscale.tables.units import buckets, dropped, survey, unit_rows

NO_DOMAIN = Domain({"keys": 2})  # of files that are read by their keys alone


def survey_units(engine: Engine, partitions: Sequence[Partition], unit: str) -> int:
    """An upper guess of the table's rows, by footers; DataError where its files have units that cannot be compared."""
    files = {part.path: part for part in partitions}
    found = engine.map(survey, [(part, unit) for part in files.values()], "rows")
    one_family((family for _, family in found), unit)
    return sum(rows for rows, _ in found)


def rows_beyond(
    engine: Engine,
    domain: Domain,
    groups: Sequence[tuple[Partition, ...]],
    unit: str,
    bound: int,
    rows: int,
    memory: int,
    names: Sequence[str] | None = None,
    drop: bool = False,
    through: Through | None = None,
) -> Dropped:
    """Rows to leave out, by partition, ascending. `drop`: also those of no unit, which are an error else.

    `rows` is an upper guess of the table's length, for the number of buckets. `names` are the attributes that will be
    counted (all of the domain when None): only they are read, and rows that agree on them are alike. `through`: whose
    the ids in the unit's column are.
    """
    count = buckets(rows, memory // 2)
    by_partition: dict[Partition, list[NDArray[np.int64]]] = {}
    for bucket in range(count):
        items = [(domain, group, unit, bucket, count, names, drop, through) for group in groups]
        parts = engine.map(unit_rows, items, "units")
        for part, places in dropped(parts, bound).items():
            by_partition.setdefault(part, []).append(places)
    return {part: np.sort(np.concatenate(places)) for part, places in by_partition.items()}


def read_through(engine: Engine, hops: Sequence[tuple[str, str, str]]) -> Through:
    """Whose ids are, through tables given by their path, their key, and the column of what that belongs to."""
    return composed([_hop(engine, *hop) for hop in hops])


def _hop(engine: Engine, path: str, key: str, unit: str) -> Through:
    partitions = Table.open(path, NO_DOMAIN).split().partitions
    found = engine.map(link_ends, [(part, ((key,), (unit,)), "drop") for part in partitions], "units")
    words, units = (np.concatenate(own) for own in zip(*found, strict=True))
    return Through.made(words, units)
