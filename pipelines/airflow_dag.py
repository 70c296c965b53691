"""A dpscale job as an Airflow 3 DAG: one task per stage, as `dpscale job stages` lists them.

Tasks pass on the run directory and the hash of the output of the previous stage, from its manifest; dpscale checks at
the start of each stage that the files still have that hash. XCom contains no data. A completed stage returns at once,
and the ledger charges a release once, so that a retry spends nothing and draws nothing again. Exit codes: 75 is
retried, and so is a command that was ended by a signal (the kernel out of memory); 2 (wrong job or data) and 3 (refused
by the budget) fail permanently.

Put this file into the DAG folder. The command may be in another environment: DPSCALE names it. Parameters: `job`, a job
file, and `run_dir`, a new directory that every Airflow worker can access; by default one below the folder of the
job for every logical run. A second release of the same job is refused unless the parameter `fresh` is set, so that a
scheduled DAG with it makes a new release (with a new charge) each time.

The second DAG, `dpscale_period`, adds one period to the release of a growing table in each monthly run: by default the
month of the run's logical date, in the directory `release` below the folder of the job. The horizon is charged once.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import Param, dag, get_current_context, task
from airflow.sdk.exceptions import AirflowFailException

COMMAND = os.environ.get("DPSCALE", "dpscale")
TRANSIENT = 75


def dpscale(*arguments: str) -> dict[str, Any]:
    """Run a dpscale command; return its JSON or raise the error for Airflow. Progress goes to the log of the task."""
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen([COMMAND, *arguments, "--json"], stdout=out, stderr=subprocess.PIPE, text=True)
        sentence = _print_lines(process.stderr or ())
        code = process.wait()
        out.seek(0)
        output = out.read()
    if killer := signal_of(code):
        raise RuntimeError(f"dpscale {' '.join(arguments)} was ended by {killer}")  # retried
    if code == TRANSIENT:
        raise RuntimeError(sentence)  # retried
    if code != 0:
        raise AirflowFailException(sentence)
    return dict(json.loads(output.rpartition("{")[1] + output.partition("{")[2]))


def _print_lines(lines: Iterable[str]) -> str:
    """Print each line as it arrives, and return the last nonempty one."""
    last = ""
    for line in lines:
        print(line.rstrip(), flush=True)
        last = line.strip() or last
    return last


def signal_of(code: int) -> str | None:
    """Return the signal that ended a process: negative in Python, from 128 on through a shell."""
    number = -code if code < 0 else code - 128
    return f"signal {number} ({signal.strsignal(number)})" if number in signal.valid_signals() else None


def stage(name: str, before: dict[str, str]) -> dict[str, str]:
    """Run one stage on the output of the previous one and nothing else."""
    run_dir, earlier = before["run_dir"], before["stage"]
    if name not in [one["name"] for one in dpscale("job", "stages", run_dir)["stages"]]:
        return before  # the job does not ask for it
    found = dpscale("job", "status", run_dir)["stages"].get(earlier, {})
    if found.get("sha256") != before["sha256"]:
        raise AirflowFailException(f"{run_dir} is not what stage {earlier} left")
    return {"run_dir": run_dir, "stage": name, "sha256": dpscale("run", run_dir, "--only", name)["sha256"]}


def later_stages() -> list[str]:
    """Return the stages after the plan, in order."""
    listed = subprocess.run([COMMAND, "job", "stages", "--json"], check=True, capture_output=True, text=True)
    names = [one["name"] for one in json.loads(listed.stdout)["stages"]]
    return names[names.index("plan") + 1 :]


def make_task(name: str) -> Any:
    """Return the task of a stage."""

    @task(task_id=name)
    def run_stage(before: dict[str, str]) -> dict[str, str]:
        return stage(name, before)

    return run_stage


@dag(
    dag_id="dpscale",
    schedule=None,
    catchup=False,
    params={
        "job": Param(type="string"),
        "run_dir": Param(default="", type="string"),
        "fresh": Param(default=False, type="boolean"),
    },
    default_args={"retries": 3, "retry_delay": timedelta(seconds=int(os.environ.get("DPSCALE_RETRY_SECONDS", "60")))},
    tags=["dpscale"],
)
def release() -> None:
    @task
    def plan() -> dict[str, str]:
        context = get_current_context()
        job, run_dir = context["params"]["job"], context["params"]["run_dir"]
        run_dir = run_dir or os.path.join(os.path.dirname(job), "runs", context["run_id"].replace(":", "-"))
        begun = os.path.exists(os.path.join(run_dir, "manifest.json"))  # by an earlier attempt, which resumes
        fresh = ["--fresh"] if context["params"]["fresh"] and not begun else []
        dpscale("run", job, "--only", "allocate", "--run-dir", run_dir, *fresh)  # does nothing for one table
        dpscale("run", job, "--only", "discover", "--run-dir", run_dir)  # does nothing if all cells are public
        dpscale("plan", job, "--run-dir", run_dir)
        return {
            "run_dir": run_dir,
            "stage": "plan",
            "sha256": dpscale("job", "status", run_dir)["stages"]["plan"]["sha256"],
        }

    left = plan()
    for name in later_stages():
        left = make_task(name)(left)


release()


@dag(
    dag_id="dpscale_period",
    schedule="@monthly",
    start_date=datetime(2020, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,  # periods are released in order
    is_paused_upon_creation=True,
    params={"job": Param(default="", type="string"), "run_dir": Param(default="", type="string"),
            "period": Param(default="", type="string")},
    default_args={"retries": 3, "retry_delay": timedelta(seconds=int(os.environ.get("DPSCALE_RETRY_SECONDS", "60")))},
    tags=["dpscale"],
)  # fmt: skip
def release_period() -> None:
    @task
    def plan() -> str:
        params = get_current_context()["params"]
        if not params["job"]:
            raise AirflowFailException("the parameter job is missing: set it to the path of a job file")
        run_dir = params["run_dir"] or os.path.join(os.path.dirname(params["job"]), "release")
        dpscale("plan", params["job"], "--run-dir", run_dir)
        return str(run_dir)

    @task
    def add_period(run_dir: str) -> list[str]:
        context = get_current_context()
        period = context["params"]["period"] or f"{context['logical_date']:%Y-%m}"
        return list(dpscale("run", run_dir, "--period", period)["released"])

    add_period(plan())


release_period()
