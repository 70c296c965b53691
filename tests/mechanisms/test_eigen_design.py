"""Eigen-Design against Clarabel, example 4 of the paper and the paper's ratios to the lower bound."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

import dpscale as dp
from dpscale import Domain, Workload
from dpscale.mechanisms import eigen_design as planner
from dpscale.mechanisms.contract import PlanningProblem, Tools
from dpscale.mechanisms.eigen_design import (
    LAPLACE_GAP,
    DesignPoint,
    choose_design,
    complete_columns,
    eigen_design,
    eigen_queries,
    principal_design,
    query_costs,
    separated_design,
    weigh,
)
from dpscale.optimize.baselines import fourier, hb, scaled, walsh, wavelet
from dpscale.optimize.implicit_workload import implicit
from dpscale.optimize.lower_bounds import svd_of_gram
from dpscale.optimize.opt_explicit import error_of
from dpscale.workload import FAMILIES
from dpscale.workload.residual import subsets
from tests.audit.small import frame, write
from tests.messages import refused
from tests.oracles import explicit_strategy, explicit_workload, least_squares_variances

FIGURE_1 = np.array(
    [
        [1, 1, 1, 1, 1, 1, 1, 1],
        [1, 1, 1, 1, 0, 0, 0, 0],
        [0, 0, 0, 0, 1, 1, 1, 1],
        [1, 1, 0, 0, 1, 1, 0, 0],
        [0, 0, 1, 1, 0, 0, 1, 1],
        [0, 0, 0, 0, 0, 0, 1, 1],
        [1, 1, 0, 0, 0, 0, 0, 0],
        [1, 1, 1, 1, -1, -1, -1, -1],
    ],
    dtype=float,
)
EXAMPLE_P = 4 * math.log2(2 / 1e-4)  # the example's figures are those of a binary logarithm: log2(2/δ)/ε², ε = 0.5


def make_gram(family: str, size: int) -> np.ndarray:
    return FAMILIES[family].gram(size)


def solve_with_clarabel(costs: np.ndarray, sizes: np.ndarray, power: int = 1) -> float:
    import cvxpy as cp

    v = cp.Variable(len(costs), nonneg=True)
    problem = cp.Problem(cp.Minimize(costs @ cp.power(v, -power)), [sizes.T @ v <= 1])
    return float(problem.solve(solver=cp.CLARABEL))


@pytest.mark.parametrize("seed", range(4))
def test_weigh_equals_clarabel_on_random_programs(seed):
    rng = np.random.default_rng(seed)
    costs, squares = rng.random(7) * 5 + 0.1, rng.random((7, 9)) ** (1 + 2 * seed)
    found = weigh(costs, squares)
    assert found.gap < 1e-6
    assert (found.weights @ squares).max() == pytest.approx(1.0)
    assert found.error == pytest.approx(solve_with_clarabel(costs, squares), rel=2e-6)


@pytest.mark.parametrize(("family", "size"), [("range", 16), ("prefix", 16), ("prefix", 64)])
def test_weigh_equals_clarabel_on_eigenvectors(family, size):
    queries = eigen_queries(make_gram(family, size))
    costs = query_costs(make_gram(family, size), queries)
    found = weigh(costs, queries**2)
    assert found.gap < 1e-6
    if size == 16:
        assert found.error == pytest.approx(solve_with_clarabel(costs, queries**2), rel=2e-5)


@pytest.mark.parametrize("seed", range(4))
def test_weigh_under_laplace_noise_equals_clarabel(seed):
    rng = np.random.default_rng(seed)
    costs, sizes = rng.random(7) * 5 + 0.1, rng.random((7, 9)) ** (1 + 2 * seed)
    found = weigh(costs, sizes, 1e-6, "laplace")
    assert found.gap < 1e-5
    assert (found.weights @ sizes).max() == pytest.approx(1.0)
    best = solve_with_clarabel(costs, sizes, 2)
    assert found.bound * (1 - 1e-6) <= best
    assert found.error == pytest.approx(best, rel=2e-5)


@pytest.mark.parametrize("size", [1, 2, 6, 8, 12, 15, 16])
def test_walsh_hadamard_basis_is_orthonormal(size):
    rows = walsh(size)
    np.testing.assert_allclose(rows @ rows.T, np.eye(size), atol=1e-12)
    if size & (size - 1) == 0:
        np.testing.assert_allclose(np.abs(rows), size**-0.5)


def test_walsh_hadamard_basis_of_binary_attributes_has_a_query_for_each_set():
    """Rows of the basis of 8 cells are signs that depend on the parity of some of the three bits (Barak et al.)."""
    bits = np.array([[cell >> 2 & 1, cell >> 1 & 1, cell & 1] for cell in range(8)])
    parities = [(-1.0) ** (bits[:, list(chosen)].sum(axis=1)) / 8**0.5 for chosen in subsets(range(3))]
    found = {tuple(np.round(row, 9)) for row in walsh(8)}
    assert found == {tuple(np.round(row, 9)) for row in parities}


@pytest.mark.parametrize("family", ["range", "prefix"])
@pytest.mark.parametrize("options", [{}, {"design": "walsh"}, {"design": "hb"}, {"separate": 4}, {"principal": 5}])
def test_plan_under_laplace_noise_has_the_error_of_its_strategy(family, options):
    """Section 3.5: the error is that of least squares with L1 sensitivity 1, at most that of the unweighted design."""
    workload = Workload(Domain({"a": 16})).add(family, degree=1)
    plan = dp.plan(workload, mechanism="eigen-design", noise="laplace", **options)
    strategy = plan.strategy("a")
    gram = make_gram(family, 16)
    assert plan.error == pytest.approx(2 * error_of(gram, strategy, "laplace"), rel=1e-5)
    assert plan.bound <= plan.error
    if "design" in options:
        raw = {"walsh": walsh, "hb": hb}[options["design"]](16)
        assert plan.error <= 2 * error_of(gram, scaled(raw, "laplace"), "laplace") * (1 + LAPLACE_GAP)


def test_best_design_under_laplace_noise_is_chosen_and_named():
    workload = Workload(Domain({"a": 256})).add("range", degree=1)
    plan = dp.plan(workload, mechanism="eigen-design", noise="laplace")
    errors = [dp.plan(workload, mechanism="eigen-design", noise="laplace", design=name).error
              for name in ("eigen", "wavelet", "hb")]  # fmt: skip
    assert plan.error <= min(errors) * (1 + 1e-9)
    assert any("hb is the best design" in note for note in plan.notes)


def test_marginals_under_laplace_noise_are_planned_by_attribute():
    workload = Workload(Domain({"a": 40, "b": 30, "c": 20})).add("prefix", degree=2)
    plan = dp.plan(workload, mechanism="eigen-design", noise="laplace")
    assert plan.noise == "laplace"
    assert sum(block.share for block in plan.blocks) <= 1
    assert plan.bound <= plan.error < dp.plan(workload, mechanism="identity", noise="laplace").error


def test_example_4_is_reproduced():
    """Every figure is within 0.1 %; the paper prints 29.79 for its strategy, and this one has completed columns."""
    gram = FIGURE_1.T @ FIGURE_1
    shown = {
        47.78: 8 * 5,  # every query with its own noise
        45.36: error_of(gram, np.eye(8), "gaussian"),
        34.62: error_of(gram, wavelet(8), "gaussian"),
        29.18: svd_of_gram(gram),
    }
    for figure, error in shown.items():
        assert math.sqrt(EXAMPLE_P * error) == pytest.approx(figure, rel=1.2e-3)
    ours = math.sqrt(EXAMPLE_P * eigen_design(gram).error)
    assert 29.18 < ours < 29.79 * 1.001


def test_ratio_to_bound_is_below_paper_maximum():
    """By RMSE, at most 1.3 on ranges, marginals, CDFs and random predicates."""
    rng = np.random.default_rng(1)
    predicates = (rng.random((200, 64)) < 0.5).astype(float)
    order = rng.permutation(64)
    domain = Domain({"a": 4, "b": 4, "c": 4})
    grams = [
        make_gram("range", 64),
        make_gram("range", 64)[np.ix_(order, order)],
        make_gram("prefix", 64),
        predicates.T @ predicates,
        implicit(Workload(domain).add("marginal", degree=2)).gram(),
        implicit(Workload(domain).add("range", degree=1)).gram(),
        implicit(Workload(domain).add("range", degree=2)).gram(),
    ]
    strategies = [eigen_design(gram) for gram in grams]
    assert max(strategy.ratio for strategy in strategies) < 1.3
    assert strategies[0].error == pytest.approx(strategies[1].error, rel=1e-4)  # cells in any order
    assert strategies[4].ratio == pytest.approx(1.0, abs=1e-6)


def test_completed_columns_never_increase_error():
    gram = make_gram("prefix", 20)
    queries = eigen_queries(gram)
    bare = np.sqrt(weigh(query_costs(gram, queries), queries**2).weights)[:, None] * queries
    completed = complete_columns(bare)
    assert (completed**2).sum(axis=0) == pytest.approx(np.full(20, (bare**2).sum(axis=0).max()))
    assert error_of(gram, completed, "gaussian") <= error_of(gram, bare, "gaussian")


@pytest.mark.parametrize("family", ["range", "prefix"])
def test_reduced_designs_are_near_full_design(family):
    """Program 1 ignores the gain of completed columns, so that fewer weights can give a smaller error."""
    gram = make_gram(family, 64)
    best = eigen_design(gram)
    for found in (separated_design(gram), principal_design(gram, 8), principal_design(gram, 64)):
        assert 0.9 * best.error < found.error < 1.35 * best.error
        assert (found.matrix**2).sum(axis=0).max() == pytest.approx(1.0)


def test_design_improves_on_its_basis():
    gram = make_gram("range", 32)
    for basis in (wavelet(32), fourier(32), np.eye(32)):
        assert eigen_design(gram, basis).error <= error_of(gram, basis, "gaussian") * (1 + 1e-7)


def test_design_of_low_rank_and_relative_error_workloads():
    queries = np.array([[1.0, 1, 0, 0, 0], [0, 0, 1, 1, 1]])
    assert eigen_design(queries.T @ queries).error == pytest.approx(2.0)
    workload = Workload(Domain({"a": 16})).add("range", degree=1)
    relative = implicit(workload, relative=True).gram()
    assert eigen_design(relative).error < error_of(relative, eigen_design(make_gram("range", 16)).matrix, "gaussian")


def test_weigh_with_fewer_queries_than_cells():
    """Newton's systems are solved by the Woodbury identity; the oracle is Clarabel's optimum."""
    rng = np.random.default_rng(5)
    costs, squares = rng.random(4) + 0.1, rng.random((4, 30)) ** 3
    found = weigh(costs, squares)
    assert found.gap < 1e-6
    assert found.error == pytest.approx(solve_with_clarabel(costs, squares), rel=2e-6)


def plan_with(workload, **options):
    return planner.MECHANISM.plan(PlanningProblem(workload), planner.Options(**options), Tools()).plan


def explicit_error(gram, matrix):
    """Return tr(G (AᵀA)⁺) times the largest squared column norm."""
    return float(np.trace(gram @ np.linalg.pinv(matrix.T @ matrix)) * (matrix**2).sum(axis=0).max())


@pytest.mark.parametrize(("family", "size"), [("prefix", 24), ("range", 24), ("circular", 17), ("prefix", 3)])
def test_design_choice_equals_brute_force_over_designs(family, size):
    gram = make_gram(family, size)
    choice, full = choose_design(gram), eigen_design(gram)
    assert np.array_equal(choice.full.matrix, full.matrix)
    for name, ratio in choice.errors.items():
        kind, _, number = name.partition(" ")
        make = {"full": eigen_design, "separate": separated_design, "principal": principal_design}[kind]
        matrix = make(gram, int(number)).matrix if number else full.matrix
        assert ratio * full.error == pytest.approx(explicit_error(gram, matrix), rel=1e-7)
    assert choice.best.error <= min(choice.errors.values()) * full.error * (1 + 2e-3)
    assert (choice.best.matrix**2).sum(axis=0).max() == pytest.approx(1)


def test_reduced_designs_of_prefix_24_have_smaller_error_by_7_and_9_percent():
    errors = choose_design(make_gram("prefix", 24)).errors
    assert errors["separate 8"] == pytest.approx(0.932, abs=1e-3)
    assert errors["principal 8"] == pytest.approx(0.906, abs=1e-3)
    assert min(errors, key=errors.get) == "principal 8"


def test_principal_weights_equal_clarabel():
    """The reduced program of section 4.2, solved by cvxpy, gives the same strategy error after completion."""
    import cvxpy as cp

    gram = make_gram("prefix", 12)
    queries = eigen_queries(gram)
    costs, squares, u = query_costs(gram, queries), queries**2, cp.Variable(5, nonneg=True)
    spread = cp.hstack([u[:4], cp.multiply(np.ones(8), u[4])])
    objective = cp.Minimize(cp.sum(cp.multiply(costs, cp.inv_pos(spread))))
    cp.Problem(objective, [squares.T @ spread <= 1]).solve(solver=cp.CLARABEL)
    rows = complete_columns(np.sqrt(spread.value)[:, None] * queries)
    assert principal_design(gram, 4).error == pytest.approx(explicit_error(gram, rows), rel=1e-4)


def test_circular_groups_at_float_precision_have_a_certified_weighting():
    """A group of the circular design ends Newton's steps with a singular system, at the best point so far."""
    gram = make_gram("circular", 100)
    assert separated_design(gram, 3).error == pytest.approx(eigen_design(gram).error, rel=0.05)


