"""A bounded sample of a table's rows: uniform, without replacement, the same however the work is cut.

Every row has a keyed uniform number, by its partition and its place there; those with the least are the sample, in the
order of their numbers. So a task holds no more rows than the sample and a batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpscale.base.arrays import Integers32
from dpscale.domain import Domain
from dpscale.engine import Engine
from dpscale.engine.counting import partition_groups
from dpscale.evaluation.sides import Numbered, Side, codes_of, numbered
from dpscale.reconstruction.pairwise.chance import Chance

Found = tuple[NDArray[np.float64], Integers32]


def sample(engine: Engine, side: Side, names: Sequence[str], most: int, release: str) -> Integers32:
    """At most so many rows in random order, over the cells that are compared: (rows, attributes)."""
    groups = partition_groups(side.table.partitions, engine.workers)
    items = [(side.domain, numbered(side, group), tuple(names), most, release) for group in groups]
    return _least(engine.map(least_rows, items, "sample"), most)[1]


def least_rows(domain: Domain, parts: Numbered, names: Sequence[str], most: int, release: str) -> Found:
    """Of some partitions the rows with the least numbers, in their order."""
    found: Found = (np.empty(0), np.empty((0, len(names)), np.int32))
    read = list(dict.fromkeys([*names, *(one.name for one in domain.attributes if one.drops)]))
    for number, partition in parts:
        chance = Chance(release, "compared sample", number)
        for batch in partition.batches(domain.columns(read)):
            codes, kept = codes_of(domain, batch, read)
            places = chance.uniforms(len(codes))
            found = _least([found, (places[kept], codes[kept, : len(names)])], most)
    return found


def _least(found: Sequence[Found], most: int) -> Found:
    places = np.concatenate([places for places, _ in found])
    first = np.argsort(places, kind="stable")[:most]
    return places[first], np.concatenate([codes for _, codes in found])[first]
