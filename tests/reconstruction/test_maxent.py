from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dpscale import Domain, Workload, plan
from dpscale.counting import ExactMarginal
from dpscale.measurement.measurement import measure_block
from dpscale.plans.measurement_plan import plan_draws
from dpscale.privacy.streams import seeded_secret
from dpscale.reconstruction import shrinkage
from dpscale.reconstruction.consistency import NoisyCounts, james_stein, non_negative_counts, total_of, with_groups
from dpscale.reconstruction.entropy import LowOrder, product_of, proportional_fit
from dpscale.reconstruction.estimates import LeastSquaresEstimates
from dpscale.reconstruction.low_order import NoisyResidual, _residual, from_estimates, low_order
from dpscale.reconstruction.set_arrays import OneWayArrays, PairArrays, PairLinks, middles
from dpscale.workload.residual import Groups, center, coarsened, every_cell
from tests.messages import refused

SIZES = {"a": 3, "b": 4, "c": 5, "d": 2}
NAMES = tuple(SIZES)


def draw_table(seed=0, rows=1000.0):
    weights = np.random.default_rng(seed).gamma(0.7, size=tuple(SIZES.values()))
    return weights * (rows / weights.sum())


def marginalize(values, names):
    return values.sum(axis=tuple(i for i, name in enumerate(NAMES) if name not in names))


def make_exact_model(values, pairs, groups=None):
    ones = {name: marginalize(values, (name,)) for name in NAMES}
    groups = groups or {name: every_cell(size) for name, size in SIZES.items()}
    tables = {names: coarsened(marginalize(values, names), [groups[n] for n in names]) for names in pairs}
    return LowOrder(ones, groups, tables, float(values.sum()))


def test_fit_is_maximum_entropy_distribution():
    import cvxpy as cp

    values, pairs = draw_table(), [("a", "b"), ("b", "c"), ("a", "c")]
    found = make_exact_model(values, pairs).marginal(("a", "b", "c"), rounds=500)
    cells = list(product(range(3), range(4), range(5)))
    x = cp.Variable(60)
    limits = []
    for names in pairs:
        axes = ["abc".index(name) for name in names]
        for key in product(*(range(SIZES[name]) for name in names)):
            mask = np.array([all(cell[a] == k for a, k in zip(axes, key, strict=True)) for cell in cells], dtype=float)
            limits.append(mask @ x == marginalize(values, names)[key] / 1000)
    cp.Problem(cp.Maximize(cp.sum(cp.entr(x))), limits).solve(solver="CLARABEL")
    np.testing.assert_allclose(found.ravel(), 1000 * x.value, atol=0.2)


def test_two_pairs_give_conditional_independence():
    values = draw_table()
    ab, bc = marginalize(values, "ab"), marginalize(values, "bc")
    found = make_exact_model(values, [("a", "b"), ("b", "c")]).marginal(("a", "b", "c"))
    np.testing.assert_allclose(found, ab[:, :, None] * bc[None] / marginalize(values, "b")[None, :, None])


@settings(max_examples=30)
@given(st.integers(0, 1000))
def test_fit_over_groups_equals_fit_over_cells(seed):
    """With constant ratios to independence within groups, proportional fitting gives the same over cells and groups."""
    values = draw_table(seed)
    groups = {"a": Groups(3, (0, 1)), "b": Groups(4, (0, 2)), "c": Groups(5, (0, 1, 4)), "d": every_cell(2)}
    coarse = make_exact_model(values, list(combinations("abc", 2)), groups)
    pairs = {names: coarse.marginal(names) for names in coarse.tables}
    fine = LowOrder(coarse.ones, {name: every_cell(size) for name, size in SIZES.items()}, pairs, coarse.total)
    one, other = (model.marginal(("a", "b", "c"), rounds=200) for model in (coarse, fine))
    np.testing.assert_allclose(one, other, atol=0.5)
    assert (one >= 0).all()
    assert one.sum() == pytest.approx(1000)


def test_axis_order_and_independence_of_unmeasured_attributes():
    model = make_exact_model(draw_table(), [("a", "b")])
    np.testing.assert_allclose(model.marginal(("b", "d", "a")), model.marginal(("a", "b", "d")).transpose(1, 2, 0))
    np.testing.assert_allclose(model.marginal(("c", "d")), product_of([model.ones["c"], model.ones["d"]], 1000))
    np.testing.assert_allclose(model.marginal(()), 1000)


