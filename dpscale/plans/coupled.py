"""Plans whose blocks measure marginals by strategies that mix the residuals: HDMM's products and unions of products.

Block b estimates the marginal of its attributes with covariance u_b ⊗ S_i, S_i = (K_iᵀK_i)⁻¹. A residual τ that several
blocks tell of is the average of what they say, with weights w_bτ that sum to 1, so a query q is answered by
    Σ_b q_bᵀ x̂_b,   q_b = Σ_τ w_bτ P_τ q,   of variance Σ_b u_b q_bᵀ (⊗ S_i) q_b,
where P_τ averages the axes outside τ and centres those inside; blocks are independent, residuals within one are not.
For product queries every axis gives a 2 × 2 table over (averaged, centred), and tables multiply over the axes: nothing
is larger than the answers. With one block all weights are 1, and this is the error of HDMM's own least squares.

Where all blocks use one strategy on an attribute, its total is spread by the profile u = S1 / 1ᵀS1 and not evenly:
then a marginal's total and what is left of it, x − u·total, are independent, and where that is so on every attribute
the averages are least squares over all blocks (marginals of attribute strategies).
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from functools import lru_cache, reduce
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dpscale.plans.factor import Factor
from dpscale.residual import Profiles, kron, piece
from dpscale.workload import Family, ProductPart
from dpscale.workload.parts import Attributes, Part

if TYPE_CHECKING:
    from dpscale.plans.block import Block
    from dpscale.plans.plan import Plan

Array = NDArray[np.float64]


def residual_variance(block: Block, kept: Attributes, profiled: Container[str]) -> float:
    """Mean variance of a residual's coordinates as a block tells them, at unit noise variance."""
    if block.joint:
        return 1.0  # such a block is the only one of its plan
    value = 1.0
    for name, factor in zip(block.attributes, block.factors, strict=True):
        value *= _centred(factor, name in profiled) / (factor.cells - 1) if name in kept else _total(factor)
    return value


def variances(plan: Plan, unit: Sequence[float], attributes: Attributes, queries: Array) -> Array:
    """Variances of queries (m, sizes…) on `attributes` in domain order; `unit`: noise variance of every block."""
    total = np.zeros(len(queries))
    for index, block, weights in _tellers(plan, attributes):
        mine = tuple(name for name in attributes if name in block.attributes)
        mixed = _mixed(_inside(plan, attributes, block, queries), weights, plan.axis_profiles(mine))
        total += unit[index] * _quadratic(block, mine, mixed)
    return total


def part_variances(plan: Plan, unit: Sequence[float], part: Part, attributes: Attributes) -> Array:
    """Variances of all queries of a part over one set: an axis per attribute for products, else one axis."""
    if not isinstance(part, ProductPart):
        return variances(plan, unit, attributes, part.queries(attributes))
    families = dict(zip(attributes, part.families(attributes), strict=True))
    total: Array = np.zeros(())
    for index, block, weights in _tellers(plan, attributes):
        scale = unit[index]
        if block.joint:
            form = _marginal_covariance(block, attributes)
            total = total + scale * joint_quadratic(tuple(families.values()), form, plan.domain.shape(attributes))
            continue
        own = dict(zip(block.attributes, block.factors, strict=True))
        scale *= float(np.prod([_total(factor) for name, factor in own.items() if name not in families]))
        tables = [_query_table(*_of_axis(plan, own, name), family) for name, family in families.items()]
        total = total + scale * _combined(tables, _with_outside(weights, [name in own for name in families]))
    return np.asarray(total)


def part_error(plan: Plan, unit: Sequence[float], part: Part, attributes: Attributes) -> float:
    """Sum over a part's queries on one set of weight · variance, without the set's own weight."""
    if not isinstance(part, ProductPart):
        each = variances(plan, unit, attributes, part.queries(attributes))
        return float((part.query_weights(attributes) * each).sum())
    families = dict(zip(attributes, part.families(attributes), strict=True))
    total = 0.0
    for index, block, weights in _tellers(plan, attributes):
        if block.joint:
            grams = kron([family.gram(plan.domain[name].size) for name, family in families.items()])
            total += unit[index] * float((grams * _marginal_covariance(block, attributes)).sum())
            continue
        own = dict(zip(block.attributes, block.factors, strict=True))
        scale = unit[index] * float(np.prod([_total(factor) for name, factor in own.items() if name not in families]))
        tables = [_gram_table(*_of_axis(plan, own, name), family) for name, family in families.items()]
        total += scale * float(_combined(tables, _with_outside(weights, [name in own for name in families])).sum())
    return total


