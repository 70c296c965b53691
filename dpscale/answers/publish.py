"""Published tables: integer tables that add up, as CSV, Parquet or one Excel workbook, with a codebook and a readme.

*Croissant file.*
It describes the tables to machines that find and load them. Croissant (MLCommons, version 1.0) is a JSON-LD vocabulary
on top of schema.org. A publication is a `Dataset` whose `distribution` lists the files with their SHA-256, and whose
`recordSet` describes the columns of each table, with types of schema.org. The description contains names of files and
columns, which the publication shows as well, and the words of domain file and job for readers. It has no web address,
which the publisher adds.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from dpscale.answers import statistics
from dpscale.answers.published_values import (
    COLUMNS as COLUMNS_OF_NUMBERS,
    HIDDEN,
    NO_CUBE,
    SQL,
    STATISTIC,
    UNRELIABLE,
    NumberTable,
    StatementRows,
    codebook_rows,
    column_notes,
    flag_rows,
    flag_values,
    label_column,
    number_tables,
    row_notes,
)
from dpscale.answers.statistical_files import STATISTICAL, Cube, Dimension, cube_of
from dpscale.answers.tables import EXTRAPOLATED, FIGURES, LEVEL, Answered, column, texts, title_of, words_of
from dpscale.answers.whole_tables import (
    CONTRADICTION,
    MOST_TREE_CELLS,
    NOTES,
    UNDETERMINED,
    WholeTables,
    adjust_to_constraints,
    known_sets,
    names_levels,
    tree_tables,
)
from dpscale.base.arrow import arrow_csv, pa, pc, pq, without_dictionaries
from dpscale.base.display import escape_formula, quantity
from dpscale.base.errors import JobError, PlanError
from dpscale.base.numerics import AttributeSet, Floats, Integers
from dpscale.domain import Domain
from dpscale.domain.attribute import Attribute
from dpscale.domain.rules import possible
from dpscale.reconstruction.joint_intervals import half_width
from dpscale.storage.files import write_whole
from dpscale.workload import RECORDS

MOST_CELLS = 20_000  # of a table without levels of a hierarchy; larger ones are omitted and named
BELOW_MINIMUM = "minimum"  # flag of counts that the minimum-frequency rule hides
MOST_SETS = 2000  # attribute sets of a publication
UNCOUNTED = "its groups have no published counts, which --minimum compares"

CROISSANT = "croissant.json"
CONFORMS = "http://mlcommons.org/croissant/1.0"
ENCODINGS = {".csv": "text/csv", ".parquet": "application/x-parquet", ".txt": "text/plain",
             ".xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"}  # fmt: skip
TERMS = [
    "citeAs",
    "column",
    "equivalentProperty",
    "extract",
    "field",
    "fileObject",
    "fileProperty",
    "fileSet",
    "format",
    "includes",
    "isLiveDataset",
    "jsonPath",
    "key",
    "md5",
    "parentField",
    "path",
    "recordSet",
    "references",
    "regex",
    "repeated",
    "replace",
    "samplingRate",
    "separator",
    "source",
    "subField",
    "transform",
]
CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "dct": "http://purl.org/dc/terms/",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    **{term: f"cr:{term}" for term in TERMS},
}
COLUMN_TEXTS = {
    "count": "published number of records",
    "value": "published value",
    "std_error": "standard error of the estimate that the value comes from; empty: unknown",
    "flag": "'unreliable' if the error is large for the value, 'minimum' if the count is below that of publication",
}


@dataclass(frozen=True, eq=False)
class Published:
    """Integer tables by attribute set, standard errors (nan if unknown), and omitted sets with reasons.

    `listed` has the answers of queries that are listed by predicates, by label and attributes: values without a margin
    in common, each rounded alone. `numbers` has sums, means and other statistics of numbers, `statements` the rows of
    SELECT statements. `notes` are lines for the readme. `ends` has the 95 % intervals of the counts, from the estimates
    and not below 0. `total` is None if the answers do not determine the number of records; then there are no tables.
    """

    total: int | None
    tables: Mapping[AttributeSet, Integers]
    errors: Mapping[AttributeSet, Floats]
    left_out: Mapping[AttributeSet, str]
    listed: Sequence[tuple[str, pa.Table]] = ()
    numbers: Sequence[NumberTable] = ()
    notes: Sequence[str] = ()
    ends: Mapping[AttributeSet, tuple[Floats, Floats]] = field(default_factory=dict)
    statements: Sequence[StatementRows] = ()


def publish(
    answered: Answered,
    requested: Sequence[AttributeSet],
    minimum: int = 0,
    statements: Sequence[StatementRows] = (),
) -> Published:
    """Return integer tables for the sets, and rows of statements.

    Tables add up to the total, so there are none if it is not estimated. Tables of numbers whose groups have no
    published counts, and statements, are omitted if counts below a minimum are hidden.

    `whole` has the integer tables and the sets without one, with the reasons. `left_out` keeps the reasons of requested
    sets; with statements, those of sets that the workload asks for beside the statements.
    """
    total, whole = None, WholeTables({}, {}, dict.fromkeys(requested, UNDETERMINED))
    has_levels = names_levels(answered, requested)
    with suppress(PlanError):
        total = max(round(statistics.total(answered, 0.95).estimate), 0)
    if total is not None:
        whole = (tree_tables if has_levels else plain_tables)(answered, requested, total, MOST_CELLS)

    numbers, uncounted = list[NumberTable](), list[NumberTable]()
    for statistic in number_tables(answered, requested, whole.tables, MOST_CELLS):
        known_count = 0 if statistic.by else total or 0  # the group of all records has the total as its count
        is_uncounted = minimum > known_count and "count" not in statistic.table.column_names
        (uncounted if is_uncounted else numbers).append(statistic)

    listed = [*_listed(answered, requested)]
    notes = NOTES if has_levels else ()
    all_ends = {names: _ends(answered, names) for names in whole.tables}

    asked: Iterable[AttributeSet] = requested
    if statements:
        parts = [part for part in answered.estimates.workload.parts if part.name not in answered.selected]
        asked = {names for part in parts for names in part.sets}
    left_out = {names: why for names, why in whole.left_out.items() if names in asked}
    left_out |= {(statistic.name,): UNCOUNTED for statistic in uncounted}
    if minimum:
        left_out |= {(rows.name,): HIDDEN for rows in statements}
        statements = ()
    return Published(
        total=total,
        tables=whole.tables,
        errors=whole.errors,
        left_out=left_out,
        listed=listed,
        numbers=numbers,
        notes=notes,
        ends={names: ends for names, ends in all_ends.items() if ends is not None},
        statements=statements,
    )


def in_formats(published: Published, formats: Sequence[str]) -> Published:
    """Return what some of the formats can have: rows of statements are in csv, parquet and xlsx only.

    FORMATS are the formats that can store statements. Without any of these, statements are left out for the reason
    NO_CUBE.
    """
    if not set(formats).isdisjoint(FORMATS):
        return published
    left_out = dict(published.left_out) | {(rows.name,): NO_CUBE for rows in published.statements}
    return replace(published, left_out=left_out, statements=())


def _ends(answered: Answered, names: AttributeSet) -> tuple[Floats, Floats] | None:
    """Return the ends of the intervals of all cells of a set; None if they are not estimated themselves.

    Intervals have the probability LEVEL. Both ends are at least 0, because counts are, and have two digits. PlanError
    means that the measurements do not determine the cells.
    """
    try:
        estimate, error = answered.cells(names)
    except PlanError:
        return None
    margin = half_width(LEVEL, answered.estimates.noise) * error
    low, high = np.maximum(estimate - margin, 0), np.maximum(estimate + margin, 0)
    return np.asarray(np.round(low, 2), np.float64), np.asarray(np.round(high, 2), np.float64)


def plain_tables(answered: Answered, requested: Sequence[AttributeSet], total: int, most_cells: int) -> WholeTables:
    """Return tables of attributes that are no levels of hierarchies, fitted to the margins of smaller ones.

    The sets are `closed`: they contain the common margins of each two, smallest first, so that each table is fitted to
    the margins that it shares with earlier ones.

    `total` is the published number of records, which all tables sum to. A set of a public total has its exact table
    without an error. The result has the tables of the requested sets, the standard errors, and the reasons for sets
    without a table.
    """
    whole: dict[AttributeSet, Integers] = {(): np.array(total)}
    errors, left_out = dict[AttributeSet, Floats](), dict[AttributeSet, str]()
    domain = answered.estimates.workload.domain

    for names in closed([*requested, *known_sets(domain, requested)]):
        if (known := domain.known_table(names)) is not None:
            whole[names], errors[names] = known, np.zeros(known.shape)
            continue
        if domain.cells(names) > most_cells:
            left_out[names] = f"it has more than {most_cells:,} cells"
            continue

        try:
            estimate, errors[names] = answered.cells(names)
        except PlanError:
            left_out[names] = UNDETERMINED
            continue

        # fitted to the integer tables of its subsets, with 0 at impossible cells; None if they contradict
        fitted = adjust_to_constraints(
            estimate, names, below(names, whole), possible(domain.rules, names, domain.shape(names))
        )
        if fitted is None:
            left_out[names] = CONTRADICTION
        else:
            whole[names] = fitted

    tables = {names: whole[names] for names in requested if names in whole and names}
    return WholeTables(tables, errors, {names: why for names, why in left_out.items() if names in requested})


def _listed(answered: Answered, requested: Sequence[AttributeSet]) -> Iterator[tuple[str, pa.Table]]:
    """Yield the queries that are listed by predicates over the sets: counts as non-negative integers.

    A pair is (name of the part and its attributes joined by "-", table with labels, a column `count` or `value`, and
    `std_error`). `requested` are the sets that are published. Counts are at least 0 and whole; other values have two
    digits.
    """
    for part, names, table in answered.listed(0.95):
        by = tuple(name for name in names if name not in part.domain.number_names)
        # queries over unpublished sets are no tables of this publication
        if by and by not in requested:
            continue
        values = table["estimate"].to_numpy()
        values = np.maximum(np.rint(values), 0).astype(np.int64) if part.are_counts else np.round(values, 2)
        named = table.select([name for name in table.column_names if name not in (*FIGURES, EXTRAPOLATED)])
        named = named.rename_columns([label_column(name) for name in named.column_names])
        named = named.append_column("count" if part.are_counts else "value", pa.array(values))
        errors = pa.array(np.round(table["std_error"].to_numpy(), 2), from_pandas=True)
        yield "-".join([part.name, *names]), named.append_column("std_error", errors)


def closed(requested: Iterable[AttributeSet]) -> list[AttributeSet]:
    """Return the sets, their single attributes and the pairwise intersections, smallest first.

    The intersection of two sets is the common margin on which their tables must agree; the empty set is omitted.
    """
    sets = dict.fromkeys(names for names in requested if names)
    for first, second in combinations(list(sets), 2):
        sets[tuple(name for name in first if name in second)] = None
    sets.update(dict.fromkeys((name,) for names in list(sets) for name in names))
    return sorted((names for names in sets if names), key=len)


def below(names: AttributeSet, whole: Mapping[AttributeSet, Integers]) -> dict[AttributeSet, Integers]:
    """Return the largest integer tables over subsets of a set."""
    inside = [subset for subset in whole if set(subset) < set(names)]
    maximal = [subset for subset in inside if not any(set(subset) < set(other) for other in inside)]
    return {subset: whole[subset] for subset in maximal}


def chosen(
    answered: Answered, sets: Sequence[Sequence[str]], degree: int | None, others: bool = False
) -> list[AttributeSet]:
    """Return the named sets, or all sets of the workload with a degree.

    `others` states that the publication has other tables, so that there need not be a small set.

    A set is small enough with at most MOST_CELLS cells, or MOST_TREE_CELLS with a level of a hierarchy.

    Raises
    ------
    JobError
        For too many sets, or if none is small enough.
    """
    domain = answered.estimates.workload.domain
    named = [domain.ordered(names) for names in sets] or [
        names for names in _counted_sets(answered) if names and degree in (None, len(names))
    ]
    named = list(dict.fromkeys(named))
    most = {names: MOST_TREE_CELLS if names_levels(answered, [names]) else MOST_CELLS for names in named}
    fit = sum(domain.cells(names) <= most[names] for names in named)
    has_totals = degree is None and any(
        names and not set(names) - domain.number_names for names in answered.estimates.workload.sets
    )
    if not (fit or others or (has_totals and not named)) or len(named) > MOST_SETS:
        small = f"{fit:,}" if fit else "none"
        limit = quantity(max(most.values(), default=MOST_CELLS), "cell")
        got = f"{quantity(len(named), 'set')}, {small} with at most {limit}" if named else "no set"
        raise JobError("publish", got, f"1 to {MOST_SETS:,} sets", "select some with --set age,sex or --degree 2")
    return named


def _counted_sets(answered: Answered) -> list[AttributeSet]:
    """Return the sets of the workload without numbers, which tables of counts do not have."""
    numbers = answered.estimates.workload.domain.number_names
    sets = answered.estimates.workload.sets
    return list(dict.fromkeys(tuple(name for name in names if name not in numbers) for names in sets))


ABOUT = ("title", "publisher", "contact", "licence", "notes")  # words of the job for readers
README, CODEBOOK, BOOK, BOOK_FORMAT = "README.txt", "codebook.csv", "tables.xlsx", "xlsx"
DESCRIPTION = (
    "Post-processing of a differentially private release: computed from its noisy answers alone, without the"
    " data and without further privacy cost. Counts are estimates, not the true numbers."
)
MOST_NAME = 60  # characters of the name of a table in the name of its file
MOST_ROWS = 1_048_576  # of a sheet of Excel, with the header


def write_published(
    folder: Path,
    domain: Domain,
    published: Published,
    release: str,
    limit: float,
    formats: Sequence[str],
    counted: str = "",
    minimum: int = 0,
    about: Mapping[str, str] = MappingProxyType({}),
) -> list[str]:
    """Write all files of a publication and return their names.

    An older publication is replaced; a folder with other files is refused. `counted` states in words what is counted of
    a privacy unit (`Protection.counted`), `about` has the words of the job for readers. Counts below `minimum`, and
    numbers of such groups, are not published.

    A standard error above `limit` times the count makes a figure unreliable (`flag`).
    """
    description = f"{DESCRIPTION} Of the records, {counted}." if counted else DESCRIPTION
    if BOOK_FORMAT in formats:
        _workbook()
    _emptied(folder)
    finished = finished_tables(domain, published, limit, minimum)
    rows = {name: flag_rows(of_statement, limit) for name, of_statement in _statement_names(published)}
    tables = {table.name: table.table for table in finished}
    write_tables(
        folder,
        domain,
        finished,
        release,
        formats,
        description,
        publication_notes(description, limit, minimum, about),
        about,
        rows,
    )
    _csv(folder / CODEBOOK, codebook(domain, published))
    text = readme(published, release, limit, dict(_names(published.tables)), description, minimum)
    words = [f"{key}: {about[key]}" for key in ABOUT if key in about]
    write_whole(folder / README, "\n".join([*words, *([""] if words else []), text]).encode())
    files = _files(folder)
    meanings = {axis.name: ". ".join(words) for axis in domain.axes if (words := _meaning(axis))}
    described = describe(folder, files, tables | rows, release, description, about, meanings)
    write_whole(folder / CROISSANT, json.dumps(described, indent=1, ensure_ascii=False).encode())

    return _files(folder)


def publication_notes(description: str, limit: float, minimum: int, about: Mapping[str, str]) -> list[str]:
    """Return the notes of the tables of a publication for readers."""
    return [description, *flag_notes(limit, minimum), *([about["notes"]] if "notes" in about else [])]


def write_tables(
    folder: Path,
    domain: Domain,
    finished: Sequence[FinishedTable],
    release: str,
    formats: Sequence[str],
    description: str,
    notes: Sequence[str],
    about: Mapping[str, str],
    rows: Mapping[str, pa.Table] = MappingProxyType({}),
) -> None:
    """Write tables in some formats, each in a folder of its own; `notes` are those of statistical files.

    `rows` are those of statements, which statistical files cannot have.
    """
    tables = {table.name: table.table for table in finished}
    for kind in formats:
        if kind in FORMATS:
            FORMATS[kind](folder, tables | dict(rows), release, description)
        else:
            source = f"{about['publisher']}, release {release}" if "publisher" in about else f"release {release}"
            known = dimensions_of(domain)
            STATISTICAL[kind](_place(folder, kind), [table.cube(notes, known) for table in finished], source)


def dimensions_of(domain: Domain) -> dict[str, Dimension]:
    """Return titles and labels of the attributes by name, for the columns of published tables."""
    dimensions = {}
    for attribute in domain.attributes:
        words = dict(zip(texts(attribute), words_of(attribute), strict=True))
        title = title_of(domain, attribute.name)
        dimensions[attribute.name] = Dimension(name=attribute.name, title=title, values=(), words=words)
    return dimensions


def _meaning(axis: Attribute) -> list[str]:
    """Return title, description and unit of an attribute or number."""
    return [text for text in (axis.words.title, axis.words.description, axis.words.unit) if text]


def _files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def labelled(domain: Domain, published: Published, names: AttributeSet, limit: float) -> pa.Table:
    """Return an Arrow table of labels, `count`, `std_error` and `flag`.

    The flag is `unreliable` if the error is more than `limit` times the count.
    """
    counts = published.tables[names].reshape(-1)
    errors = np.broadcast_to(published.errors[names], published.tables[names].shape).reshape(-1)
    cells = np.unravel_index(np.arange(counts.size), published.tables[names].shape)
    columns = {label_column(name): column(domain[name], at) for name, at in zip(names, cells, strict=True)}
    columns |= {"count": counts, "std_error": pa.array(np.round(errors, 2), from_pandas=True)}
    return flagged(pa.table(columns), limit)


def flagged(table: pa.Table, limit: float) -> pa.Table:
    """Return a table of values and errors with the column `flag`.

    A value is flagged as unreliable if its standard error is more than `limit` times its size, or than `limit` for
    sizes below 1.
    """
    value = table["count" if "count" in table.column_names else "value"].to_numpy()
    errors = table["std_error"].to_numpy()
    flags = np.where(errors > limit * np.maximum(np.abs(value), 1), UNRELIABLE, "")
    return table.append_column("flag", pa.array(flags.tolist(), pa.string()))


def with_minimum(table: pa.Table, minimum: int) -> pa.Table:
    """Return a table without the figures of cells whose published count is below a minimum.

    Nothing is hidden if `minimum` is 0 or the table has no counts. COLUMNS_OF_NUMBERS are the columns that become null;
    the column `flag` states the reason.
    """
    if not minimum or "count" not in table.column_names:
        return table
    small = pc.less(table["count"], minimum)
    figures = [name for name in table.column_names if name in COLUMNS_OF_NUMBERS]
    for name in figures:
        kind = table.schema.field(name).type
        hidden = pa.scalar(BELOW_MINIMUM if name == "flag" else None, kind)
        place = table.column_names.index(name)
        table = table.set_column(place, name, pc.if_else(small, hidden, table[name]))
    return table


def flag_notes(limit: float, minimum: int) -> list[str]:
    """Return sentences on the flags of a publication."""
    notes = [f"Values whose standard error is more than {limit:g} times the value are unreliable."]
    if minimum:
        notes.append(f"Counts below {minimum} and the numbers of such groups are not shown. This is a convention;"
                     " the protection is the noise. Margins may determine a count that is not shown.")  # fmt: skip
    return notes


@dataclass(frozen=True, eq=False)
class FinishedTable:
    """Table of a publication, as its files have it.

    Attributes
    ----------
    name : str
        File name without an ending.
    title, unit : str
        For readers.
    attributes : tuple of str
        Those of its groups.
    table : pyarrow.Table
        Labels, figures and `flag`.
    number : NumberTable or None
        Of a statistic of a number.
    ends : tuple of ndarray
        Ends of the 95 % intervals of counts; empty if they are columns of the table, or unknown.
    """

    name: str
    title: str
    unit: str
    attributes: AttributeSet
    table: pa.Table
    number: NumberTable | None = None
    ends: tuple[Floats, ...] = ()

    def with_ends(self) -> pa.Table:
        """Return the table with the columns `low` and `high`, if intervals are known.

        `ends` is (lower ends, upper ends) of the counts' intervals, or empty if these are not known. A hidden count
        (null) has no interval either.
        """
        table, missing = self.table, pc.is_null(self.table["count"]) if self.ends else None
        for end, values in zip(("low", "high"), self.ends, strict=False):
            table = table.append_column(end, pc.if_else(missing, None, pa.array(values.reshape(-1), from_pandas=True)))
        return table

    def cube(self, notes: Sequence[str], known: Mapping[str, Dimension]) -> Cube:
        """Return the table for the files of statistical offices; `known` has titles and labels of attributes."""
        more = [self.number.description] if self.number else []
        return cube_of(self.name, self.with_ends(), self.title, self.unit, [*notes, *more], known)


def finished_tables(domain: Domain, published: Published, limit: float, minimum: int) -> list[FinishedTable]:
    """Return the tables of a publication with their flags, without figures of counts below a minimum.

    `limit` is the relative error from which a value is unreliable. Tables are in this order: counts by attributes,
    listed queries, figures of numbers.
    """
    finished = list[FinishedTable]()
    for name, names in _names(published.tables):
        title = f"Number of records by {', '.join(title_of(domain, attribute) for attribute in names)}"
        table, ends = labelled(domain, published, names, limit), published.ends.get(names, ())
        finished.append(
            FinishedTable(name=name, title=title, unit=RECORDS, attributes=names, table=table, number=None, ends=ends)
        )
    for name, table in _listed_names(published):
        title = f"Number of records: {name[4:]}"  # without the number of the file name, as "007-"
        table = flagged(table, limit)
        finished.append(FinishedTable(name=name, title=title, unit=RECORDS, attributes=(), table=table))
    for name, number in _number_names(published):
        title = number.title[:1].upper() + number.title[1:]
        table = flag_values(number, limit)
        finished.append(
            FinishedTable(name=name, title=title, unit=number.unit, attributes=number.by, table=table, number=number)
        )
    return [replace(table, table=with_minimum(table.table, minimum)) for table in finished]


def _listed_names(published: Published) -> Iterator[tuple[str, pa.Table]]:
    """Yield file names and tables of listed queries, numbered after the other tables."""
    for number, (name, table) in enumerate(published.listed, start=len(published.tables) + 1):
        yield _file_name(number, name), table


def _number_names(published: Published) -> Iterator[tuple[str, NumberTable]]:
    """Yield file names and tables of statistics of numbers, after all others."""
    before = len(published.tables) + len(published.listed)
    for number, table in enumerate(published.numbers, start=before + 1):
        yield _file_name(number, table.name.replace(" of ", "-").replace(" by ", "-")), table


def _statement_names(published: Published) -> Iterator[tuple[str, StatementRows]]:
    """Yield file names and rows of statements, after all tables."""
    before = len(published.tables) + len(published.listed) + len(published.numbers)
    for number, rows in enumerate(published.statements, start=before + 1):
        yield _file_name(number, rows.name), rows


def _file_name(number: int, name: str) -> str:
    """Return a file name without an ending, in characters that every file system accepts."""
    return f"{number:03d}-" + re.sub(r"[^A-Za-z0-9]+", "-", name)[:MOST_NAME].strip("-")


def codebook(domain: Domain, published: Published) -> pa.Table:
    """Return an Arrow table of every published attribute: kind, cells and labels; and the ranges of numbers.

    The words of the domain file follow: the text that readers see in place of a label, title, unit and description.
    """
    sets = [*published.tables, *(number.by for number in published.numbers)]
    names = [name for name in domain.names if any(name in of_table for of_table in sets)]
    rows = list[tuple[str, str, int | None, str, str]]()
    for name in names:
        labels = zip(texts(domain[name]), words_of(domain[name]), strict=True)
        rows += [(name, domain[name].kind, cell, label, shown) for cell, (label, shown) in enumerate(labels)]
    rows += [(*row, "") for row in codebook_rows(published.numbers)]

    keys, entries = ("attribute", "kind", "cell", "label", "shown"), list[dict[str, Any]]()
    for row in rows:
        words = domain[row[0]].words
        entries.append(dict(zip(keys, row, strict=True)) | {"title": words.title, "unit": words.unit,
                                                            "description": words.description})  # fmt: skip
    return pa.Table.from_pylist(entries)


def readme(
    published: Published,
    release: str,
    limit: float,
    files: Mapping[str, AttributeSet],
    description: str = DESCRIPTION,
    minimum: int = 0,
) -> str:
    """Return the text that describes the tables, their computation, and the omitted sets.

    `limit` is the ratio of standard error to count above which a count is flagged, and counts below `minimum` are
    hidden. `files` are the names of the files by their set.
    """
    listed = [f"  {name}: {', '.join(names)}" for name, names in files.items()]
    listed += [f"  {name}: listed queries, each rounded alone" for name, _ in _listed_names(published)]
    listed += [f"  {name}: {table.description}" for name, table in _number_names(published)]
    listed += [f"  {name}: {rows.line}" for name, rows in _statement_names(published)]
    omitted = [f"  {', '.join(names)}: {why}" for names, why in published.left_out.items()] or ["  none"]
    numbers = [*(column_notes(limit) if published.numbers else []), *(row_notes(limit) if published.statements else [])]
    # a file of Excel cannot have them
    if any(table.size >= MOST_ROWS for table in published.tables.values()):
        omitted.append(f"  tables of {MOST_ROWS:,} rows or more: in {BOOK} only, because no sheet has more rows")

    return "\n".join([
        f"Tables of release {release}", "", description, "", *_total_notes(published.total),
        *published.notes,
        "For sums of many cells use the answers of the release.", "",
        "count      the published number",
        "std_error  standard error of the underlying estimate; empty: unknown",
        f"flag       '{UNRELIABLE}' if the standard error is more than {limit:g} times the count (or than {limit:g},"
        " for a count of 0)", *([f"flag 'minimum': {flag_notes(limit, minimum)[1]}"] if minimum else []), *numbers,
        "", "Labels are in codebook.csv.", "", "Tables", *listed, "", "Omitted", *omitted, "",
    ])  # fmt: skip


def _total_notes(total: int | None) -> list[str]:
    """Return the lines on the total and the tables that add up to it."""
    if total is None:
        return ["The answers do not determine the number of records, so there are no tables that add up to it."]
    return [
        f"Total: {total:,}. All counts are non-negative integers, and tables add up: common margins of two",
        "tables are equal. Combinations that the domain declares impossible are 0. For this, estimates are",
        "truncated at zero, fitted to the margins of smaller tables and rounded, so small counts are biased.",
    ]


def _names(tables: Mapping[AttributeSet, Any]) -> Iterator[tuple[str, AttributeSet]]:
    """Yield file names without an ending: a number and the attributes."""
    for number, names in enumerate(tables, start=1):
        yield _file_name(number, "-".join(names)), names


def _emptied(folder: Path) -> None:
    """Create the folder, or remove an older publication in it. Raises JobError for any other folder with files.

    README and CODEBOOK are in every publication, so a folder with both is an older publication and may be replaced.
    """
    if folder.is_symlink():
        raise JobError("--out", f"{folder} is a symbolic link", "a real folder", "name the folder that it points to")

    if folder.exists() and any(folder.iterdir()):
        if not (folder / README).is_file() or not (folder / CODEBOOK).is_file():
            raise JobError("--out", f"{folder} contains other files", "a new or empty folder, or an older publication",
                           "choose another folder")  # fmt: skip
        shutil.rmtree(folder)

    folder.mkdir(parents=True, exist_ok=True)


def _csv(path: Path, table: pa.Table) -> None:
    out = io.BytesIO()
    arrow_csv.write_csv(without_dictionaries(_escaped(table)), out)
    write_whole(path, out.getvalue())


def _all_csv(folder: Path, tables: Mapping[str, pa.Table], release: str, description: str) -> None:
    for name, table in tables.items():
        _csv(_place(folder, "csv") / f"{name}.csv", table)


def _all_parquet(folder: Path, tables: Mapping[str, pa.Table], release: str, description: str) -> None:
    """Write a Parquet file for each table, with the description and the release in the metadata of its schema."""
    for name, table in tables.items():
        out = io.BytesIO()
        metadata = {"description": description, "release": release, **(table.schema.metadata or {})}
        pq.write_table(table.replace_schema_metadata(metadata), out)
        write_whole(_place(folder, "parquet") / f"{name}.parquet", out.getvalue())


def _excel(folder: Path, tables: Mapping[str, pa.Table], release: str, description: str) -> None:
    """Write one workbook: a sheet with a description, and one for each table.

    MOST_ROWS is the number of rows of a sheet; longer tables are only listed on the first sheet. Names of sheets have
    at most 31 characters. Texts are escaped so that they are not read as formulas or invalid XML.
    """
    book = _workbook()(write_only=True)
    first = book.create_sheet("about")
    about = [f"{name}: {_statistic(table)}" if _statistic(table) else name for name, table in tables.items()]
    long = [name for name, table in tables.items() if table.num_rows >= MOST_ROWS]
    about += [f"{name}: omitted here, because a sheet has at most {MOST_ROWS:,} rows" for name in long]
    for line in (f"Tables of release {release}", description, *about):
        first.append([_as_xml(line)])

    for name, table in ((name, table) for name, table in tables.items() if name not in long):
        sheet = book.create_sheet(name[:31])
        plain = without_dictionaries(_escaped(table))
        # the header, then the rows
        for row in (plain.column_names, *zip(*plain.to_pydict().values(), strict=True)):
            sheet.append([_as_xml(cell) if isinstance(cell, str) else cell for cell in row])

    out = io.BytesIO()
    book.save(out)
    write_whole(folder / BOOK, out.getvalue())


def _workbook() -> Any:
    """Return the class of workbooks. Raises JobError if its package is missing."""
    try:
        from openpyxl import Workbook
    except ImportError:
        raise JobError("--format", "xlsx, without openpyxl", "csv or parquet, or the extra dpscale[excel]",
                       "pip install 'dpscale[excel]'") from None  # fmt: skip
    return Workbook


NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def _as_xml(text: str) -> str:
    """Replace characters that a file of XML cannot have."""
    return NOT_IN_XML.sub("\ufffd", text)


def _statistic(table: pa.Table) -> str:
    """Return the description of a statistic of a number, or the text of a statement; "" for another table."""
    known = table.schema.metadata or {}
    return str(known.get(STATISTIC, known.get(SQL, b"")).decode())


def _escaped(table: pa.Table) -> pa.Table:
    """Put an apostrophe before headers and texts that a spreadsheet would read as formulas; numbers stay numbers."""
    columns = []
    for values in table.columns:
        columns.append(_escaped_texts(values) if pa.types.is_string(_value_type(values.type)) else values)
    return pa.table(columns, names=[escape_formula(name) for name in table.column_names])


def _value_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _escaped_texts(values: pa.ChunkedArray) -> pa.Array:
    """Return a column of texts with escapes, each distinct text being looked at once.

    A column that is not dictionary-encoded is encoded first; the result is a dictionary array with the escaped labels.
    """
    encoded = values if pa.types.is_dictionary(values.type) else values.dictionary_encode()
    unified = encoded.unify_dictionaries().combine_chunks()
    labels = pa.array([escape_formula(value) for value in unified.dictionary.to_pylist()], pa.string())
    return pa.DictionaryArray.from_arrays(unified.indices, labels)


def _place(folder: Path, kind: str) -> Path:
    (folder / kind).mkdir(parents=True, exist_ok=True)
    return folder / kind


FORMATS: dict[str, Callable[[Path, Mapping[str, pa.Table], str, str], None]] = {
    "csv": _all_csv,
    "parquet": _all_parquet,
    BOOK_FORMAT: _excel,
}
DOWNLOADS = {"csv": ("CSV", "csv"), "parquet": ("Parquet", "parquet"), "json-stat": ("JSON-stat", "json")}  # of a site


def describe(
    folder: Path,
    files: list[str],
    tables: Mapping[str, pa.Table],
    release: str,
    description: str,
    about: Mapping[str, str] = MappingProxyType({}),
    meanings: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the Croissant description of a publication.

    Parameters
    ----------
    folder : Path
    files : list of str
        Files of the publication, relative to the folder.
    tables : mapping of str to pyarrow.Table
        Tables by file name without an ending.
    release : str
        Public name of the release.
    description : str
        Text for people.
    about : mapping of str to str
        Words of the job for readers.
    meanings : mapping of str to str
        Descriptions of attributes and numbers.

    Returns
    -------
    dict
        JSON-LD.
    """
    return {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": CONFORMS,
        "name": f"release-{release}",
        **_published_by(about),
        "description": " ".join([*([about["notes"]] if "notes" in about else []), description]),
        "version": "1.0.0",
        "distribution": [_file(folder, name) for name in files],
        "recordSet": [_records(name, table, source, COLUMN_TEXTS | dict(meanings)) for name, table in tables.items()
                      if (source := _source(name, files)) is not None],
    }  # fmt: skip


