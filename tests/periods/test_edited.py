"""Edited files, interrupted and corrected periods of growing tables."""

import json
import shutil

import pandas as pd
import pytest

from dpscale.base.errors import BudgetError, DataError, DpscaleError, JobError, PlanError
from dpscale.optimize.time_strategy import plan_time
from dpscale.plans.time_plan import CUMULATIVE, TimePlan
from tests.messages import refused
from tests.periods.growing import MONTHS, frames, make_job, open_release, release, start, write
from tests.running import end, release_next

PRECISE = {"privacy_cost": 1e8, "allow_weak_privacy": True}


@pytest.fixture
def first(tmp_path):
    """Job and run with one of four months released."""
    write(tmp_path, frames(60))
    job = make_job(tmp_path, privacy=PRECISE)
    return job, release(job, tmp_path / "run", MONTHS[:1])


def edit(path, **changes):
    content = json.loads(path.read_text())
    for key, value in changes.items():
        content[key] = value(content.get(key)) if callable(value) else value
    path.write_text(json.dumps(content))


def test_weights_and_number_in_a_manifest_are_ignored(first):
    """A period whose facts were prepared with other weights measures those of the plan."""
    _, run = first
    part = {"number": 0, "weights": [1000, 1000], "release": "other"}
    edit(run.path / "manifest.json", parts=lambda parts: {**parts, MONTHS[1]: part})
    release_next(run, MONTHS[1])
    assert round(open_release(run).at(MONTHS[1]).total().estimate) == 60


