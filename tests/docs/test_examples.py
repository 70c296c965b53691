"""The examples in pipelines/examples, each run from top to bottom, and what a reader would see of them."""

import runpy
import sys

import pytest

from tests.docs.snippets import ROOT

EXAMPLES = sorted((ROOT / "pipelines" / "examples").glob("*.py"))


@pytest.fixture
def ran(request, tmp_path, monkeypatch):
    """The names that an example leaves, run in a folder of its own."""
    monkeypatch.setattr(sys, "argv", [request.param, str(tmp_path / "out")])
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return runpy.run_path(str(ROOT / "pipelines" / "examples" / request.param))


@pytest.mark.parametrize("ran", ["census.py"], indirect=True)
def test_the_census_is_within_its_intervals_and_printed(ran):
    assert ran["inside"] > 0.8
    assert (ran["folder"] / "press" / "csv" / "001-region-age-sex.csv").exists()


@pytest.mark.parametrize("ran", ["adaptive_rows.py"], indirect=True)
def test_adaptive_rows_are_near_the_survey(ran, capsys):
    assert len(ran["made"]) == 10_000
    assert max(ran["apart"](pair) for pair in ran["pairs"]) < 0.1


@pytest.mark.parametrize("ran", ["relational.py"], indirect=True)
def test_the_synthetic_database_is_whole(ran):
    made, each = ran["made"], ran["visits_each"]
    assert each(made["patients"], made["visits"]).sub(each(ran["patients"], ran["visits"])).abs().max() < 1


def test_every_example_is_run_here_and_linked():
    linked = (ROOT / "docs" / "examples.md").read_text()
    assert [path.name for path in EXAMPLES] == ["adaptive_rows.py", "census.py", "relational.py"]
    assert all(f"../pipelines/examples/{path.name}" in linked for path in EXAMPLES)
