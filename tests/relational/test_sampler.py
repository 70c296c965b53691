"""The unbiased sampler: its distribution by enumeration of all outcomes, its totals and its memory."""

from __future__ import annotations

import tracemalloc
from itertools import combinations

import numpy as np
import pytest

from dpscale.relational import loops
from dpscale.relational.rounding import sample_entries
from tests.messages import refused
from tests.relational.small import make_stream

FIGURE = [0.1, 0.2, 0.5, 0.7, 0.6, 0.9]


class EnumeratedUniform:
    """A uniform number that enumerates outcomes: every comparison takes both results in turn, with its probability."""

    def __init__(self) -> None:
        self.way: list[bool] = []
        self.place, self.probability = 0, 1.0

    def begin(self) -> None:
        self.place, self.probability = 0, 1.0

    def __lt__(self, bound: float) -> bool:
        if bound >= 1:
            return True
        if self.place == len(self.way):
            self.way.append(True)
        went = self.way[self.place]
        self.place += 1
        self.probability *= bound if went else 1 - bound
        return went

    def next(self) -> bool:
        """Change the last comparison that has not taken both results."""
        while self.way and not self.way[-1]:
            self.way.pop()
        if self.way:
            self.way[-1] = False
        return bool(self.way)


def outcome_probabilities(
    values: list[float], links: int, monkeypatch: pytest.MonkeyPatch
) -> dict[tuple[int, ...], float]:
    """Return the probability of every outcome, from the sampler's loops in plain Python over all results of
    comparisons.
    """
    fate, merge = EnumeratedUniform(), loops.merge.py_func
    monkeypatch.setitem(merge.__globals__, "uniform", lambda state: fate)
    monkeypatch.setattr(loops, "merge", merge)
    found: dict[tuple[int, ...], float] = {}
    while True:
        fate.begin()
        outcome = tuple(sample_entries([(np.array(values), np.ones(len(values), np.int64))], links, make_stream(0)))
        found[outcome] = found.get(outcome, 0.0) + fate.probability
        if not fate.next():
            return found


def entry_probabilities(found: dict[tuple[int, ...], float], size: int) -> np.ndarray:
    """Return the probability (size,) of every entry."""
    out = np.zeros(size)
    for outcome, probability in found.items():
        out[list(outcome)] += probability
    return out


def test_figure_of_paper_is_reproduced(monkeypatch: pytest.MonkeyPatch) -> None:
    found = outcome_probabilities(FIGURE, 3, monkeypatch)
    assert sum(found.values()) == pytest.approx(1)
    assert entry_probabilities(found, 6) == pytest.approx(FIGURE)
    assert all(len(set(outcome)) == 3 for outcome in found)
    # groups {0, 1, 2}, {3}, {4}, {5}: one is left out, of the first one entry is taken
    assert found[(2, 4, 5)] == pytest.approx(0.3 * 0.5 / 0.8)
    assert found[(3, 4, 5)] == pytest.approx(0.2)
    assert found.keys() == {*((i, *pair) for i in range(3) for pair in combinations((3, 4, 5), 2)), (3, 4, 5)}


@pytest.mark.parametrize("size", range(1, 13))
@pytest.mark.parametrize("seed", range(3))
def test_every_entry_has_its_exact_probability(size: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(100 * size + seed)
    links = int(rng.integers(0, size + 1))
    values = rng.random(size)
    for _ in range(200):
        values = np.clip(values * (links / max(values.sum(), 1e-300)), 0, 1)
    values[rng.integers(size)] += links - values.sum()
    if not (values.min() >= 0 and values.max() <= 1):
        values = np.full(size, links / size)
    found = outcome_probabilities(values.tolist(), links, monkeypatch)
    assert all(len(set(outcome)) == len(outcome) == links for outcome in found)
    assert sum(found.values()) == pytest.approx(1, abs=1e-9)
    assert entry_probabilities(found, size) == pytest.approx(values, abs=1e-9)


@pytest.mark.parametrize("values", [[0.5] * 8, [1.0, 0.0, 1.0, 0.0], [2 / 3] * 3, [0.0, 0.0, 1.0], [0.1] * 10])
def test_equal_certain_and_impossible_entries_have_their_probabilities(
    values: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    links = round(sum(values))
    found = outcome_probabilities(values, links, monkeypatch)
    assert entry_probabilities(found, len(values)) == pytest.approx(values, abs=1e-9)


def test_runs_of_equal_entries_equal_single_entries() -> None:
    """By many draws: the probability of each entry, and no entry twice."""
    values, counts = np.array([0.02, 0.5, 0.003, 1.0, 0.15]), np.array([100, 7, 500, 2, 10])
    total = float(values @ counts)
    values[1] += (round(total) - total) / 7
    found = np.zeros(counts.sum())
    for number in range(4000):
        one = sample_entries([(values, counts)], round(total), make_stream(number))
        assert len(np.unique(one)) == len(one) == round(total)
        found[one] += 1
    wanted = np.repeat(values, counts)
    assert (np.abs(found / 4000 - wanted) <= 5 * np.sqrt(wanted * (1 - wanted) / 4000) + 1e-12).all()


def test_wrong_total_is_refused() -> None:
    with refused(ValueError):
        sample_entries([(np.array([0.5, 0.5]), np.ones(2, np.int64))], 3, make_stream(0))


@pytest.mark.parametrize("values", [[1.5, 0.5], [-0.1, 1.1], [np.nan, 1.0]])
def test_invalid_probability_is_refused(values: list[float]) -> None:
    with refused(ValueError):
        sample_entries([(np.array(values), np.ones(2, np.int64))], 1, make_stream(0))


def make_entries(parts: int, size: int, links: int):
    """Yield entries in parts with `links` in total, computed while they are read."""
    rng = np.random.default_rng(1)
    mean = links / (parts * size)
    for _ in range(parts):
        values = rng.random(size)
        yield values * (mean * size / values.sum()), np.ones(size, np.int64)


@pytest.mark.parametrize(("parts", "size", "links"),
                         [(20, 5000, 3000), pytest.param(1000, 100_000, 200_000, marks=pytest.mark.slow)])  # fmt: skip
def test_entries_are_sampled_in_parts_with_bounded_memory(parts: int, size: int, links: int) -> None:
    """The slow case has 10⁸ entries, 800 MB of numbers, of which few are in memory."""
    tracemalloc.start()
    found = sample_entries(make_entries(parts, size, links), links, make_stream(3))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(np.unique(found)) == links
    assert peak < 100 * links + 100 * size
    # by parts: their sums are even, and what is drawn of each is near to it
    counted = np.bincount(found // size, minlength=parts)
    assert np.abs(counted - links / parts).max() <= 6 * np.sqrt(links / parts)


def test_blocks_of_many_pairs_are_sampled() -> None:
    """10¹² pairs of rows in two blocks."""
    values, counts = np.array([1e-9, 3e-9]), np.array([10**12 // 4 * 3, 10**12 // 4])
    found = sample_entries([(values, counts)], 1500, make_stream(1))
    assert len(np.unique(found)) == 1500
    assert (found < counts[0]).sum() == pytest.approx(750, abs=3)


def test_uniform_numbers_are_fine_and_even() -> None:
    state = make_stream(1).state()
    found = np.array([loops.uniform(state) for _ in range(20_000)])
    assert (found * 2.0**40 % 1 != 0).mean() > 0.9
    assert np.bincount((found * 20).astype(int), minlength=20) == pytest.approx(1000, abs=150)
