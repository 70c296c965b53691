"""Location and creation of run directories; full or read-only disks, damaged files and missing locks give one-line
errors with exit codes.
"""

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
from dpscale.cli import driver
from dpscale.job import Job
from dpscale.runs import opening
from dpscale.runs.manifest import disk_errors
from dpscale.runs.opening import open_part, open_run
from dpscale.storage import lock
from tests.cluster.waiting import eventually
from tests.messages import refused
from tests.running import begin_table
from tests.runs.disks import fill_disk, mount_read_only, needs_mounts, small_disk
from tests.runs.small import job as content, table, write_job, write_table


def run_command(code, *arguments):
    """Run a command, check its exit code and return stderr (one line) on failure, stdout on success."""
    result = CliRunner().invoke(main, [str(a) for a in arguments])
    assert result.exit_code == code, (result.output, result.exception)
    assert code == 0 or (result.stderr.startswith("dpscale: ") and result.stderr.count("\n") == 1), result.stderr
    return result.stderr if code else result.stdout


def mark_submitted(run):
    driver.change(run, lambda _: True, submission="s", driver=None, state="submitted")


# ---- disks -----------------------------------------------------------------------------------------------------------


@needs_mounts
def test_run_on_full_disk_can_be_retried(place):
    path = write_job(place)
    with small_disk(place / "disk", "1m") as disk:
        (disk / "empty").mkdir()
        mark_submitted(begin_table(Job.read(path), disk / "begun").path)
        with fill_disk(disk):
            for arguments in (
                ["job", "cancel", disk / "begun"],
                *(["run", path, "--run-dir", disk / n] for n in ("x", "empty")),
            ):
                assert "No space left on device" in run_command(75, *arguments)
        assert {one.name for one in disk.iterdir()} == {"begun", "empty"}
        for name in ("x", "empty"):
            run_command(0, "plan", path, "--run-dir", disk / name)
        run_command(0, "job", "cancel", disk / "begun")
        assert driver.read(disk / "begun")["error"] == str(driver._cancelled())


@needs_mounts
def test_read_only_disk_is_reported_and_readable(place):
    path = write_job(place)
    with small_disk(place / "disk", "1m") as disk:
        (disk / "empty").mkdir()
        run_command(0, "plan", path, "--run-dir", disk / "run")
        mark_submitted(disk / "run")
        with mount_read_only(disk):
            commands = [["run", path, "--run-dir", disk / name] for name in ("run", "new", "empty")]
            for arguments in (*commands, ["run", disk / "run", "--only", "measure"], ["job", "cancel", disk / "run"]):
                assert "Read-only file system" in run_command(2, *arguments)
            assert "done" in run_command(0, "job", "status", disk / "run")


def test_permission_errors_are_attributed_to_run_directory_only(tmp_path):
    """Denied access to data or sockets is not reported as a problem of the run directory."""
    for name in (tmp_path, tmp_path / "x" / ".lock"):
        with refused(dp.JobError), disk_errors(tmp_path):
            raise PermissionError(errno.EACCES, "Permission denied", str(name))
    for name in (None, "/elsewhere", f"{tmp_path}2"):
        with pytest.raises(PermissionError), disk_errors(tmp_path):
            raise PermissionError(errno.EACCES, "Permission denied", name)


@needs_mounts
def test_mount_point_can_be_run_directory(place):
    path = write_job(place)
    with small_disk(place / "disk", "20m") as disk:
        (disk / "lost+found").mkdir()
        run_command(0, "run", path, "--run-dir", disk)
        assert "reconstruct: done" in run_command(0, "job", "status", disk)
        assert os.path.ismount(disk)


@pytest.mark.parametrize("there", [True, False])
def test_symlink_can_be_run_directory(place, there):
    path, target, link = write_job(place), place / "target", place / "link"
    if there:
        target.mkdir()
    link.symlink_to("target")
    run_command(0, "run", path, "--run-dir", link)
    assert link.is_symlink()
    assert "report: done" in run_command(0, "job", "status", target)
    run_command(0, "run", path, "--run-dir", link)


@pytest.mark.parametrize("letters", [218, 255])
def test_run_directory_with_longest_name(place, letters):
    run_command(0, "plan", write_job(place), "--run-dir", place / ("a" * letters))


def test_too_long_name_is_refused(place):
    long = place / ("a" * 256)
    for arguments in (
        ["run", write_job(place), "--run-dir", long],
        ["job", "status", long],
        ["run", long, "--only", "measure"],
    ):
        assert "File name too long" in run_command(2, *arguments)


