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
    outside = []  # a block is summed over its attributes outside the set
    for factors in strategies:
        outside.append(np.prod([total_variance(factor) for name, factor in factors.items() if name not in names]))
    average, alone = np.zeros((2, len(products), len(blocks)))

    step = max(1, MOST_ENTRIES // weights.size)
    for start in range(0, len(products), step):
        check_planning_time()
        batch = products[start : start + step]
        # wᵀ (⊗ T) w for the average of all blocks, and the product of the tables' sums for each block alone
        transformed = np.broadcast_to(weights, (len(batch), *weights.shape))
        products_of_sums = np.ones((len(batch), len(blocks)))
        for axis, name in enumerate(names, start=2):
            factors_on_axis = [factors.get(name) for factors in strategies]
            table = _tables([product[name] for product in batch], factors_on_axis, averagings.get(name))
            products_of_sums = products_of_sums * table.sum(axis=(2, 3))
            transformed = np.moveaxis(_along(np.moveaxis(transformed, axis, 2), table), 2, axis)
        average[start : start + step] = (transformed * weights).reshape(len(batch), len(blocks), -1).sum(axis=2)
        alone[start : start + step] = products_of_sums

    return average * outside, alone * outside


def _along(values: Floats, table: Floats) -> Floats:
    """Return tables (p, b, 2, 2) applied along the third axis of values (p, b, 2, …)."""
    flat = values.reshape(*values.shape[:3], -1)
    return np.asarray((table @ flat).reshape(values.shape))


def _tables(asked: Sequence[tuple[Family, int]], factors: Sequence[Factor | None], averaging: Averaging) -> Floats:
    """Return the tables of one axis, shape (products, blocks, 2, 2): index 0 is the averaged part, 1 the centred part.

    With the profile u of the mean, P₀ = 1uᵀ averages a query over the axis and P₁ = I − P₀ centres it. Under a block
    with covariance S, the entry of a family with the Gram matrix G is T[i, j] = tr(G P_iᵀ S P_j), that is

        T[0, 0] = uᵀGu · 1ᵀS1,    T[0, 1] = uᵀGS1 − T[0, 0],    T[1, 1] = tr(GS) − 2 uᵀGS1 + T[0, 0].

    A block without the axis measures sums over it: only T[0, 0] = uᵀGu is not 0.
    """
    families = list(dict.fromkeys(asked))
    strategies = {id(factor): factor for factor in factors if factor is not None}
    size = families[0][1]
    profile = averaging_profile(averaging, size)
    gram_profiles = np.array([family.gram(size) @ profile for family, _ in families])
    squared_means = gram_profiles @ profile

    tables = np.zeros((len(families), len(strategies) + 1, 2, 2))  # the last column is that of blocks without the axis
    tables[:, -1, 0, 0] = squared_means
    if strategies:
        row_sums = np.array([whole_covariance(factor).sum(axis=1) for factor in strategies.values()])
        averaged = np.outer(squared_means, row_sums.sum(axis=1))
        mixed = gram_profiles @ row_sums.T
        traces = _inner([partial(family.gram, size) for family, _ in families],
                        [partial(whole_covariance, factor) for factor in strategies.values()], size)  # fmt: skip
        tables[:, :-1, 0, 0] = averaged
        tables[:, :-1, 0, 1] = tables[:, :-1, 1, 0] = mixed - averaged
        tables[:, :-1, 1, 1] = traces - 2 * mixed + averaged

    row_of = {family: row for row, family in enumerate(families)}
    column_of = {strategy: column for column, strategy in enumerate(strategies)}
    rows = [row_of[family] for family in asked]
    columns = [len(strategies) if factor is None else column_of[id(factor)] for factor in factors]
    return tables[np.ix_(rows, columns)]


def _inner(left: Sequence[Callable[[], Floats]], right: Sequence[Callable[[], Floats]], size: int) -> Floats:
    """Return the inner products of matrices of shape (size, size), shape (left, right).

    The matrices are computed by functions, because few of them are stacked at a time.
    """
    step, inner = max(1, MOST_ENTRIES // size**2), np.zeros((len(left), len(right)))
    for i in range(0, len(left), step):
        rows = np.array([make().reshape(-1) for make in left[i : i + step]])
        for j in range(0, len(right), step):
            columns = np.array([make().reshape(-1) for make in right[j : j + step]])
            inner[i : i + step, j : j + step] = rows @ columns.T
    return inner
