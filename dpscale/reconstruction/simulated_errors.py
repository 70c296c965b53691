"""Standard errors of low-order estimates by simulation: a parametric bootstrap, and what it does not show.

The final model is taken as the truth, the noise of every measurement is redrawn at its known variance, and the model is
rebuilt. The spread of these replicas is the error due to noise and shrinkage if the model is true. Groups and the
choice of measurements are fixed. The model is not exactly true, so further components are added:

- λ, a widening of the spread: measured pairs depart from the model by D, more than the measurements of replicas depart
  from theirs, B. By Stein's identity (error² = D − noise² + 2 covariance, the last two as simulated) the excess is an
  excess of squared error.
- U, chance: unmeasured tables depart from the model. Records drawn from the model would depart with the variance of
  `query_variance`, real records with a multiple that follows from the departures of measured sets (`Departures`).
- H, hidden departures, which were measured but are small against the noise. A departure of variance φU under noise of
  variance s² is known except for a share (1 − w), w = φU/(φU + s²). Replicas of a model that shrank it away do not have
  it. With U₀ the variance of a query if only the 1-ways had been measured, H = (1 − w)(U₀ − U), with the mean w of the
  measured sets inside.
- completion and association: what the released model adds to the tables of the measurements, and what chains add to
  independence for a pair that was not measured, are uncertain in proportion.

All of this is post-processing: these random streams are not part of any privacy argument.

*Departures.*
A measured pair is predicted by its strongest chain of other pairs, a larger measured set by the pairs inside it. The
squared distance D of the measurement from the prediction, less its noise, is compared with the variance U that records
drawn from the prediction would have. D / U is 1 if records follow the prediction, and more if attributes interact.

*Weights.*
The error of an answer has parts that no release shows completely, so their weights are calibrated on public tables,
whose exact counts are known (`python benchmarks/intervals.py queries`, which also reports every table with the weights
that the other tables give). Nothing about the data of a release enters the weights.

    variance = max(a s, h H) + f (U + U/(U/r² + 1)) + c C + d A + l r²

with the spread s of replicas, the variance U of records given the measured sets, the variance H of departures that
were measured but may be hidden by the noise, the squared change C of the estimate by a model of all pairs, the squared
association A that chains imply for a pair that was not measured, and the largest entry r of the query. The
overdispersion f grows with the departures of measured sets (`Departures`). U counts at most twice for cells with few
records, where records that depart come together.

Simultaneous intervals have half widths q √(variance + k² r² V), V the mean of variance / r² over the set, because
unexpected records may be in any cell. The quantile q is Bonferroni's for the number n of queries that do not overlap,
times 1 + (d − 1)(0.18 + 0.06 log n) for d attributes, whose errors have a longer tail than normal ones if d > 1.

*Queries that were not measured.*
The difference between a model and a table drawn from it has a variance. Records drawn from the model, conditional on
all measurements, leave a query q with the variance Σ μ̂ (q − Pq)². P is the μ̂-weighted projection on the space of the
measured sets (their cells over groups, and the cells of all 1-ways), computed by repeated conditional means. The caller
applies an overdispersion φ. The queries of 1-ways and of measured sets have variance zero.

*Names.* `base` is the model of the measurements and chains, `model` the released one, which may add tables to it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import Any

import numpy as np

from dpscale.base.numerics import AttributeSet, Floats, ParallelMap, serial_map, special
from dpscale.reconstruction.consistency import NoisyCounts
from dpscale.reconstruction.entropy import LowOrder, along, product_of
from dpscale.reconstruction.joint_intervals import bonferroni
from dpscale.reconstruction.low_order import model_of
from dpscale.reconstruction.set_arrays import OneWayArrays, PairArrays, PairLinks, stacks
from dpscale.workload import Family, WorkloadPart
from dpscale.workload.residual import Groups, Residuals, center, coarsened, every_cell, expanded, subsets

FEW, FEW_LARGER = 8, 5  # fewest predicted sets for an estimate
LEAST = 1e-9  # least divisor, and least variance of chance
QUANTILE = 0.25  # of the pairs: those that are selected interact more than those that are not
LEAST_LARGER, MOST_LARGER = 0.1, 1e3  # limits of the departure of larger sets

Projection = Callable[[Floats], Floats]
MarginSums = Callable[[AttributeSet, bool], Floats]
Rows = Floats | None
SWEEPS, LEAST_MARGIN = 12, 1e-12  # sweeps over the conditional means of several margins; least margin, which divides


@dataclass(frozen=True)
class Departures:
    """Ratios D / U of a release.

    Attributes
    ----------
    pairs : float
        Lower quartile of the measured pairs, at least 1; 1 if too few can be predicted.
    larger : float or None
        Median of the measured sets of three or more attributes; None if there are too few.
    """

    pairs: float = 1.0
    larger: float | None = None

    @classmethod
    def of(cls, model: LowOrder, residuals: Residuals) -> Departures:
        """Return the departures of a model that was built from these residuals.

        A ratio of a set is its squared departure D over the variance U of tables drawn from the model. Fewer than FEW
        ratios are not used.
        """
        pairs_only = replace(model, tables={names: table for names, table in model.tables.items() if len(names) == 2})
        pairs, larger = _pair_ratios(pairs_only, residuals), list(_larger_ratios(pairs_only, residuals))
        of_pairs = max(1.0, float(np.quantile(pairs, QUANTILE))) if len(pairs) >= FEW else 1.0
        if len(larger) < FEW_LARGER:
            return cls(of_pairs)
        return cls(of_pairs, min(max(float(np.median(larger)), LEAST_LARGER), MOST_LARGER))


def _pair_ratios(pairs_only: LowOrder, residuals: Residuals) -> list[float]:
    """Return D / U of the measured pairs that a chain predicts.

    `noise` is the expected squared noise of a centred residual: Π (n_i − 1) independent coordinates, each of variance
    1/precision. `excess` is D: the squared distance of residual and expectation without that noise.
    """
    chains = _tables_of_strongest_chains(pairs_only, [names for names in residuals.values if len(names) == 2])
    ratios = list[float]()
    for pairs, expected in stacks(chains, chains):  # pairs of equal shape
        noise = math.prod(size - 1 for size in expected[0].shape) / np.array(list(map(residuals.precision, pairs)))
        measured = np.array([residuals.values[names] for names in pairs])
        excess = ((center(expected, (1, 2)) - measured) ** 2).sum(axis=(1, 2)) - noise
        ratios += (excess / chance_variances(expected)).tolist()
    return ratios


def _larger_ratios(pairs_only: LowOrder, residuals: Residuals) -> Iterator[float]:
    """Yield D / U of the larger measured sets.

    As `_pair_ratios`, with the expectation from the pairs inside each set, whose axes are `within`.
    """
    for names, residual in residuals.values.items():
        if len(names) > 2:
            inside = [subset for subset in pairs_only.tables if set(subset) < set(names)]
            expected = pairs_only.coarse_marginal(names)
            noise = math.prod(size - 1 for size in residual.shape) / residuals.precision(names)
            excess = float(((center(expected, range(len(names))) - residual) ** 2).sum()) - noise
            within = [tuple(names.index(name) for name in subset) for subset in inside]
            yield excess / float(chance_variances(expected[None], within)[0])


def _tables_of_strongest_chains(pairs_only: LowOrder, wanted: Sequence[AttributeSet]) -> dict[AttributeSet, Floats]:
    """Return for each wanted pair (a, b) the table of counts that two measured pairs (a, c) and (c, b) imply.

    Such a chain over a third attribute c implies Σ_c count(a, c) count(c, b) / count(c). Of several chains the
    strongest is used, whose table is farthest from independence; a pair without a chain is left out.

    Parameters
    ----------
    pairs_only : LowOrder
        Model whose tables are of two attributes each; some of them were measured.
    wanted : sequence of AttributeSet
        Pairs of attributes.
    """
    measured = [names for names in pairs_only.tables if names in pairs_only.measured]

    # the compiled loops read all tables as one flat array, in the order of `measured`; the empty one is for no pair
    flat_tables = [pairs_only.tables[names].reshape(-1) for names in measured]
    flat_array = np.concatenate([np.zeros(0), *flat_tables])

    one_ways = OneWayArrays.of(pairs_only.coarse, pairs_only.total)  # counts of each attribute alone
    chains = PairLinks.of(PairArrays(one_ways, measured), flat_array)
    return chains.strongest(PairArrays(one_ways, wanted))


def chance_variances(expected: Floats, inside: Sequence[tuple[int, ...]] = ()) -> Floats:
    """Return Σ μ̂ Π (1 − μ̂/margin) over the 1-ways and the axes `inside`, as in `query_variance`.

    Parameters
    ----------
    expected : ndarray, shape (tables, *shape)
    inside : sequence of tuple of int
        Axes of the known sets of two or more attributes inside each table.
    """
    unmeasured, axes = expected.copy(), range(1, expected.ndim)
    for subset in [*inside, *((axis,) for axis in range(expected.ndim - 1))]:
        others = tuple(axis for axis in axes if axis - 1 not in subset)
        unmeasured *= 1 - expected / np.maximum(expected.sum(axis=others, keepdims=True), LEAST)
    return np.asarray(np.maximum(np.maximum(unmeasured, 0).sum(axis=tuple(axes)), LEAST))


@dataclass(frozen=True)
class SetKind:
    """What the weights of a set depend on.

    Attributes
    ----------
    degree : int
        Number of attributes.
    measured : bool
        Whether the set itself was measured.
    covered : bool
        Whether all pairs inside were measured.
    """

    degree: int
    measured: bool
    covered: bool


@dataclass(frozen=True, eq=False)
class ErrorComponents:
    """Parts of the squared errors of the queries over one set, in the shape of the answers.

    Attributes
    ----------
    kind : SetKind
    spread : ndarray
        Mean squared distance of replicas.
    chance, hidden : ndarray
        U and H; 0 for single attributes.
    completion : ndarray
        C.
    association : ndarray
        A; 0 unless the set is a pair that was not measured.
    reach : ndarray or float
        r.
    """

    kind: SetKind
    spread: Floats
    chance: Floats
    hidden: Floats
    completion: Floats
    association: Floats
    reach: Floats | float

    def in_order(self) -> Iterator[Floats | float]:
        """Yield the components in the order of `Calibration.weights`."""
        scale = max(self.reach**2, TINY) if isinstance(self.reach, float) else np.maximum(self.reach**2, TINY)
        sparse = self.chance / (self.chance / scale + 1)
        yield from (self.spread, self.hidden, self.chance + sparse, self.completion, self.association, scale)


@dataclass(frozen=True)
class Calibration:
    """Weights of the components.

    Attributes
    ----------
    one_way, measured_pair, other_pair, larger : float
        a of single attributes, measured pairs, other pairs, and larger sets.
    hidden : float
        h.
    pair_level, pair_slope : float
        f = level · (pairs of the departures)^slope, unless the set is larger, its pairs were measured, and it was not.
    larger_level, larger_slope : float
        f of these sets, by the departures of larger sets.
    completion : float
        c.
    association : float
        d.
    """

    one_way: float
    measured_pair: float
    other_pair: float
    larger: float
    hidden: float
    pair_level: float
    pair_slope: float
    larger_level: float
    larger_slope: float
    completion: float
    association: float

    def weights(self, kind: SetKind, departures: Departures, widening: float) -> tuple[float, ...]:
        """Return the weights of `ErrorComponents.in_order` for a kind of sets.

        Parameters
        ----------
        kind : SetKind
        departures : Departures
        widening : float
            λ, at least 1.
        """
        if kind.degree == 1:
            return self.one_way, 0.0, 0.0, 0.0, 0.0, LEAST_SPREAD
        pair = self.pair_level * departures.pairs**self.pair_slope
        larger = self.larger_level * (1.0 if departures.larger is None else departures.larger) ** self.larger_slope
        level = larger if kind.degree > 2 and kind.covered and not kind.measured else pair
        spread = self.larger if kind.degree > 2 else self.measured_pair if kind.measured else self.other_pair
        return math.sqrt(widening) * spread, self.hidden, level, self.completion, self.association, LEAST_SPREAD

    def variances(self, parts: ErrorComponents, departures: Departures, widening: float) -> Floats:
        """Return the variances of the answers; the arguments are those of `weights`."""
        return weighted(self.weights(parts.kind, departures, widening), parts.in_order())


def weighted(weights: Sequence[Floats | float], parts: Iterable[Floats | float]) -> Floats:
    """Return the larger one of the first two components with their weights, plus the others with theirs.

    The first two components are the spread and the hidden departures: of these only the larger one counts.
    """
    spread, hidden, *others = zip(weights, parts, strict=True)
    total = np.maximum(spread[0] * spread[1], hidden[0] * hidden[1])
    for weight, part in others:
        if np.any(weight):
            total += weight * part
    return np.asarray(total)


ERROR_PARTS = ("noise", "hidden", "chance", "completion")
LEAST_SPREAD, TINY = 0.05, 1e-12  # l, the weight of r² in a variance; least divisor
EVEN = 0.7  # k
TAIL, LONGER = 0.18, 0.06  # longer tail of the errors of pairs, and twice this of sets of three
# weights calibrated on public tables, see Weights above
CALIBRATION = Calibration(
    one_way=1.29,
    measured_pair=1.29,
    other_pair=2.38,
    larger=2.11,
    hidden=0.63,
    pair_level=0.91,
    pair_slope=0.66,
    larger_level=1.28,
    larger_slope=0.25,
    completion=0.49,
    association=0.0037,
)


def simultaneous_widths(errors: Floats, reach: Floats, degree: int, disjoint: float, level: float) -> Floats:
    """Return half widths of simultaneous intervals.

    Parameters
    ----------
    errors : ndarray
        Standard errors of all queries over a set.
    reach : ndarray
        Largest entry of each query, in the same shape.
    degree : int
        Number of attributes.
    disjoint : float
        Number of queries that do not overlap: their number times the total, by the sum of their answers.
    level : float
        Probability that all intervals cover.
    """
    count = min(max(disjoint, 1.0), float(errors.size))
    tail = (degree - 1) * (TAIL + LONGER * math.log(count))
    scaled = errors / np.maximum(reach, TINY)
    mean = np.sort(scaled**2, axis=None).mean()  # sorted, so that the order of the queries does not change the last bit
    return np.asarray(bonferroni(level, count) * (1 + tail) * reach * np.sqrt(scaled**2 + EVEN**2 * mean))


Answers = Callable[[Floats], Floats]
Rest = Callable[[Collection[AttributeSet]], Floats | float]
DRAWS, FEWEST_DRAWS = 20, 8  # replicas of a model, and the fewest if there are many measured tables; see `draw_count`
MOST_REBUILT = 10**6  # measured tables in all draws, above which there are fewer draws
MOST_ENTRIES = 1 << 24  # entries of queries × cells above which the components of a set are not computed
NOTHING = np.zeros(0)  # placeholder until the noise of a residual is drawn
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

    def cell_parts(self, names: AttributeSet) -> dict[str, Floats]:
        """Return the root of each part of the squared errors of a marginal's cells, by the names of `ERROR_PARTS`.

        `names` are in the order of attributes. Only the larger one of noise and hidden departures counts.
        """
        parts = self.cell_components(names)
        weights = self.calibration.weights(parts.kind, self.departures, self.widening)
        shape = self.base.marginal(names).shape
        noise, hidden, chance, completion, association, floor = (
            np.broadcast_to(np.asarray(weight * part, dtype=np.float64), shape)
            for weight, part in zip(weights, parts.in_order(), strict=True)
        )

        squares = (np.where(noise >= hidden, noise, 0) + floor, np.where(noise < hidden, hidden, 0), chance,
                   completion + association)  # fmt: skip
        return {name: np.sqrt(square) for name, square in zip(ERROR_PARTS, squares, strict=True)}

    def query_error(self, names: Sequence[str], query: Floats) -> float:
        """Return the standard error of a linear query, an array with axes in the order of `names`."""
        ordered = self._ordered(names)
        weights = np.asarray(query, dtype=np.float64).transpose([list(names).index(name) for name in ordered])
        variance_given = partial(query_variance, self.base, ordered, weights)
        reach = np.abs(weights).max(initial=0.0)
        return float(
            self._errors(self._components(ordered, lambda v: np.asarray((weights * v).sum()), variance_given, reach))
        )

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
            return np.array([query_variance(self.base, names, q, known) for q in part.queries(names)])

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

        # a record is in Σ answers / total queries on average, so about queries · total / Σ answers are disjoint
        answers = np.abs(part.answers(names, self.model.marginal(names))).sum()
        queries_of_records = float(answers) / max(float(reach.max()), LEAST)
        disjoint = errors.size * self.model.total / max(queries_of_records, LEAST)
        return simultaneous_widths(errors, reach, len(names), disjoint, level)

    def cell_components(self, names: AttributeSet) -> ErrorComponents:
        """Return the components of a marginal's cells; `names` in the order of attributes."""
        rest = partial(cell_variances, self.base, names)
        grouped = len(names) > 1 and not self.base.rules
        return self._components(names, lambda cells: cells, rest, 1.0, self._cell_spread if grouped else None)

    def _product_components(self, part: WorkloadPart, names: AttributeSet) -> ErrorComponents | tuple[int, ...]:
        """Return the components of the answers to product queries; only the answers' shape if they are too many."""
        if all(family.is_identity for family in part.families(names)):
            return self.cell_components(names)

        shapes = [(family.count(size), size) for family, size in _sized(part, names)]
        if max(math.prod(count for count, _ in shapes), *(math.prod(shape) for shape in shapes)) > MOST_ENTRIES:
            return tuple(count for count, _ in shapes)

        rows = [family.matrix(size) for family, size in _sized(part, names)]
        rest = partial(product_variances, self.base, names, rows)
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

        With w of the measured sets inside (`known`), `share` is their mean 1 − w. `chance` is U, the variance given all
        known sets, `rest(())` is U₀, and `hidden` is H = share · (U₀ − U). `association` is the difference from
        independence of a pair that was not measured. Sets of one attribute have neither U nor H.

        `reach` is the largest entry r of each query, `rest(known)` a function of the known sets, and `expected` the
        answers by the tables of the measurements. See the module for the letters.
        """
        cells = self.base.marginal(names)
        expected = answers(cells)
        noise = self._spread(names, answers, expected) if spread is None else spread(names, cells)
        inside = sets_inside(names, self.known)
        measured, pairs = names in self.known, sum(len(subset) == 2 for subset in inside)
        chance = hidden = np.zeros(())

        if len(names) > 1:
            # U, and then H = (1 − w)(U₀ − U)
            chance = np.asarray(rest(self.known))
            share = 1 - sum(self.known[subset] for subset in inside) / len(inside) if inside else 0.0
            hidden = share * np.maximum(np.asarray(rest(())) - chance, 0) if share > LEAST_SHARE else hidden

        # what the completion of the model changes, squared
        completion = np.zeros(()) if self.model is self.base else answers(self.model.marginal(names)) - expected
        completion *= completion
        alone = len(names) == 2 and not measured
        independent = product_of([self.base.ones[name] for name in names], self.base.total) if alone else None
        association = np.zeros(()) if independent is None else expected - answers(independent)
        kind = SetKind(len(names), measured, pairs == math.comb(len(names), 2))

        return ErrorComponents(
            kind=kind,
            spread=noise,
            chance=chance,
            hidden=hidden,
            completion=completion,
            association=association**2,
            reach=reach,
        )

    def _spread(self, names: AttributeSet, answers: Answers, expected: Floats) -> Floats:
        """Return the mean squared departure of the replicas' answers from the expected ones.

        Replicas are models of simulated measurements; few of them are corrected for.
        """
        spread = np.zeros_like(expected)
        for replica in self.replicas:
            spread += (answers(replica.marginal(names)) - expected) ** 2
        return spread * self._few_draws / len(self.replicas)

    def _cell_spread(self, names: AttributeSet, cells: Floats) -> Floats:
        """Return the spread of cells from that of groups and of the shares of cells in their groups.

        The two are independent, because one is measured over groups and the other by the 1-ways.

        Relative variances of a product of independent factors add: that of the group's count and those of the cells'
        shares.
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
        """Return the mean squared departure of the replicas' tables over groups from a table."""
        spread = np.zeros_like(table)
        for replica in self.replicas:
            spread += (replica.coarse_marginal(names) - table) ** 2
        return spread * self._few_draws / len(self.replicas)

    @cached_property
    def _few_draws(self) -> float:
        """Factor of a variance from fewer than 20 draws: squared ratio of the 97.5 % quantiles of Student's t."""
        draws = min(len(self.replicas), DRAWS)
        return float((special.stdtrit(draws, 0.975) / special.stdtrit(DRAWS, 0.975)) ** 2)

    @cached_property
    def _share_spreads(self) -> dict[str, Floats]:
        """Relative variance of the share of every cell in its group, by attribute."""
        spreads = dict[str, Floats]()
        for name in self.base.ones:
            shares = np.array([_shares(replica, name) for replica in self.replicas])
            squares = (shares / _shares(self.base, name) - 1) ** 2
            spreads[name] = (np.mean(squares, axis=0) * self._few_draws).astype(np.float32)
        return spreads


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

    `excess` is D − B, the squared departure of the measurements from the model minus the mean of that of the replicas,
    and the widening is 1 + excess over the squared spread of the replicas.

    A replica is the model from measurements with other noise, together with the squared departure of these measurements
    from it. `known` has w of each measured set, the share of a departure that the noise does not hide.
    """
    pairs = tuple(names for names in residuals.values if len(names) > 1)
    draws = draws or draw_count(len(pairs))
    build = partial(_replica, base, *_noiseless(base, counts, residuals), tuple(wanted), chains)
    drawn = list(each(build, [(seed, draw) for draw in range(draws)]))
    replicas = tuple(replica for replica, _ in drawn)
    tables = {names: base.coarse_marginal(names) for names in pairs}
    squares = 0.0
    for sets, stacked in stacks(pairs, tables):  # sets of equal shape are computed together
        for replica in replicas:
            squares += float(((_tables(replica, sets) - stacked) ** 2).sum())
    spread = squares / draws
    # D − B
    excess = _squared_departure(base, residuals) - float(np.mean([departure for _, departure in drawn]))
    widening = 1 + max(excess, 0.0) / max(spread, LEAST)
    departures = Departures.of(base, residuals)
    shares = dict[AttributeSet, float]()
    for sets, stacked in stacks(pairs, tables):
        shares.update(zip(sets, _detected_shares(departures, stacked, map(residuals.precision, sets)), strict=True))
    known = {names: shares[names] for names in pairs}

    return SimulatedErrors(
        model=base if released is None else released,
        base=base,
        replicas=replicas,
        known=known,
        widening=widening,
        departures=departures,
    )


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
    return (departure / (departure + noise)).tolist()


def _squared_departure(model: LowOrder, residuals: Residuals) -> float:
    """Return the squared distance between measured residuals of two or more attributes and those of the model."""
    larger = [names for names in residuals.values if len(names) > 1]
    of_shapes = stacks(larger, residuals.values)  # sets of equal shape together
    return sum(float(((_centred(model, sets) - measured) ** 2).sum()) for sets, measured in of_shapes)


def _noiseless(
    model: LowOrder, counts: Mapping[str, NoisyCounts], residuals: Residuals
) -> tuple[dict[str, NoisyCounts], Residuals]:
    """Return the measurements without noise if the model is the truth.

    Residuals of the model are its tables, centred along every axis; the total has the number of records.
    """
    exact = {name: noisy.at(model.ones[name]) for name, noisy in counts.items()}
    values = {names: np.asarray(model.total) for names in residuals.values}
    for sets, _ in stacks((names for names in residuals.values if names), residuals.values):
        values.update(zip(sets, _centred(model, sets), strict=True))
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
    """Return the residuals with the noise of their measurements, drawn in their order.

    A centred residual has the noise of its precision, centred. Numbers are drawn in the order of the residuals,
    although tables of equal shape are computed together.
    """
    starts, end = dict[AttributeSet, int](), 0
    for names, residual in residuals.values.items():
        starts[names], end = end, end + residual.size
    drawn, values = random.standard_normal(end), dict.fromkeys(residuals.values, NOTHING)

    for sets, stacked in stacks(residuals.values, residuals.values):
        first = np.array([starts[names] for names in sets])
        deviations = np.array([residuals.precisions[names] ** -0.5 for names in sets])
        noise = drawn[first[:, None] + np.arange(stacked[0].size)] * deviations[:, None]
        values.update(zip(sets, stacked + center(noise.reshape(stacked.shape), range(1, stacked.ndim)), strict=True))

    return values


def query_variance(model: LowOrder, names: AttributeSet, query: Floats, measured: Collection[AttributeSet]) -> float:
    """Return Σ μ̂ (q − Pq)² of a query over the cells of a set; `names` in the model's order.

    Each step subtracts from q its conditional mean Σ μ̂q/Σ μ̂ given the cells of one known set; repeated steps converge
    to q − Pq.
    """
    cells, remainder = model.marginal(names), np.array(query, dtype=np.float64)
    totals = [_total(model, names, subset, grouped) for subset, grouped in _margins(model, names, measured)]
    sums = [(total, np.maximum(total(cells), LEAST_MARGIN)) for total in totals]
    for _ in range(SWEEPS if len(sums) > 1 else 1):
        for total, margin in sums:
            remainder -= total(cells * remainder) / margin
    return float((cells * remainder**2).sum())


def cell_variances(model: LowOrder, names: AttributeSet, measured: Collection[AttributeSet]) -> Floats:
    """Return approximate variances of single cells, in single precision: large sets take half the time."""
    return product_variances(model, names, [None] * len(names), measured, np.float32)


def product_variances(
    model: LowOrder,
    names: AttributeSet,
    rows: Sequence[Rows],
    measured: Collection[AttributeSet],
    precision: type[np.floating[Any]] = np.float64,
) -> Floats:
    """Return approximate variances of all products of 0/1 rows, as if the cells of a query were one cell.

    With a the count of a query and m the counts of the parts of each measured margin that it touches, the variance is
    a Π (1 − a/m). If that is more, it is the part of a that the means given the measured sets leave, which is exact for
    independent attributes.

    Parameters
    ----------
    model : LowOrder
    names : AttributeSet
    rows : sequence of ndarray or None
        For each axis the rows, shape (queries, cells); None for single cells.
    measured : collection of AttributeSet
    precision : type
        Type of the numbers.
    """
    cells = model.marginal(names).astype(precision, copy=False)
    counts = cells
    for axis, row in enumerate(rows):
        counts = _along(counts, axis, row, None)
    margin = cache(partial(_touched_margin, model, cells, names, rows))
    remainder, share, known = counts.copy(), np.empty_like(counts), dict[AttributeSet, None]()

    for subset, grouped in _margins(model, names, measured):
        np.divide(counts, margin(subset, grouped), out=share)
        remainder *= np.subtract(1, share, out=share)
        known.update(dict.fromkeys(subsets(subset)) if grouped else {})  # in an order that no hash changes

    np.subtract(1, np.multiply(counts, _explained(names, known, margin), out=share), out=share)
    np.maximum(remainder, np.multiply(counts, share, out=share), out=remainder)
    return np.maximum(remainder, 0, out=remainder)


def _explained(names: AttributeSet, known: Collection[AttributeSet], margin: MarginSums) -> Floats:
    """Return the sum over known sets of the part of the mean square, as a share of a², that no smaller set has.

    a²/m is the mean square given a set.

    By inclusion and exclusion, a set's part beyond its subsets has the sign (−1)^(number of attributes left out) for
    each subset; `signs` sums these by subset, and whether it is over groups.
    """
    signs = Counter[tuple[AttributeSet, bool]]({((name,), False): 1 for name in names})
    signs[(), False] = 1 - len(names)
    for subset in (subset for subset in known if len(subset) > 1):
        for part in subsets(subset):
            signs[part, len(part) > 0] += (-1) ** (len(subset) - len(part))

    larger, total = [subset for subset in known if len(subset) > 1], dict[AttributeSet, Floats | float]()
    for (part, grouped), sign in signs.items():  # a margin is added to a small table that has its axes
        place = next((subset for subset in larger if set(part) <= set(subset)), part)
        total[place] = total.get(place, 0.0) + sign / margin(part, grouped)

    return np.asarray(sum(total.values()))


def _touched_margin(
    model: LowOrder, cells: Floats, names: AttributeSet, rows: Sequence[Rows], subset: AttributeSet, grouped: bool
) -> Floats:
    """Return the part of a margin that each query touches: the cells of the query, or the groups of these cells.

    `subset` are the attributes of the margin; `grouped` selects the groups. LEAST_MARGIN keeps a margin above 0,
    because it divides.
    """
    values = cells.sum(axis=tuple(axis for axis, name in enumerate(names) if name not in subset), keepdims=True)
    for axis, name in enumerate(names):
        if name in subset:
            values = _along(values, axis, rows[axis], model.groups[name] if grouped else None)
    return np.maximum(values, LEAST_MARGIN)


def _along(values: Floats, axis: int, rows: Rows, groups: Groups | None) -> Floats:
    """Apply rows along an axis, one query per row; with groups a row covers all cells of the groups that it touches."""
    if groups is None:
        return values if rows is None else _applied(values, axis, rows)
    if rows is None:
        grouping = [*[every_cell(1)] * axis, groups]
        return expanded(coarsened(values, grouping), grouping)
    return _applied(values, axis, np.minimum(expanded(coarsened(rows.T, [groups]), [groups]), 1).T)


def _applied(values: Floats, axis: int, rows: Floats) -> Floats:
    return np.moveaxis(np.tensordot(rows, values, (1, axis)), 0, axis)


def sets_inside(names: AttributeSet, measured: Collection[AttributeSet]) -> list[AttributeSet]:
    """Return the measured sets of two or more attributes inside a set; `measured` in the order of attributes."""
    candidates = subsets(names) if 2 ** len(names) < len(measured) else measured
    return [subset for subset in candidates if len(subset) > 1 and subset in measured and set(subset) <= set(names)]


def _margins(
    model: LowOrder, names: AttributeSet, measured: Collection[AttributeSet]
) -> Iterator[tuple[AttributeSet, bool]]:
    """Yield the known sets inside a set: measured sets over groups (True), other 1-ways over cells (False)."""
    contained = sets_inside(names, measured)
    covered = {name for subset in contained for name in subset if model.groups[name].count == model.groups[name].size}
    yield from ((subset, True) for subset in contained)
    yield from (((name,), False) for name in names if name not in covered)


def _total(model: LowOrder, names: AttributeSet, subset: Sequence[str], grouped: bool) -> Projection:
    """Return the projection of a table on sums over a subset of its attributes, by groups if `grouped`, else in total.

    The sums are repeated for the cells of their group, so that the result has the groups' shape.
    """
    others = tuple(axis for axis, name in enumerate(names) if name not in subset)
    groups = [model.groups[name] if grouped and name in subset else every_cell(1) for name in names]

    def total(values: Floats) -> Floats:
        return expanded(coarsened(values.sum(axis=others, keepdims=True), groups), groups)

    return total
