"""Marginals under Laplace noise: errors of explicit matrices, brute force over all lists of marginals, descents."""

from itertools import combinations

import numpy as np
import pytest

from dpscale import Domain, Workload
from dpscale.base.numerics import optimize
from dpscale.optimize.implicit_workload import explicit_gram
from dpscale.optimize.opt_explicit import error_of, inverse_gram
from dpscale.optimize.opt_marginals import lens_of
from dpscale.optimize.pure_marginals import MarginalSearch, WeightedSets, first_strategies, plain_traces
from dpscale.workload.residual import kron

SIZES = (3, 4, 2)
DOMAIN = Domain(dict(zip("abc", SIZES, strict=True)))
MARGINALS = Workload(DOMAIN).add("marginal", degree=2).add("marginal", degree=1, weight=3)
PREFIXES = Workload(DOMAIN).add("prefix", degree=2).add("marginal", degree=1)
SETS = WeightedSets((3, 5, 6, 4), np.array([0.4, 0.3, 0.2, 0.1]), 0.0)


def explicit_error(workload: Workload, measured: WeightedSets, matrices) -> float:
    """Return the least squares error coefficient of explicit matrices at L1 sensitivity 1."""
    names, gram = explicit_gram(workload)
    rows = [weight * kron([matrix if marginal >> i & 1 else np.ones((1, matrix.shape[1]))
                           for i, matrix in enumerate(matrices)])
            for marginal, weight in zip(measured.marginals, measured.weights, strict=True)]  # fmt: skip
    assert names == ("a", "b", "c")
    return error_of(gram, np.concatenate(rows), "laplace")


def search_of(spaces) -> MarginalSearch:
    return MarginalSearch(spaces, lambda marginal: True)


@pytest.mark.parametrize("workload", [MARGINALS, PREFIXES])
def test_error_equals_explicit_least_squares(workload):
    found = search_of(plain_traces(workload)).fitted(SETS.marginals, SETS.weights, 0)
    assert found.error == pytest.approx(explicit_error(workload, SETS, [np.eye(n) for n in SIZES]))


def test_error_of_attribute_strategies_equals_explicit_least_squares():
    strategies = first_strategies(PREFIXES)
    found = search_of(strategies.traces).fitted(SETS.marginals, SETS.weights, 0)
    matrices = [strategies.matrices[name] for name in "abc"]
    assert found.error == pytest.approx(explicit_error(PREFIXES, SETS, matrices))
    assert first_strategies(MARGINALS) is None


def test_unmeasured_space_has_infinite_error():
    search = search_of(plain_traces(MARGINALS))
    assert search.fitted([3, 4], steps=0).error == np.inf


def test_fixed_point_finds_optimal_weights():
    def error(logs):
        weights = np.exp(logs) / np.exp(logs).sum()
        return search_of(plain_traces(MARGINALS)).fitted(SETS.marginals, weights, 0).error

    best = optimize.minimize(error, np.log(SETS.weights), method="Nelder-Mead", options={"fatol": 1e-9, "xatol": 1e-7})
    found = search_of(plain_traces(MARGINALS)).fitted(SETS.marginals, SETS.weights, 500)
    assert found.error == pytest.approx(best.fun, rel=1e-6)


@pytest.mark.parametrize("sizes", [SIZES, (2, 2, 9), (20, 3, 6)])
def test_search_finds_the_best_list_of_marginals(sizes):
    workload = Workload(Domain(dict(zip("abc", sizes, strict=True)))).add("marginal", degree=2)
    search = search_of(plain_traces(workload))
    lists = [some for number in range(1, 5) for some in combinations(range(1, 8), number)]
    fitted = [search.fitted(some).error for some in lists if search.fitted(some, steps=0).error < np.inf]
    assert search_of(plain_traces(workload)).search().error <= min(fitted) * (1 + 1e-6)


def test_surrogate_is_slope_of_error_in_the_inverse_gram():
    strategies = first_strategies(PREFIXES)
    measured = search_of(strategies.traces).fitted(SETS.marginals, SETS.weights, 0)
    surrogate, inverse = strategies.surrogate(1, measured), strategies.lenses[1].inverse
    step = np.random.default_rng(0).normal(size=(4, 4)) * 1e-5
    step = step @ step.T / 1e-5  # of an inverse: positive semidefinite

    def error(change):
        moved = first_strategies(PREFIXES)
        lenses = list(moved.lenses)
        lenses[1] = lens_of(inverse + change)
        moved.__dict__["lenses"] = tuple(lenses)
        return search_of(moved.traces).fitted(SETS.marginals, SETS.weights, 0).error

    slope = (error(step) - error(-step)) / 2
    assert slope == pytest.approx(float((surrogate * step).sum()), rel=1e-5)


def test_strategies_improve_and_their_error_is_explicit():
    workload = Workload(Domain({"a": 6, "b": 12, "c": 2})).add("prefix", degree=2)
    strategies = first_strategies(workload)
    measured = search_of(strategies.traces).fitted(SETS.marginals, SETS.weights, 0)
    better = strategies.improved(measured)
    found = search_of(better.traces).fitted(SETS.marginals, SETS.weights, 0)
    assert found.error < 0.999 * measured.error
    matrices = [better.matrices[name] for name in "abc"]
    assert found.error == pytest.approx(explicit_error(workload, SETS, matrices), rel=1e-9)
    assert all(np.abs(matrix).sum(axis=0).max() == pytest.approx(1) for matrix in matrices)
    np.testing.assert_allclose(better.lenses[0].inverse, inverse_gram(better.matrices["a"]))


def test_search_respects_limits_and_repeats():
    workload = Workload(Domain({f"a{i}": 2 for i in range(12)})).add("marginal", degree=2)
    spaces = plain_traces(workload)

    def at_most_four(marginal: int) -> bool:
        return marginal.bit_count() <= 4

    first, second = (MarginalSearch(spaces, at_most_four).search() for _ in range(2))
    assert all(map(at_most_four, first.marginals))
    assert first.marginals == second.marginals
    np.testing.assert_array_equal(first.weights, second.weights)
