"""Parts of a workload over attribute sets: their interface, and those of product families and joint families.

Other packages do not ask which class a part has.
"""

from __future__ import annotations

import hashlib
import math
from abc import abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from itertools import chain
from typing import Any, Protocol, Self

import numpy as np

from dpscale.base.numerics import AttributeSet, Floats
from dpscale.domain import Domain
from dpscale.workload.family import End, Family, JointFamily, ProductFamily, QueryFamily, Statistic, in_chunks
from dpscale.workload.residual import kron


class WorkloadPart(Protocol):
    """Queries over attribute sets, with a weight for each set."""

    @property
    def domain(self) -> Domain: ...
    @property
    def name(self) -> str:
        """Name of the family, in tables and stored results."""

    @property
    def sets(self) -> tuple[AttributeSet, ...]: ...
    @property
    def weights(self) -> tuple[float, ...]:
        """One weight per set, in addition to `query_weights`."""

    @property
    def counts(self) -> list[int]:
        """Number of queries of each set."""

    @property
    def set_weights(self) -> tuple[float, ...]:
        """Largest weight of a query, for each set."""

    @property
    def weighs(self) -> bool:
        """Whether any query has a positive weight and a nonzero entry."""

    @property
    def factorizes(self) -> bool:
        """Whether every query is a product of one-way queries; `answers` then has one axis per attribute."""

    @property
    def axis_families(self) -> tuple[Family, ...]:
        """Distinct one-way families of the attributes; empty unless the queries are products."""

    @property
    def ends(self) -> tuple[End, ...]:
        """The cells of an attribute that name a query; empty if queries are numbered."""

    @property
    def are_counts(self) -> bool:
        """Whether every answer is a number of records."""

    @property
    def query_texts(self) -> Sequence[str]:
        """Texts of the queries; empty if `ends` names them, or if they are numbered."""

    @property
    def cumulative(self) -> bool:
        """Whether the queries are running sums over the cells, or differences of two."""

    @property
    def by_shape(self) -> bool:
        """Whether the queries follow from the sizes of the attributes, so that sets of equal shape have equal ones."""

    @property
    def pooled(self) -> bool:
        """Whether the attributes of queries that are not products are of one kind in the search of axis weights."""

    @property
    def invariant(self) -> bool:
        """Whether the plain mean is the best average of every axis."""

    @property
    def exchangeable(self) -> bool:
        """Whether every query over two attributes of equal size is invariant under their exchange."""

    @property
    def lists_queries(self) -> bool:
        """Whether the job lists each query, so that cells may remain that no query distinguishes."""

    @property
    def statistic(self) -> Statistic | None:
        """Statistic of the answers of `linear` that the part answers with; None if answers are linear."""

    @property
    def linear(self) -> WorkloadPart:
        """Part of the linear queries from which the answers follow; the part itself if there is no statistic."""

    def families(self, attributes: AttributeSet) -> tuple[Family, ...]:
        """Return the one-way family of each attribute, whose products are the queries; () if there are none."""

    def label_families(self, attributes: AttributeSet) -> tuple[Family, ...]:
        """Return the one-way families whose products are the queries, which may have individual weights."""

    def role(self, attribute: str) -> int:
        """Return a number that is equal for attributes of equal size with equal queries."""

    def extended(self, attributes: AttributeSet) -> AttributeSet:
        """Return attributes with the number that the part sums, if any."""

    def on(self, domain: Domain) -> WorkloadPart:
        """Return the part on a domain whose numbers have other cells."""

    def shown(self, attributes: AttributeSet) -> AttributeSet:
        """Return the names that identify a query of a set: without a number that the part sums."""

    def unit(self, attributes: AttributeSet) -> str:
        """Return the unit of the answers: "records", or the numbers that are summed, squared for a variance."""

    def count(self, attributes: AttributeSet) -> int: ...
    def key(self, attributes: AttributeSet) -> str:
        """Return a key that is equal for sets with equal queries."""

    def queries(self, attributes: AttributeSet) -> Floats:
        """Return all queries over a set, shape (m, sizes…)."""

    def chunks(self, attributes: AttributeSet) -> Iterator[Floats]:
        """Yield all queries over a set in order, in arrays of some queries."""

    def query_weights(self, attributes: AttributeSet) -> Floats:
        """Return the weights of the queries, shape (m,)."""

    def basis(self, attributes: AttributeSet) -> Floats | None:
        """Return integer arrays that span the queries and are fewer than the cells; None if there are none."""

    def answers(self, attributes: AttributeSet, marginal: Floats) -> Floats:
        """Return the answers of all queries over a set from its (estimated) marginal."""

    def batch_answers(self, attributes: AttributeSet, marginals: Floats) -> Floats:
        """Return the answers from a batch of marginals, shape (batch, …)."""

    def scaled(self, factor: float) -> WorkloadPart:
        """Return the part with its weights times a number."""

    def mask(self, values: Floats) -> Floats:
        """Return values of the queries with nan for queries that are not planned because their weight is 0."""

    def squared_norm(self, attributes: AttributeSet) -> float:
        """Return Σ weight · |query|² over the queries of a set."""

    def mean_entry(self, attributes: AttributeSet) -> float:
        """Return the mean over the queries of |sum of the entries| per cell: their share of evenly spread records."""

    def largest_entries(self, attributes: AttributeSet) -> Floats:
        """Return the largest absolute entry of every query; a scalar if it is the same for all."""

    def describe(self) -> dict[str, Any]:
        """Return the content of the workload's digest."""


