"""Budget charge requested by a release: validation and admission by the dataset's account in one transaction."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from dpscale.base.display import safe_repr
from dpscale.base.errors import BudgetError, JobError
from dpscale.ledger import rows as ledgerrows
from dpscale.ledger.account import Account, canonical, cost_to_text
from dpscale.ledger.cap import Limit, binding, checked_request
from dpscale.ledger.filters import filters
from dpscale.ledger.job_entry import NO_JOB, JobEntry, repeated_release
from dpscale.ledger.periods import Periods, checked_periods, periods_to_text
from dpscale.ledger.refusal import refusal
from dpscale.ledger.store import Database
from dpscale.privacy.accounting import Cost
from dpscale.privacy.protection import Protection


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

    def __post_init__(self) -> None:
        object.__setattr__(self, "dataset", checked_name("dataset", self.dataset))
        _ = self.entry
        epsilon, delta = checked_request(self.epsilon, self.delta)
        object.__setattr__(self, "epsilon", epsilon)
        object.__setattr__(self, "delta", delta)
        check_protection(self.protects)
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
        query = """SELECT dataset, plan_digest, cost, periods, state FROM releases
            LEFT JOIN protections ON protections.release = releases.release WHERE releases.release = ?"""
        present = db.execute(query, (self.entry[0],)).fetchone()
        return _state_of_same(self.release, present, (*self.entry, periods_to_text(self.periods))) if present else None

    def account(self, db: Database) -> Account:
        """Return the account that is charged."""
        ledgerrows.check_known(db, self.dataset, self.job.files)
        account = ledgerrows.account(db, self.dataset)
        account.check_recorded()
        return account

    def limits(self, account: Account) -> Iterator[tuple[Account, Limit]]:
        """Yield the limits that the request has to pass, with their accounts; none without a cap."""
        for one in filters(account, self.periods, self.protects):
            if limit := one.admission(self.cost, self.protects):
                yield one, limit

    def fits(self, account: Account) -> bool:
        """Return whether the history composed with this cost is within all caps of the dataset; True without a cap."""
        limits = binding(limit for _, limit in self.limits(account))
        return all(limit.admits(self.cost, self.public) for limit in limits)

    def insert(self, db: Database) -> None:
        figures = self.epsilon, self.delta
        ledgerrows.insert_release(db, self.entry, figures, self.protects, self.public, self.facts, self.periods,
                                  self.job)  # fmt: skip

    def refusal(self, account: Account) -> BudgetError:
        """Return the refusal; its search takes time, so call it outside the transaction.

        It is that of the total cap, or else of the period with the least budget left.
        """
        limits = list(self.limits(account))
        full = [one for one in limits if not one[1].admits(self.cost, self.public)]
        worst = max(full, key=lambda one: (not one[0].renewal, one[1].cap.spent_epsilon(one[1].history)))
        others = [limit for _, limit in limits if limit is not worst[1]]
        return refusal(worst[0], [worst[1], *others], self.cost, self.epsilon, self.delta, self.public)


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
    if not (isinstance(plan_digest, str) and re.fullmatch("[0-9a-f]{64}", plan_digest)):
        raise BudgetError("plan_digest", f"got {str(plan_digest)[:80]!r}", "a SHA-256 in 64 hexadecimal digits",
                          "hash the canonical plan")  # fmt: skip
    return plan_digest


def _checked_cost(cost: object) -> str:
    if not (isinstance(cost, Cost) and cost):
        raise BudgetError("cost", "got no positive cost", "a Cost > 0", "a release without noise is not private")
    return cost_to_text(cost)


def _state_of_same(release: str, present: tuple[str, ...], entry: tuple[str, ...]) -> str:
    dataset, plan, cost, periods, state = present
    recorded = canonical(dataset), plan, cost, periods or periods_to_text(())
    names = ("dataset", "plan_digest", "cost", "list of periods")
    for name, old, new in zip(names, recorded, entry[1:], strict=True):
        if old != new:
            raise BudgetError("release", f"{release!r} is on the ledger with another {name}",
                              "the same dataset, cost and plan", "start a new release")  # fmt: skip
    return state
