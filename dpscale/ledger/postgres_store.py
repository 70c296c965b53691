"""Ledger on a PostgreSQL server, for drivers that move between machines.

Transactions are SERIALIZABLE. A writing transaction first takes the writers' lock, before its snapshot, so it sees all
committed rows and waits instead of failing at the end. A reported commit is on the server's disk (`synchronous_commit`,
regardless of the server's default). All settings are local to the transaction, so a connection pooler is harmless; the
server ends a transaction whose client disappeared. After a lost connection the transaction runs again (`store`) and
either finds the rows of the lost one or writes them.

psycopg 3 is optional and imported where it is used.
"""

from __future__ import annotations

import sqlite3
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from dpscale.base.errors import BudgetError, DpscaleError, JobError, TransientError
from dpscale.ledger.chain import append_older
from dpscale.ledger.location import connection, driver
from dpscale.ledger.rows import History, closed, history, insert_history, insert_version, schema_version
from dpscale.ledger.schema import (
    APPLICATION_ID,
    CATALOGUE,
    CHAINED_VERSION,
    FIRST_VERSION,
    PATH,
    SCHEMA,
    VERSION,
    expected_catalogue,
    rows_of,
    server_tables,
    server_triggers,
    server_upgrade,
)
from dpscale.ledger.sqlite_store import file_findings, file_numbers, rows_in_memory
from dpscale.ledger.store import FIELD, Again, DamageError, Database

TAKES = "a ledger of dpscale on a PostgreSQL server with durable commits"
CONNECTING, SILENT = 10, 60  # seconds to wait for the server, and until it ends the transaction of a silent client
SETTINGS = {
    "application_name": "dpscale", "connect_timeout": str(CONNECTING), "target_session_attrs": "read-write",
    "keepalives_idle": "30", "keepalives_interval": "10", "keepalives_count": "3",
}  # fmt: skip
BEGIN = f"""BEGIN ISOLATION LEVEL {{}}; SET LOCAL search_path = {PATH}; SET LOCAL synchronous_commit = on;
    SET LOCAL lock_timeout = '{{:.0f}}ms'; SET LOCAL statement_timeout = 0;
    SET LOCAL idle_in_transaction_session_timeout = '{SILENT}s'"""
ALONE = "LOCK TABLE numbers IN EXCLUSIVE MODE"
OVERTAKEN = ("40001", "40P01")  # serialization failure, deadlock
NO_RIGHTS = "cannot be used by this user"
GRANT = f"grant USAGE on schema {SCHEMA} and SELECT, INSERT, UPDATE on its tables"
# SQLSTATE or its class -> (error, event, remedy)
MEANINGS: dict[str, tuple[type[DpscaleError], str, str]] = {
    "55P03": (TransientError, "is locked by another process", "try again when that one is done"),
    "57014": (TransientError, "was stopped by its server", "try again"),
    "53": (TransientError, "is on a server that is full", "free some space or connections and try again"),
    "58": (TransientError, "met a disk error", "check the server's disk and try again"),
    "XX": (DamageError, "is damaged", "restore it from a copy; do not start a new one"),
    "25006": (BudgetError, "cannot be written", "name the server that takes writes, no standby"),
    "42501": (BudgetError, NO_RIGHTS, GRANT),
    "42P01": (BudgetError, NO_RIGHTS, GRANT),  # reported for tables in a schema that the user may not use
    "23": (BudgetError, "refuses a change of its history", "it is append-only; make a new charge"),
    "P0001": (BudgetError, "refuses a change of its history", "it is append-only; make a new charge"),
}
OTHERWISE = (BudgetError, "cannot be used", "check the server and its log")


def unusable(address: str, got: str, remedy: str, kind: type[DpscaleError] = BudgetError) -> DpscaleError:
    """Return the error for a ledger on a server that cannot be used."""
    return kind(FIELD, f"{address} {' '.join(got.split())}", TAKES, remedy)


def connect(address: str) -> Any:
    """Return a connection. Raises JobError for an invalid address, TransientError if the server accepts no connection.

    The message of libpq is omitted because it names the user.
    """
    psycopg = driver()
    try:
        return psycopg.connect(**SETTINGS | connection(address), autocommit=True, prepare_threshold=None)
    except (psycopg.Error, UnicodeError) as error:
        kind, got, remedy = _unconnected(str(error))
        raise unusable(address, got, remedy, kind) from None


NO_ENTRY = ("authentication failed", "no password supplied", "pg_hba.conf", "permission denied", 'role "')


