"""A ledger whose content was changed takes no charge and shows no figure, and its error names the way out.

Each corruption changes one byte of a row in the file, beneath the checks of SQLite and of the schema.
"""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dpscale.__main__ import main
from dpscale.base.errors import BudgetError
from dpscale.ledger import Ledger, schema
from dpscale.ledger.store import DamageError
from dpscale.privacy.accounting import Cost
from dpscale.privacy.protection import Protection
from tests.ledger.test_book import run_as_other_user
from tests.messages import refused

CORRUPTIONS = 120
DIGEST = "0" * 64
UNIT = Protection("person", bound=2, table="people")
# Of these columns no figure follows: the state changes, so its times are not in the chain of entries
TIMES = ("committed_at", "released_at", "created_at")


def charge(path: Path, release: str = "new", reserve: bool = True) -> str:
    with Ledger.open(path, create=False) as ledger:
        return ledger.charge("shop", release, Cost(gaussian=Fraction(1, 100)), DIGEST, 1.0, 1e-9, reserve, UNIT)


def fill(path: Path) -> Path:
    with Ledger.open(path) as ledger:
        ledger.set_cap("shop", 3.0, 1e-9, protects=UNIT)
        ledger.set_cap("other", 2.0, 0.0)
        for number in range(5):
            ledger.charge("shop", f"release {number}", Cost(gaussian=Fraction(25, 1000)), DIGEST, 0.25, 1e-9,
                          protects=UNIT, facts={"domain": "a" * 64})  # fmt: skip
            ledger.decide(f"release {number}", "", 0, DIGEST)
        ledger.commit("release 0")
        ledger.publish("release 0")
        ledger.commit("release 1")
    return path


