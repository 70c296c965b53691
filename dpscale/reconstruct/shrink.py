"""Noisy counts made non-negative, each as far towards what is expected of it as its noise deserves (empirical Bayes).

A table's cell has y = reference · g + N(0, s²), where the reference is what coarser knowledge expects (for a pair, the
product of its 1-ways) and g ≥ 0 says how far the cell departs from it. The law of g is a mixture of narrow Gaussians on
a fixed grid; its weights are learnt from the noisy table itself by EM, which sees how many cells depart and how far.
The posterior mean of reference · g then keeps what stands above the noise and forgets the rest: what thresholds and
simplex projections do crudely. 1-ways have a grid of counts, or their neighbours, for a reference. Post-processing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

RATIOS = np.concatenate([[0.0], np.geomspace(0.03, 0.8, 9), [0.9, 1.0, 1.1], np.geomspace(1.25, 100, 16)])
WIDTHS = np.maximum(np.gradient(RATIOS) / 2, 0.01)
WIDTHS[0], WIDTHS[10], WIDTHS[11], WIDTHS[12] = 0.01, 0.03, 0.05, 0.05
START = np.exp(-0.7 * np.abs(np.log(np.maximum(RATIOS, 0.01))))
START /= START.sum()
POOLED_ROUNDS, OWN_ROUNDS, COUNT_ROUNDS = 12, 12, 30
POOLED_STRENGTH, OWN_STRENGTH = 5.0, 20.0
MOST_CELLS, BLOCK = 1 << 15, 1 << 16
COUNT_STEPS, REACHES = 36, (1, 2, 4, 8)


@dataclass(frozen=True, eq=False)
class NoisyTable:
    """Cells `values`, each with noise of standard deviation `deviation`; what is expected of them, `reference` > 0."""

    values: Array
    reference: Array
    deviation: float

    @property
    def sample(self) -> tuple[Array, Array]:
        """Values and references of evenly spread cells, MOST_CELLS at most: enough to learn a law from."""
        step = -(-self.values.size // MOST_CELLS)
        return self.values.reshape(-1)[::step], self.reference.reshape(-1)[::step]


def learn(tables: Sequence[NoisyTable]) -> Array:
    """The law of g over all tables together: weights on RATIOS."""
    each = -(-MOST_CELLS * 4 // max(len(tables), 1))
    seen = []
    for table in tables:
        values, reference = (part[:each] for part in table.sample)
        seen.append(_ratios(values, reference, table.deviation))
    return _weights(np.concatenate(seen), START, POOLED_STRENGTH, POOLED_ROUNDS) if seen else START


def posterior(table: NoisyTable, law: Array) -> Array:
    """Posterior means of the counts, in the table's shape: ≥ 0. `law` is the start for the table's own law."""
    sample = _ratios(*table.sample, table.deviation)
    own = _weights(sample, law, OWN_STRENGTH, OWN_ROUNDS)
    flat, expected = table.values.reshape(-1), table.reference.reshape(-1)
    if len(sample) == len(flat):
        means = _ratio_means(flat, expected, table.deviation, sample, own)
    else:
        means = np.empty(len(flat))
        for at in range(0, len(flat), BLOCK):
            block = slice(at, at + BLOCK)
            likelihood = _ratios(flat[block], expected[block], table.deviation)
            means[block] = _ratio_means(flat[block], expected[block], table.deviation, likelihood, own)
    return np.maximum(means, 1e-3 * expected).reshape(table.values.shape)


def shrunk_counts(values: Array, deviation: float) -> Array:
    """Posterior means of 1-way counts, (n,), with noise `deviation`.

    Either the law is one of counts; or, where cells in order resemble each other, one of ratios to the mean of the
    neighbours, a cell itself left out so that its noise is not met twice. The evidence of the noisy counts decides.
    """
    tried = [_Mixture(values, *_counts(values, deviation), 1.0)]
    for reach in (reach for reach in REACHES if 4 * reach <= len(values)):
        parts = _components(_neighbours(values, reach), deviation)
        tried.append(_Mixture(values, *parts, START, POOLED_STRENGTH))
    best = max(tried, key=lambda mixture: mixture.evidence)
    return _means(values, best.centers, best.variances, deviation, best.weights)


def _counts(values: Array, deviation: float) -> tuple[Array, Array, Array]:
    """A grid of counts as components, with even starting weights."""
    most = max(float(values.max()), 2.0) + deviation
    grid = np.concatenate([[0.0], np.geomspace(min(1.0, most / 4), most, COUNT_STEPS - 1)])
    width = np.maximum(np.gradient(grid) * 0.6, 0.5)
    centers = np.broadcast_to(grid, (len(values), len(grid)))
    return centers, np.broadcast_to(width**2 + deviation**2, centers.shape), np.full(len(grid), 1 / len(grid))


def _neighbours(values: Array, reach: int) -> Array:
    """The mean of up to `reach` cells on either side of each; no less than a hundredth of the whole mean."""
    window = np.ones(2 * reach + 1)
    window[reach] = 0
    near = np.convolve(values, window, "same") / np.convolve(np.ones(len(values)), window, "same")
    return np.asarray(np.maximum(near, 0.01 * max(float(values.mean()), 0.1)))


class _Mixture:
    """Components for every value, with the weights that EM finds."""

    def __init__(self, values: Array, centers: Array, variances: Array, start: Array, strength: float) -> None:
        self.centers, self.variances = centers, variances
        likelihood, tops = _likelihood(values, centers, variances)
        self.weights = _weights(likelihood, start, strength, COUNT_ROUNDS)
        self.evidence = float((np.log((likelihood * self.weights).sum(axis=1)) + tops).sum())


def _components(reference: Array, deviation: float) -> tuple[Array, Array]:
    """Means and variances of a value under every component: (cells, components)."""
    expected = np.maximum(reference.reshape(-1, 1), 1e-6)
    return expected * RATIOS, deviation**2 + (expected * WIDTHS) ** 2


def _ratios(values: Array, reference: Array, deviation: float) -> Array:
    """Likelihoods of values under what RATIOS make of their references: (cells, components), up to factors a cell."""
    from dpscale.reconstruct import kernels

    parts = [np.ascontiguousarray(part) for part in (values, np.maximum(reference, 1e-6))]
    return np.asarray(kernels.ratio_likelihoods(*parts, deviation, RATIOS, WIDTHS))


def _ratio_means(values: Array, reference: Array, deviation: float, likelihood: Array, weights: Array) -> Array:
    from dpscale.reconstruct import kernels

    parts = [np.ascontiguousarray(part) for part in (values, np.maximum(reference, 1e-6))]
    return np.asarray(kernels.ratio_means(*parts, deviation, RATIOS, WIDTHS, likelihood, weights))


def _likelihood(values: Array, centers: Array, variances: Array) -> tuple[Array, Array]:
    """Likelihoods, (cells, components), up to a factor a cell, whose log is the second result."""
    from dpscale.reconstruct import kernels

    return kernels.likelihoods(*(np.ascontiguousarray(part) for part in (values, centers, variances)))


def _weights(likelihood: Array, start: Array, strength: float, rounds: int) -> Array:
    from dpscale.reconstruct import kernels

    return np.asarray(kernels.mixture_weights(likelihood, start, strength, rounds))


def _means(values: Array, centers: Array, variances: Array, deviation: float, weights: Array) -> Array:
    from dpscale.reconstruct import kernels

    parts = [np.ascontiguousarray(part) for part in (values, centers, variances)]
    return np.asarray(kernels.posterior_means(*parts, deviation, kernels.likelihoods(*parts)[0], weights))
