"""Products of listed queries: one matrix W_a of queries for every attribute a, and the queries ⊗ W_a (HDMM, section 4).

A row of W_a is usually the 0/1 vector of a predicate; any finite numbers are accepted. Nothing is built on the product
of the axes: as for other product families, Gram matrices, traces and errors are products of those of the axes, and the
largest array is a Gram matrix of one axis. A union of products is a workload of several such parts.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from pydantic import PrivateAttr

from dpscale.base.display import safe_repr
from dpscale.base.errors import JobError
from dpscale.base.numerics import AttributeSet, Floats, Integers
from dpscale.base.settings import setting
from dpscale.domain import Domain
from dpscale.domain.attribute import Attribute
from dpscale.workload.family import End, Family, ProductFamily
from dpscale.workload.one_way import MARGINAL
from dpscale.workload.predicates import FIELD, cell_predicate, query_matrix, range_predicate

PREDICATE = End("predicate", "", "predicate that the query counts on this attribute", True)
IDENTITY, TOTAL = "identity", "total"
SUFFIX = ".npy"
LABEL = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"  # it becomes the name of a folder
MOST_ENTRIES = 1 << 26  # of one matrix


class ListedQueries(Family):
    """One-way queries given by their matrix."""

    name = "listed"
    digest: str
    size: int
    _array: Floats = PrivateAttr()

    @classmethod
    def of(cls, array: Floats) -> ListedQueries:
        """Return the family of a matrix, shape (m, n)."""
        content = np.ascontiguousarray(array, np.float64) + 0.0  # no negative zeros
        made = cls(digest=hashlib.sha256(repr(content.shape).encode() + content.tobytes()).hexdigest(),
                   size=content.shape[1])  # fmt: skip
        made._array = content
        return made

    @property
    def parameters(self) -> dict[str, Any]:
        return {"sha256": self.digest}

    @cached_property
    def are_predicates(self) -> bool:
        """Whether all entries are 0 or 1."""
        return bool(np.isin(self._array, (0, 1)).all())

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


class _Named(Family):
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


class Product(ProductFamily):
    """All products of the queries that are listed for each attribute.

    Attributes
    ----------
    predicates : mapping
        Queries of each attribute, as given.
    label : str
        Name of the queries in tables and stored results.
    """

    name: ClassVar[str] = "product"

    predicates: Mapping[str, Any] | None = setting(
        None, "a table with queries for every attribute", "family, predicates or matrix file of each attribute"
    )
    label: str | None = setting(None, "a name", "name of the queries in tables and results", pattern=LABEL)
    _by: dict[str, Family] = PrivateAttr(default_factory=dict)
    _named: dict[str, _Named] = PrivateAttr(default_factory=dict)

    @property
    def title(self) -> str:
        return self.label or self.name

    @property
    def parameters(self) -> dict[str, Any]:
        texts = [(name, one.listed) for name, one in self._named.items()]
        return {"label": self.title, "queries": {name: family.key for name, family in self._by.items()},
                "predicates": hashlib.sha256(repr(texts).encode()).hexdigest()}  # fmt: skip

    @property
    def axes(self) -> tuple[Family, ...]:
        return tuple(dict.fromkeys([*self._by.values(), MARGINAL]))

    def axis(self, attribute: str) -> Family:
        return self._by.get(attribute, MARGINAL)

    def label_axis(self, attribute: str) -> Family:
        return self._named[attribute]

    @property
    def ends(self) -> tuple[End, ...]:
        return (PREDICATE,)

    def distinct(self, names: Collection[str]) -> Product:
        if self.label is not None:
            return self
        numbers = itertools.count(2)
        label = self.name
        while label in names:
            label = f"{self.name}-{next(numbers)}"
        return self.model_copy(update={"label": label})

    def own_sets(self, domain: Domain) -> tuple[AttributeSet, ...]:
        given = self._given()
        return (domain.ordered([name for name, queries in given.items() if not _is_total(queries)]),)

    def checked_for(self, domain: Domain, sets: Sequence[AttributeSet]) -> Product:
        given, made = self._given(), Product(predicates=self.predicates, label=self.label)
        for name in dict.fromkeys(name for names in sets for name in names):
            if name not in given:
                raise JobError(FIELD, f"none for attribute {name!r}", "queries for every attribute", "add them")
            made._by[name], texts = axis_queries(given[name], domain, name)
            made._named[name] = _Named(listed=tuple(texts))
        return made

    def _given(self) -> Mapping[str, Any]:
        if not self.predicates:
            raise JobError(FIELD, "missing", "a table with queries for every attribute",
                           'write predicates = { age = ["age in 18..64"], sex = "identity" }')  # fmt: skip
        return self.predicates


def factored(products: Sequence[Mapping[str, tuple[str, ...]]]) -> list[dict[str, tuple[str, ...]]]:
    """Return fewer products with the same queries: those that differ on one attribute are joined, until none are.

    Parameters
    ----------
    products : sequence of mapping of str to tuple of str
        Predicates of every attribute, in domain order.
    """
    found, before = [dict(one) for one in products], len(products) + 1
    while len(found) < before:
        before = len(found)
        for name in dict.fromkeys(name for one in found for name in one):
            found = _joined(found, name)
    return found


def _joined(products: Sequence[dict[str, tuple[str, ...]]], name: str) -> list[dict[str, tuple[str, ...]]]:
    """Return the products with those joined that have an attribute and equal predicates on the others."""
    joined: dict[object, dict[str, tuple[str, ...]]] = {}
    for number, one in enumerate(products):
        others = tuple((other, own) for other, own in one.items() if other != name) if name in one else number
        if others in joined:
            joined[others][name] += one[name]
        else:
            joined[others] = dict(one)
    return list(joined.values())


def is_array_file(queries: Any) -> bool:
    """Return whether the queries of an attribute are given as the path of an array file."""
    return isinstance(queries, str) and queries.endswith(SUFFIX)


def _is_total(queries: Any) -> bool:
    return isinstance(queries, str) and queries == TOTAL


def axis_queries(given: Any, domain: Domain, name: str) -> tuple[Family, Sequence[str]]:
    """Return the queries of one attribute as a family, and a text for each.

    Parameters
    ----------
    given : Family, str, array_like or sequence of str
        A one-way family or its name, "identity", one or several predicates, a matrix of shape (m, n), or the path of an
        array file (.npy) of such a matrix.
    domain : Domain
    name : str
        Attribute.

    Raises
    ------
    JobError
        If the queries are none of these, or do not fit the attribute.
    """
    if is_array_file(given):
        given = _from_file(given, name)
    elif isinstance(given, str):
        family = _one_way(given)
        given = [given] if family is None else family
    if isinstance(given, Family):
        return given, _family_texts(given, domain, name)
    if isinstance(given, list | tuple) and given and all(isinstance(text, str) for text in given):
        return ListedQueries.of(query_matrix(given, domain, name)), [text.strip() for text in given]
    matrix = _checked_matrix(given, domain[name].size, name)
    return ListedQueries.of(matrix), [f"{name}: query {number}" for number in range(len(matrix))]


def _one_way(text: str) -> Family | None:
    """Return the one-way family with a name, or None."""
    from dpscale.workload.families import one_way_family

    return MARGINAL if text == IDENTITY else one_way_family(text)


def _from_file(path: str, name: str) -> Floats:
    try:
        return np.asarray(np.load(path, allow_pickle=False))
    except (OSError, ValueError):
        raise JobError(f"{FIELD}.{name}", f"{safe_repr(path)}, which cannot be read", f"an array file ({SUFFIX})",
                       "save it with numpy") from None  # fmt: skip


def _checked_matrix(given: Any, size: int, name: str) -> Floats:
    takes = f"a family, predicates, or finite numbers of shape (m, {size})"
    try:
        array = np.asarray(given, np.float64)
    except (TypeError, ValueError):
        raise JobError(f"{FIELD}.{name}", safe_repr(given), takes, "fix it") from None
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
    return [_arc(attribute, first, last) for first, last in zip(*(one.tolist() for one in bounds), strict=True)]


def _arc(attribute: Attribute, first: int, last: int) -> str:
    """Return the predicate of the cells from `first` to `last`, which may pass the end of the axis."""
    if first <= last:
        return range_predicate(attribute, first, last)
    ends = (range_predicate(attribute, first, attribute.size - 1), range_predicate(attribute, 0, last))
    return " or ".join(ends)
