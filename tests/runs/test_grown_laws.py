"""Jobs whose laws grow from confirmed sets: counted when they are needed, in little memory and after a kill."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tomli_w

import dpscale as dp
from dpscale.measurement import measurement
from dpscale.measurement.adaptive import run
from dpscale.mechanisms.aim import setting as settings_of
from dpscale.privacy.streams import seeded_secret
from dpscale.runs.opening import open_part
from tests.audit.composition import audit_run
from tests.audit.small import answers, measurements
from tests.runs.test_adaptive import crash_at

SIZES = {**{f"x{i}": 2 for i in range(5)}, "wide": 4, "other": 4}
LAW = ("x0", "x1", "x2", "wide")


def records(rows: int = 8000) -> np.ndarray:
    """Return records: x2 is the parity of x0 and x1 if `wide` is below 2, and random otherwise."""
    rng = np.random.default_rng(2)
    table = np.stack([rng.integers(0, size, rows) for size in SIZES.values()], axis=1)
    table[:, 2] = np.where(table[:, 5] < 2, table[:, 0] ^ table[:, 1], table[:, 2])
    return table


def count(names: tuple[str, ...]) -> np.ndarray:
    shape = [SIZES[name] for name in names]
    columns = records()[:, [list(SIZES).index(name) for name in names]]
    cells = np.ravel_multi_index(columns.T, shape) if names else np.zeros(len(columns), np.int64)
    return np.bincount(cells, minlength=math.prod(shape)).reshape(shape)


def write(folder: Path, **engine: Any) -> Path:
    """Write records, domain and job; without the ledger of an earlier run, since a seeded run repeats its release."""
    (folder / "ledger.sqlite").unlink(missing_ok=True)
    if not (folder / "data.parquet").exists():
        pq.write_table(pa.table(dict(zip(SIZES, records().T, strict=True))), folder / "data.parquet")
    domain = {"attributes": {key: {"kind": "coded", "size": size} for key, size in SIZES.items()}}
    (folder / "domain.toml").write_text(tomli_w.dumps(domain))
    job = {
        "data": {"path": "data.parquet", "domain": "domain.toml"},
        "privacy": {"privacy_cost": 0.2, "dataset": "small", "ledger": "ledger.sqlite"},
        "workload": [{"family": "marginal", "degree": 3}],
        "mechanism": {"name": "aim-grem", "degree": 4},
        "reconstruct": {"method": "maxent", "implied": "chains"},
        "engine": {"scheduler": "synchronous", "seed": 5} | engine,
    }
    (folder / "job.toml").write_text(tomli_w.dumps(job))
    return folder / "job.toml"


def released_bytes(folder: Path) -> dict[str, Any]:
    rounds = {path.name: path.read_bytes() for path in sorted((folder / "measurements").glob("round-*.json"))}
    return measurements(folder) | rounds | answers(folder)


@pytest.fixture(autouse=True)
def few_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the sets of four, only those of the five attributes with two cells are candidates from the start."""
    monkeypatch.setattr(settings_of, "MOST_LAWS", math.comb(5, 4))


def test_grown_law_is_measured_as_by_the_plain_loop(tmp_path: Path) -> None:
    release = dp.run(write(tmp_path), tmp_path / "run")
    part, trace = open_part(tmp_path / "run"), pq.read_table(tmp_path / "run/trace.parquet").to_pylist()
    assert LAW not in part.measurement_plan.counted_sets
    assert LAW in [tuple(row["attributes"]) for row in trace]
    head = {key: part.manifest[key] for key in ("release", "snapshot")} | {"domain": part.domain.digest}
    state = run(part.measurement_plan, count, seeded_secret(5), head)
    assert release.marginal(LAW[:3]).tobytes() == state.marginal(LAW[:3]).tobytes()
    assert [tuple(row["attributes"]) for row in trace] == [names for note in state.rounds for names in note.chosen]
    assert audit_run(tmp_path / "run", tmp_path / "ledger.sqlite").faults == ()


@pytest.mark.parametrize("engine", [{"memory": "40kB"}, {"scheduler": "threads"}], ids=["memory", "threads"])
def test_memory_and_a_kill_give_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine) -> None:
    """With 40 kB no counts are kept. The process ends before the last value is written, that of a law or later."""
    expected = released_bytes(dp.run(write(tmp_path), tmp_path / "whole").path)
    files = sum(name.endswith(".parquet") and name[0].isdigit() for name in expected)
    with monkeypatch.context() as patch:
        crash_at(patch, files - 1, measurement, "write_values")
        with pytest.raises(KeyboardInterrupt):
            dp.run(write(tmp_path, **engine), tmp_path / "run")
    assert released_bytes(dp.run(tmp_path / "job.toml", tmp_path / "run").path) == expected
