"""Residual subworkloads: what the workload asks of each residual space, as a Gram in pieces.

For A' ⊆ A the queries of a product family over A leave, on A', the Gram
    weight · Π over A∖A' of |W1|²/n² · ⊗ over A' of C WᵀW C,
so every subworkload is a weighted sum of Kronecker terms, merged where the factors are equal, plus a dense Gram for
explicit queries (QuerySmasher, section 5).
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field

import numpy as np

from dpscale.domain import Domain
from dpscale.errors import PlanError
from dpscale.residual import kron, piece, subsets
from dpscale.workload.families import Array, AxisGram, axis_gram
from dpscale.workload.parts import Attributes, ExplicitPart, ProductPart
from dpscale.workload.workload import Workload

DENSE_CELLS = 4096
NEGLIGIBLE = 1e-13


@dataclass
class Subworkload:
    """The Gram of one residual space: Σ weight · ⊗ factors, plus a dense part (or None).

    `attributes` in domain order with their `sizes`; `terms` maps the keys of the factors to their weight, with the
    factors' traces taken into it; `factors` holds the matrices behind the keys.
    """

    attributes: Attributes
    sizes: tuple[int, ...]
    terms: dict[tuple[str, ...], float] = field(default_factory=dict)
    factors: dict[str, Array] = field(default_factory=dict)
    dense: Array | None = None

    @property
    def cells(self) -> int:
        return math.prod(self.sizes)

    @property
    def scale(self) -> float:
        """Trace of the Gram: zero where the workload asks nothing of this space."""
        return sum(self.terms.values()) + (0.0 if self.dense is None else float(np.trace(self.dense)))

    def add_term(self, axes: list[AxisGram], weight: float) -> None:
        key = tuple(axis.key for axis in axes)
        total = weight * math.prod(axis.weight for axis in axes)
        if total > 0:
            self.terms[key] = self.terms.get(key, 0.0) + total
            self.factors.update({axis.key: axis.centered for axis in axes})

    def add_dense(self, gram: Array) -> None:
        self.dense = gram if self.dense is None else self.dense + gram

    def gram(self) -> Array:
        """The whole Gram, explicit: (cells, cells)."""
        total = np.zeros((self.cells, self.cells)) if self.dense is None else self.dense.copy()
        for key, weight in self.terms.items():
            total += weight * kron([self.factors[k] for k in key])
        return total

    def signature(self) -> str:
        """Equal for subworkloads whose Grams are equal up to a factor."""
        terms = sorted((key, round(weight / self.scale, 12)) for key, weight in self.terms.items())
        content = repr((self.sizes, terms)).encode()
        if self.dense is not None:
            content += np.round(self.dense / self.scale, 12).tobytes()
        return hashlib.sha256(content).hexdigest()


def decompose(workload: Workload) -> list[Subworkload]:
    """The subworkloads that the workload asks something of, smaller attribute sets first."""
    found: dict[Attributes, Subworkload] = {}
    for part in workload.parts:
        if isinstance(part, ProductPart):
            _add_products(part, found)
        else:
            _add_explicit(part, found)
    order = {name: i for i, name in enumerate(workload.domain.names)}
    asked = [sub for sub in found.values() if sub.scale > 0]
    return sorted(asked, key=lambda sub: (len(sub.attributes), [order[name] for name in sub.attributes]))


def _at(found: dict[Attributes, Subworkload], domain: Domain, attributes: Attributes) -> Subworkload:
    if attributes not in found:
        found[attributes] = Subworkload(attributes, domain.shape(attributes))
    return found[attributes]


def _add_products(part: ProductPart, found: dict[Attributes, Subworkload]) -> None:
    for attributes in part.sets:
        grams = {name: axis_gram(part.family, part.domain[name].size) for name in attributes}
        for kept in subsets(attributes):
            averaged = math.prod(grams[name].mean_square for name in attributes if name not in kept)
            sub = _at(found, part.domain, kept)
            sub.add_term([grams[name] for name in kept], part.weight * averaged)


def _add_explicit(part: ExplicitPart, found: dict[Attributes, Subworkload]) -> None:
    if part.domain.cells(part.attributes) > DENSE_CELLS:
        raise PlanError(
            "workload.queries",
            f"an array over {part.domain.cells(part.attributes)} cells",
            f"at most {DENSE_CELLS} cells",
            "ask a family instead, or coarsen the attributes",
        )
    weighted = part.queries * np.sqrt(part.weights).reshape(-1, *[1] * len(part.attributes))
    norm = float((weighted**2).sum())
    for kept in subsets(part.attributes):
        pieces = piece(weighted, [part.attributes.index(name) for name in kept], lead=1).reshape(len(weighted), -1)
        gram = pieces.T @ pieces
        sub = _at(found, part.domain, kept)
        if np.trace(gram) > NEGLIGIBLE * norm:
            sub.add_dense(gram)
