"""Planned release: a chain of decisions, fixed or selected adaptively, and the measurements that each requests.

first decision → values → initial state → [selection → chosen sets → decision → values → next state]*

The chain ends when no selection is left. The plan of a matrix mechanism has one decision and no rounds after it. The
first decision follows from the plan and is not stored; every later decision is stored before any of its noise is drawn.
States are functions of released values. Mechanisms implement these protocols; the code that measures, stores and reads
a release uses nothing else of them.

The requests of a decision are one object each, or columns for plans of half a million blocks. Both forms give the
number of values of each request, the counted sets, subsets by position, and the distinct kinds.
"""

from __future__ import annotations

import json
import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Any, Protocol, overload

import numpy as np

from dpscale.base.errors import PlanError
from dpscale.base.numerics import AttributeSet, Floats, Integers, NDArray
from dpscale.domain import Domain
from dpscale.plans.attribute_sets import CountSources
from dpscale.plans.blocks import Block, Blocks
from dpscale.plans.plan import Plan
from dpscale.privacy.accounting import LAPLACE, Budget, Cost
from dpscale.privacy.draws import Draw, cost_of, gaussian_draw, laplace_draw
from dpscale.privacy.streams import canonical
from dpscale.workload import Workload
from dpscale.workload.query_classes import CellClasses
from dpscale.workload.residual import Groups


class MeasurementRequest(Protocol):
    """Request for one measurement: `block` on the counts of `source`, with the noise of `draw`.

    Attributes
    ----------
    source : AttributeSet
        Counted set that the block is measured from.
    block : Block
    draw : Draw
    label : mapping
        Canonical noise-key fields other than release, snapshot and domain.
    """

    @property
    def source(self) -> AttributeSet: ...
    @property
    def block(self) -> Block: ...
    @property
    def draw(self) -> Draw: ...
    @property
    def label(self) -> Mapping[str, Any]: ...
    def estimate(self, measured: Floats) -> Floats:
        """Convert measured numbers, shape `block.rows`, to the units used by states and estimates."""

    def coarsened(self, counts: Integers) -> Integers:
        """Return the counts that the block is applied to, from those of all cells of its attributes."""


class Decision(Protocol):
    """The measurements of one round.

    A decision with an additive delta states it as `additive_delta`, a Fraction, to one privacy unit. One without this
    attribute has none.
    """

    @property
    def round(self) -> int: ...
    @property
    def requests(self) -> Sequence[MeasurementRequest]: ...
    @property
    def selection_cost(self) -> Fraction:
        """Squared μ of the selections that led to this decision."""

    def to_dict(self) -> dict[str, Any]: ...
    def fits(self, other: Any, /) -> bool:
        """Return whether a process that computed `other` can continue with this decision."""


class CurrentEstimates(Protocol):
    """Estimates of candidates over groups of cells; a function of released values."""

    def marginal(self, names: AttributeSet, /) -> Floats: ...


