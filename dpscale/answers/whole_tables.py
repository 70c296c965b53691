"""Whole, non-negative tables over hierarchies that add up over the trees and over all tables of a publication.

Tables are made from the root down. A table at a level matches those of the level above, cell by cell, and the margins
at its own level that other tables share. It is the weighted least squares fit to the estimates under these sums and
t ≥ 0, then rounded (`dpscale.optimize.nonnegative_counts`). The weight of a cell is the inverse variance of its
estimate from the measurements at and below its node: this is what remains once the node above is known. Estimates
without trees have equal weights. Tables of the levels above are made on the way, also if they are not published.
Several hierarchies are treated alike: a table of places × codes matches those of regions × codes and places × groups.

At most two of these sums are not sums of each other, unless several tables of two or more other attributes overlap.
Then each block of the table is rounded like a table without levels, by an integer program, if it is small. If some
table of a level has no such numbers, the tables of this level are made one after the other, each matching those before
it, and those that contradict them are left out.

*Order of the tables.*
A table is named by its attributes, with at most one level of each hierarchy. It is a sum of another table if the other
has all its attributes, or deeper levels of them. The largest common sums of two tables are over their common
attributes, with the higher level of each hierarchy.

*Controlled rounding of small tables.*
It returns integers near an estimate, with the margins of tables that are fixed before. The estimate is truncated at
zero and fitted to the margins by iterative proportional fitting. Each cell is rounded down or up so that the margins
hold with the smallest change, by an integer program.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from dpscale.answers.tables import Answered
from dpscale.base.errors import PlanError
from dpscale.base.numerics import AttributeSet, Flags, Floats, Integers, NDArray, optimize
from dpscale.domain import Domain
from dpscale.domain.hierarchy import level_axes, margin_cells
from dpscale.domain.public_totals import common_set
from dpscale.domain.rules import constraints_on, possible
from dpscale.optimize.nonnegative_counts import MOST_SIDE, Grids, Lines, fit_partitions
from dpscale.plans.tree import with_implied, without_implied
from dpscale.reconstruction.public_margins import fit_margins
from dpscale.reconstruction.tree_estimates import TreeEstimates

if TYPE_CHECKING:
    from scipy.sparse import csr_array

MOST_COMMON = 4000  # sets; more common sets are not looked for

Groups = Sequence[tuple[NDArray[np.int64], Integers]]
FURTHER = (0, 1, 4, np.inf)  # units beyond rounding down or up, tried in this order
SEED = 1e-3  # share of a cell's mean that truncated cells start with, so that they can grow again
# most sweeps of the fit to the margins; distance at which a cell counts as whole; most nodes of the integer program
SWEEPS, CLOSE, NODES = 2000, 1e-7, 500


@dataclass(frozen=True)
class TableLattice:
    """Tables over the attributes of a domain, in the order of sums."""

    domain: Domain

    @cached_property
    def _levels(self) -> dict[str, tuple[str, int]]:
        """Leaf attribute and depth, from 1, of every level of a hierarchy."""
        return {name: (own.leaf, depth) for own in self.domain.hierarchies for depth, name in enumerate(own.names, 1)}

    def depths(self, names: AttributeSet) -> dict[str, int]:
        """Return the depth of each attribute, by the name of the leaf attribute if it is a level of a hierarchy.

        Other attributes have the depth 1. Of several levels of one hierarchy the deepest counts, because it determines
        the others. A pair in `_levels` is (leaf attribute, depth of the level).
        """
        if names not in self._depths:
            own = [self._levels.get(name, (name, 1)) for name in names]
            self._depths[names] = {leaf: max(depth for other, depth in own if other == leaf) for leaf, _ in own}
        return self._depths[names]

    @cached_property
    def _depths(self) -> dict[AttributeSet, dict[str, int]]:
        return {}

    def named(self, depths: dict[str, int]) -> AttributeSet:
        """Return the set with some depths."""
        names = {one.leaf: one.names for one in self.domain.hierarchies}
        return self.domain.ordered([names.get(own, (own,))[depth - 1] for own, depth in depths.items() if depth])

    def has_levels(self, names: AttributeSet) -> bool:
        """Return whether a set names a level of a hierarchy."""
        return any(name in self._levels for name in names)

    def rank(self, names: AttributeSet) -> int:
        """Return the sum of the depths; the sums of a table have smaller ones."""
        return sum(self.depths(names).values())

    def is_sum(self, upper: AttributeSet, lower: AttributeSet) -> bool:
        """Return whether one table is a sum of another one, or the same."""
        below = self.depths(lower)
        return all(depth <= below.get(own, 0) for own, depth in self.depths(upper).items())

    def common(self, one: AttributeSet, other: AttributeSet) -> AttributeSet:
        """Return the set of the largest common sums of two tables."""
        first, second = self.depths(one), self.depths(other)
        return self.named({own: min(depth, second[own]) for own, depth in first.items() if own in second})

    def is_joined(self, names: AttributeSet, one: AttributeSet, other: AttributeSet) -> bool:
        """Return whether a cell of each of two sums determines the cell of a table."""
        first, second = self.depths(one), self.depths(other)
        return self.depths(names) == {own: max(first.get(own, 0), second.get(own, 0)) for own in {**first, **second}}

    def raised(self, names: AttributeSet) -> Iterator[AttributeSet]:
        """Yield the sets with one hierarchy at the level above, or without it.

        `depths` are the levels of the set's hierarchies, from 1 below the root; the depth 0 leaves the hierarchy out.
        """
        depths = self.depths(names)
        for own in depths:
            if self.has_levels((own,)):
                yield self.named({**depths, own: depths[own] - 1})

    def closed(self, sets: Iterable[AttributeSet]) -> list[AttributeSet]:
        """Return the sets, their single attributes, common sums, and those at all levels above, smallest first.

        At most about MOST_COMMON sets are closed under common sums. `raised` yields the sets with one hierarchy at the
        level above, or without it. `common` returns the largest sums that two tables share. `rank` is the sum of the
        depths of a table in its hierarchies, so a table follows all of its sums. The search for common sums ends once
        there are more than MOST_COMMON sets, because the number of pairs grows with the square of the sets.
        """
        found = dict.fromkeys(sets)
        fresh = list(found)
        while fresh and len(found) <= MOST_COMMON:
            common = {self.common(one, other) for one, other in combinations(list(found), 2)}
            fresh = sorted(common - set(found), key=lambda names: (self.rank(names), names))
            found.update(dict.fromkeys(fresh))

        found.update(dict.fromkeys((name,) for names in list(found) for name in names))
        waiting = list(found)
        while waiting:
            above = [names for names in self.raised(waiting.pop()) if names not in found]
            found.update(dict.fromkeys(above))
            waiting += above

        return sorted((names for names in found if names), key=lambda names: (self.rank(names), names))

    def sources(self, closed: Sequence[AttributeSet]) -> list[dict[AttributeSet, AttributeSet | None]]:
        """Return closed sets in the order in which tables are made, each with the set of which it is the sum, or None.

        The sets of a dictionary have the same levels; those of the levels above are before them.

        Among the sets with the same levels, those that are fitted are the largest ones and their common sums; also a
        level alone and, without levels, single attributes. The others are sums of one of the largest. So a table has
        at most two sums that are fixed before it, unless several of the largest sets overlap.

        `levels` are the attributes of a set that are levels of a hierarchy. `fresh` are the common sums found by the
        last pass, of which there are at most about MOST_COMMON in all.
        """
        groups = dict[AttributeSet, list[AttributeSet]]()
        for names in closed:
            groups.setdefault(tuple(name for name in names if name in self._levels), []).append(names)
        every = list[dict[AttributeSet, AttributeSet | None]]()
        for levels, sets in sorted(groups.items(), key=lambda item: (self.rank(item[0]), item[0])):
            largest = [set(one) for one in self._largest(sets)]
            fitted = {*map(frozenset, largest), *([frozenset(levels)] if len(levels) == 1 else [])}
            fresh = set(fitted)

            while fresh and len(fitted) <= MOST_COMMON:
                fresh = {one & other for one in fresh for other in fitted} - fitted
                fitted |= fresh

            kept = [names for names in sets if frozenset(names) in fitted or len(names) == 1]
            found: dict[AttributeSet, AttributeSet | None] = dict.fromkeys(kept)
            for names in sets:
                if names not in found:
                    found[names] = next(self.domain.ordered(one) for one in largest if one >= set(names))

            every.append(found)

        return every

    @staticmethod
    def _largest(sets: Sequence[AttributeSet]) -> list[AttributeSet]:
        """Return the sets that are not within others, from sets of one level."""
        return [one for one in sets if not any(set(one) < set(other) for other in sets)]

    def maximal(self, sets: Iterable[AttributeSet]) -> list[AttributeSet]:
        """Return the sets whose tables are no sums of others."""
        every = list(dict.fromkeys(sets))
        return [one for one in every if not any(one != other and self.is_sum(one, other) for other in every)]

    def parts(self, upper: AttributeSet, lower: AttributeSet) -> Integers:
        """Return the cell of a table for each cell of a table of which it is a sum; cells are row-major."""
        axes = level_axes(self.domain, lower, upper)
        assert axes is not None
        return margin_cells(self.domain.shape(lower), *axes)

    def summed(self, table: np.ndarray, lower: AttributeSet, upper: AttributeSet) -> np.ndarray:
        """Return the sums of a table over `lower` to one over `upper`.

        `parts` has the cell over `upper` that contains each cell over `lower`.
        """
        shape = self.domain.shape(upper)
        found = np.zeros(int(np.prod(shape, dtype=int)), table.dtype)
        np.add.at(found, self.parts(upper, lower), table.reshape(-1))
        return found.reshape(shape)

    def allowed(self, names: AttributeSet, others: Sequence[AttributeSet]) -> Flags:
        """Return the cells of a table that rules allow.

        They have an allowed cell below in every other table of which it is a sum.
        """
        shape = self.domain.shape(names)
        found = np.broadcast_to(possible(self.domain.rules, names, shape), shape).reshape(-1)
        for lower in others:
            if lower != names and self.is_sum(names, lower) and list(constraints_on(self.domain.rules, lower)):
                below = possible(self.domain.rules, lower, self.domain.shape(lower))
                below = np.broadcast_to(below, self.domain.shape(lower)).reshape(-1)
                found = found & (np.bincount(self.parts(names, lower), below, minlength=found.size) > 0)
        return found


MOST_TREE_CELLS = 4_000_000  # of a table with a level of a hierarchy
UNDETERMINED = "the workload does not determine its cells"
NOTES = (
    "Levels of a hierarchy add up too: a count is the sum of the counts below it in every table. Tables of levels are",
    "made from the top down, by weighted least squares without negative counts. All this holds for the tables in this",
    "folder, not for those under Omitted.",
)
LOST = "the table of"
CONTRADICTION = "no integer table with the margins of the other tables was found"


@dataclass(frozen=True, eq=False)
class WholeTables:
    """Whole tables that add up, and the sets that are left out with the reasons.

    Attributes
    ----------
    tables : mapping of AttributeSet to ndarray of int
        Published tables by requested set.
    errors : mapping of AttributeSet to ndarray
        Standard errors of their estimates.
    left_out : mapping of AttributeSet to str
    """

    tables: Mapping[AttributeSet, Integers]
    errors: Mapping[AttributeSet, Floats]
    left_out: Mapping[AttributeSet, str]


def known_sets(domain: Domain, requested: Sequence[AttributeSet]) -> list[AttributeSet]:
    """Return the sets inside requested ones whose tables follow from public totals.

    `common_set` is the largest set whose table follows from both; `known_table` is its table by the public totals.
    """
    found = (
        common_set(domain, domain.ordered(names), total.names) for names in requested for total in domain.public_totals
    )
    return [names for names in dict.fromkeys(found) if names and domain.known_table(names) is not None]


def names_levels(answered: Answered, requested: Sequence[AttributeSet]) -> bool:
    """Return whether some set names a level of a hierarchy."""
    domain = answered.estimates.workload.domain
    return any(domain.hierarchy_of(name) is not None for names in requested for name in names)


def tree_tables(answered: Answered, requested: Sequence[AttributeSet], total: int, most_cells: int) -> WholeTables:
    """Return whole tables that add up.

    Levels that a deeper level of the set implies are left out of it (`reduced`), and added again at the end.

    Parameters
    ----------
    answered : Answered
    requested : sequence of AttributeSet
    total : int
        Number of records of every table.
    most_cells : int
        Largest size of a table without a level of a hierarchy, and of a block that is fitted by an integer program.

    Returns
    -------
    WholeTables
    """
    domain = answered.estimates.workload.domain
    tables, errors, left = dict[AttributeSet, Integers](), dict[AttributeSet, Floats](), dict[AttributeSet, str]()
    maker = _Maker(answered=answered, lattice=TableLattice(domain), total=total, most_cells=most_cells)
    reduced = {names: without_implied(domain.hierarchies, names) for names in requested}

    for names in requested:
        # too large, or not possible for another reason
        if refusal := maker.refusal(names):
            left[names] = refusal
            continue
        try:
            errors[names] = with_implied(domain, answered.cells(reduced[names])[1], names)
        except PlanError:
            left[names] = UNDETERMINED

    while True:
        wanted = [names for names in requested if names not in left and names]
        made, why = maker.make([reduced[names] for names in wanted])
        left |= {names: why[reduced[names]] for names in wanted if reduced[names] in why}
        if all(reduced[names] in made or names in left for names in wanted):
            break  # otherwise a set was to be the sum of one that failed

    for names in (names for names in wanted if reduced[names] in made):
        tables[names] = np.asarray(with_implied(domain, made[reduced[names]], names))  # type: ignore[arg-type]
    return WholeTables(tables, {names: errors[names] for names in tables}, left)


@dataclass(frozen=True, eq=False)
class _Maker:
    answered: Answered
    lattice: TableLattice
    total: int
    most_cells: int

    def refusal(self, names: AttributeSet) -> str:
        """Return why a set is too large; "" if it is not.

        Sets without levels have at most `most_cells` cells, others MOST_TREE_CELLS. `reduced` lacks levels that others
        imply.
        """
        cells = self.lattice.domain.cells(names)
        if not self.lattice.has_levels(names):
            return f"it has more than {self.most_cells:,} cells" if cells > self.most_cells else ""
        if cells <= MOST_TREE_CELLS:
            return ""

        reduced = without_implied(self.lattice.domain.hierarchies, names)
        if reduced != names and self.lattice.domain.cells(reduced) <= MOST_TREE_CELLS:
            return f"it has more than {MOST_TREE_CELLS:,} cells; publish {', '.join(reduced)}, which determines it"
        return f"it has more than {MOST_TREE_CELLS:,} cells"

    def make(self, wanted: Sequence[AttributeSet]) -> tuple[dict[AttributeSet, Integers], dict[AttributeSet, str]]:
        """Return tables by set, and the sets whose table could not be made with the reasons.

        A set that is a sum of one that was not made may be in neither.

        `sources` yields groups of sets with the same levels, and for each set the one of which it is a sum. If the
        tables that share common sums contradict each other, they are made one after the other instead.
        """
        whole: dict[AttributeSet, Integers] = {(): np.array(self.total)}
        why = dict[AttributeSet, str]()
        known = known_sets(self.lattice.domain, wanted)

        for group in self.lattice.sources(self.lattice.closed([*wanted, *known])):
            whole |= self._known(group)
            made, failed = self._together(group, whole, wanted)
            if any(not reason.startswith(LOST) for reason in failed.values()):
                other, other_failed = self._in_turn(list(group), whole, wanted)
                if len(other) > len(made):
                    made, failed = other, other_failed
            whole, why = made, why | failed

        return whole, {names: reason for names, reason in why.items() if names not in whole}

    def _known(self, group: Iterable[AttributeSet]) -> dict[AttributeSet, Integers]:
        """Return the tables that follow from public totals.

        A table has its axes in the order of the set's names, which may differ from that of the domain.
        """
        domain, found = self.lattice.domain, dict[AttributeSet, Integers]()
        for names in group:
            ordered = domain.ordered(names)
            if (table := domain.known_table(ordered)) is not None:
                found[names] = table.transpose([ordered.index(name) for name in names])
        return found

    def _together(
        self,
        group: Mapping[AttributeSet, AttributeSet | None],
        whole: Mapping[AttributeSet, Integers],
        wanted: Sequence[AttributeSet],
    ) -> tuple[dict[AttributeSet, Integers], dict[AttributeSet, str]]:
        """Add the tables of some levels to those above: common sums first, and then all tables that share them.

        `whole` are the tables made so far, `group` those of some levels with their sources (None: fitted itself).
        Returned are all tables, and the sets that failed with their reasons.
        """
        made, failed = dict(whole), dict[AttributeSet, str]()
        for names, source in group.items():
            if names in made:
                continue
            if source is None:
                self._add(names, made, failed, wanted)
            elif source in made:
                made[names] = self.lattice.summed(made[source], source, names)
        return made, failed

    def _in_turn(
        self, group: Sequence[AttributeSet], whole: Mapping[AttributeSet, Integers], wanted: Sequence[AttributeSet]
    ) -> tuple[dict[AttributeSet, Integers], dict[AttributeSet, str]]:
        """Add the tables of some levels to those above one after the other: each matches those made before it.

        `largest` are the sets of the group that are no sums of others; the rest are sums of them.
        """
        made, failed = dict(whole), dict[AttributeSet, str]()
        largest = self.lattice.maximal(group)
        # single attributes first, then the largest sets, whose sums give the others
        for names in [*(names for names in group if len(names) == 1), *largest, *group]:
            if names not in made and names not in failed:
                self._add(names, made, failed, wanted)
            if names in made and names in largest:
                for part in group:
                    if part not in made and self.lattice.is_sum(part, names):
                        made[part] = self.lattice.summed(made[names], names, part)

        return made, failed

    def _add(
        self,
        names: AttributeSet,
        made: dict[AttributeSet, Integers],
        failed: dict[AttributeSet, str],
        wanted: Sequence[AttributeSet],
    ) -> None:
        """Add the table of a set, or the reason why there is none.

        LOST begins the reasons that are consequences of another failure.
        """
        lost = [above for above in self.lattice.raised(names) if above not in made]
        if lost:
            failed[names] = f"{LOST} {', '.join(lost[0])}, of which it consists, was not made"
        elif self.refusal(names):
            failed[names] = f"its sums over {', '.join(names)} are too many cells"
        else:
            found = self._table(names, made, wanted)
            if isinstance(found, str):
                failed[names] = found
            else:
                made[names] = found

    def _table(
        self,
        names: AttributeSet,
        whole: Mapping[AttributeSet, Integers],
        wanted: Sequence[AttributeSet],
    ) -> Integers | str:
        """Return the table of a set that matches the tables of its sums, or why there is none.

        `margins` has the known tables of which this one must have the sums. One margin needs a fit in each of its
        cells, two joined ones in rows and columns of blocks, and more an integer program.

        `wanted` are the sets of the publication. `above` are the largest known tables that are sums of this one.
        """
        lattice, shape = self.lattice, self.lattice.domain.shape(names)
        estimate = self._estimate(names, wanted)
        if estimate is None:
            return UNDETERMINED

        values, variances = estimate
        above = lattice.maximal(own for own in whole if own != names and lattice.is_sum(own, names))
        margins = {own: whole[own].reshape(-1) for own in above}
        allowed = lattice.allowed(names, wanted)
        found = None

        # each cell of the margin is a line of cells with a fixed sum
        if len(above) == 1:
            ((own, targets),) = margins.items()
            lines = Lines.of(lattice.parts(own, names), targets)
            found = lines.round(lines.fit(values, variances, allowed))
        # each pair of cells of both margins is one cell of this table: a grid
        elif len(above) == 2 and lattice.is_joined(names, *above):
            grids = self._grids(names, margins)
            if grids.largest_side > MOST_SIDE:
                return f"it has blocks of more than {MOST_SIDE:,} × {MOST_SIDE:,} cells"
            found = grids.round(grids.fit(values, variances, allowed), allowed)
        else:
            return self._by_blocks(names, margins, estimate, allowed)

        return CONTRADICTION if found is None else found.reshape(shape)

    def _grids(self, names: AttributeSet, margins: Mapping[AttributeSet, Integers]) -> Grids:
        """Return the grids of the cells over `names`, whose rows and columns are the cells of two margins.

        Both margins have sums in common. Each cell of the table of common sums is one grid, because a cell of one
        margin meets only those cells of the other that add up to the same common sum.
        """
        (one, other), parts_of = margins, self.lattice.parts
        common = self.lattice.common(one, other)
        return Grids.of((parts_of(one, names), parts_of(other, names)),
                        (parts_of(common, one), parts_of(common, other)), (margins[one], margins[other]))  # fmt: skip

    def _by_blocks(
        self,
        names: AttributeSet,
        margins: Mapping[AttributeSet, Integers],
        estimate: tuple[Floats, Floats],
        allowed: Flags,
    ) -> Integers | str:
        """Return a table with any number of margins, fitted block by block of the cells of their common sums.

        Cells with the same common sum are a block, which no margin connects with others. `groups` has, for each margin,
        the number of the sum of each cell and the targets.
        """
        common = reduce(self.lattice.common, margins)
        blocks = Lines.of(self.lattice.parts(common, names), np.zeros(self.lattice.domain.cells(common), np.int64))
        # an integer program is possible for small blocks only
        if int(np.diff(blocks.starts).max()) > self.most_cells:
            return f"it has {len(margins)} margins, and blocks of more than {self.most_cells:,} cells"

        parts, (values, variances) = [self.lattice.parts(margin, names) for margin in margins], estimate
        whole = np.zeros(len(values), np.int64)
        for start, end in zip(blocks.starts[:-1], blocks.starts[1:], strict=True):
            cells = blocks.order[start:end]
            groups = []
            for part, targets in zip(parts, margins.values(), strict=True):
                used, group = np.unique(part[cells], return_inverse=True)
                groups.append((group, targets[used]))

            # all sums of the block are zero, and so are its cells
            if not groups[0][1].any():
                continue

            fitted = fit_partitions(values[cells], variances[cells], allowed[cells], groups)
            found = round_to_groups(fitted, groups, allowed[cells])
            if found is None:
                return CONTRADICTION
            whole[cells] = found

        return whole.reshape(self.lattice.domain.shape(names))

    def _estimate(self, names: AttributeSet, wanted: Sequence[AttributeSet]) -> tuple[Floats, Floats] | None:
        """Return the estimates of a set and their relative variances, or sums of those of a wanted set.

        For estimates without trees all variances of a set are equal. None if nothing is estimated.
        """
        try:
            values = np.asarray(self.answered.cells(names)[0], np.float64).reshape(-1)
        except PlanError:
            below = next((other for other in wanted if other != names and self.lattice.is_sum(names, other)), None)
            found = None if below is None else self._estimate(below, ())
            if found is None or below is None:
                return None
            values, variances = (self.lattice.summed(one, below, names).reshape(-1) for one in found)
            return values, variances

        estimates = self.answered.estimates
        if isinstance(estimates, TreeEstimates):
            shape = self.lattice.domain.shape(names)
            return values, np.broadcast_to(estimates.trees.variances_below(names), shape).reshape(-1)
        return values, np.ones(len(values))


def adjust_to_constraints(
    estimate: Floats, names: AttributeSet, margins: Mapping[AttributeSet, Integers], possible: NDArray[np.bool_]
) -> Integers | None:
    """Return integers near an estimate with given margins.

    Parameters
    ----------
    estimate : ndarray
        One axis for each of `names`.
    names : AttributeSet
    margins : mapping of AttributeSet to ndarray of int
        Integer tables over subsets of `names`; () is the total.
    possible : ndarray of bool
        False for cells that must be 0.

    Returns
    -------
    ndarray of int, or None
        None if no table has these margins, or none was found.
    """
    axes = {own: [names.index(name) for name in own] for own in margins}
    groups = [(margin_cells(estimate.shape, axes[own]), table.reshape(-1)) for own, table in margins.items()]
    return round_to_groups(proportional(estimate, groups, possible), groups, possible)


def round_to_groups(fitted: Floats, groups: Groups, possible: NDArray[np.bool_]) -> Integers | None:
    """Return integers near a fitted table with given sums over groups of cells; None if none were found."""
    return next((found for more in FURTHER if (found := _rounded(fitted, groups, possible, more)) is not None), None)


def proportional(estimate: Floats, groups: Groups, possible: NDArray[np.bool_]) -> Floats:
    """Return a non-negative table near the truncated estimate whose margins are fitted by up to `SWEEPS` sweeps."""
    table = np.maximum(estimate, 0.0).reshape(-1)
    table = (table + SEED * max(table.mean(), 1.0)) * possible.reshape(-1)
    return fit_margins(table, groups, SWEEPS).reshape(estimate.shape)


def _rounded(fitted: Floats, groups: Groups, possible: NDArray[np.bool_], more: float) -> Integers | None:
    """Return integers at most `more` units beyond rounding down or up; None if there are none.

    A group is (number of the group of each cell, wanted sums). Rounding up costs less than rounding down if the
    fraction is at least one half.
    """
    flat = fitted.reshape(-1)
    near = np.where(np.abs(flat - np.rint(flat)) < CLOSE, np.rint(flat), flat)
    low = np.maximum(np.floor(near) - more, 0)
    high = np.where(possible.reshape(-1), np.ceil(near) + more, 0)
    cost = np.where(near - np.floor(near) < 0.5, 1.0, -1.0) * (1 + np.abs(2 * (near - np.floor(near)) - 1))
    matrix, wanted = _margins(groups, flat.size), np.concatenate([own for _, own in groups])
    # with at most two margins every corner of the polytope is integral (a transport problem)
    integral = np.ones(flat.size) if len(groups) > 2 else None
    bounds, margins = optimize.Bounds(low, high), optimize.LinearConstraint(matrix, wanted, wanted)
    found = optimize.milp(cost, integrality=integral, bounds=bounds, constraints=margins, options={"node_limit": NODES})
    if found.x is None:
        return None

    whole = np.rint(found.x).astype(np.int64)
    return whole.reshape(fitted.shape) if (matrix @ whole == wanted).all() else None


def _margins(groups: Groups, cells: int) -> csr_array:
    """Return the matrix of the margins, with one row for each cell of a margin.

    A group is a pair: the number of the margin's cell for each cell of the table, and the values of the margin's cells.
    An entry is 1 if the cell of the table belongs to the cell of the margin.
    """
    from scipy.sparse import csr_array, vstack

    one = np.ones(cells)
    return vstack([csr_array((one, (group, np.arange(cells))), shape=(len(own), cells)) for group, own in groups])
