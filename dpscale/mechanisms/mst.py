"""MST (McKenna, Miklau and Sheldon, 2021): 1-way marginals and a spanning tree of pairs.

The 1-way marginals are measured first. The exponential mechanism then selects one edge after the other among the pairs
that close no cycle; the score of a pair is its L1 distance from the product of its 1-ways. All pairs of the tree are
measured at once. The graphical model of a tree has cliques of two attributes, however many attributes there are. Here a
pair is measured by its residuals over groups of cells, given the 1-way estimates: the same cost with less noise.

Costs, in squared μ of Gaussian DP, add up: β = ones·β for the 1-ways; of the remainder, the share `selecting` pays for
all selections and the rest for all pairs. One record of a unit with up to k records changes the distance of a pair by
k at most, so a selection among scores of sensitivity k is an exponential mechanism at ε/(2k) with range ε
(`privacy.selection`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import ClassVar

import numpy as np

from dpscale.base.numerics import AttributeSet, NDArray
from dpscale.base.settings import setting
from dpscale.mechanisms.aim import structure
from dpscale.mechanisms.aim.adaptive_plan import (
    GRAIN,
    AdaptiveOptions,
    AdaptivePlan,
    adaptive_mechanism,
    make_setting,
)
from dpscale.mechanisms.aim.decision import AimSelection
from dpscale.mechanisms.aim.estimators import EntropyEstimator, GraphicalEstimator
from dpscale.mechanisms.aim.setting import BatchedSchedule, Targets
from dpscale.mechanisms.aim.state import AimState
from dpscale.mechanisms.contract import PlanningProblem, Tools

NAME = "mst"


class Options(AdaptiveOptions):
    """Public structure; all selections are one round."""

    prior: list[list[str]] | str = setting([], structure.TAKES, structure.MEANS)
    omitted: ClassVar[tuple[str, ...]] = ("prior",)


def component_roots(pairs: Sequence[AttributeSet]) -> dict[str, str]:
    """Return the representative of every attribute's connected component in the graph of `pairs`.

    `head` points from an attribute towards the representative of its component (union and find).
    """
    head: dict[str, str] = {}

    def head_of(name: str) -> str:
        while head.setdefault(name, name) != name:
            name = head[name]
        return name

    for first, second in pairs:
        head[head_of(first)] = head_of(second)
    return {name: head_of(name) for name in list(head)}


def edges(pairs: Sequence[AttributeSet]) -> int:
    """Return the number of pairs in a spanning forest of the graph of `pairs`."""
    roots = component_roots(pairs)
    return len(roots) - len(set(roots.values()))


def forest(pairs: Sequence[AttributeSet]) -> tuple[AttributeSet, ...]:
    """Return the pairs, in order, without those that close a cycle."""
    tree = list[AttributeSet]()
    for pair in pairs:
        if edges([*tree, pair]) > len(tree):
            tree.append(pair)
    return tuple(tree)


@dataclass(frozen=True, eq=False)
class TreeSelection(AimSelection):
    """Selection among pairs that close no cycle; the score is the distance and all weights are equal.

    Attributes
    ----------
    taken : tuple of AttributeSet
        Pairs that an earlier round measured.
    """

    taken: tuple[AttributeSet, ...] = ()

    def excluded(self, chosen: Sequence[AttributeSet]) -> Iterable[int]:
        """Return the positions of pairs whose attributes are already connected.

        `_ends` has a number for each attribute and the numbers of both attributes of every pair.
        """
        numbers, ends = self._ends
        parts = np.arange(len(numbers))
        for name, head in component_roots([*self.taken, *chosen]).items():
            parts[numbers[name]] = numbers[head]
        return np.flatnonzero(parts[ends[:, 0]] == parts[ends[:, 1]])

    @cached_property
    def _ends(self) -> tuple[dict[str, int], NDArray[np.int64]]:
        """Numbers of the attributes, and the two attribute numbers of every pair, shape (pairs, 2)."""
        numbers = {name: number for number, name in enumerate(self.groups)}
        ends = [(numbers[first], numbers[second]) for first, second in self.candidates]
        return numbers, np.array(ends, dtype=np.int64)

    def offset(self, names: AttributeSet) -> int:
        return 0


@dataclass(frozen=True)
class TreeSchedule(BatchedSchedule):
    """Schedule of one round with all selections; groups are chosen for the budget of each pair."""

    edges: int = 1

    def first_step(self, beta: Fraction, attributes: int, weights: Targets, reserved: Fraction) -> Fraction:
        return (beta - attributes * self.one_way_cost(beta, attributes, len(weights))) / max(self.edges, 1)

    def allows_empty(self, moved: Iterable[float], noise: Iterable[float]) -> bool:
        return False


class TreeState(AimState):
    """State whose single round selects the whole tree, or what a public structure leaves of it, and spends the rest."""

    @cached_property
    def selection(self) -> AimSelection | None:
        """Choose the next edge of the spanning tree: the pairs that would join two components are the candidates.

        Each of the edges that are left may cost `step`, divided between selection and measurement; None when all are
        there.

        `edges` counts the edges of a spanning forest of the candidates, less those taken; each costs the same part of
        the rest.
        """
        if self.done:
            return None

        setting, taken = self.setting, tuple(names for note in self.rounds for names in note.chosen)
        count = edges(setting.candidates) - len(taken)  # edges that the tree still lacks
        step = self.left / count
        if self.due:
            return self.measuring(step)

        cost, roots = setting.schedule.selecting * step, component_roots(taken)
        open_pairs = tuple(pair for pair in setting.candidates if len({roots.get(name, name) for name in pair}) == 2)
        return TreeSelection(
            round=self.measured + 1,
            candidates=open_pairs,
            weights=dict.fromkeys(open_pairs, 1),
            groups=self.groups,
            count=count,
            beta=cost,
            step=step - cost,
            penalty=0.0,
            rows_per_unit=setting.rows_per_unit,
            taken=taken,
        )


def plan(problem: PlanningProblem, options: Options, tools: Tools | None = None) -> AdaptivePlan:
    """Return the candidates of the tree and their cost; PlanError or JobError for unsupported workloads."""
    schedule = TreeSchedule(rounds=1, degree=2, revision=1)
    pairs = make_setting(problem, schedule, GraphicalEstimator(GRAIN), weighted=False)
    pairs = replace(pairs, schedule=replace(schedule, edges=edges(pairs.candidates)), state=TreeState)
    pairs = replace(pairs, prior=forest(structure.sets_of(options.prior, pairs)))
    estimating = replace(pairs, estimator=EntropyEstimator(rules=problem.workload.domain.rules))
    return AdaptivePlan(
        workload=problem.workload,
        mechanism=NAME,
        setting=pairs,
        estimating=estimating,
        kind="a spanning tree of pairs",
        options=options.exact(),
    )


def forms(options: Options) -> tuple[str, ...]:
    return ("measurements", "low_order")


RESUMES = frozenset({"1"})  # it scored listed queries on single cells
MECHANISM = adaptive_mechanism(NAME, Options, plan, forms, "2", RESUMES)
