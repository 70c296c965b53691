"""Adjustment of rows to 1-way marginals as whole numbers of rows, and repair of impossible rows.

Sweeps, rounding and cells inside groups leave small errors in each 1-way marginal, which are visible if rows are few.
Rows in cells with too many rows move to cells with too few. The rows that fit best move: with p the released pairs over
groups, rows x move from cell a to cell b of attribute i in the order of

    Σ_j log p_ij(b, x_j) − log p_ij(a, x_j)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from dpscale.base.errors import PlanError
from dpscale.base.numerics import Floats, Integers, Integers32
from dpscale.domain.rules import Column, DomainConstraint, constraints_on
from dpscale.privacy.streams import PublicStream
from dpscale.reconstruction.pairwise import LEAST_WEIGHT, LOG_UNIT, CellDistribution, PairTargets
from dpscale.synthesis.rule_values import RowCells, RuleValues

SPARE, FEW = 4, 64  # rows that are sorted first, for each that is moved
COMPARED, FEWEST_COMPARED = 64, 256  # rows that are compared for each that leaves a cell, and in any case


def match_one_ways(
    targets: PairTargets, cells: CellDistribution, rows: Integers32, counts: Sequence[Integers]
) -> Integers32:
    """Return rows with the wanted 1-way marginals.

    Parameters
    ----------
    targets : PairTargets
        Released pairs over groups.
    cells : CellDistribution
        Groups and 1-way marginals over cells.
    rows : ndarray of int32, shape (n, d)
        Cells.
    counts : sequence of ndarray of int64
        Wanted number of rows in each cell of every attribute, of sum n.
    """
    out = rows.copy()
    for i, wanted in enumerate(counts):
        surplus = np.bincount(out[:, i], minlength=len(wanted)) - wanted
        if surplus.any():
            _move(targets, cells, out, i, surplus)
    return out


def apportion(shares: Floats, count: int) -> Integers:
    """Return whole numbers of sum `count` in proportion to shares, by largest remainders."""
    exact = np.maximum(shares, 0) * (count / max(float(np.maximum(shares, 0).sum()), LEAST_WEIGHT))
    numbers = np.floor(exact).astype(np.int64)
    numbers[np.argsort(numbers - exact, kind="stable")[: count - int(numbers.sum())]] += 1
    return numbers


def with_sum(counts: Integers, total: int) -> Integers:
    """Return the counts with 1 added to, or taken from, as many of the largest as their sum is away from `total`."""
    missing = total - int(counts.sum())
    out = counts.copy()
    out[np.argsort(-counts, kind="stable")[: abs(missing)]] += np.sign(missing)
    return out


def _move(targets: PairTargets, cells: CellDistribution, rows: Integers32, i: int, surplus: Integers) -> None:
    """Move rows of attribute i, in place, from cells with a surplus to cells that lack rows, group by group.

    Of the compared rows in cells with a surplus those move first whose fit to the pairs decreases least.

    `surplus` is the number of rows of each cell less its target, changed in place. `fits` are the logarithms of the
    module's sum for each group of i, and `labels` the groups of the cells.
    """
    labels = np.asarray(cells.groups[targets.layout.names[i]].labels)
    candidates = _compared(rows[:, i], surplus)
    fits = _fits(targets, cells, rows[candidates], i)
    fits_now = fits[np.arange(len(candidates)), labels[rows[candidates, i]]]
    # a cell for each row that it lacks
    missing_cells = np.repeat(np.arange(len(surplus)), np.maximum(-surplus, 0))

    for group in np.unique(labels[missing_cells]).tolist():
        empty = missing_cells[labels[missing_cells] == group].tolist()
        # the rows that lose least, a few more than are needed
        for place in _ascending(fits_now - fits[:, group], SPARE * len(empty) + FEW):
            if not empty:
                break
            row = int(candidates[place])
            if surplus[rows[row, i]] > 0:
                surplus[rows[row, i]] -= 1
                rows[row, i] = empty.pop()


def _compared(column: Integers32, surplus: Integers) -> Integers:
    """Return the numbers of the rows that may leave their cells: the first COMPARED for each row that a cell must lose.

    Rows are in random order, so the first ones of a cell are a sample of it.
    """
    most = np.maximum(COMPARED * surplus, FEWEST_COMPARED)
    inside = np.flatnonzero(surplus[column] > 0)
    by_cell = inside[np.argsort(column[inside], kind="stable")]
    sizes = np.bincount(column[inside], minlength=len(surplus))
    firsts = np.cumsum(sizes) - sizes
    place_in_cell = np.arange(len(by_cell)) - np.repeat(firsts, sizes)
    return np.sort(by_cell[place_in_cell < np.repeat(most, sizes)])


def _ascending(values: Floats, first: int) -> Iterator[int]:
    """Yield the positions of the values in ascending order, equal ones in their order; few of them in a time O(n)."""
    if first < len(values):
        smallest = np.flatnonzero(values <= np.partition(values, first)[first])
        yield from smallest[np.argsort(values[smallest], kind="stable")].tolist()
    else:
        smallest = np.zeros(0, np.int64)
    yield from np.argsort(values, kind="stable")[len(smallest) :].tolist()


def _fits(targets: PairTargets, cells: CellDistribution, rows: Integers32, i: int) -> Floats:
    """Return log shares of the pairs that each row would have with each group, shape (n, groups of i).

    An entry is Σ_j log p_ij(group of i, group of x_j), the log-likelihood of a row with another group of attribute i.
    """
    layout = targets.layout
    total = np.zeros((len(rows), int(layout.sizes[i])))
    for j in np.flatnonzero(layout.used[i]).tolist():
        pair = layout.of(targets.shares, *sorted((i, j)))
        logs = np.rint(np.log(np.maximum(pair if i < j else pair.T, LEAST_WEIGHT)) * LOG_UNIT) / LOG_UNIT
        other = np.asarray(cells.groups[layout.names[j]].labels)[rows[:, j]]
        total += logs.T[other]
    return total


ROUNDS, LEAST_STEP, MOST_STEP = 10, 0.25, 4.0  # rounds of raking; limits of the factor of a step


def balance_rows(targets: PairTargets, rows: Integers32, times: NDArray[np.int64], stream: PublicStream) -> Integers32:
    """Return copies of rows in random order, with 1-way marginals near the released ones.

    Parameters
    ----------
    targets : PairTargets
        Released 1-way marginals, as shares of all rows.
    rows : ndarray of int32, shape (n, d)
        Groups.
    times : ndarray of int64, shape (n,)
        How often each row would be copied if the 1-way marginals agreed.
    stream : PublicStream
        A public random stream.

    Returns
    -------
    ndarray of int32, shape (times.sum(), d)
    """
    count = int(times.sum())
    copies = stream.rounded(np.cumsum(_rake_weights(targets, rows, times)), count)
    numbers = np.repeat(np.arange(len(rows)), copies)
    return rows[numbers[stream.permutation(count)]]


def _rake_weights(targets: PairTargets, rows: Integers32, times: NDArray[np.int64]) -> Floats:
    """Return weights of the sum of `times` under which the 1-way marginals are the released ones, shape (n,).

    A step is bounded, so that a value with few rows does not change all weights.
    """
    layout, weights, count = targets.layout, times.astype(np.float64), int(times.sum())
    for _ in range(ROUNDS):
        for i in range(len(layout.sizes)):
            rake(weights, rows[:, i], layout.one(targets.ones, i) * count)
    return np.asarray(weights * (count / weights.sum()))


def rake(weights: Floats, cells: NDArray[np.integer], target: Floats) -> None:
    """Scale weights, in place, towards their target sums over the rows of each cell."""
    present = np.bincount(cells, weights, minlength=len(target))
    weights *= np.clip(target / np.maximum(present, 1e-300), LEAST_STEP, MOST_STEP)[cells]


REPAIR_ROUNDS = 8  # most rounds over all rules
EXCHANGE_ROUNDS, EXCHANGED = 8, 1 << 12  # and rows at a time
PARTNERS, FEWEST_PARTNERS, MOST_COMPARED = 64, 8, 1 << 20  # of a row, and comparisons of all rows


class RuleRepair:
    """Rules over the attributes of rows; rules that involve other attributes are ignored.

    `values` are those that compare values: rows whose cells have no values that satisfy all of them are repaired too.
    """

    def __init__(
        self,
        rules: Sequence[DomainConstraint],
        names: Sequence[str],
        ones: Mapping[str, Floats],
        values: RuleValues | None = None,
    ) -> None:
        """Keep the shares of the 1-way marginals `ones`, and the rules whose attributes are all among `names`."""
        self._names, self._values = list(names), values or RuleValues(())
        self._rules = constraints_on(rules, names)
        self._shares = [ones[name] / ones[name].sum() for name in names]
        self._sizes = np.array([len(ones[name]) for name in names])

    def broken(self, rows: Integers32) -> NDArray[np.bool_]:
        """Return which rows violate a rule, shape (n,)."""
        impossible = self._breaks(rows)
        others = np.flatnonzero(~impossible)
        impossible[others] = ~self._values.are_possible(RowCells.of(self._names, rows[others]))
        return impossible

    def _columns(self, rows: Integers32) -> Column:
        return lambda name: rows[:, self._names.index(name)]

    def repair(self, rows: Integers32, stream: PublicStream) -> Integers32:
        """Return the rows with every impossible one repaired. Raises PlanError if all of them are impossible.

        First, rows exchange values of one attribute so that both are possible, which changes no 1-way marginal. Other
        rows get a possible value by the 1-way marginal. Each round changes another attribute of a rule; rows that are
        still impossible are copied from possible ones.
        """
        rows = rows.copy()
        self._exchange(rows, stream)
        for number in range(REPAIR_ROUNDS):
            for rule in self._rules:
                impossible = np.flatnonzero(rule.broken(self._columns(rows)))
                if len(impossible):
                    column = self._names.index(rule.names[-1 - number % len(rule.names)])
                    rows[impossible, column] = self._possible_cells(rows[impossible], column, stream)
            if not self.broken(rows).any():
                return rows

        return self._copy_possible_rows(rows, stream)

    def _exchange(self, rows: Integers32, stream: PublicStream) -> None:
        """Exchange values of one attribute between impossible and other rows, in place, until all are possible.

        Of up to PARTNERS rows at random the one is chosen with the smallest change of the pairs with other attributes:
        d(a, b) · Σ_j d(x_j, y_j), where a and b are exchanged, with d the distance of cells relative to their number.
        """
        impossible = np.flatnonzero(self.broken(rows))
        for _ in range(EXCHANGE_ROUNDS):
            before = len(impossible)
            partners = min(PARTNERS, max(FEWEST_PARTNERS, MOST_COMPARED // max(before, 1)))
            for column in self._columns_of(rows[impossible]):
                for start in range(0, len(impossible), EXCHANGED):
                    self._exchange_column(rows, impossible[start : start + EXCHANGED], column, partners, stream)
                impossible = impossible[self.broken(rows[impossible])]
            if not len(impossible) or len(impossible) == before:
                return

    def _columns_of(self, rows: Integers32) -> list[int]:
        """Return the attributes of the rules that rows break, the last of each first."""
        broken = [rule.names for rule in self._rules if len(rows) and rule.broken(self._columns(rows)).any()]
        return list(dict.fromkeys(self._names.index(name) for names in broken for name in reversed(names)))

    def _exchange_column(
        self, rows: Integers32, chosen: Integers, column: int, count: int, stream: PublicStream
    ) -> None:
        """Exchange the values of one attribute between chosen rows and a partner of `count` where both are possible.

        `left` (chosen rows) and `right` (their partners) are the rows of all possible exchanges, `count` for each
        chosen row. An exchange must leave both rows possible by the rules between cells first, and then by those
        between values.
        """
        partners = (stream.uniforms(len(chosen) * count) * len(rows)).astype(np.int64)
        left, right = np.repeat(rows[chosen], count, axis=0), rows[partners]
        apart = np.abs(left - right) / self._sizes
        # the product of what is exchanged and how different the rows are otherwise: pairs of attributes change least
        change = apart[:, column] * (apart.sum(axis=1) - apart[:, column])
        left[:, column], right[:, column] = right[:, column], left[:, column].copy()

        fits = np.flatnonzero(~(self._breaks(left) | self._breaks(right)))
        order = fits[np.lexsort((change[fits], fits // count))]
        _, first = np.unique(order // count, return_index=True)
        best = order[first]  # the best partner of each row that has one
        _, first = np.unique(partners[best], return_index=True)  # a partner exchanges once
        best = best[np.sort(first)]
        best = best[~np.isin(partners[best], chosen[best // count])]
        best = best[self._values.are_possible(RowCells.of(self._names, left[best]))]
        best = best[self._values.are_possible(RowCells.of(self._names, right[best]))]
        rows[chosen[best // count], column] = left[best, column]
        rows[partners[best], column] = right[best, column]

    def _breaks(self, rows: Integers32) -> NDArray[np.bool_]:
        """Return which rows violate a rule between cells, shape (n,); rules between values are left out."""
        broken = np.zeros(len(rows), np.bool_)
        for rule in self._rules:
            broken |= rule.broken(self._columns(rows))
        return broken

    def _possible_cells(self, rows: Integers32, column: int, stream: PublicStream) -> Integers32:
        """Return a possible cell of one attribute for each row, given its other cells; its own if there is none.

        Cells are drawn by their shares in the 1-way marginal. `column` is the number of the attribute; a cell that a
        rule forbids has weight 0.
        """
        weights = np.tile(np.maximum(self._shares[column], 1e-12), (len(rows), 1))
        name = self._names[column]
        for rule in self._rules:
            if name in rule.names:
                weights[rule.forbidden(name, self._columns(rows), weights.shape[1])] = 0

        sums = np.cumsum(weights, axis=1)
        points = stream.uniforms(len(rows)) * sums[:, -1]
        drawn = np.minimum((sums <= points[:, None]).sum(axis=1), weights.shape[1] - 1)
        return np.where(sums[:, -1] > 0, drawn, rows[:, column]).astype(np.int32)

    def _copy_possible_rows(self, rows: Integers32, stream: PublicStream) -> Integers32:
        """Replace each impossible row by a random possible one, in place, and return the rows.

        Raises PlanError if no row is possible.
        """
        impossible = self.broken(rows)
        possible_rows = np.flatnonzero(~impossible)
        if not len(possible_rows):
            raise PlanError("rule", "rules that exclude every row of these estimates",
                            "rules that allow some rows", "look for a rule that excludes too many values")  # fmt: skip

        chosen = possible_rows[(stream.uniforms(int(impossible.sum())) * len(possible_rows)).astype(np.int64)]
        rows[impossible] = rows[chosen]
        return rows