def test_disagreement_is_distance_of_common_margin():
    values = draw_table()
    model = make_exact_model(values, list(combinations("abc", 2)))
    assert model.disagreement(("a", "b", "c"), ("a", "b", "d")) < 1e-3
    assert model.disagreement(("a", "b"), ("c", "d")) == 0
    chained = make_exact_model(values, [("a", "b"), ("b", "c")])
    left = chained.marginal(("a", "b", "c")).sum(axis=1)
    right = chained.marginal(("a", "c", "d")).sum(axis=2)
    expected = np.abs(left - right).sum() / 2000
    assert chained.disagreement(("a", "b", "c"), ("a", "c", "d")) == pytest.approx(expected)
    assert expected > 0.01


def test_larger_table_overrides_contained_tables():
    values = draw_table()
    triple = marginalize(values, "abc")
    model = LowOrder(
        **{
            **vars(make_exact_model(values, [("a", "b")])),
            "tables": {("a", "b", "c"): triple, ("a", "b"): triple.sum(2)},
        }
    )
    np.testing.assert_allclose(model.marginal(NAMES).sum(axis=3), triple, rtol=1e-6)


def test_zero_margins_stay_zero():
    start = np.ones((3, 3))
    found = proportional_fit(start, [((0,), np.array([0.0, 2, 1])), ((1,), np.array([3.0, 0, 0]))], 20, 0)
    np.testing.assert_allclose(found, [[0, 0, 0], [2, 0, 0], [1, 0, 0]])


def make_noisy_model(values, deviation, pairs, wanted=(), chains=1, seed=0):
    rng = np.random.default_rng(seed)
    ones = {name: marginalize(values, (name,)) for name in NAMES}
    measured = {}
    for names in pairs:
        own = marginalize(values, names)
        noise = rng.normal(0, deviation, own.shape)
        measured[names] = NoisyResidual(center(own + noise, (0, 1)), deviation)
    groups = {name: every_cell(size) for name, size in SIZES.items()}
    return low_order(ones, groups, measured, wanted, chains)


def relative_error(one, other):
    return np.abs(one - other).sum() / other.sum()


def test_exact_measurements_are_reproduced_and_noise_is_removed():
    values = draw_table()
    sharp = make_noisy_model(values, 1e-3, combinations("abc", 2))
    blunt = make_noisy_model(values, 1e4, combinations("abc", 2))
    for names in combinations("abc", 2):
        assert relative_error(sharp.tables[names], marginalize(values, names)) < 2e-3
        independent = product_of([marginalize(values, (name,)) for name in names], 1000)
        assert relative_error(blunt.tables[names], independent) < 0.1


def test_tables_are_consistent_and_non_negative():
    model = make_noisy_model(draw_table(), 30.0, combinations(NAMES, 2))
    for names, own in model.tables.items():
        assert (own >= 0).all()
        for axis, name in enumerate(names):
            np.testing.assert_allclose(own.sum(axis=1 - axis), model.coarse[name], rtol=1e-3)


def test_shrinkage_beats_noisy_table_and_independence():
    better = []
    for seed in range(10):
        values = draw_table(seed)
        model = make_noisy_model(values, 12.0, [("b", "c")], seed=seed)
        true, rng = marginalize(values, ("b", "c")), np.random.default_rng(seed)
        clipped = np.maximum(true + rng.normal(0, 12.0, true.shape), 0)
        independent = product_of([marginalize(values, (name,)) for name in "bc"], 1000)
        own = relative_error(model.tables["b", "c"], true)
        better.append((own, relative_error(clipped, true), relative_error(independent, true)))
    own, clipped, independent = np.mean(better, axis=0)
    assert own < clipped
    assert own < 0.7 * independent


def chain_table(rows=20000.0):
    """Return a table in which a — b — c — d is a chain of noisy copies."""
    near = {k: np.exp(-2.0 * np.abs(np.subtract.outer(np.linspace(0, 3, k[0]), np.linspace(0, 3, k[1])))) for k in
            [(3, 4), (4, 5), (5, 2)]}  # fmt: skip
    values = np.einsum("ab,bc,cd->abcd", near[3, 4], near[4, 5], near[5, 2])
    return values * (rows / values.sum())