def _published_by(about: Mapping[str, str]) -> dict[str, Any]:
    """Return headline, licence and publisher in terms of schema.org."""
    contact = (
        {"contactPoint": {"@type": "sc:ContactPoint", "description": about["contact"]}} if "contact" in about else {}
    )
    publisher = {"@type": "sc:Organization", "name": about.get("publisher", ""), **contact}
    given = {"headline": about.get("title"), "license": about.get("licence")}
    has_publisher = about.get("publisher") or contact
    by_publisher = {"publisher": publisher, "creator": publisher} if has_publisher else {}
    return {key: text for key, text in given.items() if text} | by_publisher


def _file(folder: Path, name: str) -> dict[str, Any]:
    """Return the Croissant description of a file: its name, size, format and SHA-256."""
    content = (folder / name).read_bytes()
    return {
        "@type": "cr:FileObject",
        "@id": name,
        "name": name,
        "contentUrl": name,
        "contentSize": f"{len(content)} B",
        "encodingFormat": ENCODINGS.get(Path(name).suffix, "application/octet-stream"),
        "sha256": hashlib.sha256(content).hexdigest(),
    }


def _source(name: str, files: list[str]) -> str | None:
    """Return the file that has a table of its own; None if it is only a sheet of a workbook."""
    return next((file for file in (f"parquet/{name}.parquet", f"csv/{name}.csv") if file in files), None)


def _records(name: str, table: pa.Table, file: str, meanings: Mapping[str, str]) -> dict[str, Any]:
    fields = [_field(name, column, file, meanings) for column in table.schema]
    return {"@type": "cr:RecordSet", "@id": name, "name": name, "field": fields}


def _field(table: str, column: pa.Field, file: str, meanings: Mapping[str, str]) -> dict[str, Any]:
    """Return the Croissant description of a column of a table in a file."""
    header = escape_formula(column.name) if file.endswith(".csv") else column.name  # as the files have it
    description = {"description": meanings[column.name]} if column.name in meanings else {}
    return {
        "@type": "cr:Field",
        "@id": f"{table}/{column.name}",
        "name": column.name,
        **description,
        "dataType": _type_of(column.type),
        "source": {"fileObject": {"@id": file}, "extract": {"column": header}},
    }


def _type_of(kind: pa.DataType) -> str:
    """Return the type of schema.org."""
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    if pa.types.is_boolean(value):
        return "sc:Boolean"
    if pa.types.is_integer(value):
        return "sc:Integer"
    if pa.types.is_floating(value):
        return "sc:Float"
    return "sc:Date" if pa.types.is_date(value) else "sc:Text"
