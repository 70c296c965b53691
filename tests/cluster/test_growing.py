"""Growing tables on a cluster and in processes: the bytes of one thread, also if a worker is killed."""

from __future__ import annotations

import pytest

import dpscale as dp
from tests.cluster.troubles import kill_at_stage
from tests.periods.growing import MONTHS, frames, make_job, write
from tests.periods.test_kills import values

pytestmark = pytest.mark.slow  # tests/periods/test_kills.py and the other files of this folder have each part alone


@pytest.fixture(scope="module", params=[False, True], ids=["folders", "dates"])
def expected(request, tmp_path_factory):
    """Job with units in several months, and its run in one thread."""
    folder = tmp_path_factory.mktemp("growing")
    write(folder, frames(300, MONTHS[:2], units=40), column=request.param)
    unit = {"privacy_unit": "who", "max_rows_per_unit": 2}
    job = make_job(folder, data=unit, time={"max_periods_per_unit": 2, "answers": ["cumulative"]})
    del job["time"]["window"]
    return job, dp.run(job, folder / "expected").path


def run(job, path, **engine):
    """Run the job again with a new ledger at the same place, which the job's digest contains."""
    for file in path.parent.glob("ledger.sqlite*"):
        file.unlink()
    return dp.run(job, path, **engine).path


@pytest.mark.parametrize("kills", [False, True])
def test_cluster_gives_bytes_of_one_thread(cluster, client, expected, kills):
    job, path = expected
    before = {worker.pid for worker in cluster.workers.values()}
    if kills:
        client.run(kill_at_stage, "measuring")
    found = run(job, path.parent / f"kills-{kills}", client=client)
    assert not kills or {worker.pid for worker in cluster.workers.values()} != before, "the test's kill hit"
    assert values(found) == values(path)


def test_processes_give_bytes_of_one_thread(expected):
    job, path = expected
    assert values(run(job, path.parent / "processes", scheduler="processes")) == values(path)
