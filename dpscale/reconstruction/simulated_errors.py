"""Standard errors of low-order estimates by simulation: a parametric bootstrap, widened by the observed misfit.

The final model is taken as the truth, the noise of every measurement is redrawn at its known variance, and the model is
rebuilt. The spread of these replicas is the error due to noise and shrinkage if the model is true. Groups and the
choice of measurements are fixed. The model is not exactly true, so two factors, computed from released values alone,
correct the spread:

- λ: measured pairs depart from the model by D, more than the measurements of replicas depart from theirs, B. By Stein's
  identity (error² = D − noise² + 2 covariance, the last two as simulated) the excess is an excess of squared error.
- φ: unmeasured tables depart from the model too. Records drawn from the model would depart with the variance of
  `model_variance`, real records with φ times that. φ is at least the ratio of the errors of measured sets to their
  counts, and at least the overdispersion of measured sets that are predicted without themselves (`dispersion`), if
  there are enough of them.

In between are departures that were measured but are small against the noise. A departure of variance φU under noise of
variance s² is known except for a share (1 − w), w = φU/(φU + s²). Replicas of a model that shrank it away do not have
it, so their spread is replaced by this share if it is smaller. With U₀ the variance of a query if only the 1-ways had
been measured, U its variance given the measured sets, and w the mean over those inside it,

    standard error² = 3/2 (max(λ · spread², (1 − w) φ (U₀ − U)) + φ U),     U = Σ μ̂ (q − Pq)²

All factors are means over sets, and sets differ; the factor 3/2 allows for that (docs/mechanisms.md reports the
alternatives tried). All of this is post-processing: these random streams are not part of any privacy argument.

Simultaneous intervals need more than standard errors. Records that depart come φ together, so the distribution of a
cell with small expectation has a long tail. By Bernstein's inequality a sum of independent jumps of size b and total
variance V exceeds √(2VL) + bL/3 with a probability of at most 2e^(−L). `SimulatedErrors.simultaneous_widths` adds the
last term to Bonferroni's normal quantile, which is less than √(2L), since V is already widened. This is not a proof;
the coverage is measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from dpscale.base.numerics import AttributeSet, Floats, ParallelMap, serial_map
from dpscale.reconstruction import model_variance
from dpscale.reconstruction.entropy import LowOrder
from dpscale.reconstruction.joint_intervals import bonferroni
from dpscale.reconstruction.low_order import model_of
from dpscale.reconstruction.one_way import NoisyCounts
from dpscale.reconstruction.set_arrays import OneWayArrays, PairArrays, PairLinks
from dpscale.workload import Family, WorkloadPart
from dpscale.workload.residual import center
from dpscale.workload.residual.grem import Residuals

FEW, LEAST_OVERDISPERSION = 8, 1e-9  # fewest predicted sets for an estimate


def dispersion(model: LowOrder, residuals: Residuals) -> float:
    """Return the overdispersion φ ≥ 1 of a model built from these residuals; 1 if too few sets can be predicted.

    Every measured set is predicted without itself, and its squared error compared with the variance of the prediction.
    """
    pairs_only = replace(model, tables={names: table for names, table in model.tables.items() if len(names) == 2})
    pairs, larger = (sorted(_prediction_ratios(pairs_only, residuals, many)) for many in (False, True))
    if len(pairs) < FEW:
        return 1.0
    own = max(1.0, float(np.quantile(pairs, 0.25)))
    return own if len(larger) < FEW else math.sqrt(own * max(1.0, float(np.median(larger))))


def _prediction_ratios(pairs_only: LowOrder, residuals: Residuals, larger: bool) -> Iterator[float]:
    """Yield D / U of the measured pairs, or of the larger sets."""
    sets = [names for names in residuals.values if len(names) > 1 and (len(names) > 2) is larger]
    chains = {} if larger else _strongest_chains(pairs_only, sets)
    for names in sets:
        residual = residuals.values[names]
        inside = [subset for subset in pairs_only.tables if set(subset) < set(names)] if larger else []
        expected = pairs_only.coarse_marginal(names) if larger else chains.get(names)
        if expected is None:
            continue
        noise = math.prod(size - 1 for size in residual.shape) / residuals.precision(names)
        excess = float(((center(expected, range(len(names))) - residual) ** 2).sum()) - noise
        yield excess / chance_variance(expected, names, inside)


def _strongest_chains(pairs_only: LowOrder, sets: Sequence[AttributeSet]) -> dict[AttributeSet, Floats]:
    """Return the strongest chain of measured pairs that implies each pair."""
    ones = OneWayArrays.of(pairs_only.coarse, pairs_only.total)
    known = PairArrays(ones, [names for names in pairs_only.tables if names in pairs_only.measured])
    tables = [np.zeros(0), *(pairs_only.tables[names].reshape(-1) for names in known.names)]
    return PairLinks.of(known, np.concatenate(tables)).strongest(PairArrays(ones, sets))


def chance_variance(expected: Floats, names: AttributeSet, inside: Sequence[AttributeSet] = ()) -> float:
    """Return Σ μ̂ Π (1 − μ̂/margin) over the 1-ways and the sets `inside`, as in `model_variance`."""
    unmeasured = expected.copy()
    for subset in [*inside, *((name,) for name in names)]:
        others = tuple(axis for axis, name in enumerate(names) if name not in subset)
        unmeasured *= 1 - expected / np.maximum(expected.sum(axis=others, keepdims=True), LEAST_OVERDISPERSION)
    return max(float(np.maximum(unmeasured, 0).sum()), LEAST_OVERDISPERSION)


Rest = Callable[[Collection[AttributeSet]], Floats | float]
DRAWS = 20
MOST_ENTRIES = 1 << 24
ERROR_MARGIN = 1.5  # the factors are means over sets, and sets differ
SIMULATION_NOTE = (
    "Approximate, by simulation: the noise and the shrinkage of all measurements, widened by the observed departure of "
    "measurements from the model; and, for sets that were not measured, the chance departure of records from the model "
    "times a factor learnt from measured sets. Stronger interactions are not included: if there are any, intervals of "
    "1.96 standard errors contain the true count less often than 95 % of the time."
)


@dataclass(frozen=True, eq=False)
class SimulatedErrors:
    """Simulated standard errors of a model.

    Attributes
    ----------
    model : LowOrder
    replicas : tuple of LowOrder
    known : mapping of AttributeSet to float
        w of each measured set.
    widening : float
        λ.
    dispersion : float
        φ.
    """

    model: LowOrder
    replicas: tuple[LowOrder, ...]
    known: Mapping[AttributeSet, float]
    widening: float
    dispersion: float

    def cell_errors(self, names: Sequence[str]) -> Floats:
        """Return standard errors of a marginal's cells, one axis per attribute in the given order."""
        ordered = self._ordered(names)
        rest = partial(model_variance.cell_variances, self.model, ordered)
        return self._errors(ordered, lambda cells: cells, rest).transpose([ordered.index(name) for name in names])

    def query_error(self, names: Sequence[str], query: Floats) -> float:
        """Return the standard error of a linear query, an array with axes in the order of `names`."""
        ordered = self._ordered(names)
        weights = np.asarray(query, dtype=np.float64).transpose([list(names).index(name) for name in ordered])
        rest = partial(model_variance.query_variance, self.model, ordered, weights)
        return float(self._errors(ordered, lambda cells: np.asarray((weights * cells).sum()), rest))

    def part_errors(self, part: WorkloadPart, names: AttributeSet) -> Floats:
        """Return standard errors of all queries of a part over one set; nan if computing them takes too long."""
        if part.factorizes:
            return self._product_errors(part, names)
        if part.count(names) * self.model.marginal(names).size > MOST_ENTRIES:
            return np.full(part.count(names), np.nan)

        def rest(known: Collection[AttributeSet]) -> Floats:
            return np.array([model_variance.query_variance(self.model, names, q, known) for q in part.queries(names)])

        return self._errors(names, lambda cells: part.answers(names, cells), rest)

    def simultaneous_widths(self, part: WorkloadPart, names: AttributeSet, errors: Floats, level: float) -> Floats:
        """Return half widths of simultaneous intervals for all queries of a part over one set.

        For m queries L = log(2m/(1 − level)), and b is φ times the largest entry of a query. All cells of a 1-way
        marginal are measured, so a cell that was shrunk to zero may have the largest error of all.

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
        width, reach = bonferroni(level, errors.size), np.broadcast_to(part.largest_entries(names), errors.shape)
        if len(names) == 1:
            return np.asarray(width * (errors / reach).max() * reach)
        return np.asarray(width * errors + self.dispersion * math.log(2 * errors.size / (1 - level)) / 3 * reach)

    def _product_errors(self, part: WorkloadPart, names: AttributeSet) -> Floats:
        if all(family.is_identity for family in part.families(names)):
            return self.cell_errors(names)
        shapes = [(family.count(size), size) for family, size in _sized(part, names)]
        if max(math.prod(count for count, _ in shapes), *(math.prod(shape) for shape in shapes)) > MOST_ENTRIES:
            return np.full([count for count, _ in shapes], np.nan)
        rows = [family.matrix(size) for family, size in _sized(part, names)]
        rest = partial(model_variance.product_variances, self.model, names, rows)
        return self._errors(names, lambda cells: part.answers(names, cells), rest)

    def _ordered(self, names: Sequence[str]) -> AttributeSet:
        return tuple(name for name in self.model.ones if name in names)

    def _errors(self, names: AttributeSet, answers: Callable[[Floats], Floats], rest: Rest) -> Floats:
        """Return standard errors of the answers to a marginal.

        `rest` returns their variance, before φ, given known sets.
        """
        estimate = answers(self.model.marginal(names))
        spread = np.zeros_like(estimate)
        for replica in self.replicas:
            spread += (answers(replica.marginal(names)) - estimate) ** 2
        noise, unmeasured = self.widening * spread / len(self.replicas), np.asarray(rest(self.known))
        known = np.maximum(noise, self._undetected(names, rest, unmeasured))
        return np.asarray(np.sqrt(ERROR_MARGIN * (known + self.dispersion * unmeasured)))

    def _undetected(self, names: AttributeSet, rest: Rest, unmeasured: Floats) -> Floats | float:
        """Return (1 − w) φ (U₀ − U), with w the mean over the measured sets inside."""
        inside = [self.known[subset] for subset in model_variance.inside(names, self.known)]
        if not inside:
            return 0.0
        return (1 - sum(inside) / len(inside)) * self.dispersion * np.maximum(rest(()) - unmeasured, 0)


def _sized(part: WorkloadPart, names: AttributeSet) -> list[tuple[Family, int]]:
    return list(zip(part.families(names), part.domain.shape(names), strict=True))


def simulate_errors(
    model: LowOrder,
    counts: Mapping[str, NoisyCounts],
    residuals: Residuals,
    wanted: Sequence[AttributeSet] = (),
    chains: int = 1,
    draws: int = DRAWS,
    seed: int = 0,
    each: ParallelMap = serial_map,
) -> SimulatedErrors:
    """Return simulated errors of a model that `model_of` built from `counts` and `residuals`.

    Every draw may be a task of the parallel map.
    """
    pairs = tuple(names for names in residuals.values if len(names) > 1)
    build = partial(_replica, model, *_noiseless(model, counts, residuals), tuple(wanted), chains)
    drawn = list(each(build, [(seed, draw) for draw in range(draws)]))
    replicas = tuple(replica for replica, _ in drawn)
    tables = {names: model.coarse_marginal(names) for names in pairs}
    spread = {
        names: _spread(tables[names], [replica.coarse_marginal(names) for replica in replicas]) for names in pairs
    }
    excess = _squared_departure(model, residuals) - float(np.mean([departure for _, departure in drawn]))
    widening = 1 + max(excess, 0.0) / max(sum(float(part.sum()) for part in spread.values()), 1e-9)
    phi = max(1.0, widening * _mean_ratio(spread, tables), dispersion(model, residuals))
    known = {names: _detected_share(phi * chance_variance(table, names), table, residuals.precision(names))
             for names, table in tables.items()}  # fmt: skip
    return SimulatedErrors(model, replicas, known, widening, phi)


def _detected_share(departure: float, table: Floats, precision: float) -> float:
    """Return w of a measured table: the share of its departure above the noise, over all cells."""
    noise = math.prod(size - 1 for size in table.shape) / precision
    return departure / (departure + noise)


def _mean_ratio(spread: Mapping[AttributeSet, Floats], tables: Mapping[AttributeSet, Floats]) -> float:
    """Return the mean ratio of error² to count, weighted by √count to balance near-empty and large cells."""
    roots = {names: np.sqrt(np.maximum(table, 1)) for names, table in tables.items()}
    above = sum(float((spread[names] / root).sum()) for names, root in roots.items())
    return above / max(sum(float(root.sum()) for root in roots.values()), 1.0)


def _spread(table: Floats, replicas: Sequence[Floats]) -> Floats:
    return np.asarray(np.mean([(other - table) ** 2 for other in replicas], axis=0))


def _squared_departure(model: LowOrder, residuals: Residuals) -> float:
    """Return the squared distance between measured residuals of two or more attributes and those of the model."""
    return sum(
        float(((_centred(model, names) - residual) ** 2).sum())
        for names, residual in residuals.values.items()
        if len(names) > 1
    )


def _noiseless(
    model: LowOrder, counts: Mapping[str, NoisyCounts], residuals: Residuals
) -> tuple[dict[str, NoisyCounts], Residuals]:
    """Return the measurements without noise if the model is the truth."""
    exact = {name: noisy.at(model.ones[name]) for name, noisy in counts.items()}
    return exact, replace(residuals, values={names: _centred(model, names) for names in residuals.values})


def _centred(model: LowOrder, names: AttributeSet) -> Floats:
    return center(model.coarse_marginal(names), range(len(names))) if names else np.asarray(model.total)


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
    values = {
        names: residual
        + center(random.normal(0, residuals.precisions[names] ** -0.5, residual.shape), range(residual.ndim))
        for names, residual in residuals.values.items()
    }
    measured = replace(residuals, values=values)
    built = model_of(redrawn, model.groups, measured, wanted, chains, model.rules)
    return built, _squared_departure(built, measured)
