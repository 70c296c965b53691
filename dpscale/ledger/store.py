"""What a ledger needs of a database, of which there are two: a SQLite file on one machine, or a PostgreSQL server.

Queries are written once, with `?` for values and no dialect; what differs is how a transaction begins, how tables and
triggers are made and how they are checked. A transaction that changes something sees all that was committed before it,
and no other is under way with it. One whose end is not known (a lost connection) is made anew: everything that a ledger
writes is written once however often it is asked for, so asking again is how it learns what became of it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from itertools import count
from pathlib import Path
from typing import Any, Protocol, TypeVar

from dpscale.base.errors import TransientError

FIELD = "privacy.ledger"
LONGEST_PAUSE = 0.5  # seconds
Result = TypeVar("Result")


class Again(TransientError):
    """The same transaction may pass now: another came between, or the connection was lost."""


class Database(Protocol):
    """A connection within a transaction."""

    def execute(self, query: str, values: Sequence[Any] = (), /) -> Any:
        """A cursor, as of the DB-API: `fetchone`, `fetchall`, `description`, an iterator of tuples."""


class Store(Protocol):
    """An open ledger's database. `timeout`: seconds to wait for others."""

    timeout: float

    @property
    def path(self) -> Path | str:
        """The file, or the server's address."""

    def transaction(self, writes: bool) -> AbstractContextManager[Database]:
        """All or nothing; with `writes` alone among those that write, before anything is read."""

    def findings(self, db: Database) -> list[str]:
        """What is wrong with the database itself; raises BudgetError where it is no ledger any more."""

    def numbered(self, db: Database) -> dict[str, int]:
        """The last number that each table gave a row, kept apart from the rows."""

    def close(self) -> None:
        """Close the connection."""


def repeated(act: Callable[[], Result], timeout: float) -> Result:
    """What `act` gives, tried again as long as it says so and there is time."""
    end = time.monotonic() + timeout
    for turn in count():
        try:
            return act()
        except Again:
            if time.monotonic() > end:
                raise
            time.sleep(random.uniform(0, min(LONGEST_PAUSE, 0.01 * 2**turn)))
    raise AssertionError("count ends")
