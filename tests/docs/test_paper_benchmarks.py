"""The computations of the papers' benchmarks against explicit matrices on small domains."""

import importlib
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from dpscale.relational.features import Side
from dpscale.relational.published import Rounds
from dpscale.relational.rounding import Cross

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SIZES = (3, 4, 2)


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module


def ranges_of(size):
    return np.array([[low <= cell < high for cell in range(size)] for low in range(size)
                     for high in range(low + 1, size + 1)], float)  # fmt: skip


def explicit_products(sets):
    parts = []
    for one in sets:
        rows = np.ones((1, 1))
        for i, size in enumerate(SIZES):
            rows = np.kron(rows, ranges_of(size) if i in one else np.ones((1, size)))
        parts.append(rows)
    return np.concatenate(parts)


def test_queries_equal_explicit_matrices(benchmark):
    eigen = benchmark("eigen_design")
    rng = np.random.default_rng(0)
    root, cells, sets = rng.normal(size=(24, 24)), rng.random(24), [(0, 1), (1, 2)]
    order, rows = rng.permutation(24), explicit_products(sets)
    products = eigen.products("range", SIZES, sets)
    for queries, own in ((products, rows), (products.permuted(order), rows[:, order]), (eigen.explicit(rows), rows)):
        unit = own / np.linalg.norm(own, axis=1, keepdims=True)
        assert queries.count == len(own)
        np.testing.assert_allclose(queries.gram, own.T @ own)
        np.testing.assert_allclose(queries.unit_gram, unit.T @ unit)
        np.testing.assert_allclose(np.sort(queries.answers(cells)), np.sort(own @ cells))
        square = root @ root.T
        np.testing.assert_allclose(np.sort(queries.variances(square)), np.sort(np.diag(own @ square @ own.T)))


def test_design_and_marginal_strategies_equal_explicit_inverses(benchmark):
    eigen = benchmark("eigen_design")
    sets, rows = list(combinations(range(3), 2)), []
    weights = dict(zip(sets, (0.8, 0.4, np.sqrt(0.2)), strict=True))
    for one, weight in weights.items():
        part = np.ones((1, 1))
        for i, size in enumerate(SIZES):
            part = np.kron(part, np.eye(size) if i in one else np.ones((1, size)))
        rows.append(weight * part)
    strategy = np.concatenate(rows)
    expected = np.linalg.pinv(strategy.T @ strategy) * (strategy**2).sum(axis=0).max()
    np.testing.assert_allclose(eigen.of_marginals(SIZES, weights), expected, atol=1e-9)
    gram = eigen.products("range", SIZES, [(0, 1, 2)]).gram
    ours = (gram * eigen.design(gram)).sum()
    assert ours == pytest.approx(eigen.eigen_design(gram).error, rel=2e-3)
    fourier = eigen.of_fourier(SIZES, sets)
    projection = fourier / np.linalg.norm(fourier, 2)
    np.testing.assert_allclose(projection @ projection, projection, atol=1e-9)
    assert np.linalg.matrix_rank(projection) == 24 - 2 * 3 * 1  # all but the interaction of three attributes


def test_errors_of_reduced_designs_equal_dense_least_squares(benchmark):
    eigen = benchmark("eigen_design")
    sets = list(combinations(range(3), 2))
    cases = {"range": (eigen.range_eigenvectors(32), ranges_of(32)),
             "marginals": (eigen.marginal_eigenvectors(SIZES, sets), None)}  # fmt: skip
    for label, ((values, queries), rows) in cases.items():
        gram = eigen.products("marginal", SIZES, sets).gram if rows is None else rows.T @ rows
        np.testing.assert_allclose((queries.T * values) @ queries, gram, atol=1e-9)
        weights = eigen.separated_weights(values, queries**2, 3)
        strategy = (queries.T * weights) @ queries
        most = strategy.diagonal().max()
        np.fill_diagonal(strategy, most)
        dense = most * np.trace(gram @ np.linalg.inv(strategy))
        assert eigen.completed_error(values, queries, weights) == pytest.approx(dense, rel=1e-6)
        if rows is None:
            inverses = {"Fourier": eigen.of_fourier(SIZES, sets), "DataCube": eigen.of_cube("marginal", SIZES, sets)}
        else:
            inverses = {name: eigen.of_products(make, [32]) for name, make in
                        (("wavelet", eigen.wavelet), ("hierarchical", eigen.hierarchical))}  # fmt: skip
        found = eigen.of_competitors(label, SIZES if rows is None else (32,), values)
        assert found == pytest.approx({name: (gram * own).sum() for name, own in inverses.items()})


