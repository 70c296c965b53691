"""CPU seconds of whole processes: imports, plans, small jobs, the demo, an adaptive job; beside an earlier commit.

Every row is user and system time of a new process with its workers, the median of several turns in which the two
packages alternate, after one run that compiles loops. Plans are not taken from a store. The earlier package is
unpacked from the history of this repository. Imports of libraries alone, in the same turns, are the unit in which
limits are given: seconds of one machine are not those of another. Rows of single plans are the time of `dp.plan` after
the import, the row of synthetic rows that of their stage alone. Rows "without compiled loops" start
with an empty folder of machine code, as a first use does; evidence is given the result of a self-test.

    python benchmarks/commands.py [--baseline 2741c547] [--turns 3] [--only ROW …] [--save]
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median

import base
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from base import DATA
from main_job import JOB, write_inputs

ROOT = Path(__file__).parents[1]
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
BASELINE = "2741c547"
IMPORTS = "import numpy, pyarrow, dask, pydantic"
COLD = " without compiled loops"
MIXED = "[('range', 1), ('affine', 2), ('prefix', 3)]"
WORKLOADS = {
    "mixed plan": "w = dp.Workload(dp.Domain({f'a{i}': 10 for i in range(40)}))\n"
    f"[w.add(f, degree=d) for f, d in {MIXED}]",
    "million codes": "w = dp.Workload(dp.Domain({'a': 10**6})).add('marginal', degree=1)",
    "prefix": "w = dp.Workload(dp.Domain({'a': 1024})).add('prefix', degree=1)",
}
TIMED = "dp.plan; began = time.process_time(); dp.plan(w); print(time.process_time() - began)"
MILLION_ROWS = """import time, dpscale as dp
from dpscale.job.sections import SynthesizeTable
from dpscale.runs import runner
from dpscale.runs.opening import open_run
run = open_run(dp.run('adult/job.toml', 'run', fresh=True).path)
for rows in (100_000, 1_000_000):
    run.table.request_rows(SynthesizeTable(rows=rows, polish=False))
    began = time.process_time()
    runner.run_stages(run, only='synthesize')
