"""A dpscale job as a Prefect 3 flow: one task per stage, as `dpscale job stages` lists them. A short example.

A task gets and returns the run directory and nothing else. Exit code 75 and a command ended by a signal are retried; 2
(wrong job or data) and 3 (refused by the budget) fail at once. A completed stage returns at once, and the ledger
charges a release once, so that a retry spends nothing. airflow_dag.py also checks the hash of each stage's output.

    python pipelines/prefect_flow.py pipelines/main.toml runs/main

The command may be in another environment: DPSCALE names it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from prefect import flow, task

COMMAND = os.environ.get("DPSCALE", "dpscale")
TRANSIENT = 75


class Stopped(Exception):
    """A command that did not end with 0."""

    def __init__(self, stage: str, code: int) -> None:
        super().__init__(stage, code)
        self.stage, self.code = stage, code

    def __str__(self) -> str:
        return f"dpscale {self.stage} ended with {self.code}"


def is_transient(_task: Any, _task_run: Any, state: Any) -> bool:
    """Return whether Prefect retries: 75, or a signal, which is negative in Python and above 128 through a shell."""
    error = state.result(raise_on_failure=False)
    return isinstance(error, Stopped) and (error.code == TRANSIENT or error.code < 0 or error.code > 128)


@task(
    task_run_name="{stage}",
    retries=3,
    retry_delay_seconds=int(os.environ.get("DPSCALE_RETRY_SECONDS", "60")),
    retry_condition_fn=is_transient,
    persist_result=False,
)
def run_stage(stage: str, place: str, *options: str) -> None:
    if code := subprocess.run([COMMAND, "run", place, "--only", stage, *options]).returncode:
        raise Stopped(stage, code)


@flow(name="dpscale")
def release(job: str, run_dir: str) -> str:
    for stage in ("allocate", "discover", "plan"):  # the first two do nothing for one table of public cells
        run_stage(stage, job, "--run-dir", run_dir)
    listed = subprocess.run([COMMAND, "job", "stages", run_dir, "--json"], check=True, capture_output=True)
    names = [one["name"] for one in json.loads(listed.stdout)["stages"]]
    for stage in names[names.index("plan") + 1 :]:
        run_stage(stage, run_dir)
    return run_dir


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit("usage: python pipelines/prefect_flow.py JOB.toml RUN_DIR")
    release(*sys.argv[1:])
