"""Baseline strategies against HDMM's Tables 4, 5, 6 and 7, and their ranks."""

import math
from itertools import combinations

import numpy as np
import pytest

from dpscale import Domain, Workload
from dpscale.optimize.baselines import (
    data_cube,
    fourier,
    greedy_h,
    hb,
    hb_branching,
    hierarchical,
    identity,
    scaled,
    wavelet,
    workload_itself,
)
from dpscale.optimize.implicit_workload import implicit
from dpscale.optimize.opt_explicit import error_of, sensitivity
from dpscale.optimize.opt_marginals import marginal_error, residual_traces
from dpscale.workload import FAMILIES

UNIT = {"gaussian": 4.224679, "laplace": math.sqrt(2)}


def rmse(family: str, matrix: np.ndarray, noise: str) -> float:
    size = matrix.shape[1]
    return UNIT[noise] * math.sqrt(error_of(FAMILIES[family].gram(size), matrix, noise) / FAMILIES[family].count(size))


@pytest.mark.parametrize(
    ("family", "size", "noise", "figures"),
    [
        ("range", 64, "laplace", (6.63, 11.28, 10.11, 6.63)),
        ("range", 256, "laplace", (13.11, 16.27, 14.87, 8.90)),
        ("prefix", 256, "laplace", (16.03, 13.16, 13.09, 8.97)),
        ("range", 64, "gaussian", (19.82, 12.74, 11.42, 19.82)),
        ("range", 256, "gaussian", (39.18, 16.20, 14.81, 18.80)),
        ("prefix", 256, "gaussian", (47.89, 13.11, 13.03, 18.95)),
    ],
)
def test_tables_4_and_5_are_reproduced(family, size, noise, figures):
    """Identity, H2, wavelet and HB strategies, to the printed digits."""
    strategies = (identity(size), hierarchical(size), wavelet(size), hb(size))
    assert [rmse(family, matrix, noise) for matrix in strategies] == pytest.approx(figures, abs=0.006)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 16, 37])
def test_baselines_have_full_rank_for_any_size(size):
    gram = FAMILIES["range"].gram(size)
    for matrix in (
        identity(size),
        wavelet(size),
        hierarchical(size, 3),
        hb(size),
        fourier(size),
        workload_itself(gram),
    ):
        assert np.linalg.matrix_rank(matrix) == size
        assert matrix.shape[1] == size
    assert wavelet(size).shape == (size, size)
    np.testing.assert_allclose(fourier(size) @ fourier(size).T, np.eye(size), atol=1e-12)
    assert sensitivity(scaled(wavelet(size), "laplace"), "laplace") == pytest.approx(1.0)


def test_workload_strategy_reproduces_gram():
    gram = FAMILIES["prefix"].gram(9)
    rows = workload_itself(gram)
    np.testing.assert_allclose(rows.T @ rows, gram)
    assert error_of(gram, rows, "gaussian") == pytest.approx(9 * 9)  # rank times squared sensitivity


def test_hb_branching_factor():
    assert [hb_branching(n) for n in (2, 64, 256, 1024)] == [2, 64, 16, 32]


@pytest.mark.parametrize(("noise", "most"), [("laplace", 6.34), ("gaussian", 14.64)])
def test_greedy_h_reaches_published_error(noise, most):
    gram = FAMILIES["range"].gram(64)
    rows = greedy_h(gram, noise)
    assert sensitivity(rows, noise) == pytest.approx(1.0)
    assert rmse("range", rows, noise) <= most


def test_unweighted_fourier_equals_identity_on_circular_ranges():
    """Unweighted Fourier is an orthonormal basis: under Gaussian noise it is as good as the identity."""
    gram = FAMILIES["circular"].gram(12)
    assert error_of(gram, fourier(12), "gaussian") == pytest.approx(
        error_of(gram, np.eye(12), "gaussian") * sensitivity(fourier(12), "gaussian") ** 2
    )


@pytest.mark.parametrize(("noise", "power"), [("laplace", 2), ("gaussian", 1)])
def test_data_cube_covers_marginals_and_beats_uniform(noise, power):
    domain = Domain({"a": 101, "b": 101, "c": 3, "d": 8, "e": 36, "f": 6})
    sets = [s for k in range(7) for s in combinations(domain.names, k) if domain.cells(s) <= 5000]
    union = implicit(Workload(domain).add("marginal", attributes=sets))
    chosen = data_cube(union, noise)
    assert sum(weight ** (1 if noise == "laplace" else 2) for weight in chosen.values()) == pytest.approx(1.0)
    assert all(any(set(names) <= set(measured) for measured in chosen) for names in sets)
    traces, weights = residual_traces(union), np.zeros((2,) * 6)
    for names, weight in chosen.items():
        weights[tuple(int(name in names) for name in union.names)] = weight**2
    every = np.zeros((2,) * 6)
    for names in sets:
        every[tuple(int(name in names) for name in union.names)] = 1 / len(sets) ** power
    assert marginal_error(traces, weights, union.sizes) <= marginal_error(traces, every, union.sizes) * (1 + 1e-9)