def content(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Return all rows but the times, as bytes, read without the ledger."""
    with closing(sqlite3.connect(f"{path.as_uri()}?immutable=1", uri=True)) as db:
        db.text_factory = bytes
        found = {}
        for table in (*schema.ROWS, "closed"):
            rows = db.execute(f"SELECT * FROM {table}")
            names = [column[0] for column in rows.description]
            found[table] = [{name: value for name, value in zip(names, row, strict=True) if name not in TIMES}
                            for row in rows]  # fmt: skip
    return found


def row_bytes(path: Path) -> list[int]:
    """Return the positions of all bytes of texts and numbers of rows, found by their values in the file."""
    whole, found = path.read_bytes(), set[int]()
    for rows in content(path).values():
        for row in rows:
            for value in row.values():
                if isinstance(value, bytes) and len(value) > 2:
                    at = whole.find(value)
                    while at >= 0:
                        found.update(range(at, at + len(value)))
                        at = whole.find(value, at + 1)
    return sorted(found)


def corruptions(path: Path, number: int) -> Iterator[tuple[int, int]]:
    """Yield positions and new bytes: digits to other digits, letters to other letters, and bytes that are no text."""
    whole, chance = path.read_bytes(), random.Random(62)
    everywhere, rows = range(4096, len(whole)), row_bytes(path)  # the first page has the schema
    for turn in range(number):
        at = chance.choice(rows if turn % 3 else everywhere)
        old = whole[at]
        if chr(old).isdigit():
            yield at, chance.choice([byte for byte in b"0123456789" if byte != old])
        else:
            yield at, chance.choice([old ^ 1 << bit for bit in range(8)])


def changed_and_charged(path: Path, folder: Path, number: int) -> tuple[int, list[str]]:
    """Return how many corruptions changed content, and those of them that took a charge or were shown."""
    intact, wrong, changed = content(path), list[str](), 0
    for turn, (at, byte) in enumerate(corruptions(path, number)):
        broken = folder / "broken.sqlite"
        data = bytearray(path.read_bytes())
        data[at] = byte
        broken.write_bytes(data)
        try:
            differs = content(broken) != intact
        except (sqlite3.Error, UnicodeDecodeError):  # the latter from names of columns
            differs = True
        changed += differs
        for act in (charge, show, cap) if turn % 5 == 0 else (charge,):
            with suppress(BudgetError):
                act(broken)
                if differs:
                    wrong.append(f"{act.__name__} with byte {at}")
            broken.write_bytes(data)
            for end in ("-wal", "-shm"):
                Path(f"{broken}{end}").unlink(missing_ok=True)
    return changed, wrong


def show(path: Path) -> dict[str, Any]:
    with Ledger.open(path, create=False) as ledger:
        return ledger.summary()


def cap(path: Path) -> object:
    with Ledger.open(path, create=False) as ledger:
        return ledger.set_cap("shop", 4.0, 1e-9)


def move(source: Path, target: Path) -> int:
    with Ledger.open(source, create=False) as ledger:
        return ledger.move(target)


def verify(path: Path) -> dict[str, int]:
    with Ledger.open(path, create=False) as ledger:
        return ledger.verify()


def test_changed_content_takes_no_charge_and_shows_nothing(tmp_path: Path) -> None:
    changed, wrong = changed_and_charged(fill(tmp_path / "l.sqlite"), tmp_path, CORRUPTIONS)
    assert not wrong
    assert changed > CORRUPTIONS / 3


def test_corruption_is_not_noticed_without_verification(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the ledger does not verify its rows."""
    monkeypatch.setattr(Ledger, "_check_sound", lambda *_: None)
    _, wrong = changed_and_charged(fill(tmp_path / "l.sqlite"), tmp_path, 40)
    assert wrong


def test_undecodable_text_is_damage(tmp_path: Path) -> None:
    path = fill(tmp_path / "l.sqlite")
    path.write_bytes(path.read_bytes().replace(b"person", b"pers\xffn"))
    for act in (charge, show, cap, verify):
        with refused(DamageError) as caught:
            act(path)
        assert "\\xff" not in str(caught.value)


def test_undecodable_schema_is_damage(tmp_path: Path) -> None:
    """SQLite's message about a damaged schema has the bytes of the name, which Python cannot decode."""
    path = fill(tmp_path / "l.sqlite")
    content = path.read_bytes()
    changed = content.replace(b"rounds_linkedrounds", b"rounds_\xe9inkedrounds").replace(
        b"TRIGGER rounds_linked", b"TRIGGES rounds_linked"
    )
    assert changed != content
    path.write_bytes(changed)
    for act in (charge, show, cap, verify):
        with pytest.raises(BudgetError) as refused:
            act(path)
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("column", ["seq", "dataset", "place", "entry", "number", "facts", "salt", "digest"])
def test_link_of_another_type_is_damage(tmp_path: Path, column: str) -> None:
    """Planted by SQL without triggers and checks."""
    path = fill(tmp_path / "l.sqlite")
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for statement in ("DROP TRIGGER links_update", "PRAGMA ignore_check_constraints = ON"):
            db.execute(statement)
        db.execute(f"UPDATE links SET {column} = x'ff' || seq WHERE seq = 3" if column != "seq" else
                   "UPDATE links SET seq = 900 WHERE seq = 3")  # fmt: skip
        db.execute(next(text for text in schema.FIFTH if "TRIGGER links_update" in text))
    for act in (charge, show, cap, verify):
        with refused(DamageError):
            act(path)


# Command


def run_ledger(*words: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(main, ["ledger", *map(str, words)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout, done.stderr


def test_verify_command_has_exit_codes_and_one_sentence(tmp_path: Path) -> None:
    path = fill(tmp_path / "l.sqlite")
    assert run_ledger("verify", path)[:2] == (0, f"{path} is sound: 2 datasets, 5 releases, 12 links of hash chains\n")
    assert '"links": 12' in run_ledger("verify", path, "--json")[1]
    path.write_bytes(path.read_bytes().replace(b"0.25", b"0.24").replace(b"1/40", b"1/50"))
    code, _, said = run_ledger("verify", path)
    assert (code, said.count("is damaged")) == (3, 1)
    assert run_ledger("verify", tmp_path / "none.sqlite")[0] == 2
    (tmp_path / "text").write_text("no ledger, but a text that is long enough to be one")
    assert run_ledger("verify", tmp_path / "text")[0] == 2


# Ledgers whose closed source exists


@pytest.mark.parametrize("folder", ["", "elsewhere"])
def test_damaged_copy_names_its_closed_source(tmp_path: Path, folder: str) -> None:
    """The source in the same folder is found; one elsewhere names the damage when it is used."""
    source, target = fill(tmp_path / "old.sqlite"), tmp_path / folder / "new.sqlite"
    target.parent.mkdir(exist_ok=True)
    move(source, target)
    whole = target.read_bytes()
    target.write_bytes(whole[:8192] + b"\x0d" + bytes(100) + whole[8293:])
    way_out = f"delete {target} and run `dpscale ledger copy {source} {target}` again"
    acts: list[Callable[[], object]] = [lambda: charge(source), lambda: cap(source), lambda: move(source, target)]
    acts += [] if folder else [lambda: show(target), lambda: charge(target)]
    for act in acts:
        with pytest.raises(BudgetError) as caught:
            act()
        assert way_out in str(caught.value)
        assert "if nothing was charged on it since" in str(caught.value), "or its charges would be lost"
    target.unlink()
    with refused(BudgetError):
        charge(source)
    assert move(source, target) == 5
    assert verify(target)["releases"] == 5


def test_sound_copy_is_no_damage(tmp_path: Path) -> None:
    source, target = fill(tmp_path / "old.sqlite"), tmp_path / "new.sqlite"
    move(source, target)
    with refused(BudgetError) as caught:
        charge(source)
    assert "delete" not in str(caught.value)


# Readers without write permission


@pytest.fixture
def public_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o777)
    yield folder
    folder.chmod(0o777)
    shutil.rmtree(folder)


MODES = [(0o444, 0o777), (0o444, 0o555), (0o666, 0o555)]


def read_all(path: Path) -> None:
    """Read a ledger as an auditor does, and write nothing."""
    with Ledger.open(path, create=False) as ledger:
        assert ledger.verify()["releases"] == 5
        assert len(ledger.summary()["datasets"]["shop"]["releases"]) == 5
        assert len(ledger.heads()) == 12
        assert len(ledger.chain("other")) == 1


@pytest.mark.parametrize(("file_mode", "folder_mode"), MODES)
def test_auditor_reads_without_write_permission(public_folder: Path, file_mode: int, folder_mode: int) -> None:
    path = fill(public_folder / "l.sqlite")
    path.chmod(file_mode)
    public_folder.chmod(folder_mode)
    before = path.read_bytes(), path.stat().st_mtime_ns
    assert run_as_other_user(lambda: read_all(path)) is None
    assert [one.name for one in public_folder.iterdir()] == ["l.sqlite"]
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    refused = run_as_other_user(lambda: charge(path))
    assert isinstance(refused, BudgetError)
    assert "permission" in refused.remedy


@pytest.mark.parametrize(("file_mode", "folder_mode"), MODES)
def test_auditor_is_refused_beside_a_write_ahead_log(public_folder: Path, file_mode: int, folder_mode: int) -> None:
    """The file alone lacks rows of the log."""
    path = fill(public_folder / "l.sqlite")
    with Ledger.open(path) as ledger:
        ledger.charge("shop", "in the log", Cost(gaussian=Fraction(1, 100)), DIGEST, protects=UNIT)
        for file in public_folder.iterdir():
            file.chmod(file_mode)
        public_folder.chmod(folder_mode)
        refused = run_as_other_user(lambda: read_all(path))
        assert (refused is not None, getattr(refused, "exit_code", 0)) == (True, 75)
        assert "write-ahead log" in str(refused)
        public_folder.chmod(0o777)
    assert run_as_other_user(lambda: verify(path)) is None, "the last process that closes it removes the log"


def test_file_that_changes_while_it_is_read_is_read_again(public_folder: Path) -> None:
    path = fill(public_folder / "l.sqlite")
    public_folder.chmod(0o555)

    def read_while_it_changes() -> None:
        turns = []

        def act(db: Any) -> int:
            turns.append(0)
            if len(turns) == 1:
                os.utime(path, ns=(1, 1)) if os.access(path, os.W_OK) else None
            return int(db.execute("SELECT count(*) FROM releases").fetchone()[0])

        with Ledger.open(path, create=False) as ledger:
            assert ledger._read(act) == 5
        assert len(turns) == 2

    path.chmod(0o666)
    if os.getuid() == 0:
        shutil.chown(path, 65534, 65534)
    assert run_as_other_user(read_while_it_changes) is None
