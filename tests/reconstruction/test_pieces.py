"""Batched and compiled steps of the reconstruction against plain formulas, and their memory."""

import tracemalloc
from itertools import combinations

import numpy as np
import pytest
from scipy.stats import norm

from dpscale.reconstruction import shrinkage
from dpscale.reconstruction.entropy import LowOrder, proportional_fit
from dpscale.reconstruction.low_order import NoisyResidual, low_order
from dpscale.reconstruction.set_arrays import OneWayArrays, PairArrays, PairLinks
from dpscale.reconstruction.shrinkage import (
    DEPARTURES,
    NEIGHBOUR_REACHES,
    RATIOS,
    START,
    WIDTHS,
    NoisyTable,
    NoisyTables,
    best_posterior,
    near,
)
from dpscale.workload.residual import center, every_cell

SIZES = {f"x{i}": 3 + i % 4 for i in range(12)}


def make_parts(seed=0):
    rng = np.random.default_rng(seed)
    ones = {name: rng.dirichlet(np.ones(size)) * 5000 for name, size in SIZES.items()}
    groups = {name: every_cell(size) for name, size in SIZES.items()}
    pairs = list(combinations(SIZES, 2))
    measured = {
        names: NoisyResidual(center(rng.normal(0, 60, [SIZES[n] for n in names]), (0, 1)), 40.0) for names in pairs[::3]
    }
    triple = ("x0", "x1", "x2")
    measured[triple] = NoisyResidual(center(rng.normal(0, 60, [SIZES[n] for n in triple]), (0, 1, 2)), 40.0)
    return ones, groups, measured, pairs


def plain_likelihoods(table):
    """Return normal densities (cells, components) by scipy."""
    y, r = table.values.reshape(-1, 1), np.maximum(table.reference, 1e-6).reshape(-1, 1)
    return norm.pdf(y, r * RATIOS, np.sqrt(table.deviation**2 + (r * WIDTHS) ** 2))


def plain_weights(likelihood, start, strength, rounds):
    weights = start
    for _ in range(rounds):
        chances = likelihood * weights
        expected = strength * start + (chances / chances.sum(axis=1, keepdims=True)).sum(axis=0)
        weights = expected / expected.sum()
    return weights


def plain_posterior(ways):
    """Yield, table by table, the posterior under the reference with the most evidence, by the formulas."""
    laws = [
        plain_weights(np.concatenate([plain_likelihoods(one) for one in tables]), START, shrinkage.POOLED_STRENGTH,
                      shrinkage.POOLED_ROUNDS)
        for tables in ways
    ]  # fmt: skip
    for same in zip(*ways, strict=True):
        best, found = -np.inf, None
        for table, law in zip(same, laws, strict=True):
            likelihood = plain_likelihoods(table)
            weights = plain_weights(likelihood, law, shrinkage.OWN_STRENGTH, shrinkage.OWN_ROUNDS)
            y, r = table.values.reshape(-1, 1), table.reference.reshape(-1, 1)
            left = table.deviation**2 / (table.deviation**2 + (r * WIDTHS) ** 2)
            inside = np.maximum(r * RATIOS + (1 - left) * (y - r * RATIOS), 0)
            chances = likelihood * weights
            posterior = chances / chances.sum(axis=1, keepdims=True)
            means = np.maximum((posterior * np.sqrt(inside)).sum(axis=1) ** 2, 1e-3 * r[:, 0])
            evidence = np.log(chances.sum(axis=1)).sum()
            best, found = max((best, found), (evidence, means), key=lambda one: one[0])
        yield found


def test_batched_posterior_equals_formulas():
    rng = np.random.default_rng(3)
    ways = [[], []]
    for size, deviation in ((3, 2.0), (40, 9.0), (17, 30.0), (1, 1.0), (200, 5.0)):
        first, other = rng.gamma(0.5, 40, size) + 0.1, rng.gamma(0.5, 40, size) + 0.1
        values = (first if size % 2 else other) * rng.gamma(2, 0.5, size) + rng.normal(0, deviation, size)
        for tables, reference in zip(ways, (first, other), strict=True):
            tables.append(NoisyTable(values, reference, deviation))
    found = best_posterior([NoisyTables.of(tables) for tables in ways])
    np.testing.assert_allclose(found, np.concatenate(list(plain_posterior(ways))), rtol=1e-9, atol=1e-9)


