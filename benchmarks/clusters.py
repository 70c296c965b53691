"""Runs on a cluster: faults of its processes, and what it costs.

python benchmarks/clusters.py kills      kills, suspensions and other faults: one draw, one charge, the same answers
python benchmarks/clusters.py cost       CPU and wall seconds on threads, on a cluster and with an object store
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import base
import numpy as np
import pandas as pd
import psutil
import tomli_w
from base import BASELINE, ROOT, children_seconds, free_port, generate_table, unpack
from scaling import start_process

from dpscale.runs.opening import open_run
from dpscale.runs.runner import run_stages
from dpscale.storage.files import is_partial
from dpscale.storage.lock import free

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.audit.composition import audit_run

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


def print_kills() -> None:
    """Kills, suspensions and other faults of the processes of runs with a real noise key: one draw, one charge, the
    same answers.

    A scheduler and two workers run in their own processes. The client is `dpscale run`, or `dpscale job submit` and
    `wait` in every fifth run and in runs that are cancelled, repeated until the run is done. Half of the runs have a
    fixed plan, the others `aim-grem`. A fault comes at a random time, or a random time after the next value file is
    visible:

    - a process is killed (SIGKILL) or suspended (SIGSTOP), for a shorter or a longer time than every limit;
    - a worker is retired, or replaced for some time by a worker of 300 MB under a nanny;
    - a worker that states an older version of dpscale joins for some time; it must run no task;
    - a submitted run is cancelled.

    What is dead starts again after a random pause. Every finished run is checked, and a violation ends the
    benchmark with code 1.

        python benchmarks/clusters.py kills [--kills 100] [--seed 1] [--only KIND] [--folder DIR] [--save]
    """
    parser = base.command_parser(print_kills.__doc__)
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
        base.save("cluster_kills", figures)


POLL_SECONDS = 0.005
SECRET, DESTROYED = "secret.key", bytes(32)
POST_PROCESSING = ("reconstruct", "report")
ACCURACY = Fraction(1, 10**6)  # largest relative part of the budget that rounding of a plan leaves over


@dataclass(frozen=True)
class Ledger:
    """Rows of a ledger: releases with cost and state, and decisions with their digests."""

    releases: tuple[tuple[str, str, str], ...]
    rounds: tuple[tuple[str, int, str], ...]

    @classmethod
    def read(cls, path: Path) -> Ledger:
        """Read a ledger; one that does not exist or has no tables yet is empty.

        Raises sqlite3.OperationalError while another process, which may be suspended, locks the file.
        """
        if not path.exists():
            return cls((), ())
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=1.0)) as db:
            if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'rounds'").fetchall():
                return cls((), ())
            releases = db.execute("SELECT release, cost, state FROM releases").fetchall()
            return cls(tuple(releases), tuple(db.execute("SELECT release, round, digest FROM rounds").fetchall()))


class Watcher:
    """Observer of the values, decisions and noise key of a run, which must never change once they are visible.

    Attributes
    ----------
    faults : list of str
    copies : int
        Number of audits of the state between two steps of the run.
    unread : int
        Number of audits during which another process locked the ledger.
    """

    def __init__(self, run: Path, ledger: Path) -> None:
        self.run, self.ledger, self.faults, self.copies, self.unread = run, ledger, list[str](), 0, 0
        self._stamps, self._contents = dict[str, tuple[int, ...]](), dict[str, str]()
        self._secret, self._releases, self._rounds = b"", dict[str, str](), dict[tuple[str, int], str]()
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self.look()

    @property
    def files(self) -> int:
        """Number of files of values and decisions that became visible."""
        return len(self._contents)

    def _poll(self) -> None:
        while not self._ended.wait(POLL_SECONDS):
            self.look()

    def look(self) -> None:
        """Compare all visible files with their first content."""
        with self._lock, suppress(FileNotFoundError):  # the folder does not exist yet
            self._look_at_secret()
            found = {entry.name: entry for entry in os.scandir(self.run / "measurements") if _is_final(entry.name)}
            for name in self._contents.keys() - found.keys():
                self._fault(f"{name} disappeared")
            for name, entry in found.items():
                status = entry.stat()
                stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
                if self._stamps.get(name) != stamp:
                    self._compare(name, hashlib.sha256(Path(entry.path).read_bytes()).hexdigest())
                    self._stamps[name] = stamp

    def _compare(self, name: str, content: str) -> None:
        if self._contents.setdefault(name, content) != content:
            self._fault(f"{name} changed its bytes")

    def _look_at_secret(self) -> None:
        with suppress(FileNotFoundError):
            secret = (self.run / SECRET).read_bytes()
            self._secret = self._secret or secret
            if secret not in (self._secret, DESTROYED, b""):
                self._fault("the noise key was replaced")

    def _fault(self, text: str) -> None:
        if text not in self.faults:
            self.faults.append(text)

    def audit(self) -> None:
        """Check charges and decisions, if the ledger can be read: they stay, and every visible value has its own."""
        self.look()
        visible = sorted(self._contents)
        try:
            rows = Ledger.read(self.ledger)
        except sqlite3.OperationalError:
            self.unread += 1
            return
        self.copies += 1
        for release, cost, _ in rows.releases:
            if self._releases.setdefault(release, cost) != cost:
                self._fault(f"the cost of release {release} changed")
        for release, number, digest in rows.rounds:
            if self._rounds.setdefault((release, number), digest) != digest:
                self._fault(f"the decision of round {number} changed")
        if lost := (self._releases.keys() - {one[0] for one in rows.releases}):
            self._fault(f"the charges of {', '.join(sorted(lost))} disappeared")
        if len(self._releases) > 1:
            self._fault(f"{len(self._releases)} releases are charged")
        recorded = {number for _, number, _ in rows.rounds}
        for name in visible:
            if not rows.releases:
                self._fault(f"{name} was drawn before its charge")
            number = int(name[:3]) if name.endswith(".parquet") else 0
            if number and number not in recorded:
                self._fault(f"{name} was drawn before its decision was on the ledger")


def _is_final(name: str) -> bool:
    return not name.startswith(".") and name.endswith((".parquet", ".json"))


def check_charge(run: Path, ledger: Path, budget: Fraction) -> list[str]:
    """Return violations of: one charge of the run's release, released, that costs the budget (squared mu)."""
    rows, release = Ledger.read(ledger).releases, json.loads((run / "manifest.json").read_text())["release"]
    if len(rows) != 1:
        return [f"the ledger has {len(rows)} charges"]
    [(charged, text, state)] = rows
    cost = {kind: Fraction(part) for kind, part in json.loads(text).items()}
    paid = cost.pop("gaussian")
    faults = [] if charged == release else ["another release is charged"]
    faults += [] if state == "released" else [f"the charge is {state}"]
    faults += [f"a charge of {kind}" for kind, part in cost.items() if part]
    return faults + ([] if budget * (1 - ACCURACY) < paid <= budget else [f"the charge is {float(paid)}"])


