"""Published values that are no counts: numbers by group, with margins of error, and rows of SELECT statements.

The values are those of `Release.sum`, `mean`, `std` and `table`, rounded to three digits of the smallest standard error
of their table. They are not fitted to each other or to the counts. A group that cannot be distinguished from an empty
one has no mean, variance or standard deviation.

*Rows of SELECT statements.*
They are the columns of each statement, with errors, intervals and flags. The values are those of `Release.query`,
rounded to three digits of the smallest standard error of their column. They are not fitted to the tables of counts. The
minimum-frequency rule compares counts that a statement need not have, so a publication with a minimum has no
statements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dpscale.answers.number_statistics import deviation_table, mean_table, sum_table
from dpscale.answers.tables import FIGURES, LEVEL, STATISTICS, Answered, is_planned, title_of
from dpscale.base.arrow import pa, pc
from dpscale.base.errors import PlanError
from dpscale.base.numerics import AttributeSet, Integers
from dpscale.domain.number import Number
from dpscale.workload import WorkloadPart
from dpscale.workload.family import VALUE
from dpscale.workload.sums import MeanQueries, SumQueries, VarianceQueries

SUPPRESSED, UNRELIABLE = "suppressed", "unreliable"
COLUMNS = ("count", "value", "margin", "low", "high", "std_error", "flag")
STATISTIC = b"statistic"  # key of the metadata
DIGITS = 3  # of the smallest standard error of a table
StatisticTable = Callable[[Answered, str, Sequence[str], float], pa.Table]
LINEAR: Mapping[str, StatisticTable] = {SumQueries.name: sum_table, MeanQueries.name: mean_table}
STATISTIC_TABLES: Mapping[str, StatisticTable] = {**LINEAR, "std": deviation_table}

HIDDEN = "its rows have no published counts, which --minimum compares"
NO_CUBE = "rows of a statement are in csv, parquet and xlsx only"
SQL = b"sql"  # key of the metadata


@dataclass(frozen=True, eq=False)
class NumberTable:
    """Published statistic of a number by groups.

    Attributes
    ----------
    name : str
        Statistic, number and attributes, such as "mean of fare by borough".
    title : str
        The same with the titles of the domain file.
    unit : str
        Unit of the values, in the words of the domain file.
    by : attributes of the groups.
    number : Number
    table : pyarrow.Table
        Labels, `count` if the counts of these groups are published, `value`, `margin`, `low`, `high`, `std_error`.
    """

    name: str
    title: str
    unit: str
    by: AttributeSet
    number: Number
    table: pa.Table

    @property
    def description(self) -> str:
        """Title, unit and range in one phrase."""
        low, high = self.number.ends
        clipped = f"values are clipped to {low:g} … {high:g}"
        if self.number.per_unit:
            clipped = f"absolute values of a privacy unit are clipped to a sum of {high:g}"
        return f"{self.title}, in units of {self.unit}; {clipped}"


def label_column(name: str) -> str:
    """Return the column of an attribute in a published table, which differs from those of figures."""
    return f"{name}_" if name in COLUMNS else name


def number_tables(
    answered: Answered, requested: Sequence[AttributeSet], counts: Mapping[AttributeSet, Integers], most_groups: int
) -> Iterator[NumberTable]:
    """Yield the statistics of numbers over the requested sets, and of all records.

    Sums and means are published for each set that the workload combines with a number, if they were measured;
    variances, and statistics of other queries than cells, only if the workload asks for them.

    A set contains a number and the attributes `by` which it is grouped. A statistic that the measurements do not
    determine (PlanError) is left out.

    Parameters
    ----------
    answered : Answered
    requested : sequence of attribute sets
    counts : mapping of attribute set to ndarray
        Published tables of counts.
    most_groups : int
        Sets with more groups are omitted.
    """
    done = set[tuple[str, str, AttributeSet]]()
    for part, names in _number_sets(answered):
        by = part.shown(names)
        if (by and by not in requested) or part.count(names) > most_groups:
            continue

        (name,) = set(names) - set(by)
        for statistic, table_of in _statistics(part).items():
            if (key := (statistic, name, by)) not in done:
                done.add(key)
                try:
                    table = table_of(answered, name, by, LEVEL)
                except PlanError:
                    continue
                yield _published(answered, (part, statistic, by), table, counts.get(by) if _has_cells(part) else None)


def _number_sets(answered: Answered) -> Iterator[tuple[WorkloadPart, AttributeSet]]:
    """Yield the planned sets of one number with the parts that query them, without queries that are listed.

    A set with a number shows only its other attributes (`part.shown`), and `is_planned` states that the workload asks
    for it. `query_texts` and ends that are texts belong to listed queries.
    """
    numbers = answered.estimates.workload.domain.number_names
    for part in answered.estimates.workload.parts:
        if part.query_texts or any(end.is_text for end in part.ends) or not part.factorizes:
            continue
        for names in part.sets:
            if len(numbers & set(names)) == 1 and part.shown(names) != names and is_planned(part, names):
                yield part, names


def _has_cells(part: WorkloadPart) -> bool:
    """Return whether the queries on the attributes of a part are their cells."""
    return part.ends == (VALUE,)


def _statistics(part: WorkloadPart) -> dict[str, StatisticTable]:
    """Return the statistics that are published of a part, by name.

    A part whose queries are not the cells of its attributes has a single statistic, its answers. LINEAR are sums and
    means, for values to the power 1; parts with squares have variances and deviations too.
    """

    def table_of_part(answered: Answered, name: str, by: Sequence[str], level: float) -> pa.Table:
        return answered.table(by, part.name, level, False)

    if not _has_cells(part):
        return {part.name: table_of_part}
    if part.statistic is None or part.statistic.power == 1:
        return dict(LINEAR)
    return {**STATISTIC_TABLES, VarianceQueries.name: table_of_part}


def _published(
    answered: Answered, statistic: tuple[WorkloadPart, str, AttributeSet], exact: pa.Table, counts: Integers | None
) -> NumberTable:
    """Return a table for publication of a statistic: label columns, counts, and value, margin, interval and error.

    Figures are rounded to DIGITS digits of the smallest error. `exact` is the table before rounding, `counts` has the
    published counts of its rows. `part.extended(by)` are the attributes of the groups with the part's number.
    """
    part, name, by = statistic
    domain = answered.estimates.workload.domain
    number = next(number for number in domain.numbers if number.name in part.extended(by))
    labels = [column for column in exact.column_names if column not in STATISTICS]
    columns = {label_column(label): exact[label] for label in labels}
    if counts is not None:
        columns["count"] = pa.array(counts.reshape(-1))
    value, error, low, high = (exact[figure].to_numpy() for figure in FIGURES)
    # the larger half of the interval, which may be asymmetric
    margin = np.maximum(high - value, value - low)
    known = error[np.isfinite(error) & (error > 0)]
    # decimals at which the smallest error has DIGITS digits
    places = max(DIGITS - 1 - math.floor(math.log10(known.min())), 0) if known.size else 6
    for column, figures in zip(COLUMNS[1:6], (value, margin, low, high, error), strict=True):
        columns[column] = pa.array(np.round(figures, places), from_pandas=True)
    unit = number.name if name in STATISTIC_TABLES else part.unit(part.extended(by))

    return NumberTable(
        name=_phrase(part, name, number.name, by),
        title=_phrase(part, name, title_of(domain, number.name), [title_of(domain, attribute) for attribute in by]),
        unit=unit.replace(number.name, number.words.unit or number.name),
        by=by,
        number=number,
        table=pa.table(columns),
    )


def _phrase(part: WorkloadPart, statistic: str, number: str, by: Sequence[str]) -> str:
    """Return a statistic, its number and the attributes in words.

    The name of a statistic of other queries than cells contains the number.
    """
    return (f"{statistic} of {number}" if _has_cells(part) else statistic) + (f" by {', '.join(by)}" if by else "")


def flag_values(numbers: NumberTable, limit: float) -> pa.Table:
    """Return the table with the column `flag`, and its description in the metadata.

    A value is unreliable if its standard error is more than `limit` times the value.
    """
    table = numbers.table
    missing = pc.is_null(table["value"]).to_numpy()
    unsure = table["std_error"].to_numpy() > limit * np.abs(table["value"].to_numpy())
    flags = np.where(missing, SUPPRESSED, np.where(unsure, UNRELIABLE, ""))
    table = table.append_column("flag", pa.array(flags.tolist(), pa.string()))
    return table.replace_schema_metadata({STATISTIC: numbers.description})


def codebook_rows(tables: Sequence[NumberTable]) -> list[tuple[str, str, None, str]]:
    """Return the rows of the codebook: name, kind, no cell, and the range and step of each number."""
    rows = list[tuple[str, str, None, str]]()
    for number in dict.fromkeys(table.number for table in tables):
        low, high = number.ends
        rows.append((number.name, "number", None, f"from {low:g} to {high:g} in steps of {float(number.unit):g}"))
    return rows


def column_notes(limit: float) -> list[str]:
    """Return the lines that describe tables of statistics of numbers."""
    return [
        "", "Tables of sums, means, variances and standard deviations (std) of a number have the columns", "",
        "count      the published count of the group, if its table is published, with records without a value",
        "value      the estimate; that of a sum is unbiased",
        f"margin     distance from the value to the farther end of its {100 * LEVEL:g} % interval",
        f"low, high  {100 * LEVEL:g} % interval of the true value for clipped records",
        "std_error  standard error of the estimate",
        f"flag       '{SUPPRESSED}' if the group cannot be distinguished from an empty one: it has no value;",
        f"           '{UNRELIABLE}' if the standard error is more than {limit:g} times the value", "",
        "They are not fitted to each other or to the counts: sums of groups add up to the sum of all records up to",
        "rounding, and a mean is not exactly the published sum divided by the published count.",
    ]  # fmt: skip


@dataclass(frozen=True, eq=False)
class StatementRows:
    """Rows of a SELECT statement.

    Attributes
    ----------
    name : str
    sql : str
        Text of the statement.
    table : pyarrow.Table
        A value has the columns NAME, NAME_low, NAME_high and NAME_std_error.
    """

    name: str
    sql: str
    table: pa.Table

    @property
    def line(self) -> str:
        """Statement in a line, without comments."""
        lines = [line for line in self.sql.splitlines() if not line.lstrip().startswith("--")]
        return " ".join(" ".join(lines).split())


def flag_rows(rows: StatementRows, limit: float) -> pa.Table:
    """Return the rounded rows with a column NAME_flag for each value, and the text of the statement in the metadata.

    Parameters
    ----------
    rows : StatementRows
    limit : float
        A value is unreliable if its standard error is more than this many times the value.

    Returns
    -------
    pyarrow.Table
    """
    columns = dict[str, pa.Array]()
    for name in rows.table.column_names:
        columns[name] = rows.table[name]
        value = name.removesuffix("_std_error")
        if value != name and value in columns:
            figures = [value, f"{value}_low", f"{value}_high", name]
            columns |= _rounded(rows.table, figures)
            columns[f"{value}_flag"] = _flags(rows.table[value], rows.table[name], limit)

    return pa.table(columns, metadata={SQL: rows.line})


def _rounded(table: pa.Table, figures: Sequence[str]) -> dict[str, pa.Array]:
    """Return the figures as rounded columns; the last of `figures` is the standard error."""
    errors = table[figures[-1]].to_numpy().astype(np.float64)
    known = errors[np.isfinite(errors) & (errors > 0)]
    # decimals that show DIGITS digits of the smallest error; 6 if no error is known
    places = DIGITS - 1 - math.floor(math.log10(known.min())) if known.size else 6
    return {name: pa.array(np.round(table[name].to_numpy().astype(np.float64), max(places, 0)), from_pandas=True)
            for name in figures}  # fmt: skip


def _flags(values: pa.ChunkedArray, errors: pa.ChunkedArray, limit: float) -> pa.Array:
    """Return the flag of each value: SUPPRESSED if it is missing, UNRELIABLE if its error exceeds `limit` times it."""
    missing = pc.is_null(values, nan_is_null=True).to_numpy()
    with np.errstate(invalid="ignore"):
        unsure = errors.to_numpy().astype(np.float64) > limit * np.abs(values.to_numpy().astype(np.float64))
    return pa.array(np.where(missing, SUPPRESSED, np.where(unsure, UNRELIABLE, "")).tolist(), pa.string())


def row_notes(limit: float) -> Iterator[str]:
    """Yield the lines that describe rows of statements."""
    yield from (
        "", "Rows of SELECT statements have, for each value NAME, the columns", "",
        "NAME_low, NAME_high  95 % interval of the value of the records",
        "NAME_std_error       standard error of the estimate",
        f"NAME_flag            '{SUPPRESSED}' if the value cannot be told; '{UNRELIABLE}' if the standard error is",
        f"                     more than {limit:g} times the value", "",
        "They are not fitted to the tables of counts.",
    )  # fmt: skip
