"""Measurement requests of a decision: one object each, or in columns for plans of half a million blocks.

Both forms give the number of values of each request, the counted sets, subsets by position, and the distinct kinds.
"""

from __future__ import annotations

import hashlib
import json
import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, overload

import numpy as np

from dpscale.base.errors import PlanError
from dpscale.base.numerics import AttributeSet, Floats, Integers, NDArray
from dpscale.domain import Domain
from dpscale.plans.attribute_sets import CountSources
from dpscale.plans.blocks import Block, Blocks
from dpscale.plans.measurement_plan import MeasurementRequest
from dpscale.plans.plan import Plan
from dpscale.privacy.accounting import LAPLACE, Cost
from dpscale.privacy.draws import Draw, cost_of, gaussian_draw, laplace_draw
from dpscale.privacy.streams import canonical


class Draws(Sequence[Draw]):
    """Sequence of noise distributions; the i-th is `kinds[which[i]]`."""

    def __init__(self, kinds: tuple[Draw, ...], which: NDArray[np.int32]) -> None:
        self.kinds, self.which = kinds, which

    def __len__(self) -> int:
        return len(self.which)

    @overload
    def __getitem__(self, index: int) -> Draw: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Draw, ...]: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(self.kinds[i] for i in self.which[index].tolist())
        return self.kinds[self.which[index]]

    def take(self, wanted: NDArray[np.int64]) -> Draws:
        """Return the draws at the positions `wanted`, with only the kinds that they use."""
        used, which = np.unique(self.which[wanted], return_inverse=True)
        return Draws(tuple(self.kinds[i] for i in used.tolist()), which.astype(np.int32))

    @cached_property
    def cost(self) -> Cost:
        """Privacy cost of all draws, exact and rounded up."""
        return cost_of(self.kinds, np.bincount(self.which, minlength=len(self.kinds)).tolist())

    @property
    def noise_spec(self) -> list[Any]:
        """Noise parameters: every kind, and a hash of the assignment of kinds to draws."""
        whose = hashlib.sha256(np.ascontiguousarray(self.which).tobytes()).hexdigest()
        return [[[draw.multiplier, draw.noise_spec] for draw in self.kinds], whose]

    @cached_property
    def variances(self) -> NDArray[np.float64]:
        """Noise variance of each draw, in units of K · marginal."""
        return np.array([draw.lattice_variance for draw in self.kinds])[self.which]


@dataclass(frozen=True)
class Schedule:
    """Draws of a plan, one per block."""

    draws: Draws

    @property
    def spent(self) -> Cost:
        """Total privacy cost for the ledger, exact and rounded up."""
        return self.draws.cost

    @property
    def cost(self) -> Fraction:
        """The same as one number: squared Gaussian-DP μ, or ε."""
        return self.spent.gaussian or self.spent.pure


def make_schedule(plan: Plan, budget: float, rows_per_unit: int = 1) -> Schedule:
    """Return the exact draws of a plan at a budget; their total cost is close to the budget and never above it.

    Parameters
    ----------
    plan : Plan
    budget : float
        β, or ε for Laplace noise.
    rows_per_unit : int
        Largest number of records of one protected unit.

    Raises
    ------
    PlanError
        If the plan mixes both kinds of noise, or the budget is too small to divide.
    """
    if len(np.unique(plan.blocks.noise)) != 1:  # no mechanism makes such a plan; β and ε do not add
        raise PlanError("plan", "blocks of both kinds of noise", "one kind", "plan again, in a new run")

    first, which = _block_classes(plan.blocks, plan.domain)
    domain, amount = plan.domain, Fraction(budget)
    some = (plan.blocks[index] for index in first)
    kinds = tuple(draw_of(one, amount, rows_per_unit, domain.denominator(one.attributes)) for one in some)
    schedule = Schedule(Draws(kinds, which))
    if schedule.cost > Fraction(budget):
        raise PlanError("privacy", f"a budget of {budget:g}, too small to divide", "a larger budget", "increase it")
    return schedule


def _block_classes(blocks: Blocks, domain: Domain) -> tuple[list[int], NDArray[np.int32]]:
    """Return the first block of every triple of strategy, share and denominator, in block order, and each block's."""
    keys = [blocks.which.astype(np.int64), blocks.share.view(np.int64)]
    if domain.numbers:
        keys.append(np.array([domain.denominator(names) for names in blocks.sets], np.int64))
    order = np.lexsort(keys)
    new = np.ones(len(order), np.bool_)
    new[1:] = (np.diff(np.stack(keys)[:, order]) != 0).any(axis=0)
    group = np.empty(len(order), np.int64)
    group[order] = np.cumsum(new) - 1
    first = order[new]  # the sort is stable, so this is the first of its kind
    rank = np.empty(len(first), np.int32)
    rank[np.argsort(first)] = np.arange(len(first))

    return np.sort(first).tolist(), rank[group]


