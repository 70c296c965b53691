"""Release: what a finished run gives to its readers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscale.answers import statistics
from dpscale.answers.report.figures import table_figure
from dpscale.answers.statistics import Estimate
from dpscale.answers.tables import Answered, column, framed
from dpscale.base.display import glance
from dpscale.base.errors import JobError
from dpscale.domain import Domain
from dpscale.engine.schedulers import Progress, silent
from dpscale.job import Job
from dpscale.plans.measurement_plan import Planned
from dpscale.runs.estimates import estimates_of
from dpscale.runs.run import Run
from dpscale.runs.stages.resume import begin, check_frame, check_repeat
from dpscale.runs.stages.runner import leaving_nothing, run_stages
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

    def extrapolates(self, attributes: Sequence[str]) -> bool:
        """Whether answers over these attributes are a model's, beyond the row space of what was measured.

        Least squares refuses such answers. A model (maximum entropy, graphical, adaptive) gives them without an error,
        or with a simulated one.
        """
        return bool(self._estimates.extrapolates(attributes))

    @cached_property
    def answered(self) -> Answered:
        """Its estimates under its public name: what tables and statistics are made of."""
        return Answered(self._estimates, str(self.manifest["release"]))

    def table(
        self,
        attributes: Sequence[str],
        family: str | None = None,
        *,
        level: float = 0.95,
        joint: bool = False,
        frame: str = "pandas",
    ) -> Any:
        """Answers with labels: a row a query, with estimate, std_error and the interval from low to high, in records.

        `family`: the cells where they are told, if none is named, else the first family that was asked over the set.
        Columns before the figures tell what a row asks: `age`; `age_at_most` of prefixes; `age_from`, `age_to` of
        ranges. `level`: of each interval; with `joint` that all hold at once (needs least squares). `frame`: pandas,
        arrow or polars. Errors are nan where none is told. A table from a model has the column `extrapolated`
        (see `extrapolates`).
        """
        return framed(self.answered.table(attributes, family, level, joint), frame)

    def total(self, level: float = 0.95) -> Estimate:
        """The estimated number of records: (estimate, low, high)."""
        return statistics.total(self.answered, level)

    def quantile(self, attribute: str, q: float, by: str | None = None, level: float = 0.95) -> Any:
        """The q-quantile of an attribute of numbers: (estimate, low, high); the interval inverts a test.

        `by`: one for each value of another attribute, as a pandas DataFrame.
        """
        return self._each(partial(statistics.quantile, self.answered, attribute, q, level), by)

    def mean(self, attribute: str, by: str | None = None, level: float = 0.95) -> Any:
        """The mean of an attribute of numbers: (estimate, low, high).

        The estimate takes a bin at its middle; the interval covers the noise and any place of records inside their
        bins (`answered.statistics.mean`).

        Parameters
        ----------
        attribute : str
            An attribute of kind integer, coded or bins.
        by : str, optional
            Another attribute. Then the result is a pandas DataFrame with a row for each of its values. A group without
            a mean has missing values, and the column `reason` says why.
        level : float
            Probability that the interval covers the true mean.

        Raises
        ------
        PlanError
            Where the number of records is not distinguishable from zero.
        """
        return self._each(partial(statistics.mean, self.answered, attribute, level), by)

    def cumulative(self, attribute: str, *, level: float = 0.95, joint: bool = False, frame: str = "pandas") -> Any:
        """Records with at most each value of an attribute of numbers; missing and outside values are left out."""
        listed = statistics.ordered(self.answered, attribute).listed
        return framed(self.answered.table([attribute], "prefix", level, joint).slice(0, listed), frame)

    def plot(self, attributes: Sequence[str], *, level: float = 0.95, joint: bool = False) -> Any:
        """A matplotlib figure of the cells of one attribute (bars with intervals) or of two (a heat map)."""
        table = self.answered.table(attributes, "marginal", level, joint)
        return table_figure(table, self._run.domain, tuple(attributes))

    def _each(self, statistic: Callable[..., Estimate], by: str | None) -> Any:
        if by is None:
            return statistic()
        import pandas as pd

        cells = range(self.domain[by].size)
        rows, reasons = zip(*(_row(partial(statistic, by=(by, cell))) for cell in cells), strict=True)
        found = pd.DataFrame(rows, columns=list(Estimate._fields))
        found.insert(0, by, column(self.domain[by], np.arange(len(cells))).to_pandas())
        return found.assign(reason=reasons) if any(reasons) else found

    def __repr__(self) -> str:
        return f"Release({self.manifest['release'][:8]}, {self._run.workload.query_count} queries, {self.path})"

    def _repr_html_(self) -> str:
        return glance(repr(self), {
            "attributes": ", ".join(self.domain.names), "queries": f"{self._run.workload.query_count:,}",
            "mechanism": self._run.planned.mechanism, "answers": "release.table([…]), .total(), .quantile(…)"
        })  # fmt: skip

    def synthetic(self) -> Any:
        """Synthetic rows, a dask DataFrame. JobError where none were drawn."""
        import dask.dataframe as dd

        folder = self.path / "synthetic"
        if not self._run.done("synthesize"):
            raise JobError("synthesize", f"no rows in {self.path}", "a job with a [synthesize] table, or rows since",
                           f"draw them: dpscale synthesize {self.path}")  # fmt: skip
        files = [str(folder / name) for name in json.loads(read_text(folder / "_rows.json"))["files"]]
        return dd.read_csv(files) if files[0].endswith(".csv") else dd.read_parquet(files)


def _row(statistic: Callable[[], Estimate]) -> tuple[Estimate, str | None]:
    """A statistic of one group; missing values with the reason where the group is too small for one."""
    try:
        return statistic(), None
    except statistics.TooFewRecords as error:
        return Estimate.around(float("nan"), float("nan")), str(error)


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

    A job that is done is opened as it is. DataError where its files have changed since, or where `data` is another
    frame than the one that was measured or cannot be compared with it. `fresh` makes a new release, which is charged.
    `data`: the frame of a job that has one instead of files.
    """
    opened = begin(job if isinstance(job, Job) else Job.read(job), run_dir, fresh)
    opened.frame = data
    check_repeat(opened)
    check_frame(opened, client, scheduler)
    with leaving_nothing(opened):
        run_stages(opened, client, scheduler, progress)
    return Release(opened)
