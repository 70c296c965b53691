"""SQLite file of a ledger: creation, opening, upgrading and translation of SQLite errors.

A ledger is created completely in a temporary file in the same folder and then linked to its path. No process ever sees
an empty or partial ledger, so an empty file at that path indicates a lost ledger. Rows of a new file are in its
write-ahead log first, which is not linked: the log is written back explicitly, and the file is read again alone,
checked and compared with the rows, before it is linked and before the source of a copy is closed.

A reader changes nothing. It reads an older ledger from a copy in memory, which is upgraded instead of the file. The
first writing transaction upgrades the file; before that, a copy of the file is closed permanently and linked to a name
of its own. A user who may not write the file or its folder reads the file alone, which is the whole ledger unless it
has a write-ahead log.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import sqlite3
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from functools import lru_cache
from itertools import count, islice
from pathlib import Path
from typing import Any

from dpscale.base.errors import BudgetError, DpscaleError, JobError, TransientError
from dpscale.ledger.chain import append_older
from dpscale.ledger.location import check_one_file
from dpscale.ledger.rows import (
    History,
    history,
    insert_closed,
    insert_history,
    insert_version,
    moved_to,
    schema_version,
)
from dpscale.ledger.schema import (
    APPLICATION_ID,
    STEPS,
    VERSION,
    makes_trigger,
    schema,
    table_statements,
    trigger_statements,
)
from dpscale.ledger.store import FIELD, Again, DamageError
from dpscale.storage.files import flush

NAMED = 2  # version that introduced the ledger's identifier
CLOSABLE = 4  # version that introduced closing
LINKED = 5  # version that introduced the hash chain
MOST_ENTRIES = 1000  # entries of a folder among which the source of a damaged ledger is searched
KNOWS = f"this dpscale supports at most {VERSION}"
UNDECODABLE = "Could not decode"  # beginning of the message of Python for text that is not UTF-8
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
        if code & 0xFF == sqlite3.SQLITE_CORRUPT:
            raise damaged(path, str(error)) from error
        if str(error).startswith(UNDECODABLE):  # the message of Python contains the text
            raise damaged(path, "it has text that is not UTF-8") from None
        kind, got, remedy = MEANINGS.get(code & 0xFF, (BudgetError, "cannot be used", "check the file and its disk"))
        raise unusable(path, f"{got} ({error})", remedy, kind) from error
    except UnicodeDecodeError:  # in the message of SQLite about its schema
        raise damaged(path, "it has text that is not UTF-8") from None
    except FileExistsError:  # another process created the ledger: the caller decides
        raise
    except OSError as error:
        kind = TransientError if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO) else JobError
        remedy = "free some space and try again" if kind is TransientError else "name a file in a writable local folder"
        raise unusable(path, f"cannot be created or opened ({error.strerror})", remedy, kind) from error


def damaged(path: Path, what: str) -> DamageError:
    """Return the error for a damaged ledger, which names the closed ledger from which it was copied."""
    remedy = "restore it from a copy; do not start a new one"
    if source := _closed_source(path):
        remedy += f"; or, {remedy_of_copy(*source, path)}"
    got = f"{path} is damaged ({' '.join(what.split())})"
    return DamageError(FIELD, got, "a ledger of dpscale on a local, writable disk", remedy)


def remedy_of_copy(source: object, closed_at: str, target: object) -> str:
    """Return what makes a damaged or missing copy of a closed ledger whole, in words."""
    return (f"if nothing was charged on it since {closed_at[:19]}, when {source} was closed, delete {target}"
            f" and run `dpscale ledger copy {source} {target}` again")  # fmt: skip


def _closed_source(path: Path) -> tuple[Path, str] | None:
    """Return a ledger in the folder that was closed when its history moved to `path`, with the time of that.

    None if there is none among the first entries of the folder. Files that are no ledger are passed over.
    """
    for other in islice(sorted(path.parent.glob("*")), MOST_ENTRIES):
        with suppress(sqlite3.Error, UnicodeDecodeError, OSError, DpscaleError):
            if other != path and other.is_file() and not _has_log(other) and not is_of_upgrade(other, path):
                with closing(_open_without_log(other)) as db:
                    moved, closed_at = db.execute("SELECT moved_to, closed_at FROM closed").fetchone() or ("", "")
                if moved == str(path):
                    return other, closed_at
    return None


def is_of_upgrade(path: object, target: object) -> bool:
    """Return whether a closed ledger is the copy from before an upgrade of `target`, which lacks later charges."""
    return re.fullmatch(rf"{re.escape(str(target))}\.version\d+(-\d+)?", str(path)) is not None


def _open_without_log(path: Path) -> sqlite3.Connection:
    """Open a file for reading without its write-ahead log; nothing is written and no lock is taken."""
    return sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True, isolation_level=None,
                           check_same_thread=False)  # fmt: skip


def _has_log(path: Path) -> bool:
    return os.path.lexists(f"{os.path.realpath(path)}-wal")


def create_file(path: Path) -> None:
    """Create an empty ledger at `path` atomically; leave one created concurrently by another process unchanged."""
    with suppress(FileExistsError), making(path) as fill:
        fill(History())


@contextmanager
def making(path: Path) -> Iterator[Callable[[History], None]]:
    """Create a ledger whose first rows are the history passed to the yielded function.

    The file is linked to `path` once the context ends without an exception. Raises FileExistsError if `path` exists.
    """
    # SQLite could take the log of a lost ledger for that of the new one
    if os.path.exists(f"{path}-wal"):
        raise unusable(path, "is missing, but its -wal file exists", "restore both, or remove the -wal file")
    with failures(path), _temporary_file(path) as draft:
        yield lambda rows: _write(draft, rows)
        try:
            os.link(draft, path)
        finally:
            flush(path.parent)


@contextmanager
def _temporary_file(path: Path) -> Iterator[Path]:
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
    with _only_transaction(path) as db:
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        for statement in table_statements():
            db.execute(statement)
        insert_history(db, expected)
        for statement in trigger_statements():
            db.execute(statement)
    _check_written(path, expected)


@contextmanager
def _only_transaction(path: Path) -> Iterator[sqlite3.Connection]:
    """Yield a connection in the only transaction of a new file, whose write-ahead log is written back at the end."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("BEGIN IMMEDIATE")
        yield db
        db.execute("COMMIT")
        busy, *_ = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    if busy or _has_log(path):
        raise unusable(path, "has rows in its write-ahead log alone", "try again", TransientError)


