"""Local maximum entropy: every marginal is fitted to the low-order tables inside it, independently of other marginals.

Given consistent non-negative tables over few attributes, the marginal on γ is the distribution of maximum entropy whose
margins are the tables inside γ: iterative proportional fitting (IPF) from the product of its 1-way marginals. It needs
no junction tree and has no limit on the model size, because targets are fitted separately. Two targets may therefore
differ on their common attributes, if IPF stopped early or if their tables imply different values (`disagreement`).

Tables are over groups of cells. Within a group the cells share in proportion to their 1-way marginals, so the fit is
computed on groups and expanded to cells at the end. The result equals the fit on the cells, in a fraction of the time.

`proportional_fit` scales a table to each of its margins in turn until all are met. Fitting is in place: a target of 10⁷
cells needs its own memory and that of its margins. Pairs and triples, which are nearly all targets, have compiled loops
(`fitting_loops`); other shapes use numpy.

*Structural zeros and functional dependencies.*
The rules of the domain (`dpscale.domain.rules`) are public, so using them costs no budget:

- *1-way marginals.* If one attribute depends on another, a region on its town, both 1-way marginals measure the region.
  Its estimate is their inverse-variance average, and the towns are scaled to it. Values that are impossible by
  themselves have almost no count.
- *Pairs.* The count of every town in every region follows from the 1-way marginal of the towns and need not be
  measured. For other pairs with a rule the expectation is independence restricted to possible cells, fitted to the
  1-way marginals.
- *Cells.* An impossible cell has count zero; the possible cells of a group share the count of the group.

*Names.* In a model, `ones` are the 1-way marginals over cells, `coarse` those over groups, `tables` those of larger
sets, over groups, and `total` is the number of records.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import combinations

import numpy as np

from dpscale.base.numerics import AttributeSet, Floats, NDArray
from dpscale.domain.rules import DomainConstraint, FunctionalDependency, ValueRule, constraints_on, possible
from dpscale.reconstruction.set_arrays import OneWayArrays, TripleArrays
from dpscale.workload.residual import Groups, coarsened, expanded, subsets

Rules = Sequence[DomainConstraint]
# cells up to which possible groups follow from possible cells; least count and least divisor; rounds of scaling to the
# finest determinant and back
MOST_CELLS, LEAST_COUNT, SCALED = 1 << 22, 1e-6, 4

Margin = tuple[tuple[int, ...], Floats]
ROUNDS, TOLERANCE = 12, 1e-4  # of a fit: most rounds; L1 distance at which it ends, in shares of the total
RULE_ROUNDS, RULE_TOLERANCE = 50, 1e-6  # the same after impossible cells are set to 0
LEAST = 1e-9  # least sum that divides a margin
PAIRS = ((0, 1), (0, 2), (1, 2))  # of three axes
# arguments of the compiled loops for pairs and 1-way marginals that are not fitted
NOTHING, NONE = np.empty((0, 0)), np.empty(0)


def constrained_pairs(rules: Rules, names: Sequence[str]) -> list[AttributeSet]:
    """Return the pairs with a rule of two attributes, or with a common determinant, in the order of `names`."""
    constrained = {frozenset(rule.names) for rule in rules}
    for first, second in combinations(dependencies_between(rules, names), 2):
        if first.determinant == second.determinant:
            constrained.add(frozenset((first.dependent, second.dependent)))
    return [pair for pair in combinations(names, 2) if frozenset(pair) in constrained] if constrained else []


def dependencies_between(rules: Rules, names: Iterable[str]) -> list[FunctionalDependency]:
    """Return the dependencies between these attributes that are defined on every cell of the determinant."""
    return (
        [rule for rule in constraints_on(rules, names) if isinstance(rule, FunctionalDependency) and rule.whole]
        if rules
        else []
    )


def determined_by_one(rules: Rules, names: AttributeSet) -> bool:
    """Return whether all attributes but one depend on others: one 1-way marginal determines the table."""
    dependencies = dependencies_between(rules, names)
    return len(names) > 1 and len(set(names) - {rule.dependent for rule in dependencies}) <= 1


def determined_over_groups(rules: Rules, names: AttributeSet, groups: Mapping[str, Groups]) -> bool:
    """Return whether an attribute depends on another over groups: a smaller set determines the table."""
    return any((_meeting_groups(rule, groups).sum(axis=1) == 1).all() for rule in dependencies_between(rules, names))


def known_pair(
    rules: Rules, names: AttributeSet, ones: Mapping[str, Floats], groups: Mapping[str, Groups]
) -> Floats | None:
    """Return the table over groups of two attributes with a common determinant (one of them or a third), else None.

    The table follows from the 1-way marginal of the determinant.

    With a common determinant, every cell of it has one cell of both attributes, so its count goes to one cell of the
    pair.
    """
    dependencies = dependencies_between(rules, ones)
    for determinant in [*names, *(rule.determinant for rule in dependencies)] if dependencies else []:
        # by attribute, its cell for each cell of the determinant
        cell_of = {rule.dependent: np.array(rule.of) for rule in dependencies if rule.determinant == determinant}
        cell_of[determinant] = np.arange(len(ones[determinant]))
        if set(names) <= cell_of.keys():
            first, second = (groups[name].labels[cell_of[name]] for name in names)
            rows, columns = (groups[name].count for name in names)
            table = np.bincount(first * columns + second, ones[determinant], rows * columns)
            return np.asarray(table.reshape(rows, columns), np.float64)

    return None


def coarse_possible(rules: Rules, names: AttributeSet, groups: Mapping[str, Groups]) -> NDArray[np.bool_]:
    """Return which cells over groups contain a possible cell.

    For large sets only functional dependencies and value rules are applied.

    With few cells, a group is possible if the number of possible cells in it is positive.
    """
    groupings = [groups[name] for name in names]
    shape = [grouping.size for grouping in groupings]
    if math.prod(shape) <= MOST_CELLS:
        return np.asarray(coarsened(possible(rules, names, shape).astype(np.int64), groupings) > 0)

    allowed = np.ones([grouping.count for grouping in groupings], np.bool_)
    for rule in constraints_on(rules, names):
        if isinstance(rule, FunctionalDependency):
            allowed &= _broadcast_groups(rule, names, groups)
        elif isinstance(rule, ValueRule):
            over_groups = rule.over_groups({name: groups[name].labels for name in rule.names})
            allowed &= over_groups.possible(names, allowed.shape)
    return allowed


def _meeting_groups(rule: FunctionalDependency, groups: Mapping[str, Groups]) -> NDArray[np.bool_]:
    """Return which groups have a cell in common under a dependency, shape (determinant groups, dependent groups).

    `rule.of` has the dependent cell of every determinant cell, −1 where it is undefined; there everything is allowed.
    """
    dependent_of, determinant, dependent = np.array(rule.of), groups[rule.determinant], groups[rule.dependent]
    is_defined = dependent_of >= 0
    allowed = np.zeros((determinant.count, dependent.count), np.bool_)
    allowed[determinant.labels[is_defined], dependent.labels[dependent_of[is_defined]]] = True
    allowed[determinant.labels[~is_defined]] = True
    return allowed


def _broadcast_groups(
    rule: FunctionalDependency, names: AttributeSet, groups: Mapping[str, Groups]
) -> NDArray[np.bool_]:
    """Return `_meeting_groups` with axes that broadcast to a table over the groups of `names`."""
    allowed = _meeting_groups(rule, groups)
    allowed = allowed if names.index(rule.determinant) < names.index(rule.dependent) else allowed.T
    return allowed.reshape([groups[name].count if name in rule.names else 1 for name in names])


def possible_cells(
    rules: Rules, names: AttributeSet, groups: Mapping[str, Groups], ones: Mapping[str, Floats], cells: Floats
) -> Floats:
    """Set impossible cells of a table over cells to zero, in place.

    Every group of cells and the whole table retain their sums. In a group the cells share by their 1-way marginals; the
    share of a dependent attribute is all or nothing.

    Dividing by the 1-way marginal of the dependent attribute removes its share within groups, which the rule
    determines.
    """
    inside = [groups[name] for name in names]
    before = coarsened(cells, inside).copy()
    cells *= possible(rules, names, cells.shape)

    # sorted, for the same last bits in every process
    for dependent in sorted({rule.dependent for rule in dependencies_between(rules, names)}):
        cells /= ones[dependent].reshape([-1 if name == dependent else 1 for name in names])

    after = coarsened(cells, inside)
    cells *= expanded(np.divide(before, after, out=np.zeros_like(before), where=after > 0), inside)
    cells *= ones[names[0]].sum() / max(cells.sum(), LEAST_COUNT)
    return cells


def reconcile_one_ways(ones: Mapping[str, Floats], variances: Mapping[str, float], rules: Rules) -> dict[str, Floats]:
    """Return 1-way marginals over cells, positive and with equal sums, that obey the rules.

    First every dependent attribute is estimated from all marginals that measure it, and then from its finest
    determinant, to which the others are scaled.

    Parameters
    ----------
    ones : mapping of str to ndarray
        1-way marginals, each of shape (cells,).
    variances : mapping of str to float
        Noise variance of the cells of each marginal.
    rules : sequence of Excludes
        Closed under implication.
    """
    reconciled = {name: _remove_impossible(rules, name, counts) for name, counts in ones.items()}
    decided: dict[str, list[FunctionalDependency]] = {}
    for rule in sorted(dependencies_between(rules, ones), key=lambda rule: (-len(rule.of), rule.determinant)):
        decided.setdefault(rule.dependent, []).append(rule)

    for dependent, dependencies in decided.items():
        joint = _pooled_counts(reconciled[dependent], dependencies, reconciled, variances)
        for rule in dependencies:
            reconciled[rule.determinant] = _scale_determinant(rule, reconciled, joint)

    for dependent, (finest, *others) in [*decided.items()] * SCALED:
        reconciled[dependent] = np.maximum(_dependent_counts(finest, reconciled), LEAST_COUNT)
        for rule in others:
            reconciled[rule.determinant] = _scale_determinant(rule, reconciled, reconciled[dependent])

    return reconciled


def _remove_impossible(rules: Rules, name: str, counts: Floats) -> Floats:
    """Set the values that are impossible by themselves to almost zero."""
    if not constraints_on(rules, [name]):
        return counts
    remaining = np.where(possible(rules, (name,), counts.shape), counts, LEAST_COUNT)
    return np.asarray(remaining * (counts.sum() / remaining.sum()))


def _pooled_counts(
    counts: Floats, by: Sequence[FunctionalDependency], ones: Mapping[str, Floats], variances: Mapping[str, float]
) -> Floats:
    """Return the inverse-variance average of a dependent attribute's own `counts` and the sums over its determinants.

    A sum over `members` cells of the determinant has members times their variance. Cells without a member are
    impossible.
    """
    weight = np.full(len(counts), 1 / variances[by[0].dependent])
    joint, is_possible = counts * weight, np.ones(len(counts), np.bool_)
    for rule in by:
        members = np.bincount(rule.of, minlength=len(counts))  # cells of the determinant for each cell
        precision = 1 / (np.maximum(members, 1) * variances[rule.determinant])
        joint, weight = joint + precision * _dependent_counts(rule, ones), weight + precision
        is_possible &= members > 0

    joint = np.where(is_possible, joint / weight, 0.0)
    return np.asarray(joint * (counts.sum() / max(joint.sum(), LEAST_COUNT)))


def _scale_determinant(rule: FunctionalDependency, ones: Mapping[str, Floats], wanted: Floats) -> Floats:
    """Return the counts of the determinant, scaled so that their sums by dependent value are `wanted`."""
    ratio = wanted / np.maximum(_dependent_counts(rule, ones), LEAST_COUNT)
    scaled = np.maximum(ones[rule.determinant] * ratio[np.array(rule.of)], LEAST_COUNT)
    return np.asarray(scaled * (ones[rule.determinant].sum() / scaled.sum()))


def _dependent_counts(rule: FunctionalDependency, ones: Mapping[str, Floats]) -> Floats:
    """Return the counts of the dependent attribute as sums over the determinant."""
    return np.asarray(np.bincount(rule.of, ones[rule.determinant], len(ones[rule.dependent])), np.float64)


def edges(rules: Rules, name: str) -> frozenset[int]:
    """Return the cells at which dependent attributes change, if they are constant on runs of cells."""
    changed_cells: set[int] = set()
    for rule in rules:
        if isinstance(rule, FunctionalDependency) and rule.determinant == name:
            changes = (np.flatnonzero(np.diff(rule.of)) + 1).tolist()
            changed_cells.update(changes if len(changes) < len(np.unique(rule.of)) else ())
    return frozenset(changed_cells)


@dataclass(frozen=True, eq=False)
class LowOrder:
    """Consistent non-negative low-order tables.

    Attributes
    ----------
    ones : mapping of str to ndarray
        1-way counts over the cells, shape (n,), each with sum `total`. The keys define the order of attributes.
    groups : mapping of str to Groups
        The groups of cells of each attribute.
    tables : mapping of AttributeSet to ndarray
        Counts over groups for sets of two or more attributes; their margins are those of `ones`.
    total : float
    measured : frozenset of AttributeSet
        The sets that were measured or are determined by `rules`. Other tables are implied by them.
    rules : tuple of Excludes
        Structural zeros and functional dependencies of the domain.
    """

    ones: Mapping[str, Floats]
    groups: Mapping[str, Groups]
    tables: Mapping[AttributeSet, Floats]
    total: float
    measured: frozenset[AttributeSet] = frozenset()
    rules: tuple[DomainConstraint, ...] = ()

    @cached_property
    def coarse(self) -> dict[str, Floats]:
        """1-way counts over groups."""
        return {name: coarsened(counts, [self.groups[name]]) for name, counts in self.ones.items()}

    def coarse_marginal(self, names: AttributeSet, rounds: int = ROUNDS) -> Floats:
        """Return the fitted marginal over groups; `names` in the order of `ones`.

        The fit starts at the product of the 1-way marginals, whose impossible cells are 0, and scales it to the tables
        inside.
        """
        if names in self.tables:
            return self.tables[names]
        table = product_of([self.coarse[name] for name in names], self.total)
        if constraints_on(self._wide_rules, names):
            table *= coarse_possible(self.rules, names, self.groups)
        fit_in_place(table, self.inside(names), rounds, TOLERANCE * self.total)
        return table

    def coarse_marginals(self, sets: Sequence[AttributeSet]) -> dict[AttributeSet, Floats]:
        """Return the fitted marginals of many sets; triples, the most frequent, are fitted in one batch."""
        in_batch = len(self.tables) > 8 and not self._wide_rules  # the loops fit pairs in the order of a set's axes
        triples = [names for names in sets if in_batch and len(names) == 3 and names not in self.tables]
        known = self._triples.fit_independent(triples, ROUNDS, TOLERANCE * self.total) if triples else {}
        return {names: known[names] if names in known else self.coarse_marginal(names) for names in sets}

    def fit_tables(
        self, tables: Mapping[AttributeSet, Floats], rounds: int, tolerance: float
    ) -> dict[AttributeSet, Floats]:
        """Return copies of tables, scaled to the 1-way marginals and to the tables inside each.

        `rounds` and `tolerance` limit the proportional fit. Many triples are fitted by compiled loops, others one by
        one.
        """
        if len(self.tables) > 8 and all(len(names) == 3 for names in tables):
            return self._triples.fit_tables(tables, rounds, tolerance)
        return {
            names: proportional_fit(table, self._margins(names), rounds, tolerance) for names, table in tables.items()
        }

    def impose_rules(self, names: AttributeSet, table: Floats) -> Floats:
        """Return a table over groups with impossible cells set to zero and fitted to the 1-way marginals."""
        if not constraints_on(self.rules, names):
            return table
        restricted = np.where(coarse_possible(self.rules, names, self.groups), table, 0.0)
        ones = [((axis,), self.coarse[name]) for axis, name in enumerate(names)]
        return proportional_fit(restricted, ones, RULE_ROUNDS, RULE_TOLERANCE * self.total)

    def _margins(self, names: AttributeSet) -> list[Margin]:
        return [*(((axis,), self.coarse[name]) for axis, name in enumerate(names)), *self.inside(names)]

    @cached_property
    def _wide_rules(self) -> tuple[DomainConstraint, ...]:
        """The rules over more than two attributes."""
        return tuple(rule for rule in self.rules if len(rule.names) > 2)

    @cached_property
    def _triples(self) -> TripleArrays:
        return TripleArrays.of(OneWayArrays.of(self.coarse, self.total), self.tables)

    def marginal(self, names: Sequence[str], rounds: int = ROUNDS) -> Floats:
        """Return estimated counts over the cells, one axis per attribute in the given order.

        They are non-negative with sum `total`.

        At most two arrays of this size are in memory at a time, or two of `MOST_CELLS` cells.
        """
        ordered = self._ordered(names)
        if not ordered:
            return np.array(self.total)

        extended = self._with_determinants(ordered)
        cells = self._over_cells(extended, rounds)
        if len(extended) > len(ordered):
            cells = cells.sum(axis=tuple(axis for axis, name in enumerate(extended) if name not in ordered))
        return cells.transpose([ordered.index(name) for name in names])

    def _with_determinants(self, ordered: AttributeSet) -> AttributeSet:
        """Add dependent attributes that distinguish cells of one group, or that take part in other rules."""
        dependents = [
            rule.dependent
            for rule in dependencies_between(self.rules, self.ones)
            if rule.determinant in ordered and self._determines(rule, ordered)
        ]
        extended = self._ordered([*ordered, *dependents]) if dependents else ordered
        return extended if math.prod(len(self.ones[name]) for name in extended) <= MOST_CELLS else ordered

    def _determines(self, rule: FunctionalDependency, ordered: AttributeSet) -> bool:
        """Return whether a dependency limits the cells of `ordered` beyond their groups.

        So does one whose dependent attribute is in another rule.
        """
        others = constraints_on(self.rules, [*ordered, rule.dependent])
        return any(
            rule.dependent in other.names and other is not rule for other in others
        ) or not determined_over_groups([rule], rule.names, self.groups)

    def _over_cells(self, ordered: AttributeSet, rounds: int) -> Floats:
        """Return the table of a set over cells: that over groups, divided by the cells' shares of their group.

        Groups are ranges of cells. Rules exclude cells; `rounds` limits the fit if the set is in no table.

        `known` says whether the array belongs to the model, so that it is copied before it is returned.
        """
        cells, known = self.coarse_marginal(ordered, rounds), ordered in self.tables
        for axis, name in enumerate(ordered):
            grouping = self.groups[name]
            if grouping.count < grouping.size:
                cells, known = cells.take(grouping.labels, axis=axis), False
                cells *= along(self.ones[name] / self.coarse[name][grouping.labels], axis, len(ordered))

        if constraints_on(self.rules, ordered):
            return possible_cells(self.rules, ordered, self.groups, self.ones, cells.copy() if known else cells)
        return cells.copy() if known else cells

    def cells(self, names: AttributeSet) -> int:
        """Return the number of cells of a set's marginal over groups."""
        return math.prod(self.groups[name].count for name in names)

    def inside(self, names: AttributeSet) -> list[tuple[tuple[int, ...], Floats]]:
        """Return the largest tables inside a set, each with the axes of the set that it covers.

        With fewer subsets than tables, subsets are looked up; otherwise the tables are searched. A table inside another
        one is left out, because the larger determines it.
        """
        looks_up = 2 ** len(names) < len(self.tables)
        if looks_up and len(names) == 3:  # nearly all targets
            pairs = ((axes, self.tables.get((names[axes[0]], names[axes[1]]))) for axes in PAIRS)
            return [(axes, table) for axes, table in pairs if table is not None]

        candidates = subsets(names) if looks_up else [subset for subset in self.tables if set(subset) <= set(names)]
        contained = [subset for subset in candidates if subset in self.tables]
        largest = [subset for subset in contained if not any(set(subset) < set(other) for other in contained)]
        return [(tuple(names.index(name) for name in subset), self.tables[subset]) for subset in largest]

    def disagreement(self, target: AttributeSet, other: AttributeSet) -> float:
        """Return the share of the total on which two targets differ on common attributes: half the L1 distance.

        The margins are those over groups of the common attributes; without a common one they agree. Half the L1
        distance is the number of counts to move.
        """
        common = tuple(name for name in self.ones if name in target and name in other)
        if not common:
            return 0.0
        ordered = self._ordered(target), self._ordered(other)
        first, second = (_margin(self.coarse_marginal(names), names, common) for names in ordered)
        return float(np.abs(first - second).sum() / (2 * self.total))

    def _ordered(self, names: Sequence[str]) -> AttributeSet:
        return tuple(name for name in self.ones if name in names)


