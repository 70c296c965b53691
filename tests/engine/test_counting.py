"""Passes, shards and groups under any memory setting give the counts of one plain pass."""

from __future__ import annotations

import time

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dpscale as dp
from dpscale.engine import LocalEngine
from dpscale.engine.counting import partition_groups, plan_passes, run_pass
from dpscale.tables import Partition
from tests.strategies import as_table, attribute_sets, coded_domains, coded_rows, cuts
from tests.tables import naive


def in_passes(engine, domain, sets, partitions, memory, dropped=None):
    """Counts by attribute set, through passes and shards."""
    groups = partition_groups(partitions, engine.workers)
    found = {}
    for one in plan_passes(domain, sets, memory, engine.workers):
        handles = run_pass(engine, one, groups, domain.names, dropped)
        for layout, flat in zip(one.shards, handles, strict=True):
            found |= {marginal.attributes: marginal.counts for marginal in layout.marginals(flat)}
    return found


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_memory_workers_and_partitioning_give_the_naive_counts(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("passes")
    domain = data.draw(coded_domains(most=4, largest=6))
    rows = data.draw(coded_rows(domain))
    sets = list(dict.fromkeys(domain.ordered(names) for names in data.draw(attribute_sets(domain, 12))))
    for number, (start, end) in enumerate(data.draw(cuts(len(rows)))):
        pq.write_table(as_table(domain, rows[start:end]), folder / f"{number}.parquet")
    engine = LocalEngine(data.draw(st.sampled_from(["threads", "synchronous"])), workers=data.draw(st.integers(1, 4)))
    memory = data.draw(st.sampled_from([1, 1000, 10_000, 1 << 30]))
    found = in_passes(engine, domain, sets, dp.Table.open(folder, domain).partitions, memory)
    assert list(found) == sets
    for names in sets:
        assert np.array_equal(found[names], naive.marginal(domain, rows, names))


def test_processes_give_the_same(tmp_path):
    domain = dp.Domain({"a": 3, "b": 4})
    rows = [(i % 3, i % 4) for i in range(100)]
    for number in range(3):
        pq.write_table(as_table(domain, rows[number::3]), tmp_path / f"{number}.parquet")
    partitions = dp.Table.open(tmp_path, domain).partitions
    found = in_passes(LocalEngine("processes", workers=2), domain, [("a", "b"), ()], partitions, 1)
    assert np.array_equal(found["a", "b"], naive.marginal(domain, rows, ("a", "b")))
    assert found[()] == 100


def test_a_pass_stays_within_the_memory_and_no_set_is_lost():
    domain = dp.Domain({f"a{i}": 10 for i in range(12)})
    sets = [(f"a{i}", f"a{j}") for i in range(12) for j in range(i)]
    passes = plan_passes(domain, sets, memory=8 * 6 * 1000, workers=2)
    assert [names for one in passes for layout in one.shards for names in layout.sets] == sets
    assert all(sum(int(layout.offsets[-1]) for layout in one.shards) <= 1000 for one in passes)
    assert len(passes) == 7


def test_groups_hold_every_partition_once_and_balance_a_huge_file():
    parts = [Partition(f"/x/{i}.parquet", share=size) for i, size in enumerate([10**6, *[1000] * 999, 0])]
    groups = partition_groups(parts, 2)
    assert sorted(part.path for group in groups for part in group) == sorted(part.path for part in parts)
    loads = [sum(part.share or 0 for part in group) for group in groups]
    assert max(loads) - min(loads) <= 2000
    assert partition_groups(parts[:1], 8) == [(parts[0],)]


def test_a_hundred_thousand_partitions_are_dealt_to_a_thousand_workers_in_seconds():
    parts = [Partition(f"/x/{i}.parquet", share=i % 77) for i in range(100_000)]
    begin = time.perf_counter()
    groups = partition_groups(parts, 1000)
    assert time.perf_counter() - begin < 5
    assert sum(map(len, groups)) == 100_000


def test_checked_columns_are_held_against_the_domain(tmp_path):
    domain = dp.Domain({"a": 3, "b": 2})
    pq.write_table(as_table(domain, [(0, 1), (1, 2)]), tmp_path / "x.parquet")
    partitions = dp.Table.open(tmp_path, domain).partitions
    with pytest.raises(dp.DataError, match="data column 'b'"):
        in_passes(LocalEngine("threads", workers=2), domain, [("a",)], partitions, 1 << 20)
