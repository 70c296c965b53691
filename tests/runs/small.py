"""A small table, its domain and jobs over it, written into a directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import tomli_w

DOMAIN = {
    "attributes": {
        "age": {"kind": "integer", "low": 0, "high": 7, "outside": "clip"},
        "sex": {"kind": "categories", "values": ["F", "M"]},
        "income": {"kind": "bins", "edges": [0, 10, 20, 50, 100], "outside": "clip", "nulls": "category"},
        "code": {"kind": "coded", "size": 3},
    }
}
ROWS = 4000


def table(rows: int = ROWS) -> pd.DataFrame:
    rng = np.random.default_rng(7)
    age = rng.integers(0, 10, rows)
    return pd.DataFrame(
        {
            "person": np.arange(rows) // 3,
            "age": age,
            "sex": np.where(rng.random(rows) < 0.3 + 0.05 * age, "F", "M"),
            "income": np.where(rng.random(rows) < 0.1, np.nan, rng.gamma(2, 15, rows)),
            "code": rng.integers(0, 3, rows),
        }
    )


def write_table(folder: Path, frame: pd.DataFrame, partitions: int = 3) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number, rows in enumerate(np.array_split(np.arange(len(frame)), partitions)):
        frame.iloc[rows].to_parquet(folder / f"part-{number:04d}.parquet", index=False)
    return folder


def job(**changes: Any) -> dict[str, Any]:
    """Return a job as a dict; keyword arguments replace its sections, and None drops one."""
    content: dict[str, Any] = {
        "data": {"path": "data", "domain": "domain.toml"},
        "privacy": {"epsilon": 1.0, "delta": 1e-9, "dataset": "small"},
        "workload": [{"family": "marginal", "degree": 2}, {"family": "range", "attributes": [["age"]], "weight": 2.0}],
        "engine": {"scheduler": "synchronous", "memory": "1GiB"},
    }
    content.update(changes)
    return {key: value for key, value in content.items() if value is not None}


def write_job(folder: Path, name: str = "job.toml", **changes: Any) -> Path:
    (folder / "domain.toml").write_text(tomli_w.dumps(DOMAIN))
    path = folder / name
    path.write_text(tomli_w.dumps(job(**changes)))
    return path
