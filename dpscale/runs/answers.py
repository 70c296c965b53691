"""Parquet files of answers: many attribute sets in a file, one schema per folder, and an index of all sets.

    answers/FAMILY-DEGREE/PART-NUMBER.parquet, …      answers/index.parquet

A row is a query. Its columns are, for each attribute of the set, the name (`attribute_1`, `attribute_2`, …) and the
label that the query selects (`value_1`, …), or the two labels of a query with two ends (`low_1` and `high_1`, or
`start_1` and `end_1`), or the number of the query if queries are not products (`query`); then `estimate`, `std_error`,
`low` and `high`. Labels are integers if all labels of the domain are, otherwise texts. A missing value is "(null)"
among texts and null among integers. The rows of a set are adjacent, its queries in row-major order.

`index.parquet` has one row per set: part, family, attributes, queries, file, first row in the file, rms_error. For
answers of a model it also has `extrapolated`: whether the model goes beyond the row space of the measurements.

The report summarizes relative standard errors by family and number of attributes from these files, that is from
released values and their standard errors; if there are very many rows, from a sample of whole files. The trace of
adaptive selections, `trace.parquet`, is read and written here too.

Rows of the SELECT statements of a job are computed from the released values of a run.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscale.answers.published_values import StatementRows
from dpscale.answers.ratios import Figures
from dpscale.answers.selections import selection_table, shown_rows
from dpscale.answers.tables import Answered, title_of, words_of
from dpscale.answers.unit_counts import in_order
from dpscale.base.arrow import arrow_csv, pa, pq, without_dictionaries
from dpscale.base.display import escape_formula, nearest
from dpscale.base.errors import JobError, PlanError
from dpscale.base.numerics import AttributeSet, Floats, Integers32
from dpscale.domain import Domain
from dpscale.domain.attribute import NULL_LABEL
from dpscale.reconstruction.base import Estimates
from dpscale.runs.table import TablePart
from dpscale.storage.files import reading, writing
from dpscale.workload import RECORDS, Family, WorkloadPart
from dpscale.workload.sql.selection import select
from dpscale.workload.sql.statements import Statement

INDEX = "index.parquet"
FIGURES = ("estimate", "std_error", "low", "high")
FILE_DESCRIPTION = (
    "Answers of a differentially private release, with noise: a row is a query. Post-processing of it is free."
)
DESCRIPTIONS = {
    "attribute": "name of an attribute of the set",
    "low": "label of the first value that the query counts, or lower end of the 95 % interval",
    "high": "label of the last value that the query counts, or upper end of the 95 % interval",
    "estimate": "estimated number of records",
    "std_error": "standard error in records; not a number: there is none",
}
OF_NUMBERS = {"estimate": "estimate", "std_error": "standard error"}
LARGE_PAGES: dict[str, Any] = {"data_page_size": 1 << 26, "write_batch_size": 1 << 20}
SetAnswers = tuple[AttributeSet, Figures]  # a set's estimates, standard errors and intervals, flat

FOLDER = "queries"


@dataclass(frozen=True, eq=False)
class AnswerColumns:
    """Columns of the answers of one family and degree.

    Attributes
    ----------
    domain : Domain
    part : WorkloadPart
    degree : int
        Number of names that identify a query of each set.
    intervals : str
        Description of `low` and `high`; "" for separate 95 % intervals.
    """

    domain: Domain
    part: WorkloadPart
    degree: int
    intervals: str = ""

    @cached_property
    def labels(self) -> Labels:
        return Labels(self.domain)

    @property
    def folder(self) -> str:
        return f"{self.part.name}-{self.degree}"

    @cached_property
    def schema(self) -> pa.Schema:
        """Schema of the file: names of attributes, their selected cells or the query's number, estimate and error.

        `axes` number the attributes of a set, and `part.ends` describe the columns that select a cell on an axis.
        Labels are integers if all are (`labels.numeric`), otherwise texts. FIGURES are the columns of numbers.
        """
        text = pa.dictionary(pa.int32(), pa.string())
        selection = pa.int64() if self.labels.numeric else text
        fields = [
            pa.field(f"attribute_{axis}", text, nullable=False, metadata=_description("attribute"))
            for axis in self.axes
        ]
        fields += [
            pa.field(f"{end.column}_{axis}", text if end.is_text else selection,
                     metadata={"description": end.description})
            for axis in self.axes for end in self.part.ends
        ]  # fmt: skip
        if not self.part.ends:  # queries that are no product of cells have a number or a text
            fields.append(pa.field("query", text if self.part.query_texts else pa.int64(), nullable=False))
        fields += [
            pa.field(name, pa.float64(), nullable=False, metadata=self._figure_metadata(name)) for name in FIGURES
        ]
        about = {"description": FILE_DESCRIPTION, "family": self.part.name, "attributes": str(self.degree)}
        if self.intervals:
            about["intervals"] = self.intervals
        return pa.schema(fields, metadata=about)

    def _figure_metadata(self, name: str) -> dict[str, str]:
        """Return the metadata of a numeric column.

        `intervals` describes the intervals, or is empty without them. OF_NUMBERS are the columns whose unit may differ
        from records.
        """
        ends = {"low": "lower", "high": "upper"}
        if self.intervals and name in ends:
            return {"description": f"{ends[name]} end of the interval: {self.intervals}"}
        unit = self.part.unit(self.part.sets[0])
        if name in OF_NUMBERS and unit != RECORDS:
            return {"description": f"{OF_NUMBERS[name]} in units of {unit}; not a number: there is none"}
        return _description(name)

    @property
    def axes(self) -> range:
        return range(1, self.degree + 1)

    def table(self, answers: Sequence[SetAnswers]) -> pa.Table:
        """Return the rows of some sets as an Arrow table.

        An answer is (names of the set, figures): estimates, standard errors, and both ends of the intervals of its
        queries. All sets have the degree of these columns.
        """
        sets, counts = [names for names, _ in answers], [len(figures.estimates) for _, figures in answers]
        columns: list[Any] = []
        for axis in self.axes:  # axes are numbered from 1, as in the names of the columns
            columns.append(self._name_column([names[axis - 1] for names in sets], counts))
        for axis in self.axes:
            columns += self._selection_columns(axis - 1, sets)

        numbers = [np.arange(count, dtype=np.int32) for count in counts]  # of the queries of each set
        if self.part.query_texts:
            columns.append(_texts_column([self.part.query_texts], numbers))
        elif not self.part.ends:
            columns.append(np.concatenate(numbers).astype(np.int64))

        columns += [np.concatenate([figures[k] for _, figures in answers]) for k in range(len(FIGURES))]
        return pa.table(columns, schema=self.schema)

    def _name_column(self, names: Sequence[str], counts: Sequence[int]) -> pa.DictionaryArray:
        """Return the column of an attribute's name: `names` has that of each set, repeated for its `counts` queries."""
        code_of: dict[str, int] = {}  # distinct names, numbered in the order of their first use
        codes = np.repeat(np.array([code_of.setdefault(name, len(code_of)) for name in names], np.int32), counts)
        return pa.DictionaryArray.from_arrays(codes, pa.array(list(code_of), pa.string()))

    def _selection_columns(self, axis: int, sets: Sequence[AttributeSet]) -> Iterator[pa.Array]:
        """Yield the selection columns of the attribute at position `axis` of every set.

        There is a column for each end of the cells that a query selects, for example the first and the last cell; none
        if queries are not products. The queries of a set are the product of a family of queries per attribute.
        """
        if not self.part.ends:
            return
        families = [self.part.label_families(names) for names in sets]  # of each set, a family per attribute
        cells_by_end = [query_cells(of_set, self.domain.shape(names))[axis]
                        for of_set, names in zip(families, sets, strict=True)]  # fmt: skip
        for number, end in enumerate(self.part.ends):
            cells = [of_set[number] for of_set in cells_by_end]
            if end.is_text:
                yield _texts_column([of_set[axis].texts for of_set in families], cells)
            else:
                yield self.labels.column([names[axis] for names in sets], cells)


