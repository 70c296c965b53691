"""An HTTP server of the S3 protocol (moto, or the one named by DPSCALE_S3) for all tests of this directory."""

import os
import socket
import subprocess
import sys
import time
import uuid

import pytest

BUCKET = "dpscale-tests"


@pytest.fixture(scope="package")
def store():
    """URL of a bucket; drivers get the store from the environment, as for users."""
    keys = {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "tests", "AWS_DEFAULT_REGION": "us-east-1"}
    s3fs = pytest.importorskip("s3fs")
    server, endpoint = None, os.environ.get("DPSCALE_S3")
    if endpoint is None:
        pytest.importorskip("moto.server")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        endpoint = f"http://127.0.0.1:{port}"
        server = subprocess.Popen([sys.executable, "-m", "moto.server", "-p", str(port)],
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
        wait_for_port(port)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**({} if "DPSCALE_S3" in os.environ else keys), "AWS_ENDPOINT_URL": endpoint}.items():
            patch.setenv(name, value)
        s3fs.S3FileSystem.clear_instance_cache()
        s3fs.S3FileSystem(use_listings_cache=False).mkdir(BUCKET)
        yield f"s3://{BUCKET}"
    if server is not None:
        server.kill()
        server.wait()


def wait_for_port(port):
    for _ in range(600):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError("the store does not start")


@pytest.fixture
def prefix(store):
    return f"{store}/{uuid.uuid4().hex}"
