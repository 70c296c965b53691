"""The public schema: which attributes a record has and which values each can take.

A domain is *public*: it comes from a file, never from the records. Every attribute is discrete; its cells are numbered
0 … size−1 in the order of the file, then one cell for values outside and one for nulls where the file asks for them.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from operator import index
from pathlib import Path
from typing import Any

from dpscale.errors import DomainError
from dpscale.names import nearest
from dpscale.storage.files import place, read_text

EXAMPLE = 'kind = "coded" and size = 4'
KINDS = {
    "integer": {"low", "high"},
    "categories": {"values"},
    "bins": {"edges"},
    "coded": {"size"},
}
POLICIES = {"outside": ("reject", "clip", "category"), "nulls": ("reject", "category")}
OUTSIDE_LABEL = "(outside)"
EXACT = 1 << 53  # whole numbers below it are told apart as floats, which texts and decimals are read as
LARGEST = sys.float_info.max
MOST_CELLS = 1 << 32  # codes are at most 32 bits


@dataclass(frozen=True)
class Attribute:
    """One discrete attribute.

    `kind` is integer (low … high), categories (values), bins (edges; the last bin takes its right edge too) or coded
    (already 0 … count−1). `outside` and `nulls` say what becomes of values that the kind does not list.
    """

    name: str
    kind: str
    low: int = 0
    high: int = 0
    values: tuple[Any, ...] = ()
    edges: tuple[float, ...] = ()
    outside: str = "reject"
    nulls: str = "reject"

    @cached_property
    def listed(self) -> int:
        """Number of cells that the kind itself lists."""
        if self.kind == "categories":
            return len(self.values)
        return len(self.edges) - 1 if self.kind == "bins" else self.high - self.low + 1

    @cached_property
    def size(self) -> int:
        """Number of cells, those for outside values and nulls included."""
        return self.listed + (self.outside == "category") + (self.nulls == "category")

    @property
    def outside_cell(self) -> int:
        """Cell of values outside the domain; −1 where such values are not put into a cell of their own."""
        return self.listed if self.outside == "category" else -1

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
        extra: list[Any] = [OUTSIDE_LABEL] if self.outside == "category" else []
        return listed + extra + ([None] if self.nulls == "category" else [])

    def describe(self) -> dict[str, Any]:
        """The attribute as a table of the domain file."""
        kinds: dict[str, dict[str, Any]] = {
            "integer": {"low": self.low, "high": self.high},
            "categories": {"values": list(self.values)},
            "bins": {"edges": list(self.edges)},
            "coded": {"size": self.listed},
        }
        return {"kind": self.kind, **kinds[self.kind], "outside": self.outside, "nulls": self.nulls}


class Domain:
    """An ordered set of attributes. `Domain({"a": 10, "b": 20})` makes coded ones of these sizes."""

    def __init__(self, attributes: Mapping[str, int] | Iterable[Attribute]) -> None:
        if isinstance(attributes, Mapping):
            attributes = [_coded(name, size) for name, size in attributes.items()]
        self.attributes = tuple(attributes)
        if not self.attributes:
            raise DomainError("attributes", "none given", "at least one attribute", "add an [attributes.NAME] table")
        self._by_name = {a.name: a for a in self.attributes}
        self._position = {a.name: i for i, a in enumerate(self.attributes)}
        for attribute in self.attributes:
            _check_size(attribute)
        _check_names([a.name for a in self.attributes])

    @classmethod
    def read(cls, path: str | Path) -> Domain:
        """Read a domain file (TOML)."""
        try:
            content = tomllib.loads(read_text(place(path)))
        except OSError as error:
            reason = error.strerror or "unreadable"
            raise DomainError("domain", f"cannot read {path} ({reason})", "a domain file", "check the path") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise DomainError("domain", f"{path} is not TOML ({error})", "a domain file", "mend the syntax") from None
        return cls.from_dict(content)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Domain:
        """Build from the parsed content of a domain file."""
        _only(content, {"attributes"}, "domain file")
        tables = content.get("attributes", {})
        if not isinstance(tables, Mapping):
            raise DomainError(
                "attributes", "not a table", "tables [attributes.NAME]", f"such as [attributes.age] with {EXAMPLE}"
            )
        return cls([_attribute(name, table) for name, table in tables.items()])

    def to_dict(self) -> dict[str, Any]:
        """The content of the domain file that would give this domain."""
        return {"attributes": {a.name: a.describe() for a in self.attributes}}

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(a.name for a in self.attributes)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the domain, in hexadecimal."""
        text = json.dumps(self.to_dict(), sort_keys=False, default=str)
        return hashlib.sha256(text.encode()).hexdigest()

    def __getitem__(self, name: str) -> Attribute:
        try:
            return self._by_name[name]
        except KeyError:
            raise DomainError(
                "attributes", f"no attribute {name!r}", "a name of the domain", nearest(name, self.names)
            ) from None

    def __len__(self) -> int:
        return len(self.attributes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Domain) and self.attributes == other.attributes

    def __hash__(self) -> int:
        return hash(self.attributes)

    def __repr__(self) -> str:
        return f"Domain({{{', '.join(f'{a.name!r}: {a.size}' for a in self.attributes)}}})"

    def shape(self, names: Sequence[str]) -> tuple[int, ...]:
        """Sizes of the named attributes, in the order asked."""
        return tuple(self[name].size for name in names)

    def cells(self, names: Sequence[str]) -> int:
        """Number of cells of the marginal on the named attributes."""
        return math.prod(self.shape(names))

    def ordered(self, names: Iterable[str]) -> tuple[str, ...]:
        """The names in the domain's order; a repeated or unknown name is an error."""
        names = tuple(names)
        for name in names:
            self[name]
        if len(set(names)) != len(names):
            raise DomainError("attributes", f"{', '.join(names)} repeats a name", "distinct names", "drop the repeat")
        return tuple(sorted(names, key=self._position.__getitem__))


