"""The budget ledger: what has been spent on each dataset, durable, append-only, shared by jobs.

Charge before drawing: a release reserves its whole cost in one transaction that reads the dataset's history, composes
it with the request and inserts the reservation, or refuses. Only then is noise drawn; `commit` says that all of it is,
`publish` that the result left the house. Charging the same release again is free, because it can only draw the same
noise again; for that an adaptive release also tells what each round `decide`d, and none is decided twice. Nothing is
ever refunded or deleted.

The ledger belongs to the driver, outside Dask. It is a SQLite file in WAL mode, whose processes share memory: keep it
on a local disk of one machine, never on a network file system, and copy it with SQLite's own backup or when no job
runs. Nothing else in a process that has it open may open the file, not to hash it either: closing that descriptor
would drop SQLite's locks. Where drivers move between machines it is a schema of a PostgreSQL database instead, with the
same rows and the same rules. It writes no log: its errors and its summary are all that it says.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import Any

from dpscale.base.errors import BudgetError
from dpscale.ledger import chain, transfer
from dpscale.ledger import rows as ledgerrows
from dpscale.ledger.account import Account, Cap, canonical, new_cap
from dpscale.ledger.chain import Link, chain_of
from dpscale.ledger.location import resolved
from dpscale.ledger.request import Request, check_currency, check_protection, checked_name
from dpscale.ledger.sqlite_schema import VERSION
from dpscale.ledger.statement import findings, statement
from dpscale.ledger.store import FIELD, Database, Result, Store, repeated
from dpscale.privacy.accounting import Cost
from dpscale.privacy.protection import Protection

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

    def __init__(self, store: Store) -> None:
        self.path = store.path
        self._store, self._pid, self._lock = store, os.getpid(), threading.RLock()

    @classmethod
    def open(cls, path: str | os.PathLike[str], create: bool = True, timeout: float = TIMEOUT) -> Ledger:
        """Open the ledger at a path or a PostgreSQL address, made first where there is none and `create` is set.

        `timeout`: seconds to wait for other processes, and for a server that is away for a moment.
        """
        return cls(transfer.opened(resolved(os.getcwd(), path), create, timeout))

    @property
    def name(self) -> str:
        """What tells this ledger from any other, wherever it lies: drawn as it was made, kept by its copies."""
        return self._read(ledgerrows.identity)

    def close(self) -> None:
        """Close the connection; what was charged stays."""
        self._store.close()

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
        dataset = checked_name("dataset", dataset)
        check_protection(protects)

        def act(db: Database) -> CapChange:
            before = ledgerrows.account(db, dataset)
            cap = new_cap(epsilon, delta, currency or (before.cap.currency if before.cap and before.releases else ""))
            check_currency(before, cap)
            row = ledgerrows.cap_row(cap, protects or before.protects)
            after = Account(dataset, [*before.caps, row], before.releases)
            known = ledgerrows.known_near(db, dataset)
            change = CapChange(dataset, cap, after.spent.epsilon(cap.currency, cap.delta), len(before.releases), known)
            if not before.caps or before.cap != cap or before.protects != after.protects:
                ledgerrows.insert_cap(db, dataset, row)
            return change

        return self._change(act)

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
        facts: Mapping[str, str] = MappingProxyType({}),
    ) -> str:
        """Reserve the cost of a release, before its first draw, and return its state.

        Admitted iff the whole history with this cost is within the dataset's cap; without a cap, always. A release
        already charged with the same dataset, cost and plan is free. `epsilon` and `delta` are the job's own figures,
        kept for display and used in the refusal. `protects`: whom; refused where the dataset's others protect somebody
        else. `public`: anyone can compute the noise (a seed); no cap admits it. `facts`: hashes of public files of the
        release, kept in its link of the hash chain for an evidence bundle. With `reserve` off nothing is written:
        the state is "admitted", or the same error is raised, so that a job hears of a refusal before its data is read.
        """
        request = Request(dataset, release, cost, plan_digest, epsilon, delta, protects, public, facts)

        def act(db: Database) -> str | Account:
            if state := request.state(db):
                return state
            account = request.account(db)
            if not request.fits(account):
                return account
            if reserve:
                request.insert(db)
            return "reserved" if reserve else "admitted"

        if isinstance(answer := self._change(act, reserve), Account):
            raise request.refusal(answer)
        return answer

    def decide(self, release: str, number: int, digest: str) -> None:
        """Keep what an adaptive release decided to measure in a round, before it is drawn; a repeat is free.

        A copy of a run directory that came to another decision is refused: it would spend the same budget twice.
        """

        def act(db: Database) -> None:
            row = db.execute("SELECT digest FROM rounds WHERE release = ? AND round = ?", (release, number))
            if (decided := row.fetchone()) is None:
                ledgerrows.insert_round(db, release, number, digest)
            elif decided[0] != digest:
                raise BudgetError("release", f"{release!r} has decided round {number} otherwise, elsewhere",
                                  "one run directory to a release",
                                  "go on in the one that is ahead, or start a new run")  # fmt: skip

        self._change(act)

    def commit(self, release: str) -> str:
        """Say that all noise of a reserved release is drawn; repeating it changes nothing."""
        return self._advance(release, "reserved", "committed")

    def publish(self, release: str) -> str:
        """Say that a committed release is out; repeating it changes nothing."""
        return self._advance(release, "committed", "released")

    def digest_of(self, release: str) -> str:
        """The link of a release in the hash chain of its dataset; BudgetError where the release is not there."""
        return self._read(lambda db: chain.digest_of(db, release))

    def check_holds(self, release: str, digest: str) -> None:
        """BudgetError unless the hash chain has the link that a run was given when it was charged."""
        if not self._read(lambda db: chain.holds(db, digest)):
            raise BudgetError(FIELD, f"{self.path} lacks the entry of release {release!r}, which was on it: its history"
                              " was cut off or replaced", "the whole history, with its -wal file",
                              "restore it from a copy; do not charge anything on this one")  # fmt: skip

    def chain(self, dataset: str) -> list[tuple[Link, str]]:
        """The links of a dataset's hash chain with their digests; BudgetError where the ledger is damaged."""
        self.verify()
        return self._read(lambda db: chain_of(ledgerrows.history(db).tables, canonical(dataset)))

    def heads(self) -> dict[str, int]:
        """Every link of every chain, with the number of links behind it; BudgetError where the ledger is damaged."""
        self.verify()
        return self._read(chain.heads)

    def summary(self, dataset: str | None = None) -> dict[str, Any]:
        """What was spent, on one dataset or all, ready for JSON; an epsilon that is not finite is null."""

        def act(db: Database) -> dict[str, Any]:
            names = {canonical(name) for name in ledgerrows.names(db)}
            if dataset is not None and canonical(dataset) not in names:
                raise BudgetError("dataset", f"{dataset!r} is not in {self.path}", "a dataset charged or capped before",
                                  "check the name with `dpscale ledger show`")  # fmt: skip
            chosen = names if dataset is None else {canonical(dataset)}
            datasets = {name: {**statement(ledgerrows.account(db, name), STATED_DELTA), "head": chain.head(db, name)[1]}
                        for name in sorted(chosen)}  # fmt: skip
            return {"moved_to": ledgerrows.moved_to(db), "datasets": datasets}

        return {"ledger": str(self.path), "schema_version": VERSION} | self._read(act)

    def verify(self) -> None:
        """Check the database, its schema and every row; raise BudgetError at the first thing that is wrong."""

        def act(db: Database) -> list[str]:
            wrong = self._store.findings(db)
            return wrong + findings(ledgerrows.history(db).tables, self._store.numbered(db))

        if wrong := self._read(act):
            raise BudgetError(FIELD, f"{self.path} is damaged ({' '.join(wrong[0].split())})", "a sound ledger",
                              "restore it from a copy")  # fmt: skip

    def move(self, target: str | os.PathLike[str]) -> int:
        """Move the history to a new ledger at `target` and close this one for good; how many releases it has.

        A repeat finishes what was cut off; once all is moved it changes nothing.
        """
        self.verify()
        return transfer.move(self._store, lambda: self._transaction(True), resolved(os.getcwd(), target))

    def _read(self, act: Callable[[Database], Result]) -> Result:
        return repeated(lambda: self._within(False, act), self._store.timeout)

    def _change(self, act: Callable[[Database], Result], writes: bool = True) -> Result:
        """What `act` gives on a ledger that is open; it may be asked several times, and writes what it writes once."""

        def on_open(db: Database) -> Result:
            transfer.check_open(db, self.path)
            return act(db)

        return repeated(lambda: self._within(writes, on_open), self._store.timeout)

    def _within(self, writes: bool, act: Callable[[Database], Result]) -> Result:
        with self._transaction(writes) as db:
            return act(db)

    @contextmanager
    def _transaction(self, writes: bool) -> Iterator[Database]:
        """All or nothing; one that writes is alone before the history is read, so that no two see the same."""
        if os.getpid() != self._pid:
            raise BudgetError(FIELD, "was opened in another process", "a ledger opened in this process",
                              "call Ledger.open after the fork")  # fmt: skip
        with self._lock, self._store.transaction(writes) as db:
            yield db

    def _advance(self, release: str, before: str, after: str) -> str:
        def act(db: Database) -> str:
            row = db.execute("SELECT state FROM releases WHERE release = ?", (release,)).fetchone()
            if row is None or row[0] not in (before, after):
                state = row[0] if row else "not on the ledger"
                raise BudgetError("release", f"{release!r} is {state}", f"a release that is {before}",
                                  "charge, commit and publish it in this order")  # fmt: skip
            if row[0] == before:
                change = f"UPDATE releases SET state = ?, {after}_at = ? WHERE release = ?"
                db.execute(change, (after, ledgerrows.now(), release))
            return after

        return self._change(act)
