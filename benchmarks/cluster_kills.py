"""Kills, suspensions and other faults of the processes of runs with a real noise key: one draw, one charge, the same
answers.

A scheduler and two workers run in their own processes. The client is `dpscale run`, or `dpscale job submit` and
`wait` in every fifth run and in runs that are cancelled, repeated until the run is done. Half of the runs have a fixed
plan, the others `aim-grem`. A fault comes at a random time, or a random time after the next value file is visible:

- a process is killed (SIGKILL) or suspended (SIGSTOP), for a shorter or a longer time than every limit;
- a worker is retired, or replaced for some time by a worker of 300 MB under a nanny;
- a worker that states an older version of dpscale joins for some time; it must run no task;
- a submitted run is cancelled.

What is dead starts again after a random pause. Every finished run is checked (`kill_checks`), and a violation ends the
benchmark with code 1.

    python benchmarks/cluster_kills.py [--kills 100] [--seed 1] [--only KIND] [--folder DIR] [--save]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import results
import tomli_w
from cluster_cost import free_port
from kill_checks import Watcher, check_answers, check_charge, check_draw, check_leftovers

ROOT = Path(__file__).parents[1]
MACHINES = ("scheduler", "worker 1", "worker 2")
FAULTS = ("kill scheduler", "kill worker", "kill client", "suspend scheduler", "suspend worker", "suspend client",
          "retire worker", "shrink worker", "older version", "cancel")  # fmt: skip
RARE = ("refusals", "locked ledgers", *(f"faults in stage {stage}" for stage in ("start", "plan", "report")))
RHO, REFUSED, AGAIN, KILLED = 0.5, 2, 75, -9
ANSWER_SECONDS = 3.0  # `dpscale.worker-answer`; a scheduler is lost after three times this
SUSPENDED_SECONDS, UNFIT_SECONDS = (0.5, 15.0), (3.0, 12.0)
SMALL, OLD = "300MB", "0.0.1"
REFUSALS = (f"has dpscale {OLD}", "engine.memory", "engine: no answer")  # sentences for workers that cannot be used
OLDER = f"""
import importlib.metadata
from pathlib import Path

version = importlib.metadata.version
importlib.metadata.version = lambda name: "{OLD}" if name == "dpscale" else version(name)
from dpscale.engine.admission import AdmittedCall

call = AdmittedCall.__call__

def observed(self, *arguments):
    result = call(self, *arguments)
    Path(__file__).with_suffix(".ran").touch()
    return result

AdmittedCall.__call__ = observed
"""
RETIRE = """
import sys
from distributed import Client
with Client(sys.argv[1], timeout=10, set_as_default=False) as client:
    client.retire_workers(names=[sys.argv[2]], close_workers=True)
