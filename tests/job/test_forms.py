"""The short form of a job and that of several tables, their messages, and their content before [budget]."""

import pytest

import dpscale as dp
from dpscale.job import Job
from dpscale.job.forms import with_budget
from dpscale.job.job import former_content

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
    with pytest.raises(dp.JobError, match="unknown key"):
        Job.read(former)


def test_former_shares_are_where_they_were():
    assert former_content(Job.read(SHORT))["units"] == {"share": 0.2, "cut": 0.02}
    assert former_content(Job.read(SHORT))["discover"] == {"share": 0.1, "delta": 1e-10}
    former = former_content(Job.read(several()))
    assert former["allocation"] == {"method": "planned", "share": 0.05}
    assert (former["tables"]["people"]["share"], former["link"][0]["share"]) == (0.3, 0.2)


REFUSED = {
    "path": (SHORT | {"data": {"domain": "domain.toml"}}, r"^data\.path: missing"),
    "type": (SHORT | {"data": TABLE | {"path": 3}}, r"^data\.path: 3: it should be a text"),
    "format": (SHORT | {"data": TABLE | {"format": "xml"}}, r"^data\.format: 'xml'"),
    "no table": (SHORT | {"data": 3}, r"^data: 3: it should be a table"),
    "unit": (SHORT | {"data": TABLE | {"privacy_unit": "a"}}, r"^data: privacy_unit and max_rows_per_unit"),
    "key of several": (SHORT | {"data": TABLE | {"key": "id"}}, r"^data\.key: unknown key"),
    "protected table": (SHORT | {"privacy": SHORT["privacy"] | {"unit": "data"}}, r"^privacy\.unit: unknown key"),
    "name alone": (SHORT | {"mechanism": "hdmm"}, r"^mechanism: 'hdmm': it should be a table"),
    "mechanism": (SHORT | {"mechanism": {"name": 3}}, r"^mechanism\.name: 3: it should be a text"),
    "share": (SHORT | {"budget": {"share": 0.5}}, r"^budget\.share: unknown key"),
    "units": (SHORT | {"budget": {"units": 2.0}}, r"^budget\.units: 2\.0: it should be below 1"),
    "workload": (SHORT | {"workload": []}, r"^workload: nothing; expected at least one entry"),
    "family": (SHORT | {"workload": [{"degree": 1}]}, r"^workload\.0\.family: missing"),
    "growing table": (several(tables={"people": TABLE | {"period": "a"}}), r"^tables\.people\.period: unknown key"),
    "table": (several(tables={"people": {"domain": "domain.toml"}}), r"^tables\.people\.path: missing"),
    "rows": (several(synthesize={"rows": 5}), r"^synthesize\.rows: unknown key"),
    "public table": (
        several(
            tables={"people": TABLE | {"key": "id"}, "visits": TABLE | {"public": True}},
            budget={"tables": {"visits": {"share": 0.1}}},
        ),
        r"^budget\.tables\.visits: no part",
    ),
    "part": (several(budget={"links": {"visit": {"share": 0.1}}}), r"^budget\.links\.visit: .*links\.visits"),
    "cut of a link": (several(budget={"links": {"visits": {"cut": 0.1}}}), r"^budget\.links\.visits\.cut: unknown key"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_message_names_the_field_that_is_stated(name):
    content, message = REFUSED[name]
    with pytest.raises(dp.JobError, match=message):
        Job.read(content)


def test_words_for_readers_are_outside_the_content_of_digests():
    for content in (SHORT, several()):
        job = Job.read({**content, "about": {"title": "A survey", "notes": "of\ntwo lines"}})
        assert job.to_dict()["about"] == {"title": "A survey", "notes": "of\ntwo lines"}
        assert Job.read(job.to_dict()).about == job.about
        assert former_content(job) == former_content(Job.read(content))
    with pytest.raises(dp.JobError, match=r"about\.titel: unknown key; .* did you mean 'title'"):
        Job.read({**SHORT, "about": {"titel": "x"}})
