"""The published algorithm for links: projections and fits against cvxpy, selections and draws against their laws."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import combinations, product

import cvxpy as cp
import numpy as np
import pytest

from dpscale.privacy.streams import PublicStream
from dpscale.relational import published
from dpscale.relational.features import Side
from dpscale.relational.published import (
    Fit,
    LoopSize,
    Rounds,
    chosen_rounds,
    descend,
    project,
    run_rounds,
    sample_children,
    sample_pairs,
)
from dpscale.relational.rounding import Cross, cross_count, marginal_cells
from tests.relational.small import draw_links, make_side, make_stream


def split_profiles(one: Side) -> Side:
    """Return the side with every row as its own profile."""
    return replace(one, profiles=one.profiles[one.of], counts=np.ones(one.rows), of=np.arange(one.rows))


def make_sides(seed: int) -> tuple[Side, Side]:
    return make_side(12, (2, 3), seed), make_side(9, (2, 2, 2), seed + 3)


def solve(b: cp.Variable, loss, constraints) -> np.ndarray:
    cp.Problem(cp.Minimize(loss), constraints).solve(solver=cp.CLARABEL, tol_gap_abs=1e-13, tol_gap_rel=1e-13,
                                                     tol_feas=1e-13)  # fmt: skip
    return b.value


@pytest.mark.parametrize("links", [1.0, 20.0, 54.5, 107.0, 108.0])
@pytest.mark.parametrize("spread", [0.01, 1.0, 30.0])
def test_projection_equals_projection_of_row_pairs(links: float, spread: float) -> None:
    u, v = make_sides(1)
    cap = np.multiply.outer(u.counts, v.counts)
    b = np.random.default_rng(2).normal(0.4, spread, cap.shape)
    found = project(b, cap, links)
    assert (cap * found).sum() == pytest.approx(links, abs=1e-9)
    far, pairs = b[np.ix_(u.of, v.of)], cp.Variable((u.rows, v.rows))
    near = solve(pairs, cp.sum_squares(pairs - far), [pairs >= 0, pairs <= 1, cp.sum(pairs) == links])
    assert found[np.ix_(u.of, v.of)] == pytest.approx(near, abs=1e-5)
    # no slack: where b is inside, all are moved by as much; where it is cut, by less
    inside = (found > 0) & (found < 1)
    if inside.any():
        moved = (found - b)[inside]
        assert moved == pytest.approx(np.full(inside.sum(), moved[0]), abs=1e-9 * max(spread, 1))
        assert ((b + moved[0])[found == 0] <= 1e-9).all()
        assert ((b + moved[0])[found == 1] >= 1 - 1e-9).all()


def test_children_are_projected_to_simplices() -> None:
    u, v = make_sides(2)
    fit, b = Fit(u, v, v.rows, True), np.random.default_rng(3).normal(0, 0.3, (len(u.counts), len(v.counts)))
    found = fit.project(b)
    for j in range(len(v.counts)):
        one = cp.Variable(u.rows)
        near = solve(one, cp.sum_squares(one - b[u.of, j]), [one >= 0, cp.sum(one) == 1])
        assert found[u.of, j] == pytest.approx(near, abs=1e-6)


def query_matrix(cross: Cross, pairs: tuple[int, int]) -> np.ndarray:
    """Return Q, with one column per pair of profiles."""
    cells = np.eye(pairs[0] * pairs[1]).reshape(-1, *pairs)
    return np.stack([cross.marginals(one) for one in cells], axis=1)


@pytest.mark.parametrize("order", [2, 3, 4, 5, 9])
def test_marginals_are_counts_and_back_is_transpose(order: int) -> None:
    """Two and three attributes: of five and more there is one marginal."""
    u, v = make_sides(5)
    cross, shape = Cross.of(u, v, order), (len(u.counts), len(v.counts))
    weights = np.random.default_rng(1).random(shape)
    for k, (left, right) in enumerate(cross.columns):
        plain: dict[tuple[int, ...], float] = {}
        for i, j in product(range(shape[0]), range(shape[1])):
            key = (*u.profiles[i, list(left)], *v.profiles[j, list(right)])
            plain[key] = plain.get(key, 0.0) + weights[i, j]
        sizes = [*(u.sizes[a] for a in left), *(v.sizes[a] for a in right)]
        table = cross.marginals(weights)[cross.entries(k)].reshape(sizes)
        assert {key: table[key] for key in plain} == pytest.approx(plain)
        assert table.sum() == pytest.approx(weights.sum())
    number = sum(1 for chosen in combinations("aabbb", min(order, 5)) if len(set(chosen)) == 2)
    assert len(cross.columns) == cross_count(2, 3, order) == number
    assert marginal_cells(u.sizes, v.sizes, order) == np.diff(cross.starts).tolist()
    entries = np.random.default_rng(2).random(cross.size)
    assert cross.back(entries).ravel() == pytest.approx(query_matrix(cross, shape).T @ entries)


@pytest.mark.parametrize("known", [False, True])
def test_fit_equals_fit_over_rows_and_reaches_least_squares(known: bool) -> None:
    u, v = make_sides(7)
    links = float(v.rows) if known else 40.0
    fit, rows = Fit(u, v, links, known), Fit(split_profiles(u), split_profiles(v), links, known)
    cross = Cross.of(u, v).some([0, 4, 7])
    noisy = cross.marginals(draw_links(u, v, links, 3))
    noisy[noisy > 0] += np.random.default_rng(1).normal(0, 1, (noisy > 0).sum())
    blocks = descend(fit, cross, noisy, fit.begin(), 30)
    pairs = descend(rows, Cross.of(rows.u, rows.v).some([0, 4, 7]), noisy, rows.begin(), 30)
    assert pairs == pytest.approx(blocks[np.ix_(u.of, v.of)], abs=1e-9)
    long = descend(fit, cross, noisy, fit.begin(), 5000)
    b, cap = cp.Variable(fit.cap.shape), fit.cap
    within = [b >= 0, b <= 1, u.counts @ b == 1] if known else [b >= 0, b <= 1, cp.sum(cp.multiply(cap, b)) == links]
    query = query_matrix(cross, cap.shape) * cap.ravel()
    best = solve(b, cp.sum_squares(query @ cp.reshape(b, cap.size, order="C") - noisy), within)
    loss = [((query @ one.ravel() - noisy) ** 2).sum() for one in (blocks, long, best)]
    assert loss[1] == pytest.approx(loss[2], rel=1e-4, abs=1e-4)
    assert loss[0] >= loss[1]


def test_noiseless_rounds_meet_all_marginals_once() -> None:
    """Nine marginals in rounds of 4: the third round takes the last one, and the other two rounds none."""
    u, v = make_sides(8)
    cross, links = Cross.of(u, v), 50.0
    true = cross.marginals(draw_links(u, v, links, 9))
    taken: list[list[int]] = []

    def choose_largest_errors(number, estimated, left, count):
        taken.append(sorted(left, key=lambda k: -np.abs(estimated - true)[cross.entries(k)].sum())[:count])
        return taken[-1]

    def measure_exactly(number, chosen):
        out = np.zeros(cross.size)
        for k in chosen:
            out[cross.entries(k)] = true[cross.entries(k)]
        return out

    fit = Fit(u, v, links, False)
    b = run_rounds(fit, Rounds(5, 4), cross, choose_largest_errors, measure_exactly)
    assert [len(own) for own in taken] == [4, 4, 1]
    assert sorted(k for own in taken for k in own) == list(range(9))
    errors = [np.abs(cross.marginals(one * fit.cap) - true).sum() for one in (fit.begin(), b)]
    assert errors[1] < 0.1 * errors[0]


@pytest.mark.parametrize("number", [1, 2, 3, None])
def test_links_are_fitted_to_the_marginals_farthest_from_the_estimate(number: int | None) -> None:
    u, v = make_sides(8)
    cross, rng = Cross.of(u, v), np.random.default_rng(3)
    noisy, estimates = rng.normal(size=cross.size), rng.normal(size=cross.size)
    distances = [sum(abs(a - b) for a, b in zip(noisy[cut], estimates[cut], strict=True))
                 for cut in map(cross.entries, range(len(cross.columns)))]  # fmt: skip
    taken = [5, 0, 7, 2]
    chosen = published.farthest(cross, noisy, estimates, taken, number)
    others = [distances[k] for k in taken if k not in chosen]
    assert len(chosen) == (number or 4)
    assert all(distances[k] > other for k in chosen for other in others)


def test_slice_has_the_mean_of_links_fitted_between_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle is a fit over pairs of rows between the chosen rows alone, averaged over the pairs of each block."""
    monkeypatch.setattr(published, "SLICE", 6)
    u, v = make_sides(7)
    fit, number = Fit(u, v, 40.0, False), len(Cross.of(u, v).columns)
    cross = Cross.of(u, v)
    noisy = cross.marginals(draw_links(u, v, 40.0, 3))
    b = fit.project(np.random.default_rng(2).normal(0.4, 0.3, fit.cap.shape))
    stream = PublicStream("release", "slices")
    found = published.descend_slice(fit, cross, noisy, b, PublicStream("release", "slices"))
    assert found.min() >= -1e-12
    assert found.max() <= 1 + 1e-12
    assert (found * fit.cap).sum() == pytest.approx(40)

    rows = [np.sort(np.repeat(np.arange(len(side.counts)), side.counts.astype(int))[stream.permutation(side.rows)[:6]])
            for side in (u, v)]  # fmt: skip
    ends = [Side(side.sizes, side.profiles[one], np.ones(6), np.arange(6))
            for side, one in zip((u, v), rows, strict=True)]  # fmt: skip
    links = b[np.ix_(*rows)].sum()
    own = Fit(*ends, links, False)
    pairs = descend(own, Cross.of(*ends).some(range(number)), noisy / 40 * links, own.begin())
    inside, totals = np.zeros(fit.cap.shape), np.zeros(fit.cap.shape)
    np.add.at(inside, np.ix_(*rows), 1.0)
    np.add.at(totals, np.ix_(*rows), pairs)
    assert found == pytest.approx((b * (fit.cap - inside) + totals) / fit.cap, abs=1e-9)


