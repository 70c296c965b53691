"""Where a run directory may be, who makes it, and what is told of it when the disk or a file in it is not as it should
be: one sentence and an exit code."""

import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys

import pytest
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from dpscale.cli import driver, driver_status
from dpscale.job import Job
from dpscale.runs import create
from dpscale.runs.manifest import disk_errors
from dpscale.runs.run import Run
from dpscale.storage import lock
from tests.cluster.waiting import eventually
from tests.runs.disks import filled, needs_mounts, read_only, small_disk
from tests.runs.small import job as content, table, write_job, write_table


def told(code, *arguments):
    """What a command says; it ends with this code, and one sentence where that is not 0."""
    result = CliRunner().invoke(main, [str(a) for a in arguments])
    assert result.exit_code == code, (result.output, result.exception)
    assert code == 0 or (result.stderr.startswith("dpscale: ") and result.stderr.count("\n") == 1), result.stderr
    return result.stderr if code else result.stdout


def submitted(run):
    driver_status.change(run, lambda _: True, submission="s", driver=None, state="submitted")


# ---- disks -----------------------------------------------------------------------------------------------------------


@needs_mounts
def test_a_full_disk_can_be_tried_again(place):
    path = write_job(place)
    with small_disk(place / "disk", "1m") as disk:
        (disk / "empty").mkdir()
        submitted(Run.create(Job.read(path), disk / "begun").path)
        with filled(disk):
            for arguments in (
                ["cancel", disk / "begun"],
                *(["run", path, "--run-dir", disk / n] for n in ("x", "empty")),
            ):
                assert "No space left on device" in told(75, *arguments)
        assert {one.name for one in disk.iterdir()} == {"begun", "empty"}
        for name in ("x", "empty"):
            told(0, "plan", path, "--run-dir", disk / name)
        told(0, "cancel", disk / "begun")
        assert driver_status.read(disk / "begun")["error"] == str(driver._cancelled())


@needs_mounts
def test_a_read_only_disk_is_told_and_can_be_read(place):
    path = write_job(place)
    with small_disk(place / "disk", "1m") as disk:
        (disk / "empty").mkdir()
        told(0, "plan", path, "--run-dir", disk / "run")
        submitted(disk / "run")
        with read_only(disk):
            told_of = [["run", path, "--run-dir", disk / name] for name in ("run", "new", "empty")]
            for arguments in (*told_of, ["measure", disk / "run"], ["cancel", disk / "run"]):
                assert "Read-only file system" in told(2, *arguments)
            assert "done" in told(0, "status", disk / "run")


def test_rights_are_told_of_the_run_directory_alone(tmp_path):
    """Data and sockets may be denied as well, and to fix the run directory's rights would not help."""
    for name in (tmp_path, tmp_path / "x" / ".lock"):
        with pytest.raises(dp.JobError, match=r"cannot work in .* \(Permission denied\)"), disk_errors(tmp_path):
            raise PermissionError(errno.EACCES, "Permission denied", str(name))
    for name in (None, "/elsewhere", f"{tmp_path}2"):
        with pytest.raises(PermissionError), disk_errors(tmp_path):
            raise PermissionError(errno.EACCES, "Permission denied", name)


@needs_mounts
def test_a_mount_point_is_a_directory(place):
    path = write_job(place)
    with small_disk(place / "disk", "20m") as disk:
        (disk / "lost+found").mkdir()
        told(0, "run", path, "--run-dir", disk)
        assert "reconstruct: done" in told(0, "status", disk)
        assert os.path.ismount(disk)


@pytest.mark.parametrize("there", [True, False])
def test_a_link_leads_to_its_directory(place, there):
    path, target, link = write_job(place), place / "target", place / "link"
    if there:
        target.mkdir()
    link.symlink_to("target")
    told(0, "run", path, "--run-dir", link)
    assert link.is_symlink()
    assert "report: done" in told(0, "status", target)
    told(0, "run", path, "--run-dir", link)


@pytest.mark.parametrize("letters", [218, 255])
def test_a_name_as_long_as_names_may_be(place, letters):
    told(0, "plan", write_job(place), "--run-dir", place / ("a" * letters))


