"""Rows of PostgreSQL, DuckDB and SQLite: those of the same Parquet file, in ranges, and their content."""

from __future__ import annotations

import datetime
import decimal
import os
import pickle
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tomli_w
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from dpscale.audit.evidence.bundle import write_bundle
from dpscale.base.errors import DataError, DpscaleError, JobError
from dpscale.counting.count import Layout, count
from dpscale.counting.grouped import count_groups, has_counted_group
from dpscale.domain import Domain
from dpscale.job import Job
from dpscale.ledger import Ledger
from dpscale.records import database_rows, databases
from dpscale.records.databases import WarehouseConnection
from dpscale.records.origin import as_seen, fingerprints, stamps
from dpscale.records.table import Table
from dpscale.records.where import EVERYTHING, read_where
from dpscale.runs.opening import open_run
from dpscale.storage.databases import read_address
from tests.ledger import conftest as ledger_conftest
from tests.ledger.conftest import Server
from tests.messages import refused

duckdb = pytest.importorskip("duckdb")
server = ledger_conftest.server
ROWS = 3000
PASSWORD = "open-sesame-17"
DOMAIN = """
[attributes.age]
kind = "integer"
low = 0
high = 89
[attributes.sex]
kind = "categories"
values = ["F", "M"]
nulls = "category"
[attributes.ok]
kind = "boolean"
[attributes.day]
kind = "date"
by = "month"
low = "2024-01"
high = "2024-03"
[numbers.paid]
low = 0
high = 200
step = 0.01
outside = "clip"
"""
QUERY = "SELECT sex, count(*) AS n FROM data GROUP BY sex"
COLUMNS = ["person", "age", "sex", "day", "paid", "ok"]


