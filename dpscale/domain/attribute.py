"""Discrete attributes: their cells, labels and form in the domain file, and words of the reader for them.

The words are titles, descriptions, units and labels of values. They are displayed only. They are outside the digest of
a domain, the workload and every draw, and files for machines keep the values of the columns.

*Listed* cells are those of the values, bins or periods in the domain file; the cells of outside values and of nulls, if
there are any, follow them. Calendar periods are numbered: that of 1 January 1970 has the number 0.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscale.base.display import nearest, safe_repr
from dpscale.base.errors import DomainError
from dpscale.base.expressions import Literal, spelled
from dpscale.domain.search import Search
from dpscale.domain.tree import TreeLevel

WORDS = ("title", "description", "unit", "labels")  # keys of a table of the domain file
NULLS = "(null)"

PERIODS = ("day", "week", "month", "quarter", "year")
MONTHS = {"month": 1, "quarter": 3, "year": 12}
EPOCH = date(1970, 1, 1)  # day with the number 0
NAMES = {
    "day": (r"(\d{4})-(\d\d)-(\d\d)", "a day, as 2025-01-31"),
    "week": (r"(\d{4})-W(\d\d)", "a week, as 2025-W05, or a day of it"),
    "month": (r"(\d{4})-(\d\d)", "a month, as 2025-01, or a day of it"),
    "quarter": (r"(\d{4})-Q([1-4])", "a quarter, as 2025-Q1, or a day of it"),
    "year": (r"(\d{4})", "a year, as 2025, or a day of it"),
}


@dataclass(frozen=True)
class Words:
    """Words for an attribute or a number.

    Attributes
    ----------
    title, description, unit : str
        Empty without one.
    labels : mapping of str to str
        Texts that are shown in place of values, by `key_of` of the value.
    """

    title: str = ""
    description: str = ""
    unit: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    def among(self, labels: Sequence[Any]) -> Words:
        """Return the words without labels of values that no cell has."""
        known = {key_of(label) for label in labels}
        return replace(self, labels={value: text for value, text in self.labels.items() if value in known})

    def describe(self) -> dict[str, Any]:
        """Return the keys of a table of the domain file."""
        return {name: value for name, value in vars(self).items() if value}


def key_of(label: object) -> str:
    """Return the key of a cell's label in `labels`: its text, (null) for nulls, and true or false."""
    return NULLS if label is None else str(label).lower() if isinstance(label, bool) else str(label)


def read_words(where: str, table: Mapping[str, Any]) -> Words:
    """Return the words of a table of the domain file.

    Raises
    ------
    DomainError
        If one is not a text, or two values have the same label.
    """
    words: dict[str, Any] = {key: table[key] for key in WORDS[:3] if key in table}
    for key, text in words.items():
        _check_text(f"{where}.{key}", text)
    labels = table.get("labels", {})
    if not isinstance(labels, Mapping):
        raise DomainError(
            f"{where}.labels", safe_repr(labels), 'texts by value, as {0 = "alive", 1 = "dead"}', "fix it"
        )

    shown_labels = {key_of(value): text for value, text in labels.items()}
    for value, text in shown_labels.items():
        _check_text(f"{where}.labels.{value}", text)
        if list(shown_labels.values()).count(text) > 1:
            raise DomainError(f"{where}.labels", f"{text!r} twice", "distinct texts", "change one of them")
    return Words(**words, labels=shown_labels)


def check_labelled(where: str, labelled: Mapping[str, str], labels: Sequence[Any]) -> None:
    """Raise DomainError if a label is given for a value that no cell has."""
    known = {key_of(label) for label in labels}
    if unknown := [value for value in labelled if value not in known]:
        raise DomainError(f"{where}.labels", safe_repr(unknown[0]), "values of its cells", nearest(unknown[0], known))