RECORDS = "records"  # unit of counts


def unit_of(domain: Domain, attributes: AttributeSet) -> str:
    """Return the unit of answers over a set: "records", or its numbers, which are summed."""
    return " × ".join(name for name in attributes if name in domain.number_names) or RECORDS


LEAST_ENTRY = 1e-9  # in place of 0, for queries without cells


@dataclass(frozen=True)
class _FamilyPart:
    """Members of queries of a family, which have the weight of their set."""

    domain: Domain
    family: QueryFamily
    sets: tuple[AttributeSet, ...]
    weights: tuple[float, ...]

    by_shape, query_texts, lists_queries, statistic = True, (), False, None

    @property
    def are_counts(self) -> bool:
        return True

    @property
    def linear(self) -> Self:
        return self

    def extended(self, attributes: AttributeSet) -> AttributeSet:
        return self.family.extended(self.domain, attributes)

    def on(self, domain: Domain) -> Self:
        return replace(self, domain=domain, family=self.family.checked_for(domain, self.sets))

    def shown(self, attributes: AttributeSet) -> AttributeSet:
        return self.family.shown(attributes)

    def unit(self, attributes: AttributeSet) -> str:
        return unit_of(self.domain, attributes) + ("" if self.statistic is None else "²" * (self.statistic.power - 1))

    @property
    def name(self) -> str:
        return self.family.title

    @property
    def cumulative(self) -> bool:
        return self.family.cumulative

    @property
    def set_weights(self) -> tuple[float, ...]:
        return self.weights

    @property
    def weighs(self) -> bool:
        return max(self.weights, default=0) > 0

    @abstractmethod
    def count(self, attributes: AttributeSet) -> int: ...
    def role(self, attribute: str) -> int:
        return 0

    @cached_property
    def counts(self) -> list[int]:
        """Number of queries of each set, computed once for sets with equal kinds of attributes."""
        kinds = {axis.name: (axis.size, self.role(axis.name)) for axis in self.domain.axes}
        known: dict[Hashable, int] = {}
        alike = [tuple(map(kinds.__getitem__, names)) for names in self.sets]
        for kind, names in zip(alike, self.sets, strict=True):
            if kind not in known:
                known[kind] = self.count(names)
        return [known[kind] for kind in alike]

    def query_weights(self, attributes: AttributeSet) -> Floats:
        return np.full(self.count(attributes), 1.0)

    def scaled(self, factor: float) -> Self:
        return replace(self, weights=tuple(weight * factor for weight in self.weights))

    def mask(self, values: Floats) -> Floats:
        return values

    def describe(self) -> dict[str, Any]:
        return {"family": self.name, "sets": sets_digest(self.sets, self.weights), **self.family.parameters}


