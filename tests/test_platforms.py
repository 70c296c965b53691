"""Windows, macOS and containers, simulated on Linux: what processes lack, quotas, drives, names without case."""

import builtins
import io
import mmap
import ntpath
import os
import subprocess
import sys
from pathlib import Path

import dask.system
import numpy as np
import psutil
import pytest

import dpscale as dp
from dpscale.engine.counting import FACTOR
from dpscale.engine.schedulers import LocalEngine
from dpscale.job.job import Job
from dpscale.ledger import location
from dpscale.records.files import fetched_bytes
from dpscale.runs import opening
from dpscale.runs.stages.plan import most_cells
from dpscale.storage import files, objects
from dpscale.storage.scratch import Sealed, used
from tests.audit.small import write
from tests.messages import refused

ROOT = Path(__file__).parents[1]
RELEASE = """
import importlib, os, pkgutil, sys
from pathlib import Path

import dpscale.storage.files

dpscale.storage.files.WINDOWS = True

import numpy as np
import pandas as pd

import dpscale as dp
from dpscale.__main__ import main

OPTIONAL = {"deltalake", "openpyxl", "pgmpy", "psycopg", "pyiceberg", "sdmetrics", "sklearn"}


def command(*words):
    main(list(map(str, words)), standalone_mode=False)


if __name__ == "__main__":
    for one in pkgutil.walk_packages(dp.__path__, "dpscale."):
        try:
            importlib.import_module(one.name)
        except ModuleNotFoundError as error:
            assert error.name in OPTIONAL, one.name
    rng, place = np.random.default_rng(0), Path(os.environ["DPSCALE_DATA"])
    people = pd.DataFrame({name: rng.integers(0, size, 600) for name, size in (("a", 3), ("A", 2), ("person", 99))})
    domain = dp.Domain(a=3, A=2)
    plan = dp.plan([["a"], ["A"]], domain, epsilon=1, unit="person", rows_per_unit=5, dataset="people")
    release = dp.run(plan, data=people, scheduler=sys.argv[1])
    command("rows", release.path, "--rows", 50, "--quiet")
    for _ in range(2):
        command("publish", release.path, "--out", place / "published")
    assert [len(release.table(name)) for name in ("a", "A")] == [3, 2]
    command("job", "status", release.path)
    command("ledger", "show", place / "ledger.sqlite")
    with dpscale.storage.lock.locked(release.path):
        assert not dpscale.storage.lock.free(release.path)
    assert dpscale.storage.lock.free(release.path)
"""


@pytest.mark.parametrize("scheduler", ["threads", "processes"])
def test_release_with_what_windows_has(tmp_path, scheduler):
    hidden, place = tmp_path / "hidden", tmp_path / "data"
    hidden.mkdir()
    place.mkdir()
    (hidden / "sitecustomize.py").write_text(f"{(ROOT / 'tests/windows.py').read_text()}\n\nhide()\n")
    (script := tmp_path / "release.py").write_text(RELEASE)
    paths = os.pathsep.join([str(hidden), str(ROOT)])
    process = subprocess.run([sys.executable, script, scheduler], capture_output=True, text=True, cwd=tmp_path,
                             env=os.environ | {"PYTHONPATH": paths, "DPSCALE_DATA": str(place)})  # fmt: skip
    assert process.returncode == 0, process.stderr
    assert "people" in process.stdout
    names = [str(path.relative_to(place)) for path in place.rglob("*")]
    assert len({name.casefold() for name in names}) == len(names) > 30
    assert not [name for name in names if set('<>:"|?*\\') & set(name) or name.endswith((".", " "))]


@pytest.fixture(params=["cgroup 1", "cgroup 2"])
def container(request, monkeypatch):
    """A host of 64 processors and a container with a quota of 2 of them."""
    contents = {"/sys/fs/cgroup/cpuacct,cpu/cpu.cfs_quota_us": "200000\n",
                "/sys/fs/cgroup/cpuacct,cpu/cpu.cfs_period_us": "100000\n"}  # fmt: skip
    if request.param == "cgroup 2":
        contents = {"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/cpu.max": "200000 100000\n"}

    def opened(path, *arguments, **options):
        if str(path).startswith(("/sys/fs/cgroup", "/proc/self/cgroup")):
            if path not in contents:
                raise FileNotFoundError(path)
            return io.StringIO(contents[path])
        return builtins.open(path, *arguments, **options)

    monkeypatch.setattr(dask.system, "open", opened, raising=False)
    _host_of_64(monkeypatch)
    return contents


