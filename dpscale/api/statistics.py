"""Statistics of a release, and conclusions from it, with intervals.

Statistics are totals, sums, means, ratios, deviations, quantiles, regressions and plots. Conclusions are differences,
trends, odds ratios, risks, cross tables and tests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike

from dpscale.answers import conclusions, statistics
from dpscale.answers.areas import AreaEstimate, area
from dpscale.answers.conclusions import Contrast, Outcome, mean_outcome, population_estimate, share_outcome
from dpscale.answers.independence import IndependenceTest, independence_test
from dpscale.answers.number_statistics import (
    checked_groups,
    deviation_table,
    mean_table,
    ratio_table,
    sum_table,
    tail_of,
)
from dpscale.answers.quantiles import quantile
from dpscale.answers.regression.design import formula_names
from dpscale.answers.regression.fit import RegressionResult, regression
from dpscale.answers.report.figures import table_figure
from dpscale.answers.statistics import Estimate
from dpscale.answers.tables import (
    STATISTICS,
    Answered,
    check_names_are_texts,
    checked_names,
    column,
    label_name,
    texts,
)
from dpscale.base.display import safe_repr
from dpscale.base.errors import JobError
from dpscale.base.numerics import Floats
from dpscale.domain import Domain
from dpscale.workload import MARGINAL

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

Query = str | Mapping[str, Any]


class AnsweredQueries(ABC):
    """Labelled answers of a release, from which statistics are computed."""

    @property
    @abstractmethod
    def domain(self) -> Domain:
        """Domain of the table."""

    @property
    @abstractmethod
    def answered(self) -> Answered:
        """Estimates with the public id of the release, from which tables and statistics are computed."""

    @abstractmethod
    def over(self, *names: str | Sequence[str] | None, number: bool = False) -> Any:
        """Return the release that answers queries over some attributes."""


class ReleaseStatistics(AnsweredQueries):
    """Statistics computed from the labelled answers of a release."""

    @property
    @abstractmethod
    def searched(self) -> Mapping[str, Any]:
        """Released values of the searches for cells, by attribute."""

    def total(self, *, level: float = 0.95) -> Estimate:
        """Return the estimated number of records.

        Parameters
        ----------
        level : float
            Probability that the interval covers the true value.

        Returns
        -------
        Estimate

        Examples
        --------
        >>> total = release.total()
        >>> total.low < total.estimate < total.high
        True
        """
        return statistics.total(self.answered, level)

    def area(
        self,
        nodes: Iterable[Any],
        query: str | Mapping[str, Any] | None = None,
        *,
        minus: Iterable[Any] = (),
        hierarchy: str | None = None,
        level: float = 0.95,
    ) -> AreaEstimate:
        """Return the number of records in any union of nodes of a hierarchy, or its difference from another union.

        Parameters
        ----------
        nodes : iterable
            Labels of leaves or of nodes of other levels, or pairs of a level and a label. Each leaf counts once.
        query : str or mapping, optional
            Records that count: a predicate on other attributes, or values by attribute.
        minus : iterable
            Nodes of a union that is subtracted.
        hierarchy : str, optional
            A level of the hierarchy; required if the domain has several.
        level : float
            Probability that the interval covers the true value.

        Returns
        -------
        AreaEstimate
            With the fields estimate, std_error, low and high, in records.

        Raises
        ------
        JobError
            If a label is unknown or names several nodes.
        PlanError
            If the query was not measured at the level of the nodes.

        Examples
        --------
        >>> places.area(["AT"], minus=["Graz"]).std_error > 0
        True
        """
        return area(self.answered, nodes, query, level, minus, hierarchy)

    def quantile(
        self, attribute: str, q: float | Sequence[float], *, by: str | Sequence[str] | None = None, level: float = 0.95
    ) -> Estimate | DataFrame:
        """Return quantiles of a numeric attribute, with test-inversion confidence intervals.

        In a wide bin at the end of the records, a fitted tail gives estimate and interval.
        An estimate whose interval is wider than twice its value is missing there.

        Parameters
        ----------
        attribute : str
            An attribute of kind integer, coded or bins.
        q : float or sequence of float
            Between 0 and 1. A list is answered in about the time of one quantile.
        by : str or sequence of str, optional
            Other attributes; the result then has a row for each combination of their values.
        level : float
            Probability that an interval covers the true value.

        Returns
        -------
        Estimate, or pandas.DataFrame with `by` or with a list of quantiles
            The frame has the columns of `by`, `q` with a list, and `estimate`, `low` and `high`.

        Examples
        --------
        >>> release.quantile("fare", [0.25, 0.5, 0.75], by="borough").shape
        (6, 5)
        """
        check_names_are_texts(attribute)
        if (own := self.over(attribute, by)) is not self:
            return own.quantile(attribute, q, by=by, level=level)
        statistic = partial(quantile, self.answered, attribute, level=level)
        if isinstance(q, Sequence | np.ndarray) and not isinstance(q, str):
            shares = [one.item() if isinstance(one, np.generic) else one for one in q]
            found = self._each([partial(statistic, one) for one in shares], by or ())
            found.insert(len(checked_groups(self.domain, by or ())), "q", np.resize(shares, len(found)))
            return found
        return statistic(q) if by is None else self._each([partial(statistic, q)], by)

    def sum(self, number: str, *, by: str | Sequence[str] | None = None, level: float = 0.95) -> Estimate | DataFrame:
        """Return the sum of a number, or of an attribute of numbers, over the records.

        For an attribute the estimate uses the midpoints of bins, and the interval covers the noise and any position of
        records inside their bins.

        Parameters
        ----------
        number : str
            A number of the domain, or an attribute of kind integer, coded or bins.
        by : str or sequence of str, optional
            Attributes; the result then has a row for each combination of their values.
        level : float
            Probability that the interval covers the sum of the clipped values.

        Returns
        -------
        Estimate, or pandas.DataFrame with `by`

        Raises
        ------
        PlanError
            If the sum was not measured.

        Examples
        --------
        >>> release.sum("fare", by="borough").columns.tolist()
        ['borough', 'estimate', 'low', 'high']
        """
        check_names_are_texts(number)
        if (own := self.over(number, by, number=True)) is not self:
            return own.sum(number, by=by, level=level)
        if number not in self.domain.number_names and number in self.domain.names:
            statistic = partial(statistics.value_sum, self.answered, number, level)
            return statistic() if by is None else self._each([statistic], by)
        return self._grouped(partial(sum_table, self.answered, number), by, level)

    def ratio(
        self, number: str, other: str, *, by: str | Sequence[str] | None = None, level: float = 0.95
    ) -> Estimate | DataFrame:
        """Return the ratio of the sums of two numbers, or of a number and the records.

        Parameters
        ----------
        number, other : str
            Numbers of the domain, or "records".
        by : str or sequence of str, optional
            Attributes; the result then has a row for each combination of their values. A group whose denominator
            cannot be distinguished from 0 has missing values and a reason in the column `reason`.
        level : float
            Probability that the interval covers the ratio of the sums of the clipped values.

        Returns
        -------
        Estimate, or pandas.DataFrame with `by`

        Raises
        ------
        PlanError
            If a sum was not measured.

        Examples
        --------
        >>> ratio = release.ratio("tip", "records")
        >>> ratio.low < ratio.estimate < ratio.high
        True
        """
        check_names_are_texts(number, other)
        if (own := self.over(number, other, by, number=True)) is not self:
            return own.ratio(number, other, by=by, level=level)
        return self._grouped(partial(ratio_table, self.answered, number, other), by, level)

    def share(
        self,
        attribute: str,
        value: Any,
        *,
        by: str | Sequence[str] | None = None,
        level: float = 0.95,
        population: bool = False,
    ) -> Estimate | DataFrame:
        """Return the share of the records that have one value of an attribute, or one of several values.

        It is the ratio of two queries (`query_ratio`), so its interval is Fieller's.

        Parameters
        ----------
        attribute : str
        value : object or list of objects
            Labels of cells.
        by : str or sequence of str, optional
            Other attributes; the result then has a row for each combination of their values. A group that cannot be
            distinguished from an empty one has missing values and a reason in the column `reason`.
        level : float
            Probability that the interval covers the share.
        population : bool
            Whether the interval is about the population that the records are drawn from, with their sampling error:
            a `PopulationEstimate`, or the column `population`.

        Returns
        -------
        Estimate, or pandas.DataFrame with `by`

        Raises
        ------
        PlanError
            If the number of records is not distinguishable from zero.
        JobError
            If the attribute has no such value.

        Examples
        --------
        >>> share = release.share("borough", "Bronx")
        >>> 0 <= share.low < share.estimate < share.high <= 1
        True
        >>> release.share("borough", "Bronx", by="fare").columns.tolist()[:4]
        ['fare', 'estimate', 'low', 'high']
        """
        if (own := self.over(attribute, by)) is not self:
            return own.share(attribute, value, by=by, level=level, population=population)
        cells = statistics.cells_of(self.domain[attribute], value)
        if population:
            outcome = share_outcome(self.domain, {attribute: [self.domain[attribute].labels[cell] for cell in cells]})
            return self._of_population(outcome, attribute, by, level)
        statistic = partial(statistics.share, self.answered, attribute, cells, level)
        return statistic() if by is None else self._each([statistic], by)

    def query_ratio(
        self, attributes: str | Sequence[str], *, numerator: ArrayLike, denominator: ArrayLike, level: float = 0.95
    ) -> Estimate:
        """Return the ratio of two linear queries over the cells of a set.

        Parameters
        ----------
        attributes : str or sequence of str
        numerator, denominator : array_like, one axis per attribute
            Coefficient of each cell.
        level : float
            Probability that Fieller's interval covers the ratio.

        Returns
        -------
        Estimate

        Raises
        ------
        PlanError
            If the denominator is not distinguishable from zero, or a query lies outside the row space of the
            measurements.

        Examples
        --------
        >>> release.query_ratio("borough", numerator=[1, 0], denominator=[0, 1]).estimate > 0
        True
        """
        return statistics.query_ratio(self.over(attributes).answered, checked_names(attributes), numerator, denominator,
                                      level)  # fmt: skip

    def std(self, number: str, *, by: str | Sequence[str] | None = None, level: float = 0.95) -> Estimate | DataFrame:
        """Return the standard deviation of a number.

        Parameters
        ----------
        number : str
            A number of the domain whose variance is in the workload (`family = "variance"`).
        by : str or sequence of str, optional
            Attributes; the result then has a row for each combination of their values. A group that cannot be
            distinguished from an empty one has missing values and a reason in the column `reason`.
        level : float
            Probability that the interval covers the standard deviation of the clipped values, approximately.

        Returns
        -------
        Estimate, or pandas.DataFrame with `by`

        Raises
        ------
        PlanError
            If variances were not measured.

        Examples
        --------
        >>> release.std("tip").estimate > 0
        True
        """
        if (own := self.over(number, by, number=True)) is not self:
            return own.std(number, by=by, level=level)
        return self._grouped(partial(deviation_table, self.answered, number), by, level)

    def mean(
        self,
        attribute: str,
        *,
        by: str | Sequence[str] | None = None,
        level: float = 0.95,
        bias: str | None = None,
        population: bool = False,
    ) -> Estimate | DataFrame:
        """Return the mean of a number, or of an attribute of numbers.

        The mean of a number is that of its clipped values, without missing ones (`answers.ratios`). If its range was
        searched, the interval includes the part that is clipped, up to twice that of all records. For an attribute
        the estimate uses the midpoints of bins, and the interval covers the noise and any position of records inside
        their bins (`answers.statistics.mean`).

        Parameters
        ----------
        attribute : str
            A number, or an attribute of kind integer, coded or bins.
        by : str or sequence of str, optional
            Attributes; the result then has a row for each combination of their values. A group without a mean has
            missing values and a reason in the column `reason`.
        level : float
            Probability that the interval covers the true mean.
        bias : {"tail"}, optional
            For a number with a private end: add the part that is clipped, as the search estimated it, to each group in
            proportion to the distance of its mean from the other end. The interval is the same as without it.
        population : bool
            As of `share`. The variance of the values is that of their estimated squares, or the largest one of values
            with this mean and range where squares were not measured.

        Returns
        -------
        Estimate, or pandas.DataFrame with `by`

        Raises
        ------
        PlanError
            If the number of records is not distinguishable from zero.

        Examples
        --------
        >>> release.mean("tip", by="borough")["borough"].tolist()
        ['Bronx', 'Queens']
        """
        check_names_are_texts(attribute)
        if (own := self.over(attribute, by, number=True)) is not self:
            return own.mean(attribute, by=by, level=level, bias=bias, population=population)
        if population and bias is not None:
            raise JobError("population", "true with bias", "one of them", "leave bias out: the interval includes it")
        if population:
            return self._of_population(mean_outcome(self.answered, attribute), attribute, by, level)
        if bias is not None:
            tail = tail_of(self.domain, attribute, bias, self.searched)
            return self._grouped(lambda names, own: tail(mean_table(self.answered, attribute, names, own)), by, level)
        if attribute in self.domain.number_names:
            return self._grouped(partial(mean_table, self.answered, attribute), by, level)
        statistic = partial(statistics.mean, self.answered, attribute, level)
        return statistic() if by is None else self._each([statistic], by)

    def regression(self, formula: str, *, family: str = "linear", population: bool = False) -> RegressionResult:
        """Return a regression on the whole table of the clipped and binned records.

        Parameters
        ----------
        formula : str
            Such as `"cost ~ age + C(sex)"`: categories have treatment coding with the first label as reference, bins
            their midpoints. An outcome of labels is a condition, `smoker == "yes"`.
        family : {"linear", "logistic", "poisson"}
            A linear regression needs each pair of columns in a measured set, the others all attributes in one.
        population : bool
            Whether errors include the sampling of the records from a population, beside the noise.

        Returns
        -------
        RegressionResult
            With `params`, `bse`, `pvalues`, `rsquared`, `nobs`, `conf_int()`, `cov_params()` and `summary()`. Intervals
            are unbounded where the noise hides a coefficient, and nan for estimates of a model.

        Raises
        ------
        JobError
            If the formula has unknown attributes, unsupported parts or dependent columns, or the outcome does not suit
            the family.
        PlanError
            If the needed sets were not measured.

        Examples
        --------
        >>> result = release.regression("fare ~ C(borough)")
        >>> result.conf_int().columns.tolist()
        ['low', 'high']
        >>> release.regression('borough == "Bronx" ~ fare', family="logistic").params.index.tolist()
        ['Intercept', 'fare']
        """
        if (own := self.over(formula_names(formula), number=True)) is not self:
            return own.regression(formula, family=family, population=population)
        return regression(self.answered, formula, family, population)

    def plot(self, attributes: str | Sequence[str], *, level: float = 0.95, joint: bool = False) -> Figure:
        """Plot the cells of one attribute as bars with intervals, or of two as a heat map (extra `plot`).

        Parameters
        ----------
        attributes : str or sequence of str
            One or two.
        level : float
            Probability that an interval covers the true value.
        joint : bool
            Make all intervals cover simultaneously.

        Returns
        -------
        matplotlib.figure.Figure

        Examples
        --------
        >>> release.plot("day").savefig("days.png")
        """
        if (own := self.over(attributes)) is not self:
            return own.plot(attributes, level=level, joint=joint)
        table = self.answered.table(attributes, MARGINAL.name, level, joint)
        return table_figure(table, self.domain, checked_names(attributes))

    def _of_population(
        self, outcome: Outcome, what: str, by: str | Sequence[str] | None, level: float
    ) -> Estimate | DataFrame:
        """Return a share or mean in the population.

        `outcome` is the quantity whose mean is estimated, and `what` names it. With `by` there is a row for each group.
        """
        statistic = partial(population_estimate, self.answered, outcome, level=level, what=what)
        return statistic() if by is None else self._each([statistic], by).assign(population=True)

    def _grouped(
        self, table: Callable[[Sequence[str], float], Any], by: str | Sequence[str] | None, level: float
    ) -> Estimate | DataFrame:
        """Return the rows of a table of groups, or the estimate of the only one without groups.

        table(attributes, level) returns the rows. A row with a `reason` has no estimate; TooFewRecords states it.
        """
        found = table([] if by is None else [by] if isinstance(by, str) else by, level)
        if by is not None:
            return found.to_pandas()
        row = found.to_pylist()[0]
        if row.get("reason"):
            raise statistics.TooFewRecords("by", str(row["reason"]), "a table with more records than noise",
                                           "increase the budget")  # fmt: skip
        return Estimate(row["estimate"], row["low"], row["high"])

    def _each(self, several: Sequence[Callable[..., Estimate]], by: str | Sequence[str]) -> DataFrame:
        """Return a row for each group and each of several statistics.

        Rows are ordered by group, then by statistic. A group without an estimate has a reason instead.

        `several` are functions that return an estimate for a group (`group`), or raise an error whose text is the
        reason.
        """
        import pandas as pd

        names = checked_groups(self.domain, by)
        groups = [tuple(zip(names, cells, strict=True)) for cells in np.ndindex(self.domain.shape(names))]
        made = [statistics.or_reason(partial(one, group=group)) for group in groups for one in several]
        found = pd.DataFrame([figures for figures, _ in made], columns=list(Estimate._fields))
        for place, name in enumerate(names):
            cells = np.repeat([group[place][1] for group in groups], len(several))
            found.insert(place, label_name(name, STATISTICS), column(self.domain[name], cells).to_pandas())
        if any(reason for _, reason in made):
            found["reason"] = [reason for _, reason in made]
        return found


class ReleaseConclusions(AnsweredQueries):
    """Comparisons of groups and periods of a release."""

    _growing: Any

    @property
    @abstractmethod
    def periods(self) -> list[str]:
        """Released periods of a growing table, in order; empty for a release of one moment."""

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
            raise JobError("periods", ', '.join(map(str, labels)) or "none",
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

        check_names_are_texts(rows, columns)
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
        p_values: list[Any] = [getattr(result, "p_value", result) for result in results]
        return conclusions.holm(p_values)

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
