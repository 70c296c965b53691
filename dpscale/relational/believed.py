"""From noisy sums to expected links of every pair of profiles: what is expected, shrinkage, fit, in turn.

The ones are shrunk towards random links; pairs towards what the fitted ones imply, since a pair that departs no more
than its ones do is no news.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpscale.base.arrays import Floats
from dpscale.reconstruction.pairwise.chance import Chance
from dpscale.relational.expected import Expected
from dpscale.relational.fit import Fitted, Held, Links, many_to_many, one_to_many
from dpscale.relational.shares import Shares
from dpscale.relational.shrink import shrunk
from dpscale.relational.sides import Side
from dpscale.relational.sketch import sample

PRIOR_ONES, PRIOR_PAIRS = 0.08, 0.1


@dataclass(frozen=True, eq=False)
class Sums:
    """Noisy sums over links in natural units: of φ (k,), of ψ (l,), of φψᵀ (k, l); None where not measured."""

    u: Floats | None
    v: Floats | None
    both: Floats | None


def expected_links(u: Side, v: Side, shares: Shares, sums: Sums, links: float, known: bool = False) -> Floats:
    """(profiles of u, profiles of v): links of every pair, `links` together. `known`: as of `shares.Question`."""
    return believed(u, v, shares, sums, links, known).weights


def believed(u: Side, v: Side, shares: Shares, sums: Sums, links: float, known: bool = False) -> Fitted:
    """The fit to what is believed of the sums."""
    one, two = Expected.random(u, shares.u, links), Expected.random(v, shares.v, links)
    return _believed(Links(one.values, two.values, u.counts, v.counts, links), one, two, shares, sums, known)


def _believed(model: Links, one: Expected, two: Expected, shares: Shares, sums: Sums, known: bool) -> Fitted:
    """`model`: all profiles, or a few that stand for them."""
    first = _ones(sums.u, one, shares.precisions[0])
    second = None if known else _ones(sums.v, two, shares.precisions[1])
    alone = _fitted(model, first, second, None, known)
    if sums.both is None:
        return alone
    pairs = _pairs(sums.both, model.u.T @ alone.weights @ model.v, one, two, shares.precisions[2])
    return _fitted(model, first, second, pairs, known)


def sketched(u: Side, v: Side, shares: Shares, sums: Sums, links: float, known: bool, chance: Chance) -> Fitted:
    """The same with a sample of rows in the place of all profiles, weighted so that features have the same means."""
    one, two = Expected.random(u, shares.u, links), Expected.random(v, shares.v, links)
    (few_u, weights_u), (few_v, weights_v) = (sample(side, chance) for side in (one, two))
    model = Links(few_u, few_v, weights_u * u.rows, weights_v * v.rows, links)
    return _believed(model, one, two, shares, sums, known)


def _fitted(model: Links, first: Held | None, second: Held | None, pairs: Held | None, known: bool) -> Fitted:
    return one_to_many(model, first, pairs) if known else many_to_many(model, first, second, pairs)


def _ones(noisy: Floats | None, side: Expected, precision: float) -> Held | None:
    if noisy is None or precision <= 0:
        return None
    target, ridge = shrunk(noisy, side.sums, side.curvature, side.carried, precision, side.blocks, PRIOR_ONES)
    return Held(target, ridge, side.curvature)


def _pairs(noisy: Floats, expected: Floats, u: Expected, v: Expected, precision: float) -> Held:
    curvature, carried = (np.multiply.outer(*both) / u.links for both in
                          ((u.curvature, v.curvature), (u.carried, v.carried)))  # fmt: skip
    kinds = u.blocks[:, None] * (v.blocks.max() + 1) + v.blocks
    one, two, three, four = (table.ravel() for table in (noisy, expected, curvature, carried))
    target, ridge = shrunk(one, two, three, four, precision, kinds.ravel(), PRIOR_PAIRS)
    return Held(target.reshape(noisy.shape), ridge.reshape(noisy.shape), curvature)
