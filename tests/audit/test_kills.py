"""Killed runs: the ledger has each release once, each file has the same draw, and no partial file is read.

Kills come before the n-th write, flush, rename, removal or SQL statement, or at a random time. After a few kills
the same command finishes the run, whose bytes are compared with those of an uninterrupted run. The slow form makes
1,000 kills.
"""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from fractions import Fraction

import pytest

from tests.audit import kills
from tests.audit.composition import audit_run
from tests.audit.small import answers, measurements, write

KILLS = 6


ADAPTIVE = {"mechanism": {"name": "aim-grem"}, "privacy": {"rho": 0.5, "dataset": "small"}}


@pytest.fixture(scope="module", params=[{}, ADAPTIVE], ids=["plan", "adaptive"])
def job(request, tmp_path_factory):
    return write(tmp_path_factory.mktemp("kills"), **request.param)


@pytest.fixture(scope="module")
def uninterrupted_run(job):
    run = job.parent / "unkilled"
    return run, kills.warm_up(job, run)


def decision_files(run):
    return {path.name: path.read_bytes() for path in run.glob("measurements/round-*.json")}


def ledger_rows(ledger):
    with closing(sqlite3.connect(ledger)) as db:
        return db.execute("SELECT release, cost, state FROM releases").fetchall()


def assert_single_release(run, uninterrupted_run, ledger):
    """Check for one charge in the released state, the bytes of the uninterrupted run and no leftovers."""
    release = json.loads((run / "manifest.json").read_text())["release"]
    [(charged, cost, state)] = ledger_rows(ledger)
    assert (charged, state) == (release, "released")
    assert measurements(run) == measurements(uninterrupted_run)
    assert answers(run) == answers(uninterrupted_run)
    assert decision_files(run) == decision_files(uninterrupted_run)
    assert not (run / "secret.key").exists()
    found = audit_run(run, ledger)
    assert found.sound
    assert found.paid == max(Fraction(part) for part in json.loads(cost).values())


def run_under_kills(job, place, uninterrupted_run, kill_actions):
    """Kill a run with a new ledger by each action, let it finish, check it and return the number of kills that hit."""
    place.mkdir(exist_ok=True)
    run, log, ledger = place / "run", place / "log", remove_ledger(job)
    hits = sum(action(job, run) == kills.KILLED for action in kill_actions)
    assert kills.wait_for_exit(kills.start("run", job, "--run-dir", run, "--quiet", log=log)) == 0, log.read_text()
    assert_single_release(run, uninterrupted_run, ledger)
    return hits


def remove_ledger(job):
    """Remove the ledger of the job; the release id of a seeded run depends on the job, so each run is the same
    release.
    """
    ledger = job.parent / "ledger.sqlite"
    for name in (ledger, ledger.with_name("ledger.sqlite-wal"), ledger.with_name("ledger.sqlite-shm")):
        name.unlink(missing_ok=True)
    return ledger


def kill_at_step(step):
    return lambda job, run: kills.wait_for_exit(kills.start("run", job, "--run-dir", run, "--quiet", last=step))


def kill_at_time(seconds, *settings):
    return lambda job, run: kills.kill_after(kills.start("run", job, "--run-dir", run, "--quiet", *settings), seconds)


def run_kill_campaign(job, tmp_path, uninterrupted_run, count, seed):
    """Make `count` kills, two thirds at a step and the others at a random time, with up to 5 kills per run."""
    rng = random.Random(seed)
    run, steps = uninterrupted_run
    hits, number = 0, 0
    while hits < count:
        kill_actions = [
            kill_at_step(rng.randint(1, steps)) if rng.random() < 0.67 else kill_at_time(rng.uniform(0.0, 0.08))
            for _ in range(min(5, count - hits))
        ]
        hits += run_under_kills(job, tmp_path / f"{number}", run, kill_actions)
        number += 1
    return hits


