"""The examples in pipelines/examples, each run from top to bottom, with checks of their results."""

import runpy
import sys

import pytest

from tests.docs.snippets import ROOT

EXAMPLES = sorted((ROOT / "pipelines" / "examples").glob("*.py"))


@pytest.fixture
def example(request, tmp_path, monkeypatch):
    """The names that an example defines, run in its own directory."""
    monkeypatch.setattr(sys, "argv", [request.param, str(tmp_path / "out")])
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return runpy.run_path(str(ROOT / "pipelines" / "examples" / request.param))


@pytest.mark.parametrize("example", ["census.py"], indirect=True)
def test_census_example_is_within_intervals(example):
    assert example["inside"] > 0.7  # of 48 intervals with common noise
    assert (example["folder"] / "press" / "csv" / "001-region-age-sex.csv").exists()


@pytest.mark.parametrize("example", ["adaptive_rows.py"], indirect=True)
def test_adaptive_rows_example_is_near_survey(example, capsys):
    assert len(example["made"]) == 10_000
    assert max(example["pair_distance"](pair) for pair in example["pairs"]) < 0.1


@pytest.mark.parametrize("example", ["relational.py"], indirect=True)
def test_relational_example_keeps_foreign_keys(example):
    made, each = example["made"], example["visits_by_age"]
    assert each(made["patients"], made["visits"]).sub(each(example["patients"], example["visits"])).abs().max() < 1


def test_every_example_is_run_and_linked():
    linked = (ROOT / "docs" / "examples.md").read_text()
    assert [path.name for path in EXAMPLES] == ["adaptive_rows.py", "census.py", "relational.py"]
    assert all(f"../pipelines/examples/{path.name}" in linked for path in EXAMPLES)
