"""Attributes with thousands of codes: standard errors against the exact counts, plan files and audit bundles."""

import numpy as np
import pandas as pd
import pytest
import tomli_w
from scipy import stats

import dpscale as dp
from dpscale.audit.evidence.sensitivities import digest, misshapen, norms
from dpscale.plans.plan import content_of, factor_fields, read_plan, write_plan
from tests.messages import refused
from tests.selection import mostly_slow

CODES, ROWS = 2100, 20_000
GAUSSIAN = {"epsilon": 1.0, "delta": 1e-9}
WORKLOAD = [
    {"family": "marginal", "attributes": [["code"]]},
    {"family": "prefix", "attributes": [["code"], ["code", "sex"]]},
]


def table():
    rng = np.random.default_rng(1)
    return pd.DataFrame({"code": (rng.beta(2, 5, ROWS) * CODES).astype(int), "sex": rng.integers(0, 2, ROWS)})


def run_job(folder, mechanism="weighted-residuals", privacy=GAUSSIAN, workload=WORKLOAD, **engine):
    table().to_parquet(folder / "data.parquet")
    sizes = {"code": CODES, "sex": 2}
    attributes = {name: {"kind": "coded", "size": size} for name, size in sizes.items()}
    (folder / "domain.toml").write_text(tomli_w.dumps({"attributes": attributes}))
    job = {
        "data": {"path": "data.parquet", "domain": "domain.toml"},
        "privacy": {"dataset": "codes", "ledger": "ledger.sqlite"} | privacy,
        "workload": workload,
        "mechanism": {"name": mechanism},
        "engine": {"scheduler": "synchronous"} | engine,
    }
    (folder / "job.toml").write_text(tomli_w.dumps(job))
    return dp.run(str(folder / "job.toml"), run_dir=folder / "run")


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    return run_job(tmp_path_factory.mktemp("wide"), seed=7)


@pytest.fixture(scope="module")
def cumulative(tmp_path_factory):
    """Return a release of prefix queries alone, which are measured by a Toeplitz strategy."""
    alone = [{"family": "prefix", "attributes": [["code"]]}]
    return run_job(tmp_path_factory.mktemp("cumulative"), workload=alone, seed=7)


def standardized_errors(release):
    """Yield (estimate − truth)/error of every query, by part and set."""
    data, estimates = table(), release._estimates
    for part in release.plan.workload.parts:
        for names in part.sets:
            counts = np.zeros(release.domain.shape(names))
            np.add.at(counts, tuple(data[name].to_numpy() for name in names), 1)
            answers, errors = estimates.part_answers(part, names)
            yield part.name, (answers - part.answers(names, counts)) / errors


@pytest.mark.slow
def test_answers_have_reported_errors(release):
    assert any(factor.kind == "nested" for block in release.plan.blocks for factor in block.factors)
    for name, found in standardized_errors(release):
        if name == "marginal":  # nearly independent; sums of the first codes all have the same blocks' noise in them
            assert stats.kstest(found.reshape(-1), "norm").pvalue > 1e-6
        assert 0.05 < float((found**2).mean()) < 6
        assert np.abs(found).max() < 8


@pytest.mark.slow
def test_plan_file_round_trip(release, tmp_path):
    plan = release.plan
    write_plan(tmp_path, plan)
    again = read_plan(tmp_path, plan.workload)
    assert content_of(again) == content_of(plan)
    assert [block.digest for block in again.blocks] == [block.digest for block in plan.blocks]
    assert again.accuracy.total_error(plan.workload) == pytest.approx(plan.error, rel=1e-9)


def test_bundle_factor_gives_norms_and_digest(release):
    distinct = {factor.digest: factor for block in release.plan.blocks for factor in block.factors}
    for own, factor in distinct.items():
        fields = factor_fields(factor)
        assert norms(fields) == (factor.squared_l2_sensitivity, factor.l1_sensitivity)
        assert digest(fields) == own
        if factor.kind == "nested":
            with refused(ValueError):
                norms(fields | {"counts": [number - 1 for number in fields["counts"]]})


def test_pure_noise_errors(tmp_path):
    release = run_job(tmp_path, "query-smasher", {"epsilon": 1.0})
    for name, found in standardized_errors(release):
        low, high = (0.8, 1.25) if name == "marginal" else (0.05, 6)
        assert low < float((found**2).mean()) < high


@pytest.mark.parametrize("sets", mostly_slow([[["code"]], [["code"], ["sex"], ["code", "sex"]]], [[["code"]]]))
def test_pure_noise_on_a_wide_attribute_has_reported_errors(tmp_path, sets):
    workload = [{"family": family, "attributes": sets} for family in ("prefix", "marginal")]
    release = run_job(tmp_path, "weighted-residuals", {"epsilon": 1.0}, workload, seed=7)
    assert "layered" in {factor.kind for block in release.plan.blocks for factor in block.factors}
    for name, found in standardized_errors(release):
        few = found.size < 100  # two values have a mean square below 0.1 in one run of ten
        low, high = (0.0, 20) if few else (0.1, 4) if name == "prefix" else (0.8, 1.25)
        assert low < float((found**2).mean()) < high

    write_plan(tmp_path, release.plan)
    again = read_plan(tmp_path, release.plan.workload)
    assert content_of(again) == content_of(release.plan)
    assert again.accuracy.total_error(release.plan.workload) == pytest.approx(release.plan.error, rel=1e-12)


def test_prefix_alone_has_reported_errors(cumulative):
    (_, found), *_ = standardized_errors(cumulative)
    assert [factor.kind for block in cumulative.plan.blocks for factor in block.factors] == ["spectral"]
    assert 0.1 < float((found**2).mean()) < 4
    assert np.abs(found).max() < 6


def test_plan_file_and_bundle_of_a_root_round_trip(cumulative, tmp_path):
    plan = cumulative.plan
    write_plan(tmp_path, plan)
    again = read_plan(tmp_path, plan.workload)
    assert content_of(again) == content_of(plan)
    assert again.accuracy.total_error(plan.workload) == pytest.approx(plan.error, rel=1e-12)
    (factor,) = (factor for block in plan.blocks for factor in block.factors)
    fields = factor_fields(factor)
    assert norms(fields) == (factor.squared_l2_sensitivity, factor.l1_sensitivity)
    assert digest(fields) == factor.digest
    assert not misshapen(fields)
    for wrong in (CODES - 1, CODES + 1):  # planted: integers for another number of cells
        assert misshapen(fields | {"shape": [wrong]})


def test_cells_of_a_root_have_reported_errors(cumulative):
    """The variance of every cell follows from the total and from the explicit covariance of the others."""
    accuracy, workload = (
        cumulative.plan.accuracy,
        dp.Workload(cumulative.domain).add("marginal", attributes=[("code",)]),
    )
    (factor,) = (factor for block in cumulative.plan.blocks for factor in block.factors)
    profile = np.array(factor.weights[0]) / factor.scale
    known = accuracy.residuals[("code",)].scale * factor.covariance.diagonal()
    known += accuracy.residuals[()].scale * profile**2
    np.testing.assert_allclose(accuracy.part_variances(workload.parts[0], ("code",)), known, rtol=1e-5)
