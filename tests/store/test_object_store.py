"""Run directories in an object store: an HTTP server of the S3 protocol (moto) and the driver s3fs.

The tests are skipped without these packages (the extra `store`, and moto[server]). DPSCALE_S3 names the endpoint of
another store, in which the bucket `dpscale-tests` is created.
"""

import json
import socket
import subprocess
import sys
import threading
import uuid
from typing import ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import dpscale as dp
from dpscale.audit.evidence.bundle import write_bundle
from dpscale.audit.evidence.check import check_bundle
from dpscale.cli import driver
from dpscale.job import Job
from dpscale.ledger import Ledger
from dpscale.privacy.secret import destroy_secret, make_secret, read_secret
from dpscale.runs import charge, opening as creation, runner
from dpscale.runs.opening import begin_run, open_part, open_run
from dpscale.storage import lock
from dpscale.storage.files import create, listed, place, present, read_bytes, sizes, write_whole, writing
from dpscale.storage.lock import locked
from tests.audit.small import answers, measurements, write
from tests.messages import refused
from tests.running import begin_table, end

s3fs = pytest.importorskip("s3fs")
pytest.importorskip("upath")


def download(url, folder):
    """Download a run from the store and return its directory."""
    s3fs.S3FileSystem(use_listings_cache=False).get(url.removeprefix("s3://"), str(folder), recursive=True)
    return folder


@pytest.mark.parametrize("mechanism", [pytest.param("residual-planner", marks=pytest.mark.slow), "aim-grem"])
def test_run_in_store_has_bytes_of_run_in_directory(tmp_path, prefix, mechanism):
    job = write(tmp_path, mechanism={"name": mechanism})
    here = dp.run(job, tmp_path / "here")
    (tmp_path / "ledger.sqlite").unlink()
    there = dp.run(job, prefix)
    assert there.marginal(("a", "b")).tobytes() == here.marginal(("a", "b")).tobytes()
    copy = download(prefix, tmp_path / "copy")
    assert measurements(copy) == measurements(here.path)
    assert answers(copy) == answers(here.path)
    assert "</html>" in (copy / "report.html").read_text()
    assert not (copy / "secret.key").exists()
    assert not (copy / ".lock").exists()
    log = [json.loads(line) for line in (copy / "log.jsonl").read_text().splitlines()]
    assert [row["state"] for row in log] == ["running", "done"] * 4
    assert dp.Release.open(prefix).manifest == there.manifest


