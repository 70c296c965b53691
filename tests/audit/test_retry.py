"""Retries, resumed runs, copies and edits give no second draw and no second charge, on any scheduler."""

import os
import shutil
import signal
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import dpscale as dp
from dpscale import BudgetError, DataError, JobError
from dpscale.counting.count import Layout, count
from dpscale.engine.schedulers import resolve
from dpscale.job import Job
from dpscale.ledger import Ledger
from dpscale.measurement import measure_layouts
from dpscale.privacy.secret import make_secret
from dpscale.records import Table
from dpscale.runs import run as runs, runner, source
from dpscale.runs.opening import open_part
from dpscale.runs.runner import run_stage
from dpscale.runs.stages import measure as measuring
from tests.audit.composition import audit_run, records_of
from tests.audit.small import frame, measurements, write
from tests.messages import refused
from tests.running import begin_table, run_stages

PRIVATE = {"scheduler": "synchronous"}


def make_planned_run(place, name="run", **changes):
    """Return a planned run."""
    run = begin_table(Job.read(write(place, **changes)), place / name)
    run_stage(run.run.stages["plan"], run.run, resolve(scheduler="synchronous"))
    return run


def measure(run, scheduler="synchronous"):
    run_stage(run.run.stages["measure"], run.run, resolve(scheduler=scheduler))


def ledger_releases(place):
    with Ledger.open(place / "ledger.sqlite") as ledger:
        return ledger.summary("small")["datasets"]["small"]["releases"]


def make_crash(monkeypatch, module, name):
    """Make a function of the stages raise, like a crash."""

    def crash(*arguments, **settings):
        raise KeyboardInterrupt(name)

    monkeypatch.setattr(module, name, crash)


def all_requests(released):
    """Return all measurements of the first decision, with and without a file."""
    elsewhere = replace(released, folder=released.folder / "none")
    return [
        replace(one, folder=released.folder) for one in elsewhere.missing(released.measurement_plan.first_decision())
    ]


def test_repeated_task_changes_no_file(tmp_path):
    run = make_planned_run(tmp_path)
    measure(run)
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in run.measurements_path.iterdir()}
    make_secret(run.secret_path, run.job.engine.seed)
    released = run.measurements
    orders = all_requests(released)
    table = Table.open(run.job.data.path, run.domain)
    layout = Layout(run.domain, released.measurement_plan.counted_sets)
    flat = count(layout, table.partitions)
    for one in orders:
        measure_layouts([layout], one, run.secret, flat)
    assert before == {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in run.measurements_path.iterdir()}
    assert len(ledger_releases(tmp_path)) == 1


@pytest.mark.parametrize("where", [(runner, "publish"), (runs, "destroy_secret")], ids=["publish", "destroy_secret"])
def test_lost_files_are_drawn_again_with_same_bytes_before_publishing(tmp_path, monkeypatch, where):
    run = make_planned_run(tmp_path, engine=PRIVATE)
    with monkeypatch.context() as patch:
        make_crash(patch, *where)
        with pytest.raises(KeyboardInterrupt):
            measure(run)
    whole = measurements(run.path)
    for name in list(whole)[::2]:
        (run.measurements_path / name).unlink()
    measure(run)
    assert measurements(run.path) == whole
    assert [row["state"] for row in ledger_releases(tmp_path)] == ["released"]
    assert not run.secret_path.exists()


def test_nothing_is_drawn_after_secret_is_destroyed(tmp_path, monkeypatch):
    run = make_planned_run(tmp_path, engine=PRIVATE)
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "publish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            measure(run)
    name, content = next(iter(measurements(run.path).items()))
    (run.measurements_path / name).unlink()
    with refused(JobError):
        measure(run)
    assert name not in measurements(run.path)
    (run.measurements_path / name).write_bytes(content)
    measure(run)
    assert [row["state"] for row in ledger_releases(tmp_path)] == ["released"]


@pytest.mark.parametrize("lost", [False, True])
def test_overwritten_secret_draws_nothing(tmp_path, monkeypatch, lost):
    """A kill between overwriting and removing the secret leaves 32 zeros, which is a known key."""
    run = make_planned_run(tmp_path, engine=PRIVATE)
    with monkeypatch.context() as patch:
        make_crash(patch, runs, "destroy_secret")
        with pytest.raises(KeyboardInterrupt):
            measure(run)
    run.secret_path.write_bytes(bytes(32))
    if not lost:
        measure(run)
        assert run.done("measure")
        return
    next(run.measurements_path.iterdir()).unlink()
    with refused(JobError):
        measure(run)


