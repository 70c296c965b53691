"""Commands for jobs of several tables."""

from __future__ import annotations

import json
from typing import Any

import click

from dpscale.cli.group import json_option, main, scheduler_option


def overview_text(overview: dict[str, Any]) -> list[str]:
    """Return the neighbouring relation and the division of the budget as lines."""
    first = f"{100 * overview['first_share']:.3g} % of the budget, which then decides the other shares"
    lines = [f"{'first measurement':>24}: {first}"] if overview["first_share"] else []
    errors = [f"{name}: {one['error']:.3g}, of random links between tables with equal shares {one['random']:.3g}"
              for name, one in (overview["linked_rows"] or {}).items()]  # fmt: skip
    head = ["Expected total variation of marginals over both ends of a link, for usual numbers of rows:"]
    return [
        overview["neighbours"],
        overview["attack_risk"]["sentence"],
        *lines,
        *map(_line, overview["pieces"]),
        *(head + errors if errors else []),
    ]


def _line(piece: dict[str, Any]) -> str:
    moved = f", at most {piece['moved']} rows or links differ between neighbours" if piece["moved"] else ""
    head = f"{piece['name']:>24}: {100 * piece['share']:.3g} % of the budget, mu {piece['mu']:.4g}{moved}"
    expected = piece["expected"]
    errors = _table_error(expected) if "rmse" in expected else _link_error(expected)
    return "\n".join([head, *(f"{'':>26}{one}" for one in errors)])


def _table_error(expected: dict[str, Any]) -> list[str]:
    if expected["rmse"] is None:
        return []
    return [f"expected error of a query: {expected['rmse']:.4g} records, by {expected['by']}"]


def _link_error(expected: dict[str, Any]) -> list[str]:
    labels = {"links": "the number of links", "degrees": "rows by degree", "siblings": "pairs of siblings",
              "steps": "pairs of consecutive children"}  # fmt: skip
    if not any(expected.values()):
        return ["no share: its links are random"]
    noise = [f"{label} {expected[name]:.3g}" for name, label in labels.items() if expected.get(name) is not None]
    left = [f"{100 * one:.2g} % with {int(links):,}" for links, one in (expected["random"] or {}).items()]
    lines = [f"standard deviation of the noise: {', '.join(noise)}"] if noise else []
    return lines + ([f"expected error relative to random links, by number of links: {', '.join(left)}"] if left else [])


@main.group()
def tables() -> None:
    """Several tables and their links."""


@tables.command("check")
@click.argument("job")
@scheduler_option
@json_option
def tables_check(job: str, scheduler: str | None, as_json: bool) -> None:
    """Count keys, orphans and degrees of a job's tables. The output is PRIVATE and not for publication."""
    from dpscale.base.error_redaction import discreetly
    from dpscale.engine import resolve
    from dpscale.evaluation.key_statistics import WARNING, check_keys
    from dpscale.job.tables import CompositeJob

    read = CompositeJob.read(job)
    click.echo(WARNING, err=True)
    engine = resolve(scheduler=scheduler or read.engine.scheduler)
    try:
        summary = discreetly("tables check", check_keys, read, engine)
    finally:
        engine.close()
    click.echo(json.dumps(summary) if as_json else _text(summary))


def _text(summary: dict[str, Any]) -> str:
    return "\n".join([*map(_table, summary["tables"]), *(line for link in summary["links"] for line in _link(link))])


def _table(one: dict[str, Any]) -> str:
    keys = "no key"
    if one["null_keys"] is not None:
        keys = f"{one['null_keys']:,} null keys, {one['duplicate_keys']:,} rows with a duplicate key"
    return f"table {one['name']}{' (public)' if one['public'] else ''}: {one['rows']:,} rows, {keys}"


OTHERS = {"loops": "from a row to itself", "repeated": "that repeat a link"}


def _link(one: dict[str, Any]) -> list[str]:
    ends = f"{one['null_ends']:,} with a null key, {one['dangling']:,} with a key of no row"
    others = [f"{one[name]:,} {text}" for name, text in OTHERS.items() if one[name]]
    lines = [f"link {one['name']}: {one['rows']:,} rows, {', '.join([ends, *others])}"]
    for side, of in one["degrees"].items():
        spread = ", ".join(f"{name} {of[name]:g}" for name in ("50%", "90%", "99%", "max"))
        lines.append(f"    {side} degree: mean {of['mean']:.3g}, {spread}; {of['none']:,} of {of['rows']:,} have none")
    over = f"{one['links_beyond']:,} links of {one['rows_beyond']:,} rows exceed it and would be {one['beyond_is']}"
    lines.append(f"    max_degree {one['max_degree']}: {over}" if one["beyond_is"] != "any number" else
                 "    unlimited degree of a parent")  # fmt: skip
    return lines


@tables.command("from-sdv")
@click.argument("metadata")
@click.option("--data", default=".", show_default=True, help="The folder of the tables' files.")
@click.option("--public", multiple=True, metavar="TABLE", help="A public table; may be repeated.")
@click.option("--unit", metavar="TABLE", help="The protected table, if several private tables have no private parent.")
def tables_from_sdv(metadata: str, data: str, public: tuple[str, ...], unit: str | None) -> None:
    """Print a draft of a job from SDV's metadata of several tables. Reads no data."""
    from dpscale.job.sdv import draft, read_metadata

    click.echo(draft(read_metadata(metadata), data, public, unit))


@tables.command("to-sdv")
@click.argument("job")
def tables_to_sdv(job: str) -> None:
    """Print SDV's metadata of the tables that a job releases. Reads no data."""
    from dpscale.job.sdv import metadata
    from dpscale.job.tables import CompositeJob

    click.echo(json.dumps(metadata(CompositeJob.read(job)), indent=1))
