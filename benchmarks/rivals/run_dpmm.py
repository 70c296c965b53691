"""The pipelines of `dpmm` for benchmarks/rivals.py, with their defaults on coded tables.

Its AIM has the model limit that the package recommends and its default workload, all pairs. The answers are from ROWS
rows, since a pipeline gives rows only; they are generated after the time limit.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from case import DELTA, Answers, Case, row_answers, run_case
from dpmm.pipelines import AIMPipeline, MSTPipeline, PrivBayesPipeline

ROWS, MODEL_MB = 500_000, 80


PIPELINES = {"AIM": partial(AIMPipeline, max_model_size=MODEL_MB), "MST": MSTPipeline, "PrivBayes": PrivBayesPipeline}


def fit(case: Case, pipeline: Callable[..., Any]) -> Callable[[int], np.ndarray]:
    """Return a function that generates rows."""
    table = case.table
    fitted = pipeline(epsilon=case.epsilon, delta=DELTA, disable_processing=True, n_jobs=1)
    fitted.fit(pd.DataFrame(table.columns), dict(table.sizes), random_state=case.seed)
    return lambda count: fitted.generate(count, random_state=case.seed)[list(table.names)].to_numpy()


def answers(case: Case, pipeline: Callable[..., Any]) -> Callable[[], Answers]:
    generate = fit(case, pipeline)
    return lambda: row_answers(case.table, generate(ROWS), case.table.rows)


def rows(case: Case, pipeline: Callable[..., Any]) -> np.ndarray:
    return fit(case, pipeline)(case.table.rows)


if __name__ == "__main__":
    run_case(*({name: partial(run, pipeline=made) for name, made in PIPELINES.items()} for run in (answers, rows)))
