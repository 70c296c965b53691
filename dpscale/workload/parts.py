"""The parts of a workload: a product family over attribute sets, or an explicit array of queries."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import numpy as np

from dpscale.domain import Domain
from dpscale.workload.families import FAMILIES, Array

Attributes = tuple[str, ...]


@dataclass(frozen=True)
class ProductPart:
    """All products of a family's one-way queries, over each of `sets`; every query has weight `weight`."""

    domain: Domain
    family: str
    sets: tuple[Attributes, ...]
    weight: float

    @property
    def name(self) -> str:
        return self.family

    def count(self, attributes: Attributes) -> int:
        """Number of queries over one attribute set."""
        return math.prod(FAMILIES[self.family].count(size) for size in self.domain.shape(attributes))

    def answers(self, marginal: Array) -> Array:
        """All queries over the set whose (estimated) marginal is given, an axis per attribute."""
        family = FAMILIES[self.family]
        return reduce(lambda values, axis: family.answers(values, axis), range(marginal.ndim), marginal)

    def describe(self) -> dict[str, Any]:
        return {"family": self.family, "sets": [list(s) for s in self.sets], "weight": self.weight}


@dataclass(frozen=True, eq=False)
class ExplicitPart:
    """Any linear queries over one attribute set: `queries` of shape (m, n_a, n_b, …), one weight each."""

    domain: Domain
    attributes: Attributes
    queries: Array
    weights: Array

    name = "array"

    @property
    def sets(self) -> tuple[Attributes, ...]:
        return (self.attributes,)

    def count(self, attributes: Attributes) -> int:
        return len(self.queries)

    def answers(self, marginal: Array) -> Array:
        return np.asarray(self.queries.reshape(len(self.queries), -1) @ marginal.reshape(-1))

    @cached_property
    def digest(self) -> str:
        content = np.ascontiguousarray(self.queries).tobytes() + np.ascontiguousarray(self.weights).tobytes()
        return hashlib.sha256(content).hexdigest()

    def describe(self) -> dict[str, Any]:
        return {"family": "array", "sets": [list(self.attributes)], "sha256": self.digest}


Part = ProductPart | ExplicitPart
