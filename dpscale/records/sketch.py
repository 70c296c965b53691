"""Draft of a domain file from summaries of columns. Both are private: bounds and values were read from records.

The draft is complete: once a person has replaced its bounds and values by public ones and set `reviewed = true`, it is
a valid domain file. Columns that a domain cannot represent (nested columns, too many texts, only nulls) and columns
that look like identifiers, names or free text are omitted with a comment that states the reason. Rules between columns
that hold in all records are proposed in comments.

The summary of a column has its range, a bounded number of values, and the number of dates by format.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from dpscale.base.arrow import as_text, is_text, pa, pc
from dpscale.base.display import display_path, nearest
from dpscale.base.errors import DataError, DomainError
from dpscale.domain import Domain
from dpscale.domain.attribute import EXACT, LARGEST, NULL_LABEL, OUTSIDE_LABEL, PERIODS, name_of, numbered
from dpscale.domain.domain_schema import ALSO
from dpscale.domain.number import MOST_PARTS
from dpscale.records.column_values import NOTHING, Numbers, days, numbers
from dpscale.records.files import PLAIN, Dialect
from dpscale.records.formats import other_delimiter
from dpscale.records.frames import as_arrow, frame_columns, read_stream
from dpscale.records.origin import Origin
from dpscale.records.sketched_rules import RuleSummary
from dpscale.storage.files import is_path, write_private

MOST_VALUES = 64  # texts or prefixes of an attribute
# equal bins of a column; positive edges up to which a skewed column has 1, 2 and 5 times powers of ten
BINS, MOST_EDGES = 16, 24
MOST_INTEGERS, EXACT_INTEGERS = 100, 32  # cells of an attribute of integers, and of one whose ends stay as they are
SKEWED = 0.75  # share of the numbers in one of equal bins
CODE = r"^[+-]?0\d"  # a text such as 01 is a code, not a number
MOST_LETTERS = 4  # of a prefix
MOST_PERIODS = 100  # cells of an attribute of dates, unless even years are more
CALENDAR = (-719_162, 2_932_530)  # the first days of the years 1 and 9999
MOST_IDS = 100_000  # rows from which distinct values are collected
MOST_SAMPLED = 10_000  # numbers and texts from which the shape of a column is judged
FEW = 0.1  # of a column's texts: a smaller share of non-numbers or non-dates counts as typing errors
TRUTH = {"true", "false"}  # other pairs of texts stay texts, as synthetic rows have them
FORMATS = (
    "%Y/%m/%d", "%m/%d/%Y", "%d/%m/%Y", "%d.%m.%Y", "%Y.%m.%d", "%d-%m-%Y", "%m-%d-%Y", "%b %d %Y", "%b %d, %Y",
    "%d %b %Y", "%d-%b-%Y", "%Y-%b-%d", "%m/%d/%y", "%d/%m/%y", "%d.%m.%y", "%d-%b-%y", "%Y-%m", "%b %Y", "%m/%Y",
)  # fmt: skip
SHORT_CODE = re.compile(r"[A-Za-z]{0,4}[-./ ]?\d[\w./-]{0,11}")
EMAIL = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")


class ColumnSummary:
    """Summary of one column: a range, a bounded number of texts, and the dates of each format."""

    def __init__(self) -> None:
        """Start without values; flags of properties are true until a value contradicts them.

        `rows` and `distinct` are of the first rows, by which ids are recognised; `slips` counts the texts among
        numbers, `coded` marks codes with leading zeros, and `missing` are texts that mean a missing value. `prefixes`
        have the beginnings of texts by their length.
        """
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
        self.missing: set[str] = set()

    def add(self, column: pa.Array) -> None:
        """Add the values of a batch."""
        column = as_text(column.dictionary_decode() if pa.types.is_dictionary(column.type) else column)
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
        is_numeric = self.numeric or (self.textual and self.slips < FEW * self.present)
        return is_numeric and not self.coded and self.low <= self.high

    @property
    def best_dates(self) -> list[DateSummary]:
        """Formats of dates that almost all values have, with the fewest exceptions."""
        fitting = [date for date in self.dates if date.present and date.foreign <= FEW * date.present]
        fewest = min((date.foreign for date in fitting), default=0)
        return [date for date in fitting if date.foreign == fewest]

    def numeric_kind(self) -> dict[str, Any]:
        """Return integers if there are few, otherwise bins.

        Bins of equal width are replaced if one of them has more than the share SKEWED of the sampled numbers.
        """
        low, high, span = self.low, self.high, self.high - self.low
        # few whole numbers; the ends of a wider range are rounded to multiples of five
        if self.whole and span < MOST_INTEGERS and max(-low, high) < EXACT - 5:
            if span >= EXACT_INTEGERS:
                low, high = 5 * math.floor(low / 5), 5 * math.ceil(high / 5)
            return {"kind": "integer", "low": int(low), "high": int(max(high, low + 1))}

        edges, sample = round_edges(low, high, self.whole), np.array(self.numbers)
        # most numbers in one bin: the column is skewed
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
        """Add the numbers of a column to its summary: range, whether whole, a sample, and counts of other texts."""
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
        """Add the texts of a column to its summary: distinct values, beginnings, and whether they are truth values."""
        try:
            distinct = pc.unique(column).drop_null().cast(pa.large_binary()).cast(pa.large_string())
        except pa.ArrowInvalid:
            self.foreign_type = "text that is not UTF-8"
            return

        self.coded |= bool(pc.any(pc.match_substring_regex(distinct, CODE)).as_py())
        words = pc.utf8_lower(pc.utf8_trim_whitespace(distinct))
        self.missing.update(distinct.filter(pc.is_in(words, pa.array(NOTHING[1:], words.type))).to_pylist())
        self.truths &= {text.lower() for text in distinct.slice(0, len(TRUTH) * 4).to_pylist()} <= TRUTH
        for length, known in self.prefixes.items():
            # more beginnings than a domain can list are not of use
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
        known_days = parsed.values[~(parsed.missing | parsed.foreign)]
        if len(known_days):
            self.low, self.high = min(self.low, known_days.min()), max(self.high, known_days.max())

        return True

    def draft(self) -> dict[str, Any]:
        """Return a date attribute with the shortest period that has few enough cells.

        A format without a day cannot have periods of days.
        """
        ends = np.clip(np.array([self.low, self.high]), *CALENDAR)
        # weeks are never proposed, and days need a format with a day
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

    # the smallest step that gives at most BINS bins
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
    """Return edges 1, 2, 5, 10, 20, … times a power of ten on each side of zero, for a skewed column.

    The first edge is near the 5 % quantile of the absolute values. Without room for 1, 2 and 5 only powers of ten are
    used. On each side the series ends with the first edge at or beyond the extreme value.

    `series` are the positive edges as exact fractions, so that 0.1 is 1/10; `least` and `most` bound their powers of
    ten. `low` and `high` are the extreme values of the column, `sample` some of its values.
    """
    sizes = np.abs(sample[sample != 0])
    least, most = _exponent(Fraction(repr(float(np.quantile(sizes, 0.05))))), max(-low, high)
    for digits in ((1, 2, 5), (1,)):
        series = [
            Fraction(10) ** k * digit for k in range(least, _exponent(Fraction(repr(most))) + 2) for digit in digits
        ]
        # an edge is needed if the one before is below the largest value
        positive = [value for i, value in enumerate(series) if i == 0 or series[i - 1] < Fraction(repr(most))]
        if len(positive) <= MOST_EDGES:
            break

    above = [edge for i, edge in enumerate(positive) if high > 0 and (i == 0 or positive[i - 1] < high)]
    below = [-edge for i, edge in enumerate(positive) if low < 0 and (i == 0 or positive[i - 1] < -low)]
    return sorted({_plain(edge) for edge in (*below, Fraction(0), *above)})


def _exponent(size: Fraction) -> int:
    """Return the largest k with 10^k at most a positive number."""
    k = len(str(size.numerator)) - len(str(size.denominator))
    return k if Fraction(10) ** k <= size else k - 1


def _plain(edge: Fraction) -> float:
    """Return an edge as an integer if it is one that floats represent, otherwise as the nearest float."""
    if edge.denominator == 1 and abs(edge) < EXACT:
        return int(edge)
    return float(min(max(edge, -Fraction(LARGEST)), Fraction(LARGEST)))


WARNING = (
    "This draft is PRIVATE: it was read off the records. Replace its bounds and values by ones that are known without "
    "the data (a code book, a law, common sense), then set reviewed = true: no release takes it before. "
    "Do not publish it."
)
READERS = 'words for readers, in every table: title, description, unit, and labels = {0 = "alive", 1 = "dead"}'
TITLE = "title"
PLACES = (f'# {TITLE} = ""',)
MOST_LINES, WIDTH = 150, 110  # lines of a draft, and characters of a line
GROUPED = 100_000  # integers from which digits are grouped
FEWEST_IDS = 20  # rows: with fewer, distinct values do not indicate an id
NEARLY_ALL = 0.5  # distinct texts per row
WORDS = 3  # of a text, on average: more are free text
PERSONS = (
    "person|patient|customer|user|member|client|subject|participant|respondent|household|family|employee|"
    "student|account|resident|citizen|driver|device|tailnum|vin|ssn"
)
REGISTERS = (
    "mrn|ref|reference|personnummer|empi|usubjid|subjid|pat_?no|pat_?id|pid|seqn|nhs_?(no|number)|case_?no|study_?id|"
    "hh_?id|nino|tax_?id"
)
ID_NAME = re.compile(rf"(.*_)?(id|ids|uuid|guid|ssn|{REGISTERS})\d?|({PERSONS})(_?(id|key|no|nr|num|number|code))?")
ID_DIGITS = 7  # of whole numbers that are all distinct and have as many digits each: with more than rows need, ids
VALUE = "_value"  # ending of the name of a drafted number, after that of its column
MOST_AMOUNT = 1e12  # limit of a drafted number
NUMBER_STEPS = 1000  # fewest steps between the limits of a drafted number
PERSON_NAME = re.compile(
    r"(.*_)?(name|names|title|author|director|e?_?mail|phone|address|street|url|comment|comments|notes?|description)"
)


@dataclass(frozen=True)
class Sketch:
    """Draft of a domain file. It is private: it contains bounds and values of records.

    Parameters
    ----------
    attributes : mapping of str to dict
        Tables of the attributes by name.
    omitted : mapping of str to str
        Reason why a column has no attribute, by its name.
    notes : tuple of str
        Comments on columns.
    units : tuple of str
        Columns that may identify the privacy unit, the best proposal first.
    rules : tuple of str
        Rules between attributes that hold in all records.
    numbers : mapping of str to dict
        Tables of the numbers by name, for sums and means.

    Examples
    --------
    >>> import pyarrow as pa
    >>> sketch_domain(pa.table({"age": [18, 40, 44], "note": ["a b c", "d e f", "g h i"]}))
    Sketch(2 attributes, 0 columns omitted; private)
    """

    attributes: Mapping[str, Any]
    omitted: Mapping[str, str]
    notes: tuple[str, ...]
    units: tuple[str, ...]
    rules: tuple[str, ...] = ()
    numbers: Mapping[str, Any] = field(default_factory=dict)

    def text(self, reviewed: bool = False) -> str:
        """Return the domain file, with a privacy warning at the top and at most 150 lines for 120 columns.

        Several forms of the attributes, from the most readable one to the shortest, are tried until the file has at
        most MOST_LINES lines. The numbers are left out if they do not fit.

        Parameters
        ----------
        reviewed : bool
            Whether a person has replaced bounds and values by public ones.

        Returns
        -------
        str

        Examples
        --------
        >>> import pyarrow as pa
        >>> sketch_domain(pa.table({"age": [18, 40, 44]})).text().splitlines()[-1]
        'nulls = "reject"'
        """
        warning = WARNING.replace(". ", ".\n").split("\n")
        reasons: dict[str, list[str]] = {}
        for name, why in self.omitted.items():
            reasons.setdefault(why, []).append(repr(name))
        left_out = [f"left out: {', '.join(names)} ({why})" for why, names in reasons.items()]
        proposal = [self.unit_proposal] if self.units else []
        holds = "rule that holds in all records, a proposal"
        rules = [f"{holds}: rule = {toml_value(rule)} in [[rule]]" for rule in self.rules]
        comments = [f"# {line}" for line in (*warning, *left_out, *self.notes, *proposal, *rules)]

        tables, shared = _tables(self.attributes), alike(self.attributes)
        comments.append(f"# {READERS}")
        for written in (_tables(self.attributes, PLACES), tables, _tables(shared), _rows(shared)):
            if len(written) + len(comments) + 3 <= MOST_LINES:
                break

        room = MOST_LINES - len(written) - len(comments) - 3
        amounts = ["", "# for sums and means: limits to which values are clipped"] if self.numbers else []
        amounts += [f"numbers.{_key(name)} = {_inline(table)}" for name, table in self.numbers.items()]
        amounts = amounts if len(amounts) <= room else []
        return "\n".join([*comments, "", f"reviewed = {toml_value(reviewed)}", *amounts, "", *written, ""])

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"Sketch({len(self.attributes)} attributes, {len(self.omitted)} columns omitted; private)"

    def write(self, path: str | Path) -> None:
        """Write the domain file. A job and `plan` refuse it until a person has set `reviewed = true` in it.

        Parameters
        ----------
        path : str or Path
            A new file.

        Raises
        ------
        DomainError
            If the file exists.

        Examples
        --------
        >>> import pyarrow as pa
        >>> sketch_domain(pa.table({"age": [18, 40, 44]})).write("age.domain.toml")
        """
        try:
            write_private(path, self.text())
        except FileExistsError:
            raise DomainError(
                "path", f"{display_path(path)}, which exists", "a new file", "name another one, or remove it"
            ) from None

    @property
    def unit_proposal(self) -> str:
        """Sentence that proposes a privacy unit for the job."""
        others = f" (or {', '.join(map(repr, self.units[1:3]))})" if self.units[1:] else ""
        return f"privacy unit, a proposal: privacy_unit = {toml_value(self.units[0])} in [data] of the job{others}"


def sketch(path: str, dialect: Dialect = PLAIN, lake: str = "", columns: Sequence[str] = ()) -> str:
    """Return a draft domain file for the table at `path`, with a privacy warning at the top.

    Parameters
    ----------
    path : str
    dialect : Dialect
        Format of the files.
    lake : str
        Format of a table with a log; empty for plain files.
    columns : sequence of str
        Columns to describe; default: all.
    """
    return make_sketch(path, dialect, lake, columns).text()


def make_sketch(path: str, dialect: Dialect = PLAIN, lake: str = "", columns: Sequence[str] = ()) -> Sketch:
    """Return the draft of a domain file for the table at `path`. The parameters are those of `sketch`.

    Raises
    ------
    DataError
        If the table cannot be read, has no such column, or none that a domain can describe.
    """
    return _sketched(*_file_summaries(path, dialect, lake, columns))


def sketch_domain(data: Any, columns: Sequence[str] = ()) -> Sketch:
    """Draft a domain from data. The draft is not private: it contains bounds and values of records.

    Parameters
    ----------
    data : str, Path, DataFrame or Arrow data
        Path of files, or a frame of pandas, Polars, Dask or pyarrow.
    columns : sequence of str
        Columns to describe; default: all.

    Returns
    -------
    Sketch
        `print` shows the domain file, `write` writes it.

    Raises
    ------
    DataError
        If the data cannot be read, have no such column, or none that a domain can describe.

    Examples
    --------
    >>> import pyarrow as pa
    >>> sketch_domain(pa.table({"age": [18, 40, 44]})).attributes
    {'age': {'kind': 'integer', 'low': 18, 'high': 44, 'outside': 'clip', 'nulls': 'reject'}}
    """
    if is_path(data):
        return make_sketch(str(data), columns=columns)

    frame: Any = read_stream(data)
    parts = [frame.get_partition(i) for i in range(frame.npartitions)] if hasattr(frame, "npartitions") else [frame]
    names = [str(name) for name in frame_columns(frame)]
    _check_columns(columns, names)
    seen, mixed = {name: ColumnSummary() for name in columns or names}, dict[str, str]()
    rules = RuleSummary(list(seen))

    for part in parts:
        frame_part = part.compute() if len(parts) > 1 or part is not frame else part
        batch = {}
        for name, summary in seen.items():
            try:
                batch[name] = as_arrow(frame_part, [name]).column(0).combine_chunks()
                summary.add(batch[name])
            # a column of mixed types is omitted, with the reason
            except DataError as error:
                mixed[name] = error.got
        rows = max(map(len, batch.values()), default=0)
        rules.add({name: batch.get(name, pa.nulls(rows)) for name in seen})

    return _sketched({name: summary for name, summary in seen.items() if name not in mixed}, rules, mixed)


def _sketched(seen: Mapping[str, ColumnSummary], rules: RuleSummary, unread: Mapping[str, str]) -> Sketch:
    """Return the draft of columns; `unread` has the reasons why other columns cannot be read.

    A draft of an attribute is a table of the domain file, or the reason why a column is omitted. `_unify_missing`
    replaces the texts that mean a missing value by nulls, in all columns.
    """
    missing = _unify_missing(seen)
    drafts = {name: draft_attribute(name, summary) for name, summary in seen.items()}
    attributes = {name: draft for name, draft in drafts.items() if isinstance(draft, dict)}
    if not attributes:
        raise DataError("data.path", "no column that a domain can describe", "numbers or texts", "convert some columns")

    notes = [f"{name!r} has only one value: add its other possible values, or omit it"
             for name in attributes if seen[name].constant]  # fmt: skip
    notes += [f"{', '.join(map(repr, missing))} counts as missing in every column, as it does in those of numbers: "
              f"write null_values = {toml_value(missing)} in [data]"] if missing else []  # fmt: skip
    for name, draft in attributes.items():
        # several formats that fit all dates, such as day and month exchanged
        if draft["kind"] == "date" and len(forms := [date.form for date in seen[name].best_dates]) > 1:
            notes.append(f"{name!r} fits the formats {' and '.join(forms)}: check which one is right")

    omitted = {name: why for name, why in drafts.items() if isinstance(why, str)} | dict(unread)
    # a column of bins is drafted as a number too, so that sums and means can be queried
    numbers = {f"{name}{VALUE}": draft_number(name, seen[name], draft) for name, draft in attributes.items()
               if draft["kind"] == "bins" and max(map(abs, draft["edges"])) < MOST_AMOUNT
               and f"{name}{VALUE}" not in attributes}  # fmt: skip
    return Sketch(
        attributes=attributes,
        omitted=omitted,
        notes=tuple(notes),
        units=_units(seen),
        rules=rules.rules(attributes),
        numbers=numbers,
    )


def _unify_missing(seen: Mapping[str, ColumnSummary]) -> list[str]:
    """Count texts that are missing values in columns of numbers as missing in columns of texts, and return them.

    A text such as "NA" that no column of numbers has stays a value.

    `missing` of a column are its texts that mean a missing value in columns of numbers, as "NA".
    """
    markers = set[str]().union(*(column.missing for column in seen.values() if column.mostly_numbers))
    texts = [column for column in seen.values() if not column.mostly_numbers and column.missing & markers]
    for column in texts:
        column.texts -= markers
        column.null_text = True

    return sorted(markers) if texts else []


def draft_number(name: str, seen: ColumnSummary, bins: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table of a number of the domain file: the rounded ends of the bins of its column.

    Its step is 1, or a power of ten: a finer one if the range has few whole numbers, a coarser one if it has more than
    sums of numbers permit.
    """
    low, high = (Fraction(repr(bins["edges"][place])) for place in (0, -1))
    power = 0 if seen.whole else min(_exponent((high - low) / NUMBER_STEPS), 0)
    while (high - low) / Fraction(10) ** power > MOST_PARTS // 2:  # the ends are rounded outwards
        power += 1
    step = Fraction(10) ** power
    ends = {"low": _plain(math.floor(low / step) * step), "high": _plain(math.ceil(high / step) * step)}
    return {"from": name, **ends, **({"step": _plain(step)} if power else {}), "outside": "clip",
            **({"nulls": "skip"} if seen.null_number else {})}  # fmt: skip


