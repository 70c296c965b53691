"""Consistent non-negative 1-way counts from noisy ones, over cells and over groups of cells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np

from dpscale.base.arrays import Floats
from dpscale.reconstruction.shrink import shrunk_counts
from dpscale.workload.residual.groups import Groups, coarsened, expanded

LEAST_CELL, LEAST_GROUP = 0.05, 0.3
FEW = 4  # group sums that do not tell whether shrunk cells fit them


@dataclass(frozen=True, eq=False)
class NoisyCounts:
    """Noisy 1-way counts over cells, (n,), and the variance of the noise of each."""

    values: Floats
    variance: float

    @property
    def sum_variance(self) -> float:
        """Of the noise of their sum."""
        return self.variance * len(self.values)

    def grouped_variance(self, groups: Groups) -> float:
        """Of a group's noise, about: groups differ in width."""
        return self.variance * (groups.size / groups.count)

    def at(self, values: Floats) -> Self:
        """Other counts with such noise."""
        return replace(self, values=values)

    def noise(self, random: np.random.Generator) -> Floats:
        """Such noise drawn anew, for `simulated` alone: no release's noise comes from here."""
        return random.normal(0, self.variance**0.5, self.values.shape)

    def told(self) -> tuple[Floats | None, Floats, float]:
        """Rows applied to the counts (None: each cell by itself), what they say, and the variance of that."""
        return None, self.values, self.variance

    def non_negative(self, total: float) -> Floats:
        """Counts over cells, each above 0, with sum `total`."""
        return non_negative_counts(self, total)

    def refined(self, groups: Groups, residual: Floats, precision: float, total: float) -> Floats:
        """The same by a measurement of the grouped 1-way too, as of `with_groups`."""
        return with_groups(non_negative_counts(self, total), self, groups, residual, precision, total)

    def averaged(self, other: Self) -> Self:
        """With another measurement, by inverse variance."""
        mine, theirs = 1 / self.variance, 1 / other.variance
        values = (self.values * mine + other.values * theirs) / (mine + theirs)
        return replace(self, values=values, variance=1 / (mine + theirs))

    @cached_property
    def shrunk(self) -> Floats:
        """Posterior means, made once."""
        return shrunk_counts(self.values, float(np.sqrt(self.variance)))


def total_of(measured: Mapping[str, NoisyCounts], further: tuple[float, float] = (0.0, 0.0)) -> float:
    """The number of records, ≥ 1: the inverse-variance average of the sums, and of a further (value, precision)."""
    value, precision = further
    said, weights = [value * precision], [precision]
    for noisy in measured.values():
        weights.append(1 / noisy.sum_variance)
        said.append(float(noisy.values.sum()) * weights[-1])
    return max(sum(said) / sum(weights), 1.0)


def non_negative_counts(noisy: NoisyCounts, total: float) -> Floats:
    """Counts over cells, each at least a small number, with sum `total`."""
    counts = np.maximum(noisy.shrunk, LEAST_CELL)
    return np.asarray(counts * (total / counts.sum()))


def with_groups(
    counts: Floats, noisy: NoisyCounts, groups: Groups, residual: Floats, precision: float, total: float
) -> Floats:
    """The counts over cells, rescaled within each group to what all measurements say of the group.

    `residual`, (groups,): a centred residual of the grouped 1-way, with 1/σ² = `precision` (0: none). The sum of a
    group is taken as it was measured, or `drawn` towards what its shrunk cells come to; that of a group of one cell is
    shrunk as cells are.
    """
    raw, counted = coarsened(noisy.values, [groups]), 1 / (noisy.variance * groups.widths)
    other = precision / (1 - 1 / groups.count)
    said = (raw * counted + (total / groups.count + residual) * other) / (counted + other)
    variance, alone = 1 / (counted + other), groups.widths == 1
    if (~alone).sum() > FEW:
        said[~alone] = drawn(said[~alone], coarsened(noisy.shrunk, [groups])[~alone], variance[~alone])
    if alone.any():
        cells = noisy.values + expanded((said - raw) / groups.widths, [groups])
        finer = noisy if precision == 0 else NoisyCounts(cells, float(variance[alone].mean()))
        said = np.where(alone, coarsened(np.maximum(finer.shrunk, LEAST_CELL), [groups]), said)
    said = said + (total - said.sum()) * variance / variance.sum()
    said = np.maximum(said, np.where(alone, LEAST_CELL, LEAST_GROUP))
    ratio = said * (total / said.sum()) / coarsened(counts, [groups])
    return np.asarray(counts * expanded(ratio, [groups]))


def drawn(sums: Floats, target: Floats, variance: Floats) -> Floats:
    """Noisy sums, (n,), towards a target as far as noise alone explains their distance: the positive-part estimator of
    James and Stein, each sum in units of its noise."""
    distance = float(((sums - target) ** 2 / variance).sum())
    return np.asarray(target + max(0.0, 1 - (len(sums) - 2) / max(distance, 1e-9)) * (sums - target))
