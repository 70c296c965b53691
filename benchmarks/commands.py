"""Whole commands: CPU seconds, where they go, the size of an installation, and a charge on a long ledger.

python benchmarks/commands.py processes    CPU seconds of whole processes beside an earlier commit
python benchmarks/commands.py profiles     CPU time by part of the package and by library
python benchmarks/commands.py install      distributions, download and disk of `pip install .`
python benchmarks/commands.py ledger       processor time of a charge by the number of releases
"""

from __future__ import annotations

import os
import pstats
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections import Counter
from collections.abc import Callable, Mapping
from fractions import Fraction
from importlib.metadata import Distribution, distributions
from pathlib import Path
from statistics import median
from unittest import mock

import base
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from base import BASELINE, DATA, ROOT, children_seconds, table, unpack
from main_job import JOB, write_inputs

from dpscale.ledger import Ledger
from dpscale.privacy.accounting import Cost

ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
IMPORTS = "import numpy, pyarrow, dask, pydantic"
COLD = " without compiled loops"
MIXED = "[('range', 1), ('affine', 2), ('prefix', 3)]"
WORKLOADS = {
    "mixed plan": "w = dp.Workload(dp.Domain({f'a{i}': 10 for i in range(40)}))\n"
    f"[w.add(f, degree=d) for f, d in {MIXED}]",
    "million codes": "w = dp.Workload(dp.Domain({'a': 10**6})).add('marginal', degree=1)",
    "prefix": "w = dp.Workload(dp.Domain({'a': 1024})).add('prefix', degree=1)",
}
TIMED = "dp.plan; began = time.process_time(); dp.plan(w); print(time.process_time() - began)"
MILLION_ROWS = """import time, dpscale as dp
from dpscale.job.sections import SynthesizeTable
from dpscale.runs import runner
from dpscale.runs.opening import open_run
run = open_run(dp.run('adult/job.toml', 'run', fresh=True).path)
for rows in (100_000, 1_000_000):
    run.table.request_rows(SynthesizeTable(rows=rows, polish=False))
    began = time.process_time()
    runner.run_stages(run, only='synthesize')
print(time.process_time() - began)"""
FRAME = """import dpscale as dp, numpy as np, pandas as pd, re
text = open('frames.md').read()
block = re.search('```python\\n(.*?)```', text, re.DOTALL)[1]
"""
ROWS = """exec(block.partition('plan = ')[0])
dp.Synthesizer(domain, epsilon=1.0).fit(trips.drop(columns='person')).sample(1000)"""
SCRIPTS = {
    "dp.run and dp.Release": "import dpscale as dp; dp.run; dp.Release",
    **{name: f"import time, dpscale as dp\n{made}\n{TIMED}" for name, made in WORKLOADS.items()},
    "job of 1,000 rows": "import dpscale as dp; dp.run('small/job.toml', 'run', fresh=True)",
    "open and first marginal": "import dpscale as dp; dp.Release.open('small/run').marginal(['a'])",
    "million rows of Adult": MILLION_ROWS,
    f"first block of frames.md{COLD}": FRAME + "exec(block)",
    f"rows of a frame{COLD}": FRAME + ROWS,
}
PROCESSES = {
    "dpscale plan, 1,000 rows": ["plan", "small/job.toml"],
    "demo": ["demo", "--folder", "demo", "--quiet"],
    "adaptive Adult": ["run", "adult/job.toml", "--run-dir", "run", "--fresh", "--quiet"],
}
PROCESSES |= {f"{name}{COLD}": PROCESSES[name] for name in ("dpscale plan, 1,000 rows", "demo")}
PROCESSES[f"evidence of 1,000 rows{COLD}"] = ["evidence", "small/run", "--selftest", "small/selftest.json", "--quiet"]
LIMITS = {  # times the imports of the libraries, in the same run
    "dp.run and dp.Release": 1.2,
    "mixed plan": 0.8,
    "million codes": 0.25,
    "prefix": 2.6,
    "job of 1,000 rows": 4.0,
    "open and first marginal": 1.1,
    "million rows of Adult": 10.5,
    "dpscale plan, 1,000 rows": 3.0,
    "demo": 16.0,
    "adaptive Adult": 12.0,
    f"first block of frames.md{COLD}": 32.0,
    f"rows of a frame{COLD}": 66.0,
    f"demo{COLD}": 53.0,
    f"evidence of 1,000 rows{COLD}": 13.0,
}
LATER = ("frame", "evidence", "rows of Adult")  # in the names of rows that the earlier package does not have
NEW = [row for row in (*SCRIPTS, *PROCESSES) if any(part in row for part in LATER)]
SIZES = {"a": 2, "b": 5, "c": 8, "d": 10}
SMALL = """[data]
path = "data"
domain = "domain.toml"
[privacy]
epsilon = 1.0
[[workload]]
family = "marginal"
degree = 2
"""


