"""Learning, once: a pairwise model of the measured pairs, what it implies of the others, and prototype rows.

Rows start independent and are swept with growing feedback. What the feedback leaves over is integrated into the pairs'
own logits, θ += κ β (T − C)/S (a proportional-integral controller), so that in the end the model itself gives the
measured counts and the feedback only takes out the noise of sampling. Feedback alone would bias C, and rows would
freeze where one value nearly determines another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dpscale.base.arrays import Floats
from dpscale.reconstruction.entropy import LowOrder
from dpscale.reconstruction.fitting_loops import fit_pair
from dpscale.reconstruction.pairwise.chance import Chance
from dpscale.reconstruction.pairwise.pairs import STEP, Wanted
from dpscale.reconstruction.pairwise.sweeping import Sweeper, independent_rows

Start = Callable[[Wanted, int, Chance], tuple[NDArray[np.int32], Floats]]
PROTOTYPES = 20_000
BETAS = (0.5,) * 2 + (1.0,) * 6 + (2.0,) * 6
KAPPA, KEPT, TOLD_BEFORE = 0.3, 6, 0.3
FIT_ROUNDS, FIT_TOLERANCE, LEAST = 20, 1e-9, 1e-12


@dataclass(frozen=True, eq=False)
class Learnt:
    """What a task draws from: wanted shares of all pairs, θ of the measured ones, prototype rows over groups."""

    wanted: Wanted
    theta: Floats
    rows: NDArray[np.int32]


def independent(wanted: Wanted, count: int, chance: Chance) -> tuple[NDArray[np.int32], Floats]:
    """Start from independent attributes and θ = 0."""
    return independent_rows(wanted.layout, wanted.ones, count, chance), np.zeros(wanted.layout.cells)


def learn(wanted: Wanted, release: str, count: int = PROTOTYPES, start: Start = independent) -> Learnt:
    """Sweep over `count` rows. Pairs that were not measured become what the model implies, and a little of chains.

    Parameters
    ----------
    start: gives the first rows and their θ.
    """
    layout, chance = wanted.layout, Chance(release, "learn")
    rows, theta = start(wanted, count, chance)
    targets = wanted.shares * count
    sweeper = Sweeper(layout, wanted.ones, rows, targets, theta, wanted.known, chance)
    measured, seen = layout.within(wanted.known), np.zeros((2, layout.cells))
    for number, beta in enumerate(BETAS):
        sweeper.sweep(beta)
        sweeper.theta += np.where(measured, KAPPA * beta * (targets - sweeper.counts) / sweeper.scale, 0)
        if (left := len(BETAS) - number) <= KEPT:
            seen[int(2 * left <= KEPT)] += sweeper.counts / (KEPT // 2 * count)
    shares = np.where(
        measured, wanted.shares, (1 - TOLD_BEFORE) * _believed(wanted, *seen) + TOLD_BEFORE * wanted.shares
    )
    return Learnt(_fitted(replace(wanted, shares=shares)), sweeper.theta, rows)


def _believed(wanted: Wanted, one: Floats, other: Floats) -> Floats:
    """The mean of two halves of the sweeps, its departure from independence believed as far as either bears the other
    out: Σ (s − p)(t − p)/p has no chance in it, Σ (m − p)²/p of the mean m has."""
    layout, mean = wanted.layout, (one + other) / 2
    for i, j in layout.pairs:
        alone = np.multiply.outer(layout.one(wanted.ones, i), layout.one(wanted.ones, j))
        halves, own = [layout.of(half, i, j) - alone for half in (one, other)], layout.of(mean, i, j)
        weight = 1 / np.maximum(alone, LEAST)
        borne = float((weight * halves[0] * halves[1]).sum()) / max(float((weight * (own - alone) ** 2).sum()), LEAST)
        own[:] = alone + round(min(max(borne, 0.0), 1.0) / STEP) * STEP * (own - alone)
    return mean


def effort(wanted: Wanted, count: int = PROTOTYPES) -> int:
    """About how many numbers learning adds: 10^9 take a second or so."""
    held = wanted.known.sum(axis=1) * wanted.layout.sizes
    return int(held.sum()) * count * len(BETAS)


def completed(model: LowOrder, learnt: Learnt) -> LowOrder:
    """The low-order tables with every pair that was not measured as the pairwise model has it."""
    layout, tables = learnt.wanted.layout, dict(model.tables)
    for i, j in layout.pairs:
        pair = {layout.names[i], layout.names[j]}
        if not learnt.wanted.known[i, j] and not any(pair < set(names) for names in model.measured):
            table = np.ascontiguousarray(layout.of(learnt.wanted.shares, i, j) * model.total)
            names = layout.names[i], layout.names[j]
            tables[names] = model.kept(names, table)
    return replace(model, tables=tables)


def _fitted(wanted: Wanted) -> Wanted:
    """The pairs that were not measured, fitted to the 1-ways: otherwise drawing would be held to what cannot be."""
    layout = wanted.layout
    for i, j in layout.pairs:
        if not wanted.known[i, j]:
            table = np.maximum(layout.of(wanted.shares, i, j), LEAST)
            rows, columns = (np.ascontiguousarray(layout.one(wanted.ones, k)) for k in (i, j))
            fit_pair(table, rows, columns, FIT_ROUNDS, FIT_TOLERANCE)
            layout.of(wanted.shares, i, j)[:] = table
    return wanted
