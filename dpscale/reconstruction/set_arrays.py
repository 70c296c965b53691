"""Tables of pairs and triples concatenated in flat arrays, and compiled loops over all pairs of a model.

The loops compute expectations of pairs, and chains of two pairs that imply a third. Pairs are concatenated in flat
arrays, pair t from `starts[t]` to `starts[t + 1]`; `pairs[t]` are the numbers of its two attributes. 1-way marginals
are concatenated as well, attribute i from `at[i]`, and have equal sums, `total`. Sums are computed in one order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from dpscale.base.compilation import compiled
from dpscale.base.numerics import AttributeSet, Flags, Floats, Integers, NDArray
from dpscale.reconstruction.fitting_loops import FEW, fit_pair, fit_triple

TOGETHER = 1 << 18  # cells of tables of one shape that are computed together

MOST_MIDDLES = 12  # chains i — m — j tried for a pair
LEAST_RATIO, LEAST = 0.02, 1e-9  # least ratio of a neighbours' expectation to that of the cell; least divisor
PLACES = "float64[::1], int64[::1], float64, int64[:, ::1], int64[::1]"  # ones, at, total, pairs, starts


def stacks(
    sets: Iterable[AttributeSet], tables: Mapping[AttributeSet, Floats]
) -> Iterator[tuple[list[AttributeSet], Floats]]:
    """Yield tables of equal shapes together: their sets, and an array of shape (tables, *shape).

    An array has at most about TOGETHER entries.
    """
    by_shape: dict[tuple[int, ...], list[AttributeSet]] = {}
    for names in sets:
        by_shape.setdefault(tables[names].shape, []).append(names)
    for shape, of_shape in by_shape.items():
        step = max(TOGETHER // max(math.prod(shape), 1), 1)
        for at in range(0, len(of_shape), step):
            together = of_shape[at : at + step]
            yield together, np.array([tables[names] for names in together])


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
        return np.array([(number[first], number[second]) for first, second in self.names], np.int64).reshape(-1, 2)

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
        return np.asarray(products(*self.loop_arguments))

    def noisy(self, residuals: Floats, reference: Floats) -> Floats:
        """Return the noisy tables: their centred residuals plus the margins of the expectation."""
        return np.asarray(noisy(residuals, reference, self.ones.at, self.pairs, self.starts))

    def fit(self, tables: Floats, rounds: int, tolerance: float) -> Floats:
        """Fit the tables to their 1-way marginals, in place, and return them."""
        ones = self.ones
        fit_every(tables, ones.values, ones.at, self.pairs, self.starts, rounds, tolerance)
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
        multiply(tables, self.ones.total, *loop_arguments[:4])
        fit_all(tables, False, rounds, tolerance, *loop_arguments)
        return self._split(sets, tables, loop_arguments)

    def fit_tables(
        self, unfitted: Mapping[AttributeSet, Floats], rounds: int, tolerance: float
    ) -> dict[AttributeSet, Floats]:
        """Return copies of tables, scaled to 1-way marginals and pairs."""
        loop_arguments = self._loop_arguments(list(unfitted))
        tables = np.concatenate([table.reshape(-1) for table in unfitted.values()])
        fit_all(tables, True, rounds, tolerance, *loop_arguments)  # True: to the 1-way marginals first
        return self._split(list(unfitted), tables, loop_arguments)

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
        link(tables, *paired.loop_arguments, place, strength, links.tables, links.conditionals)
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
        out, has_chain = paired.independent(), np.zeros(len(paired.pairs), np.bool_)
        follow(*paired.loop_arguments, self.place, self.strength, self.tables, self.conditionals,
                          others, nearest, out, has_chain)  # fmt: skip
        return out, has_chain


@compiled("Tuple((float64[:, ::1], float64, float64))(float64[:, ::1], float64[:, ::1], float64[:, ::1])", few=FEW)
def chain_product(left: Floats, right: Floats, other: Floats) -> tuple[Floats, float, float]:
    """Return the product left · right and its distances from `other`: squared L2 and L1.

    `left` has the shape (rows, middle), `right` (middle, columns): a conditional probability times a table of counts.

    i and j are values of the first and the last attribute of a chain, k of the middle. `step` is the difference of a
    cell.
    """
    rows, columns = other.shape
    table, squared, distance = np.zeros((rows, columns)), 0.0, 0.0
    for i in range(rows):
        for k in range(right.shape[0]):
            entry = left[i, k]
            for j in range(columns):
                table[i, j] += entry * right[k, j]
        for j in range(columns):
            step = table[i, j] - other[i, j]
            squared += step * step
            distance += abs(step)

    return table, squared, distance


@compiled("float64[:, ::1](float64[:, ::1], int64)", few=FEW)
def window_sums(values: Floats, reach: int) -> Floats:
    """Return for every cell the sum over cells up to `reach` away along both axes, without the cell itself.

    `down` are running sums along the first axis, and `across` running sums of their differences along the second.

    The time does not depend on `reach`, because a sum over a window is a difference of two running sums. Windows are
    cut at the edges.
    """
    rows, columns = values.shape
    down, across = np.zeros((rows + 1, columns)), np.zeros(columns + 1)
    sums = np.empty((rows, columns))
    for i in range(rows):
        for j in range(columns):
            down[i + 1, j] = down[i, j] + values[i, j]

    for i in range(rows):
        # rows of the window
        first, last = max(i - reach, 0), min(i + reach + 1, rows)
        for j in range(columns):
            across[j + 1] = across[j] + (down[last, j] - down[first, j])
        for j in range(columns):
            sums[i, j] = across[min(j + reach + 1, columns)] - across[max(j - reach, 0)] - values[i, j]

    return sums


@compiled(f"float64[::1]({PLACES})", few=FEW)
def products(ones: Floats, at: Integers, total: float, pairs: Integers, starts: Integers) -> Floats:
    """Return the tables of independent attributes for all pairs, flat: n_a n_b / N.

    `ones` are the 1-way marginals, that of attribute i from `at[i]` to `at[i + 1]`; the table of pair t begins at
    `starts[t]`.

    a and b are cells of the attributes i and j, and N is `total`.
    """
    out = np.empty(starts[-1])
    for t in range(len(pairs)):
        i, j, cell = pairs[t, 0], pairs[t, 1], starts[t]
        for a in range(at[i], at[i + 1]):
            for b in range(at[j], at[j + 1]):
                out[cell] = ones[a] * (ones[b] / total)
                cell += 1
    return out


@compiled("float64[::1](float64[::1], float64[::1], int64[::1], int64[:, ::1], int64[::1])", few=FEW)
def noisy(residuals: Floats, reference: Floats, at: Integers, pairs: Integers, starts: Integers) -> Floats:
    """Return centred residuals plus the margins of the expectation, `reference`, for all pairs, flat.

    A centred residual lacks row and column sums, which are those of the expectation.

    With R_a and C_b the row and column sums of `reference` and m its mean, a cell is residual + R_a / width + C_b /
    height − m, the table with these margins and no further dependence. `mean` is first the total.
    """
    out = np.empty(starts[-1])
    for t in range(len(pairs)):
        height, width = at[pairs[t, 0] + 1] - at[pairs[t, 0]], at[pairs[t, 1] + 1] - at[pairs[t, 1]]
        table, mean = reference[starts[t] : starts[t + 1]], 0.0
        rows, columns = np.zeros(height), np.zeros(width)
        for a in range(height):
            for b in range(width):
                rows[a] += table[a * width + b]
                columns[b] += table[a * width + b]
            mean += rows[a]

        mean /= height * width
        for a in range(height):
            for b in range(width):
                cell = starts[t] + a * width + b
                out[cell] = residuals[cell] + (rows[a] / width + columns[b] / height - mean)

    return out


@compiled(
    "float64[::1](float64[::1], float64[::1], float64[::1], int64[::1], int64[:, ::1], int64[::1], int64)", few=FEW
)
def near_every(
    values: Floats, reference: Floats, deviations: Floats, at: Integers, pairs: Integers, starts: Integers, reach: int
) -> Floats:
    """Return the expectation of every cell from neighbours up to `reach` away along both axes (`near`).

    The ratio of counts to expectation around a cell, of `neighbours` cells, is weighted by e²/(e² + neighbours · noise)
    with the expectation e, and multiplies the expectation of the cell.

    Here e is the expectation of the sum over the neighbours, without the cell itself, and neighbours · noise the
    variance of this sum: the ratio has an effect as far as the expectation exceeds the noise. `reach` is a number of
    cells, and `deviations[t]` the standard deviation of the noise of a cell of pair t.
    """
    out = np.empty(starts[-1])
    for t in range(len(pairs)):
        first, end = starts[t], starts[t + 1]
        height, width = at[pairs[t, 0] + 1] - at[pairs[t, 0]], at[pairs[t, 1] + 1] - at[pairs[t, 1]]
        around = window_sums(values[first:end].reshape(height, width), reach)
        expected = window_sums(reference[first:end].reshape(height, width), reach)
        noise = deviations[t] * deviations[t]

        for a in range(height):
            # rows of the window, which is cut at the edges; one cell is the middle itself
            tall = min(a + reach + 1, height) - max(a - reach, 0)
            for b in range(width):
                neighbours = tall * (min(b + reach + 1, width) - max(b - reach, 0)) - 1
                known = expected[a, b] * expected[a, b]
                weight = known / (known + neighbours * noise + LEAST)
                ratio = 1 + weight * (around[a, b] / max(expected[a, b], LEAST) - 1)
                cell = first + a * width + b
                out[cell] = reference[cell] * max(ratio, LEAST_RATIO)

    return out


@compiled("void(float64[::1], float64[::1], int64[::1], int64[:, ::1], int64[::1], int64, float64)", few=FEW)
def fit_every(
    tables: Floats,
    ones: Floats,
    at: Integers,
    pairs: Integers,
    starts: Integers,
    rounds: int,
    tolerance: float,
) -> None:
    """Fit every pair to its two 1-way marginals by proportional fitting, in place.

    ones[at[i] : at[i + 1]] is the marginal of attribute i, tables[starts[t] : starts[t + 1]] the table of pair t.

    `rounds` is the maximum number of passes, which end at `tolerance` (`fit_pair`).
    """
    for t in range(len(pairs)):
        i, j = pairs[t, 0], pairs[t, 1]
        rows, columns = ones[at[i] : at[i + 1]], ones[at[j] : at[j + 1]]
        fit_pair(tables[starts[t] : starts[t + 1]].reshape(len(rows), len(columns)), rows, columns, rounds, tolerance)


@compiled(
    "void(float64[::1], float64[::1], int64[::1], float64, int64[:, ::1], int64[::1], int64[:, ::1], float64[:, ::1],"
    " float64[::1], float64[::1])",
    few=FEW,
)
def link(
    tables: Floats, ones: Floats, at: Integers, total: float, pairs: Integers, starts: Integers, place: Integers,
    strength: Floats, oriented: Floats, conditionals: Floats,
) -> None:  # fmt: skip
    """Write all pairs in both orientations, their conditionals and their distances from independence.

    `oriented` and `conditionals` have twice as many entries as `tables`: pair (i, j), and then (j, i) transposed.
    `conditionals` are P(value of the first | value of the second), with which chains are multiplied (`follow`).

    Parameters
    ----------
    tables, ones, at, total, pairs, starts
        As in the module.
    place : ndarray of int64, shape (attributes, attributes)
        Output: start of each oriented pair in `oriented` and `conditionals`.
    strength : ndarray, shape (attributes, attributes)
        Output: L1 distance of each pair from independence.
    oriented : ndarray
        Output: the tables in both orientations.
    conditionals : ndarray
        Output: the same tables divided by the 1-way marginal of the second attribute.
    """
    for t in range(len(pairs)):
        i, j, cell, distance = pairs[t, 0], pairs[t, 1], starts[t], 0.0
        height, width = at[i + 1] - at[i], at[j + 1] - at[j]
        place[i, j] = 2 * starts[t]
        place[j, i] = 2 * starts[t] + height * width

        for a in range(height):
            for b in range(width):
                entry, count_a, count_b = tables[cell], ones[at[i] + a], ones[at[j] + b]
                forth, back = place[i, j] + a * width + b, place[j, i] + b * height + a
                oriented[forth] = oriented[back] = entry
                conditionals[forth] = entry / count_b
                conditionals[back] = entry / count_a
                # the entry of independent attributes is the product of their counts over the total
                distance += abs(entry - count_a * (count_b / total))
                cell += 1

        strength[i, j] = strength[j, i] = distance


@compiled("int64(float64[::1], float64[::1], int64[::1], float64[::1])", few=FEW)
def middles(first: Floats, second: Floats, best: Integers, links: Floats) -> int:
    """Write the middles of the chains whose weaker link is strongest, first come first on ties; return their number.

    A middle is a third attribute, linked to both by known pairs. `first` and `second` have the strength of the links of
    the two attributes to each middle, negative without a link.
    `links` holds the weaker strengths of the best middles so far, in decreasing order.
    """
    count, most = 0, len(best)
    for middle in range(len(first)):
        weaker = min(first[middle], second[middle])
        if weaker < 0 or (count == most and weaker <= links[most - 1]):
            continue
        slot = min(count, most - 1)  # insertion into the sorted list
        while slot > 0 and links[slot - 1] < weaker:
            links[slot], best[slot] = links[slot - 1], best[slot - 1]
            slot -= 1
        links[slot], best[slot] = weaker, middle
        count = min(count + 1, most)

    return count


@compiled(
    f"void({PLACES}, int64[:, ::1], float64[:, ::1], float64[::1], float64[::1], float64[::1], boolean,"
    " float64[::1], boolean[::1])",
    few=FEW,
)
def follow(
    ones: Floats, at: Integers, total: float, pairs: Integers, starts: Integers, place: Integers, strength: Floats,
    oriented: Floats, conditionals: Floats, others: Floats, nearest: bool, out: Floats, has_chain: Flags,
) -> None:  # fmt: skip
    """Write for every pair the chain nearest to `others` in L2, if it is nearer than `out`, and set `has_chain`.

    Unless `nearest`, write the chain farthest from `others` in L1.

    A chain i — m — j has the table P(i | m) · n(m, j): `conditionals` times `oriented`, tables of known pairs in both
    orientations that begin at `place`. Only the middles whose weaker link is strongest are tried.

    `out` has the current best table of each pair, from starts[t] to starts[t + 1] for the pair t of attributes i and j;
    `strength[i, m]` is that of the link of i and m, negative for an unknown pair. A chain assumes that i and j are
    independent given m.
    """
    best, links = np.empty(MOST_MIDDLES, np.int64), np.empty(MOST_MIDDLES)
    for t in range(len(pairs)):
        i, j, first, end = pairs[t, 0], pairs[t, 1], starts[t], starts[t + 1]
        height, width = at[i + 1] - at[i], at[j + 1] - at[j]
        # what a chain has to improve on: the squared distance of the current table
        other, nearest_squared = others[first:end].reshape(height, width), 0.0
        for cell in range(first, end):
            nearest_squared += (others[cell] - out[cell]) * (others[cell] - out[cell])
        farthest = -1.0

        # `best` receives the middles m, the strongest first
        for k in range(middles(strength[i], strength[j], best, links)):
            m = best[k]
            depth = at[m + 1] - at[m]
            left = conditionals[place[i, m] : place[i, m] + height * depth].reshape(height, depth)
            right = oriented[place[m, j] : place[m, j] + depth * width].reshape(depth, width)
            table, squared, distance = chain_product(left, right, other)
            if squared < nearest_squared if nearest else distance > farthest:
                nearest_squared, farthest, has_chain[t] = squared, distance, True
                for cell in range(height * width):
                    out[first + cell] = table[cell // width, cell % width]


TRIPLE_PLACES = "float64[::1], int64[::1], int64[:, ::1], int64[::1], int64[:, ::1], float64[::1]"


@compiled("void(float64[::1], float64, float64[::1], int64[::1], int64[:, ::1], int64[::1])", few=FEW)
def multiply(tables: Floats, total: float, ones: Floats, at: Integers, threes: Integers, starts: Integers) -> None:
    """Write the tables of independent attributes: the product of three 1-way marginals over total².

    threes[t] are the attributes i, j and k of triple t, whose table starts at starts[t]; ones[at[i] : at[i + 1]] is the
    marginal of attribute i, of sum `total`.
    """
    for t in range(len(threes)):
        i, j, k, cell = threes[t, 0], threes[t, 1], threes[t, 2], starts[t]
        for a in range(at[i], at[i + 1]):
            for b in range(at[j], at[j + 1]):
                both = ones[a] * (ones[b] / total)
                for c in range(at[k], at[k + 1]):
                    tables[cell] = both * (ones[c] / total)
                    cell += 1


@compiled(f"void(float64[::1], boolean, int64, float64, {TRIPLE_PLACES})", few=FEW)
def fit_all(
    tables: Floats, singly: bool, rounds: int, tolerance: float, ones: Floats, at: Integers, threes: Integers,
    starts: Integers, place: Integers, cells: Floats,
) -> None:  # fmt: skip
    """Fit triples to the known pairs by proportional fitting, in place; if `singly`, first to the 1-ways.

    `tables` has triple t from starts[t] to starts[t + 1], with the attributes `threes[t]` = (i, j, k). `place[i, j]` is
    the start of a known pair in `cells`, −1 without one. `order` lists the known margins: 0 for (i, j), 1 for (i, k)
    and 2 for (j, k), which are `front`, `sides` and `back`; an unknown margin stays empty. `rounds` is the maximum
    number of passes, which end earlier when the margins change by less than `tolerance` (`fit_triple`).
    """
    single, order, empty = np.full(3, singly), np.empty(3, np.int64), np.empty((0, 0))
    for t in range(len(threes)):
        i, j, k = threes[t, 0], threes[t, 1], threes[t, 2]
        height, width, depth = at[i + 1] - at[i], at[j + 1] - at[j], at[k + 1] - at[k]
        front, sides, back, count = empty, empty, empty, 0
        if place[i, j] >= 0:
            front, order[count], count = (
                cells[place[i, j] : place[i, j] + height * width].reshape(height, width),
                0,
                count + 1,
            )
        if place[i, k] >= 0:
            sides, order[count], count = (
                cells[place[i, k] : place[i, k] + height * depth].reshape(height, depth),
                1,
                count + 1,
            )
        if place[j, k] >= 0:
            back, order[count], count = (
                cells[place[j, k] : place[j, k] + width * depth].reshape(width, depth),
                2,
                count + 1,
            )
        margins = count + (3 if singly else 0)  # a single margin is met in one step
        fit_triple(tables[starts[t] : starts[t + 1]].reshape(height, width, depth), single, ones[at[i] : at[i + 1]],
                   ones[at[j] : at[j + 1]], ones[at[k] : at[k + 1]], order[:count], front, sides, back,
                   # without margins there is nothing to fit
                   rounds if margins > 1 else min(rounds, margins), tolerance)  # fmt: skip
