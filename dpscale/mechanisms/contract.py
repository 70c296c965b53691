"""What a mechanism is: a name in the job file, its options, and how it plans. It sees no data and spends nothing.

A mechanism is one module that ends in `MECHANISM = Mechanism(…)` and one line in the table of `mechanisms`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpscale.base.parallel import Each, plainly
from dpscale.base.settings import Settings
from dpscale.optimize.plan_store import Store
from dpscale.plans.measurement_plan import Planned
from dpscale.privacy.accounting import GAUSSIAN, Budget
from dpscale.workload import Workload

MOST_CELLS = 1 << 27


@dataclass(frozen=True)
class Question:
    """What is asked, at what budget, and how many records one protected unit may hold."""

    workload: Workload
    budget: Budget = field(default_factory=lambda: Budget(GAUSSIAN, 1.0))
    rows_per_unit: int = 1

    @property
    def noise(self) -> str:
        return self.budget.noise


@dataclass(frozen=True)
class Tools:
    """`each` maps over independent problems; `store`: where solved ones are kept, or None; `most_cells`: how many cells
    a marginal may have to be counted and held."""

    each: Each = plainly
    store: Store | None = None
    most_cells: int = MOST_CELLS


class NoOptions(Settings):
    """Of a mechanism that has none."""


@dataclass(frozen=True)
class Mechanism:
    """`beforehand`: whether all that is measured is settled before any data are read.

    plan: question, options and tools to what is planned; JobError or PlanError for what it does not take.
    read: what was planned, from the folder that it was written into; JobError for another.
    forms: the forms of evidence that options leave (methods of `reconstruct.evidence.Evidence`), best first.
    same: reconstructions that come to another one here; otherwise: those that other options would allow, and which.
    """

    name: str
    Options: type[Settings]
    plan: Callable[[Question, Any, Tools], Planned]
    read: Callable[[Path, Question, Any], Planned]
    forms: Callable[[Any], Sequence[str]]
    beforehand: bool = True
    same: Mapping[str, str] = field(default_factory=dict)
    otherwise: Mapping[str, str] = field(default_factory=dict)
