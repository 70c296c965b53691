"""Cluster problems are reported before any data are read, in one sentence with the fitting exit code."""

import os
import subprocess
import sys

import dask
import distributed
import pytest
import tomli_w
from click.testing import CliRunner

import dpscale as dp
from dpscale import JobError, PlanError, TransientError
from dpscale.__main__ import main
from dpscale.engine import admission, schedulers
from dpscale.engine.schedulers import resolve
from tests.audit.small import write
from tests.cluster.conftest import load_certificates_script, use_certificates
from tests.cluster.machines import free_port
from tests.messages import refused

TLS = "distributed.comm.tls"
BASE_AND_SOME = admission.BASE + 100_000_000


@pytest.fixture(autouse=True)
def short_connect_timeout(monkeypatch):
    monkeypatch.setattr(schedulers, "CONNECT_SECONDS", 1)


def assert_refused(kind, *says, **given):
    """Check that an engine is refused with a one-line error and return its text."""
    with pytest.raises(kind) as caught:
        resolve(**given).close()
    text = str(caught.value)
    assert "\n" not in text
    assert caught.value.field in ("engine.scheduler", "engine")
    assert all(part in text for part in says), text
    return text


NO_SCHEME = ["http://h:1", "h:1", ""]
NO_HOST = ["tcp://", "tcp://:8786", "tcp://a..b:1", "tcp://a b:1", "tcp://u@h:1", "tcp://h:1:1", f"tcp://{'h' * 64}:1"]
NO_PORT = ["tcp://host", "tcp://host:", "tls://h:port", "tcp://h:99999", "tcp://h:0", "tcp://h:²", "tcp://h:1/x"]
NO_IPV6 = ["tcp://[::1:18788", "tcp://::1:18788", "tcp://[::g]:18788", "tls://[]:18788"]


@pytest.mark.parametrize("address", [*NO_SCHEME, *NO_HOST, *NO_PORT, *NO_IPV6])
def test_invalid_address_is_refused(address, monkeypatch):
    monkeypatch.setattr(distributed, "Client", lambda *_, **__: pytest.fail("Dask was asked to try it"))
    assert_refused(JobError, repr(address), "threads", "tcp://HOST:PORT", scheduler=address)


@pytest.mark.parametrize("address", ["tcp://[::1]:1", "tcp://a_host.invalid:65535"])
def test_plausible_address_is_tried(address):
    assert_refused(TransientError, f"no answer from {address}", scheduler=address)


@pytest.mark.parametrize("address", ["threads", "tcp://nowhere"])
def test_submit_accepts_only_addresses(tmp_path, address):
    result = CliRunner().invoke(main, ["job", "submit", str(write(tmp_path)), "--scheduler", address,
                                       "--run-dir", str(tmp_path / "run")])  # fmt: skip
    assert result.exit_code == 2
    assert result.stderr == (f"dpscale: engine.scheduler: {address!r}; expected tcp://HOST:PORT or tls://HOST:PORT; "
                             "fix it; more: docs/reference/job-file.md, engine.scheduler\n")  # fmt: skip


def test_missing_scheduler_is_reported():
    assert_refused(TransientError, "no answer from tcp://127.0.0.1:1", "start it", scheduler="tcp://127.0.0.1:1")


def test_command_exits_with_code_of_error(tmp_path):
    job = str(write(tmp_path))
    for address, code in (("tcp://127.0.0.1:1", 75), ("tcp://nowhere", 2)):
        result = CliRunner().invoke(main, ["run", job, "--run-dir", str(tmp_path / "r"), "--scheduler", address])
        assert result.exit_code == code
        assert len(result.stderr.strip().splitlines()) == 1


def test_tcp_is_refused_if_encryption_is_required():
    with dask.config.set({"distributed.comm.require-encryption": True}):
        assert_refused(JobError, "tcp://", "requires encryption", "tls://HOST:PORT", scheduler="tcp://127.0.0.1:1")


def test_tls_without_certificates_is_refused():
    with dask.config.set({f"{TLS}.{name}": None for name in ("ca-file", "client.cert", "client.key")}):
        assert_refused(
            JobError,
            f"{TLS}.ca-file",
            f"{TLS}.client.cert",
            "cluster/README.md",
            scheduler="tls://127.0.0.1:1",
        )


@pytest.mark.parametrize("fault", ["absent", "garbled", "strangers"])
def test_unusable_certificates_are_refused(tmp_path, certificates, fault):
    load_certificates_script().make_certificates(tmp_path / "c", ["localhost"], 1)
    key = tmp_path / "c" / "client.key"
    key.unlink()
    if fault == "garbled":
        key.write_text("no key")
    elif fault == "strangers":
        key.write_bytes((certificates / "client.key").read_bytes())
    with use_certificates(tmp_path / "c"):
        says = "No such file" if fault == "absent" else "unreadable or not a matching pair"
        assert_refused(JobError, says, "cluster/README.md", scheduler="tls://127.0.0.1:1")


