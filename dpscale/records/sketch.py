"""Draft of a domain file from data. The draft is private: its bounds and values were read from records.

The draft is complete: once a person has replaced its bounds and values by public ones and set `reviewed = true`, it is
a valid domain file. Columns that a domain cannot represent (nested columns, too many texts, only nulls) and columns
that look like identifiers are omitted with a comment.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import tomli_w
from numpy.typing import NDArray

from dpscale.base.arrow import is_text, pa, pc
from dpscale.base.errors import DataError
from dpscale.domain import Domain
from dpscale.domain.attribute import EXACT, LARGEST, NULL_LABEL, OUTSIDE_LABEL, PERIODS, name_of, numbered
from dpscale.records.column_values import Numbers, days, numbers
from dpscale.records.files import other_delimiter
from dpscale.records.formats import PLAIN, Dialect
from dpscale.records.origin import Origin

WARNING = (
    "This draft is PRIVATE: it was read off the records. Replace its bounds and values by ones that are known without "
    "the data (a code book, a law, common sense), then set reviewed = true: no release takes it before. "
    "Do not publish it."
)
MOST_VALUES = 64
MOST_INTEGERS = 1000
BINS = 16
CODE = r"^[+-]?0\d"  # a text such as 01 is a code, not a number
MOST_LETTERS = 4  # of a prefix
MOST_PERIODS = 400
CALENDAR = (-719_162, 2_932_530)  # the first days of the years 1 and 9999
FEWEST_IDS, MOST_IDS = (
    20,
    100_000,
)  # rows: with fewer, distinct values do not indicate an id; with more, only the first are examined
FEW = 0.1  # of a column's texts: a smaller share of non-numbers counts as typing errors
WRITTEN = r"\s*\d{1,4}[./]\d{1,2}[./]\d{2,4}\s*"  # a day not written as 2025-01-31
TRUTH = {"true", "false", "yes", "no", "y", "n", "t", "f"}


def sketch(path: str, dialect: Dialect = PLAIN, lake: str = "") -> str:
    """Return a draft domain file for the table at `path`, with a privacy warning at the top.

    Parameters
    ----------
    path : str
    dialect : Dialect
        Format of the files.
    lake : str
        Format of a table with a log; empty for plain files.
    """
    table = Origin(dialect=dialect, format=lake).table(path, Domain({"unknown": 2}))
    listing = table.partitions[: 1 if table.partitions[0].format.lists_columns else None]
    seen = {name: _Seen() for partition in listing for name in partition.columns() if name}
    if len(seen) == 1 and not dialect.delimiter and (mark := other_delimiter(table.partitions[0].path, dialect.format)):
        raise DataError(
            "data.path",
            f"one column, whose name contains {mark!r}",
            "fields separated by commas",
            f"set --delimiter {mark!r} here, and delimiter in [data]",
        )
    for partition in table.partitions:
        for batch in partition.batches(list(seen)):
            for name, one in seen.items():
                one.add(batch[name])
    drafts = {name: one.draft() for name, one in seen.items()}
    attributes = {name: draft for name, draft in drafts.items() if isinstance(draft, dict)}
    if not attributes:
        raise DataError(
            "data.path", f"no column in {path} that a domain can describe", "numbers or texts", "convert some columns"
        )
    warning = [f"# {line}" for line in WARNING.replace(". ", ".\n").split("\n")]
    left_out = [f"# left out: {name!r} ({why})" for name, why in drafts.items() if isinstance(why, str)]
    constant = [f"# {name!r} has only one value: add its other possible values, or omit it"
                for name in attributes if seen[name].constant]  # fmt: skip
    return "\n".join([*warning, *left_out, *constant, "", tomli_w.dumps({"reviewed": False, "attributes": attributes})])


class _Seen:
    """Summary of one column: a range, and a bounded number of texts."""

    def __init__(self) -> None:
        self.texts: set[str] = set()
        self.low, self.high = float("inf"), float("-inf")
        self.whole = self.numeric = self.textual = True
        self.null_text = self.null_number = False
        self.foreign_type = ""
        self.days, self.truths = _Days(), True
        self.prefixes: dict[int, set[str]] = {length: set() for length in range(1, MOST_LETTERS + 1)}
        self.rows, self.distinct = 0, set[Any]()
        self.told = self.slips = 0
        self.coded = False

    def add(self, column: pa.Array) -> None:
        column = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
        self.days.add(column)
        self._add_distinct(column)
        parsed = numbers(column)
        if parsed is None:
            self.foreign_type = "" if self.days.all_dates else str(column.type)
            self.numeric = self.textual = self.truths = False
            return
        self._add_numbers(parsed)
        if not (is_text(column.type) or pa.types.is_boolean(column.type) or pa.types.is_null(column.type)):
            self.truths = False
        if is_text(column.type):
            self._add_texts(column)
        elif not pa.types.is_null(column.type):
            self.textual = False
        self.null_text |= bool(column.null_count)

    def _add_distinct(self, column: pa.Array) -> None:
        """Collect distinct values of the first rows, from which ids are recognised; floats are ignored."""
        if self.rows >= MOST_IDS or not (is_text(column.type) or pa.types.is_integer(column.type)):
            return
        first = column.slice(0, MOST_IDS - self.rows).drop_null()
        self.rows += len(first)
        self.distinct.update(first.cast(pa.large_binary()).to_pylist() if is_text(column.type) else first.to_pylist())

    @property
    def constant(self) -> bool:
        """Whether the column has a single value."""
        return len(self.texts) == 1 if self.textual and self.texts else self.low == self.high

    def _add_numbers(self, parsed: Numbers) -> None:
        self.numeric &= not parsed.foreign.any()
        self.slips += int(parsed.foreign.sum())
        self.told += int((~parsed.missing).sum())
        self.null_number |= bool(parsed.missing.any())
        values = parsed.values[~(parsed.missing | parsed.foreign) & np.isfinite(parsed.values)]
        if len(values):
            self.low, self.high = min(self.low, float(values.min())), max(self.high, float(values.max()))
            self.whole &= bool((values == np.rint(values)).all())

    def _add_texts(self, column: pa.Array) -> None:
        try:
            distinct = pc.unique(column).drop_null().cast(pa.large_binary()).cast(pa.large_string())
        except pa.ArrowInvalid:
            self.foreign_type = "text that is not UTF-8"
            return
        self.coded |= bool(pc.any(pc.match_substring_regex(distinct, CODE)).as_py())
        self.truths &= {text.lower() for text in distinct.slice(0, len(TRUTH) * 2).to_pylist()} <= TRUTH
        for length, known in self.prefixes.items():
            if len(known) <= MOST_VALUES:
                known.update(pc.unique(pc.utf8_slice_codeunits(distinct, 0, length)).to_pylist())
        self.texts.update(distinct.slice(0, MOST_VALUES + 1 if len(self.texts) <= MOST_VALUES else 0).to_pylist())

    def draft(self) -> dict[str, Any] | str:
        """Return the attribute's table of the domain file, or the reason why the column is omitted."""
        if self.foreign_type:
            return f"type {self.foreign_type}"
        if self.days.any and self.days.all_dates:
            return {**self.days.draft(), "outside": "clip", "nulls": "category" if self.days.nulls else "reject"}
        if self.rows >= FEWEST_IDS and len(self.distinct) == self.rows:
            return "an id: a value for every row; it may be the privacy_unit of a job"
        if self.truths and (self.texts or self.low <= self.high):
            nulls = "category" if self.null_text else "reject"
            return {"kind": "boolean", "outside": "category", "nulls": nulls}
        few = self.numeric or (self.textual and self.slips < FEW * self.told)
        if few and not self.coded and self.low <= self.high:
            nulls = "category" if self.null_number else "reject"
            slips = {} if self.numeric else {"unparsable": "category"}
            return {**self._numeric_kind(), "outside": "clip", "nulls": nulls, **slips}
        if not self.textual:
            return "nothing but nulls" if self.numeric else "numbers in one file, texts in another"
        if self.texts and all(re.fullmatch(WRITTEN, text) for text in self.texts):
            return "days that are not written as 2025-01-31: write them so, for kind date"
        texts, nulls = sorted(self.texts - {OUTSIDE_LABEL, NULL_LABEL}), "category" if self.null_text else "reject"
        if len(texts) > MOST_VALUES:
            return self._prefix_kind(nulls)
        if not texts:
            return "nothing but nulls"
        return {"kind": "categories", "values": texts, "outside": "category", "nulls": nulls}

    def _prefix_kind(self, nulls: str) -> dict[str, Any] | str:
        """Return a prefix attribute with the longest prefixes that have few distinct values."""
        for length in sorted(self.prefixes, reverse=True):
            values = sorted(self.prefixes[length] - {OUTSIDE_LABEL, NULL_LABEL, ""})
            if 1 < len(values) <= MOST_VALUES:
                return {"kind": "text-prefix", "length": length, "values": values, "outside": "category",
                        "nulls": nulls}  # fmt: skip
        return f"more than {MOST_VALUES} texts: list them by hand; if they name persons, make it the job's privacy_unit"

    def _numeric_kind(self) -> dict[str, Any]:
        if self.whole and self.high - self.low < MOST_INTEGERS and max(-self.low, self.high) < EXACT - 1:
            return {"kind": "integer", "low": int(self.low), "high": int(max(self.high, self.low + 1))}
        return {"kind": "bins", "edges": _edges(self.low, self.high).tolist()}


