"""Division of a budget: against a search over a grid, limits of the errors, and strengths of planted departures."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy import stats

from dpscale.relational.allocation import (
    LEAST,
    AllocationProblem,
    ChainErrors,
    LinkErrors,
    LinkStrength,
    NoisySums,
    TableErrors,
    allocate,
    cross_cells,
    even_side,
    one_way_blocks,
    pair_blocks,
)
from dpscale.relational.budget_shares import Expected, LinkProblem
from dpscale.relational.degrees import _bounded_binomial, distribution, shrink_degrees
from dpscale.relational.features import Features

SIZES = ((4, 3), (5, 2, 3))


def make_problem(departure: float, links: float = 5000.0) -> AllocationProblem:
    tables = {"u": TableErrors(SIZES[0], 1000, 1), "v": TableErrors(SIZES[1], links, 6)}
    amounts = np.geomspace(1e-3, 1.0, 13)
    left = departure / np.sqrt(1 + 200 * amounts)
    return AllocationProblem(tables, {"l": LinkErrors("u", "v", links, cross_cells(*SIZES), amounts, left)}, 1.0)


@pytest.mark.parametrize("departure", [0.0, 0.02, 0.2])
def test_shares_are_as_good_as_those_of_a_grid(departure: float) -> None:
    problem = make_problem(departure)
    found = allocate(problem)
    grid = np.linspace(0.01, 0.98, 60)
    best = min(problem.objective({"tables.u": a, "tables.v": b, "links.l": 1 - a - b})
               for a, b in product(grid, grid) if a + b < 1)  # fmt: skip
    assert sum(found.values()) == pytest.approx(1)
    assert problem.objective(found) <= best + 5e-3


def test_a_link_without_departure_has_no_share_and_a_strong_one_has() -> None:
    assert allocate(make_problem(0.0))["links.l"] == 0
    assert allocate(make_problem(0.3))["links.l"] > 0.1


def test_stated_shares_stay() -> None:
    found = allocate(make_problem(0.1), {"tables.u": 0.5})
    assert found["tables.u"] == 0.5
    assert sum(found.values()) == pytest.approx(1)
    assert found["links.l"] == 0 or found["links.l"] >= LEAST


@pytest.mark.parametrize("number", [8, pytest.param(30, marks=pytest.mark.slow)])
def test_no_link_is_expected_to_be_worse_than_random_links_between_equal_tables(number: int) -> None:
    rng = np.random.default_rng(0)
    for _ in range(number):
        rows = 10 ** rng.uniform(1.5, 6, 3)
        tables = {
            name: TableErrors(tuple(rng.integers(2, 12, rng.integers(1, 5)).tolist()), count, float(k))
            for name, count, k in zip("abc", rows, (1, rng.integers(1, 9), rng.integers(1, 99)), strict=True)
        }
        amounts = np.geomspace(1e-3, 1.0, 13)
        links = {}
        for name, (one, two) in {"ab": ("a", "b"), "bc": ("b", "c")}.items():
            left = rng.uniform(0, 0.5) / np.sqrt(1 + 10 ** rng.uniform(-2, 4) * amounts)
            cells = cross_cells(tables[one].sizes, tables[two].sizes)
            links[name] = LinkErrors(one, two, tables[two].rows, cells, amounts, left)
        cells = cross_cells(tables["a"].sizes, tables["c"].sizes)
        chains = {"ac": ChainErrors("ab", "bc", cells)}
        problem = AllocationProblem(tables, links, float(10 ** rng.uniform(-3, 0.5)), chains)
        errors, random = problem.errors(allocate(problem)), problem.random_error()
        assert all(error <= 1.05 * random[name] for name, error in errors.items())


def make_chain(chains: bool) -> AllocationProblem:
    """Return customers, rentals and payments: the table in the middle is an end of both links."""
    sizes = {"a": (2, 6, 4, 2), "b": (4, 7, 16, 3, 2), "c": (7, 4, 7, 2)}
    rows = {"a": (600.0, 1.0), "b": (16_000.0, 46.0), "c": (16_000.0, 92.0)}
    tables = {name: TableErrors(own, *rows[name]) for name, own in sizes.items()}
    amounts = np.geomspace(1e-3, 1.0, 13)
    links = {one + two: LinkErrors(one, two, 16_000.0, cross_cells(sizes[one], sizes[two]), amounts,
                                   departure / np.sqrt(1 + 50 * amounts))
             for one, two, departure in (("a", "b", 0.04), ("b", "c", 0.1))}  # fmt: skip
    cells = cross_cells(sizes["a"], sizes["c"])
    return AllocationProblem(tables, links, 1.0, {"ac": ChainErrors("ab", "bc", cells)} if chains else {})


def test_chain_has_the_errors_of_its_ends_and_of_products_of_departures() -> None:
    """The oracle is the total variation of a chain over two values each, with departures ± d of every cell."""
    problem = make_chain(True)
    shares = {"tables.a": 0.2, "tables.b": 0.3, "tables.c": 0.4, "links.ab": 0.05, "links.bc": 0.05}
    found = problem.errors(shares)["ac"]
    ends = [problem.tables[name].marginal_errors(shares[f"tables.{name}"]) for name in "ac"]
    squares = sum((one**2 + two**2) / 2 for one, two in ends) + 0.4**2 * problem.chains["ac"].cells / 16_000
    departures = [(one.departure(0.05), one.departures[0]) for one in problem.links.values()]
    (left, whole), (other, all_) = departures
    assert found**2 == pytest.approx(squares + ((left * all_) ** 2 + (whole * other) ** 2) / 0.16)
    assert problem.errors(shares | {"tables.b": 0.01})["ac"] == found

    first, second = (np.array([[1 + d, 1 - d], [1 - d, 1 + d]]) / 2 for d in (0.2, 0.3))
    assert first @ second == pytest.approx(np.array([[1.06, 0.94], [0.94, 1.06]]) / 2)  # departures multiply


def test_table_in_the_middle_of_a_chain_leaves_budget_to_its_ends() -> None:
    """Shares are at least as good as the best of many random ones."""
    with_chain, links_alone = (allocate(make_chain(chains)) for chains in (True, False))
    assert with_chain["tables.b"] < links_alone["tables.b"] - 0.05
    assert with_chain["tables.c"] > links_alone["tables.c"] + 0.05
    problem = make_chain(True)
    drawn = np.random.default_rng(0).dirichlet(np.array([2, 3, 4, 0.5, 0.5]), 3000)
    best = min(problem.objective(dict(zip(problem.names, one.tolist(), strict=True))) for one in drawn)
    assert problem.objective(with_chain) <= best + 5e-3


def test_errors_of_tables_are_those_of_their_noise_where_it_is_small_and_bounded_where_it_is_large() -> None:
    """With one pair T₂² = T₁² + x², and x is the mean absolute value of the noise of a table of counts over 2 N."""
    one, both = TableErrors((6, 7), 1e9, 1).marginal_errors(1.0)
    assert one == pytest.approx(0.4 * 6.5 * 2**0.5 / 1e9, rel=1e-6)
    noise = np.random.default_rng(0).normal(size=(20_000, 42))
    assert (both**2 - one**2) ** 0.5 == pytest.approx(np.abs(noise).sum(axis=1).mean() / 2 / 1e9, rel=0.01)
    assert all(error < 1.2 for error in TableErrors((50, 60), 1.0, 100).marginal_errors(1e-9))


# ---- strengths -------------------------------------------------------------------------------------------------------


def measured_strength(scale: float, precision: float, links: int = 20_000) -> LinkStrength:
    """Return the strength of links that depart by factors 1 ± scale for every pair of attributes, by their parities."""
    rng = np.random.default_rng(1)
    u, v = (even_side(size) for size in SIZES)
    first, second = (1.0 - 2 * (side.profiles % 2) for side in (u, v))
    shares = np.outer(u.shares, v.shares) * np.maximum(1 + scale * (first @ np.ones((2, 3)) @ second.T), 0)
    counts = rng.multinomial(links, shares.ravel() / shares.sum()).reshape(shares.shape)
    one, two = (Expected.random(side, Features.of_side(side, None), float(links)) for side in (u, v))
    phi, psi = one.values, two.values
    exact = phi.T @ counts.sum(axis=1), psi.T @ counts.sum(axis=0), phi.T @ counts @ psi
    sums = [NoisySums(own + rng.normal(0, precision**-0.5, own.shape), 1 / precision) for own in exact]
    mean = NoisySums(phi.T @ u.shares, 0.0)
    return LinkStrength.of(one_way_blocks(one, sums[0], mean), pair_blocks(one, two, (sums[0], sums[1], sums[2])))


def test_planted_departure_is_found_where_noise_permits() -> None:
    prior = LinkStrength.prior().scales[1]
    weak, strong = measured_strength(0.01, 1.0).scales[1], measured_strength(0.5, 1.0).scales[1]
    assert weak < 0.5 * prior < 2 * prior < strong
    assert measured_strength(0.5, 1e-12).scales[1] == pytest.approx(prior, rel=0.01)


def test_departures_decrease_with_the_budget_and_increase_with_the_strength() -> None:
    u, v = (even_side(size) for size in SIZES)
    problem = LinkProblem(u, v, 10_000.0, "add/remove", 1.0)
    amounts, weak = measured_strength(0.01, 1.0).departures(problem, 1.0, 1.0)
    _, strong = measured_strength(0.5, 1.0).departures(problem, 1.0, 1.0)
    assert (np.diff(amounts) > 0).all()
    assert (np.diff(strong) <= 0).all()
    assert strong[0] > 3 * weak[0]
    assert strong[-1] < 0.5 * strong[0]


# ---- degrees ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dispersion", [0.0, 1.0])
def test_bounded_binomial_has_the_mean_of_the_bounded_degrees(dispersion: float) -> None:
    cumulative = _bounded_binomial(2.5, dispersion, 4)
    assert 4 - cumulative.sum() == pytest.approx(2.5, abs=1e-6)  # E min(X, d) = Σ P(X > j), j < d
    unbounded = _bounded_binomial(2.5, dispersion, 400)
    exact = stats.poisson(2.5) if dispersion == 0 else stats.nbinom(1 / dispersion, 1 / (1 + 2.5 * dispersion))
    assert unbounded == pytest.approx(exact.cdf(np.arange(400)), abs=1e-6)


def test_precise_counts_of_degrees_do_not_change() -> None:
    at_most = np.array([600.0, 610, 620, 990])
    assert shrink_degrees(at_most, 1000, 0.01, 1180) == pytest.approx(at_most, abs=0.05)


def test_noisy_counts_are_closer_to_the_degrees_than_without_shrinkage() -> None:
    """Overdispersed degrees: at any noise at most as far as random links, and far below where noise is moderate."""
    rng, rows, bound = np.random.default_rng(0), 5000, 10
    degrees = np.minimum(rng.poisson(rng.gamma(1.0, 3.0, rows)), bound)
    exact = np.array([(degrees <= j).sum() for j in range(bound)], float)
    links = float(degrees.sum())

    def distance(law: np.ndarray) -> float:
        return float(np.abs(np.cumsum(law)[:-1] - exact / rows).max())

    random = distance(distribution(rows * stats.poisson.cdf(np.arange(bound), links / rows), rows))
    for sigma, most in ((50.0, 0.05), (500.0, 0.12), (20_000.0, random + 0.02)):
        noisy = [exact + rng.normal(0, sigma, bound) for _ in range(10)]
        shrunk, plain = (np.mean([distance(distribution(one, rows, *how)) for one in noisy])
                         for how in ((sigma, links), ()))  # fmt: skip
        assert shrunk < most
        assert shrunk < plain