"""
MOST_SECONDS = 420.0  # of a run
KILLS_PER_RUN = (5, 9)
QUIET_SECONDS = 10.0  # until tasks of dead clients have ended
KINDS = {"fixed plan": {"degree": 3}, "aim-grem": {"degree": 2, "mechanism": "aim-grem"}}
Figures = dict[str, float]


def write_job(place: Path, kind: str, rows: int, attributes: int, scheduler: str) -> Path:
    """Write a table of four files with at most two rows of a unit, its domain and the job; no seed is given."""
    sizes = {f"a{number}": (2, 3, 4, 6)[number % 4] for number in range(attributes)}
    generator, own = np.random.default_rng(0), KINDS[kind]
    (place / "data").mkdir(parents=True)
    for number in range(4):
        common = generator.integers(0, 6, rows // 4)
        columns = {name: (common + generator.integers(0, size, rows // 4)) % size for name, size in sizes.items()}
        frame = pd.DataFrame(columns | {"unit": generator.integers(0, rows // 3, rows // 4)})
        frame.to_parquet(place / "data" / f"{number}.parquet", index=False)
    domain = {name: {"kind": "coded", "size": size} for name, size in sizes.items()}
    (place / "domain.toml").write_text(tomli_w.dumps({"attributes": domain}))
    job = {
        "data": {"path": "data", "domain": "domain.toml", "privacy_unit": "unit", "max_rows_per_unit": 2},
        "privacy": {"rho": RHO, "dataset": "kills", "ledger": "ledger.sqlite"},
        "workload": [{"family": "marginal", "degree": own["degree"]}],
        "engine": {"scheduler": scheduler, "memory": "1GiB"},
        **({"mechanism": {"name": own["mechanism"]}} if "mechanism" in own else {}),
    }
    (place / "job.toml").write_text(tomli_w.dumps(job))
    return place / "job.toml"


class Cluster:
    """A scheduler and two workers in their own processes, which are killed and start again."""

    def __init__(self, place: Path) -> None:
        self.place, self.port = place, free_port()
        self.address = f"tcp://127.0.0.1:{self.port}"
        self.scratch = place / "scratch"
        self.scratch.mkdir(parents=True)
        self.older = place / "older.py"
        self.older.write_text(OLDER)
        self.environment = os.environ | {"TMPDIR": str(self.scratch), "DPSCALE_STORE": "off", "OMP_NUM_THREADS": "1",
                                         "DASK_DPSCALE__WORKER_ANSWER": str(ANSWER_SECONDS),
                                         "DASK_DPSCALE__WORKER_WAIT": "60", "PYTHONPATH": str(ROOT)}  # fmt: skip
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._starts: dict[str, float] = {}
        self._suspended: dict[int, float] = {}  # times at which processes continue
        self._unfit: dict[str, float] = {}  # times at which workers that are small or old end
        self.was_unfit = False  # since the client started

    def start(self, name: str) -> None:
        """Start a process of the cluster."""
        own = ["dask_scheduler", "--host", "127.0.0.1", "--port", str(self.port), "--no-show"]
        if name != "scheduler":
            own = ["dask_worker", self.address, "--host", "127.0.0.1", "--nthreads", "1", "--name", name,
                   *(["--memory-limit", SMALL] if name in self._unfit and name != "older" else ["--no-nanny"]),
                   *(["--preload", str(self.older)] if name == "older" else []),
                   "--local-directory", str(self.scratch / name.replace(" ", "-"))]  # fmt: skip
        self.processes[name] = self.launch("-m", f"distributed.cli.{own[0]}", "--no-dashboard", *own[1:], log=name)

    def launch(self, *arguments: str, log: str) -> subprocess.Popen[bytes]:
        """Start a Python process in its own session; its output goes to a log file."""
        with open(self.place / f"{log}.log", "ab") as file:
            return subprocess.Popen([sys.executable, *arguments], env=self.environment, cwd=self.place, stdout=file,
                                    stderr=file, start_new_session=True)  # fmt: skip

    def revive(self, pause: float) -> None:
        """Start every dead process of the cluster, `pause` seconds after this was first seen, and end old faults."""
        now = time.monotonic()
        for pid in [pid for pid, end in self._suspended.items() if end < now]:
            self.proceed(pid)
        for name in [name for name, end in self._unfit.items() if end < now]:
            self.replace(name)
        for name in MACHINES:
            if self.is_alive(name):
                continue
            if now >= self._starts.setdefault(name, now + (pause if name in self.processes else 0.0)):
                del self._starts[name]
                self.start(name)

    def suspend(self, pid: int, seconds: float) -> bool:
        """Suspend a process for some time; return whether it exists."""
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            self._suspended[pid] = time.monotonic() + seconds
            return True
        return False

    def proceed(self, pid: int) -> None:
        """Continue a suspended process."""
        del self._suspended[pid]
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    def spoil(self, name: str, seconds: float) -> bool:
        """Replace a worker by a small one, or add an older one, for some time."""
        if name in self._unfit or (name in self.processes and not kill(self.processes[name])):
            return False
        self._unfit[name], self.was_unfit = time.monotonic() + seconds, True
        if name == "older":
            self.start(name)
        return True

    def replace(self, name: str) -> None:
        """End a small or old worker."""
        del self._unfit[name]
        kill(self.processes[name])
        if name == "older":
            del self.processes[name]

    def repair(self) -> None:
        """End all suspensions, and all small and old workers."""
        for pid in list(self._suspended):
            self.proceed(pid)
        for name in list(self._unfit):
            self.replace(name)

    def begin(self) -> None:
        """Note that a client starts."""
        self.was_unfit = bool(self._unfit)

    def retire(self, name: str) -> bool:
        """Retire a live worker; the request does not wait for its answer."""
        if self.is_alive(name):
            self.launch("-c", RETIRE, self.address, name, log="retire")
        return self.is_alive(name)

    def is_alive(self, name: str) -> bool:
        return name in self.processes and self.processes[name].poll() is None

    @property
    def workers(self) -> list[int]:
        """Process ids of the live workers."""
        return [self.processes[name].pid for name in MACHINES[1:] if self.is_alive(name)]

    def close(self) -> None:
        for process in self.processes.values():
            kill(process)


def kill(process: subprocess.Popen[bytes]) -> bool:
    """Kill a process with its children; return whether it was alive."""
    alive = process.poll() is None
    if alive:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return alive


@dataclass
class Supervised:
    """One run and its client; `submitted` runs have their driver on the cluster."""

    cluster: Cluster
    job: Path
    run: Path
    submitted: bool
    random: random.Random
    kills: Counter[str] = field(default_factory=Counter)
    stages: Counter[str] = field(default_factory=Counter)
    resumptions: int = 0
    faults: list[str] = field(default_factory=list)
    lost_driver: bool = False
    refusals: int = 0

    def finish(self, wanted: Sequence[str], watcher: Watcher) -> None:
        """Repeat the command until the run is done, and kill the wanted processes meanwhile."""
        command, wanted, end = self._first(), list(wanted), time.monotonic() + MOST_SECONDS
        client, next_kill = self._start(command), self._draw_time(watcher)
        try:
            while True:
                self.cluster.revive(self.random.uniform(0.05, 2.0))
                if (code := client.poll()) is not None:
                    following = self._following(command, code)
                    if following is None:
                        return
                    time.sleep(self.random.uniform(0.0, 1.0))
                    command, client = following, self._start(following)
                    self.resumptions += following in ("run", "submit")
                if wanted and self._is_due(next_kill, watcher) and self._cause(wanted[0], client):
                    watcher.audit()
                    wanted.pop(0)
                    next_kill = self._draw_time(watcher)
                if time.monotonic() > end:
                    self.faults.append(f"the run is not done after {MOST_SECONDS:.0f} s")
                    return
                time.sleep(0.01)
        finally:
            kill(client)
            self.cluster.repair()

    def _first(self) -> str:
        return "submit" if self.submitted else "run"

    def _start(self, command: str) -> subprocess.Popen[bytes]:
        own = {"run": [str(self.job), "--run-dir", str(self.run), "--quiet"], "wait": [str(self.run)],
               "submit": [str(self.job), "--run-dir", str(self.run), "--scheduler", self.cluster.address],
               "cancel": [str(self.run)]}[command]  # fmt: skip
        self.cluster.begin()
        return self.cluster.launch(
            "-m", "dpscale", *([] if command == "run" else ["job"]), command, *own, log=self._log
        )

    @property
    def _log(self) -> str:
        return f"client-{self.run.parent.name}"

    def _is_refusal(self) -> bool:
        """Return whether the last command refused a small or an old worker."""
        said = (self.cluster.place / f"{self._log}.log").read_text().strip().splitlines()
        return self.cluster.was_unfit and any(text in said[-1] for text in REFUSALS)

    def _following(self, command: str, code: int) -> str | None:
        """Return the command after one that ended; None if the run is done or cannot continue."""
        if code == REFUSED and self._is_refusal():
            self.refusals += 1
            self.cluster.repair()
        elif code not in (0, AGAIN, KILLED):
            self.faults.append(f"{command} ended with code {code}")
            return None
        if command in ("run", "wait") and code == 0:
            return None
        if command == "cancel" and code == 0:
            self.lost_driver = False
        if not self.submitted:
            return "run"
        if self.lost_driver or (command == "wait" and code == AGAIN):
            return "cancel"
        again = "submit" if code == REFUSED else "wait"
        return {"submit": "wait" if code == 0 else "submit", "wait": again, "cancel": "submit"}[command]

    def _draw_time(self, watcher: Watcher) -> tuple[float, float]:
        """Return when to kill next: at a time, or at the latest then but soon after another file is visible."""
        now, delay = time.monotonic(), self.random.uniform(0.3, 5.0)
        self._files, self._soon = watcher.files, self.random.uniform(0.0, 0.4)
        return (now + delay, 0.0) if self.random.random() < 0.4 else (now + 8.0, now)

    def _is_due(self, times: tuple[float, float], watcher: Watcher) -> bool:
        latest, earliest = times
        now = time.monotonic()
        if earliest and now > earliest and watcher.files > self._files:
            time.sleep(self._soon)
            return True
        return now > latest

    def _cause(self, fault: str, client: subprocess.Popen[bytes]) -> bool:
        """Cause a fault while the run works; return whether it did."""
        if client.poll() is not None:
            return False
        stage, (action, _, what) = running_stage(self.run), fault.partition(" ")
        worker = self.random.choice(MACHINES[1:])
        process = client if what == "client" else self.cluster.processes.get(worker if what == "worker" else what)
        seconds = self.random.uniform(*(SUSPENDED_SECONDS if action == "suspend" else UNFIT_SECONDS))
        caused = {"kill": lambda: kill(process) if process else False,
                  "suspend": lambda: self.cluster.suspend(self._working_pid(process), seconds) if process else False,
                  "retire": lambda: self.cluster.retire(worker), "shrink": lambda: self.cluster.spoil(worker, seconds),
                  "older": lambda: self.cluster.spoil("older", seconds), "cancel": self._cancel}[action]()  # fmt: skip
        if caused:
            self.kills[fault] += 1
            self.stages[stage] += 1
            if fault == "kill scheduler" and self.submitted:
                self.lost_driver = (self.run / "driver.json").exists()
                kill(client)  # `wait` would notice the lost driver after a minute
        return caused

    def _working_pid(self, process: subprocess.Popen[bytes]) -> int:
        """Return the process id of the driver if the client only waits for it."""
        known = self.cluster.processes.values()
        if self.submitted and process not in known:
            with suppress(OSError, ValueError, KeyError, TypeError):
                driver = int(json.loads((self.run / "driver.json").read_text())["pid"])
                if driver in (one.pid for one in known):
                    return driver
        return process.pid

    def _cancel(self) -> bool:
        if not self.submitted or not (self.run / "driver.json").exists():
            return False
        return self._start("cancel").wait() == 0


def running_stage(run: Path) -> str:
    """Return the stage that runs now, or the last one that ran; "start" before the first."""
    with suppress(FileNotFoundError):
        stages = json.loads((run / "manifest.json").read_text())["stages"]
        return max(stages, key=lambda name: str(stages[name]["start"]), default="start")
    return "start"


def check(place: Path, one: Supervised, watcher: Watcher) -> list[str]:
    """Return the violations of a finished run, each with the name of its check."""
    ledger, cluster = place / "ledger.sqlite", one.cluster
    end = time.monotonic() + QUIET_SECONDS
    while (left := check_leftovers(one.run, cluster.scratch, cluster.workers)) and time.monotonic() < end:
        time.sleep(0.2)
    ran = [f"a worker of version {OLD} ran a task"] if cluster.older.with_suffix(".ran").exists() else []
    found = {"version": ran, "charge": check_charge(one.run, ledger, Fraction(2 * RHO)),
             "draw": check_draw(one.run, ledger, watcher), "answers": check_answers(one.run, place),
             "leftover": left}  # fmt: skip
    return [f"{name}: {fault}" for name, faults in found.items() for fault in faults]


def draw_faults(left: Counter[str], generator: random.Random, most: int) -> list[str]:
    """Return the next faults, so that all kinds come about equally often."""
    chosen: list[str] = []
    while len(chosen) < most and left.total():
        chosen.append(generator.choices(list(left), list(left.values()))[0])
        left[chosen[-1]] -= 1
    return chosen


def run_campaign(
    place: Path, kills: int, seed: int, kinds: Sequence[str], rows: int, attributes: int
) -> tuple[Figures, list[str]]:
    """Cause faults of one run after another; return figures and violations."""
    generator, figures, faults = random.Random(seed), Counter[str](), list[str]()
    left = Counter(
        {fault: kills // len(FAULTS) + (number < kills % len(FAULTS)) for number, fault in enumerate(FAULTS)}
    )
    with closing(Cluster(place / "cluster")) as cluster:
        while left.total():
            number = figures["runs"]
            kind, folder = kinds[number % len(kinds)], place / f"{number:03d}"
            job = write_job(folder, kind, rows, attributes, cluster.address)
            wanted = draw_faults(left, generator, generator.randint(*KILLS_PER_RUN))
            one = Supervised(cluster, job, folder / "run", number % 5 == 4 or "cancel" in wanted, generator)
            began = time.monotonic()
            with Watcher(one.run, folder / "ledger.sqlite") as watcher:
                one.finish(wanted, watcher)
                found = one.faults or check(folder, one, watcher)
            left += Counter(wanted) - one.kills  # the run was done before them
            figures += Counter({"runs": 1, f"runs, {kind}": 1, "submitted": int(one.submitted),
                                "refusals": one.refusals})  # fmt: skip
            figures += count_events(one, watcher)
            faults += [f"run {number}: {fault}" for fault in found]
            print(f"run {number}: {kind}{', submitted' * one.submitted}, {dict(one.kills)}, {one.resumptions} "
                  f"resumptions, {time.monotonic() - began:.0f} s", *found, sep="\n  ", flush=True)  # fmt: skip
            if one.faults:
                break
    return {**dict.fromkeys(RARE, 0), **figures}, faults


def count_events(one: Supervised, watcher: Watcher) -> Counter[str]:
    """Return the kills of a run by kind and stage, its resumptions, and what was observed."""
    kills = {f"faults, {kind}": count for kind, count in one.kills.items()}
    stages = {f"faults in stage {stage}": count for stage, count in one.stages.items()}
    seen = {
        "resumptions": one.resumptions,
        "audits": watcher.copies,
        "locked ledgers": watcher.unread,
        "files": watcher.files,
    }
    return Counter({**kills, **stages, **seen})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="number of faults of all kinds")
    parser.add_argument("--seed", type=int, default=1, help="of faults and times; the noise has none")
    parser.add_argument("--only", choices=KINDS)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--attributes", type=int, default=12)
    parser.add_argument("--folder", help="keep all runs here")
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    os.environ["DPSCALE_STORE"] = "off"
    began, own = time.perf_counter(), psutil.Process()
    with ExitStack() as stack:
        place = Path(given.folder or stack.enter_context(tempfile.TemporaryDirectory(dir="."))).resolve()
        kinds = [given.only] if given.only else list(KINDS)
        figures, faults = run_campaign(place, given.kills, given.seed, kinds, given.rows, given.attributes)
    times = own.cpu_times()
    figures |= {"violations": len(faults), "seconds": time.perf_counter() - began,
                "CPU seconds": times.user + times.system + times.children_user + times.children_system}  # fmt: skip
    print(*(f"{name}: {value:g}" for name, value in figures.items()), *faults, sep="\n")
    if faults:
        sys.exit(1)
    if given.save:
        results.save("cluster_kills", figures)


if __name__ == "__main__":
    main()
