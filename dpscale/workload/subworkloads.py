"""Residual subworkloads: what the workload asks of each residual space, as a Gram in pieces.

For A' ⊆ A the queries of a product family over A leave, on A', the Gram
    weight · Π over A∖A' of |W1|²/n² · ⊗ over A' of C WᵀW C,
and those of a joint family or an array a Gram of low rank or dense; so every subworkload is a weighted sum of Kronecker
terms and joint terms, merged where the factors are equal (QuerySmasher, section 5). An axis may have weights u: then Wu
stands for W1/n and I − u1ᵀ for C, and nothing else is otherwise (weighted residuals, docs/mechanisms.md).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from dpscale.domain import Domain
from dpscale.errors import PlanError
from dpscale.names import AttributeSet
from dpscale.residual import Weights, kron, subsets
from dpscale.workload.factors import Axis, GramFactor, axis_of, piece_factor
from dpscale.workload.families import Array
from dpscale.workload.parts import ExplicitPart, JointPart, ProductPart
from dpscale.workload.wide import WideGram
from dpscale.workload.workload import Workload

DENSE_CELLS = 10_000


@dataclass
class Subworkload:
    """The Gram of one residual space: Σ weight · ⊗ factors.

    `attributes` in domain order with their `sizes` and, where they have some, `weights`; `terms` maps the keys of the
    factors to a weight that holds their traces; a key of one factor over several axes is a joint term. `factors` holds
    what is behind the keys.
    """

    attributes: AttributeSet
    sizes: tuple[int, ...]
    weights: tuple[Weights | None, ...]
    terms: dict[tuple[str, ...], float] = field(default_factory=dict)
    factors: dict[str, GramFactor | WideGram] = field(default_factory=dict)

    @property
    def cells(self) -> int:
        return math.prod(self.sizes)

    @property
    def scale(self) -> float:
        """Trace of the Gram: zero where the workload asks nothing of this space."""
        return sum(self.terms.values())

    @property
    def dimensions(self) -> int:
        """Dimension of the centred space."""
        return math.prod(n - 1 for n in self.sizes)

    def add(self, factors: Sequence[GramFactor | WideGram], weight: float) -> None:
        """Add a term, merged with one of equal factors."""
        if weight > 0:
            key = tuple([factor.key for factor in factors])
            if key not in self.terms:
                self.factors.update({factor.key: factor for factor in factors})
            self.terms[key] = self.terms.get(key, 0.0) + weight

    def is_joint(self, key: tuple[str, ...]) -> bool:
        return len(key) < len(self.sizes)

    def gram(self) -> Array:
        """The whole Gram, explicit: (cells, cells)."""
        total = np.zeros((self.cells, self.cells))
        for key, weight in self.terms.items():
            total += weight * kron([self.factors[k].gram for k in key])
        return total

    def rows(self) -> Array:
        """Rows F with FᵀF = the Gram, not compressed: (r, cells)."""
        roots = [math.sqrt(w) * kron([self.factors[k].rows for k in key]) for key, w in self.terms.items()]
        return np.concatenate(roots)

    def signature(self) -> str:
        """Equal for subworkloads whose Grams are equal up to a factor."""
        return _signature(self.sizes, tuple(self.terms.items()), self.scale)


@lru_cache(maxsize=1 << 12)
def _signature(sizes: tuple[int, ...], terms: tuple[tuple[tuple[str, ...], float], ...], scale: float) -> str:
    told = sorted((key, round(weight / scale, 12)) for key, weight in terms)
    return hashlib.sha256(repr((sizes, told)).encode()).hexdigest()


def decompose(workload: Workload, weights: Mapping[str, Weights] | None = None) -> list[Subworkload]:
    """The subworkloads that the workload asks something of, smaller attribute sets first.

    `weights`: of the attributes that are not averaged by the plain mean.
    """
    split = _Split(workload.domain, weights or {})
    for part in workload.parts:
        for attributes, weight in zip(part.sets, part.weights, strict=True):
            if isinstance(part, ProductPart):
                split.add_products(part, attributes, weight)
            else:
                split.add_joint(part, attributes, weight)
    order = {name: i for i, name in enumerate(workload.domain.names)}
    asked = [sub for sub in split.by_set.values() if sub.scale > 0]
    return sorted(asked, key=lambda sub: (len(sub.attributes), [order[name] for name in sub.attributes]))


@dataclass(frozen=True)
class Piece:
    """What the queries of a set leave on the axes `kept`: factors with their keys, and what is `left` of every axis."""

    kept: tuple[int, ...]
    key: tuple[str, ...]
    factors: list[GramFactor | WideGram]
    left: list[float]


def _piece_of(axes: Sequence[Axis], kept: tuple[int, ...]) -> Piece:
    factors = [axes[i].factor for i in kept]
    left = [axis.weight if i in kept else axis.mean_square for i, axis in enumerate(axes)]
    return Piece(kept, tuple([factor.key for factor in factors]), factors, left)


@dataclass
class _Split:
    """The subworkloads so far."""

    domain: Domain
    weights: Mapping[str, Weights]
    by_set: dict[AttributeSet, Subworkload] = field(default_factory=dict)
    _pieces: dict[tuple[tuple[str, int, int], ...], list[Piece]] = field(default_factory=dict)
    _kinds: tuple[ProductPart, dict[str, tuple[str, int, int]]] | None = None

    def at(self, attributes: AttributeSet) -> Subworkload:
        if attributes not in self.by_set:
            own = self.weights_of(attributes)
            self.by_set[attributes] = Subworkload(attributes, self.domain.shape(attributes), own)
        return self.by_set[attributes]

    def weights_of(self, attributes: AttributeSet) -> tuple[Weights | None, ...]:
        return tuple([self.weights.get(name) for name in attributes])

    def add_products(self, part: ProductPart, attributes: AttributeSet, weight: float) -> None:
        for piece in self._pieces_of(part, attributes):
            total = weight
            for left in piece.left:
                total *= left
            sub = self.at(tuple([attributes[i] for i in piece.kept]))
            if piece.key in sub.terms:
                sub.terms[piece.key] += total
            else:
                sub.add(piece.factors, total)

    def _pieces_of(self, part: ProductPart, attributes: AttributeSet) -> list[Piece]:
        """The pieces of a set, made once for all sets that differ in names alone."""
        kinds = self._kinds_of(part)
        alike = tuple([kinds[name] for name in attributes])
        if alike not in self._pieces:
            named = zip(alike, attributes, strict=True)
            axes = [axis_of(family, n, self.weights.get(name)) for (family, n, _), name in named]
            self._pieces[alike] = [_piece_of(axes, kept) for kept in subsets(tuple(range(len(axes))))]
        return self._pieces[alike]

    def _kinds_of(self, part: ProductPart) -> dict[str, tuple[str, int, int]]:
        """Of every attribute the family, the size and the weights, found once a part."""
        if self._kinds is None or self._kinds[0] is not part:
            names = part.domain.names
            each = zip(names, part.families(names), part.domain.shape(names), strict=True)
            self._kinds = part, {name: (family.name, n, id(self.weights.get(name))) for name, family, n in each}
        return self._kinds[1]

    def add_joint(self, part: JointPart | ExplicitPart, attributes: AttributeSet, weight: float) -> None:
        cells = part.domain.cells(attributes)
        if cells > DENSE_CELLS:
            raise PlanError(
                "workload",
                f"family {part.name} over {cells} cells ({', '.join(attributes)})",
                f"at most {DENSE_CELLS} cells",
                "coarsen the attributes, or ask a product family",
            )
        own = self.weights_of(attributes)
        for kept in subsets(tuple(range(len(attributes)))):
            factor, piece_weight = piece_factor(part, attributes, kept, own)
            sub = self.at(tuple(attributes[i] for i in kept))
            if factor is not None:
                sub.add([factor] if kept else [], weight * piece_weight)
