"""Plan arbitrary real queries over many cells with every mechanism: CPU seconds, or the refusal.

    python benchmarks/arbitrary_queries.py [--cells 400 4000 10000] [--rows 200 1000] [--mechanisms NAME ...]

The queries are rows of uniform random values over one attribute set, as family `predicates`. Each case runs in its own
process and is stopped after --limit seconds.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from itertools import product
from typing import Any

import numpy as np

import dpscale as dp
from dpscale.mechanisms import MECHANISMS

SIDES = {400: (20, 20), 4000: (50, 80), 10000: (100, 100)}


def plan_case(mechanism: str, cells: int, rows: int, answers: Any) -> None:
    """Plan one case and report its CPU seconds and gap, or the refusal."""
    names, shape = ("a", "b"), SIDES.get(cells, (1, cells))
    queries = np.random.default_rng(0).random((rows, *shape))
    workload = dp.Workload(dp.Domain(dict(zip(names, shape, strict=True)))).add_queries(names, queries)
    start = time.process_time()
    try:
        plan = dp.plan(workload, mechanism)
        gap = getattr(plan, "optimality_gap", float("nan"))
        answers.put(f"{time.process_time() - start:.1f} s, gap {gap:.2g}")
    except dp.DpscaleError as error:
        answers.put(f"refused after {time.process_time() - start:.1f} s: {error}")


def run_case(mechanism: str, cells: int, rows: int, limit: float) -> str:
    """Run one case in a process and return its answer, or that it was stopped."""
    answers: Any = multiprocessing.Queue()
    process = multiprocessing.Process(target=plan_case, args=(mechanism, cells, rows, answers))
    process.start()
    process.join(limit)
    if process.is_alive():
        process.terminate()
        return f"stopped after {limit:.0f} s"
    return str(answers.get()) if not process.exitcode else f"exit code {process.exitcode}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, nargs="*", default=list(SIDES))
    parser.add_argument("--rows", type=int, nargs="*", default=[200, 1000])
    parser.add_argument("--mechanisms", nargs="*", default=list(MECHANISMS))
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for one case")
    options = parser.parse_args()
    for cells, rows, mechanism in product(options.cells, options.rows, options.mechanisms):
        print(
            f"{cells:6} cells, {rows:5} rows, {mechanism}: {run_case(mechanism, cells, rows, options.limit)}",
            flush=True,
        )


if __name__ == "__main__":
    main()
