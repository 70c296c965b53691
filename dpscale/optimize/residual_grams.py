"""Gram matrices of residual spaces before axis weights are known; equal ones are counted instead of repeated.

A product query over A contributes to A' ⊆ A the Gram matrix weight · Π over A∖A' of s(u) · ⊗ over A' of its pieces'
Gram matrices. A space is therefore described by its centred and its averaged axes, each a *token* (kind of attribute,
one-way family). Attributes of one kind have the same size and the same queries, and share their weights u.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from itertools import chain

import numpy as np

from dpscale.base.numerics import AttributeSet, Flags, Floats, Integers
from dpscale.workload import PREFIX, Family, Workload, WorkloadPart, root_of
from dpscale.workload.factors import weighted_queries
from dpscale.workload.listed import ListedQueries
from dpscale.workload.residual import subsets
from dpscale.workload.subworkloads import Left, RequestedResiduals
from dpscale.workload.wide import even_cut, is_wide

MOST_KINDS = 32  # kinds of attributes, above which attributes of different weights are of one kind
Role = tuple[int, frozenset[tuple[str, ...]]]


def kinds_of(workload: Workload) -> dict[str, Role]:
    """Return the role of every attribute: its size, the families that use it, and their weight by degree.

    Attributes of equal role are of one kind. The weights are omitted if they would make too many kinds.
    """
    totals = _weights_by_family(workload)
    with_weights = {name: _role(workload, name, weights, True) for name, weights in totals.items()}
    if len(set(with_weights.values())) <= MOST_KINDS:
        return with_weights
    return {name: _role(workload, name, weights, False) for name, weights in totals.items()}


def _weights_by_family(workload: Workload) -> dict[str, dict[tuple[str, ...], float]]:
    """Return the total weight of every attribute by family and degree of the sets.

    Weights are summed by columns in the order of the sets.

    The result maps an attribute to {(family, degree): total weight of the sets of this degree in which the attribute
    has this family}. `columns` collects the attributes' positions with the weights of their sets, summed by `bincount`.
    """
    names = workload.domain.axis_names
    place, seen = {name: i for i, name in enumerate(names)}, dict[str, None]()
    columns: dict[tuple[str, ...], list[tuple[Integers, Floats]]] = defaultdict(list)

    for part in workload.parts:
        seen.update(dict.fromkeys(chain.from_iterable(part.sets)))
        for degree, sets, weights in _by_degree(part):
            flat = np.fromiter(map(place.__getitem__, chain.from_iterable(sets)), np.int64, degree * len(sets))
            # `uses` are the positions in `flat` at which attributes have this family
            for family, uses in _families(part, sets, flat):
                columns[family, str(degree)].append((flat[uses], np.repeat(weights, degree)[uses]))

    totals: dict[str, dict[tuple[str, ...], float]] = {name: {} for name in seen}
    for key, pieces in columns.items():
        places, values = (np.concatenate(column) for column in zip(*pieces, strict=True))
        # `bincount` adds in the order of the positions, so the sum is the same in every run
        sums = np.bincount(places, values)
        for i in np.unique(places).tolist():
            totals[names[i]][key] = float(sums[i])

    return totals


def _by_degree(part: WorkloadPart) -> Iterator[tuple[int, Sequence[AttributeSet], Floats]]:
    """Yield the sets of each degree with their weights, in their order."""
    degrees, weights = np.fromiter(map(len, part.sets), np.int64, len(part.sets)), np.asarray(part.weights, np.float64)
    for degree in dict.fromkeys(degrees.tolist()):
        of_degree = np.flatnonzero(degrees == degree)
        sets = part.sets if len(of_degree) == len(degrees) else [part.sets[i] for i in of_degree.tolist()]
        yield degree, sets, weights[of_degree]


def _families(
    part: WorkloadPart, sets: Sequence[AttributeSet], places: Integers
) -> Iterator[tuple[str, Flags | slice]]:
    """Yield the families of sets of one degree with a mask of the attributes that they use, one set after the other.

    `places` has the attribute positions of all sets, concatenated. A family is named by its key; for queries whose axes
    differ and cannot be exchanged, every axis of a set is a family of its own.
    """
    if part.factorizes:
        keys = [family.key for family in part.families(part.domain.axis_names)]
        families = list(dict.fromkeys(keys))
        family_of = np.array([families.index(key) for key in keys])
        yield from ((family, family_of[places] == number) for number, family in enumerate(families))
    elif part.pooled:
        yield part.name, slice(None)
    else:  # axes differ
        keys = [f"{part.key(names)}/{axis}" for names in sets for axis in range(len(names))]
        yield from ((key, np.array(keys) == key) for key in dict.fromkeys(keys))


def _role(workload: Workload, name: str, weights: Mapping[tuple[str, ...], float], with_weights: bool) -> Role:
    """Return the size of an attribute and its (family, degree), with their rounded weights if `with_weights`."""
    entries = [(*key, f"{weight:.6g}") if with_weights else key for key, weight in weights.items() if weight > 0]
    return workload.domain[name].size, frozenset(entries)


Token = tuple[int, str]
# cells solved together: above the first a joint demand has even weights; above the second, weights equal to their
# reverse
SEARCHED_CELLS, MIRRORED_CELLS = 2600, 500
ARRAY_CELLS = 200  # limit for arrays of queries, which have no symmetry that makes a search cheap
SEARCHED_BLOCKS = 256  # most parts of an axis whose weights are searched; a longer axis has this number of blocks


@dataclass(frozen=True)
class Products:
    """Pieces of product queries: tokens of the centred axes, in axis order, and of the averaged axes."""

    centred: tuple[Token, ...]
    outside: tuple[Token, ...]

    @property
    def kinds(self) -> tuple[int, ...]:
        return tuple(kind for kind, _ in self.centred)


@dataclass(frozen=True)
class Joint:
    """Pieces of other queries, by `key`: centred on the axes `centred`, else averaged; `over`: kinds of all axes."""

    key: str
    over: tuple[int, ...]
    centred: tuple[int, ...]

    @property
    def kinds(self) -> tuple[int, ...]:
        return tuple(self.over[axis] for axis in self.centred)


Term = Products | Joint


def _described(weighted: tuple[Term, float]) -> str:
    """Return the text of a term in digests, which is independent of the names of fields."""
    term, weight = weighted
    if isinstance(term, Products):
        return f"(Products(kept={term.centred!r}, outside={term.outside!r}), {weight!r})"
    return f"(Joint(key={term.key!r}, over={term.over!r}, kept={term.centred!r}), {weight!r})"


Demand = frozenset[tuple[Term, float]]  # terms of one residual space with their weights


@dataclass(frozen=True)
class Demands:
    """Residual spaces of a workload with their terms, by multiplicity.

    An axis of more than a few hundred cells is searched by its blocks (`workload.wide`), because weights are smooth
    there.

    Attributes
    ----------
    kind_of : mapping of str to int
        Kind of every attribute of the workload.
    sizes, cells : tuple of int
        By kind: number of searched cells (blocks for a wide axis), and number of cells of the axis.
    counts : mapping of Demand to int
        Multiplicity of each demand.
    queries : mapping of str to ndarray
        Queries of joint families and arrays by key.
    families : mapping of str to Family
        One-way families by the keys that tokens contain.
    even : frozenset of int
        Kinds whose best weights are the plain mean, or whose problems are too large for a search, or not smooth.
    mirrored : frozenset of int
        Kinds in problems so large that exploiting reversal symmetry saves more than asymmetric weights would gain.
    """

    kind_of: Mapping[str, int]
    sizes: tuple[int, ...]  # number of searched cells; blocks of a wide axis
    cells: tuple[int, ...]
    counts: Mapping[Demand, int]
    queries: Mapping[str, Floats]
    families: Mapping[str, Family]
    even: frozenset[int]
    mirrored: frozenset[int] = frozenset()

    @cached_property
    def digest(self) -> str:
        """Digest that is equal for equal demands.

        `counts` has the number of each demand; `even` and `mirrored` are the kinds of attributes with these
        symmetries.
        """
        demands = sorted(repr((sorted(map(_described, demand)), number)) for demand, number in self.counts.items())
        return hashlib.sha256(
            repr((self.cells, sorted(self.even), sorted(self.mirrored), demands)).encode()
        ).hexdigest()

    def shape(self, demand: Demand) -> tuple[int, ...]:
        """Return the sizes of the axes of a demand's space."""
        return tuple(self.sizes[kind] for kind in next(iter(demand))[0].kinds)

    @cached_property
    def plain(self) -> list[Floats]:
        """Plain mean by kind; for blocks, their fractions of the cells."""
        cuts = [even_cut(cells, size).lengths / cells for cells, size in zip(self.cells, self.sizes, strict=True)]
        return [np.asarray(profile, dtype=np.float64) for profile in cuts]

    def main_family(self, kind: int) -> Family:
        """Return the one-way family with the largest total weight for a kind."""
        totals: Counter[str] = Counter()
        for demand, number in self.counts.items():
            for term, weight in demand:
                tokens = (*term.centred, *term.outside) if isinstance(term, Products) else ()
                shares = {family: number * weight for of_kind, family in tokens if of_kind == kind}
                totals.update(shares)  # type: ignore[arg-type]
        return self.families[max(totals, key=lambda family: totals[family])] if totals else PREFIX

    def axis(self, token: Token) -> AxisQueries:
        """Return the queries of a one-way family on an axis, by blocks if the axis is wide."""
        return axis_queries(self.families[token[1]], self.cells[token[0]])


