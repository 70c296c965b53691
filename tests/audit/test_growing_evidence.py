"""Evidence of growing tables: the factor over the horizon, the draws of every period, and forgeries."""

import itertools
import json
import shutil
from fractions import Fraction
from functools import cache

import numpy as np
import pytest

from dpscale.audit.evidence import bundle, recompute, sensitivities
from dpscale.audit.evidence.check import check_bundle
from dpscale.base.errors import JobError
from dpscale.ledger import Ledger
from dpscale.plans import time_plan
from dpscale.privacy.protection import Protection
from dpscale.runs.opening import open_run
from tests.audit.forging import (
    consistently,
    forge,
    read,
    records_of,
    remove,
    restate,
    restate_answers,
    run_script,
)
from tests.audit.test_bundle import PASSED, recomputed, run_command
from tests.messages import refused
from tests.periods.growing import MONTHS, frames, make_job, release, write
from tests.running import end

UNIT = {"privacy_unit": "who", "max_rows_per_unit": 2}
GAUSSIAN, PURE = {"privacy_cost": None, "epsilon": 1.0, "delta": 1e-9}, {"privacy_cost": None, "epsilon": 0.7}
CASES = {
    "row": ({}, {}, GAUSSIAN),
    "unit in one month": (UNIT, {}, {}),
    "unit over all time": (UNIT, {"max_periods_per_unit": 2}, GAUSSIAN),
    "laplace": (UNIT, {"max_periods_per_unit": 2}, PURE),
    "window": ({}, {"answers": ["window"]}, {}),
}


def run_case(folder, name, months=MONTHS[:3], **tables):
    """Release some months of a small table; returns the run directory."""
    data, time, privacy = CASES[name]
    write(folder, frames(60, months, units=20 if data else 0))
    job = make_job(folder, data=data, time=time, privacy=privacy, **tables)
    job["engine"] = {"scheduler": "synchronous"}
    job["privacy"] = {key: value for key, value in job["privacy"].items() if value is not None}
    return release(job, folder / "run", months).path


@pytest.fixture(scope="module")
def bundle_of(tmp_path_factory):
    """Function that returns the bundle of a promise and noise, written in the first call."""
    return cache(lambda name: bundle.write_bundle(open_run(run_case(tmp_path_factory.mktemp("case"), name)), PASSED))


# ---- factors ---------------------------------------------------------------------------------------------------------


def brute_force(matrix, periods, laplace):
    """Return the largest cost over sets of periods and signs of the rows of a unit, by definition."""
    number, found = len(matrix), 0
    for own in itertools.combinations(range(number), periods):
        if laplace:
            found = max(found, sum(int(abs(matrix[:, s]).sum()) for s in own))
            continue
        gram = matrix[:, own].T @ matrix[:, own]
        found = max(found, int(abs(gram).sum()))
    return found


@pytest.mark.parametrize("periods", [1, 2, 3, 5])
@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_factor_is_the_largest_cost_by_brute_force(periods, noise):
    random = np.random.default_rng(periods)
    for _ in range(20):
        matrix = np.tril(random.integers(-9, 10, (5, 5)), -1) + np.diag(random.integers(1, 9, 5))
        rows = [row[: number + 1] for number, row in enumerate(matrix.tolist())]
        found = sensitivities.factor_of({"rows": rows, "together": periods}, noise == "laplace")
        assert found == brute_force(matrix, periods, noise == "laplace")


@pytest.mark.parametrize("periods", [1, 2, 4, 9, 20, 24, 30])
def test_factor_agrees_with_the_charge_for_long_horizons(periods):
    random = np.random.default_rng(3)
    matrix = np.tril(random.integers(-(2**24), 2**24, (24, 24)), -1) + np.diag(random.integers(1, 2**24, 24))
    rows = [row[: number + 1] for number, row in enumerate(matrix.tolist())]
    assert sensitivities.largest_cost(rows, periods) == time_plan.largest_cost(matrix, periods)
    assert sensitivities.largest_column_sums(rows, periods) == time_plan.largest_column_sums(matrix, periods)


