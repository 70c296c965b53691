"""Runs with searches: results, cost, repetition, engines, privacy units and refused jobs."""

import json
import re
import shutil
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from dpscale.audit.evidence import recompute
from dpscale.audit.evidence.check import check_bundle
from dpscale.base.errors import BudgetError, DataError, DomainError, DpscaleError, JobError
from dpscale.ledger import Ledger
from dpscale.privacy.accounting import Cost
from dpscale.runs.opening import read_job
from dpscale.runs.run import Run
from dpscale.runs.stages import discover
from tests.audit.forging import forge, records_of, remove, restate, run_script
from tests.discovery.small import CITIES, DOMAIN, PLANTED, WORKLOAD, make_frame, write_job
from tests.messages import refused
from tests.running import begin_table, end, open_table, run_stages
from tests.selection import mostly_slow


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    folder = tmp_path_factory.mktemp("discovery")
    return dp.run(write_job(folder, synthesize={"rows": 300}), run_dir=folder / "run")


def files_of(release):
    """Content of every file with released values."""
    folders = ("domain", "measurements", "answers")
    return {str(path.relative_to(release.path)): path.read_bytes()
            for folder in folders for path in sorted((release.path / folder).rglob("*")) if path.is_file()}  # fmt: skip


def searches_of(release):
    return json.loads((release.path / "domain/searches.json").read_text())


def test_found_cells(release):
    frame, domain = make_frame(), release.domain
    assert domain["city"].values == tuple(sorted(CITIES[:4]))
    assert domain["city"].labels[-2:] == ["(outside)", None]
    assert domain["zip"].values == (10115, 20095, 53111, 80331) or domain["zip"].values == (10115, 20095, 80331)
    assert 3 <= domain["age"].size <= 12
    assert not domain.searches
    assert domain.discovered == ("city", "zip", "age", "pay")
    low, high = domain["pay"].ends
    assert low == 0
    assert frame.pay.quantile(0.9) < high < 20 * frame.pay.max()
    mean = release.mean("pay")
    assert abs(mean.estimate - frame.pay.clip(0, high).mean()) < 6 * (mean.high - mean.estimate)


def test_rows_and_answers_use_the_found_cells(release):
    counts = release.marginal(["city", "sex"])
    assert counts.shape == (6, 2)
    frame = make_frame()
    frame = frame[frame.zip.isin(release.domain["zip"].values)]
    assert abs(counts[0].sum() - (frame.city == sorted(CITIES[:4])[0]).sum()) < 200
    rows = release.synthetic().compute()
    assert set(rows.zip) <= set(release.domain["zip"].values)
    assert (release.path / "report.html").exists()


def test_nothing_below_the_threshold_is_in_a_file(release):
    for path in release.path.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert PLANTED.encode() not in content
            assert json.dumps(PLANTED)[1:-1].encode() not in content
            assert b"Bonn" not in content


def test_cost_is_that_of_the_job(release):
    with Ledger.open(release.path.parent / "ledger.sqlite") as ledger:
        [dataset] = ledger.summary()["datasets"].values()
    rows = {row["release"]: row for row in dataset["releases"]}
    name = release.manifest["release"]
    assert set(rows) == {name, f"{name}-domain"}
    assert {row["state"] for row in rows.values()} == {"released"}
    total = Cost.total(Cost.from_dict(row["cost"]) for row in rows.values())
    assert 3.99 < total.epsilon(1e-6) <= 4.0
    assert 0.9e-6 / 2 < float(total.delta) <= 1e-6 / 2
    search, table = (Cost.from_dict(rows[one]["cost"]).squared_mu for one in (f"{name}-domain", name))
    assert float(search / (search + table)) == pytest.approx(0.3, rel=1e-3)


def test_a_repeated_run_spends_nothing(tmp_path):
    job = write_job(tmp_path)
    before = files_of(dp.run(job, run_dir=tmp_path / "run"))
    assert files_of(dp.run(job, run_dir=tmp_path / "run")) == before
    assert len(releases_in(tmp_path)) == 2


