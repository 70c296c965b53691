"""Whole jobs on Parquet data: files of a run, answers near the exact counts, and reported errors against the plan."""

import json

import numpy as np
import pandas as pd
import pytest

import dpscale as dp
from dpscale.ledger import Ledger
from dpscale.measurement.value_files import records
from dpscale.runs.opening import open_part
from tests.answered import answers_to, edit_blocks, index_of
from tests.messages import refused
from tests.running import begin_table
from tests.runs.small import job, table, write_job

MECHANISMS = ["query-smasher", "weighted-residuals", "weighted-fourier", "hdmm", "identity"]
MIXED = [
    {"family": "marginal", "degree": 2},
    {"family": "prefix", "degree": 1},
    {"family": "range", "attributes": [["age", "sex"], ["income"]]},
    {"family": "prefix", "degree": 3, "weight": 0.5},
]


def encoded_table() -> pd.DataFrame:
    frame = table()
    income = pd.cut(frame.income.clip(0, 100), [0, 10, 20, 50, 100], labels=False, right=False)
    return pd.DataFrame(
        {
            "age": frame.age.clip(0, 7),
            "sex": (frame.sex == "M").astype(int),
            "income": income.fillna(4).astype(int),
            "code": frame.code,
        }
    )


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_answers_are_near_counts_within_errors(place, mechanism):
    path = write_job(place, workload=MIXED, mechanism={"name": mechanism})
    release = dp.run(path, place / "run")
    frame = encoded_table()
    truth = np.zeros((8, 2))
    np.add.at(truth, (frame.age, frame.sex), 1)
    estimate = release.marginal(("age", "sex"))
    _, error = release.answer(("age", "sex"), query=np.eye(16).reshape(16, 8, 2)[3])
    assert np.abs(estimate - truth).max() < 6 * error
    assert np.abs(estimate - truth).max() > 0
    np.testing.assert_allclose(release.marginal(("sex", "age")), estimate.T)


