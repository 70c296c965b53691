"""A job as a DAG in plain Python, without Airflow: one step per stage, as `dpscale job stages` lists them.

Every step is a process that knows only the run directory. A step may be repeated: a completed stage is not run again,
and nothing is spent twice. A transient failure (exit code 75), or a process ended by a signal (the kernel out of
memory), is retried; any other failure ends the DAG.

    python pipelines/steps.py pipelines/main.toml runs/main
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

TRANSIENT = 75
TRIES, DELAY = 3, 1.0
USAGE = "usage: python pipelines/steps.py JOB.toml RUN_DIR"


def step(*arguments: str) -> None:
    """Run one step, and retry it if its exit code is that of a transient failure."""
    for left in reversed(range(TRIES)):
        code = subprocess.run([sys.executable, "-m", "dpscale", *arguments]).returncode
        if killer := signal_of(code):
            print(f"steps.py: dpscale {' '.join(arguments)} was ended by {killer}", file=sys.stderr)
            code = TRANSIENT
        if code == 0:
            return
        if code != TRANSIENT or left == 0:
            raise SystemExit(code)
        time.sleep(DELAY)


def signal_of(code: int) -> str | None:
    """Return the signal that ended a process: negative in Python, from 128 on through a shell."""
    number = -code if code < 0 else code - 128
    return f"signal {number} ({signal.strsignal(number)})" if number in signal.valid_signals() else None


def stages(run_dir: str) -> list[str]:
    """Return the stages of a planned run that follow, in order."""
    command = [sys.executable, "-m", "dpscale", "job", "stages", run_dir, "--json"]
    listed = subprocess.run(command, check=True, capture_output=True)
    names = [stage["name"] for stage in json.loads(listed.stdout)["stages"]]
    return names[names.index("plan") + 1 :]


def main(job: str, run_dir: str) -> None:
    step("run", job, "--only", "allocate", "--run-dir", run_dir)  # does nothing for one table
    step("run", job, "--only", "discover", "--run-dir", run_dir)  # does nothing if all cells are public
    step("plan", job, "--run-dir", run_dir)
    for stage in stages(run_dir):
        step("run", run_dir, "--only", stage)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        print(USAGE, file=sys.stderr)
        raise SystemExit(2)
    main(*sys.argv[1:])
