"""Repeated jobs: a plain repeat reads and spends nothing, changed data are refused with the difference, `--fresh`
starts a new release.
"""

import json
import os
import shutil

import pandas as pd
import pytest
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from dpscale.job import Job
from dpscale.ledger import Ledger
from dpscale.runs import runner
from dpscale.runs.opening import open_part
from tests.audit.small import answers, measurements, write
from tests.messages import refused
from tests.running import begin_table, run_stages

UNSEEDED = {"scheduler": "synchronous"}


def run_command(code, *arguments):
    result = CliRunner().invoke(main, [*map(str, arguments)])
    assert result.exit_code == code, (result.output, result.exception)
    assert code == 0 or (result.stderr.startswith("dpscale: ") and result.stderr.count("\n") == 1), result.stderr
    return result.stderr


def charged_releases(place):
    with Ledger.open(place / "ledger.sqlite") as ledger:
        return [row["release"] for row in ledger.summary("small")["datasets"]["small"]["releases"]]


@pytest.fixture
def finished_job(tmp_path):
    job = write(tmp_path, engine=UNSEEDED)
    dp.run(job, tmp_path / "run")
    return job


def append_byte(place):
    path = next((place / "data").iterdir())
    status = path.stat()
    path.write_bytes(path.read_bytes() + b"\0")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def change_time(place):
    path = max((place / "data").iterdir(), key=lambda one: one.stat().st_mtime_ns)
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))


def change_row(place):
    """Change one row; the size of the file may stay."""
    path = max((place / "data").iterdir(), key=lambda one: one.stat().st_mtime_ns)
    content = pd.read_parquet(path)
    content.iloc[0, 0] = 1 - min(content.iloc[0, 0], 1)
    content.to_parquet(path, index=False)
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))


def join_files(place):
    """Join two files into one, with the same total size and latest time."""
    one, other = sorted((place / "data").iterdir())
    latest = max(one.stat().st_mtime_ns, other.stat().st_mtime_ns)
    one.write_bytes(one.read_bytes() + other.read_bytes())
    other.unlink()
    os.utime(one, ns=(latest, latest))


def overwrite_content(place):
    """Replace the content of each file at the same size and time, which is not detected without opening the files."""
    for path in (place / "data").iterdir():
        status = path.stat()
        path.write_bytes(bytes(status.st_size))
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def move_data(place):
    (place / "data").rename(place / "away")


def delete_files(place):
    for path in (place / "data").iterdir():
        path.unlink()


def leave_unchanged(place):
    """Change nothing."""


@pytest.mark.parametrize("change", [leave_unchanged, overwrite_content, move_data, delete_files])
def test_plain_repeat_reads_and_spends_nothing(tmp_path, finished_job, change):
    change(tmp_path)
    before = measurements(tmp_path / "run"), answers(tmp_path / "run"), charged_releases(tmp_path)
    when = open_part(tmp_path / "run").manifest["stages"]["measure"]["end"][:10]
    message = run_command(0, "run", finished_job, "--run-dir", tmp_path / "run")
    assert message == f"dpscale: done on {when}, nothing read, nothing spent\n"
    assert (measurements(tmp_path / "run"), answers(tmp_path / "run"), charged_releases(tmp_path)) == before


@pytest.mark.parametrize(("change", "what"), [
    (append_byte, "1 of 2 files changed: 1.parquet"),
    (change_row, "1 of 2 files changed: 1.parquet"),
    (join_files, "1 of 2 files changed, 1 of 2 files missing: 0.parquet"),
])  # fmt: skip
def test_changed_data_are_refused_with_difference(tmp_path, finished_job, change, what):
    change(tmp_path)
    before = measurements(tmp_path / "run"), answers(tmp_path / "run"), charged_releases(tmp_path)
    message = run_command(2, "run", finished_job, "--run-dir", tmp_path / "run")
    assert "done on 20" in message
    assert f"from other data ({what}); nothing spent" in message
    assert message.endswith("--fresh starts a new release; more: docs/reference/job-file.md, data.path\n")
    with refused(dp.DataError):
        dp.run(finished_job, tmp_path / "run")
    assert (measurements(tmp_path / "run"), answers(tmp_path / "run"), charged_releases(tmp_path)) == before


