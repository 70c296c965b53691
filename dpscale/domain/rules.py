"""Rules between attributes, stated in the domain; synthetic rows always satisfy them.

    [[rule]]
    rule = "discharge >= admission"

    [[rule]]
    rule = "if age < 15 then marital not in ('married', 'widowed')"

The texts are read by `rule_text`. A clause over cells is a structural zero: a combination of cells that no row has.
Zeros that leave one cell of an attribute for each cell of another are a functional dependency; attributes that group
the values of another one depend on it in the same way. A clause with comparisons of values is a value rule: it excludes
the combinations of cells in which no values satisfy it, and restricts the values in others.

Rules are public, like the domain, so they cost no budget. Synthetic rows, published tables and maximum-entropy
estimates (`dpscale.reconstruction.entropy`) satisfy them; measurements and least squares ignore them.

*Consequences and contradictions of rules that compare values.*
Two comparisons with an attribute of opposite signs imply one without it (Fourier and Motzkin): a ≤ b and b ≤ c imply
a ≤ c. The ends of the ranges are such comparisons of one attribute. Consequences over one and two attributes are rules
of their cells, so that estimates of small sets satisfy them; a consequence without attributes that is false is a
contradiction of the rules from which it comes.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations, product
from typing import Any, Protocol

import numpy as np

from dpscale.base.errors import DomainError
from dpscale.base.numerics import Flags, Integers, NDArray
from dpscale.domain.attribute import Attribute
from dpscale.domain.number import Number
from dpscale.domain.rule_text import FIELD, Clause, Find, Linear, ValueRanges, read_rule, value_ranges
from dpscale.domain.tree import TreeLevel

Cells = NDArray[np.integer]
MOST_CELLS = 1 << 24  # of two attributes whose zeros may be a functional dependency

MOST_PAIR_CELLS, MOST_COMPARED = 1 << 20, 64  # cells of two rules, and rules, that are compared in pairs
Terms = tuple[tuple[str, float], ...]


class DomainConstraint(Protocol):
    """Constraint on the attributes `names`; the last one is changed in a row that violates it."""

    @property
    def names(self) -> tuple[str, ...]: ...

    def broken(self, column: Column, /) -> Flags:
        """Return the rows that violate the constraint, shape (n,).

        `column(name)` returns the rows' cells of an attribute, shape (n,).
        """

    def forbidden(self, name: str, column: Column, size: int, /) -> Flags:
        """Return the cells of one attribute that violate the constraint given the rows' other cells.

        The result has shape (n, size).
        """

    def possible(self, names: Sequence[str], shape: Sequence[int], /) -> Flags:
        """Return the possible cells of a table over `names`, which include its own; broadcasts to `shape`."""

    def to_dict(self) -> dict[str, Any]:
        """Return the constraint as JSON-ready data."""


Column = Callable[[str], Cells]


@dataclass(frozen=True)
class StructuralZero:
    """Structural zero: for each attribute, the cells whose combination is impossible."""

    cells: tuple[tuple[str, frozenset[int]], ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.cells)

    def broken(self, column: Column) -> Flags:
        return self._has(column, self.names)

    def forbidden(self, name: str, column: Column, size: int) -> Flags:
        others = self._has(column, [other for other in self.names if other != name])
        return np.multiply.outer(others, np.isin(np.arange(size), list(dict(self.cells)[name])))

    def _has(self, column: Column, names: Sequence[str]) -> Flags:
        """Return the rows whose cells of all given attributes are among the impossible ones, shape (n,)."""
        is_inside = np.ones(len(column(self.names[0])), np.bool_)
        for name in names:
            is_inside &= np.isin(column(name), list(dict(self.cells)[name]))
        return is_inside

    def possible(self, names: Sequence[str], shape: Sequence[int]) -> Flags:
        """Return the possible cells, False at the impossible combination; axes of other attributes have length 1."""
        tested = dict(self.cells)
        allowed = np.ones([size if name in tested else 1 for name, size in zip(names, shape, strict=True)], np.bool_)
        allowed[np.ix_(*[sorted(tested.get(name, {0})) for name in names])] = False
        return allowed

    def to_dict(self) -> dict[str, Any]:
        return {"cells": [[name, sorted(cells)] for name, cells in self.cells]}


@dataclass(frozen=True, eq=False)
class FunctionalDependency:
    """Functional dependency between two attributes.

    Cell i of `determinant` implies cell `of[i]` of `dependent`; −1 permits every cell. Any sequence of integers may be
    given for `of`, which becomes an array.
    """

    determinant: str
    dependent: str
    of: Integers

    def __post_init__(self) -> None:
        """Convert `of` to an array that cannot be changed."""
        of = np.array(self.of, np.int64)
        of.setflags(write=False)
        object.__setattr__(self, "of", of)

    @cached_property
    def _identity(self) -> tuple[str, str, bytes]:
        return *self.names, hashlib.sha256(self.of.astype("<i8").tobytes()).digest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FunctionalDependency) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    @property
    def names(self) -> tuple[str, str]:
        return self.determinant, self.dependent

    @cached_property
    def whole(self) -> bool:
        """Whether every determinant cell implies a dependent cell."""
        return bool(self.of.min() >= 0)

    def broken(self, column: Column) -> Flags:
        wanted = self.of[column(self.determinant)]
        return (wanted >= 0) & (wanted != column(self.dependent))

    def forbidden(self, name: str, column: Column, size: int) -> Flags:
        """Return the cells of one attribute that contradict the rows' cells of the other one, shape (n, size)."""
        if name == self.determinant:
            return np.asarray((self.of >= 0) & (self.of != column(self.dependent)[:, None]))
        wanted = self.of[column(self.determinant)][:, None]
        return np.asarray((wanted >= 0) & (wanted != np.arange(size)))

    def possible(self, names: Sequence[str], shape: Sequence[int]) -> Flags:
        """Return flags of the permitted cells, with an axis of length 1 for other attributes.

        `of` has the cell of the dependent attribute for each cell of the determinant, negative if any is permitted.
        Axes are in the order of `names`.
        """
        sizes = dict(zip(names, shape, strict=True))
        allowed = (self.of[:, None] < 0) | (self.of[:, None] == np.arange(sizes[self.dependent]))
        if names.index(self.determinant) > names.index(self.dependent):
            allowed = allowed.T
        return allowed.reshape([size if name in self.names else 1 for name, size in sizes.items()])

    def to_dict(self) -> dict[str, Any]:
        return {"by": self.determinant, "what": self.dependent, "of": self.of.tolist()}


