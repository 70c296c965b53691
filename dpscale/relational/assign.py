"""Links between rows: ends are dealt to the links of their profiles, and links that are there twice swap ends.

Two links may swap what they have at an end where both have the same profile there: neither rows' degrees nor numbers of
links by profiles change. Where rows have few links of all that they could have, a swap at random parts most of those
that are there twice. What is left, in groups that are nearly full, swaps only where that leaves no more of them.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np

from dpscale.base.arrays import Floats, Integers
from dpscale.reconstruction.pairwise.chance import Chance
from dpscale.relational.sides import Side

ROUNDS, TRIES, FALLS = 200, 16, 0.7


def assigned(links: Floats, u: Side, v: Side, u_degrees: list[Integers], v_degrees: list[Integers],
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
    groups, before = (_Group.of(first), _Group.of(second)), math.inf
    twice, number = _repeated(pairs[:, 0] * rows + pairs[:, 1]), 0
    while 0 < len(twice) < FALLS * before:
        side, before = number % 2, len(twice)
        for i, j in zip(twice, groups[side].some(twice, chance.uniforms(len(twice))), strict=True):
            pairs[i, side], pairs[j, side] = pairs[j, side], pairs[i, side]
        twice, number = _repeated(pairs[:, 0] * rows + pairs[:, 1]), number + 1
    if len(twice):
        _carefully(pairs, groups, twice, rows, chance)


@dataclass(frozen=True, eq=False)
class _Group:
    """Links by their profile on one side: `order[start[k] : start[k + 1]]` those of profile k."""

    own: Integers
    order: Integers
    start: Integers

    @classmethod
    def of(cls, own: Integers) -> _Group:
        order = np.argsort(own, kind="stable")
        return cls(own, order, np.searchsorted(own[order], np.arange(own.max(initial=0) + 2)))

    def some(self, links: Integers, uniforms: Floats) -> Integers:
        """For each link one of its profile."""
        own = self.own[links]
        return np.asarray(self.order[self.start[own] + (uniforms * np.diff(self.start)[own]).astype(np.int64)])


def _carefully(pairs: Integers, groups: tuple[_Group, _Group], twice: Integers, rows: int, chance: Chance) -> None:
    """Swaps after which no more links are there twice than before: of some tries the first that leaves fewer."""
    there: Counter[int] = Counter()
    for number in range(ROUNDS):
        if not len(twice):
            twice, there = _repeated(pairs[:, 0] * rows + pairs[:, 1]), Counter()
            if not len(twice):
                return
        if not there:  # of all links that may swap with these
            near = np.isin(groups[0].own, groups[0].own[twice]) | np.isin(groups[1].own, groups[1].own[twice])
            there = Counter((pairs[near, 0] * rows + pairs[near, 1]).tolist())
        side = number % 2
        others = groups[side].some(np.repeat(twice, TRIES), chance.uniforms(len(twice) * TRIES)).reshape(-1, TRIES)
        for i, tried in zip(twice.tolist(), others.tolist(), strict=True):
            _swapped(pairs, i, tried, side, rows, there)
        twice = twice[[there[key] > 1 for key in (pairs[twice, 0] * rows + pairs[twice, 1]).tolist()]]


def _swapped(pairs: Integers, i: int, tried: list[int], side: int, rows: int, there: Counter[int]) -> None:
    (a, b), kept = pairs[i].tolist(), -1
    if there[a * rows + b] < 2:
        return
    for j in tried:
        c, d = pairs[j].tolist()
        if a == c or b == d:
            continue
        more = (there[a * rows + d] > 0) + (there[c * rows + b] > 0) - 1 - (there[c * rows + d] > 1)
        if more <= 0:
            kept = j
        if more < 0:
            break
    if kept >= 0:
        c, d = pairs[kept].tolist()
        there.subtract((a * rows + b, c * rows + d))
        there.update((a * rows + d, c * rows + b))
        pairs[i, side], pairs[kept, side] = pairs[kept, side], pairs[i, side]


def _repeated(keys: Integers) -> Integers:
    order = np.argsort(keys, kind="stable")
    return order[1:][keys[order[1:]] == keys[order[:-1]]]


def unlooped(pairs: Integers, profiles: Integers, chance: Chance) -> Integers:
    """Links within one table without those of a row to itself: each swaps its second end with another link's, if there
    is one of the same profile there. `profiles`: of every row. What no swap mends is left out."""
    number, first = len(profiles), pairs[:, 0]
    there = Counter((first * number + pairs[:, 1]).tolist())
    by_profile = _Group.of(profiles[pairs[:, 1]])
    for i in np.flatnonzero(first == pairs[:, 1]).tolist():
        near = by_profile.some(np.full(TRIES, i), chance.uniforms(TRIES))
        anyone = (chance.uniforms(TRIES) * len(pairs)).astype(np.int64)
        _parted(pairs, i, [*near.tolist(), *anyone.tolist()], number, there)
    return pairs[pairs[:, 0] != pairs[:, 1]]


def _parted(pairs: Integers, i: int, tried: list[int], number: int, there: Counter[int]) -> None:
    """Swap a row's link to itself with the first that makes none of the kind, and none that is there already."""
    row, end = pairs[i].tolist()
    for j in tried if row == end else ():
        a, b = pairs[j].tolist()
        made = (row * number + b, a * number + row)
        if row not in (a, b) and not there[made[0]] and not there[made[1]]:
            there.subtract((row * number + row, a * number + b))
            there.update(made)
            pairs[i, 1], pairs[j, 1] = b, row
            return
