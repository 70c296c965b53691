"""Joint and mixed families of dpscale, and the table of all families, to which other distributions add theirs."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from pydantic import PrivateAttr

from dpscale.base.errors import JobError
from dpscale.base.numerics import AttributeSet, Floats, Integers
from dpscale.base.plugins import all_names, distribution_of, load
from dpscale.base.settings import checked, setting
from dpscale.domain import Domain
from dpscale.workload.family import CHUNK_ENTRIES, End, Family, JointFamily, ProductFamily, QueryFamily, Shape
from dpscale.workload.listed import LABEL, PREDICATE, TOTAL, NamedQueries, QueryTexts, axis_queries
from dpscale.workload.one_way import CIRCULAR, MARGINAL, PREFIX, RANGE
from dpscale.workload.predicates import FIELD
from dpscale.workload.sums import MeanQueries, MomentQueries, SumQueries, VarianceQueries, number_queries


class Affine(JointFamily):
    """x + y ≤ c for every c; pairs only."""

    name = "affine"
    degree = 2
    exchangeable = True

    def count(self, shape: Shape) -> int:
        return shape[0] + shape[1] - 1

    def level(self, shape: Shape) -> Integers:
        """Return the level c of every cell, from which on the queries contain it."""
        return np.add.outer(np.arange(shape[0]), np.arange(shape[1]))

    def queries(self, shape: Shape) -> Floats:
        return _sublevels(self, shape)

    def chunks(self, shape: Shape) -> Iterator[Floats]:
        """Return an iterator over queries in arrays of at most CHUNK_ENTRIES entries.

        Query i has the cells whose level is at most cut i.

        The level of a cell is the first cut whose query contains it.
        """
        count, step = self.count(shape), max(1, CHUNK_ENTRIES // math.prod(shape))
        if count <= step:
            return iter([self.queries(shape)])
        level = self.level(shape)
        cuts = (np.arange(start, min(start + step, count)) for start in range(0, count, step))
        return ((level <= cut[:, None, None]).astype(np.float64) for cut in cuts)

    def levels(self, shape: Shape) -> Floats:
        return _levels(self, shape)


class Abs(Affine):
    """|x − y| ≤ c for every c; pairs only."""

    name = "abs"

    def count(self, shape: Shape) -> int:
        return max(shape)

    def level(self, shape: Shape) -> Integers:
        return np.abs(np.subtract.outer(np.arange(shape[0]), np.arange(shape[1])))


class Random(JointFamily):
    """Random 0/1 queries, three for each cell."""

    name = "random"
    invariant = True
    most_kinds: ClassVar[int] = 24

    p: float = setting(0.3, "a number between 0 and 1", "probability that a query contains a cell", gt=0, lt=1)
    seed: int = setting(0, "a whole number, 0 or more", "seed of the queries", ge=0)

    def count(self, shape: Shape) -> int:
        return 3 * math.prod(shape)

    def queries(self, shape: Shape) -> Floats:
        return _random_queries(self, shape)

    def pools(self, sets: int) -> bool:
        return sets > self.most_kinds


@lru_cache(maxsize=16)
def _random_queries(family: Random, shape: Shape) -> Floats:
    family.check_size(shape)
    draws = np.random.default_rng([family.seed, *shape]).random((family.count(shape), *shape))
    return (draws < family.p).astype(np.float64)


@lru_cache(maxsize=16)
def _sublevels(family: Affine, shape: Shape) -> Floats:
    family.check_size(shape)
    cuts = np.arange(family.count(shape)).reshape(-1, *[1] * len(shape))
    return np.asarray(family.level(shape) <= cuts, dtype=np.float64)


@lru_cache(maxsize=64)
def _levels(family: Affine, shape: Shape) -> Floats:
    family.check_size(shape)
    cuts = np.arange(family.count(shape)).reshape(-1, *[1] * len(shape))
    return np.asarray(family.level(shape) == cuts, dtype=np.float64)


class Hybrid(ProductFamily):
    """Prefix queries on the attributes in `numeric`, and the cells of the others."""

    name = "hybrid"

    numeric: tuple[str, ...] | None = setting(None, "a list of names", "attributes with prefix queries")

    @property
    def ends(self) -> tuple[End, ...]:
        return MARGINAL.ends

    @property
    def axes(self) -> tuple[Family, ...]:
        return MARGINAL, PREFIX

    def axis(self, attribute: str) -> Family:
        return PREFIX if attribute in (self.numeric or ()) else MARGINAL

    def checked_for(self, domain: Domain, sets: Sequence[AttributeSet]) -> Hybrid:
        if self.numeric is None:
            raise JobError("workload.numeric", "missing", f"the numeric attributes, for family {self.name}", "add it")
        return Hybrid(numeric=tuple(sorted(domain.ordered(self.numeric))))


class ProductQueries(ProductFamily):
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
    _named: dict[str, QueryTexts] = PrivateAttr(default_factory=dict)

    @property
    def title(self) -> str:
        return self.label or self.name

    @property
    def parameters(self) -> dict[str, Any]:
        texts = [(name, of_attribute.listed) for name, of_attribute in self._named.items()]
        return {"label": self.title, "queries": {name: family.key for name, family in self._by.items()},
                "predicates": hashlib.sha256(repr(texts).encode()).hexdigest()}  # fmt: skip

    @property
    def stated(self) -> dict[str, Any]:
        return {"label": self.title, "predicates": self._given()}

    @property
    def axes(self) -> tuple[Family, ...]:
        return tuple(dict.fromkeys([*self._by.values(), MARGINAL]))

    def axis(self, attribute: str) -> Family:
        return self._by.get(attribute, MARGINAL)

    def label_axis(self, attribute: str) -> Family:
        return self._named[attribute]

    def mapped(self, change: Callable[[str, Family], Family]) -> ProductQueries:
        """Return the products of other queries of the attributes, with the same names.

        `change` gets the name of an attribute and its queries. The names of queries (`_named`) stay the same.
        """
        mapped = ProductQueries(predicates=self.predicates, label=self.label)
        mapped._by = {name: change(name, family) for name, family in self._by.items()}
        mapped._named = self._named
        return mapped

    @property
    def ends(self) -> tuple[End, ...]:
        return (PREDICATE,)

    def distinct(self, names: Collection[str]) -> ProductQueries:
        """Return the family with a label that is not among `names`: its name, with the first free number from 2."""
        if self.label is not None:
            return self
        numbers = itertools.count(2)
        label = self.name
        while label in names:
            label = f"{self.name}-{next(numbers)}"
        return self.model_copy(update={"label": label})

    def own_sets(self, domain: Domain) -> tuple[AttributeSet, ...]:
        total = {name for name, queries in self._given().items() if isinstance(queries, str) and queries == TOTAL}
        return (domain.ordered([name for name in self._given() if name not in total]),)

    def checked_for(self, domain: Domain, sets: Sequence[AttributeSet]) -> ProductQueries:
        """Return the family with the queries of each attribute of `sets`; refuse attributes without any.

        `_named` has the texts of the queries, `_by` the queries by attribute.
        """
        check_label(self.title)
        given, checked = self._given(), ProductQueries(predicates=self.predicates, label=self.label)
        for name in dict.fromkeys(name for names in sets for name in names):
            if name not in given:
                raise JobError(FIELD, f"none for attribute {name!r}", "queries for every attribute", "add them")
            queries = given[name]
            if not isinstance(queries, NamedQueries):
                queries = number_queries(queries, domain, name) or axis_queries(queries, domain, name, _named_family)
            checked._by[name], checked._named[name] = queries
        return checked

    def _given(self) -> Mapping[str, Any]:
        """Return the queries of each attribute. Raises JobError if there are none."""
        if not self.predicates:
            raise JobError(FIELD, "missing", "a table with queries for every attribute",
                           'write predicates = { age = ["age in 18..64"], sex = "identity" }')  # fmt: skip
        return self.predicates


def check_label(label: str) -> None:
    """Raise JobError for a label that answers of other columns have: a family's name, or one that ends in JOINT."""
    if label.endswith(JOINT) or label in set(family_names()) - {ProductQueries.name}:
        raise JobError("workload.label", f"{label!r}", f"a name that is no family and does not end in {JOINT}",
                       "choose another one")  # fmt: skip


