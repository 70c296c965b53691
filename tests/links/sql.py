"""Loading of a released database into SQLite and DuckDB, which enforce the constraints of its job."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from dpscale.job import Job
from tests.links.shapes import constraints, required_columns

Tables = dict[str, pa.Table]
KINDS = {"int": "BIGINT", "float": "DOUBLE", "double": "DOUBLE", "bool": "BOOLEAN"}


def read_tables(folder: Path) -> Tables:
    """Return the tables of a folder `synthetic`."""
    return {path.name: pq.read_table(path) for path in sorted(folder.iterdir()) if path.is_dir()}


def load(job: Job, tables: Tables) -> None:
    """Load the tables into both systems; an error of one of them is a violated constraint.

    DuckDB checks a foreign key at once, so a link within a table is checked there by a query.
    """
    with closing(sqlite3.connect(":memory:")) as lite, closing(duckdb.connect()) as duck:
        lite.execute("PRAGMA foreign_keys = ON")
        for name, rules in _in_order(job):
            table = tables[name]
            lite.execute(_schema(job, name, table, [_deferred(rule) for rule in rules]))
            marks = ", ".join("?" * table.num_columns)
            rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
            lite.executemany(f'INSERT INTO "{name}" VALUES ({marks})', rows)
            others = [rule for rule in rules if f'REFERENCES "{name}"' not in rule]
            duck.execute(_schema(job, name, table, others))
            duck.register("released", table)
            duck.execute(f'INSERT INTO "{name}" SELECT * FROM released')
            assert duck.execute(f'SELECT count(*) FROM "{name}"').fetchone() == (table.num_rows,)
        lite.commit()
        assert lite.execute("PRAGMA foreign_key_check").fetchall() == []
        for link in (link for link in job.link if link.via is None and link.parent == link.child):
            [column], [key] = job.ends(link)
            orphans = f'"{column}" IS NOT NULL AND "{column}" NOT IN (SELECT "{key}" FROM "{link.child}")'
            assert duck.execute(f'SELECT count(*) FROM "{link.child}" WHERE {orphans}').fetchone() == (0,)


def _in_order(job: Job) -> Iterator[tuple[str, list[str]]]:
    """Return the tables with their constraints, parents first."""
    left = dict(constraints(job))
    while left:
        for name in list(left):
            if not any(f'REFERENCES "{other}"' in rule for rule in left[name] for other in left if other != name):
                yield name, left.pop(name)


def _deferred(rule: str) -> str:
    return f"{rule} DEFERRABLE INITIALLY DEFERRED" if rule.startswith("FOREIGN") else rule


def _schema(job: Job, name: str, table: pa.Table, rules: list[str]) -> str:
    required = required_columns(job, name)
    columns = [f'"{field.name}" {_kind(field.type)}{" NOT NULL" * (field.name in required)}' for field in table.schema]
    return f'CREATE TABLE "{name}" ({", ".join([*columns, *rules])})'


def _kind(kind: pa.DataType) -> str:
    """Return the type in SQL; keys of private tables are integers or texts."""
    return next((sql for start, sql in KINDS.items() if str(kind).startswith(start)), "TEXT")
