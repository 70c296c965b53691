"""Kills of workers, scheduler and client of runs with a real noise key: one draw, one charge, the same answers.

A scheduler and two workers run in their own processes. The client is `dpscale run`, or `dpscale submit` and `wait` in
every fifth run, repeated until the run is done. Half of the runs have a fixed plan, the others `aim-grem`. A process is
killed (SIGKILL) at a random time, or a random time after the next value file is visible; what is dead starts again
after a random pause. Every finished run is checked (`kill_checks`), and a violation ends the benchmark with code 1.

    python benchmarks/cluster_kills.py [--kills 100] [--seed 1] [--only KIND] [--folder DIR] [--save]
"""

from __future__ import annotations

import argparse
import json
import os
import random
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
VICTIMS = ("scheduler", "worker 1", "worker 2", "client")
RHO, AGAIN, KILLED = 0.5, 75, -9
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
        self.environment = os.environ | {"TMPDIR": str(self.scratch), "DPSCALE_STORE": "off",
                                         "DASK_DPSCALE__WORKER_WAIT": "60", "PYTHONPATH": str(ROOT)}  # fmt: skip
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._starts: dict[str, float] = {}

    def start(self, name: str) -> None:
        """Start a process of the cluster."""
        own = ["dask_scheduler", "--host", "127.0.0.1", "--port", str(self.port), "--no-show"]
        if name != "scheduler":
            own = ["dask_worker", self.address, "--host", "127.0.0.1", "--nthreads", "1", "--no-nanny",
                   "--local-directory", str(self.scratch / name.replace(" ", "-"))]  # fmt: skip
        self.processes[name] = self.launch("-m", f"distributed.cli.{own[0]}", "--no-dashboard", *own[1:], log=name)

    def launch(self, *arguments: str, log: str) -> subprocess.Popen[bytes]:
        """Start a Python process in its own session; its output goes to a log file."""
        with open(self.place / f"{log}.log", "ab") as file:
            return subprocess.Popen([sys.executable, *arguments], env=self.environment, cwd=self.place, stdout=file,
                                    stderr=file, start_new_session=True)  # fmt: skip

    def revive(self, pause: float) -> None:
        """Start every dead process of the cluster, `pause` seconds after this was first seen."""
        for name in VICTIMS[:3]:
            if self.is_alive(name):
                continue
            now = time.monotonic()
            if now >= self._starts.setdefault(name, now + (pause if name in self.processes else 0.0)):
                del self._starts[name]
                self.start(name)

    def is_alive(self, name: str) -> bool:
        return name in self.processes and self.processes[name].poll() is None

    @property
    def workers(self) -> list[int]:
        """Process ids of the live workers."""
        return [self.processes[name].pid for name in VICTIMS[1:3] if self.is_alive(name)]

    def close(self) -> None:
        for process in self.processes.values():
            kill(process)


def kill(process: subprocess.Popen[bytes]) -> bool:
    """Kill a process; return whether it was alive."""
    alive = process.poll() is None
    process.kill()
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
                if wanted and self._is_due(next_kill, watcher) and self._kill(wanted[0], client):
                    watcher.audit()
                    wanted.pop(0)
                    next_kill = self._draw_time(watcher)
                if time.monotonic() > end:
                    self.faults.append(f"the run is not done after {MOST_SECONDS:.0f} s")
                    return
                time.sleep(0.01)
        finally:
            kill(client)

    def _first(self) -> str:
        return "submit" if self.submitted else "run"

    def _start(self, command: str) -> subprocess.Popen[bytes]:
        own = {"run": [str(self.job), "--run-dir", str(self.run), "--quiet"], "wait": [str(self.run)],
               "submit": [str(self.job), "--run-dir", str(self.run), "--scheduler", self.cluster.address],
               "cancel": [str(self.run)]}[command]  # fmt: skip
        return self.cluster.launch("-m", "dpscale", command, *own, log=f"client-{self.run.parent.name}")

    def _following(self, command: str, code: int) -> str | None:
        """Return the command after one that ended; None if the run is done or cannot continue."""
        if code not in (0, AGAIN, KILLED):
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
        return {"submit": "wait" if code == 0 else "submit", "wait": "wait", "cancel": "submit"}[command]

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

    def _kill(self, name: str, client: subprocess.Popen[bytes]) -> bool:
        """Kill a live process while the run works; return whether it was alive."""
        if client.poll() is not None:
            return False
        stage = running_stage(self.run)
        hit = kill(client) if name == "client" else self.cluster.is_alive(name) and kill(self.cluster.processes[name])
        if hit:
            self.kills[name.split()[0]] += 1
            self.stages[stage] += 1
            if name == "scheduler" and self.submitted:
                self.lost_driver = (self.run / "driver.json").exists()
                kill(client)  # `wait` would notice the lost driver after a minute
        return hit


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
    found = {"charge": check_charge(one.run, ledger, Fraction(2 * RHO)), "draw": check_draw(one.run, ledger, watcher),
             "answers": check_answers(one.run, place), "leftover": left}  # fmt: skip
    return [f"{name}: {fault}" for name, faults in found.items() for fault in faults]


def draw_victims(left: Counter[str], generator: random.Random, most: int) -> list[str]:
    """Return the next processes to kill, so that all kinds are killed about equally often."""
    chosen: list[str] = []
    while len(chosen) < most and left.total():
        kind = generator.choices(list(left), list(left.values()))[0]
        left[kind] -= 1
        chosen.append(f"worker {generator.choice((1, 2))}" if kind == "worker" else kind)
    return chosen


def run_campaign(
    place: Path, kills: int, seed: int, kinds: Sequence[str], rows: int, attributes: int
) -> tuple[Figures, list[str]]:
    """Kill processes of one run after another; return figures and violations."""
    generator, figures, faults = random.Random(seed), Counter[str](), list[str]()
    share = -(-kills // 3)
    left = Counter({"scheduler": share, "worker": share, "client": kills - 2 * share})
    with closing(Cluster(place / "cluster")) as cluster:
        while left.total():
            number = figures["runs"]
            kind, folder = kinds[number % len(kinds)], place / f"{number:03d}"
            job = write_job(folder, kind, rows, attributes, cluster.address)
            one = Supervised(cluster, job, folder / "run", number % 5 == 4, generator)
            victims = draw_victims(left, generator, generator.randint(*KILLS_PER_RUN))
            began = time.monotonic()
            with Watcher(one.run, folder / "ledger.sqlite") as watcher:
                one.finish(victims, watcher)
                found = one.faults or check(folder, one, watcher)
            left += Counter(victim.split()[0] for victim in victims) - one.kills  # the run was done before them
            figures += Counter({"runs": 1, f"runs, {kind}": 1, "submitted": int(one.submitted)})
            figures += count_events(one, watcher)
            faults += [f"run {number}: {fault}" for fault in found]
            print(f"run {number}: {kind}{', submitted' * one.submitted}, {dict(one.kills)}, {one.resumptions} "
                  f"resumptions, {time.monotonic() - began:.0f} s", *found, sep="\n  ", flush=True)  # fmt: skip
            if one.faults:
                break
    return {**figures}, faults


def count_events(one: Supervised, watcher: Watcher) -> Counter[str]:
    """Return the kills of a run by kind and stage, its resumptions, and what was observed."""
    kills = {f"kills, {kind}": count for kind, count in one.kills.items()}
    stages = {f"kills in stage {stage}": count for stage, count in one.stages.items()}
    seen = {"resumptions": one.resumptions, "audits": watcher.copies, "files": watcher.files}
    return Counter({**kills, **stages, **seen})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1, help="of victims and times; the noise has none")
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
