"""The loop's state: a function of released values alone, so that anyone could continue from what was published.

    first_decision → measured → begun → [next_selection → chosen → decided → measured → advanced]* until done
Nothing here is random and nothing sees a count. Budgets are exact fractions: the last round takes all that is left, so
ρ is met exactly. A state can be rebuilt from the decisions and the measured values of its rounds, read back from disk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import prod

import numpy as np
from numpy.typing import NDArray

from dpscale.adaptive.decision import Decision
from dpscale.adaptive.orders import Order, one_way_order, residual_orders
from dpscale.adaptive.select import NOISE_L1, Selection, deviation
from dpscale.adaptive.setting import Names, Setting
from dpscale.adaptive.shard import Believed, Tables
from dpscale.reconstruct.from_residuals import model_of
from dpscale.reconstruct.maxent import LowOrder
from dpscale.reconstruct.one_way import NoisyCounts, non_negative_counts, total_of
from dpscale.residual.grem import Residuals
from dpscale.residual.groups import Groups, by_mass, every_cell

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Round:
    """What a round chose and spent, and how far its measurements moved the estimates: all of it released.

    `step`: ρ of one measurement with its selection; `moved`, `expected_noise`: of each chosen set, L1 over groups.
    """

    chosen: tuple[Names, ...]
    step: Fraction
    moved: tuple[float, ...]
    expected_noise: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class State:
    """After some rounds. `counts`: the measured 1-ways; `residuals`: of marginals over `groups`; `left`: ρ not spent;
    `step`: ρ of the next measurement with its selection."""

    setting: Setting
    counts: Mapping[str, NoisyCounts]
    groups: Mapping[str, Groups]
    residuals: Residuals
    left: Fraction
    step: Fraction
    rounds: tuple[Round, ...] = ()
    measured: int = 0

    @property
    def published(self) -> bool:
        return self.setting.options.published

    @property
    def rows(self) -> int:
        """About how many records there are: a released number."""
        return round(total_of(self.counts))

    @cached_property
    def model(self) -> LowOrder:
        """Consistent non-negative low-order tables from all that was measured."""
        chains = self.setting.options.chains
        return model_of(self.counts, self.groups, self.residuals, self.setting.candidates, chains)

    def estimate(self, names: Names) -> Array:
        """What is believed of a candidate, over groups."""
        return self.residuals.marginal(names) if self.published else self.model.coarse_marginal(names)

    def believed(self, sets: Sequence[Names]) -> Believed:
        """The same of several, to be sent to where they are held against exact counts."""
        if self.published:
            return self.residuals.within(sets)
        return Tables({names: self.model.coarse_marginal(names) for names in sets})

    def marginal(self, names: Sequence[str]) -> Array:
        """The estimated marginal over cells, an axis each in the order asked."""
        if not self.published:
            return self.model.marginal(names)
        ordered = self.setting.ordered(names)
        return self.residuals.marginal(ordered).transpose([ordered.index(name) for name in names])

    @property
    def done(self) -> bool:
        return self.left == 0 or not self.setting.candidates


def first_decision(setting: Setting) -> Decision:
    """The 1-ways, each over its cells."""
    groups = {name: every_cell(setting.sizes[name]) for name in setting.names}
    cost, units = setting.one_way_cost, setting.rows_per_unit
    orders = tuple(one_way_order(rank, name, groups[name], cost, units) for rank, name in enumerate(setting.names))
    return Decision(0, tuple((name,) for name in setting.names), Fraction(0), cost, groups, orders)


def begun(
    setting: Setting, decision: Decision, values: Sequence[Array], groups: Mapping[str, Groups] | None = None
) -> State:
    """The state after the 1-ways. Groups are chosen here, once; `groups`: as they were chosen before."""
    counts = {o.names[0]: NoisyCounts(v, o.variance) for o, v in zip(decision.orders, values, strict=True)}
    left = setting.rho - decision.spent
    if groups is None:
        groups = decision.groups if setting.options.published else _grouped(setting, counts)
    residuals = Residuals({name: own.count for name, own in groups.items()})
    if setting.options.published:
        residuals = residuals.updated(_as_residuals(counts))
    return State(setting, counts, groups, residuals, left, setting.first_step)


def _as_residuals(counts: Mapping[str, NoisyCounts]) -> list[tuple[Names, Array, float]]:
    """A 1-way measured cell by cell tells its residual at σ² and the total at n σ² (algorithm 6)."""
    told: list[tuple[Names, Array, float]] = []
    for name, own in counts.items():
        told.append(((name,), own.values - own.values.mean(), 1 / own.variance))
        told.append(((), np.asarray(own.values.sum()), 1 / (own.variance * len(own.values))))
    return told


def _grouped(setting: Setting, counts: Mapping[str, NoisyCounts]) -> dict[str, Groups]:
    """Groups heavy enough that a pair's typical cell stands against the noise of measuring every pair once."""
    if not setting.candidates:
        return {name: every_cell(setting.sizes[name]) for name in counts}
    total = total_of(counts)
    deviation = setting.rows_per_unit / np.sqrt(2 * float(setting.first_step))
    least = float(np.sqrt(setting.options.grain * deviation * total))
    return {name: by_mass(non_negative_counts(own, total), least) for name, own in counts.items()}


