"""Plug-in of pytest that measures the CPU seconds of each test with its children and writes them as JSON lines.

CPU_TIMES=times.jsonl python -m pytest -n 1 -p tests.cpu_times
"""

import json
import os
import resource
from pathlib import Path

import pytest


def cpu_seconds():
    """Return the CPU seconds of this process and of its children that ended."""
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in spent)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item):
    before = cpu_seconds()
    yield
    with Path(os.environ["CPU_TIMES"]).open("a") as file:
        file.write(json.dumps({"id": item.nodeid, "cpu": round(cpu_seconds() - before, 4)}) + "\n")
