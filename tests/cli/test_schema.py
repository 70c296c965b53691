"""The JSON Schema of a job against the job parser, and the option table of the documents against the commands."""

import importlib
import json
import tomllib
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from dpscale.job import Job

ROOT = Path(__file__).parents[2]
JOB = {
    "data": {"path": "data", "domain": "domain.toml"},
    "privacy": {"epsilon": 1.0, "delta": 1e-9},
    "workload": [{"family": "marginal", "degree": 2}],
}
RIGHT = [
    {},
    {"mechanism": {"gap": 1e-3}},
    {"mechanism": {"name": "query-smasher", "seconds": 3.0}},
    {"mechanism": {"name": "aim-grem", "rounds": 4}, "reconstruct": {"errors": "simulated"}},
    {"reconstruct": {"method": "maxent", "agree": True}},
    {"mechanism": {"name": "aim-grem", "published": True}, "reconstruct": {"method": "grem", "non_negative": True}},
]
RIGHT += [{"data": JOB["data"] | {"format": kind}} for kind in ("parquet", "csv", "tsv", "arrow", "delta", "iceberg")]
WRONG = [
    {"data": JOB["data"] | {"format": "xml"}},
    {"mechanism": {"name": "query-smash"}},
    {"mechanism": {"rounds": 4}},
    {"mechanism": {"name": "aim-grem", "rounds": 0}},
    {"mechanism": {"name": "hdmm", "way": "by luck"}},
    {"reconstruct": {"method": "grem", "errors": "simulated"}},
    {"reconstruct": {"method": "best"}},
    {"privacy": {"epsilon": -1.0}},
    {"dat": {}},
]


@pytest.fixture(scope="module")
def schema_validator():
    content = json.loads(CliRunner().invoke(main, ["job", "schema"]).stdout)
    jsonschema.Draft202012Validator.check_schema(content)
    return jsonschema.Draft202012Validator(content)


@pytest.mark.parametrize("changes", RIGHT)
def test_valid_job_fits_schema_and_parser(schema_validator, changes):
    schema_validator.validate(JOB | changes)
    Job.parse(JOB | changes, Path("/"))


@pytest.mark.parametrize("changes", WRONG)
def test_invalid_job_is_refused_by_schema_and_parser(schema_validator, changes):
    assert list(schema_validator.iter_errors(JOB | changes))
    with pytest.raises(dp.JobError):
        Job.parse(JOB | changes, Path("/"))


@pytest.mark.parametrize("name", ["main", "adaptive", "census"])
def test_pipeline_jobs_fit_schema(schema_validator, name):
    schema_validator.validate(tomllib.loads((ROOT / "pipelines" / f"{name}.toml").read_text()))


def test_reference_of_the_job_file_is_that_of_the_models(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    page = importlib.import_module("job_file")
    assert page.PAGE.read_text() == page.reference(), "run `python docs/job_file.py`"
    assert CliRunner().invoke(main, ["job", "options"]).stdout.strip() in page.PAGE.read_text()


def test_keys_of_a_table_have_different_meanings():
    for name, meanings in tomllib.loads((ROOT / "docs" / "job_keys.toml").read_text()).items():
        assert len(set(meanings.values())) == len(meanings), name


def test_stages_are_listed_for_schedulers():
    listed = json.loads(CliRunner().invoke(main, ["job", "stages", "--json"]).stdout)["stages"]
    stages = ["discover", "plan", "units", "measure", "reconstruct", "synthesize", "report"]
    assert [stage["name"] for stage in listed] == stages
    assert [stage["name"] for stage in listed if stage["spends"]] == ["discover", "units", "measure"]