def write_small(place: Path) -> None:
    """Write a table of 1,000 rows and four attributes, its domain and its job."""
    rng = np.random.default_rng(0)
    (place / "data").mkdir(parents=True)
    columns = {name: rng.integers(0, size, 1000) for name, size in SIZES.items()}
    pq.write_table(pa.table(columns), place / "data" / "part.parquet")
    domain = [f'[attributes.{name}]\nkind = "coded"\nsize = {size}\n' for name, size in SIZES.items()]
    (place / "domain.toml").write_text("".join(domain))
    (place / "job.toml").write_text(SMALL)


def cpu_seconds(row: str, package: Path, inputs: Path) -> float:
    """Return user and system seconds of a row in a new process and a new folder with a copy of the inputs."""
    script = IMPORTS if row == IMPORTS else SCRIPTS.get(row)
    command = ["-c", script] if script else ["-m", "dpscale", *PROCESSES[row]]
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(inputs, folder, dirs_exist_ok=True)
        changed = {"PYTHONPATH": str(package), "DPSCALE_STORE": "off", "DPSCALE_STATE": folder + "/state"}
        changed |= {"DPSCALE_DATA": folder + "/user"}
        changed |= {"NUMBA_CACHE_DIR": folder + "/compiled"} if row.endswith(COLD) else {}
        before = children_seconds()
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False, cwd=folder,
                              env=ENVIRONMENT | changed)  # fmt: skip
        spent = children_seconds() - before
    if "print" in command[1] and not done.returncode:
        return float(done.stdout)
    if done.returncode:
        sys.exit(f"{row} failed: {done.stderr.strip().splitlines()[-1]}")
    return spent


def prepare(place: Path, data: Path, package: Path) -> list[str]:
    """Write the inputs of all rows for a package and return the rows that can run here."""
    write_small(place / "small")
    shutil.copy(ROOT / "docs" / "frames.md", place)
    (place / "small" / "selftest.json").write_text('[{"name": "noise", "passed": true, "detail": ""}]')
    arguments = [sys.executable, "-m", "dpscale", "run", "small/job.toml", "--run-dir", "small/run", "--quiet"]
    environment = ENVIRONMENT | {"PYTHONPATH": str(package), "DPSCALE_STATE": str(place / "state")}
    subprocess.run(arguments, check=True, capture_output=True, cwd=place, env=environment)
    if not (data / "adult").exists():
        print(f"adaptive Adult: not run, {data / 'adult'} is absent")
        return [row for row in (*SCRIPTS, *PROCESSES) if "Adult" not in row]
    (place / "adult").mkdir()
    write_inputs(data / "adult", place / "adult")
    (place / "adult" / "job.toml").write_text(JOB.format(epsilon=1.0, errors="auto"))
    return [*SCRIPTS, *PROCESSES]


def compare(row: str, packages: Mapping[str, Path], inputs: Path, turns: int) -> dict[str, float]:
    """Return the median CPU seconds of a row with every package, and of the imports, in alternating turns.

    A turn before them compiles loops, except for rows without compiled loops.
    """
    for name, package in packages.items() if not row.endswith(COLD) else ():
        cpu_seconds(row, package, inputs / name)
    took: dict[str, list[float]] = {name: [] for name in (*packages, "imports")}
    for _ in range(turns):
        took["imports"].append(cpu_seconds(IMPORTS, ROOT, inputs / "now"))
        for name, package in packages.items():
            took[name].append(cpu_seconds(row, package, inputs / name))
    return {name: median(seconds) for name, seconds in took.items()}


