"""Budget ledger: a durable, append-only record of the privacy cost of every release, shared by all jobs.

A release is charged before any noise is drawn. `charge` reserves its whole cost in one transaction, which reads the
dataset's history, composes it with the request and inserts the reservation or refuses. `commit` records that all noise
is drawn and `publish` that the result was released. Charging the same release again is free, because it can only draw
the same noise again; to ensure this, an adaptive release also records the decision of every round with `decide`, and
no round can be decided twice. Costs are never refunded or deleted.

The ledger belongs to the driver, outside Dask. It is a SQLite file in WAL mode, whose processes share memory: use a
local disk of one machine, never a network file system, and copy it with SQLite's own backup or while no job runs. In a
process that has the ledger open, no other code may open the file, not even to hash it, because closing that descriptor
would drop SQLite's locks. If drivers move between machines, the ledger is a schema of a PostgreSQL database with the
same rows and rules. The ledger writes no log; it reports only errors and its summary.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType, TracebackType
from typing import Any

from dpscale.base.errors import BudgetError
from dpscale.ledger import chain, rows as ledgerrows, transfer
from dpscale.ledger.account import Account, canonical
from dpscale.ledger.cap import CapChange
from dpscale.ledger.cap_request import CapRequest
from dpscale.ledger.chain import Link, chain_of
from dpscale.ledger.location import resolved
from dpscale.ledger.periods import checked_periods
from dpscale.ledger.request import Request, checked_name
from dpscale.ledger.rows import findings
from dpscale.ledger.sqlite_schema import VERSION
from dpscale.ledger.statement import statement, statement_by_period
from dpscale.ledger.store import FIELD, Database, Result, Store, repeated
from dpscale.privacy.accounting import Cost, Spending
from dpscale.privacy.protection import Protection

TIMEOUT = 30.0  # seconds to wait for another process's transaction
STATED_DELTA = 1e-9  # delta at which spending is displayed without a cap
ONE_ROW = Protection()


class Ledger:
    """Open ledger, usable as a context manager. Open it with `Ledger.open`, once in each process.

    All methods raise BudgetError if the ledger refuses or cannot be trusted, TransientError if the same call may
    succeed later (lock, full disk), and JobError for an invalid ledger, cap or name. After an error the ledger is
    unchanged.
    """

    def __init__(self, store: Store) -> None:
        self.path = store.path
        self._store, self._pid, self._lock = store, os.getpid(), threading.RLock()

    @classmethod
    def open(cls, path: str | os.PathLike[str], create: bool = True, timeout: float = TIMEOUT) -> Ledger:
        """Open the ledger at a path or PostgreSQL address.

        Parameters
        ----------
        path : str or path-like
            File, or address `postgresql://HOST/DATABASE`.
        create : bool
            Create the ledger if it does not exist.
        timeout : float
            Seconds to wait for other processes and for an unreachable server.
        """
        return cls(transfer.opened(resolved(os.getcwd(), path), create, timeout))

    @property
    def name(self) -> str:
        """Random identifier of the ledger, drawn when it was created and preserved by its copies."""
        return self._read(ledgerrows.identity)

    def close(self) -> None:
        """Close the connection; all charges remain."""
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
        period: str | None = None,
    ) -> CapChange:
        """Set the cap on the composition of the releases of a dataset; earlier caps remain as history.

        A cap below the current spending is accepted.

        Parameters
        ----------
        dataset : str
        epsilon, delta : float
            The total allowed, or the total of each period.
        currency : {"gdp", "pure"}, optional
            Default: that of the dataset's caps, otherwise implied by `delta`. It cannot change once a release was
            charged under a cap.
        protects : Protection, optional
            Privacy unit of the releases. Default: that of the existing account.
        period : {"month", "year"}, optional
            Period of the data by which the cap renews: the cap bounds the releases that read each period. It requires
            releases that protect a row, or the rows of a unit in one period. Default: a cap on all releases.
        """
        request = CapRequest(dataset, epsilon, delta, currency, protects, period)
        return self._change(request.apply)

    def charge(  # noqa: PLR0913
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
        periods: Sequence[str] = (),
    ) -> str:
        """Reserve the cost of a release before its first draw and return its state.

        The charge is admitted if the history composed with this cost is within the cap on the total and within that of
        every period that it reads, or if there is no cap. A release charged before with the same arguments is free.

        Parameters
        ----------
        dataset, release : str
        cost : Cost
        plan_digest : str
            SHA-256 of the canonical plan.
        epsilon, delta : float, optional
            Figures of the job, stored for display and used in the refusal.
        reserve : bool
            If False, write nothing: return "admitted" or raise, so that a job is refused before it reads data.
        protects : Protection
            Privacy unit; refused if the dataset's other releases protect a different one.
        public : bool
            Whether anyone can compute the noise (a seed). No cap admits such a release.
        facts : mapping of str to str
            Hashes of the release's public files, stored in its link of the hash chain for an evidence bundle.
        periods : sequence of str
            Periods whose records the release reads, as a date attribute names them: "2026-02", "2026", "2026-Q1",
            "2026-W09", "2026-02-28". Each of them is charged the whole cost once. Default: every period.

        Returns
        -------
        str
            "reserved", "committed", "released" or "admitted".
        """
        request = Request(dataset, release, cost, plan_digest, epsilon, delta, protects, public, facts,
                          checked_periods(periods))  # fmt: skip

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
        """Record the decision of an adaptive release for one round before its noise is drawn; repeating it is free.

        A different decision for the same round, made in a copy of the run directory, is refused, because it would spend
        the same budget twice.
        """

        def act(db: Database) -> None:
            row = db.execute("SELECT digest FROM rounds WHERE release = ? AND round = ?", (release, number))
            if (decided := row.fetchone()) is None:
                ledgerrows.insert_round(db, release, number, digest)
            elif decided[0] != digest:
                raise BudgetError(
                    "release",
                    f"{release!r} has another decision of round {number} in another copy",
                    "one run directory per release",
                    "continue in the copy with more rounds, or start a new run",
                )

        self._change(act)

    def is_decided(self, release: str, number: int) -> bool:
        """Return whether a decision of a release is recorded; without one nothing was drawn for it."""
        query = "SELECT digest FROM rounds WHERE release = ? AND round = ?"
        return bool(self._read(lambda db: db.execute(query, (release, number)).fetchone()))

    def commit(self, release: str) -> str:
        """Record that all noise of a reserved release is drawn; repeating it changes nothing."""
        return self._advance(release, "reserved", "committed")

    def publish(self, release: str) -> str:
        """Record that a committed release is published; repeating it changes nothing."""
        return self._advance(release, "committed", "released")

    def digest_of(self, release: str) -> str:
        """Return the hash-chain link of a release. Raises BudgetError if the release is not on the ledger."""
        return self._read(lambda db: chain.digest_of(db, release))

    def check_contains(self, release: str, digest: str) -> None:
        """Raise BudgetError if the hash chain lacks the link that a run received when it was charged."""
        if not self._read(lambda db: chain.contains(db, digest)):
            raise BudgetError(FIELD, f"{self.path} lacks the entry of release {release!r}, which it contained: its"
                              " history was truncated or replaced", "the whole history, with its -wal file",
                              "restore it from a copy; do not use this one")  # fmt: skip

    def chain(self, dataset: str) -> list[tuple[Link, str]]:
        """Return the links of a dataset's hash chain with their digests.

        Raises BudgetError if the ledger is damaged.
        """
        self.verify()
        return self._read(lambda db: chain_of(ledgerrows.history(db).tables, canonical(dataset)))

    def heads(self) -> dict[str, int]:
        """Return every link of every chain with the number of later links.

        Raises BudgetError if the ledger is damaged.
        """
        self.verify()
        return self._read(chain.heads)

    def summary(self, dataset: str | None = None, by_period: bool = False) -> dict[str, Any]:
        """Return the spending of one dataset or of all, ready for JSON; an epsilon that is not finite is null.

        Parameters
        ----------
        dataset : str, optional
        by_period : bool
            Whether to add `by_period`, the spending of each month or year of the data.
        """

        def act(db: Database) -> dict[str, Any]:
            names = {canonical(name) for name in ledgerrows.names(db)}
            if dataset is not None and canonical(dataset) not in names:
                raise BudgetError("dataset", f"{dataset!r} is not in {self.path}", "a dataset charged or capped before",
                                  "check the name with `dpscale ledger show`")  # fmt: skip
            chosen = names if dataset is None else {canonical(dataset)}
            datasets = {name: {**statement(ledgerrows.account(db, name), STATED_DELTA), "head": chain.head(db, name)[1]}
                        for name in sorted(chosen)}  # fmt: skip
            for name, one in datasets.items():
                if by_period:
                    one["by_period"] = statement_by_period(ledgerrows.account(db, name), STATED_DELTA)
                one["notes"] = [*one["notes"], *chain.conditions(db, name)]
            return {"moved_to": ledgerrows.moved_to(db), "datasets": datasets}

        return {"ledger": str(self.path), "schema_version": VERSION} | self._read(act)

    def periods(self, dataset: str) -> dict[str, Spending]:
        """Return the composition of the releases by the period of their cost; empty if no cost has a period.

        Costs without a period, which may concern every period, are under "". The total is spent by all of them.
        """
        return self._read(lambda db: ledgerrows.account(db, checked_name("dataset", dataset)).periods)

    def verify(self) -> None:
        """Check the database, its schema and every row. Raises BudgetError for the first fault."""

        def act(db: Database) -> list[str]:
            wrong = self._store.findings(db)
            return wrong + findings(ledgerrows.history(db).tables, self._store.numbered(db))

        if wrong := self._read(act):
            raise BudgetError(
                FIELD,
                f"{self.path} is damaged ({' '.join(wrong[0].split())})",
                "an undamaged ledger",
                "restore it from a copy",
            )

    def move(self, target: str | os.PathLike[str]) -> int:
        """Move the history to a new ledger at `target` and close this one permanently. Returns the number of releases.

        Calling it again finishes an interrupted move; after a complete move it changes nothing.
        """
        self.verify()
        return transfer.move(self._store, lambda: self._transaction(True), resolved(os.getcwd(), target))

    def _read(self, act: Callable[[Database], Result]) -> Result:
        return repeated(lambda: self._within(False, act), self._store.timeout)

    def _change(self, act: Callable[[Database], Result], writes: bool = True) -> Result:
        """Return the result of `act` on an open ledger; `act` may run several times but writes only once."""

        def on_open(db: Database) -> Result:
            transfer.check_open(db, self.path)
            return act(db)

        return repeated(lambda: self._within(writes, on_open), self._store.timeout)

    def _within(self, writes: bool, act: Callable[[Database], Result]) -> Result:
        with self._transaction(writes) as db:
            return act(db)

    @contextmanager
    def _transaction(self, writes: bool) -> Iterator[Database]:
        """Run a transaction; a writing one takes the write lock before it reads, so writers are serialised."""
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
