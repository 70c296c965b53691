"""Row filters such as `year = 2025 and town in ('Köln', 'Ulm')`.

A filter is public and judges each row independently: a row that does not match is treated as absent from the files.
One row more or less in the files is therefore at most one row more or less after the filter (stability 1). The text is
parsed by the grammar below and never executed.

    filter    = condition { "and" condition }
    condition = column ("=" | "!=" | "<" | "<=" | ">" | ">=") literal | column "in" "(" literal { "," literal } ")"
    literal   = number | 'text' | date, as 2025-01-31 or 2025-01-31T12:30:00 | true | false

A filter compares the values in the files, not the domain's cells. Numbers are parsed by `numbers`, also from texts.
Texts are compared byte by byte, and dates as moments: a day is its midnight, and a time with a zone is converted to
UTC. Nulls, and texts that are not a number or date where one is required, match no condition, not even `!=`.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Self

import numpy as np

from dpscale.base.arrow import as_text, is_text, pa, pc, text_kind, types
from dpscale.base.display import nearest
from dpscale.base.errors import DataError
from dpscale.base.expressions import INSTEAD, SIGNS, ExpressionReader, Literal, kind_of, spelled, spelled_name
from dpscale.base.numerics import Flags, Integers, NDArray
from dpscale.domain.schema_values import DAY
from dpscale.records.column_values import numbers

FIELD = "data.where"
TAKES = "column = value, joined by and (=, !=, <, <=, >, >=, in (…))"
KINDS = ("number", "text", "date")
SHOWN_BYTES = 1 << 24  # size of changed values that the scheduler sees, because the true one shows their number


@dataclass(frozen=True)
class Condition:
    """Condition on one column. `sign` is one of SIGNS with a single value, or `in`."""

    column: str
    sign: str
    values: tuple[Literal, ...]

    @property
    def kind(self) -> str:
        """Kind of the values: number, text or date."""
        return kind_of(self.values[0])

    def __str__(self) -> str:
        values = ", ".join(map(spelled, self.values))
        return f"{spelled_name(self.column)} {self.sign} {f'({values})' if self.sign == 'in' else values}"


@dataclass(frozen=True)
class Where:
    """Conjunction of conditions; without conditions every row matches."""

    conditions: tuple[Condition, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.conditions)

    def __str__(self) -> str:
        """Return the filter in canonical form."""
        return " and ".join(map(str, self.conditions))

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that the filter reads."""
        return tuple(dict.fromkeys(condition.column for condition in self.conditions))


EVERYTHING = Where()


def read_where(text: str) -> Where:
    """Parse a filter. Raises DataError with the position of a syntax error."""
    return _Filter(text).whole()


class _Filter(ExpressionReader):
    """Grammar of one filter."""

    field, takes = FIELD, TAKES
    example = "a filter as year = 2025 and town in ('Bonn', 'Ulm')"
    instead = INSTEAD | {"or": "for several values of a column write in (…)", "not": "write !="}

    def whole(self) -> Where:
        """Read the whole text: conditions joined by "and"."""
        conditions = [self._condition()]
        while self.next.kind != "end":
            self.expect("and")
            conditions.append(self._condition())
        return Where(tuple(conditions))

    def _condition(self) -> Condition:
        """Read a condition on a column: a sign and a literal, or `in` and a list."""
        column = self.name("the name of a column, in `…` if it contains blanks")
        sign = self.take()
        if sign.text in SIGNS:
            return Condition(column, sign.text, (self.literal(),))
        if sign.text.lower() != "in" or sign.kind != "word":
            self.refuse(sign, "=, !=, <, <=, >, >= or in (…)")
        return Condition(column, "in", self.literals())


COMPARE: Mapping[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
    "in": operator.eq}  # fmt: skip
ARROW = {"=": "equal", "!=": "not_equal", "<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal",
         "in": "equal"}  # fmt: skip
TIME = re.compile(
    r"(\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?)?)( ?(?:Z|UTC|GMT)|[+-]\d\d(?::?\d\d)?)?", re.ASCII
)
PER_SECOND, EPOCH = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}, datetime(1970, 1, 1)
REMEDY = {"text": "write numbers and dates without quotes", "number": "write texts in quotes, and dates as 2025-01-31",
          "date": "write numbers plainly, and texts in quotes"}  # fmt: skip


def select_rows(
    where: Where, batches: Iterable[dict[str, pa.Array]], names: Sequence[str]
) -> Iterator[dict[str, pa.Array]]:
    """Yield the matching rows of batches, in the named columns; batches contain the filter's columns too."""
    for batch in batches:
        flags = np.logical_and.reduce([matching(condition, batch[condition.column]) for condition in where.conditions])
        if flags.all():
            yield {name: batch[name] for name in names}
        elif flags.any():
            mask = pa.array(flags)
            yield {name: batch[name].filter(mask) for name in names}


