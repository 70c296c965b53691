"""Rules in synthetic rows of whole runs: evaluated with pandas on the written files."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tomli_w
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from dpscale.runs.opening import open_run
from dpscale.runs.stages import synthesize
from dpscale.runs.statement import stated_domains
from tests.messages import refused
from tests.runs.test_synthesize import row_digests

ROWS = 3000
DOMAIN = {
    "attributes": {
        "admission": {"kind": "date", "by": "month", "low": "2020-01", "high": "2020-12"},
        "discharge": {"kind": "date", "by": "month", "low": "2020-01", "high": "2021-03", "nulls": "category"},
        "status": {"kind": "categories", "values": ["child", "adult"]},
        "work": {"kind": "categories", "values": ["no", "part", "full"]},
        "age": {"kind": "integer", "low": 0, "high": 19},
        "part": {"kind": "bins", "edges": [0, 10, 20, 40]},
        "whole": {"kind": "bins", "edges": [0, 10, 40, 80]},
        "price": {"kind": "bins", "edges": [0, 1.5, 4, 9.25]},
        "fee": {"kind": "bins", "edges": [0, 2, 6]},
        "total": {"kind": "bins", "edges": [0, 3, 8, 16]},
    },
    "numbers": {"paid": {"low": 0, "high": 50}, "due": {"low": 0, "high": 60}},
}
RULES = ["discharge >= admission", "if status = 'child' then work = 'no' and age < 15", "part <= whole",
         "price + fee = total", "paid <= due", "not (age >= 18 and status = 'child')"]  # fmt: skip


def records(rows: int = ROWS) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    day = np.datetime64("2020-01-01") + rng.integers(0, 366, rows)
    stay = np.minimum(rng.geometric(0.1, rows), 80)
    status = np.where(rng.random(rows) < 0.3, "child", "adult")
    age = np.where(status == "child", rng.integers(0, 15, rows), rng.integers(15, 20, rows))
    part, price, fee = rng.integers(0, 40, rows), np.round(rng.random(rows) * 9, 2), np.round(rng.random(rows) * 6, 2)
    due = rng.integers(0, 60, rows)
    return pd.DataFrame({
        "admission": day, "discharge": pd.Series(day + stay).where(rng.random(rows) < 0.9), "status": status,
        "work": np.where(status == "child", "no", rng.choice(["no", "part", "full"], rows)), "age": age, "part": part,
        "whole": part + rng.integers(0, 40, rows), "price": price, "fee": fee, "total": np.round(price + fee, 2),
        "due": due, "paid": np.minimum(due, rng.integers(0, 51, rows)),
    })  # fmt: skip


def job_of(folder: Path, **changes: Any) -> dict[str, Any]:
    records().to_parquet(folder / "data.parquet", index=False)
    (folder / "domain.toml").write_text(tomli_w.dumps(DOMAIN))
    return {
        "data": {"path": str(folder / "data.parquet"), "domain": str(folder / "domain.toml")},
        "privacy": {"privacy_cost": 8.0, "dataset": "rules", "ledger": str(folder / "ledger.sqlite")},
        "workload": [{"family": "marginal", "degree": 2},
                     {"family": "sum", "of": "paid", "attributes": [["status"]]},
                     {"family": "sum", "of": "due", "attributes": [["status"]]}],
        "engine": {"scheduler": "synchronous", "seed": 7},
        "synthesize": {"rows": 2000, "parts": 2},
        "rule": [{"rule": rule} for rule in RULES],
    } | changes  # fmt: skip


def broken(rows: pd.DataFrame) -> dict[str, int]:
    """Return the number of rows that break each rule, by pandas; a comparison with a null breaks none."""
    admission, discharge = (pd.to_datetime(rows[name]) for name in ("admission", "discharge"))
    child = rows.status == "child"
    found = {
        "dates": discharge < admission, "child": child & ((rows.work != "no") | (rows.age >= 15)),
        "part": rows.part > rows.whole, "sum": (rows.price + rows.fee - rows.total).abs() > 1e-9,
        "paid": rows.paid > rows.due,
    }  # fmt: skip
    return {name: int(flags.sum()) for name, flags in found.items()}


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dp.Release]:
    """A job with all rules, and its release."""
    folder = tmp_path_factory.mktemp("rules")
    return (job := job_of(folder)), dp.run(job, folder / "run")


def test_rows_satisfy_rules(tmp_path: Path, released: tuple[dict[str, Any], dp.Release]) -> None:
    job, release = released
    rows = release.synthetic().compute()
    assert broken(rows) == dict.fromkeys(broken(rows), 0)
    described = json.loads((release.path / "synthetic/_rows.json").read_text())
    assert described["rules"] == {"stated": len(RULES), "broken": 0}
    assert rows.discharge.isna().any()
    report = (release.path / "report.html").read_text()
    assert "All rows satisfy the 6 rules" in report
    assert "<code>price + fee = total</code>" in report
    stated = stated_domains(open_run(release.path))["domain.toml"].decode()  # whose hash the charge seals
    assert all(one in tomllib.loads(stated)["rule"] for one in job["rule"])
    ruleless = {name: section for name, section in job.items() if name != "rule"} | {"engine": {"seed": 8}}
    free = broken(dp.run(ruleless, tmp_path / "free").synthetic().compute())
    assert min(free[name] for name in ("dates", "part", "sum", "paid")) > 50  # of rows that are drawn without rules


@pytest.mark.parametrize("mechanism", ["aim-grem", "aim-pgm", "mst"])
def test_rows_of_adaptive_mechanisms_satisfy_rules(tmp_path: Path, mechanism: str) -> None:
    names = ["admission", "discharge", "part", "whole"]
    domain = {"attributes": {name: DOMAIN["attributes"][name] for name in names}}
    job = job_of(tmp_path, mechanism={"name": mechanism}, workload=[{"family": "marginal", "degree": 2}],
                 rule=[{"rule": "discharge >= admission"}, {"rule": "part <= whole"}])  # fmt: skip
    (tmp_path / "domain.toml").write_text(tomli_w.dumps(domain))
    release = dp.run(job, tmp_path / "run")
    rows = release.synthetic().compute()
    assert not (pd.to_datetime(rows.discharge) < pd.to_datetime(rows.admission)).any()
    assert not (rows.part > rows.whole).any()
    cells = release.marginal(("admission", "discharge"))
    assert cells.sum() > 2000
    assert cells[np.tril_indices(12, -1)].sum() < 1e-6  # structural zeros of the estimates


def test_plan_states_rules(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(tomli_w.dumps(job_of(tmp_path)))
    done = CliRunner().invoke(main, ["plan", str(tmp_path / "job.toml")])
    assert done.exit_code == 0
    assert "6 rules between attributes are taken as public: discharge >= admission; " in done.stdout


def test_rows_do_not_depend_on_the_scheduler(tmp_path: Path, released: tuple[dict[str, Any], dp.Release]) -> None:
    job, release = released
    dp.run(job | {"engine": {"scheduler": "threads", "seed": 7}}, tmp_path / "threads")
    assert row_digests(tmp_path / "threads") == row_digests(release.path)


def test_rows_that_break_a_rule_are_not_written_as_correct(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check reads the written values: it finds rows whose values were drawn without rules."""
    monkeypatch.setattr(synthesize, "fit_values", lambda *given: None)
    with refused(RuntimeError):
        dp.run(job_of(tmp_path), tmp_path / "run")


def test_synthesizer_takes_rules(tmp_path: Path) -> None:
    domain = dp.Domain.from_dict(
        {"attributes": {name: DOMAIN["attributes"][name] for name in ("admission", "discharge")}}
    )
    names = list(domain.names)
    fitted = dp.Synthesizer(domain, epsilon=2.0, degree=2, rules=["discharge >= admission"], dataset="x",
                            ledger=tmp_path / "ledger.sqlite").fit(records()[names])  # fmt: skip
    rows = fitted.sample(500)
    assert not (pd.to_datetime(rows.discharge) < pd.to_datetime(rows.admission)).any()
    given = fitted.sample(200, given={"admission": "2020-05"})
    assert not (pd.to_datetime(given.discharge) < pd.to_datetime(given.admission)).any()
    assert (pd.to_datetime(given.admission).dt.month == 5).all()
