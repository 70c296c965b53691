"""Shrinkage of link sums, against quadrature of the same prior, and for pure noise and strong signals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from dpscale.relational import link_estimation
from dpscale.relational.link_estimation import ShrinkageBlock, ridges, shrink_sums

PRIOR = 0.15


def shares_by_quadrature(departed: np.ndarray, carried: np.ndarray, sigma: float) -> np.ndarray:
    """Return, for one block, the expected real share of the departures, integrated over the unknown scales.

    log c of the common scale is normal around the prior's, log s of the block's around log c, both on [log .005,
    log 1.5]; the block is zero with probability SPIKE, its kind with probability NOTHING.
    """
    low, high = math.log(0.005), math.log(1.5)

    def normalised(density, point: float) -> float:
        return density(point) / quad(density, low, high, limit=200)[0]

    def likelihood(s: float) -> float:
        return float(np.prod(norm.pdf(departed, 0, np.sqrt((carried * s) ** 2 + sigma**2))))

    def integrate_slab(value) -> float:
        """Return ∫∫ value(s) p(s | c) p(c)."""

        def integrate_scale(c: float) -> float:
            around = norm(c, link_estimation.WIDTH)
            near = quad(lambda t: value(math.exp(t)) * around.pdf(t), low, high, limit=100)[0]
            return (
                near
                / (around.cdf(high) - around.cdf(low))
                * normalised(norm(math.log(PRIOR), link_estimation.SPREAD).pdf, c)
            )

        return quad(integrate_scale, low, high, limit=100)[0]

    nothing = float(np.prod(norm.pdf(departed, 0, sigma)))
    slab = (1 - link_estimation.NOTHING) * (1 - link_estimation.SPIKE)
    real = [
        slab * integrate_slab(lambda s, k=k: likelihood(s) * (k * s) ** 2 / ((k * s) ** 2 + sigma**2)) for k in carried
    ]
    return np.array(real) / (slab * integrate_slab(likelihood) + (1 - slab) * nothing)


@pytest.mark.slow
@pytest.mark.parametrize("size", [0.0, 2.5])
def test_ridge_gives_expected_real_share(size: float) -> None:
    """C/(C + λ), with a sum over a grid of scales instead of the integral."""
    carried, curvature, sigma = np.array([30.0, 60.0, 10.0]), np.array([50.0, 70.0, 20.0]), 4.0
    departed = size * sigma * np.array([1.0, -0.8, 0.3])
    ridge = ridges([ShrinkageBlock(departed, curvature, carried, sigma)], PRIOR)[0]
    assert curvature / (curvature + ridge) == pytest.approx(shares_by_quadrature(departed, carried, sigma), abs=0.01)


def draw_sums(scale: float, blocks: int, cells: int, seed: int):
    """Draw noisy sums of blocks whose cells depart by X·scale, with noise of standard deviation 5."""
    rng, size = np.random.default_rng(seed), blocks * cells
    carried, expected = rng.uniform(50, 150, size), rng.uniform(0, 100, size)
    real = carried * scale * rng.normal(size=size)
    noisy = expected + real + rng.normal(0, 5, size)
    return noisy, expected, real, carried, np.repeat(np.arange(blocks), cells)


@pytest.mark.parametrize("seed", range(5))
def test_pure_noise_is_removed(seed: int) -> None:
    noisy, expected, _, carried, kinds = draw_sums(0.0, 12, 15, seed)
    shrunk, ridge = shrink_sums(noisy, expected, carried, carried, 1 / 25, kinds, PRIOR)
    shares = carried / (carried + ridge)
    assert shares.mean() < 0.05
    assert ((shrunk - expected) * shares).std() < 0.05 * 5


@pytest.mark.parametrize("seed", range(5))
def test_strong_signal_is_preserved(seed: int) -> None:
    noisy, expected, _, carried, kinds = draw_sums(1.0, 12, 15, seed)
    shrunk, ridge = shrink_sums(noisy, expected, carried, carried, 1 / 25, kinds, PRIOR)
    assert (shrunk == noisy).all()
    assert (carried / (carried + ridge)).min() > 0.97


def test_shrinkage_beats_both_extremes() -> None:
    """Departures as large as the noise: a smaller error than no or full shrinkage, near the best linear estimate."""
    errors = np.zeros(4)
    for seed in range(20):
        noisy, expected, real, carried, kinds = draw_sums(0.05, 12, 15, seed)
        shrunk, ridge = shrink_sums(noisy, expected, carried, carried, 1 / 25, kinds, PRIOR)
        guess = (shrunk - expected) * carried / (carried + ridge)
        best = (noisy - expected) * (carried * 0.05) ** 2 / ((carried * 0.05) ** 2 + 25)
        errors += [((guess - real) ** 2).sum(), ((noisy - expected - real) ** 2).sum(), (real**2).sum(),
                   ((best - real) ** 2).sum()]  # fmt: skip
    assert errors[0] < 0.75 * min(errors[1], errors[2])
    assert errors[0] < 1.2 * errors[3]


def test_single_departing_block_is_preserved() -> None:
    noisy, expected, _, carried, kinds = draw_sums(0.0, 30, 10, 3)
    noisy[:10] += 40.0 * np.where(np.arange(10) % 2, 1, -1)
    _, ridge = shrink_sums(noisy, expected, carried, carried, 1 / 25, kinds, PRIOR)
    shares = carried / (carried + ridge)
    assert shares[:10].min() > 0.9
    assert np.median(shares[10:]) < 0.2
