"""Fit of a regression to the estimates of a release, and its result: coefficients, errors, intervals and a summary.

A linear regression needs second moments of its columns and of the outcome with each, which are queries over the
attributes of two columns. Other families need the joint table of outcome and covariates. The estimand is the regression
on the whole table of clipped and binned records, so the variance is that of the noise alone. `population` adds the
variance of drawing n records: of the cells of the joint table (the sandwich), or with equal variance of the residuals
if only pairs were measured.

*Expected widths of the intervals.*
They follow from a plan and a public guess of the table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations_with_replacement
from typing import TYPE_CHECKING, Any

import numpy as np

from dpscale.answers.regression.design import MOST_CELLS, Design, DesignColumn, read_design
from dpscale.answers.regression.scores import (
    MEANS,
    CellScore,
    LinearScore,
    Mean,
    Profile,
    Score,
    Tested,
    interval,
    minimise,
)
from dpscale.answers.statistics import TooFewRecords
from dpscale.answers.tables import LEVEL, Answered, check_level
from dpscale.base.display import nearest, safe_repr
from dpscale.base.errors import JobError, PlanError
from dpscale.base.numerics import Floats, Integers, stats
from dpscale.reconstruction.base import Estimates
from dpscale.reconstruction.estimates import LeastSquaresEstimates
from dpscale.reconstruction.joint_answers import SetQueries, joint_answers
from dpscale.reconstruction.joint_intervals import half_width

if TYPE_CHECKING:
    from pandas import DataFrame, Series

LINEAR = "linear"
FAMILIES = (LINEAR, *MEANS)
MOST_MOMENTS = 2000  # of which the exact covariance is computed
MOST_ENTRIES = 1 << 26  # of queries over a joint table
SAMPLING = {"": "noise of the release", "cells": "noise, and sampling of records (sandwich)",
            "equal": "noise, and sampling of records (equal variance)"}  # fmt: skip

WIDTH = 78  # characters of a line of the summary, unless a coefficient has a long name


@dataclass(frozen=True, eq=False)
class RegressionFit:
    """Coefficients in units of scaled columns, and the score from which errors follow.

    Attributes
    ----------
    score : Score
    best : Tested
        Least T; coefficients alone if there is no covariance.
    scale : ndarray
        Factor from scaled to reported coefficients.
    records : float
        Estimated number of records.
    rsquared : float
    two_sided : bool
        Whether an interval that is unbounded on one side is so on both.
    sampling : str
    """

    score: Score
    best: Tested
    scale: Floats
    records: float
    rsquared: float
    two_sided: bool
    sampling: str

    @property
    def has_errors(self) -> bool:
        return bool(np.isfinite(self.score.covariance).all())


def fit_regression(estimates: Estimates, design: Design, family: str, population: bool) -> RegressionFit:
    """Return the fit of a regression.

    Raises
    ------
    JobError
        For an unknown family, or an outcome that the family does not have.
    PlanError
        If the needed sets were not measured.
    TooFewRecords
        If no record is estimated.
    """
    if family not in FAMILIES:
        raise JobError("family", safe_repr(family), ", ".join(FAMILIES), nearest(str(family), FAMILIES))
    if family == LINEAR:
        return _linear(estimates, design, population)
    _check_outcome(design, family)
    return _by_cells(estimates, design, MEANS[family], population)


def _check_outcome(design: Design, family: str) -> None:
    """Raise JobError for an outcome that a family does not have, or numbers, which have no cells."""
    if design.has_numbers:
        name = next(name for name in design.names if name in design.domain.number_names)
        raise JobError("formula", f"the number {name} in a {family} regression", "attributes with cells",
                       "define bins of the column as an attribute")  # fmt: skip
    values = design.outcome.values
    if family == "logistic" and (levels := set(np.unique(values))) != {0.0, 1.0}:
        raise JobError("formula", f"the outcome {design.outcome.name} with {len(levels)} values, for logistic",
                       "an outcome that is 0 or 1", 'name the label that counts, such as outcome == "yes"')  # fmt: skip
    if family == "poisson" and values.min() < 0:
        raise JobError("formula", f"the outcome {design.outcome.name} with values below 0, for poisson",
                       "counts", "use linear")  # fmt: skip


def _scales(design: Design) -> Floats:
    """Return the largest absolute value of each column, and of the outcome."""

    def largest(column: DesignColumn) -> float:
        ends = [max(map(abs, design.domain[name].cell_ends)) for name in column.numbers]  # type: ignore[attr-defined]
        return float(np.abs(column.values).max() * np.prod(ends)) or 1.0

    return np.array([largest(column) for column in (*design.columns, design.outcome)])


def _linear(estimates: Estimates, design: Design, population: bool) -> RegressionFit:
    """Return the fit of a linear regression from noisy moments: products of two columns, or one and the outcome.

    Columns are scaled to comparable size first. `population` adds the sampling variance of the records to the variance
    of the noise: from the joint table of cells if there is one, else with equal variance of the residuals.

    `places[i, j]` is the number of the moment of columns i and j, so that `gram` = XᵀX and `right` = Xᵀy. Columns are
    divided by scales, which the last step reverts.
    """
    columns, scales = (*design.columns, design.outcome), _scales(design)
    count = len(design.columns)
    # products of two columns first, then those of a column and the outcome
    pairs = [*combinations_with_replacement(range(count), 2), *((row, count) for row in range(count))]
    queries = [_query(design, number, (columns[i], columns[j]), scales[i] * scales[j])
               for number, (i, j) in enumerate(pairs)]  # fmt: skip
    moments, covariance = _answered(estimates, queries, len(pairs))
    places = np.zeros((count, count), np.int64)
    for number, (i, j) in enumerate(pairs[:-count]):
        places[i, j] = places[j, i] = number

    gram, right = moments[places], moments[-count:]
    # least squares, because noise may make the Gram matrix singular
    beta = np.asarray(np.linalg.lstsq(gram, right, rcond=None)[0], np.float64)
    records, residual, rsquared = _residuals(estimates, design, gram, right, beta, float(scales[-1]))
    extra, sampling = np.zeros((count, count)), ""
    if population and (table := _joint_table(estimates, design)) is not None:
        sampling = "cells"
        flat = _flat_columns(design, columns, scales)
        products = np.stack([flat[i] * flat[j] for i, j in pairs])
        # Σ over the cells of count · products · productsᵀ
        covariance = covariance + (products * table.reshape(-1)) @ products.T
    elif population:
        sampling = "equal"
        values, vectors = np.linalg.eigh(gram)
        # σ² XᵀX, without negative eigenvalues, which only noise causes
        extra = residual / max(records - count, 1.0) * (vectors * np.maximum(values, 0)) @ vectors.T
    score = LinearScore(moments=moments, covariance=covariance, extra=extra, places=places)
    return RegressionFit(
        score=score,
        best=_best(score, beta),
        scale=scales[-1] / scales[:-1],
        records=records,
        rsquared=rsquared,
        two_sided=True,
        sampling=sampling,
    )


def _flat_columns(design: Design, columns: Sequence[DesignColumn], scales: Floats) -> Floats:
    """Return scaled columns over all cells of the regression, shape (columns, cells)."""
    pairs = zip(columns, scales, strict=True)
    return np.stack([design.table(column).reshape(-1) / scale for column, scale in pairs])


def _query(design: Design, number: int, columns: tuple[DesignColumn, ...], scale: float) -> SetQueries:
    names, values = design.product(*columns)
    return SetQueries(names, np.array([number]), values[None] / scale)


def _answered(estimates: Estimates, queries: list[SetQueries], count: int) -> tuple[Floats, Floats]:
    """Return moments and their covariance; queries over the same set are answered together.

    `count` is the number of moments; `rows` of a query are the moments to which its values add.
    """
    by_set: dict[tuple[str, ...], list[SetQueries]] = {}
    for query in queries:
        by_set.setdefault(query.names, []).append(query)
    stacked = []
    for names, of_set in by_set.items():
        rows = np.concatenate([query.rows for query in of_set])
        stacked.append(SetQueries(names, rows, np.concatenate([query.values for query in of_set])))
    try:
        return joint_answers(estimates, stacked, count)
    except PlanError as error:
        absent = [names for names in by_set if names and not _is_measured(estimates, names, by_set[names])]
        if not absent:
            raise
        missing = max(absent, key=len)
        together = f"{' and '.join(missing)}{' together' if len(missing) > 1 else ''}"
        raise PlanError("formula", f"{together}, not measured", "sets of the workload",
                        f"add a part with the attributes {list(missing)}") from error  # fmt: skip


def _is_measured(estimates: Estimates, names: tuple[str, ...], queries: list[SetQueries]) -> bool:
    """Return whether the release can answer the queries with errors; it asks for the first of each."""
    try:
        for query in queries:
            estimates.answer(names, query.values[0])
    except PlanError:
        return False
    return True


def _residuals(
    estimates: Estimates, design: Design, gram: Floats, right: Floats, beta: Floats, scale: float
) -> tuple[float, float, float]:
    """Return the number of records, the sum of squared residuals and R²; nan without squares of the outcome.

    `gram`, `right` and `beta` are scaled. The total and the squares of the outcome give R² only if the workload
    measured squares.
    """
    constant = DesignColumn("", (), np.ones(()))
    y = replace(design.outcome, values=design.outcome.values / scale)
    queries = [_query(design, 0, (constant,), 1.0), _query(design, 1, (constant, y), 1.0)]
    (records, total), _ = _answered(estimates, queries, 2)
    _check_records(records)
    try:
        (squares,), _ = joint_answers(estimates, [_query(design, 0, (y, y), 1.0)], 1)
    except PlanError:
        return float(records), np.nan, np.nan
    residual = float(squares - 2 * beta @ right + beta @ gram @ beta)
    variation = squares - total**2 / records
    defined = design.has_constant and variation > 0
    return float(records), residual, float(min(1 - residual / variation, 1.0)) if defined else np.nan


def _check_records(records: float) -> None:
    if not records > 0:
        raise TooFewRecords("formula", "no estimated record", "a table with more records than noise",
                            "increase the budget")  # fmt: skip


def _joint_table(estimates: Estimates, design: Design) -> Floats | None:
    """Return estimated counts of all cells of the regression that are not negative; None if they are not estimated."""
    names = design.names
    if design.has_numbers or design.domain.cells(names) > MOST_CELLS:
        return None
    try:
        table = estimates.marginal(names)
    except PlanError:
        return None
    return _without_negative(table * _known(design).reshape(table.shape))


def _without_negative(table: Floats) -> Floats:
    """Return counts that are not negative, with the same total if it is positive."""
    positive = np.maximum(table, 0)
    return np.asarray(positive * max(table.sum(), 1.0) / max(positive.sum(), 1.0))


def _by_cells(estimates: Estimates, design: Design, mean: Mean, population: bool) -> RegressionFit:
    """Return the fit of a regression with a mean that is not linear, from counts and outcomes by distinct row.

    With few rows the score is a function of these numbers and their covariance; with many, its local form at the
    estimate. `population` adds the sampling variance of the records to that of the noise.

    `rows` are the distinct rows of covariates, `numbers` their records and `sums` their outcomes. `counts` are
    estimates without negative cells, which give a first point.
    """
    names, domain = design.names, design.domain
    if (cells := domain.cells(names)) > MOST_CELLS:
        raise PlanError("formula", f"{cells:,} cells of {', '.join(names)}", f"at most {MOST_CELLS:,}",
                        "use fewer attributes, or coarser ones")  # fmt: skip
    scales = _scales(design)[:-1]
    table = estimates.marginal(names)
    whole = _flat_columns(design, design.columns, scales)
    outcome, known = design.table(design.outcome).reshape(-1), _known(design)
    # cells with equal covariates have one mean; `which` is the row of each known cell
    rows, which = np.unique(whole.T[known], axis=0, return_inverse=True)
    flat, y = table.reshape(-1)[known], outcome[known]
    numbers, sums = _grouped(which, len(rows), flat), _grouped(which, len(rows), flat * y)
    records = float(numbers.sum())
    _check_records(records)

    counts = _without_negative(flat)
    # from non-negative counts, for which a root exists
    counts_of_rows, sums_of_rows = _grouped(which, len(rows), counts), _grouped(which, len(rows), counts * y)
    start = _start(rows, mean, counts_of_rows, sums_of_rows, float(y.max()))
    # the numbers and sums of all distinct rows are the moments
    has_few_rows = 2 * len(rows) <= MOST_MOMENTS
    if has_few_rows:
        values = np.zeros((2 * len(rows), known.size))
        values[which, np.flatnonzero(known)] = 1
        values[len(rows) + which, np.flatnonzero(known)] = y
        shaped = values.reshape(-1, *domain.shape(names))
        _, covariance = joint_answers(estimates, [SetQueries(names, np.arange(2 * len(rows)), shaped)], 2 * len(rows))
        if population:
            covariance = covariance + _sampled(which, len(rows), counts, y)
        # without known errors there is no test, so the root itself is the estimate
        if not np.isfinite(covariance).all():  # of a model
            start = _root(rows, mean, numbers, sums, start)
        none = np.zeros((len(scales),) * 2)
        score: Score = CellScore(
            moments=np.concatenate([numbers, sums]), covariance=covariance, extra=none, design=rows, mean=mean
        )
    else:  # the score is linearised at its root, so that few moments are needed
        start = _root(rows, mean, numbers, sums, start)
        score = _local(estimates, design, whole * known, outcome, mean, start, _all_cells(counts, known) * population)

    return RegressionFit(
        score=score,
        best=_best(score, start),
        scale=1 / scales,
        records=records,
        rsquared=np.nan,
        two_sided=not has_few_rows,
        sampling="cells" if population else "",
    )


def _known(design: Design) -> np.ndarray:
    """Return whether the records of each cell count."""
    inside = np.ones(design.domain.shape(design.names))
    for name, counts in design.known.items():
        axis = design.names.index(name)
        inside = inside * counts.reshape([-1 if place == axis else 1 for place in range(inside.ndim)])
    return inside.reshape(-1) > 0


def _all_cells(counts: Floats, known: np.ndarray) -> Floats:
    """Return counts of the known cells as counts of all cells, 0 for the others."""
    expanded = np.zeros(known.size)
    expanded[known] = counts
    return expanded


def _grouped(which: Integers, count: int, values: Floats) -> Floats:
    return np.asarray(np.bincount(which, values, count), np.float64)


def _sampled(which: Integers, count: int, counts: Floats, y: Floats) -> Floats:
    """Return the covariance of numbers and sums of records that are drawn from a population."""
    number, total, squares = (np.diag(_grouped(which, count, counts * y**power)) for power in range(3))
    return np.block([[number, total], [total, squares]])


def _start(rows: Floats, mean: Mean, numbers: Floats, sums: Floats, largest: float) -> Floats:
    """Return coefficients of counts that are not negative, with half a record at the mean for each coefficient."""
    share = (sums.sum() + 0.5) / (numbers.sum() + 0.5 + 0.5 / largest)
    prior = rows.shape[1] / 2 / len(rows)
    return _root(rows, mean, numbers + prior, sums + prior * share, np.zeros(rows.shape[1]))


def _root(rows: Floats, mean: Mean, numbers: Floats, sums: Floats, beta: Floats) -> Floats:
    """Return the zero of the score by damped Newton steps; the last point if there is none.

    The score is Σ x (y - n · mean(xᵀβ)) over distinct rows. A step changes no predictor by more than 4 and is halved
    until the score becomes smaller.
    """

    def score(beta: Floats) -> Floats:
        return np.asarray(rows.T @ (sums - numbers * mean.value(rows @ beta)))

    current = score(beta)
    for _ in range(100):
        weights = numbers * mean.slope(rows @ beta)
        gram = (rows.T * weights) @ rows
        step = np.linalg.lstsq(gram, current, rcond=1e-12)[0]
        step *= min(1.0, 4.0 / max(np.abs(rows @ step).max(), 1e-300))
        for _ in range(30):
            moved = score(beta + step)
            if np.linalg.norm(moved) < np.linalg.norm(current):
                break
            step = step / 2
        else:
            return beta
        beta, current = beta + step, moved
        if np.abs(step).max() < 1e-10 * (1 + np.abs(beta).max()):
            return beta
    return beta


def _local(
    estimates: Estimates, design: Design, columns: Floats, outcome: Floats, mean: Mean, beta: Floats, sampled: Floats
) -> LinearScore:
    """Return the score to first order about its zero: a linear one, of weighted columns and the working response.

    The weights are the slopes of the mean, and the working response is the predictor plus rest over weight, as in
    iteratively reweighted least squares.

    `columns` are those over the cells, `sampled` the counts by which records are sampled (0 without sampling). The
    moments are Σ x_i x_j w and Σ x_i (rest + w · predictor) over the records.
    """
    count, names = len(beta), design.names
    predictor = columns.T @ beta
    weights, rest = mean.slope(predictor), outcome - mean.value(predictor)
    pairs = [*combinations_with_replacement(range(count), 2)]
    if (needed := (len(pairs) + count) * len(outcome)) > MOST_ENTRIES:
        got = f"{needed:,} entries of queries over {', '.join(names)}"
        raise PlanError("formula", got, f"at most {MOST_ENTRIES:,}", "use fewer terms")
    places = np.zeros((count, count), np.int64)
    for number, (i, j) in enumerate(pairs):
        places[i, j] = places[j, i] = number
    queries = np.concatenate([np.stack([columns[i] * columns[j] * weights for i, j in pairs]),
                              columns * (rest + weights * predictor)])  # fmt: skip
    shaped = queries.reshape(-1, *design.domain.shape(names))
    moments, covariance = joint_answers(estimates, [SetQueries(names, np.arange(len(queries)), shaped)], len(queries))
    covariance = covariance + (queries * sampled) @ queries.T
    return LinearScore(moments=moments, covariance=covariance, extra=np.zeros((count, count)), places=places)


def _best(score: Score, beta: Floats) -> Tested:
    """Return the least T near given coefficients; these without T if there is no covariance, or no noise."""
    if not np.isfinite(score.covariance).all() or np.trace(score.variance(beta)) <= 0:
        return Tested(beta=beta, value=0.0, score=np.zeros(len(beta)), slope=score.slope(beta, score.moments))
    return minimise(score, beta, range(len(beta)))


class RegressionResult:
    """Coefficients of a regression on the table of a release, with errors that include the noise.

    Created by `Release.regression`. An interval is unbounded where the noise hides the coefficient: nothing narrower is
    known.

    Parameters
    ----------
    design : Design
    family : str
    fit : RegressionFit
    noise : str
        Kind of noise of the release.

    Examples
    --------
    >>> result = release.regression("fare ~ C(borough)")
    >>> result.params.index.tolist()
    ['Intercept', 'C(borough)[T.Queens]']
    """

    def __init__(self, design: Design, family: str, fit: RegressionFit, noise: str) -> None:
        """Take the design and the fit; confidence intervals are computed on request and cached by level."""
        self.formula, self.family, self.nobs, self.rsquared = design.formula, family, fit.records, fit.rsquared
        self._outcome, self._constant = design.outcome.name, design.has_constant
        self._names = [column.name for column in design.columns]
        self._fit, self._noise = fit, noise
        self._intervals: dict[float, Any] = {}

    @property
    def params(self) -> Series:
        """Estimated coefficients by column."""
        return self._series(self._fit.best.beta * self._fit.scale)

    @cached_property
    def _covariance(self) -> Any:
        """Covariance matrix of the scaled coefficients to first order."""
        if not self._fit.has_errors:
            return np.full((len(self._names),) * 2, np.nan)
        return self._fit.score.delta_covariance(self._fit.best.beta)

    def cov_params(self) -> DataFrame:
        """Return the covariance matrix of the coefficients to first order; nan without errors.

        Returns
        -------
        pandas.DataFrame

        Examples
        --------
        >>> release.regression("fare ~ C(borough)").cov_params().shape
        (2, 2)
        """
        import pandas as pd

        scale = self._fit.scale
        return pd.DataFrame(self._covariance * np.outer(scale, scale), self._names, self._names)

    @property
    def bse(self) -> Series:
        """Standard errors: roots of the diagonal of `cov_params`, and inf where the 95 % interval is unbounded."""
        errors = np.sqrt(np.maximum(np.diag(self._covariance), 0)) * self._fit.scale
        if self._fit.has_errors:
            errors = np.where(np.isfinite(self.conf_int().to_numpy()).all(axis=1), errors, math.inf)
        return self._series(errors)

    @cached_property
    def _profiles(self) -> list[Profile]:
        """Profile of each coefficient, with its standard error to first order; a negative variance counts as 0."""
        deviations = np.sqrt(np.maximum(np.diag(self._covariance), 0))
        return [
            Profile(score=self._fit.score, best=self._fit.best, place=place, deviation=float(deviation))
            for place, deviation in enumerate(deviations)
        ]

    @cached_property
    def pvalues(self) -> Series:
        """P-values of the tests that a coefficient is 0, of which the intervals are the inversion; nan without errors.

        Examples
        --------
        >>> bool((release.regression("fare ~ C(borough)").pvalues >= 0).all())
        True
        """
        if not self._fit.has_errors:
            return self._series(np.full(len(self._names), np.nan))
        width = half_width(LEVEL, self._noise) / half_width(LEVEL, "")
        tested = [profile.at(0.0).value if profile.deviation > 0 else math.inf for profile in self._profiles]
        return self._series(stats.chi2.sf(np.array(tested) / width**2, 1))

    def conf_int(self, level: float = LEVEL) -> DataFrame:
        """Return the intervals of the coefficients.

        Parameters
        ----------
        level : float
            Probability that an interval covers the coefficient.

        Returns
        -------
        pandas.DataFrame
            With the columns `low` and `high`: infinite where the noise hides the coefficient, nan without errors.

        Examples
        --------
        >>> release.regression("fare ~ C(borough)").conf_int(0.9).columns.tolist()
        ['low', 'high']
        """
        import pandas as pd

        check_level(level)
        if level not in self._intervals:
            self._intervals[level] = np.full((len(self._names), 2), np.nan)
            if self._fit.has_errors:
                width = half_width(level, self._noise)
                ends = [interval(profile, width, self._fit.two_sided) for profile in self._profiles]
                self._intervals[level] = np.array(ends) * self._fit.scale[:, None]
        return pd.DataFrame(self._intervals[level], self._names, ["low", "high"])

    def summary(self, level: float = LEVEL) -> str:
        """Return a table of the coefficients in the layout of statsmodels, as text.

        Parameters
        ----------
        level : float
            Probability that an interval covers the coefficient.

        Returns
        -------
        str

        Examples
        --------
        >>> "Dep. Variable:" in release.regression("fare ~ C(borough)").summary()
        True
        """
        ends, shown = self.conf_int(level), self.rsquared if math.isfinite(self.rsquared) else None
        facts = [("Dep. Variable:", self._outcome), ("No. Observations:", f"{self.nobs:.0f}"),
                 ("Model:", self.family), ("Df Model:", str(len(self._names) - self._constant)),
                 ("Covariance Type:", "noise" if not self._fit.sampling else "noise + sampling"),
                 ("R-squared:", "" if shown is None else f"{shown:.3f}")]  # fmt: skip
        half = WIDTH // 2
        lines = ["Regression Results".center(WIDTH).rstrip(), "=" * WIDTH]
        # two facts on a line, each in half the width
        for (name, value), (other_name, other) in zip(facts[::2], facts[1::2], strict=True):
            lines.append(f"{name:<18}{value[: half - 20]:>{half - 19}} {other_name:<19}{other:>{WIDTH - half - 19}}")
        tail = (1 - level) / 2
        head = ["coef", "std err", "z", "P>|z|", f"[{tail:.3g}", f"{1 - tail:.3g}]"]
        longest = max(12, *(len(name) for name in self._names))
        header = " " * longest + "".join(f"{title:>11}" for title in head)
        lines += ["=" * WIDTH, header, "-" * max(WIDTH, longest + 66)]
        rows = np.column_stack([self.params, self.bse, self.pvalues, ends])
        for name, (value, error, chance, low, high) in zip(self._names, rows.tolist(), strict=True):
            # the ratio of an estimate to its error, in the column z
            score = value / error if error > 0 else math.nan
            figures = (_number(value), _number(error), f"{score:.3f}", f"{chance:.3f}", _number(low), _number(high))
            lines.append(f"{name:<{longest}}" + "".join(f"{text:>11}" for text in figures))
        return "\n".join([*lines, "=" * WIDTH, *self._notes(ends)])

    def _notes(self, ends: DataFrame) -> list[str]:
        """Return sentences on what the errors cover."""
        if not self._fit.has_errors:
            return ["Notes: the estimates are those of a model, whose error the noise does not determine."]
        notes = [f"Notes: errors cover the {SAMPLING[self._fit.sampling]}."]
        unknown = [name for name, interval_ends in ends.iterrows() if not np.isfinite(interval_ends).all()]
        return [*notes, f"Not known at this budget: {', '.join(map(str, unknown))}."] if unknown else notes

    def __repr__(self) -> str:
        return f"RegressionResult({self.formula!r}, {self.family}, {len(self._names)} coefficients)"

    def _series(self, values: Any) -> Series:
        import pandas as pd

        return pd.Series(values, self._names)


def _number(value: float) -> str:
    return f"{value:.4f}" if 1e-3 <= abs(value) < 1e5 or value == 0 else f"{value:.3g}"


def regression(answered: Answered, formula: str, family: str, population: bool) -> RegressionResult:
    """Return a regression on the estimates of a release."""
    design = read_design(answered.estimates.workload.domain, formula)
    fit = fit_regression(answered.estimates, design, family, population)
    return RegressionResult(design=design, family=family, fit=fit, noise=answered.estimates.noise)


def expected_widths(estimates: LeastSquaresEstimates, formula: str, family: str, level: float) -> dict[str, float]:
    """Return the expected width of the interval of each coefficient, to first order, on a guessed table.

    Parameters
    ----------
    estimates : LeastSquaresEstimates
        Those of a guessed table (`dpscale.reconstruction.guessed`).
    formula, family : str
    level : float

    Raises
    ------
    PlanError
        If the needed sets are not measured, or the plan measures levels of a hierarchy or merged cells together.
    """
    check_level(level)
    plan = estimates.plan
    if plan.blocks.has_trees or plan.blocks.merged is not None:
        raise PlanError("formula", "a plan over levels or merged cells", "a plan of cells", "leave the widths out")
    design = read_design(plan.domain, formula)
    fit = fit_regression(estimates, design, family, False)
    errors = np.sqrt(np.diag(fit.score.delta_covariance(fit.best.beta))) * fit.scale
    names = [column.name for column in design.columns]
    return dict(zip(names, (2 * half_width(level, plan.noise) * errors).tolist(), strict=True))