def _check_written(path: Path, expected: History) -> None:
    """Raise BudgetError unless the file alone is a sound database with the rows of a history."""
    with closing(_open_without_log(path)) as db:
        sound = _is_sound(db)
        written = history(db)
        same = all(list(expected.tables.get(table, ())) == entries for table, entries in written.tables.items())
        if not (sound and same and written.name == expected.name):
            raise unusable(path, "was written and differs from the history", "check the disk, and repeat")


def _is_sound(db: sqlite3.Connection) -> bool:
    return [text for (text,) in db.execute("PRAGMA integrity_check")] == ["ok"]


def _apply_versions(db: sqlite3.Connection, first: int, last: int = VERSION) -> None:
    """Apply all schema versions from `first` to `last` to an older ledger; its version stays as it is recorded.

    The rows that a version needs are written between its tables and its triggers.
    """
    for version in range(first, last + 1):
        for statement in STEPS[version]:
            if not makes_trigger(statement):
                db.execute(statement)
        if version == NAMED:
            db.execute("INSERT INTO identity VALUES (?)", (_first_name(db),))
        if version == LINKED:
            append_older(db, history(db).tables)
        for statement in STEPS[version]:
            if makes_trigger(statement):
                db.execute(statement)


def _first_name(db: sqlite3.Connection) -> str:
    """Return the identifier of a ledger of version 1, which has none: a hash of the time of its creation.

    It is the same for every reader, before and after the upgrade.
    """
    created = db.execute("SELECT created_at FROM schema_version ORDER BY version").fetchone()
    return hashlib.sha256(str(created[0]).encode()).hexdigest()[:32]


def copy_in_memory(db: sqlite3.Connection) -> sqlite3.Connection:
    """Return a copy of an older ledger in memory, in the current schema."""
    copy = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    db.backup(copy)
    _apply_versions(copy, schema_version(copy) + 1)
    return copy


def rows_in_memory(
    rows: History, numbers: Mapping[str, int], version: int, closed: tuple[str, str] | None
) -> sqlite3.Connection:
    """Return a ledger in memory, in the current schema, with the rows of an older one.

    Parameters
    ----------
    rows : History
    numbers : mapping of str to int
        Last row number of every table.
    version : int
        Version of the older ledger.
    closed : (str, str), optional
        Where the history of a closed ledger moved, and the time of its closing.
    """
    db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    for statement in table_statements():
        db.execute(statement)
    insert_history(db, rows, version)
    for table, number in numbers.items():
        db.execute("DELETE FROM sqlite_sequence WHERE name = ?", (table,))
        db.execute("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", (table, number))
    if version < LINKED:
        append_older(db, history(db).tables)
    for statement in trigger_statements():
        db.execute(statement)
    if closed:
        insert_closed(db, *closed)
    return db


