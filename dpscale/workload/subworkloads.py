"""Residual subworkloads: the Gram matrix of the workload on each residual space, as a sum of terms.

For A' ⊆ A the queries of a product family over A contribute to A' the Gram matrix
    weight · Π over A∖A' of |W1|²/n² · ⊗ over A' of C WᵀW C,
and those of a joint family or an array contribute a Gram matrix of low rank or a dense one. Every subworkload is
therefore a weighted sum of Kronecker terms and joint terms, merged if their factors are equal (QuerySmasher, section
5). If an axis has weights u, Wu replaces W1/n and I − u1ᵀ replaces C; nothing else changes (weighted residuals,
docs/mechanisms.md).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast, overload

import numpy as np
from numpy.typing import NDArray

from dpscale.base.errors import PlanError
from dpscale.base.numerics import AttributeSet, Floats
from dpscale.domain import Domain
from dpscale.workload.factors import GramFactor, axis_of, piece_factor
from dpscale.workload.parts import WorkloadPart
from dpscale.workload.residual import Weights, kron, subsets
from dpscale.workload.spaces import NOWHERE, Classes, Left, RequestedResiduals
from dpscale.workload.wide import WideGram
from dpscale.workload.workload import Workload

DENSE_CELLS = 10_000


@dataclass
class Subworkload:
    """Gram matrix of one residual space: Σ weight · ⊗ factors.

    Attributes
    ----------
    attributes : AttributeSet
        In domain order.
    sizes : tuple of int
    weights : tuple of Weights or None
        Weights of the axes.
    terms : dict of tuple of str to float
        Weight, including the traces, of each tuple of factor keys. A key of one factor over several axes is a joint
        term.
    factors : dict of str to GramFactor or WideGram
        Factors by key.
    """

    attributes: AttributeSet
    sizes: tuple[int, ...]
    weights: tuple[Weights | None, ...]
    terms: dict[tuple[str, ...], float] = field(default_factory=dict)
    factors: dict[str, GramFactor | WideGram] = field(default_factory=dict)

    @property
    def cells(self) -> int:
        return math.prod(self.sizes)

    @property
    def scale(self) -> float:
        """Trace of the Gram matrix: zero if the workload has no queries on this space."""
        return sum(self.terms.values())

    @property
    def dimensions(self) -> int:
        """Dimension of the centred space."""
        return math.prod(n - 1 for n in self.sizes)

    def add(self, factors: Sequence[GramFactor | WideGram], weight: float) -> None:
        """Add a term; terms with equal factors are merged."""
        if weight > 0:
            key = tuple([factor.key for factor in factors])
            if key not in self.terms:
                self.factors.update({factor.key: factor for factor in factors})
            self.terms[key] = self.terms.get(key, 0.0) + weight

    def is_joint(self, key: tuple[str, ...]) -> bool:
        return len(key) < len(self.sizes)

    def gram(self) -> Floats:
        """Return the explicit Gram matrix, shape (cells, cells)."""
        total = np.zeros((self.cells, self.cells))
        for key, weight in self.terms.items():
            total += weight * kron([self.factors[k].gram for k in key])
        return total

    def rows(self) -> Floats:
        """Return uncompressed rows F with FᵀF equal to the Gram matrix, shape (r, cells)."""
        roots = [math.sqrt(w) * kron([self.factors[k].rows for k in key]) for key, w in self.terms.items()]
        return np.concatenate(roots)

    def signature(self) -> str:
        """Return a key that is equal for subworkloads whose Gram matrices are equal up to a factor."""
        terms = sorted((key, round(weight / self.scale, 12)) for key, weight in self.terms.items())
        return hashlib.sha256(repr((self.sizes, terms)).encode()).hexdigest()


def decompose(workload: Workload, weights: Mapping[str, Weights] | None = None) -> Subworkloads:
    """Return the subworkloads with queries and without public totals, smaller attribute sets first.

    Parameters
    ----------
    workload : Workload
    weights : mapping of str to Weights, optional
        Weights of the attributes that are not averaged by the plain mean.
    """
    split = _Split(workload.domain, weights or {})
    for part in workload.parts:
        split.add(part)
    found = split.subworkloads()
    return found if not workload.domain.public_totals else found.unknown(workload.domain)


class Subworkloads(Sequence[Subworkload]):
    """Sequence of subworkloads over `names`, in which equal ones share their data.

    Attributes
    ----------
    classes : sequence of Subworkload
        The distinct subworkloads; `classes[which[i]]` is the i-th one under other names.
    which : ndarray of int64
        Class of each subworkload.
    members, ends : ndarray of int32
        Concatenated positions of the attributes of all subworkloads, and the end of each.
    """

    def __init__(self, names: tuple[str, ...], found: Sequence[Classes], classes: Sequence[Subworkload]) -> None:
        self.names, self.classes = names, classes
        degrees = np.repeat([one.members.shape[1] for one in found], [len(one.which) for one in found])
        self.members = np.concatenate([np.zeros(0, np.int32), *(one.members.reshape(-1) for one in found)]).astype(
            np.int32
        )
        self.ends = np.cumsum(degrees, dtype=np.int32)
        before = np.cumsum([0, *(len(one.terms) for one in found)]).tolist()
        whiches = [one.which + start for one, start in zip(found, before, strict=False)]
        self.which = np.concatenate([np.zeros(0, np.int64), *whiches])
        spaces = np.cumsum([0, *(len(one.which) for one in found)]).tolist()
        self.firsts = [int(at) + start for one, start in zip(found, spaces, strict=False) for at in one.firsts]
        self.lasts = [int(at) + start for one, start in zip(found, spaces, strict=False) for at in one.lasts]

    def unknown(self, domain: Domain) -> Subworkloads:
        """Return the subworkloads on residuals that do not follow from a public total."""
        chosen = np.array([i for i in range(len(self)) if domain.known_table(self._set(i)) is None], np.int64)
        used, which = np.unique(self.which[chosen], return_inverse=True)
        found = copy(self)
        found.classes, found.which = [self.classes[i] for i in used.tolist()], which.astype(np.int64)
        sets = [self._places(i) for i in chosen.tolist()]
        found.members = np.concatenate([np.zeros(0, np.int32), *sets]).astype(np.int32)
        found.ends = np.cumsum([len(names) for names in sets], dtype=np.int32)
        found.firsts = [int(np.flatnonzero(which == i)[0]) for i in range(len(used))]
        found.lasts = [int(np.flatnonzero(which == i)[-1]) for i in range(len(used))]

        return found

    def _places(self, index: int) -> NDArray[np.int32]:
        return self.members[self.ends[index - 1] if index else 0 : self.ends[index]]

    def _set(self, index: int) -> AttributeSet:
        return tuple([self.names[i] for i in self._places(index).tolist()])

    def of_all(self, value_of: Callable[[Subworkload], float]) -> list[float]:
        """Return a number for every subworkload, computed once per class."""
        own = np.array([value_of(group_class) for group_class in self.classes], np.float64)
        return cast(list[float], own[self.which].tolist())

    def __len__(self) -> int:
        return len(self.which)

    @overload
    def __getitem__(self, index: int) -> Subworkload: ...
    @overload
    def __getitem__(self, index: slice) -> list[Subworkload]: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        return replace(self.classes[self.which[place]], attributes=self._set(place))


@dataclass
class _Split:
    """Collector of the terms of attribute sets; a term is a tuple of factor keys."""

    domain: Domain
    weights: Mapping[str, Weights]
    terms: dict[tuple[str, ...], int] = field(default_factory=dict)
    factors: dict[str, GramFactor | WideGram] = field(default_factory=dict)
    asked: RequestedResiduals = field(init=False)

    def __post_init__(self) -> None:
        self.asked = RequestedResiduals(self.domain.axis_names)

    def add(self, part: WorkloadPart) -> None:
        """Add the terms of all sets of a part."""
        leaves = self._products if part.factorizes else self._joint
        self.asked.add(part.sets, part.weights, self._kinds(part.role), partial(leaves, part))

    def subworkloads(self) -> Subworkloads:
        kinds = self._kinds(lambda name: 0)
        found = [self.asked.classes(degree, len(self.terms), kinds, 0.0) for degree in self.asked.degrees()]
        keys = list(self.terms)
        classes = [self._made(one.members[first], [(keys[term], weight) for term, weight in terms])
                   for one in found for first, terms in zip(one.firsts, one.terms, strict=True)]  # fmt: skip
        return Subworkloads(self.domain.axis_names, found, classes)

    def _made(self, places: NDArray[np.int64], terms: Sequence[tuple[tuple[str, ...], float]]) -> Subworkload:
        attributes = tuple([self.domain.axis_names[i] for i in places.tolist()])
        factors = {key: self.factors[key] for term, _ in terms for key in term}
        return Subworkload(
            attributes, self.domain.shape(attributes), self._weights_of(attributes), dict(terms), factors
        )

    def _kinds(self, role: Callable[[str], int]) -> NDArray[np.int64]:
        """Return numbers that are equal for attributes with equal size, weights and role in a part."""
        known: dict[tuple[int, int, int], int] = {}
        sized = zip(self.domain.axis_names, self.domain.shape(self.domain.axis_names), strict=True)
        own = [(size, id(self.weights.get(name)), role(name)) for name, size in sized]
        return np.array([known.setdefault(one, len(known)) for one in own], np.int64)

    def _weights_of(self, attributes: AttributeSet) -> tuple[Weights | None, ...]:
        return tuple([self.weights.get(name) for name in attributes])

    def _term(self, factors: Sequence[GramFactor | WideGram]) -> int:
        self.factors.update({factor.key: factor for factor in factors})
        return self.terms.setdefault(tuple([factor.key for factor in factors]), len(self.terms))

    def _products(self, part: WorkloadPart, attributes: AttributeSet) -> list[Left]:
        """Return the terms of a set of products: factors of the remaining axes, and the weights of all axes."""
        triples = zip(part.families(attributes), part.domain.shape(attributes), attributes, strict=True)
        axes = [axis_of(family, size, self.weights.get(name)) for family, size, name in triples]
        return [Left(kept, self._term([axes[i].factor for i in kept]),
                     tuple([axis.weight if i in kept else axis.mean_square for i, axis in enumerate(axes)]))
                for kept in subsets(tuple(range(len(axes))))]  # fmt: skip

    def _joint(self, part: WorkloadPart, attributes: AttributeSet) -> list[Left]:
        cells = part.domain.cells(attributes)
        if cells > DENSE_CELLS:
            raise PlanError(
                "workload",
                f"family {part.name} over {cells} cells ({', '.join(attributes)})",
                f"at most {DENSE_CELLS} cells",
                "coarsen the attributes, or use a product family",
            )

        own, left = self._weights_of(attributes), []
        for kept in subsets(tuple(range(len(attributes)))):
            factor, weight = piece_factor(part, attributes, kept, own)
            term = NOWHERE if factor is None else self._term([factor] if kept else [])
            left.append(Left(kept, term, (weight,)))

        return left
