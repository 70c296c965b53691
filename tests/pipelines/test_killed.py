"""Both DAGs take a command that a signal ended, as the kernel does for want of memory, for one to be tried again."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from dpscale.ledger import Ledger
from tests.audit.small import write

ROOT = Path(__file__).parents[2]
KILLED = {"killed": "kill -9 $$", "killed below a shell": "exit 137"}


def loaded(name):
    """A file of pipelines/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "pipelines" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def command(place, text):
    """A command in the shell's words."""
    path = place / "command"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def steps(monkeypatch):
    module = loaded("steps")
    monkeypatch.setattr(module, "DELAY", 0.0)
    return module


@pytest.mark.parametrize("how", ["killed", pytest.param("killed below a shell", marks=pytest.mark.slow)])
def test_a_step_that_is_killed_is_tried_again_and_spends_once(tmp_path, monkeypatch, capfd, steps, how):
    """The command is Python, but for the first measure, of which nothing is left when all was drawn and none told."""
    once = f"""
if [ "$3" = measure ] && [ ! -e {tmp_path}/killed ]; then
    touch {tmp_path}/killed
    {sys.executable} -c 'import os; from dpscale.runs.stages import measure; measure.publish = lambda *_: os._exit(9)
from dpscale.__main__ import main; main()' "$3" "$4"
    {KILLED[how]}
fi
exec {sys.executable} "$@\""""
    monkeypatch.setattr(steps.sys, "executable", command(tmp_path, once))
    steps.main(str(write(tmp_path)), str(tmp_path / "run"))
    assert "steps.py: measure was ended by signal 9 (Killed)" in capfd.readouterr().err
    assert (tmp_path / "killed").exists()
    assert (tmp_path / "run/report.html").exists()
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        [row] = ledger.summary()["datasets"]["small"]["releases"]
    assert row["state"] == "released"


def test_a_step_that_is_killed_each_time_ends_as_one_that_can_be_tried_again(tmp_path, monkeypatch, capfd, steps):
    monkeypatch.setattr(steps.sys, "executable", command(tmp_path, KILLED["killed"]))
    with pytest.raises(SystemExit) as ended:
        steps.step("measure", "run")
    assert ended.value.code == 75
    assert capfd.readouterr().err.count("signal 9") == steps.TRIES


@pytest.mark.parametrize("code", [1, 2, 3, 70, 128, 255])
def test_another_failure_is_final(tmp_path, monkeypatch, steps, code):
    monkeypatch.setattr(steps.sys, "executable", command(tmp_path, f"echo >> {tmp_path}/tries; exit {code}"))
    with pytest.raises(SystemExit) as ended:
        steps.step("measure", "run")
    assert ended.value.code == code
    assert (tmp_path / "tries").read_text() == "\n"


@pytest.mark.parametrize("arguments", [[], ["job.toml"], ["job.toml", "run", "more"]])
def test_steps_tells_its_usage(arguments):
    done = subprocess.run([sys.executable, ROOT / "pipelines/steps.py", *arguments], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "usage: python pipelines/steps.py JOB.toml RUN_DIR\n"


class FailsForGood(Exception):
    """What stands for AirflowFailException."""


@pytest.fixture
def dag(monkeypatch):
    """airflow_dag.py, of which only the commands are tried here: its decorators do nothing."""
    sdk, exceptions = ModuleType("airflow.sdk"), ModuleType("airflow.sdk.exceptions")
    sdk.Param, sdk.get_current_context = SimpleNamespace, dict
    sdk.task = sdk.dag = lambda *_, **__: lambda *_, **__: lambda *_, **__: None
    exceptions.AirflowFailException = FailsForGood
    for module in (ModuleType("airflow"), sdk, exceptions):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return loaded("airflow_dag")


@pytest.mark.parametrize("how", KILLED)
def test_airflow_retries_a_command_that_was_killed(tmp_path, monkeypatch, dag, how):
    monkeypatch.setattr(dag, "COMMAND", command(tmp_path, KILLED[how]))
    with pytest.raises(RuntimeError, match=r"dpscale measure was ended by signal 9 \(Killed\)"):
        dag.dpscale("measure", "run")


@pytest.mark.parametrize(
    ("code", "kind"), [(75, RuntimeError), (2, FailsForGood), (3, FailsForGood), (1, FailsForGood)]
)
def test_airflow_is_told_by_the_exit_code_whether_to_try_again(tmp_path, monkeypatch, dag, code, kind):
    monkeypatch.setattr(dag, "COMMAND", command(tmp_path, f"echo first >&2; echo the sentence >&2; exit {code}"))
    with pytest.raises(kind, match=r"^the sentence$"):
        dag.dpscale("measure", "run")