@dataclass(frozen=True, eq=False)
class AxisQueries:
    """Gram matrix on the cells or blocks of an axis; `inside`: square of the contribution within blocks to √L."""

    gram: Floats
    inside: float


@lru_cache(maxsize=256)
def axis_queries(family: Family, size: int) -> AxisQueries:
    """Return the cached queries of a one-way family."""
    if size <= SEARCHED_BLOCKS:
        return AxisQueries(family.gram(size), 0.0)
    cut = even_cut(size, SEARCHED_BLOCKS)
    inside = [run.count * family.inner_bound(cut, run) for run in cut.runs]
    return AxisQueries(family.block_gram(cut), math.fsum(inside))


def demands_of(workload: Workload) -> Demands:
    """Return the demands of a workload.

    Attributes with as many cells and the same uses by queries are of one kind, and have the same weights. The weights
    of some kinds are even, without a search: if no query needs others, or if there are too many cells.

    A kind is even if its axis has one cell, if its families are unchanged by rotations of the axis, or if it is wide
    and used by a family that has neither intervals nor single cells, so its blocks do not represent the queries.

    A demand has the terms of a residual space with their weights; equal demands are counted once. `sizes` are the cells
    of each kind, at most SEARCHED_BLOCKS of them; `mirrored` are the kinds whose weights are searched among those that
    are equal from both ends.
    """
    kinds = kinds_of(workload)
    number_of = {role: number for number, role in enumerate(dict.fromkeys(kinds.values()))}
    kind_of = {name: number_of[role] for name, role in kinds.items()}
    cells = tuple(size for size, _ in number_of)
    sizes = tuple(min(size, SEARCHED_BLOCKS) for size in cells)
    families = {family.key: family for part in workload.parts for family in part.axis_families}
    # families that look the same from every cell, for which even weights are optimal
    invariant = {key for key, family in families.items() if family.invariant}
    invariant |= {part.name for part in workload.parts if part.pooled and part.invariant}
    # families that blocks of cells do not represent
    not_in_blocks = {key for key, family in families.items() if not (family.has_intervals or family.is_identity)}
    even = set[int]()
    for (size, uses), number in number_of.items():
        keys = {use[0] for use in uses}
        if size == 1 or keys <= invariant or (is_wide(size) and keys & not_in_blocks):
            even.add(number)

    spaces = _Spaces(workload, kind_of)
    counts = _of_few_cells(spaces.counts(), sizes, cells)
    demands = Demands(
        kind_of=kind_of,
        sizes=sizes,
        cells=cells,
        counts=counts,
        queries=spaces.queries,
        families=families,
        even=frozenset(even),
    )

    # demands that are no product are solved on all their cells together
    cells_of = {}
    for demand in demands.counts:
        if not is_product([term for term, _ in demand]):
            cells_of[demand] = math.prod(demands.shape(demand))
    joint = {demand for demand in cells_of if any(isinstance(term, Joint) for term, _ in demand)}
    arrays = {part.key(names) for part in workload.parts if not part.by_shape for names in part.sets}
    # a search would solve joint demands again and again, which is possible on few cells only
    most_cells = {demand: ARRAY_CELLS if _keys(demand) & arrays else SEARCHED_CELLS for demand in joint}
    too_large = _kinds_in(demand for demand in joint if cells_of[demand] > most_cells[demand])
    mirrored = _kinds_in(demand for demand, number in cells_of.items() if number > MIRRORED_CELLS)

    return replace(demands, even=frozenset(even) | too_large, mirrored=mirrored)


