"""Runs whose cluster and driver are killed at random: `dpscale run`, or `submit` and `wait`, is repeated until the run
is done.

Tasks mostly sleep, so that many kills hit a task, while files, ledger, scheduler, nannies and workers are real
processes. The kills are drawn from a seed; their position within the run depends on the machine.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import tomli_w

from dpscale.cli import driver
from tests.cluster.machines import ROOT, Machines, kill

SIZES = {"a": 4, "b": 3, "c": 5, "d": 2, "e": 3, "f": 4}
AGAIN = 75
PLAN = {"mechanism": {"name": "residual-planner"}, "workload": [{"family": "marginal", "degree": 2}]}
ADAPTIVE = {"mechanism": {"name": "aim-grem"}, "workload": [{"family": "marginal", "degree": 2}]}


def write_job(folder: Path, changes: dict[str, object]) -> Path:
    """Write data in four files, a domain and a job."""
    random, data = np.random.default_rng(1), folder / "data"
    data.mkdir(parents=True)
    for number in range(4):
        columns = {name: random.integers(0, size, 500) // random.integers(1, 3) for name, size in SIZES.items()}
        pd.DataFrame(columns).to_parquet(data / f"{number}.parquet", index=False)
    domain = {"attributes": {name: {"kind": "coded", "size": size} for name, size in SIZES.items()}}
    (folder / "domain.toml").write_text(tomli_w.dumps(domain))
    job = {
        "data": {"path": "data", "domain": "domain.toml"},
        "privacy": {"rho": 0.5, "dataset": "chaos"},
        "engine": {"scheduler": "synchronous", "seed": 7},
    }
    (folder / "job.toml").write_text(tomli_w.dumps({**job, **changes}))
    return folder / "job.toml"


class Chaos:
    """One run on its own cluster, with a counter of the killed processes."""

    def __init__(self, job: Path, run: Path, logs: Path, seed: int, slow: tuple[float, float], submitted: bool) -> None:
        storing, counting = map(str, slow)
        logs.mkdir()
        self.made = Machines(logs, DPSCALE_TEST_STORING=storing, DPSCALE_TEST_COUNTING=counting,
                             DASK_DPSCALE__WORKER_WAIT="30")  # fmt: skip
        self.job, self.run, self.random, self.submitted = job, run, random.Random(seed), submitted
        self.killed: Counter[str] = Counter()
        self._driver: subprocess.Popen[bytes] | None = None
        self._silent: tuple[object, float] = (None, 0.0)

    def run_until_done(self, kills: int, pause: tuple[float, float], seconds: float) -> Counter[str]:
        """Kill processes the given number of times, then let the run end; raise AssertionError after `seconds`."""
        end, left, next_kill = time.monotonic() + seconds, kills, time.monotonic() + self.random.uniform(3, 8)
        try:
            self._start()
            while (code := self._exit_code()) != 0:
                assert code in (None, AGAIN), (code, self._log())
                assert time.monotonic() < end, ("not done", self.killed, self._log())
                if code == AGAIN:
                    self._start_driver()
                elif left and time.monotonic() > next_kill:
                    self._kill(self.random.choice(["worker", "nanny", "driver", "scheduler"]))
                    left, next_kill = left - 1, time.monotonic() + self.random.uniform(*pause)
                time.sleep(0.05)
        finally:
            if self._driver:
                kill(self._driver)
            self.made.stop()
        return self.killed

    def _start(self) -> None:
        self._scheduler = self.made.scheduler()
        self._workers = [self._worker() for _ in range(2)]
        self._start_driver()

    def _worker(self) -> subprocess.Popen[bytes]:
        return self.made.worker("--preload", "tests.cluster.slow_store", "--death-timeout", 20)

    def _start_driver(self) -> None:
        first = ["job", "submit"] if self.submitted else ["run"]
        command = [sys.executable, "-m", "dpscale", *first, self.job, "--run-dir", self.run, "--scheduler",
                   self.made.address]  # fmt: skip
        with open(self.made.folder / "driver.log", "ab") as log:
            self._driver = subprocess.Popen(list(map(str, command)), env=self.made._environment, cwd=ROOT, stdout=log,
                                            stderr=log, start_new_session=True)  # fmt: skip

    def _exit_code(self) -> int | None:
        """Return the exit code of a run that ended or was killed, or None while it runs."""
        assert self._driver
        code = self._driver.poll()
        if code is None or code not in (0, AGAIN):
            return AGAIN if code == -signal.SIGKILL else code
        if not self.submitted or code:
            return code
        found = driver.read(self.run)
        return found["exit_code"] if found["state"] not in driver.AT_WORK else self._check_heartbeat(found["at"])

    def _check_heartbeat(self, at: float) -> int | None:
        """Return the exit code for a silent driver, sooner than `wait` does, so that the test submits the run again."""
        if at != self._silent[0]:
            self._silent = (at, time.monotonic())
        if time.monotonic() - self._silent[1] < 8:
            return None
        driver.change(self.run, lambda found: found["at"] == at, state="failed", exit_code=AGAIN)
        return AGAIN

    def _kill(self, process: str) -> None:
        if getattr(self, f"_kill_{process}")():
            self.killed[process] += 1

    def _kill_worker(self) -> bool:
        """Kill a worker under its nanny, which starts another one."""
        try:
            children = psutil.Process(self.random.choice(self._workers).pid).children(recursive=True)
            os.kill(next(one.pid for one in children if "spawn_main" in " ".join(one.cmdline())), signal.SIGKILL)
        except (psutil.Error, StopIteration, ProcessLookupError):
            return False
        return True

    def _kill_nanny(self) -> bool:
        """Kill a worker and its nanny, like the loss of a machine, and start another worker."""
        place = self.random.randrange(len(self._workers))
        kill(self._workers[place])
        self._workers[place] = self._worker()
        return True

    def _kill_driver(self) -> bool:
        assert self._driver
        if not self.submitted:
            kill(self._driver)
            return True
        try:
            os.kill(driver.read(self.run)["pid"], signal.SIGKILL)
        except (KeyError, TypeError, ProcessLookupError):
            return False
        return True

    def _kill_scheduler(self) -> bool:
        """Kill the scheduler and the workers, and start them again."""
        kill(self._scheduler)
        for worker in self._workers:
            kill(worker)
        self._scheduler = self.made.scheduler()
        self._workers = [self._worker() for _ in range(2)]
        return True

    def _log(self) -> str:
        return (self.made.folder / "driver.log").read_text()[-3000:]
