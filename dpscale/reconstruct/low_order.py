"""Consistent non-negative low-order tables from noisy residuals: what local maximum entropy starts from.

Every table is expected to be what the tables inside it imply; its own noisy residual says how it departs from that,
and `shrink` weighs the two. A pair's expectation is the product of its 1-ways or, where that explains the noisy pair
better, a chain a — c — b of two other pairs, p(a, c) p(c, b) / p(c): other noise, so it may be held against the pair's
own. A pair that was not measured is its strongest chain, the one farthest from independence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpscale.reconstruct.maxent import LowOrder, Names, product_of, proportional_fit
from dpscale.reconstruct.shrink import NoisyTable, learn, posterior
from dpscale.residual import center
from dpscale.residual.groups import Groups

Array = NDArray[np.float64]
FIT_ROUNDS, FIT_TOLERANCE = 20, 1e-6
MOST_MIDDLES = 12


@dataclass(frozen=True, eq=False)
class NoisyResidual:
    """What was measured of one residual: centred `values` over groups, each with noise of standard `deviation`."""

    values: Array
    deviation: float


def low_order(
    ones: Mapping[str, Array],
    groups: Mapping[str, Groups],
    measured: Mapping[Names, NoisyResidual],
    wanted: Sequence[Names] = (),
    chains: int = 1,
) -> LowOrder:
    """The tables of all measured sets, and of the pairs `wanted` where a chain implies more than independence.

    `ones`: non-negative 1-ways of equal sum. `chains`: how often pairs are taken anew with chains as expectations.
    """
    model = LowOrder(ones, groups, {}, float(next(iter(ones.values())).sum()))
    pairs: dict[Names, NoisyResidual] = {names: own for names, own in measured.items() if len(names) == 2}
    model = _with(model, _shrunk(model, pairs, {}))
    for _ in range(chains):
        links = Links(model)
        nearest: dict[Names, Array] = {
            names: links.nearest(names, _noisy(own, links.product(names))) for names, own in pairs.items()
        }
        model = LowOrder(ones, groups, _shrunk(model, pairs, nearest), model.total)
    if chains:
        links = Links(model)
        implied = {names: links.strongest(names) for names in wanted if len(names) == 2 and names not in pairs}
        model = _with(model, {names: table for names, table in implied.items() if table is not None})
    for size in sorted({len(names) for names in measured if len(names) > 2}):
        larger = {names: own for names, own in measured.items() if len(names) == size}
        model = _with(model, _shrunk(model, larger, {}))
    return model


def _with(model: LowOrder, tables: Mapping[Names, Array]) -> LowOrder:
    return LowOrder(model.ones, model.groups, {**model.tables, **tables}, model.total)


def _noisy(own: NoisyResidual, reference: Array) -> Array:
    """The noisy table: its own residual on the margins of what is expected."""
    return np.asarray(own.values + reference - center(reference, range(reference.ndim)))


def _shrunk(
    model: LowOrder, measured: Mapping[Names, NoisyResidual], expected: Mapping[Names, Array]
) -> dict[Names, Array]:
    """Tables of one size, shrunk towards what is expected and fitted to the tables inside them."""
    tables = {}
    for names, own in measured.items():
        reference = np.maximum(expected.get(names, model.coarse_marginal(names)), 1e-6)
        tables[names] = NoisyTable(_noisy(own, reference), reference, own.deviation)
    law = learn(list(tables.values()))
    return {names: _fitted(model, names, posterior(table, law)) for names, table in tables.items()}


def _fitted(model: LowOrder, names: Names, table: Array) -> Array:
    margins: list[tuple[tuple[int, ...], Array]] = [((axis,), model.coarse[name]) for axis, name in enumerate(names)]
    if len(names) > 2:
        margins = [*margins, *model.inside(names)]
    return proportional_fit(table, margins, FIT_ROUNDS, FIT_TOLERANCE * model.total)


class Links:
    """Pairs implied by two others that meet in a third attribute."""

    def __init__(self, model: LowOrder) -> None:
        self.model = model
        self._to: dict[str, dict[str, Array]] = {name: {} for name in model.ones}
        self._strength: dict[tuple[str, str], float] = {}
        for names, table in model.tables.items():
            if len(names) == 2:
                self._to[names[0]][names[1]] = table
                self._to[names[1]][names[0]] = table.T
                own = float(np.abs(table - self.product(names)).sum())
                self._strength[names[0], names[1]] = self._strength[names[1], names[0]] = own

    def product(self, names: Names) -> Array:
        return product_of([self.model.coarse[name] for name in names], self.model.total)

    def through(self, names: Names) -> list[Array]:
        """The pairs that chains imply: the MOST_MIDDLES chains whose weaker link is strongest."""
        one, other = names
        middles = [middle for middle in self._to[one] if other in self._to[middle]]
        middles.sort(key=lambda middle: -min(self._strength[one, middle], self._strength[middle, other]))
        return [
            (self._to[one][middle] / self.model.coarse[middle]) @ self._to[middle][other]
            for middle in middles[:MOST_MIDDLES]
        ]

    def nearest(self, names: Names, noisy: Array) -> Array:
        """Of the product and all chains, the one nearest to a noisy table in L2."""
        tried = [self.product(names), *self.through(names)]
        return min(tried, key=lambda table: float(((noisy - table) ** 2).sum()))

    def strongest(self, names: Names) -> Array | None:
        """The chain farthest from independence in L1; None where there is none."""
        product = self.product(names)
        return max(self.through(names), key=lambda table: float(np.abs(table - product).sum()), default=None)