print(time.process_time() - began)"""
FRAME = """import dpscale as dp, numpy as np, pandas as pd, re
text = open('frames.md').read()
block = re.search('```python\\n(.*?)```', text, re.DOTALL)[1]
"""
ROWS = """exec(block.partition('plan = ')[0])
dp.Synthesizer(domain, epsilon=1.0).fit(trips.drop(columns='person')).sample(1000)"""
SCRIPTS = {
    "dp.run and dp.Release": "import dpscale as dp; dp.run; dp.Release",
    **{name: f"import time, dpscale as dp\n{made}\n{TIMED}" for name, made in WORKLOADS.items()},
    "job of 1,000 rows": "import dpscale as dp; dp.run('small/job.toml', 'run', fresh=True)",
    "open and first marginal": "import dpscale as dp; dp.Release.open('small/run').marginal(['a'])",
    "million rows of Adult": MILLION_ROWS,
    f"first block of frames.md{COLD}": FRAME + "exec(block)",
    f"rows of a frame{COLD}": FRAME + ROWS,
}
COMMANDS = {
    "dpscale plan, 1,000 rows": ["plan", "small/job.toml"],
    "demo": ["demo", "--folder", "demo", "--quiet"],
    "adaptive Adult": ["run", "adult/job.toml", "--run-dir", "run", "--fresh", "--quiet"],
}
COMMANDS |= {f"{name}{COLD}": COMMANDS[name] for name in ("dpscale plan, 1,000 rows", "demo")}
COMMANDS[f"evidence of 1,000 rows{COLD}"] = ["evidence", "small/run", "--selftest", "small/selftest.json", "--quiet"]
LIMITS = {  # times the imports of the libraries, in the same run
    "dp.run and dp.Release": 1.2,
    "mixed plan": 0.8,
    "million codes": 0.25,
    "prefix": 2.6,
    "job of 1,000 rows": 4.0,
    "open and first marginal": 1.1,
    "million rows of Adult": 10.5,
    "dpscale plan, 1,000 rows": 3.0,
    "demo": 16.0,
    "adaptive Adult": 12.0,
    f"first block of frames.md{COLD}": 32.0,
    f"rows of a frame{COLD}": 66.0,
    f"demo{COLD}": 53.0,
    f"evidence of 1,000 rows{COLD}": 13.0,
}
LATER = ("frame", "evidence", "rows of Adult")  # in the names of rows that the earlier package does not have
NEW = [row for row in (*SCRIPTS, *COMMANDS) if any(part in row for part in LATER)]
SIZES = {"a": 2, "b": 5, "c": 8, "d": 10}
SMALL = """[data]
path = "data"
domain = "domain.toml"
[privacy]
epsilon = 1.0
[[workload]]
family = "marginal"
degree = 2
"""


def write_small(place: Path) -> None:
    """Write a table of 1,000 rows and four attributes, its domain and its job."""
    rng = np.random.default_rng(0)
    (place / "data").mkdir(parents=True)
    columns = {name: rng.integers(0, size, 1000) for name, size in SIZES.items()}
    pq.write_table(pa.table(columns), place / "data" / "part.parquet")
    domain = [f'[attributes.{name}]\nkind = "coded"\nsize = {size}\n' for name, size in SIZES.items()]
    (place / "domain.toml").write_text("".join(domain))
    (place / "job.toml").write_text(SMALL)


def unpack(commit: str, place: Path) -> Path:
    """Unpack the package of a commit and return the folder that contains it."""
    packed = subprocess.run(["git", "-C", str(ROOT), "archive", commit, "dpscale"], capture_output=True, check=False)
    if packed.returncode:
        sys.exit(f"commit {commit} is not in this repository; the baseline needs a clone with its whole history")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(place, filter="data")
    return place


def cpu_seconds(row: str, package: Path, inputs: Path) -> float:
    """Return user and system seconds of a row in a new process and a new folder with a copy of the inputs."""
    script = IMPORTS if row == IMPORTS else SCRIPTS.get(row)
    command = ["-c", script] if script else ["-m", "dpscale", *COMMANDS[row]]
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(inputs, folder, dirs_exist_ok=True)
        changed = {"PYTHONPATH": str(package), "DPSCALE_STORE": "off", "DPSCALE_STATE": folder + "/state"}
        changed |= {"DPSCALE_DATA": folder + "/user"}
        changed |= {"NUMBA_CACHE_DIR": folder + "/compiled"} if row.endswith(COLD) else {}
        before = os.times()
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False, cwd=folder,
                              env=ENVIRONMENT | changed)  # fmt: skip
        after = os.times()
    if "print" in command[1] and not done.returncode:
        return float(done.stdout)
    if done.returncode:
        sys.exit(f"{row} failed: {done.stderr.strip().splitlines()[-1]}")
    return after.children_user + after.children_system - before.children_user - before.children_system


def prepare(place: Path, data: Path, package: Path) -> list[str]:
    """Write the inputs of all rows for a package and return the rows that can run here."""
    write_small(place / "small")
    shutil.copy(ROOT / "docs" / "frames.md", place)
    (place / "small" / "selftest.json").write_text('[{"name": "noise", "passed": true, "detail": ""}]')
    arguments = [sys.executable, "-m", "dpscale", "run", "small/job.toml", "--run-dir", "small/run", "--quiet"]
    environment = ENVIRONMENT | {"PYTHONPATH": str(package), "DPSCALE_STATE": str(place / "state")}
    subprocess.run(arguments, check=True, capture_output=True, cwd=place, env=environment)
    if not (data / "adult").exists():
        print(f"adaptive Adult: not run, {data / 'adult'} is absent")
        return [row for row in (*SCRIPTS, *COMMANDS) if "Adult" not in row]
    (place / "adult").mkdir()
    write_inputs(data / "adult", place / "adult")
    (place / "adult" / "job.toml").write_text(JOB.format(epsilon=1.0, errors="auto"))
    return [*SCRIPTS, *COMMANDS]


def compare(row: str, packages: Mapping[str, Path], inputs: Path, turns: int) -> dict[str, float]:
    """Return the median CPU seconds of a row with every package, and of the imports, in alternating turns.

    A turn before them compiles loops, except for rows without compiled loops.
    """
    for name, package in packages.items() if not row.endswith(COLD) else ():
        cpu_seconds(row, package, inputs / name)
    took: dict[str, list[float]] = {name: [] for name in (*packages, "imports")}
    for _ in range(turns):
        took["imports"].append(cpu_seconds(IMPORTS, ROOT, inputs / "now"))
        for name, package in packages.items():
            took[name].append(cpu_seconds(row, package, inputs / name))
    return {name: median(seconds) for name, seconds in took.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--baseline", default=BASELINE)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=[*SCRIPTS, *COMMANDS])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--save", action="store_true")
    arguments = parser.parse_args()
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        packages = {"before": unpack(arguments.baseline, place / "before"), "now": ROOT}
        for name, package in packages.items():
            rows = prepare(place / "inputs" / name, arguments.data, package)

        for row in arguments.only or rows:
            compared = {"now": ROOT} if row in NEW else packages
            found = compare(row, compared, place / "inputs", arguments.turns)
            figures |= {f"{row}, {name}": seconds for name, seconds in found.items()}
            limit = f" (limit {LIMITS[row]:g})" if row in LIMITS else ""
            took = ", ".join(f"{seconds:.2f} s {name}" for name, seconds in found.items())
            print(f"{row}: {took}, {found['now'] / found['imports']:.2f} times the imports{limit}", flush=True)
            if row in LIMITS:
                figures[f"{row}, limit"] = LIMITS[row]
    if arguments.save:
        base.save("commands", figures)


if __name__ == "__main__":
    main()
