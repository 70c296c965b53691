"""What every planned release is, whether all is settled beforehand or chosen as it goes: a chain of decisions.

    first() → measured → begun → [selection → chosen → decided → measured → advanced]* until no selection is left
A plan of a matrix mechanism is such a chain with one decision and no selection. The first decision follows from the
plan and is written nowhere else; every later one is written before anything of it is drawn. States follow from released
values alone. Mechanisms implement this, and whoever measures, keeps or reads a release knows nothing else of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Protocol

from dpscale.base.arrays import Floats
from dpscale.base.display import AttributeSet
from dpscale.domain import Domain
from dpscale.plans.blocks import Block
from dpscale.privacy.accounting import Budget, Cost
from dpscale.privacy.draws import Draw
from dpscale.workload import Workload
from dpscale.workload.residual.in_axis import Groups


class Order(Protocol):
    """One measurement asked for: `block` on the counts of `source`, with the noise of `draw`.

    `label`: what its record says besides release, snapshot and domain; it fixes the noise.
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
        """The measured numbers, of the shape `block.rows`, in the units that states and estimates take."""


class Decision(Protocol):
    """What a round measures."""

    @property
    def round(self) -> int: ...
    @property
    def orders(self) -> Sequence[Order]: ...
    @property
    def choosing(self) -> Fraction:
        """Squared μ of the selections that came to it."""

    def to_dict(self) -> dict[str, Any]: ...
    def fits(self, other: Any, /) -> bool:
        """Whether a process that came to the other may go on with this one."""


class CurrentEstimates(Protocol):
    """What is believed of candidates: released values only, over groups."""

    def marginal(self, names: AttributeSet, /) -> Floats: ...


class Selection(Protocol):
    """A round's choice, a function of released values: `count` candidates, one exponential mechanism after the other.

    `beta`: squared μ of one of them. What a candidate is worth is weight · (distance − offset), in units of 1/SCALE: a
    mechanism says weights and offsets, public numbers both, and is never handed a distance.
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
    def lost(self, chosen: Sequence[AttributeSet], /) -> Iterable[int]:
        """Places of the candidates that may no longer be chosen after some, beside these; once lost is lost for the
        round. For a spanning tree those that close a circle."""

    def offset(self, names: AttributeSet, /) -> int: ...

    def label(self, rank: int, /) -> Mapping[str, Any]:
        """What the record of the rank-th draw says besides release, snapshot and domain."""


class State(Protocol):
    """After some rounds: what is believed, over which groups of cells, of about how many records."""

    @property
    def groups(self) -> Mapping[str, Groups]: ...
    @property
    def rows(self) -> int: ...
    def believed(self, sets: Sequence[AttributeSet], /) -> CurrentEstimates: ...


class Planned(Protocol):
    """A planned release. `counted`: the sets whose exact counts the first decision and the candidates need.

    `candidates`: what may be selected (none: all is settled beforehand); `redraws`: whether errors can be simulated by
    drawing its noise anew.
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
    def counted(self) -> Sequence[AttributeSet]: ...
    @property
    def largest(self) -> AttributeSet: ...
    @property
    def candidates(self) -> Sequence[AttributeSet]: ...
    @property
    def cost(self) -> Cost: ...
    @property
    def redraws(self) -> bool: ...
    @property
    def shares(self) -> Mapping[AttributeSet, float]:
        """The part of the budget that each measured set takes, where that is known beforehand."""

    @property
    def profiles(self) -> Mapping[str, Floats]:
        """The weights u by which attributes are averaged, of those that are not averaged evenly."""

    @property
    def shown(self) -> Any:
        """What a reader of the release is given as its plan."""

    @property
    def needs(self) -> Iterable[tuple[int, str]]:
        """Bytes that measuring holds at once, and on what, beyond counting."""

    def summary(self, budget: Budget) -> dict[str, Any]:
        """What is known of costs and errors before any data are read."""

    def expected(self, budget: Budget, most: int) -> Sequence[Mapping[str, Any]]:
        """Of at most so many sets of each part, evenly taken: name (family and degree), attributes, queries, and the
        root mean square error in records; nothing where that is not known beforehand."""

    def cards(self, budget: Budget) -> list[tuple[str, str]]:
        """The same for a reader: a figure and what it is."""

    def write(self, folder: Path) -> None: ...
    @property
    def digest(self) -> str:
        """SHA-256 of plan.json as it is or would be written."""

    @property
    def law(self) -> list[Any]:
        """What fixes the noise, beside the plan itself: a part of what the ledger knows a release by."""

    def check_low_order(self) -> None:
        """PlanError where low-order tables cannot be made of what will be measured."""

    def first(self) -> Decision: ...
    def decision(self, written: Mapping[str, Any]) -> Decision:
        """A later decision as it was written; ValueError unless it is one of such a run and costs what it says."""

    def begun(self, first: Any, values: Sequence[Floats], second: Any = None) -> Any:
        """The state after the first decision; `second`: the next one, where it was taken already."""

    def selection(self, state: Any) -> Selection | None:
        """What the next round selects among; None where nothing is left to select."""

    def decided(self, state: Any, selection: Any, chosen: Sequence[AttributeSet]) -> Decision: ...
    def advanced(self, state: Any, decision: Any, values: Sequence[Floats]) -> Any: ...
    def touched(self, before: Any, after: Any) -> Iterable[AttributeSet]:
        """The candidates of which another is believed than before."""

    def trace(self, state: Any) -> list[dict[str, Any]] | None:
        """What was chosen when, for people; None where nothing ever is."""

    def evidence(self, taken: Sequence[tuple[Any, Sequence[Floats]]]) -> Any:
        """All decisions with their values, as reconstructions take them."""


SCALE = 256  # distances are whole numbers of 1/SCALE


@dataclass(frozen=True)
class Tables:
    """Estimates over groups that are at hand."""

    tables: Mapping[AttributeSet, Floats]

    def marginal(self, names: AttributeSet) -> Floats:
        return self.tables[names]
