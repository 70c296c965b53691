"""Variance of the difference between a model and a table drawn from it, for queries that were not measured.

Records drawn from the model, conditional on all measurements, leave a query q with the variance Σ μ̂ (q − Pq)². P is
the μ̂-weighted projection on the space of the measured sets (their cells over groups, and the cells of all 1-ways),
computed by repeated conditional means. The caller applies an overdispersion φ. The queries of 1-ways and of measured
sets have variance zero.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from dpscale.base.numerics import AttributeSet, Floats
from dpscale.reconstruction.entropy import LowOrder
from dpscale.workload.residual import subsets
from dpscale.workload.residual.axes import Groups, coarsened, every_cell, expanded

Projection = Callable[[Floats], Floats]
MarginSums = Callable[[AttributeSet, bool], Floats]
Rows = Floats | None
SWEEPS, LEAST = 12, 1e-12  # sweeps over the conditional means of several margins; least margin, which divides


def query_variance(model: LowOrder, names: AttributeSet, query: Floats, measured: Collection[AttributeSet]) -> float:
    """Return Σ μ̂ (q − Pq)² of a query over the cells of a set; `names` in the model's order.

    Each step subtracts from q its conditional mean Σ μ̂q/Σ μ̂ given the cells of one known set; repeated steps converge
    to q − Pq.
    """
    cells, remainder = model.marginal(names), np.array(query, dtype=np.float64)
    totals = [_total(model, names, subset, grouped) for subset, grouped in _margins(model, names, measured)]
    sums = [(total, np.maximum(total(cells), LEAST)) for total in totals]
    for _ in range(SWEEPS if len(sums) > 1 else 1):
        for total, margin in sums:
            remainder -= total(cells * remainder) / margin
    return float((cells * remainder**2).sum())


def cell_variances(model: LowOrder, names: AttributeSet, measured: Collection[AttributeSet]) -> Floats:
    """Return approximate variances of single cells, in single precision: large sets take half the time."""
    return product_variances(model, names, [None] * len(names), measured, np.float32)


def product_variances(
    model: LowOrder,
    names: AttributeSet,
    rows: Sequence[Rows],
    measured: Collection[AttributeSet],
    precision: type[np.floating[Any]] = np.float64,
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
    precision : type
        Type of the numbers.
    """
    cells = model.marginal(names).astype(precision, copy=False)
    counts = cells
    for axis, row in enumerate(rows):
        counts = _along(counts, axis, row, None)
    margin = cache(partial(_touched_margin, model, cells, names, rows))
    remainder, share, known = counts.copy(), np.empty_like(counts), dict[AttributeSet, None]()

    for subset, grouped in _margins(model, names, measured):
        np.divide(counts, margin(subset, grouped), out=share)
        remainder *= np.subtract(1, share, out=share)
        known.update(dict.fromkeys(subsets(subset)) if grouped else {})  # in an order that no hash changes

    np.subtract(1, np.multiply(counts, _explained(names, known, margin), out=share), out=share)
    np.maximum(remainder, np.multiply(counts, share, out=share), out=remainder)
    return np.maximum(remainder, 0, out=remainder)


def _explained(names: AttributeSet, known: Collection[AttributeSet], margin: MarginSums) -> Floats:
    """Return the sum over known sets of the part of the mean square, as a share of a², that no smaller set has.

    a²/m is the mean square given a set.

    By inclusion and exclusion, a set's part beyond its subsets has the sign (−1)^(number of attributes left out) for
    each subset; `signs` sums these by subset, and whether it is over groups.
    """
    signs = Counter[tuple[AttributeSet, bool]]({((name,), False): 1 for name in names})
    signs[(), False] = 1 - len(names)
    for subset in (subset for subset in known if len(subset) > 1):
        for part in subsets(subset):
            signs[part, len(part) > 0] += (-1) ** (len(subset) - len(part))

    larger, total = [subset for subset in known if len(subset) > 1], dict[AttributeSet, Floats | float]()
    for (part, grouped), sign in signs.items():  # a margin is added to a small table that has its axes
        place = next((subset for subset in larger if set(part) <= set(subset)), part)
        total[place] = total.get(place, 0.0) + sign / margin(part, grouped)

    return np.asarray(sum(total.values()))


def _touched_margin(
    model: LowOrder, cells: Floats, names: AttributeSet, rows: Sequence[Rows], subset: AttributeSet, grouped: bool
) -> Floats:
    """Return the part of a margin that each query touches: the cells of the query, or the groups of these cells.

    `subset` are the attributes of the margin; `grouped` selects the groups. LEAST keeps a margin above 0, because it
    divides.
    """
    values = cells.sum(axis=tuple(axis for axis, name in enumerate(names) if name not in subset), keepdims=True)
    for axis, name in enumerate(names):
        if name in subset:
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
    candidates = subsets(names) if 2 ** len(names) < len(measured) else measured
    return [subset for subset in candidates if len(subset) > 1 and subset in measured and set(subset) <= set(names)]


def _margins(
    model: LowOrder, names: AttributeSet, measured: Collection[AttributeSet]
) -> Iterator[tuple[AttributeSet, bool]]:
    """Yield the known sets inside a set: measured sets over groups (True), other 1-ways over cells (False)."""
    contained = inside(names, measured)
    covered = {name for subset in contained for name in subset if model.groups[name].count == model.groups[name].size}
    yield from ((subset, True) for subset in contained)
    yield from (((name,), False) for name in names if name not in covered)


def _total(model: LowOrder, names: AttributeSet, subset: Sequence[str], grouped: bool) -> Projection:
    """Return the projection of a table on sums over a subset of its attributes, by groups if `grouped`, else in total.

    The sums are repeated for the cells of their group, so that the result has the groups' shape.
    """
    others = tuple(axis for axis, name in enumerate(names) if name not in subset)
    groups = [model.groups[name] if grouped and name in subset else every_cell(1) for name in names]

    def total(values: Floats) -> Floats:
        return expanded(coarsened(values.sum(axis=others, keepdims=True), groups), groups)

    return total
