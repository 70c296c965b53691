"""Pairs implied by two others that meet in a third attribute: p(a, c) p(c, b) / p(c)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dpscale.names import AttributeSet
from dpscale.reconstruct.entropy import LowOrder, product_of

Array = NDArray[np.float64]
MOST_MIDDLES = 12


@dataclass(frozen=True, eq=False)
class Links:
    """A model's pairs, and how far each is from independence in L1: `strength[a, b]` = `strength[b, a]`, by the order
    of the model's 1-ways; -1 where there is no such pair."""

    model: LowOrder
    strength: Array

    @classmethod
    def of(cls, model: LowOrder) -> Links:
        place = {name: index for index, name in enumerate(model.ones)}
        strength = np.full((len(place), len(place)), -1.0)
        for names, table in model.tables.items():
            if len(names) == 2:
                one, other = (place[name] for name in names)
                strength[one, other] = strength[other, one] = np.abs(table - independent(model, names)).sum()
        return cls(model, strength)

    def nearest(self, names: AttributeSet, noisy: Array) -> Array:
        """Of the product and all chains, the one nearest to a noisy table in L2."""
        best = independent(self.model, names)
        least = float(((noisy - best) ** 2).sum())
        for table, squared, _ in self._chains(names, noisy):
            if squared < least:
                best, least = table, squared
        return best

    def strongest(self, names: AttributeSet) -> Array | None:
        """The chain farthest from independence in L1; None where there is none."""
        best, most = None, -1.0
        for table, _, apart in self._chains(names, independent(self.model, names)):
            if apart > most:
                best, most = table, apart
        return best

    def _chains(self, names: AttributeSet, other: Array) -> Iterator[tuple[Array, float, float]]:
        """Chains, each with its distances from a table: squared in L2, and in L1.

        Not by BLAS, whose last bits depend on its threads.
        """
        from dpscale.reconstruct import fitting_loops

        one, last = names
        for middle in self._middles(names):
            yield fitting_loops.chained(self._shares[one, middle], self._tables[middle, last], other)

    def _middles(self, names: AttributeSet) -> list[str]:
        """The middles of the MOST_MIDDLES chains whose weaker link is strongest."""
        one, other = (self._place[name] for name in names)
        weaker = np.minimum(self.strength[one], self.strength[other])
        best = np.argsort(-weaker, kind="stable")[:MOST_MIDDLES]
        return [self._names[index] for index in best if weaker[index] >= 0]

    @cached_property
    def _names(self) -> list[str]:
        return list(self.model.ones)

    @cached_property
    def _place(self) -> dict[str, int]:
        return {name: index for index, name in enumerate(self.model.ones)}

    @cached_property
    def _tables(self) -> dict[AttributeSet, Array]:
        """All pairs, both ways round."""
        pairs = {names: table for names, table in self.model.tables.items() if len(names) == 2}
        return pairs | {names[::-1]: np.ascontiguousarray(table.T) for names, table in pairs.items()}

    @cached_property
    def _shares(self) -> dict[AttributeSet, Array]:
        """The same over the 1-way of the second attribute."""
        return {names: table / self.model.coarse[names[1]] for names, table in self._tables.items()}


def independent(model: LowOrder, names: AttributeSet) -> Array:
    """The table over groups that independence gives."""
    return product_of([model.coarse[name] for name in names], model.total)
