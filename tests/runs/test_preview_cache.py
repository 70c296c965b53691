"""Cache of `dpscale plan`: a repeated preview is computed once, and again for another budget, other memory or a
damaged file.
"""

import json

import pytest
from click.testing import CliRunner

from dpscale.__main__ import main
from dpscale.runs.stages import preview
from tests.runs.small import write_job


@pytest.fixture
def preview_job(monkeypatch, tmp_path):
    """Function that returns the number of error computations so far and the preview of a job."""
    monkeypatch.setenv("DPSCALE_STORE", str(tmp_path / "store"))
    times, expected_errors = [], preview.expected_errors
    monkeypatch.setattr(preview, "expected_errors", lambda *own: times.append(1) or expected_errors(*own))

    def run_preview(**changes):
        result = CliRunner().invoke(main, ["plan", str(write_job(tmp_path, **changes)), "--json", "--quiet"])
        assert result.exit_code == 0, result.output
        summary = json.loads(result.stdout)
        return len(times), {key: value for key, value in summary.items() if key != "planning_seconds"}

    return run_preview


def test_repeated_preview_is_not_computed_again(preview_job, tmp_path):
    first, second = preview_job(), preview_job()
    assert (first[0], second[0]) == (1, 1)
    assert first[1] == second[1]
    (cached,) = (tmp_path / "store" / "summaries").iterdir()
    cached.write_text(cached.read_text().replace('"tasks": ', '"tasks": 1'))
    assert preview_job() == (2, first[1])


def test_other_budget_or_memory_is_computed_again(preview_job):
    here = preview_job()[1]
    there = preview_job(privacy={"epsilon": 2.0, "delta": 1e-9, "dataset": "small"})
    assert there[0] == 2
    assert there[1]["families"][0]["error"] < here["families"][0]["error"]
    assert preview_job(engine={"scheduler": "synchronous", "memory": "2GiB"})[0] == 3
