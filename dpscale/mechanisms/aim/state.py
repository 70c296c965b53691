"""The state of an AIM run: a function of released values alone, so that anyone could continue from what was published.

Nothing here is random and nothing sees a count. Budgets are exact fractions: the last round takes all that is left, so
β is met exactly. A state can be rebuilt from the decisions and the measured values of its rounds, read back from disk.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

import numpy as np

from dpscale.base.arrays import Floats
from dpscale.base.display import AttributeSet
from dpscale.mechanisms.aim.beliefs import Belief
from dpscale.mechanisms.aim.decision import (
    NOISE_L1,
    Decision,
    ResidualOrder,
    Selection,
    deviation,
    one_way_order,
    residual_orders,
)
from dpscale.mechanisms.aim.setting import Setting
from dpscale.plans.measurement_plan import CurrentEstimates
from dpscale.reconstruction.one_way import NoisyCounts, total_of
from dpscale.workload.residual.grem import Residuals
from dpscale.workload.residual.in_axis import Groups, every_cell

SURE = Fraction(3, 4)


@dataclass(frozen=True)
class Round:
    """What a round chose and spent, and how far its measurements moved the estimates: all of it released.

    `step`: β of one measurement with its selection, `choosing` of the selection alone; `moved`, `expected_noise`: of
    each chosen set, L1 over groups, 0 of nothing; `of_ones`: whether it went back to the 1-ways.
    """

    chosen: tuple[AttributeSet, ...]
    step: Fraction
    moved: tuple[float, ...]
    expected_noise: tuple[float, ...]
    of_ones: bool = False
    choosing: Fraction = Fraction(0)


@dataclass(frozen=True, eq=False)
class State:
    """After some rounds. `counts`: the measured 1-ways; `residuals`: of marginals over `groups`; `left`: β not spent;
    `step`: β of the next measurement with its selection; `offered`: what may be chosen; `earlier`: what was believed a
    round before."""

    setting: Setting
    counts: Mapping[str, NoisyCounts]
    groups: Mapping[str, Groups]
    residuals: Residuals
    left: Fraction
    step: Fraction
    offered: tuple[AttributeSet, ...] = ()
    rounds: tuple[Round, ...] = ()
    measured: int = 0
    earlier: Belief | None = None

    @property
    def rows(self) -> int:
        """About how many records there are: a released number."""
        return round(total_of(self.counts))

    @cached_property
    def belief(self) -> Belief:
        """The estimates from all that was measured."""
        setting = self.setting
        return setting.beliefs.belief(self.counts, self.groups, self.residuals, setting.candidates, self.earlier)

    def believed(self, sets: Sequence[AttributeSet]) -> CurrentEstimates:
        """What is believed of candidates, to be sent to where they are held against exact counts."""
        return self.belief.of(sets)

    def marginal(self, names: Sequence[str]) -> Floats:
        """The estimated marginal over cells, an axis each in the order asked."""
        return self.belief.marginal(names)

    @property
    def done(self) -> bool:
        return self.left == 0 or not self.setting.candidates


def first_decision(setting: Setting) -> Decision:
    """The 1-ways, each over its cells."""
    groups = {name: every_cell(setting.sizes[name]) for name in setting.names}
    return _of_ones(setting, 0, setting.one_way_cost, groups)


def _of_ones(setting: Setting, number: int, cost: Fraction, groups: Mapping[str, Groups]) -> Decision:
    """A round that measures all 1-ways over their cells, at a mean β of `cost`."""
    cells = [every_cell(setting.sizes[name]) for name in setting.names]
    costs = _costs(setting, [one.count for one in cells], cost)
    orders = tuple(one_way_order((number, rank), name, one, beta, setting.rows_per_unit, setting.strategies.get(name))
                   for rank, (name, one, beta) in enumerate(zip(setting.names, cells, costs, strict=True)))  # fmt: skip
    return Decision(number, tuple((name,) for name in setting.names), Fraction(0), cost, groups, orders)


def _costs(setting: Setting, cells: Sequence[int], mean: Fraction) -> list[Fraction]:
    """β of measurements of so many cells."""
    return [share * len(cells) * mean for share in setting.schedule.shares(cells)]


def _costs_of(state: State, chosen: Sequence[AttributeSet], mean: Fraction) -> dict[AttributeSet, Fraction]:
    """The same of sets over groups; nothing costs nothing."""
    sets = [names for names in chosen if names]
    cells = [math.prod(state.groups[name].count for name in names) for names in sets]
    return dict(zip(sets, _costs(state.setting, cells, mean), strict=True))


def begun(
    setting: Setting, decision: Decision, values: Sequence[Floats], groups: Mapping[str, Groups] | None = None
) -> State:
    """The state after the 1-ways. Groups are chosen here, once; `groups`: as they were chosen before."""
    counts = {order.names[0]: order.counts(value) for order, value in zip(decision.orders, values, strict=True)}
    if groups is None:
        groups = _grouped(setting, counts) if setting.candidates else decision.groups
    residuals = Residuals({name: grouping.count for name, grouping in groups.items()}).updated(
        setting.beliefs.begun(counts)
    )
    noise = _noise(setting, groups, total_of(counts))
    share = setting.schedule.cheaper(_mean([noise(names) for names in setting.candidates if len(names) == 2]))
    offered = tuple(names for names in setting.candidates
                    if len(names) <= 2 or setting.schedule.offers(noise(names), share))  # fmt: skip
    offered = tuple(names for names in offered if not setting.beliefs.settled(names, groups))
    step = setting.first_step * (share if any(len(names) > 2 for names in offered) else 1)
    return State(setting, counts, groups, residuals, setting.beta - decision.spent, step, offered)


def _noise(setting: Setting, groups: Mapping[str, Groups], total: float) -> Callable[[AttributeSet], float]:
    """How much noise an even step brings to a set, L1 over records."""
    one = NOISE_L1 * deviation(setting.first_step, setting.rows_per_unit) / total if setting.candidates else 0.0
    return lambda names: one * math.prod(groups[name].count for name in names)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else 0.0


def _grouped(setting: Setting, counts: Mapping[str, NoisyCounts]) -> dict[str, Groups]:
    return setting.beliefs.groups(counts, deviation(setting.first_step, setting.rows_per_unit))


def next_selection(state: State) -> Selection | None:
    """What the next round selects among; None where all is spent."""
    if state.done:
        return None
    setting, schedule, back = state.setting, state.setting.schedule, _back(state)
    count, step = (0, state.left * back / len(setting.names)) if back else _afforded(state)
    candidates: tuple[AttributeSet, ...] = () if back else _choices(state)
    cost = Fraction(0) if back else schedule.selecting * step
    return Selection(state.measured + 1, candidates, setting.weights, state.groups, count, cost, step - cost,
                     schedule.penalty, setting.rows_per_unit)  # fmt: skip


def _choices(state: State) -> tuple[AttributeSet, ...]:
    """What is offered; in doubt nothing as well, as often as there are sets, so that their number does not outvote it:
    unless one measurement has to take all that is left."""
    nothing = _doubtful(state) and not _single(state)
    return (*state.offered, *[()] * len(state.offered)) if nothing else state.offered


def _doubtful(state: State) -> bool:
    return state.setting.schedule.doubtful(*_effects(state))


def _single(state: State) -> bool:
    """Whether no more than one measurement is affordable."""
    return state.left < 2 * state.step


def _effects(state: State) -> tuple[list[float], list[float]]:
    """How far all measurements but those of 1-ways moved the estimates, and their noise."""
    others = [note for note in state.rounds if not note.of_ones]
    return [one for note in others for one in note.moved], [one for note in others for one in note.expected_noise]


def _back(state: State) -> Fraction:
    """The share of what is left that goes back to the 1-ways, after a round of others that was in vain; or all of it,
    if surely nothing is to be had and one measurement would take it."""
    if all(note.of_ones for note in state.rounds):
        return Fraction(0)
    total = total_of(state.counts)
    noise = [NOISE_L1 * math.sqrt(one.variance) * len(one.values) / total for one in state.counts.values()]
    share = state.setting.schedule.again(*_effects(state), _mean(noise))
    if _single(state) and _doubtful(state) and share >= SURE:
        return Fraction(1)
    return share * (not state.rounds[-1].of_ones)


def _afforded(state: State) -> tuple[int, Fraction]:
    """How many measurements the round makes and β for each; the last round takes all that is left."""
    batch, affordable = min(state.setting.batch(state.step), len(state.offered)), int(state.left / state.step)
    if affordable > batch:
        return batch, state.step
    count = max(1, min(batch, affordable))
    return count, state.left / count


def decided(state: State, selection: Selection, chosen: Sequence[AttributeSet]) -> Decision:
    """The measurements of a round, after its selections."""
    setting = state.setting
    if selection.of_nothing:
        return _of_ones(setting, selection.round, selection.step, state.groups)
    had = setting.beliefs.precisions(state.counts, state.groups, state.residuals)
    orders: list[ResidualOrder] = []
    costs = _costs_of(state, chosen, selection.step)
    for rank, names in enumerate(chosen):
        if not names:
            continue
        beta = costs[names]
        groups, where = [state.groups[name] for name in names], (selection.round, rank)
        added = residual_orders(names, groups, had, beta, setting.rows_per_unit, where)
        orders += added
        for order in added:
            had[order.names] = had.get(order.names, 0.0) + 1 / order.variance
    orders.sort(key=lambda order: setting.place(order.source))  # so that the worker of a shard fills few files
    return Decision(selection.round, tuple(chosen), selection.beta, selection.step, state.groups, tuple(orders))


def absorbed(state: State, decision: Decision, values: Sequence[Floats]) -> State:
    """The state with a round's measurements in its estimates; what the next round does is not decided yet."""
    after = replace(state, left=state.left - decision.spent, measured=decision.round)
    taken = list(zip(decision.orders, values, strict=True))
    if not decision.of_ones:
        measured = [(order.names, value, 1 / order.variance) for order, value in taken]
        return replace(after, residuals=state.residuals.updated(measured))
    again = {order.names[0]: order.counts(value) for order, value in taken}
    told = state.setting.beliefs.begun(again)
    counts = {name: noisy.averaged(again[name]) for name, noisy in state.counts.items()}
    return replace(after, counts=counts, residuals=state.residuals.updated(told))


