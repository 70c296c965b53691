"""Shrinking against quadrature of the same prior, and what it makes of noise alone and of strong signals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from dpscale.relational import link_estimation
from dpscale.relational.link_estimation import ShrinkageBlock, ridges, shrink_sums

PRIOR = 0.15


def by_quadrature(departed: np.ndarray, carried: np.ndarray, sigma: float) -> np.ndarray:
    """One block: the expected share of what departs that is real, integrated over what is not known.

    log c of the common scale is normal about the prior's, log s of the block's about log c, both on [log .005,
    log 1.5]; the block is nothing with SPIKE, its kind with NOTHING.
    """
    low, high = math.log(0.005), math.log(1.5)

    def inside(density, point: float) -> float:
        return density(point) / quad(density, low, high, limit=200)[0]

    def likelihood(s: float) -> float:
        return float(np.prod(norm.pdf(departed, 0, np.sqrt((carried * s) ** 2 + sigma**2))))

    def of_slab(value) -> float:
        """∫∫ value(s) p(s | c) p(c)."""

        def over(c: float) -> float:
            around = norm(c, link_estimation.WIDTH)
            near = quad(lambda t: value(math.exp(t)) * around.pdf(t), low, high, limit=100)[0]
            return (
                near
                / (around.cdf(high) - around.cdf(low))
                * inside(norm(math.log(PRIOR), link_estimation.SPREAD).pdf, c)
            )

        return quad(over, low, high, limit=100)[0]

    nothing = float(np.prod(norm.pdf(departed, 0, sigma)))
    slab = (1 - link_estimation.NOTHING) * (1 - link_estimation.SPIKE)
    real = [slab * of_slab(lambda s, k=k: likelihood(s) * (k * s) ** 2 / ((k * s) ** 2 + sigma**2)) for k in carried]
    return np.array(real) / (slab * of_slab(likelihood) + (1 - slab) * nothing)


@pytest.mark.parametrize("size", [0.0, 2.5])
def test_the_ridge_is_the_expected_share_that_is_real(size: float) -> None:
    """Of C/(C + λ) the product's grid of scales is a sum for the integral."""
    carried, curvature, sigma = np.array([30.0, 60.0, 10.0]), np.array([50.0, 70.0, 20.0]), 4.0
    departed = size * sigma * np.array([1.0, -0.8, 0.3])
    ridge = ridges([ShrinkageBlock(departed, curvature, carried, sigma)], PRIOR)[0]
    assert curvature / (curvature + ridge) == pytest.approx(by_quadrature(departed, carried, sigma), abs=0.01)


def drawn(scale: float, blocks: int, cells: int, seed: int):
    """Noisy sums of blocks whose cells depart by X·scale, noise of standard deviation 5."""
    rng, size = np.random.default_rng(seed), blocks * cells
    carried, expected = rng.uniform(50, 150, size), rng.uniform(0, 100, size)
    real = carried * scale * rng.normal(size=size)
    noisy = expected + real + rng.normal(0, 5, size)
    return noisy, expected, real, carried, np.repeat(np.arange(blocks), cells)


@pytest.mark.parametrize("seed", range(5))
def test_of_noise_alone_nothing_is_kept(seed: int) -> None:
    noisy, expected, _, carried, kinds = drawn(0.0, 12, 15, seed)
    kept, ridge = shrink_sums(noisy, expected, carried, carried, 1 / 25, kinds, PRIOR)
    believed = carried / (carried + ridge)
    assert believed.mean() < 0.05
    assert ((kept - expected) * believed).std() < 0.05 * 5


@pytest.mark.parametrize("seed", range(5))
def test_a_strong_signal_is_believed(seed: int) -> None:
    noisy, expected, _, carried, kinds = drawn(1.0, 12, 15, seed)
    kept, ridge = shrink_sums(noisy, expected, carried, carried, 1 / 25, kinds, PRIOR)
    assert (kept == noisy).all()
    assert (carried / (carried + ridge)).min() > 0.97


def test_between_them_the_error_is_less_than_that_of_either() -> None:
    """Departures of the noise's size: less error than believing all or nothing, and near to the best linear share."""
    errors = np.zeros(4)
    for seed in range(20):
        noisy, expected, real, carried, kinds = drawn(0.05, 12, 15, seed)
        kept, ridge = shrink_sums(noisy, expected, carried, carried, 1 / 25, kinds, PRIOR)
        guess = (kept - expected) * carried / (carried + ridge)
        best = (noisy - expected) * (carried * 0.05) ** 2 / ((carried * 0.05) ** 2 + 25)
        errors += [((guess - real) ** 2).sum(), ((noisy - expected - real) ** 2).sum(), (real**2).sum(),
                   ((best - real) ** 2).sum()]  # fmt: skip
    assert errors[0] < 0.75 * min(errors[1], errors[2])
    assert errors[0] < 1.2 * errors[3]


def test_one_block_that_departs_among_many_that_do_not() -> None:
    noisy, expected, _, carried, kinds = drawn(0.0, 30, 10, 3)
    noisy[:10] += 40.0 * np.where(np.arange(10) % 2, 1, -1)
    _, ridge = shrink_sums(noisy, expected, carried, carried, 1 / 25, kinds, PRIOR)
    believed = carried / (carried + ridge)
    assert believed[:10].min() > 0.9
    assert np.median(believed[10:]) < 0.2
