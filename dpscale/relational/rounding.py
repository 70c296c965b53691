"""Whole numbers of links for every pair of profiles, settled so that the 3-way cross marginals stay what they were.

Systematic rounding makes every cell its floor or one more, with the right total. Then single links move between cells,
each still at its floor or one above, where that brings the squared departures of all marginals over two attributes of
one side and one of the other down: roundings depend on each other so that marginals do not pay for them.
"""

from __future__ import annotations

import numpy as np

from dpscale.base.arrays import Floats
from dpscale.reconstruction.pairwise.chance import Chance
from dpscale.relational import loops
from dpscale.relational.cross import Cross
from dpscale.relational.sides import Side

PASSES, PROPOSALS, MOST, TINY = 3, 8, 400_000, 1e-12


def settled(wanted: Floats, u: Side, v: Side, caps: Floats, chance: Chance) -> Floats:
    """(p, q) whole numbers ≤ caps whose sum is that of `wanted`, rounded."""
    wanted = np.minimum(wanted, caps)
    links, floors = rounded(wanted, caps, chance), np.floor(wanted).ravel()
    cross = Cross.of(u, v)
    first, second, off = cross.first, cross.second, cross.marginals(links - wanted)
    flat, shares = links.ravel(), np.cumsum(wanted.ravel() - floors)
    for _ in range(PASSES if shares[-1] > 0 else 0):
        count = int(min(PROPOSALS * min(flat.sum(), shares[-1]), MOST))
        above = np.flatnonzero(flat > floors)
        if not len(above) or not count:
            break
        sources = above[(chance.uniforms(count) * len(above)).astype(np.int64)]
        ends = np.searchsorted(shares, chance.uniforms(count) * shares[-1]).clip(0, flat.size - 1).astype(np.int64)
        loops.settle(flat, floors, caps.ravel(), first, second, off, sources, ends)
    return flat.reshape(wanted.shape)


def settled_children(wanted: Floats, u: Side, v: Side, most: int | None, chance: Chance) -> Floats:
    """(p, q) whole numbers that give every child one parent: each profile of v as often as it has rows, or less often
    where parents have no room for more.

    Columns are rounded by themselves, and links move within their column. `most`: children of a row of u.
    """
    whole = rounded_columns(wanted, v.counts, most, u.counts, chance)
    return _within_columns(whole, wanted * (v.counts / np.maximum(wanted.sum(axis=0), 1e-300)), u, v, most, chance)


def rounded_columns(wanted: Floats, children: Floats, most: int | None, parents: Floats, chance: Chance) -> Floats:
    """(p, q) whole numbers, column by column as often as there are `children`; `most`: for each of `parents` rows."""
    whole = np.stack([rounded(column * (rows / max(column.sum(), 1e-300)), np.full(len(column), np.inf), chance)
                      for column, rows in zip(wanted.T, children, strict=True)], axis=1)  # fmt: skip
    if most is not None:
        moved_over(whole, most * parents, wanted, chance)
    return whole


def moved_over(whole: Floats, room: Floats, wanted: Floats, chance: Chance) -> None:
    """Children beyond the room of their parents' profile go to profiles that have room, by what is wanted, and have no
    parent where none has; in place."""
    left = room - whole.sum(axis=1)
    for i in np.flatnonzero(left < 0):
        each = np.repeat(np.arange(whole.shape[1]), whole[i].astype(np.int64))
        moving = each[chance.permutation(len(each))[: int(-left[i])]]
        for j, uniform in zip(moving, chance.uniforms(len(moving)), strict=True):
            whole[i, j] -= 1
            if len(free := np.flatnonzero(left > 0)):
                ends = np.cumsum(wanted[free, j] + 1e-12)
                at = free[min(int(np.searchsorted(ends, uniform * ends[-1], side="right")), len(free) - 1)]
                whole[at, j] += 1
                left[at] -= 1


def _within_columns(whole: Floats, wanted: Floats, u: Side, v: Side, most: int | None, chance: Chance) -> Floats:
    cross, width = Cross.of(u, v), whole.shape[1]
    first, second, off = cross.first, cross.second, cross.marginals(whole - wanted)
    flat, floors = np.ascontiguousarray(whole).ravel(), np.floor(wanted).ravel()
    fractions = np.cumsum(wanted - np.floor(wanted) + TINY, axis=0)
    starts = (fractions / fractions[-1] + np.arange(width)).T.ravel()
    for _ in range(PASSES):
        above = np.flatnonzero(flat > floors)
        count = int(min(PROPOSALS * flat.sum(), MOST))
        if not len(above) or not count:
            break
        sources = above[(chance.uniforms(count) * len(above)).astype(np.int64)]
        columns = sources % width
        places = np.searchsorted(starts, columns + chance.uniforms(count), side="right") - columns * len(whole)
        ends = places.clip(0, len(whole) - 1) * width + columns
        rooms = np.full(len(whole), np.inf) if most is None else most * u.counts
        loops.settle_columns(flat, floors, rooms, first, second, off, sources, ends)
    return flat.reshape(whole.shape)


def rounded(wanted: Floats, caps: Floats, chance: Chance) -> Floats:
    """Every cell its floor or one more with a chance of its fraction, the sum that of all, by systematic sampling."""
    floors = np.floor(wanted)
    fractions = (wanted - floors).ravel()
    order = chance.permutation(fractions.size)
    ends = np.floor(np.cumsum(fractions[order]) + chance.uniforms(1)[0])
    more = np.zeros(fractions.size)
    more[order] = np.diff(ends, prepend=0)
    return np.minimum(floors + more.reshape(wanted.shape), caps)
