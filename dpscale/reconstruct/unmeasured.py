"""How far a table drawn from a model departs from it where nothing was measured.

Records drawn from the model, given all that was measured, leave a query q with a variance of Σ μ̂ (q − Pq)²: P is the
μ̂-weighted projection on what the measured sets tell (their cells over groups, and all 1-ways' cells), found by sweeps
of conditional means. An overdispersion φ is the caller's. The 1-ways' and the measured sets' own queries have none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from dpscale.names import AttributeSet
from dpscale.reconstruct.entropy import LowOrder
from dpscale.residual.groups import coarsened, every_cell, expanded

Array = NDArray[np.float64]
Projection = Callable[[Array], Array]
SWEEPS, LEAST = 12, 1e-12


def query_variance(model: LowOrder, names: AttributeSet, query: Array, measured: Collection[AttributeSet]) -> float:
    """Σ μ̂ (q − Pq)² of a query over the cells of a set; `names` in the model's order."""
    cells, left = model.marginal(names), np.array(query, dtype=np.float64)
    sums = [(total, np.maximum(total(cells), LEAST)) for total in _totals(model, names, measured)]
    for _ in range(SWEEPS if len(sums) > 1 else 1):
        for total, has in sums:
            left -= total(cells * left) / has
    return float((cells * left**2).sum())


def cell_variances(model: LowOrder, names: AttributeSet, measured: Collection[AttributeSet]) -> Array:
    """About the same of each cell alone: μ̂ Π (1 − μ̂/margin) over the margins that hold the cell."""
    cells = model.marginal(names)
    left = cells.copy()
    for total in _totals(model, names, measured):
        left *= 1 - cells / np.maximum(total(cells), LEAST)
    return np.maximum(left, 0)


def _totals(model: LowOrder, names: AttributeSet, measured: Collection[AttributeSet]) -> Iterator[Projection]:
    """For each measured set inside: every cell gets the sum over the part of the table that the set puts it in."""
    inside = [kept for kept in measured if len(kept) > 1 and set(kept) <= set(names)]
    covered = {name for kept in inside for name in kept if model.groups[name].count == model.groups[name].size}
    for kept in inside:
        yield _total(model, names, kept, grouped=True)
    for name in names:
        if name not in covered:
            yield _total(model, names, (name,), grouped=False)


def _total(model: LowOrder, names: AttributeSet, kept: Sequence[str], grouped: bool) -> Projection:
    others = tuple(axis for axis, name in enumerate(names) if name not in kept)
    groups = [model.groups[name] if grouped and name in kept else every_cell(1) for name in names]

    def total(values: Array) -> Array:
        return expanded(coarsened(values.sum(axis=others, keepdims=True), groups), groups)

    return total
