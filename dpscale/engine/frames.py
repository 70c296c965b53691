"""In-memory and Dask data frames as tables of partitions that stay where they are.

A task on a Dask DataFrame computes the partition that it reads, so nothing is gathered; a persisted partition comes
from the worker that has it. A frame in the memory of this process is divided into pieces of a few megabytes. Threads
read the pieces in place; other processes receive each piece once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeGuard

from dpscale.base.arrow import pa
from dpscale.base.display import type_of_value
from dpscale.base.errors import DataError
from dpscale.domain import Domain
from dpscale.engine.base import Engine
from dpscale.engine.graphs import MOST_SENT
from dpscale.records import Table
from dpscale.records.frames import FIELD, FRAMES, REMEDY, FramePartition, Seen, as_arrow
from dpscale.records.where import EVERYTHING, Where, check_column

if TYPE_CHECKING:
    from dask.dataframe import DataFrame
    from dask.delayed import Delayed

PIECE_ROWS = 1 << 20  # rows of a piece; fewer if they exceed MOST_SENT bytes


@dataclass(frozen=True, eq=False)
class InMemoryPart:
    """A piece in the memory of this process."""

    table: pa.Table = field(repr=False)

    def __call__(self) -> pa.Table:
        return self.table


@dataclass(frozen=True, eq=False)
class SerializedPart:
    """A piece as bytes, which are sent with every task that reads it."""

    content: bytes = field(repr=False)

    def __call__(self) -> pa.Table:
        return _deserialize(self.content)


@dataclass(frozen=True, eq=False)
class DelayedPart:
    """A partition of a Dask DataFrame, or a piece that was sent; `persisted`: parts are in workers' memory."""

    delayed: Delayed = field(repr=False)
    persisted: bool

    def __call__(self) -> object:
        """Return the data of the partition.

        A persisted partition is fetched by a client from the worker that has it; any other one is computed in this
        thread.
        """
        if not self.persisted:
            return self.delayed.compute(scheduler="synchronous")
        from distributed import worker_client

        with worker_client() as client:
            return client.compute(self.delayed, sync=True)


def frame_table(
    frame: object, domain: Domain, columns: Sequence[str], engine: Engine, where: Where = EVERYTHING
) -> Table:
    """Return the columns of a frame as a table.

    The content is read once for its hash; every later reading must have the same hash.
    """
    if hasattr(frame, "to_delayed") and not is_dask(frame):
        raise DataError(FIELD, type_of_value(frame), FRAMES, REMEDY)
    known_columns = _names(frame)
    for condition in where.conditions:
        check_column(condition, known_columns, known_columns)
    names = tuple(dict.fromkeys([*columns, *where.columns]))

    for name in columns:
        if name not in known_columns:
            raise DataError(FIELD, f"no column {name!r}", "a column for every attribute used", "rename or add it")

    parts = [
        FramePartition(f"partition {number:09} of the frame", names=names, held=held)
        for number, held in enumerate(_in_memory_parts(frame, names, engine))
    ]
    # hash, rows and schema of each part
    seen: list[Seen] = engine.map(FramePartition.look, [(part,) for part in parts], "snapshot")
    known = [replace(part, seen=of_part, share=of_part.size) for part, of_part in zip(parts, seen, strict=True)]
    return Table(domain, tuple(known), "").filtered(where)


def is_dask(frame: object) -> TypeGuard[DataFrame]:
    # a Series of Dask has columns too, and an array has two dimensions
    return hasattr(frame, "to_delayed") and hasattr(frame, "columns") and getattr(frame, "ndim", 0) == 2


def _names(frame: object) -> Sequence[str]:
    """Return the names of a frame's columns without reading a record."""
    if hasattr(frame, "collect_schema"):
        return list(frame.collect_schema().names())
    if hasattr(frame, "column_names"):
        return list(frame.column_names)
    return list(frame.columns) if hasattr(frame, "columns") else as_arrow(frame, ()).column_names


def _in_memory_parts(frame: object, names: tuple[str, ...], engine: Engine) -> list[Any]:
    """Return the pieces of a frame as parts of a table: of Dask as they are, others in memory or sent."""
    if is_dask(frame):
        persisted = _is_persisted(frame)
        return [DelayedPart(partition, persisted) for partition in frame[list(names)].to_delayed()]
    pieces = list(_pieces(as_arrow(frame, names)))
    if engine.shares_memory:
        return [InMemoryPart(piece) for piece in pieces]
    return [_sent_part(handle) for handle in engine.scatter([_serialize(piece) for piece in pieces], "send")]


def _sent_part(handle: object) -> SerializedPart | DelayedPart:
    """Return the bytes as a part, or a part whose future stays on the worker that has it."""
    if isinstance(handle, bytes):
        return SerializedPart(handle)
    from dask import delayed

    return DelayedPart(delayed(_deserialize, pure=False)(handle), True)


def _is_persisted(frame: object) -> bool:
    """Return whether a Dask DataFrame has partitions in a cluster's memory."""
    if "distributed" not in sys.modules:
        return False
    from distributed import futures_of

    return bool(futures_of(frame))


def _pieces(table: pa.Table) -> Iterator[pa.Table]:
    """Yield the pieces of a table; they depend on its rows and bytes only, not on the engine that reads them."""
    rows = max(1, min(PIECE_ROWS, MOST_SENT * table.num_rows // max(table.nbytes, 1)))
    for start in range(0, max(table.num_rows, 1), rows):
        yield table.slice(start, rows)


def _serialize(table: pa.Table) -> bytes:
    """Return a table as bytes in the Arrow stream format."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def _deserialize(content: bytes) -> pa.Table:
    return pa.ipc.open_stream(content).read_all()
