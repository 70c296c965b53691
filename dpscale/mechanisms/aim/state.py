"""State of an AIM run: a function of released values, so a run can be continued from its published output.

The functions here are deterministic and do not read counts. Budgets are exact fractions; the last round spends all of
the remaining budget, so the total is exactly β. A state can be rebuilt from the stored decisions and values.
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
    """Selections, costs and effects of a round; all of it is released.

    Attributes
    ----------
    chosen : tuple of AttributeSet
    step : Fraction
        β of one measurement with its selection.
    moved, expected_noise : tuple of float
        Change of the estimate of each selected set and its expected noise, L1 over groups; 0 for the empty set.
    of_ones : bool
        Whether the round repeated the 1-ways.
    choosing : Fraction
        β of one selection.
    """

    chosen: tuple[AttributeSet, ...]
    step: Fraction
    moved: tuple[float, ...]
    expected_noise: tuple[float, ...]
    of_ones: bool = False
    choosing: Fraction = Fraction(0)


@dataclass(frozen=True, eq=False)
class State:
    """State after some rounds.

    Attributes
    ----------
    setting : Setting
    counts : mapping of str to NoisyCounts
        Measured 1-ways.
    groups : mapping of str to Groups
    residuals : Residuals
        Residuals of marginals over `groups`.
    left : Fraction
        β that is not spent.
    step : Fraction
        β of the next measurement with its selection.
    offered : tuple of AttributeSet
        Candidates that may be selected.
    rounds : tuple of Round
    measured : int
        Number of the last measured round.
    earlier : FittedEstimates or None
        Estimates of the previous round.
    """

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
        """Approximate number of records, a released value."""
        return round(total_of(self.counts))

    @cached_property
    def belief(self) -> Belief:
        """Estimates from all measurements."""
        setting = self.setting
        return setting.beliefs.belief(self.counts, self.groups, self.residuals, setting.candidates, self.earlier)

    def believed(self, sets: Sequence[AttributeSet]) -> CurrentEstimates:
        """Return the estimates of candidates, to be sent to the tasks that compare them with exact counts."""
        return self.belief.of(sets)

    def marginal(self, names: Sequence[str]) -> Floats:
        """Return the estimated marginal over cells, one axis per attribute in the requested order."""
        return self.belief.marginal(names)

    @property
    def done(self) -> bool:
        return self.left == 0 or not self.setting.candidates


def first_decision(setting: Setting) -> Decision:
    """Return the decision to measure the 1-ways, each over its cells."""
    groups = {name: every_cell(setting.sizes[name]) for name in setting.names}
    return _of_ones(setting, 0, setting.one_way_cost, groups)


def _of_ones(setting: Setting, number: int, cost: Fraction, groups: Mapping[str, Groups]) -> Decision:
    """Return a round that measures all 1-ways over their cells, at a mean β of `cost`."""
    cells = [every_cell(setting.sizes[name]) for name in setting.names]
    costs = _costs(setting, [one.count for one in cells], cost)
    orders = tuple(one_way_order((number, rank), name, one, beta, setting.rows_per_unit, setting.strategies.get(name))
                   for rank, (name, one, beta) in enumerate(zip(setting.names, cells, costs, strict=True)))  # fmt: skip
    return Decision(number, tuple((name,) for name in setting.names), Fraction(0), cost, groups, orders)


def _costs(setting: Setting, cells: Sequence[int], mean: Fraction) -> list[Fraction]:
    """Return β of measurements with such numbers of cells."""
    return [share * len(cells) * mean for share in setting.schedule.shares(cells)]


def _costs_of(state: State, chosen: Sequence[AttributeSet], mean: Fraction) -> dict[AttributeSet, Fraction]:
    """Return β of sets over groups; the empty set is free."""
    sets = [names for names in chosen if names]
    cells = [math.prod(state.groups[name].count for name in names) for names in sets]
    return dict(zip(sets, _costs(state.setting, cells, mean), strict=True))


def begun(
    setting: Setting, decision: Decision, values: Sequence[Floats], groups: Mapping[str, Groups] | None = None
) -> State:
    """Return the state after the 1-ways; groups are chosen here unless `groups` gives stored ones."""
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
    offered = tuple(names for names in offered if not setting.beliefs.determined_over_groups(names, groups))
    step = setting.first_step * (share if any(len(names) > 2 for names in offered) else 1)
    return State(setting, counts, groups, residuals, setting.beta - decision.spent, step, offered)


def _noise(setting: Setting, groups: Mapping[str, Groups], total: float) -> Callable[[AttributeSet], float]:
    """Return a function that gives the noise of an even step on a set, L1 over records."""
    one = NOISE_L1 * deviation(setting.first_step, setting.rows_per_unit) / total if setting.candidates else 0.0
    return lambda names: one * math.prod(groups[name].count for name in names)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else 0.0


def _grouped(setting: Setting, counts: Mapping[str, NoisyCounts]) -> dict[str, Groups]:
    return setting.beliefs.groups(counts, deviation(setting.first_step, setting.rows_per_unit))


def next_selection(state: State) -> Selection | None:
    """Return the selection of the next round, or None if the budget is spent."""
    if state.done:
        return None
    setting, schedule, back = state.setting, state.setting.schedule, _back(state)
    count, step = (0, state.left * back / len(setting.names)) if back else _afforded(state)
    candidates: tuple[AttributeSet, ...] = () if back else _choices(state)
    cost = Fraction(0) if back else schedule.selecting * step
    return Selection(state.measured + 1, candidates, setting.weights, state.groups, count, cost, step - cost,
                     schedule.penalty, setting.rows_per_unit)  # fmt: skip


def _choices(state: State) -> tuple[AttributeSet, ...]:
    """Return the offered sets, and as many empty sets if the empty set may be selected.

    With equal numbers the sets do not outvote the empty set. It is not offered if one measurement must spend the rest.
    """
    nothing = _doubtful(state) and not _single(state)
    return (*state.offered, *[()] * len(state.offered)) if nothing else state.offered


def _doubtful(state: State) -> bool:
    return state.setting.schedule.doubtful(*_effects(state))


def _single(state: State) -> bool:
    """Return whether at most one measurement is affordable."""
    return state.left < 2 * state.step


def _effects(state: State) -> tuple[list[float], list[float]]:
    """Return the changes of the estimates by all measurements except 1-ways, and their expected noise."""
    others = [note for note in state.rounds if not note.of_ones]
    return [one for note in others for one in note.moved], [one for note in others for one in note.expected_noise]


def _back(state: State) -> Fraction:
    """Return the share of the remaining budget for repeated 1-ways after an uninformative round.

    It is 1 if measurements are almost certainly uninformative and one measurement would spend all of the rest.
    """
    if all(note.of_ones for note in state.rounds):
        return Fraction(0)
    total = total_of(state.counts)
    noise = [NOISE_L1 * math.sqrt(one.variance) * len(one.values) / total for one in state.counts.values()]
    share = state.setting.schedule.again(*_effects(state), _mean(noise))
    if _single(state) and _doubtful(state) and share >= SURE:
        return Fraction(1)
    return share * (not state.rounds[-1].of_ones)


def _afforded(state: State) -> tuple[int, Fraction]:
    """Return the number of measurements of the round and β of each; the last round spends the rest."""
    batch, affordable = min(state.setting.batch(state.step), len(state.offered)), int(state.left / state.step)
    if affordable > batch:
        return batch, state.step
    count = max(1, min(batch, affordable))
    return count, state.left / count


def decided(state: State, selection: Selection, chosen: Sequence[AttributeSet]) -> Decision:
    """Return the measurements of a round from its selected sets."""
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
    """Return the state with a round's measurements in its estimates; the next step is not determined yet."""
    after = replace(state, left=state.left - decision.spent, measured=decision.round)
    taken = list(zip(decision.orders, values, strict=True))
    if not decision.of_ones:
        measured = [(order.names, value, 1 / order.variance) for order, value in taken]
        return replace(after, residuals=state.residuals.updated(measured))
    again = {order.names[0]: order.counts(value) for order, value in taken}
    told = state.setting.beliefs.begun(again)
    counts = {name: noisy.average(again[name]) for name, noisy in state.counts.items()}
    return replace(after, counts=counts, residuals=state.residuals.updated(told))


def advanced(state: State, decision: Decision, values: Sequence[Floats]) -> State:
    """Return the state after a round, with estimates updated and the step annealed by the change of the *estimates*."""
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
    """Return the change of an estimate by a measurement, and its expected noise, both L1 over groups."""
    old = before.belief.table(names)
    noise = NOISE_L1 * deviation(costs[names], before.setting.rows_per_unit) * old.size
    return float(np.abs(after.belief.table(names) - old).sum()), noise


def _noted(state: State, note: Round, step: Fraction) -> State:
    """Return the state with a round appended; its estimates are reused."""
    noted = replace(state, rounds=(*state.rounds, note), step=step)
    vars(noted)["belief"] = state.belief
    return noted


def touched(before: State, after: State) -> list[AttributeSet]:
    """Return the candidates whose estimates a round may have changed."""
    return after.setting.beliefs.touched(before.residuals, after.residuals, after.setting.candidates)
