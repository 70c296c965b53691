"""Values on disk: one Parquet file each, named by the hash of the record that keyed its noise.

A file is written whole under another name, flushed, and renamed, so that a file under its own name is always a whole
one; it carries its record, and is read back only if the record is the one expected. What is there is never drawn again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from dpscale.errors import JobError
from dpscale.privacy.streams import canonical
from dpscale.storage.files import is_local, reading, writing

SMALL_BYTES = 1 << 20
Opened = Callable[[Path], AbstractContextManager[BinaryIO]]
LARGE_PAGES: dict[str, Any] = {"data_page_size": 1 << 26, "write_batch_size": 1 << 20}  # half the time of small ones


def record_digest(record: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical(record)).hexdigest()[:32]


def write_values(path: Path, values: NDArray[np.float64], record: Mapping[str, Any], opened: Opened = writing) -> None:
    """Write a measurement by flush and atomic rename; `opened` makes the file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([pa.field("value", pa.float64(), nullable=False)], metadata={"dpscale": canonical(record)})
    table = pa.table([pa.array(values.reshape(-1))], schema=schema)
    with opened(path) as file:
        pq.write_table(table, file, compression="none", use_dictionary=False, write_statistics=False, **LARGE_PAGES)


def _parquet(path: Path) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not is_local(path):
        return pq.ParquetFile(reading(path))
    if path.stat().st_size > SMALL_BYTES:
        return pq.ParquetFile(path, memory_map=True)
    return pq.ParquetFile(pa.BufferReader(path.read_bytes()))  # half the time of opening it as a file


def read_values(path: Path, record: Mapping[str, Any]) -> NDArray[np.float64]:
    """Read a measurement back; JobError if it is not the one expected."""
    import pyarrow as pa

    try:
        with _parquet(path) as file:
            table = file.read(use_threads=False)  # one column
        kept = json.loads((table.schema.metadata or {}).get(b"dpscale", b"{}"))
    except (OSError, pa.ArrowException):
        raise JobError("measurements", f"{path.name} cannot be read", "whole files", "measure again") from None
    if kept != json.loads(canonical(record)):
        raise JobError(
            "measurements", f"{path.name} is of another release", "this release's", "use a new run directory"
        )
    return np.asarray(table.column("value").to_numpy(), dtype=np.float64)
