"""Errors of many sets of product queries under many blocks, at unit noise variance.

With w_bτ the weight of block b for the residual τ, a set of products with Gram matrices G_i has under block b the error
    Σ over τ, τ' of w_bτ w_bτ' Π_i T_i[τ_i, τ'_i],
where T_i is the 2 × 2 table of axis i over (averaged, centred). Its entries are inner products of G_i with the
covariance S_i of the block's strategy, so the tables of all pairs of Gram matrices and strategies are matrix products.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from dpscale.base.deadline import check_planning_time
from dpscale.base.numerics import Floats
from dpscale.plans.blocks import Averaging, Blocks, averaging_profile, total_variance, whole_covariance
from dpscale.plans.factor import Factor
from dpscale.workload import Family

MOST_ENTRIES = 1 << 22  # of one array


def product_errors(
    blocks: Blocks,
    products: Sequence[Mapping[str, tuple[Family, int]]],
    weights: Floats,
    averagings: Mapping[str, Averaging],
) -> tuple[Floats, Floats]:
    """Return the contribution of every block to the error of every set, and its error if it answers alone.

    Parameters
    ----------
    blocks : Blocks
        Blocks that are not joint.
    products : sequence of mapping of str to (Family, int)
        Family and number of cells of each attribute of each set; all have the same attributes.
    weights : ndarray, shape (blocks, 2, 2, …)
        w_bτ, with an axis for each attribute: 0 averaged, 1 centred.
    averagings : mapping of str to Averaging
        How attributes are averaged where it is not by the plain mean.

    Returns
    -------
    average, alone : ndarray, shape (products, blocks)
    """
    names = tuple(products[0])
    strategies = [dict(zip(block.attributes, block.factors, strict=True)) for block in blocks]
    outside = [np.prod([total_variance(factor) for name, factor in one.items() if name not in names])
               for one in strategies]  # fmt: skip
    average, alone = np.zeros((2, len(products), len(blocks)))

    step = max(1, MOST_ENTRIES // weights.size)
    for start in range(0, len(products), step):
        check_planning_time()
        some = products[start : start + step]
        turned, whole = np.broadcast_to(weights, (len(some), *weights.shape)), np.ones((len(some), len(blocks)))
        for axis, name in enumerate(names, start=2):
            own = [one.get(name) for one in strategies]
            table = _tables([product[name] for product in some], own, averagings.get(name))
            whole = whole * table.sum(axis=(2, 3))
            turned = np.moveaxis(_along(np.moveaxis(turned, axis, 2), table), 2, axis)
        average[start : start + step] = (turned * weights).reshape(len(some), len(blocks), -1).sum(axis=2)
        alone[start : start + step] = whole

    return average * outside, alone * outside


def _along(values: Floats, table: Floats) -> Floats:
    """Return tables (p, b, 2, 2) applied along the third axis of values (p, b, 2, …)."""
    flat = values.reshape(*values.shape[:3], -1)
    return np.asarray((table @ flat).reshape(values.shape))


def _tables(asked: Sequence[tuple[Family, int]], factors: Sequence[Factor | None], averaging: Averaging) -> Floats:
    """Return the tables of one axis, shape (products, blocks, 2, 2); an axis that a block lacks is averaged alone."""
    families = list(dict.fromkeys(asked))
    used = {id(factor): factor for factor in factors if factor is not None}
    size = families[0][1]
    profile = averaging_profile(averaging, size)
    means = np.array([family.gram(size) @ profile for family, _ in families])
    squares = means @ profile

    found = np.zeros((len(families), len(used) + 1, 2, 2))
    found[:, -1, 0, 0] = squares
    if used:
        sums = np.array([whole_covariance(factor).sum(axis=1) for factor in used.values()])
        both, averaged = means @ sums.T, np.outer(squares, sums.sum(axis=1))
        whole = _inner([partial(family.gram, size) for family, _ in families],
                       [partial(whole_covariance, factor) for factor in used.values()], size)  # fmt: skip
        found[:, :-1, 0, 0] = averaged
        found[:, :-1, 0, 1] = found[:, :-1, 1, 0] = both - averaged
        found[:, :-1, 1, 1] = whole - 2 * both + averaged

    rows, columns = {one: place for place, one in enumerate(families)}, {one: place for place, one in enumerate(used)}
    last = len(used)
    return found[np.ix_([rows[one] for one in asked],
                        [last if factor is None else columns[id(factor)] for factor in factors])]  # fmt: skip


def _inner(left: Sequence[Callable[[], Floats]], right: Sequence[Callable[[], Floats]], size: int) -> Floats:
    """Return the inner products of matrices of shape (size, size), of which few are stacked at a time."""
    step, found = max(1, MOST_ENTRIES // size**2), np.zeros((len(left), len(right)))
    for i in range(0, len(left), step):
        rows = np.array([make().reshape(-1) for make in left[i : i + step]])
        for j in range(0, len(right), step):
            columns = np.array([make().reshape(-1) for make in right[j : j + step]])
            found[i : i + step, j : j + step] = rows @ columns.T
    return found
