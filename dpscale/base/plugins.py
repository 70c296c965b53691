"""Mechanisms, reconstructions, query families and data formats of other distributions, registered by entry points.

    [project.entry-points."dpscale.mechanisms"]
    my-mechanism = "my_package:MECHANISM"

A name of dpscale cannot be replaced. An entry point is loaded when a job names it, and for lists of all mechanisms
(`plan --compare`, `job schema`, an unknown name), never because another job runs. The core computes the cost of every
draw of a plan and charges it; but loaded code runs in the process that reads the records, so code of other
distributions is outside the privacy claim of dpscale (docs/privacy.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from dpscale.base.display import nearest
from dpscale.base.errors import JobError


@lru_cache
def installed(group: str) -> Mapping[str, EntryPoint]:
    """Return the entry points of a group by name."""
    return {one.name: one for one in entry_points(group=group)}


def all_names(group: str, own: Mapping[str, str]) -> Iterator[str]:
    """Yield the names of the table `own` of dpscale, then those of other distributions."""
    yield from own
    yield from (name for name in installed(group) if name not in own)


def load(group: str, own: Mapping[str, str], name: str, attribute: str, field: str) -> Any:
    """Return the plug-in with a name.

    Parameters
    ----------
    group : str
        Group of entry points.
    own : mapping of str to str
        Modules of dpscale by name.
    name : str
    attribute : str
        Name of the plug-in in a module of dpscale.
    field : str
        Key of the job, for messages.

    Raises
    ------
    JobError
        If the name is unknown, or the plug-in cannot be imported or has another name.
    """
    if name in own:
        return getattr(import_module(own[name]), attribute)

    names = list(all_names(group, own))
    if name not in names:
        raise JobError(field, f"{name!r}", ", ".join(names), nearest(name, names))

    try:
        found = installed(group)[name].load()
    except Exception as error:
        problem = f"{name!r} of {distribution_of(group, own, name)}, which fails to import ({type(error).__name__})"
        raise JobError(field, problem, "an installed plug-in", "fix or remove that distribution") from None

    if getattr(found, "name", None) != name:
        problem = f"{name!r} of {distribution_of(group, own, name)}, which is not a plug-in with this name"
        raise JobError(field, problem, f"an object whose name is {name!r}", "fix or remove that distribution")
    return found


def distribution_of(group: str, own: Mapping[str, str], name: str) -> str:
    """Return name and version of the distribution that registers a plug-in; "" for those of dpscale."""
    point = None if name in own else installed(group).get(name)
    return "" if point is None or point.dist is None else f"{point.dist.name} {point.dist.version}"
