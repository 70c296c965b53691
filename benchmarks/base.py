"""What benchmarks share: saved results, commands, processes, and tables.

Results are in `results/NAME.json`, one file per benchmark, from which docs/benchmarks.md is generated. A file has
`run`, the time and place of the measurement, and `figures` by name. A run replaces the whole file, so that all figures
of a file are from one run; a run that lacks a figure of the file is not saved.

Nothing here imports dpscale or another large package at its top: processes whose memory is measured import this module,
and so do processes with an earlier dpscale or with another package only.
"""

from __future__ import annotations

import argparse
import csv
import inspect
import io
import json
import math
import os
import platform
import resource
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
from functools import lru_cache, partial
from importlib.metadata import version
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).with_name("results")
ROOT = Path(__file__).parents[1]
BASELINE = "2741c547"  # the earlier commit beside which several benchmarks run
DIGITS = 6


def command_parser(text: str | None) -> argparse.ArgumentParser:
    """Return a parser that prints a text with its line breaks."""
    return argparse.ArgumentParser(description=inspect.cleandoc(text or ""),
                                   formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip


def run_command(commands: Mapping[str, Callable[[], object]], text: str | None) -> None:
    """Call the command that the first argument names; print a text and the commands without one."""
    given = sys.argv[1] if len(sys.argv) > 1 else ""
    if given in commands:
        sys.argv[:2] = [f"{sys.argv[0]} {given}"]
        commands[given]()
        return
    usage = f"{inspect.cleandoc(text or '')}\n\ncommands: {', '.join(commands)}; each has --help"
    if given not in ("-h", "--help"):
        raise SystemExit(usage)
    print(usage)


def load(name: str) -> dict[str, Any]:
    """Return the figures of a benchmark."""
    return dict(json.loads(result_path(name).read_text())["figures"])


def save(name: str, figures: Mapping[str, float | str]) -> None:
    """Save the figures of a run; exit if one is missing."""
    path = result_path(name)
    lacking = load(name).keys() - figures.keys() if path.exists() else set()
    if lacking:
        raise SystemExit(f"not saved: this run has no figure for {', '.join(sorted(lacking))}")
    rounded = {
        key: float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value for key, value in figures.items()
    }
    path.write_text(json.dumps({"run": describe_run(), "figures": rounded}, indent=2, ensure_ascii=False) + "\n")
    print(f"saved in {path.parent.name}/{path.name}; python benchmarks/tables.py puts it into docs/benchmarks.md")


def run_separately(script: str, what: object, *command: str) -> dict[str, float]:
    """Return the JSON that a command of a script prints for `--one`, in a new process without stored solutions."""
    command = (sys.executable, script, *command, "--one", json.dumps(what))
    nothing = os.environ | {"DPSCALE_STORE": "off"}
    found: dict[str, float] = json.loads(
        subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=nothing).stdout
    )
    return found


def children_seconds() -> float:
    """Return user and system seconds of all child processes that have ended."""
    times = resource.getrusage(resource.RUSAGE_CHILDREN)
    return times.ru_utime + times.ru_stime


def all_seconds() -> float:
    """Return user and system seconds of this process and of all child processes that have ended."""
    times = resource.getrusage(resource.RUSAGE_SELF)
    return times.ru_utime + times.ru_stime + children_seconds()


def unpack(commit: str, place: Path) -> Path:
    """Unpack the package of a commit and return the folder that contains it."""
    packed = subprocess.run(["git", "-C", str(ROOT), "archive", commit, "dpscale"], capture_output=True, check=False)
    if packed.returncode:
        sys.exit(f"commit {commit} is not in this repository; the baseline needs a clone with its whole history")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(place, filter="data")
    return place


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def describe_run() -> str:
    """Return date, version and machine."""
    return f"{date.today()}, dpscale {version('dpscale')}, Python {platform.python_version()}, {os.cpu_count()} cores"


def result_path(name: str) -> Path:
    return FOLDER / f"{name}.json"


def significant(value: float, digits: int) -> str:
    """Return a number with significant digits and trailing zeros, never an exponent; with thousands separators."""
    if value == 1:
        return "1"
    places = digits - 1 - math.floor(math.log10(abs(value)))
    return f"{round(value, places):,.{max(places, 0)}f}"


def ratio(value: float) -> str:
    """Return a ratio with two digits, or three from a hundred on."""
    return significant(value, 3 if value >= 100 else 2)


