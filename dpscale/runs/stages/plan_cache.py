"""Whole plans kept in the user's cache, so that a job that took long to plan is not planned again.

The plan store (`solve.store`) keeps what single problems came to; rounding them, weighing axes and telling errors is
then done anew, which of many sets is most of the work. A plan follows from the workload, the mechanism with its
options and this very code, by which it is named; it is public. It is read with its hash, and made anew where that or
anything else is wrong with it.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from dpscale.base.errors import DpscaleError
from dpscale.job import Job
from dpscale.mechanisms.contract import Mechanism, PlanningProblem
from dpscale.optimize.plan_store import user_store
from dpscale.plans.measurement_plan import MeasurementPlan
from dpscale.storage.files import write_whole

WORTH_SECONDS = 0.5
MOST = 32  # plans, of which those that were used last stay
DIGEST = "digest.txt"


def plan_once(
    job: Job, problem: PlanningProblem, most_cells: int, make: Callable[[Mechanism], MeasurementPlan]
) -> MeasurementPlan:
    """The plan of a job's mechanism, from the cache where it was made before."""
    return plan_once_by(job.method, job.mechanism.given, job.options, problem, most_cells, make)


def plan_once_by(
    named: Mechanism,
    given: Any,
    options: Any,
    problem: PlanningProblem,
    most_cells: int,
    make: Callable[[Mechanism], MeasurementPlan],
) -> MeasurementPlan:
    """The same of a mechanism with options."""
    folder = _folder(named, given, problem, most_cells)
    if folder is not None and (found := _read(folder, named, problem, options)) is not None:
        return found
    began = time.perf_counter()
    made = make(named)
    if folder is not None and time.perf_counter() - began >= WORTH_SECONDS:
        _keep(folder, made)
    return made


def _folder(named: Mechanism, given: Any, problem: PlanningProblem, most_cells: int) -> Path | None:
    """Where a plan is kept; None where nothing is. Plans that are settled beforehand are the same at any budget."""
    store = user_store()
    if store is None:
        return None
    budget = problem.noise if named.data_independent else [problem.noise, problem.budget.amount, problem.rows_per_unit]
    known = [named.name, given, problem.workload.digest, budget, most_cells]
    return store.folder / "plans" / _name(known)


def _name(known: Sequence[Any]) -> str:
    """By which what follows from these, and from this very code, is kept."""
    return _digest(json.dumps([*known, _code(), np.__version__], sort_keys=True, default=str))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def cached_summary(known: Sequence[Any], make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What is told of a plan, as JSON has it, from the cache where it was told before. `known`: all it follows from."""
    store = user_store()
    if store is None:
        return make()
    place = store.folder / "told" / f"{_name(known)}.json"
    with suppress(OSError, ValueError):
        digest, _, text = place.read_text().partition("\n")
        if digest == _digest(text):
            os.utime(place)
            return dict(json.loads(text))
    made = make()
    with suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(made)
        write_whole(place, f"{_digest(text)}\n{text}".encode())
        _thin(place.parent)
    return made


@cache
def _code() -> str:
    """What the package's files are: a plan of other code may be another."""
    root = Path(__file__).parents[2]
    signs = [(str(path.relative_to(root)), *_sign(path)) for path in sorted(root.rglob("*.py"))]
    return hashlib.sha256(repr(signs).encode()).hexdigest()


def _sign(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _read(folder: Path, named: Mechanism, problem: PlanningProblem, options: Any) -> MeasurementPlan | None:
    """None where there is none, or not as it was written."""
    with suppress(OSError, ValueError, KeyError, EOFError, DpscaleError):
        written = (folder / DIGEST).read_text()
        if written == _content(folder):
            os.utime(folder)
            return named.read(folder, problem, options)
    return None


def _keep(folder: Path, planned: MeasurementPlan) -> None:
    """Whole or not at all; the oldest give way."""
    partial = folder.with_name(f".{secrets.token_hex(8)}.partial")
    with suppress(OSError, DpscaleError):
        partial.mkdir(parents=True)
        planned.write(partial)
        (partial / DIGEST).write_text(_content(partial))
        os.replace(partial, folder)
        _thin(folder.parent)
    shutil.rmtree(partial, ignore_errors=True)


def _thin(folder: Path) -> None:
    """Leave the MOST that were used last."""
    kept = sorted(folder.iterdir(), key=lambda one: one.stat().st_mtime)
    for old in kept[: max(len(kept) - MOST, 0)]:
        old.unlink() if old.is_file() else shutil.rmtree(old, ignore_errors=True)


def _content(folder: Path) -> str:
    """The hash of all that a plan is."""
    files = sorted(path for path in folder.iterdir() if path.name != DIGEST)
    parts = [path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest() for path in files]
    return hashlib.sha256(b"".join(parts)).hexdigest()
