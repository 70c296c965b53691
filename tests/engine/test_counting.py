"""Counting in passes, shards and groups gives the counts of one plain pass for any memory limit."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import combinations

import dask
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as st

import dpscale as dp
from dpscale.engine import counting, graphs
from dpscale.engine.counting import FACTOR, TASKS, counting_cost, partition_groups, plan_passes, run_pass
from dpscale.engine.graphs import reduction_graph
from dpscale.engine.schedulers import LocalEngine
from dpscale.records import Partition
from tests.messages import refused
from tests.records import naive
from tests.strategies import as_table, attribute_sets, coded_domains, coded_rows, cuts


def count_in_passes(engine, domain, sets, partitions, memory, dropped=None):
    """Return counts by attribute set, through passes and shards."""
    groups = partition_groups(partitions, engine.workers)
    found = {}
    for one in plan_passes(domain, sets, memory, engine.workers):
        handles = run_pass(engine, one, groups, domain.names, dropped)
        for layout, flat in zip(one.shards, handles, strict=True):
            found |= {marginal.attributes: marginal.counts for marginal in layout.marginals(flat)}
    return found


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_memory_workers_and_partitioning_give_naive_counts(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("passes")
    domain = data.draw(coded_domains(most=4, largest=6))
    rows = data.draw(coded_rows(domain))
    sets = list(dict.fromkeys(domain.ordered(names) for names in data.draw(attribute_sets(domain, 12))))
    for number, (start, end) in enumerate(data.draw(cuts(len(rows)))):
        pq.write_table(as_table(domain, rows[start:end]), folder / f"{number}.parquet")
    engine = LocalEngine(data.draw(st.sampled_from(["threads", "synchronous"])), workers=data.draw(st.integers(1, 4)))
    memory = data.draw(st.sampled_from([1, 1000, 10_000, 1 << 30]))
    found = count_in_passes(engine, domain, sets, dp.Table.open(folder, domain).partitions, memory)
    assert list(found) == sets
    for names in sets:
        assert np.array_equal(found[names], naive.marginal(domain, rows, names))


def test_processes_give_naive_counts(tmp_path):
    domain = dp.Domain({"a": 3, "b": 4})
    rows = [(i % 3, i % 4) for i in range(100)]
    for number in range(3):
        pq.write_table(as_table(domain, rows[number::3]), tmp_path / f"{number}.parquet")
    partitions = dp.Table.open(tmp_path, domain).partitions
    found = count_in_passes(LocalEngine("processes", workers=2), domain, [("a", "b"), ()], partitions, 1)
    assert np.array_equal(found["a", "b"], naive.marginal(domain, rows, ("a", "b")))
    assert found[()] == 100


def test_passes_respect_memory_and_cover_all_sets():
    domain = dp.Domain({f"a{i}": 10 for i in range(12)})
    sets = [(f"a{i}", f"a{j}") for i in range(12) for j in range(i)]
    passes = plan_passes(domain, sets, memory=8 * (2 + FACTOR) * 1000, workers=2)
    assert [names for one in passes for layout in one.shards for names in layout.sets] == sets
    assert all(sum(int(layout.offsets[-1]) for layout in one.shards) <= 1000 for one in passes)
    assert len(passes) == 7


def test_groups_contain_each_partition_once_and_are_balanced():
    parts = [Partition(f"/x/{i}.parquet", share=size) for i, size in enumerate([10**6, *[1000] * 999, 0])]
    groups = partition_groups(parts, 2)
    assert sorted(part.path for group in groups for part in group) == sorted(part.path for part in parts)
    loads = [sum(part.share or 0 for part in group) for group in groups]
    assert max(loads) - min(loads) <= 2000
    assert partition_groups(parts[:1], 8) == [(parts[0],)]


def test_many_partitions_are_grouped_with_one_size_call_each(monkeypatch):
    """Each size call is an access to the disk."""
    parts = [Partition(f"/x/{i}.parquet", share=i % 77) for i in range(100_000)]
    size_calls, size = Counter(), Partition.size
    monkeypatch.setattr(Partition, "size", lambda part: size_calls.update([part.path]) or size(part))
    groups = partition_groups(parts, 1000)
    assert sum(map(len, groups)) == len(size_calls) == 100_000
    assert set(size_calls.values()) == {1}
    loads = [sum(part.share for part in group) for group in groups]
    assert max(loads) - min(loads) <= 77


def test_checked_columns_are_validated_without_being_counted(tmp_path):
    domain = dp.Domain({"a": 3, "b": 2})
    pq.write_table(as_table(domain, [(0, 1), (1, 2)]), tmp_path / "x.parquet")
    partitions = dp.Table.open(tmp_path, domain).partitions
    with refused(dp.DataError):
        count_in_passes(LocalEngine("threads", workers=2), domain, [("a",)], partitions, 1 << 20)


# Few tasks, short tasks, balanced tasks


class Recorder(LocalEngine):
    """An engine that records what it reduces."""

    def reduce(self, function, items, parts, label="reduce", memory=None, pieces=None, disjoint=False):
        self.items, self.memory = list(items), memory
        return super().reduce(function, items, parts, label, memory, pieces, disjoint)


def random_rows(domain, rows, seed=0):
    random = np.random.default_rng(seed)
    return [tuple(random.integers(0, attribute.size) for attribute in domain.attributes) for _ in range(rows)]


def assert_counts(engine, domain, sets, folder, rows, memory=1 << 30):
    found = count_in_passes(engine, domain, sets, dp.Table.open(folder, domain).split().partitions, memory)
    for names in sets:
        assert np.array_equal(found[names], naive.marginal(domain, rows, names))


def test_one_huge_file_is_shared_by_sets(tmp_path):
    domain = dp.Domain({f"a{i:02d}": 2 + i % 3 for i in range(25)})
    rows = random_rows(domain, 300)
    pq.write_table(as_table(domain, rows), tmp_path / "huge.parquet")
    sets = list(combinations(domain.names, 3))
    engine = Recorder("threads", workers=3)
    assert_counts(engine, domain, sets, tmp_path, rows)
    assert len(engine.items) == 3
    assert all(len(partitions) == 1 for _, partitions, *_ in engine.items)
    mine = [(task.first, task.first + len(task.shards)) for task, *_ in engine.items]
    assert [first for first, _ in mine[1:]] == [end for _, end in mine[:-1]]


@pytest.mark.parametrize("workers", [2, 20])
def test_sets_are_shared_if_counters_outnumber_rows(tmp_path, monkeypatch, workers):
    """Each shard belongs to one worker, so nothing has to be summed."""
    monkeypatch.setattr(counting, "OPEN_NANOSECONDS", 0.0)
    domain = dp.Domain({f"a{i}": 50 for i in range(8)})
    rows = random_rows(domain, 40)
    for number in range(4):
        pq.write_table(as_table(domain, rows[number::4]), tmp_path / f"{number}.parquet")
    engine = Recorder("threads", workers=workers)
    assert_counts(engine, domain, list(combinations(domain.names, 2)), tmp_path, rows)
    assert {len(partitions) for _, partitions, *_ in engine.items} == {4}
    monkeypatch.setattr(counting, "CLEAR_NANOSECONDS", 0.0)
    assert_counts(engine, domain, list(combinations(domain.names, 2)), tmp_path, rows)
    assert {len(partitions) for _, partitions, *_ in engine.items} == {1 if workers > 2 else 2}


@pytest.mark.parametrize("scheduler", ["threads", "processes", "synchronous"])
def test_huge_file_with_many_tiny_irregular_ones(tmp_path, scheduler, monkeypatch):
    monkeypatch.setattr(counting, "READ_NANOSECONDS", 0.0)  # so that sharing the sets pays even here
    monkeypatch.setattr(counting, "OPEN_NANOSECONDS", 0.0)
    domain = dp.Domain({"a": 3, "b": 4, "c": 300})
    rows = random_rows(domain, 900)
    pq.write_table(as_table(domain, rows[:800]), tmp_path / "huge.parquet", row_group_size=7)
    for number, row in enumerate(rows[800:]):
        table = as_table(domain, [row])
        table = table.select(table.column_names[:: -1 if number % 2 else 1])
        if number % 3 == 0:
            table = table.append_column("extra", [["x"]])
        if number % 5 == 0:
            table = table.cast(pa.schema([(f.name, pa.int64() if f.name != "extra" else f.type) for f in table.schema]))
        if number % 7 == 0:
            place = table.column_names.index("b")
            table = table.set_column(place, "b", table["b"].dictionary_encode())
        pq.write_table(table, tmp_path / f"tiny-{number}.parquet")
        pq.write_table(table.slice(0, 0), tmp_path / f"void-{number}.parquet")
    sets = [(), ("a",), ("a", "b"), ("a", "c"), ("b", "c"), ("a", "b", "c")]
    assert_counts(LocalEngine(scheduler, workers=2), domain, sets, tmp_path, rows)


def test_short_tasks_if_partial_counts_are_small(tmp_path, monkeypatch):
    monkeypatch.setattr(counting, "TASK_SECONDS", 1e-9)
    domain = dp.Domain({"a": 3, "b": 4})
    rows = random_rows(domain, 120)
    for number in range(40):
        pq.write_table(as_table(domain, rows[number * 3 : number * 3 + 3]), tmp_path / f"{number}.parquet")
    engine = Recorder("threads", workers=2)
    assert_counts(engine, domain, [("a",), ("a", "b")], tmp_path, rows)
    assert len(engine.items) == 40
    assert_counts(engine, domain, [("a",), ("a", "b")], tmp_path, rows, memory=8 * 6 * 20)
    assert len(engine.items) == 2, "partial counts could not wait for their sum"


def test_counting_cost_reports_tasks_and_saving():
    domain = dp.Domain({f"a{i:02d}": 40 for i in range(20)})
    sets = list(combinations(domain.names, 3))
    for workers in (1, 2, 64, 1000):
        for rows in (None, 10**6, 10**12):
            predicted = counting_cost(domain, sets, 4 << 30, workers, rows)
            assert predicted.tasks < TASKS
            assert predicted.saving.asked == 1140
            assert predicted.saving.factor >= 1
    binary = dp.Domain({f"a{i:02d}": 2 for i in range(20)})
    assert counting_cost(binary, list(combinations(binary.names, 3)), 1 << 30, 2).saving.factor > 10


def write_files(folder, domain, files, each):
    """Write random rows into the given number of files and return them."""
    rows = random_rows(domain, files * each)
    for number in range(files):
        own = rows[number * each : (number + 1) * each]
        pq.write_table(as_table(domain, own), folder / f"{number:03d}.parquet")
    return rows


def test_groups_beyond_task_limit_are_merged(tmp_path):
    domain = dp.Domain({"a": 3, "b": 4})
    rows = write_files(tmp_path, domain, 10, 4)
    engine = Recorder("threads", workers=10)
    (one,) = plan_passes(domain, [("a", "b")], 1 << 30, 10)
    groups = partition_groups(dp.Table.open(tmp_path, domain).partitions, 10)
    (counts,) = run_pass(engine, replace(one, most=3), groups)
    assert len(engine.items) == 3
    assert np.array_equal(counts, naive.marginal(domain, rows, ("a", "b")).ravel())


def test_small_table_uses_few_of_many_workers(tmp_path):
    domain = dp.Domain({"a": 3, "b": 4})
    rows = write_files(tmp_path, domain, 100, 2)
    engine = Recorder("threads", workers=1000)
    assert_counts(engine, domain, [("a", "b")], tmp_path, rows)
    assert len(engine.items) == graphs.LEAST_TASKS
    assert graphs.useful_tasks(4.0) == 63, "63 tasks take 63 ms to hand out, and 64 ms each"


def test_predicted_tasks_equal_executed_tasks(tmp_path):
    domain = dp.Domain({"a": 3, "b": 4, "c": 2})
    rows = random_rows(domain, 60)
    for number in range(12):
        pq.write_table(as_table(domain, rows[number * 5 : number * 5 + 5]), tmp_path / f"{number}.parquet")
    sets = [("a", "b"), ("b", "c"), ("a", "c")]
    for workers in (1, 2, 9):
        engine = TaskCounter("threads", workers=workers)
        assert_counts(engine, domain, sets, tmp_path, rows)
        predicted = counting_cost(domain, sets, 1 << 30, workers)
        shards = sum(len(one.shards) for one in plan_passes(domain, sets, 1 << 30, workers))
        assert engine.tasks + shards == predicted.tasks, "the tasks that measure are counted too"


@pytest.mark.parametrize("small", [0, 1 << 40])
@pytest.mark.parametrize("workers", [1, 2, 9, 70])
def test_predicted_tasks_are_those_of_the_graph(monkeypatch, workers, small):
    monkeypatch.setattr(counting, "SMALL", small)
    domain, sets = dp.Domain({"a": 3, "b": 4, "c": 2}), [("a", "b"), ("b", "c"), ("a",), ()]
    (one,) = plan_passes(domain, sets, 1 << 30, workers)
    assert (len(one.pieces) > 1) == (not small)
    graph, _, parts = reduction_graph(max, [()] * workers, one.pieces, lambda name: name)
    assert counting_cost(domain, sets, 1 << 30, workers).tasks == len(graph) + len(parts)


class TaskCounter(LocalEngine):
    """An engine that counts the tasks of its graphs."""

    tasks = 0

    def _results(self, graph, keys, *rest):
        self.tasks += len(graph)
        return super()._results(graph, keys, *rest)


def test_task_items_contain_no_count(tmp_path):
    domain = dp.Domain({"a": 3, "b": 4})
    pq.write_table(as_table(domain, [(1, 2)] * 4711), tmp_path / "x.parquet")
    engine = Recorder("threads", workers=2)
    count_in_passes(engine, domain, [("a", "b"), ("a",)], dp.Table.open(tmp_path, domain).partitions, 1 << 30)
    assert "4711" not in repr(engine.items)


def test_largest_task_names_largest_set_and_its_memory(tmp_path):
    domain = dp.Domain({"a": 3, "b": 4, "c": 50})
    pq.write_table(as_table(domain, [(1, 2, 3)] * 10), tmp_path / "x.parquet")
    sets = [("a", "b"), ("b", "c"), ("a",)]
    engine = Recorder("threads", workers=2)
    count_in_passes(engine, domain, sets, dp.Table.open(tmp_path, domain).partitions, 1 << 30)
    needed, what = counting.largest_task(domain, sets, 1 << 30, 2)
    assert (engine.memory, what) == (needed, "b, c")
    assert needed >= 8 * (12 + 200 + 3)
    assert counting.largest_task(domain, [()], 1 << 30, 2)[1] == "the total"


@pytest.mark.parametrize("small", [0, 1 << 40])
def test_separate_and_joint_sums_of_shards_are_equal(tmp_path, monkeypatch, small):
    monkeypatch.setattr(counting, "SMALL", small)
    domain = dp.Domain({"a": 3, "b": 4, "c": 2})
    rows = random_rows(domain, 500)
    for number in range(20):
        pq.write_table(as_table(domain, rows[number::20]), tmp_path / f"{number}.parquet")
    sets = [("a", "b"), ("b", "c"), ("a",), ()]
    engine = TaskCounter("threads", workers=20)
    found = count_in_passes(engine, domain, sets, dp.Table.open(tmp_path, domain).partitions, 1 << 30)
    assert all(np.array_equal(found[names], naive.marginal(domain, rows, names)) for names in sets)
    shards = sum(len(one.shards) for one in plan_passes(domain, sets, 1 << 30, 20))
    assert engine.tasks + shards == counting_cost(domain, sets, 1 << 30, 20).tasks
    assert (engine.tasks <= 20 + 4 + shards) == bool(small)


def test_32_bit_partial_counts_are_summed_in_64_bits():
    """A group of the reduction tree with a single part is widened by the next level."""
    most = np.full(2, (1 << 31) - 1, np.int32)
    graph, _, roots = reduction_graph(lambda: [most], [()] * 9, [range(1)], str)
    [total] = dask.get(graph, roots)
    assert total.dtype == np.int64
    assert total.tolist() == [9 * ((1 << 31) - 1)] * 2
