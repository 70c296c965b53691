"""Killed runs: a fork server with all imports done, so that hundreds of kills are cheap.

A forked child runs the command line and kills itself by SIGKILL before its n-th step, or its parent kills it after
a delay. Steps are file openings for writing, flushes, renames, removals and SQL statements of the ledger; a run
writes only by these.
"""

from __future__ import annotations

import builtins
import io
import os
import signal
import sqlite3
import sys
import time
from pathlib import Path

import pytest

from tests.plots import write_no_plots

KILLED = -signal.SIGKILL


def warm_up(job: Path, place: Path) -> int:
    """Run the job once in this process, so that children inherit imports and compiled code, and return its number of
    steps.
    """
    steps = Steps(None)
    with steps:
        assert run_command("run", job, "--run-dir", place, "--quiet") == 0
    return steps.taken


def run_command(*arguments: object) -> int:
    """Run a command in this process and return its exit code. Plots, the slowest part of a small run, are left out."""
    from dpscale.__main__ import main

    with pytest.MonkeyPatch.context() as patch:
        write_no_plots(patch)
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as exit_:
            return int(exit_.code or 0)
    return 0


class Steps:
    """Counter of the steps of a run, which kills this process before the n-th step."""

    def __init__(self, last: int | None) -> None:
        self.taken, self.last = 0, last
        self._kept = (os.replace, os.fsync, os.unlink, os.link, builtins.open, sqlite3.connect)

    def step(self) -> None:
        self.taken += 1
        if self.taken == self.last:
            os.kill(os.getpid(), signal.SIGKILL)

    def _count_calls(self, function):
        def counted(*arguments, **settings):
            self.step()
            return function(*arguments, **settings)

        return counted

    def _open(self, file, mode="r", *arguments, **settings):
        if any(letter in mode for letter in "wax+"):
            self.step()
        return self._kept[4](file, mode, *arguments, **settings)

    def _connect(self, *arguments, **settings):
        db = self._kept[5](*arguments, **settings)
        db.set_trace_callback(lambda statement: self.step())
        return db

    def __enter__(self) -> Steps:
        os.replace, os.fsync, os.unlink, os.link = (self._count_calls(one) for one in self._kept[:4])
        builtins.open = io.open = self._open
        sqlite3.connect = self._connect
        return self

    def __exit__(self, *_: object) -> None:
        os.replace, os.fsync, os.unlink, os.link, builtins.open, sqlite3.connect = self._kept
        io.open = self._kept[4]


def start(*arguments: object, last: int | None = None, log: Path | None = None) -> int:
    """Fork a child in its own process group that runs a command, and return its process id."""
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        os.setpgid(0, 0)
        output = os.open(log or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
        if last is None:
            code = run_command(*arguments)
        else:
            with Steps(last):
                code = run_command(*arguments)
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def wait_for_exit(child: int) -> int:
    """Wait for a child and return its exit code, or minus the signal that killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kill_after(child: int, seconds: float) -> int:
    """Kill a child and its workers after a delay, if it still runs, and return its exit code."""
    time.sleep(seconds)
    try:
        os.killpg(child, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        os.kill(child, signal.SIGKILL)
    return wait_for_exit(child)
