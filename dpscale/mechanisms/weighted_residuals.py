"""Weighted residuals: QuerySmasher with every axis averaged by weights that the plan chooses (docs/mechanisms.md).

Any u with Σu = 1 splits a query on an axis as q = (q·u)1 + (q − (q·u)1); the plain mean is QuerySmasher. Pieces of one
residual space are measured by their certified optimum and shares are in closed form, as there; u is searched for the
least error of that plan (`solve.axis_weights`), and the plain mean stays where nothing better is found.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from dpscale.mechanisms.contract import Question, Tools
from dpscale.mechanisms.matrix import matrix_mechanism
from dpscale.mechanisms.query_smasher import Options, solve_optimally
from dpscale.mechanisms.residual_split import plan_residuals
from dpscale.plans.allocation import LAPLACE
from dpscale.plans.plan import Plan
from dpscale.residual.weights import Weights, whole_weights
from dpscale.solve.axis_weights import Searched, search
from dpscale.solve.demands import Demands, demands_of
from dpscale.solve.lattice import bits_of_weights
from dpscale.workload import Workload

NAME = "weighted-residuals"
GAINS = 1e-6  # of J: what rounding could cost is less


def plan(question: Question, options: Options, tools: Tools) -> Plan:
    """Plan with the weights that were found, or with the plain mean where that is better."""
    solve = partial(solve_optimally, options.gap, options.seconds, tools.store)
    demands = demands_of(question.workload)
    searched = search(demands, question.noise)
    weights = _weights(question.workload, demands, searched)
    weighed = plan_residuals(question, tools, NAME, solve, weights=weights)
    if not weights:
        return replace(weighed, stationary=searched.stationary)
    if question.noise == LAPLACE or weighed.error > searched.plain**2:
        plain = plan_residuals(question, tools, NAME, solve)
        weighed = min(weighed, plain, key=lambda made: made.error)
    return replace(weighed, stationary=searched.stationary, notes=(*weighed.notes, *_remarks(searched)))


def _weights(workload: Workload, demands: Demands, searched: Searched) -> dict[str, Weights]:
    """Whole weights of the attributes whose best are not the plain mean; none where they gain nothing."""
    if searched.value > searched.plain * (1 - GAINS):
        return {}
    axes = max(len(names) for part in workload.parts for names in part.sets)
    whole = {
        kind: whole_weights(profile, bits_of_weights(len(profile), axes))
        for kind, profile in enumerate(searched.profiles)
        if kind not in demands.even
    }
    return {name: whole[kind] for name, kind in demands.kind_of.items() if kind in whole}


def _remarks(searched: Searched) -> tuple[str, ...]:
    """What the search saw, for the reader."""
    gain = 100 * (1 - searched.value / searched.plain)
    apart = max(searched.ends) / min(searched.ends) - 1
    starts = f" (from {len(searched.ends)} starts, which ended {apart:.1e} apart)" if len(searched.ends) > 1 else ""
    return (f"weights of the axes: root mean square error {gain:.3g} % below that of the plain mean{starts}",)


MECHANISM = matrix_mechanism(NAME, Options, plan)
