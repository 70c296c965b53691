"""Initial rows of the sampler: rows of the spanning tree of the strongest measured pairs.

Single-site sampling changes one value of a row at a time. If one value nearly determines another (equal columns,
questions that are skipped together), it cannot move from one mode to the next, and the share of a mode is fixed once
the links are strong. The first rows therefore come from the tree that maximises Σ I(i, j) over its edges (Chow and Liu,
1968), with I the mutual information of the released pair:

    P(x) = Π_i p_i(x_i) · Π_(i,j) p_ij(x_i, x_j) / (p_i(x_i) p_j(x_j))

These rows have the released 1-way marginals and the pairs of the tree, so every mode has its share. θ_ij = log p_ij /
(p_i p_j) on the edges makes P the stationary distribution of the sampler, which then learns the other pairs.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dpscale.base.numerics import Floats, Integers32
from dpscale.privacy.streams import PublicStream
from dpscale.reconstruction.pairwise.learn import LEAST_WEIGHT, LOG_UNIT
from dpscale.reconstruction.pairwise.pairs import STEP, PairTargets

Edge = tuple[int, int]
INFORMATION_UNIT = 2.0**20  # libraries differ in the last bits of a logarithm


def tree_start(targets: PairTargets, count: int, stream: PublicStream) -> tuple[Integers32, Floats]:
    """Return rows of the tree and the θ under which they are stationary.

    Parameters
    ----------
    targets : PairTargets
        Released 1-way marginals and pairs, as shares of all rows.
    count : int
        Number of rows.
    stream : PublicStream
        A public random stream.

    Returns
    -------
    rows : ndarray of int32, shape (count, d)
        Groups.
    theta : ndarray
        Logits of every pair's cells, 0 off the tree.
    """
    edges = spanning_tree(targets)
    theta = np.zeros(targets.layout.cells)
    for i, j in edges:
        targets.layout.of(theta, i, j)[:] = _logits(targets, i, j)
    return _tree_rows(targets, edges, count, stream), theta


def spanning_tree(targets: PairTargets) -> list[Edge]:
    """Return the spanning forest of largest mutual information (Kruskal), strongest edge first."""
    pairs = [(i, j) for i, j in targets.layout.pairs if targets.known[i, j]]
    strongest = sorted((-_information(targets, i, j), i, j) for i, j in pairs)
    component, edges = list(range(len(targets.layout.sizes))), list[Edge]()

    for negative, i, j in strongest:
        if negative < 0 and component[i] != component[j]:
            edges.append((i, j))
            component = [component[i] if one == component[j] else one for one in component]
    return edges


def _information(targets: PairTargets, i: int, j: int) -> float:
    """Return the mutual information of a pair in nats, rounded so that the order is machine-independent."""
    value = float((targets.layout.of(targets.shares, i, j) * _logits(targets, i, j)).sum())
    return round(value * INFORMATION_UNIT) / INFORMATION_UNIT


def _logits(targets: PairTargets, i: int, j: int) -> Floats:
    """Return log p_ij / (p_i p_j), with shares of at least LEAST_WEIGHT."""
    layout = targets.layout
    alone = np.multiply.outer(layout.one(targets.ones, i), layout.one(targets.ones, j))
    ratio = np.maximum(layout.of(targets.shares, i, j), LEAST_WEIGHT) / np.maximum(alone, LEAST_WEIGHT)
    return np.asarray(np.rint(np.log(ratio) * LOG_UNIT) / LOG_UNIT)


def _tree_rows(targets: PairTargets, edges: list[Edge], count: int, stream: PublicStream) -> Integers32:
    """Draw every attribute after its parent, by systematic rounding of its conditional shares."""
    layout = targets.layout
    rows = np.zeros((count, len(layout.sizes)), np.int32)
    for child, parent in _in_order(edges, len(layout.sizes)):
        if parent is None:
            rows[:, child] = stream.systematic(layout.one(targets.ones, child), count)
            continue

        pair = layout.of(targets.shares, *sorted((parent, child)))
        conditional = pair if parent < child else pair.T
        order = np.argsort(rows[:, parent], kind="stable")
        ends = np.cumsum(np.bincount(rows[:, parent], minlength=len(conditional)))

        for value, own in enumerate(np.split(order, ends[:-1])):
            if len(own):
                shares = np.maximum(conditional[value], 0) + STEP * layout.one(targets.ones, child)
                rows[own, child] = stream.systematic(shares, len(own))

    return rows


def _in_order(edges: list[Edge], attributes: int) -> Iterator[tuple[int, int | None]]:
    """Yield every attribute with its parent, parents first; a root of the forest has none."""
    neighbours: dict[int, list[int]] = {name: [] for name in range(attributes)}
    for i, j in edges:
        neighbours[i].append(j)
        neighbours[j].append(i)

    seen = set[int]()
    for root in range(attributes):
        waiting: list[tuple[int, int | None]] = [] if root in seen else [(root, None)]
        while waiting:
            name, parent = waiting.pop()
            seen.add(name)
            yield name, parent
            waiting += [(other, name) for other in neighbours[name] if other not in seen]
