"""A ledger on a PostgreSQL server, for drivers that move between machines.

A transaction is SERIALIZABLE, and one that writes first takes the lock of those that write, before its snapshot: it
sees all that was committed, and waits its turn instead of failing at the end. A commit is on the server's disk when it
is told (`synchronous_commit`, whatever the server's default). Everything is set within the transaction, so a pooler in
between does no harm; a transaction whose machine is gone ends by itself. Where the connection is lost the transaction
is made again (`store`): it finds what the lost one left, or leaves it.

The driver is imported where it is used, psycopg 3, which is optional.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any

from dpscale.base.errors import BudgetError, DpscaleError, JobError, TransientError
from dpscale.ledger.chain import append_older
from dpscale.ledger.location import connection, driver
from dpscale.ledger.postgres_schema import (
    CATALOGUE,
    FIRST_VERSION,
    PATH,
    SCHEMA,
    expected,
    table_statements,
    trigger_statements,
    upgrade_statements,
)
from dpscale.ledger.rows import History, history, insert_history, now
from dpscale.ledger.sqlite_schema import APPLICATION_ID, VERSION
from dpscale.ledger.store import FIELD, Again, Database, repeated

TAKES = "a ledger of dpscale on a PostgreSQL server that keeps what is committed"
CONNECTING, SILENT = 10, 60  # seconds for a server to answer, and until it ends the transaction of one who is silent
SETTINGS = {
    "application_name": "dpscale", "connect_timeout": str(CONNECTING), "target_session_attrs": "read-write",
    "keepalives_idle": "30", "keepalives_interval": "10", "keepalives_count": "3",
}  # fmt: skip
BEGIN = f"""BEGIN ISOLATION LEVEL {{}}; SET LOCAL search_path = {PATH}; SET LOCAL synchronous_commit = on;
    SET LOCAL lock_timeout = '{{:.0f}}ms'; SET LOCAL statement_timeout = 0;
    SET LOCAL idle_in_transaction_session_timeout = '{SILENT}s'"""
ALONE = "LOCK TABLE numbers IN EXCLUSIVE MODE"
OVERTAKEN = ("40001", "40P01")  # another transaction came between, or waited for this one
NO_RIGHTS = "cannot be used by this user"
GRANT = f"grant USAGE on schema {SCHEMA} and SELECT, INSERT, UPDATE on its tables"
# SQLSTATE, or its class: (error, what happened, remedy)
MEANINGS: dict[str, tuple[type[DpscaleError], str, str]] = {
    "55P03": (TransientError, "is locked by another process", "try again when that one is done"),
    "57014": (TransientError, "was stopped by its server", "try again"),
    "53": (TransientError, "is on a server that is full", "free some space or connections and try again"),
    "58": (TransientError, "met a disk error", "check the server's disk and try again"),
    "XX": (BudgetError, "is damaged", "restore it from a copy; do not start a new one"),
    "25006": (BudgetError, "cannot be written", "name the server that takes writes, no standby"),
    "42501": (BudgetError, NO_RIGHTS, GRANT),
    "42P01": (BudgetError, NO_RIGHTS, GRANT),  # a schema that may not be used is not looked into
    "23": (BudgetError, "refuses a change of its history", "it is append-only; charge anew"),
    "P0001": (BudgetError, "refuses a change of its history", "it is append-only; charge anew"),
}
OTHERWISE = (BudgetError, "cannot be used", "check the server and its log")


def unusable(address: str, got: str, remedy: str, kind: type[DpscaleError] = BudgetError) -> DpscaleError:
    """The sentence for a ledger on a server that cannot be used."""
    return kind(FIELD, f"{address} {' '.join(got.split())}", TAKES, remedy)


def connect(address: str) -> Any:
    """A connection; JobError for an address that is none, TransientError where the server gives none.

    What libpq says of it is left out: it names the user.
    """
    psycopg = driver()
    try:
        return psycopg.connect(**SETTINGS | connection(address), autocommit=True, prepare_threshold=None)
    except (psycopg.Error, UnicodeError) as error:
        kind, got, remedy = _unconnected(str(error))
        raise unusable(address, got, remedy, kind) from None


NO_ENTRY = ("authentication failed", "no password supplied", "pg_hba.conf", "permission denied", 'role "')


def _unconnected(said: str) -> tuple[type[DpscaleError], str, str]:
    if any(words in said for words in NO_ENTRY):
        return JobError, "does not let this user in", "set PGUSER and PGPASSWORD, or PGPASSFILE, in the environment"
    if 'database "' in said:
        return JobError, "names a database that is not there", "check the name, or create it"
    return TransientError, "cannot be reached, or takes no writes now", "check server and address, and try again"


class Statements:
    """A connection, asked with `?` for values."""

    def __init__(self, db: Any) -> None:
        self._db = db

    def execute(self, query: str, values: Sequence[Any] = (), /) -> Any:
        return self._db.execute(query.replace("?", "%s"), tuple(values)) if values else self._db.execute(query)


class ServerStore:
    """A ledger in a PostgreSQL database: one to a database, in a schema of its own."""

    def __init__(self, address: str, create: bool, timeout: float) -> None:
        self.path, self.timeout = address, timeout
        self.db = connect(address)
        try:
            with self._failures():
                _check_durable(self.db, address)
                there = is_there(self.db)
            if not there:
                _create(address, create)
            with self.transaction(writes=False) as db:
                version = check_identity(db, address)
            if version < VERSION:
                repeated(self._upgrade, timeout)
        except BaseException:
            self.db.close()
            raise

    @contextmanager
    def transaction(self, writes: bool) -> Iterator[Database]:
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
        """Bring a sound ledger of the first version to this one, unless another process did meanwhile."""
        with self.transaction(writes=True) as db:
            if (version := check_identity(db, str(self.path))) < VERSION:
                _check_owner(db, str(self.path), version)
                for statement in upgrade_statements():
                    db.execute(statement)
                append_older(db, history(db).tables)
                for statement in trigger_statements(before=FIRST_VERSION):
                    db.execute(statement)
                db.execute("INSERT INTO schema_version (version, created_at) VALUES (?, ?)", (VERSION, now()))

    def findings(self, db: Database) -> list[str]:
        """Nothing more than the tables tell; BudgetError where the schema is not a ledger's."""
        check_identity(db, str(self.path))
        return []

    def numbered(self, db: Database) -> dict[str, int]:
        return dict(db.execute("SELECT name, seq FROM numbers").fetchall())

    def close(self) -> None:
        self.db.close()

    def _connect_again(self) -> None:
        """Connect where the connection was lost; Again as long as the server is away."""
        if self.db.closed:
            try:
                self.db = connect(str(self.path))
            except TransientError as error:
                raise Again(error.field, error.got, error.takes, error.remedy) from None

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Turn the server's errors into the sentences that users meet."""
        try:
            yield
        except driver().Error as error:
            raise _meaning(str(self.path), error, self.db.closed) from error