def connect(path: Path, timeout: float) -> sqlite3.Connection:
    """Open a ledger file that this user may write, and refuse any file that is not a valid ledger.

    Only SQLite reads the file here: closing any other descriptor on it would drop this process's POSIX locks.
    """
    db = sqlite3.connect(f"{path.as_uri()}?mode=rw", timeout=timeout, isolation_level=None, uri=True,
                         check_same_thread=False)  # fmt: skip
    try:
        for pragma in ("synchronous = FULL", "fullfsync = ON", "cell_size_check = ON", "recursive_triggers = ON"):
            db.execute(f"PRAGMA {pragma}")
        db.execute("BEGIN")  # another process may upgrade it concurrently
        check_identity(db, path)
        (mode,) = db.execute("PRAGMA journal_mode").fetchone()
        if mode != "wal":
            raise unusable(path, f"has journal mode {mode}, not wal", "restore it from a copy")
        db.execute("COMMIT")
    except BaseException:
        db.close()
        raise
    return db


@contextmanager
def _begun(db: sqlite3.Connection, kind: str) -> Iterator[None]:
    """Begin a transaction, which is committed at the end and rolled back after an error."""
    db.execute(f"BEGIN {kind}")
    try:
        yield
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def _upgrade(db: sqlite3.Connection, path: Path) -> None:
    """Upgrade a valid ledger of an older version, unless another process has already done so.

    A copy of the file is closed and linked first, so that no client of the older version can charge the copy. A closed
    ledger stays as it is.
    """
    with _begun(db, "IMMEDIATE"):
        version, copy = schema_version(db), None
        if version < VERSION and not (version >= CLOSABLE and moved_to(db)):
            copy = _closed_copy(path, version)
            _apply_versions(db, version + 1)
            insert_version(db)
    if copy:
        warnings.warn(f"{path} was upgraded from schema version {version} to {VERSION}; {copy} is the ledger as it"
                      " was, closed permanently", UserWarning, stacklevel=2)  # fmt: skip


def _closed_copy(path: Path, version: int) -> Path:
    """Copy a ledger to a new file beside it, in which nothing can be charged any more, and return its path.

    `version` is the schema version of the ledger. It is part of the new name, with a number if an interrupted upgrade
    has left such a file. The copy is written as a temporary file and gets its name when it is complete.
    """
    for number in count(1):
        suffix = f".version{version}" if number == 1 else f".version{version}-{number}"
        copy = path.with_name(path.name + suffix)
        if os.path.lexists(copy):
            continue
        # if another process takes the name before `os.link`, the next number is tried
        with suppress(FileExistsError), _temporary_file(copy) as draft:
            _write_closed(path, version, draft)
            with closing(_open_without_log(draft)) as db:
                if not _is_sound(db):
                    raise unusable(copy, "was written and is damaged", "check the disk, and repeat")
            os.link(draft, copy)
            flush(path.parent)  # the new name is on disk
            return copy
    raise AssertionError("count ends")


def _write_closed(path: Path, version: int, draft: Path) -> None:
    """Write all rows of a ledger to the file `draft`, and the row that closes it there.

    A ledger of a version before CLOSABLE has no table for that row, so its copy is upgraded as far as necessary.
    """
    source = sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True)
    with closing(source), closing(sqlite3.connect(draft)) as copied:
        source.backup(copied)
    with _only_transaction(draft) as db:
        if version < CLOSABLE:
            _apply_versions(db, version + 1, CLOSABLE)
            insert_version(db, CLOSABLE)
        insert_closed(db, str(path))


def _check_place(path: Path) -> None:
    """Raise an error unless a path is a readable file with content."""
    if path.is_dir():
        raise unusable(path, "is a folder", "use a file in it", JobError)
    if not path.is_file():
        raise unusable(path, "is a device, a pipe or a socket", "use a file", JobError)
    if path.stat().st_size == 0:
        raise unusable(path, "is empty", "restore it from a copy, or use a new file")
    if not os.access(path, os.R_OK):
        raise unusable(path, "cannot be read", "grant read permission for it")


def _may_write(path: Path) -> bool:
    return os.access(path, os.R_OK | os.W_OK) and os.access(path.parent, os.W_OK | os.X_OK)


