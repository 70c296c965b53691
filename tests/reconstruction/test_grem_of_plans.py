"""`method = "grem"` with `non_negative = true` (GReM-LNN) for the plans of matrix mechanisms."""

from functools import reduce
from itertools import combinations

import numpy as np
import pytest
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from dpscale.reconstruction.model_answers import read_residuals
from dpscale.runs.opening import open_part
from dpscale.workload.residual import residual_of
from tests.audit.composition import audit_run
from tests.audit.small import SIZES, answers, frame, write, write_selftest
from tests.messages import refused

LNN = {"method": "grem", "non_negative": True}
PAIRS = list(combinations(SIZES, 2))
LITTLE = {"privacy_cost": 1e-3, "dataset": "small"}
EVEN = ("residual-planner", "identity")  # noise that is equal in all directions of a residual


def run(folder, name="residual-planner", **changes):
    given = {"mechanism": {"name": name}, "privacy": LITTLE, "reconstruct": LNN} | changes
    return dp.run(write(folder, **given), folder / "run")


def on_domain(names, matrices):
    """Return the product of a matrix on each axis of `names` and sums over the others."""
    own = dict(zip(names, matrices, strict=True))
    return reduce(np.kron, [own.get(name, np.ones((1, size))) for name, size in SIZES.items()])


def solve_with_clarabel(terms):
    """Return the table of least Σ ‖A x − z‖²/σ² with non-negative pairs, and that value."""
    import cvxpy as cp

    table = cp.Variable(int(np.prod(list(SIZES.values()))))
    cost = sum(cp.sum_squares((matrix @ table - values) / sigma) for matrix, values, sigma in terms)
    limits = [on_domain(pair, [np.eye(SIZES[name]) for name in pair]) @ table >= 0 for pair in PAIRS]
    problem = cp.Problem(cp.Minimize(cost), limits)
    problem.solve(solver=cp.CLARABEL)
    return table.value, problem.value


@pytest.mark.parametrize("seed", [5, 6, 7])
@pytest.mark.parametrize("mechanism", EVEN)
def test_estimates_are_the_constrained_maximum_likelihood(tmp_path, mechanism, seed):
    """The oracle has the noisy measurements themselves, their explicit strategies and variances, and no residuals."""
    release = run(tmp_path, mechanism, engine={"scheduler": "synchronous", "seed": seed})
    evidence = open_part(release.path).measurements.evidence()
    terms = []
    for index, (block, variance) in enumerate(zip(evidence.plan.blocks, evidence.variances, strict=True)):
        matrix = on_domain(block.attributes, [factor.explicit() for factor in block.factors])
        terms.append((matrix, np.asarray(evidence.read(index)).ravel(), variance**0.5))
    table, _ = solve_with_clarabel(terms)
    for pair in PAIRS:
        expected = on_domain(pair, [np.eye(SIZES[name]) for name in pair]) @ table
        found = release.marginal(pair)
        np.testing.assert_allclose(found.ravel(), expected, atol=2e-4 * max(1.0, expected.max()))
        assert found.min() > -1e-6 * found.sum()
    assert min(evidence.least_squares().marginal(pair).min() for pair in PAIRS) < 0


@pytest.mark.parametrize(
    "mechanism",
    ["query-smasher", "weighted-residuals", "residual-planner-plus", "weighted-fourier", "hdmm", "baseline"],
)
def test_estimates_are_nearest_in_the_mean_variance_of_residuals(tmp_path, mechanism):
    """For a prefix strategy of two attributes, whose noise differs by direction, the metric is an average."""
    release = run(tmp_path, mechanism)
    evidence = open_part(release.path).measurements.evidence()
    residuals = evidence.residuals()
    terms = []
    for names, precision in residuals.precisions.items():
        if len(names) < 3:
            centred = [np.eye(SIZES[name]) - 1 / SIZES[name] for name in names]
            terms.append((on_domain(names, centred), residuals.values[names].ravel(), precision**-0.5))
    table, _ = solve_with_clarabel(terms)
    for pair in PAIRS:
        assert residuals.marginal(pair) == pytest.approx(evidence.least_squares().marginal(pair), abs=1e-6)
        expected = on_domain(pair, [np.eye(SIZES[name]) for name in pair]) @ table
        assert release.marginal(pair).ravel() == pytest.approx(expected, abs=2e-4 * max(1.0, expected.max()))