def check_draw(run: Path, ledger: Path, watcher: Watcher) -> list[str]:
    """Return violations that the watcher saw and those that the audit of the finished run finds."""
    before = watcher.copies
    watcher.audit()
    if watcher.copies == before:
        return [*watcher.faults, "the ledger of the finished run cannot be read"]
    found = audit_run(run, ledger)
    unsound = [] if found.sound else [f"the audit finds {float(found.drawn)} drawn of {float(found.paid)}"]
    return [*watcher.faults, *found.faults, *unsound]


def check_answers(run: Path, place: Path) -> list[str]:
    """Return files of answers that differ from those computed again on threads from the same measurements."""
    copy = place / "again"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(run, copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    for folder in ("answers", "model"):
        shutil.rmtree(copy / folder, ignore_errors=True)
    (copy / "report.html").unlink()
    for stage in POST_PROCESSING:
        del manifest["stages"][stage]
    (copy / "manifest.json").write_text(json.dumps(manifest))
    for stage in POST_PROCESSING:
        run_stages(open_run(copy), scheduler="threads", only=stage)
    first, second = _contents(run), _contents(copy)
    shutil.rmtree(copy)
    return [f"{name} differs" for name in sorted(first.keys() | second.keys()) if first.get(name) != second.get(name)]


def _contents(run: Path) -> dict[str, str]:
    """Return the hashes of answers, model and report by name."""
    files = [path for folder in ("answers", "model") for path in (run / folder).rglob("*") if path.is_file()]
    return {str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in [*files, run / "report.html"] if not is_partial(path)}  # fmt: skip


def check_leftovers(run: Path, scratch: Path, processes: Sequence[int] = ()) -> list[str]:
    """Return what a finished run left: a noise key, partial files, a lock, or scratch files of live workers."""
    manifest = json.loads((run / "manifest.json").read_text())
    faults = [] if manifest["secret"] == "destroyed" else ["the manifest has a noise key"]
    faults += [] if free(run) else ["the run directory is locked"]
    faults += [f"{path.relative_to(run)} is left" for path in sorted(run.rglob("*")) if _is_leftover(path)]
    faults += [f"the draft {path.name} is left" for path in run.parent.glob(".*.new")]
    faults += [f"the scratch file {path.name} is left" for path in sorted(scratch.rglob("dpscale-*"))]
    return faults + [f"a worker holds the scratch file {name}" for name in _unnamed_files(processes, scratch)]


def _is_leftover(path: Path) -> bool:
    return is_partial(path) or path.name.startswith((SECRET.split(".")[0], ".seen-"))


def _unnamed_files(processes: Sequence[int], scratch: Path) -> Iterator[str]:
    """Yield the open files of processes that have no name any more, below the folder of their temporary files."""
    for process in processes:
        with suppress(OSError):
            for link in Path(f"/proc/{process}/fd").iterdir():
                with suppress(OSError):
                    target = os.readlink(link)
                    if target.startswith(str(scratch)) and target.endswith("(deleted)"):
                        yield target


KEYS = {"AWS_ACCESS_KEY_ID": "benchmark", "AWS_SECRET_ACCESS_KEY": "benchmark", "AWS_DEFAULT_REGION": "us-east-1"}
BUCKET = "s3://benchmark"
LIMITS = {"cluster": 1.4, "data in S3": 1.3, "run directory in S3": 1.5}
COST_JOB = """[data]
path = "{data}"
domain = "{domain}"
[privacy]
rho = 1.0
dataset = "cost"
ledger = "{ledger}"
[[workload]]
family = "marginal"
degree = 2
[engine]
scheduler = "{scheduler}"
memory = "4GiB"
"""


def wait_for_port(port: int) -> None:
    for _ in range(300):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise SystemExit(f"nothing listens on port {port}")


@contextmanager
def running(*processes: subprocess.Popen[bytes]) -> Iterator[None]:
    """End processes at the end of the block."""
    try:
        yield
    finally:
        for one in reversed(processes):
            one.terminate()
            one.wait()


def busy(processes: Sequence[psutil.Process]) -> float:
    """Return user and system seconds of running processes."""
    return sum(own.user + own.system for own in (one.cpu_times() for one in processes))


def time_job(
    place: Path, data: str, run_dir: str, scheduler: str, others: Sequence[psutil.Process] = ()
) -> dict[str, float]:
    """Return CPU and wall seconds of a job with a new ledger; `others` are the processes of a cluster."""
    ledger = place / f"ledger-{time.time_ns()}.sqlite"
    job = place / "job.toml"
    job.write_text(COST_JOB.format(data=data, domain=place.parent / "domain.toml", ledger=ledger, scheduler=scheduler))
    began, before, own = time.perf_counter(), busy(others), children_seconds()
    subprocess.run([sys.executable, "-m", "dpscale", "run", str(job), "--run-dir", run_dir, "--quiet"], check=True)
    spent = children_seconds() - own
    return {"CPU": spent + busy(others) - before, "wall": time.perf_counter() - began}


def run_on_cluster(place: Path, table: str) -> dict[str, float]:
    port = free_port()
    address = f"tcp://127.0.0.1:{port}"
    scheduler = start_process("dask_scheduler", "--host", address, "--no-dashboard", "--no-show")
    wait_for_port(port)
    workers = [start_process("dask_worker", "--nthreads", "1", "--no-dashboard", address) for _ in range(2)]
    with running(scheduler, *workers):
        from distributed import Client

        with Client(address, set_as_default=False) as client:
            client.wait_for_workers(2)
        started = [psutil.Process(one.pid) for one in (scheduler, *workers)]
        everything = [own for one in started for own in (one, *one.children(recursive=True))]
        return time_job(place, table, str(place / "on-cluster"), address, everything)


def run_with_store(place: Path, table: Path) -> dict[str, dict[str, float]]:
    """Return the seconds with the data in a store, and with the run directory there."""
    import s3fs

    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with running(server):
        wait_for_port(port)
        os.environ |= {**KEYS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
        files = s3fs.S3FileSystem(use_listings_cache=False, endpoint_url=os.environ["AWS_ENDPOINT_URL"])
        files.mkdir("benchmark")
        files.put(str(table), f"{BUCKET}/table", recursive=True)
        return {"data in S3": time_job(place, f"{BUCKET}/table", str(place / "data-in-s3"), "threads"),
                "run directory in S3": time_job(place, str(table), f"{BUCKET}/run", "threads")}  # fmt: skip


def run_everywhere(place: Path, table: Path, package: Path) -> dict[str, dict[str, float]]:
    """Return the seconds of the job in every place, with the package in a folder."""
    os.environ["PYTHONPATH"] = str(package)
    place.mkdir()
    time_job(place, str(table / "table"), str(place / "warm"), "threads")
    found = {"threads": time_job(place, str(table / "table"), str(place / "threads"), "threads")}
    found["cluster"] = run_on_cluster(place, str(table / "table"))
    return found | run_with_store(place, table / "table")


def print_costs(found: dict[str, dict[str, float]], limits: dict[str, float]) -> None:
    for name, seconds in found.items():
        ratios = {kind: own / found["threads"][kind] for kind, own in seconds.items()}
        limit = f", at most {limits[name]} required" if name in limits else ""
        print(f"{name}: {seconds['CPU']:.1f} CPU s, {ratios['CPU']:.2f} times threads{limit}; {seconds['wall']:.1f} s, "
              f"{ratios['wall']:.2f} times", flush=True)  # fmt: skip


def print_cost() -> None:
    """What a cluster and an object store cost: CPU and wall seconds of one job on threads, on a cluster, and with S3.

    The job counts, measures, answers and reports all pairs of 300 attributes of four values. On the cluster, a
    scheduler and two workers run in their own processes, started before; their CPU time during the job is added to that
    of the command. Object stores are a server of the S3 protocol (moto) on this machine, whose own time is not counted:
    first the data are there, then the run directory. Every row is printed as a ratio to threads with files, in the same
    run, beside that of an earlier commit.

        python benchmarks/clusters.py cost [--rows 12000000] [--baseline 2741c547] [--save]
    """
    parser = base.command_parser(print_cost.__doc__)
    parser.add_argument("--rows", type=int, default=12_000_000)
    parser.add_argument("--baseline", default=BASELINE)
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    os.environ["DPSCALE_STORE"] = "off"
    with tempfile.TemporaryDirectory(dir=".") as folder:
        place = Path(folder).resolve()
        table = generate_table(place, "made", given.rows, 300, "4", 32)
        domain = place / "domain.toml"
        (table / "domain.toml").rename(domain)
        before = run_everywhere(place / "earlier", table, unpack(given.baseline, place / "package"))
        print(f"with the package of {given.baseline}:")
        print_costs(before, {})
        found = run_everywhere(place / "now", table, ROOT)
        print("now:")
        print_costs(found, LIMITS)
    figures: dict[str, float] = {"rows": given.rows}
    for start, every in (("before, ", before), ("", found)):
        figures |= {f"{start}{name}, {kind}": own for name, one in every.items() for kind, own in one.items()}
    if given.save:
        base.save("cluster_cost", figures)


COMMANDS = {
    "kills": print_kills,
    "cost": print_cost,
}

if __name__ == "__main__":
    base.run_command(COMMANDS, __doc__)