@dataclass(frozen=True, eq=False)
class ValueRule:
    """Clause with comparisons of values.

    Attributes
    ----------
    clause : Clause
    ranges : mapping of str to ValueRanges
        Values in the cells of its attributes, and of its numbers.
    numbers : tuple of str
        Those that are numbers, which have no cells.
    text : str
        Rule of the domain that contains the clause.
    """

    clause: Clause
    ranges: Mapping[str, ValueRanges] = field(repr=False)
    numbers: tuple[str, ...]
    text: str

    @classmethod
    def of(cls, clause: Clause, axes: Iterable[Attribute], text: str) -> ValueRule:
        axes_of_clause = {axis.name: axis for axis in axes if axis.name in clause.names}
        numbers = tuple(name for name, axis in axes_of_clause.items() if isinstance(axis, Number))
        return cls(clause, {name: value_ranges(axis) for name, axis in axes_of_clause.items()}, numbers, text)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Attributes in the order of the text."""
        return tuple(name for name in self.clause.names if name not in self.numbers)

    @cached_property
    def _identity(self) -> str:
        return json.dumps(self.to_dict(), sort_keys=True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ValueRule) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    def with_ranges(self, ranges: Mapping[str, ValueRanges]) -> ValueRule:
        """Return the rule for other values in the cells of some attributes."""
        return ValueRule(clause=self.clause, ranges={**self.ranges, **ranges}, numbers=self.numbers, text=self.text)

    def renamed(self, names: Mapping[str, str]) -> ValueRule:
        """Return the rule with other names of some attributes and numbers."""
        cells = tuple((names.get(name, name), allowed) for name, allowed in self.clause.cells)
        linear = []
        for comparison in self.clause.linear:
            terms = tuple((names.get(name, name), factor) for name, factor in comparison.terms)
            linear.append(Linear(terms, comparison.constant, comparison.sign))
        ranges = {names.get(name, name): values for name, values in self.ranges.items()}
        return ValueRule(
            clause=Clause(cells, tuple(linear)),
            ranges=ranges,
            numbers=tuple(names.get(name, name) for name in self.numbers),
            text=self.text,
        )

    def compares(self, name: str) -> bool:
        """Return whether the rule compares values of an attribute or number, rather than its cells."""
        return any(name in linear.names for linear in self.clause.linear)

    def over_groups(self, labels: Mapping[str, Integers]) -> ValueRule:
        """Return the rule over groups of cells, which permits all groups with a possible cell.

        Parameters
        ----------
        labels : mapping of str to ndarray
            Group of every cell of each attribute.
        """
        cells = tuple(
            (name, frozenset(labels[name][sorted(allowed)].tolist()) if allowed else allowed)
            for name, allowed in self.clause.cells
        )
        ranges = {name: _hull(values, labels[name]) if name in labels else values
                  for name, values in self.ranges.items()}  # fmt: skip
        return ValueRule(clause=Clause(cells, self.clause.linear), ranges=ranges, numbers=self.numbers, text=self.text)

    def broken(self, column: Column) -> Flags:
        return np.asarray(~self.fits({name: column(name) for name in self.names}))

    def forbidden(self, name: str, column: Column, size: int) -> Flags:
        cells = {other: column(other)[:, None] for other in self.names if other != name}
        rows = len(next(iter(cells.values()))) if cells else len(column(name))
        return np.broadcast_to(~self.fits({**cells, name: np.arange(size)[None, :]}), (rows, size))

    def possible(self, names: Sequence[str], shape: Sequence[int]) -> Flags:
        axes = {name: np.arange(size).reshape([-1 if other == name else 1 for other in names])
                for name, size in zip(names, shape, strict=True) if name in self.names}  # fmt: skip
        return np.asarray(self.fits(axes))

    def fits(self, cells: Mapping[str, Cells]) -> Flags:
        """Return where some values in the cells of the attributes satisfy the rule; the arrays broadcast.

        A rule holds if any of its parts does: a cell in `_allowed`, or a linear comparison. Comparisons with an unknown
        value always hold.
        """
        fitting = np.zeros((), np.bool_)
        for name, allowed in self._allowed.items():
            fitting = fitting | allowed[cells[name]]
        for linear in self.clause.linear:
            fitting = fitting | self.unknown(linear, cells) | linear.fits(*self.ends(linear.names, cells))
        return fitting

    @cached_property
    def _allowed(self) -> dict[str, Flags]:
        sizes = {name: len(ranges.low) for name, ranges in self.ranges.items()}
        return {name: np.isin(np.arange(sizes[name]), sorted(cells)) for name, cells in self.clause.cells}

    def satisfied_by_cells(self, cells: Mapping[str, Cells]) -> Flags:
        """Return where the cells alone satisfy the rule, or a value that it compares is unknown.

        `_allowed` has flags of the cells of an attribute that satisfy the rule. Linear comparisons of known values are
        not evaluated.
        """
        satisfied = np.zeros((), np.bool_)
        for name, allowed in self._allowed.items():
            satisfied = satisfied | allowed[cells[name]]
        for linear in self.clause.linear:
            satisfied = satisfied | self.unknown(linear, cells)
        return satisfied

    def unknown(self, linear: Linear, cells: Mapping[str, Cells]) -> Flags:
        """Return where a value of a comparison is unknown.

        `numbers` are names without cells, which are not tested here.
        """
        is_unknown = np.zeros((), np.bool_)
        for name in linear.names:
            if name not in self.numbers:
                is_unknown = is_unknown | self.ranges[name].unknown[cells[name]]
        return is_unknown

    def ends(self, names: Iterable[str], cells: Mapping[str, Cells]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the ends of the values of attributes in cells, and of numbers.

        `ranges` has the ends of the values in each cell; a number has a single range, at position 0.
        """
        low, high = {}, {}
        for name in names:
            at = 0 if name in self.numbers else cells[name]
            low[name], high[name] = self.ranges[name].low[at], self.ranges[name].high[at]
        return low, high

    def to_dict(self) -> dict[str, Any]:
        """Return the rule with its clause and values as JSON-ready data."""
        ranges = {name: [values.low.tolist(), values.high.tolist(), values.unknown.tolist(), values.step]
                  for name, values in self.ranges.items()}  # fmt: skip
        linear = [[list(map(list, comparison.terms)), comparison.constant, comparison.sign]
                  for comparison in self.clause.linear]  # fmt: skip
        return {"rule": self.text, "tests": [[name, sorted(cells)] for name, cells in self.clause.cells],
                "linear": linear, "ranges": ranges, "numbers": list(self.numbers)}  # fmt: skip


