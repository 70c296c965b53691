"""Charges and caps that are requested: their validation, admission and insertion, and the error of a refusal.

A release requests a charge, which the account of its dataset admits or refuses in one transaction. A user requests a
cap on the total of a dataset or on each period of the data.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from dpscale.base.display import safe_repr
from dpscale.base.errors import BudgetError, JobError
from dpscale.ledger import rows as ledgerrows
from dpscale.ledger.account import (
    Account,
    Cap,
    CapChange,
    Limit,
    Periods,
    Row,
    binding,
    canonical,
    cap_of,
    checked_periods,
    checked_renewal,
    checked_request,
    cost_to_text,
    filters,
    largest_epsilon,
    new_cap,
    not_renewable,
    period_accounts,
    periods_to_text,
    promise_of,
    remaining_epsilon,
    renewable,
    renewed,
    stated_promises,
)
from dpscale.ledger.rows import NO_JOB, JobEntry, repeated_release
from dpscale.ledger.store import Database
from dpscale.privacy.accounting import PURE, Cost, Spending, delta_left, float_above
from dpscale.privacy.protection import REPLACE, Protection

SENSIBLE = 1e-3  # smallest useful share of the requested epsilon or of the cap
USED_UP = "too little is left: raise the cap, which is the promise to the people in the data"


@dataclass(frozen=True)
class Request:
    """Charge requested by a release. Raises JobError or BudgetError if it is invalid.

    Attributes
    ----------
    epsilon, delta : float, optional
        Figures of the job, for display.
    protects : Protection
        Privacy unit of the release.
    public : bool
        Whether anyone can compute the noise.
    facts : mapping of str to str
        Hashes of the release's public files, for the hash chain.
    periods : tuple of str
        Labels of the periods whose records the release reads; every period if empty.
    job : JobEntry
        Job of the release, its run directory and its files.
    analyst : str
        Who asks for the release.
    """

    dataset: str
    release: str
    cost: Cost
    plan_digest: str
    epsilon: float | None
    delta: float | None
    protects: Protection
    public: bool
    facts: Mapping[str, str] = field(default_factory=dict)
    periods: Periods = ()
    job: JobEntry = NO_JOB
    analyst: str = ""

    def __post_init__(self) -> None:
        """Check all fields and store names, figures and periods in their canonical form."""
        object.__setattr__(self, "dataset", checked_name("dataset", self.dataset))
        _ = self.entry  # checks the release and the digest
        epsilon, delta = checked_request(self.epsilon, self.delta)
        object.__setattr__(self, "epsilon", epsilon)
        object.__setattr__(self, "delta", delta)
        check_protection(self.protects)
        object.__setattr__(self, "analyst", self.analyst and checked_name("analyst", self.analyst))
        object.__setattr__(self, "periods", checked_periods(self.periods))
        if self.periods and self.cost.period and self.cost.period not in self.periods:
            raise BudgetError("cost.period", f"got {self.cost.period!r}, which the release does not read",
                              "one of its periods", "name it among the periods")  # fmt: skip

    @property
    def entry(self) -> tuple[str, str, str, str]:
        """Release, dataset, plan digest and cost as they are stored."""
        text = _checked_cost(self.cost)
        return checked_name("release", self.release), self.dataset, _checked_digest(self.plan_digest), text

    def at_recorded_name(self, db: Database) -> Request:
        """Return the request with the name under which the ledger has the data."""
        return replace(self, dataset=ledgerrows.recorded_name(db, self.dataset, self.job, self.release))

    def check_first(self, db: Database) -> None:
        """Raise BudgetError if another run has released the same job and dataset, unless a new release is intended."""
        if not self.job.fresh and (row := ledgerrows.earlier_release(db, self.dataset, self.job)):
            raise repeated_release(row["release"], row["reserved_at"], row["run_dir"])

    def state(self, db: Database) -> str | None:
        """Return the state of the same release if it was charged before, else None.

        Raises BudgetError if another charge has this release name.
        """
        query = """SELECT dataset, plan_digest, cost, periods, analyst, state FROM releases
            LEFT JOIN protections ON protections.release = releases.release WHERE releases.release = ?"""
        present = db.execute(query, (self.entry[0],)).fetchone()
        same = *self.entry, periods_to_text(self.periods), self.analyst
        return _state_of_same(self.release, present, same) if present else None

    def account(self, db: Database) -> Account:
        """Return the account that is charged."""
        ledgerrows.check_known(db, self.dataset, self.job.files)
        account = ledgerrows.account(db, self.dataset)
        account.check_recorded()
        account.check_analyst(self.analyst)
        return account

    def limits(self, account: Account) -> Iterator[tuple[Account, Limit]]:
        """Yield the limits that the request has to pass, with their accounts; none without a cap.

        `account` is that of the whole dataset; those that are yielded are of a period, of the analyst, or it.
        """
        for filtered in filters(account, self.periods, self.protects, self.analyst):
            limit = filtered.admission(self.cost, self.protects)
            if limit:
                yield filtered, limit

    def fits(self, account: Account) -> bool:
        """Return whether the history composed with this cost is within all caps of the dataset; True without a cap."""
        limits = binding(limit for _, limit in self.limits(account))
        return all(limit.admits(self.cost, self.public) for limit in limits)

    def insert(self, db: Database) -> None:
        figures = self.epsilon, self.delta
        ledgerrows.insert_release(db, self.entry, figures, self.protects, self.public, self.facts, self.periods,
                                  self.job, self.analyst)  # fmt: skip

    def refusal(self, account: Account) -> BudgetError:
        """Return the error for a request that does not fit: that of the cap on the total, or of the fullest filter.

        The search of the largest request that would fit takes time, so call it outside the transaction.
        """
        limits = list(self.limits(account))
        refusing = [(filtered, limit) for filtered, limit in limits if not limit.admits(self.cost, self.public)]

        def rank(pair: tuple[Account, Limit]) -> tuple[bool, float]:
            """Return a key that is largest for caps that do not renew, then for the largest spent epsilon."""
            filtered, limit = pair
            return not filtered.renewal, limit.cap.spent_epsilon(limit.history)

        refused, worst = max(refusing, key=rank)
        others = [limit for _, limit in limits if limit is not worst]
        return refusal(refused, [worst, *others], self.cost, self.epsilon, self.delta, self.public)


def checked_name(field: str, name: object) -> str:
    """Return the name in the form used for comparison. Raises JobError if it is invalid."""
    if not (isinstance(name, str) and name.strip() and name.isprintable()):
        raise JobError(field, f"got {safe_repr(name)}", "a name of printable characters", "set a name")
    return canonical(name)


def check_protection(protects: object) -> None:
    """Raise JobError unless the value is a Protection or None."""
    if protects is not None and not isinstance(protects, Protection):
        raise JobError("protects", f"got {safe_repr(protects)}", "a Protection, or None", "use Protection('person')")


def _checked_digest(plan_digest: object) -> str:
    """Return the digest of a plan. Raises BudgetError if it is no SHA-256."""
    if not (isinstance(plan_digest, str) and re.fullmatch("[0-9a-f]{64}", plan_digest)):
        raise BudgetError("plan_digest", f"got {str(plan_digest)[:80]!r}", "a SHA-256 in 64 hexadecimal digits",
                          "hash the canonical plan")  # fmt: skip
    return plan_digest


def _checked_cost(cost: object) -> str:
    if not (isinstance(cost, Cost) and cost):
        raise BudgetError("cost", "got no positive cost", "a Cost > 0", "a release without noise is not private")
    return cost_to_text(cost)


def _state_of_same(release: str, present: tuple[str, ...], entry: tuple[str, ...]) -> str:
    """Return the state of a release that is on the ledger. Raises BudgetError if its recorded entry differs.

    Parameters
    ----------
    present : tuple of str
        Recorded dataset, plan digest, cost, periods, analyst and state; periods and analyst are None in older versions.
    entry : tuple of str
        The release, then the same fields of the request without the state.
    """
    dataset, plan, cost, periods, analyst, state = present
    recorded = canonical(dataset), plan, cost, periods or periods_to_text(()), analyst or ""
    names = ("dataset", "plan_digest", "cost", "list of periods", "analyst")
    for name, old, new in zip(names, recorded, entry[1:], strict=True):
        if old != new:
            raise BudgetError("release", f"{release!r} is on the ledger with another {name}",
                              "the same dataset, cost and plan", "start a new release")  # fmt: skip
    return state


def refusal(
    account: Account,
    limits: Sequence[Limit],
    cost: Cost,
    epsilon: float | None,
    delta: float | None,
    public: bool = False,
) -> BudgetError:
    """Return the error that states the requested, the remaining and the largest admissible epsilon.

    Parameters
    ----------
    account : Account
        Account of the dataset, or of the period or analyst, whose cap refuses the request.
    limits : sequence of Limit
        Limit of that account, then those of all other filters that the request has to pass.
    cost : Cost
        Cost of the request.
    epsilon, delta : float, optional
        Figures of the job.
    public : bool
        Whether anyone can compute the noise.
    """
    cap, history, steps = limits[0].cap, limits[0].history, limits[0].steps
    where = f"dataset {account.name!r}"
    if public:
        return BudgetError("engine.seed", f"noise that anyone can compute, on {where}, which has a cap",
                           "noise with a secret key", "remove the seed, or use data without a cap")  # fmt: skip
    where += f" in {account.period}" if account.period else f" by analyst {account.analyst!r}" * bool(account.analyst)
    limit = f"its cap of {cap}{_promise(account)}"
    added_delta = cost.for_group(steps).delta
    # an additive delta has its own limit, which a smaller epsilon does not help
    if added_delta and history.delta + added_delta > cap.additive:
        return _refused_delta(where, limit, cap, history, added_delta)

    # epsilons are stated at the delta of the job, unless the cost has none there
    at = cap.delta if delta is None or math.isinf(cost.epsilon_or_inf(delta)) else delta
    requested = cost.epsilon_or_inf(at) if epsilon is None else epsilon
    largest = largest_epsilon(limits, cost, at)
    is_useful = largest and largest >= SENSIBLE * max(requested, cap.epsilon)
    fits = f"at most epsilon {largest:.6g} at delta {at:.6g}, the largest that would fit"
    spent = f"spent epsilon {cap.spent_epsilon(history):.6g} and " if account.period else ""
    left = f"{spent}remaining epsilon {remaining_epsilon(cap, history):.6g} at delta {cap.delta:.6g}"
    added = f" with additive delta {float_above(added_delta):.6g}" if added_delta else ""
    left += f" with additive delta {float_above(history.delta):.6g} spent" if history.delta else ""
    return BudgetError(
        "privacy.epsilon",
        f"requested epsilon {requested:.6g} at delta {at:.6g}{added} of {where}, {left} of {limit}",
        fits if is_useful else "nothing more",
        _remedy(account, cap, cost, largest, requested),
    )


def _promise(account: Account) -> str:
    """Return the period by which a cap renews and the promise of the cap, for a dataset with such caps."""
    if account.renewal:
        return f" for each {account.renewal}, which protects {account.protects}"
    return f", which protects {account.protects}" if account.renewing and account.protects else ""


def _refused_delta(where: str, limit: str, cap: Cap, history: Spending, added: Fraction) -> BudgetError:
    """Return the error for an additive delta that is larger than the remaining part of the cap's delta for it.

    `where` names the dataset, `limit` the cap, and `added` is the requested additive delta.
    """
    left = max(0.0, delta_left(cap.additive, history.delta))
    got = (f"requested additive delta {float_above(added):.6g} of {where}, remaining additive delta"
           f" {left:.6g} of {limit}")  # fmt: skip
    return BudgetError("privacy.delta", got, f"at most {left:.6g}" if left else "none",
                       "lower it, or set another cap before the release")  # fmt: skip


def _remedy(account: Account, cap: Cap, cost: Cost, largest: float, requested: float) -> str:
    """Return advice for a refused request, given the largest epsilon that would be admitted and the requested one."""
    if account.spent.public:
        return "release nothing more of it: a release with a seed showed its exact counts"
    if cap.currency == PURE and not cost.is_pure:
        return "give epsilon alone, for Laplace noise: a pure cap admits nothing else"
    is_useful = largest and largest >= SENSIBLE * max(requested, cap.epsilon)
    remedy = f"ask for epsilon = {largest:.6g} or raise the cap" if is_useful else USED_UP
    if account.renewal and not is_useful:
        remedy = f"release other {account.renewal}s, which have caps of their own, or raise the cap"
    if cost.is_pure and cap.currency != PURE:
        remedy += ", or give delta too: under a cap in gdp Gaussian noise costs less"
    return remedy


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
    analyst : str, optional
        Whose releases the cap bounds. Default: all.
    """

    dataset: str
    epsilon: float
    delta: float
    currency: str | None
    protects: Protection | None
    period: str | None
    analyst: str | None = None

    def __post_init__(self) -> None:
        """Check all fields: a cap is for a period, for an analyst, or for the whole dataset."""
        object.__setattr__(self, "dataset", checked_name("dataset", self.dataset))
        check_protection(self.protects)
        if self.analyst is not None:
            object.__setattr__(self, "analyst", checked_name("analyst", self.analyst))
        if self.period is not None:
            checked_renewal(self.period)  # raises JobError if caps do not renew by this period
            if self.analyst is not None:
                raise JobError("cap.analyst", "given together with a period", "one of them", "leave one out")
            self._check_span(self.period)

    def _check_span(self, period: str) -> None:
        if self.protects and self.protects.span not in (None, period):
            raise JobError("cap.period", f"got {period!r} for all rows of one unit in one {self.protects.span}",
                           f"the span {period!r}", "leave the span out: it is that of the cap")  # fmt: skip

    def apply(self, db: Database) -> CapChange:
        """Insert the row of the cap into the ledger, unless the same cap is in force, and return what changes.

        A cap limits each period, one analyst or, without either, the whole dataset.
        """
        before, similar_name = ledgerrows.account(db, self.dataset), ledgerrows.known_near(db, self.dataset)
        cap = self._cap(before)
        row = ledgerrows.cap_row(cap, self._promise(before), self.period or "", self.analyst or "")
        if self.period:
            after = replace(before, renewing=[*before.renewing, row])
        elif self.analyst:
            after = replace(before, personal=[*before.personal, row])
        else:
            after = replace(before, caps=[*before.caps, row])
        change = self._change(after, cap, similar_name)

        replaced = self._in_force(before)
        is_new = replaced is None or cap_of(replaced) != cap
        if is_new or self._protected(before) != self._protected(after):
            ledgerrows.insert_cap(db, self.dataset, row)
        return change

    def _in_force(self, account: Account) -> Row | None:
        """Return the row of the cap that this one replaces, which has the same scope; None if it is the first."""
        if self.period:
            return account.renewing_now.get(self.period)
        return next(iter((account.of_analyst(self.analyst) if self.analyst else account).caps[-1:]), None)

    def _protected(self, account: Account) -> Protection | None:
        """Return the unit and relation that the cap of the period, or of the dataset, protects; None if not stated."""
        return promise_of(account, self.period) if self.period else account.protects

    def _cap(self, account: Account) -> Cap:
        """Return the cap that is requested. Raises BudgetError if its currency is not that of the dataset.

        A currency is the unit in which releases add up: squared μ of Gaussian DP ("gdp") or ε of pure DP ("pure"). All
        caps of a dataset have the same, so any other cap in force fixes it. If the cap that this one replaces is the
        only one, it fixes the currency once something was released under it. Otherwise the request may choose.
        """
        replaced = self._in_force(account)
        # the last cap of the dataset, those in force for each length of period, and the last of an analyst
        in_force = [*account.caps[-1:], *account.renewing_now.values(), *account.personal[-1:]]
        # `seq` is the number of a row in the ledger
        others = [row for row in in_force if replaced is None or row["seq"] != replaced["seq"]]

        fixed_currency = ""
        if others:
            fixed_currency = cap_of(others[0]).currency
        elif replaced and account.releases:
            fixed_currency = cap_of(replaced).currency

        cap = new_cap(self.epsilon, self.delta, self.currency or fixed_currency)
        if fixed_currency and cap.currency != fixed_currency:
            raise BudgetError("cap.currency", f"got {cap.currency!r} for a dataset with a cap in {fixed_currency}",
                              "one currency for all releases of a dataset",
                              f"set the cap in {fixed_currency}")  # fmt: skip
        return cap

    def _promise(self, account: Account) -> Protection | None:
        """Return the promise of the cap; None if nothing states one.

        Raises BudgetError if caps by period do not bound it. A promise is renewable for a period if its rows are in one
        such period, so that costs of different periods do not add.
        """
        requested, where = self.protects, f"on dataset {account.name!r}"
        if self.period is None:
            promise = requested or account.protects
            # caps by period bound only promises for rows in one period
            if promise and not renewable(promise) and account.renewing:
                by = next(iter(account.renewing_now))
                got = f"a cap on the total that protects {promise} {where}, which has a cap for each {by}"
                raise not_renewable(promise, by, got, "cap.unit", "name another dataset")
            return promise
        # a requested promise for units gets the period as its span (`renewed`); one for a replaced row cannot
        replaces = [requested] if requested and requested.relation == REPLACE else []
        for stated in [*stated_promises(account), *replaces]:
            if not renewable(stated):
                got = f"a cap for each {self.period} {where}, which protects {stated}"
                raise not_renewable(stated, self.period, got, "cap.period", "set a cap without a period, on the total")
        return renewed(requested, self.period) if requested else promise_of(account, self.period)

    def _change(self, after: Account, cap: Cap, near: str | None) -> CapChange:
        """Return what the cap changes, for the account with it; `near` is a similar name if the dataset is new.

        For a cap by period the spending is that of the fullest period.
        """
        if self.analyst:
            after = after.of_analyst(self.analyst)
        if not self.period:
            spent = (after.limit() or cap).spent_epsilon(after.spent)
            return CapChange(
                dataset=self.dataset,
                cap=cap,
                spent_epsilon=spent,
                charged_before=len(after.releases),
                near=near,
                analyst=self.analyst or "",
            )
        accounts = period_accounts(after, self.period).values()
        spent_of_periods = [((each.limit() or cap).spent_epsilon(each.spent), each.period) for each in accounts]
        spent, fullest = max(spent_of_periods, key=lambda figures: figures[0])
        promise = next(iter(accounts)).protects
        return CapChange(
            dataset=self.dataset,
            cap=cap,
            spent_epsilon=spent,
            charged_before=len(after.releases),
            near=near,
            period=self.period,
            fullest=fullest,
            promise=promise.words if promise else "",
        )
