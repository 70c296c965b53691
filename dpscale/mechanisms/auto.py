"""Choosing by the plans themselves: every method that takes the workload is planned, and the least error kept.

Nothing here sees data, so the choice costs no privacy. The plan that is kept says in its notes what the others came to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from dpscale.errors import PlanError
from dpscale.mechanisms.setting import Setting
from dpscale.plans.plan import Plan
from dpscale.workload import Workload

Method = Callable[[Workload, Setting], Plan]


def best_plan(methods: Mapping[str, Method], workload: Workload, setting: Setting) -> Plan:
    """The plan of least error; PlanError where no method takes the workload."""
    setting.taking("auto")
    plans: dict[str, Plan] = {}
    refused: dict[str, PlanError] = {}
    for name, method in methods.items():
        try:
            plans[name] = method(workload, setting)
        except PlanError as error:
            refused[name] = error
    if not plans:
        raise next(iter(refused.values()))
    chosen = min(plans, key=lambda name: plans[name].error)
    tried = [f"{name} {made.rmse():.6g}" for name, made in plans.items()]
    tried += [f"{name} does not take it ({error})" for name, error in refused.items()]
    note = f"chosen by auto for the least root mean square error at privacy cost 1: {'; '.join(tried)}"
    return replace(plans[chosen], notes=(*plans[chosen].notes, note))
