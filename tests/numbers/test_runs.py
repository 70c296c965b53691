"""Runs with sums and means: files, statistics, engines, units, evidence, rows, publishing and refused jobs."""

import json

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import tomli_w
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from dpscale.audit.evidence.check import check_bundle
from dpscale.base.errors import DomainError, JobError, PlanError
from tests.audit.small import measurements
from tests.messages import refused
from tests.numbers.small import NUMBERS, exact_sums, make_domain, make_frame, rounded, write_job
from tests.selection import mostly_slow

WORKLOAD = [
    {"family": "marginal", "degree": 2},
    {"family": "sum", "of": "pay", "attributes": [["a"], []]},
    {"family": "mean", "of": "wait", "attributes": [["b"], []]},
    {"family": "variance", "of": "pay", "degree": 1},
    {"family": "prefix", "record_weight": "pay", "attributes": [["a"]], "weight": 0.5},
]


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    folder = tmp_path_factory.mktemp("numbers")
    job = write_job(folder, WORKLOAD, synthesize={"rows": 500}, mechanism={"name": "weighted-residuals"})
    return dp.run(job, run_dir=folder / "run")


def test_statistics_are_near_the_data(release):
    frame = make_frame()
    sums = release.sum("pay", by="a")
    exact = exact_sums(frame, ["a"], "pay", NUMBERS["pay"])
    assert (np.abs(sums.estimate - exact) < 6 * sums.std_error).all()
    assert abs(release.sum("pay").estimate - exact.sum()) < 2000
    values = pd.Series([np.nan if v is None else float(v) for v in rounded(frame.wait.tolist(), NUMBERS["wait"])])
    mean = release.mean("wait", by=["b"])
    assert list(mean.columns) == ["b", "estimate", "std_error", "low", "high"]
    assert (np.abs(mean.estimate - values.groupby(frame.b).mean()) < 6 * mean.std_error).all()
    mean = release.mean("wait", level=1 - 1e-9)
    assert mean.low < values.mean() < mean.high
    deviation = release.std("pay", by="a")
    assert (np.abs(deviation.estimate - frame.pay.clip(-20, 100).groupby(frame.a).std()) < 8).all()
    ratio = release.ratio("pay", "records", by="a")
    assert (np.abs(ratio.estimate - frame.pay.clip(-20, 100).groupby(frame.a).mean()) < 6 * ratio.std_error).all()


def test_answer_files_and_tables_agree(release):
    for family, by in (("sum-pay", ["a"]), ("mean-wait", ["b"]), ("variance-pay", ["a"]), ("mean-wait", [])):
        table = release.table(by, family=family)
        files = sorted((release.path / f"answers/{family}-{len(by)}").glob("*.parquet"))
        stored = pd.concat([pq.read_table(path).to_pandas() for path in files])
        mine = stored[(stored.filter(like="attribute_") == by).all(axis=1)] if by else stored
        np.testing.assert_allclose(mine.estimate, table.estimate, rtol=1e-12)
        np.testing.assert_allclose(mine.high, table.high, rtol=1e-9)
    running = release.table(["a"], family="sum-pay-2")
    assert running.columns[0] == "a_at_most"
    assert running.estimate.iloc[-1] == pytest.approx(release.sum("pay").estimate)
    described = {name: pq.read_schema(next((release.path / f"answers/{name}").glob("*.parquet"))).field("estimate")
                 for name in ("marginal-2", "sum-pay-1", "variance-pay-1")}  # fmt: skip
    texts = [field.metadata[b"description"].decode() for field in described.values()]
    assert texts[0] == "estimated number of records"
    assert texts[1].startswith("estimate in units of pay;")
    assert texts[2].startswith("estimate in units of pay²;")
    index = pq.read_table(release.path / "answers/index.parquet").to_pandas()
    assert [list(names) for names in index[index.family == "sum-pay"].attributes] == [["a"], []]


