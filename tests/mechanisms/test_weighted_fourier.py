"""Weighted Fourier strategies against their closed form, and on families for which they are optimal."""

import numpy as np
import pandas as pd
import pytest
import tomli_w

from dpscale import Domain, PlanError, Workload, plan, run
from dpscale.mechanisms.weighted_fourier import solve_circulant
from dpscale.workload import FAMILIES, axis_of, decompose, factors, families, family, subworkloads
from tests.answered import answers_to, index_of
from tests.hierarchies.small import check_evidence
from tests.messages import refused


@pytest.mark.parametrize("size", [2, 3, 8, 15])
@pytest.mark.parametrize("family", ["prefix", "range", "circular", "marginal"])
def test_root_is_circulant_with_closed_form_error(family, size):
    rows = axis_of(FAMILIES[family], size).factor.rows
    optimum = solve_circulant(None, rows, (size,))
    strategy = optimum.root.T @ optimum.root
    assert np.diag(strategy) == pytest.approx(np.ones(size))
    assert strategy == pytest.approx(np.roll(strategy, (1, 1), (0, 1)))  # circulant
    assert np.trace(rows @ np.linalg.pinv(strategy, rcond=1e-10) @ rows.T) == pytest.approx(optimum.primal)


def test_no_perturbed_circulant_is_better():
    """Against random perturbations of the spectrum, on two axes at once."""
    rng = np.random.default_rng(0)
    shape = (3, 4)
    queries = rng.normal(size=(7, *shape))
    for axis in (1, 2):
        queries -= queries.mean(axis=axis, keepdims=True)
    rows = queries.reshape(7, -1)
    best = solve_circulant(None, rows, shape).primal
    power = (np.abs(np.fft.fftn(queries, axes=(1, 2))) ** 2).sum(axis=0)[1:, 1:] / 12
    for _ in range(200):
        spectrum = np.sqrt(power) * np.exp(rng.normal(size=power.shape) * 0.2)
        assert (power / spectrum).sum() * spectrum.sum() / 12 >= best * (1 - 1e-12)


@pytest.mark.parametrize("family", ["marginal", "circular"])
def test_weighted_fourier_is_optimal_for_marginals_and_circular_ranges(family):
    workload = Workload(Domain({"a": 5, "b": 8, "c": 4})).add(family, degree=2)
    assert plan(workload, "weighted-fourier").rmse() == pytest.approx(plan(workload).rmse(), rel=1e-6)


@pytest.mark.parametrize(
    ("family", "paper"), [("prefix", 39.70), ("range", 41.36), ("circular", 39.77), ("affine", 45.23), ("abs", 64.11)]
)
def test_table_4_is_reproduced(family, paper):
    """The WFF column for n = 10."""
    one_way = "prefix" if family in ("affine", "abs") else family
    workload = Workload(Domain({f"x{i}": 10 for i in range(40)})).add(one_way, degree=1).add(family, degree=2)
    assert plan(workload, "weighted-fourier").rmse() == pytest.approx(paper, abs=0.02)


@pytest.mark.parametrize(("family", "paper"), [("affine", 7.147), ("abs", 7.387)])
def test_table_3_is_reproduced(family, paper):
    """The WFF column for CPS: prefixes of the numeric attributes, cells of the others, and all pairs of a family."""
    sizes = {"n0": 50, "n1": 100, "c0": 7, "c1": 4, "c2": 2}
    workload = Workload(Domain(sizes)).add("hybrid", degree=1, numeric=["n0", "n1"]).add(family, degree=2)
    assert plan(workload, "weighted-fourier").rmse() == pytest.approx(paper, abs=0.001)


CASES = [
    ((12, 9), [("prefix", 2), ("range", 2)]),
    ((10, 11), [("affine", 2)]),
    ((10, 10), [("abs", 2), ("prefix", 2)]),
    ((4, 5, 6), [("range", 3), ("prefix", 2)]),
    ((8, 8), [("random", 2)]),
]


def workload_of(sizes, parts):
    made = Workload(Domain({f"x{i}": size for i, size in enumerate(sizes)}))
    for name, degree in parts:
        made.add(name, degree=degree)
    return made


def dense_optima(workload):
    """Return each residual's trace, rows of its Gram matrix of trace 1 and dense circulant optimum."""
    for sub in decompose(workload):
        rows = sub.rows() / np.sqrt(sub.scale)
        yield sub, rows, solve_circulant(None, rows, sub.sizes) if sub.attributes else None