def test_slices_of_few_rows_are_all_rows() -> None:
    u, v = make_sides(7)
    fit, cross = Fit(u, v, 40.0, False), Cross.of(u, v)
    noisy = cross.marginals(draw_links(u, v, 40.0, 3))
    found = published.descend_slice(fit, cross, noisy, fit.begin(), PublicStream("release", "slices"))
    assert found == pytest.approx(descend(fit, cross, noisy, fit.begin()))


def make_size(links: float, sigma: float) -> LoopSize:
    return LoopSize(((7, 2, 5), (4, 2, 4, 4)), links, sigma, 0.08)


@pytest.mark.parametrize("order", [2, 3, 4])
@pytest.mark.parametrize("each", [1, 3])
def test_expected_errors_of_rounds_follow_their_equation(order: int, each: int) -> None:
    """The oracle lists marginals and the pairs of attributes that each covers."""
    size = make_size(18_000.0, 8.0)
    u, v = size.sizes
    sets = [
        (a, b) for i in range(1, order) for a in combinations(range(3), i) for b in combinations(range(4), order - i)
    ]
    cells = np.mean([np.prod([u[i] for i in a]) * np.prod([v[j] for j in b]) for a, b in sets])
    pairs = np.mean([len(list(product(a, b))) for a, b in sets])
    found = published.round_errors(size, Rounds(each=each, order=order), 1000)
    assert len(found) == int(np.ceil(len(sets) / each))
    for number, error in enumerate(found, 1):
        noise = 0.4 * cells * 8.0 * np.sqrt(number * each) / 18_000
        left = 0.08 * max(1 - 1.5 * pairs / 12, 0) ** (number * each)
        assert error == pytest.approx(np.hypot(left, 0.4 * noise / (1 + noise)))