def test_changed_times_are_no_change(tmp_path, finished_job):
    change_time(tmp_path)
    message = run_command(0, "run", finished_job, "--run-dir", tmp_path / "run")
    assert message.endswith("the files have the same content, nothing spent\n")
    assert len(charged_releases(tmp_path)) == 1


def test_added_file_is_counted(tmp_path, finished_job):
    path = next((tmp_path / "data").iterdir())
    shutil.copy2(path, tmp_path / "data" / "more.parquet")
    assert "(1 more than the 2 files: more.parquet)" in run_command(
        2, "run", finished_job, "--run-dir", tmp_path / "run"
    )


def test_measured_run_refuses_changed_data_and_resumes_by_name(tmp_path):
    job = write(tmp_path)
    run = begin_table(Job.read(job), tmp_path / "run")
    for stage in ("plan", "measure"):
        run_stages(run, only=stage)
    change_row(tmp_path)
    message = run_command(2, "run", job, "--run-dir", run.path)
    assert "measured on 20" in message
    assert f"`dpscale run {run.path} --only reconstruct` resumes the old one" in message
    assert "from other data" in run_command(0, "run", run.path, "--only", "measure")
    run_command(0, "run", run.path, "--only", "reconstruct")
    run_command(0, "run", run.path, "--only", "report")


def test_older_run_without_data_layout_is_plain_repeat(tmp_path, finished_job):
    path = tmp_path / "run" / "manifest.json"
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "data"}))
    change_time(tmp_path)
    assert "nothing read" in run_command(0, "run", finished_job, "--run-dir", tmp_path / "run")


