"""Number of rows that the bound of a unit cuts: brute force, sensitivity, coverage, evidence, statements, refusals."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
import tomli_w
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from dpscale.audit.evidence import recompute
from dpscale.base.errors import DpscaleError, JobError, PlanError
from dpscale.contributions.joins import REACH
from dpscale.engine.schedulers import resolve
from dpscale.ledger import Ledger
from dpscale.measurement.unit_counts import plan_units
from dpscale.privacy.accounting import LAPLACE, Budget, Cost
from dpscale.runs.opening import begin_run, read_job
from dpscale.runs.source import open_table
from dpscale.runs.stages import units
from tests.audit.forging import forge, records_of, remove, restate
from tests.contributions.test_unit_cells import DOMAIN, make_frame, write_job
from tests.messages import refused
from tests.running import run_stages

ROWS = [{"family": "marginal", "attributes": [["a"], ["b"]]}]


def skewed_frame(seed=0, most=60):
    """Return rows of units with 1 to `most` rows each."""
    rng = np.random.default_rng(seed)
    return make_frame(int(sum(rows := rng.zipf(1.6, 120).clip(1, most)))).assign(person=np.repeat(np.arange(120), rows))


def cut_job(folder, frame, bound, **changes):
    settings = {"workload": ROWS, "budget": {"cut": 0.1}} | changes
    return write_job(folder, frame, bound=bound, **{name: one for name, one in settings.items() if one is not None})


def exact_cut(folder, frame, bound, **data):
    run = begin_run(read_job(cut_job(folder, frame, bound, data=data)), folder / "run").table
    run_stages(run, only="plan")
    engine, names = resolve(scheduler="synchronous"), units.read_names(run, units.plan_of(run))
    [cut] = units.beyond_bound(run, engine, open_table(run, names, engine), names)
    return int(cut)


def brute_cut(frame, bound):
    rows = frame.groupby("person").size()
    return int((rows - bound).clip(0, (REACH - 1) * bound).sum())


@pytest.mark.parametrize("bound", [1, 3, 10])
def test_number_of_rows_that_are_cut_is_that_of_brute_force(tmp_path, bound):
    frame = skewed_frame()
    assert frame.groupby("person").size().max() > REACH * bound
    assert exact_cut(tmp_path, frame, bound) == brute_cut(frame, bound) > 0


def test_rows_without_a_unit_are_not_cut_by_the_bound(tmp_path):
    frame = skewed_frame()
    frame["person"] = frame.person.where(frame.person % 7 > 0).astype("Int64")
    assert exact_cut(tmp_path, frame, 2, unit_nulls="drop") == brute_cut(frame, 2)


def test_a_unit_changes_the_number_by_its_sensitivity(tmp_path):
    frame, bound = skewed_frame(), 2
    rows = frame.groupby("person").size()
    persons = [int(rows.idxmax()), int(rows.idxmin()), 7]
    whole = exact_cut(tmp_path / "whole", frame, bound)
    changes = [whole - exact_cut(tmp_path / str(one), frame[frame.person != one], bound) for one in persons]
    assert changes[0] == (REACH - 1) * bound  # the bound of the sensitivity is reached
    assert max(changes) <= (REACH - 1) * bound
    unlimited = (rows - bound).clip(0)
    assert unlimited.max() > (REACH - 1) * bound  # a number without a limit would change by more


def test_cost_is_that_of_the_sensitivity():
    plan = plan_units(dp.Domain(a=2), [], [], Budget("gaussian", 0.0), 5, Budget("gaussian", 0.01))
    most = (REACH - 1) * 5
    assert plan.cut.cost == pytest.approx(plan.cut.multiplier**2 * most**2 / (plan.cut.variance - 8))
    assert 0.009999 < float(plan.cost.squared_mu) <= 0.01
    pure = plan_units(dp.Domain(a=2), [], [], Budget(LAPLACE, 0.0), 5, Budget(LAPLACE, 0.01))
    assert pure.cut.cost == pytest.approx(pure.cut.multiplier * most / pure.cut.scale)


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cut")
    frame = pd.concat([skewed_frame(seed) + {"person": 1000 * seed, "a": 0, "b": 0, "house": 0} for seed in range(20)])
    frame.to_parquet(folder / "truth.parquet")
    return dp.run(cut_job(folder, frame, 4, privacy={"epsilon": 8.0}), run_dir=folder / "run")


def test_share_has_an_interval_and_its_part_of_the_budget(release):
    frame = pd.read_parquet(release.path.parent / "truth.parquet")
    counted = frame.groupby("person").size().clip(0, 4).sum()
    share, truth = release.cut(), brute_cut(frame, 4) / (brute_cut(frame, 4) + counted)
    assert share.low < share.estimate < share.high
    assert abs(share.estimate - truth) < 2.5 * (share.high - share.low)  # five standard errors
    assert truth > 0.2
    with Ledger.open(release.path.parent / "ledger.sqlite") as ledger:
        [dataset] = ledger.summary()["datasets"].values()
    costs = {row["release"].rpartition("-")[2]: Cost.from_dict(row["cost"]) for row in dataset["releases"]}
    assert 7.99 < Cost.total(costs.values()).epsilon(1e-6) <= 8.0
    assert float(costs["units"].squared_mu / Cost.total(costs.values()).squared_mu) == pytest.approx(0.1, rel=1e-3)


def test_report_representation_and_published_files_state_the_share(release, tmp_path):
    share = release.cut()
    sentence = f"cuts about {share.estimate:.1%} of the rows"
    page = (release.path / "report.html").read_text()
    assert sentence in page.split("Random noise")[0]
    assert sentence in repr(release)
    command = ["publish", str(release.path), "--out", str(tmp_path / "out"), "--format", "csv"]
    assert CliRunner().invoke(main, command, catch_exceptions=False).exit_code == 0
    assert sentence in (tmp_path / "out/README.txt").read_text()


def evidence_of(release, tmp_path):
    (tmp_path / "selftest.json").write_text(json.dumps([{"name": "none", "passed": True, "detail": "not run"}]))
    given = ["evidence", str(release.path), "--selftest", str(tmp_path / "selftest.json")]
    if not (release.path / "evidence").exists():
        assert CliRunner().invoke(main, given, catch_exceptions=False).exit_code == 0
    return shutil.copytree(release.path / "evidence", tmp_path / "evidence")


FORGERIES = {
    "noise": lambda draw, _: draw.update(variance=str(int(draw["variance"]) // 2)),
    "noise with its cost": lambda draw, files: (draw.update(variance=str(int(draw["variance"]) // 2)), restate(files)),
    "more noise": lambda draw, files: (draw.update(variance=str(int(draw["variance"]) * 4)), restate(files)),
    "left out": lambda draw, files: remove(files, [draw]),
    "left out with its file": lambda draw, files: (remove(files, [draw]), files["run-files"].pop(draw["file"])),
    "other bound": lambda draw, files: (draw.update(bound="units"), restate(files)),
    "reach": lambda draw, files: (
        files["parts"]["data"]["bounds"]["cut"].update(changes=[[[1, 4]]]), restate(files)),
    "rows": lambda draw, files: (files["parts"]["data"]["bounds"]["rows"].update(changes=[[[1, 1]]]), restate(files)),
    "no entry": lambda draw, files: (draw.update(entry=""), restate(files)),
}  # fmt: skip


@pytest.mark.parametrize("forgery", FORGERIES)
def test_evidence_covers_the_draw(release, tmp_path, forgery):
    folder = evidence_of(release, tmp_path)
    assert recompute.faults(folder) == []
    [draw] = records_of(recompute.read_files(folder), entry="-units")
    assert draw["bound"] == "cut"

    def change(files):
        [draw] = records_of(files, entry="-units")
        FORGERIES[forgery](draw, files)

    assert recompute.faults(forge(folder, tmp_path / "forged", change)) != []


def test_a_frame_a_pure_budget_and_both_numbers_of_units(tmp_path):
    frame = skewed_frame()
    plan = dp.plan([["a"]], dp.Domain(a=3), epsilon=9.0, unit="person", rows_per_unit=3, cut=0.3, dataset="pure",
                   ledger=tmp_path / "ledger.sqlite")  # fmt: skip
    release = dp.run(plan, tmp_path / "run", data=frame)
    assert 0 < release.cut(level=0.5).high - release.cut(level=0.5).low < release.cut().high - release.cut().low
    counted = {"family": "marginal", "attributes": [["a"]], "count": "units"}
    both = dp.run(cut_job(tmp_path / "both", frame, 3, workload=[*ROWS, counted], privacy={"epsilon": 9.0}),
                  run_dir=tmp_path / "both/run")  # fmt: skip
    assert len(both.units("a")) == 3
    assert both.cut().high > 0


def test_a_release_without_the_measurement_says_how(tmp_path):
    release = dp.run(cut_job(tmp_path, make_frame(), 4, budget=None), run_dir=tmp_path / "run")
    with refused(PlanError):
        release.cut()


WRONG = {
    "rows": {"data": {"privacy_unit": None, "max_rows_per_unit": None}},
    "whole": {"budget": {"cut": 1.0}},
    "both": {"budget": {"cut": 0.6, "units": 0.5},
              "workload": [*ROWS, {"family": "marginal", "degree": 1, "count": "units"}]},
    "share": {"budget": {"cut": 0.1, "units": 0.5}},
    "tiny": {"budget": {"cut": 1e-60}},
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_shares_are_refused_and_spend_nothing(tmp_path, name):
    changes = WRONG[name]
    job = cut_job(tmp_path, make_frame(), 4, **changes)
    job["data"] = {key: value for key, value in job["data"].items() if value is not None}
    with refused(DpscaleError):
        dp.run(job, run_dir=tmp_path / "run")
    assert not (tmp_path / "ledger.sqlite").exists()


def test_a_growing_table_is_refused(tmp_path):
    frame = make_frame().assign(day=pd.Timestamp("2024-01-05"))
    domain = {"attributes": {**DOMAIN["attributes"], "day": {"kind": "date", "low": "2024-01-01", "high": "2024-03-31",
                                                             "step": "month"}}}  # fmt: skip
    job = cut_job(tmp_path, frame, 4, domain=domain, data={"period": "day"}, time={"horizon": 3})
    with refused(JobError):
        dp.run(job, run_dir=tmp_path / "run")


@pytest.mark.parametrize("searched", [False, True])
def test_a_table_of_several_is_measured(tmp_path, searched):
    job = write_job(tmp_path, skewed_frame(), bound=3, privacy={"epsilon": 9.0})
    section = job["data"] | {"workload": ROWS}
    if searched:
        domain = {"attributes": {**DOMAIN["attributes"], "a": {"kind": "discover"}}}
        (tmp_path / "domain.toml").write_text(tomli_w.dumps(domain))
        for path in (tmp_path / "data").iterdir():
            pd.read_parquet(path).assign(a=lambda one: "v" + one.a.astype(str)).to_parquet(path)
    (tmp_path / "y.toml").write_text(tomli_w.dumps({"attributes": {"b": {"kind": "coded", "size": 4}}}))
    make_frame()[["b"]].to_parquet(tmp_path / "y.parquet")
    public = {"path": str(tmp_path / "y.parquet"), "domain": str(tmp_path / "y.toml"), "public": True}
    both = {
        "tables": {"x": section, "y": public},
        "budget": {"tables": {"x": {"cut": 0.1}}},
        "privacy": job["privacy"] | {"dataset": "two"},
        "engine": job["engine"],
    }
    release = dp.run(both, run_dir=tmp_path / "run")
    assert release.tables["x"].cut(level=0.5).high > 0
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        [dataset] = ledger.summary()["datasets"].values()
    cost = Cost.total([Cost.from_dict(row["cost"]) for row in dataset["releases"]])
    assert 8.99 < cost.epsilon(1e-6) <= 9


def test_estimates_without_errors_have_a_share_without_an_interval(tmp_path):
    job = cut_job(tmp_path, skewed_frame(), 3, privacy={"epsilon": 9.0}, mechanism={"name": "mst"},
                  workload=[{"family": "marginal", "degree": 2}])  # fmt: skip
    release = dp.run(job, run_dir=tmp_path / "run")
    assert "which cuts about" in repr(release)
    assert "nan" not in repr(release)


def test_a_job_of_one_searched_column_has_its_part_of_the_budget(tmp_path):
    """The search then leaves more than a thousandth of the budget."""
    frame = skewed_frame().assign(a=lambda one: "v" + one.a.astype(str))
    job = cut_job(tmp_path, frame, 3, domain={"attributes": {"a": {"kind": "discover"}}}, privacy={"epsilon": 9.0},
                  workload=[{"family": "marginal", "attributes": [["a"]]}])  # fmt: skip
    dp.run(job, run_dir=tmp_path / "run")
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        [dataset] = ledger.summary()["datasets"].values()
    costs = {row["release"].rpartition("-")[2]: Cost.from_dict(row["cost"]) for row in dataset["releases"]}
    assert float(costs["units"].squared_mu / Cost.total(costs.values()).squared_mu) > 0.09
