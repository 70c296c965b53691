"""Queries of a workload over hierarchies, split by residual of the other attributes and level of each tree.

The sets with the same levels form a group. Without its levels, a group is a workload on the other attributes, and its
subworkloads (`workload.subworkloads`) have one Gram matrix for each node of the levels. The first hierarchy is measured
at all of its levels with every residual τ. A level of another hierarchy splits like an attribute, into the total,
spread by shares u of its nodes, and a part that is centred: the residual (τ, S) is centred in the hierarchies S.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dpscale.base.errors import PlanError
from dpscale.base.numerics import AttributeSet
from dpscale.domain import Hierarchy
from dpscale.plans.tree_queries import known_level, levels_only, split_levels, without_implied
from dpscale.workload import Subworkload, Workload, WorkloadPart, decompose
from dpscale.workload.residual import subsets
from dpscale.workload.tree import Tree, tree_of

Levels = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class LevelGroup:
    """Sets with the same levels.

    Attributes
    ----------
    levels : tuple of int
        Level of each hierarchy in use; 0 where the sets have none.
    workload : Workload
        The sets without their levels.
    weight : float
        Sum of the weights of all queries.
    """

    levels: Levels
    workload: Workload
    weight: float


@dataclass(frozen=True, eq=False)
class TreeTerm:
    """Demand of one group on a residual.

    Attributes
    ----------
    group : int
    levels : tuple of int
        Level of each hierarchy at which the residual is needed; 0 where it is the total.
    sub : Subworkload
        Gram matrix on the other attributes, for one node of each level.
    spread : tuple of int
        Levels of the group's sets over which the total is spread; 0 where the residual is needed at the level itself.
    """

    group: int
    levels: Levels
    sub: Subworkload
    spread: Levels


@dataclass(frozen=True, eq=False)
class TreeDemands:
    """Demands of a workload over hierarchies.

    Attributes
    ----------
    hierarchies : tuple of Hierarchy
        Those in use; the first is measured at all levels, and the others are centred.
    trees : tuple of Tree
    groups : tuple of LevelGroup
    terms : mapping
        Terms of each residual, by the other attributes and the positions of the centred hierarchies.
    known : mapping of AttributeSet to int
        Deepest level of the hierarchy at which a residual follows from public totals, where there is one.
    """

    hierarchies: tuple[Hierarchy, ...]
    trees: tuple[Tree, ...]
    groups: tuple[LevelGroup, ...]
    terms: Mapping[tuple[AttributeSet, Levels], list[TreeTerm]]
    known: Mapping[AttributeSet, int]

    def whole_terms(self, names: AttributeSet) -> list[TreeTerm]:
        """Return one term of each group with a residual of the other attributes: that with all levels of its sets."""
        return [term for (own, _), terms in self.terms.items() if own == names
                for term in terms if not any(term.spread)]  # fmt: skip

    def depths(self, key: tuple[AttributeSet, Levels]) -> Levels:
        """Return the deepest level of every hierarchy at which a residual is needed."""
        return tuple(max(levels) for levels in zip(*(term.levels for term in self.terms[key]), strict=True))


def uses_levels(workload: Workload) -> bool:
    """Return whether the sets of a workload and the public totals are at several levels of a hierarchy."""
    used = {name for names in workload.sets for name in names}
    used |= {name for one in workload.domain.public_totals for name in one.names}
    return any(len(used.intersection(one.names)) > 1 for one in workload.domain.hierarchies)


def tree_demands(workload: Workload) -> TreeDemands:
    """Return the demands of a workload.

    Raises
    ------
    PlanError
        If queries on a level are not its cells.
    """
    used = {name for names in workload.sets for name in names}
    chosen = sorted((one for one in workload.domain.hierarchies if used.intersection(one.names)),
                    key=lambda one: -len(used.intersection(one.names)))  # fmt: skip
    trees = tuple(map(tree_of, chosen))
    groups = tuple(_groups(workload, chosen))
    terms: dict[tuple[AttributeSet, Levels], list[TreeTerm]] = {}
    for number, group in enumerate(groups):
        others = [place for place, level in enumerate(group.levels) if place and level]
        for sub in decompose(group.workload):
            for centred in subsets(tuple(others)):
                inside = [not place or place in centred for place in range(len(group.levels))]
                levels = tuple(level * known for level, known in zip(group.levels, inside, strict=True))
                spread = tuple(level * (not known) for level, known in zip(group.levels, inside, strict=True))
                own = terms.setdefault((sub.attributes, centred), [])
                own.append(TreeTerm(number, levels, sub, spread))
    known = {names: level for names, _ in terms if (level := known_level(workload.domain, chosen[0], names)) >= 0}
    if len(chosen) > 1 and workload.domain.public_totals:
        raise PlanError("totals", "given for a workload over several hierarchies", "totals over one hierarchy",
                        "leave out the totals, or the levels of all hierarchies but one")  # fmt: skip
    left = {key: [term for term in own if term.levels[0] > known.get(key[0], -1)] for key, own in terms.items()}
    return TreeDemands(tuple(chosen), trees, groups, {key: own for key, own in left.items() if own}, known)


def _groups(workload: Workload, hierarchies: Sequence[Hierarchy]) -> Iterator[LevelGroup]:
    found: dict[Levels, tuple[Workload, list[float]]] = {}
    for part in workload.parts:
        own: dict[Levels, list[tuple[AttributeSet, float]]] = {}
        for names, weight in zip(part.sets, part.weights, strict=True):
            split = split_levels(hierarchies, without_implied(hierarchies, names))
            levels = tuple(split.levels.get(one.leaf, 0) for one in hierarchies)
            if levels not in found:
                found[levels] = Workload(workload.domain.without_totals), []
            if any(levels):
                _check_marginal(part, hierarchies, names)
            rest = tuple(name for name in split.axes if name not in split.levels)
            own.setdefault(levels, []).append((rest, float(weight)))
            found[levels][1].append(float(weight) * _count(part, hierarchies, names))
        for levels, pairs in own.items():
            sets, weights = zip(*pairs, strict=True)
            found[levels][0].parts.append(_restricted(part, sets, weights) if part.factorizes else part)
    groups = (LevelGroup(levels, own, math.fsum(weights)) for levels, (own, weights) in sorted(found.items()))
    return (group for group in groups if group.weight > 0)


def _restricted(part: Any, sets: Sequence[AttributeSet], weights: Sequence[float]) -> WorkloadPart:
    found: WorkloadPart = replace(part, sets=sets, weights=weights)
    return found


def _count(part: WorkloadPart, hierarchies: Sequence[Hierarchy], names: AttributeSet) -> float:
    """Return the number of queries of a set without the cells that are 0 because one level follows from another."""
    return float(part.count(without_implied(hierarchies, names)))


def _check_marginal(part: WorkloadPart, hierarchies: Sequence[Hierarchy], names: AttributeSet) -> None:
    """Raise PlanError if queries of a part on a level are not its cells."""
    levels = [name for name in names for one in hierarchies if name in one.names]
    if not part.factorizes:
        raise levels_only(levels[0])
    families = dict(zip(names, part.families(names), strict=True))
    for name in levels:
        if not families[name].is_identity:
            raise levels_only(name)
