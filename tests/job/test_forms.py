"""The short form of a job and that of several tables, their messages, and their content before [budget]."""

import pytest

import dpscale as dp
from dpscale.job import Job
from dpscale.job.forms import with_budget
from dpscale.job.job import former_content
from tests.messages import refused

SHORT = {
    "data": {"path": "data", "domain": "domain.toml", "privacy_unit": "person", "max_rows_per_unit": 2},
    "privacy": {"epsilon": 1.0, "delta": 1e-9},
    "workload": [{"family": "marginal", "degree": 1}, {"family": "marginal", "degree": 1, "count": "units"}],
    "budget": {"discover": 0.1, "discover_delta": 1e-10, "units": 0.2, "cut": 0.02},
}
TABLE = {"path": "data", "domain": "domain.toml"}


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "domain.toml").write_text('[attributes.a]\nkind = "coded"\nsize = 3\n')


def several(**changes):
    tables = {"people": {**TABLE, "key": "id"}, "visits": TABLE}
    link = {"kind": "one-to-many", "parent": "people", "child": "visits", "child_key": "person", "max_degree": 3}
    shares = {"people": {"share": 0.3, "discover": 0.1, "units": 0.2, "cut": 0.1}}
    budget = {"method": "planned", "first": 0.05, "tables": shares, "links": {"visits": {"share": 0.2}}}
    return {"tables": tables, "link": [link], "privacy": SHORT["privacy"], "budget": budget, **changes}


def test_short_form_is_one_table_with_the_whole_budget():
    job = Job.read(SHORT)
    assert list(job.tables) == ["data"]
    assert job.table.data == job.tables["data"]
    assert job.table.shares == job.budget.tables["data"]
    assert (job.shares, job.link) == ({"tables.data": 1.0}, [])


@pytest.mark.parametrize("content", [SHORT, several()], ids=["short", "several"])
def test_content_is_read_again_as_it_is_stated(content):
    job = Job.read(content)
    assert Job.read(job.to_dict()) == job
    assert set(job.to_dict()) >= set(content)


@pytest.mark.parametrize("content", [SHORT, several()], ids=["short", "several"])
def test_content_before_the_budget_table_is_read_as_the_same_job(content):
    job = Job.read(content)
    former = former_content(job)
    assert "budget" not in former
    assert with_budget(former)["budget"] == job.to_dict()["budget"]
    assert Job.read(former, stored=True) == job
    with refused(dp.JobError):
        Job.read(former)


def test_former_shares_are_where_they_were():
    assert former_content(Job.read(SHORT))["units"] == {"share": 0.2, "cut": 0.02}
    assert former_content(Job.read(SHORT))["discover"] == {"share": 0.1, "delta": 1e-10}
    former = former_content(Job.read(several()))
    assert former["allocation"] == {"method": "planned", "share": 0.05}
    assert (former["tables"]["people"]["share"], former["link"][0]["share"]) == (0.3, 0.2)


REFUSED = {
    "path": SHORT | {"data": {"domain": "domain.toml"}},
    "type": SHORT | {"data": TABLE | {"path": 3}},
    "format": SHORT | {"data": TABLE | {"format": "xml"}},
    "no table": SHORT | {"data": 3},
    "unit": SHORT | {"data": TABLE | {"privacy_unit": "a"}},
    "key of several": SHORT | {"data": TABLE | {"key": "id"}},
    "protected table": SHORT | {"privacy": SHORT["privacy"] | {"unit": "data"}},
    "name alone": SHORT | {"mechanism": "hdmm"},
    "mechanism": SHORT | {"mechanism": {"name": 3}},
    "share": SHORT | {"budget": {"share": 0.5}},
    "units": SHORT | {"budget": {"units": 2.0}},
    "workload": SHORT | {"workload": []},
    "family": SHORT | {"workload": [{"degree": 1}]},
    "growing table": several(tables={"people": TABLE | {"period": "a"}}),
    "table": several(tables={"people": {"domain": "domain.toml"}}),
    "rows": several(synthesize={"rows": 5}),
    "public table": several(
        tables={"people": TABLE | {"key": "id"}, "visits": TABLE | {"public": True}},
        budget={"tables": {"visits": {"share": 0.1}}},
    ),
    "part": several(budget={"links": {"visit": {"share": 0.1}}}),
    "cut of a link": several(budget={"links": {"visits": {"cut": 0.1}}}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_message_names_the_field_that_is_stated(name):
    content = REFUSED[name]
    with refused(dp.JobError):
        Job.read(content)


def test_words_for_readers_are_outside_the_content_of_digests():
    for content in (SHORT, several()):
        job = Job.read({**content, "about": {"title": "A survey", "notes": "of\ntwo lines"}})
        assert job.to_dict()["about"] == {"title": "A survey", "notes": "of\ntwo lines"}
        assert Job.read(job.to_dict()).about == job.about
        assert former_content(job) == former_content(Job.read(content))
    with refused(dp.JobError):
        Job.read({**SHORT, "about": {"titel": "x"}})
