"""Writer of the synthetic database: every table with keys, and every table of pairs, as Parquet.

Synthetic rows have the keys of `release_keys`; a public table is written unchanged. A child has its parent's key in the
column of the input, null without a parent. Each file of a synthetic table is a task, which reads the parents of its
rows from files. Rows with an order, and cells that rules across tables changed, are written again (`history`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpscale.base.arrow import pa, pq
from dpscale.base.numerics import Integers
from dpscale.job.sections import LinkSection
from dpscale.runs.linked_tables import INDEX, LinkedTables
from dpscale.runs.links.history import write_changes, write_in_order
from dpscale.runs.links.link_blocks import ParentFiles, stored_parents
from dpscale.runs.links.linked_values import LinkedValues, write_check
from dpscale.runs.links.public_tables import public_tables
from dpscale.runs.links.release_keys import Keys, release_keys, with_distinct_ends
from dpscale.runs.links.table_profiles import FOLDER
from dpscale.storage.files import read_text, write_whole, writing

if TYPE_CHECKING:
    from dpscale.engine.schedulers import Engine

PART_ROWS = 1 << 20  # rows of a file of a table


@dataclass(frozen=True, eq=False)
class KeyedFile:
    """File of a synthetic table to which keys are added.

    Attributes
    ----------
    source : Path
    folder : Path
        Where it is written.
    first : int
        Number of its first row.
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
    """Write changed cells, values that satisfy the rules, and the order of the rows; check the rules.

    `files` has the files of each table and `pairs` the links by name. `changed` are the tables with changed cells,
    whose values are fitted again.
    """
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

    `firsts` has the number of the first row of each file.
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
    firsts = np.cumsum([0, *lengths]).tolist()
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

    `file.first` is the number of its first row, `file.own` its key columns, and `file.links` has for each link the
    columns and the rows of the parents.
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
    return [_write(folder, f"part-{i:05d}.parquet", dict(zip(part.column_names, part.columns, strict=True)))
            for i, part in enumerate(parts)]  # fmt: skip


def _write(folder: Path, name: str, columns: Mapping[str, pa.Array]) -> str:
    """Write the columns into one file; return its name in the database."""
    with writing(folder / name, durable=False) as file:
        pq.write_table(pa.table(dict(columns)), file, store_schema=False)
    return f"{folder.name}/{name}"
