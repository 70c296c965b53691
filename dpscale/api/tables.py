"""Parts of a release of several tables: the join that answers a query, the share of its rows that is cut, and pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dpscale.answers.joins import CUT_JOIN, excess_of, share_beyond
from dpscale.answers.statistics import Estimate
from dpscale.base.display import nearest
from dpscale.base.errors import PlanError

if TYPE_CHECKING:
    from dask.dataframe import DataFrame as DaskFrame


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
    measured = [own.rpartition(".")[0] for own in domain.number_names] if domain else []
    found = excess_of(joins[CUT_JOIN].answered.estimates, name) if name in measured else None
    if found is None:
        raise PlanError("cut", f"{name!r}", f"a join with measured cuts: {', '.join(measured) or 'none'}",
                        nearest(name, measured) if measured else "set joins.NAME.cut in the job")  # fmt: skip
    first = joins[name].domain.names[:1]
    return share_beyond(found, joins[name].answer(first, np.ones(joins[name].domain.shape(first))), level)


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


def read_rows(files: list[str]) -> DaskFrame:
    """Return the rows in some files as a Dask data frame."""
    import dask.dataframe as dd

    return dd.read_csv(files) if files[0].endswith(".csv") else dd.read_parquet(files)
