"""What a method of `select` is given beside the workload: how to map, its options, where optima are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dpscale.errors import JobError
from dpscale.names import nearest
from dpscale.plans.allocation import GAUSSIAN
from dpscale.solve.store import Store

MOST_CELLS = 1 << 27
Each = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]


@dataclass(frozen=True)
class Setting:
    """`each` maps over independent problems: the builtin `map` in a plain loop, Dask tasks when the engine plans.

    `options`: the mechanism's own, by name. `store`: where solved problems are kept, or None. `noise`: the kind.
    `most_cells`: how many cells a marginal may have to be held.
    """

    each: Each = map
    options: Mapping[str, Any] = field(default_factory=dict)
    store: Store | None = None
    noise: str = GAUSSIAN
    most_cells: int = MOST_CELLS

    def taking(self, mechanism: str, *known: str) -> Mapping[str, Any]:
        """The options, all of them known; JobError for one that the mechanism does not take."""
        for name in self.options:
            if name not in known:
                takes = ", ".join(known) or "no options"
                raise JobError(
                    f"mechanism.{name}", f"given for {mechanism}", takes, nearest(name, known) or "remove it"
                )
        return self.options
