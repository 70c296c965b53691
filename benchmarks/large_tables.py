"""Many rows, and many attribute sets.

python benchmarks/large_tables.py many_rows [--rows 100000000] [--data FOLDER] [--save]
python benchmarks/large_tables.py many_sets [--attributes 1000] [--rows 10000] [--memory 4GiB] [--save]
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import base
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import tomli_w
from base import DATA, Table, load_table

import dpscale as dp
from dpscale.job.sections import SynthesizeTable
from dpscale.runs.opening import open_run
from dpscale.runs.runner import run_stages
from dpscale.runs.table import TablePart

WORKERS = 2


def run_job(table: Table, place: Path) -> TablePart:
    """Return a run without synthetic rows."""
    pq.write_table(pa.table(dict(table.columns)), place / "data.parquet")
    domain = {"attributes": {name: {"kind": "coded", "size": size} for name, size in table.sizes.items()}}
    (place / "domain.toml").write_text(tomli_w.dumps(domain))
    job = {
        "data": {"path": str(place / "data.parquet"), "domain": str(place / "domain.toml")},
        "privacy": {"epsilon": 1.0, "delta": 1e-9, "ledger": str(place / "ledger.sqlite"), "dataset": "rows"},
        "workload": [{"family": "marginal", "degree": 3}],
        "mechanism": {"name": "aim-grem"},
        "output": {"max_rows": 0},
    }
    return open_run(dp.run(job, place / "run").path).table


def print_many_rows() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--save", action="store_true")
    arguments = parser.parse_args()
    table = load_table("adult", arguments.data)
    if table is None:
        raise SystemExit(f"no table in {arguments.data}: it does not travel with dpscale")
    from distributed import Client, LocalCluster

    with tempfile.TemporaryDirectory() as folder:
        run = run_job(table, Path(folder))
        run.request_rows(SynthesizeTable(rows=arguments.rows))
        with LocalCluster(WORKERS, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
            began, before, own = time.perf_counter(), sum(client.run(time.process_time).values()), time.process_time()
            run_stages(run, client, only="synthesize")
            seconds = time.perf_counter() - began
            busy = sum(client.run(time.process_time).values()) - before + time.process_time() - own
            peaks = client.run(lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20).values()
        sizes = [file.stat().st_size for file in (run.path / "synthetic").glob("part-*")]
        size, files = sum(sizes), len(sizes)
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    figures = {"rows": arguments.rows, "attributes": len(table.names), "seconds": seconds, "CPU seconds": busy,
               "files": files, "GiB": size / 2**30, "worker, GiB": max(peaks), "driver, GiB": own}  # fmt: skip
    print(f"{arguments.rows:,} rows of {len(table.names)} attributes in {seconds:.1f} s and {busy:.1f} CPU s: "
          f"{1e6 * busy / arguments.rows:.2f} CPU µs a row; {size / 2**30:.2f} GiB in {files} files; peak "
          f"{max(peaks):.2f} GiB a worker, {own:.2f} GiB the driver")  # fmt: skip
    if arguments.save:
        base.save("many_rows", figures)


VALUES, FILES, PAIRS = 4, 2, 200
STAGES = ("plan", "measure", "reconstruct", "report")
AIMS = {"files": 300, "seconds": 300, "peak, GiB": 4, "open, s": 0.5, "marginal, ms": 2, "report, MB": 3}
KEPT = ("attributes", "rows", *(f"{stage}, s" for stage in STAGES), "seconds", "peak, GiB", "files", "MB", "report, MB",
        "open, s", "marginal, ms")  # fmt: skip
READING = """
import json, random, sys, time
import dpscale as dp
import dpscale.api.release
began = time.perf_counter()
release = dp.Release.open(sys.argv[1])
told = {"open, s": time.perf_counter() - began}
began = time.perf_counter()
pick = random.Random(0)
release.marginal(pick.sample(release.domain.names, 2))
told["first marginal, ms"], taken = 1e3 * (time.perf_counter() - began), []
for _ in range(int(sys.argv[2])):
    names = pick.sample(release.domain.names, 2)
    began = time.perf_counter()
    release.marginal(names)
    taken.append(1e3 * (time.perf_counter() - began))