@pytest.mark.parametrize("rows", [[], [[0]], [[1], [1]], [[1], [1, -1]], [[1.5]], [[True]]])
def test_no_strategy_has_no_factor(rows):
    with refused(ValueError):
        sensitivities.factor_of({"rows": rows, "together": 1}, False)


# ---- what holds ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_bundle_of_a_growing_table_is_sound(bundle_of, case):
    folder = bundle_of(case)
    found = check_bundle(folder)
    assert found["own_scripts"]
    assert found["parts"] == ["data"]
    assert {one["row"] for one in records_of(recompute.read_files(folder))} == {0, 1, 2}
    assert not any(word in text for text in found["unverified"] for word in ("domains", "noise"))
    row, outer = read(folder, "ledger")["releases"][0], read(folder, "parts")["data"]["outer"]
    assert row["periods"] == outer["names"] == MONTHS
    events, faults = recomputed(folder)
    paid, due = recompute.charged_and_due(row["cost"], events)
    assert not faults
    assert paid * 999 / 1000 < due <= paid
    files = read(folder, "run-files")
    for month in MONTHS[:3]:
        assert any(name.startswith(f"periods/{month}/measurements/") for name in files)
        for kind in ("window",) if case == "window" else ("period", "cumulative", "window"):
            assert f"periods/{month}/{kind}/answers/index.parquet" in files
    assert not any(".key" in name for name in files)


def test_factor_of_each_promise_is_that_of_the_run(bundle_of):
    factors = {}
    for case in CASES:
        folder = bundle_of(case)
        data = read(folder, "parts")["data"]
        factors[case] = sensitivities.factor_of(data["outer"], data["law"] == "laplace")
        assert factors[case] == open_run(folder.parent).table.time_plan.factor
    assert factors["row"] == factors["unit in one month"] < factors["unit over all time"]


