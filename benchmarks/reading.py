"""Reading of Parquet: rows to cell numbers, against pyarrow, Polars and DuckDB on the same files, on one core.

dpscale computes cell numbers by the rules of the domain; the others produce arrays of values (DuckDB: a sum or the
longest text of every column, because its rows arrive one by one in Python). All seconds are CPU seconds, the best of
several turns. `pyarrow, encoded` is what dpscale does for a column without dictionary: pyarrow's values, each encoded.

Columns in the names of folders and small row groups are ratios alone.

    python benchmarks/reading.py [--rows 2000000] [--files 3000] [--turns 3] [--save]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import base
import numpy as np

os.environ["POLARS_MAX_THREADS"] = "1"
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
AIMS = {"row": 35.0, "file": 0.3}
Figures = dict[str, float]


def write(path: Path, kind: str, codec: str, nulls: float, rows: int, seed: int = 0) -> None:
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


def contenders(place: Path, kind: str) -> dict[str, Callable[[], object]]:
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


def race(every: dict[str, Callable[[], object]], turns: int) -> Figures:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--files", type=int, default=3000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--save", action="store_true", help="keep the figures in results/")
    given = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-1:])
    with tempfile.TemporaryDirectory(dir=".") as folder:
        figures = run(Path(folder).resolve(), given)
    if given.save:
        base.save("reading", figures)


def run(place: Path, given: argparse.Namespace) -> Figures:
    """Return all figures: ns per row of 20 columns, ms per small file."""
    figures: Figures = {}
    for title, how in KINDS.items():
        (place / title).mkdir()
        write(place / title / "x.parquet", *how, given.rows)
        took = race(contenders(place / title, how[0]), given.turns)
        figures |= print_figures(
            title, {name: 1e9 * one / given.rows for name, one in took.items()}, AIMS["row"], "ns a row"
        )
    (place / "small").mkdir()
    for number in range(given.files):
        write(place / "small" / f"{number:04d}.parquet", "uint8", "snappy", 0.0, SMALL_ROWS, number)
    took = race(contenders(place / "small", "uint8"), given.turns)
    figures |= print_figures(
        "small files", {name: 1e3 * one / given.files for name, one in took.items()}, AIMS["file"], "ms"
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
    took = race({
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

        took = race({"dpscale": lambda: count(small), "without the path of small groups": lambda: count(0),
                     "pyarrow's values": read_values}, given.turns)  # fmt: skip
        figures |= print_ratios(f"{len(table) // rows:,} row groups of {rows:,} rows, 5 columns", took)
    parquet.SMALL_GROUP = small
    return figures


def print_ratios(title: str, took: Figures) -> Figures:
    """Print the CPU seconds of dpscale over those of its peers and return the ratios."""
    ratios = {peer: took["dpscale"] / seconds for peer, seconds in took.items() if peer != "dpscale"}
    print(f"{title}: {', '.join(f'{value:.2f} times {peer}' for peer, value in ratios.items())}", flush=True)
    return {f"{title}, over {peer}": value for peer, value in ratios.items()}


if __name__ == "__main__":
    main()
