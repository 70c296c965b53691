"""Listed queries: a matrix W_a for every attribute a of a product ⊗ W_a (HDMM, section 4), or an array over one set.

A row of W_a is usually the 0/1 vector of a predicate; any finite numbers are accepted. Nothing is built on the product
of the axes: as for other product families, Gram matrices, traces and errors are products of those of the axes, and the
largest array is a Gram matrix of one axis. A union of products is a workload of several such parts. An array has a
value for every cell of its attribute set.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from pydantic import PrivateAttr

from dpscale.base.display import safe_repr
from dpscale.base.errors import JobError
from dpscale.base.numerics import AttributeSet, Floats, Integers
from dpscale.domain import Domain
from dpscale.domain.attribute import Attribute
from dpscale.workload.family import End, Family
from dpscale.workload.parts import ArrayQueries, WorkloadPart, unit_of
from dpscale.workload.predicates import FIELD, cell_predicate, query_matrix, range_predicate

PREDICATE = End(
    column="predicate", suffix="", description="predicate that the query counts on this attribute", is_text=True
)
TOTAL = "total"
SUFFIX = ".npy"
LABEL = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"  # it becomes the name of a folder
MOST_ENTRIES = 1 << 26  # of one matrix or array


class ListedQueries(Family):
    """One-way queries given by their matrix."""

    name = "listed"
    digest: str
    _array: Floats = PrivateAttr()

    @classmethod
    def of(cls, array: Floats) -> ListedQueries:
        """Return the family of a matrix, shape (m, n)."""
        content = np.ascontiguousarray(array, np.float64) + 0.0  # no negative zeros
        queries = cls(digest=hashlib.sha256(repr(content.shape).encode() + content.tobytes()).hexdigest())
        queries._array = content
        return queries

    @property
    def parameters(self) -> dict[str, Any]:
        return {"sha256": self.digest}

    @property
    def are_counts(self) -> bool:
        return bool(np.isin(self._array, (0, 1)).all())

    @property
    def vanishes(self) -> bool:
        return not self._array.any()

    @property
    def is_integral(self) -> bool:
        return bool(np.array_equal(self._array, np.rint(self._array)) and np.abs(self._array).max(initial=0) < 1 << 10)

    def count(self, size: int) -> int:
        return len(self._array)

    def matrix(self, size: int) -> Floats:
        return self._array

    def answers(self, values: Floats, axis: int) -> Floats:
        return np.moveaxis(np.tensordot(self._array, values, axes=(1, axis)), 0, axis)

    def bounds(self, size: int) -> tuple[Integers, ...]:
        return (np.arange(len(self._array)),)

    def trace(self, size: int) -> float:
        return float((self._array**2).sum())

    def entry_sum(self, size: int) -> float:
        return float(np.abs(self._array.sum(axis=1)).sum())

    def largest(self, size: int) -> Floats:
        return np.asarray(np.abs(self._array).max(axis=1))


class QueryTexts(Family):
    """Queries of one attribute as their predicates name them."""

    name = "named"
    ends = (PREDICATE,)
    listed: tuple[str, ...]

    @property
    def texts(self) -> tuple[str, ...]:
        return self.listed

    def count(self, size: int) -> int:
        return len(self.listed)

    def answers(self, values: Floats, axis: int) -> Floats:
        raise NotImplementedError("the queries of another family are named, not answered")

    def bounds(self, size: int) -> tuple[Integers, ...]:
        return (np.arange(len(self.listed)),)


class NamedQueries(NamedTuple):
    """Queries of one attribute with a text for each."""

    family: Family
    texts: QueryTexts


Predicates = Mapping[str, tuple[str, ...]]  # of every attribute of a product of queries


def factored(products: Sequence[Predicates]) -> list[Predicates]:
    """Return fewer products with the same queries: those that differ on one attribute are joined, until none are.

    Parameters
    ----------
    products : sequence of mapping of str to tuple of str
        Predicates of every attribute, in domain order.
    """
    joined, before = list(products), len(products) + 1
    while len(joined) < before:
        before = len(joined)
        for name in dict.fromkeys(name for product in joined for name in product):
            joined = _joined_along(name, joined)
    return joined


def _joined_along(name: str, products: Sequence[Predicates]) -> list[Predicates]:
    """Return products in which those with equal predicates on all attributes but `name` are one.

    The predicates on `name` are then those of the joined products together. Products without it are unchanged.

    The key `others` has the predicates on all other attributes, so products with equal ones are found.
    """
    joined = dict[object, Predicates]()
    for number, product in enumerate(products):
        if name not in product:
            joined[number] = product
            continue

        others = tuple((other, predicates) for other, predicates in product.items() if other != name)
        before = joined.get(others, {name: ()})
        joined[others] = {**product, name: before[name] + product[name]}

    return list(joined.values())


def is_array_file(queries: Any) -> bool:
    """Return whether the queries of an attribute are given as the path of an array file."""
    return isinstance(queries, str) and queries.endswith(SUFFIX)


def axis_queries(
    given: Any, domain: Domain, name: str, one_way: Callable[[str], Family | None]
) -> tuple[Family, QueryTexts]:
    """Return the queries of one attribute as a family, and a text for each.

    Parameters
    ----------
    given : Family, str, array_like or sequence of str
        A one-way family or its name, "identity", one or several predicates, a matrix of shape (m, n), or the path of an
        array file (.npy) of such a matrix.
    domain : Domain
    name : str
        Attribute.
    one_way : callable
        Returns the one-way family with a name, or None.

    Returns
    -------
    family : Family
    texts : QueryTexts

    Raises
    ------
    JobError
        If the queries are none of these, or do not fit the attribute.
    """
    if is_array_file(given):
        given = _from_file(given, name)
    elif isinstance(given, str):
        given = one_way(given) or [given]

    if isinstance(given, Family):
        return given, _named(_family_texts(given, domain, name))
    if isinstance(given, list | tuple) and given and all(isinstance(text, str) for text in given):
        return ListedQueries.of(query_matrix(given, domain, name)), _named([text.strip() for text in given])

    matrix = _checked_matrix(given, domain[name].size, name)
    return ListedQueries.of(matrix), _named([f"{name}: query {number}" for number in range(len(matrix))])


def _named(texts: Sequence[str]) -> QueryTexts:
    return QueryTexts(listed=tuple(texts))


def _from_file(path: str, name: str) -> Floats:
    """Return the array in a file of NumPy; `name` is the attribute. Raises JobError if it cannot be read."""
    try:
        return np.asarray(np.load(path, allow_pickle=False))
    except (OSError, ValueError):
        raise JobError(f"{FIELD}.{name}", f"{safe_repr(path)}, which cannot be read", f"an array file ({SUFFIX})",
                       "save it with numpy") from None  # fmt: skip


def _checked_matrix(matrix: Any, size: int, name: str) -> Floats:
    """Return given queries as an array of finite numbers, shape (m, size); raise JobError for anything else."""
    takes = f"a family, predicates, or finite numbers of shape (m, {size})"
    try:
        array = np.asarray(matrix, np.float64)
    except (TypeError, ValueError):
        raise JobError(f"{FIELD}.{name}", safe_repr(matrix), takes, "fix it") from None

    if array.ndim != 2 or array.shape[1] != size or not len(array) or not np.isfinite(array).all():
        raise JobError(f"{FIELD}.{name}", f"an array of shape {array.shape}", takes, "use one column per cell")
    if array.size > MOST_ENTRIES:
        raise JobError(f"{FIELD}.{name}", f"{array.size} entries", f"at most {MOST_ENTRIES}", "use fewer queries")
    return array


def _family_texts(family: Family, domain: Domain, name: str) -> list[str]:
    """Return the predicate of every query of a one-way family."""
    attribute = domain[name]
    bounds = family.bounds(attribute.size)
    if family.is_identity:
        return [cell_predicate(attribute, cell) for cell in bounds[0].tolist()]
    if len(bounds) == 1:
        return [range_predicate(attribute, 0, last) for last in bounds[0].tolist()]
    return [_arc(attribute, first, last) for first, last in zip(*(bound.tolist() for bound in bounds), strict=True)]


def _arc(attribute: Attribute, first: int, last: int) -> str:
    """Return the predicate of the cells from `first` to `last`, which may pass the end of the axis."""
    if first <= last:
        return range_predicate(attribute, first, last)
    ends = (range_predicate(attribute, first, attribute.size - 1), range_predicate(attribute, 0, last))
    return " or ".join(ends)


@dataclass(frozen=True, eq=False)
class ExplicitPart(ArrayQueries):
    """Arbitrary linear queries over one attribute set.

    Attributes
    ----------
    domain : Domain
    attributes : AttributeSet
    array : ndarray, shape (m, n_a, n_b, …)
        The queries.
    each : ndarray, shape (m,)
        Weights of the queries.
    origin : WorkloadPart, optional
        Part whose queries these are, if they are those of a family with individual weights.
    title : str
        Name, if there is no such part.
    query_texts : tuple of str
        Predicates of the queries; empty if they are numbered.
    """

    domain: Domain
    attributes: AttributeSet
    array: Floats
    each: Floats
    origin: WorkloadPart | None = None
    title: str = "array"
    query_texts: tuple[str, ...] = ()

    weights, by_shape, statistic = (1.0,), False, None

    @property
    def name(self) -> str:
        return self.title if self.origin is None else self.origin.name

    @property
    def sets(self) -> tuple[AttributeSet, ...]:
        return (self.attributes,)

    @property
    def linear(self) -> WorkloadPart:
        return self

    def extended(self, attributes: AttributeSet) -> AttributeSet:
        return attributes if self.origin is None else self.origin.extended(attributes)

    def on(self, domain: Domain) -> WorkloadPart:
        """Return the part on another domain; the queries of an `origin` are computed again for the new cells."""
        if self.origin is None:
            return replace(self, domain=domain)
        origin = self.origin.on(domain)
        return replace(self, domain=domain, array=origin.queries(self.attributes), origin=origin)

    def unit(self, attributes: AttributeSet) -> str:
        return unit_of(self.domain, attributes)

    def shown(self, attributes: AttributeSet) -> AttributeSet:
        return attributes if self.origin is None else self.origin.shown(attributes)

    @property
    def ends(self) -> tuple[End, ...]:
        return () if self.origin is None else self.origin.ends

    @property
    def are_counts(self) -> bool:
        return bool(np.isin(self.array, (0, 1)).all())

    @property
    def cumulative(self) -> bool:
        return self.origin is not None and self.origin.cumulative

    @property
    def pooled(self) -> bool:
        return self.origin is not None and self.origin.pooled

    @property
    def invariant(self) -> bool:
        return self.origin is not None and self.origin.invariant

    @property
    def exchangeable(self) -> bool:
        return self.origin is not None and self.origin.exchangeable

    @property
    def set_weights(self) -> tuple[float, ...]:
        return (float(self.each.max(initial=0)),)

    @property
    def weighs(self) -> bool:
        return bool(((self.each > 0) & self.array.reshape(len(self.array), -1).any(axis=1)).any())

    @property
    def lists_queries(self) -> bool:
        return self.origin is None

    def label_families(self, attributes: AttributeSet) -> tuple[Family, ...]:
        return () if self.origin is None else self.origin.label_families(attributes)

    def key(self, attributes: AttributeSet) -> str:
        return f"array/{self.digest}"

    def queries(self, attributes: AttributeSet) -> Floats:
        return self.array

    def query_weights(self, attributes: AttributeSet) -> Floats:
        return self.each

    def basis(self, attributes: AttributeSet) -> Floats | None:
        """Return the queries with positive weight, which span the Gram matrix, if they are integers and few.

        Few means fewer than cells, so that they do not span everything; entries below 1,024 keep integer products
        exact.
        """
        array = self.array[self.each > 0]
        flat = array.reshape(len(array), -1)
        is_integer = np.array_equal(array, np.rint(array)) and np.abs(array).max(initial=0) < 1 << 10
        return array if is_integer and len(flat) < flat.shape[1] else None

    def count(self, attributes: AttributeSet) -> int:
        return len(self.array)

    @property
    def counts(self) -> list[int]:
        return [len(self.array)]

    def scaled(self, factor: float) -> WorkloadPart:
        return replace(self, each=self.each * factor)

    def mask(self, values: Floats) -> Floats:
        return np.where(self.each > 0, values, np.nan)

    @cached_property
    def digest(self) -> str:
        content = np.ascontiguousarray(self.array).tobytes() + np.ascontiguousarray(self.each).tobytes()
        return hashlib.sha256(repr(self.array.shape).encode() + content).hexdigest()

    def describe(self) -> dict[str, Any]:
        texts = {"predicates": list(self.query_texts)} if self.query_texts else {}
        return {"family": self.title, "sets": [list(self.attributes)], "sha256": self.digest, **texts}


def reweighted(part: WorkloadPart, attributes: AttributeSet, each: Floats) -> ExplicitPart:
    """Return a set of a part whose queries are no products, the weight of each query times a number, shape (m,)."""
    if isinstance(part, ExplicitPart):
        return replace(part, each=part.each * each)
    return weighted(replace(part, sets=(attributes,), weights=(1.0,)), each)  # type: ignore[call-arg, type-var]


def weighted(part: WorkloadPart, each: Floats) -> ExplicitPart:
    """Return a family over one set as explicit queries with one weight each, in the order of its answers."""
    (attributes,) = part.sets
    count, cells = part.count(attributes), part.domain.cells(attributes)
    if each.shape != (count,):
        got = f"{each.size} weights for {', '.join(attributes)}"
        raise JobError("workload.weight", got, f"one for each of its {count} queries", "fix it")
    if count * cells > MOST_ENTRIES:
        raise JobError("workload.weight", f"separate weights for {count} queries on {cells} cells",
                       f"at most {MOST_ENTRIES} entries", "use one weight for the set")  # fmt: skip
    return ExplicitPart(
        domain=part.domain, attributes=attributes, array=part.queries(attributes), each=each, origin=part
    )
