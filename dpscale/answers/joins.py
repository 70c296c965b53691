"""Share of the rows of a join or table that the bound of a privacy unit cuts, from two measured numbers."""

from __future__ import annotations

import numpy as np

from dpscale.answers.ratios import fieller
from dpscale.answers.statistics import Estimate, TooFewRecords
from dpscale.domain.number import Number
from dpscale.privacy.accounting import GAUSSIAN
from dpscale.reconstruction.base import Estimates
from dpscale.reconstruction.joint_intervals import half_width

CUT_JOIN, EXCESS = "cut", "excess"


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
    found = estimates.workload.domain[number]
    assert isinstance(found, Number)
    return estimates.answer((number,), found.cell_values)


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
    beyond, first, second = excess[0], excess[1] ** 2, excess[1] ** 2 + counted[1] ** 2
    rows = beyond + counted[0]
    if rows <= width * second**0.5:
        raise TooFewRecords("cut", "a number of rows that is not distinguishable from zero", "more rows than noise",
                            "increase the budget")  # fmt: skip

    ends = fieller(
        (np.asarray(beyond), np.asarray(rows)), (np.asarray(first), np.asarray(second), np.asarray(first)), width
    )
    low, high = (float(np.clip(end, 0, 1)) for end in ends)
    return Estimate(float(np.clip(beyond / rows, 0, 1)), low, high)
