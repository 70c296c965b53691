"""The budget ledger: what has been spent on each dataset, durable, append-only, shared by the jobs of one machine.

Charge before drawing: a release reserves its whole cost in one transaction that reads the dataset's history, composes
it with the request and inserts the reservation, or refuses. Only then is noise drawn; `commit` says that all of it is,
`publish` that the result left the house. Charging the same release again is free, because it can only draw the same
noise again; for that an adaptive release also tells what each round `decide`d, and none is decided twice. Nothing is
ever refunded or deleted.

The ledger belongs to the driver, outside Dask. It is a SQLite file in WAL mode, whose processes share memory: keep it
on a local disk of one machine, never on a network file system, and copy it with SQLite's own backup or when no job
runs. Nothing else in a process that has it open may open the file, not to hash it either: closing that descriptor
would drop SQLite's locks. It writes no log: its errors and its summary are all that it says.
"""

from __future__ import annotations

import os
import re
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from dpscale.errors import BudgetError, JobError
from dpscale.ledger import file as ledgerfile
from dpscale.ledger import rows as ledgerrows
from dpscale.ledger.account import Account, canonical, cost_to_text
from dpscale.ledger.cap import Cap, checked_request, new_cap, refusal
from dpscale.ledger.place import check_one_file
from dpscale.ledger.schema import VERSION
from dpscale.ledger.statement import TABLES, findings, statement
from dpscale.names import shown
from dpscale.privacy.accounting import Cost
from dpscale.privacy.protection import Protection
from dpscale.storage.files import checked_path

TIMEOUT = 30.0  # seconds to wait for another process's transaction
STATED_DELTA = 1e-9  # at which spending is shown where there is no cap
ONE_ROW = Protection()


@dataclass(frozen=True)
class CapChange:
    """What setting a cap came to; `below_spent` when the history is already over it, and nothing more is admitted.

    `charged_before`: how many releases came first, for which the cap is no filter but an odometer; `near`: a dataset of
    almost that name, where this one is new.
    """

    dataset: str
    cap: Cap
    spent_epsilon: float
    charged_before: int
    near: str | None = None

    @property
    def below_spent(self) -> bool:
        return self.spent_epsilon > self.cap.epsilon

    def __str__(self) -> str:
        said = f"{self.dataset}: the cap is {self.cap}, spent is {self.spent_epsilon:.6g}"
        if self.below_spent:
            said += ", which is above it: nothing more is admitted"
        if self.charged_before:
            said += f"; for what was charged before it ({self.charged_before}) the cap is an odometer, not a filter"
        if self.near:
            said += f"; it is a new dataset beside {self.near!r}"
        return said


