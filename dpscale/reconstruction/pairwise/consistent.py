"""Measured pairs that contradict each other: moved towards the pairs that rows can have together.

The released estimates of different pairs may not be the pairs of any table: each has noise of its own, and only
1-ways agree. Rows that are swept with strong feedback towards all of them have the nearest pairs that one table has, up
to sampling. A projection onto a convex set that contains the true pairs does not increase the error. With e the shares
of a pair, and s and t its shares in two halves of the rows, which are swept independently, the pair becomes

    e + α ((s + t)/2 − e),    α = Σ (s − e)(t − e)/p over Σ ((s + t)/2 − e)²/p

with p the product of its 1-ways. α is the share of the departure that both halves have: 0 if they depart from e by
sampling alone, as they do from pairs that agree.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from dpscale.base.numerics import Floats, Integers32, ParallelMap, named_task, serial_map
from dpscale.privacy.streams import PublicStream
from dpscale.reconstruction.entropy import LowOrder
from dpscale.reconstruction.fitting_loops import fit_pair
from dpscale.reconstruction.pairwise.learn import (
    FIT_ROUNDS,
    FIT_TOLERANCE,
    LEAST,
    STEP,
    PairwiseModel,
    Sweeper,
    population_ends,
)

BETAS = (16.0, 256.0)  # strength of the feedback in each sweep


def consistent_pairs(
    model: LowOrder, pairwise: PairwiseModel, release: str, each: ParallelMap = serial_map
) -> LowOrder:
    """Return the model with its measured pairs moved towards those of one table; larger tables are fitted to them.

    Parameters
    ----------
    model : LowOrder
    pairwise : PairwiseModel
        Model of all pairs, learnt from the measured ones, with its prototype rows.
    release : str
        Public name of the release, from which the random streams follow.
    each : callable
        Parallel map.
    """
    layout, targets = pairwise.targets.layout, pairwise.targets
    ends = population_ends(len(pairwise.rows))
    if len(ends) < 3:
        return model

    parts = [(number, rows) for number, rows in enumerate(np.split(pairwise.rows, ends[1:-1]))]
    alone = replace(pairwise, rows=pairwise.rows[:0])
    populations = list(each(partial(_sweep_population, alone, release), parts))
    halves = [np.mean(populations[start::2], axis=0) for start in (0, 1)]

    tables = dict(model.tables)
    for i, j in layout.pairs:
        if not targets.known[i, j]:
            continue
        shares, ones = layout.of(targets.shares, i, j), [layout.one(targets.ones, k) for k in (i, j)]
        # the departure that two halves of the populations agree on, which sampling noise alone would not show
        first, second = (layout.of(half, i, j) - shares for half in halves)
        agreed = _agreement(first, second, np.multiply.outer(*ones)) * (first + second) / 2
        moved = np.maximum(shares + agreed, LEAST)
        fit_pair(moved, *map(np.ascontiguousarray, ones), FIT_ROUNDS, FIT_TOLERANCE)
        names = layout.names[i], layout.names[j]
        tables[names] = model.impose_rules(names, moved * model.total)

    return _with_larger(replace(model, tables=tables))


def _agreement(one: Floats, other: Floats, alone: Floats) -> float:
    """Return the share of the mean of two departures that both have, between 0 and 1, in whole steps.

    α of the module for departures `one` and `other`, with 1/p of the independent table `alone` as weights.
    """
    weight = 1 / np.maximum(alone, LEAST)
    of_mean = float((weight * ((one + other) / 2) ** 2).sum())
    share = float((weight * one * other).sum()) / max(of_mean, LEAST)
    return round(min(max(share, 0.0), 1.0) / STEP) * STEP


def _with_larger(model: LowOrder) -> LowOrder:
    """Return the model with its tables of three and more attributes fitted to those inside them."""
    smaller = replace(model, tables={names: table for names, table in model.tables.items() if len(names) == 2})
    for degree in sorted({len(names) for names in model.tables if len(names) > 2}):
        larger = {names: table for names, table in model.tables.items() if len(names) == degree}
        fitted = smaller.fit_tables(larger, FIT_ROUNDS, FIT_TOLERANCE * model.total)
        smaller = replace(smaller, tables={**smaller.tables, **fitted})
    return smaller


@named_task("sweep-pairs")
def _sweep_population(pairwise: PairwiseModel, release: str, part: tuple[int, Integers32]) -> Floats:
    """Return the shares of swept rows in the cells of all pairs; `part` is the number of a population and its rows.

    Feedback acts on all pairs in use, with targets of the rows' number times the shares, and its strength β increases.
    """
    (number, rows), targets = part, pairwise.targets
    stream = PublicStream(release, f"consistent {number}" if number else "consistent")
    counts = targets.shares * len(rows)
    sweeper = Sweeper(
        layout=targets.layout,
        ones=targets.ones,
        rows=rows.copy(),
        target_counts=counts,
        theta=pairwise.theta.copy(),
        active=targets.layout.used,
        stream=stream,
    )
    for beta in BETAS:
        sweeper.sweep(beta)
    return np.asarray(sweeper.counts / len(rows))
