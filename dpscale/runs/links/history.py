"""Files that are written again: rows in the order of their histories, and cells that rules across tables changed.

Links of a table with `order_by` are grouped by parent and in order (`relational.history`). The rows of the table
are written in that order. Dates are drawn inside the cell of each row independently, so dates of equal cells of one
parent are exchanged until they do not decrease; the cells, and all values of the table together, remain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpscale.base.arrow import pa, pc, pq
from dpscale.base.numerics import Integers
from dpscale.domain import Domain
from dpscale.job import Job
from dpscale.job.sections import LinkSection
from dpscale.privacy.streams import PublicStream
from dpscale.runs.linked_tables import LinkedTables
from dpscale.storage.files import writing
from dpscale.synthesis.decode import column as decoded


def write_again(run: LinkedTables, name: str, files: Sequence[str], links: Mapping[str, Any]) -> None:
    """Write the files of a table again, if it has an order or changed cells.

    Parameters
    ----------
    run : LinkedTables
    name : str
    files : sequence of str
        Of the table, in the database.
    links : mapping of str to ndarray
        By link, rows of the parent and of the child; by TABLE.ATTRIBUTE, rows whose cells changed, and these.
    """
    domain, ordering = run.tables[name].domain, link_in_order(run.job, name)
    changed = {one: links[f"{name}.{one}"] for one in domain.names if f"{name}.{one}" in links}
    if ordering is None and not changed:
        return
    paths = [run.path / "synthetic" / file for file in files]
    parts = [pq.read_table(path) for path in paths]
    begins = np.cumsum([0, *(part.num_rows for part in parts)]).tolist()
    for attribute, cells in changed.items():
        stream = PublicStream(run.manifest["release"], f"changed cells of {name}.{attribute}")
        parts = [_with_cells(part, begin, domain, attribute, cells, stream)
                 for part, begin in zip(parts, begins, strict=False)]  # fmt: skip
    if ordering is not None:
        whole = in_order(pa.concat_tables(parts), links[ordering.called], ordering.order[0], domain)
        parts = [whole.slice(begin, part.num_rows) for part, begin in zip(parts, begins, strict=False)]
    for path, part in zip(paths, parts, strict=True):
        _write(path, part)


def _write(path: Path, table: pa.Table) -> None:
    with writing(path, durable=False) as file:
        pq.write_table(table, file, store_schema=False)


def _with_cells(part: pa.Table, begin: int, domain: Domain, attribute: str, cells: Integers, stream: PublicStream
                ) -> pa.Table:  # fmt: skip
    """Return rows, of which the first has the number `begin`, with new cells, pairs of row and cell."""
    mine, column = cells[(cells[:, 0] >= begin) & (cells[:, 0] < begin + part.num_rows)], domain[attribute].column
    kept, at = part.column(column), np.arange(part.num_rows)
    values = decoded(domain[attribute], mine[:, 1].astype(np.int32), stream, kept.type)
    at[mine[:, 0] - begin] = part.num_rows + np.arange(len(mine))
    both = pa.chunked_array([*kept.chunks, values.cast(kept.type)])
    return part.set_column(part.column_names.index(column), column, both.take(pa.array(at)))


def link_in_order(job: Job, name: str) -> LinkSection | None:
    """Return the link that orders the rows of a table; None if there is none with a share of the budget.

    Parameters
    ----------
    job : Job
        With the shares of the run.
    name : str
        A private table.
    """
    links = [one for one in job.link if one.child == name and one.order and job.shares[f"links.{one.called}"] > 0]
    return links[0] if links else None


def in_order(table: pa.Table, pairs: Integers, attribute: str, domain: Domain) -> pa.Table:
    """Return the rows of a child's table in the order of its links, those without a parent last.

    Parameters
    ----------
    table : pyarrow.Table
        All rows.
    pairs : ndarray, shape (m, 2)
        Rows of the parent and of the child, grouped by parent and in order.
    attribute : str
        The order.
    domain : Domain
        Of the table.
    """
    left = np.setdiff1d(np.arange(table.num_rows), pairs[:, 1])
    order = np.concatenate([pairs[:, 1], left])
    table = table.take(pa.array(order))
    column = domain[attribute].column
    if domain[attribute].kind not in ("bins", "date") or domain.is_shared(column):  # values may not change alone
        return table
    found = np.arange(len(order))
    found[: len(pairs)] = _ascending(table.column(column).slice(0, len(pairs)), pairs[:, 0])
    return table.set_column(table.column_names.index(column), column, table.column(column).take(pa.array(found)))


def _ascending(values: pa.ChunkedArray, parents: Integers) -> Integers:
    """Return the positions of the values of each parent in ascending order, nulls last; parents are grouped."""
    ranks = np.empty(len(values), np.int64)
    ranks[pc.sort_indices(values).to_numpy()] = np.arange(len(values))
    group = np.cumsum(np.r_[False, parents[1:] != parents[:-1]])
    return np.lexsort((ranks, group))
