"""Contribution bounds with rows exchanged between workers by unit: the rows of the old implementation, also after the
loss of a worker and its disk.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dpscale as dp
from dpscale.contributions.unit_shards import Dealing
from dpscale.counting import count_marginals
from dpscale.engine import contribution_bounds
from dpscale.engine.contribution_bounds import rows_beyond, send_dropped_rows
from dpscale.engine.counting import partition_groups, plan_passes, run_pass
from dpscale.engine.schedulers import resolve
from tests.cluster.troubles import UNITS, kill_at_stage
from tests.engine import old_units
from tests.selection import mostly_slow

DOMAIN = dp.Domain({"a": 3, "b": 3})
ROWS, MEMORY = 120_000, 1 << 22


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Eight files with many units of few rows, and one unit with a third of all rows."""
    folder, rng = tmp_path_factory.mktemp("units"), np.random.default_rng(1)
    for number in range(8):
        unit = np.where(rng.random(ROWS // 8) < 0.3, 7, rng.integers(0, ROWS // 4, ROWS // 8))
        columns = {"unit": unit, "a": rng.integers(0, 3, ROWS // 8), "b": rng.integers(0, 3, ROWS // 8)}
        pq.write_table(pa.table(columns), folder / f"{number}.parquet")
    return dp.Table.open(folder, DOMAIN)


@pytest.fixture(scope="module")
def groups(table):
    return partition_groups(table.partitions, 2)


@pytest.fixture(scope="module")
def expected_rows(groups):
    return old_units.rows_beyond(DOMAIN, groups, "unit", 3, ROWS, 1 << 30)


def open_scratch_files(dask_worker):
    """Return the unnamed files that a worker has open in its local directory."""
    links = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    return [os.readlink(one) for one in links if one.exists() or one.is_symlink()
            if str(dask_worker.local_directory) in os.readlink(one) and "deleted" in os.readlink(one)]  # fmt: skip


def equal_rows(found, expected_rows):
    return {part: rows.places.tolist() for part, rows in found.items()} == {
        p: r.tolist() for p, r in expected_rows.items()
    }


@pytest.mark.parametrize("lost", mostly_slow([None, *UNITS], {None, list(UNITS)[-1]}))
def test_dropped_rows_do_not_depend_on_lost_worker(cluster, client, groups, expected_rows, lost):
    if lost:
        client.run(kill_at_stage, lost, workers=list(client.nthreads())[:1])
    before = {worker.pid for worker in cluster.workers.values()}
    assert equal_rows(rows_beyond(resolve(client), DOMAIN, groups, "unit", 3, ROWS, MEMORY), expected_rows)
    after = {worker.pid for worker in cluster.workers.values()}
    assert (before != after) == bool(lost)
    client.wait_for_workers(2, timeout=500)
    assert not any(client.run(open_scratch_files).values())


def test_open_scratch_files_are_detected(client, table):
    dealing = Dealing(DOMAIN, "unit", DOMAIN.names, False, None, 3, 2, 1, 1000)
    engine = resolve(client)
    with engine.scratch() as use:
        shards = engine.persist(contribution_bounds._assign_shard, [(dealing, table.partitions, False, use)])
        assert any(client.run(open_scratch_files).values())
    assert shards
    assert not any(client.run(open_scratch_files).values())


def test_counts_exclude_dropped_rows(client, table, groups, expected_rows, monkeypatch):
    monkeypatch.setattr(contribution_bounds, "SMALL", 10)
    engine = resolve(client)
    dropped = send_dropped_rows(engine, rows_beyond(engine, DOMAIN, groups, "unit", 3, ROWS, MEMORY))
    [one] = plan_passes(DOMAIN, [("a", "b")], 1 << 20, 2)
    found = sum(int(counts.sum()) for counts in client.gather(run_pass(engine, one, groups, (), dropped)))
    assert found == count_marginals(table, [("a", "b")])["a", "b"].sum() - sum(map(len, expected_rows.values()))


def test_rows_do_not_pass_the_scheduler(client, groups, expected_rows, monkeypatch):
    """All messages of this process (scheduler and client) are much smaller than the row hashes."""
    from distributed.comm import tcp

    sizes, from_frames = [], tcp.from_frames

    async def record_size(frames, *arguments, **options):
        sizes.append(sum(memoryview(frame).nbytes for frame in frames))
        return await from_frames(frames, *arguments, **options)

    monkeypatch.setattr(tcp, "from_frames", record_size)
    assert equal_rows(rows_beyond(resolve(client), DOMAIN, groups, "unit", 3, ROWS, MEMORY), expected_rows)
    assert len(sizes) > 20
    assert max(sizes) < ROWS
