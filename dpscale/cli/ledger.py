"""Commands for ledgers: show the spent budget, set a cap, move a history."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import click

from dpscale.base.errors import JobError
from dpscale.cli.group import json_option, main


@main.group()
def ledger() -> None:
    """Spent budgets and caps."""


@ledger.command("show")
@click.argument("path")
@json_option
def ledger_show(path: str, as_json: bool) -> None:
    """Show spent, reserved and remaining budget, per release and in total."""
    from dpscale.ledger import Ledger

    with Ledger.open(path, create=False) as opened:
        summary = opened.summary()
    click.echo(json.dumps(summary) if as_json else ledger_text(summary))


@ledger.command("cap")
@click.argument("path")
@click.option("--dataset", required=True)
@click.option("--epsilon", type=float, required=True)
@click.option("--delta", type=float, required=True, help="0 for a cap in pure DP.")
@click.option("--currency", type=click.Choice(["gdp", "pure"]), help="Default: pure if delta is 0, otherwise gdp.")
@click.option("--unit", help="The privacy unit: row, or the column that identifies it.")
@click.option("--table", help="With --unit, for jobs of several tables: the table of the column.")
def ledger_cap(
    path: str, dataset: str, epsilon: float, delta: float, currency: str | None, unit: str | None, table: str | None
) -> None:
    """Cap the total cost of all releases of a dataset."""
    from dpscale.ledger import Ledger
    from dpscale.privacy.protection import Protection

    if unit is not None and not unit.strip():
        raise JobError("--unit", "got an empty name", "row, or the name of a column", "name one")
    if table is not None and (unit in (None, "row") or not table.strip()):
        raise JobError("--table", "got one without the column of a unit", "--unit COLUMN --table TABLE",
                       "name the column, or leave --table out")  # fmt: skip
    protects = None if unit is None else Protection(None if unit == "row" else unit, table=table)
    with Ledger.open(path) as opened:
        click.echo(str(opened.set_cap(dataset, epsilon, delta, currency, protects)))


@ledger.command("copy")
@click.argument("source")
@click.argument("target")
def ledger_copy(source: str, target: str) -> None:
    """Move a history to a new ledger, a file or postgresql://HOST/DATABASE, and close the old one permanently."""
    from dpscale.ledger import Ledger

    with Ledger.open(source, create=False) as opened:
        count = opened.move(target)
    click.echo(f"{target} contains the history ({count} releases); {source} is closed permanently")


def ledger_text(summary: dict[str, Any]) -> str:
    """Return caps, totals and releases of every dataset as text."""
    lines = [line for name, dataset in summary["datasets"].items() for line in _dataset(name, dataset)]
    moved = [f"closed permanently: the history moved to {summary['moved_to']}"] if summary["moved_to"] else []
    return "\n".join([*moved, *(lines or ["no dataset"])])


def _dataset(name: str, dataset: dict[str, Any]) -> list[str]:
    return [
        f"dataset {name}",
        *_line("protects", dataset["protects"] or "no unit yet"),
        *_line("currency", dataset["currency"]),
        *_line("cap", _cap(dataset["cap"])),
        *(line for cap in dataset["former_caps"] for line in _line("before", _cap(cap))),
        *_line("spent", _spent(dataset["spent"], dataset["currency"])),
        *(
            line
            for name, one in dataset.get("periods", {}).items()
            for line in _line("period", f"{name or 'none'}: {_spent(one, dataset['currency'])}")
        ),
        *_line("reserved", _spent(dataset["reserved"], dataset["currency"])),
        *_line("left", _left(dataset)),
        *(line for note in dataset["notes"] for line in _line("note", note)),
        *_line("head", dataset.get("head", "")),
        *(f"  - {_release(row)}" for row in dataset["releases"]),
    ]


def _line(label: str, text: str) -> list[str]:
    return [f"  {label:<9} {text}"] if text else []


def _cap(cap: dict[str, Any] | None) -> str:
    return f"epsilon {cap['epsilon']:.6g} at delta {cap['delta']:.6g}, since {_day(cap['set_at'])}" if cap else "none"


def _spent(figures: dict[str, Any], currency: str) -> str:
    epsilon = "infinite" if figures["epsilon"] is None else f"{figures['epsilon']:.6g}"
    amount = figures["pure_epsilon" if currency.startswith("pure") else "squared_mu"]
    cost = "" if amount is None or currency.startswith("pure") else f" (squared mu {amount:.6g})"
    added = f", additive delta {figures['additive_delta']:.6g}" if "additive_delta" in figures else ""
    return f"epsilon {epsilon} at delta {figures['delta']:.6g}{cost}{added}"


def _left(dataset: dict[str, Any]) -> str:
    if dataset["remaining"] is None:
        return ""
    unit = "epsilon" if dataset["currency"].startswith("pure") else "squared mu"
    one = f"epsilon {dataset['remaining_epsilon']:.6g} at delta {dataset['cap']['delta']:.6g}"
    return f"{unit} {dataset['remaining']:.6g}: one release of {one}"


def _release(row: dict[str, Any]) -> str:
    own = row["own"]
    epsilon = "infinite" if own["epsilon"] is None else f"{own['epsilon']:.6g}"
    public = ["noise is public: seed"] if row["public"] else []
    figures = f"epsilon {epsilon} at delta {own['delta']:.6g}, squared mu {row['squared_mu']:.6g}"
    delta, period = (row["cost"].get(name) for name in ("delta", "period"))
    more = [f"additive delta {float(Fraction(delta)):.6g}"] if delta else []
    more += [f"period {period}"] if period else []
    return ", ".join([row["release"], figures, *more, *public, row["state"], _day(row["reserved_at"])])


def _day(time: str) -> str:
    return time[:10]
