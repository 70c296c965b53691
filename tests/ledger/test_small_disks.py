"""A ledger that a full disk cannot store whole is not created, and its source stays open.

Each size is tried on a disk of its own in memory, which is mounted in a user namespace.
"""

import json
import shutil
import sqlite3
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest

from dpscale.base.errors import DpscaleError
from dpscale.ledger import Ledger, sqlite_store
from dpscale.privacy.accounting import Cost
from dpscale.privacy.protection import Protection
from tests.messages import refused

RELEASES = 40
MOUNT = 'mount -t tmpfs -o size="$1" none "$2" && exec "$3" -c "$4" "$2" "$5"'
CREATE = """
import json, sys
from pathlib import Path
from dpscale.ledger import Ledger
from dpscale.base.errors import DpscaleError
try:
    Ledger.open(Path(sys.argv[1]) / "new.sqlite").close()
    said = ""
except DpscaleError as error:
    said = str(error)
from tests.ledger.test_small_disks import state_of
print(json.dumps([said, state_of(Path(sys.argv[1]) / "new.sqlite")]))
"""
COPY = """
import json, sys
from pathlib import Path
from dpscale.ledger import Ledger
from dpscale.base.errors import DpscaleError
target = Path(sys.argv[1]) / "new.sqlite"
try:
    with Ledger.open(Path(sys.argv[2]), create=False) as source:
        source.move(str(target))
    said = ""
except DpscaleError as error:
    said = str(error)
from tests.ledger.test_small_disks import state_of
print(json.dumps([said, state_of(target)]))
"""


def state_of(path):
    """Return the number of releases of a ledger that passes all checks of SQLite; None if there is none."""
    if not path.exists():
        return None
    with sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return db.execute("SELECT count(*) FROM releases").fetchone()[0]


def fill(path):
    with Ledger.open(path) as ledger:
        for number in range(RELEASES):
            ledger.charge("data", f"release {number}", Cost(gaussian=Fraction(1, 100)), "0" * 64, 1.0, 1e-9, True,
                          Protection())  # fmt: skip
    return path


def on_disk(size, folder, script, source=""):
    """Return what a script prints that has a disk of `size` bytes at `folder`."""
    command = ["unshare", "-rm", "sh", "-c", MOUNT, "sh", str(size), folder, sys.executable, script, source]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Ledger with releases, and its size in bytes without a write-ahead log."""
    path = fill(tmp_path_factory.mktemp("ledger") / "ledger.sqlite")
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path, path.stat().st_size


def test_new_ledger_is_whole_or_absent(tmp_path):
    Ledger.open(tmp_path / "l.sqlite").close()
    size, folder = (tmp_path / "l.sqlite").stat().st_size, tmp_path / "disk"
    folder.mkdir()
    states = set()
    for share in range(4, 14):
        said, state = on_disk(size * share // 4, str(folder), CREATE)
        assert (state == 0) == (said == "")
        assert state == 0 or "full disk" in said or "space" in said
        states.add(state)
    assert states == {None, 0}, "the sizes include one that is too small and one that suffices"


def test_copied_ledger_is_whole_and_its_source_open_otherwise(whole, tmp_path):
    path, size = whole
    (tmp_path / "disk").mkdir()
    states = set()
    for share in range(8, 29, 2):
        source = tmp_path / f"{share}.sqlite"
        shutil.copy(path, source)
        said, state = on_disk(size * share // 8, str(tmp_path / "disk"), COPY, str(source))
        with sqlite3.connect(source) as db:
            closed = db.execute("SELECT count(*) FROM closed").fetchone()[0]
        assert (closed, state) == ((1, RELEASES) if said == "" else (0, None))
        states.add(state)
    assert states == {None, RELEASES}


def test_draft_that_lost_rows_is_not_linked(tmp_path, monkeypatch):
    """Planted: rows remain in the write-ahead log, which is lost."""
    path, write = fill(tmp_path / "l.sqlite"), sqlite_store.insert_history
    monkeypatch.setattr(sqlite_store, "insert_history", lambda db, history: write(db, history) or _drop(db))
    with Ledger.open(path, create=False) as ledger, refused(DpscaleError):
        ledger.move(str(tmp_path / "new.sqlite"))
    assert not (tmp_path / "new.sqlite").exists()


def _drop(db):
    db.execute("DELETE FROM releases WHERE release = 'release 7'")