def _short(edge: float) -> str:
    """A bin's edge in as few digits as still name it."""
    return f"{edge:g}" if float(f"{edge:g}") == edge else repr(edge)


def _coded(name: str, size: Any) -> Attribute:
    whole = hasattr(size, "__index__") and not isinstance(size, bool)  # numpy's integers too
    return Attribute(name, "coded", **_read_coded(name, {"size": index(size) if whole else size}))


def _attribute(name: str, table: Any) -> Attribute:
    if not isinstance(table, Mapping):
        raise DomainError(f"attributes.{name}", "not a table", "a table with a kind", f"such as {EXAMPLE}")
    kind = table.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise DomainError(f"attributes.{name}.kind", f"{kind!r}", ", ".join(KINDS), nearest(str(kind), KINDS))
    _only(table, {"kind", "outside", "nulls"} | KINDS[kind], f"attributes.{name}")
    for key in sorted(KINDS[kind] - set(table)):
        raise DomainError(f"attributes.{name}.{key}", "missing", f"a value, for kind {kind}", "add it")
    policies: dict[str, Any] = {key: _policy(name, key, table.get(key, "reject")) for key in POLICIES}
    if kind == "categories" and policies["outside"] == "clip":
        raise DomainError(
            f"attributes.{name}.outside", "'clip'", "reject or category, for categories", "texts have no nearest value"
        )
    return Attribute(name, kind, **_READ[kind](name, table), **policies)


def _policy(name: str, key: str, value: Any) -> str:
    if value not in POLICIES[key]:
        takes = ", ".join(POLICIES[key])
        raise DomainError(f"attributes.{name}.{key}", f"{value!r}", takes, nearest(str(value), POLICIES[key]))
    return str(value)


def _is_integer(name: str, key: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise DomainError(f"attributes.{name}.{key}", f"{value!r}", "a whole number", "write it without a point")
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


def _only(table: Mapping[str, Any], known: set[str], where: str) -> None:
    for key in sorted(map(str, set(table) - known)):
        raise DomainError(where, f"unknown key {key!r}", ", ".join(sorted(known)), nearest(key, known))


def _check_size(attribute: Attribute) -> None:
    if attribute.size < 2:
        raise DomainError(
            f"attributes.{attribute.name}",
            f"size {attribute.size}",
            "at least 2 cells",
            "leave the attribute out: it tells nothing, and the total is always there to ask",
        )
    if attribute.size > MOST_CELLS:
        raise DomainError(f"attributes.{attribute.name}", f"size {attribute.size}", "at most 2^32 cells", "use bins")


def _check_names(names: Sequence[Any]) -> None:
    for name in names:
        if not isinstance(name, str) or not name:
            raise DomainError("attributes", f"the name {name!r}", "texts for names", "name every attribute")
    if len(set(names)) != len(names):
        raise DomainError("attributes", "a name twice", "distinct names", "drop the repeat")