def next_selection(state: State) -> Selection:
    """What the next round selects among. Not to be asked of a state that is done."""
    setting, options = state.setting, state.setting.options
    count, step = _afforded(state)
    cost, penalty = options.selecting * step, 1.0 if options.published else options.penalty
    return Selection(state.measured + 1, setting.candidates, setting.weights, _cells(state), count, cost, step - cost,
                     penalty, setting.rows_per_unit)  # fmt: skip


def _cells(state: State) -> dict[Names, int]:
    return {names: prod(state.groups[name].count for name in names) for names in state.setting.candidates}


def _afforded(state: State) -> tuple[int, Fraction]:
    """How many measurements the round makes and ρ for each; where less than two rounds are left it takes all."""
    batch = min(state.setting.batch, len(state.setting.candidates))
    if state.left > 2 * batch * state.step:
        return batch, state.step
    count = max(1, min(batch, int(state.left / state.step)))
    return count, state.left / count


def decided(state: State, selection: Selection, chosen: Sequence[Names]) -> Decision:
    """The measurements of a round, after its selections."""
    had = _precisions(state)
    orders: list[Order] = []
    for rank, names in enumerate(chosen):
        groups, where = [state.groups[name] for name in names], (selection.round, rank)
        own = residual_orders(names, groups, had, selection.step, state.setting.rows_per_unit, where)
        orders += own
        for order in own:
            had[order.names] = had.get(order.names, 0.0) + 1 / order.variance
    return Decision(selection.round, tuple(chosen), selection.rho, selection.step, state.groups, tuple(orders))


def _precisions(state: State) -> dict[Names, float]:
    """What is known of each residual, the 1-ways over cells counted in (about: groups differ in width)."""
    had = dict(state.residuals.precisions)
    if not state.published:
        for name, own in state.counts.items():
            wide = state.groups[name].size / state.groups[name].count
            had[(name,)] = had.get((name,), 0.0) + 1 / (own.variance * wide)
            had[()] = had.get((), 0.0) + 1 / (own.variance * len(own.values))
    return had


def absorbed(state: State, decision: Decision, values: Sequence[Array]) -> State:
    """The state with a round's measurements in its estimates; what the next round does is not decided yet."""
    told = [(order.names, value, 1 / order.variance) for order, value in zip(decision.orders, values, strict=True)]
    left = state.left - decision.spent
    return replace(state, residuals=state.residuals.updated(told), left=left, measured=decision.round)


def advanced(state: State, decision: Decision, values: Sequence[Array]) -> State:
    """The state after a round: estimates updated, budget annealed by how far the *estimates* moved."""
    after = absorbed(state, decision, values)
    sigma = deviation(decision.step, state.setting.rows_per_unit)
    before = [state.estimate(names) for names in decision.chosen]
    pairs = zip(before, decision.chosen, strict=True)
    moved = tuple(float(np.abs(after.estimate(names) - old).sum()) for old, names in pairs)
    noise = tuple(NOISE_L1 * sigma * old.size for old in before)
    note = Round(decision.chosen, decision.step + decision.rho, moved, noise)
    return _noted(after, note, _annealed(state, note))


def _noted(state: State, note: Round, step: Fraction) -> State:
    """The state with a round noted; its model, if it is made already, is of the same measurements."""
    noted = replace(state, rounds=(*state.rounds, note), step=step)
    if "model" in vars(state):
        vars(noted)["model"] = state.model
    return noted


def touched(before: State, after: State) -> list[Names]:
    """The candidates whose estimates a round may have moved."""
    if not after.published:
        return list(after.setting.candidates)
    old, new = before.residuals.values, after.residuals.values
    changed = [set(kept) for kept in new if new[kept] is not old.get(kept)]
    return [names for names in after.setting.candidates if any(kept <= set(names) for kept in changed)]


def _annealed(state: State, note: Round) -> Fraction:
    """The next measurement's budget: more after a round that moved the estimates by no more than its noise."""
    options = state.setting.options
    patience, growth = (1.0, 4) if options.published else (options.patience, options.growth)
    vain = sum(moved <= patience * noise for moved, noise in zip(note.moved, note.expected_noise, strict=True))
    grows = 2 * vain > len(note.chosen) or (options.published and vain)
    return note.step * growth if grows else note.step
