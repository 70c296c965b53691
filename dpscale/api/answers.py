"""Answers of a release: counts of cells, linear queries, and tables by period, of joins and of links."""

from __future__ import annotations

import csv
import io
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpscale.answers import statistics
from dpscale.answers.statistics import Estimate
from dpscale.answers.tables import Answered, checked_names, framed
from dpscale.answers.unit_counts import CUT_JOIN, excess_of, share_beyond
from dpscale.base.arrow import arrow_csv, is_text, pa
from dpscale.base.display import nearest
from dpscale.base.errors import JobError, PlanError
from dpscale.storage.objects import opening
from dpscale.workload import PREFIX

if TYPE_CHECKING:
    import polars
    import pyarrow as pa
    from pandas import DataFrame

    AnyFrame: TypeAlias = DataFrame | pa.Table | polars.DataFrame
    from dask.dataframe import DataFrame as DaskFrame
    from pandas import DataFrame


class ReleaseAnswers(ABC):
    """Answers to the queries of a release."""

    @property
    @abstractmethod
    def answered(self) -> Answered:
        """Estimates with the public id of the release, from which tables and statistics are computed."""

    @abstractmethod
    def over(self, *names: str | Sequence[str] | None, number: bool = False) -> ReleaseAnswers:
        """Return the release that answers queries over some attributes."""

    @abstractmethod
    def at(self, period: str | int, kind: str = "period") -> Self:
        """Return the answers at a period of a growing table."""

    def marginal(
        self, *attributes: str | Sequence[str], period: str | int | None = None, kind: str = "period"
    ) -> NDArray[np.float64]:
        """Return estimated counts of all cells of an attribute set.

        Estimates of least squares are unbiased and may be negative; those of maximum entropy are non-negative and
        biased.

        Parameters
        ----------
        *attributes : str or sequence of str
            Names, or one sequence of names.
        period : str or int, optional
            Period of a growing table; see `at`.
        kind : {"period", "cumulative", "window"}

        Returns
        -------
        ndarray of float
            One axis per attribute in the given order, in records.

        Raises
        ------
        PlanError
            If some cells lie outside the row space of the measurements.

        Examples
        --------
        >>> release.marginal("borough").shape
        (2,)
        """
        names = tuple(name for one in attributes for name in checked_names(one))
        if period is not None:
            return self.at(period, kind).marginal(names)
        return self.over(names).answered.estimates.marginal(names)

    def answer(
        self,
        attributes: str | Sequence[str],
        *,
        query: ArrayLike,
        period: str | int | None = None,
        kind: str = "period",
    ) -> tuple[float, float]:
        """Return the estimate and the standard error of a linear query.

        Parameters
        ----------
        attributes : str or sequence of str
        query : array_like, one axis per attribute
            Coefficient of each cell.
        period : str or int, optional
            Period of a growing table; see `at`.
        kind : {"period", "cumulative", "window"}

        Returns
        -------
        estimate, standard error : float
            In records. The error is nan if it is unknown: for models without simulated errors.

        Raises
        ------
        PlanError
            If the query lies outside the row space of the measurements.

        Examples
        --------
        >>> estimate, error = release.answer("borough", query=[1, -1])  # Bronx less Queens
        >>> error > 0
        True
        """
        if period is not None:
            return self.at(period, kind).answer(attributes, query=query)
        return self.over(attributes).answered.estimates.answer(checked_names(attributes), query)

    def extrapolates(self, attributes: str | Sequence[str]) -> bool:
        """Return whether a model answers queries over these attributes beyond the row space of the measurements.

        Least squares refuses such queries. A model (maximum entropy, graphical, adaptive) answers them without a
        standard error, or with a simulated one.

        Parameters
        ----------
        attributes : str or sequence of str

        Returns
        -------
        bool

        Examples
        --------
        >>> release.extrapolates(["borough", "fare"])
        False
        """
        return bool(self.over(attributes).answered.estimates.extrapolates(checked_names(attributes)))

    def error_parts(self, attributes: str | Sequence[str]) -> DataFrame:
        """Return what the standard errors of the cells of a set consist of.

        Parameters
        ----------
        attributes : str or sequence of str

        Returns
        -------
        DataFrame
            Columns that identify the cell; the parts, in records, whose squares add up to the squared standard error:
            `noise` of what was measured, and for an adaptive release `hidden`, departures that were measured but are
            small against the noise, `chance`, the lack of fit of what was not measured, and `completion`, what the
            model adds to it; and `largest`, the name of the largest part.

        Raises
        ------
        PlanError
            If the release has no standard errors of these cells.

        Examples
        --------
        >>> release.error_parts("borough").largest.unique().tolist()
        ['noise']
        """
        return framed(self.over(attributes).answered.error_parts(checked_names(attributes)), "pandas")

    @overload
    def table(
        self,
        attributes: str | Sequence[str],
        *,
        family: str | None = None,
        level: float = 0.95,
        joint: bool = False,
        frame: Literal["pandas"] = "pandas",
        period: str | int | None = None,
        kind: str = "period",
    ) -> DataFrame: ...

    @overload
    def table(
        self,
        attributes: str | Sequence[str],
        *,
        family: str | None = None,
        level: float = 0.95,
        joint: bool = False,
        frame: Literal["arrow"],
        period: str | int | None = None,
        kind: str = "period",
    ) -> pa.Table: ...

    @overload
    def table(
        self,
        attributes: str | Sequence[str],
        *,
        family: str | None = None,
        level: float = 0.95,
        joint: bool = False,
        frame: Literal["polars"],
        period: str | int | None = None,
        kind: str = "period",
    ) -> polars.DataFrame: ...

    @overload
    def table(
        self,
        attributes: str | Sequence[str],
        *,
        family: str | None = None,
        level: float = 0.95,
        joint: bool = False,
        frame: str,
        period: str | int | None = None,
        kind: str = "period",
    ) -> AnyFrame: ...

    def table(
        self,
        attributes: str | Sequence[str],
        *,
        family: str | None = None,
        level: float = 0.95,
        joint: bool = False,
        frame: str = "pandas",
        period: str | int | None = None,
        kind: str = "period",
    ) -> AnyFrame:
        """Return answers with labels, standard errors and intervals, one row per query.

        Parameters
        ----------
        attributes : str or sequence of str
        family : str, optional
            Query family; default: the cells if they are estimated, otherwise the workload's first family over the set.
        level : float
            Probability that an interval covers the true value.
        joint : bool
            Make all intervals of the table cover simultaneously; requires least squares or simulated errors.
        frame : {"pandas", "arrow", "polars"}
        period : str or int, optional
            Period of a growing table; see `at`.
        kind : {"period", "cumulative", "window"}

        Returns
        -------
        DataFrame or pyarrow Table
            Columns that identify the query (`age`; `age_at_most` for prefixes; `age_from`, `age_to` for ranges), then
            `estimate`, `std_error`, `low`, `high` in records (nan if unknown), and `extrapolated` for a model.

        Raises
        ------
        PlanError
            If the queries lie outside the row space of the measurements.

        Examples
        --------
        >>> release.table("borough").columns.tolist()
        ['borough', 'estimate', 'std_error', 'low', 'high']
        >>> release.table("day", frame="arrow").num_rows
        3
        """
        if period is not None:
            return self.at(period, kind).table(attributes, family=family, level=level, joint=joint, frame=frame)
        return framed(self.over(attributes).answered.table(attributes, family, level, joint), frame)

    @abstractmethod
    def _selected(self, name: str, level: float) -> pa.Table:
        """Return the rows of a SELECT statement of the job."""

    def query(
        self,
        name: str,
        *,
        level: float = 0.95,
        frame: str = "pandas",
        period: str | int | None = None,
        kind: str = "period",
    ) -> AnyFrame:
        """Return the rows of a SELECT statement of the job.

        Parameters
        ----------
        name : str
            Name of the statement: that of its comment `-- name:`, or query-1 and so on.
        level : float
            Probability that an interval covers its value.
        frame : {"pandas", "arrow", "polars"}
        period : str or int, optional
            Period of a growing table; see `at`.
        kind : {"period", "cumulative", "window"}

        Returns
        -------
        DataFrame or pyarrow Table
            The columns of SELECT. Each aggregate NAME also has NAME_low, NAME_high and NAME_std_error; all four are
            missing for a ratio whose denominator cannot be distinguished from 0.

        Raises
        ------
        JobError
            If the job has no such statement.

        Examples
        --------
        >>> text = "SELECT day, COUNT(*) AS trips FROM t GROUP BY day"
        >>> dp.sql(text, {"t": trips}, domain, epsilon=1).query("query-1").columns.tolist()
        ['day', 'trips', 'trips_low', 'trips_high', 'trips_std_error']
        """
        if period is not None:
            return self.at(period, kind).query(name, level=level, frame=frame)
        return framed(self._selected(name, level), frame)

    @overload
    def cumulative(
        self, attribute: str, *, level: float = 0.95, joint: bool = False, frame: Literal["pandas"] = "pandas"
    ) -> DataFrame: ...

    @overload
    def cumulative(
        self, attribute: str, *, level: float = 0.95, joint: bool = False, frame: Literal["arrow"]
    ) -> pa.Table: ...

    @overload
    def cumulative(
        self, attribute: str, *, level: float = 0.95, joint: bool = False, frame: Literal["polars"]
    ) -> polars.DataFrame: ...

    @overload
    def cumulative(self, attribute: str, *, level: float = 0.95, joint: bool = False, frame: str) -> AnyFrame: ...

    def cumulative(
        self, attribute: str, *, level: float = 0.95, joint: bool = False, frame: str = "pandas"
    ) -> AnyFrame:
        """Return the number of records with at most each value of an attribute of numbers.

        Missing values and values outside the domain are not counted.

        Parameters
        ----------
        attribute : str
        level : float
            Probability that an interval covers the true value.
        joint : bool
            Make all intervals cover simultaneously.
        frame : {"pandas", "arrow", "polars"}

        Returns
        -------
        DataFrame or pyarrow Table

        Examples
        --------
        >>> release.cumulative("fare")["fare_at_most"].tolist()
        ['[0, 25)', '[25, 50)', '[50, 75)', '[75, 100]']
        """
        if (own := self.over(attribute)) is not self:
            return own.cumulative(attribute, level=level, joint=joint, frame=frame)
        listed = statistics.numeric_attribute(self.answered, attribute).listed
        return framed(self.answered.table([attribute], PREFIX.name, level, joint).slice(0, listed), frame)