def draw_of(block: Block, budget: Fraction, rows_per_unit: int, denominator: int = 1) -> Draw:
    """Return the draw of one block, which uses its share of the budget; see `gaussian_draw` for the denominator."""
    amount, what = Fraction(block.share) * budget, ", ".join(block.attributes) or "the total"
    if block.noise == LAPLACE:
        return laplace_draw(block.l1_sensitivity, amount, rows_per_unit, what, denominator)
    return gaussian_draw(block.squared_l2_sensitivity, amount, rows_per_unit, what, denominator)


RECORD_VERSION = 1
NAMELESS = '"attributes":[]'


class MeasurementRequests(Sequence[MeasurementRequest]):
    """Sequence of measurement requests."""

    @property
    @abstractmethod
    def sizes(self) -> Integers:
        """Number of values of each request."""

    @property
    @abstractmethod
    def source(self) -> Integers:
        """Position in `sources` of each request's counted set; requests of one source are adjacent in files."""

    @property
    @abstractmethod
    def sources(self) -> tuple[AttributeSet, ...]:
        """Counted sets that the requests are measured from."""

    @abstractmethod
    def take(self, wanted: Integers) -> MeasurementRequests:
        """Return the requests at the positions `wanted`."""

    @abstractmethod
    def text(self, index: int) -> str:
        """Return the label of one request as canonical JSON."""

    @abstractmethod
    def distinct(self) -> Iterator[tuple[MeasurementRequest, int]]:
        """Yield one request of each distinct strategy and draw, with the number of such requests."""


@dataclass(frozen=True, eq=False)
class BlockRequest:
    """Request for one block of a plan, measured from the counts of `source`."""

    source: AttributeSet
    block: Block
    draw: Draw

    @property
    def label(self) -> dict[str, Any]:
        """Canonical fields of the noise record: query and noise, never worker or attempt."""
        return {"attributes": list(self.block.attributes), "strategy": self.block.digest,
                "multiplier": self.draw.multiplier, **self.draw.noise_spec,
                "version": RECORD_VERSION, "round": 0}  # fmt: skip

    def estimate(self, measured: Floats) -> Floats:
        """Return the measured numbers in units of K · marginal."""
        return measured / self.draw.multiplier

    def coarsened(self, counts: Integers) -> Integers:
        """Return the counts that the block is applied to: those of the cells."""
        return counts


class BlockRequests(MeasurementRequests):
    """Requests for all blocks of a plan, or some of them."""

    def __init__(self, blocks: Blocks, draws: Draws, counted: CountSources) -> None:
        self.blocks, self.draws, self.counted = blocks, draws, counted

    def __len__(self) -> int:
        return len(self.blocks)

    @overload
    def __getitem__(self, index: int) -> BlockRequest: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[BlockRequest, ...]: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        source = self.counted.sets[int(self.counted.source[index])]
        return BlockRequest(source, self.blocks[index], self.draws[index])

    @property
    def sizes(self) -> Integers:
        return self.blocks.rows

    @property
    def source(self) -> Integers:
        return self.counted.source.astype(np.int64)

    @property
    def sources(self) -> tuple[AttributeSet, ...]:
        return tuple(self.counted.sets)

    def take(self, wanted: Integers) -> BlockRequests:
        used, source = np.unique(self.counted.source[wanted], return_inverse=True)
        counted = CountSources(self.counted.sets.take(used.astype(np.int64)), source.astype(np.int32))
        return BlockRequests(self.blocks.take(wanted), self.draws.take(wanted), counted)

    def text(self, index: int) -> str:
        """Return the label as canonical JSON; labels of one strategy and draw differ only in the attributes."""
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

    def distinct(self) -> Iterator[tuple[BlockRequest, int]]:
        keys = self.blocks.which * np.int64(len(self.draws.kinds)) + self.draws.which
        _, first, counts = np.unique(keys, return_index=True, return_counts=True)
        return ((self[i], number) for i, number in zip(first.tolist(), counts.tolist(), strict=True))


class RequestList(MeasurementRequests):
    """Measurement requests stored as a list of objects."""

    def __init__(self, requests: Sequence[MeasurementRequest]) -> None:
        self._requests = tuple(requests)

    def __len__(self) -> int:
        return len(self._requests)

    def __getitem__(self, index: Any) -> Any:
        return self._requests[index]

    @cached_property
    def sizes(self) -> Integers:
        return np.array([math.prod(order.block.rows) for order in self._requests], np.int64)

    @cached_property
    def source(self) -> Integers:
        place = {names: number for number, names in enumerate(self.sources)}
        return np.array([place[order.source] for order in self._requests], np.int64)

    @cached_property
    def sources(self) -> tuple[AttributeSet, ...]:
        """Counted sets in order of first use."""
        return tuple(dict.fromkeys(order.source for order in self._requests))

    def take(self, wanted: Integers) -> RequestList:
        return RequestList([self._requests[i] for i in wanted.tolist()])

    def text(self, index: int) -> str:
        return canonical(self._requests[index].label).decode()

    def distinct(self) -> Iterator[tuple[MeasurementRequest, int]]:
        return ((order, 1) for order in self._requests)


def as_requests(requests: Sequence[MeasurementRequest]) -> MeasurementRequests:
    """Return the requests with the interface of `MeasurementRequests`."""
    return requests if isinstance(requests, MeasurementRequests) else RequestList(requests)
