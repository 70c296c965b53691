"""Consistency of noisy tables: non-negative 1-way counts, and targets that agree on common attributes.

1-way counts are fitted over cells and over groups of cells.

*Terms.* A *target* is the table of a set of attributes. Groups are runs of neighbouring cells, over which tables of
several attributes are measured. The precision of a value is the inverse of its variance.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import combinations
from pathlib import Path
from typing import Self

import numpy as np

from dpscale.base.numerics import AttributeSet, Floats, one_thread
from dpscale.plans.factor import Factor
from dpscale.reconstruction.entropy import LowOrder
from dpscale.reconstruction.shrinkage import shrunk_counts
from dpscale.storage.files import reading, writing
from dpscale.workload.residual import Groups, center, coarsened, expanded

LEAST_CELL, LEAST_GROUP = 0.05, 0.3  # least counts of a cell and of a group, before counts are scaled to the total
LEAST_TOTAL = 0.25  # of a model, which is normalised by it; rounded, a table without rows
FEW = 4  # too few group sums to test whether shrunk cells fit them


@dataclass(frozen=True, eq=False)
class NoisyCounts:
    """Noisy 1-way counts over cells, shape (n,), and the noise variance of each."""

    values: Floats
    variance: float

    @property
    def sum_variance(self) -> float:
        """Noise variance of their sum."""
        return self.variance * len(self.values)

    def grouped_variance(self, groups: Groups) -> float:
        """Return the approximate noise variance of a group's sum; groups differ in width."""
        return self.variance * (groups.size / groups.count)

    def at(self, values: Floats) -> Self:
        """Return other counts with the same noise."""
        return replace(self, values=values)

    def noise(self, random: np.random.Generator) -> Floats:
        """Draw such noise for `simulated_errors` only; no release takes noise from here."""
        return random.normal(0, self.variance**0.5, self.values.shape)

    def linear_form(self) -> tuple[Floats | None, Floats, float]:
        """Return the measurement as rows applied to the counts (None: the identity), values and their variance."""
        return None, self.values, self.variance

    def non_negative(self, total: float) -> Floats:
        """Return positive counts over cells with sum `total`."""
        return non_negative_counts(self, total)

    def refine(self, groups: Groups, residual: Floats, precision: float, total: float) -> Floats:
        """Return positive counts that also use a measurement of the grouped 1-way marginal, as `with_groups` does."""
        return with_groups(non_negative_counts(self, total), self, groups, residual, precision, total)

    def average(self, other: Self) -> Self:
        """Return the inverse-variance average with another measurement."""
        precision, other_precision = 1 / self.variance, 1 / other.variance
        values = (self.values * precision + other.values * other_precision) / (precision + other_precision)
        return replace(self, values=values, variance=1 / (precision + other_precision))

    @cached_property
    def shrunk(self) -> Floats:
        """Posterior means, computed once."""
        return shrunk_counts(self.values, float(np.sqrt(self.variance)))


def total_of(measured: Mapping[str, NoisyCounts], further: tuple[float, float] = (0.0, 0.0)) -> float:
    """Return the inverse-variance average of the sums and a further (value, precision), at least LEAST_TOTAL.

    Each sum is an estimate of the number of records, with the precision 1/(variance of the sum).
    """
    value, precision = further
    estimates, weights = [value * precision], [precision]
    for noisy in measured.values():
        weights.append(1 / noisy.sum_variance)
        estimates.append(float(noisy.values.sum()) * weights[-1])
    return max(sum(estimates) / sum(weights), LEAST_TOTAL)


def non_negative_counts(noisy: NoisyCounts, total: float) -> Floats:
    """Return counts over cells, each at least `LEAST_CELL` before scaling to the sum `total`."""
    return positive_counts(noisy.shrunk, LEAST_CELL, total)


def positive_counts(values: Floats, least: float, total: float) -> Floats:
    """Return values that are raised to `least` and then scaled to the sum `total`."""
    counts = np.maximum(values, least)
    return np.asarray(counts * (total / counts.sum()))