def _named_family(name: str) -> Family | None:
    return MARGINAL if name == CELLS else one_way_family(name)


FAMILIES: dict[str, QueryFamily] = {
    one.name: one
    for one in (
        MARGINAL,
        PREFIX,
        RANGE,
        CIRCULAR,
        Affine(),
        Abs(),
        Random(),
        Hybrid(),
        ProductQueries(),
        SumQueries(),
        MeanQueries(),
        VarianceQueries(),
        MomentQueries(),
    )
}
GROUP = "dpscale.families"
JOINT = "-joint"  # ends the label of conditions that are no conjunctions
CELLS = "identity"  # another name of the cells, for the queries of an attribute


def family_names() -> list[str]:
    """Return the names of all families, those of other distributions last."""
    return list(all_names(GROUP, dict.fromkeys(FAMILIES, "")))


def family_named(name: str, parameters: Mapping[str, Any] | None = None) -> QueryFamily:
    """Return the family with a name in the table, or registered by another distribution.

    Parameters
    ----------
    name : str
    parameters : mapping, optional
        Parameters of the family. Those not given have their defaults.

    Raises
    ------
    JobError
        If the name or a parameter is unknown, or a value is invalid.
    """
    family: QueryFamily = FAMILIES.get(name) or load(GROUP, dict.fromkeys(FAMILIES, ""), name, "", "workload.family")
    for parameter in parameters or {}:
        owners = [other.name for other in FAMILIES.values() if parameter in type(other).model_fields]
        if owners and parameter not in type(family).model_fields:
            raise JobError(
                f"workload.{parameter}", f"given for family {name!r}", f"family {' or '.join(owners)} only", "remove it"
            )
    return checked(type(family), parameters, "workload", f"family {name}") if parameters else family


def one_way_family(name: str | None) -> Family | None:
    """Return the one-way family with a name, by default the cells; None if there is none."""
    family = family_named(name) if name in family_names() else None
    return MARGINAL if name is None else family if isinstance(family, Family) else None


def family_distribution(name: str) -> str:
    """Return name and version of the distribution that registers a family; "" for those of dpscale."""
    return distribution_of(GROUP, dict.fromkeys(FAMILIES, ""), name)