# ---- what is there ---------------------------------------------------------------------------------------------------


def test_empty_directory_keeps_its_mode(place):
    (place / "run").mkdir()
    (place / "run").chmod(0o2770)
    before = (place / "run").stat()
    begin_table(Job.read(write_job(place)), place / "run")
    after = (place / "run").stat()
    assert (after.st_mode, after.st_ino) == (before.st_mode, before.st_ino)


def test_creation_resumes_after_kill(place, monkeypatch):
    job, run = Job.read(write_job(place)), place / "run"
    run.mkdir()

    def kill_creation(*_):
        (run / ".manifest.json.0123.partial").write_bytes(b"{")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(opening, "create", kill_creation)
        with pytest.raises(KeyboardInterrupt):
            begin_table(job, run)
    assert {"job.toml", "domain.toml"} < {one.name for one in run.iterdir()}
    assert begin_table(job, run).manifest["stages"] == {}


def test_user_job_file_is_not_overwritten(tmp_path):
    write_table(tmp_path / "data", table())
    (folder := tmp_path / "jobs").mkdir()
    path = write_job(folder, data=content()["data"] | {"path": "../data"})
    before = path.read_bytes()
    assert "exists and is not a run directory" in run_command(2, "run", path, "--run-dir", folder)
    assert path.read_bytes() == before


@pytest.mark.parametrize("step", ["listdir", "rename"])
def test_concurrent_creation_finds_existing_run(place, monkeypatch, step):
    """The first process creates the run between the check and the action of the second."""
    job, run, real = Job.read(write_job(place)), place / "run", getattr(os, step)
    if step == "listdir":
        run.mkdir()

    def interleave(*arguments):
        if arguments[-1] != run:
            return real(*arguments)
        monkeypatch.setattr(os, step, real)
        begin_table(job, run)
        return real(*arguments)

    monkeypatch.setattr(os, step, interleave)
    second = begin_table(job, run)
    assert getattr(os, step) is real
    assert second.manifest == open_part(run).manifest
    assert {one.name for one in run.iterdir()} == {"job.toml", "domain.toml", "manifest.json"}
    assert not list(place.glob(".*.new"))


