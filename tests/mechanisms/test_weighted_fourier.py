"""Weighted Fourier strategies against their closed form, and on families for which they are optimal."""

import numpy as np
import pytest

from dpscale import Domain, Workload, plan
from dpscale.mechanisms.weighted_fourier import solve_circulant
from dpscale.workload import FAMILIES, axis_of


@pytest.mark.parametrize("size", [2, 3, 8, 15])
@pytest.mark.parametrize("family", ["prefix", "range", "circular", "marginal"])
def test_root_is_circulant_with_closed_form_error(family, size):
    rows = axis_of(FAMILIES[family], size).factor.rows
    optimum = solve_circulant(None, rows, (size,))
    strategy = optimum.root.T @ optimum.root
    assert np.diag(strategy) == pytest.approx(np.ones(size))
    assert strategy == pytest.approx(np.roll(strategy, (1, 1), (0, 1)))  # circulant
    assert np.trace(rows @ np.linalg.pinv(strategy, rcond=1e-10) @ rows.T) == pytest.approx(optimum.primal)


def test_no_perturbed_circulant_is_better():
    """Against random perturbations of the spectrum, on two axes at once."""
    rng = np.random.default_rng(0)
    shape = (3, 4)
    queries = rng.normal(size=(7, *shape))
    for axis in (1, 2):
        queries -= queries.mean(axis=axis, keepdims=True)
    rows = queries.reshape(7, -1)
    best = solve_circulant(None, rows, shape).primal
    power = (np.abs(np.fft.fftn(queries, axes=(1, 2))) ** 2).sum(axis=0)[1:, 1:] / 12
    for _ in range(200):
        spectrum = np.sqrt(power) * np.exp(rng.normal(size=power.shape) * 0.2)
        assert (power / spectrum).sum() * spectrum.sum() / 12 >= best * (1 - 1e-12)


@pytest.mark.parametrize("family", ["marginal", "circular"])
def test_weighted_fourier_is_optimal_for_marginals_and_circular_ranges(family):
    workload = Workload(Domain({"a": 5, "b": 8, "c": 4})).add(family, degree=2)
    assert plan(workload, "weighted-fourier").rmse() == pytest.approx(plan(workload).rmse(), rel=1e-6)


@pytest.mark.parametrize(
    ("family", "paper"), [("prefix", 39.70), ("range", 41.36), ("circular", 39.77), ("affine", 45.23), ("abs", 64.11)]
)
def test_table_4_is_reproduced(family, paper):
    """The WFF column for n = 10."""
    one_way = "prefix" if family in ("affine", "abs") else family
    workload = Workload(Domain({f"x{i}": 10 for i in range(40)})).add(one_way, degree=1).add(family, degree=2)
    assert plan(workload, "weighted-fourier").rmse() == pytest.approx(paper, abs=0.02)
