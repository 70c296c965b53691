"""Processes of a cluster that tests suspend (SIGSTOP) and continue, without and with nannies."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tests.cluster.machines import Machines


class Suspendable(Machines):
    """A scheduler and two workers whose worker processes can be suspended."""

    def __init__(self, folder: Path, nannies: bool, *arguments: object, **environment: str) -> None:
        super().__init__(folder, **environment)
        self.nannies = nannies
        self.main = self.scheduler()
        options = (*arguments, *(() if nannies else ("--no-nanny",)))
        self.workers = [self.worker(*options) for _ in range(2)]

    def pids(self, processes: Sequence[subprocess.Popen[bytes]]) -> list[int]:
        """Return the process ids of scheduler or workers; that of a worker under a nanny is a child."""
        return [pid for process in processes for pid in self._pids(process)]

    def _pids(self, process: subprocess.Popen[bytes]) -> list[int]:
        if process is self.main or not self.nannies:
            return [process.pid]
        children = psutil.Process(process.pid).children(recursive=True)
        return [child.pid for child in children if "spawn_main" in " ".join(child.cmdline())]

    def suspend(self, *processes: subprocess.Popen[bytes]) -> list[int]:
        """Suspend processes and return their ids."""
        pids = self.pids(processes)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        return pids

    @contextmanager
    def suspended(self, *processes: subprocess.Popen[bytes]) -> Iterator[None]:
        """Suspend processes for the duration of the context."""
        pids = self.suspend(*processes)
        try:
            yield
        finally:
            proceed(pids)


def proceed(pids: Sequence[int]) -> None:
    """Continue suspended processes that exist."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