class Selection(Protocol):
    """Candidates of one round, from which the exponential mechanism selects `count`, one after the other.

    The score of a candidate is weight · (distance − offset), in units of 1/SCALE. The mechanism provides weights and
    offsets, both public, and never receives a distance. The distance is that of all cells over groups, or that of the
    sums over `classes` of them; one record changes both by at most SCALE.

    Attributes
    ----------
    round : int
    count : int
        Number of candidates to select.
    beta : Fraction
        Squared μ of selecting one candidate.
    candidates : sequence of AttributeSet
    weights : mapping of AttributeSet to int
    classes : mapping of AttributeSet to CellClasses
        Classes of cells that no query distinguishes, of the candidates that have such cells.
    """

    @property
    def round(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def beta(self) -> Fraction: ...
    @property
    def candidates(self) -> Sequence[AttributeSet]: ...
    @property
    def weights(self) -> Mapping[AttributeSet, int]: ...
    @property
    def classes(self) -> Mapping[AttributeSet, CellClasses]: ...
    def excluded(self, chosen: Sequence[AttributeSet], /) -> Iterable[int]:
        """Return the positions of candidates that can no longer be selected after `chosen`, besides those in `chosen`.

        An excluded candidate stays excluded for the rest of the round. For a spanning tree these are the pairs that
        would close a cycle.
        """

    def offset(self, names: AttributeSet, /) -> int: ...

    def label(self, rank: int, /) -> Mapping[str, Any]:
        """Return the canonical noise-key fields of the draw number `rank`, other than release, snapshot and domain."""


class State(Protocol):
    """State after some rounds, a function of released values: what is known, and what is measured next.

    Attributes
    ----------
    groups : mapping of str to Groups
    rows : int
        Released estimate of the number of records.
    selection : Selection or None
        Candidates of the next round; None if nothing is left to select.
    """

    @property
    def groups(self) -> Mapping[str, Groups]: ...
    @property
    def rows(self) -> int: ...
    @property
    def selection(self) -> Selection | None: ...
    def estimates(self, sets: Sequence[AttributeSet], /) -> CurrentEstimates: ...
    def decide(self, selection: Any, chosen: Sequence[AttributeSet], /) -> Decision:
        """Return the measurements of the sets that were chosen from the selection."""

    def after(self, decision: Any, values: Sequence[Floats], /) -> State:
        """Return the state after the measurements of a decision."""

    def changed_sets(self, after: Any, /) -> Iterable[AttributeSet]:
        """Return the candidates whose estimates differ in a later state."""

    def trace(self) -> list[dict[str, Any]]:
        """Return the selected sets by round, for the report."""


class Rounds(Protocol):
    """Rounds after the first decision, each of which selects its measurements by released values.

    Attributes
    ----------
    candidates : sequence of AttributeSet
        Sets that can be selected.
    """

    @property
    def candidates(self) -> Sequence[AttributeSet]: ...
    def start(self, values: Sequence[Floats], second: Any = None) -> State:
        """Return the state after the first decision; `second` is the next decision if it is already stored."""

    def read_decision(self, record: Mapping[str, Any]) -> Decision:
        """Return a stored later decision.

        Raises
        ------
        ValueError
            If the record is not a decision of this plan or does not cost what it states.
        """


class Forecast(Protocol):
    """Costs and errors that are known before any data are read.

    Attributes
    ----------
    notes : sequence of str
        Remarks for the user.
    summary : mapping
        Figures by name.
    cards : list of (str, str)
        Figures with descriptions, for the report.
    """

    @property
    def notes(self) -> Sequence[str]: ...
    @property
    def summary(self) -> dict[str, Any]: ...
    @property
    def cards(self) -> list[tuple[str, str]]: ...
    def errors(self, most: int) -> Sequence[Mapping[str, Any]]:
        """Return the expected errors of at most `most` evenly spaced sets of each workload part.

        Returns
        -------
        sequence of mapping
            Keys: name (family and degree), attributes, queries, and error (root mean square error in records). Empty if
            errors are not known in advance.
        """

    def estimates_of_guess(self, rows: float, shares: Mapping[str | AttributeSet, Any] = ...) -> Any:
        """Return estimates of a guessed table with the errors of the release.

        Parameters
        ----------
        rows : float
            Guessed number of records.
        shares : mapping of str to sequence of float
            Guessed share of the records in each cell, by attribute; even for the others.

        Returns
        -------
        LeastSquaresEstimates or None
            None if errors are not known in advance.
        """


class MeasurementPlan(Protocol):
    """Measurement plan of a release.

    Attributes
    ----------
    workload : Workload
    mechanism : str
    cost : Cost
        Privacy cost of the whole release.
    counted_sets : sequence of AttributeSet
        Sets whose exact counts the first decision and the candidates need.
    rounds : Rounds or None
        Rounds after the first decision; None if no measurement depends on the data.
    evidence_plan : Plan or None
        Blocks of the evidence, with those of earlier releases; None for a plan with rounds.
    digest : str
        SHA-256 of the content of plan.json.
    """

    @property
    def workload(self) -> Workload: ...
    @property
    def mechanism(self) -> str: ...
    @property
    def cost(self) -> Cost: ...
    @property
    def counted_sets(self) -> Sequence[AttributeSet]: ...
    @property
    def rounds(self) -> Rounds | None: ...
    @property
    def evidence_plan(self) -> Plan | None: ...
    @property
    def digest(self) -> str: ...
    def write(self, folder: Path) -> None: ...
    def forecast(self, budget: Budget) -> Forecast:
        """Return what is known at a budget before any data are read."""

    def first_decision(self) -> Decision: ...
    def evidence(self, taken: Sequence[tuple[Any, Sequence[Floats]]]) -> Any:
        """Return all decisions with their values, in the form that reconstructions read."""


def candidates_of(plan: MeasurementPlan) -> Sequence[AttributeSet]:
    """Return the sets that a plan can select; empty if no measurement depends on the data."""
    return () if plan.rounds is None else plan.rounds.candidates


def largest_counted(plan: MeasurementPlan) -> tuple[int, AttributeSet]:
    """Return the counted set with the most cells, and their number before it."""
    sizes = plan.workload.domain.cells_each(plan.counted_sets)
    return max(zip(sizes, plan.counted_sets, strict=True), key=itemgetter(0))


def budget_shares(plan: MeasurementPlan) -> dict[AttributeSet, float]:
    """Return the share of the budget, with that of earlier releases, of each measured set; empty for rounds."""
    shares: dict[AttributeSet, float] = {}
    if plan.evidence_plan is not None:
        blocks = plan.evidence_plan.blocks
        for attributes, share in zip(blocks.sets, blocks.share.tolist(), strict=True):
            shares[attributes] = shares.get(attributes, 0.0) + share
    return shares


SCALE = 256  # distances are integer multiples of 1/SCALE


@dataclass(frozen=True)
class TableEstimates:
    """Precomputed estimates of some sets over groups."""

    tables: Mapping[AttributeSet, Floats]

    def marginal(self, names: AttributeSet) -> Floats:
        return self.tables[names]


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
    def amount(self) -> Fraction:
        """The cost as one number: squared Gaussian-DP μ, or ε."""
        return self.cost.gaussian or self.cost.pure

    @cached_property
    def variances(self) -> NDArray[np.float64]:
        """Noise variance of each draw, in units of K · marginal."""
        return np.array([draw.lattice_variance for draw in self.kinds])[self.which]


def plan_draws(plan: Plan, budget: float, rows_per_unit: int = 1) -> Draws:
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

    # blocks of one class have equal draws, so one draw is made for the first block of each class
    first, which = _block_classes(plan.blocks, plan.domain)
    kinds = []
    for block in (plan.blocks[index] for index in first):
        denominator = plan.domain.denominator(block.attributes)
        kinds.append(draw_of(block, Fraction(budget), rows_per_unit, denominator))

    draws = Draws(tuple(kinds), which)
    if draws.amount > Fraction(budget):
        raise PlanError("privacy", f"a budget of {budget:g}, too small to divide", "a larger budget", "increase it")
    return draws


def _block_classes(blocks: Blocks, domain: Domain) -> tuple[list[int], NDArray[np.int32]]:
    """Return the first block of each class, in block order, and the class of each block, shape (blocks,).

    Blocks of a class have equal (strategy, share, denominator). They are sorted by these, `new` marks the first of each
    class, and `rank` numbers the classes by their first block.
    """
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
    amount, name = Fraction(block.share) * budget, ", ".join(block.attributes) or "the total"
    if block.noise == LAPLACE:
        return laplace_draw(block.l1_sensitivity, amount, rows_per_unit, name, denominator)
    return gaussian_draw(block.squared_l2_sensitivity, amount, rows_per_unit, name, denominator)


RECORD_VERSION = 1  # of the label of a draw; another one gives other noise
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
        """Return the counts that the block is applied to: those of the cells, or of classes of cells."""
        return self.block.coarsened(counts)


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
        """Return one request, or a tuple of requests for a slice.

        A request has the set whose counts it needs, its block, and its noise.
        """
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
        """Return the label as canonical JSON; labels of one strategy and draw differ only in the attributes.

        `_around` has the text before and after the attributes for each kind, a pair of strategy and draw, so that only
        the names of the attributes are encoded for each label.
        """
        kind = int(self.blocks.which[index]), int(self.draws.which[index])
        if kind not in self._around:  # the text before and after the attributes
            nameless = canonical({**self[index].label, "attributes": []}).decode()
            self._around[kind] = nameless.partition(NAMELESS)
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
