"""Adaptive runs on wide tables, and other packages on them.

python benchmarks/wide_runs.py wide_adaptive [--attributes 500] [--rows 100000] [--baseline 2741c547] [--save]
python benchmarks/wide_runs.py wide_rivals mbi=PYTHON [--seconds 1200] [--gib 4] [--records FILE] [--save]
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
import rivals
from base import DATA, generate_table
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


def print_wide_adaptive() -> None:
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


TABLE, EPSILON, SEED = "census", 1.0, 100
MECHANISMS = (("dpscale", "aim-grem"), ("dpscale", "aim-grem, rows"), ("mbi", "mixture"))


def print_wide_rivals() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python", nargs="?", metavar="mbi=PYTHON")
    parser.add_argument("--seconds", type=float, default=1200)
    parser.add_argument("--gib", type=float, default=4)
    parser.add_argument("--records", type=Path)
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    rivals.run([given.python] if given.python else [], [TABLE], [EPSILON], range(SEED, SEED + 1), DATA,
               rivals.Limits(given.seconds, given.gib, float("inf")), given.records,
               "wide_rivals" if given.save else "", MECHANISMS)  # fmt: skip


COMMANDS = {
    "wide_adaptive": print_wide_adaptive,
    "wide_rivals": print_wide_rivals,
}

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in COMMANDS:
        raise SystemExit(__doc__)
    COMMANDS[sys.argv.pop(1)]()
