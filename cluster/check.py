"""Validate the manifests of this folder against the schemas of the programs that read them.

    python -m venv /tmp/check && /tmp/check/bin/pip install dask-kubernetes dask-jobqueue jsonschema
    /tmp/check/bin/python cluster/check.py

Kubernetes: the schema of the custom resource in dask-kubernetes; an unknown field is an error, although the API server
would drop it silently. SLURM: the job script that dask-jobqueue writes. Compose: `docker compose config`, or the schema
named by --compose-schema. Programs that are not installed are reported as skipped.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent


def check_kubernetes() -> str:
    """Validate kubernetes.yaml and return the result."""
    found = importlib.util.find_spec("dask_kubernetes")
    if found is None or found.origin is None or importlib.util.find_spec("jsonschema") is None:
        return "skipped: dask-kubernetes or jsonschema is not installed"
    from jsonschema import Draft7Validator

    crd = Path(found.origin).parent / "operator/deployment/helm/dask-kubernetes-operator/crds/daskcluster.yaml"
    [version] = [one for one in yaml.safe_load(crd.read_text())["spec"]["versions"] if one["name"] == "v1"]
    manifest = yaml.safe_load((HERE / "kubernetes.yaml").read_text())
    schema = forbid_unknown_fields(version["schema"]["openAPIV3Schema"])
    schema["properties"] |= {name: {} for name in ("apiVersion", "kind", "metadata")}
    Draft7Validator(schema).validate(manifest)
    try:
        Draft7Validator(schema).validate(manifest | {"spec": manifest["spec"] | {"unknown": 1}})
    except Exception:
        return "valid against dask-kubernetes' DaskCluster v1"
    raise AssertionError("the schema accepts anything")


def forbid_unknown_fields(schema: Any) -> Any:
    """Return the schema with unknown fields forbidden wherever it names fields."""
    if isinstance(schema, list):
        return [forbid_unknown_fields(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {name: forbid_unknown_fields(one) for name, one in schema.items()}
    if inner.pop("x-kubernetes-int-or-string", False):
        inner.pop("type", None)
    if "properties" in inner and not inner.get("x-kubernetes-preserve-unknown-fields"):
        inner.setdefault("additionalProperties", False)
    return inner


def check_compose(schema: Path | None) -> str:
    """Validate compose.yaml and return the result."""
    if schema is not None:
        from jsonschema import Draft7Validator

        Draft7Validator(json.loads(schema.read_text())).validate(yaml.safe_load((HERE / "compose.yaml").read_text()))
        return f"valid against {schema.name}"
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "compose", "version"], capture_output=True).returncode:
        return "skipped: docker compose is not installed"
    subprocess.run([docker, "compose", "-f", str(HERE / "compose.yaml"), "config", "--quiet"], check=True)
    return "valid by docker compose config"


def check_slurm() -> str:
    """Write a job script and return the result."""
    if importlib.util.find_spec("dask_jobqueue") is None:
        return "skipped: dask-jobqueue is not installed"
    with tempfile.TemporaryDirectory() as folder:
        certs = Path(folder) / "certs"
        subprocess.run([sys.executable, HERE / "certificates.py", certs], check=True, capture_output=True)
        command = [sys.executable, HERE / "slurm.py", "job.toml", "--run-dir", "/shared/run", "--queue", "normal",
                   "--interface", "lo", "--script"]  # fmt: skip
        environment = {"DASK_CONFIG": str(certs / "dask.yaml"), "PATH": "/usr/bin:/bin"}
        made = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    wanted = ("#SBATCH -p normal", "tls://", "--nworkers 4", "--nthreads 1", "--nanny", f"DASK_CONFIG={certs}",
              "--tls-key", "MEMORY__SPILL=False")  # fmt: skip
    missing = [text for text in wanted if text not in made]
    assert not missing, f"{missing} missing in\n{made}"
    return "dask-jobqueue makes the job script"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compose-schema", type=Path, help="compose-spec.json, where docker compose is not installed")
    given = parser.parse_args()
    print("kubernetes.yaml:", check_kubernetes())
    print("compose.yaml:", check_compose(given.compose_schema))
    print("slurm.py:", check_slurm())


if __name__ == "__main__":
    main()
