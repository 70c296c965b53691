"""A toy mechanism with an additive delta and a period, from the charge to ledger, report and evidence, and forgeries.

No mechanism has either yet. The toy is a fixed plan whose cost states both, at noise for the rest of the job's delta.
"""

import json
import math
import shutil
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction

import pytest
import tomli_w

import dpscale as dp
from dpscale.audit.evidence import bundle, recompute, sensitivities
from dpscale.audit.evidence.check import check_bundle
from dpscale.base.errors import JobError
from dpscale.ledger import Ledger
from dpscale.mechanisms import matrix_mechanism
from dpscale.mechanisms.matrix_mechanism import AllBlocks, FixedPlan
from dpscale.privacy.accounting import Cost, float_above
from dpscale.privacy.conversion import gaussian_power, gdp_mu
from dpscale.privacy.protection import Protection
from dpscale.runs.charge import parts_of_entry
from dpscale.runs.opening import open_run
from tests.audit import test_bundle_of_tables as tables
from tests.audit.forging import forge
from tests.audit.test_bundle import GAUSSIAN, PASSED, PURE, UNIT, recomputed, run_command, run_job, write_run_bundle
from tests.messages import refused

ADDITIVE, PERIOD = Fraction(1, 4 * 10**9), "2026-02"
KINDS = {"plan": ("query-smasher", GAUSSIAN), "units": ("identity", GAUSSIAN, UNIT), "laplace": ("identity", PURE)}


def plant(patch, additive=ADDITIVE, period=PERIOD):
    """Let fixed plans state an additive delta and a period, with noise for the rest of the job's delta."""
    honest, planned = FixedPlan.cost.fget, matrix_mechanism.plan_draws

    def smaller(plan, budget, rows_per_unit=1):
        whole = gdp_mu(1.0, 1e-9) ** 2
        if abs(budget / whole - 1) < 1e-6:
            budget = gdp_mu(1.0, float(Fraction(1e-9) - additive)) ** 2
        return planned(plan, budget, rows_per_unit)

    patch.setattr(matrix_mechanism, "plan_draws", smaller)
    patch.setattr(FixedPlan, "cost", property(lambda plan: replace(honest(plan), delta=additive, period=period)))
    patch.setattr(AllBlocks, "additive_delta", additive, raising=False)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs of the toy, with their evidence: of a Gaussian plan, of units and of Laplace noise."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        for name, kind in KINDS.items():
            run = run_job(tmp_path_factory.mktemp(name), *kind)
            found[name] = run, write_run_bundle(run)
    return found


def events_of(folder):
    return recompute.events_of(recompute.read_files(folder))["release"]


@pytest.mark.parametrize("kind", ["plan", "units"])
def test_additive_delta_and_period_reach_the_evidence(runs, tmp_path, kind):
    run, folder = runs[kind]
    found = check_bundle(folder)
    assert found["own_scripts"]
    assert "the additive δ of data, which parts.json states" in found["unverified"]
    assert found["release"]["epsilon"] == pytest.approx(1.0, rel=1e-6)
    assert found["release"]["delta"] == 1e-9
    [row] = recompute.read(folder, "ledger.json")["releases"]
    assert (Fraction(row["cost"]["delta"]), row["cost"]["period"]) == (ADDITIVE, PERIOD)
    assert recompute.total(events_of(folder), "delta") == ADDITIVE
    assert list(recompute.read(folder, "ledger.json")["periods"]) == [PERIOD]
    copy = shutil.copytree(folder, tmp_path / "bundle")
    script = subprocess.run([sys.executable, copy / "recompute.py"], capture_output=True, text=True, cwd="/")
    assert (script.returncode, script.stderr) == (0, "")
    page = (run / "report.html").read_text()
    assert "this additive δ is part of every δ here" in page
    assert f"of the period <code>{PERIOD}</code>" in page


def test_pure_release_claims_its_additive_delta(runs, tmp_path):
    """The job promised δ = 0, which the check reports."""
    folder = runs["laplace"][1]
    claim = recompute.read(folder, "claims.json")["release"]
    assert claim["epsilon"] == pytest.approx(0.7, rel=1e-3)
    assert Fraction(claim["delta"]) >= ADDITIVE
    with refused(JobError):
        check_bundle(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recompute, "_promise_faults", lambda *_: ())
        assert recompute.faults(folder) == []
        lower = recompute.read(folder, "claims.json")["release"] | {"delta": float(ADDITIVE) / 2}
        assert recompute._above("release", lower, events_of(folder))


