"""Answers to SELECT statements, planned together and released under one charge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpscale.api.planning import plan_sql
from dpscale.api.public import run
from dpscale.api.release import Release
from dpscale.base.display import safe_repr
from dpscale.base.errors import JobError
from dpscale.base.progress import Progress, lines
from dpscale.domain import Domain
from dpscale.mechanisms import DEFAULT
from dpscale.workload.sql.selection import requested_tables
from dpscale.workload.sql.statements import DIALECT, read_statements, table_statement

if TYPE_CHECKING:
    from dpscale.api.answers import AnyFrame


def sql(  # noqa: PLR0913
    text: str,
    tables: Mapping[str, Any],
    domain: Domain | str | Path,
    *,
    epsilon: float,
    delta: float | None = None,
    unit: str | Sequence[str] | None = None,
    rows_per_unit: int | None = None,
    dataset: str | None = None,
    ledger: str | Path | None = None,
    mechanism: str = DEFAULT,
    dialect: str = DIALECT,
    analyst: str | None = None,
    client: Any = None,
    scheduler: Any = None,
    progress: Progress | None = lines,
) -> Release:
    """Answer SELECT statements on a table: one workload, planned together, with consistent answers and intervals.

    Parameters
    ----------
    text : str
        Statements separated by semicolons; a comment `-- name: cases` names the statement after it.
    tables : mapping of str to DataFrame, Arrow data, str or Path
        The table by the name that FROM uses: a frame, or the path of files.
    domain : Domain, str or Path
        Public values of the attributes, or the path of a domain file.
    epsilon : float
        Privacy budget of all statements together.
    delta : float, optional
        Without it the release satisfies pure ε-DP.
    unit : str or sequence of str, optional
        Column that identifies the protected unit. Default: one row is protected.
    rows_per_unit : int, optional
        Largest number of rows of a unit that are counted; required with `unit`.
    dataset : str, optional
        Name of the data in the ledger. Default: "default".
    ledger : str or Path, optional
        Path or address of the ledger. Default: ledger.sqlite in the user's data folder.
    mechanism : str
    dialect : str
        SQL dialect of sqlglot.
    analyst : str, optional
        Name that is charged, for a dataset with caps of analysts.
    client, scheduler, progress : optional
        As of `dpscale.run`.

    Returns
    -------
    Release
        `Release.query(name)` has the rows of a statement.

    Raises
    ------
    JobError
        For a statement that cannot be answered, with its place.

    Examples
    --------
    >>> found = dp.sql("SELECT day, COUNT(*) AS trips FROM t GROUP BY day", {"t": trips}, domain, epsilon=1)
    >>> found.query("query-1").columns.tolist()
    ['day', 'trips', 'trips_low', 'trips_high', 'trips_std_error']
    """
    if not isinstance(tables, Mapping) or len(tables) != 1:
        raise JobError("sql.tables", safe_repr(list(tables) if isinstance(tables, Mapping) else type(tables).__name__),
                       "one table by its name, such as {'visits': frame}", "write a job with [tables.NAME] and [[link]]"
                       " for several tables")  # fmt: skip
    ((name, data),) = tables.items()
    for statement in read_statements(text, dialect=dialect):
        for table in requested_tables(statement):
            if table.lower() != str(name).lower():
                raise JobError("sql.tables", f"no table {table!r}, which {statement.name} reads", str(name),
                               "name the table as FROM does")  # fmt: skip
    planned = plan_sql(text, domain, epsilon=epsilon, delta=delta, unit=unit, rows_per_unit=rows_per_unit,
                       dataset=dataset, ledger=ledger, mechanism=mechanism, dialect=dialect,
                       analyst=analyst)  # fmt: skip
    return run(planned, data=data, client=client, scheduler=scheduler, progress=progress)


def table(
    data: Any,
    by: str | Sequence[str] = (),
    *,
    domain: Domain | str | Path,
    epsilon: float,
    delta: float | None = None,
    mean: str | Sequence[str] = (),
    level: float = 0.95,
    frame: str = "pandas",
    **given: Any,
) -> AnyFrame:
    """Publish one table: the number of records of each group, with intervals, and means if asked for.

    Parameters
    ----------
    data : DataFrame, Arrow data, str or Path
        A frame, or the path of files.
    by : str or sequence of str
        Attributes of the groups. Default: the whole data.
    domain : Domain, str or Path
        Public values of the attributes, or the path of a domain file.
    epsilon, delta : float
        Privacy budget; without `delta` the release satisfies pure ε-DP.
    mean : str or sequence of str
        Numbers of the domain whose means are answered too.
    level : float
        Probability that an interval covers its value.
    frame : {"pandas", "arrow", "polars"}
    **given
        Other arguments of `dpscale.sql`, such as `unit`, `dataset` and `ledger`.

    Returns
    -------
    DataFrame or pyarrow Table
        The attributes; `records` and the means, each with NAME_low, NAME_high and NAME_std_error.

    Raises
    ------
    JobError
        For an attribute or number that the domain does not have.

    Examples
    --------
    >>> dp.table(trips, by=["day"], domain=domain, epsilon=1).columns.tolist()
    ['day', 'records', 'records_low', 'records_high', 'records_std_error']
    """
    names, numbers = ([one] if isinstance(one, str) else list(one) for one in (by, mean))
    text = table_statement(names, numbers)
    return sql(text, {"data": data}, domain, epsilon=epsilon, delta=delta, **given).query(
        "table", level=level, frame=frame
    )
