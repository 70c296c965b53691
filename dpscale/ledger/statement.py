"""Account statements for display and JSON, and consistency checks of the ledger's rows."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from dpscale.base.errors import BudgetError
from dpscale.ledger import chain
from dpscale.ledger.account import MOST, Account, Row, cost_from_text, is_public, remaining_epsilon
from dpscale.ledger.sqlite_schema import ROWS, STATES
from dpscale.privacy.accounting import CURRENCIES, PURE, Spending, float_above
from dpscale.privacy.conversion import gdp_mu


def statement(account: Account, stated_delta: float) -> dict[str, Any]:
    """Return cap, currency, spending, remaining budget and releases of a dataset, ready for JSON; infinity is null.

    Totals are stated at the delta of the cap. Without a cap they are stated at the largest delta of a release, or at
    `stated_delta` if no release has one, or at 0 if the history is pure.
    """
    cap = account.cap
    delta = cap.delta if cap else 0.0 if account.currency == PURE else _largest_delta(account, stated_delta)
    return {
        "cap": _without(account.caps[-1], "seq", "dataset") | {"currency": cap.currency} if cap else None,
        "former_caps": [_without(row, "seq", "dataset") for row in account.caps[:-1]],
        "protects": str(account.protects) if account.protects else None,
        "currency": f"{account.currency}: {CURRENCIES[account.currency]}",
        "spent": _figures(account, account.spent, delta),
        "reserved": _figures(account, account.reserved, delta),
        "remaining": _remaining(account),
        "remaining_epsilon": remaining_epsilon(cap, account.spent) if cap and not cap.boundless else None,
        "notes": notes(account),
        "releases": [_entry(account, row, delta) for row in account.releases],
    }


def _largest_delta(account: Account, stated_delta: float) -> float:
    return max((row["delta"] for row in account.releases if row["delta"]), default=stated_delta)


def notes(account: Account) -> list[str]:
    """Return the caveats that a reader of the figures needs."""
    said = []
    if account.cap and account.cap.boundless:
        said.append(f"a cap above epsilon {MOST:g} has no effect: set a smaller one")
    if account.spent.public:
        said.append("a release with a seed showed exact counts: nothing that follows makes this dataset private")
    if not account.caps:
        said.append("no cap: the epsilon is an odometer's, true if every budget was fixed before the first release")
    elif account.charged_before:
        said.append(f"charged before this cap: {account.charged_before}; for those releases it is an odometer")
    if account.spent.approximate and account.spent.pure:
        said.append("pure and Gaussian releases are counted together in gdp")
    if any(not row["relation"] for row in account.releases):
        said.append("older releases do not state their privacy unit: they are counted as if it were the same")
    return said


def _figures(account: Account, spending: Spending, delta: float) -> dict[str, Any]:
    figures = {
        "epsilon": spending.epsilon(account.currency, delta),
        "delta": delta,
        "squared_mu": spending.amount("gdp"),
        "pure_epsilon": spending.amount(PURE),
    }
    return {name: value if math.isfinite(value) else None for name, value in figures.items()}


def _remaining(account: Account) -> float | None:
    """Return the unspent part of the cap in its currency; None without a cap or with one too large to compute with."""
    cap = account.cap
    if cap is None or cap.boundless:
        return None
    most = cap.epsilon if cap.currency == PURE else gdp_mu(cap.epsilon, cap.delta) ** 2
    return max(0.0, most - account.spent.amount(cap.currency))


def _entry(account: Account, row: Row, delta: float) -> dict[str, Any]:
    """Return one release. `own` is its cost alone, at its own delta, or at the delta of the totals if it has none."""
    counted, cost = float_above(account.counted(row).squared_mu), cost_from_text(row["cost"])
    at = 0.0 if cost.is_pure else row["delta"] or delta
    epsilon = math.inf if is_public(row) else cost.epsilon(at)
    told = {"cost": json.loads(row["cost"]), "squared_mu": counted, "public": is_public(row),
            "own": {"epsilon": epsilon if math.isfinite(epsilon) else None, "delta": at}}  # fmt: skip
    return _without(row, "seq", "dataset") | told


def _without(row: Row, *names: str) -> Row:
    return {name: value for name, value in row.items() if name not in names}


def findings(tables: Mapping[str, Sequence[Row]], last: dict[str, int]) -> list[str]:
    """Return the faults of the rows: gaps in their numbers (removed rows), invalid costs and invalid states."""
    wrong = []
    for table in ROWS:
        if [row["seq"] for row in tables[table]] != list(range(1, last.get(table, 0) + 1)):
            wrong.append(f"the rows of {table} are not numbered as they were written")
    known = {row["release"] for row in tables["releases"]}
    for table, what in (("rounds", "has decided rounds"), ("protections", "protects somebody")):
        strangers = sorted({row["release"] for row in tables[table]} - known)
        wrong += [f"release {name!r} {what} and is not there" for name in strangers]
    wrong += [f"release {row['release']!r} {fault}" for row in tables["releases"] if (fault := _fault(row))]
    return wrong + list(chain.findings(tables))


def _fault(row: Row) -> str:
    try:
        positive = bool(cost_from_text(row["cost"]))
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
