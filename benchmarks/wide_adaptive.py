"""CPU seconds of an adaptive job on 500 attributes, from plan to report, beside an earlier commit.

The job releases all pairs of 500 attributes of 2 to 4 values from 100,000 rows with simulated errors and writes no
answers. Each package runs it once, in a new process with its workers, after a small job that compiles loops. The
seconds of the stages are those of the manifest.

    python benchmarks/wide_adaptive.py [--attributes 500] [--rows 100000] [--baseline 2741c547] [--save]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from datetime import datetime
from pathlib import Path

import base
from base import generate_table
from commands import BASELINE, ROOT, unpack

LIMIT, STATED = 100.0, 239.0  # CPU seconds on the machine of the limit, where the earlier commit took the second
STAGES = ("plan", "measure", "reconstruct", "report")
JOB = """[data]
path = "{table}"
domain = "{domain}"
[privacy]
rho = 1.0
dataset = "wide"
ledger = "{ledger}"
[[workload]]
family = "marginal"
degree = 2
[mechanism]
name = "aim-grem"
[output]
max_rows = 0
"""


def run_job(table: Path, package: Path, place: Path) -> dict[str, float]:
    """Return the CPU seconds of a job and the seconds of its stages."""
    place.mkdir()
    job, run = place / "job.toml", place / "run"
    job.write_text(JOB.format(table=table / "table", domain=table / "domain.toml", ledger=place / "ledger.sqlite"))
    before = os.times()
    subprocess.run([sys.executable, "-m", "dpscale", "run", str(job), "--run-dir", str(run), "--quiet"], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=place,
                   env=os.environ | {"PYTHONPATH": str(package), "DPSCALE_STORE": "off"})  # fmt: skip
    after = os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    stages = json.loads((run / "manifest.json").read_text())["stages"]
    return {"CPU": spent} | {name: _seconds(stages[name]) for name in STAGES}


def _seconds(stage: dict[str, str]) -> float:
    started, ended = (datetime.fromisoformat(stage[name]) for name in ("start", "end"))
    return (ended - started).total_seconds()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attributes", type=int, default=500)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--baseline", default=BASELINE)
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    figures: dict[str, float] = {"attributes": given.attributes, "rows": given.rows, "limit": LIMIT, "stated": STATED}
    with tempfile.TemporaryDirectory(dir=".") as folder:
        place = Path(folder).resolve()
        small = generate_table(place, "small", 1000, 5, "2,3,4", 2)
        table = generate_table(place, "table", given.rows, given.attributes, "2,3,4", 8)
        packages = {"before": unpack(given.baseline, place / "package"), "now": ROOT}
        for name, package in packages.items():
            run_job(small, package, place / f"small-{name}")
            found = run_job(table, package, place / name)
            limit = f", limit {LIMIT:g}" if name == "now" else ""
            stages = ", ".join(f"{stage} {found[stage]:.0f} s" for stage in STAGES)
            print(f"{name}: {found['CPU']:.0f} CPU s{limit}; {stages}", flush=True)
            figures |= {f"{name}, {what}": seconds for what, seconds in found.items()}
    if given.save:
        base.save("wide_adaptive", figures)


if __name__ == "__main__":
    main()
