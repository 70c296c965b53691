"""SQLite file of a ledger: creation, opening, upgrading and translation of SQLite errors.

A ledger is created completely in a temporary file in the same folder and then linked to its path. No process ever sees
an empty or partial ledger, so an empty file at that path indicates a lost ledger. Rows of a new file are in its
write-ahead log first, which is not linked: the log is written back explicitly, and the file is read again alone,
checked and compared with the rows, before it is linked and before the source of a copy is closed.
"""

from __future__ import annotations

import errno
import os
import secrets
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import lru_cache
from pathlib import Path

from dpscale.base.errors import BudgetError, DpscaleError, JobError, TransientError
from dpscale.ledger.chain import append_older
from dpscale.ledger.location import check_one_file
from dpscale.ledger.rows import History, history, insert_history, now
from dpscale.ledger.sqlite_schema import (
    APPLICATION_ID,
    STEPS,
    VERSION,
    makes_trigger,
    schema,
    table_statements,
    trigger_statements,
)
from dpscale.ledger.store import FIELD, Database
from dpscale.storage.files import flush

NAMED = 2  # version that introduced the ledger's identifier
LINKED = 5  # version that introduced the hash chain
# SQLite's primary result code -> (error, event, remedy)
MEANINGS: dict[int, tuple[type[DpscaleError], str, str]] = {
    sqlite3.SQLITE_BUSY: (TransientError, "is locked by another process", "try again when that one is done"),
    sqlite3.SQLITE_LOCKED: (TransientError, "is locked by another process", "try again when that one is done"),
    sqlite3.SQLITE_FULL: (TransientError, "is on a full disk", "free some space and try again"),
    sqlite3.SQLITE_IOERR: (TransientError, "met a disk error", "check the disk and try again"),
    sqlite3.SQLITE_READONLY: (BudgetError, "cannot be written", "grant write permission for it and its folder"),
    sqlite3.SQLITE_PERM: (BudgetError, "cannot be written", "grant write permission for it and its folder"),
    sqlite3.SQLITE_CANTOPEN: (BudgetError, "cannot be opened", "give write permission on it and on its folder"),
    sqlite3.SQLITE_NOTADB: (JobError, "is not a SQLite file", "name another file, or restore it from a copy"),
    sqlite3.SQLITE_CORRUPT: (BudgetError, "is damaged", "restore it from a copy; do not start a new one"),
    sqlite3.SQLITE_CONSTRAINT: (BudgetError, "refuses a change of its history", "it is append-only; make a new charge"),
}


def unusable(path: Path, got: str, remedy: str, kind: type[DpscaleError] = BudgetError) -> DpscaleError:
    """Return the error for a ledger file that cannot be used."""
    return kind(FIELD, f"{path} {' '.join(got.split())}", "a ledger of dpscale on a local, writable disk", remedy)