def rows_of(number: int, seed: int = 0) -> pa.Table:
    rng = np.random.default_rng(seed)
    sex = rng.choice(["F", "M"], number).tolist()
    return pa.table(
        {
            "person": pa.array(rng.integers(0, number // 2, number)),
            "age": pa.array(rng.integers(0, 90, number), pa.int32()),
            "sex": pa.array([None if k % 50 == 0 else one for k, one in enumerate(sex)], pa.string()),
            "day": pa.array(
                [datetime.date(2024, 1, 1) + datetime.timedelta(int(k)) for k in rng.integers(0, 60, number)]
            ),
            "paid": pa.array(np.round(rng.gamma(2, 20, number), 2)),
            "ok": pa.array(rng.random(number) < 0.5),
        }
    )


def fill_sqlite(path: Path, table: pa.Table, name: str = "visits") -> None:
    with sqlite3.connect(path) as db:
        db.execute(f"CREATE TABLE {name}(person INTEGER, age INT, sex TEXT, day DATE, paid REAL, ok BOOLEAN)")
        values = [(*row.values(),) for row in table.to_pylist()]
        db.executemany(
            f"INSERT INTO {name} VALUES (?, ?, ?, ?, ?, ?)",
            [(a, b, c, day.isoformat(), e, int(f)) for a, b, c, day, e, f in values],
        )
    db.close()


def fill_postgres(address: str, table: pa.Table) -> None:
    with connected(address) as db:
        db.execute("CREATE TABLE visits(person bigint, age int, sex text, day date, paid numeric(10, 2), ok boolean)")
        with db.cursor().copy("COPY visits FROM STDIN") as copy:
            for row in table.to_pylist():
                copy.write_row(tuple(row.values()))
        db.execute("CREATE VIEW shown AS SELECT * FROM visits")


def connected(address: str) -> Any:
    import psycopg

    return psycopg.connect(address, autocommit=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same rows in a Parquet file, in DuckDB and in SQLite."""
    place, table = tmp_path_factory.mktemp("databases"), rows_of(ROWS)
    (place / "d.toml").write_text(DOMAIN)
    pq.write_table(table, place / "visits.parquet")
    with duckdb.connect(str(place / "x.duckdb")) as db:
        db.execute(f"CREATE TABLE visits AS SELECT * FROM '{place / 'visits.parquet'}'")
        db.execute("CREATE VIEW shown AS SELECT * FROM visits")
    fill_sqlite(place / "x.sqlite", table)
    with sqlite3.connect(place / "x.sqlite") as lite:
        lite.execute("CREATE VIEW shown AS SELECT * FROM visits")
    lite.close()
    return place


@pytest.fixture(scope="module")
def postgres(server: Server) -> str:
    """Address of a database with the same rows."""
    pytest.importorskip("adbc_driver_postgresql")
    address = server.database()
    fill_postgres(address, rows_of(ROWS))
    return address


@pytest.fixture
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(databases, "RANGE_ROWS", 700)
    monkeypatch.setattr(databases, "RANGE_PAGES", 6)


def address_of(kind: str, folder: Path, postgres: str | None = None) -> str:
    if kind.startswith("postgresql"):
        return postgres + kind.removeprefix("postgresql")  # type: ignore[operator]
    scheme, mark, rest = kind.partition("?")
    return f"{scheme}:///{folder / f'x.{scheme}'}{mark}{rest}"


WAYS = ["?table=visits", "?table=visits&partition_by=person", "?table=shown", "?table=shown&partition_by=age",
        "?query=SELECT person, age, sex, day, paid, ok FROM visits -- all of them", '?table="visits"']  # fmt: skip
FILE_WAYS = [scheme + way for scheme in ("duckdb", "sqlite") for way in WAYS]


def read_rows(table: Table) -> pd.DataFrame:
    """Return the rows of all partitions, sorted."""
    batches = [batch for part in table.partitions for batch in part.batches(COLUMNS)]
    frames = [pd.DataFrame({name: pd.Series(batch[name].to_pylist()) for name in COLUMNS}) for batch in batches]
    found = pd.concat(frames, ignore_index=True)
    found["day"], found["paid"] = found.day.astype(str), found.paid.astype(float).round(2)
    found["ok"], found["sex"] = found.ok.astype(bool), found.sex.fillna("none")
    return found.sort_values(COLUMNS, ignore_index=True)


def check_rows(address: str, folder: Path) -> None:
    domain = dp.Domain.read(folder / "d.toml")
    table, file = Table.open(address, domain), Table.open(str(folder / "visits.parquet"), domain)
    pd.testing.assert_frame_equal(read_rows(table), read_rows(file), check_dtype=False)
    assert (len(table.partitions) > 1) == (
        "partition_by" in address or "visits" in (read_address(address).table.strip('"'))
    )
    assert pickle.loads(pickle.dumps(table)).partitions == table.partitions


@pytest.mark.usefixtures("small_ranges")
@pytest.mark.parametrize("kind", FILE_WAYS)
def test_ranges_have_the_rows_of_the_file(kind: str, folder: Path) -> None:
    check_rows(address_of(kind, folder), folder)


@pytest.mark.usefixtures("small_ranges")
@pytest.mark.parametrize("way", ["?table=public.visits", *WAYS])
def test_ranges_of_postgres_have_the_rows_of_the_file(way: str, folder: Path, postgres: str) -> None:
    check_rows(postgres + way, folder)


@pytest.mark.usefixtures("small_ranges")
def test_tables_are_divided(folder: Path, postgres: str) -> None:
    domain = dp.Domain.read(folder / "d.toml")
    for address in (
        postgres + "?table=visits",
        *(address_of(f"{one}?table=visits", folder) for one in ("duckdb", "sqlite")),
    ):
        assert len(Table.open(address, domain).partitions) > 3, address


def test_pages_are_read_by_a_range_scan(postgres: str) -> None:
    address = read_address(postgres + "?table=visits")
    with database_rows.connected(address) as opened:
        plan = opened.open.cursor()  # type: ignore[attr-defined]
        plan.adbc_statement.set_options(**{"adbc.postgresql.use_copy": "false"})
        plan.execute(f"EXPLAIN {opened.statement(['age'], (6, 12))}")  # type: ignore[attr-defined]
        assert "Tid Range Scan" in str(plan.fetchall())


def test_odd_names_and_partitioned_tables(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("adbc_driver_postgresql")
    monkeypatch.setattr(databases, "RANGE_ROWS", 300)
    address = server.database()
    with connected(address) as db:
        db.execute("CREATE TABLE parent(age int, t text) PARTITION BY RANGE (age)")
        for low in (0, 50):
            db.execute(f"CREATE TABLE part{low} PARTITION OF parent FOR VALUES FROM ({low}) TO ({low + 50})")
        db.execute("INSERT INTO parent SELECT g % 90, 'x' FROM generate_series(1, 1000) AS g")
        db.execute('CREATE TABLE "Odd.Name"("Age" int, "a""b" text, t int, dpscale int, "100%" int)')
        db.execute("""INSERT INTO "Odd.Name" VALUES (1, 'x', 2, 3, 4)""")
    for way, number in (("", 1), ("&partition_by=age", 4)):
        table = Table.open(address + "?table=parent" + way, dp.Domain(age=90))
        assert len(table.partitions) == number
        ages = [age for part in table.partitions for batch in part.batches(["age"]) for age in batch["age"].to_pylist()]
        assert sorted(ages) == sorted(g % 90 for g in range(1, 1001))
    [part] = Table.open(address + '?table=public."Odd.Name"', dp.Domain(age=90)).partitions
    [batch] = part.batches(names := ["Age", 'a"b', "t", "dpscale", "100%"])
    assert [batch[name].to_pylist() for name in names] == [[1], ["x"], [2], [3], [4]]


@pytest.mark.parametrize("kind", ["duckdb", "sqlite"])
def test_table_without_rows_is_released_with_a_warning(kind: str, place: Path) -> None:
    with duckdb.connect("e.duckdb") as db:
        db.execute("CREATE TABLE visits(sex VARCHAR)")
    with sqlite3.connect("e.sqlite") as lite:
        lite.execute("CREATE TABLE visits(sex TEXT)")
    lite.close()
    job = job_of({"database": f"{kind}:///e.{kind}", "table": "visits"})
    del job["data"]["privacy_unit"], job["data"]["max_rows_per_unit"]
    job["workload"] = [{"family": "marginal", "attributes": [["sex"]]}]
    with pytest.warns(UserWarning, match="state that they have no rows"):
        dp.run(job, run_dir="run")


# Content


def content_of(address: str) -> str:
    return fingerprints(Table.open(address, dp.Domain(age=90)))[0][2]


def changed_copies(table: pa.Table) -> Iterator[pa.Table]:
    """Yield tables that differ in one value, one row, or by moving letters between columns."""
    rows = table.to_pylist()
    for change in (
        {"age": rows[5]["age"] ^ 1},
        {"sex": None},
        {"paid": rows[5]["paid"] + 0.01},
        {"ok": not rows[5]["ok"]},
    ):
        yield pa.Table.from_pylist([*rows[:5], rows[5] | change, *rows[6:]], table.schema)
    yield table.slice(1)
    yield pa.concat_tables([table, table.slice(0, 1)])


@pytest.mark.usefixtures("small_ranges")
def test_content_depends_on_rows_and_not_on_their_order(tmp_path: Path) -> None:
    table = rows_of(1500)
    fill_sqlite(tmp_path / "x.sqlite", table)
    shuffled = table.take(np.random.default_rng(1).permutation(len(table)))
    fill_sqlite(tmp_path / "x.sqlite", shuffled, "shuffled")
    others = {f"c{k}": one for k, one in enumerate(changed_copies(table))}
    for name, one in others.items():
        fill_sqlite(tmp_path / "x.sqlite", one, name)
    with duckdb.connect(str(tmp_path / "x.duckdb")) as db:
        for name, one in {"visits": table, "shuffled": shuffled, **others}.items():  # noqa: B007
            db.execute(f"CREATE TABLE {name} AS SELECT * FROM one")
    for scheme in ("sqlite", "duckdb"):
        contents = {
            name: content_of(address_of(f"{scheme}?table={name}", tmp_path)) for name in ("visits", "shuffled", *others)
        }
        assert contents["visits"] == contents["shuffled"]
        assert contents["visits"] == content_of(address_of(f"{scheme}?table=visits&partition_by=age", tmp_path))
        assert contents["visits"] == content_of(address_of(f"{scheme}?query=SELECT * FROM visits", tmp_path))
        assert len(set(contents.values())) == len(contents) - 1


@pytest.mark.usefixtures("small_ranges")
def test_content_in_postgres_survives_a_rewrite_and_notices_a_value(server: Server) -> None:
    pytest.importorskip("adbc_driver_postgresql")
    address = server.database()
    fill_postgres(address, rows_of(1500))
    first, places = (
        content_of(address + "?table=visits"),
        stamps(Table.open(address + "?table=visits", dp.Domain(age=90))),
    )
    with connected(address) as db:
        db.execute("UPDATE visits SET age = age WHERE age < 30")
        assert stamps(Table.open(address + "?table=visits", dp.Domain(age=90))) != places
        assert content_of(address + "?table=visits") == first
        db.execute("VACUUM FULL visits")
        db.execute("SET timezone = 'Asia/Tokyo'")
        assert content_of(address + "?table=visits") == content_of(address + "?table=shown") == first
        db.execute("UPDATE visits SET age = age + 1 WHERE ctid = '(0,1)' AND age < 89 OR ctid = '(0,1)' AND age = 89")
        assert content_of(address + "?table=visits") != first


def change_sqlite(path: Path, sql: str) -> None:
    with sqlite3.connect(path) as db:
        db.execute(sql)
    db.close()


CHANGES = ["UPDATE visits SET age = 5 WHERE rowid = 7", "UPDATE visits SET rowid = 99999 WHERE rowid = 3",
           "DELETE FROM visits WHERE rowid = 9", "INSERT INTO visits SELECT * FROM visits LIMIT 1"]  # fmt: skip


@pytest.mark.parametrize("sql", CHANGES)
def test_reading_of_changed_rows_is_refused(sql: str, tmp_path: Path) -> None:
    fill_sqlite(tmp_path / "x.sqlite", rows_of(500))
    table = as_seen(
        Table.open(address_of("sqlite?table=visits", tmp_path), dp.Domain(age=90)), lambda f, items: list(map(f, items))
    )
    assert sum(len(batch["age"]) for part in table.partitions for batch in part.batches(["age"])) == 500
    change_sqlite(tmp_path / "x.sqlite", sql)
    with refused(DataError):
        [list(part.batches(["age"])) for part in table.partitions]


# Types

TYPES = """CREATE TABLE kinds(i2 smallint, i4 int, i8 bigint, f4 real, f8 double precision, n numeric(8, 3),
    free numeric, t text, v varchar(5), b boolean, d date, at timestamp, zoned timestamptz, u uuid, letters char(3),
    mood mood, price money, long interval, raw json, list int[])"""
VALUES = """INSERT INTO kinds VALUES (1, 2, 9007199254740993, 0.5, 0.1, 12.345, 12345678901234567890.5, 'ä', 'v', true,
    '2024-02-29', '2024-02-29 10:00', '2024-02-29 10:00+02', '00000000-0000-0000-0000-000000000001', 'abc', 'sad', 3.5,
    '1 day', '{"a": 1}', '{1}')"""
EXPECTED = {"i2": 1, "i4": 2, "i8": 9007199254740993, "f4": 0.5, "f8": 0.1, "n": decimal.Decimal("12.345"),
            "free": decimal.Decimal("12345678901234567890.500000000"), "t": "ä", "v": "v", "b": True,
            "d": datetime.date(2024, 2, 29), "at": datetime.datetime(2024, 2, 29, 10),
            "zoned": datetime.datetime(2024, 2, 29, 8, tzinfo=datetime.UTC),
            "u": "00000000-0000-0000-0000-000000000001", "letters": "abc", "mood": "sad"}  # fmt: skip


def test_types_of_postgres(server: Server) -> None:
    pytest.importorskip("adbc_driver_postgresql")
    address = server.database()
    with connected(address) as db:
        db.execute("CREATE TYPE mood AS ENUM ('sad', 'glad')")
        db.execute(TYPES)
        db.execute(VALUES)
        db.execute("INSERT INTO kinds DEFAULT VALUES")
    [part] = Table.open(address + "?table=kinds", dp.Domain(i4=3)).partitions
    [batch] = part.batches(list(EXPECTED))
    assert {name: batch[name].to_pylist()[0] for name in EXPECTED} == EXPECTED
    assert all(batch[name].to_pylist()[1] is None for name in EXPECTED)
    for name in ("price", "long", "list"):
        with refused(DataError):
            _count(address + "?table=kinds", dp.Domain([dp.Attribute(name, "integer", 0, 5)]))
    with connected(address) as db:
        db.execute("UPDATE kinds SET free = 'NaN'")
    with refused(DataError):
        list(part.batches(["free"]))


def _count(address: str, domain: Any) -> None:
    from dpscale.runs.preflight import check_table

    check_table(Table.open(address, domain), list(domain.names))


def test_values_of_other_types_in_sqlite_are_refused(tmp_path: Path) -> None:
    fill_sqlite(tmp_path / "x.sqlite", rows_of(50))
    change_sqlite(tmp_path / "x.sqlite", "UPDATE visits SET age = 'old' WHERE rowid = 3")
    change_sqlite(tmp_path / "x.sqlite", "UPDATE visits SET ok = 2 WHERE rowid = 3")
    [part] = Table.open(address_of("sqlite?table=visits", tmp_path), dp.Domain(age=90)).partitions
    for name in ("age", "ok"):
        with refused(DataError) as caught:
            list(part.batches([name]))
        assert "old" not in str(caught.value)
    change_sqlite(tmp_path / "x.sqlite", "UPDATE visits SET age = 20.5, ok = 0.5 WHERE rowid = 3")
    for name in ("age", "ok"):
        with refused(DataError):
            list(part.batches([name]))


# Jobs


def job_of(data: dict[str, Any], **others: Any) -> dict[str, Any]:
    privacy = {"rho": 1e12, "allow_weak_privacy": True, "dataset": "visits"}
    return {"data": {"domain": "d.toml", "privacy_unit": "person", "max_rows_per_unit": 2, **data}, "privacy": privacy,
            "workload": [{"family": "marginal", "attributes": [["age"], ["sex", "ok"], ["day"]]},
                         {"family": "sum", "of": "paid", "attributes": [["sex"]]}],
            "engine": {"seed": 1, "scheduler": "threads"}, **others}  # fmt: skip


def answers_below(place: Path) -> dict[str, pd.DataFrame]:
    """Return the tables in the folders answers/ of a run, by their paths."""
    files = [file for file in sorted(place.rglob("*.parquet")) if "answers" in file.parts]
    return {str(file.relative_to(place)): pd.read_parquet(file) for file in files}


def check_same_answers(one: dp.Release, other: dp.Release, exactly: bool = False) -> None:
    """Compare answers; those of other data sources have other noise, which is far below a step here."""
    first, second = answers_below(one.path), answers_below(other.path)
    assert first.keys() == second.keys()
    assert any("estimate" in frame for frame in first.values())
    for name, frame in first.items():
        if exactly:
            pd.testing.assert_frame_equal(frame, second[name], check_exact=True)
        elif "estimate" in frame:
            assert (frame.estimate - second[name].estimate).abs().max() < 0.004, name


@pytest.fixture
def place(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with own copies of the files, in which jobs run."""
    for name in ("d.toml", "visits.parquet", "x.duckdb", "x.sqlite"):
        shutil.copy(folder / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("small_ranges")
@pytest.mark.parametrize("kind", ["postgresql", "duckdb", "sqlite"])
def test_answers_are_those_of_the_file(kind: str, place: Path, request: pytest.FixtureRequest) -> None:
    database = request.getfixturevalue("postgres") if kind == "postgresql" else f"{kind}:///x.{kind}"
    where = {"where": "age >= 20 and sex = 'F'"}
    file = dp.run(job_of({"path": "visits.parquet", **where}), run_dir="file")
    table = dp.run(job_of({"database": database, "table": "visits", **where}), run_dir="table")
    check_same_answers(file, table)
    query = "SELECT * FROM visits WHERE age >= 20"
    asked = dp.run(
        job_of({"database": database, "query": query, "where": "sex = 'F'", "partition_by": "age"}), run_dir="query"
    )
    check_same_answers(file, asked)


@pytest.mark.usefixtures("small_ranges")
def test_cluster_and_rewritten_table_release_the_same_bytes(place: Path, server: Server) -> None:
    pytest.importorskip("adbc_driver_postgresql")
    from distributed import Client, LocalCluster

    address = server.database()
    fill_postgres(address, rows_of(ROWS))
    job = job_of({"database": address, "table": "visits"}) | {"privacy": {"rho": 0.5, "dataset": "visits"}}
    first = dp.run(job, run_dir="first")
    with connected(address) as db:
        db.execute("CREATE INDEX by_age ON visits(age)")
        db.execute("CLUSTER visits USING by_age")
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        second = dp.run(job, run_dir="second", client=client)
    check_same_answers(first, second, exactly=True)
    again = dp.run(job, run_dir="first")
    assert again.path == first.path
    with connected(address) as db:
        db.execute("DELETE FROM visits WHERE ctid = (SELECT min(ctid) FROM visits)")
    with refused(DataError):
        dp.run(job, run_dir="first")


def test_rows_that_change_during_a_run_are_refused_before_its_charge(place: Path, server: Server) -> None:
    pytest.importorskip("adbc_driver_postgresql")
    address, ended = server.database(), threading.Event()
    fill_postgres(address, rows_of(ROWS))

    def write() -> None:
        with connected(address) as db:
            while not ended.is_set():
                db.execute("UPDATE visits SET age = age WHERE ctid = (SELECT max(ctid) FROM visits)")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with refused(DataError):
            dp.run(job_of({"database": address, "table": "visits"}), run_dir="run")
    finally:
        ended.set()
        writer.join()
    if (place / "ledger.sqlite").exists():
        with Ledger.open(place / "ledger.sqlite", create=False) as ledger:
            assert ledger.summary()["datasets"] == {}


def killed_run(place: Path, job: dict[str, Any]) -> None:
    """Run a job in a process that is killed once it is charged."""
    script = f"import dpscale as dp\nif __name__ == '__main__':\n    dp.run({job!r}, run_dir='run')\n"
    (place / "script.py").write_text(script)
    child = subprocess.Popen(
        [sys.executable, "script.py"], cwd=place, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 300
    while child.poll() is None and time.monotonic() < deadline:
        manifest = place / "run" / "manifest.json"
        if manifest.exists() and '"snapshot": "' in manifest.read_text():
            break
        time.sleep(0.002)
    child.send_signal(signal.SIGKILL)
    child.wait()


@pytest.mark.parametrize("kind", ["postgresql", "sqlite"])
def test_killed_run_resumes_with_the_same_rows_only(kind: str, place: Path, request: pytest.FixtureRequest) -> None:
    address = f"{kind}:///x.{kind}"
    if kind == "postgresql":
        address = request.getfixturevalue("server").database()
        fill_postgres(address, rows_of(ROWS))
    job = job_of({"database": address, "table": "visits"})
    job["privacy"] = {"rho": 0.5, "dataset": "visits"}
    killed_run(place, job)
    shutil.copytree(place / "run", place / "kept")
    shutil.copy(place / "ledger.sqlite", place / "kept.sqlite") if (place / "ledger.sqlite").exists() else None
    whole = dp.run(job, run_dir="other", fresh=True)
    check_same_answers(dp.run(job, run_dir="run"), whole, exactly=True)

    change = "DELETE FROM visits WHERE person = (SELECT max(person) FROM visits)"
    if kind == "postgresql":
        with connected(address) as db:
            db.execute(change)
    else:
        change_sqlite(place / "x.sqlite", change)
    for name in ("run", "other"):
        shutil.rmtree(place / name)
    shutil.move(place / "kept", place / "run")
    (place / "ledger.sqlite").unlink(missing_ok=True)
    if (place / "kept.sqlite").exists():
        shutil.move(place / "kept.sqlite", place / "ledger.sqlite")
    with refused(DataError):
        dp.run(job, run_dir="run")


# Passwords


def texts_below(place: Path) -> Iterator[bytes]:
    for path in place.rglob("*"):
        if path.is_file():
            yield path.name.encode() + path.read_bytes()


def test_password_is_nowhere(
    place: Path, server: Server, monkeypatch: pytest.MonkeyPatch, capfd: Any, caplog: Any
) -> None:
    pytest.importorskip("adbc_driver_postgresql")
    from distributed import Client, LocalCluster

    caplog.set_level("DEBUG")
    address = server.database()
    fill_postgres(address, rows_of(300))
    secret = (
        f"postgresql://{os.environ['PGUSER']}:{PASSWORD}@{address.removeprefix('postgresql://')}?connect_timeout=10"
    )
    monkeypatch.setenv("VISITS_DB", secret)
    monkeypatch.delenv("PGPASSWORD")
    monkeypatch.delenv("PGUSER")
    job = job_of({"database": "env:VISITS_DB", "table": "visits"})
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        release = dp.run(job, run_dir="run", client=client)
    table = Table.open("env://VISITS_DB?table=visits", dp.Domain.read("d.toml"))
    assert PASSWORD.encode() not in pickle.dumps(table) + repr(table).encode() + repr(release.path).encode()
    write_bundle(open_run(release.path), [{"name": "none", "passed": True, "detail": ""}])
    assert (place / "run" / "evidence").is_dir()
    (place / "job.toml").write_text(tomli_w.dumps(job))
    errors = []
    for stated in (secret.replace(PASSWORD, PASSWORD + "x"), secret.replace(":" + address.rsplit(":", 1)[1], ":abc/x")):
        monkeypatch.setenv("VISITS_DB", stated)
        with pytest.raises(DpscaleError) as caught:
            list(table.partitions[0].batches(["age"]))
        errors += traceback.format_exception(caught.value)
        assert caught.value.__cause__ is caught.value.__context__ is None
        done = subprocess.run(
            [sys.executable, "-m", "dpscale", "run", "job.toml", "--fresh"], capture_output=True, check=False
        )
        assert done.returncode == 2
        errors += [done.stdout.decode(), done.stderr.decode()]
    for key in (
        {"database": secret, "table": "visits"},
        {"path": secret + "&table=visits"},
        {"database": address + "?password=" + PASSWORD, "table": "t"},
    ):
        with refused(JobError) as error:
            Job.parse(job_of(key), place)
        errors += traceback.format_exception(error.value)
    with refused(DataError) as open_refused:
        Table.open(secret + "&table=visits", dp.Domain(age=90))
    errors += traceback.format_exception(open_refused.value)
    told = capfd.readouterr()
    seen = "".join([*errors, told.out, told.err, caplog.text])
    assert PASSWORD not in seen
    assert sum(1 for _ in texts_below(place)) > 20
    assert [True for text in texts_below(place) if PASSWORD.encode() in text] == []


# Refusals


def refusals(postgres: str) -> dict[str, tuple[str, str]]:
    """Addresses that are refused, with a part of the sentence."""
    return {
        "no table": ("duckdb:///x.duckdb?table=nope", "has no such table"),
        "no table in SQLite": ("sqlite:///x.sqlite?table=nope", "has no such table"),
        "no table on a server": (postgres + "?table=nope", "has no such table"),
        "no schema on a server": (postgres + "?table=nope.visits", "has no such table"),
        "no column": ("duckdb:///x.duckdb?query=SELECT age FROM visits", "no column 'sex'"),
        "no column in a query": ("duckdb:///x.duckdb?query=SELECT nope FROM visits", "has no such column"),
        "no column in SQLite": ("sqlite:///x.sqlite?query=SELECT nope FROM visits", "has no such column"),
        "no column on a server": (postgres + "?query=SELECT nope FROM visits", "has no such column"),
        "no function on a server": (postgres + "?query=SELECT nope(1)", "has no such function"),
        "no query": ("duckdb:///x.duckdb?query=SELEC 1", "is no SELECT statement"),
        "no query in SQLite": ("sqlite:///x.sqlite?query=SELEC 1", "is no SELECT statement"),
        "no query on a server": (postgres + "?query=SELEC 1", "is no SELECT statement"),
        "a change": ("duckdb:///x.duckdb?query=DELETE FROM visits", "is no SELECT statement"),
        "a change in SQLite": ("sqlite:///x.sqlite?query=DELETE FROM visits", "is no SELECT statement"),
        "a change on a server": (postgres + "?query=DELETE FROM visits RETURNING *", "is no SELECT statement"),
        "a hidden change": (postgres + "?query=SELECT 1) AS t; DELETE FROM visits; SELECT * FROM (SELECT 1", ""),
        "no file": ("duckdb:///nope.duckdb?table=visits", "does not exist"),
        "no file of SQLite": ("sqlite:///nope.sqlite?table=visits", "does not exist"),
        "another file": ("duckdb:///d.toml?table=visits", "is not a file of this database"),
        "another file of SQLite": ("sqlite:///d.toml?table=visits", "is not a file of this database"),
        "no database": (postgres + "x?table=visits", "does not exist"),
        "no server": ("postgresql://127.0.0.1:1/x?table=visits", "cannot be read"),
        "no service": ("postgresql:///?service=nope&table=visits", "names an unknown service"),
        "no user": (postgres.replace("//", "//nobody@") + "?table=visits", "refuses this user"),
        "both": (postgres + "?table=visits&query=SELECT 1", "both table and query"),
        "neither": (postgres, "neither table nor query"),
        "text ranges": (postgres + "?table=visits&partition_by=sex", "no column of whole numbers"),
        "no range column": ("sqlite:///x.sqlite?table=visits&partition_by=nope", "no column 'nope'"),
        "a parameter": (postgres + "?table=visits&speed=high", "unknown or repeated parameter"),
        "a repeated option": (
            postgres + "?sslmode=prefer&table=visits&sslmode=disable",
            "unknown or repeated parameter",
        ),
        "a repeated key": (postgres + "?table=visits&table=others", "unknown or repeated parameter"),
        "two slashes": ("sqlite://x.sqlite?table=visits", "without a file"),
        "no variable": ("env://NO_SUCH_DB?table=visits", "NO_SUCH_DB is not set"),
        "no address in it": ("env://HOME?table=visits", "HOME has no such address"),
    }


@pytest.mark.parametrize("name", list(refusals("")))
def test_refusals(name: str, place: Path, postgres: str) -> None:
    address, expected = refusals(postgres)[name]
    check_refused(["--data", address], expected)
    with connected(postgres) as db:
        assert db.execute("SELECT count(*) FROM visits").fetchone() == (ROWS,)


def check_refused(options: list[str], expected: str) -> None:
    command = ["sql", QUERY, *options, "--domain", "d.toml", "--epsilon", "1",
               "--dataset", "visits", "--ledger", "ledger.sqlite", "--run-dir", "run", "--quiet"]  # fmt: skip
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 2, result.output
    sentence = result.output.removeprefix("dpscale: ")
    assert expected in sentence
    assert sentence.count("; ") in (2, 3), sentence
    assert "Traceback" not in sentence
    assert not os.path.exists("run")
    if os.path.exists("ledger.sqlite"):
        with Ledger.open("ledger.sqlite", create=False) as ledger:
            assert ledger.summary()["datasets"] == {}


KEYS: dict[str, tuple[dict[str, Any], str]] = {
    "scheme": ({"database": "mysql://u:p@h/x", "table": "t"}, "data.database: an address of kind 'mysql'"),
    "no address": ({"database": "u:secret@h", "table": "t"}, "data.database: no address; expected"),
    "both": ({"database": "duckdb:///x.duckdb", "table": "t", "query": "SELECT 1"}, "both table and query"),
    "neither": ({"database": "duckdb:///x.duckdb"}, "neither table nor query"),
    "no database": ({"table": "t"}, "data.table: given without a database"),
    "a path too": ({"path": "a.parquet", "database": "duckdb:///x.duckdb", "table": "t"}, "together with a database"),
    "number": ({"database": "duckdb:///x.duckdb", "table": 5}, "data.table: no text"),
    "twice": ({"database": "duckdb:///x.duckdb?table=a", "table": "b"}, "data.table: given in the address too"),
    "variable": ({"database": "env:a b", "table": "b"}, "no name of an environment variable"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(KEYS))
def test_keys_that_are_refused(name: str, place: Path) -> None:
    keys, expected = KEYS[name]
    with pytest.raises(JobError) as caught:
        Job.parse(job_of(keys), place)
    assert expected in str(caught.value)
    assert "secret" not in str(caught.value)


def test_options_of_files_are_refused(place: Path) -> None:
    keys = {"database": "duckdb:///x.duckdb", "table": "visits"}
    for option in (
        {"delimiter": ";"},
        {"format": "csv"},
        {"format": "delta"},
    ):
        with refused(DataError):
            dp.run(job_of(keys | option), run_dir="run")


def test_missing_driver_is_named(place: Path) -> None:
    script = ("import sys\nfor name in ('duckdb', 'adbc_driver_postgresql'):\n    sys.modules[name] = None\n"
              "from dpscale.__main__ import main\nmain()\n")  # fmt: skip
    for address, package in (
        ("duckdb:///x.duckdb", "duckdb"),
        ("postgresql://127.0.0.1:1/x", "adbc-driver-postgresql"),
    ):
        (place / "job.py").write_text(script)
        command = [sys.executable, "job.py", "sql", QUERY, "--data", f"{address}?table=visits",
                   "--domain", "d.toml", "--epsilon", "1", "--dataset", "v", "--quiet"]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 2, done.stderr
        assert f"requires the missing package {package};" in done.stderr
        assert "pip install 'dpscale[databases]'" in done.stderr


def test_duckdb_that_is_open_for_writing_is_refused(place: Path) -> None:
    with duckdb.connect("x.duckdb"):
        check_refused(["--data", "duckdb:///x.duckdb?table=visits"], "is open for writing elsewhere")


# Several tables, units of other tables, growing tables, Python and SQL


def test_unit_of_another_table_and_joins(place: Path, postgres: str) -> None:
    """A table of a database with its units in another one gives the answers of the files."""
    households = pa.table({"person": np.arange(ROWS), "house": np.arange(ROWS) // 4})
    pq.write_table(households, "houses.parquet")
    with duckdb.connect("x.duckdb") as db:
        db.execute("CREATE TABLE houses AS SELECT * FROM 'houses.parquet'")
    hop = {"key": "person", "unit": "house"}
    files = job_of({"path": "visits.parquet", "unit_through": [{"path": "houses.parquet", **hop}]})
    mixed = job_of({"database": postgres, "table": "visits",
                    "unit_through": [{"database": "duckdb:///x.duckdb", "table": "houses", **hop}]})  # fmt: skip
    check_same_answers(dp.run(files, run_dir="files"), dp.run(mixed, run_dir="mixed"))


def linked_job(places: dict[str, dict[str, str]]) -> dict[str, Any]:
    return {
        "tables": {"persons": {**places["persons"], "domain": "persons.toml", "key": "person"},
                   "visits": {**places["visits"], "domain": "d.toml"}},
        "link": [{"kind": "one-to-many", "parent": "persons", "child": "visits", "child_key": "person",
                  "max_degree": 9}],
        "workload": [{"family": "marginal", "attributes": [["persons.town", "visits.sex"]]}],
        "privacy": {"rho": 1e12, "allow_weak_privacy": True, "dataset": "visits"},
        "engine": {"seed": 1, "scheduler": "threads"},
    }  # fmt: skip


def test_linked_tables_of_a_database(place: Path) -> None:
    persons = pa.table({"person": np.arange(ROWS), "town": np.arange(ROWS) % 3})
    pq.write_table(persons, "persons.parquet")
    (place / "persons.toml").write_text('[attributes.town]\nkind = "coded"\nsize = 3\n')
    with duckdb.connect("x.duckdb") as db:
        db.execute("CREATE TABLE persons AS SELECT * FROM 'persons.parquet'")
    files = linked_job({"persons": {"path": "persons.parquet"}, "visits": {"path": "visits.parquet"}})
    tables = linked_job({"persons": {"database": "duckdb:///x.duckdb", "table": "persons"},
                         "visits": {"database": "sqlite:///x.sqlite", "table": "visits"}})  # fmt: skip
    check_same_answers(dp.run(files, run_dir="files"), dp.run(tables, run_dir="tables"))


def test_growing_table_of_a_database(place: Path) -> None:
    time_keys = {"time": {"answers": ["period", "cumulative"]}}
    for name, keys in {
        "files": {"path": "visits.parquet"},
        "rows": {"database": "sqlite:///x.sqlite", "table": "visits"},
    }.items():
        job = job_of({**keys, "period": "day"}, **time_keys)
        del job["data"]["privacy_unit"], job["data"]["max_rows_per_unit"]
        job["workload"] = [{"family": "marginal", "attributes": [["age"], ["sex", "ok"]]}]
        dp.run(job, run_dir=name)
    check_same_answers(dp.Release.open("files"), dp.Release.open("rows"))


def test_plan_takes_an_address_and_sql_too(place: Path) -> None:
    plan = dp.plan([["age"]], dp.Domain.read("d.toml"), epsilon=5, dataset="visits")
    file, table = (dp.run(plan, data=one) for one in ("visits.parquet", "duckdb:///x.duckdb?table=visits"))
    assert file.path != table.path
    for name, frame in answers_below(file.path).items():
        if "estimate" in frame:  # eight standard deviations of the difference
            assert (
                frame.estimate - answers_below(table.path)[name].estimate
            ).abs().max() < 8 * 2 * frame.std_error.max()
    command = ["sql", QUERY, "--data", "sqlite:///x.sqlite?table=visits", "--domain",
               "d.toml", "--epsilon", "5", "--dataset", "visits", "--run-dir", "run", "--quiet"]  # fmt: skip
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output
    assert "sex" in result.output


def test_queries_of_a_database_have_one_budget(place: Path) -> None:
    ways = [{"table": "visits"}, {"query": "SELECT * FROM visits"}]
    databases_of = [{"database": "sqlite:///x.sqlite"}, {"database": "postgresql://host/shop?sslmode=require"}]
    for database in databases_of:
        jobs = [job_of({**database, **one}) for one in ways]
        for job in jobs:
            del job["privacy"]["dataset"]
        names = {Job.parse(job, place).dataset for job in jobs}
        assert names == {"./x.sqlite" if "sqlite" in str(database) else "postgresql://host/shop?sslmode=require"}


def test_job_of_a_moved_folder_is_the_same(
    place: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of({"database": "sqlite:///x.sqlite", "table": "visits"})
    first = dp.run(job, run_dir="run")
    moved = tmp_path_factory.mktemp("moved") / "place"
    shutil.copytree(place, moved)
    monkeypatch.chdir(moved)
    places = Job.parse(job, moved).places
    assert places[f"sqlite:///{moved}/x.sqlite?table=visits"] == "sqlite:///x.sqlite?table=visits"
    check_same_answers(first, dp.run(job, run_dir="run"), exactly=True)


# Counts by the database


GROUPED = Domain.from_dict({"attributes": {
    "sex": {"kind": "categories", "values": ["F", "M", "f"], "outside": "drop", "nulls": "category"},
    "age": {"kind": "bins", "edges": [0, 30, 60, 80], "outside": "drop"},
    "day": {"kind": "date", "by": "month", "low": "2024-01", "high": "2024-03"},
    "ok": {"kind": "boolean"},
}})  # fmt: skip
SETS = tuple(
    GROUPED.ordered(names) for names in ([], ["sex"], ["sex", "age"], ["day", "ok"], ["ok", "age", "sex", "day"])
)


def lower_some(table: pa.Table) -> pa.Table:
    """Return the table with texts that differ in the case of their letters only."""
    sex = [one.lower() if one and k % 7 == 0 else one for k, one in enumerate(table["sex"].to_pylist())]
    return table.set_column(2, "sex", pa.array(sex, pa.string()))


@pytest.fixture
def without_case(tmp_path: Path, server: Server) -> dict[str, str]:
    """Addresses of tables whose texts are compared without their case, each with the same rows."""
    rows, columns = lower_some(rows_of(ROWS)), "person INTEGER, age INT, sex TEXT COLLATE NOCASE, day DATE, paid REAL"
    fill_sqlite(tmp_path / "x.sqlite", rows, "copy")
    with sqlite3.connect(tmp_path / "x.sqlite") as lite:
        lite.execute(f"CREATE TABLE visits({columns}, ok BOOLEAN)")
        lite.execute("INSERT INTO visits SELECT * FROM copy")
    lite.close()
    with duckdb.connect(str(tmp_path / "x.duckdb")) as db:
        db.execute(f"CREATE TABLE visits({columns}, ok BOOLEAN)")
        db.execute("INSERT INTO visits SELECT * FROM rows")
    address = server.database()
    fill_postgres(address, rows)
    with connected(address) as db:
        db.execute("CREATE COLLATION nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
        db.execute("DROP VIEW shown")
        db.execute("ALTER TABLE visits ALTER sex TYPE text COLLATE nocase")
    files = {kind: f"{kind}:///{tmp_path / f'x.{kind}'}" for kind in ("sqlite", "duckdb")}
    return files | {"postgresql": address}


def test_padded_texts_of_postgres_are_counted_as_they_are_read(server: Server) -> None:
    pytest.importorskip("adbc_driver_postgresql")
    address = server.database()
    with connected(address) as db:
        db.execute("CREATE TABLE t(x char(3))")
        db.execute("INSERT INTO t VALUES ('a'), ('A'), ('a'), ('bc')")
    values = {"kind": "categories", "values": ["a  ", "A  ", "bc "], "outside": "reject"}
    table = Table.open(address + "?table=t", domain := Domain.from_dict({"attributes": {"x": values}}))
    layout = Layout(domain, (("x",),))
    assert count(layout, table.partitions).tolist() == [2, 1, 1]
    assert count_groups([layout], table.partitions).tolist() == [2, 1, 1]


IDENTITY = "00000000-0000-0000-0000-000000000001"
NO_COLLATION = {"mood": "sad", "id": IDENTITY, "raw": "12"}  # a text of each type without a collation


@pytest.mark.parametrize("kind", ["duckdb", "postgresql"])
def test_texts_without_a_collation_are_counted_by_the_database(kind: str, tmp_path: Path, server: Server) -> None:
    commands = [
        "CREATE TYPE mood AS ENUM ('glad', 'sad')",
        "CREATE TABLE t(mood mood, id uuid, raw json)",
        f"INSERT INTO t VALUES ('sad', '{IDENTITY}', '12'), ('glad', NULL, NULL), ('sad', NULL, '12')",
    ]
    if kind == "postgresql":
        pytest.importorskip("adbc_driver_postgresql")
        address = server.database()
        db = connected(address)
        commands += ["ALTER TABLE t ADD letter \"char\" DEFAULT 'a'"]
    else:
        address = f"duckdb:///{tmp_path / 'x.duckdb'}"
        db = duckdb.connect(str(tmp_path / "x.duckdb"))
    with db:
        for command in commands:
            db.execute(command)
    values = NO_COLLATION | ({"letter": "a"} if kind == "postgresql" else {})
    keys = {"kind": "categories", "outside": "category", "nulls": "category"}
    domain = Domain.from_dict({"attributes": {name: keys | {"values": [text, "-"]} for name, text in values.items()}})
    layout = Layout(domain, tuple((name,) for name in values))
    table = Table.open(address + "?table=t", domain)
    rows = count(layout, table.partitions)
    assert rows.reshape(-1, 4)[:3].tolist() == [[2, 0, 1, 0], [1, 0, 0, 2], [2, 0, 0, 1]]
    np.testing.assert_array_equal(count_groups([layout], table.partitions), rows)


@pytest.mark.usefixtures("small_ranges")
@pytest.mark.parametrize("where", ["", "person >= 200 and ok = true"])
@pytest.mark.parametrize("kind", ["sqlite", "duckdb", "postgresql"])
def test_counts_by_the_database_are_those_of_its_rows(kind: str, where: str, without_case: dict[str, str]) -> None:
    if kind == "postgresql":
        pytest.importorskip("adbc_driver_postgresql")
    address = f"{without_case[kind]}?table=visits"
    table = Table.open(address, GROUPED, where=read_where(where) if where else EVERYTHING)
    layout, checked = Layout(GROUPED, SETS), ["sex", "age"]
    rows = count(layout, table.partitions, checked)
    assert len(table.partitions) > 3
    assert rows[0] > 0
    np.testing.assert_array_equal(count_groups([layout], table.partitions, checked), rows)
    halves = [Layout(GROUPED, SETS[:2]), Layout(GROUPED, SETS[2:])]
    np.testing.assert_array_equal(count_groups(halves, table.partitions, checked), rows)
    assert has_counted_group(table.partitions, GROUPED, checked)


def counted_job(database: str, **engine: Any) -> dict[str, Any]:
    job = job_of({"database": database, "table": "visits"})
    del job["data"]["privacy_unit"], job["data"]["max_rows_per_unit"], job["workload"][1]
    return job | {"privacy": {"rho": 0.5, "dataset": "visits"}, "engine": job["engine"] | engine}


@pytest.mark.usefixtures("small_ranges")
@pytest.mark.parametrize("kind", ["postgresql", "duckdb", "sqlite"])
def test_only_counts_leave_a_database_that_counts(
    kind: str, place: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = request.getfixturevalue("postgres") if kind == "postgresql" else f"{kind}:///x.{kind}"
    rows = dp.run(counted_job(database), run_dir="rows")
    monkeypatch.setattr(database_rows.KINDS[kind], "read", lambda *_: pytest.fail("rows are read"))
    groups = dp.run(counted_job(database, count_in_database=True), run_dir="groups")
    check_same_answers(rows, groups, exactly=True)
    with pytest.raises(pytest.fail.Exception, match="rows are read"):  # the test sees a reading
        dp.run(counted_job(database), run_dir="again", fresh=True)


@pytest.mark.parametrize(("data", "others"), [
    ({"path": "visits.parquet"}, {}),
    ({"database": "duckdb:///x.duckdb", "table": "visits", "privacy_unit": "person", "max_rows_per_unit": 2}, {}),
    ({"database": "duckdb:///x.duckdb", "table": "visits"},
     {"workload": [{"family": "sum", "of": "paid", "attributes": [["sex"]]}]}),
    ({"database": "duckdb:///x.duckdb", "table": "visits", "domain": "search.toml"},
     {"workload": [{"family": "marginal", "attributes": [["sex"]]}]}),
])  # fmt: skip
def test_what_a_database_cannot_count_is_refused(data: dict[str, Any], others: dict[str, Any], place: Path) -> None:
    Path("search.toml").write_text('[attributes]\nsex = {kind = "discover"}\nage = {kind = "coded", size = 9}')
    job = counted_job("duckdb:///x.duckdb", count_in_database=True) | others
    job["data"] = {"domain": "d.toml", **data}
    for act in (lambda: dp.plan(job).errors, lambda: dp.run(job, run_dir="run")):
        with refused(JobError):
            act()
    if os.path.exists("ledger.sqlite"):
        with Ledger.open("ledger.sqlite", create=False) as ledger:
            assert ledger.summary()["datasets"] == {}


# Warehouses


class PostgresWarehouse(WarehouseConnection):
    """A warehouse whose driver is that of PostgreSQL."""

    def connect(self, uri: str) -> Any:
        from adbc_driver_postgresql.dbapi import connect

        return connect(uri.replace("snowflake://", "postgresql://"))


SELECTED = "SELECT person, age, sex, day, CAST(paid AS float8) AS paid, ok FROM visits"


@pytest.fixture
def warehouse(place: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """Address of the rows of the file on a server, as one of a warehouse, and that of the server."""
    pytest.importorskip("adbc_driver_postgresql")
    address = server.database()
    fill_postgres(address, rows_of(ROWS))
    monkeypatch.setitem(database_rows.KINDS, "snowflake", PostgresWarehouse)
    monkeypatch.setenv("WAREHOUSE", address.replace("postgresql://", "snowflake://"))
    return address


@pytest.mark.usefixtures("small_ranges")
@pytest.mark.parametrize("keys", [{}, {"partition_by": "age"}])
def test_answers_of_a_warehouse_are_those_of_the_file(keys: dict[str, str], place: Path, warehouse: str) -> None:
    where = {"where": "age >= 20 and sex = 'F'"}
    file = dp.run(job_of({"path": "visits.parquet", **where}), run_dir="file")
    rows = dp.run(job_of({"database": "env:WAREHOUSE", "query": SELECTED, **keys, **where}), run_dir="warehouse")
    check_same_answers(file, rows)
    with connected(warehouse) as db:
        db.execute("UPDATE visits SET age = age + 1 WHERE ctid = (SELECT min(ctid) FROM visits)")
    with refused(DataError):
        dp.run(job_of({"database": "env:WAREHOUSE", "query": SELECTED, **keys, **where}), run_dir="warehouse")


def test_reading_of_a_changed_warehouse_ends_with_an_error(place: Path, warehouse: str) -> None:
    table = as_seen(
        Table.open("env://WAREHOUSE?table=visits", dp.Domain.read("d.toml")), lambda call, items: map(call, items)
    )
    layout = Layout(table.domain, (("age",),))
    assert count(layout, table.partitions).sum() == ROWS
    with connected(warehouse) as db:
        db.execute("UPDATE visits SET age = 17 WHERE ctid = (SELECT max(ctid) FROM visits)")
    with refused(DataError):
        count(layout, table.partitions)


def test_rows_of_a_warehouse_in_another_order_are_refused(
    place: Path, warehouse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = as_seen(Table.open("env://WAREHOUSE?table=visits", dp.Domain.read("d.toml")), map)
    layout, answer = Layout(table.domain, (("age",),)), PostgresWarehouse.answer
    order = ' ORDER BY "person" DESC, "age"'
    monkeypatch.setattr(PostgresWarehouse, "answer", lambda self, sql, names: answer(
        self, sql.rpartition(" ORDER BY ")[0] + order if "ORDER BY" in sql else sql, names))  # fmt: skip
    with refused(DataError):
        count(layout, table.partitions)


def test_warehouses_without_driver_and_their_counts_are_refused(
    place: Path, warehouse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table.open("env://WAREHOUSE?table=visits", dp.Domain.read("d.toml"))
    with refused(JobError):
        count_groups([Layout(table.domain, (("age",),))], table.partitions)
    for kind in ("snowflake", "bigquery"):
        monkeypatch.undo()
        monkeypatch.setenv("WAREHOUSE", f"{kind}://project/data")
        with refused(DataError):
            Table.open(
                "env://WAREHOUSE?table=visits", dp.Domain.from_dict({"attributes": {"age": {"kind": "boolean"}}})
            )
