"""Statement of an account: its caps, its spending, what is left, and its releases, ready for JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from dpscale.base.display import figure, html_table, power
from dpscale.ledger.account import Account, Row, cost_from_text, is_public
from dpscale.ledger.cap import MOST, remaining_epsilon
from dpscale.ledger.filters import period_accounts, periods_of_row
from dpscale.ledger.periods import periods_of_text, shown_renewal
from dpscale.privacy.accounting import CURRENCIES, PURE, Spending, delta_left, float_above
from dpscale.privacy.conversion import gdp_mu

MOST_LISTED, FEW = 10, 3  # lines of a table, and datasets whose releases are listed
NEWER = ("span", "period", "periods", "run_dir")
UNSHOWN = ("seq", "dataset", "job", "files")
MOST_DELTA = math.nextafter(1, 0)  # at a delta of 1 nothing is claimed


def statement(account: Account, stated_delta: float) -> dict[str, Any]:
    """Return cap, currency, spending, remaining budget and releases of a dataset, ready for JSON; infinity is null.

    Totals are stated at the delta of the cap. Without a cap they are stated at the largest delta of a release, or at
    `stated_delta` if no release has one, or at 0 if the history is pure; if the additive deltas use that up, they are
    added to it. `periods`, with the sums of each period, is there only if a release has a period.
    """
    cap = account.limit()
    delta = cap.delta if cap else 0.0 if account.currency == PURE else _largest_delta(account, stated_delta)
    if not cap and account.spent.delta >= delta:
        delta = min(delta + float_above(account.spent.delta), MOST_DELTA)
    periods = {name: _figures(account, one, delta) for name, one in account.periods.items()}
    return (
        {
            "cap": _shown(account.caps[-1]) | {"currency": cap.currency} if cap else None,
            "former_caps": [_shown(row) for row in account.caps[:-1]],
            "protects": str(account.protects) if account.protects else None,
            "currency": f"{account.currency}: {CURRENCIES[account.currency]}",
            "spent": _figures(account, account.spent, delta),
            "reserved": _figures(account, account.reserved, delta),
            "remaining": _remaining(account),
            "remaining_epsilon": _remaining_epsilon(account),
            "notes": notes(account),
            "releases": [_entry(account, row, delta) for row in account.releases],
        }
        | ({"periods": periods} if periods else {})
        | ({"period_caps": [_shown(row) for row in account.renewing]} if account.renewing else {})
    )


def statement_html(summary: Mapping[str, Any]) -> str:
    """Return the summary of a ledger as HTML: spent and remaining budget of each dataset, and its last releases."""
    datasets = summary["datasets"]
    lines = [(name, f"{len(one['releases']):,}", _pair(one["spent"]), _pair(one["cap"]), _left(one))
             for name, one in datasets.items()]  # fmt: skip
    columns = ("dataset", "releases", "spent", "cap", "remains")
    found = [html_table(f"Ledger {summary['ledger']}", columns, lines[:MOST_LISTED])]
    charged = {name: one for name, one in datasets.items() if one["releases"]}
    for name, one in charged.items() if len(charged) <= FEW else ():
        last = [(row["release"][:8], row["reserved_at"][:10], row["state"], _pair(row["own"]))
                for row in one["releases"][-MOST_LISTED:]]  # fmt: skip
        found.append(html_table(f"Last releases of {name}", ("release", "day", "state", "cost"), last, labels=3))
    return "".join(found)


def _left(dataset: Mapping[str, Any]) -> str:
    """Return the remaining budget of a dataset in words."""
    if dataset["remaining_epsilon"] is None:
        return "no cap on the total"
    return _pair({"epsilon": dataset["remaining_epsilon"], "delta": dataset["cap"]["delta"]})


def _pair(figures: Mapping[str, Any] | None) -> str:
    """Return epsilon and delta in words; a dash for no cap."""
    if figures is None:
        return "—"
    epsilon = "infinite" if figures["epsilon"] is None else figure(figures["epsilon"])
    return f"ε {epsilon} at δ {power(figures['delta'])}" if figures["delta"] else f"ε {epsilon}"


def statement_by_period(account: Account, stated_delta: float) -> dict[str, Any]:
    """Return the budget of each month or year of the data, ready for JSON; infinity is null.

    It has the months, the years, or both, by which caps renew. Without such a cap it has the months, or the years if
    releases name years only; it is empty if no release names a period. `other` has the figures of every period that no
    release names, and of what every release without periods costs.
    """
    labels = {label for row in account.releases for label in periods_of_row(row)}
    renewals = list(account.renewing_now) or ([shown_renewal(labels)] if labels else [])
    found = {}
    for by in renewals:
        accounts, cap = period_accounts(account, by), account.renewing_now.get(by)
        figures = {name: _of_period(one, stated_delta) for name, one in accounts.items()}
        promise = next(iter(accounts.values())).protects
        found[by] = {"cap": _shown(cap) if cap else None, "protects": str(promise) if promise else None,
                     "other": figures.pop(""), "periods": figures}  # fmt: skip
    return found


def _of_period(account: Account, stated_delta: float) -> dict[str, Any]:
    cap = account.limit()
    delta = cap.delta if cap else 0.0 if account.currency == PURE else stated_delta
    left = {"remaining": _remaining(account), "remaining_epsilon": _remaining_epsilon(account)} if cap else {}
    before = {"charged_before": account.charged_before} if cap else {}
    return {**_figures(account, account.spent, delta), **left, "releases": len(account.releases), **before}


def _remaining_epsilon(account: Account) -> float | None:
    cap = account.limit()
    return remaining_epsilon(cap, account.spent) if cap and not cap.boundless else None


def _largest_delta(account: Account, stated_delta: float) -> float:
    return max((row["delta"] for row in account.releases if row["delta"]), default=stated_delta)


def notes(account: Account) -> list[str]:
    """Return the caveats that a reader of the figures needs."""
    said = []
    if account.cap and account.cap.boundless:
        said.append(f"a cap above epsilon {MOST:g} has no effect: set a smaller one")
    if account.spent.public:
        said.append("a release with a seed showed exact counts: nothing that follows makes this dataset private")
    if not account.caps and account.renewing:
        said.append("no cap on the total: each period of the data has its own, and the total is an odometer's")
    elif not account.caps:
        said.append("no cap: the epsilon is an odometer's, true if every budget was fixed before the first release")
    elif account.charged_before:
        said.append(f"charged before this cap: {account.charged_before}; for those releases it is an odometer")
    if (cap := account.limit()) and cap.reserved:
        said.append(f"reserved for additive deltas: {cap.reserved:.6g} of the cap's delta")
    if account.spent.approximate and account.spent.pure:
        said.append("pure and Gaussian releases are counted together in gdp")
    if any(not row["relation"] for row in account.releases):
        said.append("older releases do not state their privacy unit: they are counted as if it were the same")
    return said


def _figures(account: Account, spending: Spending, delta: float) -> dict[str, Any]:
    cap = account.limit()
    figures = {
        "epsilon": cap.spent_epsilon(spending) if cap else spending.epsilon(account.currency, delta),
        "delta": delta,
        "squared_mu": spending.amount("gdp"),
        "pure_epsilon": spending.amount(PURE),
    } | ({"additive_delta": float_above(spending.delta)} if spending.delta else {})
    return {name: value if math.isfinite(value) else None for name, value in figures.items()}


def _remaining(account: Account) -> float | None:
    """Return the unspent part of the cap in its currency; None without a cap or with one too large to compute with."""
    cap = account.limit()
    if cap is None or cap.boundless:
        return None
    if (left := delta_left(cap.delta, max(account.spent.delta, Fraction(cap.reserved)))) < 0:
        return 0.0
    most = cap.epsilon if cap.currency == PURE else gdp_mu(cap.epsilon, left) ** 2
    return max(0.0, most - account.spent.amount(cap.currency))


def _entry(account: Account, row: Row, delta: float) -> dict[str, Any]:
    """Return one release.

    `own` is its cost alone, at its own delta, or at the delta of the totals if it has none; a pure one at its additive
    delta.
    """
    counted, cost = float_above(account.counted(row).squared_mu), cost_from_text(row["cost"])
    at = float_above(cost.delta) if cost.is_pure else row["delta"] or delta
    epsilon = math.inf if is_public(row) else cost.epsilon_or_inf(min(at, MOST_DELTA))
    costs = {"cost": json.loads(row["cost"]), "squared_mu": counted, "public": is_public(row),
            "own": {"epsilon": epsilon if math.isfinite(epsilon) else None, "delta": at}}  # fmt: skip
    return _shown(row) | costs


def _shown(row: Row) -> Row:
    """Return a row without its number, dataset, job and files, and without columns of this version that are not set."""
    found = {name: value for name, value in row.items() if name not in (*UNSHOWN, *NEWER)}
    more = {name: row[name] for name in NEWER if row.get(name)}
    if labels := periods_of_text(more.pop("periods", None)):
        more["periods"] = list(labels)
    return found | more
