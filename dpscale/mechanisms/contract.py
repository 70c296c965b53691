"""Interface of a mechanism: name, options and planning functions. A mechanism reads no data and spends no budget.

A mechanism is one module that ends in `MECHANISM = Mechanism(…)` and one line in the table of `mechanisms`.

The plan store keeps solutions of optimisation problems by the hash of the problem. Only the weights μ of an optimum, a
small array, are stored. The strategy and its certificate are recomputed from them, so a damaged or manipulated file can
cost time but never correctness. Problems depend only on workloads and domains, which are public. The folder is set by
the environment variable DPSCALE_STORE ("off" disables the cache) and defaults to the user's cache.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dpscale.base.display import figure
from dpscale.base.errors import JobError, PlanError
from dpscale.base.numerics import Floats, ParallelMap, serial_map
from dpscale.base.settings import Settings, setting
from dpscale.plans.measurement_plan import MeasurementPlan
from dpscale.plans.time_plan import PeriodContext
from dpscale.privacy.accounting import GAUSSIAN, LAPLACE, Budget, Cost
from dpscale.storage.files import rename_over
from dpscale.workload import Workload
from dpscale.workload.wide import is_wide

VERSION = 1  # of the stored solutions; a part of the hash of each problem
VARIABLE = "DPSCALE_STORE"


@dataclass(frozen=True)
class PlanStore:
    """Arrays by key, one file each; a folder that cannot be read or written behaves like an empty one."""

    folder: Path

    def get(self, *key: object) -> Floats | None:
        """Return the array under a key, or None."""
        try:
            array = np.load(self._path(key), allow_pickle=False)
        except (
            OSError,
            ValueError,
            EOFError,
            SystemError,
        ):  # SystemError: Python 3.11 parses headers in one thread only
            return None
        return np.asarray(array) if array.dtype == np.float64 and np.isfinite(array).all() else None

    def put(self, array: Floats, *key: object) -> None:
        """Store an array under a key atomically."""
        path = self._path(key)
        partial = path.with_suffix(f".{secrets.token_hex(8)}.partial")
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(partial, "wb") as file:
                np.save(file, array, allow_pickle=False)
            rename_over(partial, path)

    def _path(self, key: tuple[object, ...]) -> Path:
        name = hashlib.sha256(repr((VERSION, *key)).encode()).hexdigest()
        return self.folder / name[:2] / f"{name}.npy"


def user_store() -> PlanStore | None:
    """Return the cache of the current user; None if it is disabled or there is no home directory."""
    named = os.environ.get(VARIABLE)
    if named == "off":
        return None

    try:
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:  # no home directory
        return None
    return PlanStore(Path(named) if named else Path(cache) / "dpscale" / "optima")


MOST_CELLS = 1 << 27  # of a marginal that is counted, 1 GiB of int64, unless a planner is given another limit


@dataclass(frozen=True)
class PlanningProblem:
    """Workload to answer, and the budget.

    Attributes
    ----------
    workload : Workload
    budget : Budget
    rows_per_unit : int
        Largest number of records of one protected unit.
    needs_marginals : bool
        Whether a model or synthetic rows need the 1-way marginals beside the answers.
    """

    workload: Workload
    budget: Budget = field(default_factory=lambda: Budget(GAUSSIAN, 1.0))
    rows_per_unit: int = 1
    needs_marginals: bool = False

    @property
    def noise(self) -> str:
        return self.budget.noise


@dataclass(frozen=True)
class Tools:
    """Resources of a planner.

    Attributes
    ----------
    each : ParallelMap
        Map over independent problems.
    store : PlanStore or None
        Store of solved problems.
    most_cells : int
        Largest number of cells of a marginal that may be counted.
    """

    each: ParallelMap = serial_map
    store: PlanStore | None = None
    most_cells: int = MOST_CELLS


def too_extreme() -> PlanError:
    """Return the error for numbers of a workload with which a solver fails in floating point."""
    return PlanError("workload.weights", "weights or queries too extreme for floating point", "less extreme values",
                     "keep them within twelve orders of magnitude")  # fmt: skip


class NoOptions(Settings):
    """Options of a mechanism without settings."""


Objective = Literal["sum", "max"]


def objective() -> Any:
    """Return the setting of what a matrix mechanism minimises."""
    return setting("sum", "sum or max", "what is minimised: the weighted sum of the variances, or the largest one")


class ObjectiveOptions(Settings):
    """Options of a matrix mechanism with no other settings."""

    objective: Objective = objective()


SET_SECONDS, PAIR_SECONDS, CELL_SECONDS = 5e-5, 4e-6, 5e-9  # of a set, of a product of tables, and of its cells
MOST_TABLE = 100_000  # queries of a set of which the errors are computed one by one


SET_BYTES = 1 << 10  # of a set while a plan is made
DENSE_BYTES, TRANSFORM_BYTES = 32, 160  # of a pair of cells of a wide axis with a matrix, and of a joint cell by FFT


def planning_memory(workload: Workload) -> int:
    """Return the predicted bytes of planning a workload.

    They are those of the sets and their subsets, of the matrices of wide axes without another form, and of the Fourier
    transforms of the largest set of joint queries.
    """
    dense, joint = set[int](), 0
    for part in workload.parts:
        for names in part.sets:
            if part.factorizes:
                sizes = zip(part.families(names), part.domain.shape(names), strict=True)
                dense |= {size for family, size in sizes if is_wide(size) and not family.is_divided(size)}
            elif len(names) > 1:
                joint = max(joint, part.domain.cells(names))
    matrices = DENSE_BYTES * sum(size**2 for size in dense)
    return SET_BYTES * workload.most_subsets + matrices + TRANSFORM_BYTES * joint


def seconds_of_sets(problem: PlanningProblem, options: Any) -> float:
    """Return the predicted seconds of planning each set and its subsets once."""
    return SET_SECONDS * problem.workload.most_subsets


def seconds_of_products(workload: Workload, blocks: int) -> float:
    """Return the predicted seconds of the error of all queries under so many blocks: all pairs of tables of each set.

    Of a set of k attributes with q queries, 4^k products of tables are added for each block.
    """
    sets = ((names, count) for part in workload.parts for names, count in zip(part.sets, part.counts, strict=True))
    return blocks * sum(
        4 ** len(names) * (PAIR_SECONDS + CELL_SECONDS * min(count, MOST_TABLE)) for names, count in sets
    )


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
        """Return the costs from records of the releases in a manifest.

        Without `delta` it is the first one that a release states; 0 for pure epsilon.
        """
        costs, measured = (
            tuple(Cost.from_dict(release[name]) for release in releases) for name in ("cost", "measured")
        )
        stated = [delta, *(release.get("delta") for release in releases)]
        return cls(costs, measured, next((value for value in stated if value), 0.0))

    @property
    def whole(self) -> Cost:
        """Cost of the measurements of all earlier releases."""
        return sum(self.measured, Cost())

    def epsilon(self, cost: Cost) -> float:
        """Return the epsilon of all earlier releases together with a new one of this cost."""
        return sum(self.costs, cost).epsilon_or_inf(self.delta)

    def budget(self, budget: Budget) -> Budget:
        """Return the budget of all earlier measurements together with that of a new release."""
        spent = self.whole.pure if budget.noise == LAPLACE else self.whole.gaussian
        return replace(budget, amount=budget.amount + float(spent))

    def to_dict(self, cost: Cost) -> dict[str, Any]:
        """Return the number of all releases, with a new one of this cost, and their epsilon together."""
        return {"releases": len(self.costs) + 1, "epsilon_of_all_releases": self.epsilon(cost),
                "delta_of_all_releases": self.delta}  # fmt: skip

    def card(self, cost: Cost) -> tuple[str, str]:
        """Return the epsilon of all releases with its description, for the report."""
        return (
            figure(self.epsilon(cost)),
            f"ε of all {len(self.costs) + 1} releases of these records at δ = {self.delta:g}",
        )

    def sentence(self, cost: Cost) -> str:
        """Return what all releases cost together."""
        rule = "squared mu adds, epsilon does not" if cost.gaussian else "epsilon adds"
        return (
            f"all {len(self.costs) + 1} releases of these records together: epsilon {self.epsilon(cost):.3f} at"
            f" delta {self.delta:g}; {rule}"
        )


def always(plan: Any) -> bool:
    """Return True: every plan of the mechanism can be continued."""
    return True


@dataclass(frozen=True)
class Pooling:
    """How a plan starts from the values of earlier releases of the same records.

    Attributes
    ----------
    pack : callable
        Returns files of the values of all releases so far, by the evidence of the last one, the workload of the release
        that reads the files, the costs of all releases so far, and the folder of the last plan (None if the next
        release has another workload).
    plan : callable
        Returns the plan of the next release, by the folder with these files, its problem, the costs of the earlier
        releases, whether some of them have different workloads, so that the plan completes the earlier ones, and a
        function that plans the job as if there were no earlier release.
    read : callable
        Returns a stored plan as one that starts from earlier releases, by the plan, its folder, the folder with the
        files, and the costs of the earlier releases.
    accepts : callable
        Whether a later release can start from the values of a plan.
    other_workloads : bool
        Whether a later release may have another workload.
    missing : callable, optional
        Returns the budget of what the evidence of earlier releases lacks of a plan at the budget of a problem.
    """

    pack: Callable[[Any, Workload, Instalments, Path | None], dict[str, bytes]]
    plan: Callable[[Path, PlanningProblem, Instalments, bool, Callable[[], Any]], MeasurementPlan]
    read: Callable[[Any, Path, Path, Instalments], MeasurementPlan]
    accepts: Callable[[Any], bool] = always
    other_workloads: bool = True
    missing: Callable[[Any, PlanningProblem, Any], float] | None = None


def plan_of_period(plan: MeasurementPlan, context: PeriodContext) -> MeasurementPlan:
    """Return the plan of a period, which is the same for all periods; raise JobError if it has rounds."""
    if plan.rounds is not None:
        raise no_periods(plan)
    return plan


def no_periods(plan: MeasurementPlan) -> JobError:
    """Return the error for a mechanism whose rounds depend on the data of each period."""
    return JobError("mechanism.name", f"{plan.mechanism} as published with data.period",
                    "aim-grem without published, or a matrix mechanism such as weighted-residuals",
                    "choose one of them")  # fmt: skip


@dataclass(frozen=True)
class Mechanism:
    """Description of a mechanism.

    Attributes
    ----------
    name : str
        Name in the job file.
    Options : type of Settings
    plan : callable
        Maps problem, options and tools to a measurement plan; raises JobError or PlanError for unsupported problems.
    read : callable
        Maps folder, problem and options to the stored plan; raises JobError if it belongs to another job. A plan is
        read from its files and not planned again, so that a run stays readable when defaults or solvers change.
    forms : callable
        Maps options to the available forms of evidence (methods of `dpscale.reconstruction.base.Evidence`), best
        first.
    follows : callable
        Maps a stored plan, problem and options to whether the mechanism plans the same today. A plan that does not
        follow from the job is not charged. Plans of solvers are not compared, because they depend on rounding.
    version : str
        Recorded with every run. It changes if the mechanism measures or decides differently for the same job.
    resumes : frozenset of str
        Earlier versions whose plan files are measured as they are: only planning differs.
    distribution : str
        Name and version of the distribution that registers the mechanism; "" for those of dpscale.
    data_independent : bool
        Whether all measurements are fixed before any data are read.
    aliases : mapping of str to str
        Reconstruction names that are equivalent to another one for this mechanism, unless an option that the other one
        does not have is set.
    requires : mapping of str to str
        Option that enables a reconstruction.
    seconds : callable
        Maps problem and options to the predicted seconds of planning, within a factor of about 3 on a usual machine.
    pooling : Pooling or None
        How a plan starts from earlier releases; None if it cannot.
    for_period : callable
        Maps a plan and a context to the plan of one period of a growing table; raises JobError if it has none.
    """

    name: str
    Options: type[Settings]
    plan: Callable[[PlanningProblem, Any, Tools], MeasurementPlan]
    read: Callable[[Path, PlanningProblem, Any], MeasurementPlan]
    forms: Callable[[Any], Sequence[str]]
    follows: Callable[[Any, PlanningProblem, Any], bool] = lambda stored, problem, options: True
    version: str = "1"
    resumes: frozenset[str] = frozenset()
    distribution: str = ""
    data_independent: bool = True
    aliases: Mapping[str, str] = field(default_factory=dict)
    requires: Mapping[str, str] = field(default_factory=dict)
    seconds: Callable[[PlanningProblem, Any], float] = seconds_of_sets
    pooling: Pooling | None = None
    for_period: Callable[[MeasurementPlan, PeriodContext], MeasurementPlan] = plan_of_period
