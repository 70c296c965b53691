"""The ledger is charged for the plan that is measured, not for the plan file at the time of the charge."""

import hashlib
import json
import shutil
import tomllib
from contextlib import suppress

import numpy as np
import pytest
import tomli_w

import dpscale as dp
from dpscale.job import Job
from dpscale.job.job import job_digest
from dpscale.plans.attribute_sets import AttributeSets
from dpscale.plans.blocks import Blocks
from dpscale.runs import run as runs, runner
from dpscale.runs.manifest import output_digest, read_stored
from dpscale.runs.opening import begin_run, open_part, open_run, read_job
from dpscale.runs.periods.stages import PeriodPart
from tests.answered import edit_blocks
from tests.audit.composition import records_of
from tests.audit.small import write
from tests.links import small as shop
from tests.messages import refused
from tests.periods import growing
from tests.running import begin_table, run_stages

JOB = {"workload": [{"family": "marginal", "attributes": [["a", "b"]]}], "engine": {"scheduler": "synchronous"}}


def measured_sets(run):
    paths = (run / "measurements").glob("*.parquet")
    return {tuple(record["attributes"]) for path in paths for record in records_of(path)}


def replace_attribute(run):
    """Turn the plan of (a, b) into one of (a, c) with the same noise, and update plan.json."""

    def edit_columns(columns):
        for name in ("members", "counted"):
            columns[name] = np.where(columns[name] == 1, 2, columns[name]).astype(np.int32)

    edit_blocks(run, edit_columns)
    with np.load(run / "plan" / "blocks.npz") as columns:
        sets = AttributeSets((), columns["members"], columns["ends"])
        blocks = Blocks(sets, (), *(columns[name] for name in ("strategy", "share", "whole", "noise")))
    path = run / "plan" / "plan.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"blocks": content["blocks"] | {"sha256": blocks.digest}}))


def update_plan_hash(run):
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["stages"]["plan"]["sha256"] = output_digest(run, run / "plan")
    manifest["stages"]["measure"]["state"] = "running"
    (run / "manifest.json").write_text(json.dumps(manifest))


def test_plan_edited_during_run_gives_no_second_draw(tmp_path, monkeypatch):
    """plan.json is edited between planning and measuring; a copy of the run with its secret is measured as well."""
    job, run, copy = write(tmp_path, **JOB), tmp_path / "run", tmp_path / "copy"
    (tmp_path / "domain.toml").write_text(
        tomli_w.dumps({"attributes": {name: {"kind": "coded", "size": 5} for name in "abc"}})
    )
    real_stage, real_destroy = runner.run_stage, runs.destroy_secret

    def run_stage_with_edit(stage, *arguments, **settings):
        if stage.name == "measure":
            replace_attribute(run)
        return real_stage(stage, *arguments, **settings)

    def copy_and_destroy(path):
        if not copy.exists():
            shutil.copytree(run, copy)
        return real_destroy(path)

    with monkeypatch.context() as patched:
        patched.setattr(runner, "run_stage", run_stage_with_edit)
        patched.setattr(runs, "destroy_secret", copy_and_destroy)
        with suppress(dp.DpscaleError):  # to refuse the edit is right as well
            dp.run(job, run)
    if not copy.exists():
        return
    update_plan_hash(copy)
    shutil.rmtree(copy / "measurements")
    with suppress(dp.DpscaleError):
        dp.run(job, copy)
    both = measured_sets(run) | (measured_sets(copy) if (copy / "measurements").exists() else set())
    assert not {("a", "b"), ("a", "c")} <= both  # one charge, two plans drawn


def test_plan_digest_is_of_written_plan(tmp_path):
    run = begin_table(Job.read(write(tmp_path, engine={"scheduler": "synchronous"})), tmp_path / "run")
    run_stages(run, only="plan")
    path = run.path / "plan" / "plan.json"
    written = hashlib.sha256(path.read_bytes()).hexdigest()
    path.write_text(path.read_text() + " ")
    assert run.measurement_plan.digest == written


def test_plan_digest_is_of_read_plan(tmp_path):
    """A later process reads the plan, which is then edited before the charge."""
    job = write(tmp_path, engine={"scheduler": "synchronous"})
    run_stages(begin_table(Job.read(job), tmp_path / "run"), only="plan")
    run = open_part(tmp_path / "run")
    path = run.path / "plan" / "plan.json"
    read = hashlib.sha256(path.read_bytes()).hexdigest()
    assert run.measurement_plan.first_decision().requests
    path.write_text(path.read_text() + " ")
    assert run.measurement_plan.digest == read


@pytest.mark.parametrize("mechanism", [{"name": "aim-grem"}, {"name": "aim-grem", "published": True}])
def test_charged_adaptive_run_resumes(tmp_path, monkeypatch, mechanism):
    """The ledger records mechanism, cost and rows per unit, which stay the same on resume."""
    job = write(tmp_path, mechanism=mechanism, privacy={"rho": 0.5, "dataset": "small"},
                engine={"scheduler": "synchronous"})  # fmt: skip
    with monkeypatch.context() as patched:
        patched.setattr(runs, "destroy_secret", lambda path: 1 / 0)
        with refused(dp.TransientError):
            dp.run(job, tmp_path / "run")
    assert open_part(tmp_path / "run").measurement_plan.setting.beta == 1
    dp.run(job, tmp_path / "run")


