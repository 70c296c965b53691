"""The plan stage: choice of the measurements and their cost. It reads no data and spends nothing.

A whole plan that takes long to compute is cached in the user's cache directory. The plan store (`mechanisms.contract`)
contains solutions of single problems. Rounding them, weighting the axes and computing errors is most of the work for
many sets, and is repeated with the plan store alone. A plan is named by a hash of the workload, the mechanism with its
options and the code of this package, from which it follows. It is public. It is stored with its hash and computed again
if it cannot be read or does not match.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpscale.base.deadline import limited, planning_within, too_long
from dpscale.base.display import format_bytes, quantity
from dpscale.base.errors import DpscaleError, PlanError
from dpscale.base.settings import Settings
from dpscale.engine.counting import FACTOR
from dpscale.job import TableJob
from dpscale.mechanisms import plan_problem
from dpscale.mechanisms.contract import Mechanism, PlanningProblem, Tools, planning_memory, user_store
from dpscale.plans.measurement_plan import MeasurementPlan
from dpscale.reconstruction.base import check_low_order
from dpscale.runs.earlier import plan_with_earlier
from dpscale.runs.preflight import LEAST_MEMORY, check_memory
from dpscale.runs.table import TablePart
from dpscale.storage.files import rename_over, write_whole

if TYPE_CHECKING:
    from dpscale.engine.schedulers import Engine


def perform(run: TablePart, engine: Engine) -> None:
    """Plan the measurements and write the plan."""
    run.write_plan(make_refined_plan(run, engine) if run.refines else make_plan(run.job, run.planning_problem, engine))


def make_refined_plan(run: TablePart, engine: Engine) -> MeasurementPlan:
    """Return the plan of a run that refines earlier releases: theirs again, or one that completes or continues them."""
    measurement_plan = plan_with_earlier(
        run, run.planning_problem, lambda: make_plan(run.job, run.planning_problem, engine)
    )
    check_plan(run.job, measurement_plan, engine)
    return measurement_plan


NO_LIMIT = 1 << 62  # bytes of memory while numbers of cells are not known
STATED_SECONDS = 10  # planning of which the predicted time is stated before it starts


def most_cells(job: TableJob, engine: Engine) -> int:
    """Return the largest number of cells of a marginal that can be counted in memory."""
    return job.engine.bytes // (8 * (engine.workers + FACTOR))


def make_plan(job: TableJob, problem: PlanningProblem, engine: Engine) -> MeasurementPlan:
    """Return the plan of a job; raise PlanError if it does not fit the memory or the requested reconstruction."""
    cells, seconds = most_cells(job, engine), job.engine.longest_planning
    # `limited` also ends the tasks of the engine when the time of planning is over
    tools = Tools(limited(engine.each("solve-attribute")), user_store(), cells)

    def plan_now(named: Mechanism) -> MeasurementPlan:
        """Return the plan of a mechanism; raise PlanError if it takes too much memory or time."""
        if named.data_independent:  # a fixed plan lists all subsets of the requested sets, an adaptive one does not
            problem.workload.check_subsets()
            check_planning_memory(problem, job)
        predicted = named.seconds(problem, job.options)
        if predicted > seconds:
            raise too_long(seconds, f"{named.name} needs about {predicted:,.0f} s for this workload")
        if predicted >= STATED_SECONDS:
            warnings.warn(f"planning with {named.name} takes about {predicted:,.0f} s", UserWarning, stacklevel=2)
        with planning_within(seconds):
            return plan_problem(named, problem, job.options, tools)

    measurement_plan = plan_once(job, problem, cells, plan_now)
    check_plan(job, measurement_plan, engine)
    return measurement_plan


def check_planning_memory(problem: PlanningProblem, job: TableJob) -> None:
    """Raise PlanError if a fixed plan of so many sets does not fit the memory setting."""
    if (needed := planning_memory(problem.workload)) > max(job.engine.bytes, LEAST_MEMORY):
        raise PlanError("engine.memory", f"planning needs {format_bytes(needed)}", f"at most {job.engine.memory_text}",
                        "raise it, or ask for fewer or smaller sets")  # fmt: skip


def check_plan(job: TableJob, measurement_plan: MeasurementPlan, engine: Engine) -> None:
    """Raise PlanError if a plan does not fit the memory, the requested reconstruction or the synthetic rows."""
    check_cells(measurement_plan, job)
    check_memory(measurement_plan, job, engine)
    check_estimates(job, measurement_plan, job.engine.bytes)


def check_estimates(job: TableJob, measurement_plan: MeasurementPlan, memory: int) -> None:
    """Raise PlanError if a plan does not fit the requested reconstruction, in some bytes, or the synthetic rows."""
    job.reconstruction.check(measurement_plan, job.estimating, memory)
    if job.synthesize is not None:
        check_low_order(measurement_plan)


def check_cells(measurement_plan: MeasurementPlan, job: TableJob) -> None:
    """Raise PlanError if the sets that are counted have more cells than `engine.max_cells`."""
    sets, limit = measurement_plan.counted_sets, job.engine.most_cells
    cells = sum(map(int, measurement_plan.workload.domain.cells_each(sets)))
    if cells > limit:
        got = f"{cells:,} cells in {quantity(len(sets), 'set')} to count"
        raise PlanError("engine.max_cells", got, f"at most {limit:,}",
                        "ask for fewer or smaller sets, or raise it")  # fmt: skip


def check_searched(run: TablePart, engine: Engine) -> None:
    """Raise PlanError, before searches are charged, for a job that could not be planned or estimated after them.

    The job is planned with assumed cells if it has numbers, or searches with rows or a stated reconstruction. Other
    limits of the plan depend on how many cells are found.
    """
    job = run.job
    needs_estimates = job.synthesize is not None or job.reconstruct.model_fields_set
    if not (run.workload.numbers or (run.declared.searches and needs_estimates)):
        return
    tools = Tools(engine.each("solve-attribute"), user_store(), most_cells(job, engine))
    try:
        assumed = plan_problem(job.method, job.planning_problem(run.workload, run.declared), job.options, tools)
    except PlanError:
        if run.workload.numbers:
            raise
        return
    check_estimates(job, assumed, NO_LIMIT)


WORTH_SECONDS = 0.5  # time of planning from which on a plan is stored in the cache
MOST = 32  # plans in the cache; the most recently used ones
DIGEST = "digest.txt"


def plan_once(
    job: TableJob, problem: PlanningProblem, most_cells: int, make: Callable[[Mechanism], MeasurementPlan]
) -> MeasurementPlan:
    """Return the plan of a job's mechanism, from the cache if it is there."""
    return plan_once_by(job.method, job.mechanism.given, job.options, problem, most_cells, make)


