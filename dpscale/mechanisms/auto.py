"""The mechanism `auto`: the plan with the least error among all mechanisms that support the workload.

Plans do not depend on data, so the choice costs no privacy. The notes of the chosen plan list the errors of the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from dpscale.base.errors import PlanError
from dpscale.mechanisms import (
    eigen_design,
    hdmm,
    identity,
    query_smasher,
    residual_planner,
    residual_planner_plus,
    weighted_fourier as fourier,
    weighted_residuals,
)
from dpscale.mechanisms.contract import Mechanism, ObjectiveOptions, PlanningProblem, Tools, too_extreme
from dpscale.mechanisms.matrix_mechanism import FixedPlan, matrix_mechanism
from dpscale.plans.plan import Plan

NAME = "auto"
TRIED = (
    weighted_residuals,
    query_smasher,
    residual_planner,
    residual_planner_plus,
    fourier,
    hdmm,
    eigen_design,
    identity,
)


def plan(problem: PlanningProblem, options: ObjectiveOptions, tools: Tools) -> Plan:
    """Return the plan with the least error among all mechanisms; PlanError if none supports the workload."""
    return best_plan({tried.NAME: tried.MECHANISM for tried in TRIED}, problem, tools)


def best_plan(mechanisms: Mapping[str, Mechanism], problem: PlanningProblem, tools: Tools) -> Plan:
    """Return the plan with the least error among some mechanisms.

    A mechanism that raises PlanError is left out and named in the note; the first error is raised if none is left. The
    largest `floor`, a lower bound for any mechanism, counts for all.
    """
    plans: dict[str, Plan] = {}
    refused: dict[str, PlanError] = {}
    for name, tried in mechanisms.items():
        try:
            candidate = tried.plan(problem, tried.Options(), tools)
        except PlanError as error:
            refused[name] = error
            continue
        except np.linalg.LinAlgError:
            refused[name] = too_extreme()
            continue
        assert isinstance(candidate, FixedPlan)
        plans[name] = candidate.plan

    if not plans:
        raise next(iter(refused.values()))

    chosen = min(plans, key=lambda name: plans[name].error)
    tried_all = [f"{name} {candidate.rmse():.6g}" for name, candidate in plans.items()]
    tried_all += [f"{name} does not take it ({error})" for name, error in refused.items()]
    note = f"chosen by auto for the least root mean square error at privacy cost 1: {'; '.join(tried_all)}"

    best, floor = plans[chosen], max(candidate.floor for candidate in plans.values())
    return replace(best, notes=(*best.notes, note), floor=min(floor, best.error))


def predicted_seconds(problem: PlanningProblem, options: ObjectiveOptions) -> float:
    """Return the predicted seconds of all mechanisms together."""
    return sum(tried.MECHANISM.seconds(problem, tried.MECHANISM.Options()) for tried in TRIED)


MECHANISM = matrix_mechanism(NAME, ObjectiveOptions, plan, "4", frozenset({"1", "2", "3"}), predicted_seconds)
