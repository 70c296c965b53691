"""Budget charge requested by a release: validation and admission by the dataset's account in one transaction."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from dpscale.base.display import safe_repr
from dpscale.base.errors import BudgetError, JobError
from dpscale.ledger import rows as ledgerrows
from dpscale.ledger.account import Account, Cap, canonical, checked_request, cost_to_text, refusal
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

    def __post_init__(self) -> None:
        object.__setattr__(self, "dataset", checked_name("dataset", self.dataset))
        _ = self.entry
        epsilon, delta = checked_request(self.epsilon, self.delta)
        object.__setattr__(self, "epsilon", epsilon)
        object.__setattr__(self, "delta", delta)
        check_protection(self.protects)

    @property
    def entry(self) -> tuple[str, str, str, str]:
        """Release, dataset, plan digest and cost as they are stored."""
        text = _checked_cost(self.cost)
        return checked_name("release", self.release), self.dataset, _checked_digest(self.plan_digest), text

    def state(self, db: Database) -> str | None:
        """Return the state of the same release if it was charged before, else None.

        Raises BudgetError if another charge has this release name.
        """
        query = "SELECT dataset, plan_digest, cost, state FROM releases WHERE release = ?"
        present = db.execute(query, (self.entry[0],)).fetchone()
        return _state_of_same(self.release, present, self.entry) if present else None

    def account(self, db: Database) -> Account:
        """Return the account that is charged."""
        ledgerrows.check_known(db, self.dataset)
        account = ledgerrows.account(db, self.dataset)
        account.check_recorded()
        return account

    def fits(self, account: Account) -> bool:
        """Return whether the history composed with this cost is within the dataset's cap; True without a cap."""
        steps, cap = account.steps(self.protects), account.limit(self.cost)
        return cap is None or cap.admits(account.spent.plus(self.cost.for_group(steps), self.public))

    def insert(self, db: Database) -> None:
        ledgerrows.insert_release(db, self.entry, (self.epsilon, self.delta), self.protects, self.public, self.facts)

    def refusal(self, account: Account) -> BudgetError:
        """Return the refusal; its search takes time, so call it outside the transaction."""
        cap, steps = account.limit(self.cost), account.steps(self.protects)
        assert cap is not None
        return refusal(self.dataset, cap, account.spent, self.cost, self.epsilon, self.delta, self.public, steps)


def check_currency(account: Account, cap: Cap) -> None:
    """Raise BudgetError if the cap's currency differs from that under which releases were admitted."""
    if account.cap and account.releases and account.cap.currency != cap.currency:
        raise BudgetError("cap.currency", f"got {cap.currency!r} for a dataset with a cap in {account.cap.currency}",
                          "one currency for all releases of a dataset",
                          f"set the cap in {account.cap.currency}")  # fmt: skip


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


def _state_of_same(release: str, present: tuple[str, str, str, str], entry: tuple[str, str, str, str]) -> str:
    *recorded, state = present
    recorded[0] = canonical(recorded[0])
    for name, old, new in zip(("dataset", "plan_digest", "cost"), recorded, entry[1:], strict=True):
        if old != new:
            raise BudgetError("release", f"{release!r} is on the ledger with another {name}",
                              "the same dataset, cost and plan", "start a new release")  # fmt: skip
    return state
