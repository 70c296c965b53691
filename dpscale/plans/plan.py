"""Plan: what will be measured with which noise, what it costs and how good it is, before anything runs.

A plan is scale-free: it says which *share* of the privacy cost β each block takes. Block b measures K_b·marginal with
noise of variance Δ_b² / (share_b · β), where Δ_b² is the largest squared column norm of K_b, so that the block costs
share_b · β (notes on β: QuerySmasher, section 3). Under Laplace noise of scale Δ_b / (share_b · ε), Δ_b the largest L1
norm, it costs share_b · ε, and a "privacy cost" is ε². Every block tells something of one or several residual spaces;
the estimate of each residual is the inverse-variance average of what tells of it, and a query's variance is the sum
over its pieces (but see `coupled`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscale.domain import Domain
from dpscale.errors import PlanError
from dpscale.plans import coupled
from dpscale.plans.block import Block
from dpscale.plans.factor import Factor
from dpscale.residual import kron, piece, subsets
from dpscale.workload import Workload
from dpscale.workload.parts import Attributes

Array = NDArray[np.float64]
SHOWN_CELLS = 4096


@dataclass(frozen=True)
class Source:
    """That a block tells of a residual: with `weight` in the average, by summing its other axes."""

    block: int
    weight: float


@dataclass(frozen=True)
class ResidualEstimator:
    """How one residual is estimated: the average of its sources; covariance scale · ⊗ (KᵀK)⁺ at privacy cost 1."""

    attributes: Attributes
    sources: tuple[Source, ...]
    scale: float
    factors: tuple[Factor, ...]

    @property
    def joint(self) -> bool:
        return len(self.factors) < len(self.attributes)

    @property
    def spans_all(self) -> bool:
        """Whether every piece can be told, and so every cell of the residual."""
        return all(factor.spans_all for factor in self.factors)

    def variance(self, query_piece: Array) -> float:
        """Variance, at privacy cost 1, of a query's piece on this residual."""
        return float(self.variances(query_piece[None])[0])

    def variances(self, pieces: Array) -> Array:
        """The same for a batch of pieces, shape (m, sizes…)."""
        if self.joint:
            turned = pieces.reshape(len(pieces), -1) @ self.factors[0].inverse
            return np.asarray(self.scale * (turned**2).sum(axis=1))
        turned = pieces
        for factor in self.factors:  # each axis goes to the end, so after all of them they stand as they did
            turned = np.tensordot(turned, factor.covariance, axes=(1, 0))
        flat = pieces.reshape(len(pieces), -1)
        return np.asarray(self.scale * np.einsum("ij,ij->i", flat, turned.reshape(flat.shape)))

    def spans(self, query_piece: Array) -> bool:
        """Whether a query's piece can be told from the sources."""
        if self.joint or len(self.factors) == 1:
            return self.factors[0].spans(query_piece.reshape(1, -1))
        return self.spans_all