def _hull(ranges: ValueRanges, labels: Integers) -> ValueRanges:
    """Return the ranges of groups of cells; a group with an unknown cell is unknown.

    `labels` is the group of each cell. Ends of a group are the least low and the greatest high end.
    """
    count = int(labels.max()) + 1
    low, high, unknown = np.full(count, np.inf), np.full(count, -np.inf), np.zeros(count, np.bool_)
    np.minimum.at(low, labels, ranges.low)
    np.maximum.at(high, labels, ranges.high)
    np.logical_or.at(unknown, labels, ranges.unknown)
    return ValueRanges(low=low, high=high, unknown=unknown, step=ranges.step)


def restored(record: Mapping[str, Any]) -> StructuralZero | FunctionalDependency | ValueRule:
    """Return the constraint described by the output of `to_dict`.

    A structural zero has "cells", a value rule "rule", and a functional dependency the names "by", "what" and "of". A
    value rule has tests of cells, linear comparisons, the ranges of the values in each cell, and the attributes whose
    values are numbers.
    """
    if "cells" in record:
        return StructuralZero(tuple((name, frozenset(cells)) for name, cells in record["cells"]))
    if "rule" in record:
        linear = tuple(Linear(tuple((name, factor) for name, factor in terms), constant, sign)
                       for terms, constant, sign in record["linear"])  # fmt: skip
        clause = Clause(tuple((name, frozenset(cells)) for name, cells in record["tests"]), linear)
        ranges = {
            name: ValueRanges(
                low=np.array(low, np.float64),
                high=np.array(high, np.float64),
                unknown=np.array(unknown, np.bool_),
                step=step,
            )
            for name, (low, high, unknown, step) in record["ranges"].items()
        }
        return ValueRule(clause=clause, ranges=ranges, numbers=tuple(record["numbers"]), text=record["rule"])
    return FunctionalDependency(record["by"], record["what"], record["of"])


