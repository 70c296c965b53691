"""Order of the children of every parent: which child is at which position, for given dates.

The children of a date are placed at random at first. They are exchanged, two at a time, while the tables of consecutive
children, those of first children and the cross marginals with the parents come nearer to their targets. Exchanges keep
the children as they are, so that all marginals of their table remain.
"""

from __future__ import annotations

import numpy as np

from dpscale.base.numerics import Floats, Integers
from dpscale.privacy.streams import PublicStream
from dpscale.relational import history_loops
from dpscale.relational.features import Side
from dpscale.relational.history import HistoryTables, NoisyHistory, estimate_steps, split_tables, step_counts
from dpscale.relational.history_dates import ParentDates, Positions, conditional, sample_dates, state_of
from dpscale.relational.rounding import Cross

CROSS_WEIGHT = 0.3  # of cross marginals, as in exchanges of siblings
EXCHANGES, MOST_EXCHANGES = 100, 20_000_000  # proposals for each child, and at most
ROUNDS, FEW = 5, 1e-3  # rounds of proposals, and the accepted part of a round below which it is the last


def order_children(
    links: Integers, sides: tuple[Side, Side], noisy: NoisyHistory, stream: PublicStream, associate: bool = True
) -> Integers:
    """Return links with the same numbers of children of each parent, grouped by parent and in order, shape (m, 2).

    Parameters
    ----------
    links : ndarray, shape (m, 2)
        Rows of the parent and of the child; every child has one parent.
    sides : tuple of Side
    noisy : NoisyHistory
    stream : PublicStream
    associate : bool
        Whether exchanges keep the cross marginals of the links, which may be many.
    """
    u, v = sides
    places, tables = Positions(np.sort(links[:, 0])), noisy.tables
    children = np.sort(links[:, 1])
    rows = np.ascontiguousarray(v.profiles[v.of[children]], dtype=np.int64)
    step, sigma = noisy.date_steps
    own = v.profiles[v.of[links[:, 1]], tables.order]
    ends = ParentDates.of(u, links[:, 0], own, tables.sizes[tables.order])
    dates = sample_dates(
        places, rows[:, tables.order], ends, tables, (step, noisy.parents), (sigma, noisy.sigmas[1]), stream
    )
    chosen = _by_date(dates, rows[:, tables.order], stream)
    cross = Cross.of(u, v) if associate else _no_marginals(u, v)
    now = u.of[places.parents], v.of[children[chosen]]
    cross_off = (_marginals(cross, *now) - _marginals(cross, u.of[links[:, 0]], v.of[links[:, 1]])).astype(float)
    _exchange(chosen, places, dates, rows, noisy, (u.of, v.of[children], cross, cross_off), stream)

    return np.stack([places.parents, children[chosen]], axis=1)


def _by_date(dates: Integers, own: Integers, stream: PublicStream) -> Integers:
    """Return a random child of its date for every position."""
    chosen = np.empty(len(dates), np.int64)
    chosen[np.argsort(dates, kind="stable")] = np.lexsort((stream.permutation(len(own)), own))
    return chosen


def _no_marginals(u: Side, v: Side) -> Cross:
    """Return a layout without any marginal."""
    first, second = (np.empty((len(side.profiles), 0), np.int64) for side in (u, v))
    return Cross((), first, second, np.zeros(1, np.int64))


def _marginals(cross: Cross, one: Integers, two: Integers) -> Integers:
    """Return the cross marginals of links between profiles."""
    found = np.zeros(cross.size, np.int64)
    for k in range(cross.first.shape[1]):
        np.add.at(found, cross.first[one, k] + cross.second[two, k], 1)
    return found


def _exchange(chosen: Integers, places: Positions, dates: Integers, rows: Integers, noisy: NoisyHistory,
              ends: tuple[Integers, Integers, Cross, Floats], stream: PublicStream) -> None:  # fmt: skip
    """Exchange children of equal dates, in place, until the tables are near their targets."""
    tables, (of_u, of_v, cross, cross_off) = noisy.tables, ends
    now = step_counts(rows[chosen], places.parents, tables).astype(float)
    target = estimate_steps(noisy.steps, now, tables, noisy.sigmas[0])
    firsts, first_target = _first_children(chosen, places, rows, noisy)
    weights = np.repeat(tables.weights, np.diff(tables.starts))
    off = np.concatenate([now / weights - target, firsts - first_target])
    starts = np.concatenate([tables.starts, tables.starts[-1] + np.cumsum(tables.sizes)[:-1]])
    where = np.empty(len(chosen), np.int64)
    where[chosen] = np.arange(len(chosen))
    ranked, begins = _by_cells(rows, tables)
    offsets, cumulated = _laws(target, first_target, tables)
    number = min(EXCHANGES * len(chosen), MOST_EXCHANGES) // ROUNDS

    for _ in range(ROUNDS):
        tries = (stream.uniforms(number) * len(chosen)).astype(np.int64)
        made = history_loops.exchange(tries, chosen, where, places.parents, of_v, ranked, begins, offsets, cumulated,
                                      dates, rows, np.array(tables.sizes, np.int64), starts, off, of_u, cross.first,
                                      cross.second, cross_off, CROSS_WEIGHT, state_of(stream))  # fmt: skip
        if made < FEW * number:
            break


def _first_children(chosen: Integers, places: Positions, rows: Integers, noisy: NoisyHistory) -> tuple[Floats, Floats]:
    """Return the numbers of first children by the cells of each attribute, and their targets."""
    tables, begins = noisy.tables, places.begins
    now = [np.bincount(rows[chosen[begins], i], minlength=size).astype(float) for i, size in enumerate(tables.sizes)]
    parts, sigmas = split_tables(noisy.parents, tables, noisy.sigmas[1])
    target = list(now)

    for i, part, sigma in zip(tables.others, parts[2:], sigmas[2:], strict=True):
        total = np.array([float(len(begins))])
        target[i] = (conditional(part, total, sigma, np.ones_like(part)) * total)[0]
    return np.concatenate(now), np.concatenate(target)


def _by_cells(rows: Integers, tables: HistoryTables) -> tuple[Integers, Integers]:
    """Return children by date and cell of each attribute, and the first place of each date and cell."""
    dates = tables.sizes[tables.order]
    ranked, begins = [], np.zeros((len(tables.sizes), dates * max(tables.sizes) + 1), np.int64)
    for j, size in enumerate(tables.sizes):
        keys = rows[:, tables.order] * size + rows[:, j]
        ranked.append(np.argsort(keys, kind="stable"))
        begins[j, : dates * size + 1] = np.concatenate([[0], np.cumsum(np.bincount(keys, minlength=dates * size))])
    return np.stack(ranked).astype(np.int64), begins


def _laws(target: Floats, first_target: Floats, tables: HistoryTables) -> tuple[Integers, Floats]:
    """Return cumulated P(later cell | earlier cell) of every attribute, and that of first children in its last row."""
    offsets = np.concatenate([[0], np.cumsum([size + 1 for size in tables.sizes])[:-1]]).astype(np.int64)
    found = np.ones((int(sum(size + 1 for size in tables.sizes)), max(tables.sizes)))
    firsts = np.split(first_target, np.cumsum(tables.sizes)[:-1])

    for j, size in enumerate(tables.sizes):
        at = tables.pairs.index((j, j))
        table = np.vstack([target[tables.starts[at] : tables.starts[at + 1]].reshape(size, size), firsts[j]])
        cumulated = np.cumsum(np.maximum(table, 0.0) + 1e-9, axis=1)
        found[offsets[j] : offsets[j] + size + 1, :size] = cumulated / cumulated[:, -1:]
    return offsets, found
