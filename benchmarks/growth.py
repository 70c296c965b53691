"""How work grows: CPU seconds, peak memory and the exponent between neighbouring sizes, a fresh process for each size.

rows: counting and answering all 2-way marginals of 10 attributes; attributes: planning all pairs; cells: planning a
1-way prefix; sets: planning 1-way range + 2-way affine + 3-way prefix ([10]^d). The exponent is that of CPU seconds
beyond what the smallest size takes to start.

    python benchmarks/growth.py [--kinds rows attributes cells sets] [--large] [--save]
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import tempfile
from pathlib import Path

import numpy as np
import results

SIZES = {
    "rows": (1_000_000, 4_000_000, 16_000_000),
    "attributes": (50, 200, 800),
    "cells": (1_000, 30_000, 1_000_000),
    "sets": (20, 40, 80),
}
LARGE = {"rows": (100_000_000,), "attributes": (1_000,), "sets": (200,)}
ATTRIBUTES, CELLS, CHUNK = 10, 8, 1_000_000


def cpu() -> float:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def by_rows(rows: int) -> float:
    """A whole job over so many rows on threads; seconds of it alone."""
    import pandas as pd

    import dpscale as dp

    with tempfile.TemporaryDirectory() as place:
        folder, rng = Path(place), np.random.default_rng(1)
        (folder / "data").mkdir()
        names = [f"x{i}" for i in range(ATTRIBUTES)]
        for part in range(-(-rows // CHUNK)):
            codes = rng.integers(0, CELLS, (min(CHUNK, rows - part * CHUNK), ATTRIBUTES), dtype=np.int8)
            pd.DataFrame(codes, columns=names).to_parquet(folder / "data" / f"{part:04d}.parquet", index=False)
        lines = ["[attributes]", *(f'{name} = {{kind = "coded", size = {CELLS}}}' for name in names)]
        (folder / "domain.toml").write_text("\n".join(lines))
        job = ('[data]\npath = "data"\ndomain = "domain.toml"\n[privacy]\nepsilon = 1.0\ndelta = 1e-9\ndataset = "g"\n'
               'ledger = "ledger.sqlite"\n[[workload]]\nfamily = "marginal"\ndegree = 2\n')  # fmt: skip
        (folder / "job.toml").write_text(job)
        before = cpu()
        dp.run(str(folder / "job.toml"), run_dir=folder / "run")
        return cpu() - before


def planned(asked) -> float:  # type: ignore[no-untyped-def]
    import dpscale as dp
    from dpscale import mechanisms

    mechanisms.mechanism("weighted-residuals")
    before = cpu()
    dp.plan(asked())
    return cpu() - before


def one(kind: str, size: int) -> dict[str, float]:
    """One size of one kind in this process."""
    import dpscale as dp

    if kind == "rows":
        seconds = by_rows(size)
    elif kind == "attributes":
        seconds = planned(lambda: dp.Workload(_cube(4, size)).add("marginal", degree=2))
    elif kind == "cells":
        seconds = planned(lambda: dp.Workload(dp.Domain({"a": size})).add("prefix", degree=1))
    else:
        mixed = (("range", 1), ("affine", 2), ("prefix", 3))
        seconds = planned(lambda: _asked(dp.Workload(_cube(10, size)), mixed))
    return {"seconds": seconds, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}


def _cube(cells: int, attributes: int):  # type: ignore[no-untyped-def]
    import dpscale as dp

    return dp.Domain({f"x{i}": cells for i in range(attributes)})


def _asked(workload, families):  # type: ignore[no-untyped-def]
    for family, degree in families:
        workload.add(family, degree=degree)
    return workload


def amount(kind: str, size: int) -> float:
    """What work should grow with: rows, sets or cells."""
    if kind in ("rows", "cells"):
        return size
    return math.comb(size, 2) if kind == "attributes" else math.comb(size, 3) + math.comb(size, 2) + size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", nargs="*", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--large", action="store_true", help="the largest sizes too")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    if given.one:
        print(json.dumps(one(*json.loads(given.one))))
        return
    figures: dict[str, float] = {}
    print(f"{'kind':12}{'size':>13}{'work':>14}{'CPU s':>9}{'GiB':>7}{'exponent':>10}")
    for kind in given.kinds:
        last: tuple[float, float] | None = None
        for size in (*SIZES[kind], *(LARGE.get(kind, ()) if given.large else ())):
            found, work = results.apart(__file__, [kind, size]), amount(kind, size)
            exponent = math.log(found["seconds"] / last[1]) / math.log(work / last[0]) if last else math.nan
            last = (work, found["seconds"])
            print(f"{kind:12}{size:13,}{work:14,.0f}{found['seconds']:9.2f}{found['peak']:7.2f}{exponent:10.2f}")
            figures |= {f"{kind} {size}, CPU seconds": found["seconds"], f"{kind}, exponent": exponent}
            figures[f"{kind}, GiB"] = max(found["peak"], figures.get(f"{kind}, GiB", 0.0))
    if given.save:
        results.save("growth", figures)


if __name__ == "__main__":
    main()