def test_unmeasured_pair_is_implied_by_chain():
    values = chain_table()
    with_it = make_noisy_model(values, 5.0, [("a", "b"), ("b", "c")], wanted=[("a", "c")])
    without = make_noisy_model(values, 5.0, [("a", "b"), ("b", "c")])
    true = marginalize(values, ("a", "c"))
    assert relative_error(with_it.marginal(("a", "c")), true) < 0.05
    assert relative_error(without.marginal(("a", "c")), true) > 0.3


def test_chain_improves_noisy_pair():
    values, true = chain_table(), marginalize(chain_table(), ("a", "c"))
    gains = []
    for seed in range(5):
        pairs = {("a", "b"): 5.0, ("b", "c"): 5.0, ("a", "c"): 900.0}
        rng = np.random.default_rng(seed)
        ones = {name: marginalize(values, (name,)) for name in NAMES}
        groups = {name: every_cell(size) for name, size in SIZES.items()}
        measured = {
            names: NoisyResidual(
                center(marginalize(values, names) + rng.normal(0, s, marginalize(values, names).shape), (0, 1)), s
            )
            for names, s in pairs.items()
        }
        with_it, without = (low_order(ones, groups, measured, chains=n) for n in (1, 0))
        gains.append(relative_error(without.tables["a", "c"], true) - relative_error(with_it.tables["a", "c"], true))
    assert np.mean(gains) > 0.05


def test_links_use_every_middle_attribute():
    for pairs, chains in (list(combinations(NAMES, 2)), 1), ([("a", "b")], 0):
        model = make_exact_model(draw_table(), pairs)
        ones = OneWayArrays.of(model.coarse, model.total)
        links = PairLinks.of(PairArrays(ones, pairs), np.concatenate([model.tables[names].ravel() for names in pairs]))
        assert len(links.strongest(PairArrays(ones, [("c", "d")]))) == chains
    assert middles(np.array([-1, 3, 2.0, -1]), np.array([9, 2, 2.0, -1]), best := np.zeros(2, int), np.zeros(2)) == 2
    assert best.tolist() == [1, 2], "the first where equal"


def test_triples_are_combined_with_contained_pairs():
    values = draw_table()
    groups = {name: every_cell(size) for name, size in SIZES.items()}
    ones = {name: marginalize(values, (name,)) for name in NAMES}
    measured = {
        names: NoisyResidual(center(marginalize(values, names), range(len(names))), 0.01)
        for names in [*combinations("abc", 2), ("a", "b", "c")]
    }
    model = low_order(ones, groups, measured)
    assert relative_error(model.tables["a", "b", "c"], marginalize(values, "abc")) < 0.02


def test_one_ways_are_non_negative_with_total():
    rng = np.random.default_rng(0)
    errors = []
    for smooth in (True, False):
        true = 300 * np.exp(-(np.linspace(-2, 2, 80) ** 2)) if smooth else np.where(rng.random(80) < 0.1, 900.0, 0.0)
        noisy = NoisyCounts(true + rng.normal(0, 60, 80), 3600.0)
        found = non_negative_counts(noisy, true.sum())
        assert (found > 0).all()
        assert found.sum() == pytest.approx(true.sum())
        errors.append(relative_error(found, true) / relative_error(np.maximum(noisy.values, 0), true))
    assert max(errors) < 0.5
    assert total_of({"x": noisy}, (1234.0, 1e9)) == pytest.approx(1234.0, rel=1e-3)


def test_groups_of_one_way_use_pair_residuals():
    true = np.array([10.0, 20, 30, 40, 500])
    noisy, groups = NoisyCounts(true + np.array([90, -60, 50, 70, -80]), 5000.0), Groups(5, (0, 2, 4))
    residual = center(coarsened(true, [groups]), [0])
    found = with_groups(non_negative_counts(noisy, 600.0), noisy, groups, residual, 1e3, 600.0)
    np.testing.assert_allclose(coarsened(found, [groups]), [30, 70, 500], rtol=0.01)


DOMAIN = Domain({"a": 6, "b": 8, "c": 5})
UNEVEN = {"a": Groups(6, (0, 2, 3)), "b": Groups(8, (0, 4)), "c": Groups(5, (0, 1, 4))}


