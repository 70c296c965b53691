"""Sets of three that were not measured, as the model of all pairs has them.

Maximum entropy of a set knows the pairs inside it; the model knows all others too, and what a fourth attribute does to
three. Its table of a set is counted in rows drawn from it, in two halves that share no row, each fitted to the set's
own pairs: s and t. With p the maximum entropy of these pairs, Σ (s − p)(t − p)/p has no chance in it, Σ (m − p)²/p of
the mean m has, and their ratio α is how much of the departure to believe: p + α (m − p). Rows that hardly ever move
(one value all but determines another) count as chance, since the halves do not share them.

Whether records depart as the model does, measured sets of three say: theirs from p, on the model's, is a slope w. Those
were measured because they depart, so of the others 2(w − s) − 1 is taken, between nothing and all, s the error of the
slope as its sets have it; all where fewer than three were measured. benchmarks/adaptive.py has it in its figures.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from dpscale.base.arrays import Floats, Integers32
from dpscale.base.names import AttributeSet
from dpscale.reconstruction.entropy import LowOrder
from dpscale.reconstruction.fit import Margin, proportional_fit
from dpscale.reconstruction.pairwise.chance import Chance
from dpscale.reconstruction.pairwise.learn import BETAS, Learnt
from dpscale.reconstruction.pairwise.loops import count_triple
from dpscale.reconstruction.pairwise.sweeping import Sweeper

SWEEPS, MOST_SETS, MOST_CELLS = 12, 1 << 12, 1 << 23
ROUNDS, TOLERANCE, LEAST_TRIPLE, FEW = 12, 1e-5, 1e-3, 3


def lacking(model: LowOrder, sets: Iterable[AttributeSet]) -> list[AttributeSet]:
    """The sets of three in wanted sets that have no table, in the model's order; none where they are too many."""
    place, found = {name: number for number, name in enumerate(model.ones)}, set[AttributeSet]()
    for one in sets:
        found.update(combinations(sorted(one, key=place.__getitem__), 3))
        if len(found) > MOST_SETS + len(model.tables):
            return []
    wanted = found - model.tables.keys()
    few = len(wanted) <= MOST_SETS and sum(model.cells(names) for names in wanted) <= MOST_CELLS
    return sorted(wanted, key=lambda names: [place[name] for name in names]) if few else []


def with_triples(model: LowOrder, learnt: Learnt, sets: Sequence[AttributeSet], release: str) -> LowOrder:
    """The model with a table of every one of `sets`; `release`: its public name, which the rows follow from."""
    if not sets:
        return model
    seen, by_pairs = _drawn(learnt, release), _of_pairs(model)
    measured = [names for names in model.tables if len(names) == 3][:MOST_SETS]
    told = [(_departing(by_pairs, seen, names), model.tables[names]) for names in measured]
    share = _followed(told)
    implied = {names: _departing(by_pairs, seen, names) for names in sets} if share else {}
    tables = {names: one.expected + share * one.by for names, one in implied.items()}
    return replace(model, tables={**model.tables, **tables})


@dataclass(frozen=True, eq=False)
class Departure:
    """A table by its pairs alone, and how the model departs from that, as far as it is not chance."""

    expected: Floats
    by: Floats


@dataclass(frozen=True, eq=False)
class Seen:
    """Drawn rows over groups in two halves, (d, n) each: a row of every attribute in `names`."""

    names: tuple[str, ...]
    halves: tuple[Integers32, Integers32]

    def shares(self, half: int, names: AttributeSet, shape: tuple[int, ...]) -> Floats:
        """Of all rows of a half, in every cell of a set."""
        first, second, third = (self.halves[half][self.names.index(name)] for name in names)
        counts = np.zeros(shape)
        count_triple(first, second, third, shape[1], shape[2], counts.reshape(-1))
        return counts / len(first)


def _drawn(learnt: Learnt, release: str) -> Seen:
    """The prototypes, swept on with the model's own weights."""
    wanted, rows = learnt.wanted, learnt.rows.copy()
    sweeper = Sweeper(wanted.layout, wanted.ones, rows, wanted.shares * len(rows), learnt.theta, wanted.known,
                      Chance(release, "triples"))  # fmt: skip
    seen = []
    for _ in range(SWEEPS):
        sweeper.sweep(BETAS[-1])
        seen.append(rows.T.copy())
    half = len(rows) // 2
    first, second = (
        np.concatenate([one[:, part] for one in seen], axis=1) for part in (slice(half), slice(half, None))
    )
    return Seen(wanted.layout.names, (first, second))


def _of_pairs(model: LowOrder) -> LowOrder:
    return replace(model, tables={names: table for names, table in model.tables.items() if len(names) == 2})


def _departing(by_pairs: LowOrder, seen: Seen, names: AttributeSet) -> Departure:
    """α ((s + t)/2 − p) of a set."""
    expected = by_pairs.coarse_marginal(names)
    margins = [((i, j), expected.sum(axis=3 - i - j)) for i, j in ((0, 1), (0, 2), (1, 2))]
    one, other = (_fitted(seen.shares(half, names, expected.shape), expected, margins) - expected for half in (0, 1))
    mean, weight = (one + other) / 2, 1 / np.maximum(expected, 1)
    believed = float((weight * one * other).sum()) / max(float((weight * mean**2).sum()), LEAST_TRIPLE)
    return Departure(expected, min(max(believed, 0.0), 1.0) * mean)


def _fitted(shares: Floats, expected: Floats, margins: Sequence[Margin]) -> Floats:
    """Fitted to the pairs; a cell that no row was seen in has a little of what is expected of it."""
    total = float(expected.sum())
    return proportional_fit(np.maximum(shares * total, LEAST_TRIPLE * expected), margins, ROUNDS, TOLERANCE * total)


def _followed(told: Sequence[tuple[Departure, Floats]]) -> float:
    """2(w − s) − 1, w the slope of what was measured on what the model says, both beside the pairs, s its error."""
    if len(told) < FEW:
        return 1.0
    along = np.array([((table - one.expected) * one.by).sum() for one, table in told])
    squares = np.array([(one.by**2).sum() for one, _ in told])
    whole = max(float(squares.sum()), LEAST_TRIPLE)
    slope = float(along.sum()) / whole
    error = math.sqrt(((along - slope * squares) ** 2).sum()) / whole
    return min(max(2 * (slope - error) - 1, 0.0), 1.0)
