"""Result of a regression: coefficients, errors, intervals and a summary in the usual layout."""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from dpscale.answers.regression.design import Design, read_design
from dpscale.answers.regression.fit import SAMPLING, RegressionFit, fit_regression
from dpscale.answers.regression.scores import Profile, interval
from dpscale.answers.tables import Answered, check_level
from dpscale.base.numerics import stats
from dpscale.reconstruction.joint_intervals import half_width

if TYPE_CHECKING:
    from pandas import DataFrame, Series

WIDTH = 78  # characters of a line of the summary, unless a coefficient has a long name
LEVEL = 0.95  # probability of intervals by default; p-values are scaled like an interval of this probability


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
            Profile(score=self._fit.score, best=self._fit.best, place=place, deviation=float(own))
            for place, own in enumerate(deviations)
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
        tested = [one.at(0.0).value if one.deviation > 0 else math.inf for one in self._profiles]
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
                ends = [interval(one, width, self._fit.two_sided) for one in self._profiles]
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
        for (left, value), (right, other) in zip(facts[::2], facts[1::2], strict=True):
            lines.append(f"{left:<18}{value[: half - 20]:>{half - 19}} {right:<19}{other:>{WIDTH - half - 19}}")
        tail = (1 - level) / 2
        head = ["coef", "std err", "z", "P>|z|", f"[{tail:.3g}", f"{1 - tail:.3g}]"]
        longest = max(12, *(len(name) for name in self._names))
        lines += ["=" * WIDTH, " " * longest + "".join(f"{one:>11}" for one in head), "-" * max(WIDTH, longest + 66)]
        rows = np.column_stack([self.params, self.bse, self.pvalues, ends])
        for name, (value, error, chance, low, high) in zip(self._names, rows.tolist(), strict=True):
            # the ratio of an estimate to its error, in the column z
            score = value / error if error > 0 else math.nan
            figures = (_number(value), _number(error), f"{score:.3f}", f"{chance:.3f}", _number(low), _number(high))
            lines.append(f"{name:<{longest}}" + "".join(f"{one:>11}" for one in figures))
        return "\n".join([*lines, "=" * WIDTH, *self._notes(ends)])

    def _notes(self, ends: DataFrame) -> list[str]:
        """Return sentences on what the errors cover."""
        if not self._fit.has_errors:
            return ["Notes: the estimates are those of a model, whose error the noise does not determine."]
        notes = [f"Notes: errors cover the {SAMPLING[self._fit.sampling]}."]
        unknown = [name for name, own in ends.iterrows() if not np.isfinite(own).all()]
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
