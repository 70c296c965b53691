"""What a run wrote, read back: answers by the index, and the blocks of a plan."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dpscale.measurement.value_files import write_values
from dpscale.privacy.streams import canonical
from dpscale.runs.answers import read_index, read_set


def index_of(run: Path) -> list[dict[str, Any]]:
    """The index of the answers, a row for every set of every part."""
    return list(read_index(run / "answers").to_pylist())


def answers_to(run: Path, row: dict[str, Any]) -> pd.DataFrame:
    """The answers of one row of the index."""
    return read_set(run / "answers", row).to_pandas()


def edit_blocks(run: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Edit the columns of a plan's blocks, as whoever may write in the run directory can."""
    path = run / "plan" / "blocks.npz"
    with np.load(path) as file:
        columns = dict(file)
    change(columns)
    np.savez(path, **columns)


def plant(path: Path, record: dict[str, Any], values: np.ndarray) -> None:
    """A file of one measurement, with any record."""
    head = {key: record[key] for key in ("release", "snapshot", "domain")}
    label = {key: value for key, value in record.items() if key not in head}
    write_values(path, head, [(canonical(label).decode(), np.asarray(values, dtype=np.float64))])
