"""Controlled rounding: whole non-negative tables whose shared margins agree.

Tables come one after the other, small ones first. A table has to have the margins that are settled already: of its
estimates, cut at zero, iterative proportional fitting makes a table R ≥ 0 with these (zeros stay zeros), and every cell
is then R rounded down or up, so that margins hold and Σ |x − R| is least. With one or two margins that is a flow, which
always has a whole solution (Cox 1987); with three or more it is a small integer programme. Where none is so near, or
the fit did not get there in its sweeps, cells may be some units further off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array, vstack

from dpscale.base.arrays import Floats, Integers
from dpscale.base.names import AttributeSet

FURTHER = (0, 1, 4, np.inf)  # units beyond rounding down or up, one after the other
SEED = 1e-3  # of what margins expect of a cell: what is cut off may come back
SWEEPS, CLOSE, NODES = 2000, 1e-7, 500


def settled(
    estimate: Floats, names: AttributeSet, margins: Mapping[AttributeSet, Integers], possible: NDArray[np.bool_]
) -> Integers | None:
    """The table over `names`, an axis each; None where no table has these margins, or none was found.

    `margins`: whole tables over subsets of the names, of which () is the total; `possible`: False for cells that are 0.
    """
    groups = [(_groups(estimate.shape, names, own), table.reshape(-1)) for own, table in margins.items()]
    fitted = proportional(estimate, groups, possible)
    return next((found for more in FURTHER if (found := _rounded(fitted, groups, possible, more)) is not None), None)


Groups = Sequence[tuple[NDArray[np.int64], Integers]]


def proportional(estimate: Floats, groups: Groups, possible: NDArray[np.bool_]) -> Floats:
    """A table ≥ 0 near the estimate cut at zero, with these margins as far as the sweeps come."""
    table = np.maximum(estimate, 0.0).reshape(-1)
    table = (table + SEED * max(table.mean(), 1.0)) * possible.reshape(-1)
    for _ in range(SWEEPS):
        off = 0.0
        for group, wanted in groups:
            has = np.bincount(group, table, len(wanted))
            off = max(off, float(np.abs(has - wanted).max()))
            table = table * np.divide(wanted, has, out=np.zeros(len(wanted)), where=has > 0)[group]
        if off < CLOSE:
            break
    return table.reshape(estimate.shape)


def _groups(shape: tuple[int, ...], names: AttributeSet, own: AttributeSet) -> NDArray[np.int64]:
    """Of every cell of a table the cell of the margin that it counts in, both row-major."""
    cells = np.arange(int(np.prod([shape[names.index(name)] for name in own], dtype=int)))
    sizes = [shape[i] if name in own else 1 for i, name in enumerate(names)]
    return np.ascontiguousarray(np.broadcast_to(cells.reshape(sizes), shape)).reshape(-1)


def _rounded(fitted: Floats, groups: Groups, possible: NDArray[np.bool_], more: float) -> Integers | None:
    """Whole numbers at most so many units beyond rounding down or up; None where there are none."""
    flat = fitted.reshape(-1)
    near = np.where(np.abs(flat - np.rint(flat)) < CLOSE, np.rint(flat), flat)
    low = np.maximum(np.floor(near) - more, 0)
    high = np.where(possible.reshape(-1), np.ceil(near) + more, 0)
    cost = np.where(near - np.floor(near) < 0.5, 1.0, -1.0) * (1 + np.abs(2 * (near - np.floor(near)) - 1))
    matrix, wanted = _margins(groups, flat.size), np.concatenate([own for _, own in groups])
    found = milp(cost, integrality=np.ones(flat.size) if len(groups) > 2 else None, bounds=Bounds(low, high),
                 constraints=LinearConstraint(matrix, wanted, wanted), options={"node_limit": NODES})  # fmt: skip
    if found.x is None:
        return None
    whole = np.rint(found.x).astype(np.int64)
    return whole.reshape(fitted.shape) if (matrix @ whole == wanted).all() else None


def _margins(groups: Groups, cells: int) -> csr_array:
    """The sums that margins are, a row a margin's cell."""
    one = np.ones(cells)
    return vstack([csr_array((one, (group, np.arange(cells))), shape=(len(own), cells)) for group, own in groups])
