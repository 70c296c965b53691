"""Tables of pairs and triples concatenated in flat arrays, the input of the compiled loops (`pair_loops`)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from dpscale.base.numerics import AttributeSet, Floats, Integers, NDArray
from dpscale.reconstruction import pair_loops

TOGETHER = 1 << 18  # cells of tables of one shape that are computed together


def stacks(
    sets: Iterable[AttributeSet], tables: Mapping[AttributeSet, Floats]
) -> Iterator[tuple[list[AttributeSet], Floats]]:
    """Yield tables of equal shapes together: their sets, and an array of shape (tables, *shape).

    An array has at most about TOGETHER entries.
    """
    by_shape: dict[tuple[int, ...], list[AttributeSet]] = {}
    for names in sets:
        by_shape.setdefault(tables[names].shape, []).append(names)
    for shape, own in by_shape.items():
        step = max(TOGETHER // max(math.prod(shape), 1), 1)
        for at in range(0, len(own), step):
            some = own[at : at + step]
            yield some, np.array([tables[names] for names in some])


@dataclass(frozen=True, eq=False)
class OneWayArrays:
    """1-way marginals of equal sums.

    Attributes
    ----------
    values : ndarray
        All marginals, that of attribute i from at[i] to at[i + 1].
    at : ndarray of int64, shape (attributes + 1,)
    total : float
        Sum of each marginal.
    number : mapping of str to int
        Number of each attribute.
    """

    values: Floats
    at: Integers
    total: float
    number: Mapping[str, int]

    @classmethod
    def of(cls, ones: Mapping[str, Floats], total: float) -> OneWayArrays:
        """Return the arrays of 1-way marginals by attribute; attributes are numbered in the order of `ones`."""
        at = np.cumsum([0, *(len(one_way) for one_way in ones.values())])
        return cls(np.concatenate(list(ones.values())), at, total, {name: i for i, name in enumerate(ones)})


@dataclass(frozen=True, eq=False)
class PairArrays:
    """Layout of some pairs of attributes, given by name."""

    ones: OneWayArrays
    names: Sequence[AttributeSet]

    @cached_property
    def pairs(self) -> Integers:
        """Attributes of each pair by number, shape (pairs, 2)."""
        number = self.ones.number
        return np.array([(number[one], number[other]) for one, other in self.names], np.int64).reshape(-1, 2)

    @cached_property
    def starts(self) -> Integers:
        """Start of each pair's cells, and the end of the last, shape (pairs + 1,)."""
        sizes = np.diff(self.ones.at)
        return np.cumsum(np.append(0, sizes[self.pairs[:, 0]] * sizes[self.pairs[:, 1]]))

    @property
    def loop_arguments(self) -> tuple[Floats, Integers, float, Integers, Integers]:
        """The first arguments of the compiled loops."""
        return self.ones.values, self.ones.at, self.ones.total, self.pairs, self.starts

    def independent(self) -> Floats:
        """Return the tables of independent attributes."""
        return np.asarray(pair_loops.products(*self.loop_arguments))

    def noisy(self, residuals: Floats, reference: Floats) -> Floats:
        """Return the noisy tables: their centred residuals plus the margins of the expectation."""
        return np.asarray(pair_loops.noisy(residuals, reference, self.ones.at, self.pairs, self.starts))

    def fit(self, tables: Floats, rounds: int, tolerance: float) -> Floats:
        """Fit the tables to their 1-way marginals, in place, and return them."""
        pair_loops.fit_every(tables, *self.loop_arguments, rounds, tolerance)
        return tables

    def split(self, tables: Floats) -> dict[AttributeSet, Floats]:
        """Return each pair's table as a view."""
        sizes, cuts = np.diff(self.ones.at)[self.pairs].tolist(), self.starts.tolist()
        spans = zip(self.names, sizes, cuts, cuts[1:], strict=False)
        return {names: tables[first:end].reshape(shape) for names, shape, first, end in spans}


TripleArguments = tuple[Floats, Integers, Integers, Integers, Integers, Floats]  # as the loops take it


