"""Interface by which the values of a release are pooled with those of later releases of the same records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

from dpscale.base.display import figure
from dpscale.mechanisms.contract import Mechanism, PlanningProblem
from dpscale.plans.measurement_plan import MeasurementPlan
from dpscale.privacy.accounting import LAPLACE, Budget, Cost
from dpscale.reconstruction.base import Evidence
from dpscale.workload import Workload


@dataclass(frozen=True)
class Instalments:
    """Privacy costs of the earlier releases.

    Attributes
    ----------
    costs : tuple of Cost
        Whole cost of each release, with searches.
    measured : tuple of Cost
        Cost of the measurements of each release.
    delta : float
        Delta at which the total epsilon is stated.
    """

    costs: tuple[Cost, ...]
    measured: tuple[Cost, ...]
    delta: float

    @classmethod
    def of(cls, releases: Sequence[Mapping[str, Any]], delta: float | None) -> Instalments:
        """Return the costs from records of the releases in a manifest; `delta` is None for pure epsilon."""
        costs, measured = (tuple(Cost.from_dict(one[name]) for one in releases) for name in ("cost", "measured"))
        return cls(costs, measured, delta or 0.0)

    @property
    def whole(self) -> Cost:
        """Cost of the measurements of all earlier releases."""
        return sum(self.measured, Cost())

    def epsilon(self, own: Cost) -> float:
        """Return the epsilon of all releases together with one of cost `own`."""
        return sum(self.costs, own).epsilon_or_inf(self.delta)

    def budget(self, own: Budget) -> Budget:
        """Return the budget of all measurements together with `own`."""
        spent = self.whole.pure if own.noise == LAPLACE else self.whole.gaussian
        return replace(own, amount=own.amount + float(spent))

    def to_dict(self, own: Cost) -> dict[str, Any]:
        """Return the number of all releases and their epsilon together."""
        return {"releases": len(self.costs) + 1, "epsilon_of_all_releases": self.epsilon(own),
                "delta_of_all_releases": self.delta}  # fmt: skip

    def card(self, own: Cost) -> tuple[str, str]:
        """Return the epsilon of all releases with its description, for the report."""
        return (figure(self.epsilon(own)),
                f"ε of all {len(self.costs) + 1} releases of these records at δ = {self.delta:g}")  # fmt: skip

    def sentence(self, own: Cost) -> str:
        """Return what all releases cost together."""
        rule = "squared mu adds, epsilon does not" if own.gaussian else "epsilon adds"
        return (f"all {len(self.costs) + 1} releases of these records together: epsilon {self.epsilon(own):.3f} at"
                f" delta {self.delta:g}; {rule}")  # fmt: skip


class Pooling(Protocol):
    """Pooling of the releases of a mechanism: a module with these names, which `Mechanism.pooling` gives.

    Attributes
    ----------
    OTHER_WORKLOADS : bool
        Whether a later release may have another workload.
    """

    OTHER_WORKLOADS: bool

    def accepts(self, plan: MeasurementPlan) -> bool:
        """Return whether the values of a plan can be pooled."""

    def pack(self, evidence: Evidence, workload: Workload, costs: Instalments, plan: Path | None) -> dict[str, bytes]:
        """Return files of the values of all releases so far.

        Parameters
        ----------
        evidence : Evidence
            That of the last release.
        workload : Workload
            That of the release that reads the files.
        costs : Instalments
            Costs of all releases so far.
        plan : Path or None
            Folder of the plan of the last release; None if the next one has another workload.
        """

    def plan(
        self,
        folder: Path,
        problem: PlanningProblem,
        costs: Instalments,
        completes: bool,
        make: Callable[[], MeasurementPlan],
    ) -> MeasurementPlan:
        """Return the plan of the next release.

        Parameters
        ----------
        folder : Path
            Folder with the files of `pack`.
        problem : PlanningProblem
        costs : Instalments
            Costs of the earlier releases.
        completes : bool
            Whether some of the releases have different workloads, so that the plan completes the earlier ones.
        make : callable
            Plans the job as if there were no earlier release.
        """

    def read(self, plan: MeasurementPlan, stored: Path, folder: Path, costs: Instalments) -> MeasurementPlan:
        """Return a plan that was read from the folder `stored` as one that pools the values in `folder`."""


def pooling_of(mechanism: Mechanism) -> Pooling | None:
    """Return the pooling of a mechanism; None if its releases cannot be pooled."""
    return cast(Pooling, import_module(mechanism.pooling)) if mechanism.pooling else None