def test_evidence_recomputes_and_finds_a_rounded_measurement(release, tmp_path):
    (tmp_path / "selftest.json").write_text(json.dumps([{"name": "none", "passed": True, "detail": "not run"}]))
    given = ["evidence", str(release.path), "--selftest", str(tmp_path / "selftest.json")]
    assert CliRunner().invoke(main, given, catch_exceptions=False).exit_code == 0
    assert check_bundle(release.path / "evidence")["parts"]
    from dpscale.audit.evidence.sensitivities import shape_faults

    part = json.loads((release.path / "evidence/parts.json").read_text())["data"]
    assert part["axes"]["pay"] == {"cells": 4, "parts": 120**2}
    factors = {"total": {"shape": [2]}, "four": {"shape": [4]}}
    draw = {"part": "data", "attributes": ["pay"], "factors": ["four"], "decision": 0, "bound": "rows",
            "multiplier": str(120**2 * 8)}  # fmt: skip
    assert list(shape_faults(draw, part, factors)) == []
    draw["multiplier"] = str(120**2 * 8 + 1)
    assert list(shape_faults(draw, part, factors)) == ["the measurement of (pay) rounds its numbers"]


def test_report_rows_and_published_tables(release):
    page = (release.path / "report.html").read_text()
    assert 'id="numbers"' in page
    assert "mean of wait by b" in page
    rows = release.synthetic().compute()
    assert list(rows.columns) == ["a", "b", "pay", "wait"]
    assert "in standard errors of the released sums" in page
    done = CliRunner().invoke(main, ["publish", str(release.path), "--json"], catch_exceptions=False)
    assert done.exit_code == 0
    assert {"csv/004-sum-pay-a.csv", "csv/009-mean-wait-b.csv"} <= set(json.loads(done.stdout)["files"])


@pytest.mark.parametrize("scheduler", mostly_slow(["threads", "processes"], {"threads"}))
def test_engines_give_the_same_bytes(tmp_path, scheduler):
    workload = [{"family": "sum", "of": "pay", "degree": 2}, {"family": "mean", "of": "wait", "degree": 1}]
    first = dp.run(write_job(tmp_path, workload), run_dir=tmp_path / "one")
    engine = {"scheduler": scheduler, "seed": 5}
    second = dp.run(write_job(tmp_path, workload, "other.toml", engine=engine), run_dir=tmp_path / "two")
    assert measurements(first.path) == measurements(second.path)


def test_rows_of_units_are_bounded_before_sums(tmp_path):
    """With at most two rows per unit, further rows do not count and the noise is twice that of one row."""
    bounded = {"path": "data", "domain": "domain.toml", "privacy_unit": "unit", "max_rows_per_unit": 2}
    workload = [{"family": "sum", "of": "pay", "attributes": [["a"], []]}, {"family": "marginal", "degree": 1}]
    one = dp.run(write_job(tmp_path, workload, data=bounded), run_dir=tmp_path / "run")
    kept = make_frame().groupby("unit").head(2)
    assert abs(one.total().estimate - len(kept)) < 60
    expected = 2 * np.sqrt(one.plan.variance(("pay",), one.domain["pay"].cell_values) / 4.0)
    assert one.table([], family="sum-pay").std_error[0] == pytest.approx(expected, rel=1e-3)
    exact = rounded(kept.pay.tolist(), NUMBERS["pay"])
    assert abs(one.sum("pay").estimate - float(sum(exact))) < 5 * expected


def test_expected_errors_have_units(tmp_path):
    job = write_job(tmp_path, WORKLOAD)
    shown = CliRunner().invoke(main, ["plan", str(job)], catch_exceptions=False).output
    assert "(in units of pay)" in shown
    assert "(in units of wait, of 1,000 records)" in shown
    assert "(in units of pay², of 1,000 records)" in shown
    found = json.loads(CliRunner().invoke(main, ["plan", str(job), "--json"], catch_exceptions=False).output)
    units = {one["family"]: one["unit"] for one in found["families"]}
    assert units["marginal-2"] == "records"
    assert units["sum-pay-1"] == "pay"
    job = write_job(tmp_path, [{"family": "sum", "of": "pay", "degree": 1}], "sums.toml")
    shown = CliRunner().invoke(main, ["plan", str(job), "--error", "500", "--compare"], catch_exceptions=False).output
    assert "an error of 500 pay needs epsilon" in shown
    assert "of sums relative to half their range" in shown