def _keys(demand: Demand) -> set[str]:
    return {term.key for term, _ in demand if isinstance(term, Joint)}


def _of_few_cells(counts: Counter[Demand], sizes: Sequence[int], cells: Sequence[int]) -> Counter[Demand]:
    """Return the demands without the joint families of wide axes, whose queries are defined on the cells.

    `sizes[kind] < cells[kind]` marks an axis that is searched by blocks. Demands without any remaining term are left
    out.
    """
    cut = {kind for kind, size in enumerate(cells) if sizes[kind] < size}
    remaining: Counter[Demand] = Counter()
    for demand, number in counts.items():
        remaining_terms = frozenset(
            (term, weight) for term, weight in demand if not (isinstance(term, Joint) and cut & set(term.over))
        )
        if remaining_terms:
            remaining[remaining_terms] += number
    return remaining


def _kinds_in(demands: Iterable[Demand]) -> frozenset[int]:
    return frozenset(kind for demand in demands for term, _ in demand for kind in term.kinds)


@dataclass
class _Spaces:
    """Collector of the terms of every residual space, by numbers of terms."""

    workload: Workload
    kind_of: Mapping[str, int]
    terms: dict[Term, int] = field(default_factory=dict)
    queries: dict[str, Floats] = field(default_factory=dict)

    def counts(self) -> Counter[Demand]:
        """Return the multiplicity of each demand, in order of first occurrence.

        A demand is a set of (term, weight). Terms are numbered in `terms`, so that classes of spaces can be counted by
        numbers; the sort by first occurrence makes the order independent of the degrees.
        """
        residuals = RequestedResiduals(self.workload.domain.axis_names)
        for part in self.workload.parts:
            residuals.add(part.sets, part.weights, self._kinds(part), partial(self._leaves, part))
        classes = [of_class for degree in residuals.degrees() for of_class in self._classes(residuals, degree)]
        known, counts = list(self.terms), Counter[Demand]()
        for _, terms, number in sorted(classes):
            counts[_demand({known[term]: weight for term, weight in terms})] += number

        return counts

    def _classes(
        self, requested: RequestedResiduals, degree: int
    ) -> list[tuple[int, tuple[tuple[int, float], ...], int]]:
        """Return first occurrence, terms and number of spaces of each class with positive weight.

        The spaces of a class have `degree` attributes and the same terms, given as (number of the term, weight).
        """
        classes = requested.classes(degree, len(self.terms))
        rows = zip(classes.turns.tolist(), classes.terms, classes.counts.tolist(), strict=True)
        return [(turn, terms, number) for turn, terms, number in rows if any(weight for _, weight in terms)]

    def _kinds(self, part: WorkloadPart) -> Integers:
        """Return a number for each attribute that encodes its kind and its role in the part.

        The number is roles · kind + role, and kind −1 for attributes that no query uses.
        """
        names, roles = self.workload.domain.axis_names, max(2, len(part.axis_families))
        return np.array([roles * self.kind_of.get(name, -1) + part.role(name) for name in names], np.int64)

    def _leaves(self, part: WorkloadPart, names: AttributeSet) -> list[Left]:
        """Return what the queries of a set contribute to each residual: its axes, and the number of the term.

        A term, with its kinds of attributes and families, is the same for many sets, so it is numbered once. The axes
        of a residual are the centred ones; `kind_of` has the kind of each attribute.
        """
        kinds = tuple([self.kind_of[name] for name in names])
        if not part.factorizes and part.key(names) not in self.queries:
            self.queries[part.key(names)] = weighted_queries(part, names)
        contributions = _terms(part, names, kinds, part.exchangeable and len(set(kinds)) == 1)
        return [Left(centred, self.terms.setdefault(term, len(self.terms))) for centred, term in contributions]


