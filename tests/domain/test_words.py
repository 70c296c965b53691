"""Words of a domain file are displayed and decide nothing: the digest, the labels of files and draws stay."""

import json

import pytest
import tomli_w
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from dpscale.answers.tables import titles_of, words_of
from dpscale.base.errors import DomainError
from dpscale.domain import Domain
from dpscale.job import Job
from dpscale.job.job import job_digest
from tests.messages import refused
from tests.runs.small import DOMAIN, job, table, write_table

WORDS = {
    "age": {"title": "Age", "unit": "years", "description": "At admission"},
    "sex": {"title": "Sex", "labels": {"F": "women", "M": "men"}},
    "income": {"labels": {"(null)": "not stated", "[20, 50)": "middle"}},
    "code": {"labels": {"0": "alive", "2": "dead"}},
}
ABOUT = {"title": "A survey", "publisher": "An office", "contact": "https://office.example", "licence": "CC BY 4.0",
         "notes": "All people of a town."}  # fmt: skip


def with_words():
    return {"attributes": {name: own | WORDS[name] for name, own in DOMAIN["attributes"].items()}}


def test_words_are_read_and_written_and_outside_digest_and_equality():
    plain, worded = Domain.from_dict(DOMAIN), Domain.from_dict(with_words())
    assert (worded.digest, worded, hash(worded)) == (plain.digest, plain, hash(plain))
    again = Domain.from_dict(worded.to_dict())
    assert [one.words for one in again.axes] == [one.words for one in worded.axes]
    assert again.without("sex")["age"].words.title == "Age"
    assert [one.labels for one in worded.axes] == [one.labels for one in plain.axes]


def test_labels_of_a_small_domain():
    domain = Domain.from_dict(with_words())
    assert titles_of(domain, ["age", "sex", "code"]) == ("Age (years)", "Sex", "code")
    assert words_of(domain["sex"]) == ["women", "men"]
    assert words_of(domain["code"]) == ["alive", "1", "dead"]
    assert words_of(domain["income"]) == ["0 to 9", "10 to 19", "middle", "50 to 100", "not stated"]


@pytest.mark.parametrize(("edges", "texts"), [
    ([18, 25, 35, 65], ["18 to 24", "25 to 34", "35 to 65"]),
    ([0, 1, 2, 5], ["0", "1", "2 to 5"]),
    ([-10, 0, 20_000, 2_000_000], ["−10 to −1", "0 to 19,999", "20,000 to 2,000,000"]),
    ([0, 0.5, 1], ["0 to under 0.5", "0.5 to 1"]),
    ([0, 10], ["[0, 10]"]),
])  # fmt: skip
def test_bins_in_words(edges, texts):
    domain = Domain.from_dict({"attributes": {"a": {"kind": "bins", "edges": edges, "outside": "category"}}})
    assert words_of(domain["a"]) == [*texts, "(outside)"]


def test_keys_of_labels_are_values_as_texts():
    domain = dp.Domain(
        a={"kind": "boolean", "labels": {True: "yes", "false": "no"}},
        b={"kind": "coded", "size": 2, "labels": {1: "x"}},
    )
    assert words_of(domain["a"]) == ["no", "yes"]
    assert words_of(domain["b"]) == ["0", "x"]
    clash = dp.Domain(b={"kind": "coded", "size": 2, "labels": {1: "0"}})
    assert words_of(clash["b"]) == ["0", "1"], "texts of cells are distinct"


def test_titles_of_attributes_that_share_a_table_are_their_names():
    shared = {"kind": "coded", "size": 2, "also": ["b"], "title": "First", "labels": {0: "no"}}
    domain = Domain.from_dict({"attributes": {"a": shared}})
    assert [one.words.title for one in domain.axes] == ["First", ""]
    assert words_of(domain["b"]) == ["no", "1"]


@pytest.mark.parametrize(("words", "text"), [
    ({"title": 3}, "attributes.a.title: 3; expected a text of one line"),
    ({"title": "two\nlines"}, "expected a text of one line"),
    ({"labels": ["x"]}, "attributes.a.labels: a list; expected texts by value"),
    ({"labels": {"0": 1}}, "attributes.a.labels.0: 1; expected a text"),
    ({"labels": {"7": "x"}}, "attributes.a.labels: '7'; expected values of its cells"),
    ({"labels": {"0": "x", "1": "x"}}, "'x' twice; expected distinct texts"),
    ({"labels": {"0": "x"}, "kind": "number"}, "attributes.a.kind"),
])  # fmt: skip
def test_wrong_words_are_refused(words, text):
    with pytest.raises(DomainError) as error:
        Domain.from_dict({"attributes": {"a": {"kind": "coded", "size": 3, **words}}})
    assert text in str(error.value)


