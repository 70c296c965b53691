"""What follows a run: to `end` one that is not to go on."""

from __future__ import annotations

import json
from typing import Any

import click

from dpscale.cli.group import json_option, main
from dpscale.errors import TransientError


@main.command()
@click.argument("run_dir")
@json_option
def end(run_dir: str, as_json: bool) -> None:
    """Finish a run that is measured, or abandon it: its secret is destroyed, and nothing is measured any more."""
    from dpscale.cli import signs
    from dpscale.runs.run import Run
    from dpscale.stages import ending

    run = Run(run_dir)
    if signs.at_work(signs.told(run.path)):
        raise TransientError("run directory", f"a driver on the cluster works in {run.path}", "a run that nobody is at",
                             f"wait for it, or stop it with `dpscale cancel {run.path}`")  # fmt: skip
    told = ending.end(run)
    click.echo(json.dumps(told) if as_json else f"{told['how']}: {_spent(told)}")


def _spent(told: dict[str, Any]) -> str:
    """What was spent, in words."""
    charged, finished = told["charged"], told["how"] == "finished"
    if "ledger" in told:
        return f"its ledger cannot be asked what was spent ({told['ledger']})"
    if charged is None:
        return "nothing was spent"
    figures = ", ".join(f"{name} {charged[name]:g}" for name in ("epsilon", "delta") if charged.get(name) is not None)
    cost = ", ".join(f"{name} {_decimal(value)}" for name, value in charged["cost"].items() if value not in ("0", None))
    after = (
        "answers can be made of it as before" if finished else "there is no refund, for some of its noise may be known"
    )
    return f"the whole charge is spent ({figures or cost}); {after}"


def _decimal(value: Any) -> str:
    from fractions import Fraction

    try:
        return f"{float(Fraction(value)):.6g}"
    except (ValueError, TypeError, OverflowError):
        return str(value)
