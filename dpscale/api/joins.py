"""Choice of the join of a release of several tables that answers a query."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dpscale.base.display import nearest
from dpscale.base.errors import PlanError


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
        raise PlanError("attributes", f"{', '.join(names) or 'no attribute'} in no join", f"a set of one of the joins {', '.join(joins)}", remedy)  # fmt: skip
    preferred = [name for name, run in found.items() if bool(wanted & set(run.domain.number_names)) == number]
    chosen = preferred or list(found)
    if len(chosen) > 1:
        raise PlanError("attributes", f"{', '.join(names)} in the joins {', '.join(chosen)}", "attributes of one join",
                        f"name it: release.joins[{chosen[0]!r}]")  # fmt: skip
    return chosen[0]