def check_identity(db: sqlite3.Connection, path: Path) -> int:
    """Check that the file is an intact dpscale ledger of a known version with all its triggers; return its version."""
    if db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise unusable(path, "is a SQLite file of another program", "use another file", JobError)
    (verdict,) = db.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise damaged(path, verdict)
    version = schema_version(db)
    if version not in STEPS:
        raise unusable(path, f"has schema version {version}; {KNOWS}", "update dpscale")
    if schema_of(db) != expected_schema(version):
        raise unusable(path, "has another schema than a ledger", "restore it from a copy")
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


def file_findings(db: sqlite3.Connection, path: Path) -> list[str]:
    """Return the faults of a file, or copy, in the current schema. Raises BudgetError if its schema is another one."""
    if schema_of(db) != expected_schema():
        raise unusable(path, "has another schema than a ledger", "restore it from a copy")
    (verdict,) = db.execute("PRAGMA integrity_check(1)").fetchone()
    return [] if verdict == "ok" else [verdict]


def file_numbers(db: sqlite3.Connection) -> dict[str, int]:
    """Return the last row number of every table."""
    return dict(db.execute("SELECT name, seq FROM sqlite_sequence").fetchall())


class FileStore:
    """Ledger in a SQLite file: the default, for the processes of one machine."""

    def __init__(self, path: Path, create: bool, timeout: float) -> None:
        """Open a ledger, or create one if there is none and `create` is true; `timeout` is in seconds.

        `db` is None for a file that this process may only read: each transaction then opens it separately. One such
        transaction is tried here, to refuse an unusable file at once.
        """
        self.path, self.timeout = path, timeout
        with failures(path):
            if not os.path.lexists(path):
                if not create:
                    raise unusable(path, "does not exist", "check the name", JobError)
                create_file(path)
            check_one_file(path)
            _check_place(path)
            self.db = connect(path, timeout) if _may_write(path) else None
        if self.db is None:
            with self.transaction(writes=False):
                pass

    @contextmanager
    def transaction(self, writes: bool) -> Iterator[sqlite3.Connection]:
        """Run a transaction; IMMEDIATE takes the write lock before the history is read, so writers are serialised.

        Reading an older ledger yields a copy in memory; writing upgrades the file first, unless it is closed.
        """
        with failures(self.path), self._connection() as db:
            if writes:
                self.check_writable()
                check_one_file(self.path)
                if schema_version(db) < VERSION:
                    _upgrade(db, self.path)
            # a closed ledger of an older version was not upgraded and is only read
            may_change = writes and schema_version(db) == VERSION
            with _begun(db, "IMMEDIATE" if may_change else "DEFERRED"):
                version = schema_version(db)
                if version > VERSION:
                    raise unusable(self.path, f"has schema version {version}; {KNOWS}", "update dpscale")
                if version == VERSION:
                    yield db
                else:
                    with closing(copy_in_memory(db)) as copy:
                        yield copy

    def check_writable(self) -> None:
        """Raise BudgetError if this user may not write the file or its folder."""
        if self.db is None:
            raise unusable(self.path, "cannot be written", "grant write permission for it and its folder")

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """Yield the open connection; for a file that may not be written, one that reads the file alone.

        Raises TransientError if the file alone is not the whole ledger, because it has a write-ahead log, and Again if
        it changed meanwhile.
        """
        if self.db is not None:
            yield self.db
            return
        before = self._state()
        try:
            with closing(_open_without_log(self.path)) as db:
                check_identity(db, self.path)
                yield db
        finally:
            if self._state() != before:
                raise unusable(self.path, "changed while it was read", "try again", Again)

    def _state(self) -> tuple[int, int, int]:
        """Return inode, size and time of the file, which change with its content.

        Raises TransientError if changes are in a write-ahead log, which is not part of the file.
        """
        if _has_log(self.path):
            got = "has a write-ahead log (-wal), which this user cannot read without write permission"
            remedy = "try again when no job uses it; if none does, `dpscale ledger verify` by its owner removes the log"
            raise unusable(self.path, got, remedy, TransientError)
        state = os.stat(self.path)
        return state.st_ino, state.st_size, state.st_mtime_ns

    def findings(self, db: Any) -> list[str]:
        """Return the faults of the file. Raises BudgetError if its schema is not that of a ledger."""
        return file_findings(db, self.path)

    def numbered(self, db: Any) -> dict[str, int]:
        return file_numbers(db)

    def damaged(self, what: str) -> DamageError:
        """Return the error for a damaged ledger."""
        return damaged(self.path, what)

    def close(self) -> None:
        if self.db is not None:
            self.db.close()
