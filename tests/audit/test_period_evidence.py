"""Evidence of a release on a dataset with caps by period, beside releases that read periods, and forgeries."""

import json
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction

import pytest

from dpscale.audit.evidence import recompute
from dpscale.audit.evidence.check import check_bundle
from dpscale.base.errors import BudgetError, JobError
from dpscale.job.sections import TableSection
from dpscale.ledger import Ledger
from dpscale.privacy.accounting import Cost
from dpscale.privacy.protection import Protection
from tests.audit.forging import forge
from tests.audit.test_bundle import UNIT, run_command, run_job, write_run_bundle
from tests.audit.test_forgeries import set_answer
from tests.messages import refused

DIGEST, MONTH = "ab" * 32, Protection("unit", bound=4, span="month")
SMALL = Cost(gaussian=Fraction(1, 500))
KINDS = {"row": ({}, Protection()), "unit": ({"data": UNIT}, MONTH)}
CAP = "ε = 9 at δ = 1e-09; ε = 8 at δ = 1e-09 for each month of the data"


def run_under_caps(folder, kind):
    """Run a job on a dataset with caps on the total and on each month, between releases that read months."""
    arguments, promise = KINDS[kind]
    with Ledger.open(folder / "ledger.sqlite") as ledger:
        ledger.set_cap("small", 7.0, 1e-9, period="month", protects=Protection(promise.unit))
        ledger.set_cap("small", 9.0, 1e-9)
        ledger.charge("small", "one", SMALL, DIGEST, protects=promise, periods=["2026-01", "2026-02"])
        ledger.set_cap("small", 8.0, 1e-9, period="month")
    with pytest.MonkeyPatch.context() as patch:
        if promise.unit:  # jobs of this version promise units over all time
            own = TableSection.protects.fget
            patch.setattr(TableSection, "protects", property(lambda data: replace(own(data), span="month")))
        run = run_job(folder, "identity", **arguments)
        with Ledger.open(folder / "ledger.sqlite") as ledger:
            ledger.charge("small", "two", SMALL, DIGEST, protects=promise, periods=["2026"])
        return write_run_bundle(run)


@pytest.fixture(scope="module", params=KINDS)
def folder(request, tmp_path_factory):
    return run_under_caps(tmp_path_factory.mktemp(request.param), request.param)


def test_bundle_states_caps_by_period_and_periods(folder):
    found = check_bundle(folder)
    assert found["own_scripts"]
    ledger = recompute.read(folder, "ledger.json")
    assert [row.get("periods") for row in ledger["releases"]] == [["2026-01", "2026-02"], None, ["2026"]]
    assert [(cap["period"], cap["epsilon"]) for cap in ledger["period_caps"]] == [("month", 7.0), ("month", 8.0)]
    answers = {row["question"]: row["answer"] for row in recompute.read(folder, "checklist.json")}
    assert answers["Is there a cap?"] == CAP
    unit = "unit" in ledger["protects"]
    assert ledger["protects"] == ("all rows of one unit in one month (add/remove)" if unit else "one row (add/remove)")
    assert answers["Whom does it protect?"].endswith(" in one month") == unit
    place = folder.parent.parent / "ledger.sqlite"
    code, output, _ = run_command("evidence", "--check", folder, "--ledger", place)
    assert (code, f"the chain with the head {found['head']}" in output) == (0, True)
    head = next(line.split()[1] for line in run_command("ledger", "show", place)[1].splitlines() if " head " in line)
    assert run_command("evidence", "--check", folder, "--ledger", head)[0] == 0


def change_cap(files):
    files["ledger"]["period_caps"][1]["epsilon"] = 80.0
    set_answer(files, "Is there a cap?", CAP.replace("8 at", "80 at"))


def drop_caps(files):
    del files["ledger"]["period_caps"]
    set_answer(files, "Is there a cap?", "ε = 9 at δ = 1e-09")


def longer_period(files):
    files["ledger"]["period_caps"][1]["period"] = "year"
    figures = ((7, "month"), (8, "year"))
    month, year = (f"ε = {epsilon} at δ = 1e-09 for each {by} of the data" for epsilon, by in figures)
    set_answer(files, "Is there a cap?", f"ε = 9 at δ = 1e-09; {month}; {year}")


def fewer_periods(files):
    files["ledger"]["releases"][0]["periods"] = ["2026-01"]


def drop_periods(files):
    del files["ledger"]["releases"][0]["periods"]


def invent_periods(files):
    files["ledger"]["releases"][1]["periods"] = ["2026-01"]


def invent_span(files):
    files["ledger"]["releases"][2]["span"] = "year"


def hide_cap(files):
    set_answer(files, "Is there a cap?", "ε = 9 at δ = 1e-09")


def longer_promise(files):
    """Claim to protect units over all time."""
    row = files["ledger"]["releases"][1]
    row.pop("span", None)
    files["ledger"]["protects"] = "all rows of one unit (add/remove)"
    set_answer(files, "Whom does it protect?", "all rows with one value of the column 'unit'")


@pytest.mark.parametrize(
    "change",
    [
        change_cap,
        drop_caps,
        longer_period,
        fewer_periods,
        drop_periods,
        invent_periods,
        invent_span,
        hide_cap,
        longer_promise,
    ],
)
def test_forgery_is_refused(folder, tmp_path, change):
    with refused(JobError):
        check_bundle(forge(folder, tmp_path / "forged", change))


def test_job_without_periods_is_charged_to_every_month(tmp_path):
    """The command refuses a job whose cost no month has left, before it reads data."""
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        ledger.set_cap("small", 1.2, 1e-9, period="month", protects=Protection())
        ledger.charge("small", "one", Cost(gaussian=Fraction(1, 100)), DIGEST, periods=["2026-02"])
    run = run_job(tmp_path, "identity")
    assert json.loads((run / "manifest.json").read_text())["privacy"]["dataset"] == "small"
    with refused(BudgetError):
        run_job(tmp_path, "identity", name="two", fresh=True)
    with refused(BudgetError):
        run_job(tmp_path, "identity", data=UNIT, name="three")
    script = [sys.executable, "-m", "dpscale", "run", tmp_path / "job.toml", "--run-dir", tmp_path / "four"]
    caught = subprocess.run(script, capture_output=True, text=True)
    assert (caught.returncode, (tmp_path / "four").exists()) == (3, False)
    assert "which has a cap for each month; expected a promise for one row" in caught.stderr
