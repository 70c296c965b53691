"""PostgreSQL server for the ledger tests, started once in its own directory by a user other than root."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

os.environ |= {"PGUSER": "dpscale", "PGPASSWORD": "open-sesame-17", "PGCONNECT_TIMEOUT": "10"}  # also a fork server's
NUMBERS = count()
RACES = [f"tests.ledger.test_{name}" for name in ("book", "period_caps", "server", "upgrade")]
multiprocessing.get_context("forkserver").set_forkserver_preload(RACES)  # else each racing process imports them


class Server:
    """A server with password authentication that can be stopped and started."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self._user = "postgres" if os.getuid() == 0 else None
        (folder / "password").write_text(os.environ["PGPASSWORD"])
        for place in (folder, folder / "password"):
            if self._user:
                shutil.chown(place, self._user, self._user)
        self._run("initdb", "-D", folder / "data", "-U", os.environ["PGUSER"], "--pwfile", folder / "password",
                  "--auth", "scram-sha-256", "--no-sync", "--locale", "C", "--encoding", "UTF8")  # fmt: skip

    def _run(self, *command: object) -> None:
        with open(self.folder.with_suffix(".log"), "a") as log:
            subprocess.run([str(word) for word in command], check=True, stdout=log, stderr=log, timeout=600,
                           stdin=subprocess.DEVNULL, user=self._user, group=self._user, cwd=self.folder,
                           extra_groups=[] if self._user else None)  # fmt: skip

    def start(self) -> None:
        settings = {"listen_addresses": "127.0.0.1", "port": self.port, "unix_socket_directories": self.folder,
                    "deadlock_timeout": "50ms", "shared_buffers": "16MB", "max_connections": "50",
                    "recovery_init_sync_method": "syncfs"}  # fmt: skip
        options = " ".join(f"-c {name}={value}" for name, value in settings.items())
        self._run("pg_ctl", "start", "-w", "-t", 500, "-D", self.folder / "data", "-o", options)

    def stop(self, mode: str = "immediate") -> None:
        """Stop the server, by default immediately like a crash."""
        self._run("pg_ctl", "stop", "-w", "-t", 500, "-D", self.folder / "data", "-m", mode)

    def address(self, database: str, port: int | None = None) -> str:
        return f"postgresql://127.0.0.1:{port or self.port}/{database}"

    def database(self) -> str:
        """Create an empty database and return its address."""
        import psycopg

        name = f"db{next(NUMBERS)}"
        with psycopg.connect(self.address("postgres"), autocommit=True) as db:
            db.execute(f"CREATE DATABASE {name}")  # type: ignore[arg-type]
        return self.address(name)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    pytest.importorskip("psycopg", reason="psycopg is not installed: no ledger on a server is tried")
    if not (shutil.which("initdb") and shutil.which("pg_ctl")):
        pytest.skip("there is no PostgreSQL server here (initdb, pg_ctl): no ledger on a server is tried")
    folder = Path(tempfile.mkdtemp(prefix="dpscale-pg-", dir="/tmp"))
    made = Server(folder)
    made.start()
    yield made
    with suppress(subprocess.CalledProcessError):
        made.stop()
    shutil.rmtree(folder, ignore_errors=True)
    folder.with_suffix(".log").unlink()