def with_groups(
    counts: Floats, noisy: NoisyCounts, groups: Groups, residual: Floats, precision: float, total: float
) -> Floats:
    """Return the counts over cells, rescaled within each group to the estimate of the group's sum.

    The sum of a group is the inverse-variance average of its measurements, shrunk towards the sum of its shrunk cells
    (`james_stein`); the sum of a group of one cell is shrunk as cells are.

    Parameters
    ----------
    counts : ndarray, shape (cells,)
    noisy : NoisyCounts
    groups : Groups
    residual : ndarray, shape (groups,)
        Centred residual of the grouped 1-way marginal.
    precision : float
        1/σ² of the residual; 0 if it was not measured.
    total : float
    """
    # the average of the sum of the cells and of the measured group, by their precisions
    raw, of_cells = coarsened(noisy.values, [groups]), 1 / (noisy.variance * groups.widths)
    of_group = precision / (1 - 1 / groups.count)
    estimates = (raw * of_cells + (total / groups.count + residual) * of_group) / (of_cells + of_group)
    variance, alone = 1 / (of_cells + of_group), groups.widths == 1
    if (~alone).sum() > FEW:
        estimates[~alone] = james_stein(estimates[~alone], coarsened(noisy.shrunk, [groups])[~alone], variance[~alone])

    if alone.any():
        cells = noisy.values + expanded((estimates - raw) / groups.widths, [groups])
        finer = noisy if precision == 0 else NoisyCounts(cells, float(variance[alone].mean()))
        estimates = np.where(alone, coarsened(np.maximum(finer.shrunk, LEAST_CELL), [groups]), estimates)

    # least squares with the known total; then positive, and the cells of each group scaled to its sum
    estimates = estimates + (total - estimates.sum()) * variance / variance.sum()
    estimates = np.maximum(estimates, np.where(alone, LEAST_CELL, LEAST_GROUP))
    ratio = estimates * (total / estimates.sum()) / coarsened(counts, [groups])
    return np.asarray(counts * expanded(ratio, [groups]))


def james_stein(sums: Floats, target: Floats, variance: Floats) -> Floats:
    """Shrink noisy sums, shape (n,), towards a target as far as noise alone explains the distance.

    The positive-part James–Stein estimator, with each sum in units of its noise.

    With d² the squared distance in units of noise, the difference is multiplied by max(0, 1 − (n − 2)/d²).
    """
    distance = float(((sums - target) ** 2 / variance).sum())
    return np.asarray(target + max(0.0, 1 - (len(sums) - 2) / max(distance, 1e-9)) * (sums - target))


# of the least squares: most steps; move of a cell at which they end, in shares of the total
STEPS, PRECISION = 400, 1e-7
PAST, LEAST_SPREAD, MOST_SPREAD, SPREADS = 2.0, 1e-4, 1e8, 97  # variances: shares of that of a cell's noise


def least_squares(strategy: Factor, measured: Floats) -> Floats:
    """Return counts over the cells, shape (n,), from measured rows K·counts.

    It does not use BLAS, whose last bits depend on the number of threads.
    """
    return np.asarray((_solution(strategy)[0] * measured).sum(axis=1))


@dataclass(frozen=True, eq=False)
class StrategyCounts(NoisyCounts):
    """Least-squares counts over cells from a strategy K; `variance` is the mean noise variance of a cell."""

    strategy: Factor

    @property
    def unit(self) -> float:
        """Noise variance of each row of K."""
        return self.variance / self.strategy.mean_variance

    @property
    def sum_variance(self) -> float:
        return self.unit * float(_solution(self.strategy)[1].sum())

    def grouped_variance(self, groups: Groups) -> float:
        """Return the noise variance of a group's sum, without the part of the total."""
        covariance = center(coarsened(_solution(self.strategy)[1], [groups, groups]), (0, 1))
        return self.unit * float(np.trace(covariance)) / (groups.count - 1)

    def noise(self, random: np.random.Generator) -> Floats:
        """Draw such noise; post-processing only, as in `NoisyCounts`."""
        return least_squares(self.strategy, random.normal(0, self.unit**0.5, self.strategy.rows))

    def linear_form(self) -> tuple[Floats, Floats, float]:
        """Return K with columns of norm at most 1, its values on the counts, and their variance."""
        scale = self.strategy.squared_l2_sensitivity**0.5
        rows = self.strategy.explicit() / scale
        return rows, (rows * self.values).sum(axis=1), self.unit / scale**2

    def non_negative(self, total: float) -> Floats:
        return self._counts(np.zeros(()), np.zeros(()), total)

    def refine(self, groups: Groups, residual: Floats, precision: float, total: float) -> Floats:
        """Return counts from both measurements; that of the groups is another one of the same counts."""
        other = precision * self.unit
        same = expanded(center(np.eye(groups.count), (0,)), [groups, groups])
        return self._counts(other * same, other * expanded(residual, [groups]), total)

    def _counts(self, weights: Floats, pull: Floats, total: float) -> Floats:
        """Return counts near the measurements and the added quadratic, and near each other if similar.

        The objective is xᵀQx/2 with Q = KᵀK (`quadratic`) for the measurements, `weights` and `pull` for the added
        quadratic, and similarity · |x − mean|²/2, whose matrix is the centring; x ≥ 0 with the given total.
        """
        quadratic, similarity = _solution(self.strategy)[2], self.unit / self.spread
        pull = pull + (quadratic * self.values).sum(axis=1)
        matrix = quadratic + weights + similarity * center(np.eye(len(quadratic)), (0,))

        from dpscale.reconstruction.fitting_loops import non_negative_least_squares  # imports numba

        best = non_negative_least_squares(matrix, pull, total, self.values, STEPS, PRECISION * total)
        return positive_counts(best, LEAST_CELL, total)

    @cached_property
    def spread(self) -> float:
        """Variance of counts about their mean with the most evidence under a normal distribution.

        One more departure of PAST times the noise variance is added, so that few cells are not taken as equal by
        chance.

        Squared coordinates of the counts are taken in directions in which the strategy's noise is independent, of
        variance unit · `noise`. Under a normal distribution of variance v around the mean, minus twice the log-evidence
        is Σ log(v + noise) + square/(v + noise), which is evaluated on a grid of v.
        """
        directions, noise = _directions(self.strategy)
        squares = np.append((directions.T * self.values).sum(axis=1) ** 2, PAST * self.variance)
        tried = np.geomspace(LEAST_SPREAD, MOST_SPREAD, SPREADS) * self.variance
        of_all = tried[:, None] + np.append(self.unit * noise, self.variance)
        return float(tried[np.argmin((np.log(of_all) + squares / of_all).sum(axis=1))])