class GrowingRelease:
    """Answers at the periods of a growing table; `Release` adds those of one table."""

    _run: Any

    def __init__(self, run: Any) -> None:
        self._run = run

    @property
    def _growing(self) -> Any:
        """The only table, which may be a growing table; None of several tables."""
        return self._run.tables.get("data")

    @property
    def path(self) -> Path:
        """Run directory.

        Examples
        --------
        >>> release.path.is_dir()
        True
        """
        return self._run.path

    @property
    def horizon(self) -> list[str]:
        """All periods of the horizon of a growing table, released or not; empty for a release of one moment.

        Examples
        --------
        >>> len(growing.horizon)
        6
        """
        return list(getattr(self._growing, "labels", []))

    @property
    def periods(self) -> list[str]:
        """Released periods of a growing table, in order; empty for a release of one moment.

        Examples
        --------
        >>> growing.periods
        ['2026-01', '2026-02']
        """
        return list(getattr(self._growing, "released", []))

    def at(self, period: str | int, kind: str = "period") -> Self:
        """Return the answers at a period of a growing table, as a release of one table.

        Parameters
        ----------
        period : str or int
            Name of a released period, such as "2026-02".
        kind : {"period", "cumulative", "window"}
            Records of the period, of all periods up to it, or of the last `window` periods.

        Returns
        -------
        Release

        Raises
        ------
        JobError
            If the period is not released, the job does not ask for this kind, or the release is one of one moment.

        Examples
        --------
        >>> growing.at("2026-02", kind="cumulative").marginal("a").shape
        (3,)
        """
        if not hasattr(self._growing, "answers_at"):
            raise JobError("period", f"{period!r} for {self.path}, a release of one moment",
                           "the release of a growing table", "leave it out")  # fmt: skip
        if (str(period), kind) not in self._opened:
            self._opened[str(period), kind] = type(self)(self._growing.answers_at(period, kind))
        return self._opened[str(period), kind]

    @cached_property
    def _opened(self) -> dict[tuple[str, str], Self]:
        return {}


