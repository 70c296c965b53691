"""What has to be true of a run at its end: the bytes of a run that nobody disturbed, and one charge."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from tests.audit.small import answers, measurements


def everything(run: Path) -> dict[str, object]:
    """All that a release is: measurements, an adaptive run's decisions, answers."""
    rounds = {path.name: path.read_bytes() for path in run.glob("measurements/round-*.json")}
    return {**measurements(run), **rounds, **answers(run)}


def charges(folder: Path) -> list[str]:
    """The state of every release on the ledger: one for each charge."""
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as db:
        return [state for (state,) in db.execute("SELECT state FROM releases")]


def check(run: Path, expected: Path) -> None:
    """The same bytes as expected, one charge on the ledger beside what is expected, and no secret left."""
    assert everything(run) == everything(expected)
    assert not (run / "secret.key").exists()
    assert charges(expected.parent) == ["released"]
