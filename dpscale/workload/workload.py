"""Workload: the union of the query families, products and arrays that a user requests.

A *part* has the queries of one family over some attribute sets, with a weight for each set, or an array of queries over
one set.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from dpscale.base.display import glance, nearest, safe_repr, type_of_value
from dpscale.base.errors import DomainError, JobError
from dpscale.base.numerics import AttributeSet, Floats
from dpscale.domain import Domain
from dpscale.workload.families import JOINT, ProductQueries, check_label, family_named
from dpscale.workload.family import QueryFamily
from dpscale.workload.listed import TOTAL, ExplicitPart, factored, weighted
from dpscale.workload.one_way import MARGINAL
from dpscale.workload.parts import WorkloadPart, part_of
from dpscale.workload.predicates import check_countable, read_conjunction, read_predicate

CONDITIONS = "conditions"
# weights of all pairs and of all triples, relative to that of all other sets; most pairs, and most triples
PAIRS_OF_TARGET, TRIPLES_OF_TARGET, MOST_OF_TARGET = 8.0, 0.25, 1 << 12
MOST_SETS = 4_000_000  # attribute sets of a workload; fixed plans have their subsets, at about 1 KiB each


class Workload:
    """Queries on a domain. Duplicates count, and nothing is added implicitly.

    >>> Workload(Domain({"a": 10, "b": 20})).add("prefix", degree=2).query_count
    200

    Parameters
    ----------
    domain : Domain
    max_sets : int
        Largest number of attribute sets; a larger workload is refused before they are listed.
    """

    def __init__(self, domain: Domain, max_sets: int = MOST_SETS) -> None:
        """Start without queries; the parameters are those of the class."""
        if not isinstance(domain, Domain):
            raise DomainError("domain", type_of_value(domain), "a Domain", 'write Workload(Domain({"a": 10}))')
        self.domain = domain
        self.parts: list[WorkloadPart] = []
        self.max_sets = max_sets

    def __repr__(self) -> str:
        return f"Workload({', '.join(part.name for part in self.parts)}: {self.query_count} queries)"

    def _repr_html_(self) -> str:
        rows = [(part.name, f"{len(part.sets):,} sets, {sum(part.counts):,} queries") for part in self.parts]
        return glance(f"Workload of {self.query_count:,} queries", rows)

    def add(
        self,
        family: str,
        degree: int | None = None,
        attributes: Iterable[Sequence[str]] | None = None,
        weight: float | Sequence[Any] = 1.0,
        p: float | None = None,
        seed: int | None = None,
        numeric: Sequence[str] | None = None,
        **parameters: Any,
    ) -> Workload:
        """Add a query family over all attribute sets of a degree, or over given sets.

        Parameters
        ----------
        family : str
            "marginal", "prefix", "range", "circular", "affine", "abs", "random" or "hybrid", or one of another
            distribution (entry-point group dpscale.families).
        degree : int, optional
            Number of attributes of the sets.
        attributes : iterable of sequence of str, optional
            Attribute sets. Exactly one of `degree` and `attributes` is required.
        weight : float or sequence
            Weight of every query, or one entry per attribute set: a float, or an array with one weight per query of the
            set (the set then becomes a separate part).
        p : float, optional
            Probability of a cell, for "random".
        seed : int, optional
            Seed of the queries, for "random".
        numeric : sequence of str, optional
            Attributes with prefix queries, for "hybrid".
        **parameters
            Parameters of another family.

        Returns
        -------
        Workload
            The workload itself.

        Raises
        ------
        JobError
            If an argument is invalid for the family.

        Examples
        --------
        >>> Workload(Domain({"a": 10, "b": 2})).add("range", attributes=[["a"]]).add("marginal", degree=2).query_count
        75
        """
        settings = {"p": p, "seed": seed, "numeric": None if numeric is None else tuple(numeric), **parameters}
        named = family_named(family, {name: value for name, value in settings.items() if value is not None})
        for member in named.members:
            self._add(member, degree, attributes, weight)
        return self

    def _add(
        self,
        chosen: QueryFamily,
        degree: int | None,
        attributes: Iterable[Sequence[str]] | None,
        weight: float | Sequence[Any],
    ) -> None:
        """Add the queries of a family; the arguments are those of `add`.

        Sets with one weight form one part. A set with a weight for each of its queries becomes a part of its own.
        `family_sets` are the sets that the family has itself; `weight` is one number for all sets, or one value for
        each set.
        """
        # a part has a name of its own
        chosen = chosen.distinct({part.name for part in self.parts})
        self._use_domain(chosen.domain_for(self.domain))
        family_sets = chosen.own_sets(self.domain) if degree is None and attributes is None else None
        sets = self._sets(degree, attributes) if family_sets is None else family_sets
        sets = tuple(chosen.extended(self.domain, names) for names in sets)
        if isinstance(weight, int | float):
            self.parts.append(part_of(chosen, self.domain, sets, (_weight(weight),) * len(sets)))
            return

        weights = _weights(weight, len(sets))
        uniform = [(names, value) for names, value in zip(sets, weights, strict=True) if isinstance(value, float)]
        # without any set the part is empty
        if uniform or not sets:
            named, values = (tuple(part) for part in zip(*uniform, strict=True)) if uniform else ((), ())
            self.parts.append(part_of(chosen, self.domain, named, values))

        for names, value in zip(sets, weights, strict=True):
            if not isinstance(value, float):
                self.parts.append(weighted(part_of(chosen, self.domain, (names,), (1.0,)), value))

    def add_product(self, queries: Mapping[str, Any], weight: float = 1.0, label: str | None = None) -> Workload:
        """Add all products of the queries listed for some attributes.

        >>> domain = Domain({"age": 100, "sex": 2})
        >>> Workload(domain).add_product({"age": ["age in 0..17", "age in 18..64"], "sex": "identity"}).query_count
        4

        Parameters
        ----------
        queries : mapping of str to object
            For every attribute a one-way family or its name, "identity", "total", one or several predicates
            (`dpscale.workload.predicates`), a matrix of shape (m, n), or the path of an array file (.npy).
        weight : float
            Weight of every query.
        label : str, optional
            Name of the queries in tables and stored results. Default: "product".

        Returns
        -------
        Workload
            The workload itself.

        Raises
        ------
        JobError
            If the queries do not fit their attribute.

        References
        ----------
        McKenna, Miklau, Hay, Machanavajjhala: Optimizing error of high-dimensional statistical queries under
        differential privacy, section 4.
        """
        if not isinstance(queries, Mapping):
            raise JobError("workload.predicates", safe_repr(queries), "a mapping of attributes to queries", "fix it")
        labelled: dict[str, Any] = {} if label is None else {"label": label}
        return self.add(ProductQueries.name, weight=weight, predicates=dict(queries), **labelled)

    def add_conditions(self, conditions: Sequence[str], weight: float = 1.0, label: str | None = None) -> Workload:
        """Add single counts, one for each predicate.

        >>> Workload(Domain({"age": 100, "sex": 2})).add_conditions(["age >= 65 and sex = 1"]).query_count
        1

        Parameters
        ----------
        conditions : sequence of str
            Predicates (`dpscale.workload.predicates`). Conditions on single attributes that are joined by `and` may
            have any number of attributes, and are factored into products with one table for every attribute set;
            others have at most 1,048,576 cells.
        weight : float
            Weight of every count.
        label : str, optional
            Name of the counts in tables and stored results, with "-joint" for those that are no conjunctions of
            conditions on single attributes. Default: "conditions".

        Returns
        -------
        Workload
            The workload itself.

        Raises
        ------
        JobError
            If a predicate is invalid, or no cell satisfies it.
        """
        if isinstance(conditions, str) or not conditions:
            raise JobError("workload.conditions", safe_repr(conditions), "a list of predicates", "write a list")

        check_label(label or CONDITIONS)
        label, others, single = label or CONDITIONS, dict[AttributeSet, list[tuple[str, Floats]]](), []
        for text in conditions:
            # a product: the condition on each attribute is separate
            if (parts := read_conjunction(text, self.domain)) is not None:
                for part in parts.values():
                    check_countable(read_predicate(part, self.domain), text, self.domain)
                single.append({name: (parts[name],) for name in self.domain.ordered(list(parts))})
            else:
                predicate = read_predicate(text, self.domain)
                check_countable(predicate, text, self.domain)
                # other predicates with the same attributes are one array
                others.setdefault(predicate.attributes, []).append((text, predicate.mask.astype(np.float64)))

        for product in factored(single):
            self.add_product(product or {self.domain.names[0]: TOTAL}, weight, label)
        for names, listed in others.items():
            texts, arrays = zip(*listed, strict=True)
            each = np.full(len(texts), _weight(weight))
            title = f"{label}{JOINT}"
            self.parts.append(
                ExplicitPart(
                    domain=self.domain,
                    attributes=names,
                    array=np.stack(arrays),
                    each=each,
                    origin=None,
                    title=title,
                    query_texts=texts,
                )
            )

        return self

    def add_sql(self, text: str, weight: float = 1.0, dialect: str = "duckdb", unit: Sequence[str] = ()) -> Workload:
        """Add the queries of SELECT statements.

        >>> domain = Domain({"age": 100, "sex": 2})
        >>> Workload(domain).add_sql("SELECT sex, COUNT(*) FROM people WHERE age >= 65 GROUP BY sex").query_count
        2

        Parameters
        ----------
        text : str
            Statements separated by semicolons (`dpscale.workload.sql`).
        weight : float
            Factor of the weights of all queries.
        dialect : str
            Dialect of sqlglot.
        unit : sequence of str
            Columns of the privacy unit, which COUNT(DISTINCT …) names. Units are counted apart from the workload.

        Returns
        -------
        Workload
            The workload itself.

        Raises
        ------
        JobError
            For what cannot be answered, with its place in the text.
        """
        from dpscale.workload.sql.blocks import workload_parts
        from dpscale.workload.sql.selection import select
        from dpscale.workload.sql.statements import read_statements

        for statement in read_statements(text, _weight(weight), dialect):
            check_label(statement.name)
            self.parts += workload_parts(select(statement, self.domain, unit))
        return self

    def add_target(self, target: str, weight: float = 1.0) -> Workload:
        """Add marginals from which the target attribute is predicted: its pairs and triples with the other attributes.

        With W the sum of the weights of all sets, each of the n pairs has the weight PAIRS_OF_TARGET · W / n, and each
        triple TRIPLES_OF_TARGET · W / n with their number n. More than MOST_OF_TARGET pairs, or triples, are left out.

        Parameters
        ----------
        target : str
            An attribute of the workload.
        weight : float
            Factor of all these weights.

        Returns
        -------
        Workload
            The workload itself.

        Raises
        ------
        JobError
            If the target is no attribute of the workload, or its only one.

        Examples
        --------
        >>> Workload(Domain({"a": 3, "b": 2, "c": 2})).add("marginal", degree=1).add_target("c").query_count
        29
        """
        numbers = self.domain.number_names
        names = self.domain.ordered({name for used in self.sets for name in used if name not in numbers})
        if target not in names or len(names) == 1:
            raise JobError("synthesize.target", f"{target!r}", f"one of several attributes of the workload: "
                           f"{', '.join(names)}", nearest(target, names))  # fmt: skip

        others = [name for name in names if name != target]
        total = sum(sum(part.set_weights) for part in self.parts) * weight
        for degree, share in ((1, PAIRS_OF_TARGET), (2, TRIPLES_OF_TARGET)):
            sets = [self.domain.ordered([target, *chosen]) for chosen in combinations(others, degree)]
            if 0 < len(sets) <= MOST_OF_TARGET:
                self.add(MARGINAL.name, attributes=sets, weight=float(f"{share * total / len(sets):.6g}"))
        return self

    def add_queries(self, attributes: Sequence[str], queries: Any, weights: Any = None) -> Workload:
        """Add linear queries over one attribute set.

        Parameters
        ----------
        attributes : sequence of str
        queries : array_like, shape (m, n_a, n_b, …)
            One axis per attribute, in the order of `attributes`.
        weights : array_like, shape (m,), optional
            Weights of the queries. Default: 1.

        Returns
        -------
        Workload
            The workload itself.

        Raises
        ------
        JobError
            If the shape or a value is invalid.

        Examples
        --------
        >>> Workload(Domain({"a": 2})).add_queries(["a"], [[1, 1], [1, -1]]).query_count
        2
        """
        try:
            array = np.asarray(queries, dtype=np.float64)
        except (TypeError, ValueError):
            raise JobError(
                "workload.queries",
                "not an array of numbers",
                "finite numbers of shape (m, n_a, …)",
                "use a number for every cell",
            ) from None

        shape = self.domain.shape(attributes)
        if array.shape[1:] != shape or array.ndim != len(shape) + 1 or not np.isfinite(array).all():
            takes = f"finite numbers of shape (m, {', '.join(map(str, shape))})"
            raise JobError("workload.queries", f"shape {array.shape}", takes, "use one axis per attribute")

        ordered = self.domain.ordered(attributes)
        axes = [0, *(1 + list(attributes).index(name) for name in ordered)]
        each = np.ones(len(array)) if weights is None else np.asarray(weights, dtype=np.float64)
        if each.shape != (len(array),):
            raise JobError("workload.weights", f"shape {each.shape}", f"({len(array)},)", "use one weight per query")

        for value in each:
            _weight(float(value))
        self.parts.append(
            ExplicitPart(
                domain=self.domain, attributes=ordered, array=np.ascontiguousarray(array.transpose(axes)), each=each
            )
        )
        return self

    def _use_domain(self, domain: Domain) -> None:
        """Replace the domain by one with more cells of its numbers."""
        if domain is not self.domain:
            self.domain, self.parts = domain, [part.on(domain) for part in self.parts]

    @property
    def query_count(self) -> int:
        """Number of queries, including duplicates.

        Examples
        --------
        >>> Workload(Domain({"a": 10})).add("prefix", degree=1).query_count
        10
        """
        return sum(sum(part.counts) for part in self.parts)

    @property
    def weighs(self) -> bool:
        """Whether any query has a positive weight and a nonzero entry; other queries are ignored in planning."""
        return any(part.weighs for part in self.parts)

    @property
    def sets(self) -> tuple[AttributeSet, ...]:
        """Distinct attribute sets of the workload, in the order in which they were added."""
        return tuple(dict.fromkeys(attributes for part in self.parts for attributes in part.sets))

    @property
    def numbers(self) -> tuple[str, ...]:
        """Numbers of which sums or means are asked."""
        return tuple(number.name for number in self.domain.numbers if any(number.name in names for names in self.sets))

    @property
    def digest(self) -> str:
        """SHA-256 of domain and workload, in hexadecimal."""
        content = [self.domain.digest, [part.describe() for part in self.parts]]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    def _sets(self, degree: int | None, attributes: Iterable[Sequence[str]] | None) -> tuple[AttributeSet, ...]:
        """Return the sets of attributes that a part requests: all of a degree, or the listed ones in domain order."""
        if (degree is None) == (attributes is None):
            got = "neither" if degree is None else "both"
            raise JobError("workload", f"{got} of degree and attributes", "exactly one of them", "keep one")

        if degree is not None:
            size = self._degree(degree)
            self._check_sets("degree", f"{degree} with", math.comb(len(self.domain), size), "sets")
            return tuple(combinations(self.domain.names, size))

        sets = tuple(self.domain.ordered(_names(names)) for names in attributes or ())
        for name in {name for names in sets for name in names} - set(self.domain.names):
            raise JobError("workload.attributes", f"the number {name!r}", "attributes",
                           f'ask for its sums: family = "sum", of = {name!r}')  # fmt: skip

        return sets

    def check_subsets(self) -> None:
        """Raise JobError if the sets of the workload have more subsets than `max_sets`; none is listed."""
        count = len(self.sets)
        self._check_sets(
            "attributes", f"{count:,} set{'s' * (count > 1)} with", self.most_subsets, "subsets to measure"
        )

    @property
    def most_subsets(self) -> int:
        """Upper limit of the number of subsets of all sets, from their sizes and the number of attributes."""
        sizes = np.bincount([len(names) for names in self.sets])
        return sum(min(sum(int(many) * math.comb(size, lower) for size, many in enumerate(sizes)),
                       math.comb(len(self.domain.axis_names), lower)) for lower in range(len(sizes)))  # fmt: skip

    def _check_sets(self, key: str, given: str, count: int, noun: str) -> None:
        """Raise JobError if the `count` of sets, named by `noun`, is above `max_sets`; the setting `key` is `given`."""
        if count > self.max_sets:
            raise JobError(f"workload.{key}", f"{given} {count:,} {noun}",
                           f"at most the {self.max_sets:,} of engine.max_sets",
                           "ask for fewer or smaller sets, or raise it")  # fmt: skip

    def _degree(self, degree: int) -> int:
        """Return a number of attributes. Raises JobError if it is no integer from 0 to the number of the domain."""
        if isinstance(degree, bool) or not isinstance(degree, int) or not 0 <= degree <= len(self.domain):
            takes = f"a whole number from 0 to {len(self.domain)}, the number of attributes"
            raise JobError("workload.degree", safe_repr(degree), takes, "lower it")
        return degree


def _names(names: Sequence[str]) -> Sequence[str]:
    if isinstance(names, str):
        raise JobError("workload.attributes", f"{names!r}", "a list of attribute sets", f"write [[{names!r}]]")
    return names


def _weight(weight: float) -> float:
    if isinstance(weight, bool) or not (isinstance(weight, int | float) and math.isfinite(weight) and weight >= 0):
        raise JobError("workload.weight", f"{weight!r}", "a finite number, 0 or more", "fix it")
    return float(weight)


def _weights(weight: Sequence[Any], sets: int) -> tuple[float | Floats, ...]:
    """Return one weight per attribute set, or an array where the queries of a set have individual weights."""
    if len(weight) != sets:
        raise JobError("workload.weight", f"{len(weight)} weights", f"one, or one for each of {sets} sets", "fix it")
    return tuple(_weight(value) if isinstance(value, int | float) else _each(value) for value in weight)


def _each(values: Any) -> Floats:
    """Return the weights of individual queries, flattened."""
    try:
        array = np.asarray(values, dtype=np.float64).reshape(-1)
    except (TypeError, ValueError):
        raise JobError("workload.weight", "no numbers", "one weight for each query", "fix it") from None
    for value in array:
        _weight(float(value))
    return array


FINEST = 1 << 20  # ratio of the largest to the least weight up to which the least is 16 units


def targets_of(workload: Workload) -> dict[AttributeSet, float]:
    """Return the attribute sets with positive weight, and their weights summed over parts."""
    targets: dict[AttributeSet, float] = {}
    for part in workload.parts:
        for names, weight in zip(part.sets, part.set_weights, strict=True):
            if weight > 0 and names:
                targets[names] = targets.get(names, 0.0) + weight

    if not all(math.isfinite(weight) for weight in targets.values()):
        raise JobError(
            "workload.weight", "weights whose sum over a set is not finite", "smaller weights", "reduce them"
        )
    if not targets:
        raise JobError("workload", "no attribute set with a positive weight", "at least one marginal", "add a family")
    return targets


def whole_weights(targets: Mapping[AttributeSet, float]) -> tuple[int, ...]:
    """Return integer weights in proportion, unless they differ by more than a factor FINEST."""
    least = max(min(targets.values()), max(targets.values()) / FINEST)
    exact = len(set(targets.values())) == 1
    return tuple(1 if exact else max(1, round(16 * weight / least)) for weight in targets.values())
