"""Stages give equal bytes and one charge in separate processes, on every scheduler and for every partitioning."""

import json
import multiprocessing
import shutil
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from dpscale.engine.schedulers import LocalEngine
from dpscale.job import Job
from dpscale.ledger import Ledger
from dpscale.runs import run, source, table as one_table
from dpscale.runs.runner import run_stage
from dpscale.runs.stage import STAGES
from tests.messages import refused
from tests.running import begin_table
from tests.runs.small import table, write_job, write_table
from tests.selection import mostly_slow

SEEDED = {"seed": 11, "memory": "1GiB"}


def measurement_bytes(run) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((run / "measurements").iterdir())}


def answer_bytes(run) -> dict[str, bytes]:
    return {str(p.relative_to(run)): p.read_bytes() for p in sorted((run / "answers").glob("*/*.parquet"))}


def ledger_releases(place) -> list[dict]:
    with Ledger.open(place / "ledger.sqlite") as ledger:
        return ledger.summary()["datasets"]["small"]["releases"]


@pytest.mark.slow
def test_stages_in_separate_processes_equal_one_run(place):
    """As in a DAG, each command is a new process that receives only the run directory."""
    path = write_job(place, engine=SEEDED)
    run = place / "run"

    def run_command(*arguments):
        subprocess.run([sys.executable, "-m", "dpscale", *map(str, arguments)], check=True)

    run_command("plan", path, "--run-dir", run)
    for stage in ("measure", "measure", "reconstruct", "report"):
        run_command("run", run, "--only", stage)
    together = place / "together"
    dp.run(path, together)
    assert measurement_bytes(run) == measurement_bytes(together)
    assert answer_bytes(run) == answer_bytes(together)
    assert len(ledger_releases(place)) == 1


@pytest.fixture(scope="module")
def seeded_run(tmp_path_factory):
    """Directory of a job and its synchronous run; other runs in the directory have the same release id."""
    folder = tmp_path_factory.mktemp("one")
    write_table(folder / "data", table())
    dp.run(write_job(folder, engine=SEEDED), folder / "one", scheduler="synchronous")
    return folder


@pytest.mark.parametrize("scheduler", mostly_slow(["threads", "processes", "synchronous"], {"threads"}))
def test_schedulers_give_same_bytes(seeded_run, scheduler):
    dp.run(seeded_run / "job.toml", seeded_run / scheduler, scheduler=scheduler)
    assert measurement_bytes(seeded_run / "one") == measurement_bytes(seeded_run / scheduler)
    assert answer_bytes(seeded_run / "one") == answer_bytes(seeded_run / scheduler)


@pytest.mark.parametrize("workers", [1, 4])
def test_worker_count_does_not_change_bytes(seeded_run, workers):
    run = begin_table(Job.read(seeded_run / "job.toml"), seeded_run / f"workers-{workers}")
    engine = LocalEngine("threads", workers=workers)
    for name in ("plan", "measure"):
        run_stage(run.run.stages[name], run.run, engine)
    assert measurement_bytes(seeded_run / "one") == measurement_bytes(run.path)


@pytest.mark.slow  # tests/cluster has the same of a cluster with TLS
def test_cluster_gives_same_bytes(seeded_run, cluster):
    dp.run(seeded_run / "job.toml", seeded_run / "client", client=cluster)
    dp.run(seeded_run / "job.toml", seeded_run / "address", scheduler=cluster.scheduler.address)
    assert (
        measurement_bytes(seeded_run / "one")
        == measurement_bytes(seeded_run / "client")
        == measurement_bytes(seeded_run / "address")
    )
    assert answer_bytes(seeded_run / "one") == answer_bytes(seeded_run / "client")


@pytest.fixture(scope="module")
def cluster():
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as workers,
        Client(workers) as client,
    ):
        yield client


@pytest.mark.parametrize(
    "data", [pytest.param({}, marks=pytest.mark.slow), {"privacy_unit": "person", "max_rows_per_unit": 2}]
)
def test_partitions_and_row_order_change_only_the_snapshot(tmp_path, monkeypatch, data):
    """Under one snapshot id, 3, 300 and 1 partitions and shuffled rows give identical measurements."""
    monkeypatch.setattr(source, "joint_digest", lambda *_, **__: "the same snapshot")
    found = []
    frame = table()
    for name, rows, partitions in [("a", frame, 3), ("b", frame.sample(frac=1, random_state=1), 300), ("c", frame, 1)]:
        place = tmp_path / name
        place.mkdir()
        write_table(place / "data", rows, partitions)
        settings = {"path": "data", "domain": "domain.toml", **data}
        # one run directory name and job: the release id of a seeded run follows the job
        path = write_job(place, engine=SEEDED, data=settings, privacy={"rho": 0.1, "dataset": "small"})
        for module in (one_table, run):
            monkeypatch.setattr(module, "job_digest", lambda *_, **__: "the same job, elsewhere")
        dp.run(path, place / "run", scheduler="threads")
        found.append(measurement_bytes(place / "run"))
    assert found[0] == found[1] == found[2]


