"""Relational synthesis as it was published (Alim et al.): rounds of choosing cross marginals, noise, and a fit.

Every round the exponential mechanism takes some of the cross marginals that were not taken before, by how far they are
from what is believed; they get noise, and links are fitted to all that were taken: least squares by projected gradient
over {0 ≤ b ≤ 1, Σ b = m}, b the chance of every pair of rows, or with every child on its own simplex. b stays equal in
a block of profiles, since gradient and projection do. Counts are measured, not shares: the number of links is private.

A neighbour moves `moved` links. Where they are replaced, each is taken from one entry and put to another: 2 · moved in
L1 and 2 · moved² in squared L2; where they come or go, half of that. Nothing is spent once all marginals are taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from dpscale.base.arrays import Floats, Integers
from dpscale.privacy.protection import REPLACE
from dpscale.privacy.streams import Chance
from dpscale.relational.features import Side
from dpscale.relational.rounding import Cross, sampled

STEPS, POWER, NEWTON = 100, 20, 100
Choose = Callable[[int, Floats, Sequence[int], int], Sequence[int]]
Measure = Callable[[int, Sequence[int]], Floats]


@dataclass(frozen=True)
class Rounds:
    """`rounds`, marginals `each`; `alpha`: the share of the budget that choosing has."""

    rounds: int = 15
    each: int = 3
    alpha: float = 0.2

    def costs(self, amount: Fraction) -> tuple[Fraction, Fraction]:
        """Squared μ of one choice and of one marginal's noise."""
        one = amount / (self.rounds * self.each)
        return one * Fraction(self.alpha), one * (1 - Fraction(self.alpha))


def moved_entries(relation: str) -> int:
    """Entries of a marginal that one link of a neighbour moves by 1: its L1 sensitivity, and its squared L2."""
    return 2 if relation == REPLACE else 1


@dataclass(frozen=True, eq=False)
class Fit:
    """`links`: how many; `known`: whether every row of v has one link, and these are all."""

    u: Side
    v: Side
    links: float
    known: bool

    @property
    def cap(self) -> Floats:
        return np.multiply.outer(self.u.counts, self.v.counts)

    def begin(self) -> Floats:
        """b of random links."""
        return np.full(self.cap.shape, self.links / self.cap.sum())

    def projected(self, b: Floats) -> Floats:
        if self.known:
            return projected_columns(b, self.u.counts, self.links / self.v.rows)
        return projected(b, self.cap, self.links)


def learnt(fit: Fit, rounds: Rounds, cross: Cross, choose: Choose, measure: Measure) -> Floats:
    """(p, q): b. `choose(round, what is believed of all, those that are left, how many)`, `measure(round, chosen)`: the
    noisy entries of some, 0 elsewhere."""
    b, taken, noisy = fit.begin(), list[int](), np.zeros(cross.size)
    for number in range(rounds.rounds):
        left = [k for k in range(len(cross.columns)) if k not in taken]
        if not left:
            break
        chosen = choose(number, cross.marginals(b * fit.cap), left, min(rounds.each, len(left)))
        noisy = noisy + measure(number, chosen)
        taken += chosen
        b = descended(fit, cross.some(taken), noisy, b)
    return b


def descended(fit: Fit, cross: Cross, noisy: Floats, b: Floats, steps: int = STEPS) -> Floats:
    """Projected gradient on ½ |Q b − noisy|² over pairs of rows, steps of 1/σ², σ the largest singular value of Q; the
    same as for shares, where both sides are over m."""
    cap, step = fit.cap, 1 / _largest(cross, fit.cap)
    for _ in range(steps):
        b = fit.projected(b - step * cross.back(cross.marginals(b * cap) - noisy))
    return b


def _largest(cross: Cross, cap: Floats) -> float:
    """σ² of Q, by powers; from the even vector, which is near to the first one, since all entries are ≥ 0."""
    vector, largest = np.full(cap.shape, 1 / np.sqrt(cap.sum())), 1.0
    for _ in range(POWER):
        vector = cross.back(cross.marginals(vector * cap))
        largest = float(np.sqrt((cap * vector**2).sum()))
        vector /= largest
    return largest


def projected(b: Floats, cap: Floats, links: float) -> Floats:
    """The nearest point of {0 ≤ b ≤ 1, Σ cap b = links}, as pairs of rows measure it: b + y, cut at 0 and 1.

    y by Newton's steps inside a bracket: Σ cap · cut(b + y) is piecewise linear, so the last one is exact.
    """
    low, high, y = -b.max(), 1 - b.min(), 0.0
    for _ in range(NEWTON):
        found = np.clip(b + y, 0, 1)
        left, slope = links - (cap * found).sum(), cap[(b + y > 0) & (b + y < 1)].sum()
        low, high = (y, high) if left > 0 else (low, y)
        step = y + left / slope if slope > 0 else (low + high) / 2
        step = step if low < step < high else (low + high) / 2
        if step == y or abs(left) <= 1e-14 * links:
            break
        y = step
    return np.clip(b + y, 0, 1)


def projected_columns(b: Floats, rows: Floats, total: float = 1.0) -> Floats:
    """The same for each column, {0 ≤ b, Σ rows b = total}: cells that end below 0 leave, until none does."""
    active = np.ones(b.shape, np.bool_)
    while True:
        held = np.where(active, rows[:, None], 0.0)
        y = (total - (held * b).sum(axis=0)) / held.sum(axis=0)
        stays = active & (b + y > 0)
        if (stays == active).all():
            return np.where(active, b + y, 0.0)
        active = stays


def drawn_pairs(b: Floats, u: Side, v: Side, links: int, chance: Chance) -> Integers:
    """(links, 2): rows, every pair with its chance b; block after block, so pairs that are equal are one run."""
    cap = np.multiply.outer(u.counts, v.counts).astype(np.int64).ravel()
    found, ends = sampled([(np.ascontiguousarray(b).ravel(), cap)], links, chance), np.cumsum(cap)
    block = np.searchsorted(ends, found, side="right")
    within, one, two = found - (ends - cap)[block], block // b.shape[1], block % b.shape[1]
    width = v.counts.astype(np.int64)[two]
    return np.stack([_rows(u, one, within // width), _rows(v, two, within % width)], axis=1)


def _rows(side: Side, profiles: Integers, numbers: Integers) -> Integers:
    """The rows of those numbers among their profiles' rows."""
    order, starts = np.argsort(side.of, kind="stable"), np.cumsum(side.counts).astype(np.int64)
    return np.asarray(order[(starts - side.counts.astype(np.int64))[profiles] + numbers])


def drawn_children(b: Floats, u: Side, v: Side, chance: Chance) -> Floats:
    """(p, q) whole numbers: for every row of v one profile of u, by itself."""
    found = np.zeros(b.shape)
    for j, count in enumerate(v.counts.astype(int)):
        ends = np.cumsum(b[:, j] * u.counts)
        own = np.searchsorted(ends, chance.uniforms(count) * ends[-1], side="right")
        found[:, j] = np.bincount(np.minimum(own, len(ends) - 1), minlength=len(ends))
    return found
