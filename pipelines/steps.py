"""A job as a DAG in plain Python, for those without Airflow: plan, measure, reconstruct, report.

Every step is a process of its own that knows the run directory and nothing else. It may be run again: what is done
stays done, and nothing is spent twice. A transient failure (exit code 75) is tried again, any other ends the DAG.

    python pipelines/steps.py pipelines/main.toml runs/main
"""

from __future__ import annotations

import subprocess
import sys
import time

TRANSIENT = 75
TRIES, DELAY = 3, 1.0


def step(*arguments: str) -> None:
    """One step, tried again where its exit code says that this may help."""
    for left in reversed(range(TRIES)):
        code = subprocess.run([sys.executable, "-m", "dpscale.jobs.cli", *arguments]).returncode
        if code == 0:
            return
        if code != TRANSIENT or left == 0:
            raise SystemExit(code)
        time.sleep(DELAY)


def main(job: str, run_dir: str) -> None:
    step("plan", job, "--run-dir", run_dir)
    for stage in ("measure", "reconstruct", "report"):
        step(stage, run_dir)


if __name__ == "__main__":
    main(*sys.argv[1:3])
