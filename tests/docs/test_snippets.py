"""Every snippet of the documents: run where it can be, else held against the models and commands that it is for."""

import ast
import json
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import click
import numpy as np
import pyarrow.dataset as ds
import pytest

import dpscale as dp
from dpscale.__main__ import main
from dpscale.job import Job
from dpscale.job.data import Data
from dpscale.job.sections import EngineSettings, Output, Part, Privacy, SynthesizeTable
from dpscale.multitable.job import DatabaseJob, LinkSection, TableSection
from tests.docs.snippets import ROOT, of, snippets

KNOWN = {"console", "python", "r", "sql", "text", "toml", "yaml"}
SITE = ("docs/index.md", "docs/reference/", "docs/around/")  # whose blocks are the site's own directives
NAMES = "docs/contract.md"  # lists names and what they give: no program
ELSEWHERE = ("docs/tutorial.md", "docs/databases.md")  # each run whole by a test of its own
PYTHON = [one for one in of("python") if one.page != NAMES]
RUN = ("docs/answers.md", "docs/frames.md", "README.md")
DOMAIN = """
attributes.age = {kind = "integer", low = 0, high = 90, round = 10}
attributes.sex = {kind = "categories", values = ["F", "M"]}
attributes.income = {kind = "bins", edges = [0, 10, 20, 50, 100]}
"""
JOB = """
workload = [{family = "marginal", attributes = [["age", "sex"], ["sex", "income"]]},
            {family = "prefix", attributes = [["age"], ["age", "income"]]}]
data = {path = "visits.csv", domain = "visits.domain.toml"}
privacy = {rho = 5.0}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a job, and its release where the documents have theirs."""
    folder = tmp_path_factory.mktemp("documents")
    rng = np.random.default_rng(3)
    rows = zip(rng.integers(0, 91, 2000), rng.choice(["F", "M"], 2000), rng.integers(0, 100, 2000), strict=True)
    (folder / "visits.csv").write_text("age,sex,income\n" + "".join(f"{a},{s},{i}\n" for a, s, i in rows))
    (folder / "visits.domain.toml").write_text(DOMAIN)
    (folder / "job.toml").write_text(JOB)
    dp.run(folder / "job.toml", folder / "runs/1f2e3d")
    shutil.copytree(folder / "runs/1f2e3d", folder / "run")
    return folder


def test_every_block_has_a_language_that_is_checked_here():
    plain = [one for one in snippets() if not one.page.startswith(SITE) and one.language not in KNOWN]
    assert list(map(str, plain)) == []


@pytest.mark.parametrize("snippet", PYTHON, ids=str)
def test_python_is_python(snippet):
    ast.parse(snippet.text)


@pytest.mark.parametrize("page", RUN)
def test_python_runs(page, place, monkeypatch):
    monkeypatch.chdir(place)
    for snippet in of("toml", page):
        if snippet.file:
            Path(snippet.file).write_text(snippet.text)
    names = {"query": np.ones((10, 2))}
    for snippet in of("python", page):
        exec(compile(snippet.text, str(snippet), "exec"), names)


@pytest.mark.parametrize("snippet", [one for one in of("toml") if one.page not in (NAMES, *ELSEWHERE)], ids=str)
def test_toml_is_a_domain_or_a_job(snippet, place):
    content = tomllib.loads(snippet.text)
    if content.keys() & {"impossible", "determined"}:
        attributes = {"age": {"kind": "integer", "low": 0, "high": 99}} | {
            name: {"kind": "categories", "values": values}
            for name, values in {"marital": ["single", "married", "widowed"], "code": ["A1", "A2", "B1"],
                                 "region": ["north", "south"]}.items()
        }  # fmt: skip
        assert dp.Domain.from_dict({"attributes": attributes} | content).rules
    elif "attributes" in content:
        assert len(dp.Domain.from_dict(content)) >= len(content["attributes"])
    elif content.keys() & {"tables", "link"}:
        DatabaseJob.parse(content, place)
    else:
        Job.parse(_whole(content), place)


def _whole(content):
    """A job file of which the documents show a part."""
    whole = tomllib.loads(JOB) | content
    budget = {} if "epsilon" in whole["privacy"] else {"rho": 1.0}
    return whole | {
        "privacy": {**budget, "dataset": "a", **whole["privacy"]},
        "data": {"domain": "visits.domain.toml", **whole["data"]},
    }


def commands(snippet):
    """The words of every dpscale command of a console block."""
    for line in snippet.text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        words = words[next((i for i, word in enumerate(words) if "=" not in word), 0) :]
        if words and Path(words[0]).name == "dpscale":
            yield words[1:]


@pytest.mark.parametrize("snippet", of("console"), ids=str)
def test_console_calls_commands_that_take_these_options(snippet, place, monkeypatch):
    monkeypatch.chdir(place)
    for words in commands(snippet):
        _parsed(main, words)


def _parsed(command, words):
    """UsageError for what the command does not take; files need not be there."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        _, found, rest = command.resolve_command(context, words)
        return _parsed(found, rest)
    for parameter in command.params:
        if isinstance(parameter.type, click.Path):
            parameter.type.exists = False
    return command.make_context(command.name, list(words))


def test_a_planted_option_is_seen():
    with pytest.raises(click.UsageError):
        _parsed(main, ["run", "job.toml", "--run-folder", "x"])


@pytest.mark.parametrize("snippet", of("sql"), ids=str)
def test_sql_answers(snippet, place, monkeypatch):
    monkeypatch.chdir(place)
    duckdb = pytest.importorskip("duckdb")
    assert duckdb.sql(snippet.text).fetchall()


@pytest.mark.parametrize("snippet", of("r"), ids=str)
def test_r_answers(snippet, place):
    """In R where it is; always its filter by the same Arrow library, which R's package hands it to.

    That `==` on a column of factors is handed over, in R too: apache/arrow, issue 43440 (there `%in%` fails).
    """
    if shutil.which("Rscript") and not subprocess.run(["Rscript", "-e", "library(arrow); library(dplyr)"]).returncode:
        subprocess.run(["Rscript", "-e", snippet.text], cwd=place, check=True)
    folder = snippet.text.partition('open_dataset("')[2].partition('"')[0]
    asked = snippet.text.partition("filter(")[2].partition(")")[0]
    wanted = [one.strip().partition(" == ") for one in asked.split("&")]
    told = [(name, json.loads(value)) for name, _, value in wanted]
    keep = ds.scalar(True)
    for name, value in told:
        keep = keep & (ds.field(name) == value)
    found = ds.dataset(place / folder).to_table(filter=keep)
    assert found.num_rows == 20
    assert all(set(found[name].to_pylist()) == {value} for name, value in told)


def test_every_key_of_a_job_is_explained():
    """What the models take is in the pages that say what it means."""
    pages = "".join((ROOT / "docs" / name).read_text() for name in ("jobs.md", "databases.md"))
    models = [Data, Privacy, Part, EngineSettings, Output, SynthesizeTable, TableSection, LinkSection]
    keys = {key for model in models for key in model.model_fields} - {"unit_through"}  # of several tables' own jobs
    assert {key for key in keys if f"`{key}`" not in pages and f"{key} =" not in pages} == set()