def print_processes() -> None:
    """CPU seconds of whole processes: imports, plans, small jobs, the demo, an adaptive job; beside an earlier commit.

    Every row is user and system time of a new process with its workers, the median of several turns in which the two
    packages alternate, after one run that compiles loops. Plans are not taken from a store. The earlier package is
    unpacked from the history of this repository. Imports of libraries alone, in the same turns, are the unit in which
    limits are given: seconds of one machine are not those of another. Rows of single plans are the time of `dp.plan`
    after the import, the row of synthetic rows that of their stage alone. Rows "without compiled loops" start with an
    empty folder of machine code, as a first use does; evidence is given the result of a self-test.

        python benchmarks/commands.py processes [--baseline 2741c547] [--turns 3] [--only ROW …] [--save]
    """
    parser = base.command_parser(print_processes.__doc__)
    parser.add_argument("--baseline", default=BASELINE)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=[*SCRIPTS, *PROCESSES])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--save", action="store_true")
    arguments = parser.parse_args()
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        packages = {"before": unpack(arguments.baseline, place / "before"), "now": ROOT}
        for name, package in packages.items():
            rows = prepare(place / "inputs" / name, arguments.data, package)

        for row in arguments.only or rows:
            compared = {"now": ROOT} if row in NEW else packages
            found = compare(row, compared, place / "inputs", arguments.turns)
            figures |= {f"{row}, {name}": seconds for name, seconds in found.items()}
            limit = f" (limit {LIMITS[row]:g})" if row in LIMITS else ""
            took = ", ".join(f"{seconds:.2f} s {name}" for name, seconds in found.items())
            print(f"{row}: {took}, {found['now'] / found['imports']:.2f} times the imports{limit}", flush=True)
            if row in LIMITS:
                figures[f"{row}, limit"] = LIMITS[row]
    if arguments.save:
        base.save("commands", figures)


SHOWN = 8
SHORT = ("dp.run and dp.Release", "open and first marginal", "job of 1,000 rows", "dpscale plan, 1,000 rows",
         "mixed plan", "prefix")  # fmt: skip
PROFILED = """import cProfile, sys
profile = cProfile.Profile()
profile.enable()
from dpscale.__main__ import main
code = 0
try:
    main({arguments!r}, standalone_mode=False)
except SystemExit as exit:
    code = exit.code
profile.disable()
profile.dump_stats({output!r})
sys.exit(code)
"""


OUTSIDE_LIMIT = 1.5  # CPU microseconds a row outside compiled loops
COUNTED_LOOPS = """import time
from dpscale.base.compilation import Kernel
inside, call = [0.0], Kernel.__call__
def timed(self, *arguments):
    began = time.thread_time()
    try:
        return call(self, *arguments)
    finally:
        inside[0] += time.thread_time() - began
Kernel.__call__ = timed
"""


def row_costs(place: Path) -> tuple[float, float]:
    """Return CPU microseconds of a synthetic row of Adult, and those of them in compiled loops."""
    script = COUNTED_LOOPS + MILLION_ROWS.replace("began = time", "inside[0] = 0.0; began = time").replace(
        "- began)", "- began, inside[0])")  # fmt: skip
    whole, inside = map(float, run(["-c", script], place).stdout.split()[-2:])
    return whole, inside  # seconds of a million rows


def import_shares(row: str, place: Path) -> dict[str, float]:
    """Return the shares of imports of libraries, of imports of dpscale and of the rest in the time of a process."""
    command = ["-c", SCRIPTS[row]] if row in SCRIPTS else ["-m", "dpscale", *PROCESSES[row]]
    run(command, place)  # compiles loops
    began = time.perf_counter()
    timed = run(["-X", "importtime", *command], place).stderr
    seconds = time.perf_counter() - began

    spent = Counter[str]()
    for microseconds, module in re.findall(r"import time: +(\d+) \| +\d+ \| +(\S+)", timed):
        spent["dpscale" if module.startswith("dpscale") else "libraries"] += int(microseconds) / 1e6 / seconds
    return {**spent, "rest": 1 - spent.total()}