def _meaning(address: str, error: Any, lost: bool) -> DpscaleError:
    if lost:
        return unusable(address, "was lost, and what was asked for may be kept or not",
                        "run the same command again: it asks for the same once more", Again)  # fmt: skip
    state = error.sqlstate or ""
    if state in OVERTAKEN:
        return unusable(address, "is busy", "try again", Again)
    kind, got, remedy = MEANINGS.get(state) or MEANINGS.get(state[:2]) or OTHERWISE
    return unusable(address, f"{got} ({error.diag.message_primary or type(error).__name__})", remedy, kind)


def _commit(db: Any, address: str) -> None:
    """COMMIT of a transaction that failed is answered by ROLLBACK, which is no error to the driver."""
    if db.execute("COMMIT").statusmessage != "COMMIT":
        raise unusable(address, "did not commit", "try again", TransientError)


def _roll_back(db: Any) -> None:
    """End the transaction, or the connection with it."""
    try:
        if not db.closed:
            db.execute("ROLLBACK")
    except Exception:
        db.close()


def is_there(db: Any) -> bool:
    """Whether the database has a ledger, whole or not."""
    query = "SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = %s)"
    return bool(db.execute(query, (SCHEMA,)).fetchone()[0])


def _check_durable(db: Any, address: str) -> None:
    """BudgetError for a server that would lose what it says it keeps."""
    if db.execute("SHOW fsync").fetchone()[0] != "on":
        raise unusable(address, "is on a server with fsync off, which a power cut makes forget charges", "turn it on")


def check_identity(db: Database, address: str) -> int:
    """The version of the ledger; BudgetError unless it is a known one, and the schema has all its triggers."""
    version = db.execute("SELECT max(version) FROM schema_version").fetchone()[0]
    if version not in range(FIRST_VERSION, VERSION + 1):
        raise unusable(address, f"has schema version {version}, known is {VERSION}", "update dpscale")
    if set(db.execute(CATALOGUE).fetchall()) != expected(version):
        raise unusable(address, "has another schema than a ledger", "restore it from a copy")
    return int(version)


def _check_owner(db: Database, address: str, version: int) -> None:
    """BudgetError for a user who cannot change the tables."""
    query = f"""SELECT bool_and(pg_has_role(relowner, 'USAGE')) FROM pg_class
        WHERE relnamespace = '{SCHEMA}'::regnamespace AND relkind = 'r'"""
    if not db.execute(query).fetchone()[0]:
        raise unusable(address, f"has schema version {version}, which only the owner of its tables can upgrade",
                       "let that user open it once, as with `dpscale ledger show`")  # fmt: skip


def _create(address: str, create: bool) -> None:
    if not create:
        raise unusable(address, "does not exist", "check the name", JobError)
    with suppress(FileExistsError), making(address) as fill:
        fill(History())


@contextmanager
def making(address: str) -> Iterator[Callable[[History], None]]:
    """A ledger that begins with the history that it is given, and is there at the end; FileExistsError for another.

    After an exception there is none. Who makes one waits for another who does.
    """
    psycopg = driver()
    with closing(connect(address)) as db:
        try:
            _check_durable(db, address)
            db.execute(BEGIN.format("READ COMMITTED", 1000 * CONNECTING))
            db.execute("SELECT pg_catalog.pg_advisory_xact_lock(%s)", (APPLICATION_ID,))
            if is_there(db):
                raise FileExistsError(address)
            yield lambda history: _write(Statements(db), history)
            _commit(db, address)
        except psycopg.Error as error:
            raise _meaning(address, error, db.closed) from error


def _write(db: Statements, history: History) -> None:
    """Tables, rows, then the triggers, which would refuse rows that moved forward already."""
    for statement in table_statements():
        db.execute(statement)
    insert_history(db, history)
    for statement in trigger_statements():
        db.execute(statement)
