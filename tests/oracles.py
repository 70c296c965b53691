"""Brute-force oracles on small explicit domains: whole matrices over all cells, to test the fast code."""

from __future__ import annotations

import math
from functools import reduce
from itertools import product

import numpy as np

from dpscale.optimize.opt_marginals import dimensions, residual_traces, weights_of
from dpscale.workload import ExplicitPart, JointPart
from dpscale.workload.residual import decompose, subsets


def one_way_queries(family: str, size: int) -> np.ndarray:
    """Return the one-way queries of a family, from the definitions in the contract."""
    cells = np.arange(size)
    if family == "marginal":
        return np.array([cells == value for value in range(size)], dtype=float)
    if family == "prefix":
        return np.array([cells <= cut for cut in range(size)], dtype=float)
    if family == "range":
        ends = [(low, high) for low in range(size) for high in range(low, size)]
        return np.array([(cells >= low) & (cells <= high) for low, high in ends], dtype=float)
    if family == "circular":
        arcs = [(start, length) for start in range(size) for length in range(1, size + 1)]
        return np.array([(cells - start) % size < length for start, length in arcs], dtype=float)
    raise AssertionError(family)


def joint_queries(part, names) -> np.ndarray:
    """Return affine and abs queries from the definitions in the contract, and random queries as drawn."""
    if part.name == "random":
        return part.queries(names)
    sizes = part.domain.shape(names)
    x, y = np.meshgrid(*(np.arange(n) for n in sizes), indexing="ij")
    if part.name == "affine":
        return np.array([x + y <= c for c in range(sum(sizes) - 1)], dtype=float)
    return np.array([np.abs(x - y) <= c for c in range(max(sizes))], dtype=float)


def queries_of_part(part, names) -> np.ndarray:
    """Return all queries of a part over one set from the definitions in the contract, with shape (queries, cells)."""
    if isinstance(part, ExplicitPart):
        return part.array.reshape(len(part.array), -1)
    if isinstance(part, JointPart):
        queries = joint_queries(part, names)
        return queries.reshape(len(queries), -1)
    return kron([_own(part, part.domain[name], names) for name in names])


def kron(matrices) -> np.ndarray:
    return reduce(np.kron, matrices, np.ones((1, 1)))


def explicit_workload(workload) -> tuple[np.ndarray, np.ndarray]:
    """Return every query over the whole domain, (queries, cells), and its weight, (queries,)."""
    domain, rows, weights = workload.domain, [], []
    for part in workload.parts:
        for names, weight in zip(part.sets, part.weights, strict=True):
            if isinstance(part, ExplicitPart):
                rows.append(_spread(domain, names, part.array))
                weights.append(part.each)
                continue
            if isinstance(part, JointPart):
                rows.append(_spread(domain, names, joint_queries(part, names)))
            else:
                rows.append(kron([_own(part, a, names) for a in domain.attributes]))
            weights.append(np.full(len(rows[-1]), weight))
    return np.concatenate(rows), np.concatenate(weights)


def _own(part, attribute, names) -> np.ndarray:
    if attribute.name not in names:
        return np.ones((1, attribute.size))
    if part.name == "hybrid":
        return one_way_queries("prefix" if attribute.name in part.family.numeric else "marginal", attribute.size)
    return one_way_queries(part.name, attribute.size)


def _spread(domain, names, queries) -> np.ndarray:
    """Expand queries over some attributes to queries over all cells."""
    out = []
    for cell in product(*(range(n) for n in domain.shape(domain.names))):
        own = dict(zip(domain.names, cell, strict=True))
        out.append(queries[(slice(None), *(own[name] for name in names))])
    return np.array(out).T


def explicit_strategy(plan, variances) -> np.ndarray:
    """Return all measurements over the whole domain, scaled to unit noise, with shape (rows, cells)."""
    rows = []
    for block, variance in zip(plan.blocks, variances, strict=True):
        if block.joint:
            queries = block.factors[0].explicit().reshape(-1, *plan.domain.shape(block.attributes)).astype(float)
            rows.append(_spread(plan.domain, block.attributes, queries) / math.sqrt(variance))
            continue
        own = dict(zip(block.attributes, block.factors, strict=True))
        factors = [
            own[a.name].explicit().astype(float) if a.name in own else np.ones((1, a.size))
            for a in plan.domain.attributes
        ]
        rows.append(kron(factors) / math.sqrt(variance))
    return np.concatenate(rows)


def least_squares_variances(strategy: np.ndarray, queries: np.ndarray, rank: int | None = None) -> np.ndarray:
    """Return the variance of the best linear unbiased estimate of each query, which must be in the span of the
    strategy.

    `rank` is the exact rank of the strategy if known; otherwise eigenvalues below 1e-11 of the largest count as 0.
    """
    _, values, rows = np.linalg.svd(strategy, full_matrices=False)
    rank = int((values**2 > 1e-11 * values[0] ** 2).sum()) if rank is None else rank
    turned = queries @ rows[:rank].T
    np.testing.assert_allclose(turned @ rows[:rank], queries, atol=1e-6)
    return ((turned / values[:rank]) ** 2).sum(axis=1)


def marginal_weights(union) -> np.ndarray:
    """Return w of theorem 10 (HDMM): G(w) has the trace of the workload on every residual space."""
    return weights_of(residual_traces(union) / np.maximum(dimensions(union.sizes), 1.0), union.sizes)


def decompose_all(marginal, lead: int = 0) -> dict:
    """Return all residuals of a marginal, by the axes that each one contains."""
    return {keep: decompose(marginal, keep, lead) for keep in subsets(tuple(range(marginal.ndim - lead)))}
