"""A small job for the audits: 3 attributes, 2 files, at most 4 rows per unit."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import tomli_w

SIZES = {"a": 4, "b": 3, "c": 5}


def frame(rows: int = 400, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    columns = {name: rng.integers(0, size, rows) for name, size in SIZES.items()}
    return pd.DataFrame(columns | {"unit": rng.integers(0, rows // 3, rows)})


def write(folder: Path, name: str = "job.toml", **changes: Any) -> Path:
    """Write data, domain and job file into a directory; keyword arguments replace sections of the job."""
    data = folder / "data"
    if not data.exists():
        data.mkdir(parents=True)
        for number, rows in enumerate(np.array_split(np.arange(400), 2)):
            frame().iloc[rows].to_parquet(data / f"{number}.parquet", index=False)
    domain = {"attributes": {key: {"kind": "coded", "size": size} for key, size in SIZES.items()}}
    (folder / "domain.toml").write_text(tomli_w.dumps(domain))
    job = {
        "data": {"path": "data", "domain": "domain.toml"},
        "privacy": {"privacy_cost": 0.5, "dataset": "small"},
        "workload": [{"family": "marginal", "degree": 2}],
        "mechanism": {"name": "residual-planner"},
        "engine": {"scheduler": "synchronous", "seed": 5},
    }
    path = folder / name
    path.write_text(tomli_w.dumps(job | changes))
    return path


def write_selftest(folder: Path) -> Path:
    """Write selftest.json for `evidence --selftest`; without it every bundle runs the self-test for 14 CPU seconds."""
    path = folder / "selftest.json"
    path.write_text(json.dumps([{"name": "none", "passed": True, "detail": "not run"}]))
    return path


def measurements(run: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((run / "measurements").glob("*.parquet"))}


def answers(run: Path) -> dict[str, str]:
    found = sorted(path for path in (run / "answers").rglob("*") if path.suffix in (".parquet", ".json"))
    return {str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}
