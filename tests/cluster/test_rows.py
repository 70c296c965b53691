"""Rows drawn on a cluster: the bytes of one process, also where every worker dies in the middle of a part."""

import hashlib
import shutil

import pytest

from dpscale.job.sections import SynthesizeTable
from dpscale.runs.run import Run
from dpscale.runs.stages.runner import run_stages
from tests.audit.small import write
from tests.cluster.troubles import arm

JOB = {
    "mechanism": {"name": "mst"},
    "workload": [{"family": "marginal", "degree": 2}],
    "privacy": {"rho": 0.5, "dataset": "small"},
}
ASKED = {way: SynthesizeTable(rows=160_000, parts=3, method=way) for way in ("sampler", "ancestral")}
ASKED["polished"] = SynthesizeTable(rows=160_000, parts=3, method="sampler", polish=True)


@pytest.fixture(scope="module", params=ASKED)
def expected(request, tmp_path_factory):
    """A run on threads whose rows are three tasks."""
    from dpscale.job import Job

    folder = tmp_path_factory.mktemp("rows")
    reconstruct = {"method": "graphical"}
    run = Run.create(Job.read(write(folder, **JOB, reconstruct=reconstruct)), folder / "run")
    run.request_rows(ASKED[request.param])
    for stage in ("plan", "measure", "reconstruct", "synthesize"):
        run_stages(run, scheduler="threads", only=stage)
    assert len(digests(run.path)) == 4
    return run


def digests(path):
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in (path / "synthetic").iterdir()}


def drawn_again(expected, client, tmp_path):
    """The bytes of the same release's rows, drawn on the cluster."""
    shutil.copytree(expected.path, tmp_path / "run")
    run = Run(tmp_path / "run")
    shutil.rmtree(run.path / "synthetic")
    run.request_rows(run.synthesis)
    run_stages(run, client, only="synthesize")
    return digests(run.path)


def test_a_cluster_gives_the_bytes_of_threads(client, expected, tmp_path):
    assert drawn_again(expected, client, tmp_path) == digests(expected.path)


def test_workers_that_die_in_a_part_are_made_good(cluster, client, expected, tmp_path):
    before = {worker.pid for worker in cluster.workers.values()}
    client.run(arm, "rows")
    assert drawn_again(expected, client, tmp_path) == digests(expected.path)
    assert {worker.pid for worker in cluster.workers.values()} != before, "the test's kill hit"
