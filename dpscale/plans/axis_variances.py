"""Contribution of one axis of a product strategy to variances: a 2 × 2 table over (averaged, centred), S = (KᵀK)⁻¹.

Entry (s, t) is q P_sᵀ S P_t q, where P averages a query with the profile u, Σu = 1, or subtracts that average. For
u = S1 / 1ᵀS1 the total of the axis and the centred part are independent, and the table is diagonal.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, reduce
from itertools import product

import numpy as np

from dpscale.base.numerics import Floats
from dpscale.plans.blocks import Block
from dpscale.plans.factor import Factor
from dpscale.workload import Family
from dpscale.workload.residual import Profiles, Weights, piece
from dpscale.workload.residual import profile_of as profile_of_weights

Averaging = Factor | Weights | None


def whole_covariance(factor: Factor) -> Floats:
    """Return the covariance of the estimate of a marginal along an axis, at unit noise variance."""
    return np.eye(factor.cells) if factor.kind == "identity" else factor.covariance


def profile_of(factor: Factor) -> Floats:
    """Return S1 / 1ᵀS1: the distribution of the total over the cells that is independent of the centred part."""
    sums = whole_covariance(factor).sum(axis=1)
    return np.asarray(sums / sums.sum())


@lru_cache(maxsize=4096)
def total_variance(factor: Factor) -> float:
    """Return 1ᵀS1 of an axis."""
    return float(whole_covariance(factor).sum())


@lru_cache(maxsize=4096)
def centred_variance(factor: Factor, profiled: bool) -> float:
    """Return the trace of the covariance after the total, spread uniformly or by the profile, is subtracted."""
    covariance = whole_covariance(factor)
    profile = profile_of(factor) if profiled else np.full(factor.cells, 1 / factor.cells)
    return float(np.trace(covariance) - 2 * profile @ covariance.sum(axis=1) + covariance.sum() * (profile @ profile))


@lru_cache(maxsize=4096)
def gram_table(factor: Factor | None, averaging: Averaging, size: int, family: Family) -> Floats:
    """Return the table summed over all queries of a one-way family, shape (2, 2, 1).

    On an axis that the block lacks, only the averaged entry is nonzero.
    """
    gram, profile = family.gram(size), averaging_profile(averaging, size)
    if factor is None:
        return np.array([[[profile @ gram @ profile], [0.0]], [[0.0], [0.0]]])
    covariance = whole_covariance(factor)
    mean = np.outer(np.ones(size), profile)
    parts = (mean, np.eye(size) - mean)
    return np.array([[[float(((s @ gram @ t.T) * covariance).sum())] for t in parts] for s in parts])


@lru_cache(maxsize=4096)
def query_table(factor: Factor | None, averaging: Averaging, size: int, family: Family) -> Floats:
    """Return the table of every query of a one-way family, shape (2, 2, m).

    On an axis that the block lacks, only the averaged entry is nonzero.
    """
    profile = averaging_profile(averaging, size)
    means = family.answers(profile, 0)
    zero = np.zeros_like(means)
    if factor is None:
        return np.array([[means**2, zero], [zero, zero]])
    covariance = whole_covariance(factor)
    rows = covariance - np.outer(profile, covariance.sum(axis=0))
    cross = means * family.answers(rows.sum(axis=1), 0)
    form = rows - np.outer(rows.sum(axis=1), profile)
    return np.array([[means**2 * covariance.sum(), cross], [cross, family.quadratic(form)]])


def combine_tables(tables: list[Floats], weights: Floats) -> Floats:
    """Return Σ w_τ w_τ' · Π tables over pairs of residuals, as an outer product with one axis of queries per table."""
    if (weights == 1).all():
        return reduce(np.multiply.outer, [table.sum(axis=(0, 1)) for table in tables], np.ones(()))
    total: Floats = np.zeros(())
    for left, right in product(product((0, 1), repeat=len(tables)), repeat=2):
        weight = float(weights[left] * weights[right])
        vectors = [table[s, t] for table, s, t in zip(tables, left, right, strict=True)]
        if weight and all(vector.any() for vector in vectors):
            total = total + weight * reduce(np.multiply.outer, vectors, np.ones(()))
    return total


@lru_cache(maxsize=64)
def joint_spreads(factor: Factor) -> Floats:
    """Return the trace of the covariance of every residual of a joint factor.

    The shape is (2, …); along each axis index 0 is summed and index 1 is centred.
    """
    form = factor.covariance.reshape(*factor.shape, *factor.shape)
    for axis, size in enumerate(
        factor.shape
    ):  # as in `joint_quadratic`: the first remaining pair of axes becomes (0, 1)
        form = np.moveaxis(form, (axis, len(factor.shape)), (-2, -1))
        total = form.sum(axis=(-2, -1))
        form = np.stack([total, np.trace(form, axis1=-2, axis2=-1) - total / size], axis=axis)
    return np.asarray(form)


@lru_cache(maxsize=4096)
def averaging_profile(averaging: Averaging, size: int) -> Floats:
    """Return the profile u of an axis: that of the factor shared by all blocks, or that of its weights."""
    return profile_of(averaging) if isinstance(averaging, Factor) else profile_of_weights(averaging, size)


def add_outside_axes(weights: Floats, block: Block, names: Sequence[str]) -> Floats:
    """Return the weights with an axis for each attribute outside the block, which can only be averaged."""
    for axis, name in enumerate(names):
        if name not in block.attributes:
            weights = np.stack([weights, np.zeros_like(weights)], axis=axis)
    return weights


def mix_pieces(queries: Floats, weights: Floats, profiles: Profiles) -> Floats:
    """Return Σ_τ w_τ P_τ q of queries, shape (m, sizes…)."""
    if (weights == 1).all():
        return queries
    total = np.zeros_like(queries)
    for pattern in product((0, 1), repeat=weights.ndim):
        axes = [axis for axis, inside in enumerate(pattern) if inside]
        part = piece(queries, axes, 1, profiles)
        shape = [n if inside else 1 for n, inside in zip(queries.shape[1:], pattern, strict=True)]
        total = total + weights[pattern] * part.reshape(-1, *shape)
    return total


def joint_quadratic(families: tuple[Family, ...], covariance: Floats, shape: tuple[int, ...]) -> Floats:
    """Return the diagonal of W S Wᵀ for a product W and a covariance S on all cells of `shape`."""
    form = covariance.reshape(*shape, *shape)
    for axis, (family, size) in enumerate(zip(families, shape, strict=True)):
        # axes: finished queries, remaining rows of S, remaining columns of S; the first remaining pair becomes queries
        form = np.moveaxis(form, (axis, len(families)), (-2, -1))
        pairs = form.reshape(-1, size, size)
        reduced = np.stack([family.quadratic((matrix + matrix.T) / 2) for matrix in pairs])
        form = np.moveaxis(reduced.reshape(*form.shape[:-2], -1), -1, axis)
    return form
