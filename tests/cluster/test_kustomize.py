"""The Kustomize files of cluster/kustomize: schemas of Kubernetes, names that agree, and no privilege or secret."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.conftest import ROOT

FOLDER = ROOT / "cluster" / "kustomize"
VERSION = "1.31"


def documents(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the resources of a Kustomization and of the folders that it includes."""
    content = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert content["kind"] == "Kustomization"
    for name in content["resources"]:
        if (folder / name).is_dir():
            yield from documents(folder / name)
        else:
            yield from yaml.safe_load_all((folder / name).read_text())


RESOURCES = list(documents(FOLDER / "ledger"))
PODS = [one["spec"]["template"] for one in RESOURCES if "template" in one.get("spec", {})]


def validate(resource: dict[str, Any]) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    kubernetes_validate.validate(resource, VERSION, strict=True)


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda one: f"{one['kind']} {one['metadata']['name']}")
def test_resource_fits_schema(resource):
    validate(resource)


def test_misspelt_field_is_detected():
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    [job] = [one for one in RESOURCES if one["kind"] == "Job"]
    with pytest.raises(kubernetes_validate.ValidationError):
        validate(job | {"spec": job["spec"] | {"backofLimit": 5}})


def test_every_file_is_a_resource_of_a_kustomization():
    listed = {path.resolve() for folder in (FOLDER / "base", FOLDER / "ledger")
              for name in yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
              if (path := folder / name).is_file()}  # fmt: skip
    assert listed == {path.resolve() for path in FOLDER.glob("*/*.yaml") if path.name != "kustomization.yaml"}


def test_addresses_name_services_and_selectors_name_pods():
    services = {one["metadata"]["name"]: one["spec"] for one in RESOURCES if one["kind"] == "Service"}
    components = {pod["metadata"]["labels"]["app.kubernetes.io/component"] for pod in PODS}
    assert {one["selector"]["app.kubernetes.io/component"] for one in services.values()} <= components
    arguments = [text for pod in PODS for one in pod["spec"]["containers"] for text in one.get("args", ())]
    addresses = {text for text in arguments if text.startswith("tls://")}
    assert addresses == {f"tls://dpscale-scheduler:{services['dpscale-scheduler']['ports'][0]['port']}"}
    assert "postgresql://dpscale-ledger/" in (FOLDER / "ledger" / "kustomization.yaml").read_text()
    assert services["dpscale-ledger"]["ports"][0]["port"] == 5432


def test_pods_are_not_privileged_and_contain_no_secret():
    for pod in PODS:
        assert pod["spec"]["securityContext"]["runAsNonRoot"]
        assert not pod["spec"]["automountServiceAccountToken"]
        for container in pod["spec"]["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            }
            assert "memory" in container["resources"]["limits"]
            for variable in container["env"]:
                assert "PASSWORD" not in variable["name"] or "value" not in variable
    assert not [one for one in RESOURCES if one["kind"] == "Secret"]