def _texts_column(texts: Sequence[Sequence[str]], numbers: Sequence[Integers32]) -> pa.DictionaryArray:
    """Return the texts of the queries of several sets as one column.

    Parameters
    ----------
    texts : sequence of sequence of str
        Possible texts of each set.
    numbers : sequence of ndarray
        For each set, the position in its `texts` of the text of every row.
    """
    code_of: dict[str, int] = {}  # distinct texts of all sets, numbered in the order of their first use
    codes = [np.array([code_of.setdefault(text, len(code_of)) for text in of_set], np.int32) for of_set in texts]
    code_of_row = np.concatenate([of_set[rows] for of_set, rows in zip(codes, numbers, strict=True)])
    return pa.DictionaryArray.from_arrays(pa.array(code_of_row), pa.array(list(code_of), pa.string()))


def _description(name: str) -> dict[str, str]:
    """Return the metadata of a column."""
    return {"description": DESCRIPTIONS[name]}


@lru_cache(maxsize=64)
def query_cells(families: tuple[Family, ...], shape: tuple[int, ...]) -> list[list[Integers32]]:
    """Return, for each attribute, the cells that every query of a product of families selects.

    `shape` has the number of cells of each attribute. The entry of an attribute has one array for each end of the
    selected cells, with a cell for every query. Queries are in row-major order: those of the last attribute change
    fastest.
    """
    bounds_of_axes = [family.bounds(cells) for family, cells in zip(families, shape, strict=True)]
    counts, selected = [len(ends[0]) for ends in bounds_of_axes], []
    for axis, ends in enumerate(bounds_of_axes):
        # each cell is repeated for the queries of later attributes, and this sequence for those of earlier ones
        earlier, later = int(np.prod(counts[:axis], dtype=int)), int(np.prod(counts[axis + 1 :], dtype=int))
        selected.append([np.tile(np.repeat(cells.astype(np.int32), later), earlier) for cells in ends])
    return selected