def _unconnected(reply: str) -> tuple[type[DpscaleError], str, str]:
    """Return the kind of error, what happened, and a remedy, for the message of a failed connection."""
    if any(words in reply for words in NO_ENTRY):
        return JobError, "does not let this user in", "set PGUSER and PGPASSWORD, or PGPASSFILE, in the environment"
    if 'database "' in reply:
        return JobError, "names a database that is not there", "check the name, or create it"
    return TransientError, "cannot be reached, or takes no writes now", "check server and address, and try again"


class Statements:
    """Connection whose queries use `?` as the placeholder for values."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def execute(self, query: str, values: Sequence[Any] = (), /) -> Any:
        return self._db.execute(query.replace("?", "%s"), tuple(values)) if values else self._db.execute(query)


class ServerStore:
    """Ledger in its own schema of a PostgreSQL database; a database has at most one."""

    def __init__(self, address: str, create: bool, timeout: float) -> None:
        """Connect to a ledger, or create one if there is none and `create` is true.

        A server that does not write commits to disk and a ledger of an unknown version or with a missing trigger are
        refused, and the connection is closed.
        """
        self.path, self.timeout = address, timeout
        self.db = connect(address)
        try:
            with self._failures():
                _check_durable(self.db, address)
                there = is_there(self.db)
            if not there:
                _create(address, create)
            with self._transaction(writes=False) as db:
                self._version = check_identity(db, address)
        except BaseException:
            self.db.close()
            raise

    @contextmanager
    def transaction(self, writes: bool) -> Iterator[Database]:
        """Run a transaction; reading an older ledger yields a copy in memory, and writing upgrades the server first.

        A closed ledger of an older version is not upgraded, so that writing yields a copy in memory too.
        """
        if self._version < VERSION and writes:
            self._upgrade()
        with self._transaction(writes) as db:
            if self._version < VERSION:
                self._version = schema_version(db)  # another client may have upgraded it
            if self._version == VERSION:
                yield db
            else:
                with closing(_copy_in_memory(db, self._version)) as copy:
                    yield copy

    @contextmanager
    def _transaction(self, writes: bool) -> Iterator[Database]:
        """Run a serializable transaction, after connecting again if the connection was lost.

        One that writes runs alone: it waits until no other one writes.
        """
        with self._failures():
            self._connect_again()
            try:
                level = "SERIALIZABLE" if writes else "SERIALIZABLE READ ONLY"
                self.db.execute(BEGIN.format(level, 1000 * self.timeout))
                if writes:
                    self.db.execute(ALONE)
                yield Statements(self.db)
                _commit(self.db, self.path)
            except BaseException:
                _roll_back(self.db)
                raise

    def _upgrade(self) -> None:
        """Upgrade a valid ledger of an older version, unless another process has already done so or it is closed."""
        with self._transaction(writes=True) as db:
            version = check_identity(db, str(self.path))
            upgrades = version < VERSION and closed(db) is None
            if upgrades:
                _check_owner(db, str(self.path), version)
                for statement in server_upgrade(version):
                    db.execute(statement)
                if version < CHAINED_VERSION:
                    append_older(db, history(db).tables)
                for statement in server_triggers(before=version):
                    db.execute(statement)
                insert_version(db)
        if upgrades:
            warnings.warn(f"{self.path} was upgraded from schema version {version} to {VERSION}", UserWarning,
                          stacklevel=2)  # fmt: skip

    def check_writable(self) -> None:
        """Do nothing, because the server states the rights of a user when they are used."""

    def findings(self, db: Database) -> list[str]:
        """Return no faults, because checking the rows finds all. Raises BudgetError if the schema is not a ledger's."""
        if isinstance(db, sqlite3.Connection):
            return file_findings(db, Path(str(self.path)))
        check_identity(db, str(self.path))
        return []

    def numbered(self, db: Database) -> dict[str, int]:
        return file_numbers(db) if isinstance(db, sqlite3.Connection) else _numbers(db)

    def damaged(self, what: str) -> DamageError:
        """Return the error for a damaged ledger."""
        got = f"{self.path} is damaged ({' '.join(what.split())})"
        return DamageError(FIELD, got, TAKES, "restore it from a copy; do not start a new one")

    def close(self) -> None:
        self.db.close()

    def _connect_again(self) -> None:
        """Reconnect if the connection was lost. Raises Again while the server is unreachable."""
        if self.db.closed:
            try:
                self.db = connect(str(self.path))
            except TransientError as error:
                raise Again(error.field, error.got, error.takes, error.remedy) from None

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Convert server errors to dpscale errors."""
        try:
            yield
        except driver().Error as error:
            raise _meaning(str(self.path), error, self.db.closed) from error


def _numbers(db: Database) -> dict[str, int]:
    return dict(db.execute("SELECT name, seq FROM numbers").fetchall())


def _copy_in_memory(db: Database, version: int) -> sqlite3.Connection:
    """Return a copy of an older ledger in memory, in the current schema."""
    return rows_in_memory(history(db, rows_of(version)), _numbers(db), version, closed(db))


def _meaning(address: str, error: Any, lost: bool) -> DpscaleError:
    """Return the error to report for one of the server, by its SQLSTATE (five characters) or its class (two).

    `lost` states whether the connection is closed: then the outcome of the transaction is unknown.
    """
    if lost:
        return unusable(address, "was lost, and the last change may be stored or not",
                        "run the same command again", Again)  # fmt: skip
    state = error.sqlstate or ""
    if state in OVERTAKEN:
        return unusable(address, "is busy", "try again", Again)
    kind, got, remedy = MEANINGS.get(state) or MEANINGS.get(state[:2]) or OTHERWISE
    return unusable(address, f"{got} ({error.diag.message_primary or type(error).__name__})", remedy, kind)


def _commit(db: Database, address: str) -> None:
    """Commit the transaction.

    COMMIT of a failed transaction returns ROLLBACK, which the driver does not report as an error.
    """
    if db.execute("COMMIT").statusmessage != "COMMIT":
        raise unusable(address, "did not commit", "try again", TransientError)


def _roll_back(db: Any) -> None:
    """End the transaction, or close the connection if that fails."""
    try:
        if not db.closed:
            db.execute("ROLLBACK")
    except Exception:
        db.close()


def is_there(db: Database) -> bool:
    """Return whether the database has a ledger, complete or not."""
    query = "SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = %s)"
    return bool(db.execute(query, (SCHEMA,)).fetchone()[0])


def _check_durable(db: Database, address: str) -> None:
    """Raise BudgetError if the server could lose committed rows."""
    if db.execute("SHOW fsync").fetchone()[0] != "on":
        raise unusable(address, "is on a server with fsync = off, which loses charges in a power cut", "turn it on")


def check_identity(db: Database, address: str) -> int:
    """Return the ledger's version. Raises BudgetError if it is unknown or a trigger is missing."""
    version = schema_version(db)
    if version not in range(FIRST_VERSION, VERSION + 1):
        raise unusable(address, f"has schema version {version}; this dpscale supports {VERSION}", "update dpscale")
    if set(db.execute(CATALOGUE).fetchall()) != expected_catalogue(version):
        raise unusable(address, "has another schema than a ledger", "restore it from a copy")
    return version