def measure_counts(planned, cost, seed, counts=None, names=("a", "b", "c")):
    """Return estimates from the measurements of a plan, and the exact counts."""
    rng = np.random.default_rng(seed)
    if counts is None:
        weights = rng.gamma(0.3, size=(6, 8, 5))
        counts = rng.multinomial(5000, (weights / weights.sum()).ravel()).reshape(6, 8, 5)
    draws, marginal = plan_draws(planned, cost), ExactMarginal(names, counts)

    def read(index):
        block, draw = planned.blocks[index], draws[index]
        return measure_block(block, draw, marginal, seeded_secret(seed), {"block": index}) / draw.multiplier

    return LeastSquaresEstimates(planned, [draw.lattice_variance for draw in draws], read), counts


@pytest.mark.parametrize(("cost", "share"), [(0.01, 1.02), (0.0005, 0.9)])
@pytest.mark.parametrize("grain", [0.0, 0.3])
@pytest.mark.parametrize(
    ("mechanism", "family"),
    [
        ("query-smasher", "prefix"),
        ("weighted-residuals", "prefix"),
        ("residual-planner", "marginal"),
        ("hdmm", "prefix"),
    ],
)
def test_model_from_any_plan_is_as_accurate_as_least_squares(mechanism, family, grain, cost, share):
    """Even on tables without dependence it is no worse with little noise, and better with much noise."""
    planned, linear, fitted = plan(Workload(DOMAIN).add(family, degree=2), mechanism), [], []
    for seed in range(6):
        estimates, counts = measure_counts(planned, cost, seed)
        model = from_estimates(estimates, grain=grain)
        for names in combinations("abc", 2):
            true = counts.sum(axis=tuple(i for i, n in enumerate("abc") if n not in names))
            linear.append(relative_error(estimates.marginal(names), true))
            fitted.append(relative_error(model.marginal(names), true))
            assert (model.marginal(names) >= 0).all()
    assert np.mean(fitted) < share * np.mean(linear)


@pytest.mark.parametrize("mechanism", ["query-smasher", "weighted-residuals"])
def test_residual_deviation_is_correct_for_cells_and_groups(mechanism):
    """Uneven groups and weighted axes mix smaller residuals into the residual over groups."""
    planned, cells, groups = plan(Workload(DOMAIN).add("prefix", degree=2), mechanism), [], []
    for seed in range(150):
        estimates, counts = measure_counts(planned, 0.01, seed)
        for pair in combinations("abc", 2):
            true = counts.sum(axis=tuple(i for i, name in enumerate("abc") if name not in pair)).astype(float)
            for own, into in ((every_cell_groups(pair), cells), (UNEVEN, groups)):
                grouped = center(coarsened(true, [own[name] for name in pair]), (0, 1))
                found = _residual(estimates, pair, own)
                into.append(((found.values - grouped) ** 2).mean() / found.deviation**2)
    assert np.mean(cells) == pytest.approx(1, abs=0.06)
    assert np.mean(groups) == pytest.approx(1, abs=0.15)


def every_cell_groups(names):
    return {name: every_cell(DOMAIN[name].size) for name in names}


def test_plan_without_one_ways_is_refused():
    from dpscale.base.errors import PlanError

    planned = plan(Workload(DOMAIN).add_queries(("a",), np.eye(6)[:2] - np.eye(6)[2:4]))
    estimates, _ = measure_counts(planned, 1.0, 0)
    with refused(PlanError):
        from_estimates(estimates)


def test_shrinkage_learnt_from_sample_of_cells_is_accurate(monkeypatch):
    """A law learnt from evenly spaced cells is nearly as accurate as one from all cells."""
    rng = np.random.default_rng(0)
    true = rng.poisson(rng.gamma(0.3, 30, 40_000))
    noisy = true + rng.normal(0, 5, len(true))
    monkeypatch.setattr(shrinkage, "MOST_CELLS", 10**6)
    of_all = np.abs(shrinkage.shrunk_counts(noisy, 5.0) - true).sum()
    monkeypatch.setattr(shrinkage, "MOST_CELLS", 1 << 12)
    of_part = np.abs(shrinkage.shrunk_counts(noisy, 5.0) - true).sum()
    assert of_all < 0.75 * np.abs(noisy - true).sum()
    assert of_part < 1.02 * of_all


