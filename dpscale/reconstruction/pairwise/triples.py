"""Sets of three that were not measured: what their pairs imply, and the departure of the pairwise model from it.

The prototype rows are swept further, and counted in the cells of every set in two halves s and t. With p the table that
the pairs alone imply, the departure is α ((s + t)/2 − p), where α = Σ (s − p)(t − p)/p over Σ ((s + t)/2 − p)²/p is the
share of it that both halves have. Measured sets of three tell how much of the model's departures is real.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations

import numpy as np

from dpscale.base.numerics import AttributeSet, Floats, Integers32, ParallelMap, named_task, serial_map
from dpscale.privacy.streams import PublicStream
from dpscale.reconstruction.entropy import LowOrder, Margin, proportional_fit
from dpscale.reconstruction.pairwise.learn import BETAS, PairwiseModel, Sweeper, population_ends
from dpscale.reconstruction.pairwise.loops import count_triple

# further sweeps; sets of three counted at most, and their cells together
SWEEPS, MOST_SETS, MOST_CELLS = 12, 1 << 14, 1 << 23
# of a fit to pairs: rounds; L1 distance in shares of the total; least share of a cell's expectation, and least divisor;
# fewest measured sets that tell how much of the departures is real
ROUNDS, TOLERANCE, LEAST_TRIPLE, FEW = 12, 1e-5, 1e-3, 3


def missing_triples(model: LowOrder, sets: Iterable[AttributeSet]) -> list[AttributeSet]:
    """Return the triples inside wanted sets that have no table, in the model's order; none if they are too many."""
    place, triples = {name: number for number, name in enumerate(model.ones)}, set[AttributeSet]()
    for wanted_set in sets:
        triples.update(combinations(sorted(wanted_set, key=place.__getitem__), 3))
        if len(triples) > MOST_SETS + len(model.tables):
            return []

    missing = triples - model.tables.keys()
    few = len(missing) <= MOST_SETS and sum(model.cells(names) for names in missing) <= MOST_CELLS
    return sorted(missing, key=lambda names: [place[name] for name in names]) if few else []


def add_triples(
    model: LowOrder, pairwise: PairwiseModel, sets: Sequence[AttributeSet], release: str, each: ParallelMap = serial_map
) -> LowOrder:
    """Return the model with a table for each of `sets`; the rows follow from `release`, its public name.

    `by` is the departure of the pairwise model from the table of the pairs alone (`expected`); the share of it that is
    taken follows from measured triples.
    """
    if not sets:
        return model

    by_pairs = replace(model, tables={names: table for names, table in model.tables.items() if len(names) == 2})
    measured = [names for names in model.tables if len(names) == 3][:MOST_SETS]
    sampled = sample_triples(pairwise, [*measured, *sets], release, each)
    measured_departures = [(_departure(by_pairs, sampled, names), model.tables[names]) for names in measured]
    share = _departure_share(measured_departures)
    implied = {names: _departure(by_pairs, sampled, names) for names in sets} if share else {}
    tables = {names: departure.expected + share * departure.by for names, departure in implied.items()}

    return replace(model, tables={**model.tables, **tables})


@dataclass(frozen=True, eq=False)
class Departure:
    """Table implied by its pairs alone, and the departure of the pairwise model from it, without sampling noise."""

    expected: Floats
    by: Floats


HalfShares = Mapping[AttributeSet, tuple[Floats, Floats]]


def sample_triples(
    pairwise: PairwiseModel, sets: Sequence[AttributeSet], release: str, each: ParallelMap = serial_map
) -> HalfShares:
    """Return the shares of the rows of the model in the cells of sets of three, for two halves of the rows.

    The rows of the model are redrawn SWEEPS times with the weights of the model, each population of rows in a task of
    its own, and counted in the cells of the sets. The two halves estimate the sampling error.
    """
    ends = population_ends(len(pairwise.rows))
    chunks = [(number, rows) for number, rows in enumerate(np.split(pairwise.rows, ends[1:-1]))]
    alone = replace(pairwise, rows=pairwise.rows[:0])
    counts = np.sum(list(each(partial(_sample_population, alone, list(sets), release), chunks)), axis=0)
    sizes = dict(zip(pairwise.targets.layout.names, pairwise.targets.layout.sizes.tolist(), strict=True))
    shapes = [tuple(sizes[name] for name in names) for names in sets]
    ends = np.cumsum([0, *(math.prod(shape) for shape in shapes)])
    halves = counts / np.array([[SWEEPS * number] for number in _halves(len(pairwise.rows))])

    return {
        names: (halves[0, first:end].reshape(shape), halves[1, first:end].reshape(shape))
        for names, shape, first, end in zip(sets, shapes, ends, ends[1:], strict=False)
    }


