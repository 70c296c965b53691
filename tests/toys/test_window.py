"""The family `window`, which is singular at most sizes, in every mechanism, in answers, labels, report and tables."""

import itertools

import numpy as np
import pandas as pd
import pytest

import dpscale as dp
from dpscale.mechanisms import MECHANISMS, mechanism, plan_problem
from dpscale.mechanisms.contract import PlanningProblem, Tools
from dpscale.privacy.accounting import Budget
from dpscale.runs.stage import STAGES
from dpscale.runs.stages.report import SECTIONS
from dpscale.workload import Workload, axis_of, wide
from tests.audit.small import frame, write
from tests.messages import refused
from tests.oracles import explicit_strategy
from tests.toys import register, unregister
from tests.toys.window import Window

FIXED = [name for name in MECHANISMS if mechanism(name).data_independent]
ADAPTIVE = [name for name in MECHANISMS if name not in FIXED]
DOMAIN = dp.Domain({"a": 6, "b": 4})
WORKLOAD = [{"family": "window", "attributes": [["a"], ["a", "c"]], "width": 2}, {"family": "marginal", "degree": 2}]


@pytest.fixture(autouse=True)
def registered():
    register()
    yield
    unregister()


def windows(size, width):
    """Return the queries from the definition: a row of ones of the given width at every place."""
    width = min(width, size)
    return np.array([[low <= cell < low + width for cell in range(size)] for low in range(size - width + 1)], float)


@pytest.mark.parametrize(("size", "width"), [(5, 1), (5, 2), (6, 2), (6, 3), (7, 3), (4, 9)])
def test_default_forms_equal_definition(size, width):
    family, queries, rng = Window(width=width), windows(size, width), np.random.default_rng(size)
    form = rng.normal(size=(size, size))
    form += form.T
    np.testing.assert_array_equal(family.matrix(size), queries)
    np.testing.assert_allclose(family.gram(size), queries.T @ queries)
    np.testing.assert_allclose(family.quadratic(form), np.diag(queries @ form @ queries.T), atol=1e-12)
    np.testing.assert_allclose(family.means(size), queries.mean(axis=1))
    assert family.trace(size) == queries.sum()
    unit = queries / np.sqrt(queries.sum(axis=1, keepdims=True))
    np.testing.assert_allclose(family.unit_gram(size), unit.T @ unit)
    profile = rng.dirichlet(np.ones(size))
    centred = queries - np.outer(queries @ profile, np.ones(size))
    assert family.centred_trace(profile) == pytest.approx(np.linalg.svd(centred, compute_uv=False).sum(), abs=1e-6)


def spread(domain, names, queries):
    """Return queries over a set as queries over all cells of a domain."""
    shape = [domain[name].size if name in names else 1 for name in domain.names]
    whole = queries.reshape(len(queries), *shape)
    return np.broadcast_to(whole, (len(queries), *domain.shape(domain.names))).reshape(len(queries), -1)


@pytest.mark.parametrize("width", [2, 3])
@pytest.mark.parametrize("name", FIXED)
def test_variances_and_answers_equal_brute_force(name, width):
    """Least squares with the explicit strategy has the stated variance of every query."""
    workload = Workload(DOMAIN).add("window", attributes=[("a",), ("a", "b")], width=width)
    plan = dp.plan(workload, name)
    inverse = np.linalg.pinv(explicit_strategy(plan, plan.blocks.unit_variances), rcond=1e-9)
    total = 0.0
    for names in workload.sets:
        queries = np.ones((1, 1))
        for own in names:
            queries = np.kron(queries, windows(DOMAIN[own].size, width))
        expected = ((spread(DOMAIN, names, queries) @ inverse) ** 2).sum(axis=1)
        found = plan.accuracy.part_variances(workload.parts[0], names).reshape(-1)
        np.testing.assert_allclose(found, expected, rtol=1e-6)
        total += expected.sum()
    assert plan.error == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize("name", ADAPTIVE)