@pytest.mark.parametrize(("workload", "changes", "error", "message"), [
    ([{"family": "sum", "of": "size", "degree": 1}], {}, JobError, "workload.of: 'size', which is no number"),
    ([{"family": "sum", "degree": 1}], {}, JobError, "workload.of: missing"),
    ([{"family": "marginal", "degree": 1, "record_weight": "a"}], {}, JobError, "workload.of: 'a', which is no number"),
    ([{"family": "affine", "degree": 2, "record_weight": "pay"}], {}, JobError,
     "workload.record_weight: given for family 'affine'"),
    ([{"family": "mean", "of": "pay", "degree": 1}], {"mechanism": {"name": "aim-grem"}}, PlanError,
     "sums or means of pay by aim-grem; expected a mechanism with a fixed plan"),
    ([{"family": "mean", "of": "pay", "degree": 1}, {"family": "marginal", "degree": 1}],
     {"reconstruct": {"method": "maxent"}}, JobError, "reconstruct.method: 'maxent' with sums or means of pay"),
    ([{"family": "mean", "of": "pay", "degree": 1}], {"output": {"joint": True}}, JobError, "output.joint"),
])  # fmt: skip
def test_wrong_jobs_are_refused_before_spending(tmp_path, workload, changes, error, message):
    job = write_job(tmp_path, workload, **changes)
    with pytest.raises(error) as found:
        dp.run(job, run_dir=tmp_path / "run")
    assert message in str(found.value)
    assert not (tmp_path / "ledger.sqlite").exists() or "numbers" not in (tmp_path / "ledger.sqlite").read_text(
        "latin-1"
    )


def test_wrong_columns_are_refused_before_spending(tmp_path):
    """A column of texts, an unknown one, and nulls that the domain refuses."""
    workload = [{"family": "sum", "of": "pay", "degree": 1}]
    job = write_job(tmp_path, workload)
    frame = make_frame()
    texts, absent = frame.assign(pay="much"), frame.drop(columns="pay")
    nulls = frame.assign(pay=np.where(frame.a == 0, np.nan, frame.pay))
    for number, column in enumerate((texts, absent, nulls)):
        for path in (tmp_path / "data").glob("*.parquet"):
            path.unlink()
        column.to_parquet(tmp_path / f"data/{number}.parquet")
        with refused(dp.DataError):
            dp.run(job, run_dir=tmp_path / f"run{number}")


def test_too_fine_steps_of_variances_are_refused(tmp_path):
    domain = make_domain({"pay": {"low": 0, "high": 1_000_000}})
    job = write_job(tmp_path, [{"family": "variance", "of": "pay", "degree": 1}])
    (tmp_path / "domain.toml").write_text(tomli_w.dumps(domain.to_dict()))
    with refused(DomainError):
        dp.run(job, run_dir=tmp_path / "run")


def test_statistics_that_were_not_measured_are_refused(release):
    for statistic in (lambda: release.mean("wait", by="a"), lambda: release.std("wait")):
        with refused(PlanError):
            statistic()
    with refused(JobError):
        release.sum("nothing")
    with refused(JobError):
        release.ratio("pay", "pay")


@pytest.mark.parametrize("scheduler", mostly_slow(["synchronous", "threads"], {"threads"}))
def test_sums_beyond_32_bits_are_exact_in_several_tasks(tmp_path, scheduler):
    """Each file's sum exceeds 2^32 steps, although it has few rows."""
    domain = make_domain({"pay": {"low": 0, "high": 1_000_000}})
    workload = [{"family": "marginal", "degree": 2}, {"family": "sum", "of": "pay", "degree": 1}]
    job = write_job(tmp_path, workload, engine={"scheduler": scheduler, "seed": 5})
    (tmp_path / "domain.toml").write_text(tomli_w.dumps(domain.to_dict()))
    for path in (tmp_path / "data").glob("*.parquet"):
        path.unlink()
    for number in range(4):
        pd.DataFrame({"a": 0, "b": 0, "pay": [1_000_000] * 5000}).to_parquet(tmp_path / f"data/{number}.parquet")
    found = dp.run(job, run_dir=tmp_path / "run").sum("pay", by="a")
    assert abs(found.estimate[0] - 2e10) < 6 * found.std_error[0]


