"""Reading of an open ledger: spending by dataset and by period, hash chains, and checks of every row.

A reading transaction sees one state of the ledger. Writing ones are those of `Ledger`, which adds charges and caps.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from dpscale.base.errors import BudgetError
from dpscale.ledger import chain, rows as ledgerrows, transfer
from dpscale.ledger.account import canonical
from dpscale.ledger.chain import Link, chain_of
from dpscale.ledger.job_entry import JobEntry, repeated_release
from dpscale.ledger.location import resolved
from dpscale.ledger.request import checked_name
from dpscale.ledger.rows import findings
from dpscale.ledger.sqlite_store import LINKED as LINKED_VERSION
from dpscale.ledger.statement import statement, statement_by_period, statement_html
from dpscale.ledger.store import FIELD, Database, Result, Store, repeated
from dpscale.privacy.accounting import Spending

TIMEOUT = 30.0  # seconds to wait for another process's transaction
UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)  # of a value
STATED_DELTA = 1e-9  # delta at which spending is displayed without a cap


class LedgerReader:
    """Open ledger, without the methods that change it.

    Parameters
    ----------
    store : Store
        Database.
    """

    def __init__(self, store: Store) -> None:
        self.path = store.path
        self._store, self._pid, self._lock = store, os.getpid(), threading.RLock()

    @classmethod
    def open(cls, path: str | os.PathLike[str], create: bool = True, timeout: float = TIMEOUT) -> Self:
        """Open the ledger at a path or PostgreSQL address.

        Parameters
        ----------
        path : str or path-like
            File, or address `postgresql://HOST/DATABASE`.
        create : bool
            Create the ledger if it does not exist.
        timeout : float
            Seconds to wait for other processes and for an unreachable server.

        Returns
        -------
        Ledger

        Raises
        ------
        JobError
            If there is no ledger, or something else is there.

        Examples
        --------
        >>> import dpscale as dp
        >>> with dp.Ledger.open("ledger.sqlite") as ledger:
        ...     _ = ledger.set_cap("survey", epsilon=2.0, delta=1e-9)
        ...     round(ledger.summary("survey")["datasets"]["survey"]["remaining_epsilon"], 3)
        2.0
        """
        return cls(transfer.opened(resolved(os.getcwd(), path), create, timeout))

    def __repr__(self) -> str:
        return f"Ledger({str(self.path)!r})"

    def _repr_html_(self) -> str:
        return statement_html(self.summary())

    @property
    def name(self) -> str:
        """Random identifier of the ledger, drawn when it was created and preserved by its copies."""
        return self._read(ledgerrows.identity)

    def close(self) -> None:
        """Close the connection; all charges remain."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def is_decided(self, release: str, part: str, number: int) -> bool:
        """Return whether a decision of a release is recorded; without one nothing was drawn for it.

        Parameters
        ----------
        release : str
            Public id of the release.
        part : str
            Name of the part.
        number : int
            Number of the decision among those of the part.

        Returns
        -------
        bool
        """
        return self._read(lambda db: ledgerrows.decision(db, release, part, number)) is not None

    def check_first(self, dataset: str, job: JobEntry) -> None:
        """Raise BudgetError if another run has released the same job and dataset.

        Parameters
        ----------
        dataset : str
        job : JobEntry
            Job of the run that would be charged.
        """

        def act(db: Database) -> Any:
            transfer.check_open(db, self.path)
            name = ledgerrows.recorded_name(db, checked_name("dataset", dataset), job, job.run)
            return ledgerrows.earlier_release(db, name, job)

        if (row := self._read(act)) is not None:
            raise repeated_release(row["release"], row["reserved_at"], row["run_dir"])

    def digest_of(self, release: str) -> str:
        """Return the hash-chain link of a release. Raises BudgetError if the release is not on the ledger.

        Parameters
        ----------
        release : str
            Public id of the release.

        Returns
        -------
        str
            SHA-256 in hexadecimal.
        """
        return self._read(lambda db: chain.digest_of(db, release))

    def check_contains(self, release: str, digest: str) -> None:
        """Raise BudgetError if the hash chain lacks the link that a run received when it was charged.

        Parameters
        ----------
        release : str
            Public id of the release.
        digest : str
            The link.
        """
        if not self._read(lambda db: chain.contains(db, digest)):
            raise BudgetError(FIELD, f"{self.path} lacks the entry of release {release!r}, which it contained: its"
                              " history was truncated or replaced", "the whole history, with its -wal file",
                              "restore it from a copy; do not use this one")  # fmt: skip

    def chain(self, dataset: str) -> list[tuple[Link, str]]:
        """Return the links of a dataset's hash chain with their digests.

        Raises BudgetError if the ledger is damaged.

        Parameters
        ----------
        dataset : str

        Returns
        -------
        list of Link and str
        """

        def act(db: Database) -> list[tuple[Link, str]]:
            self._check_chained(db)
            return chain_of(ledgerrows.history(db).tables, canonical(dataset))

        return self._read_sound(act)

    def heads(self) -> dict[str, int]:
        """Return every link of every chain with the number of later links.

        Raises BudgetError if the ledger is damaged.

        Returns
        -------
        dict of str to int
        """

        def act(db: Database) -> dict[str, int]:
            self._check_chained(db)
            return chain.heads(db)

        return self._read_sound(act)

    def summary(self, dataset: str | None = None, by_period: bool = False) -> dict[str, Any]:
        """Return the spending of one dataset or of all, ready for JSON; an epsilon that is not finite is null.

        Raises BudgetError if the ledger is damaged.

        Parameters
        ----------
        dataset : str, optional
        by_period : bool
            Whether to add `by_period`, the spending of each month or year of the data.

        Returns
        -------
        dict
            `datasets` has an entry for each dataset, with `spent`, `cap`, `remaining_epsilon` and `releases`.
        """

        def act(db: Database) -> dict[str, Any]:
            names = {canonical(name) for name in ledgerrows.names(db)}
            if dataset is not None and canonical(dataset) not in names:
                raise BudgetError("dataset", f"{dataset!r} is not in {self.path}", "a dataset charged or capped before",
                                  "check the name with `dpscale ledger show`")  # fmt: skip
            chosen = names if dataset is None else {canonical(dataset)}
            version = ledgerrows.schema_version(db)
            heads = {name: chain.head(db, name)[1] if version >= LINKED_VERSION else "" for name in chosen}
            datasets = {name: {**statement(ledgerrows.account(db, name), STATED_DELTA), "head": heads[name]}
                        for name in sorted(chosen)}  # fmt: skip
            for name, one in datasets.items():
                if by_period:
                    one["by_period"] = statement_by_period(ledgerrows.account(db, name), STATED_DELTA)
                one["notes"] = [*one["notes"], *chain.conditions(db, name)]
            return {"schema_version": version, "moved_to": ledgerrows.moved_to(db), "datasets": datasets}

        return {"ledger": str(self.path)} | self._read_sound(act)

    def periods(self, dataset: str) -> dict[str, Spending]:
        """Return the composition of the releases by the period of their cost; empty if no cost has a period.

        Costs without a period, which may concern every period, are under "". The total is spent by all of them.

        Parameters
        ----------
        dataset : str

        Returns
        -------
        dict of str to Spending
        """
        return self._read_sound(lambda db: ledgerrows.account(db, checked_name("dataset", dataset)).periods)

    def verify(self) -> dict[str, int]:
        """Check the database, its schema, every row and every hash chain.

        Raises BudgetError for the first fault.

        Returns
        -------
        dict of str to int
            Number of `datasets`, `releases` and `links`.
        """

        def act(db: Database) -> dict[str, int]:
            names = {canonical(name) for name in ledgerrows.names(db)}
            tables = ledgerrows.history(db).tables
            return {"datasets": len(names), "releases": len(tables["releases"]), "links": len(tables["links"])}

        return self._read_sound(act)

    def _check_sound(self, db: Database) -> None:
        """Raise DamageError unless the database, every row and every hash chain are as they were written."""
        wrong = self._store.findings(db)
        if not wrong:
            tables, numbers = ledgerrows.history(db).tables, self._store.numbered(db)
            try:
                wrong = findings(tables, numbers)
            except UNREADABLE:
                wrong = ["a row has a value that no ledger writes"]
        if wrong:
            raise self._store.damaged(wrong[0])

    def _check_chained(self, db: Database) -> None:
        """Raise BudgetError for a ledger of a version without hash chains; its copy in memory has others each time."""
        if (version := ledgerrows.schema_version(db)) < LINKED_VERSION:
            got = f"{self.path} has schema version {version}, which has no hash chain"
            raise BudgetError(FIELD, got, f"version {LINKED_VERSION} or later", "the next charge upgrades it")

    def _read_sound(self, act: Callable[[Database], Result]) -> Result:
        """Return the result of `act` on a ledger that was verified in the same transaction."""

        def on_sound(db: Database) -> Result:
            self._check_sound(db)
            return act(db)

        return self._read(on_sound)

    def _read(self, act: Callable[[Database], Result]) -> Result:
        return repeated(lambda: self._within(False, act), self._store.timeout)

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
