"""Commands `sql` and `table`: answer SELECT statements, or one table of counts and means, on the files of a table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpscale.base import LazyModule
from dpscale.base.display import display_path
from dpscale.base.errors import JobError
from dpscale.cli.group import Bars, fresh_option, json_option, main, quiet_option, scheduler_option
from dpscale.cli.plan import plan_job
from dpscale.cli.run import print_run

if TYPE_CHECKING:
    import pyarrow as pa

opening, runner = LazyModule("dpscale.runs.opening"), LazyModule("dpscale.runs.runner")
selections = LazyModule("dpscale.runs.selections")
answers = LazyModule("dpscale.answers.selections")
SHOWN_ROWS = 20  # rows of a result on the terminal


def answering(command: Any) -> Any:
    """Return a command with the options of a job of statements, and those of a run."""
    options = (
        click.option("--epsilon", type=float, required=True, help="Budget of all answers together."),
        click.option("--delta", type=float, help="Without it the release satisfies pure epsilon-DP."),
        click.option("--unit", metavar="COLUMN", help="Column of the protected unit; default: a row is protected."),
        click.option("--rows-per-unit", type=int, metavar="N", help="Largest number of rows of a unit that count."),
        click.option("--dataset", metavar="NAME", help="Name under which the ledger adds up costs."),
        click.option("--analyst", metavar="NAME", help="Who is charged, for a dataset with caps of analysts."),
        click.option("--ledger", metavar="PATH", help="Path or address of the ledger."),
        click.option("--run-dir", metavar="DIR", help="Run directory."),
        click.option("--plan", "only_plan", is_flag=True, help="Print the expected errors; spends nothing."),
        fresh_option,
        scheduler_option,
        quiet_option,
        json_option,
    )
    for option in reversed(options):
        command = option(command)
    return command


@main.command()
@click.argument("file", metavar="FILE|TEXT")
@click.option("--data", metavar="PATH", required=True, help="Files of the table.")
@click.option("--domain", metavar="FILE", required=True, help="Domain file of the table.")
@click.option("--dialect", metavar="NAME", help="SQL dialect of sqlglot; default: duckdb.")
@answering
def sql(file: str, data: str, domain: str, dialect: str | None, **given: Any) -> None:
    """Answer SELECT statements under one charge: planned together, consistent, with an interval in every row.

    FILE has statements separated by semicolons; a comment `-- name: cases` names the statement after it. A text that
    begins with SELECT or WITH is taken as it is. The result is a run directory; answers/queries has the rows.
    """
    from dpscale.workload.sql.statements import is_select

    text = {"query": file} if is_select(file) else {"sql": file}
    answer(text | _given({"dialect": dialect}), data, domain, **given)


@main.command()
@click.argument("data")
@click.option("--by", metavar="A,B", default="", help="Attributes of the groups. Default: the whole table.")
@click.option("--mean", metavar="A,B", default="", help="Numbers whose means are answered too.")
@click.option("--domain", metavar="FILE", help="Domain file; default: the file DATA.domain.toml, drafted if missing.")
@answering
def table(data: str, by: str, mean: str, domain: str | None, **given: Any) -> None:
    """Publish one table: the number of records of each group, with intervals, and means if asked for."""
    from dpscale.workload.sql.statements import table_statement

    names, numbers = ([name.strip() for name in text.split(",") if name.strip()] for text in (by, mean))
    title = " by ".join(["Records", *([" and ".join(names)] if names else [])])
    title += f", with means of {' and '.join(numbers)}" if numbers else ""
    statement = {"query": table_statement(names, numbers)}
    answer(statement, data, domain or _domain_file(data), title=title, **given)


def _domain_file(data: str) -> str:
    """Return the domain file next to a data file; write a draft and raise JobError if there is none."""
    from dpscale.records.sketch import make_sketch
    from dpscale.storage.files import write_private

    if "://" in data or any(letter in data for letter in "*?["):
        raise JobError("--domain", f"missing for {display_path(data)}", "a domain file",
                       "draft it by `dpscale domain sketch DATA --output FILE`, and review it")  # fmt: skip
    path = Path(data.rstrip("/"))
    domain = path.with_name(f"{path.name.split('.')[0]}.domain.toml")
    if not domain.exists():
        write_private(str(domain), make_sketch(data).text())
        raise JobError("--domain", f"missing; a private draft is in {domain}", "a domain file that you reviewed",
                       "correct its values, set reviewed = true, and repeat the command")  # fmt: skip
    return str(domain)


def answer(  # noqa: PLR0913
    text: Mapping[str, Any],
    data: str,
    domain: str,
    *,
    title: str = "",
    epsilon: float,
    delta: float | None,
    unit: str | None,
    rows_per_unit: int | None,
    dataset: str | None,
    analyst: str | None,
    ledger: str | None,
    run_dir: str | None,
    only_plan: bool,
    fresh: bool,
    scheduler: str | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Run, or plan, the job of a part of a workload with statements, and print their rows."""
    unit_keys = {"privacy_unit": unit, "max_rows_per_unit": rows_per_unit}
    budget = {"epsilon": epsilon, "delta": delta, "dataset": dataset, "ledger": ledger, "analyst": analyst}
    content: dict[str, Any] = {
        "data": {"path": data, "domain": domain, **_given(unit_keys)},
        "privacy": _given(budget),
        "workload": [text],
        **({"about": {"title": title}} if title else {}),
    }
    job = opening.read_job(content)
    if only_plan:
        plan_job(job, scheduler=scheduler, quiet=quiet, as_json=as_json)
        return
    directory = opening.begin_run(job, run_dir, fresh)
    repeated = runner.check_repeat(directory)
    with runner.remove_on_error(directory), Bars(quiet) as progress:
        runner.run_stages(directory, scheduler=scheduler, progress=progress)
    if not as_json:
        for name in selections.statements_of(directory.table):
            click.echo(f"{name}\n{table_text(selections.read_rows(directory.table, name))}\n")
        click.echo(_spent(job))
    files = {"queries": [f"answers/queries/{name}.parquet" for name in selections.statements_of(directory.table)]}
    print_run(directory, repeated, as_json, files)


def _spent(job: Any) -> str:
    """Return in words what the dataset of a job has spent."""
    from dpscale.ledger import Ledger
    from dpscale.ledger.account import canonical

    with Ledger.open(job.privacy.ledger, create=False) as ledger:
        [stated] = ledger.summary(job.dataset)["datasets"].values()
    figures, left = stated["spent"], stated["remaining_epsilon"]
    cap = "there is no cap" if left is None else f"epsilon {left:.4g} is left"
    spent = f"epsilon {figures['epsilon']:.4g} at delta {figures['delta']:g}"
    return f"spent: {spent} of dataset {canonical(job.dataset)}; {cap}"


def _given(keys: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in keys.items() if value is not None}


def table_text(table: pa.Table) -> str:
    """Return the first rows of a statement as text in columns: values with their intervals.

    Parameters
    ----------
    table : pyarrow.Table
        Rows of `Release.query`.
    """
    names, rows, numeric = answers.shown_rows(table, SHOWN_ROWS)
    widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
    lines = ["  ".join(cell.rjust(width) if right else cell.ljust(width)
                       for cell, width, right in zip(line, widths, numeric, strict=True)).rstrip()
             for line in [names, *rows]]  # fmt: skip
    return "\n".join(lines + ["…"] * (table.num_rows > SHOWN_ROWS))