@contextmanager
def failures(path: Path) -> Iterator[None]:
    """Convert SQLite and operating system errors to dpscale errors."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", None) or 0
        kind, got, remedy = MEANINGS.get(code & 0xFF, (BudgetError, "cannot be used", "check the file and its disk"))
        raise unusable(path, f"{got} ({error})", remedy, kind) from error
    except FileExistsError:  # another process created the ledger: the caller decides
        raise
    except OSError as error:
        kind = TransientError if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO) else JobError
        remedy = "free some space and try again" if kind is TransientError else "name a file in a writable local folder"
        raise unusable(path, f"cannot be created or opened ({error.strerror})", remedy, kind) from error


def create_file(path: Path) -> None:
    """Create an empty ledger at `path` atomically; leave one created concurrently by another process unchanged."""
    with suppress(FileExistsError), making(path) as fill:
        fill(History())


@contextmanager
def making(path: Path) -> Iterator[Callable[[History], None]]:
    """Create a ledger whose first rows are the history passed to the yielded function.

    The file is linked to `path` once the context ends without an exception. Raises FileExistsError if `path` exists.
    """
    if os.path.exists(f"{path}-wal"):
        raise unusable(path, "is missing, but its -wal file exists", "restore both, or remove the -wal file")
    with failures(path), _draft(path) as draft:
        yield lambda rows: _write(draft, rows)
        try:
            os.link(draft, path)
        finally:
            flush(path.parent)


@contextmanager
def _draft(path: Path) -> Iterator[Path]:
    """Create a temporary file in the same folder and remove it at the end."""
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}.new")
    try:
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        yield draft
    finally:
        for name in (draft, f"{draft}-wal", f"{draft}-shm"):
            with suppress(FileNotFoundError):
                os.unlink(name)


def _write(path: Path, expected: History) -> None:
    """Write the tables, the rows, then the triggers, which would refuse rows that are already committed or released.

    Raises TransientError or BudgetError if the file does not contain the rows then.
    """
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("BEGIN IMMEDIATE")
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        for statement in table_statements():
            db.execute(statement)
        insert_history(db, expected)
        for statement in trigger_statements():
            db.execute(statement)
        db.execute("COMMIT")
        busy, *_ = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    if busy or os.path.exists(f"{path}-wal"):
        raise unusable(path, "has rows in its write-ahead log alone", "try again", TransientError)
    _check_written(path, expected)


def _check_written(path: Path, expected: History) -> None:
    """Raise BudgetError unless the file alone is a sound database with the rows of a history."""
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True, isolation_level=None)) as db:
        sound = [text for (text,) in db.execute("PRAGMA integrity_check")] == ["ok"]
        written = history(db)
        same = all(list(expected.tables.get(table, ())) == entries for table, entries in written.tables.items())
        if not (sound and same and written.name == expected.name):
            raise unusable(path, "was written and differs from the history", "check the disk, and repeat")


def _add(db: sqlite3.Connection, first: int) -> None:
    """Apply all schema versions from `first` on to an older ledger."""
    for step in range(first, VERSION + 1):
        for statement in STEPS[step]:
            if not makes_trigger(statement):
                db.execute(statement)
        if step == NAMED:
            db.execute("INSERT INTO identity VALUES (?)", (secrets.token_hex(16),))
        if step == LINKED:
            append_older(db, history(db).tables)
        for statement in STEPS[step]:
            if makes_trigger(statement):
                db.execute(statement)
    db.execute("INSERT INTO schema_version VALUES (?, ?)", (VERSION, now()))


def connect(path: Path, create: bool, timeout: float) -> sqlite3.Connection:
    """Open the ledger file, create it if needed, and refuse any file that is not a valid ledger of this version.

    Only SQLite reads the file here: closing any other descriptor on it would drop this process's POSIX locks.
    """
    with failures(path):
        if not os.path.lexists(path):
            if not create:
                raise unusable(path, "does not exist", "check the name", JobError)
            create_file(path)
        check_one_file(path)
        _check_place(path)
        db = sqlite3.connect(f"{path.as_uri()}?mode=rw", timeout=timeout, isolation_level=None, uri=True,
                             check_same_thread=False)  # fmt: skip
        try:
            for pragma in ("synchronous = FULL", "fullfsync = ON", "cell_size_check = ON", "recursive_triggers = ON"):
                db.execute(f"PRAGMA {pragma}")
            db.execute("BEGIN")  # another process may upgrade it concurrently
            version = check_identity(db, path)
            db.execute("COMMIT")
            if version < VERSION:
                _upgrade(db)
        except BaseException:
            db.close()
            raise
        return db


def _upgrade(db: sqlite3.Connection) -> None:
    """Upgrade a valid ledger of an older version, unless another process has already done so."""
    db.execute("BEGIN IMMEDIATE")
    if (version := _version(db)) < VERSION:
        _add(db, version + 1)
    db.execute("COMMIT")


def _version(db: sqlite3.Connection) -> int:
    version = db.execute("SELECT max(version) FROM schema_version").fetchone()[0]
    return version if isinstance(version, int) else 0


def _check_place(path: Path) -> None:
    if path.is_dir():
        raise unusable(path, "is a folder", "use a file in it", JobError)
    if not path.is_file():
        raise unusable(path, "is a device, a pipe or a socket", "use a file", JobError)
    if path.stat().st_size == 0:
        raise unusable(path, "is empty", "restore it from a copy, or use a new file")
    if not (os.access(path, os.R_OK | os.W_OK) and os.access(path.parent, os.W_OK | os.X_OK)):
        raise unusable(path, "cannot be written", "grant write permission for it and its folder")


def check_identity(db: sqlite3.Connection, path: Path) -> int:
    """Check that the file is an intact dpscale ledger of a known version with all its triggers; return its version."""
    if db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise unusable(path, "is a SQLite file of another program", "use another file", JobError)
    if (verdict := db.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
        raise unusable(path, f"is damaged ({verdict})", "restore it from a copy; do not start a new one")
    version = _version(db)
    if version not in STEPS:
        raise unusable(path, f"has schema version {version}; this dpscale supports at most {VERSION}", "update dpscale")
    if schema_of(db) != expected_schema(version):
        raise unusable(path, "has another schema than a ledger", "restore it from a copy")
    if (mode := db.execute("PRAGMA journal_mode").fetchone()[0]) != "wal":
        raise unusable(path, f"has journal mode {mode}, not wal", "restore it from a copy")
    return version


def schema_of(db: sqlite3.Connection) -> set[tuple[str, str, str]]:
    """Return tables, indexes and triggers with their SQL text, without SQLite's internal ones."""
    rows = db.execute("SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite\\_%' ESCAPE '\\'")
    return set(rows.fetchall())


@lru_cache
def expected_schema(version: int = VERSION) -> frozenset[tuple[str, str, str]]:
    """Return the result of `schema_of` for an unmodified ledger."""
    with closing(sqlite3.connect(":memory:")) as db:
        for statement in schema(version):
            db.execute(statement)
        return frozenset(schema_of(db))


class FileStore:
    """Ledger in a SQLite file: the default, for the processes of one machine."""

    def __init__(self, path: Path, create: bool, timeout: float) -> None:
        self.path, self.timeout = path, timeout
        self.db = connect(path, create, timeout)

    @contextmanager
    def transaction(self, writes: bool) -> Iterator[sqlite3.Connection]:
        """Run a transaction; IMMEDIATE takes the write lock before the history is read, so writers are serialised."""
        with failures(self.path):
            if writes:
                check_one_file(self.path)
            self.db.execute(f"BEGIN {'IMMEDIATE' if writes else 'DEFERRED'}")
            try:
                yield self.db
                self.db.execute("COMMIT")
            finally:
                if self.db.in_transaction:
                    self.db.execute("ROLLBACK")

    def findings(self, db: Database) -> list[str]:
        """Return the faults of the file. Raises BudgetError if its schema is not that of a ledger."""
        check_identity(self.db, self.path)
        (verdict,) = db.execute("PRAGMA integrity_check(1)").fetchone()
        return [] if verdict == "ok" else [verdict]

    def numbered(self, db: Database) -> dict[str, int]:
        return dict(db.execute("SELECT name, seq FROM sqlite_sequence").fetchall())

    def close(self) -> None:
        self.db.close()
