"""Compact sequences of attribute sets, and the choice of the sets to count.

Half a million sets take a few megabytes. A set is stored as the ascending positions of its attributes in the domain:
`members[ends[i − 1]:ends[i]]`. It is found by a hash, the sum modulo 2^64 of one random word per attribute; sets with
equal hashes are compared attribute by attribute.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, overload

import numpy as np

from dpscale.base.numerics import AttributeSet, Integers, Integers32, NDArray
from dpscale.domain import Domain

SEED = 19  # of the random words by which sets are found


class AttributeSets(Sequence[AttributeSet]):
    """Sequence of attribute sets over `names`, the attributes of a domain in order.

    Attributes
    ----------
    names : tuple of str
    members : ndarray of int32
        Concatenated attribute positions of all sets.
    ends : ndarray of int32, shape (sets,)
        End of each set in `members`.
    """

    def __init__(self, names: tuple[str, ...], members: Integers32, ends: Integers32) -> None:
        self.names, self.members, self.ends = names, members, ends

    @classmethod
    def of(cls, names: tuple[str, ...], sets: Sequence[AttributeSet]) -> AttributeSets:
        """Build the sequence from tuples of names, each in the order of `names`."""
        place = {name: i for i, name in enumerate(names)}
        ends = np.cumsum(np.fromiter(map(len, sets), np.int32, len(sets)), dtype=np.int32)
        members = np.fromiter(map(place.__getitem__, chain.from_iterable(sets)), np.int32, int(ends[-1:].sum()))
        return cls(names, members, ends)

    def __len__(self) -> int:
        return len(self.ends)

    @overload
    def __getitem__(self, index: int) -> AttributeSet: ...
    @overload
    def __getitem__(self, index: slice) -> list[AttributeSet]: ...
    def __getitem__(self, index: Any) -> Any:
        """Return one set as a tuple of names, or a list of sets for a slice.

        `members` has the attribute numbers of all sets one after the other, and `ends` the end of each set.
        """
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        attributes = self.members[self._start(range(len(self))[index]) : self.ends[index]]
        return tuple([self.names[i] for i in attributes.tolist()])

    def __iter__(self) -> Iterator[AttributeSet]:
        """Yield the sets as tuples of names; `members` is read once, up to the end of each set."""
        named, start = [self.names[i] for i in self.members.tolist()], 0
        for end in self.ends.tolist():
            yield tuple(named[start:end])
            start = end

    @property
    def starts(self) -> Integers32:
        """Start of each set in `members`."""
        return np.concatenate([np.zeros(1, np.int32), self.ends])[:-1]

    @property
    def degrees(self) -> Integers32:
        """Number of attributes of each set."""
        return np.diff(self.ends, prepend=np.int32(0))

    def take(self, wanted: NDArray[np.int64]) -> AttributeSets:
        """Return the sets at the positions `wanted`.

        The attributes of all sets are in one array, `members`, in which set i ends at `ends[i]`.

        `within` is the position of an attribute in its set, so start + within is its position in `members`.
        """
        degrees = self.degrees[wanted]
        ends = np.cumsum(degrees, dtype=np.int32)
        within = np.arange(int(degrees.sum())) - np.repeat(ends - degrees, degrees)
        return AttributeSets(self.names, self.members[np.repeat(self.starts[wanted], degrees) + within], ends)

    def find(self, attributes: Iterable[str]) -> list[int]:
        """Return the positions of a set, ascending; empty if it is absent or a name is unknown.

        `_keys` has the positions of the sets sorted by key, and the keys in this order; sets of one key are adjacent.
        """
        place, wanted = self._place, tuple(attributes)
        if any(name not in place for name in wanted):
            return []

        # the key of a set is the sum of a random number of each attribute; different sets may have one key
        key = np.uint64(sum(self._numbers[place[name]] for name in wanted) & 0xFFFFFFFFFFFFFFFF)
        ordered, keys = self._keys
        first, candidates = int(keys.searchsorted(key)), []

        while first < len(keys) and keys[first] == key:
            candidates.append(int(ordered[first]))
            first += 1

        return [i for i in candidates if len(self[i]) == len(wanted) and set(self[i]) == set(wanted)]

    @property
    def distinct(self) -> bool:
        """Whether no set occurs twice."""
        keys = self._keys[1]
        return not (keys[1:] == keys[:-1]).any()

    def positions(self, sets: Sequence[AttributeSet]) -> Integers32:
        """Return the attribute positions of sets of one degree, shape (sets, degree)."""
        return np.array([[self._place[name] for name in names] for names in sets], np.int32).reshape(len(sets), -1)

    def locate(self, members: Integers32) -> NDArray[np.int64]:
        """Return the position of each set of one degree in this sequence of distinct sets, or −1 if it is absent.

        Each wanted set is compared with the first set that has its key and its degree, attribute by attribute.

        Parameters
        ----------
        members : ndarray of int32, shape (sets, degree)
            Attribute positions, ascending in each row.
        """
        ordered, keys = self._keys
        wanted = np.add.reduce(self._words[members], axis=1, dtype=np.uint64)
        positions, degree = np.full(len(members), -1), members.shape[1]
        if not len(keys):
            return positions
        nearest = np.minimum(keys.searchsorted(wanted), len(keys) - 1)
        candidates = ordered[nearest]

        # of the sets with an equal key and degree, those with equal attributes
        similar = np.flatnonzero((keys[nearest] == wanted) & (self.degrees[candidates] == degree))
        attributes = self.members[self.starts[candidates[similar]][:, None] + np.arange(degree)]
        equal = similar[(attributes == members[similar]).all(axis=1)]
        positions[equal] = candidates[equal]
        return positions

    def sums(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return for each set the sum of `values`, one per attribute, over its attributes; 0 for the empty set."""
        running = np.concatenate([np.zeros(1, values.dtype), np.cumsum(values[self.members], dtype=values.dtype)])
        return running[self.ends] - running[self.starts]

    @cached_property
    def _place(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.names)}

    @cached_property
    def _words(self) -> NDArray[np.uint64]:
        return np.random.default_rng(SEED).integers(0, 2**64, len(self.names), dtype=np.uint64)

    @cached_property
    def _numbers(self) -> list[int]:
        return [int(word) for word in self._words]

    @cached_property
    def _keys(self) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
        keys = self.sums(self._words)  # modulo 2^64: cumulative sums may wrap, their differences are correct
        ordered = np.argsort(keys, kind="stable")
        return ordered, keys[ordered]

    def _start(self, index: int) -> int:
        return int(self.ends[index - 1]) if index else 0