@dataclass(frozen=True, eq=False)
class Labels:
    """Labels of a domain as values of a column: integers if all labels are, otherwise texts."""

    domain: Domain
    _cache: dict[str, NDArray[np.int64]] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def numeric(self) -> bool:
        """Whether all labels are integers or null."""
        return all(isinstance(label, int | None) for attribute in self.domain.axes for label in attribute.labels)

    def column(self, names: Sequence[str], cells: Sequence[Integers32]) -> pa.Array:
        """Return the labels of cells of several attributes as one column.

        An entry of `cells` has cells of the attribute at the same position in `names`; the column has their labels one
        after the other. A null label is null among integers and a text among texts.
        """
        pairs = list(zip(names, cells, strict=True))
        if self.numeric:
            labels = np.concatenate([self._numbers(name)[of_name] for name, of_name in pairs])
            null_cells = {name: self.domain[name].null_cell for name in names}
            if all(cell < 0 for cell in null_cells.values()):
                return pa.array(labels)
            return pa.array(labels, mask=np.concatenate([of_name == null_cells[name] for name, of_name in pairs]))
        known: dict[str, int] = {}  # code of each label of all attributes
        codes_of_cells = {name: self._codes(name, known) for name in dict.fromkeys(names)}
        codes = np.concatenate([codes_of_cells[name][of_name] for name, of_name in pairs])
        return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(list(known), pa.string()))

    def _numbers(self, name: str) -> NDArray[np.int64]:
        """Return the labels of an integer attribute as an array, 0 for cells without a label (nulls)."""
        if name not in self._cache:
            labels = self.domain[name].labels
            self._cache[name] = np.fromiter((label or 0 for label in labels), np.int64, len(labels))
        return self._cache[name]

    def _codes(self, name: str, known: dict[str, int]) -> Integers32:
        """Return the code of each cell; new labels are added to `known`."""
        texts = [NULL_LABEL if label is None else str(label) for label in self.domain[name].labels]
        return np.array([known.setdefault(text, len(known)) for text in texts], np.int32)


