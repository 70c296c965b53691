"""Maps and reductions on a cluster: the results of a plain loop, a bounded number of tasks in the scheduler, and no
leftovers.
"""

import time
from itertools import pairwise

import dask
import numpy as np
import pytest

import dpscale as dp
from dpscale.engine.cluster import LEAST_TASKS
from dpscale.engine.schedulers import LocalEngine, resolve
from tests.cluster.machines import machines
from tests.cluster.troubles import square
from tests.cluster.waiting import eventually
from tests.messages import refused


def random_arrays(seed, parts=3):
    random = np.random.default_rng(seed)
    return [random.normal(size=5) for _ in range(parts)]


def add_sum(number, array):
    return number + float(np.sum(array))


def test_map_keeps_order_and_bounds_scheduler_tasks(cluster, client):
    task_counts, seen = [], []

    def progress(label, done, total):
        task_counts.append(len(cluster.scheduler.tasks))
        seen.append((label, done, total))

    engine = resolve(client, progress=progress)
    assert engine.map(square, range(100_000), "squares") == [i * i for i in range(100_000)]
    assert max(task_counts) <= 2 * LEAST_TASKS
    assert seen[-1] == ("squares", 100_000, 100_000)
    assert len(task_counts) < 2000, "items were sent in batches"
    assert eventually(lambda: not cluster.scheduler.tasks)


def test_task_keys_contain_only_label_and_token(cluster, client):
    keys, words = set(), set()

    def progress(*_):
        keys.update(cluster.scheduler.tasks)
        words.update(repr(task.run_spec) for task in cluster.scheduler.tasks.values())

    engine = resolve(client, progress=progress)
    handles = engine.reduce(random_arrays, [(4711, 2), (4712, 2)], 2, "count")
    engine.map(add_sum, [(4713, handle) for handle in handles], "measure")
    assert {key[0].rsplit("-", 1)[0] for key in keys} >= {"dpscale-count", "dpscale-count-sum"}
    assert "4711" not in str(keys | words)
    assert "4713" not in str(keys | words)


def test_engines_do_not_share_keys(client):
    """A cluster caches results by key, so a later job must not receive the counts of an earlier one."""
    keys = [handle.key for _ in range(3) for handle in resolve(client).reduce(random_arrays, [(1,)], 3)]
    engine = resolve(client)
    keys += [handle.key for _ in range(3) for handle in engine.reduce(random_arrays, [(1,)], 3)]
    assert len(set(keys)) == len(keys) == 18


def test_float_sums_equal_threads_bytewise(client):
    items = [(seed,) for seed in range(19)]
    expected = LocalEngine("synchronous").reduce(random_arrays, items, 3)
    engine = resolve(client)
    for pieces in (None, [range(3)], [range(1), range(1, 3)]):
        found = engine.map(np.asarray, engine.reduce(random_arrays, items, 3, pieces=pieces))
        assert [one.tobytes() for one in found] == [one.tobytes() for one in expected]


def test_disjoint_pieces_are_not_summed_and_refusals_are_raised(client):
    engine, pieces = resolve(client), [range(1), range(1, 3)]
    found = engine.map(np.asarray, engine.reduce(make_piece, [(0, 1), (1, 2)], 3, pieces=pieces, disjoint=True))
    assert [one.tolist() for one in found] == [[0], [1], [1]]
    with refused(dp.DataError):
        engine.reduce(make_piece, [(0, 1), (-1, 2)], 3, pieces=pieces, disjoint=True)


def make_piece(number, parts):
    if number < 0:
        raise dp.DataError("data column 1", "a value outside the domain")
    return [np.full(1, number)] * parts


def test_map_accepts_handles_among_arguments(client):
    engine = resolve(client)
    handles = engine.reduce(random_arrays, [(1,)], 3)
    found = engine.map(add_sum, [(0, handles[0]), (5, np.zeros(2)), (1, handles[2])])
    assert found == [add_sum(0, random_arrays(1)[0]), 5, add_sum(1, random_arrays(1)[2])]


def test_map_of_empty_list(client):
    assert resolve(client).map(square, []) == []


@pytest.mark.parametrize("items", [[("a", 1)], [("dpscale", 0)], [([1, (2, "x")],)]])
def test_arguments_are_not_interpreted_as_keys(client, items):
    assert resolve(client).map(lambda *given: given, items) == items


def test_memory_is_requested_only_if_workers_declare_it(client):
    assert resolve(client).map(square, [3], memory=10) == [9]


def time_span(value):
    begin = time.monotonic()
    time.sleep(0.05)
    return begin, time.monotonic()


@pytest.mark.slow
def test_memory_hungry_tasks_run_one_at_a_time(secured, tmp_path):
    with machines(tmp_path, secured) as made:
        made.scheduler()
        made.worker("--no-nanny", "--resources", "MEMORY=1000", "--nthreads", 4)
        with dask.config.set({"dpscale.worker-wait": 60}):
            engine = resolve(scheduler=made.address)
        for memory in (600, 10**12):  # more than any has: all of the smallest
            spells = sorted(engine.map(time_span, range(8), memory=memory))
            assert all(end <= begin for (_, end), (begin, _) in pairwise(spells))
        engine.close()
