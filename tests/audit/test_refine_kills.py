"""Killed refinements: the ledger has each release once, and the bytes are those of an uninterrupted refinement."""

import json
import random
import shutil
import sqlite3
from contextlib import closing

import pytest

from tests.audit import kills
from tests.audit.small import answers, measurements, write
from tests.selection import mostly_slow

KILLS = 6
EPSILON = 0.7
FORMS = {
    "plan": {"privacy": {"epsilon": 0.5, "delta": 1e-9, "dataset": "small"}},
    "adaptive": {"privacy": {"epsilon": 2.0, "delta": 1e-9, "dataset": "small"}, "mechanism": {"name": "aim-grem"}},
}


@pytest.fixture(scope="module", params=mostly_slow(FORMS, {"plan"}))
def first(request, tmp_path_factory):
    """A measured run, its ledger before the refinement, an uninterrupted refinement and its number of steps."""
    job = write(tmp_path_factory.mktemp("refine"), **FORMS[request.param])
    run = job.parent / "run"
    assert kills.run_command("run", job, "--run-dir", run, "--quiet") == 0
    restore_ledger(job.parent, "before", "ledger")
    whole, steps = job.parent / "whole", kills.Steps(None)
    with steps:
        assert kills.run_command("refine", run, "--epsilon", EPSILON, "--run-dir", whole, "--quiet") == 0
    return run, whole, steps.taken


def restore_ledger(folder, to, source):
    for name in ("sqlite-wal", "sqlite-shm"):
        (folder / f"{to}.{name}").unlink(missing_ok=True)
    with (
        closing(sqlite3.connect(folder / f"{source}.sqlite")) as old,
        closing(sqlite3.connect(folder / f"{to}.sqlite")) as new,
    ):
        old.backup(new)


def charged_releases(folder):
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as db:
        return db.execute("SELECT release, state FROM releases").fetchall()


def test_killed_refinements_charge_and_draw_once(first, tmp_path):
    run, whole, steps = first
    rng, hits, number = random.Random(3), 0, 0
    while hits < KILLS:
        restore_ledger(run.parent, "ledger", "before")
        place, log = tmp_path / f"{number}", tmp_path / f"log{number}"
        command = ("refine", run, "--epsilon", EPSILON, "--run-dir", place, "--quiet")
        for _ in range(min(4, KILLS - hits)):
            child = kills.start(*command, last=rng.randint(1, steps))
            hits += kills.wait_for_exit(child) == kills.KILLED
        assert kills.wait_for_exit(kills.start(*command, log=log)) == 0, log.read_text()
        release = json.loads((place / "manifest.json").read_text())["release"]
        charged = charged_releases(run.parent)
        assert len(charged) == 2
        assert (release, "released") in charged
        assert measurements(place) == measurements(whole)
        assert answers(place) == answers(whole)
        assert not (place / "secret.key").exists()
        shutil.rmtree(place)
        number += 1
