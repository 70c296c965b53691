"""Two-level strategies of wide axes: bounds against singular values, plans against the one-level optimum."""

import numpy as np
import pytest

from dpscale import Domain, Workload, plan
from dpscale.base.errors import PlanError
from dpscale.optimize import axis_weights
from dpscale.optimize.lower_bounds import exact_floor, whole_bound
from dpscale.workload import FAMILIES, PREFIX, axis_of, wide
from dpscale.workload.residual import whole_weights
from tests.messages import refused


@pytest.fixture
def few_cells(monkeypatch):
    """Lower the limits: axes are wide from 65 cells and are cut into at least sixteen blocks."""
    monkeypatch.setattr(wide, "DENSE", 64)
    monkeypatch.setattr(wide, "BLOCKS", 16)
    wide.runs_of.cache_clear()
    axis_of.cache_clear()
    yield
    wide.runs_of.cache_clear()
    axis_of.cache_clear()


BETWEEN_WEIGHTS = 5e-3  # relative: the gap is that for weights that are products over the two levels
ONE_WAY = ("prefix", "range", "circular", "marginal")


@pytest.mark.parametrize("family", ONE_WAY)
@pytest.mark.parametrize("modes", [256, 6])
def test_trace_bounds_are_at_most_sum_of_singular_values(family, modes, monkeypatch):
    monkeypatch.setattr("dpscale.workload.one_way.MODES", modes)
    rng = np.random.default_rng(0)
    for profile in (np.full(20, 0.05), rng.dirichlet(np.ones(20)), np.arange(1, 21) / 210):
        rows = FAMILIES[family].matrix(20) @ (np.eye(20) - np.outer(profile, np.ones(20)))
        nuclear = np.linalg.svd(rows, compute_uv=False).sum()
        found = FAMILIES[family].centred_trace(profile)
        assert found <= nuclear * (1 + 1e-12)
        if family != "circular" or profile[0] == profile[-1]:  # else the plain mean's is a bound alone
            assert found == pytest.approx(nuclear, rel=1e-12 if modes > 20 else 0.04)


def test_arc_errors_equal_explicit_matrix():
    """Arcs that pass the end of the axis are included."""
    rng = np.random.default_rng(4)
    rows = rng.normal(size=(12, 12)) @ (np.eye(12) - 1 / 12)
    covariance, running = rows.T @ rows, np.tri(13, 12, -1)
    low, high = FAMILIES["circular"].intervals(12)
    found = np.einsum("qi,ij,qj->q", running[high] - running[low], covariance, running[high] - running[low])
    matrix = FAMILIES["circular"].matrix(12)
    np.testing.assert_allclose(found, np.einsum("qi,ij,qj->q", matrix, covariance, matrix), atol=1e-9)


def test_bound_of_one_attribute_is_optimum_or_svd_bound():
    for family in ONE_WAY:
        workload = Workload(Domain({"a": 30})).add(family, degree=1)
        values = np.linalg.svd(FAMILIES[family].matrix(30), compute_uv=False)
        optimum, found = exact_floor(workload), whole_bound(workload)
        assert values.sum() ** 2 / 30 * (1 - 1e-9) <= found <= optimum * (1 + 1e-9)
        assert found == pytest.approx(optimum, rel=1e-4)
    for several in (Workload(Domain({"a": 9, "b": 4})).add("prefix", degree=2),
                    Workload(Domain({"a": 9, "b": 4})).add("range", degree=2).add("prefix", degree=1)):  # fmt: skip
        assert 0.3 * exact_floor(several) < whole_bound(several) <= exact_floor(several) * (1 + 1e-7)


ROOTS = {"prefix": "spectral", "range": "spectral", "circular": "circulant"}
ABOVE = {"spectral": 1.005, "circulant": 1 + 1e-7, "nested": 1.15}  # of the error on all cells


@pytest.mark.parametrize("family", ["prefix", "range", "circular"])
@pytest.mark.parametrize("mechanism", ["query-smasher", "weighted-residuals"])
@pytest.mark.parametrize("size", [96, 150])
def test_error_beside_another_attribute_is_near_optimum_and_within_gap(family, mechanism, size, request):
    workload = Workload(Domain({"a": size, "b": 3})).add(family, attributes=[("a",), ("a", "b")])
    whole = plan(workload, mechanism)
    request.getfixturevalue("few_cells")
    built = plan(workload, mechanism)
    kind = "nested" if mechanism == "query-smasher" and family != "circular" else ROOTS[family]
    assert kind in kinds_of(built)
    assert whole.error * (1 - 1e-7) < built.error < ABOVE[kind] * whole.error
    assert built.error / whole.error - 1 < built.optimality_gap + BETWEEN_WEIGHTS < 0.2
    assert built.accuracy.total_error(workload) == pytest.approx(built.error, rel=1e-9)


