"""Releases of growing tables: estimates, errors, consistency over time, files and folders."""

import pickle
from datetime import date

import numpy as np
import pandas as pd
import pytest

import dpscale as dp
from dpscale.base.errors import DataError, JobError
from dpscale.measurement import value_files
from dpscale.runs.stages import reconstruct
from tests.messages import refused
from tests.periods.growing import MONTHS, SIZES, exact, frames, make_job, open_release, release, start, write
from tests.running import release_next

LARGE = {"a": 50, "b": 60}
KINDS = ("period", "cumulative", "window")


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """Release of four of six months of a table with 3,000 cells."""
    folder = tmp_path_factory.mktemp("large")
    months = frames(2000, MONTHS[:4], sizes=LARGE)
    write(folder, months)
    job = make_job(folder, LARGE, privacy={"privacy_cost": 0.5})
    return months, open_release(release(job, folder / "run", MONTHS[:4]))


@pytest.mark.parametrize("kind", KINDS)
def test_errors_have_the_stated_standard_errors(large, kind):
    months, opened = large
    for label in MONTHS[:4]:
        table = opened.table(("a", "b"), period=label, kind=kind)
        truth = exact(months, ("a", "b"), label, kind, sizes=LARGE).reshape(-1)
        ratio = np.mean(((table.estimate - truth) / table.std_error) ** 2)
        assert 0.87 < ratio < 1.13  # five standard errors of the mean of 3,000 squares
        assert not 0.87 < ratio * 1.3**2 < 1.13
        assert not 0.87 < ratio * 0.7**2 < 1.13


def test_variances_are_those_of_the_time_plan(large):
    _, opened = large
    plan = opened._run.table.time_plan
    first = opened.at(MONTHS[0], "period").answer((), query=1.0)[1]
    for kind in KINDS:
        for number, label in enumerate(MONTHS[:4]):
            error = opened.at(label, kind).answer((), query=1.0)[1]
            ratio = plan.variance(kind, number) / plan.variance("period", 0)
            assert error**2 == pytest.approx(ratio * first**2, rel=1e-5)


def test_cumulative_answers_are_sums_of_the_periods(large):
    _, opened = large
    for number, label in enumerate(MONTHS[:4]):
        periods = [opened.marginal(("a",), period=one) for one in MONTHS[: number + 1]]
        assert np.allclose(opened.marginal(("a",), period=label, kind="cumulative"), sum(periods), atol=1e-6)
        assert np.allclose(opened.marginal(("a",), period=label, kind="window"), sum(periods[-3:]), atol=1e-6)


