"""Plans against brute force: the assembled strategy over the whole domain reproduces every figure."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from dpscale import Domain, JobError, PlanError, Workload, plan
from dpscale.mechanisms import MECHANISMS, query_smasher
from tests.oracles import explicit_strategy, explicit_workload, least_squares_variances


def workloads() -> dict[str, Workload]:
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


BEFOREHAND = [name for name in MECHANISMS if name not in ("auto", "aim-grem", "aim-pgm", "mst")]
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


def measurement_plan(name: str, mechanism: str, noise: str = "gaussian"):
    """The plan, or None where the mechanism says that it does not take the workload; which it may say of few."""
    pure = mechanism == "eigen-design" and noise == "laplace"
    if pure or (mechanism == "baseline" and name in JOINT):
        with pytest.raises(PlanError, match="Gaussian" if pure else "not a product of one-way families"):
            plan(workloads()[name], mechanism, noise=noise)
        return None
    return plan(workloads()[name], mechanism, noise=noise)


def case(name: str, mechanism: str, noise: str):
    """One of every workload by every mechanism and noise; those that take HDMM's search the longest are slow ones."""
    long = (mechanism, noise) == ("hdmm", "laplace") and name not in ("mixed", "array", "total only")
    return pytest.param(name, mechanism, noise, marks=[pytest.mark.slow] if long else [])


CASES = [case(*one) for one in product(workloads(), BEFOREHAND, ("gaussian", "laplace"))]


@pytest.mark.parametrize(("name", "mechanism", "noise"), CASES)
def test_plan_figures_are_those_of_brute_force(name, mechanism, noise):
    workload, made = workloads()[name], measurement_plan(name, mechanism, noise)
    if made is None:
        return
    queries, weights = explicit_workload(workload)
    strategy = explicit_strategy(made, [block.unit_variance for block in made.blocks])
    variances = least_squares_variances(strategy, queries)
    expected = math.sqrt((weights * variances).sum() / len(queries))
    tolerance = 1e-9 if mechanism.startswith("residual") else 1e-5  # as far as the oracle's inverse is exact
    if (mechanism in RESIDUAL and not made.blocks[0].whole) or len(made.blocks) == 1:
        assert made.rmse() == pytest.approx(expected, rel=tolerance)
    else:
        assert made.rmse() >= expected * (1 - 1e-9)
    reach = (strategy**2).sum(axis=0) if noise == "gaussian" else np.abs(strategy * math.sqrt(2)).sum(axis=0)
    assert reach.max() <= 1 + 1e-9
    assert made.query_count == len(queries)
    assert made.bound <= made.error


@pytest.mark.parametrize("mechanism", BEFOREHAND)
def test_one_querys_variance_is_that_of_brute_force(mechanism):
    rng = np.random.default_rng(1)
    made = plan(workloads()["mixed"], mechanism)
    query = rng.normal(size=(5, 4))
    full = np.einsum("ba,c,d->abcd", query, np.ones(2), np.ones(3)).reshape(1, -1)
    strategy = explicit_strategy(made, [block.unit_variance for block in made.blocks])
    expected = least_squares_variances(strategy, full)[0]
    found = made.variance(("b", "a"), query)
    exact = mechanism in RESIDUAL or len(made.blocks) == 1
    assert found == pytest.approx(expected, rel=1e-6) if exact else found >= expected * (1 - 1e-9)


def test_identity_averages_what_overlaps():
    """Two marginals of equal noise that share a 1-way: its variance is below that from either alone."""
    domain = Domain({"a": 4, "b": 3, "c": 5})
    made = plan(Workload(domain).add("marginal", attributes=[("a", "b"), ("a", "c")]), "identity")
    alone = min(block.unit_variance * n for block, n in zip(made.blocks, (3, 5), strict=True))
    assert made.variance(("a",), np.eye(4)[0]) < alone


@pytest.mark.parametrize("name", list(workloads()))
def test_query_smasher_is_never_above_the_restricted_forms_nor_below_weighted_residuals(name):
    ours = plan(workloads()[name], "query-smasher").rmse()
    for other in set(RESIDUAL) - {"query-smasher", "weighted-residuals"}:
        assert ours <= plan(workloads()[name], other).rmse() * (1 + 1e-6)
    assert plan(workloads()[name], "weighted-residuals").rmse() <= ours * (1 + 1e-6)


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
    made = plan(Workload(domain).add(one_way, degree=1).add(family, degree=2), "query-smasher")
    assert made.rmse() <= paper + 0.005
    assert made.optimality_gap < 1e-5
    if certified:
        assert made.rmse() == pytest.approx(certified, abs=2e-4)


CPS = Domain({"n0": 50, "n1": 100, "c0": 7, "c1": 4, "c2": 2})


@pytest.mark.parametrize(
    ("degrees", "certified", "count"),
    [((1,), 3.13501, 163), ((2,), 6.19180, 7_000), ((3,), 7.88598, 72_556), ((1, 2, 3), 8.14001, 79_719)],
)
def test_table_2_of_query_smasher(degrees, certified, count):
    workload = Workload(CPS)
    for degree in degrees:
        workload.add("hybrid", degree=degree, numeric=["n0", "n1"])
    made = plan(workload, "query-smasher")
    assert made.query_count == count
    assert made.rmse() == pytest.approx(certified, abs=5e-5)
    assert made.optimality_gap < 5e-6