def test_adaptive_mechanisms_plan_windows(name):
    workload = Workload(DOMAIN).add("window", degree=2)
    problem, chosen = PlanningProblem(workload, Budget("gaussian", 1.0)), mechanism(name)
    assert plan_problem(chosen, problem, chosen.Options(), Tools()).candidates


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [*FIXED, *ADAPTIVE])
def test_run_answers_windows_with_labels_report_and_published_tables(tmp_path, name):
    """At negligible noise the answers are the true counts, in files, tables and published tables."""
    options = {"published": True} if "published" in mechanism(name).Options.model_fields else {}
    job = write(tmp_path, workload=WORKLOAD, mechanism={"name": name} | options,
                privacy={"privacy_cost": 1e6, "dataset": "small", "allow_weak_privacy": True})  # fmt: skip
    release = dp.run(job, tmp_path / "run")
    counts = frame().groupby(["a", "c"]).size().reindex(pd.MultiIndex.from_product([range(4), range(5)])).fillna(0)
    truth = counts.to_numpy().reshape(4, 5)
    table = release.table(("a", "c"), family="window")
    assert list(table.columns[:4]) == ["a_from", "a_to", "c_from", "c_to"]
    assert len(table) == 3 * 4
    for row in table.itertuples():
        expected = truth[row.a_from : row.a_to + 1, row.c_from : row.c_to + 1].sum()
        assert row.a_to - row.a_from == row.c_to - row.c_from == 1
        assert row.estimate == pytest.approx(expected, abs=25 if name in ADAPTIVE else 1)
    (file,) = (release.path / "answers/window-1").glob("*.parquet")
    stored = pd.read_parquet(file)
    assert stored[["low_1", "high_1"]].to_numpy().tolist() == [[0, 1], [1, 2], [2, 3]]
    assert "window" in (release.path / "report.html").read_text()
    default = release.table(("a",), family="window").estimate
    np.testing.assert_allclose(default, stored.estimate)


def test_singular_windows_do_not_span_the_cells(tmp_path, monkeypatch):
    """Windows alone determine no cell: least squares refuses one, and the report has the windows."""
    monkeypatch.delitem(STAGES, "totals")  # these need the cells
    monkeypatch.delitem(SECTIONS, "largest")
    job = write(tmp_path, workload=WORKLOAD[:1], mechanism={"name": "weighted-residuals"})
    release = dp.run(job, tmp_path / "run")
    estimate, _ = release.answer(("a",), query=np.array([1.0, 1, 0, 0]))
    assert np.isfinite(estimate)
    with refused(dp.PlanError):
        release.answer(("a",), query=np.array([1.0, 0, 0, 0]))
    assert "window" in (release.path / "report.html").read_text()


def test_widths_are_validated_and_recorded(tmp_path):
    workload = Workload(DOMAIN).add("window", degree=1, width=3)
    assert workload.digest != Workload(DOMAIN).add("window", degree=1, width=2).digest
    assert workload.digest == Workload(DOMAIN).add("window", degree=1).digest
    with refused(dp.JobError):
        Workload(DOMAIN).add("window", degree=1, width=0)
    with refused(dp.JobError):
        Workload(DOMAIN).add("prefix", degree=1, width=2)
    with refused(dp.JobError):
        Workload(DOMAIN).add("window", degree=1, numeric=["a"])
    with refused(dp.JobError):
        dp.run(write(tmp_path, workload=[{"family": "window", "degree": 1, "widht": 2}]), tmp_path / "run")
    with refused(dp.JobError):
        dp.run(write(tmp_path, workload=[{"family": "prefix", "degree": 1, "width": 2}]), tmp_path / "run")


@pytest.fixture
def few_cells(monkeypatch):
    """Lower the limits: axes are wide from 33 cells and are cut into at least eight blocks."""
    for name, value in (("DENSE", 32), ("BLOCKS", 8)):
        monkeypatch.setattr(wide, name, value)
    wide.runs_of.cache_clear()
    axis_of.cache_clear()
    yield
    wide.runs_of.cache_clear()
    axis_of.cache_clear()


