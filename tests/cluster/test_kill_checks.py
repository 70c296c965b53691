"""Checks of benchmarks/clusters.py kills: each one finds a planted violation, and a few kills have none."""

import fcntl
import random
import shutil
import sqlite3
import sys
import tempfile
from contextlib import closing
from fractions import Fraction
from pathlib import Path

import pytest

import dpscale as dp
from tests.audit.small import write

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
UNSEEDED = {"engine": {"scheduler": "synchronous"}, "privacy": {"rho": 0.5, "dataset": "small"}}
ADAPTIVE = {"mechanism": {"name": "aim-grem"}}


@pytest.fixture(scope="module")
def checks():
    """The module with the checks, imported from benchmarks."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import clusters

        yield clusters
    finally:
        sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module", params=[{}, ADAPTIVE], ids=["plan", "adaptive"])
def released(request, tmp_path_factory):
    """Folder with a finished run of a job without a seed."""
    job = write(tmp_path_factory.mktemp("released"), **UNSEEDED, **request.param)
    dp.run(job, job.parent / "run")
    return job.parent


@pytest.fixture
def place(released, tmp_path):
    """A copy of the folder, for a fault."""
    return shutil.copytree(released, tmp_path / "place")


@pytest.fixture
def watcher(checks, place):
    watcher = checks.Watcher(place / "run", place / "ledger.sqlite")
    watcher.audit()
    assert not watcher.faults
    return watcher


def change_byte(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def first_file(folder, pattern):
    return min(folder.rglob(pattern))


def test_finished_run_has_no_violation(checks, place, watcher):
    assert watcher.files >= 2 or not list((place / "run/measurements").glob("round-*"))
    assert checks.check_charge(place / "run", place / "ledger.sqlite", Fraction(1)) == []
    assert checks.check_draw(place / "run", place / "ledger.sqlite", watcher) == []
    assert checks.check_answers(place / "run", place) == []
    assert checks.check_leftovers(place / "run", place / "scratch") == []


@pytest.mark.parametrize("pattern", ["*.parquet", "round-*.json"])
def test_changed_byte_is_found(place, watcher, pattern):
    if not list((place / "run/measurements").glob(pattern)):
        pytest.skip("a plan decides nothing")
    path = first_file(place / "run/measurements", pattern)
    change_byte(path)
    watcher.look()
    assert watcher.faults == [f"{path.name} changed its bytes"]


def test_removed_value_is_found(place, watcher):
    path = first_file(place / "run/measurements", "*.parquet")
    path.unlink()
    watcher.look()
    assert watcher.faults == [f"{path.name} disappeared"]


def test_replaced_noise_key_is_found(place, watcher):
    for secret in (b"1" * 32, bytes(32), b"2" * 32):
        (place / "run/secret.key").write_bytes(secret)
        watcher.look()
    assert watcher.faults == ["the noise key was replaced"]


def test_draw_before_charge_is_found(checks, place):
    (place / "ledger.sqlite").unlink()
    watcher = checks.Watcher(place / "run", place / "ledger.sqlite")
    watcher.audit()
    assert "drawn before its charge" in watcher.faults[0]


def test_ledger_that_another_process_locks_is_read_later(checks, place, watcher):
    """A suspended process may lock it."""
    with closing(sqlite3.connect(place / "ledger.sqlite", isolation_level=None)) as db:
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute("BEGIN EXCLUSIVE")
        watcher.audit()
        assert (watcher.faults, watcher.unread) == ([], 1)
        assert "cannot be read" in str(checks.check_draw(place / "run", place / "ledger.sqlite", watcher))
    assert not checks.check_draw(place / "run", place / "ledger.sqlite", watcher)


def test_draw_before_decision_is_found(checks, place):
    if not list((place / "run/measurements").glob("round-*.json")):
        pytest.skip("a plan decides nothing")
    with closing(sqlite3.connect(place / "ledger.sqlite")) as db:
        db.execute("DROP TRIGGER rounds_delete")
        db.execute("DELETE FROM rounds WHERE round > 0")
        db.commit()
    watcher = checks.Watcher(place / "run", place / "ledger.sqlite")
    watcher.audit()
    assert "before its decision was on the ledger" in watcher.faults[0]
    assert "differs from the ledger" in str(checks.check_draw(place / "run", place / "ledger.sqlite", watcher))


def test_second_draw_is_found_by_audit(checks, place, watcher):
    path = first_file(place / "run/measurements", "*.parquet")
    shutil.copy(path, path.with_name("000-00009000-00009001.parquet"))
    found = checks.check_draw(place / "run", place / "ledger.sqlite", watcher)
    assert any("drawn of" in text or "drawn twice" in text for text in found)


def test_second_charge_is_found(checks, place, watcher):
    job = write(place, "second.toml", engine=UNSEEDED["engine"],
                privacy={"rho": 0.5, "dataset": "small", "ledger": str(place / "ledger.sqlite")})  # fmt: skip
    dp.run(job, place / "second", fresh=True)
    assert checks.check_charge(place / "run", place / "ledger.sqlite", Fraction(1)) == ["the ledger has 2 charges"]
    watcher.audit()
    assert watcher.faults == ["2 releases are charged"]


@pytest.mark.parametrize(("change", "message"),
                         [("state = 'reserved'", "the charge is reserved"), ("release = 'x'", "another release"),
                          ("""cost = '{"gaussian": "1/2"}'""", "the charge is 0.5"),
                          ("""cost = '{"gaussian": "1", "pure": "1"}'""", "a charge of pure")])  # fmt: skip
def test_wrong_charge_is_found(checks, place, watcher, change, message):
    with closing(sqlite3.connect(place / "ledger.sqlite")) as db:
        db.execute("DROP TRIGGER releases_update")
        db.execute(f"UPDATE releases SET {change}")
        db.commit()
    assert message in str(checks.check_charge(place / "run", place / "ledger.sqlite", Fraction(1)))
    watcher.audit()
    assert bool(watcher.faults) == ("state" not in change)


@pytest.mark.parametrize("pattern", ["answers/*/*.parquet", "report.html"])
def test_other_answers_are_found(checks, place, pattern):
    path = min((place / "run").glob(pattern))
    change_byte(path)
    assert checks.check_answers(place / "run", place) == [f"{path.relative_to(place / 'run')} differs"]


@pytest.mark.parametrize("name", ["secret.key", "secret.partial", ".seen-01", "answers/.a.01.partial"])
def test_leftover_file_is_found(checks, place, name):
    (place / "run" / name).write_bytes(b"")
    assert checks.check_leftovers(place / "run", place / "scratch") == [f"{name} is left"]


def test_leftover_lock_and_scratch_are_found(checks, place):
    import os

    scratch = place / "scratch"
    (scratch / "dpscale-scratch-01").mkdir(parents=True)
    (place / ".01.new").mkdir()
    with open(place / "run/.lock", "w") as lock, tempfile.TemporaryFile(dir=scratch):
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = checks.check_leftovers(place / "run", scratch, [os.getpid()])
    assert [text.rpartition(" ")[0] for text in found[:3]] == ["the run directory is", "the draft .01.new is",
                                                              "the scratch file dpscale-scratch-01 is"]  # fmt: skip
    assert "holds the scratch file" in found[3]


def test_task_on_older_version_is_found(checks, place, watcher, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import clusters

    with closing(clusters.Cluster(tmp_path / "cluster")) as cluster:
        run = clusters.Supervised(cluster, place / "job.toml", place / "run", False, random.Random(1))
        assert not [fault for fault in clusters.check(place, run, watcher) if "version" in fault]
        cluster.older.with_suffix(".ran").touch()
        assert "version: a worker of version 0.0.1 ran a task" in clusters.check(place, run, watcher)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [1, 2])
def test_few_faults_have_no_violation(checks, tmp_path, monkeypatch, seed):
    """Each kind of fault comes once: kills, suspensions, workers that are retired, small or older, and `cancel`."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    import clusters

    figures, faults = clusters.run_campaign(tmp_path, 10, seed, list(clusters.KINDS), 20_000, 8)
    assert not faults
    assert [figures[f"faults, {kind}"] for kind in clusters.FAULTS] == [1] * 10
