"""`dpscale help` prints pages, sections and keys of the documentation that is installed with the package."""

import re

import pytest
from click.testing import CliRunner

from dpscale.__main__ import main
from dpscale.cli.help import PAGES, page_names
from tests.docs.snippets import ROOT


def run_help(*arguments, code=0):
    result = CliRunner().invoke(main, ["help", *arguments])
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


def test_pages_are_those_of_the_documentation():
    for name in page_names():
        path = PAGES / f"{name}.md"
        own = ROOT / "cluster/README.md" if name == "cluster-setup" else ROOT / f"docs/{name}.md"
        assert path.resolve() == own.resolve() or path.read_bytes() == own.read_bytes()


def test_list_of_pages_names_each():
    text = run_help()
    assert all(f" {name}: " in text for name in page_names())


@pytest.mark.parametrize("page", page_names())
def test_every_section_of_a_page_is_printed(page):
    commands = re.findall(rf"^  dpscale help {page} (\S+)$", run_help(page), re.MULTILINE)
    text = re.sub(r"```.*?```", "", (PAGES / f"{page}.md").read_text(), flags=re.DOTALL)
    headings = re.findall("^##+ .*", text, re.MULTILINE)
    assert len(commands) == len(headings)
    for command, heading in zip(commands, headings, strict=True):
        assert run_help(page, command).startswith(heading.split("`")[0].split("[")[0])


@pytest.mark.parametrize(("key", "says"), [
    ("data.format", "the format of files with any name"), ("privacy.epsilon", "differential privacy"),
    ("attributes.also", "share a table"), ("attributes.kind", 'kind = "integer"'),
    ("numbers.step", "rounded to multiples"), ("mechanism.gap", "certified gap"), ("run-directory", "secret.key"),
    ("workload.degree", "all attribute sets of a size"),
    ("Run directory", "secret.key"), ("engine", "engine.memory"), ("dates", "ISO 8601"),
])  # fmt: skip
def test_key_is_explained(key, says):
    assert says in run_help("jobs", key)


def test_key_prints_the_section_to_which_it_refers():
    text = run_help("jobs", "data.where")
    assert text.startswith("data.where: a filter of rows")
    assert "### Filters" in text


def test_questions_are_found_by_a_word():
    assert "dpscale end DIR" in run_help("faq", "deleted")
    assert "growing" in run_help("faq", "second release")


def test_links_name_commands():
    text = run_help("jobs", "job-file")
    assert "dpscale help rows" in text
    assert "](" not in text


def test_commands_are_explained():
    assert run_help("run").startswith("Usage: dpscale run ")
    assert run_help("ledger", "cap").startswith("Usage: dpscale ledger cap ")
    refine = run_help("refine")
    assert "Usage: dpscale refine" in refine
    assert "More budget for a release" in refine


def test_unknown_page_or_section_is_refused():
    assert "did you mean 'jobs'" in run_help("jbs", code=2)
    assert "did you mean 'run-directory'" in run_help("jobs", "run-dirctory", code=2)