@pytest.mark.parametrize(("size", "width"), list(itertools.product([40, 45], [1, 3, 5, 10, 30])))
def test_block_and_inner_grams_of_wide_axis_equal_cell_gram(size, width, few_cells):
    """Windows of one or two blocks have a singular Gram matrix on the blocks."""
    queries, rng = windows(size, width), np.random.default_rng(width)
    cut = wide.Cut(size, tuple(rng.dirichlet(np.full(run.size, 5.0)) for run in wide.runs_of(size)))
    ends = np.cumsum([0, *cut.lengths])
    onto = np.zeros((size, len(cut.lengths)))
    own = [run for run in cut.runs for _ in range(run.count)]
    for block, run in enumerate(own):
        onto[ends[block] : ends[block + 1], block] = cut.within[cut.runs.index(run)]
    np.testing.assert_allclose(Window(width=width).block_gram(cut), (queries @ onto).T @ (queries @ onto), atol=1e-12)
    for run in cut.runs:
        pieces = [queries[:, ends[block] : ends[block + 1]] for block in range(len(own)) if own[block] == run]
        keep = np.eye(run.size) - 1 / run.size
        expected = keep @ np.mean([one.T @ one for one in pieces], axis=0) @ keep
        found = Window(width=width).inner_gram(cut, run)
        np.testing.assert_allclose(keep @ found @ keep, expected, atol=1e-12)


@pytest.mark.parametrize("width", [3, 5, 10, 30])
@pytest.mark.parametrize("name", ["weighted-residuals", "query-smasher", "weighted-fourier", "identity"])
def test_wide_plan_has_variances_of_explicit_strategy(name, width, few_cells, monkeypatch):
    monkeypatch.setattr("dpscale.mechanisms.weighted_residuals.GROUP_CELLS", 8)
    domain = dp.Domain({"a": 40, "b": 2})
    workload = Workload(domain).add("window", attributes=[("a",)], width=width)
    plan = dp.plan(workload, name)
    strategy = explicit_strategy(plan, plan.blocks.unit_variances)
    queries = spread(domain, ("a",), windows(40, width))
    expected = ((queries @ np.linalg.pinv(strategy, rcond=1e-12)) ** 2).sum(axis=1)
    np.testing.assert_allclose(plan.accuracy.part_variances(workload.parts[0], ("a",)), expected, rtol=1e-5)
    assert plan.error == pytest.approx(expected.sum(), rel=1e-4)
    assert plan.optimality_gap >= 0


@pytest.mark.sampled(2)
@pytest.mark.parametrize("width", [16, 3])
def test_wide_axis_answers_windows_end_to_end(tmp_path, width):
    """4,096 cells in 512 blocks of 8 cells: windows of 16 cells are singular on the blocks."""
    (tmp_path / "data").mkdir()
    codes = np.random.default_rng(0).integers(0, 4096, 5000)
    pd.DataFrame({"a": codes}).to_parquet(tmp_path / "data/0.parquet", index=False)
    job = write(tmp_path, workload=[{"family": "window", "degree": 1, "width": width}],
                mechanism={"name": "weighted-residuals"},
                privacy={"privacy_cost": 1e6, "dataset": "small", "allow_weak_privacy": True})  # fmt: skip
    (tmp_path / "domain.toml").write_text('[attributes.a]\nkind = "coded"\nsize = 4096\n')
    release = dp.run(job, tmp_path / "run")
    table = release.table(("a",), family="window")
    truth = np.convolve(np.bincount(codes, minlength=4096), np.ones(width), "valid")
    np.testing.assert_allclose(table.estimate, truth, atol=0.1)


def test_lower_bound_of_long_axis_is_below_singular_values(monkeypatch):
    """The bound counts the windows inside stretches of 16 cells."""
    monkeypatch.setattr("dpscale.workload.family.STRETCH", 16)
    for width in (1, 3, 8):
        queries = windows(70, width)
        exact = np.linalg.svd(queries - queries.mean(axis=1, keepdims=True), compute_uv=False).sum()
        assert 0 < Window(width=width).centred_trace(np.full(70, 1 / 70)) <= exact
