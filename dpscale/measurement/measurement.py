"""Measurements to make: what a task takes from the counts of some shards, and where it puts the results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpscale.base.arrays import Integers
from dpscale.base.blas import one_thread
from dpscale.base.names import AttributeSet
from dpscale.counting.count import ExactMarginal, Layout
from dpscale.measurement.block import measure_block
from dpscale.measurement.filing import Span, file_name, runs
from dpscale.measurement.store import Labelled, write_values
from dpscale.measurement.tags import SecretPlace
from dpscale.plans.orders import Orders
from dpscale.storage.files import present

Marginals = Callable[[AttributeSet], ExactMarginal]


@dataclass(frozen=True)
class Measurements:
    """Those at the places `span` of a round, in one file of a folder. `head`: what their records begin with."""

    folder: Path
    round: int
    span: Span
    head: Mapping[str, Any]
    orders: Orders

    @property
    def path(self) -> Path:
        return self.folder / file_name(self.round, self.span)

    @property
    def sources(self) -> tuple[AttributeSet, ...]:
        """The sets that they are measured from, in their order."""
        return self.orders.sources

    def within(self, sets: frozenset[AttributeSet]) -> Iterator[Measurements]:
        """Those that are measured from some sets: all of them, or pieces."""
        known = [names in sets for names in self.sources]
        if all(known):
            yield self
            return
        for first, end in runs(np.array(known, np.bool_)[self.orders.source]):
            own = self.span[0] + first, self.span[0] + end
            yield Measurements(self.folder, self.round, own, self.head, self.orders.taken(np.arange(first, end)))


def carry_out(layouts: Sequence[Layout], wanted: Measurements, place: SecretPlace, *flats: Integers) -> int:
    """Make measurements from the exact counts of some shards, into their durable file; how many there are."""
    pair_of = {names: pair for pair in zip(layouts, flats, strict=True) for names in pair[0].sets}

    def marginal_of(names: AttributeSet) -> ExactMarginal:
        layout, flat = pair_of[names]
        return layout.marginal(flat, names)

    return measure_all(marginal_of, [wanted], place)


def measure_all(marginal_of: Marginals, wanted: Sequence[Measurements], place: SecretPlace) -> int:
    """The same from wherever the exact counts of a measurement's source are."""
    secret = place.read()
    with one_thread():  # Dask's workers are the threads; those of BLAS would fight with them
        for one in wanted:
            if not present(one.path):
                write_values(one.path, one.head, _measured(marginal_of, one, secret))
    return sum(len(one.orders) for one in wanted)


def _measured(marginal_of: Marginals, wanted: Measurements, secret: bytes) -> Iterator[Labelled]:
    """Label and values of each, one after the other."""
    for index, order in enumerate(wanted.orders):
        record = {**wanted.head, **order.label}
        values = measure_block(order.block, order.draw, marginal_of(order.source), secret, record)
        yield wanted.orders.text(index), values
