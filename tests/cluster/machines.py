"""Schedulers and workers as separate processes, as a user starts them by hand."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Machines:
    """A scheduler on a port and its workers; `configuration` is a file for DASK_CONFIG."""

    def __init__(self, folder: Path, configuration: Path | None = None, **environment: str) -> None:
        self.protocol = "tcp" if configuration is None else "tls"
        self.folder, self.port = folder, free_port()
        self.address = f"{self.protocol}://127.0.0.1:{self.port}"
        own = {} if configuration is None else {"DASK_CONFIG": str(configuration)}
        self._environment = os.environ | {"PYTHONPATH": str(ROOT)} | own | environment
        self.processes: list[subprocess.Popen[bytes]] = []

    def scheduler(self, *arguments: object) -> subprocess.Popen[bytes]:
        own = ("--port", self.port, "--protocol", self.protocol, "--no-dashboard")
        return self._start("scheduler", *own, *arguments)

    def worker(self, *arguments: object, within: Sequence[str] = ()) -> subprocess.Popen[bytes]:
        """Start a worker; `within` is a command that runs the command passed to it."""
        threads = [] if "--nthreads" in arguments else ["--nthreads", 1]
        return self._start("worker", self.address, "--no-dashboard", *threads, *arguments, within=within)

    def _start(self, what: str, *arguments: object, within: Sequence[str] = ()) -> subprocess.Popen[bytes]:
        command = [*within, sys.executable, "-m", "dask", what, "--host", "127.0.0.1", *map(str, arguments)]
        with open(self.folder / f"{what}-{len(self.processes)}.log", "wb") as log:
            self.processes.append(
                subprocess.Popen(command, env=self._environment, cwd=self.folder, stdout=log, stderr=log,
                                 start_new_session=True)
            )  # fmt: skip
        return self.processes[-1]

    def stop(self) -> None:
        for process in self.processes:
            kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its children at once (the worker of a nanny is a child)."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextmanager
def machines(folder: Path, configuration: Path | None = None, **environment: str) -> Iterator[Machines]:
    made = Machines(folder, configuration, **environment)
    try:
        yield made
    finally:
        made.stop()