@pytest.mark.parametrize("sizes", [{"a": 24}, {"a": 24, "b": 9}, {"a": 60, "b": 50}])
def test_mechanism_measures_the_best_design_and_respects_options(sizes):
    workload = Workload(Domain(sizes)).add("prefix", degree=len(sizes))
    best, full = plan_with(workload), plan_with(workload, design="eigen")
    assert best.error < 0.96 * full.error
    assert len(full.notes) == 1
    notes = best.notes[1:]
    assert notes
    assert all("is the best design" in note and "full 1; separate" in note for note in notes)
    for options in ({"separate": 5}, {"principal": 4}, {"design": "wavelet"}):
        assert len(plan_with(workload, **options).notes) == 1
    queries, weights = explicit_workload(workload) if math.prod(sizes.values()) < 300 else (None, None)
    if queries is not None:
        strategy = explicit_strategy(best, [block.unit_variance for block in best.blocks])
        assert best.error == pytest.approx((weights * least_squares_variances(strategy, queries)).sum(), rel=1e-6)
        assert (strategy**2).sum(axis=0).max() <= 1 + 1e-9


def test_designs_of_low_rank_workload_have_finite_errors():
    """Some columns need completions of 1e-5 only, whose pseudo-inverse is imprecise: errors were infinite."""
    workload = Workload(Domain({"a": 4, "b": 4, "c": 8, "d": 2})).add("range", degree=1)
    gram = implicit(workload).gram()
    choice = choose_design(gram)
    rows = np.sqrt(weigh(query_costs(gram, queries := eigen_queries(gram)), queries**2).weights)[:, None] * queries
    assert choice.full.error == pytest.approx(explicit_error(gram, rows), rel=1e-6)
    assert np.isfinite(list(choice.errors.values())).all()
    assert min(choice.errors.values()) > 0.9
    assert plan_with(workload).error <= plan_with(workload, design="eigen").error * (1 + 1e-9)


