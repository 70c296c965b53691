"""A discrete attribute: its cells, their labels, and how the domain file writes it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dpscale.base.errors import DomainError
from dpscale.base.names import nearest, shown
from dpscale.domain.calendar import name_of

KINDS = ("integer", "categories", "bins", "coded", "boolean", "date", "text-prefix")
OUTSIDE_LABEL, NULL_LABEL = "(outside)", "(null)"
EXACT = 1 << 53  # whole numbers below it are told apart as floats, which texts and decimals are read as
LARGEST = sys.float_info.max
MOST_CELLS = 1 << 32  # codes are at most 32 bits


@dataclass(frozen=True)
class Attribute:
    """One discrete attribute.

    `kind` is integer (low … high, every `step`), categories (values), bins (edges; the last bin takes its right edge
    too), coded (already 0 … count−1), boolean, date (periods low … high of the calendar, by their numbers) or
    text-prefix (the first `length` letters are among values). `outside`, `nulls` and `unparsable` (texts where numbers
    or dates are asked) say what becomes of values that the kind does not list; None for `unparsable`: as outside
    values, and refused where those are clipped.

    `groups`: what of the column each of the values stands for, where it is not itself. `source`: the column that is
    read; empty: that of the attribute's name. `zone`: of times that have one, the time zone whose days are meant.
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
    step: int = 1
    length: int = 0
    by: str = ""
    zone: str = ""
    groups: tuple[tuple[Any, ...], ...] = ()
    source: str = ""

    def __post_init__(self) -> None:
        """DomainError for a kind that is none: a domain file's is checked with the rest of its table."""
        if self.kind not in KINDS:
            told = self.kind if isinstance(self.kind, str) else ""
            field = f"attributes.{self.name}.kind"
            raise DomainError(field, shown(self.kind), ", ".join(KINDS), nearest(told, KINDS))

    @property
    def column(self) -> str:
        """The column that it is read from."""
        return self.source or self.name

    @cached_property
    def of_texts(self) -> bool:
        """Whether its column is of texts, compared as they are."""
        read = self.groups[0] if self.groups else self.values
        return bool(read) and isinstance(read[0], str)

    @property
    def is_whole(self) -> bool:
        """Whether a cell is a whole number less the lowest."""
        return self.kind in ("integer", "coded") and self.step == 1

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
        if self.values:
            return len(self.values)
        return len(self.edges) - 1 if self.kind == "bins" else (self.high - self.low) // self.step + 1

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
        """What a reader calls each cell: integers, category values, intervals, periods; None for nulls."""
        extra: list[Any] = [OUTSIDE_LABEL] if self.outside_cell >= 0 else []
        return self._listed_labels + extra + ([None] if self.nulls == "category" else [])

    @cached_property
    def cell_of(self) -> dict[Any, int]:
        """The cell of each label, and of what it is written as."""
        written = {str(label): cell for cell, label in reversed(list(enumerate(self.labels))) if label is not None}
        return written | {label: cell for cell, label in reversed(list(enumerate(self.labels)))}

    @property
    def _listed_labels(self) -> list[Any]:
        if self.values:
            return list(self.values)
        if self.kind == "bins":
            ends = [")"] * (self.listed - 1) + ["]"]
            edges = [_short(edge) for edge in self.edges]
            return [f"[{a}, {b}{end}" for a, b, end in zip(edges, edges[1:], ends, strict=False)]
        if self.kind == "date":
            return [name_of(self.by, number) for number in range(self.low, self.high + 1)]
        return list(range(self.low, self.high + 1, self.step))

    def describe(self) -> dict[str, Any]:
        """The attribute as a table of the domain file."""
        told = {} if self.unparsable is None else {"unparsable": self.unparsable}
        read = {"from": self.source} if self.source else {}
        return {"kind": self.kind, **self._own_keys, "outside": self.outside, "nulls": self.nulls, **told, **read}

    @property
    def _own_keys(self) -> dict[str, Any]:
        """The keys of its kind."""
        if self.values and self.kind != "boolean":
            size = {"length": self.length} if self.length else {}
            groups = zip(self.values, map(list, self.groups), strict=False)
            return {**size, **({"map": dict(groups)} if self.groups else {"values": list(self.values)})}
        if self.kind == "date":
            zone = {"zone": self.zone} if self.zone else {}
            return {"by": self.by, "low": name_of(self.by, self.low), "high": name_of(self.by, self.high), **zone}
        rounded = {"round": self.step} if self.step > 1 else {}
        kinds: dict[str, dict[str, Any]] = {"bins": {"edges": list(self.edges)}, "coded": {"size": self.listed}}
        return kinds.get(self.kind, {} if self.values else {"low": self.low, "high": self.high, **rounded})


def _short(edge: float) -> str:
    """A bin's edge in as few digits as still name it."""
    return f"{edge:g}" if float(f"{edge:g}") == edge else repr(edge)


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
