"""Refusals and exit codes of cluster/slurm.py, with a fake `sbatch` that records its calls."""

import importlib.util
import os
import subprocess
import sys
from contextlib import nullcontext

import pytest

from tests.audit.small import write
from tests.cluster.conftest import ROOT

SCRIPT = ROOT / "cluster/slurm.py"


@pytest.fixture
def call_script(tmp_path, certificates):
    """Function that runs the script and returns its exit code, stderr and the number of queued jobs."""
    queued, bin = tmp_path / "queued", tmp_path / "bin"
    bin.mkdir()
    for name, text in (("sbatch", f"echo >> {queued}; echo Submitted batch job 7"), ("scancel", "true")):
        (bin / name).write_text(f"#!/bin/sh\n{text}\n")
        (bin / name).chmod(0o755)
    known = {"PATH": f"{bin}{os.pathsep}{os.environ['PATH']}", "DASK_CONFIG": str(certificates / "dask.yaml")}

    def ran(*arguments, **environment):
        command = [sys.executable, SCRIPT, *arguments, "--run-dir", tmp_path / "run", "--queue", "normal"]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=100,
                              env=os.environ | known | environment)  # fmt: skip
        return done.returncode, done.stderr, queued.read_text().count("\n") if queued.exists() else 0

    return ran


@pytest.mark.parametrize("fault", ["no file", "no job", "no domain"])
def test_invalid_job_is_refused_before_queueing(tmp_path, call_script, fault):
    job = write(tmp_path)
    if fault == "no file":
        job.unlink()
    elif fault == "no domain":
        (tmp_path / "domain.toml").unlink()
    else:
        job.write_text(job.read_text().replace('path = "data"', 'pth = "data"'))
    code, message, queued = call_script(job)
    assert (code, queued) == (2, 0), message
    assert message.startswith("slurm.py: ")
    assert message.count("\n") == 1


def test_missing_certificates_are_reported(tmp_path, call_script):
    pytest.importorskip("dask_jobqueue")
    code, message, queued = call_script(write(tmp_path), DASK_CONFIG=str(tmp_path / "none"))
    assert (code, queued) == (2, 0), message
    assert "certificates.py" in message.splitlines()[-1]
    assert "Traceback" not in message


def test_exit_code_of_error_during_run(tmp_path, cluster, monkeypatch, capsys):
    """A local cluster stands in for SLURM, and the budget refuses the run."""
    spec = importlib.util.spec_from_file_location("slurm", SCRIPT)
    slurm = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(slurm)
    monkeypatch.setattr(slurm, "make_cluster", lambda *_: nullcontext(cluster))
    monkeypatch.setattr(cluster, "adapt", lambda **_: None)
    privacy = {"privacy_cost": 0.5, "dataset": "small", "ledger": str(tmp_path / "ledger.sqlite")}
    from dpscale.ledger import Ledger

    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        ledger.set_cap("small", 1e-3, 1e-9)
    job = write(tmp_path, privacy=privacy, engine={})
    monkeypatch.setattr(sys, "argv", ["slurm.py", str(job), "--run-dir", str(tmp_path / "run"), "--queue", "normal"])
    assert slurm.main() == 3
    message = capsys.readouterr().err
    assert message.startswith("slurm.py: ")
    assert message.count("\n") == 1
