"""Pairs implied by two others that meet in a third attribute: p(a, c) p(c, b) / p(c)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpscale.reconstruct.maxent import LowOrder, Names, product_of

Array = NDArray[np.float64]
MOST_MIDDLES = 12


@dataclass(frozen=True, eq=False)
class Links:
    """A model's pairs, and how far each is from independence in L1: `strength[a][b]` = `strength[b][a]`."""

    model: LowOrder
    strength: Mapping[str, Mapping[str, float]]

    @classmethod
    def of(cls, model: LowOrder) -> Links:
        strength: dict[str, dict[str, float]] = {name: {} for name in model.ones}
        for names, table in model.tables.items():
            if len(names) == 2:
                own = float(np.abs(table - independent(model, names)).sum())
                strength[names[0]][names[1]] = strength[names[1]][names[0]] = own
        return cls(model, strength)

    def through(self, names: Names) -> list[Array]:
        """The pairs that chains imply: the MOST_MIDDLES chains whose weaker link is strongest."""
        one, other = (self.strength[name] for name in names)
        weakest = {middle: min(own, other[middle]) for middle, own in one.items() if middle in other}
        middles = sorted(weakest, key=lambda middle: -weakest[middle])[:MOST_MIDDLES]
        return [self._chained(names[0], middle, names[1]) for middle in middles]

    def nearest(self, names: Names, noisy: Array) -> Array:
        """Of the product and all chains, the one nearest to a noisy table in L2."""
        tried = [independent(self.model, names), *self.through(names)]
        return min(tried, key=lambda table: float(((noisy - table) ** 2).sum()))

    def strongest(self, names: Names) -> Array | None:
        """The chain farthest from independence in L1; None where there is none."""
        product = independent(self.model, names)
        return max(self.through(names), key=lambda table: float(np.abs(table - product).sum()), default=None)

    def _chained(self, one: str, middle: str, other: str) -> Array:
        """By einsum and not by BLAS, whose last bits depend on its threads."""
        scaled = self._table(one, middle) / self.model.coarse[middle]
        return np.einsum("ij,kj->ik", scaled, np.ascontiguousarray(self._table(other, middle)))

    def _table(self, rows: str, columns: str) -> Array:
        own = self.model.tables.get((rows, columns))
        return self.model.tables[columns, rows].T if own is None else own


def independent(model: LowOrder, names: Names) -> Array:
    """The table over groups that independence gives."""
    return product_of([model.coarse[name] for name in names], model.total)
