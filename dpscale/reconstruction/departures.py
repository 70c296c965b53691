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
from dpscale.reconstruction.set_arrays import OneWayArrays, PairArrays, PairLinks
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
        pairs, larger = (list(_prediction_ratios(pairs_only, residuals, many)) for many in (False, True))
        own = max(1.0, float(np.quantile(pairs, QUANTILE))) if len(pairs) >= FEW else 1.0
        if len(larger) < FEW_LARGER:
            return cls(own)
        return cls(own, min(max(float(np.median(larger)), LEAST_LARGER), MOST_LARGER))


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
        unmeasured *= 1 - expected / np.maximum(expected.sum(axis=others, keepdims=True), LEAST)
    return max(float(np.maximum(unmeasured, 0).sum()), LEAST)