def test_numbers_have_title_and_unit_and_no_labels():
    pay = {"low": 0, "high": 9, "title": "Pay", "unit": "EUR", "description": "per month"}
    domain = Domain.from_dict({**DOMAIN, "numbers": {"pay": pay}})
    assert domain.digest == Domain.from_dict({**DOMAIN, "numbers": {"pay": {"low": 0, "high": 9}}}).digest
    assert titles_of(domain, ["pay"]) == ("Pay (EUR)",)
    assert Domain.from_dict(domain.to_dict())["pay"].words == domain["pay"].words
    with refused(DomainError):
        Domain.from_dict({**DOMAIN, "numbers": {"pay": pay | {"labels": {"0": "x"}}}})


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_table(tmp_path / "data", table())
    (tmp_path / "domain.toml").write_text(tomli_w.dumps(DOMAIN))
    return tmp_path


def test_other_words_are_the_same_job(place):
    """The same release, no second charge, and the same bytes of answers."""
    plain = job()
    first = Job.read(plain)
    release = dp.run(plain, run_dir="run", progress=None)
    (place / "domain.toml").write_text(tomli_w.dumps(with_words()))
    worded = job(about=ABOUT)
    for version in (1, 2):
        domains = [one.table.read_domain() for one in (first, Job.read(worded))]
        assert job_digest(Job.read(worded), domains[1], version) == job_digest(first, domains[0], version)
    again = dp.run(worded, run_dir="run", progress=None)
    assert again.manifest["release"] == release.manifest["release"]
    with dp.Ledger.open("ledger.sqlite", create=False) as ledger:
        [dataset] = ledger.summary()["datasets"].values()
    assert len(dataset["releases"]) == 1
    seeded = {"engine": {"scheduler": "synchronous", "memory": "1GiB", "seed": 3}}
    other = dp.run(job(about=ABOUT, **seeded), run_dir="worded", progress=None)
    (place / "domain.toml").write_text(tomli_w.dumps(DOMAIN))
    same = dp.run(job(**seeded), run_dir="plain", progress=None, fresh=True)
    for file in sorted(same.path.glob("measurements/**/*.parquet")):
        assert file.read_bytes() == (other.path / file.relative_to(same.path)).read_bytes()


def test_report_shows_words_and_files_for_machines_do_not(place):
    (place / "domain.toml").write_text(tomli_w.dumps(with_words()))
    release = dp.run(job(about=ABOUT), run_dir="run", progress=None)
    page = (release.path / "report.html").read_text()
    for text in (*ABOUT.values(), "Age (years)", "women", "not stated", "middle", "10 to 19"):
        assert text in page
    assert "<h1>A survey</h1>" in page
    assert release.table(["sex"])["sex"].tolist() == ["F", "M"]
    done = CliRunner().invoke(main, ["publish", "run"], catch_exceptions=False)
    assert done.exit_code == 0
    published = release.path / "published"
    assert "women" not in next(published.glob("csv/*sex*.csv")).read_text()
    readme = (published / "README.txt").read_text()
    assert readme.startswith("title: A survey\npublisher: An office\n")
    book = (published / "codebook.csv").read_text().splitlines()
    assert book[0].replace('"', "") == "attribute,kind,cell,label,shown,title,unit,description"
    assert '"sex","categories",0,"F","women","Sex","",""' in book
    found = json.loads((published / "croissant.json").read_text())
    assert (found["headline"], found["license"], found["publisher"]["name"]) == ("A survey", "CC BY 4.0", "An office")
    assert found["description"].startswith("All people of a town.")
    told = {own["name"]: own.get("description") for one in found["recordSet"] for own in one["field"]}
    assert told["age"] == "Age. At admission. years"


def test_plan_names_missing_words_in_one_line(place):
    def told(content):
        (place / "job.toml").write_text(tomli_w.dumps(content))
        done = CliRunner().invoke(main, ["plan", "job.toml", "--quiet"], catch_exceptions=False)
        return [line for line in done.stdout.splitlines() if line.startswith("words for readers")]

    assert told(job()) == ["words for readers that are missing: title, publisher, contact, licence in [about]; "
                           "title of age, sex, income, … (4 of 4)"]  # fmt: skip
    titles = {name: own | {"title": name.title()} for name, own in DOMAIN["attributes"].items()}
    (place / "domain.toml").write_text(tomli_w.dumps({"attributes": titles}))
    assert told(job(about={key: text for key, text in ABOUT.items() if key != "notes"})) == []


def test_drafts_have_places_for_words(place):
    table().to_csv("people.csv", index=False)
    done = CliRunner().invoke(main, ["domain", "sketch", "people.csv", "--output", "d.toml", "--job", "j.toml"])
    assert done.exit_code == 0, done.output
    draft = (place / "d.toml").read_text()
    assert '# title = ""' in draft
    assert 'labels = {0 = "alive", 1 = "dead"}' in draft
    titled = draft.replace("reviewed = false", "reviewed = true").replace('# title = ""', 'title = "X"')
    (place / "d.toml").write_text(titled)
    assert all(one.words.title == "X" for one in Domain.read("d.toml").attributes)
    assert '[about]\n# title = ""\n# publisher = ""' in (place / "j.toml").read_text()
