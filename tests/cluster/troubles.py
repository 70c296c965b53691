"""What goes wrong on workers: functions that tests run there."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path


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
ROWS = {"rows": ("dpscale.runs.stages.synthesize", "count_sampled_sets")}  # when its files are written
changes: list[str] = []  # what tests did to this worker


def leave_if_changed() -> int:
    """On a worker: make room for a new one where a test did something to this; else its process id."""
    if changes:
        die()
    return os.getpid()


def arm(stage: str) -> None:
    """This process dies when it gets to a stage; the one that the nanny starts in its place does not."""
    import importlib

    changes.append(stage)
    module, name = (PLACES | ROUNDS | ROWS | UNITS)[stage]
    place = importlib.import_module(module)
    assert hasattr(place, name), f"{module} has no {name}"
    setattr(place, name, die)


def leave_plots_out() -> None:
    """On a worker: reports are plain, as they are in the tests' own process."""
    from dpscale.runs.stages import report

    report.error_plot = report.share_plot = report.trace_plot = lambda *_: ""


def slow_down(drawn: float = 0.0) -> None:
    """On a worker: a second after each file of measurements, and so long before it, until it is killed."""
    import tests.cluster.slow_store

    tests.cluster.slow_store.DRAWN = drawn
    changes.append("slow")


def die_once(marker: str, value: int) -> int:
    """The first to come dies, all others pass."""
    try:
        Path(marker).touch(exist_ok=False)
    except FileExistsError:
        return value
    die()
    raise AssertionError


def grow(*_: object) -> int:
    """Take more memory than any worker of the tests has, slowly enough for its nanny to see."""
    held = []
    for _ in range(400):
        held.append(bytearray(os.urandom(1 << 20)) * 8)
        time.sleep(0.01)
    return len(held)


def hungry() -> None:
    """On a worker: counting takes more memory than there is."""
    from dpscale.engine import counting

    counting.count_by = grow
    changes.append("hungry")


def squared(value: int) -> int:
    return value * value


def slowly(value: int) -> int:
    time.sleep(0.2)
    return value


async def stop_for_a_while() -> None:
    """This worker hangs for some seconds, as one that swaps does."""
    pid = os.getpid()
    if os.fork() == 0:
        time.sleep(3)
        os.kill(pid, signal.SIGCONT)
        os._exit(0)
    os.kill(pid, signal.SIGSTOP)
