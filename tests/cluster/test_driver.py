"""`dpscale job submit`, `wait`, `cancel` and `end`: the driver is a task of the cluster and survives the loss of
client, worker or scheduler.
"""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import tomllib
from contextlib import suppress
from types import SimpleNamespace

import dask
import pandas as pd
import pytest
import tomli_w
from click.testing import CliRunner

import dpscale as dp
from dpscale import TransientError
from dpscale.__main__ import main
from dpscale.cli import driver
from dpscale.engine.admission import installed_versions
from dpscale.engine.schedulers import resolve
from dpscale.job import Job
from dpscale.ledger import Ledger
from tests.audit.small import measurements, write
from tests.cluster.conftest import ROOT
from tests.cluster.machines import kill, machines
from tests.cluster.released import assert_same_release, charge_states
from tests.cluster.troubles import disable_plots, slow_down
from tests.cluster.waiting import eventually
from tests.links import small as shop
from tests.messages import refused
from tests.running import begin_table, run_stages


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """Directory of a run of the job in this process."""
    job = write(tmp_path_factory.mktemp("expected"))
    directory = begin_table(Job.read(job), job.parent / "expected")
    run_stages(directory)
    return directory.path


@pytest.fixture
def job(expected):
    """The same job with a new ledger and no run, because the release id of a seeded run depends on the job and its
    path.
    """
    for path in expected.parent.glob("ledger.sqlite*"):
        path.unlink()
    assert eventually(lambda: remove_run(expected.parent / "run"))
    return expected.parent / "job.toml"


def remove_run(run):
    """Remove a run directory and return whether it is removed; a cancelled driver may still write its status."""
    shutil.rmtree(run, ignore_errors=True)
    return not run.exists()


@pytest.fixture
def client(client):
    """The client of the cluster, whose workers write reports without plots."""
    client.run(disable_plots)
    return client


def run_command(*arguments):
    """Return the exit code, stdout and stderr of a command."""
    found = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert found.exception is None or isinstance(found.exception, SystemExit), found.exception
    return found.exit_code, found.stdout, found.stderr


def submit(cluster, job, run="run"):
    code, out, message = run_command(
        "job", "submit", job, "--run-dir", job.parent / run, "--scheduler", address(cluster), "--json"
    )
    assert code == 0, message
    return json.loads(out)


def address(cluster):
    return getattr(cluster, "scheduler_address", None) or cluster.address


def has_reserved_charge(folder):
    with suppress(sqlite3.OperationalError):  # made, and not filled yet
        return list(folder.glob("*.sqlite")) and charge_states(folder) == ["reserved"]


def wait_for_measurement(run):
    return eventually(lambda: list((run / "measurements").glob("*.parquet")))