@pytest.mark.parametrize(("sizes", "parts"), CASES)
def test_kernels_have_the_error_and_covariance_of_dense_strategies(sizes, parts):
    workload = workload_of(sizes, parts)
    made = plan(workload, "weighted-fourier")
    blocks, roots = dict(zip(made.blocks.sets, made.blocks, strict=True)), []
    for sub, _, optimum in dense_optima(workload):
        roots.append(np.sqrt(sub.scale * (optimum.primal if optimum else 1.0)))
        if blocks[sub.attributes].joint:
            (factor,) = blocks[sub.attributes].factors
            assert factor.kind == "circulant"
            known = np.linalg.pinv(optimum.root.T @ optimum.root, rcond=1e-10)
            found = factor.covariance * factor.squared_l2_sensitivity
            np.testing.assert_allclose(found, known, atol=1e-6 * known.max())
    assert any(block.joint for block in made.blocks)
    assert made.error == pytest.approx(sum(roots) ** 2, rel=1e-6)
    assert made.bound <= made.error
    assert made.accuracy.total_error(workload) == pytest.approx(made.error)
    variances = [(made.accuracy.part_variances(part, names), made.accuracy.part_error(part, names))
                 for part in workload.parts for names in part.sets]  # fmt: skip
    for each, total in variances:
        assert each.sum() == pytest.approx(total)


@pytest.mark.parametrize(("sizes", "parts"), CASES)
def test_kernels_under_pure_noise_are_near_or_below_dense_strategies(sizes, parts):
    """The symmetric root mostly has a smaller L1 norm than a root by eigenvectors, down to half the squared error."""
    workload = workload_of(sizes, parts)
    made = plan(workload, "weighted-fourier", noise="laplace")
    assert made.accuracy.total_error(workload) == pytest.approx(made.error)
    blocks = dict(zip(made.blocks.sets, made.blocks, strict=True))
    for sub, rows, optimum in dense_optima(workload):
        if blocks[sub.attributes].joint:
            (factor,) = blocks[sub.attributes].factors
            found = (rows * (rows @ factor.covariance)).sum() * float(factor.l1_sensitivity) ** 2
            assert found <= optimum.primal * np.abs(optimum.root).sum(axis=0).max() ** 2 * 1.1


@pytest.mark.parametrize(("sizes", "parts"), CASES)
def test_query_smasher_is_never_worse(sizes, parts):
    workload = workload_of(sizes, parts)
    assert plan(workload, "query-smasher").error <= plan(workload, "weighted-fourier").error * (1 + 1e-6)


def test_chunks_of_queries_give_the_plan_of_an_array(monkeypatch):
    workload = workload_of((12, 15), [("affine", 2), ("abs", 2), ("prefix", 1)])
    known = plan(workload, "weighted-fourier")
    for module in (factors, subworkloads):
        monkeypatch.setattr(module, "DENSE_CELLS", 100)
    for module in (family, families):
        monkeypatch.setattr(module, "CHUNK_ENTRIES", 500)
    monkeypatch.setattr(factors, "MOST_GRAM", 100)
    factors._PIECES.clear()
    found = plan(workload, "weighted-fourier")
    factors._PIECES.clear()
    assert found.error == pytest.approx(known.error, rel=1e-7)
    assert found.bound == pytest.approx(known.bound, rel=1e-6)
    for part in workload.parts:
        for names in part.sets:
            variances = found.accuracy.part_variances(part, names)
            np.testing.assert_allclose(variances, known.accuracy.part_variances(part, names), rtol=1e-6)
    with refused(PlanError):
        plan(workload, "query-smasher")


def test_joint_queries_on_too_many_cells_are_refused():
    workload = workload_of((1200, 1100), [("affine", 2)])
    with refused(PlanError):
        plan(workload, "weighted-fourier")


def test_wide_axes_beside_others_are_planned_by_kernels():
    """Two families on a wide and a narrow axis; the power of the wide ones is that of their explicit Gram matrices."""
    workload = workload_of((2100, 3), [("prefix", 2), ("range", 2)])
    made = plan(workload, "weighted-fourier")
    (factor,) = (block.factors[0] for block in made.blocks if block.joint)
    kernel = np.fft.fft2(factor.kernel).real[1:, 1:]
    powers = [[np.diag(np.fft.fft(np.fft.ifft(FAMILIES[name].gram(size), axis=0), axis=1)).real for size in (2100, 3)]
              for name in ("prefix", "range")]  # fmt: skip
    power = sum(np.multiply.outer(*own) for own in powers)[1:, 1:]
    np.testing.assert_allclose(kernel**4 / power, np.full(power.shape, kernel[0, 0] ** 4 / power[0, 0]), rtol=1e-4)


def job_on(folder, frame, sizes, **changes):
    """Write a table with its domain and a job of prefix and affine queries on both attributes; return its path."""
    frame.to_parquet(folder / "data.parquet")
    attributes = {name: {"kind": "coded", "size": size} for name, size in zip("xy", sizes, strict=True)}
    (folder / "domain.toml").write_text(tomli_w.dumps({"attributes": attributes}))
    content = {"data": {"path": "data.parquet", "domain": "domain.toml"},
               "privacy": {"epsilon": 1.0, "delta": 1e-9, "dataset": "joint"},
               "workload": [{"family": one, "attributes": [["x", "y"]]} for one in ("prefix", "affine")],
               "mechanism": {"name": "weighted-fourier"},
               "engine": {"scheduler": "synchronous", "memory": "1GiB"}}  # fmt: skip
    (folder / "job.toml").write_text(tomli_w.dumps(content | changes))
    return folder / "job.toml"


