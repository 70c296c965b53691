"""MST (McKenna, Miklau and Sheldon, 2021): 1-ways, a spanning tree of pairs, and nothing else.

1-ways are measured first. Then one edge after the other is chosen by the exponential mechanism, among the pairs that
close no circle, by how far a pair is from the product of its 1-ways (L1); all pairs of the tree are measured at once.
The graphical model of a tree has two attributes a clique, whatever the number of attributes. Here a pair is measured by
its residuals over groups of cells, given what the 1-ways told of them already: the same cost, less noise.

What it costs, in squared μ of Gaussian DP, adds up: β = ones·β for the 1-ways and, of the rest, `selecting` for all
choices together and the others for all pairs. One record, of up to k a unit, moves a pair's distance by k at most,
so a choice among scores of sensitivity k is an exponential mechanism at ε/(2k), whose range is ε: `privacy.selection`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

from dpscale.errors import JobError
from dpscale.faults import Settings, setting
from dpscale.mechanisms.aim.beliefs import MaximumEntropy
from dpscale.mechanisms.aim.chain import Chosen
from dpscale.mechanisms.aim.graphical import Graphical
from dpscale.mechanisms.aim.schedule import Batched
from dpscale.mechanisms.aim.selection import Selection
from dpscale.mechanisms.aim.setting import Setting
from dpscale.mechanisms.aim.state import State
from dpscale.mechanisms.contract import Mechanism, Question, Tools
from dpscale.names import AttributeSet
from dpscale.plans.planfile import check_content
from dpscale.privacy.budget import LAPLACE
from dpscale.workload.targets import targets_of

NAME = "mst"
FINEST = 1 << 20


class Options(Settings):
    """How the budget is shared, and over which cells pairs are measured."""

    ones: float = setting(0.3, "a share from 0.01 to 0.99", "the 1-ways' share of β", ge=0.01, le=0.99)
    selecting: float = setting(
        0.1, "a share from 0.01 to 0.99", "the share of the rest that pays the choice of the tree", ge=0.01, le=0.99
    )
    grain: float = setting(0.45, "a number from 0 to 100", "how coarse groups of cells are", ge=0, le=100)

    def exact(self) -> dict[str, str]:
        """As plan.json has them."""
        return {"ones": str(_share(self.ones)), "selecting": str(_share(self.selecting)), "grain": str(self.grain)}


def _share(value: float) -> Fraction:
    return Fraction(str(value)).limit_denominator(FINEST)


def joined(pairs: Sequence[AttributeSet]) -> dict[str, str]:
    """Of every attribute the one that its part goes by, where pairs join attributes."""
    head: dict[str, str] = {}

    def head_of(name: str) -> str:
        while head.setdefault(name, name) != name:
            name = head[name]
        return name

    for one, other in pairs:
        head[head_of(one)] = head_of(other)
    return {name: head_of(name) for name in list(head)}


@dataclass(frozen=True, eq=False)
class Branches(Selection):
    """Pairs, of which those are left that close no circle; a score is the distance alone, and all count the same."""

    def left(self, chosen: Sequence[AttributeSet]) -> Sequence[AttributeSet]:
        parts = joined(chosen)
        return [pair for pair in self.candidates if parts.get(pair[0], pair[0]) != parts.get(pair[1], pair[1])]

    def offset(self, names: AttributeSet) -> int:
        return 0


@dataclass(frozen=True)
class Half(Batched):
    """One round with everything in it; groups are chosen for pairs at what is then given to each."""

    edges: int = 1

    def first_step(self, beta: Fraction, attributes: int, candidates: int) -> Fraction:
        return (beta - attributes * self.one_way_cost(beta, attributes, candidates)) / max(self.edges, 1)


@dataclass(frozen=True, eq=False)
class Tree(Chosen):
    """One round takes the whole tree and all that is left."""

    def selection(self, state: State) -> Selection | None:
        if state.done:
            return None
        setting = state.setting
        count = len(joined(setting.candidates)) - len(set(joined(setting.candidates).values()))
        step = state.left / count
        cost = setting.schedule.selecting * step
        return Branches(state.measured + 1, setting.candidates, dict.fromkeys(setting.candidates, 1), state.groups,
                        count, cost, step - cost, 0.0, setting.rows_per_unit)  # fmt: skip


def plan(question: Question, options: Options, tools: Tools | None = None) -> Tree:
    """What the tree will be chosen among, at what cost. PlanError or JobError for what cannot be asked."""
    if question.noise == LAPLACE:
        raise JobError("privacy", "epsilon alone (pure) for an adaptive mechanism", "epsilon with delta, or beta",
                       "add delta")  # fmt: skip
    workload, targets = question.workload, tuple(targets_of(question.workload))
    sizes = {attribute.name: attribute.size for attribute in workload.domain.attributes}
    schedule = Half(ones=_share(options.ones), selecting=_share(options.selecting), rounds=1)
    asked = Setting(sizes, targets, Fraction(question.budget.amount), question.rows_per_unit, schedule,
                    Graphical(options.grain))  # fmt: skip
    heads = joined(asked.candidates)
    asked = replace(asked, schedule=replace(schedule, edges=len(heads) - len(set(heads.values()))))
    estimating = replace(asked, beliefs=MaximumEntropy(options.grain))
    return Tree(workload, NAME, asked, estimating, "a spanning tree of pairs", options.exact())


def read(folder: Path, question: Question, options: Options) -> Tree:
    """The plan that follows from a job; JobError unless it is the one in the folder."""
    planned = plan(question, options)
    check_content(folder, planned.to_dict())
    return planned


def forms(options: Options) -> tuple[str, ...]:
    return ("measurements", "low_order")


MECHANISM = Mechanism(NAME, Options, plan, read, forms, beforehand=False)
