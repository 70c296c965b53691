"""Hashes of stage outputs: a stage checks the files of the stage before it, also in another process."""

import pytest
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from dpscale.base.errors import JobError
from dpscale.engine.schedulers import resolve
from dpscale.job import Job
from dpscale.ledger import Ledger
from dpscale.runs import manifest, runner
from dpscale.runs.stages import reconstruct
from tests.messages import refused
from tests.running import begin_table, run_stages
from tests.runs.small import write_job

STAGES = ("plan", "measure", "reconstruct", "report")
SEEDED = {"seed": 11, "memory": "1GiB", "scheduler": "synchronous"}
FILES = {"plan": "plan/plan.json", "measure": "measurements/*.parquet", "reconstruct": "answers/index.parquet"}


def run_stages_before(place, stage):
    """Return a run whose stages before the given one are done."""
    run = begin_table(Job.read(write_job(place, engine=SEEDED)), place / "run")
    for name in STAGES[: STAGES.index(stage)]:
        run_stages(run, only=name)
    return run


def first_output(run, stage):
    return sorted(run.path.glob(FILES[stage]))[0]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("only", [True, False])
@pytest.mark.parametrize(
    ("edited", "begun"),
    [("plan", "measure"), ("plan", "reconstruct"), ("measure", "reconstruct"), ("reconstruct", "report")],
)
def test_edited_output_is_refused_until_restored(place, edited, begun, only):
    run = run_stages_before(place, begun)
    path = first_output(run, edited)
    content = path.read_bytes()
    path.write_bytes(content + b"\n")
    command = ["run", run.path, "--only", begun] if only else ["run", place / "job.toml", "--run-dir", run.path]
    refused = CliRunner().invoke(main, [*map(str, command), "--quiet"])
    assert refused.exit_code == 2, refused.output
    assert f"files that stage {edited} wrote in {path.parent} were changed" in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert not run.done(begun)
    assert begun not in run.manifest["stages"], "it has not even begun"
    path.write_bytes(content)
    assert CliRunner().invoke(main, [*map(str, command), "--quiet"]).exit_code == 0
    assert run.done(begun)


@pytest.mark.parametrize("scheduler", ["threads", "processes"])
def test_parallel_hashing_detects_change_in_any_file(place, scheduler, monkeypatch):
    """One byte of each file of a stage is changed in turn; unchanged files pass."""
    run = run_stages_before(place, "reconstruct")
    monkeypatch.setattr(manifest, "SHARE", 1)  # a task a file
    check, entry = manifest.check_output, run.manifest["stages"]["measure"]
    engine = resolve(None, scheduler)
    try:
        each = engine.each("check")
        check(run.path, "measure", entry, each)
        for path in sorted((run.path / entry["folder"]).rglob("*")):
            if path.is_file():
                content = path.read_bytes()
                path.write_bytes(bytes([content[0] ^ 1]) + content[1:])
                with pytest.raises(JobError, match="were changed"):
                    check(run.path, "measure", entry, each)
                path.write_bytes(content)
    finally:
        engine.close()


@pytest.mark.parametrize("change", ["taken away", "put there"])
def test_missing_or_added_file_is_refused(place, change):
    run = run_stages_before(place, "reconstruct")
    path = first_output(run, "measure")
    if change == "taken away":
        path.unlink()
    else:
        path.with_name("another.parquet").write_bytes(path.read_bytes())
    with refused(dp.JobError):
        run_stages(run, only="reconstruct")


def test_interrupted_stage_resumes_and_edited_plan_is_refused(place, monkeypatch):
    run = run_stages_before(place, "measure")
    with monkeypatch.context() as patch:
        patch.setattr(runner, "publish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            run_stages(run, only="measure")
    path = first_output(run, "plan")
    content = path.read_bytes()
    path.write_bytes(content.replace(b"{", b"{ ", 1))
    with refused(dp.JobError):
        run_stages(run, only="measure")
    path.write_bytes(content)
    first_output(run, "measure").unlink()
    run_stages(run)
    assert run.done("report")
    with Ledger.open(place / "ledger.sqlite") as ledger:
        assert len(ledger.summary()["datasets"]["small"]["releases"]) == 1


def test_own_and_completed_outputs_are_not_hashed_again(place, monkeypatch):
    monkeypatch.setattr(manifest, "output_digest", lambda *_: pytest.fail("hashed twice"))
    path = write_job(place, engine=SEEDED)
    for _ in range(2):
        dp.run(path, place / "run")


def test_manifest_without_hashes_is_refused(place):
    """An edited output with its hash removed would be used otherwise."""
    run = run_stages_before(place, "reconstruct")
    stages = run.manifest["stages"]
    run.update(stages={name: {"state": stage["state"]} for name, stage in stages.items()})
    with refused(dp.JobError):
        run_stages(run)


def test_partial_files_of_killed_workers_are_removed_and_not_hashed(place, monkeypatch):
    """A task of a dead driver may write a file after its stage was finished by another one."""
    run, real = run_stages_before(place, "reconstruct"), reconstruct.write_index
    partial, late = run.path / "answers/marginal-2/.00.parquet.01.partial", run.path / "answers/.x.02.partial"
    (run.path / ".manifest.json.03.partial").write_bytes(b"{")

    def write_index(*arguments):
        partial.write_bytes(b"ha")
        return real(*arguments)

    monkeypatch.setattr(reconstruct, "write_index", write_index)
    run_stages(run, only="reconstruct")
    assert not list(run.path.rglob("*.partial"))
    late.write_bytes(b"ha")
    run_stages(run)
    assert run.done("report")
