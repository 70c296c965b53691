"""Other packages beside dpscale, each in the Python that is given for it.

    python benchmarks/rivals.py estimates    errors of all 3-way marginals of real tables
    python benchmarks/rivals.py rows         synthetic rows and their uses
    python benchmarks/rivals.py wide         a generated table of 66 attributes

rivals/ has the scripts that run in those Pythons.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import base
import numpy as np
from base import DATA, KEPT, LINKED, Table, load_table
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.tree import DecisionTreeClassifier

from dpscale.evaluation.models import auc
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
        script = base.ROOT / "benchmarks" / "rivals" / ("case.py" if package == "records" else f"run_{package}.py")
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


def read_options(text: str | None, tables: Sequence[str], name: str) -> tuple[Any, ...]:
    """Return the arguments of `run` and `run_rows`; figures are saved under `name`."""
    parser = base.command_parser(text)
    parser.add_argument("pythons", nargs="*", metavar="NAME=PYTHON")
    parser.add_argument("--tables", nargs="+", default=tables, choices=(*KEPT, *LINKED))
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.1, 1.0, 10.0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=100)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--gib", type=float, default=4)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--records", type=Path)
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    limits = Limits(given.seconds, given.gib, given.minutes)
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    return (given.pythons, given.tables, given.epsilons, seeds, given.data, limits, given.records,
            name if given.save else "")  # fmt: skip


def print_estimates() -> None:
    """Other packages beside `aim-grem`, in one run: all 3-way marginals of real tables, δ = 1e-9.

    Every run is a process of its own, in the Python that is given for the package, with the same limits: CPU seconds of
    the mechanism (imports, exact counts and the error are excluded) and resident memory. A run over a limit is reported
    as such; larger ε are then not run with the same mechanism and table. Error: as in adaptive.py. Every mechanism
    takes the domain as public; AIM on `mbi` and SWIFT know the workload. Estimates of dpscale and of `mbi` are exact
    where that is feasible; other answers are from many rows (see rivals/run_*.py).

        python benchmarks/rivals.py estimates mbi=PYTHON dpmm=PYTHON dpsynth=PYTHON [--epsilons 0.1 1 10] [--seeds 2]
            --tables adult telco acs23 nursery    the default; 66 attributes: the command `wide`
            --seconds 120 --gib 4                 the limits of a run
            --minutes 60                          start no run after that time
            --records FILE                        JSON lines of all runs; runs that it already holds are not repeated
            --save                                save the figures in results/

    ε are run in the order of --epsilons, first seeds first: a stopped run has whole columns.

    Environments: mbi==2.0.0; dpmm==0.1.9 with torch==2.13.0 (Python 3.11 at most); dpsynth, which is in no registry
    (its commit cf8075f, with mbi==2.0.0; Python 3.12 at least). A package without a Python is left out. Seeds after the
    first are left out where the first run takes more than REPEATED CPU seconds. Never part of CI.
    """
    run(*read_options(print_estimates.__doc__, TABLES, "rivals"))


WIDE_TABLE, WIDE_EPSILON, WIDE_SEED = "census", 1.0, 100
WIDE_MECHANISMS = (("dpscale", "aim-grem"), ("dpscale", "aim-grem, rows"), ("mbi", "mixture"))


def print_wide() -> None:
    """Other packages on a generated table of 66 attributes, at ε = 1.

    python benchmarks/rivals.py wide mbi=PYTHON [--seconds 1200] [--gib 4] [--records FILE] [--save]
    """
    parser = base.command_parser(print_wide.__doc__)
    parser.add_argument("python", nargs="?", metavar="mbi=PYTHON")
    parser.add_argument("--seconds", type=float, default=1200)
    parser.add_argument("--gib", type=float, default=4)
    parser.add_argument("--records", type=Path)
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    run([given.python] if given.python else [], [WIDE_TABLE], [WIDE_EPSILON], range(WIDE_SEED, WIDE_SEED + 1), DATA,
               Limits(given.seconds, given.gib, float("inf")), given.records,
               "wide_rivals" if given.save else "", WIDE_MECHANISMS)  # fmt: skip


LEARNT, MEMBERS, CHUNK = 10_000, 2_000, 250
LEARNERS = ("logistic regression", "tree", "forest", "boosting")
MEASURES = ("1-way", "2-way", "3-way", *LEARNERS, "propensity", "membership")


def measure_rows(records: Table, held_out: Table, codes: np.ndarray, target: str, seed: int) -> dict[str, float]:
    """Return all measures of rows that were made from records.

    Learners and propensity use at most LEARNT rows of each table, membership at most MEMBERS records of each side.
    """
    random = np.random.default_rng(seed)
    rows = Table("rows", records.sizes, codes)
    return {
        **{f"{degree}-way": mean_distance(records, rows, degree) for degree in (1, 2, 3)},
        **learner_scores(rows, held_out, target, random),
        "propensity": propensity(records, rows, random),
        "membership": membership(records, held_out, rows, random),
    }


def mean_distance(first: Table, second: Table, degree: int) -> float:
    """Return the mean total variation distance of all marginals of a degree."""
    return float(np.mean([
        np.abs(first.counted(names) / first.rows - second.counted(names) / second.rows).sum() / 2
        for names in combinations(first.names, degree)
    ]))  # fmt: skip


def codes_of(table: Table, random: np.random.Generator, most: int) -> np.ndarray:
    """Return the codes of all records in a random order, or of a sample."""
    return np.stack(list(table.columns.values()), axis=1)[random.permutation(table.rows)[:most]]


def make_learner(name: str, sizes: list[int]) -> object:
    """Return a learner; trees see codes as numbers, the regression sees each value."""
    if name == "logistic regression":
        values = OneHotEncoder(categories=[np.arange(size) for size in sizes])
        return make_pipeline(values, LogisticRegression(max_iter=200))
    makers = {
        "tree": DecisionTreeClassifier,
        "forest": RandomForestClassifier,
        "boosting": HistGradientBoostingClassifier,
    }
    options = {"tree": {"max_depth": 12}, "forest": {"min_samples_leaf": 2}, "boosting": {"early_stopping": False}}
    return makers[name](random_state=0, **options[name])


def learner_scores(rows: Table, held_out: Table, target: str, random: np.random.Generator) -> dict[str, float]:
    """Return the balanced accuracy on held-out records of learners that are trained on rows."""
    at = rows.names.index(target)
    sizes = [size for name, size in rows.sizes.items() if name != target]
    train, test = (codes_of(table, random, LEARNT) for table in (rows, held_out))
    (x, y), (features, truth) = ((np.delete(codes, at, axis=1), codes[:, at]) for codes in (train, test))
    scores = {}
    for name in LEARNERS:
        guess = np.full(len(truth), y[0])
        if len(np.unique(y)) > 1:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                guess = make_learner(name, sizes).fit(x, y).predict(features)
        scores[name] = balanced_accuracy(truth, guess)
    return scores


def balanced_accuracy(truth: np.ndarray, guess: np.ndarray) -> float:
    """Return the mean over the classes of the share of their records that is guessed right."""
    return float(np.mean([(guess[truth == one] == one).mean() for one in np.unique(truth)]))


def propensity(records: Table, rows: Table, random: np.random.Generator) -> float:
    """Return the AUC of boosting that learns on half of the rows and records which are rows, on the other half."""
    most = min(LEARNT, records.rows, rows.rows)
    sides = [codes_of(table, random, most) for table in (records, rows)]
    halves = [np.concatenate([side[part] for side in sides])
              for part in (slice(most // 2), slice(most // 2, most))]  # fmt: skip
    labels = [np.repeat([0, 1], len(half) // 2) for half in halves]
    model = HistGradientBoostingClassifier(early_stopping=False, random_state=0).fit(halves[0], labels[0])
    return auc(model.predict_proba(halves[1])[:, 1], labels[1] == 1)


def membership(records: Table, held_out: Table, rows: Table, random: np.random.Generator) -> float:
    """Return the AUC of the closeness of the closest row: records of the release against held-out ones."""
    most = min(MEMBERS, records.rows, held_out.rows)
    sides = [codes_of(table, random, most) for table in (records, held_out)]
    closeness = np.concatenate([closest(side, rows) for side in sides])
    return auc(closeness, np.arange(2 * most) < most)


def closest(codes: np.ndarray, rows: Table) -> np.ndarray:
    """Return the largest number of equal values of each record with a row."""
    every = np.unique(np.stack(list(rows.columns.values()), axis=1), axis=0)
    starts, cells = np.cumsum([0, *rows.sizes.values()])[:-1], sum(rows.sizes.values())

    def indicators(own: np.ndarray) -> np.ndarray:
        found = np.zeros((len(own), cells), np.float32)
        np.put_along_axis(found, own + starts, 1, axis=1)
        return found

    right = indicators(every)
    parts = [codes[i : i + CHUNK] for i in range(0, len(codes), CHUNK)]
    return np.concatenate([(indicators(part) @ right.T).max(axis=1) for part in parts]).astype(np.float64)


ROW_TABLES = ("adult", "nursery", "titanic")
TARGETS = {"adult": "income>50K", "nursery": "assessment", "titanic": "Survived", "telco": "Churn", "mushroom": "class"}
KEPT_OUT = 0.2
ROW_MECHANISMS = (
    ("records", "drawn again"), ("records", "columns alone"), ("dpscale", "weighted-residuals"),
    ("dpscale", "aim-grem"), ("dpscale", "aim-pgm"), ("mbi", "MST"), ("mbi", "mixture"), ("dpsynth", "SWIFT"),
    ("mbi", "AIM"), ("margnet", "MargNet"), ("dpmm", "PrivBayes"), ("dpmm", "MST"), ("dpmm", "AIM"),
)  # fmt: skip
NO_PYTHON = "no Python was given"
NEVER_RUN = {"PrivPetal": "its code needs CUDA devices"}


@dataclass(frozen=True)
class RowRunner(Runner):
    """Runs that make rows, in a folder for the tables of the releases, and the measures of the rows."""

    place: Path

    def run(self, key: Key) -> Record:
        table, held_out = split_table(key[2], key[4], self.data)
        write_table(table, self.place)
        file = self.place / "rows.npy"
        record = self.call(key, self.place, "--rows", file)
        if record["status"] == "done":
            record |= measure_rows(table, held_out, np.load(file), TARGETS[table.name], key[4])
        return record


def split_table(name: str, seed: int, data: Path) -> tuple[Table, Table]:
    """Return the records of a release and the held-out ones."""
    table = load_table(name, data)
    if table is None:
        raise SystemExit(f"{name}: its file is not in {data}; give --data")
    if name not in TARGETS:
        raise SystemExit(f"{name}: no target for the learners; accepted: {', '.join(TARGETS)}")
    codes = np.stack(list(table.columns.values()), axis=1)
    out = np.random.default_rng(seed).random(len(codes)) < KEPT_OUT
    return Table(name, table.sizes, codes[~out]), Table(name, table.sizes, codes[out])


def write_table(table: Table, place: Path) -> None:
    """Write a table in the form that `load_table` reads."""
    (place / "tables").mkdir(exist_ok=True)
    np.savez(place / "tables" / f"{table.name}.npz", names=list(table.sizes), sizes=list(table.sizes.values()),
             codes=np.stack(list(table.columns.values()), axis=1).astype(np.int32))  # fmt: skip


def run_rows(
    given: Sequence[str], tables: Sequence[str], epsilons: Sequence[float], seeds: range, data: Path,
    limits: Limits, file: Path | None, save: str,
) -> None:  # fmt: skip
    """Run everything that is missing, print it, and save the figures under the name `save`, unless it is empty."""
    pythons = known_pythons(given) | {"records": sys.executable}
    grid = Grid([own for own in ROW_MECHANISMS if own[0] in pythons], tables, epsilons, seeds,
                       (*MEASURES, "seconds"))  # fmt: skip
    with TemporaryDirectory() as place:
        figures = grid.run(RowRunner(pythons, data, limits, Path(place)), Records(file, limits))
    missing = NEVER_RUN | {package: NO_PYTHON for package, _ in ROW_MECHANISMS if package not in pythons}
    for package, reason in missing.items():
        print(f"{package}: not run: {reason}")
        figures[f"{package}, not run"] = reason
    if save:
        base.save(save, figures)


def print_rows() -> None:
    """Rows of other packages beside those of dpscale, in one run and by the same measures; δ = 1e-9.

    A table is split: four fifths are the records of a release, the rest is held out. Every run is a process with limits
    as in `estimates` and returns as many rows as records within its CPU seconds; fits, files and drawing count.
    Measures, those of published benchmarks of private tables that need no further package (`measure_rows`):

    - mean total variation distance of all 1-, 2- and 3-way marginals of rows and records;
    - balanced accuracy on held-out records of four learners trained on rows: logistic regression, tree, forest,
      boosting;
    - propensity: AUC of boosting that distinguishes rows from records; 0.5 is the best result;
    - membership: AUC of the distance to the closest row, records of the release against held-out ones; 0.5: no risk
      seen.

        python benchmarks/rivals.py rows mbi=PYTHON dpsynth=PYTHON dpmm=PYTHON margnet=PYTHON
            [--epsilons 1 10] [--seeds 1]

    The options are those of `estimates`. Two rows are references without privacy (rivals/case.py). MargNet: commit
    8b75032 on the path of a Python with torch==2.13.0, networkx, matplotlib and tomli. PrivPetal (commit 1793df8) makes
    linked tables on CUDA devices only, and is reported as such. Never part of CI.
    """
    run_rows(*read_options(print_rows.__doc__, ROW_TABLES, "row_rivals"))


COMMANDS = {
    "estimates": print_estimates,
    "rows": print_rows,
    "wide": print_wide,
}

if __name__ == "__main__":
    base.run_command(COMMANDS, __doc__)