def _check_text(where: str, text: object) -> None:
    if not isinstance(text, str) or not text.strip() or not text.isprintable():
        raise DomainError(where, safe_repr(text), "a text of one line", "write one, or leave it out")


def numbered(by: str, days: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the calendar periods that contain the given days since 1 January 1970.

    Periods are numbered from 0, the one that contains 1 January 1970. Day 0 is a Thursday, so 3 days are added for
    weeks that begin on Monday. MONTHS has the months of longer periods.
    """
    if by == "day":
        return days
    if by == "week":
        return (days + 3) // 7
    return days.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64) // MONTHS[by]


def number_of(by: str, day: date) -> int:
    """Return the number of the period that contains a day."""
    return int(numbered(by, np.array([(day - EPOCH).days]))[0])


def first_day(by: str, number: int) -> date:
    """Return the first day of a period; a week that begins before year 1 starts on the first day of that year.

    MONTHS has the months of periods longer than a week; period 0 contains 1 January 1970.
    """
    if by in MONTHS:
        year, month = divmod(number * MONTHS[by], 12)
        return date(1970 + year, month + 1, 1)
    # week 0 begins on Monday, 29 December 1969, 3 days before 1970
    days = number if by == "day" else 7 * number - 3
    return EPOCH + timedelta(max(days, (date.min - EPOCH).days))


def last_day(by: str, number: int) -> date:
    """Return the last day of a period; a week that ends after year 9999 ends on the last day of that year."""
    try:
        return first_day(by, number + 1) - timedelta(1)
    except (OverflowError, ValueError):
        return date.max


def cut_at(by: str, sign: str, day: date) -> date | None:
    """Return the day of the same period at which a comparison cuts between two periods.

    It is the first day for < and >=, and the last one for <= and >. Equality has one only if the period is a day.
    """
    if by == "day":
        return day
    ends = {"<": first_day, ">=": first_day, "<=": last_day, ">": last_day}
    return ends[sign](by, number_of(by, day)) if sign in ends else None


def is_day(value: object) -> bool:
    """Return whether a value is a text in the form of a day, such as 2025-01-31."""
    return isinstance(value, str) and re.fullmatch(NAMES["day"][0], value) is not None


def name_of(by: str, number: int) -> str | int:
    """Return the name of a period: an integer for a year, otherwise a text."""
    day = first_day(by, number)
    if by == "day":
        return day.isoformat()
    if by == "week":
        year, week, _ = day.isocalendar()
        return f"{year:04}-W{week:02}"
    if by == "year":
        return day.year
    return f"{day.year:04}-{day.month:02}" if by == "month" else f"{day.year:04}-Q{(day.month + 2) // 3}"


def read_period(by: str, value: object) -> int:
    """Return the number of a period given by its name or one of its days. Raises ValueError otherwise.

    NAMES has, for each kind of period, the pattern of its names and the description of it in messages.
    """
    if isinstance(value, date):
        return number_of(by, date(value.year, value.month, value.day))

    text = str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""
    match = re.fullmatch(NAMES[by][0], text)
    if match is None and not is_day(text):
        raise ValueError(NAMES[by][1])
    if match is None:
        return number_of(by, date.fromisoformat(text))
    return number_of(by, _begins(by, [int(part) for part in match.groups()]))


def _begins(by: str, parts: list[int]) -> date:
    """Return the first day of a period.

    Of the numbers `parts` in its name the first is the year, followed by the quarter, the week, or the month and the
    day.
    """
    if by == "week":
        return date.fromisocalendar(parts[0], parts[1], 1)
    if by == "quarter":
        return date(parts[0], 3 * parts[1] - 2, 1)
    return date(*[*parts, 1, 1][:3])


KINDS = ("integer", "categories", "bins", "coded", "boolean", "date", "text-prefix", "hierarchy", "number")
OUTSIDE_LABEL, NULL_LABEL = "(outside)", "(null)"
EXACT = 1 << 53  # smaller integers are exact as floats, to which texts and decimals are parsed
LARGEST = sys.float_info.max
FEW = 4  # values that a summary names
MOST_CELLS = 1 << 32  # codes of known cells are at most 32 bits
MOST_CODES = 1 << 64  # codes of an attribute whose cells are not known yet: words of 64 bits


@dataclass(frozen=True)
class Attribute:
    """Discrete attribute.

    Parameters
    ----------
    name : str
    kind : str
        integer (low … high in steps of `step`), categories (values), bins (edges; the last bin includes its right
        edge), coded (integers 0 … count−1), boolean, date (calendar periods low … high, by their numbers),
        text-prefix (the first `length` letters are among the values) or hierarchy (a level of a public tree).
    low, high : int
        Range of integers, codes or periods.
    values : sequence
        Labels of the categories.
    edges : tuple of float
        Edges of the bins.
    outside : {"reject", "clip", "category", "drop"}
        Policy for values that the kind does not list.
    nulls : {"reject", "category", "drop"}
        Policy for nulls.
    unparsable : {"reject", "category", "drop"}, optional
        Policy for texts where numbers or dates are required. Default: that of `outside`, but "reject" instead of
        "clip".
    step : int
    length : int
    by : str
        Calendar period of a date.
    zone : str
        Time zone in which times with a zone are converted to days.
    format : str
        Format of dates in texts, such as %d/%m/%Y; default: ISO 8601.
    groups : tuple of tuple
        Column values of each entry of `values`, if they differ from it.
    source : str
        Column that is read; empty if it has the attribute's name.
    search : Search, optional
        Measurement that chooses the cells; the present ones are assumed.
    level : TreeLevel, optional
        Level of a public tree whose nodes are the cells; `values` are their labels.
    words : Words
        Title, description, unit and labels that are displayed; attributes with other words are equal.

    Examples
    --------
    >>> import dpscale as dp
    >>> age = dp.Domain(age=dp.bins(0, 100, 25))["age"]
    >>> age.kind, age.size
    ('bins', 4)
    """

    name: str
    kind: str
    low: int = 0
    high: int = 0
    values: Sequence[Any] = ()
    edges: tuple[float, ...] = ()
    outside: str = "reject"
    nulls: str = "reject"
    unparsable: str | None = None
    step: int = 1
    length: int = 0
    by: str = ""
    zone: str = ""
    format: str = ""
    groups: tuple[tuple[Any, ...], ...] = ()
    source: str = ""
    search: Search | None = None
    level: TreeLevel | None = None
    words: Words = field(default=Words(), compare=False)

    def __post_init__(self) -> None:
        """Raise DomainError for an unknown kind; the reader of a domain file checks everything else."""
        if self.kind not in KINDS:
            named = self.kind if isinstance(self.kind, str) else ""
            field = f"attributes.{self.name}.kind"
            raise DomainError(field, safe_repr(self.kind), ", ".join(KINDS), nearest(named, KINDS))

    def __dir__(self) -> list[str]:
        """Return the names on which users rely; the others say how columns are read."""
        return ["name", "kind", "size", "labels", "low", "high", "values", "edges", "outside", "nulls", "column",
                "describe"]  # fmt: skip

    @property
    def column(self) -> str:
        """Column from which the attribute is read."""
        return self.source or self.name

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that are read: more than one if records state the path of a leaf."""
        if self.level is None or not self.level.tree.by_path:
            return (self.column,)
        return (*self.level.tree.columns[:-1], self.column)

    @cached_property
    def of_texts(self) -> bool:
        """Whether the column contains texts that are compared literally."""
        read = self.groups[0] if self.groups else self.values
        return bool(read) and isinstance(read[0], str)

    @property
    def is_whole(self) -> bool:
        """Whether a cell is an integer minus `low`."""
        return self.kind in ("integer", "coded") and self.step == 1

    @cached_property
    def foreign(self) -> str:
        """Policy for texts that cannot be parsed."""
        return self.unparsable or ("reject" if self.outside == "clip" else self.outside)

    @property
    def drops(self) -> bool:
        """Whether rows may be dropped because of their value."""
        return "drop" in (self.outside, self.nulls, self.foreign)

    @cached_property
    def listed(self) -> int:
        """Number of cells listed by the kind itself."""
        if self.values:
            return len(self.values)
        return len(self.edges) - 1 if self.kind == "bins" else (self.high - self.low) // self.step + 1

    @cached_property
    def size(self) -> int:
        """Number of cells, including those for outside values and nulls."""
        return self.listed + (self.outside_cell >= 0) + (self.nulls == "category")

    @property
    def outside_cell(self) -> int:
        """Cell of outside values and unparsable texts; −1 if neither has one."""
        return self.listed if "category" in (self.outside, self.foreign) else -1

    @property
    def null_cell(self) -> int:
        """Cell of nulls; −1 if nulls have none."""
        return self.size - 1 if self.nulls == "category" else -1

    @property
    def null_code(self) -> int:
        """Code of nulls; −1 if nulls have none."""
        return self.null_cell

    @property
    def code_count(self) -> int:
        """Number of codes of a value; a code is a cell, except for numbers and where the cells are not known yet."""
        return self.size if self.search is None else MOST_CODES

    @property
    def denominator(self) -> int:
        """Number of parts of a record that its cells share; 1 except for numbers."""
        return 1

    @property
    def largest_part(self) -> int:
        """Upper bound of the parts of a record on a cell, and of their absolute sum over the records of a unit."""
        return self.denominator

    @cached_property
    def labels(self) -> list[Any]:
        """Label of each cell: integers, category values, intervals, periods; None for nulls."""
        extra: list[Any] = [OUTSIDE_LABEL] if self.outside_cell >= 0 else []
        return self._listed_labels + extra + ([None] if self.null_cell >= 0 else [])

    @cached_property
    def cell_of(self) -> dict[Any, int]:
        """Cell of each label and of its text form."""
        written = {str(label): cell for cell, label in reversed(list(enumerate(self.labels))) if label is not None}
        return written | {label: cell for cell, label in reversed(list(enumerate(self.labels)))}

    @cached_property
    def denoted(self) -> dict[Any, list[str]]:
        """Labels that are texts by the values that they denote: numbers, instants, and true or false by (value,)."""
        labels_of: dict[Any, list[str]] = {}
        for label in self.labels[: self.listed]:
            if isinstance(label, str) and (value := _denoted(label)) is not None:
                labels_of.setdefault(value, []).append(label)
        return labels_of

    @property
    def _listed_labels(self) -> list[Any]:
        """Return the labels of the cells that the domain lists: categories, bins, periods or integers.

        The last bin is closed and the others are half open. Integers in groups have the label of the first one, at
        steps of `step`.
        """
        if self.values:
            return list(self.values)

        if self.kind == "bins":
            ends = [")"] * (self.listed - 1) + ["]"]
            edges = [_short(edge) for edge in self.edges]
            return [f"[{a}, {b}{end}" for a, b, end in zip(edges, edges[1:], ends, strict=False)]

        if self.kind == "date":
            return [name_of(self.by, number) for number in range(self.low, self.high + 1)]
        return list(range(self.low, self.high + 1, self.step))

    @property
    def extent(self) -> str:
        """First values, or the ends of the range, in words.

        At most FEW values are listed. Values of a private search are not known.
        """
        if self.search is not None:
            return "found by a private search"
        if self.values:
            return ", ".join(map(str, self.values[:FEW])) + (", …" if len(self.values) > FEW else "")

        ends: tuple[object, object] = self.low, self.high
        if self.kind == "bins":
            ends = _short(self.edges[0]), _short(self.edges[-1])
        if self.kind == "date":
            ends = name_of(self.by, self.low), name_of(self.by, self.high)
        return f"{ends[0]} to {ends[1]}"

    def describe(self) -> dict[str, Any]:
        """Return the attribute as a table of the domain file.

        Returns
        -------
        dict

        Examples
        --------
        >>> import dpscale as dp
        >>> dp.Domain(a=3)["a"].describe()["kind"]
        'coded'
        """
        policies = {} if self.unparsable is None else {"unparsable": self.unparsable}
        read = {"from": self.source} if self.source else {}
        outside = {} if self.search is not None and self.values else {"outside": self.outside}
        settings = {"kind": self.kind, **self._own_keys} | (self.search.describe() if self.search is not None else {})
        return {**settings, **outside, "nulls": self.nulls, **policies, **read, **self.words.describe()}

    @property
    def _own_keys(self) -> dict[str, Any]:
        """Keys specific to the attribute's kind.

        The keys are those of the attribute's table in a domain file.
        """
        # the keys of a search are written elsewhere
        if self.search is not None:
            return {}
        if self.level is not None:
            return self.level.describe(self.name)

        if self.values and self.kind != "boolean":
            size = {"length": self.length} if self.length else {}
            groups = zip(self.values, map(list, self.groups), strict=False)
            return {**size, **({"map": dict(groups)} if self.groups else {"values": list(self.values)})}

        if self.kind == "date":
            more = {key: value for key, value in (("zone", self.zone), ("format", self.format)) if value}
            return {"by": self.by, "low": name_of(self.by, self.low), "high": name_of(self.by, self.high), **more}

        rounded = {"round": self.step} if self.step > 1 else {}
        kinds: dict[str, dict[str, Any]] = {"bins": {"edges": list(self.edges)}, "coded": {"size": self.listed}}
        return kinds.get(self.kind, {} if self.values else {"low": self.low, "high": self.high, **rounded})


def _short(edge: float) -> str:
    """Return a bin edge with the fewest digits that identify it."""
    return f"{edge:g}" if float(f"{edge:g}") == edge else repr(edge)


def _denoted(text: str) -> Any:
    """Return the number or instant that a text denotes, or (True,) or (False,); None for another text."""
    if text.lower() in ("true", "false"):
        return (text.lower() == "true",)
    try:
        number = Decimal(text)
        return number if number.is_finite() else None
    except ArithmeticError:
        pass
    try:
        return datetime.fromisoformat(text).replace(tzinfo=None)
    except ValueError:
        return None


def cell_of_literal(attribute: Attribute, value: Literal) -> int | None:
    """Return the cell whose label a literal of an expression denotes; None if there is none.

    A text denotes the label with this text, and a number the equal one. If labels are texts, a number or date denotes
    the label that is written like it. No other label may denote the same value: the codes 01, 1 and 1.0 are one number.

    Raises
    ------
    ValueError
        If the label must be written as a text; the message is this text in quotes.
    """
    cells = attribute.cell_of
    if isinstance(value, str) or value in cells:
        return cells.get(value)

    written = spelled(value)
    labels = attribute.denoted.get(value if isinstance(value, datetime) else _denoted(written), [])
    if len(labels) == 1 and (labels[0] == written or isinstance(value, bool)):
        return cells[labels[0]]
    if labels:
        raise ValueError(spelled(written if written in labels else labels[0]))
    return None


def check_size(attribute: Attribute) -> None:
    """Raise DomainError for fewer than two cells or more than fit in a code."""
    if attribute.size < 2:
        omit = "omit the attribute" if attribute.level is None else "leave it out of the levels of its hierarchy"
        raise DomainError(f"attributes.{attribute.name}", f"size {attribute.size}", "at least 2 cells",
                          f"{omit}: it carries no information")  # fmt: skip
    if attribute.size > MOST_CELLS:
        raise DomainError(f"attributes.{attribute.name}", f"size {attribute.size}", "at most 2^32 cells", "use bins")
