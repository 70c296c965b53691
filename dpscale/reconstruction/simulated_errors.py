"""Standard errors of low-order estimates by simulation: a parametric bootstrap, and what it does not show.

The final model is taken as the truth, the noise of every measurement is redrawn at its known variance, and the model is
rebuilt. The spread of these replicas is the error due to noise and shrinkage if the model is true. Groups and the
choice of measurements are fixed. The model is not exactly true, so further components are added:

- λ, a widening of the spread: measured pairs depart from the model by D, more than the measurements of replicas depart
  from theirs, B. By Stein's identity (error² = D − noise² + 2 covariance, the last two as simulated) the excess is an
  excess of squared error.
- U, chance: unmeasured tables depart from the model. Records drawn from the model would depart with the variance of
  `model_variance`, real records with a multiple that follows from the departures of measured sets
  (`departures`).
- H, hidden departures, which were measured but are small against the noise. A departure of variance φU under noise of
  variance s² is known except for a share (1 − w), w = φU/(φU + s²). Replicas of a model that shrank it away do not have
  it. With U₀ the variance of a query if only the 1-ways had been measured, H = (1 − w)(U₀ − U), with the mean w of the
  measured sets inside.
- completion and association: what the released model adds to the tables of the measurements, and what chains add to
  independence for a pair that was not measured, are uncertain in proportion.

`error_calibration` weighs the components. All of this is post-processing: these random streams are not part of any
privacy argument.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from dpscale.base.numerics import AttributeSet, Floats, ParallelMap, serial_map, special
from dpscale.reconstruction import model_variance
from dpscale.reconstruction.departures import Departures, chance_variances
from dpscale.reconstruction.entropy import LowOrder, along, product_of
from dpscale.reconstruction.error_calibration import (
    CALIBRATION,
    Calibration,
    ErrorComponents,
    SetKind,
    simultaneous_widths,
)
from dpscale.reconstruction.low_order import model_of
from dpscale.reconstruction.one_way import NoisyCounts
from dpscale.reconstruction.set_arrays import stacks
from dpscale.workload import Family, WorkloadPart
from dpscale.workload.residual import center
from dpscale.workload.residual.grem import Residuals
from dpscale.workload.residual.in_axis import coarsened, expanded

Answers = Callable[[Floats], Floats]
Rest = Callable[[Collection[AttributeSet]], Floats | float]
DRAWS, FEWEST_DRAWS = 20, 8
MOST_REBUILT = 10**6  # measured tables in all draws, above which there are fewer draws
MOST_ENTRIES = 1 << 24
LEAST = 1e-9
NOTHING = np.zeros(0)
SIMULATION_NOTE = (
    "Approximate, by simulation: the noise and the shrinkage of all measurements, widened by the observed departure of "
    "measurements from the model; and, for sets that were not measured, the chance departure of records from the model "
    "times a factor learnt from measured sets. The weights are those of public tables "
    "(docs/answers.md#intervals). Stronger interactions than measured sets suggest are not included: if there "
    "are any, intervals of 1.96 standard errors contain the true count less often than 95 % of the time."
)


@dataclass(frozen=True, eq=False)
class SimulatedErrors:
    """Simulated standard errors of a model.

    Attributes
    ----------
    model : LowOrder
        Released estimates.
    base : LowOrder
        Tables of the measurements and chains, without completion.
    replicas : tuple of LowOrder
        `base` with other noise.
    known : mapping of AttributeSet to float
        w of each measured set.
    widening : float
        λ.
    departures : Departures
    calibration : Calibration
    """

    model: LowOrder
    base: LowOrder
    replicas: tuple[LowOrder, ...]
    known: Mapping[AttributeSet, float]
    widening: float
    departures: Departures
    calibration: Calibration = CALIBRATION

    def cell_errors(self, names: Sequence[str]) -> Floats:
        """Return standard errors of a marginal's cells, one axis per attribute in the given order."""
        ordered = self._ordered(names)
        return self._errors(self.cell_components(ordered)).transpose([ordered.index(name) for name in names])

    def query_error(self, names: Sequence[str], query: Floats) -> float:
        """Return the standard error of a linear query, an array with axes in the order of `names`."""
        ordered = self._ordered(names)
        weights = np.asarray(query, dtype=np.float64).transpose([list(names).index(name) for name in ordered])
        rest = partial(model_variance.query_variance, self.base, ordered, weights)
        reach = np.abs(weights).max(initial=0.0)
        return float(self._errors(self._components(ordered, lambda v: np.asarray((weights * v).sum()), rest, reach)))

    def part_errors(self, part: WorkloadPart, names: AttributeSet) -> Floats:
        """Return standard errors of all queries of a part over one set; nan if computing them takes too long."""
        parts = self.part_components(part, names)
        return self._errors(parts) if isinstance(parts, ErrorComponents) else np.full(parts, np.nan)

    def part_components(self, part: WorkloadPart, names: AttributeSet) -> ErrorComponents | tuple[int, ...]:
        """Return the components of all queries of a part over one set, or their shape if there are too many."""
        if part.factorizes:
            return self._product_components(part, names)
        if part.count(names) * self.base.marginal(names).size > MOST_ENTRIES:
            return (part.count(names),)

        def rest(known: Collection[AttributeSet]) -> Floats:
            return np.array([model_variance.query_variance(self.base, names, q, known) for q in part.queries(names)])

        return self._components(names, lambda cells: part.answers(names, cells), rest, part.largest_entries(names))

    def simultaneous_widths(self, part: WorkloadPart, names: AttributeSet, errors: Floats, level: float) -> Floats:
        """Return half widths of simultaneous intervals for all queries of a part over one set.

        Parameters
        ----------
        part : WorkloadPart
        names : AttributeSet
        errors : ndarray
            Result of `part_errors`; product queries in any order.
        level : float
            Probability that all intervals cover.
        """
        if np.isnan(errors).all():
            return errors
        reach = np.broadcast_to(part.largest_entries(names), errors.shape)
        answers = np.abs(part.answers(names, self.model.marginal(names))).sum() / max(float(reach.max()), LEAST)
        disjoint = errors.size * self.model.total / max(float(answers), LEAST)
        return simultaneous_widths(errors, reach, len(names), disjoint, level)

    def cell_components(self, names: AttributeSet) -> ErrorComponents:
        """Return the components of a marginal's cells; `names` in the order of attributes."""
        rest = partial(model_variance.cell_variances, self.base, names)
        grouped = len(names) > 1 and not self.base.rules
        return self._components(names, lambda cells: cells, rest, 1.0, self._cell_spread if grouped else None)

    def _product_components(self, part: WorkloadPart, names: AttributeSet) -> ErrorComponents | tuple[int, ...]:
        if all(family.is_identity for family in part.families(names)):
            return self.cell_components(names)

        shapes = [(family.count(size), size) for family, size in _sized(part, names)]
        if max(math.prod(count for count, _ in shapes), *(math.prod(shape) for shape in shapes)) > MOST_ENTRIES:
            return tuple(count for count, _ in shapes)

        rows = [family.matrix(size) for family, size in _sized(part, names)]
        rest = partial(model_variance.product_variances, self.base, names, rows)
        return self._components(names, lambda cells: part.answers(names, cells), rest, part.largest_entries(names))

    def _ordered(self, names: Sequence[str]) -> AttributeSet:
        return tuple(name for name in self.model.ones if name in names)

    def _errors(self, parts: ErrorComponents) -> Floats:
        variances = self.calibration.variances(parts, self.departures, self.widening)
        return np.sqrt(variances, out=variances).astype(np.float64, copy=False)

    def _components(
        self, names: AttributeSet, answers: Answers, rest: Rest, reach: Floats | float,
        spread: Callable[[AttributeSet, Floats], Floats] | None = None,
    ) -> ErrorComponents:  # fmt: skip
        """Return the components of the answers to a marginal.

        `rest` returns the variance of records given known sets, and `spread` the spread if it is known more directly.
        """
        cells = self.base.marginal(names)
        expected = answers(cells)
        noise = self._spread(names, answers, expected) if spread is None else spread(names, cells)
        inside = model_variance.inside(names, self.known)
        measured, pairs = names in self.known, sum(len(subset) == 2 for subset in inside)
        chance = hidden = np.zeros(())

        if len(names) > 1:
            chance = np.asarray(rest(self.known))
            share = 1 - sum(self.known[subset] for subset in inside) / len(inside) if inside else 0.0
            hidden = share * np.maximum(np.asarray(rest(())) - chance, 0) if share > LEAST_SHARE else hidden

        completion = np.zeros(()) if self.model is self.base else answers(self.model.marginal(names)) - expected
        completion *= completion
        alone = len(names) == 2 and not measured
        independent = product_of([self.base.ones[name] for name in names], self.base.total) if alone else None
        association = np.zeros(()) if independent is None else expected - answers(independent)
        kind = SetKind(len(names), measured, pairs == math.comb(len(names), 2))

        return ErrorComponents(kind, noise, chance, hidden, completion, association**2, reach)

    def _spread(self, names: AttributeSet, answers: Answers, expected: Floats) -> Floats:
        spread = np.zeros_like(expected)
        for replica in self.replicas:
            spread += (answers(replica.marginal(names)) - expected) ** 2
        return spread * self._few_draws / len(self.replicas)

    def _cell_spread(self, names: AttributeSet, cells: Floats) -> Floats:
        """Return the spread of cells from that of groups and of the shares of cells in their groups.

        The two are independent, because one is measured over groups and the other by the 1-ways.
        """
        groups = [self.base.groups[name] for name in names]
        table = self.base.coarse_marginal(names)
        spread = self._spread_of_groups(names, table) / np.maximum(table, LEAST) ** 2
        relative = expanded(spread.astype(np.float32), groups)
        for axis, name in enumerate(names):
            relative += along(self._share_spreads[name], axis, len(names))
        relative *= (square := cells.astype(np.float32)) * square

        return np.asarray(relative)

    def _spread_of_groups(self, names: AttributeSet, table: Floats) -> Floats:
        spread = np.zeros_like(table)
        for replica in self.replicas:
            spread += (replica.coarse_marginal(names) - table) ** 2
        return spread * self._few_draws / len(self.replicas)

    @cached_property
    def _few_draws(self) -> float:
        """Factor of a variance from fewer than 20 draws: squared ratio of the 97.5 % quantiles of Student's t."""
        few = min(len(self.replicas), DRAWS)
        return float((special.stdtrit(few, 0.975) / special.stdtrit(DRAWS, 0.975)) ** 2)

    @cached_property
    def _share_spreads(self) -> dict[str, Floats]:
        """Relative variance of the share of every cell in its group, by attribute."""
        found = dict[str, Floats]()
        for name in self.base.ones:
            shares = np.array([_shares(replica, name) for replica in self.replicas])
            squares = (shares / _shares(self.base, name) - 1) ** 2
            found[name] = (np.mean(squares, axis=0) * self._few_draws).astype(np.float32)
        return found


