"""Runs killed anywhere: the ledger holds each release once, every file is the one draw, and no torn file is read.

Kills are at a given step (before the n-th write, flush, rename, removal or SQL statement: mid-write and
mid-transaction) and at a random time. After a few kills the run is done by the same command, and compared with the
bytes of a run that nobody killed. The slow form makes 1,000 kills.
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

from dpscale.audit.composition import audit_run
from tests.audit import kills
from tests.audit.small import answers, measurements, write

KILLS = 24


ADAPTIVE = {"mechanism": {"name": "aim-grem"}, "privacy": {"rho": 0.5, "dataset": "small"}}


@pytest.fixture(scope="module", params=[{}, ADAPTIVE], ids=["plan", "adaptive"])
def job(request, tmp_path_factory):
    return write(tmp_path_factory.mktemp("kills"), **request.param)


@pytest.fixture(scope="module")
def unkilled(job):
    run = job.parent / "unkilled"
    return run, kills.warm(job, run)


def rounds(run):
    return {path.name: path.read_bytes() for path in run.glob("measurements/round-*.json")}


def charges(ledger):
    with closing(sqlite3.connect(ledger)) as db:
        return db.execute("SELECT release, cost, state FROM releases").fetchall()


def check(run, unkilled, ledger):
    """One charge of the one release, in the last state; the same bytes as unkilled; nothing half made is left over."""
    release = json.loads((run / "manifest.json").read_text())["release"]
    [(charged, cost, state)] = charges(ledger)
    assert (charged, state) == (release, "released")
    assert measurements(run) == measurements(unkilled)
    assert answers(run) == answers(unkilled)
    assert rounds(run) == rounds(unkilled)
    assert not (run / "secret.key").exists()
    found = audit_run(run, ledger)
    assert found.sound
    assert found.paid == max(Fraction(part) for part in json.loads(cost).values())


def killed_run(job, place, unkilled, draws):
    """Kill a run of its own ledger as `draws` says, then let it end; how many kills hit."""
    place.mkdir(exist_ok=True)
    run, log, ledger = place / "run", place / "log", fresh_ledger(job)
    hits = sum(draw(job, run) == kills.KILLED for draw in draws)
    assert kills.end(kills.start("run", job, "--run-dir", run, "--quiet", log=log)) == 0, log.read_text()
    check(run, unkilled, ledger)
    return hits


def fresh_ledger(job):
    """The job's ledger, removed: the release id of a seeded run follows the job, so every run is the same release."""
    ledger = job.parent / "ledger.sqlite"
    for name in (ledger, ledger.with_name("ledger.sqlite-wal"), ledger.with_name("ledger.sqlite-shm")):
        name.unlink(missing_ok=True)
    return ledger


def at_step(step):
    return lambda job, run: kills.end(kills.start("run", job, "--run-dir", run, "--quiet", last=step))


def at_time(seconds, *settings):
    return lambda job, run: kills.kill_after(kills.start("run", job, "--run-dir", run, "--quiet", *settings), seconds)


def campaign(job, tmp_path, unkilled, count, seed):
    """Kill at `count` points: two in three at a step, the others at a random time; up to 5 in one run's life."""
    rng = random.Random(seed)
    run, steps = unkilled
    hits, number = 0, 0
    while hits < count:
        draws = [
            at_step(rng.randint(1, steps)) if rng.random() < 0.67 else at_time(rng.uniform(0.0, 0.08))
            for _ in range(min(5, count - hits))
        ]
        hits += killed_run(job, tmp_path / f"{number}", run, draws)
        number += 1
    return hits


def test_killed_runs_spend_once_and_draw_once(job, tmp_path, unkilled):
    assert campaign(job, tmp_path, unkilled, KILLS, seed=0) >= KILLS


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(1, 11))
def test_a_thousand_kills(job, tmp_path, unkilled, seed):
    assert campaign(job, tmp_path, unkilled, 100, seed) >= 100


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_kill_before_every_step(job, tmp_path, unkilled):
    run, steps = unkilled
    hits = sum(killed_run(job, tmp_path / f"{step}", run, [at_step(step)]) for step in range(1, steps + 1))
    assert hits > 0.7 * steps  # the first run has steps of its own: compiled code and its plan are kept for the others


@pytest.mark.slow
@pytest.mark.parametrize("sign", ["secret.key", "measurements/*.parquet"])
def test_a_killed_worker_process_spends_once(job, tmp_path, unkilled, sign):
    """One of the processes of `--scheduler processes` is killed when the sign is there; then the run is made again."""

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

    killed_run(job, tmp_path / "w", unkilled[0], [kill_worker])


def children_of(parent):
    import psutil

    try:
        found = psutil.Process(parent).children(recursive=True)
        return [one.pid for one in found if "spawn_main" in " ".join(one.cmdline())]
    except psutil.Error:
        return []


def test_torn_files_are_never_read(tmp_path):
    """A measurement cut short at every length is refused, not read."""
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


def test_eight_processes_race_for_the_last_budget(tmp_path):
    """Each asks for a third of what the cap leaves: three are admitted, five exit with 3, and the cap holds."""
    from dpscale.ledger import Ledger
    from dpscale.privacy.accounting import Cost

    jobs = [
        write(tmp_path, f"{i}.toml", engine={"scheduler": "synchronous"},
              privacy={"privacy_cost": 0.1 + i / 1e6, "dataset": "capped", "ledger": "race.sqlite"})
        for i in range(8)
    ]  # fmt: skip
    with Ledger.open(tmp_path / "race.sqlite") as ledger:
        ledger.set_cap("capped", Cost(gaussian=Fraction(32, 100)).epsilon(1e-9), 1e-9)
    kills.warm(write(tmp_path, "warm.toml"), tmp_path / "warm")
    children = [kills.start("run", job, "--run-dir", tmp_path / f"r{i}", "--quiet") for i, job in enumerate(jobs)]
    codes = [kills.end(child) for child in children]
    assert sorted(codes) == [0, 0, 0, 3, 3, 3, 3, 3]
    with Ledger.open(tmp_path / "race.sqlite") as ledger:
        spent = ledger.summary("capped")["datasets"]["capped"]["spent"]["squared_mu"]
    assert 0.3 < spent <= 0.32
    for i, code in enumerate(codes):
        assert bool(measurements(tmp_path / f"r{i}")) == (code == 0)