@dataclass(frozen=True)
class ProductPart(_FamilyPart):
    """All products of one-way queries over each of `sets`; every query of a set has that set's weight."""

    family: ProductFamily

    factorizes, pooled, exchangeable = True, False, False

    @property
    def statistic(self) -> Statistic | None:  # type: ignore[override]
        return self.family.statistic

    @property
    def linear(self) -> Self:
        return self if self.statistic is None else replace(self, family=self.family.linear)

    @property
    def lists_queries(self) -> bool:  # type: ignore[override]
        return any(end.is_text for end in self.ends)

    @property
    def weighs(self) -> bool:
        """Whether a set has a positive weight and no family whose entries are all 0."""
        if not any(family.vanishes for family in self.axis_families):
            return super().weighs
        pairs = zip(self.sets, self.weights, strict=True)
        weighted = [names for names, weight in pairs if weight > 0]
        return any(not any(family.vanishes for family in self.families(names)) for names in weighted)

    @property
    def are_counts(self) -> bool:
        return all(family.are_counts for family in self.axis_families)

    @property
    def axis_families(self) -> tuple[Family, ...]:
        return self.family.axes

    @property
    def ends(self) -> tuple[End, ...]:
        return self.family.ends

    @property
    def invariant(self) -> bool:
        return all(family.invariant for family in self.family.axes)

    def families(self, attributes: AttributeSet) -> tuple[Family, ...]:
        return tuple([self.family.axis(name) for name in attributes])

    def label_families(self, attributes: AttributeSet) -> tuple[Family, ...]:
        return tuple([self.family.label_axis(name) for name in attributes])

    def role(self, attribute: str) -> int:
        return self.family.axes.index(self.family.axis(attribute))

    def count(self, attributes: AttributeSet) -> int:
        return self._planned(attributes) // self.family.planned_per_answer

    def query_weights(self, attributes: AttributeSet) -> Floats:
        return np.full(self._planned(attributes), 1.0)

    def _planned(self, attributes: AttributeSet) -> int:
        return math.prod(family.count(size) for family, size in self._sized(attributes))

    def key(self, attributes: AttributeSet) -> str:
        return "*".join([f"{family.key}/{size}" for family, size in self._sized(attributes)])

    def queries(self, attributes: AttributeSet) -> Floats:
        array = kron([family.matrix(size) for family, size in self._sized(attributes)])
        return array.reshape(-1, *self.domain.shape(attributes))

    def chunks(self, attributes: AttributeSet) -> Iterator[Floats]:
        return in_chunks(self.queries(attributes))

    def basis(self, attributes: AttributeSet) -> Floats | None:
        return None

    def answers(self, attributes: AttributeSet, marginal: Floats) -> Floats:
        for axis, family in enumerate(self.families(attributes)):
            marginal = family.answers(marginal, axis)
        return marginal

    def batch_answers(self, attributes: AttributeSet, marginals: Floats) -> Floats:
        for axis, family in enumerate(self.families(attributes)):
            marginals = family.answers(marginals, axis + 1)
        return marginals

    def squared_norm(self, attributes: AttributeSet) -> float:
        return math.prod(family.trace(size) for family, size in self._sized(attributes))

    def mean_entry(self, attributes: AttributeSet) -> float:
        return math.prod(
            family.entry_sum(size) / (family.count(size) * size) for family, size in self._sized(attributes)
        )

    def largest_entries(self, attributes: AttributeSet) -> Floats:
        """Return the products of the largest entries of the axes, at least LEAST_ENTRY; a scalar 1 if all are 1."""
        # None: the largest entry of each query of the family is 1
        largest = [(family.largest(size), family.count(size)) for family, size in self._sized(attributes)]
        if all(entries is None for entries, _ in largest):
            return np.ones(())
        axes = [np.ones(count) if entries is None else entries for entries, count in largest]
        return np.maximum(reduce(np.multiply.outer, axes), LEAST_ENTRY)

    def _sized(self, attributes: AttributeSet) -> zip[tuple[Family, int]]:
        return zip(self.families(attributes), self.domain.shape(attributes), strict=True)