def test_killed_runs_charge_and_draw_once(job, tmp_path, uninterrupted_run):
    assert run_kill_campaign(job, tmp_path, uninterrupted_run, KILLS, seed=0) >= KILLS


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(1, 11))
def test_thousand_kills(job, tmp_path, uninterrupted_run, seed):
    assert run_kill_campaign(job, tmp_path, uninterrupted_run, 100, seed) >= 100


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_kill_before_every_step(job, tmp_path, uninterrupted_run):
    run, steps = uninterrupted_run
    hits = sum(run_under_kills(job, tmp_path / f"{step}", run, [kill_at_step(step)]) for step in range(1, steps + 1))
    assert hits > 0.7 * steps  # the first run has steps of its own: compiled code and its plan are kept for the others


@pytest.mark.slow
@pytest.mark.parametrize("sign", ["secret.key", "measurements/*.parquet"])
def test_killed_worker_process_charges_once(job, tmp_path, uninterrupted_run, sign):
    """A process of `--scheduler processes` is killed when the sign file exists; then the run is repeated."""

    def kill_worker(job, run):
        child = subprocess.Popen(
            [sys.executable, "-m", "dpscale", "run", str(job), "--run-dir", str(run), "--scheduler",
             "processes", "--quiet"], start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        deadline = time.monotonic() + 60
        while child.poll() is None and time.monotonic() < deadline:
            workers = children_of(child.pid)
            if workers and any(run.glob(sign)):
                os.kill(workers[-1], signal.SIGKILL)
                break
            time.sleep(0.001)
        try:
            child.wait(timeout=15)
        except subprocess.TimeoutExpired:  # the pool lost a worker and waits for it
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        return kills.KILLED

    run_under_kills(job, tmp_path / "w", uninterrupted_run[0], [kill_worker])


def children_of(parent):
    import psutil

    try:
        found = psutil.Process(parent).children(recursive=True)
        return [one.pid for one in found if "spawn_main" in " ".join(one.cmdline())]
    except psutil.Error:
        return []


def test_truncated_measurement_is_refused(tmp_path):
    """A measurement file truncated at any length is refused."""
    import numpy as np

    from dpscale import JobError
    from dpscale.measurement.value_files import ValueReader, write_values

    path, head = tmp_path / "m.parquet", {"release": "r"}
    write_values(path, head, [("{}", np.arange(20.0))])
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(JobError):
            ValueReader(head).read(path, 0, 20, "{}")


def test_concurrent_runs_do_not_exceed_cap(tmp_path):
    """Each of eight processes requests a third of the cap: three are admitted and five exit with 3."""
    from dpscale.ledger import Ledger
    from dpscale.privacy.accounting import Cost

    jobs = [
        write(tmp_path, f"{i}.toml", engine={"scheduler": "synchronous"},
              privacy={"privacy_cost": 0.1 + i / 1e6, "dataset": "capped", "ledger": "race.sqlite"})
        for i in range(8)
    ]  # fmt: skip
    with Ledger.open(tmp_path / "race.sqlite") as ledger:
        ledger.set_cap("capped", Cost(gaussian=Fraction(32, 100)).epsilon(1e-9), 1e-9)
    kills.warm_up(write(tmp_path, "warm.toml"), tmp_path / "warm")
    children = [kills.start("run", job, "--run-dir", tmp_path / f"r{i}", "--quiet") for i, job in enumerate(jobs)]
    codes = [kills.wait_for_exit(child) for child in children]
    assert sorted(codes) == [0, 0, 0, 3, 3, 3, 3, 3]
    with Ledger.open(tmp_path / "race.sqlite") as ledger:
        spent = ledger.summary("capped")["datasets"]["capped"]["spent"]["squared_mu"]
    assert 0.3 < spent <= 0.32
    for i, code in enumerate(codes):
        assert bool(measurements(tmp_path / f"r{i}")) == (code == 0)