def constraints_on(rules: Iterable[DomainConstraint], names: Iterable[str]) -> tuple[DomainConstraint, ...]:
    """Return the constraints whose attributes are all among `names`."""
    inside = set(names)
    return tuple(rule for rule in rules if inside.issuperset(rule.names))


def possible(rules: Iterable[DomainConstraint], names: Sequence[str], shape: Sequence[int]) -> Flags:
    """Return the cells of a table that the constraints on its attributes permit."""
    permitted = np.ones(shape, np.bool_)
    for rule in constraints_on(rules, names):
        permitted &= rule.possible(names, shape)
    return permitted


def read_constraints(text: object, find: Find) -> tuple[StructuralZero | ValueRule, ...]:
    """Return the structural zeros and value rules of a rule.

    Parameters
    ----------
    text : str
    find : callable
        find(name) returns an attribute or a number.

    Raises
    ------
    DomainError
        If the rule cannot be read.
    """
    constraints = list[StructuralZero | ValueRule]()
    for clause in read_rule(text, find):
        if clause.linear:
            axes = [replace(find(name), name=name) for name in clause.names]
            constraints.append(ValueRule.of(clause, axes, str(text)))
        else:
            constraints.append(StructuralZero(tuple(
                (name, frozenset(range(find(name).size)) - cells) for name, cells in clause.cells
            )))  # fmt: skip
    return tuple(constraints)


def with_dependencies(
    rules: Sequence[StructuralZero | ValueRule], sizes: Mapping[str, int]
) -> tuple[DomainConstraint, ...]:
    """Return the constraints, with a functional dependency in place of zeros of two attributes that amount to it.

    `possible` gives the combinations of cells that the zeros leave.
    """
    pairs = dict[frozenset[str], list[StructuralZero]]()
    for rule in rules:
        if isinstance(rule, StructuralZero) and len(rule.names) == 2:
            pairs.setdefault(frozenset(rule.names), []).append(rule)

    dependencies = dict[frozenset[str], FunctionalDependency]()
    for pair, zeros in pairs.items():
        names = zeros[0].names
        shape = [sizes[name] for name in names]
        if math.prod(shape) > MOST_CELLS:
            continue
        # None if the zeros leave several cells of each attribute for a cell of the other
        dependency = _dependency(names, possible(zeros, names, shape))
        if dependency is not None:
            dependencies[pair] = dependency

    # the zeros of a pair are replaced together
    replaced = {id(rule) for pair in dependencies for rule in pairs[pair]}
    return (*(rule for rule in rules if id(rule) not in replaced), *dependencies.values())


