"""A job asked for again: a plain repeat reads and spends nothing, other data are told, `--fresh` is a new release."""

import json
import os
import shutil

import pytest
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from dpscale.job import Job
from dpscale.ledger import Ledger
from dpscale.runs.run import Run
from dpscale.runs.stages import measure
from dpscale.runs.stages.runner import run_stages
from tests.audit.small import answers, measurements, write

UNSEEDED = {"scheduler": "synchronous"}


def command(code, *arguments):
    result = CliRunner().invoke(main, [*map(str, arguments)])
    assert result.exit_code == code, (result.output, result.exception)
    assert code == 0 or (result.stderr.startswith("dpscale: ") and result.stderr.count("\n") == 1), result.stderr
    return result.stderr


def charged(place):
    with Ledger.open(place / "ledger.sqlite") as ledger:
        return [row["release"] for row in ledger.summary("small")["datasets"]["small"]["releases"]]


@pytest.fixture
def done(tmp_path):
    job = write(tmp_path, engine=UNSEEDED)
    dp.run(job, tmp_path / "run")
    return job


def appended(place):
    path = next((place / "data").iterdir())
    status = path.stat()
    path.write_bytes(path.read_bytes() + b"\0")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def touched(place):
    path = max((place / "data").iterdir(), key=lambda one: one.stat().st_mtime_ns)
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))


def joined(place):
    """One file fewer, of the same bytes and times in all."""
    one, other = sorted((place / "data").iterdir())
    latest = max(one.stat().st_mtime_ns, other.stat().st_mtime_ns)
    one.write_bytes(one.read_bytes() + other.read_bytes())
    other.unlink()
    os.utime(one, ns=(latest, latest))


def garbled(place):
    """Other bytes of the same size and time: nobody opens the files to find out."""
    for path in (place / "data").iterdir():
        status = path.stat()
        path.write_bytes(bytes(status.st_size))
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def moved(place):
    (place / "data").rename(place / "away")


def emptied(place):
    for path in (place / "data").iterdir():
        path.unlink()


def kept(place):
    """As they were."""


@pytest.mark.parametrize("change", [kept, garbled, moved, emptied])
def test_a_plain_repeat_and_one_whose_data_are_gone_read_and_spend_nothing(tmp_path, done, change):
    change(tmp_path)
    before = measurements(tmp_path / "run"), answers(tmp_path / "run"), charged(tmp_path)
    when = Run(tmp_path / "run").manifest["stages"]["measure"]["end"][:10]
    said = command(0, "run", done, "--run-dir", tmp_path / "run")
    assert said == f"dpscale: done on {when}, nothing read, nothing spent\n"
    assert (measurements(tmp_path / "run"), answers(tmp_path / "run"), charged(tmp_path)) == before


@pytest.mark.parametrize(("change", "what"), [(appended, "size differs"), (touched, "time differs"),
                                              (joined, "number differs")])  # fmt: skip
def test_other_data_are_told_by_what_differs(tmp_path, done, change, what):
    change(tmp_path)
    before = measurements(tmp_path / "run"), answers(tmp_path / "run"), charged(tmp_path)
    said = command(2, "run", done, "--run-dir", tmp_path / "run")
    assert "done on 20" in said
    assert f"from other data ({what}); nothing read or spent" in said
    assert said.endswith("--fresh starts a new release\n")
    with pytest.raises(dp.DataError, match="from other data"):
        dp.run(done, tmp_path / "run")
    assert (measurements(tmp_path / "run"), answers(tmp_path / "run"), charged(tmp_path)) == before


def test_a_file_more_differs_in_all_but_maybe_time(tmp_path, done):
    path = next((tmp_path / "data").iterdir())
    shutil.copy2(path, tmp_path / "data" / "more.parquet")
    assert "(size, number differ)" in command(2, "run", done, "--run-dir", tmp_path / "run")


def test_measured_and_not_answered_yet_it_is_told_as_well_and_goes_on_when_asked_by_its_name(tmp_path):
    job = write(tmp_path)
    run = Run.create(Job.read(job), tmp_path / "run")
    for stage in ("plan", "measure"):
        run_stages(run, only=stage)
    touched(tmp_path)
    said = command(2, "run", job, "--run-dir", run.path)
    assert "measured on 20" in said
    assert f"`dpscale reconstruct {run.path}` resumes the old one" in said
    assert "from other data" in command(0, "measure", run.path)
    command(0, "reconstruct", run.path)
    command(0, "report", run.path)


def test_an_older_run_that_kept_no_layout_is_a_plain_repeat(tmp_path, done):
    path = tmp_path / "run" / "manifest.json"
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "data"}))
    touched(tmp_path)
    assert "nothing read" in command(0, "run", done, "--run-dir", tmp_path / "run")