@pytest.mark.parametrize("mechanism", ["residual-planner", "query-smasher", "identity", "hdmm", "eigen-design"])
def test_mean_variance_of_a_residual_equals_brute_force(mechanism):
    """The trace of the explicit least squares covariance on the centred residual, over its dimensions."""
    workload = dp.Workload(dp.Domain(SIZES)).add("prefix", degree=2)
    plan = dp.plan(workload, mechanism)
    for names, estimator in plan.accuracy.residuals.items():
        if not names or not estimator.spans_all:
            continue
        centred = reduce(np.kron, [np.eye(SIZES[name]) - 1 / SIZES[name] for name in names])
        rows = centred.reshape(len(centred), *(SIZES[name] for name in names))
        expected = sum(plan.variance(names, row) for row in rows)
        assert estimator.mean_variance == pytest.approx(
            expected / np.prod([SIZES[name] - 1 for name in names]), rel=1e-6
        )


@pytest.mark.parametrize("cost", [1e-3, 1e-2])
def test_non_negative_estimates_are_nearer_to_the_counts(tmp_path, cost):
    """A projection on a convex set that contains the counts: nearer in the metric of the noise, for every draw."""
    counts, _ = np.histogramdd(frame()[[*SIZES]].to_numpy(), bins=[range(size + 1) for size in SIZES.values()])
    for seed in range(3):
        privacy = {"privacy_cost": cost, "dataset": "small"}
        release = run(tmp_path / str(seed), engine={"scheduler": "synchronous", "seed": seed}, privacy=privacy)
        residuals = open_part(release.path).measurements.evidence().residuals()
        found = read_residuals(next((release.path / "model").rglob("residuals.npz")))
        distances = np.zeros(2)
        for names, precision in residuals.precisions.items():
            exact = residual_of(counts, [[*SIZES].index(name) for name in names])
            distances += [precision * ((one.values[names] - exact) ** 2).sum() for one in (found, residuals)]
        assert distances[0] <= distances[1] * (1 + 1e-9)


def test_run_has_answers_report_evidence_and_rows(tmp_path, monkeypatch):
    """On threads and by stages: same answers; no standard errors, one charge, a sound audit."""
    release = run(tmp_path, synthesize={"rows": 300})
    table = release.table(("a", "b"))
    assert table["std_error"].isna().all()
    assert "local non-negativity" in (release.path / "report.html").read_text()
    assert audit_run(release.path, tmp_path / "ledger.sqlite").sound
    assert len(release.synthetic()) == 300
    job = write(tmp_path, "threads.toml", privacy=LITTLE, reconstruct=LNN, engine={"scheduler": "threads", "seed": 5})
    threads = dp.run(job, tmp_path / "threads")
    for pair in PAIRS:
        assert threads.marginal(pair).tobytes() == release.marginal(pair).tobytes()
        assert dp.Release.open(release.path).marginal(pair).tobytes() == release.marginal(pair).tobytes()
    before = answers(release.path)
    for name in ("answers", "model"):
        for path in sorted((release.path / name).rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
    done = CliRunner().invoke(
        main, ["run", str(release.path), "--only", "reconstruct", "--quiet"], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    assert answers(release.path) == before
    selftest = write_selftest(tmp_path)
    for command in (["evidence", str(release.path), "--selftest", str(selftest)],
                    ["evidence", "--check", str(release.path / "evidence")]):  # fmt: skip
        done = CliRunner().invoke(main, command, catch_exceptions=False)
        assert done.exit_code == 0, done.output


def test_without_the_option_grem_of_a_plan_is_least_squares(tmp_path):
    plain = run(tmp_path, reconstruct={"method": "grem"})
    least = open_part(plain.path).measurements.evidence().least_squares()
    assert plain.marginal(("a", "b")).tobytes() == least.marginal(("a", "b")).tobytes()
    assert plain.table(("a", "b"))["std_error"].notna().all()


@pytest.mark.parametrize("changes", [
    {"mechanism": {"name": "weighted-residuals"}, "workload": [{"family": "prefix", "degree": 2}]},
    {"mechanism": {"name": "query-smasher"},
      "workload": [{"family": "predicates", "conditions": ["a = 0 and b = 0"]}]},
    {"reconstruct": LNN | {"errors": "simulated"}},
    {"reconstruct": LNN | {"non_negativ": True}},
    {"reconstruct": {"method": "grem", "non_negative": False}},
])  # fmt: skip
def test_refusals_are_sentences_and_spend_nothing(tmp_path, changes):
    with refused(dp.DpscaleError):
        run(tmp_path, **changes)
    assert not (tmp_path / "ledger.sqlite").exists()


def test_marginals_beyond_the_memory_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("dpscale.reconstruction.grem.BYTES", 1 << 28)
    with refused(dp.PlanError):
        run(tmp_path)
    assert not (tmp_path / "ledger.sqlite").exists()
