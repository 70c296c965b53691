"""Rows of a database as a file: columns with types, ranges that are read in parallel, and counts of groups.

A reading compares the content of its range with that at the first reading.

Texts of errors of a driver may contain values or passwords. They are never shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

from dpscale.base.arrow import pa, pc
from dpscale.base.error_redaction import out_of_memory
from dpscale.base.errors import DataError, DpscaleError, Unreadable
from dpscale.base.numerics import Integers
from dpscale.records.databases import (
    CHANGED,
    COUNTED,
    BigQueryConnection,
    Connection,
    DuckConnection,
    PostgresConnection,
    Range,
    RangeContent,
    SnowflakeConnection,
    SqliteConnection,
)
from dpscale.records.files import Dialect, OpenFile, RecordFormat, batch_rows
from dpscale.storage.databases import FIELD, DatabaseAddress, connection_of, read_address

if TYPE_CHECKING:
    from dpscale.domain import Domain


KINDS: dict[str, Any] = {"postgresql": PostgresConnection, "duckdb": DuckConnection, "sqlite": SqliteConnection,
                         "snowflake": SnowflakeConnection, "bigquery": BigQueryConnection}  # fmt: skip
FAULTS: tuple[tuple[tuple[str, ...], str, str, str], ...] = (
    (("password authentication", "no password", "no pg_hba.conf entry", "authentication failed", "permission denied",
      "state 42501", 'role "', "authentication method"),
     "refuses this user", "a user who may read it",
     'set PGUSER and PGPASSWORD, a service file, or database = "env:NAME"'),
    (("state 42p01", "no such table", "catalog error: table", "state 3f000"), "has no such table", "a table or view",
     "check the name, with its schema if it is not the default one"),
    (("state 42883", "no such function", "catalog error: scalar function"), "has no such function", "functions of this"
     " database", "fix the query"),
    (("state 42703", "no such column", "binder error"), "has no such column", "columns of the tables", "fix the query"),
    (("state 42601", "syntax error", "parser error", "incomplete input"), "is no SELECT statement of this database",
     "one SELECT statement", "fix the query"),
    (("state 25006", "read-only transaction", "only execute one statement", "attached in read-only"), "changes data",
     "one SELECT statement", "read only"),
    (("not a database", "not a valid duckdb", "newer version", "older version"), "is not a file of this database",
     "a file that it can open", "check the path and the version"),
    (("definition of service",), "names an unknown service", "a service of the service file",
     "check PGSERVICEFILE or ~/.pg_service.conf"),
    (("unable to open", "does not exist",), "does not exist", "an existing database", "check the name or path"),
    (("different configuration", "conflicting lock", "could not set lock", "database is locked"),
     "is open for writing elsewhere", "a database that is open for reading only", "close the other connection"),
)  # fmt: skip


class database_faults:  # noqa: N801, a context manager
    """Convert errors of a driver to one sentence without their texts."""

    def __init__(self, address: DatabaseAddress) -> None:
        self.address = address

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raise one sentence in place of an error of the driver, without cause or context.

        Errors of dpscale and interruptions pass unchanged. A lack of memory becomes a MemoryError without text.
        """
        if error is None or not isinstance(error, Exception) or isinstance(error, DpscaleError):
            return
        raised = MemoryError() if out_of_memory(error) else _sentence(self.address, error)
        try:
            raise raised
        finally:
            raised.__cause__ = raised.__context__ = None


def _sentence(address: DatabaseAddress, error: Exception) -> DpscaleError:
    """Return the error of this package for one of a driver: by fragments of its text, never the text itself."""
    if isinstance(error, ImportError):
        package = "duckdb" if "duckdb" in str(error.name) else str(error.name).partition(".")[0].replace("_", "-")
        return DataError(FIELD, f"{address}, which requires the missing package {package}", "an installed driver",
                         "pip install 'dpscale[databases]'")  # fmt: skip
    text = f"state {getattr(error, 'sqlstate', '')} {error}".lower()
    for fragments, got, takes, remedy in FAULTS:
        if any(fragment in text for fragment in fragments):
            return DataError(FIELD, f"{address} {got}", takes, remedy)
    return Unreadable(FIELD, f"{address} cannot be read ({type(error).__name__})", "a database that can be reached",
                      "check the address, the query and the server, and run again")  # fmt: skip


