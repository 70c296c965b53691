"""Cap requested for a dataset, on the total or on each period of the data: validation and insertion of its row."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dpscale.base.errors import BudgetError, JobError
from dpscale.ledger import rows as ledgerrows
from dpscale.ledger.account import Account, cap_of, not_renewable, renewable
from dpscale.ledger.cap import Cap, CapChange, new_cap
from dpscale.ledger.filters import period_accounts, promise_of, renewed, stated_promises
from dpscale.ledger.periods import checked_renewal
from dpscale.ledger.request import check_protection, checked_name
from dpscale.ledger.store import Database
from dpscale.privacy.protection import REPLACE, Protection


@dataclass(frozen=True)
class CapRequest:
    """Cap requested for a dataset. Raises JobError if it is invalid.

    Attributes
    ----------
    dataset : str
    epsilon, delta : float
    currency : {"gdp", "pure"}, optional
    protects : Protection, optional
        Promise of the releases. Default: that of the existing account.
    period : {"month", "year"}, optional
        Period of the data by which the cap renews.
    """

    dataset: str
    epsilon: float
    delta: float
    currency: str | None
    protects: Protection | None
    period: str | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "dataset", checked_name("dataset", self.dataset))
        check_protection(self.protects)
        if self.period is not None:
            checked_renewal(self.period)
            self._check_span(self.period)

    def _check_span(self, period: str) -> None:
        if self.protects and self.protects.span not in (None, period):
            raise JobError("cap.period", f"got {period!r} for all rows of one unit in one {self.protects.span}",
                           f"the span {period!r}", "leave the span out: it is that of the cap")  # fmt: skip

    def apply(self, db: Database) -> CapChange:
        """Insert the row of the cap, unless it is in force already, and return what it changes."""
        before, known = ledgerrows.account(db, self.dataset), ledgerrows.known_near(db, self.dataset)
        cap = self._cap(before)
        row = ledgerrows.cap_row(cap, self._promise(before), self.period or "")
        if self.period:
            after = replace(before, renewing=[*before.renewing, row])
        else:
            after = replace(before, caps=[*before.caps, row])
        change = self._change(after, cap, known)
        latest = before.renewing_now.get(self.period) if self.period else next(iter(before.caps[-1:]), None)
        if latest is None or cap_of(latest) != cap or self._bounded(before) != self._bounded(after):
            ledgerrows.insert_cap(db, self.dataset, row)
        return change

    def _bounded(self, account: Account) -> Protection | None:
        return promise_of(account, self.period) if self.period else account.protects

    def _cap(self, account: Account) -> Cap:
        """Return the cap, in the currency of the dataset."""
        in_force = ({"": account.caps[-1]} if account.caps else {}) | account.renewing_now
        own = in_force.pop(self.period or "", None)
        fixed = next(iter(in_force.values()), own if account.releases else None)
        currency = cap_of(fixed).currency if fixed else ""
        cap = new_cap(self.epsilon, self.delta, self.currency or currency)
        if currency not in ("", cap.currency):
            raise BudgetError("cap.currency", f"got {cap.currency!r} for a dataset with a cap in {currency}",
                              "one currency for all releases of a dataset",
                              f"set the cap in {currency}")  # fmt: skip
        return cap

    def _promise(self, account: Account) -> Protection | None:
        """Return the promise of the cap. Raises BudgetError if caps by period do not bound it."""
        asked, where = self.protects, f"on dataset {account.name!r}"
        if self.period is None:
            promise = asked or account.protects
            if promise and not renewable(promise) and account.renewing:
                by = next(iter(account.renewing_now))
                got = f"a cap on the total that protects {promise} {where}, which has a cap for each {by}"
                raise not_renewable(promise, by, got, "cap.unit", "name another dataset")
            return promise
        for one in [*stated_promises(account), *([asked] if asked and asked.relation == REPLACE else [])]:
            if not renewable(one):
                got = f"a cap for each {self.period} {where}, which protects {one}"
                raise not_renewable(one, self.period, got, "cap.period", "set a cap without a period, on the total")
        return renewed(asked, self.period) if asked else promise_of(account, self.period)

    def _change(self, after: Account, cap: Cap, near: str | None) -> CapChange:
        if not self.period:
            spent = (after.limit() or cap).spent_epsilon(after.spent)
            return CapChange(self.dataset, cap, spent, len(after.releases), near)
        accounts = period_accounts(after, self.period).values()
        spent, fullest = max((((one.limit() or cap).spent_epsilon(one.spent), one.period) for one in accounts),
                             key=lambda figures: figures[0])  # fmt: skip
        promise = next(iter(accounts)).protects
        return CapChange(self.dataset, cap, spent, len(after.releases), near, self.period, fullest,
                         promise.words if promise else "")  # fmt: skip