def reduce_filter(where: Where, fixed: Mapping[str, str | None]) -> Where | None:
    """Return the conditions not decided by the columns that a file's path fixes; None if no row can match.

    `fixed` has the text of each column that a folder states, such as year=2025; all rows of the file have that value.
    """
    decided = [condition for condition in where.conditions if condition.column in fixed]
    if not decided:
        return where
    if not all(_matches_name(condition, fixed[condition.column]) for condition in decided):
        return None
    undecided = tuple(condition for condition in where.conditions if condition.column not in fixed)
    return Where(undecided) if undecided else EVERYTHING


@lru_cache(maxsize=1 << 14)
def _matches_name(condition: Condition, name: str | None) -> bool:
    """Return whether the value in a folder's name, which many files have, matches a condition."""
    return bool(matching(condition, pa.array([name], pa.string()))[0])


def check_column(condition: Condition, present: Iterable[str], known: Iterable[str]) -> None:
    """Raise DataError if the column is absent; the error may name only the columns in `known`."""
    if (name := condition.column) not in set(present):
        remedy = nearest(name, known).replace("there are:", "those of the domain file are")
        raise DataError(FIELD, f"no column {name!r}", "columns of the data, in the same case", remedy)


def check_type(condition: Condition, kind: pa.DataType) -> None:
    """Raise DataError if the condition's values cannot be compared with a column of this type.

    Texts are compared with any kind of condition, because they may contain numbers and dates. A column of nulls matches
    nothing and fits every condition.
    """
    kind = text_kind(kind.value_type if types.is_dictionary(kind) else kind)
    moments = types.is_date(kind) or types.is_timestamp(kind)
    counted = types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) or types.is_boolean(kind)
    fits = {"number": counted or is_text(kind), "text": is_text(kind), "date": moments or is_text(kind)}
    if not (fits[condition.kind] or types.is_null(kind)):
        raise DataError(FIELD, f"a {condition.kind} for column {condition.column!r} of type {kind}",
                        "a date" if moments else "a number" if counted else "columns of numbers, texts or dates",
                        REMEDY[condition.kind])  # fmt: skip


def matching(condition: Condition, column: pa.Array) -> Flags:
    """Return the rows of a column that match a condition.

    Nulls match nothing: the entry for them, the last one, is false. A dictionary's entries are compared once each.
    """
    if pa.types.is_null(column.type) or (len(column) and column.null_count == len(column)):
        return np.zeros(len(column), dtype=bool)

    check_type(condition, column.type)
    column = as_text(column)
    if not pa.types.is_dictionary(column.type) and (is_text(column.type) or pa.types.is_decimal(column.type)):
        column = column.dictionary_encode()
    if pa.types.is_dictionary(column.type):
        entries = np.append(_MATCHING[condition.kind](condition, column.dictionary), False)
        rows = column.indices.cast(pa.int64()).fill_null(len(entries) - 1)
        return np.asarray(entries[rows.to_numpy(zero_copy_only=False)])

    return _MATCHING[condition.kind](condition, column)


def _numbers(condition: Condition, column: pa.Array) -> Flags:
    parsed = numbers(column)
    assert parsed is not None  # check_type has refused other types
    return parsed.map(lambda values: _any(condition, values, condition.values)) & ~(parsed.missing | parsed.foreign)


def _texts(condition: Condition, column: pa.Array) -> Flags:
    """Return for which rows a text matches the condition with any of its values; nulls never match."""
    texts = column.cast(pa.large_binary())  # binary: bytes need not be valid UTF-8
    matches = [
        pc.call_function(ARROW[condition.sign], [texts, pa.scalar(str(value).encode(), pa.large_binary())])
        for value in condition.values
    ]
    return np.logical_or.reduce(
        [np.asarray(flags.fill_null(False).to_numpy(zero_copy_only=False)) for flags in matches]
    )


def _dates(condition: Condition, column: pa.Array) -> Flags:
    ticks, known, second = _ticks(column)
    values = [_seconds(value) * second for value in condition.values if isinstance(value, datetime)]
    return _any(condition, ticks, values) & known


def _any(condition: Condition, values: NDArray[Any], wanted: Sequence[Literal]) -> Flags:
    return np.logical_or.reduce([np.asarray(COMPARE[condition.sign](values, value), dtype=bool) for value in wanted])


def _seconds(moment: datetime) -> int:
    """Return seconds since 1970; literals have whole seconds."""
    since = moment - EPOCH
    return since.days * DAY + since.seconds


