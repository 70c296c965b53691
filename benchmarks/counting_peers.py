"""Peers of `counting.py`: each counts all marginals, or some, and states by what its time is multiplied.

Those in memory are timed without reading: `bincount`, `chunks` and `loop` count a sample of the rows of all sets, the
databases and frames a sample of the sets over all rows.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

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
