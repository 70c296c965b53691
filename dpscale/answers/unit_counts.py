"""Tables of numbers of distinct units by cell, and the share of rows that the bound of a unit cuts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from dpscale.answers.ratios import fieller
from dpscale.answers.report.charts import single
from dpscale.answers.statistics import Estimate, TooFewRecords
from dpscale.answers.tables import FIGURES, LEVEL, STATISTICS, column, label_name, titles_of, words_of
from dpscale.base.arrow import pa
from dpscale.base.numerics import AttributeSet, Floats
from dpscale.domain import Domain
from dpscale.domain.number import Number
from dpscale.privacy.accounting import GAUSSIAN
from dpscale.reconstruction.base import Estimates
from dpscale.reconstruction.joint_intervals import half_width

CUT_JOIN, EXCESS = "cut", "excess"


def unit_table(domain: Domain, names: AttributeSet, values: Floats, error: float, noise: str) -> pa.Table:
    """Return a row for each cell of a set: labels, estimate, standard error and interval.

    Parameters
    ----------
    domain : Domain
    names : AttributeSet
    values : ndarray of float64, shape (cells,)
        Estimates in row-major order.
    error : float
        Standard error of each.
    noise : {"gaussian", "laplace"}
    """
    places = np.unravel_index(np.arange(len(values)), domain.shape(names)) if names else ()
    columns = {
        label_name(name, STATISTICS): column(domain[name], place) for name, place in zip(names, places, strict=True)
    }
    half = half_width(LEVEL, noise) * error
    figures = values, np.full(len(values), error), values - half, values + half
    return pa.table(columns | dict(zip(FIGURES, figures, strict=True)))


def in_order(table: pa.Table, domain: Domain, names: Sequence[str]) -> pa.Table:
    """Return a table of a set in the domain's order with the rows of the given order of attributes."""
    ordered = domain.ordered(names)
    cells = np.arange(table.num_rows).reshape(domain.shape(ordered))
    rows = cells.transpose([ordered.index(name) for name in names]).reshape(-1)
    labels = [label_name(name, STATISTICS) for name in names]
    return table.take(pa.array(rows)).select([*labels, *FIGURES])


def unit_results(domain: Domain, tables: Iterable[tuple[Sequence[str], pa.Table]], most: int) -> list[dict[str, Any]]:
    """Return the figures of each set in a report: the number of all units, or bars of one attribute.

    Parameters
    ----------
    domain : Domain
    tables : iterable of (sequence of str, pyarrow.Table)
        Sets with their tables of `unit_table`.
    most : int
        Largest number of bars.
    """
    results = list[dict[str, Any]]()
    for names, table in tables:
        estimate, low, high = (table[figure].to_numpy() for figure in ("estimate", "low", "high"))
        bars = None
        if len(names) == 1 and len(table) <= most:
            attribute = domain[names[0]]
            bars = single(
                titles_of(domain, names), (words_of(attribute),), estimate, (high - low) / 2, attribute, "units"
            )
        # the empty set has a single figure, that of all units
        rows = None if names else single(("",), (("",),), estimate, (high - low) / 2, None)["rows"]
        total = rows and rows[0]
        results.append({"name": ", ".join(names), "bars": bars, "total": total})

    return results


def excess_of(estimates: Estimates, name: str) -> tuple[float, float] | None:
    """Return the number of rows of a join beyond its bound with its standard error; None if it was not measured.

    Parameters
    ----------
    estimates : Estimates
        Of the rows beyond the bounds of all joins.
    name : str
        Name of the join.
    """
    number = f"{name}.{EXCESS}"
    if number not in estimates.workload.domain.number_names:
        return None
    rows_beyond = estimates.workload.domain[number]
    assert isinstance(rows_beyond, Number)
    return estimates.answer((number,), rows_beyond.cell_values)


def share_beyond(
    excess: tuple[float, float], counted: tuple[float, float], level: float, noise: str = GAUSSIAN
) -> Estimate:
    """Return the share of rows that a bound cuts, E / (E + N), with Fieller's interval.

    Parameters
    ----------
    excess, counted : tuple of float
        Estimates of the rows E beyond the bound and of the counted rows N, each with its standard error. Their noise is
        independent.
    level : float
        Probability that the interval covers the share.
    noise : {"gaussian", "laplace"}

    Raises
    ------
    TooFewRecords
        If the number of rows is not distinguishable from zero.
    """
    width = half_width(level, noise)
    beyond, rows = excess[0], excess[0] + counted[0]
    beyond_variance = excess[1] ** 2
    rows_variance = beyond_variance + counted[1] ** 2
    covariance = beyond_variance  # both contain the noise of E
    if rows <= width * rows_variance**0.5:
        raise TooFewRecords("cut", "a number of rows that is not distinguishable from zero", "more rows than noise",
                            "increase the budget")  # fmt: skip

    ratio = np.asarray(beyond), np.asarray(rows)
    ends = fieller(ratio, (np.asarray(beyond_variance), np.asarray(rows_variance), np.asarray(covariance)), width)
    low, high = (float(np.clip(end, 0, 1)) for end in ends)
    return Estimate(float(np.clip(beyond / rows, 0, 1)), low, high)