def advanced(state: State, decision: Decision, values: Sequence[Floats]) -> State:
    """The state after a round: estimates updated, budget annealed by how far the *estimates* moved."""
    after = replace(absorbed(state, decision, values), earlier=state.belief)
    if not decision.measured:
        vars(after)["belief"] = state.belief
    costs = _costs_of(state, decision.chosen, decision.step)
    effects = [_effect(state, after, names, costs) if names else (0.0, 0.0) for names in decision.chosen]
    moved, noise = zip(*effects, strict=True)
    note = Round(decision.chosen, decision.step + decision.beta, moved, noise, decision.of_ones, decision.beta)
    if decision.of_ones:
        return _noted(after, note, state.step)
    return _noted(after, note, state.setting.schedule.annealed(note.step, moved, noise))


def _effect(
    before: State, after: State, names: AttributeSet, costs: Mapping[AttributeSet, Fraction]
) -> tuple[float, float]:
    """How far a measurement moved an estimate, and its noise: both L1 over groups."""
    old = before.belief.table(names)
    noise = NOISE_L1 * deviation(costs[names], before.setting.rows_per_unit) * old.size
    return float(np.abs(after.belief.table(names) - old).sum()), noise


def _noted(state: State, note: Round, step: Fraction) -> State:
    """The state with a round noted; its belief, which is made already, is of the same measurements."""
    noted = replace(state, rounds=(*state.rounds, note), step=step)
    vars(noted)["belief"] = state.belief
    return noted


def touched(before: State, after: State) -> list[AttributeSet]:
    """The candidates whose estimates a round may have moved."""
    return after.setting.beliefs.touched(before.residuals, after.residuals, after.setting.candidates)
