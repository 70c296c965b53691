"""Plug-in of pytest that measures the CPU seconds of each test with its children, and the branches that it runs.

    COSTS=folder python -m pytest -n 2 --dist loadfile -m "not (slow or airflow)" -p tests.costs

It needs the package coverage, which slows Python down: `COSTS=folder/seconds BRANCHES=no` measures the CPU seconds
again without it. Every process writes a file into the folder. Cases of a test are added. A branch is a pair of lines of
dpscale; those of compiled loops and of other processes are not seen, but the calls of loops are. The branches of a
fixture that several tests share belong to each of them, those of imports to no test.
"""

import os
import pickle
import resource
from collections import defaultdict
from pathlib import Path

import pytest

from tests.default_set import set_of

ROOT = Path(__file__).parents[1]


def cpu_seconds():
    """Return the CPU seconds of this process and of its children that ended."""
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in spent)


class Costs:
    """CPU seconds and branches of each test; a set of branches is an integer with their bits."""

    def __init__(self, coverage):
        self.coverage, self.branches = coverage, {}
        self.tests = defaultdict(lambda: (0.0, 0))
        self.fixtures = defaultdict(int)  # branches of fixtures that tests share
        self.pending = 0  # branches of the present test before a shared fixture
        if coverage is not None:
            coverage.start()

    def pytest_collection_finish(self):
        self.take_branches()

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item):
        before, self.pending = cpu_seconds(), 0
        yield
        seconds, bits = self.tests[name := item.nodeid.split("[")[0].split("@")[0]]
        for definitions in item._fixtureinfo.name2fixturedefs.values():
            bits |= self.fixtures[definitions[-1]]
        self.tests[name] = seconds + cpu_seconds() - before, bits | self.pending | self.take_branches()

    @pytest.hookimpl(hookwrapper=True)
    def pytest_fixture_setup(self, fixturedef):
        if fixturedef.scope == "function":
            yield
            return
        self.pending |= self.take_branches()
        yield
        self.fixtures[fixturedef] |= self.take_branches()

    def take_branches(self):
        """Return the branches since the last call."""
        if self.coverage is None:
            return 0
        self.coverage.stop()
        data, numbers = self.coverage.get_data(), []
        for file in data.measured_files():
            path = os.path.relpath(file, ROOT)
            for pair in data.arcs(file) or ():
                numbers.append(self.branches.setdefault((path, *pair), len(self.branches)))
        self.coverage.erase()
        self.coverage.start()
        return set_of(numbers)

    def pytest_sessionfinish(self):
        path = Path(os.environ["COSTS"]) / f"{os.getpid()}.pickle"
        path.write_bytes(pickle.dumps((list(self.branches), dict(self.tests))))


def make_coverage():
    """Return a measurement of branches, or None if only seconds are measured."""
    if os.environ.get("BRANCHES") == "no":
        return None
    from coverage import Coverage

    source = [str(ROOT / "dpscale")]
    return Coverage(data_file=None, branch=True, source=source, config_file=False, messages=False)


def pytest_configure(config):
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        config.pluginmanager.register(Costs(make_coverage()))