EDITS = {
    "periods of a unit": {"periods_per_unit": 2},
    "no period of a unit": {"periods_per_unit": 0},
    "answers": {"answers": ["period"]},
    "window": {"window": 5},
    "noise": {"noise": "laplace"},
    "fewer rows": {"rows": lambda rows: rows[:-1]},
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", EDITS)
@pytest.mark.parametrize("charged", [False, True])
def test_edited_time_plan_is_refused(tmp_path, case, charged):
    write(tmp_path, frames(60))
    job = make_job(tmp_path)
    run = release(job, tmp_path / "run", MONTHS[: int(charged)])
    if not charged:
        from tests.running import run_stages

        run_stages(run, only="plan")
    edit(run.path / "plan/time.json", **EDITS[case])
    with refused(JobError):
        release(job, tmp_path / "run", [MONTHS[int(charged)]])


def test_edited_weights_are_refused_after_the_charge(first):
    job, run = first
    edit(run.path / "plan/time.json", rows=lambda rows: [[2 * one for one in row] for row in rows])
    with pytest.raises(BudgetError):
        release(job, run.path, [MONTHS[1]])


def test_deleted_period_is_not_drawn_again(tmp_path):
    """The ledger refuses a second draw with another noise key under the same charge."""
    write(tmp_path, frames(60))
    job = make_job(tmp_path, engine={"scheduler": "synchronous"})
    run = release(job, tmp_path / "run", MONTHS[:1])
    shutil.rmtree(run.path / "periods" / run.labels[0])
    run.update(released={}, contents={}, parts={})
    with refused(BudgetError):
        release(job, run.path, [MONTHS[0]])


def test_period_that_was_released_may_not_be_missing_from_the_manifest(first):
    job, _ = first
    run = release(job, first[1].path, [MONTHS[1]])
    run.update(released={MONTHS[1]: run.manifest["released"][MONTHS[1]]})
    with refused(JobError):
        release(job, run.path, [MONTHS[2]])


@pytest.mark.parametrize("column", [False, True])
@pytest.mark.parametrize("number", [0, 1])
def test_bad_value_is_corrected_before_the_draw(tmp_path, column, number):
    """A refused period draws nothing, so its records may be corrected; the horizon goes on."""
    months = frames(60)
    bad = months[MONTHS[number]].assign(a=99)
    write(tmp_path, months | {MONTHS[number]: bad}, column)
    job = make_job(tmp_path, privacy=PRECISE)
    with refused(DataError):
        release(job, tmp_path / "run", MONTHS[: number + 1])
    write(tmp_path, months, column)
    run = release(job, tmp_path / "run", MONTHS[number:3])
    assert run.released == MONTHS[:3]
    assert round(open_release(run).at(MONTHS[2], "cumulative").total().estimate) == 180


def test_bad_value_of_a_later_period_does_not_refuse_an_earlier_one(tmp_path):
    months = frames(60)
    write(tmp_path, months | {MONTHS[3]: months[MONTHS[3]].assign(a=99)}, column=True)
    run = release(make_job(tmp_path), tmp_path / "run", MONTHS[:2])
    assert run.released == MONTHS[:2]


def test_kill_before_the_snapshot_lets_records_be_corrected(first, tmp_path, monkeypatch):
    job, run = first
    monkeypatch.setattr("dpscale.runs.source.snapshot_tag", lambda *_: 1 / 0)
    with pytest.raises(DpscaleError):
        release(job, run.path, [MONTHS[1]])
    monkeypatch.undo()
    months = frames(60)
    write(tmp_path, {MONTHS[1]: months[MONTHS[1]].iloc[5:]})
    run = release(job, run.path, MONTHS[1:3])
    assert round(open_release(run).at(MONTHS[2], "cumulative").total().estimate) == 175


def test_end_of_a_period_is_refused(first):
    _, run = first
    period = run.path / "periods" / run.labels[0]
    for path in (period, period / "cumulative"):
        from dpscale.runs.opening import open_run

        with refused(JobError):
            end(open_run(path))


def test_changes_are_accepted_later(first, tmp_path):
    job, run = first
    months = frames(60)
    write(tmp_path, {MONTHS[0]: months[MONTHS[0]].iloc[2:]})
    with refused(DataError):
        release(job, run.path, [MONTHS[1]])
    job["time"]["changed"] = "accept"
    run = release(job, run.path, [MONTHS[1]])
    assert run.manifest["accepted"] == {MONTHS[1]: [MONTHS[0]]}
    assert open_release(run)._run.table.changes == "accept"  # also without the job file


def test_folder_without_a_period_is_refused(tmp_path):
    months = frames(20, MONTHS[:1])
    write(tmp_path, months | {"spring": months[MONTHS[0]]})
    with pytest.raises(DpscaleError) as error:
        release(make_job(tmp_path), tmp_path / "run", MONTHS[:1])
    assert error.value.exit_code == 2


def test_weights_shrink_with_the_parts_of_numbers():
    plans = [plan_time(6, [CUMULATIVE], largest_part=1 << power) for power in (0, 10, 20)]
    assert [max(map(max, one.rows)) for one in plans] == [1 << 24, 1 << 21, 1 << 11]
    with refused(PlanError):
        plan_time(6, [CUMULATIVE], largest_part=1 << 25)


def test_sums_that_could_exceed_a_word_are_refused(tmp_path, monkeypatch):
    write(tmp_path, {MONTHS[0]: pd.DataFrame({"a": [0, 1], "b": [0, 1]})})
    monkeypatch.setattr("dpscale.runs.periods.stages.MOST_SUM", 1 << 24)
    with refused(DataError):
        release(make_job(tmp_path), tmp_path / "run", MONTHS[:1])
    assert start(make_job(tmp_path), tmp_path / "run").manifest["privacy"] is None


def test_sums_of_large_numbers_are_exact_in_every_period(tmp_path):
    """Sums whose weighted values exceeded 64 bits at the weights of counts."""
    values = {label: pd.DataFrame({"a": [1] * 20_000, "b": [1] * 20_000, "pay": [10_000_000] * 20_000})
              for label in MONTHS[:2]}  # fmt: skip
    write(tmp_path, values)
    job = make_job(tmp_path, workload=[{"family": "sum", "of": "pay", "attributes": [["a"]]}], privacy=PRECISE,
                   time={"answers": [CUMULATIVE], "window": None})  # fmt: skip
    job["time"].pop("window")
    with open(tmp_path / "domain.toml", "a") as file:
        file.write("\n[numbers.pay]\nlow = 0\nhigh = 10000000\n")
    opened = open_release(release(job, tmp_path / "run", MONTHS[:2]))
    assert opened.at(MONTHS[1], CUMULATIVE).sum("pay").estimate == pytest.approx(4e11, rel=1e-3)


def test_time_plan_file_round_trip(tmp_path):
    plan = plan_time(5, [CUMULATIVE], periods_per_unit=2)
    plan.write(tmp_path)
    assert TimePlan.read(tmp_path) == plan
