"""What is known of an adaptive run before any record is read: all but what it will choose."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any

from dpscale.adaptive.setting import Names, Options, Setting
from dpscale.domain import Domain
from dpscale.errors import JobError
from dpscale.names import nearest
from dpscale.plans.allocation import GAUSSIAN
from dpscale.workload import ExplicitPart, Workload

FINEST = 1 << 20
RANGES: dict[str, tuple[float, float, str]] = {
    "ones": (0.01, 0.99, "a share from 0.01 to 0.99"),
    "selecting": (0.01, 0.99, "a share from 0.01 to 0.99"),
    "grain": (0, 100, "a number from 0 to 100"),
    "penalty": (0, 100, "a number from 0 to 100"),
    "patience": (0, 100, "a number from 0 to 100"),
    "growth": (1, 1000, "a whole number from 1 to 1000"),
    "rounds": (1, 10_000, "a whole number from 1 to 10000"),
    "degree": (2, 6, "a whole number from 2 to 6"),
    "chains": (0, 10, "a whole number from 0 to 10"),
}


@dataclass(frozen=True, eq=False)
class AdaptivePlan:
    """What will be chosen among, at what cost, and what has to be counted for it. Errors are not known beforehand."""

    workload: Workload
    mechanism: str
    setting: Setting

    @property
    def domain(self) -> Domain:
        return self.workload.domain

    @property
    def noise(self) -> str:
        return GAUSSIAN

    @property
    def query_count(self) -> int:
        return self.workload.query_count

    @property
    def counted(self) -> tuple[Names, ...]:
        """The sets whose exact counts are needed: 1-ways first."""
        ones = [(name,) for name in self.setting.names]
        return tuple(dict.fromkeys([*ones, *self.setting.candidates]))

    @property
    def largest(self) -> Names:
        """The counted set with the most cells."""
        return max(self.counted, key=self.domain.cells)

    @property
    def notes(self) -> tuple[str, ...]:
        kind = "AIM+GReM as published" if self.setting.options.published else "local maximum entropy"
        sets = f"{len(self.setting.candidates)} candidates for {len(self.setting.targets)} marginals"
        return (f"{kind}; {sets}; what is measured is chosen as it goes",)

    def to_dict(self) -> dict[str, Any]:
        """For plan.json."""
        own = {field.name: str(getattr(self.setting.options, field.name)) for field in fields(Options)}
        return {"mechanism": self.mechanism, "workload": self.workload.digest, "rho": str(self.setting.rho),
                "rows_per_unit": self.setting.rows_per_unit, "options": own}  # fmt: skip


def adaptive_plan(
    workload: Workload, mechanism: str, options: Mapping[str, Any], rho: Fraction, rows_per_unit: int
) -> AdaptivePlan:
    """The plan of a job. JobError for an option that is none or out of range, PlanError for what cannot be asked."""
    targets = _targets(workload)
    sizes = {attribute.name: attribute.size for attribute in workload.domain.attributes}
    setting = Setting(sizes, tuple(targets), rho, rows_per_unit, read_options(mechanism, options), _whole(targets))
    return AdaptivePlan(workload, mechanism, setting)


def read_options(mechanism: str, given: Mapping[str, Any]) -> Options:
    """Options by name, from a job file."""
    if "published" in given and not isinstance(given["published"], bool):
        raise JobError("mechanism.published", f"{given['published']!r}", "true or false", "mend it")
    own = {name: value for name, value in given.items() if name != "published"}
    for name, value in own.items():
        _check(mechanism, name, value)
    if given.get("published") and own:
        raise JobError(f"mechanism.{next(iter(own))}", "given beside published = true", "the paper's own settings",
                       "leave it out")  # fmt: skip
    exact = {name: Fraction(str(value)).limit_denominator(FINEST) for name, value in own.items()
             if name in ("ones", "selecting")}  # fmt: skip
    return Options(published=bool(given.get("published")), **{**own, **exact})


def _check(mechanism: str, name: str, value: Any) -> None:
    known = ["published", *RANGES]
    if name not in known:
        raise JobError(
            f"mechanism.{name}", f"given for {mechanism}", ", ".join(known), nearest(name, known) or "remove it"
        )
    low, high, takes = RANGES[name]
    kinds = int if "whole" in takes else int | float
    if isinstance(value, bool) or not isinstance(value, kinds) or not low <= value <= high:
        raise JobError(f"mechanism.{name}", f"{value!r}", takes, "mend it")


def _targets(workload: Workload) -> dict[Names, float]:
    """The attribute sets that weigh, with their weights summed over the parts that ask for them."""
    found: dict[Names, float] = {}
    for part in workload.parts:
        weights = (float(part.each.max(initial=0)),) if isinstance(part, ExplicitPart) else part.weights
        for names, weight in zip(part.sets, weights, strict=True):
            if weight > 0 and names:
                found[names] = found.get(names, 0.0) + weight
    if not all(math.isfinite(weight) for weight in found.values()):
        raise JobError("workload.weight", "weights whose sum over a set is not finite", "smaller ones", "mend them")
    if not found:
        raise JobError("workload", "no attribute set that weighs", "one marginal at least", "add a family")
    return found


def _whole(targets: Mapping[Names, float]) -> tuple[int, ...]:
    """Weights as whole numbers in proportion, the smallest about 1, unless they differ more than FINEST times."""
    least = max(min(targets.values()), max(targets.values()) / FINEST)
    exact = len(set(targets.values())) == 1
    return tuple(1 if exact else max(1, round(16 * weight / least)) for weight in targets.values())
