"""Release of a run: answers, statistics, plots and synthetic rows of its tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dpscale.answers.statistics import Estimate, conditional
from dpscale.answers.tables import Answered, checked_names
from dpscale.answers.unit_counts import in_order
from dpscale.api.answers import (
    GrowingRelease,
    PairRows,
    ReleaseAnswers,
    chosen_join,
    cut_share,
    named_attributes,
    read_rows,
)
from dpscale.api.statistics import ReleaseConclusions, ReleaseStatistics
from dpscale.base.arrow import pa, pq
from dpscale.base.display import nearest, safe_repr
from dpscale.base.errors import DomainError, JobError, PlanError
from dpscale.domain import Domain
from dpscale.plans.measurement_plan import MeasurementPlan
from dpscale.reconstruction.base import Estimates
from dpscale.runs.answers import selected, statements_of
from dpscale.runs.estimates import counted_words, estimates_of, graphical_model_of, joint_distribution, share_cut
from dpscale.runs.opening import open_part, open_readable
from dpscale.runs.run import Run

if TYPE_CHECKING:
    from dask.dataframe import DataFrame as DaskFrame
    from pandas import DataFrame
    from pgmpy.models import DiscreteBayesianNetwork, DiscreteMarkovNetwork

    from dpscale.plans.plan import Plan


def _opened_again(kind: type[Release], path: str, folder: str) -> Release:
    """Return the release of a run directory, or that of one of its tables, joins or periods by its folder.

    `folder` is relative to the run directory, or empty for the whole release. A folder of no table is opened by its
    path.
    """
    opened = kind.open(path)
    if not folder:
        return opened
    tables = (
        one for one in opened.tables.values() if getattr(one._run, "folder", "") == folder
    )  # their rows are in the database
    return next(tables, None) or kind(open_part(f"{path}/{folder}"))


class Release(GrowingRelease, ReleaseAnswers, ReleaseStatistics, ReleaseConclusions):
    """Private answers of a run. Reading it costs no budget: everything is post-processing.

    Parameters
    ----------
    run : Run
        Run directory whose measure stage is done; `Release.open` opens one by its path.
    rows : callable, optional
        Returns the synthetic rows; those of a table of several have keys and are written with the other tables.

    Notes
    -----
    `tables` contains a release of each private table. Methods that answer queries are those of the only table. A
    release of several tables answers queries over the attributes of a join, `TABLE.ATTRIBUTE`, and refuses others.

    Examples
    --------
    >>> dp.Release.open(release.path).total().estimate > 0
    True
    """

    def __init__(self, run: Run, rows: Callable[[], DaskFrame] | None = None) -> None:
        run.require("measure")
        super().__init__(run)
        self._rows = rows

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how the release is opened again by its path: nothing of a run is in a pickle, and no secret."""
        whole, folder = getattr(self._run, "run", self._run), getattr(self._run, "folder", "")
        return _opened_again, (type(self), str(whole.path), folder)

    @cached_property
    def tables(self) -> dict[str, Release]:
        """Release of each private table, by name; of a job with `[data]` its own release, by the name "data".

        Examples
        --------
        >>> list(database.tables)
        ['persons', 'orders']
        """
        return {name: Release(one, partial(self._rows_of, name)) if one.folder and one is not self._run else self
                for name, one in self._run.tables.items()}  # fmt: skip

    @cached_property
    def links(self) -> dict[str, PairRows]:
        """Synthetic links of each table of pairs, by its name; foreign keys are columns of their tables.

        Examples
        --------
        >>> list(database.links)
        ['ratings']
        """
        return {name: PairRows(partial(self._rows_of, name)) for name in self._run.pair_tables}

    @cached_property
    def joins(self) -> dict[str, Release]:
        """Release of each join of several tables, by its name.

        Examples
        --------
        >>> len(database.joins) > 1
        True
        """
        return {name: Release(one) for name, one in self._run.joins.items()}

    def over(self, *names: str | Sequence[str] | None, number: bool = False) -> Release:
        """Return the release that answers queries over some attributes: this one, or that of a join.

        Parameters
        ----------
        *names : str or sequence of str, or None
            Attributes; those of joins have the form `TABLE.ATTRIBUTE`.
        number : bool
            Whether the query is a sum or a mean, for which numbers are preferred to attributes.

        Returns
        -------
        Release

        Raises
        ------
        PlanError
            If no join, or more than one, has these attributes.

        Examples
        --------
        >>> database.over("persons.sex", "orders.month").marginal(["persons.sex", "orders.month"]).ndim
        2
        """
        if not self._run.joins:
            return self
        return self.joins[chosen_join(self._run.joins, named_attributes(*names), number)]

    def _selected(self, name: str, level: float) -> pa.Table:
        """Return the rows of a SELECT statement of the job as an Arrow table; see `query`.

        A release of several tables has the statements in its tables and joins, of which the first with this name
        answers.
        """
        several = [own for own in (*self.tables.values(), *self.joins.values()) if own is not self]
        for own in several:
            if name in statements_of(own._run.table):
                return own._selected(name, level)
        if several:
            known = [one for own in several for one in statements_of(own._run.table)]
            raise JobError("query", repr(name), ", ".join(known) or "a job with SELECT statements",
                           nearest(str(name), known) if known else "add [[workload]] with sql or query")  # fmt: skip
        return selected(self._run.table, self.answered, name, level)

    def cut(self, join: str | None = None, *, level: float = 0.95) -> Estimate:
        """Return the share of the rows of a table or join that the bound of a privacy unit cuts.

        Rows beyond four times the bound of a unit are not part of the share.

        Parameters
        ----------
        join : str, optional
            Name of a join whose rows beyond the bound were measured. Default: the only table.
        level : float
            Probability that the interval covers the share.

        Returns
        -------
        Estimate

        Raises
        ------
        PlanError
            If the rows beyond the bound were not measured, or the number of rows cannot be distinguished from zero.

        Examples
        --------
        >>> share = database.cut("ratings-persons-products")
        >>> bool(share.low < share.estimate < share.high)
        True
        """
        if join is not None or self._run.joins:
            return cut_share(self.joins, str(join), level)
        if (share := share_cut(self._run.table, level)) is None:
            raise PlanError("cut", "rows beyond the bound, which were not measured", "a job that measures them",
                            "set budget.cut in the job (Python: dp.plan(cut=0.02)), in a new release")  # fmt: skip
        return share

    def _rows_of(self, name: str) -> DaskFrame:
        tables = self.synthetic()
        assert isinstance(tables, dict)
        return tables[name]

    @cached_property
    def _estimates(self) -> Estimates:
        return estimates_of(self._run.table)

    @classmethod
    def open(cls, run_dir: str | Path) -> Release:
        """Open a run directory whose measure stage is done.

        Parameters
        ----------
        run_dir : str or Path

        Returns
        -------
        Release

        Raises
        ------
        JobError
            If the directory is not such a run.

        Examples
        --------
        >>> dp.Release.open(release.path).domain.names == release.domain.names
        True
        """
        return cls(open_readable(run_dir))

    @property
    def domain(self) -> Domain:
        return self._run.table.domain

    def units(self, attributes: Sequence[str]) -> DataFrame:
        """Return the estimated numbers of distinct privacy units by cell.

        A unit counts once in each cell that has one of its rows, of those within the contribution bound, so the numbers
        of a smaller set are not sums of those of a larger one.

        Parameters
        ----------
        attributes : str or sequence of str
            A set of a workload part with `count = "units"`.

        Returns
        -------
        pandas.DataFrame
            With a column for each attribute, and `estimate`, `std_error`, `low` and `high` (95 %).

        Raises
        ------
        PlanError
            If the units of this set were not counted.

        Examples
        --------
        >>> release.units("borough").columns.tolist()
        ['borough', 'estimate', 'std_error', 'low', 'high']
        """
        run, names = self._run.table, checked_names(attributes)
        ordered = run.domain.ordered(names)
        if ordered not in (files := run.unit_files):
            raise PlanError("units", f"the units by {', '.join(names) or 'no attribute'}", "sets of the workload with"
                            ' count = "units"', "add a part with this set")  # fmt: skip
        return in_order(pq.read_table(files[ordered]), run.domain, names).to_pandas()

    def found(self, name: str) -> DataFrame:
        """Return the cells of an attribute that a search found, with the estimates of the search.

        The intervals of these estimates would ignore that the cells were selected by them. Answers are measured again.

        Parameters
        ----------
        name : str
            An attribute or a number whose cells are not public.

        Returns
        -------
        pandas.DataFrame
            With the columns `cell`, `estimate` and `std_error`. Its `attrs["facts"]` has sentences on the search, such
            as the range of a number.

        Raises
        ------
        DomainError
            If the cells of the attribute are public.

        Examples
        --------
        >>> sorted(found.found("borough")["cell"])
        ['Bronx', 'Queens']
        """
        import pandas as pd

        from dpscale.runs.searches import summarize_searches

        run = self._run.table
        summaries = summarize_searches(run.declared, run.domain, run.searched)
        if name not in summaries:
            raise DomainError("found", f"{name!r}, whose cells are public", ", ".join(summaries) or "no attribute",
                              "name an attribute whose cells were searched")  # fmt: skip
        frame = pd.DataFrame(list(summaries[name].cells), columns=["cell", "estimate", "std_error"])
        frame.attrs["facts"] = list(summaries[name].facts)
        return frame

    @property
    def searched(self) -> Mapping[str, Any]:
        """Released values of the searches for cells, by attribute; empty if all cells are public.

        Examples
        --------
        >>> list(found.searched)
        ['borough']
        """
        return self._run.table.searched

    @cached_property
    def plan(self) -> Plan | MeasurementPlan:
        """Measurement plan: a `Plan` for a matrix mechanism, otherwise a summary of candidates and costs.

        Examples
        --------
        >>> release.plan.query_count > 10
        True
        """
        measurement_plan: MeasurementPlan = self._run.table.measurement_plan
        return measurement_plan.evidence_plan or measurement_plan

    @property
    def manifest(self) -> dict[str, Any]:
        return self._run.manifest

    @cached_property
    def answered(self) -> Answered:
        """Estimates with the public id of the release, from which tables and statistics are computed.

        Examples
        --------
        >>> release.answered.release == release.manifest["release"]
        True
        """
        names = frozenset(statements_of(self._run.table))
        return Answered(self._estimates, str(self.manifest["release"]), names)

    def graphical_model(
        self, kind: Literal["bayesian", "markov"] = "bayesian"
    ) -> DiscreteBayesianNetwork | DiscreteMarkovNetwork:
        """Return the fitted graphical model as a network of pgmpy (pip install 'dpscale[graphical]').

        The states of a variable are the labels of its cells, in the order of the domain, and "null" for missing values.
        The network is the distribution of one record; it is post-processing and costs no budget.

        Parameters
        ----------
        kind : {"bayesian", "markov"}
            A Bayesian network with edges directed along the junction tree, or a Markov network of its cliques.

        Returns
        -------
        pgmpy.models.DiscreteBayesianNetwork or pgmpy.models.DiscreteMarkovNetwork

        Raises
        ------
        PlanError
            If the estimates of the release are not those of a graphical model, or pgmpy is missing.
        JobError
            If `kind` is another one.

        Examples
        --------
        >>> sorted(model.graphical_model().nodes)
        ['a', 'borough']
        """
        model, labels = graphical_model_of(self._run.table)
        return model.to_pgmpy(kind, labels)

    def conditional(
        self,
        attributes: str | Sequence[str],
        *,
        given: Mapping[str, Any] | None = None,
        period: str | int | None = None,
        kind: str = "period",
    ) -> DataFrame:
        """Return the distribution of some attributes among the records with given values of others.

        It follows from the estimates of the release. A graphical model answers for any sets; estimates of least squares
        for sets whose marginal is estimated, where negative counts are taken as 0.

        Parameters
        ----------
        attributes : str or sequence of str
        given : mapping of str to object or list of objects, optional
            Label of a cell, or several, by attribute.
        period : str or int, optional
            Period of a growing table; see `at`.
        kind : {"period", "cumulative", "window"}

        Returns
        -------
        pandas.DataFrame
            A row for each cell, with a column of labels for each attribute, and `probability`, of sum 1.

        Raises
        ------
        PlanError
            If some cells lie outside the row space of the measurements, are too many, or no estimated record has the
            given values.
        DomainError, JobError
            If an attribute is unknown, occurs twice, or has no such value.

        Examples
        --------
        >>> release.conditional("borough", given={"fare": "[0, 25)"}).columns.tolist()
        ['borough', 'probability']
        """
        if not isinstance(given, Mapping | None):
            raise JobError("given", safe_repr(given), "values by attribute", 'write given={"sex": "f"}')
        names, fixed = checked_names(attributes), dict(given or {})
        if period is not None:
            return self.at(period, kind).conditional(names, given=fixed)
        if (own := self.over(names, tuple(fixed))) is not self:
            return own.conditional(names, given=fixed)
        return conditional(self.answered, names, fixed, joint_distribution(self._run.table)).to_pandas()

    def __repr__(self) -> str:
        """Return the beginning of the release id, the number of queries, the counted rows and the path."""
        queries = sum(one.workload.query_count for one in self._run.tables.values())
        over = f"{queries} queries over {', '.join(self._run.tables)}"
        counted = ", ".join(filter(None, map(counted_words, self._run.tables.values())))
        return f"Release({self.manifest['release'][:8]}, {over}, {f'{counted}, ' if counted else ''}{self.path})"

    def _repr_html_(self) -> str:
        """Return the release as HTML for notebooks, with the tables and joins, or the periods of a growing table."""
        from dpscale.api.notebook import release_html

        several = {} if self.horizon else self.tables | self.joins
        answered = {name: one.answered for name, one in several.items()}
        return release_html(self._run, answered, self.periods, len(self.horizon))

    def synthetic(self) -> DaskFrame | dict[str, DaskFrame]:
        """Return synthetic rows.

        Returns
        -------
        dask.dataframe.DataFrame, or dict of str to dask.dataframe.DataFrame
            With a column for each attribute and each number of the workload. For a job of several tables the rows of
            every table and pair table, by name.

        Raises
        ------
        JobError
            If the run has no synthetic rows.

        Examples
        --------
        >>> release.synthetic().compute().shape
        (500, 4)
        """
        if self._rows is None and not self._run.done("synthesize"):
            raise JobError("synthesize", f"no rows in {self.path}", "a run with synthetic rows",
                           f"sample them: dpscale rows {self.path}")  # fmt: skip
        return self._run.read_synthetic(read_rows) if self._rows is None else self._rows()
