"""Runs of several tables after their files changed, and after `dpscale end`: both are refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from dpscale.runs.links import stages
from tests.links.small import write_job


def stop(*_: Any, **__: Any) -> Any:
    raise KeyboardInterrupt


@pytest.mark.parametrize("name", ["persons", "products", "ratings"])
def test_completed_run_is_refused_for_changed_files(tmp_path: Path, name: str) -> None:
    path = write_job(tmp_path)
    dp.run(path, tmp_path / "run")
    assert dp.run(path, tmp_path / "run").path == tmp_path / "run"
    file = tmp_path / "data" / name / "0.parquet"
    pd.read_parquet(file).iloc[:-1].to_parquet(file, index=False)
    where = "link ratings.via" if name == "ratings" else f"tables.{name}.path"
    with pytest.raises(dp.DataError, match=f"{where}: done on .* from other data .*; nothing read or spent"):
        dp.run(path, tmp_path / "run")
    done = CliRunner().invoke(main, ["run", str(path), "--run-dir", str(tmp_path / "run"), "--quiet"])
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert len(dp.Release.open(tmp_path / "run").synthetic()["persons"])  # it is still what it was
    file.rename(tmp_path / "gone")
    assert dp.run(path, tmp_path / "run").path == tmp_path / "run"  # deleted files cannot be compared


def test_run_is_not_resumed_with_changed_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_job(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(stages, "write_tables", stop)
        with pytest.raises(KeyboardInterrupt):
            dp.run(path, tmp_path / "run")
    file = tmp_path / "data" / "products" / "0.parquet"
    before = file.stat().st_mtime_ns
    os.utime(file, ns=(before, before + 10**9))
    with pytest.raises(dp.DataError, match="time differs"):
        dp.run(path, tmp_path / "run")
    os.utime(file, ns=(before, before))
    dp.run(path, tmp_path / "run")


@pytest.mark.parametrize("begun", ["_read_links", "measure_link"])
def test_ended_run_has_no_secret_and_is_not_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: str
) -> None:
    path, run = write_job(tmp_path), tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(stages, begun, stop)
        with pytest.raises(KeyboardInterrupt):
            dp.run(path, run)
    assert list(run.rglob("secret.key"))
    for _ in range(2):
        result = CliRunner().invoke(main, ["end", str(run), "--json"])
        assert result.exit_code == 0, result.output
        ended = json.loads(result.stdout)
        assert (ended["how"], ended["charged"] is None) == ("abandoned", begun == "_read_links")
        assert not list(run.rglob("secret.key"))
    done = CliRunner().invoke(main, ["run", str(path), "--run-dir", str(run), "--quiet"])
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "was ended on" in done.stderr


def test_end_of_measured_run_reports_charge(tmp_path: Path) -> None:
    path, run = write_job(tmp_path), tmp_path / "run"
    dp.run(path, run)
    result = CliRunner().invoke(main, ["end", str(run)])
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("finished: the whole charge is spent")
    assert dp.run(path, run).path == run


@pytest.mark.parametrize("place", ["run", "run/tables/persons"])
def test_evidence_of_jointly_charged_tables_is_refused(tmp_path: Path, place: str) -> None:
    dp.run(write_job(tmp_path), tmp_path / "run")
    done = CliRunner().invoke(main, ["evidence", str(tmp_path / place)])
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1), (done.output, done.exception)
    assert "several tables" in done.stderr
