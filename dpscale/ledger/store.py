"""Database interface of a ledger, implemented by a SQLite file on one machine and by a PostgreSQL server.

Queries are written once, with `?` as the placeholder for values and no SQL dialect. The implementations differ in how
they begin a transaction, create tables and triggers, and check them. A writing transaction sees all rows committed
before it and excludes other writing transactions. If the outcome of a transaction is unknown (lost connection), it runs
again: every write of a ledger is idempotent, so the repetition finds or completes the previous attempt.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from itertools import count
from pathlib import Path
from typing import Any, Protocol, TypeVar

from dpscale.base.errors import BudgetError, TransientError

FIELD = "privacy.ledger"
LONGEST_PAUSE = 0.5  # seconds
Result = TypeVar("Result")


class Again(TransientError):
    """The same transaction may succeed now: another one interfered or the connection was lost."""


class DamageError(BudgetError):
    """The ledger is damaged: it has other content than was written."""


class Database(Protocol):
    """Connection within a transaction."""

    def execute(self, query: str, values: Sequence[Any] = (), /) -> Any:
        """Return a DB-API cursor with `fetchone`, `fetchall` and `description` that iterates over tuples."""


class Store(Protocol):
    """Open database of a ledger.

    Attributes
    ----------
    timeout : float
        Seconds to wait for other processes.
    path : Path or str
        File, or address of the server.
    """

    timeout: float

    @property
    def path(self) -> Path | str:
        """File, or address of the server."""

    def transaction(self, writes: bool) -> AbstractContextManager[Database]:
        """Run an atomic transaction; with `writes`, exclude other writers before anything is read.

        The first writing transaction upgrades a ledger of an older version. A reading one yields the rows of an older
        ledger in the current schema and changes nothing.
        """

    def check_writable(self) -> None:
        """Raise BudgetError if it is known that this user may not write the ledger."""

    def findings(self, db: Database) -> list[str]:
        """Return the faults of the database itself. Raises BudgetError if it is no longer a ledger."""

    def numbered(self, db: Database) -> dict[str, int]:
        """Return the last row number of every table, which is stored separately from the rows."""

    def damaged(self, what: str) -> DamageError:
        """Return the error for a damaged ledger, with what is wrong."""

    def close(self) -> None:
        """Close the connection."""


def repeated(act: Callable[[], Result], timeout: float) -> Result:
    """Return the result of `act`, called again after every `Again` until `timeout` seconds have passed."""
    end = time.monotonic() + timeout
    for turn in count():
        try:
            return act()
        except Again:
            if time.monotonic() > end:
                raise
            time.sleep(random.uniform(0, min(LONGEST_PAUSE, 0.01 * 2**turn)))
    raise AssertionError("count ends")
