"""Keys of several columns: units, ids of rows, and rows whose key is that of two parents."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tomli_w

import dpscale as dp
from dpscale.audit.evidence.bundle import write_bundle
from dpscale.contributions.links import KeyPartition, with_key_ids
from dpscale.domain import Domain
from dpscale.privacy.streams import PublicStream
from dpscale.records import Table
from dpscale.runs.links.keys import distinct_ends
from dpscale.runs.opening import open_run
from tests.audit.small import write_selftest


@pytest.mark.parametrize("seed", range(12))
def test_ends_are_distinct_within_their_bounds(seed: int) -> None:
    """Random rows, up to as many as there are pairs; where exchanges suffice, no end has another number of rows."""
    rng = np.random.default_rng(seed)
    first, second = int(rng.integers(1, 7)), int(rng.integers(1, 7))
    bound = second if seed % 3 == 0 else max(second - 1, 1)
    rows = first * bound if seed % 3 == 0 else int(rng.integers(1, first * bound + 1))
    one = rng.permutation(np.repeat(np.arange(first), bound))[:rows]
    ends = np.stack([one, rng.integers(0, second, rows)], axis=1)
    found = distinct_ends(ends, (first, second), (bound, None), PublicStream("release", f"keys {seed}"))
    assert len(np.unique(found, axis=0)) == len(found) == rows
    assert np.bincount(found[:, 0]).max() <= bound
    assert found[:, 1].max() < second


def test_exchanges_preserve_numbers_of_rows() -> None:
    rng = np.random.default_rng(0)
    ends = np.stack([np.repeat(np.arange(50), 4), rng.integers(0, 60, 200)], axis=1)
    found = distinct_ends(ends, (50, 60), (4, None), PublicStream("release", "keys"))
    assert len(np.unique(found, axis=0)) == 200 > len(np.unique(ends, axis=0))
    for side in (0, 1):
        assert (np.bincount(found[:, side], minlength=60) == np.bincount(ends[:, side], minlength=60)).all()


def test_ids_of_keys_are_equal_for_equal_values(tmp_path: Path) -> None:
    """7 and "07" are one value; a row without one of the values has no id."""
    pd.DataFrame({"h": ["a", "a", "b", None], "n": [7, 8, 7, 7]}).to_parquet(tmp_path / "one.parquet")
    pd.DataFrame({"h": ["a", "b"], "n": ["07", "8"]}).to_parquet(tmp_path / "two.parquet")
    table = with_key_ids(Table.open(tmp_path, Domain({"x": 2})), ("h", "n"))
    assert all(isinstance(part, KeyPartition) and part.has("h, n") for part in table.partitions)
    found = [batch["h, n"].to_pylist() for part in table.partitions for batch in part.batches(["h, n"])]
    one, two = found
    assert one[3] is None
    assert len(set(one)) == 4
    assert two[0] == one[0]
    assert two[1] not in one


def test_unit_of_several_columns_is_bounded_and_on_the_ledger(tmp_path: Path) -> None:
    """One table: 3 rows of a unit count, and rows that share one of the columns are other units."""
    frame = pd.DataFrame({"h": np.repeat(["a", "b"], 100), "n": np.tile(np.repeat([1, 2], 50), 2), "x": 0})
    frame.to_parquet(tmp_path / "rows.parquet")
    (tmp_path / "domain.toml").write_text(tomli_w.dumps({"attributes": {"x": {"kind": "coded", "size": 2}}}))
    job = {
        "data": {"path": "rows.parquet", "domain": "domain.toml", "privacy_unit": ["h", "n"], "max_rows_per_unit": 3},
        "privacy": {"privacy_cost": 9.0, "allow_weak_privacy": True, "dataset": "rows"},
        "workload": [{"family": "marginal", "attributes": [["x"]]}],
        "engine": {"scheduler": "synchronous", "seed": 1},
    }
    (tmp_path / "job.toml").write_text(tomli_w.dumps(job))
    release = dp.run(tmp_path / "job.toml", tmp_path / "run")
    assert abs(float(np.asarray(release.marginal(("x",))).sum()) - 12) < 10
    checks = json.loads(write_selftest(tmp_path).read_text())
    bundle = write_bundle(open_run(release.path), checks)
    [entry] = json.loads((bundle / "ledger.json").read_text())["releases"]
    assert entry["unit"] == "h, n"
    done = subprocess.run([sys.executable, bundle / "recompute.py"], capture_output=True, text=True)
    assert (done.returncode, "all claims are correct" in done.stdout) == (0, True), done.stdout + done.stderr