def test_changed_file_times_do_not_stop_resume(tmp_path, monkeypatch):
    job = write(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(runner, "publish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            dp.run(job, tmp_path / "run")
    change_time(tmp_path)
    assert (
        run_command(0, "run", job, "--run-dir", tmp_path / "run") == "dpscale: this run has a seed and is not private\n"
    )
    assert "nothing read" in run_command(0, "run", job, "--run-dir", tmp_path / "run")


@pytest.mark.parametrize("engine", [UNSEEDED, {"scheduler": "synchronous", "seed": 5}], ids=["unseeded", "seeded"])
def test_fresh_creates_new_release(tmp_path, monkeypatch, engine):
    monkeypatch.chdir(tmp_path)
    job = write(tmp_path, engine=engine)
    run_command(0, "run", job)
    [first] = (tmp_path / "runs").iterdir()
    before = {path: path.read_bytes() for path in first.rglob("*") if path.is_file()}
    change_row(tmp_path)
    run_command(2, "run", job)
    run_command(0, "run", job, "--fresh")
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {first.name, f"{first.name}-2"}
    assert {path: path.read_bytes() for path in first.rglob("*") if path.is_file()} == before
    assert len(set(charged_releases(tmp_path))) == 2
    second = open_part(tmp_path / "runs" / f"{first.name}-2")
    assert not set(measurements(first).values()) & set(measurements(second.path).values())
    assert "nothing read" in run_command(0, "run", job), "the latest is the job's run"
    assert dp.run(job).path == second.path
    assert dp.run(job, fresh=True).path.name == f"{first.name}-3"
    assert len(charged_releases(tmp_path)) == 3


def test_fresh_with_run_dir_appends_number(tmp_path):
    job, run = write(tmp_path, engine=UNSEEDED), tmp_path / "mine"
    run_command(0, "run", job, "--run-dir", run, "--fresh")
    assert run.exists(), "there was none before"
    run_command(0, "run", job, "--run-dir", run, "--fresh")
    assert len(charged_releases(tmp_path)) == 2
    change_row(tmp_path)
    assert "from other data" in run_command(2, "run", job, "--run-dir", run)
    (tmp_path / "mine-7").mkdir()
    run_command(0, "run", job, "--run-dir", run, "--fresh")
    assert (tmp_path / "mine-8" / "report.html").exists(), "no number is used twice, whatever stands there"
    assert not list((tmp_path / "mine-7").iterdir())


def test_repeated_fresh_after_stop_does_not_charge_twice(tmp_path, monkeypatch):
    job, run = write(tmp_path, engine=UNSEEDED), tmp_path / "run"
    dp.run(job, run)
    with monkeypatch.context() as patch:
        patch.setattr(runner, "publish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        run_command(75, "run", job, "--run-dir", run, "--fresh")
    assert len(charged_releases(tmp_path)) == 2
    refused = run_command(2, "run", job, "--run-dir", run, "--fresh")
    assert f"{tmp_path / 'run-2'} was started and is not measured" in refused
    assert len(charged_releases(tmp_path)) == 2
    run_command(0, "run", job, "--run-dir", tmp_path / "run-2")
    run_command(0, "run", job, "--run-dir", run, "--fresh")
    assert len(charged_releases(tmp_path)) == 3


@pytest.mark.parametrize("stage", ["reconstruct", "synthesize", "report"])
def test_fresh_after_stop_in_later_stage_does_not_charge_twice(tmp_path, monkeypatch, stage):
    """The same command is refused until the unfinished run is done."""
    job, run = write(tmp_path, engine=UNSEEDED, synthesize={"rows": 10}), tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(f"dpscale.runs.stages.{stage}.perform", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        run_command(75, "run", job, "--run-dir", run, "--fresh")
    message = run_command(2, "run", job, "--run-dir", run, "--fresh")
    assert f"{run} was started and its stage {stage} is not finished" in message
    assert f"`dpscale job end {run}`" in message
    with refused(dp.JobError):
        dp.run(job, run, fresh=True)
    assert len(charged_releases(tmp_path)) == 1
    run_command(0, "run", job, "--run-dir", run)
    run_command(0, "run", job, "--run-dir", run, "--fresh")
    assert len(charged_releases(tmp_path)) == 2


def test_fresh_ignores_edited_or_ended_run(tmp_path, finished_job):
    for change in ("edited", "ended"):
        run = max(tmp_path.glob("run*"))
        if change == "edited":
            (run / "job.toml").write_text("")
        else:
            (run / "report.html").unlink()
            run_command(0, "job", "end", run)
        run_command(0, "run", finished_job, "--run-dir", tmp_path / "run", "--fresh")
    assert len(charged_releases(tmp_path)) == 3


def test_fresh_continues_after_ended_run(tmp_path):
    job, run = write(tmp_path, engine=UNSEEDED), tmp_path / "run"
    run_command(0, "plan", job, "--run-dir", run)
    assert "was started and is not measured" in run_command(2, "run", job, "--run-dir", run, "--fresh")
    run_command(0, "job", "end", run)
    run_command(0, "run", job, "--run-dir", run, "--fresh")
    assert (tmp_path / "run-2" / "report.html").exists()


def test_fresh_refuses_directory_of_other_job(tmp_path, finished_job):
    other = write(tmp_path, "other.toml", engine=UNSEEDED, workload=[{"family": "prefix", "degree": 1}])
    assert "contains another job" in run_command(2, "run", other, "--run-dir", tmp_path / "run", "--fresh")


def test_json_output_reports_repeat(tmp_path, finished_job):
    result = CliRunner().invoke(main, ["run", str(finished_job), "--run-dir", str(tmp_path / "run"), "--json"])
    assert "nothing spent" in json.loads(result.stdout)["repeated"]
    assert result.stderr == ""