def test_sampled_law_is_refitted_for_small_tables(monkeypatch):
    """The common law is learnt from fewer cells than one table has, and each table uses all its own cells."""
    rng = np.random.default_rng(4)
    tables = [NoisyTable(rng.gamma(0.5, 40, 50), rng.gamma(0.5, 40, 50), 5.0) for _ in range(9)]
    whole = best_posterior([NoisyTables.of(tables)], [START])
    monkeypatch.setattr(shrinkage, "MOST_CELLS", 50)
    assert NoisyTables.of(tables).sample[0].shape[0] < 450
    np.testing.assert_array_equal(best_posterior([NoisyTables.of(tables)], [START]), whole)


def fit_by_numpy(table, margins, rounds):
    for _ in range(rounds):
        for axes, wanted in margins:
            has = table.sum(axis=tuple(i for i in range(table.ndim) if i not in axes))
            table = table * (wanted / has).reshape([n if i in axes else 1 for i, n in enumerate(table.shape)])
    return table


@pytest.mark.parametrize("sets", [
    [(0,), (1,)], [(0, 1), (1, 2)], [(0, 1), (0, 2), (1, 2)], [(0, 1, 2), (1, 3)], [(0,), (2,), (0, 1), (1, 2)],
    [(0, 2), (1,)], [(1, 2)],
])  # fmt: skip
def test_compiled_fit_equals_numpy(sets):
    rng = np.random.default_rng(0)
    shape = (4, 5, 3, 2)[: max(axis for axes in sets for axis in axes) + 1]
    truth, start = rng.random(shape), rng.random(shape)
    margins = [(axes, truth.sum(axis=tuple(i for i in range(len(shape)) if i not in axes))) for axes in sets]
    before = start.copy()
    np.testing.assert_allclose(proportional_fit(start, margins, 9, 0.0), fit_by_numpy(start, margins, 9))
    np.testing.assert_array_equal(start, before)


def test_posterior_is_mean_of_mixture():
    """The oracle is the numerical integral of each component over the noise."""
    value, reference, deviation = np.array([30.0, -4.0, 7.0]), np.array([10.0, 10.0, 0.5]), 5.0
    centers, variances = reference[:, None] * RATIOS, deviation**2 + (reference[:, None] * WIDTHS) ** 2
    likelihood = DEPARTURES.likelihoods(value, reference, deviation)[0]
    found = DEPARTURES.means(value, reference, deviation, likelihood, START)
    for index in range(3):
        spread = np.maximum(np.sqrt(variances[index] - deviation**2), 1e-12)
        density = np.exp(-((value[index] - centers[index]) ** 2) / (2 * variances[index])) / np.sqrt(variances[index])
        inside = []
        for middle, width in zip(centers[index], spread, strict=True):
            x = middle + width * np.linspace(-9, 9, 20001)
            law = np.exp(-((x - middle) ** 2) / (2 * width**2) - (value[index] - x) ** 2 / (2 * deviation**2))
            inside.append(max((law * x).sum() / law.sum(), 0))
        chances = density * START
        assert found[index] == pytest.approx((chances * inside).sum() / chances.sum(), rel=1e-5)


def test_likelihoods_are_normal_densities():
    value, reference = np.array([30.0, -4.0, 7.0]), np.array([10.0, 10.0, 0.5])
    found, tops = DEPARTURES.likelihoods(value, reference, 5.0)
    scale = np.sqrt(25 + (reference[:, None] * WIDTHS) ** 2)
    expected = norm.pdf(value[:, None], reference[:, None] * RATIOS, scale) * np.sqrt(2 * np.pi)
    np.testing.assert_allclose(found * np.exp(tops)[:, None], expected, rtol=1e-10, atol=1e-25)


