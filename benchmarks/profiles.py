"""Where the CPU time of whole commands goes: the demo and an adaptive job, by part of the package and by library.

A command runs in one process on one thread, without stored plans, under `cProfile`, after a run that compiles loops.
The own time of every function is added to the part that its file belongs to; that of built-in functions to the file
that calls them. The profiler makes calls of Python dearer than loops, so shares of parts with many small calls are
overstated. A million synthetic rows are split into compiled loops and the rest, without a profiler.

    python benchmarks/profiles.py [--save]
"""

from __future__ import annotations

import argparse
import os
import pstats
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import base
from base import DATA
from commands import MILLION_ROWS, ROOT
from main_job import JOB, write_inputs

SHOWN = 8
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
    environment = os.environ | {"PYTHONPATH": str(ROOT), "DPSCALE_STORE": "off", "DPSCALE_STATE": str(place / "state")}
    done = subprocess.run([sys.executable, "-c", script], check=True, cwd=place, env=environment, capture_output=True,
                          text=True)  # fmt: skip
    whole, inside = map(float, done.stdout.split()[-2:])
    return whole, inside  # seconds of a million rows


def run(arguments: list[str], place: Path, output: Path) -> None:
    code = PROFILED.format(arguments=arguments, output=str(output))
    environment = os.environ | {"PYTHONPATH": str(ROOT), "DPSCALE_STORE": "off", "DPSCALE_STATE": str(place / "state")}
    subprocess.run([sys.executable, "-c", code], check=True, cwd=place, env=environment, stdout=subprocess.DEVNULL)


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
        (place / "adult").mkdir()
        write_inputs(given.data / "adult", place / "adult")
        (place / "adult" / "job.toml").write_text(JOB.format(epsilon=1.0, errors="auto"))
        output = place / "output.profile"
        run(["demo", "--folder", "demo", "--quiet"], place, output)  # writes the job
        for name, job in {"demo": "demo/job.toml", "adaptive Adult": "adult/job.toml"}.items():
            with open(place / job, "a") as file:
                file.write('\n[engine]\nscheduler = "synchronous"\n')
            for turn in range(2):
                run(["run", job, "--run-dir", f"{Path(job).parent}-run-{turn}", "--fresh", "--quiet"], place, output)
            found[name] = shares(output)
        whole, inside = row_costs(place)
    figures: dict[str, float] = {}
    for name, parts in found.items():
        largest = sorted(parts, key=parts.__getitem__, reverse=True)[:SHOWN]
        figures |= {f"{name}: {part}": parts[part] for part in largest}
        print(f"{name}: " + ", ".join(f"{part} {parts[part]:.0%}" for part in largest), flush=True)
    print(f"synthetic rows: {whole:.1f} CPU µs a row, {inside:.1f} in compiled loops, {whole - inside:.1f} outside, "
          f"limit {OUTSIDE_LIMIT:g}")  # fmt: skip
    figures |= {"rows, µs": whole, "rows, loops µs": inside, "rows, limit": OUTSIDE_LIMIT}
    if given.save:
        base.save("profiles", figures)


if __name__ == "__main__":
    main()
