"""Sheets: the published tables of a release as the pages of a site show them, with pictures and permanent addresses.

A sheet has the numbers and flags of `dpscale.answers.publish`. The tables of a growing release are those of its periods
below each other, the latest first on the page, with a column for the period.

*Pictures.*
They are a cross table of two attributes, and lines over the periods of a growing release.

*Addresses of pages.*
They are made from titles and names alone. They consist of a to z, digits, `_`, `.`, `-` between names and `~` between
other parts, so that every file system and browser accepts them. A name with other characters gets the first digits of
its hash, so that different names have different addresses, also where a file system ignores upper case.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dpscale.answers.publish import DOWNLOADS, FORMATS, FinishedTable, Published, dimensions_of, finished_tables
from dpscale.answers.published_values import COLUMNS, label_column
from dpscale.answers.report.charts import COLOURS, PlotAxis, Series, Tick, pair, plot, statistic
from dpscale.answers.statistical_files import Dimension, coded
from dpscale.answers.tables import SIDE, title_of
from dpscale.base.arrow import pa
from dpscale.base.display import whole
from dpscale.base.numerics import Floats, Integers
from dpscale.domain import Domain
from dpscale.domain.attribute import Attribute
from dpscale.workload.sums import MeanQueries, SumQueries

MOST_SHOWN = 20_000  # rows of a page with its parts; files have all
SQL_NAMES = {SumQueries.name: "SUM", MeanQueries.name: "AVG"}
MOST_FILTERED = 200  # values of a column with a filter
FIGURES = ("value", "count", "low", "high", "std_error")

MOST_TICKS = 6  # names of periods on the axis of a plot
APART = 0.06  # of the lines of a plot, in periods

LONGEST = 80  # letters of an address without its hash
DIGITS = 6  # hexadecimal digits of a hash in an address
PLAIN = re.compile(r"(?!(con|prn|aux|nul|com\d|lpt\d)(\.|$))[a-z0-9_]+(\.[a-z0-9_]+)?")  # not a device of Windows


@dataclass(frozen=True)
class SheetColumn:
    """Column of a sheet. `values` are those that a filter offers, in order; empty without a filter."""

    title: str
    values: Sequence[str] = ()


@dataclass(frozen=True, eq=False)
class Sheet:
    """Published table with its place on the site.

    Attributes
    ----------
    address : str
        Of its page in the folder of the release, without an ending.
    group : SheetGroup
    title, unit : str
    statement : str
        SQL of the table; "" if no statement expresses it.
    columns : sequence of SheetColumn
    rows : list of dict
        The first ones: `labels` as pairs of a text and its place, and for values `text`, `interval`, `key`, `flag`,
        `bar`, `line` and `zero`; `count` if the table of values has counts.
    size : int
        Number of all rows.
    finished : FinishedTable
        The table, as files have it.
    formats : sequence of str
        Of its files.
    ticks : list
        Of the axis below the bars.
    cross : dict or None
        Template values of a table with two attributes, across and down.
    series : str
        Picture of the periods as SVG; "" without periods.
    """

    address: str
    group: SheetGroup
    title: str
    unit: str
    statement: str
    columns: Sequence[SheetColumn]
    rows: list[dict[str, Any]]
    size: int
    finished: FinishedTable
    formats: Sequence[str]
    ticks: Sequence[Tick] = ()
    cross: Mapping[str, Any] | None = None
    series: str = ""

    @property
    def own_notes(self) -> list[str]:
        """Notes on this table alone."""
        return [self.finished.number.description] if self.finished.number else []


@dataclass(frozen=True)
class SheetGroup:
    """Table or join of a release, or kind of answers of a growing table.

    Attributes
    ----------
    folder : str
        Of its pages in the folder of the release; "" for an only one.
    title : str
    domain : Domain
    source : str
        Name of the table in statements; "" for a join.
    counted : str
        What is counted of a privacy unit; "" if each row is one.
    notes : sequence of str
        On all tables, a description first.
    period : Attribute or None
        Attribute of the periods.
    """

    folder: str
    title: str
    domain: Domain
    source: str = ""
    counted: str = ""
    notes: Sequence[str] = ()
    period: Attribute | None = None

    def place(self, kind: str, address: str) -> str:
        """Return the address of a page of a kind."""
        return "/".join([*([self.folder] if self.folder else []), kind, address])


def statement_sheet(group: SheetGroup, name: str, sql: str, columns: Sequence[str], rows: Sequence[Sequence[str]],
                    table: pa.Table) -> Sheet:  # fmt: skip
    """Return the sheet of the rows of a SELECT statement; `rows` are the first ones as texts."""
    address = f"select~{address_of_name(name)}"
    return Sheet(
        address=group.place("tables", address),
        group=group,
        title=name,
        unit="",
        statement=sql,
        columns=[SheetColumn(title) for title in columns],
        rows=[{"labels": [(text, -1) for text in row]} for row in rows],
        size=table.num_rows,
        finished=FinishedTable(name=address, title=name, unit="", attributes=(), table=table),
        formats=[kind for kind in DOWNLOADS if kind in FORMATS],
    )


def sheets(group: SheetGroup, published: Mapping[str, Published], limit: float, minimum: int) -> Iterator[Sheet]:
    """Yield the sheets of published tables by period; without periods `published` has the key "" alone."""
    merged = dict[str, dict[str, FinishedTable]]()
    for period, of_period in published.items():
        for finished in finished_tables(group.domain, of_period, limit, minimum):
            merged.setdefault(_address(finished), {})[period] = finished
    for address, tables in merged.items():
        table = over_periods(group.period.name, tables) if group.period else next(iter(tables.values()))
        yield _sheet(group, replace(table, name=address))


def _address(table: FinishedTable) -> str:
    """Return the last part of the address of a table; only those of numbers and listed queries have `~`."""
    names = [address_of_names(table.attributes)] if table.attributes else []
    if table.number is None:
        return names[0] if names else f"listed~{address_of_name(table.name.partition('-')[2])}"
    return "~".join([*map(address_of_name, _parts(table)), *names])


def _parts(table: FinishedTable) -> list[str]:
    """Return the statistic and the number of a table of a number; one text for other queries than cells."""
    assert table.number is not None
    head = table.number.name.removesuffix(f" by {', '.join(table.attributes)}")
    name = f" of {table.number.number.name}"
    return [head.removesuffix(name), table.number.number.name] if head.endswith(name) else [head]


def over_periods(name: str, tables: Mapping[str, FinishedTable]) -> FinishedTable:
    """Return the tables of periods as one table with the column `name` before the others."""
    parts, order = [], pa.array(list(tables), pa.string())
    for number, of_period in enumerate(tables.values()):
        codes = np.full(of_period.table.num_rows, number, np.int32)
        labels = pa.DictionaryArray.from_arrays(codes, order, ordered=True)
        parts.append(of_period.table.add_column(0, label_column(name), labels))

    # the ends of all periods one after the other; none if a period has none
    ends_of, ends = [of_period.ends for of_period in tables.values()], tuple[Any, ...]()
    if all(ends_of):
        ends = tuple(np.concatenate([pair[end].reshape(-1) for pair in ends_of]) for end in (0, 1))
    table = pa.concat_tables(parts).unify_dictionaries()
    return replace(list(tables.values())[-1], table=table, ends=ends)


def _sheet(group: SheetGroup, finished: FinishedTable) -> Sheet:
    """Return what the page of a table shows: rows with the latest period first, columns to filter, plots and texts.

    COLUMNS are the columns with figures; the others are labels. `codes` has the place of each row's label among the
    distinct ones.

    A label's `shown` are the texts of its distinct values. A growing release has the period as its first column of
    labels, and a plot over the periods in place of a cross table.
    """
    table, known = finished.with_ends(), dimensions_of(group.domain)
    labels = list[SheetLabels]()
    for name in (name for name in table.column_names if name not in COLUMNS):
        # the attribute of the column; a period has none
        matching = (dimension for dimension in known.values() if label_column(dimension.name) == name)
        dimension = next(matching, Dimension(name, name, ()))
        values, codes = coded(table[name])
        title = group.period.words.title or name if group.period and not labels else dimension.title
        shown = replace(dimension, values=values).labels
        labels.append(SheetLabels(name=name, title=title, shown=shown, codes=codes))

    figures = {name: _floats(table, name) for name in FIGURES}
    order = np.arange(table.num_rows)
    if group.period:  # the latest period first
        order = np.argsort(-labels[0].codes, kind="stable")
    title, unit = _words(group.domain, finished)
    rows, axis = _rows(figures, table["flag"].to_pylist(), labels, order[:MOST_SHOWN], unit)
    columns = [SheetColumn(label.title, label.shown if len(label.shown) <= MOST_FILTERED else ()) for label in labels]
    return Sheet(
        address=group.place("tables", finished.name),
        group=group,
        title=title,
        unit=unit,
        statement=_statement(group, finished),
        columns=columns,
        rows=rows,
        size=table.num_rows,
        finished=finished,
        formats=tuple(DOWNLOADS),
        ticks=axis,
        cross=None if group.period else cross_table(labels, figures),
        series=series_plot(labels, figures, unit) if group.period else "",
    )


def _floats(table: pa.Table, name: str) -> Floats | None:
    """Return the figures of a column, nan where there is none; None without the column."""
    if name not in table.column_names:
        return None
    return np.asarray(table[name].cast(pa.float64()).to_numpy(), np.float64)


def _rows(
    figures: Mapping[str, Floats | None],
    flags: Sequence[str],
    labels: Sequence[SheetLabels],
    order: Integers,
    unit: str,
) -> tuple[list[dict[str, Any]], Sequence[Tick]]:
    """Return the values of rows for their template, and the axis of their bars.

    `order` are the rows of the page in their order; `flags` and `labels` are those of all rows of the sheet. A count is
    shown as a whole number, a value with its digits and, if there is one, the count beside it.
    """
    is_count, none = figures["value"] is None, np.full(len(flags), np.nan)
    columns = figures["count" if is_count else "value"], figures["low"], figures["high"], figures["std_error"]
    value, low, high, error = (none if column is None else column for column in columns)
    drawn = statistic("", [""] * len(order), value[order], low[order], high[order], error[order], unit,
                      # counts are whole numbers
                      0 if is_count else 12)  # fmt: skip
    rows = []
    for row, at in zip(drawn["rows"], order.tolist(), strict=True):
        texts = [(label.shown[label.codes[at]], int(label.codes[at])) for label in labels]
        added = {"labels": texts, "flag": flags[at], "key": value[at]}
        added |= {"text": whole(value[at])} if is_count else {}
        added |= {} if is_count or figures["count"] is None else {"count": figures["count"][at]}
        rows.append(row | added)
    return rows, drawn["ticks"]


def _words(domain: Domain, table: FinishedTable) -> tuple[str, str]:
    """Return title and unit of a table for readers."""
    if table.number is None:
        return table.title, table.unit
    number = table.number.number
    unit = number.words.unit or title_of(domain, number.name) if table.unit == number.name else table.unit
    return table.title, unit


def _statement(group: SheetGroup, table: FinishedTable) -> str:
    """Return the statement that a table answers; "" for others than counts, sums and means of a table."""
    asked = ["COUNT", ""] if table.number is None and table.attributes else []
    if table.number is not None:
        asked = [SQL_NAMES.get(_parts(table)[0], ""), table.number.number.name]
    if not group.source or not asked or not asked[0]:
        return ""
    groups = ", ".join(map(_quoted, [*([group.period.name] if group.period else []), *table.attributes]))
    value = f"{asked[0]}({_quoted(asked[1]) if asked[1] else '*'})"
    select = f"SELECT {groups}{', ' * bool(groups)}{value} FROM {_quoted(group.source)}"
    return select + f" GROUP BY {groups}" * bool(groups)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True, eq=False)
class SheetLabels:
    """Labels of a column: its name and title, texts for readers in their order, and the place of each row's text."""

    name: str
    title: str
    shown: Sequence[str]
    codes: Integers


