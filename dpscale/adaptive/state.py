"""The loop's state: a function of released values alone, so that anyone could continue from what was published.

    first_orders(setting) → measured → begun → [selection → chosen → orders → measured → advanced]* until left = 0
Nothing here is random and nothing sees a count. Budgets are exact fractions: the last round takes all that is left, so
ρ is met exactly. A state can be rebuilt from the choices and the measured values of its rounds, read back from disk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dpscale.adaptive.orders import Order, one_way_order, residual_orders
from dpscale.adaptive.select import NOISE_L1, Selection
from dpscale.adaptive.setting import Names, Setting
from dpscale.reconstruct.from_residuals import model_of
from dpscale.reconstruct.maxent import LowOrder
from dpscale.reconstruct.one_way import NoisyCounts, non_negative_counts, total_of
from dpscale.residual.grem import Residuals, lazily_updated
from dpscale.residual.groups import Groups, by_mass, every_cell

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Round:
    """What a round chose and spent, and how far its measurements moved the estimates: all of it released."""

    chosen: tuple[Names, ...]
    step: Fraction
    moved: tuple[float, ...]
    expected_noise: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class State:
    """After some rounds. `counts`: the measured 1-ways; `residuals`: of marginals over `groups`; `left`: ρ not spent;
    `step`: ρ of the next measurement with its selection; `marginals`: GReM's, as published only."""

    setting: Setting
    counts: Mapping[str, NoisyCounts]
    groups: Mapping[str, Groups]
    residuals: Residuals
    left: Fraction
    step: Fraction
    rounds: tuple[Round, ...] = ()
    marginals: Mapping[Names, Array] | None = None

    @cached_property
    def model(self) -> LowOrder:
        """Consistent non-negative low-order tables from all that was measured."""
        chains = self.setting.options.chains
        return model_of(self.counts, self.groups, self.residuals, self.setting.candidates, chains)

    @cached_property
    def estimates(self) -> Mapping[Names, Array]:
        """What is believed of every candidate, over groups."""
        if self.marginals is not None:
            return self.marginals
        return {names: self.model.coarse_marginal(names) for names in self.setting.candidates}

    def marginal(self, names: Sequence[str]) -> Array:
        """The estimated marginal over cells, an axis each in the order asked."""
        if self.marginals is None:
            return self.model.marginal(names)
        ordered = self.setting.ordered(names)
        found = self.marginals.get(ordered)
        own = self.residuals.marginal(ordered) if found is None else found
        return own.transpose([ordered.index(name) for name in names])

    @property
    def done(self) -> bool:
        return self.left == 0 or not self.setting.candidates


def first_orders(setting: Setting) -> list[Order]:
    """The 1-ways, each over its cells."""
    cost, units = setting.one_way_cost, setting.rows_per_unit
    return [one_way_order(name, every_cell(setting.sizes[name]), cost, units) for name in setting.names]


def begun(setting: Setting, orders: Sequence[Order], values: Sequence[Array]) -> State:
    """The state after the 1-ways: groups are chosen here, once."""
    counts = {o.names[0]: NoisyCounts(v, o.variance) for o, v in zip(orders, values, strict=True)}
    left = setting.rho - len(setting.names) * setting.one_way_cost
    sizes = {name: setting.sizes[name] for name in setting.names}
    if setting.options.published:
        groups = {name: every_cell(size) for name, size in sizes.items()}
        residuals = Residuals(sizes).updated(_as_residuals(counts))
        marginals = {names: residuals.marginal(names) for names in setting.candidates}
        return State(setting, counts, groups, residuals, left, setting.first_step, marginals=marginals)
    groups = _grouped(setting, counts)
    residuals = Residuals({name: own.count for name, own in groups.items()})
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
    return Selection(len(state.rounds) + 1, setting.candidates, setting.weights, state.estimates, state.groups,
                     count, cost, step - cost, penalty, setting.rows_per_unit)  # fmt: skip


def _afforded(state: State) -> tuple[int, Fraction]:
    """How many measurements the round makes and ρ for each; where less than two rounds are left it takes all."""
    batch = min(state.setting.batch, len(state.setting.candidates))
    if state.left > 2 * batch * state.step:
        return batch, state.step
    count = max(1, min(batch, int(state.left / state.step)))
    return count, state.left / count


def next_orders(state: State, selection: Selection, chosen: Sequence[Names]) -> list[Order]:
    """The measurements of a round, after its selections."""
    had = _precisions(state)
    orders = []
    for rank, names in enumerate(chosen):
        groups, where = [state.groups[name] for name in names], (selection.round, rank)
        own = residual_orders(names, groups, had, selection.step, state.setting.rows_per_unit, where)
        orders += own
        for order in own:
            had[order.names] = had.get(order.names, 0.0) + 1 / order.variance
    return orders


def _precisions(state: State) -> dict[Names, float]:
    """What is known of each residual, the 1-ways over cells counted in (about: groups differ in width)."""
    had = dict(state.residuals.precisions)
    if state.marginals is None:
        for name, own in state.counts.items():
            wide = state.groups[name].size / state.groups[name].count
            had[(name,)] = had.get((name,), 0.0) + 1 / (own.variance * wide)
            had[()] = had.get((), 0.0) + 1 / (own.variance * len(own.values))
    return had


def advanced(
    state: State, selection: Selection, chosen: Sequence[Names], orders: Sequence[Order], values: Sequence[Array]
) -> State:
    """The state after a round: estimates updated, budget annealed by how far the *estimates* moved."""
    told = [(order.names, value, 1 / order.variance) for order, value in zip(orders, values, strict=True)]
    residuals = state.residuals.updated(told)
    marginals = state.marginals and lazily_updated(state.marginals, state.residuals, residuals)
    spent = selection.count * (selection.step + selection.rho)
    after = replace(state, residuals=residuals, left=state.left - spent, marginals=marginals)
    noise = [NOISE_L1 * selection.deviation * state.estimates[names].size for names in chosen]
    moved = [float(np.abs(after.estimates[names] - state.estimates[names]).sum()) for names in chosen]
    note = Round(tuple(chosen), selection.step + selection.rho, tuple(moved), tuple(noise))
    return replace(after, rounds=(*state.rounds, note), step=_annealed(state, note))


def _annealed(state: State, note: Round) -> Fraction:
    """The next measurement's budget: more after a round that moved the estimates by no more than its noise."""
    options = state.setting.options
    patience, growth = (1.0, 4) if options.published else (options.patience, options.growth)
    vain = sum(moved <= patience * noise for moved, noise in zip(note.moved, note.expected_noise, strict=True))
    grows = 2 * vain > len(note.chosen) or (options.published and vain)
    return note.step * growth if grows else note.step
