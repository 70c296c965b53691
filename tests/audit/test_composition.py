"""Charges against draws: the cost of a run is recomputed from its files by independent code and compared with the
ledger.
"""

import json
from fractions import Fraction

import numpy as np
import pytest

import dpscale as dp
from dpscale.audit.selftest import MECHANISMS
from dpscale.ledger import Ledger
from dpscale.runs.opening import open_part
from tests.answered import plant
from tests.audit.composition import audit_run, records_of
from tests.audit.small import write

STRAY = "000-00000900-00000901.parquet"
UNIT = {"path": "data", "domain": "domain.toml", "privacy_unit": "unit", "max_rows_per_unit": 3}
ROW = {"path": "data", "domain": "domain.toml"}


def run_job(place, mechanism="identity", data=ROW, **settings):
    path = write(place, mechanism={"name": mechanism}, data=data, **settings,
                 workload=[{"family": "prefix", "degree": 2}, {"family": "marginal", "degree": 1}])  # fmt: skip
    dp.run(path, place / "run")
    return place / "run", place / "ledger.sqlite"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("data", [ROW, UNIT], ids=["rows", "units"])
def test_ledger_covers_draws(tmp_path, mechanism, data):
    found = audit_run(*run_job(tmp_path, mechanism, data))
    assert found.sound
    assert found.drawn > found.paid * 999 / 1000


@pytest.mark.sampled(3)
@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("data", [ROW, UNIT], ids=["rows", "units"])
def test_ledger_covers_laplace_noise_as_pure_epsilon(tmp_path, mechanism, data):
    run, ledger = run_job(tmp_path, mechanism, data, privacy={"epsilon": 0.7, "dataset": "pure"})
    found = audit_run(run, ledger)
    assert found.sound
    assert 0.7 * 999 / 1000 < found.drawn <= 0.7
    with Ledger.open(ledger) as opened:
        summary = opened.summary()["datasets"]["pure"]
    assert summary["spent"]["epsilon"] == summary["spent"]["pure_epsilon"]
    assert summary["spent"]["delta"] == 0
    assert found.drawn <= Fraction(summary["releases"][0]["cost"]["pure"]) <= 0.7


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("data", [ROW, UNIT], ids=["rows", "units"])
def test_ledger_covers_draws_and_selections_of_adaptive_run(tmp_path, published, data):
    privacy = {"epsilon": 1.0, "delta": 1e-9, "dataset": "adaptive"}
    run = dp.run(write(tmp_path, mechanism={"name": "aim-grem", "published": published}, data=data, privacy=privacy,
                       workload=[{"family": "prefix", "degree": 2}]), tmp_path / "run").path  # fmt: skip
    found = audit_run(run, tmp_path / "ledger.sqlite")
    assert found.sound
    assert found.paid * 999 / 1000 < found.drawn <= found.paid
    assert found.paid == Fraction(dp.privacy.gdp_mu(1.0, 1e-9) ** 2 * (1 - 1e-15))
    path = next(iter(run.glob("measurements/*.parquet")))
    record = next(records_of(path)) | {"variance": "3000000"}
    plant(path.with_name(STRAY), record, np.zeros(3))
    assert not audit_run(run, tmp_path / "ledger.sqlite").sound  # a second draw under another noise
    path = run / "measurements/round-001.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"beta": "0"}))
    assert "round 1: differs from the ledger" in audit_run(run, tmp_path / "ledger.sqlite").faults
    last = sorted(run.glob("measurements/round-*.json"))[-1]
    last.unlink()
    absent = f"round {int(last.stem[-3:])}: on the ledger but not in the run"
    assert absent in audit_run(run, tmp_path / "ledger.sqlite").faults


def test_draw_with_strategy_is_checked_against_its_columns(tmp_path):
    """Planted faults: noise scaled for single cells under a strategy of larger sensitivity, and an unknown strategy."""
    privacy = {"epsilon": 1.0, "delta": 1e-9, "dataset": "adaptive"}
    run = dp.run(write(tmp_path, mechanism={"name": "aim-grem"}, privacy=privacy,
                       workload=[{"family": "prefix", "degree": 2}]), tmp_path / "run").path  # fmt: skip
    assert audit_run(run, tmp_path / "ledger.sqlite").sound
    path = next(path for path in run.glob("measurements/*.parquet") if "strategy" in next(records_of(path)))
    record = next(records_of(path))
    large = record | {"round": 7, "variance": str(int(record["variance"]) // 4**12)}
    plant(path.with_name(STRAY), large, np.zeros(3))
    found = audit_run(run, tmp_path / "ledger.sqlite")
    assert found.drawn > 1000 * found.paid
    path.with_name(STRAY).unlink()
    plant(path.with_name(STRAY), record | {"round": 7, "strategy": "0" * 64}, np.zeros(3))
    assert any("an unknown strategy" in fault for fault in audit_run(run, tmp_path / "ledger.sqlite").faults)


def first_measurement(run):
    """Return the record and the value of the first measurement of a run."""
    released = open_part(run).measurements
    first = released.measurement_plan.first_decision()
    return released.record(first.requests[0]), released.values(first)[0]


def test_planted_uncharged_draw_is_detected(tmp_path):
    run, ledger = run_job(tmp_path)
    record, value = first_measurement(run)
    for change, fault in (({"release": "another"}, "not charged"), ({"strategy": "0" * 64}, "not in the plan")):
        changed = record | change
        path = run / "measurements" / STRAY
        plant(path, changed, value)
        assert any(fault in text for text in audit_run(run, ledger).faults)
        path.unlink()
    assert audit_run(run, ledger).sound


def test_planted_second_draw_is_detected(tmp_path):
    """The same measurement with other noise is in the plan and of this release, but paid for once."""
    run, ledger = run_job(tmp_path)
    record, value = first_measurement(run)
    record |= {"round": 1}
    plant(run / "measurements" / STRAY, record, value)
    assert not audit_run(run, ledger).sound
