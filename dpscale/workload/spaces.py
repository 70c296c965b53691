"""Terms of the workload on every residual space, computed in arrays for groups of equal attribute sets.

A set over A contributes a term on every A' ⊆ A: its weight times some factors. Sets whose axes are of equal kinds have
equal terms, so the terms are computed once per group and summed over sets in columns. The sums follow the order of the
sets, as in a loop over them, so that the floats are identical. Spaces with equal terms form a class.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscale.base.numerics import AttributeSet, Integers

NOWHERE = -1  # term of a space without queries
LARGEST_CODE = 1 << 62
ROOM = 1 << 20  # cells of a table that replaces a sort
GOLDEN, ODD = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)
MIXED = ((30, np.uint64(0xBF58476D1CE4E5B9)), (27, np.uint64(0x94D049BB133111EB)))


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
        own, at = np.divmod(record, len(self.turns))
        return self.first + own * self.step + self.turns[at]


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
        place = {name: i for i, name in enumerate(self.names)}
        flat = np.fromiter(map(place.__getitem__, chain.from_iterable(sets)), np.int64, len(sets) * len(sets[0]))
        places = flat.reshape(len(sets), -1)
        firsts, group = alike(kinds[places])
        leaves_of = [leaves(sets[first]) for first in firsts.tolist()]
        turns = np.arange(len(leaves_of[0]))
        sizes = np.array([len(left.kept) for left in leaves_of[0]])

        for degree in range(places.shape[1] + 1):
            own = turns[sizes == degree]
            lefts = [[one[turn] for turn in own.tolist()] for one in leaves_of]
            codes = np.stack([self._codes(places[:, list(left.kept)]) for left in lefts[0]], axis=1)
            terms = np.array([[left.term for left in one] for one in lefts], np.int32)[group]
            values = _multiplied(weights, lefts, group)
            self._records[degree].append(_Records(codes, terms, values, self._turn, len(turns), own))

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
        kept = np.flatnonzero((which >= 0) & (values > least))
        spaces, space = _places(codes[kept], len(self.names) ** degree)
        keys, first, sums = _sums(space * terms + which[kept], values[kept], len(spaces) * terms)
        order = np.lexsort((first, keys // terms))
        keys, first, sums = keys[order], first[order], sums[order]
        starts = np.searchsorted(keys // terms, np.arange(len(spaces) + 1))
        members = self._members(spaces, degree)
        kinds_of = None if kinds is None else kinds[members]
        turns = _turns(records, ends, kept[first[starts[:-1]]])

        return _classes(members, kinds_of, starts, keys % terms, sums, turns)


def _multiplied(weights: NDArray[np.float64], lefts: list[list[Left]], group: Integers) -> NDArray[np.float64]:
    values = np.repeat(weights[:, None], len(lefts[0]), axis=1)
    for factor in range(max((len(left.times) for one in lefts for left in one), default=0)):
        times = [[left.times[factor] if factor < len(left.times) else 1.0 for left in one] for one in lefts]
        values *= np.array(times)[group]
    return values


def _turns(records: list[_Records], ends: Integers, at: Integers) -> Integers:
    """Return the turns of records, given by their positions in the concatenation."""
    block, found = np.searchsorted(ends, at, side="right"), np.empty(len(at), np.int64)
    for number, record in enumerate(records):
        own = block == number
        found[own] = record.turn(at[own] - (ends[number] - record.terms.size))
    return found


def _places(codes: NDArray[Any], most: int) -> tuple[NDArray[Any], Integers]:
    """Return the distinct codes, sorted, and the position of each code among them."""
    if codes.dtype.kind == "S" or most > 4 * len(codes) + ROOM:
        distinct, which = np.unique(codes, return_inverse=True)
        return distinct, which
    there = np.zeros(most, np.bool_)
    there[codes] = True
    return np.flatnonzero(there), (np.cumsum(there) - 1)[codes]


def _sums(keys: Integers, values: NDArray[np.float64], most: int) -> tuple[Integers, Integers, NDArray[np.float64]]:
    """Return the distinct keys, the first occurrence of each, and the sum of its values in their order."""
    if most > 4 * len(keys) + ROOM:
        distinct, first, which = np.unique(keys, return_index=True, return_inverse=True)
        return distinct, first.astype(np.int64), np.asarray(np.bincount(which, values, len(distinct)), np.float64)
    first = np.full(most, len(keys))
    first[keys[::-1]] = np.arange(len(keys))[::-1]
    distinct = np.flatnonzero(first < len(keys))
    return distinct, first[distinct], np.asarray(np.bincount(keys, values, most), np.float64)[distinct]


def _classes(members: Integers, kinds: Integers | None, starts: Integers, terms: Integers, sums: NDArray[np.float64],
             turns: Integers) -> Classes:  # fmt: skip
    lengths = np.diff(starts)
    which, terms_found, firsts = np.empty(len(members), np.int64), list[tuple[tuple[int, float], ...]](), list[int]()
    for length in np.unique(lengths).tolist():
        own = np.flatnonzero(lengths == length)
        at = starts[own][:, None] + np.arange(length)
        columns = [terms[at], sums[at].view(np.int64), *([] if kinds is None else [kinds[own]])]
        first, found = alike(np.concatenate(columns, axis=1))
        which[own] = found + len(firsts)
        firsts += own[first].tolist()
        terms_found += [tuple(zip(terms[i].tolist(), sums[i].tolist(), strict=True)) for i in at[first]]

    lasts, turned = np.zeros(len(firsts), np.int64), np.full(len(firsts), np.iinfo(np.int64).max)
    lasts[which] = np.arange(len(which))
    np.minimum.at(turned, which, turns)
    counts = np.bincount(which, minlength=len(firsts))

    return Classes(members, which, terms_found, np.array(firsts, np.int64), lasts, turned, counts)


def alike(rows: Integers) -> tuple[Integers, Integers]:
    """Return the first of each group of equal rows, and the group of every row."""
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
