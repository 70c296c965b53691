"""The tutorials: Python, files and commands of a page are run in order in an empty directory."""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from dpscale.__main__ import main

DOCS = Path(__file__).parents[2] / "docs"
MADE = {"tutorial.md": ["release/report.html", "smokers-by-age.csv"], "places.md": ["release/report.html"],
        "growing.md": ["release/report.html"],
        "sql-tutorial.md": ["answers/report.html", "hospital/report.html"]}  # fmt: skip
BLOCK = re.compile(r"^```(\w+) ?(\S*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


SLOW = {"growing.md"}  # tests/periods runs the same steps on less data


@pytest.mark.parametrize("page", [pytest.param(one, marks=pytest.mark.slow) if one in SLOW else one for one in MADE])
def test_tutorial_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    for kind, file, text in BLOCK.findall((DOCS / page).read_text()):
        if kind == "python":
            exec(compile(text, page, "exec"), names)
        elif file:
            Path(file).write_text(text)
        elif kind == "console":
            for line in text.splitlines():
                program, *arguments = shlex.split(line)
                result = CliRunner().invoke(main, arguments)
                assert (program, result.exit_code) == ("dpscale", 0), f"{line}\n{result.output}"
    assert all(Path(file).exists() for file in MADE[page])


@pytest.mark.parametrize(("block", "file"), [("tables.sql", "mixed.sql"), ("hospital.sql", "hospital.sql")])
def test_statements_are_those_of_the_benchmark(block, file):
    shown = {name: text for _, name, text in BLOCK.findall((DOCS / "sql-tutorial.md").read_text())}
    assert shown[block] == (DOCS.parent / "pipelines" / "sql" / file).read_text()
