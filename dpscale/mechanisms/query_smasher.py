"""QuerySmasher (He et al., 2026): the certified optimum of every residual subworkload, with closed-form shares."""

from __future__ import annotations

import math
from functools import partial

from dpscale.base.numerics import Floats
from dpscale.base.settings import Settings, setting
from dpscale.mechanisms.contract import Objective, PlanningProblem, PlanStore, Tools, objective
from dpscale.mechanisms.matrix_mechanism import matrix_mechanism
from dpscale.mechanisms.residual_split import plan_residuals
from dpscale.optimize.convex import TOLERANCE, Optimum, optimise
from dpscale.plans.plan import Plan
from dpscale.workload.wide import is_wide

NAME = "query-smasher"
MANY_CELLS, LOOSELY = 512, 1e-5  # cells of one axis above which a step takes tenths of a second; the gap used there
WIDELY = 1e-3  # the gap used on wide axes


class SolverOptions(Settings):
    """Stopping criteria of the optimisation."""

    gap: float = setting(TOLERANCE, "a number above 0", "certified gap at which the search of a problem ends", gt=0)
    seconds: float = setting(
        math.inf,
        "a number above 0",
        "time limit of a search; the notes of the plan list the searches that it ended",
        gt=0,
    )
    objective: Objective = objective()


class Options(SolverOptions):
    """Options of QuerySmasher."""

    fourier: list[list[str]] = setting(
        [], "a list of attribute sets", "residual spaces planned in the Fourier basis, as weighted-fourier plans all"
    )


def plan(problem: PlanningProblem, options: Options, tools: Tools) -> Plan:
    """Plan with the certified optimum of every subworkload."""
    solve = partial(solve_optimally, options.gap, options.seconds, tools.store)
    fourier = [problem.workload.domain.ordered(names) for names in options.fourier]
    return plan_residuals(problem, tools, NAME, solve, fourier=fourier)


def solve_optimally(
    gap: float,
    seconds: float,
    store: PlanStore | None,
    key: str | None,
    rows: Floats,
    shape: tuple[int, ...],
    tolerance: float | None = None,
) -> Optimum:
    """Return the certified optimum of one problem, starting from the stored solution if there is one.

    The gap is the relative one at which the search ends; long and wide axes have larger ones, LOOSELY and WIDELY. `key`
    names the problem in the store, None for a problem that is not stored.
    """
    name = (NAME, key, shape, gap)
    known = store.get(*name) if store and key else None
    cells = shape[0] if len(shape) == 1 else 0
    enough = max(gap, WIDELY if is_wide(cells) else LOOSELY if cells > MANY_CELLS else 0.0)
    optimum = optimise(rows, shape, tolerance or enough, seconds, known)
    if store and key and known is None and optimum.ended == "gap":  # a search ended by time is not reproducible
        store.put(optimum.weights, *name)
    return optimum


MECHANISM = matrix_mechanism(NAME, Options, plan, "2", frozenset({"1"}))