def edit_cost(change):
    """Return a forgery of the release's cost in all files that state it."""

    def act(files):
        ledger = files["ledger"]
        links = [link["shown"] for link in ledger["chain"]["entries"] if link["entry"] == "releases"]
        for cost in (ledger["releases"][0]["cost"], files["claims"]["release"]["cost"]):
            change(cost)
        for shown in links:
            shown["cost"] = json.dumps(ledger["releases"][0]["cost"], sort_keys=True)

    return act


def drop(part):
    return lambda files: edit_cost(lambda cost: cost.pop(part))(files)


def lower_component(files):
    files["parts"]["data"]["delta"] = str(ADDITIVE / 2)


def raise_component(files):
    files["parts"]["data"]["delta"] = str(ADDITIVE * 2)


def drop_periods(files):
    files["ledger"].pop("periods")


def rename_period(files):
    files["ledger"]["periods"] = {"2026-03": files["ledger"]["periods"].pop(PERIOD)}


def lower_period(files):
    files["ledger"]["periods"][PERIOD]["additive_delta"] /= 2


@pytest.mark.parametrize(("change", "fault"), [
    (drop("delta"), "the draws have an additive δ of 2.5e-10, but 0 was charged"),
    (drop("period"), "ledger.json does not list the periods of its entries"),
    (lower_component, "parts.json differs from the one that was charged"),
    (raise_component, "the draws have an additive δ of 5e-10, but 2.5e-10 was charged"),
    (drop_periods, "ledger.json does not list the periods of its entries"),
    (rename_period, "ledger.json does not list the periods of its entries"),
    (lower_period, "ledger.json has sums of the period '2026-02' that differ from its entries"),
])  # fmt: skip
def test_forgery_is_detected(runs, tmp_path, change, fault):
    with refused(JobError):
        check_bundle(copy := forge(runs["plan"][1], tmp_path / "forged", change))
    assert fault in recompute.faults(copy)


def test_claim_that_ignores_the_additive_delta_is_detected(runs, tmp_path):
    """Planted: the claim of the noise alone, at the whole δ."""

    def claim_less(files):
        files["claims"]["release"]["epsilon"] *= 0.98

    folder = forge(runs["plan"][1], tmp_path / "forged", claim_less)
    assert any("but 0.98" in fault for fault in recompute.faults(folder))
    claim = recompute.read(folder, "claims.json")["release"]
    events = events_of(folder)
    noise = recompute.Events({event: count for event, count in events.items() if event[0] != "delta"})
    assert not recompute._above("release", claim | {"epsilon": 0.9915}, noise)
    assert recompute._above("release", claim | {"epsilon": 0.9915}, events)
    pytest.importorskip("dp_accounting")
    assert recompute.account("release", claim | {"epsilon": 0.95}, events)[1]
    assert not recompute.account("release", claim | {"epsilon": 1.0}, events)[1]


def test_uncharged_additive_delta_is_refused_before_a_draw(tmp_path, monkeypatch):
    """Planted: the decision has an additive delta that the plan does not state."""
    plant(monkeypatch)
    monkeypatch.setattr(AllBlocks, "additive_delta", ADDITIVE * 2)
    with refused(dp.BudgetError):
        run_job(tmp_path, "identity")
    assert not list((tmp_path / "run" / "measurements").glob("*.parquet"))


def test_evidence_counts_a_release_of_units_for_rows(tmp_path, monkeypatch):
    """The first release protects rows, the second one units: it is two steps, and its additive delta grows."""
    plant(monkeypatch)
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        ledger.set_cap("small", 20.0, 1e-6, protects=Protection())
    folder = write_run_bundle(run_job(tmp_path, "identity", GAUSSIAN, UNIT))
    assert check_bundle(folder)["sound"]
    ledger = recompute.read(folder, "ledger.json")
    [row] = ledger["releases"]
    grown = Cost.from_dict(row["cost"]).for_group(2).delta
    assert float_above(grown) == ledger["spent"]["additive_delta"] > 4 * ADDITIVE
    mine = recompute.additive_delta(row, ledger)
    assert float(mine) == pytest.approx(float(grown), rel=1e-9)
    assert recompute.steps(row, ledger) == 2
    dataset = recompute.events_of(recompute.read_files(folder))["dataset"]
    assert recompute.total(dataset, "delta") >= mine * (1 - Fraction(1, 10**9))

    def forget_growth(files):
        """Claim the ε of the release for one step, at the δ of the dataset."""
        for claim in (files["claims"]["dataset"], files["ledger"]["spent"]):
            claim["epsilon"] = files["claims"]["release"]["epsilon"]

    forged = forge(folder, tmp_path / "forged", forget_growth)
    assert any("dataset: ε is" in fault for fault in recompute.faults(forged))


