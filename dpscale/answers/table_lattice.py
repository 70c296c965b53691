"""Order of tables over hierarchies: which tables are sums of which, and the tables that two tables have in common.

A table is named by its attributes, with at most one level of each hierarchy. It is a sum of another table if the other
has all its attributes, or deeper levels of them. The largest common sums of two tables are over their common
attributes, with the higher level of each hierarchy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np

from dpscale.base.numerics import AttributeSet, Flags, Integers
from dpscale.domain import Domain
from dpscale.domain.structural_zeros import constraints_on, possible

MOST_COMMON = 4000  # sets; more common sets are not looked for


@dataclass(frozen=True)
class TableLattice:
    """Tables over the attributes of a domain, in the order of sums."""

    domain: Domain

    @cached_property
    def _levels(self) -> dict[str, tuple[str, int]]:
        """Leaf attribute and depth, from 1, of every level of a hierarchy."""
        return {name: (own.leaf, depth) for own in self.domain.hierarchies for depth, name in enumerate(own.names, 1)}

    def depths(self, names: AttributeSet) -> dict[str, int]:
        """Return the depth of each attribute: that of a level by the name of its leaf attribute, else 1."""
        if names not in self._depths:
            own = [self._levels.get(name, (name, 1)) for name in names]
            self._depths[names] = {leaf: max(depth for other, depth in own if other == leaf) for leaf, _ in own}
        return self._depths[names]

    @cached_property
    def _depths(self) -> dict[AttributeSet, dict[str, int]]:
        return {}

    def named(self, depths: dict[str, int]) -> AttributeSet:
        """Return the set with some depths."""
        names = {one.leaf: one.names for one in self.domain.hierarchies}
        return self.domain.ordered([names.get(own, (own,))[depth - 1] for own, depth in depths.items() if depth])

    def has_levels(self, names: AttributeSet) -> bool:
        """Return whether a set names a level of a hierarchy."""
        return any(name in self._levels for name in names)

    def rank(self, names: AttributeSet) -> int:
        """Return the sum of the depths; the sums of a table have smaller ones."""
        return sum(self.depths(names).values())

    def is_sum(self, upper: AttributeSet, lower: AttributeSet) -> bool:
        """Return whether one table is a sum of another one, or the same."""
        below = self.depths(lower)
        return all(depth <= below.get(own, 0) for own, depth in self.depths(upper).items())

    def common(self, one: AttributeSet, other: AttributeSet) -> AttributeSet:
        """Return the set of the largest common sums of two tables."""
        first, second = self.depths(one), self.depths(other)
        return self.named({own: min(depth, second[own]) for own, depth in first.items() if own in second})

    def is_joined(self, names: AttributeSet, one: AttributeSet, other: AttributeSet) -> bool:
        """Return whether a cell of each of two sums determines the cell of a table."""
        first, second = self.depths(one), self.depths(other)
        return self.depths(names) == {own: max(first.get(own, 0), second.get(own, 0)) for own in {**first, **second}}

    def raised(self, names: AttributeSet) -> Iterator[AttributeSet]:
        """Yield the sets with one hierarchy at the level above, or without it."""
        depths = self.depths(names)
        for own in depths:
            if self.has_levels((own,)):
                yield self.named({**depths, own: depths[own] - 1})

    def closed(self, sets: Iterable[AttributeSet]) -> list[AttributeSet]:
        """Return the sets, their single attributes, common sums, and those at all levels above, smallest first."""
        found = dict.fromkeys(sets)
        fresh = list(found)
        while fresh and len(found) <= MOST_COMMON:
            common = {self.common(one, other) for one, other in combinations(list(found), 2)}
            fresh = sorted(common - set(found), key=lambda names: (self.rank(names), names))
            found.update(dict.fromkeys(fresh))
        found.update(dict.fromkeys((name,) for names in list(found) for name in names))
        waiting = list(found)
        while waiting:
            above = [names for names in self.raised(waiting.pop()) if names not in found]
            found.update(dict.fromkeys(above))
            waiting += above
        return sorted((names for names in found if names), key=lambda names: (self.rank(names), names))

    def sources(self, closed: Sequence[AttributeSet]) -> list[dict[AttributeSet, AttributeSet | None]]:
        """Return closed sets in the order in which tables are made, each with the set of which it is the sum, or None.

        The sets of a dictionary have the same levels; those of the levels above are before them.

        Among the sets with the same levels, those that are fitted are the largest ones and their common sums; also a
        level alone and, without levels, single attributes. The others are sums of one of the largest. So a table has
        at most two sums that are fixed before it, unless several of the largest sets overlap.
        """
        groups = dict[AttributeSet, list[AttributeSet]]()
        for names in closed:
            groups.setdefault(tuple(name for name in names if name in self._levels), []).append(names)
        every = list[dict[AttributeSet, AttributeSet | None]]()
        for levels, sets in sorted(groups.items(), key=lambda item: (self.rank(item[0]), item[0])):
            largest = [set(one) for one in self._largest(sets)]
            fitted = {*map(frozenset, largest), *([frozenset(levels)] if len(levels) == 1 else [])}
            fresh = set(fitted)
            while fresh and len(fitted) <= MOST_COMMON:
                fresh = {one & other for one in fresh for other in fitted} - fitted
                fitted |= fresh
            kept = [names for names in sets if frozenset(names) in fitted or len(names) == 1]
            found: dict[AttributeSet, AttributeSet | None] = dict.fromkeys(kept)
            for names in sets:
                if names not in found:
                    found[names] = next(self.domain.ordered(one) for one in largest if one >= set(names))
            every.append(found)
        return every

    @staticmethod
    def _largest(sets: Sequence[AttributeSet]) -> list[AttributeSet]:
        """Return the sets that are not within others, from sets of one level."""
        return [one for one in sets if not any(set(one) < set(other) for other in sets)]

    def maximal(self, sets: Iterable[AttributeSet]) -> list[AttributeSet]:
        """Return the sets whose tables are no sums of others."""
        every = list(dict.fromkeys(sets))
        return [one for one in every if not any(one != other and self.is_sum(one, other) for other in every)]

    def parts(self, upper: AttributeSet, lower: AttributeSet) -> Integers:
        """Return the cell of a table for each cell of a table of which it is a sum; cells are row-major."""
        shape, found = self.domain.shape(lower), np.zeros(1, np.int64)
        axes = {self._levels.get(name, (name, 1))[0]: axis for axis, name in enumerate(lower)}
        total: Integers = found.reshape([1] * len(lower))
        for name in upper:
            axis = axes[self._levels.get(name, (name, 1))[0]]
            cells = self._ancestors(name, lower[axis]).reshape([-1 if i == axis else 1 for i in range(len(lower))])
            total = total * self.domain[name].size + cells
        return np.ascontiguousarray(np.broadcast_to(total, shape)).reshape(-1)

    def _ancestors(self, upper: str, lower: str) -> Integers:
        """Return the cell of a level for every cell of a level at or below it."""
        own = self.domain.hierarchy_of(lower)
        return np.arange(self.domain[lower].size) if own is None else own.ancestors(upper, lower)

    def summed(self, table: np.ndarray, lower: AttributeSet, upper: AttributeSet) -> np.ndarray:
        """Return the sums of a table over `lower` to one over `upper`."""
        shape = self.domain.shape(upper)
        found = np.zeros(int(np.prod(shape, dtype=int)), table.dtype)
        np.add.at(found, self.parts(upper, lower), table.reshape(-1))
        return found.reshape(shape)

    def allowed(self, names: AttributeSet, others: Sequence[AttributeSet]) -> Flags:
        """Return the cells of a table that rules allow.

        They have an allowed cell below in every other table of which it is a sum.
        """
        shape = self.domain.shape(names)
        found = np.broadcast_to(possible(self.domain.rules, names, shape), shape).reshape(-1)
        for lower in others:
            if lower != names and self.is_sum(names, lower) and list(constraints_on(self.domain.rules, lower)):
                below = possible(self.domain.rules, lower, self.domain.shape(lower))
                below = np.broadcast_to(below, self.domain.shape(lower)).reshape(-1)
                found = found & (np.bincount(self.parts(names, lower), below, minlength=found.size) > 0)
        return found