def test_blockwise_posterior_equals_formula():
    """The table has more cells than a law is learnt from; the oracle uses the law of its sample."""
    rng = np.random.default_rng(1)
    reference = rng.gamma(0.3, 40.0, size=70_000)
    table = NoisyTable(reference * rng.gamma(2.0, 0.5, size=70_000) + rng.normal(0, 9, 70_000), reference, 9.0)
    likelihood = DEPARTURES.likelihoods(table.values, reference, 9.0)[0]
    law = shrinkage._weights(likelihood[::3].copy(), START, shrinkage.OWN_STRENGTH, shrinkage.OWN_ROUNDS)
    y, r = table.values[:, None], np.maximum(reference, 1e-6)[:, None]
    left = 81 / (81 + (r * WIDTHS) ** 2)
    posterior = likelihood * law / (likelihood * law).sum(axis=1, keepdims=True)
    roots = (posterior * np.sqrt(np.maximum(r * RATIOS + (1 - left) * (y - r * RATIOS), 0))).sum(axis=1)
    found = best_posterior([NoisyTables.of([table])], [START])
    np.testing.assert_allclose(found, np.maximum(roots**2, 1e-3 * reference), rtol=1e-9)


def test_batched_triples_equal_single_triples():
    """Expected tables from one or more known pairs, and their fits to pairs and 1-way marginals."""
    ones, groups, measured, _ = make_parts()
    model = low_order(ones, groups, {names: one for names, one in measured.items() if len(names) == 2}, chains=0)
    sets = list(combinations(SIZES, 3))
    inside = [len(model.inside(names)) for names in sets]
    assert {0, 1, 2} <= set(inside)
    found, rng = model.coarse_marginals(sets), np.random.default_rng(5)
    for names in sets:
        np.testing.assert_allclose(found[names], model.coarse_marginal(names), rtol=1e-12)
    noisy = {names: table * rng.gamma(4, 0.25, table.shape) for names, table in found.items()}
    fitted, exactly = (model.fit_tables(noisy, *to) for to in ((20, 1e-3), (100, 0.0)))
    for number, (names, table) in enumerate(noisy.items()):
        margins = [((axis,), model.coarse[name]) for axis, name in enumerate(names)] + model.inside(names)
        np.testing.assert_allclose(fitted[names], proportional_fit(table, margins, 20, 1e-3), rtol=1e-12)
        if number % 20 == 0:
            np.testing.assert_allclose(exactly[names], fit_by_numpy(table, margins, 100), rtol=1e-9)


def test_strongest_and_nearest_chain_equal_enumeration():
    rng = np.random.default_rng(2)
    ones = {name: one_way * 5000 for name, one_way in ((n, rng.dirichlet(np.ones(s))) for n, s in SIZES.items())}
    laid = OneWayArrays.of(ones, 5000.0)
    known, requested = PairArrays(laid, list(combinations(SIZES, 2))), PairArrays(laid, [("x3", "x5"), ("x0", "x9")])
    tables = {names: rng.random([SIZES[n] for n in names]) for names in known.names}
    links = PairLinks.of(known, np.concatenate([table.ravel() for table in tables.values()]))
    others = rng.random(requested.starts[-1])
    strongest, nearest = links.strongest(requested), requested.split(links.nearest(requested, others))
    for names, other in requested.split(others).items():
        middles = [name for name in SIZES if name not in names]  # ten, which is fewer than are looked at
        oriented = [[tables[a, m] if (a, m) in tables else tables[m, a].T for a in names] for m in middles]
        chains = [left / ones[m] @ right.T for m, (left, right) in zip(middles, oriented, strict=True)]
        product = np.outer(ones[names[0]], ones[names[1]]) / 5000
        np.testing.assert_allclose(strongest[names], max(chains, key=lambda one: np.abs(one - product).sum()))
        np.testing.assert_allclose(nearest[names], min([product, *chains], key=lambda one: ((one - other) ** 2).sum()))


def draw_large_one_ways(sizes, seed=0):
    rng = np.random.default_rng(seed)
    ones = {name: rng.dirichlet(np.ones(size)) * 1e6 for name, size in sizes.items()}
    return ones, {name: every_cell(size) for name, size in sizes.items()}


