"""Checks of a finished run: the bytes of an uninterrupted run, and one charge."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from tests.audit.small import answers, measurements


def release_bytes(run: Path) -> dict[str, object]:
    """Return measurements, decisions of an adaptive run and answers by file name."""
    rounds = {path.name: path.read_bytes() for path in run.glob("measurements/round-*.json")}
    return {**measurements(run), **rounds, **answers(run)}


def charge_states(folder: Path) -> list[str]:
    """Return the state of each release in the ledger; each release has one charge."""
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as db:
        return [state for (state,) in db.execute("SELECT state FROM releases")]


def assert_same_release(run: Path, expected: Path) -> None:
    """Check for the same bytes as expected, one released charge in the ledger and no secret."""
    assert release_bytes(run) == release_bytes(expected)
    assert not (run / "secret.key").exists()
    assert charge_states(expected.parent) == ["released"]
