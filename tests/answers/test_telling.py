"""Highlights of a release: planted associations come first, and noise alone gives no departure."""

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from dpscale.answers import tables
from dpscale.answers.findings import findings
from dpscale.answers.tables import Answered
from dpscale.cli.outcome import command
from tests.answers.exact import estimates, measurement_plan
from tests.runs.small import table, write_job, write_table

DOMAIN = dp.Domain({"a": 4, "b": 5, "c": 3, "d": 2})
PAIRS = [("marginal", names) for names in (("a", "b"), ("a", "c"), ("b", "c"), ("c", "d"))]


def make_answers(counts, noise=None):
    return Answered(estimates(measurement_plan(DOMAIN, PAIRS, "residual-planner"), counts, noise), "release")


def test_largest_departures_come_first_and_noise_has_none():
    counts = np.full(DOMAIN.shape(DOMAIN.names), 100.0)
    counts[0] += 200
    counts[:, :, 1] += 30
    answers = make_answers(counts, np.random.default_rng(0))
    found = tables.singles(answers, 4)
    assert [one.names for one in found[:2]] == [("a",), ("c",)]
    for one in found:
        shares = one.values / one.values.mean()
        expected = ((shares - 1) ** 2).mean() - (one.errors**2).mean() / one.values.mean() ** 2
        assert tables.departure(one) == pytest.approx(max(expected, 0), abs=1e-12)


def test_finished_run_ends_with_findings_and_next_command(tmp_path, monkeypatch):
    write_table(tmp_path / "data", table())
    write_job(tmp_path)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["run", "job.toml", "--run-dir", "run", "--quiet"], catch_exceptions=False)
    lines, release = done.stdout.splitlines(), dp.Release.open("run")
    told = [f"  {one.sentence(release.domain)}" for one in findings(release.answered)]
    assert told
    assert lines[-2 - len(told) : -2] == told
    assert lines[-2:] == ["report: run/report.html", f"tables for publication: {command()} publish run"]


def test_answer_schema_describes_columns(tmp_path):
    write_table(tmp_path / "data", table())
    families = [{"family": family, "attributes": [["age", "sex"]]} for family in ("marginal", "prefix", "range")]
    run = dp.run(write_job(tmp_path, workload=families), tmp_path / "run").path
    descriptions = {}
    for folder in ("marginal-2", "prefix-2", "range-2"):
        schema = pq.read_schema(next((run / "answers" / folder).iterdir()))
        assert schema.metadata[b"family"].decode() == folder.split("-")[0]
        assert b"differentially private" in schema.metadata[b"description"]
        descriptions[folder] = {one.name: one.metadata[b"description"].decode() for one in schema}
    assert "asks for" in descriptions["marginal-2"]["value_1"]
    assert "all up to it" in descriptions["prefix-2"]["value_1"]
    assert "first value" in descriptions["range-2"]["low_1"]