def _file_summaries(
    path: str, dialect: Dialect, lake: str, columns: Sequence[str]
) -> tuple[dict[str, ColumnSummary], RuleSummary, dict[str, str]]:
    """Read the table once and return the summary of each column, of rules between them, and columns without a name.

    Columns are those of every file if the files list theirs by key, else those of the first file.

    `seen` are the summaries by column. The domain of the table is a placeholder, because a draft has none.
    """
    table = Origin(dialect=dialect, format=lake).table(path, Domain({"unknown": 2}))
    listing = table.partitions[: 1 if table.partitions[0].format.lists_columns else None]
    known = [name for partition in listing for name in partition.columns()]
    nameless = {} if all(known) else {"": f"column {known.index('') + 1}, without a name in the header: give it one"}
    seen = {name: ColumnSummary() for name in known if name}
    # a single column whose name contains another delimiter: the file has fields that were not divided
    if len(seen) == 1 and not dialect.delimiter and (mark := other_delimiter(table.partitions[0].path, dialect.format)):
        raise DataError(
            "data.path",
            f"one column, whose name contains {mark!r}",
            "fields separated by commas",
            f"set --delimiter {mark!r} here, and delimiter in [data]",
        )

    _check_columns(columns, list(seen))
    seen = {name: seen[name] for name in columns or seen}
    rules = RuleSummary(list(seen))
    for partition in table.partitions:
        for batch in partition.batches(list(seen)):
            for name, summary in seen.items():
                summary.add(batch[name])
            rules.add(batch)

    return seen, rules, {} if columns else nameless


