"""Privacy filters of a dataset: one for its total cap, and one for each period of the data under a cap that renews.

A row, and all rows of a unit in one period, are in one period of the data. Releases that read no record of a period
tell nothing about it, so the releases that read a period compose to a filter of their own, and each of them costs that
period its whole cost once. A release that names no period is charged to every period. A release is admitted if every
filter that applies to it admits it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dpscale.ledger.account import Account, Row, protection_of
from dpscale.ledger.periods import Periods, periods_of_text, renewal_name, renewals_of
from dpscale.privacy.protection import ADD_REMOVE, Protection


def filters(account: Account, periods: Periods, protects: Protection) -> Iterator[Account]:
    """Yield the accounts whose caps a release has to pass: those of the periods that it reads, and that of the total.

    Periods that were read by the same releases have the same account and are yielded once, under the first label.

    Parameters
    ----------
    account : Account
    periods : tuple of str
        Labels of the periods that the release reads; every period if empty.
    protects : Protection
        Promise of the release.

    Raises
    ------
    BudgetError
        If the caps of periods do not bound the promise of the release.
    """
    for by in account.renewing_now:
        seen = set[tuple[int, ...]]()
        for one in period_accounts(account, by, periods, protects).values():
            numbers = tuple(row["seq"] for row in one.releases)
            if numbers not in seen:
                seen.add(numbers)
                yield one
    yield account


def period_accounts(
    account: Account, by: str, periods: Periods = (), protects: Protection | None = None
) -> dict[str, Account]:
    """Return the accounts of months or years by label, in their order.

    Parameters
    ----------
    account : Account
        Account of the dataset.
    by : {"month", "year"}
    periods : tuple of str
        Labels of the periods that are returned. If empty, all that a release names are returned, and "" for every other
        one.
    protects : Protection, optional
        Promise of a request.
    """
    read = [(renewals_of(labels, by) if (labels := periods_of_row(row)) else None, row) for row in account.releases]
    named = renewals_of(periods, by) or frozenset[int]().union(*(months for months, _ in read if months is not None))
    renewal = by if by in account.renewing_now else None
    promise = promise_of(account, by, protects) if renewal else account.protects
    caps = [row for row in account.renewing if row["period"] == by]

    def of(number: int | None) -> Account:
        releases = [row for months, row in read if months is None or number in months]
        label = f"any other {by}" if number is None else renewal_name(by, number)
        return Account(account.name, caps, releases, renewal=renewal, period=label, promise=promise)

    found = {renewal_name(by, number): of(number) for number in sorted(named)}
    return found if periods else found | {"": of(None)}


def promise_of(account: Account, by: str, protects: Protection | None = None) -> Protection | None:
    """Return the promise that a cap for each month, or year, bounds: one row, or all rows of one unit in one of them.

    None if no cap and no release states a privacy unit.

    Parameters
    ----------
    account : Account
    by : {"month", "year"}
    protects : Protection, optional
        Promise of a request, which decides if neither a cap nor an earlier release states one.

    Raises
    ------
    BudgetError
        If the promise of the request, or of the dataset, is not bounded by such caps.
    """
    stated = stated_promises(account)
    for one in [*stated, *([protects] if protects else [])]:
        account.check_renewable(one, by)
    own = account.renewing_now.get(by)
    said = (protection_of(own) if own else None) or next(iter(stated), protects)
    return said and renewed(account.with_table(said, protects), by)


def stated_promises(account: Account) -> list[Protection]:
    """Return the privacy units that the caps in force and the releases of a dataset state, in order of precedence."""
    rows = (*account.caps[-1:], *account.renewing_now.values(), *account.releases)
    return [one for row in rows if (one := protection_of(row))]


def renewed(protects: Protection, by: str) -> Protection:
    """Return the promise for one month, or year, of a promise for rows or for units."""
    if protects.unit is None:
        return Protection(relation=ADD_REMOVE)
    return replace(protects, span=by, bound=1)


def periods_of_row(row: Row) -> Periods:
    """Return the labels of the periods that a release reads."""
    return periods_of_text(row["periods"])
