"""Writer of the synthetic database: every table with keys, and every table of pairs, as Parquet.

Keys of a synthetic table number its rows, 0, 1, … (TABLE-0, … if the input's key is a text); a public table is written
unchanged. A child has its parent's key in the column of the input, null without a parent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dpscale.base.arrow import is_text, pa, pq
from dpscale.base.errors import DataError
from dpscale.base.numerics import Integers, Integers32
from dpscale.contributions.links import key_words
from dpscale.counting.count import encode_batch
from dpscale.domain import Domain
from dpscale.job.table_sizes import check_public_parents
from dpscale.job.tables import CompositeJob, LinkSection, TableSection
from dpscale.privacy.streams import PublicStream
from dpscale.runs.composite import INDEX, CompositeRun, open_table
from dpscale.runs.links.history import in_order, link_in_order
from dpscale.storage.files import read_text, write_whole, writing
from dpscale.synthesis.decode import column as decoded

PART_ROWS = 1 << 20
Keys = Mapping[str, list["pa.ChunkedArray"]]


def public_table(section: TableSection, domain: Domain) -> tuple[Integers32, pa.Table]:
    """Return a public table as codes, (rows, attributes), and its rows, without those that the domain file drops."""
    found, tables = [np.empty((0, len(domain.names)), np.int32)], []
    for partition in open_table(section, domain).partitions:
        for batch in partition.batches(list(dict.fromkeys([*partition.columns(), *domain.columns(domain.names)]))):
            codes, dropped = encode_batch(domain, batch, domain.names)
            stays = np.ones(codes.shape[1], np.bool_) if dropped is None else ~dropped
            found.append(codes.T[stays].astype(np.int32))
            tables.append(pa.table(dict(batch)).filter(pa.array(stays)))
    if not sum(map(len, found)):
        raise DataError(
            section.path, "no rows", "the rows of a public table", "add rows, or remove the table and its links"
        )
    return np.concatenate(found), pa.concat_tables(tables, promote_options="permissive")


def public_tables(run: CompositeRun) -> dict[str, tuple[Integers32, pa.Table]]:
    """Return the codes and the rows of every public table, which are read once."""
    found: dict[str, tuple[Integers32, pa.Table]] = vars(run).setdefault("public_tables", {})
    for name, section in run.job.tables.items():
        if section.public and name not in found:
            found[name] = public_table(section, run.job.domains[name])
    return found


def check_public(job: CompositeJob) -> None:
    """Raise DataError for a public table with null or duplicate keys, because links refer to its rows by key.

    Raises JobError for a table with more rows than its public parents.
    """
    numbers: dict[str, int] = {}
    for name, one in job.tables.items():
        if one.public and (key := job.key(name)):
            rows = public_table(one, job.domains[name])[1]
            numbers[name] = rows.num_rows
            words, has = key_words({column: rows.column(column).combine_chunks() for column in key}, key, "drop")
            if not has.all() or len(np.unique(words, axis=0)) < len(words):
                raise DataError(f"tables.{name}.key", "a null or duplicate key",
                                "a distinct key for every row of a public table", "fix the table")  # fmt: skip
    check_public_parents(job, numbers)


def write_tables(run: CompositeRun, pairs: Mapping[str, Integers]) -> None:
    """Write all tables and links, and an index of their files.

    Parameters
    ----------
    run : CompositeRun
    pairs : mapping of str to ndarray
        By link, rows of the parent and of the child; by TABLE.ATTRIBUTE, rows whose cells rules changed, and these.
    """
    job, public = run.job, {name: rows for name, (_, rows) in public_tables(run).items()}
    rows = {name: json.loads(read_text(one.path / "synthetic/_rows.json")) for name, one in run.tables.items()}
    keys = {name: [public[name].column(one) for one in job.key(name)] for name in public}
    keys |= {name: _numbered(run, name, info["rows"]) for name, info in rows.items()}
    files: dict[str, list[str]] = {}
    for name in job.tables:
        if name in public:
            files[name] = _write_parts(run.path / "synthetic" / name, public[name])
        else:
            files[name] = _with_keys(run, name, rows[name]["files"], keys, pairs)
    for link in job.link:
        if link.via is not None:
            files[link.called] = _write_parts(
                run.path / "synthetic" / link.called, _paired(run, link, keys, pairs[link.called])
            )
    write_whole(run.path / "synthetic" / INDEX, json.dumps(files, indent=1).encode())


def _numbered(run: CompositeRun, name: str, rows: int) -> list[pa.Array]:
    """Return surrogate keys of a synthetic table; none if it has no key."""
    columns, table = run.job.key(name), run.tables[name]
    if not columns:
        return []
    first = open_table(run.job.tables[name], table.domain).partitions[0]
    numbers = np.arange(rows, dtype=np.int64)
    if not first.format.typed or not is_text(first.kind(columns[0])):
        return [pa.array(numbers)]
    return [pa.array([f"{name}-{number}" for number in numbers])]


def _with_keys(run: CompositeRun, name: str, files: list[str], keys: Keys, pairs: Mapping[str, Integers]) -> list[str]:
    """Write a synthetic table's files with its keys and its parents' keys."""
    extra = dict(zip(run.job.key(name), keys[name], strict=True))
    for link in run.job.link:
        if link.child == name and link.via is None:
            extra |= _parents(run, link, keys, pairs[link.called], _rows_of(run, name))
    parts = [pq.read_table(run.tables[name].path / "synthetic" / file) for file in files]
    begins = np.cumsum([0, *(part.num_rows for part in parts)])
    parts = [_with_changes(run, name, part, begin, pairs) for begin, part in zip(begins, parts, strict=False)]
    whole = [_table({column: values[begin : begin + part.num_rows] for column, values in extra.items()}, part)
             for begin, part in zip(begins, parts, strict=False)]  # fmt: skip
    if (ordering := link_in_order(run.job, name)) is not None:
        domain, links = run.tables[name].domain, pairs[ordering.called]
        ordered = in_order(pa.concat_tables(whole), links, ordering.order[0], domain)
        whole = [ordered.slice(begin, part.num_rows) for begin, part in zip(begins, parts, strict=False)]
    return [_write(run.path / "synthetic" / name, file, dict(zip(one.column_names, one.columns, strict=True)))
            for file, one in zip(files, whole, strict=True)]  # fmt: skip


def _with_changes(run: CompositeRun, name: str, part: pa.Table, begin: int, pairs: Mapping[str, Integers]) -> pa.Table:
    """Return rows with the cells that rules across tables changed; the first row has the number `begin`."""
    domain = run.tables[name].domain
    for attribute in (one for one in domain.names if f"{name}.{one}" in pairs):
        changes, column = pairs[f"{name}.{attribute}"], domain[attribute].column
        mine = changes[(changes[:, 0] >= begin) & (changes[:, 0] < begin + part.num_rows)]
        stream = PublicStream(run.manifest["release"], f"changed cells of {name}.{attribute} from {begin}")
        kept = part.column(column)
        values = decoded(domain[attribute], mine[:, 1].astype(np.int32), stream, kept.type)
        at = np.arange(part.num_rows)
        at[mine[:, 0] - begin] = part.num_rows + np.arange(len(mine))
        both = pa.chunked_array([*kept.chunks, values.cast(kept.type)])
        part = part.set_column(part.column_names.index(column), column, both.take(pa.array(at)))
    return part


def _table(keys: Mapping[str, Any], part: pa.Table) -> pa.Table:
    """Return rows with key columns before their own."""
    return pa.table({**keys, **dict(zip(part.column_names, part.columns, strict=True))})


def _rows_of(run: CompositeRun, name: str) -> int:
    return int(json.loads(read_text(run.tables[name].path / "synthetic/_rows.json"))["rows"])


def _parents(run: CompositeRun, link: LinkSection, keys: Keys, pairs: Integers, rows: int) -> dict[str, Any]:
    """Return the columns of a child with its parents' keys."""
    parents = np.full(rows, -1, np.int64)
    parents[pairs[:, 1]] = pairs[:, 0]
    at = pa.array(parents, mask=parents < 0)
    columns = run.job.ends(link)[0]
    return {column: values.take(at) for column, values in zip(columns, keys[link.parent], strict=True)}


def _paired(run: CompositeRun, link: LinkSection, keys: Keys, pairs: Integers) -> pa.Table:
    """Return the table of pairs."""
    found: dict[str, Any] = {}
    for columns, name, rows in zip(run.job.ends(link), (link.parent, link.child), pairs.T, strict=True):
        found |= {column: values.take(pa.array(rows)) for column, values in zip(columns, keys[name], strict=True)}
    return pa.table(found)


def _write_parts(folder: Path, table: pa.Table) -> list[str]:
    starts = range(0, max(table.num_rows, 1), PART_ROWS)
    parts = [table.slice(start, PART_ROWS) for start in starts]
    return [_write(folder, f"part-{i:05d}.parquet", dict(zip(part.column_names, part.columns, strict=True)))
            for i, part in enumerate(parts)]  # fmt: skip


def _write(folder: Path, name: str, columns: Mapping[str, pa.Array]) -> str:

    with writing(folder / name, durable=False) as file:
        pq.write_table(pa.table(dict(columns)), file, store_schema=False)
    return f"{folder.name}/{name}"
