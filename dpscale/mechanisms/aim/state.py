"""State of an AIM run, a function of released values, so a run can be continued from its published output.

The functions here are deterministic and do not read counts. Budgets are exact fractions; the last round spends all of
the remaining budget, so the total is exactly β. A state can be rebuilt from the stored decisions and values.

*Terms.* Each round selects some of the *offered* sets of attributes and measures the residual of each, over groups of
neighbouring cells. β is the squared μ: `left` is not spent yet, and `step` pays for the next measurement with its
selection. The *1-ways*, the marginals of single attributes, are measured first. A *law* is a set of three or more
attributes whose table the smaller ones do not imply; the empty set () is a selection without measurement.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, Self

import numpy as np

from dpscale.base.numerics import AttributeSet, Floats
from dpscale.mechanisms.aim.decision import (
    NOISE_L1,
    AimDecision,
    AimSelection,
    ResidualRequest,
    deviation,
    one_way_request,
    residual_requests,
)
from dpscale.mechanisms.aim.estimators import (
    FittedEstimates,
)
from dpscale.mechanisms.aim.setting import LAW_NOISE, LAW_SELECTING, LAW_STEPS, Setting
from dpscale.plans.measurement_plan import CurrentEstimates
from dpscale.reconstruction.consistency import NoisyCounts, total_of
from dpscale.workload.residual import Groups, Residuals, every_cell

SURE = Fraction(3, 4)  # least share for the 1-ways that becomes all of the rest, if this buys a single measurement


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
    is_one_way : bool
        Whether the round repeated the 1-ways.
    selection_cost : Fraction
        β of one selection.
    law_degree : int
        Number of attributes of the laws of which one was selected; 0 in other rounds.
    """

    chosen: tuple[AttributeSet, ...]
    step: Fraction
    moved: tuple[float, ...]
    expected_noise: tuple[float, ...]
    is_one_way: bool = False
    selection_cost: Fraction = Fraction(0)
    law_degree: int = 0


