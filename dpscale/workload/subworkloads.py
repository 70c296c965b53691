"""Residual subworkloads: the Gram matrix of the workload on each residual space, as a sum of terms.

For A' ⊆ A the queries of a product family over A contribute to A' the Gram matrix
    weight · Π over A∖A' of |W1|²/n² · ⊗ over A' of C WᵀW C,
and those of a joint family or an array contribute a Gram matrix of low rank or a dense one. Every subworkload is
therefore a weighted sum of Kronecker terms and joint terms, merged if their factors are equal (QuerySmasher, section
5). If an axis has weights u, Wu replaces W1/n and I − u1ᵀ replaces C; nothing else changes (weighted residuals,
docs/mechanisms.md).

*Terms.* A set over A contributes a term on every A' ⊆ A: its weight times some factors. Sets whose axes are of equal
kinds have equal terms, so the terms are computed once per group and summed over sets in columns. The sums follow the
order of the sets, as in a loop over them, so that the floats are identical. Spaces with equal terms form a class.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, pairwise
from typing import Any, cast, overload

import numpy as np
from numpy.typing import NDArray

from dpscale.base.errors import PlanError
from dpscale.base.numerics import AttributeSet, Floats, Integers
from dpscale.domain import Domain
from dpscale.workload.factors import DENSE_CELLS, AnyGram, axis_of, piece_factor
from dpscale.workload.parts import WorkloadPart
from dpscale.workload.residual import Weights, kron, subsets
from dpscale.workload.workload import Workload

NOWHERE = -1  # term of a space without queries
LARGEST_CODE = 1 << 62  # codes below it fit int64; other spaces are coded by bytes
ROOM = 1 << 20  # cells of a table that replaces a sort
# increment of SplitMix64 by axis; odd factor that joins the axes
GOLDEN, ODD = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)
MIXED = ((30, np.uint64(0xBF58476D1CE4E5B9)), (27, np.uint64(0x94D049BB133111EB)))  # shifts and factors of SplitMix64


@dataclass(frozen=True)
class Left:
    """Term of an attribute set on a residual space: its axes, its number, and factors of the set's weight."""

    kept: tuple[int, ...]
    term: int
    times: tuple[float, ...] = ()


@dataclass(frozen=True, eq=False)
class _Records:
    """Terms of some sets on spaces of one degree, arrays of shape (sets, spaces).

    Attributes
    ----------
    codes, terms, values : ndarray
        Space, term number and weight.
    first : int
        Turn (global sequence number) of the first set's first term.
    step : int
        Turns per set.
    turns : ndarray of int64
        Positions of these spaces among the turns of a set.
    """

    codes: NDArray[Any]
    terms: NDArray[np.int32]
    values: NDArray[np.float64]
    first: int
    step: int
    turns: Integers

    def turn(self, record: Integers) -> Integers:
        """Return the turn of each record in the global sequence of terms."""
        number_of_set, at = np.divmod(record, len(self.turns))
        return self.first + number_of_set * self.step + self.turns[at]


@dataclass(frozen=True, eq=False)
class Classes:
    """Residual spaces of one degree, grouped into classes with equal terms.

    Attributes
    ----------
    members : ndarray of int64, shape (spaces, degree)
        Attributes of the spaces, in order.
    which : ndarray of int64, shape (spaces,)
        Class of each space.
    terms : list of tuple of (int, float)
        Terms of each class with their sums, in the order of their first occurrence.
    firsts, lasts : ndarray of int64
        First and last space of each class.
    turns : ndarray of int64
        Turn at which each class first occurred.
    counts : ndarray of int64
        Number of spaces of each class.
    """

    members: Integers
    which: Integers
    terms: list[tuple[tuple[int, float], ...]]
    firsts: Integers
    lasts: Integers
    turns: Integers
    counts: Integers


