"""Runs of several tables after their files changed, and after `dpscale job end`: both are refused."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from dpscale.ledger import Ledger
from dpscale.measurement.journal import StoredDraws
from dpscale.runs import runner as parts
from dpscale.runs.links import parts as link_part, parts as together
from dpscale.runs.links.measuring import LinkDraws
from dpscale.runs.manifest import output_digest
from dpscale.runs.opening import open_part
from tests.links.small import make_job, write_job
from tests.messages import refused
from tests.selection import mostly_slow

STOPS = (LinkDraws.number("v"), LinkDraws.number("round-01"))


def stop(*_: Any, **__: Any) -> Any:
    raise KeyboardInterrupt


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["persons", "products", "ratings"])
def test_completed_run_is_refused_for_changed_files(tmp_path: Path, name: str) -> None:
    path = write_job(tmp_path)
    dp.run(path, tmp_path / "run")
    assert dp.run(path, tmp_path / "run").path == tmp_path / "run"
    file = tmp_path / "data" / name / "0.parquet"
    pd.read_parquet(file).iloc[:-1].to_parquet(file, index=False)
    with refused(dp.DataError):
        dp.run(path, tmp_path / "run")
    done = CliRunner().invoke(main, ["run", str(path), "--run-dir", str(tmp_path / "run"), "--quiet"])
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert len(dp.Release.open(tmp_path / "run").synthetic()["persons"])  # it is still what it was
    file.rename(tmp_path / "gone")
    assert dp.run(path, tmp_path / "run").path == tmp_path / "run"  # deleted files cannot be compared


def test_run_is_not_resumed_with_changed_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_job(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(together, "write_tables", stop)
        with pytest.raises(KeyboardInterrupt):
            dp.run(path, tmp_path / "run")
    file = tmp_path / "data" / "products" / "0.parquet"
    before = file.read_bytes()
    pd.read_parquet(file).iloc[:-1].to_parquet(file, index=False)
    with refused(dp.DataError):
        dp.run(path, tmp_path / "run")
    file.write_bytes(before)
    dp.run(path, tmp_path / "run")  # with another time


@pytest.mark.parametrize("begun", ["read_all", "measure_link"])
def test_ended_run_has_no_secret_and_is_not_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: str
) -> None:
    path, run = write_job(tmp_path), tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(link_part, begun, stop)
        with pytest.raises(KeyboardInterrupt):
            dp.run(path, run)
    assert list(run.rglob("secret.key"))
    for _ in range(2):
        result = CliRunner().invoke(main, ["job", "end", str(run), "--json"])
        assert result.exit_code == 0, result.output
        ended = json.loads(result.stdout)
        assert (ended["how"], ended["charged"] is None) == ("abandoned", begun == "read_all")
        assert not list(run.rglob("secret.key"))
    done = CliRunner().invoke(main, ["run", str(path), "--run-dir", str(run), "--quiet"])
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "was ended on" in done.stderr


def test_end_of_measured_run_reports_charge(tmp_path: Path) -> None:
    path, run = write_job(tmp_path), tmp_path / "run"
    dp.run(path, run)
    result = CliRunner().invoke(main, ["job", "end", str(run)])
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("finished: the whole charge is spent")
    assert dp.run(path, run).path == run


def test_evidence_of_jointly_charged_table_is_refused(tmp_path: Path) -> None:
    _, run = plan_only(tmp_path, "residual-planner")
    done = CliRunner().invoke(main, ["evidence", str(run / "tables" / "persons")])
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1), (done.output, done.exception)
    assert "whose parts are charged together" in done.stderr


def plan_only(tmp_path: Path, mechanism: str = "aim-grem") -> tuple[Path, Path]:
    """Return job and run directory of a planned run."""
    job = make_job()
    job["tables"]["persons"] |= {"mechanism": mechanism}
    path, run = write_job(tmp_path, job), tmp_path / "run"
    done = CliRunner().invoke(main, ["plan", str(path), "--run-dir", str(run), "--quiet"])
    assert done.exit_code == 0, done.output
    return path, run


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_table_is_not_measured_alone(tmp_path: Path) -> None:
    """Its charge is part of that of the whole run, which alone knows the costs of all tables."""
    _, run = plan_only(tmp_path)
    done = CliRunner().invoke(main, ["run", str(run / "tables/persons"), "--only", "measure", "--quiet"])
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "charged together" in done.stderr
    assert not list(run.rglob("measurements/*.parquet"))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("edited", ["facts", "budget", "plan", "large plan"])
def test_edited_table_draws_no_more_than_is_charged(tmp_path: Path, edited: str) -> None:
    """Planted: the share of a table is edited between planning and measuring, with a new hash of its stage."""
    path, run = plan_only(tmp_path, "residual-planner" if edited == "budget" else "aim-grem")
    table = run / "tables" / "persons"
    manifest = json.loads((run / "manifest.json").read_text())
    facts = manifest["parts"]["tables.persons"]
    cost = {"gaussian": "1/1000000", "zcdp": "0", "pure": "0", "pure_squares": "0"}
    if edited == "facts":
        parts = manifest["parts"] | {"tables.persons": facts | {"cost": cost, "privacy": {"budget": "1000"}}}
        edit_json(run / "manifest.json", parts=parts)
    if edited == "budget":
        edit_json(run / "manifest.json", privacy={"cost": cost, "budget": "1000"})
    if "plan" in edited:
        plan = json.loads((table / "plan/plan.json").read_text())
        plan.pop("first")
        (table / "plan/plan.json").write_text(json.dumps(plan | {"beta": "1.5" if edited == "plan" else "1000"}))
        stages = {"plan": facts["stages"]["plan"] | {"sha256": output_digest(table, table / "plan")}}
        edit_json(run / "manifest.json", parts=manifest["parts"] | {"tables.persons": facts | {"stages": stages}})
    done = CliRunner().invoke(main, ["run", str(path), "--run-dir", str(run), "--quiet"])
    refusals = {"plan": "does not follow from the job", "budget": "a charge that is not on the ledger",
                "large plan": "parts that cost"}  # fmt: skip
    assert done.exit_code == {"facts": 0, "large plan": 3}.get(edited, 2), done.output
    if edited in refusals:
        assert refusals[edited] in done.stderr
        assert not list(run.rglob("measurements/*.parquet"))
        return
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        [row] = ledger.summary("shop")["datasets"]["shop"]["releases"]
    assert float(Fraction(row["cost"]["gaussian"])) == pytest.approx(8, rel=1e-6)
    for name, own in dp.Release.open(run).tables.items():  # reading compares noise and plan
        assert own.marginal(own.domain.names[:1]).shape
        assert float(open_part(run / "tables" / name).measurements.spent.gaussian) <= 1.6 * (1 + 1e-9)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("mechanism", mostly_slow(["maxent", "published"], {"maxent"}))
@pytest.mark.parametrize("killed", ["before commit", "before publication", "in a link"])
def test_end_finishes_run_whose_noise_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: str, mechanism: str
) -> None:
    """Killed at the end of the measure stage: what was paid for is finished; without some noise it is abandoned."""
    job = make_job()
    job["link"][1] |= {"mechanism": mechanism}
    path, run = write_job(tmp_path, job), tmp_path / "run"
    with monkeypatch.context() as patch:
        if killed == "before commit":
            patch.setattr(parts, "publish", stop)
        if killed == "before publication":
            patch.setattr(Ledger, "publish", stop)
        if killed == "in a link":
            measure = StoredDraws.store
            patch.setattr(StoredDraws, "store", lambda self, number, *own: stop() if number in STOPS
                          else measure(self, number, *own))  # fmt: skip
        with pytest.raises(KeyboardInterrupt):
            dp.run(path, run)
    before = {one: one.read_bytes() for one in run.rglob("links/*/*") if one.is_file()}
    done = CliRunner().invoke(main, ["job", "end", str(run), "--json"])
    assert done.exit_code == 0, done.output
    ended = json.loads(done.stdout)
    if killed == "in a link":
        assert (ended["how"], ended["charged"]["state"]) == ("abandoned", "reserved")
        return
    assert (ended["how"], ended["charged"]["state"]) == ("finished", "released")
    assert not list(run.rglob("secret.key"))
    release = dp.run(path, run)
    assert len(release.synthetic()["orders"])
    assert {one: one.read_bytes() for one in before} == before
