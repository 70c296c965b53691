"""Conclusions from a release: differences, trends, odds ratios, risks, cross tables and tests, with intervals."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from dpscale.answers import conclusions
from dpscale.answers.conclusions import Contrast
from dpscale.answers.independence import IndependenceTest, independence_test
from dpscale.answers.number_statistics import checked_groups
from dpscale.answers.tables import Answered, column, label_name, texts
from dpscale.base.display import safe_repr
from dpscale.base.errors import JobError
from dpscale.base.numerics import Floats
from dpscale.domain import Domain

if TYPE_CHECKING:
    from pandas import DataFrame

Query = str | Mapping[str, Any]


class ReleaseConclusions(ABC):
    """Comparisons of groups and periods of a release."""

    _growing: Any

    @property
    @abstractmethod
    def domain(self) -> Domain:
        """Domain of the table."""

    @property
    @abstractmethod
    def answered(self) -> Answered:
        """Estimates with the public id of the release, from which tables and statistics are computed."""

    @property
    @abstractmethod
    def periods(self) -> list[str]:
        """Released periods of a growing table, in order; empty for a release of one moment."""

    @abstractmethod
    def over(self, *names: str | Sequence[str] | None, number: bool = False) -> ReleaseConclusions:
        """Return the release that answers queries over some attributes."""

    @abstractmethod
    def at(self, period: str | int, kind: str = "period") -> Self:
        """Return the answers at a period of a growing table."""

    def difference(
        self,
        first: Query | None,
        second: Query | None = None,
        *,
        share: Query | None = None,
        mean: str | None = None,
        sum: str | None = None,
        periods: tuple[str | int, str | int] | None = None,
        kind: str = "period",
        level: float = 0.95,
        population: bool = False,
    ) -> Contrast:
        """Return the difference of a statistic between two groups, or of a group between two periods.

        The error has the covariance of the two, which share noise. Differences of shares and means have limits that
        hold at strong noise too (`answers.conclusions`).

        Parameters
        ----------
        first, second : str, mapping or None
            Groups: predicates, or values by attribute. None is all records; between periods it is `first` again.
        share : str or mapping, optional
            Compare the shares of the records of each group that satisfy this query.
        mean, sum : str, optional
            Compare means or sums of an attribute of numbers or a number. Without `share`, `mean` and `sum`: numbers of
            records.
        periods : tuple of two periods, optional
            Periods of a growing table at which `first` and `second` are counted.
        kind : {"period", "cumulative", "window"}
        level : float
            Probability that the interval covers the difference.
        population : bool
            Whether the interval is about the population that the records are drawn from; it then has the sampling
            error of the records too. The result says which it is.

        Returns
        -------
        Contrast
            With the fields estimate, low, high, p_value and population.

        Raises
        ------
        JobError
            For a query that cannot be read, or more than one statistic.
        PlanError
            If a query was not measured, or has no standard error.

        Examples
        --------
        >>> bronx, queens = {"borough": "Bronx"}, {"borough": "Queens"}
        >>> difference = release.difference(bronx, queens, share="fare < 25")
        >>> difference.low < difference.estimate < difference.high
        True
        >>> release.difference(bronx, queens, mean="tip", population=True).population
        True
        """
        if [share, mean, sum].count(None) < 2:
            raise JobError("difference", "several statistics", "one of share, mean and sum", "leave the others out")
        second = first if periods is not None and second is None else second
        queries = [first, second, share]
        numbers = [name for name in (mean, sum) if name is not None]
        if periods is None and (own := self.over(*map(_named, queries), numbers, number=bool(numbers))) is not self:
            return own.difference(first, second, share=share, mean=mean, sum=sum, level=level, population=population)

        releases, shared = self._at_periods(periods, kind, population)
        records = conclusions.over_periods(releases, shared, queries, numbers)
        groups = [records.spread(first), records.spread(second)]
        weights = np.array([[1.0, -1.0]]) if periods is None else np.array([[1.0, 0.0], [0.0, -1.0]])
        if share is not None or mean is not None:
            outcome = self._outcome(releases[0], share, mean)
            return conclusions.compared(records, outcome, groups, weights, level, population)
        if sum is not None:
            return conclusions.summed(records, sum, groups, weights, level, population)
        return conclusions.linear(records, groups, weights, level, population)

    def trend(
        self,
        query: Query | None = None,
        *,
        share: Query | None = None,
        mean: str | None = None,
        periods: Sequence[str | int] | None = None,
        kind: str = "period",
        level: float = 0.95,
        population: bool = False,
    ) -> Contrast:
        """Return the slope of a count, share or mean over the periods of a growing table, per period.

        It is the slope of the line of weighted least squares through the exact values. The weights follow from the
        covariance of the noise of the periods, which is public; so the interval covers this slope also if the values
        are on no line.

        Parameters
        ----------
        query : str, mapping or None
            Records that count: a predicate, or values by attribute; None is all records.
        share, mean : optional
            As of `difference`.
        periods : sequence of periods, optional
            Default: all released ones, at least two.
        kind : {"period", "cumulative", "window"}
        level : float
            Probability that the interval covers the slope.
        population : bool
            As of `difference`.

        Returns
        -------
        Contrast

        Raises
        ------
        JobError
            For a release of one moment, or fewer than two periods.
        PlanError
            If the query was not measured, or the estimates are those of a model.

        Examples
        --------
        >>> growing.trend({"a": 1}).low < growing.trend({"a": 1}).high
        True
        """
        labels = list(self.periods if periods is None else periods)
        if len(set(map(str, labels))) < max(len(labels), 2):
            raise JobError("periods", f"{len(labels)} periods: {', '.join(map(str, labels)) or 'none'}",
                           "two or more different ones of a growing table", "release more periods")  # fmt: skip
        releases, shared = self._at_periods(labels, kind, population)
        records = conclusions.over_periods(releases, shared, [query, share], [] if mean is None else [mean])
        places = np.array([self._growing.number_of(label) for label in labels], np.float64)
        weights, group = conclusions.slope_weights(shared, places)[:, None], records.spread(query)
        if share is None and mean is None:
            return conclusions.linear(records, [group], weights, level, population)
        outcome = self._outcome(releases[0], share, mean)
        return conclusions.compared(records, outcome, [group], weights, level, population)

    def odds_ratio(
        self,
        outcome: Query,
        exposure: Query,
        *,
        reference: Query | None = None,
        where: Query | None = None,
        by: str | Sequence[str] | None = None,
        level: float = 0.95,
        population: bool = False,
    ) -> Contrast | DataFrame:
        """Return the odds ratio of an outcome between the exposed and other records.

        If a cell of the two by two table is not distinguished from zero, the interval is one-sided or infinite.

        Parameters
        ----------
        outcome, exposure : str or mapping
            Predicates, or values by attribute.
        reference : str or mapping, optional
            Records with which the exposed are compared. Default: all others.
        where : str or mapping, optional
            Records that count; for example those with a known outcome.
        by : str or sequence of str, optional
            Attributes of strata; the result then has a row for each of them.
        level : float
            Probability that the interval covers the ratio.
        population : bool
            As of `difference`.

        Returns
        -------
        Contrast, or pandas.DataFrame with `by`

        Raises
        ------
        JobError
            For a query that cannot be read.
        PlanError
            If a query was not measured, or has no standard error.

        Examples
        --------
        >>> odds = release.odds_ratio("fare < 25", {"borough": "Bronx"})
        >>> odds.low < odds.estimate < odds.high
        True
        """
        return self._ratio_of("odds", outcome, exposure, reference, where, by, level, population)

    def relative_risk(
        self,
        outcome: Query,
        exposure: Query,
        *,
        reference: Query | None = None,
        where: Query | None = None,
        by: str | Sequence[str] | None = None,
        level: float = 0.95,
        population: bool = False,
    ) -> Contrast | DataFrame:
        """Return the ratio of the shares of an outcome among the exposed and among other records.

        Parameters
        ----------
        outcome, exposure, reference, where, by, level, population : optional
            As of `odds_ratio`.

        Returns
        -------
        Contrast, or pandas.DataFrame with `by`

        Examples
        --------
        >>> release.relative_risk("fare < 25", {"borough": "Bronx"}, population=True).population
        True
        """
        return self._ratio_of("risk", outcome, exposure, reference, where, by, level, population)

    def crosstab(
        self, rows: str, columns: str, *, normalize: str | None = None, level: float = 0.95, population: bool = False
    ) -> DataFrame:
        """Return the table of two attributes with intervals.

        Parameters
        ----------
        rows, columns : str
        normalize : {"rows", "columns", "all"}, optional
            Return shares of the rows, of the columns, or of all records; a share is nan where the records that it
            refers to are not distinguished from none.
        level : float
            Probability that an interval covers its value.
        population : bool
            As of `difference`; `attrs["population"]` says which it is.

        Returns
        -------
        pandas.DataFrame
            With a row for each value of `rows`, and columns `estimate`, `low` and `high` by value of `columns`.

        Raises
        ------
        PlanError
            If the cells were not measured.

        Examples
        --------
        >>> release.crosstab("borough", "fare", normalize="rows")["estimate"].shape
        (2, 4)
        """
        import pandas as pd

        if (own := self.over(rows, columns)) is not self:
            return own.crosstab(rows, columns, normalize=normalize, level=level, population=population)
        figures = conclusions.crosstab(self.answered, (rows, columns), normalize, level, population)
        labels = [pd.Index(texts(self.domain[name]), name=name) for name in (rows, columns)]
        frames = {name: pd.DataFrame(figure, index=labels[0], columns=labels[1]) for name, figure in figures.items()}
        found = pd.concat(frames, axis=1)
        found.attrs["population"] = population
        return found

    def test(
        self,
        attribute: str,
        other: str,
        *,
        by: str | Sequence[str] | None = None,
        where: Mapping[str, Any] | None = None,
        draws: int = 2000,
    ) -> IndependenceTest:
        """Test whether two attributes are independent, or whether groups are equal: an outcome and a group.

        The hypothesis is about the population that the records are drawn from; both the sampling of the records and
        the noise of the release are simulated (`answers.independence`). A repeated call gives the same p-value.

        Parameters
        ----------
        attribute, other : str
        by : str or sequence of str, optional
            Attributes of strata, inside which the two are compared.
        where : mapping of str to object or list of objects, optional
            Labels of the records that count, such as the two groups that are compared.
        draws : int
            Number of simulated tables; the p-value is at least 1/(draws + 1).

        Returns
        -------
        IndependenceTest
            With the fields statistic, p_value, degrees_of_freedom, noise_share and population.

        Raises
        ------
        PlanError
            If the cells were not measured, or the estimates are those of a model.

        Examples
        --------
        >>> 0 < release.test("borough", "fare").p_value <= 1
        True
        """
        groups, chosen = [by] if isinstance(by, str) else list(by or ()), dict(where or {})
        if (own := self.over(attribute, other, groups, list(chosen))) is not self:
            return own.test(attribute, other, by=groups, where=chosen, draws=draws)
        return independence_test(self.answered, (attribute, other), groups, chosen, draws)

    @staticmethod
    def holm(results: Sequence[Contrast | IndependenceTest | float]) -> list[float]:
        """Return the p-values of several results, adjusted by Holm's method.

        Parameters
        ----------
        results : sequence
            Differences, ratios, trends or tests, or p-values.

        Returns
        -------
        list of float
            Those below α are all true with probability 1 − α.

        Examples
        --------
        >>> release.holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
        """
        return conclusions.holm([one if isinstance(one, float | int) else one.p_value for one in results])

    def _at_periods(
        self, periods: Sequence[str | int] | None, kind: str, population: bool
    ) -> tuple[list[Answered], Floats]:
        """Return the answers at periods and the covariance of their values; those of the release without periods.

        `kind` is the kind of answers of a growing table. Without periods the covariance is 1, in units of the variance.
        Only answers of kind "period" have disjoint records, which `population` requires.
        """
        if periods is None:
            return [self.answered], np.ones((1, 1))
        if population and kind != "period":
            raise JobError("population", f"true for {kind} answers, whose periods share records",
                           'kind = "period"', "leave it out")  # fmt: skip
        return [self.at(label, kind).answered for label in periods], self._growing.shared_noise(periods, kind)

    @staticmethod
    def _outcome(answered: Answered, share: Query | None, mean: str | None) -> conclusions.Outcome:
        if mean is not None:
            return conclusions.mean_outcome(answered, mean)
        return conclusions.share_outcome(answered.estimates.workload.domain, share)

    def _ratio_of(
        self, scale: str, outcome: Query, exposure: Query, reference: Query | None, where: Query | None,
        by: str | Sequence[str] | None, level: float, population: bool,
    ) -> Contrast | DataFrame:  # fmt: skip
        """Return a ratio on a log scale, or a row for each stratum.

        `scale` is "risk" or "odds" (SCALES). `exposed` and `others` have 1 for the cells of both groups, `chosen` for
        the records that count (`where`); without a `reference` the others are all that are not exposed. `happened` is
        the outcome as a share. The weights 1 and -1 give the difference of logarithms (or logits), which is that of the
        ratio. `by` names the attributes of the strata.
        """
        strata = [by] if isinstance(by, str) else list(by or ())
        queries = [outcome, exposure, reference, where]
        # this release, or that of a join whose attributes the queries name
        if (own := self.over(*map(_named, queries), strata)) is not self:
            return own._ratio_of(scale, outcome, exposure, reference, where, by, level, population)

        records = conclusions.over(self.answered, queries, strata)
        chosen, exposed = records.spread(where), records.spread(exposure)
        others = 1 - exposed if reference is None else records.spread(reference)
        if (exposed * others).any():
            raise JobError("reference", safe_repr(reference), "records that are not exposed", "leave it out")
        happened, weights = conclusions.share_outcome(self.domain, outcome), np.array([[1.0, -1.0]])

        def compared(chosen: Floats) -> Contrast:
            groups = [chosen * exposed, chosen * others]
            return conclusions.compared(records, happened, groups, weights, level, population, scale)

        if by is None:
            return compared(chosen)

        import pandas as pd

        names = checked_groups(self.domain, strata)
        cells = list(np.ndindex(self.domain.shape(names)))
        found = pd.DataFrame([compared(chosen * records.cell(dict(zip(names, own, strict=True)))) for own in cells])
        for place, name in enumerate(names):
            labels = column(self.domain[name], np.array([own[place] for own in cells]))
            found.insert(place, label_name(name, Contrast._fields), labels.to_pandas())
        return found


def _named(query: Any) -> list[str]:
    """Return the attributes of a mapping; those of a predicate are known once its table is."""
    return list(query) if isinstance(query, Mapping) else []