def named_attributes(*names: str | Sequence[str] | None) -> list[str]:
    """Return names that are given as texts, lists or None in one list without repetitions."""
    lists: Iterable[Sequence[str]] = ([one] if isinstance(one, str) else one or () for one in names)
    return list(dict.fromkeys(name for own in lists for name in own))


def chosen_join(joins: Mapping[str, Any], names: Sequence[str], number: bool = False) -> str:
    """Return the name of the join that answers queries over some attributes.

    Parameters
    ----------
    joins : mapping of str to Run
        Runs of the joins by name.
    names : sequence of str
    number : bool
        Whether the query is a sum or a mean, for which numbers are preferred to attributes.

    Raises
    ------
    PlanError
        If no join, or more than one, has a set with these attributes.
    """
    wanted = set(names) - {"records"}
    found = {name: run for name, run in joins.items() if any(wanted <= set(own) for own in run.workload.sets)}
    if not found:
        every = sorted({name for run in joins.values() for name in run.domain.axis_names})
        unknown = next((name for name in names if name not in every), None)
        remedy = "add a part with this set to the workload" if unknown is None else nearest(unknown, every)
        got, takes = f"{', '.join(names) or 'no attribute'} in no join", f"a set of one of the joins {', '.join(joins)}"
        raise PlanError("attributes", got, takes, remedy)
    preferred = [name for name, run in found.items() if bool(wanted & set(run.domain.number_names)) == number]
    chosen = preferred or list(found)
    if len(chosen) > 1:
        raise PlanError("attributes", f"{', '.join(names)} in the joins {', '.join(chosen)}", "attributes of one join",
                        f"name it: release.joins[{chosen[0]!r}]")  # fmt: skip
    return chosen[0]


