"""Attribute sets over hierarchies: the level of each hierarchy, and levels that follow from deeper ones.

A set has at most one level of a hierarchy that matters, the deepest. A table with a level above it has a count only
where the deeper cell is below the upper one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dpscale.base.errors import PlanError
from dpscale.base.numerics import AttributeSet, Floats, Integers
from dpscale.domain import Domain, Hierarchy


@dataclass(frozen=True)
class TreeQuerySet:
    """Attribute set split into levels of hierarchies and other attributes.

    Attributes
    ----------
    levels : mapping of str to int
        Deepest level of each hierarchy with a level in the set, by the name of its leaf attribute; 1 is the top.
    axes : mapping of str to int
        Axis of every attribute; that of a level by the name of its leaf attribute.
    """

    levels: Mapping[str, int]
    axes: Mapping[str, int]


def split_levels(hierarchies: Sequence[Hierarchy], attributes: Sequence[str]) -> TreeQuerySet:
    """Return the levels and axes of an attribute set with at most one level of each hierarchy."""
    levels, axes = dict[str, int](), dict[str, int]()
    for axis, name in enumerate(attributes):
        own = next((one for one in hierarchies if name in one.names), None)
        leaf = name if own is None else own.leaf
        axes[leaf] = axis
        if own is not None:
            levels[leaf] = own.position(name) + 1
    return TreeQuerySet(levels, axes)


def implied_levels(hierarchies: Sequence[Hierarchy], attributes: Sequence[str]) -> dict[str, str]:
    """Return the levels in a set that follow from a deeper level of their hierarchy, with the deepest one."""
    found = dict[str, str]()
    for own in hierarchies:
        levels = [name for name in own.names if name in attributes]
        found |= dict.fromkeys(levels[:-1], levels[-1] if levels else "")
    return found


def without_implied(hierarchies: Sequence[Hierarchy], attributes: Sequence[str]) -> AttributeSet:
    """Return a set without the levels that follow from a deeper level in it."""
    implied = implied_levels(hierarchies, attributes)
    return tuple(name for name in attributes if name not in implied)


def known_level(domain: Domain, hierarchy: Hierarchy, others: Sequence[str]) -> int:
    """Return the deepest level at which a table with other attributes follows from public totals; −1 without one."""
    if not domain.public_totals:
        return -1
    for level in range(hierarchy.depth, 0, -1):
        if domain.known_table(domain.ordered((hierarchy.names[level - 1], *others))) is not None:
            return level
    return 0 if domain.known_table(domain.ordered(others)) is not None else -1


def with_implied(domain: Domain, table: Floats, attributes: Sequence[str]) -> Floats:
    """Return a table with an axis for every attribute: cells that are not below each other are 0.

    Parameters
    ----------
    domain : Domain
    table : ndarray
        One axis for each attribute but the implied levels, in the order of `attributes`.
    attributes : sequence of str
    """
    implied = implied_levels(domain.hierarchies, attributes)
    kept = [name for name in attributes if name not in implied]
    for upper, lower in implied.items():
        own = domain.hierarchy_of(lower)
        assert own is not None
        cells: Integers = np.arange(domain[lower].size)
        for parents in reversed(own.parents[own.position(upper) : own.position(lower)]):
            cells = parents[cells]
        inside = cells == np.arange(domain[upper].size)[:, None]
        axis, kept = kept.index(lower), [upper, *kept]
        table = table * inside.reshape([-1, *(inside.shape[1] if i == axis else 1 for i in range(table.ndim))])
    return table.transpose([kept.index(name) for name in attributes])


def two_levels(implied: Mapping[str, str]) -> PlanError:
    """Return the refusal of a query over two levels of one hierarchy."""
    upper, lower = next(iter(implied.items()))
    return PlanError("query", f"{upper} and {lower}, levels of one hierarchy", "one level of a hierarchy",
                     f"leave out {upper}: it follows from {lower}")  # fmt: skip


def levels_only(name: str) -> PlanError:
    """Return the refusal of a family other than marginals on a level of a hierarchy."""
    return PlanError("workload", f"queries on {name}, a level of a hierarchy, that are not its cells", "marginals",
                     "ask for the marginal; `answer` and `area` of the release answer any query on it")  # fmt: skip