def _terms(
    part: WorkloadPart, names: AttributeSet, kinds: tuple[int, ...], exchangeable: bool
) -> Iterator[tuple[tuple[int, ...], Term]]:
    """Yield the centred axes and the term that the queries of a set contribute to them.

    If `exchangeable` is True, the two axes are exchangeable and the first represents both. `kinds` are the kinds of the
    attributes; a term of products has the queries inside the residual in order, and those outside sorted, since their
    order does not matter.
    """
    axes = tuple(range(len(names)))
    if not part.factorizes:
        yield from (
            (centred, Joint(part.key(names), kinds, (0,) if exchangeable and centred == (1,) else centred))
            for centred in subsets(axes)
        )
        return

    tokens = [(kind, family.key) for kind, family in zip(kinds, part.families(names), strict=True)]
    for centred in subsets(axes):
        outside = sorted([tokens[axis] for axis in axes if axis not in centred])
        yield centred, Products(tuple([tokens[axis] for axis in centred]), tuple(outside))


def _demand(terms: Mapping[Term, float]) -> Demand:
    """Return the terms of a space; if all have the same product, the order of the axes is normalised.

    Terms of weight 0 are omitted. Terms of a sum keep their axes, which must agree between the terms.
    """
    positive = {term: weight for term, weight in terms.items() if weight > 0}
    if not is_product(positive):
        return frozenset(positive.items())
    return frozenset((Products(tuple(sorted(term.centred)), term.outside), weight)
                     for term, weight in positive.items() if isinstance(term, Products))  # fmt: skip