def test_submitted_job_finishes_without_client(cluster, client, secured, job, expected):
    run, environment = job.parent / "run", os.environ | {"DASK_CONFIG": str(secured), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "dpscale", "job", "submit", job, "--run-dir", run, "--scheduler", address(cluster)]
    done = subprocess.run(list(map(str, command)), env=environment, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"dpscale job wait {run}" in done.stdout
    assert run_command("job", "wait", run) == (0, f"report: {run / 'report.html'}\n", "")
    assert "done" in run_command("job", "status", run)[1]
    assert json.loads(run_command("job", "status", run, "--json")[1])["driver"]["exit_code"] == 0
    assert_same_release(run, expected)


def test_driver_killed_with_worker_is_restarted(cluster, client, slow, job, expected):
    run = job.parent / "run"
    submit(cluster, job)
    assert wait_for_measurement(run)
    first = driver.read(run)
    os.kill(first["pid"], signal.SIGKILL)
    assert run_command("job", "wait", run, "--seconds", 500)[0] == 0
    second = driver.read(run)
    assert first["submission"] == second["submission"]
    assert first["driver"] != second["driver"]
    assert_same_release(run, expected)


def test_cancelled_run_stops_at_next_task_and_can_be_resubmitted(cluster, client, slow, job, expected):
    run = job.parent / "run"
    submit(cluster, job)
    assert wait_for_measurement(run)
    run_command("job", "cancel", run)
    code, _, message = run_command("job", "wait", run, "--seconds", 30)
    assert code == 75
    assert message == "dpscale: run: cancelled; submit it again to resume\n"
    assert json.loads((run / "manifest.json").read_text())["stages"]["measure"]["state"] == "cancelled"
    assert driver.read(run)["state"] == "cancelled"
    assert "measure: cancelled, submit it again to resume" in run_command("job", "status", run)[1]
    assert "driver: cancelled" in run_command("job", "status", run)[1]
    assert "working" in submit(cluster, job)
    assert run_command("job", "wait", run, "--seconds", 500)[0] == 0
    assert_same_release(run, expected)


def test_run_is_ended_only_after_cancel(cluster, client, slow, job, expected):
    run = job.parent / "run"
    client.run(slow_down, 5.0)
    submit(cluster, job)
    assert eventually(lambda: has_reserved_charge(job.parent))  # what is drawn is in no file for five seconds
    code, _, message = run_command("job", "end", run)
    assert code == 75
    assert "dpscale job cancel" in message
    run_command("job", "cancel", run)
    assert run_command("job", "wait", run, "--seconds", 30)[0] == 75
    assert run_command("job", "end", run)[1].startswith("abandoned: the whole charge is spent")
    code, _, message = run_command("job", "submit", job, "--run-dir", run, "--scheduler", address(cluster))
    assert code == 2
    assert "was ended on" in message
    assert charge_states(job.parent) == ["reserved"]


def test_submit_during_cancel_continues_run(cluster, client, slow, job, expected):
    run = job.parent / "run"
    first = submit(cluster, job)
    assert wait_for_measurement(run)
    run_command("job", "cancel", run)
    assert submit(cluster, job)["submission"] != first["submission"]
    assert run_command("job", "wait", run, "--seconds", 500)[0] == 0
    assert_same_release(run, expected)


def test_data_error_is_reported_by_wait(cluster, client, tmp_path):
    job = write(tmp_path)
    for path in (job.parent / "data").glob("*.parquet"):
        pd.read_parquet(path).drop(columns="c").to_parquet(path, index=False)
    submit(cluster, job)
    code, _, message = run_command("job", "wait", job.parent / "run", "--seconds", 30)
    assert code == 2
    assert message.startswith("dpscale: ")
    assert "'c'" in message or " c" in message
    assert len(message.strip().splitlines()) == 1


def test_unexpected_error_reports_only_its_type(tmp_path):
    driver.change(tmp_path, lambda _: True, submission="s", driver="d", state="running")
    assert driver._end(tmp_path, lambda _: True, ValueError("31337 rows")) == 70
    message = "the driver failed with ValueError; set DPSCALE_DEBUG=1 to see the cause (its output is private)"
    assert driver.read(tmp_path)["error"] == message
    assert "31337" not in (tmp_path / driver.FILE).read_text()


def test_partial_status_of_killed_driver_is_removed(tmp_path):
    (tmp_path / ".driver.json.01.partial").write_bytes(b"{")
    (tmp_path / ".manifest.json.01.partial").write_bytes(b"{")
    driver.change(tmp_path, lambda _: True, submission="s", driver="d", state="running")
    assert sorted(path.name for path in tmp_path.glob("*.partial")) == [".manifest.json.01.partial"]


def test_refused_budget_gives_exit_code_3(cluster, client, job):
    with Ledger.open(job.parent / "ledger.sqlite") as ledger:
        ledger.set_cap("small", 1e-6, 1e-9)
    submit(cluster, job)
    code, _, message = run_command("job", "wait", job.parent / "run", "--seconds", 30)
    assert code == 3
    assert "cap" in message
    assert not measurements(job.parent / "run")


def test_repeated_submit_runs_once(cluster, client, slow, job, expected):
    """Three submissions at the same time and one during the run give one run."""
    run, found = begin_table(Job.read(job), job.parent / "run"), []
    threads = [threading.Thread(target=lambda: found.append(driver.submit(run.run, resolve(client)))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wait_for_measurement(run.path)
    assert submit(cluster, job)["state"] == "running"
    assert len({one["submission"] for one in found} | {driver.read(run.path)["submission"]}) == 1
    assert run_command("job", "wait", run.path, "--seconds", 500)[0] == 0
    starts = [json.loads(line)["stage"] for line in (run.path / "log.jsonl").read_text().splitlines()]
    assert starts.count("measure") == 2  # its start and its end
    assert_same_release(run.path, expected)


def test_two_runs_share_one_ledger(cluster, client, job, expected):
    other = write(job.parent, "other.toml", workload=[{"family": "prefix", "degree": 1}])
    shutil.rmtree(job.parent / "two", ignore_errors=True)
    submit(cluster, job)
    submit(cluster, other, "two")
    assert [run_command("job", "wait", job.parent / name, "--seconds", 500)[0] for name in ("run", "two")] == [0, 0]
    assert measurements(job.parent / "run") == measurements(expected)
    assert charge_states(job.parent) == ["released"] * 2


@pytest.mark.slow
def test_lost_scheduler_is_reported_and_run_can_be_resubmitted(
    cluster, client, tmp_path, secured, job, expected, monkeypatch
):
    run = job.parent / "run"
    with machines(tmp_path, secured, DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT="5s") as made:
        scheduler = made.scheduler()
        made.worker("--preload", "tests.cluster.slow_store")
        with dask.config.set({"dpscale.worker-wait": 60}):
            submit(made, job)
        assert wait_for_measurement(run)
        kill(scheduler)
        with monkeypatch.context() as patch:
            patch.setattr(driver, "SILENT_SECONDS", 4)
            code, _, message = run_command("job", "wait", run, "--seconds", 500)
            assert code == 75
            assert "no heartbeat" in message or "connection to the Dask scheduler was lost" in message, message
            assert eventually(lambda: driver.read_status(run)["state"] == "failed" or driver.read_status(run)["silent"])
            submit(cluster, job)  # later the lost driver would count as at work for 60 s
    done = run_command("job", "wait", run, "--seconds", 500)
    assert done[0] == 0, done
    assert_same_release(run, expected)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a mount of its own")
def test_submit_refuses_workers_without_run_directory(tmp_path, secured):
    job = write(tmp_path / "hidden")
    with machines(tmp_path, secured) as made:
        made.scheduler()
        script = f'mount -t tmpfs none {job.parent} && exec "$@"'
        made.worker("--no-nanny", within=["unshare", "-m", "sh", "-c", script, "sh"])
        with dask.config.set({"dpscale.worker-wait": 60}):
            code, _, message = run_command(
                "job", "submit", job, "--run-dir", job.parent / "run", "--scheduler", made.address
            )
    assert code == 2
    assert "run directory: worker tls://" in message
    assert "shared file system" in message
    assert not driver.read(job.parent / "run")


def test_submit_refuses_ledger_on_network_file_system_of_workers(cluster, client, tmp_path):
    job = write(tmp_path)

    def set_mounts(mounts):
        import importlib

        from dpscale.ledger import location as ledgerplace

        importlib.reload(ledgerplace)
        if mounts:
            ledgerplace.mounts = lambda: mounts

    client.run(set_mounts, [("/", "ext4"), (str(tmp_path), "nfs4")])
    try:
        code, _, message = run_command(
            "job", "submit", job, "--run-dir", tmp_path / "run", "--scheduler", address(cluster)
        )
    finally:
        client.run(set_mounts, None)
    assert code == 2
    assert message.startswith("dpscale: privacy.ledger: ")
    assert "(nfs4) at worker tls://" in message
    assert not driver.read(tmp_path / "run")


def test_wait_refuses_run_without_submission(job):
    begin_table(Job.read(job), job.parent / "run")
    assert run_command("job", "wait", job.parent / "run")[0] == 2
    assert run_command("job", "cancel", job.parent / "run")[0] == 0


# ---- drivers and signs without a cluster -----------------------------------------------------------------------------


@pytest.fixture
def submitted_run(job):
    """A run directory marked as submitted."""
    run = begin_table(Job.read(job), job.parent / "run").path
    driver.change(
        run, lambda _: True, submission="s", driver=None, state="submitted", exit_code=None, error=None,
                 working=None)  # fmt: skip
    return run


def test_run_cancelled_before_start_is_not_started(submitted_run):
    driver.cancel(submitted_run)
    assert driver.wait(submitted_run)["exit_code"] == 75
    assert driver.drive(str(submitted_run), "s", installed_versions()) == 0
    assert not json.loads((submitted_run / "manifest.json").read_text())["stages"]


def test_driver_of_older_submission_does_nothing(submitted_run):
    driver.change(submitted_run, lambda _: True, submission="t")
    assert driver.drive(str(submitted_run), "s", installed_versions()) == 0
    assert driver.read(submitted_run)["state"] == "submitted"


def test_cancel_of_older_submission_is_ignored(submitted_run):
    (submitted_run / driver.STOP).write_text("an older one")
    driver.Heartbeat(submitted_run, "d")("count", 1, 2)
    (submitted_run / driver.STOP).write_text("s")
    with refused(TransientError):
        driver.Heartbeat(submitted_run, "d")("count", 1, 2)


def test_replaced_driver_stops_writing(submitted_run, monkeypatch):
    monkeypatch.setattr(driver, "BEAT_SECONDS", 0.05)
    driver.change(submitted_run, lambda _: True, driver="old", state="running")
    with driver.Heartbeat(submitted_run, "old") as old:
        old("count", 1, 2)
        assert eventually(lambda: driver.read(submitted_run)["working"] == {"tasks": "count", "done": 1, "total": 2})
        driver.change(submitted_run, lambda _: True, driver="new", working=None)
        assert eventually(lambda: old._taken)
        with refused(TransientError):
            old("count", 2, 2)
    driver._end(submitted_run, lambda found: found["driver"] == "old", TransientError("x", "y"))
    assert (driver.read(submitted_run)["state"], driver.read(submitted_run)["working"]) == (
        "running",
        None,
    )


def test_silence_is_measured_by_local_clock(submitted_run, monkeypatch):
    """A driver whose clock is an hour behind is not silent once its next heartbeat arrives."""
    monkeypatch.setattr(driver, "BEAT_SECONDS", 0.2)
    # not `time.time` itself: the scheduler in this process would set timers an hour late and never send to its clients
    late = SimpleNamespace(time=lambda: time.time() - 3600, monotonic=time.monotonic, sleep=time.sleep)
    monkeypatch.setattr(driver, "time", late)
    driver.change(submitted_run, lambda _: True, driver="d", state="running")
    with driver.Heartbeat(submitted_run, "d"):
        monkeypatch.setattr(driver, "SILENT_SECONDS", -1)  # this side's clock runs as well, so all is late
        assert eventually(lambda: not driver.read_status(submitted_run)["silent"]), (
            "heard, if not in the first few beats"
        )
    assert driver.read_status(submitted_run)["silent"]


@pytest.mark.slow
def test_submitted_job_of_several_tables_finishes_and_is_waited_for(cluster, client, tmp_path):
    job = shop.write_job(tmp_path)
    content = tomllib.loads(job.read_text())
    content["engine"].pop("scheduler")
    job.write_text(tomli_w.dumps(content))
    submitted = submit(cluster, job)
    assert run_command("job", "wait", submitted["run_dir"])[0] == 0
    status = json.loads(run_command("job", "status", submitted["run_dir"], "--json")[1])
    assert set(status["states"].values()) == {"done"}
    assert (status["driver"]["exit_code"], set(status["tables"])) == (0, {"persons", "orders"})
    assert charge_states(tmp_path) == ["released"]
    local = dp.run(job, tmp_path / "local", scheduler="threads")  # the same seed and job: the same draws
    for table in ("persons", "orders"):
        assert measurements(tmp_path / "run" / "tables" / table) == measurements(local.path / "tables" / table)
    assert run_command("job", "cancel", tmp_path / "run")[0] == 0  # nothing is left to cancel
