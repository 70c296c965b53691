"""Large jobs: many attributes, rows, attribute sets and links, and how work grows.

    python benchmarks/large.py job              the mixed job on [40]^40, then random queries: time and memory
    python benchmarks/large.py many_rows        many synthetic rows [--rows 100000000] [--data FOLDER] [--save]
    python benchmarks/large.py many_sets        many attribute sets
        [--attributes 1000] [--rows 10000] [--memory 4GiB] [--save]
    python benchmarks/large.py wide_adaptive    an adaptive run on many attributes beside an earlier commit
        [--attributes 500] [--rows 100000] [--baseline 2741c547] [--save]
    python benchmarks/large.py growth           CPU seconds, memory and marginal cost by the size of a problem
    python benchmarks/large.py links            time and memory of linked tables by the number of links

Modules that a measured process does not need are imported in functions.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from datetime import datetime
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import base
import numpy as np
from base import BASELINE, DATA, ROOT, Table, all_seconds, children_seconds, generate_table, load_table, unpack

QUERIES = 1000
JOB_AIMS = {"plan": (10, 1), "measure": (360, 6)}


def write_mixed_job(place: Path, given: argparse.Namespace) -> None:
    """Write the table, its domain file and the job."""
    generate_table(place, "made", given.rows, given.attributes, str(given.size), 8)
    parts = [("range", 1), ("affine", 2), ("prefix", 3)]
    workload = "".join(f'[[workload]]\nfamily = "{family}"\ndegree = {degree}\n' for family, degree in parts)
    (place / "job.toml").write_text(
        f'[data]\npath = "{data_path(place)}"\ndomain = "{place / "made" / "domain.toml"}"\n[privacy]\nepsilon = 1.0\n'
        f'delta = 1e-9\ndataset = "made"\n{workload}[engine]\nmemory = "{given.memory}"\n[output]\nmax_rows = 0\n'
    )


def data_path(place: Path) -> Path:
    """Return the folder of the generated Parquet files."""
    return place / "made" / "table"


def run_monitored(*command: object) -> tuple[float, float, str]:
    """Return the seconds, the peak GiB of a process and its children, and its output."""
    import psutil

    start, peak = time.perf_counter(), 0
    process = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, text=True)
    family = psutil.Process(process.pid)
    while process.poll() is None:
        try:
            peak = max(peak, sum(one.memory_info().rss for one in [family, *family.children(recursive=True)]))
        except psutil.NoSuchProcess:
            break
        time.sleep(0.05)
    out = process.communicate()[0]
    if process.returncode:
        raise SystemExit(f"{command} failed")
    return time.perf_counter() - start, peak / 2**30, out


def time_answers(place: Path) -> dict[str, float]:
    """Answer random queries over random triples of all cells; the first reads of the residuals are included."""
    import dpscale as dp

    release = dp.Release.open(place / "run")
    random, seconds = np.random.default_rng(0), []
    for _ in range(QUERIES):
        names = [str(name) for name in random.choice(release.domain.names, 3, replace=False)]
        query = (random.random(release.domain.shape(names)) < 0.3).astype(float)
        start = time.perf_counter()
        release.answer(names, query=query)
        seconds.append(time.perf_counter() - start)
    took = np.array(seconds) * 1e3
    return {"mean": took.mean(), "median": np.median(took), "95 %": np.quantile(took, 0.95), "largest": took.max()}


def print_job() -> None:
    """The mixed job on [n]^d from Parquet to measurements on disk, then random queries of the release: time and memory.

    All 1-way ranges, 2-way affine and 3-way prefix queries (QuerySmasher, table 7) on a generated table. Planning,
    measuring and answering run in their own processes, monitored from outside; the figures are printed with their
    targets.

        python benchmarks/large.py job [--size 40] [--attributes 40] [--rows 1000000] [--memory 4GiB] [--save]
    """
    parser = base.command_parser(print_job.__doc__)
    parser.add_argument("--size", type=int, default=40)
    parser.add_argument("--attributes", type=int, default=40)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--memory", default="4GiB")
    parser.add_argument("--save", action="store_true", help="keep the figures in results/")
    parser.add_argument("--answer", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.answer:
        print(json.dumps(time_answers(given.answer)))
        return
    with tempfile.TemporaryDirectory(dir=".") as folder:
        place = Path(folder).resolve()
        write_mixed_job(place, given)
        cli, figures = [sys.executable, "-m", "dpscale"], dict[str, float | str](memory=given.memory)
        for stage, command in {
            "plan": ("plan", place / "job.toml"),
            "measure": ("run", place / "run", "--only", "measure"),
        }.items():
            options = ["--run-dir", place / "run"] if stage == "plan" else []
            took, peak, _ = run_monitored(*cli, *command, *options)
            figures |= {f"{stage}, seconds": took, f"{stage}, GiB": peak}
            most, gib = JOB_AIMS[stage]
            print(
                f"{stage:8} {took:8.1f} s ({took / most:.2f} of the aim)  {peak:6.2f} GiB ({peak / gib:.2f} of the aim)"
            )
        took, peak, out = run_monitored(sys.executable, __file__, "job", "--answer", place)
        figures["answer, ms"] = json.loads(out)["median"]
        times = "  ".join(f"{name} {value:.2f} ms" for name, value in json.loads(out).items())
        print(f"answers  {QUERIES} random queries: {times} (aim: 5 ms)  {peak:.2f} GiB")
    if given.save:
        base.save("large_job", figures)


WORKERS = 2


def run_adult(table: Table, place: Path) -> Any:
    """Return a run without synthetic rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    import tomli_w

    import dpscale as dp
    from dpscale.runs.opening import open_run

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
    parser = base.command_parser(__doc__)
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--save", action="store_true")
    arguments = parser.parse_args()
    table = load_table("adult", arguments.data)
    if table is None:
        raise SystemExit(f"no table in {arguments.data}: it does not travel with dpscale")
    from distributed import Client, LocalCluster

    from dpscale.job.sections import SynthesizeTable
    from dpscale.runs.runner import run_stages

    with tempfile.TemporaryDirectory() as folder:
        run = run_adult(table, Path(folder))
        run.request_rows(SynthesizeTable(rows=arguments.rows))
        with LocalCluster(WORKERS, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
            began, before, own = time.perf_counter(), sum(client.run(time.process_time).values()), time.process_time()
            run_stages(run.run, client, only="synthesize")
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


VALUES, FILES, MARGINALS = 4, 2, 200
STAGES = ("plan", "measure", "reconstruct", "report")
SETS_AIMS = {"files": 300, "seconds": 300, "peak, GiB": 4, "open, s": 0.5, "marginal, ms": 2, "report, MB": 3}
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


def write_pairs_job(place: Path, given: argparse.Namespace) -> Path:
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


def run_until_end(*command: object) -> tuple[float, float, float]:
    """Return the seconds, CPU seconds, and peak GiB of a process."""
    import psutil

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
        seconds, cpu, peak = run_until_end(sys.executable, "-m", "dpscale", *command, "--quiet")
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
    parser = base.command_parser(__doc__)
    parser.add_argument("--attributes", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--mechanism", default="residual-planner")
    parser.add_argument("--memory", default="4GiB")
    parser.add_argument("--save", action="store_true", help="keep the figures in results/")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        job, run = write_pairs_job(Path(folder), given), Path(folder) / "run"
        found = run_every_stage(job, run) | directory_size(run)
        read = subprocess.run(
            [sys.executable, "-c", READING, run, str(MARGINALS)], stdout=subprocess.PIPE, text=True, check=True
        )
        found |= json.loads(read.stdout)
    found |= {"attributes": given.attributes, "rows": given.rows}
    for name in ("files", "MB", "seconds", "peak, GiB", "report, MB", "open, s", "first marginal, ms", "marginal, ms"):
        aim = f"  (aim at 1,000 attributes: {SETS_AIMS[name]})" if name in SETS_AIMS else ""
        print(f"{name:20} {found[name]:10.4g}{aim}")
    if given.save:
        base.save("many_sets", {name: found[name] for name in KEPT})


WIDE_LIMIT, WIDE_STATED = (
    100.0,
    239.0,
)  # CPU seconds on the machine of the limit, where the earlier commit took the second
WIDE_JOB = """[data]
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


def run_wide_job(table: Path, package: Path, place: Path) -> dict[str, float]:
    """Return the CPU seconds of a job and the seconds of its stages."""
    place.mkdir()
    job, run = place / "job.toml", place / "run"
    job.write_text(WIDE_JOB.format(table=table / "table", domain=table / "domain.toml", ledger=place / "ledger.sqlite"))
    before = children_seconds()
    subprocess.run([sys.executable, "-m", "dpscale", "run", str(job), "--run-dir", str(run), "--quiet"], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=place,
                   env=os.environ | {"PYTHONPATH": str(package), "DPSCALE_STORE": "off"})  # fmt: skip
    spent = children_seconds() - before
    stages = json.loads((run / "manifest.json").read_text())["stages"]
    return {"CPU": spent} | {name: _seconds(stages[name]) for name in STAGES}


def _seconds(stage: dict[str, str]) -> float:
    started, ended = (datetime.fromisoformat(stage[name]) for name in ("start", "end"))
    return (ended - started).total_seconds()


def print_wide_adaptive() -> None:
    parser = base.command_parser(__doc__)
    parser.add_argument("--attributes", type=int, default=500)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--baseline", default=BASELINE)
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    figures: dict[str, float] = {
        "attributes": given.attributes,
        "rows": given.rows,
        "limit": WIDE_LIMIT,
        "stated": WIDE_STATED,
    }
    with tempfile.TemporaryDirectory(dir=".") as folder:
        place = Path(folder).resolve()
        small = generate_table(place, "small", 1000, 5, "2,3,4", 2)
        table = generate_table(place, "table", given.rows, given.attributes, "2,3,4", 8)
        packages = {"before": unpack(given.baseline, place / "package"), "now": ROOT}
        for name, package in packages.items():
            run_wide_job(small, package, place / f"small-{name}")
            found = run_wide_job(table, package, place / name)
            limit = f", limit {WIDE_LIMIT:g}" if name == "now" else ""
            stages = ", ".join(f"{stage} {found[stage]:.0f} s" for stage in STAGES)
            print(f"{name}: {found['CPU']:.0f} CPU s{limit}; {stages}", flush=True)
            figures |= {f"{name}, {what}": seconds for what, seconds in found.items()}
    if given.save:
        base.save("wide_adaptive", figures)


GROWTH = {
    "rows": (1_000_000, 10_000_000, 100_000_000),
    "attributes": (20, 300, 1_000),
    "cells": (100, 10_000, 1_000_000),
    "sets": (20, 60, 200),
    "files": (1_000, 10_000, 100_000),
}
PEERS = ("duckdb", "polars")
ATTRIBUTES, CELLS, CHUNK, FILE_ROWS = 10, 8, 1_000_000, 10
NAMES = [f"x{i}" for i in range(ATTRIBUTES)]


def write_rows(folder: Path, rows: int, chunk: int = CHUNK) -> None:
    """Write a table, its domain and a job of all pairs."""
    import pandas as pd

    rng = np.random.default_rng(1)
    (folder / "data").mkdir()
    for part in range(-(-rows // chunk)):
        codes = rng.integers(0, CELLS, (min(chunk, rows - part * chunk), ATTRIBUTES), dtype=np.int8)
        pd.DataFrame(codes, columns=NAMES).to_parquet(folder / "data" / f"{part:06d}.parquet", index=False)
    lines = ["[attributes]", *(f'{name} = {{kind = "coded", size = {CELLS}}}' for name in NAMES)]
    (folder / "domain.toml").write_text("\n".join(lines))
    job = ('[data]\npath = "data"\ndomain = "domain.toml"\n[privacy]\nepsilon = 1.0\ndelta = 1e-9\ndataset = "g"\n'
           'ledger = "ledger.sqlite"\n[[workload]]\nfamily = "marginal"\ndegree = 2\n')  # fmt: skip
    (folder / "job.toml").write_text(job)


def run_rows(folder: Path) -> float:
    """Return the CPU seconds of a whole job on threads."""
    import dpscale as dp

    before = all_seconds()
    dp.run(str(folder / "job.toml"), run_dir=folder / "run")
    return all_seconds() - before


def run_duckdb(folder: Path) -> float:
    import duckdb

    base, before = duckdb.connect(), all_seconds()
    base.execute(f"CREATE TABLE t AS SELECT * FROM '{folder}/data/*.parquet'")
    for one, other in combinations(NAMES, 2):
        base.execute(f"SELECT {one}, {other}, count(*) FROM t GROUP BY ALL").fetchall()
    return all_seconds() - before


def run_polars(folder: Path) -> float:
    import polars

    before = all_seconds()
    frame = polars.read_parquet(folder / "data" / "*.parquet")
    for pair in combinations(NAMES, 2):
        frame.group_by(list(pair)).len()
    return all_seconds() - before


def run_files(folder: Path) -> float:
    """Return the CPU seconds of listing the files of a folder and of counting all pairs of attributes."""
    import dpscale as dp

    before = all_seconds()
    table = dp.Table.open(folder / "data", dp.Domain(dict.fromkeys(NAMES, CELLS)))
    dp.count_marginals(table, list(combinations(NAMES, 2)))
    return all_seconds() - before


def time_plan(make_workload) -> float:  # type: ignore[no-untyped-def]
    import dpscale as dp
    from dpscale import mechanisms

    mechanisms.mechanism("weighted-residuals")
    before = all_seconds()
    dp.plan(make_workload())
    return all_seconds() - before


def run_one(kind: str, size: int, folder: str = "") -> dict[str, float]:
    """Return seconds and peak memory of one size of one kind, in this process; `folder` has the rows."""
    import dpscale as dp

    if folder:
        seconds = {"rows": run_rows, "files": run_files, "duckdb": run_duckdb, "polars": run_polars}[kind](Path(folder))
    elif kind == "attributes":
        seconds = time_plan(lambda: dp.Workload(_make_domain(4, size)).add("marginal", degree=2))
    elif kind == "cells":
        seconds = time_plan(lambda: dp.Workload(dp.Domain({"a": size})).add("prefix", degree=1))
    else:
        mixed = (("range", 1), ("affine", 2), ("prefix", 3))
        seconds = time_plan(lambda: _add_families(dp.Workload(_make_domain(10, size)), mixed))
    return {"seconds": seconds, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}


def _make_domain(cells: int, attributes: int):  # type: ignore[no-untyped-def]
    import dpscale as dp

    return dp.Domain({f"x{i}": cells for i in range(attributes)})


def _add_families(workload, families):  # type: ignore[no-untyped-def]
    for family, degree in families:
        workload.add(family, degree=degree)
    return workload


def amount(kind: str, size: int) -> float:
    """Return the size with which work should grow: rows, sets, cells or files."""
    if kind in ("rows", "cells", "files"):
        return size
    return math.comb(size, 2) if kind == "attributes" else math.comb(size, 3) + math.comb(size, 2) + size


def run_sizes(kind: str, size: int) -> dict[str, dict[str, float]]:
    """Return the figures of one size, and of its peers."""
    if kind not in ("rows", "files"):
        return {kind: base.run_separately(__file__, [kind, size], "growth")}
    with tempfile.TemporaryDirectory() as place:
        if kind == "files":
            write_rows(Path(place), FILE_ROWS * size, FILE_ROWS)
            return {kind: base.run_separately(__file__, [kind, size, place], "growth")}
        write_rows(Path(place), size)
        return {name: base.run_separately(__file__, [name, size, place], "growth") for name in (kind, *PEERS)}


def marginal_costs(found: list[tuple[float, float]]) -> tuple[float, float]:
    """Return the seconds of one more unit of work in the last step, and the exponent; nan for fewer than three sizes.

    `found` is the work and the seconds of each size, ascending.
    """
    steps = [((later - former) / (more - less), math.sqrt(less * more))
             for (less, former), (more, later) in pairwise(found)]  # fmt: skip
    if len(steps) < 2 or min(cost for cost, _ in steps) <= 0:
        return (steps[-1][0] if steps else math.nan), math.nan
    (before, less), (after, more) = steps[-2:]
    return after, 1 + math.log(after / before) / math.log(more / less)


def print_growth() -> None:
    """Growth of work: CPU seconds, peak memory, and the cost of more work, in a new process per size.

    rows: counting and answering all 2-way marginals of 10 attributes as in a job, and the counting alone by DuckDB and
    by Polars from the same files; attributes: planning all pairs; cells: planning a 1-way prefix; sets: planning 1-way
    range + 2-way affine + 3-way prefix ([10]^d); files: opening a folder of small files and counting all pairs. The
    marginal cost of a step is the difference of seconds over that of work (rows, sets, cells or files), which fixed
    costs do not dilute. With marginal costs m and m' of the last two steps and geometric means w and w' of their work,
    the exponent is 1 + log(m'/m) / log(w'/w).

        python benchmarks/large.py growth [--kinds rows attributes cells sets files] [--most 1000000] [--save]
    """
    parser = base.command_parser(print_growth.__doc__)
    parser.add_argument("--kinds", nargs="*", default=list(GROWTH), choices=list(GROWTH))
    parser.add_argument("--most", type=int, default=10**9, help="leave larger sizes out")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    if given.one:
        print(json.dumps(run_one(*json.loads(given.one))))
        return
    figures: dict[str, float] = {}
    print(f"{'kind':12}{'size':>13}{'work':>14}{'CPU s':>9}{'GiB':>7}{'ns per work':>14}{'exponent':>10}")
    for kind in given.kinds:
        if kind in ("rows", "files"):
            run_sizes(kind, GROWTH[kind][1])  # compiles loops
        every: dict[str, list[tuple[float, float]]] = {}
        for size in (size for size in GROWTH[kind] if size <= given.most):
            for name, found in run_sizes(kind, size).items():
                work = amount(kind, size)
                every.setdefault(name, []).append((work, found["seconds"]))
                marginal, exponent = marginal_costs(every[name])
                print(f"{name:12}{size:13,}{work:14,.0f}{found['seconds']:9.2f}{found['peak']:7.2f}"
                      f"{marginal * 1e9:14,.1f}{exponent:10.2f}", flush=True)  # fmt: skip
                figures |= {f"{name} {size}, CPU seconds": found["seconds"], f"{name}, exponent": exponent}
                figures[f"{name}, marginal"] = marginal
                figures[f"{name} {size}, GiB"] = found["peak"]
    if given.save:
        base.save("growth", figures)


PARENT_SIZES, CHILD_SIZES = (6, 2, 4), (5, 3, 8)
CHILDREN, MOST, PART = 10, 20, 1_000_000
SAMPLE = 0.1  # seconds between samples of the memory


def draw_cells(rng: np.random.Generator, rows: int, sizes: tuple[int, ...]) -> list[np.ndarray]:
    return [np.minimum(rng.geometric(2 / max(size, 3), rows) - 1, size - 1).astype(np.int8) for size in sizes]


def write_table(folder: Path, name: str, rows: int, sizes: tuple[int, ...], seed: int, key: str) -> None:
    """Write the rows of a table in parts, with the numbers of the rows as keys, and its domain file."""
    (folder / name).mkdir()
    for part, first in enumerate(range(0, rows, PART)):
        rng, count = np.random.default_rng((seed, part)), min(PART, rows - first)
        columns = {key: np.arange(first, first + count), **_named(draw_cells(rng, count, sizes))}
        _write_part(folder / name / f"{part:04d}.parquet", columns)
    lines = [f'[attributes.a{i}]\nkind = "coded"\nsize = {size}\n' for i, size in enumerate(sizes)]
    (folder / f"{name}.toml").write_text("".join(lines))


def _write_part(file: Path, columns: dict[str, np.ndarray]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), file)


def _named(cells: list[np.ndarray]) -> dict[str, np.ndarray]:
    return {f"a{i}": own for i, own in enumerate(cells)}


def write_children(folder: Path, links: int) -> dict[str, Any]:
    """Write parents and their children in an order that is not that of the parents; return the job."""
    parents = max(links // CHILDREN, 1)
    write_table(folder, "parents", parents, PARENT_SIZES, 0, "id")
    (folder / "children").mkdir()
    for part, first in enumerate(range(0, links, PART)):
        rng, count = np.random.default_rng((1, part)), min(PART, links - first)
        parent = (rng.beta(3, 4, count) * parents).astype(np.int64) * 7919 % parents  # parents with few and with many
        cells = draw_cells(rng, count, CHILD_SIZES)
        own = rng.random(count) < 0.3
        cells[0] = np.where(own, parent % CHILD_SIZES[0], cells[0]).astype(np.int8)
        _write_part(folder / "children" / f"{part:04d}.parquet", {"parent": parent, **_named(cells)})
    lines = [f'[attributes.a{i}]\nkind = "coded"\nsize = {size}\n' for i, size in enumerate(CHILD_SIZES)]
    (folder / "children.toml").write_text("".join(lines))
    link = {"kind": "one-to-many", "parent": "parents", "child": "children", "child_key": "parent", "max_degree": MOST}
    return {"tables": {"parents": _section(folder, "parents", key="id"), "children": _section(folder, "children")},
            "link": [link]}  # fmt: skip


def write_pairs(folder: Path, links: int) -> dict[str, Any]:
    """Write two public tables and a table of pairs between them; return the job."""
    parents, films = max(links // CHILDREN, 1), max(links // 100, 1)
    write_table(folder, "parents", parents, PARENT_SIZES, 0, "id")
    write_table(folder, "films", films, CHILD_SIZES, 2, "film")
    (folder / "seen").mkdir()
    for part, first in enumerate(range(0, links, PART)):
        rng, count = np.random.default_rng((3, part)), min(PART, links - first)
        pairs = {"id": rng.integers(0, parents, count), "film": (rng.beta(1, 3, count) * films).astype(np.int64)}
        _write_part(folder / "seen" / f"{part:04d}.parquet", pairs)
    link = {"kind": "many-to-many", "name": "seen", "parent": "parents", "child": "films", "child_key": "film",
            "via": f"{folder}/seen/*.parquet", "max_degree": MOST}  # fmt: skip
    sections = {"parents": _section(folder, "parents", key="id", public=True),
                "films": _section(folder, "films", key="film", public=True)}  # fmt: skip
    return {"tables": sections, "link": [link]}


def _section(folder: Path, name: str, **more: Any) -> dict[str, Any]:
    return {"path": f"{folder}/{name}/*.parquet", "domain": f"{folder}/{name}.toml", **more}


SHAPES = {"children": write_children, "pairs": write_pairs}


def run_once(job: str, run_dir: str) -> None:
    """Run the job of a file in this process."""
    import dpscale as dp

    dp.run(json.loads(Path(job).read_text()), run_dir)


def measure_links(shape: str, links: int, scheduler: str, memory: str) -> tuple[float, float, float]:
    """Return seconds, CPU seconds, and bytes at the peak."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        job = SHAPES[shape](folder, links)
        job["privacy"] = {"epsilon": 1.0, "delta": 1e-9, "dataset": "links", "ledger": str(folder / "ledger.sqlite")}
        job["engine"] = {"scheduler": scheduler, "memory": memory}
        (folder / "job.json").write_text(json.dumps(job))
        began = time.perf_counter()
        child = subprocess.Popen(
            [sys.executable, __file__, "links", "--run", str(folder / "job.json"), str(folder / "run")]
        )
        peaks: dict[str, int] = {}
        watcher = threading.Thread(target=_watch, args=(child, folder / "run/manifest.json", peaks))
        watcher.start()
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        watcher.join()
        if child.returncode:
            raise SystemExit(f"the run of {links} links failed")
        stages = json.loads((folder / "run/manifest.json").read_text())["stages"]
        print("; ".join(f"{one} {_seconds(own):.0f} s {peaks.get(one, 0) / 1e9:.2f} GB" for one, own in stages.items()),
              file=sys.stderr)  # fmt: skip
        return time.perf_counter() - began, used.ru_utime + used.ru_stime, float(max(peaks.values()))


def _watch(child: subprocess.Popen[bytes], manifest: Path, peaks: dict[str, int]) -> None:
    """Record the largest resident memory of the run in each stage."""
    while child.returncode is None:
        stage = "start"
        with suppress(OSError, ValueError, IndexError):
            stage = list(json.loads(manifest.read_text())["stages"])[-1]
        peaks[stage] = max(peaks.get(stage, 0), sum(map(_resident, _family(child.pid))))
        time.sleep(SAMPLE)


def _family(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    found, waiting = [], [pid]
    while waiting:
        found.append(one := waiting.pop())
        for listed in Path(f"/proc/{one}/task").glob("*/children"):
            try:
                waiting.extend(map(int, listed.read_text().split()))
            except OSError:
                continue
    return found


def _resident(pid: int) -> int:
    """Return the proportional resident bytes of a process; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS:"))


def print_links() -> None:
    """Scale of links: processor time, bytes and peak memory of a whole run, by the number of links.

    Two databases, written part by part: parents with children (one-to-many, ten children per parent on average, at most
    20 count), and a table of pairs of public rows. Each run is a process of its own; CPU seconds are those of the
    process and of its workers, and the peak is the largest sum of their resident memory. The figures at the margin are
    the differences between two sizes divided by that of their links. `PYTHONPATH` of another commit measures that
    commit.

        python benchmarks/large.py links [--links 1000000,3000000] [--shape children|pairs] [--scheduler threads]
        python benchmarks/large.py links --large
    """
    parser = base.command_parser(print_links.__doc__)
    parser.add_argument("--links", default="1000000,3000000", help="numbers of links, in ascending order")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="children")
    parser.add_argument("--scheduler", default="threads")
    parser.add_argument("--memory", default="1GiB")
    parser.add_argument("--large", action="store_true", help="also 10 million and 100 million links")
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        run_once(*given.run)
        return
    numbers = [int(one) for one in given.links.split(",")] + [10**7, 10**8] * given.large
    before = None
    for links in numbers:
        seconds, cpu, peak = measure_links(given.shape, links, given.scheduler, given.memory)
        line = f"{links:>12,} {given.shape}: {seconds:7.1f} s, CPU {cpu:7.1f} s, peak {peak / 1e9:5.2f} GB"
        if before is not None:
            more = links - before[0]
            line += f"; at the margin {(cpu - before[1]) / more * 1e6:5.2f} µs"
            line += f" and {(peak - before[2]) / more:5.0f} B per link"
        print(line, flush=True)
        before = links, cpu, peak


COMMANDS = {
    "job": print_job,
    "many_rows": print_many_rows,
    "many_sets": print_many_sets,
    "wide_adaptive": print_wide_adaptive,
    "growth": print_growth,
    "links": print_links,
}

if __name__ == "__main__":
    base.run_command(COMMANDS, __doc__)
