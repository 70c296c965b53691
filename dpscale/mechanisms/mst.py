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

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpscale.base.display import AttributeSet
from dpscale.mechanisms.aim.adaptive_plan import Chosen, Shares, matches_stored, requested_measurements
from dpscale.mechanisms.aim.beliefs import MaximumEntropy
from dpscale.mechanisms.aim.decision import Selection
from dpscale.mechanisms.aim.graphical import Graphical
from dpscale.mechanisms.aim.schedule import Batched
from dpscale.mechanisms.aim.state import State
from dpscale.mechanisms.contract import Mechanism, Question, Tools

NAME = "mst"


class Options(Shares):
    """How the budget is shared; all choices are one round."""


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

    def lost(self, chosen: Sequence[AttributeSet]) -> Iterable[int]:
        """The pairs within a part."""
        numbers, ends = self._ends
        parts = np.arange(len(numbers))
        for name, head in joined(chosen).items():
            parts[numbers[name]] = numbers[head]
        return np.flatnonzero(parts[ends[:, 0]] == parts[ends[:, 1]])

    @cached_property
    def _ends(self) -> tuple[dict[str, int], NDArray[np.int64]]:
        """Numbers of the attributes, and the two of every pair."""
        numbers = {name: number for number, name in enumerate(self.groups)}
        ends = [(numbers[one], numbers[other]) for one, other in self.candidates]
        return numbers, np.array(ends, dtype=np.int64)

    def offset(self, names: AttributeSet) -> int:
        return 0


@dataclass(frozen=True)
class Half(Batched):
    """One round with everything in it; groups are chosen for pairs at what is then given to each."""

    edges: int = 1

    def first_step(self, beta: Fraction, attributes: int, candidates: Sequence[AttributeSet]) -> Fraction:
        return (beta - attributes * self.one_way_cost(beta, attributes, len(candidates))) / max(self.edges, 1)

    def doubtful(self, moved: Iterable[float], noise: Iterable[float]) -> bool:
        return False


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
    schedule = Half(ones=options.share_of_ones, selecting=options.share_of_choices, rounds=1, degree=2)
    own = requested_measurements(question, schedule, Graphical(options.grain), weighted=False)
    heads = joined(own.candidates)
    own = replace(own, schedule=replace(schedule, edges=len(heads) - len(set(heads.values()))))
    estimating = replace(own, beliefs=MaximumEntropy(options.grain, rules=question.workload.domain.rules))
    return Tree(question.workload, NAME, own, estimating, "a spanning tree of pairs", options.exact())


def read(folder: Path, question: Question, options: Options) -> Tree:
    return matches_stored(plan(question, options), folder)


def forms(options: Options) -> tuple[str, ...]:
    return ("measurements", "low_order")


MECHANISM = Mechanism(NAME, Options, plan, read, forms, beforehand=False)
