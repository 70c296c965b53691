"""`dpscale submit` and its kin: the driver is a task of the cluster, whoever of both is lost."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import suppress

import dask
import pandas as pd
import pytest
from click.testing import CliRunner

from dpscale import TransientError
from dpscale.__main__ import main
from dpscale.cli import driver, driver_status
from dpscale.job import Job
from dpscale.ledger import Ledger
from dpscale.runs.run import Run
from dpscale.runs.stages.runner import run_stages
from tests.audit.small import measurements, write
from tests.cluster.conftest import ROOT
from tests.cluster.machines import kill, machines
from tests.cluster.released import charges, check
from tests.cluster.troubles import leave_plots_out, slow_down
from tests.cluster.waiting import eventually


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """A run of the job in this process."""
    job = write(tmp_path_factory.mktemp("expected"))
    directory = Run.create(Job.read(job), job.parent / "expected")
    run_stages(directory)
    return directory.path


@pytest.fixture
def job(expected):
    """The same job with a new ledger and no run: the release id of a seeded run follows the job and where it is."""
    for path in expected.parent.glob("ledger.sqlite*"):
        path.unlink()
    assert eventually(lambda: gone(expected.parent / "run"))
    return expected.parent / "job.toml"


def gone(run):
    """Whether it is removed: a driver that was cancelled may still be writing its last words there."""
    shutil.rmtree(run, ignore_errors=True)
    return not run.exists()


@pytest.fixture
def client(client):
    """Drivers on the workers that are up now write reports without plots."""
    client.run(leave_plots_out)
    return client


def cli(*arguments):
    """Exit code, stdout and stderr of the command line."""
    found = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert found.exception is None or isinstance(found.exception, SystemExit), found.exception
    return found.exit_code, found.stdout, found.stderr


def submit(cluster, job, run="run"):
    code, out, told = cli("submit", job, "--run-dir", job.parent / run, "--scheduler", address(cluster), "--json")
    assert code == 0, told
    return json.loads(out)


def address(cluster):
    return getattr(cluster, "scheduler_address", None) or cluster.address


def charged(folder):
    with suppress(sqlite3.OperationalError):  # made, and not filled yet
        return list(folder.glob("*.sqlite")) and charges(folder) == ["reserved"]


def measuring(run):
    return eventually(lambda: list((run / "measurements").glob("*.parquet")))


def test_a_submitted_job_goes_on_without_its_client(cluster, client, secured, job, expected):
    run, environment = job.parent / "run", os.environ | {"DASK_CONFIG": str(secured), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "dpscale", "submit", job, "--run-dir", run, "--scheduler", address(cluster)]
    done = subprocess.run(list(map(str, command)), env=environment, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"dpscale wait {run}" in done.stdout
    assert cli("wait", run) == (0, f"report: {run / 'report.html'}\n", "")
    assert "done" in cli("status", run)[1]
    assert json.loads(cli("status", run, "--json")[1])["driver"]["exit_code"] == 0
    check(run, expected)


def test_a_driver_killed_with_its_worker_is_started_again(cluster, client, slow, job, expected):
    run = job.parent / "run"
    submit(cluster, job)
    assert measuring(run)
    first = driver_status.read(run)
    os.kill(first["pid"], signal.SIGKILL)
    assert cli("wait", run, "--seconds", 500)[0] == 0
    second = driver_status.read(run)
    assert first["submission"] == second["submission"]
    assert first["driver"] != second["driver"]
    check(run, expected)


def test_a_cancelled_run_stops_at_its_next_task_and_goes_on_when_it_is_submitted_again(
    cluster, client, slow, job, expected
):
    run = job.parent / "run"
    submit(cluster, job)
    assert measuring(run)
    cli("cancel", run)
    code, _, told = cli("wait", run, "--seconds", 30)
    assert code == 75
    assert told == "dpscale: run: cancelled; submit it again to resume\n"
    assert json.loads((run / "manifest.json").read_text())["stages"]["measure"]["state"] == "cancelled"
    assert driver_status.read(run)["state"] == "cancelled"
    assert "measure: cancelled, submit it again to resume" in cli("status", run)[1]
    assert "driver: cancelled" in cli("status", run)[1]
    assert "working" in submit(cluster, job)
    assert cli("wait", run, "--seconds", 500)[0] == 0
    check(run, expected)


def test_a_run_is_ended_once_it_is_cancelled_and_not_while_its_driver_works(cluster, client, slow, job, expected):
    run = job.parent / "run"
    client.run(slow_down, 5.0)
    submit(cluster, job)
    assert eventually(lambda: charged(job.parent))  # what is drawn is in no file for five seconds
    code, _, told = cli("end", run)
    assert code == 75
    assert "dpscale cancel" in told
    cli("cancel", run)
    assert cli("wait", run, "--seconds", 30)[0] == 75
    assert cli("end", run)[1].startswith("abandoned: the whole charge is spent")
    code, _, told = cli("submit", job, "--run-dir", run, "--scheduler", address(cluster))
    assert code == 2
    assert "was ended on" in told
    assert charges(job.parent) == ["reserved"]


def test_submitted_again_while_it_is_being_cancelled_it_goes_on(cluster, client, slow, job, expected):
    run = job.parent / "run"
    first = submit(cluster, job)
    assert measuring(run)
    cli("cancel", run)
    assert submit(cluster, job)["submission"] != first["submission"]
    assert cli("wait", run, "--seconds", 500)[0] == 0
    check(run, expected)


def test_a_wrong_job_ends_with_its_sentence(cluster, client, tmp_path):
    job = write(tmp_path)
    for path in (job.parent / "data").glob("*.parquet"):
        pd.read_parquet(path).drop(columns="c").to_parquet(path, index=False)
    submit(cluster, job)
    code, _, told = cli("wait", job.parent / "run", "--seconds", 30)
    assert code == 2
    assert told.startswith("dpscale: ")
    assert "'c'" in told or " c" in told
    assert len(told.strip().splitlines()) == 1


def test_an_error_that_is_none_of_ours_tells_only_its_kind(tmp_path):
    driver_status.change(tmp_path, lambda _: True, submission="s", driver="d", state="running")
    assert driver._end(tmp_path, lambda _: True, ValueError("31337 rows")) == 70
    told = "the driver failed with ValueError; set DPSCALE_DEBUG=1 to see the cause (its output is private)"
    assert driver_status.read(tmp_path)["error"] == told
    assert "31337" not in (tmp_path / driver_status.FILE).read_text()


def test_a_refused_budget_ends_with_3(cluster, client, job):
    with Ledger.open(job.parent / "ledger.sqlite") as ledger:
        ledger.set_cap("small", 1e-6, 1e-9)
    submit(cluster, job)
    code, _, told = cli("wait", job.parent / "run", "--seconds", 30)
    assert code == 3
    assert "cap" in told
    assert not measurements(job.parent / "run")


def test_submitted_twice_it_runs_once(cluster, client, slow, job, expected):
    """At the same time, and while it runs."""
    run, found = Run.create(Job.read(job), job.parent / "run"), []
    threads = [threading.Thread(target=lambda: found.append(driver.submit(run, client))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert measuring(run.path)
    assert submit(cluster, job)["state"] == "running"
    assert len({one["submission"] for one in found} | {driver_status.read(run.path)["submission"]}) == 1
    assert cli("wait", run.path, "--seconds", 500)[0] == 0
    starts = [json.loads(line)["stage"] for line in (run.path / "log.jsonl").read_text().splitlines()]
    assert starts.count("measure") == 2  # its start and its end
    check(run.path, expected)


def test_two_runs_at_once_on_one_ledger(cluster, client, job, expected):
    other = write(job.parent, "other.toml", workload=[{"family": "prefix", "degree": 1}])
    shutil.rmtree(job.parent / "two", ignore_errors=True)
    submit(cluster, job)
    submit(cluster, other, "two")
    assert [cli("wait", job.parent / name, "--seconds", 500)[0] for name in ("run", "two")] == [0, 0]
    assert measurements(job.parent / "run") == measurements(expected)
    assert charges(job.parent) == ["released"] * 2


@pytest.mark.slow
def test_silence_is_told_where_the_scheduler_is_gone_and_the_run_goes_on_elsewhere(
    cluster, client, tmp_path, secured, job, expected, monkeypatch
):
    run = job.parent / "run"
    with machines(tmp_path, secured, DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT="5s") as made:
        scheduler = made.scheduler()
        made.worker("--preload", "tests.cluster.slow_store")
        with dask.config.set({"dpscale.worker-wait": 60}):
            submit(made, job)
        assert measuring(run)
        kill(scheduler)
        monkeypatch.setattr(driver_status, "SILENT_SECONDS", 4)
        code, _, told = cli("wait", run, "--seconds", 500)
    assert code == 75
    assert "no heartbeat" in told or "connection to the Dask scheduler was lost" in told, told
    assert eventually(
        lambda: driver_status.read_status(run)["state"] == "failed" or driver_status.read_status(run)["silent"]
    )
    submit(cluster, job)
    assert cli("wait", run, "--seconds", 500)[0] == 0
    check(run, expected)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a mount of its own")
def test_workers_that_do_not_see_the_run_directory_are_told_at_submit(tmp_path, secured):
    job = write(tmp_path / "hidden")
    with machines(tmp_path, secured) as made:
        made.scheduler()
        script = f'mount -t tmpfs none {job.parent} && exec "$@"'
        made.worker("--no-nanny", within=["unshare", "-m", "sh", "-c", script, "sh"])
        with dask.config.set({"dpscale.worker-wait": 60}):
            code, _, told = cli("submit", job, "--run-dir", job.parent / "run", "--scheduler", made.address)
    assert code == 2
    assert "run directory: worker tls://" in told
    assert "shared file system" in told
    assert not driver_status.read(job.parent / "run")


def test_a_ledger_on_a_network_file_system_of_the_workers_is_told_at_submit(cluster, client, tmp_path):
    job = write(tmp_path)

    def seen(mounts):
        import importlib

        from dpscale.ledger import location as ledgerplace

        importlib.reload(ledgerplace)
        if mounts:
            ledgerplace.mounts = lambda: mounts

    client.run(seen, [("/", "ext4"), (str(tmp_path), "nfs4")])
    try:
        code, _, told = cli("submit", job, "--run-dir", tmp_path / "run", "--scheduler", address(cluster))
    finally:
        client.run(seen, None)
    assert code == 2
    assert told.startswith("dpscale: privacy.ledger: ")
    assert "(nfs4) at worker tls://" in told
    assert not driver_status.read(tmp_path / "run")


def test_what_was_never_submitted_cannot_be_waited_for(job):
    Run.create(Job.read(job), job.parent / "run")
    assert cli("wait", job.parent / "run")[0] == 2
    assert cli("cancel", job.parent / "run")[0] == 0


# ---- drivers and signs without a cluster -----------------------------------------------------------------------------


@pytest.fixture
def driven(job):
    """A run directory that says that it was submitted."""
    run = Run.create(Job.read(job), job.parent / "run").path
    driver_status.change(
        run, lambda _: True, submission="s", driver=None, state="submitted", exit_code=None, error=None,
                 working=None)  # fmt: skip
    return run


def test_a_run_cancelled_before_it_begins_does_not_begin(driven):
    driver.cancel(driven)
    assert driver.wait(driven)["exit_code"] == 75
    assert driver.drive(str(driven), "s") == 0
    assert not json.loads((driven / "manifest.json").read_text())["stages"]


def test_a_driver_of_an_older_submission_does_nothing(driven):
    driver_status.change(driven, lambda _: True, submission="t")
    assert driver.drive(str(driven), "s") == 0
    assert driver_status.read(driven)["state"] == "submitted"


def test_a_cancel_meant_for_an_older_submission_stops_nothing(driven):
    (driven / driver.STOP).write_text("an older one")
    driver.Heartbeat(driven, "d")("count", 1, 2)
    (driven / driver.STOP).write_text("s")
    with pytest.raises(TransientError, match="cancelled"):
        driver.Heartbeat(driven, "d")("count", 1, 2)


def test_a_lost_driver_that_lives_on_writes_no_more_and_stops(driven, monkeypatch):
    monkeypatch.setattr(driver_status, "BEAT_SECONDS", 0.05)
    driver_status.change(driven, lambda _: True, driver="old", state="running")
    with driver.Heartbeat(driven, "old") as old:
        old("count", 1, 2)
        assert eventually(lambda: driver_status.read(driven)["working"] == {"tasks": "count", "done": 1, "total": 2})
        driver_status.change(driven, lambda _: True, driver="new", working=None)
        assert eventually(lambda: old._taken)
        with pytest.raises(TransientError, match="another driver took over"):
            old("count", 2, 2)
    driver._end(driven, lambda found: found["driver"] == "old", TransientError("x", "y"))
    assert (driver_status.read(driven)["state"], driver_status.read(driven)["working"]) == ("running", None)


def test_silence_is_by_the_clock_of_who_listens(driven, monkeypatch):
    """A driver whose clock is an hour behind is heard by its next beat."""
    monkeypatch.setattr(driver_status, "BEAT_SECONDS", 0.2)
    now = time.time
    monkeypatch.setattr(driver_status.time, "time", lambda: now() - 3600)
    driver_status.change(driven, lambda _: True, driver="d", state="running")
    with driver.Heartbeat(driven, "d"):
        monkeypatch.setattr(driver_status, "SILENT_SECONDS", -1)  # this side's clock runs as well, so all is late
        assert eventually(lambda: not driver_status.read_status(driven)["silent"]), (
            "heard, if not in the first few beats"
        )
    assert driver_status.read_status(driven)["silent"]