def test_files_touched_and_not_changed_while_a_run_was_stopped_are_its_data(tmp_path, monkeypatch):
    job = write(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(measure, "publish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            dp.run(job, tmp_path / "run")
    touched(tmp_path)
    assert command(0, "run", job, "--run-dir", tmp_path / "run") == "dpscale: this run has a seed and is not private\n"
    assert "nothing read" in command(0, "run", job, "--run-dir", tmp_path / "run")


@pytest.mark.parametrize("engine", [UNSEEDED, {"scheduler": "synchronous", "seed": 5}], ids=["unseeded", "seeded"])
def test_fresh_makes_a_new_release_beside_the_old(tmp_path, monkeypatch, engine):
    monkeypatch.chdir(tmp_path)
    job = write(tmp_path, engine=engine)
    command(0, "run", job)
    [first] = (tmp_path / "runs").iterdir()
    before = {path: path.read_bytes() for path in first.rglob("*") if path.is_file()}
    touched(tmp_path)
    command(2, "run", job)
    command(0, "run", job, "--fresh")
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {first.name, f"{first.name}-2"}
    assert {path: path.read_bytes() for path in first.rglob("*") if path.is_file()} == before
    assert len(set(charged(tmp_path))) == 2
    second = Run(tmp_path / "runs" / f"{first.name}-2")
    assert not set(measurements(first).values()) & set(measurements(second.path).values())
    assert "nothing read" in command(0, "run", job), "the latest is the job's run"
    assert dp.run(job).path == second.path
    assert dp.run(job, fresh=True).path.name == f"{first.name}-3"
    assert len(charged(tmp_path)) == 3


def test_fresh_with_a_named_directory_goes_beside_it_and_the_name_stays_its_own(tmp_path):
    job, run = write(tmp_path, engine=UNSEEDED), tmp_path / "mine"
    command(0, "run", job, "--run-dir", run, "--fresh")
    assert run.exists(), "there was none before"
    command(0, "run", job, "--run-dir", run, "--fresh")
    assert len(charged(tmp_path)) == 2
    touched(tmp_path)
    assert "from other data" in command(2, "run", job, "--run-dir", run)
    (tmp_path / "mine-7").mkdir()
    command(0, "run", job, "--run-dir", run, "--fresh")
    assert (tmp_path / "mine-8" / "report.html").exists(), "no number is used twice, whatever stands there"
    assert not list((tmp_path / "mine-7").iterdir())


def test_fresh_never_spends_twice_for_a_command_that_is_repeated_after_a_stop(tmp_path, monkeypatch):
    job, run = write(tmp_path, engine=UNSEEDED), tmp_path / "run"
    dp.run(job, run)
    with monkeypatch.context() as patch:
        patch.setattr(measure, "publish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        command(75, "run", job, "--run-dir", run, "--fresh")
    assert len(charged(tmp_path)) == 2
    refused = command(2, "run", job, "--run-dir", run, "--fresh")
    assert f"{tmp_path / 'run-2'} was started and is not measured" in refused
    assert len(charged(tmp_path)) == 2
    command(0, "run", job, "--run-dir", tmp_path / "run-2")
    command(0, "run", job, "--run-dir", run, "--fresh")
    assert len(charged(tmp_path)) == 3


@pytest.mark.parametrize("stage", ["reconstruct", "synthesize", "report"])
def test_fresh_never_spends_twice_after_a_stop_in_a_later_stage(tmp_path, monkeypatch, stage):
    """The same command again, and so for ever, until what is left is done."""
    job, run = write(tmp_path, engine=UNSEEDED, synthesize={"rows": 10}), tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(f"dpscale.runs.stages.{stage}.perform", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        command(75, "run", job, "--run-dir", run, "--fresh")
    said = command(2, "run", job, "--run-dir", run, "--fresh")
    assert f"{run} was started and its stage {stage} is not finished" in said
    assert f"`dpscale end {run}`" in said
    with pytest.raises(dp.JobError, match="is not finished"):
        dp.run(job, run, fresh=True)
    assert len(charged(tmp_path)) == 1
    command(0, "run", job, "--run-dir", run)
    command(0, "run", job, "--run-dir", run, "--fresh")
    assert len(charged(tmp_path)) == 2


def test_fresh_goes_on_behind_a_run_that_was_edited_or_ended_amid_its_answers(tmp_path, done):
    for change in ("edited", "ended"):
        run = max(tmp_path.glob("run*"))
        if change == "edited":
            (run / "job.toml").write_text("")
        else:
            (run / "report.html").unlink()
            command(0, "end", run)
        command(0, "run", done, "--run-dir", tmp_path / "run", "--fresh")
    assert len(charged(tmp_path)) == 3


def test_fresh_goes_on_behind_a_run_that_was_ended(tmp_path):
    job, run = write(tmp_path, engine=UNSEEDED), tmp_path / "run"
    command(0, "plan", job, "--run-dir", run)
    assert "was started and is not measured" in command(2, "run", job, "--run-dir", run, "--fresh")
    command(0, "end", run)
    command(0, "run", job, "--run-dir", run, "--fresh")
    assert (tmp_path / "run-2" / "report.html").exists()


def test_another_jobs_directory_is_not_this_ones(tmp_path, done):
    other = write(tmp_path, "other.toml", engine=UNSEEDED, workload=[{"family": "prefix", "degree": 1}])
    assert "contains another job" in command(2, "run", other, "--run-dir", tmp_path / "run", "--fresh")


def test_with_json_the_repeat_is_in_the_object(tmp_path, done):
    result = CliRunner().invoke(main, ["run", str(done), "--run-dir", str(tmp_path / "run"), "--json"])
    assert "nothing spent" in json.loads(result.stdout)["repeated"]
    assert result.stderr == ""
