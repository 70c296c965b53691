"""A small table, a job that draws synthetic rows of it, and helpers to run and check the comparison."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import tomli_w
from click.testing import CliRunner, Result

from dpscale.__main__ import main

DOMAIN: dict[str, Any] = {
    "attributes": {
        "age": {"kind": "integer", "low": 0, "high": 9, "outside": "clip"},
        "city": {"kind": "categories", "values": ["Forlì", "東京", "Ærø"], "outside": "category"},
        "income": {"kind": "bins", "edges": [0, 100, 300, 1000], "outside": "category"},
        "code": {"kind": "coded", "size": 3},
        "ill": {"kind": "categories", "values": ["no", "yes"], "nulls": "category"},
    }
}


def make_frame(rows: int = 3000, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age = rng.integers(0, 12, rows)
    return pd.DataFrame({
        "city": rng.choice(["Forlì", "東京", "Ærø", "Oz"], rows, p=[0.5, 0.3, 0.15, 0.05]),
        "age": age,
        "income": np.where(rng.random(rows) < 0.05, 5000.0, np.round(age * 70 + rng.random(rows) * 100, 2)),
        "ill": np.where(rng.random(rows) < 0.1, None, np.where(rng.random(rows) < age / 12, "yes", "no")),
        "person": np.arange(rows),
        "code": age // 4,
    })  # fmt: skip


def write_job(folder: Path, **changes: Any) -> Path:
    """Write a job over `folder`/data that draws as many synthetic rows as there are records."""
    for number, part in enumerate(np.array_split(np.arange(3000), 3)):
        (folder / "data").mkdir(parents=True, exist_ok=True)
        make_frame().iloc[part].to_parquet(folder / f"data/part-{number}.parquet", index=False)
    (folder / "domain.toml").write_text(tomli_w.dumps(DOMAIN))
    job: dict[str, Any] = {
        "data": {"path": "data", "domain": "domain.toml"},
        "privacy": {"privacy_cost": 10.0, "dataset": "small"},
        "workload": [{"family": "marginal", "degree": 2}],
        "mechanism": {"name": "aim-grem"},
        "engine": {"scheduler": "synchronous", "seed": 3},
        "synthesize": {"rows": 3000, "parts": 2},
    }
    (folder / "job.toml").write_text(tomli_w.dumps({k: v for k, v in (job | changes).items() if v is not None}))
    return folder / "job.toml"


def run_compare(*arguments: Any) -> Result:
    return CliRunner().invoke(main, ["compare", *map(str, arguments)])


def file_states(folder: Path) -> dict[str, tuple[str, int]]:
    """Return content digest and modification time of every file below a folder."""
    return {
        str(path): (hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "", path.stat().st_mtime_ns)
        for path in sorted([folder, *folder.rglob("*")])
    }
