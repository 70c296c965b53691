"""The measurements that a decision asks for, one by one or in columns: those of a plan may be half a million.

Whoever files, draws or recounts them asks the same of both: how many numbers each gives, which are measured from the
same counts, some of them by their places, and which are alike.
"""

from __future__ import annotations

import json
import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

import numpy as np

from dpscale.base.arrays import Floats, Integers
from dpscale.base.names import AttributeSet
from dpscale.plans.block import Block
from dpscale.plans.blocks import Blocks
from dpscale.plans.counted import Counted
from dpscale.plans.planned import Order
from dpscale.plans.schedule import Draws
from dpscale.privacy.draws import Draw
from dpscale.privacy.streams import canonical

RECORD_VERSION = 1
NAMELESS = '"attributes":[]'


class Orders(Sequence[Order]):
    """Measurements asked for."""

    @property
    @abstractmethod
    def sizes(self) -> Integers:
        """How many numbers each gives."""

    @property
    @abstractmethod
    def source(self) -> Integers:
        """Which of `sources` each is measured from; those of one lie together in files."""

    @property
    @abstractmethod
    def sources(self) -> tuple[AttributeSet, ...]:
        """The sets that they are measured from."""

    @abstractmethod
    def taken(self, wanted: Integers) -> Orders:
        """Some of them."""

    @abstractmethod
    def text(self, index: int) -> str:
        """The label of one as canonical JSON."""

    @abstractmethod
    def alike(self) -> Iterator[tuple[Order, int]]:
        """Those of distinct strategy and draw, each with how many are like it."""


@dataclass(frozen=True, eq=False)
class BlockOrder:
    """One block of a plan, measured from the counts of `source`."""

    source: AttributeSet
    block: Block
    draw: Draw

    @property
    def label(self) -> dict[str, Any]:
        """What the record says of it: what it measures and how, never where or how often."""
        return {"attributes": list(self.block.attributes), "strategy": self.block.digest,
                "multiplier": self.draw.multiplier, **self.draw.law, "version": RECORD_VERSION, "round": 0}  # fmt: skip

    def estimate(self, measured: Floats) -> Floats:
        """In units of K · marginal."""
        return measured / self.draw.multiplier


class BlockOrders(Orders):
    """All blocks of a plan, or some."""

    def __init__(self, blocks: Blocks, draws: Draws, counted: Counted) -> None:
        self.blocks, self.draws, self.counted = blocks, draws, counted

    def __len__(self) -> int:
        return len(self.blocks)

    @overload
    def __getitem__(self, index: int) -> BlockOrder: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[BlockOrder, ...]: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        source = self.counted.sets[int(self.counted.source[index])]
        return BlockOrder(source, self.blocks[index], self.draws[index])

    @property
    def sizes(self) -> Integers:
        return self.blocks.rows

    @property
    def source(self) -> Integers:
        return self.counted.source.astype(np.int64)

    @property
    def sources(self) -> tuple[AttributeSet, ...]:
        return tuple(self.counted.sets)

    def taken(self, wanted: Integers) -> BlockOrders:
        used, source = np.unique(self.counted.source[wanted], return_inverse=True)
        counted = Counted(self.counted.sets.taken(used.astype(np.int64)), source.astype(np.int32))
        return BlockOrders(self.blocks.taken(wanted), self.draws.taken(wanted), counted)

    def text(self, index: int) -> str:
        """Blocks of one strategy and draw differ in their attributes alone."""
        kind = int(self.blocks.which[index]), int(self.draws.which[index])
        if kind not in self._around:
            whole = canonical({**self[index].label, "attributes": []}).decode()
            self._around[kind] = whole.partition(NAMELESS)
        before, _, after = self._around[kind]
        names = json.dumps(self.blocks.sets[index], separators=(",", ":"))
        return f'{before}"attributes":{names}{after}'

    @cached_property
    def _around(self) -> dict[tuple[int, int], tuple[str, str, str]]:
        return {}

    def alike(self) -> Iterator[tuple[BlockOrder, int]]:
        keys = self.blocks.which * np.int64(len(self.draws.kinds)) + self.draws.which
        _, first, counts = np.unique(keys, return_index=True, return_counts=True)
        return ((self[i], number) for i, number in zip(first.tolist(), counts.tolist(), strict=True))


class Listed(Orders):
    """Orders as a list has them."""

    def __init__(self, orders: Sequence[Order]) -> None:
        self._orders = tuple(orders)

    def __len__(self) -> int:
        return len(self._orders)

    def __getitem__(self, index: Any) -> Any:
        return self._orders[index]

    @cached_property
    def sizes(self) -> Integers:
        return np.array([math.prod(order.block.rows) for order in self._orders], np.int64)

    @cached_property
    def source(self) -> Integers:
        place = {names: number for number, names in enumerate(self.sources)}
        return np.array([place[order.source] for order in self._orders], np.int64)

    @cached_property
    def sources(self) -> tuple[AttributeSet, ...]:
        """In the order in which they come up."""
        return tuple(dict.fromkeys(order.source for order in self._orders))

    def taken(self, wanted: Integers) -> Listed:
        return Listed([self._orders[i] for i in wanted.tolist()])

    def text(self, index: int) -> str:
        return canonical(self._orders[index].label).decode()

    def alike(self) -> Iterator[tuple[Order, int]]:
        return ((order, 1) for order in self._orders)


def in_columns(orders: Sequence[Order]) -> Orders:
    """Orders as those who file and recount them take them."""
    return orders if isinstance(orders, Orders) else Listed(orders)