LEAST_SHARE = 0.01  # of a departure; less hides nothing


def _shares(model: LowOrder, name: str) -> Floats:
    """Return the share of every cell of an attribute in its group."""
    groups = [model.groups[name]]
    return np.asarray(model.ones[name] / np.maximum(expanded(coarsened(model.ones[name], groups), groups), LEAST))


def _sized(part: WorkloadPart, names: AttributeSet) -> list[tuple[Family, int]]:
    return list(zip(part.families(names), part.domain.shape(names), strict=True))


def simulate_errors(
    base: LowOrder,
    counts: Mapping[str, NoisyCounts],
    residuals: Residuals,
    wanted: Sequence[AttributeSet] = (),
    chains: int = 1,
    draws: int | None = None,
    seed: int = 0,
    each: ParallelMap = serial_map,
    released: LowOrder | None = None,
) -> SimulatedErrors:
    """Return simulated errors of a model that `model_of` built from `counts` and `residuals`.

    Every draw may be a task of the parallel map. `released` is the model that answers, if it adds tables to `base`. The
    default number of draws is that of `draw_count`.
    """
    pairs = tuple(names for names in residuals.values if len(names) > 1)
    draws = draws or draw_count(len(pairs))
    build = partial(_replica, base, *_noiseless(base, counts, residuals), tuple(wanted), chains)
    drawn = list(each(build, [(seed, draw) for draw in range(draws)]))
    replicas = tuple(replica for replica, _ in drawn)
    tables = {names: base.coarse_marginal(names) for names in pairs}
    spread = sum(float(((_tables(replica, some) - own) ** 2).sum())
                 for some, own in stacks(pairs, tables) for replica in replicas) / draws  # fmt: skip
    excess = _squared_departure(base, residuals) - float(np.mean([departure for _, departure in drawn]))
    widening = 1 + max(excess, 0.0) / max(spread, LEAST)
    departures = Departures.of(base, residuals)
    shares = dict[AttributeSet, float]()
    for some, own in stacks(pairs, tables):
        shares.update(zip(some, _detected_shares(departures, own, map(residuals.precision, some)), strict=True))
    known = {names: shares[names] for names in pairs}

    return SimulatedErrors(base if released is None else released, base, replicas, known, widening, departures)


