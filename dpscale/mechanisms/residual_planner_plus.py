"""ResidualPlanner+ (Xiao et al., 2025; QuerySmasher, example 3): a given base strategy for every attribute.

The base S of an attribute is centred, and a residual is measured by ⊗ S_i C with closed-form shares, without
optimisation. Option `bases`: for each attribute a name (identity, prefix, wavelet, hierarchical, hb) or a matrix of
rows × cells. An attribute without a base uses the named base with the least error for the queries on it alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpscale.base.display import nearest
from dpscale.base.errors import JobError
from dpscale.base.numerics import Floats
from dpscale.base.settings import Settings, setting
from dpscale.domain import Domain
from dpscale.mechanisms.contract import Objective, PlanningProblem, Tools, objective
from dpscale.mechanisms.matrix_mechanism import matrix_mechanism
from dpscale.mechanisms.residual_planner import uniform_bound
from dpscale.optimize import baselines
from dpscale.optimize.integer_strategies import LARGEST_BITS, error_coefficient, round_strategy
from dpscale.plans.blocks import Block, Blocks
from dpscale.plans.factor import Factor, center_factor
from dpscale.plans.plan import Plan
from dpscale.privacy.draws import allocate, variance_factor
from dpscale.workload import PREFIX, Subworkload, decompose, root_of

NAME = "residual-planner-plus"
BASES = {
    "identity": baselines.identity,
    "prefix": PREFIX.matrix,
    "wavelet": baselines.wavelet,
    "hierarchical": baselines.hierarchical,
    "hb": baselines.hb,
}
FULL_RANK = 1e-9  # singular values up to this share of the largest count as 0


class Options(Settings):
    """Base strategies by attribute."""

    bases: dict[str, Any] = setting(
        {},
        'a base for each of some attributes, as {age = "hb"}',
        "a base strategy for some attributes: identity, prefix, wavelet, hierarchical, hb or a matrix of rows × cells; "
        "the best named one for the others",
    )
    objective: Objective = objective()


def plan(problem: PlanningProblem, options: Options, tools: Tools) -> Plan:
    """Plan every residual with the product of its attributes' centred bases.

    A residual is measured by the product of its attributes' factors, so its coefficient is a product of traces, summed
    over its terms, and shares follow from the coefficients.
    """
    workload, noise = problem.workload, problem.noise
    matrices = {name: _matrix(workload.domain, name, base) for name, base in options.bases.items()}
    subs = decompose(workload)
    grams = _grams(subs)
    factors = {name: _factor(gram, matrices.get(name), noise) for name, gram in grams.items()}
    traces: dict[tuple[str, ...], float] = {}
    coefficients = [_coefficient(sub, factors, traces, noise) for sub in subs]
    shares, error = allocate(coefficients, noise)
    residual_blocks = (
        Block(sub.attributes, tuple(factors[name] for name in sub.attributes), share, noise=noise)
        for sub, share in zip(subs, shares, strict=True)
    )
    blocks = Blocks.of(workload.domain.axis_names, residual_blocks)

    return Plan(workload=workload, mechanism=NAME, blocks=blocks, error=error, bound=uniform_bound(subs, noise))


def _matrix(domain: Domain, name: str, base: Any) -> Floats:
    """Return a base as a matrix; JobError for an unknown attribute or base, or a matrix of insufficient rank."""
    (size,), field = domain.shape([name]), f"mechanism.bases.{name}"
    if isinstance(base, str):
        if base not in BASES:
            raise JobError(field, f"{base!r}", f"{', '.join(BASES)} or a matrix", nearest(base, BASES))
        return BASES[base](size)

    try:
        matrix = np.asarray(base, dtype=np.float64)
    except (TypeError, ValueError):
        matrix = np.zeros(0)

    if matrix.ndim != 2 or matrix.shape[1] != size or not np.isfinite(matrix).all():
        raise JobError(field, f"shape {matrix.shape}", f"rows of {size} finite numbers", "give a row for each query")

    # a centred base must determine all differences of cells
    values = np.linalg.svd(_centred(matrix), compute_uv=False)
    if (values > values[0] * FULL_RANK).sum() < size - 1:
        raise JobError(field, "rows of insufficient rank", f"rank {size - 1} without the total", "add rows")
    return matrix


def _centred(matrix: Floats) -> Floats:
    return matrix - matrix.mean(axis=1, keepdims=True)


def _grams(subs: Sequence[Subworkload]) -> dict[str, Floats]:
    """Return for each attribute the weighted sum of its Grams in all residuals that contain it."""
    grams: dict[str, Floats] = {}
    for sub in subs:
        for key, weight in sub.terms.items():
            for axis, name in enumerate(sub.attributes):
                gram = _axis_gram(sub, key, axis)
                grams[name] = grams.get(name, np.zeros_like(gram)) + weight * gram
    return grams


def _axis_gram(sub: Subworkload, key: tuple[str, ...], axis: int) -> Floats:
    """Return a term's Gram matrix on one axis.

    Of a joint term, the rows are flattened along the other axes, so that it is the sum over their cells.
    """
    if not sub.is_joint(key):
        return sub.factors[key[axis]].gram
    rows = sub.factors[key[0]].rows
    flat = np.moveaxis(rows.reshape(-1, *sub.sizes), axis + 1, -1).reshape(-1, sub.sizes[axis])
    return np.asarray(flat.T @ flat)


def _factor(gram: Floats, base: Floats | None, noise: str) -> Factor:
    """Return the integer strategy of an attribute, from the given base or the best named one for the Gram."""
    size, rows = len(gram), root_of(gram)
    if base is not None:
        return _rounded(base, rows, size)
    candidates = (_rounded(make(size), rows, size) for make in BASES.values())
    return min(candidates, key=lambda factor: error_coefficient(factor, rows, noise))


def _rounded(base: Floats, rows: Floats, size: int) -> Factor:
    """Return an integer strategy near a centred base.

    A base whose Gram matrix is a multiple of the centring has the exact strategy n I − 11ᵀ.
    """
    centred = _centred(base)
    strategy = centred.T @ centred
    if np.allclose(strategy, strategy[0, 0] * size / (size - 1) * (np.eye(size) - 1 / size), rtol=0, atol=1e-12):
        return center_factor(size)
    return round_strategy(rows, root_of(strategy / np.diag(strategy).max()), (size,), LARGEST_BITS)


def _coefficient(
    sub: Subworkload, factors: Mapping[str, Factor], traces: dict[tuple[str, ...], float], noise: str
) -> float:
    """Return tr(G ⊗ (KᵀK)⁺) Δ², times the ratio of the noise variance to its squared scale."""
    bases = [factors[name] for name in sub.attributes]
    sensitivity = math.prod(factor.squared_sensitivity(noise) for factor in bases)
    total = sum(weight * _trace(sub, key, bases, traces) for key, weight in sub.terms.items())
    return variance_factor(noise) * sensitivity * total


def _trace(sub: Subworkload, key: tuple[str, ...], bases: list[Factor], traces: dict[tuple[str, ...], float]) -> float:
    """Return the squared Frobenius norm of the queries' rows times the inverse bases, for one residual space.

    Of a product it is a product of one-axis norms, which are kept in `traces`.

    tr(G (KᵀK)⁺) is |F K⁺|² for rows F with FᵀF = G, and a product over the axes for a Kronecker term.
    """
    if sub.is_joint(key):
        answers = sub.factors[key[0]].rows.reshape(-1, *sub.sizes)
        for axis, factor in enumerate(bases, start=1):
            answers = np.moveaxis(np.tensordot(answers, factor.inverse, axes=(axis, 0)), -1, axis)
        return float((answers**2).sum())

    value = 1.0
    for name, part, factor in zip(sub.attributes, key, bases, strict=True):
        if (name, part) not in traces:
            traces[name, part] = float(((sub.factors[part].rows @ factor.inverse) ** 2).sum())
        value *= traces[name, part]

    return value


MECHANISM = matrix_mechanism(NAME, Options, plan)
