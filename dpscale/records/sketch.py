"""Draft of a domain file from data. The draft is private: its bounds and values were read from records.

The draft is complete: once a person has replaced its bounds and values by public ones and set `reviewed = true`, it is
a valid domain file. Columns that a domain cannot represent (nested columns, too many texts, only nulls) and columns
that look like identifiers, names or free text are omitted with a comment that states the reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from dpscale.base.display import display_path, nearest
from dpscale.base.errors import DataError, DomainError
from dpscale.domain import Domain
from dpscale.domain.attribute import NULL_LABEL, OUTSIDE_LABEL
from dpscale.domain.domain_schema import ALSO
from dpscale.records.column_summary import (
    EMAIL,
    MOST_VALUES,
    SHORT_CODE,
    ColumnSummary,
)
from dpscale.records.files import PLAIN, Dialect
from dpscale.records.formats import other_delimiter
from dpscale.records.frames import as_arrow, frame_columns, read_stream
from dpscale.records.origin import Origin
from dpscale.storage.files import is_path, write_private

WARNING = (
    "This draft is PRIVATE: it was read off the records. Replace its bounds and values by ones that are known without "
    "the data (a code book, a law, common sense), then set reviewed = true: no release takes it before. "
    "Do not publish it."
)
MOST_LINES, WIDTH = 150, 110
GROUPED = 100_000  # integers from which digits are grouped
FEWEST_IDS = 20  # rows: with fewer, distinct values do not indicate an id
NEARLY_ALL = 0.5  # distinct texts per row
WORDS = 3  # of a text, on average: more are free text
PERSONS = (
    "person|patient|customer|user|member|client|subject|participant|respondent|household|family|employee|"
    "student|account|resident|citizen|driver|device|tailnum|vin|ssn"
)
ID_NAME = re.compile(rf"(.*_)?(id|ids|uuid|guid|ssn)|({PERSONS})(_?(id|key|no|nr|num|number|code))?")
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

    def text(self) -> str:
        """Return the domain file, with a privacy warning at the top and at most 150 lines for 120 columns.

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
        comments = [f"# {line}" for line in (*warning, *left_out, *self.notes, *proposal)]

        for written in (_tables(self.attributes), _tables(alike(self.attributes)), _rows(alike(self.attributes))):
            if len(written) + len(comments) + 3 <= MOST_LINES:
                break

        return "\n".join([*comments, "", "reviewed = false", "", *written, ""])

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
    return _sketched(_file_summaries(path, dialect, lake, columns), {})


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

    for part in parts:
        whole = part.compute() if len(parts) > 1 or part is not frame else part
        for name, one in seen.items():
            try:
                one.add(as_arrow(whole, [name]).column(0).combine_chunks())
            except DataError as error:
                mixed[name] = error.got

    return _sketched({name: one for name, one in seen.items() if name not in mixed}, mixed)


def _sketched(seen: Mapping[str, ColumnSummary], unread: Mapping[str, str]) -> Sketch:
    """Return the draft of columns; `unread` has the reasons why other columns cannot be read."""
    drafts = {name: draft_attribute(name, one) for name, one in seen.items()}
    attributes = {name: draft for name, draft in drafts.items() if isinstance(draft, dict)}
    if not attributes:
        raise DataError("data.path", "no column that a domain can describe", "numbers or texts", "convert some columns")

    notes = [f"{name!r} has only one value: add its other possible values, or omit it"
             for name in attributes if seen[name].constant]  # fmt: skip
    for name, draft in attributes.items():
        if draft["kind"] == "date" and len(forms := [date.form for date in seen[name].best_dates]) > 1:
            notes.append(f"{name!r} fits the formats {' and '.join(forms)}: check which one is right")

    omitted = {name: why for name, why in drafts.items() if isinstance(why, str)} | dict(unread)
    return Sketch(attributes, omitted, tuple(notes), _units(seen))


def _file_summaries(path: str, dialect: Dialect, lake: str, columns: Sequence[str]) -> dict[str, ColumnSummary]:
    """Read the table once and return the summary of each column."""
    table = Origin(dialect=dialect, format=lake).table(path, Domain({"unknown": 2}))
    listing = table.partitions[: 1 if table.partitions[0].format.lists_columns else None]
    seen = {name: ColumnSummary() for partition in listing for name in partition.columns() if name}
    if len(seen) == 1 and not dialect.delimiter and (mark := other_delimiter(table.partitions[0].path, dialect.format)):
        raise DataError(
            "data.path",
            f"one column, whose name contains {mark!r}",
            "fields separated by commas",
            f"set --delimiter {mark!r} here, and delimiter in [data]",
        )

    _check_columns(columns, list(seen))
    seen = {name: seen[name] for name in columns or seen}
    for partition in table.partitions:
        for batch in partition.batches(list(seen)):
            for name, one in seen.items():
                one.add(batch[name])

    return seen


