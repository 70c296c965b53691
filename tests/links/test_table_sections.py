"""Every section of a job of one table works for each table of a job of several."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import tomli_w
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from dpscale.job import Job
from dpscale.job.job import job_digest
from dpscale.job.neighbours import table_jobs
from dpscale.ledger import Ledger
from dpscale.privacy.accounting import Cost
from tests.audit.small import write_selftest
from tests.links.small import make_job, table_section, write_job
from tests.messages import refused

RANGES = [{"family": "prefix", "attributes": [["age"]]}, {"family": "marginal", "degree": 2}]


def with_persons(**more):
    job = make_job()
    return {"tables": job["tables"] | {"persons": table_section("persons", "id", **more)}}


def test_sections_of_table_are_those_of_its_run(tmp_path):
    persons = {
        "workload": RANGES,
        "mechanism": {"name": "residual-planner-plus"},
        "reconstruct": {"method": "maxent"},
        "synthesize": {"rows": 200, "method": "sampler", "parts": 2},
        "output": {"level": 0.9},
        "snapshot": "footers",
    }
    release = dp.run(write_job(tmp_path, with_persons(**persons)), tmp_path / "run").tables["persons"]
    assert release.plan.mechanism == "residual-planner-plus"
    assert [part.name for part in release.plan.workload.parts] == ["prefix", "marginal"]
    assert len(list((tmp_path / "run/tables/persons/synthetic").glob("*.parquet"))) == 2
    assert len(release.synthetic()) == 200
    assert (release.marginal(("age",)) >= 0).all()
    assert release.table(("age",), family="prefix").shape[0] == 4


def test_section_and_name_of_mechanism_are_equal(tmp_path):
    name = with_persons(mechanism="aim-grem", rounds=4)
    section = with_persons(mechanism={"name": "aim-grem", "rounds": 4})
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    jobs = [Job.read(write_job(tmp_path / folder, job)) for folder, job in (("a", name), ("b", section))]
    options = [table_jobs(job)["persons"].options for job in jobs]
    assert options[0] == options[1]
    assert options[0].rounds == 4


def test_unused_sections_do_not_change_digest(tmp_path):
    """The digest is computed from the keys that the job sets."""
    job = Job.read(write_job(tmp_path))
    assert "reconstruct" not in job.to_dict()["tables"]["persons"]
    assert job_digest(job) == job_digest(Job.parse(job.to_dict(), tmp_path).at(job.folder, job.places))


def test_file_of_queries_is_relative_to_job(tmp_path, monkeypatch):
    np.save(tmp_path / "queries.npy", np.eye(4)[:2])
    predicates = [{"family": "predicates", "attributes": [["age"]], "file": "queries.npy"}]
    path = write_job(tmp_path, with_persons(workload=predicates, mechanism="weighted-residuals"))
    monkeypatch.chdir("/")
    plan = table_jobs(Job.read(path))["persons"]
    assert plan.build_workload(plan.read_domain()).query_count == 2


@pytest.mark.parametrize("section", [
    {"mechanism": {"name": "aim-grem"}, "rounds": 4},
    {"synthesize": {"weights": True}},
    {"rows": 10, "synthesize": {"rows": 20}},
    {"reconstruct": {"method": "nothing"}},
    {"mechanism": {"name": "nothing"}},
    {"output": {"levels": 0.9}},
])  # fmt: skip
def test_wrong_section_is_refused_in_one_sentence(tmp_path, section):
    with refused(dp.JobError) as caught:
        dp.run(write_job(tmp_path, with_persons(**section)), tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_formats_of_tables_are_read(tmp_path):
    """A table of CSV files with its own delimiter and names, in a file with another ending."""
    path = write_job(tmp_path, with_persons(format="csv", delimiter=";"))
    frame = pd.concat(pd.read_parquet(one) for one in (tmp_path / "data/persons").glob("*.parquet"))
    frame.to_csv(tmp_path / "persons.data", sep=";", index=False)
    changed = path.read_text().replace('path = "data/persons/*.parquet"', 'path = "persons.data"')
    path.write_text(changed)
    release = dp.run(path, tmp_path / "run")
    assert abs(release.tables["persons"].total().estimate - len(frame)) < 100


def household_frame(rows=900):
    """Return rows of households of one to nine persons, in random order."""
    rng = np.random.default_rng(3)
    frame = pd.DataFrame({"age": rng.integers(0, 4, rows), "sex": rng.choice(["F", "M"], rows)})
    return frame.assign(household=[f"h{i}" for i in rng.integers(0, rows // 3, rows)])


def unit_job(form, **more):
    """Return a job with the same privacy unit in one of both forms, with little noise."""
    unit = {"privacy_unit": "household", "max_rows_per_unit": 2, **more}
    section = {"workload": [{"family": "marginal", "degree": 2}], "mechanism": {"name": "residual-planner"}}
    shared = {"engine": {"scheduler": "synchronous", "seed": 7},
              "privacy": {"privacy_cost": 1e6, "dataset": form, "allow_weak_privacy": True}}  # fmt: skip
    if form == "tables":
        return shared | {"link": [], "tables": {"persons": table_section("persons", **section, **unit)}}
    return shared | section | {"data": table_section("persons", **unit)}


def write_units(folder, form, **more):
    job = unit_job(form, **more)
    data = {"persons": household_frame()}
    if form == "tables":
        return write_job(folder, job, data)
    path = write_job(folder, None, data)
    path.write_text(tomli_w.dumps(job))
    return path


def test_privacy_unit_of_table_bounds_rows_as_in_the_short_form(tmp_path):
    """The kept rows of a unit follow from the rows alone, so both forms count the same ones."""
    counts, rows = {}, {}
    for form in ("data", "tables"):
        (tmp_path / form).mkdir()
        release = dp.run(write_units(tmp_path / form, form), tmp_path / form / "run")
        table = next(iter(release.tables.values()))
        counts[form] = np.rint(table.marginal(("age", "sex")))
        with Ledger.open(tmp_path / form / "ledger.sqlite", create=False) as ledger:
            [rows[form]] = ledger.summary()["datasets"][form]["releases"]
    per_unit = household_frame().groupby("household").size().clip(upper=2).sum()
    assert counts["data"].tolist() == counts["tables"].tolist()
    assert counts["tables"].sum() == per_unit < 900
    assert [(row["unit"], row["bound"]) for row in rows.values()] == [("household", 2)] * 2
    costs = [float(Cost.from_dict(row["cost"]).squared_mu) for row in rows.values()]
    assert costs[1] == pytest.approx(costs[0], rel=1e-6)


def test_unit_of_another_table_is_followed(tmp_path):
    frame = household_frame()
    towns = pd.DataFrame({"id": frame.household.unique()}).assign(town=lambda one: one.index % 40)
    (tmp_path / "towns.parquet").write_bytes(towns.to_parquet(index=False))
    hops = [{"path": "towns.parquet", "key": "id", "unit": "town"}]
    path = write_units(tmp_path, "tables", unit_through=hops, max_rows_per_unit=5)
    release = dp.run(path, tmp_path / "run")
    each = frame.merge(towns, left_on="household", right_on="id").groupby("town").size().clip(upper=5).sum()
    assert release.tables["persons"].total().estimate == pytest.approx(each, abs=1)
    assert release.manifest["privacy"]["unit"] == "town"


def test_evidence_states_unit_of_table(tmp_path):
    content = unit_job("tables") | {"privacy": {"privacy_cost": 2.0, "dataset": "shop"}}
    run = dp.run(write_job(tmp_path, content, {"persons": household_frame()}), tmp_path / "run").path
    invoke = CliRunner().invoke
    assert invoke(main, ["evidence", str(run), "--selftest", str(write_selftest(tmp_path))]).exit_code == 0
    assert invoke(main, ["evidence", "--check", str(run / "evidence")]).exit_code == 0
    job = run / "evidence/job.toml"
    job.write_text(job.read_text().replace("max_rows_per_unit = 2", "max_rows_per_unit = 1"))
    script = [sys.executable, "-I", "-S", str(run / "evidence/recompute.py")]
    found = subprocess.run(script, capture_output=True, text=True, check=False)
    assert (found.returncode, "FAULT" in found.stdout) == (1, True)


@pytest.mark.parametrize("section", [
    {"privacy_unit": "household", "max_rows_per_unit": 2},
    {"key": None, "privacy_unit": "household"},
    {"public": True, "key": None, "privacy_unit": "household", "max_rows_per_unit": 2},
])  # fmt: skip
def test_wrong_unit_is_refused(tmp_path, section):
    content = make_job()
    persons = {**content["tables"]["persons"], **section}
    content["tables"]["persons"] = {name: value for name, value in persons.items() if value is not None}
    with refused(dp.JobError):
        dp.run(write_job(tmp_path, content), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_unit_of_linked_table_is_refused(tmp_path):
    content = make_job()
    content["tables"]["orders"] |= {"privacy_unit": "person", "max_rows_per_unit": 2}
    with refused(dp.JobError):
        dp.run(write_job(tmp_path, content), tmp_path / "run")
    assert not (tmp_path / "run").exists()
