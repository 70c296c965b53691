"""The budget on the command line: caps, seeds and budgets without meaningful protection."""

import json

import pytest
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from dpscale.job import Job
from tests.audit.small import write


def run_command(*arguments):
    return CliRunner().invoke(main, [str(one) for one in arguments], standalone_mode=True)


@pytest.mark.parametrize(
    ("privacy", "message"),
    [
        ({"epsilon": 25.0, "delta": 1e-9}, "privacy.epsilon: 25: the odds"),
        ({"epsilon": 21.0}, "privacy.epsilon: 21: the odds"),
        ({"rho": 60.0}, "privacy.rho: 60: the odds"),
        ({"privacy_cost": 40.0}, "privacy.privacy_cost: 40: the odds"),
        ({"epsilon": 1.0, "delta": 0.01}, "privacy.delta: 0.01 permits the publication of one whole record in 100"),
        ({"epsilon": 1.0, "delta": 1e-4, "public_rows": 48842}, "at most 1 / public_rows, 2.05e-05"),
    ],
)
def test_weak_budget_needs_permission(tmp_path, privacy, message):
    job = write(tmp_path, privacy=privacy | {"dataset": "small"})
    with pytest.raises(dp.JobError) as refused:
        Job.read(job)
    assert message in str(refused.value)
    assert "allow_weak_privacy = true" in str(refused.value)
    Job.read(write(tmp_path, privacy=privacy | {"dataset": "small", "allow_weak_privacy": True}))


@pytest.mark.parametrize(
    "privacy",
    [
        {"epsilon": 20.0, "delta": 1e-3},
        {"epsilon": 20.0},
        {"rho": 5.0},
        {"privacy_cost": 12.0},
        {"epsilon": 1.0, "delta": 1e-6, "public_rows": 48842},
    ],
)
def test_strong_budget_is_accepted(tmp_path, privacy):
    assert Job.read(write(tmp_path, privacy=privacy | {"dataset": "small"}))


def test_pure_cap_admits_only_laplace_noise(tmp_path):
    ledger = tmp_path / "ledger.sqlite"
    cap = ("ledger", "cap", ledger, "--dataset", "small", "--epsilon", "1", "--delta", "1e-9", "--currency", "pure")
    done = run_command(*cap, "--unit", "row")
    assert done.exit_code == 0
    assert "in pure" in done.output
    pure = write(tmp_path, "pure.toml", privacy={"epsilon": 0.5, "dataset": "small"}, engine={})
    privacy = {"epsilon": 0.1, "delta": 1e-9, "dataset": "small"}
    gaussian = write(tmp_path, "gaussian.toml", privacy=privacy, engine={})
    assert run_command("run", pure, "--run-dir", tmp_path / "pure", "--quiet").exit_code == 0
    refused = run_command("run", gaussian, "--run-dir", tmp_path / "gaussian", "--quiet")
    assert refused.exit_code == 3
    assert "a pure cap admits nothing else" in refused.stderr
    shown = run_command("ledger", "show", ledger).output
    assert "protects  one row (add/remove)" in shown
    assert "left      epsilon 0.5" in shown


def test_seed_is_refused_under_cap_and_shown_without(tmp_path):
    ledger = tmp_path / "ledger.sqlite"
    seeded = write(tmp_path, privacy={"epsilon": 0.1, "delta": 1e-9, "dataset": "small"}, engine={"seed": 1})
    other = write(
        tmp_path, "other.toml", privacy={"epsilon": 0.1, "delta": 1e-9, "dataset": "small"}, engine={"seed": 2}
    )
    assert run_command("run", seeded, "--run-dir", tmp_path / "one", "--quiet").exit_code == 0
    assert "epsilon infinite" in run_command("ledger", "show", ledger).output
    summary = json.loads(run_command("ledger", "show", ledger, "--json").output)["datasets"]["small"]
    assert summary["spent"]["epsilon"] is None
    run_command("ledger", "cap", ledger, "--dataset", "small", "--epsilon", "5", "--delta", "1e-6")
    refused = run_command("run", other, "--run-dir", tmp_path / "two", "--quiet")
    assert refused.exit_code == 3
    assert "engine.seed: noise that anyone can compute" in refused.stderr
    assert not list((tmp_path / "two" / "measurements").glob("*.parquet"))


def test_row_release_is_refused_under_unit_cap(tmp_path):
    rows = write(tmp_path, "rows.toml", privacy={"epsilon": 0.1, "delta": 1e-9, "dataset": "small"})
    run_command("ledger", "cap", tmp_path / "ledger.sqlite", "--dataset", "small", "--epsilon", "5", "--delta", "1e-6",
            "--unit", "person")  # fmt: skip
    refused = run_command("run", rows, "--run-dir", tmp_path / "run", "--quiet")
    assert refused.exit_code == 3
    assert "a release that protects one row (add/remove) on dataset 'small'" in refused.stderr


@pytest.mark.parametrize("mechanism", ["aim-grem", "aim-pgm", "mst"])
def test_pure_budget_is_refused_for_adaptive_mechanisms(tmp_path, mechanism):
    job = write(tmp_path, mechanism={"name": mechanism}, privacy={"epsilon": 1.0, "dataset": "small"}, engine={})
    refused = run_command("plan", job)
    assert refused.exit_code == 2
    assert "expected epsilon with delta, rho, renyi or privacy_cost; add delta" in refused.stderr
