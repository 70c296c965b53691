"""Plug-in of pytest that measures the CPU seconds of each test with its children, and the branches that it runs.

    COSTS=folder python -m pytest -n 2 --dist loadfile -m "not (slow or airflow)" -p tests.costs

It needs the package coverage. Every process writes a file into the folder. Cases of a test are added. A branch is a
pair of lines of dpscale; those of compiled loops and of other processes are not seen, but the calls of loops are.
"""

import os
import pickle
import resource
from collections import defaultdict
from pathlib import Path

import coverage
import pytest

ROOT = Path(__file__).parents[1]


def cpu_seconds():
    """Return the CPU seconds of this process and of its children that ended."""
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in spent)


class Costs:
    """CPU seconds and branches of each test; a set of branches is an integer with their bits."""

    def __init__(self):
        source = [str(ROOT / "dpscale")]
        self.coverage = coverage.Coverage(data_file=None, branch=True, source=source, config_file=False, messages=False)
        self.branches = {}
        self.tests = defaultdict(lambda: (0.0, 0))
        self.coverage.start()

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item):
        before = cpu_seconds()
        yield
        seconds, bits = self.tests[name := item.nodeid.split("[")[0].split("@")[0]]
        self.tests[name] = seconds + cpu_seconds() - before, bits | self.take_branches()

    def take_branches(self):
        """Return the branches since the last call."""
        self.coverage.stop()
        data, bits = self.coverage.get_data(), 0
        for file in data.measured_files():
            for pair in data.arcs(file) or ():
                bits |= 1 << self.branches.setdefault((os.path.relpath(file, ROOT), *pair), len(self.branches))
        self.coverage.erase()
        self.coverage.start()
        return bits

    def pytest_sessionfinish(self):
        path = Path(os.environ["COSTS"]) / f"{os.getpid()}.pickle"
        path.write_bytes(pickle.dumps((list(self.branches), dict(self.tests))))


def pytest_configure(config):
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        config.pluginmanager.register(Costs())
