"""Variance of the difference between a model and a table drawn from it, for queries that were not measured.

Records drawn from the model, conditional on all measurements, leave a query q with the variance Σ μ̂ (q − Pq)². P is
the μ̂-weighted projection on the space of the measured sets (their cells over groups, and the cells of all 1-ways),
computed by repeated conditional means. The caller applies an overdispersion φ. The queries of 1-ways and of measured
sets have variance zero.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial

import numpy as np

from dpscale.base.arrays import Floats
from dpscale.base.display import AttributeSet
from dpscale.reconstruction.entropy import LowOrder
from dpscale.workload.residual import subsets
from dpscale.workload.residual.in_axis import Groups, coarsened, every_cell, expanded

Projection = Callable[[Floats], Floats]
Held = Callable[[AttributeSet, bool], Floats]
Rows = Floats | None
SWEEPS, LEAST = 12, 1e-12


def query_variance(model: LowOrder, names: AttributeSet, query: Floats, measured: Collection[AttributeSet]) -> float:
    """Return Σ μ̂ (q − Pq)² of a query over the cells of a set; `names` in the model's order."""
    cells, left = model.marginal(names), np.array(query, dtype=np.float64)
    sums = [(total, np.maximum(total(cells), LEAST)) for total in _totals(model, names, measured)]
    for _ in range(SWEEPS if len(sums) > 1 else 1):
        for total, has in sums:
            left -= total(cells * left) / has
    return float((cells * left**2).sum())


def cell_variances(model: LowOrder, names: AttributeSet, measured: Collection[AttributeSet]) -> Floats:
    """Return approximate variances of single cells."""
    return product_variances(model, names, [None] * len(names), measured)


def product_variances(
    model: LowOrder, names: AttributeSet, rows: Sequence[Rows], measured: Collection[AttributeSet]
) -> Floats:
    """Return approximate variances of all products of 0/1 rows, as if the cells of a query were one cell.

    With a the count of a query and m the counts of the parts of each measured margin that it touches, the variance is
    a Π (1 − a/m). If that is more, it is the part of a that the means given the measured sets leave, which is exact for
    independent attributes.

    Parameters
    ----------
    model : LowOrder
    names : AttributeSet
    rows : sequence of ndarray or None
        For each axis the rows, shape (queries, cells); None for single cells.
    measured : collection of AttributeSet
    """
    cells = model.marginal(names)
    asked = cells
    for axis, own in enumerate(rows):
        asked = _along(asked, axis, own, None)
    held = partial(_held, model, cells, names, rows)
    left, known = asked.copy(), set[AttributeSet]()
    for kept, grouped in _margins(model, names, measured):
        left *= 1 - asked / held(kept, grouped)
        known.update(subsets(kept) if grouped else ())
    return np.maximum(np.maximum(left, asked - _explained(asked, names, known, held)), 0)


def _explained(asked: Floats, names: AttributeSet, known: Collection[AttributeSet], held: Held) -> Floats:
    """Return the sum over known sets of the part of the mean square that no smaller set has.

    a²/m is the mean square given a set.
    """
    square = asked**2
    mean = square / held((), False)
    out = mean + sum(square / held((name,), False) - mean for name in names)
    for kept in (kept for kept in known if len(kept) > 1):
        for part in subsets(kept):
            out = out + (-1) ** (len(kept) - len(part)) * square / held(part, True)
    return out


def _held(
    model: LowOrder, cells: Floats, names: AttributeSet, rows: Sequence[Rows], kept: AttributeSet, grouped: bool
) -> Floats:
    """Return the part of a margin that each query touches: the cells of the query, or the groups of these cells."""
    values = cells.sum(axis=tuple(axis for axis, name in enumerate(names) if name not in kept), keepdims=True)
    for axis, name in enumerate(names):
        if name in kept:
            values = _along(values, axis, rows[axis], model.groups[name] if grouped else None)
    return np.maximum(values, LEAST)


def _along(values: Floats, axis: int, rows: Rows, groups: Groups | None) -> Floats:
    """Apply rows along an axis, one query per row; with groups a row covers all cells of the groups that it touches."""
    if groups is None:
        return values if rows is None else _applied(values, axis, rows)
    if rows is None:
        own = [*[every_cell(1)] * axis, groups]
        return expanded(coarsened(values, own), own)
    return _applied(values, axis, np.minimum(expanded(coarsened(rows.T, [groups]), [groups]), 1).T)


def _applied(values: Floats, axis: int, rows: Floats) -> Floats:
    return np.moveaxis(np.tensordot(rows, values, (1, axis)), 0, axis)


def inside(names: AttributeSet, measured: Collection[AttributeSet]) -> list[AttributeSet]:
    """Return the measured sets of two or more attributes inside a set; `measured` in the order of attributes."""
    near = subsets(names) if 2 ** len(names) < len(measured) else measured
    return [kept for kept in near if len(kept) > 1 and kept in measured and set(kept) <= set(names)]


def _margins(
    model: LowOrder, names: AttributeSet, measured: Collection[AttributeSet]
) -> Iterator[tuple[AttributeSet, bool]]:
    """Yield the known sets inside a set: measured sets over groups (True), other 1-ways over cells (False)."""
    held = inside(names, measured)
    covered = {name for kept in held for name in kept if model.groups[name].count == model.groups[name].size}
    yield from ((kept, True) for kept in held)
    yield from (((name,), False) for name in names if name not in covered)


def _totals(model: LowOrder, names: AttributeSet, measured: Collection[AttributeSet]) -> Iterator[Projection]:
    """Yield a function for each margin that gives every cell the sum over its part of the table."""
    return (_total(model, names, kept, grouped) for kept, grouped in _margins(model, names, measured))


def _total(model: LowOrder, names: AttributeSet, kept: Sequence[str], grouped: bool) -> Projection:
    others = tuple(axis for axis, name in enumerate(names) if name not in kept)
    groups = [model.groups[name] if grouped and name in kept else every_cell(1) for name in names]

    def total(values: Floats) -> Floats:
        return expanded(coarsened(values.sum(axis=others, keepdims=True), groups), groups)

    return total
