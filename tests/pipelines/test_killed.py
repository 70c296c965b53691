"""Both DAG scripts retry a command that was ended by a signal, as from the out-of-memory killer."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from dpscale.ledger import Ledger
from tests.audit.small import write
from tests.messages import refused

ROOT = Path(__file__).parents[2]
KILLED = {"killed": "kill -9 $$", "killed below a shell": "exit 137"}


def load_pipeline(name):
    """Import a file of pipelines/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "pipelines" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_command(place, text):
    """Write a shell script and return its path."""
    path = place / "command"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def steps(monkeypatch):
    module = load_pipeline("steps")
    monkeypatch.setattr(module, "DELAY", 0.0)
    return module


@pytest.mark.parametrize("how", ["killed", pytest.param("killed below a shell", marks=pytest.mark.slow)])
def test_killed_step_is_retried_and_charged_once(tmp_path, monkeypatch, capfd, steps, how):
    """The command is Python for the plan and the measure stage; the first measure is killed after all draws and before
    publishing. The other stages do nothing.
    """
    once = f"""
case "$6" in allocate | discover | reconstruct | synthesize | report) exit 0 ;; esac
if [ "$6" = measure ] && [ ! -e {tmp_path}/killed ]; then
    touch {tmp_path}/killed
    {sys.executable} -c 'import os; from dpscale.runs import runner; runner.publish = lambda *_: os._exit(9)
from dpscale.__main__ import main; main()' "$3" "$4" "$5" "$6"
    {KILLED[how]}
fi
exec {sys.executable} "$@\""""
    monkeypatch.setattr(steps.sys, "executable", write_command(tmp_path, once))
    steps.main(str(write(tmp_path)), str(tmp_path / "run"))
    assert (
        f"steps.py: dpscale run {tmp_path / 'run'} --only measure was ended by signal 9 (Killed)"
        in capfd.readouterr().err
    )
    assert (tmp_path / "killed").exists()
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        [row] = ledger.summary()["datasets"]["small"]["releases"]
    assert row["state"] == "released"


def test_step_killed_each_time_exits_with_75(tmp_path, monkeypatch, capfd, steps):
    monkeypatch.setattr(steps.sys, "executable", write_command(tmp_path, KILLED["killed"]))
    with pytest.raises(SystemExit) as ended:
        steps.step("run", "run", "--only", "measure")
    assert ended.value.code == 75
    assert capfd.readouterr().err.count("signal 9") == steps.TRIES


@pytest.mark.parametrize("code", [1, 2, 3, 70, 128, 255])
def test_other_failure_is_final(tmp_path, monkeypatch, steps, code):
    monkeypatch.setattr(steps.sys, "executable", write_command(tmp_path, f"echo >> {tmp_path}/tries; exit {code}"))
    with pytest.raises(SystemExit) as ended:
        steps.step("run", "run", "--only", "measure")
    assert ended.value.code == code
    assert (tmp_path / "tries").read_text() == "\n"


@pytest.mark.parametrize("arguments", [[], ["job.toml"], ["job.toml", "run", "more"]])
def test_steps_script_prints_usage(arguments):
    done = subprocess.run([sys.executable, ROOT / "pipelines/steps.py", *arguments], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "usage: python pipelines/steps.py JOB.toml RUN_DIR\n"


class FinalFailure(Exception):
    """Stand-in for AirflowFailException."""


@pytest.fixture
def dag(monkeypatch):
    """The module airflow_dag.py with stand-ins for the decorators, so that only its commands are tested."""
    sdk, exceptions = ModuleType("airflow.sdk"), ModuleType("airflow.sdk.exceptions")
    sdk.Param, sdk.get_current_context = SimpleNamespace, dict
    sdk.task = sdk.dag = lambda *_, **__: lambda *_, **__: lambda *_, **__: None
    exceptions.AirflowFailException = FinalFailure
    for module in (ModuleType("airflow"), sdk, exceptions):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return load_pipeline("airflow_dag")


@pytest.mark.parametrize("how", KILLED)
def test_airflow_retries_killed_command(tmp_path, monkeypatch, dag, how):
    monkeypatch.setattr(dag, "COMMAND", write_command(tmp_path, KILLED[how]))
    with refused(RuntimeError):
        dag.dpscale("run", "run", "--only", "measure")


@pytest.mark.parametrize(
    ("code", "kind"), [(75, RuntimeError), (2, FinalFailure), (3, FinalFailure), (1, FinalFailure)]
)
def test_airflow_retries_depend_on_exit_code(tmp_path, monkeypatch, dag, code, kind):
    monkeypatch.setattr(dag, "COMMAND", write_command(tmp_path, f"echo first >&2; echo the sentence >&2; exit {code}"))
    with refused(kind):
        dag.dpscale("run", "run", "--only", "measure")