def _ticks(column: pa.Array) -> tuple[Integers, Flags, int]:
    """Return moments as integer ticks, the rows that have one, and the ticks per second."""
    if is_text(column.type):
        return _parse_times(column)

    if pa.types.is_date(column.type):
        column = column.cast(pa.date32()).cast(pa.int32()).cast(pa.int64())
        ticks, second = _filled(column) * DAY, 1
    else:
        second = PER_SECOND[column.type.unit]
        ticks = _filled(column.cast(pa.int64()))
    return ticks, ~np.asarray(column.is_null().to_numpy(zero_copy_only=False), dtype=bool), second


def _filled(column: pa.Array) -> Integers:
    return np.asarray(column.fill_null(0).to_numpy(zero_copy_only=False), dtype=np.int64)


def _parse_times(texts: pa.Array) -> tuple[Integers, Flags, int]:
    """Return the moments of texts that are a date, or a date and time."""
    raw = texts.cast(pa.large_binary()).to_pylist()
    moments = [None if text is None else _parse_time(text.decode("utf-8", "replace").strip()) for text in raw]
    ticks = np.array([moment or 0 for moment in moments], dtype=np.int64)
    return ticks, np.array([moment is not None for moment in moments], dtype=bool), PER_SECOND["us"]


def _parse_time(text: str) -> int | None:
    """Return microseconds since 1970; None for a text that is not a time."""
    if (parts := TIME.fullmatch(text)) is None:
        return None

    zone = "" if parts[2] is None else parts[2] if parts[2][0] in "+-" else "Z"
    try:
        moment = datetime.fromisoformat(parts[1] + zone)
    except ValueError:
        return None

    if moment.tzinfo is not None:
        moment = moment.astimezone(UTC).replace(tzinfo=None)
    return _seconds(moment) * PER_SECOND["us"] + moment.microsecond


_MATCHING = {"number": _numbers, "text": _texts, "date": _dates}


@dataclass(frozen=True, eq=False)
class RowMask:
    """Packed mask of a partition's first `count` rows. Private, so its repr shows nothing."""

    count: int = field(repr=False)
    bits: NDArray[np.uint8] = field(repr=False)

    @classmethod
    def of(cls, flags: Flags) -> Self:
        return cls(len(flags), np.packbits(flags))

    def within(self, first: int, rows: int) -> Flags:
        """Return the mask of `rows` rows starting at `first`.

        `bits` has one bit for each row of the partition, the first in the highest bit of a byte.
        """
        start, end = first // 8, -(-min(first + rows, self.count) // 8)
        flags = np.zeros(rows, dtype=bool)
        inside = np.unpackbits(self.bits[start:end]).view(bool)[first - 8 * start :][:rows]
        flags[: len(inside)] = inside
        return flags

    def clip(self, codes: NDArray[Any], names: Sequence[str], first: int) -> None:
        """Change the codes of a batch in place; a mask alone changes none.

        Parameters
        ----------
        codes : ndarray of unsigned integers, shape (attributes, rows)
        names : sequence of str
            Attributes of the codes.
        first : int
            First row of the batch.
        """

    @property
    def places(self) -> NDArray[np.int64]:
        """Indices of the marked rows, ascending."""
        return np.flatnonzero(self.within(0, self.count))

    def __sizeof__(self) -> int:
        return self.bits.nbytes

    def __len__(self) -> int:
        return int(np.unpackbits(self.bits).sum())


@dataclass(frozen=True, eq=False)
class ClippedRows(RowMask):
    """Mask of a partition, with other codes of some numbers: places of rows, ascending, and their codes, by name."""

    changes: Mapping[str, tuple[Integers, NDArray[np.uint32]]] = field(repr=False, default_factory=dict)

    @classmethod
    def of_changes(cls, mask: RowMask | None, changes: Mapping[str, tuple[Integers, NDArray[np.uint32]]]) -> Self:
        """Return the changes with the rows of a mask, if there is one."""
        count, bits = (mask.count, mask.bits) if mask is not None else (0, np.empty(0, np.uint8))
        return cls(count, bits, changes)

    def clip(self, codes: NDArray[Any], names: Sequence[str], first: int) -> None:
        """Replace the codes of changed rows in place.

        `codes` has shape (names, rows) and starts at row `first` of the partition.
        """
        for name in set(self.changes).intersection(names):
            places, changed = self.changes[name]
            start, end = np.searchsorted(places, [first, first + codes.shape[1]])
            codes[names.index(name), places[start:end] - first] = changed[start:end]

    def __sizeof__(self) -> int:
        return SHOWN_BYTES