MOST_FAMILIES = 48  # of one kind of attribute, above which a search for weights has their mean


def pooled(demands: Demands) -> Demands:
    """Return the demands with one family, the mean of all, on each axis that has many, for a search of weights.

    Sums of many products are then one product, of which the optimum is known. Families count by the traces of their
    terms.

    `totals` has, for each kind of attribute, the share of each family: Σ number · weight · traces of its terms.
    """
    totals: dict[int, Counter[str]] = defaultdict(Counter)
    for demand, number in demands.counts.items():
        for term, weight in demand:
            tokens = (*term.centred, *term.outside) if isinstance(term, Products) else ()
            share = number * weight * math.prod(_trace(demands, token) for token in tokens)
            for kind, family in tokens:
                totals[kind][family] += share  # type: ignore[assignment]

    # axes that are searched in blocks are left out
    many = {kind: shares for kind, shares in totals.items()
            if len(shares) > MOST_FAMILIES and demands.sizes[kind] == demands.cells[kind]}  # fmt: skip
    if not many:
        return demands
    means = {kind: _mean_family(demands, kind, shares) for kind, shares in many.items()}
    families = {**demands.families, **{family.key: family for family in means.values()}}
    counts: Counter[Demand] = Counter()
    for demand, number in demands.counts.items():
        counts[_with_means(demands, demand, means)] += number
    return replace(demands, families=families, counts=counts)


def _trace(demands: Demands, token: Token) -> float:
    return float(np.trace(demands.axis(token).gram))


def _mean_family(demands: Demands, kind: int, shares: Mapping[str, float]) -> Family:
    """Return queries whose Gram matrix, of trace 1, is the mean of those of families with these shares."""
    total = math.fsum(shares.values())
    grams = [share / total * demands.axis((kind, key)).gram / _trace(demands, (kind, key))
             for key, share in shares.items()]  # fmt: skip
    return ListedQueries.of(root_of(np.sum(grams, axis=0)))


def _with_means(demands: Demands, demand: Demand, means: Mapping[int, Family]) -> Demand:
    """Return a demand with the means instead of the families of their kinds; equal terms are added.

    A mean family has trace 1, so a term with replaced families is multiplied by the traces of their Gram matrices.
    """
    terms: dict[Term, float] = {}
    for term, weight in demand:
        if isinstance(term, Products):
            replaced = [token for token in (*term.centred, *term.outside) if token[0] in means]
            weight *= math.prod(_trace(demands, token) for token in replaced)
            centred, outside = (
                tuple((kind, means[kind].key if kind in means else family) for kind, family in tokens)
                for tokens in (term.centred, term.outside)
            )
            term = Products(centred, tuple(sorted(outside)))
        terms[term] = terms.get(term, 0.0) + weight
    return _demand(terms)


def is_product(terms: Iterable[Term]) -> bool:
    """Return whether a demand's Gram matrix is one Kronecker product."""
    listed = list(terms)
    return all(isinstance(term, Products) for term in listed) and len({term.centred for term in listed}) <= 1