def test_several_tables_sum_additive_deltas_over_steps(tmp_path, monkeypatch):
    """Two tables, whose neighbours are two steps of their own: the component states one step, the charge has two."""
    plant(monkeypatch)
    place = tmp_path / "shop"
    place.mkdir()
    run = open_run(dp.run(tables.write_job(place), place / "run").path)
    folder = bundle.write_bundle(run, PASSED)
    assert check_bundle(folder)["sound"]
    [row] = recompute.read(folder, "ledger.json")["releases"]
    costs = {name: cost for name, (cost, _) in parts_of_entry(run, "privacy").items()}
    grown = sum(cost.delta for cost in costs.values())
    assert Fraction(row["cost"]["delta"]) >= grown > 4 * ADDITIVE
    assert "period" not in row["cost"]  # the link is for no period
    parts = recompute.read(folder, "parts.json")
    assert {name: (one.get("delta"), one["steps"]) for name, one in parts.items()} == {
        "tables.persons": (str(ADDITIVE), 2), "tables.products": (str(ADDITIVE), 2), "links.links": (None, 1),
    }  # fmt: skip
    assert "this additive δ is part of every δ here" in (run.path / "report.html").read_text()
    events, _ = recomputed(folder)
    assert 0.99 * float(grown) < float(recompute.total(events, "delta")) <= float(grown) * (1 + 1e-9)


def test_components_above_the_delta_of_the_job_are_refused(tmp_path, monkeypatch):
    """The noise of the shares uses up epsilon at the job's delta; an additive delta is more than the job allows."""
    plant(monkeypatch, Fraction(1, 10**8))
    path = tables.shop.write_job(tmp_path)
    path.write_text(tomli_w.dumps(tables.rooted_job()))
    with refused(dp.BudgetError):
        dp.run(path, tmp_path / "run")
    assert not list((tmp_path / "run").rglob("links/*/*.parquet"))


def test_command_makes_and_checks_the_bundle(runs, tmp_path):
    run, folder = runs["plan"]
    code, output, _ = run_command("evidence", "--check", folder)
    assert (code, "additive δ of data" in output) == (0, True)
    ledger = json.loads(run_command("ledger", "show", run.parent / "ledger.sqlite", "--json")[1])
    assert ledger["datasets"]["small"]["periods"][PERIOD]["additive_delta"] == float(ADDITIVE)


@pytest.mark.parametrize("steps", [1, 2, 3, 5])
@pytest.mark.parametrize(("mu", "delta"), [(0.3, "1/1000000"), (2.0, "1/1000000000000"), (4.0, "1/3"), (1e-4, "1/7")])
def test_growth_of_the_script_equals_that_of_the_package(mu, delta, steps):
    cost = Cost(gaussian=Fraction(mu) ** 2, delta=delta)
    mine = sensitivities.grown_delta(cost.delta, mu, math.inf, steps)
    assert float(mine) == pytest.approx(float(cost.for_group(steps).delta), rel=1e-9)
    pure = Cost(pure=Fraction(mu), delta=delta).for_group(steps)
    mine = sensitivities.grown_delta(cost.delta, math.inf, mu, steps)
    assert float(pure.delta) <= float(mine) * (1 + 1e-9)
    assert gaussian_power(float(cost.delta), mu) > float(cost.delta)


def test_draws_without_additive_delta_are_written_as_before(tmp_path):
    folder = write_run_bundle(run_job(tmp_path, "identity"))
    assert "delta" not in recompute.read(folder, "parts.json")["data"]
    events = recompute.events_of(recompute.read_files(folder))["dataset"]
    assert {kind for (kind, cost) in events if cost} == {"gaussian"}
    assert "periods" not in recompute.read(folder, "ledger.json")
