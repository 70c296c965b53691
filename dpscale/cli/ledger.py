"""Commands for ledgers: show the spent budget, verify the history, set a cap, move a history."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import click

from dpscale.base.display import epsilon_text
from dpscale.base.errors import JobError
from dpscale.cli.group import json_option, main
from dpscale.privacy.protection import WITHIN

RENEWALS = ("month", "year")  # of `dpscale.ledger.account`, which imports NumPy
MOST_SHOWN = 3  # labels of periods in one line


@main.group()
def ledger() -> None:
    """Spent budgets and caps."""


@ledger.command("show")
@click.argument("path")
@click.option("--by", type=click.Choice(["period"]), help="Also show the budget of each month or year of the data.")
@json_option
def ledger_show(path: str, by: str | None, as_json: bool) -> None:
    """Show spent, reserved and remaining budget, per release and in total."""
    from dpscale.ledger import Ledger

    with Ledger.open(path, create=False) as opened:
        summary = opened.summary(by_period=by is not None)
    click.echo(json.dumps(summary) if as_json else ledger_text(summary))


@ledger.command("verify")
@click.argument("path")
@json_option
def ledger_verify(path: str, as_json: bool) -> None:
    """Check the database, every row and every hash chain; exit code 3 if anything was changed."""
    from dpscale.ledger import Ledger

    with Ledger.open(path, create=False) as opened:
        counted = opened.verify()
    click.echo(json.dumps({"ledger": path, **counted}) if as_json else
               f"{path} is sound: {counted['datasets']} datasets, {counted['releases']} releases,"
               f" {counted['links']} links of hash chains")  # fmt: skip


@ledger.command("cap")
@click.argument("path")
@click.option("--dataset", required=True)
@click.option("--epsilon", type=float, required=True)
@click.option("--delta", type=float, required=True, help="0 for a cap in pure DP.")
@click.option("--currency", type=click.Choice(["gdp", "pure"]), help="Default: pure if delta is 0, otherwise gdp.")
@click.option("--unit", help="The privacy unit: row, or the column that identifies it.")
@click.option("--table", help="With --unit, for jobs of several tables: the table of the column.")
@click.option("--span", type=click.Choice([*WITHIN]), help="With --unit: protect its rows in one such period.")
@click.option("--analyst", help="Cap the releases of this analyst, beside those of the dataset.")
@click.option("--period", type=click.Choice(RENEWALS), help="Cap each such period of the data, not the total.")
def ledger_cap(
    path: str,
    dataset: str,
    epsilon: float,
    delta: float,
    currency: str | None,
    unit: str | None,
    table: str | None,
    span: str | None,
    period: str | None,
    analyst: str | None,
) -> None:
    """Cap the total cost of all releases of a dataset, of an analyst, or of those that read each month or year."""
    from dpscale.ledger import Ledger
    from dpscale.privacy.protection import Protection

    if unit is not None and not unit.strip():
        raise JobError("--unit", "got an empty name", "row, or the name of a column", "name one")
    if table is not None and (unit in (None, "row") or not table.strip()):
        raise JobError("--table", "got one without the column of a unit", "--unit COLUMN --table TABLE",
                       "name the column, or leave --table out")  # fmt: skip
    if span is not None and unit in (None, "row"):
        raise JobError("--span", "got one without the column of a unit", "--unit COLUMN --span month",
                       "name the column, or leave --span out")  # fmt: skip
    # without a unit the promise is that of the account
    protects = None if unit is None else Protection(None if unit == "row" else unit, table=table, span=span)
    with Ledger.open(path) as opened:
        click.echo(str(opened.set_cap(dataset, epsilon, delta, currency, protects, period, analyst)))


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
    """Return the lines that `dpscale ledger show` prints on a dataset: unit, caps, what is spent and left, releases.

    `dataset` is the statement of the ledger (`ledger.book.statement`). Entries that older ledgers lack are left out.
    """
    return [
        f"dataset {name}: {_in_words(dataset)}",
        *_line("protects", dataset["protects"] or "no unit yet"),
        *_line("currency", dataset["currency"]),
        *_line("cap", _cap(dataset["cap"])),
        *(line for cap in dataset["former_caps"] for line in _line("before", _cap(cap))),
        *(line for cap in dataset.get("period_caps", ()) for line in _line(f"cap/{cap['period']}", _cap(cap))),
        *_line("spent", _spent(dataset["spent"], dataset["currency"])),
        *(
            line
            for name, figures in dataset.get("analysts", {}).items()
            for line in _line("analyst", _analyst(name, figures))
        ),
        *(
            line
            for name, figures in dataset.get("periods", {}).items()
            for line in _line("period", f"{name or 'none'}: {_spent(figures, dataset['currency'])}")
        ),
        *_line("reserved", _spent(dataset["reserved"], dataset["currency"])),
        *_line("left", _left(dataset, dataset["cap"], dataset["currency"])),
        *_by_period(dataset),
        *(line for note in dataset["notes"] for line in _line("note", note)),
        *_line("head", dataset.get("head", "")),
        *(f"  - {_release(row)}" for row in dataset["releases"]),
    ]


def _in_words(dataset: dict[str, Any]) -> str:
    """Return in one sentence what a dataset has spent and what is left."""
    figures, cap = dataset["spent"], dataset["cap"]
    number = len(dataset["releases"])
    epsilon = epsilon_text(figures["epsilon"], 4)
    spent = f"{number:,} release{'s' * (number != 1)} spent epsilon {epsilon}"
    if not cap:
        return f"{spent}; there is no cap on the total"
    left = dataset["remaining_epsilon"]
    more = f"one more release may have {left:.4g}" if left else "nothing is left"
    return f"{spent} of {cap['epsilon']:.4g}; {more}"


def _line(label: str, text: str) -> list[str]:
    """Return the line of a label, or none for an empty text."""
    return [f"  {label:<9} {text}"] if text else []


def _cap(cap: dict[str, Any] | None) -> str:
    return f"epsilon {cap['epsilon']:.6g} at delta {cap['delta']:.6g}, since {_day(cap['set_at'])}" if cap else "none"


def _spent(figures: dict[str, Any], currency: str) -> str:
    """Return the spent epsilon and delta as text, with squared μ unless the currency is pure epsilon.

    `figures` are those of a spending in a statement of the ledger.
    """
    epsilon = epsilon_text(figures["epsilon"])
    amount = figures["pure_epsilon" if currency.startswith("pure") else "squared_mu"]
    cost = "" if amount is None or currency.startswith("pure") else f" (squared mu {amount:.6g})"
    added = f", additive delta {figures['additive_delta']:.6g}" if "additive_delta" in figures else ""
    return f"epsilon {epsilon} at delta {figures['delta']:.6g}{cost}{added}"


def _left(figures: dict[str, Any], cap: dict[str, Any], currency: str) -> str:
    """Return the budget left under a cap as text; empty if there is no cap, or one too large to compute with.

    `figures` is the statement of an account. Its `remaining` is in the currency of the account: epsilon of pure DP, or
    squared μ of Gaussian DP. `remaining_epsilon` is the epsilon of the largest single release that still fits, at the
    delta of the cap. Amounts of the currency add up over releases, but these epsilons do not.
    """
    if figures["remaining"] is None:
        return ""
    # caps are stated in epsilon, so the largest release that fits is shown beside the exact amount
    unit = "epsilon" if currency.startswith("pure") else "squared mu"
    largest = f"epsilon {figures['remaining_epsilon']:.6g} at delta {cap['delta']:.6g}"
    return f"{unit} {figures['remaining']:.6g}: one release of {largest}"


def _analyst(name: str, figures: dict[str, Any]) -> str:
    """Return cap, spending and remaining budget of an analyst."""
    currency = (figures["cap"] or {}).get("currency") or "gdp"
    left = f", left {_left(figures, figures['cap'], currency)}" if figures["cap"] else ""
    return f"{name}: cap {_cap(figures['cap'])}, spent {_spent(figures['spent'], currency)}{left}"


def _by_period(dataset: dict[str, Any]) -> list[str]:
    """Return one line for each month or year of the data that releases name, and one for every other.

    `stated` has the cap, the unit and the accounts of the months, or of the years.
    """
    lines = []
    for by, stated in dataset.get("by_period", {}).items():
        cap = stated["cap"]
        lines += _line(f"by {by}", f"each {by} protects {stated['protects'] or 'no unit yet'}, cap {_cap(cap)}")
        # "any other" is the account of periods that no release has named
        for name, figures in {**stated["periods"], f"any other {by}": stated["other"]}.items():
            # figures are in the currency of the cap, or of the dataset without one
            currency = (cap or {}).get("currency") or dataset["currency"]
            left = _left(figures, cap, currency) if cap else ""
            before = f", charged before this cap: {count}" if (count := figures.get("charged_before")) else ""
            lines.append(f"    {name}: {_spent(figures, currency)}{f', left {left}' if left else ''}{before}")
    return lines


def _release(row: dict[str, Any]) -> str:
    """Return the line of a release in the list of a ledger: name, cost, properties, state and day.

    `row["own"]` is the cost of the release alone, `row["squared_mu"]` its cost in the unit that the ledger's cap
    protects, which is larger if one such unit is several units of the release.
    """
    from dpscale.ledger.account import cost_from_text

    alone = row["own"]
    epsilon = epsilon_text(alone["epsilon"])
    words = [row["release"], f"epsilon {epsilon} at delta {alone['delta']:.6g}, squared mu {row['squared_mu']:.6g}"]

    delta, period = row["cost"].get("delta"), row["cost"].get("period")
    if delta:
        words.append(f"additive delta {float(Fraction(delta)):.6g}")
    if period:
        words.append(f"period {period}")
    own_squared_mu = cost_from_text(json.dumps(row["cost"])).squared_mu
    if row["squared_mu"] > own_squared_mu * (1 + 1e-9):  # equal numbers may differ by rounding
        words.append("of another unit, so it counts more than once")
    if row.get("periods"):
        words.append(f"reads {_shown_periods(row['periods'])}")
    if row["public"]:
        words.append("noise is public: seed")

    return ", ".join([*words, row["state"], _day(row["reserved_at"])])


def _shown_periods(labels: list[str]) -> str:
    return ", ".join(labels) if len(labels) <= MOST_SHOWN else f"{labels[0]}, …, {labels[-1]} ({len(labels)} periods)"


def _day(time: str) -> str:
    return time[:10]
