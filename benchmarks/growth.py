"""Growth of work: CPU seconds, peak memory, and the cost of more work, in a new process per size.

rows: counting and answering all 2-way marginals of 10 attributes as in a job, and the counting alone by DuckDB and by
Polars from the same files; attributes: planning all pairs; cells: planning a 1-way prefix; sets: planning 1-way range +
2-way affine + 3-way prefix ([10]^d); files: opening a folder of small files and counting all pairs. The marginal cost
of a step is the difference of seconds over that of work (rows, sets, cells or files), which fixed costs do not dilute.
With marginal costs m and m' of the last two steps and geometric means w and w' of their work, the exponent is
1 + log(m'/m) / log(w'/w).

    python benchmarks/growth.py [--kinds rows attributes cells sets files] [--most 1000000] [--save]
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import tempfile
from itertools import combinations, pairwise
from pathlib import Path

import base
import numpy as np

SIZES = {
    "rows": (1_000_000, 10_000_000, 100_000_000),
    "attributes": (20, 300, 1_000),
    "cells": (100, 10_000, 1_000_000),
    "sets": (20, 60, 200),
    "files": (1_000, 10_000, 100_000),
}
PEERS = ("duckdb", "polars")
ATTRIBUTES, CELLS, CHUNK, FILE_ROWS = 10, 8, 1_000_000, 10
NAMES = [f"x{i}" for i in range(ATTRIBUTES)]


def cpu_seconds() -> float:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


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

    before = cpu_seconds()
    dp.run(str(folder / "job.toml"), run_dir=folder / "run")
    return cpu_seconds() - before


def run_duckdb(folder: Path) -> float:
    import duckdb

    base, before = duckdb.connect(), cpu_seconds()
    base.execute(f"CREATE TABLE t AS SELECT * FROM '{folder}/data/*.parquet'")
    for one, other in combinations(NAMES, 2):
        base.execute(f"SELECT {one}, {other}, count(*) FROM t GROUP BY ALL").fetchall()
    return cpu_seconds() - before


def run_polars(folder: Path) -> float:
    import polars

    before = cpu_seconds()
    frame = polars.read_parquet(folder / "data" / "*.parquet")
    for pair in combinations(NAMES, 2):
        frame.group_by(list(pair)).len()
    return cpu_seconds() - before


def run_files(folder: Path) -> float:
    """Return the CPU seconds of listing the files of a folder and of counting all pairs of attributes."""
    import dpscale as dp

    before = cpu_seconds()
    table = dp.Table.open(folder / "data", dp.Domain(dict.fromkeys(NAMES, CELLS)))
    dp.count_marginals(table, list(combinations(NAMES, 2)))
    return cpu_seconds() - before


def time_plan(make_workload) -> float:  # type: ignore[no-untyped-def]
    import dpscale as dp
    from dpscale import mechanisms

    mechanisms.mechanism("weighted-residuals")
    before = cpu_seconds()
    dp.plan(make_workload())
    return cpu_seconds() - before


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
        return {kind: base.run_separately(__file__, [kind, size])}
    with tempfile.TemporaryDirectory() as place:
        if kind == "files":
            write_rows(Path(place), FILE_ROWS * size, FILE_ROWS)
            return {kind: base.run_separately(__file__, [kind, size, place])}
        write_rows(Path(place), size)
        return {name: base.run_separately(__file__, [name, size, place]) for name in (kind, *PEERS)}


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="*", default=list(SIZES), choices=list(SIZES))
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
            run_sizes(kind, SIZES[kind][1])  # compiles loops
        every: dict[str, list[tuple[float, float]]] = {}
        for size in (size for size in SIZES[kind] if size <= given.most):
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


if __name__ == "__main__":
    main()
