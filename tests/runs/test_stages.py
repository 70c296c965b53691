"""Stage by stage, on every scheduler, in any partitioning: the same bytes, and one charge."""

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
from dpscale.engine import LocalEngine
from dpscale.job import Job
from dpscale.ledger import Ledger
from dpscale.runs import run as opening
from dpscale.runs.run import Run
from dpscale.runs.stages import STAGES, measure
from dpscale.runs.stages.runner import run_stage
from tests.runs.small import table, write_job, write_table

SEEDED = {"seed": 11, "memory": "1GiB"}


def bytes_of(run) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((run / "measurements").iterdir())}


def answers_of(run) -> dict[str, bytes]:
    return {str(p.relative_to(run)): p.read_bytes() for p in sorted((run / "answers").glob("*/*.parquet"))}


def releases(place) -> list[dict]:
    with Ledger.open(place / "ledger.sqlite") as ledger:
        return ledger.summary()["datasets"]["small"]["releases"]


def test_each_stage_as_its_own_process_continues_and_spends_once(place):
    """What a DAG does: every command is a new process that knows the run directory alone."""
    path = write_job(place, engine=SEEDED)
    run = place / "run"

    def command(*arguments):
        subprocess.run([sys.executable, "-m", "dpscale", *map(str, arguments)], check=True)

    command("plan", path, "--run-dir", run)
    for stage in ("measure", "measure", "reconstruct", "report"):
        command(stage, run)
    together = place / "together"
    dp.run(path, together)
    assert bytes_of(run) == bytes_of(together)
    assert answers_of(run) == answers_of(together)
    assert len(releases(place)) == 1


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """The folder of a job, with its run in this thread; other runs of it beside are the same release."""
    folder = tmp_path_factory.mktemp("one")
    write_table(folder / "data", table())
    dp.run(write_job(folder, engine=SEEDED), folder / "one", scheduler="synchronous")
    return folder


@pytest.mark.parametrize("scheduler", ["threads", "processes", "synchronous"])
def test_schedulers_give_the_same_bytes(one, scheduler):
    dp.run(one / "job.toml", one / scheduler, scheduler=scheduler)
    assert bytes_of(one / "one") == bytes_of(one / scheduler)
    assert answers_of(one / "one") == answers_of(one / scheduler)


@pytest.mark.parametrize("workers", [1, 4])
def test_the_number_of_workers_changes_no_byte(one, workers):
    run = Run.create(Job.read(one / "job.toml"), one / f"workers-{workers}")
    engine = LocalEngine("threads", workers=workers)
    for name in ("plan", "measure"):
        run_stage(STAGES[name], run, engine)
    assert bytes_of(one / "one") == bytes_of(run.path)


@pytest.mark.slow  # tests/cluster has the same of a cluster with TLS
def test_a_real_cluster_gives_the_same_bytes(one, cluster):
    dp.run(one / "job.toml", one / "client", client=cluster)
    dp.run(one / "job.toml", one / "address", scheduler=cluster.scheduler.address)
    assert bytes_of(one / "one") == bytes_of(one / "client") == bytes_of(one / "address")
    assert answers_of(one / "one") == answers_of(one / "client")


@pytest.fixture(scope="module")
def cluster():
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as workers,
        Client(workers) as client,
    ):
        yield client


@pytest.mark.parametrize("data", [{}, {"privacy_unit": "person", "max_rows_per_unit": 2}])
def test_partitions_and_row_order_change_nothing_but_the_snapshot(tmp_path, monkeypatch, data):
    """Identical counts and measurements for 3 or 300 partitions and shuffled rows, under one snapshot id."""
    monkeypatch.setattr(measure, "snapshot", lambda *_: "the same snapshot")
    found = []
    frame = table()
    for name, rows, partitions in [("a", frame, 3), ("b", frame.sample(frac=1, random_state=1), 300), ("c", frame, 1)]:
        place = tmp_path / name
        place.mkdir()
        write_table(place / "data", rows, partitions)
        settings = {"path": "data", "domain": "domain.toml", **data}
        # one run directory name and job: the release id of a seeded run follows the job
        path = write_job(place, engine=SEEDED, data=settings, privacy={"rho": 0.1, "dataset": "small"})
        monkeypatch.setattr(opening, "job_digest", lambda *_: "the same job, elsewhere")
        dp.run(path, place / "run", scheduler="threads")
        found.append(bytes_of(place / "run"))
    assert found[0] == found[1] == found[2]


def test_small_memory_means_more_passes_and_the_same_bytes(place):
    workload = [{"family": "prefix", "degree": 3}]
    dp.run(write_job(place, workload=workload, engine=SEEDED), place / "one", scheduler="synchronous")
    small = write_job(place, workload=workload, engine=SEEDED | {"memory": "6kB"})
    dp.run(small, place / "two", scheduler="synchronous")
    assert bytes_of(place / "one") == bytes_of(place / "two")


