"""Code blocks of the documents: run if possible, otherwise checked against the models and commands."""

import ast
import json
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import click
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import dpscale as dp
from dpscale import mechanisms, reconstruction
from dpscale.__main__ import main
from dpscale.job import Job
from dpscale.job.sections import (
    EngineSettings,
    JoinSection,
    JoinWorkload,
    LinkSection,
    Output,
    Privacy,
    SynthesizeTable,
    TableSection,
    TableShares,
    WorkloadSection,
)
from dpscale.records import formats
from dpscale.workload import families
from tests.docs.snippets import ROOT, snippets, snippets_of

KNOWN = {"console", "python", "r", "sql", "text", "toml", "yaml"}
SITE = (
    "docs/index.md",
    "docs/notebook.md",
    "docs/reference/",
    "docs/around/",
)  # with the site's own directives
NAMES = "docs/contract.md"  # lists names and what they give: no program
ELSEWHERE = (
    "docs/tutorial.md",
    "docs/places.md",
    "docs/growing.md",
    "docs/databases.md",
    "docs/sql-tutorial.md",
)  # each run whole by a test
PYTHON = [one for one in snippets_of("python") if one.page != NAMES]
COMING = tuple(f"docs/coming/{name}.md" for name in ("opendp", "tumult", "sdv", "sql"))
PAGES = tuple(f"docs/{name}.md" for name in ("answers", "frames", "refine", "index", "sql", "sessions"))
RUN = (*PAGES, *COMING, "README.md")
DOMAIN = """
attributes.age = {kind = "integer", low = 0, high = 90, round = 10}
attributes.sex = {kind = "categories", values = ["F", "M"]}
attributes.income = {kind = "bins", edges = [0, 10, 20, 50, 100]}
attributes.region = {kind = "categories", values = ["N", "S"]}
numbers.cost = {low = 0, high = 100}
"""
JOB = """
workload = [{family = "marginal", attributes = [["age", "sex"], ["sex", "income"]]},
            {family = "prefix", attributes = [["age"], ["age", "income"]]},
            {family = "mean", of = "cost", attributes = [["region"], []]}]
data = {path = "visits.csv", domain = "visits.domain.toml"}
privacy = {rho = 5.0}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Directory with a job and its release at the paths that the documents use."""
    folder = tmp_path_factory.mktemp("documents")
    rng = np.random.default_rng(3)
    rows = zip(rng.integers(0, 91, 2000), rng.choice(["F", "M"], 2000), rng.integers(0, 100, 2000), strict=True)
    lines = [f"{a},{s},{i},{'NS'[i % 2]},{i}\n" for a, s, i in rows]
    (folder / "visits.csv").write_text("age,sex,income,region,cost\n" + "".join(lines))
    (folder / "visits.domain.toml").write_text(DOMAIN)
    (folder / "job.toml").write_text(JOB)
    (folder / "tables.sql").write_text("SELECT sex, COUNT(*) FROM visits GROUP BY sex")
    columns = {"country": ["AT", "CH"], "district": ["Wien", "Tirol"], "place": ["1010", "6020"]}
    pq.write_table(pa.table(columns), folder / "places.parquet")
    (folder / "released.toml").write_text(JOB.replace("5.0}", '5.0, ledger = "released.sqlite"}'))
    dp.run(folder / "released.toml", folder / "runs/1f2e3d")
    shutil.copytree(folder / "runs/1f2e3d", folder / "run")
    return folder


def test_every_block_has_a_checked_language():
    plain = [one for one in snippets() if not one.page.startswith(SITE) and one.language not in KNOWN]
    assert list(map(str, plain)) == []


@pytest.mark.parametrize("snippet", PYTHON, ids=str)
def test_python_blocks_parse(snippet):
    ast.parse(snippet.text)


def trips():
    """Return the frame of the short example."""
    rng = np.random.default_rng(0)
    days = pd.to_datetime("2019-03-01") + pd.to_timedelta(rng.integers(0, 300, 500), "D")
    columns = {"borough": rng.choice(["Bronx", "Queens"], 500), "fare": rng.uniform(0, 99, 500), "day": days}
    return pd.DataFrame(columns | {"person": rng.integers(0, 200, 500)})


@pytest.mark.parametrize("page", RUN)
def test_python_blocks_run(page, place, monkeypatch):
    monkeypatch.chdir(place)
    monkeypatch.setenv("DPSCALE_DATA", str(place / f"data of {Path(page).stem}"))
    for snippet in snippets_of("toml", page):
        if snippet.file:
            Path(snippet.file).write_text(snippet.text)
    names = {"query": np.ones((10, 2)), "frame": trips(), "trips": trips()}
    for snippet in snippets_of("python", page):
        if not snippet.file:  # the code of another library has its name
            exec(compile(snippet.text, str(snippet), "exec"), names)