def run(arguments: list[str], place: Path) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder, without stored plans, and return its output."""
    environment = ENVIRONMENT | {"PYTHONPATH": str(ROOT), "DPSCALE_STORE": "off", "DPSCALE_STATE": str(place / "state")}
    return subprocess.run([sys.executable, *arguments], check=True, cwd=place, env=environment, capture_output=True,
                          text=True)  # fmt: skip


def profile(arguments: list[str], place: Path, output: Path) -> None:
    """Run a command of dpscale under the profiler."""
    run(["-c", PROFILED.format(arguments=arguments, output=str(output))], place)


def part_of(file: str) -> str:
    """Return the part that a file belongs to: a package of dpscale, a library, or Python."""
    for root, kind in ((f"{ROOT}/dpscale/", "dpscale."), ("site-packages/", "")):
        if root in file:
            name = file.split(root, 1)[1].split("/")[0].removesuffix(".py")
            return kind + name
    return "Python"


def shares(output: Path) -> dict[str, float]:
    """Return the share of each part in all own time of a profile."""
    spent: Counter[str] = Counter()
    for (file, _, _), (_, _, own, _, callers) in pstats.Stats(str(output)).stats.items():  # type: ignore[attr-defined]
        if file == "~" and callers:
            for (caller, _, _), (_, _, share, _) in callers.items():
                spent[part_of(caller)] += share
        else:
            spent[part_of(file)] += own
    whole = sum(spent.values())
    return {name: seconds / whole for name, seconds in spent.items()}


def print_profiles() -> None:
    """Where the CPU time of whole commands goes: the demo and an adaptive job, by part of the package and by library.

    A command runs in one process on one thread, without stored plans, under `cProfile`, after a run that compiles
    loops. The own time of every function is added to the part that its file belongs to; that of built-in functions to
    the file that calls them. The profiler makes calls of Python dearer than loops, so shares of parts with many small
    calls are overstated. A million synthetic rows are split into compiled loops and the rest, without a profiler. Short
    processes are split into imports of libraries, imports of modules of dpscale, and the rest, by the times of `-X
    importtime`.

        python benchmarks/commands.py profiles [--save]
    """
    parser = base.command_parser(print_profiles.__doc__)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        prepare(place, given.data, ROOT)
        short = {row: import_shares(row, place) for row in SHORT}
        output = place / "output.profile"
        profile(["demo", "--folder", "demo", "--quiet"], place, output)  # writes the job
        for name, job in {"demo": "demo/job.toml", "adaptive Adult": "adult/job.toml"}.items():
            with open(place / job, "a") as file:
                file.write('\n[engine]\nscheduler = "synchronous"\n')
            for turn in range(2):
                profile(
                    ["run", job, "--run-dir", f"{Path(job).parent}-run-{turn}", "--fresh", "--quiet"], place, output
                )
            found[name] = shares(output)
        shutil.rmtree(place / "run")
        whole, inside = row_costs(place)
    figures: dict[str, float] = {}
    for name, parts in found.items():
        largest = sorted(parts, key=parts.__getitem__, reverse=True)[:SHOWN]
        figures |= {f"{name}: {part}": parts[part] for part in largest}
        print(f"{name}: " + ", ".join(f"{part} {parts[part]:.0%}" for part in largest), flush=True)
    for name, parts in short.items():
        figures |= {f"{name}, {part}": share for part, share in parts.items()}
        print(f"{name}: " + ", ".join(f"{part} {share:.0%}" for part, share in parts.items()))
    print(f"synthetic rows: {whole:.1f} CPU µs a row, {inside:.1f} in compiled loops, {whole - inside:.1f} outside, "
          f"limit {OUTSIDE_LIMIT:g}")  # fmt: skip
    figures |= {"rows, µs": whole, "rows, loops µs": inside, "rows, limit": OUTSIDE_LIMIT}
    if given.save:
        base.save("profiles", figures)


EXTRAS = ("", "plot", "regression", "certify", "evidence", "compare")
LARGE = (
    "pyarrow",
    "llvmlite",
    "scipy",
    "numpy",
    "pandas",
    "numba",
    "dask",
    "distributed",
    "cryptography",
    "pydantic_core",
)
MB = 10**6


def print_install() -> None:
    """Distributions, download and disk of `pip install .`, alone and with extras, each in a new virtual environment.

        python benchmarks/commands.py install [--save]

    Sizes are in MB of 10^6 bytes; those on disk include the compiled modules that pip writes.
    """
    parser = base.command_parser(print_install.__doc__)
    parser.add_argument("--save", action="store_true")
    figures: dict[str, float | str] = {}

    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        wheel = build_wheel(Path(place))
        for extra in EXTRAS:
            figures |= measure(wheel, extra, Path(place) / (extra or "alone"))
    rows = [[key, f"{value:.1f}"] for key, value in figures.items() if isinstance(value, float)]
    print(table(("figure", "value"), *rows))
    if given.save:
        base.save("install", figures)


def build_wheel(place: Path) -> Path:
    """Return the wheel of the last commit."""
    (place / "source").mkdir()
    packed = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    subprocess.run(["tar", "-x", "-C", place / "source"], input=packed, check=True)
    pip(sys.executable, "wheel", "--no-deps", "--wheel-dir", place, place / "source")
    [wheel] = place.glob("dpscale-*.whl")
    return wheel


def measure(wheel: Path, extra: str, place: Path) -> dict[str, float | str]:
    """Install the wheel with an extra into a new environment; return its figures, with those of its parts if alone."""
    venv.create(place / "venv", with_pip=True)
    python, wheels = str(place / "venv" / "bin" / "python"), place / "wheels"
    [libraries] = (place / "venv").glob("lib/*/site-packages")
    before = {one.name for one in distributions(path=[str(libraries)])}
    wanted = f"{wheel}[{extra}]" if extra else str(wheel)
    pip(python, "wheel", "--wheel-dir", wheels, wanted)
    pip(python, "install", "--no-index", "--find-links", wheels, wanted)

    installed = [one for one in distributions(path=[str(libraries)]) if one.name not in before]
    label = extra or "alone"
    figures: dict[str, float | str] = {
        f"{label}, distributions": float(len(installed)),
        f"{label}, MB of download": sum(one.stat().st_size for one in wheels.iterdir()) / MB,
        f"{label}, MB on disk": sum(map(size, installed)) / MB,
    }
    if not extra:
        figures |= {f"MB of {one.name}": size(one) / MB for one in installed if one.name.replace("-", "_") in LARGE}
    return figures


def size(installed: Distribution) -> int:
    """Return the bytes of the files of a distribution."""
    files = (Path(str(one.locate())) for one in installed.files or ())
    return sum(one.stat().st_size for one in files if one.is_file())


def pip(python: str, *arguments: object) -> None:
    command = [python, "-m", "pip", "--disable-pip-version-check", *map(str, arguments), "--quiet"]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)


CHARGE_LIMIT = 0.2  # CPU seconds at 1,000 releases
COST = Cost(gaussian=Fraction(1, 10**6))


def print_ledger() -> None:
    """Processor time of one charge, which verifies the whole ledger first, by the number of releases on it.

    Each line has the median of some charges: with verification, as a share of the limit of 0.2 s at 1,000 releases;
    without it, on the same ledger in the same run; their ratio; and the seconds of verification for each 1,000
    releases, which do not grow if the cost is linear.

        python benchmarks/commands.py ledger [--releases 100 500 1000] [--charges 5]
    """
    parser = base.command_parser(print_ledger.__doc__)
    parser.add_argument("--releases", type=int, nargs="+", default=[100, 500, 1000])
    parser.add_argument("--charges", type=int, default=5)
    given = parser.parse_args()
    print("releases  charge s  of limit  without s  ratio  verification s per 1,000")
    for releases in sorted(given.releases):
        with tempfile.TemporaryDirectory() as folder, Ledger.open(Path(folder) / "ledger.sqlite") as ledger:
            ledger.set_cap("data", 10.0, 1e-9)
            with mock.patch.object(Ledger, "_check_sound"):
                for number in range(releases):
                    charge(ledger, f"release {number}")
                without = median_seconds(
                    given.charges, lambda number, ledger=ledger: charge(ledger, f"without {number}")
                )
            whole = median_seconds(given.charges, lambda number, ledger=ledger: charge(ledger, f"whole {number}"))
        own = (whole - without) * 1000 / releases
        share = whole * 1000 / releases / CHARGE_LIMIT
        print(f"{releases:8,}  {whole:8.3f}  {share:8.2f}  {without:9.3f}  {whole / without:5.2f}  {own:24.3f}")


def charge(ledger: Ledger, release: str) -> None:
    ledger.charge("data", release, COST, "0" * 64, 1.0, 1e-9)


def median_seconds(times: int, act: Callable[[int], None]) -> float:
    """Return the median processor time of some calls in seconds."""
    found = []
    for number in range(times):
        begin = time.process_time()
        act(number)
        found.append(time.process_time() - begin)
    return statistics.median(found)


COMMANDS = {
    "processes": print_processes,
    "profiles": print_profiles,
    "install": print_install,
    "ledger": print_ledger,
}

if __name__ == "__main__":
    base.run_command(COMMANDS, __doc__)
