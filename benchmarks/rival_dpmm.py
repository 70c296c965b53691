"""The pipelines of `dpmm` for benchmarks/rivals.py, with their defaults on coded tables.

Its AIM has the model limit that the package recommends and its default workload, all pairs. The answers are from ROWS
rows, since a pipeline gives rows only; they are generated after the time limit.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pandas as pd
from dpmm.pipelines import AIMPipeline, MSTPipeline, PrivBayesPipeline
from rival_case import DELTA, Answers, Case, row_answers, run_case

ROWS, MODEL_MB = 500_000, 80


def fit(case: Case, pipeline: type, **options: Any) -> Callable[[], Answers]:
    table = case.table
    fitted = pipeline(epsilon=case.epsilon, delta=DELTA, disable_processing=True, n_jobs=1, **options)
    fitted.fit(pd.DataFrame(table.columns), dict(table.sizes), random_state=case.seed)

    def finish() -> Answers:
        rows = fitted.generate(ROWS, random_state=case.seed)[list(table.names)].to_numpy()
        return row_answers(table, rows, table.rows)

    return finish


if __name__ == "__main__":
    run_case({
        "AIM": partial(fit, pipeline=AIMPipeline, max_model_size=MODEL_MB),
        "MST": partial(fit, pipeline=MSTPipeline),
        "PrivBayes": partial(fit, pipeline=PrivBayesPipeline),
    })  # fmt: skip
