"""Writer of the synthetic database: every table with keys, and every table of pairs, as Parquet.

Synthetic rows have the keys of `release_keys`; a public table is written unchanged. A child has its parent's key in the
column of the input, null without a parent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dpscale.base.arrow import pa, pq
from dpscale.base.errors import DataError
from dpscale.base.numerics import Flags, Integers, Integers32, Words
from dpscale.contributions.links import key_words
from dpscale.contributions.unit_shards import places
from dpscale.counting.count import encode_batch
from dpscale.domain import Domain
from dpscale.job.table_sizes import check_public_parents
from dpscale.job.tables import CompositeJob, LinkSection, TableSection
from dpscale.runs.composite import INDEX, CompositeRun, open_table
from dpscale.runs.links.release_keys import parent_keys, release_keys, with_distinct_ends
from dpscale.storage.files import read_text, write_whole, writing

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
    """Raise DataError for a public table with null or duplicate keys, or a key of another one that has no row there.

    Raises JobError for a table with more rows than its public parents.
    """
    tables = {name: public_table(one, job.domains[name])[1] for name, one in job.tables.items() if one.public}
    known: dict[str, Words] = {}
    for name in (name for name in tables if job.key(name)):
        words, has = _words(tables[name], job.key(name))
        known[name] = np.unique(words, axis=0)
        if not has.all() or len(known[name]) < len(words):
            raise DataError(f"tables.{name}.key", "a null or duplicate key",
                            "a distinct key for every row of a public table", "fix the table")  # fmt: skip
    for link in job.reference or ():
        words, has = _words(tables[link.child], job.ends(link)[0])
        twice = link.kind == "one-to-one" and len(np.unique(words[has], axis=0)) < int(has.sum())
        if twice or (link.nulls != "keep" and not has.all()) or (places(known[link.parent], words[has]) < 0).any():
            raise DataError(f"link {link.called}", "a null, a key without a row, or two rows with one parent",
                            "public tables whose keys fit, because they are released unchanged",
                            "fix the tables, or remove the link")  # fmt: skip
    check_public_parents(job, {name: rows.num_rows for name, rows in tables.items() if name in known})


def _words(rows: pa.Table, columns: tuple[str, ...]) -> tuple[Words, Flags]:
    """Return the words of the keys in some columns of a table, and the rows that have one."""
    return key_words({column: rows.column(column).combine_chunks() for column in columns}, columns, "drop")


def write_tables(run: CompositeRun, pairs: Mapping[str, Integers]) -> None:
    """Write all tables and links, and an index of their files."""
    job, public = run.job, {name: rows for name, (_, rows) in public_tables(run).items()}
    rows = {name: json.loads(read_text(one.path / "synthetic/_rows.json")) for name, one in run.tables.items()}
    keys = {name: [public[name].column(one) for one in job.key(name)] for name in public}
    counts = {name: int(info["rows"]) for name, info in rows.items()}
    pairs = with_distinct_ends(run, pairs, counts | {name: table.num_rows for name, table in public.items()})
    keys = release_keys(run, keys, counts, pairs)
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


def _with_keys(run: CompositeRun, name: str, files: list[str], keys: Keys, pairs: Mapping[str, Integers]) -> list[str]:
    """Write a synthetic table's files with its keys and its parents' keys."""
    extra = dict(zip(run.job.key(name), keys[name], strict=True))
    for link in run.job.link:
        if link.child == name and link.via is None:
            extra |= parent_keys(run, link, keys, pairs[link.called], _rows_of(run, name))
    written, begun = [], 0
    for file in files:
        part = pq.read_table(run.tables[name].path / "synthetic" / file)
        own = {column: values[begun : begun + part.num_rows] for column, values in extra.items()}
        begun += part.num_rows
        written.append(
            _write(
                run.path / "synthetic" / name, file, {**own, **dict(zip(part.column_names, part.columns, strict=True))}
            )
        )
    return written


def _rows_of(run: CompositeRun, name: str) -> int:
    return int(json.loads(read_text(run.tables[name].path / "synthetic/_rows.json"))["rows"])


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
