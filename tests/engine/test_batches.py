"""Batches of a map: every item once and in order, tasks of about a second, and handles in their own tasks."""

from hypothesis import given, strategies as st

from dpscale.engine.graphs import MOST_CALLS, SCHEDULING, SHARES, TASK_SECONDS, Batch, Batches, batch_size


class Handle:
    """A stand-in for a future of a cluster."""

    __module__ = "distributed.client"


def simulate_batches(items, threads, seconds):
    """Return the sizes of batches if each call takes the given time."""
    batches, sizes = Batches(items, threads), []
    while batches.remaining:
        start, taken = batches.next_batch()
        assert start == sum(sizes)
        sizes.append(len(taken))
        batches.learn(len(taken), len(taken) * seconds)
    return sizes


@given(st.integers(0, 3000), st.integers(1, 64), st.floats(0, 100))
def test_batches_cover_items_and_take_about_a_second(count, threads, seconds):
    sizes = simulate_batches([(i,) for i in range(count)], threads, seconds)
    assert sum(sizes) == count
    assert all(size <= max(1, TASK_SECONDS / seconds if seconds else MOST_CALLS) for size in sizes)


def test_million_short_items_give_few_tasks_with_small_last_ones():
    sizes = simulate_batches([()] * 1_000_000, 8, 1e-6)
    assert len(sizes) < 500
    assert max(sizes) == MOST_CALLS
    assert sizes[-1] == 1, "all threads end together"


def test_first_call_is_single_unless_its_time_is_known():
    items = [()] * 1000
    assert len(Batches(items, 2).next_batch()[1]) == 1
    assert len(Batches(items, 2, seconds=0.1).next_batch()[1]) == 10
    assert len(Batches(items, 2, seconds=0.01).next_batch()[1]) == 100
    assert len(Batches(items, 20, seconds=0.01).next_batch()[1]) == -(-1000 // (20 * SHARES))


def test_batch_size_of_short_work_is_near_optimal():
    """With scheduling time e per task, k tasks of W seconds of work end after about k e + W/k."""
    for calls, threads, pace in ((3000, 100, 1e-3), (100_000, 1000, 1e-4), (40, 100, 0.01)):
        size = batch_size(calls, threads, pace)
        every = range(1, calls + 1)
        best = min(SCHEDULING * -(-calls // one) + one * pace for one in every)
        assert SCHEDULING * -(-calls // size) + size * pace < 1.3 * best
    assert batch_size(1000, 2, 1e-6) == 1000 // (2 * SHARES)
    assert batch_size(1600, 1000, 1e-6) == 100, "other calls may take longer"


def test_older_measurements_of_time_count_less():
    batches = Batches([()] * 10**6, 1)
    batches.learn(MOST_CALLS + 1, 0.0)
    for _ in range(20):
        batches.learn(MOST_CALLS, MOST_CALLS * 0.5)
    assert len(batches.next_batch()[1]) == 2


def test_call_with_handle_is_a_task_of_its_own():
    batches = Batches([(1,), (2,), (Handle(), 3), (4,), (5,)], 1, seconds=1e-9)
    sizes = []
    while batches.remaining:
        sizes.append(len(batches.next_batch()[1]))
    assert sizes == [2, 1, 1, 1]


def test_batches_end_before_a_handle():
    plain = [(i,) for i in range(50)]
    batches = Batches([*plain, (Handle(),), *plain], 1, seconds=1e-9)
    sizes = []
    while batches.remaining:
        sizes.append(len(batches.next_batch()[1]))
    ends = {sum(sizes[:i]) for i in range(len(sizes) + 1)}
    assert ends >= {0, 50, 51, 101}


def test_handles_keep_their_positions():
    first, last = Handle(), Handle()
    batch = Batch(lambda *given: given, [(1, first), (last, 2, "x")])
    assert batch.handles == [first, last]
    seconds, results = batch("one", "two")
    assert results == [(1, "one"), ("two", 2, "x")]
    assert seconds >= 0
    assert "Handle" not in repr(batch)
