"""Counts of attribute sets by a database: GROUP BY of the columns of each set, and only numbers of rows leave it.

    count(S, c) = Σ over groups g of the columns of S of n_g · 1[the values of g are in the cell c].

Attributes whose policy drops records, and the columns of a filter, are columns of every group. The values of a group
become cells as those of rows do, so the counts are those of a reading of the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from dpscale.base.arrow import pa
from dpscale.base.numerics import Integers
from dpscale.counting.count import Layout, check_cells_known, encode_batch
from dpscale.domain import Domain
from dpscale.records.column_values import plain
from dpscale.records.database_rows import OpenRows
from dpscale.records.databases import COUNTED
from dpscale.records.encode import Codes
from dpscale.records.formats import reading
from dpscale.records.table import Partition
from dpscale.records.where import select_rows


def count_groups(layouts: Sequence[Layout], partitions: Sequence[Partition], checked: Sequence[str] = ()) -> Integers:
    """Count the sets of layouts over ranges of a database and return a flat int64 array.

    Requests are the sets followed by the single attributes to check; only the groups of sets are counted, whereas all
    are converted to cells, which refuses invalid values.

    Parameters
    ----------
    layouts : sequence of Layout
    partitions : sequence of Partition
    checked : sequence of str
        Further attributes whose values are checked against the domain; those that drop records are in every group.
    """
    domain = layouts[0].domain
    sets = [names for layout in layouts for names in layout.sets]
    check_cells_known(domain, [name for names in sets for name in names])
    dropping = [name for name in checked if domain[name].drops]
    requests = [list(dict.fromkeys([*names, *dropping])) for names in [*sets, *((name,) for name in checked)]]
    ends = np.cumsum([0, *domain.cells_each(sets)])
    flat = np.zeros(int(ends[-1]), dtype=np.int64)

    for partition in partitions:
        for place, codes, rows in _groups(domain, partition, requests):
            if place < len(sets):
                cells = _cells(codes[: len(sets[place])], domain.shape(sets[place]))
                np.add.at(flat[ends[place] : ends[place + 1]], cells, rows)
    return flat


def has_counted_group(partitions: Sequence[Partition], domain: Domain, names: Sequence[str]) -> bool:
    """Return whether some row of the ranges is counted, by groups of the attributes whose values may drop a record."""
    total = Layout(domain, ((),))
    return any(count_groups([total], [part], [name for name in names if domain[name].drops])[0] for part in partitions)


def _groups(
    domain: Domain, partition: Partition, requests: Sequence[Sequence[str]]
) -> Iterator[tuple[int, Codes, Integers]]:
    """Yield the place of a request, the codes of the groups that are counted, and their numbers of rows.

    `places` lists the requests of each set of columns, which the database groups once.
    """
    # a filter needs its columns in each group
    columns = [tuple(sorted({*domain.columns(names), *partition.where.columns})) for names in requests]
    places: dict[tuple[str, ...], list[int]] = {}
    for place, names in enumerate(columns):
        places.setdefault(names, []).append(place)

    with reading(partition.path, partition.dialect.format):
        opened = partition.source()
        assert isinstance(opened, OpenRows)
        for found, rows in opened.counted(list(places), partition.row_groups):
            batch = {name: plain(column) for name, column in found.items()} | {COUNTED: pa.array(rows)}
            for chosen in select_rows(partition.where, [batch], list(batch)) if partition.where else [batch]:
                for place in places[tuple(found)]:
                    yield place, *_coded(domain, chosen, requests[place])


def _coded(domain: Domain, batch: dict[str, Any], names: Sequence[str]) -> tuple[Codes, Integers]:
    """Return the codes of the rows of a batch that are not dropped, and how many records each row stands for."""
    rows = batch[COUNTED].to_numpy()
    if not names:
        return np.zeros((0, len(rows)), np.uint8), rows
    codes, gone = encode_batch(domain, batch, names)
    return (codes, rows) if gone is None else (codes[:, ~gone], rows[~gone])


def _cells(codes: Codes, shape: tuple[int, ...]) -> Integers:
    """Return the places of groups among the cells of a set."""
    if not shape:
        return np.zeros(codes.shape[1], dtype=np.int64)
    return np.ravel_multi_index(tuple(codes.astype(np.int64)), shape).astype(np.int64)
