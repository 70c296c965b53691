"""An unbiased sampler with an exact total: entry i is taken with probability x_i, m of them where Σ x = m.

Alim et al., Algorithm 3. Merge: neighbours form groups of sum 1 at most. Complement: of the L groups L − m are left
out, group g with probability 1 − its sum: the same question over fewer entries. Sample: of a group that is not left out
one entry, each with a chance of its value. Two groups in a row are more than 1 together, so there are at most 2m + 1 of
them, and two of their complements are less than 1: each round has fewer.

A group's entry is chosen while it is filled, so nothing is held of entries: any number of them goes by in parts. Equal
entries in a row are counted, not gone through: what a block of profiles has costs by its links, not by pairs of rows.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from dpscale.base.arrays import Floats, Integers
from dpscale.reconstruction.pairwise.chance import Chance
from dpscale.relational import loops

OFF = 1e-6


def sampled(parts: Iterable[tuple[Floats, Integers]], links: int, chance: Chance) -> Integers:
    """(links,) numbers of entries, ascending. `parts`: values in [0, 1], and how many entries in a row have each; all
    together `links`, but for rounding; ValueError where they are not."""
    state = chance.state()
    sums, held = _merged(parts, state)
    if abs(sums.sum() - links) > OFF * max(links, 1):
        raise ValueError(f"entries of sum {sums.sum()}: it takes {links}")
    return np.asarray(held[_chosen(sums, links, state)])


def _chosen(sums: Floats, count: int, state: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """(groups,): `count` of them, each with a chance of its sum."""
    if count <= 0 or count >= len(sums):
        return np.full(len(sums), count > 0)
    left_out = np.clip(1 - sums, 0, 1)
    merged, held = _merged([(left_out, np.ones(len(sums), np.int64))], state)
    chosen = np.ones(len(sums), np.bool_)
    chosen[held[_chosen(merged, len(sums) - count, state)]] = False
    return chosen


def _merged(parts: Iterable[tuple[Floats, Integers]], state: NDArray[np.uint64]) -> tuple[Floats, Integers]:
    """Of every group its sum and the entry it would give."""
    sums, held, begun = [np.zeros(1)], [np.full(1, -1, np.int64)], 0
    for values, counts in parts:
        if len(values) and not (values.min() >= 0 and values.max() <= 1):
            raise ValueError("entries outside [0, 1]")
        most = int(2 * (values @ counts + 1)) + 2
        own, entry = np.zeros(most), np.full(most, -1, np.int64)
        own[0], entry[0] = sums[-1][-1], held[-1][-1]
        last = loops.merge(values, counts, begun, own, entry, state)
        sums[-1], held[-1] = sums[-1][:-1], held[-1][:-1]
        sums.append(own[: last + 1].copy())
        held.append(entry[: last + 1].copy())
        begun += int(counts.sum())
    return np.concatenate(sums), np.concatenate(held)
