"""Whole runs whose workers, driver and scheduler are killed at random times: the bytes of an uninterrupted run and one
charge.
"""

import pytest

from dpscale.job import Job
from tests.audit.small import measurements
from tests.cluster.chaos import ADAPTIVE, PLAN, Chaos, write_job
from tests.cluster.released import assert_same_release
from tests.running import begin_table, run_stages

KINDS = {"plan": PLAN, "adaptive": ADAPTIVE}
RUNS = 50


@pytest.fixture(scope="module", params=KINDS)
def expected(request, tmp_path_factory):
    """Directory of an uninterrupted run of the job in this process."""
    return run_uninterrupted(tmp_path_factory.mktemp(request.param), request.param)


def run_uninterrupted(folder, kind):
    directory = begin_table(Job.read(write_job(folder / "job", KINDS[kind])), folder / "job/expected")
    run_stages(directory)
    return directory.path


def run_under_kills(expected, logs, seed, slow, submitted, kills, pause, seconds=600):
    """Run one job under kills, check its release and return the number of kills by kind of process."""
    for path in expected.parent.glob("ledger.sqlite*"):
        path.unlink()
    run = expected.parent / f"run-{seed}"
    hits = Chaos(expected.parent / "job.toml", run, logs, seed, slow, submitted).run_until_done(kills, pause, seconds)
    assert len(measurements(run)) == len(measurements(expected)) > 10
    assert_same_release(run, expected)
    print(f"run {seed}: {dict(hits)}")
    return hits


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "submitted", "seed"), [("adaptive", False, 2), ("plan", False, 1), ("plan", True, 5)])
def test_short_run_under_kills(tmp_path, kind, submitted, seed):
    hits = run_under_kills(
        run_uninterrupted(tmp_path, kind), tmp_path / "logs", seed, (0.1, 0.2), submitted, 2, (2, 4), 120
    )
    assert sum(hits.values()) <= 2


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(RUNS // 2))
def test_half_minute_runs_under_kills(expected, tmp_path, seed):
    """Every fifth run is driven on the cluster."""
    run_under_kills(expected, tmp_path / "logs", seed, (2.0, 2.0), seed % 5 == 4, 2 + seed % 4, (2, 12))