@lru_cache(maxsize=256)
def _solution(strategy: Factor) -> tuple[Floats, Floats, Floats]:
    """Return K⁺, (KᵀK)⁻¹ and KᵀK, cached because there are few strategies."""
    with one_thread():
        rows = strategy.explicit().astype(np.float64)
        return strategy.inverse, strategy.covariance, rows.T @ rows


@lru_cache(maxsize=256)
def _directions(strategy: Factor) -> tuple[Floats, Floats]:
    """Return directions of sum zero in which the least-squares noise is independent, and its variances there."""
    with one_thread():
        noise, directions = np.linalg.eigh(center(_solution(strategy)[1], (0, 1)))
    return directions[:, 1:], noise[1:]


# rounds over all common margins; L1 distance at which they end, in shares of the total; least total, and least cell in
# shares of the mean cell
ROUNDS, TOLERANCE, LEAST_TARGET = 200, 1e-6, 1e-12
PAIRS = 1000  # random pairs of targets compared at most


@dataclass(frozen=True)
class Disagreement:
    """Half the L1 distance between the margins of two targets on their common attributes, as a share of the total.

    Attributes
    ----------
    mean, most : float
        Mean and maximum over the pairs of targets.
    pairs : int
        Number of pairs of targets.
    farthest : pair of AttributeSet, optional
        The two targets with the largest distance.
    """

    mean: float
    most: float
    pairs: int
    farthest: tuple[AttributeSet, AttributeSet] | None


def disagreement(
    marginal_of: Callable[[AttributeSet], Floats], targets: Sequence[AttributeSet], most: int = PAIRS, seed: int = 0
) -> Disagreement:
    """Return the disagreement over all pairs of targets with common attributes, or over `most` random ones.

    A distance is half of the L1 distance, relative to the mean sum of both margins.
    """
    distances: list[tuple[float, tuple[AttributeSet, AttributeSet]]] = []
    for target, other in _pairs(targets, most, seed):
        subset = tuple(name for name in target if name in other)
        # both tables summed to their common attributes
        first, second = margin(marginal_of(target), target, subset), margin(marginal_of(other), other, subset)
        distances.append((float(np.abs(first - second).sum() / (first.sum() + second.sum())), (target, other)))

    if not distances:
        return Disagreement(mean=0.0, most=0.0, pairs=0, farthest=None)

    worst = max(distances, key=lambda entry: entry[0])
    mean, (largest, pair) = float(np.mean([distance for distance, _ in distances])), worst
    return Disagreement(mean=mean, most=largest, pairs=len(distances), farthest=pair)


def make_consistent(
    targets: Mapping[AttributeSet, Floats],
    weights: Mapping[AttributeSet, float] | None = None,
    rounds: int = ROUNDS,
    tolerance: float = TOLERANCE,
) -> dict[AttributeSet, Floats]:
    """Return non-negative tables of equal total that agree on every common margin, by weighted geometric means.

    Parameters
    ----------
    targets : mapping of AttributeSet to ndarray
        Tables, all over cells or all over groups, one axis per attribute. Negative values count as 0. The common total
        is the weighted mean of their sums.
    weights : mapping of AttributeSet to float, optional
        Weight of each target's own values; 1 by default.
    rounds : int
        Maximum number of rounds.
    tolerance : float
        Largest L1 distance of margins, as a share of the total, at which the rounds end.
    """
    weight_of = {names: 1.0 if weights is None else float(weights[names]) for names in targets}
    total = max(
        sum(weight_of[n] * float(table.sum()) for n, table in targets.items()) / sum(weight_of.values()), LEAST_TARGET
    )
    # no exact zeros, so that any two tables have a common cell
    tables = {
        names: positive_counts(table, LEAST_TARGET * total / table.size, total) for names, table in targets.items()
    }
    common = _common(list(targets))
    for _ in range(rounds):
        distances = [
            _project_common(tables, subset, containing, weight_of, total) for subset, containing in common.items()
        ]
        if max(distances, default=0.0) <= tolerance * total:
            break

    return tables


