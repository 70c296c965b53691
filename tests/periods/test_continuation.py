"""Growing tables after an earlier horizon: cumulative answers start from its final estimate."""

import numpy as np
import pytest

import dpscale as dp
from dpscale.base.errors import JobError
from tests.messages import refused
from tests.periods.growing import MONTHS, frames, make_job, open_release, release, write

SIZES = {"a": 40, "b": 50}


@pytest.fixture
def first(tmp_path):
    """Ended run of two months, and the frames of four months."""
    months = frames(2000, MONTHS[:4], sizes=SIZES)
    (tmp_path / "one").mkdir()
    write(tmp_path / "one", {label: months[label] for label in MONTHS[:2]})
    run = release(make_job(tmp_path / "one", SIZES), tmp_path / "one/run", MONTHS[:2])
    from tests.running import end

    end(run)
    return run, months


def second_job(first, tmp_path, **changes):
    run, months = first
    folder = tmp_path / "two"
    folder.mkdir()
    write(folder, {label: months[label] for label in MONTHS[2:4]})
    job = make_job(folder, SIZES, time={"after": str(run.path), **changes})
    text = (folder / "domain.toml").read_text().replace("2026-01", MONTHS[2])
    (folder / "domain.toml").write_text(text)
    return job


def test_cumulative_answers_continue_with_their_standard_errors(first, tmp_path):
    run, months = first
    opened = dp.run(second_job(first, tmp_path), tmp_path / "two/run")
    before = open_release(run)
    for number, label in enumerate(MONTHS[2:4], start=3):
        truth = sum(np.histogram2d(one["a"], one["b"], bins=[range(41), range(51)])[0]
                    for one in list(months.values())[:number])  # fmt: skip
        table = opened.table(("a", "b"), period=label, kind="cumulative")
        ratio = np.mean(((table.estimate - truth.reshape(-1)) / table.std_error) ** 2)
        assert 0.84 < ratio < 1.16  # five standard errors
        parts = [opened.marginal(("a",), period=one) for one in MONTHS[2:number]]
        total = before.marginal(("a",), period=MONTHS[1], kind="cumulative") + sum(parts)
        assert np.allclose(opened.marginal(("a",), period=label, kind="cumulative"), total, atol=1e-6)


def test_copied_values_outlive_the_earlier_run(first, tmp_path):
    import shutil

    run, _ = first
    job = second_job(first, tmp_path)
    dp.run(job, tmp_path / "two/run")
    shutil.rmtree(run.path)
    assert dp.Release.open(tmp_path / "two/run").at(MONTHS[3], "cumulative").total().estimate > 7000


REFUSED = {
    "other workload": {"workload": [{"family": "marginal", "degree": 1}]},
    "no cumulative": {"time": {"answers": ["period"], "window": None}},
    "no run": {"time": {"after": "nothing"}},
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_continuation_is_refused(first, tmp_path, case):
    changes = REFUSED[case]
    job = second_job(first, tmp_path)
    for table, own in changes.items():
        whole = own if table == "workload" else {**job[table], **own}
        job[table] = whole if table == "workload" else {key: one for key, one in whole.items() if one is not None}
    with refused(JobError):
        dp.run(job, tmp_path / "two/run")


def test_run_with_periods_to_come_is_refused(tmp_path):
    write(tmp_path, frames(50, MONTHS[:1], sizes=SIZES))
    run = release(make_job(tmp_path, SIZES), tmp_path / "run", MONTHS[:1])
    with refused(JobError):
        dp.run(second_job((run, frames(50, MONTHS[:4], sizes=SIZES)), tmp_path), tmp_path / "two/run")
