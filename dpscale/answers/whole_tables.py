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
SEED = 1e-3  # records that truncated cells start with, so that they can grow again
# most sweeps of the fit to the margins; distance at which a cell counts as whole; most nodes of the integer program
SWEEPS, CLOSE, NODES = 2000, 1e-7, 500


@dataclass(frozen=True)
class TableLattice:
    """Tables over the attributes of a domain, in the order of sums."""

    domain: Domain

    @cached_property
    def _levels(self) -> dict[str, tuple[str, int]]:
        """Leaf attribute and depth, from 1, of every level of a hierarchy."""
        levels = dict[str, tuple[str, int]]()
        for hierarchy in self.domain.hierarchies:
            levels |= {name: (hierarchy.leaf, depth) for depth, name in enumerate(hierarchy.names, 1)}
        return levels

    def depths(self, names: AttributeSet) -> dict[str, int]:
        """Return the depth of each attribute, by the name of the leaf attribute if it is a level of a hierarchy.

        Other attributes have the depth 1. Of several levels of one hierarchy the deepest counts, because it determines
        the others. A pair in `_levels` is (leaf attribute, depth of the level).
        """
        if names not in self._depths:
            depths = dict[str, int]()
            for name in names:
                leaf, depth = self._levels.get(name, (name, 1))
                depths[leaf] = max(depth, depths.get(leaf, 0))
            self._depths[names] = depths
        return self._depths[names]

    @cached_property
    def _depths(self) -> dict[AttributeSet, dict[str, int]]:
        return {}

    def named(self, depths: dict[str, int]) -> AttributeSet:
        """Return the set with some depths, the inverse of `depths`; depth 0 leaves a hierarchy out."""
        levels_of = {hierarchy.leaf: hierarchy.names for hierarchy in self.domain.hierarchies}
        return self.domain.ordered([levels_of.get(leaf, (leaf,))[depth - 1] for leaf, depth in depths.items() if depth])

    def has_levels(self, names: AttributeSet) -> bool:
        """Return whether a set names a level of a hierarchy."""
        return any(name in self._levels for name in names)

    def rank(self, names: AttributeSet) -> int:
        """Return the sum of the depths; the sums of a table have smaller ones."""
        return sum(self.depths(names).values())

    def is_sum(self, upper: AttributeSet, lower: AttributeSet) -> bool:
        """Return whether one table is a sum of another one, or the same."""
        below = self.depths(lower)
        return all(depth <= below.get(leaf, 0) for leaf, depth in self.depths(upper).items())

    def common(self, first: AttributeSet, second: AttributeSet) -> AttributeSet:
        """Return the set of the largest common sums of two tables."""
        depths, others = self.depths(first), self.depths(second)
        return self.named({leaf: min(depth, others[leaf]) for leaf, depth in depths.items() if leaf in others})

    def is_joined(self, names: AttributeSet, first: AttributeSet, second: AttributeSet) -> bool:
        """Return whether a cell of each of two sums determines the cell of a table."""
        depths, others = self.depths(first), self.depths(second)
        deepest = {leaf: max(depths.get(leaf, 0), others.get(leaf, 0)) for leaf in {**depths, **others}}
        return self.depths(names) == deepest

    def raised(self, names: AttributeSet) -> Iterator[AttributeSet]:
        """Yield the sets with one hierarchy at the level above, or without it.

        `depths` are the levels of the set's hierarchies, from 1 below the root; the depth 0 leaves the hierarchy out.
        """
        depths = self.depths(names)
        for leaf, depth in depths.items():
            if self.has_levels((leaf,)):
                yield self.named({**depths, leaf: depth - 1})

    def closed(self, sets: Iterable[AttributeSet]) -> list[AttributeSet]:
        """Return the sets, their single attributes, common sums, and those at all levels above, smallest first.

        At most about MOST_COMMON sets are closed under common sums. `raised` yields the sets with one hierarchy at the
        level above, or without it. `common` returns the largest sums that two tables share. `rank` is the sum of the
        depths of a table in its hierarchies, so a table follows all of its sums. The search for common sums ends once
        there are more than MOST_COMMON sets, because the number of pairs grows with the square of the sets.
        """
        closed = dict.fromkeys(sets)
        fresh = list(closed)
        while fresh and len(closed) <= MOST_COMMON:
            common = {self.common(first, second) for first, second in combinations(list(closed), 2)}
            fresh = sorted(common - set(closed), key=lambda names: (self.rank(names), names))
            closed.update(dict.fromkeys(fresh))

        closed.update(dict.fromkeys((name,) for names in list(closed) for name in names))
        waiting = list(closed)
        while waiting:
            above = [names for names in self.raised(waiting.pop()) if names not in closed]
            closed.update(dict.fromkeys(above))
            waiting += above

        return sorted((names for names in closed if names), key=lambda names: (self.rank(names), names))

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
        ordered = list[dict[AttributeSet, AttributeSet | None]]()
        for levels, sets in sorted(groups.items(), key=lambda item: (self.rank(item[0]), item[0])):
            largest = [set(names) for names in self._largest(sets)]
            fitted = {*map(frozenset, largest), *([frozenset(levels)] if len(levels) == 1 else [])}
            fresh = set(fitted)

            while fresh and len(fitted) <= MOST_COMMON:
                fresh = {new & other for new in fresh for other in fitted} - fitted
                fitted |= fresh

            # None: the table is fitted itself
            themselves = [names for names in sets if frozenset(names) in fitted or len(names) == 1]
            source_of: dict[AttributeSet, AttributeSet | None] = dict.fromkeys(themselves)
            for names in sets:
                if names not in source_of:
                    containing = next(attributes for attributes in largest if attributes >= set(names))
                    source_of[names] = self.domain.ordered(containing)

            ordered.append(source_of)

        return ordered

    @staticmethod
    def _largest(sets: Sequence[AttributeSet]) -> list[AttributeSet]:
        """Return the sets that are not within others, from sets of one level."""
        return [names for names in sets if not any(set(names) < set(other) for other in sets)]

    def maximal(self, sets: Iterable[AttributeSet]) -> list[AttributeSet]:
        """Return the sets whose tables are no sums of others."""
        distinct = list(dict.fromkeys(sets))
        largest = []
        for names in distinct:
            if not any(names != other and self.is_sum(names, other) for other in distinct):
                largest.append(names)
        return largest

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
        sums = np.zeros(int(np.prod(shape, dtype=int)), table.dtype)
        np.add.at(sums, self.parts(upper, lower), table.reshape(-1))
        return sums.reshape(shape)

    def allowed(self, names: AttributeSet, others: Sequence[AttributeSet]) -> Flags:
        """Return the cells of a table that rules allow.

        They have an allowed cell below in every other table of which it is a sum.
        """
        shape = self.domain.shape(names)
        flags = np.broadcast_to(possible(self.domain.rules, names, shape), shape).reshape(-1)
        for lower in others:
            if lower != names and self.is_sum(names, lower) and list(constraints_on(self.domain.rules, lower)):
                below = possible(self.domain.rules, lower, self.domain.shape(lower))
                below = np.broadcast_to(below, self.domain.shape(lower)).reshape(-1)
                flags = flags & (np.bincount(self.parts(names, lower), below, minlength=flags.size) > 0)
        return flags


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
    common = dict[AttributeSet, None]()
    for names in requested:
        for total in domain.public_totals:
            common[common_set(domain, domain.ordered(names), total.names)] = None
    return [names for names in common if names and domain.known_table(names) is not None]


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
    tables, errors, left_out = dict[AttributeSet, Integers](), dict[AttributeSet, Floats](), dict[AttributeSet, str]()
    maker = _Maker(answered=answered, lattice=TableLattice(domain), total=total, most_cells=most_cells)
    reduced = {names: without_implied(domain.hierarchies, names) for names in requested}

    for names in requested:
        # too large, or not possible for another reason
        if refusal := maker.refusal(names):
            left_out[names] = refusal
            continue
        try:
            errors[names] = with_implied(domain, answered.cells(reduced[names])[1], names)
        except PlanError:
            left_out[names] = UNDETERMINED

    while True:
        wanted = [names for names in requested if names not in left_out and names]
        whole, why = maker.make([reduced[names] for names in wanted])
        left_out |= {names: why[reduced[names]] for names in wanted if reduced[names] in why}
        if all(reduced[names] in whole or names in left_out for names in wanted):
            break  # otherwise a set was to be the sum of one that failed

    for names in (names for names in wanted if reduced[names] in whole):
        tables[names] = np.asarray(with_implied(domain, whole[reduced[names]], names))  # type: ignore[arg-type]
    return WholeTables(tables, {names: errors[names] for names in tables}, left_out)


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
        tables: dict[AttributeSet, Integers] = {(): np.array(self.total)}
        why = dict[AttributeSet, str]()
        known = known_sets(self.lattice.domain, wanted)

        for group in self.lattice.sources(self.lattice.closed([*wanted, *known])):
            tables |= self._known(group)
            together, failed = self._together(group, tables, wanted)
            if any(not reason.startswith(LOST) for reason in failed.values()):
                in_turn, failed_in_turn = self._in_turn(list(group), tables, wanted)
                if len(in_turn) > len(together):
                    together, failed = in_turn, failed_in_turn
            tables, why = together, why | failed

        return tables, {names: reason for names, reason in why.items() if names not in tables}

    def _known(self, group: Iterable[AttributeSet]) -> dict[AttributeSet, Integers]:
        """Return the tables that follow from public totals.

        A table has its axes in the order of the set's names, which may differ from that of the domain.
        """
        domain, tables = self.lattice.domain, dict[AttributeSet, Integers]()
        for names in group:
            ordered = domain.ordered(names)
            if (table := domain.known_table(ordered)) is not None:
                tables[names] = table.transpose([ordered.index(name) for name in names])
        return tables

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
        tables, failed = dict(whole), dict[AttributeSet, str]()
        for names, source in group.items():
            if names in tables:
                continue
            if source is None:
                self._add(names, tables, failed, wanted)
            elif source in tables:
                tables[names] = self.lattice.summed(tables[source], source, names)
        return tables, failed

    def _in_turn(
        self, group: Sequence[AttributeSet], whole: Mapping[AttributeSet, Integers], wanted: Sequence[AttributeSet]
    ) -> tuple[dict[AttributeSet, Integers], dict[AttributeSet, str]]:
        """Add the tables of some levels to those above one after the other: each matches those made before it.

        `largest` are the sets of the group that are no sums of others; the rest are sums of them.
        """
        tables, failed = dict(whole), dict[AttributeSet, str]()
        largest = self.lattice.maximal(group)
        # single attributes first, then the largest sets, whose sums give the others
        for names in [*(names for names in group if len(names) == 1), *largest, *group]:
            if names not in tables and names not in failed:
                self._add(names, tables, failed, wanted)
            if names in tables and names in largest:
                for part in group:
                    if part not in tables and self.lattice.is_sum(part, names):
                        tables[part] = self.lattice.summed(tables[names], names, part)

        return tables, failed

    def _add(
        self,
        names: AttributeSet,
        tables: dict[AttributeSet, Integers],
        failed: dict[AttributeSet, str],
        wanted: Sequence[AttributeSet],
    ) -> None:
        """Add the table of a set, or the reason why there is none.

        LOST begins the reasons that are consequences of another failure.
        """
        lost = [above for above in self.lattice.raised(names) if above not in tables]
        if lost:
            failed[names] = f"{LOST} {', '.join(lost[0])}, of which it consists, was not made"
        elif self.refusal(names):
            failed[names] = f"its sums over {', '.join(names)} are too many cells"
        else:
            table = self._table(names, tables, wanted)
            if isinstance(table, str):
                failed[names] = table
            else:
                tables[names] = table

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
        above = lattice.maximal(other for other in whole if other != names and lattice.is_sum(other, names))
        margins = {margin: whole[margin].reshape(-1) for margin in above}
        allowed = lattice.allowed(names, wanted)

        # each cell of the margin is a line of cells with a fixed sum
        if len(above) == 1:
            ((margin, targets),) = margins.items()
            lines = Lines.of(lattice.parts(margin, names), targets)
            table = lines.round(lines.fit(values, variances, allowed))
        # each pair of cells of both margins is one cell of this table: a grid
        elif len(above) == 2 and lattice.is_joined(names, *above):
            grids = self._grids(names, margins)
            if grids.largest_side > MOST_SIDE:
                return f"it has blocks of more than {MOST_SIDE:,} × {MOST_SIDE:,} cells"
            table = grids.round(grids.fit(values, variances, allowed), allowed)
        else:
            return self._by_blocks(names, margins, estimate, allowed)

        return CONTRADICTION if table is None else table.reshape(shape)

    def _grids(self, names: AttributeSet, margins: Mapping[AttributeSet, Integers]) -> Grids:
        """Return the grids of the cells over `names`, whose rows and columns are the cells of two margins.

        Both margins have sums in common. Each cell of the table of common sums is one grid, because a cell of one
        margin meets only those cells of the other that add up to the same common sum.
        """
        (first, second), parts_of = margins, self.lattice.parts
        common = self.lattice.common(first, second)
        parts = parts_of(first, names), parts_of(second, names)
        grids = parts_of(common, first), parts_of(common, second)
        return Grids.of(parts, grids, (margins[first], margins[second]))

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
        table = np.zeros(len(values), np.int64)
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
            rounded = round_to_groups(fitted, groups, allowed[cells])
            if rounded is None:
                return CONTRADICTION
            table[cells] = rounded

        return table.reshape(self.lattice.domain.shape(names))

    def _estimate(self, names: AttributeSet, wanted: Sequence[AttributeSet]) -> tuple[Floats, Floats] | None:
        """Return the estimates of a set and their relative variances, or sums of those of a wanted set.

        For estimates without trees all variances of a set are equal. None if nothing is estimated.
        """
        try:
            values = np.asarray(self.answered.cells(names)[0], np.float64).reshape(-1)
        except PlanError:
            below = next((other for other in wanted if other != names and self.lattice.is_sum(names, other)), None)
            of_below = None if below is None else self._estimate(below, ())
            if of_below is None or below is None:
                return None
            values, variances = (self.lattice.summed(figures, below, names).reshape(-1) for figures in of_below)
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
    groups = []
    for subset, table in margins.items():
        axes = [names.index(name) for name in subset]
        groups.append((margin_cells(estimate.shape, axes), table.reshape(-1)))
    return round_to_groups(proportional(estimate, groups, possible), groups, possible)


