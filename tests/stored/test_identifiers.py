"""Strings that fix noise, ledger rows, plan files and seeds, and must not change when code is renamed.

The expected values are literals. A failure means that noise is drawn again for an existing release, that a stored
file cannot be read, or that rows of a release change.
"""

import json
import tarfile
from fractions import Fraction

import numpy as np
import pytest

import dpscale as dp
from dpscale.contributions.unit_ids import KEYS
from dpscale.measurement.value_files import META
from dpscale.mechanisms import MECHANISMS, mechanism
from dpscale.plans.factor import KINDS, Factor, center_factor, identity_factor
from dpscale.privacy.accounting import Cost
from dpscale.privacy.secret import secret_tag
from dpscale.privacy.streams import PURPOSES, PublicStream, canonical, open_stream, seeded_secret
from tests.golden.runs import STORED
from tests.stored.runs import ARCHIVES

OPTIONS = {
    "weighted-residuals": ["gap", "seconds"],
    "query-smasher": ["gap", "seconds"],
    "residual-planner": ["objective"],
    "residual-planner-plus": ["bases"],
    "weighted-fourier": [],
    "hdmm": ["way"],
    "eigen-design": ["design", "separate", "principal", "relative"],
    "identity": [],
    "baseline": ["strategy"],
    "auto": [],
    "aim-grem": ["published", "rounds", "degree"],
    "aim-pgm": ["degree", "most_cells"],
    "mst": [],
}  # fmt: skip


def test_cost_has_keys_of_ledger_rows():
    cost = Cost(gaussian=Fraction(1, 3), pure=Fraction(1, 2))
    assert json.dumps(cost.to_dict()) == '{"gaussian": "1/3", "zcdp": "0", "pure": "1/2", "pure_squares": "1/4"}'
    assert Cost.from_dict({"gaussian": "1/3", "zcdp": "0", "pure": "1/2", "pure_squares": "1/4"}) == cost


@pytest.mark.parametrize("name", OPTIONS)
def test_options_have_keys_of_plan_files(name):
    """Adaptive mechanisms write all options in this order to plan.json; new options come after these."""
    assert list(mechanism(name).Options().model_dump())[: len(OPTIONS[name])] == OPTIONS[name]
    assert set(OPTIONS) <= set(MECHANISMS)


@pytest.mark.parametrize(("case", "expected"), [
    ("aim-grem", ["mechanism", "version", "workload", "beta", "rows_per_unit", "options"]),
    ("query-smasher", ["mechanism", "workload", "error", "bound", "notes", "factors", "strategies", "blocks"]),
])  # fmt: skip
def test_plan_file_has_keys_of_earlier_versions(case, expected):
    content = json.loads((STORED / case / "plan" / "plan.json").read_text())
    assert [key for key in content if key in expected] == expected


def test_factor_digests_in_measurement_labels():
    assert KINDS == ("center", "identity", "matrix", "full", "nested", "tree", "layered", "spectral", "circulant")
    found = [identity_factor(3).digest, center_factor(3).digest,
             Factor("matrix", (3,), np.array([[1, -1, 0], [1, 1, -2]])).digest]  # fmt: skip
    assert found == [
        "0a7598228d7852f75cf1cf02971d8bfcd378082858941f698a9c411e4f3c76e9",
        "c01e6b6a7149607a62bb7e8b183d32ec53d691e4c896e10bd1bbe4e1ef62d069",
        "6c4f6790bd7e6ab44c6bfaa5112a1d5c0416cc65b4e30067e8e510c8a289f87e",
    ]


def test_keys_of_measurement_labels():
    first = json.loads((STORED / "query-smasher" / "draws.json").read_text())["1"][0][0]
    assert list(json.loads(first)) == [
        "attributes",
        "domain",
        "multiplier",
        "release",
        "round",
        "snapshot",
        "strategy",
        "variance",
        "version",
    ]
    first = json.loads((STORED / "aim-grem" / "draws.json").read_text())["1"][-1][0]
    assert list(json.loads(first)) == [
        "domain",
        "groups",
        "mechanism",
        "multiplier",
        "rank",
        "release",
        "residual",
        "round",
        "snapshot",
        "variance",
        "whole",
    ]


def test_decision_has_keys_of_earlier_versions():
    """A seal covers the whole text, so an added, removed or reordered key would refuse a stored round."""
    with tarfile.open(ARCHIVES / "aim-grem@4.tar.gz") as archive:
        text = archive.extractfile("run/measurements/round-001.json").read().decode()
    assert list(json.loads(text)) == ["round", "chosen", "beta", "step", "groups", "orders", "seal"]
    assert text.startswith('{"round": 1, "chosen": [["age", "income"]], "beta": "7/9600", "step": ')


def test_digests_of_domains_and_workloads():
    domain = dp.Domain({"a": 2, "b": 3})
    workload = dp.Workload(domain).add("marginal", degree=2)
    assert domain.digest == "8134c0bfbae1d2562ed57f9304e02845dd89d9c4f9e8bbf3a4d1627edb536257"
    assert workload.digest == "5c14ad166ef440adb0d54cfc4493201d63e5d95d20a56f508c657441009c62d6"


def test_streams_and_seeds():
    assert PURPOSES == ("noise", "selection", "sampling")
    assert canonical({"b": 1, "a": [1, "é"]}) == b'{"a":[1,"\\u00e9"],"b":1}'
    assert open_stream(bytes(32), "noise", {"a": 1}).words(2).tolist() == [10527454915330668590, 2275315856126604146]
    assert seeded_secret(0).hex() == "b3cfb4ba95d137b375698dadb08605e03fb8018d048d453482cf62a65c86cb79"
    assert secret_tag(bytes(32)) == "11347a10716a4e460026ac3cf6f0c14d10c1851850204a6037bd7d0ce32287a9"


def test_release_id_seeds_synthetic_rows():
    assert PublicStream("release", "purpose", 1).uniforms(2).tolist() == [0.6808499435721234, 0.028759246461127708]


def test_metadata_key_and_unit_hash_keys():
    assert META == b"dpscale"
    assert KEYS == ("dpscale.unit.one", "dpscale.unit.two")
