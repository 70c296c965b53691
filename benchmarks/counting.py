"""Counting and reading of Parquet, against other tools on the same files.

    python benchmarks/counting.py marginals    counting of all k-way marginals
    python benchmarks/counting.py reading      reading: rows to cell numbers

A contender imports its modules in functions, since the memory of its process is measured.
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
from base import generate_table

SAMPLE_SETS, SAMPLE_ROWS, CHUNK = 24, 1 << 20, 1 << 14
Result = dict[str, float]
Sample = tuple[dict[tuple[str, ...], tuple[int, ...]], dict[str, np.ndarray], float]


def read_sample(place: Path, sets: Sequence[tuple[str, ...]]) -> Sample:
    """Return the shapes of the sets, the columns of some rows, and the number of all rows over those."""
    import pyarrow.parquet as pq

    import dpscale as dp

    domain = dp.Domain.read(place / "domain.toml")
    rows = sum(pq.read_metadata(path).num_rows for path in (place / "table").glob("*.parquet"))
    part = next(pq.ParquetFile(place / "table" / "part-00000.parquet").iter_batches(SAMPLE_ROWS))
    columns = {name: part[name].to_numpy() for name in domain.names}
    return {names: domain.shape(names) for names in sets}, columns, rows / len(part)


def bincount(place: Path, cores: int, sets: Sequence[tuple[str, ...]]) -> Result:
    """Count with numpy.bincount in a loop over the sets, on a sample of the rows in memory."""
    shapes, columns, scale = read_sample(place, sets)
    begin = time.perf_counter()
    for names, shape in shapes.items():
        joint = np.ravel_multi_index([columns[name] for name in names], shape)
        np.bincount(joint, minlength=int(np.prod(shape)))
    return {"asked": time.perf_counter() - begin, "scale": scale}


def chunks(place: Path, cores: int, sets: Sequence[tuple[str, ...]]) -> Result:
    """Count with numpy.bincount in chunks of rows that fit the cache, with small integers, on the same sample."""
    shapes, columns, scale = read_sample(place, sets)
    columns = {name: values.astype(np.int32) for name, values in columns.items()}
    begin = time.perf_counter()
    for names, shape in shapes.items():
        first, *others = names
        total = np.zeros(int(np.prod(shape)), np.int64)
        for start in range(0, len(columns[first]), CHUNK):
            joint = columns[first][start : start + CHUNK]
            for name, size in zip(others, shape[1:], strict=True):
                joint = joint * np.int32(size) + columns[name][start : start + CHUNK]
            total += np.bincount(joint, minlength=len(total))
    return {"asked": time.perf_counter() - begin, "scale": scale}


def loop(place: Path, cores: int, sets: Sequence[tuple[str, ...]]) -> Result:
    """Count with a loop of three lines that Numba compiles, on the same sample."""
    from numba import njit

    @njit(nogil=True)  # type: ignore[misc]
    def count(a: Any, b: Any, c: Any, counts: Any) -> None:
        for row in range(len(a)):
            counts[a[row], b[row], c[row]] += 1

    shapes, columns, scale = read_sample(place, sets)
    columns = {name: values.astype(np.uint8) for name, values in columns.items()}
    counts = {names: np.zeros(shape, np.int32) for names, shape in shapes.items()}
    count(*(columns[name][:1] for name in sets[0]), counts[sets[0]].copy())
    begin = time.perf_counter()
    for names in sets:
        count(*(columns[name] for name in names), counts[names])
    return {"asked": time.perf_counter() - begin, "scale": scale}


def pyarrow_group_by(place: Path, cores: int, sets: Sequence[tuple[str, ...]]) -> Result:
    """Count with a group_by for each set over a table in memory, on a sample of the sets."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pa.set_cpu_count(cores)
    table = pq.read_table(place / "table").combine_chunks()
    return time_sets(sets, lambda names: table.group_by(names).aggregate([([], "count_all")]))


def duckdb(place: Path, cores: int, sets: Sequence[tuple[str, ...]]) -> Result:
    """Count with a GROUP BY for each set over a table in memory, on a sample of the sets."""
    import duckdb

    base = duckdb.connect()
    base.execute(f"SET threads = {cores}")
    base.execute(f"CREATE TABLE t AS SELECT * FROM '{place / 'table'}/*.parquet'")
    return time_sets(sets, lambda names: base.execute(
        f"SELECT {', '.join(names)}, count(*) FROM t GROUP BY {', '.join(names)}").fetchnumpy())  # fmt: skip


