"""Small growing tables, jobs over them, and their exact counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import dpscale as dp
from dpscale.privacy.draws import SMOOTHING
from dpscale.runs.opening import begin_run, read_job
from dpscale.runs.periods.growing import GrowingPart
from tests.running import release_next

SIZES = {"a": 3, "b": 4}
MONTHS = ["2026-01", "2026-02", "2026-03", "2026-04", "2026-05", "2026-06"]
Frames = Mapping[str, pd.DataFrame]


def frames(rows: int = 200, months: Sequence[str] = MONTHS[:4], seed: int = 0, sizes: Mapping[str, int] = SIZES,
           units: int = 0) -> dict[str, pd.DataFrame]:  # fmt: skip
    """Return records by month; with `units`, each record has a unit that may be in several months."""
    random = np.random.default_rng(seed)
    found = {}
    for month in months:
        found[month] = pd.DataFrame({name: random.integers(0, size, rows) for name, size in sizes.items()})
        if units:
            found[month]["who"] = random.integers(0, units, rows)
    return found


def write(folder: Path, months: Frames, column: bool = False) -> Path:
    """Write a folder for each month, or two files with a column of days."""
    path = folder / "data"
    if not column:
        for month, frame in months.items():
            (path / f"month={month}").mkdir(parents=True, exist_ok=True)
            frame.to_parquet(path / f"month={month}" / "part.parquet")
        return path
    path.mkdir(exist_ok=True)
    days = [frame.assign(month=pd.Timestamp(f"{month}-11").date()) for month, frame in months.items()]
    whole = pd.concat(days).sample(frac=1.0, random_state=1)
    whole.iloc[::2].to_parquet(path / "one.parquet")
    whole.iloc[1::2].to_parquet(path / "two.parquet")
    return path


def make_job(folder: Path, sizes: Mapping[str, int] = SIZES, time: Mapping[str, Any] | None = None,
             data: Mapping[str, Any] | None = None, privacy: Mapping[str, Any] | None = None,
             **tables: Any) -> dict[str, Any]:  # fmt: skip
    """Return a job over the months from January 2026."""
    lines = ["[attributes]", 'month = {kind = "date", by = "month", low = "2026-01", high = "2026-06"}',
             *(f'{name} = {{kind = "coded", size = {size}}}' for name, size in sizes.items())]  # fmt: skip
    (folder / "domain.toml").write_text("\n".join(lines))
    return {
        "data": {"path": str(folder / "data"), "domain": str(folder / "domain.toml"), "period": "month",
                 **(data or {})},
        "time": {"answers": ["period", "cumulative", "window"], "window": 3} | dict(time or {}),
        "privacy": {"privacy_cost": 0.5, "ledger": str(folder / "ledger.sqlite"), "dataset": "growing"}
        | dict(privacy or {}),
        "workload": [{"family": "marginal", "degree": 2}],
        "engine": {"seed": 1, "scheduler": "synchronous"},
        **tables,
    }  # fmt: skip


def start(job: Mapping[str, Any], run_dir: Path) -> GrowingPart:
    """Create or reopen a run without releasing anything."""
    run = begin_run(read_job(job), run_dir).table
    assert isinstance(run, GrowingPart)
    return run


def release(job: Mapping[str, Any], run_dir: Path, months: Sequence[str]) -> GrowingPart:
    """Release some months one by one."""
    run = start(job, run_dir)
    for month in months:
        release_next(run, month)
    return run


def exact(months: Frames, names: Sequence[str], label: str, kind: str, window: int = 3,
          sizes: Mapping[str, int] = SIZES) -> np.ndarray:  # fmt: skip
    """Return the counts of an answer."""
    number = MONTHS.index(label)
    first = {"period": number, "cumulative": 0, "window": max(number + 1 - window, 0)}[kind]
    out = np.zeros([sizes[name] for name in names])
    for month in MONTHS[first : number + 1]:
        if month in months:
            np.add.at(out, tuple(months[month][name].to_numpy() for name in names), 1)
    return out


def drawn(run: GrowingPart) -> list[tuple[Fraction, np.ndarray]]:
    """Return variance less smoothing, and stored numbers, of each block of each released period."""
    found = []
    for label in run.released:
        period = run.part_at(f"periods/{label}")
        decision = period.measurement_plan.first_decision()
        values = period.measurements.values(decision)
        for index, request in enumerate(decision.requests):
            found.append((Fraction(request.draw.variance - SMOOTHING), values.measured(index)))
    return found


def measured_cost(one: GrowingPart, other: GrowingPart) -> Fraction:
    """Return the squared mu between two runs whose values have no noise."""
    pairs = zip(drawn(one), drawn(other), strict=True)
    return sum((sum((Fraction(int(gap)) ** 2 for gap in np.rint(mine - theirs)), Fraction(0)) / variance
                for (variance, mine), (_, theirs) in pairs), Fraction(0))  # fmt: skip


def open_release(run: GrowingPart) -> dp.Release:
    return dp.Release.open(run.path)
