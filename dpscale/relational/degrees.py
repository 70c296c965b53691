"""How many links each row has: noisy counts of rows by degree made a distribution, tilted to every profile's total."""

from __future__ import annotations

import numpy as np

from dpscale.base.arrays import Floats, Integers
from dpscale.reconstruction.pairwise.chance import Chance
from dpscale.relational.sides import Side

LEAST, THIN = 1e-4, 2.0
TILTS = np.linspace(-6, 6, 2001)


def distribution(at_most: Floats, rows: int) -> Floats:
    """(d + 1,): the share of rows of every degree 0 … d, from noisy numbers of rows with degree ≤ 0 … d − 1."""
    from scipy.optimize import isotonic_regression

    ends = np.clip(isotonic_regression(at_most).x, 0, rows)
    return np.asarray(np.diff(ends, prepend=0, append=rows) / max(rows, 1))


def by_chance(links: float, rows: int, most: int) -> Floats:
    """The same where nothing was measured: Poisson's, up to d."""
    from scipy.stats import poisson

    return np.asarray(poisson.pmf(np.arange(most + 1), links / max(rows, 1)))


def within_bounds(links: Floats, u: Side, v: Side, most_u: int | None, most_v: int | None, chance: Chance) -> Floats:
    """The links with those taken away that no rows of a profile have room for; None: no bound."""
    links = links.copy()
    for axis, side, most in ((1, u, most_u), (0, v, most_v)):
        if most is None:
            continue
        for profile in np.flatnonzero(links.sum(axis=axis) > most * side.counts):
            line = links[profile] if axis == 1 else links[:, profile]
            left = int(most * side.counts[profile])
            each = np.repeat(np.arange(len(line)), line.astype(np.int64))
            kept = each[chance.permutation(len(each))[:left]]
            line[:] = np.bincount(kept, minlength=len(line))
    return links


def tilted(shares: Floats) -> tuple[Floats, Floats]:
    """Distributions of degrees from few links to many, and their means."""
    values = np.arange(len(shares))
    with np.errstate(divide="ignore"):
        energy = np.log(_open(shares)) + TILTS[:, None] * values
    laws = np.exp(energy - energy.max(axis=1, keepdims=True))
    laws /= laws.sum(axis=1, keepdims=True)
    return laws, laws @ values


def cut(pairs: Integers, bounds: tuple[int | None, int | None], chance: Chance) -> Integers:
    """Links between rows without those beyond a row's bound on either side, which go at random."""
    for side, most in enumerate(bounds):
        if most is not None:
            order = chance.permutation(len(pairs))
            order = order[np.argsort(pairs[order, side], kind="stable")]
            own = pairs[order, side]
            rank = np.arange(len(own)) - np.searchsorted(own, own)
            pairs = pairs[np.sort(order[rank < most])]
    return pairs


def degrees(totals: Floats, side: Side, shares: Floats, chance: Chance) -> list[Integers]:
    """For every profile the degrees of its rows, in random order; they sum to the profile's total."""
    laws, means = tilted(shares)
    found = []
    for total, rows in zip(totals.astype(int), side.counts.astype(int), strict=True):
        law = laws[min(int(np.searchsorted(means, total / rows)), len(means) - 1)]
        found.append(summing(chance.systematic(law, rows).astype(np.int64), total, len(shares) - 1, chance))
    return found


def _open(shares: Floats) -> Floats:
    """No degree has no share, so that every total can be met; beyond the law's ends so thin that a tilt does not go
    there at once."""
    values, held = np.arange(len(shares)), np.flatnonzero(shares > LEAST)
    away = np.maximum(0, np.maximum(values - held.max(initial=0), held.min(initial=len(shares)) - values))
    return np.asarray(shares + LEAST * np.exp(-THIN * away))


def children(totals: Floats, side: Side, chance: Chance) -> list[Integers]:
    """The same where every row has one link, or none where its profile's total is less than its rows."""
    found = [np.arange(int(count)) < total for total, count in zip(totals, side.counts, strict=True)]
    return [one.astype(np.int64) if one.all() else one[chance.permutation(len(one))].astype(np.int64) for one in found]


def summing(drawn: Integers, total: int, most: int, chance: Chance) -> Integers:
    """Some of them one more or less, until they sum to the total."""
    total = min(total, most * len(drawn))
    while left := int(total - drawn.sum()):
        free = np.flatnonzero(drawn < most) if left > 0 else np.flatnonzero(drawn > 0)
        some = free[chance.permutation(len(free))[: abs(left)]]
        drawn[some] += 1 if left > 0 else -1
    return drawn