@pytest.mark.parametrize("mechanism", ["residual-planner", "aim-grem"])
def test_edited_budget_of_uncharged_run_is_refused(tmp_path, mechanism):
    """Planted: the manifest claims a charge with a larger budget, which the ledger does not contain."""
    job = write(tmp_path, mechanism={"name": mechanism}, engine={"scheduler": "synchronous"})
    run_stages(begin_table(Job.read(job), tmp_path / "run"), only="plan")
    run = open_part(tmp_path / "run")
    run.update(privacy={"budget": "10000"})
    with refused(dp.JobError):
        run_stages(open_run(tmp_path / "run"), only="measure")
    assert not list((tmp_path / "run" / "measurements").glob("*"))


def test_run_of_other_mechanism_version_is_not_measured(tmp_path):
    job = write(tmp_path, mechanism={"name": "residual-planner"}, engine={"scheduler": "synchronous"})
    run_stages(begin_table(Job.read(job), tmp_path / "run"), only="plan")
    open_part(tmp_path / "run").update(mechanism={"name": "residual-planner", "version": "0"})
    with refused(dp.JobError):
        run_stages(open_run(tmp_path / "run"), only="measure")


def copy_with_secret(job, folder, monkeypatch):
    """Measure a job that is stopped before its secret is destroyed, and return a copy without its measurements."""
    with monkeypatch.context() as patched:
        patched.setattr(runs, "destroy_secret", lambda path: 1 / 0)
        with refused(dp.TransientError):
            dp.run(job, folder / "run")
    copy = shutil.copytree(folder / "run", folder / "copy")
    for path in [*copy.rglob("measurements/*"), *copy.rglob("links/*/*.parquet")]:
        path.unlink()
    return copy


@pytest.mark.parametrize("mechanism", ["residual-planner", "aim-grem"])
def test_copy_with_other_unit_gets_no_second_release(tmp_path, monkeypatch, mechanism):
    """Another column bounds other rows: the same noise on their counts would reveal the difference of the counts."""
    data = {"path": "data", "domain": "domain.toml", "privacy_unit": "unit", "max_rows_per_unit": 2}
    job = write(tmp_path, data=data, mechanism={"name": mechanism}, engine={"scheduler": "synchronous"})
    copy = copy_with_secret(job, tmp_path, monkeypatch)
    content = tomllib.loads((copy / "job.toml").read_text())
    content["data"]["privacy_unit"] = "c"
    (copy / "job.toml").write_text(tomli_w.dumps(content))
    manifest = json.loads((copy / "manifest.json").read_text())
    edited = read_stored(copy, manifest)
    manifest["job_sha256"] = job_digest(edited, edited.table.read_domain(), manifest["job_version"])
    (copy / "manifest.json").write_text(json.dumps(manifest))
    with refused(dp.BudgetError):
        run_stages(open_run(copy), only="measure")
    assert not list((copy / "measurements").glob("*"))
    dp.run(job, tmp_path / "run")  # the original goes on


def forget_measuring(copy, change):
    """Edit the manifest of a copy, and forget that it and its tables began to measure."""
    path = copy / "manifest.json"
    manifest = json.loads(path.read_text())
    for one in [manifest, *manifest["parts"].values()]:
        one.get("stages", {}).pop("measure", None)
    change(manifest)
    path.write_text(json.dumps(manifest))


def set_number(manifest):
    manifest["number"] = 2


def set_release(manifest):
    manifest["parts"]["tables.persons"]["release"] = "f" * 32


@pytest.mark.parametrize("seed", [{}, {"seed": 5}], ids=["", "seed"])
@pytest.mark.parametrize("change", [set_number, set_release])
def test_edited_facts_of_table_change_no_noise(tmp_path, monkeypatch, change, seed):
    """Planted: a number of the run, and a release id of a table, which follows from that of the run."""
    job = shop.write_job(tmp_path, {"engine": {"scheduler": "synchronous", **seed}})
    copy = copy_with_secret(job, tmp_path, monkeypatch)
    forget_measuring(copy, change)
    dp.run(job, copy)
    dp.run(job, tmp_path / "run")
    drawn, again = (sorted((one / "tables/persons/measurements").glob("*.parquet")) for one in (tmp_path / "run", copy))
    assert drawn
    assert [path.read_bytes() for path in drawn] == [path.read_bytes() for path in again]


@pytest.mark.parametrize("seed", [None, 5])
def test_parts_draw_under_different_ids(tmp_path, seed):
    """Tables of one domain and content, and periods without new records, differ by the release id of a label alone."""
    engine = {"scheduler": "synchronous"} | ({} if seed is None else {"seed": seed})
    run = begin_run(read_job(shop.write_job(tmp_path / "shop", {"engine": engine})), tmp_path / "run")
    ids = [part.release for part in run.tables.values()]

    (tmp_path / "growing").mkdir()
    growing.write(tmp_path / "growing", growing.frames())
    stream = growing.start(growing.make_job(tmp_path / "growing", engine=engine), tmp_path / "months")
    ids += [PeriodPart(stream, number).release for number in range(3)]
    assert len({*ids, run.release, stream.run.release}) == len(run.tables) + 3 + 2
