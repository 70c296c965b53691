"""Optimum over all matrix mechanisms for few queries on many cells, in the space of the queries.

The problem of `convex` on all cells of a workload's attributes needs only rows F with FᵀF = Σ weight · qᵀq. With m
queries on n cells one evaluation is an eigenproblem of m × m and two products of m × m × n, so the number of queries
limits it, not that of cells:

    max over μ of (tr (F diag(μ) Fᵀ)^½)² = min over strategies of sensitivity 1 of the error.

The strategy has as many rows as the queries have dimensions. It is measured on all cells at once, as integer
combinations of independent integer queries, so that its span is exactly theirs: no ridge is added. Queries that are not
multiples of integers have the bound alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpscale.base.numerics import AttributeSet, Floats
from dpscale.optimize.convex import Optimum, Solve
from dpscale.optimize.integer_strategies import BASIS_BITS, round_strategy
from dpscale.plans.factor import Factor
from dpscale.workload import Workload, WorkloadPart
from dpscale.workload.factors import compressed
from dpscale.workload.residual import piece, subsets

MOST_QUERIES, MOST_ENTRIES = 2000, 10**8  # of one problem: queries, and queries times cells
MOST_OF_PRODUCT = 2048  # cells of a set of products, whose errors need a matrix of cells × cells
TOLERANCE, LOOSELY, MANY_ENTRIES = 1e-3, 4e-3, 1 << 22  # gap of a search; of a long one; entries of its rows
WHOLE_NUMBER = 1e9  # of an entry of a basis
SCALES, ROUNDED = (1.0, 2.0**10, 1e3, 2.0**20, 1e6), 1e-9  # of queries to integers, and the rounding of floats
NOTHING = 1e-12  # of the largest entry of queries: smaller pieces are rounding


@dataclass(frozen=True, eq=False)
class RowSpaceProblem:
    """All queries of a workload on all cells of its attributes.

    Attributes
    ----------
    workload : Workload
    attributes : AttributeSet
        Attributes of the workload, in domain order.
    shape : tuple of int
    """

    workload: Workload
    attributes: AttributeSet
    shape: tuple[int, ...]

    @classmethod
    def of(cls, workload: Workload, most: int = MOST_ENTRIES) -> RowSpaceProblem | None:
        """Return the queries of a workload; None if they are too many.

        Parameters
        ----------
        workload : Workload
        most : int
            Largest number of queries times cells.
        """
        domain = workload.domain
        attributes = domain.ordered({name for _, names, _ in _sets(workload) for name in names})
        number = sum(part.count(names) for part, names, _ in _sets(workload))
        products = [domain.cells(names) for part, names, _ in _sets(workload) if part.factorizes]
        if number > MOST_QUERIES or number * domain.cells(attributes) > min(most, MOST_ENTRIES):
            return None
        return (
            None if max(products, default=0) > MOST_OF_PRODUCT else cls(workload, attributes, domain.shape(attributes))
        )

    @cached_property
    def rows(self) -> Floats:
        """Rows of full row rank with the workload's Gram matrix, shape (r, cells)."""
        weighted = [self._lifted(names, queries * np.sqrt(weights).reshape(-1, *[1] * len(names)))
                    for names, queries, weights in self._planned]  # fmt: skip
        return compressed(np.concatenate(weighted))

    @cached_property
    def spaces(self) -> tuple[tuple[int, ...], ...]:
        """Residual spaces on which a query has a piece, each as the tuple of its axes.

        A piece is the query averaged over the axes outside the space and centred along those inside; pieces below
        NOTHING of the largest entry count as zero.
        """
        found = set[tuple[int, ...]]()
        for names, queries, _ in self._planned:
            axes = [self.attributes.index(name) for name in names]
            for space in subsets(tuple(range(len(names)))):
                pieces = np.abs(piece(queries, space, lead=1))
                if pieces.max(initial=0) > NOTHING * np.abs(queries).max(initial=0):
                    found.add(tuple(axes[axis] for axis in space))
        return tuple(sorted(found, key=lambda space: (len(space), space)))

    @cached_property
    def _planned(self) -> list[tuple[AttributeSet, Floats, Floats]]:
        """Queries of positive weight of each set, shape (m, sizes…), with their weights."""
        found = list[tuple[AttributeSet, Floats, Floats]]()
        for part, names, weight in _sets(self.workload):
            weights = weight * part.query_weights(names)
            queries = part.queries(names)[weights > 0]
            if len(queries):
                found.append((names, queries, weights[weights > 0]))
        return found

    def optimum(self, solve: Solve) -> Optimum:
        """Return the optimum with its certificate, for a Gram matrix of trace 1."""
        tolerance = LOOSELY if self.rows.size > MANY_ENTRIES else TOLERANCE
        return solve(self.key, self.rows / np.sqrt(self.scale), self.shape, tolerance)

    @cached_property
    def key(self) -> str:
        """Key of the queries and their weights."""
        digest = hashlib.sha256(repr(self.shape).encode())
        for part, names, weight in _sets(self.workload):
            axes = [self.attributes.index(name) for name in names]
            digest.update(repr((axes, part.key(names), weight)).encode())
            digest.update(np.ascontiguousarray(part.query_weights(names), np.float64).tobytes())
        return f"listed queries/{digest.hexdigest()}"

    @cached_property
    def scale(self) -> float:
        """Trace of the Gram matrix."""
        return float((self.rows**2).sum())

    def rounded(self, optimum: Optimum) -> Factor | None:
        """Return the integer strategy near an optimum; None if the queries are no multiples of integers.

        Raises PlanError if weights differ so much that a query has no effect.

        The integer queries are lifted to all cells of the attributes, repeated along the axes that they do not name,
        and are the basis whose integer combinations approximate the optimum.
        """
        integers = [(names, _integers(queries)) for names, queries, _ in self._planned]
        if any(queries is None for _, queries in integers):
            return None

        basis = np.concatenate([self._lifted(names, queries) for names, queries in integers if queries is not None])
        factor = round_strategy(self.rows / np.sqrt(self.scale), optimum.root, self.shape, BASIS_BITS, basis)
        return Factor(kind="matrix", shape=self.shape, matrix=factor.matrix, weights=None, spaces=self.spaces)

    def _lifted(self, names: AttributeSet, queries: Floats) -> Floats:
        """Return queries of one set, shape (m, sizes…), on all cells, shape (m, cells)."""
        shape = [n if name in names else 1 for name, n in zip(self.attributes, self.shape, strict=True)]
        whole = np.broadcast_to(queries.reshape(len(queries), *shape), (len(queries), *self.shape))
        return np.asarray(whole.reshape(len(queries), -1))


def _integers(queries: Floats) -> Floats | None:
    """Return queries, each times a power of 2 or of 10, as integers; None if one is not such a multiple."""
    for scale in SCALES:
        scaled = queries * scale
        if np.abs(scaled).max() > WHOLE_NUMBER:
            return None
        if np.abs(np.rint(scaled) - scaled).max() <= ROUNDED:
            return np.asarray(np.rint(scaled))
    return None


def _sets(workload: Workload) -> Iterator[tuple[WorkloadPart, AttributeSet, float]]:
    """Yield the sets of positive weight, each with its part and weight."""
    for part in workload.parts:
        for names, weight in zip(part.sets, part.weights, strict=True) if part.weighs else ():
            if weight > 0:
                yield part, names, weight