def test_a_name_that_is_too_long(place):
    long = place / ("a" * 256)
    for arguments in (["run", write_job(place), "--run-dir", long], ["status", long], ["measure", long]):
        assert "File name too long" in told(2, *arguments)


# ---- what is there ---------------------------------------------------------------------------------------------------


def test_an_empty_directory_keeps_its_rights(place):
    (place / "run").mkdir()
    (place / "run").chmod(0o2770)
    before = (place / "run").stat()
    Run.create(Job.read(write_job(place)), place / "run")
    after = (place / "run").stat()
    assert (after.st_mode, after.st_ino) == (before.st_mode, before.st_ino)


def test_what_a_killed_maker_left_is_taken_up(place, monkeypatch):
    job, run = Job.read(write_job(place)), place / "run"
    run.mkdir()

    def killed(*_):
        (run / ".manifest.json.0123.partial").write_bytes(b"{")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(create, "create", killed)
        with pytest.raises(KeyboardInterrupt):
            Run.create(job, run)
    assert {"job.toml", "domain.toml"} < {one.name for one in run.iterdir()}
    assert Run.create(job, run).manifest["stages"] == {}


def test_a_users_own_job_file_is_not_written_over(tmp_path):
    write_table(tmp_path / "data", table())
    (folder := tmp_path / "jobs").mkdir()
    path = write_job(folder, data=content()["data"] | {"path": "../data"})
    before = path.read_bytes()
    assert "exists and is not a run directory" in told(2, "run", path, "--run-dir", folder)
    assert path.read_bytes() == before


@pytest.mark.parametrize("step", ["listdir", "rename"])
def test_who_comes_second_finds_the_run_of_the_first(place, monkeypatch, step):
    """The first makes it between what the second asked and what it does then."""
    job, run, real = Job.read(write_job(place)), place / "run", getattr(os, step)
    if step == "listdir":
        run.mkdir()

    def interleaved(*arguments):
        if arguments[-1] != run:
            return real(*arguments)
        monkeypatch.setattr(os, step, real)
        Run.create(job, run)
        return real(*arguments)

    monkeypatch.setattr(os, step, interleaved)
    second = Run.create(job, run)
    assert getattr(os, step) is real
    assert second.manifest == Run(run).manifest
    assert {one.name for one in run.iterdir()} == {"job.toml", "domain.toml", "manifest.json"}
    assert not list(place.glob(".*.new"))


def test_of_several_processes_one_makes_the_run_in_an_empty_directory(place):
    (run := place / "run").mkdir()
    path = write_job(place)
    code = "import sys; from dpscale import job; from dpscale.runs import run; "
    code += "print(run.Run.create(job.Job.read(sys.argv[1]), sys.argv[2]).manifest['release'])"
    command = [sys.executable, "-c", code, str(path), str(run)]
    makers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    assert {maker.communicate()[0].strip() for maker in makers} == {Run(run).manifest["release"]}


def test_a_model_of_another_release_is_not_answered_from(tmp_path):
    write_table(tmp_path / "data", table(4000))
    path = write_job(tmp_path, reconstruct={"method": "maxent"})
    old = dp.run(path, tmp_path / "old")
    shutil.rmtree(tmp_path / "data")
    write_table(tmp_path / "data", table(400))
    told(0, "plan", path, "--run-dir", tmp_path / "new")
    shutil.copytree(old.path / "model", tmp_path / "new" / "model")
    new = dp.run(path, tmp_path / "new")
    assert old.marginal(("sex",)).sum() == pytest.approx(4000, abs=200)
    assert new.marginal(("sex",)).sum() == pytest.approx(400, abs=200)


# ---- damaged files ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def measurement_plan(tmp_path_factory):
    """The folder of a planned run that says that it was submitted."""
    folder = tmp_path_factory.mktemp("planned")
    write_table(folder / "data", table())
    told(0, "plan", write_job(folder), "--run-dir", folder / "run")
    return folder


