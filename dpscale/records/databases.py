"""Rows of tables and queries in databases, read as Arrow record batches in ranges.

A table of PostgreSQL is divided by its pages (`ctid`), one of DuckDB or SQLite by its row numbers, and the rows of a
query or view by ranges of a whole number, if the address names its column. The first and the last range are open, so
that all ranges together have every row.

The content of some rows is the sum of 128-bit hashes of their values, which the database computes: it depends neither
on the order of the rows nor on their places. A reading is one read-only transaction. It first compares the sum of
hashes of the rows of its range and their places, which is fast, with that at the first reading, because equal noise on
different counts would reveal their difference. Rows come in the order of their places, or of their values if they have
none.

Texts of errors of a driver may contain values or passwords. They are never shown.

*Snowflake and BigQuery.*
They are read through the drivers of ADBC. The classes are tested with the driver of PostgreSQL; they have not been
tried on the warehouses.
"""

from __future__ import annotations

import hashlib
import re
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from dpscale.base.arrow import pa, pc
from dpscale.base.errors import DataError, JobError
from dpscale.storage.databases import FIELD, DatabaseAddress

COUNTED, GROUPED = "dpscale_count", "dpscale_grouping"
MOST_GROUPED, MOST_TOGETHER = 30, 64  # columns and sets of a statement; PostgreSQL numbers sets of at most 31 columns
# rows of a range; pages of a range of PostgreSQL, and bytes of its page; assumed bytes of a row
RANGE_ROWS, RANGE_PAGES, PAGE_BYTES, ROW_BYTES = 1 << 19, 1 << 12, 1 << 13, 64
MOST_RANGES = 10_000  # most ranges of whole numbers, of a query or a table without pages
MOST_GROUPS = 1 << 17  # of a batch
FIRST, LAST = -(1 << 63), (1 << 63) - 1  # ends of open ranges
WORD = 1 << 64  # modulus of the sums of half hashes
CHANGED = ("rows that changed while they were read", "the same rows at every reading",
           "wait for the end of changes, or read a copy; a query must return the same rows each time")  # fmt: skip
Range = tuple[int, ...]


@dataclass(frozen=True)
class RangeContent:
    """Content of the rows of a range.

    Attributes
    ----------
    rows : int
    words : tuple of int
        Sums of the halves of the rows' hashes.
    places : int
        Sum of hashes of the rows with their places.
    """

    rows: int = field(repr=False)
    words: tuple[int, int] = field(repr=False)
    places: int = field(repr=False)


