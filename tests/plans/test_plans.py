"""Plans against brute force: the explicit strategy over the whole domain reproduces errors and variances."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from dpscale import Domain, JobError, PlanError, Workload, plan
from dpscale.mechanisms import MECHANISMS, mechanism, query_smasher
from dpscale.mechanisms.contract import PlanningProblem, Tools
from dpscale.plans.measurement_plan import MeasurementPlan
from dpscale.plans.plan import read_plan, write_plan
from tests.messages import refused
from tests.oracles import explicit_strategy, explicit_workload, least_squares_variances


def make_workloads() -> dict[str, Workload]:
    rng = np.random.default_rng(0)
    small = Domain({"a": 4, "b": 5, "c": 2, "d": 3})
    return {
        "marginals": Workload(small).add("marginal", degree=2),
        "prefix": Workload(small).add("prefix", degree=1).add("prefix", degree=3),
        "range": Workload(Domain({"a": 6, "b": 7})).add("range", degree=2),
        "mixed": Workload(small).add("marginal", degree=2).add("prefix", degree=2, weight=3.0).add("range", degree=1),
        "array": Workload(small).add_queries(("a", "b"), rng.random((30, 4, 5)) < 0.3).add("marginal", degree=1),
        "low rank": Workload(small).add_queries(("b", "a"), rng.integers(0, 3, (3, 5, 4)), weights=[1, 5, 0.5]),
        "one attribute": Workload(Domain({"a": 9})).add("range", degree=1),
        "circular": Workload(small).add("circular", degree=2),
        "affine and abs": Workload(small).add("affine", degree=2).add("abs", degree=2, weight=2.0),
        "affine alone": Workload(Domain({"a": 6, "b": 5})).add("affine", degree=2),
        "abs of equal sizes": Workload(Domain({"a": 6, "b": 6})).add("abs", degree=2).add("prefix", degree=1),
        "abs on pairs": Workload(Domain({"a": 2, "b": 2, "c": 3})).add("abs", degree=2),
        "random": Workload(small).add("random", attributes=[("a",), ("a", "c"), ("b", "d")], p=0.4, seed=3),
        "hybrid": Workload(small).add("hybrid", degree=2, numeric=["a", "d"]),
        "all together": Workload(small).add("range", degree=1).add("affine", degree=2).add("prefix", degree=3),
        "weight by set": Workload(small).add("prefix", degree=2, weight=[1, 2, 3, 4, 5, 0.5]),
        "total only": Workload(small).add("marginal", degree=0),
        "gaps between sets": Workload(small).add("prefix", attributes=[("a", "d"), ("c",), ("a", "b", "c")]),
    }


NONADAPTIVE = [name for name in MECHANISMS if name not in ("auto", "aim-grem", "aim-pgm", "mst")]
RESIDUAL = ("query-smasher", "weighted-residuals", "residual-planner", "residual-planner-plus", "weighted-fourier")
JOINT = (
    "array",
    "low rank",
    "affine and abs",
    "affine alone",
    "abs of equal sizes",
    "abs on pairs",
    "random",
    "all together",
)


def make_plan(name: str, mechanism: str, noise: str = "gaussian"):
    """Return the plan, or None for a mechanism that must refuse the workload."""
    if mechanism == "baseline" and name in JOINT:
        with refused(PlanError):
            plan(make_workloads()[name], mechanism, noise=noise)
        return None
    return plan(make_workloads()[name], mechanism, noise=noise)


def make_case(name: str, mechanism: str, noise: str):
    """Return the parameters of a test; the slowest searches for Laplace noise are marked slow."""
    quick = {"hdmm": ("array", "total only"), "weighted-residuals": ("array", "total only")}
    long = noise == "laplace" and mechanism in quick and name not in quick[mechanism]
    long |= noise == "laplace" and mechanism not in ("hdmm", "query-smasher", "weighted-residuals")
    return pytest.param(name, mechanism, noise, marks=[pytest.mark.slow] if long else [])


CASES = [make_case(*one) for one in product(make_workloads(), NONADAPTIVE, ("gaussian", "laplace"))]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "mechanism", "noise"), CASES)
def test_rmse_and_sensitivity_equal_brute_force(name, mechanism, noise):
    workload, built = make_workloads()[name], make_plan(name, mechanism, noise)
    if built is None:
        return
    queries, weights = explicit_workload(workload)
    strategy = explicit_strategy(built, [block.unit_variance for block in built.blocks])
    variances = least_squares_variances(strategy, queries)
    expected = math.sqrt((weights * variances).sum() / len(queries))
    tolerance = 1e-9 if mechanism.startswith("residual") else 1e-5  # as far as the oracle's inverse is exact
    if (mechanism in RESIDUAL and not built.blocks[0].whole) or len(built.blocks) == 1:
        assert built.rmse() == pytest.approx(expected, rel=tolerance)
    else:
        assert built.rmse() >= expected * (1 - 1e-9)
    reach = (strategy**2).sum(axis=0) if noise == "gaussian" else np.abs(strategy * math.sqrt(2)).sum(axis=0)
    assert reach.max() <= 1 + 1e-9
    assert built.query_count == len(queries)
    assert built.bound <= built.error


@pytest.mark.parametrize("mechanism", NONADAPTIVE)
def test_query_variance_equals_brute_force(mechanism):
    rng = np.random.default_rng(1)
    built = plan(make_workloads()["mixed"], mechanism)
    query = rng.normal(size=(5, 4))
    full = np.einsum("ba,c,d->abcd", query, np.ones(2), np.ones(3)).reshape(1, -1)
    strategy = explicit_strategy(built, [block.unit_variance for block in built.blocks])
    expected = least_squares_variances(strategy, full)[0]
    found = built.variance(("b", "a"), query)
    exact = mechanism in RESIDUAL or len(built.blocks) == 1
    assert found == pytest.approx(expected, rel=1e-6) if exact else found >= expected * (1 - 1e-9)


def test_identity_averages_overlapping_marginals():
    """Two marginals of equal noise share a 1-way marginal: its variance is below that from either of them."""
    domain = Domain({"a": 4, "b": 3, "c": 5})
    built = plan(Workload(domain).add("marginal", attributes=[("a", "b"), ("a", "c")]), "identity")
    alone = min(block.unit_variance * n for block, n in zip(built.blocks, (3, 5), strict=True))
    assert built.variance(("a",), np.eye(4)[0]) < alone


@pytest.mark.parametrize("name", list(make_workloads()))
def test_query_smasher_error_is_between_restricted_forms_and_weighted(name):
    ours = plan(make_workloads()[name], "query-smasher").rmse()
    for other in set(RESIDUAL) - {"query-smasher", "weighted-residuals"}:
        assert ours <= plan(make_workloads()[name], other).rmse() * (1 + 1e-6)
    assert plan(make_workloads()[name], "weighted-residuals").rmse() <= ours * (1 + 1e-6)


@pytest.mark.parametrize(
    ("family", "size", "paper", "certified"),
    [
        ("marginal", 10, 23.48, None),
        ("prefix", 10, 33.70, 33.6934),
        ("range", 10, 41.08, 41.0759),
        ("marginal", 20, 25.70, None),
        ("prefix", 20, 49.51, None),
        ("range", 20, 63.32, None),
        ("circular", 10, 39.77, None),
        ("circular", 20, 63.01, None),
        ("affine", 10, 28.25, 28.0097),
        ("affine", 20, 35.71, 35.1642),
        ("abs", 10, 35.85, 30.1029),
        ("abs", 20, 39.49, 37.1702),
    ],
)
def test_table_4_of_query_smasher(family, size, paper, certified):
    domain = Domain({f"x{i}": size for i in range(40)})
    one_way = "prefix" if family in ("affine", "abs") else family
    built = plan(Workload(domain).add(one_way, degree=1).add(family, degree=2), "query-smasher")
    assert built.rmse() <= paper + 0.005
    assert built.optimality_gap < 1e-5
    if certified:
        assert built.rmse() == pytest.approx(certified, abs=2e-4)


CPS = Domain({"n0": 50, "n1": 100, "c0": 7, "c1": 4, "c2": 2})


@pytest.mark.parametrize(
    ("degrees", "certified", "count"),
    [((1,), 3.13501, 163), ((2,), 6.19180, 7_000), ((3,), 7.88598, 72_556), ((1, 2, 3), 8.14001, 79_719)],
)
def test_table_2_of_query_smasher(degrees, certified, count):
    workload = Workload(CPS)
    for degree in degrees:
        workload.add("hybrid", degree=degree, numeric=["n0", "n1"])
    built = plan(workload, "query-smasher")
    assert built.query_count == count
    assert built.rmse() == pytest.approx(certified, abs=5e-5)
    assert built.optimality_gap < 5e-6


@pytest.mark.parametrize(("family", "certified"), [("prefix", 56.533), ("abs", 50.437)])
def test_table_8_of_query_smasher(family, certified):
    """Every attribute set has a weight, drawn as in the code of the paper."""
    drawn = np.random.RandomState(42).randint(1, 6, 40 + 780).astype(float)
    workload = Workload(Domain({f"x{i}": 10 for i in range(40)})).add("prefix", degree=1, weight=drawn[:40].tolist())
    built = plan(workload.add(family, degree=2, weight=drawn[40:].tolist()), "query-smasher")
    assert built.rmse() == pytest.approx(certified, abs=1e-3)


def test_optimum_with_unweighted_cells_is_certified():
    """abs on 24 × 24: many cells have weight zero, where a plain fixed point stops at a gap of 0.01."""
    built = plan(Workload(Domain({"a": 24, "b": 24})).add("abs", degree=2))
    assert built.optimality_gap < 2e-3
    assert built.rmse() < 1.001 * built.bound_all


def test_marginals_have_no_rounding_error():
    built = plan(Workload(Domain({"a": 7, "b": 9, "c": 3})).add("marginal", degree=3))
    assert built.optimality_gap < 1e-12
    assert built.rmse() == pytest.approx(plan(built.workload, "residual-planner").rmse(), rel=1e-12)


def test_bound_of_product_form_is_below_joint_optimum():
    """With a low limit for joint subworkloads, the bound is still valid for the joint solution."""
    from dpscale.optimize import residual_problems

    domain = Domain({"a": 6, "b": 7})
    workload = Workload(domain).add("marginal", degree=2).add("prefix", degree=2)
    whole = plan(workload, "query-smasher")
    limit, residual_problems.JOINT_CELLS = residual_problems.JOINT_CELLS, 1
    try:
        product = plan(workload, "query-smasher")
    finally:
        residual_problems.JOINT_CELLS = limit
    assert product.bound <= whole.error
    assert product.error >= whole.error * (1 - 1e-6)
    assert product.optimality_gap > whole.optimality_gap


def test_query_outside_span_is_refused():
    built = plan(Workload(Domain({"a": 4, "b": 5})).add("marginal", degree=1))
    assert built.variance(("a", "b"), np.ones((4, 5))) > 0  # the total lies in the span
    with refused(PlanError):
        built.variance(("a", "b"), np.eye(4, 5))


def test_strategy_is_normalised_or_refused():
    built = plan(Workload(Domain({"a": 4, "b": 5})).add("prefix", degree=2))
    assert (built.strategy(("a", "b")) ** 2).sum(axis=0).max() == pytest.approx(1.0)
    with pytest.raises(PlanError):
        plan(Workload(Domain({"a": 4, "b": 5})).add("prefix", degree=1)).strategy(("a", "b"))


def test_auto_selects_smallest_error_and_notes_all():
    workload = make_workloads()["all together"]
    built = plan(workload, "auto")
    tried = [name for name in NONADAPTIVE if name != "baseline"]
    assert built.error == min(make_plan("all together", name).error for name in tried)
    for name in tried:
        assert name in built.notes[-1]


def test_auto_states_the_bound_over_all_mechanisms_whichever_wins(tmp_path):
    workload = make_workloads()["prefix"]
    built, default = plan(workload, "auto"), plan(workload)
    assert built.mechanism != default.mechanism
    assert built.floor == min(default.floor, built.error) > 0
    write_plan(tmp_path, built)
    assert read_plan(tmp_path, workload).floor == built.floor


def test_auto_skips_refusing_mechanism(monkeypatch):
    def refuse(question, options, tools):
        raise PlanError("workload", "too much", "less", "ask less")

    monkeypatch.setattr(query_smasher, "MECHANISM", replace(query_smasher.MECHANISM, plan=refuse))
    built = plan(make_workloads()["prefix"], "auto")
    assert built.mechanism == "hdmm"
    assert "query-smasher does not take it" in built.notes[-1]


def test_joint_family_residuals_of_equal_sizes_share_signature():
    """The 1-way residuals of affine are one problem, whether an attribute is first or second in a set."""
    from dpscale.workload import decompose

    subs = decompose(Workload(Domain({f"x{i}": 9 for i in range(5)})).add("affine", degree=2))
    assert len({sub.signature() for sub in subs if len(sub.attributes) == 1}) == 1


def test_equal_problems_are_solved_once():
    solved = []

    def count_items(function, items):
        items = list(items)
        solved.append(len(items))
        return [function(item) for item in items]

    plan(Workload(Domain({f"x{i}": 12 for i in range(20)})).add("prefix", degree=3), "query-smasher", each=count_items)
    assert solved == [1, 1]  # its optimum, and that optimum in integers


@pytest.mark.parametrize("mechanism", ["query-smasher", "residual-planner", "hdmm"])
def test_zero_weight_query_does_not_replace_span(mechanism):
    """Regression test: its longer row was chosen for the integer basis instead of the weighted query."""
    heavy, light = np.zeros(8), np.zeros(8)
    heavy[:4], light[[0, 1, 2, 6]] = 900, 1
    workload = Workload(Domain({"a": 8})).add_queries(("a",), np.stack([heavy, light]), [0.0, 1.0])
    built = plan(workload, mechanism)
    assert built.error == pytest.approx(built.variance(("a",), light), rel=1e-6)


def test_zero_queries_and_vanishing_weights_are_refused():
    domain, heavy, light = Domain({"a": 8}), np.zeros(8), np.zeros(8)
    heavy[:4], light[[0, 1, 2, 6]] = 900, 1
    with refused(JobError):
        plan(Workload(domain).add_queries(("a",), np.zeros((2, 8))))
    with refused(PlanError):
        plan(Workload(domain).add_queries(("a",), np.stack([heavy, light]), [1e-30, 1.0]))


def test_a_measurement_plan_has_few_members():
    """Fixed and adaptive plans have all of them, and at most twelve."""
    members = {name for name in vars(MeasurementPlan) if not name.startswith("_")}
    assert len(members) <= 12
    problem = PlanningProblem(Workload(Domain({"a": 2, "b": 3})).add("marginal", degree=2))
    for name in ("identity", "aim-grem"):
        named = mechanism(name)
        made = named.plan(problem, named.Options(), Tools())
        assert not [member for member in members if not hasattr(made, member)]
        assert (made.rounds is None) == (made.evidence_plan is not None) == named.data_independent
