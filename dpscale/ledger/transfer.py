"""A ledger's history moved to another place, and the old one closed for good.

Two open ledgers of one history would each admit what only one may, so at no moment are there two: the new one is
written whole but for its last step, then the old one is closed, then the last step is done. A kill in between leaves a
closed ledger and none that is open; the same command again finishes it. The new one keeps the old one's name, by which
runs know their ledger.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from pathlib import Path

from dpscale.base.errors import BudgetError, DpscaleError, JobError
from dpscale.ledger import postgres_store, rows, sqlite_store
from dpscale.ledger.location import check_ledger_place, is_address, standing
from dpscale.ledger.store import FIELD, Database, Store

Making = AbstractContextManager[Callable[[rows.History], None]]


def opened(place: str, create: bool, timeout: float) -> Store:
    """The ledger at a place, made first where there is none and `create` is set."""
    if is_address(place):
        return postgres_store.ServerStore(place, create, timeout)
    return sqlite_store.FileStore(Path(place), create, timeout)


def there(place: str) -> bool:
    """Whether there is a ledger, sound or not; TransientError where its server does not answer."""
    if not is_address(place):
        return os.path.lexists(place)
    with postgres_store.connect(place) as db:
        return postgres_store.is_there(db)


def unreached(place: str) -> str:
    """Why the server of a job's ledger cannot be asked from this machine; empty where it can."""
    try:
        there(standing(place))
    except DpscaleError as error:
        return str(error)
    return ""


def check_open(db: Database, place: object) -> None:
    """BudgetError for a ledger that was closed."""
    if (target := rows.moved_to(db)) is not None:
        raise BudgetError(FIELD, f"{place} is closed for good: its history moved to {target}", "the ledger there",
                          "name that one, in the job or as DPSCALE_LEDGER")  # fmt: skip


def move(source: Store, transaction: Callable[[], AbstractContextManager[Database]], target: str) -> int:
    """Move what the ledger holds to a new one at `target`; how many releases. `transaction`: one that writes here."""
    check_ledger_place(target)
    with source.transaction(writes=False) as db:
        here, gone = rows.history(db), rows.moved_to(db)
        if gone != target:
            check_open(db, source.path)
    if not (gone == target and there(target) and _name(target, source.timeout) == here.name):
        here = _moved(transaction, target)
    return len(here.tables["releases"])


def _moved(transaction: Callable[[], AbstractContextManager[Database]], target: str) -> rows.History:
    if there(target):
        raise JobError("target", f"there is a ledger at {target}", "a place where there is none", "name another place")
    making: Making = postgres_store.making(target) if is_address(target) else sqlite_store.making(Path(target))
    try:
        with making as fill, transaction() as db:
            if rows.moved_to(db) is None:
                rows.insert_closed(db, target)
            fill(history := rows.history(db))
    except FileExistsError:
        raise JobError("target", f"a ledger was made at {target} meanwhile", "a place where there is none",
                       "take it away if it is empty, and repeat") from None  # fmt: skip
    return history


def _name(place: str, timeout: float) -> str:
    store = opened(place, False, timeout)
    with closing(store), store.transaction(writes=False) as db:
        return rows.identity(db)