def test_small_memory_gives_same_bytes(place):
    workload = [{"family": "prefix", "degree": 3}]
    dp.run(write_job(place, workload=workload, engine=SEEDED), place / "one", scheduler="synchronous")
    small = write_job(place, workload=workload, engine=SEEDED | {"memory": "6kB"})
    dp.run(small, place / "two", scheduler="synchronous")
    assert measurement_bytes(place / "one") == measurement_bytes(place / "two")


def test_changed_data_use_other_noise(place):
    path = write_job(place, engine=SEEDED)
    dp.run(path, place / "one")
    write_table(place / "data", table().iloc[:-1])
    with refused(dp.BudgetError):  # a seeded run's release follows its job's path
        dp.run(path, place / "refused")
    (place / "ledger.sqlite").unlink()
    dp.run(path, place / "two")
    assert not set(measurement_bytes(place / "one").values()) & set(measurement_bytes(place / "two").values())


def test_data_changed_during_run_are_refused(place):
    path = write_job(place)
    directory = begin_table(Job.read(path), place / "run")
    directory.update(snapshot="0" * 64)
    with refused(dp.DataError):
        dp.run(path, place / "run")


def test_json_commands_print_one_object(place):
    path = write_job(place)
    for arguments in (
        ["plan", path, "--json"],
        ["run", path, "--run-dir", place / "run", "--json"],
        ["job", "status", place / "run", "--json"],
        ["ledger", "show", place / "ledger.sqlite", "--json"],
        ["run", place / "run", "--only", "measure", "--json"],
    ):
        result = CliRunner().invoke(main, [str(a) for a in arguments])
        assert result.exit_code == 0, result.output
        assert isinstance(json.loads(result.stdout), dict)


def test_replaced_run_answers_from_own_measurements(place):
    """Both runs are in one process, as in a notebook or on a long-lived worker."""
    path = write_job(place, engine=SEEDED)
    dp.run(path, place / "run")
    before = answer_bytes(place / "run")
    for left in ("run", "ledger.sqlite"):
        shutil.rmtree(place / left) if left == "run" else (place / left).unlink()
    other = write_job(place, "other.toml", engine=SEEDED | {"seed": 12})
    found = answer_bytes(dp.run(other, place / "run").path)
    assert found.keys() == before.keys()
    assert all(found[name] != before[name] for name in found)


def test_status_distinguishes_killed_from_running(place):
    run = begin_table(Job.read(write_job(place)), place / "run")

    def read_states():
        return json.loads(CliRunner().invoke(main, ["job", "status", str(run.path), "--json"]).stdout)["states"]

    parent, child = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=hold_lock, args=(run, child), daemon=True)
    process.start()
    parent.recv()
    assert read_states() == {"plan": "running"}
    process.kill()
    process.join()
    assert read_states() == {"plan": "stopped"}
    assert "stopped, run the job again" in CliRunner().invoke(main, ["job", "status", str(run.path)]).stdout
    dp.run(run.path / "job.toml", run.path)
    assert set(read_states().values()) == {"done"}


def hold_lock(run, pipe):
    with run.run.locked(), run.run.record_stage(STAGES["plan"]):
        pipe.send("begun")
        signal.pause()


def test_deleted_answers_are_made_again(place):
    path = write_job(place, engine=SEEDED)
    dp.run(path, place / "run")
    before = answer_bytes(place / "run")
    shutil.rmtree(place / "run" / "answers")
    dp.run(path, place / "run")
    assert answer_bytes(place / "run") == before
    assert len(ledger_releases(place)) == 1


def test_planned_rmse_includes_contribution_bound(place):
    """The error printed by `dpscale plan` equals the error in the report, also if a unit has several rows."""
    errors = []
    for name, more in (("row", {}), ("unit", {"privacy_unit": "person", "max_rows_per_unit": 4})):
        path = write_job(place, f"{name}.toml", data={"path": "data", "domain": "domain.toml", **more})
        errors.append(json.loads(CliRunner().invoke(main, ["plan", str(path), "--json"]).stdout)["rmse"])
        dp.run(path, place / name)
        assert f"{errors[-1]:,.4g}" in (place / name / "report.html").read_text()
    assert errors[1] == pytest.approx(4 * errors[0])


@pytest.mark.slow  # tests/audit/test_empirical.py calls what the command calls
def test_selftest_passes():
    result = CliRunner().invoke(main, ["selftest", "--json"])
    assert result.exit_code == 0, result.output
    assert all(row["passed"] for row in json.loads(result.stdout))


def test_text_output_of_commands(place):
    path = write_job(place)
    result = CliRunner().invoke(main, ["run", str(path), "--run-dir", str(place / "run")])
    assert "report.html" in result.stdout
    shown = CliRunner().invoke(main, ["ledger", "show", str(place / "ledger.sqlite")])
    assert "small" in shown.stdout
    assert "released" in shown.stdout
    measurement_plan = CliRunner().invoke(main, ["plan", str(path)])
    for words in ("rmse", "tasks", "memory bytes", "passes over the data"):
        assert words in measurement_plan.stdout
    assert not list(place.glob("*/measurements/*.partial"))
