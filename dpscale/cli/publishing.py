"""`publish`: tables for print of a finished run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpscale.cli.group import json_option, main

if TYPE_CHECKING:
    from dpscale.api.release import Release


@main.command()
@click.argument("run_dir")
@click.option("--out", metavar="FOLDER", help="Where to (default: RUN_DIR/published).")
@click.option(
    "--set", "sets", multiple=True, metavar="A,B", help="An attribute set; again for more (default: all asked)."
)
@click.option("--degree", type=click.IntRange(min=1), help="Only the sets of so many attributes.")
@click.option("--limit", type=click.FloatRange(min=0), default=0.5, show_default=True,
              help="Counts with a larger relative standard error are flagged.")  # fmt: skip
@click.option("--format", "formats", type=click.Choice(["csv", "parquet", "xlsx"]), multiple=True, default=("csv",),
              show_default=True, help="Again for more; xlsx needs the extra dpscale[excel].")  # fmt: skip
@json_option
def publish(
    run_dir: str,
    out: str | None,
    sets: tuple[str, ...],
    degree: int | None,
    limit: float,
    formats: tuple[str, ...],
    as_json: bool,
) -> None:
    """Whole, non-negative tables that add up, with a readme and a codebook: free post-processing of a run."""
    from dpscale.api.database import DatabaseRelease
    from dpscale.api.release import Release
    from dpscale.multitable.run import is_database_run

    folder = Path(out) if out else Path(run_dir) / "published"
    named = [[name.strip() for name in one.split(",")] for one in sets]
    several = is_database_run(run_dir)
    releases = DatabaseRelease.open(run_dir).tables if several else {"": Release.open(run_dir)}
    told = {name: _one(own, folder / name, named, degree, limit, formats) for name, own in releases.items()}
    summary = {"published": str(folder), **({"tables": told} if several else told[""])}
    if as_json:
        click.echo(json.dumps(summary))
        return
    for name, one in told.items():
        left = f", {one['left_out']} left out (see its readme)" if one["left_out"] else ""
        click.echo(f"{name}{': ' if name else ''}{one['sets']} tables of {one['total']:,} records{left}")
    click.echo(f"published: {folder}")


def _one(
    release: Release, folder: Path, sets: list[list[str]], degree: int | None, limit: float, formats: tuple[str, ...]
) -> dict[str, Any]:
    """One table's publication, and what to tell of it."""
    from dpscale.answers.publish.tables import chosen
    from dpscale.answers.publish.tables import publish as made
    from dpscale.answers.publish.writing import write_published

    published = made(release.answered, chosen(release.answered, sets, degree))
    files = write_published(folder, release.domain, published, release.manifest["release"], limit, formats)
    return {
        "sets": len(published.tables),
        "total": published.total,
        "left_out": len(published.left_out),
        "files": files,
    }
