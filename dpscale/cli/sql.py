"""Command `sql`: answer a file of SELECT statements on the files of a table."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from dpscale.base import LazyModule
from dpscale.base.display import figure
from dpscale.base.errors import JobError
from dpscale.cli.group import Bars, fresh_option, json_option, main, quiet_option, scheduler_option
from dpscale.cli.plan import plan_job
from dpscale.cli.run import print_run

if TYPE_CHECKING:
    from dpscale.runs.run import Run

opening, runner = LazyModule("dpscale.runs.opening"), LazyModule("dpscale.runs.runner")
create, selections = LazyModule("dpscale.runs.create"), LazyModule("dpscale.runs.selections")
estimates, tables = LazyModule("dpscale.runs.estimates"), LazyModule("dpscale.answers.tables")
SHOWN_ROWS = 20


@main.command()
@click.argument("file", metavar="FILE|TEXT")
@click.option("--data", metavar="PATH", required=True, help="Files of the table.")
@click.option("--domain", metavar="FILE", required=True, help="Domain file of the table.")
@click.option("--epsilon", type=float, required=True, help="Budget of all statements together.")
@click.option("--delta", type=float, help="Without it the release satisfies pure epsilon-DP.")
@click.option("--unit", metavar="COLUMN", help="Column of the protected unit; default: a row is protected.")
@click.option("--rows-per-unit", type=int, metavar="N", help="Largest number of rows of a unit that are counted.")
@click.option("--dataset", metavar="NAME", help="Name under which the ledger adds up costs.")
@click.option("--ledger", metavar="PATH", help="Path or address of the ledger.")
@click.option("--dialect", metavar="NAME", help="SQL dialect of sqlglot; default: duckdb.")
@click.option("--run-dir", metavar="DIR", help="Run directory.")
@click.option("--plan", "only_plan", is_flag=True, help="Print the expected errors; spends nothing.")
@fresh_option
@scheduler_option
@quiet_option
@json_option
def sql(  # noqa: PLR0913
    file: str,
    data: str,
    domain: str,
    epsilon: float,
    delta: float | None,
    unit: str | None,
    rows_per_unit: int | None,
    dataset: str | None,
    ledger: str | None,
    dialect: str | None,
    run_dir: str | None,
    only_plan: bool,
    fresh: bool,
    scheduler: str | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Answer SELECT statements under one charge: planned together, consistent, with an interval in every row.

    FILE has statements separated by semicolons; a comment `-- name: cases` names the statement after it. A text that
    begins with SELECT or WITH is taken as it is. The result is a run directory; answers/queries has the rows.
    """
    text = {"query": file} if file.lstrip().lower().startswith(("select", "with")) else {"sql": file}
    unit_keys = {"privacy_unit": unit, "max_rows_per_unit": rows_per_unit}
    budget = {"epsilon": epsilon, "delta": delta, "dataset": dataset, "ledger": ledger}
    content = {
        "data": {"path": data, "domain": domain, **_given(unit_keys)},
        "privacy": _given(budget),
        "workload": [text | _given({"dialect": dialect})],
    }
    job = opening.read_job(content)
    if only_plan:
        plan_job(job, scheduler=scheduler, quiet=quiet, as_json=as_json)
        return
    directory = create.begin_run(job, run_dir, fresh)
    repeated = runner.check_repeat(directory)
    with runner.remove_on_error(directory), Bars(quiet) as progress:
        runner.run_stages(directory, scheduler=scheduler, progress=progress)
    if not as_json:
        for name in selections.statements_of(directory.table):
            click.echo(f"{name}\n{table_text(rows_of(directory, name))}\n")
    files = {"queries": [f"answers/queries/{name}.parquet" for name in selections.statements_of(directory.table)]}
    print_run(directory, repeated, as_json, files)


def _given(keys: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in keys.items() if value is not None}


def rows_of(run: Run, name: str) -> list[dict[str, Any]]:
    """Return the first rows of a statement, and one more if there are more."""
    from dpscale.base.arrow import pq

    file = run.path / "answers" / selections.FOLDER / f"{name}.parquet"
    if not os.path.exists(file):
        raise JobError("run directory", f"{run.path} without {file.name}", "a finished run", "run it again")
    rows: list[dict[str, Any]] = pq.read_table(file).slice(0, SHOWN_ROWS + 1).to_pylist()
    return rows


def table_text(rows: list[dict[str, Any]]) -> str:
    """Return rows as text: values with their intervals, in columns.

    Parameters
    ----------
    rows : list of dict
        Rows of `Release.query`.
    """
    if not rows:
        return "no row"
    names = [name for name in rows[0] if not name.endswith(("_low", "_high", "_std_error"))]
    cells = [names, *([_cell(row, name) for name in names] for row in rows[:SHOWN_ROWS])]
    widths = [max(len(line[place]) for line in cells) for place in range(len(names))]
    right = [f"{name}_low" in rows[0] for name in names]
    lines = ["  ".join(cell.rjust(width) if number else cell.ljust(width)
                       for cell, width, number in zip(line, widths, right, strict=True)).rstrip()
             for line in cells]  # fmt: skip
    return "\n".join(lines + ["…"] * (len(rows) > SHOWN_ROWS))


def _cell(row: dict[str, Any], name: str) -> str:
    value = row[name]
    if f"{name}_low" not in row:
        return "" if value is None else str(value)
    if value is None or value != value:
        return "too few"
    return f"{figure(value)} ({figure(row[f'{name}_low'])} to {figure(row[f'{name}_high'])})"
