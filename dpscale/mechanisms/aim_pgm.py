"""AIM (McKenna, Mullins, Sheldon and Miklau, 2022): measured is what the graphical model of all before gets most wrong.

Candidates are all sets inside the workload's. A set r scores w_r (‖M_r − M_r(p̂)‖₁ − √(2/π) σ n_r), with the weight
w_r = Σ_s c_s |r ∩ s| over the workload's sets s; where a round moved the estimates by no more than its noise, the next
has four times the budget a measurement. A set is only offered if the model's cliques would keep, with it, to
`most_cells` times the share of the budget that is spent by then: public numbers, so what is offered costs nothing.

Two things are our own: a set is measured by its residuals over groups of cells, given what is known of each already
(same cost, less noise), and a round may take several sets (`batch`).

What it costs, in squared μ of Gaussian DP, adds up, and every round's choices are told in its decision and charged
before: a share `selecting` of each measurement's β pays its choice. Two mistakes of public AIM code are not here:
scores have the sensitivity of the largest weight times the records that a unit may hold (the contribution bound); and
an exponential mechanism at ε/2Δ costs what a range of ε costs, with no discount for scores that are called monotonic:
a distance goes up for one record and down for another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from pathlib import Path

from dpscale.base.display import AttributeSet
from dpscale.base.settings import setting
from dpscale.mechanisms.aim.adaptive_plan import Chosen, Shares, matches_stored, requested_measurements
from dpscale.mechanisms.aim.beliefs import MaximumEntropy
from dpscale.mechanisms.aim.decision import Selection
from dpscale.mechanisms.aim.graphical import Graphical
from dpscale.mechanisms.aim.schedule import FEWER, Inside, Plainly, Targets, by_overlap, vain
from dpscale.mechanisms.aim.state import State
from dpscale.mechanisms.contract import Mechanism, Question, Tools
from dpscale.reconstruction.junction_tree.tree import model_cells

NAME = "aim-pgm"


class Options(Shares):
    """How the loop goes about it."""

    degree: int = setting(3, "a whole number from 2 to 6", "the largest set that is measured", ge=2, le=6)
    measured: int = setting(
        48, "a whole number from 1 to 10000", "how many sets the budget is meant to measure at first", ge=1, le=10_000
    )
    batch: int = setting(2, "a whole number from 1 to 1000", "sets chosen a round", ge=1, le=1000)
    most_cells: int = setting(1 << 16, "a whole number from 1 to 10^9", "how many cells the model's cliques may have "
                              "together, once all is spent", ge=1, le=10**9)  # fmt: skip


@dataclass(frozen=True)
class Rounds(Plainly):
    """How it spends: as in the paper, but for the 1-ways' share and several sets a round."""

    ones: Fraction
    selecting: Fraction
    degree: int
    measured: int
    sets: int
    penalty: float = 1.0

    @property
    def fewer(self) -> str:
        return "set mechanism.degree = 2" if self.degree > 2 else FEWER

    def sizes(self, attributes: int) -> tuple[int, int]:
        return 1, self.degree

    def one_way_cost(self, beta: Fraction, attributes: int, candidates: int) -> Fraction:
        return self.ones * beta / attributes

    def first_step(self, beta: Fraction, attributes: int, candidates: Sequence[AttributeSet]) -> Fraction:
        return (beta - self.ones * beta) / min(self.measured, max(len(candidates), 1))

    def weights(self, candidates: Sequence[AttributeSet], targets: Targets, inside: Inside) -> dict[AttributeSet, int]:
        """Σ_s c_s |r ∩ s|."""
        return by_overlap(candidates, targets)

    def batch(self, candidates: Sequence[AttributeSet], share: Fraction) -> int:
        return self.sets

    def annealed(self, step: Fraction, moved: Iterable[float], noise: Iterable[float]) -> Fraction:
        """Half the noise for the next, where at least half of a round was in vain."""
        moved = list(moved)
        return 4 * step if 2 * vain(moved, noise, 1.0) >= len(moved) else step


@dataclass(frozen=True, eq=False)
class Fitting(Selection):
    """Candidates whose model is small enough, with all sets that were chosen before and in this round.

    `sizes`: groups of every attribute; `kept`: the sets measured so far; `limit`: the cells that are allowed by now.
    """

    sizes: Mapping[str, int]
    kept: tuple[AttributeSet, ...]
    limit: int

    def lost(self, chosen: Sequence[AttributeSet]) -> Iterable[int]:
        left = set(fitting(self.candidates, self.sizes, [*self.kept, *chosen], self.limit))
        return [place for place, names in enumerate(self.candidates) if names not in left]


def fitting(
    candidates: Sequence[AttributeSet], sizes: Mapping[str, int], kept: Sequence[AttributeSet], limit: int
) -> list[AttributeSet]:
    """Those that the model may take; at least those that leave it as it is, and all single attributes."""
    held = [set(names) for names in kept]
    return [names for names in candidates
            if len(names) == 1 or any(set(names) <= one for one in held)
            or model_cells(sizes, [*kept, names]) <= limit]  # fmt: skip


@dataclass(frozen=True, eq=False)
class Growing(Chosen):
    """A chain whose candidates are as many as the model has room for. `most_cells`: when all is spent."""

    most_cells: int = 1 << 16

    def selection(self, state: State) -> Selection | None:
        """Found once a state: it takes a triangulation a candidate."""
        if "selection" not in vars(state):
            asked = super().selection(state)
            vars(state)["selection"] = None if asked is None else self._fitting(state, asked)
        found: Selection | None = vars(state)["selection"]
        return found

    def _fitting(self, state: State, selection: Selection) -> Fitting:
        """Single attributes can always be chosen, so that many sets a round there are."""
        sizes = {name: one.count for name, one in state.groups.items()}
        kept = tuple(dict.fromkeys(names for note in state.rounds for names in note.chosen))
        spent = 1 - (state.left - selection.count * (selection.beta + selection.step)) / state.setting.beta
        limit = int(self.most_cells * spent)
        offered, count = tuple(fitting(selection.candidates, sizes, kept, limit)), min(selection.count, len(sizes))
        mine = {field.name: getattr(selection, field.name) for field in fields(Selection)}
        mine |= {"candidates": offered, "count": count, **self._steps(state, selection, count)}
        return Fitting(**mine, sizes=sizes, kept=kept, limit=limit)

    def _steps(self, state: State, selection: Selection, count: int) -> dict[str, Fraction]:
        """β of a choice and of a measurement; where fewer sets are left than the round would take, more for each."""
        step = (selection.beta + selection.step) * selection.count / count
        cost = state.setting.schedule.selecting * step
        return {"beta": cost, "step": step - cost}


def plan(question: Question, options: Options, tools: Tools | None = None) -> Growing:
    """What will be chosen among, at what cost. PlanError or JobError for what cannot be asked."""
    schedule = Rounds(options.share_of_ones, options.share_of_choices, options.degree, options.measured, options.batch)
    own = requested_measurements(question, schedule, Graphical(options.grain))
    estimating = replace(own, beliefs=MaximumEntropy(options.grain, rules=question.workload.domain.rules))
    return Growing(question.workload, NAME, own, estimating, "graphical models", options.exact(),
                   most_cells=options.most_cells)  # fmt: skip


def read(folder: Path, question: Question, options: Options) -> Growing:
    return matches_stored(plan(question, options), folder)


def forms(options: Options) -> tuple[str, ...]:
    return ("measurements", "low_order")


MECHANISM = Mechanism(NAME, Options, plan, read, forms, beforehand=False)
