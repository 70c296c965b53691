"""SWIFT of `dpsynth` for benchmarks/rivals.py, on the workload that is measured.

Its two Gaussian steps have the exact μ of ε. Its steps are STEPS instead of 10,000, which are four times as slow and
end at the same loss. XLA compiles with its defaults: most of the time is in the steps.
"""

from __future__ import annotations

import os
from collections.abc import Callable

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
import run_mbi  # sets up JAX first
from case import Answers, Case, run_case

# isort: split
import mbi
import numpy as np
from dpsynth.discrete_mechanisms import DiscreteConfig, SWIFTConfig

STEPS = 2_500


def fit(case: Case) -> mbi.MarkovRandomField:
    table = case.table
    config = DiscreteConfig(mechanism=SWIFTConfig(workload=table.targets, pgm_iters=STEPS))
    data = mbi.Dataset(table.columns, mbi.Domain(table.names, tuple(table.sizes.values())))
    return config.configure(zcdp_rho=case.mu**2 / 2)(np.random.default_rng(case.seed), data).model


def answers(case: Case) -> Callable[[], Answers]:
    model = fit(case)
    return lambda: run_mbi.model_answers(model, case.table)


def rows(case: Case) -> np.ndarray:
    return run_mbi.model_rows(fit(case), case.table)


if __name__ == "__main__":
    run_case({"SWIFT": answers}, {"SWIFT": rows})
