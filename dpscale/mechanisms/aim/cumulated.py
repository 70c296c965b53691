"""Which 1-ways a run measures by a strategy: those of which nothing but cumulative queries is asked.

A prefix or range query of several attributes is, along each of them, a sum of cells. What it misses by the 1-ways alone
is most of its error where the budget is small, and noise of each cell by itself is several times that of a strategy for
sums. Attributes that are asked for cell by cell too, or by other queries, are measured as ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest

from dpscale.plans.cumulative import FEWEST, MOST, cumulative_factor
from dpscale.plans.factor import Factor
from dpscale.workload import ProductPart, Workload

BOTH_ENDS = frozenset({"range", "circular"})
CUMULATIVE = frozenset({"prefix"}) | BOTH_ENDS


def strategies(workload: Workload) -> Mapping[str, Factor]:
    """The strategy of each such attribute, of neither few nor very many cells."""
    asked = _families(workload)
    sizes = {one.name: one.size for one in workload.domain.attributes}
    return {name: cumulative_factor(sizes[name], bool(families & BOTH_ENDS)) for name, families in asked.items()
            if families <= CUMULATIVE and FEWEST <= sizes[name] <= MOST}  # fmt: skip


def _families(workload: Workload) -> dict[str, set[str]]:
    """The families by which each attribute is asked, by name; "" for a joint one or queries of its own."""
    asked: dict[str, set[str]] = {}
    for part in workload.parts:
        for names in part.sets:
            own = [family.name for family in part.families(names)] if isinstance(part, ProductPart) else []
            for name, family in zip_longest(names, own, fillvalue=""):
                asked.setdefault(name, set()).add(family)
    return asked