class Ledger:
    """An open ledger; a context manager. Open it with `Ledger.open`, once in each process.

    All methods raise BudgetError where the ledger refuses or cannot be trusted, TransientError where the same call may
    pass later (locked, disk full), and JobError for what is no ledger, no cap or no name. After any of them the ledger
    is as it was before the call.
    """

    def __init__(self, db: sqlite3.Connection, path: Path) -> None:
        self.path = path
        self._db, self._pid, self._lock = db, os.getpid(), threading.RLock()

    @classmethod
    def open(cls, path: str | os.PathLike[str], create: bool = True, timeout: float = TIMEOUT) -> Ledger:
        """Open the ledger at `path`, made first where there is none and `create` is set."""
        place = Path(os.path.abspath(checked_path(path, ledgerfile.FIELD)))
        return cls(ledgerfile.connect(place, create, timeout), place)

    @property
    def name(self) -> str:
        """What tells this ledger from any other, wherever it lies: drawn as it was made, kept by its copies."""
        with self._transaction("DEFERRED"):
            return str(self._db.execute("SELECT id FROM identity").fetchone()[0])

    def close(self) -> None:
        """Close the file; what was charged stays."""
        self._db.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def set_cap(
        self,
        dataset: str,
        epsilon: float,
        delta: float,
        currency: str | None = None,
        protects: Protection | None = None,
    ) -> CapChange:
        """Cap what all releases of a dataset may come to; the caps before it are kept as history.

        `currency`: "gdp" or "pure", left out as the cap before had it, or by delta; it stays once a release was charged
        under a cap. `protects`: whom its releases protect, left out as they do. A cap below what is spent is taken.
        """
        dataset = _checked_name("dataset", dataset)
        _check_protection(protects)
        with self._transaction("IMMEDIATE"):
            before = ledgerrows.account(self._db, dataset)
            cap = new_cap(epsilon, delta, currency or (before.cap.currency if before.cap and before.releases else ""))
            _check_currency(before, cap)
            row = ledgerrows.cap_row(cap, protects or before.protects)
            after = Account(dataset, [*before.caps, row], before.releases)
            known = ledgerrows.known_near(self._db, dataset)
            change = CapChange(dataset, cap, after.spent.epsilon(cap.currency, cap.delta), len(before.releases), known)
            if not before.caps or before.cap != cap or before.protects != after.protects:
                ledgerrows.insert_cap(self._db, dataset, row)
        return change

    def charge(
        self,
        dataset: str,
        release: str,
        cost: Cost,
        plan_digest: str,
        epsilon: float | None = None,
        delta: float | None = None,
        reserve: bool = True,
        protects: Protection = ONE_ROW,
        public: bool = False,
    ) -> str:
        """Reserve the cost of a release, before its first draw, and return its state.

        Admitted iff the whole history with this cost is within the dataset's cap; without a cap, always. A release
        already charged with the same dataset, cost and plan is free. `epsilon` and `delta` are the job's own figures,
        kept for display and used in the refusal. `protects`: whom; refused where the dataset's others protect somebody
        else. `public`: anyone can compute the noise (a seed); no cap admits it. With `reserve` off nothing is written:
        the state is "admitted", or the same error is raised, so that a job hears of a refusal before its data is read.
        """
        dataset, text = _checked_name("dataset", dataset), _checked_cost(cost)
        entry = (_checked_name("release", release), dataset, _checked_digest(plan_digest), text)
        epsilon, delta = checked_request(epsilon, delta)
        _check_protection(protects)
        with self._transaction("IMMEDIATE" if reserve else "DEFERRED"):
            present = self._db.execute(
                "SELECT dataset, plan_digest, cost, state FROM releases WHERE release = ?", (entry[0],)
            ).fetchone()
            if present:
                return _state_of_same(release, present, entry)
            ledgerrows.check_known(self._db, dataset)
            account = ledgerrows.account(self._db, dataset)
            account.check_told()
            cap, steps = account.cap, account.steps(protects)
            admitted = cap is None or cap.admits(account.spent.plus(cost.scaled(steps), public))
            if admitted and reserve:
                ledgerrows.insert_release(self._db, entry, (epsilon, delta), protects, public)
        if cap and not admitted:  # the sentence takes some search: not while others wait
            raise refusal(dataset, cap, account.spent, cost, epsilon, delta, public, steps)
        return "reserved" if reserve else "admitted"

    def decide(self, release: str, number: int, digest: str) -> None:
        """Keep what an adaptive release decided to measure in a round, before it is drawn; a repeat is free.

        A copy of a run directory that came to another decision is refused: it would spend the same budget twice.
        """
        with self._transaction("IMMEDIATE"):
            row = self._db.execute("SELECT digest FROM rounds WHERE release = ? AND round = ?", (release, number))
            if (decided := row.fetchone()) is None:
                self._db.execute("INSERT INTO rounds (release, round, digest) VALUES (?, ?, ?)",
                                 (release, number, digest))  # fmt: skip
            elif decided[0] != digest:
                raise BudgetError("release", f"{release!r} has decided round {number} otherwise, elsewhere",
                                  "one run directory to a release",
                                  "go on in the one that is ahead, or start a new run")  # fmt: skip

    def commit(self, release: str) -> str:
        """Say that all noise of a reserved release is drawn; repeating it changes nothing."""
        return self._advance(release, "reserved", "committed")

    def publish(self, release: str) -> str:
        """Say that a committed release is out; repeating it changes nothing."""
        return self._advance(release, "committed", "released")

    def summary(self, dataset: str | None = None) -> dict[str, Any]:
        """What was spent, on one dataset or all, ready for JSON; an epsilon that is not finite is null."""
        with self._transaction("DEFERRED"):
            names = {canonical(name) for name in ledgerrows.names(self._db)}
            if dataset is not None and canonical(dataset) not in names:
                raise BudgetError("dataset", f"{dataset!r} is not in {self.path}", "a dataset charged or capped before",
                                  "check the name with `dpscale ledger show`")  # fmt: skip
            chosen = names if dataset is None else {canonical(dataset)}
            datasets = {name: statement(ledgerrows.account(self._db, name), STATED_DELTA) for name in sorted(chosen)}
        return {"ledger": str(self.path), "schema_version": VERSION, "datasets": datasets}

    def verify(self) -> None:
        """Check the file, its schema and every row; raise BudgetError at the first thing that is wrong."""
        with self._transaction("DEFERRED"):
            ledgerfile.check_identity(self._db, self.path)
            (verdict,) = self._db.execute("PRAGMA integrity_check(1)").fetchone()
            wrong = [] if verdict == "ok" else [verdict]
            last = dict(self._db.execute("SELECT name, seq FROM sqlite_sequence"))
            tables = {table: ledgerrows.rows(self._db, f"SELECT * FROM {table} ORDER BY seq") for table in TABLES}
            wrong += findings(tables, last)
        if wrong:
            raise ledgerfile.unusable(self.path, f"is damaged ({wrong[0]})", "restore it from a copy")

    @contextmanager
    def _transaction(self, kind: str) -> Iterator[None]:
        """All or nothing; IMMEDIATE takes the write lock before the history is read, so that no two see the same."""
        if os.getpid() != self._pid:
            raise BudgetError(ledgerfile.FIELD, "was opened in another process", "a ledger opened in this process",
                              "call Ledger.open after the fork")  # fmt: skip
        with self._lock, ledgerfile.failures(self.path):
            if kind == "IMMEDIATE":
                check_one_file(self.path)
            self._db.execute(f"BEGIN {kind}")
            try:
                yield
                self._db.execute("COMMIT")
            finally:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")

    def _advance(self, release: str, before: str, after: str) -> str:
        with self._transaction("IMMEDIATE"):
            row = self._db.execute("SELECT state FROM releases WHERE release = ?", (release,)).fetchone()
            if row is None or row[0] not in (before, after):
                state = row[0] if row else "not on the ledger"
                raise BudgetError("release", f"{release!r} is {state}", f"a release that is {before}",
                                  "charge, commit and publish it in this order")  # fmt: skip
            if row[0] == before:
                change = f"UPDATE releases SET state = ?, {after}_at = ? WHERE release = ?"
                self._db.execute(change, (after, ledgerfile.now(), release))
        return after