def total_error(plan: Plan) -> float:
    """The plan's error at privacy cost 1."""
    unit = [block.unit_variance for block in plan.blocks]
    return sum(
        weight * part_error(plan, unit, part, attributes)
        for part in plan.workload.parts
        for attributes, weight in zip(part.sets, part.weights, strict=True)
        if weight > 0
    )


def joint_quadratic(families: tuple[Family, ...], covariance: Array, shape: tuple[int, ...]) -> Array:
    """W S Wᵀ's diagonal for a product W and a covariance S on all cells of `shape`, axis pair by axis pair."""
    form = covariance.reshape(*shape, *shape)
    for axis, (family, size) in enumerate(zip(families, shape, strict=True)):
        # axes are now: queries so far, rows of S left, columns of S left; the first pair left becomes queries
        form = np.moveaxis(form, (axis, len(families)), (-2, -1))
        pairs = form.reshape(-1, size, size)
        reduced = np.stack([family.quadratic((matrix + matrix.T) / 2) for matrix in pairs])
        form = np.moveaxis(reduced.reshape(*form.shape[:-2], -1), -1, axis)
    return form


def whole_covariance(factor: Factor) -> Array:
    """Covariance of the marginal's own estimate along an axis, at unit noise variance."""
    return np.eye(factor.cells) if factor.kind == "identity" else factor.covariance


def _tellers(plan: Plan, attributes: Attributes) -> Iterator[tuple[int, Block, Array]]:
    """The blocks that tell something of the residuals inside a set, with w_bτ over the attributes that they share."""
    for index, block in enumerate(plan.blocks):
        mine = tuple(name for name in attributes if name in block.attributes)
        weights = np.zeros((2,) * len(mine))
        for pattern in product((0, 1), repeat=len(mine)):
            kept = tuple(name for name, inside in zip(mine, pattern, strict=True) if inside)
            weights[pattern] = sum(s.weight for s in plan.residuals[kept].sources if s.block == index)
        if weights.any():
            yield index, block, weights


def _with_outside(weights: Array, inside: list[bool]) -> Array:
    """The weights with an axis for each attribute that the block does not have, which can only be averaged."""
    for axis, own in enumerate(inside):
        if not own:
            weights = np.stack([weights, np.zeros_like(weights)], axis=axis)
    return weights


def _inside(plan: Plan, attributes: Attributes, block: Block, queries: Array) -> Array:
    """Queries (m, sizes…) averaged over the attributes that the block does not have."""
    inside = [i for i, name in enumerate(attributes) if name in block.attributes]
    if len(inside) == len(attributes):
        return queries
    profiles = plan.axis_profiles(attributes)
    for axis, size in reversed(list(enumerate(queries.shape[1:]))):
        if axis not in inside:
            queries = np.tensordot(queries, profiles.get(axis, np.full(size, 1 / size)), axes=(axis + 1, 0))
    return queries


def _mixed(queries: Array, weights: Array, profiles: Profiles) -> Array:
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


def _quadratic(block: Block, attributes: Attributes, queries: Array) -> Array:
    """qᵀ (⊗ S) q of queries (m, sizes…) on some of the block's attributes, the others summed."""
    if block.joint:
        form = _marginal_covariance(block, attributes)
        flat = queries.reshape(len(queries), -1)
        return np.asarray(((flat @ form) * flat).sum(axis=1))
    turned, scale = queries, 1.0
    for name, factor in zip(block.attributes, block.factors, strict=True):
        if name not in attributes:
            scale *= _total(factor)
        elif factor.kind != "identity":
            axis = attributes.index(name) + 1
            turned = np.moveaxis(np.tensordot(turned, factor.covariance, axes=(axis, 0)), -1, axis)
    return np.asarray(scale * (queries * turned).reshape(len(queries), -1).sum(axis=1))


