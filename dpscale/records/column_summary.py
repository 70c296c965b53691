"""Summary of a column, from which `sketch` drafts an attribute: ranges, a bounded number of values, dates by format.

A summary is private: it contains values of records.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Any

import numpy as np

from dpscale.base.arrow import is_text, pa, pc
from dpscale.domain.attribute import EXACT, LARGEST, PERIODS, name_of, numbered
from dpscale.records.column_values import Numbers, days, numbers

MOST_VALUES = 64
BINS, MOST_EDGES = 16, 24
MOST_INTEGERS, EXACT_INTEGERS = 100, 32  # cells of an attribute of integers, and of one whose ends stay as they are
SKEWED = 0.75  # share of the numbers in one of equal bins
CODE = r"^[+-]?0\d"  # a text such as 01 is a code, not a number
MOST_LETTERS = 4  # of a prefix
MOST_PERIODS = 100
CALENDAR = (-719_162, 2_932_530)  # the first days of the years 1 and 9999
MOST_IDS = 100_000  # rows from which distinct values are collected
MOST_SAMPLED = 10_000  # numbers and texts from which the shape of a column is judged
FEW = 0.1  # of a column's texts: a smaller share of non-numbers or non-dates counts as typing errors
TRUTH = {"true", "false", "yes", "no", "y", "n", "t", "f"}
FORMATS = (
    "%Y/%m/%d", "%m/%d/%Y", "%d/%m/%Y", "%d.%m.%Y", "%Y.%m.%d", "%d-%m-%Y", "%m-%d-%Y", "%b %d %Y", "%b %d, %Y",
    "%d %b %Y", "%d-%b-%Y", "%Y-%b-%d", "%m/%d/%y", "%d/%m/%y", "%d.%m.%y", "%d-%b-%y", "%Y-%m", "%b %Y", "%m/%Y",
)  # fmt: skip
SHORT_CODE = re.compile(r"[A-Za-z]{0,4}[-./ ]?\d[\w./-]{0,11}")
EMAIL = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")


class ColumnSummary:
    """Summary of one column: a range, a bounded number of texts, and the dates of each format."""

    def __init__(self) -> None:
        self.texts: set[str] = set()
        self.low, self.high = float("inf"), float("-inf")
        self.whole = self.numeric = self.textual = True
        self.null_text = self.null_number = False
        self.foreign_type = ""
        self.truths = True
        self.dates = [DateSummary(form) for form in ("", *FORMATS)]
        self.prefixes: dict[int, set[str]] = {length: set() for length in range(1, MOST_LETTERS + 1)}
        self.rows, self.distinct = 0, set[Any]()
        self.present = self.slips = 0
        self.coded = False
        self.numbers: list[float] = []
        self.sampled: list[str] = []

    def add(self, column: pa.Array) -> None:
        """Add the values of a batch."""
        column = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
        self.dates = [date for date in self.dates if date.add(column)]
        self._add_distinct(column)
        parsed = numbers(column)

        if parsed is None:
            self.foreign_type = "" if self.dates else str(column.type)
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

    @property
    def constant(self) -> bool:
        """Whether the column has a single value."""
        return len(self.texts) == 1 if self.textual and self.texts else self.low == self.high

    @property
    def mostly_numbers(self) -> bool:
        """Whether all values are numbers, but for a few texts."""
        few = self.numeric or (self.textual and self.slips < FEW * self.present)
        return few and not self.coded and self.low <= self.high

    @property
    def best_dates(self) -> list[DateSummary]:
        """Formats of dates that almost all values have, with the fewest exceptions."""
        fitting = [date for date in self.dates if date.present and date.foreign <= FEW * date.present]
        fewest = min((one.foreign for one in fitting), default=0)
        return [one for one in fitting if one.foreign == fewest]

    def numeric_kind(self) -> dict[str, Any]:
        """Return integers if there are few, otherwise bins."""
        low, high, span = self.low, self.high, self.high - self.low
        if self.whole and span < MOST_INTEGERS and max(-low, high) < EXACT - 5:
            if span >= EXACT_INTEGERS:
                low, high = 5 * math.floor(low / 5), 5 * math.ceil(high / 5)
            return {"kind": "integer", "low": int(low), "high": int(max(high, low + 1))}

        edges, sample = round_edges(low, high, self.whole), np.array(self.numbers)
        if len(edges) > 2 and np.histogram(sample, edges)[0].max() > SKEWED * len(sample):
            grown = growing_edges(sample, low, high)
            edges = grown if len(grown) > 2 else edges

        return {"kind": "bins", "edges": edges}

    def share(self, pattern: re.Pattern[str]) -> float:
        """Return the share of the sampled texts that a pattern matches as a whole."""
        return sum(bool(pattern.fullmatch(text)) for text in self.sampled) / max(len(self.sampled), 1)

    def _add_distinct(self, column: pa.Array) -> None:
        """Collect distinct values of the first rows, from which ids are recognised; floats are ignored."""
        if self.rows >= MOST_IDS or not (is_text(column.type) or pa.types.is_integer(column.type)):
            return
        first = column.slice(0, MOST_IDS - self.rows).drop_null()
        self.rows += len(first)
        self.distinct.update(first.cast(pa.large_binary()).to_pylist() if is_text(column.type) else first.to_pylist())

    def _add_numbers(self, parsed: Numbers) -> None:
        self.numeric &= not parsed.foreign.any()
        self.slips += int(parsed.foreign.sum())
        self.present += int((~parsed.missing).sum())
        self.null_number |= bool(parsed.missing.any())
        values = parsed.values[~(parsed.missing | parsed.foreign) & np.isfinite(parsed.values)]

        if len(values):
            self.low, self.high = min(self.low, float(values.min())), max(self.high, float(values.max()))
            self.whole &= bool((values == np.rint(values)).all())
            self.numbers += values[: MOST_SAMPLED - len(self.numbers)].tolist()

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

        self.sampled += distinct.slice(0, MOST_SAMPLED - len(self.sampled)).to_pylist()
        self.texts.update(distinct.slice(0, MOST_VALUES + 1 if len(self.texts) <= MOST_VALUES else 0).to_pylist())


class DateSummary:
    """Summary of a column as dates of one format; ISO 8601, or of a column of dates, if it is empty."""

    def __init__(self, form: str) -> None:
        self.form = form
        self.present, self.foreign, self.nulls = 0, 0, False
        self.low, self.high = np.int64(2**62), np.int64(-(2**62))

    def add(self, column: pa.Array) -> bool:
        """Add the values of a batch, and return whether the column may consist of such dates."""
        if self.form and not (is_text(column.type) or pa.types.is_null(column.type)):
            return False

        first = days(column.slice(0, 100), form=self.form)
        if first is None or first.foreign.sum() > 0.5 * len(first.foreign):
            return False

        parsed = days(column, form=self.form)
        assert parsed is not None
        self.nulls |= bool(parsed.missing.any())
        self.present += int((~parsed.missing).sum())
        self.foreign += int(parsed.foreign.sum())
        found = parsed.values[~(parsed.missing | parsed.foreign)]
        if len(found):
            self.low, self.high = min(self.low, found.min()), max(self.high, found.max())

        return True

    def draft(self) -> dict[str, Any]:
        """Return a date attribute with the shortest period that has few enough cells."""
        ends = np.clip(np.array([self.low, self.high]), *CALENDAR)
        periods = [by for by in PERIODS if by != "week" and ("d" in self.form or not self.form or by != "day")]
        spans = {by: numbered(by, ends).tolist() for by in periods}
        by = next((by for by, (low, high) in spans.items() if high - low < MOST_PERIODS), "year")
        low, high = spans[by]
        form = {"format": self.form} if self.form else {}
        slips = {"unparsable": "category"} if self.foreign else {}

        return {"kind": "date", "by": by, "low": name_of(by, low), "high": name_of(by, max(high, low + 1)), **form,
                "outside": "clip", "nulls": "category" if self.nulls else "reject", **slips}  # fmt: skip


def round_edges(low: float, high: float, whole: bool = False) -> list[float]:
    """Return edges of at most 16 equal bins that are multiples of 1, 2 or 5 times a power of ten.

    Parameters
    ----------
    low, high : float
        Smallest and largest number.
    whole : bool
        Whether the edges are integers.

    Examples
    --------
    >>> round_edges(3.1, 48.2)
    [0, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50]
    >>> round_edges(0.02, 0.11)
    [0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.09, 0.1, 0.11]
    """
    first, last = Fraction(repr(low)), Fraction(repr(high))
    if first == last:
        first, last = (first + sign * (abs(first) / 10 or 1) for sign in (-1, 1))
    span = last - first
    power = max(_exponent(span / BINS), 0 if whole else -400)

    for step in (Fraction(10) ** (power + k) * digit for k in range(3) for digit in (1, 2, 5)):
        begin, end = math.floor(first / step), math.ceil(last / step)
        if end - begin <= BINS:
            break

    edges = sorted({_plain(step * i) for i in range(begin, end + 1)})
    while len(edges) < 3:  # floats cannot distinguish more
        ends = np.nextafter(edges[0], -LARGEST).item(), np.nextafter(edges[-1], LARGEST).item()
        edges = sorted({*edges, *ends})

    return edges


def growing_edges(sample: np.ndarray[Any, Any], low: float, high: float) -> list[float]:
    """Return edges 1, 2, 5, 10, 20, … times a power of ten on each side of zero, for a skewed column."""
    sizes = np.abs(sample[sample != 0])
    least, most = _exponent(Fraction(repr(float(np.quantile(sizes, 0.05))))), max(-low, high)
    for digits in ((1, 2, 5), (1,)):
        series = [
            Fraction(10) ** k * digit for k in range(least, _exponent(Fraction(repr(most))) + 2) for digit in digits
        ]
        positive = [value for i, value in enumerate(series) if i == 0 or series[i - 1] < Fraction(repr(most))]
        if len(positive) <= MOST_EDGES:
            break

    above = [one for i, one in enumerate(positive) if high > 0 and (i == 0 or positive[i - 1] < high)]
    below = [-one for i, one in enumerate(positive) if low < 0 and (i == 0 or positive[i - 1] < -low)]
    return sorted({_plain(one) for one in (*below, Fraction(0), *above)})


def _exponent(size: Fraction) -> int:
    """Return the largest k with 10^k at most a positive number."""
    k = len(str(size.numerator)) - len(str(size.denominator))
    return k if Fraction(10) ** k <= size else k - 1


def _plain(edge: Fraction) -> float:
    """Return an edge as an integer if it is one that floats represent, otherwise as the nearest float."""
    if edge.denominator == 1 and abs(edge) < EXACT:
        return int(edge)
    return float(min(max(edge, -Fraction(LARGEST)), Fraction(LARGEST)))
