"""Seeded runs with frozen draws and answers: from a stored plan, with a fixed release id, on a table of CSV text.

`python -m tests.golden.runs [CASE ...]` makes the stored files again, which is allowed only if an issue changes the
draws.
"""

from __future__ import annotations

import csv
import hashlib
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import tomli_w
from click.testing import CliRunner

import dpscale as dp
from dpscale.privacy.streams import canonical
from dpscale.runs.manifest import output_digest
from tests.answered import index_of, read_set

STORED = Path(__file__).parent / "stored"
PARTITIONS = (1, 3)
ROWS = 3000
SIZES = {"age": 8, "sex": 2, "income": 5, "code": 3}
PAIRS = [{"family": "marginal", "degree": 2}]
MIXED = [
    {"family": "marginal", "degree": 2},
    {"family": "prefix", "degree": 1},
    {"family": "range", "attributes": [["age", "income"], ["code"]], "weight": 0.5},
    {"family": "affine", "attributes": [["age", "income"]]},
]
GAUSSIAN, PURE = {"privacy_cost": 0.0625}, {"epsilon": 2.0}  # no conversion, whose last bits differ by library
CASES: dict[str, dict[str, Any]] = {
    "query-smasher": {"workload": MIXED},
    "units": {"workload": PAIRS, "data": {"privacy_unit": "person", "max_rows_per_unit": 2}},
    "hdmm": {"workload": MIXED, "mechanism": {"name": "hdmm"}},
    "residual-planner": {"workload": PAIRS, "mechanism": {"name": "residual-planner"}},
    "maxent": {"workload": PAIRS, "reconstruct": {"method": "maxent", "implied": "chains"}},
    "pure": {"workload": MIXED, "privacy": PURE},
    "pure-hdmm": {"workload": MIXED, "privacy": PURE, "mechanism": {"name": "hdmm"}},
    "aim-grem": {"workload": [{"family": "marginal", "degree": 3}], "mechanism": {"name": "aim-grem"},
                 "reconstruct": {"implied": "chains", "agree": True}},
    "published": {"workload": [{"family": "marginal", "degree": 3}],
                  "mechanism": {"name": "aim-grem", "published": True}},
}  # fmt: skip


def write_table(folder: Path, partitions: int) -> None:
    """Write the table into CSV files with the same bytes for any version of any library."""
    rng = np.random.default_rng(11)
    age = rng.integers(0, 8, ROWS)
    sex = (rng.integers(0, 100, ROWS) < 25 + 7 * age).astype(int)
    income = np.minimum(rng.integers(0, 3, ROWS) + age // 3, 4)
    code = np.where(rng.integers(0, 10, ROWS) < 6, 0, rng.integers(0, 3, ROWS))
    rows = np.stack([np.arange(ROWS) // 3, age, sex, income, code], axis=1)
    folder.mkdir()
    for number, own in enumerate(np.array_split(rows, partitions)):
        with open(folder / f"part-{number}.csv", "w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([["person", *SIZES], *own.tolist()])


def run_case(case: str, partitions: int, place: Path, stored: bool = True) -> Path:
    """Run a case to its end, measured from the stored plan, and return its run directory."""
    write_table(place / "data", partitions)
    domain = {"attributes": {name: {"kind": "coded", "size": size} for name, size in SIZES.items()}}
    (place / "domain.toml").write_text(tomli_w.dumps(domain))
    own = {"privacy": GAUSSIAN, **CASES[case]}
    own["data"] = {"path": "data", "domain": "domain.toml", **own.get("data", {})}
    own["privacy"] = {"ledger": "ledger.sqlite", "dataset": "golden", **own["privacy"]}
    own["mechanism"] = own.get("mechanism", {"name": "query-smasher"})
    own["engine"] = {"scheduler": "threads", "memory": "1GiB", "seed": 0}
    (place / "job.toml").write_text(tomli_w.dumps(own))
    _run_command("plan", place / "job.toml", "--run-dir", place / "run", "--quiet")
    _use_stored_plan(case, place / "run", stored)
    _run_command("run", place / "job.toml", "--run-dir", place / "run", "--quiet")
    return place / "run"


def _use_stored_plan(case: str, folder: Path, stored: bool) -> None:
    """Replace the new plan by the stored one and the release id by that of the case."""
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["release"] = f"golden-{case}"
    if stored:
        shutil.rmtree(folder / "plan")
        shutil.copytree(STORED / case / "plan", folder / "plan")
        manifest["stages"]["plan"]["sha256"] = output_digest(folder, folder / "plan")
    (folder / "manifest.json").write_text(json.dumps(manifest))


def _run_command(*arguments: Any) -> None:
    from dpscale.__main__ import main

    done = CliRunner().invoke(main, [str(one) for one in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output


def draw_records(folder: Path) -> list[list[str]]:
    """Return the record of each measurement with the SHA-256 of its numbers, which are integers."""
    found = []
    for path in (folder / "measurements").rglob("*.parquet"):
        table = pq.read_table(path)
        head, rows = json.loads(table.schema.metadata[b"dpscale"]), table.to_pandas()
        for label, own in rows.groupby("label", observed=True, sort=False):
            values = own["value"].to_numpy(dtype="<f8")
            assert (values == np.rint(values)).all()
            record = canonical({**head, **json.loads(label)}).decode()
            found.append([record, hashlib.sha256(values.tobytes()).hexdigest()])
    return sorted(found)


def read_figures(folder: Path) -> dict[str, np.ndarray]:
    """Return each estimated marginal of a workload set and all answers with their errors, by name."""
    release, found = dp.Release.open(folder), {}
    for part in release.plan.workload.parts:
        for names in part.sets:
            found["+".join(names)] = release.marginal(names)
    for row in index_of(folder):
        table = read_set(folder / "answers", row)
        key = f"{row['part']}/{row['family']}/{'+'.join(row['attributes'])}"
        found[key] = np.stack([table.column(name).to_numpy() for name in ("estimate", "std_error", "low", "high")])
    return found


def _store(cases: list[str]) -> None:
    for case in cases or CASES:
        shutil.rmtree(STORED / case, ignore_errors=True)
        expected = {}
        for partitions in PARTITIONS:
            with tempfile.TemporaryDirectory() as place:
                folder = run_case(case, partitions, Path(place), stored=False)
                expected[str(partitions)] = draw_records(folder)
                shutil.copytree(folder / "plan", STORED / case / "plan", dirs_exist_ok=True)
                np.savez_compressed(STORED / case / f"figures-{partitions}.npz", **read_figures(folder))
        (STORED / case / "draws.json").write_text(json.dumps(expected, indent=0))


if __name__ == "__main__":
    _store(sys.argv[1:])
