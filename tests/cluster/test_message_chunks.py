"""What is large goes in pieces: the results of a plain loop, and no message of more than 10 MB."""

import numpy as np
import pytest

from dpscale.engine import resolve
from dpscale.engine.task_sizing import (
    LARGE_BYTES,
    MOST_SENT,
    ChunkedResult,
    LargeResult,
    join_chunks,
    pickle_value,
    split_chunks,
    wrap_large,
)
from tests.cluster.troubles import die
from tests.cluster.weighing import weigh_messages

LARGE = 3 * MOST_SENT + 8
MOST = 10_000_000


def turned(array, by):
    return array[::-1] * by


def times(array, by):
    return [array * by, np.array([array.sum() * by])]


def total(shared, array, factor):
    return int(shared.sum()) + int(array.sum()) * factor


@pytest.fixture
def sizes(monkeypatch):
    return weigh_messages(monkeypatch)


def numbers(size, seed=1):
    return np.random.default_rng(seed).integers(0, 100, size // 8)


def test_arguments_and_results_of_a_map_go_in_pieces(client, sizes):
    array = numbers(LARGE)
    found = resolve(client).map(turned, [(array, 1), (array[:10], 2), (array, 3)])
    assert [one.tolist() for one in found[1:]] == [turned(array[:10], 2).tolist(), turned(array, 3).tolist()]
    assert np.array_equal(found[0], array[::-1])
    assert sum(sizes) > 3 * LARGE
    assert max(sizes) < MOST


def test_many_results_of_middle_size_are_not_one_message(client, sizes):
    items = [(numbers(MOST_SENT // 2, seed), 1) for seed in range(8)]
    engine = resolve(client)
    found = engine.map(turned, items)
    assert all(np.array_equal(one, turned(*item)) for one, item in zip(found, items, strict=True))
    assert max(sizes) < MOST


def test_what_is_kept_and_what_many_tasks_share_goes_in_pieces(client, sizes):
    engine, array = resolve(client), numbers(LARGE)
    shared = engine.broadcast(array)
    assert engine.broadcast(5) == 5, "little goes along with each task"
    whole, sums = engine.reduce(times, [(shared, 1), (shared, 2)], 2)
    kept = engine.persist(turned, [(array, 1), (array[:5], 4)])
    assert engine.map(total, [(whole, sums, 5), (kept[0], array, 1)]) == [18 * array.sum(), 2 * array.sum()]
    assert engine.map(np.sum, kept) == [array.sum(), 4 * array[:5].sum()]
    assert max(sizes) < MOST


def test_pieces_that_die_with_their_worker_are_put_together_again(client):
    engine, array = resolve(client), numbers(LARGE)
    shared, (kept,) = engine.broadcast(array), engine.persist(turned, [(array, 1)])
    holders = {worker for workers in client.who_has([shared, kept]).values() for worker in workers}
    client.run(die, workers=sorted(holders), on_error="ignore")
    whole, _ = engine.reduce(times, [(shared, 1), (shared, 2)], 2)
    assert engine.map(total, [(whole, kept, 1)]) == [4 * array.sum()]


@pytest.mark.filterwarnings("ignore:Sending large graph:UserWarning")
def test_a_message_that_is_too_large_would_be_seen(client, sizes):
    client.submit(np.copy, numbers(MOST + 8), pure=False).result()
    assert max(sizes) > MOST


@pytest.mark.parametrize(("size", "kind"), [(8, bytes), (LARGE_BYTES + 1, LargeResult), (MOST_SENT + 1, ChunkedResult)])
def test_a_result_says_by_its_type_how_it_is_fetched(size, kind):
    made = wrap_large(bytes(size))
    assert type(made) is kind
    assert str(size) not in repr(made) or kind is bytes
    assert kind is bytes or join_chunks(*made.pieces) == bytes(size)


def test_pieces_are_the_value():
    data = pickle_value((lambda given: given + 1, "text", numbers(LARGE)))
    assert max(map(len, split_chunks(data))) == MOST_SENT
    assert join_chunks(*split_chunks(data))[0](4) == 5
