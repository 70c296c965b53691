"""Controlled rounding of small tables: integers near an estimate, with the margins of tables that are fixed before.

The estimate is truncated at zero and fitted to the margins by iterative proportional fitting. Each cell is rounded down
or up so that the margins hold with the smallest change, by an integer program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from dpscale.base.numerics import AttributeSet, Floats, Integers, NDArray, optimize
from dpscale.domain.hierarchy import margin_cells
from dpscale.reconstruction.public_margins import fit_margins

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Groups = Sequence[tuple[NDArray[np.int64], Integers]]
FURTHER = (0, 1, 4, np.inf)  # units beyond rounding down or up, tried in this order
SEED = 1e-3  # share of a cell's mean that truncated cells start with, so that they can grow again
# most sweeps of the fit to the margins; distance at which a cell counts as whole; most nodes of the integer program
SWEEPS, CLOSE, NODES = 2000, 1e-7, 500


def adjust_to_constraints(
    estimate: Floats, names: AttributeSet, margins: Mapping[AttributeSet, Integers], possible: NDArray[np.bool_]
) -> Integers | None:
    """Return integers near an estimate with given margins.

    Parameters
    ----------
    estimate : ndarray
        One axis for each of `names`.
    names : AttributeSet
    margins : mapping of AttributeSet to ndarray of int
        Integer tables over subsets of `names`; () is the total.
    possible : ndarray of bool
        False for cells that must be 0.

    Returns
    -------
    ndarray of int, or None
        None if no table has these margins, or none was found.
    """
    axes = {own: [names.index(name) for name in own] for own in margins}
    groups = [(margin_cells(estimate.shape, axes[own]), table.reshape(-1)) for own, table in margins.items()]
    return round_to_groups(proportional(estimate, groups, possible), groups, possible)


def round_to_groups(fitted: Floats, groups: Groups, possible: NDArray[np.bool_]) -> Integers | None:
    """Return integers near a fitted table with given sums over groups of cells; None if none were found."""
    return next((found for more in FURTHER if (found := _rounded(fitted, groups, possible, more)) is not None), None)


def proportional(estimate: Floats, groups: Groups, possible: NDArray[np.bool_]) -> Floats:
    """Return a non-negative table near the truncated estimate whose margins are fitted by up to `SWEEPS` sweeps."""
    table = np.maximum(estimate, 0.0).reshape(-1)
    table = (table + SEED * max(table.mean(), 1.0)) * possible.reshape(-1)
    return fit_margins(table, groups, SWEEPS).reshape(estimate.shape)


def _rounded(fitted: Floats, groups: Groups, possible: NDArray[np.bool_], more: float) -> Integers | None:
    """Return integers at most `more` units beyond rounding down or up; None if there are none.

    A group is (number of the group of each cell, wanted sums). Rounding up costs less than rounding down if the
    fraction is at least one half.
    """
    flat = fitted.reshape(-1)
    near = np.where(np.abs(flat - np.rint(flat)) < CLOSE, np.rint(flat), flat)
    low = np.maximum(np.floor(near) - more, 0)
    high = np.where(possible.reshape(-1), np.ceil(near) + more, 0)
    cost = np.where(near - np.floor(near) < 0.5, 1.0, -1.0) * (1 + np.abs(2 * (near - np.floor(near)) - 1))
    matrix, wanted = _margins(groups, flat.size), np.concatenate([own for _, own in groups])
    # with at most two margins every corner of the polytope is integral (a transport problem)
    integral = np.ones(flat.size) if len(groups) > 2 else None
    bounds, margins = optimize.Bounds(low, high), optimize.LinearConstraint(matrix, wanted, wanted)
    found = optimize.milp(cost, integrality=integral, bounds=bounds, constraints=margins, options={"node_limit": NODES})
    if found.x is None:
        return None

    whole = np.rint(found.x).astype(np.int64)
    return whole.reshape(fitted.shape) if (matrix @ whole == wanted).all() else None


def _margins(groups: Groups, cells: int) -> csr_array:
    """Return the matrix of the margins, with one row for each cell of a margin.

    A group is a pair: the number of the margin's cell for each cell of the table, and the values of the margin's cells.
    An entry is 1 if the cell of the table belongs to the cell of the margin.
    """
    from scipy.sparse import csr_array, vstack

    one = np.ones(cells)
    return vstack([csr_array((one, (group, np.arange(cells))), shape=(len(own), cells)) for group, own in groups])
