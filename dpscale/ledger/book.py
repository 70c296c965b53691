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
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from dpscale.base.errors import BudgetError
from dpscale.ledger import rows as ledgerrows, transfer
from dpscale.ledger.account import Account, checked_periods
from dpscale.ledger.cap import CapChange
from dpscale.ledger.location import resolved
from dpscale.ledger.reader import LedgerReader
from dpscale.ledger.request import CapRequest, Request
from dpscale.ledger.rows import NO_JOB, JobEntry
from dpscale.ledger.sqlite_store import LINKED as LINKED_VERSION
from dpscale.ledger.store import Database, Result, repeated
from dpscale.privacy.accounting import Cost
from dpscale.privacy.protection import Protection

ONE_ROW = Protection()


class PublicLedger(LedgerReader):
    """Open ledger that users read and cap, `dp.Ledger`; a context manager. It charges and publishes nothing.

    All methods raise BudgetError if the ledger refuses or cannot be trusted, TransientError if the same call may
    succeed later (lock, full disk), and JobError for an invalid ledger, cap or name. After an error the ledger is
    unchanged.

    Parameters
    ----------
    store : Store
        Database.

    Examples
    --------
    >>> with Ledger.open("budget.sqlite") as ledger:
    ...     ledger.summary()["datasets"]
    {}
    """

    def set_cap(
        self,
        dataset: str,
        epsilon: float,
        delta: float,
        currency: str | None = None,
        protects: Protection | None = None,
        period: str | None = None,
        analyst: str | None = None,
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
        analyst : str, optional
            Whose releases the cap bounds, beside the caps of the dataset. From then on every release of the dataset
            names an analyst with a cap.

        Returns
        -------
        CapChange
            The new cap, with the former one and the releases that it does not bound.

        Examples
        --------
        >>> with Ledger.open("ledger.sqlite") as ledger:
        ...     _ = ledger.set_cap("trips", epsilon=3.0, delta=1e-9)
        ...     list(ledger.summary()["datasets"])
        ['trips']
        """
        request = CapRequest(
            dataset=dataset,
            epsilon=epsilon,
            delta=delta,
            currency=currency,
            protects=protects,
            period=period,
            analyst=analyst,
        )
        return self._change(request.apply, sound=True)

    def _change(self, act: Callable[[Database], Result], writes: bool = True, sound: bool = False) -> Result:
        """Return the result of `act` on an open ledger; `act` may run several times but writes only once.

        With `sound`, the ledger is verified first, in the same transaction.
        """

        def on_open(db: Database) -> Result:
            """Act on the ledger unless it was moved or, with `sound`, a check fails."""
            transfer.check_open(db, self.path)
            if sound:
                self._check_sound(db)
            return act(db)

        return repeated(lambda: self._within(writes, on_open), self._store.timeout)


class Ledger(PublicLedger):
    """Open ledger to which runs charge their releases. Open it with `Ledger.open`, once in each process."""

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
        job: JobEntry = NO_JOB,
        analyst: str = "",
    ) -> str:
        """Reserve the cost of a release before its first draw and return its state.

        The charge is admitted if the history composed with this cost is within the cap on the total, that of every
        period that it reads and that of its analyst, or if there is no cap. A release charged before with the same
        arguments is free. The whole ledger is verified in the same transaction: one with a broken hash chain admits
        nothing.

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
        job : JobEntry
            Job of the release. A second release of the same job and dataset is refused unless it is stated to be fresh.
        analyst : str
            Who asks for the release; refused without a cap if the dataset has caps of analysts.

        Returns
        -------
        str
            "reserved", "committed", "released" or "admitted".

        Guarantee
        ---------
        Protected: all releases of a dataset together.
        Cost: at most the caps on the total and on the periods; a refused or broken history admits nothing.
        Neighbours: `protects`: releases for other units are refused, or converted as docs/privacy.md says.
        Proof: docs/privacy.md, Neighbouring tables; tests/ledger/test_book.py.
        """
        asked = Request(
            dataset=dataset,
            release=release,
            cost=cost,
            plan_digest=plan_digest,
            epsilon=epsilon,
            delta=delta,
            protects=protects,
            public=public,
            facts=facts,
            periods=checked_periods(periods),
            job=job,
            analyst=analyst,
        )

        def act(db: Database) -> str | Account:
            """Return the state of the release, which is inserted; the account if a cap refuses it."""
            # the same files may have been charged before under another name of the data set
            request = asked.at_recorded_name(db)
            state = request.state(db)
            if state:  # charged before
                return state
            request.check_first(db)
            account = request.account(db)
            if not request.fits(account):
                return account
            if reserve:
                request.insert(db)
            return "reserved" if reserve else "admitted"

        self._store.check_writable()
        # the ledger is verified first; to explain a refusal takes time, so it is done after the transaction
        answer = self._change(act, reserve, sound=True)
        if isinstance(answer, Account):
            raise asked.refusal(answer)
        return answer

    def decide(self, release: str, part: str, number: int, digest: str) -> None:
        """Record a decision of a part of a release before its noise is drawn; repeating it is free.

        A different decision with the same number, made in a copy of the run directory, is refused, because it would
        spend the same budget twice.

        Parameters
        ----------
        release : str
        part : str
            Name of the part.
        number : int
            Number of the decision among those of the part.
        digest : str
            SHA-256 of the decision.

        Guarantee
        ---------
        Protected: the draws of a release: two copies of a run directory cannot draw different things under one
            charge.
        Cost: nothing beyond the charge.
        Neighbours: those of the release.
        Proof: docs/privacy.md, One draw for one charge; tests/ledger/test_book.py.
        """

        def act(db: Database) -> None:
            """Insert the decision, or compare it with the one of the same number."""
            decided = ledgerrows.decision(db, release, part, number)
            if decided is None:
                ledgerrows.insert_round(db, release, part, number, digest)
            elif decided != digest:
                raise BudgetError(
                    "release",
                    f"{release!r} has another decision {number}{part and f' of {part}'} in another copy",
                    "one run directory per release",
                    "continue in the copy with more rounds, or start a new run",
                )

        self._change(act)

    def commit(self, release: str) -> str:
        """Record that all noise of a reserved release is drawn; repeating it changes nothing.

        Parameters
        ----------
        release : str
            Public id of the release.

        Returns
        -------
        str
            "committed".
        """
        return self._advance(release, "reserved", "committed")

    def publish(self, release: str) -> str:
        """Record that a committed release is published; repeating it changes nothing.

        Parameters
        ----------
        release : str
            Public id of the release.

        Returns
        -------
        str
            "released".
        """
        return self._advance(release, "committed", "released")

    def link_entries(self) -> None:
        """Upgrade an open ledger of a version without hash chains, so that its entries have links to show."""
        if self._read(ledgerrows.schema_version) < LINKED_VERSION:
            self._change(lambda db: None)

    def move(self, target: str | os.PathLike[str]) -> int:
        """Move the history to a new ledger at `target` and close this one permanently.

        Calling it again finishes an interrupted move; after a complete move it changes nothing.

        Parameters
        ----------
        target : str or path-like
            File, or address `postgresql://HOST/DATABASE`.

        Returns
        -------
        int
            Number of releases.
        """
        self.verify()
        return transfer.move(self._store, lambda: self._transaction(True), resolved(os.getcwd(), target))

    def _advance(self, release: str, before: str, after: str) -> str:
        """Move a release from one state to the next and return the new state; one that has it already stays."""

        def act(db: Database) -> str:
            """Check the present state, change it if it is `before`, and return `after`."""
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
