"""Large arguments and results are sent in chunks: the results of a plain loop, and no message above 10 MB."""

import numpy as np
import pytest

from dpscale.engine.graphs import (
    LARGE_BYTES,
    MOST_SENT,
    ChunkedResult,
    LargeResult,
    join_chunks,
    pickle_value,
    split_chunks,
    wrap_large,
)
from dpscale.engine.schedulers import resolve
from tests.cluster.troubles import die
from tests.cluster.weighing import record_message_sizes

LARGE = 3 * MOST_SENT + 8
MOST = 10_000_000


def reverse_and_scale(array, by):
    return array[::-1] * by


def scale_with_sum(array, by):
    return [array * by, np.array([array.sum() * by])]


def weighted_total(shared, array, factor):
    return int(shared.sum()) + int(array.sum()) * factor


@pytest.fixture
def message_sizes(monkeypatch):
    return record_message_sizes(monkeypatch)


def random_integers(size, seed=1):
    return np.random.default_rng(seed).integers(0, 100, size // 8)


def test_map_sends_large_arguments_and_results_in_chunks(client, message_sizes):
    array = random_integers(LARGE)
    found = resolve(client).map(reverse_and_scale, [(array, 1), (array[:10], 2), (array, 3)])
    assert [one.tolist() for one in found[1:]] == [
        reverse_and_scale(array[:10], 2).tolist(),
        reverse_and_scale(array, 3).tolist(),
    ]
    assert np.array_equal(found[0], array[::-1])
    assert sum(message_sizes) > 3 * LARGE
    assert max(message_sizes) < MOST


def test_medium_results_are_not_sent_in_one_message(client, message_sizes):
    items = [(random_integers(MOST_SENT // 2, seed), 1) for seed in range(8)]
    engine = resolve(client)
    found = engine.map(reverse_and_scale, items)
    assert all(np.array_equal(one, reverse_and_scale(*item)) for one, item in zip(found, items, strict=True))
    assert max(message_sizes) < MOST


def test_persisted_and_broadcast_values_are_sent_in_chunks(client, message_sizes):
    engine, array = resolve(client), random_integers(LARGE)
    shared = engine.broadcast(array)
    assert engine.broadcast(5) == 5, "little goes along with each task"
    whole, sums = engine.reduce(scale_with_sum, [(shared, 1), (shared, 2)], 2)
    persisted = engine.persist(reverse_and_scale, [(array, 1), (array[:5], 4)])
    assert engine.map(weighted_total, [(whole, sums, 5), (persisted[0], array, 1)]) == [
        18 * array.sum(),
        2 * array.sum(),
    ]
    assert engine.map(np.sum, persisted) == [array.sum(), 4 * array[:5].sum()]
    assert max(message_sizes) < MOST


def test_lost_chunks_are_computed_again(client):
    engine, array = resolve(client), random_integers(LARGE)
    shared, (persisted,) = engine.broadcast(array), engine.persist(reverse_and_scale, [(array, 1)])
    holders = {worker for workers in client.who_has([shared, persisted]).values() for worker in workers}
    client.run(die, workers=sorted(holders), on_error="ignore")
    whole, _ = engine.reduce(scale_with_sum, [(shared, 1), (shared, 2)], 2)
    assert engine.map(weighted_total, [(whole, persisted, 1)]) == [4 * array.sum()]


@pytest.mark.filterwarnings("ignore:Sending large graph:UserWarning")
def test_oversized_message_is_detected(client, message_sizes):
    client.submit(np.copy, random_integers(MOST + 8), pure=False).result()
    assert max(message_sizes) > MOST


@pytest.mark.parametrize(("size", "kind"), [(8, bytes), (LARGE_BYTES + 1, LargeResult), (MOST_SENT + 1, ChunkedResult)])
def test_type_of_large_result_depends_on_size(size, kind):
    made = wrap_large(bytes(size))
    assert type(made) is kind
    assert str(size) not in repr(made) or kind is bytes
    assert kind is bytes or join_chunks(*made.pieces) == bytes(size)


def test_chunks_join_to_value():
    data = pickle_value((lambda given: given + 1, "text", random_integers(LARGE)))
    assert max(map(len, split_chunks(data))) == MOST_SENT
    assert join_chunks(*split_chunks(data))[0](4) == 5