def grouping_sets(place: Path, cores: int, sets: Sequence[tuple[str, ...]]) -> Result:
    """Count with one query of DuckDB with GROUPING SETS over a table in memory, on a sample of the sets."""
    import duckdb

    base = duckdb.connect()
    base.execute(f"SET threads = {cores}")
    base.execute(f"CREATE TABLE t AS SELECT * FROM '{place / 'table'}/*.parquet'")
    some = sets[:: max(len(sets) // SAMPLE_SETS, 1)][:SAMPLE_SETS]
    names = ", ".join(sorted({name for one in some for name in one}))
    groups = ", ".join(f"({', '.join(one)})" for one in some)
    begin = time.perf_counter()
    base.execute(f"SELECT {names}, count(*) FROM t GROUP BY GROUPING SETS ({groups})").fetchnumpy()
    return {"asked": time.perf_counter() - begin, "scale": len(sets) / len(some)}


def polars(place: Path, cores: int, sets: Sequence[tuple[str, ...]]) -> Result:
    """Count with a group_by for each set over a frame in memory, on a sample of the sets."""
    os.environ["POLARS_MAX_THREADS"] = str(cores)
    import polars

    frame = polars.read_parquet(place / "table" / "*.parquet")
    return time_sets(sets, lambda names: frame.group_by(names).len())


def dask_groupby(place: Path, cores: int, sets: Sequence[tuple[str, ...]]) -> Result:
    """Count a few sets with groupby of dask.dataframe, computed together."""
    import dask
    import dask.dataframe as dd

    some = sets[:: max(len(sets) // 8, 1)][:8]
    frame = dd.read_parquet(place / "table")
    counts = [frame.groupby(list(names)).size() for names in some]
    dask.compute(*counts, scheduler="threads", num_workers=cores)
    return {"scale": len(sets) / len(some)}


def time_sets(sets: Sequence[tuple[str, ...]], ask: Callable[[tuple[str, ...]], Any]) -> Result:
    some = sets[:: max(len(sets) // SAMPLE_SETS, 1)][:SAMPLE_SETS]
    begin = time.perf_counter()
    for names in some:
        ask(names)
    return {"asked": time.perf_counter() - begin, "scale": len(sets) / len(some)}


PEERS: dict[str, Callable[..., Result]] = {
    "bincount": bincount,
    "chunks": chunks,
    "loop": loop,
    "duckdb": duckdb,
    "grouping_sets": grouping_sets,
    "pyarrow": pyarrow_group_by,
    "polars": polars,
    "dask_groupby": dask_groupby,
}


DEGREE, FILES = 3, 16
REPEATED = ("dpscale", "bincount", "chunks", "loop")
TABLES = {"mixed": "2,4,10,50", "four": "4", "binary": "2"}
ACS = ("acs", 378_817, 66, "2,3,4,5,7")
MEMORY = ("memory", 1_000_000, 40, "40")


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
    command = [sys.executable, __file__, "marginals", "--child", name, "--place", place, "--cores", cores,
               "--repeats", repeats, "--memory", memory]  # fmt: skip
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


def race_contenders(place: Path, title: str, names: Sequence[str]) -> Result:
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


def print_marginals() -> None:
    """Counting of all k-way marginals from Parquet: dpscale against alternatives, in one run on the same files.

    Every contender runs in its own process, on the same cores, twice (the first run warms caches), and is monitored
    from outside. Slow ones count a sample of rows or sets, and their times are scaled; they are marked with ~. The last
    lines are the limits of the machine: reading every code once from memory, and one increment per row and set in a
    small table.

        python benchmarks/counting.py marginals [--rows 10000000] [--only mixed|four|binary|acs|memory|scaling] [--save]
    """
    parser = base.command_parser(print_marginals.__doc__)
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
        found = run_counting(Path(folder), wanted, given.rows, given.peers.split(","))
    if given.save:
        base.save("counting", found)


def run_counting(place: Path, wanted: Sequence[str], rows: int, peers: Sequence[str]) -> Result:
    """Run the selected parts and return the figures of the mixed table."""
    found: dict[str, Result] = {}
    for name, sizes in TABLES.items():
        if name in wanted:
            made = generate_table(place, name, rows, 20, sizes, FILES)
            found[name] = race_contenders(made, f"sizes {sizes}", peers if name == "mixed" else peers[:2])
    if "scaling" in wanted:
        print_scaling(generate_table(place, "scaling", rows, 20, TABLES["mixed"], FILES), "scaling, mixed sizes")
    if "acs" in wanted:
        print_acs(generate_table(place, *ACS, FILES))
    if "memory" in wanted:
        print_memory(generate_table(place, *MEMORY, FILES))
    return found.get("mixed", {})


SIZES = [2, 4, 10, 50] * 5
NAMES = [f"x{index:02d}" for index in range(len(SIZES))]
SMALL_ROWS, REGIONS = 300, 6
KINDS = {
    "numbers, snappy": ("int64", "snappy", 0.0),
    "numbers, zstd": ("int64", "zstd", 0.0),
    "texts, snappy": ("text", "snappy", 0.0),
    "texts, zstd": ("text", "zstd", 0.0),
    "numbers, 5 % nulls": ("int64", "snappy", 0.05),
    "small numbers, snappy": ("uint8", "snappy", 0.0),
}
READING_AIMS = {"row": 35.0, "file": 0.3}
Figures = dict[str, float]


def write_columns(path: Path, kind: str, codec: str, nulls: float, rows: int, seed: int = 0) -> None:
    """Write a file of uniformly drawn rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    random, columns = np.random.default_rng(seed), {}
    for name, size in zip(NAMES, SIZES, strict=True):
        cells = random.integers(0, size, rows)
        drawn = np.array([f"value {v}" for v in range(size)])[cells] if kind == "text" else cells.astype(kind)
        columns[name] = pa.array(drawn, mask=random.random(rows) < nulls if nulls else None)
    pq.write_table(pa.table(columns), path, compression=codec)


def make_domain(kind: str) -> Any:
    import dpscale as dp

    if kind != "text":
        each = {
            name: {"kind": "coded", "size": size, "nulls": "category"} for name, size in zip(NAMES, SIZES, strict=True)
        }
    else:
        each = {name: {"kind": "categories", "values": [f"value {v}" for v in range(size)]}
                for name, size in zip(NAMES, SIZES, strict=True)}  # fmt: skip
    return dp.Domain.from_dict({"attributes": each})


def readers(place: Path, kind: str) -> dict[str, Callable[[], object]]:
    """Return the readers, each of which reads all files of a folder once."""
    import duckdb
    import polars
    import pyarrow.parquet as pq

    from dpscale.counting.count import encode_batch, encoded
    from dpscale.records.files import batch_rows
    from dpscale.records.table import Table

    domain, base = make_domain(kind), duckdb.connect()
    base.execute("SET threads = 1")
    partitions, what = Table.open(place, domain).split().partitions, "max(length({}))" if kind == "text" else "sum({})"
    expressions, files = ", ".join(what.format(name) for name in NAMES), sorted(map(str, place.glob("*.parquet")))

    def encode_values() -> None:
        for part in partitions:
            for batch in part.batches(NAMES):
                encode_batch(domain, batch, NAMES)

    def read_values() -> None:
        for path in files:
            with pq.ParquetFile(path, memory_map=True, read_dictionary=NAMES if kind == "text" else []) as file:
                for _ in file.iter_batches(batch_rows(len(NAMES)), use_threads=False):
                    pass

    return {
        "dpscale": lambda: [0 for _ in encoded(domain, partitions, NAMES)],
        "pyarrow, encoded": encode_values,
        "pyarrow": read_values,
        "polars": lambda: [polars.read_parquet(path) for path in files],
        "duckdb": lambda: base.execute(f"SELECT {expressions} FROM '{place}/*.parquet'").fetchall(),
    }


def race_readers(every: dict[str, Callable[[], object]], turns: int) -> Figures:
    """Return the best CPU seconds of each reader over some turns after a warm-up; the readers run in turns."""
    took: dict[str, list[float]] = {name: [] for name in every}
    for _ in range(turns + 1):
        for name, work in every.items():
            begin = time.process_time()
            work()
            took[name].append(time.process_time() - begin)
    return {name: min(seconds[1:]) for name, seconds in took.items()}


def print_figures(title: str, found: Figures, aim: float, unit: str) -> Figures:
    text = "  ".join(f"{name} {value:.3g}" for name, value in found.items())
    print(f"{title:28} {unit}: {text}; {found['dpscale'] / aim:.2f} of the aim", flush=True)
    return {f"{title}, {name}": value for name, value in found.items()}


def print_reading() -> None:
    """Reading of Parquet: rows to cell numbers, against pyarrow, Polars and DuckDB on the same files, on one core.

    dpscale computes cell numbers by the rules of the domain; the others produce arrays of values (DuckDB: a sum or the
    longest text of every column, because its rows arrive one by one in Python). All seconds are CPU seconds, the best
    of several turns. `pyarrow, encoded` is what dpscale does for a column without dictionary: pyarrow's values, each
    encoded.

    Columns in the names of folders and small row groups are ratios alone.

        python benchmarks/counting.py reading [--rows 2000000] [--files 3000] [--turns 3] [--save]
    """
    parser = base.command_parser(print_reading.__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--files", type=int, default=3000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--save", action="store_true", help="keep the figures in results/")
    given = parser.parse_args()
    os.environ["POLARS_MAX_THREADS"] = "1"
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-1:])
    with tempfile.TemporaryDirectory(dir=".") as folder:
        figures = run_reading(Path(folder).resolve(), given)
    if given.save:
        base.save("reading", figures)


def run_reading(place: Path, given: argparse.Namespace) -> Figures:
    """Return all figures: ns per row of 20 columns, ms per small file."""
    figures: Figures = {}
    for title, how in KINDS.items():
        (place / title).mkdir()
        write_columns(place / title / "x.parquet", *how, given.rows)
        took = race_readers(readers(place / title, how[0]), given.turns)
        figures |= print_figures(
            title, {name: 1e9 * one / given.rows for name, one in took.items()}, READING_AIMS["row"], "ns a row"
        )
    (place / "small").mkdir()
    for number in range(given.files):
        write_columns(place / "small" / f"{number:04d}.parquet", "uint8", "snappy", 0.0, SMALL_ROWS, number)
    took = race_readers(readers(place / "small", "uint8"), given.turns)
    figures |= print_figures(
        "small files", {name: 1e3 * one / given.files for name, one in took.items()}, READING_AIMS["file"], "ms"
    )
    return figures | race_folders(place / "folders", given) | race_groups(place / "groups", given)


def race_folders(place: Path, given: argparse.Namespace) -> Figures:
    """Return the cost of days and regions in folder names over that of the files alone and of pyarrow's data set."""
    import pandas as pd
    import pyarrow as pa
    import pyarrow.dataset as ds
    import pyarrow.parquet as pq

    import dpscale as dp

    for number in range(given.files):
        day = pd.Timestamp("2023-01-01") + pd.Timedelta(days=number // REGIONS)
        folder = place / f"day={day:%Y-%m-%d}" / f"region=r{number % REGIONS}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"a": [0, 1, 2]}), folder / "p.parquet")
    regions = {"kind": "categories", "values": [f"r{number}" for number in range(REGIONS)]}
    days = {"kind": "date", "by": "month", "low": "2023-01", "high": "2026-12"}
    plain, placed = dp.Domain(a=3), dp.Domain(a=3, day=days, region=regions)
    names = ["day", "region", "a"]
    took = race_readers({
        "dpscale": lambda: dp.count_marginals(dp.Table.open(place, placed), [tuple(names)]),
        "the same files without folders": lambda: dp.count_marginals(dp.Table.open(place, plain), [("a",)]),
        "pyarrow's data set": lambda: ds.dataset(place, partitioning="hive").to_table(columns=names, use_threads=False),
    }, given.turns)  # fmt: skip
    return print_ratios(f"{given.files:,} files in folders of day and region", took)


def race_groups(place: Path, given: argparse.Namespace) -> Figures:
    """Return the cost of small row groups over that of pyarrow's values and of the path for large row groups."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    import dpscale as dp
    from dpscale.records import parquet

    place.mkdir()
    random, names = np.random.default_rng(0), [f"c{number}" for number in range(5)]
    table = pa.table({name: random.integers(0, 20, given.rows // 4) for name in names})
    domain = dp.Domain.from_dict({"attributes": {name: {"kind": "coded", "size": 20} for name in names}})
    small, figures = parquet.SMALL_GROUP, {}
    for rows in (100, 300, 1000, 3000, 10_000):
        pq.write_table(table, place / "x.parquet", row_group_size=rows)
        opened = dp.Table.open(place, domain)

        def count(limit: int, opened: dp.Table = opened) -> None:
            parquet.SMALL_GROUP = limit
            dp.count_marginals(opened, [(name,) for name in names])

        def read_values() -> None:
            with pq.ParquetFile(place / "x.parquet") as file:
                for _ in file.iter_batches(1 << 18, use_threads=False):
                    pass

        took = race_readers({"dpscale": lambda: count(small), "without the path of small groups": lambda: count(0),
                     "pyarrow's values": read_values}, given.turns)  # fmt: skip
        figures |= print_ratios(f"{len(table) // rows:,} row groups of {rows:,} rows, 5 columns", took)
    parquet.SMALL_GROUP = small
    return figures


def print_ratios(title: str, took: Figures) -> Figures:
    """Print the CPU seconds of dpscale over those of its peers and return the ratios."""
    ratios = {peer: took["dpscale"] / seconds for peer, seconds in took.items() if peer != "dpscale"}
    print(f"{title}: {', '.join(f'{value:.2f} times {peer}' for peer, value in ratios.items())}", flush=True)
    return {f"{title}, over {peer}": value for peer, value in ratios.items()}


COMMANDS = {
    "marginals": print_marginals,
    "reading": print_reading,
}

if __name__ == "__main__":
    base.run_command(COMMANDS, __doc__)