def _check_currency(account: Account, cap: Cap) -> None:
    """BudgetError for another currency than that in which releases were admitted already."""
    if account.cap and account.releases and account.cap.currency != cap.currency:
        raise BudgetError("cap.currency", f"got {cap.currency!r} for a dataset whose cap is in {account.cap.currency}",
                          "one currency for all releases of a dataset",
                          f"set the cap in {account.cap.currency}")  # fmt: skip


def _checked_name(field: str, name: object) -> str:
    if not (isinstance(name, str) and name.strip() and name.isprintable()):
        raise JobError(field, f"got {shown(name)}", "a name of printable characters", "give it a name")
    return canonical(name)


def _check_protection(protects: object) -> None:
    if protects is not None and not isinstance(protects, Protection):
        raise JobError("protects", f"got {shown(protects)}", "a Protection, or nothing", "give Protection('person')")


def _checked_digest(plan_digest: object) -> str:
    if not (isinstance(plan_digest, str) and re.fullmatch("[0-9a-f]{64}", plan_digest)):
        raise BudgetError("plan_digest", f"got {str(plan_digest)[:80]!r}", "a SHA-256 in 64 hexadecimal digits",
                          "hash the canonical plan")  # fmt: skip
    return plan_digest


def _checked_cost(cost: object) -> str:
    if not (isinstance(cost, Cost) and cost):
        raise BudgetError("cost", "got no cost above 0", "a Cost > 0", "a release that draws no noise is not private")
    return cost_to_text(cost)


def _state_of_same(release: str, present: tuple[str, str, str, str], entry: tuple[str, str, str, str]) -> str:
    *recorded, state = present
    recorded[0] = canonical(recorded[0])
    for name, old, new in zip(("dataset", "plan_digest", "cost"), recorded, entry[1:], strict=True):
        if old != new:
            raise BudgetError("release", f"{release!r} is on the ledger with another {name}",
                              "the same dataset, cost and plan again", "start a new release")  # fmt: skip
    return state
