"""Structural zeros and functional dependencies in maximum-entropy estimates.

The rules of the domain (`dpscale.domain.rules`) are public, so using them costs no budget:

- *1-way marginals.* If one attribute depends on another, a region on its town, both 1-way marginals measure the region.
  Its estimate is their inverse-variance average, and the towns are scaled to it. Values that are impossible by
  themselves have almost no count.
- *Pairs.* The count of every town in every region follows from the 1-way marginal of the towns and need not be
  measured. For other pairs with a rule the expectation is independence restricted to possible cells, fitted to the
  1-way marginals.
- *Cells.* An impossible cell has count zero; the possible cells of a group share the count of the group.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

import numpy as np

from dpscale.base.numerics import AttributeSet, Floats, NDArray
from dpscale.domain.rules import DomainConstraint, FunctionalDependency, ValueRule, constraints_on, possible
from dpscale.workload.residual.axes import Groups, coarsened, expanded

Rules = Sequence[DomainConstraint]
# cells up to which possible groups follow from possible cells; least count and least divisor; rounds of scaling to the
# finest determinant and back
MOST_CELLS, LEAST, SCALED = 1 << 22, 1e-6, 4


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
    found = dependencies_between(rules, names)
    return len(names) > 1 and len(set(names) - {rule.dependent for rule in found}) <= 1


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
    of, by, what = np.array(rule.of), groups[rule.determinant], groups[rule.dependent]
    allowed = np.zeros((by.count, what.count), np.bool_)
    allowed[by.labels[of >= 0], what.labels[of[of >= 0]]] = True
    allowed[by.labels[of < 0]] = True
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

    for what in sorted(
        {rule.dependent for rule in dependencies_between(rules, names)}
    ):  # the same last bits in every process
        cells /= ones[what].reshape([-1 if name == what else 1 for name in names])

    after = coarsened(cells, inside)
    cells *= expanded(np.divide(before, after, out=np.zeros_like(before), where=after > 0), inside)
    cells *= ones[names[0]].sum() / max(cells.sum(), LEAST)
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
        reconciled[dependent] = np.maximum(_dependent_counts(finest, reconciled), LEAST)
        for rule in others:
            reconciled[rule.determinant] = _scale_determinant(rule, reconciled, reconciled[dependent])

    return reconciled


def _remove_impossible(rules: Rules, name: str, counts: Floats) -> Floats:
    """Set the values that are impossible by themselves to almost zero."""
    if not constraints_on(rules, [name]):
        return counts
    remaining = np.where(possible(rules, (name,), counts.shape), counts, LEAST)
    return np.asarray(remaining * (counts.sum() / remaining.sum()))


def _pooled_counts(
    own: Floats, by: Sequence[FunctionalDependency], ones: Mapping[str, Floats], variances: Mapping[str, float]
) -> Floats:
    """Return the inverse-variance average of a dependent attribute's own counts and the sums over its determinants.

    A sum over `members` cells of the determinant has members times their variance. Cells without a member are
    impossible.
    """
    weight = np.full(len(own), 1 / variances[by[0].dependent])
    joint, is_possible = own * weight, np.ones(len(own), np.bool_)
    for rule in by:
        members = np.bincount(rule.of, minlength=len(own))  # cells of the determinant for each cell
        precision = 1 / (np.maximum(members, 1) * variances[rule.determinant])
        joint, weight = joint + precision * _dependent_counts(rule, ones), weight + precision
        is_possible &= members > 0

    joint = np.where(is_possible, joint / weight, 0.0)
    return np.asarray(joint * (own.sum() / max(joint.sum(), LEAST)))


def _scale_determinant(rule: FunctionalDependency, ones: Mapping[str, Floats], wanted: Floats) -> Floats:
    """Return the counts of the determinant, scaled so that their sums by dependent value are `wanted`."""
    ratio = wanted / np.maximum(_dependent_counts(rule, ones), LEAST)
    scaled = np.maximum(ones[rule.determinant] * ratio[np.array(rule.of)], LEAST)
    return np.asarray(scaled * (ones[rule.determinant].sum() / scaled.sum()))


def _dependent_counts(rule: FunctionalDependency, ones: Mapping[str, Floats]) -> Floats:
    """Return the counts of the dependent attribute as sums over the determinant."""
    return np.asarray(np.bincount(rule.of, ones[rule.determinant], len(ones[rule.dependent])), np.float64)


def edges(rules: Rules, name: str) -> frozenset[int]:
    """Return the cells at which dependent attributes change, if they are constant on runs of cells."""
    found: set[int] = set()
    for rule in rules:
        if isinstance(rule, FunctionalDependency) and rule.determinant == name:
            changes = (np.flatnonzero(np.diff(rule.of)) + 1).tolist()
            found.update(changes if len(changes) < len(np.unique(rule.of)) else ())
    return frozenset(found)
