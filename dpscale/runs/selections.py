"""Rows of the SELECT statements of a job, computed from the released values of a run."""

from __future__ import annotations

from typing import Any

import numpy as np

from dpscale.answers.published_values import StatementRows
from dpscale.answers.ratios import Figures
from dpscale.answers.selections import selection_table, shown_rows
from dpscale.answers.tables import Answered
from dpscale.answers.unit_counts import in_order
from dpscale.answers.words import title_of, words_of
from dpscale.base.arrow import pa, pq
from dpscale.base.display import nearest
from dpscale.base.errors import JobError, PlanError
from dpscale.base.numerics import AttributeSet
from dpscale.domain import Domain
from dpscale.reconstruction.base import Estimates
from dpscale.runs.answers import LARGE_PAGES
from dpscale.runs.table import TablePart
from dpscale.storage.files import writing
from dpscale.workload.sql.selection import select
from dpscale.workload.sql.statements import Statement

FOLDER = "queries"


def statements_of(run: TablePart) -> dict[str, Statement]:
    """Return the SELECT statements of a job by name."""
    return {one.name: one for part in run.job.workload for one in part.statements}


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
        """Return the released numbers of distinct units by some attributes."""
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
        words = {}
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
