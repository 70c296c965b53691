"""Consistent non-negative 1-way counts from noisy ones, over cells and over groups of cells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dpscale.reconstruct.shrink import shrunk_counts
from dpscale.residual.groups import Groups, coarsened, expanded

Array = NDArray[np.float64]
LEAST_CELL, LEAST_GROUP = 0.05, 0.3


@dataclass(frozen=True, eq=False)
class NoisyCounts:
    """Noisy 1-way counts over cells, (n,), and the variance of the noise of each."""

    values: Array
    variance: float

    @cached_property
    def shrunk(self) -> Array:
        """Posterior means, made once."""
        return shrunk_counts(self.values, float(np.sqrt(self.variance)))


def total_of(measured: Mapping[str, NoisyCounts], further: tuple[float, float] = (0.0, 0.0)) -> float:
    """The number of records, ≥ 1: the inverse-variance average of the sums, and of a further (value, precision)."""
    value, precision = further
    said, weights = [value * precision], [precision]
    for noisy in measured.values():
        weights.append(1 / (noisy.variance * len(noisy.values)))
        said.append(float(noisy.values.sum()) * weights[-1])
    return max(sum(said) / sum(weights), 1.0)


def non_negative_counts(noisy: NoisyCounts, total: float) -> Array:
    """Counts over cells, each at least a small number, with sum `total`."""
    counts = np.maximum(noisy.shrunk, LEAST_CELL)
    return np.asarray(counts * (total / counts.sum()))


def with_groups(
    counts: Array, noisy: NoisyCounts, groups: Groups, residual: Array, precision: float, total: float
) -> Array:
    """The counts over cells, rescaled within each group to what all measurements say of the group.

    `residual`, (groups,): a centred residual of the grouped 1-way, with 1/σ² = `precision` (0: none).
    """
    counted = 1 / (noisy.variance * groups.widths)
    other = precision / (1 - 1 / groups.count)
    said = (coarsened(noisy.values, [groups]) * counted + (total / groups.count + residual) * other) / (counted + other)
    variance = 1 / (counted + other)
    said = np.maximum(said + (total - said.sum()) * variance / variance.sum(), LEAST_GROUP)
    ratio = said * (total / said.sum()) / coarsened(counts, [groups])
    return np.asarray(counts * expanded(ratio, [groups]))
