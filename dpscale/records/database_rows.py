"""Rows of a database as a file: columns with types, ranges that are read in parallel, and counts of groups.

A reading compares the content of its range with that at the first reading, in the same transaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dpscale.base.arrow import pa, pc
from dpscale.base.errors import DataError
from dpscale.base.numerics import Integers
from dpscale.records.databases import CHANGED, COUNTED, Range, RangeContent, connected
from dpscale.records.files import Dialect, OpenFile, RecordFormat, batch_rows
from dpscale.storage.databases import FIELD, read_address

if TYPE_CHECKING:
    from dpscale.domain import Domain


class OpenRows(OpenFile):
    """Columns and rows of an address."""

    def __init__(self, path: str) -> None:
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
            if self.expected is not None and not opened.has_content(part, self.expected):
                raise DataError(FIELD, *CHANGED)
            for batch in opened.read(read, part, batch_rows(len(read))):
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
                return pa.array([None if one is None else _uuid(one) for one in stored.to_pylist()], kind)
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