@pytest.mark.parametrize(
    "snippet", [one for one in snippets_of("toml") if one.page not in (NAMES, *ELSEWHERE)], ids=str
)
def test_toml_blocks_are_valid_domains_or_jobs(snippet, place):
    content = tomllib.loads(snippet.text)
    if "project" in content:
        groups = {one.GROUP for one in (mechanisms, reconstruction, families, formats)}
        assert set(content["project"]["entry-points"]) == groups
    elif content.keys() == {"formats"}:
        assert dp.Domain.from_dict({"attributes": {"age": {"kind": "integer", "low": 0, "high": 99}}} | content).formats
    elif content.keys() == {"rule"}:
        day = {"kind": "date", "by": "month", "low": "2020-01", "high": "2020-12"}
        attributes = {"age": {"kind": "integer", "low": 0, "high": 99}, "admission": day, "discharge": day} | {
            name: {"kind": "categories", "values": values}
            for name, values in {"marital": ["single", "married", "widowed"], "code": ["A1", "A2", "B1"],
                                 "region": ["north", "south"]}.items()
        }  # fmt: skip
        assert dp.Domain.from_dict({"attributes": attributes} | content).rules
    elif "attributes" in content:
        assert len(dp.Domain.from_dict(content, place)) >= len(content["attributes"])
    elif content.keys() & {"tables", "link"}:
        Job.parse(content, place)
    else:
        Job.parse(_complete_job(content), place)


def _complete_job(content):
    """Complete a part of a job file to a job."""
    whole = tomllib.loads(JOB) | content
    budget = {} if "epsilon" in whole["privacy"] else {"rho": 1.0}
    return whole | {
        "privacy": {**budget, "dataset": "a", **whole["privacy"]},
        "data": {"domain": "visits.domain.toml", **whole["data"]},
    }


def commands(snippet):
    """Yield the words of each dpscale command of a console block."""
    for line in snippet.text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        words = words[next((i for i, word in enumerate(words) if "=" not in word), 0) :]
        if words and Path(words[0]).name == "dpscale":
            yield words[1:]


@pytest.mark.parametrize("snippet", snippets_of("console"), ids=str)
def test_console_blocks_use_existing_commands_and_options(snippet, place, monkeypatch):
    monkeypatch.chdir(place)
    for words in commands(snippet):
        _parse_command(main, words)


def _parse_command(command, words):
    """Parse a command and raise UsageError for unknown options; files need not exist."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        _, found, rest = command.resolve_command(context, words)
        return _parse_command(found, rest)
    for parameter in command.params:
        if isinstance(parameter.type, click.Path):
            parameter.type.exists = False
    return command.make_context(command.name, list(words))


def test_unknown_option_is_detected():
    with pytest.raises(click.UsageError):
        _parse_command(main, ["run", "job.toml", "--run-folder", "x"])


@pytest.mark.parametrize("snippet", snippets_of("sql", "docs/sql.md"), ids=str)
def test_statements_are_queries(snippet):
    day = {"kind": "date", "by": "month", "low": "2024-01", "high": "2024-12"}
    texts = {"region": ["N", "S"], "sex": ["F", "M"]}
    attributes = {"age": {"kind": "integer", "low": 0, "high": 90}, "day": day}
    attributes |= {name: {"kind": "categories", "values": values} for name, values in texts.items()}
    domain = dp.Domain.from_dict({"attributes": attributes, "numbers": {"fee": {"low": 0, "high": 500}}})
    assert dp.Workload(domain).add_sql(snippet.text).query_count > 0


@pytest.mark.parametrize(
    "snippet", [one for one in snippets_of("sql") if one.page not in ELSEWHERE and one.page != "docs/sql.md"], ids=str
)
def test_sql_blocks_return_rows(snippet, place, monkeypatch):
    monkeypatch.chdir(place)
    duckdb = pytest.importorskip("duckdb")
    assert duckdb.sql(snippet.text).fetchall()


@pytest.mark.parametrize("snippet", snippets_of("r"), ids=str)
def test_r_blocks_return_rows(snippet, place):
    """Run the block in R if available, and always its filter in the Arrow library that R uses.

    R also passes `==` on a factor column to Arrow: apache/arrow, issue 43440 (`%in%` fails there).
    """
    if shutil.which("Rscript") and not subprocess.run(["Rscript", "-e", "library(arrow); library(dplyr)"]).returncode:
        subprocess.run(["Rscript", "-e", snippet.text], cwd=place, check=True)
    folder = snippet.text.partition('open_dataset("')[2].partition('"')[0]
    condition = snippet.text.partition("filter(")[2].partition(")")[0]
    wanted = [one.strip().partition(" == ") for one in condition.split("&")]
    values = [(name, json.loads(value)) for name, _, value in wanted]
    keep = ds.scalar(True)
    for name, value in values:
        keep = keep & (ds.field(name) == value)
    found = ds.dataset(place / folder).to_table(filter=keep)
    assert found.num_rows == 20
    assert all(set(found[name].to_pylist()) == {value} for name, value in values)


def test_every_job_key_is_documented():
    """Each key of the models is on one of the pages that explain them."""
    pages = "".join((ROOT / "docs" / name).read_text() for name in ("reference/job-file.md", "databases.md"))
    models = [Privacy, WorkloadSection, EngineSettings, Output, SynthesizeTable, TableSection, LinkSection,
              JoinWorkload, JoinSection, TableShares]  # fmt: skip
    # the first is of the jobs of several tables, the other a section of the short form
    keys = {key for model in models for key in model.model_fields} - {
        "unit_through",
        "time",
    }  # of several tables' own jobs, and a section of the short form
    assert {key for key in keys if f"`{key}`" not in pages and f"{key} =" not in pages} == set()
