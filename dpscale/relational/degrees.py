"""How many links each row has: noisy counts of rows by degree made a distribution, tilted to every profile's total."""

from __future__ import annotations

import numpy as np

from dpscale.base.arrays import Floats, Integers
from dpscale.privacy.streams import Chance
from dpscale.relational.features import Side

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


def buckets(bound: int) -> Integers:
    """The least number of links of every bucket, ascending: 0 and the powers of two that are at most the bound."""
    return np.array([0, *(1 << k for k in range(bound.bit_length()))], np.int64)


def bucket(degrees: Integers, bound: int) -> Integers:
    """The bucket of every row."""
    return np.searchsorted(buckets(bound), degrees, side="right").astype(np.int64) - 1


GRID = np.array([0, *(1 << k for k in range(21))], np.int64)
LEAST_DEGREE, LOW, BLOCK, SURE = 1e-9, 0.5, 64, 3.0


def thresholds(bound: int | None) -> Integers:
    """Up to which numbers of links rows are counted: all below a bound, or the grid."""
    return GRID if bound is None else np.arange(bound, dtype=np.int64)


def sample_uniform_degrees(each: Floats, side: Side, totals: Floats, chance: Chance) -> list[Integers]:
    """Links thrown at the rows of each group, as likely at each as is expected of it."""
    order = np.argsort(side.of, kind="stable")
    weights = np.maximum(each[order], LEAST_DEGREE)
    ends = np.cumsum(weights)
    bounds = np.concatenate([[0], np.cumsum(side.counts.astype(np.int64))])
    begins = np.concatenate([[0.0], ends])[bounds[:-1]]
    widths = np.concatenate([[0.0], ends])[bounds[1:]] - begins
    groups = np.repeat(np.arange(len(totals)), totals.astype(np.int64))
    at = np.searchsorted(ends, begins[groups] + chance.uniforms(len(groups)) * widths[groups], side="right")
    drawn = np.bincount(np.clip(at, bounds[groups], bounds[groups + 1] - 1), minlength=len(each))
    return np.split(drawn.astype(np.int64), bounds[1:-1])


def sample_degrees(
    at_most: Floats, sigma: float, each: Floats, side: Side, totals: Floats, chance: Chance
) -> list[Integers]:
    """As spread out as the noisy counts of rows up to the grid's degrees say; `sigma`: of their noise."""
    known, wanted = (np.log(np.maximum(one, LOW)) for one in (each, _sorted(at_most, sigma, side.rows)))
    free = max(float(wanted.var() - known.var()), 0.0) / max(float(wanted.var()), LEAST_DEGREE)
    factors = np.exp(free**0.5 * (wanted - wanted.max()))
    place = (_even(np.lexsort((each, side.of)), chance) * side.rows).astype(np.int64)
    return _to_totals(each * (factors / factors.mean())[place], side, totals, chance)


def _even(order: Integers, chance: Chance) -> Floats:
    """(n,) points in (0, 1), of every BLOCK rows in a row of the order one in each BLOCK-th."""
    place = np.arange(len(order))
    shuffled = np.argsort(place // BLOCK + chance.uniforms(len(order)), kind="stable")
    points = np.empty(len(order))
    points[order[shuffled]] = (place % BLOCK + chance.uniforms(len(order))) / BLOCK
    return points


def _to_totals(own: Floats, side: Side, totals: Floats, chance: Chance) -> list[Integers]:
    rows = np.argsort(side.of, kind="stable")
    groups = np.split(own[rows], np.cumsum(side.counts.astype(np.int64))[:-1])
    found = []
    for values, total in zip(groups, totals, strict=True):
        scaled = (values + LEAST_DEGREE) * (total / max(values.sum() + LEAST_DEGREE * len(values), LEAST_DEGREE))
        ends = np.floor(np.cumsum(scaled) + chance.uniforms(1)[0])
        found.append(summing(np.diff(ends, prepend=0).astype(np.int64), int(total), int(totals.sum()) + 1, chance))
    return found


def _sorted(at_most: Floats, sigma: float, rows: int) -> Floats:
    """(rows,) degrees, ascending: even in the logarithm between two of the grid's. Where noise does not tell the counts
    from all rows, they are all: else a few rows would have a million links."""
    from scipy.optimize import isotonic_regression

    counts = np.clip(isotonic_regression(at_most).x, 0, rows)
    ends = np.append(np.where(counts >= rows - SURE * sigma, rows, counts), rows) / max(rows, 1)
    points = (np.arange(rows) + 0.5) / rows
    place = np.minimum(np.searchsorted(ends, points), len(GRID) - 1)
    before = np.where(place > 0, ends[np.maximum(place - 1, 0)], 0.0)
    inside = (points - before) / np.maximum(ends[place] - before, LEAST_DEGREE)
    low, high = np.maximum(GRID[np.maximum(place - 1, 0)], 1), np.maximum(GRID[place], 1)
    return np.where(place == 0, 0.0, np.maximum(low * (high / low) ** np.clip(inside, 0, 1), 1.0))
