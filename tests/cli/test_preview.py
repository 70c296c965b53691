"""`dpscale plan`: errors in records against plans and closed forms, the epsilon that an error needs, and kept plans."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from dpscale.__main__ import main
from dpscale.cli.progress import Lines
from dpscale.engine.schedulers import LocalEngine
from dpscale.job import Job
from dpscale.mechanisms import MECHANISMS
from dpscale.runs.stages import plan
from dpscale.runs.stages.plan import make_plan

DOMAIN = "".join(
    f"[attributes.{name}]\nkind = 'coded'\nsize = {size}\n" for name, size in {"a": 4, "b": 6, "c": 3}.items()
)


@pytest.fixture
def job(tmp_path):
    def written(mechanism="weighted-residuals", privacy="epsilon = 1.0\ndelta = 1e-9", more=""):
        (tmp_path / "d.toml").write_text(DOMAIN)
        (tmp_path / "job.toml").write_text(
            f"[data]\npath = 'none.csv'\ndomain = 'd.toml'\n[privacy]\n{privacy}\n[mechanism]\nname = '{mechanism}'\n"
            f"[[workload]]\nfamily = 'marginal'\ndegree = 2\n[[workload]]\nfamily = 'prefix'\ndegree = 1\n{more}"
        )
        return str(tmp_path / "job.toml")  # fmt: skip

    return written


def told(*arguments, code=0):
    result = CliRunner().invoke(main, ["plan", *arguments, "--json"])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout) if not code else result.stderr


@pytest.mark.parametrize("privacy", ["epsilon = 1.0\ndelta = 1e-9", "epsilon = 1.0", "rho = 0.1"])
def test_errors_by_family_are_the_variances_of_the_plan(job, privacy):
    read = Job.read(job(privacy=privacy))
    found = told(job(privacy=privacy))
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
def test_the_epsilon_that_is_told_gives_the_error_that_was_wanted(job, privacy):
    needed = told(job(privacy=privacy.format(1.0)), "--error", "7.5")["needed"]["epsilon"]
    assert told(job(privacy=privacy.format(needed)))["rmse"] == pytest.approx(7.5, rel=1e-4)


def test_mechanisms_are_compared_in_records(job):
    lines = {line["mechanism"]: line for line in told(job(), "--compare")["compared"]}
    assert set(lines) == set(MECHANISMS) - {"auto"}
    for name in ("identity", "query-smasher"):
        assert lines[name]["error"] == pytest.approx(told(job(mechanism=name))["rmse"])
    assert lines["aim-grem"]["error"] is None
    errors = [line["error"] for line in lines.values() if line["error"] is not None]
    assert errors == sorted(errors)


def test_what_chooses_as_it_goes_promises_no_errors(job):
    found = told(job(mechanism="mst"))
    assert found["families"] == []
    assert "not known in advance" in found["advice"][0]
    assert "leave it out" in told(job(mechanism="mst"), "--error", "5", code=2)


def test_the_words_tell_errors_and_a_remedy(job):
    text = CliRunner().invoke(main, ["plan", job(privacy="epsilon = 1.0\ndelta = 1e-9\npublic_rows = 2400"),
                                     "--error", "5"]).stdout  # fmt: skip
    for words in ("marginal-2", "prefix-1", "error by epsilon", "an error of 5 records needs epsilon", "Half the error",
                  "of the public_rows on average"):  # fmt: skip
        assert words in text


def test_where_an_adaptive_mechanism_is_nearer_is_said_before_anything_is_spent(job):
    said = "`aim-grem` is usually more accurate"
    assert said in " ".join(told(job())["advice"])
    few, many = (f"epsilon = 1.0\ndelta = 1e-9\npublic_rows = {rows}" for rows in (40, 10**8))
    assert said in " ".join(told(job(privacy=few))["advice"])
    assert "aim-grem" not in " ".join(told(job(privacy=many))["advice"] + told(job(privacy="epsilon = 1.0"))["advice"])


@pytest.mark.parametrize("wanted", ["0", "-3", "nan", "inf"])
def test_an_error_that_is_none_is_refused(job, wanted):
    assert "a number of records above 0" in told(job(), "--error", wanted, code=2)


def test_a_plan_is_made_once_and_made_anew_where_its_file_is_damaged(job, monkeypatch, tmp_path):
    monkeypatch.setenv("DPSCALE_STORE", str(tmp_path / "store"))
    monkeypatch.setattr(plan, "WORTH_SECONDS", 0.0)
    made = []
    real = plan._store_plan
    monkeypatch.setattr(
        plan, "_store_plan", lambda folder, measurement_plan: (made.append(folder), real(folder, measurement_plan))
    )
    first, second = told(job()), told(job())
    assert len(made) == 1
    del first["planning_seconds"], second["planning_seconds"]
    assert first == second
    read, engine = Job.read(job()), LocalEngine()
    digest = make_plan(read, read.planning_problem(read.build_workload(read.read_domain())), engine).digest
    (Path(made[0]) / "blocks.npz").write_bytes(b"damaged")
    assert make_plan(read, read.planning_problem(read.build_workload(read.read_domain())), engine).digest == digest
    assert len(made) == 2
    (Path(made[0]) / "digest.txt").write_text("of another plan")
    assert make_plan(read, read.planning_problem(read.build_workload(read.read_domain())), engine).digest == digest
    assert len(made) == 3
    told(job(more="weight = 2.0\n"))
    assert len(made) == 4


def test_a_log_has_a_line_every_ten_seconds_and_how_long_is_left(capsys, monkeypatch):
    monkeypatch.setenv("DPSCALE_PROGRESS", "10")
    clock = iter([0.0, 0.0, 4.0, 11.0, 12.0, 22.0, 23.0])
    lines = Lines(lambda: next(clock))
    for done in (0, 1, 2, 3, 4):
        lines("count", done, 10)
    lines("noise", 0, 5)
    assert capsys.readouterr().err.splitlines() == [
        "dpscale: count: 2 of 10 tasks, about 44 s left", "dpscale: count: 4 of 10 tasks, about 33 s left"]  # fmt: skip
