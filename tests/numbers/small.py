"""Small tables with numbers, and their exact sums as fractions."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import tomli_w

import dpscale as dp
from dpscale.domain import Domain

SIZES = {"a": 4, "b": 3}
NUMBERS: dict[str, dict[str, Any]] = {
    "pay": {"low": -20, "high": 100},
    "wait": {"low": 0, "high": 3, "step": 0.25, "nulls": "skip"},
}


def make_domain(numbers: dict[str, dict[str, Any]] | None = None) -> Domain:
    attributes = {name: {"kind": "coded", "size": size} for name, size in SIZES.items()}
    return Domain.from_dict({"attributes": attributes, "numbers": NUMBERS if numbers is None else numbers})


def make_frame(rows: int = 600, seed: int = 0) -> pd.DataFrame:
    """Return records with values beyond the ranges, between the steps, and missing."""
    random = np.random.default_rng(seed)
    frame = pd.DataFrame({name: random.integers(0, size, rows) for name, size in SIZES.items()})
    frame["pay"] = np.rint(random.normal(30, 50, rows)).astype(int)
    frame["wait"] = random.gamma(1.5, 0.8, rows)
    frame.loc[random.random(rows) < 0.2, "wait"] = np.nan
    frame["unit"] = random.integers(0, rows // 3, rows)
    return frame


def rounded(values: Sequence[float], number: dict[str, Any]) -> list[Fraction | None]:
    """Return the clipped values, rounded to the nearest step with ties upwards; None for nulls."""
    low, high, step = (Fraction(str(number.get(key, 1))) for key in ("low", "high", "step"))
    found = list[Fraction | None]()
    for value in values:
        if value != value:
            found.append(None)
            continue
        inside = min(max(Fraction(value), low), high)
        found.append((inside / step + Fraction(1, 2)).__floor__() * step)
    return found


def exact_sums(frame: pd.DataFrame, by: Sequence[str], name: str, number: dict[str, Any], power: int = 1) -> np.ndarray:
    """Return Σ v^power of the rounded values over the records of each cell, shape of `by`."""
    found = np.zeros([SIZES[one] for one in by])
    values = rounded(frame[name].tolist(), number)
    for cell in product(*(range(SIZES[one]) for one in by)):
        inside = np.logical_and.reduce([frame[one] == own for one, own in zip(by, cell, strict=True)] or [frame.a >= 0])
        found[cell] = float(
            sum(
                (value**power for value, own in zip(values, inside, strict=True) if own and value is not None),
                Fraction(),
            )
        )
    return found


def write_job(folder: Path, workload: list[dict[str, Any]], name: str = "job.toml", **changes: Any) -> Path:
    """Write data in two files, the domain and a job; keyword arguments replace sections."""
    data = folder / "data"
    if not data.exists():
        data.mkdir(parents=True)
        for number, rows in enumerate(np.array_split(np.arange(600), 2)):
            make_frame().iloc[rows].to_parquet(data / f"{number}.parquet", index=False)
        (folder / "domain.toml").write_text(tomli_w.dumps(make_domain().to_dict()))
    job = {
        "data": {"path": "data", "domain": "domain.toml"},
        "privacy": {"privacy_cost": 4.0, "dataset": "numbers", "allow_weak_privacy": True},
        "workload": workload,
        "mechanism": {"name": "query-smasher"},  # planned in a tenth of the default's time
        "engine": {"scheduler": "synchronous", "seed": 5},
    }
    path = folder / name
    path.write_text(tomli_w.dumps(job | changes))
    return path


def make_table(folder: Path, frame: pd.DataFrame, domain: Domain, files: int = 2) -> dp.Table:
    folder.mkdir(exist_ok=True)
    for number, rows in enumerate(np.array_split(np.arange(len(frame)), files)):
        frame.iloc[rows].to_parquet(folder / f"{number}.parquet", index=False, row_group_size=97)
    return dp.Table.open(f"{folder}/*.parquet", domain)