def _margin(values: Floats, names: AttributeSet, subset: AttributeSet) -> Floats:
    return np.asarray(values.sum(axis=tuple(axis for axis, name in enumerate(names) if name not in subset)))


def along(values: Floats, axis: int, dimensions: int) -> Floats:
    """Return a vector reshaped to broadcast along one axis of `dimensions`."""
    return values.reshape([-1 if i == axis else 1 for i in range(dimensions)])


def product_of(ones: Sequence[Floats], total: float) -> Floats:
    """Return the table of independent attributes: outer product of the 1-way marginals / total^(k−1)."""
    scaled = [ones[0], *(one_way / total for one_way in ones[1:])]
    return np.asarray(reduce(np.multiply.outer, scaled))


def proportional_fit(table: Floats, margins: Sequence[Margin], rounds: int, tolerance: float) -> Floats:
    """Return a copy of a table scaled to each margin in turn.

    Parameters
    ----------
    table : ndarray
    margins : sequence of (axes, ndarray)
        Counts over these axes, in ascending order of axes. A single margin is met in one step.
    rounds : int
        Maximum number of rounds.
    tolerance : float
        L1 change at which the rounds end.
    """
    table = np.array(table, dtype=np.float64, order="C")
    fit_in_place(table, margins, rounds, tolerance)
    return table