def _marginal_covariance(block: Block, attributes: Attributes) -> Array:
    """Covariance of the marginal on some of a joint block's attributes: (cells, cells)."""
    shape = block.factors[0].shape
    form = block.factors[0].covariance.reshape(*shape, *shape)
    others = [i for i, name in enumerate(block.attributes) if name not in attributes]
    summed = form.sum(axis=(*others, *(i + len(shape) for i in others)))
    cells = int(np.prod([n for i, n in enumerate(shape) if i not in others]))
    return np.asarray(summed.reshape(cells, cells))


def profile_of(factor: Factor) -> Array:
    """How a total is spread over the cells so that it is independent of what is left: S1 / 1ᵀS1."""
    sums = whole_covariance(factor).sum(axis=1)
    return np.asarray(sums / sums.sum())


@lru_cache(maxsize=4096)
def _total(factor: Factor) -> float:
    """1ᵀS1 of an axis."""
    return float(whole_covariance(factor).sum())


@lru_cache(maxsize=4096)
def _centred(factor: Factor, profiled: bool) -> float:
    """Trace of the covariance of what is left when the total is spread evenly, or by the profile."""
    covariance = whole_covariance(factor)
    profile = profile_of(factor) if profiled else np.full(factor.cells, 1 / factor.cells)
    return float(np.trace(covariance) - 2 * profile @ covariance.sum(axis=1) + covariance.sum() * (profile @ profile))


def _of_axis(plan: Plan, own: dict[str, Factor], name: str) -> tuple[Factor | None, Factor | None, int]:
    """The block's factor on an attribute, the factor that its profile comes from, and its size."""
    return own.get(name), plan.shared_factors.get(name), plan.domain[name].size


def _averaging(shared: Factor | None, size: int) -> Array:
    return np.full(size, 1 / size) if shared is None else profile_of(shared)


@lru_cache(maxsize=4096)
def _gram_table(factor: Factor | None, shared: Factor | None, size: int, family: Family) -> Array:
    """Σ over one-way queries of qᵀ P_sᵀ S P_t q: (2, 2, 1); of an axis that the block lacks the average is left."""
    gram, profile = family.gram(size), _averaging(shared, size)
    if factor is None:
        return np.array([[[profile @ gram @ profile], [0.0]], [[0.0], [0.0]]])
    covariance = whole_covariance(factor)
    mean = np.outer(np.ones(size), profile)
    parts = (mean, np.eye(size) - mean)
    return np.array([[[float(((s @ gram @ t.T) * covariance).sum())] for t in parts] for s in parts])


@lru_cache(maxsize=4096)
def _query_table(factor: Factor | None, shared: Factor | None, size: int, family: Family) -> Array:
    """qᵀ P_sᵀ S P_t q of every one-way query q: (2, 2, m); of an axis that the block lacks only the average is left."""
    profile = _averaging(shared, size)
    means = family.answers(profile, 0)
    zero = np.zeros_like(means)
    if factor is None:
        return np.array([[means**2, zero], [zero, zero]])
    covariance = whole_covariance(factor)
    rows = covariance - np.outer(profile, covariance.sum(axis=0))
    cross = means * family.answers(rows.sum(axis=1), 0)
    form = rows - np.outer(rows.sum(axis=1), profile)
    return np.array([[means**2 * covariance.sum(), cross], [cross, family.quadratic(form)]])


def _combined(tables: list[Array], weights: Array) -> Array:
    """Σ over pairs of residuals of w_τ w_τ' times the axes' tables, multiplied out; an axis of queries for each."""
    if (weights == 1).all():
        return reduce(np.multiply.outer, [table.sum(axis=(0, 1)) for table in tables], np.ones(()))
    total: Array = np.zeros(())
    for left, right in product(product((0, 1), repeat=len(tables)), repeat=2):
        weight = float(weights[left] * weights[right])
        vectors = [table[s, t] for table, s, t in zip(tables, left, right, strict=True)]
        if weight and all(vector.any() for vector in vectors):
            total = total + weight * reduce(np.multiply.outer, vectors, np.ones(()))
    return total