def _dependency(names: Sequence[str], allowed: Flags) -> FunctionalDependency | None:
    """Return the dependency by which each cell of one attribute leaves a single cell of the other, if there is one.

    `allowed` has flags of the permitted pairs of cells of the two attributes.
    """
    for (determinant, dependent), table in ((names, allowed), (names[::-1], allowed.T)):
        if (table.sum(axis=1) == 1).all():
            return FunctionalDependency(determinant, dependent, table.argmax(axis=1))
    return None


def follows(attributes: Sequence[Attribute]) -> tuple[FunctionalDependency, ...]:
    """Return the functional dependencies of attributes that group the values of another attribute.

    `children` has the attribute of each column that lists its values one by one.
    """
    children = {
        attribute.column: attribute
        for attribute in reversed(attributes)
        if not attribute.groups and attribute.level is None
    }
    grouped = [
        (attribute, children[attribute.column])
        for attribute in attributes
        if attribute.groups and attribute.column in children
    ]
    levels = [attribute for attribute in attributes if attribute.level is not None]
    pairs = [(above, below) for above, below in product(levels, repeat=2) if _is_above(above.level, below.level)]

    return (*(_grouped(parent, child) for parent, child in grouped), *(_of_levels(*pair) for pair in pairs))


def _is_above(above: TreeLevel | None, below: TreeLevel | None) -> bool:
    """Return whether both are levels of the same tree and the first is above the second."""
    return above is not None and below is not None and above.level < below.level and above.tree is below.tree


def _of_levels(above: Attribute, below: Attribute) -> FunctionalDependency:
    """Return the dependency of a level of a tree on one below it; their additional cells correspond.

    The listed cells are nodes of the tree; the additional ones (outside, null) follow them in the same order.
    """
    assert above.level is not None
    assert below.level is not None
    tree = below.level.tree
    ancestors = tree.cells(above.level.level)[tree.starts[below.level.level]]
    return FunctionalDependency(below.name, above.name, np.append(ancestors, np.arange(above.listed, above.size)))


def _grouped(parent: Attribute, child: Attribute) -> FunctionalDependency:
    """Return the dependency of a parent on its child.

    Outside values, and nulls, correspond to each other if both attributes have a cell for them.

    The result has the parent's cell of each cell of the child, -1 where it is not determined.
    """
    # prefixes of another length have other values, so nothing is determined
    place = {label: cell for cell, label in enumerate(child.labels)} if parent.length == child.length else {}
    parent_cells = [-1] * child.size
    for cell, group in enumerate(parent.groups):
        for value in group:
            if value in place:
                parent_cells[place[value]] = cell

    grouped = {value for group in parent.groups for value in group}
    for child_cell, parent_cell in ((child.outside_cell, parent.outside_cell), (child.null_cell, parent.null_cell)):
        # only if the child lists all values of the groups: otherwise an outside value may be in a group
        if child_cell >= 0 and parent_cell >= 0 and place.keys() >= grouped:
            parent_cells[child_cell] = parent_cell

    return FunctionalDependency(child.name, parent.name, np.array(parent_cells))


def closed(rules: Sequence[DomainConstraint]) -> tuple[DomainConstraint, ...]:
    """Return the constraints with the transitive closure of the total functional dependencies.

    For example, a country follows from a town if it follows from the region and the region from the town.

    A pass joins known chains at their ends; as many passes as dependencies reach every chain.
    """
    follows = {rule.names: rule for rule in rules if isinstance(rule, FunctionalDependency) and rule.whole}
    for _ in range(len(follows)):
        for first, second in product(list(follows.values()), repeat=2):
            pair = first.determinant, second.dependent
            if first.dependent == second.determinant and first.determinant != second.dependent and pair not in follows:
                follows[pair] = FunctionalDependency(*pair, second.of[first.of])
    return (*rules, *(rule for rule in follows.values() if rule not in rules))


