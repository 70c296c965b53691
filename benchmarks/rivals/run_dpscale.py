"""dpscale for benchmarks/rivals.py: the estimates of `aim-grem` and its rows; rows of whole jobs by mechanism."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1]))
import numpy as np
from adaptive import complete_model, released_answers, run_adaptive
from case import Answers, Case, row_answers, run_case
from rows import MEMORY, draw_rows, prepare_job

import dpscale as dp
from dpscale.mechanisms.aim_grem import Options
from dpscale.reconstruction.pairwise import learn, pair_targets
from dpscale.synthesis.draw import tree_start
from dpscale.synthesis.set_targets import set_targets


def estimates(case: Case) -> Callable[[], Answers]:
    answers = released_answers(case.table, case.epsilon, case.seed)
    return lambda: answers


def rows(case: Case) -> Callable[[], Answers]:
    release = f"seed {case.seed}"
    fitted = run_adaptive(case.table, case.epsilon, case.seed, Options()).fit.model
    model = complete_model(case.table, fitted, release)
    learnt = learn(pair_targets(model, MEMORY), release, start=tree_start)
    targets = set_targets(learnt, model, release, MEMORY, model.total)
    drawn = draw_rows(model, learnt, release, round(model.total), 1, targets)
    return lambda: row_answers(case.table, drawn, len(drawn))


def job_rows(case: Case, mechanism: str) -> np.ndarray:
    """Return the rows of a job from files to files."""
    with TemporaryDirectory() as folder:
        place = Path(folder)
        job = prepare_job(case.table, case.epsilon, case.seed, place, kept_out=0.0)
        job |= {"mechanism": {"name": mechanism}, "synthesize": {"rows": case.table.rows}}
        return dp.run(job, place / "run").synthetic().compute()[list(case.table.names)].to_numpy()


if __name__ == "__main__":
    run_case(
        {"aim-grem": estimates, "aim-grem, rows": rows},
        {name: partial(job_rows, mechanism=name) for name in ("weighted-residuals", "aim-grem", "aim-pgm")},
    )