DIGITS = 6  # decimals of a logarithm of cells; equal numbers of cells differ by less


@dataclass(frozen=True, eq=False)
class CountSources:
    """Sets to count for a sequence of blocks.

    Attributes
    ----------
    sets : AttributeSets
        Sets to count, in domain order.
    source : ndarray of int32, shape (blocks,)
        Position in `sets` of the set that each block is measured from.
    """

    sets: AttributeSets
    source: NDArray[np.int32]


def count_sources(domain: Domain, sets: AttributeSets) -> CountSources:
    """Return the sets to count for blocks over `sets`: those that no other set contains.

    Each block is measured from its *source*, the counted set with the fewest cells that contains its attributes.

    `rank` orders the sets as sources, best first. For each degree, from the largest sets down, `subsets` are all sets
    of this degree inside larger ones, a row of attribute positions each, with their best sources. `rows` adds the sets
    of this degree, each with itself as its source. `_group_rows` groups equal rows and prefers a row of `subsets` (0)
    to the set itself (1), so only a set that no other contains is its own source. Rows of the sets are the last ones.
    """
    # the permutation that sorts the sets by their first attribute, then by the second, and so on
    largest = int(sets.degrees.max(initial=0))
    places = np.minimum(sets.starts[:, None] + np.arange(largest), max(len(sets.members) - 1, 0))
    padded = np.where(np.arange(largest) < sets.degrees[:, None], sets.members[places] if largest else 0, -1)
    order = np.lexsort(padded.T[::-1]) if largest else np.arange(len(sets))
    rank = _ranks(domain, sets, order)
    source, degrees = np.empty(len(sets), np.int64), sets.degrees  # number of the source of each set

    subsets, sources = np.empty((0, int(degrees.max(initial=0))), np.int32), np.empty(0, np.int64)
    for degree in range(subsets.shape[1], -1, -1):
        of_degree = np.flatnonzero(degrees == degree)
        rows = np.concatenate([subsets, sets.members[sets.starts[of_degree][:, None] + np.arange(degree)]])
        best = np.concatenate([sources, of_degree])
        is_set_itself = np.arange(len(rows)) >= len(sources)
        group, first = _group_rows(rows, is_set_itself.astype(np.int64))
        source[of_degree] = best[first][group[len(sources) :]]
        subsets, sources = _smaller_subsets(rows[first], best[first], rank)

    counted = order[np.isin(order, source)]
    number = np.empty(len(sets), np.int64)  # position of each counted set among them
    number[counted] = np.arange(len(counted))
    return CountSources(sets.take(counted), number[source].astype(np.int32))


def _ranks(domain: Domain, sets: AttributeSets, order: Integers) -> Integers:
    """Return the rank of each set as a source: fewer cells first, ties in reverse domain order.

    `order` is the order of the sets by attributes. Logarithms of the numbers of cells are rounded, so that equal
    numbers are equal.
    """
    logs = np.log2(np.array(domain.shape(domain.axis_names), np.float64))
    cells = np.round(sets.sums(logs), DIGITS)
    ranks = np.empty(len(order), np.int64)
    ranks[order[np.lexsort((-np.arange(len(order)), cells[order]))]] = np.arange(len(order))
    return ranks


def _smaller_subsets(rows: Integers32, sources: Integers, rank: Integers) -> tuple[Integers32, Integers]:
    """Return the distinct subsets with one attribute less, each with its source of the lowest rank.

    `rows` are distinct sets of one degree, shape (sets, degree), with their sources. Every column is left out in turn.
    """
    degree = rows.shape[1]
    if not degree:
        return rows, sources
    smaller = np.concatenate([np.delete(rows, axis, axis=1) for axis in range(degree)])
    every_source = np.tile(sources, degree)
    _, lowest = _group_rows(smaller, rank[every_source])
    return smaller[lowest], every_source[lowest]


def _group_rows(rows: Integers32, preferred: Integers) -> tuple[Integers, Integers]:
    """Group equal rows.

    Returns
    -------
    group : ndarray of int64, shape (rows,)
        Group of each row.
    first : ndarray of int64, shape (groups,)
        Row of each group with the smallest value of `preferred`.
    """
    order = np.lexsort((preferred, *rows.T))
    begins_group = np.ones(len(order), np.bool_)
    begins_group[1:] = (rows[order][1:] != rows[order][:-1]).any(axis=1)
    group = np.empty(len(order), np.int64)
    group[order] = np.cumsum(begins_group) - 1
    return group, order[begins_group]
