"""Commands for growing tables: run, release-period, plan, status, end, stages one by one."""

import json

import pytest
import tomli_w
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from dpscale.ledger import Ledger
from tests.periods.growing import MONTHS, frames, make_job, write


def command(*arguments):
    return CliRunner().invoke(main, [str(one) for one in arguments])


@pytest.fixture
def job(tmp_path):
    write(tmp_path, frames(60, MONTHS[:3]))
    content = make_job(tmp_path)
    content["engine"] = {"scheduler": "synchronous"}
    (tmp_path / "job.toml").write_text(tomli_w.dumps(content))
    return tmp_path / "job.toml"


def entries(job):
    with Ledger.open(job.parent / "ledger.sqlite") as ledger:
        return ledger.summary("growing")["datasets"]["growing"]["releases"]


def test_run_then_a_month_is_added(job):
    run = job.parent / "run"
    first = command("run", job, "--run-dir", run, "--quiet")
    assert first.exit_code == 0
    assert "released periods: 2026-01 to 2026-03, 3 of 6; 2026-04 and later follow when they arrive\n" in first.stdout
    assert (run / "report.html").stat().st_size > 10_000
    write(job.parent, frames(60, MONTHS[3:4]))
    done = command("run", run, "--period", MONTHS[3], "--quiet", "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["released"] == MONTHS[:4]
    again = command("run", run, "--period", MONTHS[3], "--quiet")
    assert again.exit_code == 0
    assert len(entries(job)) == 1
    assert entries(job)[0]["state"] == "reserved"


def test_plan_shows_errors_over_time(job):
    done = command("plan", job, "--json", "--quiet")
    assert done.exit_code == 0
    time = json.loads(done.stdout)["time"]
    assert time["periods"] == 6
    assert time["certified"] < 1e-6
    assert time["relative_error"]["cumulative"]["last"] > time["relative_error"]["period"]["last"]
    assert "6 periods, 2026-01 to 2026-06, under one charge; protects one row" in command("plan", job).stdout


def test_status_and_stages_one_by_one(job):
    run = job.parent / "run"
    for name in ("plan", "measure", "reconstruct", "report"):
        stage = ("plan", job, "--run-dir", run) if name == "plan" else ("run", run, "--only", name)
        assert command(*stage, "--quiet").exit_code == 0, name
    listed = json.loads(command("job", "status", run, "--json").stdout)
    assert listed["states"] == {"plan": "done", "measure": "done", "reconstruct": "done", "report": "done"}
    assert set(listed["tables"]) == set(MONTHS[:3])


def test_rows_of_a_period_are_compared_with_its_data(job):
    pytest.importorskip("sklearn")
    run, data = job.parent / "run", job.parent / "data" / f"month={MONTHS[1]}"
    with open(job, "a") as file:
        file.write("[synthesize]\n")
    assert command("run", job, "--run-dir", run, "--quiet").exit_code == 0
    assert command("rows", run, "--quiet").stdout.endswith(f"{run / 'periods'}\n")
    period = run / "periods" / MONTHS[1]
    for folder in (run, period, period / "cumulative"):
        refused = command("compare", folder, data, "--out", job.parent / "no", "--quiet")
        assert (refused.exit_code, f"{run}/periods/PERIOD/rows" in refused.stderr) == (2, True)
    done = command("compare", period / "rows", data, "--out", job.parent / "report", "--quiet", "--json")
    assert done.exit_code == 0
    assert json.loads((job.parent / "report" / "compare.json").read_text())["release"].endswith(f"{MONTHS[1]}-rows")


def test_end_destroys_the_keys_and_refunds_nothing(job):
    run = job.parent / "run"
    command("run", job, "--run-dir", run, "--quiet")
    before = entries(job)[0]["cost"]
    assert command("job", "end", run).exit_code == 0
    assert entries(job)[0]["state"] == "released"
    assert entries(job)[0]["cost"] == before
    assert not list(run.rglob("*.key"))
    write(job.parent, frames(60, MONTHS[3:4]))
    refused = command("run", run, "--period", MONTHS[3])
    assert refused.exit_code == 2
    assert "was ended on" in refused.stderr
    assert command("run", job, "--run-dir", run, "--quiet").exit_code == 0
    assert dp.Release.open(run).periods == MONTHS[:3]


def test_cap_refuses_the_horizon_before_data_are_read(job):
    with Ledger.open(job.parent / "ledger.sqlite") as ledger:
        ledger.set_cap("growing", 0.1, 1e-9)
    done = command("run", job, "--run-dir", job.parent / "run", "--quiet")
    assert done.exit_code == 3
    assert not (job.parent / "run").exists()


WITHOUT_MEANING = {
    "publish": (), "model": (), "refine": ("--epsilon", 1), "rows": ("--rows", 5),
}  # fmt: skip


def test_commands_without_a_meaning_for_periods_are_refused(job):
    run = job.parent / "run"
    command("run", job, "--run-dir", run, "--quiet")
    for name, arguments in WITHOUT_MEANING.items():
        done = command(name, run, *arguments)
        assert done.exit_code == 2, name
        assert len(done.stderr.strip().splitlines()) == 1, name


def test_release_period_of_another_run_is_refused(tmp_path):
    from tests.audit.small import write as write_small

    small = write_small(tmp_path)
    command("run", small, "--run-dir", tmp_path / "run", "--quiet")
    done = command("run", tmp_path / "run", "--period", MONTHS[0])
    assert done.exit_code == 2
    assert "is not the run of a growing table" in done.stderr


def test_one_period_cannot_be_measured_alone(job):
    run = job.parent / "run"
    command("run", job, "--run-dir", run, "--quiet")
    alone = command("run", run / "periods" / MONTHS[1], "--only", "measure")
    assert alone.exit_code == 2
    assert "is part of the run in" in alone.stderr


UNIT = {"privacy_unit": "who", "max_rows_per_unit": 2}
PROMISES = {
    "row": ({}, {}, "one row (add/remove)"),
    "unit in one month": (UNIT, {}, "all rows of one who in one month (add/remove)"),
    "unit over all time": (UNIT, {"max_periods_per_unit": 3}, "all rows of one who (add/remove)"),
}


@pytest.mark.parametrize("case", PROMISES)
def test_promise_is_on_the_ledger_and_in_the_report(tmp_path, case):
    data, time, words = PROMISES[case]
    write(tmp_path, frames(60, MONTHS[:2], units=20))
    release = dp.run(make_job(tmp_path, data=data, time=time), tmp_path / "run")
    assert words in (release.path / "report.html").read_text()
    shown = command("ledger", "show", tmp_path / "ledger.sqlite", "--by", "period")
    assert words in shown.stdout


def test_horizon_is_charged_to_each_of_its_periods(job):
    with Ledger.open(job.parent / "ledger.sqlite") as ledger:
        ledger.set_cap("growing", 5.0, 1e-9, period="month")
        ledger.set_cap("growing", 5.0, 1e-9, period="year")
    assert command("run", job, "--run-dir", job.parent / "run", "--quiet").exit_code == 0
    shown = json.loads(command("ledger", "show", job.parent / "ledger.sqlite", "--by", "period", "--json").stdout)
    months = json.dumps(shown)
    assert all(label in months for label in MONTHS)


def test_period_cap_refuses_a_unit_over_all_time(tmp_path):
    write(tmp_path, frames(60, MONTHS[:2], units=20))
    content = make_job(tmp_path, data=UNIT, time={"max_periods_per_unit": 3})
    (tmp_path / "job.toml").write_text(tomli_w.dumps(content))
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        ledger.set_cap("growing", 5.0, 1e-9, period="month")
    done = command("run", tmp_path / "job.toml", "--run-dir", tmp_path / "run", "--quiet")
    assert done.exit_code == 3
    assert "all rows of one who" in done.stderr
    assert not (tmp_path / "run").exists()
