"""Counts of rows in a database: read in ranges, or counted by the database, beside the same rows in Parquet.

    python benchmarks/databases.py [--rows 200000] [--postgres ADDRESS] [--save]

The table has six columns of ten whole numbers and a column of three texts. Printed for all sets of 1, 2 and 3 columns,
as ratios to the wall time of the same counts from Parquet in the same run on a single worker, the best of three turns:

    rows    rows are read, and counted by dpscale
    groups  the database counts (`count_in_database`)

`--postgres` names an empty database that may be written to, with the password in PGPASSWORD.
"""

from __future__ import annotations

import argparse
import itertools
import sqlite3
import tempfile
from functools import partial
from pathlib import Path

import base
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import dpscale as dp
from dpscale.counting.count import Layout, count
from dpscale.counting.grouped import count_groups
from dpscale.records.table import Table

NAMES = [*(f"a{k}" for k in range(6)), "s"]
DOMAIN = dp.Domain(**dict.fromkeys(NAMES[:6], 10), s=["x", "y", "z"])
LAYOUTS = {degree: Layout(DOMAIN, tuple(itertools.combinations(NAMES, degree))) for degree in (1, 2, 3)}
TURNS = 3


def make_rows(rows: int) -> pa.Table:
    random = np.random.default_rng(0)
    numbers = {name: pa.array(random.integers(0, 10, rows).astype(np.int32)) for name in NAMES[:6]}
    return pa.table(numbers | {"s": pa.array(random.choice(["x", "y", "z"], rows))})


def fill(place: Path, rows: pa.Table, postgres: str | None) -> dict[str, str]:
    """Write the rows into each database and return the addresses."""
    import duckdb

    with duckdb.connect(str(place / "t.duckdb")) as db:
        db.execute("CREATE TABLE t AS SELECT * FROM rows")
    columns = ", ".join(f"{name} INTEGER" for name in NAMES[:6])
    with sqlite3.connect(place / "t.sqlite") as lite:
        lite.execute(f"CREATE TABLE t({columns}, s TEXT)")
        values = zip(*(rows[name].to_pylist() for name in NAMES), strict=True)
        lite.executemany("INSERT INTO t VALUES (?, ?, ?, ?, ?, ?, ?)", values)
    lite.close()
    addresses = {name: f"{name.lower()}:///{place / f't.{name.lower()}'}?table=t" for name in ("DuckDB", "SQLite")}
    if postgres:
        from adbc_driver_postgresql.dbapi import connect

        with connect(postgres) as opened, opened.cursor() as cursor:
            cursor.adbc_ingest("t", rows, mode="create")
            opened.commit()
        addresses["PostgreSQL"] = f"{postgres}?table=t"
    return addresses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--postgres", metavar="ADDRESS")
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()

    figures: dict[str, float] = {"rows": given.rows}
    with tempfile.TemporaryDirectory() as folder:
        rows = make_rows(given.rows)
        pq.write_table(rows, Path(folder) / "t.parquet")
        file = Table.open(str(Path(folder) / "t.parquet"), DOMAIN).split()
        for name, address in fill(Path(folder), rows, given.postgres).items():
            table = Table.open(address, DOMAIN)
            for degree, layout in LAYOUTS.items():
                ways = {
                    "file": partial(count, layout, file.partitions),
                    "rows": partial(count, layout, table.partitions),
                    "groups": partial(count_groups, [layout], table.partitions),
                }
                if any((way() != ways["file"]()).any() for way in ways.values()):
                    raise SystemExit(f"the counts of {name} differ from those of Parquet")
                least = {what: min(base.time_call(way) for _ in range(TURNS)) for what, way in ways.items()}
                more = {what: least[what] / least["file"] for what in ("rows", "groups")}
                figures |= {f"{name} {degree} {what}": ratio for what, ratio in more.items()}
                print(f"{name:<10} {degree}-way, {len(layout.sets)} sets: rows {more['rows']:.1f} times Parquet,"
                      f" groups {more['groups']:.1f} times", flush=True)  # fmt: skip

    if given.save:
        base.save("databases", figures)


if __name__ == "__main__":
    main()
