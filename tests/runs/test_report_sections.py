"""A failing report section: answers and the other sections are written, and the exit code is 70."""

import pytest
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from dpscale.runs.stages import report
from tests.runs.small import write_job


def fail(*_):
    raise KeyError("a text that is not shown")


def run_command(*arguments):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    return result.exit_code, result.stderr


@pytest.mark.parametrize(("planted", "title"), [("strategies", "Measurement plan"), ("headline_tables", "Key results")])
def test_answers_and_other_sections_are_written(place, monkeypatch, planted, title):
    run = place / "run"
    with monkeypatch.context() as patch:
        patch.setattr(report, planted, fail)
        code, message = run_command("run", write_job(place), "--run-dir", run, "--quiet")
    assert code == dp.ReportError.exit_code == 70
    assert f"section '{title}' failed with KeyError" in message
    assert message.count("\n") == 1
    page = (run / "report.html").read_text()
    assert "a text that is not shown" not in page + message
    assert f"The section “{title}” of this report failed" in page
    assert '<h2 id="cost">How it was protected</h2>' in page
    assert dp.Release.open(run).total()[0] > 0
    assert (run / "answers" / "index.parquet").exists()
    assert run_command("job", "status", run)[0] == run_command("publish", run)[0] == 0
    assert run_command("run", run, "--only", "report") == (0, "")
    assert "could not be made" not in (run / "report.html").read_text()
