"""Workload: the union of the query families and arrays that a user requests."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from dpscale.base.display import glance, nearest, safe_repr
from dpscale.base.errors import DomainError, JobError
from dpscale.base.numerics import AttributeSet, Floats
from dpscale.domain import Domain
from dpscale.workload.families import FAMILIES, JOINT, RANDOM_P
from dpscale.workload.parts import ExplicitPart, JointPart, Part, ProductPart, counts_of, weighted

NAMES = (*FAMILIES, *JOINT, "hybrid")


class Workload:
    """Queries on a domain. Duplicates count, and nothing is added implicitly.

    >>> Workload(Domain({"a": 10, "b": 20})).add("prefix", degree=2).query_count
    200

    Parameters
    ----------
    domain : Domain
    """

    def __init__(self, domain: Domain) -> None:
        if not isinstance(domain, Domain):
            raise DomainError("domain", f"a {type(domain).__name__}", "a Domain", 'write Workload(Domain({"a": 10}))')
        self.domain = domain
        self.parts: list[Part] = []

    def __repr__(self) -> str:
        return f"Workload({', '.join(part.name for part in self.parts)}: {self.query_count} queries)"

    def _repr_html_(self) -> str:
        told = [(part.name, f"{len(part.sets):,} sets, {sum(counts_of(part)):,} queries") for part in self.parts]
        return glance(f"Workload of {self.query_count:,} queries", told)

    def add(
        self,
        family: str,
        degree: int | None = None,
        attributes: Iterable[Sequence[str]] | None = None,
        weight: float | Sequence[Any] = 1.0,
        p: float | None = None,
        seed: int | None = None,
        numeric: Sequence[str] | None = None,
    ) -> Workload:
        """Add a query family over all attribute sets of a degree, or over given sets.

        Parameters
        ----------
        family : str
            "marginal", "prefix", "range", "circular", "affine", "abs", "random" or "hybrid".
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

        Returns
        -------
        Workload
            The workload itself.

        Raises
        ------
        JobError
            If an argument is invalid for the family.
        """
        if family not in NAMES:
            raise JobError("workload.family", f"{family!r}", ", ".join(NAMES), nearest(family, NAMES))
        _only_for(family, p=(p, "random"), seed=(seed, "random"), numeric=(numeric, "hybrid"))
        sets = self._sets(degree, attributes)
        if isinstance(weight, int | float):
            self.parts.append(self._family(family, sets, (_weight(weight),) * len(sets), p, seed, numeric))
            return self
        weights = _weights(weight, len(sets))
        uniform = [(names, value) for names, value in zip(sets, weights, strict=True) if isinstance(value, float)]
        if uniform or not sets:
            named, values = (tuple(part) for part in zip(*uniform, strict=True)) if uniform else ((), ())
            self.parts.append(self._family(family, named, values, p, seed, numeric))
        for names, value in zip(sets, weights, strict=True):
            if not isinstance(value, float):
                self.parts.append(weighted(self._family(family, (names,), (1.0,), p, seed, numeric), value))
        return self

    def _family(
        self,
        family: str,
        sets: tuple[AttributeSet, ...],
        weights: tuple[float, ...],
        p: float | None,
        seed: int | None,
        numeric: Sequence[str] | None,
    ) -> ProductPart | JointPart:
        if family in JOINT:
            _check_joint(family, sets)
            return JointPart(self.domain, family, sets, weights, _probability(p), seed or 0)
        return ProductPart(self.domain, family, sets, weights, frozenset(self.domain.ordered(numeric or ())))

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
        self.parts.append(ExplicitPart(self.domain, ordered, np.ascontiguousarray(array.transpose(axes)), each))
        return self

    @property
    def query_count(self) -> int:
        """Number of queries, including duplicates."""
        return sum(sum(counts_of(part)) for part in self.parts)

    @property
    def weighs(self) -> bool:
        """Whether any query has a positive weight and a nonzero entry; other queries are ignored in planning."""
        return any(
            bool(((part.each > 0) & part.array.reshape(len(part.array), -1).any(axis=1)).any())
            if isinstance(part, ExplicitPart)
            else max(part.weights, default=0) > 0
            for part in self.parts
        )

    @property
    def sets(self) -> tuple[AttributeSet, ...]:
        """Distinct attribute sets of the workload, in the order in which they were added."""
        return tuple(dict.fromkeys(attributes for part in self.parts for attributes in part.sets))

    @property
    def digest(self) -> str:
        """SHA-256 of domain and workload, in hexadecimal."""
        content = [self.domain.digest, [part.describe() for part in self.parts]]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    def _sets(self, degree: int | None, attributes: Iterable[Sequence[str]] | None) -> tuple[AttributeSet, ...]:
        if (degree is None) == (attributes is None):
            got = "neither" if degree is None else "both"
            raise JobError("workload", f"{got} of degree and attributes", "exactly one of them", "keep one")
        if degree is not None:
            return tuple(combinations(self.domain.names, self._degree(degree)))
        return tuple(self.domain.ordered(_names(names)) for names in attributes or ())

    def _degree(self, degree: int) -> int:
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


def _probability(p: float | None) -> float:
    if p is not None and not 0 < p < 1:
        raise JobError("workload.p", f"{p!r}", "a number between 0 and 1", "fix it")
    return RANDOM_P if p is None else float(p)


def _only_for(family: str, **settings: tuple[object, str]) -> None:
    for name, (value, owner) in settings.items():
        if value is not None and family != owner:
            raise JobError(f"workload.{name}", f"given for family {family!r}", f"family {owner} only", "remove it")
    if family == "hybrid" and settings["numeric"][0] is None:
        raise JobError("workload.numeric", "missing", "the numeric attributes, for family hybrid", "add it")


def _check_joint(family: str, sets: tuple[AttributeSet, ...]) -> None:
    degree = JOINT[family].degree
    for attributes in sets:
        if degree is not None and len(attributes) != degree:
            got = f"{len(attributes)} attributes for family {family!r}"
            raise JobError("workload.degree", got, f"{degree} attributes", f"write degree = {degree}")


FINEST = 1 << 20


def targets_of(workload: Workload) -> dict[AttributeSet, float]:
    """Return the attribute sets with positive weight, and their weights summed over parts."""
    targets: dict[AttributeSet, float] = {}
    for part in workload.parts:
        weights = (float(part.each.max(initial=0)),) if isinstance(part, ExplicitPart) else part.weights
        for names, weight in zip(part.sets, weights, strict=True):
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