def _check_columns(columns: Sequence[str], known: Sequence[str]) -> None:
    """Raise DataError for a column that the data lack; without a header, the first line of a CSV file is a record."""
    if absent := [name for name in columns if name not in known]:
        close = nearest(absent[0], known)
        remedy = close if close.startswith("did you mean") else "check the name and the header"
        raise DataError("columns", f"{absent[0]!r}", "columns of the data", remedy)


def draft_attribute(name: str, seen: ColumnSummary) -> dict[str, Any] | str:
    """Return the attribute's table of the domain file, or the reason why the column is omitted.

    The order matters: a column of dates is no id, and an id is no attribute even if its values are numbers.

    Values that are not numbers in a column of numbers, if they are few, are "unparsable" and get a cell of their own.
    """
    if seen.foreign_type:
        return f"type {seen.foreign_type}"
    if seen.best_dates:
        return seen.best_dates[0].draft()
    if prose := _prose(seen):
        return prose
    if _is_unique(name, seen):
        return "an id: a value for every row; it may be the privacy_unit of a job"
    if _names_units(name, seen):
        return "named like an id: it may be the privacy_unit of a job"
    if seen.truths and (seen.texts or seen.low <= seen.high):
        return {"kind": "boolean", "outside": "category", "nulls": "category" if seen.null_text else "reject"}

    if seen.mostly_numbers:
        slips = {} if seen.numeric else {"unparsable": "category"}
        nulls = "category" if seen.null_number else "reject"
        return {**seen.numeric_kind(), "outside": "clip", "nulls": nulls, **slips}

    if not seen.textual:
        return "nothing but nulls" if seen.numeric else "numbers in one file, texts in another"
    return _draft_texts(name, seen)


