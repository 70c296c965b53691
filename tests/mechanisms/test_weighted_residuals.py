"""Weighted residuals: figures of the design notes, brute force on small domains, exact integer strategies, valid
bounds.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

import dpscale as dp
from dpscale import Domain, Workload, plan
from dpscale.base.errors import PlanError
from dpscale.domain.public_totals import PublicTotal
from dpscale.mechanisms import weighted_residuals
from dpscale.optimize.axis_weights import along_curve, search, unpack
from dpscale.optimize.lower_bounds import exact_floor, floor, svd_of_gram
from dpscale.optimize.residual_grams import demands_of
from dpscale.optimize.weight_objective import WeightObjective
from dpscale.plans.factor import Factor
from dpscale.plans.plan import content_of, read_plan, write_plan
from dpscale.reconstruction.estimates import LeastSquaresEstimates
from dpscale.workload import FAMILIES
from dpscale.workload.residual import centred, nearest_centred, profile_of, whole_weights
from tests.messages import refused
from tests.oracles import explicit_strategy, explicit_workload, least_squares_variances
from tests.runs.small import write_job
from tests.runs.test_run import encoded_table

OURS, PLAIN = "weighted-residuals", "query-smasher"


def make_cube(size, attributes, *requests):
    made = Workload(Domain({f"x{i}": size for i in range(attributes)}))
    for family, degree in requests:
        made.add(family, degree=degree)
    return made


def make_domain(*given):
    return Domain({f"x{i}": size for i, size in enumerate(given)})


@pytest.mark.parametrize(
    ("workload", "figure", "before"),
    [
        (make_cube(10, 40, ("prefix", 3)), 127.266, 133.253),
        (make_cube(10, 40, ("range", 1), ("affine", 2), ("prefix", 3)), 127.238, 133.212),
        (make_cube(10, 40, ("prefix", 1), ("prefix", 2)), 32.687, 33.693),
        (make_cube(20, 40, ("prefix", 1), ("prefix", 2)), 48.257, 49.382),
        (make_cube(50, 40, ("prefix", 1), ("prefix", 2)), 72.637, 73.801),
        (make_cube(10, 10, ("prefix", 1), ("prefix", 2)), 9.4207, 9.7831),
        (make_cube(10, 40, ("range", 1), ("range", 2)), 40.879, 41.076),
        (make_cube(20, 40, ("range", 1), ("range", 2)), 63.104, 63.307),
        (make_cube(10, 3, ("prefix", 3)), 3.7683, 4.2419),
        (make_cube(10, 3, ("prefix", 0), ("prefix", 1), ("prefix", 2), ("prefix", 3)), 3.8361, 4.2189),
        (make_cube(10, 10, ("marginal", 2)), 5.84614, 5.84614),
    ],
)  # fmt: skip
def test_figures_of_notes_are_reproduced(workload, figure, before):
    ours = plan(workload, OURS)
    assert ours.rmse() == pytest.approx(figure, rel=2e-5)
    assert plan(workload, PLAIN).rmse() == pytest.approx(before, rel=2e-5)
    assert ours.optimality_gap < 1e-5
    assert ours.stationary < 1e-5


PAIRS = Workload(make_domain(4, 5, 3, 4)).add("affine", attributes=[("x0", "x1"), ("x2", "x3")]).add("prefix", degree=1)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("workload", "within"),
    [
        (make_cube(4, 3, ("prefix", 2)), 0.0025),
        (make_cube(4, 4, ("prefix", 3)), 0.003),
        (make_cube(3, 5, ("prefix", 3)), 0.0025),
        (make_cube(6, 3, ("prefix", 2)), 0.004),
        (make_cube(4, 4, ("range", 2)), 0.001),
        (make_cube(5, 3, ("prefix", 1)), 1e-6),
        (Workload(make_domain(3, 5, 8)).add("prefix", degree=2), 0.003),
        (Workload(make_domain(2, 5, 6)).add("range", degree=2).add("range", degree=1), 0.004),
        (Workload(make_domain(2, 5, 6)).add("prefix", degree=2).add("marginal", degree=3), 0.001),  # unsplit
        (Workload(make_domain(9)).add("prefix", degree=1), 1e-6),
        (Workload(make_domain(12)).add("range", degree=1), 1e-6),
        (Workload(make_domain(7)).add("prefix", degree=1).add("marginal", degree=1), 1e-5),
        (Workload(make_domain(6, 5)).add("prefix", degree=2), 1e-6),
        (Workload(make_domain(4, 4)).add("affine", degree=2), 0.01),
        (Workload(make_domain(4, 4)).add("abs", degree=2), 0.01),
        (Workload(make_domain(4, 4)).add("random", degree=2), 0.01),
        (make_cube(4, 3, ("affine", 2)), 0.005),
        (PAIRS, 0.005),
    ],
)  # fmt: skip
def test_error_is_near_optimum_of_all_strategies(workload, within):
    """The oracle is the optimum over all matrix mechanisms, solved explicitly."""
    least, made = math.sqrt(exact_floor(workload) / workload.query_count), plan(workload, OURS)
    assert least * (1 - 1e-7) <= made.rmse() <= least * (1 + within)
    assert least * (1 - 1e-5) <= made.bound_all <= least * (1 + 1e-6)  # that of joint queries is a dual bound


def test_lower_bound_is_below_optimum():
    for workload in (make_cube(4, 3, ("prefix", 2)), make_cube(3, 5, ("prefix", 3)), make_cube(4, 4, ("range", 2)),
                     Workload(make_domain(3, 5, 8)).add("hybrid", degree=2, numeric=["x1", "x2"]),
                     make_cube(4, 3, ("prefix", 2), ("range", 1), ("affine", 2))):  # fmt: skip
        bound = floor(workload, along_curve(demands_of(workload)))
        assert 0.5 * exact_floor(workload) < bound <= exact_floor(workload) * (1 + 1e-9)
    whole = make_cube(8, 3, ("prefix", 3))  # one set: exact
    assert floor(whole, along_curve(demands_of(whole))) == pytest.approx(exact_floor(whole), rel=1e-7)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize("seed", range(6))
def test_weighted_error_is_at_most_plain_error(seed, noise):
    rng = np.random.default_rng(seed)
    workload = Workload(make_domain(*rng.integers(2, 7, 4)))
    for _ in range(int(rng.integers(1, 4))):
        family = str(rng.choice(["prefix", "range", "marginal", "circular", "affine", "abs"]))
        degree = 2 if family in ("affine", "abs") else int(rng.integers(1, 4))
        workload.add(family, degree=degree, weight=rng.uniform(0.1, 5, math.comb(4, degree)).tolist())
    plain, ours = plan(workload, PLAIN, noise=noise), plan(workload, OURS, noise=noise)
    assert ours.error <= plain.error * (1 + 1e-6)
    assert ours.bound <= ours.error


def make_mixed_workload():
    made = Workload(Domain({"a": 4, "b": 5, "c": 3})).add("prefix", degree=2).add("range", attributes=[("a",)])
    return made.add("marginal", degree=1, weight=2.0)


SPLIT = make_cube(5, 7, ("prefix", 2), ("range", 1))  # too many cells to be measured whole


@pytest.mark.parametrize(
    "workload",
    [SPLIT, make_cube(4, 6, ("prefix", 3)), make_cube(4, 6, ("affine", 2), ("prefix", 1)), make_mixed_workload()],
)
def test_strategies_are_exactly_orthogonal_to_weights(workload):
    """In integers; every attribute has one set of weights in the plan, with a power of two as sum."""
    own: dict = {}
    for block in plan(workload, OURS).blocks:
        for factor in block.factors:
            rows = factor.explicit().reshape(-1, *factor.shape)
            for axis, weights in enumerate(factor.weights or ()):
                if factor.spaces is None:
                    assert is_centred(np.moveaxis(rows, axis + 1, -1), weights)
        for name, weights in block.weights:
            assert own.setdefault(name, weights) == weights
            assert sum(weights).bit_count() == 1


def is_centred(rows, weights) -> bool:
    """Return whether rows are centred under the weights, in Python integers without overflow."""
    return not (rows.astype(object) @ np.array(weights, dtype=object)).any()


def test_centring_is_exact_and_planted_error_is_detected():
    rng = np.random.default_rng(0)
    weights = whole_weights(rng.dirichlet(np.ones(7)), 20)
    assert sum(weights) == 1 << 20
    rows = centred(rng.integers(-(2**30), 2**30, (5, 7)), weights)
    assert is_centred(rows, weights)
    assert [sum(int(v) * w for v, w in zip(row, weights, strict=True)) for row in rows] == [0] * 5
    rows[2, 3] += 1
    assert not is_centred(rows, weights)


@pytest.mark.parametrize("size", [3, 4, 5, 8, 9, 30, 400])
def test_nearest_centred_rows_differ_by_few_units(size):
    """The rows are nearly centred, as those of an optimum are; weights of one sign and of both signs."""
    rng = np.random.default_rng(size)
    for profile in (
        rng.dirichlet(np.full(size, 5.0)),
        rng.normal(1 / size, 0.2 / size, size),
        rng.dirichlet(np.ones(size)),
    ):
        for bits in (14, 20):
            weights = whole_weights(profile / profile.sum(), bits)
            rows = rng.normal(0, 2.0**25, (6, size))
            rows -= np.outer(rows @ profile_of(weights, size), profile_of(weights, size)) / sum(
                u * u for u in profile_of(weights, size)
            )
            rounded = np.rint(rows).astype(np.int64)
            moved = nearest_centred(rounded, weights)
            assert is_centred(moved, weights)
            assert np.abs(moved - rounded).max() <= 6 * 2 ** (bits / (min(size, 8) - 1)) + math.sqrt(size)


@pytest.mark.parametrize(
    "workload", [make_mixed_workload(), make_cube(3, 4, ("prefix", 2), ("affine", 2), ("range", 1))]
)
@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_gradient_equals_finite_differences(workload, noise):
    demands = demands_of(workload)
    weighed = WeightObjective(demands, noise, 2600, 1e-11)
    rng = np.random.default_rng(1)
    at = [rng.dirichlet(np.full(size, 9.0)) for size in demands.sizes]
    slopes = weighed(at).gradient()
    for kind, size in enumerate(demands.sizes):
        move = rng.normal(size=size)
        move -= move.mean()
        ends = []
        for step in (1e-5, -1e-5):
            there = list(at)
            there[kind] = at[kind] + step * move
            ends.append(weighed(there).value)
        assert (ends[0] - ends[1]) / 2e-5 == pytest.approx(float(slopes[kind] @ move), rel=1e-3)


def test_search_value_equals_plan_error():
    workload = make_cube(5, 6, ("prefix", 2), ("range", 1))
    found = search(demands_of(workload), "gaussian", along_curve(demands_of(workload)))
    assert plan(workload, OURS).error == pytest.approx(found.value**2, rel=1e-6)
    assert found.stationary < 1e-4
    assert np.ptp(found.profiles[0]) > 0.01


def draw_estimates(made, counts, rng):
    """Return the estimates from one draw of real-valued noise at the planned scale."""
    names, values = made.domain.names, []
    for block in made.blocks:
        table = counts.sum(axis=tuple(i for i, name in enumerate(names) if name not in block.attributes))
        if block.joint:
            table = block.factors[0].explicit() @ table.reshape(-1)
        else:
            for axis, factor in enumerate(block.factors):
                table = np.moveaxis(np.tensordot(factor.explicit().astype(float), table, axes=(1, axis)), 0, axis)
        values.append(table + rng.normal(0, math.sqrt(block.unit_variance), table.shape))
    return LeastSquaresEstimates(made, [block.unit_variance for block in made.blocks], values.__getitem__)


def draw_z_scores(made, draws=400):
    """Return the z-scores of all answers, one row per draw."""
    rng, found = np.random.default_rng(5), []
    counts = rng.poisson(30, made.domain.shape(made.domain.names)).astype(float)
    for _ in range(draws):
        estimates, row = draw_estimates(made, counts, rng), []
        for part in made.workload.parts:
            for names in part.sets:
                table = counts.sum(axis=tuple(i for i, n in enumerate(made.domain.names) if n not in names))
                answers, errors = estimates.part_answers(part, names)
                row.append(((answers - part.answers(names, table)) / errors).reshape(-1))
        found.append(np.concatenate(row))
    return np.array(found)


FOUR = Domain({"a": 4, "b": 5, "c": 3, "d": 18})
SEVERAL = Workload(FOUR).add("prefix", degree=3).add("range", attributes=[("a",), ("b", "d")]).add("circular", degree=1)


def is_standard_normal(z):
    """Return whether means are 0 and variances 1, at p > 1e-6 for all answers together."""
    draws, answers = z.shape
    limit = stats.norm.isf(1e-6 / 4 / answers)
    spread = stats.chi2.ppf([1e-6 / 4 / answers, 1 - 1e-6 / 4 / answers], draws)
    squares = (z**2).sum(axis=0)
    return (
        abs(z.mean(axis=0)).max() * math.sqrt(draws) < limit and spread[0] < squares.min() <= squares.max() < spread[1]
    )


@pytest.mark.slow
def test_answers_are_unbiased_with_stated_variance():
    joint = Workload(FOUR).add("affine", attributes=[("a", "b")]).add("prefix", degree=2)
    for workload, weighted in ((SEVERAL, True), (joint, False)):  # joint queries have one strategy on all cells
        made = plan(workload, OURS)
        assert bool(made.accuracy.weights) is weighted
        assert is_standard_normal(draw_z_scores(made))


def test_planted_wrong_weights_are_detected():
    """One attribute is read as if its weights were uniform."""
    made = plan(SEVERAL, OURS)
    wrong = [block if block.joint else replace(block, factors=tuple(
             drop_weights(f) if name == "d" else f for name, f in zip(block.attributes, block.factors, strict=True)))
             for block in made.blocks]  # fmt: skip
    assert not is_standard_normal(draw_z_scores(replace(made, blocks=tuple(wrong)), 100))


def drop_weights(factor):
    return Factor(factor.kind, factor.shape, factor.matrix)


def test_query_variance_equals_brute_force():
    made, rng = plan(SEVERAL, OURS), np.random.default_rng(3)
    strategy = explicit_strategy(made, [block.unit_variance for block in made.blocks])
    query = rng.normal(size=(5, 18))
    full = np.einsum("bd,a,c->abcd", query, np.ones(4), np.ones(3)).reshape(1, -1)
    assert made.variance(("b", "d"), query) == pytest.approx(least_squares_variances(strategy, full)[0], rel=1e-7)


def test_unsplit_affine_answers_queries_but_no_marginal():
    """The joint strategy measures x + y ≤ c and no single cell, so that a marginal is refused."""
    made = plan(Workload(make_domain(5, 4)).add("affine", degree=2), OURS)
    level = np.add.outer(np.arange(5), np.arange(4))
    assert made.variance(("x0", "x1"), (level <= 3).astype(float)) < 10
    with refused(PlanError):
        made.variance(("x0", "x1"), np.eye(20)[3].reshape(5, 4))
    with refused(PlanError):
        LeastSquaresEstimates(made, [1.0], lambda i: np.zeros(made.blocks[i].rows)).marginal(("x0",))


def test_disjoint_unsplit_sets_agree_with_brute_force(monkeypatch):
    monkeypatch.setattr(weighted_residuals, "LISTED_CELLS", math.inf)  # the queries are few enough for one strategy
    workload = Workload(make_domain(8, 8, 8, 8)).add("affine", attributes=[("x0", "x1"), ("x2", "x3")])
    made, plain = plan(workload, OURS), plan(workload, PLAIN)
    assert [note.startswith("measured unsplit") for note in made.notes][:2] == [True, True]
    assert made.error < 0.9 * plain.error
    assert made.accuracy.total_error(workload) == pytest.approx(made.error, rel=1e-6)
    queries = [query for query, _ in zip(explicit_workload(workload)[0], range(30), strict=False)]
    assert len(queries) == 30
    assert is_standard_normal(draw_z_scores(made, draws=200))


def test_plan_round_trips_through_file(tmp_path):
    for workload in (SEVERAL, Workload(make_domain(4, 5)).add("affine", degree=2)):
        made = plan(workload, OURS)
        write_plan(tmp_path, made)
        again = read_plan(tmp_path, workload)
        assert content_of(again) == content_of(made)
        assert again.accuracy.total_error(workload) == made.accuracy.total_error(workload)
        assert (again.stationary, again.bound_all) == (made.stationary, made.bound_all)


def test_packed_search_round_trips_and_damaged_one_is_refused():
    demands = demands_of(SEVERAL)
    packed = search(demands, "gaussian", along_curve(demands)).pack()
    assert unpack(packed, demands.sizes) is not None
    for wrong in (packed[1:], packed[:-1], packed * 2, packed[None], np.zeros(3), -packed):
        assert unpack(wrong, demands.sizes) is None


def test_default_profile_is_uniform():
    np.testing.assert_array_equal(profile_of(None, 4), np.full(4, 0.25))
    np.testing.assert_array_equal(profile_of((1, 3), 2), [0.25, 0.75])


def test_marginals_and_circular_ranges_have_no_weights():
    for family in ("marginal", "circular"):
        made = plan(make_cube(6, 5, (family, 2)), OURS)
        assert not made.accuracy.weights
        assert made.rmse() == pytest.approx(plan(made.workload, PLAIN).rmse(), rel=1e-9)


def test_error_is_at_most_hdmm_on_small_domains():
    for workload in (make_cube(4, 3, ("prefix", 2)), make_cube(3, 4, ("marginal", 2)), make_mixed_workload(),
                     Workload(make_domain(5, 4)).add("abs", degree=2).add("prefix", degree=1)):  # fmt: skip
        assert plan(workload, OURS).rmse() <= plan(workload, "hdmm").rmse() * 1.005


def test_maxent_of_weighted_run_is_consistent_and_accurate(place, plots):
    """Weighted prefix measurements give tables of pairs that agree on common attributes."""
    asks = [{"family": "prefix", "degree": 2}]
    estimates = {"method": "maxent", "agree": True}
    path = write_job(place, workload=asks, mechanism={"name": OURS}, reconstruct=estimates)
    release = dp.run(path, place / "run")
    assert dp.Release.open(place / "run").plan.accuracy.weights
    assert "weight of a cell" in (place / "run" / "report.html").read_text()
    pairs = {names: release.marginal(names) for names in (("age", "sex"), ("age", "income"))}
    ages = [table.sum(axis=1) for table in pairs.values()]
    np.testing.assert_allclose(ages[0], ages[1], rtol=1e-4)
    truth = np.bincount(encoded_table().age, minlength=8)
    assert np.abs(ages[0] - truth).sum() < 0.2 * truth.sum()
    assert min(table.min() for table in pairs.values()) >= 0


def test_notes_mention_weights_only_if_present():
    """Under Laplace noise the sets are measured unsplit here, and the plan has no weights."""
    made = plan(make_cube(6, 6, ("prefix", 2)), OURS, noise="laplace")
    assert any("weights of the axes" in note for note in made.notes) == bool(made.accuracy.weights)
    assert made.error <= plan(made.workload, "identity", noise="laplace").error * (1 + 1e-9)


def test_weighted_residuals_is_default_mechanism():
    assert plan(make_mixed_workload()).mechanism == OURS
    assert dp.plan(make_mixed_workload()).error == plan(make_mixed_workload(), OURS).error


PRODUCTS = [
    ((10, 10, 10), [("prefix", 2)]),
    ((5, 6, 7, 4), [("range", 2), ("prefix", 1)]),
    ((3, 4, 5, 6, 5), [("marginal", 2), ("prefix", 1)]),
]


@pytest.mark.parametrize(("sizes", "parts"), PRODUCTS)
def test_bound_of_products_is_near_the_optimum_up_to_2048_cells(sizes, parts):
    """The bound by axes alone is 2 to 12 % low there."""
    workload = Workload(make_domain(*sizes))
    for family, degree in parts:
        workload.add(family, degree=degree)
    made, least = plan(workload, OURS), exact_floor(workload)
    assert least * 0.99 <= made.floor <= least * (1 + 1e-6)


@pytest.mark.parametrize("joint", ["weight", "weights", "zeros"])
def test_joint_queries_without_weight_are_planned_with_a_bound(joint):
    workload = Workload(make_domain(16, 16, 16, 16)).add("marginal", degree=2)
    if joint == "weight":
        workload.add("affine", attributes=[("x0", "x1")], weight=0.0)
    elif joint == "weights":
        workload.add("affine", attributes=[("x0", "x1"), ("x2", "x3")], weight=[1.0, 0.0])
    else:
        workload.add_queries(("x0", "x1"), np.zeros((2, 16, 16)))
    made = plan(workload, OURS)
    assert 0 < made.bound_all <= made.rmse()
    assert any("groups of joint sets" in note for note in made.notes)


@pytest.mark.parametrize(("sizes", "families"), [((64,), ["prefix"]), ((6, 7), ["range"]), ((4, 3, 5), ["affine"]),
                                                 ((16,) * 4, ["prefix", "marginal"])])  # fmt: skip
def test_gaussian_optimum_bounds_the_error_of_pure_epsilon(sizes, families):
    """A strategy of L1 sensitivity 1 has L2 sensitivity at most 1, and Laplace noise has variance 2."""
    workload = Workload(make_domain(*sizes))
    for family in families:
        workload.add(family, degree=min(2, len(sizes)))
    made, gaussian = plan(workload, OURS, noise="laplace"), plan(workload, OURS)
    assert made.floor == pytest.approx(2 * gaussian.floor, rel=1e-3)  # each is the value of a dual that ends at its gap
    assert made.bound_all <= made.rmse()
    assert any("Gaussian noise, which bounds pure epsilon too" in note for note in made.notes)
    if len(sizes) == 1:  # on one attribute it is above the singular value bound: 8.87 and 8.62 in the paper's unit
        bound = svd_of_gram(FAMILIES["prefix"].gram(64))
        assert math.sqrt(made.floor / (2 * bound)) == pytest.approx(8.871 / 8.62, rel=1e-3)


def test_no_bound_is_stated_beside_public_totals():
    """Known residuals cost nothing, so that the optimum of the whole workload is no bound."""
    known = PublicTotal(("a",), np.full(4, 100, np.int64), "external", "rows", "totals.csv")
    domain = Domain(Domain({"a": 4, "b": 5}).axes, public_totals=(known,))
    made = plan(Workload(domain).add("prefix", degree=2), OURS)
    assert made.bound_all is None
    assert "bound over all mechanisms: not known beside public totals or bounded totals of numbers" in made.notes


def test_note_states_that_no_bound_is_known():
    """Sets of joint families above 512 cells have no bound, if no product family is asked and the queries are many."""
    made = plan(Workload(make_domain(*(24,) * 6)).add("affine", degree=2), OURS)
    assert made.bound_all is None
    assert "bound over all mechanisms: not known for these queries" in made.notes
