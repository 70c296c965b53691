"""Structural zeros and functional dependencies declared in the domain file; synthetic rows always satisfy them.

    [[impossible]]                          [[determined]]
    age = { low = 0, high = 14 }            attribute = "region"
    marital = ["married", "widowed"]        by = "code"
                                            map = { A1 = "north", A2 = "north", B1 = "south" }

An [[impossible]] table lists values of two or more attributes, and a row that has one of each is impossible; with one
attribute, these values never occur. [[determined]] declares that one attribute is a function of another; values absent
from the map may occur with any value. Attributes that group the values of another one depend on it in the same way.
The rules are public, like the domain, so they cost no budget. Synthetic rows, published tables and maximum-entropy
estimates (`dpscale.reconstruction.constraints`) satisfy them; measurements and least squares ignore them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, Protocol

import numpy as np

from dpscale.base.display import nearest, safe_repr
from dpscale.base.errors import DomainError
from dpscale.base.numerics import Flags, Integers, NDArray
from dpscale.domain.attribute import Attribute
from dpscale.domain.tree import TreeLevel

Find = Callable[[str], Attribute]
Cells = NDArray[np.integer]


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
        others = self._has(column, [one for one in self.names if one != name])
        return np.multiply.outer(others, np.isin(np.arange(size), list(dict(self.cells)[name])))

    def _has(self, column: Column, names: Sequence[str]) -> Flags:
        held = np.ones(len(column(self.names[0])), np.bool_)
        for name in names:
            held &= np.isin(column(name), list(dict(self.cells)[name]))
        return held

    def possible(self, names: Sequence[str], shape: Sequence[int]) -> Flags:
        own = dict(self.cells)
        held = np.ones([size if name in own else 1 for name, size in zip(names, shape, strict=True)], np.bool_)
        held[np.ix_(*[sorted(own.get(name, {0})) for name in names])] = False
        return held

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
        if name == self.determinant:
            return np.asarray((self.of >= 0) & (self.of != column(self.dependent)[:, None]))
        wanted = self.of[column(self.determinant)][:, None]
        return np.asarray((wanted >= 0) & (wanted != np.arange(size)))

    def possible(self, names: Sequence[str], shape: Sequence[int]) -> Flags:
        sizes = dict(zip(names, shape, strict=True))
        held = (self.of[:, None] < 0) | (self.of[:, None] == np.arange(sizes[self.dependent]))
        if names.index(self.determinant) > names.index(self.dependent):
            held = held.T
        return held.reshape([size if name in self.names else 1 for name, size in sizes.items()])

    def to_dict(self) -> dict[str, Any]:
        return {"by": self.determinant, "what": self.dependent, "of": self.of.tolist()}


def restored(record: Mapping[str, Any]) -> StructuralZero | FunctionalDependency:
    """Return the constraint described by the output of `to_dict`."""
    if "cells" in record:
        return StructuralZero(tuple((name, frozenset(cells)) for name, cells in record["cells"]))
    return FunctionalDependency(record["by"], record["what"], record["of"])


def constraints_on(rules: Iterable[DomainConstraint], names: Iterable[str]) -> tuple[DomainConstraint, ...]:
    """Return the constraints whose attributes are all among `names`."""
    inside = set(names)
    return tuple(rule for rule in rules if inside.issuperset(rule.names))


def possible(rules: Iterable[DomainConstraint], names: Sequence[str], shape: Sequence[int]) -> Flags:
    """Return the cells of a table that the constraints on its attributes permit."""
    held = np.ones(shape, np.bool_)
    for rule in constraints_on(rules, names):
        held &= rule.possible(names, shape)
    return held


def read_rules(content: Mapping[str, Any], attribute: Find) -> tuple[DomainConstraint, ...]:
    """Parse the constraints of a domain file. Raises DomainError that names the fault."""
    return (
        *(_impossible(table, attribute) for table in _tables(content, "impossible")),
        *(_determined(table, attribute) for table in _tables(content, "determined")),
    )


def _tables(content: Mapping[str, Any], name: str) -> Sequence[Mapping[str, Any]]:
    tables = content.get(name, [])
    if not isinstance(tables, list) or not all(isinstance(table, Mapping) and table for table in tables):
        raise DomainError(
            name, "not a list of tables", f"tables [[{name}]]", "write each rule as a table of attributes and values"
        )
    return tables


def _impossible(table: Mapping[str, Any], attribute: Find) -> StructuralZero:
    return StructuralZero(
        tuple((name, _cells(attribute(name), values, f"impossible.{name}")) for name, values in table.items())
    )


def listed(table: Mapping[str, Any], attribute: Find) -> dict[str, Any]:
    """Return an [[impossible]] table whose order survives a round trip through TOML.

    TOML writes lists before tables, so a range that is followed by a list is replaced by a list of its values.
    """
    last = max((place for place, values in enumerate(table.values()) if not isinstance(values, Mapping)), default=-1)
    return {
        name: _normalised(attribute(name), values) if place < last else values
        for place, (name, values) in enumerate(table.items())
    }


def _normalised(attribute: Attribute, values: object) -> object:
    if not isinstance(values, Mapping):
        return values
    return [attribute.labels[cell] for cell in sorted(_between(attribute, values, "impossible"))]


def _determined(table: Mapping[str, Any], attribute: Find) -> FunctionalDependency:
    if set(table) != {"attribute", "by", "map"} or not isinstance(table["map"], Mapping):
        raise DomainError("determined", f"the keys {', '.join(map(str, table))}", "attribute, by and a table map",
                          "name attributes and values in each rule")  # fmt: skip

    for key in ("attribute", "by"):
        if not isinstance(table[key], str):
            raise DomainError(f"determined.{key}", safe_repr(table[key]), "the name of an attribute", "name one")

    what, by = attribute(table["attribute"]), attribute(table["by"])
    of = [-1] * by.size
    for value, result in table["map"].items():
        for cell in _cells(by, [value], "determined.map"):
            of[cell] = min(_cells(what, [result], "determined.map"))

    return FunctionalDependency(by.name, what.name, np.array(of))


def follows(attributes: Sequence[Attribute]) -> tuple[FunctionalDependency, ...]:
    """Return the functional dependencies of attributes that group the values of another attribute."""
    children = {
        attribute.column: attribute
        for attribute in reversed(attributes)
        if not attribute.groups and attribute.level is None
    }
    found = [
        (attribute, children[attribute.column])
        for attribute in attributes
        if attribute.groups and attribute.column in children
    ]
    levels = [attribute for attribute in attributes if attribute.level is not None]
    pairs = [(above, below) for above, below in product(levels, repeat=2) if _is_above(above.level, below.level)]

    return (*(_grouped(parent, child) for parent, child in found), *(_of_levels(*pair) for pair in pairs))


def _is_above(one: TreeLevel | None, other: TreeLevel | None) -> bool:
    """Return whether both are levels of the same tree and the first is above the second."""
    return one is not None and other is not None and one.level < other.level and one.tree is other.tree


def _of_levels(above: Attribute, below: Attribute) -> FunctionalDependency:
    """Return the dependency of a level of a tree on one below it; their additional cells correspond."""
    assert above.level is not None
    assert below.level is not None
    tree = below.level.tree
    of = tree.cells(above.level.level)[tree.starts[below.level.level]]
    return FunctionalDependency(below.name, above.name, np.append(of, np.arange(above.listed, above.size)))


def _grouped(parent: Attribute, child: Attribute) -> FunctionalDependency:
    """Return the dependency of a parent on its child.

    Outside values, and nulls, correspond to each other if both attributes have a cell for them.
    """
    place = {label: cell for cell, label in enumerate(child.labels)} if parent.length == child.length else {}
    of = [-1] * child.size
    for cell, group in enumerate(parent.groups):
        for value in group:
            if value in place:
                of[place[value]] = cell

    for own, other in ((child.outside_cell, parent.outside_cell), (child.null_cell, parent.null_cell)):
        if own >= 0 and other >= 0 and place.keys() >= {value for group in parent.groups for value in group}:
            of[own] = other

    return FunctionalDependency(child.name, parent.name, np.array(of))


def closed(rules: Sequence[DomainConstraint]) -> tuple[DomainConstraint, ...]:
    """Return the constraints with the transitive closure of the total functional dependencies.

    For example, a country follows from a town if it follows from the region and the region from the town.
    """
    follows = {rule.names: rule for rule in rules if isinstance(rule, FunctionalDependency) and rule.whole}
    for _ in range(len(follows)):
        for one, other in product(list(follows.values()), repeat=2):
            pair = one.determinant, other.dependent
            if one.dependent == other.determinant and one.determinant != other.dependent and pair not in follows:
                follows[pair] = FunctionalDependency(*pair, other.of[one.of])
    return (*rules, *(rule for rule in follows.values() if rule not in rules))


def check_rules(rules: Sequence[DomainConstraint], sizes: Mapping[str, int]) -> None:
    """Raise DomainError if the constraints exclude all values of an attribute."""
    for name in sorted({rule.names[0] for rule in rules if len(rule.names) == 1}):
        if not possible(rules, (name,), (sizes[name],)).any():
            raise DomainError(
                "impossible", f"all values of {name}", "rules that leave at least one value", "remove some values"
            )


def _cells(attribute: Attribute, values: object, field: str) -> frozenset[int]:
    """Return the cells of listed values or of an inclusive range {low, high} of numbers."""
    if isinstance(values, Mapping):
        return _between(attribute, values, field)
    if not isinstance(values, list) or not values:
        raise DomainError(field, "not a list of values", "a list, or { low = …, high = … }", "fix it")
    return frozenset(_cell(attribute, value, field) for value in values)


def _cell(attribute: Attribute, value: object, field: str) -> int:
    if isinstance(value, Hashable) and (cell := attribute.cell_of.get(value)) is not None:
        return cell
    if value == "" and attribute.null_cell >= 0:
        return attribute.null_cell
    known = [str(label) for label in attribute.labels]
    raise DomainError(field, f"{value!r}", f"values of {attribute.name}", nearest(str(value), known))


def _between(attribute: Attribute, bounds: Mapping[str, Any], field: str) -> frozenset[int]:
    low, high = bounds.get("low", -float("inf")), bounds.get("high", float("inf"))
    numbers = all(isinstance(end, int | float) for end in (low, high))
    if not set(bounds) <= {"low", "high"} or not numbers or attribute.values or attribute.by:
        raise DomainError(field, f"{dict(bounds)}", "numbers low and high of a numeric attribute", "fix the bounds")

    if attribute.kind == "bins":
        inside = [low <= a and b <= high for a, b in zip(attribute.edges, attribute.edges[1:], strict=False)]
    else:
        inside = [low <= value <= high for value in range(attribute.low, attribute.high + 1, attribute.step)]
    return frozenset(cell for cell, held in enumerate(inside) if held)