@pytest.mark.parametrize("change", mostly_slow(["files", "order", "synchronous", "memory"], {"order", "memory"}))
def test_same_result_however_the_rows_are_read(release, tmp_path, change):
    frame = make_frame()
    frame = frame.sample(frac=1, random_state=3) if change == "order" else frame
    engine = {"scheduler": "synchronous"} if change == "synchronous" else {}
    engine |= {"memory": "1MiB"} if change == "memory" else {}
    job = write_job(tmp_path, frame, files=5 if change == "files" else 2, engine=engine)
    run = begin_table(read_job(job), tmp_path / "run")
    plans = {name: plan.record for name, plan in discover.plan_searches(run).items()}
    assert plans == {name: own["measurement"] for name, own in searches_of(release).items()}
    assert exact_searches(run) == exact_searches(open_table(release.path))


def exact_searches(run):
    """Results of the searches of a run under one key and one snapshot, so that only the reading differs."""
    from dpscale.discovery.reading import SearchRows
    from dpscale.engine.counting import partition_groups
    from dpscale.engine.schedulers import resolve
    from dpscale.privacy.secret import SecretFile, make_secret, read_secret, secret_tag
    from dpscale.runs.searches import SearchReader, perform_search
    from dpscale.runs.source import attributes_read, open_table

    key = run.path.parent / "common.key"
    make_secret(key, 7)
    names, engine = attributes_read(run), resolve(scheduler=run.job.engine.scheduler)
    table = open_table(run, names, engine).split()
    groups = partition_groups(table.partitions, engine.workers)
    secret, types = SecretFile(key, secret_tag(read_secret(key))), {"city": "text", "zip": "integer"}
    rows = SearchRows.of(run.declared, names)
    reader = SearchReader(engine, rows, groups, {}, types, secret, {"release": "x"}, run.job.engine.bytes)
    return {
        name: perform_search(run.declared[name], plan, reader) for name, plan in discover.plan_searches(run).items()
    }