def test_draft_of_killed_process_is_removed_by_next_creation(place, monkeypatch):
    """Drafts of other run directories remain; their process may be alive."""
    job, run = Job.read(write_job(place)), place / "run"
    with monkeypatch.context() as patch:
        patch.setattr(opening.os, "rename", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        patch.setattr(opening.shutil, "rmtree", lambda *_, **__: None)
        for name in ("run", "other"):
            with pytest.raises(KeyboardInterrupt):
                begin_table(job, place / name)
    assert len(list(place.glob(".*.new"))) == 2
    begin_table(job, run)
    assert len(list(place.glob(".*.new"))) == 1
    begin_table(job, place / "other")
    assert not list(place.glob(".*.new"))


def test_several_processes_create_one_run_in_empty_directory(place):
    (run := place / "run").mkdir()
    path = write_job(place)
    code = "import sys; from dpscale import job; from tests import running; "
    code += "print(running.begin_table(job.Job.read(sys.argv[1]), sys.argv[2]).manifest['release'])"
    command = [sys.executable, "-c", code, str(path), str(run)]
    makers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    assert {maker.communicate()[0].strip() for maker in makers} == {open_part(run).manifest["release"]}


def test_model_of_other_release_is_not_used(tmp_path):
    write_table(tmp_path / "data", table(4000))
    path = write_job(tmp_path, reconstruct={"method": "maxent"})
    old = dp.run(path, tmp_path / "old")
    shutil.rmtree(tmp_path / "data")
    write_table(tmp_path / "data", table(400))
    run_command(0, "plan", path, "--run-dir", tmp_path / "new", "--fresh")
    shutil.copytree(old.path / "model", tmp_path / "new" / "model")
    new = dp.run(path, tmp_path / "new")
    assert old.marginal(("sex",)).sum() == pytest.approx(4000, abs=200)
    assert new.marginal(("sex",)).sum() == pytest.approx(400, abs=200)


# ---- damaged files ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def planned_folder(tmp_path_factory):
    """Directory with a planned run that is marked as submitted."""
    folder = tmp_path_factory.mktemp("planned")
    write_table(folder / "data", table())
    run_command(0, "plan", write_job(folder), "--run-dir", folder / "run")
    return folder


@pytest.fixture
def damaged_run(planned_folder):
    """A copy of the planned run."""
    shutil.rmtree(planned_folder / "copy", ignore_errors=True)
    shutil.copytree(planned_folder / "run", planned_folder / "copy")
    mark_submitted(planned_folder / "copy")
    return planned_folder / "copy"


WHOLE = {"release": "r", "private": True, "job_sha256": "x", "stages": {}, "snapshot": None, "secret": None,
         "privacy": None}  # fmt: skip
EDITS = [{"release": None}, {"stages": {"plan": "done"}}, {"stages": {"plan": {}}}]
MANIFESTS = ["", "{}", "[]", "null", '{"stages":{}}', "\x00\x00", *(json.dumps(WHOLE | edit) for edit in EDITS)]


@pytest.mark.parametrize("text", [*MANIFESTS, json.dumps({k: v for k, v in WHOLE.items() if k != "secret"})])
def test_damaged_manifest_is_refused(damaged_run, text):
    (damaged_run / "manifest.json").write_text(text)
    commands = [["job", name, damaged_run] for name in ("status", "wait", "cancel")]
    commands.append(["run", damaged_run, "--only", "measure"])
    for arguments in (*commands, ["run", damaged_run.parent / "job.toml", "--run-dir", damaged_run]):
        assert "manifest.json" in (message := run_command(2, *arguments))
        assert "is damaged" in message


SIGNS = {"submission": "s", "driver": None, "state": "running", "at": 0.0}


@pytest.mark.parametrize(
    "text",
    ["", "{}", "5", "[1]", "null", '{"state":"running"}', '{"state":"done"}', '{"state":"done","at":1}']
    + [json.dumps(SIGNS | changed) for changed in ({"at": "now"}, {"state": "done"}, {"state": []}, {"working": {}})],
)
def test_damaged_driver_file_is_refused(damaged_run, text):
    (damaged_run / "driver.json").write_text(text)
    for arguments in (
        ["job", "status", damaged_run],
        ["job", "wait", damaged_run, "--seconds", 1],
        ["job", "cancel", damaged_run],
    ):
        assert "driver.json" in (message := run_command(2, *arguments))
        assert "is damaged" in message
    (damaged_run / "driver.json").unlink()
    assert "plan: done" in run_command(0, "job", "status", damaged_run)


def test_damaged_driver_file_does_not_stop_heartbeat(damaged_run, monkeypatch):
    monkeypatch.setattr(driver, "BEAT_SECONDS", 0.02)
    driver.change(damaged_run, lambda _: True, driver="d", state="running")
    (damaged_run / "driver.json").write_text("[1]")
    (damaged_run / driver.STOP).write_text("s")
    beats, change = [], driver.change
    monkeypatch.setattr(driver, "change", lambda *given, **changes: beats.append(1) or change(*given, **changes))
    with driver.Heartbeat(damaged_run, "d") as heartbeat:
        assert eventually(lambda: len(beats) >= 3 or not heartbeat._thread.is_alive())
        heartbeat("count", 1, 2)
        assert heartbeat._thread.is_alive()
    assert driver._end(damaged_run, lambda _: True, None) == 0


# ---- file systems without locks --------------------------------------------------------------------------------------


@pytest.fixture(params=[errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK])
def no_locks(request, monkeypatch):
    """File locks that fail, as on Lustre without -o flock, which a test cannot mount."""

    def flock(*_):
        raise OSError(request.param, os.strerror(request.param))

    monkeypatch.setattr(fcntl, "flock", flock)


def test_run_without_locks_finishes_and_is_not_reported_as_stopped(place, no_locks):
    path = write_job(place)
    run_command(0, "run", path, "--run-dir", place / "run")
    run = open_run(place / "run")
    with run.locked(), run.locked():
        assert not lock.free(run.path)
    run._mark("report", state="running")
    assert "report: running" in run_command(0, "job", "status", run.path)
    mark_submitted(run.path)
    run_command(0, "job", "cancel", run.path)
    assert driver.read(run.path)["state"] == "cancelled"


def test_failing_lock_differs_from_taken_lock(place, monkeypatch):
    run = begin_table(Job.read(write_job(place)), place / "run")
    with run.run.locked():
        assert "another process works in" in run_command(75, "run", run.path, "--only", "measure")

    def flock(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(fcntl, "flock", flock)
    assert "Input/output error" in run_command(75, "run", run.path, "--only", "measure")