def test_changed_data_are_refused(tmp_path, monkeypatch):
    run = make_planned_run(tmp_path, engine=PRIVATE)
    with monkeypatch.context() as patch:
        make_crash(patch, measuring, "measure_layouts")
        with pytest.raises(KeyboardInterrupt):
            measure(run)
    frame(seed=9).to_parquet(tmp_path / "data/0.parquet", index=False)
    with refused(DataError):
        measure(run)
    assert measurements(run.path) == {}


def test_copied_planned_run_draws_once(tmp_path):
    """Without the ledger a planned directory and its copy would draw twice under one release id and one charge."""
    run = make_planned_run(tmp_path, engine=PRIVATE)
    shutil.copytree(run.path, tmp_path / "copy")
    measure(run)
    with refused(BudgetError):
        measure(open_part(tmp_path / "copy"))
    assert measurements(tmp_path / "copy") == {}
    assert len(ledger_releases(tmp_path)) == 1


def test_directory_copied_during_run_draws_the_same(tmp_path, monkeypatch):
    run = make_planned_run(tmp_path, engine=PRIVATE)
    with monkeypatch.context() as patch:
        make_crash(patch, measuring, "measure_layouts")
        with pytest.raises(KeyboardInterrupt):
            measure(run)
    shutil.copytree(run.path, tmp_path / "copy")
    measure(run)
    measure(open_part(tmp_path / "copy"))
    assert measurements(run.path) == measurements(tmp_path / "copy")
    assert len(ledger_releases(tmp_path)) == 1


UNITS = {"path": "data", "domain": "domain.toml", "privacy_unit": "unit", "max_rows_per_unit": 1}


@pytest.mark.parametrize("change", ["bound", "secret", "domain"])
def test_run_edited_after_charge_is_refused(tmp_path, monkeypatch, change):
    """Four rows per unit instead of one cost the same with other noise, which would be a second draw."""
    run = make_planned_run(tmp_path, data=UNITS, engine=PRIVATE)
    with monkeypatch.context() as patch:
        make_crash(patch, runner, "publish")
        with pytest.raises(KeyboardInterrupt):
            measure(run)
    before = measurements(run.path)
    if change == "bound":
        path = run.path / "job.toml"
        path.write_text(path.read_text().replace("max_rows_per_unit = 1", "max_rows_per_unit = 4"))
    elif change == "secret":
        run.secret_path.unlink()
        run.update(secret=None)
        next(run.measurements_path.iterdir()).unlink()
    else:
        path = run.path / "domain.toml"
        path.write_text(path.read_text().replace("size = 5", "size = 6"))
    with pytest.raises((BudgetError, JobError, DataError)):
        measure(open_part(run.path))
    assert set(measurements(run.path)) <= set(before)


