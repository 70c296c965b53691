"""The ledger knows the plan that is drawn, not the file that stands there by the time it is charged."""

import hashlib
import json
import shutil
from contextlib import suppress

import numpy as np
import pytest

import dpscale as dp
from dpscale.audit.composition import records_of
from dpscale.job import Job
from dpscale.plans.attribute_sets import AttributeSets
from dpscale.plans.blocks import Blocks
from dpscale.runs.manifest import output_digest
from dpscale.runs.run import Run
from dpscale.runs.stages import budget, runner
from tests.answered import edit_blocks
from tests.audit.small import write

JOB = {"workload": [{"family": "marginal", "attributes": [["a", "b"]]}], "engine": {"scheduler": "synchronous"}}


def drawn(run):
    paths = (run / "measurements").glob("*.parquet")
    return {tuple(record["attributes"]) for path in paths for record in records_of(path)}


def other_attribute(run):
    """The plan of a, b as one of a, c, at the same noise; plan.json is made to agree."""

    def edited(columns):
        for name in ("members", "counted"):
            columns[name] = np.where(columns[name] == 1, 2, columns[name]).astype(np.int32)

    edit_blocks(run, edited)
    with np.load(run / "plan" / "blocks.npz") as columns:
        sets = AttributeSets((), columns["members"], columns["ends"])
        blocks = Blocks(sets, (), *(columns[name] for name in ("strategy", "share", "whole", "noise")))
    path = run / "plan" / "plan.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"blocks": content["blocks"] | {"sha256": blocks.digest}}))


def agreed(run):
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["stages"]["plan"]["sha256"] = output_digest(run, run / "plan")
    manifest["stages"]["measure"]["state"] = "running"
    (run / "manifest.json").write_text(json.dumps(manifest))


def test_a_plan_edited_while_its_process_runs_buys_no_second_draw(tmp_path, monkeypatch):
    """Between planning and measuring plan.json is edited; a copy, taken while the secret lived, is measured as well."""
    import tomli_w

    job, run, copy = write(tmp_path, **JOB), tmp_path / "run", tmp_path / "copy"
    (tmp_path / "domain.toml").write_text(
        tomli_w.dumps({"attributes": {name: {"kind": "coded", "size": 5} for name in "abc"}})
    )
    real_stage, real_destroy = runner.run_stage, budget.destroy_secret

    def staged(stage, *arguments, **settings):
        if stage.name == "measure":
            other_attribute(run)
        return real_stage(stage, *arguments, **settings)

    def destroyed(path):
        if not copy.exists():
            shutil.copytree(run, copy)
        return real_destroy(path)

    with monkeypatch.context() as patched:
        patched.setattr(runner, "run_stage", staged)
        patched.setattr(budget, "destroy_secret", destroyed)
        with suppress(dp.DpscaleError):  # to refuse the edit is right as well
            dp.run(job, run)
    if not copy.exists():
        return
    agreed(copy)
    shutil.rmtree(copy / "measurements")
    with suppress(dp.DpscaleError):
        dp.run(job, copy)
    both = drawn(run) | (drawn(copy) if (copy / "measurements").exists() else set())
    assert not {("a", "b"), ("a", "c")} <= both  # one charge, two plans drawn


def test_the_digest_of_a_plan_is_of_what_was_written(tmp_path):
    run = Run.create(Job.read(write(tmp_path, engine={"scheduler": "synchronous"})), tmp_path / "run")
    runner.run_stages(run, only="plan")
    path = run.path / "plan" / "plan.json"
    written = hashlib.sha256(path.read_bytes()).hexdigest()
    path.write_text(path.read_text() + " ")
    assert run.measurement_plan.digest == written


def test_the_digest_of_a_plan_is_of_what_was_read(tmp_path):
    """A later process: read at its beginning, edited before it is charged."""
    job = write(tmp_path, engine={"scheduler": "synchronous"})
    runner.run_stages(Run.create(Job.read(job), tmp_path / "run"), only="plan")
    run = Run(tmp_path / "run")
    path = run.path / "plan" / "plan.json"
    read = hashlib.sha256(path.read_bytes()).hexdigest()
    assert run.measurement_plan.first_decision().requests
    path.write_text(path.read_text() + " ")
    assert run.measurement_plan.digest == read


@pytest.mark.parametrize("mechanism", [{"name": "aim-grem"}, {"name": "aim-grem", "published": True}])
def test_an_adaptive_run_that_was_charged_goes_on(tmp_path, monkeypatch, mechanism):
    """Its ledger entry holds the law as it was: mechanism, cost and rows. What was paid for must not be lost."""
    job = write(tmp_path, mechanism=mechanism, privacy={"rho": 0.5, "dataset": "small"},
                engine={"scheduler": "synchronous"})  # fmt: skip
    with monkeypatch.context() as patched:
        patched.setattr(budget, "destroy_secret", lambda path: 1 / 0)
        with pytest.raises(dp.TransientError, match="ZeroDivisionError"):
            dp.run(job, tmp_path / "run")
    assert Run(tmp_path / "run").measurement_plan.noise_spec == ["aim-grem", "1", 1]
    dp.run(job, tmp_path / "run")
