"""The scheduler "processes": one set of processes for all calls of an engine, and new ones after a loss."""

import os
import signal
import time

import pytest

from dpscale.base.errors import DpscaleError
from dpscale.engine import schedulers
from dpscale.engine.schedulers import LocalEngine, new_processes


@pytest.fixture
def engine(monkeypatch):
    monkeypatch.setattr(schedulers, "new_processes", new_processes)
    engine = LocalEngine("processes", workers=2)
    yield engine
    engine.close()


def process_of(_):
    time.sleep(0.1)
    return os.getpid()


def end_process(number):
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def is_running(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_all_calls_use_the_same_processes(engine):
    first, second = set(engine.map(process_of, range(4))), set(engine.map(process_of, range(4)))
    assert first == second
    assert os.getpid() not in first
    engine.close()
    assert not any(map(is_running, first))
    assert first.isdisjoint(engine.map(process_of, range(4)))


def test_new_processes_start_after_a_loss(engine):
    with pytest.raises(DpscaleError, match="worker"):
        engine.map(end_process, range(4))
    assert engine.map(abs, [-1, -2]) == [1, 2]