def plan_once_by(
    named: Mechanism,
    given: Mapping[str, Any],
    options: Settings,
    problem: PlanningProblem,
    most_cells: int,
    make: Callable[[Mechanism], MeasurementPlan],
) -> MeasurementPlan:
    """Return the plan of a mechanism with given options, from the cache if it is there.

    `make` computes the plan. One that takes at least WORTH_SECONDS is stored, if there is a cache directory. `given`
    are the options as the job states them, which name the entry; `options` are complete.
    """
    folder = _folder(named, given, problem, most_cells)
    stored = None if folder is None else _read(folder, named, problem, options)
    if stored is not None:
        return stored
    began = time.perf_counter()
    plan = make(named)
    if folder is not None and time.perf_counter() - began >= WORTH_SECONDS:
        _store_plan(folder, plan)
    return plan


def _folder(named: Mechanism, given: Mapping[str, Any], problem: PlanningProblem, most_cells: int) -> Path | None:
    """Return the folder of a plan; None without a cache.

    Its name depends on everything that determines the plan; the budget is left out for a data-independent one, which is
    the same at any budget.
    """
    store = user_store()
    if store is None:
        return None
    budget = problem.noise if named.data_independent else [problem.noise, problem.budget.amount, problem.rows_per_unit]
    inputs = [named.name, *filter(None, [named.distribution]), given, problem.workload.digest, budget, most_cells,
              problem.needs_marginals]  # fmt: skip
    return store.folder / "plans" / _name(inputs)


