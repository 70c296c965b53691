"""The JSON Schema of a job takes what a job takes, and the documents' table is made from the same models."""

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
def schema():
    content = json.loads(CliRunner().invoke(main, ["job", "schema"]).stdout)
    jsonschema.Draft202012Validator.check_schema(content)
    return jsonschema.Draft202012Validator(content)


@pytest.mark.parametrize("changes", RIGHT)
def test_what_is_right_is_taken_by_both(schema, changes):
    schema.validate(JOB | changes)
    Job.parse(JOB | changes, Path("/"))


@pytest.mark.parametrize("changes", WRONG)
def test_what_is_wrong_is_refused_by_both(schema, changes):
    assert list(schema.iter_errors(JOB | changes))
    with pytest.raises(dp.JobError):
        Job.parse(JOB | changes, Path("/"))


@pytest.mark.parametrize("name", ["main", "adaptive", "census"])
def test_the_pipelines_jobs_fit_it(schema, name):
    schema.validate(tomllib.loads((ROOT / "pipelines" / f"{name}.toml").read_text()))


def test_the_documents_table_of_options_is_the_commands():
    printed = CliRunner().invoke(main, ["job", "options"]).stdout.strip()
    assert printed in (ROOT / "docs" / "jobs.md").read_text(), "put what `dpscale job options` prints into docs/jobs.md"


def test_the_stages_are_listed_for_schedulers():
    listed = json.loads(CliRunner().invoke(main, ["stages", "--json"]).stdout)["stages"]
    assert [stage["name"] for stage in listed] == ["plan", "measure", "reconstruct", "synthesize", "report"]
    assert [stage["name"] for stage in listed if stage["spends"]] == ["measure"]
