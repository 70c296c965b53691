"""Parts of a workload: product families, joint families and explicit arrays, each over attribute sets."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np

from dpscale.base.errors import JobError
from dpscale.base.numerics import AttributeSet, Floats
from dpscale.domain import Domain
from dpscale.workload.families import FAMILIES, JOINT, MARGINAL, PREFIX, Family, joint_queries, levels
from dpscale.workload.residual import kron

MOST_ENTRIES = 1 << 26


@dataclass(frozen=True)
class ProductPart:
    """All products of one-way queries over each of `sets`; every query of a set has that set's weight.

    Attributes
    ----------
    domain : Domain
    family : str
        One-way family, or "hybrid": prefix on the attributes in `numeric`, marginal on the others.
    sets : tuple of AttributeSet
    weights : tuple of float
        One weight per set.
    numeric : frozenset of str
    """

    domain: Domain
    family: str
    sets: tuple[AttributeSet, ...]
    weights: tuple[float, ...]
    numeric: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        return self.family

    def families(self, attributes: AttributeSet) -> tuple[Family, ...]:
        """Return the one-way family of each attribute."""
        if self.family == "hybrid":
            return tuple(PREFIX if name in self.numeric else MARGINAL for name in attributes)
        return (FAMILIES[self.family],) * len(attributes)

    def count(self, attributes: AttributeSet) -> int:
        """Return the number of queries over one attribute set."""
        sizes = self.domain.shape(attributes)
        return math.prod(family.count(size) for family, size in zip(self.families(attributes), sizes, strict=True))

    @cached_property
    def counts(self) -> list[int]:
        """Number of queries of each set."""
        return _counts(self, {one.name: (one.size, one.name in self.numeric) for one in self.domain.attributes})

    def answers(self, attributes: AttributeSet, marginal: Floats) -> Floats:
        """Return the answers of all queries over a set from its (estimated) marginal, one axis per attribute."""
        for axis, family in enumerate(self.families(attributes)):
            marginal = family.answers(marginal, axis)
        return marginal

    def describe(self) -> dict[str, Any]:
        content = {"family": self.family, "sets": sets_digest(self.sets, self.weights)}
        return content | ({"numeric": sorted(self.numeric)} if self.family == "hybrid" else {})


@dataclass(frozen=True)
class JointPart:
    """Joint family over each of `sets`; every query of a set has that set's weight."""

    domain: Domain
    family: str
    sets: tuple[AttributeSet, ...]
    weights: tuple[float, ...]
    p: float
    seed: int

    @property
    def name(self) -> str:
        return self.family

    def key(self, attributes: AttributeSet) -> str:
        """Return a key that is equal for sets with equal queries."""
        shape = "x".join(map(str, self.domain.shape(attributes)))
        return f"{self.family}/{shape}" + (f"/{self.p!r}/{self.seed}" if self.family == "random" else "")

    def queries(self, attributes: AttributeSet) -> Floats:
        return joint_queries(self.family, self.domain.shape(attributes), self.p, self.seed)

    def query_weights(self, attributes: AttributeSet) -> Floats:
        return np.full(self.count(attributes), 1.0)

    def basis(self, attributes: AttributeSet) -> Floats | None:
        """Return integer arrays that span the queries and are fewer than the cells; None if there are none."""
        return levels(self.family, self.domain.shape(attributes))

    def count(self, attributes: AttributeSet) -> int:
        return JOINT[self.family].count(self.domain.shape(attributes))

    @cached_property
    def counts(self) -> list[int]:
        """Number of queries of each set."""
        return _counts(self, {one.name: one.size for one in self.domain.attributes})

    def answers(self, attributes: AttributeSet, marginal: Floats) -> Floats:
        queries = self.queries(attributes)
        return np.asarray(queries.reshape(len(queries), -1) @ marginal.reshape(-1))

    def describe(self) -> dict[str, Any]:
        settings = {"p": self.p, "seed": self.seed} if self.family == "random" else {}
        return {"family": self.family, "sets": sets_digest(self.sets, self.weights), **settings}


