"""Refinement of groups to cells, attribute by attribute, by sampling with feedback.

Within a group the estimates distribute cells by their 1-way marginal, independently of other attributes. Systematic
rounding matches the 1-way marginal. A sweep matches (cell of i) × (group of j) to the implied counts, so that pairs
have no sampling noise, and (cell of i) × (cell of j) if j is refined and rows are at least as many as such pairs. A
second round uses the cells of all attributes. Functional dependencies distinguish cells of one group: a town is in the
row's region, and its counts with the groups of another attribute follow those of the region.

*Names.* `i` is the attribute that is refined, and j another one. `targets` have the pairs over groups, and
`distribution` the groups, the 1-way marginals over cells, and the rules.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpscale.base.numerics import Flags, Floats, Integers32
from dpscale.domain.rules import FunctionalDependency
from dpscale.privacy.streams import PublicStream
from dpscale.reconstruction.entropy import determined_over_groups, known_pair, proportional_fit
from dpscale.reconstruction.pairwise import LOG_UNIT, CellDistribution, PairTargets
from dpscale.reconstruction.pairwise_loops import BEHIND
from dpscale.synthesis import loops
from dpscale.workload.residual import Groups, every_cell

# strength β of the feedback; rows added to a target that divides; factor of β for 1-way counts
BETA, FLOOR, ALONE = 32.0, 0.25, 4.0
ROUNDS, THROUGH = 2, 12  # rounds over the attributes, the second with the cells of all others; most rounds of a fit
LEAST = 1e-12  # least share before a logarithm, least divisor, and tolerance of a fit


def refine_to_cells(
    targets: PairTargets, cells: CellDistribution, rows: Integers32, stream: PublicStream
) -> Integers32:
    """Return rows over cells, shape (n, d), from rows over groups of cells.

    Attributes that have groups of several cells are refined one after the other, in ROUNDS rounds. From the second
    round on, the cells of all other such attributes are known; pairs with too many cells are used by their groups.
    """
    out, sizes = rows.copy(), [cells.groups[name].size for name in targets.layout.names]
    coarse = [i for i in range(len(sizes)) if targets.layout.sizes[i] < sizes[i] and len(rows)]
    for place, i in enumerate(coarse * ROUNDS):
        is_first_round = place < len(coarse)
        # in the first round only attributes before this one have cells
        others = coarse[:place] if is_first_round else coarse
        # a pair with more cells than rows has too few rows in each
        fine = [j for j in others if j != i and sizes[i] * sizes[j] <= len(rows)]
        initial = None if is_first_round else np.ascontiguousarray(out[:, i])
        out[:, i] = _AttributeRefinement(
            targets=targets, distribution=cells, rows=rows, refined=out, fine=frozenset(fine), i=i
        ).cells(stream, initial)
    return out


@dataclass(frozen=True, eq=False)
class _AttributeRefinement:
    """Refinement of one attribute, given the others: over cells (`refined`) for those in `fine`, else over groups."""

    targets: PairTargets
    distribution: CellDistribution
    rows: Integers32
    refined: Integers32
    fine: frozenset[int]
    i: int

    def cells(self, stream: PublicStream, initial: Integers32 | None) -> Integers32:
        """Return the cell of each row, from `initial`, the cells of an earlier round, if given.

        `inside` are log shares of cells in their groups; `weights` and `slopes` are feedback towards the targets of
        pairs, and `own_weights` and `own_slopes` towards the 1-way marginal.
        """
        cells = self._initial_cells(stream) if initial is None else initial
        starts, targets = self._targets()  # pairs with the other attributes
        alone = self.one * (len(self.rows) / self.one.sum())
        # rounded, so that platforms with another logarithm draw the same cells
        inside = (np.rint(np.log(np.maximum(self._log_shares, LEAST)) * LOG_UNIT) / LOG_UNIT).astype(np.float32)
        bounds, state = np.array([*self.groups.starts, self.groups.size], np.int64), stream.state()
        weights, slopes = _feedback(targets, self._counts(cells, starts, len(targets)), BETA)
        own = np.bincount(cells, minlength=self.groups.size).astype(np.float64)
        own_weights, own_slopes = _feedback(alone, own, ALONE * BETA)
        loops.sweep_cells(cells, self.rows, self.refined, self._fine, self.i, bounds, starts, inside, weights, slopes,
                          own_weights, own_slopes, state)  # fmt: skip

        return cells

    @property
    def _fine(self) -> Flags:
        return np.isin(np.arange(len(self.targets.layout.sizes)), list(self.fine))

    @property
    def groups(self) -> Groups:
        return self.distribution.groups[self.targets.layout.names[self.i]]

    @property
    def one(self) -> Floats:
        return self.distribution.ones[self.targets.layout.names[self.i]]

    @property
    def _log_shares(self) -> Floats:
        return self._shares_in_group(self.i)

    def _shares_in_group(self, j: int) -> Floats:
        """Return each cell's share of its group."""
        name = self.targets.layout.names[j]
        shares, groups = self.distribution.ones[name], self.distribution.groups[name]
        return np.asarray(shares / np.add.reduceat(shares, groups.starts)[groups.labels])

    def _initial_cells(self, stream: PublicStream) -> Integers32:
        """Return cells that match the 1-way marginal within each group of rows.

        `i` is the attribute; a group of one cell needs no draw, and in others cells are drawn by their shares of the
        1-way marginal (`one`).
        """
        cells = np.empty(len(self.rows), np.int32)
        column = self.rows[:, self.i]
        small = self.groups.count < np.iinfo(np.int16).max  # 16-bit numbers have a sort in linear time
        order = np.argsort(column.astype(np.int16) if small else column, kind="stable")
        ends = np.searchsorted(column[order], np.arange(self.groups.count + 1))
        bounds = [*self.groups.starts, self.groups.size]

        for g in range(self.groups.count):
            in_group = order[ends[g] : ends[g + 1]]
            if bounds[g + 1] == bounds[g] + 1:
                cells[in_group] = bounds[g]
            elif len(in_group):
                cells[in_group] = bounds[g] + stream.systematic(self.one[bounds[g] : bounds[g + 1]], len(in_group))

        return cells

    def _targets(self) -> tuple[NDArray[np.int64], Floats]:
        """Return the start of (group or cell of j) × (cell of i), and the target counts."""
        starts, tables, at = np.full(len(self.targets.layout.sizes), -1, np.int64), [np.zeros(0)], 0
        for j in np.flatnonzero(self.targets.layout.used[self.i]).tolist():
            tables.append(self._shares(j).ravel() * len(self.rows))
            starts[j] = at
            at += tables[-1].size
        return starts, np.concatenate([*tables, np.zeros(BEHIND)])

    def _shares(self, j: int) -> Floats:
        """Return the shares implied by pairs of groups, 1-ways and dependencies, shape (values of j, cells of i).

        `fine` are the columns of which cells are used instead of groups, because there are enough rows; shares over
        groups are then multiplied by those in the group.
        """
        determined = self._determined_shares(j)
        if determined is not None:
            return determined
        shares = self._over_groups(j)
        if j in self.fine:
            labels = self.distribution.groups[self.targets.layout.names[j]].labels
            shares = shares[labels] * self._shares_in_group(j)[:, None]
        return np.ascontiguousarray(shares)

    def _determined_shares(self, j: int) -> Floats | None:
        """Return the shares of `_shares` if an attribute determines both i and j by rules, else None.

        The determinant is i, j or a third attribute; the shares then follow from its 1-way marginal.
        """
        name, other = self.targets.layout.names[self.i], self.targets.layout.names[j]
        groups = dict(self.distribution.groups)
        for refined in (name, other) if j in self.fine else (name,):
            groups[refined] = every_cell(self.distribution.groups[refined].size)
        known = known_pair(self.distribution.rules, (other, name), self.distribution.ones, groups)
        return None if known is None else known / self.one.sum()

    def _over_groups(self, j: int) -> Floats:
        """Return shares of all rows, shape (groups of j, cells of i).

        If i determines another attribute k, and the pairs (k, j) and (i, k) are used, they follow the shares of k given
        j, unless the groups have the rule already.

        Without such a rule, a pair of groups is divided among the cells of i by their shares in the group.
        """
        names, used = self.targets.layout.names, self.targets.layout.used
        for rule in self.distribution.rules:
            if (
                isinstance(rule, FunctionalDependency)
                and rule.whole
                and rule.determinant == names[self.i]
                and rule.dependent in names
            ):
                k = names.index(rule.dependent)
                if (
                    used[k, j]
                    and used[self.i, k]
                    and not determined_over_groups([rule], rule.names, self.distribution.groups)
                ):
                    return self._shares_by_dependent(rule, k, j)

        return self._pair(j, self.i)[:, self.groups.labels] * self._log_shares

    def _shares_by_dependent(self, rule: FunctionalDependency, k: int, j: int) -> Floats:
        """Return the shares by the dependent attribute k of i: maximum entropy given i, k and j by pairs of groups.

        The table over (i, k, j) has maximum entropy given (i, k), (i, j) and (k, j), all over groups; each cell of i
        then has its share of the count of its group and of its group of k.
        """
        determined = known_pair([rule], rule.names, self.distribution.ones, self.distribution.groups) / self.one.sum()
        dependent_pair = self._pair(k, j)
        margins = [((0, 1), determined), ((0, 2), self._pair(self.i, j)), ((1, 2), dependent_pair)]
        table = proportional_fit(np.multiply.outer(determined, dependent_pair.sum(axis=0)), margins, THROUGH, LEAST)
        groups_of_cells = self.groups.labels, self.distribution.groups[rule.dependent].labels[np.array(rule.of)]
        return np.asarray(
            (
                table[groups_of_cells]
                * (self.one / self.one.sum() / np.maximum(determined[groups_of_cells], LEAST))[:, None]
            ).T
        )

    def _pair(self, first: int, second: int) -> Floats:
        """Return shares over groups, one axis each."""
        table = self.targets.layout.of(self.targets.shares, min(first, second), max(first, second))
        return np.asarray(table if first < second else table.T)

    def _counts(self, cells: Integers32, starts: NDArray[np.int64], size: int) -> Floats:
        counts = np.zeros(size)
        loops.count_cells(cells, self.rows, self.refined, self._fine, starts, self.groups.size, counts)
        return counts


def _feedback(targets: Floats, counts: Floats, beta: float) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return −β (C + ½ − T) / S, and its slope."""
    slopes = beta / (targets + FLOOR)
    return (slopes * (targets - counts - 0.5)).astype(np.float32), slopes.astype(np.float32)