def write_index(folder: Path, parts: Sequence[WorkloadPart], rows: Mapping[str, Any]) -> None:
    """Write index.parquet.

    `first` is the row of the file at which the set begins, -1 without a file.

    Parameters
    ----------
    folder : Path
    parts : sequence of WorkloadPart
    rows : mapping of str to ndarray, shape (sets,)
        part, queries, file (−1: none), first and rms_error of every set; extrapolated for answers of a model. `names`
        is the list of file names.
    """
    families = pa.array([part.name for part in parts], pa.string())
    sets = [list(part.shown(names)) for part in parts for names in part.sets]
    text, errors = pa.dictionary(pa.int32(), pa.string()), rows["rms_error"]
    columns = {
        "part": pa.array(rows["part"], pa.int32()),
        "family": pa.DictionaryArray.from_arrays(pa.array(rows["part"], pa.int32()), families).cast(text),
        "attributes": pa.array(sets, pa.list_(pa.string())),
        "queries": pa.array(rows["queries"], pa.int64()),
        "file": pa.DictionaryArray.from_arrays(pa.array(rows["file"], mask=rows["file"] < 0),
                                               pa.array(rows["names"], pa.string())),
        "first": pa.array(rows["first"], pa.int64()),
        "rms_error": pa.array(errors, mask=np.isnan(errors)),
    }  # fmt: skip
    if "extrapolated" in rows:
        columns["extrapolated"] = pa.array(rows["extrapolated"], pa.bool_())
    with writing(folder / INDEX) as file:
        pq.write_table(pa.table(columns), file)


def read_index(folder: Path) -> pa.Table:
    """Return index.parquet as an Arrow table: a row for every set of every part, in the order of the workload."""
    with reading(folder / INDEX) as file:
        return pq.read_table(file)


def answer_texts(folder: Path, rows: Sequence[Mapping[str, Any]], most: int) -> dict[int, str]:
    """Return the answers of rows of the index as CSV, for reading and spreadsheets.

    Parameters
    ----------
    folder : Path
    rows : sequence of mapping
        In the order in which they are taken.
    most : int
        Largest number of queries of all rows together; a row with more than remain is left out.

    Returns
    -------
    dict of int to str
        Texts by position in `rows`. Figures have three digits of the smallest standard error of the file.
    """
    by_file, texts = dict[str, list[int]](), dict[int, str]()  # positions of rows by their file; answers by position
    for place, row in enumerate(rows):
        if row["file"] is not None and row["queries"] <= most:
            by_file.setdefault(row["file"], []).append(place)
            most -= row["queries"]
    for name, places in by_file.items():
        chosen = [rows[place] for place in places]
        table = _read_sets(folder / name, chosen)
        lines = iter(_csv_lines(table))
        for place, row in zip(places, chosen, strict=True):
            head = _csv_head(table.column_names, row["attributes"])
            texts[place] = "\n".join([head, *islice(lines, row["queries"])])
    return texts