def check_rules(rules: Sequence[DomainConstraint], sizes: Mapping[str, int]) -> None:
    """Raise DomainError if the constraints exclude all values of an attribute."""
    for name in sorted({rule.names[0] for rule in rules if len(rule.names) == 1}):
        if not possible(rules, (name,), (sizes[name],)).any():
            raise DomainError(
                FIELD, f"rules that exclude all values of {name}", "rules that leave at least one value", "remove one"
            )


@dataclass(frozen=True)
class _Bound:
    """Comparison Σ_j c_j v_j + d ≤ 0, or < 0, with the rules and the eliminated attributes from which it follows."""

    terms: Terms
    constant: float
    strict: bool
    texts: tuple[str, ...] = ()
    without: frozenset[str] = frozenset()

    @property
    def is_false(self) -> bool:
        return not self.terms and (self.constant > 0 or (self.strict and self.constant == 0))

    def scaled(self) -> _Bound:
        """Return the comparison with terms in a fixed order, of which the first has the factor 1 or -1.

        A term is (name, factor). Terms of equal comparisons become equal, so that their constants can be compared.
        """
        terms = tuple(sorted(self.terms))
        scale = abs(terms[0][1]) if terms else 1.0
        return _Bound(
            terms=tuple((name, factor / scale) for name, factor in terms),
            constant=self.constant / scale,
            strict=self.strict,
            texts=self.texts,
            without=self.without,
        )

    def joined(self, other: _Bound, name: str) -> _Bound:
        """Return the consequence without an attribute, which has opposite signs in the two.

        Each comparison is multiplied by the absolute coefficient of the other (`own_factor` is the one by which this
        comparison is multiplied), so that the attribute cancels.
        """
        own_factor, other_factor = abs(dict(other.terms)[name]), abs(dict(self.terms)[name])
        terms = {term: own_factor * factor for term, factor in self.terms}
        for term, factor in other.terms:
            terms[term] = terms.get(term, 0.0) + other_factor * factor
        remaining = tuple((term, factor) for term, factor in terms.items() if factor and term != name)
        texts = tuple(dict.fromkeys([*self.texts, *other.texts]))
        return _Bound(
            terms=remaining,
            constant=own_factor * self.constant + other_factor * other.constant,
            strict=self.strict or other.strict,
            texts=texts,
            without=self.without | other.without | {name},
        ).scaled()


def implied_rules(rules: Sequence[DomainConstraint]) -> tuple[ValueRule, ...]:
    """Return consequences of value rules over one and two attributes.

    `pool` has the strictest comparison of each combination of terms. Only consequences of at most two attributes are
    added, so that the number of comparisons stays small.

    Raises
    ------
    DomainError
        If some rules contradict each other, or no values satisfy one.
    """
    value_rules = [rule for rule in rules if isinstance(rule, ValueRule)]
    ranges = {name: values for rule in value_rules for name, values in rule.ranges.items()}
    numbers = {name for rule in value_rules for name in rule.numbers}
    pool = dict[Terms, _Bound]()
    for bound in _bounds(value_rules, ranges):
        _add(pool, bound)

    stated = set(pool)
    for name in ranges:
        # a positive factor bounds the values of `name` from above, a negative one from below
        above = [bound for bound in pool.values() if dict(bound.terms).get(name, 0) > 0]
        below = [bound for bound in pool.values() if dict(bound.terms).get(name, 0) < 0]
        for upper in above:
            for lower in below:
                joined = upper.joined(lower, name)
                if len(joined.terms) <= 2:
                    _add(pool, joined)

    implied = list[ValueRule]()
    for terms, bound in pool.items():
        names = [name for name, _ in terms]
        known = not any(ranges[name].unknown.any() for name in bound.without)
        # comparisons that are stated, that follow from ranges alone, or that contain a number, are no new rules of
        # cells
        if terms in stated or not bound.texts or numbers.intersection(names) or not known:
            continue
        linear = Linear(terms, bound.constant, "<" if bound.strict else "<=")
        rule = ValueRule(
            clause=Clause(linear=(linear,)),
            ranges={name: ranges[name] for name in names},
            numbers=(),
            text="; ".join(bound.texts),
        )
        if not rule.possible(names, [len(ranges[name].low) for name in names]).all():
            implied.append(rule)
    return tuple(implied)