@dataclass(frozen=True, eq=False)
class TripleArrays:
    """1-way marginals and known pairs from which triples are computed."""

    ones: OneWayArrays
    place: Integers
    cells: Floats

    @classmethod
    def of(cls, ones: OneWayArrays, tables: Mapping[AttributeSet, Floats]) -> TripleArrays:
        """Return the arrays of the pairs among some tables.

        place[i, j] is the start of the pair of attributes i and j in the flat `cells`, or −1 if it is not known. The
        empty array lets a mapping without pairs be concatenated.
        """
        paired, count = PairArrays(ones, [names for names in tables if len(names) == 2]), len(ones.number)
        place = np.full((count, count), -1)
        place[paired.pairs[:, 0], paired.pairs[:, 1]] = paired.starts[:-1]
        cells = [np.zeros(0), *(np.asarray(tables[names]).reshape(-1) for names in paired.names)]
        return cls(ones, place, np.concatenate(cells))

    def fit_independent(
        self, sets: Sequence[AttributeSet], rounds: int, tolerance: float
    ) -> dict[AttributeSet, Floats]:
        """Return the maximum-entropy tables given the pairs.

        The tables start as products of 1-way marginals, and are then fitted to the known pairs in each, for at most
        `rounds` rounds.
        """
        loop_arguments = self._loop_arguments(sets)
        tables = np.empty(loop_arguments[3][-1])
        pair_loops.multiply(tables, self.ones.total, *loop_arguments)
        pair_loops.fit_all(tables, False, rounds, tolerance, *loop_arguments)
        return self._split(sets, tables, loop_arguments)

    def fit_tables(
        self, given: Mapping[AttributeSet, Floats], rounds: int, tolerance: float
    ) -> dict[AttributeSet, Floats]:
        """Return copies of tables, scaled to 1-way marginals and pairs."""
        loop_arguments = self._loop_arguments(list(given))
        tables = np.concatenate([table.reshape(-1) for table in given.values()])
        pair_loops.fit_all(tables, True, rounds, tolerance, *loop_arguments)  # True: to the 1-way marginals first
        return self._split(list(given), tables, loop_arguments)

    @cached_property
    def _sizes(self) -> Integers:
        return np.diff(self.ones.at)

    def _loop_arguments(self, sets: Sequence[AttributeSet]) -> TripleArguments:
        """Return the arguments of the loops.

        They are the 1-way marginals and their starts, the attributes and starts of the triples, and the pairs.
        """
        number = self.ones.number
        triples = np.array([[number[name] for name in names] for names in sets], np.int64).reshape(-1, 3)
        starts = np.cumsum(np.append(0, self._sizes[triples].prod(axis=1)))
        return self.ones.values, self.ones.at, triples, starts, self.place, self.cells

    def _split(
        self, sets: Sequence[AttributeSet], tables: Floats, loop_arguments: TripleArguments
    ) -> dict[AttributeSet, Floats]:
        """Return the tables of some sets from one flat array."""
        _, _, triples, starts, *_ = loop_arguments
        shapes, ends = self._sizes[triples].tolist(), pairwise(starts.tolist())
        return {
            names: tables[first:end].reshape(shape)
            for names, shape, (first, end) in zip(sets, shapes, ends, strict=True)
        }


@dataclass(frozen=True, eq=False)
class PairLinks:
    """Tables of known pairs in both orientations, from which chains are composed.

    Only the few chains whose weaker link is strongest are evaluated. The loops do not use BLAS, whose last bits depend
    on the number of threads.

    Attributes
    ----------
    place : ndarray of int64, shape (attributes, attributes)
        Start of the table of attributes i and j in `tables` and `conditionals`.
    strength : ndarray, shape (attributes, attributes)
        L1 distance of each pair from independence; -1 if the pair is not known.
    tables : ndarray
        Flat tables of both orientations.
    conditionals : ndarray
        The same tables divided by the 1-way marginal of the second attribute.
    """

    place: Integers
    strength: Floats
    tables: Floats
    conditionals: Floats

    @classmethod
    def of(cls, paired: PairArrays, tables: Floats) -> PairLinks:
        """Return the links of flat tables whose margins are the 1-way marginals.

        The compiled loop writes the four arrays: the starts, the distances from independence (−1 for pairs not known),
        and the tables and conditionals of both orientations, hence 2 · cells.
        """
        count = len(paired.ones.at) - 1
        place, strength = np.zeros((count, count), np.int64), np.full((count, count), -1.0)
        links = cls(place, strength, np.empty(2 * len(tables)), np.empty(2 * len(tables)))
        pair_loops.link(tables, *paired.loop_arguments, place, strength, links.tables, links.conditionals)
        return links

    def nearest(self, paired: PairArrays, noisy: Floats) -> Floats:
        """Return, for each pair, the product or the chain that is nearest to the noisy table in L2."""
        return self._compose(paired, noisy, True)[0]

    def strongest(self, paired: PairArrays) -> dict[AttributeSet, Floats]:
        """Return, for each pair with a chain, the chain farthest from independence in L1."""
        tables, has_chain = self._compose(paired, paired.independent(), nearest=False)
        by_names = paired.split(tables)
        return {names: by_names[names] for names, has in zip(by_names, has_chain.tolist(), strict=True) if has}

    def _compose(self, paired: PairArrays, others: Floats, nearest: bool) -> tuple[Floats, NDArray[np.bool_]]:
        """Return for every pair the table of its chain nearest to `others`, or farthest, and whether it has one.

        A chain is a product of two known pairs with a common attribute, divided by its marginal.

        `out` starts as independence, and is replaced by a chain that is nearer to `others`, or farthest from it.
        """
        out, found = paired.independent(), np.zeros(len(paired.pairs), np.bool_)
        pair_loops.follow(*paired.loop_arguments, self.place, self.strength, self.tables, self.conditionals,
                          others, nearest, out, found)  # fmt: skip
        return out, found