@dataclass(frozen=True, eq=False, repr=False)
class Plan:
    """What is going to be measured. Immutable; made by `dpscale.plan`.

    `error`: weighted sum of the queries' variances at privacy cost 1; `bound`: what no plan of the family that the
    method optimises over can go below (0 where none is known); `notes`: remarks for the reader.
    """

    workload: Workload
    mechanism: str
    blocks: tuple[Block, ...]
    error: float
    bound: float
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Plan({self.mechanism}, {self.query_count} queries, {len(self.blocks)} measurements)"

    @property
    def domain(self) -> Domain:
        return self.workload.domain

    @property
    def query_count(self) -> int:
        return self.workload.query_count

    @property
    def optimality_gap(self) -> float:
        """Certified: error / bound − 1; inf where no bound is known."""
        return max(self.error / self.bound - 1, 0.0) if self.bound > 0 else math.inf

    @property
    def noise(self) -> str:
        """The kind of noise of all blocks."""
        return self.blocks[0].noise

    def rmse(self, privacy_cost: float = 1.0) -> float:
        """Root of the sum of weight · variance over the number of queries; under Laplace noise the cost is ε²."""
        return math.sqrt(self.error / privacy_cost / self.query_count)

    def variance(self, attributes: Sequence[str], query: Any) -> float:
        """Variance at privacy cost 1 of one linear query, given as an array over the attributes' cells."""
        pieces = self.pieces(attributes, query)
        if self.coupled:
            unit = [block.unit_variance for block in self.blocks]
            return float(coupled.variances(self, unit, *self.aligned(attributes, query))[0])
        return sum(self.residuals[kept].variance(part) for kept, part in pieces)

    def strategy(self, attributes: Sequence[str]) -> Array:
        """The strategy on an attribute set as a matrix whose largest column norm is 1."""
        ordered = self.domain.ordered(attributes)
        found = [block for block in self.blocks if block.attributes == ordered]
        if not found or self.domain.cells(ordered) > SHOWN_CELLS:
            why = "not measured" if not found else f"{self.domain.cells(ordered)} cells"
            raise PlanError("strategy", f"{', '.join(ordered)}: {why}", f"up to {SHOWN_CELLS} cells", "ask another set")
        stacked = [factor.explicit().astype(np.float64) for factor in found[0].factors]
        return kron(stacked) / math.sqrt(found[0].squared_l2_sensitivity)

    def pieces(self, attributes: Sequence[str], query: Any) -> list[tuple[Attributes, Array]]:
        """The query's pieces that are not zero; PlanError where one was not measured (not in the span)."""
        ordered, (values,) = self.aligned(attributes, query)
        found = []
        for kept in subsets(ordered):
            part = piece(values, [ordered.index(name) for name in kept], profiles=self.axis_profiles(ordered))
            if np.abs(part).max() <= 1e-12 * np.abs(values).max():
                continue
            if kept not in self.residuals or not self.residuals[kept].spans(part):
                raise _out_of_span(kept)
            found.append((kept, part))
        return found

    def aligned(self, attributes: Sequence[str], query: Any) -> tuple[Attributes, Array]:
        """The attributes in domain order and the query with its axes in that order, as a batch of one."""
        values = np.asarray(query, dtype=np.float64)
        if values.shape != self.domain.shape(attributes):
            takes = f"an array of shape {self.domain.shape(attributes)}"
            raise PlanError("query", f"shape {values.shape}", takes, "give an axis for every attribute")
        ordered = self.domain.ordered(attributes)
        return ordered, values.transpose([list(attributes).index(name) for name in ordered])[None]

    @cached_property
    def coupled(self) -> bool:
        """Whether a block's estimates of different residuals hang together (`coupled` then has the variances)."""
        return not all(block.commutes for block in self.blocks)

    @cached_property
    def shared_factors(self) -> dict[str, Factor]:
        """The factors that mix residuals and that all blocks of an attribute share."""
        found: dict[str, list[Factor]] = {}
        for block in self.blocks:
            for name, factor in zip(block.attributes, block.factors, strict=False):
                found.setdefault(name, []).append(factor)
        products = not any(block.joint for block in self.blocks)
        alike = {name: own[0] for name, own in found.items() if len({factor.digest for factor in own}) == 1}
        return {name: factor for name, factor in alike.items() if products and not factor.commutes}

    @cached_property
    def profiles(self) -> dict[str, Array]:
        """How the total of an attribute is spread over its cells, where it is not evenly (see `coupled`)."""
        return {name: coupled.profile_of(factor) for name, factor in self.shared_factors.items()}

    def axis_profiles(self, attributes: Sequence[str]) -> dict[int, Array]:
        """The profiles of the axes of an array over some attributes."""
        return {axis: self.profiles[name] for axis, name in enumerate(attributes) if name in self.profiles}

    @cached_property
    def residuals(self) -> dict[Attributes, ResidualEstimator]:
        """The estimator of every residual that the blocks tell of."""
        told: dict[Attributes, list[tuple[int, float]]] = {}
        for index, block in enumerate(self.blocks):
            for kept in subsets(block.attributes) if block.whole else [block.attributes]:
                told.setdefault(kept, []).append((index, block.unit_variance * self._spread(block, kept)))
        return {kept: self._estimator(kept, sources) for kept, sources in told.items()}

    def _spread(self, block: Block, kept: Attributes) -> float:
        """How much larger a residual's variance is than the noise, for lack of the axes that are summed away."""
        if self.coupled:
            return coupled.residual_variance(block, kept, self.shared_factors)
        return math.prod(self.domain[name].size for name in block.attributes if name not in kept)

    def _estimator(self, kept: Attributes, told: list[tuple[int, float]]) -> ResidualEstimator:
        precision = sum(1 / variance for _, variance in told)
        sources = tuple(Source(index, 1 / variance / precision) for index, variance in told)
        block = self.blocks[told[0][0]]
        own = {name: factor for name, factor in zip(block.attributes, block.factors, strict=False)}
        factors = block.factors if block.joint else tuple(own[name] for name in kept)
        return ResidualEstimator(kept, sources, 1 / precision, factors)

    @cached_property
    def counted(self) -> tuple[Attributes, ...]:
        """The attribute sets to count: those of the blocks that lie in no larger one."""
        by_size = sorted({block.attributes for block in self.blocks}, key=len, reverse=True)
        covered: set[Attributes] = set()
        kept = []
        for attributes in by_size:
            if attributes not in covered:
                kept.append(attributes)
                covered.update(subsets(attributes))
        return tuple(sorted(kept, key=lambda names: [self.domain.names.index(name) for name in names]))

    @property
    def largest(self) -> Attributes:
        """The largest attribute set that will be counted."""
        return max(self.counted, key=self.domain.cells)

    @property
    def tasks(self) -> int:
        """How many independent tasks counting and measuring fall into at the finest: one for each counted set."""
        return len(self.counted)

    @property
    def memory(self) -> int:
        """Bytes that the largest of them takes on one worker: counts, partial sums, measured numbers and noise."""
        return 5 * 8 * self.domain.cells(self.largest)


def _out_of_span(kept: Attributes) -> PlanError:
    names = ", ".join(kept) or "the total"
    return PlanError(
        "query",
        f"it needs {names}, which was not measured",
        "a query in the workload's span",
        "add a family over these attributes to the workload",
    )