@dataclass(frozen=True, eq=False)
class AimState:
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
    previous : FittedEstimates or None
        Estimates of the previous round.
    earlier : Fraction
        β of the earlier releases whose residuals the state contains; 0 if there are none.
    laws : mapping of int to tuple of AttributeSet
        Sets that may be selected as laws, by their number of attributes.
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
    previous: FittedEstimates | None = None
    earlier: Fraction = Fraction(0)
    laws: Mapping[int, tuple[AttributeSet, ...]] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Approximate number of records, a released value."""
        return round(total_of(self.counts))

    @cached_property
    def fit(self) -> FittedEstimates:
        """Estimates from all measurements."""
        setting = self.setting
        return setting.estimator.fit(self.counts, self.groups, self.residuals, setting.candidates, self.previous)

    def estimates(self, sets: Sequence[AttributeSet]) -> CurrentEstimates:
        """Return the estimates of candidates, to be sent to the tasks that compare them with exact counts."""
        return self.fit.of(sets)

    def marginal(self, names: Sequence[str]) -> Floats:
        """Return the estimated marginal over cells, one axis per attribute in the requested order."""
        return self.fit.marginal(names)

    @property
    def done(self) -> bool:
        return self.left == 0 or not self.setting.candidates

    @property
    def _open_degrees(self) -> list[int]:
        """Degrees of which laws may still be selected: no selection was empty, and steps are left."""
        open_degrees = []
        for degree in self.laws:
            selections = [note.chosen for note in self.rounds if note.law_degree == degree]
            if ((),) not in selections and len(selections) < LAW_STEPS:
                open_degrees.append(degree)
        return open_degrees

    @property
    def available(self) -> Fraction:
        """β of rounds that select no laws: without what is reserved for laws until these are selected."""
        if any(note.law_degree for note in self.rounds):
            return self.left
        reserved = sum((LAW_STEPS * self.setting.law_step(degree) for degree in self._open_degrees), Fraction(0))
        return max(self.left - reserved, Fraction(0))

    @property
    def law_degree(self) -> int:
        """Number of attributes of the laws of which the next round selects one; 0 if it selects other sets."""
        degrees = self._open_degrees
        return degrees[0] if degrees and (self.available == 0 or self.available == self.left) else 0

    @property
    def due(self) -> tuple[AttributeSet, ...]:
        """Sets of a public structure, or leading pairs, which the first round measures without a selection."""
        first = () if self.rounds or self.done else self.setting.first_sets
        return tuple(names for names in first if names in self._offered)

    @cached_property
    def _offered(self) -> frozenset[AttributeSet]:
        return frozenset(self.offered)

    def measuring(self, step: Fraction) -> AimSelection:
        """Return the selection of a round that selects nothing and spends at most β `step` on each measurement."""
        step = min(step, self.available / max(len(self.due), 1))
        return AimSelection(
            round=self.measured + 1,
            candidates=(),
            weights=self.setting.weights,
            groups=self.groups,
            count=0,
            beta=Fraction(0),
            step=step,
            penalty=0.0,
            rows_per_unit=self.setting.rows_per_unit,
        )

    @cached_property
    def selection(self) -> AimSelection | None:
        """Selection of the next round; None if the budget is spent.

        The order: sets of a public structure (`due`); laws, sets of many attributes; repeated 1-ways (`back`, their
        share of the rest), with no candidates; and an ordinary round of `count` sets. `cost` pays for a selection, the
        rest of the step for its measurement.
        """
        if self.done:
            return None
        if self.due:
            return self.measuring(self.step)

        if self.law_degree:
            return self._law_selection(self.law_degree)

        setting, schedule, back = self.setting, self.setting.schedule, _one_way_share(self)
        count, step = (0, self.available * back / len(setting.names)) if back else _round_size(self)
        candidates: tuple[AttributeSet, ...] = () if back else _choices(self)
        cost = Fraction(0) if back else schedule.selecting * step

        return AimSelection(
            round=self.measured + 1,
            candidates=candidates,
            weights=setting.weights,
            groups=self.groups,
            count=count,
            beta=cost,
            step=step - cost,
            penalty=_penalty(self),
            rows_per_unit=setting.rows_per_unit,
            classes=setting.classes(self.groups),
        )

    @cached_property
    def grown(self) -> tuple[AttributeSet, ...]:
        """Sets that grow from confirmed ones and may be selected as laws in the next round.

        A set is confirmed if its measurement changed the estimates by more than noise is expected to.
        """
        degree = self.law_degree
        confirmed = [
            names
            for note in self.rounds
            for names, moved, noise in zip(note.chosen, note.moved, note.expected_noise, strict=True)
            if len(names) == degree - 1 and moved > noise
        ]
        grown = self.setting.grown_laws(degree, confirmed) if degree else ()
        return _precise_laws(self.setting, degree, self.groups, total_of(self.counts), grown)

    def _law_selection(self, degree: int) -> AimSelection:
        """Return the selection of one law of a degree, or of none.

        As many empty sets as laws are offered, so that together they weigh alike. `price` is the logarithm of the
        number of laws, which is subtracted from their scores as the price of so many candidates.
        """
        setting, sets = self.setting, (*self.laws[degree], *self.grown)
        step = min(setting.law_step(degree), self.left)
        cost = LAW_SELECTING * step
        return AimSelection(
            round=self.measured + 1,
            candidates=(*sets, *[()] * len(sets)),
            weights=dict.fromkeys(sets, 1),
            groups=self.groups,
            count=1,
            beta=cost,
            step=step - cost,
            penalty=1.0,
            rows_per_unit=setting.rows_per_unit,
            price=math.log(len(sets)),
        )

    def decide(self, selection: AimSelection, chosen: Sequence[AttributeSet]) -> AimDecision:
        """Return the measurements of a round from its selected sets.

        `precisions` grow with every request of the round, so that later sets are measured given earlier ones. `costs`
        has the squared μ of each set, and `precisions` the inverse variances of what is measured so far. A selection
        without candidates measures the 1-ways.
        """
        setting = self.setting
        if selection.is_empty and not self.due:
            return _one_way_decision(setting, selection.round, selection.step, self.groups)

        chosen = self.due or chosen
        precisions = setting.estimator.precisions(self.counts, self.groups, self.residuals)
        requests: list[ResidualRequest] = []
        costs = _costs_of(self, chosen, selection.step)

        for rank, names in enumerate(chosen):
            if not names:
                continue

            beta = costs[names]
            groups, where = [self.groups[name] for name in names], (selection.round, rank)
            added = residual_requests(
                names, groups, precisions, beta, setting.rows_per_unit, where, setting.schedule.isotropic
            )
            requests += added
            for request in added:
                precisions[request.names] = precisions.get(request.names, 0.0) + 1 / request.variance

        requests.sort(key=lambda request: setting.place(request.source))  # the worker of a shard then writes few files
        return AimDecision(
            round=selection.round,
            chosen=tuple(chosen),
            beta=selection.beta,
            step=selection.step,
            groups=self.groups,
            requests=tuple(requests),
        )

    def updated(self, decision: AimDecision, values: Sequence[Floats]) -> Self:
        """Return the state with a round's measurements in its estimates; the next step is not determined yet.

        Repeated 1-ways are averaged with earlier counts by inverse variance, and their residuals with earlier
        residuals.
        """
        after = replace(self, left=self.left - decision.spent, measured=decision.round)
        taken = list(zip(decision.requests, values, strict=True))
        if not decision.is_one_way:
            measured = [(request.names, value, 1 / request.variance) for request, value in taken]
            return replace(after, residuals=self.residuals.updated(measured))

        again = {request.names[0]: request.counts(value) for request, value in taken}
        one_ways = self.setting.estimator.one_way_residuals(again)
        counts = {name: noisy.average(again[name]) for name, noisy in self.counts.items()}
        return replace(after, counts=counts, residuals=self.residuals.updated(one_ways))

    def after(self, decision: AimDecision, values: Sequence[Floats]) -> Self:
        """Return the state after a round, with the step annealed by the change of the *estimates*.

        `moved` is the L1 change of each selected set's estimate, and `noise` what noise alone would change. Rounds of
        1-ways and of laws leave the step as it is.
        """
        after = replace(self.updated(decision, values), previous=self.fit)
        if not decision.measured:  # nothing changed, so the cached estimates are those before
            vars(after)["fit"] = self.fit
        costs = _costs_of(self, decision.chosen, decision.step)
        effects = [_effect(self, after, names, costs) if names else (0.0, 0.0) for names in decision.chosen]
        moved, noise = zip(*effects, strict=True)
        note = Round(
            chosen=decision.chosen,
            step=decision.step + decision.beta,
            moved=moved,
            expected_noise=noise,
            is_one_way=decision.is_one_way,
            selection_cost=decision.beta,
            law_degree=0 if decision.is_one_way else self.law_degree,
        )
        same = decision.is_one_way or note.law_degree
        step = self.step if same else self.setting.schedule.next_step(note.step, moved, noise)

        noted = replace(after, rounds=(*after.rounds, note), step=step)
        vars(noted)["fit"] = after.fit
        return noted

    def changed_sets(self, after: AimState) -> list[AttributeSet]:
        """Return the candidates whose estimates a round may have changed."""
        candidates = (*after.setting.candidates, *self.grown)
        return after.setting.estimator.changed_sets(self.residuals, after.residuals, candidates)

    def trace(self) -> list[dict[str, Any]]:
        """Return one row for every measurement after the 1-ways.

        A row has its β including the selection, the L1 change of the estimate in records, and the expected change from
        noise alone.
        """
        return [
            {"round": number, "rank": rank, "attributes": list(names),
             "privacy_cost": float(note.step if names else note.selection_cost),
             "moved": note.moved[rank], "expected_noise": note.expected_noise[rank]}
            for number, note in enumerate(self.rounds, start=1)
            for rank, names in enumerate(note.chosen)
        ]  # fmt: skip


def first_decision(setting: Setting) -> AimDecision:
    """Return the decision to measure the 1-ways, each over its cells."""
    groups = {name: every_cell(setting.sizes[name]) for name in setting.names}
    return _one_way_decision(setting, 0, setting.one_way_cost, groups)


def stored_first(setting: Setting, record: Mapping[str, Any]) -> AimDecision:
    """Return the first decision from its record in plan.json. Raises ValueError if it costs more than the budget."""
    groups = {name: [size, *range(size)] for name, size in setting.sizes.items() if name in setting.names}
    chosen = [[name] for name in setting.names]
    first = AimDecision.from_dict({"round": 0, "chosen": chosen, "beta": "0", "groups": groups, **record}, setting)
    if [list(request.names) for request in first.requests] != chosen or first.spent > setting.beta:
        raise ValueError("not the first decision of this plan")
    return first


def _one_way_decision(setting: Setting, number: int, cost: Fraction, groups: Mapping[str, Groups]) -> AimDecision:
    """Return a round that measures all 1-ways over their cells, at a mean β of `cost`."""
    cells = [every_cell(setting.sizes[name]) for name in setting.names]
    costs = _costs(setting, [cell.count for cell in cells], cost)
    requests = tuple(
        one_way_request((number, rank), name, cell, beta, setting.rows_per_unit, setting.strategies.get(name))
        for rank, (name, cell, beta) in enumerate(zip(setting.names, cells, costs, strict=True))
    )
    return AimDecision(
        round=number,
        chosen=tuple((name,) for name in setting.names),
        beta=Fraction(0),
        step=cost,
        groups=groups,
        requests=requests,
    )


def _costs(setting: Setting, cells: Sequence[int], mean: Fraction) -> list[Fraction]:
    """Return β of measurements with such numbers of cells."""
    return [share * len(cells) * mean for share in setting.schedule.shares(cells)]


def _costs_of(state: AimState, chosen: Sequence[AttributeSet], mean: Fraction) -> dict[AttributeSet, Fraction]:
    """Return the cost (squared μ) of each set over groups; the empty set costs nothing."""
    sets = [names for names in chosen if names]
    cells = [math.prod(state.groups[name].count for name in names) for names in sets]
    return dict(zip(sets, _costs(state.setting, cells, mean), strict=True))


def initial_state(
    setting: Setting, decision: AimDecision, values: Sequence[Floats], groups: Mapping[str, Groups] | None = None
) -> AimState:
    """Return the state after the 1-ways; groups are chosen here unless `groups` gives stored ones."""
    counts = {request.names[0]: request.counts(value) for request, value in zip(decision.requests, values, strict=True)}
    if groups is None:
        groups = choose_groups(setting, counts) if setting.candidates else decision.groups
    residuals = Residuals({name: grouping.count for name, grouping in groups.items()}).updated(
        setting.estimator.one_way_residuals(counts)
    )
    return state_before_rounds(setting, counts, groups, residuals, setting.beta - decision.spent)


def state_before_rounds(
    setting: Setting,
    counts: Mapping[str, NoisyCounts],
    groups: Mapping[str, Groups],
    residuals: Residuals,
    left: Fraction,
) -> AimState:
    """Return the state before the first selection, which has the 1-ways and the residuals as its estimates.

    A set of three or more attributes is offered if the schedule permits its noise. The first step is `share` of an even
    one if such a set is offered: at low noise of the pairs, steps are cheaper.

    Parameters
    ----------
    setting : Setting
    counts : mapping of str to NoisyCounts
        1-ways by their cells.
    groups : mapping of str to Groups
        Groups of the cells of each attribute.
    residuals : Residuals
        Residuals that are measured already.
    left : Fraction
        β that is not spent.
    """
    noise = _noise(setting, groups, total_of(counts))
    share = setting.schedule.first_share(_mean([noise(names) for names in setting.round_candidates if len(names) == 2]))
    offered = tuple(
        names
        for names in setting.round_candidates
        if len(names) <= 2 or setting.schedule.offers_larger(noise(names), share)
    )
    offered = tuple(names for names in offered if not setting.estimator.determined_over_groups(names, groups))
    step = setting.first_step * (share if any(len(names) > 2 for names in offered) else 1)
    state: AimState = (setting.state or AimState)(setting, counts, groups, residuals, left, step, offered)

    return replace(state, laws=_possible_laws(setting, groups, total_of(counts))) if setting.laws else state


def _possible_laws(setting: Setting, groups: Mapping[str, Groups], total: float) -> dict[int, tuple[AttributeSet, ...]]:
    """Return the laws of each degree that a step measures precisely enough, without degrees that have none."""
    precise = {degree: _precise_laws(setting, degree, groups, total, sets) for degree, sets in setting.laws.items()}
    return {degree: sets for degree, sets in precise.items() if sets}


def _precise_laws(
    setting: Setting, degree: int, groups: Mapping[str, Groups], total: float, sets: Sequence[AttributeSet]
) -> tuple[AttributeSet, ...]:
    """Return the sets of a degree that a step measures with a noise of at most LAW_NOISE of the `total` records.

    A law of n groups has an L1 noise of NOISE_L1 · σ n, with σ the noise of a step. Sets that smaller ones determine
    over groups are left out.
    """
    step = (1 - LAW_SELECTING) * setting.law_step(degree)
    most = LAW_NOISE * total / (NOISE_L1 * deviation(step, setting.rows_per_unit))
    return tuple(
        names
        for names in sets
        if math.prod(groups[name].count for name in names) <= most
        and not setting.estimator.determined_over_groups(names, groups)
    )


def _noise(setting: Setting, groups: Mapping[str, Groups], total: float) -> Callable[[AttributeSet], float]:
    """Return a function that gives the noise of an even step on a set, L1 over records."""
    of_cell = NOISE_L1 * deviation(setting.first_step, setting.rows_per_unit) / total if setting.candidates else 0.0
    return lambda names: of_cell * math.prod(groups[name].count for name in names)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else 0.0


def choose_groups(setting: Setting, counts: Mapping[str, NoisyCounts]) -> dict[str, Groups]:
    """Return the groups of every attribute for the noise of a first measurement."""
    runs = {name: runs_of for name in counts if (runs_of := setting.runs(name)) is not None}
    return setting.estimator.groups(counts, deviation(setting.first_step, setting.rows_per_unit), runs)


def _penalty(state: AimState) -> float:
    """Return the multiple of a measurement's noise that is subtracted from a distance.

    After earlier releases it is that of an average with them, if each spent its budget alike.
    """
    return state.setting.schedule.penalty * math.sqrt(state.setting.beta / (state.setting.beta + state.earlier))


def _choices(state: AimState) -> tuple[AttributeSet, ...]:
    """Return the offered sets, and as many empty sets if the empty set may be selected.

    With equal numbers the sets do not outvote the empty set. It is not offered if one measurement must spend the rest.
    """
    nothing = _allows_empty(state) and not _one_left(state)
    return (*state.offered, *[()] * len(state.offered)) if nothing else state.offered


def _allows_empty(state: AimState) -> bool:
    return not state.earlier and state.setting.schedule.allows_empty(*_effects(state))


def _one_left(state: AimState) -> bool:
    """Return whether at most one measurement is affordable."""
    return state.available < 2 * state.step


def _effects(state: AimState) -> tuple[list[float], list[float]]:
    """Return the changes of the estimates by all measurements except 1-ways, and their expected noise."""
    others = [note for note in state.rounds if not note.is_one_way and not note.law_degree]
    moved = [change for note in others for change in note.moved]
    return moved, [noise for note in others for noise in note.expected_noise]


def _one_way_share(state: AimState) -> Fraction:
    """Return the share of the remaining budget for repeated 1-ways after an uninformative round; 0 for none.

    It is 1 if measurements are almost certainly uninformative and one measurement would spend all of the rest.

    `noise` is the L1 noise of each 1-way as a share of the records. The share of the schedule applies unless the last
    round repeated the 1-ways already.
    """
    if state.earlier or all(note.is_one_way for note in state.rounds):
        return Fraction(0)

    total = total_of(state.counts)
    noise = [NOISE_L1 * math.sqrt(counts.variance) * len(counts.values) / total for counts in state.counts.values()]
    share = state.setting.schedule.one_way_share(*_effects(state), _mean(noise))
    if _one_left(state) and _allows_empty(state) and share >= SURE:
        return Fraction(1)
    return share * (not state.rounds[-1].is_one_way)


def _round_size(state: AimState) -> tuple[int, Fraction]:
    """Return the number of measurements of the round and β of each; the last round spends the rest.

    If fewer steps than a batch are affordable, they share all that is left.
    """
    batch, affordable = min(state.setting.batch(state.step), len(state.offered)), int(state.available / state.step)
    if affordable > batch:
        return batch, state.step
    count = max(1, min(batch, affordable))
    return count, state.available / count


def _effect(
    before: AimState, after: AimState, names: AttributeSet, costs: Mapping[AttributeSet, Fraction]
) -> tuple[float, float]:
    """Return the change of an estimate by a measurement, and its expected noise, both L1 over groups.

    NOISE_L1 is √(2/π), the mean absolute value of a standard normal variable, times σ and the number of cells.
    """
    old = before.fit.table(names)
    noise = NOISE_L1 * deviation(costs[names], before.setting.rows_per_unit) * old.size
    share = _change_by_noise(before, after, names) if before.earlier else 1.0
    return float(np.abs(after.fit.table(names) - old).sum()), noise * share


def _change_by_noise(before: AimState, after: AimState, names: AttributeSet) -> float:
    """Return the change of a residual by noise alone, as a share of the noise of its new measurement.

    An average of precision p with a new measurement of precision q changes by q (y - x) / (p + q), and the variance of
    y - x is 1/p + 1/q.
    """
    had = before.residuals.precision(names)
    added = after.residuals.precision(names) - had
    return min(1.0, added / math.sqrt(had * (had + added))) if had else 1.0
