"""Other packages beside `aim-grem`, in one run: all 3-way marginals of real tables, δ = 1e-9.

Every run is a process of its own, in the Python that is given for the package, with the same limits: CPU seconds of the
mechanism (imports, exact counts and the error are excluded) and resident memory. A run over a limit is reported as
such; larger ε are then not run with the same mechanism and table. Error: as in adaptive.py. Every mechanism takes the
domain as public; AIM on `mbi` and SWIFT know the workload. Estimates of dpscale and of `mbi` are exact where
that is feasible; other answers are from many rows (see rival_*.py).

    python benchmarks/adaptive.py --rivals mbi=PYTHON dpmm=PYTHON dpsynth=PYTHON [--epsilons 0.1 1 10] [--seeds 2]
        --tables adult telco acs23 nursery    the default here; 66 attributes: wide_rivals.py
        --seconds 120 --gib 4                 the limits of a run
        --minutes 60                          start no run after that time
        --records FILE                        JSON lines of all runs; runs that it already holds are not repeated
        --save                                save the figures in results/

ε are run in the order of --epsilons, first seeds first: a stopped run has whole columns.

Environments: mbi==2.0.0; dpmm==0.1.9 with torch==2.13.0 (Python 3.11 at most); dpsynth, which is in no registry (its
commit cf8075f, with mbi==2.0.0; Python 3.12 at least). A package without a Python is left out. Seeds after the first
are left out where the first run takes more than REPEATED CPU seconds. Never part of CI.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import base

from dpscale.privacy import gdp_mu, zcdp_rho

TABLES = ("adult", "telco", "acs23", "nursery")
MECHANISMS = (
    ("dpscale", "aim-grem"), ("dpscale", "aim-grem, rows"), ("mbi", "MST"), ("mbi", "mixture"),
    ("dpsynth", "SWIFT"), ("mbi", "AIM"), ("dpmm", "PrivBayes"), ("dpmm", "MST"), ("dpmm", "AIM"),
)  # fmt: skip
DELTA, REPEATED, PAUSE, WAITING = 1e-9, 20.0, 0.2, 20.0
OVER_TIME, OVER_MEMORY, FAILED, NOT_RUN, LATER = "over time", "over memory", "failed", "not run", "not reached"
Key = tuple[str, str, str, float, int]  # package, mechanism, table, ε, seed
Record = dict[str, Any]


@dataclass(frozen=True)
class Limits:
    """CPU seconds and resident GiB of one run, and minutes after which no run is started."""

    seconds: float
    gib: float
    minutes: float


@dataclass(frozen=True)
class Runner:
    """Runs of mechanisms in the Pythons of their packages."""

    pythons: Mapping[str, str]
    data: Path
    limits: Limits

    def run(self, key: Key) -> Record:
        """Run one mechanism and return its error, CPU seconds and peak memory, or how it ended."""
        return self.call(key, self.data.resolve())

    def call(self, key: Key, data: Path, *options: object) -> Record:
        """Run the script of a package on the tables of a folder."""
        package, mechanism, table, epsilon, seed = key
        script = Path(__file__).with_name(f"rival_{package}.py")
        budget = {"--rho": zcdp_rho(epsilon, DELTA), "--mu": gdp_mu(epsilon, DELTA), "--limit": self.limits.seconds}
        command = [self.pythons[package], script, mechanism, table, epsilon, seed, "--data", data, *options]
        command += [part for name, value in budget.items() for part in (name, float(value))]
        process = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True, env=environment(package), start_new_session=True)  # fmt: skip
        ended = self._watch(process)
        output, errors = process.communicate()
        if ended or process.returncode == -signal.SIGXCPU:
            return {"status": ended or OVER_TIME}
        if process.returncode:
            return {"status": FAILED, "reason": (errors.strip().splitlines() or ["no message"])[-1]}
        return {"status": "done", **json.loads(output.splitlines()[-1])}

    def _watch(self, process: subprocess.Popen[str]) -> str:
        """Wait for the end; stop the process over the memory limit, or at WAITING times the CPU limit by the clock."""
        began = time.monotonic()
        while process.poll() is None:
            over = OVER_MEMORY if limited_gib(process.pid) > self.limits.gib else ""
            over = over or (OVER_TIME if time.monotonic() - began > WAITING * self.limits.seconds else "")
            if over:
                os.killpg(process.pid, signal.SIGKILL)
                return over
            time.sleep(PAUSE)
        return ""


def environment(package: str) -> dict[str, str]:
    """Return the environment of a run: one thread, and no path to dpscale for the others."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH" or package == "dpscale"}
    return clean | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "DPSCALE_STORE": "off"}