def test_james_stein_group_sums_beat_noisy_sums():
    """James-Stein: nearer than the sums for any target, and far nearer for a correct target."""
    rng, variance, true = np.random.default_rng(0), np.linspace(1, 9, 12), np.linspace(40, 90, 12)
    noisy = true + rng.normal(size=(4000, 12)) * np.sqrt(variance)

    def standardised_error(target):
        found = [james_stein(one, target, variance) for one in noisy]
        return np.mean([((one - true) ** 2 / variance).sum() for one in found])

    assert standardised_error(true) < 0.25 * 12  # without the positive part 2 of 12 would be left
    assert standardised_error(true + 3) < 12
    assert 11.8 < standardised_error(true + 1000) < 12.2
    np.testing.assert_array_equal(james_stein(true + 0.01, true, variance), true)


def pair_errors(rng, deviation=40.0):
    """Return errors of pairs relative to their noise, for a uniform grid in which one pair is dependent."""
    sizes, rows = {"a": 3, "b": 5, "c": 4, "d": 4}, 12_000
    ones = {name: np.full(size, rows / size) for name, size in sizes.items()}
    true = {names: np.multiply.outer(ones[names[0]], ones[names[1]]) / rows for names in combinations("abcd", 2)}
    true["c", "d"] += 600 * center(np.eye(4), (0, 1))
    noise = {names: center(rng.normal(0, deviation, table.shape), (0, 1)) for names, table in true.items()}
    measured = {names: NoisyResidual(center(table, (0, 1)) + noise[names], deviation) for names, table in true.items()}
    model = low_order(ones, {name: every_cell(size) for name, size in sizes.items()}, measured)
    return {names: np.abs(model.tables[names] - table).sum() / np.abs(noise[names]).sum()
            for names, table in true.items()}  # fmt: skip


def test_measured_independent_pairs_are_shrunk(monkeypatch):
    """Noise of a twentieth of a cell is removed and a dependence is not; planted fault: a coarser grid of laws."""
    one = pair_errors(np.random.default_rng(0))
    assert one.pop(("c", "d")) < 1.2
    assert np.mean(list(one.values())) < 0.3
    grid = len(shrinkage.GRID)
    for name in ("RATIOS", "WIDTHS", "START"):
        monkeypatch.setattr(shrinkage, name, getattr(shrinkage, name)[:grid].copy())
    other = pair_errors(np.random.default_rng(0))
    other.pop(("c", "d"))
    assert np.mean(list(other.values())) > 0.4


@pytest.mark.parametrize("rare_law", [True, False])
def test_cells_with_a_law_of_their_own_are_separated_from_their_group(rare_law):
    """A level of 40 records determines the other values, or has those of all records."""
    planned = plan(Workload(Domain({"a": 8, "b": 8, "c": 8})).add("marginal", degree=2), "residual-planner")
    separated = 0
    for seed in range(30):
        rng = np.random.default_rng(seed)
        a = rng.choice(8, 20_000, p=[*[0.998 / 7] * 7, 0.002])
        others = rng.choice(8, (20_000, 2), p=[0.3, 0.2, 0.1, 0.1, 0.1, 0.1, 0.05, 0.05])
        if rare_law:
            others[a == 7] = 6, 7
        counts = np.zeros((8, 8, 8), np.int64)
        np.add.at(counts, (a, *others.T), 1)
        groups = from_estimates(measure_counts(planned, 0.2, seed, counts)[0]).groups["a"]
        separated += groups.starts[-1] == 7
    assert separated == 30 if rare_law else separated <= 3


@pytest.mark.parametrize(("cost", "least", "most"), [(1.0, 10, 60), (1e-6, 0, 6)])
def test_sets_without_a_law_are_tables_at_the_level_of_their_precision(cost, least, most):
    """Of 100 sets of fair bits 30 % are tables where the noise is small, and .1 % where it exceeds a cell's count."""
    names = "abcdef"
    planned = plan(Workload(Domain(dict.fromkeys(names, 2))).add("marginal", degree=3), "residual-planner")
    counts, tables = np.full((2,) * 6, 100), 0
    for seed in range(5):
        estimates = measure_counts(planned, cost, seed, counts, tuple(names))[0]
        tables += sum(len(own) == 3 for own in from_estimates(estimates).tables)
    assert least <= tables <= most
