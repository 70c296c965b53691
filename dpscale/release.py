"""Release: what a finished run gives to its readers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscale.domain import Domain
from dpscale.engine.schedulers import Progress, silent
from dpscale.errors import JobError
from dpscale.job import Job
from dpscale.plans.planned import Planned
from dpscale.runs.estimates import estimates_of
from dpscale.runs.run import Run
from dpscale.stages.repeating import begin, check_repeat
from dpscale.stages.running import run_stages
from dpscale.storage.files import read_text


class Release:
    """The private answers of a run. Reading it costs nothing: everything here is post-processing."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._estimates = estimates_of(run)

    @classmethod
    def open(cls, run_dir: str | Path) -> Release:
        """Open a run directory whose measure stage is done."""
        return cls(Run(run_dir))

    @property
    def path(self) -> Path:
        return self._run.path

    @property
    def domain(self) -> Domain:
        return self._run.domain

    @cached_property
    def plan(self) -> Any:
        """What was planned: a `Plan` of a matrix mechanism, else what was chosen among and at what cost."""
        planned: Planned = self._run.planned
        return planned.shown

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
        """Synthetic rows, a dask DataFrame. JobError where none were drawn."""
        import dask.dataframe as dd

        folder = self.path / "synthetic"
        if not self._run.done("synthesize"):
            raise JobError("synthesize", f"no rows in {self.path}", "a job with a [synthesize] table, or rows since",
                           f"draw them: dpscale synthesize {self.path}")  # fmt: skip
        files = [str(folder / name) for name in json.loads(read_text(folder / "_rows.json"))["files"]]
        return dd.read_csv(files) if files[0].endswith(".csv") else dd.read_parquet(files)


def run(
    job: str | Path | Mapping[str, Any] | Job,
    run_dir: str | Path | None = None,
    client: Any = None,
    scheduler: str | None = None,
    progress: Progress = silent,
    fresh: bool = False,
    data: Any = None,
) -> Release:
    """Run all stages of a job (a path, or the job's content as a dict) and open its release.

    A job that is done is opened as it is; DataError where its files have changed since. `fresh` makes a new release.
    `data`: the frame of a job that has one instead of files.
    """
    opened = begin(job if isinstance(job, Job) else Job.read(job), run_dir, fresh)
    opened.frame = data
    check_repeat(opened)
    run_stages(opened, client, scheduler, progress)
    return Release(opened)
