"""Jobs that ask nothing but the counts of values that are searched: share, estimates, errors, and earlier runs."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from dpscale.audit.evidence.check import check_bundle
from dpscale.base.errors import JobError
from dpscale.job import Job
from dpscale.job.table_job import COUNTING_SHARE, SHARE
from dpscale.ledger import Ledger
from dpscale.privacy.accounting import Cost
from dpscale.reconstruction.base import PlanEvidence
from dpscale.reconstruction.searched_counts import SearchedCounts, SearchedEvidence
from dpscale.workload import Workload
from tests.discovery.small import DOMAIN, write_job
from tests.messages import refused
from tests.running import begin_table, open_table, run_stages

ONE = [{"family": "marginal", "attributes": [["city"]]}]
CITY = {"attributes": {"city": {"kind": "discover"}, "sex": DOMAIN["attributes"]["sex"]}}


def frame_of(rows=20_000, seed=0):
    rng = np.random.default_rng(seed)
    city = np.array([f"city {rank}" for rank in range(200)])
    shares = 1 / np.arange(1, 201)
    return pd.DataFrame({"city": rng.choice(city, rows, p=shares / shares.sum()), "sex": rng.choice(["f", "m"], rows)})


def job_of(folder, **changes):
    changes = {"privacy": {"epsilon": 1.0}, "workload": ONE, "budget": None, **changes}
    job = write_job(folder, frame_of(), CITY, **changes)
    return {name: content for name, content in job.items() if content is not None}


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    folder = tmp_path_factory.mktemp("single")
    return dp.run(job_of(folder), run_dir=folder / "run")


def test_estimates_are_the_inverse_variance_means(release):
    run = release._run.table
    measured = run.measurements.evidence().least_squares()
    name = ("city",)
    before, after = measured.marginal(name), release.marginal(name)
    old = measured.answer(name, np.eye(1, len(before))[0])[1] ** 2
    found = release.found("city").set_index("cell")
    table = release.table("city")
    for cell, label in enumerate(release.domain["city"].labels):
        if label == "(outside)":
            assert after[cell] == pytest.approx(before[cell])
            continue
        search = found.std_error[label] ** 2
        mean = (before[cell] / old + found.estimate[label] / search) / (1 / old + 1 / search)
        assert after[cell] == pytest.approx(mean)
        assert table.low[cell] < mean < table.high[cell]
        _, error = release.answer(name, query=np.eye(1, len(before), cell)[0])
        assert error == pytest.approx((1 / old + 1 / search) ** -0.5)


def test_errors_are_those_of_the_whole_budget(release):
    exact = frame_of().city.value_counts()
    table = release.table("city").set_index("city")
    values = table.drop("(outside)")
    total = Job.read(release.path / "job.toml").table.search_budget(release._run.table.declared).total.amount
    error = (values.high - values.low) / 2 / 1.96
    assert error.to_numpy() == pytest.approx(total**-0.5, rel=0.01)
    assert len(values) > 100
    z = (values.estimate - exact[values.index]) / error
    assert 0.6 < z.std() < 1.4
    row = release.total()
    assert abs(row.estimate - 20_000) < 5.5 / 1.96 * (row.high - row.low) / 2


def test_the_cost_is_that_of_the_job(release):
    with Ledger.open(release.path.parent / "ledger.sqlite") as ledger:
        [dataset] = ledger.summary()["datasets"].values()
    costs = {row["release"].endswith("-domain"): Cost.from_dict(row["cost"]) for row in dataset["releases"]}
    total = Cost.total(costs.values())
    assert 0.999 < total.epsilon(1e-6) <= 1
    assert float(costs[True].squared_mu / total.squared_mu) == pytest.approx(COUNTING_SHARE, rel=1e-4)


@pytest.mark.parametrize(("changes", "share"), [
    ({}, COUNTING_SHARE),
    ({"workload": [*ONE, {"family": "marginal", "attributes": [["sex"]]}]}, SHARE),
    ({"workload": [{"family": "marginal", "attributes": [["city", "sex"]]}]}, SHARE),
    ({"workload": [{"family": "prefix", "attributes": [["city"]]}]}, SHARE),
    ({"mechanism": {"name": "aim-grem"}}, SHARE),
    ({"reconstruct": {"method": "maxent"}}, SHARE),
    ({"budget": {"discover": 0.2}}, 0.2),
    ({"budget": {"discover_delta": 1e-8}}, COUNTING_SHARE),
])  # fmt: skip
def test_only_the_search_of_the_only_set_has_nearly_everything(tmp_path, changes, share):
    job = Job.read(job_of(tmp_path, **changes)).table
    domain = job.read_domain()
    assert job.search_share(domain) == share
    budget = job.search_budget(domain)
    assert float(budget.each) == pytest.approx(share * budget.total.amount)
    whole = job.counting_search(domain) is not None
    assert job.answer_budget(domain).amount == (budget.total if whole else job.row_budget(domain)).amount


@pytest.mark.parametrize("more", [{"values": ["city 3"]}, {"nulls": "category"}, {"count": "units"}])
def test_a_search_that_does_not_count_all_cells_has_the_usual_share(tmp_path, more):
    city = {"attributes": {"city": {"kind": "discover", **more}}}
    frame = frame_of().assign(person=range(20_000))
    job = write_job(tmp_path, frame, city, workload=ONE, data={"privacy_unit": "person", "max_rows_per_unit": 1})
    job = Job.read({name: content for name, content in job.items() if name != "budget"}).table
    assert job.search_share(job.read_domain()) == SHARE


def test_a_run_has_the_share_that_it_has_recorded(release, tmp_path):
    run = release._run.table
    assert run.manifest["search_share"] == COUNTING_SHARE
    job = Job.read(job_of(tmp_path)).table
    earlier = job.with_search_share(SHARE)  # of a run of a version that recorded none
    assert earlier.search_share(run.declared) == SHARE
    assert earlier.data == job.data
    assert dp.Release.open(release.path).marginal(("city",)) == pytest.approx(release.marginal(("city",)))


def test_a_run_of_an_earlier_version_has_its_own_share_and_estimates(release, tmp_path):
    copy = shutil.copytree(release.path, tmp_path / "copy")
    manifest = json.loads((copy / "manifest.json").read_text())
    assert manifest.pop("search_share")
    (copy / "manifest.json").write_text(json.dumps(manifest))
    run = open_table(copy)
    assert run.job.search_share(run.declared) == SHARE
    measured = run.measurements.evidence().least_squares().marginal(("city",))
    assert dp.Release.open(copy).marginal(("city",)) == pytest.approx(measured)


def test_a_repeated_run_spends_nothing(tmp_path):
    job = job_of(tmp_path)
    first, second = (dp.run(job, run_dir=tmp_path / "run") for _ in range(2))
    assert (first.marginal(("city",)) == second.marginal(("city",))).all()
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        [dataset] = ledger.summary()["datasets"].values()
    assert len(dataset["releases"]) == 2


def test_the_bundle_of_evidence_is_correct(release, tmp_path):
    (tmp_path / "selftest.json").write_text(json.dumps([{"name": "none", "passed": True, "detail": "not run"}]))
    given = ["evidence", str(release.path), "--selftest", str(tmp_path / "selftest.json")]
    assert CliRunner().invoke(main, given, catch_exceptions=False).exit_code == 0
    assert check_bundle(release.path / "evidence")["own_scripts"]


def test_refining_is_refused(release):
    with refused(JobError):
        dp.refine(release, epsilon=0.5, delta=1e-6)


def test_expected_errors_are_those_of_the_answers(tmp_path):
    import tomli_w

    job = job_of(tmp_path)
    (tmp_path / "job.toml").write_text(tomli_w.dumps(job))
    answer = CliRunner().invoke(main, ["plan", str(tmp_path / "job.toml"), "--json"])
    assert answer.exit_code == 0, answer.output
    read = Job.read(job).table
    total = read.search_budget(read.read_domain()).total.amount
    [family] = json.loads(answer.stdout)["families"]
    assert family["error"] == pytest.approx(total**-0.5, rel=0.02)


def test_dependent_errors_are_refused():
    plan = dp.plan(Workload(dp.Domain(a=5)).add("marginal", degree=1))
    evidence = PlanEvidence(plan, [1.0, 1.0], lambda block: np.zeros(1) if block == 0 else np.zeros(5))
    searched = SearchedCounts("a", np.arange(3), np.ones(3), 1.0)
    with refused(ValueError):
        SearchedEvidence(evidence.plan, evidence.variances, evidence.read, searched).least_squares()


def test_a_run_of_an_earlier_version_is_resumed_with_its_share(tmp_path, monkeypatch):
    """The search of such a run was charged 5 %; the rest of the budget is that of the counts."""
    job = job_of(tmp_path)
    monkeypatch.setattr("dpscale.job.table_job.COUNTING_SHARE", SHARE)
    run = begin_table(Job.read(job), tmp_path / "run")
    run_stages(run, only="discover")
    monkeypatch.undo()
    manifest = json.loads((tmp_path / "run/manifest.json").read_text())
    manifest.pop("search_share", None)
    (tmp_path / "run/manifest.json").write_text(json.dumps(manifest))
    run = begin_table(Job.read(job), tmp_path / "run")
    assert run.job.search_share(run.declared) == SHARE
    total = dp.run(job, tmp_path / "run").total()
    assert total.high - total.low < 300, "0.1 % of the budget has an interval of 2,000"
