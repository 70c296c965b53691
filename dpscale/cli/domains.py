"""Commands for domain files: a draft from data."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click

from dpscale.base.display import display_path
from dpscale.base.errors import JobError
from dpscale.cli.group import main
from dpscale.storage.objects import relative_path

BUDGET = {"epsilon": 1.0, "delta": 1e-9}  # of a draft

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dpscale.records.origin import Origin
    from dpscale.records.sketch import Sketch


@main.group()
def domain() -> None:
    """Domain files."""


def format_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of file formats."""
    for option in (
        click.option("--format", metavar="NAME", help="Format of the files, as in [data] (default: by the ending)."),
        click.option(
            "--null", "null_values", multiple=True, metavar="TEXT", help="A text that means missing; repeatable."
        ),
        click.option("--encoding", metavar="NAME", help="Encoding of CSV files (default: utf-8)."),
        click.option("--delimiter", metavar="CHARACTER", help="Delimiter (default: a comma; in .tsv a tab)."),
    ):
        command = option(command)
    return command


def read_origin(path: str, written: dict[str, Any]) -> Origin:
    """Return the options of file formats as the origin of data. Raises JobError if a job would not accept them."""
    from pydantic import ValidationError

    from dpscale.job.data import Filed
    from dpscale.job.forms import job_sentence

    try:
        return Filed(path=path, **{**written, "null_values": list(written["null_values"])}).origin
    except ValidationError as error:
        raise job_sentence(error, False, []) from None


@domain.command("sketch")
@click.argument("data")
@click.option("--columns", multiple=True, metavar="A,B", help="Only these columns; repeatable.")
@click.option("--output", metavar="FILE", help="Write the draft to a new file.")
@click.option(
    "--job", "job_file", metavar="FILE", help="With --output: also write a job of one-way tables to a new file."
)
@format_options
def domain_sketch(
    data: str, columns: tuple[str, ...], output: str | None, job_file: str | None, **written: Any
) -> None:
    """Draft a domain file from data. The draft is PRIVATE: it contains values of single records.

    It proposes a privacy unit, and omits names and free text with a reason. Review it and set reviewed = true: a job
    refuses it before.
    """
    from dpscale.records.sketch import WARNING, make_sketch
    from dpscale.storage.files import write_private

    _check_new("--output", output)
    _check_new("--job", job_file)
    if job_file and output and Path(job_file).absolute() == Path(output).absolute():
        raise JobError("--job", "the file of --output", "another file", "name two files")
    if job_file and not output:
        raise JobError("--job", "given without --output", "--output FILE as well", "name the domain file")
    click.echo(WARNING, err=True)
    origin = read_origin(data, written)
    draft = make_sketch(data, origin.dialect, origin.format, _names(columns))
    if output is None:
        click.echo(draft.text())
        return
    write_private(output, draft.text())
    click.echo(f"domain: {output}; review it, then set reviewed = true")
    if job_file:
        folder = Path(job_file).absolute().parent
        Path(job_file).write_text(
            draft_job(draft, near_job(data, folder), near_job(output, folder), dataset_of(data), written),
            "utf-8", newline="\n",
        )  # fmt: skip
        click.echo(f"job: {job_file}; next: dpscale plan {job_file}, then dpscale run {job_file}")


def draft_job(
    draft: Sketch,
    path: str,
    domain: str,
    dataset: str,
    written: Mapping[str, Any],
    chosen: Mapping[str, Any] = MappingProxyType({}),
) -> str:
    """Return the draft of a job, by default with all one-way tables of a sketch.

    Parameters
    ----------
    draft : Sketch
    path, domain : str
        Data and domain file, as the job names them.
    dataset : str
        Name of the data in the ledger.
    written : mapping
        Options that state how files are written, which are keys of [data].
    chosen : mapping
        Content of the sections that a person has decided: `about`, `data` with the protected unit, `privacy` with the
        budget, and `workload`.
    """
    from dpscale.job.sections import AboutTable
    from dpscale.records.sketch import toml_value

    def line(key: str, value: Any) -> str:
        return f"{key} = {toml_value(value).replace('e-0', 'e-') if isinstance(value, float) else toml_value(value)}"

    about, protected = chosen.get("about", {}), chosen.get("data", {})
    given = {key: list(one) if isinstance(one, tuple) else one for key, one in written.items() if one}
    unit = draft.units[0] if draft.units else ""
    # a column that looks like an id is proposed in comments
    if unit and not protected:
        proposal = [
            "# A proposal, if a person (or household, …) may have several rows; "
            "max_rows_per_unit from public knowledge:",
            f"# privacy_unit = {toml_value(unit)}",
            "# max_rows_per_unit = 1",
        ]
    else:
        row = "# one row is protected; privacy_unit and max_rows_per_unit protect persons"
        proposal = [line(*one) for one in protected.items()] or [row]
    workload = chosen.get("workload", [one_way()])
    parts = [text for part in workload for text in ("", "[[workload]]", *_part_lines(part, line))]
    return "\n".join([
        "# A draft: choose the budget, the protected unit and the queries. `dpscale plan` prints the errors.",
        "[about]", *(line(key, about[key]) if key in about else f'# {key} = ""' for key in AboutTable.model_fields), "",
        "[data]", *(line(*one) for one in {"path": path, "domain": domain, **given}.items()), *proposal, "",
        "[privacy]", *(line(*one) for one in chosen.get("privacy", BUDGET).items()), line("dataset", dataset),
        *parts, "",
    ])  # fmt: skip


def one_way() -> dict[str, Any]:
    """Return the content of [[workload]] that asks for a table of counts for each attribute."""
    from dpscale.workload import MARGINAL

    return {"family": MARGINAL.name, "degree": 1}


def _part_lines(part: Mapping[str, Any], line: Callable[[str, Any], str]) -> list[str]:
    """Return the lines of a table [[workload]]."""
    note = "  # a table for each attribute; 2 for each pair"
    return [line(key, value) + (note if key == "degree" else "") for key, value in part.items()]


def dataset_of(data: str) -> str:
    """Return the name of data in the ledger, by their path."""
    return Path(data.rstrip("/")).name.split(".")[0] or "data"


def _check_new(option: str, path: str | None) -> None:
    """Raise JobError for a file that exists."""
    if path is not None and Path(path).exists():
        raise JobError(option, f"{display_path(path)}, which exists", "a new file", "name another one, or remove it")
    if path is not None and not Path(path).absolute().parent.is_dir():
        raise JobError(option, f"{display_path(path)}, whose folder does not exist", "a new file", "create the folder")


def _names(columns: tuple[str, ...]) -> list[str]:
    """Return the names in lists that are separated by commas."""
    return [name.strip() for one in columns for name in one.split(",") if name.strip()]


def near_job(path: str, folder: Path) -> str:
    """Return a path as a job in a folder names it: relative, unless it is an address."""
    return path if "://" in path else relative_path(path, folder)