def _name(inputs: Sequence[Any]) -> str:
    """Return the name of an entry that depends on `inputs` and on the code of this package."""
    return _digest(json.dumps([*inputs, _code(), np.__version__], sort_keys=True, default=str))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def cached_summary(
    inputs: Sequence[Any],
    make: Callable[[], dict[str, Any]],
    is_worth: Callable[[dict[str, Any]], bool] = lambda _: True,
    fresh: bool = False,
) -> dict[str, Any]:
    """Return a summary in JSON types, from the cache if possible.

    A stored file has the digest of its text in the first line. Without a cache directory the summary is made each time.

    Parameters
    ----------
    inputs : sequence
        All that it depends on besides the code of this package.
    make : callable
        Computes the summary.
    is_worth : callable
        Returns whether a summary is stored.
    fresh : bool
        Make the summary even if it is stored.
    """
    store = user_store()
    if store is None:
        return make()
    place = store.folder / "summaries" / f"{_name(inputs)}.json"
    with suppress(OSError, ValueError):  # a file that is missing or damaged
        digest, _, text = ("", "", "") if fresh else place.read_text("utf-8").partition("\n")
        if digest == _digest(text):
            os.utime(place)  # marks the last use: the oldest entries are removed
            return dict(json.loads(text))
    summary = make()
    if not is_worth(summary):
        return summary
    with suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(summary)
        write_whole(place, f"{_digest(text)}\n{text}".encode())
        _remove_oldest(place.parent)
    return summary


@cache
def _code() -> str:
    """Return a digest of the package's files; other code may give another plan."""
    root = Path(__file__).parents[2]
    signs = [(path.relative_to(root).as_posix(), *_sign(path)) for path in sorted(root.rglob("*.py"))]
    return hashlib.sha256(repr(signs).encode()).hexdigest()


def _sign(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _read(folder: Path, named: Mechanism, problem: PlanningProblem, options: Settings) -> MeasurementPlan | None:
    """Return the plan in a folder of the cache; None if it is missing or differs from what was written."""
    with suppress(OSError, ValueError, KeyError, EOFError, DpscaleError):
        written = (folder / DIGEST).read_text("utf-8")
        if written == _content(folder):
            os.utime(folder)
            return named.read(folder, problem, options)
    return None


def _store_plan(folder: Path, measurement_plan: MeasurementPlan) -> None:
    """Write a plan atomically, and remove the oldest plans."""
    partial = folder.with_name(f".{secrets.token_hex(8)}.partial")
    with suppress(OSError, DpscaleError):
        partial.mkdir(parents=True)
        measurement_plan.write(partial)
        (partial / DIGEST).write_text(_content(partial), "utf-8")
        rename_over(partial, folder)
        _remove_oldest(folder.parent)
    shutil.rmtree(partial, ignore_errors=True)


def _remove_oldest(folder: Path) -> None:
    """Remove all but the MOST most recently used entries."""
    entries = sorted(folder.iterdir(), key=lambda entry: entry.stat().st_mtime)
    for old in entries[: max(len(entries) - MOST, 0)]:
        old.unlink() if old.is_file() else shutil.rmtree(old, ignore_errors=True)


def _content(folder: Path) -> str:
    """Return the hash of all files of a plan."""
    files = sorted(path for path in folder.iterdir() if path.name != DIGEST)
    parts = [path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest() for path in files]
    return hashlib.sha256(b"".join(parts)).hexdigest()