@contextmanager
def connected(address: DatabaseAddress) -> Iterator[Connection]:
    """Open a read-only transaction; errors are one sentence."""
    scheme, place = connection_of(address)
    with database_faults(address), closing(KINDS[scheme](address, place)) as opened:
        yield opened


class OpenRows(OpenFile):
    """Columns and rows of an address."""

    def __init__(self, path: str) -> None:
        """Connect once to read the names and types of the columns."""
        self.address = read_address(path)
        with connected(self.address) as opened:
            self.schema = opened.schema
        self.names = self.schema.names

    def kind(self, name: str) -> pa.DataType:
        return self.schema.field(name).type

    def batches(
        self, columns: Sequence[str], row_groups: Sequence[int] = (), ids: str = "", domain: Domain | None = None
    ) -> Iterator[Any]:
        """Yield the columns of a range. Raises DataError if its content is not the expected one."""
        part, read = tuple(row_groups), list(columns) or list(self.names[:1])
        with connected(self.address) as opened:
            for batch in opened.checked(read, part, batch_rows(len(read)), self.expected):
                yield pa.RecordBatch.from_arrays([self._typed(name, batch.column(name)) for name in read], read)

    def counted(
        self, sets: Sequence[tuple[str, ...]], row_groups: Sequence[int]
    ) -> Iterator[tuple[dict[str, pa.Array], Integers]]:
        """Yield columns and numbers of rows of the groups of a range by each set, as the database counts them.

        Raises DataError if its content is not the expected one.
        """
        part = tuple(row_groups)
        with connected(self.address) as opened:
            if self.expected is not None and not opened.has_content(part, self.expected):
                raise DataError(FIELD, *CHANGED)
            for names, batch in opened.groups(sets, part):
                columns = {name: self._typed(name, batch.column(name)) for name in names}
                yield columns, batch.column(COUNTED).to_numpy()

    def _typed(self, name: str, column: pa.Array) -> pa.Array:
        """Return a column in its type. Raises DataError if a value has none."""
        kind = self.kind(name)
        if column.type == kind:
            return column
        stored = column.storage if isinstance(column, pa.ExtensionArray) else column
        try:
            if pa.types.is_fixed_size_binary(stored.type):
                return pa.array([None if value is None else _uuid(value) for value in stored.to_pylist()], kind)
            return pc.cast(stored, kind)
        except pa.ArrowException:
            pass
        raise DataError(f"data column {name!r}", f"a value that {kind} does not represent", str(kind),
                        "CAST the column in a query")  # fmt: skip


def _uuid(value: bytes) -> str:
    from uuid import UUID

    return str(UUID(bytes=value))


class DatabaseFormat(RecordFormat):
    """Rows of a database: columns with names and types."""

    name, title, suffixes = "database", "database", ()

    def open(self, path: str, dialect: Dialect) -> OpenRows:
        return OpenRows(path)

    def row_bound(self, path: str, dialect: Dialect) -> int:
        """Return the number of rows of all ranges."""
        with connected(read_address(path)) as opened:
            return int(opened.ask(f"SELECT count(*) FROM {opened.rows}")[0])


DATABASE = DatabaseFormat()


def ranges_of(path: str) -> list[tuple[Range, int]]:
    """Return the ranges of the rows of an address, with their approximate numbers of bytes."""
    with connected(read_address(path)) as opened:
        return opened.ranges()


def content_of_range(path: str, part: Range) -> RangeContent:
    """Return the content of a range of the rows of an address."""
    with connected(read_address(path)) as opened:
        return opened.content(part)
