"""What one axis of a product strategy adds to variances: a 2 × 2 table over (averaged, centred), S = (KᵀK)⁻¹.

Entry (s, t) is q P_sᵀ S P_t q, where P averages a query with the profile u, Σu = 1, or leaves what is left of it. For
u = S1 / 1ᵀS1 the total of the axis and what is left of it are independent, and the table is diagonal.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, reduce
from itertools import product

import numpy as np

from dpscale.base.arrays import Floats
from dpscale.plans.blocks import Block
from dpscale.plans.factor import Factor
from dpscale.workload import Family
from dpscale.workload.residual import Profiles, Weights, piece
from dpscale.workload.residual import profile_of as profile_of_weights

Averaging = Factor | Weights | None


def whole_covariance(factor: Factor) -> Floats:
    """Covariance of the marginal's own estimate along an axis, at unit noise variance."""
    return np.eye(factor.cells) if factor.kind == "identity" else factor.covariance


def profile_of(factor: Factor) -> Floats:
    """How a total is spread over the cells so that it is independent of what is left: S1 / 1ᵀS1."""
    sums = whole_covariance(factor).sum(axis=1)
    return np.asarray(sums / sums.sum())


@lru_cache(maxsize=4096)
def total_variance(factor: Factor) -> float:
    """1ᵀS1 of an axis."""
    return float(whole_covariance(factor).sum())


@lru_cache(maxsize=4096)
def centred_variance(factor: Factor, profiled: bool) -> float:
    """Trace of the covariance of what is left when the total is spread evenly, or by the profile."""
    covariance = whole_covariance(factor)
    profile = profile_of(factor) if profiled else np.full(factor.cells, 1 / factor.cells)
    return float(np.trace(covariance) - 2 * profile @ covariance.sum(axis=1) + covariance.sum() * (profile @ profile))


@lru_cache(maxsize=4096)
def gram_table(factor: Factor | None, averaging: Averaging, size: int, family: Family) -> Floats:
    """The sum of the tables of all one-way queries: (2, 2, 1); of an axis that the block lacks the average is left."""
    gram, profile = family.gram(size), averaging_profile(averaging, size)
    if factor is None:
        return np.array([[[profile @ gram @ profile], [0.0]], [[0.0], [0.0]]])
    covariance = whole_covariance(factor)
    mean = np.outer(np.ones(size), profile)
    parts = (mean, np.eye(size) - mean)
    return np.array([[[float(((s @ gram @ t.T) * covariance).sum())] for t in parts] for s in parts])


@lru_cache(maxsize=4096)
def query_table(factor: Factor | None, averaging: Averaging, size: int, family: Family) -> Floats:
    """The table of every one-way query: (2, 2, m); of an axis that the block lacks only the average is left."""
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


def combined(tables: list[Floats], weights: Floats) -> Floats:
    """Σ over pairs of residuals of w_τ w_τ' times the axes' tables, multiplied out; an axis of queries for each."""
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
    """Of a joint factor, the trace of the covariance of every residual: (2, …), per axis summed (0) or centred (1)."""
    form = factor.covariance.reshape(*factor.shape, *factor.shape)
    for axis, size in enumerate(factor.shape):  # as in `quadratic`: the first pair of axes left becomes (0, 1)
        form = np.moveaxis(form, (axis, len(factor.shape)), (-2, -1))
        total = form.sum(axis=(-2, -1))
        form = np.stack([total, np.trace(form, axis1=-2, axis2=-1) - total / size], axis=axis)
    return np.asarray(form)


@lru_cache(maxsize=4096)
def averaging_profile(averaging: Averaging, size: int) -> Floats:
    """u of an axis: of the factor that all blocks share, or of its weights."""
    return profile_of(averaging) if isinstance(averaging, Factor) else profile_of_weights(averaging, size)


def with_outside(weights: Floats, block: Block, names: Sequence[str]) -> Floats:
    """The weights with an axis for each attribute that the block does not have, which can only be averaged."""
    for axis, name in enumerate(names):
        if name not in block.attributes:
            weights = np.stack([weights, np.zeros_like(weights)], axis=axis)
    return weights


def mixed(queries: Floats, weights: Floats, profiles: Profiles) -> Floats:
    """Σ_τ w_τ P_τ q of queries (m, sizes…)."""
    if (weights == 1).all():
        return queries
    total = np.zeros_like(queries)
    for pattern in product((0, 1), repeat=weights.ndim):
        kept = [axis for axis, inside in enumerate(pattern) if inside]
        part = piece(queries, kept, 1, profiles)
        shape = [n if inside else 1 for n, inside in zip(queries.shape[1:], pattern, strict=True)]
        total = total + weights[pattern] * part.reshape(-1, *shape)
    return total


def joint_quadratic(families: tuple[Family, ...], covariance: Floats, shape: tuple[int, ...]) -> Floats:
    """W S Wᵀ's diagonal for a product W and a covariance S on all cells of `shape`, axis pair by axis pair."""
    form = covariance.reshape(*shape, *shape)
    for axis, (family, size) in enumerate(zip(families, shape, strict=True)):
        # axes are now: queries so far, rows of S left, columns of S left; the first pair left becomes queries
        form = np.moveaxis(form, (axis, len(families)), (-2, -1))
        pairs = form.reshape(-1, size, size)
        reduced = np.stack([family.quadratic((matrix + matrix.T) / 2) for matrix in pairs])
        form = np.moveaxis(reduced.reshape(*form.shape[:-2], -1), -1, axis)
    return form
