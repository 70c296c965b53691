"""Faults on workers: functions that tests run there."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.plots import write_no_plots


def die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


PLACES = {
    "counting": ("dpscale.engine.counting", "count_by"),
    "measuring": ("dpscale.measurement.measurement", "write_values"),
    "reconstruction": ("dpscale.runs.stages.reconstruct", "_groups"),
}
ROUNDS = {  # of an adaptive job
    "counting": PLACES["counting"],
    "first measuring": PLACES["measuring"],
    "packing": ("dpscale.engine.shards", "build_shard"),
    "scoring": ("dpscale.engine.shards", "score_shard"),
    "measuring of a round": ("dpscale.engine.shards", "measure_all"),
}


UNITS = {  # of rows dealt by their unit
    "dealing": ("dpscale.engine.contribution_bounds", "deal"),
    "taking": ("dpscale.contributions.units", "bounded_rows"),
    "deciding": ("dpscale.contributions.units", "decided"),
    "marking": ("dpscale.contributions.units", "marked"),
}
ROWS = {"rows": ("dpscale.runs.stages.synthesize", "compared_by")}  # when its files are written
changes: list[str] = []  # what tests did to this worker


def exit_if_changed() -> int:
    """Kill this worker if a test changed it, and return its process id otherwise."""
    if changes:
        die()
    return os.getpid()


def kill_at_stage(stage: str) -> None:
    """Make this process die at the given stage; its replacement from the nanny does not."""
    import importlib

    changes.append(stage)
    module, name = (PLACES | ROUNDS | ROWS | UNITS)[stage]
    place = importlib.import_module(module)
    assert hasattr(place, name), f"{module} has no {name}"
    setattr(place, name, die)


def disable_plots() -> None:
    """Write reports without plots on this worker, as in the test process."""
    write_no_plots(pytest.MonkeyPatch())


def slow_down(drawn: float = 0.0) -> None:
    """Sleep a second after each measurement file of this worker and `drawn` seconds before it, until the worker is
    killed.
    """
    import tests.cluster.slow_store

    tests.cluster.slow_store.DRAWN = drawn
    changes.append("slow")


def die_once(marker: str, value: int) -> int:
    """Kill the first process that calls this; later calls return the value."""
    try:
        Path(marker).touch(exist_ok=False)
    except FileExistsError:
        return value
    die()
    raise AssertionError


def consume_memory(*_: object) -> int:
    """Take more memory than any test worker has, slowly enough for its nanny to notice."""
    blocks = []
    for _ in range(400):
        blocks.append(bytearray(os.urandom(1 << 20)) * 8)
        time.sleep(0.01)
    return len(blocks)


def exhaust_memory_in_counting() -> None:
    """Make counting on this worker take more memory than available."""
    from dpscale.engine import counting

    counting.count_by = consume_memory
    changes.append("hungry")


def square(value: int) -> int:
    return value * value


def return_slowly(value: int) -> int:
    time.sleep(0.2)
    return value


async def suspend_for_a_while() -> None:
    """Suspend this worker for three seconds, like a swapping machine."""
    pid = os.getpid()
    if os.fork() == 0:
        time.sleep(3)
        os.kill(pid, signal.SIGCONT)
        os._exit(0)
    os.kill(pid, signal.SIGSTOP)
