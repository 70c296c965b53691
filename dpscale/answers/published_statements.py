"""Published rows of SELECT statements: the columns of each statement, with errors, intervals and flags.

The values are those of `Release.query`, rounded to three digits of the smallest standard error of their column. They
are not fitted to the tables of counts. The minimum-frequency rule compares counts that a statement need not have, so a
publication with a minimum has no statements.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dpscale.answers.published_numbers import DIGITS, SUPPRESSED, UNRELIABLE
from dpscale.base.arrow import pa, pc

HIDDEN = "its rows have no published counts, which --minimum compares"
NO_CUBE = "rows of a statement are in csv, parquet and xlsx only"
SQL = b"sql"  # key of the metadata


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
