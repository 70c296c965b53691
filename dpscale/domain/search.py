"""Attributes whose cells are not public: a private measurement chooses them, at a cost that is on the ledger.

    [attributes.city]   kind = "discover"         the texts that occur often enough, and those in `values`
    [attributes.code]   kind = "discover"         nodes of a public tree of codes that contain enough records
    [attributes.income] edges = "private"         bins that divide the records about evenly
    [numbers.fare]      high = "private"          ends of the range outside of which values are clipped

Until the stage `discover` has run, such an attribute has assumed cells, with which a job is validated and planned. Its
`search` describes the measurement of the stage (`dpscale.discovery`). Records are never encoded in assumed cells.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

from dpscale.base.display import safe_repr
from dpscale.base.errors import DomainError

ASSUMED = 20  # values of an attribute before they are known
PRIVATE = "private"
LONGEST = 10_000  # characters of a text
WIDEST = 63  # an axis without public ends has the integers -2^63 … 2^63 - 1


def shown(value: Fraction) -> int | float:
    """Return a number of a domain file: an integer where it is one."""
    return int(value) if value.denominator == 1 else float(value)


@dataclass(frozen=True)
class Search(ABC):
    """Measurement that finds the cells of an attribute.

    Attributes
    ----------
    kind : str
        Name of the module in `dpscale.discovery` that performs the search.
    uses_delta : bool
        Whether the search has an additive delta.
    """

    kind: ClassVar[str] = ""
    uses_delta: ClassVar[bool] = False

    @property
    def has_votes(self) -> bool:
        """Whether privacy units vote for their values."""
        return False

    @property
    def public_values(self) -> tuple[Any, ...]:
        """Values that are cells whatever the search finds."""
        return ()

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return the keys of the domain file that state the search."""


@dataclass(frozen=True)
class ValueSearch(Search):
    """Search for the values that occur often.

    Parameters
    ----------
    max_length : int
        Longest text that can be found, in characters.
    values : tuple of str or int
        Public values, which are cells in any case.
    other : bool
        Whether all other values have a cell; their rows are dropped otherwise.
    assumed : int
        Number of values with which the job is planned before they are known.
    count : {"rows", "units"}
        Statistic of the search: numbers of rows, or votes of privacy units for the values that they have.
    """

    kind: ClassVar[str] = "values"
    uses_delta: ClassVar[bool] = True
    max_length: int = 100
    values: tuple[Any, ...] = ()
    other: bool = True
    assumed: int = ASSUMED
    count: str = "rows"

    @property
    def public_values(self) -> tuple[Any, ...]:
        return self.values

    @property
    def has_votes(self) -> bool:
        return self.count == "units"

    def describe(self) -> dict[str, Any]:
        """Return the settings for a domain file; an empty `values` and the default of `count` are omitted."""
        values = {"values": list(self.values)} if self.values else {}
        count = {"count": self.count} if self.count != ValueSearch.count else {}
        return {"kind": "discover", "max_length": self.max_length, **values, "other": self.other,
                "assumed": self.assumed, **count}  # fmt: skip


@dataclass(frozen=True)
class NodeSearch(Search):
    """Search for the nodes of a public tree of codes that contain enough records.

    Parameters
    ----------
    file : str
        CSV or Parquet file with a row for every code.
    leaf : str
        Column of the code.
    levels : tuple of str
        Columns of its ancestors, the top first; empty where a code has no ancestor of that level.
    digest : str
        SHA-256 of the file.
    assumed : int
    """

    kind: ClassVar[str] = "nodes"
    file: str = ""
    leaf: str = ""
    levels: tuple[str, ...] = ()
    digest: str = ""
    assumed: int = ASSUMED

    def describe(self) -> dict[str, Any]:
        return {"kind": "discover", "file": self.file, "leaf": self.leaf, "levels": list(self.levels),
                "sha256": self.digest, "assumed": self.assumed}  # fmt: skip


@dataclass(frozen=True)
class EdgeSearch(Search):
    """Search for the edges of bins that divide the records about evenly.

    Parameters
    ----------
    low, high : int, optional
        Public ends of the axis, in steps; None for the largest axis.
    unit : Fraction
        Step of the axis.
    assumed : int
        Number of bins with which the job is planned before they are known.
    bins : int, optional
        Largest number of bins.
    """

    kind: ClassVar[str] = "edges"
    low: int | None = None
    high: int | None = None
    unit: Fraction = Fraction(1)
    assumed: int = 3 * ASSUMED
    bins: int | None = None

    @property
    def assumed_edges(self) -> tuple[float, ...]:
        return tuple(float(edge) for edge in range(self.assumed + 1))

    @property
    def axis(self) -> tuple[int, int]:
        """First integer of the axis and the number of its binary digits.

        Without public ends the axis has all integers of WIDEST bits and a sign.
        """
        if self.low is None or self.high is None:
            return -(1 << WIDEST), WIDEST + 1
        return self.low, max((self.high - self.low).bit_length(), 1)

    def describe(self) -> dict[str, Any]:
        ends = {name: shown(end * self.unit) for name in ("low", "high") if (end := getattr(self, name)) is not None}
        most = {} if self.bins is None else {"bins": self.bins}
        return {"kind": "bins", "edges": PRIVATE, **ends, "step": shown(self.unit), "assumed": self.assumed, **most}


@dataclass(frozen=True)
class EndSearch(Search):
    """Search for the ends of a number's range.

    Parameters
    ----------
    low, high : int, optional
        Public ends, in steps; None for an end that is searched.
    fallback : tuple of int, optional
        Public range, in steps, if the search sees no values.
    """

    kind: ClassVar[str] = "ends"
    low: int | None = None
    high: int | None = None
    fallback: tuple[int, int] | None = None

    def describe(self) -> dict[str, Any]:
        return {name: PRIVATE for name in self.searched}

    @property
    def searched(self) -> tuple[str, ...]:
        """Names of the ends that are searched."""
        return tuple(name for name in ("low", "high") if getattr(self, name) is None)


def assumed_values(count: int, values: tuple[Any, ...] = ()) -> tuple[Any, ...]:
    """Return the public values of an attribute, and others in place of those that are not known yet.

    `count` is the number of values that plans assume, at least 2. Other values are integers above the largest, or texts
    "(value n)".
    """
    missing = max(count, 2) - len(values)
    if values and not isinstance(values[0], str):
        first = int(max(values)) + 1
        return (*values, *range(first, first + missing))
    return (*values, *(f"(value {number})" for number in range(1, missing + 1)))


def read_assumed(field: str, table: Mapping[str, Any], usual: int = ASSUMED) -> int:
    """Return the number of cells with which a job is planned before they are known."""
    return read_count(f"{field}.assumed", table.get("assumed", usual), 2, 1 << 20)


def read_count(field: str, value: object, least: int, most: int) -> int:
    """Return an integer of a domain file; raise DomainError outside least … most."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise DomainError(field, safe_repr(value), f"an integer from {least} to {most:,}", "fix it")
    return value
