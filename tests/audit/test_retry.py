"""Retries, resumption, copies and edits: never a second draw, on any scheduler, and never a second charge."""

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
from dpscale.audit.composition import audit_run, records_of
from dpscale.counting.count import Layout, count
from dpscale.engine import resolve
from dpscale.job import Job
from dpscale.ledger import Ledger
from dpscale.measurement import measure_layouts
from dpscale.privacy.secret import make_secret
from dpscale.records import Table
from dpscale.runs.run import Run
from dpscale.runs.stages import STAGES, budget, measure as measuring
from dpscale.runs.stages.runner import run_stage, run_stages
from tests.audit.small import frame, measurements, write

PRIVATE = {"scheduler": "synchronous"}


def begun(place, name="run", **changes):
    """A planned run directory."""
    run = Run.create(Job.read(write(place, **changes)), place / name)
    run_stage(STAGES["plan"], run, resolve(scheduler="synchronous"))
    return run


def measure(run, scheduler="synchronous"):
    run_stage(STAGES["measure"], run, resolve(scheduler=scheduler))


def charges(place):
    with Ledger.open(place / "ledger.sqlite") as ledger:
        return ledger.summary("small")["datasets"]["small"]["releases"]


def crashing(monkeypatch, module, name):
    """Make a function of the stages fail, as a crash there would."""

    def crash(*arguments, **settings):
        raise KeyboardInterrupt(name)

    monkeypatch.setattr(module, name, crash)


def every_measurement(released):
    """All of the first decision, whether there is a file or not."""
    elsewhere = replace(released, folder=released.folder / "none")
    return [
        replace(one, folder=released.folder) for one in elsewhere.missing(released.measurement_plan.first_decision())
    ]


def test_a_task_run_again_changes_no_file(tmp_path):
    run = begun(tmp_path)
    measure(run)
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in run.measurements_path.iterdir()}
    make_secret(run.secret_path, run.job.engine.seed)
    released = run.measurements
    orders = every_measurement(released)
    table = Table.open(run.job.data.path, run.domain)
    layout = Layout(run.domain, released.measurement_plan.counted_sets)
    flat = count(layout, table.partitions)
    for one in orders:
        measure_layouts([layout], one, run.secret, flat)
    assert before == {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in run.measurements_path.iterdir()}
    assert len(charges(tmp_path)) == 1


@pytest.mark.parametrize(
    "where", [(measuring, "publish"), (budget, "destroy_secret")], ids=["publish", "destroy_secret"]
)
def test_lost_files_are_drawn_again_byte_by_byte_while_the_secret_lives(tmp_path, monkeypatch, where):
    run = begun(tmp_path, engine=PRIVATE)
    with monkeypatch.context() as patch:
        crashing(patch, *where)
        with pytest.raises(KeyboardInterrupt):
            measure(run)
    whole = measurements(run.path)
    for name in list(whole)[::2]:
        (run.measurements_path / name).unlink()
    measure(run)
    assert measurements(run.path) == whole
    assert [row["state"] for row in charges(tmp_path)] == ["released"]
    assert not run.secret_path.exists()


def test_after_its_destruction_nothing_is_drawn(tmp_path, monkeypatch):
    run = begun(tmp_path, engine=PRIVATE)
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "publish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            measure(run)
    name, kept = next(iter(measurements(run.path).items()))
    (run.measurements_path / name).unlink()
    with pytest.raises(JobError, match="secret of the release is lost"):
        measure(run)
    assert name not in measurements(run.path)
    (run.measurements_path / name).write_bytes(kept)
    measure(run)
    assert [row["state"] for row in charges(tmp_path)] == ["released"]