def _draft_texts(name: str, seen: ColumnSummary) -> dict[str, Any] | str:
    """Return the entry of a column of texts in the domain file, or the reason why the column is omitted.

    The entry lists all texts as categories if there are at most MOST_VALUES. If there are more, and most look like
    short codes such as "A-101", it lists their prefixes: the longest first letters that have at most MOST_VALUES
    distinct values.

    Parameters
    ----------
    name : str
        Name of the column.
    seen : ColumnSummary
        `texts` are the distinct texts; once there are more than MOST_VALUES, no more are collected. `distinct` are the
        distinct values among the first `rows` rows. `prefixes` has the distinct first letters by their number.
    """
    reserved = {OUTSIDE_LABEL, NULL_LABEL}  # labels of cells that every attribute may have
    texts = sorted(seen.texts - reserved)
    if not texts:
        return "nothing but nulls"

    has_many = len(texts) >= FEWEST_IDS
    if has_many and PERSON_NAME.fullmatch(_snake(name)):
        return "named like names or free text, with many values"
    are_codes = seen.share(SHORT_CODE) > NEARLY_ALL  # most texts match the pattern
    differ_by_row = len(seen.distinct) > NEARLY_ALL * seen.rows
    if has_many and differ_by_row and not are_codes:
        return "names or free text: different in most rows"

    # other texts have a cell of their own, and so have nulls if there are any
    common = {"outside": "category", "nulls": "category" if seen.null_text else "reject"}
    if len(texts) <= MOST_VALUES:
        return {"kind": "categories", "values": texts, **common}
    if are_codes:
        for length in sorted(seen.prefixes, reverse=True):
            prefixes = sorted(seen.prefixes[length] - {*reserved, ""})
            if 1 < len(prefixes) <= MOST_VALUES:
                return {"kind": "text-prefix", "length": length, "values": prefixes, **common}

    return f'more than {MOST_VALUES} texts: list them from a code book, or find them privately with kind = "discover"'


