"""QuerySmasher (He et al., 2026): every residual subworkload at its own certified optimum, then closed-form shares.

Options: `gap`, the certified gap at which a problem's search ends, and `seconds`, the time it may take at most.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dpscale.errors import JobError
from dpscale.mechanisms.residual_split import plan_residuals
from dpscale.mechanisms.setting import Setting
from dpscale.plans.plan import Plan
from dpscale.solve.convex import TOLERANCE, Optimum, optimise
from dpscale.solve.store import Store
from dpscale.workload import Workload

Array = NDArray[np.float64]
NAME = "query-smasher"


def plan_query_smasher(workload: Workload, setting: Setting) -> Plan:
    """Plan with the certified optimum of every subworkload."""
    given = setting.taking(NAME, "gap", "seconds")
    gap, seconds = (
        _positive(name, given.get(name, usual)) for name, usual in (("gap", TOLERANCE), ("seconds", math.inf))
    )
    return plan_residuals(workload, setting, NAME, partial(solve_optimally, gap, seconds, setting.store))


def solve_optimally(
    gap: float,
    seconds: float,
    store: Store | None,
    key: str | None,
    rows: Array,
    shape: tuple[int, ...],
    tolerance: float | None = None,
) -> Optimum:
    """The certified optimum of one problem, from the store where it is known."""
    name = (NAME, key, shape, gap)
    known = store.get(*name) if store and key else None
    found = optimise(rows, shape, tolerance or gap, seconds, known)
    if store and key and known is None and found.ended == "gap":  # what time ended is not what another plan would find
        store.put(found.weights, *name)
    return found


def _positive(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise JobError(f"mechanism.{name}", f"{value!r}", "a number above 0", "mend it, or leave it out")
    return float(value)
