"""Hierarchies and public totals on a cluster: the bytes of threads, also if a worker is killed while it measures."""

from __future__ import annotations

import pytest
import tomli_w

from tests.cluster.released import assert_same_release
from tests.cluster.test_adaptive import run
from tests.cluster.troubles import kill_at_stage
from tests.hierarchies.test_totals_in_runs import write_job


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """Directory of a threaded run of all levels, with the totals of regions."""
    folder = tmp_path_factory.mktemp("hierarchies")
    content, _, _ = write_job(folder, [("region",)])
    (folder / "job.toml").write_text(tomli_w.dumps(content))
    return run(folder / "job.toml", "expected", scheduler="threads")


@pytest.mark.parametrize("kills", [False, True])
def test_cluster_gives_bytes_of_threads(cluster, client, expected, kills):
    for path in expected.parent.glob("ledger.sqlite*"):
        path.unlink()
    before = {worker.pid for worker in cluster.workers.values()}
    if kills:
        client.run(kill_at_stage, "measuring")
    found = run(expected.parent / "job.toml", f"kills-{kills}", client)
    assert not kills or {worker.pid for worker in cluster.workers.values()} != before, "the test's kill hit"
    assert_same_release(found, expected)