def _prose(seen: ColumnSummary) -> str:
    """Return the reason why the texts of a column name persons or are free; empty if they seem to be values."""
    if len(seen.texts) < FEWEST_IDS:
        return ""
    if seen.share(EMAIL) > NEARLY_ALL:
        return "e-mail addresses"
    words = sum(len(text.split()) for text in seen.sampled)
    free = words > WORDS * len(seen.sampled) and seen.share(SHORT_CODE) <= NEARLY_ALL
    return f"free text: more than {WORDS} words on average" if free else ""


def _snake(name: str) -> str:
    """Return a column name in lower case, with _ between its words."""
    return re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()).strip("_")


def _is_unique(name: str, seen: ColumnSummary) -> bool:
    """Return whether a column has a different value in every row and is no measurement.

    A column with a distinct value in each row is an id if it is named like one or has texts, if its whole numbers fill
    their range, or if they all have the same large number of digits.
    """
    if seen.rows < FEWEST_IDS or len(seen.distinct) < seen.rows:
        return False
    if _prose(seen):
        return False
    if bool(ID_NAME.fullmatch(_snake(name))) or not seen.mostly_numbers or seen.coded:
        return True
    dense = seen.high - seen.low < 2 * seen.rows and not seen.null_number
    lengths = [len(f"{abs(end):.0f}") for end in (seen.low, seen.high)]
    long = lengths[0] == lengths[1] >= max(ID_DIGITS, len(str(seen.rows)) + 3)
    return seen.whole and (dense or long)


