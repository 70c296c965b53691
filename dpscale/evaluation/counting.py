"""Exact counts of both tables over the sets that are compared, in passes under the memory setting; scored, and let go.

The data are counted in two halves, row by row as a keyed coin falls: how far these are apart is how far two samples of
one population are. A task holds the counters of a pass, never a vector over the domain.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpscale.base.arrays import Integers
from dpscale.base.names import AttributeSet
from dpscale.counting.choice import guess_rows, plan_cover
from dpscale.counting.count import Layout, encoded
from dpscale.counting.counter import Counter
from dpscale.counting.program import Program
from dpscale.domain import Domain
from dpscale.engine import Engine
from dpscale.engine.counting import Pass, partition_groups, plan_passes
from dpscale.evaluation.marginals import Scored, scored
from dpscale.evaluation.sides import Numbered, Side, folded, numbered
from dpscale.reconstruction.pairwise.chance import Chance

TABLES = 4  # counters of two halves and of the rows, and what scoring makes of a set


def score_all(
    engine: Engine, data: Side, rows: Side, sets: Sequence[AttributeSet], memory: int, release: str
) -> list[Scored]:
    """Every set's figures, in the order of the sets."""
    found = []
    for one in plan_passes(rows.domain, sets, memory // TABLES, engine.workers):
        counts = [*_counted(engine, data, one, 2, release), *_counted(engine, rows, one, 1, release)]
        found += engine.map(score, [(data.domain, rows.domain, one.sets, *counts)], "compare")[0]
    return found


def _counted(engine: Engine, side: Side, one: Pass, ways: int, release: str) -> list[Integers]:
    """Handles of a pass's counts of a table, cut at random into so many."""
    groups = partition_groups(side.table.partitions, engine.workers)
    rows = guess_rows(side.domain, max(sum(part.size() for part in group) for group in groups))
    program = Program.of(plan_cover(side.domain, one.sets, rows, one.spare))
    items = [(side.domain, program, numbered(side, group), ways, release) for group in groups]
    return engine.reduce(count_ways, items, ways, "count", ways * one.bytes)


def count_ways(domain: Domain, program: Program, parts: Numbered, ways: int, release: str) -> list[Integers]:
    """Counts of some partitions over a program's sets, each row in one of so many; flat arrays."""
    counters = [Counter(program) for _ in range(ways)]
    names = list(dict.fromkeys([*program.names, *(one.name for one in domain.attributes if one.drops)]))
    for number, partition in parts:
        chance = Chance(release, "compared halves", number)
        for codes, gone, *_ in encoded(domain, [partition], names):
            way = np.floor(chance.uniforms(codes.shape[1]) * ways)
            for index, counter in enumerate(counters):
                counter.add(codes[:, (way == index) if gone is None else (way == index) & ~gone])
    return [counter.finish() for counter in counters]


def score(
    data: Domain, rows: Domain, sets: Sequence[AttributeSet], first: Integers, second: Integers, drawn: Integers
) -> list[Scored]:
    """The figures of the sets of a pass, whose counts lie one after another."""
    every = [(data, first), (data, second), (rows, drawn)]
    laid = zip(*(Layout(domain, tuple(sets)).marginals(flat) for domain, flat in every), strict=True)
    return [scored(same[0].attributes, *(folded(one.counts, [domain[name] for name in one.attributes])
                                         for one, (domain, _) in zip(same, every, strict=True)))
            for same in laid]  # fmt: skip
