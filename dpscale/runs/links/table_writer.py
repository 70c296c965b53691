"""Writer of the synthetic database: every table with keys, and every table of pairs, as Parquet.

Synthetic rows have the keys of `release_keys`; a public table is written unchanged. A child has its parent's key in the
column of the input, null without a parent. Each file of a synthetic table is a task, which reads the parents of its
rows from files. Rows with an order, and cells that rules across tables changed, are written again.

*Order.*
Links of a table with `order_by` are grouped by parent and in order (`relational.history`). The rows of the table
are written in that order. Dates are drawn inside the cell of each row independently, so dates of equal cells of one
parent are exchanged until they do not decrease, unless a row would break a rule; the cells, and all values of the table
together, remain.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpscale.base.arrow import is_text, pa, pc, pq
from dpscale.base.numerics import Flags, Integers
from dpscale.domain import Domain
from dpscale.job import Job
from dpscale.job.sections import LinkSection
from dpscale.privacy.streams import PublicStream
from dpscale.records.column_values import days
from dpscale.runs.linked_tables import INDEX, LinkedTables, public_tables
from dpscale.runs.links.keys import Keys, release_keys, with_distinct_ends
from dpscale.runs.links.link_sampling import FOLDER, ParentFiles, stored_parents
from dpscale.runs.links.linked_values import LinkedValues, write_check
from dpscale.storage.files import read_text, write_whole, writing
from dpscale.synthesis.decode import column as decoded

if TYPE_CHECKING:
    from dpscale.engine.schedulers import Engine

PART_ROWS = 1 << 20  # rows of a file of a table

Broken = Callable[[pa.Table, Integers], Flags]


@dataclass(frozen=True, eq=False)
class KeyedFile:
    """File of a synthetic table to which keys are added.

    Attributes
    ----------
    source : Path
    folder : Path
        Where it is written.
    first : int
        Number of its first row in the table.
    own : tuple of str
        Columns of the table's key.
    links : tuple of (tuple of str, ParentFiles)
        Columns with the parent's key, and the parents.
    """

    source: Path
    folder: Path
    first: int
    own: tuple[str, ...]
    links: tuple[tuple[tuple[str, ...], ParentFiles], ...]


def write_tables(run: LinkedTables, pairs: Mapping[str, Integers | ParentFiles], engine: Engine) -> None:
    """Write all tables and links, and an index of their files.

    Parameters
    ----------
    run : LinkedTables
    pairs : mapping of str to ndarray or ParentFiles
        By link, rows of the parent and of the child; by TABLE.ATTRIBUTE, rows whose cells rules changed, and the new
        cells.
    engine : Engine
    """
    job, public = run.job, {name: rows for name, (_, rows) in public_tables(run).items()}
    described = {name: json.loads(read_text(table.path / "synthetic/_rows.json")) for name, table in run.tables.items()}
    rows = {name: int(description["rows"]) for name, description in described.items()}
    pairs = with_distinct_ends(run, rows, pairs)
    keys = release_keys(run, rows, pairs)
    files: dict[str, list[str]] = {}
    for name in job.tables:
        if name in public:
            files[name] = _write_parts(run.path / "synthetic" / name, public[name])
        else:
            files[name] = _with_keys(run, name, described[name], keys, pairs, engine)
    _satisfy_rules(run, files, pairs)
    for link in job.link:
        rows_of_ends = pairs.get(link.called)
        # tables of pairs are written here; links of a foreign key are columns of the child's files
        if link.via is not None and isinstance(rows_of_ends, np.ndarray):
            table_of_pairs = _paired(run, link, keys, rows_of_ends)
            files[link.called] = _write_parts(run.path / "synthetic" / link.called, table_of_pairs)
    write_whole(run.path / "synthetic" / INDEX, json.dumps(files, indent=1).encode())


def _satisfy_rules(run: LinkedTables, files: Mapping[str, list[str]], pairs: Mapping[str, Any]) -> None:
    """Write changed cells, values that satisfy the rules across tables, and the order of the rows; check the rules.

    `files` has the files of each table, and `pairs` the links and changed cells as in `write_tables`.
    """
    # tables with changed cells, in which values are fitted again
    changed = [name for name in run.tables if write_changes(run, name, files[name], pairs)]
    values = LinkedValues(run, files, pairs)
    values.fit(changed)
    ordered = {
        name: write_in_order(run, name, files[name], pairs, partial(values.may_not_exchange, name))
        for name in run.tables
    }
    if values.links:
        write_check(run.path / "synthetic", values.count_broken(ordered))


def _with_keys(run: LinkedTables, name: str, description: Mapping[str, Any], keys: Mapping[str, Keys],
               pairs: Mapping[str, Integers | ParentFiles], engine: Engine) -> list[str]:  # fmt: skip
    """Write a synthetic table's files with its keys and its parents' keys; return their names in the database.

    Each file is a task, which gets the keys of the table and of its parents once for each worker.
    """
    above = [link for link in run.job.link if link.child == name and link.via is None]
    links = []
    for link in above:
        parents = pairs[link.called]
        if not isinstance(parents, ParentFiles):
            parents = stored_parents(run.path / FOLDER, link.called, parents, description["rows"])
        to_parent, _ = run.job.ends(link)
        links.append((to_parent, parents))
    sources = [run.tables[name].path / "synthetic" / file for file in description["files"]]
    lengths = engine.map(_length, [(source,) for source in sources], "tables")
    firsts = np.cumsum([0, *lengths]).tolist()  # number of the first row of each file
    files = [
        KeyedFile(
            source=source, folder=run.path / "synthetic" / name, first=first, own=run.job.key(name), links=tuple(links)
        )
        for source, first in zip(sources, firsts, strict=False)
    ]
    sent = [engine.broadcast(keys[table], "tables") for table in (name, *(link.parent for link in above))]
    return engine.map(_write_keyed, [(file, *sent) for file in files], "tables")


def _length(source: Path) -> int:
    return int(pq.read_metadata(source).num_rows)


def _write_keyed(file: KeyedFile, own_keys: Keys, *parent_keys: Keys) -> str:
    """Write a file with its keys and its parents' keys; return its name in the database.

    `parent_keys` are those of the parents' tables in the order of `file.links`.
    """
    part = pq.read_table(file.source)
    rows = np.arange(file.first, file.first + part.num_rows, dtype=np.int64)
    columns: dict[str, Any] = dict(zip(file.own, own_keys.at(rows), strict=True)) if file.own else {}
    for (names, parents), keys in zip(file.links, parent_keys, strict=True):
        columns |= dict(zip(names, keys.at(parents.of(file.first, file.first + part.num_rows)), strict=True))
    columns |= {name: part.column(name) for name in part.column_names if name not in columns}
    return _write(file.folder, file.source.name, columns)


def _paired(run: LinkedTables, link: LinkSection, keys: Mapping[str, Keys], pairs: Integers) -> pa.Table:
    """Return the table of pairs of a link: the keys of both ends, given the rows of both, shape (links, 2)."""
    key_columns: dict[str, Any] = {}
    for columns, name, rows in zip(run.job.ends(link), (link.parent, link.child), pairs.T, strict=True):
        key_columns |= dict(zip(columns, keys[name].at(rows), strict=True))
    return pa.table(key_columns)


def _write_parts(folder: Path, table: pa.Table) -> list[str]:
    """Write a table in files of PART_ROWS rows; return their names in the database."""
    starts = range(0, max(table.num_rows, 1), PART_ROWS)
    parts = [table.slice(start, PART_ROWS) for start in starts]
    return [_write(folder, f"part-{number:05d}.parquet", dict(zip(part.column_names, part.columns, strict=True)))
            for number, part in enumerate(parts)]  # fmt: skip


def _write(folder: Path, name: str, columns: Mapping[str, pa.Array]) -> str:
    """Write the columns into one file; return its name in the database."""
    with writing(folder / name, durable=False) as file:
        pq.write_table(pa.table(dict(columns)), file, store_schema=False)
    return f"{folder.name}/{name}"


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
    changed = {attribute: links[f"{name}.{attribute}"] for attribute in domain.names if f"{name}.{attribute}" in links}
    if not changed:
        return False
    paths, parts, begins = _parts(run, files)
    for attribute, cells in changed.items():
        stream = PublicStream(run.manifest["release"], f"changed cells of {name}.{attribute}")
        parts = [_with_cells(part, begin, domain, attribute, cells, stream)
                 for part, begin in zip(parts, begins, strict=False)]  # fmt: skip
    for path, part in zip(paths, parts, strict=True):
        _write_again(path, part)
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
        _write_again(path, whole.slice(begin, part.num_rows))
    return whole, _order(whole.num_rows, pairs)


def _parts(run: LinkedTables, files: Sequence[str]) -> tuple[list[Path], list[pa.Table], list[int]]:
    """Return the paths and the rows of files, and the number of the first row of each."""
    paths = [run.path / "synthetic" / file for file in files]
    parts = [pq.read_table(path) for path in paths]
    return paths, parts, np.cumsum([0, *(part.num_rows for part in parts)]).tolist()


def _write_again(path: Path, table: pa.Table) -> None:
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
    column_before = part.column(column)
    values = decoded(domain[attribute], in_part[:, 1].astype(np.int32), stream, column_before.type)
    # rows take their value from the old column, changed rows from the new values after it
    source = np.arange(part.num_rows)
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
    links = [link for link in job.link
             if link.child == name and link.order and job.shares[f"links.{link.called}"] > 0]  # fmt: skip
    return links[0] if links else None


def in_order(
    table: pa.Table, pairs: Integers, attribute: str, domain: Domain, broken: Broken | None = None
) -> pa.Table:
    """Return the rows of a child's table in the order of its links, those without a parent last.

    Rows of a parent exchange their values of the attribute so that these ascend; the other attributes stay. Only bins
    and dates of a column that no other attribute shares are exchanged; texts of dates are compared as days. If an
    exchange breaks a rule for a row of a parent, all rows of this parent retain their values.

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
    source = np.arange(len(order))  # for each row the row from which its value is taken
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
    """Return the positions of the values of each parent in ascending order, nulls last; parents are grouped."""
    # place of each value among all in ascending order
    ranks = np.empty(len(values), np.int64)
    ranks[pc.sort_indices(values).to_numpy()] = np.arange(len(values))
    group = np.cumsum(np.r_[False, parents[1:] != parents[:-1]])
    return np.lexsort((ranks, group))