def test_number_of_rounds_falls_with_the_noise_and_is_one_where_noise_exceeds_departures() -> None:
    numbers = [chosen_rounds(make_size(18_000.0, sigma), Rounds(), 1000) for sigma in (1e-6, 3.0, 30.0, 3000.0)]
    assert numbers == sorted(numbers, reverse=True)
    assert numbers[0] == 10  # all 30 marginals, three a round
    assert numbers[-1] == 1
    assert chosen_rounds(make_size(18_000.0, 1e-6), Rounds(), 4) == 4


def test_round_costs_sum_to_budget() -> None:
    selection, noise = Rounds(7, 3, 0.3).costs(Fraction(5))
    assert 21 * (selection + noise) == 5
    assert float(selection / (selection + noise)) == pytest.approx(0.3)


@pytest.mark.parametrize("links", [1, 30, 70])
def test_sampled_pairs_have_their_probabilities(links: int) -> None:
    u, v = make_sides(4)
    fit = Fit(u, v, links, False)
    b = fit.project(np.random.default_rng(5).normal(0.3, 0.3, fit.cap.shape))
    counted, times = np.zeros((u.rows, v.rows)), 2000
    for number in range(times):
        pairs = sample_pairs(b, u, v, links, make_stream(number))
        assert len(np.unique(pairs, axis=0)) == len(pairs) == links
        counted[pairs[:, 0], pairs[:, 1]] += 1
    want = b[np.ix_(u.of, v.of)]
    assert (np.abs(counted / times - want) <= 5 * np.sqrt(want * (1 - want) / times) + 1e-12).all()


def test_sampled_children_have_one_parent_with_its_probability() -> None:
    u, v = make_sides(6)
    fit = Fit(u, v, v.rows, True)
    b = fit.project(np.random.default_rng(5).normal(0.1, 0.1, fit.cap.shape))
    found = [sample_children(b, u, v, make_stream(number)) for number in range(2000)]
    assert all(one.sum(axis=0).tolist() == v.counts.tolist() for one in found)
    want = b * fit.cap
    assert np.mean(found, axis=0) == pytest.approx(want, abs=0.12)


def test_largest_singular_value_equals_explicit_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step length depends on σ² from power iteration; the oracle is the matrix over pairs of rows."""
    u, v = make_sides(3)
    cross, cap = Cross.of(u, v), np.multiply.outer(u.counts, v.counts)
    whole = query_matrix(cross, cap.shape) * np.sqrt(cap.ravel())
    assert published._largest(cross, cap) == pytest.approx(np.linalg.norm(whole, 2) ** 2, rel=1e-3)