def round_to_groups(fitted: Floats, groups: Groups, possible: NDArray[np.bool_]) -> Integers | None:
    """Return integers near a fitted table with given sums over groups of cells; None if none were found."""
    for more in FURTHER:
        rounded = _rounded(fitted, groups, possible, more)
        if rounded is not None:
            return rounded
    return None


def proportional(estimate: Floats, groups: Groups, possible: NDArray[np.bool_]) -> Floats:
    """Return a non-negative table near the truncated estimate whose margins are fitted by up to `SWEEPS` sweeps."""
    table = np.maximum(estimate, SEED).reshape(-1) * possible.reshape(-1)
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
    matrix, wanted = _margins(groups, flat.size), np.concatenate([sums for _, sums in groups])
    # with at most two margins every corner of the polytope is integral (a transport problem)
    integral = np.ones(flat.size) if len(groups) > 2 else None
    bounds, margins = optimize.Bounds(low, high), optimize.LinearConstraint(matrix, wanted, wanted)
    solution = optimize.milp(
        cost, integrality=integral, bounds=bounds, constraints=margins, options={"node_limit": NODES}
    )
    if solution.x is None:
        return None

    integers = np.rint(solution.x).astype(np.int64)
    return integers.reshape(fitted.shape) if (matrix @ integers == wanted).all() else None


def _margins(groups: Groups, cells: int) -> csr_array:
    """Return the matrix of the margins, with one row for each cell of a margin.

    A group is a pair: the number of the margin's cell for each cell of the table, and the values of the margin's cells.
    An entry is 1 if the cell of the table belongs to the cell of the margin.
    """
    from scipy.sparse import csr_array, vstack

    ones, columns, margins = np.ones(cells), np.arange(cells), []
    for group, sums in groups:
        margins.append(csr_array((ones, (group, columns)), shape=(len(sums), cells)))
    return vstack(margins)