@pytest.fixture
def damaged(measurement_plan):
    """A copy of it."""
    shutil.rmtree(measurement_plan / "copy", ignore_errors=True)
    shutil.copytree(measurement_plan / "run", measurement_plan / "copy")
    submitted(measurement_plan / "copy")
    return measurement_plan / "copy"


WHOLE = {"release": "r", "private": True, "job_sha256": "x", "stages": {}, "snapshot": None, "secret": None,
         "privacy": None}  # fmt: skip
EDITS = [{"release": None}, {"stages": {"plan": "done"}}, {"stages": {"plan": {}}}]
MANIFESTS = ["", "{}", "[]", "null", '{"stages":{}}', "\x00\x00", *(json.dumps(WHOLE | edit) for edit in EDITS)]


@pytest.mark.parametrize("text", [*MANIFESTS, json.dumps({k: v for k, v in WHOLE.items() if k != "secret"})])
def test_a_damaged_manifest(damaged, text):
    (damaged / "manifest.json").write_text(text)
    commands = [[name, damaged] for name in ("status", "wait", "cancel", "measure")]
    for arguments in (*commands, ["run", damaged.parent / "job.toml", "--run-dir", damaged]):
        assert "manifest.json" in (said := told(2, *arguments))
        assert "is damaged" in said


SIGNS = {"submission": "s", "driver": None, "state": "running", "at": 0.0}


@pytest.mark.parametrize(
    "text",
    ["", "{}", "5", "[1]", "null", '{"state":"running"}', '{"state":"done"}', '{"state":"done","at":1}']
    + [json.dumps(SIGNS | changed) for changed in ({"at": "now"}, {"state": "done"}, {"state": []}, {"working": {}})],
)
def test_damaged_signs(damaged, text):
    (damaged / "driver.json").write_text(text)
    for arguments in (["status", damaged], ["wait", damaged, "--seconds", 1], ["cancel", damaged]):
        assert "driver.json" in (said := told(2, *arguments))
        assert "is damaged" in said
    (damaged / "driver.json").unlink()
    assert "plan: done" in told(0, "status", damaged)


def test_damaged_signs_do_not_end_a_driver_at_work(damaged, monkeypatch):
    monkeypatch.setattr(driver_status, "BEAT_SECONDS", 0.02)
    driver_status.change(damaged, lambda _: True, driver="d", state="running")
    (damaged / "driver.json").write_text("[1]")
    (damaged / driver.STOP).write_text("s")
    beats, change = [], driver_status.change
    monkeypatch.setattr(driver_status, "change", lambda *given, **changes: beats.append(1) or change(*given, **changes))
    with driver.Heartbeat(damaged, "d") as heartbeat:
        assert eventually(lambda: len(beats) >= 3 or not heartbeat._thread.is_alive())
        heartbeat("count", 1, 2)
        assert heartbeat._thread.is_alive()
    assert driver._end(damaged, lambda _: True, None) == 0


# ---- file systems without locks --------------------------------------------------------------------------------------


@pytest.fixture(params=[errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK])
def lockless(request, monkeypatch):
    """As of Lustre without -o flock, which no test can mount."""

    def flock(*_):
        raise OSError(request.param, os.strerror(request.param))

    monkeypatch.setattr(fcntl, "flock", flock)


def test_without_locks_a_run_goes_on_and_nobody_is_said_to_be_gone(place, lockless):
    path = write_job(place)
    told(0, "run", path, "--run-dir", place / "run")
    run = Run(place / "run")
    with run.locked(), run.locked():
        assert not lock.free(run.path)
    run._mark("report", state="running")
    assert "report: running" in told(0, "status", run.path)
    submitted(run.path)
    told(0, "cancel", run.path)
    assert driver_status.read(run.path)["state"] == "cancelled"


def test_a_lock_that_fails_is_not_taken_for_one_that_is_taken(place, monkeypatch):
    run = Run.create(Job.read(write_job(place)), place / "run")
    with run.locked():
        assert "another process works in" in told(75, "measure", run.path)

    def flock(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(fcntl, "flock", flock)
    assert "Input/output error" in told(75, "measure", run.path)
