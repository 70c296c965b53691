"""MargNet for benchmarks/rivals.py: rows only, with the settings of its repository for Adult, on the CPU.

Its repository is on the path of the given Python, which has torch; it is in no registry, and nothing of it is copied.
The repository's preprocessing is left out: codes are public.
"""

from __future__ import annotations

import contextlib
import sys
from argparse import Namespace
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import torch
from case import Case, run_case
from method.MargDL.main import MargDLGen

STEPS, FEWER_STEPS, MANY = 200, 100, 10.0  # the repository has fewer steps at ε = 10


def draw(case: Case) -> np.ndarray:
    torch.manual_seed(case.seed)
    torch.set_num_threads(1)
    np.random.seed(case.seed)  # noqa: NPY002 (the package draws from it)
    torch.cuda.reset_peak_memory_stats = torch.cuda.max_memory_allocated = lambda *_, **__: 0  # no CUDA here
    steps = FEWER_STEPS if case.epsilon >= MANY else STEPS
    config = {
        "train": {"selection_iterations": steps, "final_iterations": steps, "lr": 0.001, "batch_size": 512},
        "model_params": {"d_layers": [256, 256], "dropout": 0.0},
    }
    options = Namespace(iter=None, lr=None, batch=None, test=False, resample=False)
    with TemporaryDirectory() as place, contextlib.redirect_stdout(sys.stderr):
        made = MargDLGen(options, pd.DataFrame(case.table.columns), case.table.sizes, "cpu", config, place, "gan")
        made.fit_adaptive(case.rho)
        return made.model.sample(case.table.rows)


if __name__ == "__main__":
    run_case({}, {"MargNet": draw})
