"""The ledger's rows read back: a dataset's statement for people and programs, and the rows that cannot be right."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from dpscale.errors import BudgetError
from dpscale.privacy.accounting import Cost, float_above
from dpscale.privacy.cap import Cap, remaining_epsilon
from dpscale.privacy.ledgerfile import STATES

Row = dict[str, Any]


def cost_to_text(cost: Cost) -> str:
    """One text for one cost: canonical JSON of exact fractions."""
    try:
        return json.dumps(cost.to_dict(), sort_keys=True)
    except ValueError as error:  # Python prints no integer of more than some thousand digits
        raise BudgetError("cost", "got a fraction of thousands of digits", "fractions of fewer digits",
                          "round it up with Cost.coarsened()") from error  # fmt: skip


def cost_from_text(text: str) -> Cost:
    """The inverse of `cost_to_text`."""
    try:
        return Cost.from_dict(json.loads(text))
    except (ValueError, TypeError) as error:
        raise BudgetError("cost", "got a row that is not a cost", "the text that the ledger wrote",
                          "restore the ledger from a copy") from error  # fmt: skip


def statement(caps: list[Row], releases: list[Row], stated_delta: float) -> dict[str, Any]:
    """One dataset, from its rows in order: cap, spent, reserved, remaining epsilon, releases; ready for JSON."""
    cap = Cap(caps[-1]["epsilon"], caps[-1]["delta"]) if caps else None
    delta = cap.delta if cap else stated_delta
    costs = [cost_from_text(row["cost"]) for row in releases]
    spent = Cost.total(costs)
    reserved = Cost.total(cost for cost, row in zip(costs, releases, strict=True) if row["state"] == "reserved")
    return {
        "cap": _without(caps[-1], "seq", "dataset") if caps else None,
        "former_caps": [_without(row, "seq", "dataset") for row in caps[:-1]],
        "spent": _figures(spent, delta),
        "reserved": _figures(reserved, delta),
        "remaining_epsilon": remaining_epsilon(cap, spent) if cap else None,
        "releases": [_without(row, "seq", "dataset") | {"cost": json.loads(row["cost"])} for row in releases],
    }


def _figures(cost: Cost, delta: float) -> dict[str, Any]:
    epsilon = cost.epsilon(delta)
    return {
        "epsilon": epsilon if math.isfinite(epsilon) else None,
        "delta": delta,
        "rho": float_above(cost.rho),
        "squared_mu": float_above(cost.gaussian),
        "cost": cost.to_dict(),
    }


def _without(row: Row, *names: str) -> Row:
    return {name: value for name, value in row.items() if name not in names}


def findings(caps: list[Row], releases: list[Row], rounds: list[Row], last: dict[str, int]) -> list[str]:
    """What is wrong with the rows: gaps in their numbers (a row taken out), costs and states that cannot be."""
    wrong = []
    for table, rows in (("caps", caps), ("releases", releases), ("rounds", rounds)):
        if [row["seq"] for row in rows] != list(range(1, last.get(table, 0) + 1)):
            wrong.append(f"the rows of {table} are not numbered as they were written")
    unknown = {row["release"] for row in rounds} - {row["release"] for row in releases}
    wrong += [f"release {name!r} has decided rounds and is not there" for name in sorted(unknown)]
    return wrong + [f"release {row['release']!r} {fault}" for row in releases if (fault := _fault(row))]


def _fault(row: Row) -> str:
    try:
        positive = cost_from_text(row["cost"]).rho > 0
    except BudgetError:
        positive = False
    times = [row[f"{state}_at"] is not None for state in STATES]
    if not positive:
        return "has no valid cost"
    if not re.fullmatch("[0-9a-f]{64}", str(row["plan_digest"])):
        return "has no valid plan digest"
    if row["state"] not in STATES or times != [place <= STATES.index(row["state"]) for place in range(3)]:
        return "has times that do not fit its state"
    return ""
