"""Consistent non-negative low-order tables from noisy residuals, the input of local maximum entropy.

The expectation of a table is the one implied by the tables inside it. Its own noisy residual measures the departure
from that, and `shrinkage` weighs the two. The expectation of a pair is the product of its 1-way marginals, or this
product smoothed over neighbouring cells if the noisy pair supports it (`near`). An alternative expectation is a chain
a — c — b of two other pairs, if it explains the noisy pair better (`chains`); its noise is independent, so it can be
compared with the pair's own. A chain helps much if codes are ordered and misleads if they are not, so a pair is the
mean of the two estimates. A pair that was not measured is its strongest chain, the one farthest from independence.

All pairs are computed together in compiled loops over flat arrays, because adaptive mechanisms recompute the tables in
every round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dpscale.base.arrays import Floats, Integers
from dpscale.base.display import AttributeSet
from dpscale.domain.structural_zeros import Excludes, speaking
from dpscale.reconstruction.constraints import constrained_pairs, known_pair
from dpscale.reconstruction.entropy import LowOrder, product_of
from dpscale.reconstruction.set_arrays import Ones, Paired
from dpscale.reconstruction.shrinkage import NEIGHBOUR_REACHES, NoisyTable, NoisyTables, best_posterior, near
from dpscale.workload.residual import center
from dpscale.workload.residual.in_axis import Groups


@dataclass(frozen=True, eq=False)
class Links:
    """Tables of known pairs in both orientations, from which chains are composed.

    Only the few chains whose weaker link is strongest are evaluated. The loops do not use BLAS, whose last bits depend
    on the number of threads.

    Attributes
    ----------
    place : ndarray of int64, shape (attributes, attributes)
        Start of the table of attributes i and j in `tables` and `conditionals`.
    strength : ndarray, shape (attributes, attributes)
        L1 distance of each pair from independence; -1 if the pair is not known.
    tables : ndarray
        Flat tables of both orientations.
    conditionals : ndarray
        The same tables divided by the 1-way marginal of the second attribute.
    """

    place: Integers
    strength: Floats
    turned: Floats
    shares: Floats

    @classmethod
    def of(cls, paired: Paired, tables: Floats) -> Links:
        """Return the links of flat tables whose margins are the 1-way marginals."""
        from dpscale.reconstruction import pair_loops

        count = len(paired.ones.at) - 1
        place, strength = np.zeros((count, count), np.int64), np.full((count, count), -1.0)
        links = cls(place, strength, np.empty(2 * len(tables)), np.empty(2 * len(tables)))
        pair_loops.link(tables, *paired.placed, place, strength, links.turned, links.shares)
        return links

    def nearest(self, paired: Paired, noisy: Floats) -> Floats:
        """Return, for each pair, the product or the chain that is nearest to the noisy table in L2."""
        return self._followed(paired, noisy, True)[0]

    def strongest(self, paired: Paired) -> dict[AttributeSet, Floats]:
        """Return, for each pair with a chain, the chain farthest from independence in L1."""
        tables, found = self._followed(paired, paired.independent(), False)
        each = paired.apart(tables).items()
        return {names: table for (names, table), one in zip(each, found.tolist(), strict=True) if one}

    def _followed(self, paired: Paired, others: Floats, nearest: bool) -> tuple[Floats, NDArray[np.bool_]]:
        from dpscale.reconstruction import pair_loops

        out, found = paired.independent(), np.zeros(len(paired.pairs), np.bool_)
        pair_loops.follow(*paired.placed, self.place, self.strength, self.turned, self.shares, others, nearest, out,
                          found)  # fmt: skip
        return out, found


Tables = dict[AttributeSet, Floats]
FIT_ROUNDS, FIT_TOLERANCE, LEAST = 20, 1e-6, 1e-6


@dataclass(frozen=True, eq=False)
class NoisyResidual:
    """Measured residual: centred `values` over groups, each with noise of standard deviation `deviation`."""

    values: Floats
    deviation: float


def low_order(
    ones: Mapping[str, Floats],
    groups: Mapping[str, Groups],
    measured: Mapping[AttributeSet, NoisyResidual],
    wanted: Sequence[AttributeSet] = (),
    chains: int = 1,
    rules: tuple[Excludes, ...] = (),
) -> LowOrder:
    """Return the tables of all measured sets, and of `wanted` pairs whose chains imply more than independence.

    Parameters
    ----------
    ones : mapping of str to ndarray
        Non-negative 1-way marginals of equal sum that obey the rules (`constraints`).
    groups : mapping of str to Groups
    measured : mapping of AttributeSet to NoisyResidual
    wanted : sequence of AttributeSet
    chains : int
        Number of times that pairs are re-estimated with chains as expectations.
    rules : tuple of Excludes
        Closed under implication.
    """
    model = LowOrder(ones, groups, {}, float(next(iter(ones.values())).sum()), rules=speaking(rules, ones))
    pairs: dict[AttributeSet, NoisyResidual] = {names: noisy for names, noisy in measured.items() if len(names) == 2}
    held = _held(model)
    if pairs:
        model = replace(model, tables=_pairs(model, pairs, held, wanted, chains))
    model = replace(model, tables={**held, **model.tables})
    for size in sorted({len(names) for names in measured if len(names) > 2}):
        larger = {names: noisy for names, noisy in measured.items() if len(names) == size}
        model = replace(model, tables={**model.tables, **_larger(model, larger)})
    known = (names for names in held if known_pair(model.rules, names, ones, groups) is not None)
    return replace(model, measured=frozenset([*measured, *known]))


def _held(model: LowOrder) -> Tables:
    """Return the pairs with rules: determined by the rules, or independent with impossible cells set to zero."""
    return {names: _told(model, names) for names in constrained_pairs(model.rules, list(model.ones))}


def _told(model: LowOrder, names: AttributeSet) -> Floats:
    known = known_pair(model.rules, names, model.ones, model.groups)
    return (
        known
        if known is not None
        else model.kept(names, product_of([model.coarse[name] for name in names], model.total))
    )


def _pairs(
    model: LowOrder, measured: Mapping[AttributeSet, NoisyResidual], held: Tables, wanted: Sequence[AttributeSet],
    chains: int,
) -> Tables:  # fmt: skip
    """Return the measured pairs, and `wanted` pairs implied by chains; pairs with rules serve as links."""
    ones, further = Ones.of(model.coarse, model.total), [names for names in held if names not in measured]
    shrunk = _Shrunk.of(model, Paired(ones, list(measured)), list(measured.values()), held)
    linked = Paired(ones, [*measured, *further])
    beside = [held[names].reshape(-1) for names in further]
    alone = tables = shrunk.alone()
    for _ in range(chains):
        tables = (alone + shrunk.chained(Links.of(linked, np.concatenate([tables, *beside])))) / 2
    found = shrunk.paired.apart(tables)
    if chains:
        left = Paired(ones, [n for n in wanted if len(n) == 2 and n not in measured and n not in held])
        found |= Links.of(linked, np.concatenate([tables, *beside])).strongest(left)
    return found


@dataclass(frozen=True, eq=False)
class _Shrunk:
    """Noisy residuals of pairs, flat, that are shrunk towards expectations and fitted to their 1-way marginals."""

    model: LowOrder
    paired: Paired
    residuals: Floats
    deviations: Floats
    held: Tables

    @classmethod
    def of(cls, model: LowOrder, paired: Paired, residuals: Sequence[NoisyResidual], held: Tables) -> _Shrunk:
        flat = np.concatenate([one.values.reshape(-1) for one in residuals])
        own = {names: table for names, table in held.items() if names in set(paired.names)}
        return cls(model, paired, flat, np.array([one.deviation for one in residuals]), own)

    def alone(self) -> Floats:
        """Shrink towards independence, or towards neighbouring cells where there is no better expectation."""
        table = self._expected(self._put(self.paired.independent(), self.held))
        return self._fitted([table, *(near(self.paired, table, reach) for reach in NEIGHBOUR_REACHES)])

    def chained(self, links: Links) -> Floats:
        """Shrink towards the nearest chains."""
        noisy = self.paired.noisy(self.residuals, self.paired.independent())
        return self._fitted([self._expected(self._put(links.nearest(self.paired, noisy), self.held))])

    def _expected(self, expectation: Floats) -> NoisyTables:
        reference = np.maximum(expectation, LEAST)
        values = self.paired.noisy(self.residuals, reference)
        return NoisyTables(values, reference, self.deviations, self.paired.starts)

    def _fitted(self, ways: Sequence[NoisyTables]) -> Floats:
        tables = self.paired.fit(best_posterior(ways), FIT_ROUNDS, FIT_TOLERANCE * self.model.total)
        apart = self.paired.apart(tables)
        return self._put(tables, {names: self.model.kept(names, apart[names]) for names in self.held})

    def _put(self, tables: Floats, own: Tables) -> Floats:
        """Write some tables into their positions, in place."""
        apart = self.paired.apart(tables) if own else {}
        for names, table in own.items():
            apart[names][:] = table
        return tables


def _larger(model: LowOrder, measured: Mapping[AttributeSet, NoisyResidual]) -> Tables:
    """Return tables of one degree, shrunk towards their expectations and fitted to the tables inside them."""
    expected = model.coarse_marginals(list(measured))
    noisy = [_noisy(residual, np.maximum(expected[names], LEAST)) for names, residual in measured.items()]
    every = NoisyTables.of(noisy)
    means = zip(measured, noisy, np.split(best_posterior([every]), every.starts[1:-1]), strict=True)
    shaped = {names: table.reshape(one.values.shape) for names, one, table in means}
    return model.fitted(shaped, FIT_ROUNDS, FIT_TOLERANCE * model.total)


def _noisy(residual: NoisyResidual, reference: Floats) -> NoisyTable:
    """Return the noisy table: its own residual on the margins of the expectation."""
    values = residual.values + reference - center(reference, range(reference.ndim))
    return NoisyTable(np.asarray(values), reference, residual.deviation)