def test_copy_with_other_data_is_refused(tmp_path):
    """The run is stopped while its data are hashed, copied and finished twice, with one more record the second time."""
    run = make_planned_run(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        make_crash(patch, source, "snapshot_of")
        with pytest.raises(KeyboardInterrupt):
            measure(run)
    shutil.copytree(run.path, tmp_path / "copy")
    measure(run)
    more = pd.concat([frame(), frame().iloc[:1]])
    more.to_parquet(tmp_path / "data/0.parquet", index=False)
    copy = open_part(tmp_path / "copy")
    assert copy.secret_path.exists()
    with refused(BudgetError):
        measure(copy)
    assert not measurements(copy.path)


@pytest.mark.parametrize("way", ["gone", "another"])
def test_resume_requires_ledger_of_first_start(tmp_path, way):
    """For example, the driver is restarted on another machine."""
    run = make_planned_run(tmp_path, engine=PRIVATE)
    with pytest.MonkeyPatch.context() as patch:
        make_crash(patch, runner, "publish")
        with pytest.raises(KeyboardInterrupt):
            measure(run)
    next(run.measurements_path.iterdir()).unlink()
    for path in tmp_path.glob("ledger.sqlite*"):
        path.unlink()
    if way == "another":
        Ledger.open(tmp_path / "ledger.sqlite").close()
    with refused(BudgetError):
        measure(run)
    assert way == "another" or not (tmp_path / "ledger.sqlite").exists()


def test_overwritten_manifest_is_another_charged_release(tmp_path, monkeypatch):
    """Two processes create one directory at once and the later manifest wins; every draw is still charged."""
    run = make_planned_run(tmp_path, engine=PRIVATE)

    ask = measuring.charge

    def replace_release(*arguments, **settings):
        run.update(release="f" * 32)
        return ask(*arguments, **settings)

    with monkeypatch.context() as patch:
        patch.setattr(measuring, "charge", replace_release)
        with refused(JobError):
            measure(run)
    measure(open_part(run.path))
    drawn = {record["release"] for path in run.measurements_path.iterdir() for record in records_of(path)}
    assert drawn
    assert drawn <= {row["release"] for row in ledger_releases(tmp_path)}


def test_run_files_contain_no_plain_hash_of_data(tmp_path, monkeypatch):
    """A plain hash is an exact function of all records, against which guesses of the last record could be tested."""
    from dpscale.records.origin import snapshot

    run = make_planned_run(tmp_path)
    measure(run)
    plain = snapshot(Table.open(run.job.data.path, run.domain).split())
    for path in run.path.rglob("*"):
        assert path.is_dir() or plain.encode() not in path.read_bytes()


def test_files_rewritten_between_readings_are_refused(tmp_path, monkeypatch):
    """Rows beyond the contribution bound are found in one reading and left out by position in the next."""
    run = make_planned_run(tmp_path, data=UNITS, engine=PRIVATE)
    found = source.rows_beyond

    def find_and_rewrite(*arguments):
        dropped = found(*arguments)
        frame().iloc[:200][::-1].to_parquet(tmp_path / "data/0.parquet", index=False)
        return dropped

    monkeypatch.setattr(source, "rows_beyond", find_and_rewrite)
    with pytest.raises(DataError):
        measure(run)


def test_unit_tables_rewritten_between_readings_are_refused(tmp_path, monkeypatch):
    """The noise belongs to a snapshot of the table that defines the units, and the bound must be that of its units."""
    homes = frame()[["unit"]].drop_duplicates().assign(home=lambda one: one.unit.astype(str))
    homes.to_parquet(tmp_path / "homes.parquet", index=False)
    hop = {"path": str(tmp_path / "homes.parquet"), "key": "unit", "unit": "home"}
    run = make_planned_run(tmp_path, data=UNITS | {"unit_through": [hop]}, engine=PRIVATE)
    read = source.read_unit_lookup

    def rewrite_and_read(*arguments):
        homes.assign(home="one").to_parquet(tmp_path / "homes.parquet", index=False)
        return read(*arguments)

    monkeypatch.setattr(source, "read_unit_lookup", rewrite_and_read)
    with refused(DataError):
        measure(run)
    assert run.manifest["privacy"] is None  # nothing is charged


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    place = tmp_path_factory.mktemp("schedulers")
    dp.run(write(place), place / "run")
    return place, measurements(place / "run")


@pytest.mark.parametrize("scheduler", ["threads", pytest.param("processes", marks=pytest.mark.slow)])
def test_schedulers_draw_the_same(reference, scheduler):
    place, expected = reference
    dp.run(write(place), place / scheduler, scheduler=scheduler)
    assert measurements(place / scheduler) == expected
    assert len(ledger_releases(place)) == 1


def test_cluster_that_loses_a_worker_draws_the_same(reference):
    """The first of two worker processes to write a measurement is killed before it reports the result."""
    from distributed import Client, LocalCluster

    place, expected = reference
    run = begin_table(Job.read(write(place)), place / "cluster")
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as workers,
        Client(workers) as client,
    ):
        run_stages(run, client=client, only="plan")
        client.run(kill_first_writer, place / "victim")
        run_stages(run, client=client, only="measure")
        assert int((place / "victim").read_text()) not in client.run(os.getpid).values()
    assert measurements(run.path) == expected
    assert len(ledger_releases(place)) == 1
    assert audit_run(run.path, place / "ledger.sqlite").sound


def kill_first_writer(victim):
    """Make the first worker that writes a measurement write its process id into `victim` and kill itself."""
    from dpscale.measurement import measurement

    write_values = measurement.write_values

    def write_and_exit(*arguments):
        write_values(*arguments)
        with suppress(FileExistsError), open(victim, "x") as file:
            print(os.getpid(), file=file, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    measurement.write_values = write_and_exit


def test_concurrent_writers_leave_a_complete_file(tmp_path, monkeypatch):
    """Workers in containers may share a process id, so a partial file must not be shared by process id."""
    from dpscale.measurement import value_files

    path, head, rows, replace = tmp_path / "m.parquet", {"release": "r"}, [("{}", np.arange(3.0))], os.replace

    def write_then_replace(one, other):
        monkeypatch.setattr(os, "replace", replace)
        value_files.write_values(path, head, rows)
        replace(one, other)

    monkeypatch.setattr(os, "replace", write_then_replace)
    value_files.write_values(path, head, rows)
    np.testing.assert_array_equal(value_files.ValueReader(head).read(path, 0, 3, "{}"), np.arange(3.0))
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.parquet"]