def draw_count(tables: int) -> int:
    """Return the number of draws for some measured tables, of which each draw rebuilds all.

    A standard error from 20 draws has itself a relative error of 16 %, one from 8 draws 25 %; it is larger by the ratio
    of the quantiles of Student's t, so that intervals have the same coverage.
    """
    return min(max(MOST_REBUILT // max(tables, 1), FEWEST_DRAWS), DRAWS)


def _detected_shares(departures: Departures, tables: Floats, precisions: Iterable[float]) -> list[float]:
    """Return w of measured tables of one shape: the share of a table's departure above the noise, over all cells."""
    departure = departures.pairs * chance_variances(tables)
    noise = math.prod(size - 1 for size in tables[0].shape) / np.array(list(precisions))
    shares: list[float] = (departure / (departure + noise)).tolist()
    return shares


def _squared_departure(model: LowOrder, residuals: Residuals) -> float:
    """Return the squared distance between measured residuals of two or more attributes and those of the model."""
    larger = [names for names in residuals.values if len(names) > 1]
    return sum(float(((_centred(model, some) - own) ** 2).sum()) for some, own in stacks(larger, residuals.values))


def _noiseless(
    model: LowOrder, counts: Mapping[str, NoisyCounts], residuals: Residuals
) -> tuple[dict[str, NoisyCounts], Residuals]:
    """Return the measurements without noise if the model is the truth."""
    exact = {name: noisy.at(model.ones[name]) for name, noisy in counts.items()}
    values = {names: np.asarray(model.total) for names in residuals.values}
    for some, _ in stacks((names for names in residuals.values if names), residuals.values):
        values.update(zip(some, _centred(model, some), strict=True))
    return exact, replace(residuals, values=values)


def _centred(model: LowOrder, sets: Sequence[AttributeSet]) -> Floats:
    """Return the residuals of a model for sets of equal shapes."""
    return center(_tables(model, sets), range(1, 1 + len(sets[0])))


def _tables(model: LowOrder, sets: Sequence[AttributeSet]) -> Floats:
    """Return the tables of a model for sets of equal shapes."""
    return np.array([model.coarse_marginal(names) for names in sets])


def _replica(
    model: LowOrder,
    counts: Mapping[str, NoisyCounts],
    residuals: Residuals,
    wanted: Sequence[AttributeSet],
    chains: int,
    stream: tuple[int, int],
) -> tuple[LowOrder, float]:
    """Return a model from redrawn noise, and the distance between its measurements and it."""
    random = np.random.default_rng(stream)
    redrawn = {name: noisy.at(noisy.values + noisy.noise(random)) for name, noisy in counts.items()}
    measured = replace(residuals, values=_with_noise(random, residuals))
    built = model_of(redrawn, model.groups, measured, wanted, chains, model.rules)
    return built, _squared_departure(built, measured)


def _with_noise(random: np.random.Generator, residuals: Residuals) -> dict[AttributeSet, Floats]:
    """Return the residuals with the noise of their measurements, drawn in their order."""
    starts, end = dict[AttributeSet, int](), 0
    for names, residual in residuals.values.items():
        starts[names], end = end, end + residual.size
    drawn, values = random.standard_normal(end), dict.fromkeys(residuals.values, NOTHING)

    for some, own in stacks(residuals.values, residuals.values):
        first = np.array([starts[names] for names in some])
        deviations = np.array([residuals.precisions[names] ** -0.5 for names in some])
        noise = drawn[first[:, None] + np.arange(own[0].size)] * deviations[:, None]
        values.update(zip(some, own + center(noise.reshape(own.shape), range(1, own.ndim)), strict=True))

    return values
