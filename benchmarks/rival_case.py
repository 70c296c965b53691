"""One run of one mechanism for benchmarks/rivals.py, in the Python of its environment: limits, seconds, error.

Needs numpy only. Counts are taken and packages are imported before the limit starts; errors are measured after it.
Prints one line of JSON.

    PYTHON benchmarks/rival_NAME.py MECHANISM TABLE EPSILON SEED --rho RHO --mu MU [--limit SECONDS] [--data FOLDER]
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
from base import DATA, GENERATED, Names, Table, load_table, write_generated as generate_table

DELTA = 1e-9
Answers = Callable[[Names], np.ndarray]


@dataclass(frozen=True)
class Case:
    """A table and a budget: ε at DELTA, with the zCDP ρ and the Gaussian-DP μ of the same guarantee."""

    table: Table
    epsilon: float
    seed: int
    rho: float
    mu: float


Mechanism = Callable[[Case], Callable[[], Answers]]  # a run; then a function that prepares its answers


def read_case() -> tuple[str, Case, float]:
    """Return the mechanism, the case and the limit of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, kind in (("mechanism", str), ("table", str), ("epsilon", float), ("seed", int)):
        parser.add_argument(name, type=kind)
    parser.add_argument("--rho", type=float, required=True)
    parser.add_argument("--mu", type=float, required=True)
    parser.add_argument("--limit", type=float, default=300)
    parser.add_argument("--data", type=Path, default=DATA)
    given = parser.parse_args()
    table = generate_table(given.table) if given.table in GENERATED else load_table(given.table, given.data)
    assert table is not None
    for degree in (1, 2, 3):
        for names in combinations(table.names, degree):
            table.counts(names)
    return given.mechanism, Case(table, given.epsilon, given.seed, given.rho, given.mu), given.limit


def limit_cpu(seconds: float) -> None:
    """Let the kernel stop this process after CPU seconds from now; `inf` removes the limit."""
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    soft = math.ceil(time.process_time() + seconds) if math.isfinite(seconds) else hard
    resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))


def run_case(mechanisms: Mapping[str, Mechanism]) -> None:
    """Run the mechanism of the command line and print its error and CPU seconds."""
    name, case, limit = read_case()
    limit_cpu(limit)
    began = time.process_time()
    finish = mechanisms[name](case)
    seconds = time.process_time() - began
    limit_cpu(math.inf)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps({"error": case.table.error(finish()), "seconds": seconds, "GiB": peak}))


def row_answers(table: Table, rows: np.ndarray, total: float) -> Answers:
    """Return the marginals of rows, scaled to a total."""
    counted = Table("rows", table.sizes, rows, 0)
    return lambda names: counted.counts(names) * (total / len(rows))
