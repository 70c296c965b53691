"""Gram matrices of one-way families on the nodes of a wide axis: runs of neighbouring cells of equal width.

With S the matrix that sums the cells of every node, the module computes S G Sᵀ and its diagonal for G = WᵀW:
    a family whose G has a tridiagonal inverse has G_ij = a_i b_j for i ≤ j, and sums of a and b give the sums of G;
    an invariant family has equal sums for all nodes of one width, and S G Sᵀ is Toeplitz;
    the Gram matrix of other families is computed on all cells, if they are at most 8,192.
The last node may be shorter than the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from dpscale.base.errors import PlanError
from dpscale.base.numerics import Floats, linalg
from dpscale.workload.family import Family
from dpscale.workload.wide import MOST_DENSE

Asked = Sequence[tuple[Family, float]]  # families with their weights


@lru_cache(maxsize=2)
def generators(family: Family, size: int) -> tuple[Floats, Floats]:
    """Return a and b of the Gram matrix G_ij = a_i b_j, i ≤ j, of a family with a tridiagonal inverse.

    Row 0 of G is a_0 b_j and the last column a_i b_(n − 1); scaled so that a_0 = 1.
    """
    ends = np.zeros((size, 2))
    ends[0, 0] = ends[-1, 1] = 1.0
    first, last = family.times_gram(ends).T
    return last / first[-1], first


def node_sums(asked: Asked, size: int, width: int) -> Floats:
    """Return the diagonal of S G Sᵀ for weighted families.

    Parameters
    ----------
    asked : sequence of (Family, float)
    size : int
        Number of cells.
    width : int
        Number of cells of a node.

    Returns
    -------
    ndarray, shape (nodes,)

    Raises
    ------
    PlanError
        If a family has no closed form and the axis has too many cells.
    """
    return np.asarray(sum(weight * _sums(family, size, width) for family, weight in asked))


def node_gram(asked: Asked, size: int, width: int) -> Floats:
    """Return S G Sᵀ for weighted families, shape (nodes, nodes); see `node_sums`."""
    return np.asarray(sum(weight * _gram(family, size, width) for family, weight in asked))


def _sums(family: Family, size: int, width: int) -> Floats:
    """Return for each node the sum of the family's Gram matrix QᵀQ (on `size` cells) over pairs of its own cells.

    A node is `width` neighbouring cells; the last one may have fewer. If G_ij = before_min after_max, the sum follows
    from cumulated sums; if G depends on the distance alone, one node of each width is enough.

    For G_ij = a_i b_j, i ≤ j, the sum over a node is 2 Σ_j b_j Σ_{i ≤ j} a_i − Σ a_i b_i.
    """
    nodes = -(-size // width)
    if family.tridiagonal(size) is not None:
        before, after = (_by_node(values, width) for values in generators(family, size))
        return np.asarray(2 * (after * np.cumsum(before, axis=1)).sum(axis=1) - (before * after).sum(axis=1))
    if family.invariant and family.has_intervals:
        widths = [width] * (nodes - 1) + [size - (nodes - 1) * width]
        by_width = {cells: _first_sum(family, size, cells) for cells in set(widths)}
        return np.array([by_width[cells] for cells in widths])

    return np.asarray(np.diag(_dense_gram(family, size, width)))


def _gram(family: Family, size: int, width: int) -> Floats:
    """Return the Gram matrix of the family over nodes of `width` cells: its sums over the cells of each pair of nodes.

    With G_ij = before_min after_max it is an outer product above the diagonal. A shift-invariant family with intervals
    has a Toeplitz matrix, but for the last node, which may be shorter.
    """
    nodes = -(-size // width)
    if family.tridiagonal(size) is not None:
        before, after = (_by_node(values, width).sum(axis=1) for values in generators(family, size))
        gram = np.triu(np.outer(before, after), 1)
        return np.asarray(gram + gram.T + np.diag(_sums(family, size, width)))
    if family.invariant and family.has_intervals:
        last = np.arange(size) >= (nodes - 1) * width
        first_sums, last_sums = (
            _by_node(family.times_gram(cells.astype(np.float64)), width).sum(axis=1)
            for cells in (np.arange(size) < width, last)
        )
        gram = linalg.toeplitz(first_sums)
        gram[-1] = gram[:, -1] = last_sums
        return np.asarray(gram)

    return _dense_gram(family, size, width)


def _dense_gram(family: Family, size: int, width: int) -> Floats:
    """Return the sums over nodes of a Gram matrix on all cells. Raises PlanError if there are too many."""
    if size > MOST_DENSE:
        raise PlanError("workload", f"family {family.name} on an attribute of {size} cells by this mechanism",
                        f"at most {MOST_DENSE} cells, or prefix, range or circular queries",
                        "coarsen the attribute, or use weighted-residuals")  # fmt: skip
    starts = np.arange(0, size, width)
    return np.asarray(np.add.reduceat(np.add.reduceat(family.gram(size), starts, axis=0), starts, axis=1))


def _by_node(values: Floats, width: int) -> Floats:
    """Return values by node and place within the node, with zeros after the last cell."""
    return np.pad(values, (0, -len(values) % width)).reshape(-1, width)


def _first_sum(family: Family, size: int, width: int) -> float:
    """Return the sum of G over the first `width` cells."""
    cells = np.asarray(np.arange(size) < width, np.float64)
    return float(family.times_gram(cells)[:width].sum())