def cut_share(joins: Mapping[str, Any], name: str, level: float) -> Estimate:
    """Return the share of the rows of a join that its bound cuts; the arguments are those of `Release.cut`.

    Parameters
    ----------
    joins : mapping of str to Release
        Releases of the joins, with that of the rows beyond their bounds.
    name : str
    level : float
    """
    domain = joins[CUT_JOIN].domain if CUT_JOIN in joins else None
    measured = sorted(own.rpartition(".")[0] for own in domain.number_names) if domain else []
    found = excess_of(joins[CUT_JOIN].answered.estimates, name) if name in measured else None
    if found is None:
        raise PlanError("cut", f"{name!r}", f"a join with measured cuts: {', '.join(measured) or 'none'}",
                        nearest(name, measured) if measured else "set joins.NAME.cut in the job")  # fmt: skip
    first = joins[name].domain.names[:1]
    return share_beyond(found, joins[name].answer(first, query=np.ones(joins[name].domain.shape(first))), level)


class PairRows:
    """Synthetic links of a table of pairs.

    Parameters
    ----------
    rows : callable
        Returns the links.
    """

    def __init__(self, rows: Callable[[], DaskFrame]) -> None:
        self._rows = rows

    def synthetic(self) -> DaskFrame:
        """Return the links, a row with two keys each.

        Returns
        -------
        dask.dataframe.DataFrame
        """
        return self._rows()


def read_rows(files: list[str], read_column: Callable[[str, Any], Any] | None = None) -> DaskFrame:
    """Return the rows in some files as a Dask data frame.

    Parameters
    ----------
    files : list of str
    read_column : callable, optional
        Returns the column with a name from its texts in CSV. Parquet files state their types.
    """
    import dask
    import dask.dataframe as dd

    if not files[0].endswith(".csv"):
        return dd.read_parquet(files)
    read = partial(read_csv_rows, read_column=read_column)
    with dask.config.set({"dataframe.convert-string": False}):  # columns have the types of rows in Parquet
        return dd.from_map(read, files, meta=read(files[0]).iloc[:0])


def read_csv_rows(file: str, read_column: Callable[[str, Any], Any] | None = None) -> DataFrame:
    """Return the rows of a CSV file: an empty field without quotes is a null, and every other text is a value.

    `read_column`, if given, converts a column of texts by its name. A block has the size of the whole file, so that
    every value is in a single chunk. Empty lines of a file with one column are nulls, so they are not ignored.
    """
    with opening(file) as stream:
        names = next(csv.reader(io.TextIOWrapper(stream, encoding="utf-8", newline="")))
    with opening(file) as stream:
        convert = arrow_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), null_values=[""],
                                           strings_can_be_null=True, quoted_strings_can_be_null=False)  # fmt: skip
        parse = arrow_csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=len(names) > 1)
        read = arrow_csv.ReadOptions(use_threads=False, block_size=max(1 << 24, stream.seek(0, os.SEEK_END) + 1))
        stream.seek(0)
        table = arrow_csv.read_csv(stream, read, parse, convert).combine_chunks()
    columns = {name: table.column(name).combine_chunks() for name in names}
    if read_column is not None:
        columns = {name: read_column(name, column) for name, column in columns.items()}
    return pa.table(columns).to_pandas(types_mapper=frame_type)


def frame_type(kind: pa.DataType) -> object | None:
    """Return the type of a column of a Dask data frame that is read from Parquet; None for that of NumPy."""
    import pandas as pd

    if pa.types.is_date(kind):
        return pd.ArrowDtype(kind)
    return pd.StringDtype("pyarrow") if is_text(kind) else None