def fine(value: float) -> str:
    """Return three decimals, or three digits from five on."""
    return f"{value:.3f}" if value < 5 else significant(value, 3)


def percent(value: float) -> str:
    return f"{100 * value:.0f} %"


def table(head: Sequence[str], *rows: Sequence[str]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("|" + "".join(f" {cell} |" if cell else " |" for cell in line) for line in lines)


def times(found: Mapping[str, float], key: str) -> str:
    """Return a figure of a run as a ratio of times, or with three decimals; blank if the run lacks it."""
    if key not in found:
        return ""
    return ratio(found[key]) if ", time" in key else fine(found[key])


EFFICIENCY = 0.85
Stream = list[dict[str, Any]]


def generate_table(place: Path, name: str, rows: int, attributes: int, sizes: str, files: int) -> Path:
    """Generate a table and return its folder."""
    options = ["--rows", rows, "--attributes", attributes, "--sizes", sizes, "--files", files]
    command = [sys.executable, ROOT.resolve() / "data" / "generate.py", place / name, *options]
    subprocess.run([str(part) for part in command], check=True)
    return place / name


def time_call(function: Callable[[], object]) -> float:
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def record_tasks(client: Any, function: Callable[[], object]) -> tuple[float, Stream]:
    """Return the seconds of a call and the scheduler's record of every task that ended during it."""
    from distributed import get_task_stream

    with get_task_stream(client) as stream:
        seconds = time_call(function)
        time.sleep(0.5)
    return seconds, list(stream.data)


def best_times(clients: dict[int, Any], turns: int, work: Callable[[Any], object]) -> dict[int, float]:
    """Return, for each cluster, the best seconds of several turns after a warm-up."""
    for client in clients.values():
        work(client)
    took: dict[int, list[float]] = {workers: [] for workers in clients}
    for _ in range(turns):
        for workers, client in clients.items():
            took[workers].append(time_call(partial(work, client)))
    return {workers: min(seconds) for workers, seconds in took.items()}


def print_efficiency(what: str, took: dict[int, float], note: str = "") -> float:
    """Print and return the efficiency at two workers, relative to the target."""
    efficiency = took[1] / (2 * took[2])
    print(f"{what:32} efficiency at 2: {efficiency:.3f} ({efficiency / EFFICIENCY:.2f} of the aim) "
          f"[{took[1]:.2f} s, {took[2]:.2f} s]{note}", flush=True)  # fmt: skip
    return efficiency


def compute_seconds(task: dict[str, Any]) -> float:
    return sum(part["stop"] - part["start"] for part in task["startstops"] if part["action"] == "compute")


def task_kind(task: dict[str, Any]) -> str:
    """Return the kind of a task from its key: count, count-sum, measure, …."""
    return "-".join(str(task["key"]).split("'")[1].split("-")[1:-1]) if "'" in str(task["key"]) else "other"


def prepare_counting(place: Path, degree: int = 3) -> tuple[Any, Any]:
    """Return a table and the pass that counts all its marginals of a degree."""
    import dpscale as dp
    from dpscale.engine.counting import plan_passes

    domain = dp.Domain.read(place / "domain.toml")
    [one] = plan_passes(domain, list(combinations(domain.names, degree)), 4 << 30, 2)
    return dp.Table.open(place / "table", domain).split(), one


def count_on(table: Any, one: Any, client: Any) -> list[Any]:
    """Count on a cluster and return handles."""
    from dpscale.engine.counting import partition_groups, run_pass
    from dpscale.engine.schedulers import ClusterEngine

    engine = ClusterEngine(client)
    return run_pass(engine, one, partition_groups(table.partitions, engine.workers))


def write_job(place: Path, name: str, workload: str, mechanism: str) -> Path:
    """Write a job on a generated table, with a separate ledger for every run."""
    path = place / "job.toml"
    path.write_text(
        f'[data]\npath = "{place / "table"}"\ndomain = "{place / "domain.toml"}"\n[privacy]\nrho = 1.0\n'
        f'dataset = "{name}"\n{workload}[mechanism]\nname = "{mechanism}"\n[engine]\nmemory = "4GiB"\nseed = 1\n'
        "[output]\nmax_rows = 0\n"
    )
    return path


def time_measure_stage(job: Path, client: Any) -> float:
    """Return the seconds of the measure stage on a cluster or in this process, in a temporary run directory."""
    from dpscale.job import Job
    from dpscale.runs.opening import begin_run
    from dpscale.runs.runner import run_stages

    for ledger in job.parent.glob("ledger.sqlite*"):
        ledger.unlink()
    with tempfile.TemporaryDirectory(dir=job.parent) as folder:
        run = begin_run(Job.read(job), Path(folder) / "run", files_accessible=False)
        where = {"client": client} if client is not None else {"scheduler": "synchronous"}
        run_stages(run, **where, only="plan")
        return time_call(lambda: run_stages(run, **where, only="measure"))


DATA = Path(__file__).parents[2] / "shared" / "data"
DEGREE = 3
KEPT_CELLS = 1 << 27
Names = tuple[str, ...]
AGE_LIKE, MONEY = np.arange(0, 96, 4), np.array([-1e4, 0, 1, 2e3, 5e3, *np.arange(1e4, 1e5, 1e4), 1.2e5, 1.5e5, 2e5])
ACS_BINS = {
    "AGEP": AGE_LIKE[1:],
    "PINCP": MONEY,
    "POVPIP": np.arange(1, 502, 25),
    "DENSITY": np.array([50, 100, 500, 1000, 2000, 3000, 4000, 6000, 1e4, 2e4, 4e4]),
    "PWGTP": np.array([10, 20, 40, 60, 80, 100, 150, 200, 300]),
    "WGTP": np.array([1, 20, 40, 60, 80, 100, 150, 200, 300]),
}


class Table:
    """A coded table with sizes; its marginals are counted on demand, and cached if they have few cells."""

    def __init__(self, name: str, sizes: dict[str, int], codes: np.ndarray, cached_cells: int = KEPT_CELLS) -> None:
        self.name, self.sizes, self.names = name, sizes, tuple(sizes)
        self.columns = {own: np.ascontiguousarray(codes[:, i], dtype=np.int64) for i, own in enumerate(sizes)}
        self.rows = len(codes)
        self.targets = tuple(combinations(self.names, DEGREE))
        cells = sum(int(np.prod([sizes[one] for one in own])) for own in self.targets)
        self.counts: Callable[[Names], np.ndarray] = (
            lru_cache(None)(self.counted) if cells <= cached_cells else self.counted
        )

    def counted(self, names: Names) -> np.ndarray:
        if not names:
            return np.array(self.rows)
        shape = [self.sizes[name] for name in names]
        cells = self.columns[names[0]]
        for name in names[1:]:
            cells = cells * self.sizes[name] + self.columns[name]
        return np.bincount(cells, minlength=int(np.prod(shape))).reshape(shape)

    def error(self, marginal: Callable[[Names], np.ndarray], targets: tuple[Names, ...] | None = None) -> float:
        """Return the mean over the targets of ‖μ̂ − μ‖₁ / N."""
        selected = targets or self.targets
        return float(np.mean([np.abs(marginal(names) - self.counts(names)).sum() / self.rows for names in selected]))


def load_coded(name: str, folder: Path) -> Table:
    """Load a folder with a coded CSV and its domain file."""
    sizes = json.loads((folder / f"{name}-domain.json").read_text())
    with open(folder / f"{name}.csv", newline="") as file:
        header = next(csv.reader(file))
        codes = np.loadtxt(file, delimiter=",", dtype=np.int64)
    return Table(name, sizes, codes[:, [header.index(own) for own in sizes]])


def load_acs(folder: Path) -> Table:
    """Load ACS national 2019: categories from its dictionary, numbers in ACS_BINS, "N" as a separate value."""
    schema = json.loads((folder / "national2019.json").read_text())["schema"]
    with open(folder / "national2019.csv", newline="") as file:
        header, *records = list(csv.reader(file))
    sizes, codes = {}, []
    for name, column in zip(header, zip(*records, strict=True), strict=True):
        if name in ACS_BINS:
            numbers = np.array([np.nan if value == "N" else float(value) for value in column])
            own = np.where(np.isnan(numbers), 0, 1 + np.searchsorted(ACS_BINS[name], numbers, side="right"))
            size = len(ACS_BINS[name]) + 2
        else:
            values = [str(value) for value in schema[name]["values"]]
            own, size = np.array([values.index(value) for value in column]), len(values)
        sizes[name] = size
        codes.append(own)
    return Table("acs", sizes, np.stack(codes, axis=1))


KEPT = ("adult", "acs", "salary", "titanic", "krkopt", "mushroom", "nltcs", "nursery", "taxi", "syn_big2000",
        "syn_bin60", "syn_dup", "syn_indep", "syn_n1000", "syn_perm", "syn_xor")  # fmt: skip


GENERATED = ("loans", "census")
LINKED = ("telco", "acs23")  # real tables with strongly linked attributes
CONSTRUCTED = ("equal columns", "skipped block")


def construct_table(name: str, rows: int = 20_000, seed: int = 5) -> Table:
    """Return eight equal binary columns; or eight questions that 30 % of the records skip, and two more attributes."""
    rng = np.random.default_rng(seed)
    if name == "equal columns":
        column = (rng.random(rows) < 0.3).astype(np.int64)
        return Table(name, {f"x{i}": 2 for i in range(8)}, np.repeat(column[:, None], 8, axis=1))
    skipped = rng.random(rows) < 0.3
    common = 1 + rng.integers(0, 2, (rows, 1))
    answers = np.where(rng.random((rows, 8)) < 0.6, common, rng.integers(1, 5, (rows, 8)))
    answers[skipped] = 0
    others = np.stack([rng.integers(0, 2, rows) | skipped, rng.integers(0, 5, rows)], axis=1)
    sizes = {f"q{i}": 5 for i in range(8)} | {"sex": 2, "region": 5}
    return Table(name, sizes, np.concatenate([answers, others], axis=1))


def load_table(name: str, data: Path = DATA) -> Table | None:
    """Load one of KEPT, or return None if its file is absent."""
    if (packed := data / "tables" / f"{name}.npz").exists():
        with np.load(packed) as found:
            sizes = dict(zip(found["names"].tolist(), found["sizes"].tolist(), strict=True))
            return Table(name, sizes, found["codes"].astype(np.int64))
    folder = data / ("acs_national2019" if name == "acs" else name)
    if not folder.exists():
        return None
    return load_acs(folder) if name == "acs" else load_coded(name, folder)


def load_tables(names: Sequence[str], data: Path) -> Iterator[Table]:
    """Yield the tables whose files are there."""
    for name in names:
        table = load_table(name, data)
        if table is None:
            print(f"{name}: its folder is not in {data}: real data does not travel with dpscale; give --data")
        else:
            yield table


def add_table_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for tables, ε and seeds."""
    parser.add_argument(
        "--tables",
        nargs="+",
        default=["adult", "acs", "salary", "titanic"],
        choices=("all", *KEPT, *LINKED),
    )
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.1, 1.0, 10.0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=100)
    parser.add_argument("--data", type=Path, default=DATA)


def write_generated(shape: str, seed: int = 0) -> Table:
    """Return a generated table.

    `loans`: 43 attributes of 30 to 60 values, 42,535 rows. `census`: 66 attributes of 2 to 6 values, 378,817 rows.
    The latent class of a record determines the location of the values of every attribute; in a chain of blocks an
    attribute also depends on the previous one. Values are skewed like those of real columns.
    """
    rng = np.random.default_rng(seed)
    count, rows, least, most = {"loans": (43, 42_535, 30, 60), "census": (66, 378_817, 2, 6)}[shape]
    sizes = {f"x{i:02}": int(rng.integers(least, most + 1)) for i in range(count)}
    classes = 6
    of = rng.choice(classes, size=rows, p=rng.dirichlet(np.full(classes, 3.0)))
    columns: list[np.ndarray] = []
    for index, size in enumerate(sizes.values()):
        centers, widths = rng.uniform(0, 1, classes), rng.uniform(0.03, 0.25, classes)
        place = centers[of] + widths[of] * rng.standard_normal(rows)
        if index % 4:  # leans on the attribute before it
            before = columns[-1] / (list(sizes.values())[index - 1] - 1)
            place = np.where(rng.random(rows) < 0.7, before + 0.05 * rng.standard_normal(rows), place)
        bent = np.abs(np.clip(place, -1, 2)) ** rng.uniform(1, 2)
        columns.append(np.clip((bent * size).astype(np.int64), 0, size - 1))
    return Table(shape, sizes, np.stack(columns, axis=1))


def subsets_of(names: Names) -> list[Names]:
    return [subset for size in range(len(names) + 1) for subset in combinations(names, size)]
