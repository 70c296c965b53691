"""The Prefect flow in a real Prefect 3: DPSCALE_PREFECT names an environment that has it."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from dpscale.ledger import Ledger
from tests.audit.small import write
from tests.pipelines.test_killed import ROOT, write_command

HOME = os.environ.get("DPSCALE_PREFECT") or (sys.prefix if find_spec("prefect") else "")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not HOME, reason="no Prefect: DPSCALE_PREFECT names an environment")]


@pytest.fixture
def run_flow(tmp_path):
    """Function that runs the flow with the first `measure` replaced by a shell command; returns code and output.

    The folder has the file `calls` with the stage of each command.
    """

    def run(job, instead):
        text = f"""
echo "${{4:-$1}}" >> {tmp_path}/calls
if [ "$4" = measure ] && [ ! -e {tmp_path}/failed ]; then touch {tmp_path}/failed; {instead}; fi
exec {sys.executable} -m dpscale "$@\""""
        environment = os.environ | {
            "PREFECT_HOME": str(tmp_path / "prefect"), "PREFECT_SERVER_ANALYTICS_ENABLED": "false", "DO_NOT_TRACK": "1",
            "DPSCALE": write_command(tmp_path, text), "DPSCALE_RETRY_SECONDS": "1",
        }  # fmt: skip
        command = [Path(HOME) / "bin/python", ROOT / "pipelines/prefect_flow.py", job, tmp_path / "run"]
        done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300)
        return done.returncode, done.stdout + done.stderr

    return run


@pytest.mark.parametrize("instead", ["exit 75", "kill -9 $$"])
def test_transient_failure_is_retried_and_charged_once(tmp_path, run_flow, instead):
    code, output = run_flow(write(tmp_path), instead)
    assert code == 0, output
    assert (tmp_path / "run/report.html").exists()
    assert (tmp_path / "calls").read_text().split().count("measure") == 2
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        [row] = ledger.summary()["datasets"]["small"]["releases"]
    assert row["state"] == "released"


def test_refusal_is_not_retried(tmp_path, run_flow):
    code, output = run_flow(write(tmp_path), "exit 3")
    assert code == 1
    assert "dpscale measure ended with 3" in output
    assert (tmp_path / "calls").read_text().split()[-1] == "measure"
    assert (tmp_path / "calls").read_text().split().count("measure") == 1
