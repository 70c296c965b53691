"""cluster/slurm.py on an installed SLURM; skipped without `sbatch` or dask-jobqueue.

DPSCALE_SLURM names the partition (default: normal); the nodes share the directory for temporary files of the test
machine.
"""

import os
import shutil
import subprocess
import sys

import pytest

import dpscale as dp
from tests.audit.small import answers, measurements, write
from tests.cluster.conftest import ROOT
from tests.cluster.waiting import eventually

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("sbatch") is None, reason="no SLURM here"),
]
QUEUE = os.environ.get("DPSCALE_SLURM", "normal")


def running_jobs():
    """Return the ids of running worker jobs."""
    output = subprocess.run(["squeue", "-h", "-t", "R", "-n", "dask-worker", "-o", "%A"], capture_output=True,
                            text=True, check=True).stdout  # fmt: skip
    return set(output.split())


def test_cancelled_slurm_job_is_requeued_and_bytes_equal_threads(tmp_path, certificates):
    pytest.importorskip("dask_jobqueue")
    job = write(tmp_path, engine={"seed": 5})
    expected = dp.run(job, tmp_path / "expected", scheduler="threads")
    (tmp_path / "ledger.sqlite").unlink()
    before = running_jobs()
    command = [sys.executable, ROOT / "cluster/slurm.py", job, "--run-dir", tmp_path / "run", "--queue", QUEUE,
               "--jobs", "1", "--cores", "1", "--memory", "2GB"]  # fmt: skip
    begun = subprocess.Popen(list(map(str, command)), cwd=tmp_path,
                             env=os.environ | {"DASK_CONFIG": str(certificates / "dask.yaml")})  # fmt: skip
    try:
        assert eventually(lambda: (tmp_path / "run/plan/plan.json").exists()), "its worker is known"
        first = running_jobs() - before
        subprocess.run(["scancel", *first], check=True)
        assert eventually(lambda: running_jobs() - before - first or begun.poll() is not None, 120)
        assert begun.wait(180) == 0
    finally:
        begun.terminate()
    assert eventually(lambda: running_jobs() <= before)
    assert measurements(tmp_path / "run") == measurements(expected.path)
    assert answers(tmp_path / "run") == answers(expected.path)