@pytest.mark.parametrize("case", CASES)
def test_script_verifies_bundle_with_standard_library(bundle_of, tmp_path, case):
    folder = shutil.copytree(bundle_of(case), tmp_path / "bundle")
    done = run_script(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert check_bundle(folder)["sound"], "nothing is left behind by the script"


def test_claim_agrees_with_dp_accounting(bundle_of):
    pytest.importorskip("dp_accounting")
    for folder in map(bundle_of, CASES):
        for name in ("release", "dataset"):
            files = recompute.read_files(folder)
            claim, events = files["claims"][name], recompute.events_of(files)[name]
            if claim["epsilon"] is not None:
                assert not recompute.account(name, claim, events)[1]


def test_command_writes_and_checks_after_each_month_and_compares_the_ledger(tmp_path):
    run = run_case(tmp_path, "row")
    results = tmp_path / "selftest.json"
    results.write_text(json.dumps(PASSED))
    ledger, counts = tmp_path / "ledger.sqlite", []
    for month in (None, MONTHS[3]):
        if month:
            write(tmp_path, frames(60, [month]))
            assert run_command("run", run, "--period", month, "--quiet")[0] == 0
        assert run_command("evidence", run, "--selftest", results)[0] == 0
        code, output, _ = run_command("evidence", "--check", run / "evidence", "--ledger", ledger, "--json")
        assert code == 0
        counts.append(json.loads(output)["draws"])
    assert counts[1] * 3 == counts[0] * 4
    assert run_command("job", "end", run)[0] == 0
    assert run_command("evidence", run, "--selftest", results)[0] == 0
    assert run_command("evidence", "--check", run / "evidence", "--ledger", ledger)[0] == 0


def test_plan_of_the_periods_is_sealed_on_the_ledger(bundle_of):
    opened = read(bundle_of("row"), "ledger")["chain"]["opened"]["facts"]
    assert set(opened) == {"domain", "job", "parts", "plan"}


def test_seeded_run_after_an_earlier_horizon(tmp_path):
    """Values of the earlier horizon are no draws; the second release of the dataset has its own entry."""
    end(open_run(run_case(tmp_path, "row", MONTHS[:2])))
    job = make_job(tmp_path, time={"after": str(tmp_path / "run")}, privacy={"ledger": str(tmp_path / "ledger.sqlite")})
    (tmp_path / "domain.toml").write_text((tmp_path / "domain.toml").read_text().replace(MONTHS[0], MONTHS[2]))
    shutil.rmtree(tmp_path / "data")
    write(tmp_path, frames(60, MONTHS[2:4]))
    folder = bundle.write_bundle(release(job, tmp_path / "two", MONTHS[2:4]).run, PASSED)
    found = check_bundle(folder)
    assert not found["private"]
    assert read(folder, "parts")["data"]["outer"]["names"][:2] == MONTHS[2:4]
    assert {one["row"] for one in records_of(recompute.read_files(folder))} == {0, 1}
    assert [len(row["periods"]) for row in read(folder, "ledger")["releases"]] == [6, 4]
    assert str(tmp_path) not in (folder / "job.toml").read_text()


def test_bundle_on_a_dataset_with_caps_by_period(tmp_path):
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        ledger.set_cap("growing", 5.0, 1e-9, period="month", protects=Protection("who"))
    folder = bundle.write_bundle(open_run(run_case(tmp_path, "unit in one month")), PASSED)
    assert check_bundle(folder)["sound"]
    assert read(folder, "ledger")["period_caps"][0]["epsilon"] == 5.0


def test_adaptive_run_and_part_of_a_run_are_refused(tmp_path):
    run = run_case(tmp_path, "row", MONTHS[:2], mechanism={"name": "aim-grem"})
    code, _, errors = run_command("evidence", run)
    assert (code, len(errors.strip().splitlines())) == (2, 1)
    assert "whose first period selects" in errors
    for part in ("", "period"):
        code, _, errors = run_command("evidence", run / "periods" / MONTHS[0] / part)
        assert (code, len(errors.strip().splitlines())) == (2, 1)


def test_changed_files_of_a_period_are_refused(tmp_path):
    run = run_case(tmp_path, "row", synthesize={})
    answers = f"{MONTHS[2]}/cumulative/answers/marginal-2"
    for name in (f"{MONTHS[1]}/measurements", answers, f"{MONTHS[0]}/rows/synthetic"):
        file = next((run / "periods" / name).glob("*.parquet"))
        content = file.read_bytes()
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(JobError):
            bundle.write_bundle(open_run(run), PASSED)
        file.write_bytes(content)
    assert check_bundle(bundle.write_bundle(open_run(run), PASSED))["sound"]


# ---- forgeries -------------------------------------------------------------------------------------------------------


def scale(files, ratio):
    """Scale the charge and the totals of the only release of the dataset."""
    row, claims = files["ledger"]["releases"][0], files["claims"]
    for cost in (row["cost"], claims["release"]["cost"], files["parts"]["data"]["costs"][""]):
        cost["gaussian"] = str(Fraction(cost["gaussian"]) * ratio)
    restate_answers(files)


def outer(files):
    return files["parts"]["data"]["outer"]


def factor(files):
    return sensitivities.factor_of(outer(files), files["parts"]["data"]["law"] == "laplace")


def edit_matrix(change):
    """Edit the matrix or the number of its columns, with the charge and the claims that follow."""

    def edited(files):
        old, before = factor(files), json.dumps(outer(files))
        change(outer(files))
        assert json.dumps(outer(files)) != before
        scale(files, Fraction(factor(files), old))

    return edited


def halve(matrix):
    matrix["rows"] = [[value // 2 for value in row] for row in matrix["rows"]]


smaller_column = edit_matrix(halve)
fewer_periods_of_a_unit = edit_matrix(lambda matrix: matrix.update(together=1))


@edit_matrix
def one_negative_sign(matrix):
    """Change signs, by which columns have smaller inner products."""
    row = next(row for row in matrix["rows"] if any(row[:-1]))
    row[:-1] = [-value for value in row[:-1]]


@edit_matrix
def missing_negative_sign(matrix):
    """Windows alone have negative weights."""
    matrix["rows"] = [list(map(abs, row)) for row in matrix["rows"]]


@edit_matrix
def shorter_horizon_everywhere(matrix):
    matrix |= {"rows": matrix["rows"][:5], "names": matrix["names"][:5]}


def less_noise_for_a_smaller_column(files):
    """State a smaller matrix and less noise, at the cost that was charged."""
    old = factor(files)
    halve(outer(files))
    new = factor(files)
    for draw in records_of(files):
        draw["variance"] = str(-(-(int(draw["variance"]) - 8) * new // old) + 8)
    restate(files)


def consistent_fewer_periods(files):
    """Change also the job and the ledger, so that only what was sealed differs."""
    fewer_periods_of_a_unit(files)
    files["job"]["time"]["max_periods_per_unit"] = 1
    files["ledger"]["releases"][0]["bound"] = 2


def not_triangular(files):
    outer(files)["rows"][0].append(1)


def row_of(files, number):
    return [one for one in records_of(files) if one["row"] == number]


def scale_rows(numbers, ratio):
    def scaled(files):
        for draw in (one for number in numbers for one in row_of(files, number)):
            draw["variance"] = str(int((int(draw["variance"]) - 8) * ratio) + 8)
        restate(files)

    return scaled


less_noise = scale_rows([1], Fraction(1, 4))
less_noise_in_all_periods = scale_rows(range(3), Fraction(1, 4))
more_noise_in_all_periods = scale_rows(range(3), 4)


def other_bound_of_a_row(files):
    for record in row_of(files, 2):
        record["bound"] = {"changes": [[[1, 1]]]}
    restate(files)


def twice(files):
    """List the second period in place of the third."""
    gone = row_of(files, 2)
    remove(files, gone)
    files["records"]["records"] += [{**one, "row": 2} for one in row_of(files, 1)]
    for one in gone:
        files["run-files"].pop(one["file"], None)
    restate_answers(files)


def without_row(number, files_too=True):
    def removed(files):
        gone = row_of(files, number)
        remove(files, gone)
        for one in gone if files_too else ():
            files["run-files"].pop(one["file"], None)
        restate_answers(files)

    return removed


missing_period, missing_last_period = without_row(1), without_row(2, files_too=False)


def missing_draw(files):
    remove(files, row_of(files, 1)[:1])
    restate_answers(files)


def shorter_horizon(files):
    outer(files)["names"] = MONTHS[:5]


def other_periods(files):
    outer(files)["names"] = files["ledger"]["releases"][0]["periods"] = [*MONTHS[:5], "2026-08"]


def no_periods(files):
    del files["ledger"]["releases"][0]["periods"]


def longer_promise(files):
    """Claim to protect units over all time."""
    del files["ledger"]["releases"][0]["span"]
    files["ledger"]["protects"] = "all rows of one who (add/remove)"
    restate_answers(files)


def other_span(files):
    files["ledger"]["releases"][0]["span"] = "year"
    files["ledger"]["protects"] = "all rows of one who in one year (add/remove)"
    restate_answers(files)


def promise_of_the_job(files):
    files["job"]["time"]["max_periods_per_unit"] = 3


def other_noise(files):
    """Claim Gaussian noise of the variance of the Laplace noise."""
    files["parts"]["data"]["law"] = "gaussian"
    for record in records_of(files):
        record["variance"] = str(2 * int(record.pop("laplace")) ** 2)
    restate(files)


def without_matrix(files):
    """Claim that the draws are those of one table."""
    del files["parts"]["data"]["outer"]
    restate_answers(files)


def one_table(files):
    """List the first period as a table, with the noise for which one table costs the charge."""
    ratio = factor(files)
    remove(files, [*row_of(files, 1), *row_of(files, 2)])
    del files["parts"]["data"]["outer"]
    for record in records_of(files):
        del record["row"]
        record["variance"] = str(-(-(int(record["variance"]) - 8) // ratio) + 8)
    files["run-files"] = {name: one for name, one in files["run-files"].items()
                          if "measurements" not in name or MONTHS[0] in name}  # fmt: skip
    restate(files)


def other_format(files):
    files["versions"]["format"] = "dpscale-evidence/5"


def other_cost_in_checklist(files):
    rows = files["checklist"]
    next(row for row in rows if row["question"] == "What does the charge cover?")["answer"] = "little"


SEALED = "parts.json differs from the one that was charged|different releases"
FORGERIES = [
    ("row", smaller_column),
    ("row", less_noise_for_a_smaller_column),
    ("unit over all time", fewer_periods_of_a_unit),
    ("unit over all time", consistent_fewer_periods),
    ("unit over all time", one_negative_sign),
    ("window", missing_negative_sign),
    ("row", not_triangular),
    ("row", less_noise),
    ("row", less_noise_in_all_periods),
    ("row", more_noise_in_all_periods),
    ("unit in one month", other_bound_of_a_row),
    ("row", twice),
    ("row", missing_period),
    ("row", missing_last_period),
    ("row", missing_draw),
    ("row", shorter_horizon),
    ("row", shorter_horizon_everywhere),
    ("row", other_periods),
    ("row", no_periods),
    ("unit in one month", longer_promise),
    ("unit in one month", other_span),
    ("unit in one month", promise_of_the_job),
    ("laplace", other_noise),
    ("row", without_matrix),
    ("row", one_table),
    ("row", other_format),
    ("row", other_cost_in_checklist),
]


@pytest.mark.parametrize(("case", "change"), FORGERIES, ids=lambda one: getattr(one, "__name__", ""))
def test_forgery_is_refused(bundle_of, tmp_path, case, change):
    with refused(JobError):
        check_bundle(forge(bundle_of(case), tmp_path / "forged", change))


def test_ledger_refuses_a_matrix_that_all_files_agree_on(bundle_of, tmp_path):
    """A consistent change of all files passes without the ledger, which the check states."""
    forged = forge(bundle_of("row"), tmp_path / "forged", consistently(less_noise_for_a_smaller_column))
    assert any("a consistent change of all files passes" in one for one in check_bundle(forged)["unverified"])
    with Ledger.open(bundle_of("row").parents[1] / "ledger.sqlite") as ledger:
        heads = ledger.heads()
    assert check_bundle(bundle_of("row"), heads=heads)["later_entries"] == 0
    with refused(JobError):
        check_bundle(forged, heads=heads)


CHAINED = [
    ("row", less_noise),
    ("row", less_noise_in_all_periods),
    ("row", more_noise_in_all_periods),
    ("unit in one month", other_bound_of_a_row),
    ("row", twice),
    ("row", missing_period),
    ("row", shorter_horizon),
    ("row", without_matrix),
]


@pytest.mark.parametrize(("case", "change"), CHAINED, ids=lambda one: getattr(one, "__name__", ""))
def test_fault_is_found_if_the_hash_chain_is_forged_too(bundle_of, tmp_path, case, change):
    with refused(JobError):
        check_bundle(forge(bundle_of(case), tmp_path / "forged", consistently(change)))


def test_script_reports_a_forgery_and_fails(bundle_of, tmp_path):
    done = run_script(forge(bundle_of("row"), tmp_path / "forged", less_noise))
    assert done.returncode == 1
    assert "FAULT: row 1 (2026-02) has other draws than row 0 (2026-01)" in done.stdout