def test_changed_data_never_meets_an_old_stream(place):
    path = write_job(place, engine=SEEDED)
    dp.run(path, place / "one")
    write_table(place / "data", table().iloc[:-1])
    with pytest.raises(dp.BudgetError, match="on the ledger"):  # a seeded run's release follows its job's path
        dp.run(path, place / "refused")
    (place / "ledger.sqlite").unlink()
    dp.run(path, place / "two")
    assert not set(bytes_of(place / "one").values()) & set(bytes_of(place / "two").values())


def test_data_that_changed_in_mid_run_is_refused(place):
    path = write_job(place)
    directory = Run.create(Job.read(path), place / "run")
    directory.update(snapshot="0" * 64)
    with pytest.raises(dp.DataError, match="changed since"):
        dp.run(path, place / "run")


def test_json_commands_print_one_object(place):
    path = write_job(place)
    for arguments in (
        ["plan", path, "--json"],
        ["run", path, "--run-dir", place / "run", "--json"],
        ["status", place / "run", "--json"],
        ["ledger", "show", place / "ledger.sqlite", "--json"],
        ["measure", place / "run", "--json"],
    ):
        result = CliRunner().invoke(main, [str(a) for a in arguments])
        assert result.exit_code == 0, result.output
        assert isinstance(json.loads(result.stdout), dict)


def test_another_run_where_one_was_answers_from_its_own_measurements(place):
    """In one process, as in a notebook or on workers that live long."""
    path = write_job(place, engine=SEEDED)
    dp.run(path, place / "run")
    before = answers_of(place / "run")
    for left in ("run", "ledger.sqlite"):
        shutil.rmtree(place / left) if left == "run" else (place / left).unlink()
    other = write_job(place, "other.toml", engine=SEEDED | {"seed": 12})
    found = answers_of(dp.run(other, place / "run").path)
    assert found.keys() == before.keys()
    assert all(found[name] != before[name] for name in found)


def test_status_tells_a_killed_run_from_one_at_work(place):
    run = Run.create(Job.read(write_job(place)), place / "run")

    def states():
        return json.loads(CliRunner().invoke(main, ["status", str(run.path), "--json"]).stdout)["states"]

    parent, child = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=hang, args=(run, child), daemon=True)
    process.start()
    parent.recv()
    assert states() == {"plan": "running"}
    process.kill()
    process.join()
    assert states() == {"plan": "stopped"}
    assert "stopped, run the job again" in CliRunner().invoke(main, ["status", str(run.path)]).stdout
    dp.run(run.path / "job.toml", run.path)
    assert set(states().values()) == {"done"}


def hang(run, pipe):
    with run.locked(), run.record_stage(STAGES["plan"]):
        pipe.send("begun")
        signal.pause()


def test_what_was_removed_is_made_again(place):
    path = write_job(place, engine=SEEDED)
    dp.run(path, place / "run")
    before = answers_of(place / "run")
    shutil.rmtree(place / "run" / "answers")
    dp.run(path, place / "run")
    assert answers_of(place / "run") == before
    assert len(releases(place)) == 1


def test_the_expected_error_is_that_of_the_units(place):
    """What plan tells before is what the answers carry after, also where a unit may hold several rows."""
    told = []
    for name, more in (("row", {}), ("unit", {"privacy_unit": "person", "max_rows_per_unit": 4})):
        path = write_job(place, f"{name}.toml", data={"path": "data", "domain": "domain.toml", **more})
        told.append(json.loads(CliRunner().invoke(main, ["plan", str(path), "--json"]).stdout)["rmse"])
        dp.run(path, place / name)
        assert f"{told[-1]:,.4g}" in (place / name / "report.html").read_text()
    assert told[1] == pytest.approx(4 * told[0])


@pytest.mark.slow  # tests/audit/test_empirical.py calls what the command calls
def test_selftest_passes_here():
    result = CliRunner().invoke(main, ["selftest", "--json"])
    assert result.exit_code == 0, result.output
    assert all(row["passed"] for row in json.loads(result.stdout))


def test_texts_for_people(place):
    path = write_job(place)
    result = CliRunner().invoke(main, ["run", str(path), "--run-dir", str(place / "run")])
    assert "report.html" in result.stdout
    shown = CliRunner().invoke(main, ["ledger", "show", str(place / "ledger.sqlite")])
    assert "small" in shown.stdout
    assert "released" in shown.stdout
    measurement_plan = CliRunner().invoke(main, ["plan", str(path)])
    for told in ("rmse", "tasks", "memory bytes", "passes over the data"):
        assert told in measurement_plan.stdout
    assert not list(place.glob("*/measurements/*.partial"))
