"""1-ways that were measured by a strategy: least squares, and the non-negative counts that are nearest to it.

A cell by itself then has much noise, and sums of neighbours far less than theirs together. Shrinking cell by cell
(`shrink`) would throw that away: where counts lie below their noise it keeps too few, and who sums them up meets all
of that at once. So counts are those nearest to least squares, in the metric of the strategy, among all that are ≥ 0 and
have the total as sum. Where cells are as good as equal that is told by the noise itself: counts are
held together as far as there is evidence that they are alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from dpscale.base.arrays import Floats
from dpscale.base.blas import one_thread
from dpscale.plans.factor import Factor
from dpscale.reconstruction.one_way import LEAST_CELL, NoisyCounts
from dpscale.workload.residual import center
from dpscale.workload.residual.groups import Groups, coarsened, expanded

STEPS, TOLERANCE = 400, 1e-7
PAST, LEAST_SPREAD, MOST_SPREAD, SPREADS = 2.0, 1e-4, 1e8, 97  # variances: shares of that of a cell's noise


def least_squares(strategy: Factor, measured: Floats) -> Floats:
    """Counts over the cells, (n,), from measured rows K·counts. Not by BLAS, whose last bits depend on its threads."""
    return np.asarray((_solved(strategy)[0] * measured).sum(axis=1))


@dataclass(frozen=True, eq=False)
class StrategyCounts(NoisyCounts):
    """Least squares over cells by a strategy K; `variance`: of a cell's noise on average."""

    strategy: Factor

    @property
    def unit(self) -> float:
        """The variance of the noise of each row of K."""
        return self.variance / self.strategy.mean_variance

    @property
    def sum_variance(self) -> float:
        return self.unit * float(_solved(self.strategy)[1].sum())

    def grouped_variance(self, groups: Groups) -> float:
        """Of a group's noise, beside that of the sum of all."""
        own = center(coarsened(_solved(self.strategy)[1], [groups, groups]), (0, 1))
        return self.unit * float(np.trace(own)) / (groups.count - 1)

    def noise(self, random: np.random.Generator) -> Floats:
        """Post-processing, as of `NoisyCounts`."""
        return least_squares(self.strategy, random.normal(0, self.unit**0.5, self.strategy.rows))

    def told(self) -> tuple[Floats, Floats, float]:
        """K with columns of norm 1 at most, what it says of the counts, and the variance of that."""
        scale = self.strategy.squared_l2_sensitivity**0.5
        rows = self.strategy.explicit() / scale
        return rows, (rows * self.values).sum(axis=1), self.unit / scale**2

    def non_negative(self, total: float) -> Floats:
        return self._counts(np.zeros(()), np.zeros(()), total)

    def refined(self, groups: Groups, residual: Floats, precision: float, total: float) -> Floats:
        """Of both measurements at once: the groups' is one more of the same counts."""
        other = precision * self.unit
        same = expanded(center(np.eye(groups.count), (0,)), [groups, groups])
        return self._counts(other * same, other * expanded(residual, [groups]), total)

    def _counts(self, weights: Floats, pull: Floats, total: float) -> Floats:
        """Nearest to what was measured, to what is added to it, and to one another as far as they are alike."""
        own, alike = _solved(self.strategy)[2], self.unit / self.spread
        pull = pull + (own * self.values).sum(axis=1)
        return _nearest(own + weights + alike * center(np.eye(len(own)), (0,)), pull, self.values, total)

    @cached_property
    def spread(self) -> float:
        """The variance of counts about their mean for which there is most evidence, were they normal; so that few cells
        are not taken for equal by chance, one more is thought to have departed by PAST of the noise."""
        directions, noise = _directions(self.strategy)
        squares = np.append((directions.T * self.values).sum(axis=1) ** 2, PAST * self.variance)
        tried = np.geomspace(LEAST_SPREAD, MOST_SPREAD, SPREADS) * self.variance
        of_all = tried[:, None] + np.append(self.unit * noise, self.variance)
        return float(tried[np.argmin((np.log(of_all) + squares / of_all).sum(axis=1))])


def _nearest(weights: Floats, pull: Floats, start: Floats, total: float) -> Floats:
    """argmin ½ xᵀWx − pullᵀx over counts of that sum, each at least a small number."""
    from dpscale.reconstruction import simplex_loops

    best = simplex_loops.nearest(weights, pull, total, start, STEPS, TOLERANCE * total)
    counts = np.maximum(best, LEAST_CELL)
    return np.asarray(counts * (total / counts.sum()))


@lru_cache(maxsize=256)
def _solved(strategy: Factor) -> tuple[Floats, Floats, Floats]:
    """K⁺, (KᵀK)⁻¹ and KᵀK. Strategies are few, and made once each."""
    with one_thread():
        rows = strategy.explicit().astype(np.float64)
        return strategy.inverse, strategy.covariance, rows.T @ rows


@lru_cache(maxsize=256)
def _directions(strategy: Factor) -> tuple[Floats, Floats]:
    """Directions that sum to zero in which the noise of least squares is independent, and its variance there."""
    with one_thread():
        noise, directions = np.linalg.eigh(center(_solved(strategy)[1], (0, 1)))
    return directions[:, 1:], noise[1:]
