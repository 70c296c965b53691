"""Combinations that cannot be, as the domain file declares them: synthetic rows never have one.

    [[impossible]]                          [[determined]]
    age = { low = 0, high = 14 }            attribute = "region"
    marital = ["married", "widowed"]        by = "code"
                                            map = { A1 = "north", A2 = "north", B1 = "south" }

An [[impossible]] table names some values of two attributes or more (of one: values that never occur); a row that has
one of each is impossible. [[determined]] says that one attribute follows from another; codes that the map leaves out
may have any value. Public, as the domain is; estimates and measurements do not look at it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpscale.attribute import Attribute
from dpscale.errors import DomainError
from dpscale.names import nearest, shown

Find = Callable[[str], Attribute]


@dataclass(frozen=True)
class Rule:
    """Of each attribute the cells that, all together, are impossible. The last one gives way in a row that has them."""

    cells: tuple[tuple[str, frozenset[int]], ...]


def read_rules(content: Mapping[str, Any], attribute: Find) -> tuple[Rule, ...]:
    """The rules of a domain file; DomainError names what is wrong."""
    rules = [_impossible(table, attribute) for table in _tables(content, "impossible")]
    return tuple(rules + [rule for table in _tables(content, "determined") for rule in _determined(table, attribute)])


def _tables(content: Mapping[str, Any], name: str) -> Sequence[Mapping[str, Any]]:
    tables = content.get(name, [])
    if not isinstance(tables, list) or not all(isinstance(table, Mapping) and table for table in tables):
        raise DomainError(name, "not a list of tables", f"tables [[{name}]]", "see docs/jobs.md")
    return tables


def _impossible(table: Mapping[str, Any], attribute: Find) -> Rule:
    return Rule(tuple((name, _cells(attribute(name), values, f"impossible.{name}")) for name, values in table.items()))


def _determined(table: Mapping[str, Any], attribute: Find) -> list[Rule]:
    if set(table) != {"attribute", "by", "map"} or not isinstance(table["map"], Mapping):
        raise DomainError("determined", f"the keys {', '.join(map(str, table))}", "attribute, by and a table map",
                          "see docs/jobs.md")  # fmt: skip
    for key in ("attribute", "by"):
        if not isinstance(table[key], str):
            raise DomainError(f"determined.{key}", shown(table[key]), "the name of an attribute", "name one")
    what, by = attribute(table["attribute"]), attribute(table["by"])
    rules = []
    for value, result in table["map"].items():
        allowed = _cells(what, [result], "determined.map")
        others = frozenset(range(what.size)) - allowed
        rules.append(Rule(((by.name, _cells(by, [value], "determined.map")), (what.name, others))))
    return rules


def follows(attributes: Sequence[Attribute]) -> tuple[Rule, ...]:
    """Rules of attributes that are groups of another's values: each value is in its group alone."""
    children = {one.column: one for one in reversed(attributes) if not one.groups}
    found = [(one, children[one.column]) for one in attributes if one.groups and one.column in children]
    return tuple(rule for parent, child in found for rule in _grouped(parent, child))


def _grouped(parent: Attribute, child: Attribute) -> list[Rule]:
    place = {label: cell for cell, label in enumerate(child.labels)} if parent.length == child.length else {}
    inside = [frozenset(place[value] for value in group if value in place) for group in parent.groups]
    every = frozenset(range(parent.size))
    return [Rule(((child.name, cells), (parent.name, every - {cell}))) for cell, cells in enumerate(inside) if cells]


def _cells(attribute: Attribute, values: Any, field: str) -> frozenset[int]:
    """The cells of listed values, or of a range of numbers {low, high}, both included."""
    if isinstance(values, Mapping):
        return _between(attribute, values, field)
    if not isinstance(values, list) or not values:
        raise DomainError(field, "no list of values", "a list, or { low = …, high = … }", "mend it")
    return frozenset(_cell(attribute, value, field) for value in values)


def _cell(attribute: Attribute, value: Any, field: str) -> int:
    for cell, label in enumerate(attribute.labels):
        if label == value or (label is not None and str(label) == value):
            return cell
    if value == "" and attribute.null_cell >= 0:
        return attribute.null_cell
    known = [str(label) for label in attribute.labels]
    raise DomainError(field, f"{value!r}", f"values of {attribute.name}", nearest(str(value), known))


def _between(attribute: Attribute, bounds: Mapping[str, Any], field: str) -> frozenset[int]:
    low, high = bounds.get("low", -float("inf")), bounds.get("high", float("inf"))
    numbers = all(isinstance(end, int | float) for end in (low, high))
    if not set(bounds) <= {"low", "high"} or not numbers or attribute.values or attribute.by:
        raise DomainError(field, f"{dict(bounds)}", "low and high, numbers, of an attribute of numbers", "mend it")
    if attribute.kind == "bins":
        inside = [low <= a and b <= high for a, b in zip(attribute.edges, attribute.edges[1:], strict=False)]
    else:
        inside = [low <= value <= high for value in range(attribute.low, attribute.high + 1, attribute.step)]
    return frozenset(cell for cell, held in enumerate(inside) if held)
