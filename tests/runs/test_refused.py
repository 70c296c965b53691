"""A refused run leaves no directory, unless it existed before or a charge was made."""

from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from dpscale.base.errors import DataError, DpscaleError, TransientError
from dpscale.ledger import Ledger
from dpscale.privacy.secret import secret_tag
from dpscale.runs.opening import open_part
from dpscale.runs.stages import measure
from tests.messages import refused
from tests.running import linked
from tests.runs.small import table, write_job, write_table


@pytest.fixture
def job(tmp_path, monkeypatch):
    """A job whose data contain a value outside the domain."""
    monkeypatch.chdir(tmp_path)
    frame = table()
    frame.loc[3, "sex"] = "no such"
    write_table(tmp_path / "data", frame)
    return write_job(tmp_path)


def test_value_outside_domain_leaves_no_directory(job, tmp_path):
    result = CliRunner().invoke(main, ["run", str(job), "--quiet"])
    assert result.exit_code == 2
    assert not (tmp_path / "runs").exists()
    with pytest.raises(DataError):
        dp.run(job, tmp_path / "named")
    assert not (tmp_path / "named").exists()


def test_planning_error_leaves_no_directory(tmp_path):
    write_table(tmp_path / "data", table())
    joint = [{"family": "affine", "degree": 2}]
    job = write_job(tmp_path, workload=joint, mechanism={"name": "hdmm", "way": "product"})
    result = CliRunner().invoke(main, ["plan", str(job), "--run-dir", str(tmp_path / "run")])
    assert result.exit_code == 2
    assert not (tmp_path / "run").exists()


def test_existing_directories_are_left_unchanged(job, tmp_path):
    there = Path("runs/other")
    there.mkdir(parents=True)
    with pytest.raises(DataError):
        dp.run(job, there)
    assert list(there.iterdir()) == []
    CliRunner().invoke(main, ["run", str(job), "--quiet"])
    assert list(Path("runs").iterdir()) == [there]


def test_corrected_data_run_with_same_command(job, tmp_path):
    with pytest.raises(DataError):
        dp.run(job, tmp_path / "run")
    for path in (tmp_path / "data").iterdir():
        pd.read_parquet(path).query("sex != 'no such'").to_parquet(path)
    assert dp.run(job, tmp_path / "run").total().estimate > 0


def test_charged_run_keeps_its_secret(tmp_path, monkeypatch):
    """Planted refusal after the charge: the run resumes with the same secret, under the same charge."""
    write_table(tmp_path / "data", table())
    job, measure_layouts = write_job(tmp_path), measure.measure_layouts
    monkeypatch.setattr(
        measure, "measure_layouts", lambda *own: (_ for _ in ()).throw(DataError("data", "a", "b", "c"))
    )
    with pytest.raises((DataError, TransientError)):
        dp.run(job, tmp_path / "run")
    monkeypatch.setattr(measure, "measure_layouts", measure_layouts)
    assert (tmp_path / "run" / "secret.key").exists()
    secret = (tmp_path / "run" / "secret.key").read_bytes()
    assert len(secret) == 32
    tag = open_part(tmp_path / "run").manifest["secret_tag"]
    assert secret_tag(secret) == tag
    release = dp.run(job, tmp_path / "run")
    assert release.total().estimate > 0
    assert release.manifest["secret_tag"] == tag
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        [entry] = ledger.summary()["datasets"]["small"]["releases"]
    assert (entry["release"], entry["state"]) == (release.manifest["release"], "released")


def test_existing_run_is_left(job, tmp_path):
    CliRunner().invoke(main, ["plan", str(job), "--run-dir", str(tmp_path / "run"), "--quiet"])
    with pytest.raises(DataError):
        dp.run(job, tmp_path / "run")
    assert (tmp_path / "run" / "plan" / "plan.json").exists()


def make_two_table_job(first):
    """Write the files of a two-table job into the working directory and return the job; `first` is a value of the
    parent table.
    """
    pd.DataFrame({"id": range(40), "a": [first] + [1] * 39}).to_parquet("p.parquet")
    pd.DataFrame({"id": range(40), "b": 1}).to_parquet("c.parquet")
    for name, column in (("p", "a"), ("c", "b")):
        kind = 'kind = "integer", low = 0, high = 3'
        text = f'attributes.{column} = {{{kind}}}\nattributes.{column}2 = {{{kind}, from = "{column}"}}\n'
        Path(f"{name}.toml").write_text(text)
    tables = {name: {"path": f"{name}.parquet", "domain": f"{name}.toml"} for name in "pc"}
    tables["p"]["key"] = "id"
    link = {"kind": "one-to-many", "parent": "p", "child": "c", "child_key": "id", "max_degree": 3}
    privacy = {"epsilon": 1.0, "delta": 1e-6, "dataset": "x", "ledger": "l.sqlite"}
    return {"tables": tables, "link": [link], "privacy": privacy}


def test_refused_database_run_leaves_no_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with refused(DataError):
        dp.run(make_two_table_job(9), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("ledger_missing", [False, True])
def test_database_run_with_possible_charge_keeps_secrets(tmp_path, monkeypatch, ledger_missing):
    """The refusal comes after the charge and before the run records it; a deleted ledger cannot rule out a charge."""
    monkeypatch.chdir(tmp_path)

    def refuse(*_):
        linked(tmp_path / "run").update(privacy=None)
        for path in Path().glob("l.sqlite*" if ledger_missing else "none"):
            path.unlink()
        raise DataError("data", "a", "b", "c")

    monkeypatch.setattr(measure, "measure_layouts", refuse)
    with pytest.raises(DpscaleError):
        dp.run(make_two_table_job(1), tmp_path / "run")
    secrets = list((tmp_path / "run").rglob("secret.key"))
    assert secrets
    assert all(len(path.read_bytes()) == 32 for path in secrets)
