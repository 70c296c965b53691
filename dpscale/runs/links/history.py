"""Files that are written again: rows in the order of their histories, and cells that rules across tables changed.

Links of a table with `order_by` are grouped by parent and in order (`relational.history`). The rows of the table
are written in that order. Dates are drawn inside the cell of each row independently, so dates of equal cells of one
parent are exchanged until they do not decrease, unless a row would break a rule; the cells, and all values of the table
together, remain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpscale.base.arrow import is_text, pa, pc, pq
from dpscale.base.numerics import Flags, Integers
from dpscale.domain import Domain
from dpscale.job import Job
from dpscale.job.sections import LinkSection
from dpscale.privacy.streams import PublicStream
from dpscale.records.column_values import days
from dpscale.runs.linked_tables import LinkedTables
from dpscale.storage.files import writing
from dpscale.synthesis.decode import column as decoded

Broken = Callable[[pa.Table, Integers], Flags]


def write_changes(run: LinkedTables, name: str, files: Sequence[str], links: Mapping[str, Any]) -> bool:
    """Write the files of a table again if rules across tables changed cells; return whether they did.

    Parameters
    ----------
    run : LinkedTables
    name : str
    files : sequence of str
        Of the table, in the database.
    links : mapping of str to ndarray
        By TABLE.ATTRIBUTE, the rows whose cells changed and their new cells, shape (changed, 2).
    """
    domain = run.tables[name].domain
    changed = {own_name: links[f"{name}.{own_name}"] for own_name in domain.names if f"{name}.{own_name}" in links}
    if not changed:
        return False
    paths, parts, begins = _parts(run, files)
    for attribute, cells in changed.items():
        stream = PublicStream(run.manifest["release"], f"changed cells of {name}.{attribute}")
        parts = [_with_cells(part, begin, domain, attribute, cells, stream)
                 for part, begin in zip(parts, begins, strict=False)]  # fmt: skip
    for path, part in zip(paths, parts, strict=True):
        _write(path, part)
    return True


def write_in_order(
    run: LinkedTables, name: str, files: Sequence[str], links: Mapping[str, Any], broken: Broken
) -> tuple[pa.Table, Integers] | None:
    """Write the files of a table again in the order of its links, if it has one.

    Parameters
    ----------
    run : LinkedTables
    name : str
    files : sequence of str
        Of the table, in the database.
    links : mapping of str to ndarray
        By link, rows of the parent and of the child.
    broken : callable
        broken(table, order) returns the rows of a table in another order that break a rule.

    Returns
    -------
    tuple of (pyarrow.Table, ndarray), or None
        The table and the numbers that its rows had before; None without an order.
    """
    if (ordering := link_in_order(run.job, name)) is None:
        return None
    paths, parts, begins = _parts(run, files)
    domain, pairs = run.tables[name].domain, links[ordering.called]
    whole = in_order(pa.concat_tables(parts), pairs, ordering.order[0], domain, broken)
    for path, part, begin in zip(paths, parts, begins, strict=False):
        _write(path, whole.slice(begin, part.num_rows))
    return whole, _order(whole.num_rows, pairs)


def _parts(run: LinkedTables, files: Sequence[str]) -> tuple[list[Path], list[pa.Table], list[int]]:
    """Return the paths and the rows of files, and the number of the first row of each."""
    paths = [run.path / "synthetic" / file for file in files]
    parts = [pq.read_table(path) for path in paths]
    return paths, parts, np.cumsum([0, *(part.num_rows for part in parts)]).tolist()


def _write(path: Path, table: pa.Table) -> None:
    with writing(path, durable=False) as file:
        pq.write_table(table, file, store_schema=False)


def _with_cells(part: pa.Table, begin: int, domain: Domain, attribute: str, cells: Integers, stream: PublicStream
                ) -> pa.Table:  # fmt: skip
    """Return the rows of a file with new cells of an attribute; values are drawn inside these cells.

    Parameters
    ----------
    part : pyarrow.Table
        Rows, of which the first has the number `begin` in the table.
    cells : ndarray of int, shape (changed, 2)
        Numbers of rows in the table, also of other files, and their new cells.
    """
    in_part, column = cells[(cells[:, 0] >= begin) & (cells[:, 0] < begin + part.num_rows)], domain[attribute].column
    column_before, source = part.column(column), np.arange(part.num_rows)
    values = decoded(domain[attribute], in_part[:, 1].astype(np.int32), stream, column_before.type)
    # rows take their value from the old column, changed rows from the new values after it
    source[in_part[:, 0] - begin] = part.num_rows + np.arange(len(in_part))
    candidates = pa.chunked_array([*column_before.chunks, values.cast(column_before.type)])
    return part.set_column(part.column_names.index(column), column, candidates.take(pa.array(source)))


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


def in_order(
    table: pa.Table, pairs: Integers, attribute: str, domain: Domain, broken: Broken | None = None
) -> pa.Table:
    """Return the rows of a child's table in the order of its links, those without a parent last.

    Rows of a parent exchange their values of the attribute so that these ascend; the other attributes stay.

    Only bins and dates of a column that no other attribute shares are exchanged. `source` has for each row the row from
    which its value is taken; texts of dates are compared as days. If an exchange breaks a rule for a row of a parent,
    all rows of this parent retain their values.

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
    broken : callable, optional
        broken(table, order) returns the rows that break a rule. The dates of a parent are not exchanged if some would.
    """
    order = _order(table.num_rows, pairs)
    table = table.take(pa.array(order))
    column = domain[attribute].column
    if domain[attribute].kind not in ("bins", "date") or domain.is_shared(column):  # values may not change alone
        return table
    source = np.arange(len(order))
    values = table.column(column).slice(0, len(pairs))
    if is_text(values.type):
        parsed = days(values.combine_chunks(), form=domain[attribute].format)
        if parsed is not None:
            values = pa.chunked_array([pa.array(parsed.values, mask=parsed.missing)])
    source[: len(pairs)] = _ascending(values, pairs[:, 0])
    exchanged = _exchanged(table, column, source)
    if broken is None:
        return exchanged
    wrong = broken(exchanged, order)[: len(pairs)]
    if not wrong.any():
        return exchanged

    unchanged = np.flatnonzero(np.isin(pairs[:, 0], pairs[wrong, 0]))
    source[unchanged] = unchanged
    return _exchanged(table, column, source)


def _order(rows: int, pairs: Integers) -> Integers:
    """Return the numbers of the rows in the order of their links, those without a parent last."""
    return np.concatenate([pairs[:, 1], np.setdiff1d(np.arange(rows), pairs[:, 1])])


def _exchanged(table: pa.Table, column: str, rows: Integers) -> pa.Table:
    """Return a table whose rows have the values of other rows in a column."""
    return table.set_column(table.column_names.index(column), column, table.column(column).take(pa.array(rows)))


def _ascending(values: pa.ChunkedArray, parents: Integers) -> Integers:
    """Return the positions of the values of each parent in ascending order, nulls last; parents are grouped.

    `ranks` are the places of the values in ascending order. Positions are sorted by parent, then by rank.
    """
    ranks = np.empty(len(values), np.int64)
    ranks[pc.sort_indices(values).to_numpy()] = np.arange(len(values))
    group = np.cumsum(np.r_[False, parents[1:] != parents[:-1]])
    return np.lexsort((ranks, group))
