"""A discrete attribute: its cells, their labels, and what a table [attributes.NAME] of the domain file says of it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from operator import index
from typing import Any

from dpscale.errors import DomainError
from dpscale.names import nearest, shown

EXAMPLE = 'kind = "coded" and size = 4'
KINDS = {
    "integer": {"low", "high"},
    "categories": {"values"},
    "bins": {"edges"},
    "coded": {"size"},
}
POLICIES = {
    "outside": ("reject", "clip", "category", "drop"),
    "nulls": ("reject", "category", "drop"),
    "unparsable": ("reject", "category", "drop"),
}
OUTSIDE_LABEL = "(outside)"
EXACT = 1 << 53  # whole numbers below it are told apart as floats, which texts and decimals are read as
LARGEST = sys.float_info.max
MOST_CELLS = 1 << 32  # codes are at most 32 bits


@dataclass(frozen=True)
class Attribute:
    """One discrete attribute.

    `kind` is integer (low … high), categories (values), bins (edges; the last bin takes its right edge too) or coded
    (already 0 … count−1). `outside`, `nulls` and `unparsable` (texts where numbers are asked) say what becomes of
    values that the kind does not list; None for `unparsable`: as outside values, and refused where those are clipped.
    """

    name: str
    kind: str
    low: int = 0
    high: int = 0
    values: tuple[Any, ...] = ()
    edges: tuple[float, ...] = ()
    outside: str = "reject"
    nulls: str = "reject"
    unparsable: str | None = None

    @cached_property
    def foreign(self) -> str:
        """The policy for texts that are no number."""
        return self.unparsable or ("reject" if self.outside == "clip" else self.outside)

    @property
    def drops(self) -> bool:
        """Whether some rows are left out for their value here."""
        return "drop" in (self.outside, self.nulls, self.foreign)

    @cached_property
    def listed(self) -> int:
        """Number of cells that the kind itself lists."""
        if self.kind == "categories":
            return len(self.values)
        return len(self.edges) - 1 if self.kind == "bins" else self.high - self.low + 1

    @cached_property
    def size(self) -> int:
        """Number of cells, those for outside values and nulls included."""
        return self.listed + (self.outside_cell >= 0) + (self.nulls == "category")

    @property
    def outside_cell(self) -> int:
        """Cell of values outside the domain and of texts that are no number; −1 where neither has one."""
        return self.listed if "category" in (self.outside, self.foreign) else -1

    @property
    def null_cell(self) -> int:
        """Cell of nulls; −1 where nulls are rejected."""
        return self.size - 1 if self.nulls == "category" else -1

    @cached_property
    def labels(self) -> list[Any]:
        """What a reader calls each cell: integers, category values, intervals; None for nulls."""
        if self.kind == "categories":
            listed: list[Any] = list(self.values)
        elif self.kind == "bins":
            ends = [")"] * (self.listed - 1) + ["]"]
            edges = [_short(edge) for edge in self.edges]
            listed = [f"[{a}, {b}{end}" for a, b, end in zip(edges, edges[1:], ends, strict=False)]
        else:
            listed = list(range(self.low, self.high + 1))
        extra: list[Any] = [OUTSIDE_LABEL] if self.outside_cell >= 0 else []
        return listed + extra + ([None] if self.nulls == "category" else [])

    def describe(self) -> dict[str, Any]:
        """The attribute as a table of the domain file."""
        kinds: dict[str, dict[str, Any]] = {
            "integer": {"low": self.low, "high": self.high},
            "categories": {"values": list(self.values)},
            "bins": {"edges": list(self.edges)},
            "coded": {"size": self.listed},
        }
        told = {} if self.unparsable is None else {"unparsable": self.unparsable}
        return {"kind": self.kind, **kinds[self.kind], "outside": self.outside, "nulls": self.nulls, **told}


def _short(edge: float) -> str:
    """A bin's edge in as few digits as still name it."""
    return f"{edge:g}" if float(f"{edge:g}") == edge else repr(edge)


def coded(name: str, size: Any) -> Attribute:
    """The attribute whose values are 0 … size − 1 already."""
    if not isinstance(size, bool):
        with suppress(TypeError):
            size = index(size)  # numpy's integers too
    return Attribute(name, "coded", **_read_coded(name, {"size": size}))