def test_sets_of_weight_zero_are_not_answered(tmp_path):
    mean = {"family": "mean", "of": "pay", "attributes": [["a"], []], "weight": 0}
    sums = {"family": "sum", "of": "pay", "attributes": [["a"], ["b"]], "weight": [1, 0]}
    workload = [{"family": "marginal", "degree": 1}, mean, sums]
    one = dp.run(write_job(tmp_path, workload), run_dir=tmp_path / "run")
    page = (tmp_path / "run/report.html").read_text()
    assert "sum of pay by a" in page
    assert "sum of pay by b" not in page
    assert "mean of pay" not in page.partition('id="numbers"')[2].partition("<h2")[0]
    with refused(JobError):
        one.table(["a"], family="mean-pay")
    for statistic in (lambda: one.sum("pay", by="b"), lambda: one.table(["b"], family="sum-pay")):
        with pytest.raises((JobError, PlanError)):
            statistic()


def test_labels_of_attributes_named_like_figures(tmp_path):
    """A number named like a figure, too, in a product."""
    attributes = {"low": {"kind": "coded", "size": 4}, "estimate": {"kind": "coded", "size": 3}}
    domain = {"attributes": attributes, "numbers": {"high": {"low": 0, "high": 90}}}
    workload = [{"family": "mean", "of": "high", "attributes": [["low", "estimate"]]},
                {"family": "product", "predicates": {"low": ["low = 1"], "high": "sum"}}]  # fmt: skip
    job = write_job(tmp_path, workload)
    (tmp_path / "domain.toml").write_text(tomli_w.dumps(domain))
    for path in (tmp_path / "data").glob("*.parquet"):
        frame = pd.read_parquet(path).rename(columns={"a": "low", "b": "estimate", "pay": "high"})
        frame.to_parquet(path)
    one = dp.run(job, run_dir=tmp_path / "run")
    assert list(one.mean("high", by=["estimate", "low"]).columns[:3]) == ["low_", "estimate_", "estimate"]
    assert one.quantile("low", [0.5], by="estimate").columns.tolist() == ["estimate_", "q", "estimate", "low", "high"]
    assert "sum of high" in (tmp_path / "run/report.html").read_text()


def test_variances_determine_means_and_totals(tmp_path):
    one = dp.run(write_job(tmp_path, [{"family": "variance", "of": "pay", "degree": 1}]), run_dir=tmp_path / "run")
    assert one.mean("pay", by="a").estimate.notna().all()
    deviation = one.std("pay", level=1 - 1e-9)
    assert deviation.low < make_frame().pay.clip(-20, 100).std() < deviation.high
    assert abs(one.sum("pay", by="b").estimate.sum() - one.sum("pay").estimate) < 1e-6 * one.sum("pay").estimate


def test_compare_leaves_out_rows_that_a_number_drops(tmp_path):
    """Most rows of a = 1 are outside the range, so rows and data differ unless both leave them out."""
    pytest.importorskip("sklearn")
    workload = [{"family": "marginal", "degree": 2}, {"family": "sum", "of": "pay", "degree": 1}]
    job = write_job(tmp_path, workload, privacy={"privacy_cost": 1e4, "dataset": "numbers", "allow_weak_privacy": True},
                    synthesize={"rows": 400})  # fmt: skip
    domain = make_domain({"pay": {"low": -20, "high": 100, "outside": "drop"}})
    (tmp_path / "domain.toml").write_text(tomli_w.dumps(domain.to_dict()))
    for path in (tmp_path / "data").glob("*.parquet"):
        frame = pd.read_parquet(path)
        frame.assign(pay=np.where(frame.a == 1, 999, frame.pay.clip(-20, 100))).to_parquet(path)
    one = dp.run(job, run_dir=tmp_path / "run")
    assert abs(one.marginal(["a"])[1]) < 5
    done = CliRunner().invoke(main, ["compare", str(one.path), str(tmp_path / "data"), "--out", str(tmp_path / "out")],
                              catch_exceptions=False)  # fmt: skip
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "out/compare.json").read_text())
    assert found["marginals"]["1"]["max"] < 0.02