@named_task("sample-triples")
def _sample_population(
    pairwise: PairwiseModel, sets: Sequence[AttributeSet], release: str, part: tuple[int, Integers32]
) -> Floats:
    """Return the counts of the first and of the second half of swept rows in the cells of the sets, shape (2, cells).

    `part` is the number of the population and its first rows.

    The rows are swept SWEEPS times and counted after each sweep, so a count is a sum over SWEEPS states. The halves are
    fixed halves of the rows, whose counts are nearly independent: what both have in common is no noise of sampling.
    """
    (number, rows), targets, layout = part, pairwise.targets, pairwise.targets.layout
    # the stream of the first population has no number
    stream = PublicStream(release, f"triples {number}" if number else "triples")
    sweeper = Sweeper(
        layout=layout,
        ones=targets.ones,
        rows=rows.copy(),
        target_counts=targets.shares * len(rows),
        theta=pairwise.theta,
        active=targets.known,
        stream=stream,
    )
    places = {name: place for place, name in enumerate(layout.names)}
    indices = [tuple(places[name] for name in names) for names in sets]
    starts = np.cumsum([0, *(math.prod(layout.sizes[list(index)].tolist()) for index in indices)])

    counts = np.zeros((2, starts[-1]))
    for _ in range(SWEEPS):
        sweeper.sweep(BETAS[-1])
        # a column at a time, because each set reads three of them
        columns = np.ascontiguousarray(sweeper.rows.T)
        for half, place in enumerate((slice(len(rows) // 2), slice(len(rows) // 2, None))):
            for index, first, end in zip(indices, starts, starts[1:], strict=False):
                first_column, second_column, third_column = (columns[i, place] for i in index)
                count_triple(
                    first_column,
                    second_column,
                    third_column,
                    layout.sizes[index[1]],
                    layout.sizes[index[2]],
                    counts[half, first:end],
                )

    return counts


def _halves(count: int) -> tuple[int, int]:
    """Return the numbers of rows in the first halves of all populations, and in the second ones."""
    first = sum(int(rows) // 2 for rows in np.diff(population_ends(count)))
    return first, count - first


def _departure(by_pairs: LowOrder, sampled: HalfShares, names: AttributeSet) -> Departure:
    """Return α ((s + t)/2 − p) of a set.

    Both halves are fitted to the pairs of `expected` first, so that they differ from it in the triple's own part alone.
    """
    expected = by_pairs.coarse_marginal(names)
    margins = [((i, j), expected.sum(axis=3 - i - j)) for i, j in ((0, 1), (0, 2), (1, 2))]
    first, second = (_fit_triples(half, expected, margins) - expected for half in sampled[names])
    mean, weight = (first + second) / 2, 1 / np.maximum(expected, 1)
    agreement = float((weight * first * second).sum()) / max(float((weight * mean**2).sum()), LEAST_TRIPLE)
    return Departure(expected, min(max(agreement, 0.0), 1.0) * mean)


def _fit_triples(shares: Floats, expected: Floats, margins: Sequence[Margin]) -> Floats:
    """Fit shares to the pairs; a cell without rows has a small part of its expectation."""
    total = float(expected.sum())
    return proportional_fit(np.maximum(shares * total, LEAST_TRIPLE * expected), margins, ROUNDS, TOLERANCE * total)


def _departure_share(measured_departures: Sequence[tuple[Departure, Floats]]) -> float:
    """Return which share of the model's departures from the pairs to take, between 0 and 1.

    It is 2(w − s) − 1, with w the slope of measured departures on those of the model, and s its standard error.

    w = Σ measured · model / Σ model² is the slope of a regression through 0, and s the root of its summed squared
    residuals (per set) over Σ model².
    """
    if len(measured_departures) < FEW:
        return 1.0

    along = np.array([((table - departure.expected) * departure.by).sum() for departure, table in measured_departures])
    squares = np.array([(departure.by**2).sum() for departure, _ in measured_departures])
    total_square = max(float(squares.sum()), LEAST_TRIPLE)
    slope = float(along.sum()) / total_square
    error = math.sqrt(((along - slope * squares) ** 2).sum()) / total_square

    return min(max(2 * (slope - error) - 1, 0.0), 1.0)
