"""Components of a run of several tables: what each has, and in which order they are visited."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Protocol

from dpscale.base.errors import JobError
from dpscale.engine import Engine
from dpscale.privacy.accounting import Cost
from dpscale.runs.directory import Run


class Component(Protocol):
    """Part of a release with measurements of its own.

    Attributes
    ----------
    name : str
        Kind and name, for example "tables.users".
    depends_on : tuple of str
        Names of the components whose released values its measurement reads.
    """

    name: str
    depends_on: tuple[str, ...]

    @property
    def cost(self) -> Cost:
        """Exact cost to one privacy unit of the job, known once the component is planned."""

    @property
    def plan_digest(self) -> str | None:
        """Digest of the plan; None if the job determines all draws."""

    def plan(self, engine: Engine) -> None:
        """Choose the measurements. Reads no data."""

    def check(self, engine: Engine) -> None:
        """Read the data and refuse invalid data. Spends nothing; repeated after an interruption."""

    def measure(self, engine: Engine) -> None:
        """Draw the noise of all measurements that are not stored, and derive what other components read."""

    def close(self) -> None:
        """Remove what `check` has read, also after an error."""

    def is_measured(self) -> bool:
        """Return whether all noise is drawn; completes derived files from stored values, and draws nothing."""

    def reconstruct(self, engine: Engine) -> None:
        """Write the answers."""

    def synthesize(self, engine: Engine) -> Mapping[str, Any]:
        """Sample the synthetic rows; return sampled links by name: rows of both tables, or files of many links."""

    def report(self, engine: Engine) -> None:
        """Write the report of the component."""


# one line per kind of component: module and function that returns the components of a run
KINDS: dict[str, str] = {
    "tables": "dpscale.runs.components:table_components",
    "links": "dpscale.runs.links.component:link_components",
    "joins": "dpscale.runs.joins.component:join_components",
}


def listed_components(run: Run) -> dict[str, Component]:
    """Return the components of a run by name, in the order of the job."""
    found: dict[str, Component] = {}
    for module, _, function in (place.partition(":") for place in KINDS.values()):
        found |= {one.name: one for one in getattr(import_module(module), function)(run)}
    return found


def in_order(components: Mapping[str, Component]) -> dict[str, Component]:
    """Return components in topological order. Raises JobError for an unknown dependency or a cycle."""
    found: dict[str, Component] = {}
    while left := [one for name, one in components.items() if name not in found]:
        ready = next((one for one in left if found.keys() >= set(one.depends_on)), None)
        if ready is None:
            names = {name for one in left for name in one.depends_on if name not in found}
            raise JobError("components", f"{left[0].name} depends on {', '.join(sorted(names))}",
                           "components without a cycle of dependencies", "remove one of them")  # fmt: skip
        found[ready.name] = ready
    return found