class Connection(ABC):
    """Open read-only transaction on the rows of an address.

    Attributes
    ----------
    rows : str
        The table or query in the clause FROM.
    place : str
        Expression of the place of a row; empty for a query or view.
    binary : str
        Collation by which texts are equal only if their bytes are.
    """

    rows: str
    place: str
    binary = 'COLLATE "C"'

    def __init__(self, address: DatabaseAddress) -> None:
        self.address = address
        self.rows = self.quoted(address.table) if address.table else f"({address.query.rstrip().rstrip(';')}\n) AS t"

    def quoted_name(self, name: str) -> str:
        """Return a name in SQL."""
        return quoted_name(name)

    def quoted(self, table: str) -> str:
        """Return the name of a table in SQL, with its schema if it is stated."""
        return ".".join(map(self.quoted_name, names_of(table)))

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """Names and types of the columns as they are read; `unread_kind` of those that cannot be read."""

    @abstractmethod
    def ask(self, sql: str) -> tuple[Any, ...]:
        """Return the first row of a query."""

    @abstractmethod
    def content(self, part: Range) -> RangeContent:
        """Return the content of a range."""

    @abstractmethod
    def has_content(self, part: Range, content: RangeContent) -> bool:
        """Return whether the rows of a range and their places are those of a content."""

    @abstractmethod
    def read(self, columns: Sequence[str], part: Range, rows: int) -> Iterator[pa.RecordBatch]:
        """Yield the columns of a range in batches, at least one column; `rows` is their desired length."""

    def groups(self, sets: Sequence[tuple[str, ...]], part: Range) -> Iterator[tuple[tuple[str, ...], pa.RecordBatch]]:
        """Yield the groups of a range by each set of columns, with the number of rows in the column COUNTED."""
        for names in sets:
            shown = ", ".join([*map(quoted_name, names), f"count(*) AS {COUNTED}"])
            grouped = f" GROUP BY {', '.join(map(quoted_name, names))}" if names else ""
            for batch in self.answer(f"SELECT {shown} FROM {self.compared(names, part)}{grouped}", [*names, COUNTED]):
                yield names, batch

    def compared(self, names: Sequence[str], part: Range) -> str:
        """Return columns of a range, in which texts are equal only if their bytes are."""
        shown = [f"{self.by_bytes(name)} AS {quoted_name(name)}" for name in names] or ["1"]
        return f"(SELECT {', '.join(shown)} FROM {self.rows}{self.condition(part)}) AS compared"

    def by_bytes(self, name: str) -> str:
        """Return the expression of a column whose texts are equal only if their bytes are."""
        binary = f" {self.binary}" if pa.types.is_string(self.schema.field(name).type) else ""
        return quoted_name(name) + binary

    @abstractmethod
    def answer(self, sql: str, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a query with columns of some names, in batches."""

    def checked(
        self, columns: Sequence[str], part: Range, rows: int, expected: RangeContent | None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the columns of a range. Raises DataError, at the latest at the end, if its content is another one."""
        if expected is not None and not self.has_content(part, expected):
            raise DataError(FIELD, *CHANGED)
        yield from self.read(columns, part, rows)

    @abstractmethod
    def close(self) -> None:
        """End the transaction and close the connection."""

    def condition(self, part: Range) -> str:
        """Return the clause WHERE of a range.

        FIRST and LAST stand for an open end. The first range also has the rows whose number is null.
        """
        if not part:
            return ""
        low, end = part
        name = self.range_name
        bounds = [f"{name} >= {self.bound(low)}"] * (low != FIRST) + [f"{name} < {self.bound(end)}"] * (end != LAST)
        text = " AND ".join(bounds) or "TRUE"
        return f" WHERE ({text} OR {name} IS NULL)" if low == FIRST and not self.place else f" WHERE {text}"

    @property
    def range_name(self) -> str:
        """Expression whose ranges are read: the place, or the column that the address names; empty without both."""
        return self.place or (self.quoted_name(self.address.partition_by) if self.address.partition_by else "")

    def bound(self, value: int) -> str:
        """Return the end of a range in SQL."""
        return str(value)

    def ranges(self) -> list[tuple[Range, int]]:
        """Return the ranges with their approximate numbers of bytes; the empty range is that of all rows.

        A range has about RANGE_ROWS rows if their numbers are spread evenly; there are at most MOST_RANGES ranges.
        """
        if not (name := self.range_name):
            return [((), RANGE_ROWS * ROW_BYTES)]
        if not self.place and not pa.types.is_integer(self.kind(self.address.partition_by)):
            raise DataError("data.partition_by", f"{self.address.partition_by!r}, which is no column of whole numbers",
                            "a column of whole numbers", "choose another column, or leave it out")  # fmt: skip
        rows, low, high = self.ask(f"SELECT count(*), min({name}), max({name}) FROM {self.rows}")
        number = min(-(-int(rows) // RANGE_ROWS), MOST_RANGES)
        if number < 2 or low is None:
            return [((), int(rows) * ROW_BYTES)]
        width = max(-(-(int(high) + 1 - int(low)) // number), 1)
        return _open_ranges([int(low) + width * k for k in range(1, number)], int(rows) * ROW_BYTES)

    def kind(self, name: str) -> pa.DataType:
        """Return the type of a column. Raises DataError if it is missing."""
        if name not in self.schema.names:
            raise DataError("data.partition_by", f"no column {name!r}", "a column of the rows", "fix it")
        return self.schema.field(name).type


def _open_ranges(ends: Sequence[int], size: int) -> list[tuple[Range, int]]:
    """Return the ranges between some ends, of which the first and the last are open."""
    pairs = list(zip([FIRST, *ends], [*ends, LAST], strict=True))
    return [(pair, size // len(pairs)) for pair in pairs]


def _together(sets: Sequence[tuple[str, ...]]) -> Iterator[list[tuple[str, ...]]]:
    """Yield the sets of each statement.

    A statement has at most MOST_TOGETHER sets and MOST_GROUPED columns.
    """
    statement, columns = list[tuple[str, ...]](), set[str]()
    for names_of_set in sets:
        if statement and (len(statement) == MOST_TOGETHER or len(columns.union(names_of_set)) > MOST_GROUPED):
            yield statement
            statement, columns = [], set()
        statement.append(names_of_set)
        columns.update(names_of_set)
    if statement:
        yield statement


def _grouping(names: Sequence[str], grouped: Sequence[str]) -> int:
    """Return the value of GROUPING of some columns in the rows of a set: a bit for each column that it lacks."""
    return sum(1 << place for place, name in enumerate(reversed(names)) if name not in grouped)


class HashingConnection(Connection):
    """Connection to a database that computes hashes and returns Arrow data.

    Attributes
    ----------
    words : tuple of str
        Expressions of the halves of the hash of a row, whose text is `s`.
    """

    words: tuple[str, str]

    @property
    @abstractmethod
    def row_text(self) -> str:
        """Expression of a text with the values of a row, in which they cannot be confused."""

    @property
    @abstractmethod
    def place_hash(self) -> str:
        """Expression of a hash of a row, with its place if it has one."""

    @property
    def names(self) -> list[str]:
        """Names of the columns in SQL."""
        return [quoted_name(name) for name in self.schema.names]

    def content(self, part: Range) -> RangeContent:
        """Return the content of a range: its number of rows, and sums of hashes of rows and of rows with their places.

        A row is hashed as one text of all its values.
        """
        texts = f"SELECT {self.row_text} AS s FROM {self.rows}{self.condition(part)} OFFSET 0"
        _, *words = self._sums(self.words, f"({texts}) AS texts")
        rows, places = self._sums([self.place_hash], f"{self.rows}{self.condition(part)}")
        return RangeContent(rows, (words[0], words[1]), places)

    def has_content(self, part: Range, content: RangeContent) -> bool:
        counted = self._sums([self.place_hash], f"{self.rows}{self.condition(part)}")
        return counted == [content.rows, content.places]

    def _sums(self, hashes: Sequence[str], rows: str) -> list[int]:
        """Return the number of some rows, and the sums of hashes."""
        sums = ", ".join(f"CAST(sum({expression}) AS VARCHAR)" for expression in hashes)
        number, *sums_of_hashes = self.ask(f"SELECT count(*), {sums} FROM {rows}")
        return [int(number), *(int(total or 0) % WORD for total in sums_of_hashes)]

    def groups(self, sets: Sequence[tuple[str, ...]], part: Range) -> Iterator[tuple[tuple[str, ...], pa.RecordBatch]]:
        """Yield counts of records by the values of sets of columns: (set, batch of values with counts).

        Several sets are one statement with GROUPING SETS, whose number says the set of each row.

        GROUPING sets one bit per column that a row of the result is not grouped by; `known` finds the set by that
        number.
        """
        for together in _together(sets):
            names = list(dict.fromkeys(name for columns in together for name in columns))
            known = {_grouping(names, columns): columns for columns in together}
            listed = ", ".join(map(quoted_name, names))
            number = f"GROUPING({listed})" if names else "0"
            grouped = ", ".join(f"({', '.join(map(quoted_name, columns))})" for columns in together)
            sql = (f"SELECT {listed}{', ' if names else ''}count(*) AS {COUNTED}, {number} AS {GROUPED}"
                   f" FROM {self.compared(names, part)} GROUP BY GROUPING SETS ({grouped})")  # fmt: skip
            for batch in self.answer(sql, [*names, COUNTED, GROUPED]):
                kinds = batch.column(GROUPED)
                for kind in pc.unique(kinds).to_pylist():
                    of_set = batch.filter(pc.equal(kinds, kind))
                    yield known[kind], of_set.select([*known[kind], COUNTED])

    def statement(self, columns: Sequence[str], part: Range) -> str:
        """Return the query for the columns of a range; a scan of a table returns its rows in the order of places."""
        names, order = ", ".join(map(quoted_name, columns)), "" if self.place else f" ORDER BY {self.row_text}"
        return f"SELECT {names} FROM {self.rows}{self.condition(part)}{order}"


COLLATED = ("text", "varchar", "bpchar", "name")  # types of texts with a collation


class PostgresConnection(HashingConnection):
    """Connection to PostgreSQL through the driver of ADBC."""

    words = ("hashtextextended(s, 0)", "hashtextextended(s, 1)")
    settings = ("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY", "SET LOCAL TimeZone = 'UTC'",
                "SET LOCAL DateStyle = 'ISO'", "SET LOCAL IntervalStyle = 'postgres'",
                "SET LOCAL extra_float_digits = 1", "SET LOCAL synchronize_seqscans = off",
                "SET LOCAL bytea_output = 'hex'", "SET LOCAL max_parallel_workers_per_gather = 0")  # fmt: skip
    scans = tuple(f"SET LOCAL enable_{one} = off" for one in ("indexscan", "indexonlyscan", "bitmapscan"))

    def __init__(self, address: DatabaseAddress, uri: str) -> None:
        """Connect, fix the formats of texts, and begin a transaction that sees one state of the database.

        `place` is "ctid" for a table with pages; scans then read the pages in their order. It is empty for queries and
        views.
        """
        super().__init__(address)
        from adbc_driver_postgresql.dbapi import connect

        self.open = connect(uri)
        try:
            self._set(self.settings)
            self.place = "ctid" if address.is_plain_table and self._has_pages() else ""
            self._set(self.scans if self.place else ())
        except BaseException:
            self.close()
            raise

    @property
    def row_text(self) -> str:
        return f"CAST(ROW({', '.join(self.names)}) AS text)"

    @property
    def place_hash(self) -> str:
        row = f"hashtextextended({self.row_text}, 0)"
        return f"hashtidextended(ctid, {row})" if self.place else row

    def _set(self, statements: Sequence[str]) -> None:
        with self.open.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def _has_pages(self) -> bool:
        """Return whether the rows are those of one stored table."""
        condition = "relkind IN ('r', 'm') AND NOT relhassubclass"
        return bool(self.ask(f"SELECT {condition} FROM pg_class WHERE oid = {self._relation}")[0])

    @property
    def _relation(self) -> str:
        name = self.quoted(self.address.table).replace("'", "''")
        return f"CAST(CAST('{name}' AS regclass) AS oid)"

    def bound(self, value: int) -> str:
        return f"CAST('({value},0)' AS tid)" if self.place else str(value)

    def ranges(self) -> list[tuple[Range, int]]:
        """Return ranges of RANGE_PAGES pages with their numbers of bytes; without pages, those of the base class."""
        if not self.place:
            return super().ranges()
        [size] = self.ask(f"SELECT pg_relation_size({self._relation})")
        pages = int(size) // PAGE_BYTES
        return _open_ranges(range(RANGE_PAGES, pages, RANGE_PAGES), int(size))

    def by_bytes(self, name: str) -> str:
        kind = _stated_type(self._columns.field(name))
        if kind == "json":  # has no equality
            return f"CAST({quoted_name(name)} AS text) {self.binary}"
        return quoted_name(name) + f" {self.binary}" * (kind in COLLATED)

    @cached_property
    def _columns(self) -> pa.Schema:
        """Columns as the driver describes them."""
        with self.open.cursor() as cursor:
            cursor.execute(f"SELECT * FROM {self.rows} LIMIT 0")
            return cursor.fetch_record_batch().schema

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([pa.field(column.name, _postgres_kind(column)) for column in self._columns])

    def ask(self, sql: str) -> tuple[Any, ...]:
        with self.open.cursor() as cursor:
            cursor.execute(sql)
            return tuple(cursor.fetchone())

    def read(self, columns: Sequence[str], part: Range, rows: int) -> Iterator[pa.RecordBatch]:
        yield from gathered(self.answer(self.statement(columns, part), columns), rows)

    def answer(self, sql: str, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        with self.open.cursor() as cursor:
            cursor.execute(sql)
            yield from cursor.fetch_record_batch()

    def close(self) -> None:
        self.open.close()


def _postgres_kind(column: pa.Field) -> pa.DataType:
    """Return the type in which a column of the driver is read.

    PostgreSQL stores the digits of a numeric in the upper half of a modifier and its scale in the lower one, plus 4; -1
    means that neither is stated.
    """
    stated, name = _metadata(column), _stated_type(column)
    if name == "numeric":
        modifier = int(stated.get("POSTGRESQL:typmod", -1)) - 4
        digits, scale = modifier >> 16 & 0xFFFF, modifier & 0x7FF
        # Arrow has at most 38 digits; without a modifier 9 of them are after the point
        return pa.decimal128(digits, scale) if modifier >= 0 and scale <= digits <= 38 else pa.decimal128(38, 9)
    kind = column.type.storage_type if isinstance(column.type, pa.BaseExtensionType) else column.type
    if name == "uuid":
        return pa.string()
    unread = name == "money" or (kind != column.type and not pa.types.is_string(kind))
    return unread_kind() if unread else kind


def _metadata(column: pa.Field) -> dict[str, str]:
    return {key.decode(): value.decode() for key, value in (column.metadata or {}).items()}


def _stated_type(column: pa.Field) -> str:
    """Return the name of the type in the database."""
    stated = _metadata(column)
    return stated.get("ADBC:postgresql:typname") or stated.get("POSTGRESQL:type", "")


def unread_kind() -> pa.DataType:
    """Return the type of columns that cannot be read, which no attribute accepts."""
    return pa.month_day_nano_interval()


class DuckConnection(HashingConnection):
    """Connection to a file of DuckDB through its package."""

    words = ("CAST('0x' || substr(md5(s), 1, 16) AS UBIGINT)", "CAST('0x' || substr(md5(s), 17, 16) AS UBIGINT)")

    def __init__(self, address: DatabaseAddress, path: str) -> None:
        """Open the file read-only, and begin a transaction that sees one state of it; `place` is "rowid" for tables."""
        super().__init__(address)
        import duckdb

        self.open = duckdb.connect(path, read_only=True, config={"threads": 1})
        try:
            self.open.execute("SET TimeZone = 'UTC'")
            self.open.execute("BEGIN")
            self.place = "rowid" if address.is_plain_table and self._is_table() else ""
        except BaseException:
            self.close()
            raise

    def _is_table(self) -> bool:
        """Return whether the source is a table with row numbers, and no view or table with such a column."""
        try:
            self.open.execute(f"SELECT rowid FROM {self.rows} LIMIT 0").fetchall()
        except Exception as error:
            if type(error).__name__ != "BinderException":
                raise
            # the error has ended the transaction
            self.open.execute("ROLLBACK")
            self.open.execute("BEGIN")
            return False
        return "rowid" not in self.schema.names

    @property
    def row_text(self) -> str:
        texts = [f"CAST({name} AS VARCHAR)" for name in self.names]
        return " || ".join(f"coalesce(length({text}) || ':' || {text}, '-')" for text in texts)

    @property
    def place_hash(self) -> str:
        return f"hash({', '.join([*self.names, *([self.place] if self.place else [])])})"

    @cached_property
    def schema(self) -> pa.Schema:
        schema = self._arrow(f"SELECT * FROM {self.rows} LIMIT 0", 1).schema
        kinds = [kind.value_type if pa.types.is_dictionary(kind) else kind for kind in schema.types]
        return pa.schema(list(map(pa.field, schema.names, kinds)))

    def by_bytes(self, name: str) -> str:
        """Return the expression of a column; enumerations, UUIDs and JSON are texts, which have no collation."""
        text = pa.types.is_string(self.schema.field(name).type)
        return f"CAST({quoted_name(name)} AS VARCHAR) {self.binary}" if text else quoted_name(name)

    def _arrow(self, sql: str, rows: int) -> pa.RecordBatchReader:
        relation = self.open.sql(sql)
        return (getattr(relation, "to_arrow_reader", None) or relation.fetch_arrow_reader)(rows)

    def ask(self, sql: str) -> tuple[Any, ...]:
        [row] = self.open.execute(sql).fetchall()
        return tuple(row)

    def read(self, columns: Sequence[str], part: Range, rows: int) -> Iterator[pa.RecordBatch]:
        yield from gathered(self._arrow(self.statement(columns, part), rows), rows)

    def answer(self, sql: str, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        yield from self._arrow(sql, MOST_GROUPS)

    def close(self) -> None:
        self.open.close()


class SqliteConnection(Connection):
    """Connection to a file of SQLite. Hashes are computed here, because SQLite has none."""

    binary = "COLLATE BINARY"

    def __init__(self, address: DatabaseAddress, path: str) -> None:
        """Open the file read-only, and begin a transaction that sees one state of it; `place` is "rowid" for tables."""
        super().__init__(address)
        self.open = sqlite3.connect(f"file:{_escaped(path)}?mode=ro", uri=True, isolation_level=None)
        self.open.text_factory = bytes
        try:
            self.open.execute("BEGIN")
            self.place = "rowid" if address.is_plain_table and self._is_table() else ""
        except BaseException:
            self.close()
            raise

    def _is_table(self) -> bool:
        """Return whether the source is a table with row numbers, and no view or table with such a column."""
        self.open.execute(f"SELECT 1 FROM {self.rows} LIMIT 0")
        try:
            self.open.execute(f"SELECT rowid FROM {self.rows} LIMIT 0")
        except sqlite3.OperationalError:
            return False
        name = names_of(self.address.table)[-1].replace("'", "''")
        [number] = self.ask(
            f"SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = '{name}' COLLATE NOCASE"
        )
        return bool(number) and "rowid" not in [column.lower() for column in self._declared]

    @cached_property
    def _declared(self) -> dict[str, str]:
        """Declared types of the columns; empty for expressions."""
        self.open.execute(f"CREATE TEMP VIEW IF NOT EXISTS dpscale_rows AS SELECT * FROM {self.rows}")
        columns = self.open.execute("PRAGMA table_info(dpscale_rows)").fetchall()
        return {name.decode(): kind.decode().upper() for _, name, kind, *_ in columns}

    @cached_property
    def schema(self) -> pa.Schema:
        return pa.schema([pa.field(name, _sqlite_kind(kind) or self._kind_of_values(name))
                          for name, kind in self._declared.items()])  # fmt: skip

    def _kind_of_values(self, name: str) -> pa.DataType:
        """Return the type of a column without a declared one, which that of its values decides."""
        column = quoted_name(name)
        sql = f"SELECT DISTINCT typeof({column}) FROM {self.rows} WHERE {column} IS NOT NULL"
        kinds = {kind.decode() for [kind] in self.open.execute(sql)}
        known = {"integer": pa.int64(), "real": pa.float64(), "text": pa.string()}
        if kinds == {"integer", "real"}:
            return pa.float64()
        if not kinds:
            return pa.null()
        return known.get(kinds.pop(), unread_kind()) if len(kinds) == 1 else unread_kind()

    def ask(self, sql: str) -> tuple[Any, ...]:
        return tuple(self.open.execute(sql).fetchone())

    def content(self, part: Range) -> RangeContent:
        """Return the number of rows of a range and sums of their hashes, which do not depend on the order of the rows.

        A further sum is weighted by the places of the rows, so it changes if rows trade places.
        """
        names = ", ".join(map(quoted_name, self.schema.names))
        rows = first = second = places = 0
        for place, *values in self.open.execute(
            f"SELECT {self.place or 0}, {names} FROM {self.rows}{self.condition(part)}"
        ):
            high, low = divmod(row_hash(values), WORD)
            rows, first, second, places = rows + 1, first + high, second + low, places + low * (2 * place + 1)
        return RangeContent(rows, (first % WORD, second % WORD), places % WORD)

    def has_content(self, part: Range, content: RangeContent) -> bool:
        return self.content(part) == content

    def read(self, columns: Sequence[str], part: Range, rows: int) -> Iterator[pa.RecordBatch]:
        """Yield the columns of a range in batches of `rows` rows, ordered by place, or else by all values."""
        order = self.place or ", ".join(f"quote({quoted_name(name)})" for name in self.schema.names)
        names = ", ".join(map(quoted_name, columns))
        sql = f"SELECT {names} FROM {self.rows}{self.condition(part)} ORDER BY {order}"
        yield from self.answer(sql, columns, rows)

    def answer(self, sql: str, names: Sequence[str], rows: int = MOST_GROUPS) -> Iterator[pa.RecordBatch]:
        """Yield the result of a query in batches; `names` are its columns, of which COUNTED is an integer."""
        kinds = [pa.int64() if name == COUNTED else self.schema.field(name).type for name in names]
        cursor = self.open.execute(sql)
        while batch := cursor.fetchmany(rows):
            arrays = [_sqlite_array(*column) for column in zip(names, kinds, zip(*batch, strict=True), strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, list(names))

    def close(self) -> None:
        self.open.close()


def row_hash(row: Sequence[object]) -> int:
    """Return a hash of 128 bits of the values of a row."""
    return int.from_bytes(hashlib.blake2b(repr(row).encode(), digest_size=16).digest(), "big")


def _escaped(path: str) -> str:
    return path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")


def _sqlite_kind(declared: str) -> pa.DataType | None:
    """Return the type of a column by the words in its declared type; None if it has none."""
    words = {"INT": pa.int64(), "BOOL": pa.bool_(), "CHAR": pa.string(), "CLOB": pa.string(), "TEXT": pa.string(),
             "DATE": pa.string(), "TIME": pa.string(), "REAL": pa.float64(), "FLOA": pa.float64(),
             "DOUB": pa.float64(), "NUM": pa.float64(), "DEC": pa.float64(), "BLOB": pa.binary(),
             "BINARY": pa.binary()}  # fmt: skip
    return next((kind for word, kind in words.items() if word in declared), None)


def _sqlite_array(name: str, kind: pa.DataType, values: Sequence[object]) -> pa.Array:
    """Return values as an array. Raises DataError for values of another type than that of the column."""
    try:
        if pa.types.is_string(kind):
            return pa.array(values, pa.binary()).cast(kind)
        if pa.types.is_boolean(kind):
            numbers = _integers(values)
            return pa.array([None if n is None else {0: False, 1: True}[n] for n in numbers.to_pylist()], kind)
        return _integers(values) if pa.types.is_integer(kind) else pa.array(values, kind)
    except (pa.ArrowException, KeyError, TypeError, UnicodeError):
        pass
    raise DataError(f"data column {name!r}", f"values that are not of its type {kind}", "values of one type",
                    "convert the column, or CAST it in a query")  # fmt: skip


def _integers(values: Sequence[object]) -> pa.Array:
    """Return integers as an array. Raises TypeError for other values, of which Arrow cuts off the fraction."""
    numbers = pa.array(values)
    if numbers.type not in (pa.int64(), pa.null()):
        raise TypeError(str(numbers.type))
    return numbers.cast(pa.int64())


def gathered(reader: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of small batches in batches of about `rows` rows."""
    waiting: list[pa.RecordBatch] = []
    for batch in reader:
        waiting.append(batch)
        if sum(map(len, waiting)) >= rows:
            yield from pa.Table.from_batches(waiting).combine_chunks().to_batches()
            waiting = []
    if waiting:
        yield from pa.Table.from_batches(waiting).combine_chunks().to_batches()


def names_of(table: str) -> list[str]:
    """Return the parts of the name of a table, of which each may be quoted."""
    parts = re.findall(r'"((?:[^"]|"")*)"|([^.]+)', table.strip())
    return [(inside.replace('""', '"') or plain).strip() for inside, plain in parts]


def quoted_name(name: str) -> str:
    """Return a name in SQL."""
    return '"' + name.replace('"', '""') + '"'


class WarehouseConnection(Connection):
    """Connection to a warehouse through its ADBC driver.

    Hashes are computed here. A reading is one statement: it has all columns in the order of their values, and its
    content and order are compared at its end, before counts of it are used.
    """

    place = ""

    def __init__(self, address: DatabaseAddress, uri: str) -> None:
        super().__init__(address)
        self.open = self.connect(uri)

    @abstractmethod
    def connect(self, uri: str) -> Any:
        """Return an open connection of the driver."""

    @cached_property
    def schema(self) -> pa.Schema:
        with self.open.cursor() as cursor:
            cursor.execute(f"SELECT * FROM {self.rows} LIMIT 0")
            return cursor.fetch_record_batch().schema

    def ask(self, sql: str) -> tuple[Any, ...]:
        with self.open.cursor() as cursor:
            cursor.execute(sql)
            return tuple(cursor.fetchone())

    def answer(self, sql: str, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        with self.open.cursor() as cursor:
            cursor.execute(sql)
            yield from cursor.fetch_record_batch()

    def groups(self, sets: Sequence[tuple[str, ...]], part: Range) -> Iterator[tuple[tuple[str, ...], pa.RecordBatch]]:
        raise JobError("engine.count_in_database", "true, and a warehouse, whose statements have no common transaction",
                       "PostgreSQL, DuckDB or SQLite", "leave it out")  # fmt: skip

    def content(self, part: Range) -> RangeContent:
        """Return the content of a range, from hashes of all its rows that are computed here."""
        sums = RowSums()
        for batch in self.read(self.schema.names, part, MOST_GROUPS):
            sums.add(batch)
        return sums.content

    def has_content(self, part: Range, content: RangeContent) -> bool:
        return self.content(part) == content

    def read(self, columns: Sequence[str], part: Range, rows: int) -> Iterator[pa.RecordBatch]:
        names, order = (", ".join(map(self.quoted_name, listed)) for listed in (columns, self.schema.names))
        sql = f"SELECT {names} FROM {self.rows}{self.condition(part)} ORDER BY {order}"
        yield from gathered(self.answer(sql, columns), rows)

    def checked(
        self, columns: Sequence[str], part: Range, rows: int, expected: RangeContent | None
    ) -> Iterator[pa.RecordBatch]:
        """Yield batches of columns; after the last, refuse rows whose sums of hashes are not the expected ones."""
        sums = RowSums()
        for batch in self.read(self.schema.names, part, rows):
            sums.add(batch)
            yield batch.select(list(columns))
        if expected is not None and sums.content != expected:
            raise DataError(FIELD, *CHANGED)

    def close(self) -> None:
        self.open.close()


class RowSums:
    """Sums of the hashes of rows, in any order, and a sum with their places.

    Texts that a collation compares as equal may come in another order at each reading, and the rows that a bound
    leaves out are known by their places.
    """

    def __init__(self) -> None:
        self.content = RangeContent(0, (0, 0), 0)

    def add(self, batch: pa.RecordBatch) -> None:
        """Add the rows of a batch.

        The hash of a row has two 64-bit words. Their sums do not depend on the order of rows; the sum of the second
        word times an odd number of the place does.
        """
        hashes = [divmod(row_hash(row), WORD) for row in zip(*batch.to_pydict().values(), strict=True)]
        first, second = (sum(words) % WORD for words in zip((0, 0), *hashes, strict=True))
        known = self.content
        places = sum(low * (2 * place + 1) for place, (_, low) in enumerate(hashes, known.rows))
        words = (known.words[0] + first) % WORD, (known.words[1] + second) % WORD
        self.content = RangeContent(known.rows + len(batch), words, (known.places + places) % WORD)


class SnowflakeConnection(WarehouseConnection):
    """Connection to Snowflake, whose address is that of its driver: USER:PASSWORD@ACCOUNT/DATABASE/SCHEMA."""

    def connect(self, uri: str) -> Any:
        from adbc_driver_snowflake.dbapi import connect

        return connect(uri.partition("://")[2])


class BigQueryConnection(WarehouseConnection):
    """Connection to a data set of BigQuery, PROJECT/DATASET, with the credentials of the environment."""

    def quoted_name(self, name: str) -> str:
        return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"

    def connect(self, uri: str) -> Any:
        """Connect to the project and data set in the address."""
        from adbc_driver_bigquery.dbapi import connect

        project, _, dataset = uri.partition("://")[2].partition("/")
        return connect(db_kwargs={"adbc.bigquery.sql.project_id": project, "adbc.bigquery.sql.dataset_id": dataset})
