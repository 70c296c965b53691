"""Release: what a finished run gives to its readers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscale.domain import Domain
from dpscale.engine import Engine, resolve
from dpscale.engine.schedulers import Progress, silent
from dpscale.errors import JobError
from dpscale.job import Job
from dpscale.plans.planfile import AnyPlan
from dpscale.privacy.ledgerplace import check_ledger_place
from dpscale.runs.hashes import check_left, disk_errors
from dpscale.runs.run import RunDirectory
from dpscale.stages.estimating import estimates_of
from dpscale.stages.measure import run_measure
from dpscale.stages.plan import run_plan
from dpscale.stages.reconstruct import run_reconstruct
from dpscale.stages.report import run_report
from dpscale.storage.files import store_errors

Stage = Callable[[RunDirectory, Engine], None]


class Release:
    """The private answers of a run. Reading it costs nothing: everything here is post-processing."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._estimates = estimates_of(run)

    @classmethod
    def open(cls, run_dir: str | Path) -> Release:
        """Open a run directory whose measure stage is done."""
        return cls(RunDirectory(run_dir))

    @property
    def path(self) -> Path:
        return self._run.path

    @property
    def domain(self) -> Domain:
        return self._run.domain

    @cached_property
    def plan(self) -> AnyPlan:
        return self._run.plan()

    @property
    def manifest(self) -> dict[str, Any]:
        return self._run.manifest

    def marginal(self, attributes: Sequence[str]) -> NDArray[np.float64]:
        """Estimated counts over the attributes, an axis each in the order asked.

        Unbiased, so maybe negative, by least squares; non-negative and biased by maximum entropy.
        """
        return self._estimates.marginal(attributes)

    def answer(self, attributes: Sequence[str], query: Any) -> tuple[float, float]:
        """(estimate, standard error) of a linear query, given as an array over the attributes' cells.

        The error is nan where none is known: by maximum entropy, unless the job asks to simulate errors.
        """
        return self._estimates.answer(attributes, query)

    def synthetic(self) -> Any:
        """Synthetic rows, where the job asks for them."""
        raise JobError("synthesize", "not in this job", "a job with a [synthesize] table", "answers are in answers/")


def run(
    job: str | Path | Mapping[str, Any],
    run_dir: str | Path | None = None,
    client: Any = None,
    scheduler: str | None = None,
    progress: Progress = silent,
) -> Release:
    """Run all stages of a job (a path, or the job's content as a dict) and open its release."""
    read = Job.read(job)
    directory = RunDirectory.create(read, run_dir)
    run_stages(directory, client, scheduler, progress)
    return Release(directory)


def run_stages(
    directory: RunDirectory,
    client: Any = None,
    scheduler: str | None = None,
    progress: Progress = silent,
    only: str | None = None,
) -> None:
    """All stages in turn, or one of them."""
    stages: dict[str, Stage] = {
        "plan": run_plan,
        "measure": run_measure,
        "reconstruct": run_reconstruct,
        "report": run_report,
    }
    if only in (None, "measure") and not directory.done("measure"):
        check_ledger_place(directory.job.privacy.ledger)
    engine = resolve(client, scheduler or directory.job.engine.scheduler, progress)
    try:
        with disk_errors(directory.path), store_errors(directory.path), directory.locked():
            found = {name: told for name, told in directory.manifest["stages"].items() if directory.done(name)}
            for name, stage in stages.items():
                if only in (None, name):
                    check_left(directory.path, found, name)
                    stage(directory, engine)
    finally:
        engine.close()