class ArrayQueries:
    """Methods of queries that are given as an array, in terms of `queries` and `query_weights`."""

    factorizes = False
    axis_families: tuple[Family, ...] = ()

    @abstractmethod
    def queries(self, attributes: AttributeSet) -> Floats: ...
    @abstractmethod
    def query_weights(self, attributes: AttributeSet) -> Floats: ...

    def chunks(self, attributes: AttributeSet) -> Iterator[Floats]:
        return in_chunks(self.queries(attributes))

    def families(self, attributes: AttributeSet) -> tuple[Family, ...]:
        return ()

    def role(self, attribute: str) -> int:
        return 0

    def answers(self, attributes: AttributeSet, marginal: Floats) -> Floats:
        flat = marginal.reshape(-1)
        return np.concatenate([queries.reshape(len(queries), -1) @ flat for queries in self.chunks(attributes)])

    def batch_answers(self, attributes: AttributeSet, marginals: Floats) -> Floats:
        return np.stack([self.answers(attributes, marginal) for marginal in marginals])

    def squared_norm(self, attributes: AttributeSet) -> float:
        squares = [(queries.reshape(len(queries), -1) ** 2).sum(axis=1) for queries in self.chunks(attributes)]
        return float((self.query_weights(attributes) * np.concatenate(squares)).sum())

    def mean_entry(self, attributes: AttributeSet) -> float:
        sizes = next(iter(self.chunks(attributes))).shape[1:]
        return float(np.abs(self.answers(attributes, np.full(sizes, 1 / math.prod(sizes)))).mean())

    def largest_entries(self, attributes: AttributeSet) -> Floats:
        largest = [np.abs(queries).reshape(len(queries), -1).max(axis=1) for queries in self.chunks(attributes)]
        return np.maximum(np.concatenate(largest), LEAST_ENTRY)


@dataclass(frozen=True)
class JointPart(_FamilyPart, ArrayQueries):
    """Joint family over each of `sets`; every query of a set has that set's weight."""

    family: JointFamily

    ends = ()

    @property
    def pooled(self) -> bool:
        return self.family.pools(len(self.sets))

    @property
    def invariant(self) -> bool:
        return self.family.invariant

    @property
    def exchangeable(self) -> bool:
        return self.family.exchangeable

    def key(self, attributes: AttributeSet) -> str:
        shape = "x".join(map(str, self.domain.shape(attributes)))
        return "/".join([self.name, shape, *map(repr, self.family.parameters.values())])

    def queries(self, attributes: AttributeSet) -> Floats:
        return self.family.queries(self.domain.shape(attributes))

    def chunks(self, attributes: AttributeSet) -> Iterator[Floats]:
        return self.family.chunks(self.domain.shape(attributes))

    def basis(self, attributes: AttributeSet) -> Floats | None:
        return self.family.levels(self.domain.shape(attributes))

    def count(self, attributes: AttributeSet) -> int:
        return self.family.count(self.domain.shape(attributes))

    def label_families(self, attributes: AttributeSet) -> tuple[Family, ...]:
        return ()


def part_of(
    family: QueryFamily, domain: Domain, sets: tuple[AttributeSet, ...], weights: tuple[float, ...]
) -> WorkloadPart:
    """Return the queries of a family over attribute sets, with one weight per set.

    Raises
    ------
    JobError
        If the family is not defined on a set, or a parameter is missing.
    """
    checked = family.checked_for(domain, sets)
    if isinstance(checked, ProductFamily):
        units = [math.prod(checked.axis(name).unit_weight for name in names) for names in sets]
        return ProductPart(
            domain=domain,
            family=checked,
            sets=sets,
            weights=tuple(w * unit for w, unit in zip(weights, units, strict=True)),
        )
    assert isinstance(checked, JointFamily)
    return JointPart(domain=domain, family=checked, sets=sets, weights=weights)


def sets_digest(sets: Sequence[AttributeSet], weights: Sequence[float]) -> str:
    """Return the SHA-256 of attribute sets and their weights; there may be a million sets."""
    digest = hashlib.sha256(np.fromiter(map(len, sets), "<i8", len(sets)).tobytes())
    digest.update("\0".join(chain.from_iterable(sets)).encode())
    digest.update(np.array(weights, "<f8").tobytes())
    return digest.hexdigest()
