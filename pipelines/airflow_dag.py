"""A dpscale job as an Airflow 3 DAG: one task a stage, as `dpscale stages` lists them.

Tasks hand over the run directory and the hash of what the stage before left, as its manifest notes it; that the files
still have that hash is for dpscale to see, as each stage begins. Nothing of the data passes through XCom. A stage that
is done returns at once, and the ledger charges a release once, so a retry spends nothing and draws nothing anew. Exit
codes: 75 is retried, and so is a command that a signal ended (the kernel for want of memory); 2 (wrong job or data) and
3 (the budget refuses) fail for good.

Put this file into the DAG folder. The command may be in an environment of its own: DPSCALE names it. Parameters: `job`,
a job file, and `run_dir`, a new directory that every Airflow worker sees; by default one below the job's folder for
every logical run, so that a scheduled DAG makes a new release (with a new charge) each time.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from airflow.sdk import Param, dag, get_current_context, task
from airflow.sdk.exceptions import AirflowFailException

COMMAND = os.environ.get("DPSCALE", "dpscale")
TRANSIENT = 75


def dpscale(*arguments: str) -> dict[str, Any]:
    """Run a dpscale command; its JSON, or the failure that Airflow should see. Its progress is in the task's log."""
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen([COMMAND, *arguments, "--json"], stdout=out, stderr=subprocess.PIPE, text=True)
        sentence = _followed(process.stderr or ())
        code = process.wait()
        out.seek(0)
        told = out.read()
    if killer := signal_of(code):
        raise RuntimeError(f"dpscale {arguments[0]} was ended by {killer}")  # retried
    if code == TRANSIENT:
        raise RuntimeError(sentence)  # retried
    if code != 0:
        raise AirflowFailException(sentence)
    return dict(json.loads(told.rpartition("{")[1] + told.partition("{")[2]))


def _followed(lines: Iterable[str]) -> str:
    """The last line that says something; each is printed as it comes."""
    last = ""
    for line in lines:
        print(line.rstrip(), flush=True)
        last = line.strip() or last
    return last


def signal_of(code: int) -> str | None:
    """The signal that ended a process: negative as Python tells it, 128 and more as a shell in between does."""
    number = -code if code < 0 else code - 128
    return f"signal {number} ({signal.strsignal(number)})" if number in signal.valid_signals() else None


def stage(name: str, before: dict[str, str]) -> dict[str, str]:
    """One stage, on what the one before it left and nothing else."""
    run_dir, earlier = before["run_dir"], before["stage"]
    if name not in [one["name"] for one in dpscale("stages", run_dir)["stages"]]:
        return before  # the job does not ask for it
    found = dpscale("status", run_dir)["stages"].get(earlier, {})
    if found.get("sha256") != before["sha256"]:
        raise AirflowFailException(f"{run_dir} is not what stage {earlier} left")
    return {"run_dir": run_dir, "stage": name, "sha256": dpscale(name, run_dir)["sha256"]}


def later() -> list[str]:
    """The stages after the first, in their order."""
    listed = subprocess.run([COMMAND, "stages", "--json"], check=True, capture_output=True, text=True)
    return [one["name"] for one in json.loads(listed.stdout)["stages"]][1:]


def task_of(name: str) -> Any:
    """The task of a stage."""

    @task(task_id=name)
    def carry_out(before: dict[str, str]) -> dict[str, str]:
        return stage(name, before)

    return carry_out


@dag(
    dag_id="dpscale",
    schedule=None,
    catchup=False,
    params={"job": Param(type="string"), "run_dir": Param(default="", type="string")},
    default_args={"retries": 3, "retry_delay": timedelta(seconds=int(os.environ.get("DPSCALE_RETRY_SECONDS", "60")))},
    tags=["dpscale"],
)
def release() -> None:
    @task
    def plan() -> dict[str, str]:
        context = get_current_context()
        job, run_dir = context["params"]["job"], context["params"]["run_dir"]
        run_dir = run_dir or os.path.join(os.path.dirname(job), "runs", context["run_id"].replace(":", "-"))
        dpscale("plan", job, "--run-dir", run_dir)
        return {"run_dir": run_dir, "stage": "plan", "sha256": dpscale("status", run_dir)["stages"]["plan"]["sha256"]}

    left = plan()
    for name in later():
        left = task_of(name)(left)


release()