def _bounds(rules: Iterable[ValueRule], ranges: Mapping[str, object]) -> Iterable[_Bound]:
    """Yield the comparisons that always hold, and the ends of the ranges.

    Only rules of a single comparison, without tests of cells, always hold. An equation yields two comparisons. A bound
    states Σ factor · value + constant ≤ 0, or < 0 if it is strict.
    """
    for rule in rules:
        if rule.clause.cells or len(rule.clause.linear) != 1:
            continue
        [linear] = rule.clause.linear
        yield _Bound(
            terms=linear.terms, constant=linear.constant, strict=linear.sign == "<", texts=(rule.text,)
        ).scaled()
        if linear.sign == "=":
            opposite = tuple((name, -factor) for name, factor in linear.terms)
            yield _Bound(terms=opposite, constant=-linear.constant, strict=False, texts=(rule.text,)).scaled()

    for name, values in ranges.items():
        low, high = values.ends  # type: ignore[attr-defined]
        yield _Bound(((name, 1.0),), -high, False)
        yield _Bound(((name, -1.0),), low, False)


def _add(pool: dict[Terms, _Bound], bound: _Bound) -> None:
    """Add a comparison unless a stronger one is known. Raises DomainError for a contradiction.

    `pool` has the strongest comparison for each left side. A larger constant is stronger, then a strict one.
    Comparisons without terms that hold are not added.
    """
    if bound.is_false:
        raise _contradiction(bound.texts)
    known = pool.get(bound.terms)
    if bound.terms and (known is None or (bound.constant, bound.strict) > (known.constant, known.strict)):
        pool[bound.terms] = bound


def _contradiction(texts: Sequence[str]) -> DomainError:
    """Return the error for one rule that no values satisfy, or for several that contradict each other."""
    if len(texts) == 1:
        return DomainError(FIELD, f"{texts[0]!r}, which no values of the domain satisfy",
                           "a rule that some values satisfy", "correct it, or its attributes")  # fmt: skip
    return DomainError(FIELD, f"{' and '.join(map(repr, texts))}, which contradict each other",
                       "rules that some values satisfy together", "remove one")  # fmt: skip


ByText = Mapping[str, Sequence[StructuralZero | ValueRule]]


def check_contradictions(rules: ByText, sizes: Mapping[str, int], listed: Mapping[str, int]) -> None:
    """Raise DomainError for a rule without possible cells, and for two rules, or all, without any in common.

    `tables` has the attributes and constraints of the rules whose cells are few enough to be compared.

    Parameters
    ----------
    rules : mapping of str to sequence of constraints
        Constraints by the text of their rule.
    sizes, listed : mapping of str to int
        Number of cells of each attribute, and of those with a known value.
    """
    tables = {}
    for text, constraints in rules.items():
        names = tuple(dict.fromkeys(name for constraint in constraints for name in constraint.names))
        if names and math.prod(sizes[name] for name in names) <= MOST_PAIR_CELLS:
            tables[text] = names, constraints
            # one rule alone
            if not _allowed(constraints, names, sizes).any():
                raise _contradiction([text])

    # two rules with an attribute in common
    pairs = combinations(tables.items(), 2) if len(tables) <= MOST_COMPARED else ()
    for (first, (first_names, first_constraints)), (second, (second_names, second_constraints)) in pairs:
        union = tuple(dict.fromkeys([*first_names, *second_names]))
        if set(first_names) & set(second_names) and math.prod(listed[name] for name in union) <= MOST_PAIR_CELLS:
            known = tuple(slice(listed[name]) for name in union)
            # known values alone: with a null both rules hold, which would hide the contradiction
            by_first = _allowed(first_constraints, union, sizes)[known]
            by_second = _allowed(second_constraints, union, sizes)[known]
            if by_first.any() and by_second.any() and not (by_first & by_second).any():
                raise _contradiction([first, second])

    # all rules together, if all their attributes have few enough cells
    names = tuple(dict.fromkeys(name for names, _ in tables.values() for name in names))
    few_cells = math.prod(sizes[name] for name in names) <= MOST_PAIR_CELLS
    together = [constraint for _, constraints in tables.values() for constraint in constraints]
    if names and few_cells and not _allowed(together, names, sizes).any():
        raise _contradiction(list(tables))


def _allowed(rules: Sequence[DomainConstraint], names: Sequence[str], sizes: Mapping[str, int]) -> Flags:
    return np.asarray(possible([rule for rule in rules if rule.names], names, [sizes[name] for name in names]))