@pytest.mark.parametrize(("family", "certified"), [("prefix", 56.533), ("abs", 50.437)])
def test_table_8_of_query_smasher(family, certified):
    """One weight for each attribute set, drawn as the paper's code does."""
    drawn = np.random.RandomState(42).randint(1, 6, 40 + 780).astype(float)
    workload = Workload(Domain({f"x{i}": 10 for i in range(40)})).add("prefix", degree=1, weight=drawn[:40].tolist())
    made = plan(workload.add(family, degree=2, weight=drawn[40:].tolist()), "query-smasher")
    assert made.rmse() == pytest.approx(certified, abs=1e-3)


def test_optima_that_leave_cells_out_are_certified_too():
    """abs on 40 × 40: many cells carry no weight, where a plain fixed point stops at a gap of a hundredth."""
    made = plan(Workload(Domain({"a": 40, "b": 40})).add("abs", degree=2))
    assert made.optimality_gap < 1e-6


def test_marginals_need_no_rounding():
    made = plan(Workload(Domain({"a": 7, "b": 9, "c": 3})).add("marginal", degree=3))
    assert made.optimality_gap < 1e-12
    assert made.rmse() == pytest.approx(plan(made.workload, "residual-planner").rmse(), rel=1e-12)


def test_the_gap_of_a_product_form_is_honest():
    """Where a subworkload is too large to be solved whole, the bound is below the whole solution."""
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


def test_a_query_outside_the_span_is_refused():
    made = plan(Workload(Domain({"a": 4, "b": 5})).add("marginal", degree=1))
    assert made.variance(("a", "b"), np.ones((4, 5))) > 0  # the total lies in the span
    with pytest.raises(PlanError, match="a, b"):
        made.variance(("a", "b"), np.eye(4, 5))


def test_the_strategy_can_be_shown():
    made = plan(Workload(Domain({"a": 4, "b": 5})).add("prefix", degree=2))
    assert (made.strategy(("a", "b")) ** 2).sum(axis=0).max() == pytest.approx(1.0)
    with pytest.raises(PlanError):
        plan(Workload(Domain({"a": 4, "b": 5})).add("prefix", degree=1)).strategy(("a", "b"))


def test_unknown_mechanism_and_empty_workload():
    with pytest.raises(JobError, match="query-smasher"):
        plan(Workload(Domain({"a": 2})).add("marginal", degree=1), "query-smash")
    with pytest.raises(JobError, match="no queries"):
        plan(Workload(Domain({"a": 2})))


def test_auto_keeps_the_best_and_says_why():
    workload = workloads()["all together"]
    made = plan(workload, "auto")
    tried = [name for name in BEFOREHAND if name != "baseline"]
    assert made.error == min(measurement_plan("all together", name).error for name in tried)
    for name in tried:
        assert name in made.notes[-1]


def test_auto_passes_over_a_method_that_refuses(monkeypatch):
    def refuses(question, options, tools):
        raise PlanError("workload", "too much", "less", "ask less")

    monkeypatch.setattr(query_smasher, "MECHANISM", replace(query_smasher.MECHANISM, plan=refuses))
    made = plan(workloads()["prefix"], "auto")
    assert made.mechanism == "hdmm"
    assert "query-smasher does not take it" in made.notes[-1]


def test_sizes_that_agree_share_the_pieces_of_a_joint_family():
    """What affine leaves on either axis is one problem, though an attribute stands first here and second there."""
    from dpscale.workload import decompose

    subs = decompose(Workload(Domain({f"x{i}": 9 for i in range(5)})).add("affine", degree=2))
    assert len({sub.signature() for sub in subs if len(sub.attributes) == 1}) == 1


def test_equal_problems_are_solved_once():
    solved = []

    def each(function, items):
        items = list(items)
        solved.append(len(items))
        return [function(item) for item in items]

    plan(Workload(Domain({f"x{i}": 12 for i in range(20)})).add("prefix", degree=3), "query-smasher", each)
    assert solved == [1, 1]  # its optimum, and that optimum in integers


@pytest.mark.parametrize("mechanism", ["query-smasher", "residual-planner", "hdmm"])
def test_a_heavy_query_of_weight_zero_does_not_take_the_span(mechanism):
    """Its row, once part of the integer basis, was chosen for its length instead of the query that is asked."""
    heavy, asked = np.zeros(8), np.zeros(8)
    heavy[:4], asked[[0, 1, 2, 6]] = 900, 1
    workload = Workload(Domain({"a": 8})).add_queries(("a",), np.stack([heavy, asked]), [0.0, 1.0])
    made = plan(workload, mechanism)
    assert made.error == pytest.approx(made.variance(("a",), asked), rel=1e-6)


def test_queries_of_zeros_and_weights_that_vanish_are_refused():
    domain, heavy, asked = Domain({"a": 8}), np.zeros(8), np.zeros(8)
    heavy[:4], asked[[0, 1, 2, 6]] = 900, 1
    with pytest.raises(JobError, match="all zeros"):
        plan(Workload(domain).add_queries(("a",), np.zeros((2, 8))))
    with pytest.raises(PlanError, match="have no effect"):
        plan(Workload(domain).add_queries(("a",), np.stack([heavy, asked]), [1e-30, 1.0]))
