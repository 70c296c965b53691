"""CPU time of a whole `dpscale run` process on Adult with simulated errors and without, as `intervals.py` prints it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from main_job import write_inputs

TURNS = 3
JOB = """[data]
path = "data"
domain = "domain.toml"
[privacy]
epsilon = {epsilon}
delta = 1e-9
dataset = "adult"
[[workload]]
family = "marginal"
degree = 3
[mechanism]
name = "aim-grem"
[reconstruct]
errors = "{errors}"
"""


def cpu_seconds(place: Path, epsilon: float, errors: str) -> float:
    """Return user and system seconds of one job with its workers."""
    job = place / f"{errors}.toml"
    job.write_text(JOB.format(epsilon=epsilon, errors=errors))
    command = [sys.executable, "-m", "dpscale", "run", str(job), "--fresh", "--quiet", "--run-dir"]
    before = os.times()
    with tempfile.TemporaryDirectory(dir=place) as folder:
        subprocess.run([*command, str(Path(folder) / "run")], check=True, capture_output=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def compare_jobs(adult: Path) -> dict[str, float]:
    """Print and return the CPU seconds of jobs of all 3-way marginals, medians of turns, after one that compiles."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        write_inputs(adult, place)
        cpu_seconds(place, 1.0, "simulated")
        for epsilon in (0.1, 1.0, 10.0):
            turns = [[cpu_seconds(place, epsilon, errors) for errors in ("none", "simulated")] for _ in range(TURNS)]
            without, simulated = (median(one) for one in zip(*turns, strict=True))
            found |= {f"{epsilon:g}, none": without, f"{epsilon:g}, simulated": simulated}
            print(f"epsilon {epsilon:g}: {without:.2f} s without errors, {simulated:.2f} s with: "
                  f"{simulated / without:.2f} times", flush=True)  # fmt: skip
    return found