def test_prefix_alone_on_wide_axis_is_near_optimum():
    workload = Workload(Domain({"a": 3000})).add("prefix", degree=1)
    built, split = plan(workload, "weighted-residuals"), plan(workload, "query-smasher")
    assert kinds_of(built) == ["spectral"]
    assert built.error < 0.95 * split.error
    assert built.bound_all**2 < built.error / built.query_count < 1.004 * built.bound_all**2
    assert built.optimality_gap < 0.004
    assert built.accuracy.total_error(workload) == pytest.approx(built.error, rel=1e-9)
    assert any("dual of the queries of the axis" in note for note in built.notes)


def kinds_of(built):
    return [factor.kind for block in built.blocks for factor in block.factors]


@pytest.mark.usefixtures("few_cells")
def test_prefix_beside_other_attributes_takes_the_smaller_error():
    domain = Domain({"a": 600, "b": 5})
    assert "spectral" in kinds_of(plan(Workload(domain).add("prefix", attributes=[("a",), ("b",)])))
    pure = plan(Workload(domain).add("prefix", attributes=[("a",)]), noise="laplace")
    assert "spectral" not in kinds_of(pure)


@pytest.mark.slow
@pytest.mark.usefixtures("few_cells")
@pytest.mark.parametrize(("family", "names"), [("range", ("a", "b")), ("marginal", ("a",)), ("circular", ("a", "b"))])
def test_prefix_beside_other_queries_of_the_attribute_has_two_levels(family, names):
    workload = Workload(Domain({"a": 600, "b": 2})).add("prefix", attributes=[("a",)]).add(family, attributes=[names])
    kinds = kinds_of(plan(workload))
    assert "nested" in kinds
    assert "spectral" not in kinds


@pytest.mark.slow
@pytest.mark.usefixtures("few_cells")
def test_several_families_on_wide_axis():
    workload = Workload(Domain({"a": 400, "b": 3})).add("marginal", degree=2).add("prefix", attributes=[("a",)])
    built = plan(workload, "weighted-residuals")
    assert built.accuracy.total_error(workload) == pytest.approx(built.error, rel=1e-9)
    assert built.optimality_gap < 0.3


@pytest.mark.usefixtures("few_cells")
@pytest.mark.parametrize("mechanism", ["query-smasher", "weighted-residuals", "identity", "residual-planner"])
def test_marginal_of_wide_axis_needs_no_matrix(mechanism):
    workload = Workload(Domain({"a": 10**6, "b": 3})).add("marginal", attributes=[("a",)])
    built = plan(workload, mechanism)
    assert built.rmse() == pytest.approx(1, rel=1e-6)


def test_too_wide_axes_are_refused():
    for mechanism in ("eigen-design", "baseline", "residual-planner-plus"):
        with refused(PlanError):
            plan(Workload(Domain({"a": 10**5})).add("prefix", degree=1), mechanism)
    for family, degree, cells in (("random", 1, 20_000), ("random", 2, 10**6), ("affine", 2, 3000), ("abs", 2, 10**6)):
        with refused(PlanError):
            plan(Workload(Domain({"a": cells, "b": cells})).add(family, degree=degree))


@pytest.mark.usefixtures("few_cells")
def test_cell_weights_follow_block_weights():
    profile = np.arange(1, 51) / np.arange(1, 51).sum()
    weights = axis_weights.cell_weights(profile, 100, PREFIX, 14)
    cut, blocks = wide.cut_of(100, weights)
    assert len(weights) == 100
    assert cut.spread(blocks) == pytest.approx(np.array(weights) / sum(weights), rel=1e-9)
    fine = axis_weights.refine_profile(profile, 60, 60)
    assert whole_weights(fine, 12) == axis_weights.cell_weights(profile, 60, PREFIX, 12)


def test_refined_profile_equals_known_density():
    """The density is that of the arcsine law, with known sums."""
    places = lambda parts: np.arcsin(np.sqrt(np.linspace(0, 1, parts + 1))) / (np.pi / 2)  # noqa: E731
    assert axis_weights.refine_profile(np.diff(places(64)), 512, 512) == pytest.approx(np.diff(places(512)), rel=1e-6)
