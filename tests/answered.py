"""Helpers to read the answers of a run and to edit its plan and measurement files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from dpscale.measurement.value_files import write_values
from dpscale.privacy.streams import canonical
from dpscale.runs.answers import read_index
from dpscale.storage.files import reading


def index_of(run: Path) -> list[dict[str, Any]]:
    """Return the index of the answers, with a row for each set of each part."""
    return list(read_index(run / "answers").to_pylist())


def answers_to(run: Path, row: dict[str, Any]) -> pd.DataFrame:
    """Return the answers of one row of the index."""
    return read_set(run / "answers", row).to_pandas()


def edit_blocks(run: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Edit the columns of the plan blocks, as anyone with write access to the run directory can."""
    path = run / "plan" / "blocks.npz"
    with np.load(path) as file:
        columns = dict(file)
    change(columns)
    np.savez(path, **columns)


def plant(path: Path, record: dict[str, Any], values: np.ndarray) -> None:
    """Write a file with one measurement and the given record."""
    head = {key: record[key] for key in ("release", "snapshot", "domain")}
    label = {key: value for key, value in record.items() if key not in head}
    write_values(path, head, [(canonical(label).decode(), np.asarray(values, dtype=np.float64))])


def read_set(folder: Path, row: Mapping[str, Any]) -> pa.Table:
    """Return the answers of one row of the index as an Arrow table."""
    first, end = int(row["first"]), int(row["first"]) + int(row["queries"])
    with reading(folder / row["file"]) as opened, pq.ParquetFile(opened) as file:
        before, tables = 0, []
        for number in range(file.num_row_groups):
            size = file.metadata.row_group(number).num_rows
            if before < end and first < before + size:
                tables.append(file.read_row_group(number).slice(max(first - before, 0), end - max(first, before)))
            before += size
    return pa.concat_tables(tables)