def test_stopped_run_resumes_in_store(tmp_path, prefix, monkeypatch):
    job = write(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(runner, "publish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            dp.run(job, prefix)
    assert place(prefix + "/secret.key").exists()
    release = dp.run(job, prefix)
    assert release.manifest["secret"] == "destroyed"
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        [row] = ledger.summary("small")["datasets"]["small"]["releases"]
    assert row["state"] == "released"


def test_run_in_store_is_ended(tmp_path, prefix, monkeypatch):
    job = write(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(charge, "charge", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            dp.run(job, prefix)
    run = open_run(prefix)
    with run.locked(), refused(dp.TransientError):
        end(run)
    assert present(run.secret_path)
    assert (end(run)["how"], end(run)["charged"]) == ("abandoned", None)
    assert not present(run.secret_path)
    with refused(dp.JobError):
        dp.run(job, prefix)


def test_evidence_of_run_in_store(tmp_path, prefix):
    release = dp.run(write(tmp_path, engine={"scheduler": "synchronous"}), prefix)
    for _ in range(2):
        write_bundle(open_run(release.path), [{"name": "one", "passed": True, "detail": ""}])
    folder = download(f"{prefix}/evidence", tmp_path / "bundle")
    assert check_bundle(folder)["draws"] == 7  # residuals of all subsets of pairs of three attributes
    assert "s3://" not in "".join(path.read_text() for path in folder.iterdir())
    assert "measurements/" in (folder / "run-files.json").read_text()


def test_lock_excludes_other_processes_and_expires(tmp_path, prefix, monkeypatch):
    run = begin_run(Job.read(write(tmp_path)), prefix)
    with run.locked():
        with refused(dp.TransientError), run.locked():
            pass
        assert not lock.free(run.path)
        monkeypatch.setattr(lock, "STALE_SECONDS", -1.0)
        assert lock.free(run.path)
        with run.locked():  # as if the first had died a minute ago
            pass
        monkeypatch.setattr(lock, "STALE_SECONDS", 60.0)
    assert not (run.path / ".lock").exists()


def test_lost_lock_is_left_to_its_new_owner(tmp_path, prefix, monkeypatch):
    """A process that was suspended neither renews nor removes the lock of its successor."""
    monkeypatch.setattr(lock, "BEAT_SECONDS", 0.05)
    run = begin_run(Job.read(write(tmp_path)), prefix)
    with run.locked():
        (run.path / ".lock").write_bytes(other := lock._sign("another"))
        [beat] = [thread for thread in threading.enumerate() if "_beat" in thread.name]
        beat.join(60)
        assert not beat.is_alive()
        assert (run.path / ".lock").read_bytes() == other
    assert (run.path / ".lock").read_bytes() == other
    with refused(dp.TransientError), run.locked():
        pass


def test_concurrent_processes_create_one_run(tmp_path, prefix):
    job = write(tmp_path, engine={"scheduler": "synchronous"})
    code = "import sys; from dpscale import job; from dpscale.runs import opening; "
    code += "opening.begin_run(job.Job.read(sys.argv[1]), sys.argv[2])"
    makers = [subprocess.Popen([sys.executable, "-c", code, str(job), prefix]) for _ in range(3)]
    assert [maker.wait() for maker in makers] == [0] * 3
    assert not create(place(prefix + "/manifest.json"), b"another")


def test_other_job_and_unknown_store_are_refused(tmp_path, prefix):
    begin_table(Job.read(write(tmp_path)), prefix)
    other = Job.read(write(tmp_path, "other.toml", workload=[{"family": "marginal", "degree": 1}]))
    with refused(dp.JobError):
        begin_table(other, prefix)
    with refused(dp.JobError):
        place("nowhere://bucket/run")


def test_missing_bucket_or_job_is_refused_without_printing_keys(tmp_path, prefix):
    """The error is not transient."""
    bucket = f"s3://no-such-bucket-{uuid.uuid4().hex}"
    with refused(dp.JobError) as caught:
        begin_table(Job.read(write(tmp_path)), f"{bucket}/run")
    assert "tests" not in str(caught.value)
    for where in (prefix, bucket):
        with refused(dp.JobError):
            Job.read(f"{where}/job.toml")
        with refused(dp.JobError):
            open_part(f"{where}/run")


def test_prefix_with_other_content_is_refused(tmp_path, prefix):
    """Refused are leftovers of an older run, directories within a run, and a bucket with runs."""
    job = Job.read(write(tmp_path))
    path = begin_table(job, prefix).path
    (path / "answers" / "index.json").write_bytes(b"[]")
    for inside in (f"{prefix}/answers", prefix.rpartition("/")[0]):
        with refused(dp.JobError):
            begin_table(job, inside)
    (path / "manifest.json").unlink()
    with refused(dp.JobError):
        begin_table(job, prefix)


def test_creation_resumes_after_kill(tmp_path, prefix):
    job = Job.read(write(tmp_path))
    first = begin_table(job, prefix)
    (first.path / ".probe-0123").write_bytes(b"first")
    (first.path / "manifest.json").unlink()
    assert begin_table(job, prefix).manifest["stages"] == {}
    (first.path / "manifest.json").unlink()
    (first.path / "job.toml").write_bytes(b"# the user's own")
    with refused(dp.JobError):
        begin_table(job, prefix)


def test_concurrent_creation_finds_existing_run(tmp_path, prefix, monkeypatch):
    job = Job.read(write(tmp_path))

    def create_before_listing(where):
        monkeypatch.setattr(creation, "listed", listed)
        begin_table(job, prefix)
        return listed(where)

    monkeypatch.setattr(creation, "listed", create_before_listing)
    assert begin_table(job, prefix).manifest == open_part(prefix).manifest


def test_failed_write_leaves_old_content(prefix):
    path = place(prefix + "/file")
    path.write_bytes(b"old")
    with pytest.raises(ZeroDivisionError), writing(path) as file:
        file.write(b"half" * (1 // 0))
    assert path.read_bytes() == b"old"


def test_http_store_without_conditional_writes_is_refused():
    """The HTTP driver of fsspec has no exclusive mode."""
    pytest.importorskip("aiohttp")
    with refused(dp.JobError):
        create(place("http://127.0.0.1:9/run"), b"x")


class UnreachableStore(MemoryFileSystem):
    """A store that sometimes does not answer, whose `exists` then returns False."""

    protocol = "faltering"
    store: ClassVar[dict] = {}
    away = False

    def info(self, path, **settings):
        if UnreachableStore.away:
            raise ConnectionError("key=AKIA")
        return super().info(path, **settings)


@pytest.mark.filterwarnings("ignore:UPath")
def test_unreachable_secret_is_not_treated_as_absent(monkeypatch):
    """Otherwise a secret would outlive its run or be considered lost."""
    fsspec.register_implementation("faltering", UnreachableStore, clobber=True)
    secret = place("faltering://bucket/secret.key")
    make_secret(secret)
    monkeypatch.setattr(UnreachableStore, "away", True)
    assert not secret.exists()
    for call in (present, destroy_secret, make_secret):
        with refused(dp.TransientError) as caught:
            call(secret)
        assert "AKIA" not in str(caught.value)
    monkeypatch.setattr(UnreachableStore, "away", False)
    assert len(read_secret(secret)) == 32
    destroy_secret(secret)
    assert not present(secret)


class UnconditionalStore(MemoryFileSystem):
    """A store whose driver ignores the condition that an object must not exist."""

    protocol = "heedless"
    store: ClassVar[dict] = {}

    def _open(self, path, mode="rb", **settings):
        return super()._open(path, mode.replace("x", "w"), **settings)


@pytest.mark.filterwarnings("ignore:UPath")
def test_store_that_ignores_conditions_is_refused(tmp_path):
    fsspec.register_implementation("heedless", UnconditionalStore, clobber=True)
    with refused(dp.JobError):
        begin_table(Job.read(write(tmp_path)), "heedless://bucket/run")
    assert not [name for name in UnconditionalStore.store if "probe" not in name]


@pytest.mark.slow
def test_lost_store_is_reported(tmp_path, prefix, monkeypatch):
    run = begin_table(Job.read(write(tmp_path)), prefix)
    driver.change(run.path, lambda found: not found, submission="s", driver="d", state="running")
    assert driver.read(run.path)["state"] == "running"
    with socket.socket() as free, monkeypatch.context() as patch:
        free.bind(("127.0.0.1", 0))
        patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free.getsockname()[1]}")
        patch.setenv("AWS_MAX_ATTEMPTS", "1")
        s3fs.S3FileSystem.clear_instance_cache()
        lost = place(prefix)
        calls = [lambda: open_part(prefix), lambda: driver.read(lost), lambda: create(lost / "x", b""),
                     lambda: read_secret(lost / "secret.key"), lambda: Job.read(f"{prefix}/job.toml"),
                     lambda: destroy_secret(lost / "secret.key"), lambda: locked(lost).__enter__()]  # fmt: skip
        for call in calls:
            with refused(dp.TransientError) as caught:
                call()
            assert "tests" not in str(caught.value).replace(prefix, "")
    s3fs.S3FileSystem.clear_instance_cache()
    assert open_part(prefix).manifest == run.manifest


@pytest.mark.slow
def test_run_in_store_is_refined(tmp_path, prefix):
    first = dp.run(write(tmp_path, privacy={"epsilon": 0.5, "delta": 1e-9, "dataset": "small"}), prefix)
    second = dp.refine(first, 0.5)
    assert str(second.path) == f"{prefix}-refined"
    ratio = first.table(["a", "b"]).std_error / second.table(["a", "b"]).std_error
    assert ratio.to_numpy() == pytest.approx(2**0.5, rel=1e-6)
    assert dp.refine(first, 0.5).manifest["release"] == second.manifest["release"]


def test_objects_of_folders_are_no_files(prefix):
    """Consoles write an empty object for a folder; the digest of an output is that of its files."""
    folder = place(f"{prefix}/run")
    write_whole(folder / "plan/x", b"hello")
    write_whole(folder / "plan2/y", b"")
    for name in ("run/", "run/plan/", "run/plan/empty/"):
        folder.fs.call_s3("put_object", Bucket=prefix.split("/")[2], Key=f"{prefix.split('/', 3)[3]}/{name}", Body=b"")
    assert sizes(folder / "plan") == {folder / "plan/x": 5}
    assert sizes(folder / "plan/x") == {folder / "plan/x": 5}
    assert set(sizes(folder)) == {folder / "plan/x", folder / "plan2/y"}
    assert [read_bytes(one) for one in sorted(sizes(folder), key=str)] == [b"hello", b""]
    with pytest.raises(FileNotFoundError):
        sizes(folder / "none")
