"""One run of one mechanism for benchmarks/rivals.py, in the Python of its environment: limits, seconds,
error.

Needs numpy only. Counts are taken and packages are imported before the limit starts; errors are measured after it.
Prints one line of JSON. With --rows it writes as many rows as records, which are drawn within the limit, and measures
no error.

    PYTHON benchmarks/rivals/run_NAME.py MECHANISM TABLE EPSILON SEED --rho RHO --mu MU [--limit SECONDS]
        [--data FOLDER] [--rows FILE]

As a script it has references for rows, without privacy: `drawn again` draws records again, and has the errors of
sampling and the membership risk of copies; `columns alone` draws each column by itself, without dependence.
"""

from __future__ import annotations

import json
import math
import resource
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from base import DATA, GENERATED, Names, Table, command_parser, load_table, write_generated

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
RowMechanism = Callable[[Case], np.ndarray]  # codes, records × attributes


def read_case() -> tuple[str, Case, float, Path | None]:
    """Return the mechanism, the case, the limit and the file of rows of the command line."""
    parser = command_parser(__doc__)
    for name, kind in (("mechanism", str), ("table", str), ("epsilon", float), ("seed", int)):
        parser.add_argument(name, type=kind)
    parser.add_argument("--rho", type=float, required=True)
    parser.add_argument("--mu", type=float, required=True)
    parser.add_argument("--limit", type=float, default=300)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--rows", type=Path)
    given = parser.parse_args()
    table = write_generated(given.table) if given.table in GENERATED else load_table(given.table, given.data)
    assert table is not None
    for degree in (1, 2, 3):
        for names in combinations(table.names, degree):
            table.counts(names)
    case = Case(table, given.epsilon, given.seed, given.rho, given.mu)
    return given.mechanism, case, given.limit, given.rows


def limit_cpu(seconds: float) -> None:
    """Let the kernel stop this process after CPU seconds from now; `inf` removes the limit."""
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    soft = math.ceil(time.process_time() + seconds) if math.isfinite(seconds) else hard
    resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))


def run_case(mechanisms: Mapping[str, Mechanism], of_rows: Mapping[str, RowMechanism]) -> None:
    """Run the mechanism of the command line and print its error, unless it writes rows, and CPU seconds."""
    name, case, limit, file = read_case()
    run: Callable[[Case], Any] = of_rows[name] if file else mechanisms[name]
    limit_cpu(limit)
    began = time.process_time()
    result = run(case)
    seconds = time.process_time() - began
    limit_cpu(math.inf)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    if file:
        np.save(file, result)
    error = {} if file else {"error": case.table.error(result())}
    print(json.dumps({**error, "seconds": seconds, "GiB": peak}))


def row_answers(table: Table, rows: np.ndarray, total: float) -> Answers:
    """Return the marginals of rows, scaled to a total."""
    counted = Table("rows", table.sizes, rows, 0)
    return lambda names: counted.counts(names) * (total / len(rows))


def drawn_again(case: Case) -> np.ndarray:
    records = np.stack(list(case.table.columns.values()), axis=1)
    return records[np.random.default_rng(case.seed).integers(0, len(records), len(records))]


def by_column(case: Case) -> np.ndarray:
    random = np.random.default_rng(case.seed)
    return np.stack([random.choice(column, case.table.rows) for column in case.table.columns.values()], axis=1)


if __name__ == "__main__":
    run_case({}, {"drawn again": drawn_again, "columns alone": by_column})
