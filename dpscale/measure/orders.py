"""Orders: what a task measures from the counts of one shard, and where it puts the result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpscale.blas import one_thread
from dpscale.measure.block import measure_block
from dpscale.measure.schedule import AnyDraw
from dpscale.measure.store import Measurements, write_values
from dpscale.names import AttributeSet as Attributes
from dpscale.plans.block import Block
from dpscale.privacy.secret import read_secret
from dpscale.residual import subsets
from dpscale.storage.files import present
from dpscale.storage.flushing import Together
from dpscale.tables.count import Counts, ExactMarginal, Layout


@dataclass(frozen=True)
class Order:
    """One measurement to make: from the marginal of `source`, keyed by `record`, into `path`."""

    source: Attributes
    block: Block
    draw: AnyDraw
    record: Mapping[str, Any]
    path: Path


def make_orders(measurements: Measurements, missing: Iterable[int]) -> list[Order]:
    """An order for each missing block, from the smallest counted set that holds its attributes."""
    plan = measurements.plan
    smallest: dict[Attributes, Attributes] = {}
    for counted in sorted(plan.counted, key=plan.domain.cells, reverse=True):
        smallest.update(dict.fromkeys(subsets(counted), counted))
    return [
        Order(
            smallest[plan.blocks[index].attributes],
            plan.blocks[index],
            measurements.schedule.draws[index],
            measurements.record(index),
            measurements.path(index),
        )
        for index in missing
    ]


def carry_out(layout: Layout, orders: Sequence[Order], secret_path: Path, flat: Counts) -> int:
    """Make the measurements of one shard from its exact counts, each into its own durable file; how many were made."""
    marginals = {marginal.attributes: marginal for marginal in layout.marginals(flat)}
    return measure_all(marginals.__getitem__, orders, secret_path)


def measure_all(marginal_of: Callable[[Attributes], ExactMarginal], orders: Sequence[Order], secret_path: Path) -> int:
    """The same from wherever the exact counts of an order's source are."""
    secret = read_secret(secret_path)
    with one_thread(), Together() as files:  # Dask's workers are the threads; those of BLAS would fight with them
        for order in orders:
            if not present(order.path):
                values = measure_block(order.block, order.draw, marginal_of(order.source), secret, order.record)
                write_values(order.path, values, order.record, files.writing)
    return len(orders)
