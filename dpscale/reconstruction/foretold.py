"""How far sets are off from what all others foretell of them: learnt from those that were measured, each left out.

Records drawn from a model depart from it by chance, with the variance U that `unmeasured` has; real ones by φ U. Of a
measured pair the others foretell its strongest chain, of a larger set what the pairs in it imply. Its own noisy
residual departs from that by D, its own noise taken off, and D / U is one guess of φ. The loop takes first what is
farthest off, so for what it left alone the lower quartile of the pairs' guesses is taken; where larger sets were
measured as well, the geometric mean of that and of their median. It tends to be too large rather than too small.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from dpscale.base.arrays import Floats
from dpscale.base.names import AttributeSet
from dpscale.reconstruction.chains import Links
from dpscale.reconstruction.entropy import LowOrder
from dpscale.reconstruction.paired import Ones, Paired
from dpscale.workload.residual import center
from dpscale.workload.residual.grem import Residuals

FEW, LEAST = 8, 1e-9  # guesses that tell something


def dispersion(model: LowOrder, residuals: Residuals) -> float:
    """φ ≥ 1 of a model that was made of these residuals; 1 where too few sets can be foretold."""
    of_pairs = replace(model, tables={names: table for names, table in model.tables.items() if len(names) == 2})
    pairs, larger = (sorted(_guesses(of_pairs, residuals, many)) for many in (False, True))
    if len(pairs) < FEW:
        return 1.0
    own = max(1.0, float(np.quantile(pairs, 0.25)))
    return own if len(larger) < FEW else math.sqrt(own * max(1.0, float(np.median(larger))))


def _guesses(of_pairs: LowOrder, residuals: Residuals, larger: bool) -> Iterator[float]:
    """D / U of the measured pairs, or of the larger sets."""
    sets = [names for names in residuals.values if len(names) > 1 and (len(names) > 2) is larger]
    chains = {} if larger else _chains(of_pairs, sets)
    for names in sets:
        residual = residuals.values[names]
        inside = [kept for kept in of_pairs.tables if set(kept) < set(names)] if larger else []
        expected = of_pairs.coarse_marginal(names) if larger else chains.get(names)
        if expected is None:
            continue
        noise = math.prod(size - 1 for size in residual.shape) / residuals.precision(names)
        off = float(((center(expected, range(len(names))) - residual) ** 2).sum()) - noise
        yield off / chance(expected, names, inside)


def _chains(of_pairs: LowOrder, sets: Sequence[AttributeSet]) -> dict[AttributeSet, Floats]:
    """The strongest chain of measured pairs that implies each pair."""
    ones = Ones.of(of_pairs.coarse, of_pairs.total)
    known = Paired(ones, [names for names in of_pairs.tables if names in of_pairs.measured])
    tables = [np.zeros(0), *(of_pairs.tables[names].reshape(-1) for names in known.names)]
    return Links.of(known, np.concatenate(tables)).strongest(Paired(ones, sets))


def chance(expected: Floats, names: AttributeSet, inside: Sequence[AttributeSet] = ()) -> float:
    """Σ μ̂ Π (1 − μ̂/margin) over the margins that hold a cell, 1-ways and those `inside`, as of
    `unmeasured.cell_variances`."""
    left = expected.copy()
    for kept in [*inside, *((name,) for name in names)]:
        others = tuple(axis for axis, name in enumerate(names) if name not in kept)
        left *= 1 - expected / np.maximum(expected.sum(axis=others, keepdims=True), LEAST)
    return max(float(np.maximum(left, 0).sum()), LEAST)
