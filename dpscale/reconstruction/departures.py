"""Departures of measured sets from their predictions, the strength of interactions that were not measured.

A measured pair is predicted by its strongest chain of other pairs, a larger measured set by the pairs inside it. The
squared distance D of the measurement from the prediction, less its noise, is compared with the variance U that records
drawn from the prediction would have. D / U is 1 if records follow the prediction, and more if attributes interact.
All of this is post-processing of released values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dpscale.base.numerics import AttributeSet, Floats
from dpscale.reconstruction.entropy import LowOrder
from dpscale.reconstruction.set_arrays import OneWayArrays, PairArrays, PairLinks, stacks
from dpscale.workload.residual import center
from dpscale.workload.residual.grem import Residuals

FEW, FEW_LARGER = 8, 5  # fewest predicted sets for an estimate
LEAST = 1e-9
QUANTILE = 0.25  # of the pairs: those that are selected interact more than those that are not
LEAST_LARGER, MOST_LARGER = 0.1, 1e3


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
        """Return the departures of a model that was built from these residuals."""
        pairs_only = replace(model, tables={names: table for names, table in model.tables.items() if len(names) == 2})
        pairs, larger = _pair_ratios(pairs_only, residuals), list(_larger_ratios(pairs_only, residuals))
        own = max(1.0, float(np.quantile(pairs, QUANTILE))) if len(pairs) >= FEW else 1.0
        if len(larger) < FEW_LARGER:
            return cls(own)
        return cls(own, min(max(float(np.median(larger)), LEAST_LARGER), MOST_LARGER))


def _pair_ratios(pairs_only: LowOrder, residuals: Residuals) -> list[float]:
    """Return D / U of the measured pairs that a chain predicts."""
    chains = _strongest_chains(pairs_only, [names for names in residuals.values if len(names) == 2])
    ratios = list[float]()
    for some, expected in stacks(chains, chains):
        noise = math.prod(size - 1 for size in expected[0].shape) / np.array(list(map(residuals.precision, some)))
        measured = np.array([residuals.values[names] for names in some])
        excess = ((center(expected, (1, 2)) - measured) ** 2).sum(axis=(1, 2)) - noise
        ratios += (excess / chance_variances(expected)).tolist()
    return ratios


def _larger_ratios(pairs_only: LowOrder, residuals: Residuals) -> Iterator[float]:
    """Yield D / U of the larger measured sets."""
    for names, residual in residuals.values.items():
        if len(names) > 2:
            inside = [subset for subset in pairs_only.tables if set(subset) < set(names)]
            expected = pairs_only.coarse_marginal(names)
            noise = math.prod(size - 1 for size in residual.shape) / residuals.precision(names)
            excess = float(((center(expected, range(len(names))) - residual) ** 2).sum()) - noise
            within = [tuple(names.index(name) for name in subset) for subset in inside]
            yield excess / float(chance_variances(expected[None], within)[0])


def _strongest_chains(pairs_only: LowOrder, sets: Sequence[AttributeSet]) -> dict[AttributeSet, Floats]:
    """Return the strongest chain of measured pairs that implies each pair."""
    ones = OneWayArrays.of(pairs_only.coarse, pairs_only.total)
    known = PairArrays(ones, [names for names in pairs_only.tables if names in pairs_only.measured])
    tables = [np.zeros(0), *(pairs_only.tables[names].reshape(-1) for names in known.names)]
    return PairLinks.of(known, np.concatenate(tables)).strongest(PairArrays(ones, sets))


def chance_variances(expected: Floats, inside: Sequence[tuple[int, ...]] = ()) -> Floats:
    """Return Σ μ̂ Π (1 − μ̂/margin) over the 1-ways and the axes `inside`, as in `model_variance`.

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
