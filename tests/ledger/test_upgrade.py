"""Upgrade of a ledger of version 4, 5, 7 or 8: readers change nothing, the first writing transaction preserves the
history, one chain is built or stays, a closed copy of the file remains, and an interrupted upgrade changes nothing.

`version4`, `version5`, `version7` and `version8` have the output of the code of that version: its DDL, the rows of a
history and the summary of them.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sqlite3
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from dpscale.base.errors import BudgetError
from dpscale.ledger import Ledger, postgres_store as ledgerserver, schema, sqlite_store as ledgerfile
from dpscale.ledger.store import repeated
from tests.ledger.conftest import Server
from tests.ledger.test_book import DIGEST, gaussian, open_database, run_in_child
from tests.messages import refused

VERSIONS = (4, 5, 7, 8)
STORED = {version: Path(__file__).parent / f"version{version}" for version in VERSIONS}
NOTE = "older releases did not tell whom they protect: they are counted as protecting the same"  # of version 4
TODAY = "older releases do not state their privacy unit: they are counted as if it were the same"
HISTORIES: dict[int, dict[str, Any]] = {
    version: json.loads((folder / "history.json").read_text().replace(NOTE, TODAY))
    for version, folder in STORED.items()
}
AT = "2026-01-01T00:00:00"
ENTRIES = {version: sum(len(one["tables"][table]) for table in schema.LINKED) for version, one in HISTORIES.items()}
TABLES = ("schema_version", "identity", "closed", *schema.ROWS_OF_FOUR)
DEADLINE = 500  # seconds, which only a fault reaches


def ddl_statements(kind: str, version: int) -> list[list[str]]:
    """Return the statements of a version before and after the rows of a ledger."""
    parts = (STORED[version] / f"{kind}.sql").read_text().split("-- rows")
    return [[one for one in part.strip().removesuffix(";").split(";\n\n") if one] for part in parts]


def write_older(place: str, version: int, closed: bool = False) -> None:
    """Write a ledger of an older version."""
    server, stored = "://" in place, HISTORIES[version]
    before, after = ddl_statements("server" if server else "file", version)
    with open_database(place) as db:  # type: ignore[arg-type]
        if not server:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
        db.execute("BEGIN")
        for statement in before:
            db.execute(statement)
        rows = stored["tables"] | {"schema_version": [{"version": version, "created_at": AT}],
                                   "identity": [{"id": stored["name"]}]}  # fmt: skip
        if closed:
            rows |= {"closed": [{"moved_to": "/elsewhere.sqlite", "closed_at": AT}]}
        for table, entries in rows.items():
            for row in entries:
                marks = ", ".join(["%s" if server else "?"] * len(row))
                db.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", tuple(row.values()))
        for statement in after:
            db.execute(statement)
        db.execute("COMMIT")


@pytest.fixture(params=["file", "server"])
def new_place(request: Any, tmp_path: Path) -> Callable[[], str]:
    """Function that returns a location without a ledger."""
    if request.param == "file":
        numbers = count()
        return lambda: str(tmp_path / f"{next(numbers)}.sqlite")
    server: Server = request.getfixturevalue("server")
    return server.database


@pytest.fixture(params=VERSIONS)
def version(request: Any) -> int:
    return int(request.param)


@pytest.fixture
def place(new_place: Callable[[], str], version: int) -> str:
    """Location of a ledger of an older version."""
    write_older(made := new_place(), version)
    return made


def read_content(place: str) -> dict[str, Any]:
    """Return all rows of the tables of version 4, in its columns, and the schema of the database."""
    with open_database(place) as db:  # type: ignore[arg-type]
        found = {table: sorted(db.execute(f"SELECT * FROM {table}").fetchall()) for table in TABLES}
        if "://" not in place:
            return found | {"schema": ledgerfile.schema_of(db)}
        columns = """SELECT table_name, column_name FROM information_schema.columns
            WHERE table_schema = 'dpscale_ledger'"""
        numbers = sorted(db.execute("SELECT * FROM numbers").fetchall())
        triggers = set(db.execute(ledgerserver.CATALOGUE).fetchall())
        return found | {"numbers": numbers, "schema": (triggers, set(db.execute(columns).fetchall()))}


def upgrade(place: str, timeout: float = 30.0) -> None:
    """Begin a writing transaction, which upgrades the ledger."""
    with Ledger.open(place, create=False, timeout=timeout) as ledger:
        repeated(lambda: ledger._within(True, lambda db: None), timeout)


def check_upgraded(place: str, version: int) -> str:
    """Upgrade a ledger, check for one valid chain over the whole history and the summary of the older version, and
    return the head of one dataset.
    """
    stored = HISTORIES[version]
    upgrade(place)
    with Ledger.open(place, create=False) as ledger:
        ledger.verify()
        assert ledger.name == stored["name"]
        found = ledger.summary()["datasets"]
        assert sum(len(ledger.chain(name)) for name in found) == len(ledger.heads()) == ENTRIES[version]
        head = {name: entry["head"] for name, entry in found.items()}
        for name in stored["datasets"]:
            assert ledger.chain(name)[-1][1] == head[name]
    rows = [row for entry in found.values() for row in (entry["cap"], *entry["former_caps"], *entry["releases"]) if row]
    if version < 6:
        assert not [row for row in rows if {"span", "period", "periods"} & set(row)], "columns of version 6"
    if version == 4:
        assert {row.pop("unit_table") for row in rows} == {None}
        assert all(row.pop("own") for entry in found.values() for row in entry["releases"])
        assert all(entry.pop("head") for entry in found.values())
    assert json.loads(json.dumps(found)) == stored["datasets"]
    with open_database(place) as db:  # type: ignore[arg-type]
        versions = db.execute("SELECT version FROM schema_version ORDER BY version").fetchall()
        assert [one for (one,) in versions] == [version, schema.VERSION]
        assert db.execute("SELECT count(*) FROM links").fetchone()[0] == ENTRIES[version]
        rounds = db.execute("SELECT seq, release, part, round, digest FROM rounds ORDER BY seq").fetchall()
    decided = [(one["seq"], one["release"], "", one["round"], one["digest"]) for one in stored["tables"]["rounds"]]
    assert decided
    assert rounds == decided, "the decisions of earlier versions have no part"
    return head["shop"]


def test_upgrade_keeps_history_caps_and_totals_and_builds_chain(place: str, version: int) -> None:
    heads = {check_upgraded(place, version) for _ in range(2)}
    assert len(heads) == 1, "opened again, it is not built again"
    with Ledger.open(place) as ledger:
        assert ledger.charge("another", "new", gaussian(0.1), DIGEST) == "reserved"
        ledger.decide("shop 2", "", 3, DIGEST)
        ledger.set_cap("shop", 5.0, 1e-9)
        assert ledger.publish("shop 1") == "released"
        ledger.verify()
        assert len(ledger.heads()) == ENTRIES[version] + 3


def test_upgraded_schema_equals_new_schema(place: str, new_place: Callable[[], str]) -> None:
    upgrade(place)
    Ledger.open(other := new_place()).close()
    assert read_content(place)["schema"] == read_content(other)["schema"]


def test_closed_ledger_stays_closed_and_older(new_place: Callable[[], str], version: int) -> None:
    write_older(place := new_place(), version, closed=True)
    before = read_content(place)
    with Ledger.open(place) as ledger:
        for _ in range(2):
            ledger.verify()
            assert ledger.summary()["moved_to"] == "/elsewhere.sqlite"
            with refused(BudgetError):
                ledger.set_cap("shop", 9.0, 1e-9)
    assert read_content(place) == before


ADDED_BY_FOUR = {
    "a release": ["""INSERT INTO protections (release, unit, relation, bound, public)
                     VALUES ('late', NULL, 'add/remove', 1, 0)""",
                  f"""INSERT INTO releases (release, dataset, plan_digest, cost, epsilon, delta, state, reserved_at)
                     VALUES ('late', 'shop', '{DIGEST}', '{{}}', 1, 0, 'reserved', '{AT}')"""],
    "a cap": [f"INSERT INTO caps (dataset, epsilon, delta, set_at) VALUES ('shop', 9, 0, '{AT}')"],
    "a round": [f"INSERT INTO rounds (release, round, digest) VALUES ('shop 2', 7, '{DIGEST}')"],
}  # fmt: skip


def execute_all(db: Any, statements: list[str]) -> None:
    for statement in statements:
        db.execute(statement)


def check_adds_nothing(place: str, statements: list[str], refusal: str = "update dpscale") -> None:
    """Check that an open client of an older version can insert an entry, and after an upgrade cannot."""
    import psycopg

    with open_database(place) as old:  # type: ignore[arg-type]
        old.execute("BEGIN")
        execute_all(old, statements)
        old.execute("ROLLBACK")  # the older version took it
        upgrade(place)
        assert old.execute("SELECT max(version) FROM schema_version").fetchone()[0] == schema.VERSION
        before = read_content(place)
        old.execute("BEGIN")
        with pytest.raises((psycopg.Error, sqlite3.Error), match=refusal):
            execute_all(old, statements)
        old.execute("ROLLBACK")
        assert read_content(place) == before


@pytest.mark.parametrize("added", ADDED_BY_FOUR)
def test_open_client_of_version_4_adds_nothing(new_place: Callable[[], str], added: str) -> None:
    """A new client of version 4 is refused by the schema version, and an open one by the triggers."""
    write_older(place := new_place(), 4)
    check_adds_nothing(place, ADDED_BY_FOUR[added])


ADDED_BY_FIVE = {
    "a release": ["""INSERT INTO protections (release, unit, relation, bound, public, unit_table)
                     VALUES ('late', NULL, 'add/remove', 1, 0, NULL)"""],
    "a cap": [f"""INSERT INTO links (seq, dataset, place, entry, number, facts, salt, digest)
                 SELECT max(seq) + 1, 'new', 1, 'caps', (SELECT max(seq) + 1 FROM caps), '{{}}', '{DIGEST}', '{DIGEST}'
                 FROM links""",
              f"INSERT INTO caps (dataset, epsilon, delta, set_at) VALUES ('new', 9, 0, '{AT}')",
              """INSERT INTO terms (cap, currency, unit, relation, bound, unit_table)
                 SELECT max(seq), 'pure', NULL, NULL, NULL, NULL FROM caps"""],
}  # fmt: skip


@pytest.mark.parametrize("added", ADDED_BY_FIVE)
def test_open_client_of_version_5_adds_nothing(new_place: Callable[[], str], added: str) -> None:
    """It would take a cap for each month as a cap on the total, and would not compare with it."""
    write_older(place := new_place(), 5)
    check_adds_nothing(place, ADDED_BY_FIVE[added])


PROTECTED_BY_SEVEN = [
    """INSERT INTO protections (release, relation, bound, public, periods, job, run_dir, files)
    VALUES ('late', 'add/remove', 1, 0, '[]', '', '', '')"""
]
ADDED_BY_SEVEN = [
    f"""INSERT INTO links (seq, dataset, place, entry, number, facts, salt, digest)
        SELECT max(seq) + 1, 'new', 1, 'rounds', (SELECT max(seq) + 1 FROM rounds), '{{}}', '{DIGEST}', '{DIGEST}'
        FROM links""",
    f"INSERT INTO rounds (release, round, digest) VALUES ('shop 2', 7, '{DIGEST}')",
]


def test_open_client_of_version_7_decides_nothing(new_place: Callable[[], str]) -> None:
    """It would not say which part of the release decides."""
    write_older(place := new_place(), 7)
    check_adds_nothing(place, ADDED_BY_SEVEN, refusal="NOT NULL constraint failed: rounds.part|not-null constraint")


ADDED_BY_EIGHT = {
    "a release": PROTECTED_BY_SEVEN,
    "a cap": [*ADDED_BY_FIVE["a cap"][:2],
              """INSERT INTO terms (cap, currency, unit, relation, bound, unit_table, span, period)
                 SELECT max(seq), 'pure', NULL, NULL, NULL, NULL, NULL, '' FROM caps"""],
}  # fmt: skip


@pytest.mark.parametrize("added", ADDED_BY_EIGHT)
def test_open_client_of_version_8_adds_nothing(new_place: Callable[[], str], added: str) -> None:
    """It would not compare a release with the cap of its analyst, and would take that cap as one on the total."""
    write_older(place := new_place(), 8)
    check_adds_nothing(place, ADDED_BY_EIGHT[added])


def test_upgrade_reveals_removed_last_decision(tmp_path: Path) -> None:
    """Planted: the last row of a ledger without a chain was removed before the upgrade copied the table."""
    write_older(place := str(tmp_path / "l.sqlite"), 4)
    with open_database(place) as db:  # type: ignore[arg-type]
        trigger = next(one for one in ddl_statements("file", 4)[1] if "TRIGGER rounds_delete" in one)
        db.execute("DROP TRIGGER rounds_delete")
        db.execute("DELETE FROM rounds WHERE seq = (SELECT max(seq) FROM rounds)")
        db.execute(trigger)
    upgrade(place)
    with Ledger.open(place) as ledger, refused(BudgetError):
        ledger.verify()


@pytest.mark.parametrize("version", [5, 7, 8])
def test_upgrade_keeps_every_link(new_place: Callable[[], str], version: int) -> None:
    write_older(place := new_place(), version)
    stored = {link["digest"] for link in HISTORIES[version]["tables"]["links"]}
    with Ledger.open(place) as ledger:
        assert set(ledger.heads()) == stored
        upgrade(place)
        ledger.verify()
        assert set(ledger.heads()) == stored
        ledger.charge("rows", "rows 3", gaussian(0.1), DIGEST, periods=["2026-02"])
        ledger.verify()


def test_open_client_of_older_version_can_publish_its_release(place: str) -> None:
    with open_database(place) as old:  # type: ignore[arg-type]
        upgrade(place)
        old.execute(f"UPDATE releases SET state = 'released', released_at = '{AT}' WHERE release = 'shop 1'")
    with Ledger.open(place) as ledger:
        ledger.verify()


def open_at_once(place: str, barrier: Any, answers: Any) -> None:
    barrier.wait()
    upgrade(place, DEADLINE)
    with Ledger.open(place, timeout=DEADLINE) as ledger:
        ledger.verify()
        answers.put(sorted(ledger.heads()))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("turn", range(3))
def test_concurrent_upgrades_build_one_chain(place: str, version: int, turn: int) -> None:
    context = multiprocessing.get_context("forkserver")
    barrier, answers = context.Barrier(4), context.Queue()
    processes = [context.Process(target=open_at_once, args=(place, barrier, answers)) for _ in range(4)]
    for process in processes:
        process.start()
    heads = [answers.get(timeout=DEADLINE) for _ in processes]
    for process in processes:
        process.join()
    assert heads == [heads[0]] * 4
    check_upgraded(place, version)


# Cut off


class PlantedFault(Exception):
    """A fault during an upgrade."""


@contextmanager
def act_at_statement(place: str, number: int, act: Callable[[Any], None]) -> Iterator[list[bool]]:
    """Call `act` with the connection before the given statement of the upgrade, and yield whether it was called."""
    left, reached = iter(range(number)), [False]

    def step(db: Any) -> None:
        if not reached[0] and next(left, None) is None:
            reached[0] = True
            act(db)

    patch = pytest.MonkeyPatch()
    if "://" in place:
        send, whole = ledgerserver.Statements.execute, ledgerserver.ServerStore._upgrade

        def execute(self: Any, query: str, values: Any = (), /) -> Any:
            step(self._db)
            return send(self, query, values)

        def upgraded(self: Any) -> None:
            with pytest.MonkeyPatch.context() as within:
                within.setattr(ledgerserver.Statements, "execute", execute)
                whole(self)

        patch.setattr(ledgerserver.ServerStore, "_upgrade", upgraded)
    else:
        plain = ledgerfile._upgrade

        class Stepping:
            def __init__(self, db: Any) -> None:
                self._db = db

            def execute(self, *arguments: Any) -> Any:
                step(self._db)
                return self._db.execute(*arguments)

            @property
            def in_transaction(self) -> bool:
                return bool(self._db.in_transaction)

        patch.setattr(ledgerfile, "_upgrade", lambda db, path: plain(Stepping(db), path))  # type: ignore[arg-type]
    with patch.context():
        yield reached
    patch.undo()


def die(_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail(_: Any) -> None:
    raise PlantedFault


def interrupt_upgrade(place: str, act: Callable[[Any], None], number: int) -> bool:
    """Open an older ledger whose upgrade is interrupted at a statement, and return whether it was reached."""

    def open_with_fault() -> None:
        with act_at_statement(place, number, act), suppress(PlantedFault):
            upgrade(place)
            os._exit(7)

    return os.waitstatus_to_exitcode(run_in_child(open_with_fault)) != 7


@pytest.mark.sampled(3)
@pytest.mark.parametrize("act", [die, fail])
def test_interrupted_upgrade_leaves_older_version(place: str, version: int, act: Callable[[Any], None]) -> None:
    before, cuts = read_content(place), 0
    for number in range(0, 400, 9 if version == 4 else 1):
        if not interrupt_upgrade(place, act, number):
            break
        assert read_content(place) == before
        cuts += 1
    assert cuts >= 5, "or it ended before the faults"
    check_upgraded(place, version)


@pytest.mark.parametrize("number", [5, 20, 40])
def test_upgrade_with_lost_connection_is_repeated(server: Server, number: int) -> None:
    write_older(place := server.database(), 4)

    def terminate(db: Any) -> None:
        with open_database(place) as other:  # type: ignore[arg-type]
            other.execute("SELECT pg_terminate_backend(%s)", (db.info.backend_pid,))

    with act_at_statement(place, number, terminate) as reached:
        upgrade(place, DEADLINE)
    assert reached == [True]
    check_upgraded(place, 4)


# Other users of a server


def test_users_keep_their_rights_after_upgrade(server: Server, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    write_older(place := server.database(), version)
    with open_database(place) as db:  # type: ignore[arg-type]
        writer, reader = f"writer{version}", f"reader{version}"
        for name, rights in ((writer, "SELECT, INSERT, UPDATE"), (reader, "SELECT")):
            db.execute(f"DROP ROLE IF EXISTS {name}")
            db.execute(f"CREATE ROLE {name} LOGIN PASSWORD '{os.environ['PGPASSWORD']}'")
            db.execute(f"GRANT USAGE ON SCHEMA dpscale_ledger TO {name}")
            db.execute(f"GRANT {rights} ON ALL TABLES IN SCHEMA dpscale_ledger TO {name}")
    with monkeypatch.context() as patch:
        patch.setenv("PGUSER", writer)
        with refused(BudgetError) as caught:
            upgrade(place)
        assert "grant" not in str(caught.value)
    check_upgraded(place, version)
    monkeypatch.setenv("PGUSER", writer)
    with Ledger.open(place) as ledger:
        assert ledger.charge("another", "new", gaussian(0.1), DIGEST) == "reserved"
        head = ledger.heads()
    monkeypatch.setenv("PGUSER", reader)
    with Ledger.open(place) as ledger:
        assert ledger.heads() == head
        with refused(BudgetError):
            ledger.charge("another", "newer", gaussian(0.1), DIGEST)


# Readers


def test_reader_changes_nothing(place: str, version: int) -> None:
    before = read_content(place)
    with Ledger.open(place, create=False) as ledger:
        found, name = ledger.summary(), ledger.name
        counted = ledger.verify()
        assert (found["schema_version"], name) == (version, HISTORIES[version]["name"])
        assert counted["releases"] == len(HISTORIES[version]["tables"]["releases"])
        assert {entry["head"] == "" for entry in found["datasets"].values()} == {version < ledgerfile.LINKED}
        if version < ledgerfile.LINKED:
            for act in (ledger.heads, lambda: ledger.chain("shop")):
                with refused(BudgetError):
                    act()
        assert ledger.charge("another", "new", gaussian(0.1), DIGEST, reserve=False) == "admitted"
    assert read_content(place) == before
    if "://" not in place:
        assert [one.name for one in Path(place).parent.iterdir()] == [Path(place).name]
    upgrade(place)
    with Ledger.open(place, create=False) as ledger:
        after = ledger.summary()
    for entry in (*found["datasets"].values(), *after["datasets"].values()):
        entry.pop("head")
    assert found | {"schema_version": schema.VERSION} == after


@pytest.mark.parametrize("earlier", range(3))
def test_first_charge_upgrades_with_closed_copy(tmp_path: Path, version: int, earlier: int) -> None:
    """Planted: copies of interrupted upgrades, which are not overwritten."""
    write_older(place := str(tmp_path / "l.sqlite"), version)
    names = [f"l.sqlite.version{version}" + f"-{number}" * (number > 1) for number in range(1, 4)]
    for name in names[:earlier]:
        (tmp_path / name).write_bytes(b"an earlier copy")
    before = read_content(place)
    with Ledger.open(place) as ledger:
        with pytest.warns(UserWarning, match=f"from schema version {version} to") as warned:
            ledger.charge("another", "new", gaussian(0.1), DIGEST)
        with warnings.catch_warnings(action="error"):
            ledger.charge("another", "newer", gaussian(0.1), DIGEST)
    copy = tmp_path / names[earlier]
    assert str(copy) in str(warned[0].message)
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted(["l.sqlite", *names[: earlier + 1]])
    after = read_content(str(copy))
    ((moved, _),) = after.pop("closed")
    assert moved == place
    assert before | {"closed": []} == after | {"closed": []}
    released = len(HISTORIES[version]["datasets"]["shop"]["releases"])
    with Ledger.open(copy) as ledger:
        with refused(BudgetError):
            ledger.charge("another", "elsewhere", gaussian(0.1), DIGEST)
        assert len(ledger.summary()["datasets"]["shop"]["releases"]) == released
    with open_database(copy) as old, pytest.raises(sqlite3.Error, match="closed"):  # a client of the older version
        execute_all(
            old, {4: ADDED_BY_FOUR["a release"], 5: ADDED_BY_FIVE["a release"]}.get(version, PROTECTED_BY_SEVEN)
        )


def test_copy_of_the_first_version_is_closed(tmp_path: Path) -> None:
    from tests.ledger.test_book import write_version_1

    write_version_1(path := tmp_path / "l.sqlite")
    with Ledger.open(path) as ledger:
        name = ledger.name
        ledger.set_cap("adult", 9.0, 1e-9)
        assert ledger.name == name
    with Ledger.open(tmp_path / "l.sqlite.version1") as copy, refused(BudgetError):
        copy.set_cap("adult", 9.0, 1e-9)


def test_copy_of_an_upgrade_is_no_source_of_a_ledger(tmp_path: Path) -> None:
    """It lacks the charge that made the upgrade: two ledgers would admit what one of them has spent."""
    write_older(place := str(tmp_path / "l.sqlite"), 5)
    with Ledger.open(place) as ledger, pytest.warns(UserWarning, match="upgraded"):
        ledger.charge("another", "new", gaussian(0.1), DIGEST)
    (tmp_path / "l.sqlite").rename(tmp_path / "moved.sqlite")
    with Ledger.open(tmp_path / "l.sqlite.version5") as old:
        for spend in (lambda: old.charge("another", "b", gaussian(0.1), DIGEST), lambda: old.move(place)):
            with refused(BudgetError) as caught:
                spend()
            assert "copy /" not in str(caught.value)
    assert not (tmp_path / "l.sqlite").exists()
    whole = (tmp_path / "moved.sqlite").read_bytes()
    (tmp_path / "l.sqlite").write_bytes(whole[:2000] + b"damaged" * 1000 + whole[9000:])
    with pytest.raises(BudgetError) as caught:
        Ledger.open(place, create=False).close()
    assert "ledger copy" not in str(caught.value)
