"""AIM (McKenna, Mullins, Sheldon and Miklau, 2022): a round measures the sets that the graphical model fits worst.

Candidates are all sets inside the workload's. The score of a set r is w_r (‖M_r − M_r(p̂)‖₁ − √(2/π) σ n_r), with the
weight w_r = Σ_s c_s |r ∩ s| over the workload's sets s. After a round that changed the estimates by no more than its
noise, the next measurements have four times the budget. A set is offered only if the cliques of the model with it have
at most `most_cells` cells times the share of the budget spent by then. These are public numbers, so the restriction
costs nothing.

By default two parts differ from the paper: a set is measured by its residuals over groups of cells, given the precision
of each (same cost, less noise), and a round may measure several sets (`batch`). With `published = true` a round
measures one set with equal noise in every cell, and the budget is divided as in the paper. Its residuals have the
same cost and information as its cells: together they have the same covariance, which is all that the fit uses.

Costs, in squared μ of Gaussian DP, add up. The selections of every round are part of its decision and charged before
the draw: a share `selecting` of each measurement's β pays for its selection. Two errors of public AIM code are avoided:
scores have the sensitivity of the largest weight times the contribution bound; and an exponential mechanism at ε/2Δ
costs as much as a range of ε, without the discount for monotonic scores: a distance increases with one record and
decreases with another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import cached_property, partial
from typing import Any, ClassVar

from pydantic import model_validator

from dpscale.base.numerics import AttributeSet
from dpscale.base.settings import setting
from dpscale.mechanisms.aim import structure
from dpscale.mechanisms.aim.adaptive_plan import (
    GRAIN,
    ONES,
    SELECTING,
    AdaptiveOptions,
    AdaptivePlan,
    adaptive_mechanism,
    make_setting,
)
from dpscale.mechanisms.aim.decision import AimSelection
from dpscale.mechanisms.aim.estimators import EntropyEstimator, GraphicalEstimator
from dpscale.mechanisms.aim.setting import (
    FEWER,
    EvenSchedule,
    Inside,
    PublishedSchedule,
    RoundSchedule,
    Targets,
    by_overlap,
    count_uninformative,
)
from dpscale.mechanisms.aim.state import AimState
from dpscale.mechanisms.contract import PlanningProblem, Tools
from dpscale.reconstruction.junction_tree import model_cells

NAME = "aim-pgm"
PUBLISHED_ROUNDS, PUBLISHED_CELLS = 16, 6_553_600  # rounds per attribute; 50 MB of 8-byte cells


class Options(AdaptiveOptions):
    """Options of the adaptive loop."""

    degree: int = setting(3, "a whole number from 2 to 6", "attributes of the largest set that is measured", ge=2, le=6)
    most_cells: int = setting(1 << 16, "a whole number from 1 to 10^9", "how many cells the model's cliques may have "
                              "together, once all is spent; 6553600 (50 MB) with published = true",
                              ge=1, le=10**9)  # fmt: skip
    prior: list[list[str]] | str = setting([], structure.TAKES, structure.MEANS)
    published: bool = setting(False, "true or false", "true: AIM+PGM as in the paper, with the option most_cells only")
    with_published: ClassVar[tuple[str, ...]] = ("published", "most_cells")
    omitted: ClassVar[tuple[str, ...]] = ("published", "prior")
    fixed: ClassVar[Mapping[str, str]] = {**AdaptiveOptions.fixed, "measured": "48", "batch": "2"}

    @model_validator(mode="before")
    @classmethod
    def _published_size(cls, given: Any) -> Any:
        """Add the larger `most_cells` of the published mechanism, unless the options state it."""
        published = isinstance(given, Mapping) and given.get("published") is True
        return {"most_cells": PUBLISHED_CELLS, **given} if published else given

    def schedule(self) -> RoundSchedule:
        """Return the schedule of the options."""
        if self.published:
            return PublishedSchedule(isotropic=True, rounds_per_attribute=PUBLISHED_ROUNDS, fewer_candidates=FEWER)
        return AimSchedule(self.degree)


@dataclass(frozen=True)
class AimSchedule(EvenSchedule):
    """Schedule of the default: a share for the 1-ways, an even one for `measured` sets, several sets per round."""

    degree: int
    ones: Fraction = ONES
    selecting: Fraction = SELECTING
    measured: int = 48
    sets: int = 2
    penalty: float = 1.0

    @property
    def fewer_candidates(self) -> str:
        return "set mechanism.degree = 2" if self.degree > 2 else FEWER

    def sizes(self, attributes: int) -> tuple[int, int]:
        return 1, self.degree

    def one_way_cost(self, beta: Fraction, attributes: int, candidates: int) -> Fraction:
        return self.ones * beta / attributes

    def first_step(self, beta: Fraction, attributes: int, weights: Targets, reserved: Fraction) -> Fraction:
        return (beta - self.ones * beta) / min(self.measured, max(len(weights), 1))

    def weights(self, candidates: Sequence[AttributeSet], targets: Targets, inside: Inside) -> dict[AttributeSet, int]:
        """Return Σ_s c_s |r ∩ s|."""
        return by_overlap(candidates, targets)

    def batch(self, weights: Targets, share: Fraction) -> int:
        return self.sets

    def next_step(self, step: Fraction, moved: Iterable[float], noise: Iterable[float]) -> Fraction:
        """Return four times the budget, that is half the noise, if at least half of a round was uninformative."""
        moved = list(moved)
        return 4 * step if 2 * count_uninformative(moved, noise, 1.0) >= len(moved) else step


@dataclass(frozen=True, eq=False, kw_only=True)
class ModelSelection(AimSelection):
    """Selection among candidates whose model, with all sets selected so far, is small enough.

    Attributes
    ----------
    sizes : mapping of str to int
        Number of groups of every attribute.
    measured_sets : tuple of AttributeSet
        Sets selected in earlier rounds.
    limit : int
        Largest number of cells of the model in this round.
    """

    sizes: Mapping[str, int]
    measured_sets: tuple[AttributeSet, ...]
    limit: int

    def excluded(self, chosen: Sequence[AttributeSet]) -> Iterable[int]:
        """Return the positions of candidates with which the model of the round would be too large."""
        allowed = set(candidates_within(self.candidates, self.sizes, [*self.measured_sets, *chosen], self.limit))
        return [place for place, names in enumerate(self.candidates) if names not in allowed]


def candidates_within(
    candidates: Sequence[AttributeSet], sizes: Mapping[str, int], measured_sets: Sequence[AttributeSet], limit: int
) -> list[AttributeSet]:
    """Return the candidates that keep the model small enough or unchanged, and all single attributes.

    A set inside a measured one adds no clique, so it is always offered.
    """
    supersets = [set(names) for names in measured_sets]
    return [names for names in candidates
            if len(names) == 1 or any(set(names) <= superset for superset in supersets)
            or model_cells(sizes, [*measured_sets, names]) <= limit]  # fmt: skip


@dataclass(frozen=True, eq=False, kw_only=True)
class ModelState(AimState):
    """State that limits the model; `most_cells` is the limit when all of the budget is spent."""

    most_cells: int

    @cached_property
    def due(self) -> tuple[AttributeSet, ...]:
        """Sets of the public structure, in order, without those for which the model has no room.

        Sets are added as long as the model of those added so far and the next has at most `most_cells` cells.
        """
        sizes, added = {name: group.count for name, group in self.groups.items()}, list[AttributeSet]()
        for names in super().due:
            if model_cells(sizes, [*added, names]) <= self.most_cells:
                added.append(names)
        return tuple(added)

    @cached_property
    def selection(self) -> AimSelection | None:
        """Selection restricted by the size of the model; single attributes are always offered.

        `spent` is the share of the budget that is spent after this round, and `limit` the permitted cells at that
        share. A round selects at most as many sets as there are attributes; its budget is divided among these.
        """
        unrestricted = super().selection
        if unrestricted is None or unrestricted.is_empty:
            return unrestricted

        sizes = {name: group.count for name, group in self.groups.items()}
        measured_sets = tuple(dict.fromkeys(names for note in self.rounds for names in note.chosen))
        budget = unrestricted.count * (unrestricted.beta + unrestricted.step)  # of the round
        spent = 1 - (self.left - budget) / self.setting.beta
        limit = int(self.most_cells * spent)
        offered = tuple(candidates_within(unrestricted.candidates, sizes, measured_sets, limit))

        count = min(unrestricted.count, len(sizes))
        step = budget / count  # a round of fewer sets spends more on each
        cost = self.setting.schedule.selecting * step
        fields_of = {field.name: getattr(unrestricted, field.name) for field in fields(AimSelection)}
        fields_of |= {"candidates": offered, "count": count, "beta": cost, "step": step - cost}

        return ModelSelection(**fields_of, sizes=sizes, measured_sets=measured_sets, limit=limit)


def plan(problem: PlanningProblem, options: Options, tools: Tools | None = None) -> AdaptivePlan:
    """Return the candidates and their cost as a plan; PlanError or JobError for unsupported workloads."""
    chosen = make_setting(problem, options.schedule(), GraphicalEstimator(GRAIN, by_cell=options.published))
    chosen = replace(chosen, state=partial(ModelState, most_cells=options.most_cells))
    chosen = replace(chosen, prior=structure.sets_of(options.prior, chosen))
    estimating = replace(chosen, estimator=EntropyEstimator(rules=problem.workload.domain.rules))
    kind = "AIM+PGM as published" if options.published else "graphical models"
    return AdaptivePlan(
        workload=problem.workload,
        mechanism=NAME,
        setting=chosen,
        estimating=estimating,
        kind=kind,
        options=options.exact(),
    )


def forms(options: Options) -> tuple[str, ...]:
    return ("measurements", "low_order")


RESUMES = frozenset({"1"})  # it scored listed queries on single cells
MECHANISM = adaptive_mechanism(NAME, Options, plan, forms, "2", RESUMES)
