"""Arrow IPC files (Feather version 2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dpscale.base.arrow import pa
from dpscale.records.files import Dialect, OpenFile, RecordFormat, batch_rows, mapped
from dpscale.storage.objects import is_url

if TYPE_CHECKING:
    from dpscale.domain import Domain


class OpenArrow(OpenFile):
    """Arrow file; its footer is read once."""

    def __init__(self, path: str) -> None:
        """Read the schema and the number of record batches from the footer."""
        self.path = path
        with self._reader() as reader:
            self.schema, self._count = reader.schema, reader.num_record_batches
        self.names = list(self.schema.names)

    def kind(self, name: str) -> pa.DataType:
        """Return the type of a column."""
        return self.schema.field(name).type

    def groups(self) -> list[int]:
        """Return the number of rows of each record batch."""
        with self._reader(self.names[:1]) as reader:
            return [reader.get_batch(number).num_rows for number in range(self._count)]

    def batches(
        self, columns: Sequence[str], row_groups: Sequence[int] = (), ids: str = "", domain: Domain | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the columns of the given record batches (default: all)."""
        with self._reader(columns) as reader:
            for number in row_groups or range(self._count):
                batch, rows = reader.get_batch(number).select(list(columns)), batch_rows(len(columns))
                for start in range(0, len(batch), rows):
                    yield batch.slice(start, rows)

    @contextmanager
    def _reader(self, columns: Sequence[str] = ()) -> Iterator[Any]:
        """Open the file and read only the given columns (default: all)."""
        fields = [self.names.index(name) for name in columns]
        with mapped(self.path) as where, pa.PythonFile(where) if is_url(self.path) else pa.memory_map(where) as file:
            yield pa.ipc.open_file(file, options=pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False))


class ArrowFormat(RecordFormat):
    """Arrow IPC files, read by record batches."""

    name = "arrow"
    title = "Arrow"
    magic = b"ARROW1"
    suffixes = (".arrow", ".feather", ".ipc")
    splittable = True

    def open(self, path: str, dialect: Dialect) -> OpenArrow:
        return OpenArrow(path)


ARROW = ArrowFormat()