def from_table(name: str, table: Any) -> Attribute:
    """The attribute of a table of the domain file; DomainError names the field that is wrong."""
    if not isinstance(table, Mapping):
        raise DomainError(f"attributes.{name}", "not a table", "a table with a kind", f"such as {EXAMPLE}")
    kind = table.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        told = kind if isinstance(kind, str) else ""
        raise DomainError(f"attributes.{name}.kind", shown(kind), ", ".join(KINDS), nearest(told, KINDS))
    check_keys(table, {"kind", *POLICIES} | KINDS[kind], f"attributes.{name}")
    for key in sorted(KINDS[kind] - set(table)):
        raise DomainError(f"attributes.{name}.{key}", "missing", f"a value, for kind {kind}", "add it")
    policies: dict[str, Any] = {key: _policy(name, key, table[key]) for key in POLICIES if key in table}
    if kind == "categories" and policies.get("outside") == "clip":
        raise DomainError(f"attributes.{name}.outside", "'clip'", "reject, category or drop, for categories",
                          "texts have no nearest value")  # fmt: skip
    attribute = Attribute(name, kind, **_READ[kind](name, table), **policies)
    if attribute.unparsable and attribute.values and isinstance(attribute.values[0], str):
        raise DomainError(f"attributes.{name}.unparsable", "given for texts", "kinds of numbers", "leave it to outside")
    return attribute


def _policy(name: str, key: str, value: Any) -> str:
    if not isinstance(value, str) or value not in POLICIES[key]:
        told, takes = value if isinstance(value, str) else "", ", ".join(POLICIES[key])
        raise DomainError(f"attributes.{name}.{key}", shown(value), takes, nearest(told, POLICIES[key]))
    return value


def _is_integer(name: str, key: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise DomainError(f"attributes.{name}.{key}", shown(value), "a whole number", "write it without a point")
    if abs(value) >= EXACT:
        raise DomainError(f"attributes.{name}.{key}", f"{value}", "a number between -2^53 and 2^53", "use kind bins")
    return value


def _read_integer(name: str, table: Mapping[str, Any]) -> dict[str, Any]:
    low, high = (_is_integer(name, key, table[key]) for key in ("low", "high"))
    if high < low:
        raise DomainError(f"attributes.{name}.high", f"{high}", f"at least low = {low}", "swap them")
    return {"low": low, "high": high}


def _read_coded(name: str, table: Mapping[str, Any]) -> dict[str, Any]:
    size = _is_integer(name, "size", table["size"])
    if size < 1:
        raise DomainError(f"attributes.{name}.size", f"{size}", "a positive number", "mend it")
    return {"low": 0, "high": size - 1}


def _read_categories(name: str, table: Mapping[str, Any]) -> dict[str, Any]:
    values, field = table["values"], f"attributes.{name}.values"
    if not isinstance(values, list) or not values or not all(isinstance(v, str | int | float) for v in values):
        raise DomainError(field, "not a list of texts or numbers", "such a list", "mend it")
    if len({bool if isinstance(v, bool) else str if isinstance(v, str) else float for v in values}) > 1:
        raise DomainError(field, "texts, numbers and true or false mixed", "one of them", "quote the numbers")
    if not isinstance(values[0], str) and not all(abs(v) < EXACT for v in values):
        raise DomainError(field, "a number too large or not finite", "numbers between -2^53 and 2^53", "mend it")
    if len(set(values)) != len(values) or (OUTSIDE_LABEL in values and table.get("outside") == "category"):
        raise DomainError(field, "a value twice", "distinct values", "drop the repeat")
    return {"values": tuple(values)}


def _read_bins(name: str, table: Mapping[str, Any]) -> dict[str, Any]:
    edges, field = table["edges"], f"attributes.{name}.edges"
    if not isinstance(edges, list) or not all(_is_finite(edge) for edge in edges):
        raise DomainError(field, "not a list of numbers", "finite numbers", "mend it")
    edges = [float(edge) for edge in edges]
    if any(b <= a for a, b in pairwise(edges)) or len(edges) < 2:
        raise DomainError(field, "not increasing", "two or more increasing numbers", "sort them, drop repeats")
    return {"edges": tuple(edges)}


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -LARGEST <= value <= LARGEST


_READ = {"integer": _read_integer, "coded": _read_coded, "categories": _read_categories, "bins": _read_bins}


def check_keys(table: Mapping[str, Any], known: set[str], where: str) -> None:
    """DomainError where a table has a key that is not known."""
    for key in sorted(map(str, set(table) - known)):
        raise DomainError(where, f"unknown key {key!r}", ", ".join(sorted(known)), nearest(key, known))


def check_size(attribute: Attribute) -> None:
    """DomainError for fewer than two cells, or more than codes can tell apart."""
    if attribute.size < 2:
        raise DomainError(
            f"attributes.{attribute.name}",
            f"size {attribute.size}",
            "at least 2 cells",
            "leave the attribute out: it tells nothing, and the total is always there to ask",
        )
    if attribute.size > MOST_CELLS:
        raise DomainError(f"attributes.{attribute.name}", f"size {attribute.size}", "at most 2^32 cells", "use bins")
