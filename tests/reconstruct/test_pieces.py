"""What tasks, chunks and size may not change, and what they may not cost."""

import pickle
import tracemalloc
from itertools import combinations

import numpy as np
import pytest
from scipy.stats import norm

from dpscale.reconstruct import low_order as room
from dpscale.reconstruct import shrink
from dpscale.reconstruct.chains import Links
from dpscale.reconstruct.entropy import LowOrder
from dpscale.reconstruct.fit import proportional_fit
from dpscale.reconstruct.low_order import NoisyResidual, low_order
from dpscale.reconstruct.near import REACHES, near
from dpscale.reconstruct.shrink import DEPARTURES, RATIOS, START, WIDTHS, NoisyTable, best_posterior, learn
from dpscale.residual import center
from dpscale.residual.groups import every_cell

SIZES = {f"x{i}": 3 + i % 4 for i in range(12)}


def parts(seed=0):
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


def through_pickles(function, items):
    """As tasks on other machines would: last item first, each with its own copy of everything."""
    found = [pickle.dumps(pickle.loads(pickle.dumps(function))(pickle.loads(pickle.dumps(one)))) for one in items[::-1]]
    return [pickle.loads(one) for one in found[::-1]]


@pytest.mark.parametrize("chunk", [1, 50, 1 << 20])
def test_the_bytes_depend_neither_on_tasks_nor_on_chunks(monkeypatch, chunk):
    expected = low_order(*parts())
    monkeypatch.setattr(room, "CHUNK_CELLS", chunk)
    found = low_order(*parts(), each=through_pickles)
    assert len(found.tables) > 40
    assert list(found.tables) == list(expected.tables)
    for names, own in expected.tables.items():
        assert found.tables[names].tobytes() == own.tobytes()


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
def test_compiled_fits_are_those_of_numpy(sets):
    rng = np.random.default_rng(0)
    shape = (4, 5, 3, 2)[: max(axis for axes in sets for axis in axes) + 1]
    truth, start = rng.random(shape), rng.random(shape)
    margins = [(axes, truth.sum(axis=tuple(i for i in range(len(shape)) if i not in axes))) for axes in sets]
    before = start.copy()
    np.testing.assert_allclose(proportional_fit(start, margins, 9, 0.0), fit_by_numpy(start, margins, 9))
    np.testing.assert_array_equal(start, before)


def test_the_posterior_is_the_mean_of_the_mixture():
    """Against the integral of each component over the noise, done by brute force."""
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


def test_the_posterior_by_blocks_is_that_at_once():
    """A table of more cells than a law is learnt from, given the law that its sample has."""
    rng = np.random.default_rng(1)
    reference = rng.gamma(0.3, 40.0, size=70_000)
    table = NoisyTable(reference * rng.gamma(2.0, 0.5, size=70_000) + rng.normal(0, 9, 70_000), reference, 9.0)
    likelihood = DEPARTURES.likelihoods(table.values, reference, 9.0)[0]
    law = shrink._weights(likelihood[::3].copy(), START, shrink.OWN_STRENGTH, shrink.OWN_ROUNDS)
    means = DEPARTURES.means(table.values, reference, 9.0, likelihood, law)
    np.testing.assert_array_equal(best_posterior([table], [START]), np.maximum(means, 1e-3 * reference))


def test_chains_are_products_and_their_distances():
    ones, groups, *_ = parts()
    rng = np.random.default_rng(2)
    tables = {(a, b): rng.random((SIZES[a], SIZES[b])) for a, b in combinations(SIZES, 2)}
    links = Links.of(LowOrder(ones, groups, tables, 5000.0))
    other = rng.random((SIZES["x3"], SIZES["x5"]))
    for middle, (found, squared, apart) in zip(
        links._middles(("x3", "x5")), links._chains(("x3", "x5"), other), strict=True
    ):
        left, right = (tables[a, middle] if (a, middle) in tables else tables[middle, a].T for a in ("x3", "x5"))
        product = left / ones[middle] @ right.T
        np.testing.assert_allclose(found, product)
        assert squared == pytest.approx(((product - other) ** 2).sum())
        assert apart == pytest.approx(np.abs(product - other).sum())


def big(sizes, seed=0):
    rng = np.random.default_rng(seed)
    ones = {name: rng.dirichlet(np.ones(size)) * 1e6 for name, size in sizes.items()}
    return ones, {name: every_cell(size) for name, size in sizes.items()}


def test_ten_million_cells_take_memory_for_two():
    """A triple of 215 values an attribute from its three pairs, cell by cell: it and its sums, nothing twice."""
    sizes = dict.fromkeys("abc", 215)
    ones, groups = big(sizes)
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
def test_a_pair_of_ten_million_cells_is_shrunk_and_fitted():
    sizes = {"a": 3163, "b": 3163}
    ones, groups = big(sizes)
    noise = center(np.random.default_rng(2).normal(0, 3, (3163, 3163)), (0, 1))
    model = low_order(ones, groups, {("a", "b"): NoisyResidual(noise, 3.0)})
    found = model.marginal(("a", "b"))
    product = np.outer(ones["a"], ones["b"]) / 1e6
    assert np.abs(found - product).sum() < 0.05 * np.abs(noise).sum()
    shrunk = best_posterior([NoisyTable(noise + product, product, 3.0)], [np.full(29, 1 / 29)])
    assert (shrunk >= 0).all()


@pytest.mark.parametrize("shape", [(7, 1), (6, 9), (1, 5)])
def test_neighbours_expect_what_a_window_without_the_cell_says(shape):
    rng = np.random.default_rng(1)
    reference, deviation = rng.gamma(2.0, 20.0, size=shape), 15.0
    values = reference + rng.normal(0, deviation, size=shape)
    for reach in REACHES:
        found = near(NoisyTable(values, reference, deviation), reach)
        for cell in np.ndindex(shape):
            window = tuple(slice(max(i - reach, 0), i + reach + 1) for i in cell)
            y, r = values[window].sum() - values[cell], reference[window].sum() - reference[cell]
            weight = r**2 / (r**2 + (values[window].size - 1) * deviation**2) if r else 0.0
            ratio = max(1 + weight * (y / r - 1), 0.02) if r else 1.0
            assert found.reference[cell] == pytest.approx(reference[cell] * ratio, rel=1e-9)
        np.testing.assert_array_equal(found.values, values)


def test_neighbours_count_where_codes_lie_in_order_and_not_where_they_are_shuffled():
    """A band along the diagonal, at a noise that hides single cells; the same with codes in any order."""
    rng, size, deviation = np.random.default_rng(0), 30, 12.0
    i = np.arange(size)
    true = 60 * np.exp(-(((i[:, None] - i[None, :]) / 6.0) ** 2))
    product = np.outer(true.sum(axis=1), true.sum(axis=0)) / true.sum()
    noise, order = rng.normal(0, deviation, true.shape), rng.permutation(size)
    for turned, better in ((i, True), (order, False)):
        wanted, reference = true[np.ix_(turned, turned)], product[np.ix_(turned, turned)]
        plain = NoisyTable(wanted + noise, reference, deviation)
        ways = [plain, *(near(plain, reach) for reach in REACHES)]
        laws = [learn([way]) for way in ways]
        chosen, alone = best_posterior(ways, laws), best_posterior(ways[:1], laws[:1])
        off, before = (np.abs(table - wanted).sum() for table in (chosen, alone))
        assert bool(off < 0.85 * before) is better
        assert off < 1.05 * before