def _read_sets(path: Path, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return the answers of several sets of a file, without the names of attributes.

    Row groups after the last requested row are not read; no set begins before the first group.
    """
    with reading(path) as opened, pq.ParquetFile(opened) as file:
        columns = [name for name in file.schema_arrow.names if not name.startswith("attribute_")]
        end = max(row["first"] + row["queries"] for row in rows)  # first row of the file that is not requested
        groups, begin = list[int](), 0  # `begin` is the first row of a group
        for number in range(file.num_row_groups):
            if begin < end:
                groups.append(number)
            begin += file.metadata.row_group(number).num_rows
        table = file.read_row_groups(groups, columns=columns)
    return pa.concat_tables([table.slice(row["first"], row["queries"]) for row in rows])


def _csv_lines(table: pa.Table) -> list[str]:
    """Return the rows of answers as lines of CSV without a header; texts that look like formulas are escaped.

    Line breaks in labels become blanks, so that a row is one line. Figures have at most 12 decimals.
    """
    errors = table["std_error"].to_numpy()
    smallest = errors[errors > 0].min(initial=np.inf)
    # decimals that show three digits of the smallest error; 6 if no error is known
    digits = int(np.clip(2 - np.floor(np.log10(smallest)), 0, 12)) if np.isfinite(smallest) else 6

    columns = []
    for name, values in zip(table.column_names, table.columns, strict=True):
        if name in FIGURES:
            columns.append(pa.array(np.round(values.to_numpy(), digits)))
        elif pa.types.is_dictionary(values.type):
            coded = values.unify_dictionaries().combine_chunks()
            labels = [escape_formula(" ".join(label.splitlines())) for label in coded.dictionary.to_pylist()]
            columns.append(pa.DictionaryArray.from_arrays(coded.indices, pa.array(labels, pa.string())))
        else:
            columns.append(values)

    text = io.BytesIO()
    options = arrow_csv.WriteOptions(include_header=False, quoting_style="needed")
    arrow_csv.write_csv(without_dictionaries(pa.table(columns, names=table.column_names)), text, options)
    return text.getvalue().decode().splitlines()


def _csv_head(names: Sequence[str], attributes: Sequence[str]) -> str:
    """Return the header of a set: columns with names of attributes instead of their numbers.

    "value_2" becomes the name of the second attribute, "low_2" that name with "_low".
    """
    titles = list[str]()
    for name in names:
        end, _, axis = name.rpartition("_")
        if not axis.isdigit():
            titles.append(name)
        elif end == "value":
            titles.append(attributes[int(axis) - 1])
        else:
            titles.append(f"{attributes[int(axis) - 1]}_{end}")
    head = io.StringIO()
    csv.writer(head).writerow(map(escape_formula, titles))
    return head.getvalue().strip()


MOST_ROWS = 1 << 21  # rows after which no further file is read for the median of relative errors


def relative_errors(folder: Path, index: pa.Table) -> Iterator[dict[str, Any]]:
    """Yield a summary of each family and degree.

    Its entries are family, degree, sets, queries, the median (typical) and largest error in records, the median of
    error / estimate (relative), and the share of answers whose error exceeds the estimate (beyond). They are None if no
    error is known.

    The index has a row for each set; a group is one family with one number of attributes.
    """
    family, queries, errors = (index[name].to_numpy() for name in ("family", "queries", "rms_error"))
    degrees = index["attributes"].combine_chunks().value_lengths().to_numpy(zero_copy_only=False)
    for name, degree in dict.fromkeys(zip(family.tolist(), degrees.tolist(), strict=True)):
        in_group = (family == name) & (degrees == degree)
        known = errors[in_group][np.nan_to_num(errors[in_group]) > 0]
        summary = {"family": name, "degree": degree, "sets": int(in_group.sum()),
                   "queries": int(queries[in_group].sum()),
                   "typical": float(np.median(known)) if known.size else None,
                   "largest": float(known.max()) if known.size else None}  # fmt: skip
        files = dict.fromkeys(index["file"].filter(in_group).drop_null().to_pylist())
        yield summary | (_relative(folder, list(files)) if known.size else {"relative": None, "beyond": None})


def _relative(folder: Path, files: list[str]) -> dict[str, float | None]:
    """Return the median of |error / estimate|, and the share of ratios above 1.

    Ratios above 1 are answers whose error exceeds their value. Files are read until MOST_ROWS rows are known. Both
    values are None without a standard error.
    """
    parts = list[Floats]()
    for name in files:
        with reading(folder / name) as file:
            table = pq.read_table(file, columns=["estimate", "std_error"])
        estimate, error = (table[column].to_numpy() for column in ("estimate", "std_error"))
        # an estimate of zero gives a very large ratio instead of a division by zero
        parts.append(error / np.maximum(np.abs(estimate), 1e-9))
        if sum(map(len, parts)) > MOST_ROWS:
            break
    ratios = np.concatenate(parts) if parts else np.zeros(0)
    ratios = ratios[np.isfinite(ratios)]
    if not ratios.size:
        return {"relative": None, "beyond": None}
    return {"relative": float(np.median(ratios)), "beyond": float((ratios > 1).mean())}


def write_trace(path: Path, rows: list[dict[str, Any]] | None) -> None:
    """Write trace.parquet, a row for every selected measurement; write no file if `rows` is None.

    Columns: round, rank, attributes, privacy_cost (squared μ of the measurement with its selection), moved (L1 change
    of the estimate of the selected marginal, in records), expected_noise (L1 error expected from its noise alone).
    """
    if rows is None:
        return
    schema = pa.schema([("round", pa.int32()), ("rank", pa.int32()), ("attributes", pa.list_(pa.string())),
                        ("privacy_cost", pa.float64()), ("moved", pa.float64()),
                        ("expected_noise", pa.float64())])  # fmt: skip
    with writing(path, durable=False) as file:
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), file)


def read_trace(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a trace; an empty list if there is no file."""
    if not path.exists():
        return []
    with reading(path) as file:
        return list(pq.read_table(file).to_pylist())


def statements_of(run: TablePart) -> dict[str, Statement]:
    """Return the SELECT statements of a job by name."""
    return {statement.name: statement for part in run.job.workload for statement in part.statements}


def selected(run: TablePart, answered: Answered, name: str, level: float) -> pa.Table:
    """Return the rows of a SELECT statement of a job.

    Parameters
    ----------
    run : TablePart
    answered : Answered
    name : str
    level : float
        Probability that an interval covers its value.

    Raises
    ------
    JobError
        If the job has no such statement.
    """
    known = statements_of(run)
    if name not in known:
        raise JobError("query", repr(name), ", ".join(known) or "a job with SELECT statements",
                       nearest(str(name), list(known)) if known else "add [[workload]] with sql or query")  # fmt: skip
    domain: Domain = answered.estimates.workload.domain

    def units(names: AttributeSet) -> Figures:
        """Return the released numbers of distinct units by some attributes, in the order of their cells."""
        if names not in run.unit_files:
            raise PlanError("query", f"units by {', '.join(names)}", "sets that the job counts", "add the statement")
        table = in_order(pq.read_table(run.unit_files[names]), run.domain, list(names))
        columns = ("estimate", "std_error", "low", "high")
        return Figures(*(np.asarray(table[column].to_numpy()) for column in columns))

    return selection_table(answered, select(known[name], domain, run.job.unit_columns), level, units)


def read_rows(run: TablePart, name: str) -> pa.Table:
    """Return the rows of a statement as its file has them."""
    return pq.read_table(run.path / "answers" / FOLDER / f"{name}.parquet")


def published_statements(run: TablePart) -> list[StatementRows]:
    """Return every statement of a job with its rows, as a publication has them."""
    known = statements_of(run)
    if known:
        run.require("reconstruct")
    return [StatementRows(name, statement.text, read_rows(run, name)) for name, statement in known.items()]


def selected_rows(run: TablePart, most: int) -> list[dict[str, Any]]:
    """Return name, SQL and the first `most` rows of every statement, with labels and titles of the domain as texts."""
    statements = []
    for name, statement in statements_of(run).items():
        table = read_rows(run, name)
        names, rows, numeric = shown_rows(table, most)
        words = {}  # for columns of attributes: their labels in words, by the text of the label
        for column in names:
            if column in run.domain.names:
                attribute = run.domain[column]
                words[column] = dict(zip(map(str, attribute.labels), words_of(attribute), strict=True))
        in_words = [[words.get(column, {}).get(text, text) for column, text in zip(names, row, strict=True)]
                    for row in rows]  # fmt: skip
        titles = [title_of(run.domain, column) if column in words else column for column in names]
        statements.append({"name": name, "sql": statement.text, "columns": list(zip(titles, numeric, strict=True)),
                           "rows": in_words, "number": table.num_rows})  # fmt: skip
    return statements


def have_intervals(run: TablePart) -> bool:
    """Return whether some row of a statement has a standard error."""
    for name in statements_of(run):
        table = read_rows(run, name)
        errors = [table[column].to_numpy() for column in table.column_names if column.endswith("_std_error")]
        if any(np.isfinite(values.astype(np.float64)).any() for values in errors):
            return True
    return False


def write_selections(run: TablePart, estimates: Estimates, level: float) -> None:
    """Write the rows of every SELECT statement into answers/queries/NAME.parquet."""
    answered = Answered(estimates, "")
    for name in statements_of(run):
        table = selected(run, answered, name, level)
        text = statements_of(run)[name].text
        stated = table.replace_schema_metadata({"sql": text})
        with writing(run.path / "answers" / FOLDER / f"{name}.parquet") as file:
            pq.write_table(stated, file, **LARGE_PAGES)