@dataclass(frozen=True)
class PeriodAxis(PlotAxis):
    """Axis of periods in their order."""

    labels: tuple[str, ...] = ()

    def ticks(self) -> list[Tick]:
        """Return the names of some periods with their places in percent."""
        step = -(-len(self.labels) // MOST_TICKS)
        places = np.arange(0, len(self.labels), step)
        return list(zip(self.labels[::step], (100 * self.places(places.astype(np.float64))).tolist(), strict=True))


def cross_table(labels: Sequence[SheetLabels], figures: Mapping[str, Floats | None]) -> dict[str, Any] | None:
    """Return the template values of a small table of counts with two attributes, one down and one across."""
    sizes = tuple(len(label.shown) for label in labels)
    counts = figures["count"]
    if len(sizes) != 2 or max(sizes) > SIDE or counts is None or counts.size != sizes[0] * sizes[1]:
        return None
    if figures["value"] is not None:
        return None
    drawn = pair(
        [label.title for label in labels], [label.shown for label in labels], np.nan_to_num(counts).reshape(sizes)
    )
    for cell, count in zip((cell for row in drawn["cells"] for cell in row), counts.tolist(), strict=True):
        cell["text"] = whole(count)
    return drawn


def series_plot(labels: Sequence[SheetLabels], figures: Mapping[str, Floats | None], unit: str) -> str:
    """Plot the cells that are largest in the last period over all periods; "" for a single period.

    Values have the period as the first axis. Lines of several cells are shifted by APART, so that their intervals do
    not cover each other.
    """
    periods = labels[0].shown
    # counts, or the values of sums and means
    value = figures["count"] if figures["value"] is None else figures["value"]
    assert value is not None
    if len(periods) < 2 or len(value) % len(periods) or not np.isfinite(value).any():
        return ""
    low, high = (value if end is None else end for end in (figures["low"], figures["high"]))
    values, low, high = (figure.reshape(len(periods), -1) for figure in (value, low, high))
    cells = np.argsort(-np.nan_to_num(values[-1], nan=-np.inf), kind="stable")[:COLOURS]
    names = [", ".join(label.shown[label.codes[cell]] for label in labels[1:]) or "all records" for cell in cells]
    places = np.arange(len(periods), dtype=np.float64)
    # shifts around 0
    apart = APART * (np.arange(len(cells)) - (len(cells) - 1) / 2)
    series = [
        Series(name=name, x=places + shift, y=values[:, cell], mark="line", ends=(low[:, cell], high[:, cell]))
        for name, cell, shift in zip(names, cells, apart, strict=True)
    ]
    # the axis includes 0
    ends = np.concatenate([np.zeros(1), low[:, cells].reshape(-1), high[:, cells].reshape(-1)])
    bottom, top = np.nanmin(ends), np.nanmax(ends)
    x = PeriodAxis(labels[0].title, -0.3, len(periods) - 0.7, labels=tuple(periods))
    return plot(x, PlotAxis(unit, float(bottom), float(top) * 1.03 or 1.0), series)


def address_of_title(title: str) -> str:
    """Return the folder of a title: its words in lower case, without accents.

    Examples
    --------
    >>> address_of_title("Émergency visits, 2024")
    'emergency-visits-2024'
    """
    letters = unicodedata.normalize("NFKD", title)
    words = "-".join(re.findall("[a-z0-9]+", "".join(filter(str.isascii, letters)).lower()))
    is_whole = not any(letter.isalnum() and not letter.isascii() for letter in letters)
    if is_whole and len(words) <= LONGEST and PLAIN.fullmatch(words.replace("-", "_")):
        return words
    return "-".join(filter(None, (words[:LONGEST].strip("-"), _hash(title))))


def address_of_name(name: str) -> str:
    """Return the part of an address for an attribute, a number or a table; different names have different parts.

    Examples
    --------
    >>> address_of_name("age"), address_of_name("Age (years)")
    ('age', 'age_years_fc244a')
    """
    if PLAIN.fullmatch(name) and len(name) <= LONGEST:
        return name
    words = "_".join(re.findall("[a-z0-9]+", name.lower()))
    return "_".join(filter(None, (words[:LONGEST].strip("_"), _hash(name))))


def address_of_names(names: Sequence[str], order: bool = True) -> str:
    """Return the part of an address for several names, in the order of the alphabet unless `order` is false."""
    parts = [address_of_name(name) for name in names]
    joined = "-".join(sorted(parts) if order else parts)
    return joined if len(joined) <= LONGEST else f"{joined[:LONGEST].rstrip('-_')}-{_hash(joined)}"


def relative(page: str, target: str) -> str:
    """Return the address of a file of the site as a page links to it."""
    return posixpath.relpath(target, posixpath.dirname(page) or ".")


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]
