"""Ctrl-C stops a run without failure: exit code 75, state `stopped` in manifest and status, and the same command
resumes.
"""

import json
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner

from dpscale.__main__ import main
from tests.audit.small import answers, measurements, write
from tests.cluster.conftest import ROOT
from tests.cluster.waiting import eventually

SLOWLY = "import tests.cluster.slow_store; from dpscale.__main__ import main; main()"


def start_command(*arguments):
    """Start a command in its own process with slow measurements and the default SIGINT handler."""
    command = [sys.executable, "-c", SLOWLY, *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))  # fmt: skip


def run_command(*arguments):
    command = [sys.executable, "-m", "dpscale", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode


@pytest.mark.parametrize("scheduler", [pytest.param("synchronous", marks=pytest.mark.slow), "threads"])
def test_interrupted_run_is_stopped_and_resumes(tmp_path, scheduler):
    sets = [{"family": "prefix", "degree": 2}, {"family": "range", "degree": 1}]
    job, run = write(tmp_path, workload=sets, mechanism={"name": "identity"}), tmp_path / "run"
    process = start_command("run", job, "--run-dir", run, "--scheduler", scheduler)
    try:
        assert eventually(lambda: list((run / "measurements").glob("*.parquet")))
        process.send_signal(signal.SIGINT)
        _, message = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 75
    assert message.startswith("dpscale: stopped; ")
    assert message.count("\n") == 1
    assert json.loads((run / "manifest.json").read_text())["stages"]["measure"]["state"] == "stopped"
    assert (
        "measure: stopped, run the job again to resume" in CliRunner().invoke(main, ["job", "status", str(run)]).stdout
    )
    left = measurements(run)
    assert left
    assert run_command("run", job, "--run-dir", run) == 0
    assert left.items() <= measurements(run).items()
    (tmp_path / "ledger.sqlite").unlink()
    assert run_command("run", job, "--run-dir", tmp_path / "whole") == 0
    assert measurements(run) == measurements(tmp_path / "whole")
    assert answers(run) == answers(tmp_path / "whole")