@pytest.mark.parametrize("lost", [False, True])
def test_a_half_destroyed_secret_draws_nothing(tmp_path, monkeypatch, lost):
    """Killed between the overwriting and the removal of the secret, 32 zeros are left: a key that anyone knows."""
    run = begun(tmp_path, engine=PRIVATE)
    with monkeypatch.context() as patch:
        crashing(patch, budget, "destroy_secret")
        with pytest.raises(KeyboardInterrupt):
            measure(run)
    run.secret_path.write_bytes(bytes(32))
    if not lost:
        measure(run)
        assert run.done("measure")
        return
    next(run.measurements_path.iterdir()).unlink()
    with pytest.raises(JobError, match="differs from the one at the start"):
        measure(run)


def test_changed_data_are_refused(tmp_path, monkeypatch):
    run = begun(tmp_path, engine=PRIVATE)
    with monkeypatch.context() as patch:
        crashing(patch, measuring, "measure_layouts")
        with pytest.raises(KeyboardInterrupt):
            measure(run)
    frame(seed=9).to_parquet(tmp_path / "data/0.parquet", index=False)
    with pytest.raises(DataError, match="changed since"):
        measure(run)
    assert measurements(run.path) == {}


def test_a_copied_run_directory_draws_once(tmp_path):
    """A planned directory copied before its first draw would draw twice under one release id and one charge."""
    run = begun(tmp_path, engine=PRIVATE)
    shutil.copytree(run.path, tmp_path / "copy")
    measure(run)
    with pytest.raises(BudgetError, match="on the ledger with another plan"):
        measure(Run(tmp_path / "copy"))
    assert measurements(tmp_path / "copy") == {}
    assert len(charges(tmp_path)) == 1


def test_a_directory_copied_in_mid_run_draws_the_same(tmp_path, monkeypatch):
    run = begun(tmp_path, engine=PRIVATE)
    with monkeypatch.context() as patch:
        crashing(patch, measuring, "measure_layouts")
        with pytest.raises(KeyboardInterrupt):
            measure(run)
    shutil.copytree(run.path, tmp_path / "copy")
    measure(run)
    measure(Run(tmp_path / "copy"))
    assert measurements(run.path) == measurements(tmp_path / "copy")
    assert len(charges(tmp_path)) == 1


UNITS = {"path": "data", "domain": "domain.toml", "privacy_unit": "unit", "max_rows_per_unit": 1}


@pytest.mark.parametrize("change", ["bound", "secret", "domain"])
def test_a_run_edited_after_its_charge_is_refused(tmp_path, monkeypatch, change):
    """Four rows a unit instead of one cost the same and draw other noise: a second draw, were it not refused."""
    run = begun(tmp_path, data=UNITS, engine=PRIVATE)
    with monkeypatch.context() as patch:
        crashing(patch, measuring, "publish")
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
        measure(Run(run.path))
    assert set(measurements(run.path)) <= set(before)


