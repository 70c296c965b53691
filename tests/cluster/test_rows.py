"""Synthetic rows drawn on a cluster: the bytes of one process, also if every worker is killed within a part."""

import hashlib
import shutil

import pytest

from dpscale.job.sections import SynthesizeTable
from dpscale.runs.opening import open_part
from tests.audit.small import write
from tests.cluster.troubles import kill_at_stage
from tests.running import begin_table, run_stages
from tests.selection import mostly_slow

JOB = {
    "mechanism": {"name": "mst"},
    "workload": [{"family": "marginal", "degree": 2}],
    "privacy": {"rho": 0.5, "dataset": "small"},
}
REQUESTS = {way: SynthesizeTable(rows=160_000, parts=3, method=way) for way in ("sampler", "ancestral")}
REQUESTS["polished"] = SynthesizeTable(rows=160_000, parts=3, method="sampler", polish=True)


@pytest.fixture(scope="module", params=mostly_slow(REQUESTS, ("polished",)))
def expected(request, tmp_path_factory):
    """A threaded run whose rows are three tasks."""
    from dpscale.job import Job

    folder = tmp_path_factory.mktemp("rows")
    reconstruct = {"method": "graphical"}
    run = begin_table(Job.read(write(folder, **JOB, reconstruct=reconstruct)), folder / "run")
    run.request_rows(REQUESTS[request.param])
    for stage in ("plan", "measure", "reconstruct", "synthesize"):
        run_stages(run, scheduler="threads", only=stage)
    assert len(row_digests(run.path)) == 4
    return run


def row_digests(path):
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in (path / "synthetic").iterdir()}


def redraw_on_cluster(expected, client, tmp_path):
    """Return the digests of the rows of the same release, drawn on the cluster."""
    shutil.copytree(expected.path, tmp_path / "run")
    run = open_part(tmp_path / "run")
    shutil.rmtree(run.path / "synthetic")
    run.request_rows(run.synthesis)
    run_stages(run, client, only="synthesize")
    return row_digests(run.path)


def test_cluster_gives_rows_of_threads(client, expected, tmp_path):
    assert redraw_on_cluster(expected, client, tmp_path) == row_digests(expected.path)


@pytest.mark.slow  # test_jobs.py kills workers in another stage
def test_killed_workers_in_part_do_not_change_rows(cluster, client, expected, tmp_path):
    before = {worker.pid for worker in cluster.workers.values()}
    client.run(kill_at_stage, "rows")
    assert redraw_on_cluster(expected, client, tmp_path) == row_digests(expected.path)
    assert {worker.pid for worker in cluster.workers.values()} != before, "the test's kill hit"
