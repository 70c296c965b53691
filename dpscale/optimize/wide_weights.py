"""Weights of the cells of an axis from those of its blocks, which is where they were searched.

Weights rise towards the ends like the root of the distance, so their sums are smooth in θ = arcsin √x: they are read
off there by cubics. A strategy in two levels has one profile within all blocks of a size instead, that of the curve
(`axis_weights`) at a t where the whole is lowest. Measured: 0.03 to 0.2 % of the squared error above weights searched
on 1,024 cells; t matters to the third digit, between half and four times what is taken.
"""

from __future__ import annotations

import numpy as np

from dpscale.base.arrays import Floats
from dpscale.optimize.convex import roughly
from dpscale.workload import FAMILIES, root_of
from dpscale.workload.residual import Weights
from dpscale.workload.residual.weights import whole_weights
from dpscale.workload.wide import even_cut, is_wide, runs_of

SOLVED, NEAR = 256, 1e-6
BLOCK_BITS, FEWEST_BITS = 20, 10  # fewer for few cells, where whole rows are moved further to be centred
LEAST = 1e-3  # of the plain mean


def cell_weights(profile: Floats, size: int, family: str, bits: int) -> Weights:
    """Whole weights of an axis of `size` cells, given the weights of its blocks and the family that is asked."""
    if not is_wide(size):
        return whole_weights(refined(profile, size, size), bits)
    number = sum(run.count for run in runs_of(size))
    blocks = whole_weights(refined(profile, size, number), BLOCK_BITS)
    within = [
        whole_weights(inner_profile(family, size, run.size), FEWEST_BITS + run.size.bit_length())
        for run in runs_of(size)
    ]
    each = [own for run, own in zip(runs_of(size), within, strict=True) for _ in range(run.count)]
    return tuple(block * weight for block, own in zip(blocks, each, strict=True) for weight in own)


def refined(profile: Floats, size: int, parts: int) -> Floats:
    """Weights of the blocks of an axis for another number of blocks."""
    if len(profile) == parts:
        return profile
    places, wanted = _angles(size, len(profile)), _angles(size, parts)
    sums = np.concatenate([[0.0], np.cumsum(profile)])
    found = np.diff(_cubic(places, sums, wanted))
    found = np.maximum(found, LEAST * even_cut(size, parts).lengths / size)
    return np.asarray(found / found.sum())


def inner_profile(family: str, size: int, cells: int) -> Floats:
    """Weights within a block of so many cells of an axis of `size`."""
    if family == "marginal":
        return np.full(cells, 1 / cells)
    few = min(cells, SOLVED)
    gram = _inner_queries(family, size, few)
    optimum = roughly(root_of(gram / np.trace(gram)), (few,), NEAR)
    inverse = np.linalg.solve(optimum.root.T @ optimum.root, np.ones(few))
    found = np.maximum(inverse / inverse.sum(), LEAST / few)
    return refined(found / found.sum(), cells, cells)


def _inner_queries(family: str, size: int, cells: int) -> Floats:
    """What is asked within a block, with its whole as often as it does best."""
    prefix = FAMILIES["prefix"].gram(cells)
    if family == "prefix":
        return prefix + size
    both = prefix + prefix[::-1, ::-1]
    return FAMILIES["range"].gram(cells) + (size - cells) / 2 * both + size**2 / 384


def _angles(size: int, parts: int) -> Floats:
    """θ of the ends of the blocks."""
    return np.arcsin(np.sqrt(np.concatenate([[0], np.cumsum(even_cut(size, parts).lengths)]) / size))


def _cubic(places: Floats, values: Floats, wanted: Floats) -> Floats:
    """Lagrange's cubic through the four places around each wanted one."""
    first = np.clip(np.searchsorted(places, wanted) - 2, 0, len(places) - 4)
    near = first[:, None] + np.arange(4)
    total = np.zeros(len(wanted))
    for j in range(4):
        others = [k for k in range(4) if k != j]
        shares = (wanted[:, None] - places[near[:, others]]) / (places[near[:, j : j + 1]] - places[near[:, others]])
        total += shares.prod(axis=1) * values[near[:, j]]
    return total