def test_certificates_of_other_authority_are_refused(cluster, tmp_path):
    load_certificates_script().make_certificates(tmp_path / "c", ["localhost", "127.0.0.1"], 1)
    with use_certificates(tmp_path / "c"):
        assert_refused(JobError, "do not accept each other's certificates", scheduler=cluster.scheduler_address)


def test_scheduler_rejects_client_without_its_certificate(cluster, tmp_path):
    """The scheduler requires a certificate of its authority; encryption alone is not accepted."""
    import asyncio
    import ssl

    load_certificates_script().make_certificates(tmp_path / "c", ["127.0.0.1"], 1)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    host, port = cluster.scheduler_address.removeprefix("tls://").split(":")

    async def read_greeting(own):
        if own:
            context.load_cert_chain(tmp_path / "c" / "client.pem", tmp_path / "c" / "client.key")
        reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
        try:
            return await asyncio.wait_for(reader.read(1), 10)
        except ssl.SSLError:
            return b""
        finally:
            writer.close()

    assert asyncio.run(read_greeting(False)) == b""
    assert asyncio.run(read_greeting(True)) == b""


def test_tcp_to_tls_scheduler_is_reported(cluster):
    with dask.config.set({"distributed.comm.require-encryption": False}):
        address = cluster.scheduler_address.replace("tls", "tcp")
        assert_refused(TransientError, "no answer", "try tls://", scheduler=address)


def test_unreadable_file_on_worker_is_refused(client, tmp_path):
    engine = resolve(client)
    engine.check_file_access(tmp_path, [tmp_path])
    with refused(JobError):
        engine.check_file_access(tmp_path, [tmp_path / "x.parquet"])
    assert list(tmp_path.iterdir()) == []


def test_different_directory_on_worker_is_refused(client, tmp_path, monkeypatch):
    """The path of the run directory, in /proc/self, leads elsewhere on workers."""
    monkeypatch.chdir(tmp_path)
    engine = resolve(client)
    with refused(JobError):
        engine.check_file_access("/proc/self/cwd")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("there", "seen"), [(b"one more", False), (b"the same", True)])
def test_different_data_on_worker_are_refused(client, tmp_path, monkeypatch, there, seen):
    for name, content in (("here", b"the same"), ("there", there)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.parquet").write_bytes(content)
    monkeypatch.chdir(tmp_path / "here")
    before = client.run(os.getcwd)
    client.run(os.chdir, str(tmp_path / "there"))
    try:
        if seen:
            resolve(client).check_file_access(tmp_path, ["/proc/self/cwd/x.parquet"])
        else:
            with refused(JobError):
                resolve(client).check_file_access(tmp_path, ["/proc/self/cwd/x.parquet"])
    finally:
        client.run(os.chdir, next(iter(before.values())))


HOLD = """
import pathlib, sys, time
from dpscale.engine import admission
with admission._written_token(pathlib.Path(sys.argv[1]), b"content"):
    print(flush=True)
    time.sleep(60)
"""


def _tokens(folder):
    return sorted(path.read_bytes() for path in folder.iterdir() if path.suffix != admission.LOCK)


def test_tokens_of_killed_drivers_are_removed(tmp_path):
    """The token of a live driver remains, and other processes can read it."""
    drivers = []
    try:
        for _ in range(2):
            drivers.append(subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE))
            drivers[-1].stdout.readline()
        assert _tokens(tmp_path) == [b"content"] * 2
        drivers[0].kill()
        drivers[0].wait()
        with admission._written_token(tmp_path, b"own") as token:
            assert _tokens(tmp_path) == [b"content", b"own"]
            assert token.stat().st_mode & 0o777 == 0o600
        assert _tokens(tmp_path) == [b"content"]
    finally:
        for driver in drivers:
            driver.kill()
            driver.wait()


def test_task_larger_than_worker_memory_is_refused(cluster, client):
    engine = resolve(client)
    limit = min(worker["memory_limit"] for worker in cluster.scheduler.identity()["workers"].values()) - admission.BASE
    engine.check_worker_memory(limit, "age, sex")
    with refused(PlanError):
        engine.check_worker_memory(limit + 1, "age, sex")


def test_address_without_port_is_refused():
    assert free_port() > 0
    with pytest.raises(JobError):
        schedulers.connect("tls://127.0.0.1", 1)


@pytest.mark.parametrize("rows", [10**7, 0])
def test_set_too_large_to_measure_or_answer_is_refused(tmp_path, rows):
    """2.2 million cells take 95 MB to count, 140 MB to measure and 560 MB to answer; no budget is spent."""
    job = write(
        tmp_path,
        workload=[{"family": "marginal", "attributes": [["a", "b", "c"]]}],
        engine={"memory": "110MiB"},
        output={"max_rows": rows},
    )
    wide = {"attributes": {name: {"kind": "coded", "size": 130} for name in "abc"}}
    (tmp_path / "domain.toml").write_text(tomli_w.dumps(wide))
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None, memory_limit=BASE_AND_SOME) as made,
        Client(made, set_as_default=False) as client,
        refused(PlanError),
    ):
        dp.run(job, tmp_path / "run", client=client)
    assert not (tmp_path / "ledger.sqlite").exists()
