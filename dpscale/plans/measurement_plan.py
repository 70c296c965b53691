"""Protocols of a planned release: a chain of decisions, fixed or selected adaptively.

    first decision → values → initial state → [selection → chosen sets → decision → values → next state]*

The chain ends when no selection is left. The plan of a matrix mechanism has one decision and no selection. The first
decision follows from the plan and is not stored; every later decision is stored before any of its noise is drawn.
States are functions of released values. Mechanisms implement these protocols; the code that measures, stores and reads
a release uses nothing else of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Protocol

from dpscale.base.numerics import AttributeSet, Floats, Integers
from dpscale.domain import Domain
from dpscale.plans.blocks import Block
from dpscale.plans.time_plan import PeriodContext
from dpscale.privacy.accounting import Budget, Cost
from dpscale.privacy.draws import Draw
from dpscale.workload import Workload
from dpscale.workload.query_classes import CellClasses
from dpscale.workload.residual.in_axis import Groups


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
    """State after some rounds: estimates, groups of cells and the approximate number of records.

    Attributes
    ----------
    groups : mapping of str to Groups
    rows : int
        Released estimate of the number of records.
    """

    @property
    def groups(self) -> Mapping[str, Groups]: ...
    @property
    def rows(self) -> int: ...
    def estimates(self, sets: Sequence[AttributeSet], /) -> CurrentEstimates: ...


class MeasurementPlan(Protocol):
    """Measurement plan of a release.

    Attributes
    ----------
    workload : Workload
    domain : Domain
    mechanism : str
    noise : str
        "gaussian" or "laplace".
    notes : sequence of str
        Remarks for the user.
    counted_sets : sequence of AttributeSet
        Sets whose exact counts the first decision and the candidates need.
    largest : AttributeSet
        Counted set with the most cells.
    candidates : sequence of AttributeSet
        Sets that can be selected; empty for a fixed plan.
    cost : Cost
        Privacy cost of the whole release.
    can_simulate : bool
        Whether errors can be simulated by drawing new noise.
    """

    @property
    def workload(self) -> Workload: ...
    @property
    def domain(self) -> Domain: ...
    @property
    def mechanism(self) -> str: ...
    @property
    def noise(self) -> str: ...
    @property
    def notes(self) -> Sequence[str]: ...
    @property
    def counted_sets(self) -> Sequence[AttributeSet]: ...
    @property
    def largest(self) -> AttributeSet: ...
    @property
    def candidates(self) -> Sequence[AttributeSet]: ...
    @property
    def cost(self) -> Cost: ...
    @property
    def can_simulate(self) -> bool: ...
    @property
    def shares(self) -> Mapping[AttributeSet, float]:
        """Share of the budget that each measured set uses; empty if it is not known in advance."""

    @property
    def profiles(self) -> Mapping[str, Floats]:
        """Weights u of the attributes that are not averaged uniformly."""

    @property
    def public_plan(self) -> Any:
        """The plan object that `Release` exposes."""

    @property
    def memory_needs(self) -> Iterable[tuple[int, str]]:
        """Bytes that measuring one block needs in addition to counting, with a description of the block."""

    def summary(self, budget: Budget) -> dict[str, Any]:
        """Return the costs and errors that are known before any data are read."""

    def expected_errors(self, budget: Budget, most: int) -> Sequence[Mapping[str, Any]]:
        """Return the expected errors of at most `most` evenly spaced sets of each workload part.

        Returns
        -------
        sequence of mapping
            Keys: name (family and degree), attributes, queries, and error (root mean square error in records). Empty if
            errors are not known in advance.
        """

    def cards(self, budget: Budget) -> list[tuple[str, str]]:
        """Return the summary for the report, as pairs of a figure and its description."""

    def write(self, folder: Path) -> None: ...
    @property
    def digest(self) -> str:
        """SHA-256 of the content of plan.json."""

    @property
    def noise_spec(self) -> list[Any]:
        """Noise parameters that are not part of the plan itself; part of the identity of a release in the ledger."""

    def check_low_order(self) -> None:
        """Raise PlanError if low-order tables cannot be estimated from the planned measurements."""

    def for_period(self, context: PeriodContext) -> MeasurementPlan:
        """Return the plan of one period of a growing table. Raises JobError if the mechanism has none."""

    def combined(self, factor: float) -> Decision | None:
        """Return the second decision of a combination of periods, with `factor` times the variance; None if none."""

    def first_decision(self) -> Decision: ...
    def read_decision(self, written: Mapping[str, Any]) -> Decision:
        """Return a stored later decision.

        Raises
        ------
        ValueError
            If the record is not a decision of this plan or does not cost what it states.
        """

    def initial_state(self, first: Any, values: Sequence[Floats], second: Any = None) -> Any:
        """Return the state after the first decision; `second` is the next decision if it is already stored."""

    def next_selection(self, state: Any) -> Selection | None:
        """Return the candidates of the next round, or None if nothing is left to select."""

    def make_decision(self, state: Any, selection: Any, chosen: Sequence[AttributeSet]) -> Decision: ...
    def next_state(self, state: Any, decision: Any, values: Sequence[Floats]) -> Any: ...
    def changed_sets(self, before: Any, after: Any) -> Iterable[AttributeSet]:
        """Return the candidates whose estimates differ between two states."""

    def trace(self, state: Any) -> list[dict[str, Any]] | None:
        """Return the selected sets by round for the report, or None if the plan selects nothing."""

    def evidence(self, taken: Sequence[tuple[Any, Sequence[Floats]]]) -> Any:
        """Return all decisions with their values, in the form that reconstructions read."""


SCALE = 256  # distances are integer multiples of 1/SCALE


@dataclass(frozen=True)
class TableEstimates:
    """Precomputed estimates of some sets over groups."""

    tables: Mapping[AttributeSet, Floats]

    def marginal(self, names: AttributeSet) -> Floats:
        return self.tables[names]
