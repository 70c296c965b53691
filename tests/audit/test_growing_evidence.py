"""Evidence of growing tables: the factor over the horizon, the draws of every period, and forgeries."""

import hashlib
import itertools
import json
import shutil
import subprocess
import sys
import tomllib
from fractions import Fraction

import numpy as np
import pytest
import tomli_w

from dpscale.audit.evidence import bundle, check, crosscheck, period_costs, recompute
from dpscale.audit.evidence.check import check_bundle
from dpscale.base.errors import JobError
from dpscale.ledger import Ledger
from dpscale.plans import time_plan
from dpscale.privacy.protection import Protection
from dpscale.runs.opening import open_run
from tests.audit.test_bundle import PASSED, run_command
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
FILES = ("draws", "strategies", "events", "ledger", "checklist", "run-files", "versions", "time")


def run_case(folder, name, months=MONTHS[:3], **tables):
    """Release some months of a small table; returns the run directory."""
    data, time, privacy = CASES[name]
    write(folder, frames(60, months, units=20 if data else 0))
    job = make_job(folder, data=data, time=time, privacy=privacy, **tables)
    job["engine"] = {"scheduler": "synchronous"}
    job["privacy"] = {key: value for key, value in job["privacy"].items() if value is not None}
    return release(job, folder / "run", months).path


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Bundles of each promise and noise."""
    return {name: bundle.write_bundle(open_run(run_case(tmp_path_factory.mktemp("case"), name)), PASSED)
            for name in CASES}  # fmt: skip


def read(folder, name):
    return recompute.read(folder, f"{name}.json")


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
        found = period_costs.factor_of({"rows": rows, "periods_per_unit": periods, "noise": noise})
        assert found == brute_force(matrix, periods, noise == "laplace")


@pytest.mark.parametrize("periods", [1, 2, 4, 9, 20, 24, 30])
def test_factor_agrees_with_the_charge_for_long_horizons(periods):
    random = np.random.default_rng(3)
    matrix = np.tril(random.integers(-(2**24), 2**24, (24, 24)), -1) + np.diag(random.integers(1, 2**24, 24))
    rows = [row[: number + 1] for number, row in enumerate(matrix.tolist())]
    assert period_costs.largest_cost(rows, periods) == time_plan.largest_cost(matrix, periods)
    assert period_costs.largest_column_sums(rows, periods) == time_plan.largest_column_sums(matrix, periods)


@pytest.mark.parametrize("rows", [[], [[0]], [[1], [1]], [[1], [1, -1]], [[1.5]], [[True]]])
def test_no_strategy_has_no_factor(rows):
    with pytest.raises(ValueError, match="no integer matrix"):
        period_costs.factor_of({"rows": rows, "periods_per_unit": 1, "noise": "gaussian"})


# ---- what holds ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_bundle_of_a_growing_table_is_sound(folders, case):
    folder = folders[case]
    found = check_bundle(folder)
    assert found["own_scripts"]
    assert found["components"] == [f"table {month}" for month in MONTHS[:3]]
    assert not any(word in text for text in found["unverified"] for word in ("domains", "noise"))
    draws, row = read(folder, "draws"), read(folder, "ledger")["releases"][0]
    assert row["periods"] == draws["time"]["periods"] == MONTHS
    events, faults = recompute.drawn_events(folder, draws)
    paid, due = recompute.charged_and_due(row["cost"], events)
    assert not faults
    assert paid * 999 / 1000 < due <= paid
    files = read(folder, "run-files")
    for month in MONTHS[:3]:
        assert any(name.startswith(f"periods/{month}/measurements/") for name in files)
        for kind in ("window",) if case == "window" else ("period", "cumulative", "window"):
            assert f"periods/{month}/{kind}/answers/index.parquet" in files
    assert not any(".key" in name for name in files)


def test_factor_of_each_promise_is_that_of_the_run(folders):
    factors = {}
    for case, folder in folders.items():
        factors[case] = int(read(folder, "draws")["time"]["factor"])
        assert factors[case] == open_run(folder.parent).table.time_plan.factor
    assert factors["row"] == factors["unit in one month"] < factors["unit over all time"]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("script", ["recompute.py", "period_costs.py"])
def test_script_verifies_bundle_with_standard_library(folders, tmp_path, case, script):
    folder = shutil.copytree(folders[case], tmp_path / "bundle")
    done = subprocess.run([sys.executable, "-I", "-S", folder / script], capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stdout + done.stderr
    assert check_bundle(folder)["sound"], "nothing is left behind by the script"


def test_claim_agrees_with_dp_accounting(folders):
    pytest.importorskip("dp_accounting")
    for folder in folders.values():
        for name in ("release", "dataset"):
            claim = read(folder, "events")[name]
            if claim["epsilon"] is not None:
                assert not recompute.account(name, claim)[1]


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
        counts.append(len(json.loads(output)["components"]))
    assert counts == [3, 4]
    assert run_command("job", "end", run)[0] == 0
    assert run_command("evidence", run, "--selftest", results)[0] == 0
    assert run_command("evidence", "--check", run / "evidence", "--ledger", ledger)[0] == 0


def test_plan_of_the_periods_is_sealed_on_the_ledger(folders):
    opened = read(folders["row"], "ledger")["chain"]["opened"]["facts"]
    assert set(opened) == {"domain", "plan"}


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
    assert found["components"] == [f"table {month}" for month in MONTHS[2:4]]
    assert [len(row["periods"]) for row in read(folder, "ledger")["releases"]] == [6, 4]
    assert str(tmp_path) not in (folder / "job.toml").read_text()


def test_bundle_on_a_dataset_with_caps_by_period(tmp_path):
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        ledger.set_cap("growing", 5.0, 1e-9, period="month", protects=Protection("who"))
    folder = bundle.write_bundle(open_run(run_case(tmp_path, "unit in one month")), PASSED)
    assert check_bundle(folder)["sound"]
    assert read(folder, "ledger")["period_caps"][0]["epsilon"] == 5.0


def test_bundles_of_one_table_have_no_time(tmp_path):
    from tests.audit.test_bundle import run_job, write_run_bundle

    folder = write_run_bundle(run_job(tmp_path, "identity"))
    assert not {"time.json", "period_costs.py"} & {one.name for one in folder.iterdir()}
    assert "time" not in read(folder, "draws")
    assert read(folder, "versions")["format"] == "dpscale-evidence/3"


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


def forge(folder, place, change):
    """Return a copy with edited files and recomputed hashes of time.json and of the bundle."""
    copy = shutil.copytree(folder, place)
    files = {name: json.loads((copy / f"{name}.json").read_text()) for name in FILES}
    files["job"] = tomllib.loads((copy / "job.toml").read_text())
    before = json.dumps(files)
    change(files)
    assert json.dumps(files) != before, "a forgery that forges nothing"
    if json.loads(before)["time"] != files["time"]:
        (copy / "time.json").write_text(json.dumps(files["time"]))
    (copy / "job.toml").write_text(tomli_w.dumps(files["job"]))
    for name in set(FILES) - {"time"}:
        (copy / f"{name}.json").write_bytes(bundle.canonical(files[name]))
    (copy / "hashes.json").unlink()
    for name, content in bundle._sealed({one.name: one.read_bytes() for one in copy.iterdir()}, None).items():
        (copy / name).write_bytes(content)
    return copy


def smaller_column(files):
    files["time"]["rows"] = [[value // 2 for value in row] for row in files["time"]["rows"]]
    restate(files)


def less_noise_for_a_smaller_column(files):
    """State a smaller matrix and less noise, at the cost that was charged."""
    old = int(files["draws"]["time"]["factor"])
    files["time"]["rows"] = [[value // 2 for value in row] for row in files["time"]["rows"]]
    new = state_factor(files)
    for component in files["draws"]["components"]:
        for draw in component["draws"]:
            draw["variance"] = str(-(-(int(draw["variance"]) - 8) * new // old) + 8)
    state_events(files)


def sealed_smaller_column(files):
    """Forge the hash of the plan and the hash chain too."""
    less_noise_for_a_smaller_column(files)
    chain = files["ledger"]["chain"]
    plan = [f"{name}\0{one}\n" for name, one in sorted(files["run-files"].items()) if name.startswith("plan/")]
    chain["opened"]["facts"]["plan"] = hashlib.sha256("".join(plan).encode()).hexdigest()
    before = ""
    for link in chain["links"]:
        if link["shown"].get("release") == files["draws"]["release"] and link["entry"] == "releases":
            link["facts"] = crosscheck.chained([chain["opened"]["key"], chain["opened"]["facts"]])
        before = crosscheck.chained([before, link["entry"], link["shown"], link["hidden"], link["facts"]])
    chain["head"] = before


def restate(files):
    """Make the other files consistent with time.json: factor, costs, charge and the hash of the plan."""
    old = int(files["draws"]["time"]["factor"])
    scale(files, Fraction(state_factor(files), old))


def state_factor(files):
    """State the factor that follows from time.json, and the hash of the plan; returns the factor."""
    new = period_costs.factor_of(files["time"])
    files["draws"]["time"] |= {"factor": str(new), "periods_per_unit": files["time"]["periods_per_unit"]}
    for row in files["checklist"]:
        if row["question"] == "What does the horizon cost?":
            row["answer"] = (f"{new} times one period, to a unit in at most {files['time']['periods_per_unit']} of"
                             f" {len(files['time']['rows'])} periods: time.json")  # fmt: skip
    text = json.dumps(files["time"]).encode()
    files["run-files"]["plan/time.json"] = hashlib.sha256(text).hexdigest()
    return new


def scale(files, ratio):
    """Scale the events, the charge and the totals of the only release of the dataset."""
    row, events = files["ledger"]["releases"][0], files["events"]
    row["cost"]["gaussian"] = events["release"]["cost"]["gaussian"] = str(Fraction(row["cost"]["gaussian"]) * ratio)
    for one in (*events["release"]["events"], *events["dataset"]["events"]):
        one["cost"] = str(Fraction(one["cost"]) * ratio)
        one["noise_multiplier"] = float(Fraction(one["cost"])) ** -0.5


def smaller_matrix_of_another_plan(files):
    smaller_column(files)
    files["run-files"]["plan/time.json"] = "ab" * 32


def smaller_factor(files):
    files["draws"]["time"]["factor"] = str(int(files["draws"]["time"]["factor"]) // 2)


def fewer_periods_of_a_unit(files):
    files["time"]["periods_per_unit"] = 1
    restate(files)


def consistent_fewer_periods(files):
    """Change also the job, so that only the plan that was charged differs."""
    fewer_periods_of_a_unit(files)
    files["job"]["time"]["max_periods_per_unit"] = 1
    files["ledger"]["releases"][0]["bound"] = 2


def one_negative_sign(files):
    """Change signs, by which columns have smaller inner products."""
    row = next(row for row in files["time"]["rows"] if any(row[:-1]))
    row[:-1] = [-value for value in row[:-1]]
    restate(files)


def missing_negative_sign(files):
    before = json.dumps(files["time"])
    files["time"]["rows"] = [list(map(abs, row)) for row in files["time"]["rows"]]
    assert json.dumps(files["time"]) != before, "windows alone have negative weights"
    restate(files)


def not_triangular(files):
    files["time"]["rows"][0].append(1)


def less_noise(files):
    """State less noise for one period, with a cost below that of the horizon."""
    for draw in files["draws"]["components"][1]["draws"]:
        draw["variance"] = str((int(draw["variance"]) - 8) // 4 + 8)


def less_noise_in_all_periods(files):
    for component in files["draws"]["components"]:
        for draw in component["draws"]:
            draw["variance"] = str((int(draw["variance"]) - 8) // 4 + 8)
    state_events(files)


def more_noise_in_all_periods(files):
    for component in files["draws"]["components"]:
        for draw in component["draws"]:
            draw["variance"] = str((int(draw["variance"]) - 8) * 4 + 8)
    state_events(files)


def state_events(files):
    """List the events that follow from the draws."""
    first, factor = files["draws"]["components"][0], int(files["draws"]["time"]["factor"])
    events, _ = recompute.check_draws({"components": [first]}, files["strategies"]["factors"])
    files["events"]["release"]["events"] = [{"kind": kind, "cost": str(cost * factor), "count": count}
                                            for (kind, cost), count in events.items()]  # fmt: skip


def other_rows_per_unit(files):
    files["draws"]["components"][2]["rows_per_unit"] = 1


def twice(files):
    parts = files["draws"]["components"]
    parts[2] = {**parts[1]}
    files["run-files"] = {name: one for name, one in files["run-files"].items()
                          if not name.startswith(f"periods/{MONTHS[2]}/measurements")}  # fmt: skip
    files["checklist"] = [row for row in files["checklist"] if row.get("component") != f"table {MONTHS[2]}"]


def missing_period(files):
    """Leave out the second period and its files."""
    del files["draws"]["components"][1]
    files["run-files"] = {name: one for name, one in files["run-files"].items()
                          if not name.startswith(f"periods/{MONTHS[1]}/")}  # fmt: skip
    files["checklist"] = [row for row in files["checklist"] if row.get("component") != f"table {MONTHS[1]}"]


def missing_last_period(files):
    """Leave out the last period without its files."""
    del files["draws"]["components"][2]
    files["checklist"] = [row for row in files["checklist"] if row.get("component") != f"table {MONTHS[2]}"]


def missing_draw(files):
    del files["draws"]["components"][1]["draws"][0]


def shorter_horizon(files):
    files["draws"]["time"]["periods"] = MONTHS[:5]


def shorter_horizon_everywhere(files):
    files["time"]["rows"] = files["time"]["rows"][:5]
    files["draws"]["time"]["periods"] = files["ledger"]["releases"][0]["periods"] = MONTHS[:5]
    restate(files)


def other_periods(files):
    files["draws"]["time"]["periods"] = files["ledger"]["releases"][0]["periods"] = [*MONTHS[:5], "2026-08"]


def no_periods(files):
    del files["ledger"]["releases"][0]["periods"]


def longer_promise(files):
    """Claim to protect units over all time."""
    del files["ledger"]["releases"][0]["span"]
    files["ledger"]["protects"] = "all rows of one who (add/remove)"
    for row in files["checklist"]:
        if row["question"] == "Whom does it protect?":
            row["answer"] = "all rows with one value of the column 'who'"


def other_span(files):
    files["ledger"]["releases"][0]["span"] = "year"
    files["ledger"]["protects"] = "all rows of one who in one year (add/remove)"
    for row in files["checklist"]:
        row["answer"] = row["answer"].replace("in one month", "in one year")


def promise_of_the_job(files):
    files["job"]["time"]["max_periods_per_unit"] = 3


def other_noise(files):
    files["time"]["noise"] = "gaussian"


def without_time(files):
    """Claim that the draws are those of one table."""
    del files["draws"]["time"]


def other_format(files):
    files["versions"]["format"] = "dpscale-evidence/3"


def other_cost_in_checklist(files):
    next(row for row in files["checklist"] if row["question"] == "What does the horizon cost?")["answer"] = "little"


FORGERIES = [
    ("row", smaller_column, "the plan differs|different releases"),
    ("row", less_noise_for_a_smaller_column, "the plan differs from the one that was charged"),
    ("row", smaller_matrix_of_another_plan, "differs from the plan|the plan differs|different releases"),
    ("row", smaller_factor, "times one period, but"),
    ("unit over all time", fewer_periods_of_a_unit, "different numbers of periods of a unit|different releases"),
    ("unit over all time", consistent_fewer_periods, "the plan differs|different releases"),
    ("unit over all time", one_negative_sign, "the plan differs|different releases"),
    ("window", missing_negative_sign, "the plan differs|different releases"),
    ("row", not_triangular, "malformed"),
    ("row", less_noise, f"table {MONTHS[1]} has other draws than table {MONTHS[0]}"),
    ("row", less_noise_in_all_periods, "the draws cost .*, but .* was charged"),
    ("row", more_noise_in_all_periods, "the draws cost only"),
    ("unit in one month", other_rows_per_unit, f"table {MONTHS[2]} has other draws than"),
    ("row", twice, "answers that dpscale does not write|lists a period twice"),
    ("row", missing_period, "periods that are not the first ones"),
    ("row", missing_last_period, "belongs to no draw"),
    ("row", missing_draw, "has other draws than"),
    ("row", shorter_horizon, "have different periods|contradicts the other files"),
    ("row", shorter_horizon_everywhere, "different releases|the plan differs"),
    ("row", other_periods, "different releases|do not follow each other"),
    ("row", no_periods, "different releases"),
    ("unit in one month", longer_promise, "different (releases|privacy units)"),
    ("unit in one month", other_span, "different (releases|privacy units)"),
    ("unit in one month", promise_of_the_job, "different numbers"),
    ("laplace", other_noise, "another noise"),
    ("row", without_time, "states no cost of the horizon"),
    ("row", other_format, "which is no file of a bundle"),
    ("row", other_cost_in_checklist, "contradicts the other files on 'What does the horizon cost"),
]


@pytest.mark.parametrize(("case", "change", "fault"), FORGERIES, ids=lambda one: getattr(one, "__name__", ""))
def test_forgery_is_refused(folders, tmp_path, case, change, fault):
    with pytest.raises(JobError, match=fault):
        check_bundle(forge(folders[case], tmp_path / "forged", change))


def test_ledger_refuses_a_matrix_that_all_files_agree_on(folders, tmp_path):
    """A consistent change of all files passes without the ledger, which the check states."""
    forged = forge(folders["row"], tmp_path / "forged", sealed_smaller_column)
    assert any("a consistent change of all files passes" in one for one in check_bundle(forged)["unverified"])
    with Ledger.open(folders["row"].parents[1] / "ledger.sqlite") as ledger:
        heads = ledger.heads()
    assert check_bundle(folders["row"], heads=heads)["later_entries"] == 0
    with pytest.raises(JobError, match="which the ledger does not contain"):
        check_bundle(forged, heads=heads)


ALONE = [
    ("row", smaller_matrix_of_another_plan, "time.json differs from the plan"),
    ("unit over all time", fewer_periods_of_a_unit, "job.toml and time.json have different numbers of periods"),
    ("row", twice, "lists a period twice"),
    ("row", other_periods, "do not follow each other"),
    ("row", shorter_horizon, "have different periods"),
    ("unit in one month", longer_promise, "promise different periods of a unit"),
    ("unit in one month", other_span, "promise different periods of a unit"),
    ("unit in one month", promise_of_the_job, "promise different periods of a unit"),
    ("laplace", other_noise, "job.toml and time.json have different noise"),
    ("row", other_format, "is in a bundle of another format"),
]


@pytest.mark.parametrize(("case", "change", "fault"), ALONE, ids=lambda one: getattr(one, "__name__", ""))
def test_script_for_periods_finds_each_contradiction_alone(folders, tmp_path, case, change, fault):
    """These faults are found without the hash chain of the ledger and without the other scripts."""
    found = period_costs.faults(forge(folders[case], tmp_path / "forged", change))
    assert any(fault in one for one in found), found


def test_script_reports_a_forgery_and_fails(folders, tmp_path):
    folder = forge(folders["row"], tmp_path / "forged", less_noise)
    for script in ("recompute.py", "period_costs.py"):
        done = subprocess.run([sys.executable, "-I", "-S", folder / script], capture_output=True, text=True, cwd="/")
        assert done.returncode == 1
        assert "FAULT: table 2026-02 has other draws than table 2026-01" in done.stdout


def test_bundle_of_one_table_with_weights_of_periods_is_refused(folders, tmp_path):
    """The forged bundle lists the first period as a table, with the noise for which one table costs the charge."""

    def one_table(files):
        factor = int(files["draws"].pop("time")["factor"])
        first = files["draws"]["components"][0] | {"name": "data", "folder": ""}
        for draw in first["draws"]:
            draw["variance"] = str(-(-(int(draw["variance"]) - 8) // factor) + 8)
        files["draws"]["components"] = [first]
        files["versions"]["format"] = "dpscale-evidence/3"

    copy = forge(folders["row"], tmp_path / "forged", one_table)
    for name in ("time.json", "period_costs.py", "hashes.json"):
        (copy / name).unlink()
    for name, content in bundle._sealed({one.name: one.read_bytes() for one in copy.iterdir()}, None).items():
        (copy / name).write_bytes(content)
    with pytest.raises(JobError, match="states no cost of the horizon"):
        check_bundle(copy)


def test_needed_files_of_the_format_are_required(folders, tmp_path):
    for name in ("time.json", "period_costs.py"):
        copy = shutil.copytree(folders["row"], tmp_path / name)
        (copy / name).unlink()
        (copy / "hashes.json").unlink()
        for other, content in bundle._sealed({one.name: one.read_bytes() for one in copy.iterdir()}, None).items():
            (copy / other).write_bytes(content)
        with pytest.raises(JobError, match=f"lacks '{name}'"):
            check_bundle(copy)
    assert check.SCRIPTS["dpscale-evidence/5"][-1] == "period_costs.py"
