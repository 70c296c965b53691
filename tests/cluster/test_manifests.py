"""The files in cluster/: certificates, and manifests against the schemas of their readers.

The schemas come with dask-kubernetes and dask-jobqueue, which dpscale does not require. DPSCALE_DEPLOY_PYTHON names
a Python that has them and jsonschema; the default is this one.
"""

import os
import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
import yaml
from cryptography import x509

from dpscale.base import VERSION
from tests.cluster.conftest import ROOT, load_certificates_script

CLUSTER = ROOT / "cluster"


@pytest.mark.parametrize("what", ["kubernetes.yaml", "compose.yaml", "slurm.py"])
def test_manifest_fits_schema_of_its_reader(what):
    python = os.environ.get("DPSCALE_DEPLOY_PYTHON", sys.executable)
    done = subprocess.run([python, CLUSTER / "check.py"], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    [result] = [line for line in done.stdout.splitlines() if line.startswith(what)]
    if "skipped" in result:
        pytest.skip(result)


def test_manifests_share_image_and_disable_spilling():
    compose = yaml.safe_load((CLUSTER / "compose.yaml").read_text())
    cluster = yaml.safe_load((CLUSTER / "kubernetes.yaml").read_text())["spec"]
    pods = [cluster["worker"]["spec"], cluster["scheduler"]["spec"]]
    containers = [*compose["services"].values(), *(pod["containers"][0] for pod in pods)]
    assert {one["image"] for one in containers} == {f"dpscale:{VERSION}"}
    assert f"-t dpscale:{VERSION} ." in (CLUSTER / "Dockerfile").read_text()
    assert "spill: false" in load_certificates_script().CONFIGURATION
    for service in compose["services"].values():
        assert service["environment"]["DASK_CONFIG"].removeprefix("/run/secrets/") in service["secrets"]
        assert "ports" not in service
    for pod in pods:
        assert {"name": "DASK_CONFIG", "value": "/tls/dask.yaml"} in pod["containers"][0]["env"]
        assert pod["securityContext"]["runAsNonRoot"]
    assert "ca.key" not in compose["secrets"]


FREEZE = "python -m pip freeze --exclude-editable --exclude dpscale > cluster/constraints.txt"


@pytest.mark.parametrize("page", ["README.md", "Dockerfile", "compose.yaml"])
def test_documents_name_constraints_of_the_image(page):
    text = (CLUSTER / page).read_text()
    assert FREEZE in text
    assert text.count("> constraints.txt") == 0
    assert text.count("pip freeze") == text.count(FREEZE)


@pytest.mark.parametrize("constraints", [None, "", "numpy==1.26.4\n"])
def test_image_build_requires_constraints(tmp_path, constraints):
    """The Dockerfile line that checks the constraints is run in a shell."""
    if constraints is not None:
        (tmp_path / "constraints.txt").write_text(constraints)
    text = (CLUSTER / "Dockerfile").read_text().replace("\\\n", "")
    [line] = [line.removeprefix("RUN ") for line in text.splitlines() if line.startswith("RUN test")]
    assert text.index(line) < text.index("pip install")
    done = subprocess.run(["sh", "-c", line], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode == 0) == bool(constraints)
    assert done.stderr == "" if constraints else "cluster/constraints.txt is missing or empty" in done.stderr


def test_certificates_have_hosts_expiry_and_private_mode(tmp_path):
    load_certificates_script().make_certificates(tmp_path / "c", ["dask.example.org", "10.0.0.5"], 30, "/tls")
    folder = tmp_path / "c"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(key.stat().st_mode) for key in folder.glob("*.key")} == {0o600}
    authority = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
    for role in ("scheduler", "worker", "client"):
        made = x509.load_pem_x509_certificate((folder / f"{role}.pem").read_bytes())
        made.verify_directly_issued_by(authority)
        assert abs(made.not_valid_after_utc - datetime.now(UTC) - timedelta(days=30)) < timedelta(hours=1)
        assert not made.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        assert _names(made) == ([] if role == "client" else ["dask.example.org", "10.0.0.5"])
    assert "ca-file: /tls/ca.pem" in (folder / "dask.yaml").read_text()


def _names(certificate):
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [str(name.value) for name in names]


def test_certificates_are_not_overwritten(tmp_path):
    command = [sys.executable, CLUSTER / "certificates.py", tmp_path / "c"]
    first = subprocess.run(command, capture_output=True, text=True)
    assert first.stdout == f"export DASK_CONFIG={tmp_path}/c/dask.yaml\n"
    before = {path.name: path.read_bytes() for path in (tmp_path / "c").iterdir()}
    again = subprocess.run(command, capture_output=True, text=True)
    assert again.returncode == 2
    assert "is there already" in again.stderr
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "c").iterdir()}