print(json.dumps(told | {"marginal, ms": sorted(taken)[len(taken) // 2]}))
"""


def write_inputs(place: Path, given: argparse.Namespace) -> Path:
    """Write the table, its domain file and the job."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names, rng = [f"a{i:04d}" for i in range(given.attributes)], np.random.default_rng(0)
    (place / "data").mkdir()
    for number in range(FILES):
        columns = {name: rng.integers(0, VALUES, given.rows // FILES, dtype=np.int8) for name in names}
        pq.write_table(pa.table(columns), place / "data" / f"{number}.parquet")
    (place / "domain.toml").write_text(
        "".join(f'[attributes.{name}]\nkind = "coded"\nsize = {VALUES}\n' for name in names)
    )
    (place / "job.toml").write_text(
        f'[data]\npath = "{place / "data"}"\ndomain = "{place / "domain.toml"}"\n[privacy]\nrho = 0.5\n'
        f'dataset = "many"\nledger = "{place / "ledger.sqlite"}"\n[[workload]]\nfamily = "marginal"\ndegree = 2\n'
        f'[mechanism]\nname = "{given.mechanism}"\n[engine]\nmemory = "{given.memory}"\n'
    )
    return place / "job.toml"


def run_monitored(*command: object) -> tuple[float, float, float]:
    """Return the seconds, CPU seconds, and peak GiB of a process."""
    start, peak, cpu = time.perf_counter(), 0, 0.0
    process = psutil.Popen([str(part) for part in command], stdout=subprocess.DEVNULL)
    while process.poll() is None:
        try:
            peak, cpu = max(peak, process.memory_info().rss), sum(process.cpu_times()[:2])
        except psutil.Error:
            break
        time.sleep(0.05)
    if process.wait():
        raise SystemExit(f"{' '.join(map(str, command))}: exit {process.returncode}")
    return time.perf_counter() - start, cpu, peak / 2**30


def run_every_stage(job: Path, run: Path) -> dict[str, float]:
    """Run all stages in turn."""
    found: dict[str, float] = {"seconds": 0.0, "peak, GiB": 0.0}
    for stage in STAGES:
        command = [stage, job, "--run-dir", run] if stage == "plan" else ["run", run, "--only", stage]
        seconds, cpu, peak = run_monitored(sys.executable, "-m", "dpscale", *command, "--quiet")
        print(f"{stage:12} {seconds:7.1f} s  {cpu:7.1f} CPU s  {peak:5.2f} GiB")
        found |= {f"{stage}, s": seconds, f"{stage}, CPU s": cpu, f"{stage}, GiB": peak}
        found["seconds"] += seconds
        found["peak, GiB"] = max(found["peak, GiB"], peak)
    return found


def directory_size(run: Path) -> dict[str, float]:
    """Return the number of files and the sizes of the run directory and the report."""
    sizes = {path: path.stat().st_size for path in run.rglob("*") if path.is_file()}
    return {"files": len(sizes), "MB": sum(sizes.values()) / 1e6, "report, MB": sizes[run / "report.html"] / 1e6}


def print_many_sets() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attributes", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--mechanism", default="residual-planner")
    parser.add_argument("--memory", default="4GiB")
    parser.add_argument("--save", action="store_true", help="keep the figures in results/")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        job, run = write_inputs(Path(folder), given), Path(folder) / "run"
        found = run_every_stage(job, run) | directory_size(run)
        read = subprocess.run(
            [sys.executable, "-c", READING, run, str(PAIRS)], stdout=subprocess.PIPE, text=True, check=True
        )
        found |= json.loads(read.stdout)
    found |= {"attributes": given.attributes, "rows": given.rows}
    for name in ("files", "MB", "seconds", "peak, GiB", "report, MB", "open, s", "first marginal, ms", "marginal, ms"):
        aim = f"  (aim at 1,000 attributes: {AIMS[name]})" if name in AIMS else ""
        print(f"{name:20} {found[name]:10.4g}{aim}")
    if given.save:
        base.save("many_sets", {name: found[name] for name in KEPT})


COMMANDS = {
    "many_rows": print_many_rows,
    "many_sets": print_many_sets,
}

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in COMMANDS:
        raise SystemExit(__doc__)
    COMMANDS[sys.argv.pop(1)]()
