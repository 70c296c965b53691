"""Where the CPU time of whole commands goes: the demo and an adaptive job, by part of the package and by library.

A command runs in one process on one thread, without stored plans, under `cProfile`, after a run that compiles loops.
The own time of every function is added to the part that its file belongs to; that of built-in functions to the file
that calls them. The profiler makes calls of Python dearer than loops, so shares of parts with many small calls are
overstated. A million synthetic rows are split into compiled loops and the rest, without a profiler. Short processes are
split into imports of libraries, imports of modules of dpscale, and the rest, by the times of `-X importtime`.

    python benchmarks/profiles.py [--save]
"""

from __future__ import annotations

import argparse
import pstats
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import base
from base import DATA
from commands import COMMANDS, ENVIRONMENT, MILLION_ROWS, ROOT, SCRIPTS, prepare

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
    command = ["-c", SCRIPTS[row]] if row in SCRIPTS else ["-m", "dpscale", *COMMANDS[row]]
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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


if __name__ == "__main__":
    main()