@dataclass(frozen=True, eq=False)
class ExplicitPart:
    """Arbitrary linear queries over one attribute set.

    Attributes
    ----------
    domain : Domain
    attributes : AttributeSet
    array : ndarray, shape (m, n_a, n_b, …)
        The queries.
    each : ndarray, shape (m,)
        Weights of the queries.
    family : ProductPart or JointPart, optional
        Family whose queries these are, if they are one with individual weights.
    """

    domain: Domain
    attributes: AttributeSet
    array: Floats
    each: Floats
    family: ProductPart | JointPart | None = None

    weights = (1.0,)

    @property
    def name(self) -> str:
        return "array" if self.family is None else self.family.name

    @property
    def sets(self) -> tuple[AttributeSet, ...]:
        return (self.attributes,)

    def key(self, attributes: AttributeSet) -> str:
        return f"array/{self.digest}"

    def queries(self, attributes: AttributeSet) -> Floats:
        return self.array

    def query_weights(self, attributes: AttributeSet) -> Floats:
        return self.each

    def basis(self, attributes: AttributeSet) -> Floats | None:
        """Return the queries with positive weight if they are integers and fewer than the cells, else None.

        These queries span the Gram matrix.
        """
        array = self.array[self.each > 0]
        flat = array.reshape(len(array), -1)
        is_integer = np.array_equal(array, np.rint(array)) and np.abs(array).max(initial=0) < 1 << 10
        return array if is_integer and len(flat) < flat.shape[1] else None

    def count(self, attributes: AttributeSet) -> int:
        return len(self.array)

    @property
    def counts(self) -> list[int]:
        """Number of queries of each set."""
        return [len(self.array)]

    def answers(self, attributes: AttributeSet, marginal: Floats) -> Floats:
        return np.asarray(self.array.reshape(len(self.array), -1) @ marginal.reshape(-1))

    @cached_property
    def digest(self) -> str:
        content = np.ascontiguousarray(self.array).tobytes() + np.ascontiguousarray(self.each).tobytes()
        return hashlib.sha256(repr(self.array.shape).encode() + content).hexdigest()

    def describe(self) -> dict[str, Any]:
        return {"family": "array", "sets": [list(self.attributes)], "sha256": self.digest}


Part = ProductPart | JointPart | ExplicitPart


def counts_of(part: Part) -> list[int]:
    """Return the number of queries of each set of a part."""
    return part.counts


def _counts(part: ProductPart | JointPart, kinds: Mapping[str, Any]) -> list[int]:
    """Return the number of queries of each set, computed once for sets with equal kinds of attributes."""
    known: dict[Any, int] = {}
    alike = [tuple(map(kinds.__getitem__, names)) for names in part.sets]
    for kind, names in zip(alike, part.sets, strict=True):
        if kind not in known:
            known[kind] = part.count(names)
    return [known[kind] for kind in alike]


def sets_digest(sets: Sequence[AttributeSet], weights: Sequence[float]) -> str:
    """Return the SHA-256 of attribute sets and their weights; there may be a million sets."""
    digest = hashlib.sha256(np.fromiter(map(len, sets), "<i8", len(sets)).tobytes())
    digest.update("\0".join(chain.from_iterable(sets)).encode())
    digest.update(np.array(weights, "<f8").tobytes())
    return digest.hexdigest()


def weighted(part: ProductPart | JointPart, each: Floats) -> ExplicitPart:
    """Return a family over one set as explicit queries with one weight each, in the order of its answers."""
    (attributes,) = part.sets
    count, cells = part.count(attributes), part.domain.cells(attributes)
    if each.shape != (count,):
        got = f"{each.size} weights for {', '.join(attributes)}"
        raise JobError("workload.weight", got, f"one for each of its {count} queries", "fix it")
    if count * cells > MOST_ENTRIES:
        raise JobError("workload.weight", f"separate weights for {count} queries on {cells} cells",
                       f"at most {MOST_ENTRIES} entries", "use one weight for the set")  # fmt: skip
    if isinstance(part, JointPart):
        return ExplicitPart(part.domain, attributes, part.queries(attributes), each, part)
    pairs = zip(part.families(attributes), part.domain.shape(attributes), strict=True)
    array = kron([family.matrix(size) for family, size in pairs])
    return ExplicitPart(part.domain, attributes, array.reshape(-1, *part.domain.shape(attributes)), each, part)
