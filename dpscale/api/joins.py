"""Choice of the join of a release of several tables that answers a query, and the share of its rows that is cut."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from dpscale.answers.ratios import fieller
from dpscale.answers.statistics import Estimate, TooFewRecords
from dpscale.base.display import nearest
from dpscale.base.errors import PlanError
from dpscale.contributions.lookups import CUT, EXCESS
from dpscale.privacy.accounting import GAUSSIAN
from dpscale.reconstruction.joint_intervals import half_width


def asked_names(*names: str | Sequence[str] | None) -> list[str]:
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
    domain = joins[CUT].domain if CUT in joins else None
    measured = [own.rpartition(".")[0] for own in domain.number_names] if domain else []
    if name not in measured:
        raise PlanError("cut", f"{name!r}", f"a join with measured cuts: {', '.join(measured) or 'none'}",
                        nearest(name, measured) if measured else "set joins.NAME.cut in the job")  # fmt: skip
    number, own = f"{name}.{EXCESS}", joins[name]
    first = own.domain.names[:1]
    excess = joins[CUT].answer([number], joins[CUT].domain[number].cell_values)
    return share_beyond(excess, own.answer(first, np.ones(own.domain.shape(first))), level)


def share_beyond(excess: tuple[float, float], counted: tuple[float, float], level: float) -> Estimate:
    """Return the share of rows that a bound cuts, E / (E + N), with Fieller's interval.

    Parameters
    ----------
    excess, counted : tuple of float
        Estimates of the rows E beyond the bound and of the counted rows N, each with its standard error. Their noise is
        independent.
    level : float
        Probability that the interval covers the share.

    Raises
    ------
    TooFewRecords
        If the number of rows is not distinguishable from zero.
    """
    width = half_width(level, GAUSSIAN)
    beyond, first, second = excess[0], excess[1] ** 2, excess[1] ** 2 + counted[1] ** 2
    rows = beyond + counted[0]
    if rows <= width * second**0.5:
        raise TooFewRecords("cut", "a number of rows that is not distinguishable from zero", "more rows than noise",
                            "increase the budget")  # fmt: skip
    ends = fieller((np.asarray(beyond), np.asarray(rows)), (np.asarray(first), np.asarray(second), np.asarray(first)),
                   width)  # fmt: skip
    low, high = (float(np.clip(end, 0, 1)) for end in ends)
    return Estimate(float(np.clip(beyond / rows, 0, 1)), low, high)
