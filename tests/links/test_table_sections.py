"""Every section of a job of one table works for each table of a job of several."""

import numpy as np
import pandas as pd
import pytest

import dpscale as dp
from dpscale.job.neighbours import table_jobs
from dpscale.job.tables import CompositeJob
from dpscale.runs.composite import digest_of
from tests.links.small import make_job, table_section, write_job

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
    jobs = [CompositeJob.read(write_job(tmp_path / folder, job)) for folder, job in (("a", name), ("b", section))]
    options = [table_jobs(job)["persons"].options for job in jobs]
    assert options[0] == options[1]
    assert options[0].rounds == 4


def test_unused_sections_do_not_change_digest(tmp_path):
    """The digest is computed from the keys that the job sets."""
    job = CompositeJob.read(write_job(tmp_path))
    assert "reconstruct" not in job.to_dict()["tables"]["persons"]
    assert digest_of(job) == digest_of(CompositeJob.parse(job.to_dict(), tmp_path))


def test_file_of_queries_is_relative_to_job(tmp_path, monkeypatch):
    np.save(tmp_path / "queries.npy", np.eye(4)[:2])
    predicates = [{"family": "predicates", "attributes": [["age"]], "file": "queries.npy"}]
    path = write_job(tmp_path, with_persons(workload=predicates, mechanism="weighted-residuals"))
    monkeypatch.chdir("/")
    plan = table_jobs(CompositeJob.read(path))["persons"]
    assert plan.build_workload(plan.read_domain()).query_count == 2


@pytest.mark.parametrize(("section", "message"), [
    ({"mechanism": {"name": "aim-grem"}, "rounds": 4}, "options belong into the mechanism's section"),
    ({"synthesize": {"weights": True}}, "represents one record"),
    ({"rows": 10, "synthesize": {"rows": 20}}, "the same setting"),
    ({"reconstruct": {"method": "nothing"}}, "reconstruct.method"),
    ({"mechanism": {"name": "nothing"}}, "mechanism.name"),
    ({"output": {"levels": 0.9}}, "levels"),
])  # fmt: skip
def test_wrong_section_is_refused_in_one_sentence(tmp_path, section, message):
    with pytest.raises(dp.JobError, match=message) as refused:
        dp.run(write_job(tmp_path, with_persons(**section)), tmp_path / "run")
    assert "\n" not in str(refused.value)
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
