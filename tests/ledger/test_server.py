"""A ledger on a PostgreSQL server: the behaviour of a ledger file, races, kills and lost connections."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import socket
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from dpscale.base.errors import BudgetError, DpscaleError, JobError, TransientError
from dpscale.ledger import Ledger, chain, location, postgres_store as ledgerserver, schema
from dpscale.ledger.transfer import unreached
from tests.audit.composition import audit_run
from tests.audit.small import write
from tests.ledger import test_additive_delta, test_book, test_protection
from tests.ledger.conftest import Server, free_port
from tests.ledger.test_book import (
    DELTA,
    DIGEST,
    RELEASES,
    admitted_within_cap,
    gaussian,
    publish_releases,
    release_rows,
    run_in_child,
    run_processes,
)
from tests.messages import refused

SHARED = {
    test_book: (
        "release_passes_all_states", "charge_persists_after_reopening",
        "release_with_other_fields_is_refused", "round_is_decided_once", "number_of_two_parts_is_two_decisions",
        "states_do_not_go_back_or_skip", "cost_with_too_many_digits_is_refused_until_coarsened",
        "largest_and_smallest_caps_are_shown", "all_releases_are_admitted_without_cap",
        "datasets_have_separate_budgets", "cap_below_spending_is_reported_and_stops_releases",
        "summary_is_json_and_adds_up", "infinite_epsilon_is_null_in_summary",
        "ledger_writes_no_logs_and_no_output", "concurrent_processes_cannot_exceed_cap",
        "concurrent_charges_of_one_release_make_one_row", "threads_share_open_ledger",
        "ledger_refuses_use_after_fork",
    ),
    test_protection: (
        "unit_release_counts_twice_for_rows", "cap_fixes_the_protected_unit",
        "delta_zero_means_pure_cap", "currency_is_fixed_after_first_charge",
        "release_with_public_noise_is_marked_and_refused_under_cap",
    ),
    test_additive_delta: (
        "row_carries_additive_delta_and_period", "stored_row_without_its_period_or_delta_is_detected",
        "cap_counts_additive_deltas", "first_release_decides_whether_the_cap_reserves_delta",
        "release_for_units_counts_for_rows_with_grown_delta", "periods_are_summed_and_all_count",
        "ledger_without_both_shows_neither",
    ),
}  # fmt: skip
globals().update(
    {f"test_{name}": getattr(module, f"test_{name}") for module, names in SHARED.items() for name in names}
)
CHARGE: Any = ("adult", "r1", gaussian(1), DIGEST)


class Address(str):
    """An address with a `parent` directory, which the shared tests list for leftover drafts."""

    parent = "/var/empty" if os.path.isdir("/var/empty") else "/proc/self/fdinfo"


@pytest.fixture
def path(server: Server) -> str:
    return Address(server.database())


@pytest.fixture
def ledger(path: str) -> Iterator[Ledger]:
    with Ledger.open(path) as opened:
        yield opened


@contextmanager
def open_database(place: str) -> Iterator[Any]:
    with test_book.open_database(place) as db:  # type: ignore[arg-type]
        yield db


# Races


class UnlockedLedger(Ledger):
    """Planted fault: the history is read without the lock, at the default isolation level, by all processes."""

    barrier: threading.Barrier

    def _check_sound(self, db: Any) -> None:
        pass

    @contextmanager
    def _transaction(self, writes: bool) -> Iterator[Any]:
        db = self._store.db  # type: ignore[attr-defined]
        with self._store._failures():  # type: ignore[attr-defined]
            db.execute(ledgerserver.BEGIN.format("READ COMMITTED", 30_000))
            try:
                yield WaitingStatements(db, self.barrier)
                db.execute("COMMIT")
            except BaseException:
                db.execute("ROLLBACK")
                raise


class WaitingStatements(ledgerserver.Statements):
    def __init__(self, db: Any, barrier: threading.Barrier) -> None:
        super().__init__(db)
        self.barrier, self.waited = barrier, False

    def execute(self, query: str, values: Any = (), /) -> Any:
        if query.startswith("INSERT INTO") and not self.waited:
            self.waited = True
            self.barrier.wait()
        return super().execute(query, values)


class UnlockedLedgerWithoutChain(UnlockedLedger):
    """Planted fault: the hash chain, which admits one entry per position, is missing too."""

    @contextmanager
    def _transaction(self, writes: bool) -> Iterator[Any]:
        chain.append = lambda *_: ""
        remove_chain(self._store.db)  # type: ignore[attr-defined]
        with super()._transaction(writes) as db:
            yield db


def remove_chain(db: Any) -> None:
    """Allow releases without a link, as version 4 did; one process at a time."""
    body = schema.TRIGGERS[schema.FIRST_VERSION]
    function = next(text for (_, name, _), text in body.items() if name == "releases_insert")
    db.execute("SELECT pg_advisory_lock(1)")
    db.execute(
        f"CREATE OR REPLACE FUNCTION {schema.SCHEMA}.releases_insert() RETURNS trigger LANGUAGE plpgsql"
        f" SET search_path = {schema.PATH} AS $body${function}$body$"
    )
    db.execute("SELECT pg_advisory_unlock(1)")


def test_hash_chain_stops_ledger_without_lock(path: str) -> None:
    with Ledger.open(path) as ledger:
        ledger.set_cap("adult", 0.75, DELTA)
    answers = run_processes(test_book.race_for_budget, path, UnlockedLedger)
    assert answers.count("reserved") == 1, "three with turns; the hash chain admits one entry at a place"
    assert admitted_within_cap(path)  # type: ignore[arg-type]


def test_race_detects_ledger_without_lock(path: str) -> None:
    with Ledger.open(path) as ledger:
        ledger.set_cap("adult", 0.75, DELTA)
    answers = run_processes(test_book.race_for_budget, path, UnlockedLedgerWithoutChain)
    assert answers == ["reserved"] * test_book.PROCESSES
    assert not admitted_within_cap(path)  # type: ignore[arg-type]


def test_transaction_ended_by_deadlock_is_repeated(ledger: Ledger, path: str) -> None:
    """The ledger waits first, so the server ends its transaction."""
    ledger.set_cap("adult", 5.0, DELTA)
    with open_database(path) as other, ledger.__class__.open(path) as watching:
        other.execute("BEGIN; LOCK TABLE releases IN ACCESS EXCLUSIVE MODE")
        states: list[str] = []
        charging = threading.Thread(target=lambda: states.append(ledger.charge(*CHARGE)))
        charging.start()
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        while not watching._store.db.execute(waiting).fetchone()[0]:  # type: ignore[attr-defined]
            pass
        with suppress(Exception):
            other.execute("LOCK TABLE numbers IN EXCLUSIVE MODE")
        other.execute("ROLLBACK")
        charging.join()
    assert states == ["reserved"]
    assert list(release_rows(path)) == ["r1"]  # type: ignore[arg-type]


def test_lock_timeout_is_reported(path: str) -> None:
    Ledger.open(path).close()
    with open_database(path) as other, Ledger.open(path, timeout=0.1) as ledger:
        other.execute("BEGIN; LOCK TABLE numbers IN EXCLUSIVE MODE")
        with refused(TransientError):
            ledger.charge(*CHARGE)
        other.execute("ROLLBACK")
        assert ledger.charge(*CHARGE) == "reserved"


# Kills


def make_killed_publisher(place: str, statement: int) -> Callable[[], None]:
    """Return a function that publishes the releases and is killed before the given statement."""

    def act() -> None:
        left, real_commit = iter(range(statement)), ledgerserver._commit

        def step() -> None:
            if next(left, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)

        class Deadly(ledgerserver.Statements):
            def execute(self, query: str, values: Any = (), /) -> Any:
                step()
                return super().execute(query, values)

        def commit(db: Any, place: str) -> None:
            step()
            real_commit(db, place)
            step()

        ledgerserver.Statements, ledgerserver._commit = Deadly, commit  # type: ignore[misc]
        with Ledger.open(place) as ledger:
            publish_releases(ledger)

    return act


def test_killed_job_leaves_consistent_ledger_and_resumes(path: str) -> None:
    """Kills come at statements of the creation and of charges, and before and after commits; each run resumes."""
    partial, chance = 0, random.Random(7)
    for statement in (*range(0, 240, 12), *(chance.randrange(120) for _ in range(20))):
        killed = os.WIFSIGNALED(run_in_child(make_killed_publisher(path, statement)))
        with open_database(path) as db:
            made = db.execute("SELECT to_regclass('dpscale_ledger.releases')").fetchone()[0]
        found = release_rows(path) if made else {}  # type: ignore[arg-type]
        partial += killed and 0 < len(found) < len(RELEASES)
        assert list(found) == RELEASES[: len(found)]
        if made:
            with Ledger.open(path) as ledger:
                ledger.verify()
    assert partial >= 1
    with Ledger.open(path) as ledger:
        publish_releases(ledger)
    assert [state for _, state in release_rows(path).values()] == ["released"] * len(RELEASES)  # type: ignore[arg-type]


# Lost connections


class CuttingProxy:
    """A proxy of the server that can cut the connection before or after it forwards a COMMIT."""

    def __init__(self, port: int) -> None:
        self.port, self._behind, self.cut, self.open = free_port(), port, "", True
        self.cuts = 0
        self._door = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._door.accept()
                if not self.open:
                    near.close()
                    continue
                far = socket.create_connection(("127.0.0.1", self._behind))
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._forward, args=(source, sink, near), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket, near: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if self.cut and source is near and b"COMMIT\0" in data:
                    self._cut_connection(data, source, sink)
                    return
                sink.sendall(data)
        for one in (source, sink):
            one.close()

    def _cut_connection(self, data: bytes, near: socket.socket, far: socket.socket) -> None:
        before, self.cut, self.cuts = self.cut == "before", "", self.cuts + 1
        near.shutdown(socket.SHUT_RDWR)
        if not before:
            far.sendall(data)
        far.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._door.close()


@pytest.fixture
def proxy(server: Server) -> Iterator[CuttingProxy]:
    made = CuttingProxy(server.port)
    yield made
    made.close()


@pytest.mark.parametrize("when", ["before", "after"])
def test_connection_lost_at_commit_charges_once(server: Server, path: str, proxy: CuttingProxy, when: str) -> None:
    with Ledger.open(server.address(path.rsplit("/", 1)[1], proxy.port)) as ledger:
        ledger.set_cap("adult", 1.5, DELTA)
        proxy.cut = when
        assert ledger.charge(*CHARGE) == "reserved"  # it would not fit twice
        proxy.cut = when
        ledger.decide("r1", "", 0, DIGEST)
        proxy.cut = when
        assert ledger.commit("r1") == "committed"
        assert proxy.cuts == 3
        ledger.verify()
    assert list(release_rows(path)) == ["r1"]  # type: ignore[arg-type]


def test_unverifiable_charge_after_lost_connection_is_reported(server: Server, path: str, proxy: CuttingProxy) -> None:
    with Ledger.open(server.address(path.rsplit("/", 1)[1], proxy.port), timeout=0.3) as ledger:
        proxy.cut, proxy.open = "after", False
        with pytest.raises(TransientError) as lost:
            ledger.charge(*CHARGE)
        assert lost.value.exit_code == 75
        proxy.open = True
        assert ledger.charge(*CHARGE) == "reserved"
    assert list(release_rows(path)) == ["r1"]  # type: ignore[arg-type]


def test_server_stop_between_charge_and_commit(server: Server, path: str) -> None:
    with Ledger.open(path, timeout=0.2) as ledger, Ledger.open(path, timeout=120) as patient:
        ledger.charge(*CHARGE)
        server.stop()
        with pytest.raises(TransientError, match=r"was lost|cannot be reached"):
            ledger.commit("r1")
        with pytest.raises(TransientError, match="cannot be reached"):
            Ledger.open(path, timeout=0.2)
        states: list[str] = []
        waiting = threading.Thread(target=lambda: states.append(patient.commit("r1")))
        waiting.start()
        server.start()
        waiting.join()
        assert states == ["committed"]
        assert ledger.charge(*CHARGE) == "committed"
        ledger.verify()


# Tampering

TAMPERING = [
    "DELETE FROM releases", "TRUNCATE releases", "DELETE FROM caps", "UPDATE caps SET epsilon = 100",
    "UPDATE releases SET cost = '{}'", "UPDATE releases SET seq = 77 WHERE release = 'r1'",
    "UPDATE releases SET state = 'reserved' WHERE release = 'r1'",
    "UPDATE releases SET state = 'released', released_at = 'x' WHERE release = 'r2'",
    "INSERT INTO releases (release, dataset, plan_digest, cost, state, reserved_at) VALUES ('r9', 'adult', '" + DIGEST
    + "', '{}', 'reserved', 'now')",
    "INSERT INTO releases (release, dataset, plan_digest, cost, state, reserved_at) VALUES ('r1', 'adult', '" + DIGEST
    + "', '{}', 'reserved', 'now') ON CONFLICT (release) DO UPDATE SET cost = '{}'",
    "UPDATE identity SET id = '" + "c" * 32 + "'", "INSERT INTO identity VALUES ('" + "c" * 32 + "')",
    "DELETE FROM rounds", "INSERT INTO rounds (release, part, round, digest) VALUES ('r1', '', 1, '" + DIGEST + "')",
    "UPDATE numbers SET seq = 0", "DELETE FROM numbers", "DELETE FROM protections",
]  # fmt: skip


def fill_ledger(ledger: Ledger) -> None:
    ledger.set_cap("adult", 5.0, DELTA)
    ledger.charge("adult", "r1", gaussian(1), DIGEST, 1.0, DELTA)
    ledger.commit("r1")
    ledger.charge("adult", "r2", gaussian(1), DIGEST, 1.0, DELTA)
    ledger.decide("r2", "", 0, DIGEST)


def test_triggers_refuse_tampering(ledger: Ledger, path: str) -> None:
    import psycopg

    fill_ledger(ledger)
    before = ledger.summary()
    with open_database(path) as db:
        for statement in TAMPERING:
            with pytest.raises(psycopg.Error):
                db.execute(statement)
        assert ledger.summary() == before
        db.execute("SET session_replication_role = replica")  # which leaves triggers out
        for statement in ("DELETE FROM releases WHERE release = 'r2'", "UPDATE caps SET epsilon = 100"):
            db.execute(statement)
    with refused(BudgetError):
        ledger.verify()


@pytest.mark.parametrize("statement", [
    "DROP TRIGGER releases_delete ON releases", "ALTER TABLE caps DISABLE TRIGGER ALL",
    "CREATE OR REPLACE FUNCTION caps_update() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'",
])  # fmt: skip
def test_ledger_without_triggers_is_refused(ledger: Ledger, path: str, statement: str) -> None:
    with open_database(path) as db:
        db.execute(statement)
    with refused(BudgetError):
        Ledger.open(path)


# Addresses, users, servers


@pytest.mark.parametrize("written", [
    "postgresql://me:hunter2@db/budget", "postgresql://me@db/budget", "postgresql://db/budget?password=hunter2",
    "postgresql://db/budget?user=hunter2", "postgresql://db/budget?passfile=hunter2", "postgresql://db/?hunter2",
    "postgresql://db", "postgresql://db:hunter2/budget", "postgresql://db/a/b", "mysql://me:hunter2@db/x",
    "postgresql://db/x?options=hunter2", "postgresql://db/x#hunter2", "postgresql://db/password=hunter2",
])  # fmt: skip
def test_invalid_or_credential_address_is_refused_without_printing_it(tmp_path: Path, written: str) -> None:
    job = write(tmp_path, privacy={"privacy_cost": 0.5, "dataset": "small", "ledger": written})
    for act in (lambda: Ledger.open(written), lambda: dp.run(job, tmp_path / "run")):
        with refused(JobError) as caught:
            act()
        assert caught.value.field == "privacy.ledger"
        assert "hunter2" not in str(caught.value)
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_address_is_parsed_to_connection_parameters() -> None:
    assert location.connection("postgresql://db.example:6432/budget?sslmode=verify-full") == {
        "host": "db.example", "port": "6432", "dbname": "budget", "sslmode": "verify-full",
    }  # fmt: skip
    assert location.connection("postgresql:///budget?host=/run/pg") == {"host": "/run/pg", "dbname": "budget"}
    assert location.connection("postgresql://[::1]/a%20b") == {"host": "::1", "dbname": "a b"}


def test_missing_driver_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    job = write(tmp_path, privacy={"privacy_cost": 0.5, "dataset": "small", "ledger": "postgresql://db/budget"})
    with refused(JobError):
        dp.run(job, tmp_path / "run")


@pytest.mark.parametrize(("change", "kind"), [
    ({"PGPASSWORD": "wrong-word"}, JobError),
    ({"PGUSER": "nobody-known"}, JobError),
])  # fmt: skip
def test_rejected_user_is_reported(
    path: str, monkeypatch: pytest.MonkeyPatch, change: dict[str, str], kind: type[DpscaleError]
) -> None:
    for name, value in change.items():
        monkeypatch.setenv(name, value)
    with refused(kind) as caught:
        Ledger.open(path)
    for word in (*change.values(), os.environ["PGUSER"], os.environ["PGPASSWORD"]):
        assert word not in str(caught.value).replace("dpscale of", "").replace("of dpscale", "")


def test_worker_reports_unreachable_ledger(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert unreached(path) == ""
    monkeypatch.setenv("DPSCALE_LEDGER", "postgresql://127.0.0.1:1/none")
    assert "cannot be reached" in unreached(path)
    monkeypatch.delenv("DPSCALE_LEDGER")
    monkeypatch.setenv("PGPASSWORD", "wrong-word")
    assert "set PGUSER and PGPASSWORD, or PGPASSFILE, in the environment" in unreached(path)


def test_passfile_authenticates(server: Server, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passfile = tmp_path / "passfile"
    passfile.write_text(f"127.0.0.1:{server.port}:*:dpscale:{os.environ['PGPASSWORD']}\n")
    passfile.chmod(0o600)
    monkeypatch.delenv("PGPASSWORD")
    monkeypatch.setenv("PGPASSFILE", str(passfile))
    Ledger.open(path).close()


def test_missing_database_or_ledger_is_refused(server: Server, path: str) -> None:
    with refused(JobError):
        Ledger.open(server.address("nowhere"))
    with refused(JobError):
        Ledger.open(path, create=False)


def test_other_user_needs_only_the_listed_rights(path: str, monkeypatch: Any) -> None:
    with Ledger.open(path) as ledger, open_database(path) as db:
        ledger.set_cap("adult", 5.0, DELTA)
        db.execute("DROP ROLE IF EXISTS clerk")
        db.execute(f"CREATE ROLE clerk LOGIN PASSWORD '{os.environ['PGPASSWORD']}'")
        monkeypatch.setenv("PGUSER", "clerk")
        with refused(BudgetError):
            Ledger.open(path)
        db.execute("GRANT USAGE ON SCHEMA dpscale_ledger TO clerk")
        db.execute("GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA dpscale_ledger TO clerk")
        with Ledger.open(path) as clerks:
            publish_releases(clerks)
            clerks.verify()


def test_server_schema_has_columns_of_file_schema() -> None:
    """Equal columns let a history move in both directions."""
    from dpscale.ledger.sqlite_store import expected_schema

    for kind, name, made in expected_schema():
        if kind == "table" and name in schema.ROWS:
            columns = [line.strip().split()[0] for line in made.split("(", 1)[1].splitlines()[1:]]
            known = [part.split()[0] for part in schema.TABLES[name].replace("\n", " ").split(", ")]
            assert set(columns) - {"UNIQUE"} <= set(known), name


def charge_and_answer(place: str, number: int, answers: Any) -> None:
    with Ledger.open(place) as ledger:
        answers.put(ledger.charge("adult", f"r{number}", gaussian(0.01), DIGEST))


@pytest.mark.slow
def test_ninety_concurrent_charges_are_all_recorded(path: str) -> None:
    context = multiprocessing.get_context("forkserver")
    answers = context.Queue()
    for start in range(0, 90, 30):
        many = [context.Process(target=charge_and_answer, args=(path, start + k, answers)) for k in range(30)]
        for one in many:
            one.start()
        for one in many:
            one.join()
    assert [answers.get() for _ in range(90)] == ["reserved"] * 90
    with Ledger.open(path) as ledger:
        ledger.verify()


# Moved and closed


@pytest.fixture(params=["to the server", "to a file", "between servers", "between files"])
def source_and_target(request: Any, server: Server, tmp_path: Path) -> tuple[str, str]:
    """The address of a ledger with some history and the address of its new location."""
    kinds = {"to the server": "fs", "to a file": "sf", "between servers": "ss", "between files": "ff"}[request.param]
    files = (str(tmp_path / f"{number}.sqlite") for number in range(2))
    source, target = (next(files) if kind == "f" else server.database() for kind in kinds)
    with Ledger.open(source) as ledger:
        fill_ledger(ledger)
    return source, target


def read_summary(place: str) -> dict[str, Any]:
    with Ledger.open(place, create=False) as ledger:
        ledger.verify()
        summary = ledger.summary()
        return {"name": ledger.name, "datasets": summary["datasets"]}


def forbidden_calls(ledger: Ledger) -> Iterator[Callable[[], object]]:
    """Yield all calls that would change a closed ledger or charge it, for existing and new releases."""
    for release in ("r1", "r2", "r3"):
        yield lambda release=release: ledger.charge("adult", release, gaussian(1), DIGEST)  # type: ignore[misc]
    yield lambda: ledger.charge(*CHARGE, reserve=False)
    yield lambda: ledger.decide("r2", "", 1, DIGEST)
    yield lambda: ledger.commit("r2")
    yield lambda: ledger.set_cap("adult", 9.0, DELTA)


def test_move_copies_history_and_closes_old_ledger(source_and_target: tuple[str, str], tmp_path: Path) -> None:
    source, target = source_and_target
    before = read_summary(source)
    with Ledger.open(source) as early:  # as a job that has it open
        done = CliRunner().invoke(main, ["ledger", "copy", source, target])
        assert done.exit_code == 0, done.output
        with Ledger.open(source) as late:
            for old in (early, late):
                for act in forbidden_calls(old):
                    with refused(BudgetError) as closed:
                        act()
                    assert target in str(closed.value)
    assert read_summary(source) == read_summary(target) == before
    shown = CliRunner().invoke(main, ["ledger", "show", source])
    assert shown.output.startswith(f"closed permanently: the history moved to {target}")
    with Ledger.open(target) as ledger:
        assert ledger.charge("adult", "r1", gaussian(1), DIGEST) == "committed"
        ledger.commit("r2")
        ledger.charge("adult", "r3", gaussian(0.1), DIGEST)
        ledger.verify()
    with Ledger.open(source) as ledger:
        assert ledger.move(target) == 3 - 1  # again: nothing changes
        with refused(BudgetError):
            ledger.move(tmp_path / "third.sqlite")
    assert not (tmp_path / "third.sqlite").exists()
    assert len(release_rows(target)) == 3  # type: ignore[arg-type]


def test_triggers_protect_closed_ledger(source_and_target: tuple[str, str]) -> None:
    """An older process that had the ledger open tries to change it."""
    import psycopg

    with Ledger.open(source_and_target[0]) as ledger:
        ledger.move(source_and_target[1])
    for statement in ("INSERT INTO rounds (release, part, round, digest) VALUES ('r2', '', 5, '" + DIGEST + "')",
                      "UPDATE releases SET state = 'committed', committed_at = 'x' WHERE release = 'r2'",
                      "INSERT INTO caps (dataset, epsilon, delta, set_at) VALUES ('adult', 9, 0.1, 'now')",
                      "DELETE FROM closed", "UPDATE closed SET moved_to = 'x'"):  # fmt: skip
        with (
            open_database(source_and_target[0]) as db,
            pytest.raises((psycopg.Error, sqlite3.Error), match=r"closed|stay"),
        ):
            db.execute(statement)


def test_move_refuses_target_with_ledger(source_and_target: tuple[str, str]) -> None:
    source, target = source_and_target
    Ledger.open(target).close()
    with Ledger.open(source) as ledger:
        with refused(JobError):
            ledger.move(target)
        assert ledger.charge("adult", "r3", gaussian(0.1), DIGEST) == "reserved"


def test_failed_move_leaves_old_ledger_open(source_and_target: tuple[str, str], server: Server) -> None:
    with Ledger.open(source_and_target[0]) as ledger:
        for target in ("/proc/none/x.sqlite", server.address("nowhere"), "postgresql://127.0.0.1:1/x"):
            with pytest.raises(DpscaleError):
                ledger.move(target)
        assert ledger.charge("adult", "r3", gaussian(0.1), DIGEST) == "reserved"


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_move_leaves_one_open_ledger_and_can_be_repeated(source_and_target: tuple[str, str], when: str) -> None:
    source, target = source_and_target

    def act() -> None:
        from dpscale.ledger import rows as ledgerrows

        def make_fatal(function: Callable[..., Any]) -> Callable[..., Any]:
            def killed(*arguments: Any) -> Any:
                os.kill(os.getpid(), signal.SIGKILL)

            return killed

        if when == "before":
            ledgerrows.insert_closed = make_fatal(ledgerrows.insert_closed)
        else:  # closed, and the new one is not there yet
            os.link = make_fatal(os.link)
            real_commit = ledgerserver._commit

            def commit(db: Any, place: str) -> None:
                if place == target:
                    os.kill(os.getpid(), signal.SIGKILL)
                real_commit(db, place)

            ledgerserver._commit = commit
        with Ledger.open(source) as ledger:
            ledger.move(target)

    before = read_summary(source)
    assert os.WIFSIGNALED(run_in_child(act))
    with refused(JobError):
        Ledger.open(target, create=False)
    with Ledger.open(source) as ledger:
        assert (ledger.summary()["moved_to"] is None) == (when == "before")
        assert ledger.move(target) == 2
    assert read_summary(target) == before


def test_run_uses_moved_ledger(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = server.database(), server.database()
    job = write(tmp_path, privacy={"privacy_cost": 0.5, "dataset": "small", "ledger": first}, engine={"scheduler":
                "synchronous"})  # fmt: skip
    (run := tmp_path / "run").mkdir()
    monkeypatch.setenv("PGPASSWORD", os.environ["PGPASSWORD"])
    assert CliRunner().invoke(main, ["run", str(job), "--run-dir", str(run), "--quiet"]).exit_code == 0
    for file in run.rglob("*"):
        if file.is_file():
            assert os.environ["PGPASSWORD"].encode() not in file.read_bytes()
    assert audit_run(run, first).sound
    with Ledger.open(first) as ledger:
        assert len(ledger.summary()["datasets"]["small"]["releases"]) == 1
        ledger.move(second)
    with refused(BudgetError) as closed:
        dp.run(job, tmp_path / "new", fresh=True)
    assert second in str(closed.value)
    monkeypatch.setenv("DPSCALE_LEDGER", second)
    dp.run(job, tmp_path / "new", fresh=True)
    assert {state for _, state in release_rows(second).values()} == {"released"}  # type: ignore[arg-type]
    assert (len(release_rows(first)), len(release_rows(second))) == (1, 2)  # type: ignore[arg-type]