def margin(values: Floats, names: AttributeSet, subset: AttributeSet) -> Floats:
    """Return sums over the other attributes, with axes in the order of `subset`."""
    summed = values.sum(axis=tuple(axis for axis, name in enumerate(names) if name not in subset))
    remaining = [name for name in names if name in subset]
    return np.asarray(summed.transpose([remaining.index(name) for name in subset]))


def _common(targets: Sequence[AttributeSet]) -> dict[AttributeSet, list[AttributeSet]]:
    """Return the sets inside several targets, smallest first, each with the targets that contain it.

    A set is left out if a larger one is inside the same targets.
    """
    sets = {tuple(sorted(set(first) & set(second))) for first, second in combinations(targets, 2)} - {()}
    containing = {subset: [names for names in targets if set(subset) <= set(names)] for subset in sets}
    needed = {}
    for subset in sorted(sets, key=lambda names: (len(names), names)):
        larger = [other for other in sets if set(subset) < set(other)]
        if not any(len(containing[other]) == len(containing[subset]) for other in larger):
            needed[subset] = containing[subset]
    return needed


def _project_common(
    tables: dict[AttributeSet, Floats],
    subset: AttributeSet,
    containing: Sequence[AttributeSet],
    weights: Mapping[AttributeSet, float],
    total: float,
) -> float:
    """Scale all targets that contain a set to their common margin; return the largest L1 distance from it.

    The common margin is the weighted geometric mean of the targets' margins, scaled to the total: the margin with the
    least weighted divergence from them. LEAST_TARGET² keeps logarithms finite.
    """
    margins = [margin(tables[names], names, subset) for names in containing]
    share = np.array([weights[names] for names in containing]) / sum(weights[names] for names in containing)
    mean = np.exp(
        sum(w * np.log(np.maximum(marginal, LEAST_TARGET**2)) for w, marginal in zip(share, margins, strict=True))
    )
    mean *= total / mean.sum()
    for names, marginal in zip(containing, margins, strict=True):
        tables[names] = tables[names] * _along(mean / np.maximum(marginal, LEAST_TARGET**2), names, subset)

    return max(float(np.abs(marginal - mean).sum()) for marginal in margins)


def _along(ratio: Floats, names: AttributeSet, subset: AttributeSet) -> Floats:
    """Return an array over `subset` that broadcasts over `names`."""
    order = [subset.index(name) for name in names if name in subset]
    sizes = iter(ratio.transpose(order).shape)
    return ratio.transpose(order).reshape([next(sizes) if name in subset else 1 for name in names])


def _pairs(targets: Sequence[AttributeSet], most: int, seed: int) -> Iterator[tuple[AttributeSet, AttributeSet]]:
    """Yield pairs of targets with common attributes: all, or `most` random ones if there are many."""
    if len(targets) * (len(targets) - 1) // 2 <= most:
        yield from (pair for pair in combinations(targets, 2) if set(pair[0]) & set(pair[1]))
        return

    # at most 50 attempts for each pair, because few pairs may have common attributes
    random, seen = np.random.default_rng(seed), set()
    for _ in range(50 * most):
        first, second = sorted(int(i) for i in random.integers(len(targets), size=2))
        if first != second and (first, second) not in seen and set(targets[first]) & set(targets[second]):
            seen.add((first, second))
            yield targets[first], targets[second]
            if len(seen) == most:
                return


@dataclass(frozen=True, eq=False)
class ConsistentMarginals:
    """Model whose marginals inside some consistent tables are the margins of the first such table."""

    model: LowOrder
    tables: Mapping[AttributeSet, Floats]

    def marginal(self, names: AttributeSet) -> Floats:
        target = next((target for target in self.tables if set(names) <= set(target)), None)
        return self.model.marginal(names) if target is None else margin(self.tables[target], target, names)


def write_consistent(path: Path, tables: Mapping[AttributeSet, Floats]) -> None:
    """Write consistent targets."""
    index = {"sets": [list(names) for names in tables]}
    arrays = {f"t{i}": table for i, table in enumerate(tables.values())}
    with writing(path, durable=False) as file:
        np.savez(file, allow_pickle=False, index=np.array(json.dumps(index)), **arrays)


def read_consistent(path: Path) -> dict[AttributeSet, Floats]:
    """Return the consistent targets in a file."""
    with reading(path) as file, np.load(file, allow_pickle=False) as arrays:
        return {tuple(names): arrays[f"t{i}"] for i, names in enumerate(json.loads(str(arrays["index"]))["sets"])}
