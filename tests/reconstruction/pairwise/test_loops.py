"""The loops of the Gibbs sampler against brute force: counts, weights and the distribution of drawn values."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from scipy.stats import chisquare

from dpscale.privacy.streams import PublicStream
from dpscale.reconstruction import pairwise_loops as loops
from dpscale.reconstruction.pairwise import Sweeper, independent_rows, pair_targets
from tests.reconstruction.pairwise.small import MEMORY, SIZES, count_pair, draw_joint, make_model

SIZE_LIST = list(SIZES.values())


def make_sweeper(count: int = 400, theta: float = 0.0, active: bool = True) -> Sweeper:
    targets, chance = pair_targets(make_model(draw_joint()), MEMORY), PublicStream("test", "sweeper")
    rows = independent_rows(targets.layout, targets.ones, count, chance)
    thetas = theta * np.random.default_rng(1).normal(size=targets.layout.cells)
    return Sweeper(
        targets.layout, targets.ones, rows, targets.shares * count, thetas, targets.layout.used & active, chance
    )


def test_counts_equal_counts_of_rows() -> None:
    sweeper = make_sweeper()
    for i, j in combinations(range(4), 2):
        assert (sweeper.layout.of(sweeper.counts, i, j) == count_pair(sweeper.rows, i, j, SIZE_LIST)).all()
    sweeper.sweep(1.0)
    for i, j in combinations(range(4), 2):
        assert (sweeper.layout.of(sweeper.counts, i, j) == count_pair(sweeper.rows, i, j, SIZE_LIST)).all()


def test_weights_are_gradient_of_energy_in_both_layouts() -> None:
    sweeper = make_sweeper(theta=0.7)
    sweeper.sweep(0.0)
    layout, beta = sweeper.layout, 3.0
    weights, slopes = np.zeros(2 * layout.cells, np.float32), np.zeros(2 * layout.cells, np.float32)
    loops.weigh(layout.starts, sweeper.active, layout.sizes, sweeper.target_counts, sweeper.scale, sweeper.theta,
                sweeper.counts, beta, weights, slopes)  # fmt: skip
    for i, j in layout.pairs:
        c, t, th = (layout.of(one, i, j) for one in (sweeper.counts, sweeper.target_counts, sweeper.theta))
        expected = th - beta * (c + 0.5 - t) / (t + 1)
        by_i = weights[layout.starts[i, j, 1] :][: expected.size].reshape(expected.shape[::-1])
        by_j = weights[layout.starts[j, i, 1] :][: expected.size].reshape(expected.shape)
        assert np.allclose(by_i.T, expected, rtol=1e-6, atol=1e-5)
        assert by_j == pytest.approx(expected, rel=1e-6, abs=1e-5)


def test_weights_follow_every_change_of_a_sweep() -> None:
    """After a sweep the updated weights equal the weights computed from the counts."""
    sweeper = make_sweeper(theta=0.3)
    sweeper.sweep(2.0)
    updated = sweeper._weights[: -loops.BEHIND].copy()
    layout = sweeper.layout
    fresh, slopes = np.zeros(2 * layout.cells, np.float32), np.zeros(2 * layout.cells, np.float32)
    loops.weigh(layout.starts, sweeper.active, layout.sizes, sweeper.target_counts, sweeper.scale, sweeper.theta,
                sweeper.counts, 2.0, fresh, slopes)  # fmt: skip
    assert updated == pytest.approx(fresh, abs=2e-3)
    assert np.abs(updated).max() > 0.1


@pytest.mark.parametrize("theta", [0.0, 1.2])
def test_rows_without_feedback_follow_pairwise_model(theta: float) -> None:
    """A long chain over four attributes has the distribution ∝ Π ones · exp Σ θ."""
    sweeper = make_sweeper(4000, theta)
    logits = sum(
        np.log(sweeper.layout.one(sweeper.ones, i)).reshape([-1 if k == i else 1 for k in range(4)]) for i in range(4)
    )
    for i, j in sweeper.layout.pairs:
        shape = [SIZE_LIST[k] if k in (i, j) else 1 for k in range(4)]
        logits = logits + sweeper.layout.of(sweeper.theta, i, j).reshape(shape)
    law = np.exp(logits - logits.max())
    law /= law.sum()
    for _ in range(30):
        sweeper.sweep(0.0)
    seen = np.zeros(law.size)
    for _ in range(20):
        for _ in range(3):
            sweeper.sweep(0.0)
        seen += np.bincount(np.ravel_multi_index(tuple(sweeper.rows.T), law.shape), minlength=law.size)
    expected = law.ravel() * seen.sum()
    often = expected > 40
    assert _goodness_of_fit(seen, expected, often) > 1e-4
    if theta:
        wrong = np.exp(0.7 * (logits - logits.max()))
        assert _goodness_of_fit(seen, wrong.ravel() / wrong.sum() * seen.sum(), often) < 1e-9


def _goodness_of_fit(seen: np.ndarray, expected: np.ndarray, often: np.ndarray) -> float:
    """Return the p value, with rare cells merged into one."""
    rare = [] if often.all() else [~often]
    both = [np.append(one[often], [one[few].sum() for few in rare]) for one in (seen, expected)]
    return float(chisquare(*both).pvalue)


def test_fast_exponential_is_accurate() -> None:
    logits = np.linspace(-12, 0, 50).astype(np.float32)
    found = np.zeros(50, np.float32)
    loops.exponentials(logits, 50, found)
    assert found == pytest.approx(np.exp(logits.astype(float)), rel=0.08)
    assert found[-1] == 1
    assert math.isclose(float(found[-10]), math.exp(float(logits[-10])), rel_tol=5e-3)


def test_uniforms_fill_unit_interval() -> None:
    state = PublicStream("test", "uniforms").state()
    drawn = np.array([loops.uniform(state) for _ in range(20_000)])
    assert 0 <= drawn.min() < drawn.max() < 1
    assert chisquare(np.histogram(drawn, 50, (0, 1))[0]).pvalue > 1e-4


@pytest.mark.parametrize("size", [1, 7, 8, 9, 17])
def test_gather_adds_lines_in_order_for_any_length(size: int) -> None:
    draws = np.random.default_rng(size)
    weights = draws.normal(size=100 + size + loops.BEHIND).astype(np.float32)
    lines, logits = draws.integers(0, 100, 30).astype(np.uint64), draws.normal(size=size + 8).astype(np.float32)
    expected = logits.copy()
    for line in lines[:23].tolist():
        expected[:size] += weights[line : line + size]
    loops.gather(weights, lines, np.uint64(23), np.uint64(size), logits)
    assert logits[:size].tobytes() == expected[:size].tobytes()