@pytest.mark.parametrize("family", ["marginal", "circular"])
def test_plan_of_unchanged_design_has_the_same_blocks_and_notes(family):
    workload = Workload(Domain({"a": 40, "b": 7})).add(family, degree=1).add(family, degree=2)
    best, full = plan_with(workload), plan_with(workload, design="eigen")
    assert (best.error, best.notes) == (full.error, full.notes)
    assert [f.digest for b in best.blocks for f in b.factors] == [f.digest for b in full.blocks for f in b.factors]


def test_charged_run_of_version_1_is_measured_by_its_own_plan(tmp_path, monkeypatch):
    """The planted fault is the same run without `resumes`, which is refused."""
    job = write(tmp_path, workload=[{"family": "prefix", "attributes": [["a", "c"]]}], mechanism={"name": planner.NAME})
    current = planner.MECHANISM
    full = planner.Options(design="eigen")
    first = replace(current, version="1", plan=lambda problem, options, tools: current.plan(problem, full, tools))
    run, manifest = tmp_path / "run", tmp_path / "run" / "manifest.json"
    with monkeypatch.context() as patch:
        patch.setattr(planner, "MECHANISM", first)
        patch.setattr(
            "dpscale.measurement.measurement.write_values", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        with pytest.raises(KeyboardInterrupt):
            dp.run(job, run)
    written, plan = json.loads(manifest.read_text()), (run / "plan" / "plan.json").read_bytes()
    assert written["mechanism"]["version"] == "1"
    assert written["privacy"]
    with monkeypatch.context() as patch:
        patch.setattr(planner, "MECHANISM", replace(planner.MECHANISM, resumes=frozenset()))
        with refused(dp.JobError):
            dp.run(job, run)
    release = dp.run(job, run)
    assert (run / "plan" / "plan.json").read_bytes() == plan
    assert len(release.plan.notes) == 1
    exact = np.histogram2d(frame()["a"], frame()["c"], bins=[range(5), range(6)])[0]
    assert np.abs(release.table(("a", "c"), family="prefix")["estimate"].iloc[-1] - exact.sum()) < 60


def test_point_far_from_feasible_has_an_infinite_ratio():
    assert DesignPoint(np.array([1.0, 1e-9]), np.eye(2), 2, np.array([0.0, 1e160])).ratio == math.inf