def _names_units(name: str, seen: ColumnSummary) -> bool:
    """Return whether a column is named like an id and has many values."""
    many = len(seen.distinct) > min(MOST_VALUES, max(FEWEST_IDS, seen.rows / 10))
    return bool(ID_NAME.fullmatch(_snake(name))) and many


def _units(seen: Mapping[str, ColumnSummary]) -> tuple[str, ...]:
    """Return columns that may identify the privacy unit: first those whose values repeat, then ids of rows."""
    named = [name for name, summary in seen.items() if _names_units(name, summary) and not summary.foreign_type]
    repeated = [name for name in named if len(seen[name].distinct) < seen[name].rows]
    unique = [name for name, summary in seen.items() if _is_unique(name, summary) and not summary.best_dates]
    ids = [name for name in unique if ID_NAME.fullmatch(_snake(name))]
    return tuple(dict.fromkeys([*repeated, *ids, *unique]))


def alike(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables of attributes, one for all attributes with equal keys."""
    groups: dict[str, list[str]] = {}
    for name, table in attributes.items():
        groups.setdefault(tomli_w.dumps(table), []).append(name)
    return {names[0]: {**attributes[names[0]], **({ALSO: names[1:]} if names[1:] else {})} for names in groups.values()}


def _tables(attributes: Mapping[str, Any], places: Sequence[str] = ()) -> list[str]:
    """Return lines with a table for each attribute and a key on each line, with places for words for readers."""
    return "\n\n".join(
        "\n".join(
            [
                f"[attributes.{_key(name)}]",
                *(() if TITLE in table else places),
                *(_wrapped(key, value) for key, value in table.items()),
            ]
        )
        for name, table in attributes.items()
    ).split("\n")


def _rows(attributes: Mapping[str, Any]) -> list[str]:
    """Return lines with one attribute each."""
    return ["[attributes]", *(f"{_key(name)} = {_inline(table)}" for name, table in attributes.items())]


def _inline(table: Mapping[str, Any]) -> str:
    """Return a table on one line."""
    return f"{{ {', '.join(f'{_key(key)} = {toml_value(value)}' for key, value in table.items())} }}"


def _wrapped(key: str, value: Any) -> str:
    """Return a key with its value, a long list on several lines."""
    line = f"{key} = {toml_value(value)}"
    if not isinstance(value, list) or len(line) <= WIDTH:
        return line

    lines = ["   "]
    for item in map(toml_value, value):
        if len(lines[-1]) + len(item) > WIDTH:
            lines.append("   ")
        lines[-1] += f" {item},"
    return "\n".join([f"{key} = [", *lines, "]"])


def toml_value(value: Any) -> str:
    """Return a value as TOML on one line."""
    if isinstance(value, list):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, Mapping):
        return _inline(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:_}" if abs(value) >= GROUPED else f"{value}"
    return tomli_w.dumps({"v": value}).removeprefix("v = ").removesuffix("\n")


def _key(name: str) -> str:
    return name if re.fullmatch("[A-Za-z0-9_-]+", name) else toml_value(name)