def test_files_and_manifest_of_finished_run(place, plots):
    release = dp.run(write_job(place, workload=MIXED), place / "run")
    run = place / "run"
    manifest = json.loads((run / "manifest.json").read_text())
    assert [s["state"] for s in manifest["stages"].values()] == ["done"] * 4
    assert manifest["private"] is True
    assert manifest["secret"] == "destroyed"
    assert not (run / "secret.key").exists()
    page = (run / "report.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert page.count("<svg") >= 2, "what was measured, and the errors"
    counts = [len(list(records(path))) for path in (run / "measurements").iterdir()]
    assert sum(counts) == len(release.plan.blocks)
    index = index_of(run)
    assert sum(row["queries"] for row in index) == release.plan.query_count


def test_answer_files_have_documented_columns(place):
    release = dp.run(write_job(place, workload=MIXED), place / "run")
    index = index_of(place / "run")
    rows = {(row["family"], tuple(row["attributes"])): row for row in index}
    ranged = answers_to(place / "run", rows["range", ("age", "sex")])
    assert list(ranged.columns)[:4] == ["attribute_1", "attribute_2", "low_1", "high_1"]
    assert list(ranged.columns)[4:6] == ["low_2", "high_2"]
    assert set(ranged.attribute_1) == {"age"}
    assert set(ranged.attribute_2) == {"sex"}
    assert len(ranged) == 36 * 3
    one = ranged[(ranged.low_1 == "2") & (ranged.high_1 == "5") & (ranged.low_2 == "F") & (ranged.high_2 == "F")]
    query = np.zeros((8, 2))
    query[2:6, 0] = 1
    estimate, error = release.answer(("age", "sex"), query=query)
    assert one.estimate.item() == pytest.approx(estimate)
    assert one.std_error.item() == pytest.approx(error)
    assert one.high.item() - one.low.item() == pytest.approx(2 * 1.959964 * error, rel=1e-6)
    marginal = answers_to(place / "run", rows["marginal", ("age", "income")])
    assert (marginal.value_2 == "(null)").sum() == 8  # the cell of nulls
    assert set(marginal.value_2) - {"(null)"} == {"[0, 10)", "[10, 20)", "[20, 50)", "[50, 100]"}


OTHERS = [
    {"family": "circular", "attributes": [["age", "code"]]},
    {"family": "affine", "degree": 2},
    {"family": "abs", "attributes": [["age", "income"]]},
    {"family": "random", "attributes": [["sex", "code"]], "p": 0.4, "seed": 2},
    {"family": "hybrid", "degree": 2, "numeric": ["age", "income"]},
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("workload", [MIXED, OTHERS], ids=["mixed", "others"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_family_errors_equal_single_query_errors(place, mechanism, workload):
    """Oracle: the closed-form standard errors of whole families equal those of single queries."""
    release = dp.run(write_job(place, workload=workload, mechanism={"name": mechanism}), place / "run")
    estimates = release._estimates
    for part in release.plan.workload.parts:
        for attributes in part.sets[:2]:
            answers, errors = estimates.part_answers(part, attributes)
            answers, errors = answers.reshape(-1), errors.reshape(-1)
            shape = release.domain.shape(attributes)
            cells = int(np.prod(shape))
            queries = np.stack([part.answers(attributes, e.reshape(shape)).reshape(-1) for e in np.eye(cells)], axis=1)
            for k in np.linspace(0, len(queries) - 1, 5, dtype=int):
                estimate, error = release.answer(attributes, query=queries[k].reshape(shape))
                assert answers[k] == pytest.approx(estimate, abs=1e-6)
                assert errors[k] == pytest.approx(error, rel=1e-9)


def test_ledger_has_one_charge_after_repeat(place):
    path = write_job(place)
    dp.run(path, place / "run")
    dp.run(path, place / "run")
    with Ledger.open(place / "ledger.sqlite") as ledger:
        dataset = ledger.summary()["datasets"]["small"]
    assert [row["state"] for row in dataset["releases"]] == ["released"]
    assert dataset["spent"]["epsilon"] <= 1.0 + 1e-9


def test_predicates_from_file(place):
    queries = (np.random.default_rng(0).random((6, 8, 3)) < 0.4).astype(float)
    np.save(place / "queries.npy", queries)
    part = {"family": "predicates", "attributes": [["age", "code"]], "file": "queries.npy"}
    release = dp.run(write_job(place, workload=[part]), place / "run")
    frame = encoded_table()
    truth = np.zeros((8, 3))
    np.add.at(truth, (frame.age, frame.code), 1)
    for query in queries:
        estimate, error = release.answer(("age", "code"), query=query)
        assert abs(estimate - (query * truth).sum()) < 6 * error
    index = index_of(place / "run")
    found = answers_to(place / "run", index[0])
    assert list(found.columns) == ["attribute_1", "attribute_2", "query", "estimate", "std_error", "low", "high"]


def test_partly_measured_marginal_is_refused(place):
    """The affine family measures only the sums x + y, so a marginal cannot be estimated."""
    release = dp.run(
        write_job(place, workload=[{"family": "affine", "attributes": [["age", "income"]]}]), place / "run"
    )
    level = np.add.outer(np.arange(8), np.arange(5))
    assert release.answer(("age", "income"), query=(level <= 4).astype(float))[1] > 0
    with pytest.raises(dp.PlanError):
        release.marginal(("age", "income"))
    with pytest.raises(dp.PlanError):
        release.answer(("age", "income"), query=np.eye(8, 5))


def test_zero_weight_sets_are_not_answered(place):
    """Sets of weight 0 are not planned and have no answer file; queries of weight 0 in an array have null estimates."""
    np.save(place / "queries.npy", np.eye(8)[:3])
    workload = [
        {"family": "prefix", "attributes": [["age"], ["sex", "code"]], "weight": [1.0, 0.0]},
        {"family": "predicates", "attributes": [["age"]], "file": "queries.npy", "weight": [1.0, 0.0, 2.0]},
    ]
    release = dp.run(write_job(place, workload=workload), place / "run")
    rows = index_of(place / "run")
    assert [row["file"] is None for row in rows] == [False, True, False]
    found = answers_to(place / "run", rows[2])
    assert found.estimate.isna().tolist() == [False, True, False]
    assert release.answer(("age",), query=np.eye(8)[1])[1] > 0  # it lies in the span of the prefixes all the same
    with pytest.raises(dp.PlanError):
        release.answer(("sex",), query=np.eye(2)[0])


def test_set_above_max_rows_has_no_file(place):
    release = dp.run(write_job(place, output={"max_rows": 30}), place / "run")
    index = index_of(place / "run")
    assert any(row["file"] is None for row in index)
    assert any(row["file"] for row in index)
    assert release.marginal(("age", "income")).shape == (8, 5)
    assert (place / "run" / "report.html").exists()


def test_job_as_dict_with_rho(place, monkeypatch):
    monkeypatch.chdir(place)
    write_job(place)
    release = dp.run(job(privacy={"rho": 0.25, "dataset": "d"}), place / "run")
    assert float(release.manifest["privacy"]["cost"]["gaussian"].split("/")[0]) > 0
    from fractions import Fraction

    assert Fraction(release.manifest["privacy"]["cost"]["gaussian"]) <= Fraction(1, 2)


def test_contribution_bound_scales_noise(place):
    plain = dp.run(write_job(place), place / "plain")
    data = {"path": "data", "domain": "domain.toml", "privacy_unit": "person", "max_rows_per_unit": 3}
    units = dp.run(write_job(place, "units.toml", data=data), place / "units")
    query = np.ones((8, 2))
    ratio = units.answer(("age", "sex"), query=query)[1] / plain.answer(("age", "sex"), query=query)[1]
    assert ratio == pytest.approx(3, rel=1e-4)
    data["max_rows_per_unit"] = 1
    bounded = dp.run(write_job(place, "bounded.toml", data=data), place / "bounded")
    total, error = bounded.answer(("age", "sex"), query=query)
    assert abs(total - np.ceil(4000 / 3)) < 6 * error


def test_seeded_run_is_marked_not_private(place):
    release = dp.run(write_job(place, engine={"seed": 0}), place / "run")
    assert release.manifest["private"] is False
    assert "Not private" in (place / "run" / "report.html").read_text()


def test_run_without_answer_files_has_report(place, plots):
    release = dp.run(write_job(place, output={"max_rows": 0}), place / "run")
    assert "computes answers on demand" in (release.path / "report.html").read_text()
    assert [path.name for path in (release.path / "answers").rglob("*.parquet")] == ["index.parquet"]
    assert np.isfinite(release.answer(("age",), query=np.ones(release.domain.shape(("age",))))).all()


@pytest.mark.parametrize("edit", ["noise", "kind", "attributes"])
def test_edited_plan_is_refused_before_charge(place, edit):
    """The charge is computed from the plan, so a plan with inconsistent parts must not be measured.
    The hash of the plan is removed from the manifest, as an attacker who edits the run directory could do.
    """
    import json

    from dpscale.job import Job
    from tests.running import run_stages

    run = begin_table(Job.read(write_job(place, workload=MIXED)), place / "run")
    run_stages(run, only="plan")
    path = place / "run" / "plan" / "plan.json"
    content = json.loads(path.read_text())
    if edit == "kind":
        content["factors"] = {key: value | {"kind": "center"} for key, value in content["factors"].items()}
    path.write_text(json.dumps(content))

    def edit_columns(columns):
        if edit == "noise":
            columns["noise"] = columns["noise"] + 1
        if edit == "attributes":
            columns["members"] = columns["members"][::-1]

    edit_blocks(place / "run", edit_columns)
    run.update(stages={"plan": {"state": "done"}})
    with refused(dp.JobError):
        run_stages(open_part(place / "run"), only="measure")
    assert not list((place / "run" / "measurements").glob("*"))