def test_graphical_model_of_too_large_a_matrix_is_refused_before_the_charge(tmp_path):
    frame = pd.DataFrame({"person": np.arange(50), "x": np.arange(50), "y": np.arange(50)})
    path = job_on(tmp_path, frame, (150, 80), reconstruct={"method": "graphical"})
    with refused(PlanError):
        run(path, tmp_path / "run")
    assert not list((tmp_path / "run").glob("measurements/*"))


def test_run_on_many_joint_cells_has_told_errors_and_evidence(tmp_path):
    """Cells of a table of 60 × 50 = 3,000 joint cells against exact counts, rows, and the evidence of the run."""
    rng = np.random.default_rng(5)
    frame = pd.DataFrame({"person": np.arange(20_000), "x": rng.integers(0, 60, 20_000) // 2 * 2,
                          "y": np.minimum(rng.geometric(0.1, 20_000), 50) - 1})  # fmt: skip
    release = run(job_on(tmp_path, frame, (60, 50), synthesize={"rows": 1000}), tmp_path / "run")
    assert {factor.kind for block in release.plan.blocks for factor in block.factors} >= {"circulant"}

    truth = np.zeros((60, 50))
    np.add.at(truth, (frame.x, frame.y), 1)
    one = np.zeros((60, 50))
    one[7, 9] = 1
    _, error = release.answer(("x", "y"), query=one)
    square = np.mean((release.marginal(("x", "y")) - truth) ** 2)
    assert 0.5 < square / error**2 < 1.5  # 3,000 cells of equal variance: at least 18 deviations, were they independent
    (row,) = (row for row in index_of(tmp_path / "run") if row["family"] == "prefix")
    prefix = answers_to(tmp_path / "run", row)
    known = truth.cumsum(axis=0).cumsum(axis=1).reshape(-1)
    assert len(prefix) == 3000
    assert (np.abs(prefix.estimate - known) < 7 * prefix.std_error).all()
    assert len(list((tmp_path / "run" / "synthetic").glob("*.parquet"))) >= 1
    check_evidence(tmp_path / "run")


def test_query_smasher_plans_chosen_residuals_in_the_fourier_basis():
    """Between the optimum and Weighted Fourier; the other residuals keep their strategies."""
    workload = workload_of((10, 11, 4), [("prefix", 2), ("affine", 2)])
    best, fourier = plan(workload, "query-smasher"), plan(workload, "weighted-fourier")
    some = plan(workload, "query-smasher", fourier=[["x1", "x0"], ["x2"]])
    assert best.error <= some.error * (1 + 1e-6)
    assert some.error <= fourier.error * (1 + 1e-6)
    assert some.accuracy.total_error(workload) == pytest.approx(some.error)
    kinds = {names: block.factors for names, block in zip(some.blocks.sets, some.blocks, strict=True) if names}
    assert {names for names, own in kinds.items() if own[0].kind == "circulant"} == {("x0", "x1"), ("x2",)}
    known = dict(zip(best.blocks.sets, best.blocks, strict=True))
    assert all(own[0].digest == known[names].factors[0].digest for names, own in kinds.items()
               if own[0].kind != "circulant")  # fmt: skip
    whole = plan(workload, "query-smasher", fourier=[list(names) for names in best.blocks.sets if names])
    assert whole.error == pytest.approx(fourier.error, rel=1e-6)


def test_one_large_residual_in_the_fourier_basis_beside_optimal_ones():
    workload = workload_of((150, 80), [("affine", 2), ("prefix", 1)])
    fourier = plan(workload, "weighted-fourier")
    mixed = plan(workload, "query-smasher", fourier=[["x0", "x1"]])
    assert mixed.error < 0.9 * fourier.error
    with refused(PlanError):
        plan(workload, "query-smasher", fourier=[["x0"]])


@pytest.mark.parametrize("names", [["x0", "x1"], []])
def test_set_without_residual_is_refused(names):
    with refused(PlanError):
        plan(workload_of((4, 5), [("prefix", 1)]), "query-smasher", fourier=[names])


def test_single_axes_in_the_fourier_basis_have_the_dense_error():
    workload = workload_of((30, 7), [("range", 1), ("prefix", 2)])
    some = plan(workload, "query-smasher", fourier=[["x0"], ["x1"], ["x0", "x1"]])
    assert some.error == pytest.approx(plan(workload, "weighted-fourier").error, rel=1e-6)
    for part in workload.parts:
        for names in part.sets:
            total = some.accuracy.part_variances(part, names).sum()
            assert some.accuracy.part_error(part, names) == pytest.approx(total)