def test_a_copy_that_meets_other_data_is_refused(tmp_path):
    """Stopped while its data were hashed, copied, and finished twice, with a record more the second time."""
    run = begun(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        crashing(patch, measuring, "snapshot_of")
        with pytest.raises(KeyboardInterrupt):
            measure(run)
    shutil.copytree(run.path, tmp_path / "copy")
    measure(run)
    more = pd.concat([frame(), frame().iloc[:1]])
    more.to_parquet(tmp_path / "data/0.parquet", index=False)
    copy = Run(tmp_path / "copy")
    assert copy.secret_path.exists()
    with pytest.raises(BudgetError, match="on the ledger"):
        measure(copy)
    assert not measurements(copy.path)


@pytest.mark.parametrize("way", ["gone", "another"])
def test_a_run_keeps_to_the_ledger_that_it_was_begun_with(tmp_path, way):
    """As where its driver is started again on another machine."""
    run = begun(tmp_path, engine=PRIVATE)
    with pytest.MonkeyPatch.context() as patch:
        crashing(patch, measuring, "publish")
        with pytest.raises(KeyboardInterrupt):
            measure(run)
    next(run.measurements_path.iterdir()).unlink()
    for path in tmp_path.glob("ledger.sqlite*"):
        path.unlink()
    if way == "another":
        Ledger.open(tmp_path / "ledger.sqlite").close()
    with pytest.raises(BudgetError, match="no longer exists" if way == "gone" else "not the ledger"):
        measure(run)
    assert way == "another" or not (tmp_path / "ledger.sqlite").exists()


def test_a_manifest_written_over_is_another_release(tmp_path, monkeypatch):
    """Two processes that create one directory at once: the later manifest wins. Every draw is still paid for."""
    run = begun(tmp_path, engine=PRIVATE)

    def overtaken(*arguments):
        run.update(release="f" * 32)

    with monkeypatch.context() as patch:
        patch.setattr(measuring, "check_noise_key", overtaken)
        measure(run)
    drawn = {record["release"] for path in run.measurements_path.iterdir() for record in records_of(path)}
    assert drawn <= {row["release"] for row in charges(tmp_path)}


def test_the_manifest_and_the_files_tell_no_hash_of_the_data(tmp_path, monkeypatch):
    """A plain hash is an exact function of all records: whoever knows all but one of them could try both."""
    from dpscale.records.origin import snapshot

    run = begun(tmp_path)
    measure(run)
    plain = snapshot(Table.open(run.job.data.path, run.domain).split())
    for path in run.path.rglob("*"):
        assert path.is_dir() or plain.encode() not in path.read_bytes()


def test_files_rewritten_between_two_readings_are_refused(tmp_path, monkeypatch):
    """Rows beyond a unit's bound are found in one reading and left out by place in the next."""
    run = begun(tmp_path, data=UNITS, engine=PRIVATE)
    found = measuring.rows_beyond

    def meanwhile(*arguments):
        dropped = found(*arguments)
        frame().iloc[:200][::-1].to_parquet(tmp_path / "data/0.parquet", index=False)
        return dropped

    monkeypatch.setattr(measuring, "rows_beyond", meanwhile)
    with pytest.raises(DataError):
        measure(run)


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
    assert len(charges(place)) == 1


def test_a_cluster_that_loses_a_worker_while_measuring_draws_the_same(reference):
    """Two worker processes; the first that has written a measurement is killed before it has said so."""
    from distributed import Client, LocalCluster

    place, expected = reference
    run = Run.create(Job.read(write(place)), place / "cluster")
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as workers,
        Client(workers) as client,
    ):
        run_stages(run, client=client, only="plan")
        client.run(die_once, place / "victim")
        run_stages(run, client=client, only="measure")
        assert int((place / "victim").read_text()) not in client.run(os.getpid).values()
    assert measurements(run.path) == expected
    assert len(charges(place)) == 1
    assert audit_run(run.path, place / "ledger.sqlite").sound


def die_once(victim):
    """On a worker: whoever writes a measurement first writes its process id into `victim` and kills itself."""
    from dpscale.measurement import measurement

    write_values = measurement.write_values

    def deadly(*arguments):
        write_values(*arguments)
        with suppress(FileExistsError), open(victim, "x") as file:
            print(os.getpid(), file=file, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    measurement.write_values = deadly


def test_two_writers_of_one_measurement_leave_a_whole_file(tmp_path, monkeypatch):
    """Workers in containers may share a process id: neither may write into the other's half made file."""
    from dpscale.measurement import value_files

    path, head, rows, replace = tmp_path / "m.parquet", {"release": "r"}, [("{}", np.arange(3.0))], os.replace

    def meanwhile(one, other):
        monkeypatch.setattr(os, "replace", replace)
        value_files.write_values(path, head, rows)
        replace(one, other)

    monkeypatch.setattr(os, "replace", meanwhile)
    value_files.write_values(path, head, rows)
    np.testing.assert_array_equal(value_files.ValueReader(head).read(path, 0, 3, "{}"), np.arange(3.0))
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.parquet"]
