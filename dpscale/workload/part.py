"""Interface of a part of a workload over attribute sets. Other packages do not ask which class a part has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from dpscale.base.numerics import AttributeSet, Floats
from dpscale.domain import Domain
from dpscale.workload.family import Family
from dpscale.workload.query_family import End, Statistic


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

    def query_weights(self, attributes: AttributeSet) -> Floats:
        """Return the weights of the queries, shape (m,)."""

    def basis(self, attributes: AttributeSet) -> Floats | None:
        """Return integer arrays that span the queries and are fewer than the cells; None if there are none."""

    def answers(self, attributes: AttributeSet, marginal: Floats) -> Floats:
        """Return the answers of all queries over a set from its (estimated) marginal."""

    def batch_answers(self, attributes: AttributeSet, marginals: Floats) -> Floats:
        """Return the answers from a batch of marginals, shape (batch, …)."""

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