class _Days:
    """Summary of a column's dates."""

    def __init__(self) -> None:
        self.all_dates, self.any, self.nulls = True, False, False
        self.low, self.high = np.int64(2**62), np.int64(-(2**62))

    def add(self, column: pa.Array) -> None:
        parsed = days(column) if self.all_dates else None
        self.all_dates = parsed is not None and not parsed.foreign.any()
        if parsed is None:
            return
        self.nulls |= bool(parsed.missing.any())
        found = parsed.values[~(parsed.missing | parsed.foreign)]
        if len(found):
            self.any = True
            self.low, self.high = min(self.low, found.min()), max(self.high, found.max())

    def draft(self) -> dict[str, Any]:
        """Return a date attribute with the shortest period that has few enough cells."""
        ends = np.clip(np.array([self.low, self.high]), *CALENDAR)
        spans = {by: numbered(by, ends).tolist() for by in PERIODS if by != "week"}
        by = next((by for by, (low, high) in spans.items() if high - low < MOST_PERIODS), "year")
        low, high = spans[by]
        return {"kind": "date", "by": by, "low": name_of(by, low), "high": name_of(by, max(high, low + 1))}


def _edges(low: float, high: float) -> NDArray[np.float64]:
    """Return the edges of equal bins; fewer if floats cannot distinguish them."""
    if low == high:
        with np.errstate(
            over="ignore"
        ):  # the largest float overflows; take two steps because it has a neighbour on one side only
            low = max(np.nextafter(np.nextafter(low, -np.inf), -np.inf), -LARGEST)
            high = min(np.nextafter(np.nextafter(high, np.inf), np.inf), LARGEST)
    parts = np.arange(BINS + 1) / BINS
    return np.unique(low * (1 - parts) + high * parts)
