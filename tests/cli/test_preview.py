"""`dpscale plan`: errors against plans and closed forms, the epsilon for a target error, and cached plans."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from scipy.stats import norm

from dpscale.__main__ import main
from dpscale.base.progress import ProgressLines
from dpscale.engine.schedulers import LocalEngine
from dpscale.job import Job
from dpscale.mechanisms import MECHANISMS
from dpscale.privacy.conversion import gdp_mu
from dpscale.runs.stages import plan
from dpscale.runs.stages.plan import make_plan

DOMAIN = "".join(
    f"[attributes.{name}]\nkind = 'coded'\nsize = {size}\n" for name, size in {"a": 4, "b": 6, "c": 3}.items()
)


@pytest.fixture
def write_job(tmp_path):
    def write(mechanism="weighted-residuals", privacy="epsilon = 1.0\ndelta = 1e-9", more=""):
        (tmp_path / "d.toml").write_text(DOMAIN)
        (tmp_path / "job.toml").write_text(
            f"[data]\npath = 'none.csv'\ndomain = 'd.toml'\n[privacy]\n{privacy}\n[mechanism]\nname = '{mechanism}'\n"
            f"[[workload]]\nfamily = 'marginal'\ndegree = 2\n[[workload]]\nfamily = 'prefix'\ndegree = 1\n{more}"
        )
        return str(tmp_path / "job.toml")  # fmt: skip

    return write


def run_plan(*arguments, code=0):
    result = CliRunner().invoke(main, ["plan", *arguments, "--json"])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout) if not code else result.stderr


@pytest.mark.parametrize("privacy", ["epsilon = 1.0\ndelta = 1e-9", "epsilon = 1.0", "rho = 0.1"])
def test_family_errors_equal_plan_variances(write_job, privacy):
    read = Job.read(write_job(privacy=privacy)).table
    found = run_plan(write_job(privacy=privacy))
    measurement_plan = make_plan(read, read.planning_problem(read.build_workload(read.read_domain())), LocalEngine())
    cost = read.privacy.budget.privacy_cost
    for part, family in zip(measurement_plan.workload.parts, found["families"], strict=True):
        variances = np.concatenate(
            [measurement_plan.plan.accuracy.part_variances(part, names).ravel() for names in part.sets]
        )
        assert family["error"] == pytest.approx(math.sqrt(variances.mean() / cost))
        assert family["sets"] == len(part.sets)
        assert family["worst"][0]["error"] >= family["best"][0]["error"]
    one = next(line for line in found["curve"] if line["epsilon"] == 1.0)
    if privacy != "rho = 0.1":
        assert one["error"] == pytest.approx(found["rmse"], rel=1e-6)


@pytest.mark.parametrize("privacy", ["epsilon = {}\ndelta = 1e-9", "epsilon = {}"])
def test_needed_epsilon_gives_target_error(write_job, privacy):
    needed = run_plan(write_job(privacy=privacy.format(1.0)), "--error", "7.5")["needed"]["epsilon"]
    assert run_plan(write_job(privacy=privacy.format(needed)))["rmse"] == pytest.approx(7.5, rel=1e-4)


def test_compare_lists_errors_of_mechanisms(write_job):
    lines = {line["mechanism"]: line for line in run_plan(write_job(), "--compare")["compared"]}
    assert set(lines) == set(MECHANISMS) - {"auto"}
    for name in ("identity", "query-smasher"):
        assert lines[name]["error"] == pytest.approx(run_plan(write_job(mechanism=name))["rmse"])
    assert lines["aim-grem"]["error"] is None
    errors = [line["error"] for line in lines.values() if line["error"] is not None]
    assert errors == sorted(errors)


def test_adaptive_mechanism_reports_no_errors(write_job):
    found = run_plan(write_job(mechanism="mst"))
    assert found["families"] == []
    assert "not known in advance" in found["advice"][0]
    assert "leave it out" in run_plan(write_job(mechanism="mst"), "--error", "5", code=2)


def test_text_output_has_errors_and_advice(write_job):
    text = CliRunner().invoke(main, ["plan", write_job(privacy="epsilon = 1.0\ndelta = 1e-9\npublic_rows = 2400"),
                                     "--error", "5"]).stdout  # fmt: skip
    for words in ("marginal-2", "prefix-1", "error by epsilon", "an error of 5 records needs epsilon", "Half the error",
                  "of the public_rows on average"):  # fmt: skip
        assert words in " ".join(text.split())


def test_advice_names_adaptive_mechanism_for_few_records(write_job):
    advice = "`aim-grem` is usually more accurate"
    assert advice in " ".join(run_plan(write_job())["advice"])
    few, many = (f"epsilon = 1.0\ndelta = 1e-9\npublic_rows = {rows}" for rows in (40, 10**8))
    assert advice in " ".join(run_plan(write_job(privacy=few))["advice"])
    assert "aim-grem" not in " ".join(
        run_plan(write_job(privacy=many))["advice"] + run_plan(write_job(privacy="epsilon = 1.0"))["advice"]
    )


@pytest.mark.parametrize("wanted", ["0", "-3", "nan", "inf"])
def test_invalid_target_error_is_refused(write_job, wanted):
    assert "a number of records above 0" in run_plan(write_job(), "--error", wanted, code=2)


def test_plan_is_cached_and_remade_if_damaged(write_job, monkeypatch, tmp_path):
    monkeypatch.setenv("DPSCALE_STORE", str(tmp_path / "store"))
    monkeypatch.setattr(plan, "WORTH_SECONDS", 0.0)
    made = []
    real = plan._store_plan
    monkeypatch.setattr(
        plan, "_store_plan", lambda folder, measurement_plan: (made.append(folder), real(folder, measurement_plan))
    )
    first, second = run_plan(write_job()), run_plan(write_job())
    assert len(made) == 1
    del first["planning_seconds"], second["planning_seconds"]
    assert first == second
    read, engine = Job.read(write_job()).table, LocalEngine()
    digest = make_plan(read, read.planning_problem(read.build_workload(read.read_domain())), engine).digest
    (Path(made[0]) / "blocks.npz").write_bytes(b"damaged")
    assert make_plan(read, read.planning_problem(read.build_workload(read.read_domain())), engine).digest == digest
    assert len(made) == 2
    (Path(made[0]) / "digest.txt").write_text("of another plan")
    assert make_plan(read, read.planning_problem(read.build_workload(read.read_domain())), engine).digest == digest
    assert len(made) == 3
    run_plan(write_job(more="weight = 2.0\n"))
    assert len(made) == 4


def test_progress_log_has_interval_and_remaining_time(capsys, monkeypatch):
    monkeypatch.setenv("DPSCALE_PROGRESS", "10")
    clock = iter([0.0, 0.0, 4.0, 11.0, 12.0, 22.0, 23.0])
    lines = ProgressLines(lambda: next(clock))
    for done in (0, 1, 2, 3, 4):
        lines("count", done, 10)
    lines("noise", 0, 5)
    assert capsys.readouterr().err.splitlines() == [
        "dpscale: counting records: 2 of 10 tasks, about 44 s left",
        "dpscale: counting records: 4 of 10 tasks, about 33 s left"]  # fmt: skip


def test_plan_states_attack_risk_of_the_budget(write_job):
    risk = run_plan(write_job())["attack_risk"]
    mu = gdp_mu(1.0, 1e-9)
    for one in risk["bounds"]:
        exact = norm.sf(norm.isf(one["false_positive_rate"]) - mu)
        assert one["true_positive_rate"] == pytest.approx(exact, rel=1e-9)
    text = CliRunner().invoke(main, ["plan", write_job(), "--quiet"]).stdout
    assert risk["sentence"] in " ".join(text.split())
    assert max(map(len, text[text.index("An attacker") : text.index("words for readers")].splitlines())) <= 80
    pure = run_plan(write_job("hdmm", "epsilon = 1.0"))["attack_risk"]["bounds"]
    assert [one["true_positive_rate"] for one in pure] == pytest.approx([0.05 * math.e, 0.01 * math.e])
    seeded = run_plan(write_job(more="[engine]\nseed = 1\n"))["attack_risk"]["bounds"]
    assert [one["true_positive_rate"] for one in seeded] == [1.0, 1.0]


def test_errors_of_means_are_those_of_groups(write_job, tmp_path):
    """The error of a mean is inverse to the number of records of its group."""
    (tmp_path / "fees.domain.toml").write_text(
        '[attributes.sex]\nkind = "categories"\nvalues = ["F", "M"]\n[numbers.fee]\nlow = 0\nhigh = 50\n'
    )
    job = tmp_path / "fees.toml"
    job.write_text('[data]\npath = "x.csv"\ndomain = "fees.domain.toml"\n[privacy]\nepsilon = 1.0\ndelta = 1e-9\n'
                   '[[workload]]\nfamily = "mean"\nof = "fee"\nattributes = [["sex"]]\n')  # fmt: skip
    call = ["plan", str(job), "--quiet"]
    (family,) = json.loads(CliRunner().invoke(main, [*call, "--json"]).stdout)["families"]
    text = CliRunner().invoke(main, [*call, "--rows", "5000"]).stdout
    sizes = {1000: 1, 100: 10, 2500: 0.4}
    for size, factor in sizes.items():
        assert f"± {family['error'] * factor:.4g} for a group of {size:,}" in text
    assert "notes" not in text
    assert "notes:" in CliRunner().invoke(main, [*call, "--verbose"]).stdout


def test_decimal_comma_is_named(tmp_path):
    (tmp_path / "job.toml").write_text("[privacy]\nepsilon = 1,5\n")
    found = CliRunner().invoke(main, ["plan", str(tmp_path / "job.toml")])
    assert found.exit_code == 2
    assert "line 2, column 12, where a number needs a decimal point" in found.stderr