@dataclass(eq=False)
class RequestedResiduals:
    """Collector of the terms of attribute sets over `names`."""

    names: Sequence[str]
    _records: dict[int, list[_Records]] = field(default_factory=lambda: defaultdict(list))
    _turn: int = 0

    def add(self, sets: Sequence[AttributeSet], weights: Sequence[float], kinds: Integers,
            leaves: Callable[[AttributeSet], Sequence[Left]]) -> None:  # fmt: skip
        """Add attribute sets.

        Parameters
        ----------
        sets : sequence of AttributeSet
        weights : sequence of float
            Weight of each set.
        kinds : ndarray of int64
            Kind of every name. Sets with equal kinds have equal terms.
        leaves : callable
            Returns the terms of a set for all subsets of its axes, in the order of `subsets`.
        """
        degrees = np.fromiter(map(len, sets), np.int64, len(sets))
        cuts = [0, *(np.flatnonzero(np.diff(degrees)) + 1).tolist(), len(sets)]
        for start, end in pairwise(cuts if sets else []):
            self._add(sets[start:end], np.asarray(weights[start:end], np.float64), kinds, leaves)

    def _add(self, sets: Sequence[AttributeSet], weights: NDArray[np.float64], kinds: Integers,
             leaves: Callable[[AttributeSet], Sequence[Left]]) -> None:  # fmt: skip
        """Record the residual terms of sets of one size; sets with attributes of the same kinds share their terms.

        Parameters
        ----------
        sets : sequence of tuple of str
        weights : ndarray
            Weight of each set.
        kinds : ndarray of int
            Kind of each attribute; attributes of one kind have the same queries.
        leaves : callable
            Residuals of a set: the places that each keeps, its term, and its weights.
        """
        place = {name: i for i, name in enumerate(self.names)}
        flat = np.fromiter(map(place.__getitem__, chain.from_iterable(sets)), np.int64, len(sets) * len(sets[0]))
        places = flat.reshape(len(sets), -1)
        firsts, group = alike(kinds[places])
        leaves_of = [leaves(sets[first]) for first in firsts.tolist()]
        turns = np.arange(len(leaves_of[0]))
        sizes = np.array([len(left.kept) for left in leaves_of[0]])

        for degree in range(places.shape[1] + 1):
            same_degree = turns[sizes == degree]
            lefts = [[of_set[turn] for turn in same_degree.tolist()] for of_set in leaves_of]
            codes = np.stack([self._codes(places[:, list(left.kept)]) for left in lefts[0]], axis=1)
            terms = np.array([[left.term for left in of_set] for of_set in lefts], np.int32)[group]
            values = _multiplied(weights, lefts, group)
            self._records[degree].append(
                _Records(codes=codes, terms=terms, values=values, first=self._turn, step=len(turns), turns=same_degree)
            )

        self._turn += len(sets) * len(turns)

    def _codes(self, places: Integers) -> NDArray[Any]:
        """Return spaces as integers or bytes that sort in the order of their attributes."""
        degree = places.shape[1]
        if len(self.names) ** degree >= LARGEST_CODE:
            return np.ascontiguousarray(places.astype(">u4")).view(f"S{4 * degree}").reshape(-1)
        codes = np.zeros(len(places), np.int64)
        for axis in range(degree):
            codes = codes * len(self.names) + places[:, axis]
        return codes

    def _members(self, codes: NDArray[Any], degree: int) -> Integers:
        """Return the attributes of encoded spaces, shape (spaces, degree).

        Codes are bytes of big-endian 32-bit positions, or integers whose base is the number of attributes.
        """
        if codes.dtype.kind == "S":
            return np.frombuffer(codes.tobytes(), ">u4").astype(np.int64).reshape(-1, degree)
        shape = (len(self.names),) * degree
        return np.stack(np.unravel_index(codes, shape), axis=1) if degree else np.zeros((len(codes), 0), np.int64)

    def degrees(self) -> list[int]:
        return sorted(self._records)

    def classes(self, degree: int, terms: int, kinds: Integers | None = None, least: float = -1.0) -> Classes:
        """Return the spaces of a degree and discard their records.

        Parameters
        ----------
        degree : int
        terms : int
            Number of distinct terms.
        kinds : ndarray of int64, optional
            Kinds of the names; spaces of one class must have equal kinds.
        least : float
            Values must exceed this bound to count.
        """
        records = self._records.pop(degree)
        codes, which, values = (
            np.concatenate([getattr(record, name).reshape(-1) for record in records])
            for name in ("codes", "terms", "values")
        )
        ends = np.cumsum([record.terms.size for record in records])
        counted = np.flatnonzero((which >= 0) & (values > least))
        spaces, space = _places(codes[counted], len(self.names) ** degree)
        keys, first, sums = _sums(space * terms + which[counted], values[counted], len(spaces) * terms)
        order = np.lexsort((first, keys // terms))
        keys, first, sums = keys[order], first[order], sums[order]
        starts = np.searchsorted(keys // terms, np.arange(len(spaces) + 1))
        members = self._members(spaces, degree)
        kinds_of = None if kinds is None else kinds[members]
        turns = _turns(records, ends, counted[first[starts[:-1]]])

        return _classes(members, kinds_of, starts, keys % terms, sums, turns)


def _multiplied(weights: NDArray[np.float64], lefts: list[list[Left]], group: Integers) -> NDArray[np.float64]:
    """Return the weights of sets with given factors on each space, shape (sets, spaces).

    `group` is the number of each set's list of terms in `lefts`. The factors are multiplied in a fixed order, and
    missing ones are 1, so that equal weights are equal bit by bit.
    """
    values = np.repeat(weights[:, None], len(lefts[0]), axis=1)
    for factor in range(max((len(left.times) for terms in lefts for left in terms), default=0)):
        times = [[left.times[factor] if factor < len(left.times) else 1.0 for left in terms] for terms in lefts]
        values *= np.array(times)[group]
    return values


def _turns(records: list[_Records], ends: Integers, at: Integers) -> Integers:
    """Return the turns of records, given by their positions in the concatenation.

    A turn is the position of a term in a loop over all sets and spaces; `ends` are the ends of the records' terms.
    """
    block, turns = np.searchsorted(ends, at, side="right"), np.empty(len(at), np.int64)
    for number, record in enumerate(records):
        is_inside = block == number
        turns[is_inside] = record.turn(at[is_inside] - (ends[number] - record.terms.size))
    return turns


def _places(codes: NDArray[Any], most: int) -> tuple[NDArray[Any], Integers]:
    """Return the distinct codes, sorted, and the position of each code among them.

    Few codes are marked in an array of all codes; many or textual codes are sorted.
    """
    if codes.dtype.kind == "S" or most > 4 * len(codes) + ROOM:
        distinct, which = np.unique(codes, return_inverse=True)
        return distinct, which
    there = np.zeros(most, np.bool_)
    there[codes] = True
    return np.flatnonzero(there), (np.cumsum(there) - 1)[codes]


def _sums(keys: Integers, values: NDArray[np.float64], most: int) -> tuple[Integers, Integers, NDArray[np.float64]]:
    """Return the distinct keys, the first occurrence of each, and the sum of its values in their order.

    With few possible keys, the first occurrence is the last write of the reversed sequence, and sums need no sorting.
    """
    if most > 4 * len(keys) + ROOM:
        distinct, first, which = np.unique(keys, return_index=True, return_inverse=True)
        return distinct, first.astype(np.int64), np.asarray(np.bincount(which, values, len(distinct)), np.float64)
    first = np.full(most, len(keys))
    first[keys[::-1]] = np.arange(len(keys))[::-1]
    distinct = np.flatnonzero(first < len(keys))
    return distinct, first[distinct], np.asarray(np.bincount(keys, values, most), np.float64)[distinct]


def _classes(members: Integers, kinds: Integers | None, starts: Integers, terms: Integers, sums: NDArray[np.float64],
             turns: Integers) -> Classes:  # fmt: skip
    """Return residual sets by class: two are in one if they have the same terms with the same sums, and the same kinds.

    Sets with as many terms are compared at once, as rows of integers (`alike`); floats are compared by their bits. A
    class has its first and last set, the number of its sets, and the earliest turn of any.

    Parameters
    ----------
    members : ndarray of int, shape (residual sets, degree)
    kinds : ndarray of int or None
    starts : ndarray of int
        Where the terms of each set start in `terms` and `sums`, and their end.
    terms, sums : ndarray
        Number and summed weight of each term.
    turns : ndarray of int
        When each set was first asked for.
    """
    lengths = np.diff(starts)
    which, terms_found, firsts = np.empty(len(members), np.int64), list[tuple[tuple[int, float], ...]](), list[int]()
    for length in np.unique(lengths).tolist():
        same_length = np.flatnonzero(lengths == length)
        at = starts[same_length][:, None] + np.arange(length)
        columns = [terms[at], sums[at].view(np.int64), *([] if kinds is None else [kinds[same_length]])]
        first, class_of = alike(np.concatenate(columns, axis=1))
        which[same_length] = class_of + len(firsts)
        firsts += same_length[first].tolist()
        terms_found += [tuple(zip(terms[i].tolist(), sums[i].tolist(), strict=True)) for i in at[first]]

    lasts, earliest = np.zeros(len(firsts), np.int64), np.full(len(firsts), np.iinfo(np.int64).max)
    lasts[which] = np.arange(len(which))
    np.minimum.at(earliest, which, turns)
    counts = np.bincount(which, minlength=len(firsts))

    return Classes(
        members=members,
        which=which,
        terms=terms_found,
        firsts=np.array(firsts, np.int64),
        lasts=lasts,
        turns=earliest,
        counts=counts,
    )


def alike(rows: Integers) -> tuple[Integers, Integers]:
    """Return the first of each group of equal rows, and the group of every row.

    Rows are hashed to 64 bits with a mixing function per column; equal hashes are checked, and a collision leads to an
    exact comparison.
    """
    words = np.zeros(len(rows), np.uint64)
    for axis in range(rows.shape[1]):
        word = np.ascontiguousarray(rows[:, axis]).view(np.uint64) + np.uint64(axis * int(GOLDEN) % 2**64)
        for shift, factor in MIXED:
            word = (word ^ (word >> np.uint64(shift))) * factor
        words = words * ODD + (word ^ (word >> np.uint64(31)))

    _, first, which = np.unique(words, return_index=True, return_inverse=True)
    if not np.array_equal(rows[first[which]], rows):  # hash collision
        _, first, which = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    return first, which.reshape(-1)


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
    factors : dict of str to GramFactor, WideGram or ArrayGram
        Factors by key.
    fourier : bool
        Whether its strategy shall be diagonal in the Fourier basis of the cells.
    """

    attributes: AttributeSet
    sizes: tuple[int, ...]
    weights: tuple[Weights | None, ...]
    terms: dict[tuple[str, ...], float] = field(default_factory=dict)
    factors: dict[str, AnyGram] = field(default_factory=dict)
    fourier: bool = False

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

    def add(self, factors: Sequence[AnyGram], weight: float) -> None:
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
        digest = hashlib.sha256(repr((self.sizes, terms)).encode()).hexdigest()
        return f"fourier/{digest}" if self.fourier else digest


def decompose(workload: Workload, weights: Mapping[str, Weights] | None = None, most_entries: int = 0) -> Subworkloads:
    """Return the subworkloads with queries and without public totals, smaller attribute sets first.

    Parameters
    ----------
    workload : Workload
    weights : mapping of str to Weights, optional
        Weights of the attributes that are not averaged by the plain mean.
    most_entries : int
        Largest number of entries of the queries of a joint family or an array over more than `DENSE_CELLS` cells.
    """
    split = _Split(workload.domain, weights or {}, most_entries)
    for part in workload.parts:
        split.add(part)
    subs = split.subworkloads()
    return subs if not workload.domain.public_totals else subs.unknown(workload.domain)


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

    def __init__(self, names: tuple[str, ...], by_degree: Sequence[Classes], classes: Sequence[Subworkload]) -> None:
        """Concatenate the spaces of all degrees, one after the other; `by_degree` has the classes of each degree.

        `firsts` and `lasts` are the first and last space of each class, numbered over all degrees.
        """
        self.names, self.classes = names, classes
        members: list[Integers] = [np.zeros(0, np.int32)]
        which, firsts, lasts = [np.zeros(0, np.int64)], list[int](), list[int]()
        degrees, spaces_before, classes_before = list[int](), 0, 0
        for of_degree in by_degree:
            members.append(of_degree.members.reshape(-1))
            degrees += [of_degree.members.shape[1]] * len(of_degree.which)
            which.append(of_degree.which + classes_before)
            firsts += (of_degree.firsts + spaces_before).tolist()
            lasts += (of_degree.lasts + spaces_before).tolist()
            spaces_before, classes_before = len(degrees), classes_before + len(of_degree.terms)

        self.members = np.concatenate(members).astype(np.int32)
        self.ends = np.cumsum(degrees, dtype=np.int32)
        self.which, self.firsts, self.lasts = np.concatenate(which), firsts, lasts

    def unknown(self, domain: Domain) -> Subworkloads:
        """Return the subworkloads on residuals that do not follow from a public total."""
        return self._chosen([i for i in range(len(self)) if domain.known_table(self._set(i)) is None])

    def in_fourier_basis(self, sets: Collection[AttributeSet]) -> Subworkloads:
        """Return the subworkloads with those on some attribute sets flagged `fourier`.

        Raises PlanError if a set has no subworkload.

        The flagged subworkloads become classes of their own, numbered after the others.
        """
        places = {self._set(i): i for i in range(len(self))}
        if missing := [names for names in sets if not names or names not in places]:
            raise PlanError("mechanism.fourier", f"the set {', '.join(missing[0]) or 'of no attributes'}",
                            "attribute sets inside those of the workload", "fix the names, or remove it")  # fmt: skip

        flagged, chosen = copy(self), [places[names] for names in dict.fromkeys(sets)]
        flagged.classes = [*self.classes, *(replace(self[i], fourier=True) for i in chosen)]
        flagged.which = self.which.copy()
        flagged.which[chosen] = len(self.classes) + np.arange(len(chosen))
        return flagged._chosen(range(len(self)))

    def _chosen(self, places: Sequence[int]) -> Subworkloads:
        """Return the subworkloads at some places, with the classes that they have."""
        chosen = np.array(places, np.int64)
        used, which = np.unique(self.which[chosen], return_inverse=True)
        subs = copy(self)
        subs.classes, subs.which = [self.classes[i] for i in used.tolist()], which.astype(np.int64)
        sets = [self._places(i) for i in chosen.tolist()]
        subs.members = np.concatenate([np.zeros(0, np.int32), *sets]).astype(np.int32)
        subs.ends = np.cumsum([len(names) for names in sets], dtype=np.int32)
        subs.firsts = [int(np.flatnonzero(which == i)[0]) for i in range(len(used))]
        subs.lasts = [int(np.flatnonzero(which == i)[-1]) for i in range(len(used))]

        return subs

    def _places(self, index: int) -> NDArray[np.int32]:
        return self.members[self.ends[index - 1] if index else 0 : self.ends[index]]

    def _set(self, index: int) -> AttributeSet:
        return tuple([self.names[i] for i in self._places(index).tolist()])

    def of_all(self, value_of: Callable[[Subworkload], float]) -> list[float]:
        """Return a number for every subworkload, computed once per class."""
        values = np.array([value_of(sub) for sub in self.classes], np.float64)
        return cast(list[float], values[self.which].tolist())

    def __len__(self) -> int:
        return len(self.which)

    @overload
    def __getitem__(self, index: int) -> Subworkload: ...
    @overload
    def __getitem__(self, index: slice) -> list[Subworkload]: ...
    def __getitem__(self, index: Any) -> Any:
        """Return a subworkload under its names, or a list of them for a slice."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        return replace(self.classes[self.which[place]], attributes=self._set(place))


@dataclass
class _Split:
    """Collector of the terms of attribute sets; a term is a tuple of factor keys."""

    domain: Domain
    weights: Mapping[str, Weights]
    most_entries: int = 0
    terms: dict[tuple[str, ...], int] = field(default_factory=dict)
    factors: dict[str, AnyGram] = field(default_factory=dict)
    asked: RequestedResiduals = field(init=False)

    def __post_init__(self) -> None:
        self.asked = RequestedResiduals(self.domain.axis_names)

    def add(self, part: WorkloadPart) -> None:
        """Add the terms of all sets of a part."""
        leaves = self._products if part.factorizes else self._joint
        self.asked.add(part.sets, part.weights, self._kinds(part.role), partial(leaves, part))

    def subworkloads(self) -> Subworkloads:
        """Return the subworkloads: the requested residual sets, with one Gram matrix for each class of equal terms."""
        kinds = self._kinds(lambda name: 0)
        by_degree = [self.asked.classes(degree, len(self.terms), kinds, 0.0) for degree in self.asked.degrees()]
        keys = list(self.terms)

        subs = list[Subworkload]()
        for classes in by_degree:
            for first, terms in zip(classes.firsts, classes.terms, strict=True):
                subs.append(self._made(classes.members[first], [(keys[term], weight) for term, weight in terms]))
        return Subworkloads(self.domain.axis_names, by_degree, subs)

    def _made(self, places: NDArray[np.int64], terms: Sequence[tuple[tuple[str, ...], float]]) -> Subworkload:
        """Return the subworkload on the attributes at `places`, with its terms and the factors that they name."""
        attributes = tuple([self.domain.axis_names[i] for i in places.tolist()])
        factors = {key: self.factors[key] for term, _ in terms for key in term}
        return Subworkload(
            attributes=attributes,
            sizes=self.domain.shape(attributes),
            weights=self._weights_of(attributes),
            terms=dict(terms),
            factors=factors,
        )

    def _kinds(self, role: Callable[[str], int]) -> NDArray[np.int64]:
        """Return numbers that are equal for attributes with equal size, weights and role in a part."""
        known: dict[tuple[int, int, int], int] = {}
        sized = zip(self.domain.axis_names, self.domain.shape(self.domain.axis_names), strict=True)
        kinds = [(size, id(self.weights.get(name)), role(name)) for name, size in sized]
        return np.array([known.setdefault(kind, len(known)) for kind in kinds], np.int64)

    def _weights_of(self, attributes: AttributeSet) -> tuple[Weights | None, ...]:
        return tuple([self.weights.get(name) for name in attributes])

    def _term(self, factors: Sequence[AnyGram]) -> int:
        self.factors.update({factor.key: factor for factor in factors})
        return self.terms.setdefault(tuple([factor.key for factor in factors]), len(self.terms))

    def _products(self, part: WorkloadPart, attributes: AttributeSet) -> list[Left]:
        """Return the terms of a set of products: factors of the remaining axes, and the weights of all axes.

        A set with weight w adds on the residual A' the factors of A' times w · Π of their traces · Π of the mean
        squares of the other axes.
        """
        triples = zip(part.families(attributes), part.domain.shape(attributes), attributes, strict=True)
        axes = [axis_of(family, size, self.weights.get(name)) for family, size, name in triples]
        return [Left(space, self._term([axes[i].factor for i in space]),
                     tuple([axis.weight if i in space else axis.mean_square for i, axis in enumerate(axes)]))
                for space in subsets(tuple(range(len(axes))))]  # fmt: skip

    def _joint(self, part: WorkloadPart, attributes: AttributeSet) -> list[Left]:
        """Return the residuals of a part on a set whose queries are no product: a piece for each subset of kept axes.

        Raises PlanError if the array over the cells of the set would be too large.

        A piece without weight is numbered NOWHERE.
        """
        cells = part.domain.cells(attributes)
        if cells > DENSE_CELLS and cells * part.count(attributes) > self.most_entries:
            entries = f", or {self.most_entries:,} entries of all queries" if self.most_entries else ""
            remedy = "a product family" if entries else "weighted-fourier, or a product family"
            raise PlanError(
                "workload",
                f"family {part.name} over {cells} cells ({', '.join(attributes)})",
                f"at most {DENSE_CELLS} cells{entries}",
                f"coarsen the attributes, or use {remedy}",
            )

        axis_weights, residuals = self._weights_of(attributes), []
        for space in subsets(tuple(range(len(attributes)))):
            factor, weight = piece_factor(part, attributes, space, axis_weights)
            term = NOWHERE if factor is None else self._term([factor] if space else [])
            residuals.append(Left(space, term, (weight,)))

        return residuals
