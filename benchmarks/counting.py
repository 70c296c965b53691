"""Counting of all k-way marginals from Parquet: dpscale against alternatives, in one run on the same files.

Every contender runs in its own process, on the same cores, twice (the first run warms caches), and is monitored from
outside. Slow ones count a sample of rows or sets, and their times are scaled; they are marked with ~. The last lines
are the limits of the machine: reading every code once from memory, and one increment per row and set in a small table.

    python benchmarks/counting.py [--rows 10000000] [--only mixed|four|binary|acs|memory|scaling] [--save]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import base
import numpy as np
import psutil
from counting_peers import PEERS, Result

HERE = Path(__file__).resolve()
DEGREE = 3
REPEATED = ("dpscale", "bincount", "chunks", "loop")
TABLES = {"mixed": "2,4,10,50", "four": "4", "binary": "2"}
ACS = ("acs", 378_817, 66, "2,3,4,5,7")
MEMORY = ("memory", 1_000_000, 40, "40")


def generate_table(place: Path, name: str, rows: int, attributes: int, sizes: str) -> Path:
    """Generate a table and return its folder."""
    options = ["--rows", rows, "--attributes", attributes, "--sizes", sizes, "--files", 16]
    command = [sys.executable, HERE.parent.parent / "data" / "generate.py", place / name, *options]
    subprocess.run([str(part) for part in command], check=True)
    return place / name


def dpscale(place: Path, cores: int, sets: Sequence[tuple[str, ...]], memory: int = 4 << 30) -> Result:
    """Count in passes under the memory setting, on threads; the counts of a pass are released after it."""
    import dpscale as dp
    from dpscale.engine.counting import partition_groups, plan_passes, run_pass
    from dpscale.engine.schedulers import LocalEngine

    domain = dp.Domain.read(place / "domain.toml")
    table, engine = dp.Table.open(place / "table", domain).split(), LocalEngine("threads", cores)
    groups, cells = partition_groups(table.partitions, cores), 0
    passes = plan_passes(domain, sets, memory, cores)
    for one in passes:
        cells += sum(counts.size for counts in run_pass(engine, one, groups))
    saving = passes[0].cover(1 << 22).saving
    return {"passes": len(passes), "cells": cells, "joints": saving.joints, "planes": saving.planes}


CONTENDERS: dict[str, Callable[..., Result]] = {"dpscale": dpscale, **PEERS}


# A process of its own


def run_contender(name: str, place: Path, cores: int, repeats: int, memory: int) -> None:
    from dpscale.domain import Domain

    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-cores:])
    sets = list(combinations(Domain.read(place / "domain.toml").names, DEGREE))
    if place.name == MEMORY[0]:
        sets = [few for k in (1, 2, 3) for few in combinations(Domain.read(place / "domain.toml").names, k)]
    for _ in range(repeats):
        begin, busy = time.perf_counter(), time.process_time()
        figures = CONTENDERS[name](place, cores, sets, *([memory] if name == "dpscale" else []))
        wall, busy = figures.pop("asked", time.perf_counter() - begin), time.process_time() - busy
    print(json.dumps({"wall": wall, "busy": busy, "sets": len(sets), **figures}))


def run_monitored(name: str, place: Path, cores: int = 1, repeats: int = 2, memory: int = 4 << 30) -> Result:
    """Run a contender in a process; return its figures and its peak memory as seen from outside."""
    command = [sys.executable, HERE, "--child", name, "--place", place, "--cores", cores, "--repeats", repeats,
               "--memory", memory]  # fmt: skip
    process = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, text=True)
    peak = [0]
    watcher = threading.Thread(target=_monitor_memory, args=(process, peak))
    watcher.start()
    out = process.communicate()[0]
    watcher.join()
    if process.returncode:
        return {}
    return {"peak": peak[0] / 2**30, "scale": 1.0, **json.loads(out)}


def _monitor_memory(process: subprocess.Popen[str], peak: list[int]) -> None:
    while process.poll() is None:
        try:
            peak[0] = max(peak[0], psutil.Process(process.pid).memory_info().rss)
        except psutil.NoSuchProcess:
            return
        time.sleep(0.01)


# What is printed


def table_size(place: Path) -> tuple[int, int]:
    """Return the number of rows and the bytes of all columns in the files."""
    import pyarrow.parquet as pq

    rows = size = 0
    for path in sorted((place / "table").glob("*.parquet")):
        footer = pq.read_metadata(path)
        rows += footer.num_rows
        groups = [footer.row_group(group) for group in range(footer.num_row_groups)]
        size += sum(group.column(c).total_compressed_size for group in groups for c in range(group.num_columns))
    return rows, size


def per_count(found: Result, rows: int, cores: int = 1) -> float:
    """Return nanoseconds per row, marginal and core."""
    return found["wall"] * found["scale"] * cores / rows / found["sets"] * 1e9


def race(place: Path, title: str, names: Sequence[str]) -> Result:
    """Print the table; return our nanoseconds per row and set, and the ratios of the others to it."""
    rows, size = table_size(place)
    every = {name: run_monitored(name, place, repeats=2 if name in REPEATED else 1) for name in names}
    own = every["dpscale"]
    print(
        f"{title}: {rows:,} rows, {own['sets']:,} sets, one core; dpscale and Dask from Parquet, the others from memory"
    )
    print(f"  {'':14} {'seconds':>10} {'ns/row/set':>11} {'to dpscale':>11} {'peak GiB':>9} {'bytes read':>12}")
    for name, found in every.items():
        if not found:
            print(f"  {name:14} failed or is not installed")
            continue
        mark = "~" if found["scale"] != 1 else " "
        read = f"{size * found['passes'] / 2**20:10.1f}Mi" if name == "dpscale" else ""
        whole, each = found["wall"] * found["scale"], per_count(found, rows)
        against = each / per_count(own, rows)
        print(f"  {name:14}{mark}{whole:10.2f} {each:11.4f} {against:11.1f} {found['peak']:9.2f} {read:>12}")
    increment = measure_limits(len(place_names(place)), int(own["sets"]))
    print(f"  CPU seconds of dpscale {own['busy']:.2f} (more wall than that: others had the core)")
    print(f"  joints counted {own['joints']:.0f}, sets by bit planes {own['planes']:.0f}, passes {own['passes']:.0f}")
    base = per_count(own, rows)
    others = {name: per_count(found, rows) / base for name, found in every.items() if found and name != "dpscale"}
    return {"ns": base, "increment ns": increment, **others}


def place_names(place: Path) -> tuple[str, ...]:
    from dpscale.domain import Domain

    return Domain.read(place / "domain.toml").names


def measure_limits(attributes: int, sets: int) -> float:
    """Print the limits of the machine, and return the nanoseconds of an increment per row and set.

    The limits are one read of all codes from memory, and one increment per row and set.
    """
    from numba import njit

    @njit(nogil=True)  # type: ignore[misc]
    def increments(codes: Any, counters: Any) -> None:
        for r in range(len(codes)):
            counters[codes[r]] += 1

    source = np.zeros(1 << 28, dtype=np.uint8)
    codes, counters = np.random.default_rng(0).integers(0, 4096, 1 << 16).astype(np.uint16), np.zeros(4096, np.uint32)
    increments(codes, counters)
    read = best_time(lambda: source.view(np.uint64).max()) / len(source)
    step = best_time(lambda: [increments(codes, counters) for _ in range(16)]) / (16 * len(codes))
    print(f"  {'limits':14} codes once through memory {1e9 * read * attributes / sets:.5f} ({1e-9 / read:.1f} GB/s); "
          f"an increment a row and set {1e9 * step:.3f} ns/row/set")  # fmt: skip
    return 1e9 * step


def best_time(work: Callable[[], Any]) -> float:
    took = []
    for _ in range(5):
        begin = time.perf_counter()
        work()
        took.append(time.perf_counter() - begin)
    return min(took)


def print_scaling(place: Path, title: str) -> None:
    rows, _ = table_size(place)
    one, two = (run_monitored("dpscale", place, cores) for cores in (1, 2))
    efficiency = one["wall"] / (2 * two["wall"])
    print(f"{title}: 1 core {one['wall']:.2f} s (CPU {one['busy']:.2f}), 2 cores {two['wall']:.2f} s "
          f"(CPU {two['busy']:.2f}), efficiency {efficiency:.2f} (aim 0.85), "
          f"{per_count(two, rows, 2):.4f} ns/row/set/core on two")  # fmt: skip


def print_acs(place: Path) -> None:
    rows, _ = table_size(place)
    two = run_monitored("dpscale", place, 2)
    print(f"ACS-like: {rows:,} rows × 66 attributes, all {two['sets']:,} 3-way marginals, 2 cores: {two['wall']:.2f} s "
          f"(aim 30), peak {two['peak']:.2f} GiB")  # fmt: skip


def print_memory(place: Path) -> None:
    for gib in (1, 2, 4):
        found = run_monitored("dpscale", place, 2, 1, gib << 30)
        print(f"memory {gib} GiB: {found['sets']:,} sets, {found['cells']:,} cells, {found['passes']:.0f} passes, "
              f"{found['wall']:.1f} s, peak {found['peak']:.2f} GiB, {found['peak'] / gib:.2f} of it")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000, help="100000000 for the full figures")
    parser.add_argument("--only", choices=[*TABLES, "acs", "memory", "scaling"])
    parser.add_argument("--peers", default=",".join(CONTENDERS))
    parser.add_argument("--save", action="store_true", help="keep the figures of the mixed table in results/")
    for name in ("--child", "--place"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    for name in ("--cores", "--repeats", "--memory"):
        parser.add_argument(name, type=int, default=1, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        run_contender(given.child, Path(given.place), given.cores, given.repeats, given.memory)
        return
    wanted = [given.only] if given.only else [*TABLES, "acs", "scaling", "memory"]
    with tempfile.TemporaryDirectory(dir=given.place) as folder:
        found = run(Path(folder), wanted, given.rows, given.peers.split(","))
    if given.save:
        base.save("counting", found)


def run(place: Path, wanted: Sequence[str], rows: int, peers: Sequence[str]) -> Result:
    """Run the selected parts and return the figures of the mixed table."""
    found: dict[str, Result] = {}
    for name, sizes in TABLES.items():
        if name in wanted:
            made = generate_table(place, name, rows, 20, sizes)
            found[name] = race(made, f"sizes {sizes}", peers if name == "mixed" else peers[:2])
    if "scaling" in wanted:
        print_scaling(generate_table(place, "scaling", rows, 20, TABLES["mixed"]), "scaling, mixed sizes")
    if "acs" in wanted:
        print_acs(generate_table(place, *ACS))
    if "memory" in wanted:
        print_memory(generate_table(place, *MEMORY))
    return found.get("mixed", {})


if __name__ == "__main__":
    main()
