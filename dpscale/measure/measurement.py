"""A measurement to make: what a task takes from the counts of one shard, and where it puts the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpscale.blas import one_thread
from dpscale.measure.block import measure_block
from dpscale.measure.store import write_values
from dpscale.measure.tags import SecretPlace
from dpscale.names import AttributeSet
from dpscale.plans.block import Block
from dpscale.privacy.draws import Draw
from dpscale.storage.files import present
from dpscale.storage.flushing import Together
from dpscale.tables.count import Counts, ExactMarginal, Layout


@dataclass(frozen=True)
class Measurement:
    """From the marginal of `source`, keyed by `record`, into `path`."""

    source: AttributeSet
    block: Block
    draw: Draw
    record: Mapping[str, Any]
    path: Path


def carry_out(layout: Layout, wanted: Sequence[Measurement], place: SecretPlace, flat: Counts) -> int:
    """Make the measurements of one shard from its exact counts, each into its own durable file; how many were made."""
    marginals = {marginal.attributes: marginal for marginal in layout.marginals(flat)}
    return measure_all(marginals.__getitem__, wanted, place)


def measure_all(
    marginal_of: Callable[[AttributeSet], ExactMarginal], wanted: Sequence[Measurement], place: SecretPlace
) -> int:
    """The same from wherever the exact counts of a measurement's source are."""
    secret = place.read()
    with one_thread(), Together() as files:  # Dask's workers are the threads; those of BLAS would fight with them
        for one in wanted:
            if not present(one.path):
                values = measure_block(one.block, one.draw, marginal_of(one.source), secret, one.record)
                write_values(one.path, values, one.record, files.writing)
    return len(wanted)
