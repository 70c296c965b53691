"""Killed releases of growing tables: one charge, one draw for each period, and the bytes of an uninterrupted run."""

import hashlib
import json
import os
import random
import shutil
import sqlite3
from contextlib import closing

import pytest
import tomli_w

from dpscale.runs.charge import journal_of
from dpscale.runs.opening import open_run
from tests.audit import kills
from tests.periods.growing import MONTHS, frames, make_job, write

FORMS = {"plan": {}, "adaptive": {"mechanism": {"name": "aim-grem"}}}


def write_job(folder, seed, **tables):
    write(folder, frames(60, MONTHS[:3]))
    job = make_job(folder, time={"answers": ["period", "cumulative"], "window": None}, **tables)
    job["time"] = {name: value for name, value in job["time"].items() if value is not None}
    text = (folder / "domain.toml").read_text().replace("2026-06", "2026-03")
    (folder / "domain.toml").write_text(text)
    job["engine"] = {"scheduler": "synchronous", **({"seed": seed} if seed else {})}
    (folder / "job.toml").write_text(tomli_w.dumps(job))
    return folder / "job.toml"


@pytest.fixture(scope="module", params=FORMS)
def whole(request, tmp_path_factory):
    """A job with a seed, an uninterrupted run of all periods, and its number of steps."""
    job = write_job(tmp_path_factory.mktemp("growing"), 7, **FORMS[request.param])
    steps = kills.Steps(None)
    with steps:
        assert kills.run_command("run", job, "--run-dir", job.parent / "whole", "--quiet") == 0
    return job, steps.taken


def values(run):
    """Return the hashes of all drawn and combined values and answers of a run."""
    found = [path for part in ("measurements", "answers") for path in run.rglob(f"{part}/**/*")
             if path.suffix == ".parquet"]  # fmt: skip
    return {str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(found)}


def drawn(run):
    """Return the hashes of drawn values, and the tag of the noise key of each period whose draws are on the ledger.

    A period begins again with a fresh noise key if it was killed before.
    """
    found = {}
    opened = open_run(run)
    for folder in run.glob("periods/*"):
        part = opened.content.part_at(f"periods/{folder.name}")
        if opened.manifest["privacy"] is not None and journal_of(part).is_decided(0):
            found[folder.name] = part.manifest["secret_tag"]
        found |= {str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest()
                  for path in folder.glob("measurements/*.parquet")}  # fmt: skip
    return found


def releases(folder):
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as db:
        return db.execute("SELECT release, state FROM releases").fetchall()


def kill_until_done(job, place, steps, rng, hits, most, check):
    """Kill and resume a run until it is done or there are enough kills; return the number of kills."""
    while hits < most:
        code = kills.wait_for_exit(
            kills.start("run", job, "--run-dir", place, "--quiet", last=rng.randint(1, steps // 2))
        )
        check(place)
        if code == 0:
            return hits
        assert code == kills.KILLED
        hits += 1
    return hits


def test_killed_runs_have_the_bytes_of_an_uninterrupted_run(whole, tmp_path):
    job, steps = whole
    rng, log = random.Random(11), tmp_path / "log"
    for number in range(2):
        place = tmp_path / f"{number}"
        kill_until_done(job, place, steps, rng, 0, 3, lambda _: None)
        assert kills.wait_for_exit(kills.start("run", job, "--run-dir", place, log=log)) == 0, log.read_text()
        assert values(place) == values(job.parent / "whole")
        assert not list(place.rglob("secret.key"))
        assert not (place / "periods.key").exists()


KILLS = int(os.environ.get("DPSCALE_PERIOD_KILLS", "200"))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("form", FORMS)
def test_many_kills_draw_each_period_once(tmp_path, form):
    """Without a seed a second draw would be visible: no value file and no noise key of recorded draws ever changes."""
    job = write_job(tmp_path, None, **FORMS[form])
    rng, hits, runs = random.Random(5), 0, 0
    steps = kills.warm_up(job, tmp_path / "warm")
    while hits < KILLS // len(FORMS):
        seen, place = {}, tmp_path / f"run{runs}"

        def check(place, seen=seen):
            now = drawn(place) if place.exists() else {}
            assert {name: seen[name] for name in seen} == {name: now.get(name) for name in seen}
            seen.update(now)

        hits = kill_until_done(job, place, steps, rng, hits, KILLS // len(FORMS), check)
        assert kills.wait_for_exit(kills.start("run", job, "--run-dir", place, "--quiet")) == 0
        check(place)
        assert len(seen) > 3
        runs += 1
        shutil.rmtree(place)
    found = releases(tmp_path)
    assert len(found) == runs + 1
    assert {state for _, state in found} == {"released"}


def test_planted_second_draw_is_found(tmp_path):
    """The check of the kills finds a noise key that was replaced."""
    job = write_job(tmp_path, None)
    kills.warm_up(job, tmp_path / "run")
    before = drawn(tmp_path / "run")
    manifest = tmp_path / "run/manifest.json"
    tag = json.loads(manifest.read_text())["parts"]["2026-02"]["secret_tag"]
    manifest.write_text(manifest.read_text().replace(tag, "0" * 64))
    assert drawn(tmp_path / "run") != before
