"""Triples of a pairwise model: more accurate if the records follow the model, unchanged if they do not."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from dpscale.reconstruction import pairwise as triples_module
from dpscale.reconstruction.entropy import LowOrder
from dpscale.reconstruction.pairwise import (
    Departure,
    PairwiseModel,
    add_triples,
    learn,
    missing_triples,
    pair_targets,
    sample_triples,
)
from tests.reconstruction.pairwise.small import MEMORY, SIZES, make_model

NAMES = tuple(SIZES)
THREES = list(combinations(NAMES, 3))


def draw_log_linear(pairs: float, threes: float = 0.0, seed: int = 3) -> np.ndarray:
    """Return a distribution with random log-linear effects of pairs and of triples."""
    rng, shape = np.random.default_rng(seed), tuple(SIZES.values())
    logs = np.zeros(shape)
    for size, strength in ((2, pairs), (3, threes)):
        for subset in combinations(range(4), size):
            own = rng.standard_normal([shape[axis] if axis in subset else 1 for axis in range(4)])
            logs = logs + strength * own
    law = np.exp(logs)
    return law / law.sum()


def learn_model(law: np.ndarray) -> tuple[LowOrder, PairwiseModel]:
    full = make_model(law)
    return full, learn(pair_targets(full, MEMORY), "release")


def true_marginal(law: np.ndarray, names: tuple[str, ...], total: float) -> np.ndarray:
    return total * law.sum(axis=tuple(axis for axis, name in enumerate(NAMES) if name not in names))


def triple_error(measured_sets: LowOrder, law: np.ndarray) -> float:
    return sum(
        np.abs(measured_sets.marginal(names) - true_marginal(law, names, measured_sets.total)).sum() for names in THREES
    )


def test_triples_of_model_are_more_accurate():
    law = draw_log_linear(1.0)
    full, learnt = learn_model(law)
    done = add_triples(full, learnt, missing_triples(full, THREES), "release")
    assert set(done.tables) == {*full.tables, *THREES}
    assert triple_error(done, law) < 0.6 * triple_error(full, law)
    for names in THREES:
        for subset in combinations(names, 2):
            margin = done.tables[names].sum(axis=next(i for i, name in enumerate(names) if name not in subset))
            np.testing.assert_allclose(margin, full.tables[subset], rtol=0.02, atol=2)


def test_contradicting_measured_triples_disable_completion():
    law = draw_log_linear(1.0, threes=1.0)
    full, learnt = learn_model(law)
    measured_sets = {names: np.ascontiguousarray(true_marginal(law, names, full.total)) for names in THREES[:3]}
    departing = {names: 2 * full.coarse_marginal(names) - table for names, table in
                 {n: add_triples(full, learnt, [n], "release").tables[n] for n in THREES[:3]}.items()}  # fmt: skip
    for measured, alone in ((measured_sets, None), (departing, True)):
        known = replace(full, tables={**full.tables, **measured}, measured=full.measured | set(measured))
        done = add_triples(known, learnt, [THREES[3]], "release")
        if alone:
            assert THREES[3] not in done.tables
        plain = np.abs(known.marginal(THREES[3]) - true_marginal(law, THREES[3], full.total)).sum()
        assert np.abs(done.marginal(THREES[3]) - true_marginal(law, THREES[3], full.total)).sum() < 1.05 * plain


def make_departures(slopes: list[float], sizes: list[float]) -> list[tuple[Departure, np.ndarray]]:
    """Return measured sets whose departure is that of the model times a slope."""
    by = [size * np.array([1.0, -1.0]) for size in sizes]
    return [(Departure(np.zeros(2), one), slope * one) for slope, one in zip(slopes, by, strict=True)]


def test_departure_share_needs_agreement_of_sets():
    assert triples_module._departure_share(make_departures([0.9] * 5, [1.0] * 5)) == pytest.approx(0.8)
    assert triples_module._departure_share(make_departures([16.0, 0.0, -0.1, 0.1, 0.0], [1.0] * 5)) == 0.0
    assert triples_module._departure_share(make_departures([0.4] * 5, [1.0] * 5)) == 0.0
    assert triples_module._departure_share(make_departures([9.0], [1.0])) == 1.0
    two = np.array([0.8, 1.2] * 10)  # slope 1; its error Σ (0.2 · 2)² over 20 sets, under 40
    assert triples_module._departure_share(make_departures(list(two), [1.0] * 20)) == pytest.approx(
        2 * (1 - np.sqrt(20 * 0.4**2) / 40) - 1
    )


def test_chance_departures_are_shrunk():
    """For an independent table the rows of the model depart by chance alone, and most of that is removed."""
    law = draw_log_linear(0.0)
    full, learnt = learn_model(law)
    done = add_triples(full, learnt, THREES, "release")
    seen = sample_triples(learnt, THREES, "release")
    expected = {names: full.coarse_marginal(names) for names in THREES}
    raw = sum(np.abs(seen[names][0] * full.total - own).sum() for names, own in expected.items())
    assert sum(np.abs(done.tables[names] - own).sum() for names, own in expected.items()) < 0.4 * raw


def test_rows_that_never_change_are_treated_as_chance():
    """d determines c and a, so that no value of a row is redrawn: one half of the rows cannot confirm the other."""
    law = np.zeros(tuple(SIZES.values()))
    random = np.random.default_rng(1)
    for a in range(3):
        for b in range(4):
            for c in range(2):
                law[a, b, c, 2 * a + c] = random.random()
    law = 0.999 * law / law.sum() + 0.001 / law.size
    full, learnt = learn_model(law)
    assert triple_error(add_triples(full, learnt, THREES, "release"), law) < 1.05 * triple_error(full, law) + 1


@pytest.mark.parametrize(("most", "found"), [(4, 3), (2, 0)])
def test_missing_triples_are_listed_within_limits(monkeypatch, most, found):
    full = make_model(draw_log_linear(1.0))
    known = replace(full, tables={**full.tables, THREES[0]: full.coarse_marginal(THREES[0])})
    monkeypatch.setattr(triples_module, "MOST_SETS", most)
    assert missing_triples(known, [*THREES, ("b", "a")]) == THREES[1:][:found]
    assert missing_triples(known, [("d", "a", "b")]) == [("a", "b", "d")]
    assert missing_triples(known, [NAMES]) == missing_triples(known, THREES)
    monkeypatch.setattr(triples_module, "MOST_CELLS", 10)
    assert missing_triples(known, THREES) == []
