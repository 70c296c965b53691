"""References for the rows of benchmarks/row_rivals.py, without privacy: records drawn again, and each column by itself.

The first has the errors of sampling and the membership risk of copies; the second has no dependence.
"""

from __future__ import annotations

import numpy as np
from rival_case import Case, run_case


def drawn_again(case: Case) -> np.ndarray:
    records = np.stack(list(case.table.columns.values()), axis=1)
    return records[np.random.default_rng(case.seed).integers(0, len(records), len(records))]


def by_column(case: Case) -> np.ndarray:
    random = np.random.default_rng(case.seed)
    return np.stack([random.choice(column, case.table.rows) for column in case.table.columns.values()], axis=1)


if __name__ == "__main__":
    run_case({}, {"drawn again": drawn_again, "columns alone": by_column})