def fit_in_place(table: Floats, margins: Sequence[Margin], rounds: int, tolerance: float) -> None:
    """Apply `proportional_fit` to a contiguous table itself.

    A margin is (axes, table). Pairs with both 1-way marginals and triples with pairs have compiled loops; a fit ends
    when no margin moves by more than the tolerance in L1.

    A loop ends after `rounds` passes, each of which scales the table to all margins in turn.
    """
    margins = [(axes, np.ascontiguousarray(margin)) for axes, margin in margins]
    if table.ndim == 2 and [axes for axes, _ in margins] == [(0,), (1,)]:
        from dpscale.reconstruction import fitting_loops

        (_, of_rows), (_, of_columns) = margins
        fitting_loops.fit_pair(table, of_rows, of_columns, rounds, tolerance)
        return

    rounds = rounds if len(margins) > 1 else min(rounds, len(margins))  # one margin is met in one step
    singles = [margin for margin in margins if len(margin[0]) == 1]
    if table.ndim == 3 and all(len(axes) == 2 for axes, _ in margins[len(singles) :]):
        _fit_triple(table, singles, dict(margins[len(singles) :]), rounds, tolerance)
        return
    for _ in range(rounds):
        if max([_scale_to_margin(table, axes, margin) for axes, margin in margins]) <= tolerance:
            break


