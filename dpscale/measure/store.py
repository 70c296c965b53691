"""Measurements on disk: one Parquet file each, named by the hash of the record that keyed its noise.

A file is written whole under another name, flushed, and renamed, so that a file under its own name is always a whole
one; it carries its record, and is read back only if the record is the one expected. What is there is never drawn again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from dpscale.errors import JobError
from dpscale.measure.schedule import Schedule
from dpscale.plans.block import Block
from dpscale.plans.plan import Plan
from dpscale.privacy.accounting import Cost
from dpscale.privacy.streams import canonical
from dpscale.storage.files import is_local, reading, writing

MECHANISM_VERSION = 1
SMALL_BYTES = 1 << 20
Opened = Callable[[Path], AbstractContextManager[BinaryIO]]
LARGE_PAGES: dict[str, Any] = {"data_page_size": 1 << 26, "write_batch_size": 1 << 20}  # half the time of small ones


@dataclass(frozen=True, eq=False)
class Measurements:
    """The measurements of a plan under a schedule, in a folder."""

    folder: Path
    release: str
    snapshot: str
    plan: Plan
    schedule: Schedule

    def record(self, index: int) -> dict[str, Any]:
        """The canonical record of a block's measurement: what it measures and how, never where or how often."""
        block, draw = self.plan.blocks[index], self.schedule.draws[index]
        return {
            "release": self.release,
            "snapshot": self.snapshot,
            "domain": self.plan.domain.digest,
            "attributes": list(block.attributes),
            "strategy": strategy_digest(block),
            "multiplier": draw.multiplier,
            **draw.law,
            "version": MECHANISM_VERSION,
            "round": 0,
        }

    def path(self, index: int) -> Path:
        name = self._names.get(index) or self._names.setdefault(index, record_digest(self.record(index)))
        return self.folder / f"{name}.parquet"

    @cached_property
    def _names(self) -> dict[int, str]:
        """Hashes of records, found once: there are tens of thousands, and a strategy's own hash is in each."""
        return {}

    def missing(self) -> list[int]:
        """Blocks that have no file yet."""
        present = {entry.name for entry in self.folder.iterdir()} if self.folder.exists() else set()
        return [index for index in range(len(self.plan.blocks)) if self.path(index).name not in present]

    def write(self, index: int, values: NDArray[np.float64]) -> None:
        write_values(self.path(index), values, self.record(index))

    def read(self, index: int) -> NDArray[np.float64]:
        """The measured values of a block, of the shape `rows`, in units of K · marginal."""
        values = read_values(self.path(index), self.record(index)).reshape(self.plan.blocks[index].rows)
        return values / self.schedule.draws[index].multiplier

    @property
    def spent(self) -> Cost:
        """What all of them cost together."""
        return self.schedule.spent

    @property
    def law(self) -> list[Any]:
        """The noise of every block: with the plan, the domain and the secret it fixes all that is drawn."""
        return [[draw.multiplier, draw.law] for draw in self.schedule.draws]

    @cached_property
    def variances(self) -> list[float]:
        """Noise variance of each block in units of K · marginal."""
        return [draw.lattice_variance for draw in self.schedule.draws]


def strategy_digest(block: Block) -> str:
    """SHA-256 of the block's integer strategy."""
    return hashlib.sha256("".join(factor.digest for factor in block.factors).encode()).hexdigest()


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
        found = json.loads((table.schema.metadata or {}).get(b"dpscale", b"{}"))
    except (OSError, pa.ArrowException):
        raise JobError("measurements", f"{path.name} cannot be read", "whole files", "measure again") from None
    if found != json.loads(canonical(record)):
        raise JobError(
            "measurements", f"{path.name} is of another release", "this release's", "use a new run directory"
        )
    return np.asarray(table.column("value").to_numpy(), dtype=np.float64)
