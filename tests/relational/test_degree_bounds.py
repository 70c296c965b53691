"""Shares of links that a bound cuts, against exact ones, and proposed bounds."""

from __future__ import annotations

import numpy as np
import pytest

from dpscale.relational.degrees import CUT, bucket_starts, cut_share, degree_histogram, proposed_bound


def test_a_row_is_in_one_bucket() -> None:
    degrees = np.array([0, 0, 1, 2, 3, 15, 16, 23, 24, 3 << 19, 1 << 30])
    counts = degree_histogram(degrees)
    assert counts[:4].tolist() == [2, 1, 1, 1]
    assert counts[15:18].tolist() == [1, 2, 1]
    assert counts[-1] == 2
    assert counts.sum() == len(degrees)
    assert len(counts) == len(bucket_starts())


@pytest.mark.parametrize("mean", [1.0, 6.0, 60.0])
def test_cut_share_is_close_to_the_exact_one(mean: float) -> None:
    rng = np.random.default_rng(0)
    degrees = rng.poisson(rng.gamma(1.0, mean, 20_000))
    for bound in (1, 3, 10, 50, 200):
        exact = np.maximum(degrees - bound, 0).sum() / degrees.sum()
        noisy = degree_histogram(degrees) + rng.normal(0, 5, len(bucket_starts()))
        assert cut_share(noisy, 5.0, bound) == pytest.approx(exact, abs=0.05)


@pytest.mark.parametrize("mean", [1.0, 6.0, 60.0])
def test_proposed_bound_cuts_few_links_and_is_not_much_larger_than_needed(mean: float) -> None:
    rng = np.random.default_rng(1)
    degrees = rng.poisson(rng.gamma(1.0, mean, 20_000))
    bound = proposed_bound(degree_histogram(degrees) + rng.normal(0, 5, len(bucket_starts())), 5.0)
    assert bound is not None
    cut = {factor: np.maximum(degrees - factor * bound, 0).sum() / degrees.sum() for factor in (0.6, 1)}
    assert cut[1] <= 2 * CUT
    assert cut[0.6] > CUT / 2


def test_noise_in_high_buckets_is_no_signal() -> None:
    rng = np.random.default_rng(2)
    degrees = rng.integers(0, 4, 2000)
    bounds = [proposed_bound(degree_histogram(degrees) + rng.normal(0, 50, len(bucket_starts())), 50.0)
              for _ in range(20)]  # fmt: skip
    assert all(bound is None or bound <= 4 for bound in bounds)


def test_nothing_is_proposed_if_noise_hides_all_degrees() -> None:
    assert cut_share(np.zeros(len(bucket_starts())), 1.0, 3) is None
    assert proposed_bound(np.zeros(len(bucket_starts())), 1.0) is None