def _fit_triple(
    table: Floats, singles: Sequence[Margin], pairs: Mapping[tuple[int, ...], Floats], rounds: int, tolerance: float
) -> None:
    """Fit a table over three attributes to 1-way marginals and then to pairs.

    The loops take three 1-way marginals and three pairs in fixed places, with flags and an order of those that exist.
    """
    from dpscale.reconstruction import fitting_loops

    ones, single = [NONE] * 3, np.zeros(3, np.bool_)
    for (axis,), margin in singles:
        ones[axis], single[axis] = margin, True
    order = np.array([PAIRS.index(axes) for axes in pairs], np.int64)
    pair_margins = [pairs.get(axes, NOTHING) for axes in PAIRS]
    fitting_loops.fit_triple(table, single, *ones, order, *pair_margins, rounds, tolerance)


def _scale_to_margin(table: Floats, axes: tuple[int, ...], margin: Floats) -> float:
    """Scale to one margin, in place; return the previous L1 distance."""
    sums = table.sum(axis=tuple(axis for axis in range(table.ndim) if axis not in axes))
    moved = float(np.abs(sums - margin).sum())
    table *= (margin / np.maximum(sums, LEAST)).reshape(
        [n if axis in axes else 1 for axis, n in enumerate(table.shape)]
    )
    return moved
