"""Command `sql`, and what `plan` says about statements, on real files."""

import json

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import tomli_w
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from dpscale.answers.report.page import redacted
from dpscale.job import Job
from dpscale.ledger import Ledger
from dpscale.runs.opening import open_run
from dpscale.runs.statement import stated_job
from tests.messages import refused

TEXT = """-- name: by_sex
SELECT sex, COUNT(*) AS n, AVG(age) AS age FROM visits GROUP BY sex ORDER BY n DESC;
-- name: cube
-- weight: 0.25
SELECT sex, age, COUNT(*) AS n FROM visits GROUP BY CUBE (sex, age)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"sex": rng.choice(["F", "M"], 800, p=[0.7, 0.3]), "age": rng.integers(0, 8, 800)})
    frame.to_csv("visits.csv", index=False)
    domain = dp.Domain(sex=["F", "M"], age=8)
    (tmp_path / "d.toml").write_bytes(domain.to_files("d.toml")["d.toml"])
    (tmp_path / "tables.sql").write_text(TEXT)
    job = {"data": {"path": "visits.csv", "domain": "d.toml"}, "privacy": {"epsilon": 4.0, "delta": 1e-9},
           "workload": [{"sql": "tables.sql"}]}  # fmt: skip
    (tmp_path / "job.toml").write_text(tomli_w.dumps(job))
    return tmp_path


def call(*words):
    return CliRunner().invoke(main, list(words))


def given(text="tables.sql", *more):
    return ("sql", text, "--data", "visits.csv", "--domain", "d.toml", "--epsilon", "4", "--delta", "1e-9", *more)


def error_of(families, name):
    """Return the root mean square error of the queries of a statement."""
    mine = [(one["queries"], one["error"]) for one in families if one["family"].startswith(f"{name}-")]
    return (sum(count * error**2 for count, error in mine) / sum(count for count, _ in mine)) ** 0.5


def test_rows_are_printed_and_are_those_of_the_job(folder):
    done = call(*given())
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert lines[0] == "by_sex"
    assert lines[1].split() == ["sex", "n", "age"]
    assert [line.split()[0] for line in lines[2:4]] == ["F", "M"]
    again = call("run", "job.toml", "--json", "--quiet")
    assert json.loads(again.stdout)["repeated"]
    with Ledger.open("ledger.sqlite", create=False) as ledger:
        [dataset] = ledger.summary()["datasets"].values()
    assert [one["release"] for one in dataset["releases"]] == [json.loads(again.stdout)["release"]]


def test_json_names_the_files(folder):
    done = call(*given("tables.sql", "--json", "--quiet"))
    summary = json.loads(done.stdout)
    assert summary["queries"] == ["answers/queries/by_sex.parquet", "answers/queries/cube.parquet"]
    assert pq.read_table(f"{summary['run_dir']}/{summary['queries'][1]}").num_rows == 2 * 8 + 2 + 8 + 1


def test_plan_spends_nothing_and_names_statements(folder):
    done = call(*given("tables.sql", "--plan"))
    assert done.exit_code == 0
    assert "by_sex-1" in done.output
    assert not (folder / "ledger.sqlite").exists()


@pytest.mark.parametrize("text", ["SELECT MAX(age) FROM visits", "tables.txt"])
def test_wrong_text_spends_nothing(folder, text):
    done = call(*given(text))
    assert done.exit_code == 2
    assert done.output.startswith("dpscale: ")
    assert not (folder / "ledger.sqlite").exists()


def test_place_is_underlined(folder):
    sentence, written, marks = call(*given("SELECT MAX(age) FROM visits")).output.splitlines()
    assert written[marks.index("^") : len(marks)] == "MAX(age)"
    assert sentence.endswith("more: docs/sql.md")


def test_costs_are_errors_of_plans_without_a_statement(folder):
    summary = json.loads(call("plan", "job.toml", "--costs", "--json", "--quiet").stdout)
    [by_sex, cube] = summary["costs"]
    assert (by_sex["statement"], cube["statement"]) == ("by_sex", "cube")
    (folder / "tables.sql").write_text(TEXT.split(";")[0])
    alone = json.loads(call("plan", "job.toml", "--json", "--quiet").stdout)["families"]
    assert cube["error_without"] == pytest.approx(error_of(alone, "by_sex"), rel=1e-6)
    assert cube["error_beside"] > cube["error_without"]


def test_plan_states_errors_of_ratios_for_a_number_of_records(folder):
    [mean] = json.loads(call("plan", "job.toml", "--rows", "8000", "--json", "--quiet").stdout)["columns"]["columns"]
    assert (mean["statement"], mean["column"], mean["rows"]) == ("by_sex", "age", 2)
    text = call("plan", "job.toml", "--rows", "800", "--quiet").stdout
    [line] = [line for line in text.splitlines() if line.endswith("by_sex.age")]
    assert float(line.split()[0]) == pytest.approx(10 * mean["error"], rel=0.01)
    assert "if 800 records are spread evenly" in text


def test_epsilon_of_a_statement_gives_its_error(folder):
    found = json.loads(call("plan", "job.toml", "--error", "by_sex=2", "--json", "--quiet").stdout)
    job = (folder / "job.toml").read_text().replace("epsilon = 4.0", f"epsilon = {found['needed']['epsilon']!r}")
    (folder / "job.toml").write_text(job)
    families = json.loads(call("plan", "job.toml", "--json", "--quiet").stdout)["families"]
    assert error_of(families, "by_sex") == pytest.approx(2, rel=1e-3)


@pytest.mark.parametrize(("words", "said"), [(["--error", "young=2"], "by_sex"), (["--error", "few"], "NAME=NUMBER")])
def test_wrong_error_is_refused(folder, words, said):
    done = call("plan", "job.toml", *words)
    assert done.exit_code == 2
    assert said in done.output


def test_report_shows_statements_and_rows_once(folder):
    call("run", "job.toml", "--run-dir", "run", "--quiet")
    page = (folder / "run" / "report.html").read_text()
    assert '<h2 id="selects">' in page
    assert "GROUP BY CUBE (sex, age)" in page
    assert '<h2 id="listed">' not in page


@pytest.mark.parametrize("text", ["/* all visits */ ", "--://\n", "~"])
def test_report_and_evidence_show_texts_that_look_like_places(text):
    content = {"workload": [{"query": f"{text} SELECT 1"}], "privacy": {"dataset": "/srv/visits"}}
    for hidden in ("(not shown)", "(left out)"):
        found = redacted(content, hidden=hidden)
        assert found == content | {"privacy": {"dataset": hidden}}


def test_evidence_has_a_text_that_begins_with_a_comment(folder):
    (folder / "tables.sql").write_text(f"/* visits */ {TEXT}")
    call("run", "job.toml", "--run-dir", "run", "--quiet")
    assert b"/* visits */" in stated_job(open_run(folder / "run"))
    assert "/* visits */" in (folder / "run" / "report.html").read_text().split('id="job"')[1]


def test_changed_text_is_another_release(folder):
    call("run", "job.toml", "--run-dir", "one", "--quiet")
    (folder / "tables.sql").write_text(TEXT.replace("DESC", "ASC"))
    assert call("run", "job.toml", "--run-dir", "two", "--quiet").exit_code == 0
    with Ledger.open("ledger.sqlite", create=False) as ledger:
        [dataset] = ledger.summary()["datasets"].values()
    assert len(dataset["releases"]) == 2


def test_cluster_and_threads_give_the_same_rows(folder):
    from distributed import Client, LocalCluster

    content = {"data": {"path": "visits.csv", "domain": "d.toml"}, "engine": {"seed": 5},
               "privacy": {"epsilon": 4.0, "delta": 1e-9, "dataset": "v"}, "workload": [{"query": TEXT}]}  # fmt: skip
    one = dp.run(content, run_dir="threads", progress=None)
    with LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None) as cluster:
        other = dp.run(content, run_dir="cluster", client=Client(cluster), fresh=True, progress=None)
    pd.testing.assert_frame_equal(one.query("cube"), other.query("cube"))


LINK = {"kind": "one-to-many", "parent": "people", "child": "visits", "child_key": "pid", "max_degree": 3}


@pytest.mark.parametrize(
    ("condition", "fits"),
    [("ON v.pid = p.id", True), ("ON (p.id = v.pid)", True), ("ON v.pid = p.id AND p.sex = 'F'", False),
     ("ON v.pid <> p.id", False), ("ON TRUE", False), ("ON v.age = p.id", False), ("USING (pid)", False)],
)  # fmt: skip
def test_join_is_the_key_of_a_link_and_nothing_else(folder, condition, fits):
    people = dp.Domain(sex=["F", "M"], old=2)
    (folder / "p.toml").write_bytes(people.to_files("p.toml")["p.toml"])
    (folder / "v.toml").write_bytes(dp.Domain(age=8).to_files("v.toml")["v.toml"])
    sets = [{"family": "marginal", "degree": 1}]
    tables = {"people": {"path": "people.csv", "domain": "p.toml", "key": "id", "workload": sets},
              "visits": {"path": "v.csv", "domain": "v.toml", "key": "visit", "workload": sets}}  # fmt: skip
    text = f"SELECT p.sex, COUNT(*) AS n FROM visits v JOIN people p {condition} GROUP BY p.sex"
    job = {"tables": tables, "link": [LINK], "workload": [{"query": text}],
           "privacy": {"epsilon": 1.0, "delta": 1e-9, "unit": "people", "dataset": "d"}}  # fmt: skip
    if fits:
        assert list(Job.read(job).joined) == ["visits-people"]
    else:
        with refused(dp.JobError):
            Job.read(job)


def test_statement_of_a_table_reads_that_table(folder):
    domain = dp.Domain(age=8)
    (folder / "v.toml").write_bytes(domain.to_files("v.toml")["v.toml"])
    section = {"path": "v.csv", "domain": "v.toml", "key": "visit"}
    tables = {"visits": section | {"workload": [{"query": "SELECT COUNT(*) FROM people"}]}, "people": section}
    job = {"tables": tables, "link": [], "privacy": {"epsilon": 1.0, "delta": 1e-9, "dataset": "d"}}
    with refused(dp.JobError):
        Job.read(job)


def test_units_are_counted_by_the_values_of_attributes_only(folder):
    text = "SELECT upper(sex) AS s, COUNT(DISTINCT person) AS n, COUNT(*) AS k FROM visits GROUP BY s"
    with refused(dp.JobError):
        dp.sql(text, {"visits": "visits.csv"}, "d.toml", epsilon=1, unit="person", rows_per_unit=2)
    assert not (folder / "ledger.sqlite").exists()


def test_growing_table_has_rows_of_each_period(folder):
    rng = np.random.default_rng(2)
    frame = pd.DataFrame({"day": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 60, 900), "D"),
                          "sex": rng.choice(["F", "M"], 900)})  # fmt: skip
    frame.to_parquet("days.parquet")
    month = {"kind": "date", "by": "month", "low": "2024-01", "high": "2024-02"}
    domain = dp.Domain.from_dict({"attributes": {"day": month, "sex": {"kind": "categories", "values": ["F", "M"]}}})
    (folder / "days.toml").write_bytes(domain.to_files("days.toml")["days.toml"])
    job = {"data": {"path": "days.parquet", "domain": "days.toml", "period": "day"},
           "privacy": {"epsilon": 10.0, "delta": 1e-9},
           "workload": [{"query": "SELECT sex, COUNT(*) AS n FROM t GROUP BY sex"}]}  # fmt: skip
    release = dp.run(job, run_dir="growing", progress=None)
    found = release.query("query-1", period="2024-02", kind="cumulative")
    truth = frame[frame.day < "2024-03"].groupby("sex").size()
    assert (found.n - truth.to_numpy()).abs().max() < 8 * found.n_std_error.max()
    assert release.at("2024-01").query("query-1").n.tolist() == release.query("query-1", period="2024-01").n.tolist()


def test_table_is_a_statement(folder):
    """The table has the release of the same statement, and prints its rows and what was spent."""
    budget = ("--epsilon", "4", "--delta", "1e-9")
    done = call("table", "visits.csv", "--by", "sex, age", "--domain", "d.toml", *budget, "--quiet")
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert lines[1].split() == ["sex", "age", "records"]
    assert len(lines[2 : lines.index("")]) == 16
    assert "spent: epsilon 4 at delta 1e-09 of dataset ./visits.csv; there is no cap" in done.output
    page = next(line.removeprefix("report: ") for line in lines if line.startswith("report: "))
    assert "<h1>Records by sex and age</h1>" in (folder / page).read_text()
    text = '-- name: table\nSELECT "sex", "age", COUNT(*) AS "records" FROM data GROUP BY "sex", "age"'
    (folder / "one.sql").write_text(text)
    assert call(*given("one.sql", "--json", "--quiet")).exit_code == 0
    with Ledger.open("ledger.sqlite", create=False) as ledger:
        [dataset] = ledger.summary()["datasets"].values()
    assert len(dataset["releases"]) == 1


def test_repeated_table_tells_that_the_ledger_has_no_entry_of_it(folder):
    command = (
        "table",
        "visits.csv",
        "--by",
        "sex",
        "--domain",
        "d.toml",
        "--epsilon",
        "4",
        "--delta",
        "1e-9",
        "--quiet",
    )
    assert call(*command).exit_code == 0
    (folder / "ledger.sqlite").rename(folder / "moved.sqlite")
    again = call(*command)
    assert again.exit_code == 0, again.output
    assert "ledger.sqlite has no entry of dataset ./visits.csv: it was charged on another one" in again.output
    assert not (folder / "ledger.sqlite").exists()


def test_table_drafts_the_domain_and_asks_for_its_review(folder):
    done = call("table", "visits.csv", "--by", "sex", "--epsilon", "1")
    assert done.exit_code == 2
    assert "a private draft is in visits.domain.toml" in done.stderr
    assert not (folder / "ledger.sqlite").exists()
    draft = folder / "visits.domain.toml"
    assert draft.stat().st_mode & 0o077 == 0
    assert call("table", "visits.csv", "--by", "sex", "--epsilon", "1").exit_code == 2, "not reviewed"
    draft.write_text(draft.read_text().replace("reviewed = false", "reviewed = true"))
    assert call("table", "visits.csv", "--by", "sex", "--epsilon", "1", "--quiet").exit_code == 0


def test_table_in_python_has_intervals_and_means(folder):
    frame = pd.read_csv("visits.csv")
    found = dp.table(frame, "sex", domain="d.toml", epsilon=4, delta=1e-9, mean="age", dataset="v", ledger="l.sqlite")
    assert found.columns.tolist()[:2] == ["sex", "records"]
    truth = frame.groupby("sex")
    for name, exact in (("records", truth.size()), ("age", truth["age"].mean())):
        assert (abs(found[name] - exact.to_numpy()) <= 6 * found[f"{name}_std_error"]).all()
    whole = dp.table(frame, domain="d.toml", epsilon=4, delta=1e-9, dataset="v", ledger="l.sqlite")
    assert whole.columns.tolist()[0] == "records"
    with refused(dp.JobError):
        dp.table(frame, ["sx"], domain="d.toml", epsilon=4, dataset="v", ledger="l.sqlite")


def test_report_of_statements_alone_tells_their_intervals(folder):
    done = call(*given("tables.sql", "--json", "--quiet"))
    page = (folder / json.loads(done.stdout)["run_dir"] / "report.html").read_text()
    assert "have no standard errors" not in page
    assert "Intervals contain the true value in 95 % of the cases" in page
    assert "The errors of the answers to SQL are in their intervals" in page


@pytest.mark.parametrize("data", ["duckdb:///x.db?table=visits", "vis*.csv"])
def test_table_of_several_files_or_a_database_needs_its_domain(folder, data):
    before = {path.name for path in folder.iterdir()}
    done = call("table", data, "--by", "sex", "--epsilon", "1")
    assert done.exit_code == 2
    assert "--domain: missing for" in done.stderr
    assert {path.name for path in folder.iterdir()} == before


def test_table_of_a_dataset_with_a_seeded_release_says_that_epsilon_is_infinite(folder):
    job = {"data": {"path": "visits.csv", "domain": "d.toml"}, "privacy": {"epsilon": 1.0, "delta": 1e-9},
           "workload": [{"family": "marginal", "degree": 1}], "engine": {"seed": 1}}  # fmt: skip
    dp.run(job, progress=None)
    budget = ("--epsilon", "4", "--delta", "1e-9")
    done = call("table", "visits.csv", "--by", "sex", "--domain", "d.toml", *budget, "--quiet")
    assert done.exit_code == 0, done.output
    assert "spent: epsilon infinite at delta 1e-09 of dataset ./visits.csv; there is no cap" in done.output