def test_ten_million_cells_are_fitted_in_place():
    """A triple of 215 values per attribute from its pairs: the peak is the table and its sums."""
    sizes = dict.fromkeys("abc", 215)
    ones, groups = draw_large_one_ways(sizes)
    rng = np.random.default_rng(1)
    flat = rng.random((215, 215))
    tables = {
        (one, other): proportional_fit(flat, [((0,), ones[one]), ((1,), ones[other])], 20, 1.0)
        for one, other in combinations("abc", 2)
    }
    model = LowOrder(ones, groups, tables, 1e6)
    model.marginal(("a", "b"))  # compiles
    tracemalloc.start()
    found = model.marginal(("a", "b", "c"), rounds=2)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.sum() == pytest.approx(1e6, rel=1e-3)
    assert peak < 1.3 * found.nbytes


@pytest.mark.slow
def test_pair_of_ten_million_cells_is_shrunk():
    sizes = {"a": 3163, "b": 3163}
    ones, groups = draw_large_one_ways(sizes)
    noise = center(np.random.default_rng(2).normal(0, 3, (3163, 3163)), (0, 1))
    model = low_order(ones, groups, {("a", "b"): NoisyResidual(noise, 3.0)})
    found = model.marginal(("a", "b"))
    product = np.outer(ones["a"], ones["b"]) / 1e6
    assert np.abs(found - product).sum() < 0.05 * np.abs(noise).sum()
    shrunk = best_posterior([NoisyTables.of([NoisyTable(noise + product, product, 3.0)])], [START])
    assert (shrunk >= 0).all()


def smooth_neighbours(table, reach):
    """Return `near` for one pair."""
    ones = OneWayArrays.of({"a": np.ones(table.values.shape[0]), "b": np.ones(table.values.shape[1])}, 1.0)
    return near(PairArrays(ones, [("a", "b")]), NoisyTables.of([table]), reach)


@pytest.mark.parametrize("shape", [(7, 1), (6, 9), (1, 5)])
def test_neighbour_reference_equals_window_without_cell(shape):
    rng = np.random.default_rng(1)
    reference, deviation = rng.gamma(2.0, 20.0, size=shape), 15.0
    values = reference + rng.normal(0, deviation, size=shape)
    for reach in NEIGHBOUR_REACHES:
        found = smooth_neighbours(NoisyTable(values, reference, deviation), reach)
        for cell in np.ndindex(shape):
            window = tuple(slice(max(i - reach, 0), i + reach + 1) for i in cell)
            y, r = values[window].sum() - values[cell], reference[window].sum() - reference[cell]
            weight = r**2 / (r**2 + (values[window].size - 1) * deviation**2) if r else 0.0
            ratio = max(1 + weight * (y / r - 1), 0.02) if r else 1.0
            assert found.reference.reshape(shape)[cell] == pytest.approx(reference[cell] * ratio, rel=1e-9)
        np.testing.assert_array_equal(found.values, values.ravel())


def test_neighbours_are_used_only_for_ordered_codes():
    """A band along the diagonal whose single cells are below the noise, and the same table with permuted codes."""
    rng, size, deviation = np.random.default_rng(0), 30, 12.0
    i = np.arange(size)
    true = 60 * np.exp(-(((i[:, None] - i[None, :]) / 6.0) ** 2))
    product = np.outer(true.sum(axis=1), true.sum(axis=0)) / true.sum()
    noise, order = rng.normal(0, deviation, true.shape), rng.permutation(size)
    for oriented, better in ((i, True), (order, False)):
        wanted, reference = true[np.ix_(oriented, oriented)], product[np.ix_(oriented, oriented)]
        plain = NoisyTable(wanted + noise, reference, deviation)
        ways = [NoisyTables.of([plain]), *(smooth_neighbours(plain, reach) for reach in NEIGHBOUR_REACHES)]
        chosen, alone = best_posterior(ways), best_posterior(ways[:1])
        off, before = (np.abs(table - wanted.ravel()).sum() for table in (chosen, alone))
        assert bool(off < 0.85 * before) is better
        assert off < 1.05 * before