def limited_gib(pid: int) -> float:
    """Return the resident memory of a process while its CPU limit is in force, otherwise 0."""
    try:
        limits, status = (Path(f"/proc/{pid}/{name}").read_text() for name in ("limits", "status"))
    except OSError:
        return 0.0
    if "Max cpu time              unlimited" in limits:
        return 0.0
    return sum(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:")) / 2**20


def is_over(record: Record) -> bool:
    """Return whether a run was stopped at a limit."""
    return record["status"] in (OVER_TIME, OVER_MEMORY)


class Records:
    """Finished runs, and the file that keeps them."""

    def __init__(self, file: Path | None, limits: Limits) -> None:
        self.file, self.limits = file, limits
        self.found: dict[Key, Record] = {}
        lines = file.read_text().splitlines() if file and file.exists() else []
        for line in lines:
            own = json.loads(line)
            if own.pop("limits") == [limits.seconds, limits.gib]:
                package, mechanism, table, epsilon, seed = own.pop("key")
                self.found[package, mechanism, table, epsilon, seed] = own

    def add(self, key: Key, record: Record) -> None:
        self.found[key] = record
        if self.file:
            with self.file.open("a") as lines:
                kept = {"key": key, "limits": [self.limits.seconds, self.limits.gib], **record}
                lines.write(json.dumps(kept) + "\n")

    def settles(self, key: Key) -> bool:
        """Return whether a run is not needed: there, slow and run once, or over a limit at a smaller ε or seed."""
        if key in self.found:
            return True
        same = [(other[3], other[4], record) for other, record in self.found.items() if other[:3] == key[:3]]
        epsilon, seed = key[3:]
        return any(
            (is_over(record) and own < epsilon)
            or (own == epsilon and first < seed and (record["status"] != "done" or record["seconds"] > REPEATED))
            for own, first, record in same
        )

    def cell(self, package: str, mechanism: str, table: str, epsilon: float, names: Sequence[str]
             ) -> str | dict[str, float]:  # fmt: skip
        """Return the mean of each measure of a cell and its number of seeds, or how its runs ended."""
        own = [record for key, record in self.found.items() if key[:4] == (package, mechanism, table, epsilon)]
        done = [record for record in own if record["status"] == "done"]
        if not done:
            missing = NOT_RUN if self.settles((package, mechanism, table, epsilon, 0)) else LATER
            return str(own[0]["status"]) if own else missing
        mean = {name: fmean(record[name] for record in done) for name in names}
        return mean | {"seeds": float(len(done))}

    def minutes(self) -> float:
        """Return the CPU minutes of all mechanisms."""
        return sum(record.get("seconds", self.limits.seconds) for record in self.found.values()) / 60


@dataclass(frozen=True)
class Grid:
    """All cells of a benchmark, and the measures of a cell; the first one is saved under the name of the cell."""

    mechanisms: Sequence[tuple[str, str]]
    tables: Sequence[str]
    epsilons: Sequence[float]
    seeds: range
    measures: Sequence[str] = ("error", "seconds")

    def keys(self) -> Iterator[Key]:
        """Yield all runs: first seeds first, then ε in their order, then quick mechanisms."""
        for seed, epsilon, (package, mechanism), table in product(
            self.seeds, self.epsilons, self.mechanisms, self.tables
        ):
            yield package, mechanism, table, epsilon, seed

    def run(self, runner: Runner, records: Records) -> dict[str, float | str]:
        """Run everything that is missing, print it and return the figures."""
        keys = list(self.keys())
        if not records.found:
            runner.run(next(key for key in keys if key[0] == "dpscale"))  # compiles the loops of dpscale
        limits, began = runner.limits, time.monotonic()
        for key in keys:
            if not records.settles(key) and time.monotonic() - began < 60 * limits.minutes:
                records.add(key, runner.run(key))
                print(*key, records.found[key], flush=True)
        figures: dict[str, float | str] = {"seconds of a run": limits.seconds, "GiB of a run": limits.gib}
        figures |= {"seconds of a repeated run": REPEATED, "CPU minutes": records.minutes()}
        for (package, mechanism), table, epsilon in product(self.mechanisms, self.tables, sorted(self.epsilons)):
            found = records.cell(package, mechanism, table, epsilon, self.measures)
            name = f"{package} {mechanism}, {table}, {epsilon:g}"
            print(f"{name}: {found}", flush=True)
            figures |= {name: found} if isinstance(found, str) else {
                name if what == self.measures[0] else f"{name}, {what}": value for what, value in found.items()
            }  # fmt: skip
        return figures


def known_pythons(given: Sequence[str]) -> dict[str, str]:
    """Return the Python of each package, from NAME=PYTHON; dpscale has this one."""
    return {"dpscale": sys.executable} | dict(own.split("=", 1) for own in given)


def run(
    given: Sequence[str], tables: Sequence[str], epsilons: Sequence[float], seeds: range, data: Path,
    limits: Limits, file: Path | None, save: str, mechanisms: Sequence[tuple[str, str]] = MECHANISMS,
) -> None:  # fmt: skip
    """Run everything that is missing, print it, and save the figures under the name `save`, unless it is empty."""
    pythons = known_pythons(given)
    grid = Grid([own for own in mechanisms if own[0] in pythons], tables, epsilons, seeds)
    figures = grid.run(Runner(pythons, data, limits), Records(file, limits))
    if save:
        base.save(save, figures)
