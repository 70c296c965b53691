"""Public tables of a job: their rows, codes and keys, which are read once."""

from __future__ import annotations

import numpy as np

from dpscale.base.arrow import pa
from dpscale.base.errors import DataError
from dpscale.base.numerics import Flags, Integers32, Words
from dpscale.contributions.links import key_words
from dpscale.contributions.unit_shards import places
from dpscale.counting.count import encode_batch
from dpscale.domain import Domain
from dpscale.job import Job
from dpscale.job.sections import TableSection
from dpscale.job.table_sizes import check_public_parents
from dpscale.runs.linked_tables import LinkedTables, open_table


def public_table(section: TableSection, domain: Domain) -> tuple[Integers32, pa.Table]:
    """Return a public table as codes, (rows, attributes), and its rows, without those that the domain file drops."""
    pieces, tables = [np.empty((0, len(domain.names)), np.int32)], []
    for partition in open_table(section, domain).partitions:
        for batch in partition.batches(list(dict.fromkeys([*partition.columns(), *domain.columns(domain.names)]))):
            codes, dropped = encode_batch(domain, batch, domain.names)
            stays = np.ones(codes.shape[1], np.bool_) if dropped is None else ~dropped
            pieces.append(codes.T[stays].astype(np.int32))
            tables.append(pa.table(dict(batch)).filter(pa.array(stays)))
    if not sum(map(len, pieces)):
        raise DataError(
            section.path, "no rows", "the rows of a public table", "add rows, or remove the table and its links"
        )
    return np.concatenate(pieces), pa.concat_tables(tables, promote_options="permissive")


def public_tables(run: LinkedTables) -> dict[str, tuple[Integers32, pa.Table]]:
    """Return the codes and the rows of every public table, which are read once."""
    found: dict[str, tuple[Integers32, pa.Table]] = vars(run).setdefault("public_tables", {})
    for name, section in run.job.tables.items():
        if section.public and name not in found:
            found[name] = public_table(section, run.job.domains[name])
    return found


def check_public(job: Job) -> None:
    """Raise DataError for a public table with null or duplicate keys, or a key of another one that has no row there.

    Public tables are released unchanged, so their keys must fit as they are. Raises JobError for a table with more
    rows than its public parents.

    `known` has the distinct keys of each table as rows of two words, sorted.
    """
    tables = {}
    for name, section in job.tables.items():
        if section.public:
            _, tables[name] = public_table(section, job.domains[name])

    known: dict[str, Words] = {}  # distinct keys of each table, as integers
    for name in [name for name in tables if job.key(name)]:
        words, has_key = _words(tables[name], job.key(name))
        known[name] = np.unique(words, axis=0)
        if not has_key.all() or len(known[name]) < len(words):
            raise DataError(f"tables.{name}.key", "a null or duplicate key",
                            "a distinct key for every row of a public table", "fix the table")  # fmt: skip

    # links between public tables, whose keys of parents must exist
    for link in job.reference or ():
        to_parent, _ = job.ends(link)
        words, has_key = _words(tables[link.child], to_parent)
        twice = link.kind == "one-to-one" and len(np.unique(words[has_key], axis=0)) < int(has_key.sum())
        is_null = link.nulls != "keep" and not has_key.all()
        if twice or is_null or (places(known[link.parent], words[has_key]) < 0).any():
            raise DataError(f"link {link.called}", "a null, a key without a row, or two rows with one parent",
                            "public tables whose keys fit, because they are released unchanged",
                            "fix the tables, or remove the link")  # fmt: skip
    check_public_parents(job, {name: rows.num_rows for name, rows in tables.items() if name in known})


def _words(rows: pa.Table, columns: tuple[str, ...]) -> tuple[Words, Flags]:
    """Return the words of the keys in some columns of a table, and the rows that have one."""
    return key_words({column: rows.column(column).combine_chunks() for column in columns}, columns, "drop")
