"""Links between rows: ends are dealt to the links of their profiles, and links that are there twice swap ends."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpscale.reconstruct.pairwise.chance import Chance
from dpscale.relational.sides import Side

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
ROUNDS = 200


def assigned(links: Array, u: Side, v: Side, u_degrees: list[Integers], v_degrees: list[Integers],
             chance: Chance) -> Integers:  # fmt: skip
    """(links, 2) rows; none twice but where a few pairs of rows have more links to hold than there are: those go."""
    cells = np.repeat(np.arange(links.size), links.ravel().astype(np.int64))
    first, second = cells // links.shape[1], cells % links.shape[1]
    one = _ends(u, u_degrees, chance)
    two = np.empty(len(cells), np.int64)
    two[np.argsort(second, kind="stable")] = _ends(v, v_degrees, chance)
    pairs = np.stack([one, two], axis=1)
    _apart(pairs, first, second, v.rows, chance)
    return pairs[np.sort(np.unique(pairs[:, 0] * v.rows + pairs[:, 1], return_index=True)[1])]


def _ends(side: Side, degrees: list[Integers], chance: Chance) -> Integers:
    """Rows as often as their degrees, profile by profile, in random order inside each."""
    rows = np.argsort(side.of, kind="stable")
    ends = np.repeat(rows, np.concatenate(degrees)) if len(rows) else rows
    order = chance.permutation(len(ends))
    return np.asarray(ends[order[np.argsort(side.of[ends[order]], kind="stable")]])


def _apart(pairs: Integers, first: Integers, second: Integers, rows: int, chance: Chance) -> None:
    """Swap ends of links that are there twice with links of the same profile on that side, in place."""
    groups = (first, second)
    orders = [np.argsort(own, kind="stable") for own in groups]
    starts = [
        np.searchsorted(own[order], np.arange(own.max(initial=0) + 2))
        for own, order in zip(groups, orders, strict=True)
    ]
    for number in range(ROUNDS):
        twice = _repeated(pairs[:, 0] * rows + pairs[:, 1])
        if not len(twice):
            return
        side = number % 2
        own, order, start = groups[side], orders[side], starts[side]
        begun, count = start[own[twice]], np.diff(start)[own[twice]]
        others = order[begun + (chance.uniforms(len(twice)) * count).astype(np.int64)]
        for i, j in zip(twice, others, strict=True):
            pairs[i, side], pairs[j, side] = pairs[j, side], pairs[i, side]


def _repeated(keys: Integers) -> Integers:
    order = np.argsort(keys, kind="stable")
    return order[1:][keys[order[1:]] == keys[order[:-1]]]