def test_three_months_are_one_directory_with_few_files(tmp_path, monkeypatch):
    """One manifest and one job; each month adds its values, and the answers of each kind."""
    monkeypatch.setattr(value_files, "LEAST_VALUES", 1 << 12)  # as outside the tests
    monkeypatch.setattr(reconstruct, "LEAST_ROWS", 1 << 12)
    sizes = {"a": 4, "b": 3, "c": 5, "d": 2}
    write(tmp_path, frames(500, MONTHS[:3], sizes=sizes))
    time = {"answers": ["period", "cumulative"], "window": None}
    dp.run(make_job(tmp_path, sizes, time=time), tmp_path / "run")
    files = [path.relative_to(tmp_path / "run") for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert len(files) <= 40
    single = ("job.toml", "manifest.json", "secret.key")
    assert sorted(str(path) for path in files if path.name in single) == ["job.toml", "manifest.json"]
    assert dp.Release.open(tmp_path / "run").marginal(("a", "b"), period=MONTHS[2], kind="cumulative").shape == (4, 3)


def test_later_periods_do_not_change_earlier_answers(tmp_path):
    write(tmp_path, frames(100))
    job = make_job(tmp_path)
    before = open_release(release(job, tmp_path / "run", MONTHS[:2])).marginal(("a", "b"), period=MONTHS[1])
    after = open_release(release(job, tmp_path / "run", MONTHS[2:4]))
    assert (after.marginal(("a", "b"), period=MONTHS[1]) == before).all()
    assert after.periods == MONTHS[:4]


def test_folders_and_a_column_of_dates_give_the_same_counts(tmp_path):
    """Noise depends on the files, counts do not: estimates agree within the noise of a large budget."""
    months, found = frames(300), []
    for column in (False, True):
        folder = tmp_path / str(column)
        folder.mkdir()
        write(folder, months, column)
        job = make_job(folder, privacy={"privacy_cost": 1e7, "allow_weak_privacy": True})
        opened = open_release(release(job, folder / "run", MONTHS[:4]))
        found.append(opened.marginal(("a", "b"), period=MONTHS[3], kind="cumulative"))
        assert np.allclose(found[-1], exact(months, ("a", "b"), MONTHS[3], "cumulative"), atol=0.1)
    assert np.allclose(*found, atol=0.1)


def test_run_releases_periods_that_have_arrived(tmp_path):
    months = frames(50)
    write(tmp_path, {label: months[label] for label in MONTHS[:2]})
    job = make_job(tmp_path)
    assert dp.run(job, tmp_path / "run").periods == MONTHS[:2]
    assert dp.run(job, tmp_path / "run").periods == MONTHS[:2]
    write(tmp_path, {label: months[label] for label in MONTHS[2:4]})
    assert dp.run(job, tmp_path / "run").periods == MONTHS[:4]


def test_periods_of_folders_need_no_attribute(tmp_path):
    months = frames(50, MONTHS[:2])
    write(tmp_path, months)
    job = make_job(tmp_path, time={"horizon": 24})
    text = (tmp_path / "domain.toml").read_text().splitlines()
    (tmp_path / "domain.toml").write_text("\n".join(line for line in text if not line.startswith("month")))
    opened = dp.run(job, tmp_path / "run")
    assert opened.periods == MONTHS[:2]
    assert len(opened._run.table.labels) == 24


@pytest.mark.parametrize("mechanism", ["weighted-residuals", "aim-grem"])
def test_synthetic_rows_are_consistent_over_time(tmp_path, mechanism):
    """Rows of earlier periods stay, and all rows up to a period are near its cumulative answers."""
    months = frames(3000, MONTHS[:3])
    write(tmp_path, months)
    job = make_job(tmp_path, synthesize={}, mechanism={"name": mechanism},
                   privacy={"privacy_cost": 5.0, "allow_weak_privacy": True})  # fmt: skip
    opened = dp.run(job, tmp_path / "run")
    rows = {label: opened.at(label).synthetic().compute() for label in MONTHS[:3]}
    assert all(set(own.columns) == set(SIZES) for own in rows.values())
    for number, label in enumerate(MONTHS[:3]):
        upto = opened.at(label, "cumulative").synthetic().compute()
        assert len(upto) == sum(len(rows[one]) for one in MONTHS[: number + 1])
        table = np.zeros([SIZES["a"], SIZES["b"]])
        np.add.at(table, (upto["a"], upto["b"]), 1)
        estimate = opened.marginal(("a", "b"), period=label, kind="cumulative")
        assert np.abs(table - estimate).max() < 12
    window = opened.at(MONTHS[2], "window").synthetic().compute()
    assert len(window) == sum(map(len, rows.values()))
    for one in (opened.at(MONTHS[1]), opened.at(MONTHS[1], "cumulative")):
        again = pickle.loads(pickle.dumps(one))
        assert len(again.synthetic().compute()) == len(one.synthetic().compute())


def test_job_without_a_complete_period_is_refused(tmp_path):
    year = date.today().year + 1
    months = {f"{year}-01": frames(20, MONTHS[:1])[MONTHS[0]]}
    write(tmp_path, months)
    job = make_job(tmp_path)
    text = (tmp_path / "domain.toml").read_text().replace("2026", str(year))
    (tmp_path / "domain.toml").write_text(text)
    with refused(JobError):
        dp.run(job, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with refused(JobError):
        release(job, tmp_path / "run", [f"{year}-01"])


def test_folders_before_the_first_period_are_not_read(tmp_path):
    months = {"2025-12": frames(500, MONTHS[:1], seed=9)[MONTHS[0]]} | frames(50, MONTHS[:2])
    write(tmp_path, months)
    opened = dp.run(make_job(tmp_path, privacy={"privacy_cost": 1e7, "allow_weak_privacy": True}), tmp_path / "run")
    assert round(opened.at(MONTHS[1], "cumulative").total().estimate) == 100


def test_empty_period_is_released_by_name(tmp_path):
    months = frames(50, MONTHS[:1])
    write(tmp_path, months)
    run = release(make_job(tmp_path), tmp_path / "run", MONTHS[:1])
    with refused(JobError):
        release_next(run, MONTHS[1])
    release_next(run, MONTHS[1], empty=True)
    assert abs(open_release(run).at(MONTHS[1]).total().estimate) < 200


def test_records_of_later_periods_are_not_counted(tmp_path):
    months = frames(300)
    write(tmp_path, months, column=True)
    job = make_job(tmp_path, privacy={"privacy_cost": 1e7, "allow_weak_privacy": True})
    run = release(job, tmp_path / "run", MONTHS[:1])
    found = open_release(run).marginal(("a", "b"), period=MONTHS[0])
    assert np.allclose(found, exact(months, ("a", "b"), MONTHS[0], "period"), atol=0.1)


def test_answers_without_a_period_are_refused(large):
    _, opened = large
    with refused(JobError):
        opened.marginal(("a", "b"))
    with refused(JobError):
        opened.marginal(("a", "b"), period=MONTHS[5])
    with refused(JobError):
        opened.marginal(("a", "b"), period=MONTHS[0], kind="yearly")


REFUSED = {
    "out of order": (lambda job, run: release(job, run, [MONTHS[1]]), JobError),
    "after the horizon": (lambda job, run: release(job, run, ["2027-01"]), JobError),
    "before the horizon": (lambda job, run: release(job, run, ["2025-12"]), JobError),
    "no period": (lambda job, run: release(job, run, ["spring"]), JobError),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_period_is_refused(tmp_path, case):
    act, kind = REFUSED[case]
    write(tmp_path, frames(20))
    with refused(kind):
        act(make_job(tmp_path), tmp_path / "run")
    run = start(make_job(tmp_path), tmp_path / "run")
    assert run.released == []
    assert run.manifest["privacy"] is None


def test_first_periods_of_a_unit_are_counted(tmp_path):
    """Unit 1 has rows in four months; its first two count, one row in each, at every release."""
    months = {label: pd.DataFrame({"a": [0, 0, 1], "b": [0, 0, 2], "who": [1, 1, number + 10]})
              for number, label in enumerate(MONTHS[:4])}  # fmt: skip
    write(tmp_path, months)
    job = make_job(tmp_path, data={"privacy_unit": "who", "max_rows_per_unit": 1}, time={"max_periods_per_unit": 2},
                   privacy={"privacy_cost": 1e9, "allow_weak_privacy": True})  # fmt: skip
    opened = open_release(release(job, tmp_path / "run", MONTHS[:4]))
    counted = [opened.marginal(("a", "b"), period=label) for label in MONTHS[:4]]
    assert [round(float(own[0, 0])) for own in counted] == [1, 1, 0, 0]
    assert [round(float(own[1, 2])) for own in counted] == [1, 1, 1, 1]
    page = (dp.run(job, tmp_path / "run").path / "report.html").read_text()
    assert "those of the first 2 periods in which the who has records" in page


def test_frames_are_refused(tmp_path):
    job = make_job(tmp_path)
    job["data"].pop("path")
    with refused(JobError):
        dp.run(job, data=frames(5)[MONTHS[0]])


@pytest.mark.parametrize("column", [False, True])
def test_changed_records_of_a_released_period_are_refused(tmp_path, column):
    months = frames(60)
    write(tmp_path, months, column)
    job = make_job(tmp_path)
    release(job, tmp_path / "run", MONTHS[:2])
    months[MONTHS[0]] = months[MONTHS[0]].iloc[1:]
    write(tmp_path, months, column)
    with refused(DataError):
        release(job, tmp_path / "run", [MONTHS[2]])
    assert start(job, tmp_path / "run").released == MONTHS[:2]


def test_order_of_records_in_files_of_dates_may_change(tmp_path):
    months = frames(60)
    write(tmp_path, months, column=True)
    job = make_job(tmp_path)
    release(job, tmp_path / "run", MONTHS[:2])
    write(tmp_path, {label: months[label].iloc[::-1] for label in months}, column=True)
    assert release(job, tmp_path / "run", [MONTHS[2]]).released == MONTHS[:3]


def test_erased_records_are_accepted_if_the_job_says_so(tmp_path):
    months = frames(60)
    write(tmp_path, months)
    job = make_job(tmp_path, time={"changed": "accept"})
    release(job, tmp_path / "run", MONTHS[:2])
    write(tmp_path, months | {MONTHS[0]: months[MONTHS[0]].iloc[3:]})
    assert release(job, tmp_path / "run", [MONTHS[2]]).released == MONTHS[:3]


JOBS = {
    "time without period": {"data": {"period": None}},
    "window without size": {"time": {"window": None}},
    "other horizon": {"time": {"horizon": 7}},
    "periods without unit": {"time": {"max_periods_per_unit": 3}},
    "no date": {"data": {"period": "a"}},
    "unknown period": {"data": {"period": "week"}},
    "the period in the workload": {"workload": [{"family": "marginal", "attributes": [["month", "a"]]}]},
    "number of rows": {"synthesize": {"rows": 5}},
    "accepted changes of units": {
        "data": {"privacy_unit": "who", "max_rows_per_unit": 1}, "time": {"changed": "accept"}},
}  # fmt: skip


@pytest.mark.parametrize("case", JOBS)
def test_wrong_job_is_refused_in_one_sentence(tmp_path, case):
    changes = JOBS[case]
    write(tmp_path, frames(20, units=5))
    job = make_job(tmp_path)
    for table, own in changes.items():
        whole = own if table == "workload" else {**job.get(table, {}), **own}
        job[table] = whole if table == "workload" else {key: one for key, one in whole.items() if one is not None}
    with refused(dp.DpscaleError) as error:
        dp.run(job, tmp_path / "run")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_folders_without_answers_are_refused(large):
    _, opened = large
    path = opened.path
    for folder in ("periods", f"periods/{MONTHS[0]}", f"periods/{MONTHS[0]}/none", "plan"):
        with refused(JobError):
            dp.Release.open(path / folder)
    assert dp.Release.open(path / f"periods/{MONTHS[0]}/period").total() == opened.at(MONTHS[0], "period").total()
