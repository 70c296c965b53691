"""What `dpscale plan` tells is kept: told once, anew for another budget, and anew where the file was damaged."""

import json

import pytest
from click.testing import CliRunner

from dpscale.__main__ import main
from dpscale.runs.stages import preview
from tests.runs.small import write_job


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """How often errors were computed, and what is told of a job."""
    monkeypatch.setenv("DPSCALE_STORE", str(tmp_path / "store"))
    times, expected_errors = [], preview.expected_errors
    monkeypatch.setattr(preview, "expected_errors", lambda *own: times.append(1) or expected_errors(*own))

    def tell(**changes):
        result = CliRunner().invoke(main, ["plan", str(write_job(tmp_path, **changes)), "--json", "--quiet"])
        assert result.exit_code == 0, result.output
        told = json.loads(result.stdout)
        return len(times), {key: value for key, value in told.items() if key != "planning_seconds"}

    return tell


def test_the_same_is_told_again_without_computing_it(asked, tmp_path):
    first, second = asked(), asked()
    assert (first[0], second[0]) == (1, 1)
    assert first[1] == second[1]
    (kept,) = (tmp_path / "store" / "told").iterdir()
    kept.write_text(kept.read_text().replace('"tasks": ', '"tasks": 1'))
    assert asked() == (2, first[1])


def test_another_budget_or_memory_is_told_anew(asked):
    here = asked()[1]
    there = asked(privacy={"epsilon": 2.0, "delta": 1e-9, "dataset": "small"})
    assert there[0] == 2
    assert there[1]["families"][0]["error"] < here["families"][0]["error"]
    assert asked(engine={"scheduler": "synchronous", "memory": "2GiB"})[0] == 3
