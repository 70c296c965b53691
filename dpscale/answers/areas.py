"""Estimates of any union of nodes of a hierarchy, such as an area of a map, and of differences of two unions.

A union is (level, nodes): the distinct positions of its nodes on one level, from the root at level 0.
The union is written as nodes of the highest level of which it consists. Under a plan over hierarchies its estimate and
standard error take one pass over the paths of these nodes (`plans.tree`); otherwise it is one linear query.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from dpscale.answers.tables import Answered, check_level
from dpscale.base.display import nearest, safe_repr
from dpscale.base.errors import JobError
from dpscale.base.numerics import AttributeSet, Floats, Integers
from dpscale.domain import Domain, Hierarchy
from dpscale.reconstruction.joint_intervals import half_width
from dpscale.reconstruction.tree_estimates import TreeEstimates
from dpscale.workload.predicates import check_satisfied, read_predicate


class AreaEstimate(NamedTuple):
    """Estimate of an area.

    Parameters
    ----------
    estimate : float
    std_error : float
    low, high : float
        Ends of the confidence interval.
    """

    estimate: float
    std_error: float
    low: float
    high: float


def area(
    answered: Answered,
    nodes: Iterable[Any],
    query: str | Mapping[str, Any] | None,
    level: float,
    minus: Iterable[Any] = (),
    hierarchy: str | None = None,
) -> AreaEstimate:
    """Return the number of records in a union of nodes, or its difference from another union.

    Parameters
    ----------
    answered : Answered
    nodes : iterable
        Labels of nodes of any level, or pairs of a level and a label. Each leaf counts once.
    query : str, mapping or None
        Records that count: a predicate, or values of some attributes.
    level : float
        Probability that the interval covers the true value.
    minus : iterable
        Nodes of the union that is subtracted.
    hierarchy : str, optional
        A level of the hierarchy; required if the domain has several.

    Raises
    ------
    JobError
        If a label is unknown or names several nodes.
    PlanError
        If the query was not measured at the level of the nodes.
    """
    check_level(level)
    domain = answered.estimates.workload.domain
    tree_hierarchy = chosen_hierarchy(domain, hierarchy)
    places = _places(domain, tree_hierarchy)
    added, subtracted = (_union(tree_hierarchy, places, labels) for labels in (nodes, minus))
    name, place, weights = _difference(tree_hierarchy, added, subtracted)
    attributes, values = _other_query(domain, tree_hierarchy, query)

    if isinstance(answered.estimates, TreeEstimates):
        estimate, error = answered.estimates.combination(name, place, weights, attributes, values)
    else:
        ordered, of_nodes = domain.ordered((name, *attributes)), np.zeros(domain[name].size)
        of_nodes[place] = weights
        array = np.multiply.outer(of_nodes, values)
        estimate, error = answered.estimates.answer(ordered, np.moveaxis(array, 0, ordered.index(name)))

    half = half_width(level, answered.estimates.noise) * error
    return AreaEstimate(estimate=estimate, std_error=error, low=estimate - half, high=estimate + half)


def chosen_hierarchy(domain: Domain, name: str | None) -> Hierarchy:
    """Return the hierarchy with a level, or the only one.

    Raises
    ------
    JobError
        If there is none, or the choice is not clear.
    """
    if name is not None and (containing := domain.hierarchy_of(name)) is not None:
        return containing
    if name is None and len(domain.hierarchies) == 1:
        return domain.hierarchies[0]

    leaves = [hierarchy.leaf for hierarchy in domain.hierarchies]
    got = "none given" if name is None else safe_repr(name)
    takes = f"one of {', '.join(leaves)}" if leaves else "a domain with a hierarchy"
    raise JobError("hierarchy", got, takes, "name the hierarchy by its leaf attribute" if leaves
                   else 'write kind = "hierarchy" in the domain file')  # fmt: skip


Union = tuple[int, Integers]  # distinct nodes of a level, from the root at 0


def _union(hierarchy: Hierarchy, places: Places, nodes: Iterable[Any]) -> Union:
    """Return the union of labelled nodes, as nodes of the deepest level of one of them.

    A code of `places` has the level in the bits above LEVEL and the cell in the lower ones; -1 stands for a label that
    does not mean one node alone. `_descend` replaces nodes by those of a deeper level.
    """
    if isinstance(nodes, str):
        raise JobError("nodes", safe_repr(nodes), "a list of labels", f"write [{safe_repr(nodes)}]")

    labels = list(nodes)
    codes = np.array([places.alone.get(label, -1) if label.__hash__ else -1 for label in labels], np.int64)
    for unknown in np.flatnonzero(codes < 0).tolist():
        codes[unknown] = _find(hierarchy, places, labels[unknown])
    levels, cells = codes >> LEVEL, codes & ((1 << LEVEL) - 1)
    deepest = int(levels.max(initial=1))
    parts = [_descend(hierarchy, (level, cells[levels == level]), deepest) for level in np.unique(levels).tolist()]

    return deepest, np.unique(np.concatenate([np.zeros(0, np.int64), *parts]))


def _descend(hierarchy: Hierarchy, union: Union, level: int) -> Integers:
    """Return the nodes of a level that are below those of a union.

    Nodes are returned unchanged if the level is not below them.
    """
    depth, nodes = union
    tree = hierarchy.tree
    while depth < level:
        nodes, depth = tree.children_of(nodes, depth), depth + 1
    return nodes


def _difference(hierarchy: Hierarchy, added: Union, subtracted: Union) -> tuple[str, Integers, Floats]:
    """Return the difference of two unions at the highest level of which both consist: level, nodes and weights.

    The weights are 1 in the first union only, and -1 in the second only. While all children of each parent are there
    with equal weights, they are replaced by the parent.

    `nodes` are on `level`, from the root at 0; `above` are their parents, `number` how many children of each are among
    them.
    """
    level = max(added[0], subtracted[0])
    both = [_descend(hierarchy, union, level) for union in (added, subtracted)]
    signs = np.repeat([1.0, -1.0], [len(nodes) for nodes in both])
    nodes, place = np.unique(np.concatenate(both), return_inverse=True)
    weights = np.bincount(place, signs, minlength=len(nodes))
    # nodes of both unions cancel
    nodes, weights = nodes[weights != 0], weights[weights != 0]
    tree = hierarchy.tree

    while level > 1:
        above, first, place, number = np.unique(
            tree.parents[level - 1][nodes], return_index=True, return_inverse=True, return_counts=True
        )
        whole = number == tree.child_counts[level - 1][above]
        if not whole.all() or (weights != weights[first][place]).any():
            break
        nodes, weights, level = above, weights[first], level - 1

    return hierarchy.names[level - 1], nodes, weights


LEVEL = 40  # bits of a cell in the code of a node, level · 2^LEVEL + cell


@dataclass(frozen=True, eq=False)
class Places:
    """Codes of nodes by label.

    Attributes
    ----------
    by_level : tuple of mapping
        Codes of all labels and of their texts, by level.
    alone : mapping
        Codes of the labels that name one set of leaves.
    """

    by_level: tuple[Mapping[Any, int], ...]
    alone: Mapping[Any, int]


@lru_cache(maxsize=8)
def _places(domain: Domain, hierarchy: Hierarchy) -> Places:
    """Return the codes of all areas of a hierarchy by label: for each level, and for labels that mean one area alone.

    A code is the level from 1 in the upper bits and the cell in the lower ones. A label on several levels is one area
    if it has the same leaves on each.
    """
    by_level = list[Mapping[Any, int]]()
    for depth, name in enumerate(hierarchy.names):
        codes = [(depth + 1 << LEVEL) + cell for cell in range(domain[name].size)]
        labels = list(domain[name].labels)
        # by the text and by the label itself, which may be an integer
        by_level.append(dict(zip(map(str, labels), codes, strict=True)) | dict(zip(labels, codes, strict=True)))

    alone: dict[Any, int] = {}
    several: set[Any] = set()
    for codes_of in by_level:
        for label in alone.keys() & codes_of.keys():
            if _leaves(hierarchy, alone[label]) != _leaves(hierarchy, codes_of[label]):
                several.add(label)
        alone |= codes_of

    return Places(tuple(by_level), {label: code for label, code in alone.items() if label not in several})


def _find(hierarchy: Hierarchy, places: Places, label: Any) -> int:
    """Return the code of a node that is given by level and label. Raises JobError for anything else.

    A label on several levels must be given with its level, as a pair.
    """
    if isinstance(label, tuple) and len(label) == 2 and label[0] in hierarchy.names:
        cells = places.by_level[hierarchy.position(label[0])]
        if label[1] in cells:
            return cells[label[1]]

    levels = [
        name for name, cells in zip(hierarchy.names, places.by_level, strict=True) if label.__hash__ and label in cells
    ]
    if levels:
        raise JobError("nodes", f"{label!r}, a label of {' and '.join(levels)}", "labels of one node",
                       f"write a pair, as ({levels[-1]!r}, {label!r})")  # fmt: skip

    known = (str(cell) for cells in places.by_level for cell in cells)
    raise JobError("nodes", safe_repr(label), f"labels of {', '.join(hierarchy.names)}", nearest(str(label), known))


def _leaves(hierarchy: Hierarchy, code: int) -> bytes:
    """Return the positions of the leaves below a node as bytes, which are equal for nodes with the same leaves."""
    union = code >> LEVEL, np.array([code & ((1 << LEVEL) - 1)])
    return np.sort(_descend(hierarchy, union, hierarchy.depth)).tobytes()


def _other_query(domain: Domain, hierarchy: Hierarchy, query: Any) -> tuple[AttributeSet, Floats]:
    """Return the attributes of a query on records and its values over their cells. Raises JobError for a level.

    `hierarchy` is the hierarchy of the area. Its levels are refused because the nodes of the area already choose them.
    """
    attributes, values = chosen_records(domain, query)
    if levels := [name for name in attributes if name in hierarchy.names]:
        raise JobError("query", f"a condition on {levels[0]}, a level of the area", "conditions on other attributes",
                       "choose the nodes of the area instead")  # fmt: skip
    return attributes, values


def chosen_records(domain: Domain, query: Any) -> tuple[AttributeSet, Floats]:
    """Return the attributes of a query on records, and 1 or 0 for each of their cells, in domain order.

    Parameters
    ----------
    domain : Domain
    query : str, mapping or None
        A predicate, or values by attribute; None for all records.

    Raises
    ------
    JobError
        For a query that cannot be read.
    """
    if query is None:
        return (), np.ones(())
    if isinstance(query, str):
        predicate = read_predicate(query, domain)
        check_satisfied(predicate, query, "query")
        return predicate.attributes, predicate.mask.astype(np.float64)
    if not isinstance(query, Mapping):
        raise JobError("query", safe_repr(query), "a predicate, as \"sex = 'f'\", or values by attribute", "fix it")

    attributes, values = domain.ordered(query), np.ones(())
    for name in attributes:
        values = np.multiply.outer(values, _mask(domain, name, query[name]))
    return attributes, np.asarray(values)


def _mask(domain: Domain, name: str, values: Any) -> Floats:
    """Return 1 for the cells of the given value or values of an attribute and 0 for others (shape cells).

    `values` is a label or a collection of labels; labels that the attribute does not list are refused.
    """
    attribute = domain.attribute(name)
    listed = list(values) if isinstance(values, list | tuple | set | range) else [values]
    if not listed:
        raise JobError(f"query.{name}", "an empty list", f"values of {name}", "list some, or leave it out")
    mask = np.zeros(attribute.size)
    for value in listed:
        if value not in attribute.cell_of:
            raise JobError(
                f"query.{name}", safe_repr(value), f"values of {name}", nearest(str(value), map(str, attribute.labels))
            )
        mask[attribute.cell_of[value]] = 1.0

    return mask
