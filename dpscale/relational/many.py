"""Links where profiles are many: expected between groups of rows, drawn between rows by what each may have.

With b small, expit(e) is exp(e): links of a row with features φ are w·Σ_j exp(c·ψ_j + ψ_jθ_v), w = exp(φθ_u) and c
the centre of the row's group in place of φΘ; those between two groups are sums of such. Whole numbers are rounded
cell by cell: beside millions of links that is nothing, so no marginal is settled.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpscale.base.arrays import Floats, Integers
from dpscale.reconstruction.pairwise.chance import Chance
from dpscale.relational.believed import Sums, sketched
from dpscale.relational.expected import CHUNK, Expected
from dpscale.relational.features import STEP
from dpscale.relational.shares import Shares
from dpscale.relational.sides import Side
from dpscale.relational.sketch import directions, grouped

MOST_CELLS = 1 << 22


@dataclass(frozen=True, eq=False)
class Grouped:
    """`links`: (groups of u, groups of v), expected; `u`, `v`: the sides, their groups in the place of profiles;
    `u_ends`, `v_ends`: expected links of every row."""

    links: Floats
    u: Side
    v: Side
    u_ends: Floats
    v_ends: Floats


def are_many(u: Side, v: Side) -> bool:
    """Whether all pairs of profiles are too many to be held."""
    return len(u.profiles) * len(v.profiles) > MOST_CELLS


def grouped_links(u: Side, v: Side, shares: Shares, sums: Sums, links: float, known: bool, chance: Chance) -> Grouped:
    """Expected links by groups and by rows, `links` together."""
    fitted = sketched(u, v, shares, sums, links, known, chance)
    one, two = Expected.random(u, shares.u, links), Expected.random(v, shares.v, links)
    of_u, centres = grouped(directions(one, fitted.both), chance)
    of_v, _ = grouped(directions(two, fitted.both.T), chance)
    own_u, own_v = u.counts * _factors(one, fitted.u), v.counts * _factors(two, fitted.v)
    mass = np.asarray(np.bincount(of_u, own_u, len(centres)), dtype=np.float64)
    cells, ends_u, ends_v = _summed(two, centres, mass, own_v, of_v, known, v.counts)
    scale = links / cells.sum()
    by_profile = own_u * (ends_u / np.maximum(mass, 1e-300))[of_u]
    each_u, each_v = scale * by_profile / u.counts, scale * ends_v / v.counts
    return Grouped(scale * cells, _by_group(u, of_u), _by_group(v, of_v), each_u[u.of], each_v[v.of])


def _factors(side: Expected, theta: Floats) -> Floats:
    """exp(φθ) of every profile, up to a factor."""
    chunks = range(0, len(side.side.profiles), CHUNK)
    parts = [side.features.whole(side.side.profiles[at : at + CHUNK]) * STEP @ theta for at in chunks]
    energy = np.concatenate(parts)
    return np.asarray(np.exp(energy - energy.max()))


def _summed(two: Expected, centres: Floats, own_u: Floats, own_v: Floats, of_v: Integers, known: bool,
            children: Floats) -> tuple[Floats, Floats, Floats]:  # fmt: skip
    """Between groups of u and of v; of every group of u; of every profile of v. Up to a factor."""
    cells, ends = np.zeros((len(centres), int(of_v.max()) + 1)), np.empty(len(own_v))
    for start in range(0, len(own_v), CHUNK):
        some = slice(start, start + CHUNK)
        energy = centres @ (two.features.whole(two.side.profiles[some]) * STEP).T
        weights = own_u[:, None] * np.exp(energy - energy.max(axis=0) * known) * own_v[some]
        if known:  # every child has one parent
            weights *= children[some] / weights.sum(axis=0)
        ends[some] = weights.sum(axis=0)
        np.add.at(cells.T, of_v[some], weights.T)
    return cells, cells.sum(axis=1), ends


def _by_group(side: Side, groups: Integers) -> Side:
    of = groups[side.of]
    counts = np.bincount(of, minlength=int(groups.max()) + 1).astype(float)
    return Side(side.sizes, side.profiles[:0], counts, of)


def row_degrees(ends: Floats, shares: Floats, side: Side, totals: Floats, chance: Chance) -> list[Integers]:
    """Of every group the degrees of its rows: each from the distribution tilted to the row's own mean; they sum to the
    group's total. `shares`: of rows by degree."""
    from dpscale.relational.degrees import summing, tilted

    laws, means = tilted(shares)
    at = np.minimum(np.searchsorted(means, ends), len(means) - 1)
    ordered = np.argsort(at, kind="stable")
    drawn = np.empty(len(ends), np.int64)
    begins = np.searchsorted(at[ordered], np.arange(len(means) + 1))
    for law, first, last in zip(laws, begins, begins[1:], strict=False):
        if last > first:
            drawn[ordered[first:last]] = chance.systematic(law, int(last - first))
    rows = np.argsort(side.of, kind="stable")
    groups = np.split(drawn[rows], np.cumsum(side.counts.astype(np.int64))[:-1])
    return [summing(own.copy(), int(total), len(shares) - 1, chance) for own, total in zip(groups, totals, strict=True)]
