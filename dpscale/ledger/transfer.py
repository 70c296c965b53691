"""Move of a ledger's history to another location; the old ledger is closed permanently.

Two open ledgers with the same history could each admit a charge that only one of them may admit, so at most one is
open at any time: the new ledger is written except for its last step, the old one is closed, then the last step is done.
An interruption in between leaves a closed ledger and no open one; the same command finishes the move. The new ledger
has the identifier of the old one, by which runs recognise their ledger.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from pathlib import Path

from dpscale.base.errors import BudgetError, DpscaleError, JobError
from dpscale.ledger import postgres_store, rows, sqlite_store
from dpscale.ledger.location import check_ledger_place, is_address, standing
from dpscale.ledger.store import FIELD, DamageError, Database, Store

Making = AbstractContextManager[Callable[[rows.History], None]]


def opened(place: str, create: bool, timeout: float) -> Store:
    """Open the ledger at a location; create it if it does not exist and `create` is set."""
    if is_address(place):
        return postgres_store.ServerStore(place, create, timeout)
    return sqlite_store.FileStore(Path(place), create, timeout)


def there(place: str) -> bool:
    """Return whether a ledger exists, valid or not. Raises TransientError if its server does not answer."""
    if not is_address(place):
        return os.path.lexists(place)
    with postgres_store.connect(place) as db:
        return postgres_store.is_there(db)


def unreached(place: str) -> str:
    """Return why the server of a job's ledger is unreachable from this machine; empty if it is reachable."""
    try:
        there(standing(place))
    except DpscaleError as error:
        return str(error)
    return ""


def check_open(db: Database, place: object) -> None:
    """Raise BudgetError if the ledger is closed."""
    closed = rows.closed(db)
    if closed is not None:
        target, closed_at = closed
        remedy = "use it in the job or as DPSCALE_LEDGER"
        if _is_lost(target):
            if sqlite_store.is_of_upgrade(place, target):
                repair = f"restore it from a copy; {place} lacks the charges since its upgrade"
            else:
                repair = sqlite_store.remedy_of_copy(place, closed_at, target)
            remedy = f"it is missing or damaged: {repair}"
        raise BudgetError(
            FIELD,
            f"{place} is closed permanently: its history moved to {target}",
            "the new ledger",
            remedy,
        )


def _is_lost(target: str) -> bool:
    """Return whether the file of a new ledger is missing or damaged; False if that is not known."""
    if is_address(target):
        return False
    if not os.path.lexists(target):
        return True
    try:
        _sound_name(target, 0)
    except DamageError:
        return True
    except DpscaleError:
        pass
    return False


def move(source: Store, transaction: Callable[[], AbstractContextManager[Database]], target: str) -> int:
    """Move the ledger's rows to a new one at `target` and return the number of releases.

    Parameters
    ----------
    source : Store
    transaction : callable
        Begins a writing transaction on `source`.
    target : str
        Path or address of the new ledger.
    """
    check_ledger_place(target)
    with source.transaction(writes=False) as db:
        history, moved_to = rows.history(db), rows.moved_to(db)
        # a ledger that was closed for this target is an interrupted or a finished move
        if moved_to != target or sqlite_store.is_of_upgrade(source.path, moved_to):
            check_open(db, source.path)
    is_done = moved_to == target and there(target) and _copied_name(source, target) == history.name
    if not is_done:
        history = _moved(transaction, target)
    return len(history.tables["releases"])


def _moved(transaction: Callable[[], AbstractContextManager[Database]], target: str) -> rows.History:
    """Close the ledger, which records where it moved, and fill a new one at `target` with its rows; return them.

    Raises JobError if there is a ledger at `target`.
    """
    if there(target):
        raise JobError(
            "target", f"{target} already contains a ledger", "a place without a ledger", "choose another place"
        )
    making: Making = postgres_store.making(target) if is_address(target) else sqlite_store.making(Path(target))
    try:
        # the transaction ends, which closes the old ledger, before `making` does the last step of the new one
        with making as fill, transaction() as db:
            if rows.moved_to(db) is None:
                rows.insert_closed(db, target)
            history = rows.history(db)
            fill(history)
    except FileExistsError:
        raise JobError(
            "target",
            f"another process created a ledger at {target}",
            "a place without a ledger",
            "remove it if it is empty, and repeat",
        ) from None
    return history


def _copied_name(source: Store, target: str) -> str:
    """Return the identifier of the ledger at the target of an earlier move.

    Raises DamageError, with what makes it whole, if it is damaged.
    """
    try:
        return _sound_name(target, source.timeout)
    except DamageError as error:
        with source.transaction(writes=False) as db:
            _, closed_at = rows.closed(db) or ("", "")
        remedy = sqlite_store.remedy_of_copy(source.path, closed_at, target)
        raise DamageError(error.field, error.got, error.takes, remedy) from None


def _sound_name(place: str, timeout: float) -> str:
    """Return the identifier of a ledger. Raises DamageError if its file is damaged."""
    store = opened(place, False, timeout)
    with closing(store), store.transaction(writes=False) as db:
        faults = store.findings(db)
        if faults:
            raise store.damaged(faults[0])
        return rows.identity(db)
