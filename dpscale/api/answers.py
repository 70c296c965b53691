"""Answers of a release: counts of cells, linear queries, and labelled tables, of a growing table by period."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpscale.answers import statistics
from dpscale.answers.tables import Answered, checked_names, framed
from dpscale.base.errors import JobError
from dpscale.workload import PREFIX

if TYPE_CHECKING:
    import polars
    import pyarrow as pa
    from pandas import DataFrame

    AnyFrame: TypeAlias = DataFrame | pa.Table | polars.DataFrame


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
        found: Path = self._run.path
        return found

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