def _check_columns(columns: Sequence[str], known: Sequence[str]) -> None:
    """Raise DataError for a column that the data lack; without a header, the first line of a CSV file is a record."""
    if absent := [name for name in columns if name not in known]:
        close = nearest(absent[0], known)
        remedy = close if close.startswith("did you mean") else "check the name and the header"
        raise DataError("columns", f"{absent[0]!r}", "columns of the data", remedy)


def draft_attribute(name: str, seen: ColumnSummary) -> dict[str, Any] | str:
    """Return the attribute's table of the domain file, or the reason why the column is omitted."""
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
    """Return an attribute of texts, or the reason why they cannot be one."""
    values, nulls = sorted(seen.texts - {OUTSIDE_LABEL, NULL_LABEL}), "category" if seen.null_text else "reject"
    if not values:
        return "nothing but nulls"

    many, codes = len(values) >= FEWEST_IDS, seen.share(SHORT_CODE) > NEARLY_ALL
    if many and PERSON_NAME.fullmatch(_snake(name)):
        return "named like names or free text, with many values"
    if many and not codes and len(seen.distinct) > NEARLY_ALL * seen.rows:
        return "names or free text: different in most rows"
    if len(values) <= MOST_VALUES:
        return {"kind": "categories", "values": values, "outside": "category", "nulls": nulls}

    for length in sorted(seen.prefixes, reverse=True) if codes else ():
        prefixes = sorted(seen.prefixes[length] - {OUTSIDE_LABEL, NULL_LABEL, ""})
        if 1 < len(prefixes) <= MOST_VALUES:
            return {"kind": "text-prefix", "length": length, "values": prefixes, "outside": "category", "nulls": nulls}

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
    """Return whether a column has a different value in every row and is no measurement."""
    if seen.rows < FEWEST_IDS or len(seen.distinct) < seen.rows:
        return False
    if _prose(seen):
        return False
    dense = seen.high - seen.low < 2 * seen.rows and not seen.null_number
    return bool(ID_NAME.fullmatch(_snake(name))) or not seen.mostly_numbers or seen.coded or (seen.whole and dense)


def _names_units(name: str, seen: ColumnSummary) -> bool:
    """Return whether a column is named like an id and has many values."""
    many = len(seen.distinct) > min(MOST_VALUES, max(FEWEST_IDS, seen.rows / 10))
    return bool(ID_NAME.fullmatch(_snake(name))) and many


def _units(seen: Mapping[str, ColumnSummary]) -> tuple[str, ...]:
    """Return columns that may identify the privacy unit: first those whose values repeat, then ids of rows."""
    named = [name for name, one in seen.items() if _names_units(name, one) and not one.foreign_type]
    repeated = [name for name in named if len(seen[name].distinct) < seen[name].rows]
    unique = [name for name, one in seen.items() if _is_unique(name, one) and not one.best_dates]
    own = [name for name in unique if ID_NAME.fullmatch(_snake(name))]
    return tuple(dict.fromkeys([*repeated, *own, *unique]))


def alike(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables of attributes, one for all attributes with equal keys."""
    groups: dict[str, list[str]] = {}
    for name, table in attributes.items():
        groups.setdefault(tomli_w.dumps(table), []).append(name)
    return {names[0]: {**attributes[names[0]], **({ALSO: names[1:]} if names[1:] else {})} for names in groups.values()}


def _tables(attributes: Mapping[str, Any]) -> list[str]:
    """Return lines with a table for each attribute and a key on each line."""
    return "\n\n".join(
        "\n".join([f"[attributes.{_key(name)}]", *(_wrapped(key, value) for key, value in table.items())])
        for name, table in attributes.items()
    ).split("\n")


def _rows(attributes: Mapping[str, Any]) -> list[str]:
    """Return lines with one attribute each."""
    rows = [
        f"{_key(name)} = {{ {', '.join(f'{key} = {toml_value(value)}' for key, value in table.items())} }}"
        for name, table in attributes.items()
    ]
    return ["[attributes]", *rows]


def _wrapped(key: str, value: Any) -> str:
    """Return a key with its value, a long list on several lines."""
    line = f"{key} = {toml_value(value)}"
    if not isinstance(value, list) or len(line) <= WIDTH:
        return line

    lines = ["   "]
    for one in map(toml_value, value):
        if len(lines[-1]) + len(one) > WIDTH:
            lines.append("   ")
        lines[-1] += f" {one},"
    return "\n".join([f"{key} = [", *lines, "]"])


def toml_value(value: Any) -> str:
    """Return a value as TOML on one line."""
    if isinstance(value, list):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:_}" if abs(value) >= GROUPED else f"{value}"
    return tomli_w.dumps({"v": value}).removeprefix("v = ").removesuffix("\n")


def _key(name: str) -> str:
    return name if re.fullmatch("[A-Za-z0-9_-]+", name) else toml_value(name)