def test_stages_one_by_one_and_after_an_interruption(tmp_path, monkeypatch):
    job = write_job(tmp_path)
    run = begin_table(read_job(job), tmp_path / "run")
    with refused(JobError):
        run_stages(run, only="plan")
    real = discover.perform_search
    monkeypatch.setattr(discover, "perform_search", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        run_stages(run, only="discover")
    assert run.manifest["discovery"] is not None
    assert not (run.path / "domain").exists()
    monkeypatch.setattr(discover, "perform_search", real)
    run = open_table(run.path)
    run_stages(run, only="discover")
    first = (run.path / "domain/searches.json").read_bytes()
    for stage in ("plan", "measure", "reconstruct", "report"):
        run_stages(open_table(run.path), only=stage)
    other = dp.run(write_job(tmp_path), run_dir=tmp_path / "other")
    assert (other.path / "domain/searches.json").read_bytes() == first
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        [dataset] = ledger.summary()["datasets"].values()
    assert len(dataset["releases"]) == 2


def test_changed_data_between_the_stages_are_refused(tmp_path):
    run = begin_table(read_job(write_job(tmp_path)), tmp_path / "run")
    for stage in ("discover", "plan"):
        run_stages(run, only=stage)
    frame = make_frame()
    frame.loc[0, "age"] = 99
    write_job(tmp_path, frame)
    with refused(DataError):
        run_stages(open_table(run.path), only="measure")


def test_files_that_change_during_a_search_are_refused(tmp_path, monkeypatch):
    run = begin_table(read_job(write_job(tmp_path)), tmp_path / "run")
    real = discover.perform_search

    def search_and_rewrite(*arguments):
        found = real(*arguments)
        write_job(tmp_path, make_frame().iloc[1:])
        return found

    monkeypatch.setattr(discover, "perform_search", search_and_rewrite)
    with refused(DataError):
        run_stages(run, only="discover")
    assert not (run.path / "domain").exists()


def test_a_copy_that_finds_something_else_is_refused(tmp_path, monkeypatch):
    run = begin_table(read_job(write_job(tmp_path)), tmp_path / "run")
    copy = shutil.copytree(run.path, tmp_path / "copy")
    run_stages(run, only="discover")
    real = discover.perform_search
    monkeypatch.setattr(discover, "perform_search", lambda attribute, plan, reader: (
        real(attribute, plan, reader)[0], {"found": [], "public": [], "error": 1.0, "threshold": 1.0}))  # fmt: skip
    with pytest.raises(BudgetError):
        run_stages(open_table(copy), only="discover")
    assert not (copy / "domain/domain.toml").exists()


@pytest.mark.parametrize("mechanism", ["aim-grem", "mst"])
def test_mechanisms_that_refuse_numbers_cost_nothing(tmp_path, mechanism):
    job = write_job(tmp_path) | {"mechanism": {"name": mechanism}}
    with refused(DpscaleError):
        dp.run(job, run_dir=tmp_path / "run")
    assert not (tmp_path / "run/domain").exists()


def test_a_copy_with_other_data_is_refused(tmp_path):
    """The seed gives both copies one key; the noise of other data under one charge would be a second release."""
    run = begin_table(read_job(write_job(tmp_path)), tmp_path / "run")
    copy = shutil.copytree(run.path, tmp_path / "copy")
    run_stages(run, only="discover")
    write_job(tmp_path, make_frame().iloc[1:])
    with refused(BudgetError):
        run_stages(open_table(copy), only="discover")
    assert not (copy / "domain").exists()


def test_an_edited_domain_is_refused(tmp_path):
    run = begin_table(read_job(write_job(tmp_path)), tmp_path / "run")
    run_stages(run, only="discover")
    text = (run.path / "domain/domain.toml").read_text()
    (run.path / "domain/domain.toml").write_text(text.replace("Hamburg", PLANTED))
    with refused(JobError):
        run_stages(open_table(run.path), only="plan")


def test_an_ended_run_keeps_its_charge(tmp_path):
    run = begin_table(read_job(write_job(tmp_path)), tmp_path / "run")
    run_stages(run, only="discover")
    assert end(open_table(run.path))["how"] == "abandoned"
    assert not (run.path / "secret.key").exists()
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        assert len(next(iter(ledger.summary()["datasets"].values()))["releases"]) == 1


def test_rows_of_a_unit_are_bounded_first(tmp_path):
    frame = make_frame()
    frame.loc[frame.index[:3000], "city"] = "Solo"
    frame.loc[frame.index[:3000], "person"] = 0
    unit = {"privacy_unit": "person", "max_rows_per_unit": 2}
    one = dp.run(write_job(tmp_path / "a", frame, data=unit), run_dir=tmp_path / "a/run")
    assert "Solo" not in one.domain["city"].values
    found = searches_of(one)["city"]
    assert found["threshold"] > 2 * searches_of(dp.run(write_job(tmp_path / "b"), run_dir=tmp_path / "b/run"))[
        "city"]["threshold"] * 0.95  # fmt: skip


def test_a_data_frame_and_a_filter(tmp_path):
    job = write_job(tmp_path, data={"where": "sex = 'f'"})
    del job["data"]["path"]
    job["privacy"]["dataset"] = "frame"
    frame = make_frame()
    release = dp.run(job, data=frame, run_dir=tmp_path / "run")
    assert set(release.domain["city"].values) <= set(CITIES)
    assert release.path.joinpath("domain/domain.toml").exists()


def run_with(folder, domain=None, **job):
    return dp.run(write_job(folder, domain=domain or DOMAIN, **job), run_dir=folder / "run")


def with_attribute(**table):
    return {"attributes": {**DOMAIN["attributes"], "city": table}}


WRONG_DOMAINS = {
    "max_length = 0": with_attribute(kind="discover", max_length=0),
    "outside": with_attribute(kind="discover", outside="category"),
    "values": with_attribute(kind="discover", values=[1.5]),
    "other": with_attribute(kind="discover", other="yes"),
    "assumed": with_attribute(kind="discover", assumed=1),
    "levels": with_attribute(kind="discover", file="tree.csv"),
    "file": with_attribute(kind="discover", file="tree.csv", levels=["a"]),
    "edges and low": with_attribute(kind="bins", edges="private", low=0),
    "log": with_attribute(kind="bins", edges="private", log=10),
    "step": with_attribute(kind="bins", edges="private", low=0, high=9, step=2),
    "public edges": with_attribute(kind="bins", edges=[0, 1, 2], low=0),
    "number": {**DOMAIN, "numbers": {"pay": {"low": 0, "high": "private", "outside": "reject"}}},
    "rule": {**DOMAIN, "rule": [{"rule": "if sex = 'f' then city != 'Bonn'"}]},
    "parent": with_attribute(kind="discover", parent={"land": {"a": ["b"]}}),
}


@pytest.mark.parametrize("name", WRONG_DOMAINS)
def test_wrong_domains_are_refused_in_one_sentence(tmp_path, name):
    with pytest.raises(DomainError) as caught:
        run_with(tmp_path, WRONG_DOMAINS[name])
    assert str(caught.value).count("\n") == 0
    assert not (tmp_path / "ledger.sqlite").exists()
    assert not (tmp_path / "run").exists()


WRONG_JOBS = {
    "pure": {"privacy": {"delta": None}},
    "rho without delta": {"privacy": {"epsilon": None, "delta": None, "rho": 0.1}},
    "delta above": {"budget": {"discover_delta": 1e-5}},
    "too small": {"privacy": {"epsilon": 0.001, "public_rows": 6000}},
    "city found": {"workload": [{"family": "predicates", "conditions": ["city = 'Berlin' or sex = 'f'"]}]},
    "city assumed": {"workload": [{"family": "predicates", "conditions": ["city != '(value 1)'"]}]},
    "code found": {"workload": [{"family": "predicates", "conditions": ["zip in (10115, 20095)"]}]},
    "edges assumed": {"workload": [{"family": "predicates", "conditions": ["age < 32 and sex = 'f'"]}]},
    "city in SQL": {"workload": [{"query": "SELECT COUNT(*) FROM t WHERE city = 'Berlin'"}]},
    "rows of one column": {
        "workload": [{"family": "predicates", "conditions": ["city is null or sex = 'f'"]}],
        "synthesize": {"rows": 9},
    },
    "maxent of one column": {
        "workload": [
            {"family": "marginal", "attributes": [["sex"]]},
            {"family": "predicates", "conditions": ["city is null or zip = 10115"]},
        ],
        "reconstruct": {"method": "maxent"},
    },
    "edges in SQL": {"workload": [{"query": "SELECT COUNT(*) FROM t WHERE age >= 1"}]},
}


@pytest.mark.parametrize("name", WRONG_JOBS)
def test_wrong_jobs_are_refused_and_spend_nothing(tmp_path, name):
    changes = WRONG_JOBS[name]
    job = write_job(tmp_path, **changes)
    job["privacy"] = {key: value for key, value in job["privacy"].items() if value is not None}
    with refused(DpscaleError):
        dp.run(job, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "ledger.sqlite").exists() or not releases_in(tmp_path)


def releases_in(folder):
    with Ledger.open(folder / "ledger.sqlite") as ledger:
        return [row for one in ledger.summary()["datasets"].values() for row in one["releases"]]


WRONG_COLUMNS = {
    "missing": lambda frame: frame.drop(columns="city"),
    "floats": lambda frame: frame.assign(city=np.arange(len(frame)) / 2),
    "texts": lambda frame: frame.assign(age="old"),
    "refused null": lambda frame: frame.assign(zip=frame.zip.where(frame.index != 5).astype("Int64")),
    "public column": lambda frame: frame.assign(sex=frame.sex.where(frame.index != 5, "x")),
    "outside": lambda frame: frame.assign(age=frame.age.where(frame.index != 5, 300)),
}


@pytest.mark.parametrize("name", WRONG_COLUMNS)
def test_wrong_columns_are_refused_and_spend_nothing(tmp_path, name):
    with pytest.raises(DataError) as caught:
        run_with(tmp_path, frame=WRONG_COLUMNS[name](make_frame()))
    assert str(caught.value).count("\n") == 0
    assert "old" not in str(caught.value)
    assert "300" not in str(caught.value)
    assert not (tmp_path / "ledger.sqlite").exists() or not releases_in(tmp_path)


def test_a_cap_is_respected_before_anything_is_drawn(tmp_path):
    job = write_job(tmp_path)
    job["engine"] = {}
    arguments = [
        "ledger",
        "cap",
        job["privacy"]["ledger"],
        "--dataset",
        job["data"]["path"],
        "--epsilon",
        "1",
        "--delta",
        "1e-6",
    ]
    CliRunner().invoke(main, arguments, catch_exceptions=False)
    with refused(DpscaleError):
        dp.run(job, run_dir=tmp_path / "run")
    assert not releases_in(tmp_path)
    job["privacy"]["epsilon"] = 1.0
    release = dp.run(job, run_dir=tmp_path / "run")
    assert len(releases_in(tmp_path)) == 2
    assert release.manifest["stages"]["measure"]["state"] == "done"


def test_plan_says_what_is_assumed(tmp_path):
    import tomli_w

    (tmp_path / "job.toml").write_text(tomli_w.dumps(write_job(tmp_path)))
    shown = CliRunner().invoke(main, ["plan", str(tmp_path / "job.toml")], catch_exceptions=False).output
    assert "city (22), zip (20), age (60) are not public" in shown
    assert "The range of pay is not public" in shown


def test_commands_of_the_stage(tmp_path):
    import tomli_w

    (tmp_path / "job.toml").write_text(tomli_w.dumps(write_job(tmp_path)))
    job, directory = str(tmp_path / "job.toml"), str(tmp_path / "run")
    listed = json.loads(CliRunner().invoke(main, ["job", "stages", "--json"], catch_exceptions=False).output)["stages"]
    assert [one["name"] for one in listed][:2] == ["discover", "plan"]
    for arguments in (
        ["run", job, "--only", "discover", "--run-dir", directory],
        ["plan", job, "--run-dir", directory],
        ["run", directory, "--only", "measure"],
        ["run", directory, "--only", "reconstruct"],
    ):
        found = CliRunner().invoke(main, [*arguments, "--quiet"], catch_exceptions=False)
        assert found.exit_code == 0, found.output
    assert dp.Release.open(directory).domain["city"].size >= 4


def test_squared_budgets_add_up(tmp_path):
    job = read_job(write_job(tmp_path)).table
    found = job.search_budget(job.read_domain())
    spent = found.each * 4 + Fraction(found.remaining.amount)
    assert spent <= Fraction(found.total.amount)
    assert Cost(gaussian=spent, delta=found.total_delta).epsilon(1e-6) <= 4.0


def test_frames_of_other_types(tmp_path):
    frame = make_frame().assign(city=lambda one: one.city.astype("category"), pay=lambda one: one.pay.astype(str))
    release = run_with(tmp_path, frame=frame.assign(pay=frame.pay.where(frame.pay != "nan", None)))
    assert set(release.domain["city"].values) <= set(CITIES)
    assert isinstance(release.mean("pay").estimate, float)
    assert pd.notna(release.mean("pay").estimate)


@pytest.fixture(scope="module")
def bundle(release):
    (release.path.parent / "selftest.json").write_text(
        json.dumps([{"name": "none", "passed": True, "detail": "not run"}])
    )
    given = ["evidence", str(release.path), "--selftest", str(release.path.parent / "selftest.json")]
    assert CliRunner().invoke(main, given, catch_exceptions=False).exit_code == 0
    return release.path / "evidence"


def test_evidence_recomputes_the_searches(bundle, tmp_path):
    assert check_bundle(bundle)["own_scripts"]
    alone = run_script(bundle)
    assert alone.returncode == 0, alone.stdout + alone.stderr
    assert "are correct" in alone.stdout


def scale(names, key, factor):
    """Return a change of the noise of some searches, with the costs that follow."""

    def change(files):
        searched = searches_in(files)
        for record in (one for name in names for one in searched[name]):
            record[key] = str(int(int(record[key]) * factor))
        restate(files)

    return change


def searches_in(files):
    """Records by attribute: the draws of a search are listed in the order of the searches."""
    records = records_of(files, entry="-domain")
    nodes = [one for one in records if "group" in one]
    [attribute] = {one["group"] for one in nodes}
    single = iter([one for one in records if "group" not in one])
    names = [name for name in files["domain"]["discovered"] if name != attribute]
    return {attribute: nodes} | {name: [next(single)] for name in names}


def without(name):
    def change(files):
        remove(files, searches_in(files)[name])
        restate(files)

    return change


def other_path(files):
    """Claim that nodes of one path are on different ones."""
    for number, record in enumerate(searches_in(files)["age"]):
        record["path"] = f"{number:030b}"
    for record in searches_in(files)["age"]:
        record["variance"] = str(int(record["variance"]) // 8)
    restate(files)


def without_threshold(files):
    [record] = searches_in(files)["zip"]
    del record["threshold"]
    restate(files)


FORGERIES = {
    "less noise": (scale(["city"], "variance", 0.5), "but .* was charged"),
    "a lower threshold": (scale(["zip"], "threshold", 0.95), "additive"),
    "less noise of ends": (scale(["pay"], "variance", 0.8), "but .* was charged"),
    "less noise of nodes": (scale(["age"], "variance", 0.5), "but .* was charged"),
    "more noise": (scale(["city", "zip", "pay"], "variance", 9), "only"),
    "no search": (without("age"), "only"),
    "other path": (other_path, "was charged|only"),
    "no threshold": (without_threshold, "another number of thresholds"),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGERIES)
def test_forged_searches_are_found(bundle, tmp_path, name):
    change, words = FORGERIES[name]
    faults = recompute.faults(forge(bundle, tmp_path / "copy", change))
    assert any(re.search(words, one) for one in faults), faults


def test_what_a_search_found_is_in_release_and_report(release):
    cities = release.found("city")
    assert cities.cell.tolist() == sorted(CITIES[:4])
    exact = make_frame().city.value_counts()
    assert (np.abs(cities.estimate - exact[cities.cell].to_numpy()) < 6 * cities.std_error).all()
    assert release.found("age").estimate.sum() == pytest.approx(6000, rel=0.05)
    assert "clipped to 0" in release.found("pay").attrs["facts"][0]
    with refused(DomainError):
        release.found("sex")
    page = (release.path / "report.html").read_text()
    assert "Discovered cells" in page
    assert "edges of bins" in page


def test_means_with_the_clipped_part(release):
    frame, (_, high) = make_frame(), release.domain["pay"].ends
    inside, whole = release.mean("pay"), release.mean("pay", bias="tail")
    found = searches_of(release)["pay"]
    assert whole.estimate - inside.estimate == pytest.approx(found["above"], rel=0.15)
    assert (whole.low, whole.high) == (inside.low, inside.high)
    clipped = release.domain["pay"].clipped
    assert clipped == (0, pytest.approx(1.25 * found["above_limit"]))
    assert found["above_limit"] >= found["above"]
    assert inside.high - inside.estimate > clipped[1]
    assert inside.low < frame.pay.mean() < inside.high
    assert abs(found["above"] - (frame.pay - frame.pay.clip(upper=high)).mean()) < 3
    assert release.mean("pay", by="sex", bias="tail").estimate.gt(release.mean("pay", by="sex").estimate).all()
    for wrong in ({"bias": "head"}, {"bias": "tail", "attribute": "age"}):
        with refused(JobError):
            release.mean(**{"attribute": "pay", **wrong})


def test_a_search_that_sees_no_values_is_refused_before_the_main_charge(tmp_path):
    frame = make_frame(200)
    domain = DOMAIN | {"attributes": {"sex": DOMAIN["attributes"]["sex"]}}
    job = write_job(tmp_path, frame, domain, workload=WORKLOAD[1:], privacy={"epsilon": 0.1})
    with refused(DomainError) as caught:
        dp.run(job, run_dir=tmp_path / "run")
    assert caught.value.exit_code == 2
    with Ledger.open(job["privacy"]["ledger"]) as ledger:
        [dataset] = ledger.summary()["datasets"].values()
    assert [row["release"].rpartition("-")[2] for row in dataset["releases"]] == ["domain"]
    domain["numbers"]["pay"]["fallback"] = [300]
    again = tmp_path / "again"
    again.mkdir()
    job = write_job(again, frame, domain, workload=WORKLOAD[1:], privacy={"epsilon": 0.1})
    found = dp.run(job, run_dir=again / "run")
    assert found.domain["pay"].ends == (0, 300)
    assert "Nothing is known about the share beyond" in (again / "run/report.html").read_text()


def test_conditions_on_cells_that_no_search_decides(tmp_path):
    frame = make_frame()
    conditions = ["zip = 10115", "zip != 10115 and sex = 'f'", "city is null", "city is not null or sex = 'f'"]
    job = write_job(tmp_path, frame, workload=[{"family": "predicates", "conditions": conditions}])
    release = dp.run(job, run_dir=tmp_path / "run")
    true = [(frame.zip == 10115).sum(), ((frame.zip != 10115) & (frame.sex == "f")).sum(), frame.city.isna().sum(),
            (frame.city.notna() | (frame.sex == "f")).sum()]  # fmt: skip
    files = (release.path / "answers").glob("conditions-*/*.parquet")
    answers = [value for path in files for value in pd.read_parquet(path)["estimate"]]
    np.testing.assert_allclose(sorted(answers), sorted(true), atol=100)


STATEMENTS = {  # condition on a column that is searched: whether it is true for a value
    "city LIKE 'B%'": lambda city: city.startswith("B"),
    "LENGTH(city) > 6": lambda city: len(city) > 6,
    "UPPER(city) <> 'BERLIN'": lambda city: city != "Berlin",
    "city LIKE '%x%'": lambda city: "x" in city,  # no city, but assumed cells would be
}


def test_functions_of_found_values_in_sql(tmp_path):
    counts = ", ".join(f"SUM(CASE WHEN {condition} THEN 1 ELSE 0 END)" for condition in STATEMENTS)
    frame = make_frame()
    job = write_job(tmp_path, frame, workload=[{"query": f"SELECT {counts} FROM t"}])
    release = dp.run(job, run_dir=tmp_path / "run")
    found = frame.city[frame.city.isin(release.found("city")["cell"])]
    [row] = pd.read_parquet(release.path / "answers/queries/query-1.parquet").to_numpy().tolist()
    true = [int(found.map(holds).sum()) for holds in STATEMENTS.values()]
    np.testing.assert_allclose(row[::4], true, atol=100)


def test_condition_that_no_found_value_satisfies_is_charged_for_its_search_alone(tmp_path):
    job = write_job(tmp_path, workload=[{"query": "SELECT COUNT(*) FROM t WHERE city LIKE 'Z%'"}])
    with refused(JobError):
        dp.run(job, run_dir=tmp_path / "run")
    assert [row["release"].rpartition("-")[2] for row in releases_in(tmp_path)] == ["domain"]


def test_counting_with_unknown_cells_is_refused(tmp_path):
    from dpscale.counting.count import count_marginals
    from dpscale.domain import Domain

    job = write_job(tmp_path)
    table = dp.Table.open(job["data"]["path"], Domain.read(job["data"]["domain"]))
    assert count_marginals(table, [("sex",)])[("sex",)].sum() == 6000
    with refused(DataError):
        count_marginals(table, [("city", "sex")])


@pytest.mark.slow
def test_plain_steps(tmp_path):
    import tomli_w

    (tmp_path / "job.toml").write_text(tomli_w.dumps(write_job(tmp_path)))
    steps = Path(__file__).parents[2] / "pipelines/steps.py"
    subprocess.run([sys.executable, steps, tmp_path / "job.toml", tmp_path / "run"], check=True, capture_output=True)
    assert dp.Release.open(tmp_path / "run").domain["city"].size >= 4


@pytest.mark.parametrize("name", ["commit", "publish", "_mark"])
def test_a_kill_at_the_end_of_the_stage_is_resumed(tmp_path, monkeypatch, name):
    run = begin_table(read_job(write_job(tmp_path)), tmp_path / "run")
    owner = Ledger if name != "_mark" else Run
    real, calls = getattr(owner, name), []

    def killed(self, *arguments, **changes):
        if name == "_mark" and changes.get("state") != "done":
            return real(self, *arguments, **changes)
        found = None if name == "_mark" else real(self, *arguments)
        if not calls:
            calls.append(arguments)
            raise KeyboardInterrupt
        return real(self, *arguments, **changes) if name == "_mark" else found

    monkeypatch.setattr(owner, name, killed)
    with pytest.raises(KeyboardInterrupt):
        run_stages(run, only="discover")
    before = (run.path / "domain/searches.json").read_bytes()
    for stage in ("discover", "plan", "measure"):
        run_stages(open_table(run.path), only=stage)
    assert (run.path / "domain/searches.json").read_bytes() == before
    assert [row["state"] for row in releases_in(tmp_path)] == ["released", "released"]


def test_a_unit_with_different_rows_in_files_counts_the_same_on_every_scheduler(tmp_path):
    frame = pd.DataFrame({
        "person": np.repeat(np.arange(2000), 2),
        "city": np.tile(["plumless", "buckeroo"], 2000),
        "sex": "f",
    })  # fmt: skip
    domain = {"attributes": {"city": {"kind": "discover"}, "sex": {"kind": "categories", "values": ["f", "m"]}}}
    found, workload = [], [{"family": "marginal", "attributes": [["city"]]}]
    unit = {"privacy_unit": "person", "max_rows_per_unit": 1}
    for scheduler in ("synchronous", "threads"):
        engine = {"scheduler": scheduler}
        job = write_job(tmp_path / scheduler, frame, domain, engine=engine, workload=workload, data=unit)
        found.append(dp.run(job, run_dir=tmp_path / scheduler / "run").found("city").cell.tolist())
    assert found[0] == found[1] == ["buckeroo", "plumless"]


def test_an_ended_run_reports_the_charge_of_the_searches(tmp_path):
    run = begin_table(read_job(write_job(tmp_path)), tmp_path / "run")
    run_stages(run, only="discover")
    found = end(open_table(run.path))
    assert found["charged"] is None
    assert found["searches"]["release"].endswith("-domain")


def test_a_charged_run_is_not_removed(tmp_path, monkeypatch):
    from dpscale.base.errors import BudgetError
    from dpscale.runs import charge
    from dpscale.runs.runner import remove_on_error

    def fail(*_):
        raise BudgetError("privacy.ledger", "a failure after the charge", "none", "none")

    monkeypatch.setattr(charge, "record_ledger_link", fail)
    run = begin_table(read_job(write_job(tmp_path)), tmp_path / "run")
    with refused(BudgetError), remove_on_error(run.run):
        run_stages(run, only="discover")
    assert (run.path / "secret.key").exists()


def test_names_with_punctuation(tmp_path):
    domain = {"attributes": {"a: b": {"kind": "discover", "from": "city", "nulls": "drop"}}}
    release = dp.run(write_job(tmp_path, domain=domain, workload=[{"family": "marginal", "degree": 1}]),
                     run_dir=tmp_path / "run")  # fmt: skip
    assert "Berlin" in release.domain["a: b"].values


@pytest.mark.parametrize("name", ["pay", "city"])
def test_a_search_of_another_version_is_not_resumed(tmp_path, monkeypatch, name):
    job = write_job(tmp_path)
    run = begin_table(read_job(job), tmp_path / "run")
    plans = discover.plan_searches(run)
    kind, record = type(plans[name]), type(plans[name]).record.fget

    def stopped(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as earlier:
        earlier.setattr(kind, "record", property(lambda plan: record(plan) | {"version": 1}))
        earlier.setattr(discover, "perform_search", stopped)
        with pytest.raises(KeyboardInterrupt):
            dp.run(job, run_dir=tmp_path / "run")
    with refused(DpscaleError) as caught:
        dp.run(job, run_dir=tmp_path / "run")
    assert caught.value.exit_code in (2, 3)
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        assert len(next(iter(ledger.summary()["datasets"].values()))["releases"]) == 1
