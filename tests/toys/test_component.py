"""A component of another kind in a run of several: planned, charged, measured once, resumed and published with it."""

import json
from fractions import Fraction
from types import SimpleNamespace

import pytest
import tomli_w
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from dpscale.audit.evidence import recompute
from dpscale.audit.evidence.check import check_bundle
from dpscale.base.errors import JobError
from dpscale.ledger import Ledger
from dpscale.privacy.accounting import Cost
from dpscale.runs import runner
from dpscale.runs.charge import parts_of_entry
from dpscale.runs.opening import open_run
from dpscale.runs.run import in_order
from dpscale.runs.stage import PARTS
from tests.audit.forging import forge, records_of, remove, restate, scale_noise
from tests.audit.small import write_selftest
from tests.links.small import make_frames, make_job, write_job
from tests.messages import refused
from tests.running import run_stages
from tests.toys import heads, register, unregister

VALUES = "heads/000-00000000-00000001.parquet"


@pytest.fixture(autouse=True)
def registered():
    register()
    yield
    unregister()


def write_shop(folder):
    """Write a job whose tables and links leave a hundredth of the budget."""
    content = make_job()
    share = {"share": 0.19}
    content["budget"] = {"tables": {"persons": share, "orders": share},
                         "links": {"orders": share, "ratings": share, "homes": share}}  # fmt: skip
    path = write_job(folder)
    path.write_text(tomli_w.dumps(content))
    return path


def charged(folder):
    with Ledger.open(folder / "ledger.sqlite", create=False) as ledger:
        [row] = ledger.summary()["datasets"]["shop"]["releases"]
    return row["state"], Cost.from_dict(row["cost"]).squared_mu


def test_component_is_charged_and_measured_with_the_others(tmp_path):
    run = open_run(dp.run(write_shop(tmp_path), tmp_path / "run").path)
    assert list(run.parts) == [
        "tables.persons", "tables.orders", "links.orders", "links.ratings", "links.homes", "together", "heads.root"
    ]  # fmt: skip
    rows = json.loads((run.path / "heads.json").read_text())["rows"]
    assert 0 < abs(rows - len(make_frames()["persons"])) < 30
    costs = {name: cost.squared_mu for name, (cost, _) in parts_of_entry(run, "privacy").items()}
    own = sum(costs.values())
    state, squared_mu = charged(tmp_path)
    assert (state, own <= squared_mu <= Fraction(8)) == ("released", True)
    assert costs["heads.root"] > 0
    assert not list(run.path.rglob("secret.key"))


def write_evidence(run, tmp_path):
    return CliRunner().invoke(main, ["evidence", str(run), "--selftest", str(write_selftest(tmp_path))])


def test_component_is_in_the_evidence(tmp_path):
    """A part of a new kind states its bounds and its folder; writer and checker do not know it."""
    run = dp.run(write_shop(tmp_path), tmp_path / "run").path
    assert write_evidence(run, tmp_path).exit_code == 0
    assert "heads.root" in check_bundle(run / "evidence")["parts"]
    files = recompute.read_files(run / "evidence")
    [record] = records_of(files, "heads.root")
    assert (record["file"], record["squared_l2"]) == (VALUES, "1")
    assert VALUES in files["run-files"]

    def less_noise(files):
        scale_noise(records_of(files, "heads.root")[0], 0.5)
        restate(files)

    with refused(JobError):
        check_bundle(forge(run / "evidence", tmp_path / "less", less_noise))

    def without_draw(files):
        remove(files, records_of(files, "heads.root"))
        restate(files)

    with refused(JobError):
        check_bundle(forge(run / "evidence", tmp_path / "without", without_draw))


def test_evidence_without_facts_of_component_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(heads, "STATES_FACTS", False)
    run = dp.run(write_shop(tmp_path), tmp_path / "run").path
    done = write_evidence(run, tmp_path)
    assert (done.exit_code, "evidence: the part heads.root; expected" in done.stderr) == (2, True)
    assert not (run / "evidence").exists()


def test_component_is_in_steps_status_and_report(tmp_path):
    """Both DAGs call the listed stages one by one; status and report list the part."""

    def call(*command):
        result = CliRunner().invoke(main, [*map(str, command), "--json"])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout.splitlines()[-1])

    run = tmp_path / "run"
    call("plan", write_shop(tmp_path), "--run-dir", run, "--quiet")
    for stage in call("job", "stages", run)["stages"]:
        if stage["name"] != "totals":  # another toy
            call("run", run, "--only", stage["name"], "--quiet")
    states = call("job", "status", run)["states"]
    assert {state for name, state in states.items() if name != "totals"} == {"done"}
    assert "heads.root" in (run / "report.html").read_text()
    assert (run / VALUES).exists()


def test_interrupted_component_is_drawn_once(tmp_path, monkeypatch):
    path = write_shop(tmp_path)
    whole = dp.run(path, tmp_path / "whole").path
    with monkeypatch.context() as patch:
        patch.setattr(runner, "publish", lambda run: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            dp.run(path, tmp_path / "again")
    assert charged(tmp_path)[0] == "released"  # the same seed: both runs have one release
    before = (tmp_path / "again" / VALUES).read_bytes()
    run_stages(open_run(tmp_path / "again"))
    assert (tmp_path / "again" / VALUES).read_bytes() == before
    assert (whole / VALUES).read_bytes() == before


def test_component_beyond_the_budget_is_refused_before_the_charge(tmp_path, monkeypatch):
    monkeypatch.setattr(heads, "TIMES", 10)
    with refused(dp.BudgetError):
        dp.run(write_shop(tmp_path), tmp_path / "run")
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        assert not ledger.summary()["datasets"].get("shop", {}).get("releases")


def test_components_are_in_order_of_their_dependencies():
    def named(**depends_on):
        return {name: SimpleNamespace(name=name, depends_on=others) for name, others in depends_on.items()}

    assert list(in_order(named(a=("c",), b=(), c=("b",), d=()))) == ["b", "c", "a", "d"]
    assert list(in_order(named(a=(), b=(), c=()))) == ["a", "b", "c"]
    for wrong in (named(a=("b",), b=("a",)), named(a=("x",)), named(a=("a",))):
        with refused(dp.JobError):
            in_order(wrong)


def test_every_kind_of_component_is_one_line():
    assert set(PARTS) == {"tables", "links", "joins", "together", "heads"}