def _check_owner(db: Database, address: str, version: int) -> None:
    """Raise BudgetError if the user cannot alter the tables."""
    query = f"""SELECT bool_and(pg_has_role(relowner, 'USAGE')) FROM pg_class
        WHERE relnamespace = '{SCHEMA}'::regnamespace AND relkind = 'r'"""
    if not db.execute(query).fetchone()[0]:
        raise unusable(address, f"has schema version {version}, which only the owner of its tables can upgrade",
                       "charge it once, or set a cap, as that user")  # fmt: skip


def _create(address: str, create: bool) -> None:
    """Create an empty ledger in a database, if that is allowed; another process may create it at the same time."""
    if not create:
        raise unusable(address, "does not exist", "check the name", JobError)
    with suppress(FileExistsError), making(address) as fill:
        fill(History())


@contextmanager
def making(address: str) -> Iterator[Callable[[History], None]]:
    """Create a ledger whose first rows are the history passed to the yielded function.

    The ledger exists once the context ends without an exception. Raises FileExistsError if the database already has
    one. Concurrent creators wait for each other.
    """
    psycopg = driver()
    with closing(connect(address)) as db:
        try:
            _check_durable(db, address)
            db.execute(BEGIN.format("READ COMMITTED", 1000 * CONNECTING))
            db.execute("SELECT pg_catalog.pg_advisory_xact_lock(%s)", (APPLICATION_ID,))  # until the commit
            if is_there(db):
                raise FileExistsError(address)
            yield lambda history: _write(Statements(db), history)
            _commit(db, address)
        except psycopg.Error as error:
            raise _meaning(address, error, db.closed) from error


def _write(db: Statements, history: History) -> None:
    """Write the tables, the rows, then the triggers, which would refuse rows that are already committed or released."""
    for statement in server_tables():
        db.execute(statement)
    insert_history(db, history)
    for statement in server_triggers():
        db.execute(statement)