def test_largest_number_of_queries_that_count_a_cell(benchmark):
    paper, sizes = benchmark("hdmm"), {"a": 3, "b": 4}
    workload = paper.Workload(paper.Domain(sizes)).add("range", degree=1).add("prefix", degree=2)
    rows = [np.kron(ranges_of(3), np.ones((1, 4))), np.kron(np.ones((1, 3)), ranges_of(4))]
    rows.append(np.kron(np.tri(3), np.tri(4)))
    queries = np.concatenate(rows)
    assert paper.counts_of_queries(paper.implicit(workload)) == queries.sum(axis=0).max()
    assert paper.traces(paper.implicit(workload)) == pytest.approx((queries**2).sum())


@pytest.fixture
def small(benchmark):
    linked = benchmark("linked_data")
    rng = np.random.default_rng(1)
    one, two = rng.integers(0, 3, (60, 2)), rng.integers(0, 3, (80, 2))
    pairs = np.argwhere(one[:, :1] == two[:, 0])
    links = pairs[rng.permutation(len(pairs))[:200]]
    return linked.Linked("small", one, two, ((3, 3), (3, 3)), links, 10, False)


@pytest.mark.parametrize("slices", [0, 2])
def test_published_rounds_fit_exact_marginals_and_noise_spoils_them(benchmark, small, slices):
    """Links join rows of equal first attributes, which the rounds learn with next to no noise, and not with much."""
    paper = benchmark("relational")
    error = paper.make_error(small)
    options = paper.Options(Rounds(6, 2, 0.2), optimised=0, slices=slices)
    exact, noisy = (
        error(small.one, small.two, paper.PublishedRun(small, (small.one, small.two), epsilon, options, 3).links())
        for epsilon in (1e5, 0.2)
    )
    assert exact < 0.06 < 0.3 < noisy


def test_selection_and_noise_have_the_published_scale(benchmark, small):
    paper = benchmark("relational")
    run = paper.PublishedRun(small, (small.one, small.two), 1.0, paper.Options(Rounds(4, 2, 0.25)), 0)
    squared = paper.gdp_mu(1.0, paper.PAPER_DELTA) ** 2 / 8
    assert (run.selection, run.noise) == pytest.approx((squared / 4, squared * 3 / 4))
    noisy, every = np.zeros((200, run.cross.size)), list(range(len(run.cross.columns)))
    for row in noisy:
        run.measure(row, every)
    scale = np.sqrt(2) * small.bound / np.sqrt(run.noise)
    assert (noisy - run.exact).std() / scale == pytest.approx(1, abs=0.02)
    u, v = (Side.made(rows, (3, 3)) for rows in (small.one, small.two))
    cross = Cross.of(u, v)
    expected = [np.abs(noisy[0] - run.exact)[cross.entries(k)].sum() / 2 for k in every]
    np.testing.assert_allclose(run.distances(noisy[0], run.exact), expected)


def test_self_links_count_a_row_in_both_roles(benchmark):
    paper = benchmark("relational")
    persons = paper.load_persons()
    assert persons.one is persons.two
    for side in (0, 1):
        assert np.bincount(persons.links[:, side]).max() <= paper.PARENTS
    assert (persons.one[persons.links[:, 0], 0] >= persons.one[persons.links[:, 1], 0] + 2).all()  # ages
    run = paper.PublishedRun(persons, (persons.one, persons.two), 1.0, paper.Options(), 0)
    assert run.moved == 2 * paper.PARENTS
