"""Public tables of a job: their rows, codes and keys, which are read once."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dpscale.base.arrow import pa
from dpscale.base.errors import DataError
from dpscale.base.numerics import Integers32
from dpscale.contributions.links import key_words
from dpscale.counting.count import encode_batch
from dpscale.domain import Domain
from dpscale.job.table_sizes import check_public_parents
from dpscale.job.tables import CompositeJob, TableSection
from dpscale.runs.composite import CompositeRun, open_table

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
