"""Exact public totals as margins of model estimates.

A table that a model estimates is fitted to every margin that follows from a public total (`domain.public_totals`), by
iterative proportional fitting. It changes a table by the least relative entropy among those with these margins. Tables
with negative cells are moved by equal amounts instead. The low-order tables of a model are fitted as well, so that rows
drawn from it respect the totals.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np

from dpscale.base.numerics import AttributeSet, Floats, Integers, NDArray
from dpscale.domain import Domain
from dpscale.domain.hierarchy import level_axes, margin_cells
from dpscale.domain.public_totals import common_set
from dpscale.reconstruction.entropy import LowOrder
from dpscale.workload.residual import coarsened

# most sweeps of a fit; departure at which it ends, in shares of the table; least 1-way count
SWEEPS, CLOSE, LEAST = 500, 1e-12, 1e-6


def fit_totals(domain: Domain, names: AttributeSet, table: Floats) -> Floats:
    """Return a table with the margins that follow from public totals.

    Parameters
    ----------
    domain : Domain
    names : AttributeSet
        In domain order.
    table : ndarray
        One axis for each attribute.
    """
    exact = domain.known_table(names)
    if exact is not None:
        return exact.astype(np.float64)
    margins = [(cells, known.astype(np.float64)) for cells, known in _margins(domain, names, table.shape)]
    return fit_margins(table, margins) if margins else table


def fit_margins(table: Floats, margins: Sequence[tuple[Integers, NDArray[Any]]], sweeps: int = SWEEPS) -> Floats:
    """Return the table fitted to margins, in a limited number of sweeps; the last margin is exact.

    Parameters
    ----------
    table : ndarray
    margins : sequence of (ndarray of int64, ndarray)
        Cell of the margin for each cell of the table, flat, and its values, flat.
    sweeps : int
    """
    flat, negative = table.reshape(-1).copy(), bool(table.min() < 0)
    for _ in range(sweeps):
        off = 0.0
        for cells, wanted in margins:
            sums = np.bincount(cells, flat, len(wanted))
            off = max(off, float(np.abs(sums - wanted).max()))
            number = np.bincount(cells, minlength=len(wanted))
            if negative:
                flat += ((wanted - sums) / np.maximum(number, 1))[cells]
            else:
                ratio = np.divide(wanted, sums, out=np.zeros(len(wanted)), where=sums > 0)
                empty = np.where((sums <= 0) & (wanted > 0), wanted / np.maximum(number, 1), 0.0)
                flat = flat * ratio[cells] + empty[cells]

        if off <= CLOSE * max(float(np.abs(flat).sum()), 1.0):
            break

    return flat.reshape(table.shape)


def _margins(domain: Domain, names: AttributeSet, shape: tuple[int, ...]) -> Iterator[tuple[Integers, Integers]]:
    """Yield the margins of a table that follow from public totals, none inside another one."""
    sets = dict.fromkeys(common_set(domain, names, total.names) for total in domain.public_totals)
    for attributes in sets:
        known = domain.known_table(attributes)
        if known is None or any(set(attributes) < set(other) for other in sets):
            continue
        axes = level_axes(domain, names, attributes)
        assert axes is not None
        yield margin_cells(shape, *axes), known.reshape(-1)


def fit_model(domain: Domain, model: LowOrder) -> LowOrder:
    """Return a model whose total, 1-way marginals and tables agree with the public totals.

    Parameters
    ----------
    domain : Domain
    model : LowOrder
    """
    if not domain.public_totals:
        return model

    known = domain.known_table(())
    total = model.total if known is None else float(known)
    scale = total / model.total
    ones = {name: fit_totals(domain, (name,), one_way * scale) for name, one_way in model.ones.items()}
    ones = {name: np.maximum(one_way, LEAST) for name, one_way in ones.items()}
    fitted = replace(model, ones=ones, total=total)
    tables = {names: _fit_groups(domain, fitted, names, table * scale) for names, table in model.tables.items()}

    return replace(fitted, tables=tables)


def _fit_groups(domain: Domain, model: LowOrder, names: AttributeSet, table: Floats) -> Floats:
    """Return a table over groups fitted to its 1-way marginals and to the totals of its own attributes.

    A margin of several attributes counts only if its total is public (`known`).
    """
    margins = []
    for degree in range(1, len(names) + 1):
        for axes in combinations(range(len(names)), degree):
            chosen = tuple(names[axis] for axis in axes)
            known = domain.known_table(domain.ordered(chosen))
            if degree > 1 and (known is None or domain.ordered(chosen) != chosen):
                continue
            groups = [model.groups[name] for name in chosen]
            wanted = model.coarse[chosen[0]] if known is None or degree == 1 else coarsened(known.astype(float), groups)
            margins.append((margin_cells(table.shape, axes), wanted.reshape(-1)))

    return fit_margins(table, margins)