def _host_of_64(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64), raising=False)
    monkeypatch.setattr(os, "process_cpu_count", lambda: 64, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(psutil.Process, "cpu_affinity", lambda _: list(range(64)), raising=False)


def test_quota_of_a_container_bounds_workers_and_divides_memory(container, tmp_path):
    job, engine = Job.read(write(tmp_path)).table, LocalEngine()
    assert engine.workers == LocalEngine("processes").workers == 2
    assert most_cells(job, engine) == job.engine.bytes // (8 * (2 + FACTOR))
    container.clear()  # no quota
    assert LocalEngine().workers == 64
    assert most_cells(job, LocalEngine()) == job.engine.bytes // (8 * (64 + FACTOR))


def test_processors_without_affinity_as_on_macos(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.delattr(psutil.Process, "cpu_affinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    monkeypatch.setattr(os, "process_cpu_count", lambda: 3, raising=False)
    monkeypatch.setattr(dask.system, "LINUX", False)
    assert LocalEngine().workers == 3


def test_windows_waits_for_61_processes_at_most(monkeypatch):
    _host_of_64(monkeypatch)
    monkeypatch.setattr(dask.system, "LINUX", False)
    monkeypatch.setattr(sys, "platform", "win32")
    assert (LocalEngine("processes").workers, LocalEngine().workers) == (61, 64)


def test_task_beyond_the_memory_of_the_container_is_refused(monkeypatch):
    import distributed.system

    engine = LocalEngine("synchronous")
    engine.check_worker_memory(1 << 30, "a, b")
    monkeypatch.setattr(distributed.system, "memory_limit", lambda: 2 << 30)
    engine.check_worker_memory(2 << 30, "a, b")
    with refused(dp.PlanError):
        engine.check_worker_memory(3 << 30, "a, b")


def test_scratch_file_without_pread(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "pread")
    with used(str(tmp_path)) as use:
        file = Sealed.new(use)
        places = [file.append(np.arange(n)) for n in (5, 1000, 3)]
        for place, count in zip(places, (5, 1000, 3), strict=True):
            np.testing.assert_array_equal(file.read(place, 1, count - 1, np.int64), np.arange(1, count))
        assert file.append(np.arange(2)) == file.size - 16
        np.testing.assert_array_equal(file.read(places[1], 0, 1000, np.int64), np.arange(1000))


def test_bytes_from_a_store_without_flags_of_posix(tmp_path, monkeypatch):
    (tmp_path / "a").write_bytes(bytes(range(200)))
    for name in ("MAP_PRIVATE", "MAP_ANONYMOUS"):
        monkeypatch.delattr(mmap, name)
    monkeypatch.setattr(sys, "platform", "win32")
    with fetched_bytes(str(tmp_path / "a"), 200, [(3, 7), (190, 200)]) as found:
        read = found.to_pybytes()
    assert (len(read), read[3:7], read[190:]) == (200, bytes(range(3, 7)), bytes(range(190, 200)))
    assert set(read[7:190]) == {0}


@pytest.fixture
def windows_paths(monkeypatch):
    for name in ("relpath", "realpath", "normcase", "commonpath"):
        monkeypatch.setattr(os.path, name, getattr(ntpath, name if name != "realpath" else "normpath"))
    monkeypatch.setattr(os, "sep", "\\")


def test_stored_paths_have_slashes_on_windows(windows_paths):
    assert objects.relative_path(r"C:\data\2024\a.parquet", r"C:\data\jobs") == "../2024/a.parquet"
    assert objects.relative_path(r"D:\data\a.parquet", r"C:\data") == "D:/data/a.parquet"
    assert objects.slashed(r"measurements\000.parquet") == "measurements/000.parquet"
    with refused(dp.DataError):
        objects.common_folder([r"C:\a.csv", r"D:\b.csv"])


def test_ledger_on_a_share_of_windows_is_refused(windows_paths, monkeypatch):
    mounted = [("C:\\", "NTFS"), ("Z:\\", location.REMOTE)]
    monkeypatch.setattr(location, "mounts", lambda: mounted)
    kinds = [
        location.network_kind(path) for path in (r"c:\x\ledger.sqlite", r"Z:\ledger.sqlite", r"\\nas\ledger.sqlite")
    ]
    assert kinds == ["", "remote", "remote"]


def test_file_that_another_process_reads_is_replaced_later(tmp_path, monkeypatch):
    replace, refusals = os.replace, [PermissionError(13, "open")] * 2

    def refusing(*paths):
        if refusals:
            raise refusals.pop()
        replace(*paths)

    monkeypatch.setattr(files, "WINDOWS", True)
    monkeypatch.setattr(files, "PAUSES", (0.001,) * 3)
    monkeypatch.setattr(os, "replace", refusing)
    files.write_whole(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"new"
    refusals += [PermissionError(13, "open")] * 9
    with pytest.raises(PermissionError):
        files.write_whole(tmp_path / "a", b"newer")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("names", [["trips", "Trips"], ["é", "e\u0301"]])
def test_names_that_differ_by_case_are_refused(names):
    with refused(dp.JobError):
        opening.check_folder_names("tables", names)
    opening.check_folder_names("tables", ["trips", "riders", "con"])


def test_names_that_windows_reserves_are_refused_there(monkeypatch):
    monkeypatch.setattr(opening, "WINDOWS", True)
    opening.check_folder_names("tables", ["trips", "console"])
    with refused(dp.JobError):
        opening.check_folder_names("tables", ["Com1"])
