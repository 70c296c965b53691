"""Consistent non-negative low-order tables from noisy residuals: what local maximum entropy starts from.

Every table is expected to be what the tables inside it imply; its own noisy residual says how it departs from that,
and `shrink` weighs the two. A pair's expectation is the product of its 1-ways, or that as its neighbours have it where
the noisy pair says so (`near`); or, where that explains the noisy pair better, a chain a — c — b of two other pairs
(`chains`): other noise, so it may be held against the pair's own. A chain helps much where codes lie in order and
misleads where they do not, so a pair is the mean of what either makes of it. A pair that was not measured is its
strongest chain, the one farthest from independence.

All pairs are one piece of work, in compiled loops over flat arrays: a run believes anew in every round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dpscale.names import AttributeSet
from dpscale.reconstruct.chains import Links
from dpscale.reconstruct.entropy import LowOrder
from dpscale.reconstruct.near import REACHES, near
from dpscale.reconstruct.paired import Ones, Paired
from dpscale.reconstruct.shrink import NoisyTable, NoisyTables, best_posterior
from dpscale.residual import center
from dpscale.residual.groups import Groups

Array = NDArray[np.float64]
Tables = dict[AttributeSet, Array]
FIT_ROUNDS, FIT_TOLERANCE, LEAST = 20, 1e-6, 1e-6


@dataclass(frozen=True, eq=False)
class NoisyResidual:
    """What was measured of one residual: centred `values` over groups, each with noise of standard `deviation`."""

    values: Array
    deviation: float


def low_order(
    ones: Mapping[str, Array],
    groups: Mapping[str, Groups],
    measured: Mapping[AttributeSet, NoisyResidual],
    wanted: Sequence[AttributeSet] = (),
    chains: int = 1,
) -> LowOrder:
    """The tables of all measured sets, and of the pairs `wanted` where a chain implies more than independence.

    `ones`: non-negative 1-ways of equal sum. `chains`: how often pairs are taken anew with chains as expectations.
    """
    model = LowOrder(ones, groups, {}, float(next(iter(ones.values())).sum()))
    pairs: dict[AttributeSet, NoisyResidual] = {names: noisy for names, noisy in measured.items() if len(names) == 2}
    if pairs:
        model = replace(model, tables=_pairs(model, pairs, wanted, chains))
    for size in sorted({len(names) for names in measured if len(names) > 2}):
        larger = {names: noisy for names, noisy in measured.items() if len(names) == size}
        model = replace(model, tables={**model.tables, **_larger(model, larger)})
    return replace(model, measured=frozenset(measured))


def _pairs(
    model: LowOrder, measured: Mapping[AttributeSet, NoisyResidual], wanted: Sequence[AttributeSet], chains: int
) -> Tables:
    """Pairs that were measured, and of those wanted what chains imply."""
    ones = Ones.of(model.coarse, model.total)
    shrunk = _Shrunk.of(Paired(ones, list(measured)), list(measured.values()), FIT_TOLERANCE * model.total)
    alone = tables = shrunk.alone()
    for _ in range(chains):
        tables = (alone + shrunk.chained(Links.of(shrunk.paired, tables))) / 2
    found = shrunk.paired.apart(tables)
    if chains:
        left = Paired(ones, [names for names in wanted if len(names) == 2 and names not in measured])
        found |= Links.of(shrunk.paired, tables).strongest(left)
    return found


@dataclass(frozen=True, eq=False)
class _Shrunk:
    """Noisy residuals of pairs, flat, as tables that are shrunk towards what is expected and fitted to their 1-ways."""

    paired: Paired
    residuals: Array
    deviations: Array
    tolerance: float

    @classmethod
    def of(cls, paired: Paired, residuals: Sequence[NoisyResidual], tolerance: float) -> _Shrunk:
        flat = np.concatenate([one.values.reshape(-1) for one in residuals])
        return cls(paired, flat, np.array([one.deviation for one in residuals]), tolerance)

    def alone(self) -> Array:
        """Towards independence, or what neighbours expect where nothing better is known."""
        table = self._expected(self.paired.independent())
        return self._fitted([table, *(near(self.paired, table, reach) for reach in REACHES)])

    def chained(self, links: Links) -> Array:
        """Towards the chains that are nearest."""
        noisy = self.paired.noisy(self.residuals, self.paired.independent())
        return self._fitted([self._expected(links.nearest(self.paired, noisy))])

    def _expected(self, expectation: Array) -> NoisyTables:
        reference = np.maximum(expectation, LEAST)
        values = self.paired.noisy(self.residuals, reference)
        return NoisyTables(values, reference, self.deviations, self.paired.starts)

    def _fitted(self, ways: Sequence[NoisyTables]) -> Array:
        return self.paired.fit(best_posterior(ways), FIT_ROUNDS, self.tolerance)


def _larger(model: LowOrder, measured: Mapping[AttributeSet, NoisyResidual]) -> Tables:
    """Tables of one size, shrunk towards what is expected and fitted to the tables inside them."""
    expected = model.coarse_marginals(list(measured))
    noisy = [_noisy(residual, np.maximum(expected[names], LEAST)) for names, residual in measured.items()]
    every = NoisyTables.of(noisy)
    means = zip(measured, noisy, np.split(best_posterior([every]), every.starts[1:-1]), strict=True)
    shaped = {names: table.reshape(one.values.shape) for names, one, table in means}
    return model.fitted(shaped, FIT_ROUNDS, FIT_TOLERANCE * model.total)


def _noisy(residual: NoisyResidual, reference: Array) -> NoisyTable:
    """The noisy table: its own residual on the margins of what is expected."""
    values = residual.values + reference - center(reference, range(reference.ndim))
    return NoisyTable(np.asarray(values), reference, residual.deviation)
