"""Settings of all tests.

Each test session has its own plan store, state directory and data folder, so that a cached plan cannot hide a fault.
Hypothesis has no deadline, because benchmarks measure time, not tests.
"""

import atexit
import gc
import os
import shutil
import tempfile
from collections import Counter

import pytest
from hypothesis import settings

for library in ("OPENBLAS", "OMP", "MKL"):  # test processes run side by side and would compete for the cores
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")
os.environ["DPSCALE_PROGRESS"] = "86400"  # lines that come with the clock would be in what tests read
# processes of a session have their folders in that of the first one
FOLDER, PROCESS = tempfile.mkdtemp(prefix="dpscale-tests-", dir=os.environ.get("DPSCALE_TESTS")), os.getpid()
os.environ.setdefault("DPSCALE_TESTS", FOLDER)
for name in ("STATE", "STORE", "DATA"):
    os.environ[f"DPSCALE_{name}"] = os.path.join(FOLDER, name.lower())
    os.mkdir(os.environ[f"DPSCALE_{name}"], 0o700)
# the same examples in every run, so that a landing does not fail by new ones; `make nightly` draws others
settings.register_profile("dpscale", deadline=None, derandomize=True)
settings.register_profile("fresh", deadline=None)
settings.load_profile("dpscale")


@atexit.register
def remove_folder():
    """Remove the folder of this process; a forked one leaves that of its parent."""
    if os.getpid() == PROCESS:
        shutil.rmtree(FOLDER, ignore_errors=True)


def pytest_configure(config):
    """Compile loops once for all processes, and collect no garbage while tests are imported."""
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        from tests.compilation import compile_loops

        compile_loops()
    else:
        gc.disable()
    if hasattr(config, "workerinput"):
        from tests.compilation import compile_in_turn

        compile_in_turn()


def pytest_xdist_make_scheduler(config, log):
    """Give each file to one process, and all files of tests/cluster to the same one: they share a cluster."""
    from xdist.scheduler import LoadFileScheduling

    class FileScheduling(LoadFileScheduling):
        def _split_scope(self, nodeid):
            file = super()._split_scope(nodeid)
            return "tests/cluster" if file.startswith("tests/cluster/") else file

    return FileScheduling(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark cases of tests with `sampled(step)` as slow, except the first of each `step`, and tests in rest.txt."""
    from tests.default_set import rest, without_case

    seen, outside = Counter(), rest()
    for item in items:
        if without_case(item.nodeid) in outside:
            item.add_marker(pytest.mark.rest)
        mark = item.get_closest_marker("sampled")
        if mark and not item.get_closest_marker("slow"):
            test = item.nodeid.split("[")[0]
            if seen[test] % mark.args[0]:
                item.add_marker(pytest.mark.slow)
            seen[test] += 1


def pytest_collection_finish():
    """Exclude modules and tests, which live until the end, from garbage collection."""
    gc.freeze()
    gc.enable()


def pytest_itemcollected(item):
    """Note the tests that exist, for the rows of messages.txt."""
    from tests.messages import MESSAGES

    MESSAGES.collect(item.nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Compare the messages of refusals with messages.txt, one row after the other."""
    from tests.messages import MESSAGES

    MESSAGES.start(item.nodeid)
    result = yield
    MESSAGES.end()
    return result


@pytest.fixture
def place(tmp_path):
    """Directory with the small table as three Parquet files."""
    from tests.runs.small import table, write_table

    write_table(tmp_path / "data", table())
    return tmp_path


@pytest.fixture(scope="session", autouse=True)
def files_read_by_loops():
    """Read small Parquet files by dpscale's loops too, which a process otherwise begins to use after many values."""
    from dpscale.measurement import value_files
    from dpscale.records import parquet
    from dpscale.runs.stages import reconstruct

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet, "FIRST_VALUES", 0)
        patch.setattr(parquet, "SMALL_GROUP", 0)
        patch.setattr(value_files, "LEAST_VALUES", 1)  # several files of a small decision
        patch.setattr(reconstruct, "LEAST_ROWS", 1)
        yield


@pytest.fixture(scope="session", autouse=True)
def reports_without_plots():
    """Write reports without plots in this process; use `plots` for them."""
    from tests.plots import write_no_plots

    with pytest.MonkeyPatch.context() as patch:
        write_no_plots(patch)
        yield


@pytest.fixture(scope="session", autouse=True)
def shared_processes():
    """Share the processes of the scheduler "processes" between tests."""
    import dask.multiprocessing

    from tests.processes import SharedProcesses

    shared = SharedProcesses()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dask.multiprocessing, "get", shared.get)
        yield
    shared.close()


@pytest.fixture
def plots(monkeypatch):
    """Write reports with their plots."""
    from tests.plots import write_plots

    write_plots(monkeypatch)


@pytest.fixture(scope="module")
def plots_of_module():
    """Write reports with their plots in all tests of a module."""
    from tests.plots import write_plots

    with pytest.MonkeyPatch.context() as patch:
        write_plots(patch)
        yield
