"""What adaptive mechanisms share before any record is read: parts of the budget, the question, the plan read back."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import TypeVar

from dpscale.base.errors import JobError
from dpscale.base.faults import Settings, setting
from dpscale.base.names import AttributeSet
from dpscale.mechanisms.aim.beliefs import Beliefs
from dpscale.mechanisms.aim.chain import Chosen
from dpscale.mechanisms.aim.cumulated import strategies
from dpscale.mechanisms.aim.schedule import RoundSchedule
from dpscale.mechanisms.aim.setting import Setting
from dpscale.mechanisms.contract import Question
from dpscale.plans.planfile import check_content
from dpscale.privacy.budget import LAPLACE
from dpscale.workload.targets import targets_of, whole_weights

FINEST = 1 << 20
AnyChosen = TypeVar("AnyChosen", bound=Chosen)


class Shares(Settings):
    """How the budget is shared, and over which cells sets are measured."""

    ones: float = setting(0.3, "a share from 0.01 to 0.99", "the 1-ways' share of β", ge=0.01, le=0.99)
    selecting: float = setting(
        0.1, "a share from 0.01 to 0.99", "the share of a round that pays its choices", ge=0.01, le=0.99
    )
    grain: float = setting(0.3, "a number from 0 to 100", "how coarse groups of cells are", ge=0, le=100)

    @property
    def share_of_ones(self) -> Fraction:
        return _share(self.ones)

    @property
    def share_of_choices(self) -> Fraction:
        return _share(self.selecting)

    def exact(self) -> dict[str, str]:
        """As plan.json has them."""
        shares = {"ones": self.share_of_ones, "selecting": self.share_of_choices}
        return {name: str(value) for name, value in (self.model_dump() | shares).items()}


def _share(value: float) -> Fraction:
    return Fraction(str(value)).limit_denominator(FINEST)


def asked(
    question: Question, schedule: RoundSchedule, beliefs: Beliefs, weighted: bool = True, cumulated: bool = False
) -> Setting:
    """The question as a setting; `weighted`: by the workload's weights; `cumulated`: 1-ways of which cumulative
    queries are asked are measured for these. JobError for pure privacy."""
    if question.noise == LAPLACE:
        raise JobError("privacy", "epsilon alone (pure) for an adaptive mechanism",
                       "epsilon with delta, rho or privacy_cost", "add delta")  # fmt: skip
    targets = targets_of(question.workload)
    sizes = {attribute.name: attribute.size for attribute in question.workload.domain.attributes}
    weights: Iterable[int] = whole_weights(targets) if weighted else ()
    named: tuple[AttributeSet, ...] = tuple(targets)
    return Setting(sizes, named, Fraction(question.budget.amount), question.rows_per_unit, schedule, beliefs,
                   tuple(weights), strategies(question.workload) if cumulated else {})  # fmt: skip


def same_as_kept(planned: AnyChosen, folder: Path) -> AnyChosen:
    """The plan that follows from a job; JobError unless it is the one in the folder."""
    check_content(folder, planned.to_dict())
    return planned
